"""What files about several agents have in common, beside the contract. Each file's tests import
these with those of its own, and say

    PROBE       a config that learns small tasks
    PER_AGENT   whether what it says about its updates is about each of its agents
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.algorithms.contract import *  # noqa: F403
from tests.algorithms.contract import EVALUATION
from tests.probe import Pair, PairParams, Sacrifice, SacrificeParams

del test_several_agents_are_refused  # noqa: F821  it takes them
del test_forbidden_actions_are_never_taken_or_refused  # noqa: F821  of one agent
# In test_slices.py, which is slow.
del test_slices_are_exact_under_vmap_too  # noqa: F821
del test_slices_are_exactly_the_whole  # noqa: F821

PER_AGENT = True


@pytest.fixture(scope="module")
def pair():
    return Pair()


def test_metrics_have_the_points_as_leading_axis(file, trained):
    """And agents as the last one, of returns and of what is said about each."""
    state, metrics = trained
    assert list(metrics["timestep"]) == [0, 16, 32, 48]
    others = {"timestep", "num_episodes", "episode_return", "episode_length"}
    assert set(metrics) == file.METRICS | others | EVALUATION
    for name in file.METRICS:
        assert metrics[name].shape == ((4, 2) if file.PER_AGENT else (4,)), name
        assert np.isnan(metrics[name][0]).all() and np.isfinite(metrics[name][1:]).all(), name
    assert metrics["episode_return"].shape == (4, 2)
    assert metrics["episode_length"].shape == metrics["num_episodes"].shape == (4,)
    for name in ("eval_return", "eval_last_reward"):
        assert metrics[name].shape == (4, 2, 2), name
    for name in ("eval_length", "eval_terminated", "eval_truncated"):
        assert metrics[name].shape == (4, 2), name
    assert int(state.update) == 3


def test_a_team_is_paid_after_one_leaves(file):
    """On all of three seeds agent 1 leaves, which makes the team's return 4.0 in place of 0.5;
    nobody learns from what it would see then, even if it is NaN."""
    config = file.PROBE.replace(num_eval_episodes=1)
    train = file.MODULE.make_train(config, Sacrifice(), SacrificeParams(broken=True))
    with jax.debug_key_reuse(False):  # see conftest.vmapped_keys
        keys = jax.random.split(jax.random.key(0), 3)
        state, metrics = jax.jit(jax.vmap(train))(keys)
    np.testing.assert_allclose(metrics["eval_return"], 4.0, rtol=1e-5)
    for leaf in jax.tree.leaves(file.learned(state)):
        assert np.isfinite(leaf).all()


def test_forbidden_actions_are_never_taken(file):
    """Each would cost 100: neither in training nor in evaluation does any return fall below 0.
    Nor by a policy with a key, though it explores as much as it may."""
    env = Pair(masked=True)
    config = file.TINY.replace(num_eval_episodes=32)
    state, metrics = file.MODULE.make_train(config, env, PairParams())(jax.random.key(0))
    assert (np.asarray(metrics["episode_return"][1:]) >= 0.0).all()
    assert (np.asarray(metrics["eval_return"]) >= 0.0).all()
    config = config.replace(**dict(eps_end=1.0) if hasattr(config, "eps_end") else {})
    policy = jax.jit(file.MODULE.make_policy(config, env, PairParams()))
    mask = jnp.array([[False, False, True], [True, False, False]])
    for key in (None, *map(jax.random.key, range(1, 5))):
        action, _ = policy(state, jnp.ones((2, 1)), rng=key, mask=mask)
        np.testing.assert_array_equal(action, [2, 0])
