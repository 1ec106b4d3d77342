"""Successive halving, Hyperband and retests: what is kept, what is saved, and going on exactly."""

import csv
import errno
import functools
import json
import re
import shutil
import signal
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from algorithms import launch
from algorithms.launch.engine import (
    devices,
    experiment,
    outcomes,
    programs,
    results,
    session,
    stages,
)
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.run_dir import RunDir
from algorithms.launch.tools.report import page
from tests.algorithms.launch import toy

pytestmark = pytest.mark.usefixtures("quick_pictures", "shared_programs")
CONFIG = toy.Config(total_timesteps=900, num_evals=9, num_eval_episodes=1)
GRID = {"learning_rate": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "anneal_lr": [False, True]}
make_page = page.page  # as it is without quick_pictures
ASKED = {"halving": 3, "retest": 2, "retest_seeds": 3, "num_seeds": 2, "seed": 5}
ASKED |= {"sweep_states": "all"}  # which are compared


class Crash(Exception):
    """What a hook raises to end a sweep as a crash would."""


@pytest.fixture(scope="module")
def full(quick_pictures, shared_programs, tmp_path_factory):
    """All settings to the end."""
    root = tmp_path_factory.mktemp("full")
    return launch.sweep(toy, CONFIG, GRID, num_seeds=2, seed=5, root=root)


@pytest.fixture(scope="module")
def halved(quick_pictures, shared_programs, tmp_path_factory):
    return launch.sweep(toy, CONFIG, GRID, **ASKED, root=tmp_path_factory.mktemp("halved"))


def table(file):
    return list(csv.DictReader(file.open()))


@functools.cache
def state(path, trial):
    """Of a sweep that is over."""
    loaded = launch.load(path, trial=trial, module=toy)
    return jax.tree.map(lambda x: np.asarray(devices.plain(x)), loaded.state)


def named(swept, trials=None):
    """{setting and seed: curve}."""
    return {
        (*trial.setting.items(), trial.seed): trial.returns
        for trial in (swept.trials if trials is None else trials)
    }


def assert_same(one, other):
    """Bit for bit: curves, retests, states, and what the tables say but for clocks."""
    assert one.trials and named(one).keys() == named(other).keys()
    for key, returns in named(one).items():
        np.testing.assert_array_equal(returns, named(other)[key])
    again = [named(s, [t for r in s.retested for t in r.again.trials]) for s in (one, other)]
    assert again[0].keys() == again[1].keys()
    for key, returns in again[0].items():
        np.testing.assert_array_equal(returns, again[1][key])
    if one.sweep_dir and other.sweep_dir:
        for name in ("results.csv", "retest.csv", "best.json"):
            assert (one.sweep_dir / name).read_text() == (other.sweep_dir / name).read_text()
        for number in experiment.open(one.sweep_dir).homes():
            pair = state(one.sweep_dir, number), state(other.sweep_dir, number)
            jax.tree.map(np.testing.assert_array_equal, *pair)


# --- the plan ----------------------------------------------------------------------------------


def test_groups_differ_in_digits_that_labels_do_not_show():
    static = [{"env_settings": (("gravity", x),)} for x in (9.8000001, 9.8000002)]
    names = [stages._group_of(SimpleNamespace(static=one)) for one in static]
    assert names[0] != names[1]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"rungs": 2}, "rungs go with halving, which is missing"),
        ({"retest_seeds": 2}, "goes with retest=3"),
        ({"retest": 13}, "retest=13: give 1 to 12"),
        ({"retest": 0}, "retest=0: give 1 to 12"),
        ({"retest": 1, "retest_seeds": 0}, "retest_seeds=0: give 1 or more"),
        ({"retest": 1.5}, "retest=1.5: give a whole number"),
        ({"halving": True}, "halving=True: give a whole number"),
        ({"halving": 3, "rungs": 2.5}, "rungs=2.5: give a whole number"),
        ({"retest": 1, "seed": 2**32 - 2}, "seeds go up to 4294967295"),
    ],
)
def test_refused_sweeps(asked, words):
    with pytest.raises(UserError, match=words):
        launch.sweep(toy, CONFIG, GRID, save=False, **asked)


def test_training_returns_do_not_rank_among_evaluations():
    with pytest.raises(UserError, match="settings with 0 have training returns only"):
        launch.sweep(toy, CONFIG, {"num_eval_episodes": [0, 2]}, save=False)


