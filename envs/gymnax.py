"""The adapter for gymnax 1.x. It repairs common mistakes of environments.

It repairs integer rewards, rewards of shape (1,), and observations whose dtype is not that of their
space, except floats that a user's environment gives for a space of integers. It also makes weak
types strong: they differ between reset and step, so loops and compiled functions would see two
types of one state. Other mistakes are refused, see envs/interface.py.
"""

import functools
import importlib
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp

from envs import behaviour, interface, reports


def _import_gymnax() -> types.ModuleType:
    """Imports gymnax and defers its plotting libraries until something is drawn.

    Those libraries take most of gymnax's import time.
    """
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
Environment: Any = environment.Environment
spaces = importlib.import_module("gymnax.environments.spaces")


def parameter_names(params: Any) -> list[str]:
    """Names of the fields of an environment's parameters."""
    return list(getattr(params, "__dataclass_fields__", {}))


class Wrapper(Environment):
    """Base of all wrappers: passes everything on to the environment inside (`env`)."""

    def __init__(self, env: Any):
        super().__init__()
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # absent while unpickling
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

    @property
    def batch_kind(self) -> Any:
        """The class of batches of this environment."""
        return reports.batch_kind(self)

    def longest_episode(self, params: Any) -> Any:
        """Steps after which an evaluation is cut; None: its episodes surely end."""
        return behaviour.longest_episode(self, params)

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


def with_discount(env: Any) -> Any:
    """The environment, whose `discount` works also if it was written for gymnax 0.0.x.

    In gymnax 1.x it needs `is_terminated`, where 0.0.x had `is_terminal`.
    """
    own = lambda name: getattr(type(env), name, None) is not getattr(Environment, name)
    if isinstance(env, Environment) and own("is_terminal") and not own("is_terminated"):
        object.__setattr__(env, "is_terminated", env.is_terminal)
    return env


class Gymnax(Wrapper):
    """One gymnax environment with strong types, float32 rewards and the dtypes of its spaces."""

    def __init__(self, env: Any):
        super().__init__(with_discount(env))

    @property
    def name(self) -> str:
        return interface.name_of(self.env)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        returned, name = self.env.reset_env(key, params), interface.name_of(self)
        observation, state = interface.unpack(name, "reset_env", returned, interface.RESET)
        state = jax.tree.map(lambda x: _strong(x, jnp.result_type(x)), state)
        return self._observation("reset_env", observation, params), state

    def step_env(self, key, state, action, params):
        returned, name = self.env.step_env(key, state, action, params), interface.name_of(self)
        observation, state, reward, terminated, info = interface.unpack(
            name, "step_env", returned, interface.STEP
        )
        if isinstance(terminated, dict):  # which a cast would make True
            interface.check_end(self, terminated)
        reward = interface.as_array(self, "step_env", "a reward", reward, jnp.float32)
        if reward.shape == (1,) and not hasattr(self.env, "num_agents"):
            reward = reward[0]
        return (
            self._observation("step_env", observation, params),
            self._state(state, params),
            reward,
            interface.as_array(self, "step_env", "terminated", terminated, bool),
            info,
        )

    def _observation(self, part: str, observation: Any, params: Any) -> jax.Array:
        space = self.env.observation_space(params)
        cast = interface.as_array(self, part, "an observation", observation, space.dtype)
        interface.check_observation(self, part, cast, space.shape)
        if behaviour.of_user(self):  # gymnax's Catch has whole floats
            interface.check_kind(self, part, observation, space.dtype)
        return cast

    def _state(self, state: Any, params: Any) -> Any:
        """The state with the dtypes that `reset` gives, all strong."""
        leaves, structure = jax.tree.flatten(interface.shapes(params))
        x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]  # set at run time
        like = _first_state(self, structure, tuple(leaves), x64)
        interface.check_state(self, like, state, casting="same_kind")
        return jax.tree.map(lambda x, to: _strong(x, to.dtype), state, like)


@functools.lru_cache(maxsize=64)
def _first_state(env: Gymnax, structure: Any, leaves: tuple, x64: bool) -> Any:
    """Shapes of the inner state after a reset. They are kept: tracing physics can take seconds."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    with jax.debug_key_reuse(False):  # shapes only
        return jax.eval_shape(env.env.reset_env, key, jax.tree.unflatten(structure, leaves))[1]


def _strong(x: Any, dtype: Any) -> Any:
    return x if jnp.issubdtype(dtype, jax.dtypes.prng_key) else jnp.asarray(x, dtype)
