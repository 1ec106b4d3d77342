"""The tables agree with the kept scores."""

import dataclasses
import itertools
import re

import jax
import numpy as np
import pytest

from algorithms import launch
from algorithms.launch import cli, flags
from tests.algorithms.launch import toy
from tests.benchmarks import (
    jaxmarl_scripts,
    learning,
    peers,
    pictures,
    presets,
    report,
    reppo_script,
    teams,
)
from tests.benchmarks.cells import CELLS, PEERS, Cell

CELL = Cell("toy", "CartPole-v1", "--env CartPole-v1", 4, solved=475.0)


def rows(scores, before, cell="CartPole-v1", first=10_000):
    """Seeds with four points: before training, the earlier return twice, and the score."""
    return [
        {"cell": cell, "seed": first + i, "timestep": 6000, "score": s, "training": s - 1}
        | {"curve": f"0 {b} {b} {s}", "command": "python x.py"}
        | {"git_commit": "abc", "jax": "0", "device": "cpu"}
        for i, (s, b) in enumerate(zip(scores, before))
    ]


def test_a_line_says_how_many_are_solved_and_how_many_were(tmp_path):
    report.keep("toy", rows([500.0, 475.0, 160.0, 300.0], [500.0, 20.0, 500.0, 400.0]), tmp_path)
    line = dict(zip(report.COLUMNS, report.line(CELL, report.read("toy", tmp_path))))
    assert line["solved"] == "2 of 4" and line["collapsed"] == "1 of 4"
    assert line["mean (95 %)"].startswith("358.8 (") and line["worst"] == "160.0"
    assert line["IQM"] == "387.5" and line["in training"] == "357.8"
    assert line["steps"] == "6,000" and line["cell"] == "CartPole-v1"
    assert "command" not in line, "said once on the page, by the cell's name"


def test_without_a_bar_nothing_is_solved_or_not(tmp_path):
    report.keep("toy", rows([1.0, np.nan], [1.0, 1.0]), tmp_path)
    line = report.line(CELL._replace(solved=float("nan")), report.read("toy", tmp_path)[:1])
    assert dict(zip(report.COLUMNS, line))["solved"] == ""


def test_the_suite_stands_beside_published_returns_of_its_physics(tmp_path):
    curve = "0 10 20 30 40 50"
    row = {"cell": "playground/FingerSpin, 250,000 steps", "timestep": 250_000, "curve": curve}
    report.keep("sac", [row | {"seed": i} for i in (1, 2)], tmp_path)
    columns = ("task", "system", "physics", "steps", "mean", "std")
    lines = [("FingerSpin", "A", "MJX", 1, 7, 2), ("HopperHop", "A", "MuJoCo", 1, 3, "")]
    report.keep("dm_control-published", [dict(zip(columns, line)) for line in lines], tmp_path)
    cells = [Cell(name, row["cell"], "", 2) for name in ("sac", "ppo")]
    head, _, *found = report.suite_lines(cells, "MJX", tmp_path)
    assert head == ["task", "sac", "ppo", "A"] and found == [
        ["FingerSpin", "50 (20)", "-", "7 ± 2"]
    ]
    assert report.suite_lines([], "MuJoCo", tmp_path)[2:] == [["HopperHop", "3"]]


def test_a_cell_takes_the_place_of_its_own_rows_alone(tmp_path):
    report.keep("toy", rows([1.0, 2.0], [0.0, 0.0]), tmp_path)
    report.keep("toy", rows([3.0], [0.0], cell="Acrobot-v1"), tmp_path)
    report.keep("toy", rows([4.0, 5.0], [0.0, 0.0], first=20_000), tmp_path)
    kept = report.read("toy", tmp_path)
    assert [row["score"] for row in kept] == ["3", "4", "5"]
    line = report.line(CELL, kept[1:])
    assert line[1] == "CartPole-v1 (run 2)", "the second block of seeds"
    assert report.block_of(kept[1:]) == 2, "so that it is run again on those"
    assert report.block_of([]) == 1, "not yet reported"


