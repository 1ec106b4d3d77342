"""Pursuit against its rules, worked out in NumPy or by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms import vdn
from envs import randomized
from envs.batch import transition
from envs.pursuit import Pursuit, PursuitState, chase, flee

RIGHT, UP, LEFT, DOWN = range(4)


@pytest.fixture(scope="module")
def duel():
    """Two players with continuous actions, and a compiled step of one environment."""
    env, params = envs.make("Pursuit-v0")
    return params, jax.jit(lambda *args: transition(env, *args))


@pytest.fixture(scope="module")
def trio():
    """Three players with discrete actions, and a compiled step."""
    env, params = envs.make("Pursuit-v0", num_players=3, continuous=False)
    return params, jax.jit(lambda *args: transition(env, *args))


def key(seed=0):
    return jax.random.key(seed)


def at(*position, time=0):
    position = jnp.array(position, jnp.float32)
    return PursuitState(position, jnp.zeros_like(position), jnp.array(time, jnp.int32))


# --- motion -----------------------------------------------------------------------------------


def test_players_move_along_their_headings_and_stop_at_the_walls(duel):
    params, step = duel
    params = params.replace(prey_speed=3.0, predator_speed=2.0, dt=0.1, time_limit=100.0)
    random = np.random.default_rng(0)
    start = random.random((2, 2))
    state, position = at(*start), start.copy()
    for i in range(30):
        angle = random.uniform(-np.pi, np.pi, 2)
        _, state, *_ = step(key(i), state, jnp.float32(angle)[:, None], params)
        heading = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        position = np.clip(position + np.array([[0.3], [0.2]]) * heading, 0.0, 1.0)
        np.testing.assert_allclose(state.position, position, atol=1e-5)
        np.testing.assert_allclose(state.heading, heading, atol=1e-5)
        assert state.time == i + 1
    assert np.any((position == 0.0) | (position == 1.0))  # the walls were met


@pytest.mark.parametrize("action, expected", [(RIGHT, (1, 0)), (UP, (0, 1)), (LEFT, (-1, 0))])
def test_the_four_directions_are_exact(trio, action, expected):
    params, step = trio
    state = at((0.5, 0.5), (0.1, 0.1), (0.9, 0.9))
    _, after, *_ = step(key(), state, jnp.array([action, DOWN, DOWN]), params)
    np.testing.assert_array_equal(after.heading, [expected, (0, -1), (0, -1)])
    moved = np.array(after.position - state.position)
    np.testing.assert_allclose(moved[0], np.array(expected) * 0.01, atol=1e-6)
    np.testing.assert_allclose(moved[1:], [[0, -0.001]] * 2, atol=1e-6)  # the slow predators


def test_extreme_actions_keep_everybody_in_the_square(duel):
    params, step = duel
    params = params.replace(prey_speed=50.0, predator_speed=1e4, catch_radius=-1.0)
    state, random = at((0.5, 0.5), (0.2, 0.2)), np.random.default_rng(1)
    for i in range(200):
        action = jnp.float32(random.choice([-1e6, 1e6, 0.0, 1e3], (2, 1)) * random.random((2, 1)))
        _, state, *_ = step(key(i), state, action, params)
        assert np.all((np.array(state.position) >= 0) & (np.array(state.position) <= 1))


def test_start_positions_are_uniform_and_catches_by_starting_near_wait_for_the_first_step(duel):
    params, step = duel
    env = Pursuit()
    reset = jax.jit(jax.vmap(env.reset_env, (0, None)))
    observation, state = reset(jax.random.split(key(), 4000), params)
    for column in np.array(state.position).reshape(4000, -1).T:
        steps = np.arange(1, 4001) / 4000  # Kolmogorov-Smirnov at the 0.1 % level
        assert np.abs(np.sort(column) - steps).max() < 1.95 / np.sqrt(4000)
    np.testing.assert_array_equal(observation[:, 0, 0], 0.0)
    np.testing.assert_array_equal(state.heading, 0.0)
    near = at((0.5, 0.5), (0.6, 0.5))
    assert not env.is_terminated(near, params)
    _, _, reward, terminated, _, _ = step(key(), near, jnp.zeros((2, 1)), params)
    assert terminated and list(reward) == [-100, 100]


# --- catches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("gap, caught", [(0.1875, True), (0.25, True), (0.3125, False)])
def test_a_catch_is_a_distance_of_the_radius_or_less(duel, gap, caught):
    """All numbers are exact in binary. Both players move right by the same step, so the gap
    stays."""
    params, step = duel
    params = params.replace(catch_radius=0.25, dt=0.0625)
    _, _, reward, terminated, truncated, info = step(
        key(), at((0.25, 0.5), (0.25 + gap, 0.5)), jnp.zeros((2, 1)), params
    )
    assert (bool(terminated), bool(truncated), bool(info["caught"])) == (caught, False, caught)
    assert list(reward) == ([-100, 100] if caught else [1, -1])


def test_distances_are_measured_after_the_move(duel):
    """0.21 apart, each moves 0.01 towards the other: caught."""
    params, step = duel
    state = at((0.4, 0.5), (0.61, 0.5))
    towards, apart = jnp.array([[0.0], [np.pi]]), jnp.array([[np.pi], [0.0]])
    assert step(key(), state, towards, params)[3]
    assert not step(key(), state, apart, params)[3]


@pytest.mark.parametrize(
    "first, second, expected",
    [
        ((0.6, 0.5), (0.9, 0.9), [-100, 100, 50]),
        ((0.1, 0.1), (0.5, 0.6), [-100, 50, 100]),
        ((0.65, 0.5), (0.5, 0.6), [-100, 50, 100]),  # both within: the nearer one
        ((0.6, 0.5), (0.5, 0.65), [-100, 100, 50]),
        ((0.75, 0.5), (0.75, 0.5), [-100, 100, 50]),  # of equals the lower index
        ((0.1, 0.1), (0.9, 0.9), [1, -1, -1]),
    ],
)
def test_the_nearest_predator_is_the_catcher_and_the_other_gets_half(trio, first, second, expected):
    params, step = trio
    params = params.replace(catch_radius=0.25, dt=0.0, time_limit=1.0)
    _, _, reward, terminated, *_ = step(
        key(), at((0.5, 0.5), first, second), jnp.zeros(3, int), params
    )
    assert list(reward) == expected and terminated == (expected[0] < 0)


def test_all_rewards_are_parameters(trio):
    params, step = trio
    params = params.replace(step_reward=0.5, catch_reward=10.0, helper_share=0.25)
    far, near = at((0.5, 0.5), (0, 0), (1, 1)), at((0.5, 0.5), (0.55, 0.5), (1, 1))
    stay = jnp.zeros(3, int)
    np.testing.assert_array_equal(step(key(), far, stay, params)[2], [0.5, -0.5, -0.5])
    np.testing.assert_array_equal(step(key(), near, stay, params)[2], [-10, 10, 2.5])


# --- time -------------------------------------------------------------------------------------


def test_the_time_limit_truncates_after_whole_steps(duel):
    params, step = duel
    still = params.replace(prey_speed=0.0, predator_speed=0.0)
    for limit, steps in ((1.0, 100), (0.3, 30), (0.07, 7), (2.0, 200)):
        flags = []
        for time in (steps - 2, steps - 1):
            state = at((0, 0), (1, 1), time=time)
            _, _, _, *flag, _ = step(
                key(), state, jnp.zeros((2, 1)), still.replace(time_limit=limit)
            )
            flags.append(tuple(map(bool, flag)))
        assert flags == [(False, False), (False, True)], limit


@pytest.mark.parametrize("max_steps", [30, 500])
def test_max_steps_lifts_a_time_limit_in_seconds(max_steps):
    env, params = envs.make("Pursuit-v0", max_steps=max_steps, prey_speed=0.0, predator_speed=0.0)
    assert params.time_limit == max(1.0, max_steps * params.dt)
    _, state = env.reset_env(key(), params)
    last = lambda steps: state.replace(
        inner=state.inner.replace(time=jnp.int32(steps)), steps=jnp.int32(steps)
    )
    assert not env.is_truncated(last(max_steps - 1), params)
    assert env.is_truncated(last(max_steps), params)


@pytest.mark.parametrize("settings", [{"time_limit": math.inf}, {"dt": 0.0}])
def test_an_evaluation_without_end_is_refused(settings):
    env, params = envs.make("Pursuit-v0", **settings)
    with pytest.raises(ValueError, match="Pursuit-v0 has no time limit"):
        envs.check_ends(env, params)
    envs.check_ends(*envs.make("Pursuit-v0", max_steps=50, **settings))
    envs.check_ends(*envs.make("Pursuit-v0"))


def test_an_evaluation_without_end_is_refused_at_the_ends_of_ranges():
    """A grid plays them. A length of steps of 0 never reaches the limit."""
    with pytest.raises(ValueError, match="no time limit at an end of its ranges, so an eval"):
        envs.check_ends(*envs.make("Pursuit-v0", randomize="dt:uniform:0:0.02"))
    envs.check_ends(*envs.make("Pursuit-v0", randomize="dt:uniform:0:0.02", max_steps=50))
    envs.check_ends(*envs.make("Pursuit-v0", randomize="dt:uniform:0.01:0.02"))


@pytest.mark.parametrize("max_steps", [60, 200])
def test_max_steps_lifts_a_time_limit_of_steps_whose_length_is_drawn(max_steps):
    ranges = "dt:uniform:0.005:0.02"
    env, params = envs.make("Pursuit-v0", randomize=ranges, max_steps=max_steps)
    for share in (0.0, 0.5, 1.0):
        own = randomized.pinned(env, jnp.array([share]))
        _, state = own.reset_env(key(), params)
        inner = state.inner.replace(inner=state.inner.inner.replace(time=jnp.int32(max_steps - 1)))
        late = state.replace(inner=inner, steps=jnp.int32(max_steps - 1))
        assert not own.is_truncated(late, params)


def test_a_catch_in_the_last_step_is_a_termination(duel):
    params, step = duel
    observation, _, reward, terminated, truncated, _ = step(
        key(), at((0.5, 0.5), (0.6, 0.5), time=99), jnp.zeros((2, 1)), params
    )
    assert terminated and not truncated
    assert list(reward) == [-100, 100] and observation[0, 0] == 1.0


# --- observations -----------------------------------------------------------------------------


def test_everybody_sees_the_same(trio):
    params, step = trio
    state = at((0.5, 0.5), (0.1, 0.2), (0.9, 0.8), time=24)
    observation, after, *_ = step(key(), state, jnp.array([UP, LEFT, DOWN]), params)
    headings = [0, 1, -1, 0, 0, -1]
    expected = np.array([0.25, *np.array(after.position).ravel(), *headings])
    assert observation.dtype == jnp.float32
    np.testing.assert_allclose(observation, [expected] * 3, atol=1e-6)


# --- scripted players -------------------------------------------------------------------------


@pytest.mark.parametrize("continuous", [True, False])
def test_a_random_prey_goes_in_all_directions_and_ignores_the_predator(continuous):
    env = Pursuit(continuous=continuous, prey="random")
    params = env.default_params
    assert env.num_agents == 1
    state, action = at((0.5, 0.5), (0.1, 0.1)), jnp.zeros((1, 1) if continuous else 1, int)
    keys = jax.random.split(key(), 2000)
    step = jax.jit(jax.vmap(env.step_env, (0, None, None, None)))
    observation, after, reward, *_ = step(keys, state, action, params)
    assert observation.shape == (2000, 1, 9) and reward.shape == (2000, 1)
    np.testing.assert_array_equal(reward, -1.0)
    np.testing.assert_array_equal(after.heading[:, 1], [[1, 0]] * 2000)
    heading = np.array(after.heading[:, 0])
    turns = np.arctan2(heading[:, 1], heading[:, 0]) / (2 * np.pi) % 1
    if continuous:
        assert np.abs(np.sort(turns) - np.arange(1, 2001) / 2000).max() < 1.95 / np.sqrt(2000)
    else:
        values, counts = np.unique(turns.round(3), return_counts=True)
        np.testing.assert_array_equal(values, [0, 0.25, 0.5, 0.75])
        assert ((counts - 500) ** 2 / 500).sum() < 16.3  # chi-squared, the 0.1 % level


@pytest.mark.parametrize("continuous", [True, False])
def test_a_fleeing_prey_runs_from_the_nearest_predator(continuous):
    env = Pursuit(3, continuous, "flee")
    step = jax.jit(env.step_env)
    assert env.num_agents == 2
    state = at((0.5, 0.5), (0.1, 0.1), (0.8, 0.9))
    action = jnp.zeros((2, 1) if continuous else 2, int)
    observation, after, reward, *_ = step(key(), state, action, env.default_params)
    expected = np.array([-0.6, -0.8]) if continuous else np.array([0, -1])
    np.testing.assert_allclose(after.heading[0], expected, atol=1e-6)
    np.testing.assert_allclose(after.position[0], 0.5 + 0.01 * expected, atol=1e-6)
    assert observation.shape == (2, 13)
    np.testing.assert_array_equal(reward, [-1, -1])
    before = jnp.concatenate([jnp.zeros(1), state.position.ravel(), jnp.zeros(6)])
    same = flee(before, continuous)
    assert same == (DOWN if not continuous else jnp.arctan2(-0.4, -0.3))
    near = state.replace(position=state.position.at[1].set(jnp.array([0.45, 0.5])))
    reward = step(key(), near, action, env.default_params)[2]
    np.testing.assert_array_equal(reward, [100, 50])  # of the predators only


def test_a_chase_goes_straight_at_the_prey():
    position = jnp.array([0.5, 0.5, 0.1, 0.2, 0.5, 0.9])
    observation = jnp.concatenate([jnp.zeros(1), position, jnp.zeros(6)])
    both = jnp.stack([observation] * 2)
    np.testing.assert_allclose(chase(both, 1)[:, 0], np.arctan2(0.3, 0.4), atol=1e-6)
    np.testing.assert_allclose(chase(observation, 2), [-np.pi / 2], atol=1e-6)
    np.testing.assert_array_equal(chase(both, 1, continuous=False), [RIGHT] * 2)
    assert chase(observation, 2, continuous=False) == DOWN


# --- as an environment of the kit ---------------------------------------------------------------


@pytest.mark.parametrize("prey", ["learned", "flee"])
def test_batches_restart_and_speeds_can_be_swept(prey):
    """A predator faster than its prey catches it; one that stands still never does."""
    env, params = envs.make("Pursuit-v0", num_players=3, prey=prey, prey_speed=1.0)
    batch = envs.batch(env, 32, 100)

    def roll(speed, key):
        swept = params.replace(predator_speed=speed, catch_radius=0.02, time_limit=0.5)
        reset_key, refill_key, step_key = jax.random.split(key, 3)
        observation, state = batch.reset(reset_key, swept)
        state = batch.refill(refill_key, state, swept)

        def step(carry, key):
            observation, state = carry
            chasers = [chase(observation[:, 0], player) for player in (1, 2)]
            prey = [flee(observation[:, 0])] * (env.num_agents - 2)
            action = jnp.stack([*prey, *chasers], axis=1)
            after, state, reward, terminated, truncated, info = batch.step(
                key, state, action, swept
            )
            return (after, state), (reward, terminated, truncated, info["caught"])

        return jax.lax.scan(step, (observation, state), jax.random.split(step_key, 100))[1]

    with jax.debug_key_reuse(False):  # see conftest: keys under vmap
        swept = jax.jit(jax.vmap(roll))(jnp.array([0.0, 3.0]), jax.random.split(key(), 2))
    reward, terminated, truncated, caught = map(np.asarray, swept)
    assert reward.shape == (2, 100, 32, env.num_agents) and terminated.shape == (2, 100, 32)
    np.testing.assert_array_equal(terminated, caught)
    assert caught[1].sum() > 50 > 10 > caught[0].sum()
    assert truncated[0, 49].mean() > 0.8 and not truncated[0, :49].any()
    assert np.all((reward[..., -1] >= 50) == caught)


def test_pictures_differ_between_states():
    env, params = envs.make("Pursuit-v0", num_players=3)
    first, second = at((0.5, 0.5), (0.1, 0.2), (1, 1)), at((0.5, 0.6), (0.1, 0.2), (1, 1))
    pictures = [env.render(state, params) for state in (first, second, first.replace(time=50))]
    assert all(p.dtype == np.uint8 and p.shape == pictures[0].shape for p in pictures)
    assert pictures[0].shape[2] == 3 and min(pictures[0].shape[:2]) >= 300
    assert (pictures[0] != pictures[1]).any() and (pictures[0] != pictures[2]).any()
    wide = env.render(first, params.replace(catch_radius=0.4))
    assert (wide != pictures[0]).any()


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_players": 1}, "num_players=1: give a whole number, 2 or more"),
        ({"num_players": 2.0}, "num_players=2.0"),
        ({"num_players": True}, "num_players=True"),
        ({"prey": "clever"}, "prey='clever': there are learned, random, flee"),
        ({"continuous": "no"}, "continuous='no': give True or False"),
        ({"prey_sped": 1.0}, "'prey_sped'; did you mean prey_speed"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make("Pursuit-v0", **settings)


def test_a_hunt_is_pursuit_for_a_team():
    env, params = envs.make("Hunt-v0")
    assert (env.name, env.num_agents, env.num_players, env.prey) == ("Hunt-v0", 3, 4, "flee")
    assert (params.prey_speed, params.predator_speed) == (1.0, 1.0)
    assert env.action_space(params).n == 4 and not hasattr(env, "shared_reward")
    assert envs.make("Hunt-v0", num_players=3, prey="random")[0].num_agents == 2


@pytest.mark.parametrize("num_players, predator_speed", [(2, 1.0), (3, 0.1)])
def test_defaults(num_players, predator_speed):
    env, params = envs.make("Pursuit-v0", num_players=num_players)
    assert (params.prey_speed, params.predator_speed) == (1.0, predator_speed)
    assert (params.dt, params.time_limit, params.catch_radius) == (0.01, 1.0, 0.2)
    assert all(type(leaf) is float for leaf in jax.tree.leaves(params))
    assert env.name == "Pursuit-v0" and env.num_agents == num_players
    assert env.observation_space(params).shape == (1 + 4 * num_players,)
    space = env.action_space(params)
    assert (space.shape, space.low, space.high) == ((1,), -np.pi, np.pi)


def test_a_learned_prey_and_its_predators_are_no_team():
    for name in ("Pursuit-v0", "Hunt-v0"):
        settings = (("prey", "learned"), ("continuous", False))
        with pytest.raises(ValueError, match="mixer='sum' .* are opponents.*mixer='none' would do"):
            vdn.make_train(vdn.Config(env=name, env_settings=settings))
        assert not envs.make(name, prey="flee", continuous=False)[0].opponents
