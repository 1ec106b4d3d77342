"""Levels: the same level is the same start, through every wrapper and in a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs import levels

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
    assert drawn.shares is None  # no empty array, see `draw`
    start = jax.vmap(lambda level: levels.start(env, level, params)[0])
    np.testing.assert_array_equal(start(drawn), start(drawn))
    assert len(np.unique(start(drawn)[:, 0])) == 3


def test_episodes_of_a_batch_restart_in_the_levels_of_their_stock():
    """Episodes of 3 steps, and two windows of 4."""
    env, params = envs.make("CartPole-v1", randomize=POLE, max_steps=3, start_window=4)
    batch = levels.batch_of_levels(env, 2, 8)
    drawn = [levels.draw(env, jax.random.key(i), (2, 2)) for i in range(2)]
    assert drawn[0].key.shape == (2, 2, 2) and len(np.unique(drawn[0].shares)) == 8
    start = jax.vmap(jax.vmap(lambda level: levels.start(env, level, params)[0]))
    first, state = jax.jit(batch.reset)(drawn[0], params)
    np.testing.assert_array_equal(first, start(drawn[0])[0])
    np.testing.assert_array_equal(shares_of(state.env), drawn[0].shares[0])
    state, step, begin = (
        jax.jit(batch.refill)(drawn[1], state, params),
        jax.jit(batch.step),
        start(drawn[1]),
    )
    np.testing.assert_array_equal(shares_of(state.env), drawn[0].shares[0])
    for t in range(8):
        observation, state, *_ = step(jax.random.key(t), state, jnp.zeros(2, jnp.int32), params)
        if t in (2, 5):  # an episode ended
            np.testing.assert_array_equal(observation, begin[t // 4])
        if t >= 2:
            np.testing.assert_array_equal(shares_of(state.env), drawn[1].shares[(t >= 5) * 1])


@pytest.mark.parametrize("setting", ["flicker", "noise"])
def test_levels_start_under_blurred_observations(setting):
    env, params = envs.make("CartPole-v1", randomize="length:uniform:1:2", **{setting: 0.5})
    level = jax.tree.map(lambda x: x[0], levels.draw(env, jax.random.key(0), 1))
    seen, state = levels.start(env, level, params)
    again, _ = levels.start(env, level, params)
    np.testing.assert_array_equal(seen, again)
    np.testing.assert_array_equal(state.shares, level.shares)
