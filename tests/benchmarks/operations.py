"""Where the time of an update goes on this CPU, operation by operation, by XLA's own profile.

    python tests/benchmarks/operations.py cartpole-4x128           # a case of speed.py
    python tests/benchmarks/operations.py sac-1x1 --largest 20     # and its 20 longest operations

The program of a case is compiled as speed.py does, for one trial, and runs once under
`jax.profiler`. Each event of the profile has the name of an operation of the compiled text, which
says in which loop it is and which Python function made it. The profile takes about half a
microsecond for each operation, so that the shares of many small ones look too large; the last row
has the time of an update without it.

- **products**: matrix products, also those with what XLA has fused to them.
- **moves**: copies, gathers, and operations that write into larger arrays.
- **sums**: reductions.
- **rest**: element-wise operations, random numbers, comparisons.
"""

import argparse
import collections
import gzip
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

import jax

from tests.benchmarks import hlo, speed

UPDATES = 40  # at least; a profile holds about a million events
SMALL = 0.01  # share of the time
MOVES = ("copy", "gather", "scatter", "dynamic-update-slice", "dynamic-slice", "concatenate")


class Cost(NamedTuple):
    """What an operation took in the whole run."""

    operation: hlo.Operation
    loop: str  # the innermost loop that it is in
    kind: str
    runs: int
    seconds: float


def kind_of(operation: hlo.Operation, found: dict[str, list[hlo.Operation]]) -> str:
    """products, sums, moves or rest."""
    inside = [one for name in operation.names("calls") for one in found.get(name, [])]
    opcodes = {operation.opcode, *(one.opcode for one in inside)}
    if "dot" in opcodes or "convolution" in opcodes or "matmul" in operation.target:
        return "products"
    if "reduce" in opcodes:
        return "sums"
    return "moves" if opcodes & set(MOVES) else "rest"


def costs(text: str, events: list[dict]) -> list[Cost]:
    """The operations of a compiled program that ran, with what the events of a profile say."""
    found, entry = hlo.computations(text)
    places, loops = hlo.Places(text), {entry: "outside of loops"}

    def enter(computation: str, loop: str) -> None:
        loops[computation] = loop
        for operation in found[computation]:
            if operation.opcode == "while":
                name = hlo.label(places.frames(operation))[0]
                for body in operation.names("body", "condition"):
                    enter(body, name)
            elif operation.opcode in hlo.INSIDE:
                keys = ("to_apply", "branch_computations", "true_computation", "false_computation")
                for body in operation.names(*keys):
                    enter(body, loop)

    enter(entry, loops[entry])
    runs, spent = collections.Counter(), collections.Counter()
    for event in events:
        if event.get("ph") == "X":
            runs[event["name"]] += 1
            spent[event["name"]] += event.get("dur", 0) * 1e-6
    return [
        Cost(one, loops[name], kind_of(one, found), runs[one.name], spent[one.name])
        for name in loops
        for one in found[name]
        if runs[one.name] and one.opcode not in hlo.INSIDE
    ]


def profile(compiled: jax.stages.Compiled, *args: Any) -> list[dict]:
    """The events of a run under jax's profiler."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(compiled(*args))
        (file,) = Path(folder).rglob("*.trace.json.gz")
        return of_operations(json.loads(gzip.decompress(file.read_bytes()))["traceEvents"])


def of_operations(events: list[dict]) -> list[dict]:
    """Of a GPU's events those of its streams, where kernels run, by their operations' names."""
    threads = [event for event in events if event.get("name") == "thread_name"]
    streams = {(e["pid"], e["tid"]) for e in threads if "Stream" in e["args"]["name"]}
    named = lambda event: event | {"name": event.get("args", {}).get("hlo_op", event["name"])}
    on_streams = [event for event in events if (event.get("pid"), event.get("tid")) in streams]
    return [named(event) for event in on_streams if event["ph"] == "X"] if streams else events


def table(ours: list[Cost], updates: int, whole: float) -> list[list[str]]:
    """A row for each loop and kind, the longest first. Those below SMALL share a row.

    Args:
      updates: of the run.
      whole: seconds of a run without the profiler.
    """
    groups: dict[tuple[str, str], list[Cost]] = collections.defaultdict(list)
    for cost in ours:
        groups[cost.loop, cost.kind].append(cost)
    seconds = lambda those: sum(cost.seconds for cost in those)
    total, rows = seconds(ours), collections.defaultdict(list)
    for place, those in sorted(groups.items(), key=lambda row: -seconds(row[1])):
        rows[place if seconds(those) >= SMALL * total else ("others", "")] += those

    def line(name, kind, those):
        runs, spent = sum(cost.runs for cost in those) / updates, 1e6 * seconds(those) / updates
        share = 100 * seconds(those) / total
        return [name, kind, f"{runs:.0f}", f"{spent:.0f}", f"{share:.1f} %"]

    return [
        *(line(*place, those) for place, those in rows.items()),
        line("all", "", ours),
        ["without the profiler", "", "", f"{1e6 * whole / updates:.0f}", ""],
    ]


def largest(ours: list[Cost], number: int, places: hlo.Places, updates: int) -> list[list[str]]:
    """The operations that took longest, each with the function that made it."""
    rows = []
    for cost in sorted(ours, key=lambda cost: -cost.seconds)[:number]:
        function, place = hlo.label(places.frames(cost.operation))
        runs, spent = cost.runs / updates, 1e6 * cost.seconds / updates
        name, loop = cost.operation.name, cost.loop
        rows.append([name, loop, function, place, f"{runs:.0f}", f"{spent:.0f}"])
    return rows


def shortened(module: Any, config: Any) -> Any:
    """The config of a run of few updates, all of which learn."""
    plan = module.make_train(config).plan
    at_once = {"learning_starts": 0} if hasattr(config, "learning_starts") else {}
    return config.replace(total_timesteps=UPDATES * plan.steps // plan.updates, **at_once)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [case.name for case in speed.CASES]
    parser.add_argument("case", choices=names, metavar="CASE", help=f"one of {', '.join(names)}")
    parser.add_argument("--largest", type=int, default=0, help="show so many single operations")
    asked = parser.parse_args()
    os.environ.setdefault("NPROC", "1")  # one thread, as the launcher has for small operations
    case = next(case for case in speed.CASES if case.name == asked.case)
    module, config = speed.our_settings(case)
    train = module.make_train(shortened(module, config))
    compiled = jax.jit(lambda key: train(key)).lower(jax.random.key(0)).compile()
    spent = []
    for seed in range(4):  # the first run is not counted
        began = time.perf_counter()
        jax.block_until_ready(compiled(jax.random.key(seed)))
        spent.append(time.perf_counter() - began)
    events = profile(compiled, jax.random.key(1))
    ours = costs(text := compiled.as_text(), events)
    head = ["loop", "kind", "operations of an update", "microseconds", "share"]
    print(speed.table(head, table(ours, train.plan.updates, min(spent[1:]))))
    if asked.largest:
        head = ["operation", "loop", "function", "place", "runs of an update", "microseconds"]
        rows = largest(ours, asked.largest, hlo.Places(text), train.plan.updates)
        print("\n" + speed.table(head, rows))


if __name__ == "__main__":
    main()
