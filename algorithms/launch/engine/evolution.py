"""Who is replaced by whom in a population, and how its floats change.

Truncation selection and perturbation are those of population-based training (Jaderberg et al. 2017,
https://arxiv.org/abs/1711.09846). Several frequencies of replacement are MF-PBT's (Doulazmi et al.
2025, https://arxiv.org/abs/2506.03225): subpopulations that evolve rarely keep what is good only
after long, and exchange networks with those that evolve often.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

QUARTERS = 4  # of a subpopulation: winners, kept, replaced by others' members, replaced by winners


class Range(NamedTuple):
    """Where the values of a float come from at first, and the space in which they move."""

    kind: str  # uniform, log, or discount: the logarithm of 1 - x
    low: float
    high: float

    def draw(self, quantile: jax.Array) -> jax.Array:
        """The values at these quantiles."""
        if self.kind == "log":
            return jnp.exp(_between(jnp.log(self.low), jnp.log(self.high), quantile))
        if self.kind == "discount":
            ends = jnp.log1p(-jnp.float32(self.low)), jnp.log1p(-jnp.float32(self.high))
            return -jnp.expm1(_between(*ends, quantile))
        return _between(self.low, self.high, quantile)

    def move(self, value: jax.Array, up: jax.Array, factor: float) -> jax.Array:
        """The neighbour of each value: times or divided by the factor, in the space of the range.

        In a uniform range that is a step of half its width times 1 - 1 / factor. Values may leave
        the range, so a range that was chosen badly does no lasting harm.
        """
        if self.kind == "uniform":
            step = 0.5 * (self.high - self.low) * (1.0 - 1.0 / factor)
            return value + jnp.where(up, step, -step)
        times = jnp.where(up, factor, 1.0 / factor)
        return value * times if self.kind == "log" else 1.0 - (1.0 - value) * times


def _between(low, high, quantile):
    return low + quantile * (high - low)


def first_values(rng: jax.Array, space: Range, members: int) -> jax.Array:
    """One value in each of as many equal parts of the range, in random order (Latin hypercube)."""
    order_rng, place_rng = jax.random.split(rng)
    part = jax.random.permutation(order_rng, members)
    return space.draw((part + jax.random.uniform(place_rng, (members,))) / members)


class Parents(NamedTuple):
    """What each member becomes, by the numbers of members; leading axis members."""

    state: jax.Array  # whose state it takes; its own number for none
    floats: jax.Array  # whose floats
    explores: jax.Array  # bool: whether its floats change then


def stay(members: int) -> Parents:
    own = jnp.arange(members)
    return Parents(own, own, jnp.zeros(members, bool))


def truncation(rng: jax.Array, scores: jax.Array, share: float) -> Parents:
    """The worst share of the members become copies of members drawn from the best share.

    A member that is as good as the drawn one stays.
    """
    count = replaced(len(scores), share)
    order = jnp.argsort(-scores)
    drawn, worst = order[jax.random.randint(rng, (count,), 0, count)], order[-count:]
    worse = scores[worst] < scores[drawn]
    state = jnp.arange(len(scores)).at[worst].set(jnp.where(worse, drawn, worst))
    explores = jnp.zeros(len(scores), bool).at[worst].set(worse)
    return Parents(state, state, explores)


def replaced(members: int, share: float) -> int:
    """How many members truncation replaces, at most one half."""
    return min(members // 2, max(1, int(share * members)))


def frequencies(scores: jax.Array, periods: Sequence[int], rounds: jax.Array) -> Parents:
    """MF-PBT: equal subpopulations, of which each evolves after every `period` rounds.

    Its worst quarter become copies of its best one, and explore. Its third quarter take the
    networks of the best members elsewhere if these are better. Floats come along from a
    subpopulation that evolves more rarely. With a network of one that evolves more often, they take
    the floats of their own best member, so that greedy floats do not spread.

    Args:
      scores: (members,), the higher the better.
      periods: of the subpopulations.
      rounds: that have ended.
    """
    members, size = len(scores), len(scores) // len(periods)
    period_of = jnp.repeat(jnp.array(periods), size)
    found = stay(members)
    for number, period in enumerate(periods):
        own = jnp.arange(number * size, (number + 1) * size)
        order = own[jnp.argsort(-scores[own])]
        evolved = _evolved(scores, order, period_of, period, found)
        due = rounds % period == 0
        found = jax.tree.map(lambda new, old, due=due: jnp.where(due, new, old), evolved, found)
    return found


def _evolved(
    scores: jax.Array, order: jax.Array, period_of: jax.Array, period: int, found: Parents
) -> Parents:
    """One subpopulation's evolution; `order` has its members, the best one first."""
    quarter = len(order) // QUARTERS
    best, third, worst = order[:quarter], order[2 * quarter : 3 * quarter], order[3 * quarter :]
    best = jnp.resize(best, worst.shape)
    worse = scores[worst] < scores[best]
    parents = jnp.where(worse, best, worst)
    state, floats = found.state.at[worst].set(parents), found.floats.at[worst].set(parents)
    explores = found.explores.at[worst].set(worse)
    outside = jnp.ones(len(scores), bool).at[order].set(False)
    others = jnp.argsort(-jnp.where(outside, scores, -jnp.inf))
    taken = jnp.zeros((), jnp.int32)
    for member in third:
        migrant = others[taken]
        better = outside[migrant] & (scores[migrant] > scores[member])
        of_own = jnp.where(period_of[migrant] < period, order[0], member)
        its_floats = jnp.where(period_of[migrant] > period, migrant, of_own)
        state = state.at[member].set(jnp.where(better, migrant, state[member]))
        floats = floats.at[member].set(jnp.where(better, its_floats, floats[member]))
        taken += better
    return Parents(state, floats, explores)


def explore(
    rng: jax.Array, values: jax.Array, space: Range, factor: float, resample: float
) -> jax.Array:
    """Each value moved up or down, or drawn anew with probability `resample`; (members,)."""
    up_rng, resample_rng, draw_rng = jax.random.split(rng, 3)
    moved = space.move(values, jax.random.bernoulli(up_rng, 0.5, values.shape), factor)
    fresh = space.draw(jax.random.uniform(draw_rng, values.shape))
    return jnp.where(jax.random.bernoulli(resample_rng, resample, values.shape), fresh, moved)
