"""The adapter for JaxMARL, against JaxMARL's own steps."""

import functools
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms import parts
from envs.batch import transition

pytestmark = pytest.mark.needs("jaxmarl")

SMAX = ("HeuristicEnemySMAX", {"scenario": "3m"})
SPREAD = ("MPE_simple_spread_v3", {})
RIDDLE = ("switch_riddle", {})
KITCHEN = ("overcooked", {"layout": "cramped_room"})
SPEAKER = "MPE_simple_speaker_listener_v4"
STOP = jnp.array([4, 4, 4])
STAY = jnp.array([4, 4])


def make(name, settings, **more):
    return envs.make(f"jaxmarl/{name}", **settings, **more)


@functools.cache
def compiled(name, **settings):
    """The environment, and its compiled reset and step, each with JaxMARL's own results.

    All tests of one environment use these, because XLA takes most of their time.
    """
    env, params = make(name, settings)

    def step(key, state, action):
        inner = state.inner.inner if hasattr(env, "max_steps") else state.inner
        return both_step(env, params, key, state, inner, action)

    reset = lambda key: (*env.reset_env(key, params), env.wrapped.reset(jax.random.clone(key)))
    return env, params, jax.jit(reset), jax.jit(step)


def random_action(env, params, key):
    draw = env.action_space(params).sample
    return jax.vmap(draw)(jax.random.split(key, env.num_agents))


def both_step(env, params, key, state, inner, action):
    """One step of the adapter and of JaxMARL; XLA compiles their common part once."""
    ours = transition(env, key, state, action, params)
    sizes = [env.wrapped.action_space(agent).shape for agent in env.agents]
    own = [a[: n[0]] if n else a for a, n in zip(action, sizes)]
    theirs = env.wrapped.step_env(jax.random.clone(key), inner, dict(zip(env.agents, own)))
    return ours, theirs


def assert_same(env, ours, theirs):
    """Compares observations (padded with zeros), rewards and done of a step."""
    observation, _, reward, terminated, truncated, _ = ours
    assert observation.dtype == reward.dtype == jnp.float32
    assert_padded(env, observation, theirs[0])
    np.testing.assert_allclose(reward, [theirs[2][agent] for agent in env.agents], rtol=1e-5)
    assert bool(terminated | truncated) == bool(theirs[3]["__all__"])


def assert_padded(env, observation, by_agent):
    for row, agent in zip(np.asarray(observation), env.agents):
        own = np.asarray(by_agent[agent])
        inside = tuple(slice(n) for n in own.shape)
        np.testing.assert_allclose(row[inside], own, rtol=1e-5, atol=1e-6)
        assert np.count_nonzero(row) == np.count_nonzero(own)


# --- arrays by agent --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, settings",
    [SPREAD, RIDDLE, KITCHEN, (SPEAKER, {"action_type": "Continuous", "max_steps": 3})],
)
def test_a_step_is_that_of_jaxmarl_for_every_agent(name, settings):
    env, params, reset, step = compiled(name, **settings)
    observation, state, (seen, inner) = reset(jax.random.key(0))
    assert observation.shape == (env.num_agents, *env.observation_space(params).shape)
    assert_padded(env, observation, seen)
    own = state.inner.inner if hasattr(env, "max_steps") else state.inner
    jax.tree.map(np.testing.assert_array_equal, own, inner)
    action = random_action(env, params, jax.random.key(1))
    assert_same(env, *step(jax.random.key(2), state, action))


def test_agents_that_differ_are_padded_and_masked():
    env, params, reset, _ = compiled(SPEAKER)
    assert env.observation_space(params).shape == (11,) and env.action_space(params).n == 5
    observation, state, _ = reset(jax.random.key(0))
    assert not observation[0, 3:].any()
    np.testing.assert_array_equal(
        env.action_mask(state, params), [[True] * 3 + [False] * 2, [True] * 5]
    )


