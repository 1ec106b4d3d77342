"""Which trials of a sweep train at once: programs are compiled, chunks cut, and both said."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from algorithms.launch.compute import devices, hosts
from algorithms.launch.compute.interrupts import in_background
from algorithms.launch.errors import UserError, warn
from algorithms.launch.search import grids
from algorithms.launch.show import progress
from algorithms.launch.training.session import Chunk
from algorithms.launch.training.sweep_dir import title_of
from algorithms.launch.training.trainer import Trainer, excess, in_words, length, usable_capacity


def check_limits(asked: grids.Asked) -> None:
    if asked.max_parallel is not None and asked.max_parallel < 1:
        raise UserError(f"max_parallel={asked.max_parallel}: give 1 or more")
    if asked.memory_limit is not None and asked.memory_limit < 1:
        raise UserError(f"memory_limit={asked.memory_limit}: give a number of bytes")


def cut(
    view: progress.Progress,
    trainers: list[Trainer],
    groups: list[grids.Group],
    num_seeds: int,
    asked: grids.Asked,
) -> list[Chunk]:
    """Compiles the program of each group, some at a time. Returns the chunks of all, in turn."""
    _announce(view, trainers, groups, num_seeds)
    limit = asked.memory_limit or usable_capacity(trainers[0].layout)
    count = groups[0].trials.count

    def fit(trainer: Trainer) -> list[range]:
        return trainer.fit(count, asked.max_parallel, limit, start=True)

    def fit_all() -> list[list[range]]:
        with ThreadPoolExecutor(devices.num_cores()) as pool:
            return list(pool.map(fit, trainers))

    with view.timed("compile"):
        plans = in_background(fit_all)
    _say_plan(view, groups, trainers, plans)
    return [
        Chunk(trainer, group.trials.part(part.start, part.stop), group.static)
        for trainer, group, plan in zip(trainers, groups, plans)
        for part in plan
    ]


def _announce(
    view: progress.Progress,
    trainers: list[Trainer],
    groups: list[grids.Group],
    num_seeds: int,
) -> None:
    each = groups[0].trials.count
    count = len(groups) * each
    kinds = f"{count // num_seeds} settings x {num_seeds} seed{'s' * (num_seeds > 1)}"
    name = title_of(trainers[0].module, [group.config for group in groups])
    view.say(f"{name}: a sweep of {count} trials, {kinds}")
    for group, trainer in zip(groups, trainers):
        longer = excess(group.config, trainer.plan)
        if longer and hosts.is_first():
            warn(": ".join(filter(None, [group.label, longer])))


def announce_resumed(view: progress.Progress, sweep_dir: Path, chunks: list[Chunk]) -> None:
    finished = sum(c.is_finished for c in chunks)
    devices = len(chunks[0].trainer.layout.devices)
    view.say(
        f"{title_of(chunks[0].trainer.module, [c.trainer.config for c in chunks])}: going on with "
        f"{sweep_dir}, {finished} of {len(chunks)} chunks "
        f"are done; {devices} device{'s' * (devices > 1)}"
    )


def compile_unfinished(chunks: list[Chunk]) -> None:
    """The programs of what is left, and whether they fit on the devices of today."""
    for trainer in {id(c.trainer): c.trainer for c in chunks if not c.is_finished}.values():
        mine = [c for c in chunks if c.trainer is trainer and not c.is_finished]
        trainer.compile(start=any(c.start.get_state is None for c in mine))
        trainer.check_capacity("as many devices as before would do")


def _say_plan(
    view: progress.Progress,
    groups: list[grids.Group],
    trainers: list[Trainer],
    plans: list[list[range]],
) -> None:
    for number, (group, trainer, plan) in enumerate(zip(groups, trainers, plans), 1):
        layout = trainer.layout
        which = f"group {number} of {len(groups)}"
        name = f"{which} ({group.label})" if group.label else which
        count, used = len(plan), len(layout.devices)
        chunks = f"{count} chunks of {len(plan[0])}" if count > 1 else "all at once"
        where = f"{used} {layout.devices[0].platform} device{'s' * (used > 1)}"
        each = in_words(trainer.bytes_per_device / layout.per_device)
        whole = in_words(trainer.bytes_per_device)
        points = [length(trainer.plan), f"{trainer.plan.points} points"]
        view.say(
            f"{name}: {group.trials.count} trials, {chunks}, on {where}; "
            f"{each} a trial, {whole} a device; {', '.join(filter(None, points))}"
        )
