"""The directory of a run: whole files, damaged files, best points, configurations as text."""

import csv
import errno
import itertools
import json
import math
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import struct

import envs
from algorithms import launch, ppo
from algorithms.launch import cli
from algorithms.launch.engine import devices, experiment, files, loading, metrics, record, versions
from algorithms.launch.engine import settings as configurations
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.metrics import PACE_NAMES
from algorithms.launch.engine.run_dir import RunDir
from algorithms.launch.tools import compare
from tests import probe as tasks
from tests.algorithms.launch import toy

pytestmark = pytest.mark.usefixtures("quick_curves", "shared_programs")
CONFIG = toy.Config(total_timesteps=200, num_evals=4)


@pytest.fixture(scope="module")
def run_dir(quick_curves, shared_programs, tmp_path_factory):
    """A finished run of three trials with seeds 5 to 7."""
    root = tmp_path_factory.mktemp("runs")
    return launch.run(toy, CONFIG, seed=5, num_seeds=3, root=root).run_dir


@pytest.fixture
def broken(run_dir, tmp_path):
    """A copy of it to break."""
    copy = tmp_path / "run"
    (copy / "checkpoints").mkdir(parents=True)
    for file in [f for f in run_dir.rglob("*") if f.is_file()]:
        (copy / file.relative_to(run_dir)).write_bytes(file.read_bytes())
    return copy


def same(a, b) -> bool:
    """Two pytrees, bit for bit."""
    equal = lambda x, y: np.array_equal(devices.plain(x), devices.plain(y), equal_nan=True)
    return jax.tree.structure(a) == jax.tree.structure(b) and jax.tree.all(
        jax.tree.map(equal, a, b)
    )


# --- what a run leaves -----------------------------------------------------------------------


def test_directory_has_a_telling_name_and_all_files(run_dir):
    assert run_dir.name.startswith("CartPole-v1__toy__5__20")
    assert {f.name for f in run_dir.iterdir()} == {
        "config.json",
        "versions.json",
        "metrics.csv",
        "curve.png",
        "checkpoints",
        ".lock",
    }
    states = {"000003.state", "000004.state"}
    policies = {f"{point:06d}.policy" for point in range(5)}
    assert {f.name for f in (run_dir / "checkpoints").iterdir()} == states | policies


def test_metrics_csv_has_a_row_per_seed_and_point(run_dir):
    lines = (run_dir / "metrics.csv").read_text().splitlines()
    assert lines[0] == (
        "seed,point,timestep,episode_return,eval_return,loss,seconds,steps_per_second"
    )
    rows = [line.split(",") for line in lines[1:]]
    assert [(int(r[0]), int(r[1])) for r in rows] == [(s, p) for p in range(5) for s in (5, 6, 7)]
    assert [int(r[2]) for r in rows[::3]] == [0, 50, 100, 150, 200]
    metrics = launch.load(run_dir, module=toy).metrics
    written = np.array([float(r[3]) for r in rows], np.float32).reshape(5, 3).T
    np.testing.assert_array_equal(written, metrics["episode_return"])
    written = np.array([float(r[4]) for r in rows], np.float32).reshape(5, 3).T
    np.testing.assert_array_equal(written, metrics["eval_return"].mean(-1))


