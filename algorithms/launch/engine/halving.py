"""Successive halving and Hyperband: how long each setting of a sweep trains.

Successive halving (Jamieson & Talwalkar 2016, https://arxiv.org/abs/1502.07943) trains all settings
for a short while, keeps the best 1/factor of them, trains these `factor` times as long, and so on.
Hyperband (Li et al. 2018, https://arxiv.org/abs/1603.06560) hedges against settings that learn
late: it divides the settings among brackets, of which each prunes later than the one before.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from algorithms.launch.engine.errors import UserError


class Halving(NamedTuple):
    """The arguments of halving. Without a factor nothing is halved; None elsewhere: as many as
    possible."""

    factor: int | None = None
    rungs: int | None = None
    brackets: int | None = None


class Rung(NamedTuple):
    """A stage of a bracket: its settings train up to a share of the run, then some go on."""

    bracket: int
    number: int  # in its bracket, from 0 on
    share: float  # of the run, at which it ends
    settings: int  # of each environment
    keep: int  # settings that go on to the next rung; 0 after the last one

    def last(self, num_points: int) -> int:
        """The last point that its trials train to, of curves of so many points."""
        return max(1, round(self.share * num_points))


class Plan(NamedTuple):
    """The rungs of all brackets in their order, and which settings each bracket has."""

    rungs: list[Rung]
    settings: list[list[int]]  # by bracket: numbers of settings


ALL = Plan([Rung(0, 0, 1.0, 0, 0)], [])  # a sweep without halving


def plan(asked: Halving, num_settings: int, num_points: int) -> Plan:
    """The rungs of a sweep.

    A bracket with k rungs ends them at shares factor^-(k-1), ..., 1/factor, 1 of the run. Brackets
    have one rung less each, and about as many environment steps as one another.

    Args:
      asked: with a factor.
      num_settings: of the sweep, of each environment.
      num_points: of the shortest learning curve.

    Raises:
      UserError: too few settings or points for the rungs, or a number that makes no sense.
    """
    factor = asked.factor or 0
    if factor < 2:
        raise UserError(f"halving={factor}: keep one setting in 2 or more")
    most = 1 + min(_log(num_settings, factor), _log(num_points, factor))
    rungs = most if asked.rungs is None else asked.rungs
    brackets = 1 if asked.brackets is None else asked.brackets
    if most < 2:
        raise UserError(
            f"halving={factor}: needs {factor} settings and num_evals={factor} points or more; "
            f"here are {num_settings} and {num_points}"
        )
    if not 2 <= rungs <= most:
        raise UserError(
            f"rungs={rungs}: give 2 to {most}, which {num_settings} settings and "
            f"{num_points} points (num_evals) allow with halving={factor}"
        )
    if not 1 <= brackets <= rungs:
        raise UserError(f"brackets={brackets}: give 1 to {rungs}, the number of rungs")
    sizes = _sizes(num_settings, factor, rungs, brackets)
    made: list[Rung] = []
    for bracket, size in enumerate(sizes):
        count = rungs - bracket
        for number in range(count):
            keep = max(1, size // factor) if number + 1 < count else 0
            share = float(factor) ** (number + 1 - count)
            made.append(Rung(bracket, number, share, size, keep))
            size = keep
    # Settings take turns, so that each bracket sees the whole range of a grid.
    order = sorted(range(num_settings), key=lambda i: (i * 0.6180339887498949) % 1.0)
    ends = [sum(sizes[: i + 1]) for i in range(brackets)]
    parts = [sorted(order[end - size : end]) for end, size in zip(ends, sizes)]
    return Plan(made, parts)


def _log(number: int, base: int) -> int:
    """The logarithm of a positive number, rounded down."""
    power = 0
    while number >= base ** (power + 1):
        power += 1
    return power


def _sizes(num_settings: int, factor: int, rungs: int, brackets: int) -> list[int]:
    """Settings of each bracket, so that brackets cost about the same; each has one or more."""
    # A setting costs this much of a whole run: its first rung, and its share of the later ones.
    costs = []
    for bracket in range(brackets):
        shares = [float(factor) ** (i + 1 - rungs + bracket) for i in range(rungs - bracket)]
        steps = [b - a for a, b in zip([0.0, *shares], shares)]
        costs.append(sum(step / factor**i for i, step in enumerate(steps)))
    weights = [1.0 / cost for cost in costs]
    sizes = [max(1, math.floor(num_settings * w / sum(weights))) for w in weights]
    sizes[0] += num_settings - sum(sizes)
    return sizes


def survivors(ranked: Mapping[str, Sequence], keep: int) -> list:
    """The best settings of each environment; `ranked` has them by environment, the best first."""
    return [setting for those in ranked.values() for setting in those[:keep]]
