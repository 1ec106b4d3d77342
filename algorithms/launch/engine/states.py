"""Which whole states stay of a sweep that is over: by default the last ones of its best setting.

They get a run of their own, SWEEP/best. After that sweep.json lists it under `kept`, and only then
the chunks' states go. So a kill at any moment leaves a whole sweep: either its chunks have their
states, or sweep.json says that they need none, and the next `--resume` removes what is left.
Policies, metrics and tables stay in any case.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from algorithms.launch.engine import experiment, files, hosts, programs, results, sources
from algorithms.launch.engine.hosts import locked
from algorithms.launch.engine.results import Ranked
from algorithms.launch.engine.run_dir import RunDir, with_checksum
from algorithms.launch.engine.session import Chunk
from algorithms.launch.engine.sources import Source
from algorithms.launch.engine.stages import Stages
from algorithms.launch.engine.sweep_dir import bests

FLAG = "--sweep-states all keeps all of them"


def will_go(stages: Stages, chunks: Sequence[Chunk]) -> bool:
    """Whether the end of a sweep is to remove states of the chunks, or of those to come."""
    path, options, num_seeds = stages.path, stages.options, len(stages.schedule.seeds)
    if path is None or options.sweep_states != "best" or options.keep_states:
        return False
    numbers = {number for chunk in chunks if not chunk.retest for number in chunk.numbers}
    return len(numbers) > num_seeds and not experiment.open(path).kept


def keep_best(path: Path, judged: Sequence[Ranked], chunks: Sequence[Chunk]) -> str:
    """Gives the best setting of each environment a run with its last state, and removes the
    states of the chunks. Returns what to say of it.

    Args:
      path: of a sweep that is over.
      judged: its settings, the best one of each environment first.
      chunks: all of them.

    Raises:
      UserError: a state cannot be read, or something else is in the way; then all states stay.
    """
    hosts.wait()  # each process has saved its part
    hosts.from_first(lambda: _make(path, judged, chunks))
    remove_rest(path)
    runs = " and ".join(str(path / name) for name in experiment.open(path).kept)
    return f"the best setting with its whole state is in {runs}; the other whole states are gone"


def remove_rest(path: Path) -> None:
    """Removes the chunks' states, once sweep.json says that they need none.

    A chunk that the user has trained longer than its sweep keeps them.
    """
    there = experiment.open(path)
    for run_dir in there.run_dirs() if there.kept else ():
        if run_dir.state_files() and not _is_longer(run_dir, there):
            _remove_states(run_dir)


def _is_longer(run_dir: RunDir, there: experiment.Experiment) -> bool:
    """Whether a chunk has another total than its sweep asked for."""
    said, name = there.description, "total_timesteps"
    asked = said["grid"].get(name, [said["config"].get(name)])
    is_drawn = isinstance(asked, str)
    return not is_drawn and run_dir.description["config"].get(name) not in asked


def _make(path: Path, judged: Sequence[Ranked], chunks: Sequence[Chunk]) -> None:
    """Makes the runs, and lists them in sweep.json."""
    best = results.by_environment(judged)
    described = bests(path, judged, len(best) > 1)
    kept: dict[str, list[int]] = {}
    with files.writing(path):
        for (name, description), settings in zip(described.items(), best.values()):
            folder, setting = path / name.removesuffix(".json"), settings[0]
            _make_run(folder, description, setting, chunks)
            kept[folder.name] = [trial.number for trial in setting.trials]
    experiment.amend(path, kept=kept)


def _make_run(
    folder: Path, description: dict[str, Any], setting: Ranked, chunks: Sequence[Chunk]
) -> None:
    """Makes the run of a setting, which is there whole or not at all."""
    for part in folder.parent.glob(f".{folder.name}.*"):  # of a process that was killed
        shutil.rmtree(part, ignore_errors=True)
    homes = {chunk.run_dir.path.name: chunk for chunk in chunks if chunk.run_dir}
    trainer, last = homes[setting.trials[0].run].trainer, homes[setting.trials[0].run].num_points
    if _is_made(folder, description, last):
        return
    come = [Source(homes[trial.run].run_dir, trial.trial, last) for trial in setting.trials]
    like = programs.initial_state(trainer.module, trainer.config)

    def fill(new: Path) -> None:
        sources.gather(new, description, come, like)
        made = RunDir(new, description)
        made.mend_metrics(last, made.history())

    experiment.make(folder, fill)


def _is_made(folder: Path, description: dict[str, Any], last: int) -> bool:
    """Whether the run is there, from a process that was killed before sweep.json had it."""
    if not (folder / "config.json").exists():
        return False
    same = files.read_json(folder / "config.json") == with_checksum(files.as_read(description))
    return same and last in RunDir(folder, description).points("state")


def _remove_states(run_dir: RunDir) -> None:
    """Removes the whole states of a chunk, in which nothing else must train meanwhile."""

    def remove() -> None:
        with files.writing(run_dir.path):
            for file in run_dir.state_files():
                file.unlink(missing_ok=True)

    with locked(run_dir.path):
        hosts.from_first(remove)
