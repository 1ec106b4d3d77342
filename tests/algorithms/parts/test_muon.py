"""Muon against singular value decompositions and optax."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from algorithms import parts


@pytest.mark.parametrize("eps", [1e-8, 0.3])
def test_muon_is_the_plain_recursion_and_everything_else_adam_s(eps):
    """Steps of small gradients are small, by the ratio of the gradient's size to eps."""
    rng = np.random.default_rng(0)
    params = {"kernel": jnp.zeros((6, 3)), "bias": jnp.zeros(3), "wide": jnp.zeros((4, 8))}
    optimizer = parts.scale_by_muon(0.9, eps)
    adam = optax.scale_by_adam(eps=eps)
    state, adam_state = optimizer.init(params), adam.init(params)
    update, adam_update = jax.jit(optimizer.update), jax.jit(adam.update)
    momentum = {"kernel": 0.0, "wide": 0.0}
    for _ in range(3):
        grads = {name: rng.normal(size=x.shape).astype(np.float32) for name, x in params.items()}
        steps, state = update(grads, state, params)
        adam_steps, adam_state = adam_update(grads, adam_state)
        np.testing.assert_allclose(steps["bias"], adam_steps["bias"], rtol=1e-5)
        for name, size in (("kernel", 6), ("wide", 8)):
            momentum[name] = 0.9 * momentum[name] + 0.1 * grads[name]
            x = 0.9 * momentum[name] + 0.1 * grads[name]
            left, _, right = np.linalg.svd(x, full_matrices=False)
            values = np.linalg.svd(x / np.linalg.norm(x), compute_uv=False)
            for _ in range(5):
                values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
            rms = np.sqrt(np.mean(x**2))
            expected = 0.2 * math.sqrt(size) * rms / (rms + eps) * left * values @ right
            np.testing.assert_allclose(steps[name], expected, rtol=1e-3, atol=1e-4)


def test_muon_agrees_with_optax_once_its_averages_have_warmed_up():
    """optax corrects the bias of early averages, which Newton-Schulz's normalisation undoes."""
    params = {"kernel": jnp.zeros((5, 4))}
    mine = parts.scale_by_muon(0.5, 1e-8)
    theirs = optax.contrib.muon(-1.0, beta=0.5, consistent_rms=0.2)
    step, their_step = jax.jit(mine.update), jax.jit(theirs.update)
    state, their_state = mine.init(params), theirs.init(params)
    for grad in np.random.default_rng(0).normal(size=(15, 5, 4)).astype(np.float32):
        steps, state = step({"kernel": grad}, state, params)
        their_steps, their_state = their_step({"kernel": grad}, their_state, params)
    np.testing.assert_allclose(steps["kernel"], their_steps["kernel"], rtol=1e-3, atol=1e-4)
