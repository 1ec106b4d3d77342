"""Scores over one setting, over two, and over all of them."""

from itertools import combinations

import numpy as np

from algorithms.launch.tools.report.importance import UNCLEAR, Importance
from algorithms.launch.tools.report.study import (
    LEVELS,
    Axis,
    Study,
    level_means,
    score,
    value_text,
)
from algorithms.launch.tools.report.svg import (
    Frame,
    Scale,
    colour_bar,
    colour_steps,
    cross,
    dot,
    figure,
    number,
    percent,
    picture,
    scores_scale,
    short,
    shortened,
    text,
)

DOTS = 2000  # trials in a picture
LINES = 120  # settings in the picture of all settings
PAIRED = 4  # fields whose pairs are drawn, the most important ones
MOST = 100  # settings that one cell of a table names
EDGE = 0.15  # of an axis
LANE = 66  # pixels between two axes of the parallel ones, at least
BELOW = 20  # an axis, without lines, for the labels of its ticks
NAME = 18  # letters of an axis's name beside it


def over_one(study: Study, axis: Axis, found: Importance) -> str:
    """Every trial's final return over a field, and the means of the levels."""
    finals = np.array([score(t, study.step) for s in study.settings for t in s.trials])
    if not np.isfinite(finals).any():
        return ""
    frame = Frame(axis.scale, scores_scale(finals))
    parts = [frame.axes(axis.name, f"return{study.at_step}"), *_dots(study, axis, frame)]
    means = level_means(study, axis)
    there = np.isfinite(means)
    at = np.array([_middle(axis, level.which) for level in axis.levels])
    if axis.is_number:
        parts.append(f'<path class="line mean" d="{frame.line(at[there], means[there])}"/>')
    else:
        for x, y in zip(frame.across(at[there]), frame.down(means[there])):
            parts.append(f'<path class="line mean" d="M{short(x - 12)} {short(y)}h24"/>')
    says = _says_one(study, axis, means, found)
    hidden = int((finals < frame.y.low).sum())
    if hidden:
        says += f" Trials below the axis, at its lower edge: {hidden}."
    return figure(f"Return over {axis.name}", picture(parts, says), says)


def _middle(axis: Axis, which: np.ndarray) -> float:
    x = axis.x[which]
    return float(np.exp(np.log(x).mean()) if axis.scale.is_log else x.mean())


