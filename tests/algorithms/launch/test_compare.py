"""Comparisons of runs: what is pooled, what the numbers are, what is refused."""

import json
import shutil

import numpy as np
import pytest
import scipy
from PIL import Image

from algorithms import launch
from algorithms.launch.engine import experiment, files, intervals, plots, results, settings
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.run_dir import VERSION, RunDir
from algorithms.launch.tools import compare, comparison
from algorithms.launch.tools.comparison import Trial
from tests.algorithms.launch import toy

pytestmark = pytest.mark.usefixtures("quick_curves", "shared_programs")


def trial(final, seed, env="A-v0", algorithm="toy", x=(0, 10, 20), run="r", finite=True, **setting):
    returns = np.linspace(0.0, final, len(x))
    outcome = results.Outcome(setting, seed, np.array(x), returns, finite, run, seed)
    return Trial(algorithm, env, outcome, run)


def rows(text):
    """A table as {first cell: other cells}."""
    cells = [[c for c in line.split("  ") if c] for line in text.splitlines()]
    return {c[0].strip(): [x.strip() for x in c[1:]] for c in cells if len(c) > 1}


def write_run(
    path, returns, env="A-v0", algorithm="toy", x=None, seeds=None, floats=None, **config
):
    """A run's directory with these evaluation returns (trials, points) and nothing to act with."""
    returns = np.asarray(returns, np.float32)
    trials = settings.Trials(list(seeds or range(len(returns))), floats or {})
    x = np.arange(returns.shape[1]) * 100 if x is None else np.array(x)
    described = {
        "version": VERSION,
        "algorithm": algorithm,
        "options": {},
        "config": {"env": env, "gamma": 0.99, "target_kl": "inf", "layers": [4, 4], **config},
        **trials.to_json(),
    }
    _, (run_dir,) = experiment.create(described, [described], "", path)
    for point, timestep in enumerate(x):
        column = returns[:, point]
        metrics = {
            "timestep": np.full(len(returns), timestep),
            "episode_return": column - 1,
            "eval_return": column[:, None] + np.array([-1.0, 1.0], np.float32),
        }
        header = {"algorithm": algorithm, "point": point, "metrics": metrics}
        header["is_finite"] = np.isfinite(column)
        files.write_checkpoint(run_dir.file(point, "policy"), header, [])
    return path


def call(capsys, *words):
    """The command line. Returns exit code, stdout and stderr."""
    try:
        compare.main([str(word) for word in words])
        code = 0
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


# --- numbers ---------------------------------------------------------------------------------


def test_strata_are_drawn_from_by_themselves():

    zeros, ones = np.zeros(4), np.ones(4)
    mean = lambda drawn: drawn.mean(-1)
    assert intervals.bootstrap_interval([zeros, ones], mean) == (0.5, 0.5)
    low, high = intervals.bootstrap_interval(np.concatenate([zeros, ones]), mean)
    assert low <= 0.25 and high >= 0.75
    rng = np.random.default_rng(1)
    strata = [rng.normal(size=12), rng.normal(3.0, 2.0, size=5)]
    together = lambda *drawn, axis=-1: scipy.stats.trim_mean(
        np.concatenate(drawn, axis), 0.25, axis
    )
    resample = [np.random.default_rng(i).choice(s, (9999, len(s))) for i, s in enumerate(strata)]
    expected = np.percentile(together(*resample), [2.5, 97.5])
    np.testing.assert_allclose(intervals.bootstrap_interval(strata), expected, rtol=0.05)
    assert intervals.bootstrap_interval(strata[0]) == intervals.bootstrap_interval([strata[0]])
    assert np.isnan(intervals.bootstrap_interval([np.zeros(0)])).all()


