"""An algorithm's file and all that it uses of the kit, as the text of one file.

The writer follows names: from the file's own text to the definitions in `parts` and `envs` that it
uses, and from these to others. What only the kit needs has a shorter form in alone.py, and what
that form decides at once (`if shards.here():`) is left out. Formatting and comments stay.
"""

import ast
import builtins
import dataclasses
import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.errors import UserError

KIT = Path(__file__).parents[3]
ALONE = "algorithms.launch.commands.alone"
OF_THE_KIT = ("algorithms", "envs")
BUILTINS = frozenset(dir(builtins))
Function = ast.FunctionDef | ast.AsyncFunctionDef
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Methods that others call: Python, flax, and gymnax's users.
HOOKS = ("setup",)


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


# --- the forms of alone.py ----------------------------------------------------------------------


class Alone(NamedTuple):
    """What alone.py puts in the place of the kit's definitions."""

    others: dict[Key, Key]  # another definition
    inlined: dict[Key, ast.FunctionDef]  # written out where it is called
    plain: dict[Key, Key]  # what is enough without environments of the kit


@functools.cache
def alone() -> Alone:
    module = module_of(ALONE)
    others: dict[Any, Key] = {}
    inlined: dict[Any, Any] = {}
    for definition in module.definitions.values():
        node = definition.nodes[0]
        for decorator in getattr(node, "decorator_list", ()):
            if not isinstance(decorator, ast.Call):
                continue
            found = meaning_of(module, decorator.args[0]) if decorator.args else None
            if root(decorator.func) == "in_place_of":
                others[found] = Key(ALONE, definition.name)
            elif root(decorator.func) == "inlined_for":
                inlined[found] = node
    (node,) = module.definitions["PLAIN"].nodes
    assert isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
    pairs = [
        [meaning_of(module, x) for x in pair if x]
        for pair in zip(node.value.keys, node.value.values)
    ]
    return Alone(others, inlined, dict(pairs))


def meaning_of(module: Module, node: ast.expr) -> Any:
    """The Key of a definition, the name of a module, an Outside, or None (anything else)."""
    if isinstance(node, ast.Name):
        if node.id in module.definitions:
            return Key(module.name, node.id)
        meaning = module.meanings.get(node.id)
        return _settled(meaning) if isinstance(meaning, Key) else meaning
    if isinstance(node, ast.Attribute):
        inside = meaning_of(module, node.value)
        if isinstance(inside, str):
            if path_of(f"{inside}.{node.attr}") and node.attr not in module_of(inside).meanings:
                return f"{inside}.{node.attr}"
            return _settled(Key(inside, node.attr))
    return None


def _settled(key: Key) -> Key | str | Outside | None:
    found = find(key)
    if found:
        return Key(found.module.name, found.name)
    meaning = module_of(key.module).meanings.get(key.name)
    return _settled(meaning) if isinstance(meaning, Key) else meaning


# --- text ---------------------------------------------------------------------------------------

UNKNOWN = object()


class Use(NamedTuple):
    """A call of a function, a class or (by its name) a method."""

    of: Key | str
    positions: list[Any]  # the value of each argument, or UNKNOWN
    keywords: dict[str, Any]
    is_open: bool  # with *args or **kwargs


class Facts(NamedTuple):
    """What is decided in a copy."""

    inlined: dict[Key, ast.FunctionDef]  # functions that are written out where they are called
    values: dict[Key, Any]  # what a call returns
    absent: frozenset[str]  # attributes that no environment has
    fixed: dict[tuple[Key, str], Any]  # parameters and fields that always have their default
    fields: dict[str, Any]  # of them the fields that only one class has
    others: dict[Key, Key]  # definitions of which alone.py has another one

    def of(self, module: Module, name: str) -> dict[str, Any]:
        """The fixed parameters of a function, or fields of a class."""
        key = Key(module.name, name)
        return {field: value for (of, field), value in self.fixed.items() if of == key}


