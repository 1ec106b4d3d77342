"""`run`, `sweep`, `pbt` and `resume`: a run is a sweep of one group of trials, in one chunk."""

import contextlib
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

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
    plans,
    population,
    populations,
    settings,
    split,
    stages,
    starts,
)
from algorithms.launch.engine.directories import withdrawn_unless_begun
from algorithms.launch.engine.distributions import Choice, Distribution
from algorithms.launch.engine.errors import UserError, tell, unknown
from algorithms.launch.engine.interrupts import CODES, ended_by, in_background
from algorithms.launch.engine.locks import locked
from algorithms.launch.engine.loop import Swept
from algorithms.launch.engine.options import (
    CHOSEN,
    INIT,
    NAMES,
    Options,
    check_algorithm,
    check_files,
    check_floats,
    check_hooks,
    describe,
    init_to_json,
    make_options,
    options_of,
    seeds_of,
)
from algorithms.launch.engine.outputs import Hooks, Output, Pictures
from algorithms.launch.engine.progress import Progress
from algorithms.launch.engine.record import Point
from algorithms.launch.engine.session import Chunk, Result
from algorithms.launch.engine.stages import Stages
from algorithms.launch.engine.sweep_dir import OPTIONAL, asked_of, describe_sweep
from algorithms.launch.engine.trainer import Trainer

Functions = Sequence[Callable[[Point], None]]

# --- what a Python user calls ----------------------------------------------------------------


def run(
    module: Any,
    config: Any,
    *,
    seed: int = 0,
    num_seeds: int = 1,
    run_dir: Path | str | None = None,
    resume_if_exists: bool = False,
    root: Path | str = "runs",
    save: bool = True,
    hooks: Functions = (),
    on_signal: str = "raise",
    quiet: bool = True,
    import_seconds: float = 0.0,
    **options: Any,
) -> Result:
    """Trains num_seeds trials at once; trial i has the key jax.random.key(seed + i).

    Args:
      module: the algorithm's module.
      config: its Config.
      seed, num_seeds: which trials.
      run_dir: the directory to make; by default one named after the run, below `root`.
      resume_if_exists: go on with the run in run_dir if it is there; it must have these settings.
      save: False writes no files.
      hooks: called in turn at every point of the learning curve, after it was saved. One that
        raises `launch.Stop` ends the run after that point.
      on_signal: "raise" ends the caller, too, once everything is saved; "return" gives the result
        of what was trained, whose `stopped` is "SIGINT" (Ctrl-C) or "SIGTERM".
      quiet: say nothing; False prints what the command line prints, its progress among it.
      import_seconds: spent so far, for the closing line.
      **options: fields of `Options`; also init_from, a run or a sweep of this algorithm at whose
        policy every trial begins, with the rest of its state new: init_point ("last", "best" or a
        number), init_trial (by default the best trial; for several seeds trial i for seed i, of a
        sweep's best setting, where there are enough), init_optimizer=True (with everything that was
        learned).

    Raises:
      UserError: a setting that cannot work (among them the ValueErrors of `make_train`), or
        a run_dir that exists. Where several processes train together it ends all of them.
      KeyboardInterrupt: after Ctrl-C, also in the last point; it names the directory.
      SystemExit: with the code 143, after SIGTERM; likewise.
    """
    _check_on_signal(on_signal)
    place = Home(run_dir, resume_if_exists, root, save)
    view, seeds = Progress(quiet, import_seconds), seeds_of(seed, num_seeds)
    result = _begin(module, config, None, seeds, place, hooks, view, options)
    return cast(Result, _heeded(result, on_signal))


