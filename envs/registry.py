"""`make`: an environment and its parameters from a name (or an object) and settings."""

import functools
import importlib
import inspect
import math
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs import behaviour, interface, modules, suggest
from envs.usual_jax import with_usual_jax

# The kit's own environments: name to (module of this package, class).
OWN: dict[str, tuple[str, str]] = {
    "Pursuit-v0": (".pursuit", "Pursuit"),
    "Hunt-v0": (".pursuit", "Hunt"),
    "Navigator-v0": (".navigation", "Navigation"),
    "MultiNavigator-v0": (".navigation", "MultiNavigation"),
    "TMaze-v0": (".recall", "TMaze"),
    "RepeatPrevious-v0": (".recall", "RepeatPrevious"),
    "Autoencode-v0": (".recall", "Autoencode"),
    "Concentration-v0": (".recall", "Concentration"),
    "RockSample-v0": (".recall", "RockSample"),
}
# Outside libraries, named `library/name`. A module of this package with the library's name is its
# adapter, which has `names()` and `construct(name, settings)`, which returns an environment and the
# other settings.
LIBRARIES = ("jaxmarl", "playground", "brax", "craftax", "navix", "xminigrid", "jumanji", "pgx")

# Tasks of brax that are gymnasium's of MuJoCo, as HalfCheetah-v4.
MUJOCO = [
    *("ant", "halfcheetah", "hopper", "humanoid", "humanoidstandup", "inverted_pendulum"),
    *("inverted_double_pendulum", "pusher", "reacher", "walker2d"),
]

# find_run(run_dir, game, point=..., trial=..., sample=...) gives a saved run as a games.Player, or
# raises a ValueError. This package cannot read runs: the launcher puts its function here.
find_run: Callable | None = None

# Those of the settings below that are true or false.
FLAGS = (
    "done_includes_limit",
    "limit_terminates",
    "mask_actions",
    "observe_randomized",
    "clip_action",
    "rescale_action",
)

# Constructor arguments of wrappers that `make` applies to any environment.
WRAPPER_SETTINGS = {
    "max_steps": "truncate after this many steps",
    "action_repeat": "repeat each action for this many frames; max_steps then counts frames",
    "frame_stack": "show this many of the last observations, side by side",
    "observe": "indices of the entries of a flat observation to keep; the others are hidden",
    "noise": "standard deviation of normal noise in observations",
    "flicker": "probability that zeros replace an observation",
    "done_includes_limit": "true: the step's one flag includes the time limit, as in gymnax 0.0.x",
    "limit_terminates": "true: reaching the time limit terminates, and nothing is bootstrapped",
    "mask_actions": "false: hide which actions are allowed",
    "nan_reward": "a number in place of rewards that are NaN or infinite",
    "start_window": "steps for which one start state serves when episodes restart",
    "randomize": "ranges of parameters that every episode draws anew",
    "observe_randomized": "true: append the drawn values to a flat observation",
    "clip_action": "clip Box actions to the bounds of their space",
    "rescale_action": "take Box actions in [-1, 1] and rescale them to the bounds",
}


def names() -> list[str]:
    """Every name of gymnax and the kit, without those of outside libraries."""
    from envs.gymnax import gymnax

    return [*gymnax.registered_envs, *OWN]


@with_usual_jax
def make(env: Any, **settings: Any) -> tuple[Any, Any]:
    """Builds an environment.

    Args:
      env: a registered name; `library/name` for an environment of an outside library;
        `my_module:MyEnv` for a class or a function of the user's own module; or an
        environment object with gymnax's 1.x interface (`reset_env`, `step_env`, `is_truncated`,
        the two spaces and `default_params`). With several agents it has `num_agents`; its spaces
        are then those of one agent.
      **settings: those in WRAPPER_SETTINGS (`max_steps`, `action_repeat`, ...); the fields of the
        environment's parameters; and, for a name, the arguments of its constructor.

    Returns:
      env, env_params: the same object for the same name and settings, so that functions jitted
      with it as a static argument are compiled once. Parameters may be traced and batched.

    Raises:
      ValueError: the name is unknown (the nearest names are listed), a setting is unknown, or the
        user's module has no such environment or fails.
    """
    if not isinstance(env, str):
        return _build(env, settings)
    with jax.ensure_compile_time_eval():  # it may import a module, which may make arrays
        made_of = modules.find(env) if ":" in env else None
    try:
        return _cached(env, tuple(sorted(settings.items())), made_of)
    except TypeError:  # an unhashable setting
        return _build(env, settings)


