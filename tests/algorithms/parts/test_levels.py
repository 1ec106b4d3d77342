"""The buffer of levels and the visits to levels, against plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms import parts
from envs import warn
from tests import probe as tasks


def of(scores, first=0, slots=None):
    """Levels whose share is a number of their own, from `first` on."""
    number = np.arange(first, first + len(scores), dtype=np.int32)
    key, numbers = np.stack([number, number], 1).astype(np.uint32), number.astype(np.float32)
    fields = envs.Level(key, numbers[:, None]), np.float32(scores), 10.0 * numbers, number
    return parts.LevelBuffer(*jax.tree.map(jnp.asarray, fields))


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


INSERT = jax.jit(parts.LevelBuffer.insert)
SIZES = ((3, 1), (5, 3), (8, 2))  # slots and new levels, few so that programs are shared


@pytest.mark.parametrize("seed", range(21))
def test_each_new_level_replaces_the_lowest_score_if_its_own_is_higher(seed):
    rng = np.random.default_rng(seed)
    slots, new = SIZES[seed % 3]
    scores, offered = rng.normal(size=slots), rng.normal(size=new)
    scores[rng.random(slots) < 0.3] = -np.inf
    offered[rng.random(new) < 0.3] = -np.inf
    held = (rng.random(slots) < 0.3) & (scores > -np.inf)
    buffer = INSERT(of(scores), of(offered, first=100), jnp.array(held))
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


def test_more_new_levels_than_slots_leave_the_best():
    new = of([2.0, 6.0, 3.0, 0.5, 4.0], first=50)
    buffer = INSERT(of([1.0, 5.0, -np.inf]), new, np.zeros(3, bool))
    assert sorted(score for score, _ in contents(buffer)) == [4.0, 5.0, 6.0]


def test_slots_behind_the_end_are_no_slots():
    buffer = of([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(buffer.holds(jnp.array([3, 2, 3])), [False, False, True])
    np.testing.assert_array_equal(
        buffer.where(jnp.array([True, False, True])).filled, [True, False, True]
    )


def test_visits_to_one_level_are_summed():
    """Two to slot 1, one that is not to count, one to slot 2, and one to a level of no slot."""
    slot = jnp.array([1, 1, 1, 2, 3])
    visits = parts.Visits(
        level=of(np.zeros(5)).level,
        slot=slot,
        total=jnp.array([1.0, 2.0, 100.0, 4.0, 100.0]),
        steps=jnp.array([3.0, 4.0, 100.0, 5.0, 100.0]),
        best=jnp.array([15.0, 7.0, 100.0, 3.0, 100.0]),
    )
    buffer = of([1.0, 2.0, 3.0])
    found = buffer.gather(visits, jnp.array([True, True, False, True, True]))
    assert found.total.tolist() == [0.0, 3.0, 4.0] and found.steps.tolist() == [0.0, 7.0, 5.0]
    assert found.best.tolist() == [0.0, 15.0, 20.0], "that of the buffer is 0, 10 and 20"
    assert found.slot.tolist() == [0, 1, 2] and found.level is buffer.level


# Windows that fill the steps, that do not, of one step, and longer than all.
@pytest.mark.parametrize("num_steps, window", [(24, 8), (20, 8), (9, 1), (5, 30)])
@pytest.mark.filterwarnings("ignore::envs.warn.KitWarning")
def test_steps_belong_to_visits_as_the_batch_restarts(num_steps, window):
    """The level of each step is read off a real batch, with episodes of 1 to 8 steps."""
    settings = {"randomize": "reward:uniform:0:1", "start_window": window}
    env, params = envs.make(tasks.Reporting(spread=True), **settings)
    batch = envs.levels.batch_of_levels(env, 6, num_steps)

    @jax.jit
    def start(params):
        stock = envs.levels.draw(env, jax.random.key(0), (batch.depth, 6))
        first = envs.levels.draw(env, jax.random.key(1), stock.key.shape[:2])
        _, state = batch.reset(first, params)
        return stock, state.env.shares[:, 0], batch.refill(stock, state, params)

    (stock, first, state), step, played, ended = start(params), jax.jit(batch.step), [], []
    for t in range(num_steps):
        played.append(state.env.shares[:, 0])
        key, no = jax.random.key(t), jnp.zeros(6, jnp.int32)
        _, state, _, terminated, truncated, _ = step(key, state, no, params)
        ended.append(terminated | truncated)
    played.append(state.env.shares[:, 0])
    visit = parts.visit_of_steps(jnp.stack(ended), batch.window)
    assert visit.shape == (num_steps + 1, 6) and visit.dtype == jnp.int32
    shares = jnp.concatenate([first[None], stock.shares[..., 0]])
    np.testing.assert_array_equal(jnp.take_along_axis(shares, visit, axis=0), jnp.stack(played))


def test_visits_add_up_their_steps():
    """Against sums written out, with visits that had begun before."""
    rng = np.random.default_rng(1)
    visit = np.sort(rng.integers(0, 4, (30, 5)), axis=0)
    signal, returns = rng.normal(size=(2, 30, 5))
    returns[rng.random((30, 5)) < 0.8] = -np.inf
    level = jax.tree.map(lambda x: jnp.stack([x, x + 1, x + 2]), of(np.zeros(5)).level)
    stock = parts.Visits.create(level, jnp.arange(15).reshape(3, 5))
    running = parts.Visits.create(of(np.zeros(5), first=90).level, jnp.full(5, 99))
    running = running.replace(
        total=jnp.full(5, 7.0), steps=jnp.full(5, 3.0), best=jnp.array([0.5, 9.0, -9.0, 0.1, 0.2])
    )
    visits = running.then(stock)
    assert visits.slot[0].tolist() == [99] * 5 and visits.slot[1:].tolist() == stock.slot.tolist()
    assert visits.level.shares[0, :, 0].tolist() == [90, 91, 92, 93, 94]
    visits = jax.jit(parts.Visits.add)(visits, visit, signal, returns)
    for i, e in np.ndindex(4, 5):
        own = visit[:, e] == i
        begun = float(i == 0)
        assert visits.steps[i, e] == own.sum() + 3 * begun
        np.testing.assert_allclose(visits.total[i, e], signal[own, e].sum() + 7 * begun, rtol=1e-4)
        before = float(running.best[e]) if i == 0 else -np.inf
        best = max([before, *returns[own, e]])
        np.testing.assert_allclose(visits.best[i, e], best, rtol=1e-5)


def test_returns_of_episodes_are_discounted_from_their_first_step():
    """Two rollouts of 9 steps, against sums written out; episodes run on between them."""
    rng = np.random.default_rng(1)
    rewards, done = rng.normal(size=(18, 5)), rng.random((18, 5)) < 0.2
    done[:, 4] = False
    running, found = parts.EpisodeReturns.create(5), []
    for half in (slice(9), slice(9, 18)):
        running, returns = running.add(jnp.array(rewards[half]), jnp.array(done[half]), 0.9)
        found.append(returns)
    found = np.concatenate(found)
    for i in range(5):
        gain, discount = 0.0, 1.0
        for t in range(18):
            gain, discount = gain + discount * rewards[t, i], 0.9 * discount
            expected = gain if done[t, i] else -np.inf
            np.testing.assert_allclose(found[t, i], expected, rtol=1e-4, atol=1e-6)
            if done[t, i]:
                gain, discount = 0.0, 1.0
        np.testing.assert_allclose(running.gain[i], gain, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(running.discount[i], discount, rtol=1e-4)
    assert done[:9].any() and (found[:, 4] == -np.inf).all()


class Fixed(tasks.Probe):
    """Its resets draw nothing."""

    def reset_env(self, key, params):
        return super().reset_env(jax.random.key(0), params)


def test_an_environment_of_one_level_is_told_of():
    parts.warn_of_one_level(*envs.make("CartPole-v1"))
    drawn = envs.make("DeepSea-bsuite", randomize="unscaled_move_cost:uniform:0:1")
    parts.warn_of_one_level(*drawn)
    with pytest.warns(warn.KitWarning, match="all resets of Probe are the same, .* ppo trains on"):
        parts.warn_of_one_level(*envs.make(Fixed()))
