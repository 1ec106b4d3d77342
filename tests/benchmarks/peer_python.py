"""Virtual environments of other kits, each made once in the user's cache directory."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from algorithms.launch.compute.devices import CACHE

REJAX, GYMNAX = "rejax==0.1.3", "gymnax==0.0.9"  # the gymnax version that it needs
JAXMARL = "jaxmarl==0.2.0"
# Packages of its scripts, in this kit's versions; distrax accepts any nightly of tfp.
SHARED = ("flax", "optax", "distrax", "tfp-nightly", "gymnax")


def rejax() -> str:
    """The Python of an environment with rejax and this jax version; it is made if missing."""
    return _python("rejax", REJAX, GYMNAX)


def jaxmarl() -> str:
    """The Python of an environment with JaxMARL and the imports of its training scripts."""
    shared = (f"{name}=={importlib.metadata.version(name)}" for name in SHARED)
    return _python("jaxmarl, flashbax, distrax", JAXMARL, "flashbax==0.1.3", *shared)


def _python(modules: str, kit: str, *others: str) -> str:
    jax = importlib.metadata.version("jax")
    folder = cache() / f"{kit.replace('==', '-')}-jax-{jax}"
    python = folder / "bin" / "python"
    if not python.exists() or subprocess.run([python, "-c", f"import {modules}"]).returncode:
        print(f"installing {kit} in a virtual environment of its own", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [python, "-m", "pip", "install", "--quiet", kit, *others, f"jax=={jax}"]
        subprocess.run(install, check=True)
    return str(python)


def checkout(repository: str, commit: str, *folders: str) -> Path:
    """A repository's files, cloned once; only these folders, if any are named."""
    folder = cache() / repository.rpartition("/")[2].lower()
    git = ["git", "-C", str(folder)]
    if not folder.exists():
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", repository, folder], check=True)
    what = [commit, "--", *folders] if folders else [commit]
    subprocess.run([*git, "checkout", "--quiet", *what], check=True)
    return folder


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / CACHE
