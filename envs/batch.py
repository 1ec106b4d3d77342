"""Many copies of one environment stepped at once, with a fast auto-reset."""

import dataclasses
import functools
import math
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs.episodes import EpisodeStatistics

START_WINDOW = 8  # steps, unless the environment has a `start_window`


@struct.dataclass
class BatchState:
    """The state of `num_envs` environments."""

    env: Any  # the environments' own states, leading axis num_envs
    starts: Any  # the stock: (observation, state), leading axes (depth, num_envs), or None
    steps: jax.Array  # steps since the last refill, int32 ()
    metrics: Any = None  # of environments that report some, see envs/reports.py
    cut: jax.Array | None = None  # steps up to the truncation of `stagger`, int32 (num_envs,)
    before: Any = None  # steps up to the last refill, int32 (), if rewards are shaped

    def without_stock(self) -> "BatchState":
        """The state between two rollouts, without the stock; call `refill` before a step."""
        return dataclasses.replace(self, starts=None)


ENDLESS = 2**30  # steps of a limit that is none


def limit_name(env: Any) -> str:
    """The name of the parameter with the time limit."""
    return getattr(env, "limit_name", "max_steps_in_episode")


def limit_of(env: Any, params: Any) -> Any:
    """The time limit in the parameters, in steps; None without one.

    An environment whose limit is in another unit has `limit_unit(params)`, a step's length in it.
    """
    limit, unit = getattr(params, limit_name(env), None), getattr(env, "limit_unit", None)
    if limit is None or unit is None:
        return limit
    values = limit, unit(params)
    numbers: Any = jnp if any(isinstance(x, jax.core.Tracer) for x in values) else np
    with np.errstate(divide="ignore", invalid="ignore"):
        return numbers.round(numbers.divide(*values))


def with_limit(env: Any, params: Any, steps: int, longest: Collection[Any] = ()) -> Any:
    """The parameters with a time limit of so many steps in them.

    Args:
      longest: parameters with other units of the limit, of which the longest counts.
    """
    name, unit = limit_name(env), getattr(env, "limit_unit", lambda params: 1)
    own = getattr(params, name)
    kind = own.dtype.type if isinstance(own, jax.Array) else type(own)
    return params.replace(**{name: kind(steps * max(map(unit, (params, *longest))))})


def transition(env: Any, key: jax.Array, state: Any, action: jax.Array, params: Any):
    """One step of one environment without any reset.

    Returns observation, state, reward, terminated, truncated, info. Where both flags would be True,
    terminated wins. NaN and infinity in the observation of a dead agent become 0: even a weight of
    0 would not keep them out of a loss.
    """
    observation, state, reward, terminated, info = env.step_env(key, state, action, params)
    if "alive" in info and hasattr(env, "num_agents"):
        known = _like(info["alive"], observation) | jnp.isfinite(observation)
        observation = jnp.where(known, observation, jnp.zeros_like(observation))
    truncated = env.is_truncated(state, params) & ~terminated
    return observation, state, reward, terminated, truncated, info


