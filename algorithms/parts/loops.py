"""Loops that XLA does not inline."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from algorithms.parts.training import zeros


class Looped(NamedTuple):
    """The carry of `scan_rows`."""

    carry: Any
    sums: Any  # float32, of outputs


def scan_rows(step: Callable, carry: Any, rows: Any, first: jax.Array, count: int) -> Looped:
    """`jax.lax.scan` of step(carry, row) -> carry, outputs over some rows; it sums the outputs.

    XLA inlines a loop if it knows that it has a single trip. Writing and reading a replay buffer
    then become one operation, which copies the whole buffer at every step. XLA does not know the
    number of trips if `first` comes from the counter of an outer loop.

    Args:
      rows: all rows, along the leading axis.
      first: index of the first row of the loop.
      count: number of its rows.
    """

    def body(index, looped):
        row = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), rows)
        carry, outputs = step(looped.carry, row)
        return Looped(carry, jax.tree.map(jnp.add, looped.sums, as_floats(outputs)))

    as_floats = lambda outputs: jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), outputs)
    one = jax.tree.map(lambda x: x[0], rows)
    none = zeros(lambda carry: as_floats(step(carry, one)[1]), carry)
    return jax.lax.fori_loop(first, first + count, body, Looped(carry, none))
