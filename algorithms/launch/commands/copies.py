"""Copies of an algorithm's file that train, and can be imported, without the kit.

    DIR/ppo.py                   the file
    DIR/rl_support/envs/         environments, all of them
    DIR/rl_support/parts/        what it needs of algorithms.parts, whole modules
    DIR/rl_support/flags.py      the flags of its Config
    DIR/rl_support/LICENSE

Copies in one directory share the support package; each adds the parts that it lacks. If its files
are not those of this kit (somebody changed them, or another version wrote them), a copy gets its
own package, ppo_support. No name in it clashes with a project's own `envs` and `algorithms`. Two
things differ from the kit's files: imports, which are found in the syntax tree, and the end of the
algorithm's file, which prints the learning curve and takes only the flags of its Config.
"""

import ast
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from algorithms.launch.errors import UserError
from algorithms.launch.storage import files
from algorithms.launch.storage.versions import kit, licence

KIT = Path(__file__).parents[3]
ENVS, PARTS = KIT / "envs", KIT / "algorithms" / "parts"
FLAGS, COPIED_FLAGS = (Path(__file__).with_name(f"{name}.py") for name in ("flags", "copied_flags"))
SHARED = "rl_support"
INIT = "parts/__init__.py"  # of the support package; it grows with the parts
# Imports, as ast writes them: those that can be moved, and all that reach into the kit.
PACKAGES = ("import envs", "from algorithms import parts")
MODULES = re.compile(r"from (?:algorithms\.(?=parts)|(?=envs))((?:parts|envs)\b[.\w]*) import [^*]")
OF_THE_KIT = re.compile(r"from (\.|(envs|algorithms)\b)|import (.+, )?(envs|algorithms)\b")
NAMES_MODULE = re.compile(r"(envs|algorithms)\.[\w.]*")  # a string for importlib
MAIN = """\
if __name__ == "__main__":
    if __package__:
        from .{support} import flags
    else:
        from {support} import flags

    # Prints timestep, mean training return and mean evaluation return at every point of the
    # learning curve.
    train, state = flags.make(make_train, Config, __doc__), None
    for points in (0, *[1] * train.plan.points):  # 0 for the point before training
        state, metrics = train(jax.random.key(0), state, points)
        names = [n for n in ("timestep", "episode_return", "eval_return") if n in metrics]
        for timestep, *returns in zip(*(metrics[name] for name in names)):
            print(int(timestep), *(f"{{x.mean():.2f}}" for x in returns), flush=True)"""


