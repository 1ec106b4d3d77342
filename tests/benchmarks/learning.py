"""How well the algorithms learn: a table of scores and a picture of learning curves.

    python tests/benchmarks/learning.py                              # every entry below
    python tests/benchmarks/learning.py --algorithms ppo --envs CartPole-v1 Acrobot-v1
    python tests/benchmarks/learning.py --seeds 3 --out /tmp/look    # a shorter look

A score is what one seed reaches at the *last* point of its run: the mean return of whole episodes
of the deterministic policy (32 unless the settings say otherwise). No checkpoint is picked, and the
seeds reported, 100 and up, are not those that settings were tuned with. Over the seeds' scores the
table gives

  - mean and standard deviation (of a sample: divided by one less than the seeds);
  - IQM, the interquartile mean: the mean without the lowest and the highest quarter, rounded down
    to whole seeds (Agarwal et al. 2021, https://arxiv.org/abs/2108.13264), and in brackets the
    interval of 95 % of bootstrap resamples of the seeds;
  - the worst seed;
  - beside them the mean return of training episodes at the last point, where actions are sampled:
    what CleanRL and others publish;
  - seconds that all seeds took together, compilation included.

Settings come from algorithms/launch/presets.py or else are Config's defaults, and each row ends
with the command that repeats it. Table and picture are written anew after every entry.
"""

import argparse
import importlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from algorithms import launch
from algorithms.launch import cli, devices, plots, results
from algorithms.launch.presets import PRESETS


class Entry(NamedTuple):
    """What is trained: a preset of that name if there is one, else the defaults."""

    algorithm: str
    env: str
    total_timesteps: int
    seeds: int


CLASSIC = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0")
GAMES = ("Asterix", "Breakout", "Freeway", "SpaceInvaders")
CELLS = ("", "-gru", "-mingru")  # an LSTM, and what the others' presets end with
ENTRIES = (
    Entry("ppo", "CartPole-v1", 500_000, 10),
    Entry("ppo", "Acrobot-v1", 500_000, 10),
    Entry("ppo", "Pendulum-v1", 500_000, 5),
    Entry("ppo", "MountainCarContinuous-v0", 500_000, 5),
    Entry("ppo", "Breakout-MinAtar", 5_000_000, 5),
    Entry("ippo", "MultiNavigator-v0", 1_000_000, 5),
    Entry("ippo", "MPE_simple_spread_v3", 1_000_000, 5),
    Entry("ippo", "MPE_simple_spread_v3-independent", 1_000_000, 5),
    *(Entry("ppo_rnn", f"MemoryChain-bsuite{cell}", 200_000, 5) for cell in CELLS),
    Entry("ppo_rnn", "CartPole-v1-positions", 500_000, 5),
    Entry("ppo_rnn", "CartPole-v1-positions-gru", 250_000, 5),
    Entry("ppo_rnn", "CartPole-v1-positions-mingru", 250_000, 5),
    Entry("ippo", "MPE_simple_speaker_listener_v4", 5_000_000, 5),
    Entry("ppo_vtrace", "CartPole-v1", 500_000, 5),
    Entry("ppo_vtrace", "MultiNavigator-v0", 500_000, 5),
    Entry("pqn", "CartPole-v1", 500_000, 10),
    Entry("pqn", "Acrobot-v1", 500_000, 10),
    Entry("pqn", "MountainCar-v0", 500_000, 10),
    Entry("reinforce", "CartPole-v1", 500_000, 10),
    Entry("reinforce", "Acrobot-v1", 500_000, 10),
    *(Entry("pqn", f"{game}-MinAtar", 10_000_000, 3) for game in GAMES),
    *(Entry("dqn", env, 500_000, 10) for env in CLASSIC),
    *(Entry("c51", env, 500_000, 10) for env in ("CartPole-v1", "Acrobot-v1")),
    *(Entry(name, env, 500_000, 10) for name in ("qrdqn", "iqn") for env in CLASSIC),
)


class Row(NamedTuple):
    """What came of an entry."""

    entry: Entry
    first_seed: int
    metrics: dict[str, np.ndarray]  # (seeds, points, ...)
    seconds: float

    @property
    def scores(self) -> np.ndarray:
        """(seeds,); players of a game are averaged."""
        last = self.metrics["eval_return"][:, -1]
        return last.reshape(len(last), -1).mean(axis=1)


# --- training --------------------------------------------------------------------------------


def settings(entry: Entry) -> tuple[Any, Any]:
    """The algorithm's module and its Config."""
    module = importlib.import_module(f"algorithms.{entry.algorithm}")
    if entry.env in PRESETS.get(entry.algorithm, {}):
        config = cli.preset(module, entry.env)
    else:
        config = module.Config(env=entry.env)
    return module, config.replace(total_timesteps=entry.total_timesteps)


