"""Returns and lengths of the episodes of training."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct

from envs.sums import Sum, mean


@struct.dataclass
class EpisodeStatistics:
    """Sums over the episodes that ended, updated by rollouts.

    Returns may have trailing axes (one for each agent).
    """

    running_return: jax.Array  # sums of the current episodes, (num_envs, ...)
    running_length: jax.Array  # (num_envs,)
    returns: Sum  # over ended episodes, (...)
    lengths: Sum  # ()
    count: jax.Array  # number of ended episodes, int32 ()

    @classmethod
    def create(cls, num_envs: int, shape: tuple[int, ...] = ()) -> "EpisodeStatistics":
        """No episodes yet; `shape` is that of one reward."""
        returns, lengths = jnp.zeros((num_envs, *shape)), jnp.zeros(num_envs)
        return cls(returns, lengths, Sum.create(shape), Sum.create(), jnp.zeros((), jnp.int32))

    def update(self, rewards: jax.Array, done: jax.Array) -> "EpisodeStatistics":
        """Adds a rollout: rewards (num_steps, num_envs, ...), done (num_steps, num_envs).

        Episodes follow one another without a gap. So the returns of those that ended in an
        environment add up to its rewards until the last end, and the remaining rewards belong to
        the next episode.
        """
        steps = jnp.arange(1, len(done) + 1)[:, None]
        last_end = jnp.max(jnp.where(done, steps, 0), axis=0)  # 0: none ended
        ended = last_end > 0
        past = (steps <= last_end[None]).reshape(done.shape + (1,) * (rewards.ndim - 2))
        past_return = jnp.where(past, rewards, 0.0).sum(0)
        rest = jnp.where(past, 0.0, rewards).sum(0)
        any_ended = ended.reshape(ended.shape + (1,) * (rest.ndim - 1))
        finished = jnp.where(any_ended, self.running_return + past_return, 0.0)
        return EpisodeStatistics(
            running_return=jnp.where(any_ended, 0.0, self.running_return) + rest,
            running_length=jnp.where(ended, 0.0, self.running_length) + len(done) - last_end,
            returns=self.returns.add(finished.sum(0)),
            lengths=self.lengths.add(jnp.where(ended, self.running_length + last_end, 0.0).sum()),
            count=self.count + done.sum(),
        )

    def metrics(self) -> tuple[dict[str, jax.Array], "EpisodeStatistics"]:
        """Means over the episodes since the last call (without data if none), and cleared sums."""
        means = {
            "episode_return": mean(self.returns.total, self.count),
            "episode_length": mean(self.lengths.total, self.count),
            "num_episodes": self.count,
        }
        cleared = {name: jax.tree.map(jnp.zeros_like, getattr(self, name)) for name in SUMS}
        return means, dataclasses.replace(self, **cleared)


SUMS = ("returns", "lengths", "count")  # fields of EpisodeStatistics over ended episodes
