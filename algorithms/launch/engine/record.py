"""Metrics of a session and, with a directory, its files and what could not be written of them."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.engine import devices, hosts, programs
from algorithms.launch.engine.brief import brief
from algorithms.launch.engine.errors import UserError, warn
from algorithms.launch.engine.metrics import ALARMS, PACE_NAMES, Metrics
from algorithms.launch.engine.outputs import Output
from algorithms.launch.engine.programs import in_words
from algorithms.launch.engine.run_dir import RunDir
from algorithms.launch.engine.settings import Trials
from algorithms.launch.engine.versions import versions


class Point(NamedTuple):
    """The argument of a hook: hook(point)."""

    # Number of the point; 0 is before training. Nobody looks for values in it as in a tuple.
    index: int  # type: ignore[assignment]
    timestep: int
    metrics: Metrics  # of this point, (num_trials, ...)
    get_state: Callable[[], Any]  # a hook's copy of this process's states, on the host
    run_dir: Path | None
    is_finite: np.ndarray  # whether a trial's policy and losses have been so far, (num_trials,)
    settings: Sequence[Mapping[str, Any]] = ()  # the swept fields of each trial

    def __repr__(self) -> str:
        return brief(self)


class Start(NamedTuple):
    """Where a session begins."""

    point: int = 0
    get_state: Callable | None = None  # get_state(trials): host arrays; None: they are to be made
    history: Mapping[int, Metrics] = MappingProxyType({})  # of the points so far, (num_trials, ...)
    resumed: bool = False
    is_finite: np.ndarray | None = None  # which trials have been so far, where no file says it


def labels_of(trials: Any, which: np.ndarray) -> str:
    """Settings and seeds of some trials, of the first five if there are more."""
    labels = "; ".join(trials.label(i) for i in which[:5])
    return f"{labels} and {len(which) - 5} more" if len(which) > 5 else labels


class Record:
    def __init__(self, session: Any):
        self.session, self.options = session, session.options
        self.run_dir: RunDir | None = session.chunk.run_dir
        self.start: Start = session.chunk.start
        self.path = self.run_dir.path if self.run_dir else None
        self.rows = list(self.start.history.values())
        self.losses = Losses(session.view.warn)
        self.were_finite = np.ones(session.trials.count, bool)
        self.pace = Pace(0.0, 0)
        shown = self.run_dir and hosts.is_first()
        self.outputs: list[Output] = [make(self) for make in session.hooks.outputs if shown]

    def begin(self) -> None:
        """Starts the clock of a session; what is compiled by now does not count."""
        start = self.start
        before = self.run_dir.seconds(start.point) if self.run_dir and start.history else 0.0
        last = start.history.get(start.point, {}).get("timestep", np.zeros(1))
        self.pace = Pace(before, int(last.max()))
        for output in self.outputs:
            output.begin()

    def open(self) -> None:
        """Brings the directory to where the session starts, and opens the outputs."""
        if self.run_dir and hosts.is_first():
            try:
                self._open(self.run_dir)
            except OSError as error:
                raise UserError(f"{self.path} cannot be written: {error.strerror}") from error
        hosts.wait()  # so that nobody saves what is then dropped

    def _open(self, run_dir: RunDir) -> None:
        session, options, start = self.session, self.options, self.start
        trainer = session.trainer
        if start.resumed:
            run_dir.describe(session.chunk.described(options))
            last = -1 if start.get_state is None else start.point
            run_dir.rewind(last, start.history)
        found = versions(trainer.module, session.layout)
        changes = run_dir.write_versions(found, start.point)
        if changes:
            warn(f"last digits may differ from an uninterrupted run's: {', '.join(changes)}")
        if options.keep_states:
            bytes_of_one = devices.size(programs.initial_state(trainer.module, trainer.config))
            whole = bytes_of_one * session.trials.count * (session.num_points + 1)
            session.view.say(f"all states are kept: {in_words(whole)} when the run is done")
        for output in self.outputs:
            output.open()

    def mend(self) -> None:
        """Makes what people look at of a run that is finished, if its end was cut short."""
        if self.run_dir and hosts.is_first():
            try:
                self.run_dir.mend_metrics(self.start.point, self.start.history)
            except OSError as error:
                warn(f"metrics.csv was not mended: {type(error).__name__}: {error}")
            for output in self.outputs:
                output.mend()

    def add(self, point: Point, states: Any) -> None:
        """Takes a point, and the states on the devices. A full disk does not end the run."""
        if point.metrics:
            self.rows.append(point.metrics)
        if not self.run_dir:
            return
        what = f"point {point.index} was not saved, the last good one stays"
        with self.losses.survive("checkpoints", what, OSError, point=point.index):
            layout, keep = self.session.layout, self.options.keep_states
            self.run_dir.save(point.index, states, layout, point.metrics, point.is_finite, keep)
        if hosts.is_first():
            self._publish(self.run_dir, point, states)

    def _publish(self, run_dir: RunDir, point: Point, states: Any) -> None:
        """What people look at."""
        logged: Metrics = {}
        if point.metrics:
            timing = self.pace.at(point.timestep, self.session.trainer, self.session.trials)
            what = f"metrics.csv lacks point {point.index} until a --resume"
            with self.losses.survive("rows of metrics.csv", what, OSError, point=point.index):
                run_dir.append_metrics(point.index, point.metrics, timing)
            logged = point.metrics | timing
        for output in self.outputs:
            output.at(point, states, logged)

    def tell_of_broken(self, point: Point, infinite: dict[str, np.ndarray], states: Any) -> None:
        """Warns of trials that are not finite for the first time; `infinite` says in what."""
        broken = np.flatnonzero(self.were_finite & ~point.is_finite)
        self.were_finite = point.is_finite
        if not broken.size:
            return
        rewards = self._rewards_in_words(point, states, broken)  # asks all processes
        if hosts.is_first():
            who = "a trial is" if broken.size == 1 else f"{broken.size} trials are"
            where = f"from point {point.index} on (step {point.timestep:,})"
            names = ", ".join(name for name, which in infinite.items() if which[broken].any())
            labels = labels_of(self.session.trials, broken)
            left = int(point.is_finite.sum())
            others = ("", "; the other one goes on", f"; the other {left} go on")[min(left, 2)]
            told = f"{who} not finite {where}: {names} of {labels}{others}{rewards}"
            self.session.view.warn(told)

    def _rewards_in_words(self, point: Point, states: Any, broken: np.ndarray) -> str:
        """Between which steps rewards of broken trials were not finite; empty if all were."""
        returns = point.metrics.get("episode_return", np.zeros(len(point.is_finite)))
        ended = point.metrics.get("num_episodes", np.zeros(len(point.is_finite))) > 0
        # Of episodes that ended, and of those that run.
        wrong = ended & ~np.isfinite(returns.reshape(len(returns), -1)).all(1)
        if hasattr(states, "episodes"):
            running = self.session.layout.gather(programs.is_finite(states.episodes.running_return))
            wrong = wrong | ~running
        if not wrong[broken].any():
            return ""
        before = int(self.rows[-1]["timestep"].max()) if self.rows else 0
        return (
            f"; a reward between steps {before:,} and {point.timestep:,} was not finite: if it is "
            "the environment's, --env-settings nan_reward=0 replaces and counts such rewards"
        )

    def tell_of_alarms(self, row: Metrics) -> None:
        """Warns of what metrics say, each kind once in all chunks of a sweep."""
        for alarm in ALARMS if hosts.is_first() else ():
            self.session.view.warn_once(alarm, alarm(row))

    def close(self) -> None:
        for output in reversed(self.outputs):
            output.close()
        lost = self.losses.in_words()
        if self.run_dir and lost:
            self.session.view.warn(f"not saved: {lost}; {self._what_would_do(self.run_dir)}")

    def _what_would_do(self, run_dir: RunDir) -> str:
        """The remedy for points that were not saved."""
        last = max(run_dir.points("state"), default=-1)
        path = run_dir.path.parent if self.session.in_sweep else run_dir.path
        if last < 0 and not self.session.in_sweep:
            return f"--config {run_dir.path}/config.json trains anew"
        if last < max(self.losses.points.get("checkpoints", [0])):
            return f"--resume {path} trains again what comes after point {last}"
        rows = f"; --resume {path} completes metrics.csv"
        return f"point {last} is saved{rows * ('rows of metrics.csv' in self.losses.points)}"


class Pace:
    """Counts the seconds of a run.

    Args:
      seconds: of the sessions before this one.
      timestep: that they have come to.
    """

    def __init__(self, seconds: float, timestep: int):
        self.before, self.timestep = seconds, timestep
        self.began = self.last = time.perf_counter()

    def at(self, timestep: int, trainer: Any, trials: Trials) -> dict:
        """The numbers of a point just finished, each (num_trials,).

        seconds: of training, evaluating and saving so far, over all sessions. Compilation and the
          time between sessions do not count.
        steps_per_second: environment steps of all trials that train together, per second since the
          point before.
        """
        now = time.perf_counter()
        members = getattr(trainer.module, "members", 1)  # of a population
        steps = (timestep - self.timestep) * trials.count * members
        speed = steps / max(now - self.last, 1e-9)
        self.timestep, self.last = timestep, now
        values = round(self.before + now - self.began, 3), round(speed, 1)
        return {name: np.broadcast_to(v, trials.count) for name, v in zip(PACE_NAMES, values)}


class Losses:
    """Failures to write, by kind.

    Args:
      say: takes the text of a warning.
    """

    def __init__(self, say: Callable[[str], None] = warn):
        self.say = say
        self.failing: set[str] = set()
        self.points: dict[str, list[int]] = {}  # {kind: points that are lost}

    @contextlib.contextmanager
    def survive(
        self, kind: str, what: str, *errors: type[Exception], point: int | None = None
    ) -> Iterator[None]:
        """Turns errors into a warning, unless the last attempt of this kind has failed, too.

        Args:
          kind: what is written, "checkpoints" for example.
          what: the beginning of the warning.
          *errors: that are survived.
          point: what is lost, if it is more than a picture.
        """
        try:
            yield
        except errors as error:
            if kind not in self.failing:
                name = type(error).__name__
                self.say(f"{what}: {name}: {error}; later failures are summed up at the end")
            self.failing.add(kind)
            if point is not None:
                self.points.setdefault(kind, []).append(point)
        else:
            if kind in self.failing and point is not None:
                self.say(f"{self.in_words(kind)} were not saved, those of point {point} were")
            self.failing.discard(kind)

    def in_words(self, *kinds: str) -> str:
        """Kinds and their points, "checkpoints of points 3 to 7, 9"; empty if nothing is lost."""
        lost = [kind for kind in kinds or self.points if kind in self.points]
        return " and ".join(f"{kind} of {spans(self.points[kind])}" for kind in lost)


def spans(points: list[int]) -> str:
    """Points in a few words, "points 3 to 7, 9"."""
    pairs: list[list[int]] = []
    for point in points:
        if pairs and point == pairs[-1][1] + 1:
            pairs[-1][1] = point
        else:
            pairs.append([point, point])
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in pairs]
    return f"point{'s' * (len(points) > 1)} {', '.join(texts)}"
