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
from envs.episodes import EpisodeStatistics

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
    return parts.Rounds(SimpleNamespace(**SIZES | sizes), period=period)


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
    "sizes, steps, rounds",
    [
        (dict(), 0, -1),
        (dict(), 1, 0),  # two environments: the first round has the first two steps
        (dict(), 2, 0),
        (dict(), 3, 1),
        (dict(train_every=4), 16, 1),
        (dict(train_every=4), 17, 2),
    ],
)
def test_rounds_before_a_number_of_steps(sizes, steps, rounds):
    assert rounds_of(**sizes).before(steps) == rounds


def test_the_rounds_of_a_run_are_those_of_its_updates():
    assert rounds_of().total == 48 and rounds_of(train_every=3).total == 20


def fresh_state():
    return State(
        x=jnp.zeros(()),
        fixed=jnp.full((), 7.0),
        replay=jnp.zeros((), jnp.int32),
        episodes=EpisodeStatistics.create(2),
        update=jnp.zeros((), jnp.int32),
    )


def run(updates=1, **sizes):
    """Updates whose gradient steps count from the fifth round on; returns the state, metrics and
    each round's number and first gradient step."""
    rounds, places = rounds_of(**sizes), []

    def gradient_step(state, draws):
        even = parts.Average(jnp.where(draws % 2 == 0, 1.0 * draws, 0.0), draws % 2 == 0)
        state = state.replace(x=state.x + 1.0 + draws, replay=state.replay + 1)
        return state, {"draw": 1.0 * draws, "even": even}

    def round(state, noise, now):
        place = now.number, now.first
        jax.debug.callback(lambda *x: places.append([int(y) for y in x]), *place, ordered=True)
        ready = now.number >= 4

        def learn(old, draws, index):
            new, metrics = gradient_step(old, draws)
            return parts.keep_if(ready, new, old), metrics

        state, metrics = rounds.repeat(learn, state, now, ready)
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
    step = lambda state, draws, index: (state, {"x": kind(1.0 * draws)})
    round = lambda state, noise, now: (*rounds.repeat(step, state, now, True), Rollout())
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
    state, metrics, places = run(updates_per_step=3)
    drawn = np.arange(12, 48)
    assert state.x == (1 + drawn).sum() and metrics["draw"] == (drawn.sum(), len(drawn))
    np.testing.assert_array_equal(places[:, 1], 3 * np.arange(16))


def test_a_round_knows_its_number_in_the_run():
    _, _, places = run(updates=3)
    np.testing.assert_array_equal(places[:, 0], np.arange(48))


ON_GPU = [(1, 1), (1, 2), (2, 3), (3, 2), (9, 2), (1, 9)]  # none, short ones, long ones


@pytest.mark.parametrize(
    "platform, updates_per_step, period",
    [*(("gpu", *sizes) for sizes in ON_GPU), ("cpu", 1, 3), ("cpu", 2, 2), ("cpu", 9, 2)],
)
def test_each_period_ends_with_a_turn(updates_per_step, period, platform, monkeypatch):
    monkeypatch.setattr(loops, "platform", lambda: platform)
    rounds = rounds_of(period, updates_per_step=updates_per_step)
    flags, traced = [], []

    def gradient_step(state, draws, index):
        turn = index % period == period - 1
        flags.append(turn)
        moved = parts.branch(turn, lambda x: 3.0 * x + draws, lambda x: x + 1.0, state.x)
        of_turn = parts.Average(jnp.where(turn, 1.0 * draws, 0.0), turn)
        return state.replace(x=moved % 1000.0), {"turns": of_turn}

    def round(state, noise, now):
        traced.append(now)
        state, metrics = rounds.repeat(gradient_step, state, now, jnp.bool_(True))
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
