"""What a visit to an accelerator measures: a list of jobs, the most valuable first.

    python tests/benchmarks/accelerator.py --minutes 8 --out DIR    # what fits into eight minutes
    python tests/benchmarks/accelerator.py --list --out DIR         # jobs, forecasts, what is done
    python tests/benchmarks/accelerator.py --only graphs --out DIR  # jobs whose names begin so
    python tests/benchmarks/accelerator.py --collect DIR            # rows into docs/results, pages
    python tests/benchmarks/accelerator.py --tiny --out DIR         # a thousandth, on a CPU
    python tests/benchmarks/accelerator.py --absent                 # compile for an absent H100

A job is a process of at most 150 seconds, compilation included. It has parts (measures.py), whose
rows are written to DIR the moment they are known. A part with kept rows of this kind of device, in
DIR or in docs/results, is not measured again without --again. So a kill loses the part that was
being measured, and training continues at its last point. Jobs share a cache of compiled programs,
DIR/programs. Their output is in DIR/logs.

A visit starts the first job of the list whose forecast fits into the time left. It ends a minute
early, and says what is next. A forecast is what the parts took when they were measured, else the
guess beside the job, which is for an H200. Jobs of the second list need an hour: only --only starts
them.

Other kits run in the Python that --peer-python names, which has rejax and jax for the accelerator,
with checkouts of PureJaxRL (--purejaxrl) and purejaxql (--purejaxql). Without them, and without an
environment's library, parts are left out.

Rows have the commit of the checkout. A copy without git has none. --collect then enters that of the
checkout that it runs in.
"""

import argparse
import collections
import contextlib
import csv
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks.cells import Cell  # noqa: E402
from tests.benchmarks.measures import (  # noqa: E402
    CASES,
    COMPARED,
    Against,
    Kernels,
    Learned,
    Pair,
    Precision,
)

PEERS = ("peer_python", "purejaxrl", "purejaxql")  # flags
LIMIT, LONG_LIMIT = 150, 3600  # seconds of a job
RESERVE = 60  # seconds at the end of a visit
TINY = "cpu, tiny"  # the device of rows that are not collected
RESULTS = ROOT / "docs" / "results"
BYTES = 80e9  # of an H100
# Tiny jobs take most of their time to compile. jaxlib 0.11 no longer has the last flag.
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
QUICK += " --xla_cpu_use_fusion_emitters=false" * version("jax").startswith("0.10")


@dataclasses.dataclass(frozen=True)
class Job:
    """A process that measures."""

    name: str
    seconds: float  # a guess, for an H200
    parts: tuple[Any, ...]
    long: bool = False  # of the list that needs an hour


# --- the jobs, the most valuable first --------------------------------------------------------


def pairs(cases: str, *changes: str) -> tuple[Pair, ...]:
    return tuple(Pair(CASES[case], change) for case in cases.split() for change in changes)


OF_GRAPHS = ("+WHILE, unrolled", "double buffering", "concurrent regions")
GRAPHS = (
    Job("graphs-1", 130, pairs("ppo-cartpole-1 alphazero-1", "+WHILE")),
    Job("graphs-2", 50, pairs("ppo-cartpole-64", "+WHILE")),
    Job("graphs-3", 80, pairs("ppo-cartpole-1-kl", "+WHILE", "+WHILE,+CONDITIONAL")),
    Job("graphs-4", 80, pairs("dqn-cartpole-1", "+WHILE", "+WHILE,+CONDITIONAL")),
    Job("graphs-5", 50, pairs("sac-pendulum-1", "+WHILE")),
    Job("graphs-6", 60, pairs("ppo_rnn-gru-1", "+WHILE")),
    Job("graphs-7", 110, pairs("ppo-cartpole-1", *OF_GRAPHS)),
    Job("graphs-8", 110, pairs("sac-pendulum-1", *OF_GRAPHS)),
)
PHYSICS = (
    *(
        Job(f"precision-{env.partition('/')[2]}", 110, (Precision(env),))
        for env in ("playground/CheetahRun", "playground/WalkerRun", "brax/ant")
    ),
    Job("warp", 120, pairs("steps-CheetahRun-2048 steps-WalkerRun-2048", "warp")),
)
SWEEPS = (
    Job("wide-sweep-ppo", 120, pairs("ppo-cartpole-1024 ppo-cartpole-4096", "bfloat16")),
    Job("wide-sweep-kernels", 60, (Kernels(CASES["ppo-cartpole-4096"]),)),
    Job("wide-sweep-sac", 70, pairs("sac-pendulum-1024", "no discarded steps")),
)
GAMES = ("Asterix", "Breakout", "Freeway", "SpaceInvaders")


