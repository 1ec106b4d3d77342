"""The content of a run's config.json, and its checksum."""

import contextlib
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from algorithms.launch.engine import files
from algorithms.launch.engine.errors import UserError

VERSION = 1  # of what config.json holds
HAS = ("algorithm", "seeds", "floats", "options", "config")


def fill(folder: Path, description: dict[str, Any]) -> None:
    """The files that a run's directory has from the beginning."""
    (folder / "checkpoints").mkdir(parents=True)
    files.write_json(folder / "config.json", with_checksum(description))


def with_checksum(description: dict[str, Any]) -> dict[str, Any]:
    """The description with its checksum, so that a damaged digit does not change a run."""
    plain = {name: value for name, value in description.items() if name != "checksum"}
    text = json.dumps(plain, sort_keys=True)
    # First, so that what is left is JSON if the line is taken out.
    return {"checksum": hashlib.sha256(text.encode()).hexdigest()[:16]} | plain


def read_description(file: Path, edited: bool = False) -> dict[str, Any]:
    """What a config.json holds.

    Args:
      file: its path.
      edited: somebody may have changed it.

    Raises:
      UserError: there is none, or it is not of a run, or of another version of the kit, or damaged.
    """
    wanted = "a run's config.json or a sweep's best.json" if edited else "the directory of a run"
    try:
        description = files.read_json(file, wanted)
    except UserError as error:
        raise _with_hint(file, error) from None
    for name in HAS:
        if not isinstance(description, dict) or name not in description:
            raise UserError(f"{file} is not of a run of this kit: it has no {name}")
    check_version(file, description)
    checksum = description.pop("checksum", None)
    if not edited and checksum not in (None, with_checksum(description)["checksum"]):
        raise UserError(
            f"{file} is damaged: its checksum does not match its content; if you have changed it "
            'on purpose, set "checksum" to null'
        )
    return description


def _with_hint(file: Path, error: UserError) -> UserError:
    """The error, with a hint if a removed line has left its comma behind."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if re.search(r",\s*}\s*$", file.read_text()):
            return UserError(f"{error}; remove the comma before the last brace")
    return error


def check_version(file: Path, description: dict[str, Any]) -> None:
    """Refuses what another version of the kit has written."""
    if (version := description.get("version")) != VERSION:
        is_of = "has no version" if version is None else f"has version {version}"
        raise UserError(
            f"{file} {is_of}, this kit reads version {VERSION}: use the commit that versions.json "
            "beside it names"
        )
