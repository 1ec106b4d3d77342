"""Metrics that an environment reports besides rewards: won, distance, achievements, ...

`info["metrics"]` is a dictionary of numbers. `env.metrics` says for each name whether an episode's
value is its "last" one or its "sum".
"""

from typing import Any

import jax
import jax.numpy as jnp

# Metrics of every episode, which an environment's own would replace.
RESERVED = ("return", "length", "last_reward", "terminated", "truncated", "exploitability")


def kinds(env: Any) -> dict[str, str]:
    """The kind of each metric of an environment: "last" or "sum"."""
    found = dict(getattr(env, "metrics", None) or {})
    for name, kind in found.items():
        if kind not in ("last", "sum"):
            raise ValueError(f'metric {name} of {env.name}: "{kind}" is neither "last" nor "sum"')
        if name in RESERVED:
            raise ValueError(f"metric {name} of {env.name}: every environment has one; rename it")
    return found


def counted(kind: str, before: jax.Array, value: jax.Array) -> jax.Array:
    """An episode's value after a step that reports `value`."""
    return before + value if kind == "sum" else jnp.asarray(value, jnp.float32)
