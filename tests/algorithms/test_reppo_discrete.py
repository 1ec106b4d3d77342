"""Discrete REPPO's formulas and updates against NumPy and optax, probe tasks, and the contract."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms import parts, reppo, reppo_discrete
from tests import probe as tasks
from tests.algorithms import test_reppo
from tests.algorithms.cases import Case, again, change_leaves, programs
from tests.algorithms.test_probes import play_probes
from tests.algorithms.test_reppo import plain_targets
from tests.algorithms.test_sac_discrete import MASK, Masked
from tests.conftest import AS_FOR_USERS

TINY = reppo_discrete.Config(
    env_settings=(("max_steps", 20),),
    total_timesteps=3 * 32,
    num_envs=2,
    num_steps=16,
    update_epochs=2,
    num_minibatches=2,
    learning_rate=1e-2,
    num_bins=11,
    symlog_max=5.0,
    hidden_sizes=(8,),
    critic_hidden_sizes=(8, 8),
    activation="tanh",
    normalize_obs=False,
    normalize_reward=False,
    num_evals=3,
    num_eval_episodes=2,
)


# --- formulas ---------------------------------------------------------------------------------


def random_log_probs(seed, mask=None):
    logits = jnp.array(np.random.default_rng(seed).normal(size=(3, 4)), jnp.float32)
    return jax.nn.log_softmax(reppo_discrete.allowed(logits, mask))


def test_expectations_are_over_allowed_actions():
    probs = np.exp(random_log_probs(0, MASK))
    assert (probs[~np.asarray(MASK)] == 0.0).all()
    np.testing.assert_allclose(probs.sum(-1), 1.0, rtol=1e-5)
    x = np.random.default_rng(1).normal(size=(3, 4))
    found = reppo_discrete.mean_over_actions(random_log_probs(0, MASK), x)
    np.testing.assert_allclose(found, (probs * x).sum(-1), rtol=1e-5)


@pytest.mark.parametrize("mask", [None, MASK])
def test_entropies_and_divergences_are_sums_over_allowed_actions(mask):
    old, new = random_log_probs(0, mask), random_log_probs(1, mask)
    p = np.exp(old)
    mean = lambda x: np.where(p > 0.0, p * x, 0.0).sum(-1)
    entropy = reppo_discrete.entropy_of(old)
    np.testing.assert_allclose(entropy, -mean(np.asarray(old)), rtol=1e-5, atol=1e-6)
    kl = reppo_discrete.kl_divergence(old, new)
    np.testing.assert_allclose(kl, mean(np.asarray(old - new)), rtol=1e-4, atol=1e-6)
    number = np.full(3, 4) if mask is None else np.asarray(mask).sum(-1)
    largest = reppo_discrete.largest_entropy(old, mask)
    np.testing.assert_allclose(largest, np.log(number), rtol=1e-6)
    of_logits = lambda x: jax.nn.log_softmax(reppo_discrete.allowed(x, mask))
    sums = lambda x: (reppo_discrete.entropy_of(x) + reppo_discrete.kl_divergence(old, x)).sum()
    slopes = jax.jit(jax.grad(lambda x: sums(of_logits(x))))(jnp.ones((3, 4)))
    assert np.isfinite(slopes).all()


def test_formulas_that_both_files_have_agree():
    """test_reppo.py compares reppo's with NumPy."""
    rng = np.random.default_rng(0)
    values, logits = 10.0 * rng.normal(size=(7, 2)), rng.normal(size=(7, 21))
    rollout = rng.normal(size=(3, 9, 2)).astype(np.float32)
    ends = rng.random((2, 9, 2)) < 0.2
    config = TINY.replace(anneal_lr=True)
    for one in (
        lambda module: module.hl_gauss(values, 21, 3.0),
        lambda module: module.mean_of(logits, 3.0),
        lambda module: module.soft_lambda_targets(*rollout, ends[0], ends.any(0), 0.9, 0.7),
        lambda module: module.learning_rates(config, 5, jnp.int32(2)),
    ):
        found, expected = (jax.jit(one, static_argnums=0)(m) for m in (reppo_discrete, reppo))
        np.testing.assert_array_equal(found, expected)