def minatar(game: str) -> Iterator[Job]:
    """Ten seeds of 10M steps: PQN with purejaxql's settings and with ours, and PPO."""
    words = f"--env {game}-MinAtar --total-timesteps 10000000 --num-evals 10"
    learned = lambda name, algorithm, preset: Learned(
        name, Cell(algorithm, game, f"--preset {preset} {words}", 10)
    )
    yield Job(
        f"minatar-{game}",
        145,
        (
            learned("pqn, purejaxql's settings", "pqn", "MinAtar"),
            learned("pqn", "pqn", f"{game}-MinAtar"),
            learned("ppo", "ppo", "Breakout-MinAtar"),
        ),
    )


def minatar_peers(game: str) -> Iterator[Job]:
    for kit, algorithm in (("purejaxql", "pqn"), ("purejaxrl", "ppo")):
        cell = Cell(f"{kit}-{algorithm}", f"{game}-MinAtar", "", 10)
        yield Job(f"minatar-{game}-{kit}", 90, (Learned(cell.algorithm, cell, peer=kit),))


# In the order of the field's table; the humanoids' physics can end in NaN with new versions of jax.
TASKS = ("CheetahRun", "WalkerRun", "WalkerWalk", "CartpoleSwingup", "CartpoleSwingupSparse")
TASKS += ("FingerSpin", "HopperHop", "HopperStand", "FishSwim", "ReacherHard", "FingerTurnEasy")
TASKS += ("FingerTurnHard", "PendulumSwingup", "AcrobotSwingup", "BallInCup", "HumanoidRun")
TASKS += ("HumanoidWalk",)
NEAR = ("FingerSpin", "BallInCup")  # tasks where brax's PPO has a discount of 0.95
# Whole updates of both, near the published 5M, 13.2M and 50M: REPPO's of 131,072 steps, PPO's of
# 983,040; and points of their curves.
LENGTHS = {
    "5M": ("4980736 --num-evals 2", "4915200 --num-evals 1"),
    "13M": ("13107200 --num-evals 10", "12779520 --num-evals 13"),
    "50M": ("49807360 --num-evals 10", "50135040 --num-evals 17"),
}


def dmc(task: str, length: str = "5M") -> Job:
    """Three seeds of REPPO and of PPO on a task of playground's dm_control suite."""
    words = f"--preset dm_control --env playground/{task} --total-timesteps"
    reppo, ppo = (f"{words} {steps}" for steps in LENGTHS[length])
    ppo += " --gamma 0.95" if task in NEAR else ""
    learned = (
        Learned(name, Cell(name, f"{task}, {length}", own, 3), "playground")
        for name, own in (("reppo", reppo), ("ppo", ppo))
    )
    if length == "5M":
        return Job(f"dmc-{task}", 145, tuple(learned))
    seconds = 60 + {"13M": 180, "50M": 700}[length]
    return Job(f"dmc-{length}-{task}", seconds, tuple(learned), long=True)


def craftax(
    name: str, steps: int, points: int, seconds: float, long: bool = False
) -> Iterator[Job]:
    """Ten seeds of PPO with and without a memory on Craftax-Symbolic, five at a time.

    There is no evaluation: the published numbers are returns in training, as a share of 226.
    """
    words = f"--preset craftax/Symbolic --total-timesteps {steps} --num-evals {points}"
    words += " --num-eval-episodes 0"
    for algorithm in ("ppo", "ppo_rnn"):
        learned = Learned(algorithm, Cell(algorithm, name, words, 10), "craftax", at_once=5)
        yield Job(f"{name}-{algorithm}", seconds, (learned,), long)


