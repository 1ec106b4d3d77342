"""What more random settings, or other seeds, would have brought."""

import numpy as np

from algorithms.launch.engine.intervals import difference
from algorithms.launch.tools.report.study import Study, score
from algorithms.launch.tools.report.svg import (
    Frame,
    Scale,
    figure,
    number,
    percent,
    picture,
    spread,
)

RESAMPLES = 2000
COMPARED = 200  # settings that are compared with the best one


def best_of(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The best score of k settings out of all, for each k from 1 on: mean, 10 % and 90 % quantile.

    Settings are drawn without replacement: the best of k is at most the i-th smallest of n scores
    with probability C(i, k) / C(n, k). The mean is exact (Tang et al. 2020,
    https://arxiv.org/abs/2004.13705); Dodge et al. 2019, https://arxiv.org/abs/1909.03004,
    introduced the curve, with draws that may repeat.

    Args:
      scores: (n,) of the settings, finite.

    Returns:
      Three arrays (n,).
    """
    ordered = np.sort(scores)
    count = len(ordered)
    at_most = np.ones(count)  # of each score, for k settings; for none of them it is 1
    rank = np.arange(1, count + 1)
    found = []
    for k in range(1, count + 1):
        at_most = at_most * np.clip(rank - k + 1, 0, None) / (count - k + 1)
        chance = np.diff(at_most, prepend=0.0)
        quantiles = [ordered[np.searchsorted(at_most, q - 1e-12)] for q in (0.1, 0.9)]
        found.append((chance @ ordered, *quantiles))
    mean, low, high = np.array(found).T
    return mean, low, high


def rivals(study: Study) -> list[int]:
    """Places of settings that seeds alone may have put behind the best one."""
    best, *others = study.peers[:COMPARED].tolist()
    finals = lambda i: study.settings[i].finals
    lowest = lambda i: difference(finals(best), finals(i), RESAMPLES).low
    return [i for i in others if not lowest(i) > 0]


def noise(study: Study) -> float:
    """The share of the variance of settings' means that comes from their seeds; NaN where no
    setting has two of them, or all means are equal."""
    finals = [[score(trial, study.step) for trial in s.trials] for s in study.settings]
    there = [np.array(values)[np.isfinite(values)] for values in finals]
    errors = [values.var(ddof=1) / len(values) for values in there if len(values) > 1]
    variance = np.var(study.scores[study.has_score], ddof=1) if study.has_score.sum() > 1 else 0.0
    return min(1.0, float(np.mean(errors) / variance)) if errors and variance > 0 else np.nan


def expected_best(study: Study) -> str:
    """The picture of `best_of`. A setting with a broken trial counts like the worst one."""
    if study.sound.sum() < 2:
        return ""
    worst = np.nanmin(study.scores)
    scores = np.where(study.sound, study.scores, worst)
    mean, low, high = best_of(scores)
    k = np.arange(1, len(mean) + 1)
    x = Scale(1, len(k), is_log=len(k) > 20, whole=True)
    frame = Frame(x, Scale(*spread(np.concatenate([mean, low, high]))))
    says = _says(mean, study.at_step)
    if not study.sound.all():
        says += " A setting with a broken trial counts like the worst one."
    shown = k if len(k) <= 150 else np.unique(np.geomspace(1, len(k), 150).astype(int))
    few = shown - 1
    parts = [
        frame.axes("random settings tried (k)", f"best mean return{study.at_step}"),
        f'<path class="band c0" d="{frame.band(shown, low[few], high[few])}"/>',
        f'<path class="line c0" d="{frame.line(shown, mean[few])}"/>',
    ]
    return figure("Best of k random settings", picture(parts, says), says)


def _says(mean: np.ndarray, at_step: str) -> str:
    count, gain = len(mean), mean[-1] - mean[0]
    if gain <= 0:
        return (
            f"All {count} settings score {number(mean[-1])}{at_step}: one would have been enough."
        )
    enough = int(np.argmax(mean >= mean[0] + 0.95 * gain)) + 1
    half = max(1, count // 2)
    more = float(mean[-1] - mean[half - 1]) / gain
    return (
        f"One random setting scores {number(mean[0])}{at_step} on average, the best of {count} "
        f"{number(mean[-1])}. The best of {enough} has 95 % of that gain; going from {half} to "
        f"{count} brings {percent(more) if more else 'none'} of it. The band holds 80 % of draws."
    )
