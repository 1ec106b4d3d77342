"""An algorithm file of a user's, anywhere, is run, swept, resumed, evaluated and compared."""

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from algorithms import launch, reinforce
from algorithms.launch.engine.errors import UserError
from algorithms.launch.tools import compare

SIZES = "--total-timesteps 256 --num-envs 2 --num-steps 32 --num-evals 2 --num-eval-episodes 2"


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    """my_reinforce.py in a folder of its own, with another loss, and what its first run said."""
    folder = tmp_path_factory.mktemp("project")
    text = Path(reinforce.__file__).read_text()
    ours, theirs = "return -(log_prob * advantages).mean()", "return -(log_prob * advantages).sum()"
    assert text.count(ours) == 1
    (folder / "my_reinforce.py").write_text(text.replace(ours, theirs))
    words = [sys.executable, "my_reinforce.py", *SIZES.split(), "--num-seeds", "2"]
    words += ["--run-dir", "first", "--hidden-sizes", "4"]
    said = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    return folder, said


def module_of(folder, name="my_reinforce"):
    spec = importlib.util.spec_from_file_location(name, folder / "my_reinforce.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_it_is_run_from_its_own_folder(mine):
    _, said = mine
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("my_reinforce on CartPole-v1: 2 trials (seeds 0 to 1)")
    assert "done: evaluation return" in said.stdout and said.stderr == ""


@pytest.mark.usefixtures("vmapped_keys")
def test_its_runs_are_swept_resumed_evaluated_and_compared(mine, monkeypatch, capsys):
    folder, _ = mine
    monkeypatch.chdir(folder)
    module = module_of(folder)
    base = f"{SIZES} --hidden-sizes 4"

    def call(words):
        code = launch.main(module, words.split())
        assert not code
        return "".join(capsys.readouterr())

    loaded = launch.load("first", trial=1, module=module)
    result = launch.run(module, loaded.config, seed=1, save=False)
    np.testing.assert_allclose(result.metrics["loss"][0], loaded.metrics["loss"][1], rtol=1e-4)
    said = call(f"{base} --learning-rate 1e-3 1e-2 --num-seeds 2 --run-dir sweep")
    assert "learning_rate" in said and (folder / "sweep" / "report.html").exists()
    assert "now 3 points" in call("--resume first --total-timesteps 384")
    assert "trial 1 (seed 1)" in call("--evaluate first --trial 1 --episodes 3")
    compare.main(["first", "sweep"])
    assert "my_reinforce, " in capsys.readouterr().out
    with pytest.raises(UserError, match="my_reinforce is not one of `algorithms`: pass its module"):
        launch.load("first")


def test_its_copy_trains_as_the_file_does(mine, monkeypatch):
    folder, _ = mine
    monkeypatch.chdir(folder)
    module = module_of(folder)
    launch.main(module, ["--copy", "taken"])
    taken = module_of(folder / "taken", "taken_reinforce")
    text = inspect.getsource(taken)
    assert "return -(log_prob * advantages).sum()" in text
    assert not re.search(r"^\s*(from|import) (algorithms|envs)", text, re.M)

    def curves(module):
        sizes = dict(total_timesteps=64, num_envs=2, num_steps=16, num_evals=1, hidden_sizes=(4,))
        train = module.make_train(module.Config(**sizes, num_eval_episodes=2))
        return train(jax.random.key(0))[1]

    jax.tree.map(np.testing.assert_array_equal, curves(taken), curves(module))