class Text:
    """The text of statements, with other names and without what is decided.

    Args:
      module: theirs.
      name_of: the name of a definition in the copy.
      wanted: whether a method of a class stays.
      facts: what is decided.
    """

    def __init__(
        self,
        module: Module,
        name_of: Callable[[Key], str],
        wanted: Callable[[str], bool],
        facts: "Facts",
    ):
        self.module, self.name_of, self.wanted, self.facts = module, name_of, wanted, facts
        self.calls: list[Use] = []
        self.values: set[Key | str] = set()  # functions, and names of methods, that are no callee
        self.callees: set[ast.expr] = set()
        self.inside = ""  # the class or the function at the top level
        self.refs: list[Key | Outside] = []  # in order
        self.early: set[Key] = set()  # of them those that an import of the copy evaluates
        self.attributes: set[str] = set()
        self.bound: set[str] = set()
        self.globals: set[ast.Name] = set()
        self.constants: list[dict[str, Any]] = []  # of functions: variables that are decided
        self.depth = 0  # of functions
        self.annotating = False

    def of(self, nodes: Iterable[ast.stmt]) -> str:
        parts = []
        for node in nodes:
            found = scopes(node)
            self.globals |= found.globals
            self.bound |= found.bound
            first, end = self.module.whole_lines(node)
            parts.append(self._replaced(first, end, [node]).decode())
        return "\n\n".join(part.strip("\n") for part in parts)

    # A text is made of edits (first, end, text) of the bytes between two places.

    def _replaced(self, first: int, end: int, nodes: Iterable[ast.AST]) -> bytes:
        edits = [edit for node in nodes for edit in self.edits(node)]
        return edited(self.module.text, first, end, edits)

    def expression(self, node: ast.expr) -> bytes:
        return self._replaced(*self.module.span(node), [node])

    def edits(self, node: ast.AST) -> Iterator[tuple[int, int, bytes]]:
        if isinstance(node, ast.stmt):
            yield from self._statement(node)
        elif isinstance(node, ast.expr):
            yield from self._expression(node)
        elif isinstance(node, ast.arg):
            yield from self._annotation(node.annotation)
        else:
            for child in ast.iter_child_nodes(node):
                yield from self.edits(child)

    def _annotation(self, node: ast.expr | None) -> Iterator[tuple[int, int, bytes]]:
        """Of an annotation, which nobody evaluates when the copy is imported."""
        self.depth += 1
        self.annotating = True
        yield from self.edits(node) if node else ()
        self.annotating = False
        self.depth -= 1

    def _gone(self, node: ast.stmt) -> tuple[int, int, bytes]:
        return (*self.module.whole_lines(node), b"")

    def _block(self, statements: list[ast.stmt]) -> Iterator[tuple[int, int, bytes]]:
        """Of a body, without what follows a return."""
        over = False
        for node in statements:
            if over:
                yield self._gone(node)
                continue
            yield from self.edits(node)
            over = self._returns(node)

    def _returns(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.If) and (known := self.known(node.test)) is not UNKNOWN:
            body = node.body if known else node.orelse
            return any(map(self._returns, body))
        return isinstance(node, ast.Return | ast.Raise)

    def _instead(self, node: ast.stmt, body: list[ast.stmt]) -> tuple[int, int, bytes]:
        """A body in place of the statement around it."""
        if not body:
            return self._gone(node)
        first, end = self.module.whole_lines(body[0])[0], self.module.whole_lines(body[-1])[1]
        text = edited(self.module.text, first, end, self._block(body))
        deeper = body[0].col_offset - node.col_offset
        lines = text.splitlines(keepends=True)
        text = b"".join(x[deeper:] if x[:deeper].isspace() else x for x in lines)
        start = self.module.offsets[node.lineno - 1]
        return start, self.module.whole_lines(node)[1], text

    def _statement(self, node: ast.stmt) -> Iterator[tuple[int, int, bytes]]:
        if self._vanishes(node):
            yield self._gone(node)
        elif isinstance(node, ast.If) and (known := self.known(node.test)) is not UNKNOWN:
            yield self._instead(node, node.body if known else node.orelse)
        elif isinstance(node, ast.With) and all(
            self.known(item.context_expr) is None for item in node.items
        ):
            yield self._instead(node, node.body)
        elif isinstance(node, Function):
            yield from self._function(node)
        elif isinstance(node, ast.ClassDef):
            yield from self._class(node)
        elif isinstance(node, ast.AnnAssign):
            yield from self.edits(node.target)
            yield from self._annotation(node.annotation)
            yield from self.edits(node.value) if node.value else ()
        elif isinstance(node, ast.If | ast.For | ast.While | ast.With):
            blocks = [node.body, *([node.orelse] if hasattr(node, "orelse") else [])]
            inside = {id(one) for block in blocks for one in block}
            for child in ast.iter_child_nodes(node):
                if id(child) not in inside:
                    yield from self.edits(child)
            for block in blocks:
                yield from self._block(block)
        else:
            for child in ast.iter_child_nodes(node):
                yield from self.edits(child)

    def _vanishes(self, node: ast.stmt) -> bool:
        """Whether nothing is left of a statement."""
        if isinstance(node, ast.If) and self.known(node.test) is UNKNOWN:
            return not node.orelse and all(map(self._vanishes, node.body))
        if isinstance(node, ast.Expr):
            return self.known(node.value) is None
        says_nothing = isinstance(node, ast.Assign) and self._says_nothing(node)
        return node in self.module.late or says_nothing

    def _says_nothing(self, node: ast.Assign) -> bool:
        """x = x, or a variable or a field that is decided."""
        target = node.targets[0]
        if isinstance(target, ast.Attribute) and root(target) == "self":
            return target.attr in self._own_fixed()
        if len(node.targets) != 1 or not isinstance(target, ast.Name):
            return False
        if self.constants and target.id in self.constants[-1]:
            return True
        shorter = isinstance(node.value, ast.IfExp) and self.known(node.value.test) is not UNKNOWN
        if shorter or (isinstance(node.value, ast.Call) and self._inlined(node.value)):
            return self._peek(node.value) == self._peek(target)
        return False

    def _own_fixed(self) -> dict[str, Any]:
        """The fixed fields of the class around a statement."""
        name = self.inside.partition(".")[0]
        definition = self.module.definitions.get(name)
        there = fields(definition.nodes[0]) if definition else []
        return {n: x for n, x in self.facts.of(self.module, name).items() if n in there}

    def _peek(self, node: ast.expr) -> bytes:
        """An expression's text, without a record of its names."""
        kept = [*self.refs], {*self.early}, {*self.attributes}, [*self.calls], {*self.values}
        text = self.expression(node)
        self.refs, self.early, self.attributes, self.calls, self.values = kept
        return text

    def _function(self, node: Any) -> Iterator[tuple[int, int, bytes]]:
        for decorator in node.decorator_list:
            inlined = self._inlined_name(decorator)
            if inlined is not None or self._of_alone(decorator):
                yield self._line(decorator)
            else:
                yield from self.edits(decorator)
        name, before = node.name, self.inside
        if not self.depth:
            name = self.inside = f"{before}.{node.name}" if before else node.name
        of = before if node.name == "__init__" else name
        fixed = {} if self.depth else self.facts.of(self.module, of)
        yield from self._arguments(node.args, fixed)
        yield from self._annotation(node.returns)
        self.constants.append({**self._decided(node), **fixed})
        self.depth += 1
        doc = node.body[:1] if fixed and ast.get_docstring(node) else []
        for one in doc:
            yield (*self.module.span(one), self._documented(one, fixed))
        yield from self._block(node.body[len(doc) :])
        self.depth -= 1
        self.constants.pop()
        self.inside = before

    def _arguments(
        self, given: ast.arguments, fixed: dict[str, Any]
    ) -> Iterator[tuple[int, int, bytes]]:
        arguments = [*given.posonlyargs, *given.args]
        defaults = [*[None] * (len(arguments) - len(given.defaults)), *given.defaults]
        for i, (argument, default) in enumerate(zip(arguments, defaults)):
            if argument.arg in fixed and default is not None:
                before = defaults[i - 1] or arguments[i - 1]
                yield self.module.span(before)[1], self.module.span(default)[1], b""
            else:
                yield from self.edits(argument)
                yield from self.edits(default) if default else ()
        last: Any = defaults[-1] or arguments[-1] if arguments else None
        if given.vararg:
            yield from self.edits(last := given.vararg)
        for argument, value in zip(given.kwonlyargs, given.kw_defaults):
            if argument.arg in fixed and value and last:
                yield self.module.span(last)[1], self.module.span(value)[1], b""
            else:
                yield from self.edits(argument)
                yield from self.edits(value) if value else ()
            last = value or argument
        yield from self.edits(given.kwarg) if given.kwarg else ()

    def _documented(self, node: ast.stmt, fixed: dict[str, Any]) -> bytes:
        """A docstring without the entries of these arguments."""
        text = self.module.text[slice(*self.module.span(node))].decode()
        for name in fixed:
            text = re.sub(rf"^( +){name}: .*\n(?:\1 +.*\n)*", "", text, flags=re.MULTILINE)
        return re.sub(r"\n +Args:\n(?=\n| *\"\"\")", "", text).encode()

    def _line(self, decorator: ast.expr) -> tuple[int, int, bytes]:
        """Its lines, gone."""
        first, last = decorator.lineno - 1, decorator.end_lineno or decorator.lineno
        return self.module.offsets[first], self.module.offsets[last], b""

    def _of_alone(self, decorator: ast.expr) -> bool:
        name = root(decorator.func) if isinstance(decorator, ast.Call) else root(decorator)
        return self.module.name == ALONE and name in ("in_place_of", "inlined_for")

    def _decided(self, node: Any) -> dict[str, Any]:
        """The variables of a function that are assigned once, something that is known."""
        assigned: dict[str, list[Any]] = {}
        for one in ast.walk(node):
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
                assigned.setdefault(one.targets[0].id, []).append(one.value)
            elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                assigned.setdefault(one.id, [])
        for one in ast.walk(node):
            if isinstance(one, ast.arg):
                assigned.pop(one.arg, None)
        known = {n: self.known(values[0]) for n, values in assigned.items() if len(values) == 1}
        plain = lambda values: isinstance(values[0], ast.Constant)
        return {n: x for n, x in known.items() if x is not UNKNOWN and not plain(assigned[n])}

    def _class(self, node: ast.ClassDef) -> Iterator[tuple[int, int, bytes]]:
        for decorator in node.decorator_list:
            if self._of_alone(decorator):
                yield self._line(decorator)
            else:
                yield from self.edits(decorator)
        for child in (*node.bases, *(k.value for k in node.keywords)):
            yield from self.edits(child)
        before, self.inside = self.inside, "" if self.depth else node.name
        fixed = {} if self.depth else self.facts.of(self.module, node.name)
        for one in node.body:
            dropped = isinstance(one, Function) and not self.depth and not self.wanted(one.name)
            if dropped or (isinstance(one, ast.AnnAssign) and root(one.target) in fixed):
                yield self._gone(one)
            else:
                yield from self.edits(one)
        self.inside = before

    def _expression(self, node: ast.expr) -> Iterator[tuple[int, int, bytes]]:
        here = self.module.span(node)
        if isinstance(node, ast.IfExp) and (known := self.known(node.test)) is not UNKNOWN:
            yield (*here, self.expression(node.body if known else node.orelse))
            return
        if isinstance(node, ast.BoolOp) and (text := self._shorter(node)) is not None:
            yield (*here, text)
            return
        if isinstance(node, ast.Call) and (text := self._written_out(node)) is not None:
            yield (*here, text)
            return
        if isinstance(node, ast.Call):
            yield from self._call(node)
            return
        is_name = isinstance(node, ast.Name | ast.Attribute | ast.DictComp)
        if is_name and (known := self.known(node)) is not UNKNOWN:
            yield (*here, repr(known).encode())
            return
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            sides = [node.left, node.right]
            if kept := [side for side in sides if self.known(side) == {}]:
                yield (*here, self.expression(sides[kept[0] is node.left]))
                return
        if isinstance(node, ast.Name | ast.Attribute) and (text := self._name(node)) is not None:
            yield (*here, text)
            return
        if isinstance(node, ast.Attribute):
            self.attributes.add(node.attr)
            if node not in self.callees:
                self.values.add(node.attr)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.attributes |= {x for x in node.value.split() if x.isidentifier()}
        if isinstance(node, ast.JoinedStr):
            yield from self._formatted(node)
            return
        for child in ast.iter_child_nodes(node):
            yield from self.edits(child)

    def _call(self, node: ast.Call) -> Iterator[tuple[int, int, bytes]]:
        self.callees.add(node.func)
        yield from self.edits(node.func)
        if isinstance(node.func, ast.Name) and node.func.id == "isinstance":
            self.callees |= {x for x in ast.walk(node.args[1]) if isinstance(x, ast.expr)}
        callee = self.callee(node)
        fixed: dict[str, Any] = {}
        if isinstance(callee, Key):
            fixed = self.facts.of(module_of(callee.module), callee.name)
        arguments: list[ast.AST] = [*node.args, *node.keywords]
        passed: list[ast.AST] = [x for x in node.keywords if x.arg in fixed]
        if isinstance(callee, Key) and node.args and not node.keywords:  # at the last position
            passed += [node.args[-1]] if self._position(callee, len(node.args) - 1) in fixed else []
        for i, argument in enumerate(arguments):
            if argument in passed and i:
                yield self.module.span(arguments[i - 1])[1], self.module.span(argument)[1], b""
            else:
                yield from self.edits(argument)
        if callee is not None:
            left = [x for x in arguments if x not in passed]
            known = lambda x: x.value if isinstance(x, ast.Constant) else self.known(x)
            positions = [known(x) for x in node.args if x in left]
            keywords = {x.arg or "": known(x.value) for x in node.keywords if x in left}
            is_open = "" in keywords or any(isinstance(x, ast.Starred) for x in node.args)
            self.calls.append(Use(callee, positions, keywords, is_open))

    def _position(self, callee: Key, number: int) -> str:
        """The name of a parameter or field of this position."""
        definition = find(callee)
        names = parameters(definition.nodes[0]) if definition else []
        return names[number] if number < len(names) else ""

    def callee(self, node: ast.Call) -> Key | str | None:
        """What a call calls: a definition, a method by its name, or something else."""
        first = first_of(node.func)
        if isinstance(first, ast.Name) and first in self.globals:
            meaning = meaning_of(self.module, node.func)
            if isinstance(meaning, Key):
                return self.facts.others.get(meaning, meaning)
        return node.func.attr if isinstance(node.func, ast.Attribute) else None

    def _formatted(self, node: Any) -> Iterator[tuple[int, int, bytes]]:
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                yield from self.edits(value.value)
                if value.format_spec:
                    yield from self._formatted(value.format_spec)

    def _shorter(self, node: ast.BoolOp) -> bytes | None:
        """`x or False` as x."""
        neutral = isinstance(node.op, ast.And)
        kept = []
        for value in node.values:
            known = self.known(value)
            if known is UNKNOWN:
                kept.append(value)
            elif bool(known) != neutral:
                return None if kept else repr(known).encode()
        if len(kept) in (0, len(node.values)):
            return None
        word = b" and " if neutral else b" or "
        return word.join(map(self.expression, kept))

    def _name(self, node: ast.Name | ast.Attribute) -> bytes | None:
        first = first_of(node)
        if not isinstance(first, ast.Name) or first not in self.globals:
            return None
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            meaning = meaning_of(self.module, node)
            return self.name_of(meaning).encode() if isinstance(meaning, Key) else None
        meaning = meaning_of(self.module, node)
        if isinstance(meaning, str):
            raise self.module.refusal(node, f"{ast.unparse(node)} is used as a whole")
        if isinstance(meaning, Outside):
            self.refs.append(meaning)
            return None
        if meaning is None:
            if isinstance(node, ast.Name) and node.id not in BUILTINS:
                known = ("__file__", "__name__", "__package__", "__doc__")
                if node.id not in known:
                    raise self.module.refusal(node, f"nobody defines {node.id}")
            return None
        if node not in self.callees and not self.annotating:
            self.values.add(self.facts.others.get(meaning, meaning))
        return self.refer(meaning).encode()

    def refer(self, key: Key) -> str:
        if key in OUTSIDE:
            self.refs.append(OUTSIDE[key])
            return OUTSIDE[key].local
        key = self.facts.others.get(key, key)
        self.refs.append(key)
        if not self.depth:
            self.early.add(key)
        return self.name_of(key)

    # What alone.py decides.

    def _inlined_name(self, node: ast.expr) -> ast.FunctionDef | None:
        if not isinstance(node, ast.Name | ast.Attribute):
            return None
        first = first_of(node)
        if not isinstance(first, ast.Name) or first not in self.globals:
            return None
        meaning = meaning_of(self.module, node)
        return self.facts.inlined.get(meaning) if isinstance(meaning, Key) else None

    def _inlined(self, node: ast.Call) -> ast.FunctionDef | None:
        return self._inlined_name(node.func)

    def _written_out(self, node: ast.Call) -> bytes | None:
        if (known := self.known(node)) is not UNKNOWN:
            return repr(known).encode()
        function = self._inlined(node)
        if function is None:
            return None
        names = [x.arg for x in function.args.args]
        given = dict(zip(names, map(self.expression, node.args)))
        given |= {k.arg or "": self.expression(k.value) for k in node.keywords}
        value = returned(function)
        if isinstance(value, ast.Name):
            return given[value.id]
        atomic = re.compile(rb"[\w.]+(\(.*\))?", re.DOTALL)
        put = lambda x: x if atomic.fullmatch(x) else b"(" + x + b")"
        text = ast.unparse(value)
        whole = re.compile(rf"\b({'|'.join(names) or '$^'})\b")
        return whole.sub(lambda found: put(given[found[0]]).decode(), text).encode()

    def known(self, node: ast.expr) -> Any:
        """The value of an expression that is decided, or UNKNOWN."""
        if isinstance(node, ast.Name) and self.constants:
            for constants in reversed(self.constants):
                if node.id in constants:
                    return constants[node.id]
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            if root(node) == "self":
                return self._own_fixed().get(node.attr, UNKNOWN)
            if first_of(node) not in self.globals:
                return self.facts.fields.get(node.attr, UNKNOWN)
            return UNKNOWN
        if isinstance(node, ast.Call):
            return self._returned(node)
        if isinstance(node, ast.DictComp):
            over = self.known(node.generators[0].iter)
            return {} if over is not UNKNOWN and not over else UNKNOWN
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inside = self.known(node.operand)
            return inside if inside is UNKNOWN else not inside
        if isinstance(node, ast.BoolOp):
            values = [self.known(value) for value in node.values]
            stops = isinstance(node.op, ast.Or)
            for value in values:
                if value is not UNKNOWN and bool(value) == stops:
                    return value
            return UNKNOWN if UNKNOWN in values else values[-1]
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
            named = isinstance(node.left, ast.Constant) and node.left.value
            return False if named in self.facts.absent else UNKNOWN
        if isinstance(node, ast.Compare) and isinstance(node.comparators[0], ast.Constant):
            left, right = self.known(node.left), node.comparators[0].value
            if left is not UNKNOWN and isinstance(
                node.ops[0], ast.Is | ast.IsNot | ast.Eq | ast.NotEq
            ):
                return (left == right) == isinstance(node.ops[0], ast.Is | ast.Eq)
        return UNKNOWN

    def _returned(self, node: ast.Call) -> Any:
        """What a call returns, or UNKNOWN."""
        if function := self._inlined(node):
            try:
                return ast.literal_eval(returned(function))
            except ValueError:
                return UNKNOWN
        callee: Any = self.callee(node)
        if callee in self.facts.values:
            return self.facts.values[callee]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "items":
            return self.known(node.func.value)
        names = [x.value for x in node.args[1:] if isinstance(x, ast.Constant)]
        if root(node.func) == "hasattr" and self.inside != "check_spaces":
            return False if self.facts.absent & {*names} else UNKNOWN
        return UNKNOWN


