"""A handful of faults, mostly in this process: tests/faults.py in short, and what must hold is the
same. What a broken run comes to is what an unbroken one is, file by file."""

import errno
import json
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from algorithms import launch
from algorithms.launch.engine import experiment
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.hosts import locked
from algorithms.launch.engine.run_dir import RunDir
from tests.algorithms.launch import toy
from tests.algorithms.launch.test_runner import Stop, stop_at
from tests.broken import ROOT, Case, count_lost, damage, differences, saved, tree, untimed

pytestmark = pytest.mark.usefixtures("quick_curves", "shared_programs")
CONFIG = toy.Config(total_timesteps=500, num_evals=10)
WORDS = ["--total-timesteps", "500", "--num-evals", "10", "--num-seeds", "3"]


@pytest.fixture(scope="module")
def whole(quick_curves, shared_programs, tmp_path_factory):
    """The directory of an unbroken run."""
    return launch.run(toy, CONFIG, num_seeds=3, root=tmp_path_factory.mktemp("runs")).run_dir


@pytest.fixture(scope="module")
def killed(quick_curves, shared_programs, tmp_path_factory):
    """That of a run that was killed after its sixth point."""
    run_dir = tmp_path_factory.mktemp("killed") / "run"
    with pytest.raises(Stop):
        launch.run(toy, CONFIG, num_seeds=3, run_dir=run_dir, hooks=[stop_at(6)])
    return run_dir


@pytest.fixture
def broken(killed, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(killed, tmp_path / "run"))


# --- files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["flip", "empty", "gone"])
def test_the_newest_state_gives_way_to_the_one_before(whole, broken, capsys, how):
    state = broken / "checkpoints" / "000006.state"
    if how == "gone":
        state.unlink()
    else:
        damage(state, how, random.Random(0))
    before = saved(broken, (state,))
    assert len(before) == 6, "points 0 to 5"
    launch.resume(broken, module=toy)
    assert not differences(whole, broken) and not count_lost(before)
    assert how == "gone" or state.name in capsys.readouterr().err


def test_a_run_that_has_lost_all_states_is_left_alone(broken):
    for file in (broken / "checkpoints").glob("*.state"):
        file.unlink()
    before = tree(broken)
    with pytest.raises(UserError, match="state"):
        launch.resume(broken, module=toy)
    assert tree(broken) == before


@pytest.mark.parametrize("gone", ["checkpoints", "checkpoints/*"])
def test_a_run_that_has_lost_all_checkpoints_is_left_alone(broken, gone):
    """Its metrics.csv is all that is left of the training; another run would overwrite it."""
    for path in broken.glob(gone):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = tree(broken)
    with pytest.raises(UserError, match=r"cannot be resumed, it has no .state file .*: --config "):
        launch.resume(broken, module=toy)
    assert tree(broken) == before


def test_a_run_that_has_nothing_to_lose_begins_anew_and_saves(whole, broken):
    shutil.rmtree(broken / "checkpoints")
    for name in ("metrics.csv", "versions.json"):
        (broken / name).unlink()
    launch.resume(broken, module=toy)
    assert not differences(whole, broken)


def test_nothing_is_changed_before_the_state_has_been_read(broken):
    """One that does not fit: the configuration is of another network."""
    described = json.loads((broken / "config.json").read_text())
    del described["checksum"]
    described["config"]["hidden_sizes"] = [3, 3]
    (broken / "config.json").write_text(json.dumps(described))
    (broken / "metrics.csv").unlink()
    before = tree(broken)
    with pytest.raises(UserError, match="000006.state does not fit"):
        launch.resume(broken, module=toy, keep_states=True)
    assert tree(broken) == before


def test_two_damaged_states_leave_nothing_to_go_on_from(broken, capsys):
    for file in (broken / "checkpoints").glob("*.state"):
        damage(file, "empty", random.Random(0))
    before = tree(broken)
    with pytest.raises(UserError, match="cannot be resumed, none of its states is whole"):
        launch.resume(broken, module=toy)
    assert tree(broken) == before
    assert capsys.readouterr().err.count("is not a checkpoint") == 2


@pytest.mark.parametrize("how, finished", [("flip", False), ("cut", True), ("gone", True)])
def test_metrics_csv_is_made_anew(whole, broken, how, finished):
    if finished:
        launch.resume(broken, module=toy)
    if how == "gone":
        (broken / "metrics.csv").unlink()
    else:
        damage(broken / "metrics.csv", how, random.Random(0))
    launch.resume(broken, module=toy)
    assert not differences(whole, broken)


def test_an_old_policy_that_is_gone_takes_nothing_else_along(whole, broken):
    (broken / "checkpoints" / "000002.policy").unlink()
    launch.resume(broken, module=toy)
    assert not differences(whole, broken, unsaved={2}, spoilt={"000002.policy"})
    tables = [untimed((x / "metrics.csv").read_bytes()) for x in (broken, whole)]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("how", ["flip", "gone"])
