"""The chunks of a sweep's stages, which are made when the stage before is done (schedule.py).

The chunks of a rung after the first begin with the states of the trials that were kept, those of a
retest anew.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.engine import (
    experiment,
    hosts,
    plans,
    programs,
    results,
    sources,
    starts,
)
from algorithms.launch.engine import schedule as schedules
from algorithms.launch.engine.description import fill
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.metrics import Metrics
from algorithms.launch.engine.options import Options
from algorithms.launch.engine.record import Start
from algorithms.launch.engine.results import Outcome
from algorithms.launch.engine.schedule import Next, Schedule
from algorithms.launch.engine.session import Chunk, Result
from algorithms.launch.engine.settings import Trials, env_name
from algorithms.launch.engine.sources import Kept, Source


class Stages(NamedTuple):
    """A sweep besides its trials."""

    schedule: Schedule = Schedule()
    options: Options = Options()
    path: Path | None = None

    def first(self, chunk: Chunk) -> int:
        """The point at which the trials of a chunk came to its stage."""
        return self.schedule.first(chunk.stage, chunk.trainer.plan.points)

    def work(self, chunks: Sequence[Chunk]) -> list[float]:
        """Points of all trials in each stage; chunks that are not made yet have the longest curve.

        Args:
          chunks: those that are there.
        """
        points = max(chunk.trainer.plan.points for chunk in chunks)
        environments = len({env_name(chunk.trainer.config) for chunk in chunks})
        asked, rungs = self.schedule.asked, self.schedule.plan.rungs
        found, size = [], 0.0
        for stage in range(self.schedule.num_stages):
            mine = [chunk for chunk in chunks if chunk.stage == stage]
            if mine:
                size = sum(chunk.trials.count for chunk in mine)
                done = float(sum(c.trials.count * (c.num_points - self.first(c)) for c in mine))
            elif rung := self.schedule.rung(stage):
                before = rungs[stage - 1]
                size *= before.keep / before.settings
                done = size * (rung.last(points) - before.last(points))
            else:
                seeds = len(self.schedule.retest_seeds)
                done = float(environments * (asked.retest or 0) * seeds * points)
            found.append(done)
        return found

    def steps(self, chunks: Sequence[Chunk]) -> tuple[int, int]:
        """Environment steps that the trials trained, and what all would have to their end.

        A retest does not count.
        """
        trained = whole = 0
        for chunk in chunks:
            if not (rung := self.schedule.rung(chunk.stage)):
                continue
            plan = chunk.trainer.plan
            steps = plan.steps // plan.points * chunk.trials.count
            trained += steps * (chunk.num_points - self.first(chunk))
            whole += steps * plan.points * (not rung.number)
        return trained, whole


def of(chunks: Sequence[Chunk], asked: Any, seeds: range, options: Options) -> Stages:
    """The stages of a sweep; `chunks` are all of its trials but those of a retest.

    Raises:
      UserError: numbers that make no sense, together or alone.
    """
    num_settings, num_points = plans.num_settings(chunks, seeds), plans.num_points(chunks)
    return Stages(schedules.of(asked, seeds, num_settings, num_points), options)


def first_rungs(stages: Stages, chunks: Sequence[Chunk]) -> list[Chunk]:
    """What trains in the first rung of each bracket; without halving the chunks themselves."""
    plan, each = stages.schedule.plan, len(stages.schedule.seeds)
    if not plan.settings:
        return list(chunks)
    found = []
    for stage, rung in enumerate(plan.rungs):
        if rung.number:
            continue
        mine = set(plan.settings[rung.bracket])
        for chunk, settings in zip(chunks, _settings_of(chunks, each)):
            places = [i for i in range(chunk.trials.count) if settings[i // each] in mine]
            if places:
                last = rung.last(chunk.trainer.plan.points)
                found.append(chunk.some(places)._replace(stage=stage, last=last))
    return found


def _settings_of(chunks: Sequence[Chunk], num_seeds: int) -> list[list[int]]:
    """The numbers of each chunk's settings, counted in each environment by itself."""
    counts: dict[str, int] = {}
    found = []
    for chunk in chunks:
        environment = env_name(chunk.trainer.config)
        first, size = counts.get(environment, 0), chunk.trials.count // num_seeds
        found.append([*range(first, first + size)])
        counts[environment] = first + size
    return found


# --- the chunks of a later stage -------------------------------------------------------------

Ends = Mapping[int, tuple[Chunk, int, Result]]  # {trial: its chunk, its place there, what came}
Fill = Callable[[Path], None]  # writes what a chunk's directory has in the beginning


def following(stages: Stages, stage: int, outcomes: Sequence[Outcome], ends: Ends) -> list[Chunk]:
    """Makes the chunks of a stage.

    Args:
      outcomes: of all trials so far, in the order of their numbers.
      ends: of the same trials.
    """
    trials = stages.schedule.following(stage, outcomes)
    goes_on = trials[0].goes_on
    groups = results.grouped(trials, lambda trial: _group_of(ends[trial.like][0]))
    uncut = [_uncut(stages, stage, those, ends) for those in groups.values()]
    view = uncut[0].trainer.view
    view.say(_announced(stages, stage, trials))
    cut_up = plans.cut(view, uncut, stages.schedule.asked, start=not goes_on)
    made = [chunk for one in cut_up for chunk in one]
    if stages.path:
        return _on_disk(stages, stages.path, made, ends if goes_on else None)
    if not goes_on:
        return made
    return [chunk._replace(start=_start_in_memory(chunk, ends)) for chunk in made]


