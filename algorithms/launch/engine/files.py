"""Files that appear whole or not at all, and the format of a checkpoint.

A checkpoint is, one after another:

    magic       16 bytes
    header      its length (8 bytes, little endian), its SHA-256, and msgpack: plain values and
                small arrays, and under "arrays" the name, dtype and shape of each array
    arrays      their bytes, in that order, as they lie in memory (C order)
    checksum    SHA-256 of the arrays' bytes

An array is written piece by piece as it comes from the devices and read a few trials at a time, so
that a state needs no second place in memory. Whatever was changed or cut off is found.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import serialization

from algorithms.launch.engine import devices
from algorithms.launch.engine.errors import UserError

MAGIC = b"RL checkpoint 2\n"
BLOCK = 2**20  # bytes read at a time for a checksum

REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # one slash, as Path leaves of gs://bucket


def local(path: Path | str) -> Path:
    """The path that a user gives, which must be one of this machine's file system.

    Raises:
      UserError: a URL, of which open and mkdir would make a folder `gs:`, or a ~ that no shell has
        replaced; or no path at all.
    """
    if not isinstance(path, str | os.PathLike):
        what = repr(path)
        what = what if len(what) <= 60 and what.isprintable() else f"a {type(path).__name__}"
        place = next((x for x in ("run_dir", "sweep_dir") if getattr(path, x, None)), "")
        its = f", its {place}" if place else ""
        raise UserError(f"{what} is no path: give the directory of a run or a sweep{its}")
    text = os.fspath(path)
    if REMOTE.match(text):
        raise UserError(
            f"{text} is no local path: give one, and copy the directory, as with `gcloud storage "
            "rsync` or `aws s3 sync` (docs/command-line.md, Copy runs to a bucket)"
        )
    if (whole := os.path.expanduser(text)) != text:
        raise UserError(f"{text}: a shell replaces ~ only at the start of a word: give {whole}")
    return Path(path)


# --- whole or not at all ---------------------------------------------------------------------


def write_whole(path: Path, *pieces: Any, stream: Iterable[Any] = ()) -> None:
    """Writes a file that is there whole or not at all, whenever the machine stops.

    Args:
      path: of the file.
      *pieces: bytes, or what has their buffer.
      stream: pieces that come after them, made one by one.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "wb") as file:
            file.writelines(pieces)
            file.writelines(stream)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


@contextlib.contextmanager
def writing(path: Path | None) -> Iterator[None]:
    """Turns a disk's errors into a UserError, which names a path that is being written."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error


def write_json(path: Path, values: Any) -> None:
    write_whole(path, json.dumps(values, indent=2, allow_nan=False).encode())


def read_json(file: Path, wanted: str = "the directory of a run") -> Any:
    """The JSON value in a file.

    Args:
      file: its path.
      wanted: what the user should name, for the error message.

    Raises:
      UserError: there is no such file, or it is not JSON.
    """
    try:
        return json.loads(file.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{file} does not exist: give {wanted}") from None
    except ValueError as error:
        raise UserError(f"{file} is not readable as JSON: {error}") from None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None


def as_read(values: Any) -> Any:
    """The value that `read_json` gives after `write_json` has written this one."""
    return json.loads(json.dumps(values))


def copy_whole(source: Path, target: Path) -> None:
    """Copies a file, which is there whole or not at all."""
    with open(source, "rb") as file:
        write_whole(target, stream=iter(lambda: file.read(BLOCK), b""))


def sync_directory(path: Path) -> None:
    """Has what was made or renamed in it survive a power cut."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def size(path: Path) -> int:
    """Bytes of all files below a directory; of one that goes meanwhile none."""
    total = 0
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):
            total += file.lstat().st_size if file.is_file() else 0
    return total


# --- checkpoints -----------------------------------------------------------------------------


def write_checkpoint(
    path: Path, header: dict[str, Any], tree: Any, layout: devices.Layout | None = None
) -> None:
    """Saves a header (plain values and small arrays) and a tree's arrays, with checksums.

    Args:
      tree: host arrays (trials, ...), or with a layout arrays on the devices, of which the trials
        that this process keeps are saved.
    """
    leaves = [(name, devices.plain(leaf)) for name, leaf in named_leaves(tree)]
    count = lambda x: len(layout.own) if layout else len(x)
    index = [[name, str(x.dtype), [count(x), *x.shape[1:]]] for name, x in leaves]
    data = serialization.msgpack_serialize(header | {"arrays": index})
    frame = len(data).to_bytes(8, "little") + hashlib.sha256(data).digest()
    apart = lambda x: layout.pieces(x) if layout else [np.asarray(x)]
    pieces = (piece for _, x in leaves for piece in apart(x))
    write_whole(path, MAGIC, frame, data, stream=_with_checksum(pieces))


def _with_checksum(pieces: Iterable[np.ndarray]) -> Iterator[Any]:
    digest = hashlib.sha256()
    for piece in pieces:
        data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
        digest.update(data.data)
        yield data
    yield digest.digest()


class _Entry(NamedTuple):
    """Where an array lies in a file."""

    offset: int
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape))

    def read(self, file: Any, rows: range) -> np.ndarray:
        """Some rows of it."""
        result = np.empty((len(rows), *self.shape[1:]), self.dtype)
        row = self.size // max(self.shape[0], 1)
        file.seek(self.offset + rows.start * row)
        file.readinto(result.reshape(-1).view(np.uint8))
        return result


