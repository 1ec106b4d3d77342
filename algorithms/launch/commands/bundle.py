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

    others: dict[Key, Definition]  # another definition
    inlined: dict[Key, ast.FunctionDef]  # written out where it is called


@functools.cache
def alone() -> Alone:
    module = module_of(ALONE)
    others: dict[Any, Definition] = {}
    inlined: dict[Any, Any] = {}
    for definition in module.definitions.values():
        node = definition.nodes[0]
        for decorator in getattr(node, "decorator_list", ()):
            if not isinstance(decorator, ast.Call):
                continue
            found = meaning_of(module, decorator.args[0]) if decorator.args else None
            if root(decorator.func) == "in_place_of":
                others[found] = definition
            elif root(decorator.func) == "inlined_for":
                inlined[found] = node
    return Alone(others, inlined)


def replaced(others: dict[Key, Definition], key: Key) -> Key:
    """The definition that alone.py has in the place of one."""
    other = others.get(key)
    return Key(other.module.name, other.name) if other else key


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


class Text:
    """The text of statements, with other names and without what is decided.

    Args:
      module: theirs.
      name_of: the name of a definition in the copy.
      wanted: whether a method of a class stays.
      inlined: functions that are written out where they are called.
    """

    def __init__(
        self,
        module: Module,
        name_of: Callable[[Key], str],
        wanted: Callable[[str], bool],
        inlined: dict[Key, ast.FunctionDef],
    ):
        self.module, self.name_of, self.wanted, self.inlined = module, name_of, wanted, inlined
        self.refs: list[Key | Outside] = []  # in order
        self.early: set[Key] = set()  # of them those that an import of the copy evaluates
        self.attributes: set[str] = set()
        self.bound: set[str] = set()
        self.globals: set[ast.Name] = set()
        self.constants: list[dict[str, Any]] = []  # of functions: variables that are decided
        self.depth = 0  # of functions

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
        yield from self.edits(node) if node else ()
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
        """x = x, or a variable that is decided."""
        if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            return False
        if self.constants and node.targets[0].id in self.constants[-1]:
            return True
        if isinstance(node.value, ast.Call) and self._inlined(node.value):
            return self._peek(node.value) == self._peek(node.targets[0])
        return False

    def _peek(self, node: ast.expr) -> bytes:
        """An expression's text, without a record of its names."""
        kept = [*self.refs], {*self.early}, {*self.attributes}
        text = self.expression(node)
        self.refs, self.early, self.attributes = kept
        return text

    def _function(self, node: Any) -> Iterator[tuple[int, int, bytes]]:
        for decorator in node.decorator_list:
            inlined = self._inlined_name(decorator)
            if inlined is not None or self._of_alone(decorator):
                yield self._line(decorator)
            else:
                yield from self.edits(decorator)
        yield from self.edits(node.args)
        yield from self._annotation(node.returns)
        self.constants.append(self._decided(node))
        self.depth += 1
        yield from self._block(node.body)
        self.depth -= 1
        self.constants.pop()

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
        calls = lambda x: isinstance(x, ast.Call) and self._inlined(x)
        return {
            name: value
            for name, values in assigned.items()
            if len(values) == 1
            and calls(values[0])
            and (value := self.known(values[0])) is not UNKNOWN
        }

    def _class(self, node: ast.ClassDef) -> Iterator[tuple[int, int, bytes]]:
        for decorator in node.decorator_list:
            if self._of_alone(decorator):
                yield self._line(decorator)
            else:
                yield from self.edits(decorator)
        for child in (*node.bases, *(k.value for k in node.keywords)):
            yield from self.edits(child)
        for one in node.body:
            if not self.depth and isinstance(one, Function) and not self.wanted(one.name):
                first, end = self.module.whole_lines(one)
                lines = self.module.text[:first].splitlines(keepends=True)
                blank = sum(
                    len(x) for x in itertools.takewhile(lambda x: not x.strip(), lines[::-1])
                )
                yield first - blank, end, b""
            else:
                yield from self.edits(one)

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
        if isinstance(node, ast.Name | ast.Attribute) and (text := self._name(node)) is not None:
            yield (*here, text)
            return
        if isinstance(node, ast.Attribute):
            self.attributes.add(node.attr)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            self.attributes |= {x for x in node.value.split() if x.isidentifier()}
        if isinstance(node, ast.JoinedStr):
            yield from self._formatted(node)
            return
        for child in ast.iter_child_nodes(node):
            yield from self.edits(child)

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
        return self.refer(meaning).encode()

    def refer(self, key: Key) -> str:
        if key in OUTSIDE:
            self.refs.append(OUTSIDE[key])
            return OUTSIDE[key].local
        key = replaced(alone().others, key)
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
        return self.inlined.get(meaning) if isinstance(meaning, Key) else None

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
        if isinstance(node, ast.Call) and (function := self._inlined(node)):
            value = returned(function)
            return value.value if isinstance(value, ast.Constant) else UNKNOWN
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
        if isinstance(node, ast.Compare) and isinstance(node.comparators[0], ast.Constant):
            left = self.known(node.left)
            if left is not UNKNOWN and node.comparators[0].value is None:
                same = left is None
                return same if isinstance(node.ops[0], ast.Is) else not same
        return UNKNOWN


