"""Layers and initialisation against JAX's and flax's own."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts


class Network(nn.Module):
    conv_features: int = 0

    @nn.compact
    def __call__(self, x):
        x = parts.Torso((8, 32), "tanh", self.conv_features)(x)
        self.param("log_std", nn.initializers.ones, (3,))
        return nn.Dense(3, name="head")(x)


@pytest.mark.parametrize("shape, conv_features", [((5,), 0), ((6, 5, 3), 4), ((6, 5, 3), 0)])
def test_kernels_are_orthogonal_with_their_gains_and_all_else_is_zero(shape, conv_features):
    network, x = Network(conv_features), jnp.zeros((1, *shape))
    params = parts.orthogonal(network, jax.random.key(0), x, head=0.01)
    shapes = jax.eval_shape(network.init, jax.random.key(0), x)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda leaf: leaf.shape, shapes)
    kernels = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(params["params"]):
        if leaf.ndim == 1:
            np.testing.assert_array_equal(leaf, 0.0)
            continue
        matrix = leaf / (0.01 if path[0].key == "head" else math.sqrt(2))
        matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
        np.testing.assert_allclose(matrix.T @ matrix, np.eye(matrix.shape[1]), atol=1e-5)
        kernels += 1
    assert kernels == 3 + (conv_features > 0)


def test_orthogonal_matrices_are_uniform():
    """Columns are as likely in any direction: their mean is 0, each entry's square 1 / rows."""
    keys, x = jax.random.split(jax.random.key(0), 4000), jnp.zeros((1, 4))

    class One(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2, name="layer")(x)

    draw = lambda key: parts.orthogonal(One(), key, x, layer=1.0)["params"]["layer"]["kernel"]
    kernels = jax.jit(jax.vmap(draw))(keys)
    np.testing.assert_allclose(kernels.mean(0), np.zeros((4, 2)), atol=0.04)
    np.testing.assert_allclose(jnp.square(kernels).mean(0), np.full((4, 2), 0.25), atol=0.02)


def test_initialisation_has_no_lapack_under_vmap():
    """Batched LAPACK calls can hang on a CPU (jaxlib 0.10)."""
    init = lambda key: parts.orthogonal(Network(4), key, jnp.zeros((1, 6, 5, 3)))
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 16))
    text = jax.jit(jax.vmap(init)).lower(keys).as_text().lower()
    assert "dot_general" in text
    for word in ("lapack", "geqrf", "custom_call"):
        assert word not in text, word
    qr = jax.jit(jax.vmap(lambda x: jnp.linalg.qr(x)[0])).lower(jnp.zeros((16, 4, 4)))
    assert "lapack" in qr.as_text().lower()  # so it would be called


def test_a_convolution_is_xla_s():
    images = jax.random.normal(jax.random.key(0), (2, 6, 5, 3))
    layer = parts.Conv3x3(4)
    params = layer.init(jax.random.key(1), images)
    params["params"]["bias"] = jnp.arange(4.0)
    kernel = params["params"]["kernel"].reshape(3, 3, 3, 4)
    dimensions = ("NHWC", "HWIO", "NHWC")
    expected = jax.lax.conv_general_dilated(
        images, kernel, (1, 1), "VALID", dimension_numbers=dimensions
    )
    result = layer.apply(params, images)
    np.testing.assert_allclose(result, expected + jnp.arange(4.0), rtol=1e-4, atol=1e-5)


def test_a_torso_convolves_images_and_then_has_its_layers():
    images = jax.random.normal(jax.random.key(0), (2, 6, 5, 3))
    torso = parts.Torso((8, 7), "relu", 4)
    params = torso.init(jax.random.key(1), images)
    weights = params["params"]
    assert set(weights) == {"Conv", "Dense_0", "Dense_1"}
    x = nn.relu(parts.Conv3x3(4).apply({"params": weights["Conv"]}, images)).reshape(2, -1)
    for name in ("Dense_0", "Dense_1"):
        x = jnp.maximum(x @ weights[name]["kernel"] + weights[name]["bias"], 0.0)
    np.testing.assert_allclose(torso.apply(params, images), x, rtol=1e-4, atol=1e-5)
    flat = parts.Torso((), "relu").apply({}, images)
    np.testing.assert_array_equal(flat, images.reshape(2, -1))


def test_layer_norm_is_flax_s():
    x = 3.0 * jax.random.normal(jax.random.key(0), (5, 16)) + 1.0
    params = {"params": {"scale": jnp.linspace(0.5, 2.0, 16), "bias": jnp.linspace(-1.0, 1.0, 16)}}
    results = [norm.apply(params, x) for norm in (parts.LayerNorm(), nn.LayerNorm())]
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)
    small = [norm.apply(params, 1e-3 * x) for norm in (parts.LayerNorm(), nn.LayerNorm())]
    np.testing.assert_allclose(*small, rtol=1e-3, atol=1e-4)  # what is added to the variance
