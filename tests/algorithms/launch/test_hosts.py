"""Several devices and several processes: the trials of a sweep are the same on all of them."""

import csv
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from algorithms import launch, ppo
from algorithms.launch.engine import hosts
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.run_dir import RunDir
from tests.algorithms.launch import toy
from tests.algorithms.launch.test_sweeps import PPO, Stop

ROOT = Path(__file__).parents[3]
TOY = Path(toy.__file__)
RATES = [0.1, 0.2, 0.3, 0.4, 0.5]
CONFIG = toy.Config(total_timesteps=2000, num_evals=200, num_eval_episodes=1)
WORDS = ["--total-timesteps", "2000", "--num-evals", "200", "--num-eval-episodes", "1"]
WORDS += ["--learning-rate", *map(str, RATES)]
COLLECTIVES = r"all-reduce|all-gather|all-to-all|reduce-scatter|collective-\w+"


def start(cwd, words, processes=1, devices=1, file=TOY):
    """Starts the processes of a run."""
    port = free_port()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_NUM_CPU_DEVICES": str(devices)}
    others = ["--distributed", "--coordinator", f"localhost:{port}", "--num-processes"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [
        subprocess.Popen(
            [sys.executable, file, *words, *others, str(processes), "--process-id", str(i)],
            cwd=cwd,
            env=environment,
            **pipes,
        )
        for i in range(processes)
    ]


def free_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def outputs(processes):
    """Exit code, stdout and stderr of each, when all have ended."""
    try:
        texts = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *text) for process, text in zip(processes, texts)]


def wait_for(process, text):
    """Reads stdout up to the line with a text in it."""
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"{text!r} never came; stderr: {process.stderr.read()}")


def assert_close(sweep_dir, alone):
    with open(sweep_dir / "results.csv") as file:
        rows = list(csv.DictReader(file))
    for row, trial in zip(rows, alone.trials, strict=True):
        assert float(row["learning_rate"]) == trial.setting["learning_rate"]
        np.testing.assert_allclose(float(row["final_return"]), trial.final, rtol=1e-4)
        np.testing.assert_allclose(float(row["mean_return"]), trial.area, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_curves")
def test_a_killed_run_of_two_processes_goes_on_with_four_and_then_with_one(tmp_path):
    two = start(tmp_path, WORDS, processes=2, devices=2)
    wait_for(two[0], " 20% |")
    for process in two:
        process.kill()
    outputs(two)
    (sweep_dir,) = (tmp_path / "runs").iterdir()
    chunk = RunDir.open(sweep_dir / "chunk_000")
    stopped = chunk.points("state")[-1]
    assert 30 <= stopped < 200
    assert [len(part) for part in chunk.parts(stopped, "state")] == [4, 1], "of 2 on each device"

    four = start(tmp_path, ["--resume", str(sweep_dir)], processes=4)
    wait_for(four[0], " 50% |")
    four[2].send_signal(signal.SIGINT)  # one hears it, all stop at the same point
    ended = outputs(four)
    assert [code for code, *_ in ended] == [130] * 4, ended
    assert "stopped, in" in ended[0][1] and "to go on: python" in ended[0][1]
    assert not any("toy on" in out or "step" in out for _, out, _ in ended[1:]), "one speaks"
    last = chunk.points("state")[-1]
    assert 90 <= last < 200
    assert [len(part) for part in chunk.parts(last, "state")] == [2, 2, 1]
    assert chunk.parts(last - 1, "state") and len(chunk.points("state")) <= 3

    resumed = launch.resume(sweep_dir, module=toy)
    assert not resumed.interrupted
    alone = launch.sweep(toy, CONFIG, {"learning_rate": RATES}, save=False)
    assert_close(sweep_dir, alone)
    assert chunk.points("policy") == list(range(201))
    lines = (chunk.path / "metrics.csv").read_text().splitlines()
    assert len(lines) == 1 + 5 * 201, "the history is whole, whoever wrote it"
    assert launch.load(sweep_dir, trial=4, module=toy).state.policy["weights"].shape == (3, 2)
    assert not chunk.points("state") and RunDir.open(sweep_dir / "best").points("state") == [200]


# Forks the processes of two runs, because importing takes longer than what they do.
FORKED = """
import os, sys, traceback
import jax
from jax._src import xla_bridge
from algorithms import launch
from algorithms.launch import cli
from algorithms.launch.engine import hosts
from tests.algorithms.launch import toy

def mistake(port, i):
    others = ["--distributed", "--coordinator", f"localhost:{port}", "--num-processes", "2"]
    others += ["--process-id", str(i), "--run-dir-root", "/proc/nowhere"]
    cli.main(toy, ["--learning-rate", "0.1", "0.2", *others])

def error(port, i):
    def hook(point):
        if point.index == 3 and jax.process_index() == int(sys.argv[3]):
            raise RuntimeError("it has happened here")

    hosts.start(f"localhost:{port}", 2, i)
    assert hosts.count() == 2 and hosts.is_first() == (i == 0)
    assert not xla_bridge.backends_are_initialized(), "the number of CPU devices is yet to be set"
    launch.run(toy, toy.Config(), num_seeds=2, root="runs", hooks=[hook])

def forked(function, port, i):
    if child := os.fork():
        return child
    for number, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{function.__name__}{i}.{kind}", os.O_WRONLY | os.O_CREAT), number)
    try:
        function(port, i)
        code = 0
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

children = [
    forked(function, port, i)
    for function, port in ((mistake, sys.argv[1]), (error, sys.argv[2]))
    for i in range(2)
]
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.mark.parametrize("failing", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_mistake_or_an_error_ends_all_processes(tmp_path, failing):
    """A user's mistake, which both processes make, and in another run an error of one of them. The
    other one would wait for it, five minutes long."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", FORKED, str(free_port()), str(free_port()), str(failing)]
    pipes = {"capture_output": True, "text": True, "timeout": 100}
    done = subprocess.run(command, cwd=tmp_path, env=environment, **pipes)
    read = lambda name: [(tmp_path / f"{name}{i}.err").read_text() for i in range(2)]
    mistakes, errors = read("mistake"), read("error")
    assert done.stdout.split() == ["2", "2", "1", "1"], (done.stderr, mistakes, errors)
    said = "".join(mistakes)
    assert said.count("cannot be made") == 1 and "Traceback" not in said, "one speaks"
    assert errors[failing].count("RuntimeError: it has happened here") == 1
    assert "Traceback" not in errors[1 - failing]


