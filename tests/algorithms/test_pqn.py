"""PQN: formulas against plain NumPy and rlax, probe tasks, and the contract of the file."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rlax
from flax import linen as nn

from algorithms import ppo, pqn
from tests import probe as tasks
from tests.algorithms.contract import *  # noqa: F403
from tests.probe import ProbeParams

MODULE = pqn
TINY = pqn.Config(
    total_timesteps=3 * 16,
    num_envs=2,
    num_steps=8,
    num_minibatches=2,
    update_epochs=2,
    hidden_sizes=(8,),
    num_evals=3,
    num_eval_episodes=2,
)


# --- formulas ---------------------------------------------------------------------------------


def random_rollout(seed, shape):
    rng = np.random.default_rng(seed)
    rewards, next_values = rng.normal(size=(2, *shape)).astype(np.float32)
    terminated, truncated = rng.random((2, *shape)) < 0.15
    return rewards, next_values, terminated, terminated | truncated


def n_step_return(rewards, next_values, terminated, start, n, gamma):
    """Of one environment: n rewards, then the value of what the last of these actions led to."""
    total = sum(gamma**k * rewards[start + k] for k in range(n))
    last = start + n - 1
    return total + (0.0 if terminated[last] else gamma**n * next_values[last])


@pytest.mark.parametrize("seed, shape", [(0, (17, 5)), (1, (17, 5)), (2, (32, 3)), (3, (1, 4))])
def test_targets_are_the_weighted_n_step_returns(seed, shape):
    """From the definition: (1 - lambda) lambda^(n - 1) for the n-step return, and what is left of
    the weight for the longest one within the episode and the rollout."""
    rewards, next_values, terminated, done = random_rollout(seed, shape)
    gamma, lam = 0.9, 0.7
    expected = np.zeros(shape)
    for env in range(shape[1]):
        column = rewards[:, env], next_values[:, env], terminated[:, env]
        for start in range(shape[0]):
            ends = np.flatnonzero(done[start:, env])
            longest = ends[0] + 1 if len(ends) else shape[0] - start
            for n in range(1, longest + 1):
                weight = lam ** (n - 1) * (1.0 if n == longest else 1.0 - lam)
                expected[start, env] += weight * n_step_return(*column, start, n, gamma)
    result = pqn.q_lambda_targets(rewards, next_values, terminated, done, gamma, lam)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_targets_agree_with_rlax_without_truncation():
    rewards, next_values, terminated, _ = random_rollout(7, (20, 4))
    result = pqn.q_lambda_targets(rewards, next_values, terminated, terminated, 0.9, 0.8)
    expected = jax.vmap(rlax.lambda_returns, (1, 1, 1, None), 1)(
        jnp.array(rewards), 0.9 * (1.0 - terminated), jnp.array(next_values), 0.8
    )
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_targets_without_a_trace_look_one_step_ahead():
    rewards, next_values, terminated, done = random_rollout(8, (9, 3))
    result = pqn.q_lambda_targets(rewards, next_values, terminated, done, 0.9, 0.0)
    np.testing.assert_allclose(result, rewards + 0.9 * ~terminated * next_values, rtol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 33])
def test_backward_sums_are_the_recursion(length):
    rng = np.random.default_rng(length)
    x, decays = rng.normal(size=(2, length, 3)).astype(np.float32)
    expected, y = np.zeros_like(x), 0.0
    for t in reversed(range(length)):
        expected[t] = y = x[t] + (decays[t] * y if t + 1 < length else 0.0)
    np.testing.assert_allclose(pqn.backward_sums(x, decays), expected, rtol=1e-4, atol=1e-5)


def test_epsilon_falls_from_start_to_end_and_stays():
    shares = jnp.array([0.0, 0.1, 0.2, 0.4, 1.0])
    config = pqn.Config(eps_start=0.8, eps_end=0.05, exploration_fraction=0.4)
    at = lambda exploration: pqn.epsilon_at(config.replace(exploration=exploration), shares)
    np.testing.assert_allclose(at("linear"), [0.8, 0.6125, 0.425, 0.05, 0.05], rtol=1e-5)
    np.testing.assert_allclose(at("exponential"), [0.8, 0.4, 0.2, 0.05, 0.05], rtol=1e-5)
    assert at("constant") == 0.05
    to_zero = config.replace(exploration="exponential", eps_end=0.0)
    np.testing.assert_allclose(pqn.epsilon_at(to_zero, shares), [0.8, 0.0, 0.0, 0.0, 0.0])
    of_zero = config.replace(exploration="exponential", eps_start=0.0, eps_end=0.0)
    np.testing.assert_array_equal(pqn.epsilon_at(of_zero, shares), 0.0)


def test_actions_are_random_as_often_as_epsilon_says():
    noise = pqn.draw_exploration(jax.random.key(0), (200, 100), 4)
    assert noise.uniform.shape == noise.action.shape == (200, 100)
    actions = pqn.explore(jnp.full((200, 100), 2), noise, 0.2)
    shares = np.bincount(np.ravel(actions), minlength=4) / 20_000
    np.testing.assert_allclose(shares, [0.05, 0.05, 0.85, 0.05], atol=0.01)
    np.testing.assert_array_equal(pqn.explore(2, noise, 0.0), 2)


def test_layer_norm_is_flax_s():
    x = 3.0 * jax.random.normal(jax.random.key(0), (5, 16)) + 1.0
    params = {"params": {"scale": jnp.linspace(0.5, 2.0, 16), "bias": jnp.linspace(-1.0, 1.0, 16)}}
    results = [norm.apply(params, x) for norm in (pqn.LayerNorm(), nn.LayerNorm())]
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)


def test_patches_times_a_matrix_are_a_convolution():
    config = pqn.Config(hidden_sizes=(), layer_norm=False)
    network = pqn.QNetwork(config, 2)
    images = jax.random.normal(jax.random.key(0), (2, 6, 5, 3))
    params = network.init(jax.random.key(1), images)
    kernel = params["params"]["Dense_0"]["kernel"].reshape(3, 3, 3, 16)
    dimensions = ("NHWC", "HWIO", "NHWC")
    features = jax.lax.conv_general_dilated(
        images, kernel, (1, 1), "VALID", dimension_numbers=dimensions
    )
    expected = jax.nn.relu(features).reshape(2, -1) @ params["params"]["Dense_1"]["kernel"]
    np.testing.assert_allclose(network.apply(params, images), expected, rtol=1e-4, atol=1e-4)


def test_permutations_are_those_tested_with_ppo():
    assert inspect.getsource(pqn.permutations) == inspect.getsource(ppo.permutations)


# --- probe tasks ------------------------------------------------------------------------------

PROBE = pqn.Config(
    total_timesteps=100 * 256,
    num_envs=16,
    num_steps=16,
    num_minibatches=4,
    learning_rate=1e-2,
    gamma=0.9,
    reward_scale=1.0,
    eps_end=0.5,
    hidden_sizes=(16,),
    activation="tanh",  # relu would be dead where x = 0
    num_evals=1,
    num_eval_episodes=0,
    eval_at_start=False,
)
SEEDS = 3


@pytest.fixture(scope="module")
def probed():
    """All tasks and seeds in one program: the values of both actions at x = -1, 0, 1, and the
    policy's actions there."""
    env = tasks.Probe()

    def train(task, q_lambda, key):
        params = ProbeParams(task=task, max_steps_in_episode=5)
        config = PROBE.replace(q_lambda=q_lambda)
        state, _ = pqn.make_train(config, env, params)(key)
        policy = pqn.make_policy(PROBE, env, params)
        x = jnp.array([[-1.0], [0.0], [1.0]])
        values = pqn.QNetwork(PROBE, 2).apply(state.policy.params, x)
        return values, jax.vmap(lambda x: policy(state, x)[0])(x)

    keys = jax.random.split(jax.random.key(0), SEEDS)
    over_seeds = jax.vmap(train, (None, None, 0))
    # A trace follows the actions taken, random ones too; where they matter later on, none.
    q_lambdas = jnp.full(8, 0.5).at[tasks.ARM].set(0.0)
    with jax.debug_key_reuse(False):  # see conftest.vmapped_keys
        over_tasks = jax.jit(jax.vmap(over_seeds, (0, 0, None)))
        values, actions = over_tasks(jnp.arange(8), q_lambdas, keys)
    return np.asarray(values), np.asarray(actions)  # (8, SEEDS, 3, 2), (8, SEEDS, 3)


