"""What definitions of the kit are in a copy: one file, one shard, 32 bits, one environment's rules.

`@in_place_of(x)` puts another definition in the place of x. The tables say what calls are in a
copy; what that decides is left out. Nobody imports this module: the writer reads it.
"""

import argparse
import ast
import dataclasses
import difflib
import inspect
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algorithms.parts import capacity, checks, fields, layers, levels, reads, shards, training
from envs import (
    evaluation,
    exploitability,
    gymnax,
    interface,
    pgx,
    registry,
    reports,
    shaping,
    wrappers,
)
from envs.batch import ENDLESS, Batch, limit_name, limit_of
from envs.usual_jax import with_usual_jax as of_kit

PLAIN = {reports.batch: Batch}  # where environments report nothing
# Calls that are their first argument, None or True: there is one shard, and nothing is checked,
# warned of or converted at the kit's edge.
ARGUMENT = (
    *(shards.sum_over_shards, shards.mean_over_shards, shards.max_over_shards),
    *(shards.any_over_shards, shards.with_own_keys, shards.gathered, shards.of_all),
    *(shards.memory, shards.apart, shards.merged, shards.summed, of_kit, reads.watched),
    *(training.checked, training.counted),
)
NOTHING = (
    *(shards.share_of, reads.changed, reads.asked_for, reads.warn_of_unread),
    *(checks.warn_of_scale, checks.warn_of_units, interface.check_interface),
    levels.warn_of_one_level,
    *(fields.check_kind, training.check_key, evaluation.longest, exploitability.measure),
    reads.warn_of_mask,
)
TRUE = (reads.is_watched,)


def in_place_of(definition: Any) -> Callable:
    return lambda other: other


@in_place_of(capacity.device_capacity)
def device_capacity() -> float:
    """Bytes of an accelerator; infinite for a CPU."""
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", math.inf)


@in_place_of(evaluation.check_ends)
def check_ends(env: Any, env_params: Any) -> None:
    """Refuses an environment whose episodes may never end: an evaluation plays whole episodes."""
    limit = limit_of(env, env_params)
    known = limit is None or not isinstance(limit, jax.core.Tracer)
    endless = known and not np.max(np.inf if limit is None else limit) < ENDLESS
    if endless and not getattr(env, "ends", False):
        raise ValueError(
            f"{env.name} has no time limit, and an evaluation plays whole episodes: give it one "
            "(--env-settings max_steps=1000), no evaluations (--num-eval-episodes 0), or an "
            "attribute ends = True"
        )


@in_place_of(checks.check_spaces)
def check_spaces(info: Any, config: Any, env: Any, env_params: Any) -> None:
    """Refuses an environment that the algorithm cannot take, and 64 bits.

    Args:
      info: INFO, with the kinds of actions, masks and agents that it takes.
      config: its `conv_layers` and `compute_dtype` are used.
    """
    actions, observations = env.action_space(env_params), env.observation_space(env_params)
    kind = "discrete" if hasattr(actions, "n") else "continuous"
    agents = "several" if hasattr(env, "num_agents") else "one"
    shape = tuple(getattr(observations, "shape", ()))
    least = layers.CONV_LAYERS.get(config.conv_layers)
    if jax.config.jax_enable_x64:  # type: ignore[attr-defined]  # set at run time
        raise ValueError("jax_enable_x64 is set, and these programs have 32 bits: unset it")
    told = lambda: (  # late: traced bounds cannot be printed
        f"{env.name} has actions {actions}, observations {observations} and {agents} agent(s)"
    )
    for name, value in (("agents", agents), ("actions", kind)):
        if value not in info[name]:
            raise ValueError(f"{told()}; {info['title']} takes {name}: {info[name]}")
    if "discrete" not in info["actions"] and not interface.is_bounded(actions):
        raise ValueError(f"{told()}; {info['title']} takes actions with bounds")
    if hasattr(env, "action_mask") and not info["masks"]:
        raise ValueError(f"{env.name} has an action_mask, which {info['title']} would not heed")
    if not hasattr(observations, "low"):
        raise ValueError(f"{told()}; {info['title']} takes a Box of observations")
    if getattr(config, "compute_dtype", "float32") not in layers.DTYPES:
        raise ValueError(f"compute_dtype={config.compute_dtype!r}: give one of {layers.DTYPES}")
    if least is None or (len(shape) == 3 and min(shape[:2]) < least):
        raise ValueError(f"conv_layers={config.conv_layers!r} does not suit observations {shape}")


@in_place_of(checks.check_game)
def check_game(info: Any, config: Any, env: Any, env_params: Any) -> None:
    """Refuses everything but pgx's games of two players without chance or hidden information."""
    two = hasattr(env, "hidden_information") and getattr(env, "num_agents", 1) == 2
    if not two or env.chance or env.hidden_information:
        raise ValueError(f"{env.name}: {info['title']} takes games of two who see everything")


# --- environments -----------------------------------------------------------------------------


