"""Which setting mattered: the share of the variance of settings' means that each explains."""

from typing import NamedTuple

import numpy as np

from algorithms.launch.tools.report.chance import noise
from algorithms.launch.tools.report.study import Axis, Study
from algorithms.launch.tools.report.svg import figure, percent, picture, short, shortened, text

NOISY = 0.5  # of the variance: the seeds may explain it all
UNCLEAR = 0.03  # of the variance: a smaller share says nothing
ROW = 34  # pixels of a bar


class Importance(NamedTuple):
    """How much each field mattered."""

    shares: dict[str, float]  # the most important one first
    method: str  # for the page


def importance(study: Study) -> Importance:
    """The share of the scores' variance between the values of each field.

    In a whole grid these are the main effects of the analysis of variance, and exact. Elsewhere a
    field that was drawn is cut into bins, and what as many bins explain by chance is subtracted.
    Nothing depends on which libraries are installed; `compare --optuna` is for Optuna's measures.
    """
    there = study.has_score
    if not study.axes or there.sum() < 3 or np.ptp(study.scores[there]) <= 0:
        return Importance({}, "")
    if len(study.axes) == 1 and all(len(a.levels) == len(a.x) for a in study.axes.values()):
        return Importance({}, "")  # one field, one setting for each value: it explains everything
    if study.is_grid:
        found = Importance(
            {name: explained(axis, study.scores) for name, axis in study.axes.items()},
            "main effects of the analysis of variance, exact for a whole grid",
        )
    else:
        found = Importance(
            {name: explained(axis, study.scores, fair=True) for name, axis in study.axes.items()},
            "share of variance between the bins of one field, less what chance explains",
        )
    ordered = sorted(found.shares.items(), key=lambda item: -item[1])
    return found._replace(shares=dict(ordered))


def explained(axis: Axis, scores: np.ndarray, fair: bool = False) -> float:
    """The share of the scores' variance that lies between the levels of a field (eta squared).

    Args:
      axis: the field; settings without a score are left out.
      scores: (settings,).
      fair: subtract what as many levels of a field without any effect explain on average (epsilon
        squared).
    """
    groups = [scores[level.which] for level in axis.levels]
    groups = [group[np.isfinite(group)] for group in groups]
    groups = [group for group in groups if len(group)]
    every = np.concatenate(groups)
    total = np.square(every - every.mean()).sum()
    within = sum(np.square(group - group.mean()).sum() for group in groups)
    if total <= 0:
        return 0.0
    count, free = len(every), len(every) - len(groups)
    if fair:
        within = within * (count - 1) / free if free else total
    return float(np.clip(1 - within / total, 0, 1))


def bars(study: Study, found: Importance) -> str:
    """The picture: a bar for each field, and one for the seeds."""
    if not found.shares:
        return ""
    rows = [(name, share, "bar0") for name, share in found.shares.items()]
    luck = noise(study)
    if np.isfinite(luck):
        rows.append(("seeds (noise)", luck, "bar1"))
    says = _says(found, luck)
    parts = []
    for i, (name, share, kind) in enumerate(rows):
        y = 4 + i * ROW
        length = short(max(1.0, share * 320))
        parts.append(text(4, y + 11, shortened(name, 44), "start"))
        parts.append(
            f'<rect class="{kind}" x="4" y="{y + 16}" width="{length}" height="10" rx="2"/>'
        )
        parts.append(text(10 + float(length), y + 25, percent(share), "start"))
    return figure("What mattered", picture(parts, says, height=8 + ROW * len(rows)), says)


def _says(found: Importance, luck: float) -> str:
    name, share = next(iter(found.shares.items()))
    others = [f"{n} {percent(s)}" for n, s in list(found.shares.items())[1:4]]
    then = f"; then {', '.join(others)}" if others else ""
    says = f"{name} explains {percent(share)} of the variance between settings{then}"
    says += f" ({found.method})."
    if np.isfinite(luck):
        says += f" Seeds alone account for about {percent(luck)}"
        says += ": the settings may not differ at all." if luck > NOISY else "."
    return says