def command(entry: Entry, first_seed: int) -> str:
    """What repeats an entry on the command line."""
    known = entry.env in PRESETS.get(entry.algorithm, {})
    return (
        f"python algorithms/{entry.algorithm}.py --{'preset' if known else 'env'} {entry.env} "
        f"--total-timesteps {entry.total_timesteps} --seed {first_seed} --num-seeds {entry.seeds}"
    )


def train(entry: Entry, first_seed: int) -> Row:
    """Trains all seeds at once.

    Raises:
      KeyboardInterrupt: Ctrl-C, after the point that was being computed.
    """
    module, config = settings(entry)
    start = time.perf_counter()
    result = launch.run(
        module, config, seed=first_seed, num_seeds=entry.seeds, save=False, quiet=False
    )
    if result.interrupted:
        raise KeyboardInterrupt
    return Row(entry, first_seed, result.metrics, time.perf_counter() - start)


# --- what is written -------------------------------------------------------------------------

COLUMNS = ("algorithm", "environment", "steps", "seeds", "mean", "std", "IQM (95 %)", "worst seed")
COLUMNS += ("in training", "seconds", "command")


def cells(row: Row) -> list[str]:
    """One line of the table."""
    entry, scores = row.entry, row.scores
    low, high = results.bootstrap_interval(scores)
    numbers = [scores.mean(), scores.std(ddof=1) if len(scores) > 1 else np.nan]
    training, _ = plots.mean_and_error(row.metrics["episode_return"][:, -1].ravel())
    return [
        entry.algorithm,
        entry.env,
        f"{row.metrics['timestep'][0, -1]:,}",
        str(entry.seeds),
        *map(number, numbers),
        f"{number(results.interquartile_mean(scores))} ({number(low)} to {number(high)})",
        number(scores.min()),
        number(training),
        f"{row.seconds:.0f}",
        f"`{command(entry, row.first_seed)}`",
    ]


def number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}"


def write_table(rows: Sequence[Row], path: Path) -> str:
    """Writes Markdown, and returns it."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *map(cells, rows)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    text += f"\n\njax {jax.__version__}, {jax.default_backend()}, {os.cpu_count()} cores\n"
    path.write_text(text)
    return text


def draw(rows: Sequence[Row], path: Path) -> None:
    """A panel for each row: returns of evaluations, every seed thin, the mean in its band."""
    from matplotlib.figure import Figure

    columns = min(len(rows), 3)
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(4.5 * columns, 3.2 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for row, ax, colour in zip(rows, panels, plots.COLOURS * len(rows)):
        steps, entry = row.metrics["timestep"][0], row.entry
        returns = plots.by_player("eval_return", row.metrics["eval_return"])
        values = np.mean(list(returns.values()), axis=0)
        mean, error = plots.mean_and_error(values)
        ax.plot(steps, values.T, color=colour, linewidth=0.6, alpha=0.4)
        ax.plot(steps, mean, color=colour, linewidth=2)
        ax.fill_between(steps, mean - error, mean + error, color=colour, alpha=0.25, linewidth=0)
        ax.set_title(f"{entry.algorithm} on {entry.env}, {entry.seeds} seeds", fontsize="medium")
        ax.grid(alpha=0.3)
    for ax in panels[len(rows) :]:
        ax.remove()
    figure.supxlabel("environment steps", fontsize="medium")
    figure.supylabel("evaluation return, mean ± standard error", fontsize="medium")
    figure.savefig(path, dpi=130)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    algorithms, names = ({entry[i] for entry in ENTRIES} for i in (0, 1))
    parser.add_argument("--algorithms", nargs="+", choices=sorted(algorithms), default=algorithms)
    parser.add_argument("--envs", nargs="+", choices=sorted(names), default=names)
    parser.add_argument("--seeds", type=int, help="for every entry, in place of its own number")
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("runs/learning"), metavar="DIR")
    return parser.parse_args()


def main() -> None:
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    entries = [e for e in ENTRIES if e.algorithm in args.algorithms and e.env in args.envs]
    entries = [entry._replace(seeds=args.seeds or entry.seeds) for entry in entries]
    # As many devices as the largest entry can use: then each is spread as its own command does it.
    devices.use_cores(max((entry.seeds for entry in entries), default=1), None)
    rows = []
    for entry in entries:
        rows.append(train(entry, args.first_seed))
        write_table(rows, args.out / "learning.md")
        draw(rows, args.out / "learning.png")
    print(write_table(rows, args.out / "learning.md"))


if __name__ == "__main__":
    main()
