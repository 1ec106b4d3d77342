"""The base of adapters for libraries with one agent.

An adapter is a module with `names()`, `construct(name, settings)` and a class derived from
`Adapter`, which defines how to reset and to step. The module is imported when one of its
environments is asked for.
"""

import importlib
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from envs.gymnax import Environment

# The extras of pyproject.toml. An installed package and a copied file do not have that file.
REQUIREMENTS = {
    "brax": "brax==0.14.2",
    "craftax": "craftax==1.6.1",
    "jaxmarl": "jaxmarl==0.2.0",
    "jumanji": "jumanji==1.1.2",
    "navix": "navix>=0.7.4",
    "pgx": "pgx==2.6.0",
    "playground": "playground==0.2.0",
    "xminigrid": "xminigrid==0.9.3",
}


def install(name: str) -> str:
    """The command that installs an optional library."""
    return f'pip install "{REQUIREMENTS[name]}"'


def library(module: str, name: str) -> types.ModuleType:
    """A module of an optional library, an extra of this package.

    Raises:
      ValueError: the import fails; the message gives the pip command.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == module.partition(".")[0]:
            raise ValueError(f"{name}/... needs {name}: {install(name)}") from error
        raise ValueError(f"{name}/... cannot be imported: {error}; {install(name)}") from error
    except ImportError as error:  # the library is installed, but it or a dependency is broken
        why = str(error).partition("\n")[0]
        raise ValueError(f"{name}/... cannot be imported: {why}") from error


def split(settings: dict[str, Any], *known: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that a constructor takes, and the others."""
    taken = {k: v for k, v in settings.items() if k in known}
    return taken, {k: v for k, v in settings.items() if k not in known}


def arguments(function: Callable) -> tuple[str, ...]:
    """Names of the keyword arguments of a function, or of a class and its base classes."""
    kinds = function.__mro__[:-1] if isinstance(function, type) else (function,)
    signatures = [inspect.signature(k).parameters.values() for k in kinds]
    named = [
        p.name for ps in signatures for p in ps if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    return tuple(dict.fromkeys(named))


@struct.dataclass
class Params:
    """The time limit; everything else is fixed when the environment is built."""

    max_steps_in_episode: int


@struct.dataclass
class State:
    """The library's own state, the steps of this episode, and whether its last step terminated."""

    inner: Any
    steps: jax.Array  # int32 ()
    terminated: jax.Array  # bool ()


class Step(NamedTuple):
    """The result of a library's step; `terminated` by the task's own rules, not by the clock."""

    observation: Any
    inner: Any
    reward: jax.Array
    terminated: jax.Array
    metrics: dict[str, jax.Array]


class Adapter(Environment):
    """One environment behind gymnax's interface. It counts its own steps, up to a limit.

    Attributes:
      wrapped: the library's environment.
      arguments: names of the settings that its constructor takes.
      metrics: whether an episode's value is "last" or "sum", by name in `info["metrics"]`.
    """

    def __init__(self, name: str, wrapped: Any, max_steps: int, space: Any):
        super().__init__()
        self._name, self.wrapped, self._max_steps, self._space = name, wrapped, max_steps, space
        self.metrics: dict[str, str] = {}
        self.arguments: tuple[str, ...] = ()

    def taking(self, arguments: Iterable[str]) -> "Adapter":
        """This adapter, with the names of the settings that its constructor takes."""
        self.arguments = tuple(arguments)
        return self

    # A library's class defines these.

    _observations: Any  # their space

    def first(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        """Starts an episode: observation, inner state."""
        raise NotImplementedError

    def next(self, key: jax.Array, inner: Any, action: jax.Array, params: Any) -> Step:
        """One step."""
        raise NotImplementedError

    # gymnax's interface.

    @property
    def name(self) -> str:
        return self._name

    @property
    def default_params(self) -> Params:
        return Params(max_steps_in_episode=self._max_steps)

    @property
    def num_actions(self) -> int:
        return self._space.n if hasattr(self._space, "n") else self._space.shape[0]

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        observation, inner = self.first(key, params)
        return observation, State(inner, jnp.zeros((), jnp.int32), jnp.zeros((), bool))

    def step_env(self, key, state, action, params):
        step = self.next(key, state.inner, action, params)
        terminated = jnp.asarray(step.terminated, bool)
        state = State(step.inner, state.steps + 1, terminated)
        info = {"metrics": step.metrics} if self.metrics else {}
        return step.observation, state, step.reward, terminated, info

    def is_terminated(self, state: State, params: Params) -> jax.Array:
        return state.terminated

    def is_truncated(self, state: State, params: Params) -> jax.Array:
        return (state.steps >= params.max_steps_in_episode) & ~state.terminated

    def action_space(self, params: Params) -> Any:
        return self._space

    def observation_space(self, params: Params) -> Any:
        return self._observations

    def inner_state(self, state: State) -> Any:
        """The library's own state (for drawing)."""
        return state.inner


def flat(tree: Any) -> jax.Array:
    """All arrays of a tree, raveled, in one float32 vector.

    Dictionaries are in the order of their sorted keys, tuples and dataclasses in that of their
    fields.
    """
    return jnp.concatenate([jnp.asarray(x, jnp.float32).ravel() for x in jax.tree.leaves(tree)])
