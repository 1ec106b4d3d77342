"""SAC's formulas against integration, distrax and optax, and the contract of the file."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import envs
from algorithms import parts, sac
from envs.gymnax import spaces
from tests import probe as tasks
from tests.algorithms.cases import Case, again, assert_close, assert_same, programs
from tests.algorithms.test_actor_critics import (
    OF_CASES,
    PROBE,
    REFUSED,
    SMALL,
    TAKES_BOX,
    assert_apart,
    learner_of,
    played,
    two_motors,
)

TINY = sac.Config(**SMALL, tau=0.05)


def mean_action(config, state, x, size=1):
    return jnp.tanh(sac.Actor(config, size).apply(state.policy.params, x).mean)


def lowest_value(config, state, x, action):
    critics = jax.vmap(sac.Critic(config).apply, (0, None, None))
    return critics(state.critic_params, x, action).min(0)


# --- formulas ---------------------------------------------------------------------------------


def test_a_box_without_bounds_is_refused():
    class Endless(tasks.Probe):
        def action_space(self, params):
            return spaces.Box(-jnp.inf, jnp.inf, (1,))

    with pytest.raises(ValueError, match="sac takes a Box with bounds"):
        sac.make_train(TINY, Endless(True), tasks.ProbeParams())


# --- one gradient step ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def step():
    """The state before and after an update of one round with one gradient step, and the config."""
    config = TINY.replace(train_every=16, updates_per_step=1, learning_starts=0, anneal_lr=False)
    config = config.replace(buffer_size=200, num_critics=3, num_eval_episodes=0)
    config = config.replace(learning_rate=0.1, adam_eps=1.0)  # else the step is only a sign
    config = config.replace(weight_decay=0.2)
    learner = sac.learner(config, *two_motors())
    init, update = programs(learner)
    state = update(init(jax.random.key(0)))[0]
    # Critics that differ from their targets, and another temperature
    state = state.replace(
        target_params=jax.tree.map(lambda x: 1.3 * x + 0.05, state.target_params),
        log_temperature=jnp.float32(np.log(0.3)),
        opt_state=jax.tree.map(jnp.zeros_like, state.opt_state),
    )
    return config, state, *update(again(state))


def papers_step(config, state, replay):
    """The paper's step: each part by its own loss, with its own Adam; targets by their average;
    metrics."""
    _, _, _, _, draw_rng, action_rng = jax.random.split(state.rng, 6)
    buffer = parts.ReplayBuffer.of(config)
    draw = buffer.draw(replay, buffer.noise(draw_rng, (1, 1, config.batch_size))[0, 0])
    window = buffer.windows(replay.transitions, draw.index, config.gamma)
    noise = jax.random.normal(action_rng, (1, 1, 2, config.batch_size, 2))[0, 0]
    actor, critic, alpha = sac.Actor(config, 2), sac.Critic(config), 0.3
    value = lambda params, i, x, a: critic.apply(jax.tree.map(lambda p: p[i], params), x, a)
    x, next_x, params = window.observation, window.final_observation, state.policy.params

    next_action, next_log_prob = actor.apply(params, next_x).sample_and_log_prob_from(noise[1])
    lowest = jnp.stack([value(state.target_params, i, next_x, next_action) for i in range(3)])
    soft = lowest.min(0) - alpha * next_log_prob
    target = config.reward_scale * window.returns + window.discount * soft

    def critic_loss(critics):
        errors = [value(critics, i, x, window.action) - target for i in range(3)]
        return sum((error**2).mean() for error in errors)

    def actor_loss(params):
        action, log_prob = actor.apply(params, x).sample_and_log_prob_from(noise[0])
        values = jnp.stack([value(state.critic_params, i, x, action) for i in range(3)])
        return (alpha * log_prob - values.min(0)).mean()

    log_prob = actor.apply(params, x).sample_and_log_prob_from(noise[0])[1]
    temperature_loss = lambda log: jnp.exp(log) * (-log_prob - 2.0 * config.target_entropy).mean()

    def stepped(loss, params, weight_decay=config.weight_decay):
        adam = optax.adamw(config.learning_rate, eps=config.adam_eps, weight_decay=weight_decay)
        changes, _ = adam.update(jax.grad(loss)(params), adam.init(params), params)
        return optax.apply_updates(params, changes)

    critics = stepped(critic_loss, state.critic_params)
    moved = jax.tree.map(lambda t, c: 0.95 * t + 0.05 * c, state.target_params, critics)
    log_temperature = stepped(temperature_loss, state.log_temperature, 0.0)
    said = {
        "critic_loss": critic_loss(state.critic_params),
        "actor_loss": actor_loss(params),
        "entropy": -log_prob.mean(),
        "temperature": alpha,
    }
    return critics, stepped(actor_loss, params), moved, log_temperature, said


def test_a_gradient_step_is_the_papers(step):
    config, state, after, metrics = step
    expected = jax.jit(lambda *args: papers_step(config, *args))(again(state), after.replay)
    critics, params, moved, log_temperature, said = expected
    assert_close(after.critic_params, critics, rtol=1e-3, atol=2e-5)
    assert_close(after.policy.params, params, rtol=1e-3, atol=2e-5)
    assert_close(after.target_params, moved, rtol=1e-3, atol=2e-5)
    assert after.log_temperature == pytest.approx(float(log_temperature), rel=1e-4)
    for name, value in said.items():
        assert float(metrics[name].total) == pytest.approx(float(value), rel=1e-3), name


def test_a_fixed_temperature_stays(case, slices):
    _, update = learner_of(case, learn_temperature=False)
    state, metrics = update(again(slices[0][0]).replace(log_temperature=jnp.float32(np.log(0.2))))
    assert float(state.log_temperature) == pytest.approx(np.log(0.2))
    assert metrics["actor_loss"].weight > 0


# --- network ----------------------------------------------------------------------------------


def test_critics_start_apart_and_heads_with_their_gains(slices):
    state, _ = slices[0]
    assert_apart(state.critic_params["params"])
    for name in ("mean_head", "std_head"):
        head = state.policy.params["params"][name]["kernel"]
        np.testing.assert_allclose(head.T @ head, 1e-4, rtol=1e-4)
    assert_same(state.target_params, state.critic_params)


def test_simba_learns_with_normalised_observations():
    config = TINY.replace(network="simba", normalize_obs=True)
    init, update = programs(sac.learner(config, *envs.make(TINY.env, max_steps=20)))
    state, metrics = update(init(jax.random.key(0)))
    assert np.isfinite(metrics["critic_loss"].total) and metrics["critic_loss"].weight == 22
    assert float(state.policy.obs_stats.count) == 32
    assert "LayerNorm_1" in state.policy.params["params"]["Torso_0"]


# --- probe tasks ------------------------------------------------------------------------------

PROBE = sac.Config(**PROBE, tau=0.05, initial_temperature=1e-2, learn_temperature=False)
CASE = Case(
    module=sac,
    tiny=TINY,
    metrics={"critic_loss", "actor_loss", "mean_value", "entropy", "temperature", "grad_norm"},
    pinned={
        "critic_loss": [139.013, 87.4857, 74.2172],
        "actor_loss": [0.788949, 0.496193, 0.322233],
        "entropy": [-0.00675653, 0.161609, 0.304284],
    },
    refused=(
        *REFUSED,
        (dict(updates_per_step=0), "updates_per_step=0"),
        (dict(num_critics=0), "num_critics=0: give a whole number, 1 or more"),
        (dict(network="simba", critic_hidden_sizes=(8, 4)), "simba's blocks are one size"),
        (dict(network="simba", hidden_sizes=()), "hidden_sizes=.*: simba's blocks are one size"),
        TAKES_BOX,
    ),
    probe=PROBE,
    probes={"continuous": False},
    played=played,
    learns=("policy", "critic_params", "target_params", "log_temperature", "opt_state"),
    mean_action=mean_action,
    lowest_value=lowest_value,
    **OF_CASES,
)


def test_the_entropy_reaches_its_target():
    """On a bandit with a best action, the temperature brings it there."""
    config = PROBE.replace(learn_temperature=True, initial_temperature=0.1, target_entropy=-0.5)
    params = tasks.ProbeParams(task=tasks.ACTION, max_steps_in_episode=5)
    train = sac.make_train(config.replace(num_evals=4), tasks.Probe(True), params)
    _, metrics = train(jax.random.key(0))
    assert float(metrics["entropy"][-1]) == pytest.approx(-0.5, abs=0.1)
