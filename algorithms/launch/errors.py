"""What the launcher says to its user when something does not go as asked."""

import difflib
import os
import sys
from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """A mistake of the user's; the command line shows its message alone, without a traceback."""


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """An error that names what was asked for and the nearest things there are."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(known) or 'none'}"
    return UserError(f"unknown {what} '{name}'; {hint}")


def write_anything(stream: Any) -> None:
    """Has a stream write what its encoding lacks as \\xfc: a name must not end a run."""
    if getattr(stream, "errors", "") == "strict":
        stream.reconfigure(errors="backslashreplace")


def warn(message: str) -> None:
    """Something went wrong that the run survives."""
    tell(f"warning: {message}", sys.stderr)


def tell(text: str, stream: Any, end: str = "\n") -> None:
    """Writes a text at once. A log on a full disk does not end a run; a closed pipe does."""
    try:
        print(text, file=stream, end=end, flush=True)
    except BrokenPipeError:
        raise
    except OSError:  # lost, but for what stays in the buffer
        pass


def let_go(*streams: Any) -> None:
    """Drops what a full disk has kept from being written, so that Python's end is none of it."""
    for stream in filter(None, streams):  # None: the process was started without it
        try:
            stream.flush()
        except BrokenPipeError:
            raise
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
