"""Layers and initialisation against JAX's and flax's own."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts
from algorithms.parts import layers


class Network(nn.Module):
    conv_layers: str = "none"

    @nn.compact
    def __call__(self, x):
        x = parts.Torso((8, 32), "tanh", self.conv_layers)(x)
        self.param("log_std", nn.initializers.constant(-1.0), (3,))
        x = parts.Dense(3, kernel_init=parts.orthogonal(0.01), name="head")(x)
        return nn.Dense(3, kernel_init=nn.initializers.constant(0.2), name="own")(x)


@pytest.mark.parametrize(
    "shape, conv_layers", [((5,), "small"), ((6, 5, 3), "small"), ((6, 5, 3), "none")]
)
def test_kernels_are_orthogonal_with_their_gains_and_all_else_is_as_a_network_says(
    shape, conv_layers
):
    network, x = Network(conv_layers), jnp.zeros((1, *shape))
    params = jax.jit(network.init)(jax.random.key(0), x)["params"]
    np.testing.assert_array_equal(params.pop("log_std"), -1.0)
    np.testing.assert_array_equal(params["own"].pop("kernel"), np.float32(0.2))
    kernels = 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if leaf.ndim == 1:
            np.testing.assert_array_equal(leaf, 0.0)
            continue
        matrix = leaf / (0.01 if path[0].key == "head" else math.sqrt(2))
        matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
        np.testing.assert_allclose(matrix.T @ matrix, np.eye(matrix.shape[1]), atol=1e-5)
        kernels += 1
    assert kernels == 3 + (len(shape) == 3 and conv_layers == "small")


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (2, 2, 2)])
def test_orthogonal_matrices_are_uniform(shape):
    """Columns are uniform over directions: their mean is 0, and each entry's square averages 1 /
    rows."""
    keys = jax.random.split(jax.random.key(0), 4000)
    kernels = jax.jit(jax.vmap(lambda key: parts.orthogonal(1.0)(key, shape)))(keys)
    assert kernels.shape == (4000, *shape)
    np.testing.assert_allclose(kernels.mean(0), np.zeros(shape), atol=0.04)
    np.testing.assert_allclose(jnp.square(kernels).mean(0), np.full(shape, 0.25), atol=0.02)


def test_initialisation_has_no_lapack_under_vmap():
    """Batched LAPACK calls can hang on a CPU (jaxlib 0.10)."""
    init = lambda key: Network("small").init(key, jnp.zeros((1, 6, 5, 3)))
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 16))
    text = jax.jit(jax.vmap(init)).lower(keys).as_text().lower()
    assert "dot_general" in text
    for word in ("lapack", "geqrf", "custom_call"):
        assert word not in text, word
    qr = jax.jit(jax.vmap(lambda x: jnp.linalg.qr(x)[0])).lower(jnp.zeros((16, 4, 4)))
    assert "lapack" in qr.as_text().lower()  # the name that LAPACK's call would have


def test_a_convolution_is_xla_s():
    images = jax.random.normal(jax.random.key(0), (2, 6, 5, 3))
    layer = parts.layers.Conv3x3(4)
    params = layer.init(jax.random.key(1), images)
    params["params"]["bias"] = jnp.arange(4.0)
    kernel = params["params"]["kernel"].reshape(3, 3, 3, 4)
    dimensions = ("NHWC", "HWIO", "NHWC")
    expected = jax.lax.conv_general_dilated(
        images, kernel, (1, 1), "VALID", dimension_numbers=dimensions
    )
    result = layer.apply(params, images)
    np.testing.assert_allclose(result, expected + jnp.arange(4.0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("framed, width", [(True, 5), (False, 5), (False, 6), (False, 3)])
def test_a_convolution_and_its_gradients_are_those_of_other_devices(framed, width, monkeypatch):
    batch, less = (2, 0) if framed else (parts.products.SAMPLES, 2)
    images = jax.random.normal(jax.random.key(3), (3, batch, 6, width, 3))  # of three seeds
    weights = jax.random.normal(jax.random.key(4), (3, batch, 6 - less, width - less, 4))
    layer = parts.layers.Conv3x3(4, framed=framed)
    kernel = 0.2 * jax.random.normal(jax.random.key(1), (3, 27, 4))
    params = {"params": {"kernel": kernel, "bias": kernel[:, 0]}}

    def results(params, images, weights):
        total = lambda params, x, weights: (layer.apply(params, x) * weights).sum()
        of_params_and_images = jax.vmap(jax.grad(total, (0, 1)))(params, images, weights)
        return jax.vmap(layer.apply)(params, images), of_params_and_images

    compiled = lambda: jax.jit(lambda *given: results(*given))(params, images, weights)
    on_cpu = compiled()
    assert on_cpu[0].shape == weights.shape
    monkeypatch.setattr(parts.layers.loops, "platform", lambda: "gpu")
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=5e-4)
    jax.tree.map(close, on_cpu, compiled())


def test_a_convolution_starts_as_on_other_devices(monkeypatch):
    init = lambda: parts.layers.Conv3x3(4).init(jax.random.key(1), jnp.zeros((1, 6, 5, 3)))
    on_cpu = init()
    monkeypatch.setattr(parts.layers.loops, "platform", lambda: "gpu")
    jax.tree.map(np.testing.assert_array_equal, on_cpu, init())


def test_swish_and_its_slopes_are_those_of_its_formula(monkeypatch):
    x = np.concatenate([np.linspace(-30.0, 30.0, 2401), [-1e4, 1e4]])
    with np.errstate(over="ignore"):
        sigmoid = 1.0 / (1.0 + np.exp(-x))
    slope = sigmoid * (1.0 + x * (1.0 - sigmoid))
    curvature = sigmoid * (1.0 - sigmoid) * (2.0 + x * (1.0 - 2.0 * sigmoid))
    swish, given = parts.activation("swish"), jnp.asarray(x, jnp.float32)
    assert swish is parts.activation("silu") is layers.swish

    def close(result, expected):  # to the rounding of x
        assert np.max(np.abs(result - expected) / np.maximum(1.0, np.abs(x))) < 5e-7

    close(swish(given), x * sigmoid)
    close(jax.vmap(jax.grad(swish))(given), slope)
    close(jax.jvp(swish, (given,), (jnp.full_like(given, 2.0),))[1], 2.0 * slope)
    close(jax.vmap(jax.grad(jax.grad(swish)))(given), curvature)
    assert swish(given.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    assert parts.activation("tanh") is nn.tanh
    monkeypatch.setattr(layers.loops, "platform", lambda: "gpu")
    assert parts.activation("swish") is nn.swish


def test_a_torso_convolves_images_and_then_has_its_layers():
    images = jax.random.normal(jax.random.key(0), (2, 6, 5, 3))
    torso = parts.Torso((8, 7), "relu", "small")
    params = jax.jit(torso.init)(jax.random.key(1), images)
    weights = params["params"]
    assert set(weights) == {"Convolutions_0", "Dense_0", "Dense_1"}
    convolve = parts.Convolutions("small", nn.relu, parts.orthogonal(1.0))
    x = convolve.apply({"params": weights["Convolutions_0"]}, images).reshape(2, -1)
    assert x.shape == (2, 4 * 3 * 16)
    for name in ("Dense_0", "Dense_1"):
        x = jnp.maximum(x @ weights[name]["kernel"] + weights[name]["bias"], 0.0)
    np.testing.assert_allclose(torso.apply(params, images), x, rtol=1e-4, atol=1e-5)
    flat = parts.Torso((), "relu").apply({}, images)
    np.testing.assert_array_equal(flat, images.reshape(2, -1))


def test_more_inputs_join_the_features_of_images():
    images, action = jnp.ones((2, 3, 3, 1)), jnp.array([[0.5], [0.7]])
    torso = parts.Torso((), "relu", "none")
    expected = np.concatenate([np.ones((2, 9)), action], 1)
    np.testing.assert_array_equal(torso.apply({}, images, action), expected)
    torso = parts.Torso((4,), "relu", "small")
    params = jax.eval_shape(torso.init, jax.random.key(0), images, action)["params"]
    assert params["Dense_0"]["kernel"].shape == (17, 4)


def test_simba_s_blocks_are_those_of_the_paper():
    """x + W2 relu(W1 norm(x)), four times as wide inside, between a dense layer and a norm."""
    x = jax.random.normal(jax.random.key(0), (5, 3))
    torso = parts.Torso((8, 8), "relu", network="simba")
    params = jax.jit(torso.init)(jax.random.key(1), x)
    params = random_biases(params)
    weights = jax.tree.map(np.asarray, params["params"])
    dense = lambda i, x: x @ weights[f"Dense_{i}"]["kernel"] + weights[f"Dense_{i}"]["bias"]

    def norm(i, x):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * weights[f"LayerNorm_{i}"]["scale"] + weights[f"LayerNorm_{i}"]["bias"]

    y = dense(0, np.asarray(x))
    for block in (0, 1):
        hidden = np.maximum(dense(2 * block + 2, norm(block, y)), 0.0)
        assert hidden.shape == (5, 32)
        y = y + dense(2 * block + 1, hidden)
    expected = norm(2, y)
    np.testing.assert_allclose(jax.jit(torso.apply)(params, x), expected, rtol=1e-4, atol=1e-5)


def test_scales_of_layer_norms_start_at_one():
    x = jnp.zeros((1, 3))
    torso = parts.Torso((4,), "relu", "none", "simba")
    params = jax.jit(torso.init)(jax.random.key(0), x)
    for name in ("LayerNorm_0", "LayerNorm_1"):
        np.testing.assert_array_equal(params["params"][name]["scale"], 1.0)
        np.testing.assert_array_equal(params["params"][name]["bias"], 0.0)


def convolved(x, layer, stride=1, frame=0):
    kernel = np.asarray(layer["kernel"])  # (height, width, channels, features)
    windows = windows_of(np.pad(x, [(0, 0), (frame, frame), (frame, frame), (0, 0)]), len(kernel))
    y = np.einsum("bijchw,hwcf->bijf", windows[:, ::stride, ::stride], kernel, optimize=True)
    return y + layer["bias"]


def windows_of(x, size):
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), (1, 2))


def random_biases(params):
    fill = lambda x: jnp.linspace(-0.1, 0.2, x.size) if x.ndim == 1 else x
    return jax.tree.map(fill, params)


def test_nature_s_layers():
    """Mnih et al. 2015: 84x84 pixels become 7x7 with 64 features."""
    images = jax.random.normal(jax.random.key(0), (2, 84, 84, 4))
    network = parts.Convolutions("nature", nn.relu, parts.orthogonal(1.0))
    params = random_biases(jax.jit(network.init)(jax.random.key(1), images))
    layers = [params["params"][f"Conv_{i}"] for i in range(len(params["params"]))]
    shapes = [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64)]
    assert [layer["kernel"].shape for layer in layers] == shapes
    x = images
    for layer, stride in zip(layers, (4, 2, 1)):
        x = np.maximum(convolved(x, layer, stride), 0.0)
    assert x.shape == (2, 7, 7, 64)
    found = jax.jit(network.apply)(params, images)
    np.testing.assert_allclose(found, x, rtol=1e-4, atol=1e-5)


def test_impala_s_layers():
    """Espeholt et al. 2018, figure 3: three times a convolution, a max pooling and two
    residuals."""
    images = jax.random.normal(jax.random.key(0), (2, 20, 18, 3))
    network = parts.Convolutions("impala", nn.relu, parts.orthogonal(1.0))
    params = random_biases(jax.jit(network.init)(jax.random.key(1), images))
    assert len(params["params"]) == 15
    layers = (params["params"][f"Conv_{i}"] for i in range(15))
    x = images
    for features in (16, 32, 32):
        x = convolved(x, next(layers), frame=1)
        assert x.shape[-1] == features
        ends = [(1 if n % 2 else 0, 1) for n in x.shape[1:3]]  # so that pixels have a pool each
        x = np.pad(x, [(0, 0), *ends, (0, 0)], constant_values=-np.inf)
        x = windows_of(x, 3)[:, ::2, ::2].max((-2, -1))
        for _ in range(2):
            y = convolved(np.maximum(x, 0.0), next(layers), frame=1)
            x = x + convolved(np.maximum(y, 0.0), next(layers), frame=1)
    assert x.shape == (2, 3, 3, 32)
    expected = np.maximum(x, 0.0)
    found = jax.jit(network.apply)(params, images)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind, least", list(parts.CONV_LAYERS.items())[1:])
def test_the_smallest_image_that_can_be_convolved(kind, least, monkeypatch):
    """Smaller ones are refused, so that a CPU's own convolution need not know of empty results."""
    monkeypatch.setattr(parts.layers.loops, "platform", lambda: "gpu")
    network = parts.Convolutions(kind, nn.relu, parts.orthogonal(1.0))
    features = lambda size: jax.eval_shape(
        lambda: network.init_with_output(jax.random.key(0), jnp.zeros((1, size, size, 1)))[0]
    )
    assert features(least).size > 0
    assert least == 1 or features(least - 1).size == 0


