"""Metrics of a session, what it warns of, and what could not be written."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms.launch.engine import files, hosts, programs
from algorithms.launch.engine.errors import warn
from algorithms.launch.engine.metrics import ALARMS, SEVERAL, Metrics
from algorithms.launch.engine.outputs import Output
from algorithms.launch.engine.progress import brief
from algorithms.launch.engine.run_dir import RunDir
from algorithms.parts.checks import LARGE, bounds_of, sees_raw
from envs.batch import limit_of
from envs.behaviour import of_user
from envs.warn import was_told


class Point(NamedTuple):
    """The argument of a hook: hook(point)."""

    # Number of the point; 0 is before training. Nobody looks for values in it as in a tuple.
    index: int  # type: ignore[assignment]
    timestep: int
    metrics: Metrics  # of this point, (num_trials, ...)
    get_state: Callable[[], Any]  # a hook's copy of this process's states, on the host
    run_dir: Path | None
    is_finite: np.ndarray  # whether a trial's policy and losses have been so far, (num_trials,)
    settings: Sequence[Mapping[str, Any]] = ()  # the swept fields of each trial

    def __repr__(self) -> str:
        return brief(self)


class Start(NamedTuple):
    """Where a session begins."""

    point: int = 0
    get_state: Callable | None = None  # get_state(trials): host arrays; None: they are to be made
    history: Mapping[int, Metrics] = MappingProxyType({})  # of the points so far, (num_trials, ...)
    resumed: bool = False
    is_finite: np.ndarray | None = None  # which trials have been so far; None: no point says it


def labels_of(trials: Any, which: np.ndarray) -> str:
    """Settings and seeds of some trials, of the first five if there are more."""
    labels = "; ".join(trials.label(i) for i in which[:5])
    return f"{labels} and {len(which) - 5} more" if len(which) > 5 else labels


class Record:
    def __init__(self, session: Any):
        self.session = session
        self.run_dir: RunDir | None = session.chunk.run_dir
        self.start: Start = session.chunk.start
        self.path = self.run_dir.path if self.run_dir else None
        self.rows = list(self.start.history.values())
        self.losses = Losses(session.view.warn)
        known, everyone = self.start.is_finite, np.ones(session.trials.count, bool)
        self.were_finite = everyone if known is None else known
        self.logged: Metrics = {}  # of the last point, as metrics.csv has them
        self.is_watched = self._may_be_large()
        made = session.hooks.outputs
        self.outputs: list[Output] = [x(self) for x in made if hosts.is_first() or x.everywhere]

    def open(self) -> None:
        """Brings the directory to where the session starts, and opens the outputs."""
        with files.writing(self.path):
            for output in self.outputs:
                output.open()
        hosts.wait()  # so that nobody saves what is then dropped

    def add(self, point: Point, states: Any) -> None:
        """Takes a point, and the states on the devices."""
        if point.metrics:
            self.rows.append(point.metrics)
        self.logged = {}
        for output in self.outputs:
            output.at(point, states)

    def tell_of_broken(self, point: Point, infinite: dict[str, np.ndarray], states: Any) -> None:
        """Warns of trials that are not finite for the first time; `infinite` says in what."""
        broken = np.flatnonzero(self.were_finite & ~point.is_finite)
        self.were_finite = point.is_finite
        if not broken.size:
            return
        causes = self._causes_in_words(point, states, broken)  # asks all processes
        if hosts.is_first():
            who = "a trial is" if broken.size == 1 else f"{broken.size} trials are"
            where = f"from point {point.index} on (step {point.timestep:,})"
            names = ", ".join(name for name, which in infinite.items() if which[broken].any())
            labels = labels_of(self.session.trials, broken)
            left = int(point.is_finite.sum())
            others = ("", "; the other one goes on", f"; the other {left} go on")[min(left, 2)]
            told = f"{who} not finite {where}: {names} of {labels}{others}{causes}"
            self.session.view.warn(told)

    def _causes_in_words(self, point: Point, states: Any, broken: np.ndarray) -> str:
        """What of the environment of broken trials was not finite, and when; empty if all was."""
        returns = point.metrics.get("episode_return", np.zeros(len(point.is_finite)))
        ended = point.metrics.get("num_episodes", np.zeros(len(point.is_finite))) > 0
        states = getattr(states, "members", states)  # of a population
        # Of episodes that ended, and of those that run.
        rewards = ended & ~np.isfinite(returns.reshape(len(returns), -1)).all(1)
        if hasattr(states, "episodes"):
            rewards = rewards | self._not_finite(states.episodes.running_return)
        replay = getattr(getattr(states, "replay", None), "transitions", None)
        stats = getattr(states.policy, "obs_stats", None)
        seen = [stats, *(getattr(x, "observation", None) for x in (states, replay))]
        observations = self._not_finite(seen)
        before = int(self.rows[-1]["timestep"].max()) if self.rows else 0
        when = f"between steps {before:,} and {point.timestep:,} was not finite"
        told = ""
        if observations[broken].any():
            told += f"; an observation {when}: if it is the environment's, mend it there"
        if rewards[broken].any():
            told += (
                f"; a reward {when}: if it is the environment's, --env-settings nan_reward=0 "
                "replaces and counts such rewards"
            )
        return told

    def _not_finite(self, tree: Any) -> np.ndarray:
        """Of which trials something in a tree on the devices is not finite, (num_trials,)."""
        if not jax.tree.leaves(tree):
            return np.zeros(self.session.trials.count, bool)
        return ~self.session.layout.gather(programs.is_finite(tree))

    def tell_of_alarms(self, row: Metrics, states: Any) -> None:
        """Warns of what metrics and states say, each kind once in all chunks of a sweep."""
        told: list[tuple[object, str]] = [(alarm, alarm(row)) for alarm in ALARMS]
        told += self._of_units(row, states)  # asks all processes
        for cause, text in told if hosts.is_first() else ():
            self.session.view.warn_once(cause, text)

    def _of_units(self, row: Metrics, states: Any) -> Iterator[tuple[object, str]]:
        """Of observations that the replay buffer changes, and of a user's own environment."""
        trainer = self.session.trainer
        states = getattr(states, "members", states)  # of a population
        dtype = getattr(trainer.config, "buffer_dtype", "")
        if dtype in ("bool", "int8"):  # a float is only rounded
            lost = self.session.layout.gather(programs.largest_loss(states.observation, dtype))
            yield (
                "stored",
                changed_observations(trainer.env.name, dtype, np.nanmax(lost, initial=0.0)),
            )
        if self.is_watched and hasattr(states, "observation"):
            sizes = self.session.layout.gather(programs.largest(states.observation))
            size = float(np.nanmax(sizes, initial=0.0))
            yield "observations", large_observations(trainer.env.name, size)
        if of_user(trainer.env):
            yield "rewards", large_rewards(trainer.env.name, trainer.config, row)
            yield "lengths", short_episodes(trainer.env.name, row)
            limit = limit_of(trainer.env, trainer.host_params)
            asked = {"limit_terminates", "done_includes_limit"} & {
                *dict(trainer.config.env_settings)
            }
            if not asked and not was_told(f"step_env of {trainer.env.name} sets its flag"):
                yield "limit", terminated_at_limit(trainer.env.name, row, limit)

    def _may_be_large(self) -> bool:
        """Whether networks see observations as they are, and no bound has told how large."""
        trainer = self.session.trainer
        env, params = trainer.env, trainer.host_params
        if not sees_raw(trainer.config, env, params):
            return False
        return bool(bounds_of(env.observation_space(params)).max(initial=0.0) <= LARGE)


