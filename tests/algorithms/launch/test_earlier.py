"""Runs and sweeps made by commit 981350f: what a user has on disk outlives changes of the kit.

`earlier/` holds a run and a sweep of ppo, dqn (with its replay buffer) and ippo, without pictures.
"""

import csv
import importlib
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from algorithms import launch
from algorithms.launch.compare import compare
from tests.algorithms.launch.test_cli import main

EARLIER = Path(__file__).parent / "earlier"
ALGORITHMS = ("ppo", "dqn", "ippo")
# Mean over 64 random observations of what the last policies do.
MEAN_ACTION = {"ppo": 13 / 64, "dqn": 31 / 64, "ippo": 0.003727}


@pytest.fixture
def copied(request, tmp_path):
    """Of the run of an algorithm, for what writes."""
    return shutil.copytree(EARLIER / f"{request.param}-run", tmp_path / "run")


def module_of(algorithm):
    return importlib.import_module(f"algorithms.{algorithm}")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_runs_and_sweeps_load(algorithm):
    run = launch.load(EARLIER / f"{algorithm}-run")
    assert run.points == [0, 1, 2, 3] and list(run.metrics["timestep"][0]) == [0, 64, 128, 192]
    shape = run.state.observation.shape[1:]
    act = jax.jit(jax.vmap(lambda x: run.policy(run.state, x)[0]))
    actions = act(3.0 * jax.random.normal(jax.random.key(0), (64, *shape)))
    np.testing.assert_allclose(actions.mean(), MEAN_ACTION[algorithm], rtol=1e-3)
    rows = list(csv.DictReader((EARLIER / f"{algorithm}-sweep" / "results.csv").open()))
    for row in rows:
        trial = launch.load(EARLIER / f"{algorithm}-sweep", trial=int(row["agent"]))
        assert trial.config.learning_rate == float(row["learning_rate"])
        score = trial.metrics["eval_return"][int(row["agent_of_run"]), -1].mean()
        assert score == pytest.approx(float(row["final_return"]), rel=1e-6)


def test_runs_and_sweeps_are_compared(tmp_path):
    runs = [
        EARLIER / f"{algorithm}-{kind}" for algorithm in ALGORITHMS for kind in ("run", "sweep")
    ]
    compared = compare(runs, out=tmp_path / "all.png")
    assert set(compared.panels) == {"CartPole-v1", "Pursuit-v0"}
    assert compared.picture.exists()


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_runs_and_trials_are_evaluated(kind, capsys):
    words = "--evaluate", EARLIER / f"dqn-{kind}", "--trial", 0, "--episodes", 3
    code, out, err = main(capsys, *words, module=module_of("dqn"))
    assert code == 0 and "3 episodes" in out and not err


@pytest.mark.parametrize("copied", ["ippo"], indirect=True)
def test_runs_are_rendered(copied, capsys):
    code, _, err = main(capsys, "--render", copied, module=module_of("ippo"))
    assert code == 0 and not err
    assert len(list(copied.glob("*.gif"))) == 1


@pytest.mark.parametrize("copied", ALGORITHMS, indirect=True)
def test_runs_go_on(copied, vmapped_keys):
    result = launch.resume(copied, total_timesteps=256)
    assert list(result.metrics["timestep"][0]) == [0, 64, 128, 192, 256]
    assert jax.tree.all(jax.tree.map(lambda x: np.isfinite(x).all(), result.state.policy.params))
