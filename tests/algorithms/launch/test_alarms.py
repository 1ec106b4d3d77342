"""What metrics of a point warn of, and evaluations that answer Ctrl-C."""

import os
import signal
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from algorithms import dqn, dreamer, flashsac, launch, reinforce
from algorithms.launch.engine import metrics, programs, record
from algorithms.launch.engine.errors import heed_warnings
from algorithms.launch.engine.settings import Trials
from algorithms.launch.tools import evaluation, match, robustness
from algorithms.parts import checks
from envs import warn
from envs.gymnax import Environment, spaces
from tests.algorithms.launch import toy
from tests.algorithms.launch.test_cli import main

# Of most tasks of this file more is told than a test is about.
pytestmark = [
    pytest.mark.usefixtures("quick_pictures"),
    pytest.mark.filterwarnings("ignore::envs.warn.KitWarning"),
]


@struct.dataclass
class Params:
    broken: int = 0  # from this step of an episode on a reward is NaN; 0: never
    blind: int = 0  # at this step of an episode the observation is infinite; 0: never
    max_steps_in_episode: int = 4


@struct.dataclass
class Time:
    time: jax.Array


class Endless(Environment):
    """Reward 1 for ever, whatever its limit says."""

    default_params = Params()

    def reset_env(self, key, params):
        return jnp.zeros(1), Time(jnp.zeros((), jnp.int32))

    def step_env(self, key, state, action, params):
        state = Time(state.time + 1)
        reward = jnp.where(state.time == params.broken, jnp.nan, 1.0)
        observation = jnp.where(state.time == params.blind, jnp.inf, jnp.zeros(1))
        return observation, state, reward, jnp.zeros((), bool), {}

    def is_truncated(self, state, params):
        return jnp.zeros((), bool)

    def action_space(self, params):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,))


TINY = reinforce.Config(  # the smallest program
    env=Endless(),
    total_timesteps=96,
    num_envs=2,
    num_steps=8,
    hidden_sizes=(4,),
    num_evals=3,
    num_eval_episodes=2,
)
CUT = (
    "2 of 2 evaluation episodes were cut after 1,008 steps, far beyond the time limit in the "
    "parameters of the environment: its is_truncated should be true there, or --env-settings "
    "max_steps=N truncates"
)


def test_an_evaluation_that_would_not_end_is_told_of_once_and_in_the_metrics(capsys):
    result = launch.run(reinforce, TINY, save=False)
    assert capsys.readouterr().err.count(f"warning: {CUT}\n") == 1
    assert result.metrics["eval_length"].shape == (1, 4, 2)
    np.testing.assert_array_equal(result.metrics["eval_length"], np.full((1, 4, 2), 1008))
    np.testing.assert_array_equal(result.metrics["eval_return"], np.full((1, 4, 2), 1008.0))
    for flag in ("eval_terminated", "eval_truncated"):
        assert not result.metrics[flag].any()


def test_a_reward_that_is_not_finite_is_told_of_with_its_steps(capsys):
    """Updates have 16 steps, points 32. Step 13 of both environments is in the first point."""
    settings = (("broken", 13), ("max_steps", 40))
    config = TINY.replace(env_settings=settings, num_eval_episodes=0)
    result = launch.run(reinforce, config, save=False)
    err = capsys.readouterr().err
    assert result.failed and err.count("a reward between steps") == 1
    assert (
        "; a reward between steps 0 and 32 was not finite: if it is the environment's, "
        "--env-settings nan_reward=0 replaces and counts such rewards\n"
    ) in err
    config = config.replace(env_settings=(*settings, ("nan_reward", 0)), total_timesteps=240)
    result = launch.run(reinforce, config, save=False)
    assert not result.failed and "between steps" not in capsys.readouterr().err
    np.testing.assert_array_equal(result.metrics["episode_nan_rewards"][0], [np.nan, 1.0, 1.0, 1.0])
    np.testing.assert_array_equal(result.metrics["episode_return"][0], [np.nan, 39.0, 39.0, 39.0])


