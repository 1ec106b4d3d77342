"""C51's projection and loss against plain NumPy and rlax, and the contract of the file."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import c51, launch
from algorithms.launch.engine import metrics, options
from algorithms.launch.engine.errors import UserError
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
PLAIN_ATOMS = np.linspace(-100.0, 10.0, 11)  # of TINY


def action_values(config, n, params, x):
    logits = c51.CategoricalNetwork(config, n).apply(params, x)
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


def plain_target(config, target, best):
    """The probabilities of the target, its returns, and the atoms."""
    logits, atoms = c51.CategoricalNetwork(config, 3).apply(target, X_NEXT), PLAIN_ATOMS
    returns = REWARD * (1.0 + GAMMA + GAMMA**2) + GAMMA**3 * atoms
    return plain_softmax(logits[0, best]), returns, atoms


def expected_loss(config, online, target, best, state):
    logits = c51.CategoricalNetwork(config, 3).apply(online, X)
    projected = plain_project(*plain_target(config, target, best))
    return -(projected * np.log(plain_softmax(logits[0, ACTION]))).sum()


def clipped_targets(config, target, best):
    probabilities, returns, atoms = plain_target(config, target, best)
    return sum(p for p, y in zip(probabilities, returns) if not atoms[0] <= y <= atoms[-1])


def mean_values(config, state, x):
    logits = c51.CategoricalNetwork(config, 3).apply(state.policy.params, x)[0]
    return plain_softmax(logits) @ PLAIN_ATOMS


CASE = Case(
    module=c51,
    tiny=TINY,
    metrics={"loss", "mean_value", "grad_norm", "clipped_targets"},
    pinned={
        "loss": [np.nan, 2.3967, 2.39613],
        "grad_norm": [np.nan, 0.0331879, 0.0489824],
        "mean_value": [np.nan, -44.6684, -44.7335],
    },
    refused=(
        (dict(num_atoms="4"), "num_atoms='4': give a whole number, 1 or more"),
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
    clipped_targets=clipped_targets,
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


def test_the_mass_beyond_the_support_is_what_the_projection_moves_to_its_ends():
    """On an end, and within rounding of it, nothing is moved."""
    probabilities, targets = random_targets(4, -4.0, 5.0)
    found = np.asarray(c51.mass_beyond(probabilities, jnp.array(targets), jnp.array(ATOMS)))
    outside = (targets < ATOMS[0]) | (targets > ATOMS[-1])
    np.testing.assert_allclose(found, (probabilities * outside).sum(1), atol=1e-6)
    assert 0.1 < found.mean() < 0.9
    ends = np.tile(np.float32([-2.0, -2.0 - 1e-5, 3.0, 3.0 + 1e-5, 0.0, 1.0, 2.0]), (40, 1))
    assert not np.asarray(c51.mass_beyond(probabilities, ends, jnp.array(ATOMS))).any()


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


def test_a_support_that_is_too_narrow_is_told_of_once(capsys):
    result = launch.run(c51, TINY.replace(v_min=-0.5, v_max=0.5), save=False)
    shares = result.metrics["clipped_targets"][0]
    assert (shares[-2:] > metrics.CLIPPED).all()
    err = capsys.readouterr().err
    assert err.count("of the targets lie beyond") == err.count("warning") == 1
    assert "a wider v_min to v_max would do, in flashsac a larger v_max, or in reppo and" in err


def test_what_is_told_of_the_support():
    """A trial of several is enough. Values that are missing or infinite say nothing."""
    told = lambda *shares: metrics.clipped_targets({"clipped_targets": np.array(shares)})
    assert told(0.01, 0.069, np.nan).startswith("7 % of the targets lie beyond")
    for quiet in (told(), told(0.05), told(np.nan), told(np.inf), metrics.clipped_targets({})):
        assert quiet == ""


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
