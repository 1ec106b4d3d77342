"""Many settings and seeds: programs one after another, each over as many agents as fit at once.

The directory of a sweep has

    sweep.json          what was asked for, and the chunks in their order
    chunk_000/ ...      a run's directory each, with agents that train at once
    results.csv         a row for each agent
    sweep.png           returns against swept fields, and learning curves
    best.json           the best setting, for --config
"""

import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms.launch import checkpoints, devices, hosts, progress, results, runner, settings
from algorithms.launch.checkpoints import SWEEP, RunDir
from algorithms.launch.errors import UserError
from algorithms.launch.results import Outcome
from algorithms.launch.settings import Agents, Distribution
from algorithms.launch.trainer import (
    Trainer,
    algorithm_name,
    check_floats,
    in_words,
    usable_memory,
)


class Swept(NamedTuple):
    """What a sweep has come to."""

    agents: list[Outcome]  # in the order of results.csv, as far as they came
    ranked: list[results.Ranked]  # the best setting first
    sweep_dir: Path | None
    objective: float  # to minimise: minus the best setting's mean return at the last point
    interrupted: bool = False


class _Chunk(NamedTuple):
    """Agents that train at once."""

    trainer: Trainer
    static: dict[str, Any]  # swept static fields
    agents: Agents
    run_dir: RunDir | None = None
    start: runner.Start = runner.Start()


