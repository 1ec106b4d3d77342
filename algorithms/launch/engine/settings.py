"""Configurations as text, and trials: settings with their seeds."""

import dataclasses
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from algorithms import parts
from algorithms.launch.engine.errors import UserError, unknown

# --- configurations as text ------------------------------------------------------------------


def float_fields(config: Any) -> list[str]:
    """Names of the fields that are leaves of the pytree."""
    fields = dataclasses.fields(config)
    return [f.name for f in fields if f.metadata.get("pytree_node", True)]


def config_to_json(config: Any) -> dict[str, Any]:
    """Plain values, for strict JSON: infinity becomes "inf", an environment object its mark."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    values |= {name: float(values[name]) for name in float_fields(config)}
    values["env_settings"] = dict(values["env_settings"])
    if not isinstance(config.env, str):
        values["env"] = {"object": env_name(config)}
    return strict(values)


def config_from_json(cls: type, values: dict[str, Any], source: Path, env: Any = None) -> Any:
    """The inverse. A field that an older file lacks has its default.

    Args:
      cls: the Config.
      values: of its fields.
      source: the file that they are from.
      env: the environment, where it was an object.

    Raises:
      UserError: a field that the Config does not have, or the environment was an object and is
        not given.
    """
    fields = [field.name for field in dataclasses.fields(cls)]
    for name in values:
        if name not in fields:
            raise UserError(f"{source}: {unknown('setting', name, fields)}")
    values = lenient(with_defaults(cls, values))
    _check_kinds(cls(), values, source)
    if env is None and isinstance(values["env"], dict):
        raise UserError(
            f"{source}: the environment was an object ({values['env']['object']}), which no file "
            "can hold: pass it from Python as env=..., or name it with --env my_module:MyEnv"
        )
    values = {name: value_of(value) for name, value in values.items()}
    return plain_config(cls(**values | ({} if env is None else {"env": env})), cls)


def plain_config(config: Any, kind: type) -> Any:
    """The Config with Python's own values.

    Raises:
      UserError: it is no Config of this kind, a float in it is no number, or a switch is neither
        True nor False.
    """
    try:
        parts.check_kind(config, kind)
        for name in float_fields(config):
            if np.ndim(value := getattr(config, name)):
                raise UserError(
                    f"{name}={value}: give a number; launch.sweep takes several, "
                    f"{{{name!r}: [...]}}"
                )
        return parts.with_plain_values(config)
    except ValueError as error:
        raise UserError(str(error)) from error


def _check_kinds(default: Any, values: dict[str, Any], source: Path) -> None:
    """Refuses values of another kind than the defaults', as a file edited by hand may have."""
    floats, plain = float_fields(default), config_to_json(default)
    for name, value in values.items():
        kinds = (int, float) if name in floats else (type(plain[name]),)
        is_object = name == "env" and isinstance(value, dict)
        is_flag = kinds == (bool,) and value in (0, 1)  # as Python takes them
        is_whole = kinds == (int,) and type(parts.value_like(0, value)) is int  # 1e6
        if type(value) not in kinds and not (is_object or is_flag or is_whole):
            raise UserError(f"{source}: {name} is {value!r}: give one like {plain[name]!r}")


