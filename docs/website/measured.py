"""What was measured of an algorithm: rows of the documentation's tables, and of docs/results/."""

import csv
import functools
import importlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from algorithms.launch.tools.copying import copies
from tests.benchmarks import speed, teams
from website import links
from website.text import table

Row = dict[str, str]
PAGES = ("results", "several-agents", "memory", "world-models")  # with tables of returns
# Files of other kits' rows that are not named KIT-ALGORITHM, and the algorithm here
PEERS = {"reppo-script": "reppo", "dreamerv3-script": "dreamer", "flashsac-script": "flashsac"}
PEERS |= {"jaxmarl-mappo": "ippo_rnn", "jaxmarl-iql": "vdn", "jaxmarl-qmix": "vdn"}
CASES = {case.name: case.algorithm for case in speed.CASES + teams.CASES}
ROWS = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
REPORTED = re.compile(r"\[.*\]\(https?://(\S+)/rl-algorithms/(\w+)/?\)")
# Tables of speed: the file, the algorithm of a row, and what it is
SPEED: Sequence[tuple[str, Callable[[Row], str | None], str]] = (
    ("speed-speed", lambda row: CASES.get(row["case"]), "On two cores of a CPU, beside rejax:"),
    ("speed-teams", lambda row: CASES.get(row["case"]), "On a CPU, beside JaxMARL:"),
    ("gpu-speed", lambda row: row["part"].split("-")[0], "On a GPU, by the number of seeds:"),
    ("launches", lambda row: row["program"].split(",")[0], "Programs as compiled for a device:"),
)
LEFT_OUT = ("job", "took", "loop by loop", "sorts", "waits for the host", "calls")


def read(name: str) -> list[Row]:
    """The rows of a file of docs/results/; none if there is no such file."""
    file = links.ROOT / "docs" / "results" / f"{name}.csv"
    return list(csv.DictReader(file.read_text().splitlines())) if file.exists() else []


@functools.cache
def tables() -> list[list[Row]]:
    """The tables of returns in the documentation, each {column: Markdown} of its rows."""
    found = []
    for page in PAGES:
        for rows in ROWS.findall((links.ROOT / "docs" / f"{page}.md").read_text()):
            cells = [re.split(r" *(?<!\\)\| *", row)[1:-1] for row in rows.splitlines()]
            found.append([dict(zip(cells[0], row)) for row in cells[2:]])
    return [rows for rows in found if rows and "algorithm" in rows[0]]


def algorithm_of(label: str) -> str:
    """The algorithm of a row: "dqn (double)" and "rejax-dqn" are of dqn."""
    name = label.split(" ")[0]
    return PEERS.get(name) or name.rpartition("-")[2]


def returns(name: str) -> list[str]:
    """Tables of an algorithm's published rows and those of other kits, one for each set of columns;
    a row that several tables have stands in one."""
    found: dict[tuple[str, ...], dict[tuple[str, ...], None]] = {}
    for rows in tables():
        for row in rows:
            if algorithm_of(row["algorithm"]) == name:
                found.setdefault(tuple(row), {})[tuple(row.values())] = None
    return [table(head, rows) for head, rows in found.items()]


def speeds(name: str) -> list[str]:
    """Tables of an algorithm's speed and memory, each below what it is."""
    parts = []
    for file, algorithm, says in SPEED:
        rows = [row for row in read(file) if algorithm(row) == name]
        head = [column for column in (rows[0] if rows else ()) if column not in LEFT_OUT]
        shown = [[row[column] for column in head] for row in rows]
        parts += [says, table(head, shown)] if rows else []
    return parts


class Reported(NamedTuple):
    """A return in training that others report."""

    site: str
    steps: int
    value: float


@functools.cache
def reported() -> Mapping[tuple[str, str], Reported]:
    """{(algorithm, environment): what others report}, of the table in docs/results.md."""
    text = (links.ROOT / "docs" / "results.md").read_text()
    found = {}
    for before, rows in re.findall(r"(.*)\n\n((?:^\|.*\n)+)", text, re.MULTILINE):
        steps = re.search(r"after the same (\d+)k steps", before)
        cells = [re.split(r" *\| *", row)[1:-1] for row in rows.splitlines()]
        for first, *values in cells[2:] if steps else ():
            site, algorithm = REPORTED.search(first).groups()
            for environment, value in zip(cells[0][1:], values):
                one = Reported(site, 1000 * int(steps[1]), float(value))
                found[algorithm, environment] = one
    return found


def lines(name: str) -> str:
    """The length of a file, and with COPIES in the environment that of its copy, which takes a
    second or two to make."""
    own = (links.ROOT / "algorithms" / f"{name}.py").read_text().count("\n")
    if not os.environ.get("COPIES"):
        return str(own)
    copy = copies.copy(importlib.import_module(f"algorithms.{name}"))
    return f"{own}; [copied](../copying.md) {copy.count(chr(10)):,}"
