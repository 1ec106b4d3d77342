"""Versions, device and commit of a run; nothing identifies a machine or a person."""

import hashlib
import importlib.metadata
import itertools
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend import core

import algorithms
from algorithms.launch.engine import devices
from envs.behaviour import Traced, functions, part_of_user
from envs.usual_jax import with_usual_jax

NAME = "single-file-rl"  # of the kit, as pip knows it
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "gymnax", "numpy")


def kit() -> str:
    """The kit's name and version."""
    return f"{NAME} {algorithms.__version__}"


def report() -> str:
    """What a report of a bug begins with: the versions, in two lines, without starting jax."""
    found = _software() | _git(Path(algorithms.__file__).parent)
    return f"{kit()}\n{', '.join(f'{name} {version}' for name, version in found.items())}"


def licence(folder: Path) -> bytes:
    """The text of the kit's licence.

    Args:
      folder: that `algorithms` and `envs` are in: a clone, or where pip has installed them.
    """
    for installed in importlib.metadata.distributions(name=NAME, path=[str(folder)]):
        if text := installed.read_text("licenses/LICENSE"):
            return text.encode()
    return (folder / "LICENSE").read_bytes()


def requirements(folder: Path) -> dict[str, str]:
    """{library: what pip takes for it} of the kit and of its extras.

    Args:
      folder: as of `licence`.
    """
    file, listed = folder / "pyproject.toml", importlib.metadata.distributions(name=NAME)
    if file.exists():
        project = tomllib.loads(file.read_text())["project"]
        extras = project["optional-dependencies"].values()
        found = [*project["dependencies"], *(one for extra in extras for one in extra)]
    else:
        found = [one for installed in listed for one in installed.requires or ()]
    texts = [one.partition(";")[0].strip() for one in found]
    return {re.split(r"[^\w.-]", text)[0]: text for text in reversed(texts)}


EARLIER = {"agents_per_device": "trials_per_device"}  # names in versions.json of older runs


def versions(
    module: Any, layout: devices.Layout, env: Any = None, given: Any = None
) -> dict[str, Any]:
    """Python, libraries, device, git commit, and digests of what a user writes: the algorithm's
    file, and the file of an environment of his own.

    Args:
      env: of `envs.make`.
      given: what the Config has as `env`. Of an object the digest is of what it does, under its
        name: its file may be any script, and its arguments are in no file.
    """
    written = _written(module, env)
    return {
        **_software(),
        "device": _device(layout.devices[0]),
        "num_devices": len(layout.devices),
        "trials_per_device": layout.used,
        **_git(Path(module.__file__).resolve().parent, tuple(written)),
        "files": _digests(module, env, given),
    }


def edited(session: dict[str, Any], module: Any, env: Any, given: Any) -> dict[str, str]:
    """The files of which a session of a run had other digests: {name: its digest now}.

    A file that either of the two does not have tells nothing.

    Args:
      session: an entry of versions.json; that of an early version has no digests.
      env, given: as of `versions`.
    """
    if not (before := session.get("files")):
        return {}
    now = _digests(module, env, given)
    differ = {name: x for name, x in now.items() if before.get(name, x) != x}
    if not differ:
        return {}
    here = _software() | _git(Path(module.__file__).resolve().parent)
    here["device"] = _device(jax.devices()[0])
    tells = lambda name: among(session, name) in ({among(here, name)} - {None})
    return {name: x for name, x in differ.items() if tells(name)}


def edits(runs: Iterable[list[dict[str, Any]]]) -> list[dict[str, str]]:
    """The files of which runs have several digests: {name: those of the run}, for each run.

    Args:
      runs: the sessions of each.
    """
    told = [
        [(name, among(one, name), x) for one in run for name, x in one.get("files", {}).items()]
        for run in runs
    ]
    texts: dict[tuple[str, str], set[str]] = {}
    for name, within, x in itertools.chain(*told):
        if within is not None:
            texts.setdefault((name, within), set()).add(x)
    names = {name: None for (name, _), several in texts.items() if len(several) > 1}
    of_run = lambda run, name: "+".join(dict.fromkeys(x[:8] for n, _, x in run if n == name))
    return [{name: of_run(run, name) or "unknown" for name in names} for run in told]