def test_a_later_reward_is_told_of_with_later_steps_and_other_causes_without(capsys):
    settings = (("broken", 29), ("max_steps", 40))  # the second point
    config = TINY.replace(env_settings=settings, num_eval_episodes=0)
    launch.run(reinforce, config, save=False)
    assert "; a reward between steps 32 and 64 was not finite" in capsys.readouterr().err
    config = TINY.replace(env_settings=settings[1:], num_eval_episodes=0, learning_rate=1e38)
    assert launch.run(reinforce, config, save=False).failed
    err = capsys.readouterr().err
    assert "not finite from point" in err and "a reward" not in err and "an obs" not in err


@pytest.mark.parametrize("module", [reinforce, dqn], ids=["in statistics", "in the buffer"])
def test_an_observation_that_is_not_finite_is_told_of(capsys, module):
    """Episodes have 20 steps, which both environments begin together; points have 32."""
    settings = (("blind", 18), ("max_steps", 20))
    config = TINY.replace(env_settings=settings, num_eval_episodes=0, normalize_obs=True)
    if module is dqn:
        same = ("env", "env_settings", "total_timesteps", "num_envs", "hidden_sizes", "num_evals")
        same = {name: getattr(config, name) for name in same}
        config = dqn.Config(
            **same, learning_starts=4, buffer_size=64, batch_size=8, n_step=1, num_eval_episodes=0
        )
    result = launch.run(module, config, save=False)
    err = capsys.readouterr().err
    assert result.failed and err.count("an observation between") == 1
    assert (
        "; an observation between steps 32 and 64 was not finite: if it is the environment's, "
        "mend it there\n"
    ) in err
    assert "a reward between" not in err


def row(**values):
    return {name: np.array(x) for name, x in values.items()}


def test_episodes_with_either_flag_are_not_cut():
    flags = {"eval_terminated": [[True, False]], "eval_length": [[3, 9]]}
    assert metrics.cut_episodes(row(**flags, eval_truncated=[[False, True]])) == ""
    assert metrics.cut_episodes(row(**flags, eval_truncated=[[False, False]])).startswith(
        "1 of 2 evaluation episodes were cut after 9 steps, "
    )
    assert metrics.cut_episodes({}) == metrics.diverged({}) == ""


@pytest.mark.parametrize("name", ["episode_diverged", "eval_diverged"])
def test_physics_that_diverges_is_told_of(name):
    assert metrics.diverged({name: np.array([[0.0, np.nan]])}) == ""
    assert metrics.diverged({name: np.full((2, 3), np.nan)}) == ""
    told = metrics.diverged({name: np.array([[0.0, 2.5], [np.nan, 1.0]])})
    assert told.startswith("the physics diverged: NaN or infinity became 0 in 2.5 steps of an ep")


def test_an_alarm_rings_once_in_a_sweep(capsys, monkeypatch, tmp_path):
    """Chunk by chunk; the other one does not ring."""
    both = (lambda row: "it rings", lambda row: "")
    monkeypatch.setattr(record, "ALARMS", both)
    config = toy.Config(total_timesteps=20, num_evals=2)
    launch.sweep(toy, config, {"hidden_sizes": [(2,), (3,)]}, quiet=True, sweep_dir=tmp_path / "s")
    assert capsys.readouterr().err == "warning: it rings\n"


# --- units that bounds did not tell -----------------------------------------------------------


class Loud(Endless):
    """Observations of one size without bounds, and rewards of another."""

    def __init__(self, seen=0.0, reward=1.0, dtype=jnp.float32, bound=jnp.inf):
        self.seen, self.reward, self.dtype, self.bound = seen, reward, dtype, bound

    def reset_env(self, key, params):
        return jnp.full(2, self.seen).astype(self.dtype), Time(jnp.zeros((), jnp.int32))

    def step_env(self, key, state, action, params):
        state, over = super().step_env(key, state, action, params)[1], jnp.zeros((), bool)
        observation = (self.seen * jnp.array([0.0, -1.0])).astype(self.dtype)
        return observation, state, jnp.float32(self.reward), over, {}

    def observation_space(self, params):
        return spaces.Box(-self.bound, self.bound, (2,), self.dtype)


