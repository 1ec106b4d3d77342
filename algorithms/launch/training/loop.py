"""The loop over the chunks of a run or a sweep; a run has one chunk."""

import contextlib
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from algorithms.launch.compute.interrupts import Interrupt
from algorithms.launch.errors import UserError
from algorithms.launch.show import progress, results
from algorithms.launch.show.brief import brief
from algorithms.launch.show.results import Outcome
from algorithms.launch.storage.locks import locked
from algorithms.launch.storage.losses import Losses
from algorithms.launch.training.options import Options
from algorithms.launch.training.session import Hooks, Result, Session
from algorithms.launch.training.sweep_dir import Chunk, publish


class Swept(NamedTuple):
    """What a sweep has come to."""

    trials: list[Outcome]  # in the order of results.csv, as far as they came
    ranked: list[results.Ranked]  # the best setting first, of one environment after another
    sweep_dir: Path | None
    objective: float  # to minimise: minus the best settings' mean return at the last point
    stopped: str = ""  # before the end: by SIGINT (Ctrl-C), SIGTERM or what a hook says
    unsaved: str = ""  # what could not be written, as on a full disk

    def __repr__(self) -> str:
        return brief(self)

    @property
    def agents(self) -> list[Outcome]:
        """The earlier name of `trials`."""
        return self.trials

    @property
    def failed(self) -> bool:
        """Whether no trial is finite; a setting that breaks is a result of a sweep."""
        return bool(self.trials) and not any(trial.is_finite for trial in self.trials)

    @property
    def interrupted(self) -> bool:
        return bool(self.stopped)


def train(
    chunks: list[Chunk], options: Options, hooks: Hooks, path: Path | None, is_sweep: bool
) -> Result | Swept:
    """Trains what is not finished. After each chunk of a sweep its results are written anew."""
    view, losses = chunks[0].trainer.view, Losses(chunks[0].trainer.view.warn)
    ends = np.cumsum([chunk.trainer.plan.points for chunk in chunks])
    trials: list[Outcome] = []
    unsaved: list[str] = []
    with Interrupt() as interrupt:
        for i, (chunk, end) in enumerate(zip(chunks, ends)):
            if is_sweep:
                label = f"chunk {i + 1} of {len(chunks)}" if len(chunks) > 1 else ""
                view.place = progress.Place(label, end - chunk.trainer.plan.points, ends[-1])
            result = _train_one(Session(chunk, options, hooks, is_sweep), interrupt)
            if not is_sweep:
                return result
            run = chunk.run_dir.path.name if chunk.run_dir else f"chunk_{i:03d}"
            given = (chunk.static, chunk.trials, result.metrics, result.is_finite, run)
            trials += results.outcomes(*given)
            unsaved += [f"{result.unsaved} of {run}"] * bool(result.unsaved)
            stopped = result.stopped
            if not stopped and i + 1 < len(chunks):
                if not chunk.is_finished:
                    publish(path, trials, chunks, losses)
                stopped = interrupt.agreed()
            if stopped:
                break
    if not publish(path, trials, chunks, losses):
        unsaved.append("results.csv and best.json")
        view.warn(f"not saved: results.csv and best.json; --resume {path} writes them")
    ranked = results.rank(trials)
    if ranked:
        view.say(results.table(ranked))
    if broken := [trial for trial in trials if not trial.is_finite]:
        view.say(results.broken(broken))
    how = ["stopped" if stopped else "done", *[progress.NOT_SAVED] * bool(unsaved)]
    view.finish(", ".join(how), f", in {path}" if path else "")
    best = [those[0].mean for those in results.by_environment(ranked).values()]
    objective = -float(np.mean(best)) if ranked else float("inf")
    return Swept(trials, ranked, path, objective, stopped, "; ".join(unsaved))


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
        fewer = f"begin anew with max_parallel={count // 2}"
        raise UserError(
            f"out of memory with {chunk.trials.in_words} at once, in spite of what the compiler "
            f"said: {fewer if count > 1 else 'fewer num_envs or a smaller network would do'}"
        ) from error
