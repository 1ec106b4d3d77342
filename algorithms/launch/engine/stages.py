"""The chunks of a sweep's stages, which are made when the stage before is done (schedule.py).

The chunks of a rung after the first begin with the states of the trials that were kept, those of a
retest anew. Which trials train at once is decided by memory and by what is asked for.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from algorithms import parts
from algorithms.launch.engine import (
    devices,
    experiment,
    grids,
    hosts,
    programs,
    progress,
    results,
    sources,
    starts,
)
from algorithms.launch.engine import schedule as schedules
from algorithms.launch.engine.errors import UserError, warn
from algorithms.launch.engine.interrupts import in_background
from algorithms.launch.engine.metrics import Metrics
from algorithms.launch.engine.options import Options
from algorithms.launch.engine.programs import excess, in_words, length, usable_capacity
from algorithms.launch.engine.record import Start
from algorithms.launch.engine.results import Outcome
from algorithms.launch.engine.run_dir import fill
from algorithms.launch.engine.schedule import Next, Schedule
from algorithms.launch.engine.session import Chunk, Result
from algorithms.launch.engine.settings import Trials, env_name
from algorithms.launch.engine.sources import Kept, Source
from algorithms.launch.engine.sweep_dir import title_of


class Stages(NamedTuple):
    """A sweep besides its trials."""

    schedule: Schedule = Schedule()
    options: Options = Options()
    path: Path | None = None

    def first(self, chunk: Chunk) -> int:
        """The point at which the trials of a chunk came to its stage."""
        return self.schedule.first(chunk.stage, chunk.trainer.plan.points)

    def work(self, chunks: Sequence[Chunk]) -> float:
        """Points of all trials; chunks that are not made yet have the longest curve.

        Args:
          chunks: those that are there.
        """
        points = max(chunk.trainer.plan.points for chunk in chunks)
        environments = len({env_name(chunk.trainer.config) for chunk in chunks})
        asked, rungs = self.schedule.asked, self.schedule.plan.rungs
        found = size = 0.0
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
            found += done
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
    names = {env_name(chunk.trainer.config) for chunk in chunks}
    numbers = {number for chunk in chunks for number in chunk.numbers}
    num_settings = len(numbers) // len(seeds) // len(names)  # of each environment
    num_points = min(chunk.trainer.plan.points for chunk in chunks)
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
        for chunk, numbers in zip(chunks, _settings_of(chunks, each)):
            places = [i for i in range(chunk.trials.count) if numbers[i // each] in mine]
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
    cut_up = cut(view, uncut, stages.schedule.asked, start=not goes_on)
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
    floats = {
        name: np.array([chunk.trials.floats[name][place] for chunk, place, _ in like])
        for name in before.trials.floats
    }
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
    return functools.partial(sources.gather, description=described, sources=come, like=like)


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


def check_limits(asked: grids.Asked) -> None:
    if asked.max_parallel is not None and asked.max_parallel < 1:
        raise UserError(f"max_parallel={asked.max_parallel}: give 1 or more")
    if asked.memory_limit is not None and asked.memory_limit < 1:
        raise UserError(f"memory_limit={asked.memory_limit}: give a number of bytes")


def cut(
    view: progress.Progress, uncut: Sequence[Chunk], asked: grids.Asked, start: bool
) -> list[list[Chunk]]:
    """Compiles the programs, some at a time. Returns the chunks of each of `uncut`.

    Args:
      uncut: trials of one configuration each. Those with the same trainer share its programs, and
        so does a stage with the one before it, where `Trainer.again` finds that they do.
      start: the trials are new; others go on from states that exist.
    """
    limit = asked.memory_limit or usable_capacity(uncut[0].trainer.layout)
    found: dict[int, list[Chunk]] = {}

    def fit(places: list[int]) -> None:
        for i in sorted(places, key=lambda i: -uncut[i].trials.count):  # the largest first
            chunk, config = uncut[i], uncut[i].trainer.config
            floats = chunk.trials.floats
            swept = {n: np.unique(x).tolist() for n, x in floats.items() if hasattr(config, n)}
            with parts.asked_for(swept):
                given = chunk.trials.count, asked.max_parallel, limit, start
                trainer, cut_up = chunk.trainer.again(*given)
            found[i] = [chunk.some(part)._replace(trainer=trainer) for part in cut_up]

    def fit_all() -> None:
        mine = results.grouped(range(len(uncut)), lambda i: id(uncut[i].trainer))
        with ThreadPoolExecutor(devices.num_cores()) as pool:
            list(pool.map(parts.usual_jax()(fit), mine.values()))

    with view.timed("compile"):
        in_background(fit_all)
    return [found[i] for i in range(len(uncut))]


def announce(
    view: progress.Progress, uncut: Sequence[Chunk], asked: grids.Asked, num_seeds: int
) -> None:
    """Prints what a new sweep is, and warns of programs that train for longer than asked."""
    count = sum(chunk.trials.count for chunk in uncut)
    kinds = (
        f"{results.counted(count // num_seeds, 'setting')} x {results.counted(num_seeds, 'seed')}"
    )
    trainers = [chunk.trainer for chunk in uncut]
    name = title_of(trainers[0].module, [trainer.config for trainer in trainers])
    view.say(f"{name}: a sweep of {results.counted(count, 'trial')}, {kinds}")
    given, left = len(asked.settings or ()), count // num_seeds
    if given > left and hosts.is_first():
        warn(f"settings: equal ones train once, which leaves {left} of {given}")
    for line in grids.remarks(asked, [chunk.static for chunk in uncut], count // num_seeds):
        view.say(line)
    longer: dict[str, None] = {}  # each text once, of the brackets of a group
    for chunk in uncut:
        if text := excess(chunk.trainer.config, chunk.trainer.plan):
            longer[": ".join(filter(None, [chunk.label, text]))] = None
    for text in longer if hosts.is_first() else ():
        warn(text)


def announce_resumed(view: progress.Progress, sweep_dir: Path, chunks: list[Chunk]) -> None:
    finished = sum(c.is_finished for c in chunks)
    devices = len(chunks[0].trainer.layout.devices)
    view.say(
        f"{title_of(chunks[0].trainer.module, [c.trainer.config for c in chunks])}: going on with "
        f"{sweep_dir}, {finished} of {len(chunks)} chunks "
        f"are done; {devices} device{'s' * (devices > 1)}"
    )


def compile_unfinished(chunks: list[Chunk]) -> None:
    """Compiles programs of unfinished chunks; refuses those that do not fit on these devices."""
    for trainer in {id(c.trainer): c.trainer for c in chunks if not c.is_finished}.values():
        mine = [c for c in chunks if c.trainer is trainer and not c.is_finished]
        trainer.compile(start=any(c.start.get_state is None for c in mine))
        trainer.check_capacity("as many devices as before would do")


def say_plan(
    view: progress.Progress, uncut: Sequence[Chunk], cut_up: Sequence[Sequence[Chunk]]
) -> None:
    """A line for each program: its trials, chunks, devices and memory."""
    for number, (one, chunks) in enumerate(zip(uncut, cut_up), 1):
        trainer, layout = chunks[0].trainer, chunks[0].trainer.layout
        which = f"group {number} of {len(uncut)}"
        name = f"{which} ({one.label})" if one.label else which
        count, used = len(chunks), len(layout.devices)
        parts = f"{count} chunks of {chunks[0].trials.count}" if count > 1 else "all at once"
        where = results.counted(used, f"{layout.devices[0].platform} device")
        each = in_words(trainer.bytes_per_device / layout.per_device)
        whole = in_words(trainer.bytes_per_device)
        points = [length(trainer.plan), results.counted(trainer.plan.points, "point")]
        view.say(
            f"{name}: {results.counted(one.trials.count, 'trial')}, {parts}, on {where}; "
            f"{each} a trial, {whole} a device; {', '.join(filter(None, points))}"
        )
