"""How fast ppo_vtrace is next to ppo, with Muon and with Adam.

    python tests/benchmarks/optimizers.py

CartPole-v1, one seed, no evaluation; rollouts, gradient steps (16) and samples in each are equal.
The sides take turns, so that whatever else the machine does hits all alike; medians of `--runs`
runs, after one that is not counted.
"""

import argparse
import statistics
import time
from typing import Any

import jax

from algorithms import ppo, ppo_vtrace

ROLLOUTS = {(8, 128): 150, (64, 64): 40, (256, 32): 20}  # num_envs, num_steps: updates
SIDES = {
    "ppo": (ppo, {}),
    "with Muon": (ppo_vtrace, {"optimizer": "muon"}),
    "with Adam": (ppo_vtrace, {"optimizer": "adam"}),
}


def compiled(module: Any, num_envs: int, num_steps: int, updates: int, settings: dict):
    """A train that has run once."""
    config = module.Config(
        num_envs=num_envs,
        num_steps=num_steps,
        total_timesteps=updates * num_envs * num_steps,
        num_evals=1,
        num_eval_episodes=0,
        eval_at_start=False,
        **settings,
    )
    train = jax.jit(module.make_train(config)).lower(jax.random.key(0)).compile()
    jax.block_until_ready(train(jax.random.key(0)))
    return train


def seconds(train, seed: int) -> float:
    start = time.perf_counter()
    jax.block_until_ready(train(jax.random.key(seed)))
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    for (num_envs, num_steps), updates in ROLLOUTS.items():
        sizes = num_envs, num_steps, updates
        trains = {name: compiled(side, *sizes, change) for name, (side, change) in SIDES.items()}
        rounds = [{name: seconds(train, i) for name, train in trains.items()} for i in range(runs)]
        for name in trains:
            ratios = sorted(taken["ppo"] / taken[name] for taken in rounds)
            print(
                f"{num_envs}x{num_steps} {name:9} {statistics.median(ratios):.2f} "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f}) times ppo's steps/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
