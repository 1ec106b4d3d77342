"""REINFORCE: formulas against plain NumPy and rlax, probe tasks, and the contract of the file."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts, reinforce
from tests.algorithms.cases import Case
from tests.algorithms.test_probes import play_actor_critic

TINY = reinforce.Config(
    total_timesteps=3 * 16,
    num_envs=2,
    num_steps=8,
    adam_eps=1e-5,
    hidden_sizes=(8,),
    normalize_reward=True,
    num_evals=3,
    num_eval_episodes=2,
)


# --- formulas ---------------------------------------------------------------------------------


def random_rollout(seed, shape):
    rng = np.random.default_rng(seed)
    rewards, next_values = rng.normal(size=(2, *shape)).astype(np.float32)
    terminated, truncated = rng.random((2, *shape)) < 0.15
    return rewards, next_values, terminated, terminated | truncated


@pytest.mark.parametrize("lam", [0.7, 1.0])
@pytest.mark.parametrize("seed, shape", [(0, (17, 5)), (1, (32, 3)), (2, (1, 4))])
def test_lambda_returns_are_the_weighted_n_step_returns(seed, shape, lam):
    """The definition: weight (1 - lambda) lambda^(n - 1) for the n-step return.

    The longest return within the episode and the rollout has the remaining weight.
    """
    rewards, next_values, terminated, done = random_rollout(seed, shape)
    gamma = 0.9
    expected = np.zeros(shape)
    for env in range(shape[1]):
        for start in range(shape[0]):
            n, left, total, discount = start, 1.0, 0.0, 1.0
            while left:
                total += discount * rewards[n, env]
                discount *= gamma
                longest = done[n, env] or n + 1 == shape[0]
                weight = left if longest else (1.0 - lam) * left
                value = 0.0 if terminated[n, env] else next_values[n, env]
                expected[start, env] += weight * (total + discount * value)
                left = 0.0 if longest else left - weight
                n += 1
    result = reinforce.lambda_returns(rewards, next_values, terminated, done, gamma, lam)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_lambda_returns_agree_with_rlax_without_truncation():
    import rlax

    rewards, next_values, terminated, _ = random_rollout(7, (20, 4))
    result = reinforce.lambda_returns(rewards, next_values, terminated, terminated, 0.9, 0.8)
    expected = jax.vmap(rlax.lambda_returns, (1, 1, 1, None), 1)(
        jnp.array(rewards), 0.9 * (1.0 - terminated), jnp.array(next_values), 0.8
    )
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_the_policy_gradient_is_the_sum_from_its_definition():
    """For logits it is advantage * (one_hot(action) - probabilities), and the loss has its
    negative."""
    rng = np.random.default_rng(0)
    logits, advantages = rng.normal(size=(6, 3)), rng.normal(size=6)
    action = np.array([0, 1, 2, 2, 1, 0])
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    climb = advantages[:, None] * (np.eye(3)[action] - probabilities) / 6

    def loss(logits):
        log_prob = parts.Categorical(logits).log_prob(jnp.array(action))
        return reinforce.policy_gradient_loss(log_prob, jnp.array(advantages, jnp.float32))

    result = jax.grad(loss)(jnp.array(logits, jnp.float32))
    np.testing.assert_allclose(result, -climb, rtol=1e-4, atol=1e-6)


def test_the_policy_gradient_climbs_the_expected_return():
    """Averaged over actions, it equals finite differences of a softmax policy's return."""
    logits, returns = jnp.array([0.3, -0.5, 1.0]), jnp.array([1.0, -2.0, 0.5])
    actions = jax.random.categorical(jax.random.key(0), logits, shape=(200_000,))

    def loss(logits):
        log_prob = jax.nn.log_softmax(logits)[actions]
        return reinforce.policy_gradient_loss(log_prob, returns[actions] - 0.7)

    expected_return = lambda logits: float(jax.nn.softmax(logits) @ returns)
    slopes = [
        (expected_return(logits + step) - expected_return(logits - step)) / 2e-2
        for step in 1e-2 * jnp.eye(3)
    ]
    np.testing.assert_allclose(-jax.grad(loss)(logits), slopes, atol=0.01)


def test_learning_rates_are_linear_reach_their_floor_and_never_wrap():
    config, updates = reinforce.Config(learning_rate=0.5), 2**31 - 1
    rate = lambda update, config=config: reinforce.annealed_rate(config, updates, update)
    for share in (0.0, 0.25, 0.75, 1.0):
        update = jnp.int32(share * updates)
        np.testing.assert_allclose(rate(update), 0.5 * (1.0 - share), rtol=1e-5)
        assert rate(update, config.replace(anneal_lr=False)) == 0.5
    np.testing.assert_array_equal(reinforce.annealed_rate(config, 5, jnp.int32(7)), 0.0)


# --- probe tasks ------------------------------------------------------------------------------

PROBE = reinforce.Config(
    total_timesteps=200 * 128,
    num_envs=16,
    num_steps=8,
    learning_rate=1e-2,
    gamma=0.9,
    gae_lambda=0.8,
    ent_coef=0.0,
    hidden_sizes=(16,),
    normalize_reward=False,
    num_evals=1,
    num_eval_episodes=0,
    eval_at_start=False,
)


# --- the contract -----------------------------------------------------------------------------

CASE = Case(
    module=reinforce,
    tiny=TINY,
    metrics={
        "loss",
        "policy_loss",
        "value_loss",
        "entropy",
        "grad_norm",
        "mean_value",
        "explained_variance",
    },
    pinned={
        "value_loss": [10.8686, 1.64659, 0.695037],
        "grad_norm": [3.20616, 1.18361, 0.797533],
        "mean_value": [-0.0188294, 0.00173161, -0.019008],
        "entropy": [0.693147, 0.693099, 0.69301],
    },
    refused=((dict(num_envs=1, num_steps=1), "one sample to a rollout"),),
    other={"adam_eps": 1e-2, "max_grad_norm": 1e-2},
    probe=PROBE,
    probes={"discrete": True, "continuous": True},
    played=play_actor_critic,
    num_probes=8,
)
