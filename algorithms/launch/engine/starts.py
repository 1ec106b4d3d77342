"""The chunks of a run or sweep on disk: where each continues, and for how long."""

import math
from pathlib import Path
from typing import Any

from algorithms.launch.engine import (
    devices,
    experiment,
    files,
    hosts,
    population,
    programs,
    settings,
)
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.options import Options, check_floats
from algorithms.launch.engine.programs import Trainer
from algorithms.launch.engine.progress import Progress
from algorithms.launch.engine.record import Start
from algorithms.launch.engine.run_dir import RunDir
from algorithms.launch.engine.session import Chunk

# Fields that are shares of a run, and values from which on they make no difference; nor does 0.
LR = "final_lr_share"
MANY_POINTS = 1000  # of a learning curve, from which on they are warned of
SHARES = {"exploration_fraction": math.inf, "renorm_warmup": 1.0}


def chunks_of(
    there: experiment.Experiment, module: Any, env: Any, point: Any, view: Progress
) -> list[Chunk]:
    """The chunks on the disk, and where each continues; `point` is for runs alone."""
    run_dirs = there.run_dirs()
    configs = [run_dir.config(module.Config, env) for run_dir in run_dirs]
    largest = max(run_dir.trials.count for run_dir in run_dirs)
    if not devices.use_cores(largest * devices.num_shards(module), configs[0]):
        view.say(devices.IN_USE)
    floats = settings.float_fields(configs[0])
    swept = [name for name in there.description.get("grid", ()) if name not in floats]
    made = {entry.stage for entry in there.entries}
    chunks: list[Chunk] = []
    for entry, run_dir, config in zip(there.entries, run_dirs, configs):
        size, block = run_dir.trials.count, entry.block or there.description.get("block")
        before = chunks[-1] if chunks else None
        if not before or before.stage != entry.stage or before.trainer.config != config:
            check_floats(config)
            trainer = Trainer(module, config, size, view)
            free = len(trainer.layout.devices)
            as_many = len(trainer.layout_of(size, block).devices) >= free
            if block and (as_many or trainer.suits(size, block)):  # to the last bit, then
                trainer.arrange(size, block)
            trainer.settled = True
        static = {name: getattr(config, name) for name in swept}
        chunk = Chunk(
            trainer=trainer,
            trials=run_dir.trials,
            static=static,
            run_dir=run_dir,
            numbers=entry.numbers,
            stage=entry.stage,
            retest=entry.retest,
            last=entry.last,
        )
        # The next rung is made of the states of this one, which have to be whole until it is there.
        skipped = there.is_sweep and (entry.last is None or entry.stage + 1 in made)
        finished = chunk.num_points if skipped or there.kept else None
        start = starting(trainer, run_dir, point, finished, bool(there.kept))
        chunks.append(chunk._replace(start=start))
    return chunks


def starting(
    trainer: Trainer,
    run_dir: RunDir,
    point: int | None,
    finished: int | None,
    without: bool = False,
) -> Start:
    """Where a run that is there goes on: at its last whole state, or at that of a point.

    Args:
      finished: a run that has come to this point starts there, and no state is read.
      without: it is a chunk of a sweep that is over, whose states have gone.

    Raises:
      UserError: there is no state to go on from, or not that one.
    """
    last = max(run_dir.points("policy" if without else "state"), default=-1)
    if finished is not None and last >= finished and last in (history := run_dir.history()):
        return Start(last, None, history, True, run_dir.is_finite(last))
    if point is None:
        point = hosts.from_first(lambda: _newest_whole(run_dir))
    elif point not in (kept := run_dir.points("state")):
        raise UserError(
            f"{run_dir.path} has no whole state of point {point}; it has {kept}: a run with "
            f"--keep-states keeps those of all points{experiment.gone_states(run_dir.path)}"
        )
    if point is None:
        return Start(resumed=True)
    history = run_dir.history(point)
    _check_length(trainer, run_dir, history)
    like = programs.initial_state(trainer.module, trainer.config)
    read = lambda trials: run_dir.read(point, "state", like, trials)
    is_finite = run_dir.is_finite(point) if point in history else None  # losses, too
    return Start(point, read, history, True, is_finite)


def _newest_whole(run_dir: RunDir) -> int | None:
    try:
        return run_dir.newest_whole()
    except UserError as error:
        raise UserError(f"{error}{experiment.gone_states(run_dir.path)}") from None