def test_seconds_in_metrics_csv_go_on_after_a_break(tmp_path):
    def stop(point):
        if point.index == 2:
            raise launch.Stop

    launch.run(toy, CONFIG, num_seeds=2, run_dir=tmp_path / "run", hooks=[stop])
    launch.resume(tmp_path / "run", module=toy)
    with open(tmp_path / "run" / "metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["seed"] == "1"]
    seconds = [float(row["seconds"]) for row in rows]
    assert all(0 <= b - a < 60 for a, b in itertools.pairwise(seconds)) and seconds[-1] > 0
    assert seconds[2] <= seconds[3], "it goes on where it was"
    speeds = [float(row["steps_per_second"]) for row in rows]
    assert speeds[0] == 0.0 and all(speed > 0 for speed in speeds[1:])


def test_players_of_a_game_have_columns_of_their_own():
    row = {"eval_return": np.arange(12.0).reshape(2, 3, 2), "episode_return": np.ones((2, 2))}
    table = metrics.columns(row)
    assert list(table) == ["eval_return_0", "eval_return_1", "episode_return_0", "episode_return_1"]
    np.testing.assert_array_equal(table["eval_return_1"], [3.0, 9.0])


def test_an_earlier_name_in_versions_json_is_no_change(broken):
    """Or each older run would be told that its last digits may differ."""
    run = RunDir.open(broken)
    (session,) = json.loads((broken / "versions.json").read_text())
    del session["from_point"]
    earlier = dict(session)
    earlier["agents_per_device"] = earlier.pop("trials_per_device")
    (broken / "versions.json").write_text(json.dumps([{"from_point": 0, **earlier}]))
    earlier.pop("files")
    assert run.write_versions(session, 2) == ([], [])
    more = session["trials_per_device"] + 1
    changes = run.write_versions(session | {"trials_per_device": more}, 3)
    assert changes == ([f"trials_per_device {more - 1} -> {more}"], [])


def test_a_file_that_was_changed_is_told_of_when_a_run_goes_on(tmp_path, monkeypatch, capsys):
    def stop(point):
        if point.index == 2:
            raise launch.Stop

    launch.run(toy, CONFIG, run_dir=tmp_path / "run", hooks=[stop])
    (session,) = json.loads((tmp_path / "run" / "versions.json").read_text())
    assert list(session["files"]) == ["toy.py"]
    monkeypatch.setattr(versions.Path, "read_bytes", lambda file: b"another text")
    launch.resume(tmp_path / "run", module=toy)
    found = "toy.py changed since this run trained last, so from point 2 on the curve is that of"
    assert capsys.readouterr().err.count(found) == 1


def test_a_file_that_was_changed_is_told_of_when_a_run_is_read(tmp_path, capsys):
    """Each session has digests of its own; those of an early version has none."""
    path = launch.run(toy, CONFIG, run_dir=tmp_path / "run").run_dir
    text = (path / "versions.json").read_text()
    (session,) = json.loads(text)
    other = session | {"files": {"toy.py": "0" * 16, "gone.py": "0" * 16}}

    def told(*sessions, read=lambda: launch.load(path, 2, module=toy)):
        loading._warn_once.cache_clear()
        (path / "versions.json").write_text(json.dumps(sessions))
        read()
        return capsys.readouterr().err.count(
            f"toy.py has changed since {path} was trained (versions.json): what follows is of the "
            "new one"
        )

    begin = lambda: launch.run(toy, CONFIG, save=False, init_from=path)
    assert told(other) == told(other, read=begin) == 1
    assert told(session) == told({k: v for k, v in session.items() if k != "files"}) == told() == 0
    assert told(other, session | {"from_point": 1}) == told(session, other | {"from_point": 2}) == 0
    assert told(session, other | {"from_point": 1}) == 1
    twice = lambda: [launch.load(path, point, module=toy) for point in (1, 2)]
    assert told(other, read=twice) == 1


def test_another_version_of_the_kit_is_no_edited_file(monkeypatch):
    """Only two texts of one commit are."""
    monkeypatch.setattr(versions, "_git", lambda folder: {"git_commit": "this"})
    of = lambda **more: versions.edited({"files": {"ppo.py": "0" * 16}, **more}, ppo, None, None)
    assert of(git_commit="this").keys() == {"ppo.py"}
    assert not of(git_commit="another") and not of(git_commit=None)
    monkeypatch.setattr(versions, "_git", lambda folder: {"git_commit": None})
    assert not of(git_commit=None)


@struct.dataclass
class PaidParams(tasks.ProbeParams):
    curve: Callable = struct.field(pytree_node=False, default=lambda x: x)  # it has an address


class Paid(tasks.Probe):
    """What it pays is in no file."""

    default_params = PaidParams()

    def __init__(self, pay, noise=None):
        super().__init__()
        pays = np.full(2000, pay, np.float32)  # more than a program's text shows
        self.pay = jax.jit(lambda x: x * jax.numpy.take(pays, x.astype(int)))
        self.noise = noise

    def step_env(self, key, state, action, params):
        seen, state, reward, *rest = super().step_env(key, state, action, params)
        reward = self.pay(reward) + (np.random.random() if self.noise else 0)
        return seen, state, params.curve(reward), *rest


DIGEST = """
from algorithms.launch.engine import versions
from tests.algorithms.launch import test_run_dir, toy
print(versions._digests(toy, None, test_run_dir.Paid(2.0))["Probe"])
"""


def test_an_object_is_known_by_what_it_does():
    """In any process, in the kit's wrappers too; not where this is something else each time."""
    of = lambda env, given=None: versions._digests(toy, env, env if given is None else given)
    one = of(Paid(2.0))
    assert one.keys() == {"toy.py", "Probe"} and one == of(Paid(2.0))
    assert one == of(envs.make(Paid(2.0), max_steps=5)[0]) != of(Paid(3.0))
    with jax.enable_x64(True):
        assert one == of(Paid(2.0))
    (dear := Paid(2.0)).default_params = PaidParams(reward=3.0)
    (never := Paid(2.0)).is_truncated = lambda state, params: jax.numpy.array(False)
    assert one != of(dear) and one != of(never)
    assert of(Paid(2.0, noise=True)).keys() == {"toy.py", "test_run_dir.py"}
    assert of(Paid(2.0), "test_run_dir:Paid").keys() == {"toy.py", "test_run_dir.py"}
    more = {"PYTHONHASHSEED": "7", "JAX_PLATFORMS": "cpu"}
    said = subprocess.check_output([sys.executable, "-c", DIGEST], env=os.environ | more, text=True)
    assert said.split()[-1] == one["Probe"]


def test_another_object_is_told_of(tmp_path, capsys):
    """Where a run is read, goes on or is compared; not with another version of jax."""
    runs = [tmp_path / name for name in "abc"]
    for seed, (path, pay) in enumerate(zip(runs, (2.0, 3.0, 2.0))):
        launch.run(toy, CONFIG.replace(env=Paid(pay)), seed=seed, run_dir=path)
    (panel,) = compare.compare(runs).panels.values()
    assert sorted(len(curve.trials) for curve in panel) == [1, 2]
    assert all("Probe=" in curve.label for curve in panel)
    (panel,) = compare.compare([runs[0], runs[2]]).panels.values()
    assert [curve.label for curve in panel] == ["toy"]
    read = f"Probe has changed since {runs[0]} was trained (versions.json)"
    on = "Probe changed since this run trained last, so from point 4 on"

    def told(pay):
        loading._warn_once.cache_clear()
        launch.load(runs[0], module=toy, env=Paid(pay))
        launch.resume(runs[0], module=toy, env=Paid(pay), total_timesteps=CONFIG.total_timesteps)
        more = shutil.copytree(runs[0], tmp_path / f"copy {pay}", dirs_exist_ok=True)
        launch.resume(more, module=toy, env=Paid(pay), total_timesteps=300)
        text = capsys.readouterr().err
        return text.count(read), text.count(on)

    assert told(2.0) == (0, 0) and told(3.0) == (1, 1)
    (session,) = json.loads((runs[0] / "versions.json").read_text())
    (runs[0] / "versions.json").write_text(json.dumps([session | {"jax": "0.0.1"}]))
    shutil.rmtree(tmp_path / "copy 3.0")
    assert told(3.0) == (0, 0)


def test_a_file_that_git_does_not_have_is_no_clean_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "_git", versions._git.__wrapped__)
    git = lambda *words: subprocess.run(
        ["git", "-c", "user.name=x", "-c", "user.email=x", "-C", tmp_path, *words], check=True
    )
    mine, other = tmp_path / "mine.py", tmp_path / "other.py"
    for file in (mine, other):
        file.write_text("x = 1\n")
    git("init", "-q")
    git("add", "other.py")
    git("commit", "-q", "-m", "first")
    module = SimpleNamespace(__file__=str(other))
    found = versions.versions(module, devices.arrange(1))
    assert found["git_dirty"] is False and found["files"].keys() == {"other.py"}
    module.__file__ = str(mine)
    assert versions.versions(module, devices.arrange(1))["git_dirty"] is True
    git("add", "mine.py")
    git("commit", "-q", "-m", "second")
    assert versions.versions(module, devices.arrange(1))["git_dirty"] is False
    mine.write_text("x = 2\n")
    changed = versions.versions(module, devices.arrange(1))
    assert (
        changed["git_dirty"] is True and changed["files"]["mine.py"] != found["files"]["other.py"]
    )


