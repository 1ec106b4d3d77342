"""What settings are ranked by: in the table, in files, at rungs of halving, and by --evaluate."""

import csv
import errno
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from algorithms import launch
from algorithms.launch import cli
from algorithms.launch.engine import experiment, objectives, results
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.outcomes import is_over
from algorithms.launch.tools import compare, ranking
from tests.algorithms.launch import toy
from tests.algorithms.launch.kept.make import KEPT

pytestmark = pytest.mark.usefixtures("quick_pictures", "shared_programs")
CONFIG = toy.Config(total_timesteps=120, num_evals=4, eval_at_start=False)
GRID = {"learning_rate": [0.1, 0.3, 0.5, 0.7], "gamma": [0.9, 1.0]}
# Of two seeds each, at steps 0, 10 and 40.
CURVES = {
    "late": [[0.0, 0.0, 10.0], [0.0, 0.0, 10.0]],
    "early": [[0.0, 9.0, 9.0], [0.0, 8.0, 8.0]],
    "uneven": [[8.0, 8.0, 16.0], [0.0, 0.0, 6.0]],
    "steady": [[7.0, 7.0, 7.0], [7.0, 7.0, 7.0]],
}
STEPS = np.array([0, 10, 40])


@pytest.fixture(scope="module")
def swept(quick_pictures, shared_programs, tmp_path_factory):
    """A sweep that is ranked by its worst seeds."""
    root = tmp_path_factory.mktemp("swept")
    return launch.sweep(toy, CONFIG, GRID, num_seeds=3, objective="worst_seed", root=root)


def outcomes(curves):
    return [
        results.Outcome({"x": name}, seed, STEPS, np.array(curve), True, "chunk_000", 0)
        for name, seeds in curves.items()
        for seed, curve in enumerate(seeds)
    ]


@pytest.mark.parametrize(
    "objective, scores",
    [
        ("final_return", {"uneven": 11.0, "late": 10.0, "early": 8.5, "steady": 7.0}),
        # Trapezoids: (0 + 9) / 2 * 10 + 9 * 30 = 315 of early's first seed, over 40 steps.
        ("mean_return", {"early": 7.4375, "steady": 7.0, "uneven": 6.625, "late": 3.75}),
        ("worst_seed", {"late": 10.0, "early": 8.0, "steady": 7.0, "uneven": 6.0}),
        ("steps_to=7", {"steady": 0, "early": -10, "late": -40, "uneven": -math.inf}),
        ("steps_to=8", {"early": -10, "late": -40, "uneven": -math.inf, "steady": -math.inf}),
    ],
)
def test_settings_are_ranked_by_an_objective(objective, scores):
    ranked = results.rank(outcomes(CURVES), objective)
    assert {one.setting["x"]: one.score(objective) for one in ranked} == pytest.approx(scores)
    assert [one.setting["x"] for one in ranked] == list(scores)
    if objective == objectives.DEFAULT:
        default = results.rank(outcomes(CURVES))
        assert [one.setting for one in default] == [one.setting for one in ranked]
        assert all(one.score() == one.mean for one in ranked)


def test_broken_settings_come_last_whatever_the_objective():
    trials = outcomes(CURVES)
    trials[2] = trials[2]._replace(is_finite=False)  # a seed of early
    for objective in ("mean_return", "worst_seed", "steps_to=7"):
        ranked = results.rank(trials, objective)
        assert ranked[-1].setting["x"] == "early" and len(ranked) == 4
    assert objectives.score("worst_seed", [trials[2]]) == -math.inf


