"""The probe tasks of files whose siblings play them in every run of the tests."""

import pytest

from tests.algorithms import (
    test_c51,
    test_crossq,
    test_ddpg,
    test_iqn,
    test_qrdqn,
    test_sac,
    test_sac_discrete,
    test_td3,
)
from tests.algorithms.probes import *  # noqa: F403

pytestmark = pytest.mark.slow
FILES = (test_c51, test_qrdqn, test_iqn)
FILES += (test_sac, test_td3, test_ddpg, test_crossq, test_sac_discrete)


@pytest.fixture(scope="module", params=FILES, ids=lambda file: file.__name__.split("test_")[1])
def probed(request):
    return request.param.played(request.param)
