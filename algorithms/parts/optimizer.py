"""Gradient steps on all parameters as one long vector: fewer and larger operations."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree


class FlatOptimizer(NamedTuple):
    """An optax transformation that sees all parameters as one vector."""

    transformation: optax.GradientTransformation

    def init(self, params: Any) -> optax.OptState:
        return self.transformation.init(ravel_pytree(params)[0])

    def step(
        self, params: Any, opt_state: optax.OptState, grads: Any, learning_rate: jax.Array
    ) -> tuple[Any, optax.OptState, jax.Array]:
        """Goes against the gradients. Returns params, opt_state and the gradients' global norm.

        Where the transformation needs parameters (for their shapes), it gets the tree of them.
        """
        flat, unravel = ravel_pytree(grads)
        direction, opt_state = self.transformation.update(flat, opt_state, params)
        params = jax.tree.map(jnp.subtract, params, unravel(learning_rate * direction))
        return params, opt_state, optax.tree.norm(flat)
