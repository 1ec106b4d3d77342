"""A loop over rows, and no copies of a replay buffer in programs that use it."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import ddpg, sac_discrete
from algorithms.parts.loops import scan_rows
from envs import loops


def step(carry, row):
    carry = 0.5 * carry + row["x"]
    return carry, {"carry": carry, "large": row["x"] > 1.0}


@pytest.fixture(params=["cpu", "gpu"])
def platform(request, monkeypatch):
    """Loops as for this platform; they run on the CPU."""
    monkeypatch.setattr(loops, "platform", lambda: request.param)
    return request.param


@functools.partial(jax.jit, static_argnums=(2, 3))
def looped(carry, rows, count, platform):
    """All rows, `count` at a time."""
    part = lambda carry, first: scan_rows(step, carry, rows, first, count)
    return jax.lax.scan(part, carry, jnp.arange(0, 6, count))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_rows_are_taken_in_order_and_outputs_added_up(count, platform):
    rows = {"x": np.array([0.1, 2.0, -1.0, 3.0, 0.5, 1.5], np.float32)}
    carry, sums = looped(jnp.float32(1.0), rows, count, platform)
    expected, carries = 1.0, []
    for x in rows["x"]:
        expected = 0.5 * expected + x
        carries.append(expected)
    np.testing.assert_allclose(carry, expected, rtol=1e-6)
    of_parts = np.array(carries).reshape(-1, count).sum(1)
    np.testing.assert_allclose(sums["carry"], of_parts, rtol=1e-6)
    np.testing.assert_array_equal(sums["large"], (rows["x"] > 1).reshape(-1, count).sum(1))


def test_an_accelerator_knows_the_trips_of_rows(platform):
    """Else it would wait for the host at each of them."""
    rows = {"x": np.ones(6, np.float32)}
    text = str(jax.make_jaxpr(lambda: looped(jnp.float32(1.0), rows, 2, platform))())
    assert ("while[" in text) == (platform == "cpu")


@pytest.mark.parametrize("module, vmapped", [(ddpg, False), (ddpg, True), (sac_discrete, False)])
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
