"""The buffer of levels and the levels in play, against plain Python."""

import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms import parts


def of(scores, first=0, slots=None):
    """Levels whose share is a number of their own, from `first` on."""
    number = jnp.arange(first, first + len(scores))
    level = envs.Level(jnp.stack([number, number], 1).astype(jnp.uint32), 1.0 * number[:, None])
    return parts.LevelBuffer(level, jnp.array(scores, jnp.float32), 10.0 * number, number)


def contents(buffer):
    """(score, number) of every slot, whose other fields must belong to the same level."""
    number = np.asarray(buffer.level.shares[:, 0])
    filled = np.asarray(buffer.filled)
    for x in (buffer.level.key[:, 1], buffer.best / 10.0, buffer.played):
        np.testing.assert_allclose(np.asarray(x)[filled], number[filled])
    return list(zip(np.asarray(buffer.score).tolist(), number.tolist()))


def test_an_empty_buffer_has_slots_of_the_shapes_of_levels():
    buffer = parts.LevelBuffer.create(of([1.0, 2.0, 3.0]).level, 5)
    assert buffer.level.key.shape == (5, 2) and buffer.level.key.dtype == jnp.uint32
    assert buffer.level.shares.shape == (5, 1) and not buffer.filled.any()
    np.testing.assert_array_equal(buffer.best, np.full(5, -np.inf))


@pytest.mark.parametrize("seed", range(20))
def test_each_new_level_replaces_the_lowest_score_if_its_own_is_higher(seed):
    rng = np.random.default_rng(seed)
    slots, new = rng.integers(3, 9), rng.integers(1, 4)
    scores, offered = rng.normal(size=slots), rng.normal(size=new)
    scores[rng.random(slots) < 0.3] = -np.inf
    offered[rng.random(new) < 0.3] = -np.inf
    held = (rng.random(slots) < 0.3) & (scores > -np.inf)
    buffer = of(scores).insert(of(offered, first=100), jnp.array(held))
    expected = contents(of(scores))
    for score, number in contents(of(offered, first=100)):
        free = [i for i in range(slots) if not held[i]]
        lowest = min(free, key=lambda i: expected[i][0], default=None)
        if lowest is not None and score > expected[lowest][0]:
            expected[lowest] = score, number
    known = lambda pairs: sorted(pair for pair in pairs if pair[0] > -np.inf)
    assert known(contents(buffer)) == known(expected)
    for i in np.flatnonzero(held):
        assert contents(buffer)[i] == expected[i]


def test_slots_behind_the_end_drop_levels():
    buffer = of([1.0, 2.0, 3.0]).put(jnp.array([3, 1]), of([7.0, 8.0], first=50))
    assert contents(buffer) == [(1.0, 0.0), (8.0, 51.0), (3.0, 2.0)]
    np.testing.assert_array_equal(buffer.holds(jnp.array([3, 2, 3])), [False, False, True])
    np.testing.assert_array_equal(
        buffer.where(jnp.array([True, False, True])).filled, [True, False, True]
    )


def test_returns_of_the_episodes_in_a_level():
    """Two rollouts of 9 steps, against sums written out; both ends of an episode may differ."""
    rng = np.random.default_rng(1)
    rewards, done = rng.normal(size=(18, 5)), rng.random((18, 5)) < 0.2
    done[:, 4] = False
    level = of(np.zeros(5)).level
    play = parts.Play.create(level, 7, best=jnp.array([9.0] + [-jnp.inf] * 4), entering=True)
    assert play.slot.dtype == jnp.int32 and play.entering.all() and play.slot.tolist() == [7] * 5
    for half in (slice(9), slice(9, 18)):
        play = play.add(jnp.array(rewards[half]), jnp.array(done[half]), jnp.arange(5.0), 0.9)
    np.testing.assert_allclose(play.total, 2.0 * np.arange(5))
    np.testing.assert_array_equal(play.rollouts, np.full(5, 2.0))
    for i in range(5):
        returns, gain, discount = [], 0.0, 1.0
        for t in range(18):
            gain, discount = gain + discount * rewards[t, i], 0.9 * discount
            if done[t, i]:
                returns, gain, discount = [*returns, gain], 0.0, 1.0
        best = max([*returns, 9.0 if i == 0 else -np.inf])
        np.testing.assert_allclose(play.best[i], best, rtol=1e-4)
        np.testing.assert_allclose(play.gain[i], gain, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(play.discount[i], discount, rtol=1e-4)
        assert bool(play.over[i]) == bool(returns)
    assert play.best[0] == 9.0 and not play.over[4]
