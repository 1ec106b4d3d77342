"""PQN with memory: an update against a plain loop, a cue to be remembered, the file's contract."""

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts, pqn, pqn_rnn
from envs.evaluation import rewarded
from tests import probe as tasks
from tests.algorithms.cases import Case, again, assert_close, assert_same
from tests.probe import ProbeParams, RecallParams

CELLS = ("lstm", "gru", "mingru")
TINY = pqn_rnn.Config(
    total_timesteps=3 * 16,
    num_envs=2,
    num_steps=8,
    num_minibatches=2,
    update_epochs=2,
    hidden_sizes=(8,),
    memory_size=8,
    previous_inputs=True,
    num_evals=3,
    num_eval_episodes=2,
)


# --- formulas ---------------------------------------------------------------------------------

SHARED = ("q_lambda_targets", "epsilon_at", "epsilon_greedy", "learning_rates")


@pytest.mark.parametrize("name", SHARED)
def test_code_shared_with_pqn_is_tested_there(name):
    assert inspect.getsource(getattr(pqn_rnn, name)) == inspect.getsource(getattr(pqn, name))


def test_values_of_actions_are_those_of_pqn():
    rng = np.random.default_rng(0)
    values, mask = rng.normal(size=(5, 4, 3)), rng.random((5, 4, 3)) < 0.6
    for m in (None, mask):
        action = pqn_rnn.greedy(values, m)
        flat = pqn.greedy(values.reshape(20, 3), None if m is None else m.reshape(20, 3))
        np.testing.assert_array_equal(action.reshape(20), flat)
        expected = np.take_along_axis(values, np.asarray(action)[..., None], 2)[..., 0]
        np.testing.assert_allclose(pqn_rnn.of_action(values, action), expected, rtol=1e-5)


@functools.cache
def network_and_params(cell):
    """A network and its parameters for observations (2,), with large parameters.

    A memory without influence would hide mistakes.
    """
    config = TINY.replace(cell=cell, previous_inputs=False)
    network, memory = pqn_rnn.QNetwork(config, 2), parts.fresh_memory(config, None, 3)
    inputs, done = (jnp.zeros((1, 3, 2)),), jnp.zeros((1, 3), bool)
    params = jax.jit(network.init)(jax.random.key(0), memory, inputs, done)
    return network, jax.tree.map(lambda x: 2.0 * np.asarray(x) + 0.1, params)


@pytest.mark.parametrize("cell", CELLS)
def test_unrolling_is_stepping_with_a_zeroed_memory_after_every_end(cell):
    network, params = network_and_params(cell)
    rng = np.random.default_rng(1)
    x, done = rng.normal(size=(12, 3, 2)).astype(np.float32), rng.random((12, 3)) < 0.3
    hidden, inner = rng.normal(size=(2, 3, 8)).astype(np.float32)
    memory = parts.Memory(hidden, inner if cell == "lstm" else None)
    _, values = jax.jit(network.apply)(params, memory, (x,), done)
    step = jax.jit(lambda memory, x: pqn_rnn.one_step(network, params, memory, (x,)))
    for t in range(12):
        memory, expected = step(memory, x[t])
        np.testing.assert_allclose(values[t], expected, rtol=1e-4, atol=1e-4)
        memory = jax.tree.map(lambda m, t=t: np.where(done[t][:, None], 0.0, m), memory)


# --- an update --------------------------------------------------------------------------------

STILL = TINY.replace(
    total_timesteps=4 * 60,
    num_envs=6,
    num_steps=10,
    update_epochs=1,
    learning_rate=0.0,  # each minibatch uses the same parameters
    gamma=0.9,
    q_lambda=0.6,
    reward_scale=0.5,
    eps_start=0.0,
    eps_end=0.0,
    normalize_obs=True,
    num_evals=4,
    num_eval_episodes=0,
    eval_at_start=False,
)


# Of the cells in between, the memory is tested in parts.
SELDOM = [pytest.param(cell, marks=pytest.mark.slow) for cell in CELLS[1:]]


@pytest.fixture(scope="module", params=[CELLS[0], *SELDOM])
def still(request):
    """A config, an initial state whose values are far from 0, and train(params, state)."""
    config, env = STILL.replace(cell=request.param), tasks.Recall()
    initial = parts.first_state(pqn_rnn.make_train(config, env, RecallParams()), jax.random.key(0))
    large = lambda path, x: (100.0 if "head" in str(path) else 2.0) * x
    weights = jax.tree_util.tree_map_with_path(large, initial.policy.params)
    initial = initial.replace(policy=initial.policy.replace(params=weights))

    def train(params, state):
        return pqn_rnn.make_train(config, env, params)(None, state, 1)

    return config, lambda: again(initial), train


def seen(time, length):
    """The observation of CLOCK, which no action changes."""
    return np.array([math.cos(3.0 * time), float(time == length - 1)])


