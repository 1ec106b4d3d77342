"""Cells drawn at random are trained again: `python -m pytest tests/benchmarks -m slow -s`."""

import importlib.util
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from envs import registry
from tests.benchmarks import learning, report
from tests.benchmarks.cells import CELLS

SLOWEST = 60_000_000  # steps of all seeds together; games take an hour
Z = 3.29  # half of a 99.9 % interval, in standard errors


def has_library(cell: Any) -> bool:
    """Whether the library of its environment is installed; the kit's own need none."""
    library = cell.name.partition("/")[0]
    names = (library, f"mujoco_{library}") if library in registry.LIBRARIES else ("gymnax",)
    return any(importlib.util.find_spec(name) for name in names)


def drawn() -> list:
    """Three of the published cells; CELLS_SEED repeats a draw."""
    steps = lambda rows: len(rows) * int(rows[0]["timestep"])
    kept = [(cell, rows) for cell in CELLS if (rows := report.kept(cell))]
    here = jax.devices()[0].platform  # a GPU's run of minutes takes a CPU hours
    kept = [(cell, rows) for cell, rows in kept if rows[0]["device"].split()[0] == here]
    kept = [(cell, rows) for cell, rows in kept if has_library(cell)]
    short = [cell for cell, rows in kept if steps(rows) <= SLOWEST and "MinAtar" not in cell.name]
    seed = int(os.environ.get("CELLS_SEED", time.time()))
    print(f"CELLS_SEED={seed}")
    return random.Random(seed).sample(short, min(3, len(short)))


@pytest.mark.slow
def test_three_published_cells_can_be_repeated(tmp_path):
    """Scores are equal on the machine and with the versions of the published run.

    Elsewhere rounding or draws differ. Then the means of all seeds agree within a 99.9 % interval
    of their difference.
    """
    cells = drawn()
    assert len(cells) == 3
    for number, cell in enumerate(cells):
        before = report.kept(cell)
        first = int(before[0]["seed"])
        again = again_of(cell.key, first, tmp_path / str(number))
        old = np.array([float(row["score"]) for row in before])
        new = np.array([float(row["score"]) for row in again])
        assert [row["seed"] for row in again] == [row["seed"] for row in before]
        if np.array_equal(old, new):
            print(f"{cell.key}: the same, number by number")
            continue
        error = np.sqrt((old.var(ddof=1) + new.var(ddof=1)) / len(old))
        print(f"{cell.key}: {old.mean():.2f} was reported, now {new.mean():.2f} +- {error:.2f}")
        assert abs(old.mean() - new.mean()) <= Z * error + 1e-6 * abs(old.mean()), cell.key


def again_of(key: str, first: int, folder: Path) -> report.Rows:
    """Rows of a cell, from a process as a user starts it, because jax has its own flags and
    devices."""
    code = "from tests.benchmarks import learning, report; from pathlib import Path; "
    code += f"cell, = learning.chosen([{key!r}]); "
    code += "learning.devices.use_cores(cell.seeds, None); "
    code += f"report.keep('again', learning.train(cell, {first}, None), Path({str(folder)!r}))"
    plain = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=learning.ROOT, env=plain)
    return report.read("again", folder)
