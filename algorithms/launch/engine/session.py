"""One process's part of a run: the loop over the points of its trials' curves."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms.launch.engine import hosts, initial, population, programs
from algorithms.launch.engine.errors import UserError, warn
from algorithms.launch.engine.interrupts import Interrupt, Stop, in_background
from algorithms.launch.engine.metrics import (
    Learnless,
    Metrics,
    infinite_losses,
    mean_returns,
    stack,
    with_nan,
)
from algorithms.launch.engine.options import Options, describe
from algorithms.launch.engine.outputs import Hooks
from algorithms.launch.engine.programs import Trainer, excess, length
from algorithms.launch.engine.progress import brief, not_finite
from algorithms.launch.engine.record import Point, Record, Start
from algorithms.launch.engine.run_dir import RunDir
from algorithms.launch.engine.settings import Trials, text_of


class Result(NamedTuple):
    """What a run has come to."""

    # On the host, with leaves (num_trials, ...) if there are several; of one trial as a
    # policy takes it. Of several processes, each has its trials.
    state: Any
    metrics: Metrics  # (num_trials, points, ...)
    run_dir: Path | None
    # To minimise: minus the mean return at the last point; inf if a trial is not finite.
    objective: float
    is_finite: np.ndarray  # whether a trial's policy and losses always were, (num_trials,)
    stopped: str = ""  # by SIGINT (Ctrl-C), SIGTERM or, before the last point, what a hook says
    unsaved: str = ""  # what could not be written, as on a full disk
    finished: bool = True  # it came to its last point, perhaps with a signal in it

    def __repr__(self) -> str:
        return brief(self)

    @property
    def failed(self) -> bool:
        """Whether a trial is not finite."""
        return not self.is_finite.all()

    @property
    def interrupted(self) -> bool:
        return bool(self.stopped)


class Chunk(NamedTuple):
    """Trials that train at once: all of a run, some of a sweep.

    Before a sweep is cut up, all that one program can train.
    """

    trainer: Trainer  # with a layout for at least as many trials
    trials: Trials
    static: Mapping[str, Any] = MappingProxyType({})  # swept static fields
    run_dir: RunDir | None = None
    start: Start = Start()
    numbers: Sequence[int] = ()  # of its trials in results.csv
    stage: int = 0  # of the sweep, see `stages`
    retest: bool = False  # its trials repeat the sweep's best ones
    last: int | None = None  # the point that it trains to; None: to the end of its curve

    @property
    def num_points(self) -> int:
        """The number of its last point."""
        return self.trainer.plan.points if self.last is None else self.last

    @property
    def is_finished(self) -> bool:
        return self.start.point >= self.num_points

    @property
    def label(self) -> str:
        return ", ".join(text_of(self.static))

    def some(self, places: Sequence[int]) -> "Chunk":
        """The same with some of its trials, before it has a directory."""
        numbers = [self.numbers[i] for i in places]
        return self._replace(trials=self.trials.some(places), numbers=numbers)

    def described(self, options: Options) -> dict[str, Any]:
        """What its config.json holds."""
        own = describe(self.trainer.module, self.trainer.config, self.trials, options)
        return own | {"points": self.trainer.plan.points}


class Session:
    """One process's part of a run: the loop over the points of its trials' curves.

    Args:
      in_sweep: the run is a chunk of a sweep, which says what a run says by itself otherwise.
    """

    def __init__(self, chunk: Chunk, options: Options, hooks: Hooks, in_sweep: bool = False):
        self.chunk, self.options, self.hooks, self.in_sweep = chunk, options, hooks, in_sweep
        self.trainer, self.trials, trainer = chunk.trainer, chunk.trials, chunk.trainer
        self.view, self.num_points = trainer.view, chunk.num_points
        self.layout = trainer.layout._replace(num_trials=chunk.trials.count)
        self.settings = [
            {**chunk.static, **self.trials.setting(i)} for i in range(self.trials.count)
        ]
        self.configs = self.layout.put(chunk.trials.configs(trainer.config))
        self.record = Record(self)

    def train(self, interrupt: Interrupt) -> Result:
        """From the start to the last point, or to Ctrl-C once the first point is computed."""
        start, record = self.chunk.start, self.record
        if not self.in_sweep:
            self._announce()
        members = getattr(self.trainer.module, "members", 1)
        self.view.begin(start.point, self.num_points, self.trials.count * members)
        if self.chunk.is_finished:
            if start.is_finite is None:
                raise UserError(
                    f"{record.path} is finished, and its metrics cannot be read: all of its "
                    ".policy files are damaged or gone"
                )
            for output in record.outputs:
                output.mend()
            own = self.layout.own  # perhaps none, of several processes
            state = start.get_state(own) if start.get_state and len(own) else None
            result = self._result(state)
            if not self.in_sweep:
                more = "this run is finished; a larger total_timesteps continues it"
                for line in [more, *not_finite(~result.is_finite)]:
                    self.view.say(line)
            return result
        states = self._restore()  # before anything is changed on the disk
        with self.view.timed("save"):
            record.open()
        with self.view.timed("compile"):
            in_background(self.trainer.compile, start.get_state is None)
        if not self.in_sweep:
            self.trainer.check_capacity("max_parallel={fewer} trains them in turn")
        for output in record.outputs:
            output.begin()  # what is compiled by now does not count
        interrupt.listen()
        point, states, stopped = self._loop(start.point, states, interrupt)
        with self.view.timed("save"):
            for output in reversed(record.outputs):
                output.close()
        state = self.layout.get(self.layout.gathered(states))
        result = self._result(state, stopped)
        if not self.in_sweep:
            broken, unsaved = ~result.is_finite, bool(result.unsaved)
            self.view.close(point, result.metrics, result.run_dir, broken, unsaved)
            learnless = Learnless()
            learnless.add(result.metrics)
            text = learnless.in_words(begun=bool(self.options.init))
            if text and point == self.num_points and hosts.is_first():
                warn(text)
        return result

    def _announce(self) -> None:
        start, run_dir = self.chunk.start, self.chunk.run_dir
        count, used, seeds = self.trials.count, len(self.layout.devices), self.trials.seeds
        if members := getattr(self.trainer.module, "members", 0):
            who = f"{count} population{'s' * (count > 1)} of {members} members"
            who += f" (seeds {seeds[0]} to {seeds[-1]})" if count > 1 else f" (seed {seeds[0]})"
        elif count == 1:
            who = f"1 trial ({self.trials.label(0)})"
        elif self.trials.floats:
            who = f"{count} trials ({self.trials.in_words})"
        else:
            who = f"{count} trials (seeds {seeds[0]} to {seeds[-1]})"
        where = f"{used} {self.layout.devices[0].platform} device{'s' * (used > 1)}"
        points = f"points {start.point} to {self.num_points}"
        of_file = getattr(self.trainer.module, "in_words", lambda config: "")
        words = [length(self.trainer.plan), of_file(self.trainer.config), points]
        points = ", ".join(filter(None, words))
        place = f", in {run_dir.path}" if run_dir else ""
        self.view.say(f"{self.trainer.name}: {who} on {where}, {points}{place}")
        rounds = isinstance(self.trainer.module, population.Population)
        longer = excess(self.trainer.config, self.trainer.plan, rounds)
        if longer and start.point == 0 and hosts.is_first():
            warn(longer)

    def _restore(self) -> Any:
        """The states on the devices, of a run that has started already."""
        start = self.chunk.start
        if start.get_state is None:
            return None
        needed = self.layout.needed
        states = self.layout.put(start.get_state(needed), needed.start, are_states=True)
        self.record.were_finite = self.record.were_finite & self._is_finite(states)
        return states

    def _loop(self, point: int, states: Any, interrupt: Interrupt) -> tuple[int, Any, str]:
        """Returns the number of the last point, the states on the devices, and what stopped it."""
        if states is None:
            keys = jax.numpy.stack([jax.random.key(seed) for seed in self.trials.seeds])
            row: Metrics = {}
            states = self._run(self.trainer.compiled.start, self.layout.put(keys))
            if self.options.init:
                given = (states, self.trainer.module, self.trainer.config, self.layout)
                states = initial.begin(self.options.init, *given, self.trials.seeds)
            if self.trainer.config.eval_at_start:
                states, row = self._advance(states, learn=False)
            self._finish(point, states, row, interrupt)
        while point < self.num_points:
            if stopped := interrupt.agreed():
                return point, states, stopped
            point += 1
            states, row = self._advance(states)
            self._finish(point, states, row, interrupt)
        return point, states, ""

    def _run(self, program: Callable, argument: Any, learn: bool = True) -> Any:
        blocks = np.int32(self.layout.used // self.layout.block)
        shared = self.layout.share(programs.Shared(self.trainer.host_params, learn, blocks))
        with self.view.timed("run"):
            run = lambda: jax.block_until_ready(program(shared, self.configs, argument))
            try:
                return in_background(run)
            except Exception as error:
                if type(error).__name__ != "InternalFloatingPointError":  # jax has no public name
                    raise
                raise FloatingPointError(
                    "there is a NaN in what the program of a point gives, and jax_debug_nans is "
                    "set; the points before it are saved"
                ) from error

    def _advance(self, states: Any, learn: bool = True) -> tuple[Any, Metrics]:
        """One point. Returns the states on the devices and all trials' metrics."""
        states, metrics = self._run(self.trainer.compiled.advance, states, learn)
        row = {name: with_nan(name, x[:, 0]) for name, x in self.layout.gather(metrics).items()}
        row["timestep"] = row["timestep"].astype(np.int64)  # a float32 in very long runs, but whole
        return states, row

    def _finish(self, point: int, states: Any, row: Metrics, interrupt: Interrupt) -> None:
        """Everything that happens at a point; without a row when none is asked for."""
        record, timestep = self.record, int(row["timestep"].max()) if row else 0
        states = self.layout.gathered(states)
        get_state = functools.cache(lambda: self.layout.get(states))
        infinite = infinite_losses(row) | {"policy": ~self._is_finite(states)}
        is_finite = record.were_finite & ~np.any(list(infinite.values()), axis=0)
        seen = Point(point, timestep, row, get_state, record.path, is_finite, self.settings)
        record.tell_of_broken(seen, infinite, states)
        record.tell_of_alarms(row, states)
        with self.view.timed("save"):
            record.add(seen, states)
        self.view.point(point, row, ~is_finite)
        for function in self.hooks.functions if row else ():
            try:
                function(seen)
            except Stop as stop:
                interrupt.stop(str(stop))

    def _result(self, state: Any, stopped: str = "") -> Result:
        """What the run has come to."""
        record, is_finite, metrics = self.record, self.record.were_finite, stack(self.record.rows)
        if self.trials.count == len(self.layout.own) == 1:
            state = jax.tree.map(lambda x: x[0, ...], state)
        objective = -float(np.mean(mean_returns(metrics)[:, -1])) if metrics else np.nan
        if not is_finite.all():  # a broken policy still plays: by chance better than an honest one
            objective = np.inf
        ends = (stopped, record.losses.in_words(), not stopped)
        return Result(state, metrics, record.path, objective, is_finite, *ends)

    def _is_finite(self, states: Any) -> np.ndarray:
        """Whether all numbers of a trial's policy are, (num_trials,), in all processes."""
        return self.layout.gather(programs.is_finite(states.policy))
