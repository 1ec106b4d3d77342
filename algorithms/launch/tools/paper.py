"""What a comparison makes for a paper: figures, tables and lines for their captions.

`figures` draws, `tables` writes. This module reads the flags, chooses the curves and says what the
numbers are.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.engine import experiment, files, plots, results
from algorithms.launch.engine.errors import UserError, unknown, warn
from algorithms.launch.engine.run_dir import RunDir
from algorithms.launch.tools import comparison, figures, tables

Panels = dict[str, list[comparison.Pooled]]
TAUS = 101  # scores at which a performance profile is drawn
FILES = {
    "out": figures.ENDINGS,
    "profile": figures.ENDINGS,
    "table": tables.ENDINGS,
    "improvement": tables.ENDINGS,
}
DRAWS = {"width": ("out", "profile"), "font": ("out", "profile"), "x": ("out",)}


class Asked(NamedTuple):
    """What is asked for; `HELP` says what the fields are, each of which is a flag."""

    out: Path | str | None = None
    table: Path | str | None = None
    profile: Path | str | None = None
    improvement: Path | str | None = None
    curve: Sequence[str] | Mapping[str, str] = ()
    threshold: Sequence[str] | Mapping[str, float] | float = ()
    normalize: Sequence[str] | Mapping[str, tuple[float, float]] = ()
    width: float | str | None = None
    font: str | None = None
    x: str | None = None


HELP = {  # {flag: (its value, what it does)}
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


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for each field of `Asked`."""
    for name, (value, text) in HELP.items():
        more: Any = {"action": "append", "default": []} if name in REPEATED else {}
        parser.add_argument(f"--{name}", metavar=value, help=text, **more)


def flags_of(words: argparse.Namespace) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name in Asked._fields if (value := getattr(words, name))}


class Paper:
    """What is to be made of a comparison.

    Raises:
      UserError: a file exists or has another ending, or a value cannot be.
    """

    def __init__(self, asked: Asked):
        self.asked = asked
        self.paths = {n: files.new(n, getattr(asked, n), *endings) for n, endings in FILES.items()}
        given = [path.resolve() for path in self.paths.values() if path]
        if len(set(given)) < len(given):
            raise UserError(f"{next(p for p in given if given.count(p) > 1)} is asked for twice")
        for name, needed in DRAWS.items():
            if getattr(asked, name) is not None and not any(map(self.paths.get, needed)):
                these = " or ".join(f"--{flag}" for flag in needed)
                raise UserError(f"--{name} {getattr(asked, name)} is of a figure: give {these} too")
        self.width = _inches(asked.width)
        self.font = _one_of("font", asked.font or "sans", figures.FONTS)
        self.x = _one_of("x", asked.x or "steps", figures.AXES)
        self.order: list[str] = []  # names of the curves that were asked for
        self.thresholds: Mapping[str, float] = {}
        self.bounds: comparison.Bounds = {}

    def chosen(self, panels: Panels) -> Panels:
        """The curves that were asked for, under their names; all of them if none was.

        Raises:
          UserError: what is asked for is not there.
        """
        if self.asked.curve:
            names = _names(self.asked.curve, panels)
            self.order = list(dict.fromkeys(names.values()))
            panels = {env: _renamed(env, panel, names) for env, panel in panels.items()}
            panels = {env: panel for env, panel in panels.items() if panel}
        self.thresholds = _thresholds(self.asked.threshold, list(panels))
        self.bounds = _bounds(self.asked.normalize, list(panels))
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
            texts.append(f"{head}\n{tables.steps_text(rows)}")
        if path := self.paths["out"]:
            figures.curves(shown, metric, path, self._look(), self.x, times.of)
            lines += [*figures.left_out(panels) * (not self.order), f"curves in {path}"]
            note = _caption(shown, f"Learning curves, {metric}", "Lines and bands")
            lines.append(f"caption: {' '.join(filter(None, [note, times.text]))}")
        if path := self.paths["table"]:
            note = _caption(panels, f"Final {metric}", "Numbers")
            note += " Steps to a threshold: of the seeds that reach it." * bool(self.thresholds)
            tables.write_ranking(path, rows, note)
            lines += [f"table in {path}", f"caption: {note}"]
        if path := self.paths["profile"]:
            lines += [f"profiles in {path}", f"caption: {self._profiles(over, path)}"]
        if path := self.paths["improvement"]:
            pairs = tables.improvements(over)
            note = f"Probability that a run of a curve is better than one of the other, {_of(over)}"
            tables.write_improvements(path, pairs, note)
            texts.append(f"probability of improvement:\n{tables.improvement_text(pairs)}")
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


def _names(asked: Sequence[str] | Mapping[str, str], panels: Panels) -> dict[str, str]:
    """{label: name}. Labels have = and commas in them, so the longest that fits is meant."""
    labels = list(dict.fromkeys(curve.label for panel in panels.values() for curve in panel))
    if isinstance(asked, Mapping):
        asked = [f"{label}={name}" for label, name in asked.items()]
    names: dict[str, str] = {}
    for words in [asked] if isinstance(asked, str) else asked:
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


