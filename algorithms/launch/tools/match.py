"""A match between saved runs, random moves or searches without a network, in a two-player game.

    python -m algorithms.launch.match runs/A runs/B --games 200
    python -m algorithms.launch.match runs/A random --search 32
    python -m algorithms.launch.match runs/A search:1000 --search 32
    python -m algorithms.launch.match runs/A runs/A --point 10,best

Each side moves first in half of the games. Runs of algorithms for several agents can play, and of
those for one agent that were trained against an opponent (`--env-settings opponent=random`).
"""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np

import envs
from algorithms import parts
from algorithms.launch.engine import experiment, loading
from algorithms.launch.engine.errors import UserError, refusing
from algorithms.launch.engine.interrupts import in_background
from algorithms.launch.engine.options import seeds_of
from algorithms.launch.engine.reading import named_values, trial_of
from envs import games

RANDOM = "random"  # in place of a run
SEARCH = "search:"  # with a number of simulations, likewise
OPENINGS = 2  # random moves first, where chance makes no two games differ
Z = 1.959963984540054  # of a 95 % interval


class Side(NamedTuple):
    """Who plays."""

    name: str
    path: Path | str = RANDOM
    loaded: loading.Loaded | None = None  # None: no run
    simulations: int = 0  # of a search without a network; 0: random moves


