"""The rounds of a run with a replay buffer, and the effects of their gradient steps."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from algorithms import parts
from envs import loops

SIZES = dict(total_timesteps=96, num_evals=1, num_envs=2, buffer_size=32, batch_size=4, n_step=1)
SIZES |= dict(train_every=1, updates_per_step=1, learning_starts=10)


@struct.dataclass
class State:
    x: jax.Array
    fixed: jax.Array
    replay: jax.Array
    episodes: Any
    update: jax.Array


class Rollout(tuple):
    reward = jnp.ones((1, 2))
    done = jnp.zeros((1, 2), bool)


def rounds_of(period=1, **sizes):
    config = SimpleNamespace(**SIZES | sizes)
    return parts.Rounds(config, parts.ReplayBuffer.of(config), period=period)


@pytest.mark.parametrize(
    "sizes, period, count",
    [
        (dict(), 1, 16),  # sixteen steps of an environment
        (dict(train_every=4), 1, 4),
        (dict(train_every=100), 1, 1),
        (dict(), 5, 15),  # whole periods of five gradient steps
        (dict(updates_per_step=2), 5, 15),
        (dict(updates_per_step=5), 5, 16),  # each round has a whole period
        (dict(train_every=8), 3, 3),
    ],
)
def test_an_update_has_whole_periods_and_about_sixteen_steps(sizes, period, count):
    rounds = rounds_of(period, **sizes)
    assert rounds.count == count and rounds.gradient_steps % period == 0
    assert rounds.num_steps == count * rounds.config.train_every
    assert rounds.acting == (count, rounds.config.train_every, 2)
    assert rounds.steps == np.prod(rounds.acting)


@pytest.mark.parametrize(
    "sizes, waiting",
    [
        (dict(learning_starts=0), 0),  # the first round adds the transitions to learn from
        (dict(learning_starts=2), 0),
        (dict(learning_starts=3), 1),
        (dict(learning_starts=0, n_step=3), 2),  # until the first window of three steps
        (dict(learning_starts=20, train_every=4), 2),
    ],
)
def test_rounds_without_learning(sizes, waiting):
    assert rounds_of(**sizes).waiting == waiting


@pytest.mark.parametrize(
    "sizes, warm_up",
    [
        (dict(learning_starts=0), 0),
        (dict(learning_starts=2), 1),  # the first round acts for two steps, then learns
        (dict(learning_starts=3), 2),
        (dict(learning_starts=0, n_step=3), 2),  # nothing to learn from until then
        (dict(learning_starts=20, train_every=4), 3),
    ],
)
def test_rounds_of_the_warm_up_begin_before_learning_starts(sizes, warm_up):
    assert rounds_of(**sizes).warm_up == warm_up


def test_rounds_without_learning_are_those_of_the_first_window_s_items():
    """Rounds of 4 steps of 2 environments; a window of three items, each of 4 steps."""
    config = SimpleNamespace(**SIZES | dict(train_every=4, learning_starts=0))
    buffer = parts.ReplayBuffer(100, 2, 1, n_step=3, item_steps=4)
    assert parts.Rounds(config, buffer).waiting == 2
    config.learning_starts = 25
    assert parts.Rounds(config, buffer).waiting == 3


def fresh_state():
    return State(
        x=jnp.zeros(()),
        fixed=jnp.full((), 7.0),
        replay=jnp.zeros((), jnp.int32),
        episodes=parts.EpisodeStatistics.create(2),
        update=jnp.zeros((), jnp.int32),
    )


def run(updates=1, **sizes):
    """Updates whose gradient steps count; returns the state, metrics and each round's place."""
    rounds, places = rounds_of(**sizes), []

    def gradient_step(state, draws, now):
        even = parts.Average(jnp.where(draws % 2 == 0, 1.0 * draws, 0.0), draws % 2 == 0)
        state = state.replace(x=state.x + 1.0 + draws, replay=state.replay + 1)
        return state, {"draw": 1.0 * draws, "even": even}

    def round(state, noise, now):
        jax.debug.callback(lambda *x: places.append([float(y) for y in x]), *now[:3], ordered=True)
        state, metrics = rounds.learn(gradient_step, state, now)
        metrics |= {"noise": 1.0 * noise, "largest": parts.Maximum(-1.0 * noise)}
        return state, metrics | {"last": parts.Last(1.0 * noise)}, Rollout()

    state = fresh_state()
    step = jax.jit(lambda state, *inputs: rounds.run(round, state, *inputs))
    for _ in range(updates):
        state, metrics = step(state, jnp.arange(rounds.count), jnp.arange(rounds.gradient_steps))
    return state, metrics, np.array(places)


