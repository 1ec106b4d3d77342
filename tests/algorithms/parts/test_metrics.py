"""Weighted means, and how well values predict their targets, against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts


@pytest.fixture(scope="module")
def samples():
    """Values, targets and weights, (50,) each."""
    rng = np.random.default_rng(0)
    values, targets = rng.normal(size=(2, 50)).astype(np.float32)
    return values, targets, (rng.random(50) < 0.6).astype(np.float32)


def test_means_leave_out_samples_without_weight(samples):
    values, _, weights = samples
    kept = values[weights > 0]
    np.testing.assert_allclose(parts.mean(values, weights), kept.mean(), rtol=1e-5)
    np.testing.assert_allclose(parts.mean(values, weights > 0), kept.mean(), rtol=1e-5)
    assert parts.mean(values, 0.0 * weights) == 0.0


@pytest.mark.parametrize("weighted", [False, True])
def test_explained_variance_is_the_share_that_values_leave_no_error_of(samples, weighted):
    values, targets, weights = samples
    weights = weights if weighted else None
    there = weights > 0 if weighted else np.ones(50, bool)
    share, weight = parts.explained_variance(values, targets, weights)
    expected = 1.0 - np.var(targets[there] - values[there]) / np.var(targets[there])
    np.testing.assert_allclose(share, expected, rtol=1e-4)
    assert weight == 1
    assert parts.explained_variance(targets, targets, weights) == (1.0, True)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("same", [0.0, 0.1, -1e4])
def test_targets_that_do_not_differ_say_nothing(samples, same, weighted):
    values, targets, weights = samples
    same = np.where(weights > 0, np.float32(same), targets) if weighted else jnp.full(50, same)
    found = parts.explained_variance(values, same, weights if weighted else None)
    assert found == (0.0, False)