def test_dimensions_of_actions_that_an_agent_lacks_are_named_and_do_nothing():
    """This also holds through a wrapper: the speaker has 3 of the listener's 5 dimensions."""
    env, _, reset, step = compiled(SPEAKER, action_type="Continuous", max_steps=3)
    dimensions = env.action_dimensions
    assert isinstance(dimensions, np.ndarray) and dimensions.dtype == bool
    np.testing.assert_array_equal(dimensions, [[True] * 3 + [False] * 2, [True] * 5])
    _, state, _ = reset(jax.random.key(0))
    action = jnp.full((2, 5), 0.5)
    given = action, jnp.where(dimensions, action, 0.9), action.at[0, 2].set(0.9)
    after = [step(jax.random.key(1), state, x)[0] for x in given]
    (observation, _, reward, *_), (same, _, same_reward, *_), (other, *_) = after
    np.testing.assert_array_equal(observation, same)
    np.testing.assert_array_equal(reward, same_reward)
    assert (observation != other).any()


def test_overcooked_keeps_its_images_and_shaped_rewards():
    env, params = make("overcooked", {"layout": "coord_ring"})
    _, state = jax.eval_shape(env.reset_env, jax.random.key(0), params)
    step = lambda state: transition(env, jax.random.key(1), state, STAY, params)
    observation, *_, info = jax.eval_shape(step, state)
    assert observation.shape == (2, 5, 5, 26) and info["shaped_reward"].shape == (2,)


@pytest.mark.parametrize(
    "name, settings",
    [SPREAD, ("MPE_simple_spread_v3", {"action_type": "Continuous"}), RIDDLE, ("overcooked", {})],
)
def test_optional_methods_exist_only_if_jaxmarl_has_them(name, settings):
    env, _ = make(name, settings, max_steps=3)
    for name in ("action_mask", "world_state", "action_dimensions"):
        assert not hasattr(env, name), name


# --- SMAX -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smax():
    """The environment, a start, and a step of the adapter and of JaxMARL."""
    env, params = make(*SMAX)

    @jax.jit
    def step(key, state, action):
        after = both_step(env, params, key, state, state.inner, action)
        state = after[0][1]
        masks = env.action_mask(state, params), env.wrapped.get_avail_actions(state.inner)
        return *after, masks

    _, state = jax.jit(env.reset_env)(jax.random.key(0), params)
    return env, params, state, step


def units(state, **changes):
    """The state with changed units."""
    inner = state.inner.state
    return state.replace(inner=state.inner.replace(state=inner.replace(**changes)))


def test_smax_steps_masks_and_world_states_are_those_of_jaxmarl(smax):
    env, params, state, step = smax
    positions = state.inner.state.unit_positions
    near = positions.at[3].set(positions[0] + 1.0)  # an enemy in reach of some
    ours, theirs, (mask, available) = step(
        jax.random.key(0), units(state, unit_positions=near), jnp.array([5, 4, 1])
    )
    assert_same(env, ours, theirs)
    assert mask.dtype == bool and mask.shape == (3, env.action_space(params).n)
    np.testing.assert_array_equal(mask, np.stack([available[agent] for agent in env.agents]))
    assert mask[:, 5:].any() and not mask[:, 5:].all()
    np.testing.assert_array_equal(env.world_state(ours[1], params), theirs[0]["world_state"])


def test_a_dead_unit_is_not_alive_and_can_only_stop(smax):
    _, _, state, step = smax
    health = state.inner.state.unit_health.at[1].set(0.0)
    (*_, terminated, truncated, info), _, (mask, _) = step(
        jax.random.key(1), units(state, unit_health=health), STOP
    )
    np.testing.assert_array_equal(info["alive"], [True, False, True])
    np.testing.assert_array_equal(np.flatnonzero(mask[1]), [4])
    assert not terminated and not truncated


