"""Shaped rewards: learned from with a weight that falls, and not counted in returns."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import envs
from algorithms import ippo_rnn, parts, ppo_rnn, pqn_rnn, vdn
from envs.batch import transition
from envs.episodes import EpisodeStatistics
from envs.gymnax import environment, spaces


@struct.dataclass
class State:
    time: jax.Array


@struct.dataclass
class Params:
    shaped: float = 0.0
    shaped_steps: float = np.inf
    max_steps_in_episode: int = 3


class Alone(environment.Environment):
    """Step t of an episode has reward t and shaped reward 10 t."""

    shapes_rewards, name, way = True, "Steps", 10.0

    @property
    def default_params(self):
        return Params()

    def reset_env(self, key, params):
        return jnp.zeros((*np.shape(self.way), 1)), State(jnp.zeros((), jnp.int32))

    def step_env(self, key, state, action, params):
        seen, time, way = self.reset_env(key, params)[0], state.time + 1, jnp.asarray(self.way)
        reward = jnp.full(way.shape, 1.0 * time)
        return seen, State(time), reward, jnp.array(False), {"shaped_reward": time * way}

    def action_space(self, params):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(0.0, 1.0, (1,))


class Steps(Alone):
    """Two agents; step t of an episode has reward t for both, and shaped rewards (10 t, -t)."""

    num_agents, way = 2, (10.0, -1.0)


def test_the_weight_cannot_be_drawn_for_an_episode():
    """Batches add shaped rewards with the weight of their own parameters."""
    with pytest.raises(ValueError, match="randomize: shaped of Steps belongs to the whole batch"):
        envs.make(Alone(), randomize="shaped:uniform:0:1")


@functools.cache
def three():
    """Parameters of three environments, and their compiled reset, refill and step."""
    env, params = envs.make(Steps(), shaped=1.0, shaped_steps=1.0)
    batch = envs.batch(env, 3, 2)
    return params, jax.jit(batch.reset), jax.jit(batch.refill), jax.jit(batch.step)


@pytest.mark.parametrize(
    "shaped, steps, weights",
    [
        (0.5, 24.0, [0.5, 0.375, 0.25, 0.125, 0.0, 0.0]),
        (2.0, np.inf, [2.0] * 6),
        (0.0, np.inf, [0.0] * 6),
    ],
)
def test_the_weight_falls_with_the_steps_of_all_environments(shaped, steps, weights):
    """Three environments in rollouts of two steps; the weight is that at a rollout's start."""
    params, reset, refill, step = three()
    params = params.replace(shaped=shaped, shaped_steps=steps)
    _, state = reset(jax.random.key(0), params)
    rewards, added = [], []
    for i in range(6):
        state = refill(jax.random.fold_in(jax.random.key(1), i), state, params)
        for j in range(2):
            key = jax.random.fold_in(jax.random.key(2), 2 * i + j)
            _, state, reward, _, _, info = step(key, state, jnp.zeros((3, 2), jnp.int32), params)
            rewards.append(reward)
            added.append(info["shaping"])
    time = np.arange(12) % 3 + 1.0
    expected = np.repeat(weights, 2)[:, None] * time[:, None] * [10.0, -1.0]
    np.testing.assert_allclose(added, np.stack([expected] * 3, 1), rtol=1e-6)
    np.testing.assert_allclose(rewards, added + time[:, None, None], rtol=1e-6)


def test_other_environments_carry_nothing_and_one_alone_is_not_shaped():
    env, params = envs.make("CartPole-v1")
    assert envs.batch(env, 2).reset(jax.random.key(0), params)[1].before is None
    env, params = envs.make(Steps(), shaped=1.0)
    _, state = env.reset_env(jax.random.key(0), params)
    reward = transition(env, jax.random.key(1), state, jnp.zeros(2, jnp.int32), params)[2]
    np.testing.assert_array_equal(reward, [1.0, 1.0])


class Small(Steps):
    """Shaped rewards whose sum over two frames is no int8."""

    way = np.int8((60, -1))

    def step_env(self, key, state, action, params):
        *rest, info = super().step_env(key, state, action, params)
        return *rest, {"shaped_reward": info["shaped_reward"].astype(jnp.int8)}