def world_model(name: str, preset: str, env: str, seconds: float, library: str = "") -> Job:
    """Three seeds of DreamerV3 with the authors' sizes and train ratios."""
    words = f"--preset {preset} --env {env} --num-evals 20"
    learned = Learned("dreamer", Cell("dreamer", name, words, 3), library)
    return Job(f"dreamer-{name}", seconds, (learned,), long=True)


WORLD_MODELS = (
    world_model("Breakout", "size1m", "Breakout-MinAtar", 900),
    *(
        world_model(task, "size12m", f"playground/{task}", 3600, "playground")
        for task in ("CheetahRun", "WalkerRun", "HopperHop")
    ),
)


def flashsac(task: str, length: str, steps: int, seconds: float) -> Job:
    """Three seeds of FlashSAC with its published sizes on a task of the suite."""
    words = f"--preset dm_control --env playground/{task} --total-timesteps {steps} --num-evals 10"
    learned = Learned("flashsac", Cell("flashsac", f"{task}, {length}", words, 3), "playground")
    return Job(f"flashsac-{length}-{task}", seconds, (learned,), long=True)


FLASH = tuple(
    flashsac(task, length, steps, seconds)  # whole updates of 16 steps of 1024 environments
    for length, steps, seconds in (("10M", 9_994_240, 500), ("50M", 49_971_200, 2400))
    for task in ("CheetahRun", "WalkerRun", "HumanoidWalk")
)
JOBS = (
    *GRAPHS,
    *PHYSICS,
    *SWEEPS,
    *(job for game in GAMES for job in minatar(game)),
    *(job for game in GAMES for job in minatar_peers(game)),
    *(dmc(task) for task in TASKS),
    *craftax("craftax-1M", 1_048_576, 2, 140),
    *(Job(f"speed-{case.name}", 90, (Against(case),)) for case in COMPARED),
)
LONG = (
    *(dmc(task, length) for length in ("13M", "50M") for task in TASKS),
    *craftax("craftax-100M", 100_007_936, 7, 1800, long=True),
    *WORLD_MODELS,
    *FLASH,
)
BY_NAME = {job.name: job for job in JOBS + LONG}
# Without --only. The others differ from these in an environment or a size alone.
IN_TINY = ("graphs-*", "precision-[!W]*", "warp", "wide-*", "minatar-Breakout*")
IN_TINY += ("dmc-PendulumSwingup", "craftax-*", "dreamer-Breakout", "speed-ppo-wide-*")
IN_TINY += ("flashsac-10M-CheetahRun",)
# Not the convolutions: one update of those takes a CPU minutes.
IN_TINY += ("speed-*-cartpole-1", "speed-*-breakout-1", "speed-*-pendulum-1")


# --- what is kept -----------------------------------------------------------------------------


def slug(device: str) -> str:
    return device.replace(",", "").replace(" ", "-")


class Kept:
    """The measured parts of a folder and of docs/results, with the seconds that they took."""

    def __init__(self, out: Path, results: Path = RESULTS):
        self.seconds: dict[tuple[str, str], dict[str, float | None]] = collections.defaultdict(dict)
        for file in sorted(results.glob("gpu-*.csv")):
            for row in csv.DictReader(file.open()):
                taken = row["took"].partition(" ")[0]
                seconds = float(taken) if taken != "-" else None
                self.seconds[row["job"], row["part"]][row["device"]] = seconds
        for file in sorted(out.glob("*.json")):
            self.add(read(file))

    def add(self, measured: list[dict[str, Any]]) -> None:
        for part in measured:
            self.seconds[part["job"], part["part"]][part["device"]] = part["seconds"]

    def devices(self, job: Job) -> list[str]:
        """Those that all parts are known of."""
        known = [set(self.seconds[job.name, part.name]) for part in job.parts]
        return sorted(set.intersection(*known))

    def left(self, job: Job, device: str, again: bool) -> list[Any]:
        """Parts that are still to be measured."""
        known = lambda part: not again and device in self.seconds[job.name, part.name]
        return [part for part in job.parts if not known(part)]

    def forecast(self, job: Job, parts: Sequence[Any], device: str) -> float:
        """Seconds of these parts: those of this device, else of others, else a share of a guess."""

        def of_part(part: Any) -> float:
            taken = self.seconds[job.name, part.name]
            known = [x for x in (taken.get(device), *taken.values()) if x is not None]
            return known[0] if known else job.seconds / len(job.parts)

        return sum(map(of_part, parts))