def test_a_metric_is_kept_and_shown_in_the_table_of_teams(tmp_path):
    report.keep("toy", rows([1.0, 2.0], [0.0, 0.0], cell="Acrobot-v1"), tmp_path)
    of = lambda won: {"won": won, "won in training": won / 2}
    won = [row | of(w) for row, w in zip(rows([3.0, 4.0], [0.0, 0.0]), (0.5, 1.0))]
    report.keep("toy", won, tmp_path)
    report.keep("toy", rows([5.0], [0.0], cell="Pendulum-v1"), tmp_path)
    kept = report.read("toy", tmp_path)
    assert [row["won"] for row in kept] == ["", "", "0.5", "1", ""]
    line = lambda cell, rows: dict(zip(report.TEAMS, report.team_line(cell, rows)))
    found = line(CELL._replace(metric="won", what="x", name="CartPole-v1 --a b"), kept[2:4])
    assert found["environment"] == "CartPole-v1" and found["algorithm"] == "toy (x)"
    assert found["return of an agent (95 %)"].startswith("3.50 (") and found["worst"] == "3.00"
    assert found["metric (95 %)"] == "won 0.75 (0.50 to 1.00)" and found["in training"] == "0.38"
    assert found["cell"] == "`toy/CartPole-v1 --a b`", "what learning.py and peers.py take"
    assert line(CELL, kept[2:4])["metric (95 %)"] == "-", "none was asked for"
    again = [row | {"seed": "20000"} for row in kept[2:4]]
    assert line(CELL, again)["algorithm"] == "toy (run 2)"
    assert line(CELL._replace(metric="won"), kept[1:3])["metric (95 %)"] == "-", "not of all seeds"
    alone = line(CELL._replace(metric="won"), kept[2:3])
    assert alone["return of an agent (95 %)"] == "3.00" and alone["metric (95 %)"] == "won 0.50"


def test_the_table_of_teams_is_in_order_of_environments(tmp_path):
    cells = [cell for cell in CELLS + PEERS if "teams" in cell.tables]
    for cell in cells:
        report.keep(cell.algorithm, rows([1.0], [0.0], cell=cell.name), tmp_path)
    lines = report.table("teams", tmp_path).splitlines()[2:]
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines]
    assert len(lines) == len(cells) and len(set(names)) == 4
    assert sum(a != b for a, b in itertools.pairwise(names)) == 3, "each in one piece"


def test_the_table_of_world_models_has_the_mean_of_the_last_third(tmp_path):
    """Of six points, the last two. A seed counts as solved if any point was."""
    (cell,) = [cell for cell in CELLS if cell.key == "dreamer/CartPole-v1, 20,480 steps"]
    curves = ("0 9 480 30 100 300", "0 9 20 30 300 400")
    kept = [
        row | {"curve": c} for row, c in zip(rows([300.0, 400.0], [0.0, 0.0], cell.name), curves)
    ]
    report.keep("dreamer", kept, tmp_path)
    head, _, line = report.table("worlds", tmp_path).splitlines()
    line = dict(zip(head[2:-2].split(" | "), line[2:-2].split(" | ")))
    assert line["environment"] == "CartPole-v1" and line["algorithm"] == "dreamer"
    assert line["last point (95 %)"].startswith("350.0 (") and line["worst"] == "300.0"
    assert line["last third (95 %)"] == "275.0 (200.0 to 350.0)"
    assert line["solved at some point"] == "1 of 2" and line["in training"] == "349.0"


def test_the_table_of_few_steps_has_the_first_solved_points(tmp_path):
    """Of four points in 6,000 steps. A seed that is never solved has none."""
    curves = ("0 480 20 480", "0 9 9 475", "0 20 475 30", "0 1 2 3")
    kept = [
        row | {"curve": c} for row, c in zip(rows([480.0, 475.0, 30.0, 3.0], [0.0] * 4), curves)
    ]
    report.keep("toy", kept, tmp_path)
    kept = report.read("toy", tmp_path)
    line = lambda rows: dict(zip(report.FEW, report.few_line(CELL, rows)))
    solved = line(kept[:3])
    assert solved["steps until solved, median"] == "4,000"
    assert solved["of the slowest seed"] == "6,000" and solved["solved at"] == "475"
    assert solved["last point (95 %)"].startswith("328.3 (") and solved["worst"] == "30.00"
    assert solved["solved"] == "2 of 3", "at the last point"
    assert line(kept)["of the slowest seed"] == "-"
    assert line(kept[3:])["steps until solved, median"] == "-"


