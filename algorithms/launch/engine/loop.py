"""The loop over the chunks of a run or a sweep; a run has one chunk."""

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms import parts
from algorithms.launch.engine import (
    experiment,
    files,
    hosts,
    plots,
    programs,
    progress,
    results,
    settings,
    states,
    sweep_dir,
)
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.hosts import locked
from algorithms.launch.engine.interrupts import Interrupt
from algorithms.launch.engine.metrics import Idle, Learnless
from algorithms.launch.engine.options import Options
from algorithms.launch.engine.outputs import DRAW_SECONDS, Hooks
from algorithms.launch.engine.progress import brief
from algorithms.launch.engine.record import Losses
from algorithms.launch.engine.results import Outcome
from algorithms.launch.engine.schedule import WHOLE
from algorithms.launch.engine.session import Chunk, Result, Session
from algorithms.launch.engine.stages import Stages, following


class Swept(NamedTuple):
    """The results of a sweep."""

    trials: list[Outcome]  # in the order of results.csv, as far as they came
    ranked: list[results.Ranked]  # the best setting first, of one environment after another
    sweep_dir: Path | None
    objective: float  # to minimise: minus the best settings' score, by default their mean return
    stopped: str = ""  # by SIGINT (Ctrl-C), SIGTERM or, before the end, what a hook says
    unsaved: str = ""  # what could not be written, as on a full disk
    retested: Sequence[results.Retested] = ()  # the best settings on other seeds, the best first
    finished: bool = True  # it came to its end, perhaps with a signal in its last point

    def __repr__(self) -> str:
        return brief(self)

    @property
    def agents(self) -> list[Outcome]:
        """The earlier name of `trials`."""
        return self.trials

    def of(self, setting: Mapping[str, Any]) -> results.Ranked:
        """What came of a setting; one field or more says which.

        Raises:
          UserError: there is none with these values, or there are several.
        """
        agrees = lambda one: all(
            name in one.setting and _same(one.setting[name], value)
            for name, value in setting.items()
        )
        found = [one for one in self.ranked if agrees(one)]
        if len(found) != 1:
            wanted = {name: parts.value_like(None, value) for name, value in setting.items()}
            named = ", ".join(settings.text_of(wanted)) or "no field"
            raise UserError(f"{len(found)} settings of the sweep have {named}: give values of one")
        return found[0]

    @property
    def failed(self) -> bool:
        """Whether no trial is finite; a setting that breaks is a result of a sweep."""
        return bool(self.trials) and not any(trial.is_finite for trial in self.trials)

    @property
    def interrupted(self) -> bool:
        return bool(self.stopped)


def _same(own: Any, value: Any) -> bool:
    """Whether a value is that of a setting; floats train as float32, and compare as such."""
    value = parts.value_like(own, value)
    if isinstance(own, float) and isinstance(value, int | float):
        return bool(np.float32(own) == np.float32(value))
    return bool(own == value)


def _reached(chunk: Chunk, result: Result) -> float:
    """The share of its stage that a chunk has trained: less than 1 where a stop cut it short."""
    if not result.stopped:
        return 1.0
    plan, steps = chunk.trainer.plan, result.metrics.get("timestep")
    whole = plan.steps * chunk.num_points / plan.points
    return min(1.0, float(steps[:, -1].min()) / whole) if steps is not None and whole else 0.0


def train_run(chunk: Chunk, options: Options, hooks: Hooks) -> Result:
    """Trains the rest of a run."""
    with Interrupt() as interrupt:
        result = _train_one(Session(chunk, options, hooks), interrupt)
    return result._replace(stopped=interrupt.heard() or result.stopped)


