"""Experiment trackers: wandb and TensorBoard, both optional libraries."""

import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from algorithms.launch.errors import UserError, warn
from algorithms.launch.plots import mean_and_error, players

WANDB_PROJECT = "jax-rl"  # unless $WANDB_PROJECT names another


class Tracker(Protocol):
    """Where the points of a learning curve go while the run goes on."""

    def log(self, point: dict[str, np.ndarray], timestep: int) -> None:
        """Takes one point: arrays (agents,), those named `eval_` (agents, episodes)."""

    def gif(self, path: Path, timestep: int) -> None:
        """Takes an animation of the first seed."""

    def close(self) -> None:
        """Writes out what is left."""


def open_trackers(
    *,
    track: bool,
    tensorboard: bool,
    one_run_per_seed: bool,
    run_dir: Path,
    name: str,
    config: dict[str, Any],
    seeds: Sequence[int],
    resume: bool,
) -> list[Tracker]:
    """Opens the trackers that were asked for.

    A tracker that fails later becomes one warning on stderr and falls silent: no run is lost to it.

    Args:
      track: log to wandb; $WANDB_MODE=offline, $WANDB_PROJECT and wandb's other variables work.
      tensorboard: write event files below run_dir/tensorboard.
      one_run_per_seed: give every seed a run of its own (grouped in wandb, a folder each in
        TensorBoard); else one run has `seed_3/eval_return` and so on beside their means.
      run_dir: everything is written in here.
      name: of the run.
      config: what wandb's table of runs shows.
      seeds: one for each agent.
      resume: go on with the wandb runs noted in run_dir.

    Raises:
      UserError: a library is missing, or wandb cannot start.
    """
    split = [[seed] for seed in seeds] if one_run_per_seed else [list(seeds)]
    opened: list[Tracker] = []
    if tensorboard:
        opened.append(_Guarded("TensorBoard", _TensorBoard(split, Path(run_dir), config)))
    if track:
        opened.append(_Guarded("wandb", _Wandb(split, Path(run_dir), name, config, resume)))
    return opened


def scalars(point: dict[str, np.ndarray], seeds: Sequence[int]) -> dict[str, float]:
    """One point of some agents as named numbers: evaluations averaged over episodes.

    Several seeds give the mean over those that have a value, and `seed_<seed>/` numbers. The
    players of a game become `episode_return/player 0` and so on.
    """
    row = {}
    for key, value in point.items():
        if key == "timestep":
            continue
        for player, values in players(key, np.asarray(value)[:, None]).items():
            name = f"{key}/{player}" if player else key
            row[name] = float(mean_and_error(values)[0][0])
            if len(seeds) > 1:
                row |= {f"seed_{s}/{name}": float(v[0]) for s, v in zip(seeds, values)}
    return row


def _rows(point: dict[str, np.ndarray], split: list[list[int]]) -> list[dict[str, float]]:
    """The numbers of each run; `split` has the seeds of each."""
    if len(split) == 1:
        return [scalars(point, split[0])]
    return [
        scalars({key: np.asarray(value)[i : i + 1] for key, value in point.items()}, seeds)
        for i, seeds in enumerate(split)
    ]


class _Guarded:
    """Turns a tracker's first failure into a warning, and leaves it alone from then on."""

    def __init__(self, label: str, tracker: Tracker):
        self.label, self.tracker, self.failed = label, tracker, False

    def log(self, point: dict[str, np.ndarray], timestep: int) -> None:
        self._try(self.tracker.log, point, timestep)

    def gif(self, path: Path, timestep: int) -> None:
        self._try(self.tracker.gif, path, timestep)

    def close(self) -> None:
        self._try(self.tracker.close)

    def _try(self, call: Callable, *args: Any) -> None:
        if self.failed:
            return
        try:
            call(*args)
        except Exception as error:  # whatever network or disk come up with: training matters more
            self.failed = True
            warn(f"{self.label} tracks no further: {type(error).__name__}: {error}")


