"""`pytest tests --changed`: the tests that a change can reach by imports.

A module reaches what it imports, and what its strings name: a module, or a file. A test of
an algorithm's case reaches that algorithm's own test file, too. Tests directly in tests/ also run
if a file that is no Python changed, such as a page of the documentation.
"""

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seconds import ALGORITHMS, owner_of

ROOT = Path(__file__).parents[1]
EVERYTHING = {"tests/conftest.py", "pyproject.toml"}  # files that all tests depend on


def git(*words: str) -> list[str]:
    """The lines that git prints.

    Raises:
      pytest.UsageError: git fails.
    """
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise pytest.UsageError(f"--changed: {done.stderr.strip()}")
    return done.stdout.splitlines()


def changed_files(revision: str) -> set[str]:
    """Files that differ from a revision, with those that git does not know yet."""
    new = git("ls-files", "--others", "--exclude-standard")
    return {*git("diff", "--name-only", revision, "--"), *new}


@functools.cache
def sources() -> dict[str, str]:
    """The file of each module of the project, by its name."""
    folders = (ROOT / folder for folder in ("algorithms", "envs", "tests", "docs/website"))
    files = [str(file.relative_to(ROOT)) for f in folders for file in f.rglob("*.py")]
    name = lambda file: re.sub(r"^docs/|(/__init__)?\.py$", "", file).replace("/", ".")
    return {name(file): file for file in files}


def is_main(node: ast.AST) -> bool:
    """Whether this is `if __name__ == "__main__":`, which nothing imports."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def nodes(tree: ast.Module) -> Iterator[ast.AST]:
    left = [node for node in tree.body if not is_main(node)]
    while left:
        node = left.pop()
        yield node
        left += ast.iter_child_nodes(node)


def names_in(file: str) -> Iterator[str]:
    """Full names of what a file imports, and what its strings may name."""
    package = file.rpartition("/")[0].replace("/", ".")
    for node in nodes(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = f"{package}.{node.module or ''}".rstrip(".") if node.level else node.module
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"[\w./-]+", str(node.value)):
            yield str(node.value)
            if "." in str(node.value):  # a plain word is a setting more often than a module
                yield f"{package}.{str(node.value).lstrip('.')}"


@functools.cache
def neighbours(file: str) -> frozenset[str]:
    """Files that a module runs or reads: imports with their packages, files that strings name."""
    known, found = sources(), set()
    for name in names_in(file):
        parts = name.split(".")
        found |= {known[p] for i in range(len(parts)) if (p := ".".join(parts[: i + 1])) in known}
        if "." in name and "/" not in name[:1]:
            paths = (Path(name), Path(file).parent / name)
            found |= {str(path) for path in paths if (ROOT / path).is_file()}
    return frozenset(found)


@functools.cache
def reached(file: str) -> frozenset[str]:
    """All files that a test file depends on, with the conftest.py beside and above it."""
    folders = [Path(file).parent, *Path(file).parent.parents]
    beside = [str(f / "conftest.py") for f in folders if (ROOT / f / "conftest.py").exists()]
    found, left = set(), [file, *beside]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += neighbours(one) if one.endswith(".py") else ()
    return frozenset(found)


def selects(nodeid: str, changed: set[str]) -> bool:
    """Whether a change of these files can reach a test."""
    if changed & EVERYTHING:
        return True
    file = nodeid.partition("::")[0]
    if str(Path(file).parent) == "tests" and any(not f.endswith(".py") for f in changed):
        return True
    files, owner = reached(file), owner_of(nodeid)
    if owner in ALGORITHMS:
        files |= reached(f"tests/algorithms/test_{owner}.py")
    return bool(changed & files)


class Changed:
    """A plugin that leaves out the tests that a change cannot reach."""

    def __init__(self, revision: str):
        self.changed = changed_files(revision)

    def pytest_collection_modifyitems(self, config, items):
        kept = [item for item in items if selects(item.nodeid, self.changed)]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept
