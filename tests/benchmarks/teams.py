"""The speed of ippo_rnn and vdn, beside JaxMARL 0.2.0's own scripts with the same settings.

    python tests/benchmarks/teams.py                              # every case, median of 3 runs
    python tests/benchmarks/teams.py --cases vdn-8x26 --runs 5    # some of them
    python tests/benchmarks/teams.py --keep                       # and into the documentation

Processes take turns, and times are measured, as in speed.py. JaxMARL has its own virtual
environment with the same version of jax, and its scripts are run as they are (jaxmarl_scripts.py).
One seed, no evaluation, CPU.

MAPPO: mappo_rnn_smax.py and mappo_rnn_mpe.py, against ippo_rnn.py with a central critic and shared
parameters. Equal are environment, number of environments, steps of a rollout, and 4 epochs of 4
minibatches of whole sequences. Actor and critic are separate networks, each with a GRU of 128 units
and two dense layers of 128, ReLU. Clipped value loss and Adam are equal. Not equal:
  - JaxMARL's second dense layer comes after the memory, this kit's before it: the same products;
  - JaxMARL's critic runs at every step of a rollout. This kit's runs over the rollout afterwards,
    and again over the final observations, for exact bootstrap values;
  - JaxMARL resets every environment at every step and calls back to log after every update.

VDN and QMIX: vdn_rnn.py and qmix_rnn.py, against vdn.py with a GRU. Equal are environment, number
of environments, whole episodes of 26 steps as rollouts, a dense layer and a GRU of 64 units, and
rectified Adam. Each sample is learned from four times. In 8x26, JaxMARL makes a gradient step on 32
sequences of its buffer after every rollout of 8, and this kit makes four on the 8 sequences of the
rollout. In 32x26, both sides make four on 32 sequences after every rollout of 32. Not equal:
  - JaxMARL has a buffer and a target network, which double Q-learning evaluates; this kit has
    neither, but layer norm and lambda-returns;
  - JaxMARL begins to learn after 32 rollouts, this kit at once;
  - JaxMARL's hypernetworks have a hidden layer of 128, this kit's none.

vdn-own and qmix-own have each side's published settings for spread. JaxMARL's are 8x26 as above.
This kit's are its defaults: 32 environments, 32 steps, four epochs of eight minibatches, two layers
and no memory.
"""

import argparse
import dataclasses
import importlib
import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.benchmarks import jaxmarl_scripts, speed  # noqa: E402

SMAX_3M = {"env": "jaxmarl/HeuristicEnemySMAX", "env_settings": (("scenario", "3m"),)}
SPREAD = {"env": "jaxmarl/MPE_simple_spread_v3"}
MAPPO = {
    "share_params": True,
    "agent_ids": True,
    "central_critic": True,
    "memory_size": 128,
    "hidden_sizes": (128, 128),
    "activation": "relu",
    "clip_vloss": True,
    "learning_rate": 2e-3,
    "critic_learning_rate": 2e-3,
}
VALUES = {"cell": "gru", "hidden_sizes": (64,), "num_minibatches": 1, "learning_rate": 5e-3}


@dataclasses.dataclass(frozen=True)
class Case:
    """The settings of one timed run."""

    name: str
    script: str  # JaxMARL's script, by its name in jaxmarl_scripts
    algorithm: str  # this kit's
    settings: dict[str, Any]  # this kit's settings; epochs are its defaults, 4
    num_envs: int
    num_steps: int
    updates: int
    more: tuple[tuple[str, Any], ...] = ()  # settings of JaxMARL's
    num_seeds: int = 1

    @property
    def timesteps(self) -> int:
        return self.updates * self.num_envs * self.num_steps


def values(script: str, mixer: str, num_envs: int, updates: int, **more: Any) -> Case:
    """A case of spread, whose episodes have 26 steps."""
    settings = SPREAD | VALUES | {"mixer": mixer}
    name = f"{script}-{num_envs}x26", f"{script}/MPE_simple_spread_v3", "vdn"
    return Case(*name, settings, num_envs, 26, updates, tuple(more.items()))