def _by_environment(
    flag: str, asked: Sequence[str] | Mapping[str, Any], environments: Sequence[str]
) -> list[tuple[str, Any]]:
    """(environment, value) of each ENV=VALUE; the environment is "" where none is named."""
    if isinstance(asked, Mapping):
        pairs = list(asked.items())
    else:
        words = [asked] if isinstance(asked, str) else asked
        pairs = [(env, value) for env, _, value in (word.rpartition("=") for word in words)]
    for env, value in pairs:
        if env and env not in environments:
            raise unknown(f"environment of --{flag} {env}={value}:", env, environments)
    return pairs


def _thresholds(
    asked: Sequence[str] | Mapping[str, float] | float, environments: Sequence[str]
) -> dict[str, float]:
    words = [str(asked)] if isinstance(asked, int | float) else asked
    found: dict[str, float] = {}
    for env, value in _by_environment("threshold", words, environments):
        if not math.isfinite(_number(value)):
            raise UserError(f"--threshold {value}: give a return to reach, 475 or ENV=475")
        found |= dict.fromkeys([env] if env else environments, _number(value))
    return found


def _bounds(
    asked: Sequence[str] | Mapping[str, tuple[float, float]], environments: Sequence[str]
) -> comparison.Bounds:
    found: dict[str, tuple[float, float]] = {}
    for env, value in _by_environment("normalize", asked, environments):
        ends = value.partition(":")[::2] if isinstance(value, str) else tuple(value)
        low, high = map(_number, ends) if len(ends) == 2 else (math.nan, math.nan)
        if not env or not (math.isfinite(low) and math.isfinite(high) and low < high):
            said = f"{env}=" * bool(env) + (value if isinstance(value, str) else str(value))
            raise UserError(
                f"--normalize {said}: give ENV=LOW:HIGH, the returns whose scores are 0 and 1, as "
                f"in {environments[0]}=0:500"
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
        self.seconds: dict[Path, dict[int, dict[int, float]]] = {}  # {run: {trial: {step: s}}}
        self.together: dict[tuple[Path, int], str] = {}
        for run in runs:
            self._read(run)
        for curve in curves:
            self.of(curve)
        said = list(dict.fromkeys(self._in_words(curve) for curve in curves))
        if len(said) > 1:
            warn(f"seconds of these curves do not compare: {'; '.join(said)}")
        self.text = f"Seconds without compilation, of {'; '.join(said)}." * bool(said)

    def _read(self, run: Path) -> None:
        found = self.seconds.setdefault(run, {})
        for entry in (one for one in experiment.open(run).entries if not one.retest):
            with_all = results.counted(len(entry.numbers), "trial")
            device = _device(entry.path)
            for rows in RunDir.open(entry.path).table().values():
                for number, row in zip(entry.numbers, rows):
                    seconds = _number(row.get("seconds"))
                    found.setdefault(number, {})[int(row["timestep"])] = seconds
                    self.together[run, number] = f"{with_all} at once on {device}"

    def _in_words(self, curve: comparison.Pooled) -> str:
        all_of_them = {self.together.get((t.run, t.outcome.number), "") for t in curve.trials}
        return " or ".join(sorted(filter(None, all_of_them)))

    def of(self, curve: comparison.Pooled) -> np.ndarray:
        """The mean over a curve's seeds at each point, (points,)."""
        rows = []
        for trial in curve.trials:
            own = self.seconds[trial.run].get(trial.outcome.number, {})
            row = np.array([own.get(int(step), np.nan) for step in curve.timesteps])
            if np.isnan(row).any():
                raise UserError(
                    f"--x: {trial.run} does not have the seconds of all points (runs of early "
                    "versions and rungs of halving store none): leave --x out"
                )
            rows.append(row)
        return np.mean(rows, axis=0)


def _sessions(run_dir: Path) -> list[dict[str, Any]]:
    """What versions.json says of the sessions of a run; nothing where it cannot be read."""
    try:
        return list(files.read_json(run_dir / "versions.json"))
    except UserError:
        return []


def _device(run_dir: Path) -> str:
    said = {
        f"{one['num_devices']} x {one['device'].partition(' ')[2]}" for one in _sessions(run_dir)
    }
    return " or ".join(sorted(said)) or "an unknown device"


def _commits(runs: set[Path]) -> str:
    """The commits that runs were trained with, as far as they are stored."""
    found: dict[str, None] = {}
    for run in sorted(runs):
        for entry in experiment.open(run).entries:
            for one in _sessions(entry.path) or [{}]:
                commit = one.get("git_commit")
                changed = " with uncommitted changes" * bool(one.get("git_dirty"))
                found[f"{commit[:10]}{changed}" if commit else "unknown"] = None
    return f"Trained with commit {', '.join(found)}."


def _range(numbers: set[int]) -> str:
    low, high = min(numbers, default=0), max(numbers, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
