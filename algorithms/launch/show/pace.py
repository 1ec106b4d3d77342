"""Logged besides an algorithm's metrics: seconds, steps per second and the learning rate."""

import inspect
import time
from typing import Any

import numpy as np

from algorithms.launch.settings import Trials

OF_ALL = ("seconds", "steps_per_second")  # the same for all trials that train together
NAMES = (*OF_ALL, "current_learning_rate")  # the last columns of metrics.csv


class Pace:
    """Counts the seconds of a run.

    Args:
      seconds: of the sessions before this one.
      timestep: that they have come to.
    """

    def __init__(self, seconds: float, timestep: int):
        self.before, self.timestep = seconds, timestep
        self.began = self.last = time.perf_counter()

    def at(self, timestep: int, trainer: Any, trials: Trials) -> dict:
        """The numbers of a point just finished, each (num_trials,).

        seconds: of training, evaluating and saving so far, over all sessions. Compilation and the
          time between sessions do not count.
        steps_per_second: environment steps of all trials that train together, per second since the
          point before.
        current_learning_rate: see `learning_rate`.
        """
        now = time.perf_counter()
        members = getattr(trainer.module, "members", 1)  # of a population
        steps = (timestep - self.timestep) * trials.count * members
        speed = steps / max(now - self.last, 1e-9)
        self.timestep, self.last = timestep, now
        progress = timestep / (trainer.plan.steps or trainer.config.total_timesteps)
        rates = learning_rate(trainer.module, trainer.config, trials, progress)
        seconds = round(self.before + now - self.began, 3)
        values: list[float | np.ndarray] = [seconds, round(speed, 1), rates]
        return {name: np.broadcast_to(v, trials.count) for name, v in zip(NAMES, values)}


def learning_rate(module: Any, config: Any, trials: Trials, progress: float) -> np.ndarray:
    """Where the schedule of `learning_rate` stands at a share of the run's steps, (num_trials,).

    Computed from the settings, not read from the program: linear to zero with `anneal_lr`, else
    constant; a module with `learning_rate_at(config, progress)` has its own. Optimisers with other
    rates (`critic_learning_rate`) are not shown. NaN without such a field, and where the members
    of a population have rates of their own.
    """
    if "learning_rate" in getattr(module, "changing", ()):
        return np.full(trials.count, np.nan)
    rates = trials.floats.get("learning_rate", getattr(config, "learning_rate", np.nan))
    own = getattr(module, "learning_rate_at", None)
    if own and [*inspect.signature(own).parameters] == ["config", "progress"]:
        rates = own(trials.configs(config), progress)
    elif getattr(config, "anneal_lr", False):
        rates = np.asarray(rates) * max(1.0 - progress, 0.0)
    digits = [float(f"{rate:.6g}") for rate in np.broadcast_to(rates, trials.count)]
    return np.array(digits)
