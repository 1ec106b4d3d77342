"""Metrics that an environment reports of an episode: its last value, or its sum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.batch import transition
from envs.metrics import kinds
from envs.reports import EpisodeMetrics
from tests import probe as tasks


def test_sums_and_last_values_of_episodes_one_after_the_other():
    """Compared with a loop over random values and ends."""
    rng = np.random.default_rng(0)
    values, done = rng.normal(size=(50, 3)).astype(np.float32), rng.random((50, 3)) < 0.2
    env = tasks.Reporting()
    metrics = EpisodeMetrics.create(env, 3)
    update = jax.jit(lambda metrics, info, done: metrics.update(env, info, done))
    running, last, travel, count = np.zeros(3), [], [], 0
    for value, ended in zip(values, done):
        info = {"metrics": {"place": jnp.array(value), "travel": jnp.array(value)}}
        metrics = update(metrics, info, jnp.array(ended))
        running += value
        last += value[ended].tolist()
        travel += running[ended].tolist()
        running[ended] = 0.0
        count += ended.sum()
    assert int(metrics.count) == count > 20
    means, cleared = metrics.read()
    np.testing.assert_allclose(means["place"], np.mean(last), rtol=1e-5)
    np.testing.assert_allclose(means["travel"], np.mean(travel), rtol=1e-5)
    assert np.isnan(cleared.read()[0]["travel"]) and int(cleared.count) == 0
    np.testing.assert_allclose(cleared.running["travel"], running, rtol=1e-4, atol=1e-5)


def test_a_mean_of_nothing_is_minus_zero_under_jax_debug_nans(debug_nans):
    means, _ = EpisodeMetrics.create(tasks.Reporting(), 3).read()
    assert all(x == 0.0 and np.signbit(x) for x in means.values()) and len(means) == 2


def test_an_environment_without_metrics_carries_nothing():
    env, params = envs.make("CartPole-v1")
    _, state = envs.batch(env, 2).reset(jax.random.key(0), params)
    assert state.metrics is None
    state = state.without_stock()
    assert len(jax.tree.leaves(state)) == len(jax.tree.leaves(state.env)) + 1


def test_an_unknown_kind_is_refused():
    env = tasks.Reporting()
    env.metrics = {"place": "mean"}
    with pytest.raises(ValueError, match='metric place of Reporting: "mean" is neither'):
        kinds(env)


@pytest.mark.parametrize("name", ["return", "length", "terminated"])
def test_names_of_metrics_that_every_episode_has_are_refused(name):
    env = tasks.Reporting()
    env.metrics = {name: "last"}
    with pytest.raises(ValueError, match=f"metric {name} of Reporting: every environment has one"):
        kinds(env)


def test_repeated_actions_add_up_metrics_that_are_sums():
    env, params = envs.make(tasks.Reporting(), action_repeat=3)
    _, state = env.reset_env(jax.random.key(0), params)
    found = []
    for i in range(2):
        key = jax.random.fold_in(jax.random.key(1), i)
        _, state, *_, terminated, _, info = transition(env, key, state, 0, params)
        found.append({name: float(x) for name, x in info["metrics"].items()})
    assert found[0] == {"place": 3, "travel": 6} and bool(terminated)
    assert found[1] == {"place": 4, "travel": 4}  # one frame is left


@pytest.mark.parametrize("value", [True, np.uint8(100)])
def test_repeated_actions_add_up_numbers_of_small_types(value):
    class Small(tasks.Reporting):
        def step_env(self, key, state, action, params):
            *rest, info = super().step_env(key, state, action, params)
            return *rest, {"metrics": info["metrics"] | {"travel": jnp.asarray(value)}}

    env, params = envs.make(Small(), action_repeat=3)
    _, state = env.reset_env(jax.random.key(0), params)
    *_, info = transition(env, jax.random.key(1), state, 0, params)
    assert info["metrics"]["travel"] == 3 * int(value)


def test_an_evaluation_s_episodes_have_theirs_up_to_their_ends():
    env, params = envs.make(tasks.Reporting(spread=True), max_steps=6)
    policy = lambda state, observation, memory=None: (jnp.zeros((), jnp.int32), memory)
    played = envs.evaluate(policy, None, env, params, jax.random.key(0), 20)
    assert set(played.metrics) == {"place", "travel"} and len(set(played.length.tolist())) > 3
    np.testing.assert_array_equal(played.metrics["place"], played.length)
    np.testing.assert_array_equal(played.metrics["travel"], played.length * (played.length + 1) / 2)
