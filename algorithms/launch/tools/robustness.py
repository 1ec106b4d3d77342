"""Returns of saved policies over a grid of an environment's parameters.

    python -m algorithms.launch.grid runs/A --randomize length:uniform:0.25:1/gravity:log:5:20
    python -m algorithms.launch.grid runs/A runs/B --out grid.png --csv grid.csv

The grid spans the ranges that a run was trained on (`--env-settings randomize=...`), or others that
are given. A cell is one combination of evenly spaced values of the parameters.
"""

import argparse
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np

import envs
from algorithms import parts
from algorithms.launch.engine import (
    experiment,
    files,
    intervals,
    loading,
    plots,
    reading,
    results,
    settings,
)
from algorithms.launch.engine.errors import UserError, refusing
from algorithms.launch.engine.interrupts import in_background
from algorithms.launch.engine.metrics import as_csv
from algorithms.launch.engine.options import seeds_of

VALUES = 10  # of each parameter
EPISODES = 16  # in a cell
MOST_CELLS = 10_000
EXAMPLE = "length=uniform:0.25:1,gravity=log:5:20"


class Row(NamedTuple):
    """The returns of a run's trials, or of one setting's; means over the episodes of a cell."""

    name: str
    cells: np.ndarray  # (trials, cells)
    default: np.ndarray  # (trials,), with the environment's default parameters

    @property
    def worst_tenth(self) -> np.ndarray:
        """The mean of each trial's own worst tenth of the cells, rounded up, (trials,)."""
        number = -(-self.cells.shape[1] // 10)
        return np.sort(self.cells, axis=1)[:, :number].mean(1)


class Grid(NamedTuple):
    """Returns over a grid."""

    ranges: tuple[Any, ...]  # of envs.randomized
    values: np.ndarray  # (cells, ranges), the parameters; the last one varies fastest
    rows: list[Row]
    title: str

    @property
    def text(self) -> str:
        """The title and a table with a line for each row."""
        return f"{self.title}\n\n{_table(self)}"


@parts.with_usual_jax
def grid(
    runs: Sequence[Path | str],
    randomize: str | None = None,
    *,
    values: int = VALUES,
    episodes: int = EPISODES,
    point: int | str = "last",
    seed: int = 0,
) -> Grid:
    """Plays whole episodes of all trials of some runs in each cell of a grid.

    All cells have the same start states and the same randomness.

    Args:
      runs: directories of runs or sweeps in one environment.
      randomize: ranges, as in the setting of environments; by default the first run's own.
      values: of each parameter, evenly spaced, in the logarithm if its range is `log`.
      episodes: in each cell, and with the environment's default parameters.
      point: of the runs, as of `launch.load`.
      seed: of start states and the environment's own randomness.

    Raises:
      UserError: a run that cannot be read, ranges that do not fit, or a number that cannot be.
    """
    seed = seeds_of(seed).start
    least = {"values": (values, 2), "episodes": (episodes, 1)}
    for name, (number, lowest) in least.items():
        if number < lowest:
            raise UserError(f"--{name} {number}: give {lowest} or more")
    runs = [chunk.path for run in runs for chunk in experiment.open(run).run_dirs()]
    loaded = [loading.load(run, point, trial=None, whole=False) for run in runs]
    names = {settings.env_name(one.config): run for one, run in zip(loaded, runs)}
    if len(names) > 1:
        raise UserError(" and ".join(f"{run} is a run of {name}" for name, run in names.items()))
    words = randomize or dict(loaded[0].config.env_settings).get("randomize")
    if words is None:
        raise UserError(f"{runs[0]} was not trained on ranges: give some, --randomize {EXAMPLE}")
    words = reading.ranges_setting(words)
    source = None if randomize else runs[0]
    ranged = [_environment(run, one.config, words, source) for run, one in zip(runs, loaded)]
    ranges = ranged[0].ranges
    shares = _shares(len(ranges), values)
    rows = [
        row
        for run, one, its in zip(runs, loaded, ranged)
        for row in _rows(str(run), one, its, shares, episodes, seed)
    ]
    parameters = np.array([[r.value(s) for r, s in zip(ranges, cell)] for cell in shares])
    title = (
        f"{next(iter(names))}, {episodes} episodes in each of {len(shares)} cells: {values} "
        f"values of {' and of '.join(map(_label, ranges))}"
    )
    return Grid(ranges, parameters, rows, title)


class _Ranged(NamedTuple):
    """An environment whose parameters can be set by their shares."""

    env: Any
    params: Any
    ranges: tuple[Any, ...]
    default: list[float]  # shares of the default parameters


def _environment(run: Path | str, config: Any, words: str, source: Path | str | None) -> _Ranged:
    """A run's environment with ranges, those of the run `source` where none were given."""
    from envs import randomized  # which starts jax, so not before it is needed

    own = dict(config.env_settings)
    if own.get("observe_randomized") and words != own["randomize"]:
        given = f"the ranges {words} of {source}" if source else f"--randomize {words}"
        remedy = "give it a grid of its own" if source else "leave --randomize out"
        raise UserError(
            f"{given}: {run} sees its parameters scaled by the ranges {own['randomize']}; {remedy}"
        )
    try:
        drawn = {word.partition(":")[0] for word in words.split("/")}
        others = {name: value for name, value in own.items() if name not in drawn}
        env, params = envs.make(config.env, **(others | {"randomize": words}))
        envs.check_ends(env, params)
    except ValueError as error:
        raise UserError(str(error)) from None
    wrapper = randomized.of(env)
    assert wrapper is not None
    ranges = wrapper.ranges
    trained = [float(own.get(r.name, getattr(params, r.name))) for r in ranges]
    return _Ranged(env, params, ranges, [r.share(x) for r, x in zip(ranges, trained)])


def _shares(number: int, values: int) -> np.ndarray:
    """Of all cells, (values ** number, number), the last parameter fastest."""
    if values**number > MOST_CELLS:
        most = int(MOST_CELLS ** (1 / number) + 1e-9)
        remedy = f"give {most} or less" if most > 1 else "give ranges of fewer, with --randomize"
        raise UserError(
            f"--values {values}: that makes {values**number} cells with {number} parameters; "
            f"{remedy}"
        )
    return np.array(list(itertools.product(np.linspace(0, 1, values), repeat=number)), np.float32)


def _rows(
    run: str, loaded: loading.Loaded, ranged: _Ranged, shares: np.ndarray, episodes: int, seed: int
) -> list[Row]:
    """The rows of a run, one for each of its settings."""
    trials = loaded.trials
    cells = np.concatenate([[ranged.default], shares]).astype(np.float32)
    groups: dict[str, list[np.ndarray]] = {}
    for i in range(trials.count):
        config = trials.one(loaded.config, i)
        policy_state = loading.one_trial(loaded.state.policy, i)
        key = jax.random.key(seed)
        given = config, ranged.params, policy_state, cells, key, loaded.module, ranged.env
        play = lambda given=given: jax.block_until_ready(_returns(*given, episodes))
        returns = in_background(play)  # this thread answers Ctrl-C
        name = " ".join([run, *settings.text_of(trials.setting(i))])
        groups.setdefault(name, []).append(np.asarray(returns, np.float64))
    pooled = {name: np.stack(returns) for name, returns in groups.items()}
    return [Row(name, both[:, 1:], both[:, 0]) for name, both in pooled.items()]


@functools.partial(jax.jit, static_argnames=("module", "env", "episodes"))
def _returns(config, params, policy_state, cells, key, module, env, episodes):
    """Mean returns (cells,) of one trial, over players too."""
    from envs import randomized

    policy = module.make_policy(config, env, params)
    state = SimpleNamespace(policy=policy_state)

    def of(shares):
        one = randomized.pinned(env, shares)
        return envs.evaluate(policy, state, one, params, key, episodes).episode_return.mean()

    return jax.vmap(of)(cells)


# --- what is said of it ------------------------------------------------------------------------


def _label(one: Any) -> str:
    return f"{one.name} from {one.low:g} to {one.high:g}{' (log)' * one.is_log}"


def _table(found: Grid) -> str:
    head = ["", "trials", "default", "mean", "worst tenth", "worst cell", "at"]
    table = [head]
    for row in found.rows:
        mean = row.cells.mean(0)
        worst = int(mean.argmin())
        where = " ".join(f"{r.name}={v:.3g}" for r, v in zip(found.ranges, found.values[worst]))
        scores = row.default, row.cells.mean(1), row.worst_tenth, row.cells[:, worst]
        table.append([row.name, str(len(row.default)), *map(_score, scores), where])
    if all(len(row.default) < 2 for row in found.rows):
        return "\n".join(results.aligned(table))
    name = intervals.interval_name(max(len(row.default) for row in found.rows))
    note = f"the middle of trials, and its interval: {name}"
    return "\n".join([*results.aligned(table), "", note])


def _score(scores: np.ndarray) -> str:
    if len(scores) < 2:
        return f"{scores.mean():.4g}"
    middle, low, high = intervals.estimate(scores)
    return f"{middle:.4g} ({low:.4g} to {high:.4g})"


def _csv(found: Grid) -> str:
    """A line for each cell of each trial."""
    lines = [["run", "trial", *(one.name for one in found.ranges), "return"]]
    for row in found.rows:
        for trial, cells in enumerate(row.cells):
            numbers = np.column_stack([found.values, cells])
            lines += [[row.name, str(trial), *(f"{x:.6g}" for x in line)] for line in numbers]
    return as_csv(lines)


# --- as a picture ------------------------------------------------------------------------------


def draw(found: Grid, path: Path) -> None:
    """Draws returns over the grid; whatever was in the place of the PNG is replaced in one step.

    Two parameters give a heat map for each row, of the mean over its trials, all on one scale of
    colours. Otherwise each parameter has a panel, with a line for each row: the mean over all other
    parameters and its trials, plus and minus one standard error over the trials.
    """
    from matplotlib.figure import Figure

    returns, ranges = {row.name: row.cells for row in found.rows}, found.ranges
    maps = len(ranges) == 2
    number = len(returns) if maps else len(ranges)
    columns = min(number, 3)
    rows = -(-number // columns)
    figure = Figure(figsize=(1.0 + 4.6 * columns, 0.8 + 3.8 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    figure.suptitle(found.title, wrap=True)
    for ax in axes[number:]:
        ax.remove()
    if maps:
        _heat_maps(figure, axes[:number], returns, found)
    else:
        for ax, one, own in zip(axes, ranges, found.values.T):
            _over_parameter(ax, returns, own, one)
        if len(returns) > 1:
            axes[0].legend()
    plots.save(figure, path)


def _heat_maps(figure: Any, axes: Any, returns: Mapping[str, np.ndarray], found: Grid) -> None:
    first, second = (np.unique(column) for column in found.values.T)
    shape = len(first), len(second)
    means = {name: cells.mean(0).reshape(shape) for name, cells in returns.items()}
    low = min(mean.min() for mean in means.values())
    high = max(mean.max() for mean in means.values())
    scale = {"vmin": low, "vmax": high if high > low else low + 1.0}
    for ax, (name, mean) in zip(axes, means.items()):
        drawn = ax.imshow(mean, origin="lower", aspect="auto", cmap="viridis", **scale)
        ax.set_title(name)
        ax.set(xlabel=found.ranges[1].name, ylabel=found.ranges[0].name)
        for axis, numbers in ((ax.xaxis, second), (ax.yaxis, first)):
            marked = range(0, len(numbers), -(-len(numbers) // plots.MOST_TICKS))
            axis.set_ticks(marked, [f"{numbers[i]:.3g}" for i in marked])
    figure.colorbar(drawn, ax=list(axes), label="mean return")


def _over_parameter(ax: Any, returns: Mapping[str, np.ndarray], own: np.ndarray, one: Any) -> None:
    x = np.unique(own)
    for (name, cells), colour in zip(returns.items(), itertools.cycle(plots.COLOURS)):
        curve = np.stack([cells[:, own == value].mean(1) for value in x])  # (values, trials)
        mean, error = plots.mean_and_error(curve.T)
        ax.plot(x, mean, color=colour, label=name)
        ax.fill_between(x, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
    ax.set_xlabel(one.name)
    ax.set_xscale("log" if one.is_log else "linear")
    ax.set_ylabel("mean return")


# --- the command line --------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> None:
    """The command line. Exit code 2 for a user's mistake, with one line that says what."""
    parser = argparse.ArgumentParser(
        prog="python -m algorithms.launch.grid",
        description="Returns of saved policies over a grid of an environment's parameters.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="directory of a run or a sweep")
    parser.add_argument(
        "--randomize",
        metavar="RANGES",
        help=f"such as {EXAMPLE}; default: what the first run was trained on",
    )
    parser.add_argument(
        "--values", type=int, default=VALUES, help=f"of each parameter; default {VALUES}"
    )
    parser.add_argument(
        "--episodes", type=int, default=EPISODES, help=f"in a cell; default {EPISODES}"
    )
    parser.add_argument("--point", default="last", help="last, best or a number")
    parser.add_argument("--seed", type=int, default=0, help="of start states and randomness")
    parser.add_argument("--out", metavar="FILE.png", help="draw the grid into this new file")
    parser.add_argument("--csv", metavar="FILE.csv", help="write all cells into this new file")
    words = parser.parse_args(argv)
    with refusing():
        picture, cells = files.new("out", words.out, ".png"), files.new("csv", words.csv, ".csv")
        found = grid(
            words.runs,
            words.randomize,
            values=words.values,
            episodes=words.episodes,
            point=reading.point_of(words.point, "point"),
            seed=words.seed,
        )
        print(found.text)
        if cells:
            cells.write_text(_csv(found))
            print(f"cells in {cells}")
        if picture:
            draw(found, picture)
            print(f"picture in {picture}")