@pytest.mark.parametrize(
    "dead, time, flags",
    [
        ([], 99, (False, False)),
        ([], 100, (False, True)),
        ([3, 4], 50, (False, False)),
        ([3, 4, 5], 50, (True, False)),
        ([0, 1, 2], 50, (True, False)),
        ([3, 4, 5], 100, (True, False)),
    ],
)
def test_smax_terminates_with_a_dead_team_and_is_truncated_by_time(smax, dead, time, flags):
    env, params, state, step = smax
    health = state.inner.state.unit_health.at[jnp.array(dead, int)].set(0.0)
    state = units(state, unit_health=health, step=jnp.int32(time))
    ours, theirs, _ = step(jax.random.key(1), state, STOP)
    assert (bool(ours[3]), bool(ours[4])) == flags
    asked = env.is_terminated(ours[1], params), env.is_truncated(ours[1], params)
    assert tuple(map(bool, asked)) == flags
    assert bool(theirs[3]["__all__"]) == any(flags)


def test_wins_are_those_of_jaxmarl_s_own_wrapper(smax):
    """It is given the results of JaxMARL's step.

    Five cases: nobody, the enemies, the allies or all are dead, or all enemies but one at the
    limit.
    """
    from jaxmarl.wrappers.baselines import SMAXLogEnvState, SMAXLogWrapper

    env, _, state, step = smax
    found, expected = [], []
    for dead, time in [([], 5), ([3, 4, 5], 5), ([0, 1, 2], 5), (range(6), 5), ([3, 4], 100)]:
        health = state.inner.state.unit_health.at[jnp.array(list(dead), int)].set(0.0)
        now = units(state, unit_health=health, step=jnp.int32(time))
        (*_, info), theirs, _ = step(jax.random.key(1), now, STOP)
        found.append(bool(info["metrics"]["won"]))
        logged = SMAXLogEnvState(now.inner, *[jnp.zeros(3)] * 6)
        played = types.SimpleNamespace(
            agents=env.agents, num_agents=3, step=lambda *_, theirs=theirs: theirs
        )
        *_, info = SMAXLogWrapper.step.__wrapped__(SMAXLogWrapper(played), None, logged, None)
        expected.append(bool(info["returned_won_episode"].all()))
    assert found == expected == [False, True, False, False, False]


# --- Overcooked -------------------------------------------------------------------------------

# The first of two cooks in a cramped room: three onions, a plate, 20 steps of waiting, the soup.
ONION, PLATE, SERVE = [3, 5, 2, 0, 5], [3, 1, 5, 2, 0], [5, 1, 2, 1, 5]
SOUP = np.array(ONION * 3 + PLATE + [4] * 20 + SERVE)


@pytest.fixture(scope="module")
def kitchen():
    """Metrics, rewards, JaxMARL's shaped rewards and the added ones, in nine rollouts of five
    steps.

    There are two kitchens. In the second one the other cook acts as in a mirror, and plates and
    counter are swapped.
    """
    settings = {"layout": "cramped_room", "max_steps_in_episode": 45}
    env, params = make("overcooked", settings, shaped=0.5, shaped_steps=60.0)
    mirror = np.array([0, 1, 3, 2, 4, 5])  # the second one stands on the right
    actions = np.full((45, 2, 2), 4)
    actions[:, 0, 0], actions[:, 1, 1] = SOUP, mirror[SOUP]
    batch = envs.batch(env, 2, 5)

    @jax.jit
    def play(key):
        def step(state, x):
            _, state, reward, _, _, info = batch.step(x[0], state, x[1], params)
            return state, (reward, info["shaped_reward"], info["shaping"])

        def rollout(state, x):
            return jax.lax.scan(step, batch.refill(x[0], state, params), x[1:])

        _, state = batch.reset(jax.random.fold_in(key, 0), params)
        keys = jax.random.split(jax.random.fold_in(key, 1), (9, 6))
        xs = keys[:, 0], keys[:, 1:], actions.reshape(9, 5, 2, 2)
        state, steps = jax.lax.scan(rollout, state, xs)
        return state.metrics.read()[0], *(x.reshape(45, 2, 2) for x in steps)

    with jax.debug_key_reuse(False):
        return jax.tree.map(np.asarray, play(jax.random.key(0)))


