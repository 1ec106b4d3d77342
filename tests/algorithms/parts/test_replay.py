"""The replay buffer: its ring, its windows and its draws, against plain loops and rlax."""

import dataclasses
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms import dqn, parts
from algorithms.parts import replay as module
from envs import warn
from tests import probe as tasks

GAMMA = 0.9


# --- n-step returns ---------------------------------------------------------------------------


def random_steps(seed, shape):
    """rewards, terminated, done and values, in the order of time."""
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=(2, *shape)).astype(np.float32)
    terminated, truncated = rng.random((2, *shape)) < 0.2
    return rewards, terminated, terminated | truncated, values


@pytest.mark.parametrize("n", [1, 2, 4])
def test_n_step_return_is_the_plain_sum(n):
    rewards, terminated, done, values = random_steps(n, (n, 200))
    results = module.n_step_return(*map(jnp.array, (rewards, terminated, done)), GAMMA)
    returns, discount, last = map(np.asarray, results)
    for i in range(200):
        total = 0.0
        for k in range(n):
            total += GAMMA**k * rewards[k, i]
            if done[k, i] or k == n - 1:
                total += 0.0 if terminated[k, i] else GAMMA ** (k + 1) * values[k, i]
                break
        assert last[i] == k
        bootstrapped = returns[i] + discount[i] * values[last[i], i]
        np.testing.assert_allclose(bootstrapped, total, rtol=1e-4, atol=1e-5)


@pytest.mark.slow  # beside the plain sum; importing rlax takes longer than the test
def test_n_step_return_agrees_with_rlax_without_truncation():
    import rlax

    rewards, terminated, _, values = random_steps(9, (5, 40))
    returns, discount, last = module.n_step_return(
        jnp.array(rewards), jnp.array(terminated), jnp.array(terminated), GAMMA
    )
    result = returns + discount * values[last, np.arange(40)]
    expected = jax.vmap(rlax.discounted_returns, (1, 1, 1), 1)(
        jnp.array(rewards), jnp.array(GAMMA * (1.0 - terminated)), jnp.array(values)
    )
    np.testing.assert_allclose(result, expected[0], rtol=1e-4, atol=1e-5)


# --- draws by priority ------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 7, 8, 9, 1000, 1001, 50_000, 10**6, 10**6 + 1])
def test_cube_side(capacity):
    side = module.cube_side(capacity)
    assert (side - 1) ** 3 < capacity <= side**3


def test_draws_by_priority_follow_their_share_and_never_have_none():
    """This holds at the very ends of the unit interval too, where rounding might overshoot."""
    rng = np.random.default_rng(0)
    priorities = np.zeros(5**3, np.float32)
    chosen = rng.choice(120, 40, replace=False)
    priorities[chosen] = rng.random(40) ** 2
    share, draw = priorities / priorities.sum(), jax.jit(module.draw_by_priority)
    index, probability = draw(
        jnp.array(priorities), jax.random.uniform(jax.random.key(0), (10**5, 3))
    )
    np.testing.assert_allclose(probability, share[index], rtol=1e-4)
    counts = np.bincount(index, minlength=125)
    deviation = np.sqrt(1e5 * share * (1.0 - share))
    assert (np.abs(counts - 1e5 * share) <= 5.0 * deviation).all()
    ends = np.stack(np.meshgrid(*3 * [[0.0, 0.5, 1 - 2**-24, 1.0]]), -1).reshape(-1, 3)
    assert (priorities[draw(jnp.array(priorities), jnp.float32(ends)).index] > 0).all()


def test_draws_without_any_priority_are_finite_under_jax_debug_nans(debug_nans):
    """As before the first whole window: what is learned from such a draw is discarded."""
    draw = jax.jit(module.draw_by_priority)(jnp.zeros(27), jnp.full((2, 3), 0.5))
    np.testing.assert_array_equal(draw.probability, 1.0)


