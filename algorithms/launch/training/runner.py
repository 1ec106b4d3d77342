"""`run` and `resume`: one run, from the settings to its end."""

import contextlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from algorithms.launch import settings
from algorithms.launch.compute import devices, hosts, programs
from algorithms.launch.errors import UserError
from algorithms.launch.settings import Agents
from algorithms.launch.show import progress
from algorithms.launch.storage import experiment, files, loading
from algorithms.launch.storage.description import fill
from algorithms.launch.storage.directories import make, make_named, withdrawn_unless_begun
from algorithms.launch.storage.locks import locked
from algorithms.launch.storage.run_dir import RunDir
from algorithms.launch.training.options import (
    check_algorithm,
    check_files,
    check_seeds,
    describe,
    make_options,
)
from algorithms.launch.training.record import Point, Start
from algorithms.launch.training.session import Result, Session
from algorithms.launch.training.trainer import Trainer, check_floats

Hooks = Sequence[Callable[[Point], None]]


@hosts.together()
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
    hooks: Hooks = (),
    quiet: bool = True,
    import_seconds: float = 0.0,
    **options: Any,
) -> Result:
    """Trains num_seeds agents at once; agent i has the key jax.random.key(seed + i).

    Args:
      module: the algorithm's module.
      config: its Config.
      seed, num_seeds: which agents.
      run_dir: the directory to make; by default one named after the run, below `root`.
      resume_if_exists: go on with the run in run_dir if it is there; it must have these settings.
      save: False writes no files.
      hooks: called in turn at every point of the learning curve, after it was saved. One that
        raises `launch.Stop` ends the run after that point.
      quiet: show no progress.
      import_seconds: spent so far, for the closing line.
      **options: fields of `Options`.

    Raises:
      UserError: a setting that cannot work (among them the ValueErrors of `make_train`), or
        a run_dir that exists. Where several processes train together it ends all of them.
    """
    chosen = make_options(options)
    check_seeds(seed, num_seeds)
    check_files(chosen, save)
    check_place(run_dir, resume_if_exists)
    check_floats(config)
    agents = Agents(list(range(seed, seed + num_seeds)))
    described = describe(module, config, agents, chosen)
    if resume_if_exists and run_dir is not None and is_there(run_dir, "config.json"):
        check_same(run_dir, module, experiment.open(run_dir).description, described)
        given: dict[str, Any] = {"hooks": hooks, "quiet": quiet, "import_seconds": import_seconds}
        env = None if isinstance(config.env, str) else config.env
        return resume(run_dir, module=module, env=env, **given, **chosen._asdict())
    view = progress.Progress(quiet, import_seconds)
    session = Session(Trainer(module, config, num_seeds, view), agents, chosen, hooks)
    if not save:
        return session.train(None, Start())
    made = create(described, Path(root), run_dir)
    with locked(made.path), withdrawn_unless_begun(made.path):
        return session.train(made, Start())


@hosts.together()
def resume(
    run_dir: Path | str,
    *,
    module: Any = None,
    env: Any = None,
    total_timesteps: int | None = None,
    point: int | str = "last",
    hooks: Hooks = (),
    quiet: bool = True,
    import_seconds: float = 0.0,
    **options: Any,
) -> Result:
    """Goes on with a run, to exactly the result that it would have had without the break.

    Nothing is changed on the disk before the state to go on from has been read. If the newest one
    is damaged it is the one before that.

    Args:
      run_dir: the run's directory.
      module: the algorithm, if it is not one of `algorithms`.
      env: the environment, if the run was made with an object in place of a name.
      total_timesteps: a larger number adds points of as many updates each. A schedule that
        depends on the total follows the new one from here on.
      point: "last", or the number of a point whose whole state was kept; what goes on from an
        earlier point is a new run in a directory of its own.
      hooks, quiet, import_seconds: as for `run`.
      **options: fields of `Options` that are to change.

    Raises:
      UserError: there is no such run or point, it is damaged, a setting cannot work, or another
        process trains there.
    """
    with contextlib.ExitStack() as locks:
        there = experiment.open(run_dir).run_dir()
        module = module or loading.find_module(there.algorithm)
        check_algorithm(module, there.algorithm, there.path)
        chosen = make_options(there.description["options"] | options)
        config = there.config(module.Config, env)
        agents = there.agents
        view = progress.Progress(quiet, import_seconds)
        devices.use_cores(agents.count, config)
        locks.enter_context(locked(there.path))
        wanted: Any = None if point == "last" else point
        start = starting(module, config, there, wanted)
        notes: list[str] = []
        if total_timesteps is not None and total_timesteps != config.total_timesteps:
            config, notes = extend(module, config, total_timesteps, start)
        session = Session(Trainer(module, config, agents.count, view), agents, chosen, hooks)
        if wanted is not None and wanted != there.points("state")[-1]:
            there = fork(there, describe(module, config, agents, chosen), wanted)
            locks.enter_context(locked(there.path))
        for note in notes:
            view.say(note)
        return session.train(there, start)


