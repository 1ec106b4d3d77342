"""Runs in processes that a test breaks, and checks of the files that they leave behind."""

import contextlib
import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[1]
FILES = {"toy": "tests/algorithms/launch/toy.py", "ppo": "algorithms/ppo.py"}
CLOCKS = rb'<span class="clock">.*?</span>|<td class="clock".*?</td>|<th>seconds a trial</th>'
STATE = re.compile(r"[0-9].*\.state")
SECONDS = 240  # an address that no process may take
MOUNTS = "FAULTS_MAY_MOUNT"  # set in a process that has its own mounts
# Folders to mount a full disk on. The disk is full for Python while a file exists.
NO_SPACE = """
import errno, os
def fsync(file, fsync=os.fsync):
    if os.path.exists(os.environ["FULL"]):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return fsync(file)
os.fsync = fsync
"""


class Failure(Exception):
    """A condition that must hold does not."""


# --- on disk ---------------------------------------------------------------------------------


def number(file: Path) -> int:
    """The point of a checkpoint's file."""
    return int(file.name[:6])


def states(root: Path, without: tuple[Path, ...] = ()) -> dict[Path, list[Path]]:
    """For each folder with checkpoints, the files of whole states, in order."""
    # Not by `glob`, which fails if a process renames a folder meanwhile.
    every = [(Path(at), names) for at, _, names in os.walk(root) if at.endswith("checkpoints")]
    found = {folder: [folder / f for f in sorted(f) if STATE.fullmatch(f)] for folder, f in every}
    return {folder: [f for f in files if f not in without] for folder, files in found.items()}


def chunks(root: Path, without: tuple[Path, ...] = ()) -> dict[Path, int]:
    """For each folder of a run or a chunk with whole states the newest one's point.

    The states of a sweep that is over have gone; its policies tell their points. The run of its
    best setting is made from them, and does not count.
    """
    found = {}
    for folder, files in states(root, without).items():
        over = (sweep := folder.parents[1] / "sweep.json").exists() and "kept" in sweep.read_text()
        files = files or (over and sorted(folder.glob("[0-9]*.policy")))
        if files and folder.parent.name != "best":
            found[folder] = number(files[-1])
    return found


def newest(root: Path) -> int:
    """The point of the newest whole state, in a sweep the sum over its chunks; -1 for none."""
    return sum(last.values()) if (last := chunks(root)) else -1


def saved(root: Path, without: tuple[Path, ...] = ()) -> dict[Path, int]:
    """Policies up to the newest whole state, and the time when each was written."""
    last = chunks(root, without)
    policies = [f for folder in last for f in folder.glob("[0-9]*.policy")]
    return {f: f.stat().st_mtime_ns for f in policies if number(f) <= last[f.parent]}


def count_lost(before: dict[Path, int]) -> int:
    """How many of these policies are gone or were written again."""
    return sum(not f.exists() or f.stat().st_mtime_ns != at for f, at in before.items())


def tree(root: Path) -> dict[str, str]:
    """All files below a directory, with their contents."""
    digest = lambda file: hashlib.sha256((root / file).read_bytes()).hexdigest()
    return {str(file): digest(file) for file in sorted(files(root))}


def files(root: Path) -> set[Path]:
    """All files below a directory except locks, which only name their holder."""
    return {f.relative_to(root) for f in root.rglob("*") if f.is_file() and f.name != ".lock"}


def untimed(table: bytes) -> bytes:
    """A metrics.csv or trials.csv without its last columns, which depend on the clock."""
    lines = [line.split(b",") for line in table.splitlines()]
    if not lines or b"seconds" not in lines[0]:
        return table
    count = lines[0].index(b"seconds")
    return b"".join(b",".join(line[:count]) + b"\n" for line in lines)


def damage(file: Path, how: str, rng: random.Random) -> None:
    """Flips a bit of a file, truncates it or empties it."""
    data = bytearray(file.read_bytes())
    if how == "flip":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes({"cut": data[: rng.randrange(1, len(data))], "empty": b""}.get(how, data))


