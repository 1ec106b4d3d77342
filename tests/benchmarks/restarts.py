"""The speed of the kit's batches of a library's environment, next to the library's own.

    python tests/benchmarks/restarts.py                        # all that are installed
    python tests/benchmarks/restarts.py navix/DoorKey-5x5      # one
    python tests/benchmarks/restarts.py --windows              # cost of start states in stock
    python tests/benchmarks/restarts.py --keep                 # and keep it in docs/results

Each library restarts its environments with its own wrapper. `envs.batch` uses its stock of start
states, refilled for every rollout of 128 steps. Both take the same random actions under one scan,
return observations, rewards and ends, and run as many environments for as many steps. The sides
take turns, after one round that is not counted; figures are medians of `--runs` runs.

craftax, NAVIX, XLand-MiniGrid and playground with `full_reset` draw a start for every environment
at every step. Jumanji draws one only when an episode ends, one environment after the other. By
default playground puts every episode back to the first start of its environment. brax always does.

`--windows` compares `envs.batch` with itself, for windows of 1, 8 and 64 steps that share a start
state: speed, and the memory that the compiled program plans.
"""

import argparse
import functools
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).parents[2]))

import envs
from tests.benchmarks import learning, report

ROLLOUT = 128
WINDOWS = (8, 1, 64)  # the first is what the others are compared with
COLUMNS = ("case", "times the steps/s of", "median", "least", "most")
ONE_START = ", against one start each"
WINDOW_COLUMNS = ("case", "window of 1, times the steps/s of 8", "of 64", "memory for 1, 8 and 64")


class Case(NamedTuple):
    name: str
    num_envs: int
    rollouts: int  # in a run
    theirs: Callable  # reset(keys) and step(state, actions) of the library's environment
    note: str = ""


def playground(env: Any, full_reset: bool) -> tuple[Callable, Callable]:
    wrap = importlib.import_module("mujoco_playground").wrapper.wrap_for_brax_training
    wrapped = wrap(env.wrapped, episode_length=1000, full_reset=full_reset)
    return lambda keys: wrapped.reset(jax.random.key_data(keys)), wrapped.step


def full_reset(env: Any) -> tuple[Callable, Callable]:
    return playground(env, True)


def one_start(env: Any) -> tuple[Callable, Callable]:
    return playground(env, False)


def brax(env: Any) -> tuple[Callable, Callable]:
    wrapped = importlib.import_module("brax.envs.wrappers.training").wrap(
        env.wrapped, episode_length=1000
    )
    return lambda keys: wrapped.reset(jax.random.key_data(keys)), wrapped.step


def craftax(env: Any) -> tuple[Callable, Callable]:
    make = importlib.import_module("craftax.craftax_env").make_craftax_env_from_name
    wrapped = make(f"Craftax-{env.name.partition('/')[2]}-v1", auto_reset=True)
    params = wrapped.default_params

    def step(state, action):
        inner, key = state
        keys = jax.vmap(jax.random.split)(key)
        seen = jax.vmap(wrapped.step, (0, 0, 0, None))(keys[:, 0], inner, action, params)
        observation, inner, reward, done, _ = seen
        return (inner, keys[:, 1]), observation, reward, done

    reset = jax.vmap(lambda key: (wrapped.reset(key, params)[1], key))
    return reset, step


def navix(env: Any) -> tuple[Callable, Callable]:
    return jax.vmap(env.wrapped.reset), jax.vmap(env.wrapped.step)


def xminigrid(env: Any) -> tuple[Callable, Callable]:
    name = env.name.partition("/")[2]
    wrapped, params = importlib.import_module("xminigrid").make(name)
    wrapped = importlib.import_module("xminigrid.wrappers").GymAutoResetWrapper(wrapped)
    return tuple(jax.vmap(functools.partial(f, params)) for f in (wrapped.reset, wrapped.step))


def jumanji(env: Any) -> tuple[Callable, Callable]:
    library = importlib.import_module("jumanji")
    wrapped = library.make(f"{env.name.partition('/')[2]}-v1")
    wrapped = importlib.import_module("jumanji.wrappers").VmapAutoResetWrapper(wrapped)
    return wrapped.reset, lambda state, action: wrapped.step(state[0], action)


CASES = (
    Case("playground/CartpoleBalance", 16, 32, full_reset),
    Case("playground/CartpoleBalance", 16, 32, one_start, ONE_START),
    Case("brax/hopper backend=spring", 64, 2, brax, ONE_START),
    Case("craftax/Classic-Symbolic", 64, 1, craftax),
    Case("navix/DoorKey-5x5", 64, 8, navix),
    Case("xminigrid/MiniGrid-DoorKey-5x5", 64, 8, xminigrid),
    Case("jumanji/Snake", 64, 8, jumanji),
)


