"""R2D2: formulas against NumPy, a gradient step against a plain loop, and the file's contract."""

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import dqn, parts, pqn_rnn, r2d2
from tests import probe as tasks
from tests.algorithms.cases import Case, again, assert_same
from tests.algorithms.test_value_based import TOLERANCE, compared
from tests.probe import ProbeParams, RecallParams

TINY = r2d2.Config(
    total_timesteps=3 * 32,
    num_envs=2,
    train_every=4,
    updates_per_step=2,
    burn_in=4,
    sequence_length=8,
    buffer_size=40,
    batch_size=4,
    learning_starts=40,
    adam_eps=1e-5,
    n_step=2,
    target_every=1,
    tau=0.05,
    hidden_sizes=(8,),
    memory_size=8,
    previous_inputs=True,
    normalize_obs=False,
    staleness_steps=8,
    num_evals=3,
    num_eval_episodes=2,
)


# --- formulas ---------------------------------------------------------------------------------


def plain_h(x, eps):
    return math.copysign(math.sqrt(abs(x) + 1.0) - 1.0, x) + eps * x


def plain_inverse(y, eps):
    if eps == 0.0:
        return math.copysign((abs(y) + 1.0) ** 2 - 1.0, y)
    root = (math.sqrt(1.0 + 4.0 * eps * (abs(y) + 1.0 + eps)) - 1.0) / (2.0 * eps)
    return math.copysign(root**2 - 1.0, y)