class Score(NamedTuple):
    """Results of games, from one side's view."""

    wins: int
    draws: int
    losses: int

    @property
    def value(self) -> float:
        """Wins and half of the draws, as a share of the games."""
        return (self.wins + self.draws / 2) / sum(self)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of `value` (Wilson 1927), as if there were no draws: with draws
        the score varies less, so the interval is then wider than it had to be."""
        number, share = sum(self), self.value
        centre = share + Z**2 / (2 * number)
        spread = Z * math.sqrt(share * (1 - share) / number + Z**2 / (4 * number**2))
        low, high = (centre - spread), (centre + spread)
        return max(0.0, low / (1 + Z**2 / number)), min(1.0, high / (1 + Z**2 / number))


class Match(NamedTuple):
    """What came of a match, from the view of side A."""

    first: Score  # of the games in which A moves first
    second: Score
    returns: np.ndarray  # of A, (games,)
    truncated: int  # games that a time limit ended
    text: str

    @property
    def total(self) -> Score:
        """Of all games."""
        return Score(*map(sum, zip(self.first, self.second)))


def elo(share: float) -> float:
    """400 log10(s / (1 - s)): the difference of two ratings at an expected score s."""
    if share in (0.0, 1.0):
        return math.inf if share else -math.inf
    return 400 * math.log10(share / (1 - share))


@parts.with_usual_jax
def match(
    run_a: Path | str,
    run_b: Path | str,
    env: str | None = None,
    env_settings: Sequence[tuple[str, Any]] | None = None,
    *,
    games: int = 200,
    openings: int | None = None,
    search: int = 0,
    points: Sequence[int | str] = ("last", "last"),
    trials: Sequence[int | str] = ("best", "best"),
    sample: bool = False,
    seed: int = 0,
) -> Match:
    """Plays a match; all games run in parallel, in one program.

    Args:
      run_a, run_b: directories of runs, "random", or "search:N": alphazero's search with N
        simulations, uniform priors and random playouts.
      env, env_settings: the game; by default the runs' own, without their opponents.
      games: how many, an even number.
      openings: uniformly random moves at the start of each game; by default 2, or none in games
        with chance events. Two policies that do not sample would play the same game again.
      search: simulations of each search of runs of alphazero; 0: they act without search.
      points, trials: of both runs, as of `launch.load`.
      sample: policies sample their actions; searches take their best move in any case.
      seed: of start states and all moves.

    Raises:
      UserError: a run that cannot be read or cannot play this game, runs of different games, or a
        number that cannot be.
    """
    if games < 2 or games % 2:
        raise UserError(f"--games {games}: give an even number, 2 or more")
    seed = seeds_of(seed).start
    for name, value in (("openings", openings or 0), ("search", search)):
        if value < 0:
            raise UserError(f"--{name} {value}: give 0 or more")
    sides = [_side(*given) for given in zip((run_a, run_b), points, trials)]
    environment, params = _environment(
        sides, env, None if env_settings is None else tuple(env_settings)
    )
    for side in sides:
        if side.loaded is not None:
            loading.check_plays(side.loaded, side.path, environment, params)
    if search and not any(_searches(side) for side in sides):
        raise UserError(f"--search {search}: neither side is a run of alphazero, which searches")
    if openings is None:
        openings = 0 if environment.chance else OPENINGS
    players = [_player(side, environment, params, search, sample) for side in sides]
    played = _play(environment, params, sides, players, games, openings, seed)
    return _result(environment.name, sides, played, openings, search)


def _side(run: Path | str, point: int | str, trial: int | str) -> Side:
    word = str(run)
    if word == RANDOM:
        return Side(RANDOM)
    if word.startswith(SEARCH):
        number = word.removeprefix(SEARCH)
        if not number.isdecimal() or int(number) < 1:
            raise UserError(f"{word}: give a number of simulations, such as {SEARCH}1000")
        return Side(f"search with random playouts, {number} simulations", simulations=int(number))
    loaded = loading.load_player(run, point, trial)
    several = len(experiment.open(run).homes()) > 1
    own = f", trial {loaded.trial}" if several else ""
    return Side(f"{run} at point {loaded.point}{own}", run, loaded)


def _environment(
    sides: Sequence[Side], name: str | None, settings: tuple | None
) -> tuple[Any, Any]:
    """The game that is asked for, or that of the runs."""
    configs = [side.loaded.config for side in sides if side.loaded is not None]
    if name is None and settings is not None:
        raise UserError("--env-settings goes with --env, which is missing")
    if settings is None:
        own = {config.env: _settings(config) for config in configs}
        if name is None and not own:
            raise UserError("neither side is a run: say which game, --env pgx/tic_tac_toe")
        if name is None and len(own) > 1:
            raise UserError(f"the runs are of {' and '.join(own)}: say which game, with --env")
        name = name or next(iter(own))
        found = {_settings(config): None for config in configs if config.env == name}
        if len(found) > 1:
            texts = " and ".join(str(dict(one)) for one in found)
            raise UserError(
                f"the runs have the env settings {texts}: give --env {name} and --env-settings, "
                "which may be empty"
            )
        settings = next(iter(found), ())
    assert name is not None
    try:
        env, params = envs.make(name, **dict(settings))
    except ValueError as error:
        raise UserError(str(error)) from error
    if not games.for_two(env):
        raise UserError(f"{env.name} is not a two-player game, as pgx/connect_four is")
    return env, params


def _settings(config: Any) -> tuple[tuple[str, Any], ...]:
    """Settings of the game, without those of an opponent."""
    return tuple(sorted(s for s in config.env_settings if not s[0].startswith("opponent")))


def _searches(side: Side) -> bool:
    return side.loaded is not None and hasattr(side.loaded.module, "make_search")


def _player(side: Side, env: Any, params: Any, search: int, sample: bool) -> Callable:
    """player(state) -> one side of `games.play`."""
    if side.simulations:
        act = _playout_search(env, params, side.simulations)
        return lambda state: act
    if side.loaded is None:
        return lambda state: games.RANDOM
    if not (search and _searches(side)):
        player = loading.player(side.loaded, sample)
        return lambda state: player._replace(state=state)
    config = side.loaded.config.replace(num_simulations=search)
    try:
        find = side.loaded.module.make_search(config, env, params)
    except ValueError as error:
        raise UserError(f"{side.path}: {error}") from error

    def searching(state):
        def act(rng, boards):
            one = lambda board: find(state, SimpleNamespace(inner=board))
            return games.of_player(boards.current_player, jax.vmap(one)(boards))

        return act

    return searching


def _playout_search(env: Any, params: Any, simulations: int) -> Callable:
    alphazero = loading.find_module("alphazero")
    try:
        alphazero.check(alphazero.Config(env=env.name), env, params)
    except ValueError as error:
        raise UserError(f"{SEARCH}{simulations}: {error}") from error
    return alphazero.playout_search(env.wrapped, simulations)


def _play(
    env: Any,
    params: Any,
    sides: Sequence[Side],
    players: Sequence[Callable],
    number: int,
    openings: int,
    seed: int,
) -> dict[str, np.ndarray]:
    """What `games.play` returns. The policies' arrays are arguments of the program."""

    @jax.jit
    def played(states, params, rng):
        both = [player(state) for player, state in zip(players, states)]
        return games.play(env, params, *both, number, openings, rng)

    states = [None if side.loaded is None else side.loaded.state for side in sides]
    play = lambda: jax.block_until_ready(played(states, params, jax.random.key(seed)))
    # This thread answers Ctrl-C.
    return jax.tree.map(np.asarray, in_background(play))


