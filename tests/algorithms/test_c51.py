"""C51's projection and loss against plain NumPy and rlax, and the contract of the file."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import c51
from algorithms.launch.errors import UserError
from algorithms.launch.training import options
from tests.algorithms.cases import Case
from tests.algorithms.test_value_based import (
    ACTION,
    GAMMA,
    OF_CASES,
    REFUSED,
    REWARD,
    SMALL,
    X_NEXT,
    X,
    played,
)

TINY = c51.Config(**SMALL, num_atoms=11, v_max=10.0)

ATOMS = np.linspace(-2.0, 3.0, 11).astype(np.float32)


def action_values(config, space, params, x):
    logits = c51.CategoricalNetwork(config, space.n).apply(params, x)
    return jax.nn.softmax(logits) @ jnp.linspace(config.v_min, config.v_max, config.num_atoms)


def prefer(config, params, action, by):
    """Parameters that make large returns more probable, because values are bounded."""
    params = jax.tree.map(lambda x: x, params)
    head = params["params"]["action_head"]
    bias = head["bias"].reshape(-1, config.num_atoms)
    tilt = by / 20 * jnp.linspace(-1.0, 1.0, config.num_atoms)
    head["bias"] = bias.at[action].add(tilt).reshape(-1)
    return params


# --- one gradient step ------------------------------------------------------------------------


def plain_softmax(x):
    powers = np.exp(np.asarray(x, np.float64))
    return powers / powers.sum(-1, keepdims=True)


def plain_project(probabilities, targets, atoms):
    """The projection of one distribution: each target's mass goes to the two atoms beside it."""
    result, spacing = np.zeros(len(atoms)), atoms[1] - atoms[0]
    for p, target in zip(probabilities, targets):
        position = (np.clip(target, atoms[0], atoms[-1]) - atoms[0]) / spacing
        low = min(int(np.floor(position)), len(atoms) - 2)
        result[low] += p * (low + 1 - position)
        result[low + 1] += p * (position - low)
    return result


def expected_loss(config, online, target, best, state):
    network, atoms = c51.CategoricalNetwork(config, 3), np.linspace(-100.0, 10.0, 11)
    probabilities = plain_softmax(network.apply(online, X)[0, ACTION])
    next_probabilities = plain_softmax(network.apply(target, X_NEXT)[0, best])
    targets = REWARD * (1.0 + GAMMA + GAMMA**2) + GAMMA**3 * atoms
    return -(plain_project(next_probabilities, targets, atoms) * np.log(probabilities)).sum()


def mean_values(config, state, x):
    logits = c51.CategoricalNetwork(config, 3).apply(state.policy.params, x)[0]
    return plain_softmax(logits) @ np.linspace(-100.0, 10.0, 11)


CASE = Case(
    module=c51,
    tiny=TINY,
    metrics={"loss", "mean_value", "grad_norm"},
    pinned={
        "loss": [np.nan, 2.39961, 2.39794],
        "grad_norm": [np.nan, 0.0341544, 0.0309028],
        "mean_value": [np.nan, -44.5775, -44.6949],
    },
    refused=(
        *REFUSED,
        (dict(num_atoms=1), "num_atoms=1: give a whole number, 2 or more"),
        (dict(v_min=10.0), r"v_max=10.0: give a number in \(v_min, inf\), here \(10, inf\)"),
        (dict(v_max=-150), r"v_max=-150.0: give .*, here \(-100, inf\)"),
    ),
    probes={"discrete": False},
    played=played,
    action_values=action_values,
    prefer=prefer,
    expected_loss=expected_loss,
    mean_values=mean_values,
    **OF_CASES,
)


# --- formulas ---------------------------------------------------------------------------------


def random_targets(seed, low=-2.0, high=3.0):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.ones(7), 40).astype(np.float32)
    return probabilities, rng.uniform(low, high, (40, 7)).astype(np.float32)


def project(probabilities, targets):
    return np.asarray(c51.project(*map(jnp.asarray, (probabilities, targets, ATOMS))))


def test_projection_agrees_with_the_loop_and_with_rlax():
    import rlax

    probabilities, targets = random_targets(0, -5.0, 5.0)
    expected = [plain_project(p, t, ATOMS) for p, t in zip(probabilities, targets)]
    result = project(probabilities, targets)
    np.testing.assert_allclose(result, expected, atol=1e-5)
    order = np.argsort(targets, 1)  # rlax needs supports in order
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


@pytest.mark.parametrize("low, high, number", [(-100.0, 100.0, 501), (1000.0, 1001.0, 51)])
def test_no_mass_is_lost_with_many_atoms(low, high, number):
    atoms = jnp.linspace(low, high, number)
    for target in (low - 5.0, high + 5.0):
        result = c51.project(jnp.ones((1, 1)), jnp.full((1, 1), target), atoms)[0]
        assert float(result.sum()) == pytest.approx(1.0, abs=1e-5)
        assert float(result @ atoms) == pytest.approx(np.clip(target, low, high), rel=1e-5)


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


# --- the support ------------------------------------------------------------------------------


def test_the_shell_refuses_an_empty_support_of_any_agent():
    """In the launcher all floats are numbers, those of a sweep side by side."""
    ends = lambda low, high: TINY.replace(v_min=np.array(low), v_max=np.array(high))
    options.check_floats(ends([0.0, 20.0], [10.0, 30.0]))
    options.check_floats(ends(-1.0, [0.0, 30.0]))
    with pytest.raises(
        UserError, match=r"v_max=10.0: give a number in \(v_min, inf\), here \(20, inf\)"
    ):
        options.check_floats(ends([0.0, 20.0], [10.0, 10.0]))
    with pytest.raises(UserError, match=r"v_max=10.0: give .*, here \(10, inf\)"):
        options.check_floats(TINY.replace(v_min=10.0))
