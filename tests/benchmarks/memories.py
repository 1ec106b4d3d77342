"""How long ppo_rnn takes for an update with each of its memories.

    python tests/benchmarks/memories.py

Config's defaults on CartPole-v1 (8 environments, sequences of 128 steps, 16 gradient steps), one
seed, no evaluation. The cells take turns, so that whatever else the machine does hits all alike;
medians of `--runs` runs of 20 updates, after one that is not counted.
"""

import argparse
import statistics
import time

import jax

from algorithms import ppo_rnn

UPDATES = 20


def compiled(cell: str):
    """A train of UPDATES updates that has run once."""
    config = ppo_rnn.Config(cell=cell, num_evals=1, num_eval_episodes=0, eval_at_start=False)
    config = config.replace(total_timesteps=UPDATES * config.num_envs * config.num_steps)
    train = jax.jit(ppo_rnn.make_train(config)).lower(jax.random.key(0)).compile()
    jax.block_until_ready(train(jax.random.key(0)))
    return train


def seconds(train, seed: int) -> float:
    """Of one update."""
    start = time.perf_counter()
    jax.block_until_ready(train(jax.random.key(seed)))
    return (time.perf_counter() - start) / UPDATES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    trains = {cell: compiled(cell) for cell in ppo_rnn.CELLS}
    rounds = [{cell: seconds(train, i) for cell, train in trains.items()} for i in range(runs)]
    for cell in trains:
        ratios = sorted(taken[cell] / taken["mingru"] for taken in rounds)
        milliseconds = 1e3 * statistics.median(taken[cell] for taken in rounds)
        print(
            f"{cell:6} {milliseconds:6.1f} ms an update, {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}) times minGRU's"
        )


if __name__ == "__main__":
    main()
