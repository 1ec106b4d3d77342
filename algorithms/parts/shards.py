"""Sums and means over shards: the parts of one agent's environments, rollouts and minibatches.

A shard runs an algorithm's own update on its share of the environments. Values that all shards must
share (gradients, running statistics, metrics) go through the functions here. Without shards each of
them returns its argument, or the plain mean, so that a program of one part stays as it is.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Shards(NamedTuple):
    """The mapped axes of the program that is being traced."""

    number: int  # shards on all axes
    axes: tuple[tuple[str, int], ...]  # names and sizes, from the outer axis to the inner one

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)


_HERE: contextvars.ContextVar[Shards | None] = contextvars.ContextVar("shards", default=None)
_DEVICES: contextvars.ContextVar[int] = contextvars.ContextVar("devices", default=1)


def here() -> Shards | None:
    """The shards of the program that is being traced; None without shards."""
    return _HERE.get()


@contextlib.contextmanager
def within(axes: tuple[tuple[str, int], ...]) -> Iterator[None]:
    """What is traced inside runs once for each index of these mapped axes, (name, size)."""
    number = 1
    for _, size in axes:
        number *= size
    token = _HERE.set(Shards(number, axes))
    try:
        yield
    finally:
        _HERE.reset(token)


@contextlib.contextmanager
def shared_by(devices: int) -> Iterator[None]:
    """A state whose size is checked inside is divided among so many devices."""
    token = _DEVICES.set(devices)
    try:
        yield
    finally:
        _DEVICES.reset(token)


def num_devices() -> int:
    """The devices among which a state is divided."""
    return _DEVICES.get()


def count() -> int:
    """The number of shards, 1 without."""
    found = here()
    return found.number if found else 1


def index() -> jax.Array:
    """The number of this shard, int32 (); 0 without."""
    found, position = here(), jnp.int32(0)
    for name, size in found.axes if found else ():
        position = position * size + jax.lax.axis_index(name)
    return position


def sum_over_shards(tree: Any) -> Any:
    """Sums over all shards."""
    found = here()
    return jax.lax.psum(tree, found.names) if found else tree


def mean_over_shards(tree: Any) -> Any:
    """Means over all shards. A mean of shards' means is that of all samples if all have as many."""
    found = here()
    return jax.lax.pmean(tree, found.names) if found else tree


def max_over_shards(tree: Any) -> Any:
    """The largest values of all shards."""
    found = here()
    return jax.lax.pmax(tree, found.names) if found else tree


def any_over_shards(flags: jax.Array) -> jax.Array:
    """Whether a flag is set on any shard; flags are arrays of bools."""
    return sum_over_shards(flags.astype(jnp.int32)) > 0 if here() else flags


def of_all(steps: int) -> int:
    """The steps of all shards, each of which has so many."""
    return steps * count()


def memory(of_a_device: int) -> int:
    """Bytes for a state, which the devices hold together."""
    return of_a_device * num_devices()


def apart(function: Any) -> Any:
    """The function, equal only to what is made of it in a program of the same shards.

    jit keeps one program for each. Without shards it is the function itself.
    """
    found = here()
    return _Apart(function, found) if found else function


class _Apart(NamedTuple):
    function: Callable
    shards: Shards

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    @property
    def __module__(self) -> str:  # type: ignore[override]
        return self.function.__module__


def merged(stats: Any) -> Any:
    """Running statistics of all shards' samples together, each shard weighted by its count.

    Their variance is the mean of var_i + (mean_i - mean)**2.
    """
    if not here():
        return stats
    count = sum_over_shards(stats.count)
    share = stats.count / jnp.maximum(count, 1.0)
    mean = sum_over_shards(share * stats.mean)
    var = sum_over_shards(share * (stats.var + (stats.mean - mean) ** 2))
    return stats.replace(mean=mean, var=var, count=count)


def summed(stats: Any, names: Sequence[str]) -> Any:
    """Statistics with the sums over all shards in the fields with these names."""
    if not here():
        return stats
    sums = sum_over_shards({name: getattr(stats, name) for name in names})
    return dataclasses.replace(stats, **sums)


def share_of(number: int) -> Any:
    """Which of so many indices this shard computes, (share,); None without shards: all."""
    if not here():
        return None
    share = -(-number // count())
    # Where the number does not divide, the last indices are computed again and dropped.
    return jnp.minimum(index() * share + jnp.arange(share), number - 1)


def gathered(found: Any, number: int) -> Any:
    """What all shards have computed of their `share_of` the indices, the leading axis."""
    if not here():
        return found
    share = -(-number // count())
    first = index() * share

    def of_all(x):
        dtype = jnp.int32 if x.dtype == bool else x.dtype
        whole = jnp.zeros((count() * share, *x.shape[1:]), dtype)
        place = (first, *(0,) * (x.ndim - 1))
        whole = jax.lax.dynamic_update_slice(whole, x.astype(dtype), place)
        return sum_over_shards(whole)[:number].astype(x.dtype)

    return jax.tree.map(of_all, found)


def with_own_keys(update: Any) -> Any:
    """An update whose shards draw different random numbers, from keys that all shards have.

    The keys of the state, `eval_rng` aside, do not depend on the shard: each shard folds its number
    into them, and the next keys have the number of shards folded in. (A key that gets numbers
    folded in is never split, because `split` gives the same keys as folding in 0, 1, ...)
    """
    shards = here()
    if not shards:
        return update

    def one(state: Any) -> Any:
        keys = {name: getattr(state, name) for name in own_keys(state)}
        mine = {name: jax.random.fold_in(key, index()) for name, key in keys.items()}
        later = {name: jax.random.fold_in(key, shards.number) for name, key in keys.items()}
        state, metrics = update(state.replace(**mine))
        return state.replace(**later), metrics

    return one


def own_keys(state: Any) -> list[str]:
    """The state's fields that are typed keys, without the constant one of evaluations."""
    is_key = lambda x: isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return [name for name, x in vars(state).items() if name != "eval_rng" and is_key(x)]
