"""Training on random environment parameters and on replayed levels, compared over a grid.

    python tests/benchmarks/levels.py                           # lists the cases
    python tests/benchmarks/levels.py Pendulum-v1               # runs all cases of a task
    python tests/benchmarks/levels.py "Pendulum-v1, PLR"        # runs one case
    python tests/benchmarks/levels.py Pendulum-v1 --look 5      # seeds 0 to 4, not kept

Every case trains its seeds at once, with the same settings in all cases of a task and a network.
Returns are means of a few episodes in each cell of a grid over the ranges (launch/grid.py). Each
seed's mean, worst tenth and worst cell go to docs/results/levels.csv. A killed case goes on where
it was.
"""

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from algorithms import launch  # noqa: E402
from algorithms.launch import cli, flags  # noqa: E402
from algorithms.launch.engine import devices  # noqa: E402
from algorithms.launch.engine.versions import versions  # noqa: E402
from algorithms.launch.tools.robustness import grid  # noqa: E402
from tests.benchmarks import report  # noqa: E402

FIRST_SEED = 10_000
VALUES, EPISODES = 8, 4  # of each parameter of the grid; in a cell
RANGES = {
    "CartPole-v1": "length:uniform:0.25:4/gravity:log:5:40",
    "Pendulum-v1": "l:uniform:0.5:1.5/m:uniform:0.5:1.5",
    "Acrobot-v1": "link_length_1:uniform:0.5:2/link_mass_2:uniform:0.5:3",
}
STEPS = {"CartPole-v1": 300_000, "Pendulum-v1": 300_000, "Acrobot-v1": 200_000}
# Words of each training beside its ranges
TRAININGS = {
    "default": "--replay-share 0",
    "randomised": "--replay-share 0",
    "PLR": "",
    "robust PLR": "--robust",
    "ACCEL": "--robust --edit-share 0.5",
}
MEMORY = "--cell s5 --num-envs 16"  # words of the policy with a memory


class Case(NamedTuple):
    """What is trained on a task, and what its policy sees."""

    task: str
    training: str
    memory: bool = False
    observed: bool = False  # the drawn parameters are part of the observation

    @property
    def seeds(self) -> int:
        """A memory takes seven times as long to train."""
        return 10 if self.memory else 30

    @property
    def policy(self) -> str:
        return "S5" * self.memory or "feed-forward"

    @property
    def name(self) -> str:
        seen = [self.policy] * self.memory + ["observed"] * self.observed
        return ", ".join([self.task, self.training, *seen])

    @property
    def words(self) -> str:
        """The settings, as words of the command line after the file's name."""
        ranges = f"randomize={RANGES[self.task]}" + ",observe_randomized=true" * self.observed
        ranges = "" if self.training == "default" else ranges
        source = f"--env {self.task} {MEMORY}" if self.memory else f"--preset {self.task}"
        more = "" if self.memory else TRAININGS[self.training]
        words = f"{source} --env-settings={ranges} {more} --total-timesteps {STEPS[self.task]}"
        return " ".join(f"{words} --num-evals 2".split())

    @property
    def algorithm(self) -> str:
        return "ppo_rnn" if self.memory else "ppo_plr"


CASES = tuple(
    case
    for task in RANGES
    for case in (
        *(Case(task, training) for training in TRAININGS),
        *(Case(task, training, observed=True) for training in [*TRAININGS][1:]),
        Case(task, "default", memory=True),
        Case(task, "randomised", memory=True),
        Case(task, "randomised", memory=True, observed=True),
    )
)


def measure(case: Case, first_seed: int, seeds: int, work: Path) -> list[dict[str, Any]]:
    """Trains a case, or goes on with it, and measures it. A row for each seed."""
    module = importlib.import_module(f"algorithms.{case.algorithm}")
    words = case.words.split()
    config = flags.parse(module, words, *cli.defaults(module, words))[0]
    run_dir = work / f"{case.name.replace(', ', '-')}-{first_seed}-{seeds}"
    options = {"run_dir": run_dir, "resume_if_exists": True, "quiet": False}
    result = launch.run(module, config, seed=first_seed, num_seeds=seeds, **options)
    found = grid([run_dir], RANGES[case.task], values=VALUES, episodes=EPISODES)
    print(found.text, flush=True)
    made, (cells,) = versions(module, devices.arrange(1)), found.rows
    return [
        {
            "environment": case.task,
            "training": case.training,
            "policy": case.policy,
            "parameters": "observed" if case.observed else "hidden",
            "seed": first_seed + i,
            "steps": int(result.metrics["timestep"][i, -1]),
            "mean": f"{cells.cells[i].mean():.6g}",
            "worst_tenth": f"{cells.worst_tenth[i]:.6g}",
            "worst_cell": f"{cells.cells[i].min():.6g}",
            "git_commit": made["git_commit"],
        }
        for i in range(seeds)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="its name, or a task")
    parser.add_argument("--look", type=int, metavar="SEEDS", help="run the seeds from 0 on, only")
    parser.add_argument("--work", type=Path, default=Path("runs/levels"), metavar="DIR")
    args = parser.parse_args()
    chosen = [case for case in CASES if {case.name, case.task} & set(args.cases)]
    if missing := set(args.cases) - {x for case in CASES for x in (case.name, case.task)}:
        parser.error(f"no case or task {min(missing)!r}; without arguments all are listed")
    for case in CASES if not args.cases else ():
        print(f"{case.name:45} python algorithms/{case.algorithm}.py {case.words}")
    for case in chosen:
        print(case.name, flush=True)
        first, seeds = (0, args.look) if args.look else (FIRST_SEED, case.seeds)
        rows = measure(case, first, seeds, args.work)
        if not args.look:
            report.keep_levels(rows)


if __name__ == "__main__":
    main()