@pytest.mark.parametrize("eps", [0.0, 1e-3, 0.1])
def test_rescaling_and_its_inverse_are_the_paper_s(eps):
    x = np.concatenate([np.linspace(-3.0, 3.0, 25), [-1e4, 1e4]]).astype(np.float32)
    scaled = r2d2.rescale(x, eps)
    expected = [plain_h(float(v), eps) for v in x]
    np.testing.assert_allclose(scaled, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(r2d2.unscale(scaled, eps), x, rtol=1e-4, atol=1e-5)
    expected = [plain_inverse(float(v), eps) for v in x]
    np.testing.assert_allclose(r2d2.unscale(x, eps), expected, rtol=1e-4, atol=1e-5)


def plain_returns(rewards, next_values, terminated, done, gamma, n_step):
    """For one environment, step by step."""
    targets = []
    for first in range(len(rewards)):
        total, discount = 0.0, 1.0
        for t in range(first, min(first + n_step, len(rewards))):
            total, discount = total + discount * rewards[t], discount * gamma
            if done[t]:
                break
        targets.append(total + (0.0 if terminated[t] else discount * next_values[t]))
    return targets


@pytest.mark.parametrize("n_step", [1, 2, 5, 30])
def test_returns_stop_at_the_ends_of_episodes_and_of_the_sequence(n_step):
    rng = np.random.default_rng(n_step)
    rewards, values = rng.normal(size=(2, 20, 40)).astype(np.float32)
    terminated, truncated = rng.random((2, 20, 40)) < 0.1
    done = terminated | truncated
    found = r2d2.n_step_returns(rewards, values, terminated, done, 0.9, n_step)
    columns = (x.T for x in (rewards, values, terminated, done))
    expected = [plain_returns(*column, 0.9, n_step) for column in zip(*columns)]
    np.testing.assert_allclose(found, np.transpose(expected), rtol=1e-4, atol=1e-5)


def test_a_sequence_s_priority_mixes_its_largest_error_with_the_mean():
    errors = np.array([[1.0, 0.5], [3.0, 0.5], [2.0, 0.5]])
    np.testing.assert_allclose(r2d2.sequence_priority(errors, 0.9), [2.9, 0.5])
    np.testing.assert_allclose(r2d2.sequence_priority(errors, 0.0), [2.0, 0.5])


def test_staleness_is_a_distance_over_the_largest_value():
    fresh = np.array([[[1.0, -5.0]], [[-2.0, -4.0]]])  # two steps of one sequence
    stored = fresh + np.array([[[0.3, 0.4]], [[0.0, 2.0]]])
    np.testing.assert_allclose(r2d2.staleness(stored, jnp.array(fresh)), [[0.5], [2.0]], 1e-6)
    below = r2d2.staleness(stored - 3.0, jnp.array(fresh) - 3.0)  # the largest is -2
    np.testing.assert_allclose(below, [[0.25], [1.0]], 1e-6)


@pytest.mark.parametrize("name", ["epsilon_greedy", "importance_weights"])
def test_code_shared_with_dqn_is_tested_there(name):
    assert inspect.getsource(getattr(r2d2, name)) == inspect.getsource(getattr(dqn, name))


@pytest.mark.parametrize("name", ["greedy", "of_action"])
def test_code_shared_with_pqn_rnn_is_tested_there(name):
    assert inspect.getsource(getattr(r2d2, name)) == inspect.getsource(getattr(pqn_rnn, name))


# --- one gradient step ------------------------------------------------------------------------

# An update is two rounds of eight steps, and a sequence is both. So after the first update there is
# one sequence, and one gradient step has learned from it.
ONE = TINY.replace(
    total_timesteps=16 * 10,
    num_envs=1,
    train_every=8,
    updates_per_step=1,
    burn_in=8,
    sequence_length=8,
    buffer_size=16 * 10,
    learning_starts=0,
    batch_size=2,
    gamma=0.9,
    n_step=3,
    reward_scale=0.5,
    rescale_eps=0.05,
    learning_rate=0.0,  # all use the same parameters
    target_every=100,
    eps_start=0.7,
    eps_end=0.7,
    staleness_steps=16,
    normalize_obs=True,
)
# Length and limit of episodes, and the last steps of those in a sequence: the last ones of the
# burn-in and of the sequence, or one among those that are learned.
ENDS = {"terminated": (8, 99, [7, 15]), "truncated": (99, 11, [10])}
COUNT = 1e6  # so many observations in the statistics that a rollout hardly changes them


def large(path, x):
    """Parameters that tell memories and inputs apart."""
    return (3.0 if "head" in str(path) else 2.0) * x + 0.05


@functools.cache
def programs(double, rescale_values):
    """The initial state, with a memory that is not fresh and two networks; and update."""
    config = ONE.replace(double=double, rescale_values=rescale_values)
    env = tasks.Recall()

    def learner(params):
        return r2d2.learner(config, env, params)

    def init(params):
        state = learner(params).init(jax.random.key(0))
        online = jax.tree_util.tree_map_with_path(large, state.policy.params)
        noise = np.random.default_rng(3)
        jitter = lambda x: x + 0.3 * noise.normal(size=x.shape).astype(np.float32)
        target, memory = jax.tree.map(jitter, (online, state.memory))
        prefer = target["params"]["head"]  # the other action, in some steps
        prefer["bias"] += jnp.array([0.0, 1.6])
        stats = state.policy.obs_stats
        stats = stats.replace(mean=stats.mean + 0.3, var=4.0 * stats.var, count=jnp.float32(COUNT))
        policy = state.policy.replace(params=online, obs_stats=stats)
        return state.replace(policy=policy, target_params=target, memory=memory)

    return config, jax.jit(init), jax.jit(lambda params, state: learner(params).update(state))


def rows_of(state):
    """The steps in the replay buffer of one environment, in order of time, as NumPy arrays."""
    steps = jax.tree.map(np.asarray, state.replay.transitions.steps)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps)


