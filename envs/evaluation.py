"""Whole episodes of a policy, all in parallel, inside the compiled program."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs import loops
from envs.batch import ENDLESS, limit_of, transition
from envs.metrics import counted, kinds
from envs.usual_jax import with_usual_jax


class Episodes(NamedTuple):
    """The results of episodes; leading axis num_episodes. Rewards may have trailing axes."""

    episode_return: jax.Array  # raw rewards, undiscounted
    length: jax.Array  # steps, int32
    terminated: jax.Array
    truncated: jax.Array  # neither: the episode went on and was cut, see `longest`
    last_reward: jax.Array
    metrics: dict[str, jax.Array]  # reported by the environment


class _Carry(NamedTuple):
    rng: jax.Array
    observation: Any
    env_state: Any
    memory: Any
    episodes: Episodes


def all_limits(env: Any, env_params: Any) -> list[Any]:
    """The time limits of the parameters, and of those at the ends of their ranges."""
    drawn: Any = getattr(env, "drawn_corners", lambda _: [])  # an end of a range may have none
    return [limit_of(env, params) for params in (env_params, *drawn(env_params))]


def check_ends(env: Any, env_params: Any) -> None:
    """Refuses an environment whose episodes may never end: an evaluation plays whole episodes.

    Raises:
      ValueError: the environment has neither a time limit nor `ends = True`.
    """
    limits = all_limits(env, env_params)
    known = [
        np.max(np.inf if limit is None else limit)
        for limit in limits
        if not isinstance(limit, jax.core.Tracer)
    ]
    if not all(limit < ENDLESS for limit in known) and not getattr(env, "ends", False):
        where = " at an end of its ranges" * bool(known[0] < ENDLESS)
        raise ValueError(
            f"{env.name} has no time limit{where}, so an evaluation might never end: give it one "
            "(--env-settings max_steps=1000), or turn evaluations off (--num-eval-episodes 0); if "
            "its episodes always end by themselves, give the environment an attribute ends = True"
        )


def longest(env: Any, env_params: Any) -> Any:
    """Steps after which an evaluation is cut, or None where its episodes surely end.

    An environment says so itself, as those of `envs.make` do.
    """
    asked = getattr(env, "longest_episode", None)
    return asked and asked(env_params)


def rewarded(memory: Any, reward: jax.Array) -> Any:
    """A policy's memory after a step: if it has a `reward`, this is the reward of the step."""
    if getattr(memory, "reward", None) is None:
        return memory
    return memory._replace(reward=jnp.asarray(reward, jnp.float32))


@with_usual_jax
def evaluate(
    policy: Callable,
    state: Any,
    env: Any,
    env_params: Any,
    rng: jax.Array,
    num_episodes: int,
    only: jax.Array | None = None,
) -> Episodes:
    """Runs whole episodes of the deterministic policy, and stops when all have ended.

    Episodes that go on after `longest` steps are cut: both of their flags are False.

    Args:
      policy: `policy(state, observation, memory) -> action, memory` for one environment. A fresh
        memory must be zeros. If it has a `reward`, it receives the reward of each step. Where the
        environment has an `action_mask`, the policy gets it as `mask`.
      state: passed to the policy.
      env, env_params: from `envs.make`; an environment that may never end needs `max_steps`.
      rng: key for start states and the environment's own randomness.
      num_episodes: number of episodes, static.
      only: which of them to play, int (number,); by default all. An episode does not depend on the
        others.

    Raises:
      ValueError: as in `check_ends`.
    """
    check_ends(env, env_params)

    def keys_of(rng):
        keys = jax.random.split(rng, num_episodes)
        return keys if only is None else keys[only]

    rng, reset_rng = jax.random.split(rng)
    reset_keys = keys_of(reset_rng)
    observation, env_state = jax.vmap(env.reset_env, (0, None))(reset_keys, env_params)

    def acting(observation, env_state, memory=None):
        more = {}
        if hasattr(env, "action_mask"):
            more["mask"] = env.action_mask(env_state, env_params)
        return policy(state, observation, memory, **more)

    memory = loops.zeros(jax.vmap(lambda *seen: acting(*seen)[1]), observation, env_state)

    def step_once(key, observation, env_state, memory):
        action, memory = acting(observation, env_state, memory)
        *stepped, info = transition(env, key, env_state, action, env_params)
        memory = rewarded(memory, stepped[2])
        return *stepped, {name: info["metrics"][name] for name in kinds(env)}, memory

    def step(carry: _Carry) -> _Carry:
        rng, step_rng = jax.random.split(carry.rng)
        keys = keys_of(step_rng)
        observation, env_state, reward, terminated, truncated, values, memory = jax.vmap(step_once)(
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
            metrics={
                n: jnp.where(
                    running, counted(kind, before.metrics[n], values[n]), before.metrics[n]
                )
                for n, kind in kinds(env).items()
            },
        )
        return _Carry(rng, observation, env_state, memory, episodes)

    most = longest(env, env_params)

    def unfinished(carry: _Carry) -> jax.Array:
        over = carry.episodes.terminated | carry.episodes.truncated
        return ~jnp.all(over if most is None else over | (carry.episodes.length >= most))

    keys = keys_of(jax.random.key(0))  # shapes only
    reward = jax.eval_shape(jax.vmap(step_once), keys, observation, env_state, memory)[2]
    played = keys.shape
    no, zeros = jnp.zeros(played, bool), jnp.zeros(reward.shape, reward.dtype)
    none = {name: jnp.zeros(played) for name in kinds(env)}
    episodes = Episodes(zeros, jnp.zeros(played, jnp.int32), no, no, zeros, none)
    carry = _Carry(rng, observation, env_state, memory, episodes)
    return loops.repeat_while(unfinished, step, carry).episodes
