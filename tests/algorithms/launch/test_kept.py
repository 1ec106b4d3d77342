"""Directories that users have: kept/ holds runs, sweeps and a population of older commits.

They load, act, play, are drawn and compared as they were then. What a command writes from them is
the same byte for byte. Runs and sweeps go on; populations of that commit are only read. What fails
here fails for users, too: kept/make.py says when an answer may be edited. Only what users have is
called: the command lines, and `algorithms.launch`.

Each kind of directory is read and written again in every run. Other programs of the same kind are
slow: compiling takes nearly all of the time.
"""

import csv
import importlib
import json
import math
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from algorithms import launch, sac
from algorithms.launch.engine import initial
from tests.algorithms.launch.kept.make import (
    ANSWERS,
    COMMANDS,
    KEPT,
    LONGER,
    MADE_BY,
    OLDER,
    RUNS,
    SEEDS,
    actions,
    file_of,
    last_rows,
)

pytestmark = pytest.mark.usefixtures("vmapped_keys", "empty_pictures")
NUMBER = re.compile(r"[-+]?\b(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)\b")
TABLES = ("results.csv", "trials.csv", "retest.csv", "best.json")


def answer(name):
    return json.loads((ANSWERS / name).read_text())


REWORDED = (  # of a sweep with an objective and a retest
    "is first. This page compares final returns.",
    "is first on fresh seeds. This page compares final returns, by which another setting may win.",
)


def renamed(table):
    """A kept results.csv or retest.csv with the names that its columns have now."""
    head, end, rows = table.partition("\n")
    return head.replace("agent,", "trial,").replace("agent_of_run", "trial_of_run") + end + rows


def slow(names, usual):
    """Parameters of which all but a few are slow."""
    return [pytest.param(x, marks=() if x in usual else pytest.mark.slow) for x in names]


@pytest.fixture
def empty_pictures(monkeypatch):
    """Drawing would take a tenth of the time, and has tests of its own."""
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", lambda self, file, **_: Path(file).touch())


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Copies a directory into the working directory, so that no output names this machine's."""
    monkeypatch.chdir(tmp_path)
    return lambda name: shutil.copytree(KEPT / name, tmp_path / name)


def call(capsys, words):
    """What a command line says, in this process; the errors come last."""
    first, *others = words.split()
    capsys.readouterr()
    if first.endswith(".py"):
        launch.main(importlib.import_module(f"algorithms.{first.removesuffix('.py')}"), others)
    else:
        importlib.import_module(f"algorithms.launch.{first}").main(others)
    return "".join(capsys.readouterr())


def resume(capsys, name, more=""):
    return call(capsys, f"{file_of(name)} --resume {name} {more}")


def assert_close(found, expected, rtol=1e-4):
    """The same words, spaces aside, and close numbers; programs of tests round differently."""
    split = lambda text: NUMBER.sub("#", " ".join(text.split()))
    numbers = lambda text: [float(x) for x in NUMBER.findall(text)]
    assert split(found) == split(expected)
    np.testing.assert_allclose(numbers(found), numbers(expected), rtol=rtol, atol=1e-5)


def text_of(page):
    """The words and numbers of an HTML page, without style, scripts and places of lines."""
    page = re.sub(r"<(style|script|footer)\b.*?</\1>", " ", page, flags=re.DOTALL)
    page = re.sub(r'<span class="clock">.*?</span>', " ", page)
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def without_intervals(text):
    """Sentences without intervals, which were others in that commit, and what they tell."""
    text = re.sub(r"Of \d+ seeds? a setting: .*? is partly luck\.", " ", text)
    text = re.sub("interquartile mean, 95 %|95 % of (means|the mean \\(t\\))", " ", text)
    text = re.sub(
        r"(?<=Learning curves)[-\d. k]+|(?<=return)[-\d. k]+(?=environment steps)", " ", text
    )
    text = re.sub(r"\S+ \(\S+ to \S+\)|\S+ to \S+", " ", text)
    told = ("95 %", "cannot tell", "the band", "interval", "mean return")
    told += ("A click keeps it", "Retest the best", "The setting that won", "on average, worst")
    return [" ".join(s.split()) for s in text.split(". ") if not any(word in s for word in told)]


