"""Steps of optax on one long vector."""

from typing import Any

import jax
import optax
from jax.flatten_util import ravel_pytree


def on_one_vector(
    transformation: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """The transformation of gradients and parameters as one long vector.

        optimizer = lambda rate: parts.on_one_vector(optax.chain(clip, adam, optax.scale(-rate)))
        updates, opt_state = optimizer(rate).update(grads, opt_state, params)

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
