"""Compares runs: a table of their returns and, with --out, a picture of their learning curves.

    python -m algorithms.launch.compare runs/RUN runs/SWEEP ... [--metric episode_return]
    python -m algorithms.launch.compare runs/RUN runs/SWEEP ... --out compare.png
    python -m algorithms.launch.compare --optuna sqlite:///study.db runs/SWEEP ...

Seeds of equal settings are pooled, whatever runs they are in; where a run began (--init-from) is
one of the settings. Of finished sweeps of the same settings on several environments it also says
how much tuning for each environment brings. With --optuna sweeps become studies for
optuna-dashboard, in place of a table.
"""

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.engine import (
    experiment,
    files,
    loading,
    outcomes,
    plots,
    population,
    results,
    settings,
)
from algorithms.launch.engine.errors import UserError, refusing, warn
from algorithms.launch.engine.metrics import Metrics, stack
from algorithms.launch.engine.run_dir import RunDir
from algorithms.launch.tools import comparison, sensitivity

METRICS = {"eval_return": "evaluation return", "episode_return": "training return"}


class Compared(NamedTuple):
    """The result of a comparison."""

    panels: dict[str, list[comparison.Pooled]]  # {environment: curves, the best one first}
    text: str  # tables
    picture: Path | None  # where one was asked for


class _Run(NamedTuple):
    """The parts of a run that a comparison reads."""

    given: Path  # the run, or the sweep that it is a chunk of
    algorithm: str
    config: dict[str, Any]  # as in config.json
    trials: settings.Trials
    metrics: Metrics  # (num_trials, points, ...); empty where there are none yet
    is_finite: np.ndarray  # (num_trials,)
    population: dict[str, Any] | None = None  # of population-based training
    begun: str | None = None  # where trials began, if any of the compared runs began at another's


def compare(
    runs: Sequence[Path | str], metric: str | None = None, out: Path | str | None = None
) -> Compared:
    """Compares runs and sweeps, of any algorithms and environments.

    Args:
      runs: their directories.
      metric: "eval_return" or "episode_return"; by default the first one if all runs have it.
      out: a new PNG to draw their learning curves in; by default none is drawn.

    Raises:
      UserError: a directory has no run, no metrics yet or not this one, or the picture exists.
    """
    picture = files.new("out", out, ".png")
    paths = [files.local(run) for run in runs]
    given = dict.fromkeys(path.resolve() for path in paths)
    names = {path.resolve(): path for path in paths}
    read = _completed([run for path in given for run in _with_metrics(names[path])])
    metric = _metric(read, metric)
    trials = [trial for run in read for trial in _trials(run, metric)]
    panels = comparison.curves(trials)
    title = f"{METRICS[metric]}, interquartile mean"
    if picture:
        plots.comparison(panels, title, picture)
    tables = [comparison.table(panels), comparison.aggregate(panels), _sensitivity(trials)]
    return Compared(panels, "\n\n".join([f"{METRICS[metric]}:", *filter(None, tables)]), picture)


def _read_runs(path: Path) -> list[_Run]:
    """The run in a directory, or the chunks of the sweep there."""
    runs = []
    there = experiment.open(path)
    homes = list(there.homes(retest=False).values())
    for run_dir in there.run_dirs():
        # Trials that halving has kept stand where they came furthest.
        rows = [place for home, place in homes if home == run_dir.path]
        if not rows:
            continue
        history = run_dir.history()
        is_finite = run_dir.is_finite(max(history))[rows] if history else np.zeros(0, bool)
        metrics = {name: x[rows] for name, x in stack(history.values()).items()}
        config, trials = run_dir.description["config"], run_dir.trials.some(rows)
        evolved = run_dir.description.get("population")
        begun = _beginning(
            run_dir.description.get("init_from") or there.description.get("init_from")
        )
        run = _Run(path, run_dir.algorithm, config, trials, metrics, is_finite, evolved, begun)
        runs.append(run)
    return runs


def _beginning(init: dict[str, Any] | None) -> str | None:
    """Where trials began, in words that tell apart what must not be pooled."""
    if not init:
        return None
    trial = "" if init["trial"] is None else f", trial {init['trial']}"
    return f"{init['run']}, point {init['point']}{trial}" + ", optimizer" * init["optimizer"]


def read_trials(path: Path, metric: str | None = None) -> list[comparison.Trial]:
    """The trials of a run or a sweep, with all their settings.

    Raises:
      UserError: there is none, or it has no metrics yet.
    """
    read = _completed(_with_metrics(path))
    return [trial for run in read for trial in _trials(run, _metric(read, metric))]


def _with_metrics(path: Path) -> list[_Run]:
    runs = _read_runs(path)
    ready = [run for run in runs if run.metrics]
    if not ready:
        raise UserError(f"{path} has no metrics yet")
    if len(ready) < len(runs):
        warn(f"{path}: {len(ready)} of {len(runs)} chunks have metrics; the others are left out")
    return ready