# --- what is kept -----------------------------------------------------------------------------


def test_the_mean_over_seeds_decides_and_groups_compete(full, halved):
    """NumPy's halving of the curves of the full grid keeps the same settings."""
    curves = {}
    for trial in full.trials:
        curves.setdefault(tuple(trial.setting.items()), []).append(trial.returns)
    means = {key: np.mean(value, axis=0) for key, value in curves.items()}
    # Points 1, 3 and 9; the curve has a point before training, too.
    kept = [sorted(means, key=lambda key: -means[key][1])[:4]]
    kept.append(sorted(kept[0], key=lambda key: -means[key][3])[:1])
    reached = {(*t.setting.items(),): (t.rung, len(t.returns)) for t in halved.trials}
    assert {key for key, (rung, _) in reached.items() if rung >= 1} == set(kept[0])
    assert {key for key, (rung, _) in reached.items() if rung == 2} == set(kept[1])
    assert {length for _, length in reached.values()} == {2, 4, 10}
    assert halved.ranked[0].setting == dict(kept[1][0])


def test_trials_that_go_on_are_those_of_the_full_sweep(full, halved):
    """Close, not exact: another number of trials is vmapped."""
    whole = named(full)
    for key, returns in named(halved).items():
        np.testing.assert_allclose(returns, whole[key][: len(returns)], rtol=1e-5)


@pytest.mark.parametrize(
    "asked, compiled",
    [
        ({"halving": 2, "rungs": 3, "retest": 2, "retest_seeds": 4}, [16]),
        ({"halving": 2, "rungs": 5}, [16, 2, 1]),  # in the program of 16, 2 trials are a block of 4
        ({"halving": 2, "rungs": 2, "brackets": 2, "num_seeds": 2}, [20]),  # 10 and 6 settings
        ({"retest": 4, "retest_seeds": 6}, [16, 24]),
    ],
)
def test_stages_share_programs_where_little_is_computed_in_vain(monkeypatch, asked, compiled):
    made, compile_programs = [], programs.compile_programs

    def compile_one(*given):
        made.append(given[4].num_trials)
        return compile_programs(*given)

    monkeypatch.setattr(programs, "compile_programs", compile_one)
    grid = {"learning_rate": list(np.linspace(0.1, 0.6, 16))}
    config = CONFIG.replace(total_timesteps=1600, num_evals=16)
    swept = launch.sweep(toy, config, grid, save=False, **asked)
    assert made == compiled and swept.finished


def test_results_tell_the_rung_and_every_point_is_there_once(halved):
    rows = table(halved.sweep_dir / "results.csv")
    assert [int(row["trial"]) for row in rows] == [*range(24)]
    assert sorted({int(row["rung"]) for row in rows}) == [0, 1, 2]
    lines = table(halved.sweep_dir / "trials.csv")
    keys = [(row["trial"], row["point"]) for row in lines]
    assert len(keys) == len(set(keys)) == 16 * 2 + 6 * 4 + 2 * 10
    assert all(float(row["seconds"]) >= 0 for row in lines if row["point"] != "0")


def test_a_trial_is_loaded_from_where_it_came_furthest(halved):
    best = max(t.number for t in halved.trials if t.rung == 2)
    loaded = launch.load(halved.sweep_dir, trial=best, module=toy)
    assert loaded.point == 9 and len(loaded.metrics["timestep"][0]) == 10
    trial = next(t for t in halved.trials if t.number == best)
    np.testing.assert_array_equal(loaded.metrics["eval_return"][trial.trial, :, 0], trial.returns)
    assert loaded.trials.seeds == [trial.seed]
    launch.load(halved.sweep_dir, "best", trial=best, module=toy)
    with pytest.raises(UserError, match="trials 0 to 29"):
        launch.load(halved.sweep_dir, trial=30, module=toy)


# --- what is printed --------------------------------------------------------------------------


def test_what_halving_and_a_retest_say(tmp_path, capsys):
    launch.sweep(toy, CONFIG, GRID, **ASKED, root=tmp_path, quiet=False)
    said = capsys.readouterr().out
    assert "rung 2 of 3: 4 of 12 settings go on, to 33 % of the run" in said
    assert "rung 3 of 3: 1 of 4 settings go on, to 100 % of the run" in said
    # 24 x 100 + 8 x 200 + 2 x 600 of 24 x 900 steps
    assert "halving: 5,200 environment steps in place of 21,600, 76 % saved" in said
    assert "retest: the best 2 settings on 3 other seeds, 7 to 9" in said
    assert "luck" in said and "100% | retest" in said
    assert said.count("(early)") == 1  # halving ends with one setting, and two are retested


