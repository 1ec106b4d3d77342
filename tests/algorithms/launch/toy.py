"""A toy that keeps the contract of an algorithm file and compiles in no time.

It walks at random. Run as a program it has the launcher's command line.
"""

import sys
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

import envs
from algorithms import parts
from algorithms.parts import real, static


@struct.dataclass
class Config:
    env: str = static("CartPole-v1")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # settings for envs.make
    total_timesteps: int = static(1000)  # environment steps of the whole run
    num_envs: int = static(5)  # parallel environments
    learning_rate: float = real(0.1, "[0, inf)")  # size of a step
    anneal_lr: bool = static(False)  # smaller steps towards the end
    gamma: float = real(0.99, "[0, 1]")  # discount factor
    target_kl: float = real(float("inf"), "(0, inf]")  # inf for never
    hidden_sizes: tuple[int, ...] = static((3, 2))  # shape of the policy
    num_evals: int = static(10)  # points of the learning curve
    num_eval_episodes: int = static(4)  # episodes of each evaluation; 0 for none
    eval_at_start: bool = static(True)  # a point before training, too


@struct.dataclass
class State:
    policy: Any
    rng: jax.Array
    update: jax.Array
    nothing: jax.Array  # (0,), as in some environments' states


@parts.with_usual_jax
def make_train(config, env=None, env_params=None):
    env = env or envs.make(config.env, **dict(config.env_settings))[0]
    if config.num_envs < 1:
        raise ValueError(f"num_envs={config.num_envs}: give 1 or more")
    points = parts.num_points(config, config.num_envs)
    num_updates = parts.num_updates(config, config.num_envs)
    per_point = num_updates // points
    config = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), config)

    def update(_, state):
        rng, noise_rng = jax.random.split(state.rng)
        size = config.learning_rate
        if config.anneal_lr:
            size = size * (1.0 - state.update / num_updates)
        noise = jax.random.normal(noise_rng, config.hidden_sizes)
        policy = {"weights": jnp.sin(state.policy["weights"] + size * noise) * config.gamma}
        return State(policy, rng, state.update + 1, state.nothing)

    def point(state, count):
        state = jax.lax.fori_loop(0, count, update, state)
        mean = state.policy["weights"].mean()
        metrics = {
            "timestep": state.update * config.num_envs,
            "episode_return": jnp.where(state.update > 0, mean, jnp.nan),
            "loss": jnp.where(state.update > 0, mean**2, jnp.nan),
        }
        if config.num_eval_episodes:
            metrics["eval_return"] = mean + jnp.arange(float(config.num_eval_episodes))
        return state, metrics

    def start(rng):
        policy = {"weights": jnp.zeros(config.hidden_sizes)}
        return State(policy, rng, jnp.zeros((), jnp.int32), jnp.zeros((0,)))

    def train(rng, state=None, num_evals=None, learn=True):
        counts = [per_point] * (points if num_evals is None else num_evals)
        if state is None:
            state = start(rng)
            counts = [0] * config.eval_at_start + counts
        counts = jax.lax.optimization_barrier(jnp.array(counts, jnp.int32))
        return jax.lax.scan(point, state, jnp.where(learn, counts, 0))

    train.start = parts.with_usual_jax(start)
    train.plan = parts.Plan(points, num_updates, num_updates * config.num_envs)
    return train


@parts.with_usual_jax
def make_policy(config, env=None, env_params=None):
    def policy(state, observation, memory=None, rng=None, mask=None):
        score = state.policy["weights"].sum() * observation.sum()
        return (score > 0).astype(jnp.int32), memory

    return policy


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
