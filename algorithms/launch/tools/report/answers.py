"""What won, by how much, whether seeds explain it, what mattered, and where to look next."""

import re
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from algorithms.launch.engine.intervals import difference, estimate, middle_name
from algorithms.launch.engine.results import Retested, counted
from algorithms.launch.tools.report.chance import COMPARED, RESAMPLES, noise, rivals
from algorithms.launch.tools.report.curves import is_rising
from algorithms.launch.tools.report.importance import NOISY, UNCLEAR, Importance
from algorithms.launch.tools.report.landscapes import edge
from algorithms.launch.tools.report.study import Axis, Study
from algorithms.launch.tools.report.svg import number, percent

FRESH = 100  # how far the seeds of a retest lie behind those of the sweep
FEW_SEEDS = 5
AGAIN = 10  # seeds of a retest that the page suggests
FLAG, KEPT_WHOLE = re.compile("--[a-z-]+"), r"<code>\g<0></code>"


class Command(str):
    """A reply to paste into a shell."""


def answers(study: Study, found: Importance, train: str, retested: Sequence[Retested] = ()) -> str:
    """Questions and answers, as HTML.

    Args:
      study: the settings of one environment.
      found: which field mattered.
      train: the command that trains the best setting on its seeds; empty if there is none.
      retested: its best settings on other seeds, the best one there first.
    """
    if not study.has_score.any():
        return _list([("What won", ["Nothing: no trial has a finite result."])])
    asked = [("What won", [_winner(study)])]
    if study.sound.sum() > 1:
        asked.append(("By how much", [_margin(study)]))
    if retested:
        asked.append(("Is it luck", [_retested(study, one, len(retested)) for one in retested[:1]]))
    elif study.sound.sum() > 1:
        asked.append(("Is it luck", [_luck(study)]))
    if found.shares:
        asked.append(("What mattered", [_mattered(found, noise(study))]))
    asked.append(("Where to look next", [*_next(study, found, train, retested)]))
    return _list(asked)


def _list(asked: list[tuple[str, list[str]]]) -> str:
    entries = []
    for question, replies in asked:
        lines = "".join(f"<dd>{_as_html(reply)}</dd>" for reply in replies)
        entries.append(f"<div><dt>{escape(question)}</dt>{lines}</div>")
    return f'<dl class="answers">{"".join(entries)}</dl>'


def _as_html(reply: str) -> str:
    if isinstance(reply, Command):
        return f'<code class="command">{escape(reply)}</code>'
    return FLAG.sub(KEPT_WHOLE, escape(reply))


def _winner(study: Study) -> str:
    best, seeds = study.settings[0], len(study.settings[0].finals)
    what = study.text(0) or "The only setting"
    over = f"over {seeds} seeds" if seeds > 1 else "with one seed"
    broken = f" ({best.broken} of its trials broke)" if best.broken else ""
    if not seeds:
        return (
            f"{what}: it was trained longest, and has no finite return at its last point{broken}."
        )
    return f"{what}: mean return {number(best.mean)} {over}{broken}."


def tied(study: Study) -> int:
    """How many settings have the best score."""
    means = [study.settings[i].mean for i in study.peers]
    return sum(mean == means[0] for mean in means)


def _margin(study: Study) -> str:
    if len(study.peers) < 2:
        return "Halving or a stop ended all other settings earlier: nothing else trained as long."
    best, second = (study.settings[i] for i in study.peers[:2])
    means = [study.settings[i].mean for i in study.peers]
    if (count := tied(study)) > 1:
        return (
            f"It ties: {count} settings score {number(best.mean)}. Among these it has the highest "
            "mean over the curve: it learned fastest."
        )
    apart, low, high = difference(best.finals, second.finals, RESAMPLES)
    interval = "" if np.isnan(low) else f" (95 %: {number(low, 3)} to {number(high, 3)})"
    return (
        f"{number(apart, 3)} above the second setting{interval}, "
        f"{number(best.mean - float(np.median(means)), 3)} above the median one."
    )