def test_one_is_singular(capsys):
    more = {"retest": 1, "retest_seeds": 1, "save": False, "quiet": False}
    config = CONFIG.replace(num_evals=1, total_timesteps=100)
    launch.sweep(toy, config, {"learning_rate": [0.1]}, **more)
    said = capsys.readouterr().out
    assert "a sweep of 1 trial, 1 setting x 1 seed\n" in said
    assert "group 1 of 1: 1 trial, all at once, on 1 cpu device; " in said and ", 1 point\n" in said
    assert "retest: the best 1 setting on 1 other seed, 1 to 1\n" in said
    assert "retest, 1 seed " in said


def test_several_environments_are_halved_each_by_itself_and_progress_ends_at_their_end(capsys):
    """Also of groups whose curves have different numbers of points, as those of 300 steps."""
    grid = {"env": ["CartPole-v1", "Acrobot-v1"], "num_envs": [100, 5], "learning_rate": [0.1, 0.2]}
    more = {"halving": 2, "rungs": 2, "retest": 1, "retest_seeds": 2}
    config = CONFIG.replace(total_timesteps=300)
    swept = launch.sweep(toy, config, grid, **more, save=False, quiet=False)
    kept = [trial.setting["env"] for trial in swept.trials if trial.rung == 1]
    assert sorted(kept) == ["Acrobot-v1"] * 2 + ["CartPole-v1"] * 2
    said = capsys.readouterr().out
    shares = [int(share) for share in re.findall(r"^ *(\d+)% ", said, re.MULTILINE)]
    assert shares == sorted(shares) and shares[-1] == 100 and shares.count(100) == 1
    assert "| -" not in said, "seconds left"


# --- retest -------------------------------------------------------------------------------------


def test_a_retest_takes_other_seeds_and_decides(halved):
    assert [len(one.again.trials) for one in halved.retested] == [3, 3]
    for one in halved.retested:
        assert [trial.seed for trial in one.again.trials] == [7, 8, 9]
        whole = one.tuned.mean - one.again.mean if one.tuned.share == 1.0 else np.nan
        np.testing.assert_equal(one.luck, whole)
    assert sum(np.isnan(one.luck) for one in halved.retested) == 1
    first, second = halved.retested
    assert first.again.mean >= second.again.mean
    assert {str(one.tuned.setting) for one in halved.retested} == {
        str(one.setting) for one in halved.ranked[:2]
    }
    best = json.loads((halved.sweep_dir / "best.json").read_text())
    assert best["seeds"] == [7, 8, 9]
    assert best["config"]["learning_rate"] == first.again.setting["learning_rate"]
    assert halved.objective == -first.again.mean
    rows = table(halved.sweep_dir / "retest.csv")
    assert [int(row["trial"]) for row in rows] == [*range(24, 30)]
    ((chosen, numbers),) = outcomes.best_trials(halved.sweep_dir)
    assert chosen.setting == first.again.setting and len(numbers) == 3


def test_the_winner_of_a_retest_need_not_be_the_sweeps(tmp_path, monkeypatch):
    """The order of the sweep is turned around on the fresh seeds."""
    swept = launch.sweep(toy, CONFIG, {"learning_rate": [0.1, 0.5]}, save=False, num_seeds=2)
    turned = [t._replace(returns=-t.returns, seed=t.seed + 2) for t in swept.trials]
    one, other = results.retests(swept.ranked, turned)
    assert one.tuned.setting == swept.ranked[1].setting
    assert other.luck == pytest.approx(2 * swept.ranked[0].mean)


