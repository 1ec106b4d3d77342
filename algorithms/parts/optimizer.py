"""Gradient steps on all parameters as one long vector: fewer and larger operations."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from algorithms.parts import shards


class FlatOptimizer(NamedTuple):
    """An optax transformation of all parameters as one vector."""

    transformation: optax.GradientTransformation

    def init(self, params: Any) -> optax.OptState:
        return self.transformation.init(ravel_pytree(params)[0])

    def step(
        self,
        params: Any,
        opt_state: optax.OptState,
        grads: Any,
        learning_rate: jax.Array,
        weight_decay: Any = None,
        some: jax.Array | None = None,
    ) -> tuple[Any, optax.OptState, jax.Array]:
        """params -= learning_rate * (direction + weight_decay * params).

        The transformation gives the direction. Returns params, opt_state and the gradients' global
        norm. The transformation also gets the tree of parameters, for their shapes. Adam with a
        weight decay is AdamW (Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101).

        Gradients are averaged over shards first. This mean of means is the gradient of all samples
        if shards have equally many, or divide by a common sum of weights as `parts.mean` does.

        Args:
          weight_decay: one number, or a tree of numbers, each for all parameters below its place.
          some: bool (), whether any sample counts in the gradients; if not, nothing changes.
        """
        flat, unravel = ravel_pytree(grads)
        flat = shards.mean_over_shards(flat)
        direction, updated = self.transformation.update(flat, opt_state, params)
        if some is not None:
            learning_rate = learning_rate * some
            updated = jax.tree.map(lambda x, y: jnp.where(some, x, y), updated, opt_state)
        learned = jax.tree.map(jnp.subtract, params, unravel(learning_rate * direction))
        if weight_decay is not None:
            decay = lambda weight, new, old: jax.tree.map(
                lambda x, y: x - learning_rate * weight * y, new, old
            )
            learned = jax.tree.map(decay, weight_decay, learned, params)
        return learned, updated, optax.tree.norm(flat)


def clipped_adam(max_grad_norm: Any, eps: Any) -> FlatOptimizer:
    """Adam on gradients clipped to a global norm, without its learning rate; inf: never clipped."""
    clip = optax.clip_by_global_norm(max_grad_norm)
    return FlatOptimizer(optax.chain(clip, optax.scale_by_adam(eps=eps)))
