"""Tables for a paper, in LaTeX (with booktabs), Markdown or CSV: what seeds have come to, steps to
a return, and probabilities of improvement.

CSV has all digits. The others have as many as the returns of an environment need.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.engine import files, objectives, results
from algorithms.launch.engine.metrics import as_csv
from algorithms.launch.tools import comparison

ENDINGS = (".tex", ".csv", ".md")
ALL = "all environments"  # the group of scores
BOLD = "bold: the best of an environment, if its interval overlaps with no other one"


class Row(NamedTuple):
    """What a curve's seeds have come to."""

    group: str  # the environment
    label: str
    statistic: str  # what the middle is
    found: results.Estimate
    seeds: str  # that have a return; 10+10 in several environments
    steps: str
    of: int = 0  # seeds, with those that broke
    threshold: float = np.nan
    reached: int = 0  # seeds that got there
    to: results.Estimate | None = None  # steps until then, of those seeds

    @property
    def counted(self) -> str:
        """Seeds, and of how many if some broke."""
        return (
            f"{self.seeds} of {self.of}" if self.of and self.seeds != str(self.of) else self.seeds
        )

    @property
    def share(self) -> str:
        """Of the seeds that got there."""
        return f"{self.reached}/{self.of}" if self.to else ""


def ranking(
    panels: dict[str, list[comparison.Pooled]],
    thresholds: Mapping[str, float],
    bounds: comparison.Bounds | None = None,
) -> list[Row]:
    """A row for each curve, and one for each label that is in all of several environments.

    Args:
      thresholds: {environment: a return}, where there are any.
      bounds: as of `comparison.scores`.
    """
    rows = [
        _row(curve, thresholds.get(environment, np.nan))
        for environment, panel in panels.items()
        for curve in panel
    ]
    found = comparison.scores(panels, bounds)
    for label, strata in found.strata.items() if len(found.environments) > 1 else ():
        middle = float(results.interquartile_mean(np.concatenate(strata)))
        known = sum(map(len, strata)) > 1
        ends = results.bootstrap_interval(strata) if known else (np.nan, np.nan)
        steps = "+".join(dict.fromkeys(found.steps[label].split("+")))
        own = comparison.counts(strata), steps
        rows.append(Row(ALL, label, "IQM of scores", results.Estimate(middle, *ends), *own))
    return rows


def _row(curve: comparison.Pooled, threshold: float) -> Row:
    name = results.middle_name(curve.seeds).replace("interquartile mean", "IQM")
    steps = f"{curve.timesteps[-1]:,}" if len(curve.timesteps) else ""
    own = str(len(curve.finals)), steps, curve.seeds
    row = Row(curve.environment, curve.label, name, curve.estimate, *own)
    if np.isnan(threshold):
        return row
    to, reached = steps_to(curve, threshold)
    return row._replace(threshold=threshold, to=to, reached=reached)


def steps_to(curve: comparison.Pooled, threshold: float) -> tuple[results.Estimate, int]:
    """Steps until the return first reaches a threshold, of the seeds that do, and their number."""
    steps = np.array([objectives.steps_to(trial.outcome, threshold) for trial in curve.trials])
    there = steps[np.isfinite(steps)]
    found = results.estimate(there, curve.seeds)
    if len(there) < 2:  # a bootstrap of one seed has an interval of no width
        found = found._replace(low=np.nan, high=np.nan)
    return found, len(there)


def improvements(found: comparison.Scores) -> list[tuple[str, str, results.Estimate]]:
    """Pairs of labels, and the probability that the first is better."""
    labels = list(found.strata)
    return [
        (one, other, comparison.improvement(found.strata[one], found.strata[other]))
        for i, one in enumerate(labels)
        for other in labels[i + 1 :]
    ]


# --- as text ---------------------------------------------------------------------------------