def loop(config, space, policy, params, memory, steps, stop=-1):
    """Values before and after each step, before any restart, one step at a time.

    Gradients stop at the memory before step `stop`. Also the memories before the steps.
    """
    network = r2d2.QNetwork(config, 2)
    see = lambda x: policy.obs_stats.normalize(x, config.clip_obs)[None]

    def one(memory, inputs):
        t, step = inputs
        at_stop = lambda x: jnp.where(t == stop, jax.lax.stop_gradient(x), x)
        before = memory = jax.tree.map(at_stop, memory)
        inputs = see(step.observation), *parts.last_step(memory)
        memory, value = parts.one_step(network, params, memory, inputs)
        action, reward = step.action[None], step.reward[None]
        memory = parts.with_last_step(config, space, memory, action, reward)
        last = see(step.final_observation), *parts.last_step(memory)
        _, final = parts.one_step(network, params, memory, last)
        memory = jax.tree.map(lambda x: jnp.where(step.done, 0.0, x), memory)
        return memory, (value[0], final[0], before)

    return jax.lax.scan(one, memory, (jnp.arange(len(steps.reward)), steps))[1]


@pytest.mark.parametrize("ending, double", [("terminated", True), ("truncated", False)])
def test_a_gradient_step_is_that_of_a_plain_loop(ending, double):
    """Burn-in from the stored state, memories zeroed at ends, targets, gradient and priority."""
    rescale_values = double
    config, init, update = programs(double, rescale_values)
    length, limit, ends = ENDS[ending]
    params = RecallParams(tasks.CLOCK, length, limit)
    before, space = init(params), parts.ActionSpace(tasks.Recall().action_space(params))
    policy, target_params, start = before.policy, before.target_params, before.memory
    after, metrics = update(params, before)
    steps = rows_of(after)
    steps = jax.tree.map(lambda x: x[:16], steps)
    np.testing.assert_array_equal(np.flatnonzero(steps.done), ends)
    assert steps.terminated.any() == (ending == "terminated")
    assert len(np.unique(steps.action)) == 2

    @jax.jit
    def plain(steps):
        """Values of both networks before and after each step, and the online one's memories."""
        run = functools.partial(loop, config, space, policy, memory=start, steps=steps)
        return run(params=policy.params), run(params=target_params)[1]

    (values, finals, memories), judged = jax.tree.map(np.asarray, plain(steps))
    judged, selecting = judged[8:], (finals if double else judged)[-8:]
    best = judged[np.arange(8), selecting.argmax(-1)]
    assert 0 < (judged.argmax(-1) != finals[8:].argmax(-1)).sum() < 8
    h, inverse = (plain_h, plain_inverse) if rescale_values else (lambda x, _: x,) * 2
    eps, rewards = config.rescale_eps, 0.5 * steps.reward[8:]
    best = [inverse(float(x), eps) for x in best]
    flags = steps.terminated[8:], steps.done[8:]
    y = np.array([h(float(x), eps) for x in plain_returns(rewards, best, *flags, 0.9, 3)])

    @jax.jit
    def gradient(params, steps):
        def loss(params):
            values = loop(config, space, policy, params, start, steps, stop=8)[0]
            return 0.5 * jnp.square(y - values[jnp.arange(16), steps.action][8:]).mean()

        return jax.value_and_grad(loss)(params)

    expected, grads = gradient(policy.params, steps)
    norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(grads)))
    errors = np.abs(y - values[np.arange(16), steps.action][8:])
    close = functools.partial(np.testing.assert_allclose, rtol=1e-3)
    found = {name: float(x.total) for name, x in metrics.items() if isinstance(x, parts.Average)}
    close(found["loss"], expected)
    close(found["td_error"], errors.mean())
    close(found["mean_value"], values[8:].max(-1).mean())
    close(found["grad_norm"], norm)
    priority = 0.9 * errors.max() + 0.1 * errors.mean() + config.priority_eps
    close(after.replay.priorities[0], priority**config.priority_alpha)
    stored = jax.tree.map(lambda x: x[1], after.replay.transitions.memory)
    for mine, theirs in zip(jax.tree.leaves(stored), jax.tree.leaves(memories)):
        close(mine, theirs[8, 0], atol=1e-5)


