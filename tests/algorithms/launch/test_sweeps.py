"""Sweeps: which trials there are, chunks and memory, what comes out, and what breaks on the way."""

import csv
import functools
import inspect
import json
import math
import os
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

import envs
from algorithms import launch, ppo
from algorithms.launch import cli, flags
from algorithms.launch.engine import (
    devices,
    distributions,
    experiment,
    grids,
    intervals,
    options,
    outcomes,
    outputs,
    plots,
    programs,
    reading,
    results,
    session,
    settings,
    sweep_dir,
)
from algorithms.launch.engine.distributions import Choice, LogUniform, Uniform
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.metrics import PACE_NAMES
from algorithms.launch.engine.progress import Progress
from algorithms.launch.engine.run_dir import RunDir, read_description
from algorithms.launch.tools import render, trackers
from tests import probe as tasks
from tests.algorithms.launch import toy
from tests.broken import untimed
from tests.conftest import AS_FOR_USERS

pytestmark = pytest.mark.usefixtures("quick_pictures", "shared_programs")
CONFIG = toy.Config(total_timesteps=200, num_evals=4)
GRID = {"learning_rate": [0.1, 0.2, 0.3], "gamma": [0.9, 1.0]}
PPO = ppo.Config(
    total_timesteps=3 * 16,
    num_envs=2,
    num_steps=8,
    num_minibatches=2,
    update_epochs=1,
    hidden_sizes=(8,),
    num_evals=3,
    num_eval_episodes=0,
    eval_at_start=False,
)


class Stop(Exception):
    """What a hook raises to end a sweep as a crash would."""


@pytest.fixture(scope="module")
def whole(quick_pictures, shared_programs, tmp_path_factory):
    """A sweep of six settings with two seeds, all twelve trials at once."""
    root = tmp_path_factory.mktemp("whole")
    return launch.sweep(toy, CONFIG, GRID, num_seeds=2, sweep_states="all", root=root)


def curves(swept):
    """What a trial is, and its curve."""
    key = lambda trial: (*trial.setting.items(), trial.seed)
    return {
        key(trial): (trial.timesteps.tolist(), trial.returns.tolist()) for trial in swept.trials
    }


@functools.cache
def state(swept_dir, trial):
    """Plain arrays of a trial's state at the last point; of a sweep that is over."""
    loaded = launch.load(swept_dir, trial=trial, module=toy)
    return jax.tree.map(lambda x: np.asarray(devices.plain(x)), loaded.state)


def assert_same_sweeps(one, other, every=1):
    """Bit for bit: curves, states of every nth trial, and results.csv but for where they are."""
    assert curves(one) == curves(other)
    for trial in range(0, len(one.trials), every):
        pair = state(one.sweep_dir, trial), state(other.sweep_dir, trial)
        jax.tree.map(np.testing.assert_array_equal, *pair)
    rows = [table(swept.sweep_dir) for swept in (one, other)]
    for row in (*rows[0], *rows[1]):
        del row["run"], row["trial_of_run"]
    assert rows[0] == rows[1]


def table(sweep_dir):
    with open(sweep_dir / "results.csv") as file:
        return list(csv.DictReader(file))


# --- settings --------------------------------------------------------------------------------


def test_seeds_vary_fastest_then_floats_then_groups():
    grid = {"num_envs": [5, 7], "learning_rate": [0.1, 0.2], "gamma": [0.5, 0.6]}
    groups = grids.groups_of(CONFIG, grids.Asked(grid), range(3, 5))
    assert [(p.config.num_envs, p.static) for p in groups] == [
        (5, {"num_envs": 5}),
        (7, {"num_envs": 7}),
    ]
    for group in groups:
        trials = group.trials
        assert trials.seeds == [3, 4] * 4
        np.testing.assert_array_equal(trials.floats["learning_rate"], [0.1] * 4 + [0.2] * 4)
        np.testing.assert_array_equal(trials.floats["gamma"], [0.5, 0.5, 0.6, 0.6] * 2)
        assert trials.label(3) == "learning_rate=0.1, gamma=0.6, seed 4"
        configs = trials.configs(group.config)
        assert configs.learning_rate.dtype == np.float32 and configs.target_kl.shape == (8,)


@pytest.mark.parametrize("sampler", grids.SAMPLERS)
def test_draws_have_their_distributions_and_begin_alike(sampler):
    drawn = {"learning_rate": LogUniform(1e-5, 1e-1), "gamma": Uniform(0.9, 1.0)}
    draws = grids.draw(drawn, 512, sampler, 0)
    assert all(np.all((d.low <= draws[n]) & (draws[n] <= d.high)) for n, d in drawn.items())
    uniform = {"learning_rate": scipy.stats.uniform(-5, 4), "gamma": scipy.stats.uniform(0.9, 0.1)}
    exponents = draws | {"learning_rate": np.log10(draws["learning_rate"])}
    for name, distribution in uniform.items():
        assert scipy.stats.kstest(exponents[name], distribution.cdf).pvalue > 1e-4
    assert abs(scipy.stats.spearmanr(*draws.values()).statistic) < 0.15
    fewer = grids.draw(drawn, 100, sampler, 0)
    other = grids.draw(drawn, 100, sampler, 1)
    for name in drawn:
        np.testing.assert_array_equal(fewer[name], draws[name][:100])
        assert not np.any(fewer[name] == other[name])


def test_sobol_leaves_no_gaps():
    draws = grids.draw({"x": Uniform(0, 1), "y": Uniform(0, 1)}, 64, "sobol", 0)
    for values in draws.values():
        assert sorted(np.floor(values * 64)) == list(range(64))
    cells = set(zip(np.floor(draws["x"] * 8), np.floor(draws["y"] * 8)))
    assert len(cells) == 64


def test_draws_are_crossed_with_lists():
    grid = {"learning_rate": LogUniform(1e-3, 1e-1), "gamma": [0.5, 0.6]}
    (group,) = grids.groups_of(CONFIG, grids.Asked(grid, 3), [0])
    rates = group.trials.floats["learning_rate"]
    np.testing.assert_array_equal(rates[:3], rates[3:])
    np.testing.assert_array_equal(group.trials.floats["gamma"], [0.5] * 3 + [0.6] * 3)


