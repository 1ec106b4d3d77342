"""The cost of a round of the replay buffer: this kit's part against flashbax's flat buffers.

    pip install --no-deps flashbax==0.1.3 && python tests/benchmarks/replay.py

A round puts 16 transitions of CartPole's size into 50,000 and draws 128 of them, as in dqn.py's
defaults. It draws uniformly, or (prioritized) also sets the priorities of the drawn ones. 2,000
rounds make one compiled loop, for one buffer and for eight vmapped ones. The two sides take turns;
figures are medians and ranges of `--runs` runs after one that is not counted. Memory is the
compiler's plan beside arguments and results, in buffers: 0 if nothing is copied.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

import envs
from algorithms import dqn, parts

ROUNDS = 2_000


def ours(prioritized: bool, observation: jax.Array) -> tuple[Callable, Callable]:
    """create() -> buffer and round_(buffer, index, rng) -> buffer, a number, for this kit."""
    config = dqn.Config(prioritized=prioritized, n_step=1)
    env, env_params = envs.make("CartPole-v1")
    flag, buffer = jnp.zeros(config.num_envs, bool), parts.ReplayBuffer.of(config)

    def round_(replay, index, rng):
        reward = jnp.full(config.num_envs, index, jnp.float32)
        action = flag.astype(jnp.int32)
        rollout = parts.Transition(observation, action, reward, flag, flag, observation)
        replay = buffer.add(replay, jax.tree.map(lambda x: x[None], rollout))
        drawn = buffer.draw(replay, buffer.noise(rng, (config.batch_size,)))
        batch = buffer.windows(replay.transitions, drawn.index, config.gamma)
        if prioritized:
            new = 1.0 + jnp.abs(batch.returns) / ROUNDS
            replay = buffer.prioritize(replay, drawn.index, new, True)
        read = batch.observation.sum() + batch.final_observation.sum() + batch.returns.sum()
        read += batch.action.sum() + batch.discount.sum()
        return replay, read + (drawn.probability.sum() if prioritized else 0.0)

    return functools.partial(buffer.create, env, env_params), round_


def flashbax(prioritized: bool, observation: jax.Array) -> tuple[Callable, Callable]:
    """The same for flashbax. Pairs of neighbours have the next observations, as in its examples."""
    import flashbax as fbx

    config = dqn.Config()
    make = fbx.make_prioritised_flat_buffer if prioritized else fbx.make_flat_buffer
    exponent = {"priority_exponent": 1.0} if prioritized else {}
    buffer = make(
        max_length=config.buffer_size,
        min_length=config.batch_size,
        sample_batch_size=config.batch_size,
        add_batch_size=config.num_envs,
        **exponent,
    )
    flag = jnp.zeros(config.num_envs, bool)

    def step(index):
        reward = jnp.full(config.num_envs, index, jnp.float32)
        action = flag.astype(jnp.int32)
        return dict(observation=observation, action=action, reward=reward, terminated=flag)

    def create():
        return buffer.init(jax.tree.map(lambda x: x[0], step(0)))

    def round_(state, index, rng):
        state = buffer.add(state, step(index))
        batch = buffer.sample(state, rng)
        first, second = batch.experience.first, batch.experience.second
        if prioritized:
            new = 1.0 + jnp.abs(first["reward"]) / ROUNDS
            state = buffer.set_priorities(state, batch.indices, new)
        read = first["observation"].sum() + second["observation"].sum() + first["reward"].sum()
        read += first["action"].sum() + first["terminated"].sum()
        return state, read + (batch.probabilities.sum() if prioritized else 0.0)

    return create, round_


def compiled(side: Callable, prioritized: bool, buffers: int):
    """A loop of ROUNDS rounds, and the bytes of one buffer."""
    observation = jnp.ones((dqn.Config().num_envs, 4))
    create, round_ = side(prioritized, observation)

    def loop(seed):
        def body(carry, index):
            replay, total = carry
            replay, read = round_(replay, index, jax.random.fold_in(jax.random.key(seed), index))
            return (replay, total + read), None

        start = 4 * dqn.Config().batch_size  # as after many rounds, with enough to draw from
        carry, _ = jax.lax.scan(body, (create(), 0.0), start + jnp.arange(ROUNDS))
        return carry

    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(jax.eval_shape(create)))
    return jax.jit(jax.vmap(loop)).lower(jnp.arange(buffers)).compile(), size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    for prioritized in (False, True):
        for buffers in (1, 8):
            sides = {side: compiled(side, prioritized, buffers) for side in (ours, flashbax)}
            taken = {side: [] for side in sides}
            for run in range(runs + 1):
                for side, (loop, _) in sides.items():
                    start = time.perf_counter()
                    jax.block_until_ready(loop(jnp.arange(buffers) + run))
                    taken[side].append((time.perf_counter() - start) / ROUNDS / buffers)
            print(f"{'prioritized' if prioritized else 'uniform'}, {buffers} vmapped:")
            for side, (loop, size) in sides.items():
                microseconds = sorted(1e6 * x for x in taken[side][1:])
                copies = loop.memory_analysis().temp_size_in_bytes / size / buffers
                print(
                    f"  {side.__name__:8} {statistics.median(microseconds):7.1f} us a round "
                    f"({microseconds[0]:.1f} to {microseconds[-1]:.1f}), memory {copies:.2f}"
                )


if __name__ == "__main__":
    main()
