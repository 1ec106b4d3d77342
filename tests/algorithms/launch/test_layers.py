"""The launcher's rooms import only downwards, and algorithms never import it."""

import ast
from pathlib import Path

import pytest

from algorithms import launch
from tests.seconds import ALGORITHMS

FOLDER = Path(launch.__file__).parent
PREFIX = "algorithms.launch."
ROOMS = ["engine", "tools", ""]  # the front door has no folder


def imported(file):
    """The modules of the launcher that a file imports, wherever in it, without `PREFIX`."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(PREFIX):
            base = f"{node.module}.".removeprefix(PREFIX)
            yield from (base + alias.name for alias in node.names)
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith(PREFIX)]
            yield from (name.removeprefix(PREFIX) for name in names)


def room(module):
    return module.partition(".")[0] if module.startswith(("engine.", "tools.")) else ""


@pytest.mark.parametrize("name", ROOMS)
def test_a_room_imports_only_downwards(name):
    files = list((FOLDER / name).rglob("*.py") if name else FOLDER.glob("*.py"))
    below = ROOMS[: ROOMS.index(name) + 1]
    wrong = {
        (f.stem, ".".join(m.split(".")[:2]))
        for f in files
        for m in imported(f)
        if room(m) not in below
    }
    assert files and not wrong


def test_the_engine_has_no_circle():
    graph = {f.stem: set(imported(f)) for f in (FOLDER / "engine").glob("*.py")}
    graph = {n: {m.split(".")[1] for m in ms if room(m) == "engine"} for n, ms in graph.items()}
    while free := [name for name, needs in graph.items() if not needs & graph.keys()]:
        for name in free:
            del graph[name]
    assert not graph


@pytest.mark.parametrize("folder", ["engine", "tools", "tools/report", "tools/copying"])
def test_every_folder_lists_its_modules(folder):
    listed = ast.get_docstring(ast.parse((FOLDER / folder / "__init__.py").read_bytes()))
    lines = {line.split()[0] for line in listed.splitlines() if "  " in line}
    modules = {file.stem for file in (FOLDER / folder).glob("*.py")} - {"__init__"}
    folders = {file.parent.name for file in (FOLDER / folder).glob("*/*.py")}
    assert lines == modules | folders


def test_algorithms_do_not_import_the_launcher_but_to_start():
    for name in ALGORITHMS:
        file = FOLDER.parent / f"{name}.py"
        assert not list(imported(file)), file
