"""Which whole states stay when a sweep is over, and that nothing else is ever lost."""

import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from algorithms import launch
from algorithms.launch import cli
from algorithms.launch.engine import devices, experiment, files, hosts, loop, outcomes
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.outcomes import is_over
from algorithms.launch.engine.run_dir import RunDir
from tests.algorithms.launch import toy
from tests.algorithms.launch.kept.make import KEPT

pytestmark = pytest.mark.usefixtures("quick_pictures", "shared_programs")
CONFIG = toy.Config(total_timesteps=40, num_evals=4, num_eval_episodes=1)
GRID = {"learning_rate": [0.2, 0.1, 0.3], "anneal_lr": [False, True]}
ASKED = {"num_seeds": 2, "max_parallel": 4}  # the best setting lies in two chunks


class Crash(Exception):
    """What ends a process in a test as kill -9 would."""


def sweep(path, grid=GRID, config=CONFIG, **more):
    return launch.sweep(toy, config, grid, **ASKED | more, sweep_dir=path)


@pytest.fixture(scope="module")
def everything(quick_pictures, shared_programs, tmp_path_factory):
    """A sweep that keeps all states."""
    return sweep(tmp_path_factory.mktemp("all") / "x", sweep_states="all")


@pytest.fixture(scope="module")
def lean(quick_pictures, shared_programs, tmp_path_factory):
    """The same by default."""
    return sweep(tmp_path_factory.mktemp("lean") / "x")


def states(path):
    return {str(file.relative_to(path)) for file in path.rglob("*.state")}


def others(path):
    """Everything but states, of what a clock does not change."""
    every = [file for file in path.rglob("*") if file.is_file() and file.suffix != ".state"]
    kinds = [file for file in every if file.suffix in (".policy", ".csv", ".json")]
    timed = ("metrics.csv", "trials.csv", "versions.json", "sweep.json")
    return {str(f.relative_to(path)): f.read_bytes() for f in kinds if f.name not in timed}


def plain(state):
    return jax.tree.map(lambda x: np.asarray(devices.plain(x)), state)


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, plain(one), plain(other))


# --- what stays --------------------------------------------------------------------------------


def test_the_best_setting_keeps_its_last_state_and_policies_and_tables_stay(everything, lean):
    path = lean.sweep_dir
    assert states(path) == {"best/checkpoints/000004.state"}
    assert len(states(everything.sweep_dir)) == 2 * len(experiment.open(path).entries) > 4
    mine, whole = others(path), others(everything.sweep_dir)
    text = '"sweep_states": "best"', '"sweep_states": "all"'
    for name, data in whole.items():
        found = mine[name].decode(errors="replace").replace(*text)
        has = data.decode(errors="replace")
        if name.endswith(".json"):  # without the checksum
            found, has = ({**json.loads(x), "checksum": 0} for x in (found, has))
        assert found == has, name
    best = lean.ranked[0]
    assert len({trial.run for trial in best.trials}) == 2, "the test would show less"
    for trial in best.trials:
        expected = launch.load(everything.sweep_dir, trial=trial.number, module=toy)
        found = launch.load(path, trial=trial.number, module=toy)
        assert_same(found.state, expected.state)
        assert hasattr(found.state, "rng") and found.trial == expected.trial == trial.number
    for trial in lean.ranked[1].trials:
        found = launch.load(path, trial=trial.number, module=toy)
        expected = launch.load(everything.sweep_dir, trial=trial.number, module=toy, whole=False)
        assert_same(found.state.policy, expected.state.policy)
    assert files.size(path) == sum(f.stat().st_size for f in path.rglob("*") if f.is_file())


def test_the_run_of_the_best_setting_is_an_ordinary_one_and_goes_on(lean, tmp_path):
    path, best = shutil.copytree(lean.sweep_dir, tmp_path / "x"), lean.ranked[0]
    loaded = launch.load(path / "best", trial="all", module=toy)
    assert loaded.trials.seeds == [trial.seed for trial in best.trials]
    np.testing.assert_array_equal(loaded.metrics["timestep"][0], best.trials[0].timesteps)
    for i, trial in enumerate(best.trials):
        np.testing.assert_array_equal(loaded.metrics["eval_return"][i].mean(-1), trial.returns)
    lines = (path / "best" / "metrics.csv").read_text().splitlines()
    assert len(lines) == 1 + 2 * 5, "points 0 to 4 of two seeds"
    before = launch.load(path, module=toy)
    longer = launch.resume(path / "best", module=toy, total_timesteps=60)
    assert longer.metrics["timestep"][:, -1].tolist() == [60, 60]
    alone = launch.run(toy, before.config, num_seeds=2, save=False)
    np.testing.assert_allclose(longer.metrics["loss"][:, 1:5], alone.metrics["loss"][:, 1:], 1e-4)
    after = launch.load(path, module=toy)
    assert_same(before.state.policy, after.state.policy)
    assert after.point == 4, "the sweep's trial is as it was"


