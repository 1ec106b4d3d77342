"""The adapter for Jumanji 1.1 (Bonnet et al. 2024, arXiv:2306.09884): puzzles, packing, routing.

    env, env_params = envs.make("jumanji/Snake")
    env, env_params = envs.make("jumanji/Game2048", mask_actions=False)

Names are Jumanji's without the version. Some of its environments end an episode at a time limit as
if the task were over. They are built without their limit, and this adapter has it (`max_steps`). So
`terminated` is an end by the rules, and `truncated` one by the clock. Settings are the other
arguments of the constructor that are numbers or strings.

An observation of several arrays becomes one float32 vector: the arrays in the order of the fields
of Jumanji's observation, without its `action_mask`, which is `env.action_mask`. An observation of
one array keeps its shape. Actions with several parts, such as the turn and column of a Tetris
piece, become one number if a mask covers all combinations. The last part runs fastest. Jumanji's
`extras` are in the metrics, with their last value in an episode.

Refused: environments of several agents, and Sokoban, whose levels come from the network.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs import adapter
from envs.adapter import Adapter, Step, library
from envs.batch import ENDLESS
from envs.gymnax import spaces

NOT_TAKEN = (
    *("Cleaner", "Connector", "JobShop", "LevelBasedForaging", "MMST"),
    *("MultiCVRP", "RobotWarehouse", "SearchAndRescue", "Sokoban"),
)


def names() -> list[str]:
    """Every supported name."""
    return [name for name in _specs() if name not in NOT_TAKEN]


def construct(name: str, settings: dict[str, Any]) -> tuple["Jumanji", dict[str, Any]]:
    """Builds an environment with those settings that its constructor takes.

    Returns the environment and the other settings.

    Raises:
      ValueError: Jumanji is missing, or refuses the settings.
    """
    spec = _specs()[name]
    module, _, kind = spec.entry_point.partition(":")
    known = adapter.arguments(getattr(library(module, "jumanji"), kind))
    usable = [k for k in known if k not in ("viewer", "time_limit")]
    taken, left = adapter.split(settings, *usable)
    try:
        limit = int(getattr(_jumanji().make(spec.id, **taken), "time_limit", ENDLESS))
        endless = {"time_limit": ENDLESS} if "time_limit" in known else {}
        wrapped = _jumanji().make(spec.id, **taken, **endless)
        return Jumanji(f"jumanji/{name}", wrapped, limit).taking(usable), left
    except (TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"jumanji/{name} with {taken}: {error}") from error


def _jumanji() -> Any:
    return library("jumanji", "jumanji")


@functools.cache
def _specs() -> dict[str, Any]:
    """Jumanji's entries by their names without versions."""
    registry = library("jumanji.registration", "jumanji")._REGISTRY
    return {name.rpartition("-v")[0]: spec for name, spec in registry.items()}


class Jumanji(Adapter):
    def __init__(self, name: str, wrapped: Any, max_steps: int):
        self._parts = tuple(map(int, np.atleast_1d(wrapped.action_spec.num_values)))
        super().__init__(name, wrapped, max_steps, spaces.Discrete(math.prod(self._parts)))
        timestep = jax.eval_shape(wrapped.reset, jax.random.key(0))[1]
        self.metrics = dict.fromkeys(timestep.extras, "last")
        self.ends = max_steps == ENDLESS  # legal actions come to an end
        seen = jax.eval_shape(self._observe, timestep)
        self._observations = spaces.Box(-jnp.inf, jnp.inf, seen.shape, jnp.float32)
        if hasattr(timestep.observation, "action_mask"):
            self.action_mask = self._action_mask

    def first(self, key, params):
        state, timestep = self.wrapped.reset(key)
        return self._observe(timestep), (state, self._allowed(timestep))

    def next(self, key, inner, action, params):
        parts = jnp.stack(jnp.unravel_index(action, self._parts)).astype(jnp.int32)
        scalar = self.wrapped.action_spec.shape == ()
        state, after = self.wrapped.step(inner[0], parts[0] if scalar else parts)
        inner = (state, self._allowed(after))
        return Step(self._observe(after), inner, after.reward, after.last(), dict(after.extras))

    def _observe(self, timestep: Any) -> jax.Array:
        fields = timestep.observation._asdict()
        fields.pop("action_mask", None)
        only = jax.tree.leaves(fields)
        return (
            only[0].astype(jnp.float32) if len(only) == 1 else adapter.flat(tuple(fields.values()))
        )

    def _allowed(self, timestep: Any) -> Any:
        mask = getattr(timestep.observation, "action_mask", None)
        return None if mask is None else jnp.asarray(mask, bool).reshape(-1)

    def _action_mask(self, state: Any, params: Any) -> jax.Array:
        return state.inner[1]

    def render(self, state: Any, params: Any) -> np.ndarray:
        """The picture of Jumanji's viewer."""
        viewer = self.wrapped._viewer
        viewer.figure_size, viewer._display = (4.0, 4.0), viewer._display_rgb_array
        return np.array(viewer.render(state.inner[0])[..., :3])