def test_gradient_steps_leave_no_trace_until_there_is_enough_to_learn_from():
    state, metrics, _ = run()  # four rounds of sixteen wait
    drawn = np.arange(4, 16)
    assert state.x == (1 + drawn).sum()
    assert state.fixed == 7.0 and state.update == 1
    assert state.replay == 12  # the first four are left out
    total, weight = metrics["draw"]
    assert (total, weight) == (drawn.sum(), len(drawn))
    total, weight = metrics["even"]  # of rounds that have it and are ready
    assert (total, weight) == (drawn[drawn % 2 == 0].sum(), (drawn % 2 == 0).sum())
    assert metrics["noise"] == np.arange(16).mean()  # of all rounds
    assert metrics["largest"] == (0.0,) and metrics["last"] == (15.0,)


@pytest.mark.parametrize("kind", [parts.Maximum, parts.Last])
def test_metrics_of_gradient_steps_are_means(kind):
    rounds = rounds_of()
    step = lambda state, draws, now: (state, {"x": kind(1.0 * draws)})
    round = lambda state, noise, now: (*rounds.learn(step, state, now), Rollout())
    with pytest.raises(TypeError, match=f"returns a {kind.__name__}, but its metrics are averaged"):
        noise, draws = jnp.arange(rounds.count), jnp.arange(rounds.gradient_steps)
        rounds.run(round, fresh_state(), noise, draws)


def test_results_before_learning_are_discarded_where_they_are_computed(monkeypatch):
    """Accelerators compute them, because leaving them out takes longer."""
    monkeypatch.setattr(loops, "platform", lambda: "gpu")
    state, metrics, _ = run()
    drawn = np.arange(4, 16)
    assert state.x == (1 + drawn).sum() and state.replay == 16
    assert metrics["draw"] == (drawn.sum(), len(drawn))


def test_every_gradient_step_has_draws_of_its_own():
    state, metrics, _ = run(updates_per_step=3, learning_starts=0)
    assert state.x == (1 + np.arange(48)).sum() and metrics["draw"].weight == 48


def test_a_round_knows_its_place_in_the_run():
    _, _, places = run(updates=3)  # of 48 rounds
    number = np.arange(48)
    np.testing.assert_allclose(places[:, 0], number / 48, rtol=1e-6)
    np.testing.assert_allclose(places[:, 1], (number - 4) / 44, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(places[:, 2], number >= 4)


ON_GPU = [(1, 1), (1, 2), (2, 3), (3, 2), (9, 2), (1, 9)]  # none, short ones, long ones


@pytest.mark.parametrize(
    "platform, updates_per_step, period",
    [*(("gpu", *sizes) for sizes in ON_GPU), ("cpu", 1, 3), ("cpu", 2, 2), ("cpu", 9, 2)],
)
def test_each_period_ends_with_a_turn(updates_per_step, period, platform, monkeypatch):
    monkeypatch.setattr(loops, "platform", lambda: platform)
    rounds = rounds_of(period, updates_per_step=updates_per_step, learning_starts=0)
    flags, traced = [], []

    def gradient_step(state, draws, now):
        flags.append(now.turn)
        moved = parts.branch(now.turn, lambda x: 3.0 * x + draws, lambda x: x + 1.0, state.x)
        of_turn = parts.Average(jnp.where(now.turn, 1.0 * draws, 0.0), now.turn)
        return state.replace(x=moved % 1000.0), {"turns": of_turn}

    def round(state, noise, now):
        traced.append(now)
        state, metrics = rounds.learn(gradient_step, state, now)
        return state, metrics | {"noise": 1.0 * noise}, Rollout()

    noise, draws = jnp.arange(rounds.count), jnp.arange(rounds.gradient_steps)
    state, metrics = jax.jit(lambda state: rounds.run(round, state, noise, draws))(fresh_state())
    expected, turns = 0.0, [i for i in range(rounds.gradient_steps) if (i + 1) % period == 0]
    for i in range(rounds.gradient_steps):
        expected = (3.0 * expected + i if i in turns else expected + 1.0) % 1000.0
    assert state.x == expected
    assert metrics["turns"] == (sum(turns), len(turns))
    np.testing.assert_allclose(metrics["noise"], np.arange(rounds.count).mean(), rtol=1e-6)
    few = 1 < period <= loops.SHORT and updates_per_step <= loops.SHORT
    known = platform == "gpu" and few
    assert isinstance(flags[-1], bool) == known
    assert platform == "gpu" or len(traced) == 1  # no larger program than needed
