"""Which code runs with several clones, an installed package, or a project's own packages."""

import ast
import contextlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest
from packaging.requirements import Requirement

import algorithms
from algorithms import ppo
from algorithms.launch import cli, console
from algorithms.launch.tools import catalogue
from algorithms.launch.tools.copying import copies
from tests.seconds import ALGORITHMS

ROOT = Path(__file__).parents[1]


@pytest.fixture
def clone(tmp_path):
    """A second kit with a file that prints its own path and needs no library."""
    kit = tmp_path / "clone"
    for package in ("envs", "algorithms/envs", "algorithms/parts", "algorithms/launch"):
        (kit / package).mkdir(parents=True)
        (kit / package / "__init__.py").touch()
    (kit / "algorithms" / "launch" / "__init__.py").touch()
    for file in ("algorithms/__init__.py", "algorithms/envs/__init__.py"):
        shutil.copy(ROOT / file, kit / file)
    lines = ["import envs", "from algorithms import parts"]
    (kit / "algorithms" / "tiny.py").write_text("\n".join([*lines, "print(envs, parts)"]))
    return kit


def run(*words, cwd, path):
    """Runs a Python process that finds packages on `path`. Returns code, stdout, stderr."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    pipes = {"capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run([sys.executable, *words], cwd=cwd, env=environment, **pipes)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", [["algorithms/tiny.py"], ["-m", "algorithms.tiny"]])
def test_a_started_file_runs_its_own_kit_s_code(clone, words):
    """It does not run the code of an installed kit."""
    code, out, err = run(*words, cwd=clone, path=[ROOT])
    assert code == 0, err
    for place in ("envs", "algorithms/parts"):
        assert str(clone / place / "__init__.py") in out


def test_every_file_imports_envs_first():
    """By that import, a started file finds its own kit."""
    for name in sorted(ALGORITHMS):
        lines = (ROOT / "algorithms" / f"{name}.py").read_text().splitlines()
        own = [n for n in lines if n.startswith(("import envs", "from envs", "from algorithms"))]
        assert own[0] == "import envs", name


def test_a_file_of_another_kit_is_refused_where_python_hides_its_folder(clone, capsys):
    module = SimpleNamespace(__file__=str(clone / "algorithms" / "tiny.py"))
    with pytest.raises(SystemExit) as stop:
        cli.main(module, [])
    assert stop.value.code == 2
    assert f"would run the code of another kit, {ROOT}" in capsys.readouterr().err


@pytest.mark.parametrize("has_init", [True, False])
def test_another_package_envs_is_refused_in_a_sentence(clone, has_init):
    """A folder without an __init__.py, which Python takes for a package, gets one too."""
    own = clone.parent / "project" / "envs"
    own.mkdir(parents=True)
    if has_init:
        (own / "__init__.py").touch()
    else:
        shutil.rmtree(clone / "envs")  # the installed one comes later, from no folder
    code, _, err = run("-c", "import algorithms.tiny", cwd=own.parent, path=[clone])
    assert code == 1
    assert f"algorithms needs its own package envs, {clone / 'envs'}, but Python finds {own}" in err


# --- packaging -------------------------------------------------------------------------------


def imports(nodes):
    """The first names of the packages that these nodes of a syntax tree import."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names


def test_every_library_that_the_kit_imports_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {re.split(r"[<>=\[]", text)[0].lower() for one in lists for text in one}
    declared |= {"numpy", "scipy", "msgpack", "gymnasium"}  # of jax, flax and gymnax
    declared |= {"tensorboardx", "mujoco", "mujoco_playground"}  # named where they are missing
    imported = {"gymnax"}  # envs/gymnax.py imports it by its name
    for file in [*(ROOT / "algorithms").rglob("*.py"), *(ROOT / "envs").rglob("*.py")]:
        imported |= imports(ast.walk(ast.parse(file.read_text())))
    imported -= {"algorithms", "envs"}
    assert {"jax", "PIL"} <= imported
    packages = {"PIL": "pillow", "resvg_py": "resvg-py"}
    assert {packages.get(name, name).lower() for name in imported} <= declared


