"""Directories of runs and sweeps, which appear whole or not at all, in a place that is free."""

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from algorithms.launch.engine import files, hosts
from algorithms.launch.engine.errors import UserError

TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


def make(path: Path, write: Callable[[Path], None]) -> None:
    """Makes a run's or a sweep's directory, whole or not at all.

    Raises:
      UserError: it exists and is not empty, or it cannot be made.
    """
    try:
        _make(Path(path), write)
    except FileExistsError:
        raise UserError(f"{path} exists: a run is never overwritten") from None
    except OSError as error:
        raise UserError(f"{path} cannot be made: {error.strerror}") from error


@contextlib.contextmanager
def withdrawn_unless_begun(path: Path) -> Iterator[None]:
    """Removes a new directory again if what follows fails before it has saved anything.

    A start that fails then does not block the name: the same command may be given again.
    """
    try:
        yield
    except BaseException:
        begun = any(path.rglob("checkpoints/*")) or any(path.rglob("metrics.csv"))
        if hosts.is_first() and not begun:
            shutil.rmtree(path, ignore_errors=True)
        raise


def make_named(root: Path, words: list[str], write: Callable[[Path], None]) -> Path:
    """The same, as `<word>__<word>__<time>` in root; with -1, -2, ... if that is taken."""
    words = [*words, time.strftime("%Y%m%d-%H%M%S")]
    name = "__".join(map(as_file_name, words))
    for count in range(10**6):
        path = Path(root) / (f"{name}-{count}" if count else name)
        if path.exists():
            continue
        try:
            _make(path, write)
            return path
        except FileExistsError:  # by another process, meanwhile
            continue
        except OSError as error:
            raise UserError(f"{path} cannot be made: {error.strerror}") from error
    raise UserError(f"{root} has a million runs named {name}")


def as_file_name(word: str) -> str:
    """A name without what a file's name should not have."""
    return re.sub(r"[^\w.+-]", "-", word)


def _make(path: Path, fill: Callable[[Path], None]) -> None:
    """Makes a directory with what `fill` writes into it. An empty one may be there already.

    Raises:
      FileExistsError: something else is, perhaps made in this very moment; it stays as it is.
      OSError: it cannot be made.
    """
    path = path.absolute()
    new = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    new.mkdir(parents=True)
    try:
        fill(new)
        files.sync_directory(new)
        os.rename(new, path)  # replaces nothing but an empty directory
    except OSError as error:
        if error.errno in TAKEN:
            raise FileExistsError(errno.EEXIST, "it exists", str(path)) from error
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    files.sync_directory(path.parent)
