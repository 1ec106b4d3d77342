"""A configuration on devices, and its two programs: one starts all trials, another takes them all
one point further.

Trials are mapped over devices with shard_map, so that a loop whose length depends on data makes no
device wait for another; a device vmaps its trials, on a CPU some at a time. A device with a single
trial runs exactly what `make_train(config)(key)` runs.
"""

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import envs
from algorithms import parts
from algorithms.launch.engine import devices, hosts, progress, settings
from algorithms.launch.engine.devices import Layout, check_backend, like_key, plain
from algorithms.launch.engine.errors import UserError

SWITCHES = {  # of jax, which have to be off, and why
    "jax_disable_jit": "a run is a compiled program; for a debugger, make_train(config)(key) of a "
    "few steps works without compiling",
    "jax_debug_infs": "infinite settings switch parts off; JAX_DEBUG_NANS works",
}


@parts.with_usual_jax
def make_environment(module: Any, config: Any) -> tuple[Any, Any, parts.Plan]:
    """The environment, its parameters as arrays and the plan, once the algorithm has agreed.

    A `train` without a plan has config.num_evals points; updates and steps are 0 for unknown.

    Raises:
      UserError: `envs.make` or `make_train` refuse the settings, jax has no device, or one of
        its SWITCHES is on.
    """
    check_backend()
    for switch, why in SWITCHES.items():
        if getattr(jax.config, switch):
            raise UserError(f"{switch} is on: leave {switch.upper()} out; {why}")
    try:
        env, env_params = envs.make(config.env, **dict(config.env_settings))
        train = module.make_train(config, env, env_params)
    except ValueError as error:
        raise UserError(str(error)) from error
    env_params = jax.tree.map(lambda x: np.asarray(x, jnp.result_type(x)), env_params)
    return env, env_params, getattr(train, "plan", parts.Plan(config.num_evals, 0, 0))


def initial_state(module: Any, config: Any) -> Any:
    """Shapes and dtypes of the state of one trial."""
    silent = config.replace(eval_at_start=False)
    start = lambda rng: parts.first_state(module.make_train(silent), rng)
    return jax.eval_shape(start, jax.eval_shape(lambda: jax.random.key(0)))


class Shared(NamedTuple):
    """Arguments of the programs that all trials share."""

    env_params: Any
    learn: Any  # bool: False only evaluates
    blocks: Any  # of trials that a device computes, int32; of use where it takes them in turn


class Programs(NamedTuple):
    """What runs on the devices, compiled. Metrics have the axes (padded, 1)."""

    start: Any  # (shared, configs, keys) -> states; None for a run that has started already
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
    """Compiles both programs, or only `advance` when the run has started already.

    The start is compiled while `advance` is traced, lowered and compiled. It does not evaluate: the
    point before training is made by `advance`, without learning.

    Args:
      config: the algorithm's Config; of its floats only the shape of a batch is used.
      env, env_params: of `envs.make`. The parameters are arguments of the programs, as they are in
        the algorithm's own jit: constants would be folded, and other numbers come out.
      start: whether to compile `start`.
    """
    if isinstance(module, parts.Split):
        module = module.on(layout.across, layout.axes)

    def first(shared, config, rng):
        silent = config.replace(eval_at_start=False)
        return parts.first_state(module.make_train(silent, env, shared.env_params), rng)

    def one_point(shared, config, state):
        return module.make_train(config, env, shared.env_params)(None, state, 1, shared.learn)

    sharded = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout.sharding("trials"))
    leaf = jax.ShapeDtypeStruct((layout.padded,), jnp.float32)
    configs = jax.tree.map(lambda _: sharded(leaf), config)
    keys = sharded(jax.eval_shape(lambda: jax.random.split(jax.random.key(0), layout.padded)))
    shared = layout.share(Shared(env_params, True, np.int32(1)))
    # Named, or else XLA puts what is empty (some physics states have such arrays) on all devices.
    places = layout.of_states
    blocks = lambda shared: shared.blocks
    beginning = jax.jit(over_trials(first, layout, blocks=blocks), out_shardings=places)
    starting = beginning.trace(shared, configs, keys)
    there = lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)
    known = starting.out_info
    states = jax.tree.map(there, known, jax.tree.broadcast(places, known))
    whole = over_trials(one_point, layout, in_place=True, blocks=blocks)
    spread = places, layout.sharding("trials")
    advancing = jax.jit(whole, donate_argnums=2, out_shardings=spread)
    with ThreadPoolExecutor(1) as pool:
        compiling = pool.submit(parts.usual_jax()(starting.lower().compile)) if start else None
        with parts.asked_for(parts.changed(config)):
            advance = advancing.trace(shared, configs, states).lower().compile()
    return Programs(compiling.result() if compiling else None, advance)


