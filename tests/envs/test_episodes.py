"""Statistics of the episodes of training, against plain NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.episodes import EpisodeStatistics
from tests.conftest import AS_FOR_USERS


@pytest.mark.parametrize("agents", [(), (2,)])
def test_episode_statistics_count_whole_episodes_once(agents):
    rng = np.random.default_rng(0)
    num_envs, returns, lengths = 3, [], []
    running, length = np.zeros((num_envs, *agents)), np.zeros(num_envs)
    stats = EpisodeStatistics.create(num_envs, agents)
    update = jax.jit(EpisodeStatistics.update)
    for _ in range(4):
        rewards = rng.normal(size=(7, num_envs, *agents)).astype(np.float32)
        done = rng.random((7, num_envs)) < 0.25
        stats = update(stats, rewards, done)
        for t in range(7):
            running += rewards[t]
            length += 1
            for env in np.flatnonzero(done[t]):
                returns.append(running[env].copy())
                lengths.append(length[env])
                running[env], length[env] = 0.0, 0.0
    metrics, cleared = stats.metrics()
    np.testing.assert_allclose(metrics["episode_return"], np.mean(returns, 0), rtol=1e-4)
    np.testing.assert_allclose(metrics["episode_length"], np.mean(lengths), rtol=1e-5)
    assert float(metrics["num_episodes"]) == len(returns)
    np.testing.assert_allclose(cleared.running_return, running, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(cleared.running_length, length)
    none, _ = cleared.metrics()
    assert float(none["num_episodes"]) == 0 and np.isnan(none["episode_return"]).all()
    # Unfinished episodes still count after clearing, and ended ones do not.
    stats = cleared.update(jnp.ones((1, num_envs, *agents)), jnp.ones((1, num_envs), bool))
    metrics, _ = stats.metrics()
    np.testing.assert_allclose(metrics["episode_return"], (running + 1).mean(0), rtol=1e-4)
    np.testing.assert_allclose(metrics["episode_length"], (length + 1).mean(), rtol=1e-5)


def test_episodes_are_counted_beyond_what_a_float32_counts():
    """More than 2**24 episodes of one step, with returns 499, 500 and 501, 63 at a time."""
    number = 2**18 + 2**14
    rewards, done = jnp.tile(jnp.array([499.0, 500.0, 501.0]), 21)[None], jnp.ones((1, 63), bool)

    @functools.partial(jax.jit, compiler_options=AS_FOR_USERS)
    def count(rewards):
        stats = EpisodeStatistics.create(63)
        step = lambda _, stats: stats.update(rewards, done)
        return jax.lax.fori_loop(0, number, step, stats).metrics()[0]

    metrics = count(rewards)
    assert int(metrics["num_episodes"]) == 63 * number > 2**24
    np.testing.assert_allclose(metrics["episode_return"], 500.0, rtol=1e-6)
    np.testing.assert_allclose(metrics["episode_length"], 1.0, rtol=1e-6)
