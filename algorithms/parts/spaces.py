"""Actions of environments, and random numbers for them."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class EpsilonNoise(NamedTuple):
    """Random numbers of epsilon-greedy actions."""

    uniform: jax.Array  # in [0, 1); below epsilon the action is random
    action: jax.Array  # the random action if all are allowed, int32


@dataclasses.dataclass(frozen=True, eq=False)
class ActionSpace:
    """An environment's actions: sizes of heads, noise that is drawn ahead, clipping, rescaling."""

    space: Any  # gymnax's Discrete or Box; of one agent

    @property
    def discrete(self) -> bool:
        return hasattr(self.space, "n")

    @property
    def size(self) -> int:
        """Number of actions of a Discrete space, or of dimensions of a Box."""
        return self.space.n if self.discrete else math.prod(self.space.shape)

    def noise(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Standard Gumbel (discrete) or normal noise of actions, (*shape, size): for `sample`."""
        kind = jax.random.gumbel if self.discrete else jax.random.normal
        return flat_draw(kind, key, (*shape, self.size))

    def sample(self, actions: Any, noise: jax.Array, key: jax.Array) -> jax.Array:
        """A sample of a distribution from noise that was drawn ahead.

        A distribution without `sample_from`, such as one of distrax, gets a key made of `key`. It
        is none into which `environments.step` splits `key`: these are fold_in(key, i) for an
        environment's index i.
        """
        outputs: Any = getattr(actions, "logits" if self.discrete else "mean", None)
        if hasattr(outputs, "shape") and outputs.shape[-1:] != (self.size,):
            what = "actions" if self.discrete else "numbers in an action"
            raise ValueError(
                f"the policy has outputs of shape {outputs.shape}, and the environment {self.size} "
                f"{what}: give (..., {self.size})"
            )
        if hasattr(actions, "sample_from"):
            return actions.sample_from(noise)
        return actions.sample(seed=jax.random.fold_in(key, 2**31 - 1))

    def clip(self, action: jax.Array) -> jax.Array:
        """Actions (...) or (..., size) in the environment's shape, clipped to a Box."""
        if self.discrete:
            return action
        return jnp.clip(self.shaped(action), self.space.low, self.space.high)

    def rescale(self, action: jax.Array) -> jax.Array:
        """low + (a + 1) / 2 (high - low), (..., *shape): maps actions a (..., size) in [-1, 1] to a
        Box. What is outside of the box is clipped. Discrete actions stay."""
        if self.discrete:
            return action
        low, high = self.space.low, self.space.high
        return jnp.clip(low + 0.5 * (self.shaped(action) + 1.0) * (high - low), low, high)

    def uniform_from(self, noise: jax.Array) -> jax.Array:
        """erf(noise / sqrt(2)), uniform in [-1, 1] for standard normal noise of any shape."""
        return jax.scipy.special.erf(noise / math.sqrt(2.0))

    def shaped(self, action: jax.Array) -> jax.Array:
        """Actions (..., size) of a Box as (..., *shape); discrete ones stay."""
        if self.discrete:
            return action
        return action.reshape(action.shape[:-1] + self.space.shape)


def flat_draw(kind: Callable[..., jax.Array], key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """kind(key, shape), for a function of jax.random: drawn as one axis, which compiles much
    faster."""
    return kind(key, (math.prod(shape),)).reshape(shape)


def epsilon_noise(key: jax.Array, shape: tuple[int, ...], num_actions: int) -> EpsilonNoise:
    """Noise of epsilon-greedy actions, arrays of this shape.

    Drawing it for a whole rollout at once costs far less than step by step. A flat draw compiles
    much faster.
    """
    uniform_key, action_key = jax.random.split(key)
    uniform = jax.random.uniform(uniform_key, (math.prod(shape),))
    action = jax.random.randint(action_key, (math.prod(shape),), 0, num_actions)
    return EpsilonNoise(uniform.reshape(shape), action.reshape(shape))
