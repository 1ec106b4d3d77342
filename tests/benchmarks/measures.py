"""What the jobs of accelerator.py measure: parts, each with rows of its own.

A part has a name, the table of its rows, the libraries that it needs, `rows(args)`, which measures,
and `program(args)`: a function and the shapes of its arguments, to compile for an absent device.
With `args.tiny` it measures a thousandth, which only shows that it runs.
"""

import argparse
import dataclasses
import os
import re
import shutil
import sys
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, NamedTuple
from unittest import mock

# The process that starts the jobs leaves the accelerator alone, so what needs jax is imported late.
from tests.benchmarks import speed
from tests.benchmarks.cells import Cell
from tests.benchmarks.speed import REPLAY, Case, Program

RUNS = 5  # timed runs of each program
FIRST_SEED = 10_000  # of published runs
MINATAR_STEPS = 10_000_000
KERNELS = 15
MODULES = {"playground": "mujoco_playground"}  # libraries whose modules have another name


def libraries(env: str, algorithm: str = "") -> tuple[str, ...]:
    """Modules of optional libraries."""
    library, slash, _ = env.partition("/")
    found = (MODULES.get(library, library),) if slash else ()
    return (*found, "mctx") if algorithm == "alphazero" else found


# --- cases ------------------------------------------------------------------------------------

STEPS = "steps"  # in place of an algorithm: random actions in playground
DTYPES, BF16 = ("float32", "bfloat16"), (("compute_dtype", "bfloat16"),)
GRU = (("cell", "gru"), ("memory_size", 128), ("hidden_sizes", (128,)))


def cartpole(n: int, updates: int, name: str = "", **settings: Any) -> Case:
    """PPO's, with 4 environments of 128 steps."""
    more = tuple(settings.items())
    return Case(name or f"ppo-cartpole-{n}", "CartPole-v1", 4, 128, updates, n, settings=more)


def replay(algorithm: str, env: str, num_envs: int, n: int, updates: int) -> Case:
    """One of a file with a replay buffer."""
    name = f"{algorithm}-{env.partition('-')[0].lower()}-{n}"
    return Case(name, env, num_envs, 1, updates, n, algorithm=algorithm)


def large(network: str, env: str, dtype: str, *settings: tuple[str, Any]) -> Case:
    """PPO's with a large network, 1024 environments of 32 steps."""
    settings += BF16 if dtype == "bfloat16" else ()
    return Case(f"ppo-{network}-{dtype}-1", env, 1024, 32, 20, settings=settings)


BREAKOUT = "Breakout-MinAtar"
COMPARED = (  # with other kits that have the same case
    *(cartpole(n, updates) for n, updates in ((1, 100), (64, 100), (1024, 40), (4096, 20))),
    # for 1024, neither this kit nor rejax has room in 139 GB
    *(Case(f"ppo-breakout-{n}", BREAKOUT, 64, 128, 10, n) for n in (1, 64, 256)),
    *(
        Case(f"pqn-breakout-{n}", BREAKOUT, 16, 128, updates, n, algorithm="pqn")
        for n, updates in ((1, 20), (64, 20), (1024, 4))
    ),
    *(replay("sac", "Pendulum-v1", 1, *size) for size in ((1, 2000), (64, 2000), (1024, 600))),
    *(
        replay(*names, n, updates)
        for names in (("dqn", "CartPole-v1", 10), ("td3", "Pendulum-v1", 1))
        for n, updates in ((1, 4000), (64, 4000), (1024, 2000))
    ),
    *(large("wide", "CartPole-v1", x, ("hidden_sizes", (1024, 1024))) for x in DTYPES),
    *(large("convolution", BREAKOUT, x, ("conv_layers", "impala")) for x in DTYPES),
    Case("ppo-brax-ant", "brax/ant", 4096, 16, 10),
    Case("ppo-craftax", "craftax/Symbolic", 1024, 64, 10),
)
OTHERS = (
    cartpole(1, 100, "ppo-cartpole-1-kl", target_kl=0.02),
    Case("ppo_rnn-gru-1", "CartPole-v1", 4, 128, 40, algorithm="ppo_rnn", settings=GRU),
    Case("alphazero-1", "pgx/tic_tac_toe", 64, 16, 10, algorithm="alphazero"),
    *(
        Case(f"steps-{task}-2048", f"playground/{task}", 2048, 100, 2, algorithm=STEPS)
        for task in ("CheetahRun", "WalkerRun")
    ),
)
CASES = {case.name: case for case in COMPARED + OTHERS}


