"""A sweep as an Optuna study, which optuna-dashboard and Optuna's plots read."""

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.launch.engine import (
    distributions,
    experiment,
    objectives,
    outcomes,
    results,
    settings,
)
from algorithms.launch.engine.errors import UserError

WIDE = 5.0  # ratio of listed positive numbers, from which on their axis is logarithmic


def write(sweep_dir: Path | str, url: str, metric: str | None = None) -> list[str]:
    """Writes a sweep's settings into a storage of Optuna. Returns a line for each study.

    The study has the name of the sweep's directory; of several environments each has its own. A
    trial of it is a setting: its value is the sweep's objective, its intermediate values are the
    means of its seeds' curves at their timesteps. Settings with broken seeds have failed, those
    that did not train to the end are pruned. A retest is no part of it.

    Args:
      url: of the storage, sqlite:///study.db.
      metric: whose returns; by default of evaluations if there are any.

    Raises:
      UserError: optuna is missing, the storage cannot be opened or has such a study, or there is no
        sweep.
    """
    optuna = _optuna()
    there = experiment.open(sweep_dir)
    if not there.is_sweep:
        raise UserError(f"{sweep_dir} is a run: a study has many settings, give a sweep")
    objective = outcomes.objective_of(there)
    came = outcomes.read(there, metric)
    groups = results.by_environment(results.rank(came.trials, objective))
    storage = _storage(optuna, url)
    base = there.path.resolve().name
    names = {env: f"{base}-{env}" if len(groups) > 1 else base for env in groups}
    for name in names.values():
        if name in optuna.get_all_study_names(storage):
            raise UserError(f"{url} has a study {name} already: give another storage, or delete it")
    lines = []
    for env, ranked in groups.items():
        trials = _trials(optuna, there, ranked, objective)
        _add(optuna, storage, names[env], there, objective, trials)
        counts = Counter(trial.state.name.lower() for trial in trials)
        words = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        lines.append(f"study {names[env]} in {url}: {len(trials)} trials, {words}")
    return lines


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError("--optuna needs optuna: pip install optuna") from error
    return optuna


def _storage(optuna: Any, url: str) -> Any:
    """The storage of a URL."""
    if "://" not in url:
        raise UserError(f"--optuna {url}: give the URL of a storage, sqlite:///{url}")
    try:
        return optuna.storages.get_storage(url)
    except Exception as error:  # of a driver that is missing, of a database that does not answer
        reason = str(error).partition("\n")[0]
        raise UserError(f"--optuna {url} cannot be opened: {reason}") from error


def _add(
    optuna: Any,
    storage: Any,
    name: str,
    there: experiment.Experiment,
    objective: str,
    trials: Sequence[Any],
) -> None:
    """Makes a study, whole or not at all."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    direction = "minimize" if objective.startswith(objectives.STEPS_TO) else "maximize"
    try:
        study = optuna.create_study(storage=storage, study_name=name, direction=direction)
        try:
            study.set_user_attr("sweep", str(there.path.resolve()))
            study.set_user_attr("algorithm", there.algorithm)
            study.set_user_attr("objective", objective)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a feature that is new to Optuna
                study.set_metric_names([objective])
            study.add_trials(trials)
        except BaseException:
            optuna.delete_study(study_name=name, storage=storage)
            raise
    finally:
        optuna.logging.set_verbosity(before)


def _trials(
    optuna: Any, there: experiment.Experiment, ranked: Sequence[results.Ranked], objective: str
) -> list[Any]:
    """The settings as Optuna's trials, in the order of results.csv."""
    grid: Mapping[str, Any] = there.description["grid"]
    space = {name: _distribution(optuna, asked) for name, asked in grid.items()}
    total = there.description["config"]["total_timesteps"]
    # One environment to a study says nothing as a parameter.
    names = [n for n in ranked[0].setting if n != "env" or len(grid["env"]) == 1]
    made = []
    for one in sorted(ranked, key=lambda setting: setting.trials[0].number):
        params = {name: _value(space[name], one.setting[name]) for name in names}
        finals = [trial.final for trial in one.trials]
        attributes = {
            "seeds": [trial.seed for trial in one.trials],
            "returns": [None if math.isnan(final) else final for final in finals],
            "trials": [trial.number for trial in one.trials],
            "runs": [
                str(there.path.resolve() / run) for run in dict.fromkeys(t.run for t in one.trials)
            ],
        }
        curve = _curve(one, objective)
        steps = one.setting.get("total_timesteps", total)
        state, value = _state(optuna, one, objective, steps, curve)
        trial = optuna.trial.create_trial(
            state=state,
            value=value,
            params=params,
            distributions={name: space[name] for name in names},
            user_attrs=attributes,
            intermediate_values=curve,
        )
        made.append(trial)
    return made


