"""DDPG's gradient step against the paper's, and the contract of the file."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import ddpg, parts
from tests.algorithms.cases import Case, again, assert_close, assert_same, programs
from tests.algorithms.test_actor_critics import (
    OF_CASES,
    PROBE,
    REFUSED,
    SMALL,
    TAKES_BOX,
    played,
    two_motors,
)

TINY = ddpg.Config(**SMALL, tau=0.05, noise_correlation=0.5)


def mean_action(config, state, x, size=1):
    return ddpg.Actor(config, size).apply(state.policy.params, x)


def lowest_value(config, state, x, action):
    return ddpg.Critic(config).apply(state.critic_params, x, action)


# --- one gradient step ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def step():
    """The state before and after an update of one round with one gradient step, and the config."""
    config = TINY.replace(train_every=16, learning_starts=0, anneal_lr=False, num_eval_episodes=0)
    config = config.replace(buffer_size=200, updates_per_step=1, actor_learning_rate=0.5)
    config = config.replace(learning_rate=0.1, adam_eps=1.0)  # else the step is only a sign
    config = config.replace(weight_decay=0.2)
    learner = ddpg.learner(config, *two_motors())
    init, update = programs(learner)
    state = update(init(jax.random.key(0)))[0]
    # Networks that differ from their targets
    state = state.replace(
        target_params=jax.tree.map(lambda x: 1.3 * x + 0.05, state.target_params),
        actor_opt_state=jax.tree.map(jnp.zeros_like, state.actor_opt_state),
        critic_opt_state=jax.tree.map(jnp.zeros_like, state.critic_opt_state),
    )
    return config, state, *update(again(state))


def papers_step(config, state, replay):
    """The paper's step and metrics: the critic's, then the actor's up the new critic, then the
    targets'."""
    _, _, _, _, draw_rng = jax.random.split(state.rng, 5)
    buffer = parts.ReplayBuffer.of(config)
    draw = buffer.draw(replay, buffer.noise(draw_rng, (1, 1, config.batch_size))[0, 0])
    window = buffer.windows(replay.transitions, draw.index, config.gamma)
    actor, critic = ddpg.Actor(config, 2), ddpg.Critic(config)
    x, next_x, targets = window.observation, window.final_observation, state.target_params
    next_value = critic.apply(targets.critic, next_x, actor.apply(targets.actor, next_x))
    target = 0.5 * window.returns + window.discount * next_value
    critic_loss = lambda params: ((critic.apply(params, x, window.action) - target) ** 2).mean()

    def stepped(loss, params, learning_rate):
        adam = optax.adamw(learning_rate, eps=config.adam_eps, weight_decay=0.2)
        changes, _ = adam.update(jax.grad(loss)(params), adam.init(params), params)
        return optax.apply_updates(params, changes)

    learned = stepped(critic_loss, state.critic_params, 0.1)
    actor_loss = lambda params: -critic.apply(learned, x, actor.apply(params, x)).mean()
    params = stepped(actor_loss, state.policy.params, config.actor_learning_rate)
    new = ddpg.Targets(params, learned)
    moved = jax.tree.map(lambda t, c: 0.95 * t + 0.05 * c, targets, new)
    said = {
        "critic_loss": critic_loss(state.critic_params),
        "actor_loss": actor_loss(state.policy.params),
        "mean_value": critic.apply(state.critic_params, x, window.action).mean(),
    }
    return learned, params, moved, said


def test_a_gradient_step_is_the_papers(step):
    config, state, after, metrics = step
    expected = jax.jit(lambda *args: papers_step(config, *args))(again(state), after.replay)
    learned, params, moved, said = expected
    assert_close(after.critic_params, learned, rtol=1e-3, atol=2e-5)
    assert_close(after.policy.params, params, rtol=1e-3, atol=2e-5)
    assert_close(after.target_params, moved, rtol=1e-3, atol=2e-5)
    for name, value in said.items():
        assert float(metrics[name].total) == pytest.approx(float(value), rel=1e-3), name


# --- network ----------------------------------------------------------------------------------


def test_heads_start_with_their_gains(slices):
    state, _ = slices[0]
    head = state.critic_params["params"]["value_head"]["kernel"]
    np.testing.assert_allclose(head.T @ head, np.eye(1), atol=1e-5)
    head = state.policy.params["params"]["action_head"]["kernel"]
    np.testing.assert_allclose(head.T @ head, 1e-4, rtol=1e-4)
    assert_same(state.target_params, ddpg.Targets(state.policy.params, state.critic_params))


# --- probe tasks ------------------------------------------------------------------------------

PROBE = ddpg.Config(**PROBE, actor_learning_rate=1e-2, tau=0.05, exploration_noise=0.3)
CASE = Case(
    module=ddpg,
    tiny=TINY,
    metrics={"critic_loss", "actor_loss", "mean_value", "grad_norm"},
    pinned={
        "critic_loss": [66.0095, 46.919, 29.2971],
        "actor_loss": [-0.158778, -0.126778, 0.429435],
        "mean_value": [0.178118, 0.130357, -0.434584],
    },
    refused=(
        *REFUSED,
        TAKES_BOX,
    ),
    probe=PROBE,
    probes={"continuous": False},
    played=played,
    learns=("policy", "critic_params", "target_params", "actor_opt_state", "critic_opt_state"),
    mean_action=mean_action,
    lowest_value=lowest_value,
    **OF_CASES,
)
