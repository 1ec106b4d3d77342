"""Many settings and seeds: programs one after another, each over as many agents as fit at once."""

import contextlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms.launch import settings
from algorithms.launch.compute import devices, hosts
from algorithms.launch.compute.interrupts import Interrupt, in_background
from algorithms.launch.errors import UserError
from algorithms.launch.show import progress, results
from algorithms.launch.show.brief import brief
from algorithms.launch.show.results import Outcome
from algorithms.launch.storage import experiment, loading
from algorithms.launch.storage.directories import withdrawn_unless_begun
from algorithms.launch.storage.locks import locked
from algorithms.launch.storage.losses import Losses
from algorithms.launch.storage.run_dir import RunDir
from algorithms.launch.training import grids, plans, runner
from algorithms.launch.training.options import (
    Options,
    check_algorithm,
    check_files,
    check_outputs,
    check_seeds,
    make_options,
)
from algorithms.launch.training.record import Record, Start
from algorithms.launch.training.session import Result, Session
from algorithms.launch.training.sweep_dir import Chunk, asked_for, create, publish
from algorithms.launch.training.trainer import Trainer, check_floats


class Swept(NamedTuple):
    """What a sweep has come to."""

    agents: list[Outcome]  # in the order of results.csv, as far as they came
    ranked: list[results.Ranked]  # the best setting first, of one environment after another
    sweep_dir: Path | None
    objective: float  # to minimise: minus the best settings' mean return at the last point
    stopped: str = ""  # before the end: by SIGINT (Ctrl-C), SIGTERM or what a hook says
    unsaved: str = ""  # what could not be written, as on a full disk

    def __repr__(self) -> str:
        return brief(self)

    @property
    def failed(self) -> bool:
        """Whether no agent is finite; a setting that breaks is a result of a sweep."""
        return bool(self.agents) and not any(agent.is_finite for agent in self.agents)

    @property
    def interrupted(self) -> bool:
        return bool(self.stopped)


# --- what a Python user calls ----------------------------------------------------------------


@hosts.together()
def sweep(
    module: Any,
    config: Any,
    grid: Mapping[str, Any] | None = None,
    *,
    samples: int | None = None,
    sampler: str = "sobol",
    seed: int = 0,
    num_seeds: int = 1,
    max_parallel: int | None = None,
    memory_limit: int | None = None,
    sweep_dir: Path | str | None = None,
    resume_if_exists: bool = False,
    root: Path | str = "runs",
    save: bool = True,
    hooks: runner.Hooks = (),
    quiet: bool = True,
    import_seconds: float = 0.0,
    **options: Any,
) -> Swept:
    """Trains every setting of a grid, or of draws at random, with every seed.

    Float fields train side by side in one program; each combination of other fields has a program
    of its own. All programs are compiled before anything runs, and agents that do not fit into the
    memory together train in chunks of one size.

    Args:
      module: the algorithm's module, or its make_train.
      config: its Config, for what the grid leaves out.
      grid: {field: list of values}; for a float that is drawn, `Uniform` or `LogUniform`.
      samples: how many draws.
      sampler: "sobol" (fills the space evenly) or "random".
      seed, num_seeds: agents of each setting have the keys jax.random.key(seed + i).
      max_parallel: agents at once, if they are to be fewer than fit.
      memory_limit: bytes of each device to use, in place of nine tenths of what there is.
      sweep_dir: the directory to make; by default one named after the sweep, below `root`.
      resume_if_exists: go on with the sweep in sweep_dir if it is there; it must be this one.
      save, hooks, quiet, import_seconds, **options: as of `run`; a hook sees one chunk at a time,
        and one that raises `launch.Stop` ends the sweep.

    Raises:
      UserError: a setting that cannot work, in any of the programs, before the first one runs.
    """
    module = sys.modules[module.__module__] if inspect.isfunction(module) else module
    chosen = make_options(options)
    check_seeds(seed, num_seeds)
    check_files(chosen, save)
    runner.check_place(sweep_dir, resume_if_exists)
    plans.check_limits(max_parallel, memory_limit)
    grid = dict(grid or {})
    seeds = range(seed, seed + num_seeds)
    programs = grids.expand(config, grid, seeds, samples, sampler)
    for program in programs:
        check_floats(program.config.replace(**program.agents.floats))
    asked = asked_for(module, config, grid, samples, sampler, seeds, chosen) if save else {}
    view = progress.Progress(quiet, import_seconds)
    if resume_if_exists and sweep_dir is not None and runner.is_there(sweep_dir, experiment.SWEEP):
        there = experiment.open(sweep_dir)
        runner.check_same(sweep_dir, module, there.description, asked)
        env = None if isinstance(config.env, str) else config.env
        with locked(there.path):
            return _resume(there, module, env, hooks, view, chosen._asdict())
    largest = programs[0].agents.count
    devices.use_cores(min(max_parallel or largest, largest), config)
    trainers = [Trainer(module, program.config, largest, view) for program in programs]
    for program in programs:
        check_outputs(program.config, chosen)
    plans.announce(view, trainers, programs, num_seeds)
    planned = plans.compile(trainers, largest, max_parallel, memory_limit, view)
    chunks = [
        Chunk(trainer, program.static, program.agents.part(part.start, part.stop))
        for trainer, program, plan in zip(trainers, programs, planned)
        for part in plan
    ]
    plans.say_plan(view, programs, trainers, planned)
    if not save:
        return _train(chunks, chosen, hooks, view, None)
    asked["block"] = trainers[0].layout.block
    made, chunks = create(asked, chunks, chosen, Path(root), sweep_dir)
    view.say(f"in {made}")
    with locked(made), withdrawn_unless_begun(made):
        return _train(chunks, chosen, hooks, view, made)