def edited(text: bytes, first: int, end: int, edits: Iterable[tuple[int, int, bytes]]) -> bytes:
    """The bytes from first to end with edits (first, end, new bytes)."""
    found, place = [], first
    for start, stop, new in sorted(edits):
        assert start >= place, text[start:stop]
        found += [text[place:start], new]
        place = stop
    return b"".join([*found, text[place:end]])


def parameters(node: ast.stmt | None) -> list[str]:
    """The names of a function's parameters, or of a class's fields, by position.

    A class that extends one of a library has its own fields by name alone.
    """
    if isinstance(node, Function):
        return [x.arg for x in (*node.args.posonlyargs, *node.args.args)]
    if not isinstance(node, ast.ClassDef):
        return []
    if init := initialiser(node):
        return parameters(init)[1:]
    return [root(x.target) or "" for x in node.body if isinstance(x, ast.AnnAssign)]


def fields(node: ast.stmt) -> list[str]:
    """The parameters of a class that are its attributes, as with `self.x = x`."""
    init = initialiser(node) if isinstance(node, ast.ClassDef) else None
    if init is None:
        return parameters(node)
    given = {ast.unparse(one) for one in init.body}
    return [name for name in parameters(init) if f"self.{name} = {name}" in given]


def initialiser(node: ast.ClassDef) -> ast.FunctionDef | None:
    ones = [x for x in node.body if isinstance(x, ast.FunctionDef) and x.name == "__init__"]
    return ones[0] if ones else None


