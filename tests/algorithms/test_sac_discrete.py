"""Discrete SAC's sums over actions against draws and optax, and the contract of the file."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import envs
from algorithms import parts, sac_discrete
from envs.gymnax import Wrapper, spaces
from tests import probe as tasks
from tests.algorithms.cases import Case, again, assert_close, assert_same, change_leaves, programs
from tests.algorithms.test_actor_critics import (
    OF_CASES,
    PROBE,
    REFUSED,
    SMALL,
    assert_apart,
    learner_of,
)
from tests.algorithms.test_probes import play_probes
from tests.conftest import AS_FOR_USERS

CARTPOLE = dict(env="CartPole-v1", learning_rate=1e-3, initial_temperature=1.0, tau=0.05)
TINY = sac_discrete.Config(**SMALL, **CARTPOLE)


# --- formulas ---------------------------------------------------------------------------------

MASK = jnp.array(
    [[True, True, True, True], [True, False, True, False], [False, True, False, False]]
)


def test_forbidden_actions_have_no_probability():
    logits = jnp.array(np.random.default_rng(0).normal(size=(3, 4)), jnp.float32)
    probs = np.asarray(jax.nn.softmax(sac_discrete.allowed(logits, MASK)))
    expected = np.exp(logits) * MASK
    np.testing.assert_allclose(probs, expected / expected.sum(-1, keepdims=True), rtol=1e-5)
    assert (probs[~np.asarray(MASK)] == 0.0).all()
    np.testing.assert_array_equal(sac_discrete.allowed(logits, None), logits)


def test_entropies_are_of_allowed_actions():
    uniform = jax.nn.log_softmax(sac_discrete.allowed(jnp.zeros((3, 4)), MASK))
    expected = np.log([4.0, 2.0, 1.0])
    np.testing.assert_allclose(sac_discrete.entropy_of(uniform), expected, atol=1e-6)
    np.testing.assert_allclose(sac_discrete.largest_entropy(uniform, MASK), expected, rtol=1e-6)
    np.testing.assert_allclose(sac_discrete.largest_entropy(uniform, None), np.log(4.0), rtol=1e-6)
    slopes = jax.grad(
        lambda x: sac_discrete.entropy_of(jax.nn.log_softmax(sac_discrete.allowed(x, MASK))).sum()
    )(jnp.ones((3, 4)))
    assert np.isfinite(slopes).all()


# --- one gradient step ------------------------------------------------------------------------


class Masked(Wrapper):
    """CartPole with a third, forbidden action. The first one is forbidden while it moves left.

    The episode ends if the cart is too fast.
    """

    def action_space(self, params):
        return spaces.Discrete(3)

    def action_mask(self, state, params):
        return jnp.array([state.inner.x_dot > 0.0, True, False])

    def step_env(self, key, state, action, params):
        observation, state, reward, _, info = self.env.step_env(key, state, action, params)
        return observation, state, reward, jnp.abs(observation[1]) > 0.5, info


@pytest.fixture(scope="module")
def step():
    """The state before and after an update of one round with one gradient step, and the config."""
    config = TINY.replace(train_every=16, updates_per_step=1, learning_starts=0, anneal_lr=False)
    config = config.replace(buffer_size=200, num_critics=3, num_eval_episodes=0)
    config = config.replace(learning_rate=0.1, adam_eps=1.0)  # else the step is only a sign
    config = config.replace(weight_decay=0.2)
    env, params = envs.make(config.env, max_steps=9)
    learner = sac_discrete.learner(config, Masked(env), params)
    init, update = programs(learner)
    state = update(init(jax.random.key(0)))[0]
    # Critics that differ from their targets, a policy with preferences, another temperature
    state = state.replace(
        policy=state.policy.replace(params=jax.tree.map(lambda x: 20.0 * x, state.policy.params)),
        target_params=jax.tree.map(lambda x: 1.3 * x + 0.05, state.target_params),
        log_temperature=jnp.float32(np.log(0.3)),
        opt_state=jax.tree.map(jnp.zeros_like, state.opt_state),
    )
    return config, state, *update(again(state))


def test_a_gradient_step_is_the_papers(step):
    """Each part steps by its own loss, with its own Adam; targets move by their average.

    Expectations are weighted sums over the actions.
    """
    config, state, after, metrics = step
    _, _, _, _, draw_rng = jax.random.split(again(state).rng, 5)
    buffer = parts.ReplayBuffer.of(config)
    draw = buffer.draw(after.replay, buffer.noise(draw_rng, (1, 1, config.batch_size))[0, 0])
    window = buffer.windows(after.replay.transitions, draw.index, config.gamma)
    assert not window.action_mask.all(0)[0] and window.action_mask.any(0)[0]
    assert (window.action_mask != window.final_action_mask).any()
    actor, critic, alpha = sac_discrete.Actor(config, 3), sac_discrete.Critic(config, 3), 0.3
    value = lambda params, i, x: critic.apply(jax.tree.map(lambda p: p[i], params), x)
    x, next_x, params = window.observation, window.final_observation, state.policy.params

    def probs_of(params, x, mask):
        odds = jnp.exp(actor.apply(params, x)) * mask
        return odds / odds.sum(-1, keepdims=True)

    def expected(probs, values):
        """The expectation over actions that have a probability."""
        return sum(jnp.where(probs[:, a] > 0, probs[:, a] * values[:, a], 0.0) for a in range(3))

    log = lambda probs: jnp.log(jnp.maximum(probs, 1e-30))
    next_probs = probs_of(params, next_x, window.final_action_mask)
    lowest = jnp.stack([value(state.target_params, i, next_x) for i in range(3)]).min(0)
    target = 0.5 * window.returns
    target += window.discount * expected(next_probs, lowest - alpha * log(next_probs))
    rows = jnp.arange(config.batch_size)

    def critic_loss(critics):
        errors = [value(critics, i, x)[rows, window.action] - target for i in range(3)]
        return sum((error**2).mean() for error in errors)

    own = jnp.stack([value(state.critic_params, i, x) for i in range(3)]).min(0)

    def actor_loss(params):
        probs = probs_of(params, x, window.action_mask)
        return expected(probs, alpha * log(probs) - own).mean()

    probs = probs_of(params, x, window.action_mask)
    entropy = -expected(probs, log(probs))
    wanted = config.target_entropy * np.log(window.action_mask.sum(-1))
    assert 0.0 < float(entropy.mean()) < np.log(2.0) and (wanted == 0.0).any()
    temperature_loss = lambda log: jnp.exp(log) * (entropy - wanted).mean()

    def stepped(loss, params, weight_decay=config.weight_decay):
        adam = optax.adamw(config.learning_rate, eps=config.adam_eps, weight_decay=weight_decay)
        changes, _ = adam.update(jax.grad(loss)(params), adam.init(params), params)
        return optax.apply_updates(params, changes)

    critics = stepped(critic_loss, state.critic_params)
    assert_close(after.critic_params, critics, rtol=1e-3, atol=2e-5)
    assert_close(after.policy.params, stepped(actor_loss, params), rtol=1e-3, atol=2e-5)
    log_temperature = stepped(temperature_loss, state.log_temperature, 0.0)
    assert after.log_temperature == pytest.approx(float(log_temperature), rel=1e-4)
    moved = jax.tree.map(lambda t, c: 0.95 * t + 0.05 * c, state.target_params, critics)
    assert_close(after.target_params, moved, rtol=1e-3, atol=2e-5)
    found = {
        "critic_loss": critic_loss(state.critic_params),
        "actor_loss": actor_loss(params),
        "mean_value": expected(probs, own).mean(),
        "entropy": entropy.mean(),
        "temperature": 0.3,
    }
    for name, value in found.items():
        assert float(metrics[name].total) == pytest.approx(float(value), rel=1e-3), name


def test_stored_transitions_lead_to_the_observation_before_any_restart(step):
    """Compared with CartPole's own equations, and with the rules of its wrapper."""
    _, _, after, _ = step
    seen = jax.tree.map(lambda x: np.asarray(x[:64]), after.replay.transitions)
    x, x_next = seen.observation, seen.final_observation
    np.testing.assert_allclose(x_next[:, [0, 2]], x[:, [0, 2]] + 0.02 * x[:, [1, 3]], atol=1e-6)
    too_fast = np.abs(x_next[:, 1]) > 0.5
    np.testing.assert_array_equal(seen.terminated, too_fast)
    assert too_fast.any() and (seen.done & ~too_fast).any() and (seen.done | ~too_fast).all()
    for mask, speed in ((seen.action_mask, x[:, 1]), (seen.final_action_mask, x_next[:, 1])):
        np.testing.assert_array_equal(mask[:, 0], speed > 0.0)
        assert mask[:, 1].all() and not mask[:, 2].any()
    assert seen.action_mask[np.arange(64), seen.action].all()


