"""What compiles longest of the contract, for files whose loop is the same as DQN's or PPO's."""

import jax
import pytest

from tests.algorithms import test_c51, test_ippo, test_iqn, test_ppo_vtrace, test_qrdqn
from tests.algorithms.contract import floats, swept, test_slices_are_exact_under_vmap_too

__all__ = ["floats", "swept", "test_slices_are_exact_under_vmap_too"]
pytestmark = pytest.mark.slow
FILES = [test_c51, test_qrdqn, test_iqn, test_ippo, test_ppo_vtrace]


@pytest.fixture(scope="module", params=FILES, ids=lambda file: file.__name__.split("test_")[1])
def file(request):
    yield request.param
    jax.clear_caches()