def test_a_retest_names_its_broken_trials(tmp_path, capsys, monkeypatch):
    """A setting without a finite seed has no numbers, in the page neither."""
    monkeypatch.setattr(page, "page", make_page)
    more = {"retest": 2, "retest_seeds": 2, "seed": 5, "quiet": False}
    swept = launch.sweep(toy, CONFIG, {"learning_rate": [0.1, 3e38]}, **more, root=tmp_path)
    said = capsys.readouterr().out
    sound, broken = swept.retested
    assert sound.again.broken == 0 and broken.again.broken == 2 and np.isnan(broken.luck)
    *_, first, second, names, _, _, _ = said.splitlines()
    assert "not finite" not in first
    assert second.split() == ["2", "3e+38", "-", "-", "-", "-", "2", "not", "finite"]
    assert names == "not finite: learning_rate=3e+38: seeds 5, 6, 7"
    report = (swept.sweep_dir / "report.html").read_text().partition("Retest on fresh seeds")[2]
    assert report.count("2 not finite") == 1 and "none to none" not in report
    assert "-inf" not in report.partition("Pictures")[0]


def test_the_best_of_broken_settings_has_no_return(tmp_path):
    swept = launch.sweep(toy, CONFIG, {"learning_rate": [3e38]}, root=tmp_path)
    chosen = outcomes.choose(experiment.open(swept.sweep_dir))
    assert not swept.trials[0].is_finite and chosen.numbers == [0]
    assert "learning_rate=3e+38 (no finite return): trial 0" in chosen.why[0]


def test_a_retested_setting_is_an_ordinary_run_of_these_seeds(halved):
    setting = halved.retested[0].again
    alone = launch.run(toy, CONFIG.replace(**setting.setting), seed=7, num_seeds=3, save=False)
    returns = [trial.returns for trial in setting.trials]
    np.testing.assert_allclose(alone.metrics["eval_return"][:, :, 0], returns, rtol=1e-5)


# --- going on -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunk", "point"),
    [
        (0, 1),  # the first rung has another group to train
        (1, 1),  # the second rung is not made yet
        (3, 3),  # the second rung is done in both groups
        (4, 6),  # in the middle of the last one
        (5, 0),  # at the beginning of the retest
    ],
)
def test_going_on_in_any_rung_and_in_the_retest_is_exact(halved, tmp_path, chunk, point):
    def crash(seen):
        if seen.run_dir.name == f"chunk_{chunk:03d}" and seen.index == point:
            raise Crash

    with pytest.raises(Crash):
        launch.sweep(toy, CONFIG, GRID, **ASKED, sweep_dir=tmp_path / "x", hooks=[crash])
    assert_same(halved, launch.resume(tmp_path / "x", module=toy))


def test_a_kill_between_a_chunks_directory_and_sweep_json(halved, tmp_path, monkeypatch):
    """The directory that sweep.json does not know is made anew."""
    path, write = tmp_path / "x", experiment.files.write_json

    def killed(file, values):
        if file.name == "sweep.json" and len(values["chunks"]) > 2:
            raise Crash
        write(file, values)

    monkeypatch.setattr(experiment.files, "write_json", killed)
    with pytest.raises(Crash):
        launch.sweep(toy, CONFIG, GRID, **ASKED, sweep_dir=path)
    assert (path / "chunk_002").is_dir() and len(experiment.open(path).entries) == 2
    monkeypatch.undo()
    assert_same(halved, launch.resume(path, module=toy))


def test_a_slow_process_gets_the_names_of_the_first_one(tmp_path, monkeypatch):
    """It comes to the next rung when sweep.json has that rung's chunks already."""
    run = {"algorithm": "toy", "seeds": [0], "floats": {}}
    experiment.files.write_json(tmp_path / "sweep.json", {"chunks": [{"run": "chunk_000"}]})
    told = []
    monkeypatch.setattr(
        experiment.hosts, "from_first", lambda write: told.append(write()) or told[0]
    )
    given = (tmp_path, [run], [{}], [lambda _: None])
    (made,) = experiment.extend(*given)
    monkeypatch.setattr(experiment.hosts, "from_first", lambda _: told[0])
    (again,) = experiment.extend(*given)
    assert made.path == again.path == tmp_path / "chunk_001"


def test_a_damaged_state_that_the_next_rung_needs_is_made_again(halved, tmp_path, capsys):
    path = tmp_path / "x"

    def crash(seen):
        if seen.run_dir.name == "chunk_001" and seen.index == 1:
            raise Crash

    with pytest.raises(Crash):
        launch.sweep(toy, CONFIG, GRID, **ASKED, sweep_dir=path, hooks=[crash])
    file = path / "chunk_000" / "checkpoints" / "000001.state"
    file.write_bytes(file.read_bytes()[:-3])
    assert_same(halved, launch.resume(path, module=toy))
    assert "the point before it is tried" in capsys.readouterr().err