class _Wandb:
    """One wandb run for each group of seeds, with environment steps as the x axis."""

    def __init__(self, split, run_dir: Path, name: str, config: dict[str, Any], resume: bool):
        try:
            import wandb
        except ImportError as error:
            raise UserError("--track needs wandb: pip install wandb") from error
        self.wandb, self.split = wandb, split
        notes = run_dir / "wandb" / "runs.json"  # run ids, so that a resumed run goes on in them
        ids = json.loads(notes.read_text()) if resume and notes.exists() else {}
        self.runs = []
        for seeds in split:
            one_of_many = len(split) > 1
            label = f"{name}__seed_{seeds[0]}" if one_of_many else name
            options = {"group": name} if one_of_many else {}
            if label in ids:
                options |= {"id": ids[label], "resume": "allow"}
            self.runs.append(self._start(run_dir, label, {**config, "seeds": seeds}, options))
            ids[label] = self.runs[-1].id
        notes.parent.mkdir(exist_ok=True)
        notes.write_text(json.dumps(ids, indent=2))

    def _start(self, run_dir: Path, label: str, config: dict, options: dict) -> Any:
        try:
            run = self.wandb.init(
                project=os.environ.get("WANDB_PROJECT", WANDB_PROJECT),
                name=label,
                dir=run_dir,
                config=config,
                reinit="create_new",  # the user's own run, if there is one, stays as it is
                settings=self.wandb.Settings(console="off", quiet=True),  # progress is no log
                **options,
            )
        except self.wandb.Error as error:
            hint = "run `wandb login`, or set WANDB_MODE=offline to upload later"
            raise UserError(f"--track: wandb cannot start: {error} ({hint})") from error
        run.define_metric("timestep")
        run.define_metric("*", step_metric="timestep")
        return run

    def log(self, point: dict[str, np.ndarray], timestep: int) -> None:
        for run, row in zip(self.runs, _rows(point, self.split)):
            run.log({**row, "timestep": timestep})

    def gif(self, path: Path, timestep: int) -> None:
        video = self.wandb.Video(str(path), format="gif")
        self.runs[0].log({"episode": video, "timestep": timestep})

    def close(self) -> None:
        for run in self.runs:
            run.finish()


class _TensorBoard:
    """One folder of event files for each group of seeds.

    Written with tensorboardX's synchronous writer: its SummaryWriter writes from a thread, and once
    that has died of a full disk the next calls wait for ever.
    """

    def __init__(self, split, run_dir: Path, config: dict[str, Any]):
        try:
            from tensorboardX import event_file_writer, summary
            from tensorboardX.proto import event_pb2, summary_pb2
        except ImportError as error:
            raise UserError("--tensorboard needs tensorboardX: pip install tensorboardX") from error
        self.event_pb2, self.summary_pb2, self.split = event_pb2, summary_pb2, split
        self.writers = []
        for seeds in split:
            folder = run_dir / "tensorboard"
            folder = folder / f"seed_{seeds[0]}" if len(split) > 1 else folder
            folder.mkdir(parents=True, exist_ok=True)
            suffix = f".{secrets.token_hex(4)}"  # the library's names are unique only to a second
            writer = event_file_writer.EventsWriter(str(folder / "events"), suffix)
            self.writers.append(writer)
            lines = [f"    {key} = {value}" for key, value in {**config, "seeds": seeds}.items()]
            self._write(writer, summary.text("config", "\n".join(lines)), 0)

    def log(self, point: dict[str, np.ndarray], timestep: int) -> None:
        value = self.summary_pb2.Summary.Value
        for writer, row in zip(self.writers, _rows(point, self.split)):
            values = [value(tag=name, simple_value=number) for name, number in row.items()]
            self._write(writer, self.summary_pb2.Summary(value=values), timestep)

    def gif(self, path: Path, timestep: int) -> None:
        from PIL import Image

        with Image.open(path) as gif:
            width, height = gif.size
        image = self.summary_pb2.Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes()
        )
        value = self.summary_pb2.Summary.Value(tag="episode", image=image)
        self._write(self.writers[0], self.summary_pb2.Summary(value=[value]), timestep)

    def close(self) -> None:
        for writer in self.writers:
            writer.close()

    def _write(self, writer: Any, summary: Any, timestep: int) -> None:
        event = self.event_pb2.Event(wall_time=time.time(), step=int(timestep), summary=summary)
        writer.write_event(event)
        writer.flush()
