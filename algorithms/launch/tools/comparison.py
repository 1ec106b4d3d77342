"""Runs side by side: learning curves by environment, algorithm and setting, and final returns.

A curve's numbers are those of `intervals.estimate`. Over several environments they are
interquartile means with a bootstrap that is stratified by environment (Agarwal et al. 2021,
https://arxiv.org/abs/2108.13264).
"""

import functools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.engine import intervals, results, settings
from algorithms.launch.engine.errors import UserError, warn

SHOWN = 20  # curves of an environment in the table


class Trial(NamedTuple):
    """One seed of a run."""

    algorithm: str
    environment: str
    outcome: results.Outcome  # its setting is the whole configuration, but for the environment
    run: Path  # as it was given, a run or a sweep


class Pooled(NamedTuple):
    """All seeds of an algorithm with one setting in one environment."""

    environment: str
    label: str  # the algorithm, and what differs between its settings in this environment
    trials: list[Trial]
    timesteps: np.ndarray  # (points,), those that all trials have come to
    returns: np.ndarray  # (points, seeds), without the trials whose policy is not finite

    @property
    def seeds(self) -> int:
        """How many, with those that broke."""
        return len(self.trials)

    @property
    def finals(self) -> np.ndarray:
        """Returns at the last point, of the seeds that have one."""
        last = self.returns[-1] if len(self.returns) else np.zeros(0)
        return last[~np.isnan(last)]

    @property
    def estimate(self) -> intervals.Estimate:
        """Their middle, and its interval."""
        return intervals.estimate(self.finals, self.seeds)

    @property
    def middle(self) -> float:
        return self.estimate.middle


def curves(trials: Sequence[Trial]) -> dict[str, list[Pooled]]:
    """Pools seeds of equal settings. Returns {environment: curves, the best one first}.

    Raises:
      UserError: trials with equal settings have no timestep in common.
    """
    panels: dict[str, list[Pooled]] = {}
    for (environment, algorithm), those in results.grouped(trials, _task).items():
        names = differing([trial.outcome.setting for trial in those])
        text = functools.partial(_text, names=names)
        for pooled in results.grouped(those, text).values():
            has = {n: x for n, x in _setting(pooled[0], names).items() if x is not None}
            label = ", ".join([algorithm, *settings.text_of(has)])
            panels.setdefault(environment, []).append(_curve(environment, label, pooled))
    value = lambda curve: -np.inf if np.isnan(curve.middle) else curve.middle
    return {env: sorted(panel, key=value, reverse=True) for env, panel in panels.items()}


def _curve(environment: str, label: str, trials: list[Trial]) -> Pooled:
    name = f"{label} on {environment}"
    finite = [trial.outcome for trial in trials if trial.outcome.is_finite]
    if not finite:
        return Pooled(environment, label, trials, np.zeros(0, int), np.zeros((0, 0)))
    x = functools.reduce(np.intersect1d, [outcome.timesteps for outcome in finite])
    if not len(x):
        raise UserError(f"{name}: {_runs(trials)} have no timestep in common")
    ends = sorted({int(outcome.timesteps[-1]) for outcome in finite})
    if len(ends) > 1:
        warn(
            f"{name}: its runs end between timesteps {ends[0]:,} and {ends[-1]:,}; "
            f"they are compared up to {x[-1]:,}"
        )
    returns = [outcome.returns[np.isin(outcome.timesteps, x)] for outcome in finite]
    return Pooled(environment, label, trials, x, np.stack(returns, 1))


def once(trials: Sequence[Trial]) -> list[Trial]:
    """Each seed of a setting once, where it came furthest: a repetition in another run says nothing
    of other seeds."""
    steps = lambda trial: trial.outcome.timesteps.max(initial=0)
    return [max(same, key=steps) for same in _seeds(trials)]


def tell_of_repeated(trials: Sequence[Trial]) -> None:
    """Warns of seeds that several runs have."""
    twice = [trial for same in _seeds(trials) if len(same) > 1 for trial in same]
    for (environment, algorithm), those in results.grouped(twice, _task).items():
        who = ", ".join(map(str, dict.fromkeys(trial.outcome.seed for trial in those)))
        warn(
            f"{algorithm} on {environment}: more than one of {_runs(those)} has seed {who} of "
            "equal settings; a seed counts once"
        )