def test_probe_values(probed):
    values, _ = probed
    np.testing.assert_allclose(values[tasks.CONSTANT, :, 1], 1.0, atol=0.05)
    for x, expected in ((0, -1.0), (2, 1.0)):
        np.testing.assert_allclose(values[tasks.OBSERVATION, :, x], expected, atol=0.1)
    for x, expected in ((1, 0.9), (2, 1.0)):
        np.testing.assert_allclose(values[tasks.DELAYED, :, x], expected, atol=0.1)
    np.testing.assert_allclose(values[tasks.ACTION, :, 1], [[0.0, 1.0]] * SEEDS, atol=0.1)


def test_probe_endless_task_bootstraps_at_the_time_limit(probed):
    values, _ = probed
    np.testing.assert_allclose(values[tasks.ENDLESS, :, 1], 1.0 / (1.0 - 0.9), rtol=0.05)


def test_probe_swing_bootstraps_from_final_observations_and_cuts_traces(probed):
    values, _ = probed
    for x, expected in ((0, -1.0 / 1.9), (2, 1.0 / 1.9)):
        np.testing.assert_allclose(values[tasks.SWING, :, x], expected, atol=0.05)


def test_probe_values_go_on_with_the_better_action(probed):
    values, _ = probed
    np.testing.assert_allclose(values[tasks.ARM, :, 1], [[9.0, 10.0]] * SEEDS, rtol=0.05)