class Standing:
    """The results of a sweep so far."""

    def __init__(self, stages: Stages, chunks: list[Chunk], hooks: Hooks):
        self.stages, self.chunks, self.hooks = stages, chunks, hooks
        self.path, self.view = stages.path, chunks[0].trainer.view
        self.objective = stages.schedule.asked.objective
        self.losses = Losses(self.view.warn)
        self.ends: dict[int, tuple[Chunk, int, Result]] = {}  # of the trials of the last stages
        self.came = results.Came({}, {})
        self.learnless, self.idle = Learnless(), Idle()
        self.retests = 0  # chunks of the retest that have come to their end
        self.unsaved: list[str] = []
        self.drawn = -math.inf  # when pictures were drawn last
        self.done = 0  # of the work, in points of trials

    def add(self, chunk: Chunk, result: Result) -> None:
        """Adds the results of a chunk."""
        self.done += chunk.trials.count * (chunk.num_points - self.stages.first(chunk))
        self.retests += chunk.retest and not result.stopped
        number = next(i for i, other in enumerate(self.chunks) if other is chunk)
        run = chunk.run_dir.path.name if chunk.run_dir else f"chunk_{number:03d}"
        self.unsaved += [f"{result.unsaved} of {run}"] * bool(result.unsaved)
        rung = self.stages.schedule.rung(chunk.stage) or WHOLE
        part = results.Part(
            setting=chunk.static,
            trials=chunk.trials,
            metrics=result.metrics,
            is_finite=result.is_finite,
            run=run,
            numbers=chunk.numbers,
            retest=chunk.retest,
            bracket=rung.bracket,
            rung=rung.number,
            share=rung.share,
            reached=_reached(chunk, result),
        )
        self.came.add(part)
        self.learnless.add(result.metrics)
        self.idle.add(chunk.trials, result.metrics)
        # The next rung goes on from the files, where there are any.
        kept = result if rung.keep and not chunk.run_dir else result._replace(state=None)
        self.ends |= {trial: (chunk, place, kept) for place, trial in enumerate(chunk.numbers)}

    def place(self, chunk: Chunk, label: str) -> progress.Place:
        """Where a chunk is in the sweep, in points of as many trials as it has."""
        size = chunk.trials.count
        before = self.done / size - self.stages.first(chunk)
        return progress.Place(label, before, self.stages.work(self.chunks) / size)

    @property
    def ranked(self) -> list[results.Ranked]:
        return results.rank(self.came.trials, self.objective)

    @property
    def again(self) -> list[results.Retested]:
        """Those of the retest, once it is over: before that its returns are not of whole runs."""
        if not self.retests == sum(chunk.retest for chunk in self.chunks) > 0:
            return []
        return results.retests(self.ranked, self.came.retests, self.objective)

    @property
    def judged(self) -> list[results.Ranked]:
        """The settings in the order that counts: that of the retest, if it is over."""
        return [one.again for one in self.again] or self.ranked

    def publish(self, last: bool = False) -> bool:
        """Writes tables, and draws pictures at the end and at most once in DRAW_SECONDS before it.

        Returns whether the tables are there.
        """
        if not (self.path and self.came.first and hosts.is_first()):
            return True
        written = False
        with self.losses.survive("results.csv", "results.csv was not written", OSError, UserError):
            self._write(self.path)
            written = True
        if last or time.perf_counter() - self.drawn > DRAW_SECONDS:
            self._draw(self.path)
            self.drawn = time.perf_counter()
        return written

    def _write(self, path: Path) -> None:
        table = lambda trials: results.csv(trials, self.objective).encode()
        files.write_whole(path / "results.csv", table(self.came.trials))
        files.write_whole(path / "trials.csv", sweep_dir.trials_csv(self.chunks).encode())
        if self.came.retested:
            files.write_whole(path / "retest.csv", table(self.came.retests))
        several = len({settings.env_name(chunk.trainer.config) for chunk in self.chunks}) > 1
        for name, best in sweep_dir.bests(path, self.judged, several).items():
            files.write_json(path / name, best)

    def _draw(self, path: Path) -> None:
        """The picture and the report of all trials so far."""
        ranked, trainers = self.ranked, [chunk.trainer for chunk in self.chunks]
        module, config = trainers[0].module, trainers[0].config
        title = sweep_dir.title_of(module, [trainer.config for trainer in trainers])
        with self.losses.survive("sweep.png", "sweep.png was not drawn", Exception):
            grid = experiment.open(path).description["grid"]
            linear = [name for name, asked in grid.items() if plots.is_log(asked) is False]
            plots.sweep(ranked, title, path / "sweep.png", linear)
        if not self.hooks.page:
            return
        with self.losses.survive("report.html", "report.html was not written", Exception):
            given = path, ranked, title, self.again, self.objective, module, config
            files.write_whole(path / "report.html", self.hooks.page(*given).encode())


