"""Learning runs that take minutes: `python -m pytest tests -m slow`.

The score is the mean over seeds, from 0 on, of the mean return of 32 whole episodes at the last
point.
"""

import numpy as np
import pytest

from algorithms import (
    c51,
    crossq,
    ddpg,
    dqn,
    flashsac,
    ippo,
    ippo_rnn,
    iqn,
    launch,
    ppo,
    ppo_plr,
    ppo_rnn,
    ppo_vtrace,
    pqn,
    pqn_rnn,
    qrdqn,
    r2d2,
    reinforce,
    reppo,
    reppo_discrete,
    sac,
    sac_discrete,
    td3,
    vdn,
)
from algorithms.presets import PRESETS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("vmapped_keys", "jitted_as_for_users")]

# preset, seeds, least mean over seeds, least seed; the budget is the preset's total_timesteps
THRESHOLDS = [
    ("CartPole-v1", 10, 495.0, 475.0),  # 500k steps
    ("Acrobot-v1", 10, -84.0, -110.0),  # 500k steps
    ("Pendulum-v1", 5, -172.2, -200.0),  # 500k steps
]


@pytest.mark.parametrize("preset, seeds, mean, least", THRESHOLDS)
def test_ppo_reaches_the_published_numbers(preset, seeds, mean, least, tmp_path):
    config = ppo.Config(**{"env": preset, **PRESETS["ppo"][preset]})
    result = launch.run(ppo, config, seed=0, num_seeds=seeds, run_dir=tmp_path / "run")
    scores = np.asarray(result.metrics["eval_return"])[:, -1].mean(-1)
    assert scores.shape == (seeds,)
    assert scores.mean() >= mean and scores.min() >= least, scores


def train(module, preset, tmp_path, **settings):
    """Metrics (5 seeds, points, ...) of a preset with other settings."""
    name = module.__name__.rpartition(".")[2]
    config = module.Config(**{"env": preset, **PRESETS[name][preset], **settings})
    result = launch.run(module, config, seed=0, num_seeds=5, run_dir=tmp_path / "run")
    return {name: np.asarray(values) for name, values in result.metrics.items()}


def test_a_predator_catches_a_prey_that_moves_at_random(tmp_path):
    """It catches it in at least 95 % of episodes, in the mean of 5 seeds after 1M steps."""
    settings = dict(env_settings=(("prey", "random"),), total_timesteps=1_000_000)
    metrics = train(ippo, "Pursuit-v0", tmp_path, **settings)
    assert metrics["eval_terminated"][:, -1].mean() >= 0.95


@pytest.mark.parametrize("module, steps", [(ippo, 1_000_000), (ppo_vtrace, 500_000)])
def test_four_discs_reach_their_goals(module, steps, tmp_path):
    """Over 95 % are at their goal in the last step, in the mean of 5 seeds."""
    settings = dict(total_timesteps=steps, num_eval_episodes=128)
    metrics = train(module, "MultiNavigator-v0", tmp_path, **settings)
    at_goal = metrics["eval_last_reward"][:, -1] > 0.04  # the reward at the goal is 0.05
    assert at_goal.mean() > 0.95


def test_a_speaker_and_a_listener_find_a_language(tmp_path):
    """5M steps, 5 seeds. Not every seed does: 9 of 10 published seeds, and 2 of these 5.

    Walking straight to a known goal gets -7.4. Without any message, the middle of all places gets
    -16 (4096 episodes each).
    """
    metrics = train(ippo, "MPE_simple_speaker_listener_v4", tmp_path)
    returns = metrics["episode_return"][:, -1].mean(-1)
    assert returns.max() < 0.0 and np.sort(returns)[-2] > -8.5 and returns.mean() > -11.0, returns


@pytest.mark.needs("pgx")
def test_self_play_in_kuhn_poker_comes_near_an_equilibrium(tmp_path):
    """5.1M steps, 5 seeds; the preset's 20.5M bring every seed below 0.012. The uniform policy's
    exploitability is 0.458."""
    metrics = train(ippo, "kuhn_poker", tmp_path, total_timesteps=5_120_000)
    found = metrics["eval_exploitability"][:, -1]
    assert found.shape == (5,) and found.mean() < 0.06 and found.max() < 0.08, found


