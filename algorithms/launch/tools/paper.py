"""What a comparison makes for a paper: figures, tables and lines for their captions.

`figures` draws, `tables` writes. This module reads the flags, chooses the curves and says what the
numbers are.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.launch.engine import experiment, files, plots, results
from algorithms.launch.engine.errors import UserError, unknown, warn
from algorithms.launch.engine.run_dir import RunDir, sessions_of
from algorithms.launch.tools import comparison, figures, tables

Panels = dict[str, list[comparison.Pooled]]
TAUS = 101  # scores at which a performance profile is drawn
FLAGS = {  # {flag, and keyword of `compare`: (its value, what it does)}
    "out": ("FILE", "draw learning curves into this new .pdf, .svg or .png"),
    "table": ("FILE", "write the table into this new .tex (booktabs), .csv or .md"),
    "profile": ("FILE", "draw performance profiles into this new .pdf, .svg or .png"),
    "improvement": ("FILE", "write probabilities of improvement into this new .tex, .csv or .md"),
    "curve": ("LABEL[=NAME]", "show this curve of the table, under this name; repeat for others"),
    "threshold": ("[ENV=]RETURN", "count the steps until this return; repeat for environments"),
    "normalize": ("ENV=LOW:HIGH", "returns whose scores are 0 and 1; repeat for all environments"),
    "width": ("INCHES", "of figures: single (3.25), double (6.75) or inches"),
    "font": ("FONT", f"of figures: {' or '.join(figures.FONTS)}; default: sans"),
    "x": ("AXIS", f"of learning curves: {', '.join(figures.AXES)}; default: steps"),
}
REPEATED = ("curve", "threshold", "normalize")
DRAWN, WRITTEN = ("out", "profile"), ("table", "improvement")  # files
NEEDS = {"width": DRAWN, "font": DRAWN, "x": ("out",)}


def add_flags(parser: argparse.ArgumentParser) -> None:
    for name, (value, text) in FLAGS.items():
        more: Any = {"action": "append", "default": []} if name in REPEATED else {}
        parser.add_argument(f"--{name}", metavar=value, help=text, **more)


def flags_of(words: argparse.Namespace) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name in FLAGS if (value := getattr(words, name))}


class Paper:
    """What is to be made of a comparison.

    Args:
      asked: values of FLAGS.

    Raises:
      UserError: a file exists or has another ending, or a value cannot be.
    """

    def __init__(self, asked: Mapping[str, Any]):
        for name in asked:
            if name not in FLAGS:
                raise unknown("argument", name, FLAGS)
        self.asked = {name: value for name, value in asked.items() if value is not None}
        endings = dict.fromkeys(DRAWN, figures.ENDINGS) | dict.fromkeys(WRITTEN, tables.ENDINGS)
        self.paths = {n: files.new(n, asked.get(n), *ends) for n, ends in endings.items()}
        given = [path.resolve() for path in self.paths.values() if path]
        if len(set(given)) < len(given):
            raise UserError(f"{next(p for p in given if given.count(p) > 1)} is asked for twice")
        for name, needed in NEEDS.items():
            if name in self.asked and not any(map(self.paths.get, needed)):
                these = " or ".join(f"--{flag}" for flag in needed)
                raise UserError(f"--{name} {asked[name]} is of a figure: give {these} too")
        self.width = _inches(self.asked.get("width"))
        self.font = _one_of("font", self.asked.get("font", "sans"), figures.FONTS)
        self.x = _one_of("x", self.asked.get("x", "steps"), figures.AXES)
        self.order: list[str] = []  # names of the curves that were asked for
        self.thresholds: Mapping[str, float] = {}
        self.bounds: comparison.Bounds = {}

    def chosen(self, panels: Panels) -> Panels:
        """The curves that were asked for, under their names; all of them if none was.

        Raises:
          UserError: what is asked for is not there.
        """
        if asked := self.asked.get("curve"):
            names = _names(asked, panels)
            self.order = list(dict.fromkeys(names.values()))
            panels = {env: _renamed(env, panel, names) for env, panel in panels.items()}
            panels = {env: panel for env, panel in panels.items() if panel}
        self.thresholds = _thresholds(self.asked.get("threshold", ()), list(panels))
        self.bounds = _bounds(self.asked.get("normalize", ()), list(panels))
        return panels

    def make(self, panels: Panels, metric: str) -> tuple[str, list[str]]:
        """Makes the files.

        Args:
          panels: as `chosen` gives them.
          metric: in words.

        Returns:
          Tables for the screen, and lines that say what is where and how a caption describes it.

        Raises:
          UserError: what is asked for cannot be made; nothing is written then.
        """
        shown = {e: panel[: None if self.order else plots.CURVES] for e, panel in panels.items()}
        timed = [c for panel in shown.values() for c in panel] if self.x != "steps" else []
        times, over = _Times(timed), self._scores(panels)
        rows, texts, lines = tables.ranking(panels, self.thresholds, self.bounds), [], []
        if self.thresholds:
            head = "steps until the return first reaches the threshold, of the seeds that do:"
            steps = [
                {name: row[name] for name in tables.STEPS} for row in rows if row["threshold"] != ""
            ]
            texts.append(f"{head}\n{tables.on_screen(steps)}")
        if path := self.paths["out"]:
            figures.curves(shown, metric, path, self._look(), self.x, times.of)
            lines += [*figures.left_out(panels) * (not self.order), f"curves in {path}"]
            note = _caption(shown, f"Learning curves, {metric}", "Lines and bands")
            lines.append(f"caption: {' '.join(filter(None, [note, times.text]))}")
        if path := self.paths["table"]:
            note = _caption(panels, f"Final {metric}", "Numbers")
            note += " Steps to a threshold: of the seeds that reach it." * bool(self.thresholds)
            scored = any(row["environment"] == tables.ALL for row in rows)
            note += f" Scores: {over.scale}." * scored
            tables.write(path, rows, note, ranked=True)
            lines += [f"table in {path}", f"caption: {note}"]
        if path := self.paths["profile"]:
            lines += [f"profiles in {path}", f"caption: {self._profiles(over, path)}"]
        if path := self.paths["improvement"]:
            pairs = tables.improvements(over)
            note = f"Probability that a run of a curve is better than one of the other, {_of(over)}"
            tables.write(path, pairs, note)
            texts.append(f"probability of improvement:\n{tables.on_screen(pairs)}")
            lines += [f"probabilities in {path}", f"caption: {note}"]
        return "\n\n".join(texts), lines

    def _look(self) -> figures.Look:
        return figures.Look(self.width, self.font, self.order)

    def _scores(self, panels: Panels) -> comparison.Scores:
        """Scores over the environments.

        Raises:
          UserError: there are too few for what is asked for.
        """
        found = comparison.scores(panels, self.bounds)
        for flag, least in (("profile", 1), ("improvement", 2)):
            if self.paths[flag] and len(found.strata) < least:
                there = ", ".join(found.environments) or "none"
                raise UserError(
                    f"--{flag} needs {results.counted(least, 'curve')} in all environments whose "
                    f"returns differ ({there}), and has {', '.join(found.strata) or 'none'}: "
                    "--curve LABEL=NAME gives curves of several environments one name"
                )
        return found

    def _profiles(self, found: comparison.Scores, path: Path) -> str:
        """Draws performance profiles. Returns their caption."""
        together = np.concatenate([s for strata in found.strata.values() for s in strata])
        taus = np.linspace(min(0.0, together.min()), max(1.0, together.max()), TAUS)
        shares = {label: comparison.profile(s, taus) for label, s in found.strata.items()}
        figures.profiles(shares, taus, path, self._look())
        return f"Share of runs with a score above τ, {_of(found)} Scores: {found.scale}."


def _of(found: comparison.Scores) -> str:
    runs = {sum(map(len, strata)) for strata in found.strata.values()}
    return (
        f"{_range(runs)} runs for each curve on {', '.join(found.environments)}. Intervals: 95 % "
        "bootstrap, stratified by environment."
    )


def _caption(panels: Panels, what: str, where: str) -> str:
    """What the numbers are."""
    pooled = [curve for panel in panels.values() for curve in panel]
    steps = {int(curve.timesteps[-1]) for curve in pooled if len(curve.timesteps)}
    seeds = {curve.seeds for curve in pooled}
    lost = sum(curve.seeds - len(curve.finals) for curve in pooled)
    middle = comparison.middles(pooled).replace("t interval", "95 % t interval")
    middle = middle.replace("bootstrap", "95 % bootstrap")
    noun = "seed" if seeds == {1} else "seeds"
    parts = [
        f"{what}, {_range(seeds)} {noun} for each curve, {_range(steps)} steps.",
        f"{where}: {middle}.",
        f"{results.counted(lost, 'seed')} without a finite return left out." * bool(lost),
        _commits({trial.run for curve in pooled for trial in curve.trials}),
    ]
    return " ".join(filter(None, parts))


# --- values of flags -------------------------------------------------------------------------


def _inches(width: float | str | None) -> float | None:
    if width is None or width in figures.WIDTHS:
        return None if width is None else figures.WIDTHS[str(width)]
    inches = _number(width)
    if not figures.NARROWEST <= inches <= figures.WIDEST:
        raise UserError(
            f"--width {width}: give single, double or inches from {figures.NARROWEST:g} to "
            f"{figures.WIDEST:g}"
        )
    return inches


def _one_of(flag: str, value: str, known: Mapping[str, Any]) -> str:
    if value not in known:
        raise UserError(f"--{flag} {value}: choose one of {', '.join(known)}")
    return value


def _number(text: Any) -> float:
    """NaN for what is none."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan


