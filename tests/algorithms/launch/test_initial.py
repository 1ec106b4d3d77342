"""Runs that begin at the policy of another run, on a toy and on algorithms."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from algorithms import dqn, launch, reinforce
from algorithms.launch import cli
from algorithms.launch.engine import initial, loading
from algorithms.launch.engine.errors import UserError
from tests.algorithms import test_dqn
from tests.algorithms.launch import toy
from tests.seconds import ALGORITHMS

pytestmark = pytest.mark.usefixtures("quick_pictures", "shared_programs")
CONFIG = toy.Config(total_timesteps=100, num_evals=4)
OTHER = CONFIG.replace(learning_rate=0.3, num_envs=10)


@pytest.fixture(scope="module")
def source(quick_pictures, shared_programs, tmp_path_factory):
    """A run of three trials."""
    return launch.run(toy, CONFIG, num_seeds=3, run_dir=tmp_path_factory.mktemp("runs") / "source")


def weights(run_dir, point, trial=None):
    return np.asarray(launch.load(run_dir, point, trial=trial, module=toy).state.policy["weights"])


# --- which trials and points -----------------------------------------------------------------


def test_seeds_begin_at_the_trials_of_their_numbers(source, tmp_path):
    begun = {"seed": 7, "num_seeds": 2, "init_from": source.run_dir}
    result = launch.run(toy, OTHER, run_dir=tmp_path / "run", **begun)
    np.testing.assert_array_equal(weights(tmp_path / "run", 0), weights(source.run_dir, "last")[:2])
    np.testing.assert_array_equal(
        result.metrics["eval_return"][:, 0], source.metrics["eval_return"][:2, -1]
    )
    fresh = launch.load(tmp_path / "run", 0, trial=0, module=toy, whole=True)
    assert result.metrics["timestep"][:, 0].tolist() == [0, 0] and fresh.point == 0
    said = json.loads((tmp_path / "run" / "config.json").read_text())["init_from"]
    assert said == {
        "run": str(source.run_dir),
        "point": "last",
        "trial": None,
        "optimizer": False,
        "seeds": [7, 8],
        "trials": [0, 1],
        "points": [4, 4],
    }


def test_more_seeds_than_trials_begin_at_the_best_one(source, capsys):
    result = launch.run(toy, OTHER, num_seeds=4, save=False, quiet=False, init_from=source.run_dir)
    finals = source.metrics["eval_return"][:, -1]
    best = int(finals.mean(1).argmax())
    np.testing.assert_array_equal(result.metrics["eval_return"][:, 0], finals[[best] * 4])
    said = f"begins at policy of {source.run_dir}, trial {best} at point 4\n"
    assert said in capsys.readouterr().out


def test_a_single_seed_begins_at_the_best_trial(source):
    finals = source.metrics["eval_return"][:, -1]
    best = int(finals.mean(1).argmax())
    assert best > 0, "the test would show nothing"
    result = launch.run(toy, OTHER, save=False, init_from=source.run_dir)
    np.testing.assert_array_equal(result.metrics["eval_return"][0, 0], finals[best])


def test_settings_with_which_the_policy_acts_otherwise_are_told_of(source, monkeypatch, capsys):
    """Not those of training, nor those that a sweep varies."""

    def make_policy(config, *_):
        return lambda state, x: (state.policy["weights"].sum() * x.sum() > config.gamma, None)

    monkeypatch.setattr(toy, "make_policy", make_policy)
    begin = {"save": False, "init_from": source.run_dir}
    told = (
        f"init_from={source.run_dir}: with gamma=0.5 its policy acts otherwise than in training; "
        "gamma=0.99 would do"
    )
    launch.run(toy, OTHER.replace(gamma=0.5), **begin)
    assert capsys.readouterr().err.count(told) == 1
    launch.run(toy, OTHER, **begin)
    launch.sweep(toy, OTHER.replace(gamma=0.9), {"gamma": [0.5, 0.9]}, **begin)
    assert "acts otherwise" not in capsys.readouterr().err


def test_which_settings_make_a_policy_act_otherwise():
    others = {
        "normalize_obs": False,
        "clip_obs": 5.0,
        "activation": "relu",
        "conv_layers": ((8, 3, 1),),  # of pictures
        "learning_rate": 0.1,
        "num_envs": 2,
    }
    config = reinforce.Config(normalize_obs=True)
    found = initial._acting_otherwise(reinforce, config, others)
    assert found == ["normalize_obs", "clip_obs", "activation"]
    assert not initial._acting_otherwise(reinforce, config, {"num_envs": 2, "gamma": 0.5})


def test_a_trial_and_a_point_can_be_chosen(source):
    more = {"num_seeds": 2, "save": False, "init_from": source.run_dir, "init_trial": 1}
    result = launch.run(toy, OTHER, **more, init_point=2)
    np.testing.assert_array_equal(
        result.metrics["eval_return"][:, 0], source.metrics["eval_return"][[1, 1], 2]
    )
    result = launch.run(toy, OTHER, **more, init_point="best")
    best = source.metrics["eval_return"][1].mean(1).max()
    assert result.metrics["eval_return"][0, 0].mean() == best


def test_of_a_sweep_the_best_setting_is_taken(tmp_path):
    grid = {"learning_rate": [0.0, 0.1, 0.2]}
    swept = launch.sweep(toy, CONFIG, grid, num_seeds=2, sweep_dir=tmp_path / "sweep")
    result = launch.run(toy, OTHER, num_seeds=2, save=False, init_from=tmp_path / "sweep")
    finals = [trial.final for trial in swept.ranked[0].trials]
    assert result.metrics["eval_return"][:, 0].mean(1).tolist() == pytest.approx(finals)
    with pytest.raises(UserError, match="has several settings: say which trial, init_trial=N"):
        launch.run(toy, OTHER, save=False, init_from=tmp_path / "sweep" / "chunk_000")


# --- what becomes of it ----------------------------------------------------------------------


def test_all_settings_of_a_sweep_begin_there(source, tmp_path):
    grid = {"learning_rate": [0.1, 0.2], "num_envs": [5, 10]}
    begun = {"num_seeds": 2, "init_from": source.run_dir, "init_trial": 2}
    swept = launch.sweep(toy, CONFIG, grid, sweep_dir=tmp_path / "sweep", max_parallel=3, **begun)
    firsts = {float(trial.returns[0]) for trial in swept.trials}
    assert firsts == {float(source.metrics["eval_return"][2, -1].mean())}
    assert len({float(trial.returns[-1]) for trial in swept.trials}) == 8
    for file in ("sweep.json", "best.json", "chunk_001/config.json"):
        said = json.loads((tmp_path / "sweep" / file).read_text())["init_from"]
        assert (said["run"], said["trials"]) == (str(source.run_dir), [2, 2]), file


def test_a_chunk_continues_where_its_seeds_are(source):
    """The first seed of a chunk is not the first of the sweep."""
    grid = {"learning_rate": [0.1, 0.2]}
    begun = {"seed": 3, "num_seeds": 3, "init_from": source.run_dir, "save": False}
    swept = launch.sweep(toy, CONFIG, grid, max_parallel=2, **begun)
    firsts = [float(trial.returns[0]) for trial in swept.trials]
    assert firsts == source.metrics["eval_return"][[0, 1, 2, 0, 1, 2], -1].mean(1).tolist()


def test_the_seeds_of_a_retest_begin_there_in_turn(source):
    grid = {"learning_rate": [0.1, 0.2]}
    begun = {"num_seeds": 2, "retest": 1, "retest_seeds": 3, "init_from": source.run_dir}
    swept = launch.sweep(toy, CONFIG, grid, save=False, **begun)
    firsts = [float(trial.returns[0]) for trial in swept.retested[0].again.trials]
    assert firsts == source.metrics["eval_return"][[0, 1, 0], -1].mean(1).tolist()


def test_it_resumes_without_its_source(source, tmp_path):
    copy = shutil.copytree(source.run_dir, tmp_path / "copy")
    whole = launch.run(toy, OTHER, num_seeds=2, run_dir=tmp_path / "whole", init_from=copy)

    def stop(point):
        if point.index == 1:
            raise launch.Stop

    launch.run(toy, OTHER, num_seeds=2, run_dir=tmp_path / "run", hooks=[stop], init_from=copy)
    shutil.rmtree(copy)
    again = {"num_seeds": 2, "run_dir": tmp_path / "run", "resume_if_exists": True}
    with pytest.raises(UserError, match=r"init_from \['/.*asked for: \['/.*elsewhere"):
        launch.run(toy, OTHER, **again, init_from=tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"init_from \['/.*asked for: None"):
        launch.run(toy, OTHER, **again)
    with pytest.raises(UserError, match="init_trial: trials that have begun go on from their own"):
        launch.resume(tmp_path / "run", module=toy, init_trial=0)
    result = launch.run(toy, OTHER, **again, init_from=copy)
    np.testing.assert_array_equal(result.state.policy["weights"], whole.state.policy["weights"])
    described = [json.loads((tmp_path / n / "config.json").read_text()) for n in ("run", "whole")]
    assert described[0] == described[1] and described[0]["init_from"]


def test_other_settings_train_a_policy_of_cartpole_from_its_return_on(
    all_programs_shared, tmp_path
):
    settings = {"num_envs": 4, "num_evals": 2, "num_eval_episodes": 8, "hidden_sizes": (8,)}
    config = reinforce.Config(total_timesteps=20_000, learning_rate=1e-2, **settings)
    before = launch.run(reinforce, config, run_dir=tmp_path / "old").metrics["eval_return"]
    assert before[0, -1].mean() > 2 * before[0, 0].mean(), "it has learned"
    other = config.replace(learning_rate=1e-4)
    begun = {"run_dir": tmp_path / "new", "init_from": tmp_path / "old"}
    after = launch.run(reinforce, other, **begun).metrics["eval_return"]
    np.testing.assert_allclose(after[0, 0], before[0, -1], rtol=1e-4)


def test_dqn_takes_policy_and_target_network_or_all_that_it_learned(all_programs_shared, tmp_path):
    config = test_dqn.TINY
    old = launch.run(dqn, config, run_dir=tmp_path / "old")

    def begin(**begun):
        launch.run(dqn, config, seed=5, run_dir=tmp_path / str(begun), hooks=[stop], **begun)
        return launch.load(tmp_path / str(begun), 0).state

    def stop(point):
        raise launch.Stop

    def same(one, other):
        return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))

    fresh, plain = begin(), begin(init_from=tmp_path / "old")
    assert same(plain.policy, old.state.policy) and not same(fresh.policy, old.state.policy)
    assert same(plain.target_params, old.state.policy.params)
    rest = ["opt_state", "replay", "env_state", "observation", "update", "episodes"]
    for name in rest:
        assert same(getattr(plain, name), getattr(fresh, name)), name
    learned = begin(init_from=tmp_path / "old", init_optimizer=True)
    for name in ("policy", "target_params", "opt_state"):
        assert same(getattr(learned, name), getattr(old.state, name)), name
    assert not same(fresh.opt_state, old.state.opt_state)
    for name in rest[1:]:
        assert same(getattr(learned, name), getattr(fresh, name)), name


# --- the fields of a state -------------------------------------------------------------------

NEW = {"env_state", "observation", "episodes", "update", "replay", "memory", "critic_memory"}
NEW |= {"alive", "held", "exploration", "target_age", "opening", "past", "levels"}
NEW |= {"running", "returns", "taken"}


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_field_of_a_state_is_learned_or_new(name):
    state = loading.find_module(name).TrainState
    fields = [field.name for field in dataclasses.fields(state)]
    taken = initial.taken(state, True)
    assert initial.taken(state, False) == ["policy"]
    left = {field for field in fields if field not in taken and not field.endswith("rng")}
    assert left <= NEW and not NEW & set(taken)


@struct.dataclass
class Learned:
    policy: Any
    target: Any
    critic: Any
    moments: Any


def test_copies_of_the_policy_s_parameters_become_copies_of_the_new_ones():
    """At any depth, by their numbers; what only has the same shapes stays."""
    own = {"kernel": jnp.arange(12.0).reshape(2, 3, 2), "bias": jnp.zeros((2, 2))}
    other = jax.tree.map(lambda x: x + 1.0, own)
    head = jax.tree.map(lambda x: x + 2.0, own)
    states = Learned(
        policy={"params": {"actor": own, "head": head}, "stats": {"mean": jnp.zeros((2, 4))}},
        target={"both": {"actor": own, "head": head}, "critic": other},
        critic={"slow": head, "other": other},
        moments={"mu": jax.tree.map(jnp.zeros_like, own), "nu": {"mean": jnp.zeros((2, 4))}},
    )
    new = jax.tree.map(lambda x: x - 5.0, states.policy)
    found = initial.with_copies(states, new)
    target = {"both": new["params"], "critic": other}
    critic = {"slow": new["params"]["head"], "other": other}
    expected = states.replace(target=target, critic=critic)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert all(map(np.array_equal, jax.tree.leaves(found), jax.tree.leaves(expected)))


# --- what is refused -------------------------------------------------------------------------

REFUSED: list[tuple[dict, dict, str]] = [
    (
        {"hidden_sizes": (3, 4)},
        {},
        r"does not fit: state.policy\['weights'\] has the shape \(3, 2\) there and has the shape "
        r"\(3, 4\) here",
    ),
    ({}, {"init_trial": 3}, "init_trial=3: .* has trials 0 to 2"),
    ({}, {"init_trial": -1}, "init_trial=-1: .* has trials 0 to 2"),
    ({}, {"init_point": 9}, "has no point 9; it has 0 to 4"),
    ({}, {"init_point": "first"}, "init_point='first': give last, best or the number of a point"),
    ({}, {"init_from": None, "init_trial": 3}, "init_trial: goes with init_from, which is missing"),
    (
        {},
        {"init_point": 1, "init_optimizer": True},
        r"has no whole state of point 1; it has \[3, 4\] \(a run with --keep-states",
    ),
    ({}, {"init_from": "nowhere"}, "nowhere/config.json does not exist: give the directory"),
]


@pytest.mark.parametrize("changes, begun, message", REFUSED)
def test_what_is_refused_leaves_nothing(source, tmp_path, changes, begun, message):
    begun = {"init_from": source.run_dir} | begun
    with pytest.raises(UserError, match=message):
        launch.run(toy, CONFIG.replace(**changes), run_dir=tmp_path / "run", **begun)
    assert not list(tmp_path.iterdir())


def test_other_algorithms_and_broken_sources_are_refused(source, tmp_path):
    with pytest.raises(UserError, match="is a run of toy, not of reinforce: parameters of one"):
        launch.run(reinforce, reinforce.Config(), save=False, init_from=source.run_dir)
    copy = Path(shutil.copytree(source.run_dir, tmp_path / "copy"))
    file = copy / "checkpoints" / "000004.policy"
    file.write_bytes(file.read_bytes()[:-40] + b"x" * 40)
    with pytest.raises(UserError, match="000004.policy is damaged"):
        launch.run(toy, CONFIG, save=False, init_from=copy)
    launch.run(toy, CONFIG.replace(learning_rate=3e38), run_dir=tmp_path / "inf")
    with pytest.raises(UserError, match="trial 0 is not finite at point 4: choose another with"):
        launch.run(toy, CONFIG, save=False, init_from=tmp_path / "inf")


# --- the command line ------------------------------------------------------------------------


def main(*words):
    cli.main(toy, [str(word) for word in words])


def test_config_begins_at_the_trials_and_points_of_the_run(source, tmp_path, capsys):
    """Of a retest's best.json, and where the source has gone on since."""
    grown = shutil.copytree(source.run_dir, tmp_path / "source")
    grid = {"learning_rate": [0.1, 0.2]}
    begun = {"num_seeds": 2, "retest": 1, "retest_seeds": 3, "init_from": grown}
    launch.sweep(toy, OTHER, grid, sweep_dir=tmp_path / "sweep", **begun)
    main("--resume", grown, "--total-timesteps", 250, "--quiet")
    assert launch.load(grown, module=toy).point > 4
    again = ("--config", tmp_path / "sweep" / "best.json", "--quiet", "--run-dir")
    main(*again, tmp_path / "same")
    expected = weights(source.run_dir, "last")
    np.testing.assert_array_equal(weights(tmp_path / "same", 0), expected[[0, 1, 0]])
    main(*again, tmp_path / "more", "--num-seeds", 5)
    np.testing.assert_array_equal(weights(tmp_path / "more", 0), expected[[0, 1, 0, 1, 0]])
    main(*again, tmp_path / "other", "--init-point", 2)
    np.testing.assert_array_equal(weights(tmp_path / "other", 0), weights(grown, 2))


def test_flags_begin_there_and_config_begins_there_again(source, tmp_path, capsys):
    plain = ("--total-timesteps", 100, "--num-evals", 4, "--quiet")
    begun = ("--init-from", source.run_dir, "--init-point", 2, "--init-trial", 1)
    main(*plain, *begun, "--num-seeds", 2, "--run-dir", tmp_path / "one")
    main("--config", tmp_path / "one" / "config.json", "--quiet", "--run-dir", tmp_path / "two")
    for name in ("one", "two"):
        np.testing.assert_array_equal(
            weights(tmp_path / name, 0), weights(source.run_dir, 2)[[1, 1]]
        )
    main("--resume", tmp_path / "one", "--total-timesteps", 150, "--quiet")
    assert launch.load(tmp_path / "one", module=toy).point == 6
    with pytest.raises(SystemExit):
        main("--resume", tmp_path / "one", *begun)
    assert "--resume does not go with --init-from" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main("--init-from", source.run_dir, "--init-point", "first")
    assert "--init-point first: give last, best or a number" in capsys.readouterr().err