def shrunk(case: Case) -> Case:
    """A thousandth of a case: fewer trials, then environments (at least four), then updates.

    With a replay buffer it has fewer trials alone, and stays long enough to learn.
    """
    trials, left = _divided(case.num_seeds, 1000.0)
    if case.algorithm in REPLAY:
        return dataclasses.replace(case, num_seeds=trials, updates=min(case.updates, 1200))
    num_envs, left = _divided(case.num_envs, left, least=4)
    updates, _ = _divided(case.updates, left)
    return dataclasses.replace(case, num_seeds=trials, num_envs=num_envs, updates=updates)


def _divided(number: int, by: float, least: int = 1) -> tuple[int, float]:
    """A number divided as far as it goes, and what is left of the divisor."""
    part = max(min(least, number), int(number / by))
    return part, max(1.0, by * part / number)


class Lowered(NamedTuple):
    """A program before XLA."""

    lowered: Any
    args: tuple

    def compile(self, options: dict[str, Any] | None = None) -> Program:
        start = time.perf_counter()
        compiled = self.lowered.compile(options)
        return Program(compiled, self.args, time.perf_counter() - start)


def lower(case: Case) -> Lowered:
    """This kit's training of all trials, or its steps of an environment."""
    import jax

    if case.algorithm == STEPS:
        function, args = steps_of(case), (jax.random.key(0),)
    else:
        function, args = speed.all_trials(*speed.our_settings(case), case.num_seeds)
    return Lowered(jax.jit(function).lower(*args), args)


def steps_of(case: Case) -> Callable:
    """run(key): random actions in environments of playground, without restarts."""
    import jax
    from mujoco_playground import registry

    settings = {"impl": "jax", **dict(case.settings)}
    env = registry.load(case.env.partition("/")[2], config_overrides=settings)

    def step(state, key):
        action = jax.random.uniform(key, (case.num_envs, env.action_size), minval=-1.0)
        state = jax.vmap(env.step)(state, action)
        return state, state.reward.sum()

    def run(key):
        keys = jax.random.split(key, case.num_envs + case.updates * case.num_steps)
        state = jax.vmap(env.reset)(keys[: case.num_envs])
        state, rewards = jax.lax.scan(step, state, keys[case.num_envs :])
        return state.data.qpos, rewards

    return run


@dataclasses.dataclass(frozen=True)
class OfCase:
    """A part that measures a case."""

    case: Case

    @property
    def name(self) -> str:
        return self.case.name

    @property
    def needs(self) -> tuple[str, ...]:
        return libraries(self.case.env, self.case.algorithm)

    def sized(self, args: argparse.Namespace) -> Case:
        return shrunk(self.case) if args.tiny else self.case

    def program(self, args: argparse.Namespace) -> tuple[Callable, tuple]:
        import jax

        from tests.benchmarks import launches

        if self.case.algorithm == STEPS:
            return steps_of(self.case), (jax.eval_shape(lambda: jax.random.key(0)),)
        training = launches.of_config(*speed.our_settings(self.case))
        return launches.side_by_side(training, self.case.num_seeds)


# --- a program with a change ------------------------------------------------------------------


class Change(NamedTuple):
    """A change of a program."""

    options: dict[str, Any]  # XLA's
    lower: Callable[[Case], Lowered] | None = None  # the changed program, if it is another one


def with_settings(*more: tuple[str, Any]) -> Change:
    return Change({}, lambda case: lower(dataclasses.replace(case, settings=case.settings + more)))


def skipping(case: Case) -> Lowered:
    """Gradient steps before learning starts are left out, as on a CPU; a GPU waits for the host."""
    import jax

    from algorithms.parts import loops

    as_on_cpu = types.SimpleNamespace(platform=lambda: "cpu", SHORT=loops.loops.SHORT)
    jax.clear_caches()  # else jax takes what it has traced before
    with mock.patch.object(loops, "loops", as_on_cpu):
        return lower(case)


