"""Sequences of records from rows of a replay buffer: the end of an episode is a record of its own.

A row has an observation, the action there, its reward, and the observation after it, before any
restart. An episode of n rows becomes n + 1 records: what is observed, with the reward that came
with it. So an episode's last observation and its first one are both learned from, and time steps
are never mixed up. Hafner et al. 2023, arXiv:2301.04104, store such records.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from algorithms.parts.replay import ReplayBuffer, Transition


class Records(NamedTuple):
    """What is observed, one time step after another; leading axes (num_steps, batch)."""

    row: jax.Array  # row of the buffer, int32; that of a last record is the row before it
    observation: jax.Array
    reward: jax.Array  # that came with the observation; 0 at the first one of an episode
    first: jax.Array  # bool: the first of an episode
    last: jax.Array  # bool: the last of an episode, at which there is no action
    terminated: jax.Array  # bool: a last one after which nothing would follow
    action: jax.Array  # at this observation; 0 at a last one


def places(done: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For each record, the step of its row, and whether it is the last of an episode.

    Rows j have `done` (num_steps, batch). Record k is of the last row whose own record is not after
    it, the one with p_j = j + sum_{i < j} done_i. It is the end of that row's episode if k > p_j.
    """
    steps = jnp.arange(len(done))
    place = steps[:, None] + jnp.cumsum(done, 0) - done
    before = place[None] <= steps[:, None, None]  # (records, rows, batch)
    row = before.sum(1) - 1
    return row, steps[:, None] > jnp.take_along_axis(place, row, 0)


def records(buffer: ReplayBuffer, steps: Transition, index: jax.Array) -> Records:
    """The first buffer.n_step records, (n_step, batch), from the rows that start at index (batch,).

    Args:
      buffer: its windows are of n_step rows, which are at least as many records.
      steps: the rows' transitions, a part of what the buffer holds, with its leading axis.
      index: rows that windows start at, which are never ends of episodes. The `reward` and `first`
        of the first record are not known, and are 0 and False.
    """
    rows = buffer.after(index[None], jnp.arange(buffer.n_step)[:, None])
    step, last = places(steps.done[rows])
    row = jnp.take_along_axis(rows, step, 0)
    before = jnp.take_along_axis(rows, jnp.maximum(step - 1, 0), 0)
    first = ~last & (step > 0) & steps.done[before]
    wide = lambda flag, x: flag.reshape(flag.shape + (1,) * (x.ndim - flag.ndim))
    pick = lambda ended, going: jnp.where(wide(last, ended), ended, going)
    action = steps.action[row]
    reward = jnp.where(first | (step == 0), 0.0, steps.reward[before])
    return Records(
        row=row,
        observation=pick(steps.final_observation[row], steps.observation[row]),
        reward=jnp.where(last, steps.reward[row], reward),
        first=first,
        last=last,
        terminated=last & steps.terminated[row],
        action=jnp.where(wide(last, action), jnp.zeros_like(action), action),
    )


def write_back(old: Any, row: jax.Array, new: Any, where: jax.Array) -> Any:
    """Arrays `old` of a buffer with `new` (..., *shape) at `row` (...), but only `where` (bool).

    Of several that write to one row, any may stay.
    """

    def write(old, new):
        place = jnp.where(where, row, len(old)).reshape(-1)  # beyond the end: left out
        new = new.reshape(-1, *old.shape[1:]).astype(old.dtype)
        return old.at[place].set(new, mode="drop")

    return jax.tree.map(write, old, new)


class Fresh(NamedTuple):
    """Starts of windows that replace others, and the number of windows taken so far."""

    start: jax.Array  # rows, (batch,)
    taken: jax.Array  # int32 ()


def fresh_windows(
    buffer: ReplayBuffer, steps: jax.Array, index: jax.Array, taken: jax.Array
) -> Fresh:
    """Windows that no batch has had yet come first, in their order; the rest stays as drawn.

    Every environment's steps are cut into windows of n_step rows without overlap, and each is taken
    once, soon after it is complete: the online queue of Hafner et al. 2023.

    Args:
      buffer: the ring that is written to from its first row.
      steps: steps of each environment that have been added so far, int32 ().
      index: drawn starts of windows, (batch,).
      taken: windows taken so far, int32 ().
    """
    envs, length = buffer.num_envs, buffer.n_step
    held = buffer.capacity // envs  # rows of an environment
    complete = steps // length
    oldest = jnp.maximum(-(-(steps - held) // length), 0)  # of which nothing is overwritten
    taken = jnp.maximum(taken, oldest * envs)
    number = jnp.minimum(complete * envs - taken, len(index))
    which = taken + jnp.arange(len(index))
    start = (which // envs * length % held) * envs + which % envs
    return Fresh(jnp.where(jnp.arange(len(index)) < number, start, index), taken + number)
