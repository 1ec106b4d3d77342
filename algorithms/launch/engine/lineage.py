"""A population's history as a picture: returns, schedules of floats, and who came of whom."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.launch.engine import plots
from algorithms.launch.engine.metrics import Metrics

SHOWN = 3  # populations, side by side
GREY, RED = "#999999", plots.COLOURS[1]


def ancestors(parents: np.ndarray, last: int) -> np.ndarray:
    """The member that each point's ancestor of the last one was, (points,).

    Args:
      parents: whose state each member has gone on from at a point, (points, members).
      last: a member at the last point.
    """
    found = [last]
    for row in parents[:0:-1]:
        found.append(int(row[found[-1]]))
    return np.array(found[::-1])


def schedules(metrics: Metrics) -> list[str]:
    """Names of the floats that change."""
    names = [name.removeprefix("member_") for name in metrics if name.startswith("member_")]
    return [name for name in names if name != "return"]


def draw(
    metrics: Metrics, seeds: Sequence[int], logarithmic: Sequence[str], title: str, path: Path
) -> None:
    """Draws every member thin and the line of ancestors of the last best member thick.

    A dotted stroke between two members says that the one became a copy of the other.

    Args:
      metrics: `member_return`, `parent` and so on, (populations, points, members).
      seeds: of the populations.
      logarithmic: floats with a logarithmic axis.
      title: above the panels.
      path: of the PNG; whatever was there is replaced in one step.
    """
    from matplotlib.figure import Figure

    rows, shown = ["return", *schedules(metrics)], min(len(seeds), SHOWN)
    size = (1.0 + 4.5 * shown, 0.8 + 2.6 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(rows), shown, squeeze=False, sharex=True, sharey="row")
    figure.suptitle(title)
    for column in range(shown):
        one = {name: values[column] for name, values in metrics.items()}
        line = ancestors(one["parent"], int(one["best_member"][-1]))
        for ax, name in zip(axes[:, column], rows):
            _panel(ax, one["timestep"], one[f"member_{name}"], one["parent"], line)
            if name in logarithmic:
                ax.set_yscale("log")
        axes[0, column].set_title(f"seed {seeds[column]}")
        axes[-1, column].set_xlabel("environment steps of a member")
    for ax, name in zip(axes[:, 0], rows):
        ax.set_ylabel(name)
    plots.save(figure, path)


def _panel(
    ax: Any, steps: np.ndarray, values: np.ndarray, parents: np.ndarray, line: np.ndarray
) -> None:
    values = np.where(np.isfinite(values), values, np.nan)
    for member in range(values.shape[1]):
        for point in range(1, len(steps)):
            parent = parents[point, member]
            stroke = [values[point - 1, parent], values[point, member]]
            style = "-" if parent == member else ":"
            ax.plot(steps[point - 1 : point + 1], stroke, style, color=GREY, linewidth=0.7)
    best = values[np.arange(len(steps)), line]
    ax.plot(steps, best, color=RED, linewidth=2.0, label="ancestors of the best")
    ax.grid(alpha=0.3)