@jax.jit
@jax.vmap
def is_finite(tree: Any) -> jax.Array:
    """Whether all floats in a tree of trials are finite, (trials,)."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in leaves] or [True]))


@jax.jit
@jax.vmap
def largest(x: jax.Array) -> jax.Array:
    """The size of the largest number in an array of trials, (trials,)."""
    return jnp.abs(x.astype(jnp.float32)).max()


@functools.partial(jax.jit, static_argnums=1)
def largest_loss(x: jax.Array, dtype: str) -> jax.Array:
    """By how much a dtype changes numbers in an array of trials at most, (trials,)."""
    exact = x.astype(jnp.float32)
    return largest(exact - exact.astype(dtype).astype(jnp.float32))


def over_trials(
    function: Callable, layout: Layout, in_place: bool = False, blocks: Callable | None = None
) -> Callable:
    """The function (shared, *own) of one trial as a function of all, with leading axes on `own`.

    Args:
      function: of one trial.
      layout: of the trials.
      in_place: it takes states and gives (states, metrics), and the new states take the memory of
        the old ones. Without, it gives states.
      blocks: of `shared`, how many blocks of its trials a device computes; by default all.
    """
    mapped = jax.vmap(function, (None, 0, 0)) if layout.block > 1 else _of_one(function)
    if layout.per_device > 1 and layout.devices[0].platform == "cpu":
        mapped = in_turn(mapped, layout.per_device // layout.block, in_place, blocks)
    if len(layout.devices) == 1:
        return mapped
    trials, same, states = PartitionSpec("trials"), PartitionSpec(), layout.specs
    sharded = functools.partial(
        jax.shard_map,
        mesh=layout.mesh,
        in_specs=(same, trials, states if in_place else trials),
        out_specs=(states, trials) if in_place else states,
        check_vma=False,
    )
    return _without_empty(mapped, sharded)


def _without_empty(function: Callable, sharded: Callable) -> Callable:
    """sharded(function) for arguments of which some are empty, as in some physics' states.

    jaxlib 0.11 ends with a segmentation fault on empty arguments, so they are made inside.
    """

    def mapped(*own):
        filled = lambda x: x if x.size else jnp.zeros([n or 1 for n in x.shape], x.dtype)

        def inside(*parts):
            shape = lambda part, x: [n and m for n, m in zip(x.shape, part.shape)]
            empty = lambda part, x: part if x.size else jnp.zeros(shape(part, x), x.dtype)
            return function(*jax.tree.map(empty, parts, own))

        return sharded(inside)(*jax.tree.map(filled, own))

    return mapped


def in_turn(
    function: Callable, blocks: int, in_place: bool, counted: Callable | None = None
) -> Callable:
    """Takes blocks of trials one after another, in one program whatever their number.

    Args:
      blocks: that the arguments have.
      counted: of `shared`, how many of them are computed; by default all.
    """

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
            take = lambda x: jax.lax.dynamic_index_in_dim(x, i, 0, False)
            put = lambda x, one: jax.lax.dynamic_update_index_in_dim(x, plain(one), i, 0)
            # With i, because XLA would take what is the same in all trips out of a loop of one.
            _, ours = jax.lax.optimization_barrier((i, jax.tree.map(take, given)))
            done = function(shared, *jax.tree.map(like_key, ours, block))
            return jax.tree.map(put, results, done)

        # The barrier keeps a loop of one trip from being taken apart, and rounded differently.
        every = lambda _: jax.lax.optimization_barrier(jnp.int32(blocks))
        count = (counted or every)(shared)
        results = jax.lax.fori_loop(0, count, body, results)
        join = lambda x, like: like_key(x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]), like)
        return jax.tree.map(join, results, shapes)

    return mapped


def _of_one(function: Callable) -> Callable:
    """Takes the trial axis off and puts it back: vmap would turn branches into selections."""

    def mapped(shared, *own):
        own = jax.tree.map(lambda x: x[0], own)
        return jax.tree.map(lambda x: x[None], function(shared, *own))

    return mapped


# --- a configuration on devices --------------------------------------------------------------

SPARE = 0.1  # of the memory, for what the compiler does not know of
SPARE_TRIALS = 0.25  # a share of trials computed in vain, rather than compile another program
EXCESS = 0.05  # of total_timesteps, from which on a longer plan is warned of


class Trainer:
    """A configuration on devices: its environment, layout and programs.

    Chunks of one size use the same, and so do stages that it has room for.
    """

    def __init__(self, module: Any, config: Any, num_trials: int, view: progress.Progress):
        self.module, self.config, self.view = module, config, view
        self.name = f"{settings.algorithm_name(module)} on {settings.env_name(config)}"
        devices.use_compilation_cache()
        with view.timed("import"):  # of the environment's library
            self.env, self.host_params, self.plan = make_environment(module, config)
        self.axes: Any = None
        if devices.num_shards(module) > 1:
            self.axes = devices.axes_of(module, config, self.env, self.host_params)
        view.quiet |= not hosts.is_first()
        self.settled = False  # whether its layout is one that trials are trained with
        self.arrange(num_trials)

    def arrange(self, num_trials: int, block: int | None = None) -> None:
        """Chooses devices for so many trials at once; `block` as of `devices.arrange`."""
        self.programs: Programs | None = None
        self.layout = self.layout_of(num_trials, block)

    def layout_of(self, num_trials: int, block: int | None = None) -> devices.Layout:
        """What `arrange` chooses."""
        own = getattr(self.module, "block", None)  # a population fills a core by itself
        layout = devices.arrange(num_trials, block or own, devices.num_shards(self.module))
        return layout._replace(axes=self.axes)

    def suits(self, num_trials: int, block: int) -> bool:
        """Whether with blocks of this size devices compute at most SPARE_TRIALS in vain."""
        share = -(-num_trials // (jax.device_count() // self.layout.across))
        return self.layout_of(num_trials, block).per_device <= (1.0 + SPARE_TRIALS) * share

    def compile(self, start: bool) -> None:
        """Compiles the programs that are missing; `start`: also that of new trials."""
        if self.programs is None or (start and self.programs.start is None):
            self.programs = compile_programs(
                self.module, self.config, self.env, self.host_params, self.layout, start
            )

    @property
    def compiled(self) -> Programs:
        """What `compile` has made."""
        if self.programs is None:
            raise RuntimeError(f"{self.name} is not compiled")
        return self.programs

    @property
    def bytes_per_device(self) -> int:
        """What the compiled programs take of a device's memory, with their trials."""
        return self.compiled.bytes_per_device

    def check_capacity(self, advice: str) -> None:
        """Refuses programs that do not fit, before anything runs; `{fewer}` trials would."""
        needed, limit = self.bytes_per_device, usable_capacity(self.layout)
        if needed > limit and self._is_least:
            raise self._too_large(limit)
        if needed > limit:
            raise UserError(
                f"{self.layout.num_trials} trials need {in_words(needed)} of each device's memory "
                f"and may take {in_words(limit)}: {advice.format(fewer=self._fewer(limit))}"
            )

    def again(
        self, num_trials: int, at_most: int | None, limit: int, start: bool
    ) -> tuple["Trainer", list[range]]:
        """A trainer for other trials of this configuration, and their chunks, as of `fit`.

        It is this one where its programs hold so many. Its block of trials is kept if it `suits`.
        """
        if not self.settled:
            return self, self.fit(num_trials, at_most, limit, start)
        at_once, block = min(at_most or num_trials, num_trials), self.layout.block
        fits, whole = self.suits(at_once, block), self.layout._replace(num_trials=num_trials)
        least = self.layout_of(num_trials, block).per_device
        if fits and self.programs and at_once == num_trials <= whole.padded and whole.used <= least:
            self.compile(start)
            return self, [range(num_trials)]
        other = Trainer(self.module, self.config, num_trials, self.view)
        return other, other.fit(num_trials, at_most, limit, start, block if fits else None)

    def fit(
        self,
        num_trials: int,
        at_most: int | None,
        limit: int,
        start: bool,
        block: int | None = None,
    ) -> list[range]:
        """Compiles for as many trials at once as the memory takes. Returns the chunks of them.

        Args:
          num_trials: altogether.
          at_most: at once, whatever the memory takes.
          limit: bytes of each device.
          start: as of `compile`.
          block: as of `devices.arrange`, for all trials at once.

        Raises:
          UserError: not even one trial on each device fits.
        """
        at_once = min(at_most or num_trials, num_trials)
        while True:
            own, chunks = self._cut(num_trials, at_once, block)
            self.arrange(len(chunks[0]), own)
            self.settled = True
            self.compile(start)
            if self.bytes_per_device <= limit:
                return chunks
            if self._is_least:
                raise self._too_large(limit)
            at_once = self._fewer(limit)

    @property
    def _is_least(self) -> bool:
        """Whether no device could hold less: of one trial, and of it as few shards as can be."""
        layout = self.layout
        alone = layout.padded == 1 or layout.across == devices.num_shards(self.module)
        return layout.per_device == 1 and alone

    def _too_large(self, limit: int) -> UserError:
        """The error of a device that cannot hold a single trial."""
        return UserError(
            f"{self.name}: a trial needs {in_words(self.bytes_per_device)} and may take "
            f"{in_words(limit)} of a device's memory: fewer num_envs, a smaller buffer or "
            "network would do"
        )

    def _cut(self, num_trials: int, at_once: int, block: int | None) -> tuple[int, list[range]]:
        """Chunks of whole blocks, and the block: that of all trials, so that the numbers agree.

        Fewer trials at once than such a block on each device make a smaller one.
        """
        self.arrange(num_trials, block)
        block, count = self.layout.block, jax.device_count() // self.layout.across
        if at_once >= num_trials:
            return block, [range(num_trials)]
        block = max(1, min(block, at_once // count))
        size = max(at_once // (block * count) * block * count, min(at_once, block * count))
        return block, devices.cut(num_trials, size)

    def _fewer(self, limit: int) -> int:
        """Trials at once that should fit where these do not."""
        layout = self.layout
        if layout.per_device == 1:  # the others' devices then share its shards
            return layout.padded // 2
        share = int(layout.per_device * limit / self.bytes_per_device)
        each = max(1, min(share, layout.per_device - 1))
        return each * (len(layout.devices) // layout.across)


def usable_capacity(layout: devices.Layout) -> int:
    """Bytes that programs may take of each device; CPU devices share the machine's memory."""
    device = layout.devices[0]
    sharing = jax.local_device_count() if device.platform == "cpu" else 1
    return hosts.from_first(lambda: int((1.0 - SPARE) * parts.device_capacity(device) / sharing))


def in_words(number: float) -> str:
    """Bytes for people."""
    for unit, letters in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= unit:
            return f"{number / unit:.3g} {letters}"
    return f"{number:.0f} B"


# --- how long it is ---------------------------------------------------------------------------


def length(plan: parts.Plan) -> str:
    """A plan's steps and updates for people; empty where they are unknown."""
    if not plan.updates:
        return ""
    return f"{plan.steps:,} steps in {plan.updates:,} update{'s' * (plan.updates > 1)}"


def excess(config: Any, plan: parts.Plan, rounds: bool = False) -> str:
    """A hint if a plan is longer than `total_timesteps` by more than EXCESS; else "".

    Args:
      rounds: its points are the rounds of a population, 2 or more.
    """
    name, fewest = ("pbt", 2) if rounds else ("num_evals", 1)
    total, most = config.total_timesteps, (1.0 + EXCESS) * config.total_timesteps
    if plan.steps <= most:
        return ""
    steps = plan.steps // plan.updates
    updates = -(-total // steps)
    better = [n for n in range(fewest, plan.points) if -(-updates // n) * n * steps <= most]
    sizes = " or ".join(name for name in ("num_envs", "num_steps") if hasattr(config, name))
    hint = f"an update takes {steps:,} steps, fewer {sizes} would come closer"
    if better:
        hint = f"every point takes as many updates, {name}={better[-1]} would come closer"
    more = f"{100 * (plan.steps / total - 1):,.0f} % more"
    return f"total_timesteps={total} makes {plan.steps:,} steps, {more}: {hint}"