def test_the_newest_policy_is_made_again(whole, broken, how):
    policy = broken / "checkpoints" / "000006.policy"
    policy.unlink() if how == "gone" else damage(policy, how, random.Random(0))
    launch.resume(broken, module=toy)
    assert not differences(whole, broken)


@pytest.mark.parametrize("how", ["empty", "gone"])
def test_the_newest_policy_of_a_finished_chunk_is_made_again(tmp_path, monkeypatch, how):
    more = {"max_parallel": 1, "sweep_dir": tmp_path / "sweep", "sweep_states": "all"}
    swept = launch.sweep(toy, CONFIG.replace(num_evals=2), {"gamma": [0.5, 0.9]}, **more)
    policy = swept.sweep_dir / "chunk_000" / "checkpoints" / "000002.policy"
    before = policy.read_bytes()
    policy.unlink() if how == "gone" else damage(policy, how, random.Random(0))
    again = launch.resume(swept.sweep_dir, module=toy)
    assert policy.read_bytes() == before
    assert [one.mean for one in again.ranked] == [one.mean for one in swept.ranked]


def test_a_run_that_has_lost_its_policies_goes_on_all_the_same(whole, broken):
    lost = {f.name for f in (broken / "checkpoints").glob("*.policy")}
    for name in lost:
        (broken / "checkpoints" / name).unlink()
    launch.resume(broken, module=toy)
    assert not differences(whole, broken, unsaved=set(range(7)), spoilt=lost)


@pytest.mark.parametrize("name, how", [("config.json", "cut"), ("versions.json", "empty")])
def test_damaged_descriptions_are_named_before_anything_changes(whole, broken, capsys, name, how):
    data = (broken / name).read_bytes()
    damage(broken / name, how, random.Random(0))
    before = tree(broken)
    try:
        launch.resume(broken, module=toy)
    except UserError as error:
        assert name in str(error) and tree(broken) == before
        (broken / name).write_bytes(data)
        launch.resume(broken, module=toy)
    else:
        assert name in capsys.readouterr().err
    assert not differences(whole, broken)


def test_a_full_disk_leaves_gaps_and_no_half_rows(whole, tmp_path, monkeypatch):
    run_dir, fsync = tmp_path / "run", os.fsync

    def no_space(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill_up(point):
        monkeypatch.setattr(os, "fsync", no_space if point.index in (3, 4) else fsync)
        if point.index == 4:  # as far as the disk took it
            table = run_dir / "metrics.csv"
            os.truncate(table, table.stat().st_size - 10)

    launch.run(toy, CONFIG, num_seeds=3, run_dir=run_dir, hooks=[fill_up])
    launch.resume(run_dir, module=toy)
    assert not differences(whole, run_dir, unsaved={4, 5})


def test_a_lock_holds_on_a_full_disk(tmp_path, monkeypatch):
    def no_space(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", no_space)
    twice = pytest.raises(UserError, match="trained by another process")
    with locked(tmp_path), twice, locked(tmp_path):
        pytest.fail("two at once")


# --- processes -------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [False, True])
def test_one_command_begins_and_goes_on(whole, broken, tmp_path, there):
    run_dir = broken if there else tmp_path / "new"
    launch.main(toy, ["--run-dir", str(run_dir), "--resume-if-exists", *WORDS])
    assert not differences(whole, run_dir)


def test_new_runs_at_the_same_moment_have_directories_of_their_own(whole, tmp_path, monkeypatch):
    exists = Path.exists  # whoever looks before making one is late
    monkeypatch.setattr(Path, "exists", lambda path: (exists(path), time.sleep(0.02))[0])
    description, together = RunDir.open(whole).description, threading.Barrier(16)
    made = []

    def make():
        together.wait()
        made.append(experiment.create(description, [description], tmp_path)[0])

    threads = [threading.Thread(target=make) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 16


def test_a_run_that_trains_is_gone_on_with_after_sigterm_and_not_before(tmp_path):
    config = CONFIG.replace(num_evals=100)
    whole = launch.run(toy, config, run_dir=tmp_path / "whole").run_dir
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    lab = SimpleNamespace(work=tmp_path, module="toy", environment=environment)
    case = Case(lab, "case", ["--total-timesteps", "500", "--num-evals", "100"], whole)
    child = case.new()
    try:
        case.await_state(child, 3)
        case.strike(child, signal.SIGSTOP)  # or it would be done too soon
        before = tree(case.root)
        with pytest.raises(UserError):
            launch.resume(case.directory(), module=toy)
        assert tree(case.root) == before
        child.send_signal(signal.SIGTERM)
        child.send_signal(signal.SIGCONT)
        case.end(child, 128 + signal.SIGTERM)
    finally:
        child.kill()
        child.wait()
    before = saved(case.root)
    assert len(before) == len(list(case.root.rglob("*.policy"))) < 101, "none is half saved"
    launch.resume(case.directory(), module=toy)
    assert not differences(whole, case.directory()) and not count_lost(before)
