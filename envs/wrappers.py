"""Wrappers around one environment, which stack. `envs.make` applies them by its settings."""

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs import levels
from envs.batch import limit_name, limit_of, with_limit
from envs.behaviour import of_user
from envs.gymnax import Wrapper, spaces
from envs.interface import is_bounded
from envs.metrics import kinds
from envs.shaping import earns_after_leaving, shapes

LARGEST = 2**31 - 1  # counts are int32 inside the program


def _whole(name: str, value: Any, what: str) -> int:
    """A setting that is a count."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not value >= 1 or value > LARGEST or value != int(value):
        limit = "1 or more" if not number or value <= LARGEST else f"up to {LARGEST}"
        raise ValueError(f"{name}={value}: give a whole number of {what}, {limit}")
    return int(value)


class WithState(Wrapper):
    """Keeps extra state beside that of the environment inside, which is `state.inner`."""

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if name in ("action_mask", "world_state"):  # both read the state of the environment inside
            return lambda state, params: value(state.inner, params)
        return value

    def is_truncated(self, state: Any, params: Any) -> jax.Array:
        return self.env.is_truncated(state.inner, params)

    def is_terminated(self, state: Any, params: Any) -> jax.Array:
        return self.env.is_terminated(state.inner, params)

    def inner_state(self, state: Any) -> Any:
        """The state of the environment inside (for drawing)."""
        return state.inner


@struct.dataclass
class TimeLimitState:
    """The state of the environment inside and the steps taken in this episode, int32 ()."""

    inner: Any
    steps: jax.Array


class TimeLimit(WithState):
    """Truncates any environment after `max_steps` steps.

    A truncation by the environment itself stays one.
    """

    ends = True

    def __init__(self, env: Any, max_steps: int):
        super().__init__(env)
        self.max_steps = _whole("max_steps", max_steps, "steps")

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, TimeLimitState]:
        observation, inner = self.env.reset_env(key, params)
        return observation, TimeLimitState(inner, jnp.zeros((), jnp.int32))

    def step_env(self, key, state, action, params):
        observation, inner, reward, terminated, info = self.env.step_env(
            key, state.inner, action, params
        )
        return observation, TimeLimitState(inner, state.steps + 1), reward, terminated, info

    def is_truncated(self, state: TimeLimitState, params: Any) -> jax.Array:
        return super().is_truncated(state, params) | (state.steps >= self.max_steps)


@struct.dataclass
class LeavingState:
    """The state of the environment inside, and which agents are there, bool (num_agents,)."""

    inner: Any
    alive: jax.Array


class Leaving(WithState):
    """An agent earns nothing after it has left, where rewards are each agent's own.

    Learning ends its return there, so returns that are reported must end there too.
    """

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, LeavingState]:
        observation, inner = self.env.reset_env(key, params)
        return observation, LeavingState(inner, jnp.ones(self.env.num_agents, bool))

    def step_env(self, key, state, action, params):
        observation, inner, reward, *rest, info = self.env.step_env(
            key, state.inner, action, params
        )
        earned = lambda x: jnp.where(state.alive, x, jnp.zeros_like(x))
        if shapes(self.env):
            info = {**info, "shaped_reward": earned(info["shaped_reward"])}
        return observation, LeavingState(inner, info["alive"]), earned(reward), *rest, info


def agents_leave(env: Any, params: Any) -> bool:
    """Whether agents with rewards of their own may leave an episode before its end.

    An adapter says so by `agents_leave`. A user's own environment is traced.
    """
    if not hasattr(env, "num_agents") or earns_after_leaving(env):
        return False
    if not of_user(env):
        return getattr(env, "agents_leave", False)

    def step(key):
        _, state = env.reset_env(key, params)
        space = env.action_space(params)
        action = jnp.zeros((env.num_agents, *space.shape), space.dtype)
        return env.step_env(key, state, action, params)[2:]

    try:
        with jax.debug_key_reuse(False):  # shapes only
            key = jax.eval_shape(lambda: jax.random.key(0))
            reward, _, info = jax.eval_shape(step, key)
        alive = info["alive"]
    except Exception:  # without, or an error of its own code, which `check_interface` tells of
        return False
    return alive.dtype == bool and alive.shape == reward.shape == (env.num_agents,)


class NanReward(Wrapper):
    """Replaces rewards that are NaN or infinite, and counts them in the metric `nan_rewards`."""

    def __init__(self, env: Any, nan_reward: float):
        super().__init__(env)
        number = isinstance(nan_reward, int | float) and not isinstance(nan_reward, bool)
        if not number or not np.isfinite(nan_reward):
            raise ValueError(f"nan_reward={nan_reward}: give a number, as 0")
        self.nan_reward = float(nan_reward)

    @property
    def metrics(self) -> dict[str, str]:
        return {**kinds(self.env), "nan_rewards": "sum"}

    def step_env(self, key, state, action, params):
        *rest, reward, terminated, info = self.env.step_env(key, state, action, params)
        known = lambda x: jnp.where(jnp.isfinite(x), x, self.nan_reward)
        if shapes(self.env):
            info = {**info, "shaped_reward": known(info["shaped_reward"])}
        lost = jnp.sum(~jnp.isfinite(reward), dtype=jnp.float32)
        info = {**info, "metrics": {**info.get("metrics", {}), "nan_rewards": lost}}
        return *rest, known(reward), terminated, info


def is_limited(env: Any) -> bool:
    """Whether `max_steps` is set."""
    while isinstance(env, Wrapper) and not isinstance(env, TimeLimit):
        env = env.env
    return isinstance(env, TimeLimit)


class DoneIncludesLimit(WithState):
    """Counts an end at the time limit as a truncation, where the flag of `step_env` includes it.

    gymnax 0.0.x had this one flag. An end of the task in the very last step counts as a truncation
    too: the flag cannot tell.
    """

    limit_has_meaning = True

    def __init__(self, env: Any, params: Any):
        super().__init__(env)
        if limit_of(env, params) is None and not is_limited(env):
            raise ValueError(
                f"done_includes_limit=true: {env.name} has no {limit_name(env)} in its parameters; "
                "give its time limit as max_steps too"
            )

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, TimeLimitState]:
        observation, inner = self.env.reset_env(key, params)
        return observation, TimeLimitState(inner, jnp.zeros((), jnp.int32))

    def step_env(self, key, state, action, params):
        observation, inner, reward, done, info = self.env.step_env(key, state.inner, action, params)
        state = TimeLimitState(inner, state.steps + 1)
        return observation, state, reward, done & ~self.is_truncated(state, params), info

    def is_terminated(self, state: TimeLimitState, params: Any) -> jax.Array:
        return super().is_terminated(state, params) & ~self.is_truncated(state, params)

    def is_truncated(self, state: TimeLimitState, params: Any) -> jax.Array:
        truncated, limit = super().is_truncated(state, params), limit_of(self.env, params)
        return truncated if limit is None else truncated | (state.steps >= limit)


class LimitTerminates(Wrapper):
    """Makes the time limit a rule of the task: reaching it terminates, and nothing is bootstrapped.

    A truncated episode is bootstrapped, because it would have gone on.
    """

    limit_has_meaning = True

    def step_env(self, key, state, action, params):
        observation, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        terminated = terminated | self.env.is_truncated(state, params)
        return observation, state, reward, terminated, info

    def is_terminated(self, state: Any, params: Any) -> jax.Array:
        return self.env.is_terminated(state, params) | self.env.is_truncated(state, params)

    def is_truncated(self, state: Any, params: Any) -> jax.Array:
        return jnp.zeros((), bool)


@struct.dataclass
class FrameStackState:
    """The state of the environment inside and the last observations, the newest at the end."""

    inner: Any
    frames: jax.Array  # (..., size of an observation's last axis * number of frames)


class FrameStack(WithState):
    """Shows the last `frame_stack` observations side by side along their last axis.

    An image thus has more channels. An episode begins with copies of its first observation.
    """

    def __init__(self, env: Any, params: Any, frame_stack: int):
        super().__init__(env)
        self.number = _whole("frame_stack", frame_stack, "observations")
        space = env.observation_space(params)
        if not (shape := getattr(space, "shape", None)):
            raise ValueError(
                f"frame_stack={frame_stack} needs observations with an axis; {env.name} has {space}"
            )
        self.size = shape[-1]

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, FrameStackState]:
        observation, inner = self.env.reset_env(key, params)
        frames = self._repeated(observation)
        return frames, FrameStackState(inner, frames)

    def step_env(self, key, state, action, params):
        observation, inner, *rest = self.env.step_env(key, state.inner, action, params)
        frames = jnp.concatenate([state.frames[..., self.size :], observation], axis=-1)
        return frames, FrameStackState(inner, frames), *rest

    def observation_space(self, params: Any) -> Any:
        space = self.env.observation_space(params)
        low, high = (
            x if jnp.ndim(x) == 0 else self._repeated(jnp.broadcast_to(x, space.shape))
            for x in (space.low, space.high)
        )
        shape = (*space.shape[:-1], self.number * self.size)
        return spaces.Box(low, high, shape, space.dtype)

    def _repeated(self, x: jax.Array) -> jax.Array:
        return jnp.concatenate([x] * self.number, axis=-1)


def limit_time(
    env: Any, params: Any, max_steps: int, fixed: Collection[str] = ()
) -> tuple[TimeLimit, Any]:
    """A time limit that also lifts a shorter one in the environment's parameters, unless this is
    among the `fixed` ones, which the user set."""
    limited = TimeLimit(env, max_steps)
    corners: list[Any] = getattr(env, "drawn_corners", lambda params: [])(params)
    limits = [limit_of(env, one) for one in (params, *corners)]  # its unit may be drawn
    if limits[0] is not None and min(limits) < max_steps and limit_name(env) not in fixed:
        params = with_limit(env, params, max_steps, corners)
    return limited, params


class ActionRepeat(Wrapper):
    """Repeats each action for `action_repeat` frames, or up to the end of the episode.

    A step returns the sum of the frames' rewards, and of metrics that are sums. Observation, state,
    `terminated` and `info` are those of its last frame: frames after the end are not played. The
    environment inside counts frames, and so does its time limit. Wrappers outside count actions.
    """

    def __init__(self, env: Any, action_repeat: int):
        super().__init__(env)
        self.action_repeat = _whole("action_repeat", action_repeat, "frames")
        self._sums = [name for name, kind in kinds(env).items() if kind == "sum"]

    def step_env(self, key, state, action, params):
        keys = jax.random.split(key, self.action_repeat)

        def frame(step, key):
            _, state, reward, terminated, before = step
            *after, info = self.env.step_env(key, state, action, params)
            over = terminated | self.env.is_truncated(state, params)
            info = self._summed(before, self._floats(info))
            after = (*after[:2], reward + after[2], *after[3:], info)
            return jax.tree.map(lambda old, new: jnp.where(over, old, new), step, after), None

        *first, info = self.env.step_env(keys[0], state, action, params)
        return jax.lax.scan(frame, (*first, self._floats(info)), keys[1:])[0]

    def _floats(self, info: dict[str, Any]) -> dict[str, Any]:
        """The info with summed entries as float32, because a bool or a small integer cannot hold a
        sum."""
        of = lambda values, names: values | {n: jnp.asarray(values[n], jnp.float32) for n in names}
        if self._sums:
            info = {**info, "metrics": of(info["metrics"], self._sums)}
        return of(info, ["shaped_reward"]) if shapes(self.env) else info

    def _summed(self, before: dict[str, Any], info: dict[str, Any]) -> dict[str, Any]:
        """Sums over the frames: metrics that are sums over an episode, and shaped rewards."""
        added = lambda old, new, names: new | {name: old[name] + new[name] for name in names}
        if self._sums:
            info = {**info, "metrics": added(before["metrics"], info["metrics"], self._sums)}
        return added(before, info, ["shaped_reward"]) if shapes(self.env) else info


class ObserveEntries(Wrapper):
    """Keeps some entries of a flat observation, in the order given, and hides the others."""

    def __init__(self, env: Any, params: Any, observe: tuple[int, ...] | int):
        indices = tuple(observe) if isinstance(observe, tuple | list) else (observe,)
        space = env.observation_space(params)
        if len(getattr(space, "shape", None) or ()) != 1:
            raise ValueError(f"observe={observe} needs flat observations; {env.name} has {space}")
        size = space.shape[0]
        for index in indices or (None,):
            if type(index) is not int or not 0 <= index < size:
                raise ValueError(
                    f"observe={observe}: give indices from 0 to {size - 1}, as {env.name} has "
                    f"observations of {size} numbers"
                )
        super().__init__(env)
        self.indices = indices

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        observation, state = self.env.reset_env(key, params)
        return self._keep(observation), state

    def step_env(self, key, state, action, params):
        observation, *rest = self.env.step_env(key, state, action, params)
        return self._keep(observation), *rest

    def observation_space(self, params: Any) -> Any:
        space = self.env.observation_space(params)
        low, high = (self._keep(jnp.broadcast_to(x, space.shape)) for x in (space.low, space.high))
        return spaces.Box(low, high, low.shape, space.dtype)

    def _keep(self, x: jax.Array) -> jax.Array:
        return x[..., jnp.array(self.indices)]


class _Blurred(Wrapper):
    """Changes float observations at random. `frame_stack` stacks what it shows."""

    def __init__(self, env: Any, params: Any, size: Any):
        super().__init__(env)
        name = self.setting
        if isinstance(size, bool) or not isinstance(size, int | float) or not 0 <= size < self.end:
            limit = " and less than 1" if self.end == 1 else ""
            raise ValueError(f"{name}={size}: give a number, at least 0{limit}")
        space = env.observation_space(params)
        if not jnp.issubdtype(getattr(space, "dtype", bool), jnp.floating):
            raise ValueError(f"{name}={size} needs observations of floats; {env.name} has {space}")
        self.size = float(size)

    def reset_env(self, key: jax.Array | levels.Level, params: Any) -> tuple[jax.Array, Any]:
        key, own_key = levels.split(key)
        observation, state = self.env.reset_env(key, params)
        return self._blur(own_key, observation), state

    def step_env(self, key, state, action, params):
        key, own_key = jax.random.split(key)
        observation, *rest = self.env.step_env(key, state, action, params)
        return self._blur(own_key, observation), *rest


class Flicker(_Blurred):
    """Shows zeros in place of an observation with this probability (Hausknecht and Stone 2015,
    arXiv:1507.06527), independently for each agent."""

    setting, end = "flicker", 1.0

    def _blur(self, key, x):
        axes = 1 if hasattr(self.env, "num_agents") else 0
        shape = x.shape[:axes] + (1,) * (x.ndim - axes)
        return jnp.where(jax.random.bernoulli(key, self.size, shape), 0.0, x).astype(x.dtype)


class Noise(_Blurred):
    """Adds normal noise of this standard deviation to each number of an observation."""

    setting, end = "noise", float("inf")

    def _blur(self, key, x):
        return x + self.size * jax.random.normal(key, x.shape, x.dtype)

    def observation_space(self, params: Any) -> Any:
        space = self.env.observation_space(params)
        return spaces.Box(-jnp.inf, jnp.inf, space.shape, space.dtype)


class UnmaskedActions(Wrapper):
    """Hides the action mask, for comparison with algorithms that do not take one."""

    def __getattr__(self, name: str) -> Any:
        if name == "action_mask":
            raise AttributeError(name)
        return super().__getattr__(name)

    @property
    def ends(self) -> bool:
        """Only a time limit ends an episode for sure: forbidden actions may change nothing."""
        return is_limited(self.env)


class StartWindow(Wrapper):
    """Sets for how many steps of `envs.batch` one start state serves."""

    def __init__(self, env: Any, start_window: int):
        super().__init__(env)
        self.start_window = _whole("start_window", start_window, "steps")


class OneHotObservation(Wrapper):
    """Turns the integer observation of a Discrete space into a one-hot float32 vector (n,)."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        observation, state = self.env.reset_env(key, params)
        return self._encode(observation, params), state

    def step_env(self, key, state, action, params):
        observation, *rest = self.env.step_env(key, state, action, params)
        return self._encode(observation, params), *rest

    def observation_space(self, params: Any) -> Any:
        return spaces.Box(0.0, 1.0, (self.env.observation_space(params).n,), jnp.float32)

    def _encode(self, observation: jax.Array, params: Any) -> jax.Array:
        return jax.nn.one_hot(observation, self.env.observation_space(params).n)