def test_probe_actions(probed):
    _, actions = probed
    np.testing.assert_array_equal(actions[tasks.ARM, :, 1], 1)
    np.testing.assert_array_equal(actions[tasks.ACTION, :, 1], 1)
    np.testing.assert_array_equal(actions[tasks.BOTH][:, [0, 2]], [[0, 1]] * SEEDS)


# --- the contract -----------------------------------------------------------------------------

METRICS = {"loss", "grad_norm", "mean_value", "epsilon"}
OTHER = {"adam_eps": 1e-2, "max_grad_norm": 1e-2}
REFUSED = [
    (dict(num_minibatches=3), "num_minibatches=3 does not divide .* 16; 1, 2, 4, 8 do"),
    (dict(optimizer="sgd"), "optimizer='sgd': give radam or adam"),
    (dict(exploration="cosine"), "exploration='cosine': give constant or linear or exponential"),
    (dict(env="Pendulum-v1"), "has actions .*; pqn takes Discrete"),
]
PINNED = {
    "loss": [0.963239, 0.515737, 0.209448],
    "grad_norm": [9.8991, 5.99492, 3.34839],
    "mean_value": [1.7474, 1.45039, 1.12985],
}


def test_epsilon_falls_over_a_run(trained):
    """Of 3 updates the second begins after a third of the run, the last one after two."""
    expected = [1.0, 1.0 - 0.8 * (1 / 3) / 0.5, 0.2]
    np.testing.assert_allclose(trained[1]["epsilon"][1:], expected, rtol=1e-5)


class Images(tasks.Probe):
    """The probe whose observation x is an image (4, 3, 2) full of 10 x + 5."""

    def reset_env(self, key, params):
        x, state = super().reset_env(key, params)
        return self.paint(x), state

    def step_env(self, key, state, action, params):
        x, *rest = super().step_env(key, state, action, params)
        return self.paint(x), *rest

    def paint(self, x):
        return jnp.broadcast_to(10.0 * x + 5.0, (4, 3, 2))

    def observation_space(self, params):
        return tasks.spaces.Box(-5.0, 15.0, (4, 3, 2))


def test_other_settings_learn_too_from_images():
    """Adam, no layer norm, normalised observations, rewards out of all proportion."""
    config = PROBE.replace(
        total_timesteps=30 * 256,
        optimizer="adam",
        exploration="exponential",
        layer_norm=False,
        conv_features=4,
        normalize_obs=True,
        reward_scale=0.02,
    )
    env, params = Images(), ProbeParams(task=tasks.BOTH, reward=50.0)
    state, metrics = pqn.make_train(config, env, params)(jax.random.key(0))
    assert 30.0 < metrics["episode_return"][-1] < 45.0  # raw, and with many a random action
    stats = state.policy.obs_stats
    assert float(stats.count) == 30 * 256
    np.testing.assert_allclose(stats.mean, 5.0, atol=0.5)
    np.testing.assert_allclose(stats.var, 100.0, rtol=0.01)
    policy = pqn.make_policy(config, env, params)
    image = env.paint(jnp.array([1.0]))
    values = pqn.QNetwork(config, 2).apply(state.policy.params, stats.normalize(image[None]))
    np.testing.assert_allclose(values, [[0.0, 1.0]], atol=0.1)
    assert policy(state, image)[0] == 1
    keys = jax.random.split(jax.random.key(1), 1000)
    actions = jax.vmap(lambda key: policy(state, image, None, key)[0])(keys)
    np.testing.assert_allclose(actions.mean(), 1.0 - 0.5 * config.eps_end, atol=0.05)


def test_gradients_are_clipped_by_their_global_norm():
    """Rectified Adam begins without dividing by the spread, so a step is as long as its gradient;
    clipped one by one, the elements together would be longer."""
    train = pqn.make_train(TINY.replace(max_grad_norm=1e-3, learning_rate=1.0))
    before, _ = train(jax.random.key(0), None, 0)
    after, metrics = train(None, before, 1)
    moved = optax.tree.norm(jax.tree.map(jnp.subtract, before.policy.params, after.policy.params))
    assert metrics["grad_norm"][0] > 0.1  # before clipping
    assert 2e-3 < moved < 4.001e-3  # of 4 steps