def _check_object(env: Any) -> None:
    """Refuses what is neither a name nor an environment."""
    kind = f"the class {env.__name__}" if isinstance(env, type) else repr(env)
    bases = {base.__module__.partition(".")[0] for base in type(env).__mro__}
    if bases & {"gym", "gymnasium"} and not hasattr(env, "step_env"):
        raise ValueError(
            f"env is {kind}: environments of gymnasium run in Python and cannot be part of a "
            "program; give a name, as CartPole-v1, or an environment written in JAX"
        )
    if isinstance(env, type) or not hasattr(env, "default_params"):
        raise ValueError(f"env is {kind}: give a name, as CartPole-v1, or an environment object")
    if missing := modules.missing_in(env):
        raise ValueError(f"env is {missing}")
    modules.warn_of_skipped(env)


@functools.cache
def _cached(name: str, settings: tuple[tuple[str, Any], ...], made_of: Any) -> tuple[Any, Any]:
    """`made_of` is what a `module:name` stands for now: another class after a reload."""
    # The cache must hold concrete arrays, even if the first call is inside a trace.
    with jax.ensure_compile_time_eval():
        return _build(name, dict(settings))


def _build(env: Any, settings: dict[str, Any]) -> tuple[Any, Any]:
    from envs import randomized, wrappers
    from envs.gymnax import Gymnax, parameter_names

    settings = dict(settings)
    wrapper_settings = {k: settings.pop(k) for k in list(settings) if k in WRAPPER_SETTINGS}
    for name in FLAGS:
        if not isinstance(wrapper_settings.get(name), bool | None):
            raise ValueError(f"{name}={wrapper_settings[name]}: give true or false")
    label = env if isinstance(env, str) else getattr(env, "name", type(env).__name__)
    for name, value in settings.items():
        if any(map(_is_nan, value if isinstance(value, tuple | list) else [value])):
            raise ValueError(f"setting of {label}: {name}={value}: give a number")
    by_name = isinstance(env, str)
    if by_name:
        env, settings = _construct(env, settings, wrapper_settings)
    else:
        _check_object(env)
    words, seen = (wrapper_settings.get(name) for name in ("randomize", "observe_randomized"))
    more = getattr(env, "more_params", ())
    if more and (words is not None or any(name in more for name in settings)):
        env = env.with_more_params()
    params = env.default_params
    if params is None:
        raise ValueError(modules.NONE.format(label))
    interface.check_parameters(label, params)
    fields = list(dict.fromkeys((*parameter_names(params), *more)))
    if taken := [name for name in wrapper_settings if name in fields]:
        raise ValueError(modules.reserved(label, "parameter", taken[0]))
    for name in settings:
        if name not in fields:
            arguments = _arguments(env, label) if by_name else []
            known = [*arguments, *fields, *WRAPPER_SETTINGS]
            raise ValueError(suggest.unknown(f"setting of {label}:", name, known))
        settings[name] = _value(label, name, settings[name], getattr(params, name))
    if settings:
        params = params.replace(**settings)
        follow = randomized.followers(getattr(env, "name", label), settings, settings)
        params = params.replace(**{name: function(params) for name, function in follow.items()})

    if wrappers.has_entries(env, params):
        env = wrappers.Entries(env)
    env = Gymnax(env)
    if wrappers.agents_leave(env, params):
        env = wrappers.Leaving(env)
    if wrapper_settings.get("nan_reward") is not None:
        env = wrappers.NanReward(env, wrapper_settings["nan_reward"])
    ranges = () if words is None else randomized.ranges(label, params, words, settings)
    leads = lambda name: bool(randomized.followers(getattr(env, "name", label), [name], ()))
    chosen = [x for x in (*settings, *(one.name for one in ranges)) if not leads(x)]
    if "/" not in label:  # physics takes many seconds to trace, and adapters have tests
        behaviour.warn_of_unread(env, params, chosen)
    if words is not None:
        env = randomized.Randomized(env, params, ranges, settings, bool(seen))
    elif seen:
        raise ValueError("observe_randomized: nothing is drawn; give randomize too")
    max_steps = wrapper_settings.get("max_steps")
    if max_steps is not None:
        env, params = wrappers.limit_time(env, params, max_steps, settings)
    if wrapper_settings.get("done_includes_limit"):
        env = wrappers.DoneIncludesLimit(env, params)
    if wrapper_settings.get("limit_terminates"):
        env = wrappers.LimitTerminates(env)
    if wrapper_settings.get("action_repeat") is not None:
        env = wrappers.ActionRepeat(env, wrapper_settings["action_repeat"])
    if hasattr(env.observation_space(params), "n"):
        env = wrappers.OneHotObservation(env)
    shown: dict[str, Any] = {"observe": wrappers.ObserveEntries, "noise": wrappers.Noise}
    shown |= {"flicker": wrappers.Flicker, "frame_stack": wrappers.FrameStack}
    for name, wrapper in shown.items():
        if wrapper_settings.get(name) is not None:
            env = wrapper(env, params, wrapper_settings[name])
    if wrapper_settings.get("mask_actions") is False:
        env = wrappers.UnmaskedActions(env)
    if wrapper_settings.get("start_window") is not None:
        env = wrappers.StartWindow(env, wrapper_settings["start_window"])
    if wrapper_settings.get("clip_action"):
        env = wrappers.ClipAction(env, params)
    if wrapper_settings.get("rescale_action"):
        env = wrappers.RescaleAction(env, params)
    return env, params


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _arguments(env: Any, label: str) -> list[str]:
    """The constructor's arguments, or for an outside library those that its adapter passes on."""
    if "/" in label:
        return list(getattr(env, "arguments", ()))
    return list(inspect.signature(type(env)).parameters)