RAW = TINY.replace(normalize_obs=False, normalize_reward=False, env_settings=(("max_steps", 4),))
SEEN = (
    "warning: Loud has observations as large as 1.01e+03, and networks see them as they are: "
    "normalize_obs=True suits it\n"
)
EARNED = (
    "warning: Loud has rewards of 300 a step, and values of that size are learned slowly, if at "
    "all: normalize_reward=True suits it\n"
)


SHORT = (
    "warning: since the last point, all episodes of Loud ended with their first step: right for a "
    "bandit, and else look at its terminated and is_truncated\n"
)


@pytest.mark.parametrize(
    "env, changes, told",
    [
        (Loud(1010.0, -300.0), {}, [SEEN, EARNED]),
        (Loud(1010.0, -300.0), {"normalize_obs": True}, [EARNED]),
        (Loud(1010.0, -300.0), {"normalize_reward": True}, [SEEN]),
        (Loud(100.0, 99.0), {}, []),
        (Loud(101, 1.0, jnp.uint8), {}, []),
        (Loud(1010.0, 1.0, bound=50.0), {}, [SEEN]),
        (Loud(1010.0, 1.0, bound=2e3), {}, []),  # make_train has told of the bounds
        (Loud(), {"env_settings": (("max_steps", 1),)}, [SHORT]),
        ("CartPole-v1", {"env_settings": ()}, []),
    ],
)
def test_units_that_training_shows_are_told_of_once(capsys, monkeypatch, env, changes, told):
    if isinstance(env, str):  # gymnax's own is not looked at
        large = lambda *_: pytest.fail("asked")
        monkeypatch.setattr(record, "large_observations", large)
        monkeypatch.setattr(record, "large_rewards", large)
    launch.run(reinforce, RAW.replace(env=env, **changes), save=False)
    err = capsys.readouterr().err
    known = SEEN, EARNED, SHORT
    assert [err.count(text) for text in known] == [text in told for text in known]
    assert sum(map(err.count, (" as large as ", " a step, and ", "all episodes"))) == len(told)


def test_units_that_a_population_meets_are_told_of(capsys, vmapped_keys):
    config = RAW.replace(env=Loud(1010.0, -300.0), num_evals=2)
    ranges = {"learning_rate": launch.LogUniform(1e-4, 1e-3)}
    launch.pbt(reinforce, config, ranges, members=2, rounds=2, save=False)
    err = capsys.readouterr().err
    assert err.count(SEEN) == err.count(EARNED) == 1


def test_observations_that_the_buffer_changes_are_told_of_once(capsys):
    config = dqn.Config(total_timesteps=64, num_envs=2, learning_starts=16, buffer_size=64)
    config = config.replace(hidden_sizes=(4,), num_evals=2, num_eval_episodes=0, batch_size=2)
    launch.run(dqn, config.replace(buffer_dtype="bool"), save=False)
    told = capsys.readouterr().err.count("buffer_dtype='bool' changes observations of CartPole-v1")
    assert told == 1
    text = record.changed_observations("Its", "int8", 0.75)
    assert text.startswith("buffer_dtype='int8' changes observations of Its by up to 0.75 in the")
    assert record.changed_observations("Its", "int8", 0.0) == ""


def test_the_largest_loss_is_that_of_each_trial():
    x = jnp.array([[[0.0, 1.0]], [[0.25, 1.0]], [[1.0, -1.0]]])
    np.testing.assert_array_equal(programs.largest_loss(x, "bool"), [0.0, 0.75, 2.0])
    np.testing.assert_array_equal(programs.largest_loss(x, "int8"), [0.0, 0.25, 0.0])
    np.testing.assert_array_equal(programs.largest_loss(x > 0.5, "bool"), np.zeros(3))


def test_episodes_of_one_step_are_told_apart_from_others():
    told = record.short_episodes("Its", row(episode_length=[1.0, np.nan]))
    assert told.startswith("since the last point, all episodes of Its ended with their first step")
    for lengths in ([1.0, 1.5], [np.nan, np.nan], 2.0):
        assert record.short_episodes("Its", row(episode_length=lengths)) == ""
    assert record.short_episodes("Its", {}) == ""


