"""Reads the text of a compiled XLA program: what it launches, loop by loop.

A launch is an operation that a device starts on its own: a fusion, a copy, a sort, a custom call.
Operations inside a fusion are part of its launch. Tuples, parameters, constants and bitcasts start
nothing.

A GPU's text names the trips of loops, a TPU's has them in the conditions. Loops whose trips are not
known get theirs from the caller. A GPU evaluates the condition of such a loop before every trip,
and the host waits for the answer, so launches of these conditions count. Known loops run without
their conditions. Of a conditional's branches the largest one counts.
"""

import collections
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"}
FREE |= {"add-dependency", "opt-barrier", "partition-id", "replica-id", "domain", "async-update"}
FREE_CALLS = {"AllocateBuffer", "ConcatBitcast", "Sharding", "AssumeGatherIndicesInBound"}
INSIDE = {"while", "conditional", "call"}  # they start what is inside
HOST = {"infeed", "outfeed", "send", "recv"}
HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
NAME = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
OPCODE = re.compile(r" ?([\w\-]+)\(")
ROW = re.compile(r'(\d+) (?:"(.*)"|\{(.*)\})$')


class Operation(NamedTuple):
    name: str
    opcode: str
    type: str
    line: str

    @property
    def operands(self) -> list[str]:
        """Names of the operands, of operations without computations among them."""
        inside = self.line.partition(f" {self.opcode}(")[2].partition(")")[0]
        return re.findall(r"%([\w.\-]+)", inside)

    def names(self, *keys: str) -> list[str]:
        """The computations that the attributes name."""
        found = re.findall(rf"\b(?:{'|'.join(keys)})=(?:\{{([^}}]*)\}}|(%?[\w.\-]+))", self.line)
        return [name.strip().lstrip("%") for many in found for name in "".join(many).split(",")]

    def value(self, pattern: str) -> str | None:
        found = re.search(pattern, self.line)
        return found and found[1]

    @property
    def target(self) -> str:
        """What a custom call calls."""
        return self.value(r'custom_call_target="([^"]*)"') or ""

    @property
    def launches(self) -> int:
        if self.opcode in FREE | INSIDE or self.opcode.endswith("-done"):
            return 0
        return int(self.target not in FREE_CALLS)


@dataclasses.dataclass
class Node:
    """A loop, a conditional or the whole program; `own` launches are outside its inner loops."""

    kind: str  # program, loop, conditional or branch
    name: str  # the function that has the loop
    place: str = ""  # its file and line, and XLA's name of the operation
    trips: int | None = 1  # None: unknown to the compiler
    own: int = 0
    sorts: int = 0
    inside: list["Node"] = dataclasses.field(default_factory=list)

    def walk(self) -> Iterator["Node"]:
        yield self
        for node in self.inside:
            yield from node.walk()

    def once(self, usual: Callable[["Node"], int]) -> int:
        """Launches of one trip.

        Args:
          usual: trips of a loop unknown to the compiler.
        """
        counts = [node.launches(usual) for node in self.inside]
        return self.own + (max(counts, default=0) if self.kind == "conditional" else sum(counts))

    def launches(self, usual: Callable[["Node"], int]) -> int:
        """Launches of all trips."""
        return (usual(self) if self.trips is None else self.trips) * self.once(usual)


@dataclasses.dataclass
class Program:
    """The loops of a program, and operations that should be in none."""

    root: Node
    host: list[str]  # transfers to or from the host
    calls: dict[str, int]  # custom calls, by name
    float64: bool


# --- reading ----------------------------------------------------------------------------------


def computations(text: str) -> tuple[dict[str, list[Operation]], str]:
    """The operations of each computation, and the name of the entry."""
    found, entry, inside = {}, "", None
    for line in text.splitlines():
        if header := HEADER.match(line):
            inside = found[header[2]] = []
            entry = header[2] if header[1] else entry
        elif line == "}":
            inside = None
        elif inside is not None and (name := NAME.match(line)):
            kind, rest = split_type(line[name.end() :])
            if opcode := OPCODE.match(rest):
                inside.append(Operation(name[2], opcode[1], kind, line))
    return found, entry


