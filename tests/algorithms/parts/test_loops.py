"""A loop over rows, and no copies of a replay buffer in programs that use it."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from algorithms import ddpg, sac_discrete
from algorithms.parts.loops import scan_rows
from envs import loops


@struct.dataclass
class State:
    value: jax.Array
    replay: jax.Array


def step(state, row):
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
    part = lambda state, first: scan_rows(step, state, rows, first, count)
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