def sweep(
    module: Any,
    config: Any,
    grid: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    num_seeds: int = 1,
    sweep_dir: Path | str | None = None,
    resume_if_exists: bool = False,
    root: Path | str = "runs",
    save: bool = True,
    hooks: Functions = (),
    on_signal: str = "raise",
    quiet: bool = True,
    import_seconds: float = 0.0,
    **more: Any,
) -> Swept:
    """Trains every setting of a grid, or of draws at random, with every seed.

    Float fields train side by side in one program; each combination of other fields is a group with
    a program of its own, of which drawn ones may have different numbers of trials. All programs are
    compiled before anything runs, and trials that do not fit into a device together train in chunks
    of one size.

    Args:
      module: the algorithm's module, or its make_train.
      config: its Config, for what the grid leaves out.
      grid: {field: list of values}; for a field that is drawn, `Uniform`, `LogUniform` or
        `Discount` (floats), `Integers` or `LogIntegers` (whole numbers), `Choice` (any field).
      settings: {field: value} for each setting, in place of a grid; a field that one leaves out is
        as in the Config. `swept.of(setting)` is what came of one.
      samples: how many draws.
      sampler: "sobol" (fills the space evenly) or "random".
      seed, num_seeds: trials of each setting have the keys jax.random.key(seed + i).
      halving: keep the best setting of so many at each rung (successive halving); by default all
        train to the end.
      rungs: of halving; by default as many as settings and points allow.
      brackets: of Hyperband: the settings are divided among so many, which prune ever later.
      retest: so many of the best settings train again, on seeds that the sweep has not used.
      retest_seeds: how many; by default 32.
      objective: what settings are ranked by, here and at rungs: "final_return", "mean_return" (over
        the curve), "worst_seed" (its final return) or "steps_to=475" (fewest steps to a return).
      max_parallel: trials at once, if they are to be fewer than fit.
      memory_limit: bytes of each device to use, in place of nine tenths of what there is.
      sweep_dir: the directory to make; by default one named after the sweep, below `root`.
      resume_if_exists: go on with the sweep in sweep_dir if it is there; it must be this one.
      save, hooks, on_signal, quiet, import_seconds, and other keywords: as of `run`; a hook sees
        one chunk at a time, and one that raises `launch.Stop` ends the sweep.

    Raises:
      UserError: a setting that cannot work, in any of the programs, before the first one runs.
      KeyboardInterrupt, SystemExit: as `run`.
    """
    _check_on_signal(on_signal)
    module = sys.modules[module.__module__] if inspect.isfunction(module) else module
    given, options = _apart(more, grids.Asked)
    asked = grids.Asked(**given | {"grid": dict(grid or {})})
    place = Home(sweep_dir, resume_if_exists, root, save)
    view, seeds = Progress(quiet, import_seconds), seeds_of(seed, num_seeds)
    result = _begin(module, config, asked, seeds, place, hooks, view, options)
    return cast(Swept, _heeded(result, on_signal))


def pbt(
    module: Any,
    config: Any,
    ranges: Mapping[str, Any],
    *,
    members: int = 16,
    rounds: int = 20,
    seed: int = 0,
    num_seeds: int = 1,
    run_dir: Path | str | None = None,
    resume_if_exists: bool = False,
    root: Path | str = "runs",
    save: bool = True,
    hooks: Functions = (),
    on_signal: str = "raise",
    quiet: bool = True,
    import_seconds: float = 0.0,
    **more: Any,
) -> Result:
    """Population-based training: floats change while members train. One population per seed.

    A run whose trials are populations: a round is a point of its curve, `eval_return` is that of
    the best member on episodes that had no part in the ranking, and its policy is what is loaded.

    Args:
      module: the algorithm's module.
      config: its Config; each member trains for its total_timesteps.
      ranges: {float: `LogUniform`, `Uniform` or `Discount`}, of the first values.
      members: of a population.
      rounds: after each but the last one some members are replaced.
      share: of the members that become copies of as many best ones; 0 for none.
      factor: by which the floats of a copy move up or down, in the space of their range.
      resample: probability that a float is drawn anew in place of moving.
      copy_buffer: copies take the replay buffer and the environments of the member they copy.
      periods: several numbers make subpopulations that evolve after so many rounds (MF-PBT).
      seed, num_seeds: of the populations.
      run_dir, resume_if_exists, root, save, hooks, on_signal, quiet, import_seconds, and other
        keywords: as of `run`.

    Raises:
      UserError: as of `run`; what is no range; a float that matters at the start of a run alone.
      KeyboardInterrupt, SystemExit: as `run`.
    """
    _check_on_signal(on_signal)
    config = parts.with_plain_values(config.replace(num_evals=rounds))
    given, options = _apart(more, population.Settings)
    wanted = populations.asked(config, ranges, members=members, **given)
    low, high = (
        {name: getattr(space, end) for name, space in wanted.ranges.items()}
        for end in ("low", "high")
    )
    # One at its other end, too: some fields must be less than others, as v_min than v_max.
    others = [(low | {name: high[name]}, high | {name: low[name]}) for name in low]
    for ends in [low, high, *itertools.chain(*others)]:
        check_floats(config.replace(**ends))
    if options.get("init_from"):
        raise UserError("init_from does not go with pbt: members begin as the algorithm has them")
    view = Progress(quiet, import_seconds)
    place = Home(run_dir, resume_if_exists, root, save)
    seeds = seeds_of(seed, num_seeds)
    whole = population.Population(module, wanted)
    result = _begin(whole, config, None, seeds, place, hooks, view, options)
    return cast(Result, _heeded(result, on_signal))