class Counted(Endless):
    """Its flag includes the limit, as a number."""

    def step_env(self, key, state, action, params):
        observation, state, reward, _, info = super().step_env(key, state, action, params)
        return observation, state, reward, state.time >= 4, info


def test_a_limit_that_is_a_number_is_told_of_once(capsys, monkeypatch):
    launch.run(reinforce, TINY.replace(env=Counted(), num_eval_episodes=3), save=False)
    told = (
        "warning: all 3 evaluation episodes of Counted that reached the limit of 4 steps are term"
    )
    assert capsys.readouterr().err.count(told) == 1
    asked = TINY.replace(env=Counted(), env_settings=(("limit_terminates", True),))
    launch.run(reinforce, asked.replace(num_eval_episodes=3), save=False)
    assert "that reached the limit" not in capsys.readouterr().err, "it was asked for"
    monkeypatch.setattr(warn, "_told", {"step_env of Counted sets its flag where ..."})
    launch.run(reinforce, TINY.replace(env=Counted(), num_eval_episodes=3), save=False)
    assert "that reached the limit" not in capsys.readouterr().err, "make_train has told"
    here = lambda terminated, lengths, limit=4: record.terminated_at_limit(
        "Its",
        {"eval_terminated": np.array([terminated]), "eval_length": np.array([lengths])},
        limit,
    )
    assert here([True] * 4, [4, 4, 3, 4]).startswith("all 3 evaluation episodes of Its that reach")
    assert here([True] * 4, [4, 4, 3, 3]) == here([True, False, True, True], [4] * 4) == ""
    assert here([True] * 4, [4] * 4, None) == record.terminated_at_limit("Its", {}, 4) == ""


def test_algorithms_that_scale_by_themselves_are_not_told_of_units():
    earned = row(episode_return=[[1e3, 5.0], [np.nan, np.nan]], episode_length=[10.0, np.nan])
    env = Loud()
    assert not checks.sees_raw(dreamer.Config(), env, None)
    assert not checks.sees_raw(dqn.Config(normalize_obs=True), env, None)
    assert checks.sees_raw(dqn.Config(), env, None)
    assert record.large_observations("Its", np.nan) == ""
    assert "as large as 1e+06, " in record.large_observations("Its", 1e6)
    assert record.large_rewards("Its", dreamer.Config(), earned) == ""
    assert record.large_rewards("Its", flashsac.Config(), earned) == ""
    assert record.large_rewards("Its", dqn.Config(), {}) == ""
    told = record.large_rewards("Its", dqn.Config(), earned)
    assert told.startswith("Its has rewards of 100 a step") and told.endswith("in its step_env")
    plain = flashsac.Config(normalize_reward=False)
    assert record.large_rewards("Its", plain, earned).endswith("normalize_reward=True suits it")


# --- nothing to learn from --------------------------------------------------------------------


def test_returns_that_stay_are_told_apart_from_others():
    nan = np.nan
    cases = [
        [nan, 1, 1, 1],
        [nan, nan, 2, 2],
        [nan, 1, 1, 1.1],
        [0, 0, 0, 0],
        [-200, nan, -200, -200],
    ]
    curves = {"episode_return": np.array(cases), "timestep": np.ones((5, 4))}
    assert metrics.same_returns(curves).tolist() == [True, False, False, True, True]
    several = np.stack([curves["episode_return"]] * 2, 2)
    several[0, 3, 1] = 2.0  # of one player
    curves = curves | {"episode_return": several}
    assert metrics.same_returns(curves).tolist() == [False, False, False, True, True]
    assert metrics.same_returns({}).tolist() == []


ALIKE = toy.Config(total_timesteps=20, num_evals=3, learning_rate=0.0)


def test_a_run_whose_episodes_are_all_alike_says_so(capsys, tmp_path):
    told = (
        "warning: 2 of 2 trials had the same training return at all points, 0 for example: no "
        "episode earned more than another, so there was nothing to learn from; more exploration, "
        "longer episodes or another reward would do\n"
    )
    launch.run(toy, ALIKE, num_seeds=2, run_dir=tmp_path / "run")
    assert capsys.readouterr().err.endswith(told)
    launch.run(toy, ALIKE, save=False, init_from=tmp_path / "run")
    launch.run(toy, ALIKE.replace(num_evals=2), num_seeds=2, save=False)
    launch.run(toy, ALIKE.replace(learning_rate=0.1), num_seeds=2, save=False)
    assert "nothing to learn" not in capsys.readouterr().err