@in_place_of(gymnax.Wrapper)
class Wrapper:
    """Passes everything on to the environment inside, `env`."""

    def __init__(self, env: Any):
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # absent while unpickling
            raise AttributeError(name)
        return getattr(self.env, name)


class Usual(Wrapper):
    """Observations in the dtype of their space, float32 rewards, and no weak types.

    Weak types differ between a reset and a step, and a loop would see two types of one state. The
    integers of a Discrete space of observations are shown as vectors.
    """

    def reset_env(self, key, params):
        observation, state = self.env.reset_env(key, params)
        state = jax.tree.map(lambda x: strong(x, jnp.result_type(x)), state)
        return self.seen(observation, params), state

    def step_env(self, key, state, action, params):
        observation, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        key = jax.eval_shape(lambda: jax.random.key(0))
        first = jax.eval_shape(self.env.reset_env, key, params)[1]
        state = jax.tree.map(lambda x, to: strong(x, to.dtype), state, first)
        reward = jnp.asarray(reward, jnp.float32)
        if reward.shape == (1,) and not hasattr(self.env, "num_agents"):
            reward = reward[0]
        observation = self.seen(observation, params)
        return observation, state, reward, jnp.asarray(terminated, bool), info

    def seen(self, observation, params):
        space = self.env.observation_space(params)
        observation = jnp.asarray(observation, space.dtype)
        return jax.nn.one_hot(observation, space.n) if hasattr(space, "n") else observation

    def observation_space(self, params):
        space = self.env.observation_space(params)
        if not hasattr(space, "n"):
            return space
        return SimpleNamespace(low=0.0, high=1.0, shape=(space.n,), dtype=jnp.float32)


def strong(x: Any, dtype: Any) -> Any:
    return x if jnp.issubdtype(dtype, jax.dtypes.prng_key) else jnp.asarray(x, dtype)


class TimeLimit(Wrapper):
    """Truncates an episode after `max_steps` steps. Its state is (state inside, steps)."""

    ends = True

    def __init__(self, env: Any, max_steps: int):
        self.env, self.max_steps = env, max_steps

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if name in ("action_mask", "world_state"):
            return lambda state, params: value(state[0], params)
        return value

    def reset_env(self, key, params):
        observation, state = self.env.reset_env(key, params)
        return observation, (state, jnp.zeros((), jnp.int32))

    def step_env(self, key, state, action, params):
        observation, inner, *rest = self.env.step_env(key, state[0], action, params)
        return observation, (inner, state[1] + 1), *rest

    def is_truncated(self, state, params):
        return self.env.is_truncated(state[0], params) | (state[1] >= self.max_steps)


def own() -> dict[str, Any]:
    """Environments of this file, by their names; put here by the writer."""
    return {}


def adapters() -> Any:
    """Of other libraries: {library: (names, construct)}, put here by the writer."""


def reporting() -> bool:
    """Whether environments report metrics of their own, or shape rewards."""
    return True


