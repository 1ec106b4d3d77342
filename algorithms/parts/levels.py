"""The levels of parallel environments, and a buffer that keeps the levels with the highest scores.

A level is an `envs.Level`, what a reset draws. Before a rollout each environment gets a stock of
levels, one for each window of steps (envs/batch.py). An episode that ends in a window is followed
by one in this window's level.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

import envs
from envs.behaviour import used_for
from envs.loops import scan
from envs.warn import warn


def warn_of_one_level(env: Any, env_params: Any) -> None:
    """Warns of an environment whose resets draw nothing, so that all episodes are of one level."""
    with jax.debug_key_reuse(False):  # shapes only
        reset = lambda key: jax.tree.leaves(env.reset_env(key, env_params))
        program = jax.make_jaxpr(reset)(jax.eval_shape(lambda: jax.random.key(0)))
    if not used_for(program.jaxpr)[0]:
        warn(
            f"all resets of {env.name} are the same, so there is one level to replay: the "
            "environment setting randomize draws parameters anew, and ppo trains on one level"
        )


@struct.dataclass
class Visits:
    """Stays of environments in levels; any leading axes."""

    level: envs.Level
    slot: jax.Array  # of the level in the buffer, int32; behind its end: not from there
    total: jax.Array  # sum over the steps in the level of what scores are made of
    steps: jax.Array  # in the level so far, float32
    best: jax.Array  # highest discounted return of its ended episodes, of raw rewards; -inf: none

    @classmethod
    def create(cls, level: envs.Level, slot: jax.Array) -> "Visits":
        """Visits that have not begun; slot: int32 (...)."""
        zeros, none = jnp.zeros(slot.shape), jnp.full(slot.shape, -jnp.inf, jnp.float32)
        return cls(level, slot, total=zeros, steps=zeros, best=none)

    def then(self, stock: "Visits") -> "Visits":
        """These visits (num_envs,) and behind them a stock (windows, num_envs)."""
        return jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), self, stock)

    def add(self, visit: jax.Array, signal: jax.Array, returns: jax.Array) -> "Visits":
        """Adds a rollout to visits (n, num_envs).

        Args, all (num_steps, num_envs):
          visit: which of an environment's n visits a step belongs to, int32.
          signal: the step's part of `total`.
          returns: those of `EpisodeReturns`.
        """
        own = visit[None] == jnp.arange(len(self.slot))[:, None, None]
        return dataclasses.replace(
            self,
            total=self.total + jnp.where(own, signal, 0.0).sum(1),
            steps=self.steps + own.astype(jnp.float32).sum(1),
            best=jnp.maximum(self.best, jnp.where(own, returns, -jnp.inf).max(1)),
        )


def visit_of_steps(done: jax.Array, window: int) -> jax.Array:
    """The visits of a rollout's steps and of the step after it, int32 (num_steps + 1, num_envs).

    done: (num_steps, num_envs). window: steps, that of the environments (envs/batch.py). Visit 0 is
    to the level in which the rollout begins, and 1 + i to that of row i of the stock.
    """
    row = 1 + jnp.arange(len(done), dtype=jnp.int32) // window
    following = jax.lax.cummax(jnp.where(done, row[:, None], 0), axis=0)
    return jnp.concatenate([jnp.zeros_like(following[:1]), following])


@struct.dataclass
class EpisodeReturns:
    """Discounted returns of the running episodes so far, (num_envs,)."""

    gain: jax.Array
    discount: jax.Array  # of the next reward

    @classmethod
    def create(cls, num_envs: int) -> "EpisodeReturns":
        return cls(jnp.zeros(num_envs), jnp.ones(num_envs))

    def add(
        self, rewards: jax.Array, done: jax.Array, gamma: jax.Array | float
    ) -> tuple["EpisodeReturns", jax.Array]:
        """Adds a rollout (num_steps, num_envs), and returns at each step the return of the episode
        that ended there, or -inf."""

        def step(self, inputs):
            reward, ended = inputs
            gain = self.gain + self.discount * reward
            after = EpisodeReturns(
                gain=jnp.where(ended, 0.0, gain),
                discount=jnp.where(ended, 1.0, gamma * self.discount),
            )
            return after, jnp.where(ended, gain, -jnp.inf)

        return scan(step, self, (rewards, done))


@struct.dataclass
class LevelBuffer:
    """Levels with scores; leading axis the slots. An empty slot has score -inf."""

    level: envs.Level
    score: jax.Array
    best: jax.Array  # highest discounted return of an episode, of raw rewards
    played: jax.Array  # update in which the level was last scored, int32

    @classmethod
    def create(cls, level: envs.Level, slots: int) -> "LevelBuffer":
        """Empty slots for levels of the shapes of these (n, ...)."""
        blank = lambda x: jnp.zeros((slots, *x.shape[1:]), x.dtype)
        none = jnp.full(slots, -jnp.inf, jnp.float32)
        return cls(jax.tree.map(blank, level), none, none, jnp.zeros(slots, jnp.int32))

    @property
    def filled(self) -> jax.Array:
        """Which slots have a level, (slots,)."""
        return self.score > -jnp.inf

    def holds(self, slots: jax.Array) -> jax.Array:
        """A flag for each slot, set at these; slots behind the end set none."""
        return jnp.zeros(len(self.score), bool).at[slots].set(True, mode="drop")

    def where(self, flags: jax.Array) -> "LevelBuffer":
        """The levels with a flag, and empty slots."""
        return dataclasses.replace(self, score=jnp.where(flags, self.score, -jnp.inf))

    def gather(self, visits: Visits, flags: jax.Array) -> Visits:
        """The visits (n,) with a flag, one for each slot: the sums of all visits to its level, and
        its highest return ever."""
        slots = jnp.where(flags, visits.slot, len(self.score))
        total = lambda x: jnp.zeros(len(self.score)).at[slots].add(x, mode="drop")
        return Visits(
            level=self.level,
            slot=jnp.arange(len(self.score), dtype=jnp.int32),
            total=total(visits.total),
            steps=total(visits.steps),
            best=self.best.at[slots].max(visits.best, mode="drop"),
        )

    def insert(self, new: "LevelBuffer", held: jax.Array) -> "LevelBuffer":
        """Each new level in turn replaces the lowest score, if its own is higher.

        Args:
          new: (n, ...); levels of score -inf are not inserted.
          held: slots (slots,) that stay as they are.
        """
        # So the highest new score takes the place of the lowest old one, and so on.
        order = jnp.argsort(-new.score)[: len(held)]
        new = jax.tree.map(lambda x: x[order], new)
        lowest = jnp.where(held, jnp.inf, self.score)
        slots = jnp.argsort(lowest)[: len(order)]
        slots = jnp.where(new.score > lowest[slots], slots, len(held))  # behind the end: dropped
        return jax.tree.map(lambda x, y: x.at[slots].set(y, mode="drop"), self, new)