def test_a_served_soup_is_a_delivery_and_a_reward_for_both(kitchen):
    metrics, reward, _, added = kitchen
    expected = np.zeros((45, 2, 2))
    expected[44, 0] = 20.0
    np.testing.assert_allclose(reward - added, expected, atol=1e-5)
    assert metrics["deliveries"] == 0.5  # in one of two kitchens


def test_shaped_rewards_are_the_cook_s_own_and_lose_their_weight(kitchen):
    metrics, _, shaped, added = kitchen
    own = np.zeros((45, 2, 2))
    own[[4, 9, 14, 17, 40], 0, 0] = 3, 3, 3, 3, 5
    own[[4, 9, 14, 44], 1, 1] = 3  # a plate at last, at the first cook's serving place
    np.testing.assert_array_equal(shaped, own)
    weight = 0.5 * np.maximum(1.0 - np.arange(9) * 10 / 60, 0.0)  # ten steps in each rollout
    np.testing.assert_allclose(added, np.repeat(weight, 5)[:, None, None] * own, rtol=1e-5)
    np.testing.assert_allclose(metrics["shaping"], added.sum(0).mean(0), rtol=1e-5)
    assert added[:15].any() and added[15:30].any() and not added[30:].any()


# --- ends -------------------------------------------------------------------------------------


