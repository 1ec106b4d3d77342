"""Logged besides an algorithm's metrics: seconds and steps per second."""

import time
from typing import Any

import numpy as np

from algorithms.launch.engine.settings import Trials

NAMES = ("seconds", "steps_per_second")  # the same for all trials that train together
LAST = (*NAMES, "current_learning_rate")  # the last columns of metrics.csv


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
        """
        now = time.perf_counter()
        members = getattr(trainer.module, "members", 1)  # of a population
        steps = (timestep - self.timestep) * trials.count * members
        speed = steps / max(now - self.last, 1e-9)
        self.timestep, self.last = timestep, now
        values = round(self.before + now - self.began, 3), round(speed, 1)
        return {name: np.broadcast_to(v, trials.count) for name, v in zip(NAMES, values)}