def test_versions_have_the_file_of_a_users_own_environment():
    env, _ = envs.make(tasks.Probe(), max_steps=5)
    for world, names in ((env, {"toy.py", "probe.py"}), (envs.make("CartPole-v1")[0], {"toy.py"})):
        assert versions.versions(toy, devices.arrange(1), world)["files"].keys() == names


def test_versions_say_nothing_about_the_machine_or_its_user(run_dir):
    text = (run_dir / "versions.json").read_text()
    (session,) = json.loads(text)
    assert session["jax"] == jax.__version__ and session["from_point"] == 0
    home, host = str(Path.home()), os.uname().nodename
    assert home not in text and host not in text and str(Path.cwd()) not in text


def test_config_survives_strict_json(run_dir):
    settings = (("limit", math.inf), ("max_steps", 200))
    config = toy.Config(learning_rate=1e-3, env_settings=settings, hidden_sizes=(64, 32))
    text = json.dumps(configurations.config_to_json(config), allow_nan=False)
    assert '"target_kl": "inf"' in text
    back = configurations.config_from_json(toy.Config, json.loads(text), Path("config.json"))
    assert back == config and hash(back.hidden_sizes) == hash(config.hidden_sizes)
    saved = json.loads((run_dir / "config.json").read_text())
    assert saved["algorithm"] == "toy" and saved["seeds"] == [5, 6, 7] and saved["floats"] == {}


