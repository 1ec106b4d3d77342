"""QR-DQN's loss against plain NumPy and rlax, and the contract of the file."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import qrdqn
from tests.algorithms.cases import Case
from tests.algorithms.test_value_based import (
    ACTION,
    GAMMA,
    OF_CASES,
    OTHER,
    REFUSED,
    REWARD,
    SMALL,
    X_NEXT,
    X,
    plain_quantile_huber,
    played,
)

TINY = qrdqn.Config(**SMALL, num_quantiles=5, kappa=10.0, reward_scale=0.5)


def action_values(config, n, params, x):
    return qrdqn.QuantileNetwork(config, n).apply(params, x).mean(-1)


def prefer(config, params, action, by):
    params = jax.tree.map(lambda x: x, params)
    head = params["params"]["action_head"]
    bias = head["bias"].reshape(-1, config.num_quantiles)
    head["bias"] = bias.at[action].add(by).reshape(-1)
    return params


# --- one gradient step ------------------------------------------------------------------------


def expected_loss(config, online, target, best, state):
    network = qrdqn.QuantileNetwork(config, 3)
    quantiles = np.asarray(network.apply(online, X))[0, ACTION]
    next_quantiles = np.asarray(network.apply(target, X_NEXT))[0, best]
    returns = config.reward_scale * REWARD * (1.0 + GAMMA + GAMMA**2)
    targets = returns + GAMMA**3 * next_quantiles
    levels = [0.1, 0.3, 0.5, 0.7, 0.9]
    return plain_quantile_huber(quantiles, levels, targets, config.kappa)[0]


def mean_values(config, state, x):
    network = qrdqn.QuantileNetwork(config, 3)
    return np.asarray(network.apply(state.policy.params, x))[0].mean(-1)


CASE = Case(
    module=qrdqn,
    tiny=TINY,
    metrics={"loss", "mean_value", "grad_norm"},
    pinned={
        "loss": [np.nan, 1.4945, 1.36119],
        "grad_norm": [np.nan, 1.68324, 1.65575],
        "mean_value": [np.nan, 0.285115, 0.378105],
    },
    refused=(
        *REFUSED,
        (dict(num_quantiles=0), "num_quantiles=0: give a whole number, 1 or more"),
    ),
    probes={"discrete": False},
    played=played,
    action_values=action_values,
    prefer=prefer,
    expected_loss=expected_loss,
    mean_values=mean_values,
    **OF_CASES | dict(other=OTHER | {"kappa": 0.1}),
)


# --- formulas ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", [0.3, 1.0])
def test_quantile_huber_is_the_plain_sum_and_rlax_s(kappa):
    import rlax

    rng = np.random.default_rng(0)
    quantiles, targets = rng.normal(size=(20, 5)), 2.0 * rng.normal(size=(20, 7))
    levels = qrdqn.midpoints(5)
    rows = [plain_quantile_huber(q, levels, t, kappa) for q, t in zip(quantiles, targets)]
    expected, slopes = zip(*rows)
    loss = lambda q: qrdqn.quantile_huber(q, levels, jnp.array(targets), kappa)
    result = jax.jit(loss)(jnp.array(quantiles))
    np.testing.assert_allclose(result, expected, rtol=1e-4)
    gradient = jax.jit(jax.grad(lambda q: loss(q).sum()))(jnp.array(quantiles))
    np.testing.assert_allclose(gradient, slopes, rtol=1e-4, atol=1e-6)
    loss = lambda q, t: rlax.quantile_regression_loss(q, levels, t, kappa)
    expected = jax.jit(jax.vmap(loss))(jnp.array(quantiles), jnp.array(targets))
    np.testing.assert_allclose(result, expected, rtol=1e-4)


def test_quantile_regression_finds_the_quantiles():
    """Checked for an exponential distribution, whose quantile at level p is -log(1 - p)."""
    samples = jnp.array(np.random.default_rng(0).exponential(size=(1, 5_000)), jnp.float32)
    levels = qrdqn.midpoints(8)
    kappa = 0.01  # as kappa goes to 0, slopes are kappa times those of quantile regression
    gradient = jax.grad(lambda q: qrdqn.quantile_huber(q[None], levels, samples, kappa)[0] / kappa)

    @jax.jit
    def fit():
        step = lambda i, q: q - 0.5 * 0.99**i * gradient(q)
        return jax.lax.fori_loop(0, 500, step, jnp.zeros(8))

    np.testing.assert_allclose(fit(), -np.log(1.0 - np.asarray(levels)), atol=0.08)


def test_of_action_takes_the_rows_of_the_actions():
    rng = np.random.default_rng(0)
    outputs, action = rng.normal(size=(5, 3, 4)), rng.integers(3, size=5)
    result = qrdqn.of_action(jnp.array(outputs), jnp.array(action))
    np.testing.assert_allclose(result, outputs[np.arange(5), action], rtol=1e-5)
