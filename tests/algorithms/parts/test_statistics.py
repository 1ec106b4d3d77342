"""Sums and running statistics against plain NumPy, also where float32 would lose precision."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts
from envs.sums import Sum
from tests.conftest import AS_FOR_USERS

as_for_users = lambda function: jax.jit(function, compiler_options=AS_FOR_USERS)


# --- sums -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [None, AS_FOR_USERS], ids=["quick", "as_for_users"])
def test_a_sum_is_as_good_as_its_terms_however_many_there_are(options):
    """Four million terms; a plain sum is off by percents. No compiler may simplify it to one."""
    number = 4_000_000

    def sums(term):
        step = lambda _, carry: (carry[0].add(term), carry[1] + term[1])
        start = Sum.create((2,)), jnp.zeros(())
        return jax.lax.fori_loop(0, number, step, start)

    result, plain = jax.jit(sums, compiler_options=options)(jnp.array([0.1, 500.0]))
    np.testing.assert_allclose(result.total, [0.1 * number, 500.0 * number], rtol=1e-6)
    assert abs(plain / (500.0 * number) - 1.0) > 0.01


# --- running statistics -----------------------------------------------------------------------


def test_running_statistics_are_those_of_all_samples_in_any_order_of_merging():
    rng = np.random.default_rng(0)
    batches = [rng.normal(3.0, 2.0, size=(n, 4, 5)).astype(np.float32) for n in (2, 7, 30)]
    every = np.concatenate([p.reshape(-1, 5) for p in batches])
    one_by_one = parts.RunningStatistics.create((5,))
    for batch in batches:
        one_by_one = one_by_one.update(batch)
    empty = parts.RunningStatistics.create((5,))
    merged = empty.update(batches[2]).merge(empty.update(batches[0]).update(batches[1]))
    for stats in (one_by_one, merged):
        np.testing.assert_allclose(stats.mean, every.mean(0), rtol=1e-5)
        np.testing.assert_allclose(stats.var, every.var(0), rtol=1e-4)
        assert float(stats.count) == len(every)
    x = every[:3]
    expected = np.clip((x - every.mean(0)) / every.std(0), -1.0, 1.0)
    np.testing.assert_allclose(one_by_one.normalize(x, 1.0), expected, atol=1e-4)
    assert (np.abs(expected) == 1.0).any() and (np.abs(expected) < 1.0).any()
    np.testing.assert_allclose(empty.normalize(x, 10.0), x, rtol=1e-5)  # nothing seen yet
    far = one_by_one.normalize(1e6 * x, jnp.inf)
    np.testing.assert_allclose(far, (1e6 * x - every.mean(0)) / every.std(0), rtol=1e-4)


def test_networks_see_pixels_between_zero_and_one_or_normalised():
    stats = parts.RunningStatistics(jnp.full(3, 10.0), jnp.full(3, 4.0), jnp.ones(()))
    see = lambda normalize, x, clip=10.0: stats.as_input(
        types.SimpleNamespace(normalize_obs=normalize, clip_obs=clip), x
    )
    pixels = jnp.array([0, 10, 20], jnp.uint8)
    np.testing.assert_allclose(see(False, pixels), np.array([0.0, 10.0, 20.0]) / 255, rtol=1e-6)
    np.testing.assert_array_equal(see(False, pixels.astype(jnp.int8)), [0.0, 10.0, 20.0])
    np.testing.assert_allclose(see(True, pixels), [-5.0, 0.0, 5.0], rtol=1e-6)
    np.testing.assert_array_equal(see(True, pixels, clip=2.0), [-2.0, 0.0, 2.0])


def test_an_actor_s_numbers_are_normalised_as_the_first_of_a_critic_s():
    stats = parts.RunningStatistics(jnp.arange(4.0), jnp.arange(1.0, 5.0) ** 2, jnp.ones(()))
    x, config = jnp.array([[5.0, -2.0, 1.0, 0.5]]), types.SimpleNamespace(clip_obs=10.0)
    for config.normalize_obs in (True, False):
        whole = stats.as_input(config, x)
        np.testing.assert_array_equal(stats.as_input(config, x[:, :2]), whole[:, :2])
    np.testing.assert_allclose(stats.as_input(config, x[:, :2]), [[5.0, -2.0]])


def test_running_statistics_are_safe_in_float32():
    """A large mean with a small deviation, many times over: sums of squares would cancel."""
    rng = np.random.default_rng(0)
    stats = parts.RunningStatistics.create()
    update = jax.jit(lambda stats, x: stats.update(x))
    for _ in range(300):
        stats = update(stats, rng.normal(10_000.0, 0.1, size=4096).astype(np.float32))
    np.testing.assert_allclose(stats.mean, 10_000.0, rtol=1e-5)
    np.testing.assert_allclose(jnp.sqrt(stats.var), 0.1, rtol=0.02)


def test_running_statistics_leave_out_samples_of_weight_zero():
    rng = np.random.default_rng(5)
    stats, kept = parts.RunningStatistics.create((3,)), []
    for _ in range(3):
        x = rng.normal(4.0, 2.0, size=(6, 5, 3)).astype(np.float32)
        weights = rng.random((6, 5)) < 0.5
        stats = stats.update(jnp.array(x), jnp.array(weights))
        kept.append(x[weights])
    stats = stats.update(jnp.full((6, 5, 3), 1e6), jnp.zeros((6, 5), bool))
    kept = np.concatenate(kept)
    np.testing.assert_allclose(stats.mean, kept.mean(0), rtol=1e-4)
    np.testing.assert_allclose(stats.var, kept.var(0), rtol=1e-4)
    assert float(stats.count) == len(kept)


# --- rewards ----------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_rewards_are_divided_by_the_spread_of_their_discounted_sums(weighted):
    """Two rollouts, against the plain recursion; an episode's sum continues in the next rollout."""
    rng, length = np.random.default_rng(0), 25
    scale, total, sums, weights = parts.RewardScale.create(3), np.zeros(3), [], None
    for _ in range(2):
        rewards = rng.normal(1.0, 2.0, size=(length, 3)).astype(np.float32)
        done = rng.random((length, 3)) < 0.3
        if weighted:
            weights = rng.random((length, 3)) < 0.5
        scale = scale.update(jnp.array(rewards), jnp.array(done), 0.9, weights)
        for t in range(length):
            total = 0.9 * total + rewards[t]
            sums.extend(total if weights is None else total[weights[t]])
            total = np.where(done[t], 0.0, total)
    np.testing.assert_allclose(scale.discounted, total, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scale.stats.var, np.var(sums), rtol=1e-4)
    assert float(scale.stats.count) == len(sums)
    expected = np.clip(rewards / np.std(sums), -0.3, 0.3)
    np.testing.assert_allclose(scale.scale(jnp.array(rewards), 0.3), expected, rtol=1e-4)
    assert (np.abs(expected) == 0.3).any() and (np.abs(expected) < 0.3).any()
    far = scale.scale(1e6 * jnp.array(rewards), jnp.inf)
    np.testing.assert_allclose(far, 1e6 * rewards / np.std(sums), rtol=1e-4)
    untouched = parts.RewardScale.create(3).scale(jnp.array(rewards), 10.0)
    np.testing.assert_allclose(untouched, rewards, rtol=1e-5)  # nothing seen yet
