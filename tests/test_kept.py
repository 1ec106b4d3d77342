"""Directories that users have: kept/ holds runs, sweeps and a population of commit 94e1a14.

They load, act, play, are drawn and compared as they were then. What a command writes from them is
the same byte for byte. Runs and sweeps go on; populations of that commit are only read. What fails
here fails for users, too: kept/make.py says when an answer may be edited. Only what users have is
called: the command lines, and `algorithms.launch`.
"""

import importlib
import json
import math
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from algorithms import launch
from tests.kept.make import (
    ANSWERS,
    COMMANDS,
    KEPT,
    LONGER,
    MADE_BY,
    SEEDS,
    actions,
    last_rows,
)

pytestmark = pytest.mark.usefixtures("vmapped_keys", "empty_pictures")
NUMBER = re.compile(r"[-+]?\b(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)\b")
TABLES = ("results.csv", "trials.csv", "retest.csv", "best.json")


def answer(name):
    return json.loads((ANSWERS / name).read_text())


@pytest.fixture(scope="module", autouse=True)
def compilation_cache(tmp_path_factory):
    """Leaves the user's own cache alone."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    yield
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.fixture
def empty_pictures(monkeypatch):
    """Drawing would take a tenth of the time, and has tests of its own."""
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
    return call(capsys, f"{MADE_BY[name].split()[0]} --resume {name} {more}")


def assert_close(found, expected, rtol=1e-4):
    """The same words, spaces aside, and close numbers; programs of tests round differently."""
    split = lambda text: NUMBER.sub("#", " ".join(text.split()))
    numbers = lambda text: [float(x) for x in NUMBER.findall(text)]
    assert split(found) == split(expected)
    np.testing.assert_allclose(numbers(found), numbers(expected), rtol=rtol, atol=1e-5)


def text_of(page):
    """The words and numbers of an HTML page, without style, scripts and places of lines."""
    page = re.sub(r"<(style|script)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


# --- read ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MADE_BY)
def test_they_load_and_act(name):
    loaded = launch.load(KEPT / name, trial=SEEDS[name] - 1)
    assert loaded.config.total_timesteps == 192
    assert loaded.metrics["timestep"][0].tolist()[-1] == 64 * loaded.point
    if name != "ppo-population":  # which only has to act
        assert hasattr(loaded.state, "eval_rng"), "the last point has the whole state"
    expected = answer("actions.json")[name]
    np.testing.assert_allclose(actions(loaded), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_say_the_same(name, kept, capsys):
    words = COMMANDS[name]
    for there in set(MADE_BY) & set(words.split()):
        kept(there)
    found, expected = call(capsys, words), (ANSWERS / f"{name}.txt").read_text()
    if words.startswith("compare"):  # of numbers that are stored, nothing is computed on a device
        assert found == expected
    else:
        assert_close(found, expected)


@pytest.mark.parametrize("name", ["ppo-halved", "ppo_rnn-run"])
def test_an_episode_is_drawn(name, kept, capsys):
    folder = kept(name)
    said = call(capsys, f"{MADE_BY[name].split()[0]} --render {name} --point best")
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
        assert (folder / file).read_bytes() == (KEPT / name / file).read_bytes(), file
    assert before == {file: file.read_bytes() for file in before}
    pages = [text_of((where / name / "report.html").read_text()) for where in (folder.parent, KEPT)]
    assert pages[0] == pages[1]


# --- trained further -------------------------------------------------------------------------


# Compiling takes 5 s each; without -m slow, a chunk of the sweep alone stands for ppo.
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == "ppo-run" else ()) for name in LONGER],
)
def test_runs_go_on(name, kept, capsys):
    folder = kept(name)
    lost = name == "ppo_rnn-run"
    if lost:  # then it is written again from the checkpoints, without times and rates
        (folder / "metrics.csv").unlink()
    said = resume(capsys, name, f"--total-timesteps {LONGER[name]}")
    assert "now 4 points of 64 timesteps each, 256 in all" in said
    rows, before = ((w / name / "metrics.csv").read_text().split() for w in (folder.parent, KEPT))
    cut = -3 if lost else None
    assert [row.split(",")[:cut] for row in rows[: len(before)]] == [
        row.split(",")[:cut] for row in before
    ]
    assert len(rows) == len(before) + SEEDS[name]
    for found, expected in zip(last_rows(folder), answer("resumed.json")[name], strict=True):
        assert found.keys() == expected.keys()
        for column, cell in expected.items():
            assert math.isfinite(float(found[column])), column
            assert float(found[column]) == pytest.approx(float(cell), rel=1e-3, abs=1e-5), column


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
    finishes(capsys, folder, same=0)
    chunks = json.loads((folder / "sweep.json").read_text())["chunks"]
    plain = lambda chunks: [{k: v for k, v in one.items() if k != "block"} for one in chunks]
    assert plain(chunks) == plain(said["chunks"])  # a block is a matter of devices


def finishes(capsys, folder, same):
    """Resumes a sweep, whose tables then are close to the kept ones, the first lines the same."""
    for file in TABLES:
        (folder / file).unlink(missing_ok=True)
    resume(capsys, folder.name)
    for file in (KEPT / folder.name).glob("*.csv"):
        found, expected = (folder / file.name).read_text(), file.read_text()
        if file.name == "trials.csv":  # without times and rates
            found, expected = (
                "\n".join(line.rsplit(",", 3)[0] for line in text.splitlines())
                for text in (found, expected)
            )
        else:
            assert found.splitlines()[:same] == expected.splitlines()[:same]
        assert_close(found, expected, rtol=1e-3)
    best = lambda where: json.loads((where / "best.json").read_text())["config"]
    assert best(folder) == best(KEPT / folder.name)
