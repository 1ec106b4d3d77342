"""Parameters of an environment drawn anew for every episode (domain randomisation).

    env, env_params = envs.make("CartPole-v1", randomize="length:uniform:0.25:1/gravity:log:5:20")

Every episode draws its own values, from a uniform distribution or from one that is uniform in the
logarithm, and keeps them to its end. All other parameters may be traced and batched as before.
"""

import functools
import itertools
import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs import shaping, suggest
from envs.gymnax import parameter_names, spaces
from envs.levels import Level, reset_key
from envs.wrappers import WithState

# Parameters that gymnax computes from others when it defines them, by their environment: the names
# of the others, and how.
FOLLOWERS: dict[str, dict[str, tuple[tuple[str, ...], Callable[[Any], Any]]]] = {
    "CartPole-v1": {
        "total_mass": (("masscart", "masspole"), lambda p: p.masscart + p.masspole),
        "polemass_length": (("masspole", "length"), lambda p: p.masspole * p.length),
    },
    "Acrobot-v1": {
        "link_com_pos_1": (("link_length_1",), lambda p: 0.5 * p.link_length_1),
        "link_com_pos_2": (("link_length_2",), lambda p: 0.5 * p.link_length_2),
    },
}
CORNERS = 8  # ranges of which all combinations of ends are looked at
EXAMPLE = "length:uniform:0.25:1/gravity:log:5:20"


def followers(
    name: str, changed: Collection[str], fixed: Collection[str]
) -> dict[str, Callable[[Any], Any]]:
    """How parameters of the environment `name` follow from others, where some of these `changed`,
    without those that are `fixed`."""
    return {
        follower: function
        for follower, (others, function) in FOLLOWERS.get(name, {}).items()
        if follower not in fixed and set(changed) & set(others)
    }


class Range(NamedTuple):
    """The range that one parameter is drawn from."""

    name: str
    is_log: bool
    low: float
    high: float

    def value(self, share: jax.Array) -> jax.Array:
        """The value at a share of the range, in [0, 1]."""
        if self.is_log:
            return self.low * (self.high / self.low) ** share
        return self.low + (self.high - self.low) * share

    def share(self, value: float) -> float:
        """Where in the range a value is; below 0 or above 1 outside of it. In a log range 0 gives
        -inf, and negative values give NaN."""
        if self.is_log and value <= 0:
            return -math.inf if value == 0 else math.nan
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def ranges(label: str, params: Any, words: Any, fixed: Collection[str]) -> tuple[Range, ...]:
    """Reads the setting `randomize`.

    Args:
      label: names the environment in errors.
      params: its parameters.
      words: ranges with / between them.
      fixed: parameters that the user set.

    Raises:
      ValueError: a word is no range, or not of a float that is free.
    """
    found: dict[str, Range] = {}
    for word in str(words).split("/"):
        name, *rest = word.split(":")
        if len(rest) != 3 or rest[0] not in ("uniform", "log"):
            raise ValueError(f"randomize={words}: {word!r} is no range; give {EXAMPLE}")
        if name in found:
            raise ValueError(f"randomize={words}: {name} has two ranges")
        if name in fixed:
            raise ValueError(f"randomize={words}: {name} is set as well; leave one of the two out")
        _check_float(label, params, name)
        try:
            low, high = map(float, rest[1:])
        except ValueError:
            raise ValueError(f"randomize={words}: {word!r}: give two numbers at the end") from None
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"randomize={words}: {word!r}: the second number must be the larger")
        if rest[0] == "log" and low <= 0:
            raise ValueError(f"randomize={words}: {word!r}: log needs numbers above 0")
        if not _fits(rest[0] == "log", low, high):
            raise ValueError(f"randomize={words}: {word!r}: the range does not fit into float32")
        found[name] = Range(name, rest[0] == "log", low, high)
    return tuple(found.values())


def _fits(is_log: bool, low: float, high: float) -> bool:
    """Whether float32 holds all that `Range.value` computes."""
    numbers = (low, high, high / low) if is_log else (low, high, high - low)
    least = float(np.finfo(np.float32).tiny) if is_log else 0.0
    return all(least <= abs(x) <= float(np.finfo(np.float32).max) for x in numbers)


def _check_float(label: str, params: Any, name: str) -> None:
    names = parameter_names(params)
    floats = [known for known in names if _is_float(getattr(params, known))]
    if not floats:
        raise ValueError(f"randomize: {label} has no parameter that is one float")
    if name not in names:
        raise ValueError(suggest.unknown(f"parameter of {label} in randomize:", name, floats))
    if name not in floats:
        raise ValueError(
            f"randomize: {name} of {label} is no float; those that are: {', '.join(floats)}"
        )


def _is_float(x: Any) -> bool:
    """Whether it is one float, and no tree (as the state of an opponent) or None."""
    is_number = isinstance(x, float | np.generic | np.ndarray | jax.Array)
    return is_number and np.shape(x) == () and np.issubdtype(np.result_type(x), np.floating)


@struct.dataclass
class RandomizedState:
    """The state of the environment inside, and where in their ranges this episode's parameters
    are, float32 (number of ranges,) in [0, 1]."""

    inner: Any
    shares: jax.Array


