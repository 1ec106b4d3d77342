"""LaProp and clipping by tensor against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import parts

SHAPES = {"kernel": (4, 3), "zero": (5,), "number": ()}


def plain_steps(params, grads, limit, least, b1, b2, eps, rate):
    """The parameters after each step, in 64 bits."""
    params = {name: x.astype(float) for name, x in params.items()}
    squares = {name: np.zeros_like(x) for name, x in params.items()}
    momentum = {name: np.zeros_like(x) for name, x in params.items()}
    for t, one in enumerate(grads, 1):
        for name, p in params.items():
            g = one[name].astype(float)
            longest = limit * max(least, np.sqrt((p**2).sum()))
            g = g / max(1.0, np.sqrt((g**2).sum()) / longest)
            squares[name] = b2 * squares[name] + (1.0 - b2) * g**2
            g = g / (np.sqrt(squares[name] / (1.0 - b2**t)) + eps)
            momentum[name] = b1 * momentum[name] + (1.0 - b1) * g
            params[name] = p - rate * momentum[name] / (1.0 - b1**t)
        yield {name: x.copy() for name, x in params.items()}


@pytest.mark.parametrize("flat", [False, True])
def test_twenty_steps_are_the_plain_recursion(flat):
    """The tensor of zeros is clipped by the smallest norm; some gradients are short."""
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    params = {name: np.asarray(x) for name, x in params.items()} | {"zero": np.zeros(5, np.float32)}
    draw = lambda scale: {
        name: np.asarray(scale * rng.normal(size=shape), np.float32)
        for name, shape in SHAPES.items()
    }
    grads = [draw(10.0 ** rng.uniform(-4, 1)) for _ in range(20)]
    numbers = dict(b1=0.9, b2=0.99, eps=1e-3)
    laprop = parts.scale_by_laprop(**numbers)
    laprop = parts.on_one_vector(laprop) if flat else laprop
    chain = optax.chain(parts.clip_by_tensor(0.3, 1e-3), laprop, optax.scale(-0.1))
    state, found = chain.init(params), jax.tree.map(jnp.asarray, params)
    expected = plain_steps(params, grads, 0.3, 1e-3, rate=0.1, **numbers)

    @jax.jit
    def step(found, state, one):
        updates, state = chain.update(one, state, found)
        return optax.apply_updates(found, updates), state

    for one, plain in zip(grads, expected, strict=True):
        found, state = step(found, state, one)
        for name, x in plain.items():
            np.testing.assert_allclose(found[name], x, rtol=1e-4, atol=1e-5, err_msg=name)


def test_tensors_are_clipped_as_a_whole():
    """optax.adaptive_grad_clip has a norm for each column."""
    params, grads = {"w": jnp.ones((2, 2))}, {"w": jnp.array([[1.0, 0.0], [0.0, 0.0]])}
    clip = parts.clip_by_tensor(0.25, 1e-3)
    found, _ = clip.update(grads, clip.init(params), params)
    np.testing.assert_allclose(found["w"], 0.5 * grads["w"])
    with pytest.raises(ValueError, match="needs the parameters"):
        clip.update(grads, clip.init(params))


@pytest.mark.parametrize("size", [1e-12, 1e-19, 3e-22])
def test_steps_of_tiny_gradients_are_no_longer_than_those_of_others(size):
    """Their squares would be 0 in float32, and the epsilon is far smaller than they are."""
    laprop = parts.scale_by_laprop(0.9, 0.999, 1e-24)
    state = laprop.init(jnp.zeros(3))
    for sign in np.random.default_rng(0).choice([-1.0, 1.0], size=(10, 3)):
        steps, state = jax.jit(laprop.update)(jnp.asarray(sign * size, jnp.float32), state)
        assert (np.abs(steps) < 1.5).all() and (np.abs(steps) > 1e-3).any()
