"""An algorithm's file and all that it uses of the kit, as the text of one file.

The writer follows names: from the file's own text to the definitions in `parts` and `envs` that it
uses, and from these to others. What only the kit needs has a shorter form in alone.py, and what
that form decides at once (`if reporting():`) is left out. So are parameters that no call gives.
Formatting and comments stay.
"""

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.engine.errors import UserError
from algorithms.launch.tools.copying.sources import (
    ALONE,
    BUILTINS,
    HOOKS,
    MODULES,
    Definition,
    Function,
    Key,
    Module,
    Outside,
    find,
    scopes,
)
from algorithms.launch.tools.copying.texts import (
    UNKNOWN,
    Facts,
    Text,
    Use,
    alone,
    defaults,
    edited,
    extends,
    fields,
    initialiser,
    parameters,
)

# --- a copy -------------------------------------------------------------------------------------

MORE = " more"  # ends the key of what adds to a definition
ROOTS = ("make_train", "make_policy", "Config")
MAIN, OWN, ADAPTERS = (Key(ALONE, name) for name in ("main", "own", "adapters"))
SHAPES, SHAPED = Key("envs.shaping", "shapes"), {"jaxmarl"}  # and adapters that shape rewards
REPORTS = (Key("algorithms.parts.training", "reports"), Key(ALONE, "reporting"))
KINDS = Key("envs.metrics", "kinds")
CORE = ("algorithms.parts.", "envs.batch", "envs.evaluation")  # whose definitions only a copy calls
HEADING = "# --- of the kit: what the algorithm above uses, as one meets it "
NAMED = (
    "# A name begins with parts_ or envs_ (Parts, Envs) where this file has another use of it.",
)

OPTIONAL = ("network", "normalize_advantage")  # settings that parts ask a Config for


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
    """Attributes that an algorithm's Config lacks, or environments by its INFO; also of `info`."""
    nodes = file.definitions["INFO"].nodes if "INFO" in file.definitions else ()
    info = ast.literal_eval(nodes[0].value) if nodes and isinstance(nodes[0], ast.Assign) else {}
    one = {"num_agents", "world_state", "alive"} if info.get("agents") == "one" else set()
    config = file.definitions["Config"].nodes[0] if "Config" in file.definitions else None
    settings = {*OPTIONAL} - {*parameters(config)}
    return frozenset(one | settings | (set() if info.get("masks", True) else {"action_mask"}))


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
        values, others = {**alone().values}, {**alone().others}
        values |= {} if adapters else {ADAPTERS: None}
        if not envs and not adapters:
            values |= {OWN: {}, **dict.fromkeys(REPORTS, False), KINDS: {}}
            others |= alone().plain
        if not SHAPED & {*adapters}:
            values[SHAPES] = False
        self.facts = Facts(alone().arguments, values, absent_of(self.own), {}, {}, others)
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
            if "" in use.keywords or (use.is_open and not no_place) or (at and not last):
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
            refs: list[Key | Outside] = [*self.envs.values()]
            items = [f'"{name}": {self.name_of(key)}' for name, key in self.envs.items()]
        else:
            here = lambda key: self.facts.others.get(key) or key
            names = ("names", "construct")
            found = {x: [here(Key(m, n)) for n in names] for x, m in self.adapters.items()}
            refs = [key for keys in found.values() for key in keys]
            items = [f'"{x}": ({", ".join(map(self.name_of, keys))})' for x, keys in found.items()]
        text = f"def {self.name_of(key)}():\n    return {{{', '.join(items)}}}"
        return Piece(text, refs, set())

    # --- names ---

    def name_of(self, key: Key) -> str:
        return self.names.get(key, key.name)

    def _name(self) -> None:
        """Names that no other global and no local has."""
        taken = {*self.own.definitions, *BUILTINS, *(ref.local for ref in self._outside())}
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

    def text(self, kit: str, licence: str, requirements: dict[str, str]) -> str:
        above, below = self.order[: self.above], self.order[self.above :]
        return "\n".join(
            [
                *self._head(kit, requirements),
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

    def _head(self, kit: str, requirements: dict[str, str]) -> list[str]:
        name = self.own.path.name
        needs = sorted({"jax", "flax", "optax", *self._libraries()} - {"numpy"})
        asked = [requirements.get(one, one) for one in dict.fromkeys([*needs, "gymnax", "six"])]
        quoted = lambda text: f'"{text}"' if set(text) & set("<>=") else text
        by_name = "" if "gymnax" in needs else "; for environments by name also gymnax and six"
        about = b"".join(self.own.lines[: self.own.tree.body[0].end_lineno]).decode()
        pages = ["# The pages in docs/ that it names are that kit's."] * ("docs/" in about)
        commands = re.compile(rf"^( *)(python \S*\b{name}.*\n *)+", re.MULTILINE)
        return [
            f"# {name} of {kit}, with all that it uses of that kit. Licence: at the end.",
            f"# It needs {', '.join(needs)}{by_name}:",
            f"#   pip install {' '.join(map(quoted, asked))}",
            *pages,
            commands.sub(rf"\1python {name}\n", about),
        ]

    def _outside(self) -> set[Outside]:
        refs = [ref for piece in (self.file, *self.pieces.values()) for ref in piece.refs]
        return {ref for ref in refs if isinstance(ref, Outside)}

    def _libraries(self) -> set[str]:
        found = {ref.module.partition(".")[0] for ref in self._outside()}
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
        found = self._outside()
        groups: list[list[str]] = [[], []]
        for module in {r.module for r in found}:
            ones = [r for r in found if r.module == module]
            group = groups[module.partition(".")[0] not in sys.stdlib_module_names]
            group += [str(r) for r in ones if r.name is None]
            names = sorted((str(r) for r in ones if r.name), key=lambda n: (n.lower() == n, n))
            group += [f"from {module} import {', '.join(names)}"] if names else []
        order = lambda line: (line.startswith("from"), line.lower())
        return "\n\n".join("\n".join(sorted(group, key=order)) for group in groups if group)