class Randomized(WithState):
    """Draws parameters anew for every episode.

    Args:
      ranges: of `ranges`.
      fixed: parameters that the user set, which follow no other.
      observe: whether a flat observation ends with the shares, scaled to [-1, 1].
    """

    start_window = 1  # a start state that serves twice would repeat its parameters
    pinned: jax.Array | None = None  # shares of all episodes, see `pinned`

    def __init__(
        self,
        env: Any,
        params: Any,
        ranges: tuple[Range, ...],
        fixed: Collection[str],
        observe: bool,
    ):
        super().__init__(env)
        self.ranges, self.num_shares, self.observe = ranges, len(ranges), observe
        drawn = {one.name for one in ranges}
        whole = drawn & set(shaping.PARAMETERS) if shaping.shapes(env) else ()
        if whole:
            raise ValueError(
                f"randomize: {', '.join(sorted(whole))} of {env.name} belongs to the whole batch, "
                "not to an episode; set it, without a range"
            )
        self.followers = followers(env.name, drawn, drawn | set(fixed))  # others stay as they are
        space = env.observation_space(params)
        if observe and len(getattr(space, "shape", None) or ()) != 1:
            raise ValueError(f"observe_randomized needs flat observations; {env.name} has {space}")
        if observe and not jnp.issubdtype(getattr(space, "dtype", bool), jnp.floating):
            raise ValueError(
                f"observe_randomized needs observations of floats; {env.name} has {space}"
            )

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if name in ("action_mask", "world_state"):
            return lambda state, params: value(state, self.drawn(state, params))
        return value

    def drawn(self, state: RandomizedState, params: Any) -> Any:
        """The parameters of an episode."""
        own = {one.name: one.value(state.shares[i]) for i, one in enumerate(self.ranges)}
        params = params.replace(**own)
        return params.replace(**{name: f(params) for name, f in self.followers.items()})

    def reset_env(self, key: jax.Array | Level, params: Any) -> tuple[jax.Array, RandomizedState]:
        if isinstance(key, Level):
            assert key.shares is not None, "of an environment without randomize"
            shares, key = key.shares, reset_key(key)
        else:
            key, draw_key = jax.random.split(key)
            shares = jax.random.uniform(draw_key, (len(self.ranges),))
            if self.pinned is not None:
                shares = self.pinned
        own = self.drawn(RandomizedState(None, shares), params)
        observation, inner = self.env.reset_env(key, own)
        return self._seen(observation, shares), RandomizedState(inner, shares)

    def step_env(self, key, state, action, params):
        observation, inner, *rest = self.env.step_env(
            key, state.inner, action, self.drawn(state, params)
        )
        return self._seen(observation, state.shares), RandomizedState(inner, state.shares), *rest

    def is_truncated(self, state: RandomizedState, params: Any) -> jax.Array:
        return super().is_truncated(state, self.drawn(state, params))

    def is_terminated(self, state: RandomizedState, params: Any) -> jax.Array:
        return super().is_terminated(state, self.drawn(state, params))

    def observation_space(self, params: Any) -> Any:
        space = self.env.observation_space(params)
        if not self.observe:
            return space
        low, high = (
            jnp.concatenate([jnp.broadcast_to(x, space.shape), jnp.full(len(self.ranges), end)])
            for x, end in ((space.low, -1.0), (space.high, 1.0))
        )
        return spaces.Box(low, high, low.shape, space.dtype)

    def drawn_corners(self, params: Any) -> list[Any]:
        """The parameters of episodes at the ends of the ranges."""
        some = itertools.product((0.0, 1.0), repeat=min(self.num_shares, CORNERS))
        corners: Any = [  # ranges beyond CORNERS move together
            np.array(corner + corner[-1:] * (self.num_shares - len(corner)), np.float32)
            for corner in some
        ]
        return [self.drawn(RandomizedState(None, corner), params) for corner in corners]

    def action_space(self, params: Any) -> Any:
        """The actions of all episodes: the widest bounds at the corners of the ranges."""
        space = self.env.action_space(params)
        if not isinstance(space, spaces.Box):
            return space
        boxes = [space, *(self.env.action_space(own) for own in self.drawn_corners(params))]
        # Bounds that are known stay known inside a trace, so that others can refuse them.
        known = not any(
            isinstance(x, jax.core.Tracer) for box in boxes for x in (box.low, box.high)
        )
        numbers: Any = np if known else jnp
        low = functools.reduce(numbers.minimum, [box.low for box in boxes])
        high = functools.reduce(numbers.maximum, [box.high for box in boxes])
        return spaces.Box(low, high, space.shape, space.dtype)

    def _seen(self, observation: jax.Array, shares: jax.Array) -> jax.Array:
        if not self.observe:
            return observation
        more = jnp.broadcast_to(2.0 * shares - 1.0, (*observation.shape[:-1], len(shares)))
        return jnp.concatenate([observation, more.astype(observation.dtype)], -1)


def of(env: Any) -> Randomized | None:
    """The wrapper of this module in an environment, under any others."""
    while env is not None and not isinstance(env, Randomized):
        env = vars(env).get("env")
    return env


def pinned(env: Any, shares: jax.Array) -> Any:
    """The environment with the same parameters in every episode.

    Args:
      env: from `envs.make` with the setting `randomize`.
      shares: where in their ranges they are, (number of ranges,); may be traced.
    """
    copied = object.__new__(type(env))
    vars(copied).update(vars(env))
    if isinstance(env, Randomized):
        copied.pinned = shares
    else:
        copied.env = pinned(env.env, shares)
    return copied
