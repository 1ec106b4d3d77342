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

from algorithms.launch import checkpoints, devices, hosts, progress, settings
from algorithms.launch.checkpoints import Metrics, RunDir
from algorithms.launch.errors import UserError, unknown, warn
from algorithms.launch.settings import Agents
from algorithms.launch.trainer import Trainer, algorithm_name, in_words

DRAW_SECONDS = 60.0  # between two drawings of the curve while the run goes on
GIF_CHOICES = ("never", "start", "end", "every")


class Point(NamedTuple):
    """What a hook gets: hook(point)."""

    index: int  # number of the point; 0 is before training
    timestep: int
    metrics: Metrics  # of this point, (num_agents, ...)
    get_state: Callable[[], Any]  # the whole state on the host; of this process's agents
    run_dir: Path | None
    is_finite: np.ndarray  # whether all numbers of an agent's policy are, (num_agents,)


class Result(NamedTuple):
    state: Any  # leaves (num_agents, ...), on the host; of several processes, each has its agents
    metrics: Metrics  # (num_agents, points, ...)
    run_dir: Path | None
    objective: float  # to minimise: minus the mean return at the last point
    is_finite: np.ndarray  # whether all numbers of an agent's policy are, (num_agents,)
    interrupted: bool = False  # stopped by Ctrl-C before the last point


class Options(NamedTuple):
    """What a run does beside training; kept in config.json, so that resuming goes on with it."""

    keep_states: bool = False
    track: bool = False
    one_run_per_seed: bool = False
    tensorboard: bool = False
    gif: str = "never"


class Start(NamedTuple):
    """Where a session begins."""

    point: int = 0
    get_state: Callable | None = None  # get_state(agents): host arrays; None before the first point
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
    check_files(options, save)
    agents = Agents(list(range(seed, seed + num_seeds)))
    view = progress.Progress(quiet, import_seconds)
    trainer = Trainer(module, config, num_seeds, view)
    session = Session(trainer, agents, options, hooks)
    if not save:
        return session.train(None, Start())
    described = describe(module, config, agents, options)
    return session.train(create(described, Path(root), run_dir), Start())


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
    check_algorithm(module, run_dir.algorithm, run_dir.path)
    options = make_options(run_dir.description["options"] | options)
    config = run_dir.config(module.Config, env)
    agents = run_dir.agents
    kept = run_dir.points("state")
    if point != "last" and point not in kept:
        raise UserError(f"{run_dir.path} has no whole state of point {point}; it has {kept}")
    view = progress.Progress(quiet, import_seconds)
    devices.use_cores(agents.count, config)
    start = starting(module, config, run_dir, None if point == "last" else point)
    notes = []
    if total_timesteps is not None and total_timesteps != config.total_timesteps:
        config, notes = extend(config, total_timesteps, start)
    trainer = Trainer(module, config, agents.count, view)
    session = Session(trainer, agents, options, hooks)
    described = describe(module, config, agents, options)
    if point != "last" and point != kept[-1]:
        run_dir = fork(run_dir, described, point)
    elif hosts.is_first():
        run_dir.describe(described)
    for note in notes:
        view.say(note)
    return session.train(run_dir, start)


def starting(module: Any, config: Any, run_dir: RunDir, point: int | None = None) -> Start:
    """Where a run that is there goes on: at its last whole state, or at that of a point."""
    kept = run_dir.points("state")
    if not kept:
        return Start(resumed=True)
    point = kept[-1] if point is None else point
    devices.make_environment(module, config)
    like = devices.initial_state(module, config)
    read = lambda agents: run_dir.read(point, "state", like, agents)
    return Start(point, read, tuple(run_dir.history(point).values()), True)


def create(described: dict[str, Any], root: Path, path: Path | str | None = None) -> RunDir:
    """The directory of a new run, below root unless a path is given."""

    def make() -> str:
        if path is None:
            return str(RunDir.create_named(root, described).path)
        return str(RunDir.create(Path(path), described).path)

    return RunDir(Path(hosts.from_first(make)), described)


def fork(run_dir: RunDir, described: dict[str, Any], last: int) -> RunDir:
    """A new run next to an old one, with that one's points up to the last."""
    forked = create(described, run_dir.path.parent)
    policies = [files for point, files in run_dir.files("policy").items() if point <= last]
    parts = [*policies, run_dir.parts(last, "state")] * hosts.is_first()
    for file in [file for part in parts for file in part.values()]:
        checkpoints.write_whole(forked.checkpoints / file.name, file.read_bytes())
    hosts.wait()
    return forked


def extend(config: Any, total: int, start: Start) -> tuple[Any, list[str]]:
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


# --- checks ----------------------------------------------------------------------------------


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


def check_gif(config: Any, options: Options) -> None:
    """Refuses what cannot be drawn, before anything runs."""
    if options.gif != "never":
        from algorithms.launch import render

        render.check_drawable(config)


def check_files(options: Options, save: bool) -> None:
    if not save and options != Options():
        raise UserError("save=False: keep_states, track, tensorboard and gif need files")


