"""PPO: formulas against plain NumPy, probe tasks, and the contract of the file."""

import math
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import ppo
from tests import probe as tasks
from tests.algorithms.cases import Case, assert_same, joined
from tests.algorithms.test_probes import play_actor_critic
from tests.conftest import compiled_as_for_users
from tests.probe import ProbeParams

ROOT = pathlib.Path(__file__).parents[2]
# Settings that are simple to compute by hand; tests set further flags.
PLAIN = dict(normalize_obs=False, normalize_reward=False, adam_eps=1e-5)
TINY = ppo.Config(
    **PLAIN,
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


def random_rollout(seed, shape=(17, 5)):
    rng = np.random.default_rng(seed)
    rewards, values, next_values = rng.normal(size=(3, *shape)).astype(np.float32)
    terminated, truncated = rng.random((2, *shape)) < 0.2
    return rewards, values, next_values, terminated, terminated | truncated


@pytest.mark.parametrize("seed", range(5))
def test_gae_is_the_plain_recursion(seed):
    rewards, values, next_values, terminated, done = random_rollout(seed)
    gamma, lam = 0.9, 0.8
    expected = np.zeros_like(rewards)
    for env in range(rewards.shape[1]):
        for start in range(len(rewards)):  # the definition: the sum of discounted errors
            weight = 1.0
            for t in range(start, len(rewards)):
                future = 0.0 if terminated[t, env] else gamma * next_values[t, env]
                error = rewards[t, env] + future - values[t, env]
                expected[start, env] += weight * error
                if done[t, env]:
                    break
                weight *= gamma * lam
    result = ppo.gae(rewards, values, next_values, terminated, done, gamma, lam)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_gae_agrees_with_rlax_without_truncation():
    import rlax

    rewards, values, next_values, terminated, _ = random_rollout(7)
    values = np.concatenate([values, next_values[-1:]])
    result = ppo.gae(rewards, values[:-1], values[1:], terminated, terminated, 0.9, 0.8)
    discounts = 0.9 * (1.0 - terminated)
    expected = jax.vmap(rlax.truncated_generalized_advantage_estimation, (1, 1, None, 1), 1)(
        jnp.array(rewards), jnp.array(discounts), 0.8, jnp.array(values)
    )
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_clipped_surrogate_agrees_with_rlax_and_numpy():
    import rlax

    rng = np.random.default_rng(0)
    log_ratio, advantages = rng.normal(size=(2, 200)).astype(np.float32)
    result = ppo.clipped_surrogate(log_ratio, advantages, 0.2)
    ratio = np.exp(log_ratio)
    objective = [min(r * a, min(max(r, 0.8), 1.2) * a) for r, a in zip(ratio, advantages)]
    np.testing.assert_allclose(result, -np.mean(objective), rtol=1e-4)
    expected = rlax.clipped_surrogate_pg_loss(jnp.array(ratio), jnp.array(advantages), 0.2)
    np.testing.assert_allclose(result, expected, rtol=1e-4)


def test_value_error_with_and_without_clipping():
    rng = np.random.default_rng(0)
    values, old, targets = rng.normal(size=(3, 300)).astype(np.float32)
    plain = 0.5 * np.mean((values - targets) ** 2)
    np.testing.assert_allclose(ppo.value_error(values, old, targets, 0.3, False), plain, rtol=1e-5)
    total = 0.0
    for v, o, t in zip(values, old, targets):
        kept = min(max(v, o - 0.3), o + 0.3)
        total += max((v - t) ** 2, (kept - t) ** 2)
    clipped = ppo.value_error(values, old, targets, 0.3, True)
    np.testing.assert_allclose(clipped, 0.5 * total / 300, rtol=1e-5)
    assert clipped > plain


def test_kl_estimate_is_a_mean_and_near_the_true_kl():
    old, new = np.array([0.1, 0.2, 0.7]), np.array([0.2, 0.2, 0.6])
    actions = np.random.default_rng(0).choice(3, 200_000, p=old)
    log_ratio = np.log(new / old)[actions]
    result = ppo.kl_estimate(jnp.array(log_ratio, jnp.float32))
    np.testing.assert_allclose(result, np.mean(np.exp(log_ratio) - 1 - log_ratio), rtol=1e-3)
    np.testing.assert_allclose(result, np.sum(old * np.log(old / new)), rtol=0.05)


def test_learning_rates_are_linear_and_reach_their_floor():
    config = ppo.Config(update_epochs=2, num_minibatches=4, learning_rate=0.5)
    rates = lambda update, epoch: ppo.learning_rates(config, 5, jnp.int32(update), epoch)
    run = np.concatenate([rates(update, epoch) for update in range(5) for epoch in range(2)])
    np.testing.assert_allclose(run, 0.5 * (1.0 - np.arange(40) / 40), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(rates(7, 0), np.zeros(4))
    constant = ppo.learning_rates(config.replace(anneal_lr=False), 5, jnp.int32(3), 1)
    np.testing.assert_array_equal(constant, 0.5)


def test_learning_rates_of_a_run_of_ten_to_the_ten_steps_do_not_wrap():
    config = ppo.Config(update_epochs=64, num_minibatches=64, learning_rate=1.0)
    updates = 10**10 // 16
    left = ppo.learning_rates(config, updates, jnp.int32(updates - updates // 4), 0)
    np.testing.assert_allclose(left, 0.25, rtol=1e-5)


# --- probe tasks ------------------------------------------------------------------------------

PROBE = ppo.Config(
    **PLAIN,
    total_timesteps=60 * 256,
    num_envs=16,
    num_steps=16,
    learning_rate=1e-2,
    gamma=0.9,
    hidden_sizes=(16,),
    num_evals=1,
    num_eval_episodes=0,
    eval_at_start=False,
    ent_coef=0.0,
)


# --- the contract -----------------------------------------------------------------------------

CASE = Case(
    module=ppo,
    tiny=TINY,
    metrics={
        "loss",
        "policy_loss",
        "value_loss",
        "entropy",
        "approx_kl",
        "clip_fraction",
        "grad_norm",
        "mean_value",
        "explained_variance",
        "epochs",
    },
    # The policy loss is a mean of terms around 1 that cancel, so its tolerance is absolute.
    pinned={
        "entropy": [0.693121, 0.693022, 0.693036],
        "grad_norm": [2.82692, 2.41528, 2.98484],
        "mean_value": [-0.122757, 0.0656199, 0.17411],
        "policy_loss": [-0.00134155, -0.000281095, 6.44531e-05],
        "value_loss": [8.9482, 6.36428, 10.0296],
    },
    refused=(
        (dict(num_minibatches=3), "num_minibatches=3 does not divide .* 16; 1, 2, 4, 8 would do"),
        (dict(num_minibatches=16), "one sample to a minibatch"),
        (dict(env_settings=(("gravitty", 1.0),)), "did you mean gravity"),
        (dict(env_settings=(("max_steps", 0),)), "max_steps=0"),
        (dict(env_settings=(("clip_action", True),)), "continuous actions"),
    ),
    exact=True,
    # Of many greedy steps, one is decided by rounding.
    swept=dict(clip_vloss=True, env_settings=(("max_steps_in_episode", 20),)),
    other={"adam_eps": 1e-2, "target_kl": 1e-9, "clip_eps": 1e-3},
    probe=PROBE,
    probes={"discrete": True, "continuous": True},
    played=play_actor_critic,
)


@pytest.mark.slow
def test_slices_may_be_of_any_length(trained):
    train = ppo.make_train(TINY)
    with compiled_as_for_users():
        state, first = train(jax.random.key(0), None, 1)
        state, second = train(None, state, 2)
    assert_same((state, joined(first, second)), trained)


def test_exactly_update_epochs_without_a_threshold(trained):
    np.testing.assert_array_equal(trained[1]["epochs"][1:], TINY.update_epochs)


def test_env_params_can_be_vmapped_and_metrics_have_raw_returns(probe, vmapped_keys):
    """Learned observations and rewards are divided by statistics, and metrics are not.

    Statistics are of the observations acted on, and of sums that end with the time limit, too.
    """
    config = TINY.replace(normalize_obs=True, normalize_reward=True, eval_at_start=False)

    def train(task, reward):
        params = ProbeParams(task=task, reward=reward)
        return ppo.make_train(config, probe, params)(jax.random.key(0))

    played = jnp.array([tasks.CONSTANT, tasks.CONSTANT, tasks.DELAYED, tasks.ENDLESS])
    state, metrics = jax.jit(jax.vmap(train))(played, jnp.array([50.0, -2.0, 1.0, 1.0]))
    expected = np.repeat([[50.0], [-2.0], [1.0], [10.0]], 3, axis=1)
    np.testing.assert_allclose(metrics["eval_return"][..., 0], expected)
    expected[3, 0] = np.nan  # 8 of the 10 steps until the time limit
    np.testing.assert_allclose(metrics["episode_return"], expected)
    np.testing.assert_array_equal(state.policy.obs_stats.count, 48.0)
    np.testing.assert_array_equal(state.reward_scale.stats.count, 48.0)
    # Two steps, from x = 0 to 1 to the end; and 4 steps of the third endless episode.
    np.testing.assert_allclose(state.policy.obs_stats.mean[2], 0.5, rtol=1e-5)
    sums = np.sum(config.gamma ** np.arange(4))
    np.testing.assert_allclose(state.reward_scale.discounted[3], sums, rtol=1e-5)


def test_kl_stops_epochs_and_infinity_never_does(monkeypatch):
    """Metrics are means over the epochs that ran, and ratios those of their minibatches."""
    seen, original = [], ppo.clipped_surrogate

    def spy(log_ratio, *args):
        jax.debug.callback(lambda x: seen.append(np.asarray(x, np.float64)), log_ratio)
        return original(log_ratio, *args)

    monkeypatch.setattr(ppo, "clipped_surrogate", spy)
    config = TINY.replace(num_eval_episodes=0, eval_at_start=False, update_epochs=5)
    config = config.replace(learning_rate=1e-2, clip_eps=0.02)
    _, metrics = ppo.make_train(config.replace(target_kl=1e-12))(jax.random.key(0))
    assert (np.asarray(metrics["epochs"]) < 5).all()
    np.testing.assert_allclose(metrics["entropy"], math.log(2.0), rtol=0.05)
    jax.effects_barrier()
    seen.clear()
    _, metrics = ppo.make_train(config)(jax.random.key(0))
    np.testing.assert_array_equal(metrics["epochs"], 5)
    jax.effects_barrier()
    ratio = np.exp(seen)
    np.testing.assert_allclose(metrics["approx_kl"].mean(), (ratio - 1.0 - seen).mean(), rtol=1e-2)
    clipped = (np.abs(ratio - 1.0) > 0.02).mean()
    np.testing.assert_allclose(metrics["clip_fraction"].mean(), clipped, rtol=1e-2)
    assert 0.1 < clipped < 0.9


def test_rollout_learning_starts_at_ratio_one():
    """Statistics do not change while a rollout is learned from: the first gradient step has KL
    0."""
    config = TINY.replace(normalize_obs=True, update_epochs=1, num_minibatches=1, num_evals=3)
    _, metrics = ppo.make_train(config)(jax.random.key(0))
    np.testing.assert_allclose(metrics["approx_kl"][1:], 0.0, atol=1e-10)


@pytest.mark.slow  # in every run: no file's program calls LAPACK (test_contract.py)
def test_sixteen_vmapped_seeds_do_not_hang():
    """Batched LAPACK calls would deadlock here (jaxlib 0.10 on a CPU)."""
    code = (
        "import jax; from algorithms import ppo\n"
        "config = ppo.Config(total_timesteps=1024, num_evals=1, num_eval_episodes=0)\n"
        "keys = jax.random.split(jax.random.key(0), 16)\n"
        "jax.block_until_ready(jax.jit(jax.vmap(ppo.make_train(config)))(keys))\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=180)
