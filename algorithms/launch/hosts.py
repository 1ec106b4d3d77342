"""Several processes, on one machine or many, that train the agents of one run together.

All of them run the same code on the same numbers; a program's agents are spread over the devices
of all. The first process alone speaks, draws and keeps the directory; it and the others tell each
other no more than the metrics of each point, and whether somebody pressed Ctrl-C.
"""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from algorithms.launch.errors import UserError


def start(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Joins the others; what is None comes from the cluster (SLURM, Kubernetes, TPU pods, MPI).

    Raises:
      UserError: nobody tells who the others are, or they cannot be reached.
    """
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id)
    except (ValueError, TypeError, RuntimeError) as error:
        hint = "give --coordinator HOST:PORT --num-processes N --process-id I, or start it in a"
        raise UserError(f"--distributed: {error} ({hint} cluster that jax knows)") from error


def count() -> int:
    """How many processes there are."""
    return jax.process_count() if jax.distributed.is_initialized() else 1


def is_first() -> bool:
    """Whether this process is the one that speaks."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


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


def anybody(flag: bool) -> bool:
    """Whether the flag is up in any process."""
    if count() == 1:
        return flag
    from jax.experimental import multihost_utils

    return bool(np.any(multihost_utils.process_allgather(np.array([flag]))))


def wait() -> None:
    """Waits until all processes are here."""
    if count() > 1:
        from jax.experimental import multihost_utils

        multihost_utils.sync_global_devices("here")