def differences(
    whole: Path, found: Path, unsaved: set[int] | tuple = (), spoilt: set[str] | tuple = ()
) -> list[str]:
    """The differences of a directory from that of an unbroken run, in words.

    Args:
      whole, found: the directory of the unbroken run, and the other one.
      unsaved: points that may lack their policy and their rows.
      spoilt: names of files that may have any content.
    """
    wrong, expected = [], files(whole)
    for name in sorted(expected):
        one, other = whole / name, found / name
        point = number(name) if name.suffix in (".policy", ".state") else None
        if name.name in spoilt or (point in unsaved and not other.exists()):
            continue
        if not other.exists():
            wrong.append(f"{name} is missing")
        elif not alike(one, other, unsaved):
            wrong.append(f"{name} differs")
    for file in found.rglob("checkpoints/*"):
        kept = file.suffix == ".state" and unsaved  # two are kept, no matter which
        if file.relative_to(found) not in expected and not kept:
            wrong.append(f"{file.relative_to(found)} should not be there")
    return wrong


def alike(one: Path, other: Path, unsaved: set[int] | tuple) -> bool:
    """Whether a file equals that of an unbroken run. Versions and pictures need only exist."""
    data, expected = other.read_bytes(), one.read_bytes()
    if one.name in ("metrics.csv", "trials.csv"):
        data, expected = untimed(data), untimed(expected)
    if one.name == "report.html":  # it names its directory, and how long things took
        data = data.replace(str(other.parent).encode(), str(one.parent).encode())
        data, expected = (re.sub(CLOCKS, b"", text) for text in (data, expected))
    if one.name == "versions.json":
        with contextlib.suppress(ValueError):
            return bool(json.loads(data))
        return False
    if one.suffix == ".png":
        return data.startswith(b"\x89PNG") or data == expected
    if one.name == "metrics.csv" and unsaved:
        lines, there = (text.decode().splitlines() for text in (expected, data))
        column = lines[0].split(",").index("point")
        free = lambda line: line != lines[0] and int(line.split(",")[column]) in unsaved
        lines = [line for line in lines if line in there or not free(line)]
        return data.decode() == "".join(f"{line}\n" for line in lines)
    return data == expected


# --- in processes ----------------------------------------------------------------------------


