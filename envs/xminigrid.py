"""The adapter for XLand-MiniGrid 0.9 (Nikulin et al. 2024, arXiv:2312.12044).

    env, env_params = envs.make("xminigrid/MiniGrid-DoorKey-5x5")
    env, env_params = envs.make("xminigrid/XLand-MiniGrid-R1-9x9", view_size=5)

Names are the library's. The last step of an episode is terminated if its discount is 0, else
truncated. The time limit (`max_steps`) is the library's. Its reward is 1 - 0.9 of the share of the
limit that was needed. Settings: `view_size`, `height`, `width`. Observations (view_size, view_size,
2) are the kinds and colours in front of the agent. Their dtype is int8, because they are no pixels.

XLand's tasks are the trivial ruleset that its environments come with. Benchmarks of rulesets are
refused, because the library downloads them.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs import adapter
from envs.adapter import Adapter, Step, library
from envs.gymnax import spaces


def names() -> list[str]:
    """Every name that the library has."""
    return list(_library().registered_environments())


def construct(name: str, settings: dict[str, Any]) -> tuple["XMiniGrid", dict[str, Any]]:
    """Builds an environment with those settings that its parameters have.

    Returns the environment and the other settings.

    Raises:
      ValueError: the library is missing, or refuses the settings.
    """
    known = ("height", "width", "view_size")
    taken, left = adapter.split(settings, *known)
    try:
        wrapped, params = _library().make(name)
        if taken:  # handed to `make`, they would keep the time limit of the size without them
            own = library("xminigrid.registration", "xminigrid")._REGISTRY[name].kwargs
            params = wrapped.default_params(**{**own, **taken})
        return XMiniGrid(f"xminigrid/{name}", wrapped, params).taking(known), left
    except (TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"xminigrid/{name} with {taken}: {error}") from error


def _library() -> Any:
    return library("xminigrid", "xminigrid")


class XMiniGrid(Adapter):
    def __init__(self, name: str, wrapped: Any, own_params: Any):
        space = spaces.Discrete(wrapped.num_actions(own_params))
        super().__init__(name, wrapped, own_params.max_steps, space)
        self._params = own_params
        like = jax.eval_shape(lambda key: wrapped.reset(own_params, key), jax.random.key(0))
        constants = library("xminigrid.core.constants", "xminigrid")
        high = max(constants.NUM_TILES, constants.NUM_COLORS) - 1
        self._observations = spaces.Box(0, high, like.observation.shape, jnp.int8)

    def first(self, key, params):
        timestep = self.wrapped.reset(self._params, key)
        return timestep.observation.astype(jnp.int8), timestep

    def next(self, key, inner, action, params):
        limited = self._params.replace(max_steps=params.max_steps_in_episode)
        after = self.wrapped.step(limited, inner, action)
        seen = after.observation.astype(jnp.int8)
        return Step(seen, after, after.reward, after.discount == 0, {})

    def render(self, state: Any, params: Any) -> np.ndarray:
        """The whole grid, lighter in the agent's view."""
        return np.asarray(self.wrapped.render(self._params, state.inner), np.uint8)
