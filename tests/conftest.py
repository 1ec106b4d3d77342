"""Shared by all tests: no key may be used twice."""

import jax
import pytest

from tests.probe import Probe

jax.config.update("jax_debug_key_reuse", True)


@pytest.fixture
def vmapped_keys():
    """Turns the checker off where keys are vmapped: it takes the transposition of a batch of keys
    on its way into a scan for a use (jax 0.10), whatever the program does with them."""
    with jax.debug_key_reuse(False):
        yield


@pytest.fixture(scope="session")
def probe():
    return Probe()


@pytest.fixture(scope="session")
def continuous_probe():
    return Probe(continuous=True)