def buffers(*more: str) -> dict[str, Any]:
    """More in CUDA graphs than by default. As a compiler option "+WHILE" is no valid value."""
    default = ("FUSION", "CUBLAS", "CUBLASLT", "CUSTOM_CALL", "CUDNN", "DYNAMIC_SLICE_FUSION")
    return {"xla_gpu_enable_command_buffer": ",".join(default + more)}


UNROLLED = {"xla_gpu_command_buffer_unroll_loops": True}
CHANGES = {
    "+WHILE": Change(buffers("WHILE")),
    "+WHILE,+CONDITIONAL": Change(buffers("WHILE", "CONDITIONAL")),
    "+WHILE, unrolled": Change(buffers("WHILE") | UNROLLED),
    "double buffering": Change({"xla_gpu_enable_while_loop_double_buffering": True}),
    "concurrent regions": Change({"xla_gpu_command_buffer_scheduling_mode": "CONCURRENT_REGIONS"}),
    "bfloat16": with_settings(*BF16),
    "warp": with_settings(("impl", "warp")),
    "no discarded steps": Change({}, skipping),
}


@dataclasses.dataclass
class Here:
    """A program of this process, timed as speed.py's workers are."""

    program: Program
    seconds: list[float] = dataclasses.field(default_factory=list)
    error: str | None = None

    def ask(self, command: str) -> float:
        return speed.run_seconds(self.program)


def difference(a: Any, b: Any) -> str:
    """The largest difference of two results, as a share of the largest number of its array."""
    import jax
    import numpy as np

    from algorithms.launch.engine.devices import plain

    def share(x: Any, y: Any) -> float:
        x, y = (np.asarray(plain(one)).astype(np.float64) for one in (x, y))
        if np.array_equal(x, y, equal_nan=True):
            return 0.0
        apart = np.abs(x - y)[~(np.isnan(x) & np.isnan(y))].max()  # NaN where one of them is
        return float(apart / max(np.nanmax(np.abs(x)), 1e-30))

    shares = jax.tree.leaves(jax.tree.map(share, a, b))
    return f"{np.max(shares):.1e}" if np.any(shares) else "none"


REFUSALS = ("While setting option", "No such compile option")


def compiled(*programs: tuple[Lowered, dict[str, Any]]) -> list[Any]:
    """Compiles programs side by side, each with its options. Where XLA refuses an option, its
    sentence is in the program's place."""
    import jax

    from algorithms.launch.engine import devices

    def one(program: tuple[Lowered, dict[str, Any]]) -> Program | str:
        try:
            return program[0].compile(program[1])
        except jax.errors.JaxRuntimeError as error:
            if not any(refusal in str(error) for refusal in REFUSALS):
                raise
            return str(error).partition("\n")[0]

    with ThreadPoolExecutor(min(len(programs), devices.num_cores())) as pool:
        return list(pool.map(one, programs))


@dataclasses.dataclass(frozen=True)
class Pair(OfCase):
    """A program and the same with a change, timed in turn; and how far their results differ."""

    change: str  # of CHANGES
    table: ClassVar = "gpu-pairs"

    @property
    def name(self) -> str:
        return f"{self.case.name}, {self.change}"

    def rows(self, args: argparse.Namespace) -> list[dict[str, str]]:
        import jax

        case, change = self.sized(args), CHANGES[self.change]
        plain = lower(case)
        changed = change.lower(case) if change.lower else plain
        programs = compiled((plain, {}), (changed, change.options))
        if isinstance(programs[1], str):  # by another version of XLA
            row = dict.fromkeys(("steps/s", "with the change", "times faster"), "-")
            return [{**row, "results differ by": programs[1], "compile": "-"}]
        # A first run, which is not timed
        results = [jax.block_until_ready(one.compiled(*one.args)) for one in programs]
        sides = [Here(program) for program in programs]
        speed.alternate(sides, 1 if args.tiny else RUNS)
        return [
            {
                "steps/s": speed.rate(case, sides[0]),
                "with the change": speed.rate(case, sides[1]),
                "times faster": speed.times_faster(sides[1], sides[0]),
                "results differ by": difference(*results),
                "compile": ", ".join(f"{program.compile_seconds:.0f} s" for program in programs),
            }
        ]


