"""Which trials of a sweep train at once: compiles programs, cuts chunks, and prints both."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from algorithms import parts
from algorithms.launch.engine import devices, grids, hosts, progress, results, settings
from algorithms.launch.engine.errors import UserError, warn
from algorithms.launch.engine.interrupts import in_background
from algorithms.launch.engine.session import Chunk
from algorithms.launch.engine.sweep_dir import title_of
from algorithms.launch.engine.trainer import excess, in_words, length, usable_capacity


def num_settings(chunks: Sequence[Chunk], seeds: range) -> int:
    """How many settings each environment has."""
    numbers = {number for chunk in chunks for number in chunk.numbers}
    names = {settings.env_name(chunk.trainer.config) for chunk in chunks}
    return len(numbers) // len(seeds) // len(names)


def num_points(chunks: Sequence[Chunk]) -> int:
    """Of the shortest curve."""
    return min(chunk.trainer.plan.points for chunk in chunks)


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
