"""Running statistics of observations and rewards: pytrees with pure updates.

One set serves all parallel environments and is part of the training state. It does not change while
a rollout is collected and learned from, and is updated afterwards.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from algorithms.parts import shards
from algorithms.parts.layers import scaled
from envs.loops import scan


@struct.dataclass
class RunningStatistics:
    """Mean and variance of all samples so far, merged batch by batch (Chan et al. 1979).

    The mean moves by a difference of means, and the variance is a convex combination. So nothing
    cancels in float32, even after many samples. At 2**24 batches of one size the count stops
    growing in float32, and older samples begin to fade.
    """

    mean: jax.Array  # (...)
    var: jax.Array  # (...)
    count: jax.Array  # ()

    @classmethod
    def create(cls, shape: tuple[int, ...] = ()) -> "RunningStatistics":
        """Mean 0 and variance 1 until the first update."""
        return cls(jnp.zeros(shape), jnp.ones(shape), jnp.zeros(()))

    def update(self, x: jax.Array, weights: jax.Array | None = None) -> "RunningStatistics":
        """Merges samples x (..., *shape), without those whose weight (...) is 0."""
        axes = tuple(range(x.ndim - self.mean.ndim))
        x = x.astype(jnp.float32)
        if weights is None:
            size = jnp.asarray(x.size // max(self.mean.size, 1), jnp.float32)
            return self.merge(shards.merged(RunningStatistics(x.mean(axes), x.var(axes), size)))
        size = weights.sum(dtype=jnp.float32)
        shares = (weights / jnp.maximum(size, 1.0)).reshape(weights.shape + (1,) * self.mean.ndim)
        mean = (shares * x).sum(axes)
        own = RunningStatistics(mean, (shares * (x - mean) ** 2).sum(axes), size)
        return self.merge(shards.merged(own))

    def merge(self, other: "RunningStatistics") -> "RunningStatistics":
        """Merges both sets: mean + w d and var + w (other var - var) + w (1 - w) d**2.

        w is the other's share of the count, and d = other mean - mean. The first merge, into the
        variance 1 of no samples, rounds to about 1e-7; later ones wear this off.
        """
        count = self.count + other.count
        weight = other.count / jnp.maximum(count, 1.0)
        delta = other.mean - self.mean
        var = self.var + weight * (other.var - self.var) + weight * (1.0 - weight) * delta**2
        return RunningStatistics(self.mean + weight * delta, var, count)

    def normalize(self, x: jax.Array, clip: Any) -> jax.Array:
        """(x - mean) / std, clipped to [-clip, clip]."""
        return jnp.clip((x - self.mean) * jax.lax.rsqrt(self.var + 1e-8), -clip, clip)

    def as_input(self, config: Any, x: jax.Array) -> jax.Array:
        """Observations or world states (..., *shape), or the first numbers of vectors, as networks
        see them: with `normalize_obs` normalised and clipped to +-`clip_obs`, else `scaled`."""
        first = slice(x.shape[-1]) if self.mean.ndim == 1 else ...
        own = RunningStatistics(self.mean[first], self.var[first], self.count)
        return own.normalize(x, config.clip_obs) if config.normalize_obs else scaled(x)


@struct.dataclass
class RewardScale:
    """Divides rewards by the standard deviation of their discounted sums so far.

    As in Engstrom et al. 2020, https://arxiv.org/abs/2005.12729.
    """

    discounted: jax.Array  # sums of the current episodes, (num_envs,)
    stats: RunningStatistics  # statistics of these sums at all steps

    @classmethod
    def create(cls, num_envs: int) -> "RewardScale":
        return cls(jnp.zeros(num_envs), RunningStatistics.create())

    def scale(self, rewards: jax.Array, clip: Any) -> jax.Array:
        """Rewards of any shape over the deviation (not centred), clipped to [-clip, clip]."""
        return jnp.clip(rewards * jax.lax.rsqrt(self.stats.var + 1e-8), -clip, clip)

    def update(
        self, rewards: jax.Array, done: jax.Array, gamma: Any, weights: jax.Array | None = None
    ) -> "RewardScale":
        """Adds a rollout: rewards, done and weights (0 leaves a step out) are (num_steps,
        num_envs)."""
        discounted, sums = discounted_sums(self.discounted, rewards, done, gamma)
        return RewardScale(discounted, self.stats.update(sums, weights))


@struct.dataclass
class ReturnStatistics:
    """Statistics of G, the discounted sums of rewards, and the largest |G|."""

    sums: jax.Array  # of the current episodes, (num_envs,)
    largest: jax.Array  # max |G| so far, ()
    stats: RunningStatistics  # of G at all steps so far

    @classmethod
    def create(cls, num_envs: int) -> "ReturnStatistics":
        return cls(jnp.zeros(num_envs), jnp.zeros(()), RunningStatistics.create())

    def update(self, rewards: jax.Array, done: jax.Array, gamma: Any) -> "ReturnStatistics":
        """Adds a rollout: rewards and done are (num_steps, num_envs)."""
        last, sums = discounted_sums(self.sums, rewards, done, gamma)
        largest = jnp.maximum(self.largest, shards.max_over_shards(jnp.abs(sums).max()))
        return ReturnStatistics(last, largest, self.stats.update(sums))


def discounted_sums(start: jax.Array, rewards: jax.Array, done: jax.Array, gamma: Any) -> Any:
    """The sums to start the next rollout from, (num_envs,), and those of this one, g_t = gamma (1 -
    done_{t-1}) g_{t-1} + r_t, (num_steps, num_envs). `done` includes truncation."""

    def step(total, inputs):
        reward, ended = inputs
        total = gamma * total + reward
        return jnp.where(ended, 0.0, total), total

    return scan(step, start, (rewards, done))