# The first step of the episode that step 64 belongs to, by the length of episodes. Of the four, one
# lasts until step 79, one ends in the learned steps, one begins in the burn-in, one is too long.
STALE = {40: 40, 23: 46, 30: 60, 100: None}


@functools.cache
def rounds_of_one():
    """A config whose updates are rounds of 16 steps, init and update."""
    config = ONE.replace(train_every=16, burn_in=16, sequence_length=16, staleness_steps=32)
    config = config.replace(buffer_size=160, total_timesteps=320)
    learner = lambda params: r2d2.learner(config, tasks.Recall(), params)

    def init(params):
        state = learner(params).init(jax.random.key(0))
        online = jax.tree_util.tree_map_with_path(large, state.policy.params)
        return state.replace(policy=state.policy.replace(params=online))

    return config, jax.jit(init), jax.jit(lambda params, state: learner(params).update(state))


@pytest.mark.parametrize("length", STALE)
def test_staleness_compares_with_the_memory_since_the_episode_s_start(length):
    """Steps 64 to 79 are learned, after a burn-in from step 48, and 32 steps before it are in
    reach. The stored states are changed, as by an older network."""
    config, init, update = rounds_of_one()
    params = RecallParams(tasks.CLOCK, length)
    state = init(params)
    for _ in range(5):
        state, _ = update(params, state)
    chunks = state.replay.transitions
    chunks = chunks._replace(memory=jax.tree.map(lambda x: 0.5 - x, chunks.memory))
    only = jnp.zeros_like(state.replay.priorities).at[3].set(1.0)
    replay = state.replay.replace(transitions=chunks, priorities=only, max_priority=jnp.zeros(()))
    state, metrics = update(params, state.replace(replay=replay))
    found = metrics["staleness_first"], metrics["staleness_last"]
    if STALE[length] is None:
        assert all(x.weight == 0 and x.total == 0 for x in found)
        return
    assert all(x.weight == 1 for x in found)
    steps, policy, apply = rows_of(state), state.policy, jax.jit(r2d2.QNetwork(config, 2).apply)

    def unrolled(first, memory):
        part = jax.tree.map(lambda x: x[first:80], steps)
        before = jax.tree.map(lambda x: x[first - 1 : 79], steps)
        action = np.eye(2)[before.action] * ~before.done[:, None]
        reward = np.array([symlog(r) for r in before.reward * ~before.done])
        if first == 48:  # the stored state has its own
            action[0], reward[0] = (np.asarray(x)[0] for x in parts.last_step(memory))
        x = policy.obs_stats.normalize(part.observation, config.clip_obs)
        inputs = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32)[:, None], (x, action, reward))
        return apply(policy.params, memory, inputs, part.done[:, None])[1][-16:]

    stored = jax.tree.map(lambda x: x[3][None], chunks.memory)
    fresh = unrolled(STALE[length], jax.tree.map(jnp.zeros_like, stored))
    expected = r2d2.staleness(unrolled(48, stored), fresh)[[0, -1], 0]
    assert list(expected > 1e-4) == [length != 30, length == 40]
    for average, value in zip(found, expected):
        np.testing.assert_allclose(average.total, value, rtol=1e-2, atol=1e-5)


def symlog(x):
    return math.copysign(math.log1p(abs(x)), x)


def test_masks_are_of_the_observations_that_actions_are_chosen_at():
    """Whatever a forbidden action is worth to either network, the same is learned."""
    env, params = tasks.Probe(masked=True), ProbeParams(task=tasks.SWING, max_steps_in_episode=5)
    learner = r2d2.learner(ONE, env, params)
    update, first = jax.jit(learner.update), jax.jit(learner.init)(jax.random.key(0))

    def learn(worth):
        def of(tree):
            tree = jax.tree.map(lambda x: x, tree)
            head = tree["params"]["head"]
            head["bias"] = head["bias"].at[2].set(worth)  # never allowed
            return tree

        state = again(first)
        policy = state.policy.replace(params=of(state.policy.params))
        state = state.replace(policy=policy, target_params=of(state.target_params))
        metrics = update(state)[1]
        return [metrics[name] for name in ("loss", "td_error", "mean_value")]

    assert_same(learn(100.0), learn(-100.0))