def test_prisoners_with_a_memory_beat_all_without(tmp_path):
    """The riddle of three players, 300k steps, 5 seeds.

    Without a memory at most 0.158 is possible; perfect information scores 0.741.
    """
    metrics = train(ippo_rnn, "switch_riddle", tmp_path, num_eval_episodes=512)
    scores = metrics["eval_return"][:, -1, :, 0].mean(-1)
    assert scores.mean() > 0.5 and scores.min() > 0.4, scores


@pytest.mark.parametrize("mixer, mean", [("sum", -33.0), ("monotonic", -31.0)])
def test_a_team_covers_all_places(mixer, mean, tmp_path):
    """2M steps, 5 seeds: the summed return of all three agents."""
    metrics = train(vdn, "MPE_simple_spread_v3", tmp_path, mixer=mixer)
    assert metrics["eval_return"][:, -1].sum(-1).mean() > mean


def test_a_team_with_memory_does_better_than_any_without(tmp_path):
    """The riddle of three players, 500k steps, 5 seeds.

    Without a memory at most 0.158 is possible; perfect information scores 0.741.
    """
    metrics = train(vdn, "switch_riddle", tmp_path, total_timesteps=500_000)
    assert metrics["eval_return"][:, -1, :, 0].mean() > 0.4


def test_ppo_vtrace_solves_cartpole(tmp_path):
    """500k steps, 5 seeds."""
    scores = train(ppo_vtrace, "CartPole-v1", tmp_path)["eval_return"][:, -1].mean(-1)
    assert scores.shape == (5,) and scores.mean() >= 495.0, scores


# Mean over the 10 seeds 0 to 9, 500k steps.
FROM_REPLAY = [
    (dqn, "CartPole-v1", 498.0),
    (dqn, "Acrobot-v1", -87.0),
    (dqn, "MountainCar-v0", -105.0),
    (c51, "CartPole-v1", 492.0),
    (c51, "Acrobot-v1", -86.7),
    (c51, "MountainCar-v0", -118.0),
    (qrdqn, "CartPole-v1", 498.0),
    (qrdqn, "Acrobot-v1", -87.0),
    (qrdqn, "MountainCar-v0", -110.0),
    (iqn, "CartPole-v1", 498.0),
    (iqn, "Acrobot-v1", -87.0),
    (iqn, "MountainCar-v0", -130.0),
]


@pytest.mark.parametrize("module, preset, mean", FROM_REPLAY)
def test_value_based_files_reach_the_published_numbers(module, preset, mean, tmp_path):
    config = module.Config(**{"env": preset, **PRESETS[module.__name__.split(".")[-1]][preset]})
    result = launch.run(module, config, seed=0, num_seeds=10, run_dir=tmp_path / "run")
    scores = np.asarray(result.metrics["eval_return"])[:, -1].mean(-1)
    assert scores.shape == (10,) and scores.mean() >= mean, scores


# Mean over the 5 seeds 0 to 4. 20k steps; DDPG 30k, REPPO 50k; the mountain car 12.5k, of four
# frames each; discrete actions 500k.
CONTROL = [
    (sac, "Pendulum-v1", -155.0),
    (sac, "MountainCarContinuous-v0", 94.0),
    (td3, "Pendulum-v1", -155.0),
    (td3, "MountainCarContinuous-v0", 92.8),
    (crossq, "Pendulum-v1", -155.0),
    (flashsac, "Pendulum-v1", -165.0),
    (ddpg, "Pendulum-v1", -160.0),
    (reppo, "Pendulum-v1", -175.0),
    (reppo, "MountainCarContinuous-v0", 93.0),
    (sac_discrete, "CartPole-v1", 490.0),
    (sac_discrete, "Acrobot-v1", -90.0),
    (reppo_discrete, "CartPole-v1", 490.0),
    (reppo_discrete, "Acrobot-v1", -85.0),
    (reppo_discrete, "MountainCar-v0", -130.0),
]


@pytest.mark.parametrize("module, preset, mean", CONTROL)
def test_actors_of_a_learned_value_reach_the_published_numbers(module, preset, mean, tmp_path):
    scores = train(module, preset, tmp_path)["eval_return"][:, -1].mean(-1)
    assert scores.shape == (5,) and scores.mean() >= mean, scores


