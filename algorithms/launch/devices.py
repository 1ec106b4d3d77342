"""Agents on devices: one program starts them all, another takes them all one point further.

Every tree that belongs to agents has them as its leading axis, also when there is only one. Agents
are mapped over devices with shard_map, so that a loop whose length depends on data makes no device
wait for another; a device vmaps its agents, on a CPU some at a time. A device with a single agent
runs exactly what `make_train(config)(key)` runs. The devices are those of all processes, where
there are several (hosts.py).
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import envs
from algorithms.launch import hosts
from algorithms.launch.errors import UserError

CACHE = "single-file-rl"  # a folder of the user's cache directory


def use_compilation_cache() -> None:
    """Turns jax's persistent compilation cache on, unless the user has chosen a place for it."""
    if jax.config.jax_compilation_cache_dir is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        jax.config.update("jax_compilation_cache_dir", str(Path(home) / CACHE / "jax"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def use_cores(num_agents: int, config: Any) -> bool:
    """Asks for a CPU device per core, at most one per agent, where this can still be chosen.

    A single agent with small operations gets one thread: XLA would spread them over all cores,
    and handing them over takes longer than doing them (PPO is a fifth faster without; the numbers
    are the same). NPROC in the environment, which XLA reads when it starts, overrides this.

    Returns False if jax is in use already; its devices then stay as they are.
    """
    chosen = jax.config.jax_num_cpu_devices > 0
    chosen |= "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if num_agents == 1 and are_operations_small(config):
        os.environ.setdefault("NPROC", "1")
    if num_agents == 1 or chosen:
        return True
    try:
        jax.config.update("jax_num_cpu_devices", min(num_cores(), num_agents))
    except RuntimeError:  # jax's way to say that the backend has started
        return False
    return True


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
    """Which devices serve the agents; copies of the last agent fill up the last devices."""

    num_agents: int
    per_device: int
    devices: tuple[Any, ...]  # in order of the processes that they belong to
    block: int  # agents that a device vmaps; it takes its blocks in turn

    @property
    def padded(self) -> int:
        return self.per_device * len(self.devices)

    @property
    def mesh(self) -> jax.sharding.Mesh:
        shape, types = (len(self.devices),), (AxisType.Auto,)
        return jax.make_mesh(shape, ("agents",), types, devices=self.devices)

    @property
    def _places(self) -> range:
        """What this process's devices hold of the padded axis."""
        mine = [i for i, d in enumerate(self.devices) if d.process_index == jax.process_index()]
        return range(mine[0] * self.per_device, (mine[-1] + 1) * self.per_device)

    @property
    def own(self) -> range:
        """The agents that this process keeps, perhaps none."""
        return range(*(min(i, self.num_agents) for i in (self._places.start, self._places.stop)))

    @property
    def needed(self) -> range:
        """The agents whose states this process's devices need, at least one."""
        return range(min(self._places.start, self.num_agents - 1), max(self.own.stop, 1))

    def sharding(self, *spec: str) -> Any:
        """Where trees live: "agents" for those with an agent axis, nothing for shared ones."""
        if len(self.devices) == 1:
            return jax.sharding.SingleDeviceSharding(self.devices[0])
        return NamedSharding(self.mesh, PartitionSpec(*spec))

    def put(self, tree: Any, first: int = 0) -> Any:
        """Host arrays of agents, from the first on, on the devices (padded, ...)."""
        index = np.minimum(np.arange(self.padded), self.num_agents - 1) - first
        sharding = self.sharding("agents")

        def place(x):
            data = np.asarray(plain(x))
            shape = (self.padded, *data.shape[1:])
            part = lambda where: data[index[where[0]]]
            return like_key(jax.make_array_from_callback(shape, sharding, part), x)

        return jax.tree.map(place, tree)

    def share(self, tree: Any) -> Any:
        """Host arrays on all devices."""
        sharding = self.sharding()

        def place(x):
            data = np.asarray(x, jnp.result_type(x))
            return jax.make_array_from_callback(data.shape, sharding, lambda where: data[where])

        return jax.tree.map(place, tree)

    def get(self, tree: Any) -> Any:
        """Host copies of the agents that this process keeps, of what is on the devices."""

        def copy(x):
            shards = sorted(plain(x).addressable_shards, key=lambda s: s.index[0].start or 0)
            data = np.concatenate([np.asarray(shard.data) for shard in shards])
            return like_key(data[: len(self.own)], x)

        return jax.tree.map(copy, tree)

    def gather(self, tree: Any) -> Any:
        """Host copies (num_agents, ...) of all agents, in all processes."""
        return jax.tree.map(lambda x: x[: self.num_agents], hosts.gather(tree))


def arrange(num_agents: int, block: int | None = None) -> Layout:
    """The fewest devices on which no device serves more agents than it must.

    Several processes use all of their devices, also for fewer agents. `block` sets how many agents
    are vmapped; an agent's numbers depend on it to the last bit, and on nothing else here.
    """
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    share = -(-num_agents // len(devices))
    block = block or block_size(share, devices[0].platform)
    per_device = -(-share // block) * block
    used = len(devices) if hosts.count() > 1 else -(-num_agents // per_device)
    return Layout(num_agents, per_device, tuple(devices[:used]), block)


def block_size(num_agents: int, platform: str) -> int:
    """Agents to vmap on a device that has so many; all of them but on a CPU.

    There few are best, as a core has no more lanes to fill and its cache holds no more: of PPO's
    agents (64x64 units, one thread) 4 do 13 % and 8 do 12 % more in a second than one, 32 do 8 %
    less. Of the numbers near four the one that leaves the fewest places to copies.
    """
    if platform != "cpu" or num_agents <= 4:
        return num_agents
    return min((4, 5, 6, 3), key=lambda block: -num_agents % block)


def cut(num_agents: int, at_most: int) -> list[range]:
    """Chunks of agents, as few as can be, of one size; the last one may be shorter."""
    chunks = -(-num_agents // at_most)
    size = -(-num_agents // chunks)
    return [range(i, min(i + size, num_agents)) for i in range(0, num_agents, size)]


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


def size(tree: Any) -> int:
    """Bytes of the arrays in a tree, which may be shapes alone."""
    leaves = jax.tree.leaves(jax.eval_shape(lambda t: jax.tree.map(plain, t), tree))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def make_environment(module: Any, config: Any) -> tuple[Any, Any]:
    """The environment and its parameters as arrays, once the algorithm has agreed to them.

    Raises:
      UserError: what `envs.make` or `make_train` say against the settings.
    """
    try:
        env, env_params = envs.make(config.env, **dict(config.env_settings))
        module.make_train(config, env, env_params)
    except ValueError as error:
        raise UserError(str(error)) from error
    return env, jax.tree.map(lambda x: np.asarray(x, jnp.result_type(x)), env_params)


def initial_state(module: Any, config: Any) -> Any:
    """Shapes and dtypes of the state of one agent."""
    train = lambda rng: module.make_train(config.replace(eval_at_start=False))(rng, None, 0)[0]
    return jax.eval_shape(train, jax.eval_shape(lambda: jax.random.key(0)))


class Shared(NamedTuple):
    """What the programs take that belongs to no agent."""

    env_params: Any
    learn: Any  # bool: False only evaluates


class Programs(NamedTuple):
    """What runs on the devices, compiled. Metrics have the axes (padded, 1)."""

    start: Callable | None  # (shared, configs, keys) -> states
    advance: Callable  # (shared, configs, states) -> states, metrics; uses the states up

    @property
    def bytes_per_device(self) -> int:
        """What the larger one needs of a device's memory, as its compiler says."""
        return max(_bytes(program) for program in self if program)


def _bytes(program: Any) -> int:
    """Arguments, results and temporary buffers; what is donated counts once."""
    memory = program.memory_analysis()
    ends = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return ends + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes


def compile_programs(
    module: Any, config: Any, env: Any, env_params: Any, layout: Layout, start: bool
) -> Programs:
    """Compiles both programs at the same time, or only `advance` when the run has started already.

    The start does not evaluate: the point before training is made by `advance`, without learning.

    Args:
      config: the algorithm's Config; of its floats only the shape of a batch is used.
      env, env_params: of `envs.make`. The parameters are arguments of the programs, as they are in
        the algorithm's own jit: constants would be folded, and other numbers come out.
      start: whether to compile `start`.
    """

    def first(shared, config, rng):
        silent = config.replace(eval_at_start=False)
        return module.make_train(silent, env, shared.env_params)(rng, None, 0)[0]

    def one_point(shared, config, state):
        return module.make_train(config, env, shared.env_params)(None, state, 1, shared.learn)

    sharded = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout.sharding("agents"))
    leaf = jax.ShapeDtypeStruct((layout.padded,), jnp.float32)
    configs = jax.tree.map(lambda _: sharded(leaf), config)
    keys = sharded(jax.eval_shape(lambda: jax.random.split(jax.random.key(0), layout.padded)))
    shared = layout.share(Shared(env_params, True))
    starting = jax.jit(over_agents(first, layout)).trace(shared, configs, keys)
    states = jax.tree.map(sharded, starting.out_info)
    advancing = jax.jit(over_agents(one_point, layout, in_place=True), donate_argnums=2)
    traced = [advancing.trace(shared, configs, states), *[starting] * start]
    lowered = [program.lower() for program in traced]
    with ThreadPoolExecutor(len(lowered)) as pool:
        advance, *rest = pool.map(lambda program: program.compile(), lowered)
    return Programs(rest[0] if start else None, advance)


@jax.jit
@jax.vmap
def is_finite(tree: Any) -> jax.Array:
    """Whether all floats in a tree of agents are finite, (agents,)."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in leaves] or [True]))


def over_agents(function: Callable, layout: Layout, in_place: bool = False) -> Callable:
    """The function (shared, *own) of one agent as a function of all, with leading axes on `own`.

    Args:
      function: of one agent.
      layout: of the agents.
      in_place: the first result has the shapes of the last argument, and takes its memory.
    """
    mapped = jax.vmap(function, (None, 0, 0)) if layout.block > 1 else _of_one(function)
    if layout.per_device > 1 and layout.devices[0].platform == "cpu":
        mapped = _in_turn(mapped, layout.per_device // layout.block, in_place)
    if len(layout.devices) == 1:
        return mapped
    agents, same = PartitionSpec("agents"), PartitionSpec()
    return jax.shard_map(
        mapped,
        mesh=layout.mesh,
        in_specs=(same, agents, agents),
        out_specs=agents,
        check_vma=False,
    )


def _in_turn(function: Callable, blocks: int, in_place: bool) -> Callable:
    """Takes blocks of agents one after another, in one program whatever their number."""

    def mapped(shared, *own):
        block = jax.tree.map(lambda x: x[: x.shape[0] // blocks], own)
        shapes = jax.eval_shape(function, shared, *block)
        # Without typed keys: to those who look for keys used twice, a part stands for the whole.
        apart = lambda x: x.reshape(blocks, x.shape[0] // blocks, *x.shape[1:])
        own = jax.tree.map(lambda x: apart(plain(x)), own)
        empty = lambda x: jnp.zeros((blocks, *x.shape), x.dtype)
        results = jax.tree.map(lambda x: empty(jax.eval_shape(plain, x)), shapes)
        if in_place:
            results = (own[-1], *results[1:])

        def body(i, results):
            given = (*own[:-1], results[0]) if in_place else own
            take = lambda x, like: like_key(jax.lax.dynamic_index_in_dim(x, i, 0, False), like)
            put = lambda x, one: jax.lax.dynamic_update_index_in_dim(x, plain(one), i, 0)
            done = function(shared, *jax.tree.map(take, given, block))
            return jax.tree.map(put, results, done)

        # The barrier keeps a loop of one trip from being taken apart, and rounded differently.
        count = jax.lax.optimization_barrier(jnp.int32(blocks))
        results = jax.lax.fori_loop(0, count, body, results)
        join = lambda x, like: like_key(x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), like)
        return jax.tree.map(join, results, shapes)

    return mapped


def _of_one(function: Callable) -> Callable:
    """Takes the agent axis off and puts it back: vmap would turn branches into selections."""

    def mapped(shared, *own):
        own = jax.tree.map(lambda x: x[0], own)
        return jax.tree.map(lambda x: x[None], function(shared, *own))

    return mapped
