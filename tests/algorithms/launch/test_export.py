"""Policies as files that act without the kit, in a process that has only jax and NumPy."""

import importlib.util
import json
import os
import subprocess
import sys
import zipfile

import jax
import numpy as np
import pytest

from algorithms import ippo, launch, parts, ppo_rnn, sac
from algorithms.launch import cli
from algorithms.launch.engine.errors import UserError
from algorithms.launch.tools import export
from tests.algorithms.launch import toy

pytestmark = pytest.mark.needs("flatbuffers")

BATCH = 3
# What docs/python.md shows, for all files in a folder; NumPy and jax come from outside of the kit.
READER = """
import json, sys, zipfile
from pathlib import Path
import jax, numpy as np
from jax import export

for file in Path().glob("*.zip"):
    archive = zipfile.ZipFile(file)
    about = json.loads(archive.read("about.json"))
    read = lambda name: jax.jit(export.deserialize(bytearray(archive.read(name))).call)
    act, sample = read("policy.jax_export"), read("sampled.jax_export")
    given = np.load(file.with_suffix(".npz"))
    mask = given["mask"] if about["mask"] else None
    memory = tuple(np.zeros((3, *m["shape"]), m["dtype"]) for m in about["memory"])
    results = {}
    for step in range(3):
        sampled, _ = sample(given["observation"][step], memory, mask, given["key"])
        action, memory = act(given["observation"][step], memory, mask)
        results |= {f"action{step}": action, f"sampled{step}": sampled}
    np.savez(file.with_suffix(".out.npz"), **results)
assert not [name for name in sys.modules if name.split(".")[0] in ("algorithms", "envs", "flax")]
"""
SIZES = {"num_envs": 2, "total_timesteps": 64, "num_evals": 1, "num_eval_episodes": 0}
SMALL = {"hidden_sizes": (8,), "num_steps": 8}
CASES = {
    "sac": (
        sac,
        sac.Config(hidden_sizes=(8,), buffer_size=64, learning_starts=4, batch_size=4, **SIZES),
    ),
    "lstm": (
        ppo_rnn,
        ppo_rnn.Config(
            cell="lstm", previous_inputs=True, memory_size=4, num_minibatches=1, **SMALL, **SIZES
        ),
    ),
}


def start_of(module, config):
    """A state whose observation statistics do something."""
    train = module.make_train(config)
    state = jax.jit(lambda key: parts.first_state(train, key))(jax.random.key(1))
    shift = lambda x: x + 0.3 if np.issubdtype(x.dtype, np.floating) else x + 2
    stats = jax.tree.map(shift, state.policy.obs_stats)
    return state.replace(policy=state.policy.replace(obs_stats=stats))


def expected(module, config, state, given):
    """The same by the kit's own policy."""
    policy, has_mask = module.make_policy(config), "mask" in given
    memory, results = None, {}

    @jax.jit
    @jax.vmap
    def act(observation, memory, mask, key):
        more = {"mask": mask} if has_mask else {}
        key = jax.random.wrap_key_data(key)
        sampled, _ = policy(state, observation, memory, key, **more)
        return policy(state, observation, memory, **more), sampled

    for step in range(3):
        (action, memory), sampled = act(
            given["observation"][step], memory, given.get("mask"), given["key"]
        )
        results |= {f"action{step}": action, f"sampled{step}": sampled}
    return results


