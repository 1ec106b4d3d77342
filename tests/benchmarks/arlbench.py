"""Lays a sweep beside a published landscape of ARLBench: do the same settings come out best?

    python -m tests.benchmarks.arlbench runs/SWEEP landscapes/cc_cartpole_ppo.csv
    python -m tests.benchmarks.arlbench runs/SWEEP landscapes    # all files of its environments

ARLBench (Becktepe et al. 2024, https://arxiv.org/abs/2409.18827) trained 256 Sobol settings of PPO,
DQN and SAC with 10 seeds on each environment. The files are in the folder `landscapes` of the data
set autorl-org/arlbench on Hugging Face; nothing is downloaded here. Its classic-control runs take
1e5 steps with 8 environments: give a sweep --total-timesteps 1e5 --num-envs 8.

A file has a row for each setting, seed and point of the curve, with the columns `seed`,
`training_steps`, `performance` and hp_config.NAME for each hyperparameter. A setting's return is
the mean over seeds at the last point; a run that crashed counts as the lowest return of all.
"""

import argparse
import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.engine import experiment, files, outcomes, results
from algorithms.launch.engine.errors import UserError, refusing
from algorithms.launch.tools import compare

NEAREST = 5  # settings of the landscape that stand for one of the sweep
BINS = 4  # of a field with more values than that
PREFIX = "hp_config."

# Environments by their names in both, and the algorithms with a landscape there.
ENVIRONMENTS = {
    "CartPole-v1": "cc_cartpole",
    "Acrobot-v1": "cc_acrobot",
    "MountainCar-v0": "cc_mountain_car",
    "MountainCarContinuous-v0": "cc_continuous_mountain_car",
    "Pendulum-v1": "cc_pendulum",
}
# Hyperparameters that mean the same, and the fields that they are. Others have no counterpart: the
# range of clipped values (vf_clip_eps) and whether and when target networks move, counted in steps.
FIELDS = {
    "ppo": {
        name: name
        for name in (
            "learning_rate",
            "clip_eps",
            "ent_coef",
            "gae_lambda",
            "max_grad_norm",
            "minibatch_size",
            "normalize_advantage",
            "vf_coef",
        )
    },
    "dqn": {
        "learning_rate": "learning_rate",
        "buffer_batch_size": "batch_size",
        "buffer_size": "buffer_size",
        "learning_starts": "learning_starts",
        "initial_epsilon": "eps_start",
        "target_epsilon": "eps_end",
        "buffer_prio_sampling": "prioritized",
        "buffer_alpha": "priority_alpha",
        "buffer_beta": "priority_beta",
        "buffer_epsilon": "priority_eps",
    },
    "sac": {
        "learning_rate": "learning_rate",
        "buffer_batch_size": "batch_size",
        "buffer_size": "buffer_size",
        "learning_starts": "learning_starts",
        "tau": "tau",
        "reward_scale": "reward_scale",
        "alpha": "initial_temperature",
        "alpha_auto": "learn_temperature",
    },
}


class Landscape(NamedTuple):
    """Settings and what they came to; NaN is a field that a setting does not have."""

    fields: dict[str, np.ndarray]  # {field: (settings,)}, bools as 0 and 1
    returns: np.ndarray  # (settings,)
    steps: int  # of the last point


class Axis(NamedTuple):
    """A field's scale: 0 and 1 are the ends of the published range, in logarithms where values were
    drawn so: they span two orders of magnitude, and most are far below the middle."""

    low: float
    high: float
    is_log: bool

    @classmethod
    def of(cls, values: np.ndarray) -> "Axis":
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        far_below = float(np.nanmedian(values)) - low < 0.25 * (high - low)
        is_log = low > 0 and high >= 100 * low and far_below
        return cls(math.log(low), math.log(high), True) if is_log else cls(low, high, False)

    def place(self, values: np.ndarray) -> np.ndarray:
        """Values beyond are at most one more range away: the logarithm of 0 is not."""
        with np.errstate(divide="ignore"):
            values = np.log(values) if self.is_log else values
        return np.clip((values - self.low) / ((self.high - self.low) or 1.0), -1.0, 2.0)


# --- reading ---------------------------------------------------------------------------------


