"""Warns of arrays of shapes (B,) and (B, 1) whose sum is (B, B): it trains, and learns badly.

A value head without its last `[..., 0]` gives such an array.
"""

import functools
import linecache
import re
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from envs.warn import warn

_LOCK = threading.RLock()  # filters are of all threads, and several may trace
PROMOTED = "Following NumPy automatic rank promotion"  # how jax begins to say so


def told(function: Callable) -> Callable:
    """The function, which warns while it is traced, of lines of its own package and of this one."""
    packages = {name.partition(".")[0] for name in (function.__module__, __name__)}
    module: Any = warnings

    @functools.wraps(function)
    def watched(*args: Any) -> Any:
        if jax.config.jax_numpy_rank_promotion != "allow":  # type: ignore[attr-defined]
            return function(*args)  # somebody looks already
        with _LOCK, warnings.catch_warnings(), jax.numpy_rank_promotion("warn"):
            warnings.filterwarnings("always", PROMOTED)
            module.showwarning = functools.partial(_look, packages, module.showwarning)
            return function(*args)

    return watched


def _look(packages: set[str], show: Callable, message: Any, *rest: Any) -> None:
    if not str(message).startswith(PROMOTED):
        show(message, *rest)
    elif (pair := spread(str(message))) and (line := _line(packages)):
        short, long = pair
        warn(
            f"{line}: arrays of shapes {short} and {long} make one of {(*long[:-1], short[-1])}; "
            "is a last axis of 1 left, as of a value head without [..., 0]? If all pairs are "
            "meant, write both axes out, x[None] and y[:, None]"
        )


def spread(text: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Two shapes in a text of which the longer one is the other with a last axis of 1."""
    found = re.findall(r"\(([\d, ]+)\)", text)
    shapes = [tuple(map(int, re.findall(r"\d+", shape))) for shape in found]
    pairs = [(x, y) for x in shapes for y in shapes if len(y) > len(x) and x[-1] > 1]
    return next((pair for pair in pairs if pair[1][-len(pair[0]) - 1 :] == (*pair[0], 1)), None)


def _line(packages: set[str]) -> str:
    """The innermost line of these packages; "" where an environment computes."""
    frame: Any = sys._getframe(2)
    while frame:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package in packages or package == "envs":
            break
        frame = frame.f_back
    if not frame or package not in packages:
        return ""
    file, number = frame.f_code.co_filename, frame.f_lineno
    return f"{Path(file).name}, line {number}: {linecache.getline(file, number).strip()}"
