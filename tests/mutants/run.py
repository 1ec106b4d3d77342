"""Breaks the kit one line at a time, and shows whether its tests notice.

    python tests/mutants/run.py --sample 20 [--seed 0]   # a few minutes of two cores
    python tests/mutants/run.py --all [--jobs 2]         # the whole list
    python tests/mutants/run.py --only 7,12              # these numbers of the list
    python tests/mutants/run.py --file algorithms/ppo.py

The list, list.json, has mutants that the tests notice: *red* ones. Each is a changed line. The exit
code is 1 if one is not red any more: then the protection of that line is lost. Words of a line
printed:

    red      a test fails; the last word names it
    GREEN    no test fails
    BROKEN   a test fails, and without the change it fails, too
    timeout  the tests take longer than --limit seconds
    stale    the old text is not in the code, or not unique: renew this mutant in list.json
    skipped  a library that the tests need is missing

A mutant is found by its text: in its function, else anywhere in its file, else anywhere in
algorithms/ and envs/. So the list survives moves of code. Each test runs on a copy of the tree,
with the line changed: first the test that was red before, then the wider selection.

To add mutants, write them into another list and keep the red ones, with their tests:

    python tests/mutants/run.py --draw 160 --seed 1 --list new.json   # random changes
    python tests/mutants/run.py --all --list new.json --keep

A list made by hand needs `file`, `in`, `old`, `new` and `tests` of each mutant, see find().
"""

import argparse
import ast
import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("list.json")
CODE = ("algorithms", "envs")
OPTIONS = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--disable-warnings")
# Imported once, before a process is forked for each test run. None of them starts jax's backend or
# a thread, as gymnax does, so the forked process is as good as a new one.
LIBRARIES = (
    *("jax", "jax.numpy", "jax.scipy.stats", "flax.linen", "flax.serialization", "optax", "chex"),
    *("pytest", "xdist", "tensorflow_probability.substrates.jax", "distrax", "rlax", "tyro"),
    *("orbax.checkpoint", "wandb", "matplotlib.pyplot", "pandas", "scipy.stats", "seaborn"),
    *("pygame", "PIL.Image"),
)
RED, GREEN, BROKEN = "red", "GREEN", "BROKEN"
TIMEOUT, STALE, SKIPPED = "timeout", "stale", "skipped"

Mutant = dict[str, Any]


# --- the list ---------------------------------------------------------------------------------


class Stale(Exception):
    """The old text of a mutant is not in the code, or not unique."""


@functools.cache
def spans(source: str) -> list[tuple[str, int, int]]:
    """The dotted name of each function and class, its first line from 0, and the line after it."""

    def visit(node: ast.AST, name: str) -> Iterator[tuple[str, int, int]]:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = f"{name}.{child.name}".lstrip(".")
                yield inner, child.lineno - 1, child.end_lineno or 0
            yield from visit(child, inner)

    return [("", 0, len(source.splitlines())), *visit(ast.parse(source), "")]


def enclosing(source: str, line: int) -> str:
    """The dotted name of the innermost function or class around a line, counted from 0."""
    around = [span for span in spans(source) if span[1] <= line < span[2]]
    return min(around, key=lambda span: span[2] - span[1])[0]


@functools.cache
def stripped(source: str) -> list[str]:
    return [line.strip() for line in source.splitlines()]


def places(source: str, text: str, name: str | None = None) -> list[int]:
    """Where lines stand that are `text` without their indentation, in a function or anywhere."""
    lines, wanted = stripped(source), text.split("\n")
    found = [i for i in range(len(lines)) if lines[i : i + len(wanted)] == wanted]
    if name is None:
        return found
    inside = [(first, end) for other, first, end in spans(source) if other == name]
    return [i for i in found if any(first <= i < end for first, end in inside)]