def extends(node: ast.stmt | None) -> bool:
    """Whether a class has fields of a base class before its own."""
    bases = node.bases if isinstance(node, ast.ClassDef) else []
    return not {ast.unparse(base) for base in bases} <= {"nn.Module", "NamedTuple", "Protocol"}


def defaults(node: ast.stmt) -> dict[str, Any]:
    """{name: value} of the parameters, or fields, whose default is a plain value."""
    given: list[tuple[str, ast.expr | None]] = []
    if isinstance(node, ast.ClassDef) and (init := initialiser(node)):
        return defaults(init)
    if isinstance(node, Function):
        given = [*zip(parameters(node)[::-1], node.args.defaults[::-1])]
        given += [(x.arg, value) for x, value in zip(node.args.kwonlyargs, node.args.kw_defaults)]
        nodes = [*ast.walk(node)]
        bound = [n.id for n in nodes if isinstance(n, ast.Name) and type(n.ctx) is ast.Store]
        bound += [n.arg for n in nodes if isinstance(n, ast.arg)]
        given = [(name, x) for name, x in given if bound.count(name) == 1]
    elif isinstance(node, ast.ClassDef):
        given = [(root(x.target) or "", x.value) for x in node.body if isinstance(x, ast.AnnAssign)]
    found = {}
    for name, x in given:
        if isinstance(x, ast.Constant) or (isinstance(x, ast.Tuple) and not x.elts):
            found[name] = ast.literal_eval(x)
    return found