def test_a_sweep_says_so_if_it_holds_for_all_trials(capsys):
    told = "warning: 2 of 2 trials had the same training return at all points, 0 for example: no ep"
    launch.sweep(toy, ALIKE, {"hidden_sizes": [(2,), (3,)]}, save=False)
    assert capsys.readouterr().err.count(told) == 1
    launch.sweep(toy, ALIKE, {"learning_rate": [0.0, 0.1]}, save=False)
    assert "nothing to learn" not in capsys.readouterr().err


def test_trials_with_nothing_to_learn_from_are_summed_up_over_chunks():
    nan, times = np.nan, {"timestep": np.ones((1, 3))}
    empty = times | {"loss": np.full((1, 3), nan), "episode_return": np.array([[nan, 1, 2]])}
    same = times | {"loss": np.zeros((1, 3)), "episode_return": np.full((1, 3), -2.5)}
    of = lambda *curves, **how: _added(*curves).in_words(**how)
    assert of() == of(every=True) == of({}) == ""
    assert of(empty, same).startswith("1 of 2 trials learned nothing: no point has data for a loss")
    assert of(empty, same, every=True) == of(same, begun=True) == ""
    assert of(empty, empty, every=True).startswith("2 of 2 trials learned nothing")
    assert of(same, every=True).startswith("1 of 1 trials had the same training return at all poi")
    assert ", -2.5 for example: " in of(same, same | {"loss": np.ones((1, 3))})


def test_swept_fields_without_any_effect_are_told_of(capsys):
    config = toy.Config(total_timesteps=40, num_evals=2)
    launch.sweep(toy, config, {"target_kl": [0.1, 0.2], "learning_rate": [0.1, 0.2]}, save=False)
    err = capsys.readouterr().err
    assert (
        err.count("warning: target_kl=0.1, 0.2 made no difference: with the same seed, all ") == 1
    )
    launch.sweep(toy, config, {"learning_rate": [0.1, 0.2]}, num_seeds=2, save=False)
    assert "no difference" not in capsys.readouterr().err


def test_fields_are_idle_where_every_number_is_equal():
    idle, same, nan = metrics.Idle(), np.ones((4, 2), np.float32), np.nan
    of = lambda seeds, **floats: Trials(seeds, {n: np.array(x, float) for n, x in floats.items()})
    two = dict(a=[1.0, 2.0, 1.0, 2.0], b=[3.0, 3.0, 4.0, 4.0])
    by_b = np.array([[1.0, 2.0]] * 2 + [[1.0, 2.5]] * 2)
    idle.add(of([0] * 4, **two), {"loss": by_b, "rate": np.random.default_rng(0).random((4, 2))})
    assert idle.in_words().startswith("a=1, 2 made no difference: ")
    idle.add(of([0, 1], a=[5.0, 6.0]), {"loss": same[:2]})  # other seeds
    idle.add(of([0, 0], c=[5.0, 6.0]), {"loss": same[:2] * nan})  # nothing was learned
    idle.add(of([0, 0], d=[5.0, 6.0]), {"loss": same[:2], "eval_return": np.array([[1], [2]])})
    idle.add(of([0, 0]), {"loss": same[:2]})
    idle.add(of([0, 0], e=[5.0, 6.0]), {"episode_return": same[:2]})  # no loss tells
    broken = np.array([[np.inf, 1.0]] * 2)
    idle.add(of([0, 0], g=[5.0, 6.0]), {"loss": broken})
    assert idle.in_words().startswith("a=1, 2 made no difference: ")
    idle.add(of([7] * 4, f=[1.0, 2.0, 3.0, 4.0]), {"loss": same})
    assert "a=1, 2; f=1, 2, 3, ... made no difference" in idle.in_words()
    apart = np.array([[1.0, 1.0]] * 2 + [[1.0, 1.0], [1.0, 2.0]])  # of the second seed
    idle.add(of([0, 0, 1, 1], f=[1.0, 2.0, 1.0, 2.0]), {"loss": apart})
    idle.add(of([2, 2], a=[1.0, 2.0]), {"loss": np.array([[1.0], [2.0]])})
    idle.add(of([3, 3], a=[1.0, 2.0]), {"loss": same[:2]})  # a difference stays one
    assert idle.in_words().startswith("f=2, 3, 4 made no difference: ")