def test_the_table_has_a_column_for_another_objective():
    ranked = results.rank(outcomes(CURVES), "steps_to=7")
    head, *rows = results.table(ranked, "steps_to=7").splitlines()
    assert head.split()[:5] == ["rank", "x", "seeds", "steps_to=7", "return"]
    assert [row.split()[3] for row in rows] == ["0", "10", "40", "never"]
    assert "mean of curve" not in head
    assert "final_return" not in results.table(ranked, "final_return")
    again = results.retests(ranked, outcomes(CURVES), "steps_to=7")
    assert [one.again.setting["x"] for one in again] == ["steady", "early", "late", "uneven"]
    head, first, *_ = results.retest_table(again, "steps_to=7").splitlines()
    assert head.split()[:4] == ["rank", "x", "steps_to=7", "sweep"] and first.split()[2] == "0"


@pytest.mark.parametrize(
    "objective, message",
    [
        ("worst", "unknown objective 'worst'; did you mean worst_seed"),
        (max, "unknown objective '<built-in function max>'; there are final_return"),
        ("return", "did you mean mean_return, final_return"),
        ("best", "steps_to=THRESHOLD"),
        ("steps_to", "objective=steps_to: give a return to reach, steps_to=475"),
        ("steps_to=nan", "steps_to=nan: give a return to reach"),
        ("mean_return=3", "did you mean mean_return"),
    ],
)
def test_objectives_that_are_none_leave_nothing_behind(tmp_path, objective, message):
    with pytest.raises(UserError) as caught:
        launch.sweep(toy, CONFIG, GRID, objective=objective, root=tmp_path / "runs")
    assert message in str(caught.value) and not (tmp_path / "runs").exists()


def test_files_and_the_result_follow_the_objective(swept, tmp_path):
    worst = lambda one: min(trial.final for trial in one.trials)
    assert [worst(one) for one in swept.ranked] == sorted(map(worst, swept.ranked), reverse=True)
    by_mean = sorted(swept.ranked, key=lambda one: -one.mean)
    assert by_mean[0] is not swept.ranked[0], "the test would show nothing"
    assert swept.objective == -worst(swept.ranked[0])
    best, _ = cli.defaults(toy, ["--config", str(swept.sweep_dir / "best.json")])
    assert {name: getattr(best, name) for name in GRID} == swept.ranked[0].setting
    assert json.loads((swept.sweep_dir / "sweep.json").read_text())["objective"] == "worst_seed"
    with open(swept.sweep_dir / "results.csv") as file:
        rows = list(csv.DictReader(file))
    for one in swept.ranked:
        mine = [rows[trial.number]["objective"] for trial in one.trials]
        np.testing.assert_allclose([float(text) for text in mine], worst(one), rtol=1e-6)
    again = launch.resume(swept.sweep_dir, module=toy)
    assert [one.setting for one in again.ranked] == [one.setting for one in swept.ranked]
    plain = launch.sweep(toy, CONFIG, GRID, num_seeds=3, sweep_dir=tmp_path / "plain")
    assert "objective" not in json.loads((tmp_path / "plain" / "sweep.json").read_text())
    assert plain.ranked[0].setting == by_mean[0].setting
    given = {"num_seeds": 3, "sweep_dir": swept.sweep_dir, "resume_if_exists": True}
    with pytest.raises(UserError, match=r"objective worst_seed \(asked for: None\)"):
        launch.sweep(toy, CONFIG, GRID, **given)


def test_steps_are_to_be_few():
    threshold = 1.45  # eval_return has a mean of 1.5 of what episodes add
    objective = f"steps_to={threshold}"
    swept = launch.sweep(toy, CONFIG, GRID, num_seeds=1, objective=objective, save=False)
    steps = [
        next((t for t, r in zip(one.trials[0].timesteps, one.trials[0].returns) if r >= threshold))
        for one in swept.ranked
        if one.score(objective) > -math.inf
    ]
    assert len(steps) > 1 and steps == sorted(steps) and swept.objective == steps[0] > 0


