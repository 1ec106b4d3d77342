"""LaProp, and clipping of each tensor's gradient by the size of its parameters."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

# Squares of gradients are kept times SCALE**2: those of small ones would be 0 in float32.
SCALE = 2.0**30


def clip_by_tensor(limit: Any, least: Any) -> optax.GradientTransformation:
    """g / max(1, |g| / (limit max(least, |p|))), with the norms of a whole tensor.

    Adaptive gradient clipping (Brock et al. 2021, arXiv:2102.06171), which has a norm for each
    output unit: optax.adaptive_grad_clip. The update needs the parameters.
    """

    def update(grads, state, params=None):
        if params is None:
            raise ValueError("clip_by_tensor needs the parameters: update(grads, state, params)")
        norm = lambda x: jnp.sqrt(jnp.square(x).sum())

        def clip(g, p):
            return g / jnp.maximum(1.0, norm(g) / (limit * jnp.maximum(least, norm(p))))

        return jax.tree.map(clip, grads, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


class LaPropState(NamedTuple):
    steps: jax.Array  # updates so far, int32
    squares: Any  # mean of squared gradients, times SCALE**2
    momentum: Any  # mean of normalised gradients


def scale_by_laprop(b1: Any, b2: Any, eps: Any) -> optax.GradientTransformation:
    """LaProp (Ziyin et al. 2020, arXiv:2002.04839): momentum of normalised gradients.

    n <- b2 n + (1 - b2) g**2, m <- b1 m + (1 - b1) g / (sqrt(n / (1 - b2**t)) + eps), and the
    update is m / (1 - b1**t). Adam normalises after the momentum.
    """

    def init(params):
        zeros = lambda: jax.tree.map(jnp.zeros_like, params)
        return LaPropState(jnp.zeros((), jnp.int32), zeros(), zeros())

    def update(grads, state, params=None):
        count = state.steps + 1
        mean = lambda decay, old, new: decay * old + (1.0 - decay) * new
        unbiased = lambda decay: 1.0 / (1.0 - decay**count)
        square = lambda old, g: mean(b2, old, jnp.square(SCALE * g))
        squares = jax.tree.map(square, state.squares, grads)
        to_size = lambda g, n: g / (jnp.sqrt(n * unbiased(b2)) / SCALE + eps)
        normalized = jax.tree.map(to_size, grads, squares)
        momentum = jax.tree.map(lambda old, g: mean(b1, old, g), state.momentum, normalized)
        updates = jax.tree.map(lambda m: m * unbiased(b1), momentum)
        return updates, LaPropState(count, squares, momentum)

    return optax.GradientTransformation(init, update)
