"""Does halving find what the full grid finds? A grid of which most settings fail.

    python tests/benchmarks/halving.py acrobot               # prints a row per repetition
    python tests/benchmarks/halving.py acrobot --keep        # and keeps them in docs/results

A repetition trains the full grid on four seeds, the same grid with halving, and eliminates at
random at the same rungs (by the full grid's curves: the kept settings are drawn, the best one of
those at the end wins). The winners then train on 32 seeds that no repetition has used; their mean
final returns are compared. A winner is found if it is within 2 % of the full grid's.
"""

import argparse
import csv
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from algorithms import dqn, launch, ppo

NUM_SEEDS, FRESH = 4, 32
FIRST_FRESH = 1000  # sweeps use seeds below
FOLDER = Path(__file__).parents[2] / "docs" / "results"


class Case(NamedTuple):
    module: Any
    config: Any
    grid: dict[str, list[float]]
    objective: str = "final_return"
    rungs: int = 3


CASES = {
    "acrobot": Case(
        ppo,
        ppo.Config(
            env="Acrobot-v1",
            total_timesteps=55_296,
            num_evals=9,
            num_eval_episodes=8,
            eval_at_start=False,
        ),
        {
            "learning_rate": [1e-3, 1e-1, 1.0],
            "gamma": [0.5, 0.8, 0.99],
            "gae_lambda": [0.5, 0.9, 1.0],
            "ent_coef": [0.001, 10.0, 100.0],
        },
    ),
    "cartpole": Case(
        dqn,
        dqn.Config(
            total_timesteps=82_944,
            batch_size=64,
            learning_starts=1_000,
            n_step=5,
            target_every=20,
            num_evals=9,
            num_eval_episodes=16,
            eval_at_start=False,
        ),
        {
            "learning_rate": [1e-6, 0.03, 10.0],
            "gamma": [0.0, 0.5, 0.99],
            "reward_scale": [1e-4, 1.0, 1e4],
            "eps_end": [0.01, 0.2, 1.0],
        },
    ),
}


def fresh(case: Case, setting: dict[str, float], seed: int) -> float:
    """The mean final return of a setting on seeds that chose nothing."""
    config = case.config.replace(**setting)
    run = launch.run(case.module, config, seed=seed, num_seeds=FRESH, save=False)
    return -run.objective


def at_random(full: Any, counts: list[int], rng: np.random.Generator) -> dict[str, float]:
    """The setting that wins where those that go on are drawn."""
    kept = rng.choice(len(full.ranked), counts[-1], replace=False)
    return full.ranked[min(kept)].setting


def repetition(case: Case, number: int) -> dict[str, Any]:
    asked: dict[str, Any] = {"seed": number * NUM_SEEDS, "num_seeds": NUM_SEEDS, "save": False}
    full = launch.sweep(case.module, case.config, case.grid, **asked)
    halved = launch.sweep(case.module, case.config, case.grid, halving=3, rungs=case.rungs, **asked)
    steps = [sum(int(trial.timesteps[-1]) for trial in swept.trials) for swept in (halved, full)]
    last = [setting for setting in halved.ranked if setting.share == 1.0]
    drawn = at_random(full, [len(last)], np.random.default_rng(number))
    winners = {"full": full.ranked[0].setting, "halving": halved.ranked[0].setting, "random": drawn}
    known: dict[str, float] = {}
    row: dict[str, Any] = {"repetition": number, "share_of_steps": steps[0] / steps[1]}
    for name, setting in winners.items():
        seed = FIRST_FRESH + number * FRESH
        known.setdefault(str(setting), fresh(case, setting, seed))
        row[name] = known[str(setting)]
        row[f"{name}_setting"] = " ".join(f"{k}={v:g}" for k, v in setting.items())
    bound = row["full"] - 0.02 * abs(row["full"])
    row |= {"found": int(row["halving"] >= bound), "found_at_random": int(row["random"] >= bound)}
    good = row["full"] - 0.2 * abs(row["full"])
    row["share_of_good_settings"] = float(np.mean([s.mean >= good for s in full.ranked]))
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="number of the first repetition")
    parser.add_argument("--keep", action="store_true", help="add rows to docs/results")
    asked = parser.parse_args()
    file = FOLDER / f"halving-{asked.case}.csv"
    for number in range(asked.first, asked.first + asked.repetitions):
        row = repetition(CASES[asked.case], number)
        print(row, flush=True)
        if asked.keep:
            begins = not file.exists()
            with file.open("a", newline="") as out:
                writer = csv.DictWriter(out, list(row), lineterminator="\n")
                writer.writerows([*([dict(zip(row, row))] * begins), row])


if __name__ == "__main__":
    main()
