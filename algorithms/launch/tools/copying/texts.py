"""The text of a definition in a copy: other names, and nothing that a copy has decided."""

import ast
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from algorithms.launch.tools.copying.sources import (
    ALONE,
    BUILTINS,
    OUTSIDE,
    Function,
    Key,
    Module,
    Outside,
    find,
    first_of,
    module_of,
    path_of,
    root,
    scopes,
)

# --- the forms of alone.py ----------------------------------------------------------------------


class Alone(NamedTuple):
    """What alone.py puts in the place of the kit's definitions."""

    others: dict[Key, Key]  # another definition
    arguments: set[Key]  # calls of it are their first argument
    values: dict[Key, Any]  # what calls of it return
    plain: dict[Key, Key]  # what is enough without environments of the kit


@functools.cache
def alone() -> Alone:
    module = module_of(ALONE)
    others: dict[Any, Key] = {}
    for definition in module.definitions.values():
        for decorator in getattr(definition.nodes[0], "decorator_list", ()):
            if isinstance(decorator, ast.Call) and root(decorator.func) == "in_place_of":
                others[meaning_of(module, decorator.args[0])] = Key(ALONE, definition.name)
    of_module = functools.partial(meaning_of, module)
    table = lambda name: module.definitions[name].nodes[0].value  # type: ignore[attr-defined]
    keys = lambda name: {x for n in ast.walk(table(name)) if isinstance(x := of_module(n), Key)}
    values = dict.fromkeys(keys("NOTHING")) | dict.fromkeys(keys("TRUE"), True)
    plain = zip(map(of_module, table("PLAIN").keys), map(of_module, table("PLAIN").values))
    return Alone(others, keys("ARGUMENT"), values, dict(plain))


def meaning_of(module: Module, node: ast.AST) -> Any:
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
    is_open: bool  # with *args; **kwargs are the keyword ""


class Facts(NamedTuple):
    """What is decided in a copy."""

    arguments: set[Key]  # functions whose calls are their first argument
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
        if shorter or (isinstance(node.value, ast.Call) and self._is_argument(node.value.func)):
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
            if self._is_argument(decorator) or self._of_alone(decorator):
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
        name = root(decorator.func) if isinstance(decorator, ast.Call) else ""
        return self.module.name == ALONE and name == "in_place_of"

    def _decided(self, node: Any) -> dict[str, Any]:
        """The variables of a function that are assigned once, something that is known."""
        known = {name: self.known(value) for name, value in assigned_once(node).items()}
        return {name: x for name, x in known.items() if x is not UNKNOWN}

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
            is_open = any(isinstance(x, ast.Starred) for x in node.args)
            self.calls.append(Use(callee, positions, keywords, is_open))

    def _position(self, callee: Key, number: int) -> str:
        """The name of a parameter or field of this position."""
        definition = find(callee)
        names = parameters(definition.nodes[0]) if definition else []
        return names[number] if number < len(names) else ""

    def callee(self, node: ast.Call) -> Key | str | None:
        """What a call calls: a definition, a method by its name, or something else."""
        meaning = self._meaning(node.func)
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
        if first_of(node) not in self.globals:
            return None
        meaning = self._meaning(node)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            return self.name_of(meaning).encode() if isinstance(meaning, Key) else None
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

    def _meaning(self, node: ast.expr) -> Any:
        """As of `meaning_of`; None of what is not global."""
        return meaning_of(self.module, node) if first_of(node) in self.globals else None

    def _is_argument(self, function: ast.expr) -> bool:
        """Whether a call of it is its first argument."""
        return self._meaning(function) in self.facts.arguments

    def _written_out(self, node: ast.Call) -> bytes | None:
        if (known := self.known(node)) is not UNKNOWN:
            return repr(known).encode()
        return self.expression(node.args[0]) if self._is_argument(node.func) else None

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


@functools.cache  # a copy asks again and again, and nothing takes it longer
def assigned_once(node: Any) -> dict[str, ast.expr]:
    """The variables of a function that have one assignment, and its value if it is no constant."""
    assigned: dict[str, list[ast.expr]] = {}
    for one in ast.walk(node):
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
            assigned.setdefault(one.targets[0].id, []).append(one.value)
    given = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    once = {name: values[0] for name, values in assigned.items() if len(values) == 1}
    return {n: x for n, x in once.items() if n not in given and not isinstance(x, ast.Constant)}


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
