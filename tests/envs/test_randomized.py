"""Parameters drawn anew for every episode."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment, spaces

import envs
from envs import randomized

POLE = "length:uniform:0.25:1/gravity:log:5:20"


@struct.dataclass
class Numbers:
    a: float = 1.0
    b: float = 2.0
    max_steps_in_episode: int = 9


@struct.dataclass
class Time:
    time: jax.Array


class Everywhere(environment.Environment):
    """Every method uses a parameter."""

    default_params = Numbers()

    def reset_env(self, key, params):
        return jnp.array([params.a]), Time(jnp.zeros((), jnp.int32))

    def step_env(self, key, state, action, params):
        state = Time(state.time + 1)
        return jnp.array([params.a]), state, params.b, state.time > params.b, {}

    def is_truncated(self, state, params):
        return state.time > params.a

    def is_terminated(self, state, params):
        return state.time > params.b

    def action_mask(self, state, params):
        return jnp.arange(3) < params.a

    def action_space(self, params):
        return spaces.Discrete(3)

    def observation_space(self, params):
        return spaces.Box(0, 9, (1,), jnp.float32)


def drawn(env, params):
    """Parameters of the episodes of many resets. One number of them, so operations compile once."""
    keys = jax.random.split(jax.random.key(0), 4000)
    state = jax.vmap(env.reset_env, (0, None))(keys, params)[1]
    return jax.vmap(env.drawn, (0, None))(state, params), state


def test_draws_fill_their_ranges():
    env, params = envs.make("CartPole-v1", randomize=POLE)
    p, state = drawn(env, params)
    length, gravity = np.asarray(p.length), np.asarray(p.gravity)
    assert 0.25 <= length.min() < 0.26 and 0.99 < length.max() <= 1
    assert 5 <= gravity.min() < 5.05 and 19.8 < gravity.max() <= 20.001
    np.testing.assert_allclose(np.quantile(length, [0.25, 0.5]), [0.4375, 0.625], atol=0.02)
    np.testing.assert_allclose(np.quantile(gravity, [0.25, 0.5]), [5 * 2**0.5, 10], rtol=0.05)
    assert abs(np.corrcoef(np.asarray(state.shares).T)[0, 1]) < 0.05
    np.testing.assert_array_equal(p.masscart, np.full(4000, 1.0))
    np.testing.assert_allclose(p.polemass_length, 0.1 * length, rtol=1e-6)


@pytest.mark.parametrize(
    "name, words, followers",
    [
        ("CartPole-v1", "masscart:uniform:1:2", {"total_mass": lambda p: p.masscart + 0.1}),
        ("CartPole-v1", "masspole:uniform:1:2", {"total_mass": lambda p: p.masspole + 1.0}),
        ("CartPole-v1", "masspole:uniform:1:2", {"polemass_length": lambda p: p.masspole * 0.5}),
        ("Acrobot-v1", "link_length_1:log:1:2", {"link_com_pos_1": lambda p: p.link_length_1 / 2}),
        ("Acrobot-v1", "link_length_2:log:1:2", {"link_com_pos_2": lambda p: p.link_length_2 / 2}),
        ("Acrobot-v1", "link_length_2:log:1:2", {"link_com_pos_1": lambda p: 0.5}),
    ],
)
def test_parameters_that_depend_on_others_follow(name, words, followers):
    p, _ = drawn(*envs.make(name, randomize=words))
    for follower, value in followers.items():
        np.testing.assert_allclose(getattr(p, follower), value(p), rtol=1e-6)
        assert getattr(p, words.partition(":")[0]).std() > 0.01


def test_followers_that_are_set_or_drawn_stay():
    p, _ = drawn(*envs.make("CartPole-v1", randomize="masspole:uniform:1:2", total_mass=7.0))
    np.testing.assert_array_equal(p.total_mass, np.full(4000, 7.0))
    words = "masspole:uniform:1:2/total_mass:uniform:3:4"
    p, _ = drawn(*envs.make("CartPole-v1", randomize=words))
    assert p.total_mass.std() > 0.1 and p.total_mass.min() >= 3


@pytest.mark.parametrize(
    "name, settings, followers",
    [
        ("CartPole-v1", {"length": 2.0}, {"total_mass": 1.1, "polemass_length": 0.2}),
        ("CartPole-v1", {"masspole": 1, "length": 2.0, "polemass_length": 7.0}, {"total_mass": 2}),
        ("Acrobot-v1", {"link_length_2": 3.0}, {"link_com_pos_1": 0.5, "link_com_pos_2": 1.5}),
    ],
)
def test_parameters_that_are_set_are_followed_as_drawn_ones_are(name, settings, followers):
    params = envs.make(name, **settings)[1]
    for field, value in (settings | followers).items():
        assert getattr(params, field) == pytest.approx(value)


def test_ranges_of_other_parameters_change_nothing_that_was_set():
    """As `algorithms.launch.grid` gives ranges to an environment that a run was trained in."""
    params = envs.make("CartPole-v1", length=1.0)[1]
    drawing, others = envs.make("CartPole-v1", length=1.0, randomize="gravity:uniform:9:10")
    state = drawing.reset_env(jax.random.key(0), others)[1]
    drawn = drawing.drawn(state, others)
    assert drawn.gravity != params.gravity
    assert drawn.replace(gravity=params.gravity) == params


def test_an_episode_keeps_its_parameters_and_moves_by_them():
    """Against an environment that has these parameters for good."""
    env, params = envs.make("Pendulum-v1", randomize="g:uniform:1:20/l:uniform:0.5:2")
    plain, _ = envs.make("Pendulum-v1")
    observation, state = env.reset_env(jax.random.key(3), params)
    own = env.drawn(state, params)
    other, step, plain_step = state.inner, jax.jit(env.step_env), jax.jit(plain.step_env)
    for t in range(20):
        key, action = jax.random.key(t), jnp.array([np.sin(t)], jnp.float32)
        observation, state, reward, *_ = step(key, state, action, params)
        seen, other, gained, *_ = plain_step(key, other, action, own)
        np.testing.assert_allclose(observation, seen, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(reward, gained, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(own.g, env.drawn(state, params).g)
    assert observation.shape == (3,)


def test_the_limits_of_an_episode_can_be_drawn():
    """Whether an episode has ended is asked of its own parameters."""
    env, params = envs.make("CartPole-v1", randomize="x_threshold:uniform:0.1:1")
    _, state = env.reset_env(jax.random.key(0), params)
    limit = env.drawn(state, params).x_threshold
    for x, over in ((limit - 0.01, False), (limit + 0.01, True)):
        at = state.replace(inner=state.inner.replace(x=x, theta=jnp.zeros(())))
        assert bool(env.is_terminated(at, params)) == over


def test_actions_have_the_widest_bounds_of_all_episodes():
    env, _ = envs.make("Pendulum-v1", randomize="max_torque:uniform:1:8", rescale_action=True)
    params = env.default_params
    inner = randomized.of(env).action_space(params)
    assert (float(inner.low), float(inner.high)) == (-8.0, 8.0)
    speeds = []
    for share in (0.0, 1.0):
        pinned = randomized.pinned(env, jnp.array([share]))
        _, state = pinned.reset_env(jax.random.key(0), params)
        _, after, *_ = pinned.step_env(jax.random.key(1), state, jnp.ones(1), params)
        _, still, *_ = pinned.step_env(jax.random.key(1), state, jnp.zeros(1), params)
        speeds.append(float(after.inner.theta_dot - still.inner.theta_dot))
    np.testing.assert_allclose(speeds[1], 8 * speeds[0], rtol=1e-4)


def test_the_widest_bounds_may_be_at_any_corner_and_are_known_inside_a_trace():
    class Geared(Everywhere):
        def action_space(self, params):
            high = params.a / params.b
            return spaces.Box(-high, high, (1,))

    env, params = envs.make(Geared(), randomize="a:uniform:1:4/b:uniform:1:4")
    assert env.action_space(params).high == 4.0 and env.action_space(params).low == -4.0
    jax.jit(lambda x: x * float(env.action_space(params).high))(1.0)


def test_a_class_without_a_name_has_that_of_its_class():
    class Plain:
        """Of no base class."""

    for part in ("reset_env", "step_env", "is_truncated", "action_space", "observation_space"):
        setattr(Plain, part, getattr(Everywhere, part))
    Plain.default_params = Everywhere.default_params
    env, _ = envs.make(Plain(), randomize="a:uniform:0:1")
    assert env.name == "Plain"
    with pytest.raises(ValueError, match="indices from 0 to 0, as Plain has observations of 1"):
        envs.make(Plain(), observe=3)


def test_what_was_drawn_can_be_seen():
    settings = {"randomize": POLE, "observe_randomized": True}
    env, params = envs.make("CartPole-v1", **settings)
    assert env.observation_space(params).shape == (6,)
    np.testing.assert_array_equal(env.observation_space(params).low[-2:], [-1, -1])
    observation, state = env.reset_env(jax.random.key(5), params)
    p = env.drawn(state, params)
    expected = [(p.length - 0.625) / 0.375, jnp.log(p.gravity / 10) / jnp.log(2)]
    np.testing.assert_allclose(observation[-2:], expected, atol=1e-5)
    observation, *_ = env.step_env(jax.random.key(0), state, jnp.int32(0), params)
    np.testing.assert_allclose(observation[-2:], expected, atol=1e-5)
    hidden, other = envs.make("CartPole-v1", randomize=POLE)
    assert hidden.observation_space(other).shape == (4,)


def test_every_episode_of_a_batch_draws_anew():
    """Episodes of one step each: no two of them share their parameters."""
    env, params = envs.make("CartPole-v1", randomize=POLE, max_steps=1)
    batch = envs.batch(env, 3, 16)
    _, state = jax.jit(batch.reset)(jax.random.key(0), params)
    state = jax.jit(batch.refill)(jax.random.key(1), state, params)
    step, found = jax.jit(batch.step), []
    for t in range(16):
        _, state, *_ = step(jax.random.key(t), state, jnp.zeros(3, jnp.int32), params)
        found.append(state.env.inner.shares)
    assert len(np.unique(np.concatenate(found)[:, 0])) == 48


def test_all_agents_see_what_was_drawn():
    settings = {"randomize": "prey_speed:uniform:1:2", "observe_randomized": True}
    env, params = envs.make("Hunt-v0", **settings)
    plain = envs.make("Hunt-v0")[0].observation_space(params).shape
    assert env.observation_space(params).shape == (plain[0] + 1,)
    observation, state = env.reset_env(jax.random.key(2), params)
    speed = env.drawn(state, params).prey_speed
    assert observation.shape == (env.num_agents, plain[0] + 1)
    np.testing.assert_allclose(
        observation[:, -1], np.full(env.num_agents, 2 * speed - 3), atol=1e-6
    )


def test_other_floats_can_be_traced():
    env, params = envs.make("CartPole-v1", randomize="length:uniform:0.25:1")
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (2,)), params).replace(
        gravity=jnp.array([1.0, 50.0])
    )
    reset = functools.partial(env.reset_env, jax.random.key(0))
    _, state = jax.jit(jax.vmap(reset))(many)
    move = lambda params, state: env.step_env(jax.random.key(0), state, jnp.int32(0), params)[0]
    seen = jax.jit(jax.vmap(move))(many, state)
    assert seen[0, 3] != seen[1, 3], "gravity moves the pole"
    np.testing.assert_array_equal(*state.shares)


def test_every_method_has_the_drawn_parameters():
    env, params = envs.make(Everywhere(), randomize="a:uniform:1.5:4/b:uniform:5:9")
    for seed in range(8):
        observation, state = env.reset_env(jax.random.key(seed), params)
        p = env.drawn(state, params)
        np.testing.assert_allclose(observation, p.a, rtol=1e-6)
        mask = env.action_mask(state, params)
        np.testing.assert_array_equal(mask, jnp.arange(3) < p.a)
        assert mask[1], "the default allows one action"
        for time, truncated in ((int(p.a), False), (int(p.a) + 1, True)):
            at = state.replace(inner=Time(jnp.int32(time)))
            assert bool(env.is_truncated(at, params)) == truncated


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"randomize": "length"}, "'length' is no range; give length:uniform:0.25:1/gravity"),
        ({"randomize": "length:normal:0:1"}, "'length:normal:0:1' is no range"),
        ({"randomize": 3}, "'3' is no range"),
        ({"randomize": "lenght:uniform:1:2"}, "parameter of CartPole-v1 .*did you mean length"),
        ({"randomize": "max_steps_in_episode:uniform:1:2"}, "is no float; those that are: grav"),
        ({"randomize": "length:uniform:2:1"}, "the second number must be the larger"),
        ({"randomize": "length:uniform:1:inf"}, "the second number must be the larger"),
        ({"randomize": "length:uniform:a:2"}, "give two numbers at the end"),
        ({"randomize": "length:log:0:2"}, "log needs numbers above 0"),
        ({"randomize": "length:log:1e-30:1e10"}, "the range does not fit into float32"),
        ({"randomize": "length:log:1e-44:1e-40"}, "the range does not fit into float32"),
        ({"randomize": "length:uniform:-2e38:2e38"}, "the range does not fit into float32"),
        ({"randomize": "length:log:1:2/length:log:2:3"}, "length has two ranges"),
        ({"randomize": POLE, "gravity": 9.0}, "gravity is set as well; leave one of the two out"),
        ({"observe_randomized": True}, "nothing is drawn; give randomize too"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make("CartPole-v1", **settings)


def test_images_cannot_show_what_was_drawn():
    settings = {"use_visual_obs": True, "randomize": "fail_prob:uniform:0:1"}
    envs.make("FourRooms-misc", **settings)
    with pytest.raises(ValueError, match="needs flat observations; FourRooms-misc has Box"):
        envs.make("FourRooms-misc", **settings, observe_randomized=True)


def test_whole_numbers_cannot_show_what_was_drawn():
    class Counts(Everywhere):
        def observation_space(self, params):
            return spaces.Box(0, 9, (1,), jnp.int32)

    envs.make(Counts(), randomize="a:uniform:1:2")
    with pytest.raises(ValueError, match="needs observations of floats; Counts has Box"):
        envs.make(Counts(), randomize="a:uniform:1:2", observe_randomized=True)


def test_an_evaluation_plays_it():
    """With the batches above this is all that training does; test_ppo_plr.py trains on ranges."""
    settings = {"randomize": POLE, "observe_randomized": True}
    env, params = envs.make("CartPole-v1", **settings)
    policy = lambda state, observation, memory=None: ((observation[2] > 0).astype(int), memory)
    play = jax.jit(lambda key: envs.evaluate(policy, None, env, params, key, 4))
    episodes = play(jax.random.key(0))
    assert episodes.terminated.all() and (episodes.length > 9).all()
