"""Tables for a paper, in LaTeX (with booktabs), Markdown or CSV, and for the screen.

A line of a table is {column: value}. An `Estimate` is a middle and an interval, which take two
columns, and three of a CSV file. CSV has all digits, the others as many as the numbers need.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.launch.engine import files, intervals, objectives, results
from algorithms.launch.engine.metrics import as_csv
from algorithms.launch.tools import comparison

ENDINGS = (".tex", ".csv", ".md")
ALL = "all environments"
STEPS = ("environment", "curve", "threshold", "share reached", "steps to it")
BOLD = "Bold: the best of an environment, if its interval overlaps with no other one."
SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
SPECIAL |= {"<": "$<$", ">": "$>$", "|": r"\textbar{}", '"': "''"}
SPECIAL |= {letter: f"\\{letter}" for letter in "&%$#_{}"}
SPECIAL["["] = "{[}"  # which a line of a tabular may not begin with

NOTHING = intervals.Estimate(np.nan, np.nan, np.nan)

Line = dict[str, Any]


def ranking(
    panels: dict[str, list[comparison.Pooled]],
    thresholds: Mapping[str, float],
    bounds: comparison.Bounds | None = None,
) -> list[Line]:
    """A line for each curve, and one for each label that is in all of several environments.

    Args:
      thresholds: {environment: a return}, where there are any.
      bounds: as of `comparison.scores`.
    """
    lines = [_line(curve, thresholds) for panel in panels.values() for curve in panel]
    found = comparison.scores(panels, bounds)
    for label, strata in found.strata.items() if len(found.environments) > 1 else ():
        score = comparison.middle_score(strata)
        seeds, last = comparison.counts(strata), set(found.steps[label].split("+"))
        steps = found.steps[label] if len(last) > 1 else int(last.pop().replace(",", ""))
        own = {"environment": ALL, "curve": label, "statistic": "IQM of scores", "return": score}
        lines.append(own | {"seeds": seeds, "of": seeds, "steps": steps})
    empty = {
        name: NOTHING if isinstance(x, intervals.Estimate) else "" for name, x in lines[0].items()
    }
    return [empty | line for line in lines]


def _line(curve: comparison.Pooled, thresholds: Mapping[str, float]) -> Line:
    statistic = intervals.middle_name(curve.seeds).replace("interquartile mean", "IQM")
    own: Line = {"environment": curve.environment, "curve": curve.label, "statistic": statistic}
    own |= {"return": curve.estimate, "seeds": len(curve.finals), "of": curve.seeds}
    own |= {"steps": int(max(curve.timesteps, default=0))}
    if not thresholds:
        return own
    threshold = thresholds.get(curve.environment, np.nan)
    steps, share = steps_to(curve, threshold)
    return own | {"threshold": threshold, "share reached": share, "steps to it": steps}


def steps_to(curve: comparison.Pooled, threshold: float) -> tuple[intervals.Estimate, float]:
    """Steps until the return first reaches a threshold, of the seeds that do, and their share."""
    steps = np.array([objectives.steps_to(trial.outcome, threshold) for trial in curve.trials])
    there = steps[np.isfinite(steps)]
    found = intervals.estimate(there, curve.seeds)
    if len(there) < 2:  # a bootstrap of one seed has an interval of no width
        found = found._replace(low=np.nan, high=np.nan)
    return found, np.nan if np.isnan(threshold) else len(there) / curve.seeds


def improvements(found: comparison.Scores) -> list[Line]:
    """A line for each pair of labels: the probability that the first is better."""
    labels = list(found.strata)
    probability = lambda *pair: comparison.improvement(*(found.strata[label] for label in pair))
    return [
        {"curve": one, "better than": other, "probability": probability(one, other)}
        for i, one in enumerate(labels)
        for other in labels[i + 1 :]
    ]


# --- as text ---------------------------------------------------------------------------------


def write(path: Path, lines: Sequence[Line], note: str, ranked: bool = False) -> None:
    """Writes a new file in the format of its ending.

    Args:
      note: a sentence on what the numbers are.
      ranked: the best of each environment is bold.
    """
    if path.suffix == ".csv":
        text = as_csv([_columns(lines[0], "{} low", "{} high"), *map(_numbers, lines)])
    else:
        note = f"{note} {BOLD}" if ranked else note
        shown = _shown(lines)
        form = _latex if path.suffix == ".tex" else _markdown
        text = form(shown, _winners(shown) if ranked else [], note)
    files.write_whole(path, text.encode())


def on_screen(lines: Sequence[Line]) -> str:
    """The same as aligned columns."""
    shown = _shown(lines)
    return "\n".join(results.aligned([_columns(shown[0], "95 %"), *_cells(shown)]))


def best(found: Sequence[intervals.Estimate]) -> int | None:
    """Which of some estimates is the highest, if its interval lies above all others; one without an
    interval overlaps with all. A strict rule: means with overlapping intervals may differ, too."""
    known = [i for i, one in enumerate(found) if np.isfinite(one.middle)]
    if len(known) < 2:
        return None
    first, *others = sorted(known, key=lambda i: -found[i].middle)
    return first if all(found[first].low > found[other].high for other in others) else None


def _columns(line: Line, *ends: str) -> list[str]:
    """The head of a table; `ends` are the columns of an interval."""
    pairs = [(name, ends if isinstance(x, intervals.Estimate) else ()) for name, x in line.items()]
    return [word for name, more in pairs for word in (name, *(end.format(name) for end in more))]


def _numbers(line: Line) -> list[Any]:
    """All digits of a line."""
    return [x for v in line.values() for x in (v if isinstance(v, intervals.Estimate) else [v])]


def _shown(lines: Sequence[Line]) -> list[Line]:
    """The columns that people need: none that says the same in all lines, or what another says."""
    single = {line.get("statistic") for line in lines if line.get("environment") != ALL}
    drop = {"statistic"} if len(single) == 1 else set()
    drop |= {"environment"} if len({line.get("environment") for line in lines}) == 1 else set()
    drop |= {"of"} if all(line.get("of") == line.get("seeds") for line in lines) else set()
    names = {"return": single.pop()} if "statistic" in drop else {}
    shown = [{names.get(n) or n: x for n, x in line.items() if n not in drop} for line in lines]
    score = {"environment": f"{ALL}, IQM of scores"}
    return [line | (score if line.get("environment") == ALL else {}) for line in shown]


def _cells(lines: Sequence[Line], form: str = "{} to {}") -> list[list[str]]:
    """Text of lines, whose numbers have as many decimals as those of their environment need."""
    rows = []
    for those in results.grouped(lines, lambda line: line.get("environment")).values():
        places = {name: _places([line[name] for line in those]) for name in those[0]}
        for line in those:
            words = [_in_words(x, places[name], form) for name, x in line.items()]
            rows.append([word for each in words for word in each])
    return rows


def _places(values: Sequence[Any]) -> int:
    known = [abs(x.middle) for x in values if isinstance(x, intervals.Estimate)]
    largest = np.nanmax([*known, 0.0])
    return 3 if largest <= 1.5 else 2 if largest < 100 else 1 if largest < 1000 else 0


def _in_words(value: Any, places: int, form: str) -> list[str]:
    if isinstance(value, intervals.Estimate):
        middle, *ends = (f"{x:,.{places}f}" if np.isfinite(x) else "-" for x in value)
        return [middle, "-" if "-" in ends else form.format(*ends)]
    if isinstance(value, float):
        return ["-" if np.isnan(value) else f"{value:g}"]
    return [f"{value:,}" if isinstance(value, int) else str(value)]


def _first(lines: Sequence[Line]) -> int:
    """The number of the first column with an estimate."""
    return next(i for i, x in enumerate(lines[0].values()) if isinstance(x, intervals.Estimate))


def _winners(lines: Sequence[Line]) -> list[int]:
    """The numbers of the lines whose first estimate is the best of their environment."""
    found = [list(line.values())[_first(lines)] for line in lines]
    groups = results.grouped(range(len(lines)), lambda i: lines[i].get("environment")).values()
    won = [(those, best([found[i] for i in those])) for those in groups]
    return [those[i] for those, i in won if i is not None]


def _latex(lines: Sequence[Line], bold: Sequence[int], note: str) -> str:
    """A tabular; environments stand above their lines."""
    head, first, titled = _columns(lines[0], "95 %"), _first(lines), "environment" in lines[0]
    row = lambda cells: f"  {' & '.join(cells[titled:])} \\\\"
    sides = "".join("l" if i < first or "%" in name else "r" for i, name in enumerate(head))
    text = [r"% needs \usepackage{booktabs}", f"% {note}"]
    text += [rf"\begin{{tabular}}{{{sides[titled:]}}}", r"  \toprule"]
    text += [row([_escaped(name).replace(r" \%", r"\,\%") for name in head]), *[r"  \midrule"]]
    above = ""
    for number, cells in enumerate(_cells(lines, "[{}, {}]")):
        if titled and cells[0] != above:
            title = rf"\multicolumn{{{len(head) - 1}}}{{l}}{{\textit{{{_escaped(cells[0])}}}}} \\"
            text += [*[r"  \midrule"] * bool(above), f"  {title}"]
            above = cells[0]
        marked = [_escaped(x) if i < first else _minus(x) for i, x in enumerate(cells)]
        if number in bold:
            marked[first] = rf"$\mathbf{{{cells[first]}}}$".replace(",", "{,}")
        text.append(row(marked))
    return "\n".join([*text, r"  \bottomrule", r"\end{tabular}", ""])


def _escaped(words: str) -> str:
    return "".join(SPECIAL.get(letter, letter) for letter in words)


def _minus(words: str) -> str:
    """Numbers with the minus of formulas, which is longer than a hyphen."""
    return re.sub(r"(^|\[| )-(\d[\d,.]*\b)", r"\1$-\2$", words)


def _markdown(lines: Sequence[Line], bold: Sequence[int], note: str) -> str:
    head, first, rows = _columns(lines[0], "95 %"), _first(lines), _cells(lines, "[{}, {}]")
    rows = [[re.sub(r"([\\|*_`<])", r"\\\1", cell) for cell in cells] for cells in rows]
    for number in bold:
        rows[number][first] = f"**{rows[number][first]}**"
    table = [head, ["---"] * len(head), *rows]
    return "\n".join([*(f"| {' | '.join(cells)} |" for cells in table), "", note, ""])
