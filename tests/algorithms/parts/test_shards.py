"""What shards agree on is that of all their samples together, by plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from algorithms import parts
from algorithms.parts import shards
from envs.episodes import SUMS, EpisodeStatistics

NUMBER = 4


def on_shards(function, *args):
    """function on a fourth of each argument's first axis; results must not depend on the shard."""

    def one(*own):
        with shards.within((("shard", NUMBER),)):
            return function(*own)

    apart = [x.reshape(NUMBER, -1, *x.shape[1:]) for x in args]
    return jax.jit(jax.vmap(one, axis_name="shard", out_axes=None))(*apart)


@pytest.fixture
def samples():
    """Samples whose mean and spread differ between shards, and their weights."""
    rng = np.random.default_rng(0)
    x = rng.normal(3.0, 1.0, size=(4 * 6, 3)) * np.repeat([0.1, 1.0, 2.0, 5.0], 6)[:, None]
    weights = rng.random(4 * 6) < np.repeat([0.0, 0.2, 0.7, 1.0], 6)
    assert not weights[:6].any() and 0 < weights[6:18].sum() < 12
    return jnp.asarray(x, jnp.float32), jnp.asarray(weights)


def test_without_shards_nothing_changes():
    x = jnp.arange(5.0)
    for function in (shards.mean_over_shards, shards.sum_over_shards, shards.any_over_shards):
        assert function(x) is x
    assert shards.count() == 1 and shards.index() == 0 and shards.here() is None


@pytest.mark.parametrize("number", [3, 8, 10])
def test_each_shard_computes_a_part_of_what_all_of_them_get(number):
    shapes = []

    def divided(_):
        indices = shards.share_of(number)
        shapes.append(indices.shape)
        found = {"square": indices**2, "odd": indices % 2 == 1, "rows": indices[:, None] * 0.5}
        return shards.gathered(found, number)

    found, all_of_them = on_shards(divided, jnp.zeros(NUMBER)), np.arange(number)
    assert set(shapes) == {(-(-number // NUMBER),)}
    np.testing.assert_array_equal(found["square"], all_of_them**2)
    np.testing.assert_array_equal(found["odd"], all_of_them % 2 == 1)
    assert found["odd"].dtype == bool
    np.testing.assert_array_equal(found["rows"], all_of_them[:, None] * 0.5)
    assert shards.share_of(number) is None and shards.gathered("all", number) == "all"


def test_means_and_variances_are_those_of_all_samples(samples):
    def both(x):
        centre = shards.mean_over_shards(x.mean())
        return centre, shards.mean_over_shards(jnp.square(x - centre).mean())

    found = on_shards(both, samples[0])
    np.testing.assert_allclose(found, [np.mean(samples[0]), np.var(samples[0])], rtol=1e-5)


def test_the_largest_value_and_the_last_of_all_shards(samples):
    found = on_shards(lambda x: parts.Maximum(x.max()).result(), samples[0])
    assert found == np.max(samples[0])
    found = on_shards(lambda x: parts.Last(x.mean()).result(), samples[0])
    np.testing.assert_allclose(found, np.mean(samples[0]), rtol=1e-5)


def test_weighted_means_and_their_gradients_are_those_of_all_samples(samples):
    x, weights = samples

    def loss(factor, x, weights):
        return parts.mean(jnp.square(factor * x[:, 0]), weights)

    def value_and_grad(x, weights):
        return shards.mean_over_shards(jax.value_and_grad(loss)(jnp.float32(0.5), x, weights))

    chosen = np.asarray(x)[np.asarray(weights), 0]
    value, grad = on_shards(value_and_grad, x, weights)
    np.testing.assert_allclose(value, np.mean((0.5 * chosen) ** 2), rtol=1e-5)
    np.testing.assert_allclose(grad, np.mean(2 * 0.5 * chosen**2), rtol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_running_statistics_are_those_of_all_samples(samples, weighted):
    x, weights = samples

    def update(x, weights):
        before = parts.RunningStatistics(jnp.ones(3), jnp.full(3, 2.0), jnp.float32(5.0))
        return before.update(x, weights if weighted else None)

    found = on_shards(update, x, weights)
    with_all = update(x, weights)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, with_all)
    assert float(found.count) == 5.0 + (weights.sum() if weighted else len(x))


def test_episodes_are_those_of_all_shards():
    rng = np.random.default_rng(1)
    rewards, done = rng.normal(size=(8, 9)).astype(np.float32), rng.random((8, 9)) < 0.2

    def metrics(rewards, done):  # (num_envs, num_steps)
        episodes = EpisodeStatistics.create(len(rewards))
        return shards.summed(episodes.update(rewards.T, done.T), SUMS).metrics()[0]

    found = on_shards(metrics, jnp.asarray(rewards), jnp.asarray(done))
    expected = metrics(jnp.asarray(rewards), jnp.asarray(done))
    assert found["num_episodes"] == done.sum() > 4
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)


def test_a_flag_of_one_shard_is_seen_by_all():
    flags = jnp.array([False, False, True, False])
    assert on_shards(lambda x: shards.any_over_shards(x[0]), flags)
    assert not on_shards(lambda x: shards.any_over_shards(x[0]), jnp.zeros(4, bool))


@struct.dataclass
class State:
    rng: jax.Array
    eval_rng: jax.Array


def test_shards_draw_their_own_numbers_from_keys_that_all_have(vmapped_keys):
    """And the next key is none of those that a shard has split."""

    def update(state):
        rng, draw_rng = jax.random.split(state.rng)
        drawn = jax.random.uniform(draw_rng), jax.random.uniform(state.eval_rng)
        return state.replace(rng=rng), drawn

    def one(state):
        with shards.within((("shard", NUMBER),)):
            return shards.with_own_keys(update)(state)

    state = State(jax.random.key(0), jax.random.key(1))
    # None in out_axes: the keys after the update are the same on all shards.
    on_all = jax.vmap(one, in_axes=None, out_axes=(None, 0), axis_name="shard", axis_size=NUMBER)
    after, (own, of_evaluation) = jax.jit(on_all)(state)
    assert len(np.unique(own)) == NUMBER
    of_evaluation = np.broadcast_to(of_evaluation, NUMBER)
    assert len(np.unique(of_evaluation)) == 1
    split = [jax.random.fold_in(state.rng, i) for i in range(NUMBER)]
    split += [key for i in split for key in jax.random.split(i, 8)]
    assert not any((jax.random.key_data(after.rng) == jax.random.key_data(k)).all() for k in split)
