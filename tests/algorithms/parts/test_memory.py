"""How much memory there is."""

import os
import types

from algorithms import parts
from algorithms.parts import memory


def test_memory_is_the_accelerator_s_or_the_machine_s_or_the_container_s(tmp_path, monkeypatch):
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 2**28 < parts.device_memory() <= physical
    limit, no_limit = tmp_path / "memory.max", tmp_path / "none"
    limit.write_text("123456\n")
    no_limit.write_text("max\n")
    monkeypatch.setattr(memory, "LIMITS", (no_limit, tmp_path / "missing"))
    assert parts.device_memory() == physical
    monkeypatch.setattr(memory, "LIMITS", (no_limit, limit))
    assert parts.device_memory() == 123456
    gpu = types.SimpleNamespace(memory_stats=lambda: {"bytes_limit": 77})
    assert parts.device_memory(gpu) == 77
