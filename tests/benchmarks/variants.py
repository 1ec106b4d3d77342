"""The speed of an algorithm's variants, next to one another.

    python tests/benchmarks/variants.py           # all of them
    python tests/benchmarks/variants.py --keep    # and put it into the documentation

ppo_rnn runs with each memory against minGRU, with eight environments and 16 gradient steps on
sequences of 128 steps. ppo_vtrace runs with Muon and with Adam against ppo, with equal rollouts,
gradient steps and samples in each. CartPole-v1, one seed, no evaluation. The sides of a comparison
take turns, so that other load hits all sides alike. Figures are medians of `--runs` runs, after one
that is not counted.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax

sys.path.insert(0, str(Path(__file__).parents[2]))

from algorithms import ppo, ppo_rnn, ppo_vtrace
from tests.benchmarks import learning, report


class Side(NamedTuple):
    module: Any
    settings: dict[str, Any]


class Comparison(NamedTuple):
    name: str
    num_envs: int
    num_steps: int
    updates: int
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
COMPARISONS = (
    Comparison("memories, 8x128", 8, 128, 20, MEMORIES),
    Comparison("optimisers, 8x128", 8, 128, 150, OPTIMIZERS),
    Comparison("optimisers, 64x64", 64, 64, 40, OPTIMIZERS),
    Comparison("optimisers, 256x32", 256, 32, 20, OPTIMIZERS),
)
COLUMNS = ("case", "times the steps/s of", "median", "least", "most")


def compiled(comparison: Comparison, side: Side) -> Any:
    """A compiled train that has run once."""
    num_envs, num_steps = comparison.num_envs, comparison.num_steps
    config = side.module.Config(
        num_envs=num_envs,
        num_steps=num_steps,
        total_timesteps=comparison.updates * num_envs * num_steps,
        num_evals=1,
        num_eval_episodes=0,
        eval_at_start=False,
        **side.settings,
    )
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
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="in docs/results and docs/speed.md")
    args = parser.parse_args()
    found = [row for comparison in COMPARISONS for row in rows(comparison, args.runs)]
    if args.keep:
        report.keep_speeds("variants", COLUMNS, found)
        learning.write()


if __name__ == "__main__":
    main()
