"""What compiles longest of the value-based files' contract, where the loop is the same as DQN's."""

import jax
import pytest

from algorithms import c51, iqn, qrdqn
from tests.algorithms.value_based import (
    floats,
    swept,
    test_slices_are_exact_under_vmap_too,
    tiny,
)

__all__ = ["floats", "swept", "test_slices_are_exact_under_vmap_too", "tiny"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[c51, qrdqn, iqn], ids=lambda m: m.__name__[11:])
def module(request):
    yield request.param
    jax.clear_caches()
