"""Properties of action spaces that heads need."""

import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms import parts, ppo
from algorithms.parts import ActionSpace
from algorithms.parts.checks import warn_of_scale, warn_of_units
from envs import warn
from envs.gymnax import spaces
from tests import probe as tasks


def test_outputs_are_actions_or_dimensions():
    assert ActionSpace(spaces.Discrete(5)).discrete and ActionSpace(spaces.Discrete(5)).size == 5
    box = spaces.Box(-1.0, 1.0, (2, 3))
    assert not ActionSpace(box).discrete and ActionSpace(box).size == 6
    assert ActionSpace(spaces.Box(-1.0, 1.0, ())).size == 1


def test_actions_are_clipped_to_the_box_and_take_its_shape():
    low, high = jnp.array([[-1.0, -2.0, 0.0]] * 2), jnp.array([[1.0, 2.0, 3.0]] * 2)
    box = spaces.Box(low, high, (2, 3))
    actions = 9.0 * np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    result = ActionSpace(box).clip(jnp.array(actions))
    np.testing.assert_array_equal(result, np.clip(actions.reshape(4, 5, 2, 3), low, high))
    one = ActionSpace(spaces.Box(-1.0, 1.0, (3,))).clip(jnp.array([0.5, -3.0, 3.0]))
    np.testing.assert_array_equal(one, [0.5, -1.0, 1.0])


def test_actions_are_rescaled_to_the_box():
    space = spaces.Box(jnp.array([[-2.0, 0.0]]), jnp.array([[2.0, 10.0]]), (1, 2))
    action = jnp.array([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0]])
    expected = [[[-2.0, 0.0]], [[0.0, 7.5]], [[2.0, 10.0]]]
    np.testing.assert_allclose(ActionSpace(space).rescale(action), expected, rtol=1e-6)


def test_rescaled_actions_stay_in_the_box():
    rng = np.random.default_rng(0)
    low, high = -rng.uniform(0.0, 3.0, 200), rng.uniform(0.0, 3.0, 200)
    low, high = low.astype(np.float32), high.astype(np.float32)
    space = spaces.Box(jnp.array(low), jnp.array(high), (200,))
    for end in (-1.0, 1.0):
        action = np.asarray(ActionSpace(space).rescale(jnp.full(200, end)))
        assert ((low <= action) & (action <= high)).all()


class Acting:
    """As much of an environment as `warn_of_units` uses."""

    name = "Acting"

    def __init__(self, space):
        self.action_space = lambda params: space


def box(low, high):
    return spaces.Box(jnp.array(low), jnp.array(high), np.shape(low))


@pytest.fixture
def told():
    """The warnings of the kit so far; one that is not expected is an error."""
    return warn._told


@pytest.mark.parametrize(
    "space, ends",
    [
        (spaces.Box(-1e4, 1e4, (2,)), r"\+-10000"),
        (spaces.Box(-1e-3, 1e-3, (2,)), r"\+-0.001"),
        (spaces.Box(0.0, 11.0, ()), "0 and 11"),
        (box([-1.0, -0.05], [1.0, 0.02]), "-0.05 and 0.02"),
        (box([-1.0, -jnp.inf], [20.0, jnp.inf]), "-1 and 20"),
        (box([-1.0, 4.0], [1.0, 5.0]), "4 and 5"),
        (box([-3.0, -1.0], [-2.5, 1.0]), "-3 and -2.5"),
        (spaces.Box(0.99, 1.0, (2,)), "0.99 and 1"),
        (spaces.Box(-0.01, 0.15, (2,)), "-0.01 and 0.15"),
    ],
)
def test_boxes_far_from_a_gaussian_are_told_of_once(told, space, ends):
    told_of = rf"Acting has actions between {ends}, and .* rescale_action=true suits it"
    with pytest.warns(warn.KitWarning, match=told_of):
        warn_of_units(Acting(space), None)
    warn_of_units(Acting(space), None)


def test_boxes_that_suit_a_gaussian_are_not_told_of(told):
    for space in (
        spaces.Discrete(3),
        spaces.Box(-10.0, 10.0, (2,)),
        spaces.Box(-0.1, 0.1, (2,)),
        spaces.Box(-jnp.inf, jnp.inf, (2,)),
        box([0.0, -1.0], [0.0, 1.0]),
        spaces.Box(0.0, 1.0, (2,)),
        spaces.Box(-jnp.inf, 0.0, (2,)),
        spaces.Box(2.0, jnp.inf, (1,)),
        spaces.Box(-3.4028235e38, 3.4028235e38, (1,)),
    ):
        warn_of_units(Acting(space), None)
    trace = lambda end: warn_of_units(Acting(spaces.Box(-end, end, (2,))), None)
    jax.eval_shape(trace, 1e4)


