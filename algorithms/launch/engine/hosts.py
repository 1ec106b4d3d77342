"""Several processes, on one machine or many, that train the trials of one run together.

All of them run the same code on the same numbers; a program's trials are spread over the devices of
all. Only the first process prints, draws and keeps the directory. Processes exchange only the
metrics of each point, requests to stop, and errors. Others stay out of the directory by its lock.
"""

import contextlib
import errno
import fcntl
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from algorithms.launch.engine.errors import UserError, warn

# Keys of what the processes tell each other when one fails.
FAILED = "single-file-rl/failed"  # by the first that does, read by all
HEARD = "single-file-rl/heard/"  # by each of the others
LEAVING = "single-file-rl/leaving"  # by the first that failed, when all have heard
SECONDS = 30.0  # to wait, at most, until the others have heard of a failure


def start(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Joins the others; the cluster (SLURM, Kubernetes, TPU pods, MPI) provides arguments that are
    None.

    Raises:
      UserError: the addresses of the others are unknown, or they cannot be reached.
    """
    if coordinator is not None and not _has_port(coordinator):  # jax crashes, or waits for minutes
        raise UserError(f"--coordinator {coordinator}: give HOST:PORT, as localhost:9911")
    jax.config.update("jax_enable_preemption_service", False)  # SIGTERM is heeded by the launcher
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id)
    except (ValueError, TypeError, RuntimeError) as error:
        hint = "give --coordinator HOST:PORT --num-processes N --process-id I, or start it in a"
        raise UserError(f"--distributed: {error} ({hint} cluster that jax knows)") from error


def _has_port(address: str) -> bool:
    """Whether an address is HOST:PORT, with a port that exists."""
    host, _, port = address.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port) < 2**16


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Ends all processes when one of them fails inside; that one prints why, as a program would.

    Without this the others would wait for it in their next exchange, for minutes. With a single
    process it does nothing.
    """
    global _together
    if count() == 1 or _together:
        yield
        return
    _together, done = True, threading.Event()
    watch = threading.Thread(target=_watch, args=(done,), daemon=True)
    watch.start()
    try:
        yield
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code:
            _end_all(error)
        raise
    finally:
        _together = False
        done.set()
        watch.join()


_together = False


def _watch(done: threading.Event) -> None:
    """Ends this process when another has failed."""
    while not done.wait(0.5):
        try:
            failed = json.loads(_client().key_value_try_get(FAILED))
        except Exception:  # jax's way to say that there is no such key
            continue
        if failed["process"] != jax.process_index():
            _client().key_value_set(f"{HEARD}{jax.process_index()}", "")
            if is_first():  # it keeps the keys: without it jax would abort the others
                _wait(lambda: _client().key_value_try_get(LEAVING) is not None)
                time.sleep(1.0)
            os._exit(failed["code"])


def _wait(condition: Callable[[], bool]) -> None:
    """Waits for a message that must arrive soon."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(Exception):  # no such key yet
            if condition():
                return
        time.sleep(0.1)


def _end_all(error: BaseException) -> None:
    """Tells the others, says what happened and ends this process; only the first one speaks."""
    code = {UserError: 2, KeyboardInterrupt: 130}.get(type(error), 1)
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        code = error.code
    failed = json.dumps({"process": jax.process_index(), "code": code})
    try:
        _client().key_value_set(FAILED, failed)
    except Exception:  # another was first: this failure may be no more than a consequence
        time.sleep(SECONDS)  # in which the watch ends this process
        os._exit(code)
    if isinstance(error, UserError):
        print(f"error: {error}", file=sys.stderr)
    elif not isinstance(error, SystemExit | KeyboardInterrupt):
        traceback.print_exception(error)
    _wait(lambda: len(_client().key_value_dir_get(HEARD)) == count() - 1)
    with contextlib.suppress(Exception):
        _client().key_value_set(LEAVING, "")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # not sys.exit: jax would wait for the others to say goodbye


def _joined() -> Any:
    """What jax knows of the processes: client, num_processes, process_id.

    jax has no public name for it (orbax takes it from there, too): jax.process_count starts the
    backend, after which a process keeps one CPU device, and the public collectives of
    multihost_utils wait for the process that has failed.
    """
    from jax._src import distributed

    return distributed.global_state


def _client() -> Any:
    """The client through which the processes exchange short messages."""
    return _joined().client


def count() -> int:
    """How many processes there are."""
    return _joined().num_processes if jax.distributed.is_initialized() else 1


def is_first() -> bool:
    """Whether this process is the one that speaks."""
    return not jax.distributed.is_initialized() or _joined().process_id == 0


def from_first(function: Callable[[], Any]) -> Any:
    """The JSON value that the first process's call returns, in all of them.

    Raises:
      UserError: in all of them, if the call raises it in the first.
    """
    if count() == 1:
        return function()
    answer: dict[str, Any] = {}
    if is_first():
        try:
            answer["value"] = function()
        except UserError as error:
            answer["error"] = str(error)
    answer = json.loads(_broadcast(json.dumps(answer).encode()))
    if "error" in answer:
        raise UserError(answer["error"])
    return answer["value"]


def _broadcast(data: bytes) -> bytes:
    from jax.experimental import multihost_utils

    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    padded = np.zeros(size, np.uint8)
    padded[: len(data) if is_first() else 0] = np.frombuffer(data if is_first() else b"", np.uint8)
    return multihost_utils.broadcast_one_to_all(padded).astype(np.uint8).tobytes()


def gather(tree: Any) -> Any:
    """Host copies of arrays that are spread over the processes' devices."""
    if count() == 1:
        return jax.tree.map(np.array, tree)
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(tree, tiled=True)


def highest(number: int) -> int:
    """The largest of all processes' numbers."""
    if count() == 1:
        return number
    from jax.experimental import multihost_utils

    return int(np.max(multihost_utils.process_allgather(np.array([number], np.int32))))


def wait() -> None:
    """Waits until all processes are here."""
    if count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("here")


# --- one process at a time trains in a directory ---------------------------------------------

LOCK = ".lock"
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
    from_first(lambda: held.append(_acquire(Path(directory))))
    try:
        yield
    finally:
        for file in held:
            file.truncate(0)
            file.close()


def _acquire(directory: Path) -> Any:
    """The file, open and locked. It is never deleted: two processes could then hold locks."""
    try:
        file = open(directory / LOCK, "a+")  # noqa: SIM115, it stays open as long as the lock
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