def _check_length(trainer: Trainer, run_dir: RunDir, history: dict[int, Any]) -> None:
    """Refuses a run whose points are not as long as its config says, as after an edit by hand.

    Beyond 2**31 steps a run that was made longer has points of another length than a new one.
    """
    plan, last = trainer.plan, max(history, default=0)
    steps = float(history[last]["timestep"].min()) if last else 0.0
    if 0 < plan.steps < 2**31 and steps * plan.points != float(plan.steps) * last:
        raise UserError(
            f"{run_dir.path} has {steps:.0f} steps at point {last}, which does not fit its "
            "config.json: undo the change there; --resume with --total-timesteps makes a run longer"
        )


def check_no_rung(path: Path) -> None:
    """Refuses to train a chunk further than halving has: its sweep would rank the longer curves.

    Raises:
      UserError: it is a chunk of a rung that is not the last one.
    """
    path = path.resolve()
    if not experiment.is_there(path.parent, True):
        return
    entries = experiment.open(path.parent).entries
    if any(entry.path.name == path.name and entry.last is not None for entry in entries):
        raise UserError(
            f"{path} is a rung of the sweep {path.parent}, whose results it would change: go on "
            "with the sweep, or with a copy of the run elsewhere"
        )


def extended(chunk: Chunk, total: int) -> tuple[Chunk, list[str]]:
    """The chunk with more timesteps and as many updates to a point, and notes for the user."""
    start, trainer, config = chunk.start, chunk.trainer, chunk.trainer.config
    if total < config.total_timesteps:
        plan = trainer.plan
        if plan.steps and math.ceil(total * plan.points / plan.steps) == plan.points:
            return chunk, []  # an earlier session has rounded it up
        raise UserError(
            f"total_timesteps={total} is less than the {config.total_timesteps} of the run: "
            "a run can only be made longer"
        )
    again = lambda **changes: chunk._replace(
        trainer=Trainer(trainer.module, config.replace(**changes), chunk.trials.count, trainer.view)
    )
    if not start.point:
        return again(total_timesteps=total), []
    last = max(start.history, default=0)
    if not last:
        raise UserError(f"total_timesteps={total}: no policy says how long the run's points are")
    steps = int(start.history[last]["timestep"][0]) // last
    points = math.ceil(total / steps)
    notes = [f"now {points} points of {steps} timesteps each, {points * steps} in all"]
    if points > MANY_POINTS:
        notes.append(
            "each of them evaluates and saves a policy, which may take longer than training: "
            "--init-from begins a new run, with a --num-evals of its own, at these policies"
        )
    named = schedules(config)
    if named and points != trainer.plan.points:
        jump = ", so the learning rate rises again now" * bool({"anneal_lr", LR} & {*named})
        notes.append(
            f"{', '.join(named)}: progress is a share of the total{jump}; a run with this total "
            "from the beginning would differ"
        )
    if isinstance(trainer.module, population.Population) and start.point == trainer.plan.points:
        notes.append(
            "no member was replaced at the old end; a run with this total from the beginning "
            "would have replaced some"
        )
    return again(total_timesteps=points * steps, num_evals=points), notes


def schedules(config: Any) -> list[str]:
    """The fields of a Config that make something depend on the length of the run."""
    constant = getattr(config, "exploration", "") == "constant"
    shares = [name for name, end in SHARES.items() if 0.0 < getattr(config, name, 0.0) < end]
    of_bools = [n for n in config.__dataclass_fields__ if n.startswith("anneal_")]
    # It goes to 1, in dqn with `prioritized` alone, and where a bool says so that is named already.
    beta = getattr(config, "priority_beta", 1.0) < 1.0 and getattr(config, "prioritized", True)
    betas = ["priority_beta"] * (beta and "anneal_beta" not in of_bools)
    betas += [LR] * (getattr(config, LR, 1.0) < 1.0)
    return [n for n in of_bools if getattr(config, n)] + shares * (not constant) + betas


def forked(chunk: Chunk, run_dir: RunDir, options: Options) -> RunDir:
    """A new run next to an old one, with that one's points up to where the chunk starts."""
    last = chunk.start.point
    described = chunk.described(options)
    _, (made,) = experiment.create(described, [described], run_dir.path.parent)
    policies = [found for point, found in run_dir.files("policy").items() if point <= last]
    parts = [*policies, run_dir.parts(last, "state")] * hosts.is_first()
    for file in [file for part in parts for file in part.values()]:
        files.copy_whole(file, made.checkpoints / file.name)
    hosts.wait()
    return made