def test_seeds_of_equal_settings_are_pooled_over_runs():
    """Settings are told apart by what differs within an algorithm and an environment."""
    common = {"gamma": 0.9, "layers": [4, 4]}
    trials = [
        *(trial(i, i, run="one", lr=0.1, **common) for i in range(4)),
        *(trial(10 + i, 4 + i, run="two", lr=0.1, **common) for i in range(4)),
        *(trial(20 + i, i, run="three", lr=0.2, **common) for i in range(2)),
        trial(5, 0, run="four", algorithm="other", lr=0.7, **common | {"gamma": 0.5}),
    ]
    (panel,) = comparison.curves(trials).values()
    assert [curve.label for curve in panel] == ["toy, lr=0.2", "toy, lr=0.1", "other"]
    _, pooled, _ = panel
    assert pooled.finals.tolist() == [0, 1, 2, 3, 10, 11, 12, 13]
    text = comparison.table({"A-v0": panel})
    table = rows(text)
    reach = scipy.stats.t.ppf(0.975, 7) * scipy.stats.sem(pooled.finals)
    expected = ["2", "8", "6.5", f"{6.5 - reach:.5g} to {6.5 + reach:.5g}", "6.5", "0", "20"]
    assert text.endswith("final: mean and its t interval")
    assert table["toy, lr=0.1"] == expected
    assert table["other"] == ["1", "1", "5", "-", "5", "5", "20"]


def test_curves_keep_their_timesteps_and_seeds_share_theirs(capsys):
    trials = [
        trial(2, 0, x=(0, 10, 20)),
        trial(9, 1, x=(0, 10, 20, 30), run="longer"),
        trial(3, 0, algorithm="other", x=(0, 7)),
    ]
    (panel,) = comparison.curves(trials).values()
    assert {c.label: c.timesteps.tolist() for c in panel} == {"toy": [0, 10, 20], "other": [0, 7]}
    assert panel[0].finals.tolist() == [2, 6]
    assert "toy on A-v0: its runs end between timesteps 20 and 30" in capsys.readouterr().err
    with pytest.raises(UserError, match="toy on A-v0: r, other have no timestep in common"):
        comparison.curves([trial(1, 0, x=(1, 3)), trial(1, 1, x=(2, 4), run="other")])


def test_broken_seeds_are_left_out_and_told(capsys):
    trials = [trial(4, 0), trial(6, 1), trial(99, 2, finite=False), trial(np.nan, 3)]
    (panel,) = comparison.curves(trials).values()
    table = rows(comparison.table({"A-v0": panel}))
    assert table["toy"][:3] == ["1", "4", "5"] and table["toy"][4:6] == ["5", "4"]
    assert table["toy"][-1] == "1 not finite, 1 without a return"
    broken = comparison.curves([trial(4, 0, finite=False)])
    assert rows(comparison.table(broken))["toy"] == [*"11----", "-", "1 not finite"]
    assert not capsys.readouterr().err


def test_a_seed_that_is_there_twice_counts_once_and_is_told(capsys):
    """Where it came furthest: one of the runs may have been stopped."""
    trials = [trial(1, 3, run="a"), trial(2, 3, run="b", x=(0, 9, 30)), trial(1, 4, run="b")]
    trials += [trial(5, 3, run="b", lr=0.1), trial(5, 3, run="b", algorithm="other")]
    assert comparison.once(trials) == trials[1:]
    comparison.tell_of_repeated(trials)
    told = "toy on A-v0: more than one of a, b has seed 3 of equal settings; a seed counts once"
    assert capsys.readouterr().err == f"warning: {told}\n"


