"""The levels of parallel environments, and a buffer that keeps the levels with the highest scores.

A level is an `envs.Level`, what a reset draws. An environment plays one level at a time, for whole
rollouts.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

import envs
from envs.loops import scan


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
        none = jnp.full(slots, -jnp.inf)
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

    def put(self, slots: jax.Array, new: "LevelBuffer") -> "LevelBuffer":
        """Writes new levels (n, ...) into different slots (n,); slots behind the end drop them."""
        return jax.tree.map(lambda x, y: x.at[slots].set(y, mode="drop"), self, new)

    def insert(self, new: "LevelBuffer", held: jax.Array) -> "LevelBuffer":
        """Each new level in turn replaces the lowest score, if its own is higher.

        Args:
          new: (n, ...), no more than there are slots; levels of score -inf are not inserted.
          held: slots (slots,) that stay as they are.
        """
        # So the highest new score takes the place of the lowest old one, and so on.
        order = jnp.argsort(-new.score)
        new = jax.tree.map(lambda x: x[order], new)
        lowest = jnp.where(held, jnp.inf, self.score)
        slots = jnp.argsort(lowest)[: len(order)]
        return self.put(jnp.where(new.score > lowest[slots], slots, len(held)), new)


@struct.dataclass
class Play:
    """The level of each environment, and its episodes; leading axis num_envs."""

    level: envs.Level
    slot: jax.Array  # of the level in the buffer, int32; behind its end: not from there
    entering: jax.Array  # whether the environment has yet to move to the level, bool
    over: jax.Array  # whether an episode has ended in the level, bool
    total: jax.Array  # sum over the rollouts in the level of what scores are made of
    rollouts: jax.Array  # in the level so far, float32
    gain: jax.Array  # discounted return of the running episode so far, of raw rewards
    discount: jax.Array  # of its next reward
    best: jax.Array  # highest return of the level's ended episodes, ever; -inf: none

    @classmethod
    def create(
        cls, level: envs.Level, slot: Any, best: Any = -jnp.inf, entering: Any = False
    ) -> "Play":
        """Levels in which no rollout has been played; the other arguments have any shape that
        broadcasts to (num_envs,)."""
        number = len(level.shares)
        full = lambda x, dtype=jnp.float32: jnp.broadcast_to(jnp.asarray(x, dtype), (number,))
        return cls(
            level=level,
            slot=full(slot, jnp.int32),
            entering=full(entering, bool),
            over=full(False, bool),
            total=full(0),
            rollouts=full(0),
            gain=full(0),
            discount=full(1),
            best=full(best),
        )

    def add(self, rewards: jax.Array, done: jax.Array, signal: jax.Array, gamma: float) -> "Play":
        """Adds a rollout: raw rewards and done (num_steps, num_envs), and its part (num_envs,) of
        `total`."""

        def step(play, inputs):
            reward, ended = inputs
            gain = play.gain + play.discount * reward
            play = dataclasses.replace(
                play,
                gain=jnp.where(ended, 0.0, gain),
                discount=jnp.where(ended, 1.0, gamma * play.discount),
                best=jnp.where(ended, jnp.maximum(play.best, gain), play.best),
                over=play.over | ended,
            )
            return play, None

        play, _ = scan(step, self, (rewards, done))
        return dataclasses.replace(play, total=self.total + signal, rollouts=self.rollouts + 1.0)