def among(session: dict[str, Any], name: str) -> str | None:
    """What two sessions must share so that different digests tell of an edit.

    A user's own file needs nothing. A file of the kit differs between its versions, too, so that
    only two texts at one commit do; None where no commit is known. What an object does is written
    in the words of a version of jax, with numbers that a device has computed.
    """
    if not name.endswith(".py"):
        return " ".join(str(session.get(what)) for what in ("jax", "platform", "device"))
    is_of_kit = (Path(algorithms.__file__).parent / name).is_file()
    return session.get("git_commit") if is_of_kit else ""


def _digests(module: Any, env: Any, given: Any) -> dict[str, str]:
    world = None if isinstance(given, str) else part_of_user(given)
    does = _behaviour(world) if world is not None else None
    written = _written(module, None if does else env)
    found = {file.name: _digest(file.read_bytes()) for file in written}
    return found | ({getattr(world, "name", type(world).__name__): does} if does else {})


def _digest(*texts: bytes) -> str:
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


@with_usual_jax
def _behaviour(env: Any) -> str | None:
    """A digest of what a user's environment does: of the programs of its functions, the numbers in
    them and its default parameters. None where they cannot be had, or are others each time."""

    def once() -> str:
        leaves, structure = jax.tree.flatten(env.default_params)
        reset, step = functions(env, env.default_params)
        cut = Traced("is_truncated", env.is_truncated, (step.given[1], step.given[3]))
        programs = [traced.trace() for traced in (reset, step, cut)]
        texts = [re.sub(r" at 0x\w+", "", str(x)) for x in (structure, *programs)]
        numbers = [*leaves, *(x for program in programs for x in _constants(program))]
        return _digest(*(text.encode() for text in texts), *map(_bytes, numbers))

    try:
        with jax.debug_key_reuse(False), jax.debug_nans(False):
            found = {once(), once()}
    except Exception:  # a user's code, which others tell of
        return None
    return found.pop() if len(found) == 1 else None


def _constants(program: Any) -> Iterator[Any]:
    """The arrays in a program, and in those that it calls."""
    yield from getattr(program, "consts", ())
    kinds = (core.ClosedJaxpr, core.Jaxpr)
    for equation in program.eqns:
        for x in jax.tree.leaves(equation.params, is_leaf=lambda x: isinstance(x, kinds)):
            if isinstance(x, kinds):
                yield from _constants(x)


def _bytes(x: Any) -> bytes:
    x = np.asarray(jax.random.key_data(x) if isinstance(x, jax.Array) and devices.is_key(x) else x)
    return f"{x.dtype}{x.shape}".encode() + x.tobytes()


def _device(device: Any) -> str:
    return f"{device.platform} {device.device_kind}"


def _written(module: Any, env: Any) -> list[Path]:
    """The files that a user writes."""
    files = Path(module.__file__).resolve(), *_file_of(part_of_user(env))
    return [file for file in files if file.is_file()]


def _file_of(env: Any) -> list[Path]:
    """The file of an environment's class; none of one that was typed in."""
    module = sys.modules.get(type(env).__module__)
    file = Path(getattr(module, "__file__", None) or "").resolve()
    return [file] if env is not None and file.is_file() else []


def _software() -> dict[str, str | None]:
    """The versions of Python and the libraries, and the kind of machine."""
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in LIBRARIES},
        "platform": f"{platform.system()} {platform.machine()}",
    }


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(folder: Path, files: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The commit of the checkout that a folder is in, and whether anything differs from it: a file
    that it has, or one of these that it does not have."""
    try:
        commit = _run_git(folder, "rev-parse", "HEAD")
        changes = _run_git(folder, "status", "--porcelain", "--untracked-files=no")
        root = Path(_run_git(folder, "rev-parse", "--show-toplevel")).resolve()
        own = [x for x in files if x.is_relative_to(root) and "site-packages" not in x.parts]
        dirty = changes or not all(_run_git(root, "ls-files", "--", str(file)) for file in own)
    except (OSError, subprocess.SubprocessError):  # no git, or no checkout
        return {"git_commit": None, "git_dirty": None}
    return {"git_commit": commit, "git_dirty": bool(dirty)}


def _run_git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    return done.stdout.strip()
