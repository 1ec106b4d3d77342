"""Sums along a rollout that carry over from step to step."""

import jax
import jax.numpy as jnp

from envs.loops import scan


def backward_sums(x: jax.Array, decays: jax.Array) -> jax.Array:
    """y_t = x_t + decay_t y_{t+1} along the leading axis, with y = 0 after the last step."""

    def step(later, inputs):
        now, decay = inputs
        now = now + decay * later
        return now, now

    return scan(step, jnp.zeros_like(x[0]), (x, decays), reverse=True)[1]
