"""Ranks a finished sweep by another objective than its own, without training.

    python -m algorithms.launch.compare runs/SWEEP --objective steps_to=-200

What the sweep wrote stays: the new files have the objective in their names.
"""

import contextlib
import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from algorithms.launch.engine import (
    experiment,
    files,
    loading,
    objectives,
    outcomes,
    results,
    settings,
    sweep_dir,
)
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.experiment import Experiment
from algorithms.launch.engine.results import Outcome, Ranked, Retested


class Reranked(NamedTuple):
    """A sweep's settings in another order."""

    ranked: list[Ranked]  # the best setting first, of one environment after another
    retested: list[Retested]
    text: str  # the tables, and what is to know of them
    files: list[Path]  # that were written


def of_words(words: Namespace) -> str:
    """The text for a command line of `compare`.

    Raises:
      UserError: as of `rank`, or another flag or a second run is given.
    """
    given = [name for name, value in vars(words).items() if value and name != "objective"]
    others = [f"--{name.replace('_', '-')}" for name in given if name != "runs"]
    if others:
        raise UserError(
            f"--objective {words.objective} ranks one sweep anew: leave {', '.join(others)} out"
        )
    if len(words.runs) > 1:
        raise UserError(
            f"--objective {words.objective} ranks one sweep anew, and here are {len(words.runs)} "
            "directories: give one"
        )
    return rank(words.runs[0], words.objective).text


def rank(path: Path | str, objective: str) -> Reranked:
    """Ranks a finished sweep, and writes best.json, the tables and the report under new names.

    Nothing is written for the sweep's own objective, nor if one of the files exists.

    Raises:
      UserError: an unknown objective, no sweep, or one that is not finished.
    """
    objectives.check(objective)
    there = experiment.open(path)
    if not there.is_sweep:
        raise UserError(f"{path} is a run: --objective ranks the settings of a sweep")
    if not outcomes.is_over(there):
        raise UserError(f"{path} is not finished: --resume {path} finishes it, then rank it again")
    came, own = outcomes.read(there), outcomes.objective_of(there)
    trials = [_placed(there, trial) for trial in came.trials]
    retested = [trial for _, trial in sorted(came.retested.items())]
    ranked = results.rank(trials, objective)
    again = results.retests(ranked, retested, objective)
    lines = [results.table(ranked, objective)]
    lines += [results.retest_table(again, objective)] * bool(again)
    lines += _remarks(there, ranked, again, own)
    written: list[Path] = []
    if objective == own:
        lines.append(f"{objective} is this sweep's own objective: best.json has the first setting")
    else:
        made = _contents(there, trials, retested, ranked, again, objective)
        written = _written(there.path, made)
        lines.append(_in_words(there.path, made, written))
    return Reranked(ranked, again, "\n".join(lines), written)


def _placed(there: Experiment, trial: Outcome) -> Outcome:
    """A trial with the bracket and the rung that it came to, which its chunk does not say."""
    if "halving" not in there.description:
        return trial
    (stage,) = {entry.stage for entry in there.entries if entry.path.name == trial.run}
    bracket, rung = _rungs(there)[stage]
    return trial._replace(bracket=bracket, rung=rung)


def _rungs(there: Experiment) -> dict[int, tuple[int, int]]:
    """{stage: its bracket, and its rung there}, of a sweep that has all of its rungs."""
    shares = {entry.stage: entry.share for entry in there.entries if not entry.retest}
    found: dict[int, tuple[int, int]] = {}
    bracket = rung = -1
    before = 1.0
    for stage, share in sorted(shares.items()):
        is_first = share <= before  # within a bracket shares grow
        bracket, rung = (bracket + 1, 0) if is_first else (bracket, rung + 1)
        found[stage], before = (bracket, rung), share
    return found


def _remarks(
    there: Experiment, ranked: Sequence[Ranked], again: Sequence[Retested], own: str
) -> list[str]:
    """What this ranking cannot know."""
    early = sum(setting.share < 1.0 for setting in ranked)
    lines = []
    if early:
        lines.append(
            f"halving, by {own}, stopped {early} of {len(ranked)} settings early: they stand "
            "behind the others, and what they would have come to later is unknown"
        )
    if again:
        lines.append(
            f"the best setting is that of the {len(again)} retested ones, which {own} chose"
        )
    return lines


def _contents(
    there: Experiment,
    trials: Sequence[Outcome],
    retested: Sequence[Outcome],
    ranked: Sequence[Ranked],
    again: Sequence[Retested],
    objective: str,
) -> dict[str, bytes]:
    """What to write, by the name of the file."""
    suffix = f"-{objective.replace(' ', '')}"
    judged = [one.again for one in again] or ranked
    several = len(results.by_environment(ranked)) > 1
    best = sweep_dir.bests(there.path, judged, several, suffix)
    made = {name: json.dumps(one, indent=2, allow_nan=False).encode() for name, one in best.items()}
    made[f"results{suffix}.csv"] = results.csv(trials, objective).encode()
    if retested:
        made[f"retest{suffix}.csv"] = results.csv(retested, objective).encode()
    configs = [run_dir.description["config"] for run_dir in there.run_dirs()]
    names = sorted({settings.env_label(config["env"]) for config in configs})
    title = f"{there.algorithm} on {', '.join(names)}"
    module = _module(there)
    command = settings.command_of(module) if module else f"python {there.algorithm}.py"
    given = there.path, ranked, title, again, objective, _config(there, module)
    report = sweep_dir.report(_page(), *given, suffix, command=command)
    made[f"report{suffix}.html"] = report
    return made


def _page() -> Callable[..., str]:
    from algorithms.launch.tools.report.page import page

    return page


def _module(there: Experiment) -> Any:
    """The algorithm's module; None of a file of the user's own."""
    with contextlib.suppress(UserError):
        return loading.find_module(there.algorithm)
    return None


def _config(there: Experiment, module: Any) -> Any:
    """The configuration of the first chunk; None where the user's own environment is missing."""
    with contextlib.suppress(UserError):
        return module and there.run_dirs()[0].config(module.Config)
    return None


def _written(path: Path, made: dict[str, bytes]) -> list[Path]:
    """Writes all files, or none if one of them exists."""
    if any((path / name).exists() for name in made):
        return []
    try:
        for name, data in made.items():
            files.write_whole(path / name, data)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error
    return [path / name for name in made]


def _in_words(path: Path, made: dict[str, bytes], written: Sequence[Path]) -> str:
    if written:
        return f"written: {', '.join(map(str, written))}"
    there = [str(path / name) for name in made if (path / name).exists()]
    return f"nothing is written, to keep what is there: {', '.join(there)}; move it away first"