def find(mutant: Mutant, root: Path) -> tuple[Path, int]:
    """The file and the first line, counted from 0, of a mutant's old text.

    file, in    where it stood: a file, and the dotted name of a function or class, or ""
    old, new    whole lines without indentation; several are separated by newlines
    which       [k, n] if it stood there n times: the k-th, counted from 1
    """
    file, text = root / mutant["file"], mutant["old"]
    if file.exists():
        source = file.read_text()
        found = places(source, text, mutant["in"])
        k, n = mutant.get("which", (1, 1))
        if len(found) == n:
            return file, found[k - 1]
        if len(found) == 0 and len(found := places(source, text)) == 1:
            return file, found[0]
        if found:
            raise Stale(f"its old text stands {len(found)} times in {mutant['file']}")
    files = [file for folder in CODE for file in sorted((root / folder).rglob("*.py"))]
    hits = [(file, line) for file in files for line in places(file.read_text(), text)]
    if len(hits) != 1:
        raise Stale(f"its old text stands {len(hits)} times in {' and '.join(CODE)}")
    return hits[0]


def mutated(mutant: Mutant, root: Path) -> tuple[Path, str]:
    """The file of a mutant and its text with the change."""
    file, start = find(mutant, root)
    lines, number = file.read_text().splitlines(), len(mutant["old"].split("\n"))
    indent = lambda line: line[: len(line) - len(line.lstrip())]
    new = mutant["new"].split("\n")
    old = lines[start : start + number]
    old += old[-1:] * (len(new) - number)
    lines[start : start + number] = [indent(was) + line for was, line in zip(old, new)]
    return file, "\n".join(lines) + "\n"


def read(path: Path) -> list[Mutant]:
    return json.loads(path.read_text()) if path.exists() else []


def write(path: Path, mutants: Sequence[Mutant]) -> None:
    """Numbers them in order, each in a block of its own."""
    blocks = []
    for number, mutant in enumerate(mutants, 1):
        entries = [(k, v) for k, v in mutant.items() if k not in ("number", "in")]
        head = f'"number": {number}, "in": {json.dumps(mutant["in"])}'
        rows = [head, *(f'"{key}": {json.dumps(value)}' for key, value in entries)]
        blocks.append(" {" + ",\n  ".join(rows) + "}")
    path.write_text("[\n" + ",\n".join(blocks) + "\n]\n")


def same(mutant: Mutant) -> tuple[str, ...]:
    return tuple(str(mutant.get(key)) for key in ("file", "in", "old", "new", "which"))


def keep(results: Sequence["Result"]) -> None:
    """Adds the red mutants to the list, each with the test that was red before the others."""
    kept = {same(mutant): mutant for mutant in read(LIST)}
    for result in results:
        if result.status == RED:
            wider = [words for words in result.mutant["tests"] if "::" not in words]
            tests = [shlex.quote(result.killer)] * ("::" in result.killer) + wider
            kept[same(result.mutant)] = result.mutant | {"tests": tests}
    write(LIST, [*kept.values()])  # new ones at the end


# --- running tests ----------------------------------------------------------------------------


@dataclasses.dataclass
class Result:
    mutant: Mutant
    status: str
    seconds: float
    killer: str = ""  # the test that fails first, or what else there is to say


@dataclasses.dataclass
class Worker:
    """A copy of the tree, and the tests of one mutant that run there."""

    copy: Path
    mutant: Mutant | None = None
    selections: list[str] = dataclasses.field(default_factory=list)
    process: int = 0
    began: float = 0.0
    restore: tuple[Path, str, float] | None = None
    killer: str = ""  # the test that failed, while it runs without the change

    def put_back(self) -> None:
        """The file without the change."""
        if self.restore:
            file, text, changed = self.restore
            file.write_text(text)
            os.utime(file, (changed, changed))
        self.restore = None

    @property
    def told(self) -> Path:
        return self.copy.with_suffix(".red")

    @property
    def log(self) -> Path:
        return self.copy.with_suffix(".log")


class Recorder:
    """A plugin of pytest that writes down the first failure."""

    def __init__(self, told: Path):
        self.told = told

    def record(self, report: Any) -> None:
        if report.failed and not self.told.exists():
            self.told.write_text(report.nodeid)

    pytest_runtest_logreport = pytest_collectreport = record


def import_libraries() -> None:
    """Imports what every test run needs, and checks that nothing forbids forking then."""
    os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
    os.environ["MPLBACKEND"] = "agg"
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # it would start threads when it is imported
    for name in LIBRARIES:
        if importlib.util.find_spec(name.split(".")[0]) is not None:
            importlib.import_module(name)
    from jax._src import xla_bridge

    tasks = Path("/proc/self/task")
    threads = len(list(tasks.iterdir())) if tasks.exists() else 1
    assert threads == 1 and not xla_bridge._backends, "a library started threads or jax's backend"
    kit = {"algorithms", "envs", "tests"} & set(sys.modules)
    assert not kit, f"{kit} must be imported from the copy"


