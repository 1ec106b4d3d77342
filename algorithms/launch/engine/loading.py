"""Reading a run back, for a user's own script, --evaluate, --render, and as a player of games."""

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from types import EllipsisType
from typing import Any, NamedTuple

import jax
import numpy as np

import envs
from algorithms import parts
from algorithms.launch.engine import experiment, files, outcomes, population, programs, versions
from algorithms.launch.engine.errors import UserError, warn
from algorithms.launch.engine.metrics import Metrics, mean_returns, over_episodes, players, stack
from algorithms.launch.engine.population import Acting
from algorithms.launch.engine.progress import brief
from algorithms.launch.engine.run_dir import RunDir
from algorithms.launch.engine.settings import Trials
from algorithms.launch.engine.sources import Source, rows
from envs import games, registry


class Loaded(NamedTuple):
    """A run, at one point. With trial="all" what belongs to trials has an axis (num_trials,)."""

    module: Any
    config: Any  # of all trials with swept floats, these are (num_trials,); a population's best
    state: Any  # the whole state where it was kept, else `Acting`: a pytree, too
    policy: Callable  # policy(state, observation, memory=None, rng=None) -> action, memory
    metrics: Metrics  # up to that point, of all trials, (num_trials, points, ...)
    points: list[int]  # numbers of those points
    point: Any  # the number of the point, or one for each trial
    trials: Trials  # seeds and swept floats, of one trial or all
    trial: int | None = None  # the number of the trial; None for all

    def __repr__(self) -> str:
        return brief(self)

    @property
    def agents(self) -> Trials:
        """The earlier name of `trials`."""
        return self.trials


@parts.usual_jax()
def load(
    run_dir: Path | str,
    point: int | str | Callable = "last",
    *,
    trial: int | str | None = "best",
    module: Any = None,
    env: Any = None,
    whole: bool = True,
    agent: int | EllipsisType | None = ...,
) -> Loaded:
    """Reads a run back.

    Args:
      run_dir: the run's directory, or a sweep's for a trial of results.csv.
      point: a point's number; "last"; "best", which is each trial's own point of highest mean
        evaluation return (training return if it was not evaluated), or of least exploitability
        where that was measured, or the last one where the returns of several players cancel; or a
        function of a trial's history {name: (points,)}, of several players (points, players), that
        gives a score for each point, (points,), the highest being best.
      trial: a number (trial i of a run has seed + i); "best", which is a run's only trial, of
        several the one with the best last point, and of a sweep the best one of its best setting;
        or "all" trials of a run, with a leading axis.
      module: the algorithm, if it is not one of `algorithms`.
      env: the environment, if the run was made with an object in place of a name.
      whole: read the whole state where it was kept; False reads the policy alone, which is all
        that acting needs.
      agent: the earlier name of `trial`.

    Raises:
      UserError: no such run, point or trial, or a checkpoint that is damaged or does not fit.
    """
    trial = trial if isinstance(agent, EllipsisType) else agent
    return _load(run_dir, point, trial, module, env, whole)


def _load(
    run_dir: Path | str,
    point: int | str | Callable,
    trial: int | str | None,
    module: Any = None,
    env: Any = None,
    whole: bool = False,
    alone: bool = False,
) -> Loaded:
    """`load`; `alone` plays random moves in place of an opponent, whose files it does not need."""
    there = experiment.open(run_dir)
    number: int | None = None
    if trial is not None and not (isinstance(trial, str) and trial == "all"):
        number = outcomes.one_of(there, trial)
    run, trial = (there.run_dir(), None) if number is None else there.locate(number)
    module = population.of(module or find_module(run.algorithm), run.description)
    config = run.config(module.Config, env)
    if alone and is_against(config):
        others = [(k, v) for k, v in config.env_settings if not k.startswith("opponent")]
        config = config.replace(env_settings=(*others, ("opponent", "random")))
    trials, count = run.trials, run.trials.count
    history = run.history()
    wanted = range(count) if trial is None else range(trial, trial + 1)
    chosen = [choose_point(run, point, history, i) for i in wanted]
    made, *_ = programs.make_environment(module, config)
    tell_of_edits(there.path, run.session(max(chosen)), module, made, config.env)
    home, places = run, wanted
    if whole and number is not None:  # of a sweep another run may have it
        home, place = there.locate_state(number, chosen[0])
        places = range(place, place + 1)
    state = _read(home, chosen, places, programs.initial_state(module, config), whole)
    points = [p for p in history if p <= max(chosen)]
    if trials.floats:
        config = trials.configs(config) if trial is None else trials.config(config, trial)
    state = state if trial is None else one_trial(state, 0)
    if isinstance(module, population.Population):  # its floats change while it trains
        config = config.replace(**state.policy.floats)
    return Loaded(
        module,
        config,
        state,
        module.make_policy(config),
        stack(history[p] for p in points),
        points,
        chosen if trial is None else chosen[0],
        trials if trial is None else trials.some([trial]),
        number,
    )


