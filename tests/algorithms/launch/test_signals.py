"""Ctrl-C and SIGTERM in a user's own script: saved, and then the script ends, too."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from algorithms import launch
from algorithms.launch import cli
from algorithms.launch.engine import interrupts
from algorithms.launch.engine.run_dir import RunDir
from tests.algorithms.launch import toy

pytestmark = pytest.mark.usefixtures("quick_pictures", "shared_programs", "handlers")
ROOT = Path(__file__).parents[3]
CONFIG = toy.Config(total_timesteps=100, num_evals=4)
RATES = {"learning_rate": [0.1, 0.2]}
INT, TERM = signal.SIGINT, signal.SIGTERM
LAST = CONFIG.num_evals


@pytest.fixture
def handlers():
    """Python's own, and afterwards those from before."""
    own = {INT: signal.default_int_handler, TERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in own.items()}
    yield own
    for number, handler in before.items():
        signal.signal(number, handler)


def at(index, number, run="", times=1):
    """A hook that sends this process a signal at a point."""

    def hook(point):
        if point.index == index and (not run or point.run_dir.name == run):
            for _ in range(times):
                signal.raise_signal(number)

    return hook


def begin(kind, path, **more):
    """A new run, sweep, population or retest, which saves what it trains."""
    if kind == "run":
        return launch.run(toy, CONFIG, run_dir=path, **more)
    if kind == "pbt":
        ranges = {"learning_rate": launch.Uniform(0.1, 0.2)}
        return launch.pbt(toy, CONFIG, ranges, members=2, rounds=4, run_dir=path, **more)
    retest = {"retest": 1, "retest_seeds": 2} if kind == "retest" else {}
    return launch.sweep(toy, CONFIG, RATES, sweep_dir=path, **retest, **more)


def ended(call, number):
    """Ends a call by a signal. Returns the message of its exception."""
    kind = KeyboardInterrupt if number == INT else SystemExit
    with pytest.raises(kind) as caught:
        call()
    if number == TERM:
        assert caught.value.code == 143
    return str(caught.value)


@pytest.mark.parametrize("number", [INT, TERM])
@pytest.mark.parametrize("kind", ["run", "sweep", "pbt"])
def test_a_signal_ends_the_caller_once_the_point_is_saved(kind, number, tmp_path, handlers, capfd):
    path = tmp_path / "x"
    said = ended(lambda: begin(kind, path, hooks=[at(2, number)]), number)
    name = signal.Signals(number).name
    assert said == f"{name}: saved in {path}; launch.resume({str(path)!r}) goes on"
    assert (said in capfd.readouterr().err) == (number == TERM), "of SystemExit Python says nothing"
    (state,) = path.rglob("000002.state")
    assert RunDir.open(state.parents[1]).points("policy") == [0, 1, 2]
    assert {n: signal.getsignal(n) for n in handlers} == handlers
    said = ended(lambda: launch.resume(path, module=toy, hooks=[at(3, number)]), number)
    assert str(path) in said
    assert launch.resume(path, module=toy).finished
    assert RunDir.open(state.parents[1]).points("policy") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("number", [INT, TERM])
@pytest.mark.parametrize("kind", ["run", "sweep", "pbt", "retest"])
def test_a_signal_in_the_last_point_counts(kind, number, tmp_path):
    hook = at(LAST, number, "chunk_001" if kind == "retest" else "")
    said = ended(lambda: begin(kind, tmp_path / "x", hooks=[hook]), number)
    assert said.endswith(f"saved in {tmp_path / 'x'}"), "there is nothing to go on with"
    assert (tmp_path / "x" / "retest.csv").exists() == (kind == "retest")
    again = launch.resume(tmp_path / "x", module=toy)
    assert again.finished and not again.interrupted


@pytest.mark.parametrize("index", [2, LAST])
@pytest.mark.parametrize("kind", ["run", "sweep", "pbt"])
def test_the_result_is_returned_where_that_is_asked_for(kind, index, tmp_path):
    result = begin(kind, tmp_path / "x", hooks=[at(index, TERM)], on_signal="return")
    assert result.interrupted and result.stopped == "SIGTERM"
    assert result.finished == (index == LAST)
    hooks = [at(LAST, INT)]
    again = launch.resume(tmp_path / "x", module=toy, hooks=hooks, on_signal="return")
    assert again.stopped == ("SIGINT" if index < LAST else "") and again.finished


