"""How runs and sweeps begin and go on: a run is a sweep of one group of trials, in one chunk."""

import contextlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from algorithms import parts
from algorithms.launch.engine import (
    devices,
    experiment,
    files,
    grids,
    hosts,
    initial,
    loading,
    loop,
    objectives,
    population,
    settings,
    stages,
    starts,
    states,
)
from algorithms.launch.engine.distributions import Choice, Distribution
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.experiment import withdrawn_unless_begun
from algorithms.launch.engine.hosts import locked
from algorithms.launch.engine.interrupts import in_background
from algorithms.launch.engine.loop import Swept
from algorithms.launch.engine.options import (
    Options,
    check_algorithm,
    check_bools,
    check_files,
    check_floats,
    check_hooks,
    describe,
    init_to_json,
    make_options,
    options_of,
)
from algorithms.launch.engine.outputs import Hooks, Output, Pictures, Saving
from algorithms.launch.engine.programs import Trainer
from algorithms.launch.engine.progress import Progress
from algorithms.launch.engine.record import Point
from algorithms.launch.engine.session import Chunk, Result
from algorithms.launch.engine.stages import Stages
from algorithms.launch.engine.sweep_dir import OPTIONAL, asked_of, describe_sweep

Functions = Sequence[Callable[[Point], None]]


class Home(NamedTuple):
    """The place of a new run or sweep."""

    path: Path | str | None  # None: named after it, below root
    resume_if_exists: bool
    root: Path | str
    save: bool


@hosts.together()
@parts.usual_jax()
def begin(
    module: Any,
    config: Any,
    asked: grids.Asked | None,
    seeds: range,
    place: Home,
    functions: Functions,
    view: Progress,
    options: dict[str, Any],
) -> Result | Swept:
    """A sweep, or without `asked` a run: one group of trials, which train at once."""
    check_bools(save=place.save, resume_if_exists=place.resume_if_exists, quiet=view.quiet)
    for path in (place.path, place.root) if place.save else ():
        files.local(path or "")
    chosen, is_sweep = make_options(options), asked is not None
    if place.path is not None and not place.save:
        raise UserError(f"save=False makes no directory: leave {place.path} or save=False out")
    there = place.path if place.resume_if_exists and place.save else None
    if there is not None and not experiment.is_there(there, is_sweep):
        there = None
    config = loading.pinned(settings.plain_config(config, module.Config), there)
    module = devices.split(module, chosen.split_envs)
    check_files(chosen, place.save)
    check_hooks(functions)
    if place.resume_if_exists and place.path is None:
        raise UserError("resume_if_exists: say which directory, run_dir=... (--run-dir DIR)")
    asked = grids.with_plain_values(config, asked or grids.Asked())
    stages.check_limits(asked)
    objectives.check(asked.objective)
    asked = _pinned(config, grids.completed(config, asked))
    groups = grids.groups_of(config, asked, seeds)
    grids.check_returns(groups)
    for group in groups:
        check_floats(group.config.replace(**group.trials.floats))
    described: dict[str, Any] = {}
    if place.save and is_sweep:
        described = describe_sweep(module, config, asked, seeds, chosen)
    elif place.save:
        described = describe(module, config, groups[0].trials, chosen)
    if there is not None:
        _check_same(there, module, described)
        env = None if isinstance(config.env, str) else config.env
        said = options_of(experiment.open(there).description, {})
        kept = chosen._replace(sweep_states="all") if said.sweep_states == "all" else chosen
        return resume(there, module, env, None, "last", functions, view, kept.to_json())
    largest = max(group.trials.count for group in groups)
    at_once = min(asked.max_parallel or largest, largest)
    if not devices.use_cores(at_once * chosen.split_envs, config):
        view.say(devices.IN_USE)
    trainers = [Trainer(module, group.config, group.trials.count, view) for group in groups]
    outputs = _outputs([group.config for group in groups], chosen)
    hooks = Hooks(functions, outputs, _page) if place.save else Hooks(functions)
    if chosen.init:
        chosen = _with_beginnings(chosen, seeds, trainers, asked.grid)
        described |= init_to_json(chosen) if is_sweep else {}
    if isinstance(module, population.Population):
        population.check_rounds(trainers[0].plan, config)
        population.check_floats_matter(module.module, config, list(module.settings.ranges))
        view.say(population.in_words(module.settings, config.num_evals))
    if not is_sweep:
        return _begin_run(Chunk(trainers[0], groups[0].trials), chosen, hooks, place)
    uncut = _uncut(groups, trainers)
    what = stages.of(uncut, asked, seeds, chosen)
    return _begin_sweep(what, uncut, described, hooks, place, view)


