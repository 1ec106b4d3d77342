"""One process at a time trains in a directory."""

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from algorithms.launch.engine import hosts
from algorithms.launch.engine.errors import UserError, warn

NAME = ".lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keeps other processes, also those of other hosts, from training in the directory meanwhile.

    The lock is flock's on a file in it: the kernel frees it however a process ends, kill -9
    included. On NFS (version 4, or 3 with its lock daemon) Linux has the server keep it, so that it
    holds between hosts. On a file system that knows no locks there is a warning and no lock. Of
    several processes that train together the first one holds it.

    Raises:
      UserError: another run trains there (it is named), or nothing can be written there.
    """
    held: list[Any] = []
    hosts.from_first(lambda: held.append(_acquire(Path(directory))))
    try:
        yield
    finally:
        for file in held:
            file.truncate(0)
            file.close()


def _acquire(directory: Path) -> Any:
    """The file, open and locked. It is never deleted: two processes could then hold locks."""
    try:
        file = open(directory / NAME, "a+")  # noqa: SIM115, it stays open as long as the lock
    except OSError as error:
        raise UserError(f"{directory} cannot be trained in: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        who = file.read().strip() or "another process"
        raise UserError(f"{directory} is being trained by {who}: wait for it, or stop it") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        warn(f"{directory}: no locks here ({error.strerror}); let nothing else train in it")
    file.truncate(0)
    with contextlib.suppress(OSError):  # a full disk: the lock holds without its note
        os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
    return file
