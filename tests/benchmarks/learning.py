"""How well the algorithms learn: cells of many seeds, whose scores docs/results/ keeps.

    python tests/benchmarks/learning.py                          # lists all cells
    python tests/benchmarks/learning.py ppo/CartPole-v1 dqn      # publish a cell, and all of a file
    python tests/benchmarks/learning.py ppo --look 100           # on seeds for tuning, not kept
    python tests/benchmarks/learning.py ppo --look 100 --more "--adam-eps 1e-5" --topic eps  # kept
    python tests/benchmarks/learning.py --write                  # tables and pictures of kept rows

A score belongs to one seed at the *last* point of its run. It is the mean return of whole episodes
of the deterministic policy (32 unless the settings say otherwise), over all players. No checkpoint
is picked. Seeds 0 to 999 are for tuning, as often as one likes. A cell is published once, on seeds
10_000 and up. If its settings change after that, the next published run takes 20_000 and up
(--block 2), and its row says so. Without --block a cell is run again on its own seeds.

A stopped or killed cell continues where it was. Every seed's curve goes to
docs/results/<algorithm>.csv with the command, the commit and the versions. A tuning run's row goes
to docs/results/tuning.csv; docs/tuning.md has the conclusions. Tables and pictures are made from
these files alone (report.py, pictures.py).
"""

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from algorithms import launch  # noqa: E402
from algorithms.launch import cli, flags  # noqa: E402
from algorithms.launch.engine import devices  # noqa: E402
from algorithms.launch.engine.errors import UserError, unknown  # noqa: E402
from algorithms.launch.engine.metrics import mean_returns  # noqa: E402
from algorithms.launch.engine.versions import versions  # noqa: E402
from tests.benchmarks import pictures, report  # noqa: E402
from tests.benchmarks.cells import CELLS, Cell  # noqa: E402


def settings(cell: Cell) -> tuple[Any, Any]:
    """The algorithm's module and its Config."""
    module, words = importlib.import_module(f"algorithms.{cell.algorithm}"), cell.words.split()
    return module, flags.parse(module, words, *cli.defaults(module, words))[0]


def command(cell: Cell, first_seed: int) -> str:
    """The command that repeats a cell."""
    seeds = f"--seed {first_seed} --num-seeds {cell.seeds}"
    return f"python algorithms/{cell.algorithm}.py {cell.words} {seeds}"


def train(
    cell: Cell, first_seed: int, run_dir: Path | None, change: Callable[[Any], Any] | None = None
) -> list[dict[str, Any]]:
    """Trains all seeds at once, or resumes them. Returns a row for each seed.

    Args:
      change: of the cell's Config.

    Raises:
      KeyboardInterrupt, SystemExit: a signal, after the point that was being computed.
    """
    module, config = settings(cell)
    config = change(config) if change else config
    place = {"save": False} if run_dir is None else {"run_dir": run_dir, "resume_if_exists": True}
    result = launch.run(module, config, seed=first_seed, num_seeds=cell.seeds, quiet=False, **place)
    returns = mean_returns(result.metrics)
    training = mean_returns(result.metrics, "episode_return")
    made = versions(module, devices.arrange(1))
    return [
        {
            "cell": cell.name,
            "seed": first_seed + i,
            "timestep": int(result.metrics["timestep"][i, -1]),
            "score": float(returns[i, -1]),
            "training": float(training[i, -1]),
            "curve": " ".join(f"{value:.5g}" for value in returns[i]),
            "command": command(cell, first_seed),
            **{name: made[name] for name in ("git_commit", "jax", "device")},
            **(of_metric(cell.metric, result.metrics, i) if cell.metric else {}),
        }
        for i in range(cell.seeds)
    ]


def of_metric(name: str, metrics: dict[str, Any], trial: int) -> dict[str, float]:
    """A row's values of the metric at the last point: of the evaluation, and of training."""
    evaluated, training = metrics[f"eval_{name}"][trial, -1], metrics[f"episode_{name}"][trial, -1]
    return {name: float(evaluated.mean()), f"{name} in training": float(training)}


def chosen(names: list[str], among: tuple[Cell, ...] = CELLS) -> list[Cell]:
    """The cells with these names, or of these algorithms.

    Raises:
      UserError: an unknown name.
    """
    found: list[Cell] = []
    for name in names:
        cells = [cell for cell in among if name in (cell.key, cell.algorithm)]
        if not cells:
            raise unknown("cell", name, [cell.key for cell in among])
        found += cells
    return found


def show() -> None:
    """Prints the cells, and how many seeds of each are kept."""
    for cell in CELLS:
        kept = len(report.kept(cell))
        print(f"{cell.key:45} {cell.seeds:4} seeds, {kept} kept   {cell.words}")


def write() -> None:
    """Writes tables and pictures of the kept rows."""
    for page in report.PAGES:
        page.write_text(report.page(page.read_text()))
    pictures.write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cells", nargs="*", metavar="CELL", help="algorithm/name, or an algorithm")
    parser.add_argument("--look", type=int, metavar="SEEDS", help="of those for tuning; not kept")
    parser.add_argument("--first-seed", type=int, default=0, help="of --look")
    parser.add_argument("--more", default="", metavar="WORDS", help="settings on top, with --look")
    parser.add_argument("--topic", help="keep what --look finds in docs/results/tuning.csv")
    parser.add_argument(
        "--block", type=int, help="which report it is; by default that in the table"
    )
    parser.add_argument("--work", type=Path, default=Path("runs/learning"), metavar="DIR")
    parser.add_argument("--write", action="store_true", help="write docs/results.md anew")
    args = parser.parse_args()
    try:
        cells = chosen(args.cells)
    except UserError as error:
        sys.exit(f"error: {error}")
    if not cells and not args.write:
        show()
        return
    devices.use_cores(max((args.look or c.seeds for c in cells), default=1), None)
    for cell in cells:
        if args.look:
            cell = cell._replace(seeds=args.look, words=f"{cell.words} {args.more}".rstrip())
            rows = train(cell, args.first_seed, None)
            if args.topic:
                report.keep_look(args.topic, cell, rows)
        else:
            first = (args.block or report.block_of(report.kept(cell))) * report.BLOCK
            rows = train(cell, first, args.work / f"{cell.algorithm}-{cell.name}-{first}")
            report.keep(cell.algorithm, rows)
        texts = [{k: str(v) for k, v in row.items()} for row in rows]
        print(" | ".join(report.line(cell, texts)), flush=True)
    if not args.look:
        write()


if __name__ == "__main__":
    main()
