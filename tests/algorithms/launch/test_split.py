"""`--split-envs`: one trial on four devices against the same four shards on one device."""

import os
import pickle
import re
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from algorithms import dqn, flashsac, ippo, launch, parts, ppo, ppo_rnn, pqn, sac, td3
from algorithms.launch import cli, flags
from algorithms.launch.engine import devices, plots, programs
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.progress import Progress
from algorithms.launch.engine.run_dir import RunDir
from tests.algorithms.launch import test_hosts, toy
from tests.algorithms.launch.test_hosts import COLLECTIVES, RATES, ROOT, outputs, start
from tests.algorithms.launch.test_runner import assert_same

SIZES = {"num_envs": 8, "num_evals": 3, "num_eval_episodes": 2, "hidden_sizes": (8,)}
ROLLOUT = SIZES | {"total_timesteps": 3 * 64, "num_steps": 8, "num_minibatches": 2}
REPLAY = SIZES | {"total_timesteps": 3 * 128, "batch_size": 16, "learning_starts": 32}
FLASH = {name: x for name, x in REPLAY.items() if name != "hidden_sizes"}
FLASH |= {"hidden_size": 8, "critic_hidden_size": 8, "adam_eps": 0.1, "train_every": 4}
CONFIGS = {
    "ppo": ppo.Config(**ROLLOUT, update_epochs=2),
    "sac": sac.Config(**REPLAY, critic_hidden_sizes=(8,), buffer_size=200_000, n_step=2),
    "flashsac": flashsac.Config(**FLASH, buffer_size=512),
    "dqn": dqn.Config(**REPLAY, buffer_size=512, n_step=2),
    "pqn": pqn.Config(**ROLLOUT, update_epochs=2),
    "ppo_rnn": ppo_rnn.Config(**ROLLOUT, memory_size=8, update_epochs=2),
    "ippo": ippo.Config(**ROLLOUT, update_epochs=2),
}
MODULES = {"ppo": ppo, "sac": sac, "dqn": dqn, "pqn": pqn, "ppo_rnn": ppo_rnn, "ippo": ippo}
MODULES["flashsac"] = flashsac
# All-reduces in the program of a point. Of a gradient step: the gradients; PPO's also two for the
# mean and the deviation of advantages. Of an epoch: the KL. Of an update: for each running
# statistics the mean and the variance (with weights also the sum of them). Of a point: the metrics,
# and those of the episodes that it evaluates.
AT_MOST = {"ppo": 10, "sac": 3, "dqn": 3, "pqn": 3, "ppo_rnn": 10, "ippo": 16, "flashsac": 100}
LESS = {"ppo": 0.7, "sac": 0.5}  # memory of each device; where parameters are most of it, more
pytestmark = pytest.mark.usefixtures("quick_curves")
PPO, SAC = CONFIGS["ppo"], CONFIGS["sac"]
TOY = toy.Config(total_timesteps=200, num_evals=20, num_eval_episodes=1)


def trained(name, seeds=1, **options):
    """A run of four shards on the devices of this process: state, metrics, program and memory."""
    kept, compile_programs = [], programs.compile_programs
    keep = lambda *args: kept.append(compile_programs(*args)) or kept[-1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "compile_programs", keep)
        options = {"save": False, **options}
        result = launch.run(MODULES[name], CONFIGS[name], num_seeds=seeds, split_envs=4, **options)
    state = jax.tree.map(devices.plain, result.state)
    texts = [program.as_text() for program in kept[0]]
    return jax.tree.leaves(state), result.metrics, texts, kept[0].bytes_per_device


def in_process(folder, seeds, names):
    """What the process with four devices does: a run of each file, ppo's once more, and a sweep."""
    plots.curve = plots.sweep = lambda *_: None
    for name in names:
        there = {"save": True, "run_dir": folder / name, "keep_states": True}
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(trained(name, seeds, **there)))
    if seeds == 1 and "ppo" in names:
        again = launch.resume(folder / "ppo", point=1)
        (folder / "again").symlink_to(again.run_dir)
        launch.sweep(toy, TOY, {"learning_rate": RATES}, sweep_dir=folder / "toys")


PROCESS = """
import sys
from pathlib import Path
import jax
import tests.conftest  # it asks for one device
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_debug_key_reuse", False)
from tests.algorithms.launch import test_split
test_split.in_process(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
"""


def on_four_devices(folder, *names, seeds=1):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROCESS, str(folder), str(seeds), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return on_four_devices(tmp_path_factory.mktemp("four"), "ppo")


def assert_close(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.shape == y.shape
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-5)


def check_close(name, folder, seeds=1):
    """Three updates on four devices against the same on one."""
    state, metrics, (_, text), memory = pickle.loads((folder / f"{name}.pickle").read_bytes())
    one = trained(name, seeds)
    assert_close((state, metrics), one[:2])
    found = re.findall(rf" ({COLLECTIVES})\(", text)
    assert set(found) == {"all-reduce"} and len(found) <= AT_MOST[name], found
    assert not re.search(COLLECTIVES, one[2][1])
    assert memory < LESS.get(name, 0.9) * one[3], "each device holds a part of the state"


def test_four_devices_learn_what_one_does(four, vmapped_keys):
    check_close("ppo", four)


def test_devices_of_one_process_share_trials(four):
    """Five on four devices. Some arrays of their states are empty, and XLA would put these on all
    devices."""
    alone = launch.sweep(toy, TOY, {"learning_rate": RATES}, save=False)
    test_hosts.assert_close(four / "toys", alone)


