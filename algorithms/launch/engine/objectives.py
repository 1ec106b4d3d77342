"""Objectives: how a sweep ranks its settings."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from algorithms.launch.engine.errors import UserError, unknown

DEFAULT = "final_return"
STEPS_TO = "steps_to"
NAMES = (DEFAULT, "mean_return", "worst_seed", f"{STEPS_TO}=THRESHOLD")


def check(objective: str) -> None:
    """Refuses an unknown objective.

    Raises:
      UserError: it is unknown, or its threshold is no number.
    """
    name, equals, text = str(objective).partition("=")
    if name == STEPS_TO:
        try:
            finite = math.isfinite(float(text))
        except ValueError:
            finite = False
        if not finite:
            raise UserError(f"objective={objective}: give a return to reach, {STEPS_TO}=475")
    elif equals or objective not in NAMES:
        raise unknown("objective", str(objective), NAMES)


def score(objective: str, trials: Sequence[Any]) -> float:
    """How good a setting is, the higher the better; -inf where nothing is known.

    Of `final_return` and `mean_return` (over the curve) that is the mean over the seeds, of
    `worst_seed` the lowest final return. `steps_to=THRESHOLD` is minus the mean number of
    environment steps after which the return first reaches the threshold; a setting with a seed that
    never does has -inf.

    Args:
      trials: its `results.Outcome`s, one for each seed.
    """
    name, _, threshold = objective.partition("=")
    if name == STEPS_TO:
        return -float(np.mean([steps_to(trial, float(threshold)) for trial in trials]))
    values = np.array([trial.area if name == "mean_return" else trial.final for trial in trials])
    values = values[~np.isnan(values)]
    if not len(values):
        return -math.inf
    return float(values.min() if name == "worst_seed" else values.mean())


def steps_to(trial: Any, threshold: float) -> float:
    """The timestep of a trial's first point with such a return or a higher one; inf for none."""
    reached = np.flatnonzero(trial.returns >= threshold)
    return float(trial.timesteps[reached[0]]) if len(reached) else math.inf


def value(objective: str, score: float) -> float:
    """A score as people count: steps are positive."""
    return -score if objective.startswith(STEPS_TO) else score


def text(objective: str, score: float) -> str:
    """The same for a table."""
    if objective.startswith(STEPS_TO):
        return f"{-score:,.0f}" if math.isfinite(score) else "never"
    return f"{score:.5g}" if math.isfinite(score) else "-"
