"""Metrics of a run: rows of points (trials, ...), curves (trials, points, ...), and tables.

Those that start with `eval_` have an axis of episodes after that, and returns of several players
one of players at the end.
"""

import csv
import io
import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from algorithms.launch.engine.settings import Trials, map_plain, plain
from envs.sums import debug_nans

Metrics = dict[str, np.ndarray]
FEW = 3  # values that a sentence names
SEVERAL = 3  # points with the same return that are not so by chance
# Columns of metrics.csv besides an algorithm's metrics
PACE_NAMES = ("seconds", "steps_per_second")  # the same for all trials that train together
LAST_COLUMNS = (*PACE_NAMES, "current_learning_rate")  # the last columns of metrics.csv


def with_nan(name: str, values: np.ndarray) -> np.ndarray:
    """A metric with NaN for missing data, where the program has -0.0 under jax_debug_nans
    (`envs.sums.missing`); evaluations always have data."""
    is_mean = not name.startswith("eval_") and np.issubdtype(values.dtype, np.floating)
    if not (debug_nans() and is_mean):
        return values
    return np.where((values == 0) & np.signbit(values), np.nan, values).astype(values.dtype)


def infinite_losses(row: Metrics) -> dict[str, np.ndarray]:
    """Which trials' losses and norms of gradients are infinite: {name: (num_trials,)}.

    A NaN only means that there are no data, as before training or while a replay buffer fills.
    `parts.program` makes NaNs among the data infinite.
    """
    losses = {name: x for name, x in row.items() if name.endswith(("loss", "grad_norm"))}
    return {name: np.any(np.isinf(x).reshape(len(x), -1), axis=1) for name, x in losses.items()}


def without_losses(curves: Metrics) -> np.ndarray:
    """Which trials have no data for any loss at any point, (num_trials,): they learned nothing."""
    losses = [x for name, x in curves.items() if name.endswith("loss")]
    empty = [np.isnan(x).reshape(len(x), -1).all(1) for x in losses]
    return np.all(empty, axis=0) if empty else np.zeros(0, bool)


def same_returns(curves: Metrics) -> np.ndarray:
    """Which trials have the same training return at SEVERAL points or more, (num_trials,)."""
    if "episode_return" not in curves:
        return np.zeros(0, bool)
    returns = curves["episode_return"].reshape(*curves["timestep"].shape, -1)
    there = np.isfinite(returns)
    low = returns.min(1, where=there, initial=np.inf)
    high = returns.max(1, where=there, initial=-np.inf)
    several = there.sum(1) >= SEVERAL
    return np.asarray((several & np.isclose(low, high, rtol=1e-6)).all(1))


class Learnless:
    """Trials that had nothing to learn from, of all curves so far."""

    def __init__(self) -> None:
        self.empty: list[bool] = []  # of trials: without data for a loss
        self.same: list[bool] = []  # of trials: with a training return that stays
        self.stays = np.nan  # such a return

    def add(self, curves: Metrics) -> None:
        same = same_returns(curves)
        self.empty += [*without_losses(curves)]
        self.same += [*same]
        if same.any():
            self.stays = np.nanmax(curves["episode_return"][same][0])

    def in_words(self, every: bool = False, begun: bool = False) -> str:
        """A sentence, if there are such trials.

        Args:
          every: if all are.
          begun: they began at a policy. If it was a good one, returns may well stay.
        """
        enough = all if every else any
        if self.empty and enough(self.empty):
            return (
                f"{sum(self.empty)} of {len(self.empty)} trials learned nothing: no point has data "
                "for a loss, as while a buffer fills; a longer run or a smaller buffer would do"
            )
        if self.same and enough(self.same) and not begun:
            return (
                f"{sum(self.same)} of {len(self.same)} trials had the same training return at all "
                f"points, {self.stays:.5g} for example: no episode earned more than another, so "
                "there was nothing to learn from; more exploration, longer episodes or another "
                "reward would do"
            )
        return ""


class Idle:
    """Swept fields whose values made no difference, in all chunks so far."""

    def __init__(self) -> None:
        # {field: {two values: whether all trials that differ in these alone are equal}}
        self.pairs: dict[str, dict[tuple[float, float], bool]] = {}

    def add(self, trials: Trials, curves: Metrics) -> None:
        """Adds trials that share a program. Those that learned nothing, or broke, do not count."""
        learned = [x for n, x in curves.items() if n.endswith(("loss", "grad_norm", "return"))]
        left_out = without_losses(curves)  # (trials,), or empty: no loss tells who has learned
        if not (trials.floats and learned and left_out.size):
            return
        for x in learned:
            left_out = left_out | np.isinf(x).reshape(len(x), -1).any(1)
        count = range(trials.count)
        curve = [b"".join(np.ascontiguousarray(x[i]).tobytes() for x in learned) for i in count]
        for name, values in trials.floats.items():
            alike: dict[Any, list[int]] = {}
            for i in np.flatnonzero(~left_out):
                others = trials.setting(int(i)) | {name: trials.seeds[i]}
                alike.setdefault(tuple(others.values()), []).append(int(i))
            known = self.pairs.setdefault(name, {})
            for same in alike.values():
                for a, b in itertools.pairwise(sorted(same, key=lambda i: values[i])):
                    pair = float(values[a]), float(values[b])
                    known[pair] = known.get(pair, True) and curve[a] == curve[b]

    def in_words(self) -> str:
        """A sentence, if there are such fields."""
        told = []
        for name, pairs in self.pairs.items():
            values = dict.fromkeys(x for pair, same in pairs.items() if same for x in pair)
            few = ", ".join(map(plain, [*values][:FEW]))
            told += [f"{name}={few}{', ...' * (len(values) > FEW)}"] * bool(values)
        if not told:
            return ""
        return (
            f"{'; '.join(told)} made no difference: with the same seed, all losses and returns are "
            "equal to the last digit, so nothing that was learned depends on it"
        )