# --- read ------------------------------------------------------------------------------------


def test_a_new_run_may_begin_with_an_older_optimizer():
    """In sac-run Adam alone is the optimizer, without a chain around it."""
    old = launch.load(KEPT / "sac-run")
    wanted = initial.Initial(str(KEPT / "sac-run"), optimizer=True)
    chosen = initial.choose(wanted, [7], "sac")
    initial.check_fit(chosen, sac, old.config)
    adam, *_ = initial.read(chosen, sac, old.config).opt_state
    assert adam.count > 0 and np.all([(x != 0).any() for x in jax.tree.leaves(adam.mu)])


@pytest.mark.parametrize("name", RUNS)
def test_they_load_and_act(name):
    loaded = launch.load(KEPT / name, trial=SEEDS.get(name, 1) - 1)
    assert loaded.config.total_timesteps == 192
    assert loaded.metrics["timestep"][0].tolist()[-1] == 64 * loaded.point
    if name != "ppo-population":  # which only has to act
        assert hasattr(loaded.state, "eval_rng"), "the last point has the whole state"
    expected = answer("actions.json")[name]
    np.testing.assert_allclose(actions(loaded), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in OLDER if name.endswith("sweep")])
def test_trials_have_the_settings_and_returns_of_older_tables(name):
    """Such tables had other columns, so they are not written again byte for byte."""
    rows = list(csv.DictReader((KEPT / name / "results.csv").open()))
    for row in rows[:: len(rows) - 1]:  # of the first chunk and of the last one
        trial = launch.load(KEPT / name, trial=int(row["agent"]))
        assert trial.config.learning_rate == float(row["learning_rate"])
        score = trial.metrics["eval_return"][int(row["agent_of_run"]), -1].mean()
        assert score == pytest.approx(float(row["final_return"]), rel=1e-6)


@pytest.mark.parametrize(
    "name", slow(COMMANDS, [name for name in COMMANDS if not re.search("grid|sac|rnn", name)])
)
def test_commands_say_the_same(name, kept, capsys):
    words = COMMANDS[name]
    for there in {*MADE_BY, *OLDER} & set(words.split()):
        kept(there)
    found, expected = call(capsys, words), (ANSWERS / f"{name}.txt").read_text()
    if words.startswith("compare"):  # of numbers that are stored, nothing is computed on a device
        assert found == expected
    else:
        assert_close(found, expected)


@pytest.mark.parametrize(
    "name", slow(["ppo-halved", "ppo_rnn-run", "981350f/ippo-run"], ["ppo-halved"])
)
def test_an_episode_is_drawn(name, kept, capsys):
    folder = kept(name)
    said = call(capsys, f"{file_of(name)} --render {name} --point best")
    (gif,) = folder.glob("*.gif")
    assert f"{name}/{gif.name}" in said
    assert Image.open(gif).n_frames > 1


def test_no_match_is_played_between_runs_that_are_no_games(kept, capsys):
    kept("ppo-run")
    with pytest.raises(SystemExit) as stopped:
        call(capsys, "match ppo-run random")
    assert stopped.value.code == 2 and "not a two-player game" in capsys.readouterr().err


# --- written again ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ppo-sweep", "ppo-halved"])
def test_tables_are_written_again_byte_for_byte(name, kept, capsys):
    folder = kept(name)
    tables = [file for file in TABLES if (folder / file).exists()]
    assert ("retest.csv" in tables) == (name == "ppo-halved") and len(tables) >= 3
    for file in [*tables, "report.html"]:
        (folder / file).unlink()
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    resume(capsys, name)
    for file in tables:
        expected = renamed((KEPT / name / file).read_text())
        assert (folder / file).read_bytes() == expected.encode(), file
    assert before == {file: file.read_bytes() for file in before}
    pages = [(where / name / "report.html").read_text() for where in (folder.parent, KEPT)]
    pages[1] = pages[1].replace(*REWORDED)
    assert without_intervals(text_of(pages[0])) == without_intervals(text_of(pages[1]))


# --- trained further -------------------------------------------------------------------------


