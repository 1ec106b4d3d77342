"""What compiles longest of the contract, for all files; PPO's own tests have a part of it."""

import jax
import pytest

from tests.algorithms import (
    test_c51,
    test_crossq,
    test_ddpg,
    test_dqn,
    test_ippo,
    test_ippo_rnn,
    test_iqn,
    test_ppo,
    test_ppo_rnn,
    test_ppo_vtrace,
    test_pqn,
    test_pqn_rnn,
    test_qrdqn,
    test_reinforce,
    test_sac,
    test_sac_discrete,
    test_td3,
    test_vdn,
)
from tests.algorithms.contract import (
    floats,
    slices,
    swept,
    test_a_point_without_learning_is_the_one_before_training,
    test_slices_are_exact_under_vmap_too,
    test_slices_are_exactly_the_whole,
    trained,
)
from tests.algorithms.value_based import test_the_buffer_is_never_copied as never_copied

__all__ = [
    "floats",
    "slices",
    "swept",
    "test_a_point_without_learning_is_the_one_before_training",
    "test_slices_are_exact_under_vmap_too",
    "test_slices_are_exactly_the_whole",
    "trained",
]
pytestmark = pytest.mark.slow
REPLAY = [test_dqn, test_c51, test_qrdqn, test_iqn]
ACTOR_CRITICS = [test_sac, test_td3, test_ddpg, test_crossq, test_sac_discrete]
FILES = [
    *REPLAY,
    *ACTOR_CRITICS,
    test_ippo,
    test_ippo_rnn,
    test_ppo,
    test_ppo_rnn,
    test_ppo_vtrace,
    test_pqn,
    test_pqn_rnn,
    test_reinforce,
    test_vdn,
]


def name(file):
    return file.__name__.split("test_")[1]


@pytest.fixture(scope="module", params=FILES, ids=name)
def file(request):
    yield request.param
    jax.clear_caches()


@pytest.mark.parametrize("file", REPLAY, indirect=True, ids=name)
def test_the_buffer_is_never_copied(file, vmapped_keys):
    never_copied(file.MODULE, file.TINY, vmapped_keys)