def test_values_of_numpy_and_jax_make_the_same_sweep(tmp_path):
    plain = {
        "gamma": [0.25, 0.5],
        "num_envs": [5, 7],
        "hidden_sizes": [(3, 2), (2, 3)],
        "env_settings": [(("max_steps", 9),), ()],
    }
    given = {
        "gamma": jnp.array([0.25, 0.5]),
        "num_envs": np.array([5.0, 7.0]),
        "hidden_sizes": np.array([[3, 2], [2, 3]]),
        "env_settings": [{"max_steps": np.int64(9)}, {}],
    }
    draw = lambda grid: {name: Choice(values) for name, values in grid.items()}
    rows = lambda grid: [dict(zip(grid, values)) for values in zip(*grid.values())]
    for keywords in (
        lambda grid: {"grid": grid},
        lambda grid: {"grid": draw(grid), "samples": 4},
        lambda grid: {"settings": rows(grid)},
    ):
        asked = [
            grids.completed(CONFIG, grids.with_plain_values(CONFIG, grids.Asked(**keywords(grid))))
            for grid in (plain, given)
        ]
        assert repr(asked[1]) == repr(asked[0])
    counts = grids.Asked({}, np.int64(4), retest=2.0, halving=np.int64(3))
    counts = grids.with_plain_values(CONFIG, counts)
    assert repr([*counts]) == repr([*grids.Asked({}, 4, retest=2, halving=3)])
    setting = {name: values[0] for name, values in given.items()}
    swept = launch.sweep(toy, CONFIG, settings=[setting], sweep_dir=tmp_path / "x")
    assert swept.of(setting).setting == {name: values[0] for name, values in plain.items()}


def test_trials_survive_json():
    trials = settings.Trials([1, 2], {"target_kl": np.array([math.inf, 0.1])})
    text = json.dumps(trials.to_json(), allow_nan=False)
    back = settings.Trials.from_json(json.loads(text))
    assert back.seeds == [1, 2] and back.setting(0) == {"target_kl": math.inf}


@pytest.mark.parametrize(
    "grid, keywords, message",
    [
        ({"learnin_rate": [1.0]}, {}, "did you mean learning_rate"),
        ({"learning_rate": 0.1}, {}, "give a list of values"),
        ({"env": "CartPole-v1"}, {}, "give a list of values"),
        ({"learning_rate": []}, {}, "has no values"),
        ({"gamma": [0.9, 0.9]}, {}, "gamma: 0.9 is there twice"),
        (
            {"hidden_sizes": [(64,), (64,)]},
            {},
            "hidden_sizes: 64 is there twice; one setting of them all is 64,64",
        ),
        ({"gamma": [0.9, 1.1]}, {}, "gamma=1.1: give a number in [0, 1]"),
        ({"gamma": ["high"]}, {}, "gamma=high: give a number"),
        ({"gamma": [[0.9, 0.8], [0.7, 0.6]]}, {}, "gamma=(0.9, 0.8): give one number for each"),
        (
            {},
            {"settings": [{"gamma": [0.9, 0.8]}, {"gamma": [0.7, 0.6]}]},
            "gamma=(0.9, 0.8): give one number for each",
        ),
        ({}, {"settings": [{"gamma": Uniform(0, 1)}]}, "gamma is drawn: give draws to grid"),
        ({}, {"settings": [{"num_envs": Choice([2, 3])}]}, "num_envs is drawn: give draws to grid"),
        (
            {"num_envs": Uniform(1, 2)},
            {"samples": 2},
            "is a whole number: draw it by Integers, LogIntegers, Choice",
        ),
        ({"gamma": Uniform(0, 1)}, {}, "samples=64"),
        ({"gamma": [Uniform(0, 1), 0.5]}, {"samples": 2}, "a distribution stands alone"),
        ({"gamma": Uniform(0, 1)}, {"samples": 0}, "samples=0: give 1 or more"),
        ({"gamma": Uniform(0, 1)}, {"samples": 2, "sampler": "halton"}, "there are sobol, random"),
        ({"gamma": [0.1]}, {"samples": 2}, "nothing is drawn"),
        ({"num_envs": [5, 0]}, {}, "num_envs=0"),
        ({"env": ["CartPole-v1", "CartPole-v2"]}, {}, "did you mean CartPole-v1"),
        ({}, {"max_parallel": 0}, "max_parallel=0"),
        ({}, {"memory_limit": 0}, "memory_limit=0"),
        ({}, {"num_seeds": 0}, "num_seeds=0"),
        ({}, {"save": False, "gif": "end"}, "gif needs files"),
        ({}, {"memory_limit": 100}, "a trial needs"),
        ({"env": ["CartPole-v1", "SimpleBandit-bsuite"]}, {"gif": "end"}, "cannot be drawn"),
        ({"env": [tasks.Probe()]}, {}, "cannot be saved: name it, or give save=False"),
    ],
)
def test_what_is_refused_leaves_nothing_behind(tmp_path, grid, keywords, message):
    with pytest.raises(UserError) as caught:
        launch.sweep(toy, CONFIG, grid, root=tmp_path / "runs", **keywords)
    assert message in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_settings_of_the_environment_are_drawn():
    limits = [(("max_steps", number),) for number in (2, 3)]
    grid = {"env_settings": Choice(limits), "gamma": Uniform(0.5, 0.9)}
    swept = launch.sweep(toy, CONFIG, grid, samples=8, save=False)
    drawn = [ranked.setting["env_settings"] for ranked in swept.ranked]
    assert sorted(drawn) == sorted(4 * limits)


def test_a_setting_that_a_stop_cut_short_is_behind_those_that_finished(tmp_path, monkeypatch):
    """At its first point, where its return of 0 is the highest."""
    for picture in ("curve", "sweep"):
        monkeypatch.setattr(plots, picture, lambda *_: None)
    config = CONFIG.replace(num_eval_episodes=1, learning_rate=3.0)

    def stop(point):
        if point.settings[0]["gamma"] == 0.9:
            raise launch.Stop

    more = {"seed": 1, "max_parallel": 1, "hooks": [stop], "sweep_dir": tmp_path / "sweep"}
    swept = launch.sweep(toy, config, {"gamma": [0.5, 0.7, 0.9]}, **more)
    assert [one.setting["gamma"] for one in swept.ranked] == [0.5, 0.7, 0.9]
    assert [one.share for one in swept.ranked] == [1.0, 1.0, 0.0]
    assert swept.ranked[0].mean < swept.ranked[2].mean == 0.0
    ((best, _),) = outcomes.best_trials(swept.sweep_dir)
    assert best.setting["gamma"] == 0.5
    assert json.loads((swept.sweep_dir / "best.json").read_text())["config"]["gamma"] == 0.5
    launch.resume(swept.sweep_dir, module=toy)
    ((best, _),) = outcomes.best_trials(swept.sweep_dir)
    assert best.share == 1.0


