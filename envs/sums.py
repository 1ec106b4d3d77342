"""A sum that stays accurate over any number of terms, and means that may have no data."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Sum:
    """A float32 sum whose error does not grow with its terms: it carries the rounding error along.

    Source: Kahan 1965, https://doi.org/10.1145/363707.363723.
    """

    total: jax.Array
    excess: jax.Array  # the excess of the total

    @classmethod
    def create(cls, shape: tuple[int, ...] = ()) -> "Sum":
        return cls(jnp.zeros(shape), jnp.zeros(shape))

    def add(self, x: jax.Array) -> "Sum":
        x = x - self.excess
        total = self.total + x
        return Sum(total, (total - self.total) - x)


def mean(total: jax.Array, count: jax.Array, divide: Callable = jnp.divide) -> jax.Array:
    """total / count, or `missing` where the count is 0."""
    if not debug_nans():
        return divide(total, count)
    return missing(divide(total, jnp.where(count == 0, 1, count)), count)


def missing(values: jax.Array, count: jax.Array) -> jax.Array:
    """Means over `count` terms; NaN without data.

    Under jax_debug_nans, which stops a program at any NaN, they are -0.0. No mean of data is -0.0:
    a sum that begins with 0.0 never gets there.
    """
    return jnp.where(count == 0, -0.0, values) if debug_nans() else values


def debug_nans() -> bool:
    """Whether jax_debug_nans is set."""
    return jax.config.jax_debug_nans  # type: ignore[attr-defined]  # set at run time
