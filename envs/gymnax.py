"""The adapter for gymnax 1.x; it repairs at the boundary what some environments get wrong.

Repaired: integer rewards and rewards of shape (1,), observations of another dtype than their
space, and weakly typed leaves (which differ between reset and step, and would make loops and
compiled functions see two types of one state).
"""

import importlib
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp


def _import_gymnax() -> types.ModuleType:
    """Imports gymnax without its plotting libraries, which it imports on top and which take
    most of its import time: they are put off until somebody draws."""
    importing = True

    class Deferred(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if importing:  # annotations such as plt.Figure
                return object
            return getattr(importlib.import_module(self.__name__), name)

    deferred = [n for n in ("seaborn", "matplotlib.pyplot") if n not in sys.modules]
    sys.modules.update({name: Deferred(name) for name in deferred})
    try:
        return importlib.import_module("gymnax")
    finally:
        importing = False
        for name in deferred:
            del sys.modules[name]


gymnax = _import_gymnax()
environment = importlib.import_module("gymnax.environments.environment")
spaces = importlib.import_module("gymnax.environments.spaces")


def parameter_names(params: Any) -> list[str]:
    """Names of the fields of an environment's parameters."""
    return list(getattr(params, "__dataclass_fields__", {}))


class Wrapper(environment.Environment):
    """Base of all wrappers: hands everything on to the environment inside (`env`)."""

    def __init__(self, env: Any):
        super().__init__()
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not there yet while unpickling
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def default_params(self) -> Any:
        return self.env.default_params

    @property
    def name(self) -> str:
        return self.env.name

    @property
    def num_actions(self) -> int:
        return self.env.num_actions

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        return self.env.reset_env(key, params)

    def step_env(self, key, state, action, params):
        return self.env.step_env(key, state, action, params)

    def is_truncated(self, state: Any, params: Any) -> jax.Array:
        return self.env.is_truncated(state, params)

    def is_terminated(self, state: Any, params: Any) -> jax.Array:
        return self.env.is_terminated(state, params)

    def action_space(self, params: Any) -> Any:
        return self.env.action_space(params)

    def observation_space(self, params: Any) -> Any:
        return self.env.observation_space(params)

    def state_space(self, params: Any) -> Any:
        return self.env.state_space(params)


class Gymnax(Wrapper):
    """One gymnax environment with strong types, float32 rewards and the dtypes of its spaces."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        observation, state = self.env.reset_env(key, params)
        return self._observation(observation, params), self._state(state, params)

    def step_env(self, key, state, action, params):
        observation, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        reward = jnp.asarray(reward, jnp.float32)
        if reward.shape == (1,) and not hasattr(self.env, "num_agents"):
            reward = reward[0]
        return (
            self._observation(observation, params),
            self._state(state, params),
            reward,
            jnp.asarray(terminated, bool),
            info,
        )

    def _observation(self, observation: Any, params: Any) -> jax.Array:
        return jnp.asarray(observation, self.env.observation_space(params).dtype)

    def _state(self, state: Any, params: Any) -> Any:
        """The state with the dtypes that `reset` gives, all strong."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        _, like = jax.eval_shape(self.env.reset_env, key, params)
        return jax.tree.map(
            lambda x, to: x if _is_key(x) else jnp.asarray(x, to.dtype), state, like
        )


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(getattr(x, "dtype", jnp.float32), jax.dtypes.prng_key)
