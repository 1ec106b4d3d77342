"""Breaks training processes at random moments, and compares the result with an unbroken run.

    python tests/faults.py [--faults 100] [--seed 0] [--module toy] [--kinds kill,term] [--jobs 2]
                           [--only 17] [--keep DIR]

Each fault starts a run by the command line, breaks it and resumes it until it is finished. Then all
files must equal those of an unbroken run, bit for bit. Points after the newest whole state may be
lost. Points up to it may not be trained or written again. Kinds and moments come from --seed;
--only 17 repeats the fault of that number.

    kill, term, interrupt   signals, from the start of a process to its end, also several in turn;
                            SIGTERM and Ctrl-C finish and save the point: exit codes 143 and 130
    requeue                 the same with one command, --run-dir DIR --resume-if-exists
    disk                    full for a while: unsaved points are named, and no more are lost
    byte                    a file is damaged: a damaged state is named and the one before it used;
                            other files are made anew, left out, or named by a refusal
    missing                 files are gone: without any state, but with policies, a run is refused
    two                     processes on one directory: one of them trains, the other is refused
    sweep                   signals in a sweep of several chunks
    halving                 signals in a sweep with rungs and a retest
    pbt                     signals in a run of populations

A refused process ends with exit code 2 and changes no file. A traceback is always a failure, with
two exceptions: an abort by a second Ctrl-C, and Ctrl-C while Python still imports.
"""

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from algorithms.launch import cli  # noqa: E402
from tests import broken  # noqa: E402
from tests.broken import (  # noqa: E402
    Case,
    Failure,
    count_lost,
    damage,
    differences,
    newest,
    number,
    saved,
    small_disk,
    states,
    tree,
)

SMALL = {  # runs that take no longer than saving them
    "toy": "--total-timesteps 2000 --num-eval-episodes 1",
    "ppo": "--total-timesteps 6400 --num-eval-episodes 1 --num-envs 2 --num-steps 16 "
    "--hidden-sizes 8",
}
WHAT = {
    "run": "--num-evals 200 --num-seeds 3",
    "sweep": "--num-evals 50 --max-parallel 2 --learning-rate 0.1 0.2 0.3 0.4 0.5",
    "halving": "--num-evals 36 --max-parallel 4 --learning-rate 0.1 0.2 0.3 0.4 0.5 0.6 "
    "--num-seeds 2 --halving 2 --retest 2 --retest-seeds 3",
    "pbt": "--num-seeds 2 --pbt 60 --samples 6 --learning-rate log:0.01:1",
}
KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT

# --- signals ---------------------------------------------------------------------------------


def break_off(case: Case, number_: int, start=None, twice: bool = False) -> None:
    """Ends a process by a signal and checks the files that it leaves."""
    before, child = saved(case.root), (start or case.go_on)()
    case.pause(child)
    case.strike(child, number_)
    if twice:
        time.sleep(case.rng.uniform(0, 0.1))
        child.send_signal(number_)
    codes = {-number_} if number_ == KILL else {128 + number_}
    if child.struck >= newest(case.whole) - 2:  # perhaps after it
        codes |= {0, -number_}
    if child.struck <= child.first:  # perhaps before the loop
        codes |= {-number_} | ({1} if number_ == INT else set())  # 1: an import failed
    code = case.end(child, *codes, aborted=twice)
    case.lost += count_lost(before)
    for folder, files in states(case.root).items():
        policies = [number(file) for file in folder.glob("[0-9]*.policy")]
        half = max(policies, default=-1) > max(map(number, files), default=-1)
        if half and code == 128 + number_ and not twice:
            raise Failure(f"point {max(policies)} is half saved")


def kill(case: Case) -> None:
    for _ in range(case.rng.randint(1, 3)):
        break_off(case, KILL)
    case.finish()


def term(case: Case) -> None:
    break_off(case, TERM)
    case.finish()


def interrupt(case: Case) -> None:
    break_off(case, INT, twice=case.rng.random() < 0.5)
    case.finish()


def sweep(case: Case) -> None:
    for _ in range(case.rng.randint(1, 2)):
        break_off(case, case.rng.choice((KILL, KILL, TERM, INT)))
    case.finish()


def halving(case: Case) -> None:
    sweep(case)


def pbt(case: Case) -> None:
    sweep(case)


def requeue(case: Case) -> None:
    start = lambda: case.start("--run-dir", case.root / "one", "--resume-if-exists", *case.words)
    for _ in range(case.rng.randint(1, 3)):
        break_off(case, case.rng.choice((KILL, TERM)), start)
    case.finish(start=start)


# --- disks and files -------------------------------------------------------------------------


