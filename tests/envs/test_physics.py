"""Factors on the physics of brax's and playground's robots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs import physics

POLE = {"backend": "generalized"}
OTHER = {"gravity_scale": 0.5, "mass_scale": 2.0, "friction_scale": 3.0, "strength_scale": 5.0}


def model_of(env, params):
    """The physical model under these parameters."""
    inner = env.env
    return getattr(inner.world(params), inner.model)


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "name, settings",
    [
        pytest.param("brax/hopper", {}, marks=pytest.mark.needs("brax")),
        pytest.param(
            "playground/CartpoleBalance", {}, marks=pytest.mark.needs("mujoco_playground")
        ),
    ],
)
def test_fields_of_the_model(name, settings):
    env, params = envs.make(name, **settings, **OTHER)
    neutral = params.replace(**dict.fromkeys(OTHER, 1.0))
    before, after = model_of(env, neutral), model_of(env, params)
    close(after.opt.gravity, np.array([0.0, 0.0, -9.81 / 2]))
    for field in ("body_mass", "body_subtreemass", "body_inertia", "dof_M0"):
        close(getattr(after, field), 2 * np.asarray(getattr(before, field)))
    for field in ("body_invweight0", "dof_invweight0"):
        close(getattr(after, field), np.asarray(getattr(before, field)) / 2)
    close(after.geom_friction, before.geom_friction * np.array([3.0, 1, 1]))
    close(after.actuator_gainprm, 5 * np.asarray(before.actuator_gainprm))
    if name.startswith("brax"):
        close(after.gravity, np.array([0.0, 0.0, -9.81 / 2]))
        close(after.link.inertia.mass, 2 * np.asarray(before.link.inertia.mass))
        close(after.link.inertia.i, 2 * np.asarray(before.link.inertia.i))
        close(after.link.invweight, np.asarray(before.link.invweight) / 2)
        close(after.dof.invweight, np.asarray(before.dof.invweight) / 2)
        close(after.actuator.gain, 5 * np.asarray(before.actuator.gain))
    biased = before.replace(actuator_biasprm=before.actuator_biasprm + 1.0)
    if name.startswith("brax"):
        motor = before.actuator.replace(bias_q=jnp.ones(3), bias_qd=jnp.full(3, 2.0))
        biased = biased.replace(actuator=motor)
        motor = physics.scaled(biased, params).actuator
        close(motor.bias_q, np.full(3, 5.0))
        close(motor.bias_qd, np.full(3, 10.0))
    close(physics.scaled(biased, params).actuator_biasprm, 5 * np.asarray(biased.actuator_biasprm))
    plain, own = envs.make(name, **settings)
    leaves = [jax.tree.leaves(model) for model in (before, model_of(plain, own))]
    for one, other in zip(*leaves, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not hasattr(own, "mass_scale"), "a constant model is faster"


@pytest.mark.needs("brax")
def test_motion_under_other_physics():
    """A pole falls faster where gravity is stronger, not at all without it; a motor that is as much
    stronger as everything is heavier moves it all the same."""
    env, params = envs.make("brax/inverted_pendulum", **POLE, gravity_scale=1.0)

    @jax.jit
    def moved(params, action):
        """The first 6 observations (cart, angle, their velocities)."""
        _, state = env.reset_env(jax.random.key(0), params)
        keys = jax.random.split(jax.random.key(1), 6)
        step = lambda state, key: env.step_env(key, state, action, params)[1::-1]
        return jax.lax.scan(step, state, keys)[1]

    still, push = jnp.zeros(1), jnp.ones(1)
    fall = {g: np.asarray(moved(params.replace(gravity_scale=g), still)) for g in (0.0, 1.0, 2.0)}
    turn = {g: abs(seen[-1, 3] - seen[0, 3]) for g, seen in fall.items()}
    assert turn[0.0] < 0.2 * turn[1.0] and turn[2.0] > 1.5 * turn[1.0]
    weightless = params.replace(gravity_scale=0.0)
    alone = moved(weightless, push)
    strong = moved(weightless.replace(strength_scale=2.0), push)
    heavy = moved(weightless.replace(strength_scale=2.0, mass_scale=2.0), push)
    assert np.abs(strong - alone).max() > 0.5
    assert np.abs(heavy - alone).max() < 0.25 * np.abs(strong - alone).max()


@pytest.mark.needs("brax")
def test_every_episode_draws_its_physics():
    words = "mass_scale:log:0.5:2/gravity_scale:uniform:0.8:1.2"
    env, params = envs.make("brax/inverted_pendulum", **POLE, randomize=words)
    _, state = jax.eval_shape(env.reset_env, jax.random.key(0), params)
    assert state.shares.shape == (2,)
    drawn = env.drawn(type(state)(None, jnp.array([0.5, 1.0])), params)
    close(drawn.mass_scale, 1.0)
    close(drawn.gravity_scale, 1.2)
    assert drawn.strength_scale == 1.0


@pytest.mark.needs("brax")
@pytest.mark.parametrize(
    "settings, message",
    [
        ({"mass_scal": 2.0}, "setting of brax/hopper: 'mass_scal'; did you mean mass_scale"),
        ({"randomize": "mass:log:1:2"}, "unknown parameter of brax/hopper .*'mass'.*mass_scale"),
    ],
)
def test_unknown_factors(settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make("brax/hopper", **settings)