def test_nothing_else_is_asked_for():
    with pytest.raises(launch.UserError, match="on_signal='ignore': give 'raise' or 'return'"):
        launch.run(toy, CONFIG, save=False, on_signal="ignore")


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_the_command_line_keeps_its_exit_codes(kind, tmp_path, monkeypatch, capsys):
    """Also where a signal comes in the last point, of which a script should know, too."""
    save = RunDir.save
    words = ["--total-timesteps", "100", "--num-evals", "4", "--run-dir"]
    words = ["--learning-rate", "0.1", "0.2"] * (kind == "sweep") + words
    for index, number in ((2, INT), (2, TERM), (LAST, INT), (LAST, TERM)):

        def interrupted(run_dir, point, *rest):
            save(run_dir, point, *rest)
            at(index, number)(type("", (), {"index": point}))  # noqa: B023, it is called below

        monkeypatch.setattr(RunDir, "save", interrupted)
        with pytest.raises(SystemExit) as stop:
            cli.main(toy, [*words, str(tmp_path / f"{index}-{number}")])
        assert stop.value.code == 128 + number
        assert ("to go on: python" in capsys.readouterr().out) == (index < LAST)


def test_nothing_is_said_to_be_saved_where_nothing_is(capfd):
    said = ended(lambda: launch.run(toy, CONFIG, save=False, hooks=[at(2, INT)]), INT)
    assert said == "SIGINT: nothing is saved (save=False)"


def test_a_signal_counts_though_a_hook_stops_the_run_at_the_same_point():
    def stop(point):
        if point.index == 2:
            raise launch.Stop("pruned")

    for hooks in ([at(2, TERM), stop], [stop, at(2, TERM)]):
        ended(lambda: launch.run(toy, CONFIG, save=False, hooks=hooks), TERM)  # noqa: B023


@pytest.mark.parametrize("on_signal", ["raise", "return"])
def test_a_handler_of_the_users_own_is_heard_after_saving_and_restored(on_signal, tmp_path):
    heard = []

    def handler(number, _):
        heard.append((number, RunDir.open(tmp_path / "x").points("state")[-1]))

    signal.signal(TERM, handler)
    try:
        given = {"hooks": [at(2, TERM)], "on_signal": on_signal}
        launch.run(toy, CONFIG, run_dir=tmp_path / "x", **given)
    except SystemExit:
        assert on_signal == "raise"
    else:
        assert on_signal == "return"
    assert heard == [(TERM, 2)]
    assert signal.getsignal(TERM) is handler


def test_an_exception_of_the_users_own_handler_is_the_callers(tmp_path):
    class Preempted(Exception):
        pass

    def handler(*_):
        raise Preempted

    signal.signal(TERM, handler)
    with pytest.raises(Preempted):
        launch.sweep(toy, CONFIG, RATES, sweep_dir=tmp_path / "x", hooks=[at(LAST, TERM)])
    assert (tmp_path / "x" / "best.json").exists()
    assert launch.resume(tmp_path / "x", module=toy).finished, "the lock is free"


def test_a_signal_that_is_ignored_stays_ignored():
    """As Ctrl-C is by multiprocessing's workers, whose parent answers to it."""
    signal.signal(INT, signal.SIG_IGN)
    result = launch.run(toy, CONFIG, save=False, hooks=[at(2, INT)])
    assert result.finished and not result.stopped
    assert signal.getsignal(INT) == signal.SIG_IGN


@pytest.mark.parametrize("number", [INT, TERM])
def test_two_signals_at_once_are_one(number, tmp_path):
    """As of `timeout`: the point is saved."""
    hook = at(2, number, times=2)
    said = ended(lambda: launch.run(toy, CONFIG, run_dir=tmp_path / "x", hooks=[hook]), number)
    assert said.startswith(f"{signal.Signals(number).name}: saved in ")
    assert RunDir.open(tmp_path / "x").points("state")[-1] == 2


@pytest.mark.parametrize("number", [INT, TERM])
def test_a_second_signal_aborts(number, tmp_path, handlers, monkeypatch):
    monkeypatch.setattr(interrupts, "ONE_SIGNAL", 0.0)
    hook = at(2, number, times=2)
    ended(lambda: launch.run(toy, CONFIG, run_dir=tmp_path / "x", hooks=[hook]), number)
    assert {n: signal.getsignal(n) for n in handlers} == handlers
    assert launch.resume(tmp_path / "x", module=toy).finished


LOOP = """
import os, signal, sys
from algorithms import launch
from tests.algorithms.launch import toy

def hook(point):
    if point.index == 2:
        os.kill(os.getpid(), signal.SIGTERM)

for seed in range(3):
    launch.run(toy, toy.Config(num_evals=4), seed=seed, run_dir=f"run-{seed}", hooks=[hook])
"""


def test_a_script_that_trains_in_a_loop_ends_with_the_code_that_clusters_know(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", LOOP], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 143, done.stderr
    assert "saved in run-0; launch.resume('run-0') goes on" in done.stderr
    assert "Traceback" not in done.stderr
    assert [folder.name for folder in tmp_path.iterdir()] == ["run-0"]
