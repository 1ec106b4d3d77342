"""Versions, device and commit of a run; nothing identifies a machine or a person."""

import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Any

import algorithms
from algorithms.launch.engine import devices

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


EARLIER = {"agents_per_device": "trials_per_device"}  # names in versions.json of older runs


def versions(module: Any, layout: devices.Layout) -> dict[str, Any]:
    """Python, libraries, device and git commit."""
    device = layout.devices[0]
    return {
        **_software(),
        "device": f"{device.platform} {device.device_kind}",
        "num_devices": len(layout.devices),
        "trials_per_device": layout.used,
        **_git(Path(module.__file__).resolve().parent),
    }


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


def _git(folder: Path) -> dict[str, Any]:
    """The commit of the checkout that the algorithm is in, and whether files were changed."""
    try:
        commit = _run_git(folder, "rev-parse", "HEAD")
        changes = _run_git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):  # no git, or no checkout
        return {"git_commit": None, "git_dirty": None}
    return {"git_commit": commit, "git_dirty": bool(changes)}


def _run_git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    return done.stdout.strip()
