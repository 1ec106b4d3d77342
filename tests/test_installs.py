"""Which code runs: of several clones, of an installed package, beside a project's own packages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from algorithms.launch import cli

ROOT = Path(__file__).parents[1]


@pytest.fixture
def clone(tmp_path):
    """A second kit, with a file that says what it runs and needs no library."""
    kit = tmp_path / "clone"
    for package in ("envs", "algorithms/envs", "algorithms/parts", "algorithms/launch"):
        (kit / package).mkdir(parents=True)
        (kit / package / "__init__.py").touch()
    (kit / "algorithms" / "launch" / "cli.py").touch()
    for file in ("algorithms/__init__.py", "algorithms/envs/__init__.py"):
        shutil.copy(ROOT / file, kit / file)
    lines = ["import envs", "from algorithms import parts"]
    (kit / "algorithms" / "tiny.py").write_text("\n".join([*lines, "print(envs, parts)"]))
    return kit


def run(*words, cwd, path):
    """A Python process; `path` is where it finds what is installed. Returns code, stdout, stderr"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    pipes = {"capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run([sys.executable, *words], cwd=cwd, env=environment, **pipes)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", [["algorithms/tiny.py"], ["-m", "algorithms.tiny"]])
def test_a_started_file_runs_its_own_kit_s_code(clone, words):
    """And not that of a kit that is installed."""
    code, out, err = run(*words, cwd=clone, path=[ROOT])
    assert code == 0, err
    for place in ("envs", "algorithms/parts"):
        assert str(clone / place / "__init__.py") in out


def test_every_file_imports_envs_first():
    """By that import a started file finds its own kit."""
    for file in sorted((ROOT / "algorithms").glob("*.py")):
        lines = file.read_text().splitlines()
        own = [n for n in lines if n.startswith(("import envs", "from envs", "from algorithms"))]
        assert file.name == "__init__.py" or own[0] == "import envs", file.name


def test_a_file_of_another_kit_is_refused_where_python_hides_its_folder(clone, capsys):
    module = SimpleNamespace(__file__=str(clone / "algorithms" / "tiny.py"))
    with pytest.raises(SystemExit) as stop:
        cli.main(module, [])
    assert stop.value.code == 2
    assert f"would run the code of another kit, {ROOT}" in capsys.readouterr().err


@pytest.mark.parametrize("has_init", [True, False])
def test_another_package_envs_gets_a_sentence(clone, has_init):
    """Also a folder without an __init__.py, which Python takes for a package."""
    own = clone.parent / "project" / "envs"
    own.mkdir(parents=True)
    if has_init:
        (own / "__init__.py").touch()
    else:
        shutil.rmtree(clone / "envs")  # an installed one comes after it, from no folder on the path
    code, _, err = run("-c", "import algorithms.tiny", cwd=own.parent, path=[clone])
    assert code == 1
    assert f"algorithms needs its own package envs, {clone / 'envs'}, but Python finds {own}" in err
