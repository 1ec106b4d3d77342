"""Learning runs of minutes: `python -m pytest tests -m slow`.

Score: mean over seeds of the mean return of 32 whole episodes at the last point.
"""

import numpy as np
import pytest

from algorithms import launch, ppo
from algorithms.launch.presets import PRESETS

# preset, seeds, least mean over seeds, least seed; the budget is the preset's total_timesteps
THRESHOLDS = [
    ("CartPole-v1", 10, 495.0, 475.0),  # 500k steps
    ("Acrobot-v1", 10, -84.0, -110.0),  # 500k steps
    ("Pendulum-v1", 5, -200.0, -300.0),  # 500k steps
]


@pytest.mark.slow
@pytest.mark.parametrize("preset, seeds, mean, least", THRESHOLDS)
def test_ppo_reaches_the_published_numbers(preset, seeds, mean, least, tmp_path):
    config = ppo.Config(**{"env": preset, **PRESETS["ppo"][preset]})
    result = launch.run(ppo, config, seed=100, num_seeds=seeds, run_dir=tmp_path / "run")
    scores = np.asarray(result.metrics["eval_return"])[:, -1].mean(-1)
    assert scores.shape == (seeds,)
    assert scores.mean() >= mean and scores.min() >= least, scores
