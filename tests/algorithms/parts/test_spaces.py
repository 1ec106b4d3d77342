"""Properties of action spaces that heads need."""

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import parts
from envs.gymnax import spaces


def test_outputs_are_actions_or_dimensions():
    assert parts.is_discrete(spaces.Discrete(5)) and parts.num_outputs(spaces.Discrete(5)) == 5
    box = spaces.Box(-1.0, 1.0, (2, 3))
    assert not parts.is_discrete(box) and parts.num_outputs(box) == 6
    assert parts.num_outputs(spaces.Box(-1.0, 1.0, ())) == 1


def test_actions_are_clipped_to_the_box_and_take_its_shape():
    low, high = jnp.array([[-1.0, -2.0, 0.0]] * 2), jnp.array([[1.0, 2.0, 3.0]] * 2)
    box = spaces.Box(low, high, (2, 3))
    actions = 9.0 * np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    result = parts.clip_to(box, jnp.array(actions))
    np.testing.assert_array_equal(result, np.clip(actions.reshape(4, 5, 2, 3), low, high))
    one = parts.clip_to(spaces.Box(-1.0, 1.0, (3,)), jnp.array([0.5, -3.0, 3.0]))
    np.testing.assert_array_equal(one, [0.5, -1.0, 1.0])


def test_actions_are_rescaled_to_the_box():
    space = spaces.Box(jnp.array([[-2.0, 0.0]]), jnp.array([[2.0, 10.0]]), (1, 2))
    action = jnp.array([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0]])
    expected = [[[-2.0, 0.0]], [[0.0, 7.5]], [[2.0, 10.0]]]
    np.testing.assert_allclose(parts.rescale_to(space, action), expected, rtol=1e-6)


def test_rescaled_actions_stay_in_the_box():
    rng = np.random.default_rng(0)
    low, high = -rng.uniform(0.0, 3.0, 200), rng.uniform(0.0, 3.0, 200)
    low, high = low.astype(np.float32), high.astype(np.float32)
    space = spaces.Box(jnp.array(low), jnp.array(high), (200,))
    for end in (-1.0, 1.0):
        action = np.asarray(parts.rescale_to(space, jnp.full(200, end)))
        assert ((low <= action) & (action <= high)).all()


def test_normal_noise_becomes_uniform():
    noise = jax.random.normal(jax.random.key(0), (40_000,))
    counts = np.histogram(parts.uniform_of(noise), 10, (-1.0, 1.0))[0] / 40_000
    np.testing.assert_allclose(counts, 0.1, atol=0.008)


def test_the_slope_of_tanh_stays_finite():
    x = np.linspace(-5.0, 5.0, 101)
    expected = np.log(1.0 - np.tanh(x) ** 2)
    np.testing.assert_allclose(parts.log_tanh_slope(jnp.array(x)), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        parts.log_tanh_slope(jnp.array([-60.0, 60.0])), 2 * np.log(2.0) - 120.0
    )


def test_discrete_actions_are_what_they_are():
    np.testing.assert_array_equal(
        parts.clip_to(spaces.Discrete(2), jnp.array([0, 1, 5])), [0, 1, 5]
    )


def test_a_flat_draw_has_the_shape_and_the_numbers_of_one_axis():
    for draw in (jax.random.uniform, jax.random.gumbel, jax.random.bits):
        drawn = parts.flat_draw(draw, jax.random.key(0), (2, 3, 4))
        assert drawn.shape == (2, 3, 4)
        np.testing.assert_array_equal(drawn.reshape(-1), draw(jax.random.key(0), (24,)))