def run_tests(worker: Worker, selection: str) -> int:
    """Forks a process that runs these tests; returns its id."""
    worker.told.unlink(missing_ok=True)
    if process := os.fork():
        return process
    code = 3
    try:
        os.setsid()
        log = os.open(worker.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(worker.copy)
        mine = {str(ROOT), str(Path(__file__).parent), ""}
        sys.path[:] = [str(worker.copy), *(path for path in sys.path if path not in mine)]
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:1] + others())
        sys.argv = ["pytest"]
        words = [*OPTIONS, f"--basetemp={worker.copy}.tmp", *shlex.split(selection)]
        import pytest

        code = int(pytest.main(words, plugins=[Recorder(worker.told)]))
        sys.stdout.flush()
    except BaseException as error:
        os.write(2, f"INTERNALERROR {error!r}".encode())
    finally:
        os._exit(code)


@functools.cache
def others() -> list[str]:
    """Entries of PYTHONPATH besides this tree."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [path for path in given if path and Path(path).resolve() != ROOT]


def copy_tree(to: Path) -> None:
    """Copies all files that git does not ignore."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in done.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


class Runner:
    """Runs the tests of mutants, one at a time in each copy of the tree."""

    def __init__(self, work: Path, jobs: int, limit: float, keeps: bool = False):
        self.limit, self.keeps, self.results = limit, keeps, list[Result]()
        self.sound: set[str] = set()  # tests that passed without a change
        self.changes = int(time.time()) + 1_000_000  # times of changed files, each another second
        self.workers = [Worker(work / f"tree{i}") for i in range(jobs)]
        for worker in self.workers:
            copy_tree(worker.copy)

    def run(self, mutants: Sequence[Mutant]) -> list[Result]:
        waiting = list(reversed(mutants))
        while waiting or any(worker.mutant for worker in self.workers):
            for worker in self.workers:
                if worker.mutant is None and waiting:
                    self.begin(worker, waiting.pop())
                elif worker.mutant is not None:
                    self.look(worker)
            time.sleep(0.05)
        return self.results

    def begin(self, worker: Worker, mutant: Mutant) -> None:
        missing = [n for n in mutant.get("needs", ()) if importlib.util.find_spec(n) is None]
        worker.mutant, worker.began = mutant, time.monotonic()
        if missing:
            return self.end(worker, SKIPPED, f"{' and '.join(missing)} is not installed")
        try:
            file, text = mutated(mutant, worker.copy)
        except Stale as error:
            return self.end(worker, STALE, f"renew it: {error}")
        worker.restore = file, file.read_text(), file.stat().st_mtime
        # Python compiles a module again only if its size or its second of change is another.
        self.changes += 1
        file.write_text(text)
        os.utime(file, (self.changes, self.changes))
        worker.selections = list(mutant["tests"])
        self.proceed(worker)

    def proceed(self, worker: Worker) -> None:
        """Starts the next selection of tests, if there is one."""
        while worker.selections:
            selection = worker.selections.pop(0)
            named = [word.split("::")[0] for word in shlex.split(selection)]
            named = [word for word in named if word.startswith("tests/")]
            if all((worker.copy / word).exists() for word in named):
                worker.process = run_tests(worker, selection)
                return
        self.end(worker, GREEN)

    def look(self, worker: Worker) -> None:
        """Ends a mutant whose tests failed or take too long, or goes on with its next ones."""
        process, status = os.waitpid(worker.process, os.WNOHANG)
        if not process:
            if time.monotonic() - worker.began > self.limit:
                os.killpg(worker.process, signal.SIGKILL)
                os.waitpid(worker.process, 0)
                self.end(worker, TIMEOUT)
            return
        log = worker.log.read_text(errors="replace")
        if killer := worker.killer:
            if worker.told.exists() or status:
                return self.end(worker, BROKEN, f"{killer} fails without the change, too")
            self.sound.add(killer)
            self.end(worker, RED, killer)
        elif worker.told.exists():
            killer = worker.told.read_text()
            if killer in self.sound or "::" not in killer:  # else a file that does not import
                return self.end(worker, RED, killer)
            worker.put_back()
            alone = f"-m '' {shlex.quote(killer)}"  # it may be a slow one
            worker.killer, worker.process = killer, run_tests(worker, alone)
        elif os.WIFSIGNALED(status):
            self.end(worker, RED, f"signal {os.WTERMSIG(status)}")
        elif "while loading conftest" in log:
            self.end(worker, RED, "conftest does not import")
        elif os.WEXITSTATUS(status) == 3 or "INTERNALERROR" in log:
            self.end(worker, RED, "internal error of pytest")
        else:  # passed, or nothing is selected, or a test has another name now
            self.proceed(worker)

    def end(self, worker: Worker, status: str, told: str = "") -> None:
        worker.put_back()
        assert worker.mutant is not None
        mutant, seconds = worker.mutant, time.monotonic() - worker.began
        worker.mutant, worker.killer = None, ""
        self.results.append(Result(mutant, status, seconds, told))
        if self.keeps:  # at once: a run that is stopped has kept what it found
            keep(self.results[-1:])
        place = f"{mutant['file']} {mutant['in']}"
        print(f"{mutant['number']:>4} {status:<8} {seconds:5.1f} s  {place}  {told}", flush=True)