def test_continuous_environments_of_gymnax_and_the_kit_suit_a_gaussian(told):
    """So does PointRobot, whose bounds of 0.1 are the last ones to do so."""
    continuous = []
    for name in envs.names():
        if name == "MNISTBandit-bsuite":  # it needs a download
            continue
        env, params = envs.make(name, **{"continuous": True} if name == "Hunt-v0" else {})
        warn_of_units(env, params)
        continuous += [name] * hasattr(env.action_space(params), "low")
    assert {"Pendulum-v1", "PointRobot-misc", "Hunt-v0", "Navigator-v0"} < set(continuous)


def test_normal_noise_becomes_uniform():
    noise = jax.random.normal(jax.random.key(0), (40_000,))
    counts = np.histogram(ActionSpace(None).uniform_from(noise), 10, (-1.0, 1.0))[0] / 40_000
    np.testing.assert_allclose(counts, 0.1, atol=0.008)


def test_a_distribution_that_draws_by_itself_has_a_key_of_its_own():
    """No environment's step has it, whatever their number."""
    key, keys = jax.random.key(0), []
    distribution = types.SimpleNamespace(sample=lambda seed: keys.append(seed))
    with jax.debug_key_reuse(False):  # as for users
        ActionSpace(spaces.Discrete(2)).sample(distribution, jnp.zeros(2), key)
        ActionSpace(spaces.Discrete(2)).sample(distribution, jnp.zeros(2), key)
        of_steps = jax.random.key_data(jax.random.split(key, 300))
    first, second = (jax.random.key_data(x) for x in keys)
    np.testing.assert_array_equal(first, second)
    assert not (of_steps == first).all(1).any() and not (jax.random.key_data(key) == first).all()


def test_discrete_actions_are_what_they_are():
    np.testing.assert_array_equal(
        ActionSpace(spaces.Discrete(2)).clip(jnp.array([0, 1, 5])), [0, 1, 5]
    )


def test_a_flat_draw_has_the_shape_and_the_numbers_of_one_axis():
    for draw in (jax.random.uniform, jax.random.gumbel, jax.random.bits):
        drawn = parts.flat_draw(draw, jax.random.key(0), (2, 3, 4))
        assert drawn.shape == (2, 3, 4)
        np.testing.assert_array_equal(drawn.reshape(-1), draw(jax.random.key(0), (24,)))


class Seen:
    """As much of an environment as `warn_of_scale` uses."""

    name = "Seen"

    def __init__(self, space):
        self.observation_space = lambda params: space


RAW = types.SimpleNamespace(normalize_obs=False)


@pytest.mark.parametrize(
    "space, size",
    [
        (spaces.Box(0.0, 255.0, (8, 8, 3)), "255"),
        (spaces.Box(-1000, 5, (2,), jnp.int32), "1000"),
        (box([-1.0, -jnp.inf, -300.0], [1.0, 3.4e38, 200.0]), "300"),
    ],
)
def test_observations_in_large_units_are_told_of_once(told, space, size):
    told_of = rf"Seen has observations between \+-{size}, and .* normalize_obs=True suits it"
    with pytest.warns(warn.KitWarning, match=told_of):
        warn_of_scale(RAW, Seen(space), None)
    warn_of_scale(RAW, Seen(space), None)


def test_other_observations_are_not_told_of(told):
    large = spaces.Box(-1e4, 1e4, (2,))
    for config in (types.SimpleNamespace(normalize_obs=True), types.SimpleNamespace()):
        warn_of_scale(config, Seen(large), None)
    for space in (
        spaces.Box(-100.0, 100.0, (2,)),
        spaces.Box(-jnp.inf, jnp.inf, (2,)),
        spaces.Box(-3.4e38, 3.4e38, (2,)),
        spaces.Box(0, 255, (8, 8, 3), jnp.uint8),
    ):
        warn_of_scale(RAW, Seen(space), None)
    jax.eval_shape(lambda end: warn_of_scale(RAW, Seen(spaces.Box(-end, end, (2,))), None), 1e4)


def test_observations_of_the_kits_environments_are_not_told_of(told):
    """A maze of gymnax observes its time, up to 200."""
    warn_of_scale(RAW, *envs.make("MetaMaze-misc"))


class Timed(tasks.Probe):
    """A task of a user that shows its time."""

    def observation_space(self, params):
        return spaces.Box(0.0, 500.0, (1,))


@pytest.mark.parametrize("normalize_obs", [False, True])
def test_a_file_looks_at_the_scale(normalize_obs):
    config = ppo.Config(normalize_obs=normalize_obs, num_evals=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ppo.make_train(config, *envs.make(Timed()))
    assert any("between +-500, and networks" in one for one in warn._told) != normalize_obs