def ours(env: Any, env_params: Any, case: Case) -> Callable:
    batch = envs.batch(env, case.num_envs, ROLLOUT)

    def rollout(carry, key):
        state = batch.refill(key, carry, env_params)

        def step(state, keys):
            action = actions(env, env_params, keys[0], case.num_envs)
            seen = batch.step(keys[1], state, action, env_params)
            observation, state, reward, terminated, truncated, _ = seen
            return state, observe(observation, reward, terminated | truncated)

        # All at once, as the algorithms do it: a split at every step takes as long as a small step.
        state, sums = jax.lax.scan(step, state, jax.random.split(key, (ROLLOUT, 2)))
        return state.without_stock(), sums

    def run(key):
        state = batch.reset(key, env_params)[1].without_stock()
        return jax.lax.scan(rollout, state, jax.random.split(key, case.rollouts))[1]

    return run


def library(env: Any, env_params: Any, case: Case) -> Callable:
    reset, take = case.theirs(env)

    def step(state, key):
        state = take(state, actions(env, env_params, key, case.num_envs))
        if isinstance(state, tuple) and len(state) == 4:
            state, *seen = state
            return state, observe(*seen)
        last = state[1] if isinstance(state, tuple) else state  # of jumanji the time step
        ended = last.done if hasattr(last, "done") else None
        if ended is None:
            ended = last.is_done() if hasattr(last, "is_done") else last.last()
        observation = last.obs if hasattr(last, "obs") else last.observation
        return state, observe(observation, last.reward, ended)

    def run(key):
        state = reset(jax.random.split(key, case.num_envs))
        return jax.lax.scan(step, state, jax.random.split(key, ROLLOUT * case.rollouts))[1]

    return run


def actions(env: Any, env_params: Any, key: jax.Array, num_envs: int) -> jax.Array:
    space = env.action_space(env_params)
    return jax.vmap(space.sample)(jax.random.split(key, num_envs))


def observe(observation: Any, reward: jax.Array, ended: jax.Array) -> Any:
    """Sums that need every result. Only the number of ended episodes is read."""
    total = sum(jnp.sum(x, dtype=jnp.float32) for x in jax.tree.leaves(observation))
    return total + reward.sum(), jnp.sum(ended, dtype=jnp.int32)


def made(case: Case, **settings: Any) -> tuple[Any, Any]:
    """The environment and its parameters."""
    name, *words = case.name.split()
    return envs.make(name, **dict(word.split("=") for word in words), **settings)


def alternate(sides: Sequence[Callable], runs: int) -> list[list[float]]:
    """Seconds of each run, (runs, sides), after one that is not counted."""
    keys = jax.random.split(jax.random.key(0), runs + 1)
    seconds = []
    for key in keys:
        seconds.append([])
        for side in sides:
            start = time.perf_counter()
            jax.block_until_ready(side(key))
            seconds[-1].append(time.perf_counter() - start)
    return seconds[1:]


def against_library(case: Case, runs: int) -> list[str]:
    """A row: how many times as fast as the library's own wrapper."""
    env, env_params = made(case)
    sides = [jax.jit(side(env, env_params, case)) for side in (library, ours)]
    ends = [int(side(jax.random.key(1))[1].sum()) for side in sides]
    print(f"{case.name}: {ends[1]} episodes ended, {ends[0]} of theirs", file=sys.stderr)
    ratios = [theirs / own for theirs, own in alternate(sides, runs)]
    figures = statistics.median(ratios), min(ratios), max(ratios)
    name = f"{case.name}, {case.num_envs} environments{case.note}"
    return [name, "its own restarts", *(f"{ratio:.2f}" for ratio in figures)]


def of_windows(case: Case, runs: int) -> list[str]:
    """A row: the speed of other windows, and the memory of the program beside its results."""
    sides = []
    for window in WINDOWS:
        env, env_params = made(case, start_window=window)
        sides.append(jax.jit(ours(env, env_params, case)).lower(jax.random.key(0)).compile())
    memory = {w: s.memory_analysis().temp_size_in_bytes / 2**20 for w, s in zip(WINDOWS, sides)}
    seconds = alternate(sides, runs)
    ratios = [statistics.median(row[0] / row[i] for row in seconds) for i in (1, 2)]
    sizes = ", ".join(f"{memory[window]:.1f}" for window in sorted(WINDOWS))
    name = f"{case.name}, {case.num_envs} environments"
    return [name, *(f"{ratio:.2f}" for ratio in ratios), f"{sizes} MB"]


KINDS = {"restarts": (COLUMNS, against_library), "windows": (WINDOW_COLUMNS, of_windows)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="of environments, those that begin so")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--windows", action="store_true", help="start states in stock instead")
    parser.add_argument("--keep", action="store_true", help="in docs/results")
    args = parser.parse_args()
    kind = "windows" if args.windows else "restarts"
    columns, make_row = KINDS[kind]
    found = []
    cases = {case.name: case for case in CASES}.values() if args.windows else CASES  # a name once
    for case in cases:
        if not args.names or case.name.startswith(tuple(args.names)):
            found.append(make_row(case, args.runs))
            print(", ".join(found[-1]), flush=True)
    if args.keep:
        report.keep_speeds(kind, columns, found)
        learning.write()


if __name__ == "__main__":
    main()
