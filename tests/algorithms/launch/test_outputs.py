"""Plots, trackers, GIFs and evaluation summaries: what lands on disk is read back and looked at."""

import itertools
import json
import re
import struct
import sys
import time
import types
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageSequence

import envs
from algorithms import launch
from algorithms.launch.engine import plots, progress, results
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.settings import Trials
from algorithms.launch.tools import evaluation, render, trackers
from envs import pictures
from tests.algorithms.launch import toy
from tests.probe import RecallState, Reporting

STRIP = 42  # pixels of text above every picture


@flax.struct.dataclass
class Config:
    env: Any = flax.struct.field(pytree_node=False, default="CartPole-v1")
    env_settings: tuple = flax.struct.field(pytree_node=False, default=())


def _make_policy(config, env=None, env_params=None):
    """Random but deterministic actions: the memory counts steps, the policy's state is a seed."""
    space = env.action_space(env_params)

    def policy(state, observation, memory=None, rng=None):
        memory = jnp.zeros((), jnp.int32) if memory is None else memory
        return space.sample(jax.random.fold_in(state.policy, memory)), memory + 1

    return policy


FAKE = types.ModuleType("fake")
FAKE.make_policy, FAKE.__file__ = _make_policy, "fake.py"
STATE = SimpleNamespace(policy=jax.random.key(3))


def frames_of(path: Path) -> np.ndarray:
    """(frames, height, width, 3)"""
    with Image.open(path) as gif:
        return np.stack([np.asarray(f.convert("RGB")) for f in ImageSequence.Iterator(gif)])


# --- curve -----------------------------------------------------------------------------------


BAND = "#BFDBEC"  # a quarter of the first colour, on white


