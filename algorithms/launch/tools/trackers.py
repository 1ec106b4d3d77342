"""Experiment trackers: wandb and TensorBoard, both optional libraries."""

import importlib.util
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from algorithms.launch.engine import files, objectives, results
from algorithms.launch.engine.errors import UserError, warn
from algorithms.launch.engine.metrics import PACE_NAMES, stack
from algorithms.launch.engine.outputs import Output
from algorithms.launch.engine.plots import by_player, mean_and_error
from algorithms.launch.engine.results import Outcome, grouped
from algorithms.launch.engine.settings import Trials, lenient, plain, text_of

WANDB_PROJECT = "jax-rl"  # unless $WANDB_PROJECT names another
SUMMARY = ("final_return", "mean_return", "worst_seed")  # objectives that wandb's table shows


class Trackers(Output):
    """The trackers that were asked for, as an output of a run.

    One that fails becomes one warning on stderr and falls silent: no run is lost to it.
    """

    trackers: Mapping[str, "Tracker"] = MappingProxyType({})  # by what people call them

    def open(self) -> None:
        session, run_dir = self.session, self.record.run_dir
        told = Told(
            run_dir=run_dir.path,
            config={"algorithm": run_dir.algorithm, **run_dir.description["config"]},
            parts=split(session.trials, session.options.one_run_per_seed),
            resume=self.record.start.resumed,
            group=run_dir.path.parent.name if session.in_sweep else None,
            static=session.chunk.static,
        )
        self.trackers = open_trackers(session.options.tracked, told)

    def at(self, point: Any, states: Any) -> None:
        if self.record.logged:
            self._tell("log", self.record.logged, point.timestep)

    def gif(self, file: Path, timestep: int) -> None:
        self._tell("gif", file, timestep)

    def close(self) -> None:
        session, metrics = self.session, stack(self.record.rows)
        given = (session.chunk.static, session.trials, metrics, self.record.were_finite)
        self._tell("close", results.Part(*given).outcomes())

    def _tell(self, method: str, *given: Any) -> None:
        for label, tracker in self.trackers.items():
            try:
                getattr(tracker, method)(*given)
            except Exception as error:  # whatever network or disk come up with
                self.trackers = {n: x for n, x in self.trackers.items() if n != label}
                warn(f"{label} stops tracking: {type(error).__name__}: {error}")


class Tracker(Protocol):
    """A destination for the points of a learning curve while the run trains."""

    def log(self, point: dict[str, np.ndarray], timestep: int) -> None:
        """Takes one point: arrays (trials,), those named `eval_` (trials, episodes)."""

    def gif(self, path: Path, timestep: int) -> None:
        """Takes an animation of the first seed."""

    def close(self, outcomes: Sequence[Outcome] = ()) -> None:
        """Writes out what is left; `outcomes` are those of all trials."""


def check_libraries(asked: Sequence[str]) -> None:
    """Refuses trackers whose libraries are missing; imports none of them.

    Args:
      asked: the options of trackers that are set.

    Raises:
      UserError: one is; the message has its pip command.
    """
    for option in asked:
        if not _is_there(TRACKERS[option].library):
            raise _missing(option)


def _is_there(library: str) -> bool:
    if sys.modules.get(library):
        return True
    spec = importlib.util.find_spec(library)
    return spec is not None and spec.origin is not None  # a folder `wandb` of runs has no origin


def _missing(option: str) -> UserError:
    library = TRACKERS[option].library
    return UserError(f"--{option} needs {library}: pip install {library}")


class Told(NamedTuple):
    """What a tracker is told of a run."""

    run_dir: Path  # of the run, whose name it has; everything is written in here
    config: dict[str, Any]  # what wandb's table of runs shows
    parts: "list[Part]"  # of the trials: a run of the tracker for each
    resume: bool  # go on with the wandb runs noted in run_dir
    group: str | None = None  # of the runs in wandb: the sweep that the run is a chunk of
    static: Mapping[str, Any] = MappingProxyType({})  # the sweep's static fields


