"""TD3's gradient step against the papers' equations, its noises, and the contract of the file."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import parts, td3
from tests.algorithms.cases import Case, again, assert_close, assert_same, programs
from tests.algorithms.test_actor_critics import (
    OF_CASES,
    PROBE,
    REFUSED,
    SMALL,
    TAKES_BOX,
    assert_apart,
    played,
    two_motors,
)

TINY = td3.Config(**SMALL, tau=0.05, noise_correlation=0.5)


def mean_action(config, state, x, size=1):
    return td3.Actor(config, size).apply(state.policy.params, x)


def lowest_value(config, state, x, action):
    critics = jax.vmap(td3.Critic(config).apply, (0, None, None))
    return critics(state.critic_params, x, action).min(0)


# --- formulas ---------------------------------------------------------------------------------


def test_correlated_noise_keeps_its_variance_and_forgets():
    rng = np.random.default_rng(0)
    fresh, last = rng.normal(size=(2, 100_000))
    noise = td3.correlated(fresh, last, 0.8)
    assert noise.var() == pytest.approx(1.0, abs=0.02)
    assert np.corrcoef(noise, last)[0, 1] == pytest.approx(0.8, abs=0.01)
    np.testing.assert_array_equal(td3.correlated(fresh, last, 0.0), fresh.astype(np.float32))


# --- gradient steps ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def steps():
    """The states before and after an update of one round with two gradient steps, and the
    config."""
    config = TINY.replace(train_every=16, learning_starts=0, anneal_lr=False, num_eval_episodes=0)
    config = config.replace(buffer_size=200, num_critics=3, target_noise=0.4, policy_every=2)
    config = config.replace(learning_rate=0.1, adam_eps=1.0)  # else the step is only a sign
    config = config.replace(weight_decay=0.2)
    learner = td3.learner(config, *two_motors())
    init, update = programs(learner)
    state = update(init(jax.random.key(0)))[0]
    # Networks that differ from their targets
    state = state.replace(
        target_params=jax.tree.map(lambda x: 1.3 * x + 0.05, state.target_params),
        actor_opt_state=jax.tree.map(jnp.zeros_like, state.actor_opt_state),
        critic_opt_state=jax.tree.map(jnp.zeros_like, state.critic_opt_state),
    )
    return config, state, *update(again(state))


def papers_steps(config, state, replay):
    """The papers' steps, their metrics and all noise.

    The critics take two steps in Adam's order. After the second, the actor takes one up the new
    first critic, and the targets follow.
    """
    _, _, _, _, draw_rng, target_rng = jax.random.split(state.rng, 6)
    buffer, shape = parts.ReplayBuffer.of(config), (1, 2, config.batch_size)
    draws = buffer.noise(draw_rng, shape)[0]
    noises = 0.4 * jax.random.normal(target_rng, (*shape, 2))[0]
    actor, critic = td3.Actor(config, 2), td3.Critic(config)
    value = lambda params, i, x, a: critic.apply(jax.tree.map(lambda p: p[i], params), x, a)
    adam = optax.adamw(config.learning_rate, eps=config.adam_eps, weight_decay=0.2)

    def stepped(loss, params, opt_state):
        changes, opt_state = adam.update(jax.grad(loss)(params), opt_state, params)
        return optax.apply_updates(params, changes), opt_state

    critics, targets = state.critic_params, state.target_params
    opt_state, losses = adam.init(critics), []
    for noise, draw_noise in zip(noises, draws):
        index = buffer.draw(replay, draw_noise).index
        window = buffer.windows(replay.transitions, index, config.gamma)
        next_action = actor.apply(targets.actor, window.final_observation)
        next_action = jnp.clip(next_action + jnp.clip(noise, -0.5, 0.5), -1.0, 1.0)
        lowest = jnp.stack(
            [value(targets.critics, i, window.final_observation, next_action) for i in range(3)]
        ).min(0)
        target = 0.5 * window.returns + window.discount * lowest

        def critic_loss(critics, window=window, target=target):
            errors = [
                value(critics, i, window.observation, window.action) - target for i in range(3)
            ]
            return sum((error**2).mean() for error in errors)

        losses.append(critic_loss(critics))
        critics, opt_state = stepped(critic_loss, critics, opt_state)

    def actor_loss(params):
        x = window.observation
        return -value(critics, 0, x, actor.apply(params, x)).mean()

    params, _ = stepped(actor_loss, state.policy.params, adam.init(state.policy.params))
    new = td3.Targets(params, critics)
    moved = jax.tree.map(lambda t, c: 0.95 * t + 0.05 * c, targets, new)
    said = {"critic_loss": sum(losses), "actor_loss": actor_loss(state.policy.params)}
    return critics, params, moved, said, noises


def test_gradient_steps_are_the_papers(steps):
    config, state, after, metrics = steps
    expected = jax.jit(lambda *args: papers_steps(config, *args))(again(state), after.replay)
    critics, params, moved, said, noises = expected
    assert (np.abs(noises) > 0.5).any()  # some are clipped
    assert_close(after.critic_params, critics, rtol=1e-3, atol=2e-5)
    assert_close(after.policy.params, params, rtol=1e-3, atol=2e-5)
    assert_close(after.target_params, moved, rtol=1e-3, atol=2e-5)
    for name, value in said.items():
        assert float(metrics[name].total) == pytest.approx(float(value), rel=1e-3), name
    assert metrics["critic_loss"].weight == 2 and metrics["actor_loss"].weight == 1


# --- network ----------------------------------------------------------------------------------


def test_critics_start_apart_and_heads_with_their_gains(slices):
    state, _ = slices[0]
    assert_apart(state.critic_params["params"])
    head = state.policy.params["params"]["action_head"]["kernel"]
    np.testing.assert_allclose(head.T @ head, 1e-4, rtol=1e-4)
    assert_same(state.target_params, td3.Targets(state.policy.params, state.critic_params))


# --- probe tasks ------------------------------------------------------------------------------

PROBE = td3.Config(**PROBE, tau=0.05, exploration_noise=0.3, target_noise=0.0)
CASE = Case(
    module=td3,
    tiny=TINY,
    metrics={"critic_loss", "actor_loss", "mean_value", "grad_norm"},
    pinned={
        "critic_loss": [141.206, 93.4022, 78.5049],
        "actor_loss": [0.734229, 0.432649, 0.588277],
        "mean_value": [-0.766735, -0.614828, -0.575669],
    },
    refused=(
        *REFUSED,
        (dict(policy_every=0), "policy_every=0"),
        (dict(num_critics=0), "num_critics=0: give a whole number, 1 or more"),
        TAKES_BOX,
    ),
    probe=PROBE,
    probes={"continuous": False},
    played=played,
    learns=("policy", "critic_params", "target_params", "actor_opt_state", "critic_opt_state"),
    mean_action=mean_action,
    lowest_value=lowest_value,
    actor_state="actor_opt_state",
    **OF_CASES,
)