class _BoxAction(Wrapper):
    def __init__(self, env: Any, params: Any):
        space = env.action_space(params)
        if hasattr(space, "n"):
            raise ValueError(
                f"{type(self).__name__} needs continuous actions; {env.name} has {space}"
            )
        super().__init__(env)


class ClipAction(_BoxAction):
    """Clips actions to the bounds of their Box."""

    def step_env(self, key, state, action, params):
        space = self.env.action_space(params)
        return self.env.step_env(key, state, jnp.clip(action, space.low, space.high), params)


class RescaleAction(_BoxAction):
    """Takes actions in [-1, 1] and maps them linearly to the bounds of the Box inside."""

    def __init__(self, env: Any, params: Any):
        super().__init__(env, params)
        space = env.action_space(params)
        if not is_bounded(space):
            raise ValueError(f"rescale_action needs actions with bounds; {env.name} has {space}")

    def step_env(self, key, state, action, params):
        space = self.env.action_space(params)
        action = space.low + (space.high - space.low) * (jnp.clip(action, -1.0, 1.0) + 1.0) / 2.0
        return self.env.step_env(key, state, action, params)

    def action_space(self, params: Any) -> Any:
        return spaces.Box(-1.0, 1.0, self.env.action_space(params).shape, jnp.float32)


