"""IQN's embedding, risks and loss against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from algorithms import iqn
from tests.algorithms.value_based import *  # noqa: F403  the contract
from tests.algorithms.value_based import SMALL

del test_slices_are_exact_under_vmap_too  # noqa: F821  in test_slices.py, which is slow

MODULE = iqn
TINY = iqn.Config(**SMALL, num_levels=3, num_cosines=4, kappa=10.0, risk="cvar")
METRICS = {"loss", "mean_value", "grad_norm"}

LEVELS = np.linspace(0.05, 0.95, 7)


def test_cosines_are_those_of_the_paper():
    levels = np.random.default_rng(0).random((3, 5))
    result = iqn.cosines(jnp.array(levels), 6)
    expected = [[[np.cos(np.pi * i * t) for i in range(6)] for t in row] for row in levels]
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_the_network_multiplies_features_by_the_embedding():
    config = iqn.Config(hidden_sizes=(6, 5), num_cosines=4)
    network = iqn.ImplicitQuantileNetwork(config, 3)
    rng = np.random.default_rng(0)
    x, levels = rng.normal(size=(2, 4)), rng.random((2, 7))
    x, levels = x.astype(np.float32), levels.astype(np.float32)
    params = iqn.initialize(network, jax.random.key(0), jnp.zeros((1, 4)))
    params = jax.tree.map(lambda leaf: leaf + 0.1, params)
    p = {name: (leaf["kernel"], leaf["bias"]) for name, leaf in params["params"].items()}
    relu = lambda x: np.maximum(x, 0.0)
    features = relu(x @ p["Dense_0"][0] + p["Dense_0"][1])
    expected = np.zeros((2, 7, 3))
    for b in range(2):
        for k in range(7):
            cosines = np.cos(np.pi * np.arange(4) * levels[b, k])
            embedding = relu(cosines @ p["embedding"][0] + p["embedding"][1])
            hidden = relu((features[b] * embedding) @ p["Dense_1"][0] + p["Dense_1"][1])
            expected[b, k] = hidden @ p["action_head"][0] + p["action_head"][1]
    np.testing.assert_allclose(network.apply(params, x, levels), expected, rtol=1e-4, atol=1e-5)
    shared = network.apply(params, x, levels[:1])
    np.testing.assert_allclose(shared[0], expected[0], rtol=1e-4, atol=1e-5)
    assert shared.shape == (2, 7, 3)


def test_risks():
    distort = lambda risk, level: np.asarray(iqn.distort(jnp.array(LEVELS), risk, level))
    np.testing.assert_allclose(distort("neutral", 0.3), LEVELS, rtol=1e-6)
    np.testing.assert_allclose(distort("cvar", 0.25), 0.25 * LEVELS, rtol=1e-6)
    normal = scipy.stats.norm
    expected = normal.cdf(normal.ppf(LEVELS) - 0.75)
    np.testing.assert_allclose(distort("wang", -0.75), expected, rtol=1e-4)
    some, others = LEVELS**0.71, (1 - LEVELS) ** 0.71
    np.testing.assert_allclose(
        distort("cpw", 0.71), some / (some + others) ** (1 / 0.71), rtol=1e-4
    )
    np.testing.assert_allclose(distort("power", 2.0), LEVELS ** (1 / 3), rtol=1e-4)
    np.testing.assert_allclose(distort("power", -2.0), 1 - (1 - LEVELS) ** (1 / 3), rtol=1e-4)


@pytest.mark.parametrize("risk, neutral", [("cvar", 1.0), ("wang", 0.0), ("cpw", 1.0)])
def test_each_risk_has_a_neutral_level(risk, neutral):
    result = iqn.distort(jnp.array(LEVELS), risk, neutral)
    np.testing.assert_allclose(result, LEVELS, rtol=1e-4)


def test_quantile_huber_is_the_plain_sum():
    rng = np.random.default_rng(0)
    quantiles, levels = rng.normal(size=(20, 5)), rng.random((20, 5))
    targets, kappa = 2.0 * rng.normal(size=(20, 7)), 0.5
    expected, slopes = np.zeros(20), np.zeros((20, 5))
    for b in range(20):
        for i, level in enumerate(levels[b]):
            for target in targets[b]:
                u = target - quantiles[b, i]
                size = 0.5 * u**2 if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
                expected[b] += abs(level - (u < 0)) * size / kappa / 7
                slopes[b, i] -= abs(level - (u < 0)) * np.clip(u, -kappa, kappa) / kappa / 7
    loss = lambda *arrays: iqn.quantile_huber(*arrays, kappa)
    arrays = tuple(map(jnp.array, (quantiles, levels, targets)))
    np.testing.assert_allclose(loss(*arrays), expected, rtol=1e-4)
    gradient = jax.grad(lambda *arrays: loss(*arrays).sum())(*arrays)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-4, atol=1e-6)


def test_the_product_s_gradients_are_those_of_autodiff():
    x, kernel, weights = (jax.random.normal(jax.random.key(i), s) for i, s in
                          enumerate([(2, 3, 4, 5), (2, 5, 6), (2, 3, 4, 6)]))  # fmt: skip
    gradients = lambda multiply: jax.vmap(
        jax.grad(lambda x, kernel, weights: (weights * multiply(x, kernel)).sum(), (0, 1))
    )(x, kernel, weights)
    for ours, plain in zip(gradients(iqn.product), gradients(jnp.matmul)):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-5)


def test_of_action_takes_the_columns_of_the_actions():
    rng = np.random.default_rng(0)
    outputs, action = rng.normal(size=(5, 4, 3)), rng.integers(3, size=5)
    result = iqn.of_action(jnp.array(outputs), jnp.array(action))
    np.testing.assert_allclose(result, outputs[np.arange(5), :, action], rtol=1e-5)
