"""Tables of docs/results.md, made of docs/results/*.csv and of nothing else."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.launch import results
from algorithms.launch.metrics import as_csv
from tests.benchmarks.cells import CELLS, Cell

ROOT = Path(__file__).parents[2]
FOLDER, PAGE = ROOT / "docs" / "results", ROOT / "docs" / "results.md"
REGION = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
COLUMNS = ("algorithm", "cell", "steps", "seeds", "mean (95 %)", "IQM", "worst", "solved at")
COLUMNS += ("solved", "collapsed", "in training", "command")
Rows = list[dict[str, str]]


def read(algorithm: str, folder: Path = FOLDER) -> Rows:
    """What is kept of an algorithm, a row for each cell and seed."""
    file = folder / f"{algorithm}.csv"
    return list(csv.DictReader(file.open())) if file.exists() else []


def keep(algorithm: str, rows: Sequence[dict[str, Any]], folder: Path = FOLDER) -> None:
    """Puts a cell's rows in place of those that were there."""
    others = [row for row in read(algorithm, folder) if row["cell"] != rows[0]["cell"]]
    table = [list(rows[0]), *(list(row.values()) for row in [*others, *rows])]
    folder.mkdir(exist_ok=True)
    (folder / f"{algorithm}.csv").write_text(as_csv(table))


def line(cell: Cell, rows: Rows) -> list[str]:
    """A cell's line of the table."""
    column = lambda name: np.array([float(row[name]) for row in rows])
    scores, before, training = column("score"), column("best_before"), column("training")
    low, high = results.bootstrap_interval(scores, lambda drawn: drawn.mean(-1))
    seeds = sorted(int(row["seed"]) for row in rows)
    block = seeds[0] // 10_000
    name = cell.name + (f" (report {block})" if block > 1 else "")
    solved, collapsed, bar = "", "", ""
    if not np.isnan(cell.solved):
        bar, good = f"{cell.solved:g}", scores >= cell.solved
        solved = share(good)
        collapsed = share(~good & (before >= cell.solved))
    return [
        cell.algorithm,
        name,
        f"{int(rows[0]['timestep']):,}",
        str(len(rows)),
        f"{number(scores.mean())} ({number(low)} to {number(high)})",
        number(results.interquartile_mean(scores)),
        number(scores.min()),
        bar,
        solved,
        collapsed,
        number(np.nanmean(training)) if not np.isnan(training).all() else "-",
        f"`{rows[0]['command']}`",
    ]


def share(which: np.ndarray) -> str:
    return f"{which.sum()} of {len(which)}"


def number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}"


def table(name: str, folder: Path = FOLDER) -> str:
    """Markdown of the cells of a table that have been reported."""
    kept = {algorithm: read(algorithm, folder) for algorithm in {c.algorithm for c in CELLS}}
    lines = [COLUMNS, ["---"] * len(COLUMNS)]
    for cell in CELLS:
        rows = [row for row in kept[cell.algorithm] if row["cell"] == cell.name]
        if cell.table == name and rows:
            lines.append(line(cell, rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def page(text: str, folder: Path = FOLDER) -> str:
    """A page with its tables made anew."""
    return REGION.sub(lambda m: f"{m[1]}\n{table(m[2], folder)}\n\n{m[3]}", text)