def _state(
    optuna: Any, one: results.Ranked, objective: str, total: int, curve: Mapping[int, float]
) -> tuple[Any, float | None]:
    """Whether a setting has failed, is pruned or complete, and its value."""
    states = optuna.trial.TrialState
    value = objectives.value(objective, one.score(objective))
    if one.broken:
        return states.FAIL, None
    if one.steps < total:  # by halving, or by Ctrl-C
        return states.PRUNED, curve[max(curve)] if curve else None
    if not math.isfinite(value):  # a threshold that was never reached has no number of steps
        return states.FAIL, None
    return states.COMPLETE, value


def _curve(one: results.Ranked, objective: str) -> dict[int, float]:
    """{timestep: the mean of its seeds' returns}, where all of them have one.

    A study that minimises has minus the returns: pruners and samplers take the lower ones for good.
    """
    sign = -1.0 if objective.startswith(objectives.STEPS_TO) else 1.0
    points = min(len(trial.returns) for trial in one.trials)
    means = np.mean([trial.returns[:points] for trial in one.trials], axis=0)
    steps = one.trials[0].timesteps[:points]
    return {int(t): sign * float(mean) for t, mean in zip(steps, means) if math.isfinite(mean)}


def _distribution(optuna: Any, asked: Any) -> Any:
    """Optuna's distribution of a field, of what sweep.json says of it."""
    kinds = optuna.distributions
    drawn = distributions.from_json(asked)
    if isinstance(drawn, distributions.WHOLE):
        log = isinstance(drawn, distributions.LogIntegers)
        return kinds.IntDistribution(drawn.low, drawn.high, log=log)
    if isinstance(drawn, distributions.Choice):
        return kinds.CategoricalDistribution(tuple(map(_plain, drawn.values)))
    if drawn is not None:
        log = isinstance(drawn, distributions.LogUniform)
        return kinds.FloatDistribution(drawn.low, drawn.high, log=log)
    values = [settings.value_of(value) for value in asked]
    if any(type(v) not in (int, float) or not math.isfinite(v) for v in values):
        return kinds.CategoricalDistribution(tuple(map(_plain, values)))
    # Listed numbers are numbers to Optuna's plots, and to a sampler that goes on from them.
    log = min(values) > 0 and max(values) > WIDE * min(values)
    whole = all(type(value) is int for value in values)
    kind = kinds.IntDistribution if whole else kinds.FloatDistribution
    return kind(min(values), max(values), log=log)


def _value(distribution: Any, value: Any) -> Any:
    """A field's value as the distribution has it: rounding may leave a bound by a digit."""
    if hasattr(distribution, "choices"):
        return _plain(value)
    return min(max(value, distribution.low), distribution.high)


def _plain(value: Any) -> Any:
    """What Optuna stores: numbers, bools and texts."""
    is_plain = isinstance(value, bool | int | str) or (
        isinstance(value, float) and math.isfinite(value)
    )
    return value if is_plain else settings.plain(value)