# --- what a Python user calls ----------------------------------------------------------------


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
    root: Path | str = "runs",
    save: bool = True,
    hooks: Sequence[Callable[[runner.Point], None]] = (),
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
      save, hooks, quiet, import_seconds, **options: as of `run`; a hook sees one chunk at a time.

    Raises:
      UserError: a setting that cannot work, in any of the programs, before the first one runs.
    """
    module = sys.modules[module.__module__] if inspect.isfunction(module) else module
    options = runner.make_options(options)
    runner.check_seeds(seed, num_seeds)
    runner.check_files(options, save)
    _check_limits(max_parallel, memory_limit)
    grid = dict(grid or {})
    seeds = range(seed, seed + num_seeds)
    programs = settings.expand(config, grid, seeds, samples, sampler)
    check_floats(config.replace(**programs[0].agents.floats))
    view = progress.Progress(quiet, import_seconds)
    largest = programs[0].agents.count
    devices.use_cores(min(max_parallel or largest, largest), config)
    trainers = [Trainer(module, program.config, largest, view) for program in programs]
    for program in programs:
        runner.check_gif(program.config, options)
    _announce(view, module, programs, num_seeds)
    plans = _compile(trainers, largest, max_parallel, memory_limit, view)
    chunks = [
        _Chunk(trainer, program.static, program.agents.part(part.start, part.stop))
        for trainer, program, plan in zip(trainers, programs, plans)
        for part in plan
    ]
    _say_plan(view, programs, trainers, plans)
    if save:
        asked = {
            "algorithm": algorithm_name(module),
            "config": settings.config_to_json(config),
            "grid": {name: _grid_to_json(values) for name, values in grid.items()},
            "samples": samples,
            "sampler": sampler,
            "seed": seed,
            "num_seeds": num_seeds,
            "options": options._asdict(),
            "block": trainers[0].layout.block,
        }
        sweep_dir, chunks = _create(asked, chunks, options, Path(root), sweep_dir)
        view.say(f"in {sweep_dir}")
    return _train(chunks, options, hooks, view, sweep_dir if save else None)


def resume(
    path: Path | str,
    *,
    module: Any = None,
    env: Any = None,
    total_timesteps: int | None = None,
    point: int | str = "last",
    hooks: Sequence[Callable[[runner.Point], None]] = (),
    quiet: bool = True,
    import_seconds: float = 0.0,
    **options: Any,
) -> runner.Result | Swept:
    """Goes on with a run, or with a sweep: its finished chunks stay, the others go on.

    Args:
      path: the directory of the run or sweep.
      others: as of `runner.resume`. A sweep goes on as it was, so that total_timesteps and point
        are for its chunks alone.

    Raises:
      UserError: there is no such run, it is damaged, or a setting cannot work.
    """
    sweep_dir, more = Path(path), {"total_timesteps": total_timesteps, "point": point}
    if not (sweep_dir / SWEEP).exists():
        common = {"hooks": hooks, "quiet": quiet, "import_seconds": import_seconds}
        return runner.resume(path, module=module, env=env, **common, **more, **options)
    asked = checkpoints.read_json(sweep_dir / SWEEP)
    if more not in ({"total_timesteps": t, "point": "last"} for t in (None, _total(asked))):
        raise UserError(
            f"{path} is a sweep, which goes on as it was: total_timesteps and point are for its "
            "runs, chunk_000 and so on"
        )
    module = module or checkpoints.find_module(asked["algorithm"])
    options = runner.make_options(asked["options"] | options)
    view = progress.Progress(quiet, import_seconds)
    run_dirs = [RunDir.open(sweep_dir / chunk["run"]) for chunk in asked["chunks"]]
    runner.check_algorithm(module, asked["algorithm"], sweep_dir)
    configs = [run_dir.config(module.Config, env) for run_dir in run_dirs]
    sizes = [run_dir.agents.count for run_dir in run_dirs]
    devices.use_cores(max(sizes), configs[0])
    swept = [name for name in asked["grid"] if name not in settings.float_fields(configs[0])]
    chunks: list[_Chunk] = []
    for run_dir, config, size in zip(run_dirs, configs, sizes):
        start = runner.starting(module, config, run_dir)
        if not chunks or chunks[-1].trainer.config != config:
            trainer = Trainer(module, config, size, view)
            free = len(trainer.layout.devices)
            if len(devices.arrange(size, asked["block"]).devices) >= free:  # to the last bit, then
                trainer.arrange(size, asked["block"])
        static = {name: getattr(config, name) for name in swept}
        chunks.append(_Chunk(trainer, static, run_dir.agents, run_dir, start))
    _announce_resumed(view, sweep_dir, chunks)
    with view.timed("compile"):
        runner.in_background(_compile_unfinished, chunks)
    return _train(chunks, options, hooks, view, sweep_dir)


# --- before anything runs --------------------------------------------------------------------


def _check_limits(max_parallel: int | None, memory_limit: int | None) -> None:
    if max_parallel is not None and max_parallel < 1:
        raise UserError(f"max_parallel={max_parallel}: give 1 or more")
    if memory_limit is not None and memory_limit < 1:
        raise UserError(f"memory_limit={memory_limit}: give a number of bytes")


def _grid_to_json(values: Any) -> Any:
    if isinstance(values, Distribution):
        name = next(n for n, kind in settings.DISTRIBUTIONS.items() if kind is type(values))
        return f"{name}:{values.low}:{values.high}"
    for value in values:
        if not isinstance(value, int | float | str | tuple | list):
            raise UserError(f"grid: {value!r} cannot be saved: name it, or give save=False")
    return settings.strict([list(v) if isinstance(v, tuple) else v for v in values])


def _announce(
    view: progress.Progress, module: Any, programs: list[settings.Program], num_seeds: int
) -> None:
    each = programs[0].agents.count
    count = len(programs) * each
    kinds = f"{count // num_seeds} settings x {num_seeds} seed{'s' * (num_seeds > 1)}"
    name = _name(module, [program.config for program in programs])
    view.say(f"{name}: a sweep of {count} agents, {kinds}")


def _name(module: Any, configs: list[Any]) -> str:
    envs = sorted({settings.env_name(config) for config in configs})
    return f"{algorithm_name(module)} on {', '.join(envs)}"


def _total(asked: dict[str, Any]) -> int:
    return asked["config"]["total_timesteps"]


def _announce_resumed(view: progress.Progress, sweep_dir: Path, chunks: list[_Chunk]) -> None:
    finished = sum(map(_is_finished, chunks))
    devices = len(chunks[0].trainer.layout.devices)
    view.say(
        f"{_name(chunks[0].trainer.module, [c.trainer.config for c in chunks])}: going on with "
        f"{sweep_dir}, {finished} of {len(chunks)} chunks "
        f"are done; {devices} device{'s' * (devices > 1)}"
    )


def _is_finished(chunk: _Chunk) -> bool:
    return chunk.start.point >= chunk.trainer.config.num_evals


def _compile(
    trainers: list[Trainer],
    num_agents: int,
    at_most: int | None,
    memory_limit: int | None,
    view: progress.Progress,
) -> list[list[range]]:
    """Compiles all programs, some at a time. Returns the chunks of each."""
    limit = memory_limit or usable_memory(trainers[0].layout)

    def fit(trainer):
        return trainer.fit(num_agents, at_most, limit, start=True)

    def fit_all():
        with ThreadPoolExecutor(devices.num_cores()) as pool:
            return list(pool.map(fit, trainers))

    with view.timed("compile"):
        return runner.in_background(fit_all)


def _compile_unfinished(chunks: list[_Chunk]) -> None:
    """The programs of what is left, and whether they fit on the devices of today."""
    for trainer in {id(c.trainer): c.trainer for c in chunks if not _is_finished(c)}.values():
        mine = [c for c in chunks if c.trainer is trainer and not _is_finished(c)]
        trainer.compile(start=any(c.start.get_state is None for c in mine))
        trainer.check_memory("as many devices as before would do")


def _say_plan(
    view: progress.Progress,
    programs: list[settings.Program],
    trainers: list[Trainer],
    plans: list[list[range]],
) -> None:
    for number, (program, trainer, plan) in enumerate(zip(programs, trainers, plans), 1):
        layout = trainer.layout
        which = f"program {number} of {len(programs)}"
        name = f"{which} ({program.label})" if program.label else which
        count, used = len(plan), len(layout.devices)
        chunks = f"{count} chunks of {len(plan[0])}" if count > 1 else "all at once"
        where = f"{used} {layout.devices[0].platform} device{'s' * (used > 1)}"
        each = in_words(trainer.bytes_per_device / layout.per_device)
        whole = in_words(trainer.bytes_per_device)
        view.say(
            f"{name}: {program.agents.count} agents, {chunks}, on {where}; "
            f"{each} an agent, {whole} a device"
        )


def _create(
    asked: dict[str, Any],
    chunks: list[_Chunk],
    options: runner.Options,
    root: Path,
    path: Path | str | None,
) -> tuple[Path, list[_Chunk]]:
    """Makes the directory of a sweep; it is one as soon as sweep.json is there."""
    names = [f"chunk_{i:03d}" for i in range(len(chunks))]
    described = [
        runner.describe(c.trainer.module, c.trainer.config, c.agents, options) for c in chunks
    ]

    def make() -> str:
        folder = Path(path or checkpoints.free_path(root, *_words(asked)))
        if folder.exists():
            raise UserError(f"{folder} exists: a sweep is never overwritten")
        for name, description in zip(names, described):
            RunDir.create(folder / name, description)
        parts = [{"run": n, "agents": c.agents.count} for n, c in zip(names, chunks)]
        text = json.dumps(asked | {"chunks": parts}, indent=2, allow_nan=False)
        checkpoints.write_whole(folder / SWEEP, text.encode())
        return str(folder)

    folder = Path(hosts.from_first(make))
    run_dirs = [RunDir(folder / name, d) for name, d in zip(names, described)]
    return folder, [c._replace(run_dir=run_dir) for c, run_dir in zip(chunks, run_dirs)]


def _words(asked: dict[str, Any]) -> tuple[str, ...]:
    envs = asked["grid"].get("env", [asked["config"]["env"]])
    return "+".join(map(str, envs)), asked["algorithm"], "sweep"


# --- the chunks in turn ----------------------------------------------------------------------


def _train(
    chunks: list[_Chunk],
    options: runner.Options,
    hooks: Sequence[Callable[[runner.Point], None]],
    view: progress.Progress,
    sweep_dir: Path | None,
) -> Swept:
    """Trains what is not finished; after each chunk the results are written anew."""
    agents: list[Outcome] = []
    ends = np.cumsum([chunk.trainer.config.num_evals for chunk in chunks])
    finished = False
    with runner.Interrupt() as interrupt:
        for i, (chunk, end) in enumerate(zip(chunks, ends)):
            if hosts.anybody(interrupt.asked):
                break
            run = chunk.run_dir.path.name if chunk.run_dir else f"chunk_{i:03d}"
            if _is_finished(chunk):
                agents += _read(chunk, run)
                continue
            place = f"chunk {i + 1} of {len(chunks)}" if len(chunks) > 1 else ""
            view.place = progress.Place(place, end - chunk.trainer.config.num_evals, ends[-1])
            try:
                session = runner.Session(chunk.trainer, chunk.agents, options, hooks, True)
                result = session.train(chunk.run_dir, chunk.start, interrupt)
            except jax.errors.JaxRuntimeError as error:
                raise _out_of_memory(error, chunk) from error
            agents += results.outcomes(
                chunk.static, chunk.agents, result.metrics, result.is_finite, run
            )
            if result.interrupted:
                break
            if i + 1 < len(chunks):
                _publish(sweep_dir, agents, chunks)
        else:
            finished = True
    _publish(sweep_dir, agents, chunks)
    return _close(agents, view, sweep_dir, finished)


def _read(chunk: _Chunk, run: str) -> list[Outcome]:
    """What came of a chunk that is finished."""
    metrics = checkpoints.stack(chunk.start.rows)
    is_finite = chunk.run_dir.is_finite(chunk.start.point)
    return results.outcomes(chunk.static, chunk.agents, metrics, is_finite, run)


def _out_of_memory(error: Exception, chunk: _Chunk) -> Exception:
    if "RESOURCE_EXHAUSTED" not in str(error):
        return error
    half = max(chunk.agents.count // 2, 1)
    return UserError(
        f"out of memory with {chunk.agents.count} agents at once, in spite of what the compiler "
        f"said: begin anew with max_parallel={half}"
    )


def _publish(sweep_dir: Path | None, agents: list[Outcome], chunks: list[_Chunk]) -> None:
    """Files about all agents so far."""
    if not (sweep_dir and agents and hosts.is_first()):
        return
    from algorithms.launch import plots

    ranked = results.rank(agents)
    name = _name(chunks[0].trainer.module, [chunk.trainer.config for chunk in chunks])
    with runner.survive("results.csv was not written", OSError, UserError):
        checkpoints.write_whole(sweep_dir / "results.csv", results.csv(agents).encode())
        text = json.dumps(_best(sweep_dir, ranked[0]), indent=2, allow_nan=False)
        checkpoints.write_whole(sweep_dir / "best.json", text.encode())
    with runner.survive("sweep.png was not drawn", Exception):
        plots.sweep(ranked, name, sweep_dir / "sweep.png")


def _best(sweep_dir: Path, setting: results.Ranked) -> dict[str, Any]:
    """The best setting as a run's config.json would have it."""
    first = setting.agents[0]
    run_dir = RunDir.open(sweep_dir / first.run)
    floats = settings.strict(run_dir.agents.setting(first.agent))
    seeds = [agent.seed for agent in setting.agents]
    config = run_dir.description["config"] | floats
    return run_dir.description | {"config": config, "seeds": seeds, "floats": {}}


def _close(
    agents: list[Outcome], view: progress.Progress, sweep_dir: Path | None, finished: bool
) -> Swept:
    """The table, and where everything is."""
    ranked = results.rank(agents)
    if ranked:
        view.say(results.table(ranked))
    view.finish("done" if finished else "stopped", f", in {sweep_dir}" if sweep_dir else "")
    objective = -ranked[0].mean if ranked else float("inf")
    return Swept(agents, ranked, sweep_dir, objective, not finished)