def _dots(study: Study, axis: Axis, frame: Frame) -> list[str]:
    there = [(i, t) for i in study.drawn() for t in range(len(study.settings[i].trials))]
    there = there[:: -(-len(there) // DOTS)]
    parts = []
    for i, t in reversed(there):
        final = score(study.settings[i].trials[t], study.step)
        x = float(frame.across(axis.x[i]))
        if axis.scale.names:  # side by side, the better settings to the right
            room = 0.5 * (frame.width - frame.left - frame.right) / len(axis.scale.names)
            x += room * (0.5 - i / max(1, len(study.settings) - 1))
        elif len(axis.levels) == len(np.unique(axis.x)):  # seeds of one value, side by side
            seeds = len(study.settings[i].trials)
            x += min(3.0, 16 / seeds) * (t - (seeds - 1) / 2)
        if np.isfinite(final):
            parts.append(dot(x, float(frame.down(final)), "dot", study.first + i, t))
        else:
            parts.append(cross(x, frame.height - frame.bottom - 5, study.first + i, t))
    return parts


def edge(study: Study, axis: Axis) -> str:
    """Whether the best settings lie at an end of a numeric axis: "low", "high" or empty.

    Empty if the field cannot have values beyond that end.
    """
    means = level_means(study, axis)
    best = study.best
    if not axis.is_number or len(axis.levels) < 3 or not np.isfinite(means).any() or not len(best):
        return ""
    if np.nanmax(means) - np.nanmin(means) <= 0 or len(best) > len(study.settings) / 2:
        return ""
    at = float(np.median(axis.scale.at(axis.x[best])))
    top = int(np.nanargmax(means))
    if top == 0 and at <= EDGE and axis.scale.low > axis.limits[0]:
        return "low"
    is_high = top == len(means) - 1 and at >= 1 - EDGE and axis.scale.high < axis.limits[1]
    return "high" if is_high else ""


def _says_one(study: Study, axis: Axis, means: np.ndarray, found: Importance) -> str:
    share = found.shares.get(axis.name)
    says = f"{axis.name} explains {percent(share)} of the variance; " if share is not None else ""
    if not np.isfinite(means).any():
        return f"No value of {axis.name} gave a score."
    top, low = int(np.nanargmax(means)), int(np.nanargmin(means))
    if means[top] - means[low] <= 0:
        return f"Every value of {axis.name} scores {number(means[top])} on average."
    best, worst = axis.levels[top], axis.levels[low]
    if share is not None and share < UNCLEAR:
        return (
            f"{says}its means lie between {number(means[low])} ({worst.text}) and "
            f"{number(means[top])} ({best.text}), which is no clear difference."
        )
    won = value_text(study.settings[0].setting[axis.name])
    says += (
        f"the mean return is highest at {best.text}, {number(means[top])}, and lowest at "
        f"{worst.text}, {number(means[low])}. The setting that won has {won}."
    )
    where = edge(study, axis)
    if where:
        word = "lower" if where == "low" else "upper"
        says += f" The best settings lie at the {word} end: values beyond it may be better."
    return says if share is not None else says[0].upper() + says[1:]


def over_two(study: Study, found: Importance) -> list[str]:
    """A picture for each pair of the most important numeric fields."""
    if study.has_score.sum() < 3:
        return []
    order = list(found.shares) or list(study.axes)
    axes = [study.axes[name] for name in order if study.axes[name].is_number][:PAIRED]
    pairs = list(combinations(axes, 2))
    matters = lambda pair: max(found.shares.get(axis.name, 1.0) for axis in pair) >= UNCLEAR
    return [_pair(study, *pair) for pair in ([*filter(matters, pairs)] or pairs[:1])]


def _pair(study: Study, a: Axis, b: Axis) -> str:
    is_table = max(len(np.unique(a.x)), len(np.unique(b.x))) <= LEVELS
    parts, says = _cells(study, a, b) if is_table else _cloud(study, a, b)
    drawn = picture(parts, says) + colour_bar(study.scores)
    return figure(f"{a.name} and {b.name}", drawn, says)


def _cells(study: Study, a: Axis, b: Axis) -> tuple[list[str], str]:
    """A table of mean scores, for listed values."""
    columns, rows = np.unique(a.x), np.unique(b.x)
    digits = 3 if len(columns) <= 5 else 2
    across = Scale(0, 1, names=tuple(number(x, digits) for x in columns))
    frame = Frame(across, Scale(0, 1, names=tuple(number(y, 3) for y in rows)))
    width = (frame.width - frame.left - frame.right) / len(columns)
    height = (frame.height - frame.top - frame.bottom) / len(rows)
    cells = {}
    for i, x in enumerate(columns):
        for j, y in enumerate(rows):
            which = np.flatnonzero((a.x == x) & (b.x == y) & study.has_score)
            if len(which):
                cells[i, j] = (float(study.scores[which].mean()), which)
    means = np.array([mean for mean, _ in cells.values()])
    steps = colour_steps(np.concatenate([study.scores, means]))[len(study.scores) :]
    parts = [frame.axes(a.name, b.name)]
    for ((i, j), (mean, which)), step in zip(cells.items(), steps):
        x, y = float(frame.across(i)), float(frame.down(j))
        those = " ".join(str(study.first + place) for place in which[:MOST])
        parts.append(
            f'<rect class="s{step}" x="{short(x - width / 2 + 1)}" '
            f'y="{short(y - height / 2 + 1)}" width="{short(width - 2)}" '
            f'height="{short(height - 2)}" data-s="{those}"/>'
        )
        parts.append(text(short(x), short(y + 4), number(mean), kind="value"))
    return parts, _says_cells(a, b, {(columns[i], rows[j]): cells[i, j][0] for i, j in cells})


def _says_cells(a: Axis, b: Axis, means: dict[tuple[float, float], float]) -> str:
    name = lambda x, y: f"{a.name}={number(x, 3)} with {b.name}={number(y, 3)}"
    ordered = sorted(means, key=lambda pair: -means[pair])
    best, worst = ordered[0], ordered[-1]
    ties = sum(mean == means[best] for mean in means.values())
    if ties == len(means):
        return f"All {ties} pairs score {number(means[best])}."
    says = f"The best pair is {name(*best)}, mean {number(means[best])}"
    if ties > 1:
        says = f"{ties} of {len(means)} pairs share the best mean, {number(means[best])}"
    return f"{says}; the worst is {name(*worst)}, {number(means[worst])}."


def _cloud(study: Study, a: Axis, b: Axis) -> tuple[list[str], str]:
    """A dot for each setting."""
    frame = Frame(a.scale, b.scale)
    steps = colour_steps(study.scores)
    parts = [frame.axes(a.name, b.name)]
    for i in reversed(study.drawn()):
        x, y = float(frame.across(a.x[i])), float(frame.down(b.x[i]))
        if steps[i] < 0:
            parts.append(cross(x, y, study.first + i, 0))
        else:
            parts.append(dot(x, y, f"cloud s{steps[i]}", study.first + i, r=6))
    best = study.best
    within = np.ones(len(study.settings), bool)
    for axis in (a, b):
        within &= (axis.x >= axis.x[best].min()) & (axis.x <= axis.x[best].max())
    spans = [f"{axis.name} {axis.level(best).text}" for axis in (a, b)]
    inside = within & study.has_score
    outside = ~within & study.has_score
    says = f"The best {len(best)} settings have {spans[0]} and {spans[1]}"
    if outside.any():
        says += (
            f": the {inside.sum()} settings there score {number(study.scores[inside].mean())} on "
            f"average, the {outside.sum()} others {number(study.scores[outside].mean())}"
        )
    return parts, f"{says}."


def over_all(study: Study) -> str:
    """Every setting as a line through all its values, in the colour of its score."""
    if not study.axes or study.has_score.sum() < 2:
        return ""
    axes = list(study.axes.values())
    named = [(axis.name, axis.scale) for axis in axes]
    named.append((f"mean return{study.at_step}", scores_scale(study.scores)))
    names = [shortened(name, NAME) for name, _ in named]
    left, right, width = 14 + 7 * max(map(len, names)), 16, 400
    lanes = [10 + max(LANE, 230 // len(axes)) * i for i in range(len(axes) + 1)]
    along = lambda at: left + np.asarray(at) * (width - left - right)
    parts = []
    columns = [along(_apart(study, axis)) for axis in axes]
    columns.append(along(named[-1][1].at(study.scores)))
    steps = colour_steps(study.scores)
    for i in reversed(study.drawn(LINES)):
        if steps[i] >= 0:
            at = [short(column[i]) for column in columns]
            d = "".join(
                f"M{at[j]} {lanes[j] + BELOW}L{at[j + 1]} {lanes[j + 1]}" for j in range(len(axes))
            )
            parts.append(f'<path class="lane s{steps[i]}" d="{d}" data-s="{study.first + i}"/>')
    for name, (_, its_scale), y in zip(names, named, lanes):
        parts.append(f'<path class="axis" d="M{left} {y}H{width - right}"/>')
        parts.append(text(left - 8, y + 4, name, "end", kind="label"))
        for value, label in its_scale.ticks(4):
            x = short(along(its_scale.at(value)))
            parts.append(f'<path class="axis" d="M{x} {y}v4"/>')
            parts.append(text(x, y + 16, label))
    says = _says_all(study)
    drawn = picture(parts, says, height=lanes[-1] + 24)
    return figure("All settings", drawn + colour_bar(study.scores), says)


def _apart(study: Study, axis: Axis) -> np.ndarray:
    """Places on an axis; the settings of one category stand side by side."""
    at = axis.scale.at(axis.x)
    if not axis.scale.names:
        return at
    order = np.linspace(0.3, -0.3, len(study.settings)) if len(study.settings) > 1 else 0.0
    return at + order / len(axis.scale.names)


def _says_all(study: Study) -> str:
    """What the best settings have in common, and where they differ."""
    best, same, spread = study.best, [], []
    for name, axis in study.axes.items():
        level = axis.level(best)
        if level.low == level.high:
            same.append(f"{name}={level.text}")
        elif axis.is_number:
            at = axis.scale.at(axis.x)
            spread.append((np.ptp(at[best]) / np.ptp(at), name, level.text))
    who = f"The best {len(best)} settings"
    if len(best) == study.sound.sum():
        return _says_few(study)
    if same:
        says = f"{who} all have {' and '.join(same)}"
        return says + (f"; {min(spread)[1]} is {min(spread)[2]} there." if spread else ".")
    if not spread:
        return f"{who} share no value."
    part, name, words = min(spread)
    if part > 0.9:
        return f"{who} spread over the whole range of every field: none needs a certain value."
    return (
        f"{who} agree most in {name}: {words}, {percent(float(part))} of the width that was tried."
    )


def _says_few(study: Study) -> str:
    """Of settings that are too few, or too equal, to have a best tenth."""
    ordered = sorted(np.flatnonzero(study.sound).tolist(), key=lambda i: -study.scores[i])
    first, last = ordered[0], ordered[-1]
    words = study.text
    if len(ordered) == 1:
        return f"Only {words(first)} has no broken trial; it scores {number(study.scores[first])}."
    if study.scores[first] == study.scores[last]:
        return f"All {study.sound.sum()} settings score {number(study.scores[first])}."
    return (
        f"From {words(last)} (the worst, {number(study.scores[last])}) to {words(first)} (the "
        f"best, {number(study.scores[first])})."
    )