def own(script: str, mixer: str) -> Case:
    """Each side with its own settings for spread: this kit's are its defaults, without memory."""
    case = values(script, mixer, 8, 400)
    settings = SPREAD | {"mixer": mixer, "num_envs": 32, "num_steps": 32}
    return dataclasses.replace(case, name=f"{script}-own", settings=settings)


CASES = (
    Case("mappo-smax-3m", "mappo/SMAX-3m", "ippo_rnn", SMAX_3M | MAPPO, 128, 128, 2),
    Case("mappo-spread", "mappo/MPE_simple_spread_v3", "ippo_rnn", SPREAD | MAPPO, 16, 128, 8),
    values("vdn", "sum", 8, 400),
    values("vdn", "sum", 32, 200, NUM_EPOCHS=4),
    values("qmix", "monotonic", 8, 400),
    values("qmix", "monotonic", 32, 200, NUM_EPOCHS=4),
    own("vdn", "sum"),
    own("qmix", "monotonic"),
)


def settings(case: Case) -> tuple[Any, Any]:
    """This kit's module and its Config."""
    module = importlib.import_module(f"algorithms.{case.algorithm}")
    sizes = {"num_envs": case.num_envs, "num_steps": case.num_steps}
    config = module.Config(
        total_timesteps=case.timesteps,
        num_evals=1,
        num_eval_episodes=0,
        eval_at_start=False,
        **(sizes | case.settings),
    )
    return module, config


def ours(case: Case) -> speed.Program:
    """This kit's file."""
    return speed.trials_program(*settings(case), case.num_seeds)


def jaxmarl(case: Case) -> speed.Program:
    """JaxMARL's script."""
    import jax

    more = {"NUM_ENVS": case.num_envs, "NUM_STEPS": case.num_steps, "LEARNING_STARTS": 0}
    more |= {"TOTAL_TIMESTEPS": case.timesteps, **dict(case.more)}
    run = jaxmarl_scripts.make(os.environ["BASELINES"], case.script, **more)
    return speed.compile_program(run.train, jax.random.PRNGKey(0))


SIDES = {"this kit": ours, "jaxmarl": jaxmarl}


class Worker(speed.Worker):
    script = __file__


COLUMNS = ("case", "this kit, steps/s", "JaxMARL, steps/s", "times faster", "compile", "JaxMARL's")


def row(case: Case, args: argparse.Namespace) -> list[str]:
    kit = Worker("this kit", case, args.time_limit)
    peer = Worker("jaxmarl", case, args.time_limit, args.peer_python)
    speed.alternate([kit, peer], args.runs)
    for worker in (kit, peer):
        worker.close()
    compiling = [f"{w.compile_seconds:.1f} s" if w.compile_seconds else "-" for w in (kit, peer)]
    rates = speed.rate(case, kit), speed.rate(case, peer)
    return [case.name, *rates, speed.times_faster(kit, peer), *compiling]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [case.name for case in CASES]
    parser.add_argument("--cases", nargs="+", choices=names, default=names, metavar="CASE")
    parser.add_argument("--runs", type=int, default=3, help="timed runs of each side")
    parser.add_argument("--time-limit", type=float, default=300, help="seconds for any one answer")
    parser.add_argument("--peer-python", metavar="PATH", help="a Python that has JaxMARL")
    parser.add_argument("--keep", action="store_true", help="in docs/results and the page's table")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    args = parse()
    if args.worker:
        side, name = args.worker[0], json.loads(args.worker[1])["name"]
        return speed.serve(SIDES[side], next(case for case in CASES if case.name == name))
    from tests.benchmarks import learning, peer_python, report

    args.peer_python = args.peer_python or peer_python.jaxmarl()
    place = jaxmarl_scripts.REPOSITORY, jaxmarl_scripts.COMMIT, "baselines"
    os.environ["BASELINES"] = str(peer_python.checkout(*place))  # workers inherit it
    rows = []
    for case in CASES:
        if case.name in args.cases:
            rows.append(row(case, args))
            print(", ".join(rows[-1]), file=sys.stderr)
    print(speed.table(COLUMNS, rows))
    print(f"\njax {importlib.metadata.version('jax')}, {os.cpu_count()} cores")
    if args.keep:
        report.keep_speeds("teams", COLUMNS, rows)
        learning.write()


if __name__ == "__main__":
    main()