@pytest.mark.parametrize("kind", list(parts.CONV_LAYERS)[1:])
def test_convolutions_start_as_they_are_told(kind):
    network = parts.Convolutions(kind, nn.relu, nn.initializers.constant(0.5))
    params = jax.jit(network.init)(jax.random.key(0), jnp.zeros((1, 36, 36, 1)))
    for leaf in jax.tree.leaves(params):
        np.testing.assert_array_equal(leaf, 0.0 if leaf.ndim == 1 else 0.5)


def test_bytes_are_pixels():
    bytes_ = jnp.array([0, 51, 255], jnp.uint8)
    np.testing.assert_allclose(parts.scaled(bytes_), [0.0, 0.2, 1.0])
    for dtype in (jnp.int8, jnp.int32, jnp.float16, jnp.float32, bool):
        x = jnp.array([0, 1, 1], dtype)
        assert parts.scaled(x).dtype == jnp.float32
        np.testing.assert_array_equal(parts.scaled(x), [0.0, 1.0, 1.0])


def test_layer_norm_is_flax_s():
    x = 3.0 * jax.random.normal(jax.random.key(0), (5, 16)) + 1.0
    params = {"params": {"scale": jnp.linspace(0.5, 2.0, 16), "bias": jnp.linspace(-1.0, 1.0, 16)}}
    results = [norm.apply(params, x) for norm in (parts.LayerNorm(), nn.LayerNorm())]
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)
    small = [norm.apply(params, 1e-3 * x) for norm in (parts.LayerNorm(), nn.LayerNorm())]
    np.testing.assert_allclose(*small, rtol=1e-3, atol=1e-4)  # the epsilon added to the variance


