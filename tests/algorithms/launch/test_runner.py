"""`run` and `resume` from Python, on a toy for the launcher's own work, and on algorithms."""

import contextlib
import csv
import functools
import gc
import importlib.util
import json
import os
import re
import signal
import sys
import threading
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from algorithms import crossq, dqn, flashsac, launch, ppo, ppo_vtrace, reinforce
from algorithms.launch import begin, cli
from algorithms.launch.engine import devices, experiment, interrupts, metrics, session, starts
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.loading import choose_point
from algorithms.launch.engine.loop import Swept
from algorithms.launch.engine.metrics import PACE_NAMES
from algorithms.launch.engine.options import Options, describe
from algorithms.launch.engine.outputs import Hooks
from algorithms.launch.engine.programs import Trainer, excess
from algorithms.launch.engine.progress import Progress
from algorithms.launch.engine.record import Point
from algorithms.launch.engine.results import Outcome, Ranked
from algorithms.launch.engine.run_dir import RunDir
from algorithms.launch.engine.settings import Trials
from algorithms.launch.tools import evaluation, trackers
from tests.algorithms import test_dqn
from tests.algorithms.launch import toy
from tests.broken import untimed
from tests.conftest import compiled_as_for_users

pytestmark = pytest.mark.usefixtures("quick_curves", "shared_programs")
CONFIG = toy.Config(total_timesteps=500, num_evals=10)


STRICT = {"jax_numpy_rank_promotion": "raise", "jax_numpy_dtype_promotion": "strict"}
STRICT |= {f"jax_transfer_guard_{way}": "disallow" for way in ("host_to_device", "device_to_host")}


class Stop(Exception):
    """What a hook raises to end a run as a crash would."""


def stop_at(index):
    def hook(point):
        if point.index == index:
            raise Stop

    return hook


def assert_same(a, b):
    """Two pytrees, bit for bit."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    for x, y in leaves:
        np.testing.assert_array_equal(devices.plain(x), devices.plain(y))


def of_one_trial(metrics):
    """Without the trial axis."""
    return {name: values[0] for name, values in metrics.items()}


def assert_same_files(a, b):
    assert (a / "config.json").read_bytes() == (b / "config.json").read_bytes()
    tables = [untimed((x / "metrics.csv").read_bytes()) for x in (a, b)]
    assert tables[0] == tables[1]
    files = lambda run_dir: sorted((run_dir / "checkpoints").iterdir())
    assert [f.name for f in files(a)] == [f.name for f in files(b)]
    for one, other in zip(files(a), files(b), strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


@pytest.fixture(scope="module")
def whole(quick_curves, shared_programs, tmp_path_factory):
    """An uninterrupted run of three trials."""
    return launch.run(toy, CONFIG, num_seeds=3, root=tmp_path_factory.mktemp("runs"))


# --- run -------------------------------------------------------------------------------------


def test_one_trial_is_exactly_a_call_of_train():
    result = launch.run(toy, CONFIG, seed=4, save=False)
    state, metrics = jax.jit(toy.make_train(CONFIG))(jax.random.key(4))
    assert_same((result.state, of_one_trial(result.metrics)), (state, metrics))
    assert result.run_dir is None and not result.interrupted
    assert result.objective == -np.mean(metrics["eval_return"][-1])


def test_it_prints_what_the_command_line_prints_where_that_is_asked_for(tmp_path, capsys):
    def shown():
        out, err = capsys.readouterr()
        return re.sub(r"\d+(\.\d+)?[kM]? (steps/s|s)\b|\d+s left|x/\w+", "#", out), err

    words = ["--total-timesteps", "500", "--num-evals", "10", "--num-seeds", "2", "--run-dir"]
    cli.main(toy, [*words, str(tmp_path / "x" / "one")])
    expected, given = shown(), {"num_seeds": 2, "run_dir": tmp_path / "x" / "two"}
    launch.run(toy, CONFIG, quiet=False, **given)
    assert shown() == expected and " 50% | step 250 | evaluation return" in expected[0]
    launch.run(toy, CONFIG, num_seeds=2, save=False)
    assert shown() == ("", "")
    example = launch.__doc__.partition("launch.run(")[2].partition("\n")[0]
    assert "quiet=False" in example, "the first example is not silent"


def test_trials_are_exactly_the_vmapped_train(whole):
    keys = jax.vmap(jax.random.key)(np.arange(3))
    configs = jax.tree.map(lambda x: np.full(3, x, np.float32), CONFIG)
    train = jax.jit(jax.vmap(lambda config, key: toy.make_train(config)(key)))
    state, metrics = train(configs, keys)
    assert_same((whole.state, whole.metrics), (state, jax.tree.map(np.asarray, metrics)))
    assert whole.objective == pytest.approx(-metrics["eval_return"][:, -1].mean())


def test_results_show_themselves_on_a_screen(whole):
    swept = Swept([], [], None, 0.0)
    loaded = launch.load(whole.run_dir, trial=None, module=toy)
    point = Point(0, 0, whole.metrics, lambda: None, whole.run_dir, whole.is_finite)
    for shown in (whole, loaded, swept, point):
        lines = repr(shown).splitlines()
        assert len(lines) < 25 and lines[0] == f"{type(shown).__name__}("
    assert "  state=<State of 4 arrays>" in repr(whole).splitlines()
    assert "    eval_return: float32[3, 11, 4]" in repr(whole).splitlines()
    assert f"  config={CONFIG}" in repr(loaded).splitlines()
    trials = [Outcome({"gamma": 0.9}, 0, np.arange(9), np.arange(9.0), True, "run", 0)] * 500
    for shown in (swept._replace(trials=trials), Ranked({"gamma": 0.9}, trials), trials[0]):
        assert len(repr(shown)) < 300, repr(shown)


@pytest.mark.parametrize("hooks", [print, [print, 3]])
def test_hooks_that_are_no_list_of_functions_are_refused_at_once(hooks, whole, tmp_path):
    begin = [
        lambda: launch.run(toy, CONFIG, run_dir=tmp_path / "x", hooks=hooks),
        lambda: launch.resume(whole.run_dir, module=toy, hooks=hooks),
    ]
    for start in begin:
        with pytest.raises(UserError, match="hooks: give a list of functions"):
            start()
    assert not (tmp_path / "x").exists()


def test_hooks_see_every_point(tmp_path):
    seen = []
    config = CONFIG.replace(num_evals=3)
    result = launch.run(toy, config, num_seeds=2, run_dir=tmp_path / "x", hooks=[seen.append])
    assert [(p.index, p.timestep) for p in seen] == [(0, 0), (1, 170), (2, 340), (3, 510)]
    assert seen[2].metrics["eval_return"].shape == (2, 4)
    assert seen[0].run_dir == result.run_dir == tmp_path / "x"
    kept = []
    hook = lambda point: kept.append(point.get_state())
    launch.run(toy, config, num_seeds=2, save=False, hooks=[hook])
    assert [state.update.tolist() for state in kept] == [[0, 0], [34, 34], [68, 68], [102, 102]]
    assert_same(kept[-1], result.state)


@pytest.mark.parametrize(
    "total, num_evals, line, excess",
    [
        (498, 10, "500 steps in 100 updates, points 0 to 10", ""),
        (
            8,
            10,
            "10 steps in 2 updates, points 0 to 2",
            "25 % more: an update takes 5 steps, fewer",
        ),
        (1, 10, "5 steps in 1 update, points 0 to 1", "400 % more"),
        (505, 100, "1,000 steps in 200 updates, points 0 to 100", "98 % more: .* num_evals=53 wo"),
    ],
)
def test_how_long_a_run_will_be_is_said_before_it_starts(capsys, total, num_evals, line, excess):
    config = CONFIG.replace(total_timesteps=total, num_evals=num_evals)
    trainer = Trainer(toy, config, 1, Progress(False, 0.0))
    session.Session(session.Chunk(trainer, Trials([0])), Options(), Hooks())._announce()
    out, err = capsys.readouterr()
    assert line in out
    assert bool(err) == bool(excess) and re.search(excess, err)


def test_a_process_without_stdout_shows_nothing(monkeypatch):
    """`>&-`, or a service: Python's sys.stdout is None there."""
    monkeypatch.setattr(sys, "stdout", None)
    view = Progress(False, 0.0)
    view.begin(0, 2, 1)
    view.say("nobody reads it")
    view.point(0, {"timestep": np.zeros(1), "episode_return": np.zeros(1)})
    assert not view.terminal


