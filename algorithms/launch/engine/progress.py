"""The output of a session on stdout, where its time goes, and how a result prints itself."""

import contextlib
import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms.launch.engine.errors import tell, warn
from algorithms.launch.engine.metrics import Metrics, columns

NOT_SAVED = "not all of it saved"


class Place(NamedTuple):
    """Where a run is in a sweep."""

    label: str
    before: float  # points of the runs before it; fewer trials count for less
    total: float  # points of all


class Progress:
    """A line that updates itself on a terminal, elsewhere a line per tenth of the run.

    Args:
      quiet: say nothing.
      import_seconds: spent before this was made.
    """

    def __init__(self, quiet: bool, import_seconds: float):
        self.quiet = quiet
        # None: the process was started without it (`>&-`, a service)
        self.terminal = sys.stdout is not None and sys.stdout.isatty()
        self.seconds = {"import": import_seconds, "compile": 0.0, "run": 0.0, "save": 0.0}
        self.width = self.tenths = 0  # of the line that updates itself; of the run shown so far
        self.start = self.num_points = self.num_trials = 0
        self.before = dict(self.seconds)  # when this run began
        self.place: Place | None = None
        self.told: set[object] = set()  # what `warn_once` has warned of

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Adds the time that the block takes to `seconds`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - began

    def say(self, text: str) -> None:
        """A line of its own."""
        if not self.quiet:
            tell(self._wipe() + text, sys.stdout)

    def warn(self, text: str) -> None:
        """A warning that does not run into the line that updates itself."""
        tell(self._wipe(), sys.stdout, end="")
        warn(text)

    def warn_once(self, cause: object, text: str) -> None:
        """A warning, unless its cause has been warned of in an earlier point or chunk."""
        if text and cause not in self.told:
            self.told.add(cause)
            self.warn(text)

    def begin(self, start: int, num_points: int, num_trials: int) -> None:
        """From which point to which a run goes."""
        self.start, self.num_points, self.num_trials = start, num_points, num_trials
        self.before = dict(self.seconds)
        self.tenths = self._tenths(start)

    def point(self, point: int, metrics: Metrics, broken: np.ndarray | tuple = ()) -> None:
        """Shows a point just finished; metrics are (num_trials, ...), or empty.

        broken: which trials are not finite, (num_trials,).
        """
        if self.quiet or not metrics:
            return
        place, tenths = self.place, self._tenths(point)
        if place and place.before == 0 and point == self.start + 1:
            self.say(f"about {duration(self._left(point))} left, judging by the first point")
        first = point == self.start and not (place and place.before)
        if self.terminal:
            line = self._line(point, metrics, broken)[: shutil.get_terminal_size().columns - 1]
            tell(self._wipe() + line, sys.stdout, end="")
            self.width = len(line)
        elif first or tenths > self.tenths or self._share(point) == 1:
            tell(self._line(point, metrics, broken), sys.stdout)
        self.tenths = tenths

    def _share(self, point: int) -> float:
        """How much of the run, or of the whole sweep, is done."""
        if self.place:
            return (self.place.before + point) / self.place.total
        return point / self.num_points

    def _tenths(self, point: int) -> int:
        return int(10 * self._share(point) + 1e-9)

    def _spent(self, what: str) -> float:
        """Seconds since this run began."""
        return self.seconds[what] - self.before[what]

    def _left(self, point: int) -> float:
        """Seconds to the end of everything, if all goes as this run has gone so far."""
        each = (self._spent("run") + self._spent("save")) / (point - self.start)
        end = self.place.total - self.place.before if self.place else self.num_points
        return float(each * (end - point))

    def close(
        self,
        point: int,
        metrics: Metrics,
        run_dir: Path | None,
        broken: np.ndarray,
        unsaved: bool = False,
    ) -> None:
        """Prints the result, its place and the time spent; metrics (num_trials, points, ...)."""
        stopped = f"stopped at point {point} of {self.num_points}"
        final = ", ".join(returns({name: values[:, -1] for name, values in metrics.items()}))
        place = f", in {run_dir}" if run_dir else ""
        how = ["done" if point == self.num_points else stopped, *[NOT_SAVED] * unsaved]
        self.finish(f"{', '.join([*how, *not_finite(broken)])}: {final}{place}")

    def finish(self, text: str) -> None:
        """The end of a run or a sweep: what came out, and where the time went."""
        times = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in self.seconds.items())
        self.say(text)
        self.say(f"time: {times}; {sum(self.seconds.values()):.1f} s in all")

    def _line(self, point: int, metrics: Metrics, broken: np.ndarray | tuple) -> str:
        timestep = int(metrics["timestep"].max())
        parts = [f"{100 * self._share(point):3.0f}%", f"step {short(timestep)}"]
        if self.place and self.place.label:
            parts.insert(1, self.place.label)
        parts += returns(metrics)[:1] + not_finite(broken)
        if point > self.start:
            steps = timestep / point * (point - self.start) * self.num_trials  # equal points
            speed = short(steps / self._spent("run"))
            parts += [f"{speed} steps/s", f"{duration(self._left(point))} left"]
        return " | ".join(parts)

    def _wipe(self) -> str:
        """What takes the line that updates itself away."""
        wipe = f"\r{' ' * self.width}\r" if self.width else ""
        self.width = 0
        return wipe


