"""A run or a sweep on the disk; only this module asks which of the two it is.

A sweep has chunks, each of which is a run; a run is a sweep whose only chunk is the run itself.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from algorithms.launch.engine import files, hosts, settings
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.run_dir import (
    SWEEP,
    RunDir,
    check_version,
    fill,
    read_description,
    with_checksum,
)

LATER = ("chunks", "kept", "options")  # what a sweep.json says of the sweep's course
LONGEST = 120  # characters that a directory's name has of environments


class Entry(NamedTuple):
    """A chunk, as sweep.json lists it; a run is its own."""

    path: Path
    numbers: list[int]  # of its trials in results.csv
    stage: int = 0  # of the sweep: a rung of halving, or the retest after them
    retest: bool = False  # its trials tell nothing of the sweep's, whose best ones they repeat
    last: int | None = None  # the point that it trains to; None: to the end of its curve
    share: float = 1.0  # of a whole run, at which its stage ends
    block: int | None = None  # trials that a device vmaps; None: as sweep.json says


class Experiment(NamedTuple):
    """A run or a sweep."""

    path: Path
    description: dict[str, Any]  # what config.json or sweep.json holds
    entries: list[Entry]  # in the order of training
    is_sweep: bool

    @property
    def algorithm(self) -> str:
        return self.description["algorithm"]

    @property
    def kept(self) -> dict[str, list[int]]:
        """Of a sweep whose chunks have no whole states any more: {run: numbers of its trials} that
        still have theirs (see `states`). Empty of all others."""
        return self.description.get("kept", {})

    @property
    def seeds(self) -> range:
        """Of each setting of a sweep."""
        first = self.description["seed"]
        return range(first, first + self.description["num_seeds"])

    def run_dirs(self) -> list[RunDir]:
        """All chunks.

        Raises:
          UserError: one of them cannot be read.
        """
        return [RunDir.open(entry.path) for entry in self.entries]

    def homes(self) -> dict[int, tuple[Path, int]]:
        """{number of a trial: the chunk that trained it last, and its place there}."""
        return {
            number: (entry.path, place)
            for entry in self.entries
            for place, number in enumerate(entry.numbers)
        }

    def run_dir(self) -> RunDir:
        """The run.

        Raises:
          UserError: it is a sweep.
        """
        if self.is_sweep:
            raise UserError(
                f"{self.path} is a sweep: say which trial of its results.csv; its runs, chunk_000 "
                "and so on, give all of theirs"
            )
        return RunDir(self.path, self.description)

    def locate(self, trial: int, name: str = "trial") -> tuple[RunDir, int]:
        """The chunk that has a trial, and which one it is there.

        Raises:
          UserError: there is no such trial; `name` is what the user calls it.
        """
        homes = self.homes()
        if type(trial) is not int or trial not in homes:
            raise UserError(f"{name}={trial}: {self.path} has trials 0 to {max(homes)}")
        path, place = homes[trial]
        return RunDir.open(path), place

    def locate_state(self, trial: int, point: int) -> tuple[RunDir, int]:
        """The same, of a trial's whole state at a point, if another run than its chunk has it.

        Raises:
          UserError: as of `locate`.
        """
        run, place = self.locate(trial)
        for name, numbers in self.kept.items():
            if trial in numbers and (self.path / name / "config.json").exists():
                other = RunDir.open(self.path / name)
                if point in other.points("state"):
                    return other, numbers.index(trial)
        return run, place


def create(
    description: dict[str, Any],
    runs: list[dict[str, Any]],
    root: Path | str,
    path: Path | str | None = None,
    entries: Sequence[dict[str, Any]] = (),
) -> tuple[Path, list[RunDir]]:
    """Makes the directory of a run or a sweep, below root unless a path is given.

    Args:
      description: what its config.json or sweep.json is to hold; a sweep's has a grid.
      runs: the description of each chunk; a run's is its own.
      entries: of each chunk, what sweep.json says beside its name and size, of a sweep by stages.
    """
    sweeps = "grid" in description
    names = [f"chunk_{i:03d}" * sweeps for i in range(len(runs))]
    environment, last = settings.env_label(description["config"]["env"]), "sweep"
    if sweeps:
        names_of = [str(name) for name in description["grid"].get("env", [environment])]
        environment = "+".join(names_of)
        if len(environment) > LONGEST:
            environment = f"{names_of[0]}+{len(names_of) - 1}-others"
    else:
        last = str(description["seeds"][0])

    def write(folder: Path) -> None:
        for name, run in zip(names, runs):
            fill(folder / name, run)
        if sweeps:
            chunks = _listed(names, runs, entries or [{}] * len(runs))
            first = {"checksum": _checksum(description)}
            files.write_json(folder / SWEEP, first | description | {"chunks": chunks})

    def make_one() -> str:
        if path is None:
            return str(make_named(Path(root), [environment, description["algorithm"], last], write))
        make(Path(path), write)
        return str(path)

    made = Path(hosts.from_first(make_one))
    return made, [RunDir(made / name, run) for name, run in zip(names, runs)]


def extend(
    path: Path,
    runs: list[dict[str, Any]],
    entries: Sequence[dict[str, Any]],
    fills: Sequence[Callable[[Path], None]],
) -> list[RunDir]:
    """Adds chunks to a sweep, which its sweep.json then lists.

    Args:
      path: of the sweep.
      runs, entries: as of `create`, of the new chunks.
      fills: writes what a chunk's directory has in the beginning, given a folder.
    """

    def write() -> list[str]:
        there = files.read_json(path / SWEEP)
        first = len(there["chunks"])
        names = [f"chunk_{first + i:03d}" for i in range(len(runs))]
        for name, fill_one in zip(names, fills):
            if (path / name).exists():  # of a process that was killed before sweep.json had it
                shutil.rmtree(path / name)
            make(path / name, fill_one)
        chunks = there["chunks"] + _listed(names, runs, entries)
        files.write_json(path / SWEEP, there | {"chunks": chunks})
        return names

    # Another process may come here when the first one has written sweep.json.
    names = hosts.from_first(write)
    return [RunDir(path / name, run) for name, run in zip(names, runs)]


def _checksum(description: dict[str, Any]) -> str:
    """Of what a sweep was asked for; its chunks and options may become others."""
    asked = {k: v for k, v in files.as_read(description).items() if k not in LATER}
    return with_checksum(asked)["checksum"]


def amend(path: Path, **more: Any) -> None:
    """Has a sweep.json, as it is now, say something else.

    Raises:
      UserError: it cannot be written.
    """
    with files.writing(path):
        files.write_json(path / SWEEP, files.read_json(path / SWEEP) | more)


def _listed(
    names: Sequence[str], runs: Sequence[dict[str, Any]], entries: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Chunks as sweep.json has them."""
    sizes = [len(run["seeds"]) for run in runs]
    rows = zip(names, sizes, entries, strict=True)
    return [{"run": name, "num_trials": size, **more} for name, size, more in rows]


