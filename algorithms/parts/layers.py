"""Layers in forms that XLA also runs fast on a CPU, and initialisation without LAPACK."""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from algorithms.parts import products
from algorithms.parts.products import Dense
from envs import loops


@jax.custom_jvp
def swish(x: jax.Array) -> jax.Array:
    """x / (1 + exp(-x)), as h + h tanh(h) with h = x / 2, and its slope computed in the same pass.

    Its error is that of rounding x. XLA's CPU code takes longer for exp and a division: gradient
    steps of SAC and DQN with 64 units take 0.90 and 0.92 of their time (medians of 25 runs).
    """
    h = 0.5 * x
    return h + h * jnp.tanh(h)


@swish.defjvp
def _swish_slope(primals, tangents):
    h = 0.5 * primals[0]
    tanh = jnp.tanh(h)
    y = h + h * tanh
    sigmoid = 0.5 + 0.5 * tanh
    return y, (sigmoid + y * (1.0 - sigmoid)) * tangents[0]


def activation(name: str) -> Callable[[jax.Array], jax.Array]:
    """The function of flax.linen with this name, in the form that suits the device."""
    is_swish = name in ("swish", "silu") and loops.platform() == "cpu"
    return swish if is_swish else getattr(nn, name)


def orthogonal(gain: float) -> Callable[..., jax.Array]:
    """An initialiser: gain times a random matrix (inputs, outputs) with orthonormal columns.

    With fewer inputs than outputs its rows are orthonormal. All axes of a kernel before the last
    are inputs. flax's initialiser of this name draws from the same distribution, by a QR of LAPACK
    that can hang on a CPU under vmap.
    """

    def init(key, shape, dtype=jnp.float32):
        matrix = jax.random.normal(key, (math.prod(shape[:-1]), shape[-1]), dtype)
        return gain * polar_factor(matrix).reshape(shape)

    return init


def polar_factor(matrix: jax.Array) -> jax.Array:
    """The nearest matrix with orthonormal columns, or rows, by Newton-Schulz steps.

    That of a Gaussian matrix is uniform over all such matrices.
    """
    tall = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
    times = functools.partial(jnp.matmul, precision="highest")  # not TF32 on a GPU
    refine = lambda _, x: 1.5 * x - 0.5 * times(x, times(x.T, x))
    tall = jax.lax.fori_loop(0, 40, refine, tall / jnp.linalg.norm(tall))
    return tall if tall.shape == matrix.shape else tall.T


class Conv3x3(nn.Dense):
    """A 3x3 convolution of images (batch, height, width, channels), with a frame of zeros or none.

    It multiplies patches with a matrix: for images of few channels, XLA's own convolution is 9
    times slower on a CPU. A CPU computes it as `products.convolve_inside`, or `products.convolve`
    with a frame.
    """

    framed: bool = False

    @nn.compact
    def __call__(self, x):
        if loops.platform() != "cpu" or self.dtype not in (None, "float32"):
            x = products.padded(x) if self.framed else x
            return super().__call__(products.patches(x))
        kernel = self.param("kernel", self.kernel_init, (9 * x.shape[-1], self.features))
        bias = self.param("bias", self.bias_init, (self.features,))
        convolve = products.convolve if self.framed else products.convolve_inside
        return convolve(x, kernel) + bias


CONV_LAYERS = {"none": 1, "small": 3, "nature": 36, "impala": 1}  # smallest side of an image


class Convolutions(nn.Module):
    """Images (batch, height, width, channels) to feature maps (batch, height', width', features).

    Kinds: "small" is one layer of 16 3x3 filters (Young and Tian 2019, arXiv:1903.03176, for 10x10
    cells); "nature" has the three layers of Mnih et al. 2015 (doi:10.1038/nature14236, for 84x84
    pixels); "impala" the fifteen of Espeholt et al. 2018 (arXiv:1802.01561, figure 3, right).
    """

    kind: str
    activate: Callable[[jax.Array], jax.Array]
    kernel_init: Callable[..., jax.Array]
    dtype: str = "float32"  # of DTYPES

    @nn.compact
    def __call__(self, x):
        if self.kind == "small":
            layer = Conv3x3(16, kernel_init=self.kernel_init, dtype=self.dtype)
            return self.activate(layer(x))
        if self.kind == "nature":
            for features, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
                x = self.activate(self.convolve(x, features, size, stride, "VALID"))
            return x
        for features in (16, 32, 32):
            x = nn.max_pool(self.convolve(x, features), (3, 3), (2, 2), "SAME")
            for _ in range(2):
                residual = self.convolve(self.activate(x), features)
                x = x + self.convolve(self.activate(residual), features)
        return self.activate(x)

    def convolve(self, x, features, size=3, stride=1, padding="SAME"):
        kernel = {"strides": stride, "padding": padding, "kernel_init": self.kernel_init}
        return nn.Conv(features, (size, size), dtype=self.dtype, **kernel)(x)