# --- the directory ---------------------------------------------------------------------------


def check_place(run_dir: Path | str | None, resume_if_exists: bool) -> None:
    if resume_if_exists and run_dir is None:
        raise UserError("resume_if_exists: say which directory, run_dir=... (--run-dir DIR)")


def is_there(folder: Path | str, name: str) -> bool:
    """Whether a directory has this file; the first process looks for all."""
    return hosts.from_first(lambda: (Path(folder) / name).exists())


def check_same(
    folder: Path | str, module: Any, there: dict[str, Any], asked: dict[str, Any]
) -> None:
    """Refuses to go on with what has other settings; `config` is compared field by field."""
    fields = lambda d: settings.with_defaults(module.Config, d["config"])
    compared = lambda d: {k: v for k, v in d.items() if k != "options"} | fields(d)
    old, new = compared(there), compared(files.as_read(asked))
    differ = [k for k in new if k != "config" and old.get(k) != new[k]]
    if differ:
        named = ", ".join(f"{k} {old.get(k)} (asked for: {new[k]})" for k in differ)
        raise UserError(
            f"{folder} was made with other settings, {named}: give another directory, or "
            f"--resume {folder}"
        )


def create(described: dict[str, Any], root: Path, path: Path | str | None = None) -> RunDir:
    """The directory of a new run, below root unless a path is given."""
    first, write = str(described["seeds"][0]), lambda folder: fill(folder, described)
    words = [settings.env_label(described["config"]["env"]), described["algorithm"], first]

    def make_one() -> str:
        if path is None:
            return str(make_named(root, words, write))
        make(Path(path), write)
        return str(path)

    return RunDir(Path(hosts.from_first(make_one)), described)


def fork(run_dir: RunDir, described: dict[str, Any], last: int) -> RunDir:
    """A new run next to an old one, with that one's points up to the last."""
    forked = create(described, run_dir.path.parent)
    policies = [found for point, found in run_dir.files("policy").items() if point <= last]
    parts = [*policies, run_dir.parts(last, "state")] * hosts.is_first()
    for file in [file for part in parts for file in part.values()]:
        files.copy_whole(file, forked.checkpoints / file.name)
    hosts.wait()
    return forked


# --- where it goes on ------------------------------------------------------------------------


def starting(module: Any, config: Any, run_dir: RunDir, point: int | None = None) -> Start:
    """Where a run that is there goes on: at its last whole state, or at that of a point.

    Raises:
      UserError: there is no state to go on from, or not that one.
    """
    if point is None:
        point = hosts.from_first(run_dir.newest_whole)
    elif point not in (kept := run_dir.points("state")):
        raise UserError(
            f"{run_dir.path} has no whole state of point {point}; it has {kept}: a run with "
            "--keep-states keeps those of all points"
        )
    if point is None:
        return Start(resumed=True)
    programs.make_environment(module, config)
    like = programs.initial_state(module, config)
    read = lambda agents: run_dir.read(point, "state", like, agents)
    return Start(point, read, run_dir.history(point), True)


def extend(module: Any, config: Any, total: int, start: Start) -> tuple[Any, list[str]]:
    """A configuration for more timesteps with as many updates to a point, and what to say."""
    if total < config.total_timesteps:
        raise UserError(
            f"total_timesteps={total} is less than the {config.total_timesteps} of the run: "
            "a run can only be made longer"
        )
    if not start.point:
        return config.replace(total_timesteps=total), []
    last = max(start.history, default=0)
    if not last:
        raise UserError(f"total_timesteps={total}: no policy says how long the run's points are")
    steps = int(start.history[last]["timestep"][0]) // last
    points = math.ceil(total / steps)
    notes = [f"now {points} points of {steps} timesteps each, {points * steps} in all"]
    schedules = [
        name
        for name in config.__dataclass_fields__
        if name.startswith("anneal_") and getattr(config, name)
    ]
    before = programs.make_environment(module, config)[2].points
    if schedules and points != before:
        notes.append(
            f"{', '.join(schedules)}: the schedule depends on the total and follows the new one "
            "from here on; a run that was so long from the beginning would be another"
        )
    return config.replace(total_timesteps=points * steps, num_evals=points), notes
