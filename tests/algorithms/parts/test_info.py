"""Each algorithm file's INFO is complete and can be read without an import."""

import ast
import importlib
from pathlib import Path

import pytest

import algorithms
from algorithms.parts import info
from tests.seconds import ALGORITHMS

FOLDER = Path(algorithms.__file__).parent
FILES = sorted(ALGORITHMS)


@pytest.mark.parametrize("name", FILES)
def test_each_file_has_an_info(name):
    found = info.read(FOLDER / f"{name}.py")
    assert found == importlib.import_module(f"algorithms.{name}").INFO
    assert tuple(name for name in found if name not in info.OPTIONAL) == info.KEYS
    assert type(found.get("split", False)) is bool
    assert 20 < len(found["use"]) < 90 and found["use"][-1] not in ".;,"
    assert found["family"] in info.FAMILIES
    assert set(info.kinds_of(found)) <= {"discrete", "continuous"} and info.kinds_of(found)
    assert found["masks"] in (False, True)
    assert found["agents"] in info.AGENTS and found["memory"] in info.MEMORY
    for reference in found["paper"].split(", "):
        assert reference.startswith("[") and "](https://" in reference and reference[-1] == ")"


@pytest.mark.parametrize("name", FILES)
def test_it_is_short_and_follows_the_imports(name):
    body = ast.parse((FOLDER / f"{name}.py").read_text()).body
    imports = [i for i, node in enumerate(body) if isinstance(node, ast.Import | ast.ImportFrom)]
    node = body[imports[-1] + 1]
    assert ast.unparse(node.targets[0]) == "INFO"
    lines = 10 + len(ast.literal_eval(node.value).keys() & set(info.OPTIONAL))
    assert node.end_lineno - node.lineno < lines


def test_all_files_are_found():
    assert list(info.of_folder(FOLDER)) == FILES


def test_agents_are_words_and_not_parts_of_words():
    takes = lambda agents: [info.takes_agents({"agents": agents}, n) for n in (False, True)]
    expected = [[True, False], [False, True], [True, True], [False, False]]
    assert [takes(words) for words in info.AGENTS] == expected
