"""Environments: made by name, batched, and played for whole evaluation episodes.

    env, env_params = envs.make("CartPole-v1", max_steps=200)
    batch = envs.batch(env, num_envs=8, num_steps=128)
    observation, state = batch.reset(key, env_params)
    state = batch.refill(key, state, env_params)  # once a rollout
    observation, state, reward, terminated, truncated, info = batch.step(
        key, state, action, env_params
    )

Importing this package is cheap. The first `make` that needs an environment library imports it; this
includes gymnax.
"""

from envs.batch import BatchState
from envs.critics import for_critics
from envs.evaluation import Episodes, check_ends, evaluate
from envs.interface import check_interface
from envs.levels import Level
from envs.registry import make, names
from envs.reports import batch