def write(file: Path, directory: Path) -> list[Path]:
    """Writes a copy of an algorithm's file, and what it needs, into a directory.

    Returns what was written: the copied file first, then the support package or what was added to
    one that was there.

    Raises:
      UserError: a file or package of that name is there, or something cannot be copied; nothing
        has been written then.
    """
    target = files.local(directory) / file.name
    if is_taken(target):
        raise UserError(f"{target} exists: a copy overwrites nothing")
    contents, wanted = _chosen(file, directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # Whole, and aside: a crash leaves no half of a copy. The file itself comes last.
        with tempfile.TemporaryDirectory(prefix=f".{file.stem}-", dir=directory) as aside:
            for name, content in contents.items():
                path = Path(aside, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            for name in (*wanted, file.name):
                os.replace(Path(aside, name), directory / name)
    except OSError as error:
        raise UserError(f"{directory} cannot be written: {error.strerror}") from error
    return [target, *(directory / name for name in wanted)]


def is_taken(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _chosen(file: Path, directory: Path) -> tuple[dict[str, bytes], list[str]]:
    """What to write for a copy, and what of it to put in place beside the file: a new support
    package, or what is added to one that is there."""
    contents = copy(file, SHARED)
    if not is_taken(directory / SHARED):
        return contents, [SHARED]
    missing = _missing(directory / SHARED, contents)
    if missing is not None:
        return {file.name: contents[file.name], **missing}, list(missing)
    own = f"{file.stem}_support"
    if is_taken(directory / own):
        raise UserError(f"{directory / own} exists: a copy overwrites nothing")
    return copy(file, own), [own]


def _missing(support: Path, contents: dict[str, bytes]) -> dict[str, bytes] | None:
    """What a support package that is there lacks for a copy; None if it is not of this kit.

    parts/__init__.py comes last: until then nobody asks for what was added.
    """
    there = {name: support.parent / name for name in contents if name.startswith(support.name)}
    init = there.pop(f"{support.name}/{INIT}")
    lacking = {name: contents[name] for name, path in there.items() if not path.exists()}
    try:
        if any(path.read_bytes() != contents[n] for n, path in there.items() if n not in lacking):
            return None
        before = _modules_named(init.read_text())
        if init.read_bytes() != _parts_init(before):
            return None
    except (OSError, ValueError, SyntaxError):  # not a file, or not one of ours
        return None
    after = _parts_init(before | _modules_named(contents[f"{support.name}/{INIT}"].decode()))
    grown = {f"{support.name}/{INIT}": after} if after != init.read_bytes() else {}
    return lacking | grown


def copy(file: Path, support: str = SHARED) -> dict[str, bytes]:
    """All that a copy consists of, {path: content}.

    Raises:
      UserError: something that cannot be copied.
    """
    head = f"# Copy of {file.name} of {kit()}, MIT licence: {support}/LICENSE\n"
    about = f'"""What copies of files of {kit()} need: environments, and parts of algorithms."""\n'
    source = Source(file)
    modules = _modules(source.parts_used().values())
    files = {"__init__.py": about.encode(), "LICENSE": licence(KIT)}
    for path in modules:
        place = path.relative_to(ENVS.parent if path.is_relative_to(ENVS) else PARTS.parent)
        files[place.as_posix()] = Source(path).as_module("." * len(place.parts))
    files["flags.py"] = _flags()
    files[INIT] = _parts_init({f"parts.{path.stem}" for path in modules if path.parent == PARTS})
    inside = {f"{support}/{name}": content for name, content in files.items()}
    return {file.name: head.encode() + source.as_program(support), **inside}


def _parts_init(modules: set[str]) -> bytes:
    """What is left of parts/__init__.py: the names of these modules (parts.replay, ...)."""
    homes = {name: home for name, home in _homes().items() if home in modules}
    lines = ['"""Parts of algorithms."""', ""]
    for home in sorted(set(homes.values())):
        lines.append(_from("..", home, [name for name in homes if homes[name] == home]))
    lines += ["", "__all__ = [", *(f'    "{name}",' for name in sorted(homes)), "]", ""]
    return "\n".join(lines).encode()


def _modules_named(init: str) -> set[str]:
    """The modules that a parts/__init__.py of a copy imports from."""
    nodes = ast.parse(init).body
    return {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def _homes() -> dict[str, str]:
    """The names of algorithms.parts, each with its module."""
    known = Source(PARTS / "__init__.py").imports.values()
    return {name: module for module, names in known for name in names}


def _flags() -> bytes:
    """copied_flags.py with the functions that it has from flags.py, and those that these call."""
    body = ast.parse(FLAGS.read_text()).body
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    lines = FLAGS.read_text().splitlines()
    text = COPIED_FLAGS.read_text()
    (given,) = re.findall(
        r"^from algorithms\.launch\.commands\.flags import (?:.*\(\n(?:    .*\n)*\)|.*)\n",
        text,
        re.MULTILINE,
    )
    wanted = [alias.name for alias in ast.parse(given).body[0].names]
    for name in wanted:  # which grows meanwhile
        called = [n.id for n in ast.walk(functions[name]) if isinstance(n, ast.Name)]
        wanted += [name for name in called if name in functions and name not in wanted]
    texts = ["\n".join(lines[functions[n].lineno - 1 : functions[n].end_lineno]) for n in wanted]
    text = text.replace(given, "").replace("from algorithms.parts", "from .parts")
    return "\n\n\n".join([text.rstrip("\n"), *texts, ""]).rstrip("\n").encode() + b"\n"


def _modules(homes: Iterable[str]) -> list[Path]:
    """The files of all environments, since most are asked for by name, and of the modules of parts
    (parts.replay) that are used or reached from there."""
    file = lambda module: Path(PARTS.parent, *module.split(".")).with_suffix(".py")
    found: list[Path] = []
    todo = [*sorted(ENVS.rglob("*.py")), *map(file, homes)]
    while todo:
        if (path := todo.pop()) not in found:
            found.append(path)
            for module, names in Source(path).imports.values():
                ones = [f"parts.{name}" for name in names] if module == "parts" else [module]
                todo += [file(one) for one in ones if one.startswith("parts.")]
    return found


def _from(base: str, module: str, names: Iterable[str]) -> str:
    """An import of a module of the support package, which is `base`."""
    origin = base + ("." if module and not base.endswith(".") else "") + module
    return f"from {origin} import {', '.join(names)}"


class Source:
    """A file of the kit, and its imports of the kit; refuses those that a copy cannot have."""

    def __init__(self, path: Path):
        self.path, self.text = path, path.read_bytes()
        body = ast.parse(self.text).body
        test = lambda node: ast.unparse(node.test) if isinstance(node, ast.If) else ""
        self.main = next((n for n in body if test(n) == "__name__ == '__main__'"), None)
        self.body = [node for node in body if node is not self.main]
        self.nodes = [node for statement in self.body for node in ast.walk(statement)]
        # Module in the support package (parts.replay; "" for that package itself), and names.
        self.imports: dict[ast.stmt, tuple[str, list[str]]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._take(node)
            elif isinstance(node, ast.Constant) and NAMES_MODULE.fullmatch(str(node.value)):
                raise self._refusal(node, "a module is named relative to its own package")

    def _take(self, node: ast.Import | ast.ImportFrom) -> None:
        text, names = ast.unparse(node), [ast.unparse(alias) for alias in node.names]
        if found := MODULES.match(text):
            self.imports[node] = found[1], names
        elif text in PACKAGES:
            self.imports[node] = "", names
        elif OF_THE_KIT.match(text):
            raise self._refusal(node, "`import envs` and `from envs.x import y` can be copied")

    def _refusal(self, node: ast.stmt | ast.expr, why: str) -> UserError:
        return UserError(f"{self.path}, line {node.lineno}: `{ast.unparse(node)}`: {why}")

    def parts_used(self) -> dict[str, str]:
        """The names of algorithms.parts that it uses, in order, each with its module; all of them
        if it uses `parts` in another way than `parts.name`."""
        homes = _homes()
        of_parts = lambda node: isinstance(node, ast.Name) and node.id == "parts"
        used = [n.attr for n in self.nodes if isinstance(n, ast.Attribute) and of_parts(n.value)]
        if len(used) < sum(map(of_parts, self.nodes)):
            used += homes
        used += [n for module, names in self.imports.values() if module == "parts" for n in names]
        for name in set(used) - homes.keys():
            raise UserError(f"{self.path}: algorithms.parts has no {name}")
        return {name: homes[name] for name in sorted(set(used))}

    def as_module(self, base: str) -> bytes:
        """Its text in the support package, which is `base` from there: two dots or more."""
        return self._edited({node: _from(base, *found) for node, found in self.imports.items()})

    def as_program(self, support: str) -> bytes:
        """Its text beside the support package, to be run or imported."""
        if self.main is None:
            raise UserError(f"{self.path} has no `if __name__ == '__main__':`")
        names: dict[str, list[str]] = {}
        for node, (module, imported) in self.imports.items():
            if node not in self.body or module.startswith("parts."):
                raise self._refusal(node, "not here: `from algorithms import parts` at the top")
            names.setdefault(module, []).extend(imported)
        block = []
        for line, base in (("if __package__:", f".{support}"), ("else:  # a script", support)):
            block += [line, *(f"    {_from(base, *item)}" for item in names.items())]
        edits = dict(zip(self.imports, ["\n".join(block), *[""] * len(self.imports)]))
        if not any(isinstance(node, ast.Name) and node.id == "sys" for node in self.nodes):
            edits |= {node: "" for node in self.body if ast.unparse(node) == "import sys"}
        text = self._edited({**edits, self.main: MAIN.format(support=support)}).decode()
        commands = re.compile(rf"^( *)(python \S*\b{self.path.name}.*\n *)+", re.MULTILINE)
        return commands.sub(rf"\1python {self.path.name}\n", text).encode()

    def _edited(self, edits: dict[ast.stmt, str]) -> bytes:
        """Its text with other statements in the place of some, or with none ("")."""
        lines = self.text.splitlines(keepends=True)
        for node in sorted(edits, key=lambda node: -node.lineno):
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            before, after = lines[first][: node.col_offset], lines[last - 1][node.end_col_offset :]
            if before.strip() or after.strip()[:1] not in (b"", b"#"):
                raise self._refusal(node, "it needs a line of its own")
            lines[first:last] = [before + edits[node].encode() + after] if edits[node] else []
        return b"".join(lines)
