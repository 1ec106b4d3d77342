"""The stages of a sweep: the rungs of halving, one after another, and a retest of what was best.

A sweep without either has one stage. When a rung after the first begins, its chunks are made from
the states of the trials that were kept. The chunks of a retest have new trials.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms.launch.engine import (
    devices,
    experiment,
    gathering,
    grids,
    halving,
    hosts,
    plans,
    programs,
    results,
    starts,
)
from algorithms.launch.engine.description import fill
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.metrics import Metrics
from algorithms.launch.engine.options import Options
from algorithms.launch.engine.record import Start
from algorithms.launch.engine.results import Outcome
from algorithms.launch.engine.session import Chunk, Result
from algorithms.launch.engine.settings import Trials, env_name
from algorithms.launch.engine.trainer import Trainer

RETEST_SEEDS = 32  # of each setting, where nothing else is asked for


class Stages(NamedTuple):
    """The arguments of a sweep besides its grid."""

    plan: halving.Plan = halving.ALL
    asked: grids.Asked = grids.Asked()
    seeds: range = range(1)  # of each setting
    options: Options = Options()
    path: Path | None = None

    @property
    def num_stages(self) -> int:
        return len(self.plan.rungs) + (self.asked.retest is not None)

    @property
    def retest_seeds(self) -> range:
        """Seeds that the sweep has not used."""
        wanted = self.asked.retest_seeds or RETEST_SEEDS
        return range(self.seeds.stop, self.seeds.stop + wanted)

    def is_retest(self, stage: int) -> bool:
        return stage >= len(self.plan.rungs)

    def first(self, chunk: Chunk) -> int:
        """The point at which the trials of a chunk came to its stage."""
        if chunk.retest or not self.plan.rungs[chunk.stage].number:
            return 0
        return self.plan.rungs[chunk.stage - 1].last(chunk.trainer.plan.points)

    def work(self, chunks: Sequence[Chunk]) -> list[float]:
        """Points of all trials in each stage; chunks that are not made yet have the longest curve.

        Args:
          chunks: those that are there.
        """
        points = max(chunk.trainer.plan.points for chunk in chunks)
        environments = len({env_name(chunk.trainer.config) for chunk in chunks})
        found, size = [], 0.0
        for stage in range(self.num_stages):
            mine = [chunk for chunk in chunks if chunk.stage == stage]
            if mine:
                size = sum(chunk.trials.count for chunk in mine)
                done = float(sum(c.trials.count * (c.num_points - self.first(c)) for c in mine))
            elif self.is_retest(stage):
                retested = environments * (self.asked.retest or 0) * len(self.retest_seeds)
                done = float(retested * points)
            else:
                before, rung = self.plan.rungs[stage - 1], self.plan.rungs[stage]
                size *= before.keep / before.settings
                done = size * (rung.last(points) - before.last(points))
            found.append(done)
        return found


def of(
    asked: grids.Asked,
    chunks: Sequence[Chunk],
    seeds: range,
    options: Options,
    path: Path | None = None,
) -> Stages:
    """The stages of a sweep; `chunks` are all of its trials but those of a retest.

    Raises:
      UserError: numbers that make no sense, together or alone.
    """
    num_settings = plans.num_settings(chunks, seeds)
    _check_retest(asked, num_settings, seeds)
    plan = _planned(asked, num_settings, plans.num_points(chunks))
    return Stages(plan, asked, seeds, options, path)


def _planned(asked: grids.Asked, num_settings: int, num_points: int) -> halving.Plan:
    """The rungs; one of all settings where no halving is asked for."""
    if asked.halving is None:
        given = [name for name in ("rungs", "brackets") if getattr(asked, name) is not None]
        if given:
            raise UserError(f"{' and '.join(given)} go with halving, which is missing: halving=3")
        return halving.ALL
    wanted = halving.Halving(asked.halving, asked.rungs, asked.brackets)
    return halving.plan(wanted, num_settings, num_points)


def _check_retest(asked: grids.Asked, num_settings: int, seeds: range) -> None:
    if asked.retest is None:
        if asked.retest_seeds is not None:
            raise UserError(f"retest_seeds={asked.retest_seeds}: goes with retest=3")
        return
    if not 1 <= asked.retest <= num_settings:
        able = f"1 to {num_settings}" if num_settings > 1 else "1"
        raise UserError(f"retest={asked.retest}: give {able}, the number of settings")
    if asked.retest_seeds is not None and asked.retest_seeds < 1:
        raise UserError(f"retest_seeds={asked.retest_seeds}: give 1 or more")
    if (last := Stages(asked=asked, seeds=seeds).retest_seeds.stop) > 2**32:
        raise UserError(f"retest_seeds: seeds go up to {2**32 - 1}, and {last - 1} would be used")


def first_rungs(stages: Stages, chunks: Sequence[Chunk]) -> list[Chunk]:
    """What trains in the first rung of each bracket; without halving the chunks themselves."""
    if not stages.plan.settings:
        return list(chunks)
    found, each = [], len(stages.seeds)
    for stage, rung in enumerate(stages.plan.rungs):
        if rung.number:
            continue
        mine = set(stages.plan.settings[rung.bracket])
        for chunk, settings in zip(chunks, _settings_of(chunks, each)):
            places = [i for i in range(chunk.trials.count) if settings[i // each] in mine]
            if not places:
                continue
            trainer = chunk.trainer
            if len(places) < chunk.trials.count:
                trainer = _another(trainer, len(places))
            more: dict[str, Any] = {"stage": stage, "last": rung.last(trainer.plan.points)}
            found.append(chunk.some(places)._replace(trainer=trainer, **more))
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


def following(
    stages: Stages, stage: int, chunks: Sequence[Chunk], outcomes: Mapping[int, Outcome], ends: Ends
) -> list[Chunk]:
    """Makes the chunks of a stage, of what came of those before it."""
    if stages.is_retest(stage):
        return _retest(stages, stage, chunks, [outcomes[n] for n in sorted(outcomes)])
    before = [number for chunk in chunks if chunk.stage == stage - 1 for number in chunk.numbers]
    ranked = results.rank([outcomes[number] for number in before], stages.asked.objective)
    keep = stages.plan.rungs[stage - 1].keep
    kept = halving.survivors(results.by_environment(ranked), keep)
    numbers = sorted(trial.number for setting in kept for trial in setting.trials)
    return _next_rung(stages, stage, numbers, ends, len(ranked))


def _next_rung(
    stages: Stages, stage: int, numbers: list[int], ends: Ends, num_ranked: int
) -> list[Chunk]:
    """Chunks of trials that are kept, which go on from their states."""
    groups = results.grouped(numbers, lambda number: _group_of(ends[number][0]))
    uncut = []
    for those in groups.values():
        chunk = ends[those[0]][0]
        trainer = _another(chunk.trainer, len(those))
        trials = joined([ends[number][0].trials.some([ends[number][1]]) for number in those])
        last = stages.plan.rungs[stage].last(trainer.plan.points)
        one = Chunk(trainer, trials, chunk.static, numbers=those, stage=stage, last=last)
        uncut.append(one)
    rung, view = stages.plan.rungs[stage], uncut[0].trainer.view
    view.say(
        f"{name_of(stages, stage)}: {len(numbers) // len(stages.seeds)} of {num_ranked} settings "
        f"go on, to {100 * rung.share:.0f} % of the run"
    )
    cut_up = plans.cut(view, uncut, stages.asked, start=False)
    made = [chunk for one in cut_up for chunk in one]
    if stages.path is None:
        return [chunk._replace(start=_start_in_memory(chunk, ends)) for chunk in made]

    def filling(chunk: Chunk, described: dict[str, Any]) -> Fill:
        froms = [ends[number] for number in chunk.numbers]
        sources = [(one.run_dir, place) for one, place, _ in froms if one.run_dir]
        like = programs.initial_state(chunk.trainer.module, chunk.trainer.config)
        return gathering.gathered(described, sources, stages.first(chunk), like)

    return _on_disk(stages, made, filling)


def _retest(
    stages: Stages, stage: int, chunks: Sequence[Chunk], outcomes: list[Outcome]
) -> list[Chunk]:
    """Chunks of the best settings with seeds that the sweep has not used."""
    ranked = results.by_environment(results.rank(outcomes, stages.asked.objective))
    best = halving.survivors(ranked, stages.asked.retest or 1)
    seeds = stages.retest_seeds
    homes = {number: chunk for chunk in chunks for number in chunk.numbers}
    first = 1 + max(number for chunk in chunks for number in chunk.numbers)
    again: list[tuple[Chunk, Trials]] = []
    for setting in best:
        number = setting.trials[0].number
        chunk = homes[number]
        one = chunk.trials.some([list(chunk.numbers).index(number)])
        floats = {name: np.repeat(value, len(seeds)) for name, value in one.floats.items()}
        again.append((chunk, Trials([*seeds], floats)))
    uncut = []
    for those in results.grouped(again, lambda pair: _group_of(pair[0])).values():
        chunk, trials = those[0][0], joined([trials for _, trials in those])
        trainer = _another(chunk.trainer, trials.count)
        numbers = range(first, first + trials.count)
        first += trials.count
        more: dict[str, Any] = {"numbers": numbers, "stage": stage, "retest": True}
        uncut.append(Chunk(trainer, trials, chunk.static, **more))
    view = uncut[0].trainer.view
    view.say(
        f"retest: the best {plans.counted(len(best), 'setting')} on "
        f"{plans.counted(len(seeds), 'other seed')}, {seeds[0]} to {seeds[-1]}"
    )
    cut_up = plans.cut(view, uncut, stages.asked, start=True)
    made = [chunk for one in cut_up for chunk in one]
    if stages.path is None:
        return made
    return _on_disk(stages, made, lambda _, run: functools.partial(fill, description=run))


def _another(trainer: Trainer, num_trials: int) -> Trainer:
    """The same configuration for another number of trials."""
    return Trainer(trainer.module, trainer.config, num_trials, trainer.view)


def _group_of(chunk: Chunk) -> str:
    """The same for chunks of one group; not `text_of`, which rounds numbers."""
    return repr(dict(chunk.static))


def _on_disk(
    stages: Stages, chunks: list[Chunk], filling: Callable[[Chunk, dict[str, Any]], Fill]
) -> list[Chunk]:
    """The chunks with their directories; `filling` gives what fills one, of its description."""
    runs = [chunk.described(stages.options) for chunk in chunks]
    fills = [filling(chunk, run) for chunk, run in zip(chunks, runs)]
    entries = [entry_of(stages, chunk) for chunk in chunks]
    made = experiment.extend(Path(stages.path or ""), runs, entries, fills)
    return [
        chunk._replace(
            run_dir=run_dir, start=starts.starting(chunk.trainer, run_dir, None, finished=None)
        )
        for chunk, run_dir in zip(chunks, made)
    ]


def entry_of(stages: Stages, chunk: Chunk) -> dict[str, Any]:
    """What sweep.json says of a chunk beside its name and size."""
    entry: dict[str, Any] = {"stage": chunk.stage, "trials": list(chunk.numbers)}
    entry |= {"block": chunk.trainer.layout.block}
    if chunk.last is not None:
        entry |= {"last": chunk.last, "share": stages.plan.rungs[chunk.stage].share}
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

    def get_state(trials: range) -> Any:
        states = []
        for chunk_before, place, result in froms[trials.start : trials.stop]:
            if chunk_before.trials.count == 1:  # its state has no axis of trials
                states.append(jax.tree.map(lambda x: x[None], result.state))
            else:
                states.append(gathering.taken(result.state, np.array([place])))
        return devices.joined(states)

    is_finite = np.array([result.is_finite[place] for _, place, result in froms])
    return Start(point, get_state, history, True, is_finite)


def joined(parts: Sequence[Trials]) -> Trials:
    """Trials one after another, which have the same floats."""
    floats = {name: np.concatenate([p.floats[name] for p in parts]) for name in parts[0].floats}
    return Trials([seed for part in parts for seed in part.seeds], floats)


# --- words -----------------------------------------------------------------------------------


def name_of(stages: Stages, stage: int) -> str:
    """What a stage is called; empty where there is one."""
    if stages.num_stages == 1:
        return ""
    if stages.is_retest(stage):
        return "retest"
    rung = stages.plan.rungs[stage]
    if len(stages.plan.rungs) == 1:
        return "sweep"
    count = sum(other.bracket == rung.bracket for other in stages.plan.rungs)
    brackets = 1 + stages.plan.rungs[-1].bracket
    bracket = f"bracket {rung.bracket + 1} of {brackets}, " if brackets > 1 else ""
    return f"{bracket}rung {rung.number + 1} of {count}"


def steps_of(stages: Stages, chunks: Sequence[Chunk]) -> tuple[int, int]:
    """Environment steps that the sweep's trials trained, and what all would have to their end.

    A retest does not count.
    """
    trained = whole = 0
    for chunk in chunks:
        if chunk.retest:
            continue
        plan = chunk.trainer.plan
        steps = plan.steps // plan.points * chunk.trials.count
        trained += steps * (chunk.num_points - stages.first(chunk))
        is_first = not stages.plan.rungs[chunk.stage].number
        whole += steps * plan.points * is_first
    return trained, whole
