"""Which trials of a sweep train in which stage, and how long: rungs of halving, and a retest.

Successive halving (Jamieson & Talwalkar 2016, https://arxiv.org/abs/1502.07943) trains all settings
for a short while, keeps the best 1/factor of them, trains these `factor` times as long, and so on.
Hyperband (Li et al. 2018, https://arxiv.org/abs/1603.06560) hedges against settings that learn
late: it divides the settings among brackets, of which each prunes later than the one before.
A sweep without either has one stage. Nothing here knows of programs, devices or files.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from algorithms.launch.engine import grids, results
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.results import Outcome

RETEST_SEEDS = 32  # of each setting, where nothing else is asked for


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


WHOLE = Rung(0, 0, 1.0, 0, 0)  # a run to its end
ALL = Plan([WHOLE], [])  # a sweep without halving


def plan(asked: grids.Asked, num_settings: int, num_points: int) -> Plan:
    """The rungs of a sweep; one of all settings where no halving is asked for.

    A bracket with k rungs ends them at shares factor^-(k-1), ..., 1/factor, 1 of the run. Brackets
    have one rung less each, and about as many environment steps as one another.

    Args:
      asked: rungs and brackets are by default as many as possible.
      num_settings: of the sweep, of each environment.
      num_points: of the shortest learning curve.

    Raises:
      UserError: too few settings or points for the rungs, or a number that makes no sense.
    """
    factor = asked.halving
    if factor is None:
        given = [name for name in ("rungs", "brackets") if getattr(asked, name) is not None]
        if given:
            raise UserError(f"{' and '.join(given)} go with halving, which is missing: halving=3")
        return ALL
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


# --- stages ----------------------------------------------------------------------------------


class Next(NamedTuple):
    """A trial of a later stage."""

    number: int  # in results.csv, or of a retest in retest.csv
    like: int  # the earlier trial whose setting it has
    seed: int
    goes_on: bool  # with that trial's state; otherwise it is new


class Schedule(NamedTuple):
    """The stages of a sweep: all rungs in their order, then a retest if it is asked for."""

    asked: grids.Asked = grids.Asked()
    seeds: range = range(1)  # of each setting
    plan: Plan = ALL

    @property
    def num_stages(self) -> int:
        return len(self.plan.rungs) + (self.asked.retest is not None)

    def rung(self, stage: int) -> Rung | None:
        """The rung that a stage is; None for the retest."""
        return self.plan.rungs[stage] if stage < len(self.plan.rungs) else None

    @property
    def retest_seeds(self) -> range:
        """Seeds that the sweep has not used."""
        wanted = self.asked.retest_seeds or RETEST_SEEDS
        return range(self.seeds.stop, self.seeds.stop + wanted)

    def first(self, stage: int, points: int) -> int:
        """The point at which trials with curves of so many points come to a stage."""
        rung = self.rung(stage)
        return self.plan.rungs[stage - 1].last(points) if rung and rung.number else 0

    def name(self, stage: int) -> str:
        """What a stage is called; empty where there is one."""
        rung, rungs = self.rung(stage), self.plan.rungs
        if self.num_stages == 1:
            return ""
        if rung is None:
            return "retest"
        if len(rungs) == 1:
            return "sweep"
        count = sum(other.bracket == rung.bracket for other in rungs)
        brackets = 1 + rungs[-1].bracket
        bracket = f"bracket {rung.bracket + 1} of {brackets}, " if brackets > 1 else ""
        return f"{bracket}rung {rung.number + 1} of {count}"

    def following(self, stage: int, outcomes: Sequence[Outcome]) -> list[Next]:
        """The trials of a rung that is no bracket's first, or of the retest.

        Args:
          outcomes: of all trials so far, in the order of their numbers.
        """
        objective = self.asked.objective
        if not self.rung(stage):
            best = _best(outcomes, objective, self.asked.retest or 1)
            new = [(one.trials[0].number, seed) for one in best for seed in self.retest_seeds]
            first = 1 + max(outcome.number for outcome in outcomes)
            return [Next(first + i, like, seed, False) for i, (like, seed) in enumerate(new)]
        before = self.plan.rungs[stage - 1]
        place = before.bracket, before.number
        mine = [one for one in outcomes if (one.bracket, one.rung) == place]
        kept = [one for setting in _best(mine, objective, before.keep) for one in setting.trials]
        kept = sorted(kept, key=lambda one: one.number)
        return [Next(one.number, one.number, one.seed, True) for one in kept]


def of(asked: grids.Asked, seeds: range, num_settings: int, num_points: int) -> Schedule:
    """The schedule of a sweep.

    Args:
      num_settings, num_points: as of `plan`.

    Raises:
      UserError: numbers that make no sense, together or alone.
    """
    _check_retest(asked, num_settings, seeds)
    return Schedule(asked, seeds, plan(asked, num_settings, num_points))


def _check_retest(asked: grids.Asked, num_settings: int, seeds: range) -> None:
    if asked.retest is None:
        if asked.retest_seeds is not None:
            raise UserError(f"retest_seeds={asked.retest_seeds}: goes with retest=3")
        return
    if not 1 <= asked.retest <= num_settings:
        able = f"1 to {num_settings}" if num_settings > 1 else "1"
        raise UserError(f"retest={asked.retest}: give {able}, the number of settings")
    if asked.retest_seeds is not None and asked.retest_seeds < 1:
        raise UserError(f"retest_seeds={asked.retest_seeds}: give 1 or more")
    if (last := Schedule(asked, seeds).retest_seeds.stop) > 2**32:
        raise UserError(f"retest_seeds: seeds go up to {2**32 - 1}, and {last - 1} would be used")


def _best(outcomes: Sequence[Outcome], objective: str, keep: int) -> list[results.Ranked]:
    """The best settings of each environment."""
    ranked = results.by_environment(results.rank(outcomes, objective))
    return [setting for those in ranked.values() for setting in those[:keep]]