def stop_after_a_chunk(point):
    if point.index == 4:
        raise launch.Stop("enough")


@pytest.mark.parametrize(
    "more",
    [
        {"sweep_states": "all"},
        {"keep_states": True},
        {"grid": {"learning_rate": [0.1]}},
        {"grid": None, "retest": 1, "retest_seeds": 2},
        {"hooks": [stop_after_a_chunk]},
    ],
    ids=["all", "keep_states", "one setting", "one setting retested", "stopped"],
)
def test_all_states_stay(more, tmp_path, capsys):
    swept = sweep(tmp_path / "x", **more, quiet=False)
    there = experiment.open(tmp_path / "x")
    trained = [run for run in there.run_dirs() if run.points("policy")]
    assert trained and all(run.points("state") for run in trained) and not there.kept
    assert not (tmp_path / "x" / "best").exists()
    assert ("keeps whole states" in capsys.readouterr().out) == bool(swept.stopped)


def test_it_is_said_before_and_after(tmp_path, capsys):
    sweep(tmp_path / "x", {"gamma": [0.9, 1.0]}, quiet=False)
    said = capsys.readouterr().out
    first, last = "only the best setting keeps whole states (--sweep-states all", "whole states are"
    assert said.index(first) < said.index("  0% |") < said.index(last)
    assert f"the best setting with its whole state is in {tmp_path / 'x' / 'best'}; the" in said
    size = re.search(rf"\ndone, in {tmp_path / 'x'} \((.*) kB\)\n", said).group(1)
    assert float(size) * 1e3 == pytest.approx(files.size(tmp_path / "x"), rel=0.02)
    launch.resume(tmp_path / "x", module=toy, quiet=False)
    assert "whole state" not in capsys.readouterr().out, "nothing is left to do"


def test_each_environment_keeps_its_best_setting(tmp_path):
    grid = {"env": ["CartPole-v1", "Acrobot-v1"], "gamma": [0.9, 1.0]}
    swept = sweep(tmp_path / "x", grid)
    kept = experiment.open(tmp_path / "x").kept
    assert list(kept) == ["best-CartPole-v1", "best-Acrobot-v1"]
    for name, setting in zip(kept, (swept.ranked[0], swept.ranked[2])):
        assert kept[name] == [trial.number for trial in setting.trials]
        config = RunDir.open(tmp_path / "x" / name).description["config"]
        assert config["gamma"] == setting.setting["gamma"]
    assert len(states(tmp_path / "x")) == 2


def test_after_halving_and_a_retest_the_winner_of_the_retest_stays(tmp_path):
    asked = {"halving": 2, "rungs": 2, "retest": 2, "retest_seeds": 3}
    whole = sweep(tmp_path / "whole", sweep_states="all", **asked)
    swept = sweep(tmp_path / "x", **asked)
    best = swept.retested[0].again
    assert experiment.open(tmp_path / "x").kept == {"best": [trial.number for trial in best.trials]}
    assert states(tmp_path / "x") == {"best/checkpoints/000004.state"}
    assert outcomes.choose(experiment.open(tmp_path / "x")).numbers[0] in [
        trial.number for trial in best.trials
    ]
    for trial in best.trials:
        pair = [launch.load(s.sweep_dir, trial=trial.number, module=toy) for s in (whole, swept)]
        assert_same(*[loaded.state for loaded in pair])
    early = [
        trial.number for setting in swept.ranked if setting.share < 1 for trial in setting.trials
    ]
    assert launch.load(tmp_path / "x", trial=early[0], module=toy).point == 2
    again = launch.resume(tmp_path / "x", module=toy)
    assert [one.setting for one in again.ranked] == [one.setting for one in swept.ranked]


