"""QR-DQN's loss against plain NumPy and rlax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from algorithms import qrdqn
from tests.algorithms.value_based import *  # noqa: F403  the contract
from tests.algorithms.value_based import SMALL

del test_slices_are_exact_under_vmap_too  # noqa: F821  in test_slices.py, which is slow

MODULE = qrdqn
TINY = qrdqn.Config(**SMALL, num_quantiles=5, kappa=10.0)
METRICS = {"loss", "mean_value", "grad_norm"}


def random_quantiles(seed=0):
    rng = np.random.default_rng(seed)
    quantiles, targets = rng.normal(size=(20, 5)), 2.0 * rng.normal(size=(20, 7))
    return quantiles.astype(np.float32), targets.astype(np.float32)


@pytest.mark.parametrize("kappa", [0.3, 1.0])
def test_quantile_huber_is_the_plain_sum_and_rlax_s(kappa):
    quantiles, targets = random_quantiles()
    levels = (np.arange(5) + 0.5) / 5
    expected, slopes = np.zeros(20), np.zeros((20, 5))
    for b in range(20):
        for i in range(5):
            for target in targets[b]:
                u = target - quantiles[b, i]
                size = 0.5 * u**2 if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
                expected[b] += abs(levels[i] - (u < 0)) * size / kappa / 7
                slopes[b, i] -= abs(levels[i] - (u < 0)) * np.clip(u, -kappa, kappa) / kappa / 7
    loss = lambda q: qrdqn.quantile_huber(q, qrdqn.midpoints(5), targets, kappa)
    result = loss(jnp.array(quantiles))
    np.testing.assert_allclose(result, expected, rtol=1e-4)
    gradient = jax.grad(lambda q: loss(q).sum())(jnp.array(quantiles))
    np.testing.assert_allclose(gradient, slopes, rtol=1e-4, atol=1e-6)
    if kappa == 1.0:  # rlax does not divide by it
        loss = lambda q, t: rlax.quantile_regression_loss(q, jnp.float32(levels), t, kappa)
        np.testing.assert_allclose(result, jax.vmap(loss)(quantiles, targets), rtol=1e-4)


def test_quantile_regression_finds_the_quantiles():
    """Of an exponential distribution, whose quantile at level p is -log(1 - p)."""
    samples = jnp.array(np.random.default_rng(0).exponential(size=(1, 5_000)), jnp.float32)
    levels = qrdqn.midpoints(8)
    gradient = jax.grad(lambda q: qrdqn.quantile_huber(q[None], levels, samples, 0.01)[0])

    @jax.jit
    def fit():
        step = lambda i, q: q - 0.5 * 0.99**i * gradient(q)
        return jax.lax.fori_loop(0, 500, step, jnp.zeros(8))

    np.testing.assert_allclose(fit(), -np.log(1.0 - np.asarray(levels)), atol=0.08)