def symlog(x):
    return math.copysign(math.log(1.0 + abs(x)), x)


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_an_update_is_that_of_a_plain_loop(still, ending):
    """Checked over two rollouts: the memory runs on and is zeroed after an end.

    The value of a final observation uses the memory of the episode that ends there.
    """
    config, start, train = still
    length, limit = (6, 99) if ending == "terminated" else (99, 6)
    params = RecallParams(tasks.CLOCK, length, limit)
    network, space = (
        pqn_rnn.QNetwork(config, 2),
        parts.ActionSpace(tasks.Recall().action_space(params)),
    )
    step = jax.jit(functools.partial(pqn_rnn.one_step, network))
    observation = np.tile(seen(0, length), (6, 1)).astype(np.float32)
    state, time = start().replace(observation=jnp.array(observation)), 0
    fresh = parts.fresh_memory(config, space, 1)

    def look(policy, memory, action, reward, time):
        """Memory after an observation, and values of both actions."""
        x = policy.obs_stats.normalize(seen(time, length), config.clip_obs)
        last = np.eye(2)[action] if action is not None else np.zeros(2)
        inputs = x[None], last[None], np.array([symlog(reward)])
        memory, values = step(policy.params, memory, inputs)
        return memory, np.asarray(values)[0]

    memory, action, reward = fresh, None, 0.0
    for _ in range(2):
        policy, rows = state.policy, []
        for _ in range(10):
            memory, values = look(policy, memory, action, reward, time)
            action, time = int(values.argmax()), time + 1
            reward = math.sin(5.0 * time)
            _, final = look(policy, memory, action, reward, time)
            rows.append((values.max(), reward, final.max(), time == 6))
            if time == 6:
                memory, action, reward, time = fresh, None, 0.0, 0
        target, errors = None, []
        for t, (value, paid, ahead, over) in reversed(list(enumerate(rows))):
            later = ahead if over or t == 9 else 0.4 * ahead + 0.6 * target
            target = 0.5 * paid + 0.9 * (0.0 if over and ending == "terminated" else later)
            errors.append(value - target)
        state, metrics = train(params, state)
        np.testing.assert_allclose(metrics["loss"], 0.5 * np.mean(np.square(errors)), rtol=1e-4)
        mean = np.mean([value for value, *_ in rows])
        np.testing.assert_allclose(metrics["mean_value"], mean, rtol=1e-4, atol=1e-6)
        for e in range(6):
            mine = jax.tree.map(lambda x, e=e: x[e], state.memory)
            assert_close(mine.hidden, memory.hidden[0], rtol=1e-3, atol=1e-5)
            last = np.zeros(2) if action is None else np.eye(2)[action]
            np.testing.assert_allclose(mine.action, last)
            np.testing.assert_allclose(mine.reward, reward, rtol=1e-4, atol=1e-6)


def test_memories_are_zero_exactly_where_an_episode_has_just_ended(still):
    """Episodes of 5 steps end with the last step of a rollout of 10; episodes of 6 steps do not."""
    _, start, train = still
    for length, zero in ((5, True), (6, False)):
        state, _ = train(RecallParams(tasks.CLOCK, 99, length), start())
        for leaf in jax.tree.leaves(state.memory):
            assert (np.asarray(leaf) == 0.0).all() == zero and np.isfinite(leaf).all()


def test_every_environment_is_in_one_minibatch_with_its_own_memory(still):
    """Cues are random: one minibatch and two of them have the same mean loss."""
    config, start, train = still
    params, env = RecallParams(length=7), tasks.Recall()
    state, _ = train(params, start())
    one = pqn_rnn.make_train(config.replace(num_minibatches=1), env, params)
    _, expected = one(None, again(state), 1)
    _, metrics = train(params, state)
    np.testing.assert_allclose(metrics["loss"], expected["loss"], rtol=1e-4)


def test_the_value_of_a_forbidden_action_changes_nothing():
    """It changes neither actions, nor values, nor bootstraps from final observations."""
    env, params = tasks.Probe(masked=True), ProbeParams(tasks.SWING, 1.0, 3)
    train = pqn_rnn.make_train(STILL, env, params)
    state = parts.first_state(train, jax.random.key(0))

    def learn(worth):
        weights = jax.tree.map(lambda x: x, state.policy.params)
        bias = weights["params"]["head"]["bias"]
        weights["params"]["head"]["bias"] = bias.at[2].set(worth)  # never allowed
        policy = state.policy.replace(params=weights)
        return train(None, again(state).replace(policy=policy), 1)[1]

    assert_same(learn(100.0), learn(-100.0))


# --- a task that needs a memory ---------------------------------------------------------------