def test_a_rung_whose_states_are_lost_ends_the_sweep_until_it_is_resumed(
    halved, tmp_path, monkeypatch, capsys
):
    path, save = tmp_path / "x", RunDir.save

    def full(self, point, *rest):
        if point:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(self, point, *rest)

    monkeypatch.setattr(RunDir, "save", full)
    swept = launch.sweep(toy, CONFIG, GRID, **ASKED, sweep_dir=path)
    assert swept.unsaved and len(experiment.open(path).entries) == 2, "no second rung"
    assert f"--resume {path} trains again what comes after point 0" in capsys.readouterr().err
    monkeypatch.setattr(RunDir, "save", save)
    assert_same(halved, launch.resume(path, module=toy))


def test_a_damaged_state_beside_other_brackets_is_made_again(tmp_path, capsys):
    """The first rung of bracket 0 has ended, and its next one is not made."""
    path, grid = tmp_path / "x", {"learning_rate": GRID["learning_rate"][:4]}

    def stop(seen):
        if seen.run_dir.name == "chunk_000" and seen.index == 4:
            raise launch.Stop("at the end of the rung")

    asked = dict(halving=2, rungs=2, brackets=2)
    launch.sweep(toy, CONFIG, grid, **asked, sweep_dir=path, hooks=[stop])
    capsys.readouterr()
    file = max((path / "chunk_000" / "checkpoints").glob("*.state"))
    file.write_bytes(file.read_bytes()[:-3])
    assert len(launch.resume(path, module=toy).ranked) == 4
    assert "the point before it is tried" in capsys.readouterr().err


def test_who_goes_on_is_not_behind_who_is_out_before_its_first_point(tmp_path, monkeypatch):
    """A third of ten points ends at point 3, which is less than a third; Ctrl-C follows."""
    cut, calls = stages.cut, []

    def interrupted(*given, **more):
        calls.append(given)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return cut(*given, **more)

    monkeypatch.setattr(stages, "cut", interrupted)
    config = CONFIG.replace(total_timesteps=2000, num_evals=10)
    grid = {"learning_rate": [round(0.1 * i, 1) for i in range(1, 10)]}
    asked = {"halving": 3, "rungs": 2, "on_signal": "return"}
    swept = launch.sweep(toy, config, grid, **asked, sweep_dir=tmp_path / "x")
    assert swept.stopped and len(calls) == 2
    finals = [setting.mean for setting in swept.ranked]
    assert finals[0] == max(finals)
    best = json.loads((tmp_path / "x" / "best.json").read_text())
    assert best["config"]["learning_rate"] == swept.ranked[0].setting["learning_rate"]
    (first,) = outcomes.best_trials(tmp_path / "x")
    assert first[0].setting == swept.ranked[0].setting


def test_ties_are_in_the_order_of_trials_everywhere(tmp_path):
    """Nothing is learned, so all settings have the same returns; brackets train them in another
    order."""
    grid = {"learning_rate": [round(0.1 * i, 1) for i in range(1, 9)]}
    asked = dict(halving=2, rungs=2, brackets=2, retest=2, retest_seeds=2)
    swept = launch.sweep(toy, CONFIG.replace(gamma=0.0), grid, **asked, sweep_dir=tmp_path / "x")
    first = [one.setting for one in swept.ranked if one.share == 1.0][:2]
    assert sorted(map(str, first)) == sorted(str(one.again.setting) for one in swept.retested)
    best = json.loads((tmp_path / "x" / "best.json").read_text())["config"]["learning_rate"]
    ((found, _),) = outcomes.best_trials(tmp_path / "x")
    assert found.setting == {"learning_rate": best}


def test_a_finished_sweep_is_left_as_it_is(halved):
    seen = []
    assert_same(halved, launch.resume(halved.sweep_dir, module=toy, hooks=[seen.append]))
    assert not seen


