"""A compilation cache that these tests share, apart from the user's."""

import os

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory):
    path = tmp_path_factory.mktemp("compiled")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(path)  # for processes that tests start
    jax.config.update("jax_compilation_cache_dir", str(path))
    yield path
    del os.environ["JAX_COMPILATION_CACHE_DIR"]
    jax.config.update("jax_compilation_cache_dir", None)
