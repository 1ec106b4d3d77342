"""What a run does at its points besides training: functions of the user, and outputs.

The engine knows no tool: the front door hands in what was asked for.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from algorithms.launch.engine import lineage, plots
from algorithms.launch.engine.metrics import Metrics, stack

DRAW_SECONDS = 60.0  # between two drawings of the curve while the run goes on


class Output:
    """Something that people see of a run with a directory, made by its first process.

    Args:
      record: the `Record` of its session.
    """

    def __init__(self, record: Any):
        self.record, self.session = record, record.session

    def open(self) -> None:
        """Before the first point, where the directory is as the session needs it."""

    def begin(self) -> None:
        """While the first point is computed, which needs no Python."""

    def at(self, point: Any, states: Any, logged: Metrics) -> None:
        """At a point, after it was saved; `logged` are its metrics, none if there are none."""

    def gif(self, file: Path, timestep: int) -> None:
        """Takes an animation that another output has made."""

    def mend(self) -> None:
        """Makes what is missing of a run that is finished, if its end was cut short."""

    def close(self) -> None:
        """After the last point."""


class Hooks(NamedTuple):
    """What happens at points besides training."""

    functions: Sequence[Callable[[Any], None]] = ()  # of a `Point`; a user's
    outputs: Sequence[Callable[[Any], Output]] = ()  # of a `Record`; the last one closes first
    page: Callable[..., str] | None = None  # the text of a sweep's report


class Pictures(Output):
    """curve.png, and population.png."""

    def __init__(self, record: Any):
        super().__init__(record)
        self.drawn = time.perf_counter()

    def begin(self) -> None:
        threading.Thread(target=plots.import_libraries, daemon=True).start()

    def at(self, point: Any, states: Any, logged: Metrics) -> None:
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
            lineage.draw(metrics, trials.seeds, logarithmic, title, file)
