"""A compilation cache that these tests share, apart from the user's; no pictures for some."""

import os

import jax
import pytest

from algorithms.launch.show import plots


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory):
    path = tmp_path_factory.mktemp("compiled")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(path)  # for processes that tests start
    jax.config.update("jax_compilation_cache_dir", str(path))
    yield path
    del os.environ["JAX_COMPILATION_CACHE_DIR"]
    jax.config.update("jax_compilation_cache_dir", None)


@pytest.fixture(scope="module")
def quick_pictures():
    """Drawing would take most of the time, and has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "curve", lambda *_: None)
        patch.setattr(plots, "sweep", lambda *_: None)
        yield