@pytest.mark.parametrize("task, added", [(Steps, [30.0, -3.0]), (Small, [180.0, -3.0])])
def test_repeated_actions_add_them_up(task, added):
    env, params = envs.make(task(), action_repeat=2)
    _, state = env.reset_env(jax.random.key(0), params)
    *_, info = transition(env, jax.random.key(1), state, jnp.zeros(2, jnp.int32), params)
    np.testing.assert_array_equal(info["shaped_reward"], added)


# --- training ---------------------------------------------------------------------------------


@struct.dataclass
class Learning:
    policy: Any
    env_state: envs.BatchState
    episodes: EpisodeStatistics
    eval_rng: jax.Array
    update: jax.Array


@struct.dataclass
class Config:
    total_timesteps: int = parts.static(5 * 8)
    num_evals: int = parts.static(2)
    num_eval_episodes: int = parts.static(2)
    eval_at_start: bool = parts.static(False)


def learner(config, env, env_params):
    """Steps two environments four times an update, and reports the sums of rewards."""
    batch = envs.batch(env, 2, 4)

    def init(rng):
        episodes = EpisodeStatistics.create(2, (2,))
        _, env_state = batch.reset(jax.random.clone(rng), env_params)
        return Learning(jnp.zeros(()), env_state, episodes, rng, jnp.zeros((), jnp.int32))

    def update(state):
        def step(env_state, key):
            action = jnp.zeros((2, 2), jnp.int32)
            after = batch.step(key, env_state, action, env_params)
            return after[1], (after[2], after[3] | after[4])

        key = jax.random.fold_in(jax.random.key(0), state.update)
        env_state = batch.refill(key, state.env_state, env_params)
        env_state, (rewards, done) = jax.lax.scan(step, env_state, jax.random.split(key, 4))
        episodes = state.episodes.update(rewards, done)
        state = state.replace(env_state=env_state, episodes=episodes, update=state.update + 1)
        return state, {"reward": rewards.mean()}

    def policy(state, observation, memory=None, rng=None, mask=None):
        return jnp.zeros(2, jnp.int32), memory

    return parts.Learner(init, update, policy, 8)


def test_returns_are_without_shaping_also_in_training():
    """An episode has 1 + 2 + 3, and shaped rewards of half of (10, -1) times that."""
    env, params = envs.make(Steps(), shaped=0.5, shaped_steps=1e9)
    with jax.debug_key_reuse(False):
        _, metrics = parts.program(learner, Config(), env, params)(jax.random.key(0))
    np.testing.assert_allclose(metrics["episode_return"], np.full((2, 2), 6.0), rtol=1e-5)
    np.testing.assert_array_equal(metrics["eval_return"], np.full((2, 2, 2), 6.0))
    np.testing.assert_allclose(metrics["episode_shaping"], [[30.0, -3.0]] * 2, rtol=1e-5)
    assert (metrics["reward"] > 2.0).all() and metrics["num_episodes"].tolist() == [8, 8]


def test_returns_without_episodes_are_minus_zero_under_jax_debug_nans(debug_nans):
    config = Config(num_eval_episodes=0, eval_at_start=True)
    train = parts.program(learner, config, *envs.make(Steps(), shaped=0.5))
    with jax.debug_key_reuse(False):
        _, metrics = train(jax.random.key(0), None, 0)
    for name in ("episode_return", "episode_shaping", "reward"):
        assert (metrics[name] == 0.0).all() and np.signbit(metrics[name]).all(), name


@pytest.mark.parametrize("module", [ippo_rnn, vdn, ppo_rnn, pqn_rnn])
def test_the_last_reward_that_a_network_sees_is_the_environments_own(module):
    """Evaluations have no shaping. The second step of an episode has reward 2 for both.

    Only the rewards are asked of the program, so XLA leaves out the gradients.
    """
    env = Steps() if module in (ippo_rnn, vdn) else Alone()
    config = module.Config(num_envs=2, num_steps=2, num_minibatches=1, total_timesteps=8)
    config = config.replace(cell="gru", previous_inputs=True, hidden_sizes=(4,), memory_size=4)
    learner = module.learner(config, *envs.make(env, shaped=0.5))
    update = jax.jit(lambda key: learner.update(learner.init(key))[0].memory.reward)
    rewards = update(jax.random.key(0))
    assert rewards.size >= 2
    np.testing.assert_allclose(rewards, 2.0, rtol=1e-6)
