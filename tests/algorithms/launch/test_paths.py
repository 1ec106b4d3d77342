"""Paths that are none of this machine: refused wherever a path can be given."""

import dataclasses
import typing
from pathlib import Path

import pytest

from algorithms import launch, ppo
from algorithms.launch import cli, flags
from algorithms.launch.engine import files
from algorithms.launch.tools import compare, match, robustness
from tests.algorithms.launch import toy
from tests.benchmarks import arlbench

CONFIG = toy.Config(total_timesteps=100, num_evals=4)
GS = "gs://bucket/run"
RANGES = {"learning_rate": launch.Uniform(0.1, 0.2)}


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    """As a folder `gs:` was."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir())


def flags_of_paths():
    """The flags that name a directory or a file, as --help shows them."""
    hints = typing.get_type_hints(flags.Flags, include_extras=True)
    for field in dataclasses.fields(flags.Flags):
        shown = [one.metavar for one in getattr(hints[field.name], "__metadata__", ())]
        if {"DIR", "FILE"} & set(shown):
            yield field.name


PATHS = [*flags_of_paths(), "run_dir_root"]


def test_the_flags_of_paths_are_known():
    assert {"run_dir", "resume", "evaluate", "render", "export", "copy", "config"} < set(PATHS)
    assert "init_from" in PATHS and len(PATHS) == 9


@pytest.mark.parametrize("flag", PATHS)
@pytest.mark.parametrize("path", [GS, "s3://bucket/run", "hdfs://host:9000/run", "file:///run"])
def test_no_flag_takes_a_url_for_a_path(flag, path, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(toy, [f"--{flag.replace('_', '-')}", path])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1, err
    assert err.startswith(f"error: {path.split(':')[0]}:/") and "is no local path" in err


@pytest.mark.parametrize("flag", PATHS)
def test_no_flag_takes_a_home_that_no_shell_has_replaced(flag, capsys, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    with pytest.raises(SystemExit) as stop:
        cli.main(toy, [f"--{flag.replace('_', '-')}=~/run"])
    assert stop.value.code == 2
    assert "only at the start of a word: give /home/me/run\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "tool, words",
    [
        (compare, [GS]),
        (compare, ["x", "--out", f"{GS}.png"]),
        (robustness, [GS]),
        (robustness, ["x", "--out", f"{GS}.png"]),
        (robustness, ["x", "--csv", f"{GS}.csv"]),
        (match, [GS, "random"]),
        (match, ["random", GS]),
        (arlbench, [GS, "x"]),
    ],
)
def test_no_tool_takes_a_url_for_a_path(tool, words, capsys):
    with pytest.raises(SystemExit) as stop:
        tool.main(words)
    assert stop.value.code == 2 and "is no local path" in capsys.readouterr().err


CALLS = {
    "run": lambda path: launch.run(toy, CONFIG, run_dir=path),
    "resume_if_exists": lambda path: launch.run(toy, CONFIG, run_dir=path, resume_if_exists=True),
    "root": lambda path: launch.run(toy, CONFIG, root=path),
    "init_from": lambda path: launch.run(toy, CONFIG, init_from=path, save=False),
    "sweep": lambda path: launch.sweep(toy, CONFIG, {"gamma": [0.5, 0.9]}, sweep_dir=path),
    "pbt": lambda path: launch.pbt(toy, CONFIG, RANGES, members=2, rounds=2, run_dir=path),
    "resume": lambda path: launch.resume(path),
    "load": lambda path: launch.load(path),
    "export": lambda path: launch.export(path),
    "compare": lambda path: compare.compare([path]),
    "match": lambda path: match.match(path, "random"),
    "grid": lambda path: robustness.grid([path]),
    "opponent": lambda path: launch.run(ppo, against(path), save=False),
}


def against(path):
    settings = (("opponent", str(path)),)
    return ppo.Config(env="pgx/tic_tac_toe", env_settings=settings)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("path", [GS, Path(GS)], ids=["text", "Path"])
def test_no_function_takes_a_url_for_a_path(name, path):
    if name == "export":
        pytest.importorskip("flatbuffers")
    with pytest.raises(launch.UserError, match="^gs:/.* is no local path: give one, and copy"):
        CALLS[name](path)


@pytest.mark.needs("flatbuffers")
def test_no_export_goes_to_a_url():
    with pytest.raises(launch.UserError, match="is no local path"):
        launch.export("run", "gs://bucket/policy.zip")


@pytest.mark.parametrize("path", ["runs/a:b", "a:b/c", "./gs:/b", "runs/~me", "C:/runs", "run"])
def test_local_paths_are_taken_as_they_are(path):
    assert files.local(path) == Path(path)


def test_without_files_no_root_matters():
    assert launch.run(toy, CONFIG, root=GS, save=False).run_dir is None
