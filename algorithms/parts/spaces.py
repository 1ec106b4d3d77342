"""Actions of environments, random numbers for them, and warnings of units."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.behaviour import of_user
from envs.warn import warn

NEAR = (0.1, 10.0)  # bounds that a Gaussian with a standard deviation of 1 explores
LARGE = 100.0  # bounds of observations from which on they are to be normalised
NO_BOUND = 1e30  # as float32's largest number in the place of infinity


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

        A distribution without `sample_from`, such as one of distrax, gets a key made of `key`.
        """
        if hasattr(actions, "sample_from"):
            return actions.sample_from(noise)
        return actions.sample(seed=jax.random.fold_in(key, 1))

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


def warn_of_units(env: Any, env_params: Any) -> None:
    """Warns of continuous actions whose units do not suit a Gaussian that begins with a standard
    deviation of 1: it never explores a far larger box, and plays the bounds of a far smaller one.

    Infinite bounds say nothing of the units, and traced ones are not known.

    Args:
      env, env_params: from `envs.make`.
    """
    space = env.action_space(env_params)
    bounds = _bounds(space) if hasattr(space, "low") else np.zeros(0)
    far = bounds[(bounds > NEAR[1]) | ((bounds < NEAR[0]) & (bounds > 0))]
    if far.size:
        size = far[np.argmax(np.abs(np.log(far)))]
        warn(
            f"{env.name} has actions between +-{size:g}, and the policy explores with a standard "
            "deviation of 1 at first: the environment setting rescale_action=true suits it"
        )


def warn_of_scale(config: Any, env: Any, env_params: Any) -> None:
    """Warns of large observations that networks see as they are. Bytes are divided by 255.

    Only users' own environments are looked at: JaxMARL's say 255 of bits.

    Args:
      config: its `normalize_obs` is used; without that field the algorithm scales by itself.
      env, env_params: from `envs.make`, with a Box of observations.
    """
    space = env.observation_space(env_params)
    scaled = getattr(config, "normalize_obs", True) or space.dtype == jnp.uint8
    if scaled or not of_user(env):
        return
    size = _bounds(space).max(initial=0.0)
    if size > LARGE:
        warn(
            f"{env.name} has observations between +-{size:g}, and networks see them as they are: "
            "normalize_obs=True suits it"
        )


def _bounds(space: Any) -> np.ndarray:
    """The largest size of each number of a Box, without those that have none or are traced."""
    if any(isinstance(x, jax.core.Tracer) for x in (space.low, space.high)):
        return np.zeros(0)
    low, high = (np.broadcast_to(jax.device_get(x), space.shape) for x in (space.low, space.high))
    bounds = np.maximum(np.abs(low), np.abs(high))
    return bounds[bounds < NO_BOUND]


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