def read(file: Path) -> list[dict[str, Any]]:
    """The parts that a folder keeps of a device: job, part, device, table, seconds, of, rows."""
    return json.loads(file.read_text()) if file.exists() else []


def write(file: Path, part: dict[str, Any]) -> None:
    """Puts a part in the place of an earlier measurement of it, whole or not at all."""
    same = lambda other: (other["job"], other["part"]) == (part["job"], part["part"])
    measured = [other for other in read(file) if not same(other)] + [part]
    half = file.with_suffix(".half")
    half.write_text(json.dumps(measured, indent=1))
    half.replace(file)


def collect(out: Path, results: Path = RESULTS) -> None:
    """Enters a folder's rows into docs/results."""
    from tests.benchmarks import report

    for file in sorted(out.glob("*.json")):
        for part in read(file):
            if part["device"] == TINY:
                continue
            of = part["of"] if part["of"].partition(",")[0] else f"{commit()}{part['of']}"
            head = {name: part[name] for name in report.MEASURED}
            tail = {"took": f"{part['seconds']:.0f} s", "of": of}
            rows = [{**head, **row, **head, **tail} for row in part["rows"]]  # its name first
            report.keep(part["table"], rows, results, by=report.MEASURED)
            print(f"{part['device']}: {part['job']}, {part['part']}, {len(rows)} rows")


def commit() -> str:
    """The checkout's; empty without git."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--short=7", "HEAD"]
    with contextlib.suppress(OSError):
        return subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return ""


# --- a job's process --------------------------------------------------------------------------


def work(args: argparse.Namespace) -> None:
    """Measures the parts of a job that are left, in this process."""
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    args.runs, began = Path(args.runs), BEGAN
    for part in BY_NAME[args.job].parts:
        if part.name not in args.parts:
            continue
        rows, now = part.rows(args), time.perf_counter()
        made = {"job": args.job, "part": part.name, "device": args.device, "table": part.table}
        made |= {"seconds": now - began, "of": f"{commit()}, jax {version('jax')}", "rows": rows}
        write(Path(args.file), made)
        began = now


def end_with(parent: int) -> None:
    """Ends this process when its parent has gone: nobody would stop it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def compile_absent(args: argparse.Namespace) -> None:
    """Compiles the first part's program for an absent H100, and prints seconds and bytes."""
    from envs import loops
    from tests.benchmarks import absent

    loops.platform = lambda: absent.PLATFORMS["h100"]
    function, shapes = BY_NAME[args.job].parts[0].program(args)
    done = absent.compile_for("h100", function, *shapes)
    print(json.dumps({"seconds": done.seconds, "bytes": sum(done.memory.values())}))


# --- a visit ----------------------------------------------------------------------------------


def missing(part: Any, args: argparse.Namespace) -> list[str]:
    """Libraries and flags that a part needs and that are not there."""
    given = lambda flag: getattr(args, flag[2:].replace("-", "_"))
    there = lambda need: given(need) if need.startswith("--") else find_spec(need)
    return [need for need in part.needs if not there(need)]


