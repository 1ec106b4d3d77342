"""DQN's formulas and replay buffer against plain NumPy and rlax."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

import envs
from algorithms import dqn
from tests import probe as tasks
from tests.algorithms.value_based import *  # noqa: F403  the contract
from tests.algorithms.value_based import SMALL

MODULE = dqn
TINY = dqn.Config(**SMALL, prioritized=True, dueling=True)
METRICS = {"loss", "td_error", "mean_value", "grad_norm"}


def random_steps(seed, shape=(4, 50)):
    """rewards, terminated, done and values, in the order of time."""
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=(2, *shape)).astype(np.float32)
    terminated, truncated = rng.random((2, *shape)) < 0.2
    return rewards, terminated, terminated | truncated, values


# --- targets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 4])
def test_n_step_return_is_the_plain_sum(n):
    rewards, terminated, done, values = random_steps(n, (n, 200))
    gamma = 0.9
    results = dqn.n_step_return(*map(jnp.array, (rewards, terminated, done)), gamma)
    returns, discount, last = map(np.asarray, results)
    for i in range(200):
        total = 0.0
        for k in range(n):
            total += gamma**k * rewards[k, i]
            if done[k, i] or k == n - 1:
                total += 0.0 if terminated[k, i] else gamma ** (k + 1) * values[k, i]
                break
        assert last[i] == k
        bootstrapped = returns[i] + discount[i] * values[last[i], i]
        np.testing.assert_allclose(bootstrapped, total, rtol=1e-4, atol=1e-5)


def test_n_step_return_agrees_with_rlax_without_truncation():
    rewards, terminated, _, values = random_steps(9, (5, 40))
    returns, discount, last = dqn.n_step_return(
        jnp.array(rewards), jnp.array(terminated), jnp.array(terminated), 0.9
    )
    result = returns + discount * values[last, np.arange(40)]
    expected = jax.vmap(rlax.discounted_returns, (1, 1, 1), 1)(
        jnp.array(rewards), jnp.array(0.9 * (1.0 - terminated)), jnp.array(values)
    )
    np.testing.assert_allclose(result, expected[0], rtol=1e-4, atol=1e-5)


def test_double_q_learning_selects_with_one_network_and_judges_with_the_other():
    rng = np.random.default_rng(0)
    target, online = rng.normal(size=(2, 30, 4)).astype(np.float32)
    result = dqn.bootstrap_values(jnp.array(target), jnp.array(online))
    np.testing.assert_allclose(result, [t[np.argmax(o)] for t, o in zip(target, online)])
    result = dqn.bootstrap_values(jnp.array(target), jnp.array(target))
    np.testing.assert_allclose(result, target.max(-1))
    errors = jax.vmap(rlax.double_q_learning)(
        jnp.zeros((30, 4)), jnp.zeros(30, int), jnp.ones(30), jnp.full(30, 0.9), target, online
    )
    expected = dqn.bootstrap_values(jnp.array(target), jnp.array(online))
    np.testing.assert_allclose(errors, 1.0 + 0.9 * expected, rtol=1e-5)


def test_dueling_values_have_the_advantages_of_the_stream_and_the_mean_of_the_value():
    rng = np.random.default_rng(0)
    value, advantages = rng.normal(size=(6, 1)), rng.normal(size=(6, 3))
    result = np.asarray(dqn.dueling_values(jnp.array(value), jnp.array(advantages)))
    np.testing.assert_allclose(result.mean(-1), value[:, 0], rtol=1e-5)
    np.testing.assert_allclose(
        result - result[:, :1], advantages - advantages[:, :1], rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("delta", [0.5, 1.0, math.inf])
def test_huber_and_its_gradient_agree_with_rlax(delta):
    errors = jnp.linspace(-3.0, 3.0, 101)
    expected = 0.5 * errors**2 if delta == math.inf else rlax.huber_loss(errors, delta)
    np.testing.assert_allclose(dqn.huber(errors, delta), expected, rtol=1e-5, atol=1e-6)
    slope = jax.vmap(jax.grad(dqn.huber), (0, None))(errors, delta)
    np.testing.assert_allclose(slope, np.clip(errors, -delta, delta), rtol=1e-5, atol=1e-6)


# --- exploration ------------------------------------------------------------------------------


def test_epsilon_over_time():
    config = dqn.Config(eps_start=0.9, eps_end=0.1, exploration_fraction=0.5)
    at = lambda kind, x: float(dqn.epsilon_at(config.replace(exploration=kind), x))
    assert at("constant", 0.0) == at("constant", 1.0) == pytest.approx(0.1)
    np.testing.assert_allclose([at("linear", x) for x in (0, 0.25, 0.5, 0.9)], [0.9, 0.5, 0.1, 0.1])
    left = [at("exponential", x) - 0.1 for x in (0, 0.1, 0.2, 0.5)]
    np.testing.assert_allclose(left, 0.8 * np.exp([0.0, -1.0, -2.0, -5.0]), rtol=1e-5)


def test_epsilon_greedy_explores_as_often_as_it_says_and_evenly():
    values = jnp.tile(jnp.array([0.0, 1.0, 0.5]), (30_000, 1))
    noise = jax.random.uniform(jax.random.key(0), (30_000,))
    counts = np.bincount(dqn.epsilon_greedy(values, 0.3, noise), minlength=3) / 30_000
    np.testing.assert_allclose(counts, [0.1, 0.8, 0.1], atol=0.01)
    np.testing.assert_array_equal(dqn.epsilon_greedy(values, 0.0, noise), 1)
    counts = np.bincount(dqn.epsilon_greedy(values, 1.0, noise), minlength=3) / 30_000
    np.testing.assert_allclose(counts, 1 / 3, atol=0.01)


# --- priorities -------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 7, 8, 9, 1000, 1001, 50_000])
def test_cube_side(capacity):
    side = dqn.cube_side(capacity)
    assert (side - 1) ** 3 < capacity <= side**3


def test_samples_by_priority_follow_their_share_and_never_have_none():
    rng = np.random.default_rng(0)
    priorities = np.zeros(5**3, np.float32)
    chosen = rng.choice(120, 40, replace=False)
    priorities[chosen] = rng.random(40) ** 2
    # Also the very ends of the unit interval, where rounding might overshoot.
    noise = np.concatenate([(np.arange(100_000) + 0.5) / 100_000, [0.0, 1 - 2**-24]])
    index, probabilities = dqn.sample_by_priority(jnp.array(priorities), jnp.float32(noise))
    share = priorities / priorities.sum()
    np.testing.assert_allclose(probabilities, share[index], rtol=1e-4)
    counts = np.bincount(index, minlength=125) / len(noise)
    np.testing.assert_allclose(counts, share, atol=1e-4)
    assert (counts[priorities == 0] == 0).all()


def test_samples_by_priority_survive_very_unequal_ones():
    priorities = jnp.zeros(20**3).at[4321].set(1e-6).at[7999].set(1e3).at[17].set(1.0)
    noise = jax.random.uniform(jax.random.key(0), (2000,))
    index, _ = dqn.sample_by_priority(priorities, noise)
    assert set(np.unique(index)) <= {17, 4321, 7999}


def test_importance_weights_undo_the_priorities():
    share = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    weights = dqn.importance_weights(jnp.array(share), 4, 1.0)
    np.testing.assert_allclose(weights * share, np.full(4, 0.1), rtol=1e-5)
    expected = [(1 / (4 * p)) ** 0.4 for p in share]
    half = dqn.importance_weights(jnp.array(share), 4, 0.4)
    np.testing.assert_allclose(half, np.array(expected) / max(expected), rtol=1e-5)


# --- the ring ---------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[(1, 1), (1, 3), (2, 3)], ids=str)
def rings(request):
    """A ring after some of 20 rollouts, with its config; rewards count the steps of a run, and a
    hundred times the environment."""
    train_every, n_step = request.param
    config = dqn.Config(
        num_envs=3, train_every=train_every, n_step=n_step, buffer_size=35, prioritized=True
    )
    env, env_params = envs.make(tasks.Probe())
    store = jax.jit(dqn.store)
    replay, history = dqn.empty_replay(config, env, env_params), []
    rng = np.random.default_rng(0)
    for i in range(20):
        time = i * train_every + np.arange(train_every)
        shape = (train_every, 3)
        count = np.float32(time[:, None] + 100 * np.arange(3))
        terminated, truncated = rng.random((2, *shape)) < 0.15
        rollout = dqn.Transition(
            observation=count[..., None],
            action=np.zeros(shape, np.int32),
            reward=count,
            terminated=terminated,
            done=terminated | truncated,
            final_observation=count[..., None] + 0.5,
        )
        written = i * train_every * 3
        replay = store(config, replay, jax.tree.map(jnp.asarray, rollout), written)
        if i % 4 == 3 or i < 3:
            history.append((written + train_every * 3, replay))
    return config, history


def test_the_ring_holds_the_newest_transitions(rings):
    config, history = rings
    capacity = dqn.capacity_of(config)
    assert capacity == 36 and capacity % (config.num_envs * config.train_every) == 0
    for written, replay in history:
        newest = max(0, written - capacity), written
        time, env = np.divmod(np.arange(*newest), 3)
        kept = np.sort(replay.transitions.reward[: min(written, capacity)])
        np.testing.assert_array_equal(kept, np.sort(time + 100.0 * env))


@pytest.mark.parametrize("prioritized", [False, True])
def test_windows_cross_neither_the_write_head_nor_an_episode_s_end(rings, prioritized):
    config, history = rings
    config, capacity, n = config.replace(prioritized=prioritized), 36, config.n_step
    draw = jax.random.uniform if prioritized else jax.random.bits
    noise = draw(jax.random.key(0), (600,))

    @jax.jit
    def windows(replay, written):
        index, weights = dqn.sample(config, replay.priorities, noise, written, 0.4)
        return index, weights, dqn.gather(config, replay.transitions, index)

    for written, replay in history:
        complete = written - 3 * (n - 1)  # transitions whose n steps have been seen
        if complete < 1:
            continue
        index, weights, batch = jax.tree.map(np.asarray, windows(replay, written))
        np.testing.assert_allclose(weights, 1.0, rtol=1e-5)  # equal priorities so far
        rewards, terminated, done = (np.asarray(x) for x in replay.transitions[2:5])
        time = rewards[index] % 100
        assert set(time) == set(range(max(0, (written - capacity) // 3), complete // 3))
        position = {float(r): i for i, r in enumerate(rewards[:written])}
        for i, start in enumerate(rewards[index]):
            total, step = 0.0, start
            for k in range(n):
                step = start + k  # the same environment, one step later: it must be there
                total += config.gamma**k * step
                if done[position[float(step)]]:
                    break
            over = terminated[position[float(step)]]
            np.testing.assert_allclose(batch.returns[i], total, rtol=1e-5)
            np.testing.assert_allclose(batch.final_observation[i, 0], step + 0.5)
            discount = 0.0 if over else config.gamma ** (k + 1)
            np.testing.assert_allclose(batch.discount[i], discount, rtol=1e-5)


def test_every_transition_is_drawn_about_as_often():
    config = dqn.Config(num_envs=4, buffer_size=400, n_step=3)
    noise = jax.random.bits(jax.random.key(0), (100_000,))
    index, _ = dqn.sample(config, None, noise, jnp.int32(1004), 1.0)
    counts = np.bincount(index, minlength=400)
    assert (counts > 0).sum() == 400 - 8  # the newest two steps have no window yet
    np.testing.assert_allclose(counts[counts > 0], 100_000 / 392, rtol=0.3)


def test_observations_keep_their_dtype_or_take_another():
    env, env_params = envs.make("Breakout-MinAtar")
    config = dqn.Config(buffer_size=64)
    shapes = lambda config: jax.eval_shape(lambda: dqn.empty_replay(config, env, env_params))
    assert shapes(config).transitions.observation.dtype == jnp.float32
    bits = shapes(config.replace(buffer_dtype="bool")).transitions
    assert bits.observation.dtype == bits.final_observation.dtype == bool


# --- network ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dueling", [False, True])
def test_kernels_are_orthogonal(dueling):
    network = dqn.QNetwork(dqn.Config(dueling=dueling, hidden_sizes=(16, 8)), 3)
    params = dqn.initialize(network, jax.random.key(0), jnp.zeros((1, 4)))["params"]
    assert len(params) == (5 if dueling else 3)
    for name, leaf in params.items():
        matrix = leaf["kernel"] / (1.0 if name.endswith("head") else math.sqrt(2))
        matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
        np.testing.assert_allclose(matrix.T @ matrix, np.eye(matrix.shape[1]), atol=1e-5)
        np.testing.assert_array_equal(leaf["bias"], 0.0)
