"""What optax lacks: a learning rate that is given at each step, and steps on one long vector."""

from typing import Any

import jax
import optax
from jax.flatten_util import ravel_pytree


def scale_by_rate() -> optax.GradientTransformationExtraArgs:
    """Multiplies by minus the `learning_rate` that `update` is given: the end of a chain.

        updates, opt_state = optimizer.update(grads, opt_state, params, learning_rate=rate)
        params = optax.apply_updates(params, updates)

    Nothing else knows the rate. A chain that ends with a rate of its own, such as
    `optax.chain(clip, optax.adam(3e-4))`, ignores the one that it is given.
    """

    def update(updates, state, params=None, *, learning_rate, **others):
        return jax.tree.map(lambda x: -learning_rate * x, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def on_one_vector(
    transformation: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """The transformation of gradients and parameters as one long vector.

    Operations become fewer and larger. The result is the same where all numbers are treated alike:
    Adam, clipping by value or global norm, weight decay. Clipping of each tensor, masks, LAMB and
    Muon see the shapes of parameters: leave them outside.
    """
    whole = optax.with_extra_args_support(transformation)
    vector = lambda tree: None if tree is None else ravel_pytree(tree)[0]

    def update(updates, state, params=None, **extra):
        flat, unravel = ravel_pytree(updates)
        flat, state = whole.update(flat, state, vector(params), **extra)
        return unravel(flat), state

    return optax.GradientTransformationExtraArgs(lambda params: whole.init(vector(params)), update)


def global_norm(tree: Any) -> jax.Array:
    """The norm of all leaves as one vector, ()."""
    return optax.tree.norm(ravel_pytree(tree)[0])