@pytest.mark.parametrize("name", slow(LONGER, ["981350f/dqn-run"]))
def test_runs_go_on(name, kept, capsys):
    folder = kept(name)
    lost = name == "ppo_rnn-run"
    if lost:  # then it is written again from the checkpoints, without times and rates
        (folder / "metrics.csv").unlink()
    said = resume(capsys, name, "--total-timesteps 256")
    assert "now 4 points of 64 timesteps each, 256 in all" in said
    rows, before = (list(csv.reader((w / "metrics.csv").open())) for w in (folder, KEPT / name))
    heads = rows.pop(0), before.pop(0)
    columns = [heads[0].index(column) for column in heads[1][: -3 if lost else None]]
    if name in MADE_BY:  # a table that is written again has its columns in today's order
        order = sorted if lost else list
        assert order(heads[0]) == order(heads[1])
    same = [[row[column] for column in columns] for row in rows[: len(before)]]
    assert same == [row[: len(columns)] for row in before]
    assert len(rows) == len(before) + SEEDS.get(name, 1)
    for found, expected in zip(last_rows(folder), answer("resumed.json")[name], strict=True):
        if "current_learning_rate_0" in found:  # each network has its own, as it may stop early
            del expected["current_learning_rate"]
            found = {k: x for k, x in found.items() if not k.startswith("current_learning_rate_")}
        assert found.keys() == expected.keys()
        for column, cell in expected.items():
            assert math.isfinite(float(found[column])) or cell == "nan", column
            close = pytest.approx(float(cell), rel=1e-3, abs=1e-5, nan_ok=True)
            assert float(found[column]) == close, column


def test_a_sweep_goes_on_in_its_last_chunk(kept, capsys):
    """As if it had been killed before the last point."""
    folder = kept("ppo-sweep")
    for file in folder.glob("chunk_003/checkpoints/000003.*"):
        file.unlink()
    metrics = folder / "chunk_003" / "metrics.csv"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-2]))
    finishes(capsys, folder, same=7)


@pytest.mark.slow  # three programs
def test_a_halved_sweep_goes_on_to_its_later_stages(kept, capsys):
    """As if it had been killed at the end of the first rung."""
    folder = kept("ppo-halved")
    for chunk in ("chunk_001", "chunk_002"):
        shutil.rmtree(folder / chunk)
    said = json.loads((folder / "sweep.json").read_text())
    kept_chunks = said | {"chunks": said["chunks"][:1]}
    (folder / "sweep.json").write_text(json.dumps(kept_chunks))
    finishes(capsys, folder, same=0, anew=("retest.csv",))
    chunks = json.loads((folder / "sweep.json").read_text())["chunks"]
    # A block is a matter of devices, and the number of trials had an earlier name.
    plain = lambda one: {k: v for k, v in one.items() if k not in ("block", "agents", "num_trials")}
    assert [plain(one) for one in chunks] == [plain(one) for one in said["chunks"]]
    assert [one["num_trials"] for one in chunks[1:]] == [one["agents"] for one in said["chunks"]][
        1:
    ]


def finishes(capsys, folder, same, anew=()):
    """Resumes a sweep, whose tables then are close to the kept ones, the first lines the same.

    Initial draws have changed since: of the tables `anew`, settings and seeds are compared.
    """
    for file in TABLES:
        (folder / file).unlink(missing_ok=True)
    resume(capsys, folder.name)
    for file in (KEPT / folder.name).glob("*.csv"):
        found, expected = (folder / file.name).read_text(), renamed(file.read_text())
        if file.name in anew:
            assert _before(found, "final_return") == _before(expected, "final_return")
            continue
        if file.name == "trials.csv":  # without times and rates
            found, expected = (
                "\n".join(line.rsplit(",", 3)[0] for line in text.splitlines())
                for text in (found, expected)
            )
        else:
            assert found.splitlines()[:same] == expected.splitlines()[:same]
        assert_close(found, expected, rtol=1e-3)
    best = lambda where: json.loads((where / "best.json").read_text())["config"]
    assert anew or best(folder) == best(KEPT / folder.name)


def _before(table, column):
    """The settings and seeds of a table, in any order of its rows."""
    head, *rows = csv.reader(table.splitlines())
    place = head.index(column)
    return sorted(row[1:place] for row in rows)
