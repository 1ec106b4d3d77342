"""INFO: an algorithm's description of itself, a literal after the imports of its file.

    title    what it is, in a few words
    use      when to take it, in a few words; may be missing, as ""
    paper    references with their URLs, as Markdown links
    family   one of FAMILIES
    actions  kinds of actions that it takes: "discrete", "continuous" or a tuple of both;
             continuous actions alone need a Box with bounds
    masks    whether it heeds an environment's `action_mask`
    agents   how many agents an environment may have: one of AGENTS
    memory   whether its policy carries a memory: one of MEMORY
    split    whether one agent can be split over devices (split.py); may be missing, as False
    needs    modules of libraries that not everyone has installed; may be missing, as ()

Lists of files are made by reading these literals, without importing the algorithms.
"""

import ast
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OPTIONAL = ("use", "split", "needs")
KEYS = ("title", "paper", "family", "actions", "masks", "agents", "memory")
FAMILIES = ("policy gradients", "action values", "actor-critics", "search", "world models")
AGENTS = ("one", "several", "one or several", "two players")
MEMORY = (False, True, "by flag")

Info = Mapping[str, Any]


def read(file: Path) -> Info | None:
    """INFO of a file; None if it has no INFO with these KEYS (and OPTIONAL), or is not Python."""
    try:
        return _read(file.read_bytes())
    except OSError:
        return None


@functools.cache  # a folder of them takes a fifth of a second to parse
def _read(text: bytes) -> Info | None:
    try:
        body = ast.parse(text).body
        named = [
            n for n in body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "INFO"
        ]
        found = ast.literal_eval(named[0].value) if named else None
    except (SyntaxError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    return found if tuple(name for name in found if name not in OPTIONAL) == KEYS else None


def of_folder(folder: Path) -> dict[str, Info]:
    """{name of a file: its INFO} in alphabetical order, of all files that have one."""
    found = {file.stem: read(file) for file in sorted(folder.glob("*.py"))}
    return {name: info for name, info in found.items() if info is not None}


def file_of(config: Any) -> Path | None:
    """The file that defines a Config; None outside a file, as in a notebook."""
    file = getattr(sys.modules.get(type(config).__module__), "__file__", None)
    return file and Path(file)


def kinds_of(info: Info) -> tuple[str, ...]:
    """The kinds of actions as a tuple, even if there is only one."""
    actions = info["actions"]
    return (actions,) if isinstance(actions, str) else tuple(actions)


def takes_agents(info: Info, several: bool) -> bool:
    """Whether it takes environments with several agents, or with one."""
    return ("several" if several else "one") in info["agents"].split(" or ")


def that_take(file: Path | None, kind: str, masked: bool, several: bool, **same: str) -> list[str]:
    """The other files in a file's folder that take such environments.

    Args:
      file: the file; None gives none.
      kind: kind of actions.
      masked: whether the environment has an `action_mask`.
      several: whether it has several agents.
      same: other entries that their INFO must have.
    """
    return [
        name
        for name, info in (of_folder(file.parent) if file else {}).items()
        if kind in kinds_of(info)
        and (info["masks"] or not masked)
        and takes_agents(info, several)
        and same.items() <= info.items()
    ]
