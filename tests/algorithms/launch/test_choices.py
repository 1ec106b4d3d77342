"""Which trial and which point: one rule for all commands, and what they say of it."""

import json
import shutil
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import launch
from algorithms.launch import cli
from algorithms.launch.engine import experiment, outcomes
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.run_dir import RunDir
from algorithms.launch.engine.settings import Trials
from algorithms.launch.tools import render
from tests.algorithms.launch import toy

pytestmark = pytest.mark.usefixtures("quick_pictures", "shared_programs")
CONFIG = toy.Config(total_timesteps=100, num_evals=4)
LAST = CONFIG.num_evals
GRID = {"learning_rate": [0.1, 0.5], "num_envs": [5, 10]}


@pytest.fixture(scope="module")
def source(quick_pictures, shared_programs, tmp_path_factory):
    """A run of three trials."""
    return launch.run(toy, CONFIG, num_seeds=3, run_dir=tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def swept(quick_pictures, shared_programs, tmp_path_factory):
    """A sweep that ranks by another objective than the final return."""
    folder = tmp_path_factory.mktemp("sweeps") / "sweep"
    given = {"num_seeds": 3, "objective": "mean_return", "sweep_dir": folder}
    return launch.sweep(toy, CONFIG, GRID, **given)


def final(result):
    """Returns of a run at its last point, (trials,)."""
    return result.metrics["eval_return"][:, -1].mean(1)


@pytest.fixture
def best(source):
    number = int(final(source).argmax())
    earlier = source.metrics["eval_return"][number].mean(1).argmax()
    assert number > 0 and earlier < LAST, "the tests would show nothing"
    return number


def said_by(capsys, *words):
    cli.main(toy, [str(word) for word in words])
    return capsys.readouterr()


def drawn(monkeypatch):
    """Collects what --render would draw."""
    paths = []
    monkeypatch.setattr(render, "render", lambda *given, dream: paths.append(given[3]) or given[3])
    return paths


def exported(path):
    about = json.loads(zipfile.ZipFile(path).read("about.json"))
    return about["trial"], about["point"]


def why(source, best):
    value = final(source)[best]
    return (
        f"{source.run_dir} has 3 trials; the best one at the last point is trial {best} "
        f"(seed {best}, return {value:.5g})\n"
    )


# --- a run -----------------------------------------------------------------------------------


def test_evaluate_plays_the_best_trial_at_its_last_point(source, best, capsys):
    out, err = said_by(capsys, "--evaluate", source.run_dir, "--episodes", 2)
    assert out.startswith(f"trial {best} (seed {best}) at point {LAST}: 2 episodes")
    assert out.count("episodes") == 1 and err == why(source, best)
    out, err = said_by(capsys, "--evaluate", source.run_dir, "--episodes", 2, "--json")
    assert json.loads(out)[0]["total"]["episodes"] == 2 and err == why(source, best)


def test_render_draws_the_best_trial_at_its_last_point(source, best, capsys, monkeypatch):
    paths = drawn(monkeypatch)
    _, err = said_by(capsys, "--render", source.run_dir)
    name = f"trial{best}_point{LAST}_seed0.gif"
    assert [path.name for path in paths] == [f"episode_{name}"] and err == why(source, best)
    said_by(capsys, "--render", source.run_dir, "--dream")
    assert paths[1].name == f"dream_{name}"


@pytest.mark.needs("flatbuffers")
def test_both_exports_take_the_best_trial_at_its_last_point(
    source, best, capsys, tmp_path, monkeypatch
):
    file = launch.export(source.run_dir, tmp_path / "x.zip", module=toy)
    assert exported(file) == (best, LAST)
    copy = shutil.copytree(source.run_dir, tmp_path / "run")
    out, err = said_by(capsys, "--export", copy)
    assert out == f"{copy}/policy_trial{best}_point{LAST}.zip\n"
    assert exported(out.strip()) == (best, LAST)
    assert err == why(source, best).replace(str(source.run_dir), str(copy))


def test_load_gives_the_best_trial_at_its_last_point(source, best):
    loaded = launch.load(source.run_dir, module=toy)
    assert (loaded.trial, loaded.point, loaded.trials.seeds) == (best, LAST, [best])
    assert launch.load(source.run_dir, "best", module=toy).trial == best, "whatever the point"
    np.testing.assert_array_equal(
        loaded.state.policy["weights"], source.state.policy["weights"][best]
    )


def test_all_are_all_trials(source, capsys, monkeypatch):
    paths = drawn(monkeypatch)
    out, err = said_by(capsys, "--evaluate", source.run_dir, "--episodes", 2, "--trial", "all")
    assert not err and "all 3 seeds: 6 episodes" in out
    assert not said_by(capsys, "--render", source.run_dir, "--trial", "all").err
    assert [path.name.split("_")[1] for path in paths] == ["trial0", "trial1", "trial2"]
    for trial in ("all", None):
        loaded = launch.load(source.run_dir, trial=trial, module=toy)
        assert loaded.trial is None and loaded.point == [LAST] * 3


@pytest.mark.needs("flatbuffers")
def test_all_trials_are_exported_one_by_one(source, capsys, tmp_path):
    copy = shutil.copytree(source.run_dir, tmp_path / "run")
    out = said_by(capsys, "--export", copy, "--trial", "all").out
    assert [exported(file) for file in out.split()] == [(i, LAST) for i in range(3)]
    with pytest.raises(UserError, match="trial=all: give best or a number"):
        launch.export(copy, trial="all", module=toy)


def test_of_a_single_trial_nothing_is_said(tmp_path, capsys):
    launch.run(toy, CONFIG, seed=3, run_dir=tmp_path / "run")
    assert not said_by(capsys, "--evaluate", tmp_path / "run", "--episodes", 2).err
    assert launch.load(tmp_path / "run", module=toy).trial == 0


@pytest.mark.parametrize("kind", [int, np.int64, np.array, jnp.array])
def test_a_number_is_that_trial(source, kind):
    loaded = launch.load(source.run_dir, trial=kind(0), module=toy)
    assert loaded.trial == 0 and loaded.trials.seeds == [0]


@pytest.mark.parametrize("trial", ["first", 0.5, [0]])
def test_nothing_else_is_a_trial(source, trial):
    with pytest.raises(UserError, match="give best, all or a number"):
        launch.load(source.run_dir, trial=trial, module=toy)


# --- a sweep ---------------------------------------------------------------------------------


def winner(swept):
    """The number of the best trial, and how many seeds its setting has."""
    one = swept.ranked[0]
    return max(one.trials, key=lambda trial: trial.area).number, len(one.trials)


def test_of_a_sweep_the_best_setting_s_best_trial_is_taken_by_its_objective(swept, capsys):
    number, seeds = winner(swept)
    one = swept.ranked[0]
    out, err = said_by(capsys, "--evaluate", swept.sweep_dir, "--episodes", 2)
    assert out.startswith(f"trial {number} (") and out.count("episodes") == 1
    assert err.startswith(f"{swept.sweep_dir} is a sweep; its best setting is ")
    assert err.endswith(f": trial {number}, the best of {seeds} seeds\n")
    loaded = launch.load(swept.sweep_dir, module=toy)
    assert (loaded.trial, loaded.point) == (number, LAST)
    assert {name: getattr(loaded.config, name) for name in GRID} == one.setting
    result = launch.run(toy, CONFIG, save=False, init_from=swept.sweep_dir)
    first = max(one.trials, key=lambda trial: trial.area).final
    assert result.metrics["eval_return"][0, 0].mean() == pytest.approx(first)


def test_all_of_a_sweep_are_the_seeds_of_its_best_setting(swept, capsys):
    out, err = said_by(capsys, "--evaluate", swept.sweep_dir, "--episodes", 2, "--trial", "all")
    numbers = [trial.number for trial in swept.ranked[0].trials]
    assert err.endswith(f": trials {', '.join(map(str, numbers))}\n")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("trial ")] == [
        *map(str, numbers)
    ]
    with pytest.raises(UserError, match="is a sweep: say which trial of its results.csv"):
        launch.load(swept.sweep_dir, trial="all", module=toy)


