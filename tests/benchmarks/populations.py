"""Population-based training next to random search at the same number of environment steps.

    python tests/benchmarks/populations.py pendulum            # prints a row per variant
    python tests/benchmarks/populations.py pendulum --keep     # and keeps them in docs/results
    python tests/benchmarks/populations.py pendulum --time     # seconds with and without exploit

Ten populations of 16 members are trained with one seed each. Random search is the same members
without exploit: 16 draws that train to the end, of which the best one is taken. Every variant's
winner is chosen by one set of episodes and its return is that of others.
"""

import argparse
import csv
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from algorithms import launch, ppo
from algorithms.launch import Discount, LogUniform
from algorithms.launch.engine.evolution import Range
from algorithms.launch.engine.intervals import bootstrap_interval
from algorithms.launch.engine.population import Population, Settings
from algorithms.presets import PRESETS

FOLDER = Path(__file__).parents[2] / "docs" / "results"
POPULATIONS, MEMBERS, FIRST_SEED = 10, 16, 500
RANGES = {
    "learning_rate": LogUniform(1e-5, 1e-1),
    "gamma": Discount(0.8, 0.999),
    "gae_lambda": Discount(0.5, 0.99),
    "ent_coef": LogUniform(1e-4, 1e-1),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "random search": {"share": 0.0},
    "PBT": {},
    "MF-PBT": {"periods": (1, 5)},
}


BREAKOUT = ppo.Config(**{"env": "Breakout-MinAtar", **PRESETS["ppo"]["Breakout-MinAtar"]}).replace(
    num_envs=16, conv_layers="none", num_eval_episodes=16, anneal_lr=False
)


class Case(NamedTuple):
    config: Any
    rounds: int = 20
    ranges: dict[str, Any] = RANGES


CASES = {
    "pendulum": Case(
        ppo.Config(**{"env": "Pendulum-v1", **PRESETS["ppo"]["Pendulum-v1"]}).replace(
            total_timesteps=150_000, num_eval_episodes=16, anneal_lr=False
        )
    ),
    "mountaincar": Case(
        ppo.Config(
            env="MountainCarContinuous-v0",
            total_timesteps=150_000,
            num_eval_episodes=16,
            anneal_lr=False,
        )
    ),
    "breakout": Case(BREAKOUT.replace(total_timesteps=200_000)),
    "breakout-long": Case(BREAKOUT.replace(total_timesteps=500_000), rounds=25),
    "too-high": Case(
        ppo.Config(**{"env": "Pendulum-v1", **PRESETS["ppo"]["Pendulum-v1"]}).replace(
            total_timesteps=150_000, num_eval_episodes=16, anneal_lr=False
        ),
        rounds=30,
        ranges={"learning_rate": LogUniform(0.1, 1.0)},
    ),
}


def finals(case: Case, variant: dict[str, Any], seed: int, populations: int) -> np.ndarray:
    """Each population's final return, of its best member on fresh episodes, (populations,)."""
    run = launch.pbt(
        ppo,
        case.config,
        case.ranges,
        members=MEMBERS,
        rounds=case.rounds,
        seed=seed,
        num_seeds=populations,
        save=False,
        **variant,
    )
    rates = run.metrics["member_learning_rate"]
    best = run.metrics["best_member"].astype(int)
    own = np.take_along_axis(rates, best[..., None], axis=2)[..., 0]
    print("  the best members' rates:", np.array2string(own.mean(0), precision=2), flush=True)
    return run.metrics["eval_return"][:, -1].mean(axis=1)


def compare(name: str, variants: list[str], keep: bool, seed: int, populations: int) -> None:
    case, found = CASES[name], {}
    of = "" if seed == FIRST_SEED else f", seeds from {seed}"
    for variant in variants:
        found[variant] = finals(case, VARIANTS[variant], seed, populations)
        ours, base = found[variant], found[variants[0]]
        row: dict[str, Any] = {"case": f"{name}{of}", "variant": variant, "mean": ours.mean()}
        row["low"], row["high"] = bootstrap_interval(ours, lambda x: x.mean(-1))
        # Populations of one seed begin with the same members: the differences are paired.
        difference = ours - base
        row["difference"] = difference.mean()
        row["difference_low"], row["difference_high"] = bootstrap_interval(
            difference, lambda x: x.mean(-1)
        )
        row["returns"] = " ".join(f"{x:.1f}" for x in ours)
        print(row, flush=True)
        if keep:
            file = FOLDER / "populations.csv"
            begins = not file.exists()
            with file.open("a", newline="") as out:
                writer = csv.DictWriter(out, list(row), lineterminator="\n")
                writer.writerows([*([dict(zip(row, row))] * begins), row])


def seconds(name: str, runs: int = 5) -> None:
    """Medians of the time of a population with and without exploit, in turn."""
    case = CASES[name]
    ranges = {
        n: Range("log" if isinstance(r, LogUniform) else "discount", r.low, r.high)
        for n, r in case.ranges.items()
    }
    trains = {}
    for share in (0.25, 0.0):
        whole = Population(ppo, Settings(ranges, MEMBERS, share=share))
        config = case.config.replace(num_evals=case.rounds)
        trains[share] = jax.jit(whole.make_train(config)).lower(jax.random.key(0)).compile()
    spent: dict[float, list[float]] = {share: [] for share in trains}
    for i in range(runs):
        for share, train in trains.items():
            began = time.perf_counter()
            jax.block_until_ready(train(jax.random.key(i)))
            spent[share].append(time.perf_counter() - began)
    ratios = [a / b for a, b in zip(spent[0.25], spent[0.0])]
    print(
        f"{name}: with exploit {statistics.median(spent[0.25]):.2f} s, without "
        f"{statistics.median(spent[0.0]):.2f} s, ratio {statistics.median(ratios):.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=[*VARIANTS])
    parser.add_argument("--keep", action="store_true", help="add rows to docs/results")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--populations", type=int, default=POPULATIONS)
    parser.add_argument("--time", action="store_true", help="seconds with and without exploit")
    asked = parser.parse_args()
    if asked.time:
        seconds(asked.case)
    else:
        compare(asked.case, asked.variants, asked.keep, asked.first_seed, asked.populations)


if __name__ == "__main__":
    main()
