"""How many bytes of memory this process may use."""

import os
import types

import pytest

from algorithms import parts
from algorithms.parts import capacity

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Control groups in a folder: groups(mine, limits) of /proc/self/cgroup, and {file: text}."""
    monkeypatch.setattr(capacity, "MOUNTED", tmp_path / "cgroup")
    monkeypatch.setattr(capacity, "MINE", tmp_path / "mine")

    def write(mine, limits):
        if mine is not None:
            (tmp_path / "mine").write_text(mine)
        for name, text in limits.items():
            file = tmp_path / "cgroup" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    return write


def test_memory_is_the_accelerator_s_or_the_machine_s():
    assert 2**28 < parts.device_capacity() <= PHYSICAL
    gpu = types.SimpleNamespace(memory_stats=lambda: {"bytes_limit": 77})
    assert parts.device_capacity(gpu) == 77


JOB = "0::/system.slice/job_7/step_0\n"
OLD = "5:devices:/\n4:cpu,memory:/slurm/uid_1/job_7\n0::/\n"
NESTED = [
    (None, {}, PHYSICAL),
    (None, {"memory.max": "max\n"}, PHYSICAL),
    (None, {"memory.max": "123456\n"}, 123456),
    (JOB, {"memory.max": "max\n", "system.slice/job_7/step_0/memory.max": "5000\n"}, 5000),
    (JOB, {"system.slice/job_7/memory.max": "4000\n"}, 4000),
    (
        JOB,
        {
            "system.slice/memory.max": "3000",
            "system.slice/job_7/memory.max": "9000",
            "system.slice/job_7/step_0/memory.max": "max",
        },
        3000,
    ),
    (JOB, {"system.slice/job_8/memory.max": "4000\n"}, PHYSICAL),
    (OLD, {"memory/slurm/uid_1/job_7/memory.limit_in_bytes": "6000\n"}, 6000),
    (OLD, {"memory/slurm/memory.limit_in_bytes": "7000\n"}, 7000),
    (OLD, {"memory/memory.limit_in_bytes": "8000\n"}, 8000),
    (OLD, {"slurm/memory.max": "7000\n"}, PHYSICAL),
]


@pytest.mark.parametrize("mine, limits, expected", NESTED)
def test_the_limits_of_a_container_or_a_job_hold(groups, mine, limits, expected):
    groups(mine, limits)
    assert parts.device_capacity() == expected