def write_ranking(path: Path, rows: Sequence[Row], note: str) -> None:
    """Writes a new file in the format of its ending.

    Args:
      note: a line that says what the numbers are.
    """
    if path.suffix == ".csv":
        return _write(path, as_csv(_numbers(rows)))
    names = list(dict.fromkeys(row.statistic for row in rows if row.group != ALL))
    to = any(row.to for row in rows)
    limits = {row.threshold for row in rows if row.to}
    limit = f"{limits.pop():g}" if len(limits) == 1 else "threshold"
    head = ["curve", " or ".join(names), "95 %", "seeds", "steps"]
    head += [f"steps to {limit}", "95 %", "reached"] * to
    groups = results.grouped(rows, lambda row: row.group)
    style = _LATEX if path.suffix == ".tex" else _MARKDOWN
    cells = {_title(those, limit): _cells(those, style, to) for those in groups.values()}
    text = style.table(head, cells if len(cells) > 1 else {"": next(iter(cells.values()))})
    _write(path, style.noted(f"{note} {BOLD}", text))


def write_improvements(
    path: Path, pairs: Sequence[tuple[str, str, results.Estimate]], note: str
) -> None:
    """Writes a new file in the format of its ending; arguments as above."""
    if path.suffix == ".csv":
        return _write(
            path, as_csv([["curve", "other", "probability", "low", "high"], *_flat(pairs)])
        )
    style = _LATEX if path.suffix == ".tex" else _MARKDOWN
    cells = [[style.text(a), style.text(b), *_in_words(found, 2)] for a, b, found in pairs]
    text = style.table(["curve", "other", "P(curve > other)", "95 %"], {"": cells})
    _write(path, style.noted(note, text))


def improvement_text(pairs: Sequence[tuple[str, str, results.Estimate]]) -> str:
    """The same for the screen."""
    rows = [[a, b, *_in_words(found, 4, "-", "{} to {}")] for a, b, found in pairs]
    return "\n".join(results.aligned([["curve", "other", "P(curve > other)", "95 %"], *rows]))


def steps_text(rows: Sequence[Row]) -> str:
    """Steps to thresholds for the screen."""
    lines = [["curve", "threshold", "reached", "steps", "95 %"]]
    several = len({row.group for row in rows}) > 1
    for group, those in results.grouped((r for r in rows if r.to), lambda r: r.group).items():
        lines += [[f"{group}:", *[""] * 4]] * several
        for row in those:
            own = f"{row.threshold:g}", row.share, *_in_words(row.to, 0, "-", "{} to {}")
            lines.append([f"{'  ' * several}{row.label}", *own])
    return "\n".join(results.aligned(lines))


def _flat(pairs: Sequence[tuple[str, str, results.Estimate]]) -> list[list[Any]]:
    return [[one, other, *found] for one, other, found in pairs]


def _numbers(rows: Sequence[Row]) -> list[list[Any]]:
    """A head, and rows with all digits."""
    head = ["environment", "curve", "statistic", "middle", "low", "high", "seeds", "of", "steps"]
    more = ["threshold", "share_reached", "steps_to", "steps_to_low", "steps_to_high"]
    to = any(row.to for row in rows)
    lines: list[list[Any]] = [head + more * to]
    for row in rows:
        own = [row.group, row.label, row.statistic, *row.found, row.seeds, row.of or row.seeds]
        own.append(row.steps.replace(",", ""))
        share = row.reached / row.of if row.to else np.nan
        lines.append(own + [row.threshold, share, *(row.to or [np.nan] * 3)] * to)
    return lines


def _title(rows: Sequence[Row], limit: str) -> str:
    """Of a group; it has its threshold where environments have different ones."""
    row = rows[0]
    if row.group == ALL:
        return f"{ALL}, {row.statistic}"
    own = f" (threshold {row.threshold:g})" * bool(limit == "threshold" and row.to)
    return f"{row.group}{own}"