def known_trips(loop: Operation, around: list[Operation], found: dict) -> int | None:
    """The trips of a loop, if it counts from 0 in steps of 1 to a constant.

    Args:
      around: the computation with the loop.
      found: all computations.
    """
    if said := loop.value(r'"known_trip_count":\{"n":"(\d+)"'):
        return int(said)
    condition, body = (found[loop.names(key)[0]] for key in ("condition", "body"))
    asked = condition[-1]
    if asked.opcode != "compare" or "direction=LT" not in asked.line:
        return None
    counter, limit = (origin(name, condition) for name in asked.operands)
    if counter.opcode != "get-tuple-element":
        return None
    index = int(counter.value(r"index=(\d+)") or 0)
    first, after = element(loop, around, index), element(body[-1], body, index)
    steps = [number(origin(name, body)) for name in after.operands] if after else []
    counts = after is not None and after.opcode == "add" and 1 in steps
    return number(limit) if counts and first and number(first) == 0 else None


COPIES = ("copy", "bitcast", "copy-start", "copy-done")


def origin(name: str, computation: list[Operation]) -> Operation:
    """The operation of this name, or the one that it copies."""
    named = {op.name: op for op in computation}
    op = named[name]
    while op.opcode in COPIES and op.operands and op.operands[0] in named:
        op = named[op.operands[0]]
    return op


def element(of: Operation, computation: list[Operation], index: int) -> Operation | None:
    """The origin of an element of a tuple, or of a loop's argument."""
    made = of if of.opcode == "tuple" else origin(of.operands[0], computation)
    return origin(made.operands[index], computation) if made.opcode == "tuple" else None


def number(op: Operation) -> int | None:
    """The value of an integer constant."""
    value = op.value(r" constant\((-?\d+)\)")
    return int(value) if value else None


def split_type(text: str) -> tuple[str, str]:
    """The type at the beginning, which may be a tuple of types, and the rest."""
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter in "({") - (letter in ")}")
        if letter == " " and depth == 0:
            return text[:i], text[i:]
    return text, ""


def tables(text: str) -> dict[str, dict[int, str]]:
    """The tables of files, functions, places and stack frames above the computations."""
    found, rows = {}, None
    for line in text.splitlines():
        if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            rows = found[line] = {}
        elif row := ROW.match(line) if rows is not None else None:
            rows[int(row[1])] = row[2] or row[3]
        elif HEADER.match(line):
            break
    return found


class Frame(NamedTuple):
    function: str
    file: str
    line: int


class Places:
    """The Python frames of operations."""

    def __init__(self, text: str):
        self.tables = tables(text)

    def frames(self, operation: Operation) -> list[Frame]:
        """From the innermost frame outwards; none if the text has no such tables."""
        frame, found = int(operation.value(r"stack_frame_id=(\d+)") or 0), []
        while frame in self.tables.get("StackFrames", {}):
            where = fields(self.tables["StackFrames"][frame])
            place = fields(self.tables["FileLocations"][where["file_location_id"]])
            function = self.tables["FunctionNames"][place["function_name_id"]]
            file = self.tables["FileNames"][place["file_name_id"]]
            found.append(Frame(function, file, place["line"]))
            # The number of the parent is one too large; the outermost frame is its own parent.
            frame = where.get("parent_frame_id", 1) - 1
        return found


