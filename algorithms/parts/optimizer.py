"""Steps of optax on one long vector."""

import inspect
from typing import Any

import jax
import optax
from jax.flatten_util import ravel_pytree

# Functions of optax whose steps depend on the tensors that parameters are in.
BY_TENSOR = {
    *("adaptive_grad_clip", "centralize", "clip_by_block_rms", "masked", "partition"),
    *("scale_by_factored_rms", "scale_by_galore", "scale_by_muon", "scale_by_novograd"),
    *("scale_by_param_block_norm", "scale_by_param_block_rms", "scale_by_sm3"),
    "scale_by_trust_ratio",
}


def on_one_vector(
    transformation: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """The transformation of gradients and parameters as one long vector.

        optimizer = lambda rate: parts.on_one_vector(optax.chain(clip, adam, optax.scale(-rate)))
        updates, opt_state = optimizer(rate).update(grads, opt_state, params)

    Operations become fewer and larger. The result is the same where all numbers are treated alike:
    Adam, clipping by value or global norm, weight decay.

    Raises:
      ValueError: a part of optax depends on the shapes of parameters, as clipping of each tensor,
        masks, LAMB and Muon do.
    """
    if found := BY_TENSOR & _makers(transformation.update):
        raise ValueError(
            f"on_one_vector: optax's {' and '.join(sorted(found))} depends on the tensors that "
            "parameters are in, and would get them all as one vector: leave on_one_vector out"
        )
    whole = optax.with_extra_args_support(transformation)
    vector = lambda tree: None if tree is None else ravel_pytree(tree)[0]

    def update(updates, state, params=None, **extra):
        flat, unravel = ravel_pytree(updates)
        flat, state = whole.update(flat, state, vector(params), **extra)
        return unravel(flat), state

    return optax.GradientTransformationExtraArgs(lambda params: whole.init(vector(params)), update)


def _makers(function: Any) -> set[str]:
    """Names of the functions that made a function and those in its closure."""
    found = {function}
    while True:
        closures = [getattr(one, "__closure__", None) or () for one in found]
        held = jax.tree.leaves([cell.cell_contents for cells in closures for cell in cells])
        inner = {one for one in held if inspect.isfunction(one)}
        if inner <= found:
            return {getattr(one, "__qualname__", "").split(".")[0] for one in found}
        found |= inner


def global_norm(tree: Any) -> jax.Array:
    """The norm of all leaves as one vector, ()."""
    return optax.tree.norm(ravel_pytree(tree)[0])