def test_each_environment_has_its_best_trial(tmp_path, capsys):
    grid = {"env": ["CartPole-v1", "Acrobot-v1"], "gamma": [0.9, 1.0]}
    swept = launch.sweep(toy, CONFIG, grid, num_seeds=2, sweep_dir=tmp_path / "x")
    firsts = swept.ranked[0], swept.ranked[2]
    numbers = [max(one.trials, key=lambda trial: trial.final).number for one in firsts]
    out, err = said_by(capsys, "--evaluate", tmp_path / "x", "--episodes", 2)
    assert [line.split()[1] for line in out.splitlines() if line.startswith("trial ")] == [
        *map(str, numbers)
    ]
    assert err.count("is a sweep; its best setting is") == 2
    message = "a best setting for each of 2 environments: say which trial of its results.csv"
    for call in (launch.load, launch.export):
        with pytest.raises(UserError, match=message):
            call(tmp_path / "x", module=toy)


def test_of_equal_trials_by_the_objective_the_higher_return_counts():
    """As where no seed comes to the threshold, or a trial broke."""
    trial = lambda value, is_finite=True: outcomes.results.Outcome(
        {}, 0, np.array([5]), np.array([value]), is_finite, "x", 0
    )
    setting = outcomes.results.Ranked({}, [trial(9.0, False), trial(1.0), trial(3.0), trial(3.0)])
    for objective in ("steps_to=100", "final_return", "worst_seed"):
        assert outcomes._best_seed(setting, objective) == 2