def needed(requirements):
    """The names of packages that these requirements bring along, extras aside."""
    found, todo = set(), [Requirement(text) for text in requirements]
    while todo:
        one = todo.pop()
        name = one.name.lower().replace("_", "-")
        if name in found or (one.marker and not one.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        with contextlib.suppress(metadata.PackageNotFoundError):  # of another system
            todo += [Requirement(text) for text in metadata.requires(name) or []]
    return found


def test_all_that_gymnax_imports_comes_along():
    """Not by chance, with a package of the tests: gymnax does not declare all of it."""
    folder, imported = Path(importlib.util.find_spec("gymnax").origin).parent, set()
    for file in folder.rglob("*.py"):
        imported |= imports(ast.parse(file.read_text()).body)  # what functions import is optional
    packages = metadata.packages_distributions()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    there = needed(project["dependencies"])
    assert "jax" in imported and {"jax", "gymnax", "numpy"} <= there
    for name in imported - {"gymnax"}:
        assert {package.lower() for package in packages[name]} & there, name


def declared(*extras):
    """Requirements of the kit with these extras, and with those that they name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found, todo = list(project["dependencies"]), list(extras)
    while todo:
        for text in project["optional-dependencies"][todo.pop()]:
            more = Requirement(text)
            todo += more.extras if more.name == project["name"] else []
            found += [text] * (more.name != project["name"])
    return found


def test_requirements_are_what_training_needs():
    """Tools come with the extras test and dev, and pygame, which only GIFs need, with gif."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["-e .[distrax]"]
    there = needed(declared("distrax"))
    assert {"jax", "flax", "optax", "distrax", "gymnax", "tyro", "wandb", "matplotlib"} <= there
    assert not {"pytest", "rlax", "ruff", "mypy", "pygame", "flatbuffers"} & there
    assert {"pygame"} == needed(declared("gif")) - needed(declared())
    assert {"ruff", "mypy"} <= needed(declared("dev")) - needed(declared("test"))


def test_the_extra_test_has_all_that_tests_import():
    """Without the linters; libraries of environments are imported where a test needs them."""
    imported = set()
    for file in (ROOT / "tests").rglob("*.py"):
        imported |= imports(ast.parse(file.read_text()).body)
    imported -= {"algorithms", "envs", "tests", "run", "website"}  # the last two are files here
    packages, there = metadata.packages_distributions(), needed(declared("test"))
    assert {"pytest", "distrax", "jax", "PIL"} <= imported
    missing = {m for m in imported if not {p.lower() for p in packages.get(m, ())} & there}
    assert not missing


def test_an_installed_package_is_copied_from(tmp_path, monkeypatch):
    """pip installs neither pyproject.toml nor LICENSE beside the packages, only a dist-info."""
    info = tmp_path / f"single_file_rl-{algorithms.__version__}.dist-info"
    (info / "licenses").mkdir(parents=True)
    (info / "METADATA").write_text("Name: single-file-rl\n")
    (info / "licenses" / "LICENSE").write_text("as you like")
    monkeypatch.setattr(copies, "KIT", tmp_path)
    copied = copies.copy(ppo)
    assert copied.endswith("\n# as you like\n")
    assert copied.startswith(f"# ppo.py of single-file-rl {algorithms.__version__}, ")


def call(capsys, function, *arguments):
    """Returns exit code, stdout and stderr."""
    try:
        function(*arguments)
        code = 0
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


def test_the_version_is_told(capsys):
    code, out, err = call(capsys, console.main, ["--version"])
    assert call(capsys, cli.main, ppo, ["--version"]) == (code, out, err) == (0, out, "")
    first, second = out.splitlines()
    assert first == f"single-file-rl {algorithms.__version__}"
    assert second.startswith(f"python {platform.python_version()}, jax {jax.__version__}, jaxlib ")


def test_the_console_command_is_an_algorithm_s_command_line(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["single-file-rl"])
    seen = []
    monkeypatch.setattr(cli, "dispatch", lambda module, words: seen.append((module, words)))
    assert call(capsys, console.main, ["ppo", "--gamma", "0.9"]) == (0, "", "")
    assert seen == [(ppo, ["--gamma", "0.9"])]
    assert sys.argv[0] == ppo.__file__, "for `to go on: python ppo.py --resume ...`"


@pytest.mark.parametrize(
    "words, code, text",
    [
        (["--help"], 0, f"algorithms: {min(catalogue.algorithms())} "),
        ([], 2, f"algorithms: {min(catalogue.algorithms())} "),
        (["pp"], 2, "unknown algorithm 'pp'; did you mean ppo"),
        (["parts"], 2, "unknown algorithm 'parts'"),
        (["compare", "nowhere"], 2, "nowhere"),
        (["match", "nowhere", "random"], 2, "nowhere"),
        (["grid", "nowhere"], 2, "nowhere"),
        (["match", "a", "b", "--game", "3"], 2, "unrecognized arguments: --game 3"),
        (["compare", "a", "--ou", "b"], 2, "unrecognized arguments: --ou b"),
    ],
)
def test_words_of_the_console_command(capsys, words, code, text):
    found, out, err = call(capsys, console.main, words)
    assert found == code and text in out + err
