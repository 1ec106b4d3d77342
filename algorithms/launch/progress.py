"""What a session of a run says on stdout, and where its time goes."""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from algorithms.launch.checkpoints import Metrics, columns


class Progress:
    """A line that updates itself on a terminal, elsewhere a line per tenth of the run.

    Args:
      quiet: say nothing.
      import_seconds: spent before this was made.
    """

    def __init__(self, quiet: bool, import_seconds: float):
        self.quiet, self.terminal = quiet, sys.stdout.isatty()
        self.seconds = {"import": import_seconds, "compile": 0.0, "run": 0.0, "save": 0.0}
        self.width = self.tenths = 0  # of the line that updates itself; of the run shown so far
        self.start = self.num_points = self.num_agents = 0

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
            print(self._wipe() + text, flush=True)

    def begin(self, start: int, num_points: int, num_agents: int) -> None:
        """From which point to which the session goes."""
        self.start, self.num_points, self.num_agents = start, num_points, num_agents
        self.tenths = 10 * start // num_points

    def point(self, point: int, metrics: Metrics) -> None:
        """Shows a point just finished; metrics are (num_agents, ...), or empty."""
        tenths = 10 * point // self.num_points
        if self.quiet or not metrics:
            return
        if self.terminal:
            line = self._line(point, metrics)[: shutil.get_terminal_size().columns - 1]
            print(self._wipe() + line, end="", flush=True)
            self.width = len(line)
        elif point in (self.start, self.num_points) or tenths > self.tenths:
            print(self._line(point, metrics), flush=True)
        self.tenths = tenths

    def close(self, point: int, metrics: Metrics, run_dir: Path | None) -> None:
        """What came out, where it is, where the time went; metrics (num_agents, points, ...)."""
        stopped = f"stopped at point {point} of {self.num_points}"
        final = ", ".join(returns({name: values[:, -1] for name, values in metrics.items()}))
        place = f", in {run_dir}" if run_dir else ""
        self.say(f"{'done' if point == self.num_points else stopped}: {final}{place}")
        times = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in self.seconds.items())
        self.say(f"time: {times}; {sum(self.seconds.values()):.1f} s in all")

    def _line(self, point: int, metrics: Metrics) -> str:
        timestep = int(metrics["timestep"].max())
        share = f"{100 * point / self.num_points:3.0f}%"
        parts = [share, f"step {short(timestep)}", *returns(metrics)[:1]]
        if point > self.start:
            run, done = self.seconds["run"], point - self.start
            speed = timestep / point * done * self.num_agents / run  # points are of equal length
            left = duration((run + self.seconds["save"]) / done * (self.num_points - point))
            parts += [f"{short(speed)} steps/s", f"{left} left"]
        return " | ".join(parts)

    def _wipe(self) -> str:
        """What takes the line that updates itself away."""
        wipe = f"\r{' ' * self.width}\r" if self.width else ""
        self.width = 0
        return wipe


def returns(metrics: Metrics) -> list[str]:
    """Evaluation and training return: mean over the agents, and the range of several [min, max]."""
    labels = {"eval_return": "evaluation return", "episode_return": "training return"}
    texts = {label: columns({n: metrics[n]}) for n, label in labels.items() if n in metrics}
    return [f"{label} {', '.join(map(_spread, v.values()))}" for label, v in texts.items()]


def _spread(values: np.ndarray) -> str:
    there = values[~np.isnan(values)]
    if not there.size:
        return "-"
    spread = f" [{there.min():.5g}, {there.max():.5g}]" if len(values) > 1 else ""
    return f"{there.mean():.5g}{spread}"


def short(number: float) -> str:
    """A number of steps in three digits."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
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