# preset, least mean over 5 seeds, least seed; the budget is the preset's total_timesteps
REMEMBERED = [
    ("MemoryChain-bsuite", 0.99, 0.95),  # 400k steps; returns are -1 or 1
    ("MemoryChain-bsuite-gru", 0.99, 0.95),
    ("MemoryChain-bsuite-mingru", 0.99, 0.95),
    ("CartPole-v1-positions", 495.0, 475.0),  # 500k steps
    ("CartPole-v1-positions-gru", 495.0, 475.0),
    ("CartPole-v1-positions-mingru", 495.0, 475.0),
]


@pytest.mark.parametrize("preset, mean, least", REMEMBERED)
def test_memories_solve_tasks_with_hidden_state(preset, mean, least, tmp_path):
    config = ppo_rnn.Config(**PRESETS["ppo_rnn"][preset])
    result = launch.run(ppo_rnn, config, seed=0, num_seeds=5, run_dir=tmp_path / "run")
    scores = np.asarray(result.metrics["eval_return"])[:, -1].mean(-1)
    assert scores.mean() >= mean and scores.min() >= least, scores


def test_a_memory_does_not_hurt_tasks_that_need_none(tmp_path):
    """MountainCar with the defaults, 500k steps, 5 seeds; without `skip` a third of the seeds
    fail."""
    config = ppo_rnn.Config(env="MountainCar-v0")
    result = launch.run(ppo_rnn, config, seed=0, num_seeds=5, run_dir=tmp_path / "run")
    scores = np.asarray(result.metrics["eval_return"])[:, -1].mean(-1)
    assert scores.shape == (5,) and scores.mean() >= -110.0 and scores.min() >= -130.0, scores


def test_pqn_with_memory_solves_the_chain(tmp_path):
    """400k steps, 5 seeds."""
    scores = train(pqn_rnn, "MemoryChain-bsuite", tmp_path)["eval_return"][:, -1].mean(-1)
    assert scores.shape == (5,) and scores.mean() >= 0.95, scores


def test_r2d2_solves_the_chain(tmp_path):
    """200k steps, 5 seeds."""
    scores = train(r2d2, "MemoryChain-bsuite", tmp_path)["eval_return"][:, -1].mean(-1)
    assert scores.shape == (5,) and scores.mean() >= 0.95, scores


@pytest.mark.parametrize(
    "preset, without", [("MemoryChain-bsuite", 0.3), ("CartPole-v1-positions", 100.0)]
)
def test_without_a_memory_it_stays_hidden(preset, without, tmp_path):
    """ppo.py with its defaults stays below; on the chain, chance gives 0."""
    settings = PRESETS["ppo_rnn"][preset]
    same = {"env", "env_settings", "total_timesteps"} & settings.keys()
    settings = {name: settings[name] for name in same}
    result = launch.run(ppo, ppo.Config(**settings), seed=0, num_seeds=5, run_dir=tmp_path / "run")
    assert np.asarray(result.metrics["eval_return"])[:, -1].mean() < without


# algorithm, preset, least mean over 10 seeds, least seed; 500k steps
WITHOUT_REPLAY = [
    (pqn, "CartPole-v1", 497.0, 475.0),
    (pqn, "Acrobot-v1", -90.0, -110.0),
    (pqn, "MountainCar-v0", -118.0, -150.0),
    (reinforce, "CartPole-v1", 495.0, 475.0),
]


@pytest.mark.parametrize("module, preset, mean, least", WITHOUT_REPLAY)
def test_pqn_and_reinforce_reach_the_published_numbers(module, preset, mean, least, tmp_path):
    name = module.__name__.rpartition(".")[2]
    config = module.Config(**{"env": preset, **PRESETS[name][preset]})
    result = launch.run(module, config, seed=0, num_seeds=10, run_dir=tmp_path / "run")
    scores = np.asarray(result.metrics["eval_return"])[:, -1].mean(-1)
    assert scores.mean() >= mean and scores.min() >= least, scores
    if (module, preset) == (pqn, "Acrobot-v1"):
        assert scores.std(ddof=1) < 5.0, scores


@pytest.mark.parametrize("settings", [{}, {"robust": True}])
def test_replayed_levels_teach_all_of_their_range(settings, tmp_path):
    """CartPole with other masses and lengths in each episode, 300k steps, 5 seeds."""
    metrics = train(ppo_plr, "CartPole-v1", tmp_path, total_timesteps=300_000, **settings)
    scores = metrics["eval_return"][:, -1].mean(-1)
    assert scores.shape == (5,) and scores.min() >= 475.0, scores