def _completed(runs: Sequence[_Run]) -> list[_Run]:
    """The runs, those of one algorithm with the same fields. A field that a run lacks has its
    default, and a run without a source begins from scratch."""
    fields: dict[str, set[str]] = {}
    for run in runs:
        fields.setdefault(run.algorithm, set()).update(run.config)
    older = [run.algorithm for run in runs if fields[run.algorithm] - run.config.keys()]
    defaults = {}
    for algorithm in older:
        with contextlib.suppress(UserError):  # not one of `algorithms`
            defaults[algorithm] = settings.with_defaults(loading.find_module(algorithm).Config, {})
    scratch = "scratch" if any(run.begun for run in runs) else None
    return [
        run._replace(
            config=defaults.get(run.algorithm, {}) | run.config, begun=run.begun or scratch
        )
        for run in runs
    ]


def _metric(runs: Sequence[_Run], metric: str | None) -> str:
    """The metric that is asked for, or else one that all runs have."""
    if metric is not None and metric not in METRICS:
        raise UserError(f"--metric {metric}: choose one of {', '.join(METRICS)}")
    without = [run.given for run in runs if metric and metric not in run.metrics]
    if without:
        raise UserError(f"{without[0]} has no {metric}: compare by another --metric")
    everywhere = all("eval_return" in run.metrics for run in runs)
    return metric or ("eval_return" if everywhere else "episode_return")


def _trials(run: _Run, metric: str) -> list[comparison.Trial]:
    config = settings.lenient(run.config)
    environment = settings.env_label(config.pop("env"))
    if run.population:  # which is no run of the Config's floats
        config |= population.Settings.from_json(run.population).as_fields()
    if run.begun:
        config["init_from"] = run.begun
    found = results.outcomes(config, run.trials, run.metrics, run.is_finite, run.given.name, metric)
    return [comparison.Trial(run.algorithm, environment, outcome, run.given) for outcome in found]


def _sensitivity(trials: Sequence[comparison.Trial]) -> str:
    """The sensitivity text, of sweeps without halving: it gives settings different lengths."""
    swept = [trial for trial in trials if experiment.is_sweep(trial.run)]
    there = {trial.run: experiment.open(trial.run).description for trial in swept}
    halved = [run for run, said in there.items() if "halving" in said]
    stopped = [run for run in there if run not in halved and is_stopped(run)]
    left_out = {*halved, *stopped}
    parts = [sensitivity.text([trial for trial in swept if trial.run not in left_out])]
    if stopped and sensitivity.text(swept):
        names = ", ".join(map(str, stopped))
        parts.append(f"sensitivity: {names} is not finished, and left out; --resume finishes it")
    if halved and sensitivity.text(swept):
        names = ", ".join(map(str, halved))
        parts.append(
            f"sensitivity: halving has stopped settings of {names} early, which is left out; it "
            "takes sweeps without halving"
        )
    return "\n\n".join(filter(None, parts))


def is_stopped(sweep_dir: Path) -> bool:
    """Whether a chunk of a sweep is unfinished."""
    for entry in experiment.open(sweep_dir).entries:
        run_dir = RunDir.open(entry.path)
        if outcomes.reached(entry, run_dir.history(), run_dir.description) < 1.0:
            return True
    return False


def _studies(runs: Sequence[str], url: str, metric: str | None, out: str | None) -> list[str]:
    from algorithms.launch.tools import studies

    if out is not None:
        raise UserError(f"--out {out} draws a comparison: leave it out with --optuna")
    if metric is not None and metric not in METRICS:
        raise UserError(f"--metric {metric}: choose one of {', '.join(METRICS)}")
    lines = [line for run in runs for line in studies.write(run, url, metric)]
    return [*lines, f"to look at them: pip install optuna-dashboard && optuna-dashboard {url}"]


def main(argv: Sequence[str] | None = None) -> None:
    """The command line. Exit code 2 for a user's mistake, with one line that says what."""
    parser = argparse.ArgumentParser(
        prog="python -m algorithms.launch.compare",
        description="A table of what runs came to and, with --out, a picture of their curves.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="directory of a run or a sweep")
    parser.add_argument(
        "--metric", help=f"{' or '.join(METRICS)}; default: the first if all have it"
    )
    parser.add_argument("--out", metavar="FILE.png", help="draw the curves into this new file")
    parser.add_argument(
        "--optuna", metavar="URL", help="write sweeps as studies into this storage of Optuna"
    )
    words = parser.parse_args(argv)
    with refusing():
        if words.optuna:
            return print(*_studies(words.runs, words.optuna, words.metric, words.out), sep="\n")
        compared = compare(words.runs, words.metric, words.out)
        print(compared.text)
        drawn = f"curves in {compared.picture}"
        print(f"\n{drawn if compared.picture else 'curves are drawn with --out FILE.png'}")
