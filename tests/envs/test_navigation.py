"""Navigation against its rules, worked out in NumPy or by hand."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs.batch import transition
from envs.navigation import MultiNavigation, Navigation, NavigationState, _rounds

NONE, RIGHT, UP, LEFT, DOWN = range(5)
# One number off its default for each parameter of the dynamics, so that none can be left out.
ODD = dict(half_width=1.5, radius=0.12, mass=0.7, max_force=1.3, drag=0.4, stiffness=30.0)
ODD |= dict(wall_bounce=0.6, dt=0.07, goal_radius=0.2, progress_reward=2.0, goal_reward=0.3)
ODD |= dict(collision_cost=0.25, effort_cost=0.05)
FREE = dict(drag=0.0, max_force=0.0, wall_bounce=1.0)  # nothing but collisions


def key(seed=0):
    return jax.random.key(seed)


@functools.cache
def compiled(num_agents, collisions="elastic", continuous=True):
    """The environment, its compiled reset and its compiled step."""
    settings = dict(num_agents=num_agents, collisions=collisions, continuous=continuous)
    env, params = envs.make("MultiNavigator-v0", **settings)
    return env, params, jax.jit(env.reset_env), jax.jit(lambda *args: transition(env, *args))


def at(position, velocity=None, goal=None, time=0):
    position = jnp.array(position, jnp.float32)
    zeros = jnp.zeros_like(position)
    velocity = zeros if velocity is None else jnp.array(velocity, jnp.float32)
    goal = zeros if goal is None else jnp.array(goal, jnp.float32)
    return NavigationState(position, velocity, goal, jnp.array(time, jnp.int32))


def reference(position, velocity, goal, action, params, collisions):
    """One step in loops over pairs: position, velocity, reward, collided."""
    p, num_agents = params, len(position)
    action = np.clip(np.asarray(action, np.float64), -1, 1)
    force, hit = p.max_force * action, np.zeros(num_agents, bool)
    pairs = [pair for partners in _rounds(num_agents) for pair in enumerate(partners)]
    pairs = [(i, j) for i, j in pairs if i < j]
    if collisions == "penalised":
        for i, j in pairs:
            apart = position[i] - position[j]
            overlap = 2 * p.radius - np.linalg.norm(apart)
            if overlap > 0:
                push = p.stiffness * overlap * apart / np.linalg.norm(apart)
                force[i], force[j], hit[[i, j]] = force[i] + push, force[j] - push, True
    velocity = (p.mass * velocity + p.dt * force) / (p.mass + p.dt * p.drag)
    before, position = np.linalg.norm(goal - position, axis=1), position + p.dt * velocity
    if collisions == "elastic":
        for i, j in pairs:
            apart = position[i] - position[j]
            overlap = 2 * p.radius - np.linalg.norm(apart)
            if overlap > 0:
                normal, hit[[i, j]] = apart / np.linalg.norm(apart), True
                speed = min((velocity[i] - velocity[j]) @ normal, 0.0)
                velocity[i], velocity[j] = (
                    velocity[i] - speed * normal,
                    velocity[j] + speed * normal,
                )
                position[i] += overlap / 2 * normal
                position[j] -= overlap / 2 * normal
    reach = p.half_width - p.radius
    for i, axis in np.ndindex(position.shape):
        if abs(position[i, axis]) > reach:
            side = np.sign(position[i, axis])
            position[i, axis] = side * reach
            if velocity[i, axis] * side > 0:
                velocity[i, axis] *= -p.wall_bounce
    after = np.linalg.norm(goal - position, axis=1)
    reward = p.progress_reward * (before - after) + p.goal_reward * (after < p.goal_radius)
    reward -= p.collision_cost * hit + p.effort_cost * (action**2).sum(1)
    return position, velocity, reward, hit


# --- motion and rewards -------------------------------------------------------------------------


@pytest.mark.parametrize("collisions", ["elastic", "penalised"])
def test_steps_are_those_of_numpy(collisions):
    """Five crowded discs, one of which has no partner in each round; each step starts from one
    state."""
    _, params, reset, step = compiled(5, collisions)
    params = params.replace(**ODD)
    random, hits, goals = np.random.default_rng(0), 0, 0
    _, state = reset(key(), params)
    for i in range(150):
        pull = -np.asarray(state.position) if i < 100 else np.asarray(state.goal - state.position)
        action = np.float32(2 * pull + random.normal(size=(5, 2)))
        before = [np.array(x, np.float64) for x in (state.position, state.velocity, state.goal)]
        position, velocity, reward, hit = reference(*before, action, params, collisions)
        _, state, got, terminated, truncated, info = step(key(i), state, action, params)
        np.testing.assert_allclose(state.position, position, atol=2e-5)
        np.testing.assert_allclose(state.velocity, velocity, atol=2e-5)
        np.testing.assert_allclose(got, reward, atol=5e-5)
        np.testing.assert_array_equal(info["collided"], hit)
        reached = np.linalg.norm(before[2] - position, axis=1) < 0.2
        np.testing.assert_array_equal(info["reached"], reached)
        assert not terminated and not truncated and got.dtype == jnp.float32
        hits, goals = hits + hit.sum(), goals + reached.sum()
    assert hits > 20 and goals > 20


@pytest.mark.parametrize(
    "action, force",
    [(NONE, (0, 0)), (RIGHT, (1, 0)), (UP, (0, 1)), (LEFT, (-1, 0)), (DOWN, (0, -1))],
)
def test_discrete_actions_are_unit_forces(action, force):
    _, params, _, step = compiled(2, continuous=False)
    params = params.replace(effort_cost=0.5, progress_reward=0.0, goal_reward=0.0)
    _, state, reward, *_ = step(key(), at([[0, 0], [0.5, 0.5]]), jnp.array([action, NONE]), params)
    np.testing.assert_allclose(state.velocity[0], 0.05 * np.array(force) / 1.05, atol=1e-7)
    np.testing.assert_array_equal(state.velocity[1], 0.0)
    np.testing.assert_allclose(reward, [-0.5 * (action != NONE), 0], atol=1e-7)


def test_rewards_by_hand():
    """Without forces: 0.1 nearer, arrival, standing at the goal, and 0.1 farther."""
    _, params, _, step = compiled(4)
    params = params.replace(drag=0.0, dt=0.1)
    position = [[-0.5, 0.5], [0.5, 0.5], [0.5, -0.5], [-0.5, -0.5]]
    velocity = [[1, 0], [1, 0], [0, 0], [0, -1]]
    goal = [[0.3, 0.5], [0.65, 0.5], [0.5, -0.45], [-0.5, 0.5]]
    _, _, reward, *_, info = step(key(), at(position, velocity, goal), jnp.zeros((4, 2)), params)
    np.testing.assert_allclose(reward, [0.1, 0.1 + 0.05, 0.05, -0.1], atol=1e-6)
    np.testing.assert_array_equal(info["reached"], [False, True, True, False])


def test_walls_stop_or_reflect():
    _, params, _, step = compiled(2)
    start = at([[0.89, 0], [0, -0.85]], [[1, 0.5], [-0.5, -2]])
    for bounce, expected in ((0.0, [[0, 0.5], [-0.5, 0]]), (1.0, [[-1, 0.5], [-0.5, 2]])):
        walls = params.replace(drag=0.0, wall_bounce=bounce)
        _, state, *_ = step(key(), start, jnp.zeros((2, 2)), walls)
        np.testing.assert_allclose(state.velocity, expected, atol=1e-6)
        np.testing.assert_allclose(state.position, [[0.9, 0.025], [-0.025, -0.9]], atol=1e-6)


@pytest.mark.parametrize("collisions", ["elastic", "penalised"])
def test_nothing_leaves_the_box_whatever_the_action(collisions):
    num_agents = 4
    env = Navigation(num_agents, collisions)
    params = env.default_params.replace(max_force=300.0, drag=0.01, wall_bounce=1.0)
    actions = np.random.default_rng(1).normal(size=(1000, num_agents, 2)) * 1e6
    actions[::7], actions[1::7], actions[2::7] = np.inf, -np.inf, 1.0

    @jax.jit
    def play(actions):
        def step(state, action):
            state = env.step_env(key(), state, action, params)[1]
            return state, (state.position, state.velocity)

        with jax.debug_key_reuse(False):  # the environment uses no randomness
            return jax.lax.scan(step, env.reset_env(key(1), params)[1], actions)[1]

    position, velocity = play(jnp.float32(actions))
    assert np.abs(position).max() <= 0.9 and np.abs(position).max() > 0.89
    assert np.isfinite(velocity).all()


# --- collisions -------------------------------------------------------------------------------


def test_a_head_on_collision_exchanges_velocities():
    _, params, _, step = compiled(2)
    start = at([[-0.1, 0], [0.1, 0]], [[1.0, 0], [-0.5, 0]])
    _, state, *_, info = step(key(), start, jnp.zeros((2, 2)), params.replace(**FREE))
    np.testing.assert_allclose(state.velocity, [[-0.5, 0], [1.0, 0]], atol=1e-6)
    assert info["collided"].all()
    assert np.linalg.norm(state.position[0] - state.position[1]) >= 0.2 - 1e-6


def test_an_oblique_collision_turns_the_disc_at_rest_along_the_normal():
    """A disc that moves right hits one at rest, whose centre is then 45 degrees above its own."""
    _, params, _, step = compiled(2)
    side = 0.19 / np.sqrt(2)
    start = at([[-0.05, 0], [side, side]], [[1.0, 0], [0, 0]])
    _, state, *_ = step(key(), start, jnp.zeros((2, 2)), params.replace(**FREE))
    np.testing.assert_allclose(state.velocity, [[0.5, -0.5], [0.5, 0.5]], atol=1e-5)


@pytest.mark.parametrize("num_agents", [2, 5])
def test_elastic_collisions_conserve_momentum_and_energy(num_agents):
    """Many discs in one heap, far from the walls."""
    _, params, _, step = compiled(num_agents)
    params = params.replace(**FREE, half_width=100.0)
    random, hits = np.random.default_rng(2), 0
    for i in range(30):
        start = at(random.normal(size=(num_agents, 2)) * 0.15, random.normal(size=(num_agents, 2)))
        _, state, *_, info = step(key(i), start, jnp.zeros((num_agents, 2)), params)
        np.testing.assert_allclose(state.velocity.sum(0), start.velocity.sum(0), atol=1e-5)
        energies = [float((x.velocity**2).sum()) for x in (start, state)]
        np.testing.assert_allclose(energies[1], energies[0], rtol=1e-5)
        hits += int(info["collided"].sum())
    assert hits > 20


def test_discs_that_separate_or_do_not_touch_do_not_collide():
    _, params, _, step = compiled(2)
    for gap, velocity in ((0.19, 0.1), (0.25, -0.1)):
        start = at([[0, 0], [gap, 0]], [[0, 0], [velocity, 0]])
        _, state, *_ = step(key(), start, jnp.zeros((2, 2)), params.replace(**FREE))
        np.testing.assert_allclose(state.velocity, start.velocity, atol=1e-7)


def test_two_discs_in_one_place_are_parted():
    _, params, _, step = compiled(2)
    _, state, *_ = step(key(), at([[0.2, 0], [0.2, 0]]), jnp.zeros((2, 2)), params)
    np.testing.assert_allclose(state.position, [[0.1, 0], [0.3, 0]], atol=1e-6)


def test_a_soft_collision_pushes_apart_and_conserves_momentum():
    _, params, _, step = compiled(3, "penalised")
    start = at([[0, 0], [0.15, 0], [0.5, 0.5]])
    _, state, reward, *_, info = step(
        key(), start, jnp.zeros((3, 2)), params.replace(drag=0.0, progress_reward=0.0)
    )
    np.testing.assert_allclose(state.velocity, [[-0.25, 0], [0.25, 0], [0, 0]], atol=1e-5)
    np.testing.assert_array_equal(info["collided"], [True, True, False])
    np.testing.assert_allclose(reward, [0.05 - 0.1, -0.1, 0.0], atol=1e-6)


@pytest.mark.parametrize("num_agents", range(1, 8))
def test_rounds_pair_everybody_once_with_everybody(num_agents):
    rounds = _rounds(num_agents)
    for partner in rounds:
        np.testing.assert_array_equal(partner[partner], np.arange(num_agents))
    met = [(i, int(j)) for partner in rounds for i, j in enumerate(partner) if i < j]
    assert sorted(met) == list(itertools.combinations(range(num_agents), 2))


# --- starts, observations and time --------------------------------------------------------------


@pytest.mark.parametrize("num_agents", [1, 20])
def test_starts_and_goals_keep_clear_of_one_another_and_fill_the_box(num_agents):
    env = Navigation(num_agents)
    params = env.default_params
    reset = jax.jit(jax.vmap(env.reset_env, (0, None)))
    _, state = reset(jax.random.split(key(), 1000), params)
    for places in (np.array(state.position), np.array(state.goal)):
        assert np.abs(places).max() <= 1 - params.radius + 1e-6
        if num_agents > 1:
            apart = np.linalg.norm(places[:, :, None] - places[:, None], axis=-1)
            assert (apart + 9 * np.eye(num_agents)).min() >= 2 * params.radius - 1e-6
        quadrants = (places[:, 0] > 0) @ [1, 2]  # every disc gets everywhere
        assert np.bincount(quadrants, minlength=4).min() > 150
    assert not np.any(state.velocity) and not np.any(state.time)
    assert np.abs(np.corrcoef(state.position[:, 0, 0], state.goal[:, 0, 0])[0, 1]) < 0.15


@pytest.mark.parametrize("num_agents", [2, 5])
def test_observations_are_those_of_numpy(num_agents):
    env, params, _, step = compiled(num_agents)
    params = params.replace(half_width=2.0, dt=0.0, radius=0.0)  # nothing moves
    random = np.random.default_rng(3)
    position, velocity, goal = random.normal(size=(3, num_agents, 2))
    state = at(position.clip(-1.5, 1.5), velocity, goal)
    position = np.array(state.position)
    observation = np.array(step(key(), state, jnp.zeros((num_agents, 2)), params)[0])
    count = min(3, num_agents - 1)
    assert observation.shape == (num_agents, *env.observation_space(params).shape)
    assert observation.shape == (num_agents, 6 + 4 * count)
    for i in range(num_agents):
        order = np.argsort(np.linalg.norm(position - position[i], axis=1))[1 : 1 + count]
        parts = [goal[i] - position[i], velocity[i], position[i]]
        for j in order:
            parts += [position[j] - position[i], velocity[j] - velocity[i]]
        np.testing.assert_allclose(observation[i], np.concatenate(parts) / 2.0, atol=1e-5)


def test_the_time_limit_truncates_and_nothing_terminates():
    """Not even all discs at rest at their goals."""
    _, params, _, step = compiled(2)
    places = [[0, 0], [0.5, 0.5]]
    for time, expected in ((198, False), (199, True)):
        start = at(places, goal=places, time=time)
        *_, terminated, truncated, info = step(key(), start, jnp.zeros((2, 2)), params)
        assert info["reached"].all() and not terminated and truncated == expected
    env, params = envs.make("MultiNavigator-v0", max_steps=300)
    assert (env.max_steps, params.max_steps_in_episode) == (300, 300.0)


# --- as an environment of the kit ---------------------------------------------------------------


def test_a_steering_rule_reaches_nearly_all_goals_and_forces_can_be_swept():
    """Proportional steering with damping, of four discs that ignore one another."""
    env, params = envs.make("MultiNavigator-v0")
    batch = envs.batch(env, 8, 200)

    def roll(force, key):
        swept = params.replace(max_force=force)
        reset_key, refill_key, step_key = jax.random.split(key, 3)
        observation, state = batch.reset(reset_key, swept)
        state = batch.refill(refill_key, state, swept)

        def step(carry, key):
            observation, state = carry
            action = 3.0 * observation[..., :2] - observation[..., 2:4]
            after, state, reward, terminated, truncated, info = batch.step(
                key, state, action, swept
            )
            return (after, state), (reward, terminated, truncated, info["reached"])

        return jax.lax.scan(step, (observation, state), jax.random.split(step_key, 200))[1]

    with jax.debug_key_reuse(False):  # see conftest: keys under vmap
        swept = jax.jit(jax.vmap(roll))(jnp.array([0.0, 1.0]), jax.random.split(key(), 2))
    reward, terminated, truncated, reached = map(np.asarray, swept)
    assert reward.shape == reached.shape == (2, 200, 8, 4)
    assert truncated[:, -1].all() and not truncated[:, :-1].any() and not terminated.any()
    assert reached[1, -1].mean() > 0.9 and reached[0, -1].mean() < 0.1
    assert reward[1].sum(0).mean() > 5 > 1 > reward[0].sum(0).mean()


def test_one_disc_is_the_navigator():
    env, params = envs.make("Navigator-v0")
    assert (env.name, env.num_agents) == ("Navigator-v0", 1)
    bare = Navigation()
    start = at([[0.5, -0.25]], [[1, 2]], goal=[[0, 0.25]])
    observation, _, reward, *_ = jax.eval_shape(
        bare.step_env, key(), start, jnp.ones((1, 2)), params
    )
    assert observation.shape == (1, 6) and reward.shape == (1,)
    np.testing.assert_allclose(bare._observe(start, params), [[-0.5, 0.5, 1, 2, 0.5, -0.25]])
    assert envs.make("MultiNavigator-v0")[0].num_agents == MultiNavigation().num_agents == 4


def test_parameters_are_floats_and_discs_fit_their_cells():
    for num_agents in (1, 4, 12, 50):
        env = Navigation(num_agents)
        params = env.default_params
        assert all(type(leaf) is float for leaf in jax.tree.leaves(params))
        assert 2 * params.radius <= params.half_width / env.cells
        assert params.radius == 0.1 or num_agents > 12


def test_pictures_differ_between_states():
    env, params = envs.make("MultiNavigator-v0", num_agents=2)
    first = at([[0, 0], [0.5, 0.5]], goal=[[-0.5, 0.5], [0.5, -0.5]])
    others = [
        first.replace(position=first.position + 0.1),
        first.replace(goal=first.goal + 0.1),
        first.replace(velocity=first.velocity + 1.0),
    ]
    picture = env.render(first, params)
    assert picture.dtype == np.uint8 and picture.shape == (320, 320, 3)
    for other in others:
        assert (env.render(other, params) != picture).any()


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_agents": 0}, "num_agents=0: give a whole number, 1 or more"),
        ({"num_agents": "4"}, "num_agents='4'"),
        ({"collisions": "hard"}, "collisions='hard': there are elastic, penalised"),
        ({"continuous": 1}, "continuous=1: give True or False"),
        ({"frad": 1.0}, "'frad'; did you mean radius, drag"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make("MultiNavigator-v0", **settings)
