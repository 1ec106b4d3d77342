"""Errors and warnings for the user."""

import contextlib
import difflib
import errno
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from envs.usual_jax import usual_jax
from envs.warn import KitWarning


class UserError(Exception):
    """A user's mistake; the command line shows its message alone, without a traceback."""


def near(name: str, known: Iterable[str]) -> list[str]:
    """The names that may be meant: those with such initials, as learning_rate of lr, or alike."""
    initials = lambda word: "".join(part[:1] for part in re.split("[-_]", word))
    meant = [word for word in known if len(name) > 1 and initials(word) == name]
    return meant or difflib.get_close_matches(name, known, n=3, cutoff=0.4)


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """An error that names an unknown name and the nearest known ones."""
    known = [word for word in known if word != name]
    meant = ", ".join(near(str(name), known))
    hint = f"did you mean {meant}?" if meant else f"there are {', '.join(known) or 'none'}"
    return UserError(f"unknown {what} '{name}'; {hint}")


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """A tool's work: a user's mistake ends the process with one line on stderr and exit code 2.

    Ctrl-C ends it at once, with code 130, whatever the devices still compute.
    """
    write_anything(sys.stdout)
    try:
        with usual_jax():
            yield
        let_go(sys.stdout)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        sys.exit(cut_short(error))
    except KeyboardInterrupt:
        print("\naborted", file=sys.stderr, flush=True)
        os._exit(128 + signal.SIGINT)  # sys.exit would wait for the program on the devices


def write_anything(stream: Any) -> None:
    """Makes a stream write characters that its encoding lacks as \\xfc: no name ends a run."""
    if getattr(stream, "errors", "") == "strict":
        stream.reconfigure(errors="backslashreplace")


def warn(message: str) -> None:
    """Warns of a failure that the run survives."""
    tell(f"warning: {message}", sys.stderr)


def heed_warnings() -> None:
    """Shows warnings of the environments as `warn` does, without a place in the kit's code."""
    show = warnings.showwarning

    def show_ours(message, category, *place, **more):
        if issubclass(category, KitWarning):
            warn(str(message))
        else:
            show(message, category, *place, **more)

    warnings.showwarning = show_ours


def tell(text: str, stream: Any, end: str = "\n") -> None:
    """Writes a text at once. A log on a full disk does not end a run; a closed pipe does."""
    try:
        print(text, file=stream, end=end, flush=True)
    except BrokenPipeError:
        raise
    except OSError:  # lost, but for what stays in the buffer
        pass


def cut_short(error: OSError) -> int:
    """The exit code for output that nobody reads any more, as under `| head`, or that does not fit
    a disk; all other errors are raised again."""
    if error.errno not in (errno.EPIPE, errno.ENOSPC):
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python still flushes
    if error.errno == errno.EPIPE:
        return 141
    what = error.filename or "the output, which is cut short"
    print(f"error: there is no space for {what}", file=sys.stderr)
    return 4


def let_go(*streams: Any) -> None:
    """Drops output that a full disk refused, so that Python's exit does not fail on it."""
    for stream in filter(None, streams):  # None: the process was started without it
        try:
            stream.flush()
        except BrokenPipeError:
            raise
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