def returned(function: ast.FunctionDef) -> ast.expr:
    """What a function of one statement returns."""
    node = function.body[-1]
    assert isinstance(node, ast.Return) and node.value is not None, function.name
    return node.value


# --- a copy -------------------------------------------------------------------------------------

MORE = " more"  # ends the key of what adds to a definition
ROOTS = ("make_train", "make_policy", "Config")
MAIN, OWN, ADAPTERS = (Key(ALONE, name) for name in ("main", "own", "adapters"))
# In place of definitions that import a library in their own way.
OUTSIDE = {
    Key("envs.gymnax", "spaces"): Outside("gymnax.environments", "spaces", None),
    Key("envs.gymnax", "Environment"): Outside(
        "gymnax.environments.environment", "Environment", None
    ),
}
SHAPES, SHAPED = Key("envs.shaping", "shapes"), {"jaxmarl"}  # and adapters that shape rewards
REPORTS = (Key("algorithms.parts.training", "reports"), Key(ALONE, "reporting"))
KINDS = Key("envs.metrics", "kinds")
CORE = ("algorithms.parts.", "envs.batch", "envs.evaluation")  # whose definitions only a copy calls
HEADING = "# --- of the kit: what the algorithm above uses, as one meets it "
NAMED = (
    "# A name begins with parts_ or envs_ (Parts, Envs) where this file has another use of it.",
)


