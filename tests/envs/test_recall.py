"""Tasks that need memory, against plain simulations, and their best returns."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs import recall


@functools.cache
def made(name, **settings):
    """The environment, its parameters, and an episode of actions that are known beforehand."""
    env, params = envs.make(name, **settings)

    @jax.jit
    def play(key, actions, params=params):
        """First observation and state; then observation, reward, both flags of every step."""
        key, reset_key = jax.random.split(key)
        observation, start = env.reset_env(reset_key, params)

        def step(state, inputs):
            key, action = inputs
            observation, state, reward, terminated, _ = env.step_env(key, state, action, params)
            flags = terminated, env.is_truncated(state, params)
            assert terminated.dtype == bool
            return state, (observation, reward, *flags)

        keys = jax.random.split(key, len(actions))
        return observation, start, jax.lax.scan(step, start, (keys, actions))[1]

    return (
        env,
        params,
        lambda key, actions, *more: jax.tree.map(
            np.asarray, play(jax.random.key(key), jnp.asarray(actions), *more)
        ),
    )


def total(rewards, terminated, truncated):
    """The return of the first episode, and its length."""
    length = int(np.argmax(terminated | truncated)) + 1
    assert (terminated | truncated).any()
    return float(rewards[:length].sum()), length


# --- T-Maze -----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("passive", [False, True])
def test_the_best_return_of_a_t_maze(length, passive):
    *_, play = made("TMaze-v0", length=length, passive=passive)
    seen = set()
    for seed in range(8):
        for turn in (recall.NORTH, recall.SOUTH):
            first, start, (observations, *results) = play(seed, [recall.EAST] * length + [turn])
            assert first[int(start.goal)] == 1 and first.sum() == 1, "the first cell shows the goal"
            corridor = observations[:length].argmax(1).tolist()
            assert corridor == [2] * (length - 1) + [3]
            expected = 4.0 if turn == start.goal else -0.1
            assert total(*results) == (pytest.approx(expected), length + 1)
            assert results[1][length] and not results[2].any()
            seen.add((int(start.goal), turn))
    assert len(seen) == 4


def test_without_memory_a_t_maze_pays_half():
    """All deterministic policies of an observation; others are mixtures of their choices."""
    env, params = envs.make("TMaze-v0", length=3)

    def episode(policy, goal):
        _, state = env.reset_env(jax.random.key(0), params)
        state = state.replace(goal=goal)
        look = lambda state: policy[env._observe(state).argmax()]

        def step(carry, _):
            state, over, gained = carry
            *_, after, reward, terminated, _ = env.step_env(None, state, look(state), params)
            gained += jnp.where(over, 0.0, reward)
            return (after, over | terminated, gained), None

        return jax.lax.scan(step, (state, jnp.zeros((), bool), 0.0), None, 12)[0][2]

    policies = jnp.array(list(itertools.product(range(4), repeat=4)), jnp.int32)
    goals = jnp.arange(2, dtype=jnp.int32)
    returns = jax.jit(jax.vmap(jax.vmap(episode, (None, 0)), (0, None)))(policies, goals)
    returns = np.asarray(returns)
    assert returns.mean(1).max() == pytest.approx(2.0)
    arriving = returns.all(1)  # a policy that stays gets nothing
    assert returns[arriving].mean(1).max() == pytest.approx(1.95)


def test_walls_and_time_of_a_t_maze():
    *_, play = made("TMaze-v0", length=2)
    moves = [recall.WEST, recall.NORTH, recall.EAST, recall.SOUTH, recall.EAST, recall.EAST]
    _, start, (observations, rewards, terminated, _) = play(0, moves)
    cue = int(start.goal)
    assert observations.argmax(1).tolist() == [cue, cue, 2, 2, 3, 3]
    assert not rewards.any() and not terminated.any()
    _, params, play = made("TMaze-v0", length=2)
    short = params.replace(max_steps_in_episode=4.0)
    *_, (_, _, terminated, truncated) = play(0, moves, short)
    assert not terminated.any() and truncated.tolist() == [False] * 3 + [True] * 3


def test_delay_costs_in_a_passive_t_maze():
    *_, play = made("TMaze-v0", length=4, passive=True)
    moves = [recall.EAST, recall.WEST, recall.EAST, recall.EAST, recall.EAST]
    *_, (_, rewards, terminated, truncated) = play(0, moves)
    np.testing.assert_allclose(rewards, [0, -0.25, -0.25, -0.25, -0.25])
    assert terminated.tolist() == [False] * 4 + [True] and not truncated.any()


# --- cards ------------------------------------------------------------------------------------


@pytest.mark.parametrize("decks, k", [(1, 4), (1, 1), (2, 51)])
def test_repeat_previous(decks, k):
    *_, play = made("RepeatPrevious-v0", decks=decks, k=k)
    cards = 52 * decks
    actions = np.random.default_rng(0).integers(4, size=cards - 1)
    first, start, (observations, rewards, terminated, truncated) = play(1, actions)
    suits = start.suits
    assert np.bincount(suits).tolist() == [13 * decks] * 4 and (suits[:8] != np.arange(8) % 4).any()
    dealt = [first.argmax(), *observations.argmax(1)]
    np.testing.assert_array_equal(dealt, suits)
    expected = []
    for step, action in enumerate(actions):
        hand = suits[: step + 1]
        right = len(hand) >= k and hand[-k] == action
        expected.append((1 if right else -1) / (cards - k) if len(hand) >= k else 0)
    np.testing.assert_allclose(rewards, expected, rtol=1e-6)
    assert terminated.tolist() == [False] * (cards - 2) + [True] and not truncated.any()
    best = np.concatenate([np.zeros(k - 1, int), suits[: cards - k]])
    assert total(*play(1, best)[2][1:])[0] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("decks", [1, 2])
def test_autoencode(decks):
    *_, play = made("Autoencode-v0", decks=decks)
    cards = 52 * decks
    actions = np.random.default_rng(0).integers(4, size=2 * cards - 1)
    first, start, (observations, rewards, terminated, truncated) = play(1, actions)
    seen = np.concatenate([first[None], observations])
    np.testing.assert_array_equal(seen[:cards, :4].argmax(1), start.suits)
    assert not seen[cards:, :4].any(), "nothing tells the suits later"
    np.testing.assert_array_equal(seen[:, 4], np.arange(2 * cards) < cards - 1)
    answers = start.suits[::-1] == actions[cards - 1 :]
    np.testing.assert_allclose(rewards[cards - 1 :], np.where(answers, 1, -1) / cards, rtol=1e-6)
    assert not rewards[: cards - 1].any()
    assert terminated.tolist() == [False] * (2 * cards - 2) + [True] and not truncated.any()
    best = np.concatenate([np.zeros(cards - 1, int), start.suits[::-1]])
    assert total(*play(1, best)[2][1:])[0] == pytest.approx(1.0, abs=1e-5)


def board(kinds, actions, steps):
    """Observations, rewards and ends of Concentration, by its rules, up to the end."""
    cards, number = len(kinds), kinds.max() + 1
    up, turned, results = set(), [], []
    for time, action in enumerate(actions, start=1):
        turned.append(action)
        reward = 0.0
        if len(turned) == 2:
            one, other = turned
            fresh = one != other and not up & {one, other}
            pair = fresh and kinds[one] == kinds[other]
            reward = 2 / cards if pair else -2 / steps
            up |= {one, other} if pair else set()
        seen = np.zeros((cards, number + 1))
        for card in range(cards):
            seen[card, kinds[card] if card in up | set(turned) else number] = 1
        over = len(up) == cards or time >= steps
        results.append((seen.ravel(), reward, over))
        if over:
            break
        turned = [] if len(turned) == 2 else turned
    return map(np.array, zip(*results))


@pytest.mark.parametrize("decks, kind", [(1, "colors"), (1, "ranks"), (2, "colors")])
def test_concentration(decks, kind):
    *_, play = made("Concentration-v0", decks=decks, kind=kind)
    cards = 52 * decks
    steps = math.ceil(2 * cards - cards / (2 * cards - 1))
    rng = np.random.default_rng(0)
    first, start, _ = play(3, np.zeros(steps, int))
    kinds = start.kinds
    assert first.reshape(cards, -1)[:, -1].all() and len(set(np.bincount(kinds))) == 1
    pairs = np.concatenate([np.flatnonzero(kinds == k) for k in range(kinds.max() + 1)])
    # Pairs, the same card twice, cards that are up already, then anything.
    actions = np.concatenate(
        [pairs[:8], [pairs[9]] * 2, pairs[:4], rng.integers(cards, size=steps)]
    )
    actions = actions[:steps]
    _, _, (observations, rewards, terminated, truncated) = play(3, actions)
    seen, gained, over = board(kinds, actions, steps)
    np.testing.assert_array_equal(observations[: len(seen)], seen)
    np.testing.assert_allclose(rewards[: len(seen)], gained, rtol=1e-6)
    np.testing.assert_array_equal(terminated[: len(seen)], over)
    assert not truncated.any() and over[-1]
    best = np.resize(pairs, steps)
    result = total(*play(3, best)[2][1:])
    assert result == (pytest.approx(1.0, abs=1e-5), cards), "luck alone"


# --- RockSample -------------------------------------------------------------------------------


def walk(place, target):
    """Moves from a place to another one."""
    (x, y), (to_x, to_y) = place, target
    across = [recall.EAST if to_x > x else recall.WEST] * abs(to_x - x)
    return across + [recall.NORTH if to_y > y else recall.SOUTH] * abs(to_y - y)


@pytest.mark.parametrize("instance", list(recall.ROCKS))
def test_the_best_return_of_rock_sample(instance):
    """Who knows the good rocks samples each of them and leaves."""
    *_, play = made("RockSample-v0", instance=instance)
    side, place, rocks = recall.ROCKS[instance]
    steps = 12 * side
    _, start, _ = play(0, np.zeros(steps, int))
    moves = []
    for rock, good in zip(rocks, start.good):
        if good:
            moves += [*walk(place, rock), recall.SAMPLE]
            place = rock
    moves += [recall.EAST] * (steps - len(moves))
    results = play(0, moves)[2][1:]
    assert 0 < start.good.sum() < len(rocks)
    gained, length = total(*results)
    assert gained == 10 * start.good.sum() + 10
    assert results[1][length - 1] and not results[2].any()


def test_samples_of_rock_sample():
    """A bad rock costs; a good one pays once and is bad then; elsewhere nothing happens."""
    env, params = envs.make("RockSample-v0")
    _, state = env.reset_env(jax.random.key(0), params)
    step = jax.jit(lambda state, action: env.step_env(jax.random.key(1), state, action, params))
    rock = jnp.array(env.rocks[2], jnp.int32)
    for good, pays in ((True, (10.0, -10.0)), (False, (-10.0, -10.0))):
        at = state.replace(place=rock, good=jnp.zeros(8, bool).at[2].set(good))
        for expected in pays:
            observation, at, reward, terminated, _ = step(at, recall.SAMPLE)
            assert reward == expected and not terminated and not at.good.any()
    _, after, reward, *_ = step(state, recall.SAMPLE)
    assert reward == 0 and (after.good == state.good).all()
    assert after.place.tolist() == [0, 3]
    observation, after, reward, *_ = step(state.replace(place=jnp.array([0, 6])), recall.NORTH)
    assert after.place.tolist() == [0, 6] and reward == 0, "a border"
    expected = np.zeros(22)
    expected[[0, 7 + 6]] = 1
    np.testing.assert_array_equal(observation, expected)
    _, after, _, terminated, _ = step(state, recall.WEST)
    assert after.place.tolist() == [0, 3] and not terminated
    late = state.replace(time=jnp.int32(199))
    after = step(late, recall.NORTH)[1]
    assert env.is_truncated(after, params) and not env.is_terminated(after, params)
    at_border = state.replace(place=jnp.array([6, 0]), time=jnp.int32(199))
    _, after, reward, terminated, _ = step(at_border, recall.EAST)
    assert reward == 10 and terminated and not env.is_truncated(after, params)


def test_measurements_of_rock_sample():
    env, params = envs.make("RockSample-v0", half_efficiency=2.0)
    _, state = env.reset_env(jax.random.key(0), params)
    state = state.replace(good=jnp.arange(8) % 2 == 0)
    look = jax.jit(jax.vmap(lambda key, rock: env.step_env(key, state, 5 + rock, params)[0][14:]))
    for rock in (1, 2, 3):
        keys = jax.random.split(jax.random.key(rock), 4000)
        seen = np.asarray(look(keys, jnp.full(4000, rock)))
        assert not np.delete(seen, rock, 1).any(), "only the rock that is measured shows"
        distance = math.dist((0, 3), env.rocks[rock])
        right = (seen[:, rock] == (1 if rock % 2 == 0 else -1)).mean()
        assert right == pytest.approx(0.5 * (1 + 2 ** (-distance / 2)), abs=0.03)


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("TMaze-v0", dict(length=0), "length=0: give a whole number, 1 or more"),
        ("TMaze-v0", dict(passive=1), "passive=1: give True or False"),
        ("RepeatPrevious-v0", dict(k=52), "k=52: give a whole number, 1 to 51"),
        ("RepeatPrevious-v0", dict(decks=1.5), "decks=1.5: give a whole number, 1 or more"),
        ("Concentration-v0", dict(kind="suits"), "kind='suits': there are colors, ranks"),
        ("RockSample-v0", dict(instance="7x7"), "instance='7x7': there are 7x8, 11x11"),
    ],
)
def test_refusals(name, settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make(name, **settings)


# --- observations that are lost or noisy ---------------------------------------------------------


def test_flicker_loses_whole_observations():
    env, params = envs.make("CartPole-v1", flicker=0.3)
    keys = jax.random.split(jax.random.key(0), 4000)
    first, state = jax.jit(jax.vmap(env.reset_env, (0, None)))(keys, params)
    step = jax.vmap(env.step_env, (0, 0, None, None))
    later = jax.jit(step)(jax.random.split(jax.random.key(1), 4000), state, 1, params)[0]
    truth = np.stack([state.x, state.x_dot, state.theta, state.theta_dot], 1)
    lost = ~np.asarray(first).any(1)
    assert lost.mean() == pytest.approx(0.3, abs=0.03)
    np.testing.assert_allclose(first[~lost], truth[~lost])
    lost_later = ~np.asarray(later).any(1)
    assert lost_later.mean() == pytest.approx(0.3, abs=0.03)
    assert (lost & lost_later).mean() == pytest.approx(0.09, abs=0.02), "drawn anew"


def test_flicker_of_agents_and_of_stacked_observations():
    env, params = envs.make("Pursuit-v0", num_players=4, flicker=0.5)
    keys = jax.random.split(jax.random.key(0), 500)
    seen = jax.jit(jax.vmap(env.reset_env, (0, None)))(keys, params)[0]
    lost = ~np.asarray(seen).any(-1)
    assert lost.shape == (500, env.num_agents) and lost.mean() == pytest.approx(0.5, abs=0.06)
    assert 0 < lost.all(1).mean() < 0.2, "each by itself"
    env, params = envs.make("CartPole-v1", flicker=0.5, frame_stack=2)
    keys = jax.random.split(jax.random.key(0), 300)

    def two(key):
        reset_key, step_key = jax.random.split(key)
        _, state = env.reset_env(reset_key, params)
        return env.step_env(step_key, state, 1, params)[0].reshape(2, 4)

    frames = np.asarray(jax.jit(jax.vmap(two))(keys)).any(2)
    assert (frames.sum(1) == 1).mean() > 0.3, "a frame is lost, not the stack"


def test_noise_is_added_to_every_number():
    env, params = envs.make("CartPole-v1", noise=0.5)
    keys = jax.random.split(jax.random.key(0), 4000)
    first, state = jax.jit(jax.vmap(env.reset_env, (0, None)))(keys, params)
    truth = np.stack([state.x, state.x_dot, state.theta, state.theta_dot], 1)
    error = np.asarray(first) - truth
    np.testing.assert_allclose(error.std(0), 0.5, atol=0.03)
    np.testing.assert_allclose(error.mean(0), 0, atol=0.04)
    assert np.abs(np.corrcoef(error.T) - np.eye(4)).max() < 0.06
    step = jax.vmap(env.step_env, (0, 0, None, None))
    later, after, *_ = jax.jit(step)(jax.random.split(jax.random.key(1), 4000), state, 1, params)
    assert np.std(np.asarray(later)[:, 0] - after.x) == pytest.approx(0.5, abs=0.03)
    space = env.observation_space(params)
    assert np.max(space.low) == -np.inf and space.shape == (4,), "noise has no bounds"


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("CartPole-v1", dict(flicker=1), "flicker=1: give a number, at least 0 and less than 1"),
        ("CartPole-v1", dict(noise=-0.1), "noise=-0.1: give a number, at least 0"),
        ("CartPole-v1", dict(noise="x"), "noise=x: give a number, at least 0"),
        ("navix/Empty-5x5", dict(noise=1), "noise=1 needs observations of floats"),
    ],
)
def test_blurs_that_are_refused(name, settings, message):
    if name.startswith("navix"):
        pytest.importorskip("navix")
    with pytest.raises(ValueError, match=message):
        envs.make(name, **settings)
