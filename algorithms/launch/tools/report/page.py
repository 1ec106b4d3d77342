"""report.html of a sweep: one file that opens offline, with all pictures in it."""

import json
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from algorithms import parts
from algorithms.launch.engine import experiment, objectives, results, settings
from algorithms.launch.engine.experiment import as_file_name
from algorithms.launch.engine.plots import CURVES
from algorithms.launch.engine.progress import duration
from algorithms.launch.engine.results import Ranked, Retested
from algorithms.launch.engine.run_dir import RunDir
from algorithms.launch.engine.settings import text_of
from algorithms.launch.tools.report import curves, landscapes, study, table
from algorithms.launch.tools.report.answers import answers
from algorithms.launch.tools.report.chance import expected_best
from algorithms.launch.tools.report.importance import ROW, bars, importance
from algorithms.launch.tools.report.study import Study
from algorithms.launch.tools.report.svg import number

HERE = Path(__file__).parent
HOVER = (
    "Point at a dot, a line or a row: it names its setting, seeds and run directories, and the "
    "setting lights up everywhere. A click keeps it"
)
OF_SEEDS = f", and draws the curves of its seeds if it is one of the best {CURVES}"
MOST_FIELDS = 12  # pictures of one field each, the most important ones


def of_sweep(
    sweep_dir: Path,
    ranked: Sequence[Ranked],
    title: str,
    retested: Sequence[Retested],
    objective: str,
    module: Any,
    config: Any,
    suffix: str = "",
) -> str:
    """The page of a sweep, as of `page`.

    Args:
      module: the algorithm's; None of a file of the user's own.
      config: of which fields have limits; None: limits are unknown.
    """
    there = experiment.open(sweep_dir)
    names = settings.float_fields(config) if config else []
    limits = {name: parts.bounds(config, name) for name in names}
    command = settings.command_of(module) if module else f"python {there.algorithm}.py"
    given = there.description["grid"], retested, objective, limits, suffix, command
    return page(ranked, title, sweep_dir, *given, seconds_of(there))


def seconds_of(there: experiment.Experiment) -> dict[int, float]:
    """Seconds of training for each trial but those of a retest, by its number.

    Trials that train at once share the seconds of their chunk. Later rungs add theirs.
    """
    found: dict[int, float] = {}
    for entry in there.entries:
        run_dir = RunDir.open(entry.path)
        last = max(run_dir.table(), default=None)
        if last is None or entry.retest:
            continue
        each = run_dir.seconds(last) / len(entry.numbers)
        found |= {number: found.get(number, 0.0) + each for number in entry.numbers}
    return found


