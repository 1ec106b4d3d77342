"""`scan`, and the loop over a round's gradient steps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from envs import loops
from envs.loops import scan, zeros


@jax.custom_batching.custom_vmap
def any_trial(flag: jax.Array) -> jax.Array:
    """Whether a flag (bool, ()) is set in any trial that vmap runs beside this one.

    It has no axis under vmap, so that it can end a loop of all trials.
    """
    return flag


@any_trial.def_vmap
def _any_of_all(axis_size, in_batched, flags):
    return any_trial(flags.any(0) if in_batched[0] else flags), False


class Looped(NamedTuple):
    """The carry of `scan_rows`."""

    carry: Any
    sums: jax.Array  # of outputs, float32, as one vector: adding them is one operation


def branch(flag: Any, yes: Callable, no: Callable, operand: Any) -> Any:
    """`jax.lax.cond`, decided at once if the flag is known when compiling."""
    if isinstance(flag, bool):
        return yes(operand) if flag else no(operand)
    return jax.lax.cond(flag, yes, no, operand)


def scan_rows(
    step: Callable,
    carry: Any,
    rows: Any,
    first: jax.Array,
    count: int,
    matters: jax.Array,
    place: int | None = None,
) -> tuple:
    """`jax.lax.scan` of step(carry, row, index) -> carry, outputs over some rows.

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
      matters: bool (). If it is False, a step must change nothing and its outputs must be 0. A CPU
        skips such loops if they matter to no other trial.
      place: if given, an accelerator's loop of a few rows is unrolled, and its indices are the ints
        place, place + 1, ...
    """

    def body(number, looped, index=None):
        row = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, number, keepdims=False), rows)
        carry, outputs = step(looped.carry, row, number if index is None else index)
        return Looped(carry, looped.sums + vector(outputs)[0])

    def vector(outputs):
        return ravel_pytree(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), outputs))

    if loops.platform() == "cpu":
        step = jax.jit(step)  # traced once, for the outputs and for the loop
    one = jax.tree.map(lambda x: x[0], rows)
    none, unravel = vector(zeros(lambda carry: step(carry, one, first)[1], carry))
    looped = Looped(carry, none)
    if loops.platform() == "cpu":
        end = first + jnp.where(any_trial(matters), count, 0)
        looped = jax.lax.fori_loop(first, end, body, looped)
    else:
        if place is not None and count <= loops.SHORT:
            for i in range(count):
                looped = body(first + i, looped, place + i)
        else:
            known = lambda looped, i: (body(first + i, looped), None)
            looped, _ = scan(known, looped, jnp.arange(count))
        # The next write waits for what was read, or else XLA would write into a copy.
        replay, sums = jax.lax.optimization_barrier((looped.carry.replay, looped.sums))
        looped = Looped(looped.carry.replace(replay=replay), sums)
    return looped.carry, unravel(looped.sums)