# --- what is said of it ------------------------------------------------------------------------


def _score(returns: np.ndarray) -> Score:
    return Score(int((returns > 0).sum()), int((returns == 0).sum()), int((returns < 0).sum()))


def _result(
    name: str, sides: Sequence[Side], played: dict[str, np.ndarray], openings: int, search: int
) -> Match:
    returns, cut = played["return"], int(played["truncated"].sum())
    result = Match(_score(returns[::2]), _score(returns[1::2]), returns, cut, "")
    searching = [f", {search} simulations" * bool(search and _searches(side)) for side in sides]
    after = f" after {openings} random moves" * bool(openings)
    lines = [f"{name}, {len(returns)} games{after}"]
    lines += [f"{'AB'[i]}: {side.name}{searching[i]}" for i, side in enumerate(sides)]
    lines += ["", f"{'':<16}{'wins':>7}{'draws':>7}{'losses':>8}{'score':>8}   95 % interval"]
    rows = {"A moves first": result.first, "A moves second": result.second, "all": result.total}
    for label, score in rows.items():
        low, high = score.interval
        counts = f"{score.wins:>7}{score.draws:>7}{score.losses:>8}{score.value:>8.3f}"
        lines.append(f"{label:<16}{counts}   {low:.3f} to {high:.3f}")
    total = result.total
    if 0 < total.value < 1:
        low, high = map(elo, total.interval)
        lines += ["", f"Elo of A minus B: {elo(total.value):+.0f} ({low:+.0f} to {high:+.0f})"]
    else:
        low, high = map(elo, total.interval)
        limit = f"above {low:+.0f}" if total.value else f"below {high:+.0f}"
        lines += ["", f"Elo of A minus B: not finite, {limit}"]
    if not np.isin(returns, (-1, 0, 1)).all():
        error = returns.std(ddof=1) / len(returns) ** 0.5
        lines.append(f"mean return of A: {returns.mean():.4g}, standard error {error:.2g}")
    if cut:
        lines.append(f"{cut} games were ended by the time limit")
    lines.append("score: a draw counts half; intervals: Wilson's")
    return result._replace(text="\n".join(lines))


# --- the command line --------------------------------------------------------------------------


def _two(name: str, word: str, read: Callable) -> list[Any]:
    """A value for both runs, or one for each: last or 10,best."""
    try:
        values = [read(part) for part in word.split(",")]
    except ValueError:
        raise UserError(f"--{name} {word}: give one value, or two with a comma between") from None
    if len(values) > 2:
        raise UserError(f"--{name} {word}: give one value, or two with a comma between")
    return values * 2 if len(values) == 1 else values


def _point(word: str) -> int | str:
    return word if word in ("last", "best") else int(word)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line. Exit code 2 for a user's mistake, with one line that says what."""
    parser = argparse.ArgumentParser(
        prog="python -m algorithms.launch.match",
        description="A match in a two-player game.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "runs", nargs=2, metavar="RUN", help="directory of a run, random, or search:N"
    )
    parser.add_argument("--env", help="the game; default: the runs' own")
    parser.add_argument("--env-settings", metavar="name=value,...", help="with --env")
    parser.add_argument("--games", type=int, default=200, help="an even number; default 200")
    parser.add_argument(
        "--openings",
        type=int,
        help=f"random moves first; default {OPENINGS}, or 0 in games with chance events",
    )
    parser.add_argument(
        "--search", type=int, default=0, help="simulations of runs of alphazero; default 0: none"
    )
    parser.add_argument("--point", default="last", help="last, best or a number; of both: 10,best")
    parser.add_argument("--trial", default="best", help="best or a number; of both: best,3")
    parser.add_argument("--sample", action="store_true", help="policies sample their moves")
    parser.add_argument("--seed", type=int, default=0, help="of start states and all moves")
    words = parser.parse_args(argv)
    with refusing():
        played = match(
            *words.runs,
            words.env,
            _settings_of(words.env_settings),
            games=words.games,
            openings=words.openings,
            search=words.search,
            points=_two("point", words.point, _point),
            trials=_two("trial", words.trial, trial_of),
            sample=words.sample,
            seed=words.seed,
        )
        print(played.text)


def _settings_of(word: str | None) -> tuple[tuple[str, Any], ...] | None:
    if word is None:
        return None
    try:
        return named_values(word)
    except ValueError as error:
        raise UserError(f"--env-settings {word}: {error}") from None
