"""A replay buffer: a ring of arrays written in place, windows of n steps, uniform and by priority.

Transitions are drawn with replacement, which needs no sorting. No branch depends on a counter,
because under vmap it would select between two copies of the buffer. The capacity bounds all
counters, so runs may have any length.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from algorithms.parts import capacity, shards
from algorithms.parts.checks import check_choices, check_sizes
from algorithms.parts.spaces import flat_draw
from algorithms.parts.training import num_updates
from envs.warn import warn

# Dtypes of stored observations; "" keeps the environment's.
DTYPES = ("", "bool", "int8", "float16", "bfloat16", "float32")


class Transition(NamedTuple):
    """Steps of environments; leading axis a buffer's, a batch's, or (num_steps, num_envs)."""

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    done: jax.Array  # terminated or truncated
    final_observation: jax.Array  # after the action, before any restart
    action_mask: jax.Array | None = None  # (..., num_actions), of the observation
    final_action_mask: jax.Array | None = None  # of the final observation


class Window(NamedTuple):
    """Windows of up to n steps; leading axis batch_size."""

    observation: jax.Array
    action: jax.Array
    action_mask: jax.Array | None
    returns: jax.Array  # discounted rewards up to the end of the window or the episode
    discount: jax.Array  # factor of the bootstrap value, 0 if terminated
    final_observation: jax.Array  # to bootstrap from
    final_action_mask: jax.Array | None


@struct.dataclass
class Replay:
    """A buffer's state. Its rows are all environments at one time, then all at the next."""

    transitions: Any  # Transition (capacity, ...), or the items that `create` was given
    # A flat cube with capacity or more entries; 0 where no draw may start; None without priorities.
    priorities: Any
    max_priority: jax.Array  # the largest priority so far, ()
    position: jax.Array  # row of the next rollout, int32 ()
    size: jax.Array  # number of transitions, int32 ()


class Draw(NamedTuple):
    """First rows of windows, (batch_size,)."""

    # `index` hides the tuple's method of that name, which nothing uses here
    index: jax.Array  # type: ignore[assignment]
    probability: jax.Array


