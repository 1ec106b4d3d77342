"""The adapter for NAVIX 0.7 (Pignatelli et al. 2024, arXiv:2407.19396): MiniGrid in JAX.

    env, env_params = envs.make("navix/DoorKey-5x5")
    env, env_params = envs.make("navix/DoorKey-5x5", observation="symbolic_first_person")

Names are NAVIX's without `Navix-` and `-v0`. `step_type` separates terminated (2) from truncated
(1). NAVIX's own `step` restarts one step later, so this adapter calls the inner one. The time limit
is NAVIX's: 100 steps, in its version 4 by the size of the grid.

`observation` is one of its observation functions, by default `symbolic`, the whole grid. With
`_first_person` it is the 7x7 cells in front of the agent. Symbols (height, width, 3) are the kinds,
colours and states of things. Their dtype is int8, because they are no pixels. `rgb` is an image of
32 pixels a cell, of dtype uint8.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs import adapter, suggest
from envs.adapter import Adapter, Step, library
from envs.gymnax import spaces

OBSERVATIONS = (
    "symbolic",
    "symbolic_first_person",
    "categorical",
    "categorical_first_person",
    "rgb",
    "rgb_first_person",
)


def names() -> list[str]:
    """Every name that NAVIX has."""
    return [_short(name) for name in _navix().registry()]


def construct(name: str, settings: dict[str, Any]) -> tuple["Navix", dict[str, Any]]:
    """Builds an environment. Settings: `observation`.

    Returns the environment and the other settings.

    Raises:
      ValueError: NAVIX is missing, or has no such observation.
    """
    navix = _navix()
    taken, left = adapter.split(settings, "observation")
    observation = taken.get("observation", OBSERVATIONS[0])
    if observation not in OBSERVATIONS:
        raise ValueError(
            suggest.unknown(f"observation of navix/{name}:", observation, OBSERVATIONS)
        )
    full = next(n for n in navix.registry() if _short(n) == name)
    function = getattr(navix.observations, observation)
    wrapped = navix.make(full, observation_fn=function)
    return Navix(f"navix/{name}", wrapped, observation).taking(["observation"]), left


def _navix() -> Any:
    return library("navix", "navix")


def _short(name: str) -> str:
    return name.removeprefix("Navix-").removesuffix("-v0")


class Navix(Adapter):
    def __init__(self, name: str, wrapped: Any, observation: str):
        space = spaces.Discrete(int(wrapped.action_space.maximum) + 1)
        super().__init__(name, wrapped, int(wrapped.max_steps), space)
        self._pictures = observation.startswith("rgb")
        like = jax.eval_shape(wrapped.reset, jax.random.key(0)).observation
        ids = [v for k, v in vars(_navix().entities.EntityIds).items() if k.isupper()]
        high = 255 if self._pictures else max(int(i) for i in ids)
        dtype = like.dtype if self._pictures else jnp.int8
        self._observations = spaces.Box(0, high, like.shape, dtype)

    def first(self, key, params):
        return self._step(self.wrapped.reset(key))[:2]

    def next(self, key, inner, action, params):
        limited = self.wrapped.replace(max_steps=params.max_steps_in_episode)
        return self._step(limited._step(inner, action))

    def _step(self, timestep: Any) -> Step:
        terminated = timestep.is_termination()
        if not self._pictures:  # 3 kB for each cell, and unused
            timestep = timestep.replace(state=timestep.state.replace(cache=None))
        seen = timestep.observation.astype(self._observations.dtype)
        return Step(seen, timestep, timestep.reward, terminated, {})

    def render(self, state: Any, params: Any) -> np.ndarray:
        """The whole grid."""
        inner = state.inner.state
        cache = _navix().rendering.cache.RenderingCache.init(jnp.asarray(inner.grid))
        inner = jax.tree.map(jnp.asarray, inner).replace(cache=cache)
        return np.asarray(_navix().observations.rgb(inner))