def test_halving_keeps_what_the_objective_prefers():
    options = {"num_seeds": 3, "save": False, "seed": 4}
    asked = {"objective": "worst_seed", "halving": 2, "rungs": 2}
    short = launch.sweep(toy, CONFIG, GRID, **asked, **options)
    kept = [one.setting for one in short.ranked if one.share == 1.0]
    whole = launch.sweep(toy, CONFIG, GRID, **options)
    first = [t._replace(returns=t.returns[:2], timesteps=t.timesteps[:2]) for t in whole.trials]
    best = lambda objective: [one.setting for one in results.rank(first, objective)[:4]]
    same = lambda one, other: all(setting in other for setting in one) and len(one) == len(other)
    assert same(kept, best("worst_seed"))
    assert not same(kept, best("final_return")), "the test would show nothing"


def test_the_best_setting_is_evaluated_by_the_objective(swept, capsys):
    cli.main(toy, ["--evaluate", str(swept.sweep_dir), "--episodes", "2", "--trial", "all"])
    out, err = capsys.readouterr()
    numbers = [trial.number for trial in swept.ranked[0].trials]
    played = [line.split()[1] for line in out.splitlines() if line.startswith("trial ")]
    assert played == [str(number) for number in numbers]
    assert f", worst_seed {-swept.objective:.5g}): trials " in err


def test_the_flag(tmp_path, capsys):
    words = f"--gamma 0.9 1 --objective mean_return --total-timesteps 60 --run-dir {tmp_path}/x"
    cli.main(toy, words.split())
    assert "seeds  mean_return  return" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(toy, f"--resume {tmp_path}/x --objective worst_seed".split())
    assert "--resume does not go with --objective worst_seed" in capsys.readouterr().err


# --- a finished sweep, ranked again ------------------------------------------------------------

OTHER, PAGE = "mean_return", ("report", "html")


def again(*words):
    compare.main([str(word) for word in words])


def content(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_a_sweep_ranked_again_is_one_that_was_ranked_so_from_the_beginning(swept, tmp_path, capsys):
    place, asked = tmp_path / "asked", {"num_seeds": 3, "objective": OTHER}
    expected = launch.sweep(toy, CONFIG, GRID, **asked, sweep_dir=place)
    shutil.copytree(swept.sweep_dir, mine := tmp_path / "again")
    assert [one.setting for one in expected.ranked] != [one.setting for one in swept.ranked]
    before = content(mine)
    again(mine, "--objective", OTHER)
    said = capsys.readouterr().out
    assert results.table(expected.ranked, OTHER) in said
    for name in ("best.json", "results.csv"):
        stem, _, kind = name.partition(".")
        new = mine / f"{stem}-{OTHER}.{kind}"
        assert new.read_text() == (place / name).read_text() and f"{new}" in said
    made = content(mine)
    assert made.keys() - before.keys() == {
        f"{name}-{OTHER}.{kind}" for name, kind in (("best", "json"), ("results", "csv"), PAGE)
    }
    assert before == {name: made[name] for name in before}, "what was there has changed"
    (mine / f"best-{OTHER}.json").write_text("mine")
    (mine / f"results-{OTHER}.csv").unlink()
    there = content(mine)
    again(mine, "--objective", OTHER)
    said = capsys.readouterr().out
    assert f"nothing is written, to keep what is there: {mine}/best-{OTHER}.json" in said
    assert content(mine) == there


def test_a_sweep_that_cannot_be_written_is_ranked_all_the_same(
    swept, tmp_path, capsys, monkeypatch
):
    """As one of somebody else's."""
    shutil.copytree(swept.sweep_dir, mine := tmp_path / "mine")
    before = content(mine)

    def full(path, *_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(ranking.files, "write_whole", full)
    again(mine, "--objective", OTHER)
    said = capsys.readouterr().out
    assert "seeds  mean_return" in said
    assert f"nothing is written: {mine} cannot be written: Read-only file system" in said
    assert content(mine) == before


def test_a_sweep_ranked_by_its_own_objective_writes_nothing(swept, tmp_path, capsys):
    shutil.copytree(swept.sweep_dir, mine := tmp_path / "mine")
    before = content(mine)
    again(mine, "--objective", "worst_seed")
    assert "worst_seed is this sweep's own objective: best.json has" in capsys.readouterr().out
    assert content(mine) == before


def test_halving_and_a_retest_say_what_a_new_ranking_cannot_know(tmp_path, capsys):
    shutil.copytree(KEPT / "ppo-halved", mine := tmp_path / "mine")
    again(mine, "--objective", "steps_to=-100")
    said = capsys.readouterr().out
    assert "halving, by mean_return, stopped 2 of 4 settings early: they stand behind" in said
    assert "the 2 retested ones, which mean_return chose" in said
    assert said.splitlines()[1].split()[4] == "never"
    with open(mine / "results-steps_to=-100.csv") as new, open(mine / "results.csv") as old:
        pairs = list(zip(csv.DictReader(new), csv.DictReader(old), strict=True))
    for name in ("bracket", "rung", "run", "final_return"):
        assert [row[name] for row, _ in pairs] == [row[name] for _, row in pairs], name
    best = [json.loads((mine / f"best{more}.json").read_text()) for more in ("", "-steps_to=-100")]
    assert best[0]["seeds"] == best[1]["seeds"] == [2, 3], "those of the retest"
    with open(mine / "retest-steps_to=-100.csv") as file:
        assert {row["objective"] for row in csv.DictReader(file)} == {"inf"}


def test_rungs_are_counted_in_their_brackets():
    shares = [1 / 9, 1 / 3, 1.0, 1 / 3, 1.0, 1.0]
    entry = lambda stage: experiment.Entry(Path("x"), [], stage, share=shares[stage])
    there = experiment.Experiment(Path("x"), {}, [entry(i) for i in (0, 3, 5, 1, 2, 4)], True)
    expected = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)]
    assert ranking._rungs(there) == dict(enumerate(expected))


