"""The launcher's folders import only downwards, and algorithms never import it."""

import ast
from pathlib import Path

import pytest

from algorithms import launch

FOLDER = Path(launch.__file__).parent
ORDER = [
    "commands",
    "copying",
    "training",
    "report",
    "search",
    "reuse",
    "storage",
    "compute",
    "show",
]
PREFIX = "algorithms.launch."


def imported(file):
    """The modules of the launcher that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(PREFIX):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith(PREFIX))


@pytest.mark.parametrize("folder", ORDER)
def test_a_folder_imports_only_downwards(folder):
    above = ORDER[: ORDER.index(folder)]
    files = list((FOLDER / folder).glob("*.py"))
    wrong = {f.name: m for f in files for m in imported(f) if m.split(".")[2] in above}
    assert not wrong and 1 < len(files) <= 11  # ten modules, and __init__.py


def test_what_folders_share_imports_none_of_them():
    for name in ("alarms", "errors", "metrics", "objectives", "settings"):
        found = [module.split(".")[2] for module in imported(FOLDER / f"{name}.py")]
        assert not set(found) & set(ORDER)
    assert {path.name for path in FOLDER.iterdir() if path.is_dir()} - {"__pycache__"} == set(ORDER)


def test_every_folder_lists_its_modules():
    for folder in ORDER:
        listed = ast.get_docstring(ast.parse((FOLDER / folder / "__init__.py").read_bytes()))
        modules = {file.stem for file in (FOLDER / folder).glob("*.py")} - {"__init__"}
        assert all(module in listed for module in modules), folder


def test_algorithms_do_not_import_the_launcher_but_to_start():
    for file in FOLDER.parent.glob("*.py"):
        imports = [module for module in imported(file) if module != "algorithms.launch"]
        assert not imports, file
