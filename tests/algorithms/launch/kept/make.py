"""Makes the directories beside it, which test_kept.py reads, and the answers to compare with.

    python tests/algorithms/launch/kept/make.py     # in the root of a clone; overwrites nothing

They are made once, by the command line of commit 94e1a14 with Python 3.11, jax 0.10.2, flax 0.12.8,
optax 0.2.8, gymnax 1.0.1 and numpy 2.4.6 on two CPU devices; versions.json of each run says so.
Those in 981350f/ are of that commit, which is older; only their answers are of 94e1a14.
They stand for the directories that users have, so they are never made anew to make a test pass.
Where a change renames something on purpose, edit the answers by hand, not the directories.

Pictures and locks are left out. The answers are what the same commit prints for COMMANDS, the
actions of its policies, and the rows of metrics.csv that longer runs add.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parent
ROOT = KEPT.parents[3]
ANSWERS = KEPT / "answers"

POINTS = "--total-timesteps 192 --num-evals 3 --num-eval-episodes 2"
SHORT = f"--env Pendulum-v1 --env-settings max_steps=30 {POINTS}"
ROLLOUTS = "--num-envs 4 --num-steps 16 --update-epochs 2 --num-minibatches 2 --hidden-sizes 8"
PPO = f"ppo.py {SHORT} {ROLLOUTS}"
RATES = "--learning-rate 1e-3 3e-3 1e-2 3e-2"
MADE_BY = {
    "ppo-run": f"{PPO} --num-seeds 2",
    # Two groups in four chunks.
    "ppo-sweep": f"{PPO} --learning-rate 1e-3 1e-2 --activation tanh relu --num-seeds 2 "
    "--max-parallel 2",
    # Two rungs and a retest, in a chunk each.
    "ppo-halved": f"{PPO} {RATES} --num-seeds 2 --halving 2 --retest 2 --retest-seeds 2 "
    "--objective mean_return",
    "ppo-population": f"{PPO.replace('--num-evals 3', '')} --pbt 3 --samples 4 --num-seeds 2 "
    "--learning-rate log:1e-4:1e-1 --gamma discount:0.9:0.999",
    "sac-run": f"sac.py {SHORT} --num-envs 4 --buffer-size 256 --batch-size 16 "
    "--learning-starts 32 --hidden-sizes 8 --critic-hidden-sizes 8 --train-every 4",
    "ppo_rnn-run": f"ppo_rnn.py --env CartPole-v1 --env-settings max_steps=30,observe=0,2 {POINTS} "
    f"{ROLLOUTS} --memory-size 8",
}
OLDER = [f"981350f/{file}-{kind}" for file in ("ppo", "dqn", "ippo") for kind in ("run", "sweep")]
RUNS = [*MADE_BY, *(name for name in OLDER if name.endswith("run"))]  # of which actions are kept


def file_of(name: str) -> str:
    """The file of a directory's algorithm."""
    return f"{Path(name).name.partition('-')[0]}.py"


EVERYONE = "--episodes 2 --point best --trial all"
# {name of the answer: file or module, and its words}, in a folder with the directories.
COMMANDS = {
    "compare": f"compare {' '.join(MADE_BY)}",
    "compare-981350f": f"compare {' '.join(OLDER)}",
    "compare-training": "compare ppo-sweep ppo-halved --metric episode_return",
    "grid": "grid ppo-halved --randomize g=uniform:5:15 --values 2 --episodes 2",
    **{f"evaluate-{name}": f"{file_of(name)} --evaluate {name} {EVERYONE}" for name in MADE_BY},
}
SEEDS = {name: 2 if "--num-seeds 2" in words else 1 for name, words in MADE_BY.items()}
LONGER = ["ppo-run", "sac-run", "ppo_rnn-run", "981350f/dqn-run", "981350f/ippo-run"]


def call(folder: Path, words: str) -> str:
    """What a command says, as a user starts it; the errors come last."""
    first, *others = words.split()
    start = [ROOT / "algorithms" / first]
    if not first.endswith(".py"):
        start = ["-m", f"algorithms.launch.{first}"]
    done = subprocess.run(
        [sys.executable, *start, *others],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def last_rows(run_dir: Path) -> list[dict[str, str]]:
    """The rows of the last point of metrics.csv, without the time that they took."""
    head, *lines = [line.split(",") for line in (run_dir / "metrics.csv").read_text().split()]
    rows = [dict(zip(head, line, strict=True)) for line in lines]
    clock = ("seconds", "steps_per_second")
    return [
        {name: cell for name, cell in row.items() if name not in clock}
        for row in rows
        if row["point"] == rows[-1]["point"]
    ]


def actions(loaded: Any) -> list[float]:
    """The deterministic actions of a trial that is loaded, on 16 observations."""
    import jax
    import numpy as np

    import envs

    env, params = envs.make(loaded.config.env, **dict(loaded.config.env_settings))
    seen, _ = jax.eval_shape(env.reset_env, jax.random.key(0), params)
    shape = (16, *seen.shape)
    seen = np.sin(np.arange(np.prod(shape), dtype=np.float32)).reshape(shape) * 3.0
    act = jax.jit(jax.vmap(lambda x: loaded.policy(loaded.state, x)[0]))
    return np.asarray(act(seen), float).ravel().tolist()


def write_json(name: str, values: object) -> None:
    (ANSWERS / name).write_text(json.dumps(values, indent=1) + "\n")


def main() -> None:
    for name, words in MADE_BY.items():
        call(KEPT, f"{words} --run-dir {name}")
        for file in [file for kind in ("*.png", ".lock") for file in KEPT.rglob(kind)]:
            file.unlink()
    ANSWERS.mkdir()
    for name, words in COMMANDS.items():
        (ANSWERS / f"{name}.txt").write_text(call(KEPT, words))
    from algorithms import launch

    load = lambda name: launch.load(KEPT / name, trial=SEEDS.get(name, 1) - 1)
    write_json("actions.json", {name: actions(load(name)) for name in RUNS})
    rows = {}
    for name in LONGER:
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copytree(KEPT / name, Path(folder) / name)
            call(Path(folder), f"{file_of(name)} --resume {name} --total-timesteps 256")
            rows[name] = last_rows(copy)
    write_json("resumed.json", rows)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