def check_algorithm(module: Any, algorithm: str, path: Path) -> None:
    if algorithm != algorithm_name(module):
        raise UserError(
            f"{path} is a run of {algorithm}, not of {algorithm_name(module)}: use {algorithm}.py"
        )


def describe(module: Any, config: Any, agents: Agents, options: Options) -> dict[str, Any]:
    """What config.json holds."""
    return {
        "algorithm": algorithm_name(module),
        "options": options._asdict(),
        "config": settings.config_to_json(config),
        **agents.to_json(),
    }


# --- a session -------------------------------------------------------------------------------


class Session:
    """One process's part of a run: the loop over the points of its agents' curves.

    Args:
      trainer: with a layout for at least as many agents.
      in_sweep: the run is a chunk of a sweep, which says what a run says by itself otherwise.
    """

    def __init__(
        self,
        trainer: Trainer,
        agents: Agents,
        options: Options,
        hooks: Sequence[Callable[[Point], None]],
        in_sweep: bool = False,
    ):
        self.trainer, self.agents, self.options, self.hooks = trainer, agents, options, hooks
        self.module, self.config, self.view = trainer.module, trainer.config, trainer.view
        self.in_sweep = in_sweep
        check_gif(self.config, options)
        self.layout = trainer.layout._replace(num_agents=agents.count)
        self.configs = self.layout.put(agents.configs(trainer.config))

    def train(
        self, run_dir: RunDir | None, start: Start, interrupt: "Interrupt | None" = None
    ) -> Result:
        """From the start to the last point, or to Ctrl-C."""
        record = _Record(self, run_dir, start)
        if not self.in_sweep:
            self._announce(start, f", in {run_dir.path}" if run_dir else "")
        self.view.begin(start.point, self.config.num_evals, self.agents.count)
        if start.point >= self.config.num_evals:
            self.view.say("this run is finished; a larger total_timesteps would go on with it")
            record.draw()
            state = start.get_state(self.layout.own)
            return record.result(start.point, state, run_dir.is_finite(start.point))
        with self.view.timed("save"):
            record.open(start)
        with self.view.timed("compile"):
            in_background(self.trainer.compile, start.get_state is None)
        if not self.in_sweep:
            self.trainer.check_memory("max_parallel={fewer} trains them in turn")
        with contextlib.nullcontext(interrupt) if interrupt else Interrupt() as interrupt:
            point, states = self._loop(start, record, interrupt)
        with self.view.timed("save"):
            record.close()
        result = record.result(point, self.layout.get(states), self._is_finite(states))
        if not self.in_sweep:
            self.view.close(point, result.metrics, result.run_dir)
        return result

    def _announce(self, start: Start, place: str) -> None:
        count, used, seeds = self.agents.count, len(self.layout.devices), self.agents.seeds
        if count == 1:
            who = f"1 agent ({self.agents.label(0)})"
        elif self.agents.floats:
            who = f"{count} agents of a sweep"
        else:
            who = f"{count} agents (seeds {seeds[0]} to {seeds[-1]})"
        where = f"{used} {self.layout.devices[0].platform} device{'s' * (used > 1)}"
        points = f"points {start.point} to {self.config.num_evals}"
        self.view.say(f"{self.trainer.name}: {who} on {where}, {points}{place}")

    def _loop(self, start: Start, record: "_Record", interrupt: "Interrupt") -> tuple[int, Any]:
        """Returns the number of the last point and the states on the devices."""
        point, layout = start.point, self.layout
        if start.get_state is None:
            keys = jax.numpy.stack([jax.random.key(seed) for seed in self.agents.seeds])
            states, row = self._run(self.trainer.programs.start, layout.put(keys)), {}
            if self.config.eval_at_start:
                states, row = self._advance(states, learn=False)
            self._finish(point, states, row, record)
        else:
            states = layout.put(start.get_state(layout.needed), layout.needed.start)
        while point < self.config.num_evals and not hosts.anybody(interrupt.asked):
            point += 1
            states, row = self._advance(states)
            self._finish(point, states, row, record)
        return point, states

    def _run(self, program: Callable, argument: Any, learn: bool = True) -> Any:
        shared = self.layout.share(devices.Shared(self.trainer.host_params, learn))
        with self.view.timed("run"):
            run = lambda: jax.block_until_ready(program(shared, self.configs, argument))
            return in_background(run)

    def _advance(self, states: Any, learn: bool = True) -> tuple[Any, Metrics]:
        """One point. Returns the states on the devices and all agents' metrics."""
        states, metrics = self._run(self.trainer.programs.advance, states, learn)
        row = {name: values[:, 0] for name, values in self.layout.gather(metrics).items()}
        row["timestep"] = row["timestep"].astype(np.int64)  # a float32 in very long runs, but whole
        return states, row

    def _finish(self, point: int, states: Any, row: Metrics, record: "_Record") -> None:
        """Everything that happens at a point; without a row when none is asked for."""
        timestep = int(row["timestep"].max()) if row else 0
        get_state = functools.cache(lambda: self.layout.get(states))
        seen = Point(point, timestep, row, get_state, record.path, self._is_finite(states))
        with self.view.timed("save"):
            record.add(seen)
        self.view.point(point, row)
        for hook in self.hooks if row else ():
            hook(seen)

    def _is_finite(self, states: Any) -> np.ndarray:
        """Whether all numbers of an agent's policy are, (num_agents,), in all processes."""
        return self.layout.gather(devices.is_finite(states.policy))