def test_a_task_has_a_line_with_all_memories(tmp_path):
    """The number of solved seeds stands behind the mean."""
    for name, scores in (("gru", [4.0, 0.0]), ("lru", [4.0, 4.0]), ("s5", [0.0, 0.0])):
        report.keep("ppo_rnn", rows(scores, [0.0, 0.0], cell=f"TMaze-v0, {name}"), tmp_path)
    report.keep("ppo_rnn", rows([20.0], [0.0], cell="RockSample-v0, s5"), tmp_path)
    lines = [line.split(" | ") for line in report.table("memory", tmp_path).splitlines()]
    assert lines[0][1:7] == ["task", "steps", "seeds", "best", "solved at", "gru"]
    assert len(lines) == 5
    maze, rocks, mean = (dict(zip(lines[0], line)) for line in lines[2:])
    assert (maze["task"], maze["steps"], maze["seeds"]) == ("TMaze-v0", "6,000", "2")
    assert maze["solved at"] == "3.9" and (maze["gru"], maze["lru"]) == ("2.00 (1)", "4.00 (2)")
    assert maze["lstm"] == "-" and rocks["solved at"] == "" and rocks["s5"] == "20.00"
    assert (maze["best"], rocks["best"]) == ("4", "50")
    assert mean["task"] == "mean share of the best"
    assert mean["s5"] == "0.20", "(0 / 4 + 20 / 50) / 2"
    assert mean["lru"] == mean["lstm"] == "-", "not measured on every task"


def test_speeds_are_kept_a_row_for_each_case(tmp_path):
    report.keep_speeds("x", ("case", "rate"), [["a", "1k"], ["b", "2k"]], tmp_path)
    report.keep_speeds("x", ("case", "rate"), [["b", "3k"]], tmp_path)
    kept = report.read("speed-x", tmp_path)
    assert [(row["case"], row["rate"]) for row in kept] == [("a", "1k"), ("b", "3k")]
    assert f"jax {jax.__version__}" in kept[0]["of"]
    lines = report.table("speed-x", tmp_path).splitlines()
    assert lines[:2] == ["| case | rate | of |", "| --- | --- | --- |"] and len(lines) == 4
    assert report.table("speed-y", tmp_path) == "", "not measured yet"
    report.keep_table("launches", ("program", "launches"), [["a, h100", "3"]], tmp_path)
    assert report.table("launches", tmp_path).splitlines()[2].startswith("| a, h100 | 3 | ")


def learned(device, scores, part="pqn"):
    """Rows of a run on an accelerator, as accelerator.py collects them."""
    name = {"job": "minatar-Asterix", "part": part, "device": device}
    stamp = {"took": "81 s", "of": "abc1234, jax 0.11.2"}
    return [{**name, **row, **name, **stamp} for row in rows(scores, [0.0] * len(scores))]


def test_rows_of_an_accelerator_are_kept_for_each_kind(tmp_path):
    keep = lambda found: report.keep("gpu-learning", found, tmp_path, by=report.MEASURED)
    keep(learned("NVIDIA H200", [1.0, 2.0]))
    keep(learned("NVIDIA H100", [3.0, 4.0, 5.0, 9.0]))
    keep(learned("NVIDIA H200", [6.0]))
    keep(learned("NVIDIA H200", [7.0], part="ppo"))
    found = [(row["device"], row["score"]) for row in report.read("gpu-learning", tmp_path)]
    assert [score for device, score in found if device == "NVIDIA H200"] == ["6", "7"]
    lines = [line.split(" | ") for line in report.table("gpu-learning", tmp_path).splitlines()]
    first = dict(zip(lines[0], lines[2]))
    assert (first["device"], first["seeds"], first["steps"]) == ("NVIDIA H100", "4", "6,000")
    assert first["IQM (95 %)"].startswith("4.50 (3.") and first["mean"] == "5.25"
    assert first["took"] == "81 s" and len(lines) == 5
    assert report.table("gpu-pairs", tmp_path) == "", "not measured yet"


def test_a_tuning_run_is_kept_once_with_its_dips(tmp_path):
    """Points after two fifths of the run: the last two of four."""
    for scores in [(500.0, 500.0), (500.0, 20.0)]:
        report.keep_look("quiet", CELL, rows(scores, [500.0, 30.0], first=0), tmp_path)
    report.keep_look("other", CELL, rows([1.0], [1.0], first=0), tmp_path)
    kept = report.read("tuning", tmp_path)
    assert [row["topic"] for row in kept] == ["quiet", "other"]
    assert (kept[0]["solved"], kept[0]["collapsed"], kept[0]["seeds"]) == ("1", "0", "2")
    assert (kept[0]["dips"], kept[0]["late_points"], kept[0]["seed"]) == ("2", "4", "0")
    assert kept[0]["settings"] == "--env CartPole-v1"


