"""Which trials of a sweep train at once: compiles programs, cuts chunks, and prints both."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from algorithms import parts
from algorithms.launch.engine import devices, grids, hosts, progress, settings
from algorithms.launch.engine.errors import UserError, warn
from algorithms.launch.engine.interrupts import in_background
from algorithms.launch.engine.session import Chunk
from algorithms.launch.engine.settings import Trials, text_of
from algorithms.launch.engine.sweep_dir import title_of
from algorithms.launch.engine.trainer import Trainer, excess, in_words, length, usable_capacity


class Portion(NamedTuple):
    """Trials of one stage that one compiled program can train, before they are cut into chunks."""

    trainer: Trainer
    trials: Trials
    numbers: Sequence[int]  # in results.csv
    static: Mapping[str, Any] = MappingProxyType({})  # swept static fields
    stage: int = 0
    retest: bool = False
    last: int | None = None  # the point that they train to; None: to the end

    @property
    def label(self) -> str:
        return ", ".join(text_of(self.static))


def num_settings(portions: Sequence[Portion | Chunk], seeds: range) -> int:
    """How many settings each environment has."""
    numbers = {number for portion in portions for number in portion.numbers}
    names = {settings.env_name(portion.trainer.config) for portion in portions}
    return len(numbers) // len(seeds) // len(names)


def num_points(portions: Sequence[Portion | Chunk]) -> int:
    """Of the shortest curve."""
    return min(portion.trainer.plan.points for portion in portions)


def check_limits(asked: grids.Asked) -> None:
    if asked.max_parallel is not None and asked.max_parallel < 1:
        raise UserError(f"max_parallel={asked.max_parallel}: give 1 or more")
    if asked.memory_limit is not None and asked.memory_limit < 1:
        raise UserError(f"memory_limit={asked.memory_limit}: give a number of bytes")


def cut(
    view: progress.Progress, portions: Sequence[Portion], asked: grids.Asked, start: bool
) -> list[list[Chunk]]:
    """Compiles the program of each portion, some at a time. Returns the chunks of each.

    Args:
      start: the trials are new; others go on from states that exist.
    """
    limit = asked.memory_limit or usable_capacity(portions[0].trainer.layout)

    def fit(portion: Portion) -> list[range]:
        floats, trainer = portion.trials.floats, portion.trainer
        swept = {n: np.unique(x).tolist() for n, x in floats.items() if hasattr(trainer.config, n)}
        with parts.asked_for(swept):
            return trainer.fit(portion.trials.count, asked.max_parallel, limit, start)

    def fit_all() -> list[list[range]]:
        with ThreadPoolExecutor(devices.num_cores()) as pool:
            return list(pool.map(parts.usual_jax()(fit), portions))

    with view.timed("compile"):
        plans = in_background(fit_all)
    return [[_chunk(portion, part) for part in plan] for portion, plan in zip(portions, plans)]


def _chunk(portion: Portion, part: range) -> Chunk:
    return Chunk(
        trainer=portion.trainer,
        trials=portion.trials.part(part.start, part.stop),
        static=portion.static,
        numbers=portion.numbers[part.start : part.stop],
        stage=portion.stage,
        retest=portion.retest,
        last=portion.last,
    )


def announce(
    view: progress.Progress, portions: Sequence[Portion], asked: grids.Asked, num_seeds: int
) -> None:
    """Prints what a new sweep is, and warns of programs that train for longer than asked."""
    count = sum(portion.trials.count for portion in portions)
    kinds = f"{counted(count // num_seeds, 'setting')} x {counted(num_seeds, 'seed')}"
    trainers = [portion.trainer for portion in portions]
    name = title_of(trainers[0].module, [trainer.config for trainer in trainers])
    view.say(f"{name}: a sweep of {counted(count, 'trial')}, {kinds}")
    for line in grids.remarks(asked, [portion.static for portion in portions], count // num_seeds):
        view.say(line)
    longer: dict[str, None] = {}  # each text once, of the brackets of a group
    for portion in portions:
        if text := excess(portion.trainer.config, portion.trainer.plan):
            longer[": ".join(filter(None, [portion.label, text]))] = None
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


def counted(number: int, noun: str) -> str:
    """1 trial, 2 trials."""
    return f"{number} {noun}{'s' * (number != 1)}"


def say_plan(
    view: progress.Progress, portions: Sequence[Portion], cut_up: Sequence[Sequence[Chunk]]
) -> None:
    """A line for each portion: its trials, chunks, devices and memory."""
    for number, (portion, chunks) in enumerate(zip(portions, cut_up), 1):
        trainer, layout = portion.trainer, portion.trainer.layout
        which = f"group {number} of {len(portions)}"
        name = f"{which} ({portion.label})" if portion.label else which
        count, used = len(chunks), len(layout.devices)
        parts = f"{count} chunks of {chunks[0].trials.count}" if count > 1 else "all at once"
        where = counted(used, f"{layout.devices[0].platform} device")
        each = in_words(trainer.bytes_per_device / layout.per_device)
        whole = in_words(trainer.bytes_per_device)
        points = [length(trainer.plan), counted(trainer.plan.points, "point")]
        view.say(
            f"{name}: {counted(portion.trials.count, 'trial')}, {parts}, on {where}; "
            f"{each} a trial, {whole} a device; {', '.join(filter(None, points))}"
        )