def edited(text: bytes, first: int, end: int, edits: Iterable[tuple[int, int, bytes]]) -> bytes:
    """The bytes from first to end with edits (first, end, new bytes)."""
    found, place = [], first
    for start, stop, new in sorted(edits):
        assert start >= place, text[start:stop]
        found += [text[place:start], new]
        place = stop
    return b"".join([*found, text[place:end]])


def returned(function: ast.FunctionDef) -> ast.expr:
    """What a function of one statement returns."""
    node = function.body[-1]
    assert isinstance(node, ast.Return) and node.value is not None, function.name
    return node.value


# --- a copy -------------------------------------------------------------------------------------

MORE = " more"  # ends the key of what adds to a definition
ROOTS = ("make_train", "make_policy", "Config")
MAIN, OWN, ADAPTERS = (Key(ALONE, name) for name in ("main", "OWN", "adapters"))
# In place of definitions that import a library in their own way.
OUTSIDE = {
    Key("envs.gymnax", "spaces"): Outside("gymnax.environments", "spaces", None),
    Key("envs.gymnax", "Environment"): Outside(
        "gymnax.environments.environment", "Environment", None
    ),
}
SHAPING, SHAPED = "envs.shaping", {"jaxmarl"}  # the module, and adapters that shape rewards
HEADING = "# --- of the kit: {} "


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
        needed = {ADAPTERS} if adapters else set()
        needed |= {key for key in alone().inlined if key.module == SHAPING and SHAPED & {*adapters}}
        self.inlined = {key: x for key, x in alone().inlined.items() if key not in needed}
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
        """All pieces under their own names, until no further method is asked for."""
        before = None
        while before != (before := len(self.attributes)):
            self.pieces = {}
            self.file = self._text_of_file()
            todo = [*self.file.keys, MAIN]
            while todo:
                key = todo.pop()
                if key not in self.pieces:
                    self.pieces[key] = self._piece(key)
                    todo += self.pieces[key].keys

    # --- pieces ---

    def _text(self, module: Module, wanted: Callable[[str], bool]) -> Text:
        return Text(module, self.name_of, wanted, self.inlined)

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
        definition = find(Key(key.module, key.name.removesuffix(MORE)))
        if definition is None:
            raise UserError(f"{self.own.path}: {key.module} has no {key.name}")
        wanted = lambda name: name in self.attributes or name in HOOKS or name.startswith("__")
        text = self._text(definition.module, wanted)
        node, *more = definition.nodes
        written = text.of(more if is_more else [node])
        new = self.name_of(key)
        written = re.sub(rf"^(def|class) {key.name}\b", rf"\1 {new}", written, count=1, flags=re.M)
        if more and not is_more:
            text.refs.append(Key(key.module, key.name + MORE))
        self.attributes |= text.attributes
        self.bound_below |= text.bound
        return Piece(written, [r for r in text.refs if r != key], text.early - {key})

    def _table(self, key: Key) -> Piece:
        """The environments or the adapters of this copy."""
        if key == OWN:
            own: list[Key | Outside] = [*self.envs.values()]
            items = [f'"{name}": {self.name_of(key)}' for name, key in self.envs.items()]
            return Piece(
                f"OWN: dict[str, Any] = {{{', '.join(items)}}}", own, {*self.envs.values()}
            )
        here = lambda key: replaced(alone().others, key)
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
        heading = HEADING.format("what the file uses, in the order in which it is met")
        return "\n".join(
            [
                *self._head(kit),
                "from __future__ import annotations\n",
                self.imports() + "\n\n",
                self._joined(above) + "\n\n" * bool(above),
                self.file.text + "\n\n",
                heading.ljust(100, "-") + "\n\n",
                self._joined(below) + "\n\n",
                'if __name__ == "__main__":',
                "    main(make_train, Config, __doc__)\n",
                *(f"# {line}".rstrip() for line in licence.splitlines()),
                "",
            ]
        )

    def _head(self, kit: str) -> list[str]:
        name = self.own.path.name
        needs = sorted({"jax", "flax", "optax", *self._libraries()} - {"numpy", "gymnax"})
        about = self.own.lines[: self.own.tree.body[0].end_lineno]
        commands = re.compile(rf"^( *)(python \S*\b{name}.*\n *)+", re.MULTILINE)
        return [
            f"# A copy of {name} of {kit}, in one file. Its licence is at the end.",
            f"# It needs {', '.join(needs)}; for environments by name gymnax and six too:",
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
