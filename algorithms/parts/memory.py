"""How much memory there is."""

import os
from pathlib import Path

import jax

# What the machine's physical memory may be cut down to: control groups, version 2 and 1.
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def device_memory(device: jax.Device | None = None) -> int:
    """Bytes that a device may use, by default the first one; all CPU devices share the machine's.

    Accelerators tell their own limit (XLA takes three quarters of a GPU unless told otherwise). A
    CPU has the physical memory, or less where a container is allowed less.
    """
    device = device or jax.local_devices()[0]
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return limit or host_memory()


def host_memory() -> int:
    """Bytes that this process may use of the machine's memory."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(physical, *map(_number_in, LIMITS))


def _number_in(file: str) -> float:
    try:
        return int(Path(file).read_text())
    except (OSError, ValueError):  # no such group, or "max"
        return float("inf")