def changed_observations(name: str, dtype: str, most: float) -> str:
    """Of an environment whose stored observations differ by this much at most."""
    if most == 0.0:
        return ""
    return (
        f"buffer_dtype={dtype!r} changes observations of {name} by up to {most:.3g} in the replay "
        'buffer: "" keeps them, bfloat16 rounds them'
    )


def large_observations(name: str, size: float) -> str:
    """Of an environment whose largest observation has this size."""
    if not LARGE < size < np.inf:
        return ""
    return (
        f"{name} has observations as large as {size:.3g}, and networks see them as they are: "
        "normalize_obs=True suits it"
    )


def large_rewards(name: str, config: Any, row: Metrics) -> str:
    """Of an environment with these metrics of a point."""
    own = hasattr(config, "normalize_reward")
    scaled = config.normalize_reward if own else not hasattr(config, "normalize_obs")
    if scaled or not {"episode_return", "episode_length"} <= row.keys():
        return ""
    sizes = np.abs(row["episode_return"])
    lengths = row["episode_length"].reshape(-1, *[1] * (sizes.ndim - 1))
    size = np.nanmax(sizes / lengths, initial=0.0)
    if size < LARGE:
        return ""
    do = "normalize_reward=True suits it" if own else "divide them in its step_env"
    return (
        f"{name} has rewards of {size:.3g} a step, and values of that size are learned slowly, if "
        f"at all: {do}"
    )


