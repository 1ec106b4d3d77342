"""Shaped rewards: extra rewards on the way to a reward, learned from and not counted in returns.

An environment with `shapes_rewards = True` reports them as `info["shaped_reward"]`, in the shape of
its reward, and its parameters have

  shaped        the weight with which `envs.batch` adds them to its rewards; 0 for none
  shaped_steps  environment steps, over the whole batch, in which the weight falls linearly to 0;
                inf: it stays

Steps of a single environment, as in evaluations, have rewards without them. `episode_return` of
training also excludes them.
"""

from typing import Any

import jax
import jax.numpy as jnp

PARAMETERS = ("shaped", "shaped_steps")
NAME = "shaping"  # the added reward, in `info` and in the metrics of training


def reward_shape(env: Any) -> tuple[int, ...]:
    """The shape of one environment's reward."""
    return (env.num_agents,) if hasattr(env, "num_agents") else ()


def earns_after_leaving(env: Any) -> bool:
    """Whether an agent that has left still gets the reward of its team.

    It does where all agents have the same reward (`env.shared_reward`), or all of each team
    (`env.team_rewards`).
    """
    return any(getattr(env, name, False) for name in ("shared_reward", "team_rewards"))


def shapes(env: Any) -> bool:
    """Whether an environment reports shaped rewards."""
    return bool(getattr(env, "shapes_rewards", False))


def weight(params: Any, steps: jax.Array) -> jax.Array:
    """The weight of shaped rewards after so many environment steps, ()."""
    left = 1.0 - steps / jnp.maximum(params.shaped_steps, 1.0)
    return params.shaped * jnp.maximum(left, 0.0)