# --- others -----------------------------------------------------------------------------------


class Kernels(OfCase):
    """The operations of a case that take longest, by a profile."""

    table: ClassVar = "gpu-kernels"

    @property
    def name(self) -> str:
        return f"{self.case.name}, profile"

    def rows(self, args: argparse.Namespace) -> list[dict[str, str]]:
        from tests.benchmarks import hlo, operations

        case = self.sized(args)
        program = lower(case).compile()
        events = operations.profile(program.compiled, *program.args)
        costs = operations.costs(text := program.compiled.as_text(), events)
        whole = 1e6 * sum(cost.seconds for cost in costs) / case.updates
        found = operations.largest(costs, KERNELS, hlo.Places(text), case.updates)
        columns = ("operation", "loop", "function", "place", "runs of an update", "microseconds")
        shares = [f"{100 * float(row[-1]) / whole:.1f} %" for row in found]
        return [dict(zip(columns, row)) | {"share": x} for row, x in zip(found, shares)]


@dataclasses.dataclass(frozen=True)
class Precision:
    """The physics of an environment in jax's default precision and in full, and on the CPU.

    The setting `precision` of the environment chooses it; the kit's default is the full one. All
    start at the same states and take the same actions. States are positions and velocities.
    """

    name: str  # of the environment
    table: ClassVar = "gpu-precision"

    @property
    def needs(self) -> tuple[str, ...]:
        return libraries(self.name)

    def functions(self, precision: str = "highest") -> tuple[Callable, Callable, int]:
        """start(keys) -> states, run(states, actions) -> (steps, environments, numbers), and the
        size of an action."""
        import jax
        import jax.numpy as jnp

        import envs

        env, env_params = envs.make(self.name, precision=precision)
        reset = lambda key: env.reset_env(key, env_params)[1]
        move = lambda state, action: env.step_env(jax.random.key(0), state, action, env_params)[1]

        def step(states, actions):
            states = jax.vmap(move)(states, actions)
            return states, jnp.concatenate(env.drawn(states.inner)[1:], -1)

        run = lambda states, actions: jax.lax.scan(step, states, actions)[1]
        return jax.vmap(reset), run, env.num_actions

    def rows(self, args: argparse.Namespace) -> list[dict[str, str]]:
        import jax
        import numpy as np

        number, few, steps = (2, 2, 10) if args.tiny else (2048, 128, 200)
        start, _, size = self.functions()
        cpu, device = jax.devices("cpu")[0], jax.devices()[0]
        with jax.default_device(cpu):
            states = jax.jit(start)(jax.random.split(jax.random.key(0), number))
            actions = jax.random.uniform(jax.random.key(1), (steps, number, size), minval=-1)
        first = jax.tree.map(lambda x: x[:few], states), actions[:, :few]
        whole, lowered = (states, actions), []
        sides = ("default", device, whole), ("highest", device, whole), ("highest", cpu, first)
        for precision, place, given in sides:
            given = jax.device_put(given, place)
            run = self.functions(precision)[1]
            lowered.append(Lowered(jax.jit(run).lower(*given), given))
        programs = compiled(*((program, {}) for program in lowered))
        results = [np.asarray(program.compiled(*program.args))[:, :few] for program in programs]
        seconds = [[speed.run_seconds(one) for one in programs] for _ in range(2)]
        best = [min(taken) for taken in zip(*seconds)]
        rate = lambda environments, taken: f"{environments * steps / taken / 1e3:.1f}k"
        points = [point for point in (1, 10, 200) if point <= steps]
        apart = lambda x: [np.abs(x[i - 1] - results[2][i - 1]).max() for i in points]
        text = lambda x: ", ".join(f"{value:.1e}" for value in apart(x))
        return [
            {
                "steps/s": rate(number, best[0]),
                "in full precision": rate(number, best[1]),
                "on the CPU": rate(few, best[2]),
                "from the CPU's states after 1, 10, 200 steps": text(results[0]),
                "in full precision, too": text(results[1]),
            }
        ]

    def program(self, args: argparse.Namespace) -> tuple[Callable, tuple]:
        import jax
        import jax.numpy as jnp

        start, run, size = self.functions()
        states = jax.eval_shape(lambda: start(jax.random.split(jax.random.key(0), 2048)))
        return run, (states, jax.ShapeDtypeStruct((200, 2048, size), jnp.float32))


