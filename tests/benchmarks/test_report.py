"""What the tables say of the scores that are kept."""

import numpy as np
import pytest

from algorithms import launch
from tests.algorithms.launch import toy
from tests.benchmarks import learning, report
from tests.benchmarks.cells import CELLS, Cell

CELL = Cell("toy", "CartPole-v1", "--env CartPole-v1", 4, solved=475.0)


def rows(scores, before, cell="CartPole-v1", first=10_000):
    return [
        {"cell": cell, "seed": first + i, "timestep": 5000, "score": s, "best_before": b}
        | {"training": s - 1, "command": "python x.py", "git_commit": "abc", "jax": "0"}
        for i, (s, b) in enumerate(zip(scores, before))
    ]


def test_a_line_says_how_many_are_solved_and_how_many_were(tmp_path):
    report.keep("toy", rows([500.0, 475.0, 160.0, 300.0], [500.0, 20.0, 500.0, 400.0]), tmp_path)
    line = dict(zip(report.COLUMNS, report.line(CELL, report.read("toy", tmp_path))))
    assert line["solved"] == "2 of 4" and line["collapsed"] == "1 of 4"
    assert line["mean (95 %)"].startswith("358.8 (") and line["worst"] == "160.0"
    assert line["IQM"] == "387.5" and line["in training"] == "357.8"
    assert line["steps"] == "5,000" and line["cell"] == "CartPole-v1"
    assert line["command"] == "`python x.py`"


def test_without_a_bar_nothing_is_solved_or_not(tmp_path):
    report.keep("toy", rows([1.0, np.nan], [1.0, 1.0]), tmp_path)
    line = report.line(CELL._replace(solved=float("nan")), report.read("toy", tmp_path)[:1])
    assert dict(zip(report.COLUMNS, line))["solved"] == ""


def test_a_cell_takes_the_place_of_its_own_rows_alone(tmp_path):
    report.keep("toy", rows([1.0, 2.0], [0.0, 0.0]), tmp_path)
    report.keep("toy", rows([3.0], [0.0], cell="Acrobot-v1"), tmp_path)
    report.keep("toy", rows([4.0, 5.0], [0.0, 0.0], first=20_000), tmp_path)
    kept = report.read("toy", tmp_path)
    assert [row["score"] for row in kept] == ["3", "4", "5"]
    line = report.line(CELL, kept[1:])
    assert line[1] == "CartPole-v1 (report 2)", "the second block of seeds"


def test_cells_have_names_of_their_own_and_settings_that_work():
    assert len({cell.key for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        module, config = learning.settings(cell)
        assert module.__name__ == f"algorithms.{cell.algorithm}"
        assert config.total_timesteps >= 200_000 and config.num_eval_episodes >= 32


def test_a_cell_is_trained_and_its_rows_are_those_of_its_seeds(tmp_path, monkeypatch):
    config = toy.Config(total_timesteps=200, num_evals=4)
    monkeypatch.setattr(learning, "settings", lambda cell: (toy, config))
    cell = CELL._replace(algorithm="toy", seeds=2)
    made = [learning.train(cell, 10_000, tmp_path / "run") for _ in range(2)]
    assert made[0] == made[1], "the second time it is read"
    assert [row["seed"] for row in made[0]] == [10_000, 10_001]
    returns = launch.load(tmp_path / "run", module=toy).metrics["eval_return"].mean(-1)
    np.testing.assert_allclose([row["score"] for row in made[0]], returns[:, -1], rtol=1e-6)
    best = returns[:, :-1].max(1)
    np.testing.assert_allclose([row["best_before"] for row in made[0]], best, rtol=1e-6)
    words = "--env CartPole-v1 --seed 10000 --num-seeds 2"
    assert made[0][0]["command"] == f"python algorithms/toy.py {words}"


@pytest.mark.parametrize("names, count", [(["ppo/Acrobot-v1"], 1), (["c51", "iqn"], 5)])
def test_cells_are_chosen_by_name_or_by_algorithm(names, count):
    assert len(learning.chosen(names)) == count
    with pytest.raises(learning.UserError, match="did you mean ppo/Acrobot-v1"):
        learning.chosen(["ppo/Acrobot"])
