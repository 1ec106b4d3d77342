"""Action spaces: sizes of heads, clipping, rescaling, noise, and a warning of their units."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.warn import warn

NEAR = (0.1, 10.0)  # bounds that a Gaussian with a standard deviation of 1 explores


class EpsilonNoise(NamedTuple):
    """Random numbers of epsilon-greedy actions."""

    uniform: jax.Array  # in [0, 1); below epsilon the action is random
    action: jax.Array  # the random action if all are allowed, int32


def is_discrete(space: Any) -> bool:
    return hasattr(space, "n")


def num_outputs(space: Any) -> int:
    """Number of actions of a Discrete space, or of dimensions of a Box."""
    return space.n if is_discrete(space) else math.prod(space.shape)


def clip_to(space: Any, action: jax.Array) -> jax.Array:
    """Actions (...) or (..., dimensions) in the environment's space and shape, clipped to a Box."""
    if is_discrete(space):
        return action
    return jnp.clip(action.reshape(action.shape[:-1] + space.shape), space.low, space.high)


def rescale_to(space: Any, action: jax.Array) -> jax.Array:
    """low + (a + 1) / 2 (high - low), (..., *space.shape): maps actions a (..., dimensions) in
    [-1, 1] to a Box. A sum that rounding takes out of the box is cut off."""
    action = action.reshape(action.shape[:-1] + space.shape)
    scaled = space.low + 0.5 * (action + 1.0) * (space.high - space.low)
    return jnp.clip(scaled, space.low, space.high)


def warn_of_units(env: Any, env_params: Any) -> None:
    """Warns of continuous actions whose units do not suit a Gaussian that begins with a standard
    deviation of 1: it never explores a far larger box, and plays the bounds of a far smaller one.

    Infinite bounds say nothing of the units, and traced ones are not known.

    Args:
      env, env_params: from `envs.make`.
    """
    space = env.action_space(env_params)
    if is_discrete(space) or any(isinstance(x, jax.core.Tracer) for x in (space.low, space.high)):
        return
    low, high = (np.broadcast_to(jax.device_get(x), space.shape) for x in (space.low, space.high))
    bounds = np.maximum(np.abs(low), np.abs(high))  # of each dimension
    far = bounds[np.isfinite(bounds) & ((bounds > NEAR[1]) | ((bounds < NEAR[0]) & (bounds > 0)))]
    if far.size:
        size = far[np.argmax(np.abs(np.log(far)))]
        warn(
            f"{env.name} has actions between +-{size:g}, and the policy explores with a standard "
            "deviation of 1 at first: the environment setting rescale_action=true suits it"
        )


def uniform_of(noise: jax.Array) -> jax.Array:
    """erf(noise / sqrt(2)), uniform in [-1, 1] for standard normal noise of any shape."""
    return jax.scipy.special.erf(noise / math.sqrt(2.0))


def flat_draw(kind: Callable[..., jax.Array], key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """kind(key, shape), for a function of jax.random: drawn as one axis, which compiles much
    faster."""
    return kind(key, (math.prod(shape),)).reshape(shape)


def action_noise(key: jax.Array, space: Any, shape: tuple[int, ...]) -> jax.Array:
    """Standard Gumbel (discrete) or normal noise of actions, (*shape, num_outputs(space)).

    argmax(logits + noise) and mean + std * noise are samples.
    """
    kind = jax.random.gumbel if is_discrete(space) else jax.random.normal
    return flat_draw(kind, key, (*shape, num_outputs(space)))


def epsilon_noise(key: jax.Array, shape: tuple[int, ...], num_actions: int) -> EpsilonNoise:
    """Noise of epsilon-greedy actions, arrays of this shape.

    Drawing it for a whole rollout at once costs far less than step by step. A flat draw compiles
    much faster.
    """
    uniform_key, action_key = jax.random.split(key)
    uniform = jax.random.uniform(uniform_key, (math.prod(shape),))
    action = jax.random.randint(action_key, (math.prod(shape),), 0, num_actions)
    return EpsilonNoise(uniform.reshape(shape), action.reshape(shape))
