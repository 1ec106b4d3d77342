"""Dense layers and convolutions with products that suit a CPU."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from envs import loops

NARROW = 4  # outputs that are computed one by one, at most
FEW = 8  # outputs for which the kernel's gradient is computed so, at most
UNITS = range(32, 129)  # inputs and outputs of layers whose gradients are computed in chunks
SAMPLES = 128  # of a chunk, at most


def dense(x: jax.Array, kernel: jax.Array, dimensions: Any, **more: Any) -> jax.Array:
    """x (samples, k) @ kernel (k, n), the product of `Dense`. Accelerators have the plain one.

    XLA's CPU code is slow at some kernels' gradients x.T @ g, with g (samples, n). Measured on one
    core, against the plain product:
      - few outputs: one by one, as products with vectors, forwards and backwards take 0.2 to 0.5
        of the time;
      - 32 to 128 inputs and outputs, more than 128 samples: sums over chunks of samples take 0.6 to
        0.8 of it. Narrower and wider layers lose;
      - all others: with x transposed first 0.5 to 1 of it; 0.3 to 0.7 with 512, 1024 or 2048 inputs
        and 16 samples or more, perhaps because their columns share the lines of a cache.
    """
    plain = loops.platform() != "cpu" or x.ndim != 2 or x.dtype != jnp.float32
    if plain or kernel.shape[0] < UNITS.start:
        return jax.lax.dot_general(x, kernel, dimensions, **more)
    return _product(x, kernel)


Dense = functools.partial(nn.Dense, dot_general=dense)  # flax's layer, with flax's parameters


@jax.custom_vjp
def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    if kernel.shape[1] <= NARROW:
        return jnp.stack([x @ column for column in kernel.T], -1)
    return x @ kernel


def _forward(x, kernel):
    return _product(x, kernel), (x, kernel)


def _backward(kept, given):
    x, kernel = kept
    number = given.shape[1]
    columns = [given[:, i] for i in range(number)] if number <= FEW else []
    if number <= NARROW:
        of_x = sum(column[:, None] * row[None] for column, row in zip(columns, kernel.T))
    else:
        of_x = given @ kernel.T
    if columns:
        return of_x, jnp.stack([column @ x for column in columns], -1)
    if chunk := chunk_of(len(x), *kernel.shape):
        apart = lambda x: x.reshape(-1, chunk, x.shape[-1])
        of_chunks = jax.lax.dot_general(apart(x), apart(given), (((1,), (1,)), ((0,), (0,))))
        return of_x, of_chunks.sum(0)
    return of_x, _of_kernel(x, given)


_product.defvjp(_forward, _backward)


def _of_kernel(x, given):
    """x.T @ given, with x transposed before the product, not inside it."""
    return jax.lax.optimization_barrier(x.T) @ given


@jax.custom_vjp
def _tall_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x @ kernel with far more samples than a dense layer has; chunks of them would be slower."""
    return x @ kernel


_tall_product.defvjp(
    lambda x, kernel: (x @ kernel, (x, kernel)),
    lambda kept, given: (given @ kept[1].T, _of_kernel(kept[0], given)),
)


def chunk_of(samples: int, inputs: int, outputs: int) -> int | None:
    """Samples of a chunk, equally many in each; None: one product is as fast."""
    if samples <= SAMPLES or inputs not in UNITS or outputs not in UNITS:
        return None
    return next((n for n in range(SAMPLES, SAMPLES // 2 - 1, -1) if samples % n == 0), None)


def patches(x: jax.Array) -> jax.Array:
    """The 3x3 neighbourhoods in images (batch, height, width, channels), without padding: (batch,
    height - 2, width - 2, 9 channels)."""
    height, width = x.shape[1] - 2, x.shape[2] - 2
    shifted = [x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return jnp.concatenate(shifted, -1)


def convolve_inside(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """patches(x) @ kernel, for a CPU: images (batch, height, width, k), kernel (9 k, n).

    A row of the product has two neighbouring outputs, from 3x4 cells. It multiplies 4/3 as many
    numbers, but XLA's CPU code copies one piece at a time, and here pieces are fewer and longer:
    three of 4 k numbers in place of nine of k. Forwards and backwards this takes 0.25 to 0.5 of the
    time, measured on one core with 10x10 and 16x16 cells. Smaller batches have single patches: DQN,
    with batches of 32, takes 1.05 to 1.1 of its time with pairs.
    """
    batch, height, width, channels = x.shape
    if batch < SAMPLES:
        return patches(x) @ kernel
    height, width, odd = height - 2, width - 2, width % 2
    x = jnp.pad(x, ((0, 0), (0, 0), (0, odd), (0, 0))) if odd else x
    rows = x.reshape(batch, height + 2, -1)
    piece = lambda i, j: rows[:, i : i + height, j * channels : (j + 4) * channels]
    block = lambda j: jnp.concatenate([piece(i, j) for i in range(3)], -1)
    blocks = jnp.stack([block(j) for j in range(0, width, 2)], 2)
    window = kernel.reshape(3, 3, channels, -1)
    at = lambda i: jnp.pad(window, ((0, 0), (i, 1 - i), (0, 0), (0, 0)))
    pair = jnp.stack([at(0), at(1)], -2).reshape(12 * channels, -1)
    out = _tall_product(blocks.reshape(-1, len(pair)), pair)
    return out.reshape(batch, height, width + odd, -1)[:, :, :width]


def padded(x: jax.Array) -> jax.Array:
    """Images (batch, height, width, channels) with a frame of zeros."""
    return jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))


@jax.custom_vjp
def convolve(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """patches(padded(x)) @ kernel, for a CPU: images (batch, height, width, k), kernel (9 k, n).

    XLA's own convolution takes 0.65 of the time of that product, measured on one core with boards
    of 6x7 and 32 channels. Inside a loop its gradient of the kernel takes 7 times as long as the
    product, so this gradient alone is a product. Both ways take 0.8 of the time in all.
    """
    window = kernel.reshape(3, 3, x.shape[-1], -1)
    names = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, window, (1, 1), "SAME", dimension_numbers=names)


def _convolve_forward(x, kernel):
    return convolve(x, kernel), (x, kernel)


def _convolve_backward(kept, given):
    x, kernel = kept
    inputs, outputs = x.shape[-1], kernel.shape[-1]
    turned = kernel.reshape(9, inputs, outputs)[::-1].swapaxes(1, 2)
    of_x = convolve(given, turned.reshape(9 * outputs, inputs))
    rows = patches(padded(x)).reshape(-1, 9 * inputs)
    return of_x, rows.T @ given.reshape(-1, outputs)


convolve.defvjp(_convolve_forward, _convolve_backward)
