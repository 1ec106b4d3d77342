"""How much of a sweep's winner is luck: its return on the sweep's seeds and on fresh ones.

    python tests/benchmarks/luck.py                 # three environments, ten sweeps each
    python tests/benchmarks/luck.py --keep          # and adds the rows to docs/results

Each sweep draws 16 settings, trains them on two or five seeds, and retests the best one on 32
others, as --retest 1 does. Sweeps of one environment have different draws and seeds.
"""

import argparse
import csv
import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from algorithms import launch, ppo
from algorithms.launch import Discount, LogUniform
from algorithms.launch.engine.intervals import bootstrap_interval
from algorithms.presets import PRESETS

FOLDER = Path(__file__).parents[2] / "docs" / "results"
SETTINGS, SEEDS, SWEEPS = 16, (2, 5), 10
GRID = {
    "learning_rate": LogUniform(1e-4, 1e-1),
    "gamma": Discount(0.8, 0.999),
    "gae_lambda": Discount(0.5, 0.99),
}
STEPS = {"CartPole-v1": 40_000, "Acrobot-v1": 40_000, "Pendulum-v1": 60_000}


def row(env: str, num_seeds: int) -> dict[str, Any]:
    preset = PRESETS["ppo"].get(env, {})
    config = ppo.Config(**{"env": env, **preset}).replace(
        total_timesteps=STEPS[env], num_evals=1, num_eval_episodes=8, eval_at_start=False
    )
    tuned, again = [], []
    for number in range(SWEEPS):
        swept = launch.sweep(
            ppo,
            config,
            GRID,
            samples=SETTINGS,
            seed=100 * number,
            num_seeds=num_seeds,
            retest=1,
            retest_seeds=32,
            save=False,
        )
        (one,) = swept.retested
        tuned.append(one.tuned.mean)
        again.append(one.again.mean)
    luck = np.array(tuned) - np.array(again)
    low, high = bootstrap_interval(luck, lambda x: x.mean(-1))
    return {
        "env": env,
        "seeds": num_seeds,
        "sweep": np.mean(tuned),
        "retest": np.mean(again),
        "luck": luck.mean(),
        "low": low,
        "high": high,
        "sweeps_with_luck": int((luck > 0).sum()),
        "lucks": " ".join(f"{x:.2f}" for x in luck),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--envs", nargs="+", choices=STEPS, default=[*STEPS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[*SEEDS], help="of each setting")
    parser.add_argument("--keep", action="store_true", help="add rows to docs/results")
    asked = parser.parse_args()
    for num_seeds, env in itertools.product(asked.seeds, asked.envs):
        found = row(env, num_seeds)
        print(found, flush=True)
        if asked.keep:
            file = FOLDER / "luck.csv"
            begins = not file.exists()
            with file.open("a", newline="") as out:
                writer = csv.DictWriter(out, list(found), lineterminator="\n")
                writer.writerows([*([dict(zip(found, found))] * begins), found])


if __name__ == "__main__":
    main()