def test_batches_truncate_mpe_and_keep_the_final_observation(vmapped_keys):
    """Two episodes of 26 steps in one scan; the first against JaxMARL without a reset."""
    env, params = make(*SPREAD)
    batch = envs.batch(env, 2, 52)
    _, state = batch.reset(jax.random.key(0), params)
    state = batch.refill(jax.random.key(1), state, params)
    actions = jax.random.randint(jax.random.key(2), (52, 2, 3), 0, 5)
    keys = jax.random.split(jax.random.key(3), 52)

    @jax.jit
    def both(state, inner):
        def ours(state, x):
            after, state, reward, terminated, truncated, info = batch.step(
                *x[:1], state, x[1], params
            )
            return state, (after, info["final_observation"], reward, terminated, truncated)

        def theirs(inner, x):
            key, action = jax.random.split(x[0], 2), x[1]
            by_agent = {agent: action[:, i] for i, agent in enumerate(env.agents)}
            observation, inner, reward, dones, _ = jax.vmap(env.wrapped.step_env)(
                key, inner, by_agent
            )
            stack = lambda x: jnp.stack([x[agent] for agent in env.agents], axis=1)
            return inner, (stack(observation), stack(reward), dones["__all__"])

        xs = (keys, actions)
        first = jax.tree.map(lambda x: x[:26], xs)
        return jax.lax.scan(ours, state, xs)[1], jax.lax.scan(theirs, inner, first)[1]

    (after, final, reward, terminated, truncated), expected = both(state, state.env.inner)
    np.testing.assert_allclose(final[:26], expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(reward[:26], expected[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(truncated[:26], expected[2])
    np.testing.assert_array_equal(np.flatnonzero(truncated[:, 0]), [25, 51])
    assert not terminated.any() and reward.shape == (52, 2, 3)
    assert not np.allclose(after[25], final[25])
    np.testing.assert_array_equal(after[:25], final[:25])


def collide(state):
    """Spread's first two agents touch."""
    places = state.inner.p_pos
    return state.replace(inner=state.inner.replace(p_pos=places.at[1].set(places[0] + 0.05)))


def meet(state):
    """SMAX's teams are in reach of each other."""
    places = getattr(state.inner, "state", state.inner).unit_positions
    near = places.at[3:].set(places[:3] + 1.0)
    if hasattr(state.inner, "state"):  # one of the teams belongs to the environment
        return units(state, unit_positions=near)
    return state.replace(inner=state.inner.replace(unit_positions=near))


@pytest.mark.parametrize(
    "name, settings, start, shared",
    [
        (*SPREAD, collide, False),
        (SPEAKER, {}, None, True),
        (*RIDDLE, None, True),
        (*SMAX, meet, True),
        ("SMAX", {"scenario": "3m"}, meet, False),
    ],
)
def test_rewards_are_shared_where_shared_reward_is_true(name, settings, start, shared, request):
    """Checked with ten random actions, from a start that soon has rewards."""
    if (name, settings) == SMAX:
        env, params, state, step = request.getfixturevalue("smax")
    else:
        env, params, reset, step = compiled(name, **settings)
        state = reset(jax.random.key(0))[1]
    state, rewards = start(state) if start else state, []
    for i in range(10):
        action_key, key = jax.random.split(jax.random.key(i))
        action = random_action(env, params, action_key)
        if hasattr(env, "action_mask"):
            mask = env.action_mask(state, params)
            action = jax.random.categorical(
                jax.random.clone(action_key), jnp.where(mask, 0.0, -1e9)
            )
        _, state, reward, *_ = step(key, state, action)[0]
        rewards.append(reward)
    rewards = np.array(rewards)
    assert env.shared_reward == shared and rewards.any()
    assert (rewards == rewards[..., :1]).all() == shared
    if env.team_rewards and not shared:
        sides = np.split(rewards, 2, axis=-1)
        assert all((side == side[..., :1]).all() for side in sides)


@pytest.mark.parametrize(
    "name, settings, opponents",
    [
        (*SPREAD, False),
        ("MPE_simple_tag_v3", {}, True),
        ("MPE_simple_adversary_v3", {}, True),
        ("MPE_simple_push_v3", {}, True),
        ("MPE_simple_crypto_v3", {}, True),
        ("MPE_simple_world_comm_v3", {}, True),
        (*SMAX, False),
        ("SMAX", {"scenario": "3m"}, True),
    ],
)
def test_opponents_are_no_team(name, settings, opponents):
    env, _ = make(name, settings)
    assert env.opponents == opponents
    assert parts.earns_after_leaving(env) == name.startswith(("SMAX", "HeuristicEnemySMAX"))


@pytest.mark.parametrize("name", ["overcooked", "hanabi"])
def test_these_teams_share_their_rewards_too(name):
    """Random actions rarely or never find the rewards of these environments."""
    assert make(name, {})[0].shared_reward


def riddle(actions, **settings):
    """The two flags after every step of a game in which the agent in the room takes this action."""
    env, _, reset, step = compiled("switch_riddle", **settings)
    _, state, _ = reset(jax.random.key(0))
    flags = []
    for i, action in enumerate(actions):
        inner = state.inner.inner if hasattr(env, "max_steps") else state.inner
        action = jnp.full(3, 2).at[inner.agent_in_room].set(action)  # others are outside
        _, state, _, terminated, truncated, _ = step(jax.random.key(i), state, action)[0]
        flags.append((bool(terminated), bool(truncated)))
    return flags


def test_the_riddle_terminates_when_someone_tells_and_is_truncated_by_time():
    none, told, late = (False, False), (True, False), (False, True)
    assert riddle([0, 1, 2]) == [none, none, told]
    assert riddle([0, 1, 0, 1, 0, 1]) == [none] * 5 + [late]
    assert riddle([0, 1, 0, 1, 0, 2]) == [none] * 5 + [told]
    assert riddle([2], reward_all_die=0.0) == [told]  # the reward does not show it


@pytest.mark.parametrize("limit", [2, 9])
def test_a_time_limit_cuts_or_lifts_the_environment_s_own(limit):
    assert riddle([0] * limit, max_steps=limit) == [(False, False)] * (limit - 1) + [(False, True)]


def test_a_limit_that_agents_can_see_reaches_the_constructor():
    env, params = make("overcooked", {"max_steps_in_episode": 45})
    assert env.wrapped.max_steps == params.max_steps_in_episode == 45
    assert make(*SPREAD, max_steps_in_episode=7)[1].max_steps_in_episode == 7
    assert make(*SPREAD, num_agents=4)[0].num_agents == 4


def test_evaluation_has_each_agent_s_return():
    env, params = make(*RIDDLE)
    policy = lambda state, observation, memory=None, rng=None: (jnp.full(3, 2), memory)
    episodes = jax.jit(lambda key: envs.evaluate(policy, None, env, params, key, 4))(
        jax.random.key(0)
    )
    np.testing.assert_array_equal(episodes.episode_return, np.full((4, 3), -1.0))
    assert episodes.terminated.all() and not episodes.truncated.any()


# --- pictures ---------------------------------------------------------------------------------


@pytest.fixture
def no_display(monkeypatch):
    """Fails if pyplot looks for a display."""
    from matplotlib import pyplot

    def refuse(*_, **__):
        raise AssertionError("pyplot")

    for name in ("figure", "subplots", "show"):
        monkeypatch.setattr(pyplot, name, refuse)


def drawn(env, params, state):
    """A picture of a state as the launcher passes it on."""
    picture = env.render(jax.tree.map(np.asarray, state), params)
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
    return picture


def middle(picture, colour):
    """Row and column of the mean pixel of a colour, or None."""
    found = np.argwhere(np.abs(picture.astype(int) - colour).max(-1) < 8)
    return found.mean(0) if len(found) else None


BLUE, GREEN = (0, 0, 255), (0, 128, 0)


def test_smax_shows_living_units_at_their_positions(smax, no_display):
    env, params, state, _ = smax
    places = jnp.array([[8.0, 8.0], [8.0, 8.0], [8.0, 8.0], [24.0, 16.0], [24.0, 16.0], [24, 16]])
    alive = jnp.array([True, False, False, False, True, False])
    first = drawn(env, params, units(state, unit_positions=places, unit_alive=alive))
    ally, enemy = middle(first, BLUE), middle(first, GREEN)
    moved = places.at[0].add(jnp.array([0.0, 8.0])).at[4].add(jnp.array([-8.0, 0.0]))
    second = drawn(env, params, units(state, unit_positions=moved, unit_alive=alive))
    up, left = middle(second, BLUE) - ally, middle(second, GREEN) - enemy
    assert up[0] < -50 and abs(up[1]) < 3 and left[1] < -50 and abs(left[0]) < 3
    dead = drawn(env, params, units(state, unit_positions=places, unit_alive=alive & False))
    assert middle(dead, BLUE) is None and middle(dead, GREEN) is None


def test_smax_shows_shots_at_their_targets(smax, no_display):
    """The last enemy is near the first ally and shoots at it: its third target."""
    env, params, state, _ = smax
    places = state.inner.state.unit_positions.at[5].set(state.inner.state.unit_positions[0] + 2.0)
    shots = state.inner.state.prev_attack_actions.at[5].set(7)
    light = (100, 149, 237)
    for actions, shown in ((shots, True), (jnp.zeros_like(shots), False)):
        now = units(state, unit_positions=places, prev_attack_actions=actions)
        assert (middle(drawn(env, params, now), light) is not None) == shown


def test_spread_shows_agents_where_they_are(no_display, capsys):
    env, params = make("MPE_simple_spread_v3", {}, max_steps=3)
    _, state, _ = compiled(*SPREAD[:1])[2](jax.random.key(0))
    far = jnp.array([[-1.5, 1.0], [1.5, 1.0], [0.0, -1.0], [9.0, 9.0], [9.0, 9.0], [9.0, 9.0]])
    at = lambda x: state.replace(inner=state.inner.replace(p_pos=x))
    plain = env.env.env  # within the time limit
    pictures = [drawn(plain, params, at(x)).astype(int) for x in (far, far.at[2, 0].add(1.0))]
    changed = np.argwhere(np.abs(pictures[0] - pictures[1]).max(-1) > 30)
    width = pictures[0].shape[1]
    assert np.ptp(changed[:, 1]) > width / 6  # a quarter of the axes, on a line
    assert np.ptp(changed[:, 0]) < width / 6 and changed[:, 0].mean() > width / 2
    assert not capsys.readouterr().out


def test_overcooked_shows_cooks_what_they_hold_and_the_pot(no_display):
    env, params, reset, step = compiled(KITCHEN[0], **KITCHEN[1])
    _, state, _ = reset(jax.random.key(0))
    seen = []
    for i, action in enumerate([4, *ONION]):
        _, state, *_ = step(jax.random.key(i), state, jnp.array([action, 4]))[0]
        picture = drawn(env, params, state)
        assert picture.shape == (4 * 32, 5 * 32, 3)
        seen.append(picture.reshape(4, 32, 5, 32, 3).swapaxes(1, 2))  # by cell
    red, yellow = (255, 0, 0), (255, 255, 0)
    assert middle(seen[1][1, 1], red) is not None and middle(seen[1][1, 1], yellow) is None
    assert middle(seen[2][1, 1], yellow) is not None  # an onion in its hand
    assert middle(seen[3][1, 1], red) is None and middle(seen[3][1, 2], red) is not None
    assert middle(seen[4][0, 2], yellow) is None and middle(seen[5][0, 2], yellow) is not None


def test_overcooked_v2_draws_itself(no_display):
    env, params = make("overcooked_v2", {"layout": "cramped_room"})
    _, state = jax.jit(env.reset_env)(jax.random.key(0), params)
    picture = drawn(env, params, state)
    assert middle(picture, (255, 0, 0)) is not None and middle(picture, BLUE) is not None


def test_environments_that_jaxmarl_does_not_draw_are_refused():
    from algorithms.launch.engine.errors import UserError
    from algorithms.launch.tools import render

    config = lambda env: types.SimpleNamespace(env=f"jaxmarl/{env}", env_settings=())
    render.check_drawable(config("MPE_simple_spread_v3"))
    with pytest.raises(UserError, match="env=jaxmarl/switch_riddle cannot be drawn"):
        render.check_drawable(config("switch_riddle"))


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("MPE_simple_sprad_v3", {}, "unknown environment of jaxmarl.*MPE_simple_spread_v3"),
        ("HeuristicEnemySMAX", {"scenario": "3n"}, "unknown scenario '3n'; there are 3m"),
        (
            "MPE_simple_spread_v3",
            {"num_agnts": 4},
            "setting of .*'num_agnts'; did you mean num_agents",
        ),
        ("switch_riddle", {"num_agnts": 4}, "unexpected keyword argument 'num_agnts'"),
        ("switch_riddle", {"num_agents": 2}, "jaxmarl/switch_riddle: The minimum number of agents"),
        ("MPE_simple_v3", {"action_type": "x"}, "jaxmarl/MPE_simple_v3: Action type: x is not"),
        ("HeuristicEnemySMAX", {"scenario": 3}, "jaxmarl/HeuristicEnemySMAX: 'int' object has no"),
        ("storm", {}, "unknown environment of jaxmarl 'storm'; did you mean storm_np"),
    ],
)
def test_environments_that_cannot_be_made_are_refused(name, settings, message):
    with pytest.raises(ValueError, match=message):
        make(name, settings)


def test_a_missing_library_is_named(monkeypatch):
    from envs import jaxmarl

    monkeypatch.setitem(sys.modules, "jaxmarl", None)
    monkeypatch.setattr(jaxmarl, "_library", jaxmarl._library.__wrapped__)
    with pytest.raises(ValueError, match=r"pip install .jaxmarl==0\.2\.0"):
        envs.make("jaxmarl/switch_riddle", num_agents=5)


def test_jaxmarl_is_imported_in_silence(monkeypatch, capsys):
    """Its modules that print and that replace the standard streams are imported anew.

    test_envs.py shows that nothing imports it before it is asked for.
    """
    from envs import jaxmarl

    loud = ("jaxmarl", "jaxmarl.registration", "jaxmarl.environments")
    for name in list(sys.modules):
        if name in loud or name.startswith("jaxmarl.environments.mabrax"):
            monkeypatch.delitem(sys.modules, name)
    stream = sys.stdout
    assert "switch_riddle" in jaxmarl._library.__wrapped__().registered_envs
    assert sys.stdout is stream
    assert not capsys.readouterr().out