def test_runs_are_never_overwritten(tmp_path, run_dir):
    described = json.loads((run_dir / "config.json").read_text())
    described["config"]["env"] = "pgx/go 9x9"
    made = [experiment.create(described, [described], tmp_path)[0] for _ in range(3)]
    assert len(set(made)) == 3 and all(path.parent == tmp_path for path in made)
    assert made[0].name.startswith("pgx-go-9x9__toy__5__")
    with pytest.raises(UserError, match="never overwritten"):
        experiment.create(described, [described], tmp_path, made[0])


# --- whole files -----------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    file = tmp_path / "file"
    files.write_whole(file, b"old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        files.write_whole(file, b"new")
    assert file.read_bytes() == b"old" and list(tmp_path.iterdir()) == [file]


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("file", ["000004.state", "000002.policy"])
@pytest.mark.parametrize("damage", ["flip", "size", "cut", "empty", "foreign"])
def test_a_damaged_checkpoint_is_named(broken, file, damage):
    path = broken / "checkpoints" / file
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) * 3 // 4] ^= 1
    if damage == "size":
        data[len(files.MAGIC) + 6] ^= 1
    data = {"cut": data[:-5], "empty": b"", "foreign": b"PK" + data}.get(damage, data)
    path.write_bytes(data)
    point = int(file[:6])
    with pytest.raises(UserError, match=f"{file} is (damaged|not a checkpoint)"):
        launch.load(broken, point, module=toy)


def test_a_checkpoint_that_does_not_fit_is_refused(broken):
    described = json.loads((broken / "config.json").read_text())
    described["config"]["hidden_sizes"] = [3, 3]
    del described["checksum"]
    (broken / "config.json").write_text(json.dumps(described))
    with pytest.raises(UserError, match=r"000004.state does not fit.*weights.*\(3, 3, 2\)"):
        launch.load(broken, module=toy)


def test_a_checkpoint_of_another_algorithm_is_refused(broken):
    described = json.loads((broken / "config.json").read_text())
    del described["checksum"]
    (broken / "config.json").write_text(json.dumps(described | {"algorithm": "other"}))
    with pytest.raises(UserError, match="is a checkpoint of toy, not of other"):
        launch.load(broken, module=toy)
    with pytest.raises(UserError, match="other is not one of `algorithms`"):
        launch.load(broken)
    with pytest.raises(UserError, match="a run of other, not of toy"):
        launch.resume(broken, module=toy)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"config\.json does not exist"):
        launch.load(tmp_path, module=toy)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="not readable as JSON"):
        launch.load(tmp_path, module=toy)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="has no algorithm"):
        launch.load(tmp_path, module=toy)


CHANGES = [
    (lambda d: d["config"].update(gamma=0.98), r"is damaged: .* set \"checksum\" to null"),
    (lambda d: d.update(seeds=[5, 6, 8]), "is damaged"),
    (lambda d: d.pop("version"), "has no version, this kit reads version 1"),
    (lambda d: d.update(version=2), "has version 2, this kit reads version 1"),
    (
        lambda d: d.pop("checksum") and d["config"].update(gama=1.0),
        "config.json: unknown setting 'gama'; did you mean gamma",
    ),
]


@pytest.mark.parametrize("change, message", CHANGES)
def test_a_config_that_is_not_as_it_was_is_explained(broken, change, message):
    file = broken / "config.json"
    described = json.loads(file.read_text())
    change(described)
    file.write_text(json.dumps(described))
    for read in (launch.load, launch.resume):
        with pytest.raises(UserError, match=message):
            read(broken, module=toy)


def test_a_config_that_was_changed_on_purpose_is_read(broken):
    change_config(broken, lambda config: config.update(gamma=0.9))
    assert launch.load(broken, module=toy).config.gamma == 0.9


@pytest.mark.parametrize(
    "name, value",
    [
        ("anneal_lr", "false"),
        ("learning_rate", "3e-1"),
        ("gamma", True),
        ("num_envs", 5.5),
        ("hidden_sizes", 3),
        ("env_settings", None),
        ("env", None),
    ],
)
def test_a_config_with_a_value_of_another_kind_is_refused(broken, name, value):
    change_config(broken, lambda config: config.update({name: value}))
    with pytest.raises(UserError, match=f"config.json: {name} is .*: give one like "):
        launch.load(broken, module=toy)


