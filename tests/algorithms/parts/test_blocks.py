"""Norms and block-diagonal layers against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts


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
