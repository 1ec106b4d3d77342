"""Levels: what a reset draws, kept so that it can be played again.

Any environment has levels: one level always starts in the same state, with the same parameters.
Without `randomize` a level is the key of a reset alone, as for a maze that the reset draws.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
from flax import struct

from envs.batch import Batch, choose  # noqa: F401, choose is for levels, too
from envs.reports import batch


@struct.dataclass
class Level:
    """What a reset draws. `reset_env` of an environment with `randomize` takes it as its key."""

    key: jax.Array  # data of the start state's key, uint32 (...)
    shares: jax.Array | None  # places in the parameters' ranges, (num_shares,) in [0, 1]; or none


def num_shares(env: Any) -> int:
    """How many parameters `randomize` draws; 0 without."""
    return getattr(env, "num_shares", 0)


def draw(env: Any, key: jax.Array, shape: int | tuple[int, ...]) -> Level:
    """Levels with the distribution of the environment's own resets; leading axes `shape`."""
    key, shares_key = jax.random.split(key)
    keys, number = jax.random.key_data(jax.random.split(key, shape)), num_shares(env)
    # None: jaxlib 0.11 crashes on empty arrays that are sorted or scattered on several devices.
    shares = jax.random.uniform(shares_key, (*keys.shape[:-1], number)) if number else None
    return Level(keys, shares)


def start(env: Any, level: Level, params: Any) -> tuple[Any, Any]:
    """The observation and state in which every episode of one level starts."""
    return env.reset_env(level if num_shares(env) else reset_key(level), params)


def reset_key(level: Level) -> jax.Array:
    """The key of the level's start state."""
    return jax.random.wrap_key_data(level.key)


def split(key: jax.Array | Level) -> tuple[Any, jax.Array]:
    """The key or level of `reset_env` for the environment inside, and a key for a wrapper's own
    draws."""
    if not isinstance(key, Level):
        inner, own = jax.random.split(key)
        return inner, own
    inner, own = jax.random.split(reset_key(key))
    return dataclasses.replace(key, key=jax.random.key_data(inner)), own


def batch_of_levels(env: Any, num_envs: int, num_steps: int) -> Batch:
    """`envs.batch` of environments that start in levels.

    `reset` and `refill` take the levels of the stock in place of a key, leading axes (depth,
    num_envs). The environments start in those of the first row. An episode that ends in window i of
    the steps is followed by one in its level of row i.
    """
    made: Any = batch(env, num_envs, num_steps)
    made.draw = functools.partial(_stock, made)
    return made


def _stock(batch: Batch, levels: Level, params: Any) -> Any:
    """The start states of levels, in place of `Batch.draw`."""
    shape = batch.depth, batch.num_envs
    flat = jax.tree.map(lambda x: x.reshape(math.prod(shape), *x.shape[2:]), levels)
    starts = jax.vmap(lambda level: start(batch.env, level, params))(flat)
    return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), starts)