def test_a_sweep_is_over_with_its_last_rung_and_its_retest(tmp_path):
    """What a kill leaves between two stages has no unfinished chunk."""
    shutil.copytree(KEPT / "ppo-halved", mine := tmp_path / "mine")
    said = json.loads((mine / "sweep.json").read_text())
    assert is_over(experiment.open(mine))
    for chunks in (1, 2):
        (mine / "sweep.json").write_text(json.dumps(said | {"chunks": said["chunks"][:chunks]}))
        assert not is_over(experiment.open(mine)), chunks
    (mine / "sweep.json").write_text(json.dumps(said))
    (mine / "chunk_002" / "checkpoints" / "000003.policy").unlink()
    assert not is_over(experiment.open(mine))


@pytest.mark.parametrize(
    "words, message",
    [
        ("ppo-sweep --objective worst", "unknown objective 'worst'; did you mean worst_seed"),
        ("ppo-sweep --objective steps_to", "give a return to reach, steps_to=475"),
        ("ppo-sweep ppo-halved --objective worst_seed", "here are 2 directories: give one"),
        ("ppo-sweep --objective worst_seed --out x.png", "ranks one sweep anew: leave --out out"),
        ("sac-run --objective worst_seed", "sac-run is a run: --objective ranks the settings"),
        ("stopped --objective worst_seed", "is not finished: --resume stopped finishes it"),
    ],
)
def test_what_cannot_be_ranked_again(words, message, tmp_path, monkeypatch, capsys):
    for name in ("ppo-sweep", "ppo-halved", "sac-run"):
        (tmp_path / name).symlink_to(KEPT / name)
    shutil.copytree(KEPT / "ppo-sweep", tmp_path / "stopped")
    for file in (tmp_path / "stopped" / "chunk_003" / "checkpoints").glob("000003.*"):
        file.unlink()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        again(*words.split())
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and not out and message in err and err.count("\n") == 1
    assert not list(KEPT.glob("*/best-*"))
