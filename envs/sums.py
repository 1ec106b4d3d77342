"""A sum that stays exact however many terms it has."""

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Sum:
    """A float32 sum as good however many terms it has: what rounding took goes into the next one
    (Kahan 1965, https://doi.org/10.1145/363707.363723)."""

    total: jax.Array
    excess: jax.Array  # what the total has too much

    @classmethod
    def create(cls, shape: tuple[int, ...] = ()) -> "Sum":
        return cls(jnp.zeros(shape), jnp.zeros(shape))

    def add(self, x: jax.Array) -> "Sum":
        x = x - self.excess
        total = self.total + x
        return Sum(total, (total - self.total) - x)
