"""Sums along a rollout against plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts
from envs import loops


@pytest.mark.parametrize("length", [1, 7, 16, 19])
@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_backward_sums_are_the_plain_recursion(length, platform, monkeypatch):
    monkeypatch.setattr(loops, "platform", lambda: platform)
    rng = np.random.default_rng(length)
    x = rng.normal(size=(length, 3))
    decays = rng.random((length, 3)) * (rng.random((length, 3)) < 0.8)  # 0 where an episode ends
    expected, later = np.zeros_like(x), np.zeros(3)
    for t in reversed(range(length)):
        expected[t] = later = x[t] + decays[t] * later
    result = jax.jit(lambda *given: parts.backward_sums(*given))(jnp.array(x), jnp.array(decays))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