@in_place_of(pgx.construct)
def game(name: str, settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A game of pgx, and the settings that its constructor does not take."""
    return pgx._game(name, settings)


@in_place_of(registry.make)
def make(env: Any, **settings: Any) -> tuple[Any, Any]:
    """An environment and its parameters.

    Args:
      env: a name of gymnax's, or of an environment below; or an object with gymnax's 1.x interface
        (`reset_env`, `step_env`, `is_truncated`, the two spaces and `default_params`).
      **settings: arguments of the environment's constructor, fields of its parameters, and
        `max_steps`, after which an episode is truncated.

    Raises:
      ValueError: an unknown name or setting.
    """
    max_steps = settings.pop("max_steps", None)
    if max_steps is not None and not (isinstance(max_steps, int) and max_steps >= 1):
        raise ValueError(f"max_steps={max_steps}: give a number of steps, 1 or more")
    if adapters() and isinstance(env, str) and env.partition("/")[0] in adapters():
        library, _, name = env.partition("/")
        known, construct = adapters()[library]
        if name not in known():
            raise ValueError(f"unknown environment '{name}' of {library}; there are {known()}")
        env, settings = construct(name, settings)
    if words := [name for name, value in settings.items() if isinstance(value, str)]:
        raise ValueError(f"{words[0]}={settings[words[0]]}: give a number, true or false")
    if isinstance(env, str):
        try:
            from gymnax.registration import _registry
        except ModuleNotFoundError as error:
            needs = "environments by name need gymnax: pip install gymnax six"
            raise ValueError(f"{error}; {needs}") from error

        known = _registry | own()
        if env not in known:
            near = difflib.get_close_matches(env, known, 3, 0.7)
            hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(known)}"
            hint = f"the kit copies its adapter with --copy and --env {env}" if "/" in env else hint
            raise ValueError(f"unknown environment '{env}'; {hint}")
        arguments = inspect.signature(known[env]).parameters
        env = known[env](**{name: settings.pop(name) for name in [*settings] if name in arguments})
    params, limit = env.default_params, limit_name(env)
    fields = [*getattr(params, "__dataclass_fields__", ())]
    if unknown := [name for name in settings if name not in fields]:
        others = "for other settings use the kit, or wrap the environment"
        there = ", ".join(["max_steps", *fields])
        raise ValueError(f"{env.name} has no setting {unknown[0]}; there are {there}; {others}")
    if max_steps and limit in fields and limit not in settings:
        settings[limit] = max(max_steps, getattr(params, limit))
    params = params.replace(**settings) if settings else params
    env = Usual(env)
    if reporting():
        env.batch_kind = reports.batch_kind(env)
    if adapters() and getattr(env, "agents_leave", False) and not shaping.earns_after_leaving(env):
        env = wrappers.Leaving(env)
    return (TimeLimit(env, max_steps) if max_steps else env), params


# --- the command line -------------------------------------------------------------------------


def main(algorithm: Callable, kind: type, about: str) -> None:
    """Trains with the settings of the command line, and prints a line for each point.

    Several seeds are trained at once, in one program. A line has their means; the CSV file has a
    row for each of them.

    Args:
      algorithm: make_train.
      kind: the Config's class.
      about: its first line is printed by --help.
    """
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a program that runs, too
    parser = argparse.ArgumentParser(
        description=about.partition("\n")[0],
        usage="%(prog)s [--setting value ...]",
        allow_abbrev=False,
    )
    says = dict(re.findall(r"^    (\w+): .*  # (.*)$", inspect.getsource(kind), re.MULTILINE))
    flag = lambda name, word="": [f"--{word}{name.replace('_', '-')}"]
    for field in dataclasses.fields(kind):
        told = f"{says.get(field.name, '')}; default: {field.default}".replace("%", "%%")
        given: dict[str, Any] = {"type": reader(field), "default": field.default, "help": told}
        if isinstance(field.default, bool):
            parser.add_argument(*flag(field.name), nargs="?", const=True, **given)
            parser.add_argument(*flag(field.name, "no-"), dest=field.name, action="store_false")
        else:
            parser.add_argument(*flag(field.name), **given)
    parser.add_argument("--seed", type=int, default=0, help="of the first of the seeds")
    parser.add_argument("--num-seeds", type=int, default=1, help="that are trained at once")
    parser.add_argument("--csv", type=Path, help="a new file for all metrics")
    asked = vars(parser.parse_args())
    seed, number, csv = (asked.pop(name) for name in ("seed", "num_seeds", "csv"))
    if seed < 0 or number < 1:
        parser.error(f"--seed {seed} --num-seeds {number}: give 0 or more, and 1 or more")
    if csv and (csv.exists() or not csv.parent.is_dir()):
        parser.error(f"--csv {csv}: give a new file in a folder that is there")
    try:
        config = kind(**asked)
        train = algorithm(config)
    except ValueError as error:
        parser.error(str(error))
    many = jax.vmap if number > 1 else lambda function, axes=0: function
    start = jax.jit(many(lambda seed: train.start(jax.random.key(seed))))
    point = jax.jit(
        many(lambda state, learn: train(None, state, 1, learn), (0, None)), donate_argnums=0
    )
    seeds = seed + jnp.arange(number)
    state = start(seeds if number > 1 else seed)
    learns = [False] * config.eval_at_start + [True] * train.plan.points
    with open(csv or os.devnull, "w", buffering=1) as file:
        for row, learn in enumerate(learns):
            state, metrics = point(state, learn)
            values = {name: np.reshape(x, (number, -1)).mean(1) for name, x in metrics.items()}
            if jax.config.jax_debug_nans:  # type: ignore[attr-defined]  # -0.0 is "no data" then
                absent = lambda x: np.signbit(x) & (x == 0)
                values = {name: np.where(absent(x), np.nan, x) for name, x in values.items()}
            if not row:
                print("seed", *values, sep=",", file=file)
            for i in range(number):
                print(seed + i, *(x[i] for x in values.values()), sep=",", file=file)
            shown = [name for name in ("episode_return", "eval_return") if name in values]
            told = "  ".join(f"{name} {values[name].mean():.2f}" for name in shown)
            print(f"timestep {values['timestep'].mean():.0f}  {told}", flush=True)


def reader(field: Any) -> Callable[[str], Any]:
    """Reads a setting's words: numbers as 5e5 or 64,64, and name=value,... of the environment."""

    def whole(text: str) -> int:
        if float(text) != int(float(text)):
            raise ValueError(text)
        return int(float(text))

    def value(text: str) -> Any:
        try:
            return ast.literal_eval({"true": "True", "false": "False"}.get(text, text))
        except (ValueError, SyntaxError):
            return text

    def true_or_false(text: str) -> bool:
        return bool(["false", "true"].index(text.lower()))

    def with_commas(text: str) -> tuple:
        words = [word for word in text.split(",") if word]
        pair = lambda word: (word.partition("=")[0], value(word.partition("=")[2]))
        return tuple(map(pair if "str" in str(field.type) else whole, words))

    if isinstance(field.default, bool):
        return true_or_false
    if isinstance(field.default, int):
        return whole
    return with_commas if isinstance(field.default, tuple) else type(field.default)