# --- a task that needs a memory ---------------------------------------------------------------


def test_a_cue_is_remembered(vmapped_keys):
    """A policy that does not know the cue gets half of the reward; some actions are random."""
    config = r2d2.Config(
        total_timesteps=100 * 256,
        updates_per_step=2,
        burn_in=0,
        sequence_length=16,
        learning_starts=1_000,
        learning_rate=1e-2,
        adam_eps=1e-5,
        gamma=0.9,
        target_every=10,
        memory_size=16,
        hidden_sizes=(16,),
        num_evals=1,
        eval_at_start=False,
    )
    keys = jax.random.split(jax.random.key(0), 3)
    train = r2d2.make_train(config, tasks.Recall(), RecallParams())
    returns = np.asarray(jax.jit(jax.vmap(train))(keys)[1]["eval_return"])[:, -1]
    assert returns.mean() > 0.95, returns.mean(1)


# --- the contract -----------------------------------------------------------------------------

CASE = Case(
    module=r2d2,
    tiny=TINY,
    metrics={
        "loss",
        "td_error",
        "mean_value",
        "grad_norm",
        "staleness_first",
        "staleness_last",
    },
    pinned={
        "loss": [0.162505, 0.125893],
        "grad_norm": [0.551556, 0.500128],
        "mean_value": [0.229214, 0.313694],
        "staleness_first": [0.00767944],
    },
    refused=(
        (dict(burn_in=-1), "burn_in=-1"),
        (dict(train_every=0), "train_every=0"),
        (dict(n_step=0), "n_step=0"),
        (dict(batch_size=8.5), "batch_size=8.5"),
        (dict(target_every=0), "target_every=0"),
        (dict(staleness_steps=-1), "staleness_steps=-1"),
        (dict(memory_size=0), "memory_size=0"),
        (dict(cell="none"), "cell='none': give lstm or gru or mingru or minlstm or lru"),
        (dict(buffer_dtype="int7"), "buffer_dtype='int7': give \"\" or bool or int8"),
        (dict(train_every=12), "train_every=12 leaves steps unlearned; train_every=8 would do"),
        (
            dict(train_every=5),
            "train_every=5 does not divide burn_in=4 and .*; 2, 3, 4, 6 would do",
        ),
        (dict(learning_starts=96), "learning_starts=96 leaves nothing .* 9 would do"),
        (dict(buffer_size=23), "buffer_size=23 is less than a sequence of 12 .*; 24 would do"),
        (dict(burn_in=84, buffer_size=400), "total_timesteps=96 is less than .*; 184 would do"),
        (dict(env="Pendulum-v1"), "has actions .*; r2d2 takes Discrete"),
    ),
    other={"adam_eps": 1e-2, "eps_end": 0.9, "max_grad_norm": 1e-3, "priority_eps": 0.5},
    tolerance=TOLERANCE,
    compared=compared,
)


def test_metrics_begin_with_learning(trained):
    """Learning starts after the second point."""
    state, metrics = trained
    assert list(metrics["timestep"]) == [0, 32, 64, 96] and int(state.update) == 3
    for name in CASE.metrics:
        assert np.isnan(metrics[name][:2]).all() and np.isfinite(metrics[name][3:]).all(), name
    left = np.maximum(1.0 - np.arange(24) / 24 / 0.2, 0.0)[::2].reshape(3, 4).mean(1)
    np.testing.assert_allclose(metrics["epsilon"][1:], 0.1 + 0.9 * left, rtol=1e-5)