def train_sweep(stages: Stages, chunks: list[Chunk], hooks: Hooks) -> Swept:
    """Trains the unfinished chunks, stage by stage, and writes the tables anew after each."""
    standing, schedule = Standing(stages, list(chunks), hooks), stages.schedule
    go = states.will_go(stages, chunks)
    if go:
        standing.view.say(
            f"when it is done, only the best setting keeps whole states ({states.FLAG})"
        )
    with Interrupt() as interrupt:
        for stage in range(schedule.num_stages):
            mine = [chunk for chunk in standing.chunks if chunk.stage == stage]
            if not mine and schedule.rung(stage) and _lack_states(standing.chunks, stage):
                break  # a full disk: `unsaved` says so, and --resume trains them again
            if not mine:
                mine = following(stages, stage, standing.came.trials, standing.ends)
                standing.chunks += mine
            stopped = _train_stage(standing, stage, mine, interrupt)
            if stopped:
                break
        learnless = standing.learnless.in_words(every=True, begun=bool(stages.options.init))
        if not stopped and hosts.is_first():
            for told in filter(None, (learnless, standing.idle.in_words())):
                standing.view.warn(told)
        swept = _swept(standing, stopped, go)
    return swept._replace(stopped=interrupt.heard() or swept.stopped)


def _lack_states(chunks: Sequence[Chunk], stage: int) -> bool:
    """Whether a chunk of the rung before lacks the states that the next one would go on from."""
    before = [chunk for chunk in chunks if chunk.stage == stage - 1 and chunk.run_dir]
    return any(not c.run_dir.parts(c.num_points, "state") for c in before if c.run_dir)


def _train_stage(standing: Standing, stage: int, chunks: list[Chunk], interrupt: Interrupt) -> str:
    """Returns why the sweep stopped before the end of the stage; else an empty text."""
    schedule, options = standing.stages.schedule, standing.stages.options
    for i, chunk in enumerate(chunks):
        label = f"chunk {i + 1} of {len(chunks)}" if len(chunks) > 1 else ""
        named = ", ".join(filter(None, [schedule.name(stage), label]))
        standing.view.place = standing.place(chunk, named)
        result = _train_one(Session(chunk, options, standing.hooks, True), interrupt)
        standing.add(chunk, result)
        stopped = result.stopped
        is_last = stage + 1 == schedule.num_stages and i + 1 == len(chunks)
        if not stopped and not is_last:
            if not chunk.is_finished:
                standing.publish()
            stopped = interrupt.agreed()
        if stopped:
            return stopped
    return ""


def _swept(standing: Standing, stopped: str, go: bool) -> Swept:
    """Says and writes what came of a sweep; `go`: whole states go if it is over."""
    view, path, wanted = standing.view, standing.path, standing.objective
    if not standing.publish(last=True):
        standing.unsaved.append("results.csv and best.json")
        view.warn(f"not saved: results.csv and best.json; --resume {path} writes them")
    trials, ranked, again = standing.came.trials, standing.ranked, standing.again
    if ranked:
        view.say(results.table(ranked, wanted))
    trained, whole = standing.stages.steps(standing.chunks)
    if standing.stages.schedule.asked.halving and not stopped:
        saved = f"{100 * (1 - trained / whole):.0f} % saved" if trained < whole else "none saved"
        view.say(f"halving: {trained:,} environment steps in place of {whole:,}, {saved}")
    if again:
        view.say(results.retest_table(again, wanted))
    everyone = [*trials, *standing.came.retests]
    if broken := [trial for trial in everyone if not trial.is_finite]:
        view.say(results.broken(broken))
    unsaved = standing.unsaved
    if path and not stopped and not unsaved:
        _remove_states(standing, path, go)
    how = ["stopped" if stopped else "done", *[progress.NOT_SAVED] * bool(unsaved)]
    where = f"in {path} ({programs.in_words(files.size(path))})" if path else ""
    view.finish(", ".join(filter(None, [*how, where])))
    best = [those[0].score(wanted) for those in results.by_environment(standing.judged).values()]
    objective = -float(np.mean(best)) if ranked else float("inf")
    ends = (stopped, "; ".join(unsaved), again, not stopped)
    return Swept(trials, ranked, path, objective, *ends)


def _remove_states(standing: Standing, path: Path, go: bool) -> None:
    """Removes the whole states that nothing needs of a sweep that is over."""
    try:
        if go:
            standing.view.say(states.keep_best(path, standing.judged, standing.chunks))
        else:
            states.remove_rest(path)
    except (UserError, OSError) as error:
        if hosts.is_first():
            standing.view.warn(f"whole states stay: {error}")


def _train_one(session: Session, interrupt: Interrupt) -> Result:
    chunk = session.chunk
    own = chunk.run_dir if session.in_sweep and not chunk.is_finished else None
    try:
        with locked(own.path) if own else contextlib.nullcontext():
            return session.train(interrupt)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        count = chunk.trials.count
        fewer = f"start again with max_parallel={count // 2}"
        raise UserError(
            f"out of memory with {chunk.trials.in_words} at once, though the compiler's count "
            f"fits: {fewer if count > 1 else 'fewer num_envs or a smaller network would do'}"
        ) from error
