"""The presets `purejaxrl` and `cleanrl` beside these kits' own scripts, on CartPole-v1.

    python tests/benchmarks/presets.py ppo/purejaxrl         # the script, then the preset
    python tests/benchmarks/presets.py dqn/cleanrl --python PYTHON --folder DIR

Both sides are ten seeds, and a point is the mean return of the training episodes that ended since
the one before. PYTHON is one with what the script needs, and DIR a checkout of the kit; without
them PureJaxRL's are made in the user's cache directory. CleanRL's scripts train for 200,000 steps,
because they take minutes for each seed: the preset does too.

`--side pytorch` is the preset with layers that start as PyTorch's. These seeds cannot tell it from
CleanRL's DQN.

A line of PureJaxRL's dqn.py is changed. It sets its key to a constant, after which seeds differ in
their first states alone.
"""

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

# Workers run this file with another kit's Python, without the packages of this one: imports come
# late.
STEPS = {"purejaxrl": 500_000, "cleanrl": 200_000}
COMMITS = {"purejaxrl": "31756b1", "cleanrl": "fe8d8a0"}
SEEDS, FIRST, POINTS = 10, 100, 20  # FIRST is the preset's
PPO = dict(NUM_ENVS=4, NUM_STEPS=128, UPDATE_EPOCHS=4, NUM_MINIBATCHES=4, LR=2.5e-4, GAMMA=0.99)
PPO |= dict(GAE_LAMBDA=0.95, CLIP_EPS=0.2, ENT_COEF=0.01, VF_COEF=0.5, MAX_GRAD_NORM=0.5)
PPO |= dict(ACTIVATION="tanh", ANNEAL_LR=True)
DQN = dict(NUM_ENVS=10, BUFFER_SIZE=10_000, BUFFER_BATCH_SIZE=128, EPSILON_START=1.0, LR=2.5e-4)
DQN |= dict(EPSILON_FINISH=0.05, EPSILON_ANNEAL_TIME=250_000, TARGET_UPDATE_INTERVAL=500)
DQN |= dict(LEARNING_STARTS=10_000, TRAINING_INTERVAL=10, GAMMA=0.99, TAU=1.0)
# {script: (settings, {its text: other text})}
SCRIPTS = {
    "ppo": (PPO, {}),
    "dqn": (
        DQN,
        {
            "        rng = jax.random.PRNGKey(0)  # use a dummy": "        kept, rng = rng, "
            "jax.random.PRNGKey(0)  #",
            "        buffer_state = buffer.init(_timestep)": "        rng, buffer_state = kept, "
            "buffer.init(_timestep)",
            '"returns": info["returned_episode_returns"].mean(),': "**info,",
        },
    ),
}


# --- in the Python of another kit -------------------------------------------------------------


