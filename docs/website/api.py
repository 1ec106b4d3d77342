"""Pages of the public names of launch, envs and parts, from their signatures and docstrings."""

import ast
import functools
import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import envs
from algorithms import launch, parts
from algorithms.launch import compare, grid, match
from website import links, reading
from website.text import code, escaped, fenced, table

PACKAGES: dict[str, ModuleType] = {"launch": launch, "envs": envs, "parts": parts}
TOOLS = {"compare": compare, "grid": grid, "match": match}  # modules with a function of their name
SECTION = re.compile(r"^(Args|Returns|Raises):\n((?:  .*\n?|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^  (?=\S)(?:([\w*, ]+): )?", re.MULTILINE)
DEFAULT = re.compile(r"^(\w+: [^=]+)=")  # of a parameter with a type
WIDTH = 88  # characters of a signature's line
Node = ast.FunctionDef | ast.ClassDef


def pages() -> dict[str, str]:
    """{place: Markdown}, one for each package."""
    return {f"api/{name}.md": page(name) for name in PACKAGES}


def page(package: str) -> str:
    """The public names of a package: functions first, then classes."""
    found = names(package)
    order = sorted(found, key=lambda name: (inspect.isclass(found[name]), name.lower()))
    says = prose(PACKAGES[package].__doc__ or "")
    entries = [entry(f"api/{package}.md", name, found[name]) for name in order]
    return "\n\n".join([f"# {package}", says, *entries]) + "\n"


def names(package: str) -> dict[str, Any]:
    """{name: object} of its functions and classes."""
    module = PACKAGES[package]
    found = {name: getattr(module, name) for name in getattr(module, "__all__", vars(module))}
    if package == "launch":
        found |= {f"{name}.{name}": getattr(tool, name) for name, tool in TOOLS.items()}
    return {name: one for name, one in found.items() if file_of(one)}


def file_of(one: Any) -> str | None:
    """The path of the file that defines a function or a class of the repository."""
    one = inspect.unwrap(one) if callable(one) else one
    if not (inspect.isfunction(one) or inspect.isclass(one)):
        return None
    file = Path(inspect.getsourcefile(one) or "")
    return file.relative_to(links.ROOT).as_posix() if file.is_relative_to(links.ROOT) else None


def files() -> set[str]:
    """The paths of all files that define a public name."""
    return {str(file_of(one)) for package in PACKAGES for one in names(package).values()}


def entry(here: str, name: str, one: Any) -> str:
    """The signature, the docstring and, of a class, its fields and methods."""
    path = str(file_of(one))
    node = definition(path, inspect.unwrap(one).__name__)
    there = f"{links.between(here, links.source(path))}#L-0-{node.lineno}"
    if isinstance(node, ast.ClassDef):
        parts = [fenced(fields(path, node), "python"), prose(doc(node)), methods(node)]
    else:
        parts = [fenced(signature(node), "python"), prose(doc(node))]
    return "\n\n".join([f"## {name} {{ #{name} }}", *filter(None, parts), f"[{path}]({there})"])


@functools.cache
def definition(path: str, name: str) -> Node:
    """The statement that defines a name at the top of a file."""
    tree = reading.tree((links.ROOT / path).read_text())
    kinds = (ast.FunctionDef, ast.ClassDef)
    return next(node for node in tree.body if isinstance(node, kinds) and node.name == name)


def doc(node: Node) -> str:
    return ast.get_docstring(node) or ""


def signature(node: ast.FunctionDef) -> str:
    """A function's head as it stands in its file, a parameter to a line if it is long."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{node.name}({', '.join(parameters(node.args))}){returns}"
    if len(line) <= WIDTH:
        return line
    lines = "".join(f"    {parameter},\n" for parameter in parameters(node.args))
    return f"{node.name}(\n{lines}){returns}"


def parameters(args: ast.arguments) -> list[str]:
    """Each parameter with its type and default."""
    depth, found = 0, [""]
    for letter in ast.unparse(args):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [DEFAULT.sub(r"\1 = ", one.strip()) for one in found if one.strip()]


def fields(path: str, node: ast.ClassDef) -> str:
    """The head of a class, and its fields with their comments."""
    lines = (links.ROOT / path).read_text().splitlines()
    own = [n for n in node.body if isinstance(n, ast.AnnAssign)]
    shown = [line for n in own for line in lines[n.lineno - 1 : n.end_lineno]]
    bases = ", ".join(map(ast.unparse, node.bases))
    return "\n".join([f"class {node.name}" + f"({bases})" * bool(bases), *shown])


def methods(node: ast.ClassDef) -> str:
    """The public methods that have a docstring."""
    own = [n for n in node.body if isinstance(n, ast.FunctionDef) and doc(n)]
    own = [n for n in own if not n.name.startswith("_")]
    first = lambda n: doc(n).split("\n\n")[0].replace("\n", " ")
    rows = [
        (code(f"{n.name}({', '.join(parameters(n.args)[1:])})"), escaped(first(n))) for n in own
    ]
    return table(("method", ""), rows)


def prose(docstring: str) -> str:
    """A docstring as Markdown; arguments, results and errors are tables."""
    found, end = [], 0
    for part in SECTION.finditer(docstring):
        found += [plain(docstring[end : part.start()]), entries(part[1], part[2])]
        end = part.end()
    return "\n\n".join(filter(None, [*found, plain(docstring[end:])]))


def plain(text: str) -> str:
    """Paragraphs, lists and indented code."""
    shown = []
    for block in reading.blocks(text) if text.strip() else ():
        if block.kind == "code":
            shown.append(fenced(block.text, "python"))
        else:
            label = f"{block.number}. " * bool(block.number) or "- " * (block.kind == "bullet")
            shown.append(label + escaped(block.text))
    return "\n\n".join(shown)


def entries(head: str, text: str) -> str:
    """A section of a docstring as a table, one row for each name; as text if it has none."""
    starts = list(ENTRY.finditer(text))
    ends = [*(start.start() for start in starts[1:]), len(text)]
    says = [" ".join(textwrap.dedent(text[s.end() : e]).split()) for s, e in zip(starts, ends)]
    if not any(start[1] for start in starts):
        return f"**{head}** {escaped(' '.join(says))}"
    rows = [(code(start[1] or ""), escaped(one)) for start, one in zip(starts, says)]
    return table((head, ""), rows)
