"""C51's projection against plain NumPy and rlax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from algorithms import c51
from tests.algorithms.value_based import *  # noqa: F403  the contract
from tests.algorithms.value_based import SMALL

del test_slices_are_exact_under_vmap_too  # noqa: F821  in test_slices.py, which is slow

MODULE = c51
TINY = c51.Config(**SMALL, num_atoms=11, v_max=10.0)
METRICS = {"loss", "mean_value", "grad_norm"}

ATOMS = np.linspace(-2.0, 3.0, 11).astype(np.float32)


def random_targets(seed, low=-2.0, high=3.0):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.ones(7), 40).astype(np.float32)
    return probabilities, rng.uniform(low, high, (40, 7)).astype(np.float32)


def project(probabilities, targets):
    return np.asarray(c51.project(*map(jnp.asarray, (probabilities, targets, ATOMS))))


def test_projection_agrees_with_the_loop_and_with_rlax():
    probabilities, targets = random_targets(0, -5.0, 5.0)
    expected = np.zeros((40, 11))
    for i in range(40):
        for p, target in zip(probabilities[i], targets[i]):
            position = (np.clip(target, -2.0, 3.0) + 2.0) / 0.5
            low = min(int(np.floor(position)), 9)
            expected[i, low] += p * (low + 1 - position)
            expected[i, low + 1] += p * (position - low)
    result = project(probabilities, targets)
    np.testing.assert_allclose(result, expected, atol=1e-5)
    order = np.argsort(targets, 1)  # rlax wants supports in order
    of_rlax = jax.vmap(rlax.categorical_l2_project, (0, 0, None))(
        jnp.array(np.take_along_axis(targets, order, 1)),
        jnp.array(np.take_along_axis(probabilities, order, 1)),
        jnp.array(ATOMS),
    )
    np.testing.assert_allclose(result, of_rlax, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_projection_keeps_the_mass_and_the_mean(seed):
    probabilities, targets = random_targets(seed)
    result = project(probabilities, targets)
    np.testing.assert_allclose(result.sum(1), 1.0, atol=1e-5)
    np.testing.assert_allclose(result @ ATOMS, (probabilities * targets).sum(1), atol=1e-5)


def test_projection_is_exact_on_atoms_and_at_the_ends():
    probabilities, _ = random_targets(1)
    targets = np.tile(ATOMS[[0, 2, 3, 5, 8, 9, 10]], (40, 1))
    expected = np.zeros((40, 11), np.float32)
    expected[:, [0, 2, 3, 5, 8, 9, 10]] = probabilities
    np.testing.assert_allclose(project(probabilities, targets), expected, atol=1e-6)
    beyond = np.tile(np.float32([-9, -9, -2, 3, 3, 9, 9]), (40, 1))
    result = project(probabilities, beyond)
    np.testing.assert_allclose(result[:, 0], probabilities[:, :3].sum(1), atol=1e-6)
    np.testing.assert_allclose(result[:, -1], probabilities[:, 3:].sum(1), atol=1e-6)


def test_a_terminated_target_is_its_return():
    config = c51.Config(v_min=-2.0, v_max=3.0, num_atoms=11)
    np.testing.assert_allclose(c51.atoms_of(config), ATOMS, atol=1e-6)
    probabilities, _ = random_targets(2)
    result = project(probabilities, np.full((40, 7), 1.25, np.float32))
    np.testing.assert_allclose(result[:, 6:8], 0.5, atol=1e-5)


def test_of_action_takes_the_rows_of_the_actions():
    rng = np.random.default_rng(0)
    outputs, action = rng.normal(size=(5, 3, 4)), rng.integers(3, size=5)
    result = c51.of_action(jnp.array(outputs), jnp.array(action))
    np.testing.assert_allclose(result, outputs[np.arange(5), action], rtol=1e-5)
