"""Figures for a paper: learning curves and performance profiles, as wide as a column.

PDF has its fonts embedded (type 42), SVG has text as outlines, PNG has 300 dots per inch.
Equal numbers give equal files. Text is drawn as it is: a $ begins no formula.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.engine import plots, results

ENDINGS = (".pdf", ".svg", ".png")
WIDTHS = {"single": 3.25, "double": 6.75}  # inches of one column, and of a page with two of them
NARROWEST, WIDEST = 1.0, 20.0  # inches
# Both come with matplotlib, so a figure is the same on all machines; DejaVu has more letters.
FONTS = {"sans": ["DejaVu Sans"], "serif": ["STIXGeneral", "DejaVu Serif"]}
SIZES = {"font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "legend.fontsize": 7}
SIZES |= {"xtick.labelsize": 7, "ytick.labelsize": 7}
EMBEDDED = {"pdf.fonttype": 42, "svg.fonttype": "path"}
AXES = {"steps": ("steps",), "seconds": ("seconds",), "both": ("steps", "seconds")}
XLABELS = {"steps": "environment steps", "seconds": "seconds of training"}
PANEL = 1.55  # inches that a panel needs
LETTERS = 14  # of a line, for each inch
SOLID = 3  # curves that colours alone tell apart, also in grey
# Of more curves each has its own; no two of 42 curves have the same colour and the same style.
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
DASHES += ((0, (9, 2)), (0, (4, 1.2, 1, 1.2, 1, 1.2)))


class Look(NamedTuple):
    """How a figure looks."""

    width: float | None = None  # inches; by default a column for one panel, else a page
    font: str = "sans"  # one of FONTS
    order: Sequence[str] = ()  # labels in the order of colours; by default that of the alphabet

    def inches(self, panels: int) -> float:
        return self.width or WIDTHS["double" if panels > 1 else "single"]


def curves(
    panels: Mapping[str, Sequence[Any]],
    title: str,
    path: Path,
    look: Look | None = None,
    x: str = "steps",
    seconds: Callable[[Any], np.ndarray] | None = None,
) -> None:
    """Draws learning curves, a panel for each environment.

    A curve is the middle of its seeds in its interval, by `intervals.estimate`, at the points where
    all of its seeds have a return. One label has one colour in all panels. The legend stands below
    the panels.

    Args:
      panels: {environment: curves, the best one first}; a curve has a `label`, `timesteps`
        (points,), `returns` (points, seeds) and `seeds`, with those that broke.
      title: of the vertical axes.
      path: of a new file; its ending is the format.
      look: of the figure.
      x: one of AXES: what the horizontal axis is; "both" are two panels for each environment.
      seconds: of a curve, (points,), where they are drawn.
    """
    look = look or Look()
    specs = [(env, axis) for env in panels for axis in AXES[x]]
    styles = _styles([[c.label for c in panel] for panel in panels.values()], look)
    at = {"steps": lambda curve: curve.timesteps, "seconds": seconds}

    def draw(figure: Any, columns: int) -> None:
        axes = figure.subplots(-(-len(specs) // columns), columns, squeeze=False).ravel()
        for number, (ax, (env, axis)) in enumerate(zip(axes, specs)):
            _panel(ax, panels[env], at[axis], styles)
            _label(ax, axis, last_of_column=number + columns >= len(specs) or x == "both")
            if number % columns == 0:
                ax.set_ylabel(title)
            if len(panels) > 1:
                letters = int(LETTERS * look.inches(len(specs)) / columns)
                ax.set_title("\n".join(textwrap.wrap(env, letters)), parse_math=False)
        for ax in axes[len(specs) :]:
            ax.remove()

    _write(path, look, len(specs), styles, draw, pairs=x == "both")


def profiles(
    found: Mapping[str, np.ndarray], taus: np.ndarray, path: Path, look: Look | None = None
) -> None:
    """Draws performance profiles.

    Args:
      found: {label: (3, points)}, as of `comparison.profile`.
      taus: (points,), where they are.
      path: of a new file; its ending is the format.
      look: of the figure.
    """
    look = look or Look()
    styles = _styles([list(found)], look)

    def draw(figure: Any, columns: int) -> None:
        ax = figure.subplots()
        for label, (share, low, high) in found.items():
            ax.plot(taus, share, label=label, linewidth=1.2, **styles[label])
            ax.fill_between(taus, low, high, color=styles[label]["color"], alpha=0.15, linewidth=0)
        ax.set(xlabel="score τ", ylabel="share of runs above τ", ylim=(-0.02, 1.02))
        ax.set_xlim(taus[0], taus[-1])
        ax.grid(alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)

    _write(path, look, 1, styles, draw)


def _panel(ax: Any, panel: Sequence[Any], at: Any, styles: Mapping[str, dict[str, Any]]) -> None:
    for curve in panel:
        x = at(curve)
        more = {"marker": "o", "markersize": 3} if len(x) == 1 else {}
        more |= {"label": curve.label, "linewidth": 1.2, **styles[curve.label]}
        plots.middle(ax, x, curve.returns, curve.seeds, resamples=10_000, **more)
    plots.show(ax, [curve.returns for curve in panel])
    plots.style(ax, max([1, *(x for curve in panel for x in at(curve))]))


def _label(ax: Any, axis: str, last_of_column: bool) -> None:
    from matplotlib.ticker import ScalarFormatter

    ax.xaxis.get_major_locator().set_params(nbins=4, integer=axis == "steps")
    if axis == "seconds":
        ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.set_xlabel(XLABELS[axis] if last_of_column else "")


def _styles(panels: Sequence[Sequence[str]], look: Look) -> dict[str, dict[str, Any]]:
    """{label: colour and dashes}, in the order of the legend."""
    drawn = list(dict.fromkeys(label for panel in panels for label in panel))
    labels = [label for label in look.order if label in drawn] or drawn
    order = labels if look.order else sorted(labels)
    colours = plots.colours([order] if len(order) <= len(plots.COLOURS) else panels, order)
    numbers = {label: i for i, label in enumerate(colours)}
    dashes = lambda label: DASHES[numbers[label] % len(DASHES)] if len(labels) > SOLID else "solid"
    return {label: {"color": colours[label], "linestyle": dashes(label)} for label in labels}


def _write(
    path: Path,
    look: Look,
    panels: int,
    styles: Mapping[str, Any],
    draw: Callable[[Any, int], None],
    pairs: bool = False,
) -> None:
    """Makes a figure with a legend below its panels.

    Args:
      panels: their number.
      draw: of the figure, and the number of panels side by side.
      pairs: two panels that belong together stand side by side.
    """
    import matplotlib
    from matplotlib.figure import Figure

    width = look.inches(panels)
    rows = -(-panels // max(1, int(width / PANEL)))
    columns = -(-panels // rows)
    columns += pairs * (columns % 2)
    style: Any = SIZES | EMBEDDED | {"font.family": FONTS[look.font], "svg.hashsalt": "compare"}
    with matplotlib.rc_context(style):
        height = min(0.75 * width / columns + 0.2, 2.4) * -(-panels // columns)
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure, columns)
        below = _legend(figure, styles) if len(styles) > 1 else 0.0
        figure.set_size_inches(width, height + below)
        dates = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
        plots.save(figure, path, dpi=300, metadata=dates.get(path.suffix, {}))


def _legend(figure: Any, styles: Mapping[str, Any]) -> float:
    """A legend below the panels, with as many columns as fit. Returns its height in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.lines import Line2D

    renderer, width = FigureCanvasAgg(figure).get_renderer(), figure.get_size_inches()[0]
    lines = [Line2D([], [], linewidth=1.2, **style) for style in styles.values()]
    labels = ["\n".join(textwrap.wrap(label, int(LETTERS * width))) for label in styles]
    more = {"frameon": False, "columnspacing": 1.2, "handlelength": 2.4}
    for columns in range(len(lines), 0, -1):
        legend = figure.legend(lines, labels, loc="outside lower center", ncols=columns, **more)
        for text in legend.get_texts():
            text.set_parse_math(False)
        extent = legend.get_window_extent(renderer)
        if extent.width <= figure.bbox.width or columns == 1:
            break
        legend.remove()
    return extent.height / figure.dpi


def left_out(panels: Mapping[str, Sequence[Any]]) -> list[str]:
    """A sentence for each environment some of whose curves a figure leaves out."""
    more = {env: len(panel) for env, panel in panels.items() if len(panel) > plots.CURVES}
    return [
        f"{env}: the best {plots.CURVES} of {results.counted(number, 'curve')} are drawn; --curve "
        "chooses others"
        for env, number in more.items()
    ]