def test_sizes_of_an_update_that_would_come_closer_are_those_of_the_algorithm():
    """PPO's updates have num_steps steps of each environment, which may be too many of one."""
    config = ppo.Config(total_timesteps=10)
    plan = ppo.make_train(config).plan
    assert "an update takes 512 steps, fewer num_envs or num_steps would" in excess(config, plan)


def kept_points(**metrics):
    """A run of one trial with three points, and its history."""
    rows = {"timestep": [0, 50, 100]} | metrics
    history = {i: {name: np.array([v[i]]) for name, v in rows.items()} for i in range(3)}
    points, finite = lambda kind: [0, 1, 2], np.ones(1, bool)
    run_dir = types.SimpleNamespace(path="run", points=points, is_finite=lambda point: finite)
    return run_dir, history


def test_the_best_point_of_players_whose_returns_cancel_is_the_last():
    """Else it is the first of equal ones: the policy before training."""
    best = lambda returns: choose_point(run_dir, "best", kept_points(episode_return=returns)[1], 0)
    run_dir, _ = kept_points()
    assert best([[np.nan, np.nan], [3.3, -3.3], [1.7, -1.7]]) == 2
    assert best([[np.nan, np.nan], [3.3, -1.3], [1.7, -1.7]]) == 1
    assert best([[4.0, 4.0], [4.0, 4.0], [4.0, 4.0]]) == best([4.0, 4.0, 4.0]) == 0


def test_a_broken_point_is_not_the_best_whatever_its_return():
    run_dir, history = kept_points(eval_return=[[[1.0]], [[3.0]], [[2.0]]])
    run_dir.is_finite = lambda point: np.array([point != 1])
    assert choose_point(run_dir, "best", history, 0) == 2


def test_a_function_of_the_history_gives_a_score_for_each_point():
    run_dir, history = kept_points(eval_return=[[[1.0, 9.0]], [[3.0, 8.0]], [[2.0, 7.0]]])
    choose = lambda function: choose_point(run_dir, function, history, 0)
    assert choose(lambda history: history["eval_return"][:, 0]) == 1
    assert choose(lambda history: [3, 2, 1]) == 0
    wrong = [lambda h: h["eval_return"], lambda h: 1, lambda h: None, lambda h: np.full(3, np.nan)]
    for function in wrong:
        with pytest.raises(launch.UserError, match="point: the function gives .* 3 points"):
            choose(function)


@pytest.mark.parametrize("point", ["best", 1.5, "1"])
def test_a_run_goes_on_from_the_last_point_or_a_number(whole, point):
    with pytest.raises(launch.UserError, match="give last or a number"):
        launch.resume(whole.run_dir, module=toy, point=point)


def test_a_run_with_few_updates_has_few_points_and_goes_on(tmp_path, capsys):
    config = CONFIG.replace(num_envs=400, anneal_lr=True)  # two updates
    with pytest.raises(Stop):
        launch.run(toy, config, run_dir=tmp_path / "run", keep_states=True, hooks=[stop_at(1)])
    result = launch.resume(tmp_path / "run", module=toy)
    state, metrics = jax.jit(toy.make_train(config))(jax.random.key(0))
    assert metrics["timestep"].tolist() == [0, 400, 800]
    assert_same((result.state, of_one_trial(result.metrics)), (state, metrics))
    resume = lambda total: launch.resume(
        tmp_path / "run", module=toy, total_timesteps=total, quiet=False
    )
    capsys.readouterr()
    assert resume(700).metrics["timestep"].tolist() == [[0, 400, 800]]
    out = capsys.readouterr().out
    assert "now 2 points of 400 timesteps" in out and "this run is finished" in out
    assert "anneal_lr" not in out
    assert resume(1000).metrics["timestep"].tolist() == [[0, 400, 800, 1200]]
    out = capsys.readouterr().out
    assert "now 3 points of 400 timesteps" in out and "anneal_lr: progress is a share" in out


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("episodes", [4, 0])
def test_curves_with_and_without_evaluation(tmp_path, start, episodes):
    config = CONFIG.replace(num_evals=2, eval_at_start=start, num_eval_episodes=episodes)
    result = launch.run(toy, config, root=tmp_path)
    assert result.metrics["timestep"].tolist() == [[0, 250, 500][not start :]]
    returns = result.metrics["eval_return" if episodes else "episode_return"]
    assert result.objective == -returns[:, -1].mean()
    assert (result.run_dir / "curve.png").stat().st_size
    assert launch.load(result.run_dir, 0, module=toy).point == 0
    scores = returns.reshape(*returns.shape[:2], -1).mean(-1)[0]
    best = launch.load(result.run_dir, "best", module=toy).point
    assert best == launch.load(result.run_dir, module=toy).points[np.nanargmax(scores)]


