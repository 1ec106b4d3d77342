"""A virtual environment of another kit, made once in the user's cache directory."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from algorithms.launch.devices import CACHE

REJAX, GYMNAX = "rejax==0.1.3", "gymnax==0.0.9"  # the gymnax that it is written for


def rejax() -> str:
    """The Python of an environment with rejax and this one's jax, made if it is not there."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jax = importlib.metadata.version("jax")
    folder = home / CACHE / f"{REJAX.replace('==', '-')}-jax-{jax}"
    python = folder / "bin" / "python"
    if not python.exists() or subprocess.run([python, "-c", "import rejax"]).returncode:
        print(f"installing {REJAX} in a virtual environment of its own", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        install = [python, "-m", "pip", "install", "--quiet", REJAX, GYMNAX, f"jax=={jax}"]
        subprocess.run(install, check=True)
    return str(python)