def open_trackers(asked: Sequence[str], told: Told) -> dict[str, Tracker]:
    """The trackers of these options, by what people call them.

    Raises:
      UserError: a library is missing, or a tracker cannot start.
    """
    return {TRACKERS[option].label: TRACKERS[option].make(told) for option in asked}


class Part(NamedTuple):
    """The trials that a tracker's run shows."""

    label: str  # empty if they are all
    rows: list[int]
    seeds: list[int]
    setting: dict[str, float]  # swept floats


def split(trials: Trials, one_run_per_seed: bool) -> list[Part]:
    """One part for each setting, or for each trial."""
    key = lambda row: row if one_run_per_seed else tuple(trials.setting(row).items())
    parts = grouped(range(trials.count), key).values()
    labels = [trials.setting(rows[0]) for rows in parts]
    if one_run_per_seed:
        labels = [label | {"seed": trials.seeds[rows[0]]} for label, rows in zip(labels, parts)]
    named = [",".join(text_of(label)).replace("=", "_") for label in labels]
    return [
        Part(
            name * (len(parts) > 1), rows, [trials.seeds[i] for i in rows], trials.setting(rows[0])
        )
        for name, rows in zip(named, parts)
    ]


def shown(config: Mapping[str, Any], static: Mapping[str, Any], part: Part) -> dict[str, Any]:
    """What wandb's table of runs shows of one: numbers where they are swept, no lists, so that
    it can draw them side by side."""
    swept = {name: plain(v) if isinstance(v, tuple) else v for name, v in static.items()}
    seeds = {"seeds": part.seeds} | ({"seed": part.seeds[0]} if len(part.seeds) == 1 else {})
    return {**lenient(dict(config)), **swept, **part.setting, **seeds}


def scalars(point: dict[str, np.ndarray], seeds: Sequence[int]) -> dict[str, float]:
    """One point of some trials as tagged numbers: evaluations averaged over episodes.

    Several seeds give the mean over those that have a value, and `seed_<seed>/` numbers. The
    players of a game become `episode/return/player 0` and so on.
    """
    row = {}
    for key, value in point.items():
        if key == "timestep":
            continue
        for player, values in by_player(key, np.asarray(value)[:, None]).items():
            name = f"{tag(key)}/{player}" if player else tag(key)
            row[name] = float(mean_and_error(values)[0][0])
            if len(seeds) > 1 and key not in PACE_NAMES:
                row |= {f"seed_{s}/{name}": float(v[0]) for s, v in zip(seeds, values)}
    return row


def tag(name: str) -> str:
    """A metric's name in a group of its kind: eval, episode (of training), time or train."""
    group, _, rest = name.partition("_")
    if group in ("eval", "episode"):
        return f"{group}/{rest}"
    if name in PACE_NAMES:
        return f"time/{name}"
    return f"episode/{name}" if name == "num_episodes" else f"train/{name}"


def _rows(point: dict[str, np.ndarray], parts: list[Part]) -> list[dict[str, float]]:
    """The numbers of each part."""
    return [
        scalars({key: np.asarray(value)[part.rows] for key, value in point.items()}, part.seeds)
        for part in parts
    ]


