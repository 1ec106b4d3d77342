"""How much an algorithm needs to be tuned for each environment, of sweeps of the same settings.

Adkins et al. 2024, https://arxiv.org/abs/2412.07165: the score of a setting h in an environment e
is its mean return over seeds on the scale of the environment's 5th and 95th percentile,

    score(e, h) = (return(e, h) - p5(e)) / (p95(e) - p5(e)),

of the returns of all settings of all algorithms that are compared there. Then

    tuned       = mean over e of max over h of score(e, h), the best setting of each environment,
    one setting = max over h of mean over e of score(e, h), the best one for all,
    sensitivity = tuned - one setting.

The effective dimensionality is the smallest number of fields that have to be tuned for each
environment, with the others as in the one setting, to reach 95 % of `tuned`.

Patterson et al. 2024, https://arxiv.org/abs/2407.18840 (CHS), choose one setting by the mean over
environments and seeds of the share of all trials there that have no higher return.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.engine import results, settings
from algorithms.launch.tools.comparison import Trial, differing

PERCENTILES = (5.0, 95.0)
ENOUGH = 0.95  # of the tuned score
RESAMPLES = 1000


class Table(NamedTuple):
    """The returns of an algorithm's settings, the same ones in each environment."""

    algorithm: str
    fields: list[str]  # that differ between settings
    settings: list[tuple]  # their values
    returns: dict[str, list[np.ndarray]]  # {environment: of each setting, (seeds,)}

    @property
    def environments(self) -> list[str]:
        return list(self.returns)


class Summary(NamedTuple):
    """What a table of scores (environments, settings) says."""

    tuned: float
    one: int  # the setting that is best for all
    one_score: float
    best: np.ndarray  # of each environment, (environments,)

    @property
    def sensitivity(self) -> float:
        return self.tuned - self.one_score


def summary(scores: np.ndarray) -> Summary:
    means = scores.mean(axis=0)
    one = int(np.argmax(means))
    best = scores.argmax(axis=1)
    return Summary(float(scores.max(axis=1).mean()), one, float(means[one]), best)


def normalized(means: np.ndarray, pool: np.ndarray) -> np.ndarray:
    """Means (settings,) on the scale of a pool's percentiles; of its ends where these coincide."""
    low, high = np.percentile(pool, PERCENTILES)
    if low == high:
        low, high = pool.min(), pool.max()
    return (means - low) / (high - low) if low < high else np.zeros_like(means)


def tuned_scores(table: Table, scores: np.ndarray, one: int) -> list[tuple[float, list[str]]]:
    """The best score with 0, 1, ... fields tuned for each environment, and which ones these are."""
    default, found = table.settings[one], []
    for count in range(len(table.fields) + 1):
        candidates = []
        for tuned in itertools.combinations(range(len(table.fields)), count):
            kept = [
                h
                for h, values in enumerate(table.settings)
                if all(i in tuned or values[i] == default[i] for i in range(len(default)))
            ]
            score = float(scores[:, kept].max(axis=1).mean())
            candidates.append((score, [table.fields[i] for i in tuned]))
        found.append(max(candidates, key=lambda one: one[0]))
    return found


def chs_scores(table: Table, pools: Sequence[np.ndarray]) -> np.ndarray:
    """Of each setting: the mean share of the trials in an environment without a higher return."""
    shares = [
        [np.mean(np.searchsorted(np.sort(pool), seeds, side="right") / len(pool)) for seeds in row]
        for row, pool in zip(table.returns.values(), pools)
    ]
    return np.mean(shares, axis=0)


def is_grid(table: Table) -> bool:
    """Whether every combination of the fields' values is a setting."""
    sizes = [len(set(values)) for values in zip(*table.settings)]
    return int(np.prod(sizes)) == len(table.settings)


# --- tables of trials ------------------------------------------------------------------------


def tables(trials: Sequence[Trial]) -> tuple[list[Table], list[str]]:
    """A table for each algorithm with several environments, and why others have none."""
    found, notes = [], []
    for algorithm, mine in results.grouped(trials, lambda trial: trial.algorithm).items():
        made = _table(algorithm, mine)
        if isinstance(made, Table):
            found.append(made)
        elif made:
            notes.append(made)
    return found, notes


def _table(algorithm: str, trials: Sequence[Trial]) -> Table | str:
    """A table, or why there is none; nothing of a single environment or setting."""
    groups = results.grouped(trials, lambda trial: trial.environment)
    configs = [[trial.outcome.setting for trial in group] for group in groups.values()]
    names = list(dict.fromkeys(name for one in configs for name in differing(one)))
    if len(groups) < 2 or not names:
        return ""
    values = lambda trial: tuple(_plain(trial.outcome.setting.get(name)) for name in names)
    cells = {env: results.grouped(group, values) for env, group in groups.items()}
    first, *others = cells.values()
    if any(other.keys() != first.keys() for other in others):
        numbers = ", ".join(f"{len(its)} on {env}" for env, its in cells.items())
        common = len(set(first).intersection(*others))
        return (
            f"sensitivity of {algorithm}: the sweeps have different settings ({numbers}, {common} "
            "on all); it takes sweeps of the same settings, as --env A B C makes them"
        )
    returns = {env: [_returns(its[h], groups[env]) for h in first] for env, its in cells.items()}
    flat = [env for env, row in returns.items() if np.ptp([seeds.mean() for seeds in row]) == 0]
    if flat:
        return f"sensitivity of {algorithm}: all returns on {flat[0]} are equal, leave it out"
    return Table(algorithm, names, list(first), returns)


