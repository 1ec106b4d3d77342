"""Learning curves of an algorithm, drawn from the rows of docs/results/."""

from html import escape
from typing import NamedTuple

import numpy as np

from algorithms.launch.engine.intervals import interquartile_mean
from algorithms.launch.tools.report.svg import Frame, Scale, picture, spread
from website import links, measured

MOST = 6  # curves in a picture, colours c0 to c5 of site.css
ALIKE = 1.2  # ratio of the lengths of runs that share a picture


class Curve(NamedTuple):
    """A cell's curve over its seeds."""

    label: str
    environment: str
    is_peer: bool
    steps: np.ndarray  # (points,)
    middle: np.ndarray  # (points,), interquartile means
    low: np.ndarray  # (points,), lower quartiles
    high: np.ndarray  # (points,), upper quartiles


def pictures(name: str) -> list[str]:
    """A figure for each environment and length of runs, as HTML."""
    groups: list[list[Curve]] = []
    for curve in curves(name):
        same = (group for group in groups if belongs(curve, group[0]))
        if (group := next(same, None)) is None:
            groups.append(group := [])
        group.append(curve)
    return [figure(name, group) for group in groups if not all(one.is_peer for one in group)]


def belongs(a: Curve, b: Curve) -> bool:
    ends = sorted((a.steps[-1], b.steps[-1]))
    return a.environment == b.environment and ends[1] <= ALIKE * ends[0]


def curves(name: str) -> list[Curve]:
    """Those of an algorithm's cells, then those of other kits."""
    files = [file.stem for file in sorted((links.ROOT / "docs" / "results").glob("*-*.csv"))]
    others = [file for file in files if measured.algorithm_of(file) == name]
    return [one for file in (name, *others) for one in cells(file, is_peer=file != name)]


def cells(file: str, is_peer: bool) -> list[Curve]:
    """The curves of a file of docs/results/, one for each cell."""
    found: dict[str, list[measured.Row]] = {}
    for row in measured.read(file):
        if not {"cell", "curve"} <= set(row):
            return []  # another kind of table
        found.setdefault(row["cell"], []).append(row)
    return [curve(file if is_peer else "", cell, rows) for cell, rows in found.items()]


def curve(kit: str, cell: str, rows: list[measured.Row]) -> Curve:
    """The curve of a cell, from before training. Other kits may only have its last points."""
    returns = np.array([[float(x) for x in row["curve"].split()] for row in rows])
    steps = np.linspace(0, int(rows[0]["timestep"]), returns.shape[1])
    known = np.isfinite(returns).all(0)
    steps, returns = steps[known], returns[:, known]
    environment = cell.partition(" ")[0].rstrip(",")
    label = f"{f'{kit}: ' * bool(kit)}{cell}, {len(rows)} seed{'s' * (len(rows) > 1)}"
    return Curve(
        label=label,
        environment=environment,
        is_peer=bool(kit),
        steps=steps,
        middle=interquartile_mean(returns.T),
        low=np.quantile(returns, 0.25, axis=0),
        high=np.quantile(returns, 0.75, axis=0),
    )


def figure(name: str, group: list[Curve]) -> str:
    """A picture with its legend; curves of other kits and what others report are dashed."""
    own, others = ([one for one in group if one.is_peer == peer] for peer in (False, True))
    shown = [*own[: MOST - len(others)], *others]
    last, level = max(one.steps[-1] for one in shown), reported(name, group)
    frame = Frame(Scale(0.0, float(last)), returns(shown, level))
    parts = [frame.axes("environment steps", "return")]
    parts += [path(f"band c{i}", frame.band(c.steps, c.low, c.high)) for i, c in enumerate(shown)]
    labels = []
    for i, one in enumerate(shown):
        labels.append((f"c{i}" + " dashed" * one.is_peer, one.label))
        mark = "h-10" * (len(one.steps) == 1)  # to the left of a single point
        parts.append(path(f"line {labels[-1][0]}", frame.line(one.steps, one.middle) + mark))
    if level:
        labels.append(("dashed", f"{level.site}: {level.value:g} in training"))
        parts.append(path("line dashed", frame.line([0, last], [level.value] * 2)))
    title = group[0].environment
    items = "".join(entry(kind, label) for kind, label in labels)
    drawn = picture(parts, f"Learning curves on {title}")
    caption = f"<figcaption>{escape(title)}</figcaption>"
    return f'<figure class="curves">{caption}{drawn}<ul>{items}</ul></figure>'


def reported(name: str, group: list[Curve]) -> measured.Reported | None:
    """What others report for such runs."""
    found = measured.reported().get((name, group[0].environment))
    ends = sorted((group[0].steps[-1], found.steps if found else 0))
    return found if ends[1] <= ALIKE * ends[0] else None


def returns(shown: list[Curve], level: measured.Reported | None) -> Scale:
    """The axis of returns."""
    ends = [x for one in shown for x in (one.low, one.high)]
    ends += [np.array([level.value])] if level else []
    return Scale(*spread(np.concatenate(ends)))


def path(kind: str, d: str) -> str:
    return f'<path class="{kind}" d="{d}"/>'


def entry(kind: str, label: str) -> str:
    """A line of the legend."""
    line = f'<svg viewBox="0 0 26 8">{path(f"line {kind}", "M1 4H25")}</svg>'
    return f"<li>{line} {escape(label)}</li>"
