"""The speed of an algorithm's variants, and of algorithms, next to one another.

    python tests/benchmarks/variants.py           # all of them
    python tests/benchmarks/variants.py memories control    # those whose names begin so
    python tests/benchmarks/variants.py --keep    # and put it into the documentation

ppo_rnn runs with each memory against minGRU, with eight environments and 16 gradient steps on
sequences of 128 steps. ppo_vtrace runs with Muon and with Adam against ppo, with equal rollouts,
gradient steps and samples in each, on CartPole-v1. reppo, sac and ppo run with their presets of
Pendulum-v1, whose steps for each gradient step differ. One seed, no evaluation. The sides of a
comparison take turns, so that other load hits all sides alike. Figures are medians of `--runs`
runs, after one that is not counted.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax

sys.path.insert(0, str(Path(__file__).parents[2]))

from algorithms import ppo, ppo_rnn, ppo_vtrace, reppo, sac
from algorithms.presets import PRESETS
from tests.benchmarks import learning, report


class Side(NamedTuple):
    module: Any
    settings: dict[str, Any]


class Comparison(NamedTuple):
    name: str
    settings: dict[str, Any]  # of all sides
    sides: dict[str, Side]  # the first is what the others are compared with


# All inputs pass through the memory.
THROUGH = {"skip": False, "normalize_over": "minibatch", "hidden_sizes": (64,)}
CELLS = ("gru", "lstm", "mingru", "minlstm", "lru", "s5", "gtrxl")
MEMORIES = {cell: Side(ppo_rnn, {"cell": cell, **THROUGH}) for cell in CELLS}
OPTIMIZERS = {
    "ppo": Side(ppo, {}),
    "ppo_vtrace, Adam": Side(ppo_vtrace, {"optimizer": "adam"}),
    "ppo_vtrace, Muon": Side(ppo_vtrace, {"optimizer": "muon"}),
}
PENDULUM = {
    "reppo, a gradient step for 8 steps": Side(reppo, PRESETS["reppo"]["Pendulum-v1"]),
    "sac, for 1 step": Side(sac, PRESETS["sac"]["Pendulum-v1"]),
    "ppo, for 12.8 steps": Side(ppo, PRESETS["ppo"]["Pendulum-v1"]),
}


def rollouts(num_envs: int, num_steps: int, updates: int) -> dict[str, Any]:
    """Settings of so many rollouts."""
    total = num_envs * num_steps * updates
    return {"num_envs": num_envs, "num_steps": num_steps, "total_timesteps": total}


COMPARISONS = (
    Comparison("memories, 8x128", rollouts(8, 128, 20), MEMORIES),
    Comparison("optimisers, 8x128", rollouts(8, 128, 150), OPTIMIZERS),
    Comparison("optimisers, 64x64", rollouts(64, 64, 40), OPTIMIZERS),
    Comparison("optimisers, 256x32", rollouts(256, 32, 20), OPTIMIZERS),
    Comparison("control", {"env": "Pendulum-v1", "total_timesteps": 20_480}, PENDULUM),
)
COLUMNS = ("case", "times the steps/s of", "median", "least", "most")


def compiled(comparison: Comparison, side: Side) -> Any:
    """A compiled train that has run once."""
    no_evaluation = {"num_evals": 1, "num_eval_episodes": 0, "eval_at_start": False}
    config = side.module.Config(**side.settings | comparison.settings | no_evaluation)
    train = jax.jit(side.module.make_train(config)).lower(jax.random.key(0)).compile()
    jax.block_until_ready(train(jax.random.key(0)))
    return train


def seconds(train: Any, seed: int) -> float:
    start = time.perf_counter()
    jax.block_until_ready(train(jax.random.key(seed)))
    return time.perf_counter() - start


def rows(comparison: Comparison, runs: int) -> list[list[str]]:
    """A row for each side but the first."""
    trains = {name: compiled(comparison, side) for name, side in comparison.sides.items()}
    rounds = [{name: seconds(train, i) for name, train in trains.items()} for i in range(runs)]
    first, *others = trains
    found = []
    for name in others:
        ratios = [taken[first] / taken[name] for taken in rounds]
        figures = statistics.median(ratios), min(ratios), max(ratios)
        case = f"{comparison.name}: {name}"
        found.append([case, first, *(f"{ratio:.2f}" for ratio in figures)])
        print(", ".join(found[-1]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginnings of comparisons' names")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="in docs/results and docs/speed.md")
    args = parser.parse_args()
    begins = tuple(args.names) or ""
    chosen = [comparison for comparison in COMPARISONS if comparison.name.startswith(begins)]
    found = [row for comparison in chosen for row in rows(comparison, args.runs)]
    if args.keep:
        report.keep_speeds("variants", COLUMNS, found)
        learning.write()


if __name__ == "__main__":
    main()
