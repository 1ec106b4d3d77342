"""Whole episodes of a saved policy, and numbers that sum them up."""

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np

import envs
from algorithms import parts
from algorithms.launch.engine import metrics, results
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.metrics import ALARMS
from envs import exploitability, games

ROWS = (("episode_return", "return"), ("length", "length"), ("last_reward", "last reward"))
OF_GAMES = (("random_return", "against random"), ("exploitability", "exploitability"))
ENDS = ("terminated", "truncated")
COLUMNS = ("mean", "std", "variance", "min", "median", "max")


@parts.with_usual_jax
def evaluate(
    module: Any, config: Any, state: Any, seed: int, num_episodes: int
) -> dict[str, np.ndarray]:
    """Runs whole episodes of the deterministic policy of one trial.

    Args:
      module: the algorithm's module (only `make_policy` and `make_probabilities` are used).
      config: of that trial.
      state: anything whose `policy` is that trial's (no trial axis).
      seed: of the start states and of the environment's own randomness.
      num_episodes: how many; all run in parallel.

    Returns:
      episode_return, length, terminated, truncated and last_reward, each (num_episodes,), and what
      the environment reports under `metrics/NAME`; returns and rewards of a game have a trailing
      axis of players. In a two-player game that the policy plays against itself also
      `random_return`, returns of other games against random moves, and in poker
      (envs/exploitability.py) `exploitability`, (1,), if the module has `make_probabilities`.

    Raises:
      UserError: episodes of this environment may never end.
    """
    env, env_params = envs.make(config.env, **dict(config.env_settings))
    try:
        envs.check_ends(env, env_params)
    except ValueError as error:
        raise UserError(str(error)) from None
    rng = jax.random.key(seed)
    episodes, measured = _episodes(config, env_params, state.policy, rng, module, env, num_episodes)
    values = episodes._asdict() | measured
    values |= {f"metrics/{name}": value for name, value in values.pop("metrics").items()}
    return {name: np.asarray(value) for name, value in values.items()}


@functools.partial(jax.jit, static_argnames=("module", "env", "num_episodes"))
def _episodes(config, env_params, policy_state, rng, module, env, num_episodes):
    """Compiled once for all trials of a run: `envs.make` gives the same object every time."""
    policy = module.make_policy(config, env, env_params)
    state = SimpleNamespace(policy=policy_state)
    episodes = envs.evaluate(policy, state, env, env_params, rng, num_episodes)
    measured = {}
    if games.for_two(env):
        acts = lambda _, seen, memory, rng, mask: policy(state, seen, memory, rng, mask=mask)
        even = num_episodes + num_episodes % 2  # each colour in half of them
        key = jax.random.clone(rng)
        played = games.play(env, env_params, games.Player(acts), games.RANDOM, even, 0, key)
        measured["random_return"] = played["return"][:num_episodes]
    make, table = getattr(module, "make_probabilities", None), exploitability.table(env)
    if make is not None and table is not None:
        value = table.of_policy(make(config, env, env_params), state)
        measured["exploitability"] = value[None]
    return episodes, measured


def summary(values: np.ndarray) -> dict[str, Any]:
    """Sums up values of any shape in float64.

    Variance and standard deviation are those of the values themselves (divisor n). A NaN among the
    values makes every number NaN, and `has_nan` True.
    """
    values = np.asarray(values, np.float64).ravel()
    if not values.size:
        raise ValueError("summary of no values: give at least one")
    return {
        "mean": float(values.mean()),
        "variance": float(values.var()),
        "std": float(values.std()),
        "min": float(values.min()),
        "max": float(values.max()),
        "median": float(np.median(values)),
        "has_nan": bool(np.isnan(values).any()),
    }


