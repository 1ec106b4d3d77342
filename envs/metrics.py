"""Metrics that an environment reports besides rewards: won, distance, achievements, ...

`info["metrics"]` is a dictionary of numbers. `env.metrics` says for each name whether an episode's
value is its "last" one or its "sum".
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from envs import shaping
from envs.sums import Sum, mean

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


def after(kind: str, before: jax.Array, value: jax.Array) -> jax.Array:
    """An episode's value after a step that reports `value`."""
    return before + value if kind == "sum" else jnp.asarray(value, jnp.float32)


@struct.dataclass
class EpisodeMetrics:
    """Metrics of the running episodes, and sums over those that ended; empty without metrics."""

    running: dict[str, jax.Array]  # (num_envs,); added rewards (num_envs, ...)
    totals: dict[str, Sum]
    count: jax.Array | None  # ended episodes, int32 (); None without metrics

    @classmethod
    def create(cls, env: Any, num_envs: int) -> "EpisodeMetrics":
        running = {name: jnp.zeros(num_envs) for name in kinds(env)}
        if shaping.shapes(env):
            running[shaping.NAME] = jnp.zeros((num_envs, *shaping.reward_shape(env)))
        totals = {name: Sum.create(x.shape[1:]) for name, x in running.items()}
        return cls(running, totals, jnp.zeros((), jnp.int32) if running else None)

    def update(self, env: Any, info: dict[str, Any], done: jax.Array) -> "EpisodeMetrics":
        """Adds a step of all environments; `done` (num_envs,)."""
        if self.count is None:
            return self
        values, names = info.get("metrics", {}), kinds(env)
        if shaping.shapes(env):
            values, names = (
                values | {shaping.NAME: info[shaping.NAME]},
                names | {shaping.NAME: "sum"},
            )
        now = {n: after(kind, self.running[n], values[n]) for n, kind in names.items()}
        over = {n: done.reshape(done.shape + (1,) * (x.ndim - 1)) for n, x in now.items()}
        ended = {n: jnp.where(over[n], x, 0.0).sum(0) for n, x in now.items()}
        return EpisodeMetrics(
            running={n: jnp.where(over[n], 0.0, x) for n, x in now.items()},
            totals={n: total.add(ended[n]) for n, total in self.totals.items()},
            count=self.count + done.sum(),
        )

    def read(self) -> tuple[dict[str, jax.Array], "EpisodeMetrics"]:
        """Means over the ended episodes, without data if none ended; and cleared sums."""
        if self.count is None:
            return {}, self
        means = {n: mean(total.total, self.count) for n, total in self.totals.items()}
        cleared = dataclasses.replace(
            self,
            totals={n: Sum.create(x.shape) for n, x in means.items()},
            count=jnp.zeros_like(self.count),
        )
        return means, cleared