def of_kit(key: Key) -> Definition:
    """The definition of a key.

    Raises:
      UserError: there is none.
    """
    definition = find(Key(key.module, key.name.removesuffix(MORE)))
    if definition is None:
        raise UserError(f"{key.module} has no {key.name}")
    return definition


def absent_of(file: Module) -> frozenset[str]:
    """Attributes, and entries of `info`, that no environment of an algorithm has by its INFO."""
    nodes = file.definitions["INFO"].nodes if "INFO" in file.definitions else ()
    info = ast.literal_eval(nodes[0].value) if nodes and isinstance(nodes[0], ast.Assign) else {}
    one = {"num_agents", "world_state", "alive"} if info.get("agents") == "one" else set()
    return frozenset(one if info.get("masks", True) else one | {"action_mask"})


class Piece(NamedTuple):
    """A definition's text, and what it says about others."""

    text: str
    refs: list[Key | Outside]
    early: set[Key]  # what an import of the copy evaluates

    @property
    def keys(self) -> list[Key]:
        return [ref for ref in self.refs if isinstance(ref, Key)]


class Copy:
    """The pieces of a copy of one file.

    Args:
      file: the algorithm's.
      envs: environments of the kit that come along, {name: its Key}.
      adapters: of other libraries, {library: its module}.
    """

    def __init__(self, file: Path, envs: dict[str, Key], adapters: dict[str, str]):
        self.own = Module(f"copy of {file.stem}", file)
        MODULES[self.own.name] = self.own
        self.envs, self.adapters = envs, adapters
        values: dict[Key, Any] = {} if adapters else {ADAPTERS: None}
        inlined, others = {**alone().inlined}, {**alone().others}
        if not envs and not adapters:
            values |= {OWN: {}, **dict.fromkeys(REPORTS, False), KINDS: {}}
            others |= alone().plain
        if not SHAPED & {*adapters}:
            values[SHAPES] = False
        self.facts = Facts(inlined, values, absent_of(self.own), {}, {}, others)
        self.names: dict[Key, str] = {}
        self.pieces: dict[Key, Piece] = {}
        self.attributes: set[str] = set()
        self.bound: set[str] = set()  # local names of the file
        self.bound_below: set[str] = set()  # and of what comes along
        body = self.own.tree.body
        test = lambda node: ast.unparse(node.test) if isinstance(node, ast.If) else ""
        main = [node for node in body if test(node) == "__name__ == '__main__'"]
        if not main:
            raise UserError(f"{file} has no `if __name__ == '__main__':`")
        self.main = main[0]
        imports = (ast.Import, ast.ImportFrom)
        self.body = [n for n in body[1:] if n is not self.main and not isinstance(n, imports)]
        self._gather()
        self.order = self._ordered()
        self._name()
        self.file = self._text_of_file()
        self.pieces = {key: self._piece(key) for key in self.order}

    def _gather(self) -> None:
        """All pieces under their own names: first until no further method is asked for, and then
        until no further parameter always has its default."""
        before: Any
        for kind in ("methods", "parameters"):
            before = None
            while before != (before := (len(self.attributes), len(self.facts.fixed))):
                self._follow()
                if kind == "parameters":
                    self.facts.fixed.update(self._never_given())
                    self.facts.fields.update(self._of_one_class())
        before, self.attributes = None, set()  # now of what is left
        while before != (before := len(self.attributes)):
            self._follow()

    def _of_one_class(self) -> dict[str, Any]:
        """Fixed fields whose name is that of no field or method of another class."""
        named: list[str] = [*self.own.definitions]
        for key in self.pieces:
            if key not in (OWN, ADAPTERS) and isinstance(
                node := of_kit(key).nodes[0], ast.ClassDef
            ):
                named += {
                    *parameters(node),
                    *(n.name for n in node.body if isinstance(n, Function)),
                }
        for node in (n for n in self.own.tree.body if isinstance(n, ast.ClassDef)):
            named += parameters(node)
        fixed = self.facts.fixed.items()
        return {
            name: x
            for (key, name), x in fixed
            if name in named and named.count(name) == 1 and self._is_field(key, name)
        }

    def _is_field(self, key: Key, name: str) -> bool:
        definition = find(key)
        node = definition.nodes[0] if definition else None
        if not isinstance(node, ast.ClassDef) or initialiser(node):
            return False
        of_others = set(map(ast.unparse, node.bases)) - {"NamedTuple"}
        return name in fields(node) and not of_others and not hasattr(np.ndarray, name)

    def _follow(self) -> None:
        self.pieces = {}
        self.calls: list[Use] = []
        self.values: set[Key | str] = set()
        self.bound, self.bound_below = set(), set()
        self.file = self._text_of_file()
        todo = [*self.file.keys, MAIN]
        while todo:
            key = todo.pop()
            if key not in self.pieces:
                self.pieces[key] = self._piece(key)
                todo += self.pieces[key].keys

    def _never_given(self) -> dict[tuple[Key, str], Any]:
        """The parameters and fields of definitions, and their defaults, that no call gives."""
        found = {}
        for key in self.pieces:
            if not key.module.startswith(CORE) or key.name.endswith(MORE):
                continue
            node = of_kit(key).nodes[0]
            for name, value in ({} if key in self.values else defaults(node)).items():
                if not self._is_given(key, parameters(node), name, value):
                    found[key, name] = value
            methods = node.body if isinstance(node, ast.ClassDef) else []
            for method in (n for n in methods if isinstance(n, Function)):
                if method.name.startswith("__") or method.name in self.values:
                    continue
                names = parameters(method)[1:]
                for name, value in defaults(method).items():
                    if not self._is_given(method.name, names, name, value):
                        found[Key(key.module, f"{key.name}.{method.name}"), name] = value
        return found

    def _is_given(self, of: Key | str, names: list[str], name: str, default: Any) -> bool:
        same = lambda x: x is not UNKNOWN and type(x) is type(default) and x == default
        for use in self.calls:
            if use.of in ("replace", "_replace") and isinstance(of, Key) and name in use.keywords:
                return True
            if use.of != of:
                continue
            no_place = name not in names or (isinstance(of, Key) and extends(of_kit(of).nodes[0]))
            at = [] if no_place else use.positions[names.index(name) :]
            last = len(at) == 1 and not use.keywords and same(at[0]) and isinstance(of, Key)
            if use.is_open or (at and not last):
                return True
            if name in use.keywords and not (same(use.keywords[name]) and isinstance(of, Key)):
                return True
        return False

    # --- pieces ---

    def _text(self, module: Module, wanted: Callable[[str], bool]) -> Text:
        return Text(module, self.name_of, wanted, self.facts)

    def _text_of_file(self) -> Piece:
        """The algorithm's own definitions, without functions that nobody reaches."""
        text = self._text(self.own, lambda method: True)
        reached = self._reached()
        dead = [n for n in self.body if isinstance(n, Function) and n.name not in reached]
        living = [node for node in self.body if node not in dead]
        for found in map(scopes, living):
            text.globals |= found.globals
            self.bound |= found.bound
        edits = [edit for node in living for edit in text.edits(node)]
        for node in dead:
            start, stop = self.own.whole_lines(node)
            blank = len(self.own.text[stop:]) - len(self.own.text[stop:].lstrip(b"\n"))
            edits.append((start, stop + blank, b""))
        first, end = self.own.whole_lines(self.body[0])[0], self.own.whole_lines(self.main)[0]
        written = edited(self.own.text, first, end, edits).decode().strip("\n")
        self.attributes |= text.attributes
        self.calls += text.calls
        self.values |= text.values
        refs = [r for r in text.refs if not (isinstance(r, Key) and r.module == self.own.name)]
        return Piece(written, refs, text.early)

    def _reached(self) -> set[str]:
        """The names of the definitions that a copy's own functions lead to."""
        definitions, todo = self.own.definitions, [*ROOTS]
        found: set[str] = set()
        while todo:
            if (name := todo.pop()) in definitions and name not in found:
                found.add(name)
                text = self._text(self.own, lambda method: True)
                text.of(definitions[name].nodes)
                keys = [ref for ref in text.refs if isinstance(ref, Key)]
                todo += [key.name for key in keys if key.module == self.own.name]
        return found

    def _piece(self, key: Key) -> Piece:
        if key in (OWN, ADAPTERS):
            return self._table(key)
        is_more = key.name.endswith(MORE)
        definition = of_kit(key)
        wanted = lambda name: name in self.attributes or name in HOOKS or name.startswith("__")
        text = self._text(definition.module, wanted)
        node, *more = definition.nodes
        written = text.of(more if is_more else [node])
        new = self.name_of(key)
        written = re.sub(rf"^(def|class) {key.name}\b", rf"\1 {new}", written, count=1, flags=re.M)
        written = re.sub(r"\n{3,}(?= )", "\n\n", written)  # around statements that are gone
        if more and not is_more:
            text.refs.append(Key(key.module, key.name + MORE))
        self.attributes |= text.attributes
        self.bound_below |= text.bound
        self.calls += text.calls
        self.values |= text.values
        return Piece(written, [r for r in text.refs if r != key], text.early - {key})

    def _table(self, key: Key) -> Piece:
        """The environments or the adapters of this copy."""
        if key == OWN:
            own: list[Key | Outside] = [*self.envs.values()]
            items = [f'"{name}": {self.name_of(key)}' for name, key in self.envs.items()]
            text = f"def {self.name_of(key)}():\n    return {{{', '.join(items)}}}"
            return Piece(text, own, set())
        here = lambda key: self.facts.others.get(key) or key
        names = ("names", "construct")
        found = {x: [here(Key(m, n)) for n in names] for x, m in self.adapters.items()}
        refs: list[Key | Outside] = [key for keys in found.values() for key in keys]
        items = [f'"{x}": ({", ".join(map(self.name_of, keys))})' for x, keys in found.items()]
        text = f"def {self.name_of(key)}():\n    return {{{', '.join(items)}}}"
        return Piece(text, refs, set())

    # --- names ---

    def name_of(self, key: Key) -> str:
        return self.names.get(key, key.name)

    def _name(self) -> None:
        """Names that no other global and no local has."""
        refs = [ref for piece in (self.file, *self.pieces.values()) for ref in piece.refs]
        taken = {*self.own.definitions, *BUILTINS, *(r.local for r in refs if type(r) is Outside)}
        taken |= self.bound | self.bound_below
        for key in self.order:
            name = key.name if key.name not in taken else self._qualified(key)
            if name in taken:
                raise UserError(f"{self.own.path}: {key.module}.{key.name} and another {name}")
            self.names[key] = name
            taken.add(name)
        if shadowed := {*self.own.definitions} & self.bound_below:
            raise UserError(f"{self.own.path}: the kit has other uses of {', '.join(shadowed)}")

    def _qualified(self, key: Key) -> str:
        """envs.batch as envs_batch."""
        package = key.module.removeprefix("algorithms.").partition(".")[0]
        name = key.name.lstrip("_")
        if name.isupper():
            return f"{package.upper()}_{name}"
        return f"{package.title()}{name}" if name[0].isupper() else f"{package}_{name}"

    # --- order ---

    def _ordered(self) -> list[Key]:
        """What the import of the file needs, and then all in the order in which one meets it."""
        found: list[Key] = []
        for key in self.file.keys:
            if key in self.file.early:
                self._before(key, found)
        self.above = len(found)
        for key in (*self.file.keys, MAIN):
            self._meet(key, found)
        return found

    def _meet(self, key: Key, found: list[Key]) -> None:
        if key in found:
            return
        piece = self.pieces[key]
        for ref in piece.keys:
            if ref in piece.early:
                self._before(ref, found)
        if key not in found:
            found.append(key)
        for ref in sorted(piece.keys, key=lambda ref: ref.name.endswith(MORE)):
            self._meet(ref, found)

    def _before(self, key: Key, found: list[Key], open_: tuple[Key, ...] = ()) -> None:
        """A definition that an import uses, after all that it uses itself."""
        if key in found or key in open_:
            return
        keys = self.pieces[key].keys
        for ref in sorted(keys, key=lambda ref: ref.name.endswith(MORE)):
            if ref.name.endswith(MORE) and key not in found:
                found.append(key)
            self._before(ref, found, (*open_, key))
        if key not in found:
            found.append(key)

    # --- the whole ---

    def text(self, kit: str, licence: str) -> str:
        above, below = self.order[: self.above], self.order[self.above :]
        return "\n".join(
            [
                *self._head(kit),
                "from __future__ import annotations\n",
                self.imports() + "\n\n",
                self._joined(above) + "\n\n" * bool(above),
                self._mentions(self.file.text, own=True) + "\n\n",
                HEADING.ljust(100, "-"),
                *(NAMED if any(new != key.name for key, new in self.names.items()) else ()),
                "\n",
                self._mentions(self._joined(below)) + "\n\n",
                'if __name__ == "__main__":',
                "    main(make_train, Config, __doc__)\n",
                *(f"# {line}".rstrip() for line in licence.splitlines()),
                "",
            ]
        )

    def _mentions(self, text: str, own: bool = False) -> str:
        """The text, whose docstrings and comments have the names of this copy."""
        known: dict[str, set[str]] = {}
        for key, new in self.names.items():
            known.setdefault(key.name, set()).add(new)
        only = {name: new.pop() for name, new in known.items() if len(new) == 1}
        dotted = re.compile(r"\b(?:parts|envs|products|loops|sums)\.(\w+)\b(?!\.py)")
        text = dotted.sub(lambda found: only.get(found[1], found[0]), text)
        if own:
            return text
        return re.sub(r"`(\w+)`", lambda found: f"`{only.get(found[1], found[1])}`", text)

    def _head(self, kit: str) -> list[str]:
        name = self.own.path.name
        needs = sorted({"jax", "flax", "optax", *self._libraries()} - {"numpy", "gymnax"})
        about = self.own.lines[: self.own.tree.body[0].end_lineno]
        commands = re.compile(rf"^( *)(python \S*\b{name}.*\n *)+", re.MULTILINE)
        return [
            f"# {name} of {kit}, with all that it uses of that kit. Licence: at the end.",
            f"# It needs {', '.join(needs)}; for environments by name also gymnax and six:",
            f"#   pip install {' '.join(needs)} gymnax six",
            commands.sub(rf"\1python {name}\n", b"".join(about).decode()),
        ]

    def _libraries(self) -> set[str]:
        refs = [r for piece in (self.file, *self.pieces.values()) for r in piece.refs]
        found = {r.module.partition(".")[0] for r in refs if isinstance(r, Outside)}
        return found - sys.stdlib_module_names

    def _joined(self, keys: list[Key]) -> str:
        """Pieces with two lines between them; values of one line follow one another."""
        written, short = "", False
        for key in keys:
            text = self.pieces[key].text
            now = "\n" not in text
            gap = "" if not written else "\n" if now and short else "\n\n\n"
            written, short = written + gap + text, now
        return written

    def imports(self) -> str:
        refs = [r for piece in (self.file, *self.pieces.values()) for r in piece.refs]
        found = {r for r in refs if isinstance(r, Outside)}
        groups: list[list[str]] = [[], []]
        for module in {r.module for r in found}:
            ones = [r for r in found if r.module == module]
            group = groups[module.partition(".")[0] not in sys.stdlib_module_names]
            group += [str(r) for r in ones if r.name is None]
            names = sorted((str(r) for r in ones if r.name), key=lambda n: (n.lower() == n, n))
            group += [f"from {module} import {', '.join(names)}"] if names else []
        order = lambda line: (line.startswith("from"), line.lower())
        return "\n\n".join("\n".join(sorted(group, key=order)) for group in groups if group)
