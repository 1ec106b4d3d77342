"""The directory of a run: configuration, versions, metrics and checkpoints.

    config.json         algorithm, options, every field of the Config, the trials' seeds and floats
    versions.json       libraries, device and git commit, one entry for each session
    metrics.csv         one row for each trial and point
    checkpoints/000007.policy    state.policy of all trials, and the metrics of that point
    checkpoints/000007.state     the whole state, for the last two points
    .lock               held by the process that trains here (hosts.py)

Several processes write a part each, 000007.16-32.state for trials 16 to 31, and any number of
processes can read them. A point is saved when the .state of all trials is there. Files appear whole
or not at all, the .policy before the .state, and older states go only after that: a kill at any
moment leaves the last good point.
"""

import contextlib
import csv
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.launch.engine import devices, files, hosts, settings
from algorithms.launch.engine.errors import UserError, warn
from algorithms.launch.engine.metrics import LAST_COLUMNS, PACE_NAMES, Metrics, as_csv, columns
from algorithms.launch.engine.settings import Trials
from algorithms.launch.engine.versions import EARLIER, among

KEPT_STATES = 2
NAME = re.compile(r"\d+(\.\d+-\d+)?\.(policy|state)")  # of a checkpoint


class RunDir:
    """A run on disk; `description` is what config.json holds."""

    def __init__(self, path: Path, description: dict[str, Any]):
        self.path, self.description = Path(path), description
        self.checkpoints = self.path / "checkpoints"
        self.algorithm: str = description["algorithm"]
        self.trials = Trials.from_json(description)

    @classmethod
    def open(cls, path: Path) -> "RunDir":
        """An existing run.

        Raises:
          UserError: there is none.
        """
        return cls(path, read_description(Path(path) / "config.json"))

    def describe(self, description: dict[str, Any]) -> None:
        """Writes config.json."""
        self.description = description
        files.write_json(self.path / "config.json", with_checksum(description))

    def config(self, cls: type, env: Any = None) -> Any:
        """The configuration, as an instance of the Config; with an environment object if given."""
        values = self.description["config"]
        return settings.config_from_json(cls, values, self.path / "config.json", env)

    def write_versions(self, versions: dict[str, Any], point: int) -> tuple[list[str], list[str]]:
        """Adds a session that begins at a point.

        Returns what has changed since the one before, and which files of the user's.
        """
        file = self.path / "versions.json"
        try:
            sessions = files.read_json(file) if file.exists() else []
        except UserError as error:
            warn(f"{error}; it begins anew")
            sessions = []
        last = sessions[-1] if sessions else versions
        before = {EARLIER.get(name, name): value for name, value in last.items()}
        sessions.append({"from_point": point, **versions})
        files.write_json(file, sessions)
        now, files_before = dict(versions), before.get("files", {})
        digests = now.pop("files", {})
        names = [name for name, value in now.items() if before.get(name) != value]
        edited = [name for name, x in digests.items() if files_before.get(name, x) != x]
        tells = lambda name: name.endswith(".py") or among(before, name) == among(now, name)
        changes = [f"{name} {before.get(name)} -> {now[name]}" for name in names]
        return changes, [name for name in edited if tells(name)]

    def session(self, point: int) -> dict[str, Any]:
        """What versions.json says of the session that trained a point; {} if none is known."""
        every = sessions_of(self.path)
        before = [one for one in every if one.get("from_point", 0) < point]
        return (before[-1:] or every[:1] or [{}])[0]

    # --- which points there are ----------------------------------------------------------------

    def file(self, point: int, kind: str, part: range | None = None) -> Path:
        """The file of a point of this kind, "policy" or "state", of all trials or some."""
        own = "" if part in (None, range(self.trials.count)) else f".{part.start}-{part.stop}"
        return self.checkpoints / f"{point:06d}{own}.{kind}"

    def files(self, kind: str) -> dict[int, dict[range, Path]]:
        """{point: {trials: file}} of the points that have such files for all trials, in order."""
        found: dict[int, dict[range, Path]] = {}
        everybody = range(self.trials.count)
        for file in self.checkpoints.glob(f"[0-9]*.{kind}"):
            if not NAME.fullmatch(file.name):  # a copy that something else has made
                continue
            first, _, last = file.stem.partition(".")[2].partition("-")
            part = range(int(first), int(last)) if last else everybody
            found.setdefault(_number(file), {})[part] = file
        for point, parts in sorted(found.items()):
            parts = dict(sorted(parts.items(), key=lambda item: item[0].start))
            del found[point]  # and back, in order
            if [i for part in parts for i in part] == list(everybody):
                found[point] = parts
        return found

    def parts(self, point: int, kind: str) -> dict[range, Path]:
        """The files of a point, and the trials that each one has; none unless all are there."""
        return self.files(kind).get(point, {})

    def points(self, kind: str) -> list[int]:
        """The points that have such files for all trials, in order."""
        return list(self.files(kind))

    def newest_whole(self) -> int | None:
        """The last point whose files can be read; None if none was ever saved.

        A policy that is damaged or gone is made again from the point before it, if that is there.

        Raises:
          UserError: the run has trained, but no state is left to resume from.
        """
        kept, trained = self.points("state"), [p for p in self.points("policy") if p > 0]
        readable = []
        for point in reversed(kept):
            state = self._damage(point, "state")
            damage = state or self._damage(point, "policy")
            if not damage:
                return point
            warn(f"{damage}; the point before it is tried")
            readable += [point] * (not state)
        if readable:
            return readable[0]
        # Without any checkpoint metrics.csv alone tells that the run has got somewhere.
        if not kept and not trained and not any(point > 0 for point in self.table()):
            return None
        what = "none of its states is whole" if kept else "it has no .state file"
        there = f"; it has the policies of points 0 to {max(trained)}" if trained else ""
        play = "--evaluate plays a policy, " if trained else ""
        raise UserError(
            f"{self.path} cannot be resumed, {what} (nothing was changed){there}: {play}"
            f"--config {self.path}/config.json trains anew"
        )

    def _damage(self, point: int, kind: str) -> str:
        """What is wrong with the files of a point."""
        try:
            for file in self.parts(point, kind).values():
                files.verify(file, self.algorithm)
            return "" if self.parts(point, kind) else f"{self.file(point, kind)} does not exist"
        except UserError as error:
            return str(error)

    # --- what they hold --------------------------------------------------------------------------

    def read(
        self, point: int, kind: str, like: Any, trials: range | None = None, partly: bool = False
    ) -> Any:
        """What a point's files hold of some trials (default: all), as host arrays (trials, ...).

        Args:
          like: shapes and dtypes for one trial.
          partly: the files may have more arrays than `like`.
        """
        trials = range(self.trials.count) if trials is None else trials
        pieces = []
        for part, file in self.parts(point, kind).items():
            first, last = max(part.start, trials.start), min(part.stop, trials.stop)
            if first < last:
                rows = range(first - part.start, last - part.start)
                given = (file, self.algorithm, like, len(part), rows, partly)
                pieces.append(files.read_checkpoint(*given))
        if not pieces:
            raise UserError(f"{self.file(point, kind)} does not exist")
        return devices.joined(pieces)

    def save(
        self,
        point: int,
        states: Any,
        layout: devices.Layout,
        metrics: Metrics,
        is_finite: np.ndarray,
        keep_states: bool,
    ) -> None:
        """Saves a point.

        Args:
          point: its number.
          states: of the trials, on the devices.
          layout: of the trials; this process saves its own.
          metrics: of this point, (num_trials, ...); empty if the curve has no such point. The
            policy's file has them: `history` reads the curve of a resumed run from there.
          is_finite: whether a trial's policy and losses have been so far, (num_trials,).
          keep_states: keep all whole states and not only the last two.
        """
        header = {"algorithm": self.algorithm, "point": point}
        policy = header | {"metrics": metrics, "is_finite": is_finite}
        if len(layout.own):
            for kind, head, tree in (("policy", policy, states.policy), ("state", header, states)):
                files.write_checkpoint(self.file(point, kind, layout.own), head, tree, layout)
        if not keep_states and hosts.is_first():  # what goes has been complete for long
            for old in list(self.files("state").values())[:-KEPT_STATES]:
                for file in old.values():
                    file.unlink()

    def state_files(self) -> list[Path]:
        """The files of whole states, also of points that some processes have not saved."""
        found = self.checkpoints.glob("[0-9]*.state")
        return [file for file in found if NAME.fullmatch(file.name)]

    def history(self, last: int | None = None) -> dict[int, Metrics]:
        """Metrics (num_trials, ...) of the curve's points, up to the last one that is wanted.

        What is damaged is left out, with a warning.
        """
        rows = {}
        for point, parts in self.files("policy").items():
            if last is None or point <= last:
                try:
                    rows[point] = self._header(parts)["metrics"]
                except UserError as error:
                    warn(f"{error}; the curve goes on without point {point}")
        return {point: row for point, row in rows.items() if row}

    def is_finite(self, point: int) -> np.ndarray:
        """Whether a trial's policy and losses were finite up to a point, (num_trials,)."""
        return self.says(point)["is_finite"]

    def says(self, point: int) -> dict[str, Any]:
        """What a point's policy file says of all trials: `metrics` and `is_finite`."""
        header = self._header(self.parts(point, "policy"))
        return {name: header[name] for name in ("metrics", "is_finite")}

    def _header(self, parts: dict[range, Path]) -> dict[str, Any]:
        """Every part's header has the metrics of all trials."""
        return files.read_header(next(iter(parts.values())), self.algorithm)

    # --- metrics.csv -----------------------------------------------------------------------------

    def append_metrics(self, point: int, metrics: Metrics, logged: Metrics) -> None:
        """Adds a row for each seed to metrics.csv; `logged` are the columns of `pace`."""
        head = self._names() or self._head([metrics])
        if more := [name for name in columns(metrics) if name not in head]:
            head = self._widen(head, more)
        logs = [{n: x[i].item() for n, x in logged.items()} for i in range(self.trials.count)]
        rows = self._rows(point, metrics, logs, head)
        # Without a buffer, which would write the rest of it when the file is closed.
        with open(self.path / "metrics.csv", "ab", buffering=0) as file:
            end = file.tell()
            left = as_csv([*[head] * (not end), *rows]).encode()
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:  # a full disk: no half rows
                file.truncate(end)
                raise

    def _head(self, rows: Iterable[Metrics], there: Sequence[str] = ()) -> list[str]:
        """Names of the columns; versions of the kit may give a run's points different metrics."""
        names = dict.fromkeys(name for metrics in rows for name in columns(metrics))
        first = [name for name in names if name not in LAST_COLUMNS]
        last = [name for name in LAST_COLUMNS if name in (*PACE_NAMES, *names, *there)]
        return ["seed", *self.trials.floats, "point", *first, *last]

    def _names(self) -> list[str]:
        """The head of the file that is there; nothing where there is none."""
        try:
            with open(self.path / "metrics.csv", newline="") as file:
                return next(csv.reader(file), [])
        except (OSError, ValueError, csv.Error):  # not there, or no table
            return []

    def _widen(self, head: list[str], more: Sequence[str]) -> list[str]:
        """Gives the file columns that it lacks. Returns its new head."""
        last = len([name for name in head if name not in LAST_COLUMNS])
        head = [*head[:last], *more, *head[last:]]
        lines = [[r.get(n, "nan") for n in head] for rows in self.table().values() for r in rows]
        files.write_whole(self.path / "metrics.csv", as_csv([head, *lines]).encode())
        return head

    def _rows(
        self, point: int, metrics: Metrics, logged: Iterable[Mapping], head: Sequence[str]
    ) -> list[list[Any]]:
        """Cells under a head, "nan" where there is nothing."""
        numbers = columns(metrics)
        found: list[list[Any]] = []
        for i, (seed, own) in enumerate(zip(self.trials.seeds, logged, strict=True)):
            cells = {**own, "seed": seed, **self.trials.setting(i), "point": point}
            cells |= {name: column[i].item() for name, column in numbers.items()}
            found.append([cells.get(name, "nan") for name in head])
        return found

    def rewind(self, last: int, history: Mapping[int, Metrics]) -> None:
        """Drops all that is past a point, and what a killed process has left behind."""
        self.checkpoints.mkdir(exist_ok=True)  # a copy of the directory may lack an empty folder
        for file in self.checkpoints.glob("[0-9]*.*"):
            if NAME.fullmatch(file.name) and _number(file) > last:
                file.unlink()
        for part in self.checkpoints.glob(".*.part"):
            part.unlink()
        self.mend_metrics(last, history)

    def mend_metrics(self, last: int, history: Mapping[int, Metrics]) -> None:
        """Brings metrics.csv up to a point, and keeps its rows of points that the history lacks.

        Seconds are stored nowhere else, nor are rates of points of older versions: they are kept,
        or NaN where they are lost.
        """
        table = {p: r for p, r in self.table().items() if p <= last}
        if table and not history:
            return
        heads = [self._head(history.values(), self._names())] if history else []
        rows = {p: [[r.get(n, "nan") for n in heads[0]] for r in t] for p, t in table.items()}
        nothing: list[dict[str, str]] = [{}] * self.trials.count
        for point, metrics in history.items():
            numbers = [
                {n: x for n, x in row.items() if _is_number(x)} for row in table.get(point, nothing)
            ]
            rows[point] = self._rows(point, metrics, numbers, heads[0])
        text = as_csv([*heads, *(row for point in sorted(rows) for row in rows[point])]).encode()
        file = self.path / "metrics.csv"
        if not file.exists() or file.read_bytes() != text:
            files.write_whole(file, text)

    def table(self) -> dict[int, list[dict[str, str]]]:
        """Whole rows of metrics.csv, one for each trial, by points."""
        try:
            head, *lines = csv.reader((self.path / "metrics.csv").read_text().splitlines())
        except (OSError, ValueError, csv.Error):  # not there, or no table
            return {}
        rows: dict[int, list[dict[str, str]]] = {}
        place = 1 + len(self.trials.floats)
        for line in lines:
            if len(line) == len(head) and line[place].isdigit():
                rows.setdefault(int(line[place]), []).append(dict(zip(head, line)))
        return {point: lines for point, lines in rows.items() if len(lines) == self.trials.count}

    def seconds(self, point: int) -> float:
        """Of training up to a point, as metrics.csv says; 0 if it does not."""
        written = [row.get("seconds", "") for row in self.table().get(point, [])[:1]]
        return sum(float(x) for x in written if _is_number(x) and math.isfinite(float(x)))