def _read(run_dir: RunDir, chosen: list[int], trials: range, like: Any, whole: bool) -> Any:
    """The states (trials, ...) of some trials, each at its own point."""
    if whole and len(set(chosen)) == 1 and chosen[0] in run_dir.points("state"):
        return run_dir.read(chosen[0], "state", like, trials)
    come = [Source(run_dir, place, at) for place, at in zip(trials, chosen)]
    return Acting(rows(come, lambda run, at, part: run.read(at, "policy", like.policy, part)))


def tell_of_edits(path: Path, session: dict[str, Any], *now: Any) -> None:
    """Warns of files of the user's that were edited after a session has trained, and of another
    environment object; `now` are the other arguments of `versions.edited`."""
    if edited := versions.edited(session, *now):
        have, those = ("has", "one") if len(edited) == 1 else ("have", "ones")
        _warn_once(
            f"{' and '.join(edited)} {have} changed since {path} was trained (versions.json): what "
            f"follows is of the new {those}",
            *edited.values(),
        )


@functools.cache
def _warn_once(text: str, *digests: str) -> None:
    """One run is read many times, as a player of games."""
    warn(text)


def choose_point(run_dir: RunDir, point: Any, history: dict[int, Metrics], trial: int) -> int:
    """The number of the point that is asked for."""
    saved = run_dir.points("policy")
    if not saved:
        raise UserError(f"{run_dir.path} has no checkpoint yet")
    if point == "last":
        return saved[-1]
    if point != "best" and not callable(point):
        if point not in saved:
            raise UserError(
                f"{run_dir.path} has no point {point!r}; it has {saved[0]} to {saved[-1]}"
            )
        return point
    if not history:
        raise UserError(f"{run_dir.path} has no metrics to tell which point is best")
    curves = {name: v[trial : trial + 1] for name, v in stack(history.values()).items()}
    if callable(point):
        scores = _asked(point, {name: over_episodes(name, v)[0] for name, v in curves.items()})
    elif "eval_exploitability" in curves:  # the return of a policy against itself says nothing
        scores = -curves["eval_exploitability"][0]
    else:
        scores = _of_returns(curves)
    scores = np.asarray(scores, np.float64)
    is_finite = np.array([run_dir.is_finite(number)[trial] for number in history])
    return list(history)[np.argmax(np.where(np.isnan(scores) | ~is_finite, -np.inf, scores))]


def _asked(point: Callable, history: dict[str, np.ndarray]) -> np.ndarray:
    """The score of each point by a user's function, (points,).

    Raises:
      UserError: the function gives something else, or NaN for every point.
    """
    scores, count = np.asarray(point(history)), len(history["timestep"])
    if scores.shape != (count,) or scores.dtype.kind not in "biuf":
        raise UserError(
            f"point: the function gives {scores.dtype}{list(scores.shape)}, which is no score for "
            f"each of the {count} points; history['eval_return'][:, 0] is that of player 0"
        )
    if np.isnan(scores).all():
        raise UserError(f"point: the function gives NaN for all {count} points")
    return scores


def _of_returns(curves: Metrics) -> np.ndarray:
    """The mean return of each point, (points,), or its place where players' returns cancel.

    Their mean is then the same at every point, and the first of equal scores would be chosen: the
    policy before training.
    """
    scores = mean_returns(curves)[0]
    name = "eval_return" if "eval_return" in curves else "episode_return"
    known = ~np.isnan(scores)
    apart = np.stack(players(name, curves[name]))[:, 0, known]
    tiny = 1e-6 * np.abs(apart).max(initial=0.0)
    cancel = np.ptp(apart, axis=0).max(initial=0.0) > tiny >= np.ptp(scores[known])
    return np.where(known, np.arange(len(scores)), np.nan) if cancel else scores


