"""Compares runs: a table of their returns and, if asked for, figures and tables for a paper.

    python -m algorithms.launch.compare runs/RUN runs/SWEEP ... [--metric episode_return]
    python -m algorithms.launch.compare runs/RUN runs/SWEEP ... --out curves.pdf --table table.tex
    python -m algorithms.launch.compare --optuna sqlite:///study.db runs/SWEEP ...
    python -m algorithms.launch.compare runs/SWEEP --objective steps_to=-200

Seeds of equal settings are pooled, whatever runs they are in; a seed that is in several counts
once. Where a run began (--init-from) is a setting, and so is the text of a file of the user's that
was edited between runs (versions.json). Of finished sweeps of the same settings on several
environments it also says how much tuning for each environment brings. With --optuna sweeps become
studies for optuna-dashboard, in place of a table. With --objective the settings of one sweep are
ranked anew, see `ranking`.
"""

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from algorithms.launch.engine import (
    experiment,
    files,
    loading,
    outcomes,
    population,
    results,
    settings,
    versions,
)
from algorithms.launch.engine.errors import UserError, refusing, warn
from algorithms.launch.engine.run_dir import sessions_of
from algorithms.launch.tools import comparison, paper, ranking, sensitivity

METRICS = {"eval_return": "evaluation return", "episode_return": "training return"}


class Compared(NamedTuple):
    """The result of a comparison."""

    panels: dict[str, list[comparison.Pooled]]  # {environment: curves, the best one first}
    text: str  # tables
    picture: Path | None  # where one was asked for
    made: Sequence[str] = ()  # what is in which file, and lines for captions


class _Given(NamedTuple):
    """A run or a sweep that is compared."""

    there: experiment.Experiment
    parts: list[results.Part]  # with metrics; their settings are the whole configuration
    is_stopped: bool  # before its end
    begun: str | None  # where trials began, if any of the compared ones began at a run


def compare(
    runs: Sequence[Path | str],
    metric: str | None = None,
    out: Path | str | None = None,
    **asked: Any,
) -> Compared:
    """Compares runs and sweeps, of any algorithms and environments.

    Args:
      runs: their directories.
      metric: "eval_return" or "episode_return"; by default the first one if all runs have it.
      out: a new .pdf, .svg or .png to draw their learning curves in; by default none is drawn.
      **asked: other flags of `paper.FLAGS`; those that are repeated take {name: value}, such as
        `curve={"ppo": "PPO"}` or `normalize={"CartPole-v1": "0:500"}`.

    Raises:
      UserError: a directory has no run, no metrics yet or not this one, a file exists, or a value
        cannot be.
    """
    figures = paper.Paper({"out": out, **asked})
    paths = [files.local(run) for run in runs]
    given = dict.fromkeys(path.resolve() for path in paths)
    names = {path.resolve(): path for path in paths}
    read = _completed([_read(names[path]) for path in given])
    metric = _metric(read, metric)
    every = [trial for one in read for trial in _trials(one, metric)]
    comparison.tell_of_repeated(every)
    trials = comparison.once(every)
    panels = figures.chosen(comparison.curves(trials))
    tables = [comparison.table(panels), comparison.aggregate(panels, figures.bounds)]
    more, made = figures.make(panels, METRICS[metric])
    tables += [more, _sensitivity(read, every)]
    text = "\n\n".join([f"{METRICS[metric]}:", *filter(None, tables)])
    return Compared(panels, text, figures.paths["out"], made)


def _read(path: Path) -> _Given:
    """What a directory has; a retest is no part of it.

    Raises:
      UserError: there is nothing, or it has no metrics yet.
    """
    there = experiment.open(path)
    every = outcomes.parts_of(there, whole=True)
    parts = [part for part in every if not part.retest]
    ready = [part for part in parts if part.metrics]
    if not ready:
        raise UserError(f"{path} has no metrics yet")
    if len(ready) < len(parts):
        warn(f"{path}: {len(ready)} of {len(parts)} chunks have metrics; the others are left out")
    is_stopped = any(part.reached < 1.0 for part in every)
    return _Given(there, ready, is_stopped, _beginning(there.description.get("init_from")))


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
    read = _completed([_read(path)])
    return [trial for one in read for trial in _trials(one, _metric(read, metric))]


def _completed(given: Sequence[_Given]) -> list[_Given]:
    """The same, those of one algorithm with the same fields. A field that one lacks has its
    default, and one without a source begins from scratch."""
    fields: dict[str, set[str]] = {}
    for one in given:
        for part in one.parts:
            fields.setdefault(one.there.algorithm, set()).update(part.setting)
    lacks = lambda one: any(fields[one.there.algorithm] - part.setting.keys() for part in one.parts)
    files = _files(given)
    defaults: dict[str, dict[str, Any]] = {}
    for algorithm in {one.there.algorithm for one in given if lacks(one)}:
        with contextlib.suppress(UserError):  # not one of `algorithms`
            defaults[algorithm] = settings.with_defaults(loading.find_module(algorithm).Config, {})
    scratch = "scratch" if any(one.begun for one in given) else None
    filled = lambda one, part: part._replace(
        setting={
            **defaults.get(one.there.algorithm, {}),
            **part.setting,
            **files[_run_of(one, part)],
        }
    )
    return [
        one._replace(parts=[filled(one, part) for part in one.parts], begun=one.begun or scratch)
        for one in given
    ]