def test_a_fixed_temperature_stays(case, slices):
    _, update = learner_of(case, learn_temperature=False)
    state, metrics = update(again(slices[0][0]).replace(log_temperature=jnp.float32(np.log(0.2))))
    assert float(state.log_temperature) == pytest.approx(np.log(0.2))
    assert metrics["actor_loss"].weight > 0


# --- acting -----------------------------------------------------------------------------------


def test_actions_are_uniform_and_then_the_policys():
    """The policy prefers action 1 by a logit of 2. The statistics have all observations.

    The second round of 512 steps passes `learning_starts`, and the policy acts in the third.
    """
    config = TINY.replace(learning_starts=1000, total_timesteps=3 * 512, num_envs=32)
    config = config.replace(train_every=16)
    config = config.replace(buffer_size=1536, learning_rate=0.0, num_eval_episodes=0)
    config = config.replace(normalize_obs=True)
    train = sac_discrete.make_train(config)
    state = parts.first_state(train, jax.random.key(0))
    state = change_leaves(state, ["action_head", "bias"], lambda x: jnp.array([0.0, 2.0]))
    state = change_leaves(state, ["action_head", "kernel"], jnp.zeros_like)
    state, _ = train(None, state, 3)
    seen = jax.tree.map(np.asarray, state.replay.transitions)
    assert seen.action[:1024].mean() == pytest.approx(0.5, abs=0.05)
    assert seen.action[1024:].mean() == pytest.approx(1.0 / (1.0 + np.exp(-2.0)), abs=0.05)
    stats = state.policy.obs_stats
    np.testing.assert_allclose(stats.mean, seen.observation.mean(0), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(stats.var, seen.observation.var(0), rtol=1e-3, atol=1e-5)


def test_a_policy_with_a_key_samples(vmapped_keys):
    """Of three actions, as two would hide the noise's sign."""
    config = TINY.replace(env="Acrobot-v1")
    env, params = envs.make("Acrobot-v1")
    state = sac_discrete.learner(config, env, params).init(jax.random.key(0))
    state = change_leaves(state, ["action_head", "bias"], lambda x: jnp.array([0.0, 1.5, 1.5]))
    policy, x = sac_discrete.make_policy(config, env, params), jnp.zeros(6)
    keys = jax.random.split(jax.random.key(1), 20_000)
    actions = np.asarray(jax.vmap(lambda key: policy(state, x, None, key)[0])(keys))
    logits = sac_discrete.Actor(config, 3).apply(state.policy.params, x[None])[0]
    found = np.bincount(actions, minlength=3) / len(actions)
    np.testing.assert_allclose(found, jax.nn.softmax(logits), atol=0.015)
    assert policy(state, x)[0] == logits.argmax()


# --- network ----------------------------------------------------------------------------------


def test_critics_start_apart_and_heads_with_their_gains(slices):
    state, _ = slices[0]
    assert_apart(state.critic_params["params"], 2)
    head = state.policy.params["params"]["action_head"]["kernel"]
    np.testing.assert_allclose(head.T @ head, 1e-4 * np.eye(2), atol=1e-8)
    assert_same(state.target_params, state.critic_params)


# --- probe tasks ------------------------------------------------------------------------------

PROBE = sac_discrete.Config(
    **PROBE, reward_scale=1.0, tau=0.05, initial_temperature=1e-2, learn_temperature=False
)


def played(case, kind):
    """Values and actions for test_probes.py."""

    def values_of(config, space, state, x):
        critics = jax.vmap(sac_discrete.Critic(config, 2).apply, (0, None))
        return critics(state.critic_params, x).min(0).max(-1)

    return kind, *play_probes(sac_discrete, PROBE, values_of, options=AS_FOR_USERS)


CASE = Case(
    module=sac_discrete,
    tiny=TINY,
    metrics={"critic_loss", "actor_loss", "mean_value", "entropy", "temperature", "grad_norm"},
    pinned={
        "critic_loss": [4.61693, 4.1403, 3.72993],
        "actor_loss": [-0.634708, -0.657387, -0.655879],
        "temperature": [0.991326, 0.974207, 0.963483],
    },
    refused=(
        *REFUSED,
        (dict(updates_per_step=0), "updates_per_step=0"),
        (dict(buffer_dtype="int7"), "buffer_dtype='int7': give \"\" or bool or int8"),
        (dict(num_critics=0), "num_critics=0: give a whole number, 1 or more"),
        (dict(network="simba", critic_hidden_sizes=(8, 4)), "simba's blocks are one size"),
        (dict(network="simba", hidden_sizes=()), "hidden_sizes=.*: simba's blocks are one size"),
        (
            dict(env="Pendulum-v1", env_settings=()),
            "Pendulum-v1 has actions .*; sac_discrete takes Disc",
        ),
    ),
    probe=PROBE,
    probes={"discrete": False},
    played=played,
    learns=("policy", "critic_params", "target_params", "log_temperature", "opt_state"),
    **OF_CASES,
)


def test_the_entropy_reaches_its_target():
    """On a bandit with a best action, the temperature brings it there."""
    config = PROBE.replace(learn_temperature=True, initial_temperature=0.1, target_entropy=0.5)
    params = tasks.ProbeParams(task=tasks.ACTION, max_steps_in_episode=5)
    train = sac_discrete.make_train(config.replace(num_evals=4), tasks.Probe(), params)
    _, metrics = train(jax.random.key(0))
    assert float(metrics["entropy"][-1]) == pytest.approx(0.5 * np.log(2.0), abs=0.05)
