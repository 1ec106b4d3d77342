"""Learning runs of minutes: `python -m pytest tests -m slow`.

Score: mean over seeds of the mean return of 32 whole episodes at the last point.
"""

import numpy as np
import pytest

from algorithms import ippo, launch, ppo
from algorithms.launch.presets import PRESETS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("vmapped_keys")]

# preset, seeds, least mean over seeds, least seed; the budget is the preset's total_timesteps
THRESHOLDS = [
    ("CartPole-v1", 10, 495.0, 475.0),  # 500k steps
    ("Acrobot-v1", 10, -84.0, -110.0),  # 500k steps
    ("Pendulum-v1", 5, -200.0, -300.0),  # 500k steps
]


@pytest.mark.parametrize("preset, seeds, mean, least", THRESHOLDS)
def test_ppo_reaches_the_published_numbers(preset, seeds, mean, least, tmp_path):
    config = ppo.Config(**{"env": preset, **PRESETS["ppo"][preset]})
    result = launch.run(ppo, config, seed=100, num_seeds=seeds, run_dir=tmp_path / "run")
    scores = np.asarray(result.metrics["eval_return"])[:, -1].mean(-1)
    assert scores.shape == (seeds,)
    assert scores.mean() >= mean and scores.min() >= least, scores


def run_ippo(preset, tmp_path, **settings):
    """Metrics (5 seeds, points, ...) of a preset with other settings."""
    config = ippo.Config(**{"env": preset, **PRESETS["ippo"][preset], **settings})
    result = launch.run(ippo, config, seed=100, num_seeds=5, run_dir=tmp_path / "run")
    return {name: np.asarray(values) for name, values in result.metrics.items()}


def test_a_predator_catches_a_prey_that_moves_at_random(tmp_path):
    """In at least 95 % of episodes, mean of 5 seeds after 1M steps."""
    settings = dict(env_settings=(("prey", "random"),), total_timesteps=1_000_000)
    metrics = run_ippo("Pursuit-v0", tmp_path, **settings)
    assert metrics["eval_terminated"][:, -1].mean() >= 0.95


def test_four_discs_reach_their_goals(tmp_path):
    """Over 95 % are at their goal in the last step, mean of 5 seeds after 1M steps."""
    metrics = run_ippo("MultiNavigator-v0", tmp_path, num_eval_episodes=128)
    at_goal = metrics["eval_last_reward"][:, -1] > 0.04  # the reward for being there is 0.05
    assert at_goal.mean() > 0.95
