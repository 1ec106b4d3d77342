"""A loop over rows, and no copies of a replay buffer in programs that use it."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from algorithms import ddpg, sac_discrete
from algorithms.parts import loops as loops_of_parts
from algorithms.parts.loops import any_trial, scan_rows
from envs import loops


@struct.dataclass
class State:
    value: jax.Array
    replay: jax.Array


def step(state, row, index):
    value = 0.5 * state.value + row["x"]
    return state.replace(value=value), {"value": value, "large": row["x"] > 1.0}


@pytest.fixture(params=["cpu", "gpu"])
def platform(request, monkeypatch):
    """Loops as for this platform; they run on the CPU."""
    monkeypatch.setattr(loops, "platform", lambda: request.param)
    return request.param


@functools.partial(jax.jit, static_argnums=(1, 2))
def looped(rows, count, platform):
    """All rows, `count` at a time."""
    part = lambda state, first: scan_rows(step, state, rows, first, count, jnp.array(True))
    return jax.lax.scan(part, State(jnp.ones(()), jnp.arange(3)), jnp.arange(0, 6, count))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_rows_are_taken_in_order_and_outputs_added_up(count, platform):
    rows = {"x": np.array([0.1, 2.0, -1.0, 3.0, 0.5, 1.5], np.float32)}
    state, sums = looped(rows, count, platform)
    expected, values = 1.0, []
    for x in rows["x"]:
        expected = 0.5 * expected + x
        values.append(expected)
    np.testing.assert_allclose(state.value, expected, rtol=1e-6)
    np.testing.assert_array_equal(state.replay, np.arange(3))
    of_parts = np.array(values).reshape(-1, count).sum(1)
    np.testing.assert_allclose(sums["value"], of_parts, rtol=1e-6)
    np.testing.assert_array_equal(sums["large"], (rows["x"] > 1).reshape(-1, count).sum(1))


def test_a_loop_that_matters_to_no_trial_is_left_out(platform):
    """On an accelerator it is not: each branch would wait for the host."""

    def loop(matters):
        def count(state, row, index):
            return state.replace(value=state.value + 1.0), {"rows": row}

        state = State(jnp.zeros(()), jnp.arange(3))
        state, sums = scan_rows(count, state, jnp.ones(4), jnp.array(1), 2, matters)
        return state.value, sums["rows"]

    left_out = 0.0 if platform == "cpu" else 2.0
    for matters in ([True, True], [False, True], [False, False]):
        found = jax.jit(jax.vmap(loop))(jnp.array(matters))
        np.testing.assert_array_equal(found, np.full((2, 2), 2.0 if any(matters) else left_out))
    np.testing.assert_array_equal(loop(jnp.array(False)), [left_out] * 2)
    np.testing.assert_array_equal(loop(jnp.array(True)), [2.0, 2.0])


def test_a_flag_of_any_trial_has_no_axis():
    flags = jnp.array([[False, False], [False, True]])
    every = lambda flag: jax.lax.cond(any_trial(flag), lambda: 1.0, lambda: 0.0)
    assert (jax.vmap(every)(flags[0]) == 0.0).all() and (jax.vmap(every)(flags[1]) == 1.0).all()
    assert (jax.vmap(jax.vmap(every))(flags) == 1.0).all()  # over both axes
    text = str(jax.make_jaxpr(jax.vmap(every))(flags[0]))
    assert "cond[" in text and "select_n" not in text


@pytest.mark.parametrize("place", [None, 5])
def test_a_place_that_is_known_when_compiling_is_an_int_on_accelerators(place, platform):
    indices = []

    def number(state, row, index):
        indices.append(index)
        return state, {"index": index, "row": row}

    state, first, true = State(jnp.zeros(()), jnp.arange(3)), jnp.array(2), jnp.array(True)
    _, sums = scan_rows(number, state, 10.0 * jnp.arange(6), first, 3, true, place)
    assert sums["row"] == 20 + 30 + 40
    if platform == "gpu" and place:
        assert indices[-3:] == [5, 6, 7]
    else:
        assert sums["index"] == 2 + 3 + 4
        assert not any(isinstance(index, int) for index in indices)


def test_a_branch_is_decided_when_compiling_where_it_can_be():
    def chosen(flag):
        return loops_of_parts.branch(flag, lambda x: 2.0 * x, lambda x: x + 1.0, jnp.array(3.0))

    assert chosen(True) == chosen(jnp.array(True)) == 6.0
    assert chosen(False) == chosen(jnp.array(False)) == 4.0
    assert "cond[" not in str(jax.make_jaxpr(lambda: chosen(True))())
    assert "cond[" in str(jax.make_jaxpr(chosen)(True))


def test_an_accelerator_knows_the_trips_of_rows(platform):
    """Else it would wait for the host at each of them."""
    rows = {"x": np.ones(6, np.float32)}
    text = str(jax.make_jaxpr(lambda: looped(rows, 2, platform))())
    assert ("while[" in text) == (platform == "cpu")


seldom = [
    pytest.param(*one, marks=pytest.mark.slow) for one in ((ddpg, False), (sac_discrete, False))
]


@pytest.mark.parametrize("module, vmapped", [(ddpg, True), *seldom])
def test_a_replay_buffer_is_never_copied_while_training(module, vmapped, vmapped_keys):
    """Checked for one trial and for three vmapped seeds."""
    names = ("hidden_sizes", "critic_hidden_sizes")
    config = module.Config(
        total_timesteps=64,
        num_envs=1,
        buffer_size=7919,
        learning_starts=8,
        batch_size=4,
        num_evals=1,
        num_eval_episodes=0,
        eval_at_start=False,
        **{name: (4,) for name in names if hasattr(module.Config, name)},
    )
    train, key = module.make_train(config), jax.random.key(0)
    if vmapped:
        train, key = jax.vmap(train), jax.random.split(key, 3)
    text = jax.jit(train).lower(key).compile().as_text()
    inside = text[: text.index("\nENTRY ")]  # of loops
    shape = r"\[3,7919" if vmapped else r"\[7919"
    assert re.search(shape, inside)
    assert not re.search(shape + r"[^\n]* copy\(", inside)
