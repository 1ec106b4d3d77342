"""Which devices serve which trials, and how trees get there and back.

Every tree that belongs to trials has them as its leading axis, also when there is only one. The
devices are those of all processes, where there are several (hosts.py).
"""

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from algorithms import parts
from algorithms.launch.engine import hosts, settings
from algorithms.launch.engine.errors import UserError
from algorithms.parts import info
from algorithms.parts.split import ACROSS, SAME

CACHE = "single-file-rl"  # a folder of the user's cache directory
IN_USE = "jax is already in use: its devices are used as they are"


def use_compilation_cache() -> None:
    """Turns jax's persistent compilation cache on, unless the user has chosen a place for it."""
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]  # set at run time
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(home) / CACHE / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def use_cores(num_trials: int, config: Any) -> bool:
    """Asks for a CPU device per core, at most one per trial, if jax has not started yet.

    Several processes share the trials, so each asks for no more than its part of them.

    A single trial with small operations gets one thread: XLA would spread them over all cores,
    and handing them over takes longer than doing them (PPO is a fifth faster without; the numbers
    are the same). NPROC in the environment, which XLA reads when it starts, overrides this. Where
    an accelerator runs them, XLA needs the threads to compile: PPO's program takes an H200's
    machine 15 s with eight and 59 s with one.

    Returns False if jax is in use already; its devices then stay as they are.
    """
    chosen = jax.config.jax_num_cpu_devices > 0  # type: ignore[attr-defined]  # set at run time
    chosen |= "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if num_trials == 1 and not awaits_accelerator() and are_operations_small(config):
        os.environ.setdefault("NPROC", "1")
    if num_trials == 1 or chosen:
        return True
    try:
        share = -(-num_trials // hosts.count())
        jax.config.update("jax_num_cpu_devices", min(num_cores(), share))
    except RuntimeError:  # jax's way to say that the backend has started
        return False
    return True


def awaits_accelerator() -> bool:
    """Whether jax is likely to choose another device than the CPU: one is named, or a plugin for
    one is installed. Asking jax itself would start it."""
    if named := jax.config.jax_platforms:  # type: ignore[attr-defined]  # set at run time
        return named.split(",")[0] != "cpu"
    return any(importlib.util.find_spec(plugin) for plugin in ("jax_plugins", "libtpu"))


def check_backend() -> None:
    """Starts jax's backend, if nothing has.

    Raises:
      UserError: jax cannot start it, as where JAX_PLATFORMS names a platform that is not there.
    """
    try:
        jax.devices()
    except Exception as error:  # RuntimeError, or AssertionError where jax lacks the plugin
        asked = os.environ.get("JAX_PLATFORMS", "")
        why = str(error).partition("\n")[0] or "its plugin is not installed"
        hint = f"JAX_PLATFORMS={asked}: leave it out, or name one that is there, as cpu"
        raise UserError(f"jax cannot start ({why}); {hint}") from error


def are_operations_small(config: Any) -> bool:
    """Whether the largest matrix product of a gradient step is too small to be worth threads."""
    try:
        samples = getattr(config, "batch_size", None)  # of what learns from a replay buffer
        if samples is None:
            rollout = config.num_envs * config.num_steps
            samples = rollout // getattr(config, "num_minibatches", 1)
        return samples * max(config.hidden_sizes) ** 2 <= 2**20
    except (AttributeError, ValueError, TypeError, ZeroDivisionError):  # no such settings, or wrong
        return False


def num_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Layout(NamedTuple):
    """Which devices serve the trials. Each computes as many; copies of trials fill the rest."""

    num_trials: int
    per_device: int  # which a device holds; it computes `used` of them
    devices: tuple[Any, ...]  # in order of the processes that they belong to
    block: int  # trials that a device vmaps; it takes its blocks in turn
    across: int = 1  # devices that share the shards of the same trials (parts/split.py)
    axes: Any = None  # with them, a tree like a state: the axis that shards split, or SAME

    @property
    def groups(self) -> int:
        """Devices, or groups of them that share trials."""
        return len(self.devices) // self.across

    @property
    def padded(self) -> int:
        return self.per_device * self.groups

    @property
    def used(self) -> int:
        """Trials that a device computes: whole blocks, as few as can be."""
        share = -(-self.num_trials // self.groups)
        return min(self.per_device, -(-share // self.block) * self.block)

    @property
    def _trials(self) -> np.ndarray:
        """The trial of each row of the padded axis."""
        group, row = np.divmod(np.arange(self.padded), self.per_device)
        trial = group * self.used + np.minimum(row, self.used - 1)
        return np.minimum(trial, self.num_trials - 1)

    @property
    def mesh(self) -> jax.sharding.Mesh:
        names = ("trials", ACROSS)[: 1 + (self.across > 1)]
        shape = (self.groups, self.across)[: len(names)]
        types = (AxisType.Auto,) * len(names)
        return jax.make_mesh(shape, names, types, devices=self.devices)

    @property
    def _places(self) -> range:
        """What this process's devices compute of the trials, and copies after them."""
        places = ((i // self.across, d) for i, d in enumerate(self.devices))
        mine = [i for i, d in places if d.process_index == jax.process_index()]
        return range(mine[0] * self.used, (mine[-1] + 1) * self.used)

    @property
    def own(self) -> range:
        """The trials that this process keeps, perhaps none; of shared ones the first process's."""
        first = self.devices[self._places.start // self.used * self.across]
        if first.process_index != jax.process_index():
            return range(0)
        return range(*(min(i, self.num_trials) for i in (self._places.start, self._places.stop)))

    @property
    def needed(self) -> range:
        """The trials whose states this process's devices need, at least one."""
        stop = min(self._places.stop, self.num_trials)
        return range(min(self._places.start, self.num_trials - 1), max(stop, 1))

    def sharding(self, *spec: str) -> Any:
        """Where trees live: "trials" for those with a trial axis, nothing for shared ones."""
        if len(self.devices) == 1:
            return jax.sharding.SingleDeviceSharding(self.devices[0])
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    @property
    def specs(self) -> Any:
        """The axes of the mesh that states are spread over: one for all leaves, or a tree."""
        if self.across == 1:
            return PartitionSpec("trials")
        after = lambda axis: [] if axis == SAME else [None] * axis + [ACROSS]
        return jax.tree.map(lambda axis: PartitionSpec("trials", *after(axis)), self.axes)

    @property
    def of_states(self) -> Any:
        """Where states live: a sharding for all leaves, or a tree."""
        return jax.tree.map(lambda spec: self.sharding(*spec), self.specs)

    def put(self, tree: Any, first: int = 0, are_states: bool = False) -> Any:
        """Host arrays of trials, from the first on, on the devices (padded, ...)."""
        index = self._trials - first

        def place(x, sharding):
            data = np.asarray(plain(x))
            shape = (self.padded, *data.shape[1:])
            part = lambda where: data[index[where[0]]][(slice(None), *where[1:])]
            return like_key(jax.make_array_from_callback(shape, sharding, part), x)

        places = self.of_states if are_states else self.sharding("trials")
        return jax.tree.map(place, tree, jax.tree.broadcast(places, tree))

    def share(self, tree: Any) -> Any:
        """Host arrays on all devices."""
        sharding = self.sharding()

        def place(x):
            data = np.asarray(x, jnp.result_type(x))
            return jax.make_array_from_callback(data.shape, sharding, lambda where: data[where])

        return jax.tree.map(place, tree)

    def gathered(self, states: Any) -> Any:
        """The states, of which a process has whole trials: all get the shards of the others."""
        if self.across <= jax.local_device_count():
            return states
        return jax.jit(_same, out_shardings=self.sharding("trials"))(states)

    def pieces(self, x: Any) -> Iterator[np.ndarray]:
        """The rows that this process keeps of an array on the devices, one device at a time."""
        left, found = len(self.own), _by_row(x)
        for first in sorted(found):
            piece = _whole(found[first])[: min(self.used, left)]
            left -= len(piece)
            yield piece

    def get(self, tree: Any) -> Any:
        """Host copies of the trials that this process keeps, of what is on the devices."""
        copy = lambda x: like_key(np.concatenate(list(self.pieces(plain(x)))), x)
        return jax.tree.map(copy, tree)

    def gather(self, tree: Any) -> Any:
        """Host copies (num_trials, ...) of all trials, in all processes."""
        group, row = np.divmod(np.arange(self.num_trials), self.used)
        return jax.tree.map(lambda x: x[group * self.per_device + row], hosts.gather(tree))


def _same(tree: Any) -> Any:
    return tree


def _by_row(x: Any) -> dict[int, list[Any]]:
    """An array's pieces on this process's devices, by the first row that they have."""
    found: dict[int, list[Any]] = {}
    for shard in x.addressable_shards:
        found.setdefault(shard.index[0].start or 0, []).append(shard)
    return found


def _whole(pieces: list[Any]) -> np.ndarray:
    """Rows of an array of pieces that differ along one axis, or are copies."""
    first, *others = pieces
    starts = lambda piece: [part.start or 0 for part in piece.index]
    differ = [a != b for other in others for a, b in zip(starts(first), starts(other))]
    if not any(differ):
        return np.asarray(first.data)
    axis = differ.index(True) % first.data.ndim
    ordered = sorted(pieces, key=lambda piece: starts(piece)[axis])
    return np.concatenate([np.asarray(piece.data) for piece in ordered], axis)


def arrange(num_trials: int, block: int | None = None, shards: int = 1) -> Layout:
    """The fewest devices on which no device serves more trials than it must.

    Several processes use all of their devices, also for fewer trials. `block` sets how many trials
    are vmapped; a trial's numbers depend on it to the last bit, and on nothing else here. Devices
    that are left when every trial has one share the trials' shards: those of one process, or of
    several whole ones.
    """
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    free, local = max(1, len(devices) // num_trials), jax.local_device_count()
    whole = lambda n: local % n == 0 or (n % local == 0 and len(devices) % n == 0)
    fits = lambda n: shards % n == 0 and (hosts.count() == 1 or whole(n))
    across = max(n for n in range(1, free + 1) if fits(n))
    groups = len(devices) // across
    share = -(-num_trials // groups)
    block = block or block_size(share, devices[0].platform)
    per_device = -(-share // block) * block
    used = groups if hosts.count() > 1 else -(-num_trials // per_device)
    return Layout(num_trials, per_device, tuple(devices[: used * across]), block, across)


def block_size(num_trials: int, platform: str) -> int:
    """Trials to vmap on a device that has so many; all of them but on a CPU.

    On a CPU small blocks are fastest, because they fill a core's lanes and fit its cache: with PPO
    (64x64 units, one thread), blocks of 4 and 8 trials have 13 % and 12 % more throughput than one,
    and blocks of 32 have 8 % less. Of the sizes near four, the one with the fewest copies is taken.
    """
    if platform != "cpu" or num_trials <= 4:
        return num_trials
    return min((4, 5, 6, 3), key=lambda block: -num_trials % block)


def cut(num_trials: int, at_most: int) -> list[range]:
    """Chunks of trials, as few as can be, of one size; the last one may be shorter."""
    chunks = -(-num_trials // at_most)
    size = -(-num_trials // chunks)
    return [range(i, min(i + size, num_trials)) for i in range(0, num_trials, size)]


def is_key(x: Any) -> bool:
    """Whether an array holds typed PRNG keys, which files and NumPy do not know."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def plain(x: Any) -> Any:
    """An array without typed keys."""
    return jax.random.key_data(x) if is_key(x) else x


def like_key(data: Any, x: Any) -> Any:
    """The inverse of `plain`: data as typed keys if x has them."""
    if not is_key(x):
        return data
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(jnp.empty((), x.dtype)))


def joined(trees: Sequence[Any]) -> Any:
    """Trees of host arrays (trials, ...), one after another."""
    join = lambda *x: like_key(np.concatenate([plain(part) for part in x]), x[0])
    return jax.tree.map(join, *trees) if len(trees) > 1 else trees[0]


def size(tree: Any) -> int:
    """Bytes of the arrays in a tree, which may be shapes alone."""
    leaves = jax.tree.leaves(jax.eval_shape(lambda t: jax.tree.map(plain, t), tree))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


# --- one trial, split over devices: --split-envs (parts/split.py) ------------------------------


def split(module: Any, number: int) -> Any:
    """The algorithm's module, or a `parts.Split` of it with so many shards.

    Raises:
      UserError: the number is not one, or the algorithm cannot be split.
    """
    if type(number) is not int or number < 1:
        raise UserError(f"split_envs={number!r}: give a whole number, 1 (not split) or more")
    if number == 1 or isinstance(module, parts.Split):
        return module
    if hasattr(module, "members"):  # a population
        raise UserError(f"split_envs={number} does not go with pbt: leave one of them out")
    if not getattr(module, "INFO", {}).get("split"):
        name = settings.algorithm_name(module)
        raise UserError(f"split_envs={number}: {name} cannot be split{_others(module)}")
    return parts.Split(module, number)


def num_shards(module: Any) -> int:
    """The number of shards of a trial; 1 where it is not split."""
    return module.number if isinstance(module, parts.Split) else 1


def axes_of(module: Any, config: Any, env: Any, env_params: Any) -> Any:
    """Where a state is split, a tree like it.

    Raises:
      UserError: a part of the state cannot be split.
    """
    try:
        return module.axes(config, env, env_params)
    except ValueError as error:
        raise UserError(str(error)) from error


def _others(module: Any) -> str:
    """Which files beside this one can."""
    found = info.of_folder(Path(module.__file__).parent)
    names = [name for name, said in found.items() if said.get("split")]
    return f"; {', '.join(names)} can" if names else ""