def one_trial(state: Any, trial: int) -> Any:
    """Without the trial axis."""
    return jax.tree.map(lambda x: jax.numpy.asarray(x[trial]), state)


def module_of(module: Any, path: Path | str) -> Any:
    """The module of a run, which is a population where the run is of one."""
    return population.of(module, experiment.open(path).description)


def find_module(algorithm: str) -> Any:
    """The module of an algorithm of this kit."""
    name = f"algorithms.{algorithm}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UserError(f"{algorithm} is not one of `algorithms`: pass its module") from None


# --- saved runs as players of games ------------------------------------------------------------


def is_against(config: Any) -> bool:
    """Whether its environment is a game against an opponent."""
    is_game = isinstance(config.env, str) and config.env.startswith("pgx/")
    return is_game and "opponent" in dict(config.env_settings)


def pinned(config: Any, there: Path | str | None = None) -> Any:
    """The config with the absolute path of an opponent's run and the number of its point.

    A run then goes on with the same opponent, from wherever it is resumed.

    Args:
      there: a run that the config may be of. Its point is kept where none is named by its number:
        the opponent may have gone on since.

    Raises:
      UserError: there is no such run, trial or point.
    """
    if not is_against(config):
        return config
    given = dict(config.env_settings)
    opponent = given["opponent"]
    if opponent == "random" or not isinstance(opponent, str):
        return config
    _check_side(opponent)
    path, point = Path(opponent).resolve(), given.get("opponent_point", "last")
    if there is not None and isinstance(point, str):
        before = experiment.open(there).description["config"]["env_settings"]
        if before.get("opponent") == str(path):
            point = before.get("opponent_point", point)
    run, trial = experiment.open(path).locate(given.get("opponent_trial", 0))
    point = choose_point(run, point, run.history(), trial)
    given |= {"opponent": str(path), "opponent_point": point}
    return config.replace(env_settings=tuple(given.items()))


def load_player(
    run_dir: Path | str, point: int | str | Callable, trial: int | str = "best"
) -> Loaded:
    """As `load`, of a run that can play a two-player game; the files of its opponents may be gone.

    Raises:
      UserError: as `load`, or the run's environment is no such game.
    """
    _check_side(run_dir)
    number = outcomes.one_of(experiment.open(run_dir), trial)
    loaded = _load(run_dir, point, number, alone=True)
    env = _environment(loaded.config)[0]
    if not hasattr(env, "hidden_information") or not hasattr(env, "action_mask"):
        raise UserError(f"{run_dir} is a run of {env.name}, which is not a two-player game")
    return loaded


def _check_side(run_dir: Path | str) -> None:
    if not files.local(run_dir).is_dir():
        raise UserError(f"{run_dir} is no directory: give that of a run, or random")


def player(loaded: Loaded, sample: bool = False) -> games.Player:
    """The policy of `load_player` as a player.

    Args:
      loaded: one trial.
      sample: whether it samples its actions; otherwise it takes the most probable ones.
    """

    def policy(state, observation, memory, rng, mask):
        return loaded.policy(state, observation, memory, rng, mask=mask)

    if hasattr(_environment(loaded.config)[0], "num_agents"):
        return games.Player(policy, loaded.state, sample)
    return games.of_one(policy, loaded.state, sample)


def check_plays(loaded: Loaded, run_dir: Path | str, env: Any, env_params: Any) -> None:
    """Refuses a run that has not been trained on what this environment shows and takes."""
    own, own_params = _environment(loaded.config)
    spaces = lambda env, params: (tuple(env.observation_space(params).shape), env.num_actions)
    has, needs = spaces(own, own_params), spaces(env, env_params)
    if has != needs:
        raise UserError(
            f"{run_dir} is a run of {own.name} with observations {has[0]} and {has[1]} actions: it "
            f"cannot play {env.name}, which has observations {needs[0]} and {needs[1]} actions"
        )


def _environment(config: Any) -> tuple[Any, Any]:
    return envs.make(config.env, **dict(config.env_settings))


def _opponent(run_dir: str, game: Any, point: Any, trial: int, sample: bool) -> games.Player:
    """A saved run as the opponent in a game, for envs/opponents.py."""
    try:
        loaded = load_player(run_dir, point, trial)
        check_plays(loaded, run_dir, game, game.default_params)
    except UserError as error:
        raise ValueError(f"opponent: {error}") from error
    return player(loaded, sample)


registry.find_run = _opponent