@pytest.fixture(scope="module")
def run(quick_curves, tmp_path_factory):
    config = toy.Config(total_timesteps=100, num_evals=4)
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    return launch.run(toy, config, seed=3, num_seeds=3, run_dir=run_dir)


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    """A folder of exported policies, what a reader gives and what the kit gives for it."""
    from tests import probe  # gymnax starts jax's backend

    folder = tmp_path_factory.mktemp("policies")
    rng, wanted, about = np.random.default_rng(0), {}, {}
    pair = ippo.Config(env=probe.Pair(masked=True), **SMALL, **SIZES)
    for name, (module, config) in (CASES | {"agents": (ippo, pair)}).items():
        state = start_of(module, config)
        about[name], programs = export.exported(module, config, state)
        export.write(folder / f"{name}.zip", about[name], programs)
        wanted[name] = module, config, state
    launch.export(run.run_dir, folder / "run.zip", module=toy)
    about["run"] = json.loads(zipfile.ZipFile(folder / "run.zip").read("about.json"))
    loaded = launch.load(run.run_dir, trial=about["run"]["trial"], module=toy)
    wanted["run"] = toy, loaded.config, loaded.state
    for name, one in about.items():
        shape = one["observation"]["shape"]
        given = {"observation": rng.normal(size=(3, BATCH, *shape)).astype(np.float32)}
        given["key"] = np.array(jax.random.key_data(jax.random.split(jax.random.key(5), BATCH)))
        if one["mask"]:
            given["mask"] = rng.random((BATCH, *one["mask"]["shape"])) < 0.5
            given["mask"][..., 0] = True
        np.savez(folder / f"{name}.npz", **given)
        wanted[name] = expected(*wanted[name], given)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    words = [sys.executable, "-I", "-c", READER]
    subprocess.run(words, cwd=folder, env=clean | {"JAX_PLATFORMS": "cpu"}, check=True)
    found = {name: np.load(folder / f"{name}.out.npz") for name in about}
    return about, found, wanted


@pytest.mark.parametrize("name", [*CASES, "agents", "run"])
def test_a_file_acts_as_the_policy_does_without_the_kit(exported, name):
    _, found, wanted = (one[name] for one in exported)
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-6, err_msg=key)
    if name != "run":  # the toy does not sample
        assert any(np.any(wanted[f"action{i}"] != wanted[f"sampled{i}"]) for i in range(3))


def test_about_says_what_goes_in_and_out(exported):
    about = exported[0]
    assert about["run"]["run"] == "run" and about["run"]["seed"] == 3 + about["run"]["trial"]
    assert about["run"]["observation"]["shape"] == [4] and about["run"]["memory"] == []
    assert about["run"]["action"] == {"shape": [], "dtype": "int32", "num_actions": 2}
    assert about["run"]["algorithm"] == "toy" and about["run"]["env"] == "CartPole-v1"
    assert about["sac"]["action"] == {"shape": [1], "dtype": "float32", "low": -2.0, "high": 2.0}
    names = [(one["name"], one["shape"]) for one in about["lstm"]["memory"]]
    assert names == [("hidden", [4]), ("cell", [4]), ("action", [2]), ("reward", [])]
    assert about["agents"]["num_agents"] == about["agents"]["mask"]["shape"][0] == 2
    assert about["agents"]["platforms"] == ["cpu", "cuda", "tpu"]


# --- which trial and point, and what is refused ----------------------------------------------


def test_the_best_trial_is_taken_where_none_is_named(run, tmp_path, capsys):
    returns = run.metrics["eval_return"].mean(2)
    trial = returns[:, -1].argmax()
    file = launch.export(run.run_dir, tmp_path / "policy.zip", module=toy)
    about = json.loads(zipfile.ZipFile(file).read("about.json"))
    assert (about["trial"], about["point"]) == (trial, 4)
    assert about["return"] == pytest.approx(returns[trial, -1])
    file = launch.export(run.run_dir, tmp_path / "best.zip", "best", module=toy)
    about = json.loads(zipfile.ZipFile(file).read("about.json"))
    assert (about["trial"], about["point"]) == (trial, returns[trial].argmax())
    cli.main(toy, ["--export", str(run.run_dir)])
    file = run.run_dir / f"policy_trial{trial}_point4.zip"
    assert capsys.readouterr().out == f"{file}\n" and file.exists()
    with pytest.raises(SystemExit):
        cli.main(toy, ["--export", str(run.run_dir)])
    assert f"{file} exists: move it away first" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_the_users_to_solve(tmp_path):
    with pytest.raises(UserError, match="x.zip cannot be written: No such file"):
        export.write(tmp_path / "gone" / "x.zip", {}, {})


def test_what_is_refused(run, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="nowhere is no directory"):
        launch.export(run.run_dir, tmp_path / "nowhere" / "x.zip", module=toy)
    with pytest.raises(UserError, match="trial=3: .* has trials 0 to 2"):
        launch.export(run.run_dir, tmp_path / "x.zip", trial=3, module=toy)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n: None if n == "flatbuffers" else find(n)
    )
    with pytest.raises(UserError, match="needs flatbuffers: pip install flatbuffers"):
        launch.export(run.run_dir, tmp_path / "x.zip", module=toy)
    assert not list(tmp_path.iterdir())
