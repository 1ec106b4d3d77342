"""`run`, `sweep`, `pbt` and `resume`, as a Python user calls them."""

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from algorithms import parts
from algorithms.launch import begin
from algorithms.launch.engine import grids, hosts, population, settings
from algorithms.launch.engine.errors import UserError, tell, unknown
from algorithms.launch.engine.interrupts import CODES, ended_by
from algorithms.launch.engine.loop import Swept
from algorithms.launch.engine.options import CHOSEN, INIT, NAMES, OWN, check_floats, seeds_of
from algorithms.launch.engine.progress import Progress
from algorithms.launch.engine.session import Result


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
    hooks: begin.Functions = (),
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
    _check_module(module)
    place = begin.Home(run_dir, resume_if_exists, root, save)
    view, seeds = Progress(quiet, import_seconds), seeds_of(seed, num_seeds)
    result = begin.begin(module, config, None, seeds, place, hooks, view, options)
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
    hooks: begin.Functions = (),
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
      sweep_states: "best": once the sweep is over, of the whole states only the last ones of its
        best setting stay, in sweep_dir/best; or "all". Policies and metrics always stay.
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
    _check_module(module)
    _check_mapping("grid", grid or {}, "[1e-3, 1e-2]")
    given, options = _apart(more, grids.Asked)
    asked = grids.Asked(**given | {"grid": dict(grid or {})})
    place = begin.Home(sweep_dir, resume_if_exists, root, save)
    view, seeds = Progress(quiet, import_seconds), seeds_of(seed, num_seeds)
    result = begin.begin(module, config, asked, seeds, place, hooks, view, options)
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
    hooks: begin.Functions = (),
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
    _check_module(module)
    _check_mapping("ranges", ranges, "LogUniform(1e-4, 1e-2)")
    config = settings.plain_config(config, module.Config)
    config = config.replace(num_evals=parts.value_like(0, rounds))
    given, options = _apart(more, population.Settings)
    wanted = population.asked(config, ranges, members=members, **given)
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
    place = begin.Home(run_dir, resume_if_exists, root, save)
    seeds = seeds_of(seed, num_seeds)
    whole = population.Population(module, wanted)
    result = begin.begin(whole, config, None, seeds, place, hooks, view, options)
    return cast(Result, _heeded(result, on_signal))


def _apart(more: dict[str, Any], fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keywords that are fields of a tuple, and the others, which are options of `run`.

    Raises:
      UserError: one is neither; it names the nearest of both.
    """
    others = {name: value for name, value in more.items() if name not in fields._fields}
    for name in others:
        if name not in NAMES + INIT + CHOSEN:
            raise unknown("option", name, OWN + fields._fields + NAMES + INIT)
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
    hooks: begin.Functions = (),
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
    result = begin.resume(path, module, env, total_timesteps, point, hooks, view, options)
    return _heeded(result, on_signal)


def _check_module(module: Any) -> None:
    if not (hasattr(module, "make_train") and hasattr(module, "Config")):
        what = repr(module) if isinstance(module, str) else type(module).__name__
        raise UserError(f"module is {what}: give an algorithm's module, as algorithms.ppo")


def _check_mapping(name: str, value: Any, example: str) -> None:
    if not isinstance(value, Mapping):
        raise UserError(f'{name} is {value!r}: give fields by name, {{"learning_rate": {example}}}')


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