@pytest.fixture
def empty_cache(tmp_path):
    """A compilation cache of its own, which keeps everything."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in zip(names, (str(tmp_path / "compiled"), 0.0)):
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield tmp_path / "compiled"
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_another_float_does_not_compile_again(own_programs, empty_cache):
    compiled = lambda: {f.name for f in empty_cache.iterdir() if "jit_mapped" in f.name}
    config = CONFIG.replace(num_envs=7)
    launch.run(toy, config, save=False)
    before = compiled()
    launch.run(toy, config.replace(learning_rate=0.3, gamma=0.5), seed=8, save=False)
    assert before and compiled() == before


@pytest.mark.parametrize(
    "platform, shapes",
    [
        ("gpu", {1: (1, 1, 1), 3: (1, 3, 1), 5: (2, 3, 2), 9: (3, 3, 3), 65: (17, 4, 17)}),
        ("cpu", {1: (1, 1, 1), 5: (2, 3, 2), 16: (4, 4, 4), 20: (5, 4, 5), 65: (18, 4, 6)}),
    ],
)
def test_trials_fill_few_devices(monkeypatch, platform, shapes):
    """Trials on each of four devices, devices, and how many of them are vmapped."""
    device = lambda i: types.SimpleNamespace(process_index=0, id=i, platform=platform)
    monkeypatch.setattr(jax, "devices", lambda: [device(i) for i in range(4)])
    layouts = {n: devices.arrange(n) for n in shapes}
    assert {n: (x.per_device, len(x.devices), x.block) for n, x in layouts.items()} == shapes
    for count in range(1, 100):
        assert -(-count // devices.block_size(count, "cpu")) * devices.block_size(count, "cpu") < (
            count + 3
        )


def test_a_hook_stops_a_run_which_can_go_on(whole, tmp_path):
    others = []

    def prune(point):
        if point.index == 4:
            raise launch.Stop("pruned")

    hooks = [prune, lambda point: others.append(point.index)]
    result = launch.run(toy, CONFIG, num_seeds=3, run_dir=tmp_path / "run", hooks=hooks)
    assert result.stopped == "pruned" and result.interrupted and others == [0, 1, 2, 3, 4]
    assert result.metrics["timestep"].shape == (3, 5)
    resumed = launch.resume(tmp_path / "run", module=toy)
    assert resumed.stopped == "" and not resumed.interrupted
    assert_same((resumed.state, resumed.metrics), (whole.state, whole.metrics))
    assert_same_files(tmp_path / "run", whole.run_dir)


def test_a_process_without_trials_goes_on_with_a_finished_run(whole, monkeypatch):
    monkeypatch.setattr(devices.Layout, "own", property(lambda self: range(0)))
    result = launch.resume(whole.run_dir, module=toy)
    assert result.state is None and not result.interrupted
    np.testing.assert_array_equal(result.metrics["timestep"], whole.metrics["timestep"])


def test_a_hook_that_stops_at_the_last_point_stops_nothing():
    def late(point):
        if point.index == 10:
            raise launch.Stop

    assert not launch.run(toy, CONFIG, hooks=[late], save=False).interrupted


def test_trackers_are_told_the_algorithm(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(trackers, "open_trackers", lambda _, one: told.append(one) or {})
    launch.run(toy, CONFIG, run_dir=tmp_path / "run", track=True)
    assert told[0].config["algorithm"] == "toy" and told[0].config["gamma"] == 0.99


def test_a_trial_that_is_not_finite_is_told_of_once(tmp_path, capsys):
    config = CONFIG.replace(gamma=1.0, learning_rate=3e38)  # its weights become NaN
    with pytest.raises(Stop):
        launch.run(toy, config, run_dir=tmp_path / "run", hooks=[stop_at(4)])
    err = capsys.readouterr().err
    assert "a trial is not finite from point 1 on (step 50): policy of seed 0\n" in err
    result = launch.resume(tmp_path / "run", module=toy)
    assert not result.is_finite.any() and "not finite" not in capsys.readouterr().err
    assert result.failed and result.objective == np.inf


def with_infinite_loss(at):
    """The toy with a loss that is infinite at a timestep, of trials with large steps."""
    module = types.ModuleType("toy")
    vars(module).update(vars(toy))

    def make_train(config, env=None, env_params=None):
        train = toy.make_train(config, env, env_params)

        def infinite(*args):
            state, metrics = train(*args)
            chosen = (metrics["timestep"] == at) & (config.learning_rate > 1.0)
            metrics["loss"] = jax.numpy.where(chosen, -np.inf, metrics["loss"])
            return state, metrics

        infinite.plan = train.plan
        return infinite

    module.make_train = make_train
    return module


def test_losses_that_are_not_finite_are_told_of_at_once_and_at_the_end(tmp_path, capsys):
    """Also if they are finite again, and after a resume; NaNs before training do not count."""
    module = with_infinite_loss(at=300)
    config = CONFIG.replace(learning_rate=2.0, num_evals=5, total_timesteps=500)
    seen = []
    with pytest.raises(Stop):
        stop = stop_at(4)
        hooks = [lambda point: seen.append(bool(point.is_finite.all())), stop]
        launch.run(module, config, run_dir=tmp_path / "run", hooks=hooks, quiet=False)
    assert seen == [True, True, True, False, False]
    out, err = capsys.readouterr()
    assert err.count("not finite") == 1
    assert "a trial is not finite from point 3 on (step 300): loss of seed 0\n" in err
    lines = [line for line in out.splitlines() if line.startswith((" ", "1"))]
    assert [" | not finite | " in line for line in lines] == [False] * 3 + [True] * 2
    result = launch.resume(tmp_path / "run", module=module, quiet=False)
    out, err = capsys.readouterr()
    assert "done, not finite: evaluation return" in out and "not finite" not in err
    assert result.failed and not result.is_finite.any()
    assert launch.resume(tmp_path / "run", module=module, quiet=False).failed
    assert "not finite" in capsys.readouterr().out
    assert not launch.run(toy, config, save=False).failed


def test_infinite_losses_are_those_of_any_learner_and_no_other_metrics():
    row = {"loss": np.array([np.nan, 1.0]), "critic_loss": np.array([[1.0, -np.inf], [1, 2]])}
    row |= {"grad_norm": np.array([1.0, np.inf]), "eval_return": np.array([np.inf, np.nan])}
    found = {name: which.tolist() for name, which in metrics.infinite_losses(row).items()}
    expected = {"loss": [False, False], "critic_loss": [True, False], "grad_norm": [False, True]}
    assert found == expected


def test_a_run_that_learned_nothing_says_so(tmp_path, capsys, monkeypatch):
    nothing = np.full((2, 3), np.nan)
    curves = {"loss": nothing, "critic_loss": np.array([[np.nan] * 3, [np.nan, np.nan, 1.0]])}
    assert metrics.without_losses(curves | {"eval_return": nothing}).tolist() == [True, False]
    assert metrics.without_losses({}).tolist() == []
    config = CONFIG.replace(num_evals=1)
    launch.run(toy, config, save=False)
    assert "learned nothing" not in capsys.readouterr().err
    of = metrics.without_losses
    empty = lambda curves: of({"loss": np.nan * curves["loss"]})
    monkeypatch.setattr(metrics, "without_losses", empty)
    launch.run(toy, config, save=False)
    assert "warning: 1 of 1 trials learned nothing" in capsys.readouterr().err


# --- one command that starts or goes on ------------------------------------------------------


def test_one_call_starts_goes_on_and_is_done(whole, tmp_path):
    call = lambda **more: launch.run(
        toy, CONFIG, num_seeds=3, run_dir=tmp_path / "run", resume_if_exists=True, **more
    )
    with pytest.raises(Stop):
        call(hooks=[stop_at(3)])
    for _ in range(2):
        result = call()
        assert_same((result.state, result.metrics), (whole.state, whole.metrics))
    assert_same_files(tmp_path / "run", whole.run_dir)


@pytest.mark.parametrize("seeds, advice", [(1, "fewer num_envs"), (5, "max_parallel=2$")])
@pytest.mark.parametrize("begin", [launch.run, launch.sweep])
def test_running_out_of_memory_says_what_would_do(begin, seeds, advice):
    def fill_up(_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: a device is full")

    with pytest.raises(UserError, match=advice):
        begin(toy, CONFIG, num_seeds=seeds, save=False, hooks=[fill_up])


@pytest.mark.parametrize(
    "change, seeds, message",
    [
        ({"gamma": 0.5}, 3, r"other settings, gamma 0.99 \(asked for: 0.5\): give another"),
        ({"hidden_sizes": (4,)}, 3, r"hidden_sizes \[3, 2\] \(asked for: \[4\]\)"),
        ({}, 2, r"seeds \[0, 1, 2\] \(asked for: \[0, 1\]\)"),
    ],
)
def test_what_is_there_must_be_what_is_asked_for(whole, change, seeds, message):
    config = CONFIG.replace(**change)
    with pytest.raises(UserError, match=message):
        launch.run(toy, config, num_seeds=seeds, run_dir=whole.run_dir, resume_if_exists=True)


def test_where_it_is_must_be_said():
    with pytest.raises(UserError, match="say which directory, run_dir="):
        launch.run(toy, CONFIG, resume_if_exists=True)


def test_a_directory_that_has_something_else_is_not_touched(tmp_path, monkeypatch):
    (tmp_path / "notes").write_text("mine")
    monkeypatch.chdir(tmp_path)
    for run_dir, more in ((tmp_path, {}), (tmp_path, {"resume_if_exists": True}), (".", {})):
        with pytest.raises(UserError, match="exists: a run is never overwritten"):
            launch.run(toy, CONFIG, run_dir=run_dir, **more)
    assert [file.name for file in tmp_path.iterdir()] == ["notes"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert launch.run(toy, CONFIG, run_dir=empty).run_dir == empty


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "field, values",
    [
        ("gamma", (-0.1, 1.1, np.nan)),
        ("gae_lambda", (-0.1, 1.1)),
        ("learning_rate", (-1e-3, np.inf, np.nan)),
        ("clip_eps", (0.0, -0.1)),
        ("max_grad_norm", (0.0, np.nan)),
        ("target_kl", (0.0, -1.0, np.nan)),
        ("ent_coef", (-0.1,)),
        ("vf_coef", (-0.1, np.inf)),
        ("adam_eps", (np.nan,)),
    ],
)
def test_floats_out_of_range(field, values):
    for value in values:
        with pytest.raises(UserError, match=f"{field}={value}: give a number"):
            launch.run(ppo, ppo.Config(**{field: value}), save=False)


def test_values_of_numpy_and_jax_make_the_same_files(whole, tmp_path):
    given = {"total_timesteps": 500.0, "num_evals": np.int64(10), "hidden_sizes": jnp.array([3, 2])}
    given |= {"num_envs": np.array(5), "env_settings": {}, "gamma": jnp.float32(0.99)}
    config = toy.Config(**given)
    result = launch.run(toy, config, num_seeds=3.0, seed=np.int64(0), run_dir=tmp_path / "run")
    assert_same((result.state, result.metrics), (whole.state, whole.metrics))
    found, expected = (RunDir.open(path).description for path in (tmp_path / "run", whole.run_dir))
    assert found | {"config": 0} == expected | {"config": 0}
    assert found["config"] | {"gamma": 0} == expected["config"] | {"gamma": 0}
    last = launch.resume(tmp_path / "run", module=toy, total_timesteps=np.float64(600))
    assert last.metrics["timestep"].shape == (3, 13)
    load = functools.partial(launch.load, tmp_path / "run", module=toy)
    assert load(point=np.int64(2), trial=np.int64(1)).trials.seeds == [1]


@pytest.mark.parametrize(
    "config, keywords, message",
    [
        (CONFIG, {"num_seeds": 0}, "num_seeds=0: give 1 or more"),
        (CONFIG, {"num_seeds": 2.5}, "num_seeds=2.5: give a whole number"),
        (CONFIG, {"seed": "4"}, "seed='4': give a whole number"),
        (CONFIG, {"seed": -1}, "seed=-1: seeds go from 0"),
        (CONFIG, {"seed": jax.random.key(0)}, "seed is a key: give a whole number; trial i has"),
        (CONFIG, {"gif": "always"}, "gif='always': choose one of never"),
        (CONFIG, {"trak": True}, "unknown option 'trak'; did you mean track"),
        (CONFIG, {"sed": 1}, "unknown option 'sed'; did you mean seed"),
        (CONFIG, {"sweep_dir": "x"}, "unknown option 'sweep_dir'; did you mean seed, sweep_states"),
        (
            {"gamma": 0.9},
            {},
            r"config is {'gamma': 0.9}: give .*toy.Config\(...\), with its settin",
        ),
        (toy.Config, {}, r"config is <class .*toy.Config'>: give .*toy.Config\(...\), with its"),
        (CONFIG, {"hooks": 5}, r"hooks: give a list of functions, hooks=\[...\]"),
        (dqn.Config(), {}, "config is of algorithms.dqn.Config, without .*: give .*toy.Config"),
        (
            CONFIG.replace(learning_rate=[0.1, 0.2]),
            {},
            "learning_rate=.0.1, 0.2.: give a num",
        ),
        (CONFIG, {"one_run_per_seed": True}, "use it with track or tensorboard"),
        (CONFIG, {"keep_states": True, "save": False}, "save=False: keep_states needs files"),
        (CONFIG, {"save": False, "run_dir": "x"}, "save=False makes no directory: leave x or save"),
        (CONFIG, {"run_dir": 5}, "5 is no path: give the directory of a run or a sweep"),
        (CONFIG, {"track": "no"}, "track='no': give True or False"),
        (CONFIG, {"quiet": "x"}, "quiet='x': give True or False"),
        (CONFIG, {"save": "no"}, "save='no': give True or False"),
        (CONFIG, {"resume_if_exists": 2}, "resume_if_exists=2: give True or False"),
        (CONFIG.replace(env=5), {}, "env is 5: give a name, as CartPole-v1, or an environment obj"),
        (CONFIG.replace(env=toy.Config), {}, "env is the class Config: give a name, as CartPole"),
        (CONFIG.replace(env_settings=5), {}, r'env_settings=5: give pairs, as \(\("max_steps", 50'),
        (CONFIG.replace(env_settings=(("max_steps",),)), {}, "env_settings=.*: give pairs, as"),
        (CONFIG.replace(num_envs=0), {}, "num_envs=0"),
        (CONFIG.replace(env="CartPole"), {}, "unknown environment 'CartPole'; did you mean"),
        (CONFIG.replace(env="SimpleBandit-bsuite"), {"gif": "end"}, "cannot be drawn"),
    ],
)
def test_settings_that_cannot_work(tmp_path, config, keywords, message):
    with pytest.raises(UserError, match=message):
        launch.run(toy, config, root=tmp_path, **keywords)
    assert not list(tmp_path.iterdir()), "a run that cannot start leaves nothing"


@pytest.mark.parametrize(
    "start, given, message",
    [
        (launch.sweep, [1], "grid is .1.: give fields by name, {.learning_rate.: .1e-3, 1e-2.}"),
        (launch.pbt, [1], "ranges is .1.: give fields by name, {.learning_rate.: LogUniform"),
        (launch.pbt, None, "ranges is None: give fields by name"),
    ],
)
def test_fields_without_names_are_refused(start, given, message):
    with pytest.raises(UserError, match=message):
        start(toy, CONFIG, given, save=False)


def test_an_unknown_sampler_is_refused_whatever_it_is():
    with pytest.raises(UserError, match="unknown sampler '5'; there are sobol, random"):
        launch.sweep(toy, CONFIG, {"learning_rate": [0.1, 0.2]}, sampler=5, save=False)


@pytest.mark.parametrize("module", [CONFIG, "ppo", None])
def test_what_is_no_algorithm_is_refused(module):
    for start in (launch.run, launch.sweep, functools.partial(launch.pbt, ranges={})):
        with pytest.raises(UserError, match="give an algorithm's module, as algorithms.ppo"):
            start(module, CONFIG, save=False)


def test_a_block_is_kept_where_devices_compute_little_in_vain(monkeypatch):
    """Trials and the size of a block, on two devices; 6 trials are 3 on each, or a block of 4."""
    one = Trainer(toy, CONFIG, 1, Progress(True, 0.0))
    device = lambda i: types.SimpleNamespace(process_index=0, id=i, platform="cpu")
    monkeypatch.setattr(jax, "devices", lambda: [device(0), device(1)])
    for count in ("device_count", "local_device_count"):
        monkeypatch.setattr(jax, count, lambda: 2)
    kept = {(8, 4): True, (4, 4): False, (7, 4): True, (6, 4): False, (14, 4): True, (1, 1): True}
    assert {case: one.suits(*case) for case in kept} == kept


def test_a_program_is_left_where_devices_would_compute_more_than_in_a_new_one(monkeypatch):
    """49 trials are on 7 of 8 devices, 7 or 8 each. There 32 would be blocks of 4 twice."""
    trainer = Trainer(toy, CONFIG, 1, Progress(True, 0.0))
    device = lambda i: types.SimpleNamespace(process_index=0, id=i, platform="cpu")
    monkeypatch.setattr(jax, "devices", lambda: [device(i) for i in range(8)])
    for count in ("device_count", "local_device_count"):
        monkeypatch.setattr(jax, count, lambda: 8)
    monkeypatch.setattr(Trainer, "compile", lambda *_: None)
    monkeypatch.setattr(Trainer, "fit", lambda _, number, *__: [range(number)])
    for number, shares in ((32, False), (49, True)):
        trainer.arrange(49, 4)
        trainer.settled, trainer.programs = True, ("start", "advance")
        assert (trainer.again(number, None, 1, True)[0] is trainer) == shares


def test_ctrl_c_in_jax_s_callback_of_the_garbage_collection_is_heard_a_moment_later(monkeypatch):
    assert interrupts.GC_CALLBACK in [callback.__name__ for callback in gc.callbacks]
    sent, there = [], threading.Event()
    monkeypatch.setattr(os, "kill", lambda *given: sent.append(given) or there.set())
    frame = lambda name: types.SimpleNamespace(f_code=types.SimpleNamespace(co_name=name))
    interrupts.at_once(signal.SIGINT, frame(interrupts.GC_CALLBACK))
    assert there.wait(10) and sent == [(os.getpid(), signal.SIGINT)]
    with pytest.raises(KeyboardInterrupt):
        interrupts.at_once(signal.SIGINT, frame("main"))


@pytest.mark.parametrize("option, library", [("track", "wandb"), ("tensorboard", "tensorboardX")])
def test_a_tracker_without_its_library_leaves_nothing(tmp_path, monkeypatch, option, library):
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    train = (launch.run, {}), (launch.sweep, {"grid": {"gamma": [0.5, 0.9]}})
    for start, more in train:
        with pytest.raises(UserError, match=f"--{option} needs {library}: pip install {library}"):
            start(toy, CONFIG, root=tmp_path / "runs", **more, **{option: True})
    assert not list(tmp_path.iterdir())


def test_a_start_that_fails_does_not_block_its_directory(tmp_path, monkeypatch):
    """As --track does without a login, which is found out when the directory is there."""

    def no_login(asked, told):
        (told.run_dir / "wandb").mkdir()
        raise UserError("--track: wandb cannot start")

    monkeypatch.setattr(trackers, "check_libraries", lambda *_: None)
    monkeypatch.setattr(trackers, "open_trackers", no_login)
    grid = {"gamma": [0.5, 0.9]}
    for start in (
        lambda: launch.run(toy, CONFIG, run_dir=tmp_path / "x", track=True),
        lambda: launch.sweep(toy, CONFIG, grid, sweep_dir=tmp_path / "x", track=True),
    ):
        with pytest.raises(UserError, match="wandb cannot start"):
            start()
        assert not list(tmp_path.iterdir())


def test_a_folder_of_wandb_s_runs_is_no_library(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    trackers.check_libraries(["track"])
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(UserError, match="pip install wandb"):
        trackers.check_libraries(["track"])


def test_a_run_goes_on_without_a_tracker_that_is_gone(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    path = launch.run(toy, CONFIG, run_dir=tmp_path / "run").run_dir
    described = json.loads((path / "config.json").read_text())
    described["options"]["tensorboard"] = True
    del described["checksum"]
    (path / "config.json").write_text(json.dumps(described))
    before = (path / "versions.json").read_bytes()
    with pytest.raises(UserError, match="--tensorboard needs tensorboardX"):
        launch.resume(path, module=toy)
    assert (path / "versions.json").read_bytes() == before
    launch.resume(path, module=toy, tensorboard=False)


@pytest.mark.parametrize("total", ["4e3", 4000.5, True])
def test_a_length_that_is_no_whole_number_is_refused(whole, total):
    with pytest.raises(UserError, match=f"total_timesteps={total!r}: give a whole number"):
        launch.resume(whole.run_dir, module=toy, total_timesteps=total)


def test_a_result_in_place_of_its_directory_is_refused_in_one_line(whole):
    refused = "^a Result is no path: give the directory of a run or a sweep"
    for result, end in ((whole, ", its run_dir$"), (whole._replace(run_dir=None), "$")):
        with pytest.raises(UserError, match=refused + end):
            launch.load(result, module=toy)


def test_an_existing_run_dir_is_refused(whole):
    with pytest.raises(UserError, match="never overwritten"):
        launch.run(toy, CONFIG, run_dir=whole.run_dir)


# --- resume ----------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 4, 9])
def test_resumed_is_exactly_uninterrupted(whole, tmp_path, index):
    with pytest.raises(Stop):
        launch.run(toy, CONFIG, num_seeds=3, run_dir=tmp_path / "run", hooks=[stop_at(index)])
    assert RunDir.open(tmp_path / "run").points("policy")[-1] == index
    result = launch.resume(tmp_path / "run", module=toy)
    assert_same((result.state, result.metrics), (whole.state, whole.metrics))
    assert result.objective == whole.objective
    assert_same_files(tmp_path / "run", whole.run_dir)
    sessions = json.loads((tmp_path / "run" / "versions.json").read_text())
    assert [session["from_point"] for session in sessions] == [0, index]


def test_a_run_without_a_checkpoint_starts_over(whole, tmp_path):
    run_dir = tmp_path / "run"
    described = RunDir.open(whole.run_dir).description
    experiment.create(described, [described], tmp_path, run_dir)
    result = launch.resume(run_dir, module=toy)
    assert_same((result.state, result.metrics), (whole.state, whole.metrics))


def test_points_half_saved_are_run_again(whole, tmp_path):
    """As after a kill between the files of a point, with half a row and half a file."""
    run_dir = tmp_path / "run"
    launch.run(toy, CONFIG, num_seeds=3, run_dir=run_dir)
    (run_dir / "checkpoints" / "000010.state").unlink()
    (run_dir / "checkpoints" / ".000010.state.part").write_bytes(b"half")
    with open(run_dir / "metrics.csv", "a") as file:
        file.write("0,11,0.")
    launch.resume(run_dir, module=toy)
    assert_same_files(run_dir, whole.run_dir)


def test_a_finished_run_says_so(whole, capsys):
    before = (whole.run_dir / "metrics.csv").stat().st_mtime_ns
    result = launch.resume(whole.run_dir, module=toy, quiet=False)
    assert "this run is finished" in capsys.readouterr().out
    assert_same((result.state, result.metrics), (whole.state, whole.metrics))
    assert (whole.run_dir / "metrics.csv").stat().st_mtime_ns == before


@pytest.mark.parametrize("index", [0, 2, 4])
def test_a_longer_run_is_exactly_one_that_was_so_long(tmp_path, capsys, index):
    config = CONFIG.replace(total_timesteps=237, num_evals=4)  # 48 updates, 12 to a point
    with pytest.raises(Stop):
        launch.run(toy, config, run_dir=tmp_path / "run", hooks=[stop_at(index)])
    longer = launch.resume(tmp_path / "run", module=toy, total_timesteps=500, quiet=False)
    new = CONFIG.replace(total_timesteps=540, num_evals=9)
    if index == 0:  # nothing trained: the new total with the old number of points
        new = CONFIG.replace(total_timesteps=500, num_evals=4)
    assert ("now 9 points of 60 timesteps each, 540" in capsys.readouterr().out) == (index > 0)
    long = launch.run(toy, new, run_dir=tmp_path / "long")
    assert_same((longer.state, longer.metrics), (long.state, long.metrics))
    assert_same_files(tmp_path / "run", tmp_path / "long")


def test_the_command_that_made_a_run_longer_may_be_given_again(tmp_path):
    config = CONFIG.replace(total_timesteps=200, num_evals=4)
    launch.run(toy, config, run_dir=tmp_path / "run")
    for stop in ([stop_at(5)], []):  # 310 steps are 7 points of 50
        with pytest.raises(Stop) if stop else contextlib.nullcontext():
            longer = launch.resume(tmp_path / "run", module=toy, total_timesteps=310, hooks=stop)
    assert longer.metrics["timestep"][0].tolist() == [*range(0, 351, 50)]
    with pytest.raises(UserError, match="total_timesteps=300 is less than the 350 of the run"):
        launch.resume(tmp_path / "run", module=toy, total_timesteps=300)


@pytest.mark.parametrize("points, many", [(1000, False), (1001, True)])
def test_a_longer_run_with_thousands_of_points_is_told_of(tmp_path, capsys, points, many):
    """Its points are as long as those that it has."""
    run_dir = launch.run(
        toy, CONFIG.replace(total_timesteps=40, num_evals=4), root=tmp_path
    ).run_dir
    again = {"module": toy, "hooks": [stop_at(5)], "quiet": False}
    with pytest.raises(Stop):
        launch.resume(run_dir, total_timesteps=10 * points, **again)
    said = capsys.readouterr().out
    assert f"now {points} points of 10 timesteps each" in said
    assert ("which may take longer than training" in said) == many


def test_a_longer_run_with_a_schedule_says_that_it_changes(tmp_path, capsys):
    config = CONFIG.replace(anneal_lr=True)
    run_dir = launch.run(toy, config, root=tmp_path).run_dir
    launch.resume(run_dir, module=toy, total_timesteps=1000, quiet=False)
    assert (
        "anneal_lr: progress is a share of the total, so the learning rate rises again"
        in capsys.readouterr().out
    )
    with pytest.raises(UserError, match="total_timesteps=20 is less than the 1000 of the run"):
        launch.resume(run_dir, module=toy, total_timesteps=20)


def test_schedules_of_exploration_depend_on_the_total_too():
    config = dqn.Config(anneal_lr=True)
    assert starts.schedules(config) == ["anneal_lr", "exploration_fraction"]
    assert starts.schedules(config.replace(exploration="constant")) == ["anneal_lr"]
    never = config.replace(exploration_fraction=float("inf"), anneal_lr=False)
    assert starts.schedules(never) == []
    assert starts.schedules(crossq.Config(anneal_lr=False)) == ["renorm_warmup"]
    assert starts.schedules(flashsac.Config()) == ["final_lr_share"]
    assert starts.schedules(flashsac.Config(final_lr_share=1.0)) == []
    assert starts.schedules(never.replace(prioritized=True)) == ["priority_beta"]
    assert starts.schedules(never.replace(prioritized=True, priority_beta=1.0)) == []
    assert starts.schedules(ppo_vtrace.Config(anneal_lr=False)) == ["anneal_beta"]
    for without in (0.0, 1.0):
        assert starts.schedules(crossq.Config(anneal_lr=False, renorm_warmup=without)) == []


def test_a_population_is_not_gone_on_with_as_a_run_of_its_config(tmp_path):
    asked = describe(toy, CONFIG, Trials([0]), Options())
    there = asked | {"population": {"members": 4}}
    path, _ = experiment.create(there, [there], tmp_path)
    with pytest.raises(UserError, match="was made with other settings, population {'members': 4}"):
        begin._check_same(path, toy, asked)


def test_going_on_from_a_kept_state_is_a_new_run(whole, tmp_path):
    old = launch.run(toy, CONFIG, num_seeds=3, run_dir=tmp_path / "old", keep_states=True).run_dir
    before = {f.name: f.read_bytes() for f in (old / "checkpoints").iterdir()}
    result = launch.resume(old, module=toy, point=4)
    assert result.run_dir != old and result.run_dir.parent == old.parent
    assert_same((result.state, result.metrics), (whole.state, whole.metrics))
    assert RunDir.open(result.run_dir).points("policy") == list(range(11))
    assert before == {f.name: f.read_bytes() for f in (old / "checkpoints").iterdir()}
    with pytest.raises(UserError, match="no whole state of point 12"):
        launch.resume(old, module=toy, point=12)


def test_options_go_on_unless_changed(tmp_path):
    with pytest.raises(Stop):
        launch.run(toy, CONFIG, run_dir=tmp_path / "a", keep_states=True, hooks=[stop_at(2)])
    with pytest.raises(Stop):
        launch.resume(tmp_path / "a", module=toy, hooks=[stop_at(5)])
    assert RunDir.open(tmp_path / "a").points("state") == list(range(6))
    launch.resume(tmp_path / "a", module=toy, keep_states=False)
    assert RunDir.open(tmp_path / "a").points("state") == [9, 10]


# --- an algorithm ----------------------------------------------------------------------------

SMALL = dict(
    total_timesteps=256,
    num_envs=2,
    num_steps=16,
    num_evals=4,
    num_eval_episodes=2,
    hidden_sizes=(8,),
)
REINFORCE = reinforce.Config(**SMALL)


def test_a_run_is_exactly_train_and_so_is_a_resumed_one(tmp_path, jitted_as_for_users):
    """Of the file that compiles fastest, without evaluations, of which test_contract.py knows."""
    config = REINFORCE.replace(num_eval_episodes=0)
    with pytest.raises(Stop):
        launch.run(reinforce, config, seed=3, run_dir=tmp_path / "run", hooks=[stop_at(2)])
    result = launch.resume(tmp_path / "run")
    with compiled_as_for_users():
        state, metrics = reinforce.make_train(config)(jax.random.key(3))
    assert_same((result.state, of_one_trial(result.metrics)), (state, metrics))
    loaded = launch.load(tmp_path / "run")
    assert loaded.module is reinforce and loaded.config == config
    assert_same(loaded.state, state)


def test_cells_without_data_are_empty_under_jax_debug_nans(tmp_path, debug_nans):
    """Those of DQN before training, and its losses until there is enough to learn from."""
    result = launch.run(dqn, test_dqn.TINY, run_dir=tmp_path / "run")
    with open(tmp_path / "run" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    always = {"seed", "point", "timestep", "num_episodes", *PACE_NAMES}
    always |= {name for name in rows[0] if name.startswith("eval_")}
    missing = [{name for name, cell in row.items() if cell == ""} for row in rows]
    assert missing == [rows[0].keys() - always, test_dqn.CASE.metrics, set(), set()]
    for name in rows[0].keys() - {"seed", "point", *PACE_NAMES}:
        gone = [name in names for names in missing]
        found = np.isnan(result.metrics[name][0]).reshape(len(rows), -1).any(1)
        assert found.tolist() == gone, name


@pytest.fixture
def enable_x64():
    """JAX_ENABLE_X64=1 (in all threads: the launcher trains in one)."""
    set_ = lambda on: jax.config.update("jax_enable_x64", on)
    yield set_
    set_(False)


def test_a_run_is_the_same_under_jax_enable_x64(tmp_path, enable_x64):
    """Bit for bit, and without a warning; so are episodes of its policy.

    Of the toy: the launcher turns 64 bits off around it. test_contract.py has the algorithms.
    """
    found = []
    for on in (False, True):
        enable_x64(on)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Explicitly requested dtype")
            result = launch.run(toy, CONFIG, num_seeds=2, run_dir=tmp_path / str(on))
            loaded = launch.load(tmp_path / str(on), module=toy)
            episodes = evaluation.evaluate(toy, loaded.config, loaded.state, 1, 2)
        found.append((result.state, result.metrics, episodes))
    assert_same(*found)
    types_ = [jax.tree.map(lambda x: x.dtype, tree) for tree in found]
    assert types_[0] == types_[1]


@pytest.fixture
def strict_jax():
    """JAX_NUMPY_RANK_PROMOTION=raise and so on, in all threads."""
    yield lambda: [jax.config.update(*setting) for setting in STRICT.items()]
    for name in STRICT:
        default = {"jax_numpy_rank_promotion": "allow", "jax_numpy_dtype_promotion": "standard"}
        jax.config.update(name, default.get(name))


def test_runs_and_sweeps_are_the_same_under_strict_settings_of_jax(tmp_path, strict_jax):
    """Of the toy and the launcher's threads; test_contract.py has the algorithms."""
    found = []
    for place in ("plain", "strict"):
        if place == "strict":
            strict_jax()
        run = launch.run(toy, CONFIG, num_seeds=2, run_dir=tmp_path / place / "run")
        grid = {"gamma": [0.5, 0.9], "num_envs": [5, 7]}
        swept = launch.sweep(toy, CONFIG, grid, num_seeds=2, sweep_dir=tmp_path / place / "sweep")
        run = launch.resume(run.run_dir, module=toy, total_timesteps=600)
        loaded = launch.load(run.run_dir, module=toy)
        episodes = evaluation.evaluate(toy, loaded.config, loaded.state, 1, 2)
        found.append((run.state, run.metrics, episodes, [t.returns for t in swept.trials]))
    assert_same(*found)