def is_sweep(path: Path | str) -> bool:
    return (files.local(path) / SWEEP).exists()


def gone_states(run: Path) -> str:
    """What became of the states of a run, as the end of a sentence; empty if it has its own."""
    run = run.resolve()
    if not is_sweep(run.parent):
        return ""
    there = open(run.parent)
    if not there.kept or all(entry.path.name != run.name for entry in there.entries):
        return ""
    runs = " and ".join(str(there.path / name) for name in there.kept)
    return (
        f"; its sweep is done and kept the whole states of its best setting alone, in {runs}: a "
        "sweep with --sweep-states all keeps those of all settings"
    )


def is_there(path: Path | str, sweeps: bool) -> bool:
    """Whether a directory has a sweep, or a run; the first process looks for all."""
    name = SWEEP if sweeps else "config.json"
    return hosts.from_first(lambda: (Path(path) / name).exists())


def open(path: Path | str) -> Experiment:
    """What is in a directory.

    Raises:
      UserError: neither a run nor a sweep, or one of another version of the kit.
    """
    path = files.local(path)
    if not is_sweep(path):
        description = read_description(path / "config.json")
        return Experiment(
            path, description, [Entry(path, [*range(len(description["seeds"]))])], False
        )
    description = files.read_json(path / SWEEP)
    check_version(path / SWEEP, description)
    if description.pop("checksum", None) not in (None, _checksum(description)):
        raise UserError(
            f"{path / SWEEP} is not what was asked for: its checksum does not match. A sweep goes "
            "on as it began: undo the change, or begin another sweep"
        )
    entries: list[Entry] = []
    for chunk in description["chunks"]:
        first = sum(len(entry.numbers) for entry in entries)
        size = chunk["num_trials" if "num_trials" in chunk else "agents"]  # its earlier name
        numbers = chunk.get("trials", [*range(first, first + size)])
        more = {name: chunk[name] for name in Entry._fields[2:] if name in chunk}
        entries.append(Entry(path / chunk["run"], numbers, **more))
    return Experiment(path, description, entries, True)


# --- directories that appear whole or not at all, in a place that is free --------------------

TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def make(path: Path, write: Callable[[Path], None]) -> None:
    """Makes a run's or a sweep's directory, whole or not at all.

    Raises:
      UserError: it exists and is not empty, or it cannot be made.
    """
    if not _made(path, write):
        resumes = any((path / name).exists() for name in ("config.json", SWEEP))
        remedy = f", or --resume {path}" * resumes
        raise UserError(
            f"{path} exists: a run is never overwritten; give another directory{remedy}"
        )


@contextlib.contextmanager
def withdrawn_unless_begun(path: Path) -> Iterator[None]:
    """Removes a new directory again if what follows fails before it has saved anything.

    A start that fails then does not block the name: the same command may be given again. The error
    has a note that says so.
    """
    try:
        yield
    except BaseException as error:
        begun = any(path.rglob("checkpoints/*")) or any(path.rglob("metrics.csv"))
        if hosts.is_first() and not begun:
            shutil.rmtree(path, ignore_errors=True)
            error.add_note(f"nothing was saved, and {path} is gone again")
        raise


def make_named(root: Path, words: list[str], write: Callable[[Path], None]) -> Path:
    """The same, as `<word>__<word>__<time>` in root; with -1, -2, ... if that is taken."""
    words = [*words, time.strftime("%Y%m%d-%H%M%S")]
    name = "__".join(map(as_file_name, words))
    for count in range(10**6):
        path = Path(root) / (f"{name}-{count}" if count else name)
        if not path.exists() and _made(path, write):
            return path
    raise UserError(f"{root} has a million runs named {name}")


def as_file_name(word: str) -> str:
    """A name without what a file's name should not have."""
    return re.sub(r"[^\w.+-]", "-", word)


def _made(path: Path, fill: Callable[[Path], None]) -> bool:
    """Makes a directory with what `fill` writes into it. An empty one may be there already.

    Returns False if something else is, perhaps made in this very moment; it stays as it is.

    Raises:
      UserError: it cannot be made.
    """
    whole = path.absolute()
    new = whole.parent / f".{whole.name}.{secrets.token_hex(4)}"
    try:
        new.mkdir(parents=True)
        fill(new)
        files.sync_directory(new)
        os.rename(new, whole)  # replaces nothing but an empty directory
        files.sync_directory(whole.parent)
    except OSError as error:
        if error.errno in TAKEN and new.exists():
            return False
        raise UserError(f"{path} cannot be made: {error.strerror}") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return True
