"""The results of a sweep's trials, read back from its directory."""

from pathlib import Path
from typing import Any

from algorithms.launch import objectives, settings
from algorithms.launch.errors import UserError
from algorithms.launch.metrics import Metrics, stack
from algorithms.launch.show import results
from algorithms.launch.show.results import Outcome
from algorithms.launch.storage import experiment
from algorithms.launch.storage.run_dir import RunDir


def read(
    there: experiment.Experiment, metric: str | None = None
) -> tuple[dict[int, Outcome], dict[int, Outcome]]:
    """The trials of a sweep that have reached a point, and those of its retest, by their numbers.

    An unfinished retest gives none, because its returns are not those of whole runs.

    Args:
      metric: whose returns the curves are; by default of evaluations if there are any.

    Raises:
      UserError: nothing has been trained yet.
    """
    outcomes: dict[int, Outcome] = {}
    retested: dict[int, Outcome] = {}
    is_over = True
    for entry in there.entries:
        run_dir = RunDir.open(entry.path)
        history, config = run_dir.history(entry.last), run_dir.description["config"]
        steps = history[max(history)]["timestep"].min() if history else 0
        is_over = is_over and (not entry.retest or steps >= config["total_timesteps"])
        if not history:
            continue
        swept = [n for n in there.description["grid"] if n not in run_dir.trials.floats]
        static = {n: settings.value_of(config[n]) for n in swept}
        share = reached(entry, history, config)
        given = (stack(history.values()), run_dir.is_finite(max(history)), entry.path.name, metric)
        for number, one in zip(entry.numbers, results.outcomes(static, run_dir.trials, *given)):
            into = retested if entry.retest else outcomes
            whole = one._replace(number=number, share=entry.share, reached=share)
            into[number] = whole.after(into.get(number))
    if not outcomes:
        raise UserError(f"{there.path} has no metrics yet")
    return outcomes, retested if is_over else {}


def reached(entry: experiment.Entry, history: dict[int, Metrics], config: dict[str, Any]) -> float:
    """The share of its stage that a chunk has trained: less than 1 where a stop cut it short."""
    if not history:
        return 0.0
    point = max(history)
    whole = entry.last or config.get("total_timesteps")
    there = point if entry.last else float(history[point]["timestep"].min())
    return min(1.0, there / whole) if whole else 1.0


def best_trials(sweep_dir: Path) -> list[tuple[results.Ranked, list[int]]]:
    """The best setting of each environment, and the numbers of its trials in results.csv.

    Raises:
      UserError: it is no sweep, or nothing has been trained yet.
    """
    there = experiment.open(sweep_dir)
    outcomes, retested = read(there)
    objective = objective_of(there)
    trials = retested or outcomes
    ranked = results.rank([trials[number] for number in sorted(trials)], objective)
    best = [those[0] for those in results.by_environment(ranked).values()]
    return [(one, [trial.number for trial in one.trials]) for one in best]


def objective_of(there: experiment.Experiment) -> str:
    """What a sweep's settings are ranked by."""
    return there.description.get("objective", objectives.DEFAULT)