@pytest.mark.slow
def test_four_devices_learn_what_one_does_in_the_other_files(tmp_path, vmapped_keys):
    others = [name for name in CONFIGS if name != "ppo"]
    on_four_devices(tmp_path, *others)
    for name in others:
        check_close(name, tmp_path)


@pytest.mark.slow
def test_two_trials_have_two_devices_each(tmp_path, vmapped_keys):
    on_four_devices(tmp_path, "ppo", "sac", seeds=2)
    for name in ("ppo", "sac"):
        check_close(name, tmp_path, seeds=2)


def test_a_run_goes_on_with_any_number_of_devices(four, vmapped_keys):
    """Exactly with as many as before, else close."""
    whole, same = (launch.load(four / run, "last") for run in ("ppo", "again"))
    assert_same(whole.state, same.state)
    other = launch.resume(four / "ppo", point=1)
    assert_close(*[jax.tree.map(devices.plain, x.state) for x in (other, whole)])
    with pytest.raises(UserError, match="split_envs=2: the run has begun with split_envs=4"):
        launch.resume(four / "ppo", split_envs=2)


@pytest.mark.slow
def test_two_processes_share_a_trial(tmp_path, vmapped_keys):
    """Each has two devices; the first one keeps the whole state, with which one device goes on."""
    sizes = ROLLOUT | {"hidden_sizes": 8, "update_epochs": 2, "split_envs": 4, "run_dir": "two"}
    words = [w for n, x in sizes.items() for w in (f"--{n.replace('_', '-')}", str(x))]
    processes = start(tmp_path, [*words, "--keep-states"], 2, devices=2, file=ppo.__file__)
    ended = outputs(processes)
    assert [code for code, *_ in ended] == [0, 0], ended
    assert "1 trial (seed 0) on 4 cpu devices" in ended[0][1] and "step" not in ended[1][1]
    one = launch.run(ppo, PPO, split_envs=4, run_dir=tmp_path / "one")
    again = launch.resume(tmp_path / "two", point=1)
    states = [launch.load(run).state for run in (one.run_dir, tmp_path / "two", again.run_dir)]
    whole, *others = [jax.tree.map(devices.plain, state) for state in states]
    for other in others:
        assert_close(other, whole)


def test_a_cpu_is_asked_for_a_device_for_each_shard(four, monkeypatch):
    def asked(number, config):
        raise Asked(number)

    class Asked(Exception):
        pass

    monkeypatch.setattr(devices, "use_cores", asked)
    with pytest.raises(Asked, match="^8$"):
        launch.run(ppo, PPO, num_seeds=2, split_envs=4, save=False)
    with pytest.raises(Asked, match="^4$"):
        launch.resume(four / "ppo")


def test_trials_that_fill_more_than_a_device_take_turns_on_all(monkeypatch):
    """Four trials on four devices do not fit; of two, each has two devices, and of one, four."""
    large = programs.Trainer(parts.Split(ppo, 4), PPO, 1, Progress(True, 0.0))
    there = [types.SimpleNamespace(process_index=0, id=i, platform="cpu") for i in range(4)]
    monkeypatch.setattr(jax, "devices", lambda: there)
    monkeypatch.setattr(jax, "local_device_count", lambda: 4)
    monkeypatch.setattr(jax, "device_count", lambda: 4)
    monkeypatch.setattr(large, "compile", lambda start: None)
    needed = property(lambda self: 1000 * self.layout.per_device // self.layout.across)
    monkeypatch.setattr(programs.Trainer, "bytes_per_device", needed)
    for limit, size in ((1000, 4), (999, 2), (499, 1)):
        assert {len(chunk) for chunk in large.fit(4, None, limit, True)} == {size}
        assert large.layout.across == 4 // size
    with pytest.raises(UserError, match="a trial needs 250 B and may take 249 B"):
        large.fit(4, None, 249, True)


# --- flags and refusals -----------------------------------------------------------------------


def test_the_flag_is_an_option_that_a_run_keeps(four):
    given = flags.parse(ppo, ["--split-envs", "4"], PPO, flags.Flags())[1]
    assert given.split_envs == 4 and flags.Flags().split_envs == 1
    assert RunDir.open(four / "ppo").description["options"]["split_envs"] == 4
    assert cli.defaults(ppo, ["--resume", str(four / "ppo")])[1].split_envs == 4


def refused(module, config, number, words, **keywords):
    with pytest.raises(UserError, match=words) as error:
        launch.run(module, config, split_envs=number, save=False, **keywords)
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore::envs.warn.KitWarning")
def test_what_cannot_be_split_is_refused():
    refused(ppo, PPO, 0, "split_envs=0: give a whole number")
    refused(toy, toy.Config(), 2, "^split_envs=2: toy cannot be split$")
    others = "dqn, flashsac, ippo, ppo, ppo_rnn, pqn, sac can"
    refused(td3, td3.Config(), 2, f"td3 cannot be split; {others}")
    envs = "split_envs=4 does not divide num_envs=6; num_envs=8 or split_envs=2 would do"
    refused(ppo, PPO.replace(num_envs=6), 4, envs)
    refused(sac, SAC.replace(batch_size=17), 4, "does not divide batch_size=17; batch_size=16 or")
    small = PPO.replace(num_envs=4, num_steps=2, num_minibatches=4)
    refused(ppo, small, 4, "leaves num_envs=1 to a shard, and there num_minibatches=4 does not")
    refused(dqn, CONFIGS["dqn"].replace(prioritized=True), 2, "prioritized=True: priorities are")
    with pytest.raises(UserError, match="split_envs=2 does not go with pbt"):
        ranges = {"learning_rate": launch.LogUniform(1e-4, 1e-2)}
        launch.pbt(ppo, PPO, ranges, members=2, rounds=2, split_envs=2, save=False)
