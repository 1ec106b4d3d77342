"""PPO with memory: sequences, probe tasks, the file's contract."""

import functools
import inspect
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms import parts, ppo, ppo_rnn
from tests import probe as tasks
from tests.algorithms.cases import Case, again, assert_close, assert_same, programs
from tests.algorithms.test_ppo import random_rollout
from tests.probe import RecallParams

TINY = ppo_rnn.Config(  # an lstm: parts have tests of all other cells
    learning_rate=2.5e-3,
    adam_eps=1e-5,
    forget_bias=1.0,
    total_timesteps=3 * 16,
    num_envs=2,
    num_steps=8,
    num_minibatches=2,
    update_epochs=2,
    hidden_sizes=(8,),
    memory_size=8,
    num_evals=3,
    num_eval_episodes=2,
)


def network_with_params(config, space):
    """A network and its parameters for observations (2,)."""
    network, memory = ppo_rnn.ActorCritic(config, space), parts.fresh_memory(config, space, 1)
    return network, jax.jit(network.init)(jax.random.key(0), memory, jnp.zeros((1, 2)))


@functools.cache
def network_and_params():
    """A network with large parameters: a memory without influence would hide mistakes."""
    network, params = network_with_params(TINY, parts.ActionSpace(tasks.spaces.Discrete(2)))
    return network, jax.tree.map(lambda x: 2.0 * np.asarray(x) + 0.1, params)


@functools.cache
def applied():
    """Compiled step(params, memory, x) and unroll(params, memory, x, done)."""
    network, _ = network_and_params()
    return jax.jit(network.apply), jax.jit(functools.partial(network.apply, method="unroll"))


def random_sequence(seed, num_steps=12, num_envs=3, memory_size=8):
    """Observations, flags and an LSTM's memory."""
    rng = np.random.default_rng(seed)
    x = jnp.array(rng.normal(size=(num_steps, num_envs, 2)), jnp.float32)
    done = jnp.array(rng.random((num_steps, num_envs)) < 0.3)
    hidden, cell = jnp.array(rng.normal(size=(2, num_envs, memory_size)), jnp.float32)
    return x, done, parts.Memory(hidden, cell)


# --- memories ---------------------------------------------------------------------------------


