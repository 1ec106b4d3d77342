"""Intervals: what the scores of a few seeds tell about all seeds. Plain NumPy."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

MANY = 10  # scores from which on their interquartile mean is shown
# Student's t: 97.5 % quantiles for 1, 2, ... degrees of freedom
QUANTILES: tuple[float, ...] = (12.7062, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462)
QUANTILES += (2.306, 2.26216, 2.22814)
QUANTILES += (2.20099, 2.17881, 2.16037, 2.14479, 2.13145, 2.11991)


class Estimate(NamedTuple):
    """What scores of seeds tell about all seeds: a middle, and 95 % of it; NaN where unknown."""

    middle: float
    low: float
    high: float


def estimate(scores: np.ndarray, seeds: int | None = None, resamples: int = 10_000) -> Estimate:
    """With fewer than MANY seeds the mean and its t interval, else the interquartile mean and its
    bootstrap interval. Everything that shows an interval of seeds takes it from here.

    Args:
      scores: (n,), finite.
      seeds: how many there would be if none was broken; by default n.
      resamples: of the bootstrap.
    """
    if not len(scores):
        return Estimate(np.nan, np.nan, np.nan)
    if (len(scores) if seeds is None else seeds) >= MANY:
        return Estimate(
            float(interquartile_mean(scores)), *bootstrap_interval(scores, resamples=resamples)
        )
    mean = float(scores.mean())
    if len(scores) < 2:
        return Estimate(mean, np.nan, np.nan)
    reach = QUANTILES[len(scores) - 2] * float(scores.std(ddof=1)) / len(scores) ** 0.5
    return Estimate(mean, mean - reach, mean + reach)


def interval_name(seeds: int) -> str:
    """What `estimate` gives, as the head of a column that follows the mean."""
    return "95 % of the mean (t)" if seeds < MANY else "IQM, 95 % (bootstrap)"


def middle_name(seeds: int) -> str:
    """What the middle of `estimate` is."""
    return "mean" if seeds < MANY else "interquartile mean"


def difference(first: np.ndarray, second: np.ndarray, resamples: int = 10_000) -> Estimate:
    """How much one mean is above another: Welch's t interval with fewer than MANY seeds on a side,
    else a bootstrap interval. NaN where a side has one seed."""
    apart = float(first.mean() - second.mean())
    counts = np.array([len(first), len(second)])
    if counts.min() < 2:
        return Estimate(apart, np.nan, np.nan)
    if counts.min() >= MANY:
        cut = len(first)
        of_means = lambda drawn: drawn[..., :cut].mean(-1) - drawn[..., cut:].mean(-1)
        return Estimate(apart, *bootstrap_interval([first, second], of_means, resamples))
    squares = np.array([first.var(ddof=1), second.var(ddof=1)]) / counts
    total = squares.sum()
    degrees = total**2 / (squares**2 / (counts - 1)).sum() if total > 0 else 1.0
    reach = QUANTILES[min(int(degrees), len(QUANTILES)) - 1] * float(np.sqrt(total))
    return Estimate(apart, apart - reach, apart + reach)


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Over the last axis, without a quarter of the values, rounded down, at either end."""
    cut = scores.shape[-1] // 4
    return np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut].mean(axis=-1)


def bootstrap_interval(
    scores: np.ndarray | Sequence[np.ndarray],
    statistic: Callable = interquartile_mean,
    resamples: int = 10_000,
) -> tuple[float, float]:
    """95 % of a number, as of `bootstrap_intervals`; NaNs where there are no scores."""
    strata = [scores] if isinstance(scores, np.ndarray) else scores
    strata = [stratum for stratum in strata if len(stratum)]
    if not strata:
        return np.nan, np.nan
    low, high = bootstrap_intervals(strata, statistic, resamples)
    return float(low), float(high)


def bootstrap_intervals(
    strata: Sequence[np.ndarray], statistic: Callable, resamples: int = 10_000
) -> np.ndarray:
    """95 % of a statistic of scores drawn with replacement (stratified percentile bootstrap).

    Args:
      strata: (n,) scores each, drawn from by themselves (Agarwal et al. 2021,
        https://arxiv.org/abs/2108.13264).
      statistic: of the last axis, where the strata stand side by side: (resamples, n) ->
        (resamples, ...).
      resamples: how often all n scores are drawn.

    Returns:
      (2, ...), the lower and the upper ends.
    """
    rng = np.random.default_rng(0)
    drawn = [rng.choice(stratum, (resamples, len(stratum))) for stratum in strata]
    return np.percentile(statistic(np.concatenate(drawn, axis=-1)), [2.5, 97.5], axis=0)
