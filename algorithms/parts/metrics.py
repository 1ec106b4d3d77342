"""Means with weights, and how well values predict their targets."""

import jax
import jax.numpy as jnp

from algorithms.parts import shards
from algorithms.parts.training import Average


def mean(x: jax.Array, weights: jax.Array) -> jax.Array:
    """sum(w x) / sum(w), (); 0 if all weights are 0. Both arrays have one shape.

    With shards it is sum(w x) over the mean of all shards' sum(w): the mean of these values over
    the shards is the weighted mean of all samples, and so is the mean of their gradients.
    """
    return (x * weights).sum() / jnp.maximum(shards.mean_over_shards(weights.sum()), 1e-8)


def _mean_of_shard(x: jax.Array, weights: jax.Array) -> jax.Array:
    """`mean` of this shard's samples alone."""
    return (x * weights).sum() / jnp.maximum(weights.sum(), 1e-8)


def explained_variance(
    values: jax.Array, targets: jax.Array, weights: jax.Array | None = None
) -> Average:
    """1 - Var(targets - values) / Var(targets), arrays of one shape.

    It is 1 if values predict their targets, and 0 if they are no better than the targets' mean.
    Equal targets give an Average without weight. Samples of weight 0 are left out. Each shard
    computes its own, and the metric is their mean.
    """
    average = jnp.mean if weights is None else lambda x: _mean_of_shard(x, weights)
    variance = jnp.var if weights is None else lambda x: average(jnp.square(x - average(x)))
    of_targets = variance(targets)
    differ = of_targets > 1e-12 * average(jnp.square(targets))  # by more than rounding
    share = 1.0 - variance(targets - values) / jnp.where(differ, of_targets, 1.0)
    return Average(jnp.where(differ, share, 0.0), differ)
