"""Draws random changes of operators in algorithm files, for run.py --draw."""

import ast
import collections
import io
import random
import tokenize
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from run import enclosing, places

# What another operator or word becomes.
OPERATORS = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "*",
    ast.Pow: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}
SIGNS = ["+", "-", "*", "/", "//", "%", "**", "&", "|"]
COMPARISONS = {
    ast.Lt: (">=", "<="),
    ast.LtE: (">", "<"),
    ast.Gt: ("<=", ">="),
    ast.GtE: ("<", ">"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
WORDS = {
    "minimum": "maximum",
    "maximum": "minimum",
    "min": "max",
    "max": "min",
    "argmax": "argmin",
    "argmin": "argmax",
    "mean": "sum",
    "sum": "mean",
    "terminated": "done",
    "done": "terminated",
    "and": "or",
    "or": "and",
}
NUMBERS = {0: 1, 1: 2, 2: 1}
SELDOM = 0.3  # the weight of a number, of which files have many
LIBRARIES = ("mctx", "pgx")  # of alphazero.py


Token, Position = tokenize.TokenInfo, tuple[int, int]


class Change(NamedTuple):
    line: int  # from 0
    start: int  # columns
    end: int
    new: str
    weight: float


def unwanted(node: ast.AST) -> bool:
    """Text for people, types, imports, defaults and refusals."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Raise | ast.Assert | ast.JoinedStr):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return isinstance(target, ast.Name) and target.id == "INFO"
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return node.name in ("Config", "check")
    return isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)


def wanted(node: ast.AST) -> Iterator[ast.AST]:
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not unwanted(child):
                yield child
                yield from wanted(child)


def changes(source: str) -> list[Change]:
    """All changes that may be drawn. Each is within one line."""
    lines, tree, found = collections.defaultdict(list), ast.parse(source), set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        lines[token.start[0]].append(token)

    def within(start: Position, end: Position, words: Collection[str]) -> list[Token]:
        rows = (token for line in range(start[0], end[0] + 1) for token in lines[line])
        return [t for t in rows if start <= t.start and t.end <= end and t.string in words]

    def between(left: ast.expr, right: ast.expr, words: Collection[str]) -> Token | None:
        """The operator after one operand and before another, outside of their brackets."""
        start = (left.end_lineno or 0, left.end_col_offset or 0)
        return next(iter(within(start, (right.lineno, right.col_offset), words)), None)

    def at(node: ast.expr, word: str, last: bool = False) -> Token | None:
        """The first or last such word of a node."""
        end = (node.end_lineno or 0, node.end_col_offset or 0)
        inside = within((node.lineno, node.col_offset), end, {word})
        return inside[-1 if last else 0] if inside else None

    def add(token: Token | None, new: str, weight: float = 1.0) -> None:
        if token is not None and token.start[0] == token.end[0]:
            space = not new and token.line[token.end[1]] == " "
            change = Change(token.start[0] - 1, token.start[1], token.end[1] + space, new, weight)
            found.add(change)

    def known(name: str, line: int) -> bool:
        """Whether the outermost function around a line has a variable of this name."""
        around = [node for node in tree.body if node.lineno <= line <= (node.end_lineno or 0)]
        nodes = [node for outer in around for node in ast.walk(outer)]
        stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return name in stored | {node.arg for node in nodes if isinstance(node, ast.arg)}

    for node in wanted(tree):
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            add(between(node.left, node.right, SIGNS), OPERATORS[type(node.op)])
        elif isinstance(node, ast.BoolOp):
            word = "and" if isinstance(node.op, ast.And) else "or"
            add(between(node.values[0], node.values[1], [word]), WORDS[word])
        elif isinstance(node, ast.Compare):
            (op, *_), (right, *_) = node.ops, node.comparators
            if isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn):
                word = "in" if isinstance(op, ast.In) else "is"
                if isinstance(op, ast.In | ast.Is):
                    add(between(node.left, right, [word]), COMPARISONS[type(op)][0])
            else:
                words = ["<", "<=", ">", ">=", "==", "!="]
                for new in COMPARISONS[type(op)]:
                    add(between(node.left, right, words), new, 1 / len(COMPARISONS[type(op)]))
        elif isinstance(node, ast.UnaryOp):
            sign = {ast.USub: "-", ast.Invert: "~", ast.Not: "not"}.get(type(node.op))
            number = isinstance(node.operand, ast.Constant)
            if sign:
                add(at(node, sign), "", SELDOM if number else 1.0)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            add(at(node, str(node.value)), str(not node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            shown = ast.get_source_segment(source, node) or ""
            if node.value in NUMBERS:
                new = NUMBERS[node.value]
                add(at(node, shown), f"{new}.0" if "." in shown else f"{new}", SELDOM)
            elif isinstance(node.value, float):
                add(at(node, shown), f"{2.0 * node.value!r}", SELDOM)
        elif isinstance(node, ast.Attribute | ast.Name):
            word = node.attr if isinstance(node, ast.Attribute) else node.id
            if word in WORDS and not isinstance(node.ctx, ast.Store):
                there = isinstance(node, ast.Attribute) or known(WORDS[word], node.lineno)
                if there and not ast.unparse(node).startswith("parts."):
                    add(at(node, word, last=True), WORDS[word])
            if word == "stop_gradient":
                add(at(node, word, last=True), "asarray_of_a_mutant")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "jnp.where":
            for i, other in ((1, 2), (2, 1)):  # always one of the branches
                a, b = node.args[i], node.args[other]
                if len(node.args) == 3 and a.lineno == a.end_lineno:
                    text = ast.unparse(b)
                    place = Change(a.lineno - 1, a.col_offset, a.end_col_offset or 0, text, 0.5)
                    found.add(place)
    return sorted(found)


def mutant(name: str, source: str, change: Change) -> dict[str, Any] | None:
    """The entry of a list for a change, or None if it changes nothing."""
    lines = source.splitlines()
    old = lines[change.line]
    new = old[: change.start] + change.new + old[change.end :]
    if "asarray_of_a_mutant" in new:
        stop = "jax.lax.stop_gradient" if "jax.lax.stop_gradient" in old else "lax.stop_gradient"
        new = old.replace(stop, "jnp.asarray", 1)
    file, where = f"algorithms/{name}.py", enclosing(source, change.line)
    try:
        tree = ast.parse("\n".join([*lines[: change.line], new, *lines[change.line + 1 :]]))
    except SyntaxError:
        return None
    if ast.dump(tree) == ast.dump(ast.parse(source)):
        return None
    group = f"'[{name}] or [{name}-'"
    found = places(source, old.strip(), where)
    entry: dict[str, Any] = {"file": file, "in": where, "old": old.strip(), "new": new.strip()}
    if len(found) > 1:
        entry["which"] = [found.index(change.line) + 1, len(found)]
    if name == "alphazero":
        entry["needs"] = list(LIBRARIES)
    entry["tests"] = [
        f"tests/algorithms/test_contract.py -k 'test_pinned_values and ([{name}] or [{name}-)'",
        f"tests/algorithms/test_{name}.py",
        f"tests/algorithms --ignore tests/algorithms/launch --ignore tests/algorithms/parts"
        f" -k {group}",
    ]
    return entry


def draw(root: Path, number: int, seed: int) -> list[dict[str, Any]]:
    """Random changes of algorithm files, of each file in proportion to its lines."""
    files = sorted((root / "algorithms").glob("*.py"))
    others = ("__init__", "presets")
    sources = {file.stem: file.read_text() for file in files if file.stem not in others}
    lines = {name: len(source.splitlines()) for name, source in sources.items()}
    rng, total, mutants, carried = random.Random(seed), sum(lines.values()), [], 0.0
    for name, source in sources.items():
        carried += number * lines[name] / total
        drawn: dict[tuple, dict[str, Any]] = {}
        possible = changes(source)
        while len(drawn) < round(carried):
            (change,) = rng.choices(possible, [change.weight for change in possible])
            possible.remove(change)
            if entry := mutant(name, source, change):
                drawn[entry["in"], entry["old"], entry["new"]] = entry
        carried -= len(drawn)
        mutants += drawn.values()
    return mutants