def _apart(more: dict[str, Any], fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keywords that are fields of a tuple, and the others, which are options of `run`.

    Raises:
      UserError: one is neither; it names the nearest of both.
    """
    others = {name: value for name, value in more.items() if name not in fields._fields}
    for name in others:
        if name not in NAMES + INIT + CHOSEN:
            raise unknown("option", name, fields._fields + NAMES + INIT)
    return {name: value for name, value in more.items() if name not in others}, others


def _show(function: Callable, fields: Any) -> None:
    """Lets `help` list the fields of a tuple that a function takes as keywords."""
    own = inspect.signature(function)
    make = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    more = [
        make(name, default=fields._field_defaults[name], annotation=kind)
        for name, kind in fields.__annotations__.items()
        if name not in own.parameters
    ]
    *given, rest = own.parameters.values()
    shown: Any = function
    shown.__signature__ = own.replace(parameters=[*given, *more, rest])


_show(sweep, grids.Asked)
_show(pbt, population.Settings)


def resume(
    path: Path | str,
    *,
    module: Any = None,
    env: Any = None,
    total_timesteps: int | None = None,
    point: int | str = "last",
    hooks: Functions = (),
    on_signal: str = "raise",
    quiet: bool = True,
    import_seconds: float = 0.0,
    **options: Any,
) -> Result | Swept:
    """Goes on with a run, or with a sweep: its finished chunks stay, the others go on.

    The result is exactly that of an uninterrupted run. Nothing on the disk changes before a state
    has been read: the newest one or, if that is damaged, the one before.

    Args:
      path: the directory of the run or sweep.
      module: the algorithm, if it is not one of `algorithms`.
      env: the environment, if the run was made with an object in place of a name.
      total_timesteps: a larger number adds points of as many updates each. A schedule that
        depends on the total follows the new one from here on.
      point: "last", or the number of a point whose whole state was kept; continuing from an earlier
        point makes a new run in its own directory. A sweep continues as it was, so total_timesteps
        and point are for its chunks alone.
      hooks, on_signal, quiet, import_seconds: as for `run`.
      **options: fields of `Options` that are to change.

    Raises:
      UserError: there is no such run or point, it is damaged, a setting cannot work, or another
        process trains there.
      KeyboardInterrupt, SystemExit: as `run`.
    """
    _check_on_signal(on_signal)
    view = Progress(quiet, import_seconds)
    result = _resume(path, module, env, total_timesteps, point, hooks, view, options)
    return _heeded(result, on_signal)


def _check_on_signal(on_signal: str) -> None:
    if on_signal not in ("raise", "return"):
        raise UserError(f"on_signal={on_signal!r}: give 'raise' or 'return'")


def _heeded(result: Result | Swept, on_signal: str) -> Result | Swept:
    """The result, unless a signal is to end the caller.

    Raises:
      KeyboardInterrupt, Terminated: a signal came, and on_signal is "raise".
    """
    if on_signal == "return" or result.stopped not in CODES:
        return result
    where = result.run_dir if isinstance(result, Result) else result.sweep_dir
    saved = f"saved in {where}" if where else "nothing is saved (save=False)"
    saved = f"not saved: {result.unsaved}; the rest is in {where}" if result.unsaved else saved
    again = f"; launch.resume({str(where)!r}) goes on" if where and not result.finished else ""
    error = ended_by(result.stopped, f"{result.stopped}: {saved}{again}")
    if isinstance(error, SystemExit) and hosts.is_first():  # Python shows no text of it
        tell(str(error), sys.stderr)
    raise error


@hosts.together()
@parts.usual_jax()
def _resume(
    path: Path | str,
    module: Any,
    env: Any,
    total_timesteps: int | None,
    point: int | str,
    functions: Functions,
    view: Progress,
    options: dict[str, Any],
) -> Result | Swept:
    """`resume`, whatever the signals."""
    check_hooks(functions)
    total_timesteps, point = (parts.value_like(0, given) for given in (total_timesteps, point))
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
            raise UserError(
                f"{path} is a sweep, which goes on as it was: total_timesteps and point are for "
                "its runs, chunk_000 and so on"
            )
        module = module or loading.find_module(there.algorithm)
        check_algorithm(module, there.algorithm, there.path)
        module = population.of(module, there.description)
        chosen = options_of(there.description, options)
        module = split.of(module, chosen.split_envs)
        locks.enter_context(locked(there.path))
        chunks = starts.chunks_of(there, module, env, wanted, view)
        notes: list[str] = []
        if total_timesteps is not None and longer:
            chunks[0], notes = starts.extended(chunks[0], total_timesteps)
        for chunk in chunks:
            _check_outputs(chunk.trainer.config, chosen)
        if wanted is not None and wanted != (old := there.run_dir()).points("state")[-1]:
            run_dir = starts.forked(chunks[0], old, chosen)
            locks.enter_context(locked(run_dir.path))
            chunks[0] = chunks[0]._replace(run_dir=run_dir)
        elif not there.is_sweep:
            starts.check_no_rung(there.path)
        for note in notes:
            view.say(note)
        hooks = _hooks(functions, chosen)
        if there.is_sweep:
            plans.announce_resumed(view, there.path, chunks)
            with view.timed("compile"):
                in_background(plans.compile_unfinished, chunks)
            experiment.keep_options(there, chosen.to_json())
            return loop.train_sweep(_stages_of(there, chunks, chosen), chunks, chosen, hooks)
        return loop.train_run(chunks[0], chosen, hooks)


def _stages_of(there: experiment.Experiment, chunks: list[Chunk], options: Options) -> Stages:
    """The stages and arguments of an existing sweep."""
    said = there.description
    seeds = range(said["seed"], said["seed"] + said["num_seeds"])
    first = [chunk for chunk in chunks if not chunk.retest]
    return stages.of(asked_of(said), first, seeds, options, there.path)


def _check_outputs(config: Any, options: Options) -> None:
    """Refuses what cannot be drawn or tracked, before anything runs or is written."""
    if options.track or options.tensorboard:
        from algorithms.launch.tools import trackers

        trackers.check_libraries(options.track, options.tensorboard)
    if options.gif != "never":
        from algorithms.launch.tools import render

        render.check_drawable(config)


def _hooks(functions: Functions, options: Options) -> Hooks:
    """What happens at points, of tools that were asked for; the curve is drawn last."""
    outputs: list[type[Output]] = []
    if options.track or options.tensorboard:
        from algorithms.launch.tools.trackers import Trackers

        outputs.append(Trackers)
    if options.gif != "never":
        from algorithms.launch.tools.render import Gif

        outputs.append(Gif)
    return Hooks(functions, [*outputs, Pictures], _page)


def _page(*given: Any) -> str:
    from algorithms.launch.tools.report import page

    return page.page(*given)


# --- how they begin --------------------------------------------------------------------------


class Home(NamedTuple):
    """The place of a new run or sweep."""

    path: Path | str | None  # None: named after it, below root
    resume_if_exists: bool
    root: Path | str
    save: bool


@hosts.together()
@parts.usual_jax()
def _begin(
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
    for path in (place.path, place.root) if place.save else ():
        files.local(path or "")
    chosen, is_sweep = make_options(options), asked is not None
    there = place.path if place.resume_if_exists and place.save else None
    if there is not None and not experiment.is_there(there, is_sweep):
        there = None
    config = loading.pinned(parts.with_plain_values(config), there)
    module = split.of(module, chosen.split_envs)
    check_files(chosen, place.save)
    check_hooks(functions)
    if place.resume_if_exists and place.path is None:
        raise UserError("resume_if_exists: say which directory, run_dir=... (--run-dir DIR)")
    asked = grids.with_plain_values(config, asked or grids.Asked())
    plans.check_limits(asked)
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
        return _resume(there, module, env, None, "last", functions, view, chosen.to_json())
    largest = max(group.trials.count for group in groups)
    at_once = min(asked.max_parallel or largest, largest)
    if not devices.use_cores(at_once * chosen.split_envs, config):
        view.say(devices.IN_USE)
    trainers = [Trainer(module, group.config, group.trials.count, view) for group in groups]
    for group in groups:
        _check_outputs(group.config, chosen)
    if chosen.init:
        chosen = _with_beginnings(chosen, seeds, trainers)
        described |= init_to_json(chosen)
    if isinstance(module, population.Population):
        population.check_rounds(trainers[0].plan, config)
        population.check_floats_matter(module.module, config, list(module.settings.ranges))
        view.say(population.in_words(module.settings, config.num_evals))
    hooks = _hooks(functions, chosen)
    if not is_sweep:
        return _begin_run(Chunk(trainers[0], groups[0].trials), described, chosen, hooks, place)
    uncut = _uncut(groups, trainers)
    what = stages.of(asked, uncut, seeds, chosen)
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


def _begin_run(
    chunk: Chunk, described: dict[str, Any], options: Options, hooks: Hooks, place: Home
) -> Result:
    if not place.save:
        return loop.train_run(chunk, options, hooks)
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
    options = what.options
    plans.announce(view, uncut, what.asked, len(what.seeds))
    uncut = stages.first_rungs(what, uncut)
    cut_up = plans.cut(view, uncut, what.asked, start=True)
    plans.say_plan(view, uncut, cut_up)
    chunks = [chunk for one in cut_up for chunk in one]
    if not place.save:
        return loop.train_sweep(what, chunks, options, hooks)
    runs = [chunk.described(options) for chunk in chunks]
    described |= {"block": chunks[0].trainer.layout.block}
    blocks = {chunk.trainer.layout.block for chunk in chunks}
    plain = what.num_stages == 1 and len(blocks) == 1
    entries = [] if plain else [stages.entry_of(what, chunk) for chunk in chunks]
    made, run_dirs = experiment.create(described, runs, place.root, place.path, entries)
    chunks = [chunk._replace(run_dir=run_dir) for chunk, run_dir in zip(chunks, run_dirs)]
    view.say(f"in {made}")
    with locked(made), withdrawn_unless_begun(made):
        return loop.train_sweep(what._replace(path=made), chunks, options, hooks)


def _uncut(groups: list[grids.Group], trainers: list[Trainer]) -> list[Chunk]:
    """The groups with the numbers of their trials."""
    first, found = 0, []
    for group, trainer in zip(groups, trainers):
        numbers = range(first, first + group.trials.count)
        found.append(Chunk(trainer, group.trials, group.static, numbers=numbers))
        first += group.trials.count
    return found


def _with_beginnings(options: Options, seeds: range, trainers: list[Trainer]) -> Options:
    """The options with a trial and a point of another run for each seed, and says which."""
    assert options.init
    first = trainers[0]
    algorithm = settings.algorithm_name(first.module)
    begins = initial.choose(options.init, seeds, algorithm)
    for trainer in trainers:
        initial.check_fit(begins, trainer.module, trainer.config)
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
        raise UserError(
            f"{path} was made with other settings, {named}: give another directory, or "
            f"--resume {path}"
        )
