"""Ranks a finished sweep by another objective than its own, without training.

    python -m algorithms.launch.compare runs/SWEEP --objective steps_to=-200

What the sweep wrote stays: the new files have the objective in their names.
"""

import contextlib
import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    return rank(words.runs[0], words.objective)


def rank(path: Path | str, objective: str) -> str:
    """Ranks a finished sweep, and writes best.json, the tables and the report under new names.

    Nothing is written for the sweep's own objective, nor if one of the files exists.

    Returns:
      The tables, what is to know of them, and what was written.

    Raises:
      UserError: an unknown objective, no sweep, or one that is not finished.
    """
    objectives.check(objective)
    there = experiment.open(path)
    if not there.is_sweep:
        raise UserError(f"{path} is a run: --objective ranks the settings of a sweep")
    if not outcomes.is_over(there):
        raise UserError(f"{path} is not finished: --resume {path} finishes it, then rank it again")
    came, own, rungs = outcomes.read(there), outcomes.objective_of(there), _rungs(there)
    at = {entry.path.name: rungs[entry.stage] for entry in there.entries if not entry.retest}
    trials = [t._replace(bracket=at[t.run][0], rung=at[t.run][1]) for t in came.trials]
    retested = came.retests
    ranked = results.rank(trials, objective)
    again = results.retests(ranked, retested, objective)
    lines = [results.table(ranked, objective)]
    lines += [results.retest_table(again, objective)] * bool(again)
    lines += _remarks(ranked, again, own)
    if objective == own:
        lines.append(f"{objective} is this sweep's own objective: best.json has the first setting")
    else:
        made = _contents(there, trials, retested, ranked, again, objective)
        lines.append(_written(there.path, made))
    return "\n".join(lines)


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


def _remarks(ranked: Sequence[Ranked], again: Sequence[Retested], own: str) -> list[str]:
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
    from algorithms.launch.tools.report import page

    suffix = f"-{objective.replace(' ', '')}"
    judged = [one.again for one in again] or ranked
    several = len(results.by_environment(ranked)) > 1
    best = sweep_dir.bests(there.path, judged, several, suffix)
    made = {name: json.dumps(one, indent=2, allow_nan=False).encode() for name, one in best.items()}
    made[f"results{suffix}.csv"] = results.csv(trials, objective).encode()
    if retested:
        made[f"retest{suffix}.csv"] = results.csv(retested, objective).encode()
    run_dirs = there.run_dirs()
    names = sorted({settings.env_label(one.description["config"]["env"]) for one in run_dirs})
    title = f"{there.algorithm} on {', '.join(names)}"
    module: Any = None
    config: Any = None
    with contextlib.suppress(UserError):  # a file, or an environment, of the user's own
        module = loading.find_module(there.algorithm)
        config = run_dirs[0].config(module.Config)
    given = there.path, ranked, title, again, objective, module, config
    made[f"report{suffix}.html"] = page.of_sweep(*given, suffix).encode()
    return made


def _written(path: Path, made: dict[str, bytes]) -> str:
    """Writes all files, or none if one of them exists. Says which ones, or why not."""
    if there := [str(path / name) for name in made if (path / name).exists()]:
        return f"nothing is written, to keep what is there: {', '.join(there)}; move it away first"
    try:
        with files.writing(path):
            for name, data in made.items():
                files.write_whole(path / name, data)
    except UserError as error:  # of somebody else's sweep, which may be read all the same
        return f"nothing is written: {error}"
    return f"written: {', '.join(str(path / name) for name in made)}"