def _files(given: Sequence[_Given]) -> dict[Path, dict[str, str]]:
    """{run: {file: digest}} of the user's files that are not the same in all runs of an algorithm
    in an environment, and of objects that do not do the same. An object's file may be any script,
    and does not count."""
    tasks: dict[Any, dict[Path, bool]] = {}  # whether a run is of an object
    for one in given:
        for part in one.parts:
            env = part.setting["env"]
            task = one.there.algorithm, settings.env_label(env)
            tasks.setdefault(task, {})[_run_of(one, part)] = isinstance(env, dict)
    found = {}
    for (algorithm, _), runs in tasks.items():
        for run, edits in zip(runs, versions.edits(map(sessions_of, runs))):
            own = [name for name in edits if name.endswith(".py") and name != f"{algorithm}.py"]
            left_out = own if runs[run] else []
            found[run] = {name: x for name, x in edits.items() if name not in left_out}
    return found


def _run_of(given: _Given, part: results.Part) -> Path:
    return given.there.path / part.run if given.there.is_sweep else given.there.path


def _metric(given: Sequence[_Given], metric: str | None) -> str:
    """The metric that is asked for, or else one that all have."""
    if metric is not None and metric not in METRICS:
        raise UserError(f"--metric {metric}: choose one of {', '.join(METRICS)}")
    has = lambda one, name: all(name in part.metrics for part in one.parts)
    without = [one.there.path for one in given if metric and not has(one, metric)]
    if without:
        raise UserError(f"{without[0]} has no {metric}: compare by another --metric")
    everywhere = all(has(one, "eval_return") for one in given)
    return metric or ("eval_return" if everywhere else "episode_return")


def _trials(given: _Given, metric: str) -> list[comparison.Trial]:
    """Where halving has kept trials, they stand where they came furthest."""
    more: dict[str, Any] = {}
    if asked := given.there.description.get("population"):  # which is no run of the Config's floats
        more |= population.Settings.from_json(asked).as_fields()
    if given.begun:
        more["init_from"] = given.begun
    came = results.Came({}, {})
    for part in given.parts:
        config = settings.lenient(dict(part.setting))
        config["env"] = settings.env_label(config["env"])
        came.add(part._replace(setting=config | more, run=given.there.path.name), metric)
    return [_trial(given, outcome) for outcome in came.trials]


def _trial(given: _Given, outcome: results.Outcome) -> comparison.Trial:
    others = {name: value for name, value in outcome.setting.items() if name != "env"}
    own = outcome._replace(setting=others)
    return comparison.Trial(given.there.algorithm, outcome.setting["env"], own, given.there.path)


def _sensitivity(given: Sequence[_Given], trials: Sequence[comparison.Trial]) -> str:
    """The sensitivity text, of sweeps without halving: it gives settings different lengths."""
    sweeps = {one.there.path: one for one in given if one.there.is_sweep}
    halved = [path for path, one in sweeps.items() if "halving" in one.there.description]
    stopped = [path for path, one in sweeps.items() if one.is_stopped and path not in halved]
    swept = comparison.once([trial for trial in trials if trial.run in sweeps])
    whole = [trial for trial in swept if trial.run not in (*halved, *stopped)]
    parts = [sensitivity.text(whole)]
    if len(whole) < len(swept) and sensitivity.text(swept):
        names = ", ".join(map(str, stopped))
        said = f"sensitivity: {names} is not finished, and left out; --resume finishes it"
        parts += [said] * bool(stopped)
        names = ", ".join(map(str, halved))
        said = (
            f"sensitivity: halving has stopped settings of {names} early, which is left out; it "
            "takes sweeps without halving"
        )
        parts += [said] * bool(halved)
    return "\n\n".join(filter(None, parts))


def _studies(runs: Sequence[str], url: str, metric: str | None, asked: dict[str, Any]) -> list[str]:
    from algorithms.launch.tools import studies

    for flag, value in asked.items():
        raise UserError(f"--{flag} {value} is of a comparison: leave it out with --optuna")
    if metric is not None and metric not in METRICS:
        raise UserError(f"--metric {metric}: choose one of {', '.join(METRICS)}")
    lines = [line for run in runs for line in studies.write(run, url, metric)]
    return [*lines, f"to look at them: pip install optuna-dashboard && optuna-dashboard {url}"]


def main(argv: Sequence[str] | None = None) -> None:
    """The command line. Exit code 2 for a user's mistake, with one line that says what."""
    parser = argparse.ArgumentParser(
        prog="python -m algorithms.launch.compare",
        description="A table of what runs came to and, if asked for, figures and tables of them.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="directory of a run or a sweep")
    parser.add_argument(
        "--metric", help=f"{' or '.join(METRICS)}; default: the first if all have it"
    )
    paper.add_flags(parser)
    parser.add_argument(
        "--optuna", metavar="URL", help="write sweeps as studies into this storage of Optuna"
    )
    parser.add_argument(
        "--objective", metavar="NAME", help="rank one sweep anew, by mean_return, steps_to=475, ..."
    )
    words = parser.parse_args(argv)
    with refusing():
        asked = paper.flags_of(words)
        if words.objective is not None:
            return print(ranking.of_words(words))
        if words.optuna:
            return print(*_studies(words.runs, words.optuna, words.metric, asked), sep="\n")
        compared = compare(words.runs, words.metric, **asked)
        lines = compared.made or ["curves are drawn with --out FILE.pdf"]
        print(compared.text, "", *lines, sep="\n")