@pytest.mark.filterwarnings("ignore:total_timesteps=55 makes 90 steps")
@pytest.mark.parametrize(("total", "last"), [(900, 1), (55, 6)])  # 55 are exceeded at point 6 of 9
def test_a_retest_chooses_nothing_before_it_is_over(tmp_path, capsys, total, last):
    """The one that is best at its first point is not the one that is best in the end."""
    config = CONFIG.replace(total_timesteps=total)
    asked = dict(retest=2, retest_seeds=2, sweep_dir=tmp_path / "x")
    grid = {"learning_rate": [0.1, 0.6]}

    def stop(point):
        if len(point.settings) == 4 and point.index == last:
            raise launch.Stop("enough")

    swept = launch.sweep(toy, config, grid, **asked, hooks=[stop], quiet=False)
    assert swept.stopped == "enough" and not swept.retested
    assert "luck" not in capsys.readouterr().out
    first, best = outcomes.best_trials(tmp_path / "x"), (tmp_path / "x" / "best.json").read_text()
    assert first[0][1] == [trial.number for trial in swept.ranked[0].trials]
    assert json.loads(best)["seeds"] == [0]
    assert len(table(tmp_path / "x" / "retest.csv")) == 4
    swept = launch.resume(tmp_path / "x", module=toy)
    assert len(swept.retested) == 2
    assert json.loads((tmp_path / "x" / "best.json").read_text())["seeds"] == [1, 2]
    assert outcomes.best_trials(tmp_path / "x")[0][1] in ([2, 3], [4, 5])


@pytest.mark.parametrize("save", [False, True])
def test_what_broke_in_a_rung_stays_broken(save, tmp_path, monkeypatch):
    """All losses are infinite at the first point alone, where the first rung ends."""
    at_first = lambda row: {"loss": row["timestep"] == 100}
    monkeypatch.setattr(session, "infinite_losses", at_first)
    config, grid = CONFIG.replace(total_timesteps=200, num_evals=2), {"gamma": [0.5, 0.9]}
    swept = launch.sweep(toy, config, grid, halving=2, save=save, root=tmp_path)
    assert len(swept.trials[0].returns) + len(swept.trials[1].returns) == 5  # points 0 to 1 or 2
    assert [trial.is_finite for trial in swept.trials] == [False, False] and swept.failed


def test_a_rung_is_trained_further_in_a_copy_alone(halved, tmp_path):
    rung = halved.sweep_dir / "chunk_000"
    with pytest.raises(UserError, match="is a rung of the sweep .* a copy of the run elsewhere"):
        launch.resume(rung, module=toy)
    shutil.copytree(rung, tmp_path / "copy")
    further = launch.resume(tmp_path / "copy", module=toy)
    assert further.metrics["timestep"].max() == 900
    test_a_finished_sweep_is_left_as_it_is(halved)


def test_without_files_and_in_chunks(halved):
    """Close, not exact: chunks of three vmap other numbers of trials."""
    for more in ({}, {"max_parallel": 3}):
        asked = ASKED | {"save": False, "sweep_states": "best"} | more
        swept = launch.sweep(toy, CONFIG, GRID, **asked)
        assert named(swept).keys() == named(halved).keys()
        for key, returns in named(swept).items():
            np.testing.assert_allclose(returns, named(halved)[key], rtol=1e-5)


def test_chunks_of_rungs_resume_exactly(tmp_path):
    keywords = {**ASKED, "max_parallel": 5, "brackets": 2, "retest": None, "retest_seeds": None}
    whole = launch.sweep(toy, CONFIG, GRID, **keywords, sweep_dir=tmp_path / "whole")
    assert {trial.bracket for trial in whole.trials} == {0, 1}
    names = [entry.path.name for entry in experiment.open(whole.sweep_dir).entries]

    def crash(seen):
        if seen.run_dir.name == names[-2] and seen.index > 1:
            raise Crash

    with pytest.raises(Crash):
        launch.sweep(toy, CONFIG, GRID, **keywords, sweep_dir=tmp_path / "x", hooks=[crash])
    resumed = launch.resume(tmp_path / "x", module=toy)
    assert named(whole).keys() == named(resumed).keys()
    for key, returns in named(whole).items():
        np.testing.assert_array_equal(returns, named(resumed)[key])


def test_resume_if_exists_is_for_the_same_halving(halved):
    asked = {**ASKED, "sweep_dir": halved.sweep_dir, "resume_if_exists": True}
    assert_same(halved, launch.sweep(toy, CONFIG, GRID, **asked))
    with pytest.raises(UserError, match=r"halving \{'factor': 3\} \(asked for: \{'factor': 2\}\)"):
        launch.sweep(toy, CONFIG, GRID, **{**asked, "halving": 2})