def _words(asked: Any) -> list[str]:
    """What flags would say: NAME=VALUE for a mapping."""
    if isinstance(asked, Mapping):
        return [f"{name}={value}" for name, value in asked.items()]
    return [str(asked)] if isinstance(asked, str | int | float) else list(asked)


def _names(asked: Any, panels: Panels) -> dict[str, str]:
    """{label: name}. Labels have = and commas in them, so the longest that fits is meant."""
    labels = list(dict.fromkeys(curve.label for panel in panels.values() for curve in panel))
    names: dict[str, str] = {}
    for words in _words(asked):
        fits = [label for label in labels if words == label or words.startswith(f"{label}=")]
        if not fits:
            raise UserError(
                f"--curve {words}: there is no such curve; there are {'; '.join(labels)}"
            )
        label = max(fits, key=len)
        name = words.removeprefix(label).removeprefix("=").strip() or label
        if names.setdefault(label, name) != name:
            raise UserError(f"--curve {words}: {label} is {names[label]} already")
    return names


def _renamed(
    environment: str, panel: Sequence[comparison.Pooled], names: Mapping[str, str]
) -> list[comparison.Pooled]:
    """The chosen curves of an environment, in their order."""
    there = {curve.label: curve for curve in panel}
    labels = [label for label in names if label in there]
    for label in labels:
        same = [other for other in labels if names[other] == names[label]]
        if len(same) > 1:
            raise UserError(
                f"--curve: {' and '.join(same)} are both {names[label]} on {environment}; give "
                "them different names"
            )
    return [there[label]._replace(label=names[label]) for label in labels]


