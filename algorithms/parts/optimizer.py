"""Steps of optax on one long vector."""

import inspect
from collections.abc import Mapping
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
    # Of optax's optimisers those that have such a step, which inject_hyperparams makes late.
    *("adafactor", "fromage", "lamb", "lars", "muon", "novograd", "sm3"),
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

    def init(params):
        check_variables(params)
        return whole.init(vector(params))

    return optax.GradientTransformationExtraArgs(init, update)


def _makers(function: Any) -> set[str]:
    """Names of the functions that made a function, and those in its closure or its object."""
    found = {function}
    while True:
        closures = [getattr(one, "__closure__", None) or () for one in found]
        objects = [vars(getattr(one, "__self__", one)) for one in found]
        held = [cell.cell_contents for cells in closures for cell in cells], objects
        inner = {one for one in jax.tree.leaves(held) if inspect.isfunction(one)}
        if inner <= found:
            return {getattr(one, "__qualname__", "").split(".")[0] for one in found}
        found |= inner


def check_optimizers(state: Any) -> None:
    """Refuses optimisers that would learn what is no parameter, or keep the rate of their init.

    Args:
      state: of an algorithm; fields of optimisers' states end with opt_state.
    """
    held = [x for name, x in vars(state).items() if name.endswith("opt_state")]
    known = lambda x: hasattr(x, "hyperparams") or isinstance(x, Mapping)
    for one in jax.tree.leaves(held, is_leaf=known):
        if "learning_rate" in getattr(one, "hyperparams", ()):
            raise ValueError(
                "optax.inject_hyperparams keeps the learning rate that it is made with, and a file "
                "makes its optimiser anew for each rate: leave it out, as in optax.adam(rate)"
            )
        check_variables(one)


def check_variables(params: Any) -> None:
    """Refuses flax's collections besides parameters, which gradients would change."""
    others = sorted({*params} - {"params"}) if isinstance(params, Mapping) else []
    if others and "params" in params:
        raise ValueError(
            f"the network has variables in {' and '.join(others)}, which the optimiser would "
            "change: give it params['params'], and pass the others on, as crossq.py does"
        )


def global_norm(tree: Any) -> jax.Array:
    """The norm of all leaves as one vector, ()."""
    return optax.tree.norm(ravel_pytree(tree)[0])
