"""Learning curves of the best settings, before those of all the others."""

from html import escape
from typing import NamedTuple

import numpy as np

from algorithms.launch.engine.intervals import estimate, middle_name
from algorithms.launch.engine.plots import CURVES
from algorithms.launch.engine.results import Ranked
from algorithms.launch.tools.report.study import Study
from algorithms.launch.tools.report.svg import (
    Frame,
    Scale,
    figure,
    number,
    picture,
    scores_scale,
    spread,
)

WIDE = 820  # pixels of the picture where there is room
WHOLE = 1260  # the same, if nothing stands beside it
HIGH = 430  # and its height
SEEDS = 20  # curves of seeds that a click shows
POINTS = 80  # of one curve; more cannot be told apart
OTHERS = 60  # curves of other settings, in grey
RISING = 0.05  # of the curve's range, in its last quarter: it is still rising


class Curve(NamedTuple):
    """The middle of a setting's seeds, by `estimate`."""

    x: np.ndarray  # (points,) timesteps
    mean: np.ndarray
    low: np.ndarray  # its interval, cut off at the lowest and highest return; or the middle itself
    high: np.ndarray

    @property
    def span(self) -> float:
        """From its lowest to its highest mean; 0 where it is too short to tell a trend."""
        return float(np.ptp(self.mean)) if len(self.x) >= 4 else 0.0

    @property
    def rise(self) -> float:
        """By how much it rises in its last quarter."""
        quarter = np.searchsorted(self.x, self.x[0] + 0.75 * (self.x[-1] - self.x[0]))
        return float(self.mean[-1] - self.mean[quarter])


def curve(setting: Ranked, band: bool = True) -> Curve | None:
    """Over the trials that did not break, up to the point that all of them have; None: no point.

    Points where a trial has no return are left out.
    """
    trials = [trial for trial in setting.trials if trial.is_finite and len(trial.returns)]
    if not trials:
        return None
    points = min(len(trial.returns) for trial in trials)
    returns = np.stack([trial.returns[:points] for trial in trials], 1)
    there = _thinned(np.isfinite(returns).all(1))
    if not len(there):
        return None
    returns = returns[there]
    wide = band and len(trials) > 1
    resamples = 500 if wide else 1
    found = [estimate(row, len(setting.trials), resamples) for row in returns]
    mean, *ends = np.array(found).T
    low, high = np.clip(ends, returns.min(), returns.max()) if wide else (mean, mean)
    return Curve(trials[0].timesteps[there], mean, low, high)


def _thinned(known: np.ndarray) -> np.ndarray:
    """The places of points that are known, or `POINTS` of them."""
    there = np.flatnonzero(known)
    return there[np.linspace(0, len(there) - 1, min(POINTS, len(there))).round().astype(int)]


def learning(study: Study, height: int | None = None) -> str:
    """The picture, for wide and for narrow windows, and its legend.

    Args:
      height: of the wide one; None: nothing stands beside it.
    """
    count = len(study.settings)
    best = {i: found for i in range(min(CURVES, count)) if (found := curve(study.settings[i]))}
    if not best:
        return ""
    rest = [i for i in study.drawn() if i not in best]
    rest = rest[:: -(-len(rest) // OTHERS) or 1]
    others = {i: found for i in rest if (found := curve(study.settings[i], band=False))}
    every = [*best.values(), *others.values()]
    x = Scale(0.0, float(max(found.x[-1] for found in every)))
    y = _returns_scale([*best.values()], every)
    says = _says(study, best)
    parts = [("other", i, found) for i, found in others.items()]
    parts += [(f"c{i}", i, found) for i, found in reversed(best.items())]
    drawn = ""
    wide = ("wide", WIDE, height) if height else ("wide", WHOLE, HIGH)
    for size, width, high in (wide, ("narrow", 400, 300)):
        frame = Frame(x, y, width, high)
        marks = [frame.axes("environment steps", "return"), *_lines(study, frame, parts)]
        marks += [_of_seeds(study, frame, i) for i in best]
        svg = picture(marks, says, width, high)
        drawn += f'<div class="{size}">{svg}</div>'
    title = (
        "Learning curves"
        if count <= CURVES
        else f"Learning curves: the best {len(best)}, and others in grey"
    )
    return figure(title, drawn + _legend(study, list(best)), says, "two" if height else "all")


def _returns_scale(best: list[Curve], every: list[Curve]) -> Scale:
    """Wide enough for the best curves; a few others may fall below it."""
    low = scores_scale(np.array([one.low.min() for one in every])).low
    ends = [low, *(one.low.min() for one in best), *(one.high.max() for one in every)]
    return Scale(*spread(np.array(ends)))


def _lines(study: Study, frame: Frame, parts: list[tuple[str, int, Curve]]) -> list[str]:
    bands = [
        f'<path class="band {kind}" d="{frame.band(found.x, found.low, found.high)}"/>'
        for kind, _, found in parts
        if found.low is not found.mean
    ]
    lines = []
    for kind, i, found in parts:
        d, setting = frame.line(found.x, found.mean), study.first + i
        if len(found.x) == 1:
            d, kind = f"{d}h.01", f"{kind} point"
        lines.append(f'<path class="line {kind}" d="{d}" data-s="{setting}"/>')
    return bands + lines


def _of_seeds(study: Study, frame: Frame, place: int) -> str:
    """A line for each seed of a setting, which a click shows; nothing of a single seed."""
    trials = [trial for trial in study.settings[place].trials if len(trial.returns)]
    if len(trials) < 2:
        return ""
    lines = []
    for trial in trials[:SEEDS]:
        there = _thinned(np.isfinite(trial.returns))
        if len(there):
            d = frame.line(trial.timesteps[there], trial.returns[there])
            lines.append(f'<path class="line seed c{place}" d="{d}"/>')
    return f'<g class="seeds" data-of="{study.first + place}">{"".join(lines)}</g>'


def _legend(study: Study, best: list[int]) -> str:
    entries = []
    for i in best:
        line = f'<path class="line c{i}" d="M1 4H25"/>'
        swatch = f'<svg viewBox="0 0 26 8" width="26" height="8">{line}</svg>'
        name = escape(study.text(i) or study.environment or "the only setting")
        entries.append(f'<li data-s="{study.first + i}">{swatch} {i + 1}. {name}</li>')
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _says(study: Study, best: dict[int, Curve]) -> str:
    place, found = next(iter(best.items()))
    trials = sum(trial.is_finite for trial in study.settings[place].trials)
    says = f"The best setting ends at {number(found.mean[-1])}"
    if trials > 1 and found.low is not found.mean:
        middle = middle_name(len(study.settings[place].trials))
        says += f" ({middle} of {trials} seeds; the band is its 95 % interval)"
    if found.span <= 0:
        return says + "."
    goal = found.mean[0] + 0.9 * (found.mean[-1] - found.mean[0])
    if found.mean[-1] > found.mean[0]:
        short_of = np.flatnonzero(found.mean < goal)
        arrived = found.x[short_of[-1] + 1] if len(short_of) else found.x[0]
        says += f"; it reaches 90 % of its gain by step {number(int(arrived), 3)}"
    share = number(100 * abs(found.rise) / found.span, 2)
    if abs(found.rise) < RISING * found.span:
        return f"{says}. Its last quarter is flat."
    how = "still rises" if found.rise > 0 else "falls"
    return f"{says}. It {how} in its last quarter, by {share} % of its range."


def is_rising(setting: Ranked) -> bool:
    """Whether more steps look useful."""
    found = curve(setting, band=False)
    return found is not None and found.rise >= RISING * found.span > 0