def test_an_existing_sweep_is_not_overwritten(whole):
    with pytest.raises(UserError, match="never overwritten"):
        launch.sweep(toy, CONFIG, GRID, sweep_dir=whole.sweep_dir)
    run_dir = whole.sweep_dir / "chunk_000"  # a run, and no sweep
    before = sorted(run_dir.iterdir())
    with pytest.raises(UserError, match="never overwritten"):
        launch.sweep(toy, CONFIG, GRID, sweep_dir=run_dir)
    assert sorted(run_dir.iterdir()) == before


# --- trials and chunks -----------------------------------------------------------------------


def test_a_trial_is_exactly_or_close_to_its_single_run(whole):
    for number in (0, 7):
        trial = whole.trials[number]
        config = CONFIG.replace(**trial.setting)
        alone = launch.run(toy, config, seed=trial.seed, save=False)
        expected = alone.metrics["eval_return"][0].mean(1)
        np.testing.assert_allclose(trial.returns, expected, rtol=1e-4)
        loaded = launch.load(whole.sweep_dir, trial=number, module=toy)
        assert loaded.config == config and loaded.trials.seeds == [trial.seed]


def test_results_answer_to_their_earlier_names(whole):
    assert whole.agents is whole.trials and len(whole.agents) == 12
    assert whole.ranked[0].agents is whole.ranked[0].trials
    assert [one.agent for one in whole.agents] == list(range(12))


def test_a_block_gives_the_same_to_the_last_bit_alone_and_beside_others(vmapped_keys):
    """XLA would take a block out of a loop of one trip, and round its numbers differently."""
    env, params = envs.make("CartPole-v1")
    reset = jax.vmap(env.reset_env, (0, None))
    starts = lambda _, x, key: (x, reset(jax.random.split(key, 4), params))
    keys = jax.random.split(jax.random.key(0), 8)

    def run(number):
        function = programs.over_trials(starts, devices.arrange(number, block=4))
        given = None, np.zeros(number), keys[:number]
        made = jax.jit(function, compiler_options=AS_FOR_USERS).lower(*given).compile()
        outside = made.as_text().partition("\nENTRY")[2].count("\n")  # operations beside the loop
        return made(*given)[1], outside

    (alone, few), (beside, outside) = run(4), run(8)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y[:4]), alone, beside)
    assert few == outside, "not every machine rounds what is outside in another way"


@pytest.mark.slow
def test_ppo_s_trials_are_close_to_single_runs_and_chunks_exactly_the_whole(
    tmp_path, vmapped_keys, jitted_as_for_users
):
    """Three updates of PPO with other learning rates, entropy bonuses and clips."""
    grid = {"learning_rate": [1e-3, 1e-2], "ent_coef": [0.0, 0.1], "clip_eps": [0.1, math.inf]}
    whole = launch.sweep(ppo, PPO, grid, seed=5, sweep_dir=tmp_path / "whole")
    chunks = launch.sweep(ppo, PPO, grid, seed=5, max_parallel=4, sweep_dir=tmp_path / "chunks")
    assert len(list((tmp_path / "chunks").glob("chunk_*"))) == 2
    for number, trial in enumerate(whole.trials):
        one = launch.load(whole.sweep_dir, trial=number)
        other = launch.load(chunks.sweep_dir, trial=number)
        assert chunks.trials[number].setting == trial.setting
        plain = lambda tree: jax.tree.map(lambda x: np.asarray(devices.plain(x)), tree)
        jax.tree.map(np.testing.assert_array_equal, plain(one.state), plain(other.state))
        if number in (0, 6):
            trained, _ = ppo.make_train(PPO.replace(**trial.setting))(jax.random.key(5))
            close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
            jax.tree.map(close, plain(one.state.policy), plain(trained.policy))


@pytest.mark.parametrize(
    "at_once, sizes", [(5, [4, 4, 4]), (11, [6, 6]), (4, [4, 4, 4]), (99, [12])]
)
def test_chunks_are_exactly_the_whole(whole, tmp_path, at_once, sizes):
    given = {"max_parallel": at_once, "sweep_dir": tmp_path / "x", "sweep_states": "all"}
    chunks = launch.sweep(toy, CONFIG, GRID, num_seeds=2, **given)
    runs = [RunDir.open(path) for path in sorted((tmp_path / "x").glob("chunk_*"))]
    assert [run_dir.trials.count for run_dir in runs] == sizes
    assert_same_sweeps(whole, chunks)


def test_a_resumed_chunk_has_the_block_that_its_sweep_began_with(tmp_path, monkeypatch):
    """Chunks of six trials in blocks of four, because all twelve have these; alone six make one."""
    blocks, compile_programs = [], programs.compile_programs

    def compile_one(*given):
        blocks.append(given[4].block)
        return compile_programs(*given)

    def stop(point):
        raise launch.Stop

    monkeypatch.setattr(programs, "compile_programs", compile_one)
    place, given = tmp_path / "x", (toy, CONFIG, GRID)
    launch.sweep(*given, num_seeds=2, max_parallel=11, sweep_dir=place, hooks=[stop])
    launch.resume(place, module=toy)
    assert blocks == [4, 4]


def test_a_sweep_json_of_fewer_options_stays_as_it_is(whole, tmp_path):
    """An option that came later has its default there."""
    place = shutil.copytree(whole.sweep_dir, tmp_path / "x")
    said = json.loads((place / "sweep.json").read_text())
    del said["options"]["split_envs"]
    (place / "sweep.json").write_text(text := json.dumps(said))
    launch.resume(place, module=toy)
    assert (place / "sweep.json").read_text() == text
    launch.resume(place, module=toy, keep_states=True)
    assert json.loads((place / "sweep.json").read_text())["options"]["keep_states"]