def with_defaults(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    """A config.json's values, and the defaults of fields that it lacks: a new field's default acts
    as the kit did before the field existed."""
    return config_to_json(cls()) | values


def value_of(value: Any) -> Any:
    """One field's value of a config.json, as a Config has it."""
    value = lenient(value)
    return tuples([[*pair] for pair in value.items()] if isinstance(value, dict) else value)


def strict(values: Any) -> Any:
    """Nested dicts and lists as strict JSON has them: infinity becomes "inf", and numbers of NumPy
    those of Python."""

    def known(x: Any) -> Any:
        x = x.item() if isinstance(x, np.generic) else x
        return str(x) if isinstance(x, float) and math.isinf(x) else x

    return map_plain(known, values)


def lenient(values: Any) -> Any:
    """The inverse."""
    return map_plain(lambda x: float(x) if x in ("inf", "-inf") else x, values)


def algorithm_name(module: Any) -> str:
    """The name of the algorithm's file, also when it is the program that was started."""
    return Path(module.__file__).stem


def command_of(module: Any) -> str:
    """The command that starts the algorithm's file, as the documentation has it."""
    file = Path(module.__file__).resolve()
    if file.parent == Path(parts.__file__).resolve().parents[1]:
        return f"python algorithms/{file.name}"
    here = Path.cwd()
    name = file.relative_to(here) if file.is_relative_to(here) else file
    return f"python {shlex.quote(str(name))}"


def env_name(config: Any) -> str:
    """The environment's name, also of an object."""
    env = config.env
    return env if isinstance(env, str) else getattr(env, "name", type(env).__name__)


def env_label(value: Any) -> str:
    """The same, of what `config_to_json` makes of it."""
    return value["object"] if isinstance(value, dict) else value


def map_plain(function: Callable, value: Any) -> Any:
    """A function of what nested dicts and lists hold; tuples become lists."""
    if isinstance(value, dict):
        return {k: map_plain(function, v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [map_plain(function, v) for v in value]
    return function(value)


def tuples(value: Any) -> Any:
    """A value with tuples in place of lists, as a Config has it."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value


# --- trials ----------------------------------------------------------------------------------


class Trials(NamedTuple):
    """Settings with seeds: the floats that differ between trials; the rest is in the Config."""

    seeds: list[int]
    floats: Mapping[str, np.ndarray] = MappingProxyType({})  # {field: (num_trials,)}

    @property
    def count(self) -> int:  # type: ignore[override]  # nobody counts in it as in a tuple
        return len(self.seeds)

    @property
    def in_words(self) -> str:
        """How many settings and seeds, for people."""
        settings = len({tuple(self.setting(i).values()) for i in range(self.count)})
        seeds = self.count // settings
        kinds = f"{settings} settings x " if settings > 1 else ""
        return f"{kinds}{seeds} seed{'s' * (seeds > 1)}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        floats = {name: values.tolist() for name, values in self.floats.items()}
        return {"seeds": list(self.seeds), "floats": strict(floats)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Trials":
        """The inverse."""
        floats = lenient(values["floats"])
        return cls(values["seeds"], {k: np.array(v, np.float64) for k, v in floats.items()})

    def some(self, places: Sequence[int]) -> "Trials":
        """Those in these places."""
        floats = {name: values[list(places)] for name, values in self.floats.items()}
        return Trials([self.seeds[i] for i in places], floats)

    def setting(self, trial: int) -> dict[str, float]:
        """The floats of one trial."""
        return {name: float(values[trial]) for name, values in self.floats.items()}

    def config(self, config: Any, trial: int) -> Any:
        """The configuration of one trial."""
        return config.replace(**self.setting(trial))

    def configs(self, config: Any) -> Any:
        """The configurations of all: every float leaf is (num_trials,), float32."""
        names = float_fields(config)
        n = (self.count,)
        column = lambda name: np.broadcast_to(self.floats.get(name, getattr(config, name)), n)
        return config.replace(**{name: column(name).astype(np.float32) for name in names})

    def one(self, configs: Any, trial: int) -> Any:
        """One of `configs`; of a Config without a trial axis, that itself if nothing is swept."""
        if not self.floats:
            return configs
        return configs.replace(**{n: getattr(configs, n)[trial] for n in float_fields(configs)})

    def label(self, trial: int) -> str:
        """The name of a trial, for people."""
        return ", ".join([*text_of(self.setting(trial)), f"seed {self.seeds[trial]}"])


def text_of(setting: Mapping[str, Any]) -> list[str]:
    """name=value for each field."""
    return [f"{name}={plain(value)}" for name, value in setting.items()]


def plain(value: Any) -> str:
    """A field's value as the command line takes it."""
    if isinstance(value, float):
        return format(value, ".6g")
    if isinstance(value, tuple):
        pairs = all(isinstance(item, tuple) for item in value)
        return ",".join(f"{k}={plain(v)}" for k, v in value) if pairs else ",".join(map(str, value))
    return str(value)
