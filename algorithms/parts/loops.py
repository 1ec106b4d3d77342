"""`scan`, and the loop over a round's gradient steps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from envs import loops
from envs.loops import scan


def zeros(function: Callable, *args: Any) -> Any:
    """Zeros in the shapes and dtypes of function(*args)."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, *args))


class Looped(NamedTuple):
    """The carry of `scan_rows`."""

    carry: Any
    sums: jax.Array  # of outputs, float32, as one vector: adding them is one operation


def scan_rows(step: Callable, carry: Any, rows: Any, first: jax.Array, count: int) -> tuple:
    """`jax.lax.scan` of step(carry, row) -> carry, outputs over some rows.

    Returns the carry and the float32 sums of the outputs.

    On a CPU XLA does not know the number of trips: `first` comes from the counter of an outer loop.
    If it knew that there is a single trip, it would inline the loop. Writing and reading a replay
    buffer would then become one operation, which copies the whole buffer at every step. An
    accelerator waits for the host at each trip of such a loop, so there the trips are known.

    Args:
      carry: a struct with a replay buffer, `replay`, that the next rows are written into later.
      rows: all rows, along the leading axis.
      first: index of the first row of the loop.
      count: number of its rows.
    """

    def body(index, looped):
        row = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), rows)
        carry, outputs = step(looped.carry, row)
        return Looped(carry, looped.sums + vector(outputs)[0])

    def vector(outputs):
        return ravel_pytree(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), outputs))

    one = jax.tree.map(lambda x: x[0], rows)
    none, unravel = vector(zeros(lambda carry: step(carry, one)[1], carry))
    looped = Looped(carry, none)
    if loops.platform() == "cpu":
        looped = jax.lax.fori_loop(first, first + count, body, looped)
    else:
        known = lambda looped, i: (body(first + i, looped), None)
        looped, _ = scan(known, looped, jnp.arange(count))
        # The next write waits for what was read, or else XLA would write into a copy.
        replay, sums = jax.lax.optimization_barrier((looped.carry.replay, looped.sums))
        looped = Looped(looped.carry.replace(replay=replay), sums)
    return looped.carry, unravel(looped.sums)
