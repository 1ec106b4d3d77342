"""Environments of the user's own modules: `envs.make("my_module:MyEnv", size=3)`.

Python imports the module, with the working directory as the last place to look. The name after the
colon is a class, or a function that returns an environment with gymnax's 1.x interface. A folder is
a dot: `my_envs.maze:Maze` is my_envs/maze.py.
"""

import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from envs import interface, suggest
from envs.warn import warn

KIT = [Path(__file__).parents[1] / package for package in ("algorithms", "envs")]
# Frames from these folders are left out of the message when a user's code fails.
LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
# What a value of a program cannot do, and what does it.
HINTS = {
    jax.errors.TracerArrayConversionError: "take jnp in place of np there",
    jax.errors.TracerBoolConversionError: "take jnp.where in place of if, and & in place of and",
    jax.errors.TracerIntegerConversionError: "take jnp.array(...)[index] in place of a list",
    jax.errors.ConcretizationTypeError: "leave it an array, without int(), float() or bool()",
}
NONE = "default_params of {} is None: give a flax dataclass, which may be empty"
INTERFACE = (
    "reset_env",
    "step_env",
    "is_truncated",
    "action_space",
    "observation_space",
    "default_params",
)


def construct(
    name: str, settings: dict[str, Any], of_all: Collection[str] = ()
) -> tuple[Any, dict[str, Any]]:
    """Builds the environment of a `module:name`, with those settings that its signature has.

    Shapes are traced through a reset and a step, so that errors in them show at once.

    Args:
      of_all: names of given settings that every environment has, as `max_steps`.

    Returns:
      The environment and the other settings (fields of its parameters).

    Raises:
      ValueError: the module or the name does not exist, is not callable, gives no environment,
        or raises an error; always in one line.
    """
    with jax.ensure_compile_time_eval():  # concrete arrays, also when called inside a trace
        factory = find(name)
        arguments = _arguments(factory)
        if taken_away := sorted(arguments.keys() & set(of_all)):
            raise ValueError(reserved(name, "argument", taken_away[0]))
        taken = {k: v for k, v in settings.items() if k in arguments}
        left = {k: v for k, v in settings.items() if k not in taken}
        needed = [k for k, p in arguments.items() if p.default is p.empty and k not in taken]
        if needed:
            raise ValueError(f"{name} needs a value for {', '.join(needed)}, in the env_settings")
        with _told(name):
            env = factory(**taken)
    _check(name, env)
    return env, left


def reserved(label: str, what: str, name: str) -> str:
    """Why an environment's own `name` cannot be set."""
    return f"{label} has its own {what} {name}, which is a setting of every environment: rename it"


def find(name: str) -> Callable:
    """The class or function after the colon.

    Raises:
      ValueError: as `construct`.
    """
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name) or ".py:" in name:
        raise ValueError(
            f"environment '{name}': give my_module:MyEnv, without .py and with dots between folders"
        )
    module_name, _, attribute = name.partition(":")
    module = _import(name, module_name)
    public = {k: v for k, v in vars(module).items() if callable(v) and not k.startswith("_")}
    if not hasattr(module, attribute):
        own = [k for k, v in public.items() if getattr(v, "__module__", "") == module.__name__]
        place = f" ({module.__file__})" if getattr(module, "__file__", None) else ""
        hint = suggest.hint(attribute, sorted(own))
        raise ValueError(f"module {module_name}{place} has no {attribute}; {hint}")
    factory = getattr(module, attribute)
    if not callable(factory):
        raise ValueError(f"{name} is {interface.kind(factory)}: give a class or a function")
    return factory


def _import(name: str, module: str) -> types.ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        # It stays there, because modules may import others later. It is last, so it hides nothing.
        sys.path.append(here)
    actual, spec = _own_name(module, here)
    try:
        with _told(name, ModuleNotFoundError):
            if spec and spec.name not in sys.modules:
                _load(spec)
            return importlib.import_module(actual)
    except ModuleNotFoundError as error:
        missing = error.name or str(error)
        if f"{actual}.".startswith(f"{missing}."):
            why = f"there is no module {module}, neither installed nor in the working directory"
            raise ValueError(f"environment '{name}': {why} ({here})") from error
        why = "is not installed"
        if spec and missing.startswith(f"{module.partition('.')[0]}."):  # of the same folder
            why = "is looked for in this kit: import it relatively, as in `from .x import y`"
        raise ValueError(
            f"environment '{name}': {module} imports {missing}, which {why}"
        ) from error


def _own_name(module: str, here: str) -> tuple[str, importlib.machinery.ModuleSpec | None]:
    """The name to import a module by, and how to load it if that differs.

    A module in the working directory may have the name of one of the kit's: `envs`, or `dqn` when a
    file of algorithms/ is the program. It then gets another name.
    """
    top, dot, rest = module.partition(".")
    theirs = importlib.machinery.PathFinder.find_spec(top, [here])
    if theirs is None or not _is_of_kit(top) or theirs.origin == _origin(top):
        return module, None
    spec: importlib.machinery.ModuleSpec | None
    alias, folders = f"_user_{top}", theirs.submodule_search_locations
    if theirs.origin is None:  # a folder without an __init__.py
        spec = importlib.machinery.ModuleSpec(alias, None, is_package=True)
        spec.submodule_search_locations = list(folders or [])
    else:
        spec = importlib.util.spec_from_file_location(
            alias, theirs.origin, submodule_search_locations=folders
        )
    return alias + dot + rest, spec