@hosts.together()
def resume(
    path: Path | str,
    *,
    module: Any = None,
    env: Any = None,
    total_timesteps: int | None = None,
    point: int | str = "last",
    hooks: runner.Hooks = (),
    quiet: bool = True,
    import_seconds: float = 0.0,
    **options: Any,
) -> Result | Swept:
    """Goes on with a run, or with a sweep: its finished chunks stay, the others go on.

    Args:
      path: the directory of the run or sweep.
      others: as of `runner.resume`. A sweep goes on as it was, so that total_timesteps and point
        are for its chunks alone.

    Raises:
      UserError: there is no such run, it is damaged, or a setting cannot work.
    """
    more: dict[str, Any] = {"total_timesteps": total_timesteps, "point": point}
    common: dict[str, Any] = {"module": module, "env": env, "hooks": hooks, "quiet": quiet}
    there = experiment.open(path)
    if not there.is_sweep:
        return runner.resume(path, import_seconds=import_seconds, **common, **more, **options)
    total = there.description["config"]["total_timesteps"]
    if more not in ({"total_timesteps": t, "point": "last"} for t in (None, total)):
        raise UserError(
            f"{path} is a sweep, which goes on as it was: total_timesteps and point are for "
            "its runs, chunk_000 and so on"
        )
    view = progress.Progress(quiet, import_seconds)
    with locked(Path(path)):
        return _resume(there, module, env, hooks, view, options)


def _resume(
    there: experiment.Experiment,
    module: Any,
    env: Any,
    hooks: runner.Hooks,
    view: progress.Progress,
    options: dict[str, Any],
) -> Swept:
    sweep_dir, asked, run_dirs = there.path, there.description, there.run_dirs()
    module = module or loading.find_module(there.algorithm)
    chosen = make_options(asked["options"] | options)
    check_algorithm(module, there.algorithm, sweep_dir)
    configs = [run_dir.config(module.Config, env) for run_dir in run_dirs]
    sizes = [run_dir.agents.count for run_dir in run_dirs]
    devices.use_cores(max(sizes), configs[0])
    swept = [name for name in asked["grid"] if name not in settings.float_fields(configs[0])]
    chunks: list[Chunk] = []
    for run_dir, config, size in zip(run_dirs, configs, sizes):
        if not chunks or chunks[-1].trainer.config != config:
            trainer = Trainer(module, config, size, view)
            free = len(trainer.layout.devices)
            if len(devices.arrange(size, asked["block"]).devices) >= free:  # to the last bit, then
                trainer.arrange(size, asked["block"])
        static = {name: getattr(config, name) for name in swept}
        start = _starting(trainer, run_dir)
        chunks.append(Chunk(trainer, static, run_dir.agents, run_dir, start))
    plans.announce_resumed(view, sweep_dir, chunks)
    with view.timed("compile"):
        in_background(plans.compile_unfinished, chunks)
    return _train(chunks, chosen, hooks, view, sweep_dir)