def test_others_that_cannot_be_known_are_the_user_s_to_name(monkeypatch):
    def unknown(*_):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", unknown)
    with pytest.raises(UserError, match="--coordinator HOST:PORT --num-processes N"):
        hosts.start(None, None, None)


DEVICES = """
import sys
import jax
import tests.conftest  # it asks for one device and for checks of keys
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_debug_key_reuse", False)
import numpy as np
from algorithms import launch, ppo
from algorithms.launch.engine import devices, plots, programs
from tests.algorithms.launch.test_sweeps import PPO

plots.curve = plots.sweep = lambda *_: None
kept, compile_programs = [], programs.compile_programs
programs.compile_programs = lambda *a: kept.append(compile_programs(*a)) or kept[-1]
swept = launch.resume(sys.argv[1])
print(devices.arrange(5)[1], len(devices.arrange(5).devices))
print(kept[0].advance.as_text())
print("CONTROL")
layout = devices.arrange(4)
print(jax.jit(lambda x: x - x.sum()).lower(layout.put(np.ones(4))).compile().as_text())
"""


@pytest.mark.slow
def test_devices_share_trials_without_a_word_between_them(tmp_path, vmapped_keys):
    """Five trials of PPO after one update on one device go on with two more on three devices."""

    def crash(point):
        if point.index == 1:
            raise Stop

    grid = {"learning_rate": [1e-3 * i for i in range(1, 6)]}
    whole = launch.sweep(ppo, PPO, grid, sweep_dir=tmp_path / "whole")
    with pytest.raises(Stop):
        launch.sweep(ppo, PPO, grid, sweep_dir=tmp_path / "x", hooks=[crash])
    command = [sys.executable, "-c", DEVICES, str(tmp_path / "x")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 3\n"), "two trials a device, of which one is a copy"
    trained, control = done.stdout.split("CONTROL")
    assert "num_partitions=3" in trained and not re.search(COLLECTIVES, trained)
    assert re.search(COLLECTIVES, control)
    assert "num_devices 1 -> 3" in done.stderr
    for i in range(5):
        one, other = (
            launch.load(d, trial=i).state.policy for d in (whole.sweep_dir, tmp_path / "x")
        )
        import jax

        close = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)
        jax.tree.map(close, one, other)