def possible(jobs: Sequence[Job], args: argparse.Namespace) -> list[Job]:
    """The jobs with the parts that can be measured here. Says which cannot."""
    found = []
    for job in jobs:
        parts = tuple(part for part in job.parts if not missing(part, args))
        for part in job.parts:
            if part not in parts:
                needs = " and ".join(missing(part, args))
                print(f"{job.name}, {part.name}: left out, it needs {needs}")
        if parts:
            share = len(parts) / len(job.parts)
            found.append(dataclasses.replace(job, parts=parts, seconds=share * job.seconds))
    return found


def visit(
    jobs: Sequence[Job],
    kept: Kept,
    device: str,
    seconds: float,
    start: Callable[[Job, list[Any], float], None],
    again: bool = False,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Starts jobs in turn, while one fits into the time left.

    Args:
      seconds: of the visit, without its reserve.
      start: start(job, parts, limit) runs a job for at most `limit` seconds.
    """
    end, tried = now() + seconds, set()
    while todo := [j for j in jobs if j not in tried and kept.left(j, device, again)]:
        left = end - now()
        forecasts = {j: kept.forecast(j, kept.left(j, device, again), device) for j in todo}
        job = next((j for j in todo if forecasts[j] <= left), None)
        if job is None:
            first, needed = todo[0].name, forecasts[todo[0]]
            print(f"{left:.0f} s are left; next is {first}, forecast {needed:.0f} s")
            return
        print(f"{job.name}: forecast {forecasts[job]:.0f} s", flush=True)
        slow = job.long or device == TINY
        start(job, kept.left(job, device, again), min(LONG_LIMIT if slow else LIMIT, left))
        tried.add(job)
    print("nothing is left: all jobs are kept or were tried")


def run(job: Job, parts: list[Any], limit: float, args: argparse.Namespace) -> None:
    """Runs a job in a process of its own, which is killed at its limit."""
    log = args.out / "logs" / f"{job.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    file = args.out / f"{slug(args.device)}.json"
    told = {"job": job.name, "parts": [part.name for part in parts], "file": str(file)}
    told |= {name: getattr(args, name) for name in ("device", "tiny", "again", *PEERS)}
    told["runs"] = str(args.out / "runs" / slug(args.device))
    began = time.monotonic()
    with log.open("a") as output:
        process = subprocess.Popen(
            [sys.executable, __file__, "--worker", json.dumps(told)],
            env=environment(args),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that its own workers end with it
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    ended = {0: "done", None: "stopped at its limit"}.get(code, "failed")
    why = f", see {log}" if ended == "failed" else ""
    print(f"  {ended} after {time.monotonic() - began:.0f} s{why}", flush=True)


def environment(args: argparse.Namespace) -> dict[str, str]:
    """Variables of a job's process."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(args.out / "programs")}
    cache["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"
    if not args.tiny:
        return os.environ | cache | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    flags = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}"
    return cache | os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}


def accelerator() -> str:
    """The kind of the accelerator that jax finds, in a process that lets go of it again."""
    code = "import jax; device = jax.devices()[0]; print(device.platform, device.device_kind)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    platform, _, kind = done.stdout.strip().partition(" ")
    if done.returncode or platform == "cpu":
        found = done.stderr.strip().rpartition("\n")[2] if done.returncode else "only a CPU"
        sys.exit(f"error: jax finds no accelerator ({found}); --tiny runs on a CPU")
    return kind


def show(kept: Kept) -> None:
    """Prints both lists."""
    for title, jobs in (("at most 150 s each", JOBS), ("needs an hour, by --only", LONG)):
        whole = {job: kept.forecast(job, job.parts, "") for job in jobs}
        done = {job: ", ".join(kept.devices(job)) for job in jobs}
        print(f"{title}:")
        for job in jobs:
            known = f"  done on {done[job]}" if done[job] else ""
            print(f"  {job.name:32} {whole[job]:6.0f} s{known}")
        new = [whole[job] for job in jobs if not done[job]]
        print(f"  {len(jobs)} jobs of {sum(whole.values()):.0f} s; done on no device: ", end="")
        print(f"{len(new)} of {sum(new):.0f} s")