class _Wandb:
    """One wandb run for each part, with environment steps as the x axis.

    In a sweep they are one group. Its wandb.json has their ids, so that what halving keeps goes on
    in its run, whichever chunk it is in.
    """

    def __init__(self, told: Told):
        try:
            import wandb
        except ImportError as error:
            raise _missing("track") from error
        run_dir, config, parts, resume, group, static = told
        self.wandb, self.parts, name = wandb, parts, run_dir.name
        notes = run_dir / "wandb" / "runs.json"  # run ids, so that a resumed run goes on in them
        ids = _noted(notes) if resume else {}
        of_sweep = run_dir.parent / "wandb.json" if group else None
        shared = _noted(of_sweep) if of_sweep else {}
        self.runs = []
        for part in parts:
            label = f"{name}__{part.label}" if part.label else name
            key = ", ".join([*text_of({**static, **part.setting}), f"seeds {part.seeds}"])
            options = {"group": group or name} if part.label or group else {}
            if known := ids.get(label) or shared.get(key):
                options |= {"id": known, "resume": "allow"}
            columns = shown(config, static, part)
            # A chunk says nothing: what halving keeps comes to another one.
            varied = {**static, **part.setting} if group else {}
            varied |= {"seed": columns["seed"]} if varied and "seed" in columns else {}
            title = ", ".join(text_of(varied)) or label
            self.runs.append(self._start(run_dir, title, columns, options))
            ids[label] = shared[key] = self.runs[-1].id
        notes.parent.mkdir(exist_ok=True)
        files.write_json(notes, ids)
        if of_sweep:
            files.write_json(of_sweep, shared)

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
        for run, row in zip(self.runs, _rows(point, self.parts)):
            run.log({**row, "timestep": timestep})

    def gif(self, path: Path, timestep: int) -> None:
        video = self.wandb.Video(str(path), format="gif")
        self.runs[0].log({"episode": video, "timestep": timestep})

    def close(self, outcomes: Sequence[Outcome] = ()) -> None:
        for run, part in zip(self.runs, self.parts):
            mine = [outcomes[row] for row in part.rows] if outcomes else []
            scores = {name: objectives.score(name, mine) for name in SUMMARY}
            run.summary.update({k: v for k, v in scores.items() if np.isfinite(v)})
            run.finish()


def _noted(file: Path) -> dict[str, str]:
    """Ids of wandb's runs; without them, also where the file is damaged, runs are new ones."""
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        warn(f"{file} is not readable as JSON, wandb's runs begin anew: {error}")
        return {}


class _TensorBoard:
    """One folder of event files for each part.

    Written with tensorboardX's synchronous writer: its SummaryWriter writes from a thread, and once
    that has died of a full disk the next calls wait for ever.
    """

    def __init__(self, told: Told):
        try:
            from tensorboardX import event_file_writer, summary
            from tensorboardX.proto import event_pb2, summary_pb2
        except ImportError as error:
            raise _missing("tensorboard") from error
        self.event_pb2, self.summary_pb2, self.parts = event_pb2, summary_pb2, told.parts
        self.writers = []
        for part in told.parts:
            folder = told.run_dir / "tensorboard" / part.label
            folder.mkdir(parents=True, exist_ok=True)
            suffix = f".{secrets.token_hex(4)}"  # the library's names are unique only to a second
            writer = event_file_writer.EventsWriter(str(folder / "events"), suffix)
            self.writers.append(writer)
            shown = {**told.config, **part.setting, "seeds": part.seeds}
            lines = [f"    {key} = {value}" for key, value in shown.items()]
            self._write(writer, summary.text("config", "\n".join(lines)), 0)

    def log(self, point: dict[str, np.ndarray], timestep: int) -> None:
        value = self.summary_pb2.Summary.Value
        for writer, row in zip(self.writers, _rows(point, self.parts)):
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

    def close(self, outcomes: Sequence[Outcome] = ()) -> None:
        for writer in self.writers:
            writer.close()

    def _write(self, writer: Any, summary: Any, timestep: int) -> None:
        event = self.event_pb2.Event(wall_time=time.time(), step=int(timestep), summary=summary)
        writer.write_event(event)
        writer.flush()


class _Known(NamedTuple):
    """A tracker that can be asked for."""

    label: str  # for people
    library: str  # that has to be installed
    make: Callable[[Told], Tracker]


# By the option that asks for one, see `TRACKERS` in engine/options.py.
TRACKERS = {
    "track": _Known("wandb", "wandb", _Wandb),
    "tensorboard": _Known("TensorBoard", "tensorboardX", _TensorBoard),
}
