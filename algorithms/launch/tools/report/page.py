"""report.html of a sweep: one file that opens offline, with all pictures in it."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any

from algorithms.launch.engine import objectives, results
from algorithms.launch.engine.experiment import as_file_name
from algorithms.launch.engine.results import Ranked, Retested
from algorithms.launch.engine.settings import text_of
from algorithms.launch.tools.report import curves, landscapes, study, table
from algorithms.launch.tools.report.answers import answers
from algorithms.launch.tools.report.chance import expected_best
from algorithms.launch.tools.report.importance import bars, importance
from algorithms.launch.tools.report.study import Study
from algorithms.launch.tools.report.svg import number

HERE = Path(__file__).parent
HOVER = (
    "Point at a dot, a line or a row: it names its setting, seeds and run directories, and the "
    "setting lights up everywhere. A click keeps it."
)
MOST_FIELDS = 12  # pictures of one field each, the most important ones


def page(
    ranked: Sequence[Ranked],
    title: str,
    sweep_dir: Path | str = ".",
    grid: Mapping[str, Any] = MappingProxyType({}),
    retested: Sequence[Retested] = (),
    objective: str = objectives.DEFAULT,
    limits: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    suffix: str = "",
) -> str:
    """The page as text. It compares final returns, and says so where the sweep has another
    objective.

    Args:
      ranked: the settings, the best one of each environment first.
      title: of the page.
      sweep_dir: that commands on the page name.
      grid: what sweep.json says of it, {field: values or "log:LOW:HIGH"}.
      retested: settings on other seeds, the best one first.
      objective: that the order of `ranked` is by.
      limits: the lowest and the highest value that a field may be.
      suffix: of the names of the sweep's files, of another ranking than the sweep's own.
    """
    note = ""
    if objective != objectives.DEFAULT:
        firsts = [those[0] for those in results.by_environment(ranked).values()]
        names = "; ".join(", ".join(text_of(one.setting)) for one in firsts)
        note = f"The ranking is by {objective}: {names} is first. "
        note += "This page compares final returns."
        ranked = results.rank([trial for setting in ranked for trial in setting.trials])
        retested = sorted(retested, key=lambda one: -one.again.mean)
    found = study.studies(ranked, grid, limits)
    body = [_head(found, title, note)]
    for one in found:
        again = [other for other in retested if other.again.environment == one.environment]
        name = f"best-{as_file_name(one.environment)}" if len(found) > 1 else "best"
        best_json = str(Path(sweep_dir) / f"{name}{suffix}.json")
        best_json = "" if note else best_json  # of another order
        body.append(_section(one, best_json, len(found) > 1, again))
    data = json.dumps([entry for one in found for entry in _entries(one)], separators=(",", ":"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{(HERE / 'page.css').read_text()}</style></head>"
        f'<body><main>{"".join(body)}</main><div id="tip" role="status" hidden></div>'
        f'<script type="application/json" id="settings">{_inert(data)}</script>'
        f"<script>{(HERE / 'page.js').read_text()}</script></body></html>\n"
    )


def _inert(data: str) -> str:
    """JSON that cannot end the element it stands in."""
    return data.replace("<", "\\u003c")


def _head(found: list[Study], title: str, note: str = "") -> str:
    settings = [setting for one in found for setting in one.settings]
    trials = sum(len(setting.trials) for setting in settings)
    seeds = max(len(setting.trials) for setting in settings)
    steps = max(setting.steps for setting in settings)
    broken = sum(setting.broken for setting in settings)
    facts = [
        f"{len(settings)} settings" if len(settings) > 1 else "1 setting",
        f"{seeds} seeds each" if seeds > 1 else "1 seed each",
        f"{trials} trials",
        f"{number(steps)} steps",
    ]
    facts += [f"{broken} trials not finite"] * bool(broken)
    links = "".join(
        f"<a href='#{escape(_anchor(one))}'>{escape(one.environment)}</a> " for one in found
    )
    menu = f"<nav>{links}</nav>" if len(found) > 1 else ""
    said = f"<p>{escape(note)}</p>" if note else ""
    return f"<header><h1>{escape(title)}</h1><p>{', '.join(facts)}</p>{said}{menu}</header>"


def _anchor(one: Study) -> str:
    return f"env-{as_file_name(one.environment)}"


def _section(one: Study, best_json: str, several: bool, again: Sequence[Retested]) -> str:
    found = importance(one)
    parts = [f"<h2>{escape(one.environment)}</h2>"] * several
    parts.append(answers(one, found, best_json, again))
    parts.append(f"<h2>Ranking</h2>{table.ranking(one)}")
    if again:
        parts.append(f"<h2>Retest on fresh seeds</h2>{table.retest(one, again)}")
    names = [*found.shares, *(name for name in one.axes if name not in found.shares)]
    stack = bars(one, found) + expected_best(one)
    pictures = [
        curves.learning(one),
        f'<div class="stack">{stack}</div>' if stack else "",
        *(landscapes.over_one(one, one.axes[name], found) for name in names[:MOST_FIELDS]),
        landscapes.over_all(one),
        *landscapes.over_two(one, found),
    ]
    if any(pictures):
        note = f'<p class="note">{escape(HOVER + _left_out(one, names))}</p>'
        parts.append(f'<h2>Pictures</h2>{note}<div class="pictures">{"".join(pictures)}</div>')
    return f'<section id="{escape(_anchor(one))}">{"".join(parts)}</section>'


def _left_out(one: Study, names: Sequence[str]) -> str:
    says = []
    if one.step is not None:
        says.append(
            "Halving or a stop ended some settings early: dots, colours and importance compare all "
            f"of them at step {number(one.step)}."
        )
    if len(one.drawn()) < len(one.settings):
        says.append(
            f"Pictures show at most {study.DRAWN} of the {len(one.settings)} settings: the best "
            "and an even choice of the others. All numbers are of all settings."
        )
    if len(names) > MOST_FIELDS:
        says.append(f"The {MOST_FIELDS} most important of {len(names)} settings are drawn.")
    return "".join(f" {line}" for line in says)


def _entries(one: Study) -> list[dict[str, Any]]:
    """The data of each setting for the page's script; empty for one that is not drawn."""
    shown = {*one.drawn(), *range(table.MOST)}
    found: list[dict[str, Any]] = []
    for place, setting in enumerate(one.settings):
        if place not in shown:
            found.append({})
            continue
        name = one.text(place) or "the only setting"
        trials = [
            [
                trial.seed,
                number(trial.final) if trial.is_finite else "not finite",
                trial.run,
                trial.number,
            ]
            for trial in setting.trials
        ]
        score = number(setting.mean) if len(setting.finals) else "none"
        found.append({"name": f"{place + 1}. {name}", "score": score, "trials": trials})
    return found