def _value(label: str, name: str, value: Any, default: Any) -> Any:
    """A parameter's value: a float or an array where the default is one.

    Raises:
      ValueError: a word, or another number of numbers than the default has, or an integer that does
        not fit into 32 bits.
    """
    several = isinstance(value, tuple | list)
    text = ",".join(map(str, value)) if several else value
    refusal = f"setting of {label}: {name}={text}: give"
    if isinstance(default, int | float) and (several or isinstance(value, str)):
        raise ValueError(f"{refusal} one number, as {default}")
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is int and abs(value) >= 2**31:
        raise ValueError(f"{refusal} a whole number up to {2**31 - 1}")
    if isinstance(default, jax.Array) and (several or isinstance(value, str)):
        if np.shape(value) != default.shape or np.asarray(value).dtype.kind not in "iuf":
            raise ValueError(f"{refusal} numbers in the shape {default.shape}, as {default}")
        return jnp.asarray(value, default.dtype)
    return value


def _construct(
    name: str, settings: dict[str, Any], of_all: Collection[str]
) -> tuple[Any, dict[str, Any]]:
    """Builds an environment by its name, with those settings that its constructor takes.

    Returns the environment and the other settings (fields of its parameters).
    """
    if ":" in name:
        return modules.construct(name, settings, of_all)
    library, slash, rest = name.partition("/")
    if slash:
        if library not in LIBRARIES:
            raise ValueError(_unknown_library(library, rest))
        adapter = importlib.import_module(f"envs.{library}")
        if rest in getattr(adapter, "BROKEN", {}):
            raise ValueError(f"{name} cannot be made: {adapter.BROKEN[rest]}")
        if rest not in adapter.names():
            what = f"environment of {library}"
            raise ValueError(suggest.unknown_environment(what, rest, adapter.names()))
        return adapter.construct(rest, settings)
    if name not in names():
        known = [*names(), *(f"{library}/..." for library in LIBRARIES)]
        brax = [f"brax/{task}" for task in MUJOCO]
        raise ValueError(suggest.unknown_environment("environment", name, known, brax))
    if name in OWN:
        module, factory = OWN[name]
        factory = getattr(importlib.import_module(module, __package__), factory)
    else:
        from envs.gymnax import gymnax

        factory = gymnax.registration._registry[name]
    arguments = inspect.signature(factory).parameters
    taken = {k: v for k, v in settings.items() if k in arguments}
    left = {k: v for k, v in settings.items() if k not in taken}
    if name not in OWN:  # the kit's own refuse what they do not take
        for k, v in taken.items():
            _check_argument(name, k, v, arguments[k].default)
    try:
        return factory(**taken), left
    except OSError as error:  # MNISTBandit-bsuite downloads its images
        raise ValueError(f"{name} cannot be made: its data is not available: {error}") from error
    except (TypeError, AssertionError, LookupError) as error:
        given, why = ",".join(f"{k}={v}" for k, v in taken.items()), str(error).partition("\n")[0]
        why = why or type(error).__name__
        raise ValueError(f"{name} with {given or 'no settings'}: {why}") from error


def _check_argument(label: str, name: str, value: Any, default: Any) -> None:
    """Refuses a value whose type is not that of the default, if this is a number or a bool."""
    kinds = {
        bool: (bool | np.bool_, "true or false"),
        int: (int | np.integer, "a whole number"),
        float: (float | int | np.number, "a number"),
    }
    taken, words = kinds.get(type(default), (object, ""))
    mixed = isinstance(value, bool) and type(default) in (int, float)
    if mixed or not isinstance(value, taken):
        raise ValueError(f"setting of {label}: {name}={value}: give {words}, as {default}")


def _unknown_library(library: str, rest: str) -> str:
    """The error in one line; names of gymnax's and the kit's environments have no library."""
    plain = suggest.near(rest, names())
    if plain and not suggest.near(library, LIBRARIES):
        return f"unknown library '{library}'; did you mean {', '.join(plain)}?"
    return suggest.unknown("library", library, [f"{name}/..." for name in LIBRARIES])
