"""The results of a sweep: a row for each trial, settings in order of their returns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.engine import intervals, objectives
from algorithms.launch.engine.metrics import Metrics, as_csv, mean_returns
from algorithms.launch.engine.progress import brief
from algorithms.launch.engine.settings import Trials, plain, text_of

SHOWN = 10  # settings in the table on the screen


class Outcome(NamedTuple):
    """One trial and its learning curve."""

    setting: dict[str, Any]  # swept fields, static ones first
    seed: int
    timesteps: np.ndarray  # (points,)
    returns: np.ndarray  # (points,); of evaluations if there are any, else of training
    is_finite: bool  # the numbers of its policy and its losses
    run: str  # name of the directory it is in
    trial: int  # which one it is there
    bracket: int = 0  # of a sweep with halving
    rung: int = 0  # of the bracket: the one that it has come to
    share: float = 1.0  # of the whole run, at which that rung ends
    reached: float = 1.0  # share of the way there; less where a stop has cut it short
    number: int = 0  # in results.csv

    def __repr__(self) -> str:
        return brief(self)

    @property
    def agent(self) -> int:
        """The earlier name of `trial`."""
        return self.trial

    def after(self, before: "Outcome | None") -> "Outcome":
        """The same, no shorter than its earlier rung, whose end was rounded to a point."""
        least = before.share * before.reached / self.share if before else 0.0
        return self._replace(reached=max(self.reached, least))

    @property
    def final(self) -> float:
        """The return at the last point; NaN for a trial that broke."""
        return float(self.returns[-1]) if self.is_finite and len(self.returns) else np.nan

    @property
    def area(self) -> float:
        """The mean return over the curve (the area under it, divided by its length)."""
        there = ~np.isnan(self.returns)
        x, y = self.timesteps[there], self.returns[there]
        if len(x) < 2:
            return float(y[0]) if len(y) else np.nan
        return float(np.trapezoid(y, x) / (x[-1] - x[0]))


class Part(NamedTuple):
    """Trials that trained at once, and what has come of them: in memory, or read from the disk."""

    setting: Mapping[str, Any]  # fields of all of them
    trials: Trials
    metrics: Metrics  # (num_trials, points, ...); empty where there are none yet
    is_finite: np.ndarray  # (num_trials,)
    run: str = ""  # name of the directory
    numbers: Sequence[int] = ()  # of the trials in results.csv
    retest: bool = False
    bracket: int = 0
    rung: int = 0
    share: float = 1.0  # as of `Outcome`
    reached: float = 1.0

    def outcomes(self, metric: str | None = None) -> list[Outcome]:
        """Its trials; returns are those of a metric, by default of evaluations if there are any."""
        if not self.metrics:
            return []
        returns = mean_returns(self.metrics, metric)
        each = enumerate(self.numbers or range(self.trials.count))
        return [
            Outcome(
                setting={**self.setting, **self.trials.setting(i)},
                seed=self.trials.seeds[i],
                timesteps=self.metrics["timestep"][i],
                returns=returns[i],
                is_finite=bool(self.is_finite[i]),
                run=self.run,
                trial=i,
                bracket=self.bracket,
                rung=self.rung,
                share=self.share,
                reached=self.reached,
                number=number,
            )
            for i, number in each
        ]


class Came(NamedTuple):
    """What trials have come to, by their numbers; each stands where it came furthest."""

    first: dict[int, Outcome]
    retested: dict[int, Outcome]

    def add(self, part: Part, metric: str | None = None) -> None:
        """Adds a part; a later rung comes after those before it."""
        into = self.retested if part.retest else self.first
        for one in part.outcomes(metric):
            into[one.number] = one.after(into.get(one.number))

    @property
    def trials(self) -> list[Outcome]:
        """In the order of results.csv."""
        return [one for _, one in sorted(self.first.items())]

    @property
    def retests(self) -> list[Outcome]:
        """In the order of retest.csv."""
        return [one for _, one in sorted(self.retested.items())]


def csv(trials: Sequence[Outcome], objective: str = objectives.DEFAULT) -> str:
    """A row for each trial: settings, seed, final and best return, area under the curve.

    With another objective than the default, what it gives the trial's setting, too.
    """
    names = list(trials[0].setting)
    named = objective != objectives.DEFAULT
    scores = {id(t): s.score(objective) for s in rank(trials) for t in s.trials} if named else {}
    halved = len({trial.share for trial in trials}) > 1
    head = ["trial", *names, "seed", "final_return", "best_return", "best_timestep", "timestep"]
    head += ["mean_return", "is_finite", "run", "trial_of_run", *["bracket", "rung"] * halved]
    head += ["objective"] * named
    rows: list[list[Any]] = [head]
    for trial in trials:
        curve = np.where(np.isnan(trial.returns), -np.inf, trial.returns)
        best = int(np.argmax(curve))
        values = [trial.setting[name] for name in names]
        row = [v if isinstance(v, int | float) else plain(v) for v in values]
        row = [trial.number, *row, trial.seed]
        row += [float(trial.returns[-1]), float(trial.returns[best]), int(trial.timesteps[best])]
        row += [int(trial.timesteps[-1]), trial.area, int(trial.is_finite), trial.run, trial.trial]
        row += [trial.bracket, trial.rung] * halved
        row += [objectives.value(objective, scores[id(trial)])] if named else []
        rows.append(row)
    return as_csv(rows)


# --- settings --------------------------------------------------------------------------------


class Ranked(NamedTuple):
    """A setting and its seeds."""

    setting: dict[str, Any]
    trials: list[Outcome]

    def __repr__(self) -> str:
        return brief(self)

    @property
    def agents(self) -> list[Outcome]:
        """The earlier name of `trials`."""
        return self.trials

    @property
    def environment(self) -> str:
        """Its environment where that was swept; else empty."""
        return plain(self.setting["env"]) if "env" in self.setting else ""

    @property
    def finals(self) -> np.ndarray:
        """Returns at the last point of the trials that have one."""
        values = np.array([trial.final for trial in self.trials])
        return values[~np.isnan(values)]

    @property
    def share(self) -> float:
        """How much of the whole run halving, or a stop, has let all of its trials train."""
        return min((trial.share * trial.reached for trial in self.trials), default=1.0)

    @property
    def steps(self) -> int:
        """The timestep of its last point, of the trial that has come furthest."""
        return max((int(trial.timesteps[-1]) for trial in self.trials), default=0)

    @property
    def broken(self) -> int:
        return sum(not trial.is_finite for trial in self.trials)

    @property
    def mean(self) -> float:
        return float(self.finals.mean()) if len(self.finals) else -np.inf

    @property
    def area(self) -> float:
        """The mean return over the curves of the trials that have one."""
        values = np.array([trial.area for trial in self.trials])
        values = values[~np.isnan(values)]
        return float(values.mean()) if len(values) else -np.inf

    def score(self, objective: str = objectives.DEFAULT) -> float:
        """How good it is, the higher the better, see `objectives.score`."""
        return objectives.score(objective, self.trials)


def rank(trials: Sequence[Outcome], objective: str = objectives.DEFAULT) -> list[Ranked]:
    """Settings by an objective, by default their mean final return; broken trials make them last.

    In a sweep with halving, or one that was stopped, settings that trained longer come first. Of
    equal scores, the higher final return comes first, then the higher mean over the curve, which
    learned faster. Settings that still tie keep their order. With several environments, each one's
    settings stand together, because their returns do not compare.
    """
    groups = grouped(trials, lambda trial: str(trial.setting)).values()
    keys = lambda s: (s.broken > 0, -s.share, -s.score(objective), -s.mean, -s.area)
    settings = [Ranked(those[0].setting, those) for those in groups]
    environments = list(by_environment(settings))
    return sorted(settings, key=lambda s: (environments.index(s.environment), *keys(s)))


def by_environment(ranked: Sequence[Ranked]) -> dict[str, list[Ranked]]:
    """The settings of each environment, the best first; one name, "", where one was trained."""
    return grouped(ranked, lambda setting: setting.environment)


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """Items with equal keys together; groups and items keep their order."""
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


class Retested(NamedTuple):
    """A setting on the seeds of a sweep, and on others that had no part in choosing it."""

    tuned: Ranked
    again: Ranked

    def __repr__(self) -> str:
        return brief(self)

    @property
    def luck(self) -> float:
        """The mean return on the sweep's seeds minus that on fresh ones (Eimer et al. 2023,
        https://arxiv.org/abs/2306.01324). NaN if one is missing, or if halving stopped the setting
        early: its return then is not that of a whole run."""
        known = len(self.tuned.finals) and len(self.again.finals) and not self.is_early
        return self.tuned.mean - self.again.mean if known else np.nan

    @property
    def is_early(self) -> bool:
        """Whether halving stopped the setting before the end of its run."""
        return self.tuned.share < 1.0


def retests(
    ranked: Sequence[Ranked], trials: Sequence[Outcome], objective: str = objectives.DEFAULT
) -> list[Retested]:
    """The retested settings, those that came out best on the new seeds first."""
    tuned = {str(setting.setting): setting for setting in ranked}
    return [Retested(tuned[str(again.setting)], again) for again in rank(trials, objective)]


def retest_table(retested: Sequence[Retested], objective: str = objectives.DEFAULT) -> str:
    """Both returns of each setting, and their difference; another objective is that of the new
    seeds."""
    groups, blocks = grouped(retested, lambda one: one.again.environment), []
    for environment, those in groups.items():
        seeds = len(those[0].again.trials)
        names = [name for name in those[0].again.setting if name != "env" or len(groups) == 1]
        named = [objective] * (objective != objectives.DEFAULT)
        means = [
            "sweep",
            f"retest, {seeds} seed{'s' * (seeds > 1)}",
            intervals.interval_name(seeds),
            "luck",
        ]
        rows = [["rank", *names, *named, *means, ""]]
        for place, one in enumerate(those, 1):
            values = [plain(one.again.setting[name]) for name in names]
            values += [objectives.text(objective, one.again.score(objective)) for _ in named]
            tuned = f"{_mean_text(one.tuned)}{' (early)' * one.is_early}"
            luck = "-" if np.isnan(one.luck) else f"{one.luck:+.3g}"
            numbers = [tuned, _mean_text(one.again), _interval_text(one.again), luck]
            note = f"{one.again.broken} not finite" if one.again.broken else ""
            rows.append([str(place), *values, *numbers, note])
        title = f"{environment}:\n" if len(groups) > 1 else ""
        blocks.append(title + "\n".join(aligned(rows)))
    return "\n".join(blocks)


def _mean_text(setting: Ranked) -> str:
    return f"{setting.mean:.5g}" if len(setting.finals) else "-"


def _interval_text(setting: Ranked) -> str:
    """What `intervals.interval_name` says of the column; the mean has a column of its own."""
    found = intervals.estimate(setting.finals, len(setting.trials))
    if np.isnan(found.low):
        return "-"
    words = f"{found.low:.5g} to {found.high:.5g}"
    return words if len(setting.trials) < intervals.MANY else f"{found.middle:.5g} ({words})"


def table(ranked: Sequence[Ranked], objective: str = objectives.DEFAULT) -> str:
    """The best settings of each environment, with what their seeds tell about the mean.

    Steps are there where they differ, the objective where it is not the default, and the mean over
    the curve where it broke a tie.
    """
    groups = by_environment(ranked)
    if len(groups) == 1:
        return _table(ranked, list(ranked[0].setting), objective)
    names = [name for name in ranked[0].setting if name != "env"]
    return "\n".join(f"{env}:\n{_table(those, names, objective)}" for env, those in groups.items())


def _table(ranked: Sequence[Ranked], names: Sequence[str], objective: str) -> str:
    steps = ["steps"] * (len({setting.steps for setting in ranked}) > 1)
    ties = [(setting.score(objective), setting.mean) for setting in ranked]
    curve = ["mean of curve"] * (len(set(ties)) < len(ties))
    named = [objective] * (objective != objectives.DEFAULT)
    of_seeds = intervals.interval_name(len(ranked[0].trials))
    head = ["seeds", *steps, *named, "return", of_seeds, "lowest", *curve, ""]
    rows = [["rank", *names, *head]]
    for place, setting in enumerate(ranked[:SHOWN], 1):
        finals = np.sort(setting.finals)
        numbers = ["-"] * (3 + len(curve))
        if len(finals):
            numbers = [_mean_text(setting), _interval_text(setting), f"{finals[0]:.5g}"]
            numbers += [f"{setting.area:.5g}" for _ in curve]
        note = f"{setting.broken} not finite" if setting.broken else ""
        values = [plain(setting.setting[name]) for name in names]
        values += [str(len(setting.trials)), *[f"{setting.steps:,}" for _ in steps]]
        values += [objectives.text(objective, setting.score(objective)) for _ in named]
        rows.append([str(place), *values, *numbers, note])
    lines = aligned(rows)
    if len(ranked) > SHOWN:
        lines.append(f"... and {counted(len(ranked) - SHOWN, 'setting')} more")
    returns = np.concatenate([trial.returns for setting in ranked for trial in setting.trials])
    known = returns[~np.isnan(returns)]
    if len(ranked) > 1 and len(known) and not known.any():
        lines.append("all returns are 0, as in games of two players: no setting is better")
    return "\n".join(lines)


def broken(trials: Sequence[Outcome]) -> str:
    """The settings and seeds of trials that are not finite."""
    groups = grouped(trials, lambda trial: ", ".join(text_of(trial.setting)))
    lines = []
    for name, those in list(groups.items())[:SHOWN]:
        seeds = f"seeds {', '.join(str(trial.seed) for trial in those)}"
        lines.append(f"{name}: {seeds}" if name else seeds)
    more = [f"{counted(len(groups) - SHOWN, 'setting')} more"] * (len(groups) > SHOWN)
    return f"not finite: {'; '.join(lines + more)}"


def counted(number: int, noun: str) -> str:
    """1 trial, 2 trials."""
    return f"{number} {noun}{'s' * (number != 1)}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, with every column as wide as it needs to be."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]
