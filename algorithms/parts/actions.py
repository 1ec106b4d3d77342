"""Distributions over actions, with the interface of distrax.

`sample(seed=key)`, `log_prob(action)`, `entropy()` and `mode()`; leading axes are free.
`sample_from` takes noise that was drawn ahead for a whole rollout, which costs far less than a draw
at each step: see `ActionSpace.noise`.
"""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from algorithms.parts.spaces import flat_draw


def normal_log_prob(x: jax.Array, mean: jax.Array, log_std: jax.Array) -> jax.Array:
    """log N(x; mean, std**2) = -((x - mean) / std)**2 / 2 - log std - log(2 pi) / 2, any shape."""
    scaled = (x - mean) * jnp.exp(-log_std)
    return -0.5 * (scaled**2 + math.log(2.0 * math.pi)) - log_std


def log_tanh_slope(x: jax.Array) -> jax.Array:
    """log(1 - tanh(x)**2) = 2 (log 2 - x - softplus(-2 x)) for x of any shape.

    This form neither overflows nor rounds to log(0).
    """
    return 2.0 * (math.log(2.0) - x - jax.nn.softplus(-2.0 * x))


@struct.dataclass
class Categorical:
    """One of several actions. Those where the mask is False have no probability."""

    logits: jax.Array  # (..., num_actions)
    mask: jax.Array | None = None  # (..., num_actions), bool

    @property
    def allowed(self) -> jax.Array:
        return self.logits if self.mask is None else jnp.where(self.mask, self.logits, -1e9)

    @property
    def probs(self) -> jax.Array:
        return nn.softmax(self.allowed)

    def mode(self) -> jax.Array:
        return jnp.argmax(self.allowed, axis=-1)

    def sample(self, *, seed: jax.Array) -> jax.Array:
        return self.sample_from(flat_draw(jax.random.gumbel, seed, self.logits.shape))

    def sample_from(self, noise: jax.Array) -> jax.Array:
        """argmax(logits + Gumbel noise), (...)."""
        return jnp.argmax(self.allowed + noise, axis=-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        log_probs = nn.log_softmax(self.allowed)
        return (log_probs * jax.nn.one_hot(action, log_probs.shape[-1])).sum(-1)

    def entropy(self) -> jax.Array:
        """-sum pi log pi, (...)."""
        log_probs = nn.log_softmax(self.allowed)
        return -(jnp.exp(log_probs) * log_probs).sum(-1)


@struct.dataclass
class Gaussian:
    """Independent normal actions. Dimensions where the mask is False do not count."""

    mean: jax.Array  # (..., dimensions)
    log_std: jax.Array  # (..., dimensions) or (dimensions,)
    mask: jax.Array | None = None  # (..., dimensions), bool

    def mode(self) -> jax.Array:
        return self.mean

    def sample(self, *, seed: jax.Array) -> jax.Array:
        return self.sample_from(flat_draw(jax.random.normal, seed, self.mean.shape))

    def sample_from(self, noise: jax.Array) -> jax.Array:
        """mean + std * standard normal noise, (..., dimensions)."""
        return self.mean + jnp.exp(self.log_std) * noise

    def log_prob(self, action: jax.Array) -> jax.Array:
        return self._total(normal_log_prob(action, self.mean, self.log_std))

    def entropy(self) -> jax.Array:
        """The sum of log std + (1 + log(2 pi)) / 2, (...)."""
        entropy = self._total(self.log_std + 0.5 * (1.0 + math.log(2.0 * math.pi)))
        return jnp.broadcast_to(entropy, self.mean.shape[:-1])

    def _total(self, of_dimensions: jax.Array) -> jax.Array:
        counted = of_dimensions
        if self.mask is not None:
            counted = jnp.where(self.mask, of_dimensions, 0.0)
        return counted.sum(-1)


@struct.dataclass
class TanhGaussian:
    """tanh of independent normal actions u: in (-1, 1). It has no entropy in closed form.

    log pi(a) = sum_d [log N(u_d; mean_d, std_d) - log(1 - a_d**2)]: appendix C of Haarnoja et al.
    2018, https://arxiv.org/abs/1801.01290.
    """

    mean: jax.Array  # of u, (..., dimensions)
    log_std: jax.Array  # of u, (..., dimensions)

    def mode(self) -> jax.Array:
        """tanh of the mean. The density may be larger elsewhere."""
        return jnp.tanh(self.mean)

    def sample(self, *, seed: jax.Array) -> jax.Array:
        return self.sample_and_log_prob(seed=seed)[0]

    def sample_and_log_prob(self, *, seed: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.sample_and_log_prob_from(jax.random.normal(seed, self.mean.shape))

    def sample_from(self, noise: jax.Array) -> jax.Array:
        return self.sample_and_log_prob_from(noise)[0]

    def sample_and_log_prob_from(self, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """tanh(mean + std * standard normal noise), and its log_prob, exact where tanh rounds."""
        u = self.mean + jnp.exp(self.log_std) * noise
        normal = -0.5 * (noise**2 + math.log(2.0 * math.pi)) - self.log_std
        return jnp.tanh(u), (normal - log_tanh_slope(u)).sum(-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Of actions in (-1, 1). Near the ends u is lost in rounding: see `sample_and_log_prob`."""
        u = jnp.arctanh(action)
        return (normal_log_prob(u, self.mean, self.log_std) - log_tanh_slope(u)).sum(-1)

    def entropy(self) -> jax.Array:
        raise NotImplementedError("a TanhGaussian has no entropy in closed form: use -log_prob")