@pytest.mark.parametrize(
    "cell", ["gru", *(pytest.param(cell, marks=pytest.mark.slow) for cell in ("lstm", "mingru"))]
)
def test_a_cue_is_remembered(cell, vmapped_keys):
    """A policy that does not know the cue gets half of the reward; some actions are random."""
    config = pqn_rnn.Config(
        cell=cell,
        total_timesteps=80 * 192,
        num_envs=16,
        num_steps=12,
        learning_rate=1e-2,
        reward_scale=1.0,
        gamma=0.9,
        q_lambda=0.9,
        eps_end=0.02,
        memory_size=16,
        hidden_sizes=(16,),
        num_evals=1,
        eval_at_start=False,
    )
    keys = jax.random.split(jax.random.key(0), 3)
    train = pqn_rnn.make_train(config, tasks.Recall(), RecallParams())
    returns = np.asarray(jax.jit(jax.vmap(train))(keys)[1]["eval_return"])[:, -1]
    assert returns.mean() > 0.95, returns.mean(1)


# --- the policy -------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", CELLS)
def test_a_policy_s_memory_is_that_of_training(cell):
    """Checked step by step in one environment, with rewards passed back; memory=None is a fresh
    one."""
    env, params = tasks.Recall(), RecallParams()
    config = STILL.replace(cell=cell, eps_end=1.0)
    state = parts.first_state(pqn_rnn.make_train(config, env, params), jax.random.key(0))
    stats = parts.RunningStatistics(jnp.array([0.3, -1.0]), jnp.array([2.0, 0.5]), jnp.ones(()))
    weights = jax.tree.map(lambda x: 3.0 * x + 0.05, state.policy.params)
    state = state.replace(policy=pqn_rnn.PolicyState(weights, stats))
    act = pqn_rnn.make_policy(config, env, params)
    policy = jax.jit(lambda x, memory: act(state, x, memory))
    rng, memory, known, action, paid, steps = np.random.default_rng(4), None, [], None, 0.0, []
    for _ in range(8):
        x, reward = rng.normal(size=2).astype(np.float32), np.float32(rng.normal())
        last = np.zeros(2) if action is None else np.eye(2)[action]
        known.append((np.asarray(stats.normalize(x, config.clip_obs)), last, symlog(paid)))
        action, memory = policy(x, memory)
        steps.append((action, memory.hidden))
        memory, paid = rewarded(memory, reward), float(reward)
    inputs = tuple(np.array(column, np.float32)[:, None] for column in zip(*known))
    fresh, done = (
        parts.fresh_memory(config, parts.ActionSpace(env.action_space(params)), 1),
        np.zeros((8, 1), bool),
    )
    network = jax.jit(pqn_rnn.QNetwork(config, 2).apply)
    after, values = network(weights, fresh, inputs, done)
    actions, hidden = map(np.array, zip(*steps))
    np.testing.assert_array_equal(actions, values[:, 0].argmax(-1))
    np.testing.assert_allclose(hidden, after.hidden[:, 0], rtol=1e-3, atol=1e-4)
    keys = jax.random.split(jax.random.key(1), 300)
    with jax.debug_key_reuse(False):  # see conftest.vmapped_keys
        actions = jax.jit(jax.vmap(lambda key: act(state, x, memory, key)[0]))(keys)
    assert 0.4 < actions.mean() < 0.6


# --- the contract -----------------------------------------------------------------------------

CASE = Case(
    module=pqn_rnn,
    tiny=TINY,
    metrics={"loss", "grad_norm", "mean_value", "epsilon"},
    pinned={
        "loss": [0.0262675, 0.0213439, 0.025892],
        "grad_norm": [0.187773, 0.187169, 0.204454],
        "mean_value": [0.00339479, 0.00446573, 0.00525911],
    },
    refused=(
        (dict(num_minibatches=4), "num_minibatches=4 does not divide num_envs=2, .* 1, 2 would do"),
        (dict(cell="none"), "cell='none': give lstm or gru or mingru or minlstm or lru"),
        (dict(memory_size=0), "memory_size=0"),
        (dict(optimizer="sgd"), "optimizer='sgd': give radam or adam"),
        (
            dict(exploration="cosine"),
            "exploration='cosine': give constant or linear or exponential",
        ),
        (dict(env="Pendulum-v1"), "has actions .*; pqn_rnn takes Discrete"),
    ),
    other={"adam_eps": 1e-2, "max_grad_norm": 1e-2},
)


def check_kernels(params):
    """Checks that kernels are orthogonal, each with its gain."""
    gains, found = {"head": 0.01, "gates": 1.0, "memory": 1.0}, set()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if leaf.ndim > 1:
            matrix = np.asarray(leaf) / gains.get(path[0].key, 2**0.5)
            matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
            np.testing.assert_allclose(matrix.T @ matrix, np.eye(matrix.shape[1]), atol=1e-5)
            found.add(path[0].key)
    assert found == {"Dense_0", "gates", "memory", "head"}


def test_kernels_are_orthogonal_with_their_gains(slices):
    check_kernels(slices[0][0].policy.params["params"])