def test_no_entry_without_mass_is_drawn_where_cumulative_sums_are_rounded_up(monkeypatch):
    """Each column of a product may be rounded by itself, as on a GPU.

    Here every other one is a little too large. The noise falls where the sums of empty columns end.
    """
    rng, side = np.random.default_rng(0), 37
    rounding = (1.0 + 3e-7 * (np.arange(side) % 2)).astype(np.float32)
    dot = jnp.dot
    monkeypatch.setattr(module.jnp, "dot", lambda *args, **how: dot(*args, **how) * rounding)
    for _ in range(5):
        masses = (rng.random(side) * (rng.random(side) < 0.3)).astype(np.float32)
        masses[4], masses[-1] = 0.5, 0.0
        sums = np.asarray(dot(masses, np.tri(side, dtype=np.float32).T, precision="highest"))
        sums = sums * rounding
        assert ((masses[1:] == 0) & (sums[1:] > sums[:-1])).any()
        total = np.where(masses > 0, sums, 0.0).max()
        edges = np.stack([sums, np.nextafter(sums, np.float32(0))]) / total
        edges = np.stack([edges, np.nextafter(edges, np.float32(0))]).ravel()
        edges = np.clip(np.append(edges, 1.0), 0.0, 1 - 2**-24).astype(np.float32)
        last = np.full_like(edges, 1 - 2**-24)
        noise = jnp.stack([last, last, edges], -1)
        # One row has all the mass, so every choice is among columns without any.
        index, _ = module.draw_by_priority(jnp.zeros(side**3).at[:side].set(masses), noise)
        assert (index < side).all() and (masses[np.minimum(index, side - 1)] > 0).all()


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("mass", [1.0, 0.1, 7e4])
def test_neighbouring_noise_reaches_neighbouring_entries(axis, mass):
    """Checked in a cube of 37 ** 3 equal masses, along each axis."""
    draw, edges = jax.jit(module.draw_by_priority), np.arange(1, 37) / 37
    for shift, expected in ((-1e-6, np.arange(36)), (1e-6, np.arange(1, 37))):
        noise = np.full((36, 3), 1e-3)
        noise[:, axis] = edges + shift
        index, _ = draw(jnp.full(37**3, mass), jnp.float32(noise))
        np.testing.assert_array_equal(index, expected * (37**2, 37, 1)[axis])


def test_every_entry_of_a_million_can_be_drawn():
    """Planes, rows and entries have their own noise: a hundred values of each reach all entries."""
    capacity, centres = 10**6, (np.arange(100) + 0.5) / 100
    priorities = jnp.ones(module.cube_side(capacity) ** 3)
    draw, drawn = jax.jit(module.draw_by_priority), np.zeros(capacity, int)
    for plane in centres[::33]:  # every row and entry of some planes
        noise = np.stack(np.meshgrid(plane, centres, centres), -1).reshape(-1, 3)
        index, probability = draw(priorities, jnp.float32(noise))
        drawn[index] += 1
        np.testing.assert_allclose(probability, 1e-6, rtol=1e-5)
    for plane in range(0, 100, 33):
        np.testing.assert_array_equal(drawn[plane * 10_000 : (plane + 1) * 10_000], 1)
    assert drawn.sum() == 4 * 10_000
    # And every plane.
    index, _ = draw(priorities, jnp.float32(np.stack([centres, centres, centres], 1)))
    np.testing.assert_array_equal(index, np.arange(100) * 10_101)


def test_draws_by_priority_survive_very_unequal_ones():
    priorities = np.zeros(20**3, np.float32)
    priorities[[4321, 7999, 17]] = 1e-6, 1e3, 1.0
    draw, noise = jax.jit(module.draw_by_priority), np.random.default_rng(0).random((20_000, 3))
    index, probability = draw(priorities, np.float32(noise))
    assert set(np.unique(index)) == {17, 7999}  # one in 1e9 is not seen
    np.testing.assert_allclose((index == 17).mean(), 1 / 1001, atol=1e-3)
    np.testing.assert_allclose(probability.max(), 1000 / 1001, rtol=1e-5)
    tiny = np.float32(1e-30) * priorities  # shares count, not sizes
    np.testing.assert_array_equal(draw(tiny, np.float32(noise))[0], index)


# --- the ring ---------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[(1, 1), (1, 3), (2, 3)], ids=str)
def rings(request):
    """A ring after some of 20 rollouts, with its buffer.

    A reward is the run's step plus a hundred times the environment's index.
    """
    num_steps, n_step = request.param
    buffer = parts.ReplayBuffer(35, 3, num_steps, n_step, prioritized=True)
    add, history = jax.jit(buffer.add), []
    replay = buffer.create(*envs.make(tasks.Probe(masked=True)))
    rng = np.random.default_rng(0)
    for i in range(20):
        time = i * num_steps + np.arange(num_steps)
        shape = (num_steps, 3)
        count = np.float32(time[:, None] + 100 * np.arange(3))
        terminated, truncated = rng.random((2, *shape)) < 0.15
        rollout = parts.Transition(
            observation=count[..., None],
            action=(count % 3).astype(np.int32),
            reward=count,
            terminated=terminated,
            done=terminated | truncated,
            final_observation=count[..., None] + 0.5,
            action_mask=bits(count),
            final_action_mask=bits(count + 1),
        )
        replay = add(replay, jax.tree.map(jnp.asarray, rollout))
        if i % 4 == 3 or i < 3:
            history.append(((i + 1) * num_steps * 3, replay))
    return buffer, history