def disk(case: Case) -> None:
    with small_disk(case) as (fill, make_room):
        if case.rng.random() < 0.3:
            case.kill_near(100)
        before, child, killed = saved(case.root), case.go_on(), case.rng.random() < 0.5
        case.pause(child)
        case.note(child, "full")
        fill()
        time.sleep(case.rng.uniform(0, 2))
        case.note(child, "room")
        make_room()
        began = child.struck > child.first
        if killed:
            case.pause(child)
            case.strike(child, KILL)
        case.end(child, 0, cli.NOT_SAVED, *[-KILL] * killed, *[2] * (not began))
        case.lost += count_lost(before)
        case.excused["unsaved"] = unsaved_points(case.text(child))
        case.finish()


def unsaved_points(text: str) -> set[int]:
    """The points that warnings name: the first one of a failure, and all of them at its end."""
    found = re.findall(r"points? ([\d, to]+) w(?:as|ere) not saved", text)
    found += re.findall(r"not saved: checkpoints of points? ([\d, to]+)", text)
    spans = [span for part in found for span in re.findall(r"(\d+)(?: to (\d+))?", part)]
    return {i for first, last in spans for i in range(int(first), int(last or first) + 1)}


def byte(case: Case) -> None:
    finished = case.kill_near(150, finished=0.2)
    directory, rng = case.directory(), case.rng
    folder = directory / "checkpoints"
    state, policies = states(directory)[folder][-1], sorted(folder.glob("[0-9]*.policy"))
    others = [directory / name for name in ("metrics.csv", "config.json", "versions.json")]
    file = rng.choice([state, state, state, rng.choice(policies), *others])
    how, data = rng.choice(("flip", "flip", "cut", "empty")), file.read_bytes()
    damage(file, how, rng)
    case.moments.append(f"{how} {file.name}")
    if file == state:
        child = case.finish(state)
        if file.name not in case.text(child) + case.text(child, "out"):
            raise Failure(f"{file.name} is not named")
        return
    if file.suffix == ".policy" and number(file) <= number(state):
        case.excused = {"unsaved": {number(file)}, "spoilt": {file.name}}
    before, there, child = saved(case.root), tree(case.root), case.go_on()
    if child.wait(broken.SECONDS) == 2:
        case.expect_refusal(child, there, file.name)
        file.write_bytes(data)
        case.finish()
        return
    case.end(child, 0)
    case.lost += count_lost(before)
    if finished and file.name == "versions.json":  # no session has begun that would be written
        case.excused = {"spoilt": {file.name}}


def missing(case: Case) -> None:
    finished = case.kill_near(150, finished=0.2)
    directory = case.directory()
    folder = directory / "checkpoints"
    mine, policies = states(directory)[folder], sorted(folder.glob("[0-9]*.policy"))
    groups = [[directory / name] for name in ("metrics.csv", "versions.json", "curve.png")]
    groups += [mine[-1:], mine, [case.rng.choice(policies)]]
    groups = [group for group in groups if group[0].exists()]
    chosen = case.rng.sample(groups, case.rng.randint(1, 3))
    gone = {f: f.read_bytes() for group in chosen for f in group if f.exists()}
    for file in gone:
        file.unlink()
    case.moments.append("without " + " ".join(sorted(f.name for f in gone)))
    if not states(directory)[folder]:
        case.expect_refusal(case.go_on(), tree(case.root))
        for file in mine:
            file.write_bytes(gone[file])
    last = states(directory)[folder][-1]
    lost = {f for f in gone if f.suffix == ".policy" and number(f) <= number(last)}
    done = {"versions.json"} if finished and last == mine[-1] else set()
    case.excused = {"unsaved": set(map(number, lost)), "spoilt": done | {f.name for f in lost}}
    case.finish()


# --- two processes ---------------------------------------------------------------------------


def two(case: Case) -> None:
    kind = case.rng.choice((second, both, twins, heir))
    case.moments.append(kind.__name__)
    kind(case)


def second(case: Case) -> None:
    """Resumes a run while it trains. The first process is paused, so that it does not finish
    first."""
    first, point = case.new(), case.rng.randint(0, 150)
    case.await_state(first, point)
    case.strike(first, signal.SIGSTOP)
    case.expect_refusal(case.go_on(), tree(case.root))
    first.send_signal(signal.SIGCONT)
    case.end(first, 0)


def both(case: Case) -> None:
    """Starts two resumes at once."""
    case.kill_near(50)
    before, children = saved(case.root), [case.go_on(), case.go_on()]
    codes = [child.wait(broken.SECONDS) for child in children]
    for child, code in zip(children, [2, 0] if codes[0] else [0, 2]):
        case.end(child, code)
    case.lost += count_lost(before)


def twins(case: Case) -> None:
    """Starts two new runs in one folder at once."""
    for child in [case.new(), case.new()]:
        case.end(child, 0)
    made = sorted(case.root.iterdir())
    wrong = [text for folder in made for text in differences(case.whole, folder)]
    if len(made) != 2 or wrong:
        raise Failure(f"{len(made)} directories; {'; '.join(wrong)}")


