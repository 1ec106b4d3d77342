"""Steps on one long vector, compared with the same steps leaf by leaf."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from algorithms import parts


def test_steps_are_those_of_optax_leaf_by_leaf():
    """The second step must be clipped by the norm of all leaves together."""
    rng = np.random.default_rng(0)
    params = {"a": rng.normal(size=(3, 4)), "b": [rng.normal(size=5), rng.normal(size=())]}
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)
    transformation = optax.chain(optax.clip_by_global_norm(2.0), optax.scale_by_adam(eps=1e-3))
    flat = parts.FlatOptimizer(transformation)
    opt_state, expected_state = flat.init(params), transformation.init(params)
    expected = params
    step, plain = jax.jit(flat.step), jax.jit(transformation.update)
    for size, rate in ((0.1, 0.5), (3.0, 0.25)):
        draw = lambda x, size=size: jnp.asarray(size * rng.normal(size=x.shape), jnp.float32)
        grads = jax.tree.map(draw, params)
        params, opt_state, norm = step(params, opt_state, grads, jnp.float32(rate))
        updates, expected_state = plain(grads, expected_state)
        expected = jax.tree.map(lambda p, u, rate=rate: p - rate * u, expected, updates)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-6), params, expected)
        squares = sum(float((g**2).sum()) for g in jax.tree.leaves(grads))
        np.testing.assert_allclose(norm, np.sqrt(squares), rtol=1e-5)  # before clipping


def test_selected_weights_decay_as_in_optax():
    """The decay scales with the learning rate. Adam would divide a penalty on the loss."""
    rng = np.random.default_rng(1)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    params = {"a": {"kernel": draw(3, 4), "bias": draw(4)}, "b": draw(5), "free": draw()}
    mask = {"a": True, "b": True, "free": False}
    flat, decay = parts.FlatOptimizer(optax.scale_by_adam()), {"a": 0.1, "b": 0.1, "free": 0.0}
    step = jax.jit(flat.step)
    adamw = optax.adamw(0.03, weight_decay=0.1, mask=mask)
    everywhere = optax.adamw(0.03, weight_decay=0.1)
    for expected_of, decays in ((adamw, decay), (everywhere, 0.1)):
        result = expected = params
        opt_state, expected_state = flat.init(params), expected_of.init(params)
        plain = jax.jit(expected_of.update)
        for _ in range(5):
            grads = jax.tree.map(lambda x: draw(*x.shape), params)
            result, opt_state, _ = step(result, opt_state, grads, 0.03, decays)
            updates, expected_state = plain(grads, expected_state, expected)
            expected = optax.apply_updates(expected, updates)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6, 1e-7), result, expected)


def test_gradients_without_samples_change_nothing():
    """Adam's momentum alone would move the parameters."""
    params, flat = {"a": jnp.ones(3)}, parts.FlatOptimizer(optax.scale_by_adam())
    params, opt_state, _ = flat.step(params, flat.init(params), {"a": jnp.ones(3)}, 0.1)
    none = {"a": jnp.zeros(3)}
    after, state_after, _ = flat.step(params, opt_state, none, 0.1, some=jnp.array(False))
    jax.tree.map(np.testing.assert_array_equal, (after, state_after), (params, opt_state))


def test_no_decay_is_adam_bit_for_bit():
    rng = np.random.default_rng(2)
    params = {"a": jnp.asarray(rng.normal(size=(7, 9)), jnp.float32), "b": jnp.zeros(3)}
    grads = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), params)
    flat = parts.FlatOptimizer(optax.scale_by_adam())
    step = jax.jit(lambda *decay: flat.step(params, flat.init(params), grads, 0.01, *decay))
    jax.tree.map(np.testing.assert_array_equal, step(), step(0.0))


def test_the_transformation_sees_the_parameters():
    seen = []

    def update(updates, state, params=None):
        seen.append(jax.tree.map(jnp.shape, params))
        return updates, state

    flat = parts.FlatOptimizer(optax.GradientTransformation(lambda params: (), update))
    params = {"a": jnp.ones((2, 3)), "b": jnp.ones(1)}
    flat.step(params, flat.init(params), params, jnp.float32(0.0))
    assert seen == [{"a": (2, 3), "b": (1,)}]


def test_clipped_adam_clips_first():
    params, grads = jnp.zeros(2), jnp.array([30.0, 40.0])
    flat = parts.clipped_adam(0.5, 1.0)  # so large an epsilon that the size of gradients matters
    learned, _, norm = flat.step(params, flat.init(params), grads, 1.0)
    np.testing.assert_allclose(learned, [-0.3 / 1.3, -0.4 / 1.4], rtol=1e-5)
    assert norm == 50.0
    unclipped = parts.clipped_adam(jnp.inf, 1.0)
    learned, _, _ = unclipped.step(params, unclipped.init(params), grads, 1.0)
    np.testing.assert_allclose(learned, [-30.0 / 31.0, -40.0 / 41.0], rtol=1e-5)