class OnAccelerator(speed.Worker):
    """On jax's own choice of a device, whose memory all sides share."""

    script = speed.__file__
    environment: ClassVar = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_ENABLE_COMPILATION_CACHE": "true",
    }


class Against(OfCase):
    """All trials of a case on one device, in turn with other kits that have the same case."""

    table: ClassVar = "gpu-speed"

    def rows(self, args: argparse.Namespace) -> list[dict[str, str]]:
        case, pythons = self.sized(args), {"this kit": sys.executable}
        if args.peer_python and "/" not in case.env and not case.settings:
            pythons["rejax"] = args.peer_python
            if args.purejaxrl and case.algorithm == "ppo":
                pythons["purejaxrl"] = args.peer_python
                os.environ["PUREJAXRL"] = args.purejaxrl
        sides = {name: OnAccelerator(name, case, 600, python) for name, python in pythons.items()}
        speed.alternate(list(sides.values()), 1 if args.tiny else 3)
        for worker in sides.values():
            worker.close()
        kit = sides["this kit"]
        if kit.error:
            raise RuntimeError(f"{case.name} {kit.error}")
        row = {"this kit, steps/s": speed.rate(case, kit)}
        for name in ("rejax", "purejaxrl"):
            side = sides.get(name)
            row[f"{name}, steps/s"] = speed.rate(case, side) if side else "-"
            row[f"times faster than {name}"] = speed.times_faster(kit, side) if side else "-"
        return [row]


@dataclasses.dataclass(frozen=True)
class Learned:
    """Seeds of a cell."""

    name: str
    cell: Cell
    library: str = ""  # of the environment, if it needs one
    peer: str = ""  # another kit, whose checkout a flag names
    at_once: int | None = None  # seeds that train side by side, if not all do
    table: ClassVar = "gpu-learning"

    @property
    def needs(self) -> tuple[str, ...]:
        if self.peer:
            return ("--peer-python", f"--{self.peer}")
        return (MODULES.get(self.library, self.library),) if self.library else ()

    def rows(self, args: argparse.Namespace) -> list[dict[str, Any]]:
        from tests.benchmarks import learning, peers

        cell = self.cell._replace(seeds=1) if args.tiny else self.cell
        if self.peer:
            folder, steps = getattr(args, self.peer), MINATAR_STEPS // (1000 if args.tiny else 1)
            return peers.train(cell, FIRST_SEED, (args.peer_python, folder, steps))
        place = args.runs / re.sub(r"\W+", "-", f"{args.job} {self.name}")
        if args.again:
            shutil.rmtree(place, ignore_errors=True)
        change, at_once = short if args.tiny else None, self.at_once or cell.seeds
        rows = []
        for i in range(0, cell.seeds, at_once):
            some = cell._replace(seeds=min(at_once, cell.seeds - i))
            rows += learning.train(some, FIRST_SEED + i, place / str(i), change)
        return rows

    def program(self, args: argparse.Namespace) -> tuple[Callable, tuple]:
        import jax
        import jax.numpy as jnp

        from tests.benchmarks import launches, learning, peers

        if self.peer:
            train = peers.trainer(self.cell.key, getattr(args, self.peer), MINATAR_STEPS)
            return jax.vmap(train), (jax.ShapeDtypeStruct((self.cell.seeds, 2), jnp.uint32),)
        training = launches.of_config(*learning.settings(self.cell))
        return launches.side_by_side(training, self.at_once or self.cell.seeds)


def short(config: Any) -> Any:
    """A Config of two short rollouts in four environments, without evaluation."""
    sizes = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2, "total_timesteps": 64}
    sizes |= {"learning_starts": 32, "buffer_size": 64, "batch_size": 2, "sequence_length": 4}
    sizes = {name: size for name, size in sizes.items() if hasattr(config, name)}
    return config.replace(**sizes, num_evals=1, num_eval_episodes=0, eval_at_start=False)
