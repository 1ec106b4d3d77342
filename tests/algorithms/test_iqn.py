"""IQN's embedding, risks and loss against plain NumPy, and the contract of the file."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

from algorithms import iqn, parts
from algorithms.parts import reads
from tests import probe as tasks
from tests.algorithms.cases import Case
from tests.algorithms.launch.test_cli import main
from tests.algorithms.test_value_based import (
    ACTION,
    GAMMA,
    OF_CASES,
    REFUSED,
    REWARD,
    SMALL,
    X_NEXT,
    X,
    gradient_step,
    plain_quantile_huber,
    played,
)

TINY = iqn.Config(
    **SMALL,
    num_levels=3,
    num_target_levels=8,
    num_cosines=4,
    kappa=10.0,
    reward_scale=0.5,
    risk="cvar",
    risk_level=1.0,
)

LEVELS = np.linspace(0.05, 0.95, 7)


def action_values(config, n, params, x):
    network = iqn.ImplicitQuantileNetwork(config, n)
    return iqn.action_values(config, network, params, x)


def prefer(config, params, action, by):
    params = jax.tree.map(lambda x: x, params)
    head = params["params"]["action_head"]
    head["bias"] = head["bias"].at[action].add(by)
    return params


# --- one gradient step ------------------------------------------------------------------------


def levels_of(config, state):
    """The levels of the gradient step: (batch_size, num_levels) and (batch_size,
    num_target_levels)."""
    key = jax.random.split(jax.random.clone(state.rng), 6)[5]
    numbers = config.num_levels, config.num_target_levels
    levels = jax.random.uniform(key, (config.batch_size * sum(numbers),))
    return jnp.split(levels.reshape(config.batch_size, -1), [config.num_levels], axis=1)


def quantiles_of(config, params, x, levels):
    """(batch_size, num, num_actions)"""
    network = iqn.ImplicitQuantileNetwork(config, params["params"]["action_head"]["bias"].size)
    return np.asarray(network.apply(params, np.repeat(x, config.batch_size, 0), levels))


def expected_loss(config, online, target, best, state):
    levels, target_levels = levels_of(config, state)
    quantiles = quantiles_of(config, online, X, levels)[..., ACTION]
    next_quantiles = quantiles_of(config, target, X_NEXT, target_levels)[..., best]
    returns = config.reward_scale * REWARD * (1.0 + GAMMA + GAMMA**2)
    targets = returns + GAMMA**3 * next_quantiles
    rows = zip(quantiles, np.asarray(levels), targets)
    losses = [plain_quantile_huber(*row, config.kappa)[0] for row in rows]
    return np.mean(losses) / config.kappa


def mean_values(config, state, x):
    """Mean values over the levels whose quantiles are learned."""
    levels, _ = levels_of(config, state)
    return quantiles_of(config, state.policy.params, x, levels).mean((0, 1))


CASE = Case(
    module=iqn,
    tiny=TINY,
    metrics={"loss", "mean_value", "grad_norm"},
    pinned={
        "loss": [np.nan, 0.0728392, 0.0825556],
        "grad_norm": [np.nan, 0.129004, 0.156095],
        "mean_value": [np.nan, 0.0415861, 0.105009],
    },
    refused=(
        *REFUSED,
        (dict(hidden_sizes=()), r"hidden_sizes=\(\) leaves no layer that sees the levels"),
        (dict(num_policy_levels=0), "num_policy_levels=0: give a whole number, 1 or more"),
        (
            dict(num_cosines=1),
            "num_cosines=1: the first cosine is 1 at every level; give 2 or more",
        ),
        (dict(risk="none"), "risk='none': give neutral or cvar or wang"),
    ),
    probes={"discrete": False},
    played=played,
    action_values=action_values,
    prefer=prefer,
    expected_loss=expected_loss,
    mean_values=mean_values,
    **OF_CASES,
)


# --- risks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("risk_level, best", [(1.0, 1), (0.25, 0)])
def test_risks_decide_in_acting_and_in_targets(risk_level, best):
    """Action 0 is worth 1 for sure. The returns of action 1 start at -10 and reach far higher.

    Action 1 is better in the mean, but not in the mean of the worst quarter.
    """
    config = TINY.replace(
        risk_level=risk_level,
        hidden_sizes=(1,),
        num_cosines=2,
        exploration="constant",
        eps_end=0.0,
    )
    layer = lambda kernel, bias: {"kernel": jnp.array(kernel), "bias": jnp.array(bias)}
    params = {
        "embedding": layer([[0.0], [-1.0]], [1.0]),  # 1 - cos(pi level)
        "Torso_1": {"Dense_0": layer([[1.0]], [0.0])},
        "action_head": layer([[0.0, 60.0]], [1.0, -10.0]),
    }
    networks = lambda drawn: jax.tree.map(lambda x, like: x, [{"params": params}] * 2, [drawn] * 2)
    before, after, metrics = gradient_step(iqn, config, networks, masked=False)
    params = before.target_params
    expected = expected_loss(config, params, params, best, before)
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-4)
    actions = after.replay.transitions.action[:16]  # x = 1, -1, ...; no risk at -1
    np.testing.assert_array_equal(actions, [best, 0] * 8)
    policy = iqn.make_policy(config.replace(normalize_obs=True), tasks.Probe(), tasks.ProbeParams())
    assert policy(before, jnp.ones(1))[0] == best


# --- formulas ---------------------------------------------------------------------------------


def test_the_network_multiplies_features_by_the_embedding():
    config = iqn.Config(hidden_sizes=(6, 5), num_cosines=4)
    network = iqn.ImplicitQuantileNetwork(config, 3)
    rng = np.random.default_rng(0)
    x, levels = rng.normal(size=(2, 4)), rng.random((2, 7))
    x, levels = x.astype(np.float32), levels.astype(np.float32)
    params = network.init(jax.random.key(0), jnp.zeros((1, 4)), jnp.zeros((1, 1)))
    params = jax.tree.map(lambda leaf: leaf + 0.1, params)
    layers = {name: layer.get("Dense_0", layer) for name, layer in params["params"].items()}
    p = {name: (layer["kernel"], layer["bias"]) for name, layer in layers.items()}
    relu = lambda x: np.maximum(x, 0.0)
    features = relu(x @ p["Torso_0"][0] + p["Torso_0"][1])
    expected = np.zeros((2, 7, 3))
    for b in range(2):
        for k in range(7):
            cosines = np.cos(np.pi * np.arange(4) * levels[b, k])
            embedding = relu(cosines @ p["embedding"][0] + p["embedding"][1])
            hidden = relu((features[b] * embedding) @ p["Torso_1"][0] + p["Torso_1"][1])
            expected[b, k] = hidden @ p["action_head"][0] + p["action_head"][1]
    np.testing.assert_allclose(network.apply(params, x, levels), expected, rtol=1e-4, atol=1e-5)
    shared = network.apply(params, x, levels[:1])
    np.testing.assert_allclose(shared[0], expected[0], rtol=1e-4, atol=1e-5)
    assert shared.shape == (2, 7, 3)


def test_risks():
    def distort(risk, level):
        config = iqn.Config(risk=risk, risk_level=level)
        return np.asarray(iqn.distort(jnp.array(LEVELS), config))

    np.testing.assert_allclose(distort("neutral", 0.3), LEVELS, rtol=1e-6)
    np.testing.assert_allclose(distort("cvar", 0.25), 0.25 * LEVELS, rtol=1e-6)
    normal = scipy.stats.norm
    expected = normal.cdf(normal.ppf(LEVELS) - 0.75)
    np.testing.assert_allclose(distort("wang", -0.75), expected, rtol=1e-4)
    for eta in (0.3, 0.71, 1.5):
        expected = LEVELS**eta / (LEVELS**eta + (1 - LEVELS) ** eta) ** (1 / eta)
        np.testing.assert_allclose(distort("cpw", eta), expected, rtol=1e-4)
    np.testing.assert_allclose(distort("power", 2.0), LEVELS ** (1 / 3), rtol=1e-4)
    np.testing.assert_allclose(distort("power", -2.0), 1 - (1 - LEVELS) ** (1 / 3), rtol=1e-4)


def test_a_level_without_a_risk_is_not_read():
    """So who asks for one is told that it has no effect."""
    for risk, level in (("neutral", set()), ("cvar", {"risk_level"})):
        config = reads.watched(iqn.Config(risk=risk))
        iqn.distort(jnp.array(LEVELS), config)
        assert vars(config)["_read"] == {"risk"} | level


@pytest.mark.parametrize("risk", iqn.RISKS)
def test_each_risk_is_neutral_by_default_and_finite_wherever_it_may_be(risk):
    config = iqn.Config(risk=risk)
    distort = jax.jit(lambda x: iqn.distort(jnp.array(LEVELS), config.replace(risk_level=x)))
    for level in [iqn.Config().risk_level] + [1.0] * (risk in ("cvar", "cpw")):
        np.testing.assert_allclose(distort(level), LEVELS, rtol=1e-4)
    for level in (-3e38, -300.0, 1e-30, 1.0, 300.0, 3e38):
        config = iqn.Config(risk=risk, risk_level=level)
        with contextlib.suppress(ValueError):
            parts.check_reals(config)
            assert ((distort(level) >= 0.0) & (distort(level) <= 1.0)).all()


@pytest.mark.parametrize(
    "risk, inside, outside",
    [
        ("cvar", (0.0, 0.25, 1.0), (-0.25, 5.0, np.inf)),
        ("cpw", (0.0, 0.71, 3.0), (-0.71, np.inf)),
        ("wang", (-0.75, 0.0, 0.75), (-np.inf, np.inf)),
        ("power", (-2.0, 0.0, 2.0), (-np.inf, np.inf)),
    ],
)
def test_each_risk_has_its_range(risk, inside, outside, capsys):
    """Ranges are also checked on the command line and in sweeps."""
    for level in inside:
        parts.check_reals(iqn.Config(risk=risk, risk_level=level))
    for level in outside:
        for words in (f"{risk} --risk-level {level}", f"neutral {risk} --risk-level 0 {level}"):
            words = ["--risk", *words.split(), "--num-evals", "0"]  # which is refused after it
            code, _, err = main(capsys, *words, module=iqn)
            assert code == 2 and err.startswith(f"error: risk_level={level}: give a number in ")
            assert err.count("\n") == 1


def test_quantile_huber_is_the_plain_sum():
    rng = np.random.default_rng(0)
    quantiles, levels = rng.normal(size=(20, 5)), rng.random((20, 5))
    targets, kappa = 2.0 * rng.normal(size=(20, 7)), 0.5
    rows = zip(quantiles, levels, targets)
    expected, slopes = zip(*[plain_quantile_huber(*row, kappa) for row in rows])
    loss = lambda *arrays: kappa * iqn.quantile_huber(*arrays, kappa)  # divided by it there
    arrays = tuple(map(jnp.array, (quantiles, levels, targets)))
    np.testing.assert_allclose(loss(*arrays), expected, rtol=1e-4)
    gradient = jax.grad(lambda *arrays: loss(*arrays).sum())(*arrays)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-4, atol=1e-6)


def test_of_action_takes_the_columns_of_the_actions():
    rng = np.random.default_rng(0)
    outputs, action = rng.normal(size=(5, 4, 3)), rng.integers(3, size=5)
    result = iqn.of_action(jnp.array(outputs), jnp.array(action))
    np.testing.assert_allclose(result, outputs[np.arange(5), :, action], rtol=1e-5)