def short_episodes(name: str, row: Metrics) -> str:
    """Of an environment with these metrics of a point."""
    if np.nanmax(row.get("episode_length", np.zeros(1)), initial=0.0) != 1.0:
        return ""
    return (
        f"since the last point, all episodes of {name} ended with their first step: right for a "
        "bandit, and else look at its terminated and is_truncated"
    )


def terminated_at_limit(name: str, row: Metrics, limit: Any) -> str:
    """Of an environment with these metrics of a point, and this time limit (None: without one)."""
    if limit is None or not {"eval_length", "eval_terminated"} <= row.keys():
        return ""
    there = row["eval_length"] == limit
    if there.sum() < SEVERAL or not row["eval_terminated"][there].all():
        return ""
    return (
        f"all {there.sum()} evaluation episodes of {name} that reached the limit of {int(limit)} "
        "steps are terminated in that very step: right if the task itself ends there; else leave "
        "the limit to is_truncated, or --env-settings done_includes_limit=true truncates"
    )


class Losses:
    """Failures to write, by kind.

    Args:
      say: takes the text of a warning.
    """

    def __init__(self, say: Callable[[str], None] = warn):
        self.say = say
        self.failing: set[str] = set()
        self.points: dict[str, list[int]] = {}  # {kind: points that are lost}

    @contextlib.contextmanager
    def survive(
        self, kind: str, what: str, *errors: type[Exception], point: int | None = None
    ) -> Iterator[None]:
        """Turns errors into a warning, unless the last attempt of this kind has failed, too.

        Args:
          kind: what is written, "checkpoints" for example.
          what: the beginning of the warning.
          *errors: that are survived.
          point: what is lost, if it is more than a picture.
        """
        try:
            yield
        except errors as error:
            if kind not in self.failing:
                name = type(error).__name__
                self.say(f"{what}: {name}: {error}; later failures are summed up at the end")
            self.failing.add(kind)
            if point is not None:
                self.points.setdefault(kind, []).append(point)
        else:
            if kind in self.failing and point is not None:
                self.say(f"{self.in_words(kind)} were not saved, those of point {point} were")
            self.failing.discard(kind)

    def in_words(self, *kinds: str) -> str:
        """Kinds and their points, "checkpoints of points 3 to 7, 9"; empty if nothing is lost."""
        lost = [kind for kind in kinds or self.points if kind in self.points]
        return " and ".join(f"{kind} of {spans(self.points[kind])}" for kind in lost)


def spans(points: list[int]) -> str:
    """Points in a few words, "points 3 to 7, 9"."""
    pairs: list[list[int]] = []
    for point in points:
        if pairs and point == pairs[-1][1] + 1:
            pairs[-1][1] = point
        else:
            pairs.append([point, point])
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in pairs]
    return f"point{'s' * (len(points) > 1)} {', '.join(texts)}"
