"""Dense layers with products that suit a CPU."""

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
        0.8 of it. Narrower and wider layers lose.
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
    columns = [given[:, i] for i in range(given.shape[1])]
    if len(columns) <= NARROW:
        of_x = sum(column[:, None] * row for column, row in zip(columns, kernel.T))
    else:
        of_x = given @ kernel.T
    if len(columns) <= FEW:
        return of_x, jnp.stack([column @ x for column in columns], -1)
    if chunk := chunk_of(len(x), *kernel.shape):
        apart = lambda x: x.reshape(-1, chunk, x.shape[-1])
        of_chunks = jax.lax.dot_general(apart(x), apart(given), (((1,), (1,)), ((0,), (0,))))
        return of_x, of_chunks.sum(0)
    return of_x, x.T @ given


_product.defvjp(_forward, _backward)


def chunk_of(samples: int, inputs: int, outputs: int) -> int | None:
    """Samples of a chunk, equally many in each; None: one product is as fast."""
    if samples <= SAMPLES or inputs not in UNITS or outputs not in UNITS:
        return None
    return next((n for n in range(SAMPLES, SAMPLES // 2 - 1, -1) if samples % n == 0), None)
