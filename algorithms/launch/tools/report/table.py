"""The ranking of one environment's settings, with intervals."""

from collections.abc import Mapping, Sequence
from html import escape
from types import MappingProxyType

import numpy as np

from algorithms.launch.engine.intervals import MANY, Estimate, estimate, interval_name
from algorithms.launch.engine.results import Ranked, Retested, counted
from algorithms.launch.tools.report.chance import RESAMPLES
from algorithms.launch.tools.report.study import Study, value_text
from algorithms.launch.tools.report.svg import Scale, number, scores_scale, short

SHOWN = 10  # settings before one has to open the rest
MOST = 100  # settings in the table
SECONDS = "seconds a trial"
WIDTH = 160  # pixels of an interval's picture


def ranking(study: Study, seconds: Mapping[int, float] = MappingProxyType({})) -> str:
    """The table, as HTML.

    Args:
      seconds: that each trial took, by its number in results.csv; a column if settings differ.
    """
    shown = study.settings[:MOST]
    scale = scores_scale(np.concatenate([setting.finals for setting in shown]))
    has_steps = len({setting.steps for setting in study.settings}) > 1
    took = [_seconds_of(setting, seconds) for setting in shown]
    took = took if len(set(took)) > 1 else []
    rows = []
    for place, setting in enumerate(shown):
        more = [(number(setting.steps), "", "steps")] * has_steps
        if took:
            more.append((took[place], "clock", SECONDS))
        rows.append(_row(study, place, scale, more))
    of_seeds = interval_name(len(study.settings[0].trials))
    head = ["", *study.axes, "mean return", of_seeds, "", "lowest", "seeds"]
    head += ["steps"] * has_steps + [SECONDS] * bool(took)
    titles = "".join(f"<th>{escape(name)}</th>" for name in head)
    table = lambda part: f"<table><tr>{titles}</tr>{''.join(part)}</table>"
    parts = [table(rows[:SHOWN])]
    if len(rows) > SHOWN:
        parts.append(
            f"<details><summary>Settings {SHOWN + 1} to {len(rows)} of {len(study.settings)}"
            f"</summary>{table(rows[SHOWN:])}</details>"
        )
    says = f"<p>{escape(meaning(len(study.settings[0].trials)))}</p>"
    return f'<div class="ranking">{"".join(parts)}</div>{says}'


def meaning(seeds: int) -> str:
    """What the intervals of so many seeds tell, and what they do not."""
    if seeds == 1:
        return (
            "Of 1 seed a setting: its return. One seed has no interval, so a difference between "
            "two settings may be luck: --num-seeds adds seeds."
        )
    how = "the mean, with a t interval, which takes returns as normal"
    if seeds >= MANY:
        how = "the mean without the lowest and the highest quarter (IQM), with a bootstrap interval"
    return (
        f"Of {counted(seeds, 'seed')} a setting: {how}. In 95 of 100 sweeps such an interval holds "
        "the value of all possible seeds. It does not tell how a single seed does, and the return "
        "of the best of many settings is partly luck."
    )


def retest(study: Study, retested: Sequence[Retested]) -> str:
    """The retested settings beside what the sweep's seeds promised, as HTML."""
    seeds = len(retested[0].again.trials)
    fresh = f"on {seeds} fresh seed{'s' * (seeds > 1)}"
    head = ["", *study.axes, "in the sweep", fresh, interval_name(seeds), "luck"]
    rows = ["".join(f"<th>{escape(name)}</th>" for name in [*head, "seeds"])]
    for one in retested:
        place = study.place(one.again)
        cells = [(value_text(one.again.setting[name]), "", name) for name in study.axes]
        tuned = f"{_mean(one.tuned)}{' (early)' * one.is_early}"
        cells = [(str(place + 1), "rank", ""), *cells, (tuned, "", head[-4])]
        cells += [(_mean(one.again), "mean", head[-3])]
        new = estimate(one.again.finals, seeds, RESAMPLES)
        cells += [(_words(new, one.again), "", head[-2]), (number(one.luck, 3), "", "luck")]
        body = "".join(_cell(*cell) for cell in cells) + _seeds(one.again)
        rows.append(f'</tr><tr data-s="{study.first + place}" tabindex="0">{body}')
    return f'<div class="ranking"><table><tr>{"".join(rows)}</tr></table></div>'


def _mean(setting: Ranked) -> str:
    return number(setting.mean if len(setting.finals) else np.nan)


def _words(found: Estimate, setting: Ranked) -> str:
    if np.isnan(found.low):
        return "none"
    words = f"{number(found.low)} to {number(found.high)}"
    return words if len(setting.trials) < MANY else f"{number(found.middle)} ({words})"


def _seconds_of(setting: Ranked, seconds: Mapping[int, float]) -> str:
    known = [seconds[trial.number] for trial in setting.trials if trial.number in seconds]
    return number(float(np.mean(known)), 3) if known else "none"


def _row(study: Study, place: int, scale: Scale, more: Sequence[tuple[str, str, str]]) -> str:
    """A row; `more` are further cells at its end."""
    setting = study.settings[place]
    cells = [(str(place + 1), "rank", "")]
    cells += [(value_text(setting.setting[axis]), "", axis) for axis in study.axes]
    found = estimate(setting.finals, len(setting.trials), RESAMPLES)
    cells += [(_mean(setting), "mean", "mean return")]
    cells += [(_words(found, setting), "", interval_name(len(study.settings[0].trials)))]
    body = "".join(_cell(*cell) for cell in cells)
    body += f'<td class="interval">{_interval(scale, found, setting.finals)}</td>'
    body += _cell(number(min(setting.finals, default=np.nan)), "", "lowest") + _seeds(setting)
    body += "".join(_cell(*cell) for cell in more)
    return f'<tr data-s="{study.first + place}" tabindex="0">{body}</tr>'


def _cell(words: str, kind: str, name: str) -> str:
    attributes = f' class="{kind}"' * bool(kind) + f' data-name="{escape(name)}"' * bool(name)
    return f"<td{attributes}>{escape(words)}</td>"


def _seeds(setting: Ranked) -> str:
    note = f', <b class="bad">{setting.broken} not finite</b>' if setting.broken else ""
    return f'<td data-name="seeds">{len(setting.trials)}{note}</td>'


def _interval(scale: Scale, found: Estimate, finals: np.ndarray) -> str:
    if not len(finals):
        return ""
    at = lambda value: short(6 + (WIDTH - 12) * float(scale.at(value)))
    dots = "".join(f'<circle class="seed" cx="{at(x)}" cy="8" r="2"/>' for x in finals[:20])
    low, high = (found.middle if np.isnan(end) else end for end in found[1:])
    return (
        f'<svg viewBox="0 0 {WIDTH} 16" width="{WIDTH}" height="16" aria-hidden="true">{dots}'
        f'<path class="whisker" d="M{at(low)} 8H{at(high)}"/>'
        f'<circle class="middle" cx="{at(found.middle)}" cy="8" r="4"/></svg>'
    )
