"""DQN's formulas against plain NumPy and rlax, and the contract of the file."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import dqn, parts
from tests.algorithms.cases import Case
from tests.algorithms.test_value_based import (
    ACTION,
    GAMMA,
    OF_CASES,
    REFUSED,
    REWARD,
    SMALL,
    X_NEXT,
    X,
    played,
)

TINY = dqn.Config(**SMALL, prioritized=True, dueling=True, reward_scale=0.5)


def action_values(config, n, params, x):
    return dqn.QNetwork(config, n).apply(params, x)


def prefer(config, params, action, by):
    """Parameters that prefer an action. Advantages are centred, so the value gains what they
    lose."""
    params = jax.tree.map(lambda x: x, params)
    heads = params["params"]
    heads["action_head"]["bias"] = heads["action_head"]["bias"].at[action].add(by)
    if config.dueling:
        heads["value_head"]["bias"] += by / 2
    return params


# --- one gradient step ------------------------------------------------------------------------


def expected_loss(config, online, target, best, state):
    network = dqn.QNetwork(config, 3)
    value, next_values = network.apply(online, X)[0, ACTION], network.apply(target, X_NEXT)[0]
    returns = config.reward_scale * REWARD * (1.0 + GAMMA + GAMMA**2)
    error = returns + GAMMA**3 * next_values[best] - value
    return 0.5 * error**2


def mean_values(config, state, x):
    return np.asarray(dqn.QNetwork(config, 3).apply(state.policy.params, x))[0]


CASE = Case(
    module=dqn,
    tiny=TINY,
    metrics={"loss", "td_error", "mean_value", "grad_norm"},
    pinned={
        "loss": [0.418871, 0.327469],
        "grad_norm": [1.67964, 2.0098],
        "mean_value": [-0.277431, -0.379398],
    },
    refused=(
        *REFUSED,
        (dict(hidden_sizes=()), "dueling=True splits the last of hidden_sizes"),
    ),
    probes={"discrete": True},
    played=played,
    action_values=action_values,
    prefer=prefer,
    expected_loss=expected_loss,
    mean_values=mean_values,
    **OF_CASES,
)


# --- targets ----------------------------------------------------------------------------------


def test_double_q_learning_selects_with_one_network_and_judges_with_the_other():
    import rlax

    rng = np.random.default_rng(0)
    target, online = rng.normal(size=(2, 30, 4)).astype(np.float32)
    double = dqn.of_action(jnp.array(target), dqn.greedy(jnp.array(online)))
    np.testing.assert_allclose(double, [t[np.argmax(o)] for t, o in zip(target, online)])
    result = dqn.of_action(jnp.array(target), dqn.greedy(jnp.array(target)))
    np.testing.assert_allclose(result, target.max(-1))
    errors = jax.vmap(rlax.double_q_learning)(
        jnp.zeros((30, 4)), jnp.zeros(30, int), jnp.ones(30), jnp.full(30, 0.9), target, online
    )
    np.testing.assert_allclose(errors, 1.0 + 0.9 * double, rtol=1e-5)


def test_greedy_actions_are_allowed_ones():
    values = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    mask = np.random.default_rng(1).random((200, 4)) < 0.5
    mask[:, 2] |= ~mask.any(1)
    expected = [max(np.flatnonzero(m), key=lambda a, v=v: v[a]) for v, m in zip(values, mask)]
    np.testing.assert_array_equal(dqn.greedy(jnp.array(values), jnp.array(mask)), expected)


def test_dueling_values_have_the_advantages_of_the_stream_and_the_mean_of_the_value():
    rng = np.random.default_rng(0)
    value, advantages = rng.normal(size=(6, 1)), rng.normal(size=(6, 3))
    result = np.asarray(dqn.dueling_values(jnp.array(value), jnp.array(advantages)))
    np.testing.assert_allclose(result.mean(-1), value[:, 0], rtol=1e-5)
    np.testing.assert_allclose(
        result - result[:, :1], advantages - advantages[:, :1], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("delta", [0.5, 1.0, math.inf])
def test_huber_and_its_gradient_agree_with_rlax(delta):
    import rlax

    errors = jnp.linspace(-3.0, 3.0, 101)
    expected = 0.5 * errors**2 if delta == math.inf else rlax.huber_loss(errors, delta)
    np.testing.assert_allclose(dqn.huber(errors, delta), expected, rtol=1e-5, atol=1e-6)
    slope = jax.vmap(jax.grad(dqn.huber), (0, None))(errors, delta)
    np.testing.assert_allclose(slope, np.clip(errors, -delta, delta), rtol=1e-5, atol=1e-6)


# --- exploration ------------------------------------------------------------------------------


def test_epsilon_over_time():
    config = dqn.Config(eps_start=0.9, eps_end=0.1, exploration_fraction=0.5)
    at = lambda kind, x: float(dqn.epsilon_at(config.replace(exploration=kind), x))
    assert at("constant", 0.0) == at("constant", 1.0) == pytest.approx(0.1)
    np.testing.assert_allclose([at("linear", x) for x in (0, 0.25, 0.5, 0.9)], [0.9, 0.5, 0.1, 0.1])
    left = [at("exponential", x) - 0.1 for x in (0, 0.1, 0.2, 0.5)]
    np.testing.assert_allclose(left, 0.8 * np.exp([0.0, -1.0, -2.0, -5.0]), rtol=1e-5)


def test_epsilon_greedy_explores_as_often_as_it_says_and_evenly():
    values = jnp.tile(jnp.array([0.0, 1.0, 0.5]), (30_000, 1))
    noise = jax.random.uniform(jax.random.key(0), (30_000,))
    counts = np.bincount(dqn.epsilon_greedy(values, 0.3, noise), minlength=3) / 30_000
    np.testing.assert_allclose(counts, [0.1, 0.8, 0.1], atol=0.01)
    np.testing.assert_array_equal(dqn.epsilon_greedy(values, 0.0, noise), 1)
    counts = np.bincount(dqn.epsilon_greedy(values, 1.0, noise), minlength=3) / 30_000
    np.testing.assert_allclose(counts, 1 / 3, atol=0.01)


def test_random_actions_are_uniform_among_the_allowed_ones():
    values = jnp.tile(jnp.array([0.0, 3.0, 0.5, 1.0]), (30_000, 1))
    mask = jnp.broadcast_to(jnp.array([True, False, True, True]), values.shape)
    noise = jax.random.uniform(jax.random.key(0), (30_000,))
    counts = np.bincount(dqn.epsilon_greedy(values, 0.3, noise, mask), minlength=4) / 30_000
    np.testing.assert_allclose(counts, [0.1, 0.0, 0.1, 0.8], atol=0.01)
    assert counts[1] == 0.0


def test_random_actions_last_as_the_zeta_law_says():
    noise = jax.random.uniform(jax.random.key(0), (100_000,))
    for exponent in (1.5, 2.0, 3.0):
        steps = np.asarray(dqn.durations(noise, exponent))
        for n in (1, 2, 5, 20):
            np.testing.assert_allclose((steps >= n).mean(), n ** (1.0 - exponent), atol=0.006)
    assert (dqn.durations(noise, jnp.inf) == 1).all()
    assert list(dqn.durations(jnp.array([0.0, 0.999]), 2.0)) == [dqn.LONGEST, 1]
    assert list(dqn.durations(jnp.array([0.0]), jnp.inf)) == [1]


@pytest.mark.parametrize("masked", [False, True])
def test_held_actions_continue_while_they_last_and_are_allowed(masked):
    rng = np.random.default_rng(0)
    held, chosen = (dqn.Held(rng.integers(0, 3, 50), rng.integers(0, 3, 50)) for _ in range(2))
    mask = rng.random((50, 3)) < 0.6
    result = dqn.hold(*jax.tree.map(jnp.array, (held, chosen)), jnp.array(mask) if masked else None)
    for i in range(50):
        lasts = held.left[i] > 0 and (not masked or mask[i, held.action[i]])
        expected = held if lasts else chosen
        assert (result.action[i], result.left[i]) == (expected.action[i], expected.left[i])


# --- priorities -------------------------------------------------------------------------------


def test_importance_weights_undo_the_priorities():
    share = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    weights = dqn.importance_weights(jnp.array(share), 4, 1.0)
    np.testing.assert_allclose(weights * share, np.full(4, 0.1), rtol=1e-5)
    expected = [(1 / (4 * p)) ** 0.4 for p in share]
    half = dqn.importance_weights(jnp.array(share), 4, 0.4)
    np.testing.assert_allclose(half, np.array(expected) / max(expected), rtol=1e-5)


# --- network ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dueling", [False, True])
def test_streams_have_layers_of_their_own_and_heads_gain_one(dueling):
    config = dqn.Config(dueling=dueling, hidden_sizes=(16, 8), num_eval_episodes=0)
    state = parts.first_state(dqn.make_train(config), jax.random.key(0))
    params = state.policy.params["params"]
    shapes = sorted(x.shape for x in jax.tree.leaves(params) if x.ndim == 2)
    assert shapes == sorted([(4, 16), *[(16, 8)] * (1 + dueling), (8, 2), *[(8, 1)] * dueling])
    for name in ("action_head", "value_head")[: 1 + dueling]:
        head = params[name]["kernel"]
        np.testing.assert_allclose(head.T @ head, np.eye(head.shape[1]), atol=1e-5)
