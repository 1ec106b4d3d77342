"""Loops as for an accelerator and as for a CPU."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs import loops


@pytest.fixture(params=["cpu", "gpu"])
def platform(request, monkeypatch):
    """Loops as for this platform; they run on the CPU."""
    monkeypatch.setattr(loops, "platform", lambda: request.param)
    return request.param


def step(carry, row):
    carry = 0.5 * carry + row["x"]
    return carry, {"carry": carry, "large": row["x"] > 1.0}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 16, 19])
def test_a_scan_is_jaxs(length, reverse, platform):
    rows = {"x": np.random.default_rng(length).normal(size=(length, 3)).astype(np.float32)}
    expected = jax.lax.scan(step, jnp.ones(3), rows, reverse=reverse)
    found = jax.jit(lambda rows: loops.scan(step, jnp.ones(3), rows, reverse))(rows)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), found, expected)


def in_order(length):
    """A function with a loop of so many steps, each of ten equations."""

    def ten(carry, x):
        for _ in range(5):
            carry = carry * x + 1.0
        return carry, None

    return lambda x: loops.scan(ten, x, jnp.ones(length))[0]


def test_only_accelerators_take_several_steps_in_a_round(platform):
    text = jax.jit(in_order(64)).lower(jnp.float32(1.0)).compile().as_text()
    (trips,) = re.findall(r'"known_trip_count":\{"n":"(\d+)"', text)
    assert int(trips) == {"cpu": 64, "gpu": 4}[platform]


@pytest.mark.parametrize(
    "limit, steps", [(160, 16), (159, 8), (80, 8), (79, 4), (39, 2), (19, 1), (5, 1)]
)
def test_large_steps_make_rounds_of_few(limit, steps, monkeypatch):
    monkeypatch.setattr(loops, "EQUATIONS", limit)
    monkeypatch.setattr(loops, "platform", lambda: "gpu")
    (scan,) = jax.make_jaxpr(in_order(64))(jnp.float32(1.0)).eqns[-1:]
    assert scan.params["unroll"] == steps


def test_equations_inside_others_count():
    count = lambda function: loops.equations(jax.make_jaxpr(function)(jnp.float32(1.0)))
    outside = count(in_order(1)) - 10
    assert 0 < outside < 10, "the loop, its ones and what counts its steps"
    assert count(in_order(8)) - outside == 8 * 10
    assert count(lambda x: jax.jit(in_order(8))(x)) == count(in_order(8)) + 1
    branches = lambda x: jax.lax.cond(x > 0, lambda x: x + 1.0, lambda x: x * 2.0 - 1.0, x)
    assert 2 + 1 + 2 <= count(branches) < 12


def test_steps_with_a_long_loop_inside_stay_a_loop(monkeypatch):
    """Of nine steps, or of a number that is not known."""
    monkeypatch.setattr(loops, "platform", lambda: "gpu")
    until = lambda x: jax.lax.while_loop(lambda x: x < 9.0, lambda x: x + 1.0, x)
    for inside, rounds in ((in_order(8), 16), (in_order(9), 1), (until, 1)):
        step = lambda x, _, inside=inside: (inside(x), None)
        outer = lambda x, step=step: loops.scan(step, x, jnp.ones(64))[0]
        (scan,) = jax.make_jaxpr(outer)(jnp.float32(1.0)).eqns[-1:]
        assert scan.params["unroll"] == rounds


@pytest.mark.parametrize("limit", [0, 1, 7, 8, 21])
def test_steps_are_repeated_until_none_is_needed(limit, platform):
    """Steps beyond the end do no harm here: a number that has reached the limit stays."""
    step = lambda x: jnp.minimum(x + 1, limit)
    repeat = jax.jit(lambda x: loops.repeat_while(lambda x: x < limit, step, x))
    assert repeat(0) == limit
    (loop,) = jax.make_jaxpr(repeat)(0).eqns[0].params["jaxpr"].eqns
    assert ("scan[" in str(loop.params["body_jaxpr"])) == (platform == "gpu")