ENTRIES = {"observation", "state"}


@struct.dataclass
class EntriesState:
    """The state of the environment inside, and what critics see at its last observation."""

    inner: Any
    world: jax.Array


def has_entries(env: Any, params: Any) -> bool:
    """Whether observations are dictionaries of an `observation` and a `state`."""
    space = env.observation_space(params)
    return isinstance(space, spaces.Dict) and set(space.spaces) == ENTRIES


class Entries(WithState):
    """Observations {"observation": ..., "state": ...}: policies see the first entry, and
    `world_state` is the second."""

    def reset_env(self, key, params):
        entries, inner = self.env.reset_env(key, params)
        return entries["observation"], EntriesState(inner=inner, world=entries["state"])

    def step_env(self, key, state, action, params):
        entries, inner, *rest = self.env.step_env(key, state.inner, action, params)
        return entries["observation"], EntriesState(inner=inner, world=entries["state"]), *rest

    def world_state(self, state, params):
        return state.world

    def observation_space(self, params):
        return self.env.observation_space(params).spaces["observation"]


class WithWorldState(Wrapper):
    """Observations (size,), followed by the world state: what critics see that see more."""

    def reset_env(self, key, params):
        observation, state = self.env.reset_env(key, params)
        return self._with_more(observation, state, params), state

    def step_env(self, key, state, action, params):
        observation, state, *rest = self.env.step_env(key, state, action, params)
        return self._with_more(observation, state, params), state, *rest

    def observation_space(self, params):
        observation, _ = jax.eval_shape(self.reset_env, jax.eval_shape(jax.random.key, 0), params)
        box = type(self.env.observation_space(params))  # a copy needs no gymnax for it
        return box(-jnp.inf, jnp.inf, observation.shape)

    def actor_space(self, params):
        return self.env.observation_space(params)

    def _with_more(self, observation, state, params):
        more = jnp.ravel(self.env.world_state(state, params))
        return jnp.concatenate([x.astype(jnp.float32) for x in (observation, more)])