class _Record:
    """What remains of a run: metrics and, with a directory, files, trackers and pictures."""

    def __init__(self, session: Session, run_dir: RunDir | None, start: Start):
        self.session, self.run_dir, self.options = session, run_dir, session.options
        self.path = run_dir and run_dir.path
        self.rows = list(start.rows)
        self.trackers: list[Any] = []
        self.drawn = time.perf_counter()
        self.were_finite = np.ones(session.agents.count, bool)
        if start.rows:
            self.were_finite = run_dir.is_finite(start.point)

    def open(self, start: Start) -> None:
        """Brings the directory to where the session starts, and opens the trackers."""
        if self.run_dir and hosts.is_first():
            self._open(start)
        hosts.wait()  # so that nobody saves what is then dropped

    def _open(self, start: Start) -> None:
        session, options = self.session, self.options
        if start.resumed:
            self.run_dir.rewind(-1 if start.get_state is None else start.point)
        found = checkpoints.versions(session.module, session.layout)
        changes = self.run_dir.write_versions(found, start.point)
        if changes:
            warn(f"the last digits may differ from an unbroken run's: {', '.join(changes)}")
        if options.keep_states:
            bytes_of_one = devices.size(devices.initial_state(session.module, session.config))
            whole = bytes_of_one * session.agents.count * (session.config.num_evals + 1)
            session.view.say(f"all states are kept: {in_words(whole)} when the run is done")
        if options.track or options.tensorboard:
            from algorithms.launch import trackers

            self.trackers = trackers.open_trackers(
                track=options.track,
                tensorboard=options.tensorboard,
                one_run_per_seed=options.one_run_per_seed,
                run_dir=self.path,
                name=self.path.name,
                group=self.path.parent.name if session.in_sweep else None,
                config=self.run_dir.description["config"],
                agents=session.agents,
                resume=start.resumed,
            )

    def add(self, point: Point) -> None:
        """Takes a point. A full disk costs the files and not the run."""
        if point.metrics:
            self.rows.append(point.metrics)
        self._tell_of_broken(point)
        if not self.run_dir:
            return
        with survive(f"point {point.index} was not saved, the last good one stays", OSError):
            keep, own = self.options.keep_states, self.session.layout.own
            state, finite = point.get_state(), point.is_finite
            self.run_dir.save(point.index, state, point.metrics, finite, keep, own)
        if hosts.is_first():
            self._publish(point)

    def _publish(self, point: Point) -> None:
        """What people look at."""
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

    def _tell_of_broken(self, point: Point) -> None:
        broken = np.flatnonzero(self.were_finite & ~point.is_finite)
        self.were_finite = self.were_finite & point.is_finite
        if broken.size and hosts.is_first():
            labels = "; ".join(self.session.agents.label(i) for i in broken[:5])
            more = f" and {broken.size - 5} more" if broken.size > 5 else ""
            who = (
                "an agent's policy is"
                if broken.size == 1
                else f"{broken.size} agents' policies are"
            )
            warn(f"{who} not finite from point {point.index} on ({labels}{more}); others go on")

    def _draw_gif(self, point: Point) -> None:
        from algorithms.launch import render

        session = self.session
        with survive(f"no GIF of point {point.index}", Exception):
            state = checkpoints.one_agent(point.get_state(), 0)
            config = session.agents.config(session.config, 0)
            file = self.path / f"episode_{point.index:06d}.gif"
            file = render.render(session.module, config, state, file, session.agents.seeds[0])
            for tracker in self.trackers:
                tracker.gif(file, point.timestep)

    def draw(self) -> None:
        """Draws curve.png."""
        self.drawn = time.perf_counter()
        if not self.run_dir or not self.rows or not hosts.is_first():
            return
        from algorithms.launch import plots

        with survive("curve.png was not drawn", Exception):
            metrics, file = checkpoints.stack(self.rows), self.path / "curve.png"
            session = self.session
            plots.curve(metrics, session.agents.seeds, session.trainer.name, file)

    def close(self) -> None:
        self.draw()
        for tracker in self.trackers:
            tracker.close()

    def result(self, point: int, state: Any, is_finite: np.ndarray) -> Result:
        """What the run has come to."""
        metrics = checkpoints.stack(self.rows)
        returns = metrics.get("eval_return", metrics.get("episode_return", np.full((1, 1), np.nan)))
        objective, last = -float(np.mean(returns[:, -1])), self.session.config.num_evals
        return Result(state, metrics, self.path, objective, is_finite, point < last)


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