def read_header(path: Path, algorithm: str) -> dict[str, Any]:
    """The header alone, which is small.

    Raises:
      UserError: the file is missing, damaged, no checkpoint, or of another algorithm.
    """
    with _open(path) as file:
        return _read_header(file, path, algorithm)


def shapes(path: Path, algorithm: str) -> dict[str, tuple[int, ...]]:
    """The shapes (trials, ...) of a checkpoint's arrays, by their names.

    Raises:
      UserError: as of `read_header`.
    """
    return {name: tuple(shape) for name, _, shape in read_header(path, algorithm)["arrays"]}


def verify(path: Path, algorithm: str) -> None:
    """Reads the file through.

    Raises:
      UserError: as of `read_header`, or the arrays are damaged.
    """
    with _open(path) as file:
        _verify(file, path, _entries(file, _read_header(file, path, algorithm)))


def read_checkpoint(
    path: Path, algorithm: str, like: Any, num_trials: int, rows: range, partly: bool = False
) -> Any:
    """The pytree in a checkpoint, as host arrays (len(rows), ...).

    Args:
      path: of the file.
      algorithm: that wrote it.
      like: shapes and dtypes for one trial; typed keys are wrapped again.
      num_trials: in the file.
      rows: which of them.
      partly: the file may have more arrays than `like`.

    Raises:
      UserError: the file is missing, damaged, of another algorithm, or does not fit.
    """
    with _open(path) as file:
        entries = _entries(file, _read_header(file, path, algorithm))
        entries = with_names_of(like, entries)
        _check_fit(path, entries, like, num_trials, partly)
        _verify(file, path, entries)
        read = lambda name, leaf: devices.like_key(entries[name].read(file, rows), leaf)
        leaves = [read(name, leaf) for name, leaf in named_leaves(like)]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a tree and where they are in it."""
    return [
        (jax.tree_util.keystr(path), x) for path, x in jax.tree_util.tree_leaves_with_path(tree)
    ]


def with_names_of(like: Any, stored: Mapping[str, Any]) -> dict[str, Any]:
    """What is stored, by the names that it has in a tree.

    In older checkpoints Adam alone was no chain: its state was `opt_state`, not `opt_state[0]`.
    """
    names = {name for name, _ in named_leaves(like)}
    older = {name.replace("opt_state[0]", "opt_state"): name for name in names}
    return {name if name in names else older.get(name, name): x for name, x in stored.items()}


def _check_fit(
    path: Path, entries: dict[str, _Entry], like: Any, num_trials: int, partly: bool
) -> None:
    misfit = f"{path} does not fit this configuration:"
    names = [name for name, _ in named_leaves(like)]
    for name, leaf in named_leaves(like):
        stored = jax.eval_shape(devices.plain, leaf)
        expected = (num_trials, *stored.shape)
        if name not in entries:
            raise UserError(f"{misfit} it has no {name}")
        found = entries[name]
        if found.shape != expected or found.dtype != stored.dtype:
            raise UserError(
                f"{misfit} {name} is {found.dtype}{found.shape}, expected {stored.dtype}{expected}"
            )
    for name in entries:
        if name not in names and not partly:
            raise UserError(f"{misfit} {name} is left over")


def _open(path: Path) -> Any:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _read_header(file: Any, path: Path, algorithm: str) -> dict[str, Any]:
    magic = file.read(len(MAGIC))
    if magic[:-2] == MAGIC[:-2] and magic != MAGIC:
        raise UserError(f"{path} was written by another version of this kit, which can read it")
    if magic != MAGIC:
        raise UserError(f"{path} is not a checkpoint of this kit (its first bytes differ)")
    size = int.from_bytes(file.read(8), "little")
    checksum = file.read(32)
    data = file.read(min(size, os.fstat(file.fileno()).st_size))  # the size may be damaged, too
    if len(data) != size or hashlib.sha256(data).digest() != checksum:
        raise _damaged(path)
    header = serialization.msgpack_restore(data)
    if header["algorithm"] != algorithm:
        raise UserError(f"{path} is a checkpoint of {header['algorithm']}, not of {algorithm}")
    return header


def _entries(file: Any, header: dict[str, Any]) -> dict[str, _Entry]:
    """Of a file that has been read up to its arrays."""
    entries, offset = {}, file.tell()
    for name, dtype, shape in header["arrays"]:
        entries[name] = _Entry(offset, np.dtype(dtype), tuple(shape))
        offset += entries[name].size
    return entries


def _verify(file: Any, path: Path, entries: dict[str, _Entry]) -> None:
    """Compares the checksum; the file has been read up to its arrays."""
    digest, left = hashlib.sha256(), sum(entry.size for entry in entries.values())
    while left and (data := file.read(min(BLOCK, left))):
        digest.update(data)
        left -= len(data)
    if file.read() != digest.digest():
        raise _damaged(path)


def _damaged(path: Path) -> UserError:
    return UserError(f"{path} is damaged: its checksum does not match its content")


def new(flag: str, name: Path | str | None, *suffixes: str) -> Path | None:
    """The file that a flag names, which must not exist yet; None without a name.

    Raises:
      UserError: it exists, has none of the suffixes, or would stand in no directory.
    """
    if name is None:
        return None
    path = local(name)
    if path.suffix not in suffixes:
        raise UserError(f"--{flag} {path}: give the name of a {' or '.join(suffixes)}")
    if path.exists():
        raise UserError(f"--{flag} {path} exists: give the name of a new file")
    if not path.parent.is_dir():
        raise UserError(f"--{flag} {path}: {path.parent} is no directory")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"--{flag} {path}: nothing can be written into {path.parent}")
    return path
