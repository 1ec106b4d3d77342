"""Shared by all tests: no key may be used twice, and there is one device."""

import jax
import pytest

pytest.register_assert_rewrite("tests.algorithms.value_based")  # tests that others import
jax.config.update("jax_debug_key_reuse", True)
# Whatever runs on several devices does so in a process of its own.
jax.config.update("jax_num_cpu_devices", 1)


@pytest.fixture(scope="module", autouse=True)
def release():
    """Compiled programs of a file would otherwise stay to the end: gigabytes of them."""
    yield
    jax.clear_caches()


@pytest.fixture
def vmapped_keys():
    """Turns the checker off where keys are vmapped: it takes the transposition of a batch of keys
    on its way into a scan for a use (jax 0.10), whatever the program does with them."""
    jax.config.update("jax_debug_key_reuse", False)  # in all threads: the shell compiles in one
    yield
    jax.config.update("jax_debug_key_reuse", True)


@pytest.fixture(scope="session")
def probe():
    from tests.probe import Probe  # gymnax starts jax's backend

    return Probe()


@pytest.fixture(scope="session")
def continuous_probe():
    from tests.probe import Probe

    return Probe(continuous=True)