def read(file: Path, algorithm: str) -> Landscape:
    """A published landscape.

    Raises:
      UserError: the file cannot be read, or has not the columns of one.
    """
    try:
        with open(file, newline="") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    names = list(rows[0]) if rows else []
    own = [name for name in names if name.startswith(PREFIX)]
    missing = [name for name in ("seed", "training_steps", "performance") if name not in names]
    if missing or not own:
        lacks = ", ".join(missing or [f"{PREFIX}NAME"])
        raise UserError(f"{file} is no landscape of ARLBench: it has no column {lacks}")
    known = {PREFIX + theirs: field for theirs, field in FIELDS[algorithm].items()}
    lowest = min((x for x in (_number(row["performance"]) for row in rows) if x == x), default=0.0)
    last = max(_number(row["training_steps"]) for row in rows)
    groups: dict[tuple, list[float]] = {}
    for row in rows:
        if _number(row["training_steps"]) == last:
            score = _number(row["performance"])
            key = tuple(row[name] for name in own)
            groups.setdefault(key, []).append(lowest if math.isnan(score) else score)
    columns = {name: [_number(key[i]) for key in groups] for i, name in enumerate(own)}
    fields = {known[name]: np.array(x) for name, x in columns.items() if name in known}
    fields = {name: x for name, x in fields.items() if not np.isnan(x).all()}
    if not fields:
        raise UserError(f"{file} has no hyperparameter of {algorithm} that is a field here")
    return Landscape(fields, np.array([np.mean(x) for x in groups.values()]), int(last))


def _number(cell: Any) -> float:
    """A cell, with true and false as 1 and 0; NaN for what is no number."""
    words = {"true": 1.0, "false": 0.0}
    try:
        return words[cell.lower()] if cell.lower() in words else float(cell)
    except (AttributeError, ValueError):
        return math.nan


def _own(trials: Sequence[Any], algorithm: str) -> Landscape:
    """A sweep's settings in one environment, as a landscape."""
    groups = results.grouped(trials, lambda trial: str(trial.outcome.setting))
    finals = [[trial.outcome.final for trial in those] for those in groups.values()]
    flat = [x for seeds in finals for x in seeds if x == x]
    if not flat:
        raise UserError("no trial of the sweep has a return")
    returns = np.array([np.mean([min(flat) if x != x else x for x in seeds]) for seeds in finals])
    configs = [those[0].outcome.setting for those in groups.values()]
    names = FIELDS[algorithm].values()
    fields = {name: np.array([_value(config, name) for config in configs]) for name in names}
    steps = max(int(trial.outcome.timesteps[-1]) for trial in trials)
    return Landscape(fields, returns, steps)


def _value(config: dict[str, Any], name: str) -> float:
    if name == "minibatch_size":
        return config["num_envs"] * config["num_steps"] / config["num_minibatches"]
    return float(config[name])


# --- comparing -------------------------------------------------------------------------------


def nearest(own: Landscape, published: Landscape) -> tuple[np.ndarray, np.ndarray]:
    """For each setting of the sweep: the mean return of the nearest published settings, and their
    mean distance, as the root mean square over the fields (1 is the published range of a field)."""
    axes = {name: Axis.of(values) for name, values in published.fields.items()}
    place = lambda one: np.stack([axis.place(one.fields[n]) for n, axis in axes.items()], 1)
    gaps = place(own)[:, None] - place(published)[None]  # (own, published, fields)
    distances = np.sqrt(np.nanmean(np.square(gaps), axis=2))
    order = np.argsort(distances, axis=1, kind="stable")[:, :NEAREST]
    return (
        published.returns[order].mean(axis=1),
        np.take_along_axis(distances, order, axis=1).mean(axis=1),
    )


class Marginal(NamedTuple):
    """Mean returns over all settings with a field in a range."""

    middles: np.ndarray  # the sweep's mean value in each range
    own: np.ndarray
    published: np.ndarray  # NaN where no published setting is in the range


def marginal(name: str, own: Landscape, published: Landscape) -> Marginal:
    """Ranges are around the sweep's values of the field; many values are cut at their quartiles."""
    axis = Axis.of(published.fields[name])
    mine, theirs = axis.place(own.fields[name]), axis.place(published.fields[name])
    values = np.unique(mine)
    if len(values) > BINS:
        edges = np.quantile(mine, np.linspace(0, 1, BINS + 1)[1:-1])
    else:
        edges = (values[1:] + values[:-1]) / 2
    bins = range(len(edges) + 1)
    bin_of = lambda places: np.where(np.isnan(places), -1, np.searchsorted(edges, places))
    mean = lambda x, where: float(x[where].mean()) if where.any() else math.nan
    over = lambda x, places: np.array([mean(x, bin_of(places) == i) for i in bins])
    return Marginal(
        over(own.fields[name], mine), over(own.returns, mine), over(published.returns, theirs)
    )


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's, with mean ranks for ties; NaN where one of them is constant."""
    ranks = [_ranks(values) for values in (x, y)]
    if min(np.ptp(r) for r in ranks) == 0:
        return math.nan
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


