"""Every mutant of list.json is in the tree and would run."""

import ast
import functools
import shlex
from pathlib import Path

from tests.mutants import run

ROOT = Path(__file__).parents[2]


@functools.cache
def statements(file):
    return ast.parse(file.read_text()).body


def test_every_mutant_is_found_and_gives_other_code():
    """run.py would say "stale" of the others, or a syntax error would be red for any test."""
    mutants = run.read(run.LIST)
    assert len(mutants) >= 530
    for mutant in mutants:
        file, start = run.find(mutant, ROOT)
        old, new = (mutant[key].split("\n") for key in ("old", "new"))
        assert old != new, mutant
        (around,) = [s for s in statements(file) if s.lineno - 1 <= start < s.end_lineno]
        end = around.end_lineno + len(new) - len(old)
        lines = run.mutated(mutant, ROOT)[1].splitlines()[around.lineno - 1 : end]
        ast.parse("\n".join(lines))


def test_every_mutant_has_tests_that_exist():
    for mutant in run.read(run.LIST):
        named = [word.split("::")[0] for words in mutant["tests"] for word in shlex.split(words)]
        files = [ROOT / name for name in named if name.startswith("tests/")]
        assert any(file.exists() for file in files), mutant


def test_a_mutant_is_found_where_its_code_has_moved(tmp_path):
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "a.py").write_text("def f(x):\n    y = 1\n    return x + y\n")
    mutant = {"file": "envs/b.py", "in": "g", "old": "return x + y", "new": "return x - y"}
    file, text = run.mutated(mutant, tmp_path)
    assert file.name == "a.py" and text == "def f(x):\n    y = 1\n    return x - y\n"
    (tmp_path / "envs" / "b.py").write_text("def g(x, y):\n    return x + y\n")
    assert run.find(mutant, tmp_path)[0].name == "b.py"
