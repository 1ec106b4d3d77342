"""Files of the kit, their definitions, and what names in them mean."""

import ast
import builtins
import dataclasses
import functools
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from algorithms.launch.engine.errors import UserError

KIT = Path(__file__).parents[4]
ALONE = "algorithms.launch.tools.copying.alone"
OF_THE_KIT = ("algorithms", "envs")
BUILTINS = frozenset(dir(builtins))
Function = ast.FunctionDef | ast.AsyncFunctionDef
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
HOOKS = ("setup",)  # methods that flax calls


class Key(NamedTuple):
    """A definition: its module (envs.batch) and its name."""

    module: str
    name: str


class Outside(NamedTuple):
    """An import of another library: `import module as name`, or `from module import name`."""

    module: str
    name: str | None  # None: the module itself
    alias: str | None

    @property
    def local(self) -> str:
        return self.alias or self.name or self.module.partition(".")[0]

    def __str__(self) -> str:
        alias = f" as {self.alias}" if self.alias else ""
        return f"import {self.module}{alias}" if self.name is None else f"{self.name}{alias}"


@dataclasses.dataclass(frozen=True)
class Definition:
    """A function, a class or a value, with the statements that add to it."""

    module: "Module"
    name: str
    nodes: tuple[ast.stmt, ...]  # the definition itself, and what adds to it


class Module:
    """A file of the kit: its text, its definitions, and what its names mean."""

    def __init__(self, name: str, path: Path):
        self.name, self.path, self.text = name, path, path.read_bytes()
        self.tree = ast.parse(self.text)
        lines = self.text.splitlines(keepends=True)
        self.lines = lines
        self.offsets = [0, *itertools.accumulate(map(len, lines))]
        self.meanings: dict[str, Key | str | Outside] = {}  # a str is a module of the kit
        self.late: set[ast.stmt] = set()  # imports of the kit inside of functions
        self.definitions: dict[str, Definition] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
        for node in self.tree.body:
            self._define(node)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        top = node in self.tree.body
        if isinstance(node, ast.ImportFrom) and node.level:
            raise self.refusal(node, "it imports relatively")
        for alias in node.names:
            source = alias.name if isinstance(node, ast.Import) else node.module or ""
            local = alias.asname or alias.name
            of_kit = source.partition(".")[0] in OF_THE_KIT
            if not of_kit:
                if top:
                    name = None if isinstance(node, ast.Import) else alias.name
                    found = Outside(source, name, alias.asname)
                    self.meanings[found.local] = found
                continue
            if not top:
                self.late.add(node)
            if isinstance(node, ast.Import):
                if "." in source or alias.asname:
                    raise self.refusal(node, "give `from x import y`")
                self.meanings[local] = source
            elif path_of(f"{source}.{alias.name}"):
                self.meanings[local] = f"{source}.{alias.name}"
            else:
                self.meanings[local] = Key(source, alias.name)

    def _define(self, node: ast.stmt) -> None:
        if isinstance(node, Function | ast.ClassDef):
            owner = self._owner(node)
            if owner:
                self._follow(owner, node)
            else:
                self.definitions[node.name] = Definition(self, node.name, (node,))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)):
                self.definitions[name] = Definition(self, name, (node,))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._follow(root(node.value.func), node)

    def _owner(self, node: Any) -> str | None:
        """The definition that a function adds to, as with `@swish.defjvp`."""
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Attribute) and root(decorator) in self.definitions:
                return root(decorator)
        return None

    def _follow(self, owner: str | None, node: ast.stmt) -> None:
        """A statement that adds to a definition above it."""
        if before := self.definitions.get(owner or ""):
            nodes = (*before.nodes, node)
            self.definitions[before.name] = dataclasses.replace(before, nodes=nodes)

    def refusal(self, node: Any, why: str) -> UserError:
        return UserError(f"{self.path}, line {node.lineno}: {why}, and cannot be copied")

    def span(self, node: Any) -> tuple[int, int]:
        """Bytes of a node."""
        first = self.offsets[node.lineno - 1] + node.col_offset
        return first, self.offsets[node.end_lineno - 1] + node.end_col_offset

    def whole_lines(self, node: ast.stmt) -> tuple[int, int]:
        """Bytes of a statement's lines, decorators and comments right above included."""
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]) - 1
        while first and self.lines[first - 1].lstrip().startswith(b"#"):
            first -= 1
        return self.offsets[first], self.offsets[node.end_lineno or node.lineno]