def _starting(trainer: Trainer, run_dir: RunDir) -> Start:
    """Where a chunk goes on; of one that is finished no state is read."""
    last = max(run_dir.points("state"), default=-1)
    if last >= trainer.plan.points:
        return Start(last, None, run_dir.history(), True)
    return runner.starting(trainer.module, trainer.config, run_dir)


# --- the chunks in turn ----------------------------------------------------------------------


def _train(
    chunks: list[Chunk],
    options: Options,
    hooks: runner.Hooks,
    view: progress.Progress,
    sweep_dir: Path | None,
) -> Swept:
    """Trains what is not finished; after each chunk the results are written anew."""
    agents: list[Outcome] = []
    ends = np.cumsum([chunk.trainer.plan.points for chunk in chunks])
    stopped, losses, unsaved = "", Losses(view.warn), []
    with Interrupt() as interrupt:
        for i, (chunk, end) in enumerate(zip(chunks, ends)):
            if stopped := interrupt.agreed():
                break
            run = chunk.run_dir.path.name if chunk.run_dir else f"chunk_{i:03d}"
            if chunk.run_dir and chunk.is_finished:
                session = Session(chunk.trainer, chunk.agents, options, hooks, True)
                Record(session, chunk.run_dir, chunk.start).mend(chunk.start)
                agents += chunk.outcomes(chunk.run_dir)
                continue
            place = f"chunk {i + 1} of {len(chunks)}" if len(chunks) > 1 else ""
            view.place = progress.Place(place, end - chunk.trainer.plan.points, ends[-1])
            result = _train_one(chunk, options, hooks, view, interrupt)
            agents += results.outcomes(
                chunk.static, chunk.agents, result.metrics, result.is_finite, run
            )
            unsaved += [f"{result.unsaved} of {run}"] * bool(result.unsaved)
            if stopped := result.stopped:
                break
            if i + 1 < len(chunks):
                publish(sweep_dir, agents, chunks, losses)
    if not publish(sweep_dir, agents, chunks, losses):
        unsaved.append("results.csv and best.json")
        view.warn(f"not saved: results.csv and best.json; --resume {sweep_dir} writes them")
    return _close(agents, view, sweep_dir, stopped, "; ".join(unsaved))


def _train_one(
    chunk: Chunk,
    options: Options,
    hooks: runner.Hooks,
    view: progress.Progress,
    interrupt: Interrupt,
) -> Result:
    session = Session(chunk.trainer, chunk.agents, options, hooks, True)
    lock = locked(chunk.run_dir.path) if chunk.run_dir else contextlib.nullcontext()
    try:
        with lock:
            return session.train(chunk.run_dir, chunk.start, interrupt)
    except jax.errors.JaxRuntimeError as error:
        raise _out_of_memory(error, chunk) from error


def _out_of_memory(error: Exception, chunk: Chunk) -> Exception:
    if "RESOURCE_EXHAUSTED" not in str(error):
        return error
    half = max(chunk.agents.count // 2, 1)
    return UserError(
        f"out of memory with {chunk.agents.count} agents at once, in spite of what the compiler "
        f"said: begin anew with max_parallel={half}"
    )


def _close(
    agents: list[Outcome],
    view: progress.Progress,
    sweep_dir: Path | None,
    stopped: str,
    unsaved: str,
) -> Swept:
    """The table, and where everything is."""
    ranked = results.rank(agents)
    if ranked:
        view.say(results.table(ranked))
    if broken := [agent for agent in agents if not agent.is_finite]:
        view.say(results.broken(broken))
    how = ["stopped" if stopped else "done", *[progress.NOT_SAVED] * bool(unsaved)]
    view.finish(", ".join(how), f", in {sweep_dir}" if sweep_dir else "")
    best = [those[0].mean for those in results.by_environment(ranked).values()]
    objective = -float(np.mean(best)) if ranked else float("inf")
    return Swept(agents, ranked, sweep_dir, objective, stopped, unsaved)
