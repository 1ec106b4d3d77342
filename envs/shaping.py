"""Rewards for what is on the way to a reward: learned from, at first or always, but not counted.

An environment with `shapes_rewards = True` reports them as `info["shaped_reward"]`, in the shape of
its reward, and its parameters have

  shaped        the weight with which `envs.batch` adds them to its rewards; 0 for none
  shaped_steps  environment steps, of all that are in the batch, in which the weight falls to 0 on a
                line; inf: it stays

Who steps one environment, as evaluations do, gets rewards without them. An `episode_return` of
training is without them, too.
"""

from typing import Any

import jax
import jax.numpy as jnp

NAME = "shaping"  # of what was added, in `info` and among the metrics of training


def reward_shape(env: Any) -> tuple[int, ...]:
    """Of one environment's reward."""
    return (env.num_agents,) if hasattr(env, "num_agents") else ()


def shapes(env: Any) -> bool:
    """Whether an environment reports shaped rewards."""
    return bool(getattr(env, "shapes_rewards", False))


def weight(params: Any, steps: jax.Array) -> jax.Array:
    """Of shaped rewards after so many environment steps, ()."""
    left = 1.0 - steps / jnp.maximum(params.shaped_steps, 1.0)
    return params.shaped * jnp.maximum(left, 0.0)
