"""What a run does at its points besides training: functions of the user, and outputs.

Saving is one of these. The engine knows no tool: the front door hands in what was asked for.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.engine import devices, hosts, plots, programs
from algorithms.launch.engine.errors import warn
from algorithms.launch.engine.metrics import PACE_NAMES, stack
from algorithms.launch.engine.settings import Trials
from algorithms.launch.engine.versions import versions

DRAW_SECONDS = 60.0  # between two drawings of the curve while the run goes on


class Output:
    """Something that stays of a run with a directory, made by its first process.

    Args:
      record: the `Record` of its session.
    """

    everywhere = False  # all processes make it

    def __init__(self, record: Any):
        self.record, self.session = record, record.session

    def open(self) -> None:
        """Before the first point, where the directory is as the session needs it."""

    def begin(self) -> None:
        """While the first point is computed, which needs no Python."""

    def at(self, point: Any, states: Any) -> None:
        """At a point; `record.logged` are its metrics once they are saved, none if it has none."""

    def gif(self, file: Path, timestep: int) -> None:
        """Takes an animation that another output has made."""

    def mend(self) -> None:
        """Makes what is missing of a run that is finished, if its end was cut short."""

    def close(self) -> None:
        """After the last point."""


class Hooks(NamedTuple):
    """What happens at points besides training."""

    functions: Sequence[Callable[[Any], None]] = ()  # of a `Point`; a user's
    outputs: Sequence[type[Output]] = ()  # in the order of their turns; the last one closes first
    page: Callable[..., str] | None = None  # the text of a sweep's report


class Saving(Output):
    """Checkpoints, of which each process writes its part, and metrics.csv. It comes first."""

    everywhere = True

    def __init__(self, record: Any):
        super().__init__(record)
        self.run_dir = record.run_dir

    def open(self) -> None:
        if not hosts.is_first():
            return
        session, options, start = self.session, self.session.options, self.record.start
        trainer, run_dir = session.trainer, self.run_dir
        if start.resumed:
            run_dir.describe(session.chunk.described(options))
            last = -1 if start.get_state is None else start.point
            run_dir.rewind(last, start.history)
        found = versions(trainer.module, session.layout, trainer.env, trainer.config.env)
        changes, edited = run_dir.write_versions(found, start.point)
        if changes:
            warn(f"last digits may differ from an uninterrupted run's: {', '.join(changes)}")
        if edited:
            text = f"{' and '.join(edited)} changed since this run trained last, so from point "
            warn(f"{text}{start.point} on the curve is that of another program")
        if options.keep_states:
            bytes_of_one = devices.size(programs.initial_state(trainer.module, trainer.config))
            whole = bytes_of_one * session.trials.count * (session.num_points + 1)
            said = f"all states are kept: {programs.in_words(whole)} when the run is done"
            session.view.say(said)

    def begin(self) -> None:
        start = self.record.start
        before = self.run_dir.seconds(start.point) if start.history else 0.0
        last = start.history.get(start.point, {}).get("timestep", np.zeros(1))
        self.pace = Pace(before, int(last.max()))

    def at(self, point: Any, states: Any) -> None:
        """A full disk does not end the run."""
        record, session = self.record, self.session
        what = f"point {point.index} was not saved, the last good one stays"
        with record.losses.survive("checkpoints", what, OSError, point=point.index):
            given = states, session.layout, point.metrics, point.is_finite
            self.run_dir.save(point.index, *given, session.options.keep_states)
        if not (hosts.is_first() and point.metrics):
            return
        timing = self.pace.at(point.timestep, session.trainer, session.trials)
        what = f"metrics.csv lacks point {point.index} until a --resume"
        with record.losses.survive("rows of metrics.csv", what, OSError, point=point.index):
            self.run_dir.append_metrics(point.index, point.metrics, timing)
        record.logged = point.metrics | timing

    def mend(self) -> None:
        start = self.record.start
        try:
            if hosts.is_first():
                self.run_dir.mend_metrics(start.point, start.history)
        except OSError as error:
            warn(f"metrics.csv was not mended: {type(error).__name__}: {error}")

    def close(self) -> None:
        if lost := self.record.losses.in_words():
            self.session.view.warn(f"not saved: {lost}; {self._what_would_do()}")

    def _what_would_do(self) -> str:
        """The remedy for points that were not saved."""
        run_dir, in_sweep = self.run_dir, self.session.in_sweep
        lost = self.record.losses.points
        last = max(run_dir.points("state"), default=-1)
        path = run_dir.path.parent if in_sweep else run_dir.path
        if last < 0 and not in_sweep:
            return f"--config {run_dir.path}/config.json trains anew"
        if last < max(lost.get("checkpoints", [0])):
            return f"--resume {path} trains again what comes after point {last}"
        rows = f"; --resume {path} completes metrics.csv"
        return f"point {last} is saved{rows * ('rows of metrics.csv' in lost)}"


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


class Pictures(Output):
    """curve.png, and population.png."""

    def __init__(self, record: Any):
        super().__init__(record)
        self.drawn = time.perf_counter()

    def begin(self) -> None:
        threading.Thread(target=plots.import_libraries, daemon=True).start()

    def at(self, point: Any, states: Any) -> None:
        if time.perf_counter() - self.drawn > DRAW_SECONDS:
            self.draw()

    def mend(self) -> None:
        if not (self.record.path / "curve.png").exists():
            self.draw()

    def close(self) -> None:
        self.draw()

    def draw(self) -> None:
        self.drawn = time.perf_counter()
        record, trainer, trials = self.record, self.session.trainer, self.session.trials
        if not record.rows:
            return
        metrics, file = stack(record.rows), record.path / "curve.png"
        with record.losses.survive("curve.png", "curve.png was not drawn", Exception):
            plots.curve(metrics, trials, trainer.name, file)
        if "parent" not in metrics:
            return
        ranges, file = trainer.module.settings.ranges, record.path / "population.png"
        logarithmic = [name for name, space in ranges.items() if space.kind == "log"]
        with record.losses.survive(file.name, f"{file.name} was not drawn", Exception):
            title = f"{trainer.name}: a population"
            plots.population(metrics, trials.seeds, logarithmic, title, file)