def stack(rows: Iterable[Metrics]) -> Metrics:
    """Rows of points as curves, of the metrics that all of them have."""
    rows = list(rows)
    names = [name for name in rows[0] if all(name in row for row in rows)] if rows else []
    return {name: np.stack([row[name] for row in rows], 1) for name in names}


def over_episodes(name: str, values: np.ndarray) -> np.ndarray:
    """Evaluations (trials, points, episodes, ...) as their means, whatever else as it is."""
    values = np.asarray(values)
    return values.mean(axis=2) if name.startswith("eval_") and values.ndim > 2 else values


def players(name: str, values: np.ndarray) -> list[np.ndarray]:
    """A curve (trials, points) for each player, one where there is one; the mean of episodes."""
    values = over_episodes(name, values)
    if values.ndim == 2:
        return [values]
    return [values[:, :, *player] for player in np.ndindex(values.shape[2:])]


def mean_returns(curves: Metrics, name: str | None = None) -> np.ndarray:
    """Returns over all players (trials, points): evaluation returns, or else those of training."""
    name = name or ("eval_return" if "eval_return" in curves else "episode_return")
    return np.asarray(np.mean(players(name, curves[name]), axis=0, dtype=np.float64))


def columns(row: Metrics) -> Metrics:
    """A row as named columns (trials,): one for each player, the timestep first."""
    result: Metrics = {}
    for name in sorted(row, key=lambda name: name != "timestep"):
        apart = players(name, np.asarray(row[name])[:, None])
        names = [name] if len(apart) == 1 else [f"{name}_{i}" for i in range(len(apart))]
        result |= {name: values[:, 0] for name, values in zip(names, apart)}
    return result


def as_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Comma-separated values; nine digits give a float32 back exactly."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([map(cell, row) for row in rows])
    return text.getvalue()


def as_json(values: Any) -> str:
    """Strict JSON of plain values; numbers that are not finite are null."""
    known = lambda x: None if isinstance(x, float) and not math.isfinite(x) else x
    return json.dumps(map_plain(known, values), indent=2, allow_nan=False)


def cell(value: Any) -> Any:
    """As text; missing data are "nan", and empty under jax_debug_nans."""
    if not isinstance(value, float):
        return value
    missing = debug_nans() and math.isnan(value)
    return "" if missing else format(value, ".9g")


# --- what a user should know of: a sentence each, or none ------------------------------------

DIVERGED = ("episode_diverged", "eval_diverged")
CLIPPED = 0.05  # share of targets beyond the support, above which values suffer


def cut_episodes(row: Metrics) -> str:
    """Evaluation episodes with neither flag, which `envs.evaluate` has cut."""
    if not {"eval_terminated", "eval_truncated", "eval_length"} <= row.keys():
        return ""
    cut = ~(row["eval_terminated"].astype(bool) | row["eval_truncated"].astype(bool))
    if not cut.any():
        return ""
    return (
        f"{cut.sum()} of {cut.size} evaluation episodes were cut after "
        f"{int(row['eval_length'][cut].max()):,} steps, far beyond the time limit in the "
        "parameters of the environment: its is_truncated should be true there, or --env-settings "
        "max_steps=N truncates"
    )


def diverged(row: Metrics) -> str:
    """Steps of brax and playground with NaN or infinity, which the adapters replace by 0."""
    found = [np.nanmax(x, initial=0.0) for name, x in row.items() if name in DIVERGED]
    if not any(x > 0 for x in found):
        return ""
    return (
        f"the physics diverged: NaN or infinity became 0 in {max(found):.3g} steps of an episode, "
        "which the metric diverged counts, so these returns mean little; a smaller time step of "
        "the physics or softer actions would do"
    )


def clipped_targets(row: Metrics) -> str:
    """Targets of c51, flashsac and reppo that their distribution of values does not reach."""
    shares = row.get("clipped_targets", np.zeros(0))
    share = shares[np.isfinite(shares)].max(initial=0.0)
    if share <= CLIPPED:
        return ""
    return (
        f"{100 * share:.0f} % of the targets lie beyond the largest or smallest value that the "
        "critic can have, and are clipped there: a wider v_min to v_max would do, in flashsac a "
        "larger v_max, or in reppo and reppo_discrete a larger symlog_max"
    )


ALARMS: tuple[Callable[[Metrics], str], ...] = (cut_episodes, diverged, clipped_targets)
