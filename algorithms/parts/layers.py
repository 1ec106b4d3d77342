"""Layers in forms that XLA is fast at on a CPU too, and initialisation without LAPACK."""

import math
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp


class Conv3x3(nn.Dense):
    """A 3x3 convolution without padding, of images (batch, height, width, channels).

    As patches times a matrix: on a CPU XLA's own convolution is 9 times slower.
    """

    @nn.compact
    def __call__(self, x):
        height, width = x.shape[1] - 2, x.shape[2] - 2
        patches = [x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
        return super().__call__(jnp.concatenate(patches, -1))


class Torso(nn.Module):
    """Observations (batch, ...) to features (batch, sizes[-1]); images are convolved first."""

    sizes: tuple[int, ...]
    activation: str  # any function of flax.linen
    conv_features: int = 0  # filters; 0 flattens images

    @nn.compact
    def __call__(self, x):
        activation = getattr(nn, self.activation)
        if x.ndim == 4 and self.conv_features:
            x = activation(Conv3x3(self.conv_features, name="Conv")(x))
        x = x.reshape(x.shape[0], -1)
        for size in self.sizes:
            x = activation(nn.Dense(size)(x))
        return x


class LayerNorm(nn.Module):
    """Features (..., size) with mean 0 and variance 1, then a scale and a bias for each.

    Means are products with a vector: XLA's own sums along the last axis are slow on CPUs.
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


def orthogonal(network: nn.Module, key: jax.Array, *inputs: Any, **gains: float) -> Any:
    """Parameters with orthogonal matrices, all else zero.

    The polar factor of a Gaussian matrix is uniform over orthogonal matrices. Newton-Schulz finds
    it without LAPACK, whose batched QR can hang on CPUs under vmap; all at once compile fastest.

    Args:
      network: takes `inputs`; only their shapes are used.
      key: of the Gaussian matrices.
      gains: of layers by their name in the network; sqrt(2) for all others.
    """
    shapes = flax.traverse_util.flatten_dict(jax.eval_shape(network.init, key, *inputs))
    params = {path: jnp.zeros(leaf.shape) for path, leaf in shapes.items()}
    kernels = {path: leaf for path, leaf in params.items() if leaf.ndim > 1}
    noise = jax.random.normal(key, (sum(kernel.size for kernel in kernels.values()),))
    matrices = []
    for kernel in kernels.values():
        matrices.append(noise[: kernel.size].reshape(-1, kernel.shape[-1]))
        noise = noise[kernel.size :]
    for path, matrix in zip(kernels, polar_factors(matrices)):
        gain = gains.get(path[1], math.sqrt(2))  # path[0] is flax's "params"
        params[path] = gain * matrix.reshape(params[path].shape)
    return flax.traverse_util.unflatten_dict(params)


def polar_factors(matrices: list[jax.Array]) -> list[jax.Array]:
    """The nearest matrices with orthonormal columns (or rows, where there are fewer of them)."""
    upright = lambda x: x if x.shape[0] >= x.shape[1] else x.T
    refine = lambda _, tall: [1.5 * x - 0.5 * x @ (x.T @ x) for x in tall]
    tall = jax.lax.fori_loop(0, 40, refine, [upright(x / jnp.linalg.norm(x)) for x in matrices])
    return [y if y.shape == x.shape else y.T for x, y in zip(matrices, tall)]