def test_chunks_cover_all_trials_and_are_of_one_size():
    for count in range(1, 40):
        for at_most in range(1, count + 1):
            chunks = devices.cut(count, at_most)
            assert [i for chunk in chunks for i in chunk] == list(range(count))
            sizes = [len(chunk) for chunk in chunks]
            assert len(chunks) == -(-count // at_most) and max(sizes) <= at_most
            assert set(sizes[:-1]) <= {sizes[0]} and sizes[-1] <= sizes[0]


def test_too_little_memory_makes_chunks_of_what_fits(whole, tmp_path, capsys):
    """64 trials where 20 would fit: the same results, from chunks that keep to the limit."""
    grid = GRID | {"learning_rate": list(np.linspace(0.1, 0.5, 32))}
    options = {"num_seeds": 1, "quiet": False}
    plenty = launch.sweep(toy, CONFIG, grid, sweep_dir=tmp_path / "plenty", **options)
    assert "64 trials, all at once, on 1 cpu device" in capsys.readouterr().out
    twenty = programs.Trainer(toy, CONFIG, 64, Progress(True, 0.0))
    twenty.arrange(20, block=4)
    twenty.compile(start=True)
    limit = twenty.bytes_per_device
    tight = launch.sweep(
        toy, CONFIG, grid, memory_limit=limit, sweep_dir=tmp_path / "tight", **options
    )
    assert "64 trials, 4 chunks of 16, on 1 cpu device" in capsys.readouterr().out
    assert_same_sweeps(plenty, tight, every=9)


def test_a_run_that_does_not_fit_is_refused_with_what_would(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "usable_capacity", lambda _: 2000)
    with pytest.raises(UserError, match=r"9 trials need .* 2 kB: max_parallel=\d trains them in"):
        launch.run(toy, CONFIG, num_seeds=9, save=False)
    monkeypatch.setattr(programs, "usable_capacity", lambda _: 100)
    with pytest.raises(UserError, match="a trial needs .* fewer num_envs, a smaller buffer"):
        launch.run(toy, CONFIG, save=False)


def test_out_of_memory_all_the_same_says_what_to_do(monkeypatch):
    def exhausted(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 3 GB")

    monkeypatch.setattr(session.Session, "_run", exhausted)
    with pytest.raises(UserError, match="start again with max_parallel=3"):
        launch.sweep(toy, CONFIG, GRID, save=False)


def test_static_fields_become_programs_one_after_another(tmp_path, capsys):
    grid = {"num_envs": [5, 10], "gamma": [0.9, 1.0], "hidden_sizes": [(3, 2), (4,)]}
    swept = launch.sweep(toy, CONFIG, grid, quiet=False, sweep_dir=tmp_path / "x")
    out = capsys.readouterr().out
    assert "a sweep of 8 trials, 8 settings x 1 seed" in out
    assert "group 2 of 4 (num_envs=5, hidden_sizes=4): 2 trials" in out
    assert [trial.run for trial in swept.trials] == [f"chunk_{i // 2:03d}" for i in range(8)]
    for i, row in enumerate(table(tmp_path / "x")):
        loaded = launch.load(tmp_path / "x", trial=i, module=toy)
        assert row["num_envs"] == str(loaded.config.num_envs)
        assert row["hidden_sizes"] == ",".join(map(str, loaded.config.hidden_sizes))
        assert float(row["gamma"]) == loaded.config.gamma
        assert loaded.state.policy["weights"].shape == loaded.config.hidden_sizes


def test_programs_have_as_many_points_as_updates_and_the_table_their_steps(tmp_path, capsys):
    grid = {"num_envs": [5, 150]}
    swept = launch.sweep(toy, CONFIG, grid, quiet=False, sweep_dir=tmp_path / "x")
    out, err = capsys.readouterr()
    assert "a device; 200 steps in 40 updates, 4 points\n" in out
    assert "a device; 300 steps in 2 updates, 2 points\n" in out
    assert err == (
        "warning: num_envs=150: total_timesteps=200 makes 300 steps, 50 % more: an update takes "
        "150 steps, fewer num_envs would come closer\n"
    )
    assert "100% | chunk 2 of 2 | step 300" in out
    assert [trial.timesteps.tolist() for trial in swept.trials] == [
        [0, 50, 100, 150, 200],
        [0, 150, 300],
    ]
    head, *rows = [line.split() for line in results.table(swept.ranked).splitlines()]
    assert head[:5] == ["rank", "num_envs", "seeds", "steps", "return"]
    assert {row[1]: row[3] for row in rows} == {"5": "200", "150": "300"}
    assert not launch.resume(tmp_path / "x", module=toy, hooks=[pytest.fail]).interrupted


# --- stopping and going on -------------------------------------------------------------------


@pytest.mark.parametrize("chunk, point", [(0, 0), (1, 3), (2, 4)])
def test_a_resumed_sweep_is_exactly_an_unbroken_one(whole, tmp_path, chunk, point):
    def crash(seen):
        if seen.run_dir.name == f"chunk_{chunk:03d}" and seen.index == point:
            raise Stop

    sweep_dir = tmp_path / "x"
    with pytest.raises(Stop):
        given = {"max_parallel": 4, "sweep_dir": sweep_dir, "sweep_states": "all"}
        launch.sweep(toy, CONFIG, GRID, num_seeds=2, hooks=[crash], **given)
    seen = []
    resumed = launch.resume(sweep_dir, module=toy, hooks=[seen.append])
    assert (
        (seen[0].run_dir.name, seen[0].index)
        in [
            (f"chunk_{chunk:03d}", point + 1),
            (f"chunk_{chunk + 1:03d}", 0),
        ]
        if seen
        else (chunk, point) == (2, 4)
    )
    assert_same_sweeps(whole, resumed)


def test_options_of_a_sweep_go_on_as_they_were_changed(whole, tmp_path):
    copy = shutil.copytree(whole.sweep_dir, tmp_path / "x")
    launch.resume(copy, module=toy, keep_states=True)
    said = json.loads((copy / "sweep.json").read_text())
    before = json.loads((whole.sweep_dir / "sweep.json").read_text())
    assert said == before | {"options": before["options"] | {"keep_states": True}}


def test_a_sweep_of_many_environments_has_a_name_that_a_directory_can_have(tmp_path):
    names = [f"Environment{i}-v0" for i in range(30)]
    described = {"algorithm": "toy", "config": {"env": names[0]}, "grid": {"env": names}}
    made, _ = experiment.create(described, [], tmp_path)
    assert made.name.startswith("Environment0-v0+29-others__toy__sweep__"), made.name


@pytest.mark.parametrize("change", ["total_timesteps", "learning_rate", "samples"])
def test_a_sweep_json_that_was_edited_is_refused(whole, tmp_path, change):
    """It had no effect on the chunks, and said what had not been trained."""
    copy = shutil.copytree(whole.sweep_dir, tmp_path / "x")
    said = json.loads((copy / "sweep.json").read_text())
    if change == "total_timesteps":
        said["config"][change] *= 2
    elif change == "samples":
        said[change] = 12
    else:
        said["grid"][change] = [0.5, 0.6]
    (copy / "sweep.json").write_text(json.dumps(said))
    with pytest.raises(UserError, match=r"sweep.json is not what was asked for: its checksum does"):
        launch.resume(copy, module=toy)
    del said["checksum"]  # as in sweeps of earlier commits
    (copy / "sweep.json").write_text(json.dumps(said))
    experiment.open(copy)


def test_a_sweep_json_is_no_config_and_names_the_best_one(whole):
    with pytest.raises(UserError, match=r"sweep.json is of a sweep; its best setting is in .*best"):
        read_description(whole.sweep_dir / "sweep.json")


def test_a_chunk_that_is_gone_is_named(whole, tmp_path):
    copy = shutil.copytree(whole.sweep_dir, tmp_path / "x")
    shutil.rmtree(copy / "chunk_000")
    found = f"{copy / 'chunk_000'} is gone, a part of the sweep {copy}: put it back"
    with pytest.raises(UserError, match=found):
        launch.resume(copy, module=toy)


def test_a_sweep_killed_before_it_began_is_none(tmp_path):
    (tmp_path / "x" / "chunk_000").mkdir(parents=True)
    with pytest.raises(UserError, match="does not exist"):
        launch.resume(tmp_path / "x", module=toy)


def test_ctrl_c_before_the_first_point_aborts_and_leaves_nothing(tmp_path, monkeypatch):
    begin = outputs.Saving.begin

    def interrupted(self):
        begin(self)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(outputs.Saving, "begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launch.sweep(toy, CONFIG, GRID, sweep_dir=tmp_path / "x")
    assert not list(tmp_path.iterdir()), "the same command may be given again"


def test_ctrl_c_stops_the_sweep_and_not_the_chunk_alone(tmp_path, capsys):
    def interrupt(seen):
        if seen.index == 2:
            os.kill(os.getpid(), signal.SIGINT)

    keywords = {"max_parallel": 4, "sweep_dir": tmp_path / "x", "quiet": False}
    keywords["on_signal"] = "return"
    stopped = launch.sweep(toy, CONFIG, GRID, hooks=[interrupt], **keywords)
    assert stopped.interrupted and len(stopped.trials) == 3
    assert {row["timestep"] for row in table(tmp_path / "x")} == {"100"}
    assert not RunDir.open(tmp_path / "x" / "chunk_001").points("state")
    assert "stopped, in" in capsys.readouterr().out
    resumed = launch.resume(tmp_path / "x", module=toy)
    assert not resumed.interrupted
    assert curves(resumed) == curves(launch.sweep(toy, CONFIG, GRID, save=False))


def test_what_a_kill_left_undone_of_a_finished_chunk_is_made_up_for(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "curve", lambda *given: given[-1].write_bytes(b"PNG"))
    launch.sweep(toy, CONFIG, GRID, max_parallel=6, sweep_dir=tmp_path / "x")
    table_file, curve = (tmp_path / "x" / "chunk_000" / n for n in ("metrics.csv", "curve.png"))
    text = table_file.read_bytes()
    table_file.write_bytes(text[:-30])
    curve.unlink()
    launch.resume(tmp_path / "x", module=toy)
    mended = table_file.read_bytes()
    assert untimed(mended) == untimed(text) and curve.exists()
    lost = [line.endswith(b"nan,nan") for line in mended.splitlines()]
    assert lost == [False] * 25 + [True] * 6, "what a clock wrote of the other points is kept"


# --- what breaks -----------------------------------------------------------------------------


def test_a_trial_that_is_not_finite_is_shown_and_the_others_go_on(tmp_path, capsys):
    config = CONFIG.replace(gamma=1.0)
    rates = [0.1, 3e38, 0.2]  # float32 ends at 3.4e38: the second one's weights become NaN
    swept = launch.sweep(
        toy, config, {"learning_rate": rates}, num_seeds=2, quiet=False, sweep_dir=tmp_path / "x"
    )
    out, err = capsys.readouterr()
    assert "2 trials are not finite from point 1 on (step 50): policy of " in err
    assert "learning_rate=3e+38, seed 0" in err and err.count("not finite") == 1
    assert err.endswith("; the other 4 go on\n")
    assert [trial.is_finite for trial in swept.trials] == [True] * 2 + [False] * 2 + [True] * 2
    assert [row["is_finite"] for row in table(tmp_path / "x")] == list("110011")
    assert swept.ranked[-1].setting == {"learning_rate": 3e38} and "2 not finite" in out
    assert "2 of 6 trials not finite |" in out and not swept.failed
    assert "\nnot finite: learning_rate=3e+38: seeds 0, 1\nthe best setting with" in out
    assert math.isfinite(swept.objective)
    alone = launch.sweep(toy, config, {"learning_rate": [0.1, 0.2]}, num_seeds=2, save=False)
    assert curves(alone).items() <= curves(swept).items()
    launch.resume(tmp_path / "x", module=toy)
    assert "not finite" not in capsys.readouterr().err, "it was said"
    assert [row["is_finite"] for row in table(tmp_path / "x")] == list("110011")


def test_a_full_disk_costs_files_and_not_the_sweep(tmp_path, monkeypatch, capsys):
    from algorithms.launch.engine import files

    write = files.write_whole

    def full(path, *data, **stream):
        if path.suffix in (".state", ".csv"):
            raise OSError(28, "No space left on device")
        write(path, *data, **stream)

    monkeypatch.setattr(files, "write_whole", full)
    swept = launch.sweep(toy, CONFIG, GRID, max_parallel=3, sweep_dir=tmp_path / "x")
    err = capsys.readouterr().err
    assert err.count("results.csv was not written") == 1 and "was not saved" in err
    assert swept.unsaved.startswith("checkpoints of points 0 to ")
    assert swept.unsaved.endswith("results.csv and best.json") and "of chunk_001; " in swept.unsaved
    assert curves(swept) == curves(launch.sweep(toy, CONFIG, GRID, save=False))


# --- what comes out --------------------------------------------------------------------------


def test_results_have_a_row_for_each_trial(whole):
    rows = table(whole.sweep_dir)
    assert len(rows) == 12
    for i, (row, trial) in enumerate(zip(rows, whole.trials, strict=True)):
        metrics = launch.load(whole.sweep_dir, trial=i, module=toy).metrics
        returns = metrics["eval_return"][i].mean(1)
        steps = metrics["timestep"][i]
        best = np.argmax(returns)
        assert int(row["trial"]) == i and int(row["seed"]) == trial.seed == i % 2
        assert float(row["learning_rate"]) == GRID["learning_rate"][i // 4]
        np.testing.assert_allclose(float(row["final_return"]), returns[-1], rtol=1e-6)
        np.testing.assert_allclose(float(row["best_return"]), returns[best], rtol=1e-6)
        assert int(row["best_timestep"]) == steps[best] and int(row["timestep"]) == 200
        area = sum((returns[j] + returns[j + 1]) / 2 for j in range(4)) / 4  # equal steps
        np.testing.assert_allclose(float(row["mean_return"]), area, rtol=1e-6)


def test_a_sweep_is_one_long_table(tmp_path):
    import pandas

    grid = {"num_envs": [5, 10], "learning_rate": [0.1, 0.2]}
    swept = launch.sweep(toy, CONFIG, grid, num_seeds=2, sweep_dir=tmp_path / "x")
    table = pandas.read_csv(tmp_path / "x" / "trials.csv")
    head = ["trial", "num_envs", "learning_rate", "seed", "point", "timestep"]
    assert list(table.columns[:6]) == head and list(table.columns[-2:]) == list(PACE_NAMES)
    assert len(table) == 8 * 5 and sorted(table.trial.unique()) == list(range(8))
    for number, trial in enumerate(swept.trials):
        rows = table[table.trial == number]
        assert {name: rows[name].unique().tolist() for name in grid} == {
            name: [value] for name, value in trial.setting.items()
        }
        assert set(rows.seed) == {trial.seed} and rows.timestep.tolist() == trial.timesteps.tolist()
        np.testing.assert_allclose(rows.eval_return, trial.returns, rtol=1e-6)
    before = (tmp_path / "x" / "trials.csv").read_bytes()
    (tmp_path / "x" / "trials.csv").unlink()
    launch.resume(tmp_path / "x", module=toy)
    assert (tmp_path / "x" / "trials.csv").read_bytes() == before


def outcome(setting, final, seed=0, is_finite=True):
    curve = np.array([0.0, final])
    return results.Outcome(setting, seed, np.array([0, 10]), curve, is_finite, "chunk_000", 0)


def test_settings_are_ranked_by_their_means_and_broken_ones_last():
    returns = {1.0: (5.0, 7.0), 2.0: (9.0, 1.0), 3.0: (50.0, 50.0), 4.0: (8.0, np.nan)}
    trials = [outcome({"x": x}, r, i) for x, pair in returns.items() for i, r in enumerate(pair)]
    trials[5] = trials[5]._replace(is_finite=False)
    ranked = results.rank(trials)
    assert [setting.setting["x"] for setting in ranked] == [4.0, 1.0, 2.0, 3.0]
    assert [setting.mean for setting in ranked] == [8.0, 6.0, 5.0, 50.0]
    lines = results.table(ranked).splitlines()
    assert lines[0].split()[:4] == ["rank", "x", "seeds", "return"]
    assert lines[2].split() == ["2", "1", "2", "6", "-6.7062", "to", "18.706", "5"]
    assert lines[4].endswith("1 not finite") and "steps" not in lines[0]
    assert "and 2 settings more" in results.table(
        results.rank([outcome({"x": float(i)}, i) for i in range(12)])
    )


@pytest.mark.parametrize("finals, says", [((0.0, 0.0), 1), ((0.0, 1.0), 0), ((np.nan,) * 2, 0)])
def test_returns_that_are_all_0_rank_nothing(finals, says):
    trials = [outcome({"x": float(i)}, final) for i, final in enumerate(finals)]
    trials = [t._replace(returns=t.returns[1:], timesteps=t.timesteps[1:]) for t in trials]
    assert results.table(results.rank(trials)).count("no setting is better") == says
    assert "better" not in results.table(results.rank(trials[:1]))


def test_ties_go_to_the_setting_that_learned_faster_and_then_to_order():
    curves = ([0.0, 4.0, 9.0], [0.0, 8.0, 9.0], [0.0, 4.0, 9.0], [9.0, 9.0, 8.0])
    steps = np.array([0, 10, 20])
    trials = [
        results.Outcome({"x": float(i)}, 0, steps, np.array(curve), True, "chunk_000", i)
        for i, curve in enumerate(curves)
    ]
    ranked = results.rank(trials)
    assert [setting.setting["x"] for setting in ranked] == [1.0, 0.0, 2.0, 3.0]
    head, first, *_ = results.table(ranked).splitlines()
    assert head.endswith("mean of curve") and first.split()[-1] == "6.25"
    assert "mean of curve" not in results.table(ranked[2:])


def test_broken_trials_of_the_only_setting_are_named_by_their_seeds():
    assert results.broken([outcome({}, 1.0, seed) for seed in (3, 4)]) == "not finite: seeds 3, 4"
    assert results.broken([outcome({"x": 2}, 1.0)]) == "not finite: x=2: seeds 0"


def test_interquartile_mean_and_bootstrap_against_scipy():
    scores = np.random.default_rng(0).normal(size=(3, 12))
    np.testing.assert_allclose(
        intervals.interquartile_mean(scores), scipy.stats.trim_mean(scores, 0.25, axis=1)
    )
    for statistic in (lambda x: x.mean(-1), intervals.interquartile_mean):
        low, high = intervals.bootstrap_interval(scores[0], statistic)
        theirs = scipy.stats.bootstrap(
            (scores[0],), lambda x, axis, f=statistic: f(x), method="percentile", random_state=1
        ).confidence_interval
        np.testing.assert_allclose((low, high), theirs, atol=0.04)


@pytest.mark.parametrize("seeds", [2, 4, 9])
def test_few_seeds_have_a_mean_and_its_t_interval(seeds):
    scores = np.random.default_rng(0).normal(3.0, 2.0, seeds)
    found = intervals.estimate(scores)
    low, high = scipy.stats.t.interval(0.95, seeds - 1, scores.mean(), scipy.stats.sem(scores))
    np.testing.assert_allclose(found, (scores.mean(), low, high), rtol=2e-4)
    other = np.random.default_rng(1).normal(0.0, 5.0, 6)
    apart = intervals.difference(scores, other)
    theirs = scipy.stats.ttest_ind(scores, other, equal_var=False)
    assert apart.middle == pytest.approx(scores.mean() - other.mean())
    # Degrees of freedom are rounded down, so that an interval is never too narrow.
    whole = scipy.stats.t.ppf(0.975, int(theirs.df))
    reach = theirs.confidence_interval().high - apart.middle
    assert apart.high - apart.middle == pytest.approx(
        reach * whole / scipy.stats.t.ppf(0.975, theirs.df), rel=1e-3
    )
    assert apart.low + apart.high == pytest.approx(2 * apart.middle)
    assert intervals.interval_name(seeds) == "95 % of the mean (t)"


def test_many_seeds_have_an_interquartile_mean_and_its_bootstrap_interval():
    """Ten are many, also where one of ten is broken; of one seed nothing is known."""
    scores = np.random.default_rng(0).normal(size=10)
    for finals in (scores, scores[:9]):
        expected = intervals.interquartile_mean(finals), *intervals.bootstrap_interval(finals)
        assert intervals.estimate(finals, 10) == expected
    assert intervals.interval_name(10) == "IQM, 95 % (bootstrap)"
    assert intervals.difference(scores, scores).low < 0.0
    alone = intervals.estimate(scores[:1])
    assert alone.middle == scores[0] and np.isnan(alone[1:]).all()
    assert np.isnan(intervals.estimate(scores[:0])).all()
    assert np.isnan(intervals.difference(scores, scores[:1]).low)


def test_the_best_setting_can_be_run_again(whole, monkeypatch):
    best = whole.ranked[0]
    argv = ["--config", str(whole.sweep_dir / "best.json")]
    config, given = cli.defaults(toy, argv)
    assert {name: getattr(config, name) for name in GRID} == best.setting
    assert (given.seed, given.num_seeds) == (0, 2)
    assert whole.objective == -best.mean == -np.mean([trial.final for trial in best.trials])


def test_trackers_have_a_run_for_each_setting():
    (group,) = grids.groups_of(CONFIG, grids.Asked({"gamma": [0.5, 0.6]}), [3, 4])
    by_setting = trackers.split(group.trials, one_run_per_seed=False)
    assert [(p.label, p.rows, p.seeds) for p in by_setting] == [
        ("gamma_0.5", [0, 1], [3, 4]),
        ("gamma_0.6", [2, 3], [3, 4]),
    ]
    each = trackers.split(group.trials, one_run_per_seed=True)
    assert [(p.label, p.rows) for p in each][1:3] == [
        ("gamma_0.5,seed_4", [1]),
        ("gamma_0.6,seed_3", [2]),
    ]


# --- the command line ------------------------------------------------------------------------


def test_flags_with_several_values_are_a_grid():
    words = "--learning-rate 1e-3 0.5 --hidden-sizes 3,2 4 --no-anneal-lr --num-envs 6"
    words += " --env CartPole-v1 Acrobot-v1 --gamma uniform:0.5:1 --env-settings max_steps=9"
    base = toy.Config(gamma=0.7)
    config, _ = flags.parse(toy, words.split(), base, flags.Flags())
    config, grid = flags.single_out(base, config)
    assert grid == {
        "learning_rate": [1e-3, 0.5],
        "hidden_sizes": [(3, 2), (4,)],
        "env": ["CartPole-v1", "Acrobot-v1"],
        "gamma": Uniform(0.5, 1.0),
    }
    assert config.num_envs == 6 and config.anneal_lr is False and config.gamma == 0.7
    assert config.env == "CartPole-v1" and config.env_settings == (("max_steps", 9),)
    config, _ = flags.parse(toy, ["--anneal-lr", "true", "false"], base, flags.Flags())
    assert flags.single_out(base, config)[1] == {"anneal_lr": [True, False]}
    config, _ = flags.parse(toy, ["--anneal-lr", "--quiet"], base, flags.Flags())
    assert config.anneal_lr is True


@pytest.mark.parametrize(
    "word, size", [("500MB", 500_000_000), ("1.5gb", 1_500_000_000), ("2e3", 2000)]
)
def test_sizes(word, size):
    assert reading.size_in_bytes(word) == size


@pytest.mark.parametrize("word", ["much", "3XB", "MB", "inf"])
def test_sizes_that_are_none(word):
    with pytest.raises(UserError, match="as 500MB or 16GB"):
        reading.size_in_bytes(word)


@pytest.mark.parametrize(
    "word", ["log:1", "log:0:1", "log:2:1", "uniform:1:1", "cubic:0:1", "uniform:0:inf"]
)
def test_distributions_that_are_none(word):
    with pytest.raises(ValueError):
        distributions.distribution(word)


def test_a_sweep_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = "--learning-rate log:1e-3:1 --samples 4 --num-seeds 2 --max-parallel 4 --num-evals 2"
    cli.main(toy, words.split())
    out = capsys.readouterr().out
    assert "toy on CartPole-v1: a sweep of 8 trials, 4 settings x 2 seeds" in out
    assert "8 trials, 2 chunks of 4" in out and "left, judging by the first point" in out
    assert "rank  learning_rate" in out
    (sweep_dir,) = (tmp_path / "runs").iterdir()
    assert len(table(sweep_dir)) == 8
    cli.main(toy, ["--resume", str(sweep_dir)])
    assert "2 of 2 chunks are done" in capsys.readouterr().out
    cli.main(toy, ["--evaluate", str(sweep_dir), "--trial", "5", "--episodes", "2"])
    assert f"trial 5 (learning_rate={float(table(sweep_dir)[5]['learning_rate']):.6g}, seed 1)" in (
        capsys.readouterr().out
    )


def test_a_sweep_is_evaluated_and_drawn_by_its_best_setting(whole, capsys, monkeypatch):
    best = whole.ranked[0]
    numbers = [whole.trials.index(trial) for trial in best.trials]
    cli.main(toy, ["--evaluate", str(whole.sweep_dir), "--episodes", "2", "--trial", "all"])
    out, err = capsys.readouterr()
    assert [line.split()[1] for line in out.splitlines() if line.startswith("trial ")] == [
        str(number) for number in numbers
    ]
    assert "all 2 seeds: 4 episodes" in out
    values = ", ".join(settings.text_of(best.setting))
    assert f"its best setting is {values} (return {best.mean:.5g}): trials " in err
    drawn = []
    monkeypatch.setattr(render, "render", lambda *given, dream: drawn.append(given) or given[3])
    cli.main(toy, ["--render", str(whole.sweep_dir)])
    top = max(numbers, key=lambda number: whole.trials[number].final)
    ((_, config, _, path, _),) = drawn
    assert path.name == f"episode_trial{top}_point4_seed0.gif"
    assert f": trial {top}, the best of 2 seeds\n" in capsys.readouterr().err
    assert {name: getattr(config, name) for name in GRID} == best.setting


def test_environments_are_not_ranked_against_each_other(tmp_path, capsys):
    far, near = {"env": "Far-v0", "x": 1.0}, {"env": "Near-v0", "x": 1.0}
    trials = [outcome(far, 500.0), outcome(far | {"x": 2.0}, 400.0)]
    trials += [outcome(near, 1.0), outcome(near | {"x": 2.0}, 2.0)]
    ranked = results.rank([trials[0], trials[2], trials[1], trials[3]])
    order = [(one.environment, one.setting["x"]) for one in ranked]
    assert order == [("Far-v0", 1.0), ("Far-v0", 2.0), ("Near-v0", 2.0), ("Near-v0", 1.0)]
    lines = results.table(ranked).splitlines()
    assert [lines[0], lines[4]] == ["Far-v0:", "Near-v0:"] and "env" not in lines[1]
    assert [line.split()[:2] for line in lines[5:]] == [["rank", "x"], ["1", "2"], ["2", "1"]]
    config = CONFIG.replace(num_evals=2)
    grid = {"env": ["CartPole-v1", "Acrobot-v1"], "gamma": [0.9, 1.0]}
    swept = launch.sweep(toy, config, grid, sweep_dir=tmp_path / "x")
    made = sorted(file.name for file in (tmp_path / "x").glob("best*.json"))
    assert made == ["best-Acrobot-v1.json", "best-CartPole-v1.json"]
    again, _ = cli.defaults(toy, ["--config", str(tmp_path / "x" / made[0])])
    assert again.env == "Acrobot-v1"
    best = [one.mean for one in (swept.ranked[0], swept.ranked[2])]
    assert swept.objective == pytest.approx(-np.mean(best))
    with pytest.raises(SystemExit):
        cli.main(toy, ["--config", str(tmp_path / "x")])
    assert f"its {', '.join(made)} are its best settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        ("--evaluate SWEEP --trial 12", "trials 0 to 11"),
        ("--config SWEEP", "its best.json is its best setting"),
        ("--config SWEEP/chunk_000", "has many settings"),
        ("--resume SWEEP --total-timesteps 900", "is a sweep, which goes on as it was"),
        ("--resume SWEEP --gamma 0.3", "does not go with --gamma 0.3"),
        ("--resume SWEEP --max-parallel 2", "does not go with --max-parallel 2"),
        ("--process-id 1", "go with --distributed, which is missing"),
        ("--learning-rate", "a value is missing"),
    ],
)
def test_refused_flags(whole, capsys, words, message):
    with pytest.raises(SystemExit) as stop:
        cli.main(toy, words.replace("SWEEP", str(whole.sweep_dir)).split())
    err = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert stop.value.code == 2 and message in err


# --- what a sweep is asked for ---------------------------------------------------------------


def test_a_field_of_what_is_asked_for_is_a_keyword_and_a_flag():
    shown = inspect.signature(launch.sweep).parameters
    of_python = {"grid", "settings"}
    for name, default in grids.Asked._field_defaults.items():
        assert name == "grid" or shown[name].default == default
        assert name in of_python or hasattr(flags.Flags, name)
    with pytest.raises(UserError, match="unknown option 'sample'; did you mean samples"):
        launch.sweep(toy, CONFIG, {"learning_rate": [1.0]}, sample=4, save=False)
    with pytest.raises(UserError, match="unknown option 'resampl'; did you mean resample"):
        launch.pbt(toy, CONFIG, {"learning_rate": Uniform(0.0, 1.0)}, resampl=0.5, save=False)
    assert inspect.signature(launch.pbt).parameters["resample"].default == 0.0


def test_a_sweep_json_says_what_was_asked_for():
    more = {"objective": "worst_seed", "max_parallel": 3, "retest": 2, "retest_seeds": 5}
    for asked in (
        grids.Asked(**more, halving=3, rungs=2),
        grids.Asked(**more),
        grids.Asked(halving=2, brackets=2, memory_limit=10**9),
    ):
        described = sweep_dir.describe_sweep(toy, CONFIG, asked, range(1), options.Options())
        assert sweep_dir.asked_of(json.loads(json.dumps(described))) == asked
    alone = grids.Asked(max_parallel=3, memory_limit=10**9)  # of no matter once chunks are cut
    described = sweep_dir.describe_sweep(toy, CONFIG, alone, range(1), options.Options())
    assert sweep_dir.asked_of(described) == grids.Asked()