def first_of(node: ast.expr) -> ast.expr:
    """a of a.b.c."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def root(node: ast.expr) -> str | None:
    """The name of a in a.b.c."""
    first = first_of(node)
    return first.id if isinstance(first, ast.Name) else None


def path_of(module: str) -> Path | None:
    """The file of a module of the kit; None if there is none."""
    path = KIT.joinpath(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


MODULES: dict[str, Module] = {}  # read so far


def module_of(name: str) -> Module:
    if name not in MODULES:
        path = path_of(name)
        if path is None:
            raise UserError(f"there is no module {name}")
        MODULES[name] = Module(name, path)
    return MODULES[name]


def find(key: Key) -> Definition | None:
    """The definition that a name of a module stands for, through imports from one to the next."""
    module = module_of(key.module)
    if key.name in module.definitions:
        return module.definitions[key.name]
    meaning = module.meanings.get(key.name)
    return find(meaning) if isinstance(meaning, Key) else None


# --- what names mean ----------------------------------------------------------------------------


class Scopes(ast.NodeVisitor):
    """Finds the names in a statement that are global, and those that it binds itself."""

    def __init__(self, node: ast.AST):
        self.stack: list[set[str]] = []
        self.globals: set[ast.Name] = set()
        self.bound: set[str] = set()
        self.visit(node)

    def _inside(self, names: Iterable[str], nodes: Iterable[ast.AST]) -> None:
        self.stack.append(set(names))
        self.bound |= self.stack[-1]
        for node in nodes:
            self.visit(node)
        self.stack.pop()

    def visit_Name(self, node: ast.Name) -> None:
        if not any(node.id in names for names in self.stack):
            self.globals.add(node)

    def visit_FunctionDef(self, node: Any) -> None:
        given = node.args
        arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        arguments += [x for x in (given.vararg, given.kwarg) if x]
        outer = [*given.defaults, *(x for x in given.kw_defaults if x)]
        outer += [x.annotation for x in arguments if x.annotation]
        body = node.body if isinstance(node.body, list) else [node.body]
        if not isinstance(node, ast.Lambda):
            outer += [*node.decorator_list, *([node.returns] if node.returns else [])]
        for one in outer:
            self.visit(one)
        self._inside({x.arg for x in arguments} | bound_in(body), body)

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for head in (*node.bases, *(k.value for k in node.keywords), *node.decorator_list):
            self.visit(head)
        for one in node.body:  # names of a class are not those of its methods
            if isinstance(one, ast.AnnAssign):
                self.visit(one.annotation)
                if one.value:
                    self.visit(one.value)
            elif isinstance(one, ast.Assign):
                self.visit(one.value)
            else:
                self.visit(one)

    def _comprehension(self, node: Any) -> None:
        names = {n.id for g in node.generators for n in ast.walk(g.target) if type(n) is ast.Name}
        self._inside(names, ast.iter_child_nodes(node))

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension


@functools.cache
def scopes(node: ast.stmt) -> Scopes:
    return Scopes(node)


def bound_in(body: Iterable[ast.AST]) -> set[str]:
    """Names that statements bind in their own scope."""
    names: set[str] = set()
    todo = list(body)
    while todo:
        node = todo.pop()
        if isinstance(node, Function | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name):
            names |= {node.id} if isinstance(node.ctx, ast.Store) else set()
        elif isinstance(node, ast.Import | ast.ImportFrom):
            of_kit = getattr(node, "module", None) or node.names[0].name
            if of_kit.partition(".")[0] not in OF_THE_KIT:
                names |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        elif not isinstance(node, (ast.Lambda, *COMPREHENSIONS)):
            if isinstance(node, ast.ExceptHandler) and node.name:
                names.add(node.name)
            todo += ast.iter_child_nodes(node)
    return names


# In place of definitions that import a library in their own way.
OUTSIDE = {
    Key("envs.gymnax", "spaces"): Outside("gymnax.environments", "spaces", None),
    Key("envs.gymnax", "Environment"): Outside(
        "gymnax.environments.environment", "Environment", None
    ),
}
