"""Norms and block-diagonal layers against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts
from tests.algorithms.cases import assert_close, assert_same


def test_the_norm_divides_by_the_root_mean_square():
    """Also of inputs as small as its epsilon's root; the mean stays."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 12)).astype(np.float32) + 3.0
    x[3], x[4] = 1e-3, 0.0
    norm = parts.RMSNorm()
    params = norm.init(jax.random.key(0), x)
    scale = rng.normal(size=12).astype(np.float32)
    assert jax.tree.map(jnp.shape, params) == {"params": {"scale": (12,)}}
    np.testing.assert_array_equal(params["params"]["scale"], 1.0)
    expected = x / np.sqrt((x.astype(float) ** 2).mean(-1, keepdims=True) + 1e-4) * scale
    np.testing.assert_allclose(norm.apply({"params": {"scale": scale}}, x), expected, rtol=1e-5)
    half = norm.apply(params, x.astype(jnp.bfloat16))
    assert half.dtype == jnp.float32


def normed(momentum, x, params, moments, train):
    variables = {"params": params, "moments": moments}
    return parts.BatchNorm(momentum).apply(variables, x, train, mutable="moments")


@pytest.fixture(scope="module")
def features():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 4)) * [0.2, 1.0, 3.0, 1.2] + [0.1, 4.0, -0.3, -5.0]
    params = {"scale": rng.normal(size=4), "bias": rng.normal(size=4)}
    moments = {"mean": np.array([0.0, 1.0, -0.5, 2.0]), "var": np.array([1.0, 1.1, 0.2, 2.0])}
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (x, params, moments))


def test_frozen_batch_norms_take_the_running_moments(features):
    x, params, moments = features
    found, changed = normed(0.01, x, params, moments, False)
    expected = (x - moments["mean"]) / np.sqrt(moments["var"] + 1e-5)
    np.testing.assert_allclose(found, expected * params["scale"] + params["bias"], rtol=1e-5)
    assert not changed or assert_same(changed["moments"], moments) is None


def test_batch_norms_in_training_keep_an_unbiased_variance(features):
    x, params, moments = features
    found, changed = normed(0.1, x, params, moments, True)
    expected = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) * params["scale"] + params["bias"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    share = {
        "mean": 0.9 * moments["mean"] + 0.1 * x.mean(0),
        "var": 0.9 * moments["var"] + 0.1 * np.var(x, 0, ddof=1),
    }
    assert_close(dict(changed["moments"]), share, rtol=1e-5)


def test_gradients_go_through_a_batch_s_moments(features):
    """Finite differences of one feature of one sample."""
    x, params, moments = features
    weights = np.random.default_rng(1).normal(size=x.shape)
    total = lambda shift: weights * normed(0.01, x.at[1, 2].add(shift), params, moments, True)[0]
    slope = float(jax.grad(lambda shift: total(shift).sum())(0.0))
    ends = [float(total(shift).sum()) for shift in (-0.05, 0.05)]
    assert slope == pytest.approx((ends[1] - ends[0]) / 0.1, rel=1e-2)
    frozen = weights[1, 2] * params["scale"][2] / np.sqrt(x.var(0)[2] + 1e-5)
    assert slope != pytest.approx(float(frozen), rel=0.1)


def test_bfloat16_features_have_float32_moments(features):
    """The mean and the variance of bfloat16 numbers are not rounded to bfloat16."""
    _, params, moments = features
    x = jnp.asarray(np.random.default_rng(0).normal(size=(64, 4)) + 40.0, jnp.bfloat16)
    found, changed = normed(1.0, x, params, moments, True)
    exact = np.asarray(x, np.float64)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(changed["moments"]["mean"], exact.mean(0), rtol=1e-5)
    np.testing.assert_allclose(changed["moments"]["var"], exact.var(0, ddof=1), rtol=1e-3)


@pytest.mark.parametrize("blocks", [1, 2, 4])
@pytest.mark.parametrize("others", [0, 3])
def test_a_block_layer_is_a_dense_layer_with_a_sparse_matrix(blocks, others):
    rng = np.random.default_rng(0)
    x, shared = rng.normal(size=(5, 8)), rng.normal(size=(5, others))
    x, shared = x.astype(np.float32), shared.astype(np.float32) if others else None
    layer = parts.BlockDense(12, blocks)
    params = layer.init(jax.random.key(0), x, shared)
    own, out = 8 // blocks, 12 // blocks
    shapes = {"kernel": (blocks, own + others, out), "bias": (12,)}
    assert jax.tree.map(jnp.shape, params)["params"] == shapes
    kernel = rng.normal(size=shapes["kernel"]).astype(np.float32)
    bias = rng.normal(size=12).astype(np.float32)
    matrix = np.zeros((8 + others, 12))
    for i in range(blocks):
        to = slice(i * out, (i + 1) * out)
        matrix[i * own : (i + 1) * own, to] = kernel[i, :own]
        matrix[8:, to] = kernel[i, own:]
    inputs = x if shared is None else np.concatenate([x, shared], -1)
    found = layer.apply({"params": {"kernel": kernel, "bias": bias}}, x, shared)
    np.testing.assert_allclose(found, inputs @ matrix + bias, rtol=1e-4, atol=1e-5)


def test_parameters_of_a_block_layer_are_as_small_as_those_of_all_its_inputs():
    """They are cut off at two deviations."""
    layer = parts.BlockDense(128, 8)
    x, shared = jnp.zeros((1, 256)), jnp.zeros((1, 32))
    kernel = layer.init(jax.random.key(0), x, shared)["params"]["kernel"]
    std = 1.0 / np.sqrt(8 * (32 + 32))
    np.testing.assert_allclose(kernel.std(), std, rtol=0.03)
    assert 1.9 < np.abs(kernel).max() / (std / 0.87962566) <= 2.0
