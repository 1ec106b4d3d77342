"""Tests that share compiled programs run in one process, or everything would compile twice."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.seconds import group_of

ROOT = Path(__file__).parents[1]
CONTRACT = "tests/algorithms/test_contract.py"


@pytest.mark.parametrize(
    "nodeid, group",
    [
        (f"{CONTRACT}::test_pinned_values[ppo_rnn]", f"ppo_rnn in {CONTRACT}"),
        ("tests/algorithms/test_ppo.py::test_gae[seed-3]", "ppo in tests/algorithms/test_ppo.py"),
        ("tests/algorithms/test_teams.py::test_team", "teams"),
        ("tests/envs/test_envs.py::test_env[ppo]", "tests/envs/test_envs.py"),
        ("tests/algorithms/parts/test_info.py::test_info[ppo]", "tests/algorithms/parts/"),
    ],
)
def test_a_group_is_of_an_algorithm_and_a_file_or_parts_or_a_file(nodeid, group):
    assert group_of(nodeid) == group


@pytest.mark.slow  # three processes
def test_a_group_runs_in_one_process():
    words = [CONTRACT, "-k", "[reinforce] and (learning_rate or leaves_the_config)", "-vv", "-n2"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, capture_output=True, text=True
    )
    workers = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("[gw")]
    assert len(workers) == 2 and len(set(workers)) == 1, done.stdout