class Case:
    """One fault: a folder of its own, a random generator, and what was observed."""

    def __init__(
        self,
        lab: SimpleNamespace,
        name: str,
        words: list[str],
        whole: Path | None = None,
        seed: int = 0,
    ):
        """Makes the folder.

        Args:
          lab: shared by all cases: the folder `work`, the module's name, the environment, and
            the seconds to the first state, the last state and the end of an unbroken process.
          name: name of its folder in lab.work.
          words: settings of its runs.
          whole: the directory of an unbroken run or sweep with these settings.
        """
        self.lab, self.words, self.whole = lab, words, whole
        self.rng = random.Random(seed)
        self.folder, self.environment = lab.work / name, lab.environment
        self.root = self.folder / "runs"
        self.root.mkdir(parents=True)
        self.children: list[subprocess.Popen] = []
        self.moments: list[str] = []
        self.codes: list[int] = []
        self.lost = 0
        self.excused: dict[str, set] = {}  # of `differences`

    def start(self, *words: str | Path) -> subprocess.Popen:
        """Starts a process of the command line."""
        base = self.folder / f"{len(self.children)}"
        command = [sys.executable, str(ROOT / FILES[self.lab.module]), *map(str, words)]
        with open(f"{base}.out", "w") as out, open(f"{base}.err", "w") as err:
            places = {"cwd": self.folder, "env": self.environment}
            child = subprocess.Popen(command, stdout=out, stderr=err, **places)
        child.base, child.began, child.first = base, time.monotonic(), newest(self.root)
        child.signals = []
        self.children.append(child)
        return child

    def new(self) -> subprocess.Popen:
        """Starts a new run or sweep."""
        return self.start(*self.words, "--run-dir-root", self.root)

    def directory(self) -> Path | None:
        """The run or sweep that can be resumed."""
        found = [f.parent for kind in ("config", "sweep") for f in self.root.glob(f"*/{kind}.json")]
        return found[-1] if found else None

    def go_on(self) -> subprocess.Popen:
        """Resumes the run if there is one, or starts one."""
        return self.start("--resume", self.directory()) if self.directory() else self.new()

    def has_finished(self) -> bool:
        wanted = [f.relative_to(self.whole) for f in self.whole.rglob("*.state")]
        return bool(self.directory()) and all((self.directory() / f).exists() for f in wanted)

    def pause(self, child: subprocess.Popen) -> None:
        """Waits for a random moment of a process's life.

        Once it trains, the moment is counted in points, so a busy machine changes nothing.
        """
        lab, moment = self.lab, self.rng.uniform(0, self.lab.life)
        if moment < lab.first:
            time.sleep(moment)
            return
        share = min((moment - lab.first) / (lab.last - lab.first), 1.0)
        goal = child.first + share * (newest(self.whole) - child.first)
        self.await_state(child, goal)
        time.sleep(max(moment - lab.last, 0.0) + self.rng.uniform(0, 0.03))

    def await_state(self, child: subprocess.Popen, goal: float) -> None:
        """Waits for a whole state of this point or later, or for the end of the process."""
        while child.poll() is None and newest(self.root) < goal:
            time.sleep(0.005)

    def note(self, child: subprocess.Popen, what: str) -> None:
        age, child.struck = time.monotonic() - child.began, newest(self.root)
        over = " (had ended)" if child.poll() is not None else ""
        self.moments.append(f"{what} at {age:.2f} s, state {child.struck}{over}")

    def strike(self, child: subprocess.Popen, signal_number: int) -> None:
        self.note(child, signal.Signals(signal_number).name)
        child.signals.append(signal_number)
        child.send_signal(signal_number)

    def text(self, child: subprocess.Popen, kind: str = "err") -> str:
        """The output of a process."""
        return Path(f"{child.base}.{kind}").read_text()

    def end(self, child: subprocess.Popen, *codes: int, aborted: bool = False) -> int:
        """Waits for a process to end with one of these exit codes."""
        code, text = child.wait(SECONDS), self.text(child)
        self.codes.append(code)
        importing = signal.SIGINT in child.signals and not re.search(r"cli.py.* in main\n", text)
        if "Traceback" in text and not (aborted or importing):
            raise Failure(f"exit code {code}: {text[text.index('Traceback') :].strip()}")
        if code not in codes:
            wanted = " or ".join(map(str, sorted(codes)))
            raise Failure(f"exit code {code} in place of {wanted}: {text[-600:].strip()}")
        return code

    def finish(self, *without: Path, start=None) -> subprocess.Popen:
        """Resumes until the run is finished."""
        before, child = saved(self.root, without), (start or self.go_on)()
        self.end(child, 0)
        self.lost += count_lost(before)
        return child

    def kill_near(self, last: int, finished: float = 0.0) -> bool:
        """Kills a new run near a point. With some probability it ends by itself; returns whether it
        did."""
        point, whole = self.rng.randint(3, last), self.rng.random() < finished
        child = self.new()
        self.await_state(child, math.inf if whole else point)
        self.strike(child, signal.SIGKILL)
        self.end(child, 0, -signal.SIGKILL)
        return self.has_finished()

    def expect_refusal(self, child: subprocess.Popen, before: dict[str, str], name="") -> None:
        """Checks that a process was refused with the right reason and changed no file."""
        self.end(child, 2)
        after = tree(self.root)
        changed = sorted(f for f in before | after if before.get(f) != after.get(f))
        if changed:
            raise Failure(f"refused, but changed {len(changed)} files: {', '.join(changed[:4])}")
        if name not in self.text(child):
            raise Failure(f"{name} is not named: {self.text(child)[-600:].strip()}")


@contextlib.contextmanager
def small_disk(case: Case):
    """A small disk for a case. Returns two functions: one fills it, the other makes room."""
    if not os.environ.get(MOUNTS):
        (case.folder / "sitecustomize.py").write_text(NO_SPACE)
        full = case.folder / "full"
        path = f"{case.folder}{os.pathsep}{case.environment['PYTHONPATH']}"
        case.environment = case.environment | {"PYTHONPATH": path, "FULL": str(full)}
        yield full.touch, full.unlink
        return
    fill = case.root / "fill"

    def occupy() -> None:
        with open(fill, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(4096)):
                pass

    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", case.root]
    subprocess.run(mount, check=True)
    try:
        yield occupy, fill.unlink
    finally:
        shutil.copytree(case.root, case.folder / "copy")
        subprocess.run(["umount", "-l", case.root], check=True)
        case.root = case.folder / "copy"