def _is_number(text: str | None) -> bool:
    with contextlib.suppress(ValueError):
        float(text or "")
        return True
    return False


def _number(file: Path) -> int:
    """The point of a checkpoint's file."""
    return int(file.name.partition(".")[0])


# --- config.json -----------------------------------------------------------------------------

SWEEP = "sweep.json"  # in the directory of a sweep
VERSION = 1  # of what config.json holds
HAS = ("algorithm", "seeds", "floats", "options", "config")


def sessions_of(path: Path) -> list[dict[str, Any]]:
    """The entries of a run's versions.json; none where it cannot be read."""
    try:
        found = files.read_json(path / "versions.json")
    except UserError:
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def fill(folder: Path, description: dict[str, Any]) -> None:
    """The files that a run's directory has from the beginning."""
    (folder / "checkpoints").mkdir(parents=True)
    files.write_json(folder / "config.json", with_checksum(description))


def with_checksum(description: dict[str, Any]) -> dict[str, Any]:
    """The description with its checksum, so that a damaged digit does not change a run."""
    plain = {name: value for name, value in description.items() if name != "checksum"}
    text = json.dumps(plain, sort_keys=True)
    # First, so that what is left is JSON if the line is taken out.
    return {"checksum": hashlib.sha256(text.encode()).hexdigest()[:16]} | plain