NETWORKS = ("mlp", "simba")
DTYPES = ("float32", "bfloat16")  # that hidden layers compute in


class Torso(nn.Module):
    """Observations (batch, ...) to features (batch, sizes[-1]); images are convolved first.

    More inputs (batch, ...), such as actions, join the output of the convolutions. Network "mlp"
    has a dense layer for each size. "simba" has a residual block with layer norm for each size, and
    a last layer norm (Lee et al. 2024, arXiv:2410.09754, section 4). Its sizes are all equal.

    Parameters, norms, simba's residual sums and features are float32 in any case. With bfloat16 the
    layers multiply and activate in it, and the sums of the convolutions "impala" are in it.
    """

    sizes: tuple[int, ...]
    activation: str  # any function of flax.linen
    conv_layers: str = "none"  # of CONV_LAYERS
    network: str = "mlp"  # of NETWORKS
    dtype: str = "float32"  # of DTYPES

    @nn.compact
    def __call__(self, x, *more):
        activate, init = activation(self.activation), orthogonal(math.sqrt(2))
        layer = functools.partial(Dense, kernel_init=init, dtype=self.dtype)
        if x.ndim == 4 and self.conv_layers != "none":
            x = Convolutions(self.conv_layers, activate, init, self.dtype)(x)
        x = jnp.concatenate([x.reshape(x.shape[0], -1) for x in (x, *more)], -1)
        if self.network == "mlp":
            for size in self.sizes:
                x = activate(layer(size)(x))
            return x.astype(jnp.float32)
        x = layer(self.sizes[0])(x).astype(jnp.float32)
        for size in self.sizes:
            x = x + layer(size)(activate(layer(4 * size)(LayerNorm()(x))))
        return LayerNorm()(x)


class Tower(nn.Module):
    """Boards (batch, height, width, planes) to features (batch, height * width * channels).

    The residual tower of AlphaZero (Silver et al. 2018, doi:10.1126/science.aar6404), with layer
    norm in place of batch norm, before each activation (He et al. 2016, arXiv:1603.05027).
    """

    blocks: int
    channels: int
    activation: str  # any function of flax.linen

    @nn.compact
    def __call__(self, x):
        activate = activation(self.activation)
        init = orthogonal(math.sqrt(2))
        convolve = lambda x: Conv3x3(self.channels, framed=True, kernel_init=init)(x)
        x = convolve(x)
        for _ in range(self.blocks):
            inner = convolve(activate(LayerNorm()(x)))
            x = x + convolve(activate(LayerNorm()(inner)))
        return activate(LayerNorm()(x)).reshape(x.shape[0], -1)


def scaled(observation: jax.Array) -> jax.Array:
    """In float32. Bytes count as pixels, and are divided by 255."""
    x = observation.astype(jnp.float32)
    return x / 255.0 if observation.dtype == jnp.uint8 else x


def cosines(levels: jax.Array, number: int) -> jax.Array:
    """cos(pi i level), i = 0, ..., number - 1, on a new last axis of levels (...).

    It is a series of sin(pi / 2 - angle). XLA's own cosines take a sixth of a gradient step of
    implicit quantile networks on a CPU.
    """
    halves = jnp.expand_dims(0.5 * jnp.arange(number), range(levels.ndim))
    turns = levels[..., None] * halves
    x = math.pi * (0.5 - 2.0 * jnp.abs(turns - jnp.round(turns)))  # in [-pi / 2, pi / 2]
    series: list[Any] = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(6)]
    return x * functools.reduce(lambda total, c: total * x**2 + c, reversed(series))


class LayerNorm(nn.Module):
    """(x - mean x) / std x * scale + bias, over the last axis of x (..., size).

    Means are products with a vector, because XLA's own sums along the last axis are slow on CPUs.
    """

    @nn.compact
    def __call__(self, x):
        size = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (size,))
        bias = self.param("bias", nn.initializers.zeros, (size,))
        weights = jnp.full(size, 1.0 / size)
        mean = lambda x: jnp.dot(x, weights, precision="highest")[..., None]  # not TF32 on a GPU
        x = x - mean(x)
        return x * jax.lax.rsqrt(mean(jnp.square(x)) + 1e-6) * scale + bias
