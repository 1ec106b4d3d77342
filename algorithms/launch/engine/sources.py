"""Where trials begin: what other trials have come to, in runs on the disk or in memory.

Halving goes on from whole states, --init-from takes a part of them, `launch.load` policies.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms.launch.engine import devices, files
from algorithms.launch.engine.run_dir import RunDir, fill


class Source(NamedTuple):
    """A trial at a point."""

    run: Any  # a `RunDir`, or `Kept`
    place: int  # of the trial there
    point: int


class Kept(NamedTuple):
    """The last states of a chunk without files."""

    path: Any  # in place of a path: what tells it from others
    states: Any  # (trials, ...) on the host; of a single trial without that axis
    is_single: bool

    def read(self, trials: range) -> Any:
        """Those of some trials, (trials, ...)."""
        take = lambda x: x[None] if self.is_single else x[trials.start : trials.stop]
        return jax.tree.map(take, self.states)


def rows(sources: Sequence[Source], read: Callable[[Any, int, range], Any]) -> Any:
    """Trees (trials, ...) on the host of one source after another.

    Args:
      read: of a run, a point and a range of its trials, their trees.
    """
    pieces = []
    for _, those in groupby(sources, lambda source: (source.run.path, source.point)):
        mine = list(those)
        places = np.array([source.place for source in mine])
        span = range(int(places.min()), int(places.max()) + 1)
        tree, these = read(mine[0].run, mine[0].point, span), places - span.start
        take = lambda x, these=these: devices.like_key(np.asarray(devices.plain(x))[these], x)
        pieces.append(jax.tree.map(take, tree))
    return devices.joined(pieces)


def gather(folder: Path, description: dict[str, Any], sources: Sequence[Source], like: Any) -> None:
    """Fills the directory of a run whose trials were trained up to a point by others.

    It gets the policies and metrics of the points so far, and the whole state of the last one.

    Args:
      folder, description: of the new run.
      sources: of its trials, in their order, at the same point.
      like: shapes and dtypes of one trial's state.
    """
    fill(folder, description)
    made, last = RunDir(folder, description), sources[0].point
    runs = {source.run.path: source.run for source in sources}.values()
    policies = set.intersection(*(set(run.points("policy")) for run in runs))
    for point in sorted(p for p in policies if p <= last):
        _write(made, [one._replace(point=point) for one in sources], "policy", like.policy)
    _write(made, sources, "state", like)


def _write(made: RunDir, sources: Sequence[Source], kind: str, like: Any) -> None:
    point = sources[0].point
    header: dict[str, Any] = {"algorithm": made.algorithm, "point": point}
    if kind == "policy":
        every = lambda run, point, part: jax.tree.map(
            lambda x: x[part.start : part.stop], run.says(point)
        )
        header |= rows(sources, every)
    tree = rows(sources, lambda run, point, part: run.read(point, kind, like, part))
    files.write_checkpoint(made.file(point, kind), header, tree)
