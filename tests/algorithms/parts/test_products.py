"""Products of dense layers and their gradients against plain ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts
from algorithms.parts import products
from envs import loops

SHAPES = [  # samples, inputs, outputs
    *[(20, 32, n) for n in (1, 2, 4, 5, 8, 9)],  # one by one, the gradient alone, plain
    *[(256, 32, 32), (300, 32, 40), (192, 64, 33)],  # chunks of 128, 100 and 96
    *[(257, 32, 32), (256, 32, 129), (256, 31, 2)],  # without chunks
]


def gradients(layer, params, x, weights):
    total = lambda params, x: (layer.apply(params, x) * weights).sum()
    return layer.apply(params, x), jax.grad(total, (0, 1))(params, x)


@pytest.mark.parametrize("samples, inputs, outputs", SHAPES)
def test_a_layer_and_its_gradients_are_plain_products(samples, inputs, outputs):
    rng = np.random.default_rng(samples + outputs)
    normal = lambda *shape: rng.normal(size=(2, *shape)).astype(np.float32)  # of two seeds
    x, weights = normal(samples, inputs), normal(samples, outputs)
    kernel, bias = normal(inputs, outputs), normal(outputs)
    layer = parts.Dense(outputs)
    every = jax.jit(jax.vmap(lambda *given: gradients(layer, *given)))
    found = every({"params": {"kernel": kernel, "bias": bias}}, x, weights)
    of_params = {"kernel": x.swapaxes(1, 2) @ weights, "bias": weights.sum(1)}
    expected = x @ kernel + bias[:, None], ({"params": of_params}, weights @ kernel.swapaxes(1, 2))
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    jax.tree.map(close, found, expected)


def shapes_of_products(samples, inputs, outputs):
    layer = parts.Dense(outputs)
    params = jax.eval_shape(layer.init, jax.random.key(0), jnp.zeros((samples, inputs)))
    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)
    given = shape(samples, inputs), shape(samples, outputs)
    jaxpr = jax.make_jaxpr(lambda *given: gradients(layer, *given))(params, *given)
    found = [equation for equation in jaxpr.eqns if equation.primitive.name == "dot_general"]
    return [equation.outvars[0].aval.shape for equation in found]


@pytest.mark.parametrize(
    "size, of_kernel",
    [((128, 64, 2), (64,)), ((128, 64, 6), (64,)), ((512, 64, 64), (4, 64, 64))],
)
def test_only_a_cpu_has_products_of_its_own(size, of_kernel, monkeypatch):
    assert of_kernel in shapes_of_products(*size)
    monkeypatch.setattr(loops, "platform", lambda: "gpu")
    assert of_kernel not in shapes_of_products(*size)


@pytest.mark.parametrize(
    "size, chunk",
    [
        *[((128, 64, 64), None), ((256, 64, 64), 128), ((300, 64, 64), 100)],
        *[((8192, 32, 128), 128), ((131, 64, 64), None), ((256, 31, 64), None)],
        ((256, 64, 129), None),
    ],
)
def test_chunks_have_equally_many_samples(size, chunk):
    assert products.chunk_of(*size) == chunk