def test_a_nan_ends_a_run_under_jax_debug_nans(tmp_path, debug_nans):
    with pytest.raises(FloatingPointError, match="a NaN in what the program of a point gives"):
        launch.run(toy, CONFIG, run_dir=tmp_path / "run")  # its metrics are NaN before training


@pytest.fixture
def no_key_checks():
    """The checker raises false alarms for keys in a vmapped while loop, where old ones are kept."""
    before = jax.config.jax_debug_key_reuse
    jax.config.update("jax_debug_key_reuse", False)
    yield
    jax.config.update("jax_debug_key_reuse", before)


@pytest.mark.slow
def test_ppo_with_several_seeds_resumes_exactly(tmp_path, no_key_checks, jitted_as_for_users):
    settings = SMALL | dict(eval_at_start=False, num_eval_episodes=0)  # compiles faster
    config = ppo.Config(**settings)
    whole = launch.run(ppo, config, num_seeds=3, run_dir=tmp_path / "whole")
    with pytest.raises(Stop):
        launch.run(ppo, config, num_seeds=3, run_dir=tmp_path / "run", hooks=[stop_at(2)])
    result = launch.resume(tmp_path / "run")
    assert_same((result.state, result.metrics), (whole.state, whole.metrics))
    assert_same_files(tmp_path / "run", tmp_path / "whole")


def test_a_file_may_add_words_to_a_run_s_first_line(tmp_path, monkeypatch, capsys):
    words = lambda config: f"{config.num_envs} at once"
    monkeypatch.setattr(toy, "in_words", words, raising=False)
    launch.run(toy, CONFIG, run_dir=tmp_path / "run", quiet=False)
    first = capsys.readouterr().out.splitlines()[0]
    assert f" updates, {CONFIG.num_envs} at once, points 0 to 10, in " in first
