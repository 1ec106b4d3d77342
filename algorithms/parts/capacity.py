"""The device memory and the host memory that this process may use, in bytes."""

import os
from collections.abc import Iterator
from pathlib import Path

import jax

MOUNTED = Path("/sys/fs/cgroup")  # control groups: the limits of jobs and containers
MINE = Path("/proc/self/cgroup")  # names the groups of this process


def device_capacity(device: jax.Device | None = None) -> int:
    """Bytes that a device may use, by default the first one. All CPU devices share the machine's.

    Accelerators report their own limit; by default XLA takes three quarters of a GPU. A CPU has the
    physical memory, or the limit of its container or job if that is smaller.
    """
    device = device or jax.local_devices()[0]
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return limit or host_capacity()


def host_capacity() -> int:
    """Bytes that this process may use of the machine's memory.

    Control groups are nested (systemd's slices, SLURM's jobs and steps), and each may have a limit.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(physical, *map(_number_in, _limits())))


def _limits() -> Iterator[Path]:
    """The files with the limits of this process's groups and of the groups around them."""
    yield from (MOUNTED / "memory.max", MOUNTED / "memory/memory.limit_in_bytes")
    try:
        lines = MINE.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)  # 0::/slice/job, or 4:memory:/job of version 1
        for group in (Path(path.lstrip("/")), *Path(path.lstrip("/")).parents):
            if not controllers:
                yield MOUNTED / group / "memory.max"
            elif "memory" in controllers.split(","):
                yield MOUNTED / "memory" / group / "memory.limit_in_bytes"


def _number_in(file: Path) -> float:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such group, or "max"
        return float("inf")
