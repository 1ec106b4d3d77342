"""Finds settings that have no effect, because nothing reads them while a program is traced, and a
mask of actions that the policy does not read."""

import contextlib
import contextvars
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from envs.behaviour import used_for
from envs.warn import warn

# Read before anything is traced, or in another program than that of a point.
ELSEWHERE = {"env", "env_settings", "total_timesteps", "num_evals", "eval_at_start"}
TRACED = (
    *(jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError),
    jax.errors.TracerIntegerConversionError,
)
REMEDY = (
    "floats of Config are traced, and so are values of a program: jnp.where in place of if, jnp in "
    "place of np and float(); or declare the field with static"
)
NOTHING: Mapping[str, Any] = MappingProxyType({})
_ASKED: contextvars.ContextVar[Mapping[str, Any]] = contextvars.ContextVar("asked", default=NOTHING)


def changed(config: Any) -> dict[str, Any]:
    """The fields that are something else than their default; traced ones are left out."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    known = {name: x for name, x in values.items() if not isinstance(x, jax.core.Tracer)}
    default: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(config)}
    # A float32 of a program is the default that it was made of.
    kind = lambda x: x.dtype if isinstance(x, np.ndarray | np.generic | jax.Array) else None
    same = lambda x, y: x is y or np.array_equal(x, np.asarray(y, kind(x)))
    return {name: x for name, x in known.items() if not same(x, default[name])}


@contextlib.contextmanager
def asked_for(settings: Mapping[str, Any]) -> Iterator[None]:
    """What is traced inside warns of those of these settings that nothing reads, and an error of
    what needs a traced value has a remedy."""
    token = _ASKED.set({**_ASKED.get(), **settings})
    try:
        yield
    except TRACED as error:
        if REMEDY not in getattr(error, "__notes__", ()):
            error.add_note(REMEDY)
        raise
    finally:
        _ASKED.reset(token)


def watched(config: Any) -> Any:
    """The same Config, which remembers what is read of it."""
    kind: Any = type(config)
    copy: Any = object.__new__(_watched(kind))
    vars(copy).update(vars(config), _read=set())
    return copy


def is_watched(config: Any) -> bool:
    return "_read" in vars(config)


def warn_of_unread(config: Any, module: str, init: Callable[[jax.Array], Any]) -> None:
    """One warning of all settings that were asked for and that nothing has read.

    Args:
      config: a watched one.
      module: the algorithm's; what runs as a script is told of by its file.
      init: of a key, the first state. It is traced where something seems to be unread: a program
        that goes on from a state has none of it.
    """

    left = lambda: _ASKED.get().keys() - vars(config)["_read"] - ELSEWHERE
    if left():
        jax.eval_shape(init, jax.eval_shape(lambda: jax.random.key(0)))
    if unread := {name: x for name, x in _ASKED.get().items() if name in left()}:
        named = ", ".join(f"{name}={value!r}" for name, value in unread.items())
        have = "has" if len(unread) == 1 else "have"
        file = getattr(sys.modules.get(module), "__file__", None)
        algorithm = Path(file).stem if file else module.rpartition(".")[2]
        warn(f"{named} {have} no effect: with these settings nothing in {algorithm} reads it")


def warn_of_mask(policy: Callable, state: Any, env: Any, env_params: Any) -> None:
    """Warns of a policy that takes forbidden actions, since nothing in it depends on the mask.

    Args:
      policy, state: of the algorithm, with the state that it acts with.
      env, env_params: from `envs.make`.
    """
    if not hasattr(env, "action_mask"):
        return
    observation, env_state = jax.eval_shape(env.reset_env, jax.random.key(0), env_params)
    mask = jax.eval_shape(env.action_mask, env_state, env_params)
    action = lambda mask, *given: policy(*given, mask=mask)[0]
    if not used_for(jax.make_jaxpr(action)(mask, state, observation).jaxpr)[0]:
        warn(
            f"the policy does not read the mask of {env.name}, and takes forbidden actions: give "
            "it to the distribution, as parts.Categorical(logits, mask), or hide it with the "
            "environment setting mask_actions=false"
        )


@functools.cache
def _watched(kind: type) -> type:
    names = frozenset(field.name for field in dataclasses.fields(kind))

    class Watched(kind):  # type: ignore[misc, valid-type]
        def __getattribute__(self, name: str) -> Any:
            if name in names:  # a Watched that `replace` has made remembers nothing
                vars(self).get("_read", set()).add(name)
            return super().__getattribute__(name)

    def flatten(config: Any) -> tuple[Any, Any]:
        """Whoever takes the whole of it apart has read everything."""
        fields = {name: getattr(config, name) for name in names}
        return jax.tree.flatten(kind(**fields))

    jax.tree_util.register_pytree_node(Watched, flatten, jax.tree.unflatten)
    return Watched