def test_a_picture_is_drawn_when_its_numbers_change(tmp_path):
    folder = tmp_path / "results"
    picture = lambda: (tmp_path / "learning.png").stat().st_mtime_ns
    report.keep("ppo", rows([500.0, 475.0], [20.0, 500.0]), folder)
    pictures.write(folder)
    first, digest = picture(), pictures.digest("learning", folder)
    pictures.write(folder)
    assert picture() == first
    report.keep("ppo", rows([500.0, 474.0], [20.0, 500.0]), folder)
    pictures.write(folder)
    assert picture() > first and pictures.digest("learning", folder) != digest
    assert not (tmp_path / "games.png").exists(), "nothing to show"
    assert list(pictures.panels("learning", folder)) == ["CartPole-v1, policy gradients"]


def test_a_point_is_the_mean_of_the_episodes_that_ended_within_it():
    length = presets.POINTS * 10
    said = "global_step=3, episodic_return=[8.]\nSPS: 7\nglobal_step=9, episodic_return=10.0\n"
    curve = presets.curve_of_lines(f"{said}global_step=199, episodic_return=[20.5]\n", length)
    np.testing.assert_array_equal(curve, [9.0, *[np.nan] * (presets.POINTS - 2), 20.5])


def test_presets_are_drawn_and_listed_beside_the_scripts(tmp_path):
    """In standard errors, later points differ by 4 / sqrt(4 + 4)."""
    curves = {"script": [[1.0, 2.0], [3.0, 6.0]], "preset": [[1.0, 6.0], [3.0, 10.0]]}
    for side, found in curves.items():
        rows = presets.rows("dqn/cleanrl", side, [np.repeat(x, 10) for x in found], "abc")
        report.keep("presets", rows, tmp_path, by=("preset", "side"))
    kept = report.read("presets", tmp_path)
    assert [row["seed"] for row in kept] == ["1", "2", "100", "101"]
    ((title, (script, preset)),) = pictures.panels("presets", tmp_path).items()
    labels = title, script.label, preset.label
    assert labels == ("dqn.py --preset cleanrl", "the script", "the preset")
    np.testing.assert_array_equal(script.timesteps[[0, -1]], [1e4, 2e5])
    np.testing.assert_array_equal(preset.returns[[0, -1]], [[1.0, 3.0], [6.0, 10.0]])
    assert report.preset_lines(kept) == [
        ["dqn/cleanrl", "200,000", side, "2", *["2"] * 4, *[mean] * 3, largest]
        for side, mean, largest in (("the script", "4", ""), ("the preset", "8", "1.4"))
    ]


def test_every_page_with_a_table_is_written():
    files = [
        page for place in ("", "docs", "algorithms") for page in (report.ROOT / place).glob("*.md")
    ]
    assert {page for page in files if report.REGION.search(page.read_text())} == set(report.PAGES)


def test_badges_come_with_the_address_of_the_repository():
    project = {"license": "MIT", "requires-python": ">=3.11,<3.14"}
    assert report.badges(project) == report.badges(project | {"urls": {}}) == ""
    urls = {"Repository": "https://github.com/me/kit/"}
    lines = report.badges(project | {"urls": urls}).splitlines()
    assert len(lines) == 4 and all(re.fullmatch(r"\[!\[.+\]\(https:.+\)\]\(.+\)", x) for x in lines)
    actions = "https://github.com/me/kit/actions"
    assert lines[0] == f"[![CI]({actions}/workflows/ci.yml/badge.svg)]({actions})"
    colab = "https://colab.research.google.com/github/me/kit/blob/main/docs/tour.ipynb"
    assert lines[-1].endswith(f"({colab})")
    urls["Documentation"] = "https://me.github.io/kit"
    assert report.badges(project | {"urls": urls}).count("(https://me.github.io/kit)") == 1


@dataclasses.dataclass(frozen=True)
class Few:
    """The flags beside settings that cells have; tyro takes twice as long for all of them."""

    preset: str | None = None


