"""The learning curve of a run, the results of a sweep and a population's history, as pictures."""

import contextlib
import importlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.engine import intervals, results, settings
from algorithms.launch.engine.metrics import Metrics, players
from algorithms.launch.engine.settings import Trials

# Okabe and Ito's palette without its yellow: distinct for every kind of eyesight, dark on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
CURVES = 6  # settings of a sweep whose curves are drawn
PANELS = (("eval_return", "evaluation return"), ("episode_return", "training return"))
LEGEND_LINE = 0.16  # inches of a line of small letters
HALF_WIDE = 36  # letters of a label in half of a legend's width
BELOW_AXIS = -0.17  # of the axes' height: under the labels of the horizontal axis
MOST_TICKS = 8  # whole numbers that are marked one by one
# Of an environment's own metrics (envs/metrics.py): panels of more would be too small to read.
MOST_METRICS = 3
ENDINGS = ("return", "length", "terminated", "truncated", "last_reward")  # of every episode


def import_libraries() -> None:
    """Imports what pictures need, which takes half a second, and more on a machine's first use."""
    with contextlib.suppress(ImportError):  # a picture that is drawn says why
        importlib.import_module("matplotlib.figure")
        importlib.import_module("matplotlib.backends.backend_agg")


def curve(metrics: Metrics, trials: Trials, title: str, path: Path) -> None:
    """Draws returns over environment steps: every trial thin, their mean thick, in a band.

    The band is the mean plus and minus one standard error over the trials. Evaluation and training
    returns get a panel each, on one scale; points where no episode ended are left out. Where
    players compete, a further panel shows who wins. What the environment reports of itself gets a
    panel each, if that is not too much.

    Args:
      metrics: `timestep` (trials, points), and any of `eval_return` (trials, points, episodes) and
        `episode_return` (trials, points), and metrics of environments named likewise. A trailing
        axis of returns is the players of a game.
      trials: their seeds and settings.
      title: above the panels.
      path: of the PNG; whatever was there is replaced in one step.
    """
    from matplotlib.figure import Figure

    panels = [(label, by_player(key, metrics[key])) for key, label in PANELS if key in metrics]
    outcomes = [("share of evaluation episodes", shares)] if (shares := wins(metrics)) else []
    outcomes += [(label, by_player(key, metrics[key])) for key, label in reported(metrics).items()]
    number = max(len(panels + outcomes), 1)
    figure = Figure(figsize=(1.0 + 5.0 * number, 4.2), layout="constrained")
    axes = figure.subplots(1, number, squeeze=False)[0]
    figure.suptitle(title)
    for ax in axes[1 : len(panels)]:
        ax.sharey(axes[0])
    for ax, (label, curves) in zip(axes, panels + outcomes):
        _panel(ax, metrics["timestep"], curves, trials)
        ax.set_ylabel(label)
    for ax in axes:
        style(ax, last_step=max(np.max(metrics["timestep"], initial=0), 1))
    save(figure, path)