def page(
    ranked: Sequence[Ranked],
    title: str,
    sweep_dir: Path | str = ".",
    grid: Mapping[str, Any] = MappingProxyType({}),
    retested: Sequence[Retested] = (),
    objective: str = objectives.DEFAULT,
    limits: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    suffix: str = "",
    command: str = "python FILE.py",
    seconds: Mapping[int, float] = MappingProxyType({}),
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
      command: that starts the algorithm's file.
      seconds: that each trial took, by its number in results.csv.
    """
    note = ""
    if objective != objectives.DEFAULT:
        judged = [one.again for one in retested] or ranked  # the best first, as best.json has it
        firsts = [those[0] for those in results.by_environment(judged).values()]
        names = "; ".join(", ".join(text_of(one.setting)) for one in firsts)
        by = "The ranking is by" if suffix else "The sweep ranks by"
        fresh = " on fresh seeds" * bool(retested)
        note = f"{by} {objective}: {names} is first{fresh}. This page compares final returns, by "
        note += "which another setting may win."
        ranked = results.rank([trial for setting in ranked for trial in setting.trials])
        retested = sorted(retested, key=lambda one: -one.again.mean)
    found = study.studies(ranked, grid, limits)
    body = [_head(found, title, note, seconds)]
    for one in found:
        again = [other for other in retested if other.again.environment == one.environment]
        name = f"best-{as_file_name(one.environment)}" if len(found) > 1 else "best"
        file = shlex.quote(str(Path(sweep_dir) / f"{name}{suffix}.json"))
        train = "" if note else f"{command} --config {file}"  # else it is of another order
        body.append(_section(one, train, len(found) > 1, again, seconds))
    of_retest = [f"retest{suffix}.csv"] * bool(retested)
    body.append(_links([f"results{suffix}.csv", *of_retest, "trials.csv"]))
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


def _links(tables: Sequence[str]) -> str:
    """Links to the tables beside the page."""
    links = [f'<a href="{quote(name)}">{escape(name)}</a>' for name in tables]
    return f"<footer><p>The numbers as tables: {', '.join(links)}.</p></footer>"


def _head(found: list[Study], title: str, note: str, seconds: Mapping[int, float]) -> str:
    shown = [setting for one in found for setting in one.settings]
    trials = sum(len(setting.trials) for setting in shown)
    seeds = max(len(setting.trials) for setting in shown)
    steps = max(setting.steps for setting in shown)
    broken = sum(setting.broken for setting in shown)
    facts = [
        f"{len(shown)} settings" if len(shown) > 1 else "1 setting",
        f"{seeds} seeds each" if seeds > 1 else "1 seed each",
        f"{trials} trials",
        f"{number(steps)} steps",
    ]
    facts += [f"{broken} trials not finite"] * bool(broken)
    clock = ""
    if seconds:
        whole = sum(seconds.values())
        clock = f'<span class="clock">, {duration(whole)} of training, '
        clock += f"{number(whole / len(seconds), 2)} s a trial</span>"
    links = "".join(
        f"<a href='#{escape(_anchor(one))}'>{escape(one.environment)}</a> " for one in found
    )
    menu = f"<nav>{links}</nav>" if len(found) > 1 else ""
    said = f"<p>{escape(note)}</p>" if note else ""
    return f"<header><h1>{escape(title)}</h1><p>{', '.join(facts)}{clock}</p>{said}{menu}</header>"


def _anchor(one: Study) -> str:
    return f"env-{as_file_name(one.environment)}"


def _section(
    one: Study,
    train: str,
    several: bool,
    again: Sequence[Retested],
    seconds: Mapping[int, float],
) -> str:
    found = importance(one)
    parts = [f"<h2>{escape(one.environment)}</h2>"] * several
    parts.append(answers(one, found, train, again))
    parts.append(f"<h2>Ranking</h2>{table.ranking(one, seconds)}")
    if again:
        parts.append(f"<h2>Retest on fresh seeds</h2>{table.retest(one, again)}")
    names = [*found.shares, *(name for name in one.axes if name not in found.shares)]
    beside = [*filter(None, [bars(one, found), expected_best(one)])]
    small = [
        *(landscapes.over_one(one, one.axes[name], found) for name in names[:MOST_FIELDS]),
        landscapes.over_all(one),
        *landscapes.over_two(one, found),
    ]
    height = _height(len(found.shares)) if len(beside) == 2 else None  # one would leave a gap
    pictures = curves.learning(one, height)
    if pictures and height:
        pictures += f'<div class="stack">{"".join(beside)}</div>'
    else:
        small = beside + small
    pictures += _in_rows([*filter(None, small)])
    if pictures:
        several_seeds = any(len(setting.trials) > 1 for setting in one.settings)
        note = f"{HOVER}{OF_SEEDS * several_seeds}.{_left_out(one, names)}"
        note = f'<p class="note">{escape(note)}</p>'
        parts.append(f'<h2>Pictures</h2>{note}<div class="pictures">{pictures}</div>')
    return f'<section id="{escape(_anchor(one))}">{"".join(parts)}</section>'


def _height(fields: int) -> int:
    """Of the learning curves, so that they end where the pictures beside them do."""
    return curves.HIGH - 10 + ROW * fields


def _in_rows(pictures: Sequence[str]) -> str:
    """Three pictures in a row; the last ones share the width, so that no place is empty."""
    count = len(pictures)
    halves = {0: 0, 1: 4, 2: 2}[count % 3] if count > 1 else 0
    kinds = ["third"] * (count - halves) + ["half"] * halves if count > 1 else ["all"] * count
    last = " odd" * (count % 2)
    kinds = [kind + last * (i + 1 == count) for i, kind in enumerate(kinds)]
    return "".join(f'<div class="{kind}">{one}</div>' for kind, one in zip(kinds, pictures))


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