# --- an update --------------------------------------------------------------------------------

# Two passes over one minibatch, so that the policy is no longer the one that acted.
STEP = TINY.replace(
    env_settings=(),
    num_envs=4,
    update_epochs=2,
    num_minibatches=1,
    anneal_lr=False,
    learning_rate=0.1,
    adam_eps=1.0,  # else the step is only a sign
    max_grad_norm=0.25,
    kl_bound=1e-5,
    symlog_max=1.4,  # some targets are beyond
    aux_coef=0.7,
    normalize_obs=True,
    normalize_reward=True,
    num_eval_episodes=0,
)
SAMPLES = STEP.num_steps * STEP.num_envs
ALPHA, BETA = 0.3, 20.0


class Uneven(Masked):
    """With rewards that differ."""

    def step_env(self, key, state, action, params):
        observation, state, _, *rest = super().step_env(key, state, action, params)
        return observation, state, 1.0 + 4.0 * observation[1], *rest


@pytest.fixture(scope="module")
def step():
    """The state before and after an update, its rollout and its metrics."""
    env, params = envs.make("CartPole-v1", max_steps=9)
    env = Uneven(env)
    init, update = programs(reppo_discrete.learner(STEP, env, params))
    state = update(init(jax.random.key(0)))[0]
    weights = reppo_discrete.Weights(jnp.float32(np.log(ALPHA)), jnp.float32(np.log(BETA)))
    zero = lambda tree: jax.tree.map(jnp.zeros_like, tree)
    head = state.critic_params["params"]["value_head"]
    head["kernel"] *= 10.0  # values that differ
    prior = reppo_discrete.hl_gauss(jnp.zeros(()), STEP.num_bins, STEP.symlog_max)
    head["bias"] -= reppo_discrete.PRIOR * jnp.tile(prior, 3)
    state.policy.params["params"]["action_head"]["kernel"] *= 50.0  # preferences
    state = state.replace(
        env_state=state.env_state.replace(cut=jnp.array([2, 5, 7, 8])),
        weights=weights,
        opt_state=zero(state.opt_state),
        critic_opt_state=zero(state.critic_opt_state),
    )
    rollout = jax.jit(lambda state: collected(state, env, params))(again(state))
    return state, rollout, *update(again(state))


def collected(state, env, params):
    """The rollout of an update, one step after the other."""
    environments = envs.batch(env, STEP.num_envs, STEP.num_steps, stagger=True)
    actor = reppo_discrete.Actor(STEP, 3)
    _, start_rng, step_rng, noise_rng = jax.random.split(state.rollout_rng, 4)
    noise = jax.random.gumbel(noise_rng, (STEP.num_steps, STEP.num_envs, 3))
    env_state = environments.refill(start_rng, state.env_state, params)

    def step(carry, inputs):
        (env_state, x), (key, noise) = carry, inputs
        mask = environments.action_mask(env_state, params)
        logits = actor.apply(state.policy.params, test_reppo.normalized(state, x))
        action = jnp.where(mask, logits + noise, -jnp.inf).argmax(-1)
        found = environments.step(key, env_state, action, params)
        following, env_state, reward, terminated, truncated, info = found
        last, final_mask = info["final_observation"], info["final_action_mask"]
        done = terminated | truncated
        row = parts.Transition(x, action, reward, terminated, done, last, mask, final_mask)
        return (env_state, following), row

    keys = jax.random.split(step_rng, STEP.num_steps)
    return jax.lax.scan(step, (env_state, state.observation), (keys, noise))[1]


def probs_of(params, x, mask):
    odds = jnp.exp(reppo_discrete.Actor(STEP, 3).apply(params, x)) * mask
    return odds / odds.sum(-1, keepdims=True)