def table(episodes: dict[str, np.ndarray], title: str = "") -> str:
    """A readable table of what `evaluate` returns, one row for each quantity (and player)."""
    shares = {end: episodes[end].mean() for end in ENDS}
    cut = ~np.any([episodes[end] for end in ENDS], axis=0)
    if cut.any():
        shares["cut"] = cut.mean()
    ends = ", ".join(f"{end} {100 * share:.3g} %" for end, share in shares.items())
    head = f"{len(episodes['length'])} episodes: {ends}"
    lines = [f"{title}: {head}" if title else head]
    reported = [
        (key, key.removeprefix("metrics/")) for key in episodes if key.startswith("metrics/")
    ]
    width = max(16, *(len(name) + 2 for _, name in reported)) if reported else 16
    rows = [["", *COLUMNS, "NaN"]]
    of_game = [(name, label) for name, label in OF_GAMES if name in episodes]
    for key, label in (*ROWS, *reported, *of_game):
        values = np.asarray(episodes[key])
        columns = {label: values} if values.ndim == 1 else _by_player(label, values)
        rows += [_row(name, summary(column)) for name, column in columns.items()]
    cells = max(10, *(len(cell) for row in rows for cell in row[1:-1]))  # -1.23457e-05 has 12
    for name, *numbers, nan in rows:
        lines.append(f"{name:<{width}}" + "".join(f"  {n:>{cells}}" for n in numbers) + f"   {nan}")
    return "\n".join(lines)


class Played(NamedTuple):
    """One trial's episodes."""

    trial: int
    seed: int
    setting: dict[str, Any]  # the environment and the swept floats
    point: int
    episodes: dict[str, np.ndarray]


def totals(played: Sequence[Played]) -> str:
    """The tables of settings with several seeds, over all of their episodes; ends with a newline
    if there are any."""
    lines = []
    for same in _by_setting(played):
        if len(same) > 1:
            means = np.array([one.episodes["episode_return"].mean() for one in same], np.float64)
            error = means.std(ddof=1) / len(means) ** 0.5
            lines.append(table(_together(same), f"all {len(same)} seeds"))
            lines.append(
                f"mean return of a seed: {means.mean():.6g}, standard error {error:.3g}, "
                f"from {means.min():.6g} to {means.max():.6g}"
            )
    return "".join(f"{line}\n" for line in lines)


def alarms_of(played: Sequence[Played]) -> list[str]:
    """The sentences of `alarms` about the episodes of all trials."""
    if not played:
        return []
    row = {f"eval_{name.removeprefix('metrics/')}": x for name, x in _together(played).items()}
    return [sentence for alarm in ALARMS if (sentence := alarm(row))]


def as_json(played: Sequence[Played]) -> str:
    """The same numbers for programs: a list with an entry for each setting."""
    entries = []
    for same in _by_setting(played):
        trials = [
            {"trial": one.trial, "seed": one.seed, "point": one.point, **_numbers(one.episodes)}
            for one in same
        ]
        total = {"total": _numbers(_together(same))}
        entries.append({"setting": same[0].setting, "trials": trials, **total})
    return metrics.as_json(entries) + "\n"


def _by_setting(played: Sequence[Played]) -> list[list[Played]]:
    return list(results.grouped(played, lambda one: str(one.setting)).values())


def _together(played: Sequence[Played]) -> dict[str, np.ndarray]:
    """The episodes of all seeds of a setting."""
    names = played[0].episodes
    return {name: np.concatenate([one.episodes[name] for one in played]) for name in names}


def _numbers(episodes: dict[str, np.ndarray]) -> dict[str, Any]:
    """What `table` shows; a quantity of several players is a list with an entry for each."""
    shares = {end: float(episodes[end].mean()) for end in ENDS}
    found: dict[str, Any] = {"episodes": len(episodes["length"]), **shares}
    for name, values in episodes.items():
        if name not in ENDS:
            columns = [values] if values.ndim == 1 else list(values.T)
            sums = [summary(column) for column in columns]
            found[name] = sums[0] if values.ndim == 1 else sums
    return found


def _by_player(label: str, values: np.ndarray) -> dict[str, np.ndarray]:
    return {f"{label} [{i}]": values[:, i] for i in range(values.shape[1])}


def _row(name: str, numbers: dict[str, Any]) -> list[str]:
    cells = [f"{numbers[column]:.6g}" for column in COLUMNS]
    return [name, *cells, "yes" if numbers["has_nan"] else "no"]