def test_a_flag_may_be_a_number_as_python_takes_it(broken):
    """And a whole number a float, 1e6."""
    change_config(broken, lambda config: config.update(anneal_lr=1, num_envs=5.0))
    config = launch.load(broken, module=toy).config
    assert config.anneal_lr and type(config.num_envs) is int


def test_a_run_whose_length_was_changed_by_hand_is_not_gone_on_with(broken):
    change_config(broken, lambda config: config.update(total_timesteps=400))
    with pytest.raises(
        UserError, match="has 200 steps at point 4, which does not fit its config.json"
    ):
        launch.resume(broken, module=toy)


def change_config(run_dir, change):
    file = run_dir / "config.json"
    described = json.loads(file.read_text())
    del described["checksum"]
    change(described["config"])
    file.write_text(json.dumps(described))


@pytest.mark.parametrize("last", [False, True])
def test_a_checksum_may_be_taken_out(broken, last):
    """Its line alone; where it is the last one, as in older runs, what is left over is named."""
    file = broken / "config.json"
    described = json.loads(file.read_text())
    if last:
        described["checksum"] = described.pop("checksum")
        file.write_text(json.dumps(described, indent=2))
    lines = file.read_text().splitlines()
    text = "\n".join(line for line in lines if '"checksum"' not in line)
    file.write_text(text.replace('"gamma": 0.99', '"gamma": 0.5'))
    if last:
        with pytest.raises(UserError, match="remove the comma before the last brace"):
            launch.load(broken, module=toy)
    else:
        assert launch.load(broken, module=toy).config.gamma == 0.5


def test_fields_that_a_run_is_older_than_are_as_by_default(broken, capsys):
    """When it is loaded, resumed and asked for again."""
    change_config(broken, lambda config: [config.pop(name) for name in ("gamma", "target_kl")])
    assert launch.load(broken, module=toy).config == CONFIG
    again = dict(seed=5, num_seeds=3, run_dir=broken, resume_if_exists=True)
    with pytest.raises(UserError, match=r"settings, gamma 0.99 \(asked for: 0.5\): give another"):
        launch.run(toy, CONFIG.replace(gamma=0.5), **again)
    for result in (launch.run(toy, CONFIG, **again), launch.resume(broken, module=toy)):
        assert list(result.metrics["timestep"][0]) == [0, 50, 100, 150, 200]
    assert not capsys.readouterr().err


def test_copies_of_checkpoints_by_something_else_are_none_of_the_run(broken):
    """As a file manager or a sync tool makes them."""
    copies = [broken / "checkpoints" / f"000004{more}" for more in (" (1).policy", "~.state")]
    for copy in copies:
        copy.write_bytes(b"x")
    run_dir = RunDir.open(broken)
    assert run_dir.points("policy") == [0, 1, 2, 3, 4] and run_dir.points("state") == [3, 4]
    run_dir.rewind(3, run_dir.history(3))
    assert launch.resume(broken, module=toy).metrics["timestep"].shape == (3, 5)
    assert all(copy.exists() for copy in copies)


def test_rewinding_drops_all_past_a_point_and_parts_of_files(broken):
    rows = (broken / "metrics.csv").read_text().splitlines()
    part = broken / "checkpoints" / ".000009.state.part"
    part.write_bytes(b"half")
    run_dir = RunDir.open(broken)
    run_dir.rewind(3, run_dir.history(3))
    assert run_dir.points("policy") == [0, 1, 2, 3] and run_dir.points("state") == [3]
    assert (broken / "metrics.csv").read_text().splitlines() == rows[: 1 + 3 * 4]
    assert not part.exists()


# --- load ------------------------------------------------------------------------------------


def test_load_gives_one_trial_or_all(run_dir):
    everyone = launch.load(run_dir, trial=None, module=toy)
    assert everyone.trials.seeds == [5, 6, 7] and everyone.config == CONFIG
    for trial in range(3):
        loaded = launch.load(run_dir, trial=trial, module=toy)
        assert same(loaded.state, loading.one_trial(everyone.state, trial))
    state, _ = jax.jit(toy.make_train(CONFIG))(jax.random.key(7))
    np.testing.assert_allclose(
        loaded.state.policy["weights"], state.policy["weights"], rtol=1e-4, atol=1e-6
    )
    action, memory = loaded.policy(loaded.state, np.ones(4, np.float32))
    assert action.shape == () and memory is None
    with pytest.raises(UserError, match="trials 0 to 2"):
        launch.load(run_dir, trial=3, module=toy)