def _returns(trials: Sequence[Trial], everybody: Sequence[Trial]) -> np.ndarray:
    """Final returns; a trial that broke has the lowest one of its environment."""
    finals = np.array([trial.outcome.final for trial in trials])
    others = [trial.outcome.final for trial in everybody]
    lowest = np.nanmin(others) if np.isfinite(others).any() else 0.0
    return np.where(np.isnan(finals), lowest, finals)


def _plain(value: Any) -> Any:
    """A value that can be a key of a dictionary."""
    return str(value) if isinstance(value, dict) else settings.tuples(value)


# --- text ------------------------------------------------------------------------------------


def text(trials: Sequence[Trial]) -> str:
    """What is said of each algorithm; empty where nothing compares."""
    found, notes = tables(trials)
    parts = [_text(table, found) for table in found]
    return "\n\n".join([*parts, *notes])


def _scores(table: Table, others: Sequence[Table], draws: Any = None) -> np.ndarray:
    """Scores (environments, settings), with percentiles of all algorithms there.

    Args:
      draws: chooses seeds, given returns (seeds,).
    """
    drawn = draws or (lambda seeds: seeds)
    mean = lambda row: np.array([drawn(seeds).mean() for seeds in row])
    rows = []
    for environment, row in table.returns.items():
        means = mean(row)
        pool = [mean(other.returns.get(environment, [])) for other in others if other is not table]
        rows.append(normalized(means, np.concatenate([means, *pool])))
    return np.array(rows)


def interval(table: Table, others: Sequence[Table]) -> tuple[float, float]:
    """95 % of the sensitivity with seeds drawn anew; NaNs where a setting has one seed."""
    if min(len(seeds) for row in table.returns.values() for seeds in row) < 2:
        return np.nan, np.nan
    rng = np.random.default_rng(0)
    draw = lambda seeds: rng.choice(seeds, len(seeds))
    found = [summary(_scores(table, others, draw)).sensitivity for _ in range(RESAMPLES)]
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def _text(table: Table, others: Sequence[Table]) -> str:
    scores = _scores(table, others)
    found = summary(scores)
    low, high = interval(table, others)
    name = lambda h: ", ".join(settings.text_of(dict(zip(table.fields, table.settings[h]))))
    every = lambda environment: [x for t in others for x in t.returns.get(environment, [])]
    chs = chs_scores(table, [np.concatenate(every(env)) for env in table.environments])
    chosen = int(np.argmax(chs))
    ends = f"95 %: {low:.3f} to {high:.3f}" if np.isfinite(low) else ""
    rows = [
        ["the best setting of each environment", f"{found.tuned:.3f}", ""],
        ["one setting for all", f"{found.one_score:.3f}", name(found.one)],
        ["sensitivity", f"{found.sensitivity:.3f}", ends],
        ["one setting by shares of trials (CHS)", f"{chs[chosen]:.3f}", name(chosen)],
    ]
    head = (
        f"sensitivity of {table.algorithm} to {', '.join(table.fields)}: {len(table.settings)} "
        f"settings on {', '.join(table.environments)}\n"
        "(scores: 0 and 1 are the 5th and 95th percentile of the settings in an environment)"
    )
    each = [["environment", "best setting", "score", "the one setting's score"]]
    for environment, best, row in zip(table.environments, found.best, scores):
        each.append([environment, name(best), f"{row[best]:.3f}", f"{row[found.one]:.3f}"])
    dimensionality = _dimensionality(table, scores, found)
    return "\n".join([head, *results.aligned(rows), *dimensionality, "", *results.aligned(each)])


def _dimensionality(table: Table, scores: np.ndarray, found: Summary) -> list[str]:
    if not is_grid(table):
        return ["effective dimensionality: needs all combinations of the fields' values, a grid"]
    steps = tuned_scores(table, scores, found.one)
    tuned = steps[-1][0]  # below 0 where other algorithms are better
    least = tuned - (1 - ENOUGH) * abs(tuned)
    enough = next(k for k, (score, _) in enumerate(steps) if score >= least)
    of = f"effective dimensionality: {enough} of {len(table.fields)}"
    rows = [["tuned for each environment", "score"]]
    rows += [[", ".join(names) or "none", f"{score:.3f}"] for score, names in steps]
    return [f"{of} (95 % of the score of tuning all)", *results.aligned(rows)]
