"""What an algorithm's file says of itself: its docstrings, comments and settings."""

import ast
import dataclasses
import functools
import importlib
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
# Details in a docstring: lines of a list, or of ppo.py's paragraphs "core" and "continuous"
LINE = re.compile(r" {1,2}(\d+) (?=\S)")
ITEM = re.compile(r"(?:(core|continuous): |; )(\d+(?:-\d+)?) (?=[A-Za-z])")
MARK = re.compile(r"\b(detail|core|continuous)s? ((?:(?:\d+(?:-\d+)?)(?:, | and )?)+)")
BULLET = "  - "
NOT_FORMULAS = re.compile(r"make_\w+|prepare|replayed|fresh_memory")  # though they look so
PLAIN = (int, float, bool, str)
FORMULA = re.compile(r"equation|mean of|[Ss]um |sum_|[=/]| [+*-] |\*\*|log |clip\(|\bKL\(")


class Block(NamedTuple):
    """A part of a docstring."""

    kind: str  # text, code, bullet or, for an implementation detail, detail, core or continuous
    text: str
    number: str = ""  # of a detail, "4" or "1-3"


class Setting(NamedTuple):
    """A field of Config."""

    name: str
    type: str
    default: Any
    interval: str  # of a float, "" of what shapes the program
    help: str


class Function(NamedTuple):
    """A function with a docstring."""

    name: str
    line: int
    says: str


@functools.cache
def read(name: str) -> str:
    """The text of an algorithm's file."""
    return (ROOT / "algorithms" / f"{name}.py").read_text()


@functools.cache
def tree(text: str) -> ast.Module:
    return ast.parse(text)


def blocks(docstring: str) -> list[Block]:
    """A docstring in parts: paragraphs, indented code, bullets, and details one by one."""
    found: list[Block] = []
    for part in re.split(r"\n\s*\n", docstring.strip("\n")):
        if all(line.startswith("    ") for line in part.splitlines()):
            lines = (line[4:] for line in part.splitlines())
            found.append(Block("code", "\n".join(lines)))
        else:
            found += _paragraph(part.splitlines())
    return [one for block in found for one in _items(block)]


def _paragraph(lines: list[str]) -> list[Block]:
    """Its text, and the items of lists in it; further lines of an item are indented."""
    found: list[Block] = []
    for before, line in zip(["", *lines], lines):
        item, words = LINE.match(line), line.strip()
        if item:
            found.append(Block("detail", line[item.end() :], item[1]))
        elif line.startswith(BULLET):
            found.append(Block("bullet", words[2:]))
        elif found and (line[0] == " " or (found[-1].kind == "text" and before[0] != " ")):
            last = found.pop()
            found.append(last._replace(text=f"{last.text} {words}"))
        else:
            found.append(Block("text", words))
    return found


def _items(block: Block) -> Iterator[Block]:
    """ppo.py's details, which are one paragraph, in parts."""
    kind, starts = None, list(ITEM.finditer(block.text))
    if block.kind != "text" or not any(start[1] for start in starts):
        yield block
        return
    yield Block("text", block.text[: starts[0].start()].strip())
    for start, end in zip(starts, [*(s.start() for s in starts[1:]), len(block.text)]):
        kind = start[1] or kind
        yield Block(str(kind), block.text[start.end() : end].strip(), start[2])


def numbers(text: str) -> Iterator[int]:
    """The numbers in a text such as "1-3, 5 and 7"."""
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        yield from range(int(first), int(last or first) + 1)


def listed(text: str) -> list[tuple[str, int]]:
    """(kind, number) of each detail in the docstring of a module."""
    found = blocks(ast.get_docstring(tree(text), clean=False) or "")
    return [(one.kind, number) for one in found for number in numbers(one.number)]


def marked(text: str) -> dict[tuple[str, int], list[int]]:
    """The lines whose comments name a detail, `# detail 4` or `# core 5 and 7`."""
    found: dict[tuple[str, int], list[int]] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            for kind, items in MARK.findall(token.string):
                for number in numbers(items):
                    found.setdefault((kind, number), []).append(token.start[0])
    return found


def settings(name: str) -> list[Setting]:
    """The fields of a file's Config, in order, with the comments behind them."""
    config = importlib.import_module(f"algorithms.{name}").Config
    (node,) = (
        n for n in tree(read(name)).body if isinstance(n, ast.ClassDef) and n.name == "Config"
    )
    lines, says = read(name).splitlines(), {}
    for field in node.body:
        own = "\n".join(lines[field.lineno - 1 : field.end_lineno])
        comments = re.findall(r"  # (.*)$", own, re.MULTILINE)
        says[ast.unparse(getattr(field, "target", field))] = " ".join(comments)
    return [_setting(field, says[field.name]) for field in dataclasses.fields(config)]


def _setting(field: dataclasses.Field, says: str) -> Setting:
    interval = field.metadata.get("interval", "")
    for other, ranges in field.metadata.get("others", {}).items():
        for value, instead in ranges.items():
            interval += f"; {instead} with {other}={value}"
    kind = getattr(field.type, "__name__", str(field.type)) if field.type in PLAIN else field.type
    return Setting(field.name, str(kind).replace("typing.", ""), field.default, interval, says)


def formulas(text: str) -> list[Function]:
    """The functions whose docstrings begin with a formula, in order."""
    return [one for one in functions(tree(text)) if FORMULA.search(one.says)]


def functions(node: ast.AST, within: str = "") -> Iterator[Function]:
    """The functions with a docstring in a file, methods by their class, in order."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from functions(child, f"{child.name}.")
        elif isinstance(child, ast.FunctionDef):
            says = ast.get_docstring(child)
            if says and not NOT_FORMULAS.fullmatch(child.name):
                name = f"{within}{child.name}".removesuffix(".__call__")
                yield Function(name, child.lineno, says.split("\n\n")[0].replace("\n", " "))
            yield from functions(child)
