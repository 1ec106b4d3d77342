"""How a result prints itself: its fields on one screen, arrays and states by their shapes."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

LONGEST = 1200  # characters of a value


def brief(record: Any) -> str:
    """The `__repr__` of a NamedTuple: a line for each field, and for each entry of a dict."""
    lines = [f"{type(record).__name__}("]
    for name in record._fields:
        value = getattr(record, name)
        entries = value.items() if isinstance(value, Mapping) and value else ()
        lines.append(f"  {name}={'{' if entries else _value(value)}")
        lines += [f"    {key}: {_value(entry)}" for key, entry in entries]
        lines += ["  }"] * bool(entries)
    return "\n".join([*lines, ")"])


def _value(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return repr(value) if value.shape == () else f"{value.dtype}{list(value.shape)}"
    if isinstance(value, list) and value and hasattr(value[0], "_fields"):
        return f"<{len(value)} of {type(value[0]).__name__}>"
    if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
        arrays = [leaf for leaf in jax.tree.leaves(value) if getattr(leaf, "shape", ())]
        if arrays:
            return f"<{type(value).__name__} of {len(arrays)} arrays>"
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."