def show_absent(jobs: Sequence[Job], args: argparse.Namespace) -> bool:
    """Compiles a program of each job for an absent H100. Returns whether all compile and fit."""
    from tests.benchmarks import absent, launches, peer_python

    env, fine = absent.environment(peer_python.plugins()), True
    for job in possible(jobs, args):
        told = {"job": job.name, **{name: getattr(args, name) for name in PEERS}}
        python = args.peer_python if getattr(job.parts[0], "peer", "") else sys.executable
        done, cublas = absent.run([python, __file__, "--absent-worker", json.dumps(told)], env)
        if done.returncode:
            why = launches.complaint(done.stderr)
            print(f"{job.name}: exit code {done.returncode}, {why}", flush=True)
            fine = False
            continue
        found = json.loads(done.stdout.strip().rpartition("\n")[2])
        fits = found["bytes"] <= BYTES
        fine &= fits
        size = f"{found['bytes'] / 1e9:.2f} GB{'' if fits else ', too much'}"
        print(f"{job.name}: {size}, {found['seconds']:.0f} s{', by cuBLAS' * cublas}", flush=True)
    return fine


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, help="length of the visit")
    parser.add_argument("--out", type=Path, default=Path("runs/accelerator"), metavar="DIR")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="jobs whose names begin so")
    parser.add_argument("--again", action="store_true", help="also what is kept")
    parser.add_argument(
        "--tiny", action="store_true", help="a thousandth of each kind of job, on a CPU"
    )
    for kit in ("purejaxrl", "purejaxql"):
        parser.add_argument(f"--{kit}", metavar="DIR", help="a checkout of it")
    parser.add_argument("--peer-python", metavar="PATH", help="a Python that has rejax")
    parser.add_argument("--list", action="store_true", help="jobs, forecasts, what is done")
    parser.add_argument("--collect", type=Path, metavar="DIR", help="rows into docs/results")
    parser.add_argument("--absent", action="store_true", help="compile for an absent H100")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--absent-worker", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    asked = (args.minutes, args.only, args.tiny, args.list, args.collect, args.absent)
    if not any((*asked, args.worker, args.absent_worker)):
        parser.error("give --minutes, --only, --tiny, --list, --collect or --absent")
    for name in args.only or ():
        if not any(job.startswith(name) for job in BY_NAME):
            parser.error(f"--only {name}: no job begins so; --list shows them")
    if args.minutes and (long := [job.name for job in chosen(args) if job.long]):
        parser.error(f"--only {long[0]}: it needs an hour, so leave --minutes out")
    for kit in ("purejaxrl", "purejaxql"):
        if folder := getattr(args, kit):
            setattr(args, kit, os.path.abspath(folder))
    return args


def chosen(args: argparse.Namespace) -> list[Job]:
    """The jobs that are asked for."""
    if args.only:
        return [job for job in JOBS + LONG if job.name.startswith(tuple(args.only))]
    patterns = IN_TINY if args.tiny else ("*",)
    return [job for job in JOBS if any(fnmatch(job.name, pattern) for pattern in patterns)]


def main() -> None:
    args = parse()
    if args.worker:
        return work(argparse.Namespace(**args.worker))
    if args.absent_worker:
        return compile_absent(argparse.Namespace(**args.absent_worker))
    if args.collect:
        from tests.benchmarks import learning

        collect(args.collect)
        return learning.write()
    if args.list:
        return show(Kept(args.out))
    jobs = chosen(args)
    if args.absent:
        sys.exit(not show_absent(jobs, args))
    args.device = TINY if args.tiny else accelerator()
    args.out.mkdir(parents=True, exist_ok=True)
    seconds = 60 * args.minutes - RESERVE if args.minutes else math.inf
    start = lambda job, parts, limit: run(job, parts, limit, args)
    print(f"on {args.device}, rows in {args.out}", flush=True)
    visit(possible(jobs, args), Kept(args.out), args.device, seconds, start, args.again)


if __name__ == "__main__":
    main()
