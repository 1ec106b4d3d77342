"""Batches of environments that report more than rewards: metrics (envs/metrics.py), and rewards on
the way to a reward (envs/shaping.py)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from envs import shaping, sums
from envs.batch import Batch, BatchState
from envs.metrics import counted, kinds


def batch_kind(env: Any) -> type[Batch]:
    """The class of the batches of an environment."""
    return Reporting if kinds(env) or shaping.shapes(env) else Batch


def batch(
    env: Any,
    num_envs: int,
    num_steps: int = 1,
    window: int | None = None,
    stagger: bool = False,
) -> Batch:
    """`num_envs` environments at once: a `Batch`, with the same arguments."""
    kind: type[Batch] = getattr(env, "batch_kind", Batch)
    return kind(env, num_envs, num_steps, window, stagger)


class Reporting(Batch):
    """`Batch`, with metrics in its state. Shaped rewards are part of the rewards, and
    `info["shaping"]` is what they add."""

    def reset(self, key: Any, params: Any) -> tuple[Any, BatchState]:
        observation, state = super().reset(key, params)
        metrics = EpisodeMetrics.create(self.env, self.num_envs)
        before = jnp.zeros((), jnp.int32) if shaping.shapes(self.env) else None
        return observation, dataclasses.replace(state, metrics=metrics, before=before)

    def refill(self, key: Any, state: BatchState, params: Any) -> BatchState:
        before = None if state.before is None else state.before + state.steps
        return dataclasses.replace(super().refill(key, state, params), before=before)

    def step(self, key: jax.Array, state: BatchState, action: jax.Array, params: Any):
        observation, state, reward, *ends, info = super().step(key, state, action, params)
        if shaping.shapes(self.env):
            weight = shaping.weight(params, state.before.astype(jnp.float32) * self.num_envs)
            info[shaping.NAME] = weight * info["shaped_reward"]
            reward = reward + info[shaping.NAME]
        metrics = state.metrics.update(self.env, info, ends[0] | ends[1])
        return observation, dataclasses.replace(state, metrics=metrics), reward, *ends, info


@struct.dataclass
class EpisodeMetrics:
    """Metrics of the running episodes, and sums over those that ended."""

    running: dict[str, jax.Array]  # (num_envs,); added rewards (num_envs, ...)
    totals: dict[str, sums.Sum]
    count: jax.Array  # ended episodes, int32 ()

    @classmethod
    def create(cls, env: Any, num_envs: int) -> "EpisodeMetrics":
        running = {name: jnp.zeros(num_envs) for name in kinds(env)}
        if shaping.shapes(env):
            running[shaping.NAME] = jnp.zeros((num_envs, *shaping.reward_shape(env)))
        totals = {name: sums.Sum.create(x.shape[1:]) for name, x in running.items()}
        return cls(running, totals, jnp.zeros((), jnp.int32))

    def update(self, env: Any, info: dict[str, Any], done: jax.Array) -> "EpisodeMetrics":
        """Adds a step of all environments; `done` (num_envs,)."""
        values, names = info.get("metrics", {}), kinds(env)
        if shaping.shapes(env):
            values, names = (
                values | {shaping.NAME: info[shaping.NAME]},
                names | {shaping.NAME: "sum"},
            )
        now = {n: counted(kind, self.running[n], values[n]) for n, kind in names.items()}
        over = {n: done.reshape(done.shape + (1,) * (x.ndim - 1)) for n, x in now.items()}
        ended = {n: jnp.where(over[n], x, 0.0).sum(0) for n, x in now.items()}
        return EpisodeMetrics(
            running={n: jnp.where(over[n], 0.0, x) for n, x in now.items()},
            totals={n: total.add(ended[n]) for n, total in self.totals.items()},
            count=self.count + done.sum(),
        )

    def read(self) -> tuple[dict[str, jax.Array], "EpisodeMetrics"]:
        """Means over the ended episodes, without data if none ended; and cleared sums."""
        means = {n: sums.mean(total.total, self.count) for n, total in self.totals.items()}
        cleared = dataclasses.replace(
            self,
            totals={n: sums.Sum.create(x.shape) for n, x in means.items()},
            count=jnp.zeros_like(self.count),
        )
        return means, cleared

    def of_point(self, episodes: dict[str, jax.Array]) -> tuple[dict[str, Any], "EpisodeMetrics"]:
        """A point's metrics of episodes with those that the environment reports, and cleared sums.

        Args:
          episodes: `episode_return` and `num_episodes` are used. Returns become those of the
            environment's own rewards.
        """
        means, cleared = self.read()
        if shaping.NAME in means:
            plain = episodes["episode_return"] - means[shaping.NAME]
            episodes = episodes | {"episode_return": sums.missing(plain, episodes["num_episodes"])}
        return episodes | {f"episode_{name}": x for name, x in means.items()}, cleared
