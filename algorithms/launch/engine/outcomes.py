"""The results of trials, read back from their directory, and which of them is the best one."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algorithms import parts
from algorithms.launch.engine import experiment, objectives, results, settings
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.metrics import Metrics, mean_returns, players, stack
from algorithms.launch.engine.run_dir import RunDir


def parts_of(there: experiment.Experiment, whole: bool = False) -> list[results.Part]:
    """The chunks of a sweep, or a run, as far as they came.

    Args:
      whole: settings are all of the Config, as config.json has it, not the swept fields alone.
    """
    found = []
    for entry in there.entries:
        run_dir = RunDir.open(entry.path)
        history, config = run_dir.history(entry.last), run_dir.description["config"]
        swept = [n for n in there.description.get("grid", ()) if n not in run_dir.trials.floats]
        part = results.Part(
            setting=config if whole else {n: settings.value_of(config[n]) for n in swept},
            trials=run_dir.trials,
            metrics=stack(history.values()),
            is_finite=run_dir.is_finite(max(history)) if history else np.zeros(0, bool),
            run=entry.path.name,
            numbers=entry.numbers,
            retest=entry.retest,
            share=entry.share,
            reached=reached(entry, history, run_dir.description),
        )
        found.append(part)
    return found


def read(there: experiment.Experiment, metric: str | None = None) -> results.Came:
    """The trials of a sweep that have reached a point, and those of its retest.

    An unfinished retest gives none, because its returns are not those of whole runs.

    Args:
      metric: whose returns the curves are; by default of evaluations if there are any.

    Raises:
      UserError: nothing has been trained yet.
    """
    came, found = results.Came({}, {}), parts_of(there)
    for part in found:
        came.add(part, metric)
    if not came.first:
        raise UserError(f"{there.path} has no metrics yet")
    is_over = all(part.reached == 1.0 for part in found if part.retest)
    return came if is_over else came._replace(retested={})


def reached(
    entry: experiment.Entry, history: dict[int, Metrics], description: dict[str, Any]
) -> float:
    """The share of its stage that a chunk has trained: less than 1 where a stop cut it short.

    Args:
      description: the content of its config.json, without `points` if an earlier version wrote it.
    """
    if not history:
        return 0.0
    point = max(history)
    if last := entry.last or description.get("points"):
        return min(1.0, point / last)
    total = description["config"].get("total_timesteps")
    return min(1.0, float(history[point]["timestep"].min()) / total) if total else 1.0


def is_over(there: experiment.Experiment) -> bool:
    """Whether a sweep has come to its end, with all of its rungs and its retest."""
    said, brackets = there.description, 1
    if "halving" in said:
        brackets = said["halving"].get("brackets", 1)
    ends = {entry.stage for entry in there.entries if entry.share == 1.0 and not entry.retest}
    retested = "retest" not in said or any(entry.retest for entry in there.entries)
    made = len(ends) == brackets and retested
    return made and all(part.reached == 1.0 for part in parts_of(there))


def best_trials(sweep_dir: Path) -> list[tuple[results.Ranked, list[int]]]:
    """The best setting of each environment, and the numbers of its trials in results.csv.

    Raises:
      UserError: it is no sweep, or nothing has been trained yet.
    """
    there = experiment.open(sweep_dir)
    came = read(there)
    objective = objective_of(there)
    trials = came.retested or came.first
    ranked = results.rank([trials[number] for number in sorted(trials)], objective)
    best = [those[0] for those in results.by_environment(ranked).values()]
    return [(one, [trial.number for trial in one.trials]) for one in best]


class Chosen(NamedTuple):
    """The trials that a command is about."""

    numbers: list[int]  # as `load` takes them
    why: list[str]  # lines for people, of a run or sweep that has several trials


def choose(there: experiment.Experiment, trial: int | str = "best") -> Chosen:
    """The trials that a number, "best" or "all" names, by one rule for all commands.

    "best" is the only trial of a run, or the one with the best last point. Of a sweep it is the
    best one of the best setting, by the sweep's objective. "all" are all trials of a run, or all
    seeds of that setting. A sweep in several environments has a best setting in each of them.

    Raises:
      UserError: it is something else, or nothing has been trained yet.
    """
    if not isinstance(trial, str):
        number = parts.value_like(0, trial)
        if type(number) is not int:
            raise UserError(f"trial={trial}: give best, all or a number")
        return Chosen([number], [])
    if trial not in ("best", "all"):
        raise UserError(f"trial={trial}: give best, all or a number")
    if not there.is_sweep:
        run = there.run_dir()
        everyone = list(range(run.trials.count))
        return Chosen(everyone, []) if trial == "all" or len(everyone) == 1 else _best_of_run(run)
    objective = objective_of(there)
    chosen = Chosen([], [])
    for setting, numbers in best_trials(there.path):
        mine = numbers if trial == "all" else [numbers[_best_seed(setting, objective)]]
        name = ", ".join(settings.text_of(setting.setting)) or "the only one"
        why = f"return {setting.mean:.5g}" if len(setting.finals) else "no finite return"
        if objective != objectives.DEFAULT:
            why += f", {objective} {objectives.text(objective, setting.score(objective))}"
        who = f"trial{'s' * (len(mine) > 1)} {', '.join(map(str, mine))}"
        of = f", the best of {len(numbers)} seeds" if len(mine) < len(numbers) else ""
        chosen.numbers.extend(mine)
        chosen.why.append(f"{there.path} is a sweep; its best setting is {name} ({why}): {who}{of}")
    return chosen


def one_of(there: experiment.Experiment, trial: int | str = "best") -> int:
    """The number of the one trial that is asked for, see `choose`.

    Raises:
      UserError: as `choose`, or it is more than one.
    """
    if isinstance(trial, str) and trial == "all":
        raise UserError("trial=all: give best or a number, it has to be a single one")
    numbers = choose(there, trial).numbers
    if len(numbers) > 1:
        raise UserError(
            f"{there.path} has a best setting for each of {len(numbers)} environments: say which "
            "trial of its results.csv"
        )
    return numbers[0]


def _best_seed(setting: results.Ranked, objective: str) -> int:
    """The place of a setting's best trial; of equal ones by the objective that with the higher
    return, and then the first one."""
    value = lambda trial: np.nan_to_num(
        [objectives.score(objective, [trial]), trial.final], nan=-np.inf
    ).tolist()
    values = [value(trial) for trial in setting.trials]
    return max(range(len(values)), key=values.__getitem__)


def _best_of_run(run: RunDir) -> Chosen:
    """The trial with the best last point.

    That is the highest mean return or, where it was measured, the least exploitability. Trials
    whose policy is not finite come last. Where the returns of several players cancel, all trials
    tie, and the first one is taken.
    """
    count = f"{run.path} has {run.trials.count} trials"
    row, is_finite = _last_row(run)
    if not row:
        return Chosen([0], [f"{count} and no metrics to tell which is best: trial 0"])
    curves = stack([row])
    if "eval_exploitability" in row:  # the return of a policy against itself says nothing
        what, values = "exploitability", curves["eval_exploitability"][:, 0]
        scores, tiny = -values, 0.0
    else:
        what, values = "return", mean_returns(curves)[:, 0]
        name = "eval_return" if "eval_return" in row else "episode_return"
        apart = np.abs(players(name, curves[name]))
        scores, tiny = values, 1e-6 * np.nan_to_num(apart).max() if len(apart) > 1 else 0.0
    scores = np.where(np.isnan(scores) | ~is_finite, -np.inf, scores)
    best = int(np.argmax(scores >= scores.max() - tiny))
    label = f"{run.trials.label(best)}, {what} {values[best]:.5g}"
    return Chosen([best], [f"{count}; the best one at the last point is trial {best} ({label})"])


def _last_row(run: RunDir) -> tuple[Metrics, np.ndarray]:
    """The metrics (trials, ...) of the last point that has some, and which trials were finite."""
    for point in reversed(run.points("policy")):
        try:
            said = run.says(point)
        except UserError:  # damaged
            continue
        if said["metrics"]:
            return said["metrics"], said["is_finite"]
    return {}, np.zeros(0, bool)


def objective_of(there: experiment.Experiment) -> str:
    """What a sweep's settings are ranked by."""
    return there.description.get("objective", objectives.DEFAULT)