def read_description(file: Path, edited: bool = False) -> dict[str, Any]:
    """What a config.json holds.

    Args:
      file: its path.
      edited: somebody may have changed it.

    Raises:
      UserError: there is none, or it is not of a run, or of another version of the kit, or damaged.
    """
    wanted = "a run's config.json or a sweep's best.json" if edited else "the directory of a run"
    sweep = file.parent.parent
    if not file.exists() and file.parent.name.startswith("chunk_") and (sweep / SWEEP).exists():
        raise UserError(f"{file.parent} is gone, a part of the sweep {sweep}: put it back")
    try:
        description = files.read_json(file, wanted)
    except UserError as error:
        raise _with_hint(file, error) from None
    for name in HAS:
        if not isinstance(description, dict) or name not in description:
            if file.name == SWEEP:
                best = " or ".join(sorted(map(str, file.parent.glob("best*.json"))))
                raise UserError(
                    f"{file} is of a sweep; its best setting is in {best or 'best.json'}"
                )
            raise UserError(f"{file} is not of a run of this kit: it has no {name}")
    check_version(file, description)
    checksum = description.pop("checksum", None)
    if not edited and checksum not in (None, with_checksum(description)["checksum"]):
        raise UserError(
            f"{file} is damaged: its checksum does not match its content; if you have changed it "
            'on purpose, set "checksum" to null'
        )
    return description


def _with_hint(file: Path, error: UserError) -> UserError:
    """The error, with a hint if a removed line has left its comma behind."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if re.search(r",\s*}\s*$", file.read_text()):
            return UserError(f"{error}; remove the comma before the last brace")
    return error


def check_version(file: Path, description: dict[str, Any]) -> None:
    """Refuses what another version of the kit has written."""
    if (version := description.get("version")) != VERSION:
        is_of = "has no version" if version is None else f"has version {version}"
        raise UserError(
            f"{file} {is_of}, this kit reads version {VERSION}: use the commit that versions.json "
            "beside it names"
        )
