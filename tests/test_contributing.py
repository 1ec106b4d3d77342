"""An algorithm is added to a copy of the kit as CONTRIBUTING.md says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # a whole contract
ROOT = Path(__file__).parents[1]

TEST_FOO = """
from algorithms import foo
from tests.algorithms.cases import Case

CASE = Case(
    module=foo,
    tiny=foo.Config(
        total_timesteps=3 * 16,
        num_envs=2,
        num_steps=8,
        hidden_sizes=(8,),
        num_evals=3,
        num_eval_episodes=2,
    ),
    metrics={
        "loss",
        "policy_loss",
        "value_loss",
        "entropy",
        "grad_norm",
        "mean_value",
        "explained_variance",
    },
    pinned={},
    refused=((dict(num_envs=1, num_steps=1), "one sample to a rollout"),),
)
"""


def insert(file: Path, line: str, before: str) -> None:
    text = file.read_text()
    assert text.count(before) == 1, f"{file.name} has no place for {line}"
    file.write_text(text.replace(before, line + before))


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """The kit with foo.py, in which REINFORCE has another name: two new files and two longer."""
    kit = tmp_path_factory.mktemp("kit")
    for name in ("algorithms", "envs", "tests", "docs"):
        shutil.copytree(ROOT / name, kit / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", kit)
    text = (kit / "algorithms" / "reinforce.py").read_text().replace("reinforce.py", "foo.py")
    text = text.replace("REINFORCE with a value baseline and lambda-returns", "Foo, an example")
    (kit / "algorithms" / "foo.py").write_text(text)
    (kit / "tests" / "algorithms" / "test_foo.py").write_text(TEST_FOO)
    presets = kit / "algorithms" / "presets.py"
    insert(presets, '    "foo": {"CartPole-v1": {}},\n', before='    "reinforce": {\n')
    cell = '    *(preset("foo", env, 500_000, 100) for env in ("CartPole-v1",)),\n'
    cells = kit / "tests" / "benchmarks" / "cells.py"
    insert(cells, cell, before='    *(preset("reinforce",')
    run(kit, "-m", "tests.texts", "--write", "foo")
    return kit


def run(kit, *words):
    environment = os.environ | {"PYTHONPATH": str(kit)}
    done = subprocess.run(
        [sys.executable, *words], cwd=kit, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_an_added_file_passes_the_contract(kit):
    told = run(kit, "-m", "pytest", "tests/algorithms", "-k", "foo", "-n", "0")
    assert int(told.split(" passed")[0].split()[-1]) > 30


def test_an_added_file_is_listed_and_its_cell_too(kit):
    listed = run(kit, "algorithms/foo.py", "--list")
    assert "  foo           Foo, an example; discrete or continuous actions" in listed
    assert "foo/CartPole-v1" in run(kit, "tests/benchmarks/learning.py")