def _seeds(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Trials of the same setting with the same seed together."""
    setting = lambda trial: str(sorted(trial.outcome.setting.items()))
    key = lambda trial: (*_task(trial), setting(trial), trial.outcome.seed)
    return list(results.grouped(trials, key).values())


def _task(trial: Trial) -> tuple[str, str]:
    return trial.environment, trial.algorithm


def _setting(trial: Trial, names: Sequence[str]) -> dict[str, Any]:
    """Some fields, as a Config has them."""
    return {name: settings.value_of(trial.outcome.setting.get(name)) for name in names}


def _text(trial: Trial, names: Sequence[str]) -> str:
    return str(_setting(trial, names))


def _runs(trials: Sequence[Trial]) -> str:
    return ", ".join(dict.fromkeys(str(trial.run) for trial in trials))


def differing(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The fields in which settings differ."""
    names = dict.fromkeys(name for config in configs for name in config)
    return [n for n in names if any(config.get(n) != configs[0].get(n) for config in configs)]


# --- tables ----------------------------------------------------------------------------------


def table(panels: dict[str, list[Pooled]]) -> str:
    """A row for each curve: what its seeds have come to at its last timestep."""
    rows = [["curve", "runs", "seeds", "final", "95 %", "mean", "worst", "timestep", ""]]
    more = 0
    for environment, panel in panels.items():
        if len(panels) > 1:
            rows.append([f"{environment}:", *[""] * 8])
        indent = "  " * (len(panels) > 1)
        for curve in panel[:SHOWN]:
            rows.append([f"{indent}{curve.label}", *_cells(curve)])
        more += len(panel[SHOWN:])
    note = f"final: {middles([curve for panel in panels.values() for curve in panel])}"
    return "\n".join([*results.aligned(rows), *[f"... and {more} curves more"] * bool(more), note])


def middles(pooled: Sequence[Pooled]) -> str:
    """What the middle of these curves and its interval are."""
    few = sorted({len(curve.trials) < intervals.MANY for curve in pooled}, reverse=True)
    names = {
        True: "mean and its t interval",
        False: "interquartile mean and its bootstrap interval",
    }
    if len(few) == 1:
        return names[few[0]]
    return f"{names[True]} with fewer than {intervals.MANY} seeds, else {names[False]}"


def _cells(curve: Pooled) -> list[str]:
    finals, runs = curve.finals, {trial.run for trial in curve.trials}
    numbers = ["-"] * 4
    if len(finals):
        found = curve.estimate
        values = found.middle, finals.mean(), finals.min()
        middle, mean, worst = (f"{value:.5g}" for value in values)
        ends = "-" if np.isnan(found.low) else f"{found.low:.5g} to {found.high:.5g}"
        numbers = [middle, ends, mean, worst]
    broken = sum(not trial.outcome.is_finite for trial in curve.trials)
    without = len(curve.trials) - broken - len(finals)
    notes = [f"{broken} not finite"] * bool(broken) + [f"{without} without a return"] * bool(
        without
    )
    last = f"{curve.timesteps[-1]:,}" if len(curve.timesteps) else "-"
    return [str(len(runs)), str(len(curve.trials)), *numbers, last, ", ".join(notes)]


# --- over several environments ---------------------------------------------------------------

Bounds = Mapping[str, tuple[float, float]]  # {environment: the returns whose scores are 0 and 1}


class Scores(NamedTuple):
    """Final returns on one scale, of the labels that are there in all environments."""

    environments: list[str]
    strata: dict[str, list[np.ndarray]]  # {label: (seeds,) in each environment}
    steps: dict[str, str]  # {label: the last timestep in each environment}
    scale: str  # what 0 and 1 are


def scores(panels: dict[str, list[Pooled]], bounds: Bounds | None = None) -> Scores:
    """Final returns, scaled so that the lowest in an environment is 0 and the highest 1, or by
    given bounds of all environments.

    Without bounds, an environment in which all returns are equal is left out.
    """
    strata: dict[str, dict[str, np.ndarray]] = {}  # {label: {environment: (seeds,)}}
    last: dict[tuple[str, str], str] = {}  # {(label, environment): timestep}
    environments = []
    for environment, panel in panels.items():
        finals = np.concatenate([curve.finals for curve in panel])
        if not len(finals) or (not bounds and finals.min() == finals.max()):
            continue
        low, high = bounds[environment] if bounds else (finals.min(), finals.max())
        environments.append(environment)
        for curve in panel:
            if len(curve.finals):
                share = (curve.finals - low) / (high - low)
                strata.setdefault(curve.label, {})[environment] = share
                last[curve.label, environment] = f"{curve.timesteps[-1]:,}"
    everywhere = {k: list(s.values()) for k, s in strata.items() if len(s) == len(environments)}
    steps = {label: "+".join(last[label, env] for env in environments) for label in everywhere}
    scale = (
        "0 (the lowest final return of all that is compared in an environment) to 1 (the highest)"
    )
    if bounds:
        ends = [f"{env} {bounds[env][0]:g} to {bounds[env][1]:g}" for env in environments]
        scale = f"0 to 1 for returns of {', '.join(ends)}"
    return Scores(environments, everywhere, steps, scale)


def aggregate(panels: dict[str, list[Pooled]], bounds: Bounds | None = None) -> str:
    """A row for each label that is there in all environments, over all of them; "" for none.

    Every score has the same weight. If the last points differ in their timesteps, the rows show
    these.
    """
    found = scores(panels, bounds)
    if len(found.environments) < 2 or not found.strata:
        return ""
    differ = len(set(found.steps.values())) > 1
    rows = [["curve", "seeds", *["steps"] * differ, "IQM", "95 %", "mean"]]
    for label, strata in found.strata.items():
        together = np.concatenate(strata)
        (middle, low, high), mean = middle_score(strata), together.mean()
        ends = "-" if np.isnan(low) else f"{low:.5g} to {high:.5g}"
        own = [found.steps[label]] * differ
        rows.append([label, counts(strata), *own, f"{middle:.4f}", ends, f"{mean:.4f}"])
    head = f"over {', '.join(found.environments)}: scores from {found.scale},"
    head = textwrap.fill(f"{head} resampled within each environment:", 100)
    return "\n".join([head, *results.aligned(rows)])


def counts(strata: Sequence[np.ndarray]) -> str:
    """Seeds of each environment, as 10+10."""
    return "+".join(str(len(stratum)) for stratum in strata)


def middle_score(strata: Sequence[np.ndarray]) -> intervals.Estimate:
    """The interquartile mean over all environments."""
    middle = float(intervals.interquartile_mean(np.concatenate(strata)))
    return intervals.Estimate(middle, *_interval(strata, intervals.interquartile_mean))


def _interval(strata: Sequence[np.ndarray], statistic: Callable) -> np.ndarray:
    """95 % of a statistic; NaN if an environment has one seed, which is always drawn again."""
    found = intervals.bootstrap_intervals(strata, statistic)
    return found if min(map(len, strata)) > 1 else np.full_like(found, np.nan)


def profile(strata: Sequence[np.ndarray], taus: np.ndarray) -> np.ndarray:
    """A performance profile (Agarwal et al. 2021): the share of runs with a score above tau.

    Args:
      strata: scores (seeds,) in each environment; every run has the same weight.
      taus: (points,).

    Returns:
      (3, points): the share, and the ends of its interval, stratified by environment.
    """
    share = lambda drawn: np.stack([(drawn > tau).mean(-1) for tau in taus], -1)
    return np.stack([share(np.concatenate(strata)), *_interval(strata, share)])


def improvement(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> intervals.Estimate:
    """The probability that a run of the first is better than one of the second, in an environment
    drawn at random (Agarwal et al. 2021): the mean over environments of the share of pairs in which
    it is; a pair of equal scores counts half.

    Args:
      first, second: scores (seeds,) in each environment, the same ones for both.
    """
    strata = [*first, *second]
    cuts = np.cumsum([len(stratum) for stratum in strata])[:-1]

    def mean(drawn: np.ndarray) -> np.ndarray:
        pieces = np.split(drawn, cuts, axis=-1)
        pairs = zip(pieces[: len(first)], pieces[len(first) :])
        return np.mean([_share_above(mine, theirs) for mine, theirs in pairs], axis=0)

    return intervals.Estimate(float(mean(np.concatenate(strata))), *_interval(strata, mean))


def _share_above(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Of the pairs of the last axes; one of mine at a time, which needs less memory."""
    columns = [mine[..., i : i + 1] for i in range(mine.shape[-1])]
    shares = [((one > theirs) + 0.5 * (one == theirs)).mean(-1) for one in columns]
    return np.mean(shares, axis=0)