def test_a_run_with_an_environment_object(tmp_path):
    env, _ = envs.make("CartPole-v1", max_steps=7)
    path = launch.run(toy, CONFIG.replace(env=env), run_dir=tmp_path / "run").run_dir
    loaded = launch.load(path, module=toy, env=env)
    assert loaded.config.env is env and loaded.point == 4
    assert launch.resume(path, module=toy, env=env).objective
    words = ["--config", str(path / "config.json"), "--quiet", "--run-dir", str(tmp_path / "new")]
    cli.main(toy, [*words, "--env", "CartPole-v1"])
    assert launch.load(tmp_path / "new", module=toy).config.env == "CartPole-v1"
    for read in (launch.load, launch.resume):  # not the registered one of that name
        with pytest.raises(UserError, match=r"environment was an object \(CartPole-v1\).*env=..."):
            read(path, module=toy)


def test_load_of_an_older_point_has_policy_and_history(run_dir):
    loaded = launch.load(run_dir, 2, module=toy)
    assert vars(loaded.state).keys() == {"policy"} and loaded.point == 2
    observation = np.ones(4, np.float32)
    action, _ = jax.jit(loaded.policy)(loaded.state, observation)
    assert action == loaded.policy(loaded.state, observation)[0]
    assert loaded.points == [0, 1, 2] and loaded.metrics["eval_return"].shape == (3, 3, 4)
    assert launch.load(run_dir, 3, module=toy).state.update == 30  # still there whole
    with pytest.raises(UserError, match="no point 9; it has 0 to 4"):
        launch.load(run_dir, 9, module=toy)


def test_trials_answer_to_their_earlier_name(run_dir):
    earlier = launch.load(run_dir, agent=2, module=toy)
    assert earlier.agents.seeds == earlier.trials.seeds == [7]
    assert launch.load(run_dir, agent=None, module=toy).trials.seeds == [5, 6, 7]


def test_best_is_per_trial(run_dir):
    history = launch.load(run_dir, module=toy).metrics
    best = history["eval_return"].mean(-1).argmax(1)
    assert len(set(best)) > 1, "the test needs trials whose best points differ"
    everyone = launch.load(run_dir, "best", trial=None, module=toy)
    for trial in range(3):
        expected = launch.load(run_dir, int(best[trial]), trial=trial, module=toy)
        loaded = launch.load(run_dir, "best", trial=trial, module=toy)
        assert loaded.point == best[trial] == everyone.point[trial]
        assert same(loaded.state.policy, expected.state.policy)
        assert same(loading.one_trial(everyone.state.policy, trial), expected.state.policy)


def test_best_is_the_least_exploitable_where_that_was_measured():
    """Returns of a policy against itself tell nothing. Before training it was not measured."""
    finite = lambda point: np.ones(2, bool)
    saved = SimpleNamespace(path="run", points=lambda kind: [0, 1, 2, 3], is_finite=finite)
    measured = np.array([[np.nan, 0.3, 0.1, 0.2], [np.nan, 0.1, 0.3, 0.2]])
    returns = np.array([[9.0, 5.0, 1.0, 3.0]] * 2)
    history = {
        p: {"eval_return": returns[:, p : p + 1], "eval_exploitability": measured[:, p]}
        for p in range(4)
    }
    assert [loading.choose_point(saved, "best", history, i) for i in range(2)] == [2, 1]
    alone = {p: {"eval_return": x["eval_return"]} for p, x in history.items()}
    assert loading.choose_point(saved, "best", alone, 0) == 0


def test_best_by_a_function_of_the_history(run_dir):
    def lowest_loss(history):
        assert {k: v.shape for k, v in history.items()} == dict.fromkeys(history, (5,))
        return -history["loss"]  # NaN before training: never best

    loss = launch.load(run_dir, module=toy).metrics["loss"]
    for trial in range(3):
        loaded = launch.load(run_dir, lowest_loss, trial=trial, module=toy)
        assert loaded.point == np.nanargmin(loss[trial])


def test_the_policy_alone_needs_no_state(broken):
    whole = launch.load(broken, module=toy)
    (broken / "checkpoints" / "000004.state").write_bytes(b"")
    loaded = launch.load(broken, module=toy, whole=False)
    assert vars(loaded.state).keys() == {"policy"} and loaded.point == 4
    assert same(loaded.state.policy, whole.state.policy)


def test_a_damaged_policy_takes_its_point_out_of_the_curve(broken, capsys):
    (broken / "checkpoints" / "000002.policy").write_bytes(b"")
    loaded = launch.load(broken, module=toy)
    assert loaded.points == [0, 1, 3, 4] and loaded.metrics["loss"].shape == (3, 4)
    assert "000002.policy is not a checkpoint" in capsys.readouterr().err