def heir(case: Case) -> None:
    """Resumes at once after a kill."""
    child = case.new()
    case.pause(child)
    case.strike(child, KILL)
    case.finish()
    case.end(child, -KILL, 0)


# --- all of them -----------------------------------------------------------------------------

KINDS = {
    f.__name__: f
    for f in (kill, term, interrupt, requeue, disk, byte, missing, two, sweep, halving, pbt)
}


def try_fault(
    lab: SimpleNamespace, wholes: dict[str, Path], index: int, kind: str, seed: int
) -> tuple[str, int, bool]:
    """Returns the kind, the number of lost points, and whether something failed."""
    what = kind if kind in WHAT else "run"
    words = f"{SMALL[lab.module]} {WHAT[what]}".split()
    case = Case(lab, f"{index:03d}-{kind}", words, wholes[what], seed)
    wrong = ""
    try:
        KINDS[kind](case)
        wrong = "; ".join(differences(case.whole, case.directory(), **case.excused))
    except (Failure, subprocess.TimeoutExpired) as failure:
        wrong = str(failure)
    finally:
        for child in case.children:
            child.kill()
            child.wait()
    codes = " ".join(map(str, case.codes))
    line = f"{index:3d} {kind:9} lost {case.lost}, codes {codes}; {'; '.join(case.moments)}"
    print(line + (f"\n    FAILED: {wrong}".replace("\n", "\n    ") if wrong else ""), flush=True)
    return kind, case.lost, bool(wrong)


def unbroken(lab: SimpleNamespace, kind: str) -> Path:
    """Runs an unbroken run or sweep twice, and checks that both give the same files."""
    made = []
    for name in (f"whole-{kind}", f"again-{kind}"):
        case = Case(lab, name, f"{SMALL[lab.module]} {WHAT[kind]}".split())
        child = case.new()
        case.await_state(child, 0)
        lab.first = time.monotonic() - child.began
        case.await_state(child, newest(made[0]) if made else 0)
        lab.last = time.monotonic() - child.began
        case.end(child, 0)
        lab.life = time.monotonic() - child.began
        made.append(case.directory())
    wrong = differences(*made)
    if wrong:
        sys.exit(f"two unbroken runs differ: {'; '.join(wrong)}")
    return made[0]


def summary(outcomes: list[tuple[str, int, bool]]) -> int:
    """Prints the results of all faults, by kind. Returns the exit code."""
    print(f"{'kind':9} faults  lost  failed")
    for kind in [*KINDS, "all"]:
        mine = [outcome for outcome in outcomes if kind in (outcome[0], "all")]
        if mine:
            lost, failed = sum(o[1] for o in mine), sum(o[2] for o in mine)
            print(f"{kind:9} {len(mine):6} {lost:5} {failed:7}")
    return int(any(lost or failed for _, lost, failed in outcomes))


def isolate() -> None:
    """Starts this program again with its own mounts, where that is allowed."""
    if not os.environ.get(broken.MOUNTS) and shutil.which("unshare"):
        test = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", tempfile.gettempdir()]
        if not subprocess.run(test, capture_output=True).returncode:
            os.environ[broken.MOUNTS] = "1"
            os.execvp("unshare", ["unshare", "-rm", sys.executable, *sys.argv])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--module", choices=SMALL, default="toy")
    parser.add_argument("--kinds", default=",".join(KINDS), help="some of these, with commas")
    parser.add_argument("--jobs", type=int, default=1, help="faults at once")
    parser.add_argument("--only", type=int, help="number of the fault to repeat")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where to leave all files")
    asked = parser.parse_args()
    isolate()
    signal.signal(INT, signal.default_int_handler)  # children inherit an ignored signal
    rng, kinds = random.Random(asked.seed), asked.kinds.split(",")
    drawn = [(i, rng.choice(kinds), rng.getrandbits(32)) for i in range(asked.faults)]
    if asked.only is not None:
        drawn = [drawn[asked.only]]
    with tempfile.TemporaryDirectory() as temporary:
        work = (asked.keep or Path(temporary)).resolve()
        cache = {"JAX_COMPILATION_CACHE_DIR": f"{work}/compiled", "PYTHONPATH": str(ROOT)}
        cache["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        lab = SimpleNamespace(work=work, module=asked.module, environment=os.environ | cache)
        wholes = {}
        for what in ("sweep", "halving", "pbt"):
            if any(kind == what for _, kind, _ in drawn):
                wholes[what] = unbroken(lab, what)
        wholes["run"] = unbroken(lab, "run")
        full = "a small tmpfs" if os.environ.get(broken.MOUNTS) else "a patched os.fsync"
        print(f"an unbroken run takes {lab.life:.1f} s; the full disk is {full}", flush=True)
        with ThreadPoolExecutor(asked.jobs) as pool:
            return summary(list(pool.map(lambda one: try_fault(lab, wholes, *one), drawn)))


if __name__ == "__main__":
    sys.exit(main())
