"""The adapter for Craftax 1.6 (Matthews et al. 2024, arXiv:2402.16801): survival, in blocks.

    env, env_params = envs.make("craftax/Classic-Symbolic")
    env, env_params = envs.make("craftax/Symbolic", max_timesteps=10_000, day_length=200)

It takes the environments without auto-reset. Craftax has one flag, done. An episode is truncated
when its clock reaches `max_timesteps`: 10,000 steps for Classic, else 100,000. It is terminated by
death, by lava or after the last boss. Settings are the fields of Craftax's parameters, which may be
traced and batched. Pixels are floats in [0, 1], as in Craftax.

Metrics: each achievement, 1 if it was reached in the episode, and their number.
"""

import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.adapter import Adapter, Step, library
from envs.gymnax import spaces

NAMES = ("Classic-Symbolic", "Classic-Pixels", "Symbolic", "Pixels")


def names() -> list[str]:
    """The four environments."""
    _make()
    return list(NAMES)


def construct(name: str, settings: dict[str, Any]) -> tuple["Craftax", dict[str, Any]]:
    """Builds an environment; all settings are fields of its parameters.

    Raises:
      ValueError: Craftax is missing.
    """
    return Craftax(name, _make()(f"Craftax-{name}-v1", auto_reset=False)), settings


def _make() -> Any:
    return library("craftax.craftax_env", "craftax").make_craftax_env_from_name


class Craftax(Adapter):
    limit_name = "max_timesteps"
    start_window = 64  # worlds are slow to draw

    def __init__(self, name: str, wrapped: Any):
        params = wrapped.default_params
        space = spaces.Discrete(wrapped.num_actions)
        super().__init__(f"craftax/{name}", wrapped, params.max_timesteps, space)
        own = wrapped.observation_space(params)
        self._observations = spaces.Box(own.low, own.high, own.shape, own.dtype)
        package = "craftax_classic" if name.startswith("Classic") else "craftax"
        self._package = f"craftax.{package}"
        achievements = importlib.import_module(f"{self._package}.constants").Achievement
        self._achievements = {a.name.lower(): a.value for a in achievements}
        self.metrics = {f"achievements/{n}": "last" for n in self._achievements}
        self.metrics["achievements"] = "last"

    @property
    def default_params(self) -> Any:
        return self.wrapped.default_params

    def first(self, key, params):
        return self.wrapped.reset_env(key, params)

    def next(self, key, inner, action, params):
        observation, after, reward, _, _ = self.wrapped.step_env(key, inner, action, params)
        endless = params.replace(max_timesteps=jnp.iinfo(jnp.int32).max)
        terminated = self.wrapped.is_terminal(after, endless)
        reached = jnp.asarray(after.achievements, jnp.float32)
        metrics = {f"achievements/{n}": reached[i] for n, i in self._achievements.items()}
        metrics["achievements"] = reached.sum()
        return Step(observation, after, reward, terminated, metrics)

    def is_truncated(self, state, params):
        return (state.inner.timestep >= params.max_timesteps) & ~state.terminated

    def render(self, state: Any, params: Any) -> np.ndarray:
        """The agent's view and its inventory."""
        return np.asarray(self._renderer(state.inner)).astype(np.uint8)

    @functools.cached_property
    def _renderer(self) -> Any:
        renderer = importlib.import_module(f"{self._package}.renderer")
        return jax.jit(renderer.make_craftax_pixel_renderer(16))