def _cells(rows: Sequence[Row], style: Any, to: bool) -> list[list[str]]:
    places, winner, lines = _places(rows), best(rows), []
    for row in rows:
        middle, ends = _in_words(row.found, places)
        middle = style.bold(middle) if row is winner else style.number(middle)
        line = [style.text(row.label), middle, style.number(ends), row.counted, row.steps]
        line += [*_in_words(row.to, 0), row.share] if row.to else ["", "", ""] * to
        lines.append(line)
    return lines


def best(rows: Sequence[Row]) -> Row | None:
    """The row of the highest middle, if its interval lies above all others; a row without an
    interval overlaps with all. Such intervals differ surely; others may differ, too."""
    known = [row for row in rows if np.isfinite(row.found.middle)]
    if len(known) < 2:
        return None
    first, *others = sorted(known, key=lambda row: -row.found.middle)
    return first if all(first.found.low > row.found.high for row in others) else None


def _places(rows: Sequence[Row]) -> int:
    """Decimals of an environment's numbers."""
    largest = np.nanmax([abs(row.found.middle) for row in rows] + [0.0])
    return 3 if largest <= 1.5 else 2 if largest < 100 else 1


def _in_words(
    found: results.Estimate, places: int, unknown: str = "", form: str = "[{}, {}]"
) -> list[str]:
    """A middle and its interval."""
    middle, low, high = (f"{x:,.{places}f}" if np.isfinite(x) else unknown for x in found)
    return [middle, form.format(low, high) if np.isfinite(found.low) else unknown]


def _write(path: Path, text: str) -> None:
    files.write_whole(path, text.encode())


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {"<": "$<$", ">": "$>$", "|": r"\textbar{}", '"': "''"}
_SPECIAL |= {letter: f"\\{letter}" for letter in "&%$#_{}"}
_SPECIAL["["] = "{[}"  # which a line may not begin with


class _LATEX:
    """A tabular with booktabs."""

    @staticmethod
    def text(words: str) -> str:
        return "".join(_SPECIAL.get(letter, letter) for letter in words)

    @staticmethod
    def number(words: str) -> str:
        return re.sub(r"(^|[ \[])-(\d[\d,.]*\b)", r"\1$-\2$", words)  # a hyphen is no minus

    @staticmethod
    def bold(words: str) -> str:
        return rf"$\mathbf{{{words}}}$".replace(",", "{,}")

    @classmethod
    def table(cls, head: Sequence[str], groups: Mapping[str, Sequence[Sequence[str]]]) -> str:
        line = lambda cells: f"  {' & '.join(cells)} \\\\"
        columns = "l" + "".join("l" if name in ("95 %", "other") else "r" for name in head[1:])
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"  \toprule"]
        lines.append(line([cls.text(name).replace(" \\%", r"\,\%") for name in head]))
        for title, rows in groups.items():
            lines.append(r"  \midrule")
            words = cls.number(cls.text(title))
            wide = rf"  \multicolumn{{{len(head)}}}{{l}}{{\textit{{{words}}}}} \\"
            lines += [wide] * bool(title) + [line(row) for row in rows]
        return "\n".join([*lines, r"  \bottomrule", r"\end{tabular}"])

    @staticmethod
    def noted(note: str, text: str) -> str:
        return f"% needs \\usepackage{{booktabs}}\n% {note}\n{text}\n"


class _MARKDOWN:
    """A table with pipes."""

    number = staticmethod(lambda words: words)
    bold = staticmethod(lambda words: f"**{words}**")
    text = staticmethod(lambda words: re.sub(r"([\\|*_`<])", r"\\\1", words))

    @staticmethod
    def table(head: Sequence[str], groups: Mapping[str, Sequence[Sequence[str]]]) -> str:
        several = len(groups) > 1
        head = ["environment"] * several + [*head]
        lines = [head, ["---"] * len(head)]
        for title, rows in groups.items():
            lines += [[title] * several + [*row] for row in rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    @staticmethod
    def noted(note: str, text: str) -> str:
        return f"{text}\n\n{note}\n"