def _pinned(config: Any, asked: grids.Asked) -> grids.Asked:
    """The same with absolute paths of opponents' runs, so that a sweep goes on from anywhere."""
    pin = lambda given: loading.pinned(config.replace(env_settings=given)).env_settings
    grid, rows = dict(asked.grid), asked.settings
    given = grid.get("env_settings")
    if isinstance(given, Choice):  # a tuple, too
        grid["env_settings"] = Choice([pin(one) for one in given.values])
    elif isinstance(given, list | tuple) and not isinstance(given, Distribution):
        # Anything else is refused by what comes next.
        grid["env_settings"] = [pin(one) for one in given]
        rows = rows and [{**row, "env_settings": pin(row["env_settings"])} for row in rows]
    return asked._replace(grid=grid, settings=rows)


def _begin_run(chunk: Chunk, options: Options, hooks: Hooks, place: Home) -> Result:
    if not place.save:
        return loop.train_run(chunk, options, hooks)
    described = chunk.described(options)
    made, (run_dir,) = experiment.create(described, [described], place.root, place.path)
    with locked(made), withdrawn_unless_begun(made):
        return loop.train_run(chunk._replace(run_dir=run_dir), options, hooks)


def _begin_sweep(
    what: Stages,
    uncut: list[Chunk],
    described: dict[str, Any],
    hooks: Hooks,
    place: Home,
    view: Progress,
) -> Swept:
    asked = what.schedule.asked
    stages.announce(view, uncut, asked, len(what.schedule.seeds))
    uncut = stages.first_rungs(what, uncut)
    cut_up = stages.cut(view, uncut, asked, start=True)
    stages.say_plan(view, uncut, cut_up)
    chunks = [chunk for one in cut_up for chunk in one]
    if not place.save:
        return loop.train_sweep(what, chunks, hooks)
    runs = [chunk.described(what.options) for chunk in chunks]
    described |= {"block": chunks[0].trainer.layout.block}
    blocks = {chunk.trainer.layout.block for chunk in chunks}
    plain = what.schedule.num_stages == 1 and len(blocks) == 1
    entries = [] if plain else [stages.entry_of(what, chunk) for chunk in chunks]
    made, run_dirs = experiment.create(described, runs, place.root, place.path, entries)
    chunks = [chunk._replace(run_dir=run_dir) for chunk, run_dir in zip(chunks, run_dirs)]
    view.say(f"in {made}")
    with locked(made), withdrawn_unless_begun(made):
        return loop.train_sweep(what._replace(path=made), chunks, hooks)


def _uncut(groups: list[grids.Group], trainers: list[Trainer]) -> list[Chunk]:
    """The groups with the numbers of their trials."""
    first, found = 0, []
    for group, trainer in zip(groups, trainers):
        numbers = range(first, first + group.trials.count)
        found.append(Chunk(trainer, group.trials, group.static, numbers=numbers))
        first += group.trials.count
    return found


def _with_beginnings(
    options: Options, seeds: range, trainers: list[Trainer], swept: Collection[str]
) -> Options:
    """The options with a trial and a point of another run for each seed, and says which."""
    assert options.init
    first = trainers[0]
    algorithm = settings.algorithm_name(first.module)
    begins = initial.choose(options.init, seeds, algorithm)
    for trainer in trainers:
        initial.check_fit(begins, trainer.module, trainer.config)
    if hosts.is_first():
        initial.tell(begins, first.module, first.config, first.env, swept)
    state = initial.read(begins, first.module, first.config)
    first.view.say(initial.in_words(begins, state))
    return options._replace(init=begins)