def log_of(probs):
    return jnp.log(jnp.maximum(probs, 1e-30))


def expected(probs, x):
    """The expectation over actions that have a probability."""
    return sum(jnp.where(probs[:, a] > 0, probs[:, a] * x[:, a], 0.0) for a in range(3))


def papers_targets(state, rollout):
    """Targets by the recursion, and what the critic's features predict."""

    @jax.jit
    def terms(state, rollout):
        flat = lambda x: x.reshape(SAMPLES, *x.shape[2:])
        x = flat(test_reppo.normalized(state, rollout.final_observation))
        probs = probs_of(state.policy.params, x, flat(rollout.final_action_mask))
        found = reppo_discrete.Critic(STEP, 3).apply(state.critic_params, x)
        reward = rollout.reward / jnp.sqrt(state.reward_scale.stats.var + 1e-8)
        values = expected(probs, found.values).reshape(reward.shape)
        bonus = -ALPHA * expected(probs, log_of(probs)).reshape(reward.shape)
        outcome = jnp.concatenate([found.features, flat(reward)[:, None]], -1)
        return (jnp.clip(reward, -10.0, 10.0), values, bonus), outcome

    rows, outcome = terms(state, rollout)
    ends = rollout.terminated, rollout.done
    targets = plain_targets(*map(np.asarray, (*rows, *ends)), STEP.gamma, STEP.td_lambda)
    return targets.reshape(SAMPLES).astype(np.float32), outcome


def papers_update(state, rollout):
    """`test_reppo.stepped` after two steps, and values and targets before them."""
    target, outcome = papers_targets(state, rollout)
    return *jax.jit(papers_steps)(state, rollout, target, outcome), target


def papers_steps(state, rollout, target, outcome):
    """`test_reppo.stepped` after two steps, and values before them."""
    critic = reppo_discrete.Critic(STEP, 3)
    _, order_rng = jax.random.split(state.learn_rng)
    flat = lambda x: x.reshape(SAMPLES, *x.shape[2:])
    x, action, ended, mask = map(
        flat, (rollout.observation, rollout.action, rollout.terminated, rollout.action_mask)
    )
    x, rows = test_reppo.normalized(state, x), jnp.arange(SAMPLES)
    acted = probs_of(state.policy.params, x, mask)

    def critic_loss(params, i):
        found = critic.apply(params, x[i], action[i])
        histogram = reppo_discrete.hl_gauss(target[i], STEP.num_bins, STEP.symlog_max)
        logits = found.logits[rows, action[i]]
        cross_entropy = -(histogram * jax.nn.log_softmax(logits)).sum(-1).mean()
        errors = jnp.square(found.prediction - outcome[i]).mean(-1)
        aux = jnp.where(ended[i], 0.0, errors).mean()
        return cross_entropy + 0.7 * aux, {"critic_loss": cross_entropy, "aux_loss": aux}

    def actor_loss(both, critic_params, i):
        params, weights = both
        probs = probs_of(params, x[i], mask[i])
        kl = expected(acted[i], log_of(acted[i]) - log_of(probs))
        q = critic.apply(critic_params, x[i]).values
        alpha, beta = jnp.exp(weights.temperature), jnp.exp(weights.multiplier)
        entropy = -expected(probs, log_of(probs))
        surplus = entropy - STEP.target_entropy * jnp.log(mask[i].sum(-1))
        fixed = jax.lax.stop_gradient((alpha, beta, surplus.mean(), kl.mean()))
        improve = expected(probs, fixed[0] * log_of(probs) - q)
        loss = jnp.where(kl < STEP.kl_bound, improve, fixed[1] * kl).mean()
        weighted = alpha * fixed[2] + beta * (STEP.kl_bound - fixed[3])
        said = {"actor_loss": loss, "entropy": entropy.mean(), "kl": fixed[3]}
        said |= {"temperature": alpha, "multiplier": beta}
        said |= {"clip_fraction": (kl >= STEP.kl_bound).mean()}
        return loss + weighted, said

    orders = parts.permutations(order_rng, 2, SAMPLES)
    found = test_reppo.stepped(STEP, state, critic_loss, actor_loss, (orders,))
    return *found, critic.apply(state.critic_params, x).values[rows, action]


