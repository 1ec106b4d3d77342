"""The authors' FlashSAC on gymnasium's Pendulum-v1, for peers.py, in an environment of its own.

Its agent, buffer, environments and evaluation are called as they are, in the order of its train.py.
Settings are its defaults but for these: networks of 32 and 64 units and batches of 256, as in the
preset of flashsac.py, learning from 1,000 steps on, and a buffer that holds the whole run. There is
one environment, and a gradient step follows each of its steps, as its defaults have it. Nothing is
compiled, and all is float32. Left out are its logger, videos and checkpoints.
"""

import contextlib
import io
import os
import random
import sys
from pathlib import Path
from typing import Any

REPOSITORY = "https://github.com/leeyngdo/FlashSAC"
COMMIT = "f2da589bb15f484586a15247ede70303a38a5858"
STEPS, POINTS, EPISODES = 20_000, 20, 32
CHANGED = {
    "device_type": "cpu",
    "buffer_device_type": "cpu",
    "use_compile": False,
    "use_amp": False,
    "buffer_max_length": STEPS,
    "buffer_min_length": 1_000,
    "sample_batch_size": 256,
    "actor_hidden_dim": 32,
    "critic_hidden_dim": 64,
}


def settings(folder: str, seed: int, steps: int) -> Any:
    """The agent's settings: those of a checkout's files, and CHANGED."""
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver("eval", eval, replace=True)  # its files have expressions
    files = Path(folder) / "configs"
    given = OmegaConf.load(files / "flashSAC_base.yaml")
    given.agent = OmegaConf.load(files / "agent" / "flashSAC.yaml")
    given.merge_with({"seed": seed, "num_env_steps": steps, "agent": CHANGED})
    OmegaConf.resolve(given.agent)
    return given.agent


def train(folder: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """Trains a seed with the code of a checkout."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # two of its functions ask to be compiled in any case
    sys.path.insert(0, folder)
    import numpy as np
    import torch
    from flash_rl import envs
    from flash_rl.agents import create_agent
    from flash_rl.evaluation import evaluate

    torch.set_num_threads(1)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    envs.AsyncVectorEnv = envs.SyncVectorEnv  # no process for each pendulum

    def pendulums(number: int, first: int) -> Any:
        with contextlib.redirect_stdout(io.StringIO()):
            made = envs.create_vec_env("mujoco", "Pendulum-v1", number, first, True, None)
        made.reset(seed=first)
        return made

    env, games = pendulums(1, 100_000 + seed), pendulums(EPISODES, 200_000 + 1_000 * seed)
    env.action_space.seed(seed)  # of the random actions before it learns
    observations, about = env.reset()
    agent = create_agent(
        env.observation_space, env.action_space, about, settings(folder, seed, steps)
    )
    transition: dict[str, Any] | None = None
    curve, running, ended = [evaluate(agent, games, EPISODES, "mujoco")["avg_return"]], 0.0, []
    for step in range(1, steps + 1):
        if agent.can_start_training() and transition is not None:
            actions = np.array(agent.sample_actions(step, transition, training=True))
        else:
            actions = env.action_space.sample()
        following, rewards, terminateds, truncateds, about = env.step(actions)
        kept = about["final_obs"].copy() if truncateds[0] else following.copy()
        transition = {
            "observation": observations,
            "action": actions,
            "reward": np.float32(rewards),  # float64 fails where nothing is compiled
            "terminated": terminateds,
            "truncated": truncateds,
            "next_observation": np.stack(kept).astype(np.float32),
        }
        agent.process_transition(transition)
        transition["next_observation"] = observations = following
        running += float(rewards[0])
        if terminateds[0] or truncateds[0]:
            ended, running = [*ended, running], 0.0
        if agent.can_start_training():
            agent.update()
        if step % (steps // POINTS) == 0:
            curve.append(evaluate(agent, games, EPISODES, "mujoco")["avg_return"])
            print(f"{step} steps, seed {seed}: {curve[-1]:.1f}", file=sys.stderr, flush=True)
    last = ended[-(steps // POINTS // 200) :]
    return {
        "timestep": steps,
        "score": curve[-1],
        "training": float(np.mean(last)),
        "curve": curve,
        "jax": f"torch {torch.__version__}",
        "device": "cpu",
    }
