"""A run of trials that other runs have trained: those that halving keeps."""

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import jax
import numpy as np

from algorithms.launch.engine import devices, files
from algorithms.launch.engine.description import fill
from algorithms.launch.engine.run_dir import RunDir

Sources = Sequence[tuple[RunDir, int]]  # for each trial: a run, and the trial's place there


def gathered(
    description: dict[str, Any], sources: Sources, point: int, like: Any
) -> Callable[[Path], None]:
    """What fills the directory of a run whose trials were trained up to a point by others.

    It gets the policies and metrics of the points so far, and the whole state of the last one.

    Args:
      description: of the new run.
      sources: of its trials, in their order.
      point: the last one.
      like: shapes and dtypes of one trial's state.
    """

    def write(folder: Path) -> None:
        fill(folder, description)
        made = RunDir(folder, description)
        runs = {run.path: run for run, _ in sources}.values()
        policies = set.intersection(*(set(run.points("policy")) for run in runs))
        for there in sorted(p for p in policies if p <= point):
            _write(made, sources, there, "policy", like.policy)
        _write(made, sources, point, "state", like)

    return write


def rows(sources: Sources, read: Callable[[RunDir, range], Any]) -> Any:
    """Trees (trials, ...) of some trials of several runs; `read` gives those of a range."""
    pieces = []
    for _, those in groupby(sources, lambda source: source[0].path):
        run_and_places = list(those)
        places = [place for _, place in run_and_places]
        whole = read(run_and_places[0][0], range(min(places), max(places) + 1))
        pieces.append(taken(whole, np.array(places) - min(places)))
    return devices.joined(pieces)


def taken(tree: Any, places: np.ndarray) -> Any:
    """Some trials of a tree of host arrays."""
    take = lambda x: devices.like_key(np.asarray(devices.plain(x))[places], x)
    return jax.tree.map(take, tree)


def _write(made: RunDir, sources: Sources, point: int, kind: str, like: Any) -> None:
    header: dict[str, Any] = {"algorithm": made.algorithm, "point": point}
    if kind == "policy":
        every = lambda run, part: jax.tree.map(lambda x: x[part.start : part.stop], run.says(point))
        header |= rows(sources, every)
    tree = rows(sources, lambda run, part: run.read(point, kind, like, part))
    arrays = []
    for name, leaf in files.named_leaves(tree):
        data = np.asarray(devices.plain(leaf))
        arrays.append(files.Stream(name, data.dtype, data.shape, [data]))
    files.write_checkpoint(made.file(point, kind), header, arrays)
