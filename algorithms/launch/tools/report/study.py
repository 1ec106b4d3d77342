"""The settings of one environment, their scores, and the axes of the fields that differ."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.engine import distributions, plots, results
from algorithms.launch.engine.results import Outcome, Ranked
from algorithms.launch.engine.settings import plain
from algorithms.launch.tools.report.svg import Scale, number

DRAWN = 300  # settings in one picture; more would make a file of many megabytes
LEVELS = 8  # more distinct numbers than these are put together in bins
ANYTHING = (-np.inf, np.inf)
BEST = 3  # at least so many settings are the best ones


class Level(NamedTuple):
    """Settings that agree in a field, or have neighbouring values of it."""

    which: np.ndarray  # their places in the study
    low: Any  # the smallest and the largest value there
    high: Any

    @property
    def text(self) -> str:
        low, high = value_text(self.low), value_text(self.high)
        return low if low == high else f"{low} to {high}"


class Axis(NamedTuple):
    """A swept field."""

    name: str
    values: list[Any]  # of each setting
    x: np.ndarray  # (settings,); categories are numbered
    scale: Scale
    levels: list[Level]  # from low to high
    limits: tuple[float, float] = ANYTHING  # the lowest and the highest value that the field may be

    @property
    def is_number(self) -> bool:
        return not self.scale.names

    def level(self, which: np.ndarray) -> Level:
        """The settings in these places, as one level."""
        ordered = which[np.argsort(self.x[which], kind="stable")]
        return Level(which, self.values[ordered[0]], self.values[ordered[-1]])


class Study(NamedTuple):
    """What a sweep found in one environment."""

    environment: str  # empty where only one was trained
    settings: list[Ranked]  # the best one first
    scores: np.ndarray  # (settings,) mean return at one step; NaN where every trial broke
    axes: dict[str, Axis]
    first: int  # the number on the page of its first setting
    step: int | None  # of the scores, where halving stopped some settings there; None: the last one

    def text(self, place: int) -> str:
        """A setting's fields that differ, and their values; empty where none does."""
        setting = self.settings[place].setting
        return ", ".join(f"{name}={value_text(setting[name])}" for name in self.axes)

    def place(self, setting: Ranked) -> int:
        """Where the setting of a retest stands."""
        return [str(one.setting) for one in self.settings].index(str(setting.setting))

    @property
    def has_score(self) -> np.ndarray:
        return np.isfinite(self.scores)

    @property
    def sound(self) -> np.ndarray:
        """(settings,) whether the ranking puts it among those without a broken trial; where every
        setting has one, whether it has a score."""
        unbroken = np.array([setting.broken == 0 for setting in self.settings])
        return self.has_score & (unbroken | ~(self.has_score & unbroken).any())

    def drawn(self, most: int = DRAWN) -> list[int]:
        """Places of the settings that a picture shows: all, or the best and an even choice of the
        others. What a picture with fewer of them shows is also in the others."""
        places = list(range(len(self.settings)))
        for limit in (DRAWN, most):
            if len(places) > limit:
                rest = np.linspace(limit // 2, len(places) - 1, limit - limit // 2).astype(int)
                places = [*places[: limit // 2], *(places[i] for i in rest)]
        return places

    @property
    def at_step(self) -> str:
        """The step of the scores, for a label; empty if it is the last point."""
        return "" if self.step is None else f" at step {number(self.step)}"

    @property
    def peers(self) -> np.ndarray:
        """Places of the sound settings that were trained as long as the best one, in their order;
        halving stops the others earlier."""
        there = np.flatnonzero(self.sound)
        share = self.settings[there[0]].share if len(there) else 1.0
        return np.array([i for i in there if self.settings[i].share == share], int)

    @property
    def best(self) -> np.ndarray:
        """Places of the best tenth, at least `BEST` of them, and of all that tie with these."""
        there = np.flatnonzero(self.sound)
        count = max(BEST, len(there) // 10)
        rest = there[count:]
        last = self.settings[there[:count][-1]] if len(there) else None
        ties = [
            last and (self.settings[i].share, self.settings[i].mean) == (last.share, last.mean)
            for i in rest
        ]
        return np.concatenate([there[:count], rest[np.array(ties, bool)]]).astype(int)

    @property
    def is_grid(self) -> bool:
        """Whether every combination of several fields' few values was trained and has a score."""
        sizes = [len(np.unique(axis.x)) for axis in self.axes.values()]
        few = len(sizes) > 1 and sizes == [len(axis.levels) for axis in self.axes.values()]
        return few and bool(self.has_score.all()) and len(self.settings) == np.prod(sizes)


def studies(
    ranked: Sequence[Ranked],
    asked: Mapping[str, Any],
    limits: Mapping[str, tuple[float, float]] = MappingProxyType({}),
) -> list[Study]:
    """One for each environment.

    Args:
      ranked: the settings, the best one of each environment first.
      asked: what sweep.json says of the grid, {field: values or "log:LOW:HIGH"}.
      limits: the lowest and the highest value that a field may be.
    """
    found: list[Study] = []
    first = 0
    for environment, settings in results.by_environment(ranked).items():
        step = _common_step(settings)
        scores = np.array([_mean([score(trial, step) for trial in s.trials]) for s in settings])
        names = [name for name in settings[0].setting if name != "env"]
        given = lambda name: (asked.get(name), limits.get(name, ANYTHING))
        axes = {name: _axis(name, settings, *given(name)) for name in names}
        axes = {name: axis for name, axis in axes.items() if len(axis.levels) > 1}
        found.append(Study(environment, settings, scores, axes, first, step))
        first += len(settings)
    return found


def _common_step(settings: Sequence[Ranked]) -> int | None:
    """The last step that all settings have, if halving stopped some of them."""
    return min(s.steps for s in settings) if len({s.share for s in settings}) > 1 else None


def score(trial: Outcome, step: int | None) -> float:
    """The return of a trial at its point nearest to a step, by default at its last point; NaN if it
    broke.

    Rungs end at equal points, which are not equal steps if settings change what an update takes.
    """
    if step is None or not trial.is_finite:
        return trial.final
    if not len(trial.returns):
        return np.nan
    return float(trial.returns[np.argmin(np.abs(trial.timesteps - step))])


def _mean(values: Sequence[float] | np.ndarray) -> float:
    """Of those that are finite; NaN where none is."""
    there = np.array(values)[np.isfinite(values)]
    return float(there.mean()) if len(there) else np.nan


def value_text(value: Any) -> str:
    """A field's value in a sentence."""
    if isinstance(value, bool):
        return str(value).lower()
    return number(value, 3) if isinstance(value, float) else plain(value)


def _axis(name: str, settings: Sequence[Ranked], asked: Any, limits: tuple[float, float]) -> Axis:
    values = [setting.setting[name] for setting in settings]
    if all(type(value) is int for value in values):  # counts
        limits = max(limits[0], 1), limits[1]
    places = plots.places(values, plots.is_log(asked))
    drawn = distributions.from_json(asked)
    bounds = [] if drawn is None or isinstance(drawn, distributions.Choice) else [*drawn]
    ends = [*places.x.tolist(), *([] if places.names else bounds)]
    marks = () if bounds else tuple(sorted(set(places.x.tolist())))
    names = tuple(places.names)
    scale = Scale(min(ends), max(ends), places.is_log, names, marks, places.whole)
    axis = Axis(name, values, places.x, scale, [], limits)
    return axis._replace(levels=_levels(axis))


def _levels(axis: Axis) -> list[Level]:
    """One for each value; many numbers in bins that hold about as many settings each."""
    distinct, inverse = np.unique(axis.x, return_inverse=True)
    if len(distinct) > LEVELS and axis.is_number:
        bins = min(LEVELS, max(2, round(len(distinct) ** 0.5)))
        inverse = inverse * bins // len(distinct)
    return [axis.level(np.flatnonzero(inverse == i)) for i in range(inverse.max() + 1)]


def level_means(study: Study, axis: Axis) -> np.ndarray:
    """The mean score of each level; NaN where no setting has one."""
    return np.array([_mean(study.scores[level.which]) for level in axis.levels])