@dataclasses.dataclass(frozen=True)
class ReplayBuffer:
    """The sizes of a ring that holds at least buffer_size transitions.

    The capacity is rounded up to whole rollouts, so no rollout is split between the ring's end and
    its start. A smaller dtype saves memory: bool undoes gymnax's cast of MinAtar's bits.
    """

    buffer_size: int
    num_envs: int
    num_steps: int  # of a rollout
    n_step: int = 1  # steps of a window
    prioritized: bool = False
    dtype: str = ""  # dtype of observations, one of DTYPES; "": unchanged
    item_steps: int = 1  # steps of an environment in an item; sizes above count items

    @classmethod
    def of(cls, config: Any, n_step: int | None = None) -> "ReplayBuffer":
        """A buffer with the fields of a Config; `prioritized` and `buffer_dtype` may be missing."""
        return cls(
            buffer_size=config.buffer_size,
            num_envs=config.num_envs,
            num_steps=config.train_every,
            n_step=config.n_step if n_step is None else n_step,
            prioritized=getattr(config, "prioritized", False),
            dtype=getattr(config, "buffer_dtype", ""),
        )

    @property
    def capacity(self) -> int:
        rollout = self.num_envs * self.num_steps
        return -(-self.buffer_size // rollout) * rollout

    @property
    def waiting(self) -> int:
        """The number of newest transitions without a whole window yet."""
        return (self.n_step - 1) * self.num_envs

    def create(self, env: Any, env_params: Any, item: Callable | None = None) -> Replay:
        """An empty buffer for transitions of `env`.

        Args:
          env, env_params: from `envs.make`.
          item: item(transition) makes an example of what the buffer holds in place of transitions:
            a tree of arrays, such as several steps with the memory before them.

        Raises:
          ValueError: another dtype is asked for observations of bytes, which count as pixels.
        """

        def example(key):
            observation, state = env.reset_env(key, env_params)
            space, mask = env.action_space(env_params), None
            if hasattr(env, "action_mask"):
                mask = env.action_mask(state, env_params)
            if self.dtype and observation.dtype == jnp.uint8:
                raise ValueError(f'buffer_dtype={self.dtype!r}: {env.name} has bytes; "" would do')
            observation = observation.astype(self.dtype or observation.dtype)
            action = jnp.zeros(space.shape, jnp.int32 if hasattr(space, "n") else jnp.float32)
            flag, reward = jnp.zeros((), bool), jnp.zeros(())
            step = Transition(observation, action, reward, flag, flag, observation, mask, mask)
            return step if item is None else item(step)

        shapes = jax.eval_shape(example, jax.random.key(0))
        return Replay(
            transitions=jax.tree.map(
                lambda x: jnp.zeros((self.capacity, *x.shape), x.dtype), shapes
            ),
            priorities=jnp.zeros(cube_side(self.capacity) ** 3) if self.prioritized else None,
            max_priority=jnp.ones(()),
            position=jnp.zeros((), jnp.int32),
            size=jnp.zeros((), jnp.int32),
        )

    def add(self, replay: Replay, rollout: Any) -> Replay:
        """Overwrites the oldest transitions with a rollout (num_steps, num_envs, ...) of them."""
        new = self.num_steps * self.num_envs
        flat = jax.tree.map(lambda x: x.reshape(new, *x.shape[2:]), rollout)

        def write(old, x):
            x = x.astype(old.dtype)
            return jax.lax.dynamic_update_slice_in_dim(old, x, replay.position, axis=0)

        priorities = replay.priorities
        if self.prioritized:
            priorities = write(priorities, jnp.zeros(new))
            complete = jnp.arange(new) - self.waiting  # rows whose windows are full now
            older = jnp.minimum(replay.size, self.capacity - new)  # transitions that stay
            there = jnp.where(older + complete >= 0, replay.max_priority, 0.0)
            priorities = priorities.at[(replay.position + complete) % self.capacity].set(there)
        return dataclasses.replace(
            replay,
            transitions=jax.tree.map(write, replay.transitions, flat),
            priorities=priorities,
            position=(replay.position + new) % self.capacity,
            size=jnp.minimum(replay.size + new, self.capacity),
        )

    def noise(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Random numbers for `draw`, (..., batch_size); many drawn at once cost far less."""
        draw = jax.random.uniform if self.prioritized else jax.random.bits
        shape = (*shape, 3) if self.prioritized else shape
        return flat_draw(draw, key, shape)

    def draw(self, replay: Replay, noise: jax.Array) -> Draw:
        """Draws windows, uniformly or in proportion to their priorities; noise is (batch_size,
        ...)."""
        if self.prioritized:
            return draw_by_priority(replay.priorities, noise)
        number = self.num_windows(replay)
        age = (noise % number.astype(jnp.uint32)).astype(jnp.int32)
        share = jnp.broadcast_to(1.0 / number, noise.shape)
        return Draw((self.oldest(replay) + age) % self.capacity, share)

    def oldest(self, replay: Replay) -> jax.Array:
        """The row of the oldest transition, ()."""
        return jnp.where(replay.size == self.capacity, replay.position, 0)

    def after(self, index: jax.Array, steps: Any) -> jax.Array:
        """Rows of the same environments so many steps later; earlier, if negative."""
        return (index + self.num_envs * steps) % self.capacity

    def held(self, replay: Replay, index: jax.Array, steps: Any) -> jax.Array:
        """Whether the buffer still holds the rows so many steps before those at index."""
        return (index - self.oldest(replay)) % self.capacity >= self.num_envs * steps

    def num_windows(self, replay: Replay) -> jax.Array:
        """The number of windows to draw from, at least 1."""
        return jnp.maximum(replay.size - self.waiting, 1)

    def prioritize(
        self, replay: Replay, index: jax.Array, priorities: jax.Array, when: jax.Array
    ) -> Replay:
        """Sets the priorities of the windows that start at index, if `when`."""
        new = jnp.where(when, priorities, replay.priorities[index])
        largest = jnp.where(when, priorities.max(), 0.0)
        return dataclasses.replace(
            replay,
            priorities=replay.priorities.at[index].set(new),
            max_priority=jnp.maximum(replay.max_priority, largest),
        )

    def windows(self, transitions: Transition, index: jax.Array, gamma: Any) -> Window:
        """The windows of n_step transitions that start at index (batch_size,)."""
        rows = self.after(index[None], jnp.arange(self.n_step)[:, None])  # (n_step, batch_size)
        at = lambda x, i: None if x is None else x[i]
        returns, discount, last = n_step_return(
            transitions.reward[rows], transitions.terminated[rows], transitions.done[rows], gamma
        )
        return Window(
            observation=transitions.observation[index],
            action=transitions.action[index],
            action_mask=at(transitions.action_mask, index),
            returns=returns,
            discount=discount,
            final_observation=transitions.final_observation[self.after(index, last)],
            final_action_mask=at(transitions.final_action_mask, self.after(index, last)),
        )


def n_step_return(rewards, terminated, done, gamma):
    """sum_{i <= last} gamma**i r_i; gamma**(last + 1), or 0 if terminated; and last, each (batch,).

    The last step is the first one with done, or step n - 1. Arrays are (n, batch), in order of
    time. The second result is the factor of the bootstrap value.
    """
    ended_before = jnp.cumsum(done, 0) - done > 0
    last = (~ended_before).sum(0) - 1
    powers = gamma ** jnp.arange(len(rewards), dtype=jnp.float32)[:, None]
    total = jnp.where(ended_before, 0.0, powers * rewards).sum(0)
    over = (terminated & ~ended_before).any(0)
    return total, jnp.where(over, 0.0, gamma ** (last + 1.0)), last


def cube_side(capacity: int) -> int:
    """The side of the smallest cube that holds a priority for each transition."""
    side = round(capacity ** (1 / 3))
    return side if side**3 >= capacity else side + 1


def draw_by_priority(priorities: jax.Array, noise: jax.Array) -> Draw:
    """Draws with probability proportional to priorities (side**3,), never an entry of priority 0.

    Uniform noise (batch_size, 3) picks a plane of the cube by the sums of its planes, then a row of
    it, then an entry. This is as fast as a tree at 50k transitions, and needs no state. Three
    numbers reach every one of millions of entries; a single float32 would not.
    """
    side = round(len(priorities) ** (1 / 3))
    cube = priorities.reshape(side, side, side)
    rows = cube.sum(2)
    planes = rows.sum(1)
    plane, total = pick(planes[None], noise[:, 0])
    row, _ = pick(rows[plane], noise[:, 1])
    entry, _ = pick(cube[plane, row], noise[:, 2])
    index = (plane * side + row) * side + entry
    # Without any priority, before the first whole window, nothing is learned from the draw.
    share = jnp.where(total > 0.0, priorities[index] / jnp.where(total > 0.0, total, 1.0), 1.0)
    return Draw(index, share)


def pick(masses, noise):
    """Columns (batch,) drawn in proportion to masses (batch or 1, side), and the sums of the
    masses.

    A column of mass 0 is never drawn.
    """
    # A product with a triangle is a cumulative sum, and faster for many short rows. Each column
    # rounds on its own, so a sum may grow where the mass is 0. Such columns are left out.
    sums = jnp.dot(masses, jnp.tri(masses.shape[1]).T, precision="highest")  # not TF32 on a GPU
    sums = jnp.where(masses > 0.0, sums, 0.0)
    total = sums.max(-1)
    target = jnp.minimum(noise * total, jnp.nextafter(total, 0.0))
    columns = jnp.arange(masses.shape[1])
    first = jnp.where(sums > target[:, None], columns, masses.shape[1]).min(-1)
    return first, total


def check_replay(config: Any, env: Any, env_params: Any) -> None:
    """Refuses impossible sizes of rounds, and a replay buffer that cannot work or is too large.

    Args:
      config: its sizes of the buffer, of rounds and of the run are used, and its `buffer_dtype` if
        it has one. The buffer must fit the device's memory.
      env, env_params: from `envs.make`.
    """
    check_rounds(config)
    buffer = ReplayBuffer.of(config)
    if buffer.waiting >= config.total_timesteps:
        raise ValueError(
            f"n_step={config.n_step} steps of num_envs={config.num_envs} leave nothing of "
            f"total_timesteps={config.total_timesteps} to learn in; "
            f"{max(1, config.total_timesteps // (10 * config.num_envs))} would do"
        )
    window = config.n_step * config.num_envs
    if buffer.capacity < window:
        raise ValueError(
            f"buffer_size={config.buffer_size} does not hold n_step={config.n_step} steps of "
            f"num_envs={config.num_envs}; {window} would do"
        )
    check_fits(config, buffer, jax.eval_shape(lambda: buffer.create(env, env_params)))


def check_rounds(config: Any) -> None:
    """Refuses impossible sizes of rounds, and a run that ends before it learns."""
    positive = ["train_every", "updates_per_step", "buffer_size", "batch_size"]
    positive += ["n_step"] * hasattr(config, "n_step")
    check_sizes(config, *positive, not_negative=("learning_starts",))
    if hasattr(config, "buffer_dtype"):
        check_choices(config, buffer_dtype=DTYPES)
    round_steps = config.num_envs * config.train_every
    rounds = num_updates(config, round_steps) - config.learning_starts // round_steps
    if config.learning_starts >= config.total_timesteps:
        raise ValueError(
            f"learning_starts={config.learning_starts} leaves nothing of total_timesteps="
            f"{config.total_timesteps} to learn in; {config.total_timesteps // 10} would do"
        )
    steps = rounds * config.updates_per_step
    if getattr(config, "target_every", 0) > max(steps, 1):
        warn(
            f"target_every={config.target_every} is more than the run's {steps} gradient steps, so "
            f"the target network never moves; {max(steps // 100, 1)} would do"
        )


def check_fits(config: Any, buffer: ReplayBuffer, shapes: Replay) -> None:
    """Refuses a buffer of these shapes that is larger than the devices' memory."""
    needed = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))
    available = shards.memory(capacity.device_capacity())
    if needed > available:
        fits = int(0.8 * available / needed * buffer.capacity * buffer.item_steps)
        raise ValueError(
            f"buffer_size={config.buffer_size} takes {needed / 1e9:.1f} GB of the device's "
            f"{available / 1e9:.1f} GB; {fits} would fit"
        )


def check_holds(config: Any, steps: int, what: str) -> None:
    """Refuses a run or a buffer that is shorter than so many steps of each environment: `what`."""
    for name in ("total_timesteps", "buffer_size"):
        size, least = getattr(config, name), steps * config.num_envs
        if size < least:
            raise ValueError(
                f"{name}={size} is less than {what} in each of num_envs={config.num_envs}; "
                f"{least} would do"
            )