def test_the_aggregate_is_over_scores_within_each_environment():
    """Environments on other scales; one where all are equal and one curve that is in one only."""

    finals = {"A-v0": [0.0, 1.0, 3.0, 4.0], "B-v0": [-100.0, 0.0, 0.0, 100.0]}
    trials = [trial(x, i, env=env) for env, xs in finals.items() for i, x in enumerate(xs)]
    trials += [
        trial(x, i, env=env, algorithm="b")
        for env, x in (("A-v0", 4), ("B-v0", 0))
        for i in range(2)
    ]
    trials += [trial(2, 0, algorithm="only"), trial(7, 0, env="C-v0"), trial(7, 1, env="C-v0")]
    text = comparison.aggregate(comparison.curves(trials))
    assert text.startswith("over A-v0, B-v0: scores from 0") and "only" not in text
    scores = np.array([0.0, 0.25, 0.75, 1.0, 0.0, 0.5, 0.5, 1.0])
    expected = f"{scipy.stats.trim_mean(scores, 0.25):.4f}"
    assert rows(text)["toy"][:2] == ["4+4", expected] and rows(text)["toy"][3] == "0.5000"
    assert rows(text)["b"] == ["2+2", "0.7500", "0.75 to 0.75", "0.7500"]
    assert comparison.aggregate(comparison.curves([trial(i, i) for i in range(3)])) == ""


def test_the_aggregate_has_the_steps_where_they_differ():
    envs = ("A-v0", "B-v0")
    trials = [trial(i, i, env=env) for env in envs for i in range(2)]
    trials += [trial(3, 0, env=env, algorithm="b", x=(0, 10, 1500)) for env in envs]
    text = comparison.aggregate(comparison.curves(trials))
    assert rows(text)["curve"][:3] == ["seeds", "steps", "IQM"]
    assert rows(text)["toy"][:2] == ["2+2", "20+20"]
    assert rows(text)["b"][:2] == ["1+1", "1,500+1,500"]
    same = [trial(i, i, env=env) for env in envs for i in range(2)]
    assert rows(comparison.aggregate(comparison.curves(same)))["curve"][:2] == ["seeds", "IQM"]


def test_labels_of_a_panel_have_different_colours_and_one_label_has_one():
    panels = [["a", "b", "c"], ["d", "e", "f"], ["g", "h", "a"], ["h", "b"], list("abcdef")]
    colours = plots.colours(panels)
    for panel in panels:
        assert len({colours[label] for label in panel}) == len(panel)
    assert len(plots.colours([list("abcdefghij")])) == 10, "more labels than colours"


# --- runs on disk ----------------------------------------------------------------------------