def test_a_finished_run_whose_policies_are_all_damaged_is_refused(broken):
    """Its states are whole, but nothing says what it came to."""
    for file in (broken / "checkpoints").glob("*.policy"):
        file.write_bytes(b"")
    with pytest.raises(UserError, match="is finished, and its metrics cannot be read: all of its"):
        launch.resume(broken, module=toy)


# --- saving ----------------------------------------------------------------------------------


def test_a_state_is_saved_without_a_second_one_in_memory(tmp_path):
    """Shard by shard, as they come: no copy of an array is there before its turn."""
    alive, most = [], []

    class Layout:
        own = range(4)

        def pieces(self, x):
            for part in np.split(np.asarray(x), 2):
                alive.append(part.nbytes)
                most.append(sum(alive))
                yield part
                alive.pop()

    tree = {"a": jax.numpy.arange(80.0).reshape(4, 20), "b": jax.numpy.ones((4, 20), bool)}
    files.write_checkpoint(tmp_path / "x.state", {"algorithm": "toy"}, tree, Layout())
    assert max(most) == 160 and len(most) == 4
    like = jax.eval_shape(lambda t: jax.tree.map(lambda x: x[0], t), tree)
    read = lambda rows: files.read_checkpoint(tmp_path / "x.state", "toy", like, 4, rows)
    assert same(read(range(4)), jax.tree.map(np.asarray, tree))
    assert same(read(range(1, 3)), jax.tree.map(lambda x: np.asarray(x)[1:3], tree))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "uint32", "int8", "bool"])
def test_every_kind_of_number_comes_back(tmp_path, dtype):
    tree = {"x": jax.numpy.arange(6).reshape(2, 3).astype(dtype), "none": jax.numpy.zeros((2, 0))}
    files.write_checkpoint(tmp_path / "x.state", {"algorithm": "toy"}, tree, devices.arrange(2))
    like = jax.eval_shape(lambda t: jax.tree.map(lambda x: x[0], t), tree)
    back = files.read_checkpoint(tmp_path / "x.state", "toy", like, 2, range(2))
    assert same(back, jax.tree.map(np.asarray, tree)) and back["x"].dtype == tree["x"].dtype


def test_a_file_may_have_more_arrays_only_where_a_part_is_asked_for(tmp_path):
    tree = {"x": jax.numpy.ones((2, 3)), "y": jax.numpy.zeros((2, 1))}
    files.write_checkpoint(tmp_path / "x.state", {"algorithm": "toy"}, tree, devices.arrange(2))
    like = {"x": jax.ShapeDtypeStruct((3,), "float32")}
    given = (tmp_path / "x.state", "toy", like, 2, range(2))
    with pytest.raises(UserError, match=r"\['y'\] is left over"):
        files.read_checkpoint(*given)
    assert (files.read_checkpoint(*given, partly=True)["x"] == 1.0).all()


def test_a_policy_is_written_before_its_state_and_old_states_go_last(tmp_path, monkeypatch):
    """So a kill never leaves a state without its policy, or a run without a state."""
    done, write, unlink = [], files.write_checkpoint, Path.unlink
    monkeypatch.setattr(
        files, "write_checkpoint", lambda path, *rest: (write(path, *rest), done.append(path.name))
    )
    monkeypatch.setattr(
        Path, "unlink", lambda path, **more: (unlink(path, **more), done.append(f"-{path.name}"))
    )
    launch.run(toy, CONFIG, root=tmp_path)
    saved = [name for name in done if name.strip("-").endswith((".policy", ".state"))]
    expected = []
    for point in range(5):
        expected += [f"{point:06d}.policy", f"{point:06d}.state"]
        expected += [f"-{point - 2:06d}.state"] * (point >= 2)
    assert saved == expected


# --- a disk that fills up --------------------------------------------------------------------


def test_a_run_survives_a_full_disk(tmp_path, monkeypatch, capsys):
    """It warns once, and again when there is space."""
    fsync = os.fsync

    def fill_up(point):
        monkeypatch.setattr(os, "fsync", full_disk if point.index in (1, 2) else fsync)

    result = launch.run(toy, CONFIG, run_dir=tmp_path / "run", hooks=[fill_up])
    assert result.metrics["timestep"].shape == (1, 5)
    first, again, end = capsys.readouterr().err.splitlines()
    assert first.startswith("warning: point 2 was not saved, the last good one stays: OSError")
    lost = "checkpoints of points 2 to 3"
    assert again == f"warning: {lost} were not saved, those of point 4 were"
    assert end == f"warning: not saved: {lost}; point 4 is saved" and result.unsaved == lost
    run_dir = RunDir.open(tmp_path / "run")
    assert run_dir.points("policy") == [0, 1, 4] and run_dir.points("state") == [1, 4]
    assert same(launch.load(run_dir.path, module=toy).state, result.state)


