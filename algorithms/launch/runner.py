"""`run` and `resume`: the loop over the points of the learning curve, and all around it."""

import contextlib
import functools
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms.launch import checkpoints, devices, progress
from algorithms.launch.checkpoints import Metrics, RunDir
from algorithms.launch.errors import UserError, unknown, warn

DRAW_SECONDS = 60.0  # between two drawings of the curve while the run goes on
GIF_CHOICES = ("never", "start", "end", "every")

# Ranges of float settings: {name: (condition in words, condition)}.
_UNIT = ("in [0, 1]", lambda x: (x >= 0) & (x <= 1))
_POSITIVE = ("above 0 (inf for never)", lambda x: x > 0)
_FINITE = ("that is finite", np.isfinite)
_NOT_NEGATIVE = ("0 or more", lambda x: (x >= 0) & np.isfinite(x))
FLOAT_RANGES = {
    "gamma": _UNIT,
    "gae_lambda": _UNIT,
    "tau": _UNIT,
    "learning_rate": _NOT_NEGATIVE,
    "ent_coef": _NOT_NEGATIVE,
    "vf_coef": _NOT_NEGATIVE,
    "clip_eps": _POSITIVE,
    "max_grad_norm": _POSITIVE,
    "target_kl": _POSITIVE,
    "eps_start": _UNIT,
    "eps_end": _UNIT,
    "exploration_fraction": _POSITIVE,
    "huber_delta": _POSITIVE,
    "priority_alpha": _NOT_NEGATIVE,
    "priority_beta": _UNIT,
    "priority_eps": _NOT_NEGATIVE,
    "v_min": _FINITE,
    "v_max": _FINITE,
    "kappa": ("above 0 and finite", lambda x: (x > 0) & np.isfinite(x)),
    "risk_level": _FINITE,
}


class Point(NamedTuple):
    """What a hook gets: hook(point)."""

    index: int  # number of the point; 0 is before training
    timestep: int
    metrics: Metrics  # of this point, (num_agents, ...)
    get_state: Callable[[], Any]  # the whole state on the host, leaves (num_agents, ...)
    run_dir: Path | None


class Result(NamedTuple):
    state: Any  # leaves (num_agents, ...), on the host
    metrics: Metrics  # (num_agents, points, ...)
    run_dir: Path | None
    objective: float  # to minimise: minus the mean return at the last point
    interrupted: bool = False  # stopped by Ctrl-C before the last point


class Options(NamedTuple):
    """What a run does beside training; kept in config.json, so that resuming goes on with it."""

    keep_states: bool = False
    track: bool = False
    one_run_per_seed: bool = False
    tensorboard: bool = False
    gif: str = "never"


class _Start(NamedTuple):
    """Where a session begins."""

    point: int = 0
    state: Any = None  # host arrays (num_agents, ...); None before the first point
    rows: Sequence[Metrics] = ()  # metrics (num_agents, ...) of the points so far
    resumed: bool = False


# --- what a Python user calls ----------------------------------------------------------------


def run(
    module: Any,
    config: Any,
    *,
    seed: int = 0,
    num_seeds: int = 1,
    run_dir: Path | str | None = None,
    root: Path | str = "runs",
    save: bool = True,
    hooks: Sequence[Callable[[Point], None]] = (),
    quiet: bool = True,
    import_seconds: float = 0.0,
    **options: Any,
) -> Result:
    """Trains num_seeds agents at once; agent i has the key jax.random.key(seed + i).

    Args:
      module: the algorithm's module.
      config: its Config.
      seed, num_seeds: which agents.
      run_dir: the directory to make; by default one named after the run, below `root`.
      save: False writes no files.
      hooks: called in turn at every point of the learning curve, after it was saved.
      quiet: show no progress.
      import_seconds: spent so far, for the closing line.
      **options: fields of `Options`.

    Raises:
      UserError: a setting that cannot work (among them the ValueErrors of `make_train`), or
        a run_dir that exists.
    """
    options = make_options(options)
    check_seeds(seed, num_seeds)
    seeds = range(seed, seed + num_seeds)
    view = progress.Progress(quiet, import_seconds)
    session = _Session(module, config, seeds, options, hooks, view)
    described = describe(module, config, seeds, options)
    if not save:
        if options != Options():
            raise UserError("save=False: keep_states, track, tensorboard and gif need files")
        return session.train(None, _Start())
    if run_dir is None:
        return session.train(RunDir.create_named(Path(root), described), _Start())
    return session.train(RunDir.create(Path(run_dir), described), _Start())


