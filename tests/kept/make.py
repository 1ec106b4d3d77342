"""Makes the directories beside it, which tests/test_kept.py reads, and the answers to compare with.

    python tests/kept/make.py        # in the root of a clone, into folders that are not there yet

They are made once, by the command line of commit 94e1a14 with Python 3.11, jax 0.10.2, flax 0.12.8,
optax 0.2.8, gymnax 1.0.1 and numpy 2.4.6 on two CPU devices; versions.json of each run says so.
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
ROOT = KEPT.parents[1]
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
# {name of the answer: file or module, and its words}, in a folder with the directories.
COMMANDS = {
    "compare": f"compare {' '.join(MADE_BY)}",
    "compare-training": "compare ppo-sweep ppo-halved --metric episode_return",
    "grid": "grid ppo-halved --randomize g=uniform:5:15 --values 2 --episodes 2",
    **{
        f"evaluate-{name}": f"{words.split()[0]} --evaluate {name} --episodes 2 --point best"
        for name, words in MADE_BY.items()
    },
}
SEEDS = {name: 2 if "--num-seeds 2" in words else 1 for name, words in MADE_BY.items()}
LONGER = {"ppo-run": 256, "sac-run": 256, "ppo_rnn-run": 256}  # {run: timesteps}


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

    size = {"Pendulum-v1": 3, "CartPole-v1": 2}[loaded.config.env]
    seen = np.sin(np.arange(16.0 * size, dtype=np.float32)).reshape(16, size) * 3.0
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

    load = lambda name: launch.load(KEPT / name, trial=SEEDS[name] - 1)
    write_json("actions.json", {name: actions(load(name)) for name in MADE_BY})
    rows = {}
    for name, steps in LONGER.items():
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copytree(KEPT / name, Path(folder) / name)
            file = MADE_BY[name].split()[0]
            call(Path(folder), f"{file} --resume {name} --total-timesteps {steps}")
            rows[name] = last_rows(copy)
    write_json("resumed.json", rows)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
