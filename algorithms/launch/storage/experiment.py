"""A run or a sweep on the disk, and which of the two it is: nobody else asks.

A sweep has chunks, each of which is a run; a run is a sweep whose only chunk is the run itself.
"""

from pathlib import Path
from typing import Any, NamedTuple

from algorithms.launch import settings
from algorithms.launch.compute import hosts
from algorithms.launch.errors import UserError
from algorithms.launch.storage import files
from algorithms.launch.storage.description import check_version, fill, read_description
from algorithms.launch.storage.directories import make, make_named
from algorithms.launch.storage.run_dir import RunDir

SWEEP = "sweep.json"  # in the directory of a sweep


class Experiment(NamedTuple):
    """A run or a sweep."""

    path: Path
    description: dict[str, Any]  # what config.json or sweep.json holds
    sizes: dict[Path, int]  # how many trials each chunk has, by its directory
    is_sweep: bool

    @property
    def algorithm(self) -> str:
        return self.description["algorithm"]

    @property
    def seeds(self) -> list[int]:
        """Of each setting."""
        if not self.is_sweep:
            return self.description["seeds"]
        first = self.description["seed"]
        return list(range(first, first + self.description["num_seeds"]))

    def run_dirs(self) -> list[RunDir]:
        """All chunks.

        Raises:
          UserError: one of them cannot be read.
        """
        return [RunDir.open(path) for path in self.sizes]

    def run_dir(self) -> RunDir:
        """The run.

        Raises:
          UserError: it is a sweep.
        """
        if self.is_sweep:
            raise UserError(f"{self.path} is a sweep; its runs are {self.path}/chunk_000 and so on")
        return RunDir(self.path, self.description)

    def locate(self, trial: int | None) -> tuple[RunDir, int | None]:
        """The chunk that has a trial, and which one it is there; None for all trials of a run.

        Raises:
          UserError: there is no such trial, or it is a sweep and none is named.
        """
        if not self.is_sweep:
            return self.run_dir(), trial
        if trial is None:
            raise UserError(f"{self.path} is a sweep: say which trial, they are in its results.csv")
        first = 0
        for path, size in self.sizes.items():
            if first <= trial < first + size:
                return RunDir.open(path), trial - first
            first += size
        raise UserError(f"trial={trial}: {self.path} has trials 0 to {first - 1}")


def create(
    description: dict[str, Any],
    runs: list[dict[str, Any]],
    root: Path | str,
    path: Path | str | None = None,
) -> tuple[Path, list[RunDir]]:
    """Makes the directory of a run or a sweep, below root unless a path is given.

    Args:
      description: what its config.json or sweep.json is to hold; a sweep's has a grid.
      runs: the description of each chunk; a run's is its own.
    """
    sweeps = "grid" in description
    names = [f"chunk_{i:03d}" * sweeps for i in range(len(runs))]
    environment, last = settings.env_label(description["config"]["env"]), "sweep"
    if sweeps:
        environment = "+".join(map(str, description["grid"].get("env", [environment])))
    else:
        last = str(description["seeds"][0])

    def write(folder: Path) -> None:
        for name, run in zip(names, runs):
            fill(folder / name, run)
        if sweeps:
            chunks = [{"run": n, "agents": len(run["seeds"])} for n, run in zip(names, runs)]
            files.write_json(folder / SWEEP, description | {"chunks": chunks})

    def make_one() -> str:
        if path is None:
            return str(make_named(Path(root), [environment, description["algorithm"], last], write))
        make(Path(path), write)
        return str(path)

    made = Path(hosts.from_first(make_one))
    return made, [RunDir(made / name, run) for name, run in zip(names, runs)]


def is_sweep(path: Path | str) -> bool:
    return (Path(path) / SWEEP).exists()


def is_there(path: Path | str, sweeps: bool) -> bool:
    """Whether a directory has a sweep, or a run; the first process looks for all."""
    name = SWEEP if sweeps else "config.json"
    return hosts.from_first(lambda: (Path(path) / name).exists())


def open(path: Path | str) -> Experiment:
    """What is in a directory.

    Raises:
      UserError: neither a run nor a sweep, or one of another version of the kit.
    """
    path = Path(path)
    if not is_sweep(path):
        description = read_description(path / "config.json")
        return Experiment(path, description, {path: len(description["seeds"])}, False)
    description = files.read_json(path / SWEEP)
    check_version(path / SWEEP, description)
    sizes = {path / chunk["run"]: chunk["agents"] for chunk in description["chunks"]}
    return Experiment(path, description, sizes, True)