def mean_of_points(steps, ended, returns, length):
    """Mean returns of the episodes that ended within each point, (POINTS,); NaN where none did.

    Args:
      steps, ended, returns: of each step of each environment, in one axis.
      length: steps of the run.
    """
    import numpy as np

    point = np.minimum(np.asarray(steps) * POINTS // length, POINTS - 1)[ended]
    sums = np.bincount(point, np.asarray(returns)[ended], POINTS)
    counts = np.bincount(point, minlength=POINTS)
    return np.where(counts, sums / np.maximum(counts, 1), np.nan).tolist()


def of_purejaxrl(script, folder, seed):
    """The curve of a seed."""
    import jax
    import numpy as np

    from tests.benchmarks import peers

    jax.tree_map = jax.tree.map  # jax 0.10 has removed it
    settings, changes = SCRIPTS[script]
    text = (Path(folder) / "purejaxrl" / f"{script}.py").read_text()
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    sys.path.insert(0, str(Path(folder) / "purejaxrl"))
    sys.modules.update({name: peers.mock.MagicMock() for name in peers.NOT_USED})
    module = {"__name__": script}
    exec(compile(text, script, "exec"), module)
    length = STEPS["purejaxrl"]
    config = settings | {"ENV_NAME": "CartPole-v1", "TOTAL_TIMESTEPS": length}
    info = jax.jit(module["make_train"](config))(jax.random.PRNGKey(seed))["metrics"]
    ended, returns = (np.asarray(info[f"returned_episode{x}"]).ravel() for x in ("", "_returns"))
    return mean_of_points(np.arange(ended.size), ended, returns, length)


def curve_of_lines(said, length):
    """The curve of what a script of CleanRL has printed."""
    import numpy as np

    found = re.findall(r"global_step=(\d+), episodic_return=\[?([\d.]+)", said)
    steps, returns = np.array(found, float).T
    return mean_of_points(steps.astype(int), np.ones(len(steps), bool), returns, length)


# --- in ours ----------------------------------------------------------------------------------


def of_script(name, python, folder):
    """The curves of a script's seeds."""
    algorithm, _, kit = name.partition("/")
    run = lambda words, **more: (
        subprocess.run(
            [python, *map(str, words)], check=True, stdout=subprocess.PIPE, text=True, **more
        ).stdout
    )
    if kit == "purejaxrl":
        words = [[__file__, "--worker", algorithm, folder, seed] for seed in range(SEEDS)]
        return [json.loads(run(one, env=os.environ | {"NPROC": "1"})) for one in words]
    flags = ["--no-cuda", "--total-timesteps", STEPS[kit], "--seed"]
    words = [[f"cleanrl/{algorithm}.py", *flags, seed] for seed in range(1, SEEDS + 1)]
    found = {"PYTHONPATH": str(Path(folder).resolve())}  # cleanrl_utils
    said = [run(one, cwd=folder, env=os.environ | found) for one in words]
    return [curve_of_lines(one, STEPS[kit]) for one in said]


def as_of_pytorch(features, kernel_init=None, name=None, **others):
    """A dense layer that starts as PyTorch's: all numbers within 1 / sqrt(inputs)."""
    import flax.linen as nn
    import jax

    class Dense(nn.Module):
        @nn.compact
        def __call__(self, x):
            end = x.shape[-1] ** -0.5
            uniform = lambda key, shape: jax.random.uniform(key, shape, minval=-end, maxval=end)
            kernel = self.param("kernel", uniform, (x.shape[-1], features))
            return x @ kernel + self.param("bias", uniform, (features,))

    return Dense(name=name)


def of_preset(name, pytorch=False):
    """The curves of the preset's seeds, or of those with PyTorch's layers."""
    import numpy as np

    from algorithms import launch, parts
    from algorithms.parts import layers
    from algorithms.presets import PRESETS

    if pytorch:
        parts.Dense = layers.Dense = as_of_pytorch
    algorithm, _, kit = name.partition("/")
    module = importlib.import_module(f"algorithms.{algorithm}")
    length = dict(total_timesteps=STEPS[kit], num_evals=POINTS, num_eval_episodes=0)
    config = module.Config(**PRESETS[algorithm][kit] | length, eval_at_start=False)
    result = launch.run(module, config, seed=FIRST, num_seeds=SEEDS, save=False)
    return np.asarray(result.metrics["episode_return"]).tolist()


def rows(name, side, curves, commit):
    """Rows of docs/results/presets.csv."""
    first = FIRST if side != "script" else int(name.endswith("cleanrl"))
    length = STEPS[name.partition("/")[2]]
    texts = [" ".join(f"{x:.5g}" for x in curve) for curve in curves]
    what = {"preset": name, "side": side}
    made = {"timestep": length, "git_commit": commit}
    return [{**what, "seed": first + i, **made, "curve": text} for i, text in enumerate(texts)]


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        answers, sys.stdout = sys.stdout, sys.stderr
        script, folder, seed = sys.argv[2:]
        print(json.dumps(of_purejaxrl(script, folder, int(seed))), file=answers)
        return
    from algorithms import ppo
    from algorithms.launch.engine import devices
    from algorithms.launch.engine.versions import versions
    from tests.benchmarks import peer_python, peers, report

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    choices = [f"{algorithm}/{kit}" for kit in STEPS for algorithm in SCRIPTS]
    parser.add_argument("preset", choices=choices)
    parser.add_argument("--python", help="with what the script needs")
    parser.add_argument("--folder", type=Path, help="a checkout of the kit")
    parser.add_argument("--side", choices=("script", "preset", "pytorch"), help="only this one")
    args = parser.parse_args()
    kit, keys = args.preset.partition("/")[2], ("preset", "side")
    if args.side in (None, "script"):
        python, folder = args.python, args.folder
        if kit == "cleanrl" and not (python and folder):
            parser.error("the scripts of CleanRL need --python and --folder")
        python = python or peer_python.rejax()
        folder = folder or peer_python.checkout(peers.PUREJAXRL, peers.COMMIT)
        curves = of_script(args.preset, python, folder)
        report.keep("presets", rows(args.preset, "script", curves, COMMITS[kit]), by=keys)
    if args.side != "script":
        commit = versions(ppo, devices.arrange(1))["git_commit"][:7]
        side = args.side or "preset"
        curves = of_preset(args.preset, side == "pytorch")
        report.keep("presets", rows(args.preset, side, curves, commit), by=keys)


if __name__ == "__main__":
    main()