def resume(
    run_dir: Path | str,
    *,
    module: Any = None,
    env: Any = None,
    total_timesteps: int | None = None,
    point: int | str = "last",
    hooks: Sequence[Callable[[Point], None]] = (),
    quiet: bool = True,
    import_seconds: float = 0.0,
    **options: Any,
) -> Result:
    """Goes on with a run, to exactly the result that it would have had without the break.

    Args:
      run_dir: the run's directory.
      module: the algorithm, if it is not one of `algorithms`.
      env: the environment, if the run was made with an object in place of a name.
      total_timesteps: a larger number adds points of as many updates each. A schedule that
        depends on the total follows the new one from here on.
      point: "last", or the number of a point whose whole state was kept; what goes on from an
        earlier point is a new run in a directory of its own.
      hooks, quiet, import_seconds: as for `run`.
      **options: fields of `Options` that are to change.

    Raises:
      UserError: there is no such run or point, it is damaged, or a setting cannot work.
    """
    run_dir = RunDir.open(Path(run_dir))
    module = module or checkpoints.find_module(run_dir.algorithm)
    check_algorithm(module, run_dir)
    options = make_options(run_dir.description["options"] | options)
    config = run_dir.config(module.Config, env)
    kept = run_dir.points("state")
    if point != "last" and point not in kept:
        raise UserError(f"{run_dir.path} has no whole state of point {point}; it has {kept}")
    start = _Start(resumed=True)
    if kept:
        index = kept[-1] if point == "last" else point
        devices.use_cores(len(run_dir.seeds), config)
        devices.make_environment(module, config)
        state = run_dir.read(index, "state", devices.initial_state(module, config))
        start = _Start(index, state, tuple(run_dir.history(index).values()), True)
    notes = []
    if total_timesteps is not None and total_timesteps != config.total_timesteps:
        config, notes = extend(config, total_timesteps, start)
    seeds = range(run_dir.seeds[0], run_dir.seeds[-1] + 1)
    view = progress.Progress(quiet, import_seconds)
    session = _Session(module, config, seeds, options, hooks, view)
    described = describe(module, config, seeds, options)
    if kept and index != kept[-1]:
        run_dir = fork(run_dir, described, index)
    else:
        run_dir.describe(described)
    for note in notes:
        view.say(note)
    return session.train(run_dir, start)


def fork(run_dir: RunDir, described: dict[str, Any], last: int) -> RunDir:
    """A new run next to an old one, with that one's points up to the last."""
    forked = RunDir.create_named(run_dir.path.parent, described)
    files = [run_dir.file(p, "policy") for p in run_dir.points("policy") if p <= last]
    for file in [*files, run_dir.file(last, "state")]:
        checkpoints.write_whole(forked.checkpoints / file.name, file.read_bytes())
    return forked


def extend(config: Any, total: int, start: _Start) -> tuple[Any, list[str]]:
    """A configuration for more timesteps with as many updates to a point, and what to say."""
    if total < config.total_timesteps:
        raise UserError(
            f"total_timesteps={total} is less than the {config.total_timesteps} of the run: "
            "a run can only be made longer"
        )
    if not start.point:
        return config.replace(total_timesteps=total), []
    steps = int(start.rows[-1]["timestep"][0]) // start.point
    points = math.ceil(total / steps)
    notes = [f"now {points} points of {steps} timesteps each, {points * steps} in all"]
    schedules = [
        name
        for name in config.__dataclass_fields__
        if name.startswith("anneal_") and getattr(config, name)
    ]
    if schedules and points != config.num_evals:
        notes.append(
            f"{', '.join(schedules)}: the schedule depends on the total and follows the new one "
            "from here on; a run that was so long from the beginning would be another"
        )
    return config.replace(total_timesteps=points * steps, num_evals=points), notes


# --- settings --------------------------------------------------------------------------------


def make_options(values: dict[str, Any]) -> Options:
    """Options from keywords; unknown ones are refused."""
    for name in values:
        if name not in Options._fields:
            raise unknown("option", name, Options._fields)
    options = Options(**values)
    if options.gif not in GIF_CHOICES:
        raise UserError(f"gif={options.gif!r}: choose one of {', '.join(GIF_CHOICES)}")
    if options.one_run_per_seed and not (options.track or options.tensorboard):
        raise UserError("one_run_per_seed=True is about trackers: use it with track or tensorboard")
    return options


def check_seeds(seed: int, num_seeds: int) -> None:
    if num_seeds < 1:
        raise UserError(f"num_seeds={num_seeds}: give 1 or more")
    if seed < 0 or seed + num_seeds > 2**32:
        raise UserError(f"seed={seed}: seeds go from 0 to {2**32 - 1}")


def check_floats(config: Any) -> None:
    """Refuses floats that cannot work; they are concrete only here."""
    for name in checkpoints.float_fields(config):
        value = np.asarray(getattr(config, name), np.float64)
        words, allowed = FLOAT_RANGES.get(name, ("a number", lambda x: x == x))
        if not np.all(allowed(value)):
            raise UserError(f"{name}={getattr(config, name)}: give a number {words}")


