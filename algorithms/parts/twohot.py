"""Two-hot coding: numbers as distributions over bins, for classifiers that predict them."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np


def symlog(x: jax.Array) -> jax.Array:
    """sign(x) log(1 + |x|), elementwise: Hafner et al. 2023, arXiv:2301.04104, equation 9."""
    return jnp.sign(x) * jnp.log1p(jnp.abs(x))


def symexp(x: jax.Array) -> jax.Array:
    """Its inverse, sign(x) (exp(|x|) - 1)."""
    return jnp.sign(x) * jnp.expm1(jnp.abs(x))


@dataclasses.dataclass(frozen=True)
class Bins:
    """An odd number of bins b_i = symexp(x_i), with x_i equally far apart in [-limit, limit].

    b_{-i} = -b_i exactly, and the middle one is 0 (Hafner et al. 2023, equation 10).
    """

    number: int
    limit: float = 20.0  # the last ones are +-(exp(20) - 1)

    @functools.cached_property
    def positive(self) -> np.ndarray:
        """The bins above the middle one, (number // 2,). They are computed in 64 bits."""
        half = self.number // 2
        return np.expm1(self.limit * np.arange(1, half + 1) / half).astype(np.float32)

    @property
    def values(self) -> np.ndarray:
        """All bins in ascending order, (number,)."""
        return np.concatenate([-self.positive[::-1], np.zeros(1, np.float32), self.positive])

    def encode(self, x: jax.Array) -> jax.Array:
        """Weights (..., number) whose mean is x (...): those of the two bins beside it.

        They are linear between the bins. Numbers beyond the last bin have its weight.
        """
        bins = jnp.asarray(self.values)
        before = range(x.ndim)  # axes of x
        x = jnp.clip(x, bins[0], bins[-1])[..., None]
        left = jnp.clip((jnp.expand_dims(bins, before) <= x).sum(-1) - 1, 0, self.number - 2)
        low, high = bins[left], bins[left + 1]
        share = ((x[..., 0] - low) / (high - low))[..., None]
        here = jnp.expand_dims(jnp.arange(self.number), before) - left[..., None]
        return jnp.where(here == 0, 1.0 - share, jnp.where(here == 1, share, 0.0))

    def mean(self, logits: jax.Array) -> jax.Array:
        """sum_{i > 0} (p_i - p_{-i}) b_i, (...), of logits (..., number).

        The largest bins are many orders of magnitude above the mean. In sum_i p_i b_i rounding
        errors of theirs would hide it. Here equal probabilities cancel exactly.
        """
        half = self.number // 2
        p = jax.nn.softmax(logits.astype(jnp.float32))
        return ((p[..., half + 1 :] - p[..., :half][..., ::-1]) * self.positive).sum(-1)

    def cross_entropy(self, logits: jax.Array, x: jax.Array) -> jax.Array:
        """-sum_i w_i log p_i, (...), of logits (..., number) and the weights w of x (...)."""
        logits = logits.astype(jnp.float32)
        return jax.nn.logsumexp(logits, -1) - (self.encode(x) * logits).sum(-1)
