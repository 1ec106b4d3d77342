"""Random orders: each is a permutation, and all are equally likely."""

import math

import jax
import numpy as np
import pytest

from algorithms import parts


@pytest.mark.parametrize("size", [1, 7, 64, 96, 512, 97 * 2, 1000])
def test_permutations_are_permutations_and_differ(size):
    draw = jax.jit(parts.permutations, static_argnums=(1, 2))
    orders = np.asarray(draw(jax.random.key(0), 3, size))
    np.testing.assert_array_equal(np.sort(orders), np.tile(np.arange(size), (3, 1)))
    if size > 10:
        assert (orders[0] != orders[1]).mean() > 0.8
        assert (orders[0] != np.arange(size)).mean() > 0.8


def test_permutations_spread_every_sample_evenly():
    """Chi-squared tests of where each of 64 samples lands, and of which one lands next to which."""
    keys = jax.random.split(jax.random.key(1), 20)
    draw = jax.jit(lambda key: parts.permutations(key, 320, 64))
    orders = np.concatenate([draw(key) for key in keys])
    landed = np.zeros((64, 64))
    np.add.at(landed, (np.arange(64)[None], orders), 1)
    expected = len(orders) / 64
    statistic = ((landed - expected) ** 2 / expected).sum()
    assert abs(statistic - 63 * 63) < 6 * math.sqrt(2 * 63 * 63)
    gaps = (orders[:, 1:] - orders[:, :-1]) % 64
    counts = np.bincount(gaps.ravel(), minlength=64)[1:]
    expected = counts.sum() / 63
    assert ((counts - expected) ** 2 / expected).sum() < 63 + 6 * math.sqrt(2 * 63)