def check_algorithm(module: Any, run_dir: RunDir) -> None:
    if run_dir.algorithm != algorithm_name(module):
        raise UserError(
            f"{run_dir.path} is a run of {run_dir.algorithm}, not of {algorithm_name(module)}: "
            f"use {run_dir.algorithm}.py"
        )


def algorithm_name(module: Any) -> str:
    """The name of the algorithm's file, also when it is the program that was started."""
    return Path(module.__file__).stem


def describe(module: Any, config: Any, seeds: range, options: Options) -> dict:
    """What config.json holds."""
    return {
        "algorithm": algorithm_name(module),
        "seed": seeds[0],
        "num_seeds": len(seeds),
        "options": options._asdict(),
        "config": checkpoints.config_to_json(config),
    }


# --- a session -------------------------------------------------------------------------------


class _Session:
    """One process's part of a run: devices and programs, and the loop over points."""

    def __init__(
        self,
        module: Any,
        config: Any,
        seeds: range,
        options: Options,
        hooks: Sequence[Callable[[Point], None]],
        view: progress.Progress,
    ):
        self.module, self.config, self.seeds, self.options = module, config, seeds, options
        self.hooks, self.view = hooks, view
        self.name = f"{algorithm_name(module)} on {checkpoints.env_name(config)}"
        check_floats(config)
        devices.use_compilation_cache()
        if not devices.use_cores(len(seeds), config):
            view.say("jax is in use already: the devices that it has are used")
        with view.timed("import"):  # of the environment's library
            self.env, env_params = devices.make_environment(module, config)
        if options.gif != "never":
            from algorithms.launch import render

            render.check_drawable(config)
        self.layout = devices.arrange(len(seeds))
        self.env_params = self.layout.share(env_params)
        configs = jax.tree.map(lambda x: np.full(len(seeds), x, np.float32), config)
        self.configs = self.layout.put(configs)

    def train(self, run_dir: RunDir | None, start: _Start) -> Result:
        """From the start to the last point, or to Ctrl-C."""
        record = _Record(self, run_dir, start)
        self._announce(start, f", in {run_dir.path}" if run_dir else "")
        if start.point >= self.config.num_evals:
            self.view.say("this run is finished; a larger total_timesteps would go on with it")
            record.draw()
            return record.result(start.point, start.state)
        with self.view.timed("save"):
            record.open(start)
        with self.view.timed("compile"):
            programs = in_background(self._compile, start.state is None)
        with Interrupt() as interrupt:
            point, states = self._loop(programs, start, record, interrupt)
        with self.view.timed("save"):
            record.close()
        result = record.result(point, self.layout.get(states))
        self.view.close(point, result.metrics, result.run_dir)
        return result

    def _announce(self, start: _Start, place: str) -> None:
        agents, used = len(self.seeds), len(self.layout.devices)
        seeds = f"1 agent (seed {self.seeds[0]})"
        if agents > 1:
            seeds = f"{agents} agents (seeds {self.seeds[0]} to {self.seeds[-1]})"
        where = f"{used} {self.layout.devices[0].platform} device{'s' * (used > 1)}"
        points = f"points {start.point} to {self.config.num_evals}"
        self.view.say(f"{self.name}: {seeds} on {where}, {points}{place}")
        self.view.begin(start.point, self.config.num_evals, agents)

    def _compile(self, start: bool) -> devices.Programs:
        return devices.compile_programs(
            self.module, self.env, self.env_params, self.configs, self.layout, start
        )

    def _loop(
        self,
        programs: devices.Programs,
        start: _Start,
        record: "_Record",
        interrupt: "Interrupt",
    ) -> tuple[int, Any]:
        """Returns the number of the last point and the states on the devices."""
        point = start.point
        if start.state is None:
            keys = jax.numpy.stack([jax.random.key(seed) for seed in self.seeds])
            states = self._execute(programs.start, self.layout.put(keys), point, record)
        else:
            states = self.layout.put(start.state)
        while point < self.config.num_evals and not interrupt.asked:
            point += 1
            states = self._execute(programs.advance, states, point, record)
        return point, states

    def _execute(self, program: Callable, argument: Any, point: int, record: "_Record") -> Any:
        """A program, and everything that happens at the point it leads to. Returns the states."""

        def finished():
            return jax.block_until_ready(program(self.env_params, self.configs, argument))

        with self.view.timed("run"):
            states, metrics = in_background(finished)
        metrics = self.layout.get(metrics)
        row = {name: values[:, 0] for name, values in metrics.items() if values.shape[1]}
        timestep = int(row["timestep"].max()) if row else 0
        get_state = functools.cache(lambda: self.layout.get(states))
        seen = Point(point, timestep, row, get_state, record.path)
        with self.view.timed("save"):
            record.add(seen)
        self.view.point(point, row)
        for hook in self.hooks if row else ():
            hook(seen)
        return states