def test_cosines_are_numpy_s():
    levels = np.random.default_rng(0).random((3, 5))
    result = parts.cosines(jnp.array(levels), 6)
    expected = [[[np.cos(np.pi * i * t) for i in range(6)] for t in row] for row in levels]
    np.testing.assert_allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize("network", layers.NETWORKS)
def test_bfloat16_is_in_hidden_layers_only(network):
    """Parameters, gradients and features stay float32, and the features are nearly the same."""
    images = jax.random.normal(jax.random.key(0), (4, 10, 10, 3))
    torso = lambda dtype: parts.Torso((32, 32), "relu", "small", network, dtype)
    params = random_biases(jax.jit(torso("bfloat16").init)(jax.random.key(1), images))
    gradient = lambda dtype: lambda params: torso(dtype).apply(params, images).sum()
    features, gradients = {}, {}
    exact = {"xla_allow_excess_precision": False}  # else a compiler may leave the rounding out
    for dtype in layers.DTYPES:
        features[dtype] = jax.jit(torso(dtype).apply, compiler_options=exact)(params, images)
        gradients[dtype] = jax.eval_shape(jax.grad(gradient(dtype)), params)
        leaves = (features[dtype], *jax.tree.leaves((params, gradients[dtype])))
        assert {x.dtype for x in leaves} == {jnp.dtype("float32")}
        program = str(jax.make_jaxpr(torso(dtype).apply)(params, images))
        products = [line for line in program.splitlines() if "dot_general[" in line]
        number = {"mlp": 3, "simba": 6}[network]
        assert sum("bf16" in line for line in products) == number * (dtype == "bfloat16")
    close = {"rtol": 0.05, "atol": 0.05}
    np.testing.assert_allclose(features["bfloat16"], features["float32"], **close)
    assert np.abs(features["bfloat16"] - features["float32"]).max() > 1e-5
