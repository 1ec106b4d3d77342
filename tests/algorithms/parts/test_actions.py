"""Distributions over actions against distrax, integrals and counts."""

import dataclasses

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts, ppo
from envs.gymnax import spaces

RNG = np.random.default_rng(0)
SPACE = parts.ActionSpace(spaces.Box(-1.0, 1.0, (4,)))
OUTPUT, LOG_STD = RNG.normal(size=(2, 6, 4)).astype(np.float32)
NUMBERS, CHOICES = RNG.normal(size=(6, 4)).astype(np.float32), np.array([0, 1, 2, 3, 0, 1])


def assert_close(found, expected, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


# --- against distrax --------------------------------------------------------------------------


def test_a_categorical_is_distrax_s():
    mine, theirs = parts.Categorical(OUTPUT), distrax.Categorical(logits=OUTPUT)
    assert_close(mine.log_prob(CHOICES), theirs.log_prob(CHOICES))
    assert_close(mine.entropy(), theirs.entropy())
    assert_close(mine.probs, theirs.probs)
    np.testing.assert_array_equal(mine.mode(), theirs.mode())


def test_forbidden_actions_have_no_probability():
    mask = np.array([[1, 1, 0, 1], [0, 1, 0, 0]] * 3, bool)
    mine = parts.Categorical(OUTPUT, mask)
    for i, allowed in enumerate(mask):
        theirs = distrax.Categorical(logits=OUTPUT[i, allowed])
        assert_close(mine.probs[i, allowed], theirs.probs)
        assert_close(mine.entropy()[i], theirs.entropy())
        found, place = mine.log_prob(CHOICES)[i], np.flatnonzero(allowed) == CHOICES[i]
        assert_close(found, theirs.logits[place][0] if place.any() else -1e9, rtol=1e-5)
        assert mine.mode()[i] == np.flatnonzero(allowed)[theirs.mode()]
    assert (np.asarray(mine.probs)[~mask] == 0.0).all()
    keys = jax.random.split(jax.random.key(1), 500)
    drawn = np.asarray(jax.vmap(lambda key: mine.sample(seed=key))(keys))
    assert all(mask[i, drawn[:, i]].all() for i in range(6)) and len(set(drawn[:, 0])) == 3


@pytest.mark.parametrize("shape", [(6, 4), (4,)])
def test_a_gaussian_is_distrax_s(shape):
    log_std = LOG_STD if shape == (6, 4) else LOG_STD[0]
    mine = parts.Gaussian(OUTPUT, log_std)
    theirs = distrax.MultivariateNormalDiag(OUTPUT, jnp.exp(jnp.broadcast_to(log_std, (6, 4))))
    assert_close(mine.log_prob(NUMBERS), theirs.log_prob(NUMBERS))
    assert_close(mine.entropy(), theirs.entropy())
    np.testing.assert_array_equal(mine.mode(), theirs.mode())


def test_dimensions_that_do_not_count_change_nothing():
    mask = np.arange(4) < np.array([1, 2, 3, 4, 4, 1])[:, None]
    mine = parts.Gaussian(OUTPUT, LOG_STD, mask)
    for i, counts in enumerate(mask):
        theirs = distrax.MultivariateNormalDiag(OUTPUT[i, counts], np.exp(LOG_STD[i, counts]))
        assert_close(mine.log_prob(NUMBERS)[i], theirs.log_prob(NUMBERS[i, counts]))
        assert_close(mine.entropy()[i], theirs.entropy())
    noise = np.where(mask, 0.0, 9.0)
    other = parts.Gaussian(OUTPUT + noise, LOG_STD - noise, mask)
    np.testing.assert_array_equal(mine.log_prob(NUMBERS), other.log_prob(NUMBERS + noise))
    np.testing.assert_array_equal(mine.entropy(), other.entropy())


def test_a_tanh_gaussian_is_distrax_s():
    mine = parts.TanhGaussian(0.5 * OUTPUT, 0.5 * LOG_STD)
    normal = distrax.MultivariateNormalDiag(0.5 * OUTPUT, np.exp(0.5 * LOG_STD))
    theirs = distrax.Transformed(normal, distrax.Block(distrax.Tanh(), 1))
    action, log_prob = mine.sample_and_log_prob_from(0.5 * NUMBERS)
    expected = np.tanh(0.5 * OUTPUT + np.exp(0.5 * LOG_STD) * 0.5 * NUMBERS)
    assert_close(action, expected)
    assert_close(log_prob, theirs.log_prob(action), rtol=1e-3, atol=1e-3)
    assert_close(mine.log_prob(action), theirs.log_prob(action), rtol=1e-4, atol=1e-4)
    assert_close(mine.mode(), np.tanh(0.5 * OUTPUT))
    with pytest.raises(NotImplementedError, match="no entropy in closed form: use -log_prob"):
        mine.entropy()


# --- densities, and samples -------------------------------------------------------------------


@pytest.mark.parametrize("mean, log_std", [(0.0, 0.0), (1.5, -1.0), (-0.7, 0.5)])
def test_the_density_of_squashed_actions_integrates_to_one(mean, log_std):
    """The integral is over actions, each of which comes from one normal number."""
    noise = jnp.linspace(-9.0, 9.0, 20_001)[:, None]
    actions = parts.TanhGaussian(jnp.full(noise.shape, mean), jnp.full(noise.shape, log_std))
    x, log_prob = (np.asarray(x, np.float64) for x in actions.sample_and_log_prob_from(noise))
    assert np.trapezoid(np.exp(log_prob), x[:, 0]) == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("mean", [-60.0, 60.0])
def test_saturated_actions_have_finite_numbers(mean):
    def log_prob(mean):
        actions = parts.TanhGaussian(jnp.full((1, 1), mean), jnp.zeros((1, 1)))
        return actions.sample_and_log_prob_from(jnp.ones((1, 1)))[1][0]

    value, slope = jax.value_and_grad(log_prob)(mean)
    assert np.isfinite(value) and slope == pytest.approx(2.0 * np.sign(mean), rel=1e-5)


def test_the_slope_of_tanh_stays_finite():
    x = np.linspace(-5.0, 5.0, 101)
    expected = np.log(1.0 - np.tanh(x) ** 2)
    np.testing.assert_allclose(parts.log_tanh_slope(jnp.array(x)), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        parts.log_tanh_slope(jnp.array([-60.0, 60.0])), 2 * np.log(2.0) - 120.0
    )


def test_samples_follow_the_distribution():
    many = lambda x: jnp.broadcast_to(jnp.array(x), (20_000, len(x)))
    choices = parts.Categorical(many(np.log([0.1, 0.2, 0.7])))
    gaussian, spread = (kind(many([1.0]), many(np.log([0.5]))) for kind in CONTINUOUS)
    for i, draw in enumerate((lambda x, n: x.sample(seed=n), lambda x, n: x.sample_from(n))):
        key, normal = jax.random.split(jax.random.key(i))
        noise = jax.random.gumbel(key, (20_000, 3)) if i else key
        actions = draw(choices, noise)
        np.testing.assert_allclose(np.bincount(actions) / 20_000, [0.1, 0.2, 0.7], atol=0.015)
        noise = jax.random.normal(normal, (20_000, 1)) if i else normal
        actions = draw(gaussian, noise)
        np.testing.assert_allclose([actions.mean(), actions.std()], [1.0, 0.5], atol=0.015)
        squashed = draw(spread, noise if i else jax.random.clone(noise))
        np.testing.assert_allclose(squashed, np.tanh(actions), rtol=1e-5)


CONTINUOUS = parts.Gaussian, parts.TanhGaussian


def test_ours_take_the_noise_and_others_a_key_of_their_own():
    mine, key = parts.Gaussian(OUTPUT, LOG_STD), jax.random.key(3)
    np.testing.assert_array_equal(SPACE.sample(mine, NUMBERS, key), mine.sample_from(NUMBERS))
    theirs = distrax.MultivariateNormalDiag(OUTPUT, np.exp(LOG_STD))
    found = SPACE.sample(theirs, NUMBERS, jax.random.clone(key))
    assert found.shape == (6, 4)
    # The key itself is for the environment's step.
    assert not np.allclose(found, theirs.sample(seed=jax.random.clone(key)))


# --- a network of a user's --------------------------------------------------------------------


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_ppo_trains_with_a_network_that_returns_distrax_s_distributions(env, monkeypatch):
    """With the same losses as ours for the same actions; here samples differ, and both learn."""

    class ActorCritic(ppo.ActorCritic):
        def actor(self, x, mask=None):
            mine = super().actor(x, mask)
            if isinstance(mine, parts.Categorical):
                return distrax.Categorical(logits=mine.allowed)
            return distrax.MultivariateNormalDiag(mine.mean, nn.softplus(mine.log_std) + 0.0)

    monkeypatch.setattr(ppo, "ActorCritic", ActorCritic)
    config = ppo.Config(env=env, num_envs=4, num_steps=16, total_timesteps=4 * 16 * 8)
    config = dataclasses.replace(config, num_evals=2, num_eval_episodes=1, hidden_sizes=(8,))
    train = ppo.make_train(config)
    start = parts.first_state(train, jax.random.key(0))
    state, metrics = train(None, start)
    for name in ("policy_loss", "entropy", "approx_kl", "eval_return"):
        assert np.isfinite(metrics[name]).all(), name
    assert (metrics["approx_kl"] > 0.0).all() and (metrics["entropy"] > 0.1).all()
    moved = jax.tree.map(
        lambda x, y: float(jnp.abs(x - y).max()), start.policy.params, state.policy.params
    )
    assert min(jax.tree.leaves(moved)) > 0.0
