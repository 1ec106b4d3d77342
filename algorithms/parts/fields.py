"""Fields of a Config: static ones, which shape the program, and floats with their ranges.

A float is a leaf of the pytree and may be traced or batched. Its range is checked wherever it is
still a number.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from flax import struct


def static(default: Any) -> Any:
    """A field that shapes the program; the others are floats, traced or batched."""
    return struct.field(pytree_node=False, default=default)


def real(default: float, interval: str, **others: dict[Any, str]) -> Any:
    """A float field.

    Args:
      default: its value.
      interval: as in mathematics, "[0, 1]" or "(0, inf)"; a bracket includes its end, so that
        "(0, inf]" allows infinity. An end may be another field, "(v_min, inf)".
      **others: {value: interval} of a static field; its value replaces the interval.

    Raises:
      ValueError: something that is no interval.
    """
    for text in (interval, *(x for values in others.values() for x in values.values())):
        if not re.fullmatch(r"[\[(][-\w.+]+, [-\w.+]+[\])]", text):
            raise ValueError(f'the interval "{text}" of a real field: write "[0, 1]" or "(0, inf)"')
    return struct.field(default=default, metadata={"interval": interval, "others": others})


def check_kind(config: Any, kind: type | None) -> None:
    """Refuses what is no Config, or lacks fields of this kind; None: of no kind that is known.

    Raises:
      ValueError: it names the kind. Not isinstance: after a reload, a class is not what it was. Or
        a field that is no float would be traced as one.
    """
    wanted = f"{kind.__module__}.{kind.__qualname__}" if kind else "Config"
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise ValueError(f"config is {config!r}: give {wanted}(...), with its settings as keywords")
    names = [field.name for field in dataclasses.fields(kind)] if kind else []
    lacks = [name for name in names if name not in vars(config)]  # which reads none of them
    if lacks:
        given = f"{type(config).__module__}.{type(config).__qualname__}"
        raise ValueError(f"config is of {given}, without {lacks[0]}: give {wanted}(...)")
    for field in dataclasses.fields(config):
        traced, kind_of = field.metadata.get("pytree_node", True), type(field.default)
        whole = kind_of is int and field.type in (int, "int")
        if traced and (whole or kind_of in (bool, str, tuple)):
            told = f"{field.name} = {field.default!r} of Config is neither real nor static"
            raise ValueError(f"{told}: write static({field.default!r})")


def with_plain_values(config: Any) -> Any:
    """The Config whose static fields have Python's own values, where those given are clear.

    Raises:
      ValueError: a switch is neither True nor False, or env_settings are no pairs.
    """
    static_ones = [f for f in dataclasses.fields(config) if not f.metadata.get("pytree_node", True)]
    values = {f.name: value_like(f.default, getattr(config, f.name)) for f in static_ones}
    for field in static_ones:
        if type(field.default) is bool and type(values[field.name]) is not bool:
            raise ValueError(f"{field.name}={values[field.name]!r}: give True or False")
    pairs = values.get("env_settings", ())
    if type(pairs) is not tuple or any(type(x) is not tuple or len(x) != 2 for x in pairs):
        raise ValueError(f'env_settings={pairs!r}: give pairs, as (("max_steps", 500),)')
    return dataclasses.replace(config, **values)


def value_like(default: Any, value: Any) -> Any:
    """A value as a field with this default has it, where it is clear.

    Numbers of NumPy and jax become Python's, and so do arrays without axes. Other arrays, and
    lists, become tuples. A whole float becomes an int where the default is one, 0 and 1 switches
    where it is one, and a dict its pairs where it is a tuple. Anything else stays, for the checks
    to refuse.
    """
    is_tuple = isinstance(default, tuple)
    value = _of_python(tuple(value.items()) if is_tuple and isinstance(value, dict) else value)
    if type(default) is int:
        return _whole(value)
    if type(default) is bool and type(value) in (int, float) and value in (0, 1):
        return bool(value)
    if is_tuple and set(map(type, default)) == {int} and type(value) is tuple:
        return tuple(map(_whole, value))
    return value


def _of_python(value: Any) -> Any:
    """Values of NumPy and jax, alone or in lists and tuples, as Python's."""
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        traced = isinstance(value, jax.core.Tracer)
        value = value if traced else jax.device_get(value).tolist()
    return tuple(map(_of_python, value)) if type(value) in (list, tuple) else value


def _whole(value: Any) -> Any:
    """A whole float as an int."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def check_reals(config: Any) -> None:
    """Refuses floats outside their intervals; every float may be an array. Traced ones are skipped.

    Raises:
      ValueError: a field, its value and its interval.
    """
    for name, interval, reason in _intervals(config):
        words = name, *interval[1:-1].split(", ")
        if any(isinstance(getattr(config, word, None), jax.core.Tracer) for word in words):
            continue
        value, low, high = np.broadcast_arrays(*(_number(config, word) for word in words))
        above = value >= low if interval[0] == "[" else value > low
        below = value <= high if interval[-1] == "]" else value < high
        for i in np.argwhere(~(above & below)):  # also where a value is NaN
            bounds = f"{interval[0]}{low[*i]:g}, {high[*i]:g}{interval[-1]}"
            bounds = bounds if bounds == interval else f"{interval}, here {bounds}"
            raise ValueError(f"{name}={value[*i]}: give a number in {bounds}{reason}")


def bounds(config: Any, name: str) -> tuple[Any, Any]:
    """The lowest and the highest float32 that a field may be; infinite without an interval.

    If an end is another field, its value counts, which may be traced.
    """
    for field, interval, _ in _intervals(config):
        if field == name:
            low, high = (getattr(config, w, None) for w in interval[1:-1].split(", "))
            low = _end(interval, 0, np.inf) if low is None else low
            return low, _end(interval, 1, -np.inf) if high is None else high
    return -np.inf, np.inf


def _end(interval: str, which: int, inwards: float) -> np.float32:
    """An end of an interval, or the next float if the end itself is excluded."""
    end = np.float32(interval[1:-1].split(", ")[which])
    is_open = interval[0] == "(" if which == 0 else interval[-1] == ")"
    if is_open and end == 0:  # the very next numbers are 0 to a processor
        return np.copysign(np.finfo(np.float32).tiny, np.float32(inwards))
    return np.nextafter(end, np.float32(inwards)) if is_open else end


def _number(config: Any, word: str) -> np.ndarray:
    """A field's value, or the number that the word spells."""
    given = jax.device_get(getattr(config, word, word))
    for one in np.ravel(given).tolist():
        try:
            float(one)
        except (TypeError, ValueError):
            raise ValueError(f"{word}={one}: give a number") from None
    values = np.asarray(given, float)
    largest = np.finfo(np.float32).max  # programs have larger ones as infinity
    return np.where(np.abs(values) > largest, np.copysign(np.inf, values), values)


def _intervals(config: Any) -> Iterator[tuple[str, str, str]]:
    """The name of each float field, its interval, and the static field that decides it."""
    for field in dataclasses.fields(config):
        if "interval" not in field.metadata:
            continue
        interval, reason = field.metadata["interval"], ""
        for name, others in field.metadata["others"].items():
            value = getattr(config, name)
            if value in others:
                interval, reason = others[value], f", with {name}={value}"
        yield field.name, interval, reason