def _by_environment(flag: str, asked: Any, environments: Sequence[str]) -> list[tuple[str, str]]:
    """(environment, value) of each ENV=VALUE; the environment is "" where none is named."""
    pairs = [(env, value) for env, _, value in (word.rpartition("=") for word in _words(asked))]
    for env, value in pairs:
        if env and env not in environments:
            raise unknown(f"environment of --{flag} {env}={value}:", env, environments)
    return pairs


def _thresholds(asked: Any, environments: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for env, value in _by_environment("threshold", asked, environments):
        if not math.isfinite(_number(value)):
            raise UserError(f"--threshold {value}: give a return to reach, 475 or ENV=475")
        found |= dict.fromkeys([env] if env else environments, _number(value))
    return found


def _bounds(asked: Any, environments: Sequence[str]) -> comparison.Bounds:
    found: dict[str, tuple[float, float]] = {}
    for env, value in _by_environment("normalize", asked, environments):
        low, high = map(_number, value.partition(":")[::2])
        if not (env and low < high and math.isfinite(high - low)):
            raise UserError(
                f"--normalize {env}{'=' * bool(env)}{value}: give ENV=LOW:HIGH, the returns whose "
                f"scores are 0 and 1, as in {environments[0]}=0:500"
            )
        found[env] = low, high
    if found and (without := [env for env in environments if env not in found]):
        raise UserError(f"--normalize has no {without[0]}: give LOW:HIGH for all environments")
    return found


# --- what runs store -------------------------------------------------------------------------


class _Times:
    """Seconds of curves, which only metrics.csv has.

    Raises:
      UserError: a run has none.
    """

    def __init__(self, curves: Sequence[comparison.Pooled]):
        runs = dict.fromkeys(trial.run for curve in curves for trial in curve.trials)
        self.runs = {run: _seconds(run) for run in runs}
        for curve in curves:
            self.of(curve)
        said = list(dict.fromkeys(map(self._in_words, curves)))
        if len(said) > 1:
            warn(f"seconds of these curves do not compare: {'; '.join(said)}")
        self.text = f"Seconds without compilation, of {'; '.join(said)}." * bool(said)

    def of(self, curve: comparison.Pooled) -> np.ndarray:
        """The mean over a curve's seeds at each point, (points,)."""
        rows = [self._of_trial(trial, curve.timesteps) for trial in curve.trials]
        return np.mean(rows, axis=0)

    def _of_trial(self, trial: comparison.Trial, timesteps: np.ndarray) -> np.ndarray:
        _, own = self.runs[trial.run][trial.outcome.number]
        row = np.array([own.get(int(step), np.nan) for step in timesteps])
        if np.isnan(row).any():
            raise UserError(
                f"--x: {trial.run} does not have the seconds of all points (runs of early versions "
                "and rungs of halving store none): leave --x out"
            )
        return row

    def _in_words(self, curve: comparison.Pooled) -> str:
        where = {self.runs[trial.run][trial.outcome.number][0] for trial in curve.trials}
        return " or ".join(sorted(where))


def _seconds(run: Path) -> dict[int, tuple[str, dict[int, float]]]:
    """{trial: (what trained at once and where, {timestep: seconds})}."""
    found = {}
    for entry in experiment.open(run).entries:
        where = f"{results.counted(len(entry.numbers), 'trial')} at once on {_device(entry.path)}"
        table = RunDir.open(entry.path).table().values()
        for place, number in enumerate(() if entry.retest else entry.numbers):
            own = [rows[place] for rows in table]
            seconds = {int(row["timestep"]): _number(row.get("seconds")) for row in own}
            found[number] = where, seconds
    return found


def _device(run_dir: Path) -> str:
    said = {
        f"{one['num_devices']} x {one['device'].partition(' ')[2]}" for one in sessions_of(run_dir)
    }
    return " or ".join(sorted(said)) or "an unknown device"


def _commits(runs: set[Path]) -> str:
    """The commits that runs were trained with, as far as they are stored."""
    found: dict[str, None] = {}
    for run in sorted(runs):
        for entry in experiment.open(run).entries:
            for one in sessions_of(entry.path) or [{}]:
                commit = one.get("git_commit")
                changed = " with uncommitted changes" * bool(one.get("git_dirty"))
                found[f"{commit[:10]}{changed}" if commit else "unknown"] = None
    return f"Trained with commit {', '.join(found)}."


def _range(numbers: set[int]) -> str:
    low, high = min(numbers, default=0), max(numbers, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