def fields(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", text)}


LIBRARIES = re.compile(r"/(jax|flax|optax|distrax|gymnax|gymnasium|chex)/")
GENERAL = re.compile(r"(algorithms/parts|envs)/loops\.py$")  # loops of whoever calls them


def label(frames: list[Frame]) -> tuple[str, str]:
    """The innermost function that says what a loop is for, and its file and line."""
    ours = [f for f in frames if not LIBRARIES.search(f.file) and not GENERAL.search(f.file)]
    if not (chosen := (ours or frames)[:1]):
        return "loop", ""
    parts = chosen[0].function.split(".<locals>.")
    name = next((part for part in reversed(parts) if not part.startswith("<")), "loop")
    file = "/".join(chosen[0].file.split("/")[-2:])
    return name, f"{file}:{chosen[0].line}"


def read(text: str) -> Program:
    """What the text of a compiled program says."""
    found, entry = computations(text)
    places = Places(text)

    def node(kind: str, operation: Operation, bodies: list[str], trips: int | None) -> Node:
        name, place = label(places.frames(operation))
        op_name = operation.value(r'op_name="([^"]*)"') or ""
        made = Node(kind, name, f"{place} {op_name}".strip(), trips)
        for body in bodies:
            fill(made, body)
        return made

    def fill(into: Node, computation: str) -> None:
        for op in found[computation]:
            into.own += op.launches
            within = [part for name in op.names("calls") for part in found[name]]
            into.sorts += any(is_sort(part) for part in (op, *within))
            if op.opcode == "call":
                for body in op.names("to_apply", "calls"):
                    fill(into, body)
            elif op.opcode == "while":
                trips = known_trips(op, found[computation], found)
                bodies = op.names("body") + op.names("condition") * (trips is None)
                into.inside.append(node("loop", op, bodies, trips))
            elif op.opcode == "conditional":
                keys = ("branch_computations", "true_computation", "false_computation")
                chosen = node("conditional", op, [], 1)
                chosen.inside = [node("branch", op, [body], 1) for body in op.names(*keys)]
                into.inside.append(chosen)

    root = Node("program", "program")
    fill(root, entry)
    operations = [op for body in found.values() for op in body]
    calls = collections.Counter(op.target for op in operations if op.target)
    return Program(
        root=root,
        host=sorted(name for op in operations for name in host_transfers(op)),
        calls={name: n for name, n in sorted(calls.items()) if name not in FREE_CALLS},
        float64=any(re.search(r"\b(f64|c128)\[", op.type) for op in operations),
    )


def is_sort(operation: Operation) -> bool:
    return operation.opcode == "sort" or "sort" in operation.target.lower()


def host_transfers(operation: Operation) -> list[str]:
    if operation.opcode in HOST:
        return [operation.opcode]
    return [operation.target] if "callback" in operation.target.lower() else []


# --- showing ----------------------------------------------------------------------------------


def tree(node: Node, usual: Callable[[Node], int], depth: int = 0) -> list[str]:
    """A line for each loop: trips x launches of a trip, and where it is in the source."""
    trips = "?" if node.trips is None else node.trips
    known = f"{trips} x" if node.kind == "loop" else node.kind
    sizes = f"{known} {node.once(usual)} ({node.own} of its own)"
    lines = [f"{'  ' * depth}{node.name}: {sizes}  {node.place}".rstrip()]
    return lines + [line for inner in node.inside for line in tree(inner, usual, depth + 1)]


def formula(node: Node, usual: Callable[[Node], int]) -> str:
    """One trip as a sum: 'collect 128 x 15 + epoch 4 x (gradient_step 4 x 49 + 32) + 7'.

    Equal terms, of steps that are written out, are one: '8 x (learn 5 x 42)'.
    """
    terms = collections.Counter(term(one, usual) for one in node.inside if one.launches(usual))
    parts = [one if count == 1 else f"{count} x ({one})" for one, count in terms.items()]
    return " + ".join(parts + [str(node.own)] * bool(node.own or not parts))


def term(node: Node, usual: Callable[[Node], int]) -> str:
    if node.kind == "conditional":
        largest = max(node.inside, key=lambda branch: branch.launches(usual))
        return f"{node.name} if ({formula(largest, usual)})"
    trips = str(node.trips or f"{usual(node)}?")
    once = formula(node, usual)
    return f"{node.name} {trips} x {f'({once})' if ' ' in once else once}"
