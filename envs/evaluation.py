"""Whole episodes of a policy, all in parallel, inside the compiled program."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from envs.batch import transition


class Episodes(NamedTuple):
    """What happened in each episode; leading axis num_episodes, rewards may have trailing axes."""

    episode_return: jax.Array  # raw rewards, undiscounted
    length: jax.Array  # steps, int32
    terminated: jax.Array  # else it was truncated
    truncated: jax.Array
    last_reward: jax.Array


class _Carry(NamedTuple):
    rng: jax.Array
    observation: Any
    env_state: Any
    memory: Any
    episodes: Episodes


def evaluate(
    policy: Callable,
    state: Any,
    env: Any,
    env_params: Any,
    rng: jax.Array,
    num_episodes: int,
) -> Episodes:
    """Runs whole episodes of the deterministic policy, and stops when all have ended.

    Args:
      policy: `policy(state, observation, memory) -> action, memory` for one environment; a
        fresh memory must be zeros. Where the environment has an `action_mask`, the policy gets
        it as `mask`.
      state: handed to the policy.
      env, env_params: of `envs.make`; an environment that may never end needs `max_steps`.
      rng: start states and the environment's own randomness.
      num_episodes: how many, static.
    """
    rng, reset_rng = jax.random.split(rng)
    reset_keys = jax.random.split(reset_rng, num_episodes)
    observation, env_state = jax.vmap(env.reset_env, (0, None))(reset_keys, env_params)

    masked = hasattr(env, "action_mask")

    def first_memory(observation):
        return policy(state, observation)[1]

    memory = jax.eval_shape(jax.vmap(first_memory), observation)
    memory = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), memory)

    def one_step(key, observation, env_state, memory):
        mask = {"mask": env.action_mask(env_state, env_params)} if masked else {}
        action, memory = policy(state, observation, memory, **mask)
        return *transition(env, key, env_state, action, env_params)[:5], memory

    def step(carry: _Carry) -> _Carry:
        rng, step_rng = jax.random.split(carry.rng)
        keys = jax.random.split(step_rng, num_episodes)
        observation, env_state, reward, terminated, truncated, memory = jax.vmap(one_step)(
            keys, carry.observation, carry.env_state, carry.memory
        )
        before = carry.episodes
        running = ~(before.terminated | before.truncated)
        rewarded = running.reshape(running.shape + (1,) * (reward.ndim - 1))
        episodes = Episodes(
            episode_return=before.episode_return + jnp.where(rewarded, reward, 0.0),
            length=before.length + running,
            terminated=before.terminated | (running & terminated),
            truncated=before.truncated | (running & truncated),
            last_reward=jnp.where(rewarded, reward, before.last_reward),
        )
        return _Carry(rng, observation, env_state, memory, episodes)

    def unfinished(carry: _Carry) -> jax.Array:
        return ~jnp.all(carry.episodes.terminated | carry.episodes.truncated)

    keys = jax.random.split(jax.random.key(0), num_episodes)  # shapes only
    reward = jax.eval_shape(jax.vmap(one_step), keys, observation, env_state, memory)[2]
    no, zeros = jnp.zeros(num_episodes, bool), jnp.zeros(reward.shape, reward.dtype)
    episodes = Episodes(zeros, jnp.zeros(num_episodes, jnp.int32), no, no, zeros)
    carry = _Carry(rng, observation, env_state, memory, episodes)
    return jax.lax.while_loop(unfinished, step, carry).episodes