def _luck(study: Study) -> str:
    seeds = [len(study.settings[i].finals) for i in study.peers]
    if max(seeds) < 2:
        return "One seed cannot tell: with another seed the order may be another one."
    close, compared = rivals(study), min(COMPARED, len(seeds)) - 1
    if not close:
        says = f"No: with 95 % confidence it is ahead of each of the other {compared} settings."
    else:
        others = f"{len(close)} of the other {compared}"
        says = f"Maybe: these seeds cannot tell it from {others} settings (95 %)."
    if min(seeds) < FEW_SEEDS:
        says += f" {min(seeds)} seeds are few: intervals are wide, and take returns as normal."
    if tied(study) == 1:
        says += " The best of many is also partly the luckiest: expect less of a retest."
    return says


def _retested(study: Study, best: Retested, count: int) -> str:
    """What fresh seeds, which had no part in choosing, say of the setting that is best there."""
    finals = best.again.finals
    if not len(finals):
        return "On fresh seeds no retested setting has a finite result."
    place = study.place(best.again)
    middle, low, high = estimate(finals, len(best.again.trials), RESAMPLES)
    interval = f" (95 %: {number(low)} to {number(high)})" if np.isfinite(low) else ""
    who = "The winner" if place == 0 else f"Setting {place + 1}"
    if count > 1:
        who += " stays the best one" if place == 0 else " is the best one"
    return (
        f"{who} on {counted(len(finals), 'fresh seed')} ({study.text(place)}): "
        f"{middle_name(len(best.again.trials))} return {number(middle)}{interval}, in the sweep a "
        f"mean of {number(best.tuned.mean)}."
    )


def _mattered(found: Importance, luck: float) -> str:
    name, share = next(iter(found.shares.items()))
    of = "of the variance between settings"
    says = f"{name}, with {percent(share)} {of}."
    if share < UNCLEAR:
        says = f"No setting clearly: the first of them, {name}, has {percent(share)} {of}."
    if luck > NOISY:
        says += f" Seeds alone make about {percent(luck)}, so this may be luck."
    return says


def _next(
    study: Study, found: Importance, train: str, retested: Sequence[Retested]
) -> Iterator[str]:
    for name, axis in study.axes.items():
        where = edge(study, axis)
        if where and found.shares.get(name, 1.0) >= 0.05:
            yield _beyond(axis, where)
    if is_rising(study.settings[0]):
        yield "The best curve still rises: train longer, --total-timesteps."
    if (count := tied(study)) > 1 and count > len(study.settings) / 10:
        yield (
            f"{count} settings share the best score, so the last point cannot rank them: fewer "
            "steps or a harder environment would."
        )
    yield from _broken(study)
    if not train:
        return
    if retested:
        seeds = [trial.seed for trial in retested[0].again.trials]
        yield (
            f"Train the setting that was best on fresh seeds. Its file names {_span(seeds)}, those "
            "of the retest:"
        )
        yield Command(train)
        return
    seeds = [trial.seed for trial in study.settings[0].trials]
    fresh = range(max(seeds) + FRESH, max(seeds) + FRESH + AGAIN)
    if len(study.settings) == 1:
        yield f"Train it on more seeds. The sweep has had {_span(seeds)}:"
    else:
        yield (
            f"Retest the best setting. It was chosen on {_span(seeds)}, so its return there is "
            f"partly luck; {_span(fresh)} had no part in that:"
        )
    yield Command(f"{train} --seed {fresh[0]} --num-seeds {AGAIN}")


def _span(seeds: Sequence[int]) -> str:
    low, high = min(seeds), max(seeds)
    return f"seeds {low} to {high}" if low < high else f"seed {low}"


def _beyond(axis: Axis, where: str) -> str:
    end = axis.scale.low if where == "low" else axis.scale.high
    word = "below" if where == "low" else "above"
    value = number(end, 3)
    return f"{axis.name}: the best settings lie at the end of its range; try {word} {value}."


def _broken(study: Study) -> Iterator[str]:
    """How many trials broke, and the values that most of them share but most others do not."""
    broken = np.array([setting.broken for setting in study.settings], np.float64)
    if not broken.any():
        return
    says, lead_of = f"{int(broken.sum())} trials are not finite", 0.2
    for name, axis in study.axes.items():
        for level in axis.levels:
            its_own = broken[level.which].sum()
            more = its_own / broken.sum() - len(level.which) / len(study.settings)
            if more > lead_of:
                where = f"{int(its_own)} of them with {name}={level.text}"
                says, lead_of = f"{int(broken.sum())} trials are not finite, {where}", more
    yield f"{says}."