def test_unrolling_is_stepping_with_a_zeroed_memory_after_every_end():
    params, (step, unroll) = network_and_params()[1], applied()
    x, done, memory = random_sequence(1)
    actor, values = unroll(params, memory, x, done)
    for t in range(len(x)):
        memory, expected, value = step(params, memory, x[t])
        np.testing.assert_allclose(actor.logits[t], expected.logits, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(values[t], value, rtol=1e-4, atol=1e-4)
        memory = jax.tree.map(lambda m, t=t: np.where(done[t][:, None], 0.0, m), memory)


@pytest.mark.parametrize(
    "cell, layers",
    [
        ("s5", 2),
        pytest.param("gtrxl", 2, marks=pytest.mark.slow),
        pytest.param("gru", 3, marks=pytest.mark.slow),
    ],
)
def test_the_loss_sees_the_log_probabilities_of_acting(cell, layers):
    """Without a step, policies before and after an update are the same. Rollouts are shorter than
    episodes and windows, and episodes end in rollouts."""
    config = TINY.replace(
        cell=cell, layers=layers, memory_size=8, window=9, learning_rate=0.0, num_steps=7
    )
    learner = ppo_rnn.learner(config, *envs.make("CartPole-v1"))
    state, update = jax.jit(learner.init)(jax.random.key(0)), jax.jit(learner.update)
    head = state.policy.params["params"]["actor_head"]
    head["kernel"] = 30.0 * head["kernel"]
    for _ in range(8):
        state, metrics = update(state)
        assert abs(metrics["approx_kl"]) < 1e-10
    assert state.episodes.count > 2


def test_a_memory_after_a_reset_is_a_fresh_one_bit_for_bit():
    """Neither memory nor observations from before the reset affect later learning."""
    params, (step, unroll) = network_and_params()[1], applied()
    x, _, memory = random_sequence(2)
    forgotten = parts.forget(step(params, memory, x[0])[0], jnp.array([True, False, True]))
    fresh = parts.fresh_memory(TINY, None, 3)
    mixed = jax.tree.map(lambda a, b: a.at[1].set(b[1]), fresh, forgotten)
    assert_same(forgotten, mixed)
    assert_same(step(params, forgotten, x[1]), step(params, mixed, x[1]))
    assert np.abs(forgotten.hidden[1]).min() > 0.0

    done = jnp.zeros((12, 3), bool).at[4].set(True)
    one = unroll(params, memory, x, done)
    other = unroll(params, jax.tree.map(lambda m: -m, memory), x.at[:5].multiply(3.0), done)
    assert_same(jax.tree.map(lambda y: y[5:], one), jax.tree.map(lambda y: y[5:], other))
    assert (np.asarray(one[1][:5]) != np.asarray(other[1][:5])).all()


def test_gradients_flow_through_time_up_to_an_end_and_no_further():
    params, unroll = network_and_params()[1], applied()[1]
    x, _, memory = random_sequence(3)
    done = jnp.zeros((12, 3), bool).at[3].set(True)

    @jax.jit
    def gradients(t):
        value = lambda memory, x: unroll(params, memory, x, done)[1][t].sum()
        return jax.grad(value, (0, 1))(memory, x)

    of_memory, of_x = gradients(11)
    assert (np.abs(of_x[4:]).sum(-1) > 1e-9).all()
    np.testing.assert_array_equal(of_x[:4], 0.0)
    assert all((np.asarray(leaf) == 0.0).all() for leaf in jax.tree.leaves(of_memory))
    assert all((np.abs(leaf) > 0.0).all() for leaf in jax.tree.leaves(gradients(2)[0]))


def test_masks_take_probability_from_actions_and_nothing_else():
    params, (step, unroll) = network_and_params()[1], applied()
    x, done, memory = random_sequence(5)
    mask = jnp.array(np.random.default_rng(5).random((12, 3)) < 0.5)
    mask = jnp.stack([mask, jnp.ones_like(mask)], -1)  # one of two actions is always allowed
    free, values = unroll(params, memory, x, done)
    masked, same_values = unroll(params, memory, x, done, mask)
    assert_same(values, same_values)
    np.testing.assert_array_equal(free.logits[mask], masked.logits[mask])
    probabilities = masked.probs
    assert (probabilities[~mask] == 0.0).all() and (probabilities[mask] > 0.0).all()
    after, stepped, value = step(params, memory, x[0], mask[0])
    assert_same((after, value), step(params, memory, x[0])[::2])
    np.testing.assert_allclose(stepped.logits, masked.logits[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("skip", [True, False])
def test_heads_see_memories_and_with_skip_their_inputs(skip):
    """`review` agrees with a plain computation, with one dense layer."""
    config, (x, _, memory) = TINY.replace(skip=skip), random_sequence(5)
    network, params = network_with_params(config, parts.ActionSpace(tasks.spaces.Discrete(2)))
    rng, p = np.random.default_rng(6), params["params"]
    hidden = rng.normal(size=(*x.shape[:2], memory.hidden.shape[-1])).astype(np.float32)
    actor, values = network.apply(params, hidden, x, method="review")
    layer = p["torso"]["Dense_0"]
    seen = getattr(nn, config.activation)(x @ layer["kernel"] + layer["bias"])
    features = np.concatenate([hidden, seen], -1) if skip else hidden
    expected = features @ p["critic_head"]["kernel"] + p["critic_head"]["bias"]
    np.testing.assert_allclose(values, expected[..., 0], rtol=1e-4, atol=1e-5)
    expected = features @ p["actor_head"]["kernel"] + p["actor_head"]["bias"]
    np.testing.assert_allclose(actor.logits, expected, rtol=1e-4, atol=1e-5)


def test_kernels_are_orthogonal_with_the_usual_gains():
    """Those of a mingru, after convolutions; test_ippo_rnn.py has an lstm, test_vdn.py a gru."""
    config = ppo_rnn.Config(env="Breakout-MinAtar", cell="mingru")
    learner = ppo_rnn.learner(config, *envs.make(config.env))
    state = jax.jit(learner.init)(jax.random.key(0))
    gains = {"actor_head": 0.01, "critic_head": 1.0, "gates": 1.0, "memory": 1.0}
    params, kernels = jax.tree.map(np.asarray, state.policy.params["params"]), 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if path[-1].key == "bias":
            np.testing.assert_array_equal(leaf, 0.0)
            continue
        matrix = leaf.reshape(-1, leaf.shape[-1]) / gains.get(path[0].key, math.sqrt(2))
        matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
        np.testing.assert_allclose(matrix.T @ matrix, np.eye(matrix.shape[1]), atol=1e-5)
        kernels += 1
    assert kernels == 6


# --- formulas ---------------------------------------------------------------------------------


def plain_gae(rewards, values, next_values, terminated, done, gamma, lam):
    advantages, advantage = np.zeros_like(rewards), 0.0
    for t in reversed(range(len(rewards))):
        error = rewards[t] + gamma * next_values[t] * (1.0 - terminated[t]) - values[t]
        advantages[t] = advantage = error + gamma * lam * (1.0 - done[t]) * advantage
    return advantages


def test_gae_is_the_plain_recursion():
    rollout = random_rollout(0)
    result = ppo_rnn.gae(*rollout, 0.9, 0.8)
    np.testing.assert_allclose(result, plain_gae(*rollout, 0.9, 0.8), rtol=1e-4, atol=1e-5)


SHARED = ("gae", "clipped_surrogate", "value_error", "kl_estimate", "learning_rates")


@pytest.mark.parametrize("name", SHARED)
def test_code_shared_with_ppo_is_tested_there(name):
    assert inspect.getsource(getattr(ppo_rnn, name)) == inspect.getsource(getattr(ppo, name))


# --- probe tasks ------------------------------------------------------------------------------

# One gradient step a rollout, before which the ratio must be one. clip_fraction counts every ratio
# further away than clip_eps.
ONE_STEP = TINY.replace(
    total_timesteps=4 * 60,
    num_envs=6,
    num_steps=10,
    num_minibatches=1,
    update_epochs=1,
    learning_rate=1e-2,
    normalize_reward=False,
    num_evals=4,
    num_eval_episodes=0,
    eval_at_start=False,
)


def large(state):
    """A state whose logits, values and memories are far from zero."""
    scale = lambda path, x: (1000.0 if "actor_head" in str(path) else 2.0) * x
    params = jax.tree_util.tree_map_with_path(scale, state.policy.params)
    return state.replace(policy=state.policy.replace(params=params))


# The first of these runs every time: of other cells, parts test the memory.
SELDOM = ("lstm", "gru", "mingru", "gru, previous inputs")
SELDOM = [pytest.param(cell, marks=pytest.mark.slow) for cell in SELDOM]


@pytest.fixture(scope="module", params=["lstm, previous inputs", *SELDOM])
def one_step(request):
    """A config, an initial state, and learn(params, state, **floats), an update.

    Floats and parameters are arguments of one compiled program.
    """
    cell, _, previous = request.param.partition(", ")
    env, tolerance = tasks.Recall(), 1e-4 if cell == "mingru" else 1e-5
    config = ONE_STEP.replace(cell=cell, clip_eps=tolerance, gamma=0.9, gae_lambda=0.8)
    config = config.replace(previous_inputs=bool(previous))
    init, _ = programs(ppo_rnn.learner(config, env, RecallParams()))
    initial = init(jax.random.key(0))

    def start():  # its keys may be used once
        return large(again(initial))

    @jax.jit
    def update(config, params, state):
        return programs(ppo_rnn.learner(config, env, params))[1](state)

    def learn(params, state, **floats):
        strong = lambda x: jnp.asarray(x, jnp.result_type(x))
        return update(*jax.tree.map(strong, (config.replace(**floats), params)), state)

    return config, start, learn


def test_before_the_first_gradient_step_the_ratio_is_one_everywhere(one_step):
    """Episodes of 6 and 7 steps end inside rollouts of 10, and run on from one to the next."""
    _, start, learn = one_step
    for params in (RecallParams(), RecallParams(length=99, max_steps_in_episode=7)):
        state = start()
        for _ in range(4):
            state, metrics = learn(params, state)
            np.testing.assert_array_equal(metrics["clip_fraction"], 0.0)
            assert metrics["entropy"] < 0.68  # far enough from uniform to see a difference
            assert metrics["grad_norm"] > 1e-3


def seen(time, params, num_envs):
    """The observation of CLOCK."""
    x = jnp.array([math.cos(3.0 * time), float(time == params.length - 1)])
    return jnp.tile(x, (num_envs, 1))


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_values_and_bootstraps_are_those_of_a_plain_loop(one_step, ending):
    """Checked over two rollouts: the memory runs on and is zeroed after an end.

    The value of a final observation uses the memory of the episode that ends there.
    """
    config, start, learn = one_step
    params = RecallParams(tasks.CLOCK, *((6, 99) if ending == "terminated" else (99, 6)))
    env, time = tasks.Recall(), 0
    space = parts.ActionSpace(env.action_space(params))
    apply = jax.jit(ppo_rnn.ActorCritic(config, space).apply)
    state = start().replace(observation=seen(0, params, 6))
    if config.previous_inputs:  # actions are random; networks see only rewards
        kernel = state.policy.params["params"]["torso"]["Dense_0"]["kernel"]
        state.policy.params["params"]["torso"]["Dense_0"]["kernel"] = kernel.at[2:4].set(0.0)
        learn = functools.partial(learn, learning_rate=0.0)
    memory = fresh = parts.fresh_memory(config, space, 6)
    for _ in range(2):
        policy, rewards, values, next_values, ends = state.policy, [], [], [], []
        for _ in range(config.num_steps):
            x = policy.obs_stats.normalize(seen(time, params, 6), config.clip_obs)
            memory, _, value = apply(policy.params, memory, x)
            time += 1
            if config.previous_inputs:
                reward = jnp.full(6, math.sin(5.0 * time))
                memory = memory._replace(action=jnp.zeros((6, 2)), reward=reward)
            final_x = policy.obs_stats.normalize(seen(time, params, 6), config.clip_obs)
            next_values.append(float(apply(policy.params, memory, final_x)[2][0]))
            values.append(float(value[0]))
            rewards.append(math.sin(5.0 * time))
            ends.append(time == 6)
            if ends[-1]:
                memory, time = fresh, 0
        rewards, values, next_values = map(np.array, (rewards, values, next_values))
        ends = np.array(ends, float)
        terminated = ends * (ending == "terminated")
        advantages = plain_gae(rewards, values, next_values, terminated, ends, 0.9, 0.8)
        state, metrics = learn(params, state)
        np.testing.assert_allclose(metrics["mean_value"], values.mean(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            metrics["value_loss"], 0.5 * np.mean(advantages**2), rtol=1e-4, atol=1e-6
        )
        assert_close(state.memory._replace(action=None), memory._replace(action=None), 1e-3, 1e-5)


def test_a_single_minibatch_is_standardised_as_the_rollout_is(one_step):
    config, start, learn = one_step
    state, params = start(), RecallParams(tasks.CLOCK, 6, 99)
    other = "minibatch" if config.normalize_over == "rollout" else "rollout"
    learner = ppo_rnn.learner(config.replace(normalize_over=other), tasks.Recall(), params)
    found = [learn(params, again(state))[1], programs(learner)[1](again(state))[1]]
    assert found[0]["grad_norm"] > 0.1 and abs(found[0]["policy_loss"]) < 1e-5
    assert_close(*found, rtol=1e-4, atol=1e-6)


def test_memories_are_zero_exactly_where_an_episode_has_just_ended(one_step):
    """Episodes of 5 steps end with the last step of a rollout of 10; episodes of 6 steps do not."""
    _, start, learn = one_step
    for length, zero in ((5, True), (6, False)):
        params = RecallParams(tasks.CLOCK, 99, length)
        state, _ = learn(params, start())
        for leaf in jax.tree.leaves(state.memory):
            assert (np.asarray(leaf) == 0.0).all() == zero and np.isfinite(leaf).all()


# --- tasks that need a memory -----------------------------------------------------------------

RECALL = dict(
    total_timesteps=40 * 192,
    num_envs=16,
    num_steps=12,
    learning_rate=2e-2,
    adam_eps=1e-5,
    hidden_sizes=(16,),
    num_evals=8,
    num_eval_episodes=0,
    eval_at_start=False,
    ent_coef=0.0,
)
SEEDS = 3


def play_recall(module, config, kind):
    """Mean training returns of the last eighth, (SEEDS,)."""
    env = tasks.Recall(kind == "continuous")
    keys = jax.random.split(jax.random.key(0), SEEDS)
    train = jax.jit(jax.vmap(module.make_train(config, env, RecallParams())))
    return np.asarray(train(keys)[1]["episode_return"])[:, -1]


SLOWLY = dict(marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "cell, kind",
    [
        ("gru", "discrete"),
        pytest.param("lstm", "discrete", **SLOWLY),
        pytest.param("mingru", "continuous", **SLOWLY),
    ],
)
def test_a_cue_is_remembered_by_every_cell(cell, kind, vmapped_keys):
    config = ppo_rnn.Config(cell=cell, memory_size=16, **RECALL)
    returns = play_recall(ppo_rnn, config, kind)
    if kind == "discrete":  # one seed in twenty does not find it in time
        assert np.median(returns) > 0.95, returns
    else:  # without memory the best is -0.25
        assert returns.mean() > -0.1, returns


@pytest.mark.slow
@pytest.mark.parametrize("previous_inputs, least, most", [(True, 5.2, 5.8), (False, 2.5, 3.6)])
def test_only_a_policy_that_sees_the_last_reward_guesses_once(
    previous_inputs, least, most, vmapped_keys
):
    """The first of 6 steps is a guess. Evaluations tell a policy the rewards of its actions."""
    settings = RECALL | dict(total_timesteps=80 * 192, num_evals=1, num_eval_episodes=64)
    config = ppo_rnn.Config(cell="mingru", previous_inputs=previous_inputs, **settings)
    keys = jax.random.split(jax.random.key(0), SEEDS)
    train = ppo_rnn.make_train(config, tasks.Guess(), RecallParams())
    returns = np.asarray(jax.jit(jax.vmap(train))(keys)[1]["eval_return"])[:, -1].mean()
    assert least < returns < most, returns


def test_without_a_memory_the_cue_is_lost():
    """No observation after the first one tells it."""
    env, params = tasks.Recall(), RecallParams()
    see = lambda cue, time: np.asarray(env.observe(tasks.RecallState(cue, time), params))
    for time in range(params.length):
        assert (see(-1.0, time) == see(1.0, time)).all() == (time > 0)


# --- the policy -------------------------------------------------------------------------------


def test_a_policy_s_memory_is_that_of_training():
    """The policy's actions step by step are those of the unrolled network; memory=None is a fresh
    one."""
    env, params = tasks.Recall(continuous=True), RecallParams()
    config = TINY.replace(normalize_obs=True, previous_inputs=True)
    network, weights = network_with_params(config, parts.ActionSpace(env.action_space(params)))
    weights["params"]["actor_head"]["kernel"] *= 0.3
    stats = parts.RunningStatistics(jnp.array([0.3, -1.0]), jnp.array([2.0, 0.5]), jnp.ones(()))
    state = type("State", (), {"policy": ppo_rnn.PolicyState(weights, stats)})
    policy = jax.jit(lambda x, memory: ppo_rnn.make_policy(config, env, params)(state, x, memory))
    x, rewards, memory, actions = random_sequence(4)[0], np.linspace(-3.0, 3.0, 12), None, []
    for t in range(12):
        action, memory = policy(x[t, 1], memory)
        actions.append(action)
        memory = envs.evaluation.rewarded(memory, rewards[t])
    fresh, done = (
        parts.Memory(
            *parts.fresh_memory(config, parts.ActionSpace(env.action_space(params)), 3)[:2]
        ),
        jnp.zeros((12, 3), bool),
    )
    squashed = np.sign(rewards) * np.log(1.0 + np.abs(rewards))
    previous = np.array(actions)[:-1], squashed[:-1, None]  # steps, 1
    previous = [np.concatenate([np.zeros((1, 1)), one]) for one in previous]
    previous = [np.repeat(one[:, None], 3, axis=1) for one in previous]
    previous[1] = previous[1][..., 0]
    x = stats.normalize(x, config.clip_obs)
    unroll = jax.jit(functools.partial(network.apply, method="unroll"))
    expected, _ = unroll(weights, fresh, x, done, None, previous)
    wanted = np.clip(expected.mean[:, 1], -1.0, 1.0)
    np.testing.assert_allclose(actions, wanted, rtol=1e-4, atol=1e-4)
    assert (np.abs(expected.mean[:, 1]) < 1.0).any()
    assert not np.allclose(policy(x[11, 1], None)[0], action, atol=1e-3)


# --- the contract -----------------------------------------------------------------------------

CASE = Case(
    module=ppo_rnn,
    tiny=TINY,
    metrics={
        "loss",
        "policy_loss",
        "value_loss",
        "entropy",
        "approx_kl",
        "clip_fraction",
        "grad_norm",
        "mean_value",
        "explained_variance",
        "epochs",
    },
    pinned={
        "entropy": [0.693124, 0.692158, 0.691209],
        "grad_norm": [2.77001, 2.01322, 1.19485],
        "mean_value": [0.0996527, 0.052172, 0.238637],
        "policy_loss": [-0.00389032, -0.00445476, 0.000363827],
        "value_loss": [9.64485, 1.80164, 0.485109],
    },
    refused=(
        (dict(cell="rnn"), "cell='rnn': give lstm or gru or mingru or minlstm or lru"),
        (dict(memory_size=0), "memory_size=0"),
        (dict(num_minibatches=3), "num_minibatches=3 does not divide num_envs=2, .* 1, 2 would do"),
        (dict(num_minibatches=4), "num_minibatches=4 does not divide num_envs=2"),
        (dict(num_steps=1, normalize_over="minibatch"), "one sample to a minibatch"),
        (dict(num_envs=1, num_minibatches=1, num_steps=1), "one sample to a rollout"),
        (dict(normalize_over="epoch"), "normalize_over='epoch': give rollout or minibatch"),
        (dict(env_settings=(("observe", (4,)),)), "observe=.4,.: give indices from 0 to 3"),
    ),
    swept=dict(cell="mingru", clip_vloss=True, num_eval_episodes=0),
    other={"adam_eps": 1e-2, "target_kl": 1e-9, "clip_eps": 1e-3},
    read=dict(cell="mingru"),
)


def test_exactly_update_epochs_without_a_threshold(trained):
    np.testing.assert_array_equal(trained[1]["epochs"][1:], TINY.update_epochs)


def test_returns_are_those_of_raw_rewards(trained):
    """There is one reward a step, and every step has been counted once."""
    state, metrics = trained
    np.testing.assert_array_equal(metrics["episode_return"], metrics["episode_length"])
    assert (np.asarray(metrics["num_episodes"]) > 0).any()
    assert TINY.normalize_obs and TINY.normalize_reward
    np.testing.assert_array_equal(state.policy.obs_stats.count, 48.0)
    np.testing.assert_array_equal(state.reward_scale.stats.count, 48.0)