def test_an_update_is_the_papers(step):
    state, rollout, after, metrics = step
    assert (rollout.action_mask != rollout.final_action_mask).any()
    assert (rollout.action_mask.sum(-1) == 1).any(), "where the largest entropy is 0"
    expected = papers_update(again(state), rollout)
    test_reppo.assert_the_papers(STEP, state, rollout, after, metrics, expected)


def test_without_a_bound_the_kl_has_no_weight(slices):
    """And the actor learns, where inf in a gradient would end it."""
    state, _ = slices[0]
    train = reppo_discrete.make_train(TINY.replace(kl_bound=math.inf))
    after, metrics = train(None, again(state), 1)
    assert float(metrics["clip_fraction"][0]) == 0.0
    assert after.weights.multiplier == state.weights.multiplier
    assert after.weights.temperature != state.weights.temperature
    moved = jax.tree.map(lambda x, y: (x != y).any(), after.policy.params, state.policy.params)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after.policy.params))
    assert all(jax.tree.leaves(moved))


def test_the_first_values_are_zero_and_the_first_policy_is_uniform(slices):
    """PRIOR puts the values near 0."""
    state, _ = slices[0]
    x = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    found = jax.jit(reppo_discrete.Critic(TINY, 2).apply)(state.critic_params, x)
    np.testing.assert_allclose(found.values, 0.0, atol=0.05)
    assert (found.logits.argmax(-1) == TINY.num_bins // 2).all()
    assert found.prediction is None
    logits = jax.jit(reppo_discrete.Actor(TINY, 2).apply)(state.policy.params, x)
    np.testing.assert_allclose(logits, 0.0, atol=0.1)


def test_the_prediction_knows_the_action(slices):
    state, _ = slices[0]
    critic = jax.jit(reppo_discrete.Critic(TINY, 2).apply)
    found = critic(state.critic_params, jnp.ones((2, 4)), jnp.array([0, 1]))
    np.testing.assert_allclose(*found.features, rtol=1e-5)
    assert found.prediction.shape == (2, 9)
    assert (found.prediction[0] != found.prediction[1]).any()


def test_first_episodes_are_cut():
    """So that environments are at different times of episodes of equal length."""
    env, params = envs.make("CartPole-v1", max_steps=20)
    learner = reppo_discrete.learner(TINY.replace(num_envs=50), env, params)
    cut = np.asarray(jax.jit(lambda key: learner.init(key).env_state.cut)(jax.random.key(0)))
    assert cut.min() <= 3 and cut.max() >= 18 and cut.max() <= 20


@pytest.mark.parametrize("mask", [None, np.array([True, True, False])])
def test_a_policy_with_a_key_samples_allowed_actions(mask, vmapped_keys):
    """Of three, as two would hide the noise's sign."""
    config = TINY.replace(env="Acrobot-v1")
    env, params = envs.make("Acrobot-v1")
    init = reppo_discrete.learner(config, env, params).init
    policy, x = reppo_discrete.make_policy(config, env, params), jnp.zeros(6)

    @jax.jit
    def actions_and_logits(keys):
        bias = lambda x: jnp.array([0.0, 1.5, 1.5])
        state = change_leaves(init(keys[0]), ["action_head", "bias"], bias)
        logits = reppo_discrete.Actor(config, 3).apply(state.policy.params, x[None])[0]
        actions = jax.vmap(lambda key: policy(state, x, None, key, mask)[0])(keys[1:])
        return actions, logits, policy(state, x, mask=mask)[0]

    keys = jax.random.split(jax.random.key(1), 20_001)
    actions, logits, best = map(np.asarray, actions_and_logits(keys))
    probs = np.exp(logits) * (1.0 if mask is None else mask)
    found = np.bincount(actions, minlength=3) / len(actions)
    np.testing.assert_allclose(found, probs / probs.sum(), atol=0.015)
    assert best == probs.argmax()


# --- probe tasks ------------------------------------------------------------------------------

PROBE = reppo_discrete.Config(
    total_timesteps=16 * 2000,
    num_envs=16,
    num_steps=16,
    update_epochs=8,
    num_minibatches=4,
    learning_rate=3e-3,
    gamma=0.9,
    td_lambda=0.5,
    target_entropy=0.0,
    symlog_max=3.0,
    hidden_sizes=(16,),
    critic_hidden_sizes=(32,),
    normalize_obs=False,
    normalize_reward=False,
    num_evals=1,
    num_eval_episodes=0,
    eval_at_start=False,
)


def played(case, kind):
    """Values and actions for test_probes.py."""

    def values_of(config, space, state, x):
        return reppo_discrete.Critic(config, 2).apply(state.critic_params, x).values.max(-1)

    return kind, *play_probes(case.module, case.probe, values_of, options=AS_FOR_USERS)


CASE = Case(
    module=reppo_discrete,
    tiny=TINY,
    metrics={
        *("critic_loss", "aux_loss", "actor_loss", "mean_value", "explained_variance"),
        *("entropy", "kl", "clip_fraction", "temperature", "multiplier"),
        *("grad_norm", "critic_grad_norm", "clipped_targets"),
    },
    pinned={
        "critic_loss": [14.3777, 13.9535, 14.0053],
        "aux_loss": [0.968793, 0.775786, 0.641215],
        "actor_loss": [-0.0683299, -0.0663127, -0.0652297],
    },
    refused=(
        (dict(num_minibatches=3), "num_minibatches=3 does not divide .* 32; 1, 2, 4, 8 would do"),
        (dict(num_bins=10), "num_bins=10: give a whole number, 11 or more"),
        (dict(norm="batch"), "norm='batch': give layer or rms or none"),
        (dict(critic_hidden_sizes=(8, 0)), "critic_hidden_sizes=0: give a whole number, 1 or more"),
        (
            dict(env="Pendulum-v1", env_settings=()),
            "Pendulum-v1 has actions .*; reppo_discrete takes Disc",
        ),
    ),
    swept={"kl_bound": 1e-5, "adam_eps": 1e-4},  # else the entropy's distance does not matter
    other={"adam_eps": 0.1, "max_grad_norm": 1e-2},
    tolerance=dict(rtol=1e-3, atol=1e-4),
    probe=PROBE,
    probes={"discrete": False},
    played=played,
)


def test_the_temperature_brings_the_entropy_to_its_target(case, slices):
    """It falls while actions are spread, and rises where one action is nearly certain."""
    train = case.make_train(target_entropy=0.5)
    spread = slices[0][0]
    certain = change_leaves(spread, ["action_head", "bias"], lambda x: jnp.array([0.0, 4.0]))
    for state, sign in ((spread, -1), (certain, 1)):
        after, metrics = train(None, again(state), 1)
        distance = float(metrics["entropy"][0]) - 0.5 * np.log(2.0)
        assert np.sign(distance) == -sign and abs(distance) > 0.2
        assert np.sign(after.weights.temperature - state.weights.temperature) == sign


@pytest.mark.slow
def test_the_entropy_reaches_its_target():
    """On a bandit with a best action, the temperature brings it there."""
    config = PROBE.replace(initial_temperature=0.1, target_entropy=0.5, num_evals=4)
    params = tasks.ProbeParams(task=tasks.ACTION, max_steps_in_episode=5)
    train = reppo_discrete.make_train(config, tasks.Probe(), params)
    _, metrics = train(jax.random.key(0))
    assert float(metrics["entropy"][-1]) == pytest.approx(0.5 * np.log(2.0), abs=0.05)
