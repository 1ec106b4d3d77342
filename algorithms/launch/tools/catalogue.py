"""The text of --list: algorithms, environments and presets."""

import importlib
import itertools
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import envs
from algorithms.parts.info import FAMILIES, Info, kinds_of, of_folder
from algorithms.presets import PRESETS
from envs import registry

FOLDER = Path(__file__).parents[2]
WIDTH = 96  # characters of a line


def text(algorithm: str) -> str:
    """Algorithms, environments by library and presets, those of one algorithm first.

    Algorithms are not imported. A library that is not installed has its pip command here.
    """
    others = {name: table for name, table in PRESETS.items() if name != algorithm}
    return "\n\n".join(
        [
            _part("algorithms", {name: summary(info) for name, info in of_folder(FOLDER).items()}),
            _part("environments: --env NAME, or your own as --env my_module:MyEnv", environments()),
            _part(
                f"presets of {algorithm}: --preset NAME",
                {"": ", ".join(PRESETS.get(algorithm, {})) or "none"},
            ),
            _part("presets of others", {name: ", ".join(table) for name, table in others.items()}),
        ]
    )


def algorithms() -> list[str]:
    """The names of the files."""
    return list(of_folder(FOLDER))


def environments() -> dict[str, str]:
    """The names that `envs.make` takes, by library, gymnax's by their kind."""
    groups: dict[str, str] = {"of the kit": ", ".join(registry.OWN)}
    known = [name for name in envs.names() if name not in registry.OWN]
    for kind, names in itertools.groupby(known, _kind):
        groups[f"gymnax, {kind.replace('_', ' ')}"] = ", ".join(names)
    for library in registry.LIBRARIES:
        try:
            adapter = importlib.import_module(f"envs.{library}")
            listed = getattr(adapter, "listed", adapter.names)()
        except (ValueError, ImportError) as error:  # not installed: it names the pip command
            listed = [str(error)]
        groups[f"{library}/NAME"] = ", ".join(listed)
    return groups


def summary(info: Info) -> str:
    """What an algorithm is and takes, in one line."""
    agents = [f"{info['agents']} agents"] * (info["agents"] != "one")
    memory = {False: [], True: ["memory"]}.get(info["memory"], [f"memory {info['memory']}"])
    return "; ".join([info["title"], f"{_actions(info)} actions", *agents, *memory])


def table() -> list[list[str]]:
    """The algorithms as rows of Markdown, the head first; by family, then by name."""
    head = ["file", "algorithm", "paper", "family", "actions", "agents", "memory", "when to use it"]
    rows = [head]
    found = sorted(of_folder(FOLDER).items(), key=lambda one: FAMILIES.index(one[1]["family"]))
    for name, info in found:
        memory = {False: "no", True: "yes"}.get(info["memory"], str(info["memory"]))
        file, about = f"[{name}.py]({name}.py)", [info[key] for key in ("title", "paper", "family")]
        rows.append([file, *about, _actions(info), info["agents"], memory, info.get("use", "")])
    return rows


def _actions(info: Info) -> str:
    """The kinds of actions that it takes."""
    words = {"discrete": "discrete (with masks)" if info["masks"] else "discrete"}
    words["continuous"] = "continuous" if "discrete" in kinds_of(info) else "bounded continuous"
    return " or ".join(words[kind] for kind in kinds_of(info))


def _kind(name: str) -> str:
    """The folder of gymnax.environments that an environment is in."""
    from envs.gymnax import gymnax

    return gymnax.registration._registry[name].__module__.split(".")[2]


def _part(title: str, rows: Mapping[str, Any]) -> str:
    """A title, and rows of a name and a text that may take several lines."""
    width = max(map(len, rows), default=0)
    width += 2 * bool(width)
    return "\n".join([title, *itertools.chain(*(_row(n, rows[n], width) for n in rows))])


def _row(name: str, words: str, width: int) -> Iterable[str]:
    return textwrap.wrap(
        words,
        WIDTH,
        initial_indent=f"  {name:{width}}",
        subsequent_indent=" " * (width + 2),
        break_on_hyphens=False,
        break_long_words=False,
    )
