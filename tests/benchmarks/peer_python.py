"""Virtual environments of other kits, and compilers for absent devices, each made once in the
user's cache directory."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from algorithms.launch.engine.devices import CACHE

REJAX, GYMNAX = "rejax==0.1.3", "gymnax==0.0.9"  # the gymnax version that it needs
JAXMARL, FLASHBAX = "jaxmarl==0.2.0", "flashbax==0.1.3"
NVCC = "nvidia-cuda-nvcc==13.5.37"  # has ptxas, without which CUDA's plugin compiles nothing
NINJAX, OLD_JAX = "ninjax==3.6.3", "0.4.33"  # of DreamerV3, whose requirements.txt names this jax
GYMNASIUM, TORCH = "gymnasium==1.4.0", "torch==2.13.0"
OF_DREAMER = ("elements==3.22.4", "portal==3.8.3", "granular==0.24.2", "scope==0.8.1", "numpy<2")
OF_DREAMER += ("optax==0.2.5", "chex==0.1.90", "einops", "jaxtyping", "tqdm", "colored_traceback")
OF_DREAMER += (GYMNASIUM,)
OF_FLASHSAC = (GYMNASIUM, "omegaconf", "pygame", "tqdm", "pandas")
# Packages of its scripts, in this kit's versions; distrax accepts any nightly of tfp.
SHARED = ("flax", "optax", "distrax", "tfp-nightly", "gymnax")


def rejax() -> str:
    """The Python of an environment with rejax and this jax version; it is made if missing.

    It also has what PureJaxRL's scripts import.
    """
    return _python("rejax, flashbax", REJAX, GYMNAX, FLASHBAX)


def jaxmarl() -> str:
    """The Python of an environment with JaxMARL and the imports of its training scripts."""
    shared = (f"{name}=={importlib.metadata.version(name)}" for name in SHARED)
    return _python("jaxmarl, flashbax, distrax", JAXMARL, FLASHBAX, *shared)


def dreamer() -> str:
    """The Python of an environment with what the authors' DreamerV3 imports."""
    return _python("elements, gymnasium, ninjax, portal", NINJAX, *OF_DREAMER, jax=OLD_JAX)


def flashsac() -> str:
    """The Python of an environment with what the authors' FlashSAC imports."""
    return _python("torch, gymnasium, omegaconf", TORCH, *OF_FLASHSAC)


def plugins() -> Path:
    """A folder with the CUDA plugin and libtpu of this jax version; it is made if missing.

    On PYTHONPATH it serves this kit's Python and those of other kits, which share their versions.
    """
    folder = plugins_folder()
    if not folder.exists():
        print("installing plugins for CUDA and TPU in a folder of their own", file=sys.stderr)
        jax = importlib.metadata.version("jax")
        tpu = next(name for name in importlib.metadata.requires("jax") if name.startswith("libtpu"))
        packages = [f"{name}=={jax}" for name in ("jax-cuda13-plugin", "jax-cuda13-pjrt")]
        packages += [NVCC, tpu.partition(";")[0].strip()]
        part = folder.with_name(f"{folder.name}.part{os.getpid()}")
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", part]
        subprocess.run([*install, *packages], check=True)
        part.rename(folder)
    return folder


def plugins_folder() -> Path:
    """The place of the plugins, whether they are there or not."""
    python = "".join(map(str, sys.version_info[:2]))
    return cache() / f"plugins-jax-{importlib.metadata.version('jax')}-python{python}"


def _python(modules: str, kit: str, *others: str, jax: str = "") -> str:
    jax = jax or importlib.metadata.version("jax")
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