def _uncut(stages: Stages, stage: int, trials: Sequence[Next], ends: Ends) -> Chunk:
    """A chunk of all trials of one configuration."""
    like = [ends[trial.like] for trial in trials]
    before = like[0][0]
    floats = joined([chunk.trials.some([place]) for chunk, place, _ in like]).floats
    rung = stages.schedule.rung(stage)
    return Chunk(
        trainer=before.trainer,
        trials=Trials([trial.seed for trial in trials], floats),
        static=before.static,
        numbers=[trial.number for trial in trials],
        stage=stage,
        retest=rung is None,
        last=rung and rung.last(before.trainer.plan.points),
    )


def _group_of(chunk: Chunk) -> str:
    """The same for chunks of one group; not `text_of`, which rounds numbers."""
    return repr(dict(chunk.static))


def _announced(stages: Stages, stage: int, trials: Sequence[Next]) -> str:
    """What a stage is, for people."""
    rung, name = stages.schedule.rung(stage), stages.schedule.name(stage)
    if rung is None:
        seeds = stages.schedule.retest_seeds
        number = results.counted(len(trials) // len(seeds), "setting")
        on = results.counted(len(seeds), "other seed")
        return f"{name}: the best {number} on {on}, {seeds[0]} to {seeds[-1]}"
    before = stages.schedule.plan.rungs[stage - 1]
    going = len(trials) // len(stages.schedule.seeds)
    of = going // before.keep * before.settings
    return f"{name}: {going} of {of} settings go on, to {100 * rung.share:.0f} % of the run"


def _on_disk(stages: Stages, path: Path, chunks: list[Chunk], ends: Ends | None) -> list[Chunk]:
    """The chunks with their directories; they go on from `ends` if there are some."""
    runs = [chunk.described(stages.options) for chunk in chunks]
    fills = [_filled(stages, chunk, run, ends) for chunk, run in zip(chunks, runs)]
    entries = [entry_of(stages, chunk) for chunk in chunks]
    made = experiment.extend(path, runs, entries, fills)
    start = lambda chunk, run_dir: starts.starting(chunk.trainer, run_dir, None, finished=None)
    return [
        chunk._replace(run_dir=run_dir, start=start(chunk, run_dir))
        for chunk, run_dir in zip(chunks, made)
    ]


def _filled(stages: Stages, chunk: Chunk, described: dict[str, Any], ends: Ends | None) -> Fill:
    """What fills a chunk's directory."""
    if ends is None:
        return functools.partial(fill, description=described)
    first, froms = stages.first(chunk), [ends[number] for number in chunk.numbers]
    come = [Source(before.run_dir, place, first) for before, place, _ in froms]
    like = programs.initial_state(chunk.trainer.module, chunk.trainer.config)
    return sources.gathered(described, come, like)


def entry_of(stages: Stages, chunk: Chunk) -> dict[str, Any]:
    """What sweep.json says of a chunk beside its name and size."""
    entry: dict[str, Any] = {"stage": chunk.stage, "trials": list(chunk.numbers)}
    entry |= {"block": chunk.trainer.layout.block}
    if chunk.last is not None:
        entry |= {"last": chunk.last, "share": stages.schedule.plan.rungs[chunk.stage].share}
    return entry | {"retest": True} if chunk.retest else entry


def _start_in_memory(chunk: Chunk, ends: Ends) -> Start:
    """Where a chunk without files goes on, from what came of the chunks before."""
    if hosts.count() > 1:
        raise UserError("halving in several processes needs files: leave save=False out")
    froms = [ends[number] for number in chunk.numbers]
    kept = [{name: x[place] for name, x in r.metrics.items()} for _, place, r in froms]
    points = len(next(iter(kept[0].values()))) if kept[0] else 0
    point = froms[0][0].num_points
    history: dict[int, Metrics] = {
        point - points + 1 + i: {name: np.stack([one[name][i] for one in kept]) for name in kept[0]}
        for i in range(points)
    }

    kept_of = lambda before, result: Kept(id(before), result.state, before.trials.count == 1)
    come = [Source(kept_of(before, result), place, point) for before, place, result in froms]

    def get_state(trials: range) -> Any:
        read = lambda run, _, part: run.read(part)
        return sources.rows(come[trials.start : trials.stop], read)

    is_finite = np.array([result.is_finite[place] for _, place, result in froms])
    return Start(point, get_state, history, True, is_finite)


def joined(parts: Sequence[Trials]) -> Trials:
    """Trials one after another, which have the same floats."""
    floats = {name: np.concatenate([p.floats[name] for p in parts]) for name in parts[0].floats}
    return Trials([seed for part in parts for seed in part.seeds], floats)