def returns(metrics: Metrics) -> list[str]:
    """Exploitability, evaluation and training return: means over the trials, and [min, max]."""
    labels = {"eval_exploitability": "exploitability"}  # a return against itself says nothing
    labels |= {"eval_return": "evaluation return", "episode_return": "training return"}
    texts = {label: columns({n: metrics[n]}) for n, label in labels.items() if n in metrics}
    return [f"{label} {', '.join(map(_spread, v.values()))}" for label, v in texts.items()]


def not_finite(broken: np.ndarray | tuple) -> list[str]:
    """A text about the trials that are not finite; empty if all are finite."""
    count, several = int(np.sum(broken)), len(broken) > 1
    return [f"{count} of {len(broken)} trials not finite" if several else "not finite"] * (
        count > 0
    )


def _spread(values: np.ndarray) -> str:
    there = values[~np.isnan(values)]
    if not there.size:
        return "-"
    spread = f" [{there.min():.5g}, {there.max():.5g}]" if len(values) > 1 else ""
    return f"{there.mean():.5g}{spread}"


def short(number: float) -> str:
    """A number of steps in three digits."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if float(f"{number / size:.3g}") >= 1:  # 999,500 are 1M, not 1e+03k
            return f"{number / size:.3g}{letter}"
    return f"{number:.0f}"


def duration(seconds: float) -> str:
    """Seconds as 42s, 3m05s or 2h07m."""
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"
    return f"{minutes // 60}h{minutes % 60:02}m"


def process_age() -> float:
    """Seconds since this process began."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (OSError, AttributeError):  # not Linux: the processor's time comes close
        return time.process_time()


# --- results, on one screen ------------------------------------------------------------------

LONGEST = 1200  # characters of a value


def brief(record: Any) -> str:
    """The `__repr__` of a NamedTuple: a line for each field, and for each entry of a dict."""
    lines = [f"{type(record).__name__}("]
    for name in record._fields:
        value = getattr(record, name)
        entries = value.items() if isinstance(value, Mapping) and value else ()
        lines.append(f"  {name}={'{' if entries else _value(value)}")
        lines += [f"    {key}: {_value(entry)}" for key, entry in entries]
        lines += ["  }"] * bool(entries)
    return "\n".join([*lines, ")"])


def _value(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return repr(value) if value.shape == () else f"{value.dtype}{list(value.shape)}"
    if isinstance(value, list) and value and hasattr(value[0], "_fields"):
        return f"<{len(value)} of {type(value[0]).__name__}>"
    if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
        arrays = [leaf for leaf in jax.tree.leaves(value) if getattr(leaf, "shape", ())]
        if arrays:
            return f"<{type(value).__name__} of {len(arrays)} arrays>"
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."