def _check_same(path: Any, module: Any, asked: dict[str, Any]) -> None:
    """Refuses to resume with other settings; `config` is compared field by field."""
    fields = lambda d: settings.with_defaults(module.Config, d["config"])
    asked_of = lambda begins: initial.Initial(**begins).asked if begins else None
    begins = lambda d: {"init_from": asked_of(d.get("init_from"))}
    compared = lambda d: {k: v for k, v in d.items() if k != "options"} | begins(d) | fields(d)
    old, new = compared(experiment.open(path).description), compared(files.as_read(asked))
    keys = dict.fromkeys([*new, *OPTIONAL, "population"])
    differ = [k for k in keys if k != "config" and old.get(k) != new.get(k)]
    if differ:
        named = ", ".join(f"{k} {old.get(k)} (asked for: {new.get(k)})" for k in differ)
        longer = f" --total-timesteps {new['total_timesteps']}" * (differ == ["total_timesteps"])
        raise UserError(
            f"{path} was made with other settings, {named}: give another directory, or "
            f"--resume {path}{longer}"
        )


@hosts.together()
@parts.usual_jax()
def resume(
    path: Path | str,
    module: Any,
    env: Any,
    total_timesteps: int | None,
    point: int | str,
    functions: Functions,
    view: Progress,
    options: dict[str, Any],
) -> Result | Swept:
    """`launch.resume`, but a signal ends it with a result."""
    check_hooks(functions)
    total_timesteps, point = (parts.value_like(0, given) for given in (total_timesteps, point))
    if total_timesteps is not None and type(total_timesteps) is not int:
        raise UserError(f"total_timesteps={total_timesteps!r}: give a whole number")
    with contextlib.ExitStack() as locks:
        there = experiment.open(path)
        if point != "last" and type(point) is not int:
            raise UserError(
                f"point={point!r}: give last or a number; that of the best one is "
                f"load({str(path)!r}, 'best').point"
            )
        config, wanted = there.description["config"], None if point == "last" else point
        longer = total_timesteps not in (None, config["total_timesteps"])
        if there.is_sweep and (longer or wanted is not None):
            runs = "chunk_000 and so on"
            if there.kept:
                runs = f"and {' and '.join(there.kept)} alone kept whole states ({states.FLAG})"
            raise UserError(
                f"{path} is a sweep, which goes on as it was: total_timesteps and point are for "
                f"its runs, {runs}"
            )
        module = module or loading.find_module(there.algorithm)
        check_algorithm(module, there.algorithm, there.path)
        module = population.of(module, there.description)
        chosen = options_of(there.description, options)
        module = devices.split(module, chosen.split_envs)
        locks.enter_context(locked(there.path))
        chunks = starts.chunks_of(there, module, env, wanted, view)
        notes: list[str] = []
        if total_timesteps is not None and longer:
            chunks[0], notes = starts.extended(chunks[0], total_timesteps)
        outputs = _outputs([chunk.trainer.config for chunk in chunks], chosen)
        hooks = Hooks(functions, outputs, _page)
        if wanted is not None and wanted != (old := there.run_dir()).points("state")[-1]:
            run_dir = starts.forked(chunks[0], old, chosen)
            locks.enter_context(locked(run_dir.path))
            chunks[0] = chunks[0]._replace(run_dir=run_dir)
        elif not there.is_sweep:
            starts.check_no_rung(there.path)
        for note in notes:
            view.say(note)
        if there.is_sweep:
            stages.announce_resumed(view, there.path, chunks)
            with view.timed("compile"):
                in_background(stages.compile_unfinished, chunks)
            if chosen != options_of(there.description, {}) and hosts.is_first():
                experiment.amend(there.path, options=chosen.to_json())
            return loop.train_sweep(_stages_of(there, chunks, chosen), chunks, hooks)
        return loop.train_run(chunks[0], chosen, hooks)


def _stages_of(there: experiment.Experiment, chunks: list[Chunk], options: Options) -> Stages:
    """The stages and arguments of an existing sweep."""
    first = [chunk for chunk in chunks if not chunk.retest]
    asked = asked_of(there.description)
    return stages.of(first, asked, there.seeds, options)._replace(path=there.path)


def _outputs(configs: Sequence[Any], options: Options) -> list[type[Output]]:
    """What happens at points of what is saved, by tools that were asked for, too.

    Raises:
      UserError: something cannot be tracked or drawn.
    """
    outputs: list[type[Output]] = [Saving]
    if options.tracked:
        from algorithms.launch.tools import trackers

        trackers.check_libraries(options.tracked)
        outputs.append(trackers.Trackers)
    if options.gif != "never":
        from algorithms.launch.tools import render

        for config in configs:
            render.check_drawable(config)
        outputs.append(render.Gif)
    return [*outputs, Pictures]


def _page(*given: Any) -> str:
    from algorithms.launch.tools.report import page

    return page.of_sweep(*given)
