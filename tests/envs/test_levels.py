"""Levels: the same level is the same start, through every wrapper and in a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs import levels
from tests import probe as tasks

POLE = "length:uniform:0.25:1/gravity:log:5:20"


def shares_of(state):
    while not hasattr(state, "shares"):
        state = state.inner
    return state.shares


WRAPPED = [
    dict(max_steps=9),
    dict(frame_stack=3),
    dict(observe=(0, 2)),
    dict(action_repeat=2, limit_terminates=True),
    dict(start_window=4, observe_randomized=True),
]


@pytest.mark.parametrize("settings", WRAPPED, ids=str)
def test_a_level_is_its_start_and_its_parameters_through_wrappers(settings):
    env, params = envs.make("CartPole-v1", randomize=POLE, **settings)
    one, two = (
        jax.tree.map(lambda x: x[0], levels.draw(env, jax.random.key(i), 1)) for i in (0, 1)
    )
    observation, state = levels.start(env, one, params)
    np.testing.assert_array_equal(shares_of(state), one.shares)
    again, same = levels.start(env, one, params)
    np.testing.assert_array_equal(again, observation)
    np.testing.assert_array_equal(shares_of(same), one.shares)
    moved = levels.start(env, one.replace(shares=two.shares), params)
    np.testing.assert_array_equal(shares_of(moved[1]), two.shares)
    if "observe_randomized" not in settings:
        np.testing.assert_array_equal(moved[0], observation)  # its key is the same
    assert not np.array_equal(levels.start(env, one.replace(key=two.key), params)[0], observation)


def test_levels_are_drawn_as_resets_draw():
    env, params = envs.make("CartPole-v1", randomize=POLE)
    drawn = levels.draw(env, jax.random.key(0), 4000)
    x, state = jax.vmap(lambda level: levels.start(env, level, params))(drawn)
    assert state.shares.min() < 0.01 and state.shares.max() > 0.99
    np.testing.assert_allclose(
        np.quantile(state.shares, [0.25, 0.5], 0).T, [[0.25, 0.5]] * 2, atol=0.03
    )
    assert abs(np.corrcoef(np.asarray(state.shares).T)[0, 1]) < 0.06
    np.testing.assert_allclose(np.quantile(x, [0.25, 0.5], 0).T, [[-0.025, 0.0]] * 4, atol=0.004)
    assert len(np.unique(x[:, 0])) > 3900


def test_levels_without_randomised_parameters_are_keys():
    env, params = envs.make("CartPole-v1")
    drawn = levels.draw(env, jax.random.key(0), 3)
    assert drawn.shares.shape == (3, 0)
    start = jax.vmap(lambda level: levels.start(env, level, params)[0])
    np.testing.assert_array_equal(start(drawn), start(drawn))
    assert len(np.unique(start(drawn)[:, 0])) == 3


def test_episodes_of_a_batch_restart_in_the_level_of_their_environment():
    """Episodes of 3 steps. Environment 1 does not move to its level: it is in the middle of it."""
    env, params = envs.make("CartPole-v1", randomize=POLE, max_steps=3)
    batch = envs.batch(env, 3, 8, window=8)
    drawn = levels.draw(env, jax.random.key(0), 3)
    observation, state = jax.jit(batch.reset)(drawn, params)
    start = jax.vmap(lambda level: levels.start(env, level, params)[0])(drawn)
    np.testing.assert_array_equal(observation, start)
    step = jax.jit(batch.step)
    first, state, *_ = step(jax.random.key(1), state, jnp.zeros(3, jnp.int32), params)
    others = levels.draw(env, jax.random.key(2), 3)
    where = jnp.array([True, False, True])
    following = levels.choose(where, others, drawn)
    observation, state = jax.jit(batch.enter)(following, where, first, state, params)
    begin = np.asarray(jax.vmap(lambda level: levels.start(env, level, params)[0])(following))
    expected = np.where(np.asarray(where)[:, None], begin, first)
    np.testing.assert_array_equal(observation, expected)
    for t in range(1, 9):
        key = jax.random.key(10 + t)
        observation, state, *_ = step(key, state, jnp.zeros(3, jnp.int32), params)
        np.testing.assert_array_equal(shares_of(state.env), following.shares)
        for i, ahead in enumerate((0, 1, 0)):
            at_start = np.array_equal(observation[i], begin[i])
            assert at_start == ((t + ahead) % 3 == 0)


def test_moving_to_a_level_forgets_the_metrics_of_the_running_episode():
    """Episodes of 4 steps report the sum of their steps, 10; two steps of one are cut."""
    env, params = envs.make(tasks.Reporting())
    batch = envs.batch(env, 2, 4, window=4)
    drawn = levels.draw(env, jax.random.key(0), 2)
    observation, state = batch.reset(drawn, params)
    step, no = jax.jit(batch.step), jnp.zeros(2, jnp.int32)
    for t in range(2):
        observation, state, *_ = step(jax.random.key(t), state, no, params)
    where = jnp.array([True, False])
    observation, state = jax.jit(batch.enter)(drawn, where, observation, state, params)
    for t in range(4):
        observation, state, *_ = step(jax.random.key(9 + t), state, no, params)
    means, _ = state.metrics.read()
    assert state.metrics.count == 2
    np.testing.assert_allclose([means["travel"], means["place"]], [10.0, 4.0])


@pytest.mark.parametrize("setting", ["flicker", "noise"])
def test_levels_start_under_blurred_observations(setting):
    env, params = envs.make("CartPole-v1", randomize="length:uniform:1:2", **{setting: 0.5})
    level = jax.tree.map(lambda x: x[0], levels.draw(env, jax.random.key(0), 1))
    seen, state = levels.start(env, level, params)
    again, _ = levels.start(env, level, params)
    np.testing.assert_array_equal(seen, again)
    np.testing.assert_array_equal(state.shares, level.shares)