def test_cells_have_names_of_their_own_and_settings_that_work(monkeypatch):
    monkeypatch.setattr(flags, "Flags", Few)
    monkeypatch.setattr(cli, "Flags", Few)
    assert len({cell.key for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        module, config = learning.settings(cell)
        assert module.__name__ == f"algorithms.{cell.algorithm}"
        assert config.total_timesteps >= (1_000 if "few" in cell.tables else 10_000)
        assert config.num_eval_episodes >= 32


def test_other_kits_have_settings_for_their_cells():
    rejax = {cell.key for cell in PEERS if cell.algorithm.startswith("rejax")}
    assert rejax == set(peers.SETTINGS)
    jaxmarl = {cell.key.removeprefix("jaxmarl-") for cell in PEERS if "jaxmarl" in cell.key}
    assert jaxmarl == set(jaxmarl_scripts.SETTINGS)
    reppo = {cell.name for cell in PEERS if cell.algorithm == "reppo-script"}
    assert reppo == set(reppo_script.CASES)
    number = len(rejax) + len(jaxmarl) + len(reppo)
    assert len(PEERS) == number + 2 + 2 + 2, "PureJaxRL on two, two of brax, DreamerV3, FlashSAC"


@pytest.mark.needs("jaxmarl")
def test_speeds_of_teams_are_of_settings_that_work():
    assert len({case.name for case in teams.CASES}) == len(teams.CASES)
    for case in teams.CASES:
        module, config = teams.settings(case)
        module.make_train(config)
        assert case.script in jaxmarl_scripts.SETTINGS
        assert config.update_epochs == 4
        assert config.num_envs == case.num_envs or case.name.endswith("own")


def test_training_a_cell_gives_a_row_for_each_seed(tmp_path, monkeypatch):
    config = toy.Config(total_timesteps=200, num_evals=4)
    monkeypatch.setattr(learning, "settings", lambda cell: (toy, config))
    cell = CELL._replace(algorithm="toy", seeds=2)
    made = [learning.train(cell, 10_000, tmp_path / "run") for _ in range(2)]
    assert made[0] == made[1], "the second time it is read"
    assert [row["seed"] for row in made[0]] == [10_000, 10_001]
    returns = launch.load(tmp_path / "run", module=toy).metrics["eval_return"].mean(-1)
    np.testing.assert_allclose([row["score"] for row in made[0]], returns[:, -1], rtol=1e-6)
    steps, curves = report.curves(made[0])
    np.testing.assert_allclose(curves, returns, rtol=1e-4)
    np.testing.assert_array_equal(steps, made[0][0]["timestep"] * np.arange(5) / 4)
    words = "--env CartPole-v1 --seed 10000 --num-seeds 2"
    assert made[0][0]["command"] == f"python algorithms/toy.py {words}"


def test_cells_are_chosen_by_name_or_by_algorithm():
    assert [cell.key for cell in learning.chosen(["ppo/Acrobot-v1"])] == ["ppo/Acrobot-v1"]
    expected = [cell for name in ("c51", "iqn") for cell in CELLS if cell.algorithm == name]
    assert learning.chosen(["c51", "iqn"]) == expected
    with pytest.raises(learning.UserError, match="did you mean ppo/Acrobot-v1"):
        learning.chosen(["ppo/Acrobot"])


def level_rows(training, worst, parameters="hidden"):
    """Rows of a case of levels, as a csv file gives them."""
    case = {"environment": "CartPole-v1", "policy": "S5", "parameters": parameters}
    case |= {"training": training, "steps": "300", "mean": "200"}
    new = lambda i, x: case | {"seed": f"{i}", "worst_tenth": f"{x}", "worst_cell": f"{x - 1}"}
    return [new(i, x) for i, x in enumerate(worst)]


def test_a_kept_case_of_levels_replaces_itself_only(tmp_path):
    report.keep_levels(level_rows("default", [1, 2]), tmp_path)
    report.keep_levels(level_rows("PLR", [3, 4]), tmp_path)
    report.keep_levels(level_rows("PLR", [5, 6], "observed"), tmp_path)
    report.keep_levels(level_rows("PLR", [7, 8]), tmp_path)
    found = [row["worst_tenth"] for row in report.read("levels", tmp_path)]
    assert found == ["1", "2", "5", "6", "7", "8"]


def test_lines_of_levels_have_paired_differences_from_the_default():
    """Seeds differ by more than trainings do, so that only paired differences are this small."""
    worst = np.arange(0.0, 300.0, 10.0)
    kept = level_rows("default", worst) + level_rows("PLR", worst + 5.0, "observed")
    kept += level_rows("ACCEL", worst[:9])  # not the same seeds
    first, second, third = report.level_lines(kept)
    error = worst.std(ddof=1) / 30**0.5
    head = ["CartPole-v1", "S5", "hidden", "default", "200 ± 0"]
    assert first == [*head, f"145 ± {error:.0f}", f"144 ± {error:.0f}", ""]
    assert second[2:4] == ["observed", "PLR"] and second[-1] == "5 (5 to 5)"
    assert third[-1] == ""