def _added(*curves):
    learnless = metrics.Learnless()
    for one in curves:
        learnless.add(one)
    return learnless


def test_the_command_line_shows_warnings_of_environments_as_its_own(capsys):
    with warnings.catch_warnings():
        others = []
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: others.append(str(message))
        heed_warnings()
        warn.warn(f"sentence of {__name__}")
        warn.warn(f"sentence of {__name__}")
        warnings.warn("of others", stacklevel=1)
    assert capsys.readouterr().err == f"warning: sentence of {__name__}\n"
    assert others == ["of others"]


def test_evaluate_tells_of_episodes_that_were_cut(capsys, tmp_path, monkeypatch):
    launch.run(toy, toy.Config(total_timesteps=20, num_evals=1), run_dir=tmp_path / "run")
    capsys.readouterr()
    played = {
        "episode_return": np.ones(2),
        "length": np.array([5, 9]),
        "terminated": np.array([True, False]),
        "truncated": np.zeros(2, bool),
        "last_reward": np.ones(2),
        "metrics/diverged": np.array([0.0, 1.0]),
    }
    monkeypatch.setattr(evaluation, "evaluate", lambda *_: played)
    code, out, err = main(capsys, "--evaluate", tmp_path / "run")
    assert code == 0 and "2 episodes: terminated 50 %, truncated 0 %, cut 50 %" in out
    first, second = err.splitlines()
    assert first.startswith("warning: 1 of 2 evaluation episodes were cut after 9 steps")
    assert second.startswith("warning: the physics diverged: NaN or infinity became 0 in 1 steps")


# --- Ctrl-C -----------------------------------------------------------------------------------


@pytest.fixture
def leaves(monkeypatch):
    """Code that os._exit gets, after Ctrl-C has been sent to a program that does not hear it."""
    ended, codes = threading.Event(), []

    def leave(code):
        codes.append(code)
        ended.set()
        raise SystemExit(code)

    def interrupted(*_, **__):
        assert threading.current_thread() is not threading.main_thread(), "which hears signals"
        os.kill(os.getpid(), signal.SIGINT)
        ended.wait(60)

    monkeypatch.setattr(os, "_exit", leave)
    return interrupted, codes


def test_ctrl_c_ends_an_evaluation_at_once(capsys, tmp_path, monkeypatch, leaves):
    interrupted, codes = leaves
    launch.run(toy, toy.Config(total_timesteps=20, num_evals=1), run_dir=tmp_path / "run")
    monkeypatch.setattr(evaluation, "_episodes", interrupted)
    assert main(capsys, "--evaluate", tmp_path / "run")[0] == 130
    assert codes == [130]


def test_ctrl_c_ends_a_grid_and_a_match_at_once(capsys, tmp_path, monkeypatch, leaves):
    interrupted, codes = leaves
    launch.run(toy, toy.Config(total_timesteps=20, num_evals=1), run_dir=tmp_path / "run")
    find = robustness.loading.find_module
    monkeypatch.setattr(
        robustness.loading, "find_module", lambda name: toy if name == "toy" else find(name)
    )
    monkeypatch.setattr(robustness, "_returns", interrupted)
    with pytest.raises(SystemExit, match="130"):
        robustness.main(
            [str(tmp_path / "run"), "--randomize", "length=uniform:0.5:1", "--values", "2"]
        )
    monkeypatch.setattr(match.jax, "jit", lambda function: interrupted)
    with pytest.raises(KeyboardInterrupt):
        match._play(None, None, [], [], 2, 0, 0)
    assert codes == [130] and "aborted" in capsys.readouterr().err