def bits(count):
    return np.stack([count.astype(int) >> i & 1 for i in range(3)], -1).astype(bool)


def test_the_ring_holds_the_newest_transitions(rings):
    buffer, history = rings
    assert buffer.capacity == 36 and buffer.capacity % (buffer.num_envs * buffer.num_steps) == 0
    for written, replay in history:
        newest = max(0, written - buffer.capacity), written
        time, env = np.divmod(np.arange(*newest), 3)
        kept = np.sort(replay.transitions.reward[: min(written, buffer.capacity)])
        np.testing.assert_array_equal(kept, np.sort(time + 100.0 * env))
        assert int(replay.size) == min(written, 36) and int(replay.position) == written % 36
        assert int(buffer.num_windows(replay)) == max(1, min(written, 36) - buffer.waiting)


@pytest.mark.parametrize("prioritized", [False, True])
def test_windows_cross_neither_the_write_head_nor_an_episode_s_end(rings, prioritized):
    buffer, history = rings
    capacity, n = buffer.capacity, buffer.n_step
    buffer = dataclasses.replace(buffer, prioritized=prioritized)
    noise = buffer.noise(jax.random.key(0), (2000,))

    @jax.jit
    def windows(replay):
        draw = buffer.draw(replay, noise)
        return draw, buffer.windows(replay.transitions, draw.index, GAMMA)

    for written, replay in history:
        complete = written - 3 * (n - 1)  # transitions whose n steps are complete
        if complete < 1:
            continue
        draw, batch = jax.tree.map(np.asarray, windows(replay))
        number = complete - max(0, written - capacity)
        np.testing.assert_allclose(draw.probability, 1.0 / number, rtol=1e-5)  # all equal so far
        rewards, terminated, done = (np.asarray(x) for x in replay.transitions[2:5])
        starts, time = rewards[draw.index], rewards[draw.index] % 100
        assert set(time) == set(range(max(0, (written - capacity) // 3), complete // 3))
        assert len(set(draw.index)) == number
        position = {float(r): i for i, r in enumerate(rewards[:written])}
        np.testing.assert_array_equal(batch.observation[:, 0], starts)
        np.testing.assert_array_equal(batch.action, starts % 3)
        np.testing.assert_array_equal(batch.action_mask, bits(starts))
        for i in np.unique(starts, return_index=True)[1]:
            total, step = 0.0, (start := starts[i])
            for k in range(n):
                step = start + k  # the same environment one step later must be stored
                total += GAMMA**k * step
                if done[position[float(step)]]:
                    break
            over = terminated[position[float(step)]]
            np.testing.assert_allclose(batch.returns[i], total, rtol=1e-5)
            np.testing.assert_allclose(batch.final_observation[i, 0], step + 0.5)
            np.testing.assert_array_equal(batch.final_action_mask[i], bits(step + 1))
            discount = 0.0 if over else GAMMA ** (k + 1)
            np.testing.assert_allclose(batch.discount[i], discount, rtol=1e-5)


def small_rings(number):
    """Sizes (buffer_size, num_envs, num_steps, n_step) that hold a window.

    Most are so small that a rollout overwrites the first transitions of windows that it completes.
    """
    rng, found = np.random.default_rng(0), [(8, 2, 4, 3)]
    while len(found) < number:
        size, num_envs, steps, n = (int(rng.integers(1, 1 + most)) for most in (24, 3, 4, 5))
        capacity = -(-size // (num_envs * steps)) * num_envs * steps
        tight = capacity < (n - 1 + steps) * num_envs
        if capacity >= n * num_envs and (tight or rng.random() < 0.1):
            found.append((size, num_envs, steps, n))
    return found


@pytest.mark.parametrize("sizes", small_rings(8), ids=str)
def test_the_smallest_rings_draw_every_whole_window_and_no_other(sizes):
    """After each rollout, the draws are compared with a list of all steps, of which the newest
    remain.

    Rewards number the steps, and nothing else is compared.
    """
    buffer = parts.ReplayBuffer(*sizes, prioritized=True)
    (_, num_envs, num_steps, n), capacity = sizes, buffer.capacity
    rollouts = 2 * capacity // (num_envs * num_steps) + n
    count = np.arange(1.0, 1 + rollouts * num_steps * num_envs, dtype=np.float32)
    uniform = dataclasses.replace(buffer, prioritized=False)

    def add(replay, rollout):
        replay = buffer.add(replay, rollout)
        index = uniform.draw(replay, jnp.arange(60, dtype=jnp.uint32)).index
        return replay, (replay, index, buffer.num_windows(replay))

    only = lambda reward: parts.Transition(None, None, reward, None, None, None)
    zero = jnp.zeros((), jnp.int32)
    priorities = jnp.zeros(module.cube_side(capacity) ** 3)
    replay = parts.Replay(only(jnp.zeros(capacity)), priorities, jnp.ones(()), zero, zero)
    steps = only(count.reshape(rollouts, num_steps, num_envs))
    results = jax.jit(lambda *args: jax.lax.scan(add, *args)[1])(replay, steps)
    results = jax.tree.map(np.asarray, results)
    for i in range(rollouts):
        replay, index, number = jax.tree.map(operator.itemgetter(i), results)
        ring, over = replay.transitions.reward, (i + 1) * num_steps * num_envs
        starts = count[max(0, over - capacity) : max(0, over - (n - 1) * num_envs)]
        drawn = np.flatnonzero(replay.priorities)
        assert set(ring[drawn]) == set(starts)
        later = num_envs * np.arange(n)[:, None]  # the same environment, step by step
        np.testing.assert_array_equal(ring[(drawn + later) % capacity], ring[drawn] + later)
        if len(starts):
            assert set(index) == set(drawn) and number == len(starts)


@pytest.mark.parametrize("prioritized", [False, True])
def test_every_transition_is_drawn_about_as_often(prioritized):
    buffer = parts.ReplayBuffer(400, 4, 1, n_step=3, prioritized=prioritized)
    env, params = envs.make(tasks.Probe())
    replay, rollout = buffer.create(env, params), zeros_for(buffer, env, params)

    @jax.jit
    def draw(replay, noise):
        replay = jax.lax.fori_loop(0, 251, lambda _, replay: buffer.add(replay, rollout), replay)
        return buffer.draw(replay, noise).index

    index = draw(replay, buffer.noise(jax.random.key(0), (100_000,)))
    counts = np.bincount(index, minlength=400)
    assert (counts > 0).sum() == 400 - 8  # the newest two steps have no window yet
    newest = (1004 - 1 - np.arange(8)) % 400
    assert (counts[newest] == 0).all()
    np.testing.assert_allclose(counts[counts > 0], 100_000 / 392, rtol=0.3)


def zeros_for(buffer, env, params):
    """A rollout of zeros, in the buffer's shapes."""
    shapes = jax.eval_shape(lambda: buffer.create(env, params)).transitions
    lead = (buffer.num_steps, buffer.num_envs)
    return jax.tree.map(lambda x: jnp.zeros((*lead, *x.shape[1:]), x.dtype), shapes)


@pytest.mark.parametrize("prioritized", [False, True])
def test_position_and_size_stay_within_the_capacity(prioritized):
    """So no counter wraps, however long a run is."""
    buffer = parts.ReplayBuffer(35, 3, 2, 2, prioritized)
    env, params = envs.make(tasks.Probe())
    rollout = zeros_for(buffer, env, params)

    @jax.jit
    def run(replay):
        def step(replay, _):
            replay = buffer.add(replay, rollout)
            return replay, (replay.position, replay.size)

        return jax.lax.scan(step, replay, None, 1000)

    replay, (position, size) = run(buffer.create(env, params))
    np.testing.assert_array_equal(position, 6 * np.arange(1, 1001) % 36)
    np.testing.assert_array_equal(size, np.minimum(6 * np.arange(1, 1001), 36))
    if prioritized:
        assert int((replay.priorities > 0).sum()) == 36 - buffer.waiting


def test_priorities_are_written_if_they_count():
    buffer = parts.ReplayBuffer(12, 3, 2, prioritized=True)
    env, params = envs.make(tasks.Probe())
    rollout = zeros_for(buffer, env, params)
    add, prioritize = jax.jit(buffer.add), jax.jit(buffer.prioritize)
    replay = add(buffer.create(env, params), rollout)
    np.testing.assert_array_equal(replay.priorities[:12], [1.0] * 6 + [0.0] * 6)
    index, priorities = jnp.array([4, 0]), jnp.array([5.0, 0.25])
    same = prioritize(replay, index, priorities, jnp.array(False))
    jax.tree.map(np.testing.assert_array_equal, same, replay)
    changed = prioritize(replay, index, priorities, jnp.array(True))
    np.testing.assert_array_equal(changed.priorities[:6], [0.25, 1.0, 1.0, 1.0, 5.0, 1.0])
    assert changed.max_priority == 5.0
    lower = prioritize(changed, index, 0.1 * priorities, jnp.array(True))
    assert lower.max_priority == 5.0  # ever seen
    newer = add(lower, rollout)  # and new ones have it
    np.testing.assert_array_equal(newer.priorities[6:12], [5.0] * 6)


def test_masks_are_stored_if_the_environment_has_them():
    buffer = parts.ReplayBuffer(8, 2, 1)
    masked = buffer.create(*envs.make(tasks.Probe(masked=True))).transitions
    assert masked.action_mask.shape == masked.final_action_mask.shape == (8, 3)
    assert masked.action_mask.dtype == masked.final_action_mask.dtype == bool
    env, params = envs.make(tasks.Probe())

    def window():
        replay = buffer.add(buffer.create(env, params), zeros_for(buffer, env, params))
        return buffer.windows(replay.transitions, jnp.arange(2), GAMMA)

    window = jax.eval_shape(window)
    assert window.action_mask is None and window.final_action_mask is None


def test_observations_keep_their_dtype_or_take_another():
    env, params = envs.make("Breakout-MinAtar")
    shapes = lambda dtype: jax.eval_shape(
        lambda: parts.ReplayBuffer(64, 16, 1, dtype=dtype).create(env, params)
    )
    assert shapes("").transitions.observation.dtype == jnp.float32
    stored = shapes("bool").transitions
    assert stored.observation.dtype == stored.final_observation.dtype == bool
    assert stored.observation.shape == (64, 10, 10, 4) and stored.action.dtype == jnp.int32


def test_continuous_actions_are_stored_as_they_are():
    env, params = envs.make("Pendulum-v1")
    shapes = jax.eval_shape(lambda: parts.ReplayBuffer(6, 2, 1).create(env, params))
    action = shapes.transitions.action
    assert (action.shape, action.dtype) == ((6, 1), jnp.float32)


def test_items_of_several_steps_are_held_until_they_are_overwritten():
    """Items are pairs of steps with a number of their own; a ring of 4 items of each of 2
    environments."""
    env, params = tasks.Probe(), tasks.ProbeParams()
    twice = lambda step: (jax.tree.map(lambda x: jnp.stack([x, x]), step), jnp.zeros(3))
    buffer = parts.ReplayBuffer(8, 2, 1, n_step=2, item_steps=2)
    replay = buffer.create(env, params, twice)
    assert replay.transitions[0].observation.shape == (8, 2, 1)
    assert replay.transitions[1].shape == (8, 3)
    for i in range(6):
        full = lambda x, i=i: jnp.full((1, 2, *x.shape[1:]), i, x.dtype)
        replay = buffer.add(replay, jax.tree.map(full, replay.transitions))
        number = np.asarray(replay.transitions[1])[:, 0]
        oldest = max(0, i - 3)
        rows, written = jnp.arange(8), 2 * min(i + 1, 4)
        for back in range(4):
            there = (number - back >= oldest)[:written]
            np.testing.assert_array_equal(buffer.held(replay, rows, back)[:written], there)
            earlier = number[buffer.after(rows, -back)][:written]
            np.testing.assert_array_equal(earlier[there], number[:written][there] - back)


def test_a_target_network_that_never_moves_is_told_of():
    """Such as with a number that counts steps of the environment elsewhere."""
    config = dqn.Config(total_timesteps=20_000, num_envs=16, learning_starts=10_000, train_every=5)
    config = config.replace(updates_per_step=2, target_every=270)  # 260 rounds, 125 of them waiting
    parts.check_rounds(config)
    with pytest.warns(warn.KitWarning) as told:
        parts.check_rounds(config.replace(target_every=271))
    assert str(told[0].message) == (
        "target_every=271 is more than the run's 270 gradient steps, so the target network never "
        "moves; 2 would do"
    )