def by_player(key: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """{"": (trials, points)}, or {"player 0": (trials, points), ...} for a game, or {"member 0":
    ...} for what a population has of its members."""
    curves = [np.asarray(curve, np.float64) for curve in players(key, values)]
    who = "member" if key.startswith("member_") or key == "parent" else "player"
    return {f"{who} {i}" * (len(curves) > 1): curve for i, curve in enumerate(curves)}


def wins(metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Who wins a game, from how its evaluation episodes end.

    An episode that terminates is won by the players whose last reward is positive; one without a
    winner, as a draw or one that is truncated, is a stalemate.

    Args:
      metrics: `eval_last_reward` (trials, points, episodes, players) and `eval_terminated` (trials,
        points, episodes), if they are there.

    Returns:
      {"player 0 wins": (trials, points), ..., "stalemate": (trials, points)}; nothing where no
      episode was won by some and lost by others.
    """
    last = np.asarray(metrics.get("eval_last_reward", ()))
    if last.ndim != 4:
        return {}
    ended = np.asarray(metrics["eval_terminated"], bool)
    won = ended[..., None] & (last > 0)
    if not np.any(won.any(-1) & (last < 0).any(-1)):
        return {}
    shares = {f"player {i} wins": won[..., i].mean(2) for i in range(last.shape[-1])}
    return shares | {"stalemate": 1.0 - won.any(-1).mean(2)}


def reported(metrics: Metrics) -> dict[str, str]:
    """An environment's own metrics by their labels: those of evaluations if there are any, else
    those of training; none if they are more than `MOST_METRICS`."""
    for prefix, label in (("eval_", "evaluation"), ("episode_", "training")):
        names = [key.removeprefix(prefix) for key in metrics if key.startswith(prefix)]
        if names:
            own = [name for name in names if name not in ENDINGS]
            own = own if len(own) <= MOST_METRICS else []
            return {f"{prefix}{name}": f"{label} episodes: {name}" for name in own}
    return {}


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error over axis 0 of the values that are not NaN.

    The mean is NaN where there are none, the error 0 where there is only one.
    """
    there = ~np.isnan(values)
    count = there.sum(axis=0)
    mean = np.where(there, values, 0.0).sum(axis=0) / np.where(count, count, np.nan)
    with np.errstate(invalid="ignore"):  # of infinite values
        squares = np.where(there, np.square(values - mean), 0.0).sum(axis=0)
    variance = squares / np.maximum(count - 1, 1)
    return mean, np.sqrt(variance / np.maximum(count, 1))


def sweep(
    ranked: Sequence[results.Ranked], title: str, path: Path, linear: Collection[str] = ()
) -> None:
    """Draws final returns over each swept field, and the best settings' learning curves.

    A dot is a trial, the line goes through the means of all trials with that value. A curve is the
    middle of a setting's seeds in its interval, by `intervals.estimate`.
    Where several environments were trained, each has a row of panels.

    Args:
      ranked: the settings, the best one first.
      title: above the panels.
      linear: fields whose axis is linear, however wide their values are apart.
      path: of the PNG; whatever was there is replaced in one step.
    """
    from matplotlib.figure import Figure

    groups = results.by_environment(ranked)
    fields = [name for name in ranked[0].setting if name != "env" or len(groups) == 1]
    panels = len(fields) + 1
    columns = min(panels, 3)
    rows = -(-panels // columns) * len(groups)
    lines = sum(1 + -(-min(CURVES, len(own)) // _columns(own)) for own in groups.values())
    size = (1.0 + 5.0 * columns, 0.6 + 3.8 * rows + LEGEND_LINE * lines)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).reshape(len(groups), -1)
    broken = sum(setting.broken for setting in ranked)
    figure.suptitle(f"{title} ({broken} trials not finite)" if broken else title)
    for (environment, its_own), row in zip(groups.items(), axes):
        for ax, field in zip(row, fields):
            _returns_over(ax, its_own, field, field in linear)
        _best_curves(row[len(fields)], its_own)
        for ax in row[:panels] if len(groups) > 1 else ():
            ax.set_title(environment)
        for ax in row[panels:]:
            ax.remove()
    save(figure, path)


class Places(NamedTuple):
    """Where values of a field stand on an axis."""

    x: np.ndarray  # (values,); categories are numbered
    names: list[str]  # of categories; empty for numbers
    is_log: bool
    whole: bool  # integers only


def places(values: Sequence[Any], is_log: bool | None = None) -> Places:
    """Numbers stand where they are; booleans, and what is no number, side by side.

    Args:
      values: of one field.
      is_log: whether an axis of numbers is logarithmic; None: if they span more than a factor of 5.
    """
    kinds = {type(value) for value in values}
    if kinds <= {int, float} and np.isfinite(values).all():
        x = np.array(values, np.float64)
        is_log = x.max() > 5 * x.min() if is_log is None else is_log
        return Places(x, [], bool(is_log and x.min() > 0), kinds == {int})
    name = lambda value: str(value).lower() if kinds == {bool} else settings.plain(value)
    ordered = sorted(set(values)) if kinds <= {int, float} else ()  # with inf at the end
    names = list(map(name, ordered)) or sorted(map(name, set(values)))
    x = np.array([names.index(name(value)) for value in values], np.float64)
    return Places(x, names, False, False)


def is_log(asked: Any) -> bool | None:
    """Whether a field's axis is logarithmic, by what sweep.json says of it; None: by its values."""
    return "log" in asked.split(":")[0] if isinstance(asked, str) else None


def _returns_over(ax: Any, ranked: Sequence[results.Ranked], field: str, linear: bool) -> None:
    """Trials' final returns over one field.

    Whole numbers are marked on the axis; booleans, and what is no number, stand side by side.
    """
    trials = [trial for setting in ranked for trial in setting.trials]
    there = places([trial.setting[field] for trial in trials], False if linear else None)
    x = there.x
    if there.is_log:
        ax.set_xscale("log")
    if there.whole:
        _mark(ax, sorted({int(value) for value in x}))
    if there.names:
        ax.set_xticks(range(len(there.names)), there.names)
    y = np.array([trial.final for trial in trials])
    ax.plot(x, y, "o", color=COLOURS[0], markersize=5, alpha=0.5, markeredgewidth=0)
    distinct = np.unique(x)
    if len(distinct) < len(ranked) or len(distinct) <= 12:  # a line through draws would be noise
        means = [mean_and_error(y[x == value])[0] for value in distinct]
        ax.plot(distinct, means, color=COLOURS[1], linewidth=2, label="mean")
        above = dict(loc="lower right", bbox_to_anchor=(1.0, 1.01), borderaxespad=0.0)
        ax.legend(frameon=False, fontsize="small", **above)
    ax.set_xlabel(field)
    ax.set_ylabel("return at the last point")
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)


def _mark(ax: Any, values: Sequence[int]) -> None:
    """Ticks at whole numbers: at these if they are few, else wherever one is whole."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    if len(values) <= MOST_TICKS:
        ax.set_xticks(values, [f"{value:,}" for value in values])
        ax.xaxis.set_minor_locator(NullLocator())
    elif ax.get_xscale() == "linear":
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _label(setting: results.Ranked) -> str:
    return ", ".join(settings.text_of(setting.setting))


def _columns(ranked: Sequence[results.Ranked]) -> int:
    """Of the legend of the best curves: two where labels are short."""
    return 1 if max(len(_label(setting)) for setting in ranked[:CURVES]) > HALF_WIDE else 2


def _best_curves(ax: Any, ranked: Sequence[results.Ranked]) -> None:
    last, shown = 1, []
    for colour, setting in zip(COLOURS, ranked[:CURVES]):
        points = min(len(trial.returns) for trial in setting.trials)
        returns = np.stack([trial.returns[:points] for trial in setting.trials], 1)
        x = setting.trials[0].timesteps[:points]
        label = _label(setting) or f"{returns.shape[1]} seeds"
        marks: Any = {"marker": "o", "markersize": 4} if len(x) <= 30 else {}
        middle(ax, x, returns, color=colour, label=label, linewidth=1.8, **marks)
        last = max(last, *x)
        shown.append(returns)
    show(ax, shown)
    style(ax, last)
    ax.set_ylabel(f"return, {intervals.middle_name(len(ranked[0].trials))}")
    best = f"the best {CURVES} of {len(ranked)} settings" if len(ranked) > CURVES else ""
    if ax.get_legend_handles_labels()[0]:
        small = dict(fontsize="x-small", title_fontsize="x-small")
        below = dict(loc="upper left", bbox_to_anchor=(0.0, BELOW_AXIS), borderaxespad=0.0)
        ax.legend(frameon=False, title=best, ncols=_columns(ranked), **small, **below)


def middle(
    ax: Any,
    x: np.ndarray,
    returns: np.ndarray,
    seeds: int | None = None,
    resamples: int = 500,
    **style: Any,
) -> None:
    """The middle of returns (points, seeds) in its interval, by `intervals.estimate`, at the points
    where all seeds have a return."""
    there = ~np.isnan(returns).any(1)
    if not there.any():
        return
    found = np.array([intervals.estimate(row, seeds, resamples) for row in returns[there]]).T
    ax.plot(x[there], found[0], **style)
    if returns.shape[1] > 1:
        ax.fill_between(x[there], *found[1:], color=style["color"], alpha=0.15, linewidth=0)


def show(ax: Any, returns: Sequence[np.ndarray]) -> None:
    """Makes the vertical axis as long as all returns; a band that goes beyond them is cut off."""
    known = np.concatenate([np.zeros(0), *(array[np.isfinite(array)] for array in returns)])
    if len(known):
        margin = 0.05 * (known.max() - known.min()) or 0.5
        ax.set_ylim(known.min() - margin, known.max() + margin)


def colours(panels: Sequence[Sequence[str]], order: Sequence[str] = ()) -> dict[str, str]:
    """{label: its colour}. Labels of one panel have different colours, as long as there are any.

    Args:
      panels: the labels in each panel.
      order: in which labels get the first colours; by default that of the alphabet.
    """
    chosen: dict[str, str] = {}
    for label in order or sorted({label for panel in panels for label in panel}):
        beside = {chosen.get(other) for panel in panels if label in panel for other in panel}
        free = [colour for colour in COLOURS if colour not in beside]
        chosen[label] = free[0] if free else COLOURS[len(chosen) % len(COLOURS)]
    return chosen


def _panel(ax: Any, timesteps: np.ndarray, curves: dict, trials: Trials) -> None:
    x = np.asarray(timesteps)[0]
    many = trials.count > 1
    for colour, (player, values) in zip(COLOURS * len(curves), curves.items()):
        mean, error = mean_and_error(values)
        label = f"mean of {trials.in_words}, ±1 standard error" if many else trials.label(0)
        for one in values if many else ():
            _line(ax, x, one, color=colour, linewidth=0.7, alpha=max(0.12, 0.5 - trials.count / 50))
        if many:
            ax.fill_between(x, mean - error, mean + error, color=colour, alpha=0.25, linewidth=0)
        style = {"marker": "o", "markersize": 4} if len(x) <= 30 else {}
        label = f"{player}: {label}" if player else label
        _line(ax, x, mean, color=colour, linewidth=2.0, label=label, **style)
    ax.legend(frameon=False, fontsize="small", loc="best")


def _line(ax: Any, x: np.ndarray, y: np.ndarray, **style: Any) -> None:
    """A line through the points that have a value, also where a neighbour has none."""
    there = ~np.isnan(y)
    ax.plot(x[there], y[there], **style)


def style(ax: Any, last_step: float) -> None:
    """An axis of environment steps, and no more lines than needed."""
    from matplotlib.ticker import EngFormatter

    ax.set_xlabel("environment steps")
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.tick_params(labelleft=True)
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_xlim(-0.02 * last_step, 1.02 * last_step)


def save(figure: Any, path: Path, dpi: int = 130, **how: Any) -> None:
    """Writes a picture in the format of its ending; whatever was there is replaced in one step."""
    path = Path(path)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        figure.savefig(part, format=path.suffix[1:] or "png", dpi=dpi, **how)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


# --- a population: returns, schedules of floats, and who came of whom -------------------------

POPULATIONS = 3  # populations, side by side
GREY, RED = "#999999", COLOURS[1]


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


def population(
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

    rows, shown = ["return", *schedules(metrics)], min(len(seeds), POPULATIONS)
    size = (1.0 + 4.5 * shown, 0.8 + 2.6 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(rows), shown, squeeze=False, sharex=True, sharey="row")
    figure.suptitle(title)
    for column in range(shown):
        one = {name: values[column] for name, values in metrics.items()}
        line = ancestors(one["parent"], int(one["best_member"][-1]))
        for ax, name in zip(axes[:, column], rows):
            _members(ax, one["timestep"], one[f"member_{name}"], one["parent"], line)
            if name in logarithmic:
                ax.set_yscale("log")
        axes[0, column].set_title(f"seed {seeds[column]}")
        axes[-1, column].set_xlabel("environment steps of a member")
    for ax, name in zip(axes[:, 0], rows):
        ax.set_ylabel(name)
    save(figure, path)


def _members(
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