class _Record:
    """What remains of a run: metrics and, with a directory, files, trackers and pictures."""

    def __init__(self, session: _Session, run_dir: RunDir | None, start: _Start):
        self.session, self.run_dir, self.options = session, run_dir, session.options
        self.path = run_dir and run_dir.path
        self.rows = list(start.rows)
        self.trackers: list[Any] = []
        self.drawn = time.perf_counter()

    def open(self, start: _Start) -> None:
        """Brings the directory to where the session starts, and opens the trackers."""
        if not self.run_dir:
            return
        session, options = self.session, self.options
        if start.resumed:
            self.run_dir.rewind(-1 if start.state is None else start.point)
        found = checkpoints.versions(session.module, session.layout)
        changes = self.run_dir.write_versions(found, start.point)
        if changes:
            warn(f"the last digits may differ from an unbroken run's: {', '.join(changes)}")
        if options.keep_states:
            size = devices.size(devices.initial_state(session.module, session.config))
            size *= len(session.seeds) * (session.config.num_evals + 1)
            session.view.say(f"all states are kept: {size / 1e6:.3g} MB when the run is done")
        if options.track or options.tensorboard:
            from algorithms.launch import trackers

            self.trackers = trackers.open_trackers(
                track=options.track,
                tensorboard=options.tensorboard,
                one_run_per_seed=options.one_run_per_seed,
                run_dir=self.path,
                name=self.path.name,
                config=self.run_dir.description["config"],
                seeds=session.seeds,
                resume=start.resumed,
            )

    def add(self, point: Point) -> None:
        """Takes a point. A full disk costs the files and not the run."""
        if point.metrics:
            self.rows.append(point.metrics)
        if not self.run_dir:
            return
        with survive(f"point {point.index} was not saved, the last good one stays", OSError):
            state, keep = point.get_state(), self.options.keep_states
            self.run_dir.save(point.index, state, point.metrics, keep)
        if point.metrics:
            with survive(f"metrics.csv lacks point {point.index} until a --resume", OSError):
                self.run_dir.append_metrics(point.index, point.metrics)
            for tracker in self.trackers:
                tracker.log(point.metrics, point.timestep)
        last = self.session.config.num_evals
        if point.index == {"start": 0, "end": last, "every": point.index}.get(self.options.gif):
            self._draw_gif(point)
        if time.perf_counter() - self.drawn > DRAW_SECONDS:
            self.draw()

    def _draw_gif(self, point: Point) -> None:
        from algorithms.launch import render

        session = self.session
        with survive(f"no GIF of point {point.index}", Exception):
            state = checkpoints.one_agent(point.get_state(), 0)
            file = self.path / f"episode_{point.index:06d}.gif"
            file = render.render(session.module, session.config, state, file, session.seeds[0])
            for tracker in self.trackers:
                tracker.gif(file, point.timestep)

    def draw(self) -> None:
        """Draws curve.png."""
        self.drawn = time.perf_counter()
        if not self.run_dir or not self.rows:
            return
        from algorithms.launch import plots

        with survive("curve.png was not drawn", Exception):
            metrics, file = checkpoints.stack(self.rows), self.path / "curve.png"
            plots.curve(metrics, self.session.seeds, self.session.name, file)

    def close(self) -> None:
        self.draw()
        for tracker in self.trackers:
            tracker.close()

    def result(self, point: int, state: Any) -> Result:
        """What the run has come to."""
        metrics = checkpoints.stack(self.rows)
        returns = metrics.get("eval_return", metrics.get("episode_return", np.full((1, 1), np.nan)))
        objective, last = -float(np.mean(returns[:, -1])), self.session.config.num_evals
        return Result(state, metrics, self.path, objective, interrupted=point < last)


# --- waiting ---------------------------------------------------------------------------------


@contextlib.contextmanager
def survive(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Turns errors into a warning."""
    try:
        yield
    except errors as error:
        warn(f"{what}: {type(error).__name__}: {error}")


def in_background(function: Callable, *args: Any) -> Any:
    """The result of a call in a thread of its own, so that this one answers to Ctrl-C meanwhile."""
    future: Future = Future()

    def work():
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future.result()


class Interrupt:
    """Ctrl-C in the loop: the first asks to stop after this point, the second aborts."""

    def __enter__(self) -> "Interrupt":
        self.asked = False
        self.mine = threading.current_thread() is threading.main_thread()
        self.before = signal.signal(signal.SIGINT, self._handle) if self.mine else None
        return self

    def __exit__(self, *_: Any) -> None:
        if self.mine:
            signal.signal(signal.SIGINT, self.before)

    def _handle(self, *_: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        # Not print: the signal may have come in the middle of one.
        os.write(2, b"\nstopping at the next point; Ctrl-C again aborts at once\n")
