"""Two-hot coding against plain NumPy in 64 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts


def plain_bins(number, limit):
    x = np.linspace(-limit, limit, number)
    return np.sign(x) * np.expm1(np.abs(x))


def plain_encode(bins, x):
    """Linear weights of the two bins beside each number."""
    weights = np.zeros((len(x), len(bins)))
    for row, value in zip(weights, np.clip(x, bins[0], bins[-1])):
        right = np.clip(np.searchsorted(bins, value), 1, len(bins) - 1)
        share = (value - bins[right - 1]) / (bins[right] - bins[right - 1])
        row[right - 1 : right + 1] = 1.0 - share, share
    return weights


def test_symlog_and_symexp_are_inverse_and_smooth_at_zero():
    x = np.concatenate([-np.logspace(-4, 6, 40), [0.0], np.logspace(-4, 6, 40)]).astype(np.float32)
    expected = np.sign(x) * np.log1p(np.abs(x.astype(float)))
    np.testing.assert_allclose(parts.symlog(x), expected, rtol=1e-5)
    np.testing.assert_allclose(parts.symexp(parts.symlog(x)), x, rtol=1e-4)
    for function in (parts.symlog, parts.symexp):
        slopes = jax.vmap(jax.grad(function))(jnp.array([-1e-6, 1e-6]))
        np.testing.assert_allclose(slopes, 1.0, rtol=1e-4)
        assert np.isfinite(jax.grad(function)(0.0))


@pytest.mark.parametrize(("number", "limit"), [(255, 20), (63, 20), (41, 5)])
def test_bins_are_symexp_spaced_and_exactly_symmetric(number, limit):
    bins = parts.Bins(number, limit).values
    np.testing.assert_allclose(bins, plain_bins(number, limit), rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(bins, -bins[::-1])
    assert bins[number // 2] == 0.0 and (np.diff(bins) > 0.0).all()
    np.testing.assert_allclose(bins[-1], np.expm1(limit), rtol=1e-6)


def test_codes_are_those_of_plain_numpy():
    """Numbers between bins, on them, and beyond the ends."""
    bins = parts.Bins(41, 8)
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=50) * 100.0, bins.values, [-1e5, 1e5, 0.0, 1e-3]])
    x = x.astype(np.float32)
    weights = np.asarray(bins.encode(x))
    exact = plain_encode(bins.values.astype(float), x.astype(float))
    np.testing.assert_allclose(weights, exact, atol=2e-5)
    np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-6)
    assert ((weights > 0).sum(-1) <= 2).all()
    means = (weights * bins.values.astype(float)).sum(-1)
    np.testing.assert_allclose(means, np.clip(x, bins.values[0], bins.values[-1]), 1e-5, 1e-5)
    with np.errstate(divide="ignore"):
        logits = np.log(np.maximum(exact, 1e-30)).astype(np.float32)
    np.testing.assert_allclose(bins.mean(logits), means, rtol=1e-4, atol=1e-4)


def test_the_mean_of_equal_probabilities_is_exactly_zero(vmapped_keys):
    """However it is compiled; in sum_i p_i b_i the outer bins leave errors of about 1."""
    bins = parts.Bins(255, 20)
    logits = jnp.zeros((5, 255))
    for mean in (bins.mean, jax.jit(bins.mean), jax.vmap(bins.mean), jax.jit(jax.vmap(bins.mean))):
        np.testing.assert_array_equal(mean(logits), 0.0)


def test_means_are_exact_beside_bins_of_many_orders_of_magnitude():
    bins = parts.Bins(255, 20)
    rng = np.random.default_rng(0)
    logits = (1e-4 * rng.normal(size=(100, 255))).astype(np.float32)
    logits[:, 255 // 2] += 40.0  # nearly all of the probability is in the middle
    logits[:, 255 // 2 + 1] += 38.0
    p = np.exp(logits.astype(float) - logits.max(-1, keepdims=True))
    expected = (p * plain_bins(255, 20)).sum(-1) / p.sum(-1)
    np.testing.assert_allclose(jax.jit(bins.mean)(logits), expected, rtol=1e-4, atol=1e-6)


def test_the_cross_entropy_and_its_gradient():
    """Its gradient is softmax(logits) - weights."""
    bins = parts.Bins(41, 8)
    rng = np.random.default_rng(0)
    logits, x = rng.normal(size=(7, 41)).astype(np.float32), 20.0 * rng.normal(size=7)
    x = x.astype(np.float32)
    p = np.exp(logits.astype(float))
    p /= p.sum(-1, keepdims=True)
    weights = plain_encode(bins.values.astype(float), x)
    found = jax.jit(bins.cross_entropy)(logits, x)
    np.testing.assert_allclose(found, -(weights * np.log(p)).sum(-1), rtol=1e-5)
    grad = jax.jit(jax.grad(lambda logits: bins.cross_entropy(logits, x).sum()))(logits)
    np.testing.assert_allclose(grad, p - weights, atol=1e-5)