def test_runs_are_compared_in_one_picture_and_one_table(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ramp = lambda *finals: np.linspace(0, finals, 3).T
    runs = [
        write_run(tmp_path / "a", ramp(8.0, 10.0, 12.0)),
        write_run(tmp_path / "b", ramp(2.0, 4.0), seeds=[3, 4]),
        write_run(tmp_path / "c", ramp(30.0), algorithm="other", x=[0, 150, 300]),
        write_run(tmp_path / "d", ramp(-1.0, -3.0), env="B-v0"),
        write_run(tmp_path / "e", ramp(-2.0), env="B-v0", algorithm="other"),
    ]
    code, out, err = call(capsys, *runs, runs[0])
    assert (code, err) == (0, "") and out.endswith("curves are drawn with --out FILE.pdf\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == list("abcde"), "unasked, no picture"
    code, drawn, err = call(capsys, *runs, runs[0], "--out", "compare.png")
    assert drawn.partition("\ncurves")[0] == out.partition("\ncurves")[0] and not err
    tables = rows(out.partition("over A-v0")[0])
    assert list(tables) == ["curve", "other", "toy"] and out.startswith("evaluation return:\n")
    assert "\nA-v0:\n" in out and "  toy    2     5      " in out
    assert "over A-v0, B-v0:" in out and "\n\ncurves in compare.png\ncaption: " in drawn
    with Image.open("compare.png") as picture:
        assert picture.format == "PNG" and picture.width > 1300
        colours = picture.convert("RGB").getcolors(2**24)
    for colour in plots.COLOURS[:2]:
        rgb = tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
        assert sum(n for n, c in colours if np.abs(np.subtract(c, rgb)).max() < 12) > 300
    monkeypatch.setattr(plots, "save", lambda figure, path, **how: path.write_bytes(b"PNG"))
    code, out, _ = call(capsys, runs[2], "--metric", "episode_return", "--out", "x.png")
    assert code == 0 and "29" in rows(out)["other"] and (tmp_path / "x.png").exists()


def test_a_sweep_is_its_chunks(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    floats = {"gamma": np.array([0.5, 0.5, 0.9])}
    write_run(tmp_path / "s/chunk_000", [[0, 1], [0, 3], [0, 5]], seeds=[0, 1, 0], floats=floats)
    write_run(tmp_path / "s/chunk_001", [[0, 7]], seeds=[1], floats={"gamma": np.array([0.9])})
    write_run(tmp_path / "s/chunk_002", np.zeros((1, 0)), floats={"gamma": np.array([0.8])})
    chunks = [{"run": f"chunk_00{i}", "num_trials": n} for i, n in enumerate((3, 1, 1))]
    (tmp_path / "s/sweep.json").write_text(
        json.dumps({"version": VERSION, "algorithm": "toy", "chunks": chunks})
    )
    code, out, err = call(capsys, "s")
    assert code == 0 and "warning: s: 2 of 3 chunks have metrics" in err
    assert rows(out)["toy, gamma=0.9"][:3] == ["1", "2", "6"]
    assert rows(out)["toy, gamma=0.5"][:3] == ["1", "2", "2"]


def test_real_runs_and_sweeps(tmp_path):
    config = toy.Config(total_timesteps=100, num_evals=2)
    run = launch.run(toy, config, num_seeds=2, root=tmp_path)
    sweep = launch.sweep(toy, config, {"gamma": [0.5, 0.99]}, seed=2, num_seeds=2, root=tmp_path)
    out = tmp_path / "all.png"
    compared = compare.compare([run.run_dir, sweep.sweep_dir], out=out)
    (panel,) = compared.panels.values()
    assert {c.label: len(c.trials) for c in panel} == {"toy, gamma=0.99": 4, "toy, gamma=0.5": 2}
    both = next(curve for curve in panel if "0.99" in curve.label)
    expected = [*run.metrics["eval_return"][:, -1].mean(1)]
    np.testing.assert_allclose(both.finals[:2], expected, rtol=1e-6)
    assert compared.picture == out and out.exists()


def test_two_sweeps_of_the_same_seeds_say_no_more_than_one(tmp_path, capsys):
    config = toy.Config(total_timesteps=40, num_evals=2)
    grid = {"env": ["CartPole-v1", "Acrobot-v1"], "gamma": [0.5, 0.9]}
    sweep = lambda seed: launch.sweep(toy, config, grid, seed=seed, num_seeds=2, root=tmp_path)
    first, second, others = (sweep(seed).sweep_dir for seed in (0, 0, 2))
    alone = compare.compare([first]).text
    assert "sensitivity" in alone and not capsys.readouterr().err
    assert compare.compare([first, second]).text == alone
    told = f"more than one of {first}, {second} has seed 0, 1 of equal settings"
    assert capsys.readouterr().err.count(told) == 2, "a line for each environment"
    (panel, _) = compare.compare([first, second, others]).panels.values()
    assert [curve.seeds for curve in panel] == [4, 4]


def test_a_stopped_sweep_says_nothing_of_what_tuning_brings(tmp_path):
    def stop(point):
        if point.settings[0]["env"] == "Acrobot-v1" and point.settings[0]["gamma"] == 0.9:
            raise launch.Stop

    config = toy.Config(total_timesteps=40, num_evals=2)
    grid = {"env": ["CartPole-v1", "Acrobot-v1"], "gamma": [0.5, 0.9]}
    where = tmp_path / "sweep"
    launch.sweep(toy, config, grid, max_parallel=1, sweep_dir=where, hooks=[stop])
    said = f"sensitivity: {where} is not finished, and left out"
    assert said in (text := compare.compare([where]).text) and text.count("sensitivity") == 1
    launch.resume(where, module=toy)
    assert said not in (text := compare.compare([where]).text) and "sensitivity" in text


def test_what_began_at_another_run_is_not_pooled_with_what_began_from_scratch(tmp_path):
    config, scratch = toy.Config(total_timesteps=40, num_evals=2), tmp_path / "scratch"
    launch.run(toy, config, num_seeds=2, run_dir=scratch)
    launch.run(toy, config, seed=10, num_seeds=2, run_dir=tmp_path / "on", init_from=scratch)
    first = {"init_from": scratch, "init_point": 1, "init_trial": 0}
    launch.run(toy, config, seed=20, num_seeds=2, run_dir=tmp_path / "first", **first)
    (panel,) = compare.compare([scratch, tmp_path / "on", tmp_path / "first"]).panels.values()
    assert {curve.label: len(curve.trials) for curve in panel} == {
        "toy, init_from=scratch": 2,
        f"toy, init_from={scratch}, point last": 2,
        f"toy, init_from={scratch}, point 1, trial 0": 2,
    }
    (panel,) = compare.compare([scratch]).panels.values()
    assert [curve.label for curve in panel] == ["toy"]


def write_digests(path, *digests, commit="one", file="toy.py"):
    """Of a file, in the sessions of a run; None for an early version, which has none."""
    sessions = [
        {"git_commit": commit, **({"files": {file: 8 * x, "other.py": "same"}} if x else {})}
        for x in digests
    ]
    (path / "versions.json").write_text(json.dumps(sessions))


def test_runs_of_an_edited_file_are_not_pooled(tmp_path, capsys):
    """Nor does a seed count once, which both have."""
    texts = {"a": "x", "b": "y", "c": "x", "d": "xy", "e": [None]}
    for name, digests in texts.items():
        write_digests(write_run(tmp_path / name, [[0, 1]], seeds=[name == "c"]), *digests)
    labels = lambda names: {
        curve.label: len(curve.trials)
        for curve in compare.compare([tmp_path / name for name in names]).panels["A-v0"]
    }
    x, y, both, none = (
        f"toy, toy.py={words}" for words in (8 * "x", 8 * "y", f"{8 * 'x'}+{8 * 'y'}", "unknown")
    )
    assert labels("abcde") == {x: 2, y: 1, both: 1, none: 1}
    assert labels("ac") == {"toy": 2} == labels("ce")
    assert labels("d") == {"toy": 1} and "seed counts once" not in capsys.readouterr().err


def test_versions_of_the_kit_are_pooled_and_edits_of_its_file_are_not(tmp_path):
    """So are runs of an environment object, whose file is any script."""
    common, others = {"algorithm": "dqn"}, {"env": {"object": "A-v0"}}
    cases = {"a": ("x", "one"), "b": ("y", "two"), "c": ("z", "one")}
    for seed, (name, (text, commit)) in enumerate(cases.items()):
        made = write_run(tmp_path / name, [[0, 1]], seeds=[seed], **common)
        write_digests(made, text, commit=commit, file="dqn.py")
        made = write_run(tmp_path / f"object_{name}", [[0, 1]], seeds=[seed], **others)
        write_digests(made, text, file="train.py")
    curves = lambda *names: len(compare.compare([tmp_path / n for n in names]).panels["A-v0"])
    assert curves("a", "b") == 1 and curves("a", "c") == 2 and curves("a", "b", "c") == 3
    assert curves("object_a", "object_b") == 1


def test_what_a_run_is_older_than_is_as_by_default(tmp_path):
    """Of an algorithm of the kit; toy is none."""
    settings = {"old": {}, "new": {"clip_obs": 10.0}, "other": {"clip_obs": 5.0}}
    for seed, (name, more) in enumerate(settings.items()):
        write_run(tmp_path / name, [[0, 1]], algorithm="reinforce", seeds=[seed], **more)
    runs = [tmp_path / name for name in settings]
    compared = compare.compare(runs, out=tmp_path / "x.png")
    labels = {curve.label: len(curve.trials) for curve in compared.panels["A-v0"]}
    assert labels == {"reinforce, clip_obs=10": 2, "reinforce, clip_obs=5": 1}


REFUSED = [
    ("nowhere", "nowhere/config.json does not exist: give the directory of a run"),
    ("empty", "empty has no metrics yet"),
    ("run --out there.png", "there.png exists: give the name of a new file"),
    ("run --out x.jpg", "--out x.jpg: give the name of a .pdf or .svg or .png"),
    ("run --out no/x.png", "no is no directory"),
    ("run plain --metric eval_return", "plain has no eval_return"),
    ("run --metric loss", "--metric loss: choose one of eval_return, episode_return"),
]


@pytest.mark.parametrize("words, message", REFUSED, ids=[words for words, _ in REFUSED])
def test_what_is_refused_is_one_line(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.png").write_bytes(b"mine")
    write_run(tmp_path / "run", [[0, 1]])
    write_run(tmp_path / "empty", np.zeros((1, 0)))
    plain = {"timestep": np.zeros(1, int), "episode_return": np.zeros(1)}
    rewrite = RunDir.open(write_run(tmp_path / "plain", [[0]]))
    header = {"algorithm": "toy", "point": 0, "metrics": plain, "is_finite": np.ones(1, bool)}
    files.write_checkpoint(rewrite.file(0, "policy"), header, [])
    before = sorted(tmp_path.rglob("*"))
    code, out, err = call(capsys, *words.split())
    assert code == 2 and not out and message in err and err.count("\n") == 1, err
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "there.png").read_bytes() == b"mine"


def test_training_returns_are_compared_where_one_run_has_no_other(tmp_path):
    write_run(tmp_path / "run", [[0, 1]])
    run_dir = RunDir.open(write_run(tmp_path / "plain", [[0]], gamma=0.5))
    plain = {"timestep": np.zeros(1, int), "episode_return": np.full(1, 4.0)}
    header = {"algorithm": "toy", "point": 0, "metrics": plain, "is_finite": np.ones(1, bool)}
    files.write_checkpoint(run_dir.file(0, "policy"), header, [])
    runs = [tmp_path / "run", tmp_path / "plain"]
    compared = compare.compare(runs, out=tmp_path / "x.png")
    assert compared.text.startswith("training return:")
    assert [curve.finals.tolist() for curve in compared.panels["A-v0"]] == [[4.0], [0.0]]


def test_a_population_is_not_pooled_with_runs_of_its_config(tmp_path, monkeypatch):
    """Its config.json has a learning rate that no member trains with."""
    monkeypatch.setattr(plots, "save", lambda *_, **how: None)
    config = toy.Config(total_timesteps=40, num_evals=2, num_eval_episodes=1)
    launch.run(toy, config, num_seeds=2, run_dir=tmp_path / "run")
    ranges = {"learning_rate": launch.LogUniform(0.01, 1.0)}
    launch.pbt(toy, config, ranges, members=4, rounds=2, run_dir=tmp_path / "pbt")
    other = shutil.copytree(tmp_path / "pbt", tmp_path / "other") / "config.json"
    described = json.loads(other.read_text()) | {"checksum": None}
    described["population"]["share"] = 0.5
    other.write_text(json.dumps(described))
    panels = compare.compare([tmp_path / "run", tmp_path / "pbt", tmp_path / "other"]).panels
    assert {curve.label: len(curve.trials) for curve in panels["CartPole-v1"]} == {
        "toy, learning_rate=0.1": 2,
        "toy, learning_rate=log:0.01:1, pbt=4 members": 1,
        "toy, learning_rate=log:0.01:1, pbt=4 members, share 0.5": 1,
    }