# --- text ------------------------------------------------------------------------------------


def is_stopped(there: experiment.Experiment) -> bool:
    """Whether a chunk of a sweep is unfinished."""
    return any(part.reached < 1.0 for part in outcomes.parts_of(there))


def beside(sweep: Path | str, landscapes: Path | str) -> str:
    """Tables of a sweep beside the landscapes of its environments.

    Args:
      sweep: its directory.
      landscapes: a file, or a folder of files ENVIRONMENT_ALGORITHM.csv.

    Raises:
      UserError: the sweep or a landscape cannot be read, or there is none of its environments.
    """
    there = experiment.open(sweep)
    if "halving" in there.description:
        raise UserError(
            f"{sweep}: halving has stopped settings early, and their returns do not compare with "
            "the others'; give a sweep without it"
        )
    if is_stopped(there):
        raise UserError(f"{sweep} is not finished; --resume finishes it")
    trials = compare.read_trials(Path(sweep))
    parts, wanted = [], []
    groups = results.grouped(trials, lambda trial: (trial.algorithm, trial.environment))
    for (algorithm, environment), those in groups.items():
        if algorithm not in FIELDS or environment not in ENVIRONMENTS:
            continue
        name = f"{ENVIRONMENTS[environment]}_{algorithm}.csv"
        file = files.local(landscapes)
        file = file / name if file.is_dir() else file
        wanted.append(name)
        if file.name == name and file.exists():
            own, published = _own(those, algorithm), read(file, algorithm)
            parts.append(_text(f"{algorithm} on {environment}", own, published, file))
    if not parts:
        has = ", ".join(f"{algorithm} on {environment}" for algorithm, environment in groups)
        needs = (
            f"give {' or '.join(wanted)}"
            if wanted
            else (f"ARLBench has {', '.join(FIELDS)} on {', '.join(ENVIRONMENTS)}")
        )
        raise UserError(f"{landscapes} has no landscape for {sweep} ({has}): {needs}")
    return "\n\n".join(parts)


def _text(title: str, own: Landscape, published: Landscape, file: Path) -> str:
    varied = [n for n in published.fields if len(np.unique(own.fields[n])) > 1]
    if not varied:
        raise UserError(
            f"{file}: the sweep varies none of {', '.join(published.fields)}, so there is "
            "nothing to compare"
        )
    near, distance = nearest(own, published)
    lines = [
        f"{title}: {len(own.returns)} settings at step {own.steps:,} beside "
        f"{len(published.returns)} of {file.name} at step {published.steps:,}",
        f"rank correlation with the {NEAREST} nearest published settings: "
        f"{rank_correlation(own.returns, near):.3f} (mean distance {distance.mean():.2f} of a "
        "field's range)",
        f"best return: {own.returns.max():.5g} here, {published.returns.max():.5g} published",
    ]
    rows = [["field", "around", "return here", "published", "rank correlation"]]
    for name in varied:
        found = marginal(name, own, published)
        both = ~np.isnan(found.published)
        few = both.sum() < 3
        correlation = math.nan if few else rank_correlation(found.own[both], found.published[both])
        for i, (middle, here, there) in enumerate(zip(*found)):
            last = "" if i else ("-" if math.isnan(correlation) else f"{correlation:.2f}")
            published_return = "-" if math.isnan(there) else f"{there:.5g}"
            rows.append([name * (not i), f"{middle:.3g}", f"{here:.5g}", published_return, last])
    return "\n".join([*lines, *results.aligned(rows)])


def main(argv: Sequence[str] | None = None) -> None:
    """The command line. Exit code 2 for a user's mistake, with one line that says what."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.arlbench",
        description="A sweep beside the landscapes that ARLBench has published.",
        allow_abbrev=False,
    )
    parser.add_argument("sweep", metavar="SWEEP", help="directory of a sweep")
    parser.add_argument(
        "landscapes", metavar="CSV", help="a landscape, or a folder of them; nothing is downloaded"
    )
    words = parser.parse_args(argv)
    with refusing():
        print(beside(words.sweep, words.landscapes))


if __name__ == "__main__":
    main()
