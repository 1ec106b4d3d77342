"""What an environment reports of itself besides rewards: win, distance, achievements, ...

`info["metrics"]` is a dictionary of numbers, and `env.metrics` says of each name whether an
episode's value is its "last" one or its "sum".
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from envs.sums import Sum


def kinds(env: Any) -> dict[str, str]:
    """Of each metric of an environment: "last" or "sum"."""
    found = dict(getattr(env, "metrics", None) or {})
    for name, kind in found.items():
        if kind not in ("last", "sum"):
            raise ValueError(f'metric {name} of {env.name}: "{kind}" is neither "last" nor "sum"')
    return found


def after(kind: str, before: jax.Array, value: jax.Array) -> jax.Array:
    """An episode's value after a step that reports `value`."""
    return before + value if kind == "sum" else jnp.asarray(value, jnp.float32)


@struct.dataclass
class EpisodeMetrics:
    """Metrics of the episodes under way and sums over those that ended; empty where an environment
    has none."""

    running: dict[str, jax.Array]  # (num_envs,)
    totals: dict[str, Sum]
    count: jax.Array | None  # of ended episodes, int32 (); None where there is nothing to count

    @classmethod
    def create(cls, env: Any, num_envs: int) -> "EpisodeMetrics":
        names = kinds(env)
        running = {name: jnp.zeros(num_envs) for name in names}
        totals = {name: Sum.create() for name in names}
        return cls(running, totals, jnp.zeros((), jnp.int32) if names else None)

    def update(self, env: Any, info: dict[str, Any], done: jax.Array) -> "EpisodeMetrics":
        """With a step of all environments; `done` (num_envs,)."""
        if self.count is None:
            return self
        values = info["metrics"]
        now = {n: after(kind, self.running[n], values[n]) for n, kind in kinds(env).items()}
        ended = {n: jnp.where(done, x, 0.0).sum() for n, x in now.items()}
        return EpisodeMetrics(
            running={n: jnp.where(done, 0.0, x) for n, x in now.items()},
            totals={n: total.add(ended[n]) for n, total in self.totals.items()},
            count=self.count + done.sum(),
        )

    def read(self) -> tuple[dict[str, jax.Array], "EpisodeMetrics"]:
        """Means over the episodes that ended, NaN if none did, and this without them."""
        if self.count is None:
            return {}, self
        means = {n: total.total / self.count for n, total in self.totals.items()}
        cleared = self.replace(
            totals={n: Sum.create() for n in means}, count=jnp.zeros_like(self.count)
        )
        return means, cleared