class Batch:
    """`num_envs` environments behind gymnax's six values, all with a leading axis.

    gymnax resets every environment at every step and throws nearly all of that work away. Here each
    environment has a stock of start states. `refill` draws a new stock once a rollout, in one
    batch. It holds num_steps / window start states, and each of them serves for `window` steps.

    Every start state is an exact, independent draw of `reset_env`, and two environments never share
    one. The price: if two episodes of an environment end within one window, both restart from the
    same state. Episodes shorter than the window may repeat a start up to `window` times; a window
    of 1 repeats none. Longer windows pay where a start state is large or slow to draw.

    Args:
      env: an environment of `make`.
      num_envs: number of environments.
      num_steps: steps between two calls of `refill`.
      window: by default the environment's `start_window`, or 8.
      stagger: whether each environment truncates one episode, the one that runs at a random step up
        to the time limit. Otherwise environments whose episodes have equal lengths stay at the same
        step of them, and a rollout covers only a part of an episode. Nothing is truncated without a
        time limit.
    """

    def __init__(
        self,
        env: Any,
        num_envs: int,
        num_steps: int = 1,
        window: int | None = None,
        stagger: bool = False,
    ):
        default: int = getattr(env, "start_window", START_WINDOW)
        self.env, self.num_envs = env, num_envs
        self.window = window or default
        self.depth = math.ceil(num_steps / self.window)  # windows of a stock of start states
        self.stagger = stagger

    def reset(self, key: jax.Array, params: Any) -> tuple[Any, BatchState]:
        """Starts every environment, which takes starts from the stock; `refill` comes next.

        Returns observations (num_envs, ...) and the state.
        """
        if self.stagger:
            key, cut = self._cut(key, params)
        starts = self.draw(key, params)
        observation, first = jax.tree.map(lambda x: x[0], starts)
        state = BatchState(first, starts, jnp.zeros((), jnp.int32))
        if self.stagger:
            state = dataclasses.replace(state, cut=cut)
        return observation, state

    def _cut(self, key: jax.Array, params: Any) -> tuple[jax.Array, jax.Array | None]:
        """A key for the start states, and the first `cut`; None without a time limit."""
        frames = [limit_of(self.env, params), getattr(self.env, "max_steps", None)]
        repeat = getattr(self.env, "action_repeat", 1)
        limits = [-(-limit // repeat) for limit in frames if limit is not None]
        if not limits:
            return key, None
        key, cut_key = jax.random.split(key)
        longest = jnp.int32(functools.reduce(jnp.minimum, limits, jnp.array(ENDLESS)))
        return key, jax.random.randint(cut_key, (self.num_envs,), 1, longest + 1)

    def episodes(self, shape: tuple[int, ...] = ()) -> EpisodeStatistics:
        """Statistics of episodes, of which there are none yet; `shape` is that of one reward."""
        return EpisodeStatistics.create(self.num_envs, shape)

    def refill(self, key: jax.Array, state: BatchState, params: Any) -> BatchState:
        """Draws new start states; call it once every `num_steps` steps."""
        starts, steps = self.draw(key, params), jnp.zeros((), jnp.int32)
        return dataclasses.replace(state, starts=starts, steps=steps)

    def step(self, key: jax.Array, state: BatchState, action: jax.Array, params: Any):
        """Steps every environment and restarts those whose episode ended.

        Returns observation, state, reward, terminated, truncated, info, each with a leading axis
        num_envs. `info["final_observation"]` is the observation before a restart. So are
        `info["final_action_mask"]` and `info["final_world_state"]` where the environment has an
        `action_mask` and a `world_state`.
        """
        keys = jax.random.split(key, self.num_envs)
        step = jax.vmap(lambda k, s, a: transition(self.env, k, s, a, params))
        final, final_state, reward, terminated, truncated, info = step(keys, state.env, action)
        if self.stagger and state.cut is not None:
            state = dataclasses.replace(state, cut=state.cut - 1)
            truncated |= (state.cut == 0) & ~terminated
        done = terminated | truncated
        slot = (state.steps // self.window) % self.depth
        start = jax.tree.map(lambda x: x[slot], state.starts)
        observation, env_state = choose(done, start, (final, final_state))
        info = {**info, "final_observation": final}
        for name in ("action_mask", "world_state"):
            if hasattr(self.env, name):
                info[f"final_{name}"] = self._view(name, final_state, params)
        state = dataclasses.replace(state, env=env_state, steps=state.steps + 1)
        return observation, state, reward, terminated, truncated, info

    def action_mask(self, state: BatchState, params: Any) -> jax.Array | None:
        """Allowed actions, (num_envs, ..., num_actions); None if all are always allowed."""
        return self._view("action_mask", state.env, params)

    def world_state(self, state: BatchState, params: Any) -> jax.Array | None:
        """The input of a central critic, (num_envs, ...); None if the environment has none."""
        return self._view("world_state", state.env, params)

    def _view(self, name: str, state: Any, params: Any) -> Any:
        view = getattr(self.env, name, None)
        return view and jax.vmap(view, (0, None))(state, params)

    def draw(self, key: jax.Array, params: Any) -> Any:
        """A stock of start states."""
        keys = jax.random.split(key, self.depth * self.num_envs)  # flat: compiles much faster
        starts = jax.vmap(self.env.reset_env, (0, None))(keys, params)
        return jax.tree.map(lambda x: x.reshape(self.depth, self.num_envs, *x.shape[1:]), starts)


def choose(flags: jax.Array, these: Any, others: Any) -> Any:
    """The arrays of one tree where a flag is set, else those of the other. The flags are for the
    leading axes."""
    wide = lambda x: flags.reshape(flags.shape + (1,) * (x.ndim - flags.ndim))
    return jax.tree.map(lambda x, y: jnp.where(wide(y), x, y), these, others)


def _like(flag: jax.Array, x: jax.Array) -> jax.Array:
    """A flag (n,) with as many axes as x (n, ...)."""
    return flag.reshape(flag.shape + (1,) * (x.ndim - 1))