def test_a_disk_that_stays_full_is_told_by_the_exit_code(tmp_path, monkeypatch, capsys):
    path, save = tmp_path / "run", RunDir.save
    full = lambda self, point, *rest: full_disk(point) if point > 1 else save(self, point, *rest)
    monkeypatch.setattr(RunDir, "save", full)
    words = ["--total-timesteps", "200", "--num-evals", "4", "--run-dir", str(path)]
    with pytest.raises(SystemExit) as stop:
        cli.main(toy, words)
    out, err = capsys.readouterr()
    assert stop.value.code == 4 and "done, not all of it saved: " in out
    assert err.count("warning") == 2 and "not saved: checkpoints of points 2 to 4" in err
    assert f"--resume {path} trains again what comes after point 1" in err
    monkeypatch.setattr(RunDir, "save", save)
    cli.main(toy, ["--resume", str(path)])
    assert RunDir.open(path).points("policy") == [0, 1, 2, 3, 4]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
def test_a_log_on_a_full_disk_does_not_end_a_run(tmp_path, monkeypatch):
    """Also its warnings go there. /dev/full is such a disk."""
    words = ["--total-timesteps", "200", "--num-evals", "4", "--run-dir", str(tmp_path / "run")]
    with open("/dev/full", "w") as out, open("/dev/full", "w") as err:  # flushed when closed
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        cli.main(toy, words)
    assert RunDir.open(tmp_path / "run").points("policy") == [0, 1, 2, 3, 4]


def test_a_disk_that_fills_up_leaves_no_half_rows(tmp_path):
    """By a limit of the size of files: the first half of the rows still fits."""
    described = {"algorithm": "toy", "seeds": [*range(40)], "floats": {}}
    run_dir, one = RunDir(tmp_path, described), np.ones(40)
    append = lambda point: run_dir.append_metrics(
        point, {"timestep": one}, dict.fromkeys(PACE_NAMES, one)
    )
    append(0)
    file = tmp_path / "metrics.csv"
    before, limits = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
    try:
        with pytest.raises(OSError):
            append(1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == before
    append(2)
    assert list(run_dir.table()) == [0, 2] and len(file.read_text().splitlines()) == 81


def test_where_nothing_can_be_written_is_said_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError, match=r"--out .*x.png: nothing can be written into "):
        files.new("out", tmp_path / "x.png", ".png")


def test_a_later_version_may_have_other_metrics(tmp_path):
    """A run that goes on with it keeps every number in the column of its name."""
    described = {"algorithm": "toy", "seeds": [3, 4], "floats": {}}
    run_dir, two = RunDir(tmp_path, described), np.array([1.0, 2.0])
    logged = dict.fromkeys(PACE_NAMES, 9 * two)
    before, after = {"timestep": 0 * two, "loss": two}, {"timestep": two, "average": 3 * two}
    run_dir.append_metrics(0, before, logged)
    run_dir.append_metrics(1, after, logged)
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines == [
        "seed,point,timestep,loss,average,seconds,steps_per_second",
        "3,0,0,1,nan,9,9",
        "4,0,0,2,nan,18,18",
        "3,1,1,nan,3,9,9",
        "4,1,2,nan,6,18,18",
    ]
    run_dir.mend_metrics(1, {0: before, 1: after})
    assert (tmp_path / "metrics.csv").read_text().splitlines() == lines
    # Older versions wrote the rate into the file, and had no such metric.
    rates = ("current_learning_rate", 1, 2, 3, 4)
    (tmp_path / "metrics.csv").write_text("".join(f"{x},{y}\n" for x, y in zip(lines, rates)))
    run_dir.mend_metrics(0, {0: before})
    run_dir.append_metrics(1, after | {"current_learning_rate": 5 * two}, logged)
    rates = ("current_learning_rate", 1, 2, 5, 10)
    lines = [f"{x},{y}" for x, y in zip(lines, rates)]
    assert (tmp_path / "metrics.csv").read_text().splitlines() == lines
    assert list(metrics.stack([before, after])) == ["timestep"]


def test_points_in_words():
    assert record.spans([3]) == "point 3"
    assert record.spans([0, 2, 3, 4, 8, 9]) == "points 0, 2 to 4, 8 to 9"


def test_all_states_are_kept_if_asked_for(tmp_path, capsys):
    run_dir = launch.run(toy, CONFIG, root=tmp_path, keep_states=True, quiet=False).run_dir
    assert RunDir.open(run_dir).points("state") == [0, 1, 2, 3, 4]
    size = (6 * 4 + 2 * 4 + 4) * 5
    assert f"all states are kept: {size} B" in capsys.readouterr().out