def summary(results: Sequence[Result]) -> str:
    areas: dict[str, dict[str, int]] = {}
    for result in results:
        folder = Path(result.mutant["file"]).parts
        area = "/".join(folder[: 2 if len(folder) > 2 and folder[0] == "algorithms" else 1])
        of_area = areas.setdefault(area, {})
        of_area[result.status] = of_area.get(result.status, 0) + 1
    lines = [
        f"{area}: " + ", ".join(f"{n} {status}" for status, n in sorted(found.items()))
        for area, found in sorted(areas.items())
    ]
    for result in results:
        if result.status not in (RED, SKIPPED):
            m = result.mutant
            lines.append(f"\n{result.status}: number {m['number']}, {m['file']}, {m['in']}")
            lines.append(f"  - {m['old']}\n  + {m['new']}")
    return "\n".join(lines)


def chosen(mutants: list[Mutant], options: argparse.Namespace) -> list[Mutant]:
    if options.only:
        return [m for m in mutants if str(m["number"]) in options.only.split(",")]
    if options.file:
        return [m for m in mutants if m["file"].startswith(options.file)]
    if options.sample:
        seed = options.seed if options.seed is not None else random.randrange(1000)
        print(f"a sample of {options.sample} with --seed {seed}", flush=True)
        return random.Random(seed).sample(mutants, min(options.sample, len(mutants)))
    return mutants


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--sample", type=int, help="so many mutants at random")
    which.add_argument("--all", action="store_true", help="the whole list")
    which.add_argument("--only", help="numbers, as 7,12")
    which.add_argument("--file", help="mutants of a file or folder")
    which.add_argument("--draw", type=int, help="write so many random changes into --list")
    parser.add_argument("--seed", type=int, help="of --sample and --draw")
    parser.add_argument("--list", type=Path, default=LIST, help="another list")
    parser.add_argument("--keep", action="store_true", help="add red mutants to list.json")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at once")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for a mutant")
    options = parser.parse_args()
    if options.draw and options.list == LIST:
        parser.error("--draw needs --list FILE, where the mutants are written")
    return options


def main() -> int:
    options = parse()
    if options.draw:
        from draw import draw

        write(options.list, draw(ROOT, options.draw, options.seed or 0))
        return 0
    began, work = time.monotonic(), Path(tempfile.mkdtemp(prefix="mutants-"))
    mutants = chosen(read(options.list), options)
    # Compiled code of one mutant serves the others, where their programs are the same.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(work / "compiled")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    others()
    import_libraries()
    runner = Runner(work, options.jobs, options.limit, options.keep)
    try:
        results = runner.run(mutants)
    finally:
        for worker in runner.workers:
            if worker.mutant is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.process, signal.SIGKILL)
        shutil.rmtree(work, ignore_errors=True)
    print(f"\n{summary(results)}\n{len(results)} mutants in {time.monotonic() - began:.0f} s")
    return int(not results or any(result.status not in (RED, SKIPPED) for result in results))


if __name__ == "__main__":
    sys.exit(main())