# --- a run's best trial ----------------------------------------------------------------------


class Run:
    """A run whose files say what a test wants."""

    def __init__(self, rows, is_finite=None):
        self.path, self.rows = "x", rows
        count = len(next(iter(rows[0].values()), [0, 0]))
        self.trials = Trials(list(range(count)))
        self.finite = np.ones(count, bool) if is_finite is None else np.array(is_finite)

    def points(self, kind):
        return list(range(len(self.rows)))

    def says(self, point):
        if self.rows[point] is None:
            raise UserError("it is damaged")
        return {"metrics": self.rows[point], "is_finite": self.finite}


def row(*returns, **more):
    return {"eval_return": np.array(returns, np.float32), **more}


CASES = {
    "the last point": ([row([9.0], [0.0]), row([1.0], [2.0])], None, 1),
    "means of episodes": ([row([0.0, 5.0], [3.0, 3.0])], None, 1),
    "not finite": ([row([5.0], [2.0], [1.0])], [False, True, True], 1),
    "no return": ([row([np.nan], [2.0], [1.0])], None, 1),
    "a damaged point": ([row([1.0], [2.0]), None], None, 1),
    "no metrics": ([{}, {}], None, 0),
    "all broken": ([row([1.0], [2.0])], [False, False], 0),
    "equal": ([row([1.0], [2.0], [2.0])], None, 1),
    "training": ([{"episode_return": np.array([1.0, 4.0])}], None, 1),
    # Of two players, whose means differ by rounding alone.
    "cancelling": ([row([[0.3, -0.3]], [[0.9, -0.8999999]])], None, 0),
    "a team": ([row([[1.0, 1.0]], [[2.0, 1.5]])], None, 1),
    "exploitability": (
        [row([[0.3, -0.3]], [[0.1, 0.1]], eval_exploitability=np.array([0.2, 0.4]))],
        None,
        0,
    ),
}


def test_a_point_that_is_not_finite_is_never_the_best(source, monkeypatch):
    """Its return can still be the highest."""
    returns = source.metrics["eval_return"][0].mean(1)
    peak = int(returns.argmax())
    monkeypatch.setattr(RunDir, "is_finite", lambda self, point: np.full(3, point != peak))
    left = np.where(np.arange(5) == peak, -np.inf, returns)
    assert launch.load(source.run_dir, "best", trial=0, module=toy).point == left.argmax()


@pytest.mark.parametrize("name", CASES)
def test_the_best_trial_of_a_run(name):
    rows, is_finite, expected = CASES[name]
    chosen = outcomes._best_of_run(Run(rows, is_finite))
    assert chosen.numbers == [expected] and f"trial {expected}" in chosen.why[0]


def test_a_chunk_is_a_run_with_trials_of_its_own(swept):
    chosen = outcomes.choose(experiment.open(swept.sweep_dir / "chunk_000"))
    (number,) = chosen.numbers
    mine = [trial for trial in swept.trials if trial.run == "chunk_000"]
    assert number == int(np.argmax([trial.final for trial in mine]))