def _metrics(trials: int, points: int = 11, players: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    steps = np.broadcast_to(np.linspace(0, 1e5, points), (trials, points))
    returns = steps / 1e3 * rng.uniform(0.5, 1.5, (trials, 1)) + rng.normal(size=(trials, points))
    returns[:, 0] = np.nan  # no episode has ended yet
    evals = returns[..., None] + rng.normal(size=(trials, points, 5))
    evals[:, 0] = 0.0
    if players:
        returns, evals = (np.stack([x, -x], axis=-1) for x in (returns, evals))
    return {"timestep": steps, "episode_return": returns, "eval_return": evals}


def _ink(path: Path, colour: str) -> int:
    """How many pixels of a picture have this colour, within what smooth edges do to it."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])
    pixels = np.asarray(Image.open(path).convert("RGB"), int)
    return int((np.abs(pixels - rgb).max(axis=-1) < 12).sum())


def test_curve_draws_each_seed_the_mean_and_a_band(tmp_path):
    path = tmp_path / "curve.png"
    plots.curve(_metrics(1), Trials([0]), "one", path)
    one = np.asarray(Image.open(path).convert("RGB"), int)
    assert one.shape[1] > 1000 and _ink(path, plots.COLOURS[0]) > 1000 and _ink(path, BAND) < 1000
    plots.curve(_metrics(4), Trials([0, 1, 2, 3]), "four", path)  # over the first, in one step
    four = np.asarray(Image.open(path).convert("RGB"), int)
    assert _ink(path, BAND) > 3000
    blue = lambda picture: (picture[..., 2] - picture[..., 0] > 60).sum()  # the lines
    assert blue(four) > blue(one) + 500
    assert [p.name for p in tmp_path.iterdir()] == ["curve.png"]


@pytest.mark.parametrize(
    "trials, label",
    [
        (Trials([3]), "seed 3"),
        (Trials([0, 1, 2]), "mean of 3 seeds, ±1 standard error"),
        (
            Trials([0, 1] * 3, {"gamma": np.array([0.9, 0.9, 0.8, 0.8, 0.7, 0.7])}),
            "mean of 3 settings x 2 seeds, ±1 standard error",
        ),
        (Trials([5] * 2, {"gamma": np.array([0.9, 0.8])}), "mean of 2 settings x 1 seed, ±1"),
    ],
)
def test_curve_says_whose_mean_it_is(tmp_path, monkeypatch, trials, label):
    figures = []
    monkeypatch.setattr(plots, "save", lambda figure, path: figures.append(figure))
    plots.curve(_metrics(trials.count), trials, "title", tmp_path / "curve.png")
    (text, *_) = figures[0].axes[0].get_legend().get_texts()
    assert text.get_text().startswith(label)


def test_curve_takes_games_no_evaluation_one_point_and_nothing_yet(tmp_path):
    path = tmp_path / "curve.png"
    plots.curve(_metrics(3, players=2), Trials([0, 1, 2]), "game", path)
    assert _ink(path, plots.COLOURS[0]) > 1000 and _ink(path, plots.COLOURS[1]) > 1000
    without = {k: v for k, v in _metrics(2).items() if k != "eval_return"}
    plots.curve(without, Trials([0, 1]), "no evaluation", path)
    assert Image.open(path).width < 900 and _ink(path, plots.COLOURS[0]) > 500
    plots.curve({k: v[:, :1] for k, v in _metrics(2).items()}, Trials([0, 1]), "one point", path)
    assert _ink(path, plots.COLOURS[0]) > 20
    plots.curve({k: v[:, :0] for k, v in _metrics(2).items()}, Trials([0, 1]), "nothing", path)


def test_infinite_values_of_a_field_stand_at_its_end():
    names = plots.places([2.0, np.inf, 0.5, 10.0, 1e-5, 0.5]).names
    assert names == ["1e-05", "0.5", "2", "10", "inf"]


def test_a_sweep_without_returns_and_diverged_seeds_make_no_warnings(tmp_path):
    nothing = results.Outcome({"a": 1.0}, 0, np.array([0, 9]), np.full(2, np.nan), True, "c", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots.sweep(results.rank([nothing]), "nothing", tmp_path / "sweep.png")
        mean, error = plots.mean_and_error(np.array([[1.0], [np.inf]]))
    assert mean == np.inf and np.isnan(error)


def test_members_of_a_population_are_no_players():
    assert list(plots.by_player("member_return", np.zeros((1, 2, 3)))) == [
        f"member {i}" for i in range(3)
    ]


@pytest.mark.parametrize(
    "number, text",
    [(999, "999"), (999_499, "999k"), (999_500, "1M"), (1234, "1.23k"), (999_999_999, "1G")],
)
def test_steps_have_three_digits(number, text):
    assert progress.short(number) == text


def test_a_line_begins_with_what_says_most():
    """In a poker game that is the exploitability: a policy's return against itself is none."""
    row = {"episode_return": np.array([1.0, 2.0]), "eval_return": np.array([0.1, 0.5])}
    assert progress.returns(row) == [
        "evaluation return 0.3 [0.1, 0.5]",
        "training return 1.5 [1, 2]",
    ]
    row["eval_exploitability"] = np.array([0.25, 0.75])
    assert progress.returns(row)[0] == "exploitability 0.5 [0.25, 0.75]"


def test_wins_and_stalemates_come_from_the_ends_of_episodes(tmp_path):
    """One trial, one point, four episodes: player 1 wins, player 0 wins, a stalemate with rewards
    of either sign, and both win."""
    last = np.array([[-1.0, 1.0], [2.0, -3.0], [1.0, -1.0], [1.0, 1.0]])[None, None]
    ended = np.array([True, True, False, True])[None, None]
    metrics = {"eval_last_reward": last, "eval_terminated": ended}
    shares = {name: values.item() for name, values in plots.wins(metrics).items()}
    assert shares == {"player 0 wins": 0.5, "player 1 wins": 0.5, "stalemate": 0.25}
    drawn = {"eval_last_reward": 0.0 * last, "eval_terminated": ended}
    both = {name: np.concatenate([metrics[name], drawn[name]], 2) for name in drawn}
    assert plots.wins(both)["stalemate"].item() == 5 / 8
    assert not plots.wins({"eval_last_reward": np.abs(last), "eval_terminated": ended})
    assert not plots.wins({"eval_last_reward": last, "eval_terminated": ended & False})
    assert not plots.wins({}) and not plots.wins({"eval_last_reward": last[..., 0]})
    game = _metrics(1, players=2)
    points, episodes = game["eval_return"].shape[1:3]
    game["eval_last_reward"] = np.broadcast_to([1.0, -1.0], (1, points, episodes, 2))
    game["eval_terminated"] = np.ones((1, points, episodes), bool)
    plots.curve(game, Trials([0]), "game", tmp_path / "game.png")
    with_wins = Image.open(tmp_path / "game.png").width
    plots.curve(_metrics(1, players=2), Trials([0]), "game", tmp_path / "plain.png")
    assert with_wins > 1.3 * Image.open(tmp_path / "plain.png").width


def test_what_an_environment_reports_has_panels_of_its_own(tmp_path, monkeypatch):
    """Of evaluations, or else of training; not where they are many."""
    figures = []
    monkeypatch.setattr(plots, "save", lambda figure, path: figures.append(figure))
    metrics = _metrics(2)
    points, episodes = metrics["eval_return"].shape[1:]
    won = np.zeros((2, points, episodes))
    won[:, :, : episodes // 2 + 1] = 1.0
    ends = {f"eval_{name}": won for name in plots.ENDINGS[1:]}
    metrics |= ends | {"eval_won": won, "episode_won": won[..., 0], "loss": won[..., 0]}
    plots.curve(metrics, Trials([0, 1]), "both", tmp_path / "curve.png")
    without = {k: v for k, v in metrics.items() if not k.startswith("eval_")}
    plots.curve(without, Trials([0, 1]), "no evaluation", tmp_path / "curve.png")
    many = metrics | {f"eval_{name}": won for name in "abc"}
    plots.curve(many, Trials([0, 1]), "many", tmp_path / "curve.png")
    labels = [[ax.get_ylabel() for ax in figure.axes] for figure in figures]
    returns = ["evaluation return", "training return"]
    assert labels[0] == [*returns, "evaluation episodes: won"]
    assert labels[1] == ["training return", "training episodes: won"] and labels[2] == returns
    mean = figures[0].axes[2].lines[-1].get_ydata()
    np.testing.assert_allclose(mean, np.full(points, 3 / 5))


def test_a_sweep_s_axes_are_of_their_kinds(tmp_path, monkeypatch):
    """Booleans and whole numbers are marked, what was drawn uniformly is linear."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figures = []
    monkeypatch.setattr(plots, "save", lambda figure, path: figures.append(figure))
    values = {"anneal_lr": (True, False), "num_envs": (4, 64), "gamma": (0.1, 0.9)}
    values |= {"learning_rate": (1e-4, 1e-2)}
    settings = [dict(zip(values, one)) for one in itertools.product(*values.values())]
    steps, curve = np.array([0, 10]), np.array([0.0, 1.0])
    trials = [results.Outcome(one, 0, steps, curve, True, "r", 0) for one in settings]
    plots.sweep(results.rank(trials), "one", tmp_path / "x.png", ["gamma"])
    axes = {ax.get_xlabel(): ax for ax in figures[0].axes}
    labels = {name: [text.get_text() for text in axes[name].get_xticklabels()] for name in values}
    assert labels["anneal_lr"] == ["false", "true"] and labels["num_envs"] == ["4", "64"]
    scales = {name: axes[name].get_xscale() for name in values}
    expected = {"num_envs": "log", "gamma": "linear", "learning_rate": "log"}
    assert scales == {"anneal_lr": "linear"} | expected
    several = [
        trial._replace(setting={"env": env, "x": trial.setting["gamma"]})
        for trial in trials
        for env in ("A-v0", "B-v0")
    ]
    plots.sweep(results.rank(several), "two", tmp_path / "x.png")
    titles = [(ax.get_title(), ax.get_xlabel()) for ax in figures[1].axes]
    labels = ("x", "environment steps")
    rows = list(itertools.product(("A-v0", "B-v0"), labels))
    assert titles == rows, "a row of panels for each environment"
    seven = [one._replace(setting={"x": float(i)}) for i, one in enumerate(trials[:7])]
    plots.sweep(results.rank(seven), "the best of seven", tmp_path / "x.png")
    for figure in figures:
        FigureCanvasAgg(figure).draw()
        panels = [ax.get_window_extent() for ax in figure.axes]
        legends = [ax.get_legend() for ax in figure.axes if ax.get_legend()]
        assert len(legends) == len(panels)
        for box in (legend.get_window_extent() for legend in legends):
            assert not any(box.overlaps(panel) for panel in panels), "it covers no curve"
            assert box.y0 >= 0 and box.y1 <= figure.bbox.y1


def test_a_failing_curve_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "curve.png"
    plots.curve(_metrics(1), Trials([0]), "old", path)
    before = path.read_bytes()

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(plots.os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        plots.curve(_metrics(2), Trials([0, 1]), "new", path)
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_mean_and_error_leave_nan_out():
    values = np.array([[1.0, np.nan, np.nan], [3.0, 2.0, np.nan], [8.0, 4.0, np.nan]])
    mean, error = plots.mean_and_error(values)
    np.testing.assert_allclose(mean, [4.0, 3.0, np.nan])
    expected = [np.std([1, 3, 8], ddof=1) / 3**0.5, np.std([2, 4], ddof=1) / 2**0.5, 0.0]
    np.testing.assert_allclose(error, expected)


# --- trackers --------------------------------------------------------------------------------

SEEDS = (3, 4)
POINT = {
    "timestep": np.array([100, 100]),
    "eval_return": np.array([[1.0, 3.0], [5.0, 7.0]]),
    "episode_return": np.array([np.nan, 9.0]),
    "value_loss": np.array([0.25, 0.75]),
}
MEANS = {"eval/return": 4.0, "episode/return": 9.0, "train/value_loss": 0.5}
EACH = (
    {"eval/return": 2.0, "episode/return": np.nan, "train/value_loss": 0.25},
    {"eval/return": 6.0, "episode/return": 9.0, "train/value_loss": 0.75},
)
TOGETHER = MEANS | {f"seed_{s}/{k}": v for s, e in zip(SEEDS, EACH) for k, v in e.items()}


def _open(run_dir: Path, **options: Any) -> list[trackers.Tracker]:
    asked = [name for name in trackers.TRACKERS if options.pop(name, False)]
    config = {"learning_rate": 1e-3, "target_kl": float("inf"), "hidden_sizes": (64, 64)}
    parts = trackers.split(Trials(list(SEEDS)), options.get("one_run_per_seed", False))
    told = trackers.Told(run_dir, config, parts, options.get("resume", False))
    return [*trackers.open_trackers(asked, told).values()]


def _gif(path: Path) -> Path:
    images = [Image.new("RGB", (32, 24), c) for c in ("red", "green")]
    images[0].save(path, save_all=True, append_images=images[1:])
    return path


def _events(folder: Path) -> dict[int, dict[str, Any]]:
    """{step: {tag: number or bytes of an image}} from the event files of one folder."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[int, dict[str, Any]] = {}
    for file in sorted(folder.glob("events.out.tfevents.*")):
        data = file.read_bytes()
        while data:  # length, its checksum, the event, its checksum
            (size,) = struct.unpack("<Q", data[:8])
            event, data = Event.FromString(data[12 : 12 + size]), data[16 + size :]
            for value in event.summary.value:
                image = value.image.encoded_image_string
                found.setdefault(event.step, {})[value.tag] = image or value.simple_value
    return found


def _wandb_runs(run_dir: Path, rows: int = 1) -> dict[str, list[dict[str, Any]]]:
    """{run id: [history row, ...]} once every run has so many.

    wandb writes them from a process of its own, and `finish` does not wait for the last of it.
    """
    for _ in range(100):
        found = _wandb_rows(run_dir)
        if found and min(map(len, found.values())) >= rows:
            return found
        time.sleep(0.1)
    raise AssertionError(f"rows of wandb's runs: {found}")


def _wandb_rows(run_dir: Path) -> dict[str, list[dict[str, Any]]]:
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, list] = {}
    for file in sorted(run_dir.glob("wandb/offline-run-*/run-*.wandb")):
        data, rows = file.read_bytes()[7:], found.setdefault(file.stem.removeprefix("run-"), [])
        while len(data) >= 7:  # LevelDB's log: checksum, length, type (1 is a whole record), record
            size, kind = struct.unpack("<HB", data[4:7])
            if kind != 1 or len(data) < 7 + size:  # still being written
                break
            record, data = Record.FromString(data[7 : 7 + size]), data[7 + size :]
            items = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
            if items:
                rows.append({key: json.loads(value) for key, value in items.items()})
    return found


def _assert_row(row: dict[str, Any], expected: dict[str, float]) -> None:
    shown = {k: float(v) for k, v in row.items() if not k.startswith("_") and k != "timestep"}
    assert shown.keys() == expected.keys()
    np.testing.assert_allclose([shown[k] for k in expected], list(expected.values()))


def test_scalars_of_games_and_of_one_seed():
    game = {"timestep": np.array([5]), "eval_return": np.array([[[1.0, -1.0], [3.0, -3.0]]])}
    players = {"eval/return/player 0": 2.0, "eval/return/player 1": -2.0}
    assert trackers.scalars(game, [0]) == players
    assert trackers.scalars({"loss": np.array([2.0])}, [7]) == {"train/loss": 2.0}


def test_tags_are_grouped_and_what_all_share_is_there_once():
    both = np.ones(2)
    names = ("eval_length", "episode_return", "num_episodes", "seconds", "steps_per_second")
    names += ("current_learning_rate",)
    shown = trackers.scalars(dict.fromkeys(names, both), [3, 4])
    alone = ["eval/length", "episode/return", "episode/num_episodes", "time/seconds"]
    alone += ["time/steps_per_second", "train/current_learning_rate"]
    assert [tag for tag in shown if not tag.startswith("seed_")] == alone
    per_seed = {tag for tag in shown if tag.startswith("seed_3/")}
    assert per_seed == {f"seed_3/{tag}" for tag in alone if not tag.startswith("time/")}


@pytest.mark.needs("tensorboardX")
def test_tensorboard_files_read_back(tmp_path):
    (tracker,) = _open(tmp_path, tensorboard=True)
    gif = _gif(tmp_path / "e.gif")
    tracker.log(POINT, 100)
    found = _events(tmp_path / "tensorboard")  # there before close: a kill loses nothing
    _assert_row(found[100], TOGETHER)
    tracker.gif(gif, 200)
    tracker.close()
    assert _events(tmp_path / "tensorboard")[200]["episode"] == gif.read_bytes()

    (tracker,) = _open(tmp_path, tensorboard=True, resume=True)  # adds a file, keeps the old
    tracker.log({k: v + 1 for k, v in POINT.items()}, 300)
    tracker.close()
    found = _events(tmp_path / "tensorboard")
    assert found[300]["eval/return"] == 5.0 and found[100]["eval/return"] == 4.0


@pytest.mark.needs("tensorboardX")
def test_tensorboard_folder_per_seed(tmp_path):
    (tracker,) = _open(tmp_path, tensorboard=True, one_run_per_seed=True)
    tracker.log(POINT, 100)
    tracker.close()
    for seed, expected in zip(SEEDS, EACH):
        _assert_row(_events(tmp_path / "tensorboard" / f"seed_{seed}")[100], expected)


def test_wandb_offline_runs_read_back(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tracker,) = _open(tmp_path, track=True)
    tracker.log(POINT, 100)
    tracker.gif(_gif(tmp_path / "e.gif"), 100)
    tracker.close()
    ((run_id, rows),) = _wandb_runs(tmp_path, rows=2).items()
    _assert_row(rows[0], TOGETHER)
    assert rows[0]["timestep"] == 100 and rows[1]["episode/path"].endswith(".gif")
    assert json.loads((tmp_path / "wandb/runs.json").read_text()) == {tmp_path.name: run_id}
    assert list(tmp_path.glob("wandb/offline-run-*/files/media/videos/*.gif"))

    (tracker,) = _open(tmp_path, track=True, resume=True)  # goes on in the same run
    tracker.close()
    assert list(_wandb_runs(tmp_path)) == [run_id]


class FakeRun:
    """A run of wandb that remembers what it is told."""

    def __init__(self, **options):
        self.options, self.config, self.id = options, options["config"], options.get("id")
        self.id = self.id or f"id{options['name']}"
        self.rows, self.summary, self.finished = [], {}, False

    def log(self, row):
        self.rows.append(row)

    @property
    def steps(self):
        return [row["timestep"] for row in self.rows]

    def finish(self):
        self.finished = True

    def define_metric(self, *_, **__):
        pass


@pytest.fixture
def wandb_runs(monkeypatch):
    """The runs that are begun, in place of wandb's."""
    import wandb

    runs: list[FakeRun] = []
    monkeypatch.setattr(wandb, "init", lambda **o: runs.append(FakeRun(**o)) or runs[-1])
    return runs


@pytest.mark.usefixtures("quick_curves", "shared_programs")
def test_a_sweep_is_a_group_of_wandb_with_numbers_to_compare(tmp_path, wandb_runs):
    config = toy.Config(total_timesteps=120, num_evals=4)
    grid = {"learning_rate": [0.1, 0.5], "target_kl": [float("inf")], "num_envs": [5, 6]}
    grid["hidden_sizes"] = [(3, 2)]
    options = {"num_seeds": 2, "halving": 2, "rungs": 2, "track": True}
    swept = launch.sweep(toy, config, grid, sweep_dir=tmp_path / "x", **options)
    assert {run.options["group"] for run in wandb_runs} == {"x"} and len(wandb_runs) == 6
    last = {run.id: run for run in wandb_runs}  # what halving keeps goes on in its run
    assert len(last) == 4 and all(run.finished for run in wandb_runs)
    assert all(run.options["resume"] == "allow" for run in wandb_runs[4:])
    for run in last.values():
        values = {name: run.config[name] for name in ("learning_rate", "target_kl", "num_envs")}
        assert {type(value) for value in values.values()} == {int, float}
        assert run.config["hidden_sizes"] == "3,2" and run.config["gamma"] == 0.99
        one = swept.of(values)
        finals = [trial.final for trial in one.trials]
        assert run.summary["final_return"] == pytest.approx(np.mean(finals))
        assert run.summary["worst_seed"] == min(finals) and run.steps[-1] == one.steps
        assert run.summary["mean_return"] == pytest.approx(one.area)
        named = f"num_envs={run.config['num_envs']}, hidden_sizes=3,2, learning_rate="
        assert run.options["name"] == f"{named}{run.config['learning_rate']}, target_kl=inf"
    steps = [[step for run in wandb_runs if run.id == key for step in run.steps] for key in last]
    assert max(steps, key=len) == [0, 30, 60, 90, 120]


@pytest.mark.usefixtures("quick_curves", "shared_programs")
def test_a_run_of_wandb_per_seed_has_its_own_return(tmp_path, wandb_runs):
    config = toy.Config(total_timesteps=60, num_evals=2)
    options = {"num_seeds": 2, "track": True, "one_run_per_seed": True}
    result = launch.run(toy, config, run_dir=tmp_path / "x", **options)
    assert [run.config["seed"] for run in wandb_runs] == [0, 1]
    finals = result.metrics["eval_return"][:, -1].mean(1)
    assert [run.summary["final_return"] for run in wandb_runs] == pytest.approx(finals.tolist())
    assert [run.options["name"] for run in wandb_runs] == ["x__seed_0", "x__seed_1"]


def test_notes_of_wandb_s_runs_may_be_damaged(tmp_path, capsys):
    """As a full disk leaves them."""
    notes = tmp_path / "runs.json"
    assert trackers._noted(notes) == {} and not capsys.readouterr().err
    notes.write_text('{"a run": "abc"}')
    assert trackers._noted(notes) == {"a run": "abc"}
    notes.write_text("")
    assert trackers._noted(notes) == {} and "begin anew" in capsys.readouterr().err


def test_wandb_run_per_seed(tmp_path, wandb_runs):
    (tracker,) = _open(tmp_path, track=True, one_run_per_seed=True)
    tracker.log(POINT, 100)
    tracker.close()
    ids = json.loads((tmp_path / "wandb/runs.json").read_text())
    assert ids == {f"{tmp_path.name}__seed_{seed}": run.id for seed, run in zip(SEEDS, wandb_runs)}
    for run, expected in zip(wandb_runs, EACH, strict=True):
        _assert_row(run.rows[0], expected)


def test_a_tracker_that_fails_warns_once_and_the_run_goes_on(capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    logged, record = [], SimpleNamespace(session=None, logged=POINT)
    output = trackers.Trackers(record)
    other = SimpleNamespace(log=lambda _, timestep: logged.append(timestep))
    output.trackers = {"TensorBoard": SimpleNamespace(log=full), "other": other}
    for timestep in (100, 200):
        output.at(SimpleNamespace(timestep=timestep), None)
    message = capsys.readouterr().err
    assert message.count("warning") == 1 and "TensorBoard" in message and "No space" in message
    assert logged == [100, 200]


@pytest.mark.parametrize(
    "flag, library, package",
    [("track", "wandb", "wandb"), ("tensorboard", "tensorboardX", "tensorboardX")],
)
def test_a_missing_library_names_the_pip_command(tmp_path, monkeypatch, flag, library, package):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UserError, match=f"pip install {package}"):
        _open(tmp_path, **{flag: True})


def test_wandb_without_an_account_is_the_users_to_solve(tmp_path, monkeypatch):
    import wandb

    def refuse(**_):
        raise wandb.errors.UsageError("No API key configured")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(UserError, match=r"No API key.*WANDB_MODE=offline"):
        _open(tmp_path, track=True)


# --- GIFs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Breakout-MinAtar", "FourRooms-misc", "PointRobot-misc"])
def test_gif_has_a_frame_for_each_state_and_all_differ(name, tmp_path):
    config = Config(env=name, env_settings=(("max_steps", 12),))
    path = render.render(FAKE, config, STATE, tmp_path / "episode.gif", seed=1)
    frames = frames_of(path)
    episode = render.play(FAKE, config, STATE, seed=1, max_frames=1000)
    assert len(frames) == len(episode.returns) > 5
    assert episode.ending in ("terminated", "truncated")
    assert (len(frames) == 13) == (episode.ending == "truncated")
    pictures = frames[:, STRIP:]
    assert all(len(np.unique(p.reshape(-1, 3), axis=0)) > 1 for p in pictures)  # none is blank
    assert (np.diff(pictures.astype(int), axis=0) != 0).any()  # something moves
    assert all((a != b).any() for a, b in itertools.pairwise(frames))  # the text counts steps


def test_play_is_the_episode_stepped_by_hand():
    config = Config(env="CartPole-v1")
    env, params = envs.make("CartPole-v1")
    policy = _make_policy(config, env, params)
    reset_key, steps_key = jax.random.split(jax.random.key(5))
    observation, state = env.reset_env(reset_key, params)
    xs, memory = [float(state.x)], jnp.zeros((), jnp.int32)

    @jax.jit
    def step(key, observation, state, memory):
        action, memory = policy(STATE, observation, memory)
        return *env.step_env(key, state, action, params), memory

    for key in jax.random.split(steps_key, 999):
        observation, state, _, terminated, _, memory = step(key, observation, state, memory)
        xs.append(float(state.x))
        if terminated:
            break
    episode = render.play(FAKE, config, STATE, seed=5, max_frames=1000)
    assert episode.ending == "terminated"
    np.testing.assert_allclose(np.asarray(episode.states.x), xs, atol=1e-5)  # final state included
    np.testing.assert_array_equal(episode.returns, np.arange(len(xs)))


def test_a_policy_that_plays_is_told_its_rewards():
    """Which are 1: after a first push to the left it pushes to the right."""

    class Told(NamedTuple):
        reward: jax.Array

    def make_policy(config, env=None, env_params=None):
        def policy(state, observation, memory=None, rng=None):
            told = jnp.zeros(()) if memory is None else memory.reward
            return (told > 0.5).astype(jnp.int32), Told(jnp.zeros(()))

        return policy

    module = types.ModuleType("told")
    module.make_policy = make_policy
    episode = render.play(module, Config(), STATE, seed=5, max_frames=1000)
    pushes = np.diff(np.asarray(episode.states.x_dot))
    assert len(pushes) > 5 and pushes[0] < 0.0 and (pushes[1:] > 0.0).all()


def test_cart_is_where_the_state_says():
    env, params = envs.make("CartPole-v1")
    x = np.array([-1.5, 0.0, 1.5], np.float32)
    zeros = np.zeros(3, np.float32)
    _, state = env.reset_env(jax.random.key(0), params)
    states = state.replace(x=x, x_dot=zeros, theta=zeros, theta_dot=zeros, time=zeros)
    inner, _, states = pictures.unwrap(env, params, states)
    for frame, position in zip(pictures._classic(inner, params, states), x, strict=True):
        columns = np.nonzero((frame[190:210] < 40).all(axis=-1).sum(axis=0) > 5)[0]
        expected = 200 + position * 400 / 4.8
        assert abs(columns.mean() - expected) < 3


def test_a_picture_shows_the_parameters_of_its_episode():
    config = Config(env_settings=(("randomize", "length:uniform:5:9"), ("max_steps", 4)))
    env, params = envs.make(config.env, **dict(config.env_settings))
    states = render.play(FAKE, config, STATE, seed=5, max_frames=1000).states
    _, shown, _ = pictures.unwrap(env, params, states)
    drawn = 5 + 4 * float(states.inner.shares[0, 0])
    assert float(shown.length) == pytest.approx(drawn) and float(shown.length) > 5
    assert params.length == 0.5


def test_catch_shows_ball_and_paddle_where_they_are(tmp_path):
    config = Config(env="Catch-bsuite")
    frames = frames_of(render.render(FAKE, config, STATE, tmp_path / "catch.gif"))
    states = render.play(FAKE, config, STATE, seed=0, max_frames=1000).states
    places = [(states.paddle_x, states.paddle_y), (states.ball_x, states.ball_y)]
    for i, picture in enumerate(frames[:-1, STRIP:]):
        centres = picture[16::32, 80 + 16 : 240 : 32]  # of 10x5 cells, 32 wide, in the middle
        paddle, ball = (centres[y[i], x[i]] for x, y in places)
        for colour, kind in ((paddle, 1), (ball, 2)):  # a GIF's colours are a few steps off
            assert np.abs(colour.astype(int) - pictures.COLOURS[kind]).max() < 8


def test_a_gif_that_cannot_be_written_is_the_users_to_solve(tmp_path):
    (tmp_path / "file").touch()
    frames = iter([Image.new("RGB", (4, 4))])
    with pytest.raises(UserError, match="x.gif cannot be written: "):
        render._save(frames, 50, tmp_path / "file" / "x.gif")


def test_long_episodes_are_cut_and_gifs_never_overwritten(tmp_path):
    config, path = Config(env="MountainCar-v0"), tmp_path / "new" / "episode.gif"
    assert render.render(FAKE, config, STATE, path, max_frames=4) == path
    before = path.read_bytes()
    second = render.render(FAKE, config, STATE, path, seed=1, max_frames=4)
    third = render.render(FAKE, config, STATE, path, seed=2, max_frames=6)
    assert [second.name, third.name] == ["episode-1.gif", "episode-2.gif"]
    assert path.read_bytes() == before
    assert [len(frames_of(p)) for p in (path, second, third)] == [4, 4, 6]


class Dot:
    """Draws itself: a white row of 20 pixels in which one moves to the right; two players."""

    name = "Dot"
    frame_milliseconds = 130
    default_params = flax.struct.dataclass(type("Params", (), {}))()

    def reset_env(self, key, params):
        return jnp.zeros(()), {"x": jnp.zeros((), jnp.int32)}

    def step_env(self, key, state, action, params):
        x = state["x"] + 1
        return x.astype(jnp.float32), {"x": x}, jnp.array([1.0, -1.0]), x >= 5, {}

    def is_truncated(self, state, params):
        return jnp.zeros((), bool)

    def action_space(self, params):
        return envs.make("CartPole-v1")[0].action_space(None)

    def observation_space(self, params):
        return SimpleNamespace(dtype=jnp.float32, shape=())

    def render(self, state, params):
        picture = np.full((20, 20, 3), 255, np.uint8)
        picture[:, int(state["x"])] = 0
        return picture


def test_an_environment_can_draw_itself_also_through_wrappers(tmp_path):
    config = Config(env=Dot(), env_settings=(("max_steps", 50),))
    frames = frames_of(render.render(FAKE, config, STATE, tmp_path / "dot.gif"))
    assert len(frames) == 6
    assert Image.open(tmp_path / "dot.gif").info["duration"] == 130
    short = Config(env=Dot(), env_settings=(("max_steps", 2),))
    with Image.open(render.render(FAKE, short, STATE, tmp_path / "short.gif")) as gif:
        times = [gif.seek(i) or gif.info["duration"] for i in range(gif.n_frames)]
    assert times == [250, 250, 1500], "two seconds at least"
    left = (frames.shape[2] - 20) // 2
    for x, picture in enumerate(frames[:, STRIP:, left : left + 20]):
        assert (np.nonzero((picture < 8).all(axis=(0, 2)))[0] == [x]).all()


@pytest.mark.parametrize("name", ["Swimmer-misc", "DeepSea-bsuite", "DiscountingChain-bsuite"])
def test_what_cannot_be_drawn_is_refused(name, tmp_path):
    with pytest.raises(UserError, match=f"env={name} cannot be drawn.*CartPole-v1.*Pong-misc"):
        render.render(FAKE, Config(env=name), STATE, tmp_path / "x.gif")
    assert not list(tmp_path.iterdir())


def test_missing_pygame_names_the_pip_command(monkeypatch):
    find = pictures.importlib.util.find_spec
    without = lambda name: None if name == "pygame" else find(name)
    monkeypatch.setattr(pictures.importlib.util, "find_spec", without)
    render.check_drawable(Config(env="Catch-bsuite"))
    with pytest.raises(UserError, match="pip install pygame"):
        render.check_drawable(Config(env="CartPole-v1"))


# --- dreams ----------------------------------------------------------------------------------


class Dreamt(NamedTuple):
    """A memory that counts observed and imagined steps."""

    observed: jax.Array
    imagined: jax.Array
    action: jax.Array  # 1 after an even number of observations


def _make_dreamer(config, env=None, env_params=None):
    def policy(state, observation, memory=None, rng=None):
        zero = jnp.zeros(())
        before = Dreamt(zero, zero, zero) if memory is None else memory
        action = (before.observed % 2).astype(jnp.int32)
        return action, Dreamt(before.observed + 1.0, zero, action.astype(jnp.float32))

    return policy


def _make_dream(config, env=None, env_params=None):
    """Its observations are where it was last observed, its imagined steps, and the last action."""

    def dream(state, memory):
        memory = memory._replace(imagined=memory.imagined + 1.0)
        return jnp.stack([*memory, jnp.zeros(())]), memory

    return dream


DREAMER = types.ModuleType("tests.dreamer")
DREAMER.make_policy, DREAMER.make_dream = _make_dreamer, _make_dream


def test_a_dream_sees_five_frames_of_fifty_and_imagines_the_others():
    """It starts anew from the policy's memory, and is told the actions."""
    config = Config(env_settings=(("theta_threshold_radians", 100.0), ("x_threshold", 100.0)))
    episode = render.play(DREAMER, config, STATE, 0, 61, dream=True)
    states, dreamt = episode.states, episode.dreamt
    assert dreamt.shape == (61, 4)
    real = np.stack([states.x, states.x_dot, states.theta, states.theta_dot], -1)
    for frame, shown in enumerate(dreamt):
        seen, ahead = frame // 50 * 50 + 5, frame % 50 - 4
        acted = float(frame % 2 == 0)  # the action of the frame before
        expected = real[frame] if ahead <= 0 else [seen, ahead, acted, 0.0]
        np.testing.assert_allclose(shown, expected, rtol=1e-6, err_msg=str(frame))
    assert render.play(DREAMER, config, STATE, 0, 61).dreamt is None


def test_a_dream_is_drawn_below_the_episode_and_named(tmp_path):
    config = Config(env="MountainCar-v0")
    give = dict(seed=1, max_frames=8)
    plain = frames_of(render.render(FAKE, config, STATE, tmp_path / "x.gif", **give))
    module = types.ModuleType("tests.dreamer")
    module.make_policy = lambda *given: (
        lambda state, x, memory=None: (
            FAKE.make_policy(*given)(state, x, None if memory is None else memory.observed)[0],
            Dreamt(0 if memory is None else memory.observed + 1, jnp.zeros(2), jnp.zeros(())),
        )
    )
    module.make_dream = lambda *given: lambda state, memory: (jnp.zeros(2), memory)
    both = frames_of(render.render(module, config, STATE, tmp_path / "y.gif", dream=True, **give))
    height = plain.shape[1]
    assert both.shape == (8, 2 * height, *plain.shape[2:])
    near = lambda a, b: (np.abs(a.astype(int) - b).max(-1) > 40).mean() < 1e-3  # colours of a GIF
    for number, (frame, alone) in enumerate(zip(both, plain)):
        top, bottom = frame[:height], frame[height:]
        assert near(top[STRIP:], alone[STRIP:])
        assert near(bottom[STRIP:], top[STRIP:]) == (number < 5), number
    texts = both[:, height : height + STRIP]
    assert near(texts[0], texts[4]) and not near(texts[4], texts[5])
    assert not near(texts[5], texts[6]), "it counts the steps ahead"


@pytest.mark.parametrize("name", [*pictures.CLASSIC, "Breakout-MinAtar", "Pong-misc"])
def test_observations_are_drawn_as_the_states_are(name):
    env, params = envs.make(name)
    observation, state = env.reset_env(jax.random.key(0), params)
    for number in range(3):
        observation, state, *_ = env.step_env(
            jax.random.key(number), state, jnp.zeros((), int), params
        )
    inner, shown, states = pictures.unwrap(env, params, jax.tree.map(lambda x: x[None], state))
    painter = pictures.PAINTERS[name]
    (expected,) = painter.paint(inner, shown, states)
    (found,) = painter.observed(inner, shown, np.asarray(observation)[None])
    differ = (np.abs(found.astype(int) - expected).max(-1) > 40).mean()
    assert differ < (0.02 if name == "Pendulum-v1" else 1e-3)  # which has an arrow of its torque


@pytest.mark.parametrize(
    "module, config, message",
    [
        (FAKE, Config(), "fake has no world model to show; dreamer.py has one"),
        (DREAMER, Config(env="PointRobot-misc"), "env=PointRobot-misc .*whole ones of CartPole-v1"),
        (DREAMER, Config(env_settings=(("observe", (0, 2)),)), "env=CartPole-v1 with these"),
    ],
)
def test_a_dream_that_cannot_be_drawn_is_refused(module, config, message, tmp_path):
    with pytest.raises(UserError, match=message):
        render.render(module, config, STATE, tmp_path / "x.gif", dream=True)
    assert not list(tmp_path.iterdir())


# --- evaluation ------------------------------------------------------------------------------


def test_summary_against_numpy():
    values = np.random.default_rng(0).normal(3.0, 2.0, size=101)
    expected = {
        "mean": np.mean(values),
        "variance": np.mean((values - values.mean()) ** 2),
        "std": np.std(values),
        "min": np.sort(values)[0],
        "max": np.sort(values)[-1],
        "median": np.sort(values)[50],
        "has_nan": False,
    }
    assert evaluation.summary(values) == pytest.approx(expected, rel=1e-12)
    with_nan = evaluation.summary(np.array([1.0, np.nan, 2.0]))
    assert with_nan["has_nan"] and np.isnan(with_nan["mean"])
    with pytest.raises(ValueError, match="no values"):
        evaluation.summary(np.array([]))


def test_what_may_never_end_is_not_evaluated():
    class Endless(Reporting):
        default_params = property(lambda self: RecallState(0, 0))  # anything without a limit

    config = Config(env=Endless())
    with pytest.raises(UserError, match="Endless has no time limit"):
        evaluation.evaluate(FAKE, config, STATE, seed=0, num_episodes=2)


def test_evaluate_and_its_table():
    config = Config(env="CartPole-v1", env_settings=(("max_steps", 20),))
    episodes = evaluation.evaluate(FAKE, config, STATE, seed=0, num_episodes=16)
    names = [name for name in envs.Episodes._fields if name != "metrics"]  # of which it has none
    assert {k: v.shape for k, v in episodes.items()} == dict.fromkeys(names, (16,))
    np.testing.assert_array_equal(episodes["episode_return"], episodes["length"])  # 1 a step
    assert (episodes["terminated"] != episodes["truncated"]).all()
    np.testing.assert_array_equal(episodes["truncated"], episodes["length"] == 20)
    assert 0 < episodes["truncated"].sum() < 16
    again = evaluation.evaluate(FAKE, config, STATE, seed=0, num_episodes=16)
    np.testing.assert_array_equal(episodes["length"], again["length"])

    lines = evaluation.table(episodes, "seed 3").splitlines()
    share = f"{100 * episodes['terminated'].mean():.3g} %"
    assert lines[0].startswith(f"seed 3: 16 episodes: terminated {share}, truncated")
    assert lines[1].split() == ["mean", "std", "variance", "min", "median", "max", "NaN"]
    name, mean, std, variance, low, median, high, nan = lines[2].split()
    x = episodes["episode_return"].astype(float)
    expected = [x.mean(), x.std(), x.var(), x.min(), np.median(x), x.max()]
    shown = [float(v) for v in (mean, std, variance, low, median, high)]
    assert (name, nan) == ("return", "no") and shown == pytest.approx(expected, rel=1e-5)
    assert lines[4].startswith("last reward")


def test_columns_of_a_table_do_not_run_together():
    values = np.array([-1.23456e-05, -1.23456e-05])
    episodes = dict.fromkeys(("episode_return", "length", "last_reward"), values)
    episodes |= {"terminated": np.ones(2), "truncated": np.zeros(2)}
    head, *rows = [line[16:] for line in evaluation.table(episodes).splitlines()[1:]]
    assert rows[0].split() == [*["-1.23456e-05"] * 1, "0", "0", *["-1.23456e-05"] * 3, "no"]
    ends = lambda line: [m.end() for m in re.finditer(r"\S+", line)][:-1]
    assert all(ends(row) == ends(head) for row in rows), "one below the other"


def test_table_of_a_game_has_a_row_for_each_player():
    config = Config(env=Dot(), env_settings=(("max_steps", 50),))
    text = evaluation.table(evaluation.evaluate(FAKE, config, STATE, seed=0, num_episodes=3))
    rows = {line[:16].strip(): line[16:].split() for line in text.splitlines()[2:]}
    assert rows["return [0]"][0] == "5" and rows["return [1]"][0] == "-5"
    assert rows["last reward [1]"][0] == "-1" and rows["length"][0] == "5"


@pytest.mark.needs("pgx")
def test_evaluate_plays_against_random_moves_in_games_of_two():
    """The first legal cell of tic-tac-toe: who moves first wins more, and itself always."""

    def first(state, observation, memory=None, rng=None, mask=None):
        legal = jnp.ones((*observation.shape[:-3], 9)) if mask is None else mask
        return jnp.argmax(legal, -1), memory

    module = types.ModuleType("fake_player")
    module.make_policy = lambda *world: first
    config = Config(env="pgx/tic_tac_toe")
    episodes = evaluation.evaluate(module, config, STATE, 0, 401)
    assert episodes["random_return"].shape == (401,)
    as_first, as_second = episodes["random_return"][::2], episodes["random_return"][1::2]
    assert 0.4 < as_first.mean() < 0.8 and -0.4 < as_second.mean() < 0.1
    (row,) = [x for x in evaluation.table(episodes).splitlines() if x.startswith("against")]
    assert row.split()[2] == f"{episodes['random_return'].astype(np.float64).mean():.6g}"
    against = config.replace(env_settings=(("opponent", "random"),))
    assert "random_return" not in evaluation.evaluate(module, against, STATE, 0, 2)
    unmasked = config.replace(env_settings=(("mask_actions", False),))
    assert "random_return" not in evaluation.evaluate(module, unmasked, STATE, 0, 2)


@pytest.mark.needs("pgx")
def test_evaluate_measures_exploitability_in_poker():
    """Of the uniform policy it is 11/24; several seeds are summed up together."""
    module = types.ModuleType("fake_poker")
    policy = lambda state, x, memory=None, rng=None, mask=None: (jnp.zeros(2, int), memory)
    module.make_policy = lambda *world: policy
    config = Config(env="pgx/kuhn_poker")
    assert "exploitability" not in evaluation.evaluate(module, config, STATE, 0, 2)
    uniform = lambda state, observation, mask: mask / mask.sum(-1, keepdims=True)
    module = types.ModuleType("fake_poker")
    module.make_policy, module.make_probabilities = lambda *world: policy, lambda *world: uniform
    episodes = evaluation.evaluate(module, config, STATE, 0, 2)
    np.testing.assert_allclose(episodes["exploitability"], [11.0 / 24.0], rtol=1e-6)
    (row,) = [x for x in evaluation.table(episodes).splitlines() if x.startswith("exploitab")]
    assert row.split()[:2] == ["exploitability", "0.458333"]
    other = episodes | {"exploitability": np.array([0.0])}
    both = [evaluation.Played(i, i, {}, 0, x) for i, x in enumerate((episodes, other))]
    (entry,) = json.loads(evaluation.as_json(both))
    assert entry["trials"][1]["exploitability"]["mean"] == 0.0
    assert entry["total"]["exploitability"]["mean"] == pytest.approx(11.0 / 48.0)