def _load(spec: importlib.machinery.ModuleSpec) -> None:
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    try:
        if spec.origin is not None and spec.loader is not None:
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise


def _is_of_kit(top: str) -> bool:
    origin = _origin(top)
    return origin is not None and any(Path(origin).is_relative_to(place) for place in KIT)


def _origin(top: str) -> str | None:
    """The file that a module's name stands for."""
    if top in sys.modules:
        return getattr(sys.modules[top], "__file__", None)
    spec = importlib.util.find_spec(top)
    return spec.origin if spec else None


def _arguments(factory: Callable) -> dict[str, inspect.Parameter]:
    """The arguments that can be given by name."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # the signature of a class that is not written in Python
        return {}
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: p for name, p in parameters.items() if p.kind in kinds}


def _check(name: str, env: Any) -> None:
    """Refuses a value that is no environment, or one whose reset or step cannot be traced."""
    from envs.gymnax import Environment, with_discount

    with _told(name):
        env = with_discount(env)
        missing = missing_in(env)
    if missing:
        raise ValueError(f"{name} gives {missing}")
    warn_of_skipped(env)
    told = lambda part: _told(f"{part} of {name}")
    with told("default_params, action_space or observation_space"):
        params = env.default_params
    interface.check_parameters(name, params)
    with told("default_params, action_space or observation_space"):
        jax.tree.map(jnp.result_type, params)  # numbers and arrays, which can be traced
        space, seen = env.action_space(params), env.observation_space(params)
    interface.check_library(name, "action_space", space)
    interface.check_library(name, "observation_space", seen)
    if params is None:
        raise ValueError(NONE.format(name))

    def once(key, params):
        reset_key, action_key, step_key = jax.random.split(key, 3)
        with told("reset_env"):
            returned = env.reset_env(reset_key, params)
        _, state = interface.unpack(name, "reset_env", returned, interface.RESET)
        with told("action_space"):
            players = getattr(env, "num_agents", None)
            action = (
                space.sample(action_key)
                if players is None
                else jax.vmap(space.sample)(jax.random.split(action_key, players))
            )
        with told("step_env"):
            returned = env.step_env(step_key, state, action, params)
        returned = interface.unpack(name, "step_env", returned, interface.STEP)
        interface.check_order(name, state, returned[1])
        try:
            with told("is_truncated"):
                env.is_truncated(returned[1], params)
        except ValueError as error:
            if type(env).is_truncated is not Environment.is_truncated:
                raise
            why = str(error.__cause__).partition("\n")[0]
            raise ValueError(interface.NO_LIMIT.format(name, why)) from error

    before = interface.traced_attributes(env)
    try:
        with jax.debug_key_reuse(False):  # shapes only
            jax.eval_shape(once, jax.random.key(0), params)
    except ValueError:
        interface.check_needed(name, functools.partial(once, jax.random.key(0)), params)
        raise
    interface.check_attributes(name, env, before)


def missing_in(env: Any) -> str:
    """What an object needs to be an environment, in words; empty if it is one."""
    from envs.gymnax import Environment

    missing = [part for part in INTERFACE if not _has(env, part, Environment)]
    if not missing:
        return ""
    short = missing[-1] == "default_params" and hasattr(env, "default_params")
    why = ", and gymnax's own end each episode after 1 step" if short else ""
    return (
        f"{interface.kind(env)} without {', '.join(missing)}{why}: an environment has the "
        f"interface of gymnax 1.x, {', '.join(INTERFACE)}"
    )


def warn_of_skipped(env: Any) -> None:
    """Warns of a class whose `step` or `reset` is its own, while what training calls is another's.

    So are wrappers that pass on what they do not have, as gymnax's LogWrapper.
    """
    kinds = type(env).__mro__
    for name, called in (("step", "step_env"), ("reset", "reset_env")):
        place = lambda part: next((i for i, kind in enumerate(kinds) if part in vars(kind)), 99)
        if place(name) < place(called):
            warn(
                f"{kinds[place(name)].__name__} changes {name}, which training does not call: it "
                f"calls {called}, so change that"
            )


def _has(env: Any, part: str, base: type) -> bool:
    """Whether it has a method of its own where the base has none that works."""
    works = part == "is_truncated"
    own = getattr(type(env), part, None)
    return hasattr(env, part) and (works or own is None or own is not getattr(base, part))


# --- errors of other people's code -----------------------------------------------------------


@contextmanager
def _told(name: str, *but: type[Exception]) -> Iterator[None]:
    """Turns an error into one line: its type, its first line and its place."""
    try:
        yield
    except but:
        raise
    except (Exception, SystemExit) as error:
        text = str(error).strip().partition("\n")[0]
        told = f"{type(error).__name__}: {text}" if text else type(error).__name__
        hint = next((f"; {x}" for kind, x in HINTS.items() if isinstance(error, kind)), "")
        raise ValueError(f"{name}: {told} ({_place(error)}){hint}") from error


def _place(error: BaseException) -> str:
    """file:line of the innermost code outside the libraries, or of the innermost code."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    frames = [(Path(f.filename), f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    hidden = [*map(Path, LIBRARIES), Path(__file__).parent]
    is_hidden = lambda file: str(file).startswith("<") or any(map(file.is_relative_to, hidden))
    theirs = [frame for frame in frames if not is_hidden(frame[0])]
    file, line = (theirs or frames)[-1]
    return f"{file.name}:{line}"