def test_a_halved_sweep_whose_states_have_gone_is_over(tmp_path):
    """No later stage says that its last rung is done."""
    swept = sweep(tmp_path / "x", halving=2, rungs=2)
    assert states(tmp_path / "x") == {"best/checkpoints/000004.state"}
    again = launch.resume(tmp_path / "x", module=toy)
    assert [one.setting for one in again.ranked] == [one.setting for one in swept.ranked]


# --- kills ---------------------------------------------------------------------------------------


def dying(monkeypatch, owner, name, count, of=lambda *_: True):
    """Lets the nth call of a function end the process."""
    calls, function = [], getattr(owner, name)

    def die(*given, **more):
        if of(*given):
            calls.append(given)
            if len(calls) == count:
                raise Crash
        return function(*given, **more)

    monkeypatch.setattr(owner, name, die)


is_state = lambda file, **_: (
    file.suffix == ".state" and "kept" in (file.parents[2] / "sweep.json").read_text()
)
says_kept = lambda file, values: "kept" in values
of_best = lambda path, _: path.name == "best"
MOMENTS = {
    "before the end": (loop.states, "keep_best", 1, lambda *_: True),
    "in the middle of the run": (files, "write_checkpoint", 3, lambda f, *_: ".best" in str(f)),
    "before the run is there": (experiment, "make", 1, of_best),
    "before sweep.json says it": (files, "write_json", 1, says_kept),
    "before the first state goes": (Path, "unlink", 1, is_state),
    "after some states": (Path, "unlink", 3, is_state),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_kill_while_states_go_loses_nothing(moment, lean, tmp_path, monkeypatch):
    path = tmp_path / "x"
    with monkeypatch.context() as patch:
        dying(patch, *MOMENTS[moment])
        patch.setattr(experiment.shutil, "rmtree", lambda *_, **__: None)  # kill -9 runs nothing
        with pytest.raises(Crash):
            sweep(path)
    there = experiment.open(path)
    assert is_over(there), "nothing looks broken"
    runs = there.run_dirs()
    assert there.kept or all(run.points("state") == [3, 4] for run in runs)
    for run in runs:
        assert run.points("policy") == [0, 1, 2, 3, 4]
    found = launch.load(path, module=toy)
    assert_same(found.state, launch.load(lean.sweep_dir, module=toy).state)
    seen = []
    again = launch.resume(path, module=toy, hooks=[seen.append])
    assert not seen and [one.setting for one in again.ranked] == [s.setting for s in lean.ranked]
    assert others(path) == others(lean.sweep_dir) and states(path) == states(lean.sweep_dir)
    assert not list(path.glob(".best*")), "what a killed process left is gone"


def test_what_stops_the_removal_keeps_all_states(tmp_path, monkeypatch, capsys):
    grid = {"learning_rate": [0.1, 0.2]}
    (tmp_path / "x").mkdir()
    with monkeypatch.context() as patch:
        dying(patch, loop.states, "keep_best", 1)
        with pytest.raises(Crash):
            sweep(tmp_path / "x", grid)
    path = tmp_path / "x"
    there = states(path)
    (path / "best").mkdir()
    (path / "best" / "config.json").write_text('"mine"')
    launch.resume(path, module=toy)
    assert "whole states stay: " in (err := capsys.readouterr().err) and "best exists" in err
    assert states(path) == there and not experiment.open(path).kept
    shutil.rmtree(path / "best")
    for file in (path / "chunk_000" / "checkpoints").glob("*.state"):
        data = file.read_bytes()
        file.write_bytes(data[:-3])
    launch.resume(path, module=toy)
    assert "is damaged" in capsys.readouterr().err
    assert states(path) == there and not list(path.glob("*best*/"))
    for file in (path / "chunk_000" / "checkpoints").glob("*.state"):
        file.write_bytes(data)
    with hosts.locked(path / "chunk_000"):
        launch.resume(path, module=toy)
    assert "chunk_000 is being trained by" in capsys.readouterr().err
    assert {"chunk_000/checkpoints/000004.state"} < states(path)
    launch.resume(path, module=toy)
    assert states(path) == {"best/checkpoints/000004.state"}


# --- what needs a state that is gone -------------------------------------------------------------


def test_what_needs_a_state_that_is_gone_names_the_flag(lean, tmp_path):
    path, chunk = lean.sweep_dir, lean.sweep_dir / "chunk_000"
    last = lean.ranked[-1].trials[0].number
    begins = {"init_from": path, "init_optimizer": True, "save": False}
    asked = {
        "cannot be resumed, it has no .state file": lambda: launch.resume(chunk, module=toy),
        "cannot be resumed, it": lambda: launch.resume(chunk, module=toy, total_timesteps=80),
        "has no whole state of point 3": lambda: launch.resume(chunk, module=toy, point=3),
        "init_optimizer=True": lambda: launch.run(toy, CONFIG, init_trial=last, **begins),
        "for its runs, and best alone": lambda: launch.resume(path, module=toy, total_timesteps=80),
    }
    before = states(path), others(path)
    for message, ask in asked.items():
        with pytest.raises(UserError, match=message) as caught:
            ask()
        assert "--sweep-states all" in str(caught.value) and "best" in str(caught.value), message
    assert (states(path), others(path)) == before
    copy = shutil.copytree(chunk, tmp_path / "copy")
    with pytest.raises(UserError, match=r"has no .state file .*trains anew$"):
        launch.resume(copy, module=toy)


def test_without_states_a_lost_policy_is_named_and_the_others_stay(lean, tmp_path):
    path = shutil.copytree(lean.sweep_dir, tmp_path / "x")
    (path / "chunk_001" / "checkpoints" / "000004.policy").unlink()
    with pytest.raises(UserError, match=r"chunk_001 cannot be resumed.*--sweep-states all"):
        launch.resume(path, module=toy)
    for number in (0, 11):
        assert launch.load(path, trial=number, module=toy).point == 4


def test_the_best_setting_still_gives_its_whole_state(lean, everything):
    """--init-optimizer reads another file, and the same numbers."""
    found = [
        launch.run(toy, CONFIG, num_seeds=2, init_from=s.sweep_dir, save=False, init_optimizer=True)
        for s in (lean, everything)
    ]
    assert_same(found[0].state, found[1].state)


# --- sweeps of earlier versions, and changes of mind ---------------------------------------------


def test_a_sweep_of_an_earlier_version_keeps_its_states(everything, tmp_path):
    path = shutil.copytree(everything.sweep_dir, tmp_path / "x")
    said = json.loads((path / "sweep.json").read_text())
    del said["options"]["sweep_states"]
    (path / "sweep.json").write_text(json.dumps(said))
    there = states(path)
    launch.resume(path, module=toy)
    cli.main(toy, ["--resume", str(path), "--quiet"])
    sweep(path, resume_if_exists=True, keep_states=True)
    sweep(path, resume_if_exists=True)
    assert states(path) == there
    assert "sweep_states" not in (KEPT / "ppo-sweep" / "sweep.json").read_text()


def test_a_resume_may_ask_for_the_other(everything, tmp_path):
    path = shutil.copytree(everything.sweep_dir, tmp_path / "x")
    sweep(path, resume_if_exists=True)
    assert states(path) == states(everything.sweep_dir), "a command with the default removes none"
    cli.main(toy, ["--resume", str(path), "--quiet", "--sweep-states", "best"])
    assert states(path) == {"best/checkpoints/000004.state"}

    def stop(point):
        raise launch.Stop

    sweep(tmp_path / "y", hooks=[stop])
    cli.main(toy, ["--resume", str(tmp_path / "y"), "--quiet", "--sweep-states", "all"])
    assert states(tmp_path / "y") == states(everything.sweep_dir)


def test_a_chunk_that_was_trained_longer_keeps_its_states(everything, tmp_path):
    path = shutil.copytree(everything.sweep_dir, tmp_path / "x")
    launch.resume(path / "chunk_001", module=toy, total_timesteps=60)
    launch.resume(path, module=toy, sweep_states="best")
    of_it = {f"chunk_001/checkpoints/{point:06d}.state" for point in (5, 6)}
    assert of_it < states(path) and len(states(path)) == 3
    assert launch.resume(path / "chunk_001", module=toy).metrics["timestep"].max() == 60


def test_the_flag_is_one_of_two():
    with pytest.raises(UserError, match="sweep_states='none': choose one of best, all"):
        launch.run(toy, CONFIG, sweep_states="none")
