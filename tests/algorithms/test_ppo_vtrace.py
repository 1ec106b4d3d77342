"""PPO with V-trace: formulas against plain NumPy and rlax, probe tasks, and the contract."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
import rlax
from jax.flatten_util import ravel_pytree

from algorithms import ippo, ppo, ppo_vtrace
from tests import probe as tasks
from tests.algorithms import contract
from tests.algorithms.contract import *  # noqa: F403
from tests.algorithms.contract import assert_close, assert_same
from tests.algorithms.probes import *  # noqa: F403
from tests.algorithms.probes import of_critic, play_probes
from tests.algorithms.test_ppo import random_rollout
from tests.probe import LEAVING, Pair, PairParams, ProbeParams

del test_several_agents_are_refused  # noqa: F821  it takes them
del test_pinned_values  # noqa: F821  Muon's steps are not close enough
del test_slices_are_exact_under_vmap_too  # noqa: F821  in test_slices.py, which is slow

MODULE = ppo_vtrace
TINY = ppo_vtrace.Config(
    total_timesteps=3 * 32,
    num_envs=4,
    num_steps=8,
    num_minibatches=2,
    update_epochs=2,
    hidden_sizes=(8,),
    num_evals=3,
    num_eval_episodes=2,
)
ONE_STEP = TINY.replace(
    num_minibatches=1,
    update_epochs=1,
    eval_at_start=False,
    num_eval_episodes=0,
    normalize_obs=True,
)
THREE_STEPS = ONE_STEP.replace(update_epochs=3)


# --- formulas ---------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 7, 64])
def test_backward_sums_are_the_plain_recursion(length):
    rng = np.random.default_rng(length)
    x, decays = (
        rng.normal(size=(3, length)),
        rng.random((3, length)) * (rng.random((3, length)) < 0.8),
    )
    expected, total = np.zeros_like(x), np.zeros(3)
    for t in reversed(range(length)):
        total = x[:, t] + decays[:, t] * total
        expected[:, t] = total
    result = ppo_vtrace.backward_sums(jnp.array(x), jnp.array(decays))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def random_segments(seed):
    """(segments, num_steps) of rewards, values, next values, terminated, done and ratios."""
    rollout = [x.T for x in random_rollout(seed)]
    ratios = np.exp(np.random.default_rng(seed).normal(size=rollout[0].shape)).astype(np.float32)
    return *rollout, ratios


@pytest.mark.parametrize("rho_clip, c_clip", [(1.0, 1.0), (0.5, 0.7), (2.0, 1.5), (math.inf, 0.3)])
def test_vtrace_is_the_plain_recursion(rho_clip, c_clip):
    rewards, values, next_values, terminated, done, ratios = random_segments(0)
    expected = np.zeros_like(values)
    for i in range(len(values)):
        advantage = 0.0
        for t in reversed(range(values.shape[1])):
            bootstrap = 0.0 if terminated[i, t] else next_values[i, t]
            delta = min(ratios[i, t], rho_clip) * (rewards[i, t] + 0.9 * bootstrap - values[i, t])
            trace = 0.0 if done[i, t] else 0.9 * 0.8 * min(ratios[i, t], c_clip)
            advantage = delta + trace * advantage
            expected[i, t] = advantage
    result = ppo_vtrace.vtrace(
        rewards, values, next_values, ratios, terminated, done, 0.9, 0.8, rho_clip, c_clip
    )
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_vtrace_on_policy_is_gae():
    rewards, values, next_values, terminated, done, _ = random_segments(1)
    same = np.ones_like(values)
    result = ppo_vtrace.vtrace(
        rewards, values, next_values, same, terminated, done, 0.9, 0.8, 1.0, 2.0
    )
    rows = (x.T for x in (rewards, values, next_values, terminated, done))
    np.testing.assert_allclose(result, ppo.gae(*rows, 0.9, 0.8).T, rtol=1e-4, atol=1e-5)


def test_vtrace_agrees_with_rlax_without_truncation():
    rewards, values, next_values, terminated, _, ratios = random_segments(2)
    result = ppo_vtrace.vtrace(
        rewards, values, next_values, ratios, terminated, terminated, 0.9, 0.8, 2.0, 1.0
    )
    of_one = lambda *x: rlax.vtrace(*x, 0.8, 2.0)
    expected = jax.vmap(of_one)(values, next_values, rewards, 0.9 * (1.0 - terminated), ratios)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_priorities_and_importance_weights():
    sizes = np.array([0.5, 2.0, 0.0, 7.0])
    powers = np.maximum(sizes, 1e-8) ** 0.8
    log_probs = ppo_vtrace.priorities(jnp.array(sizes), 0.8)
    np.testing.assert_allclose(jnp.exp(log_probs), powers / powers.sum(), rtol=1e-4)
    weights = ppo_vtrace.importance_weights(log_probs, 4, 0.3)
    np.testing.assert_allclose(weights, (4 * powers / powers.sum()) ** -0.3, rtol=1e-4)
    full = ppo_vtrace.importance_weights(log_probs, 4, 1.0)
    np.testing.assert_allclose((jnp.exp(log_probs) * full).sum(), 1.0, rtol=1e-5)  # no bias
    uniform = ppo_vtrace.priorities(jnp.array(sizes), 0.0)
    np.testing.assert_allclose(jnp.exp(uniform), 0.25, rtol=1e-6)
    np.testing.assert_allclose(ppo_vtrace.importance_weights(uniform, 4, 0.7), 1.0, rtol=1e-6)
    nothing = ppo_vtrace.priorities(jnp.zeros(4), 0.8)
    np.testing.assert_allclose(jnp.exp(nothing), 0.25, rtol=1e-6)


def test_draws_follow_the_probabilities_without_replacement():
    """The second of two draws is, too: P(j second) = sum over i of p_i p_j / (1 - p_i)."""
    p = np.array([0.5, 0.25, 0.15, 0.1])
    noise = jax.random.gumbel(jax.random.key(0), (40_000, 4))
    drawn = np.asarray(jax.vmap(lambda x: ppo_vtrace.draw(jnp.log(p), x, 2))(noise))
    assert (drawn[:, 0] != drawn[:, 1]).all()
    first, second = (np.bincount(drawn[:, i], minlength=4) / len(drawn) for i in range(2))
    np.testing.assert_allclose(first, p, atol=0.01)
    joint = p[:, None] * p / (1.0 - p[:, None]) * (1.0 - np.eye(4))
    np.testing.assert_allclose(second, joint.sum(0), atol=0.01)


def test_cosine_from_one_to_the_floor():
    progress = jnp.linspace(0.0, 1.0, 5)
    factors = ppo_vtrace.cosine(progress, 0.1, 2.0)
    expected = 0.1 + 0.9 * (0.5 * (1.0 + np.cos(np.pi * np.linspace(0.0, 1.0, 5)))) ** 2
    np.testing.assert_allclose(factors, expected, rtol=1e-5)
    assert factors[0] == 1.0 and factors[-1] == np.float32(0.1)
    assert ppo_vtrace.cosine(1.7, 0.1, 2.0) == np.float32(0.1)


@pytest.mark.parametrize("mean, log_std", [(0.0, 0.0), (1.5, -1.0), (-3.0, 0.5)])
def test_squashed_densities_integrate_to_one_and_entropy_is_theirs(mean, log_std):
    """By a fine sum over the actions themselves; two dimensions are independent."""
    config = TINY.replace(squash=True)
    x = np.linspace(-12.0, 12.0, 200_001)
    actor = ppo_vtrace.ActorOutput(jnp.full((len(x), 1), mean), jnp.full((len(x), 1), log_std))
    log_prob, _ = ppo_vtrace.log_prob_and_entropy(config, actor, jnp.array(x[:, None]))
    action, density = np.tanh(x), np.exp(np.asarray(log_prob, np.float64))
    width = np.gradient(action)
    np.testing.assert_allclose((density * width).sum(), 1.0, atol=1e-3)
    entropy = -(density * np.asarray(log_prob) * width)[width > 0].sum()
    two = ppo_vtrace.ActorOutput(jnp.full((1, 2), mean), jnp.full((1, 2), log_std))
    result = ppo_vtrace.log_prob_and_entropy(config, two, jnp.zeros((1, 2)))[1]
    np.testing.assert_allclose(result, 2.0 * entropy, rtol=2e-3, atol=2e-3)


def test_squashed_actions_fill_the_box_and_saturate_without_nan():
    space = tasks.spaces.Box(jnp.array([-2.0, 0.0]), jnp.array([2.0, 1.0]), (2,))
    config = TINY.replace(squash=True)
    act = lambda x: ppo_vtrace.to_space(config, jnp.full((1, 2), x), space)[0]
    np.testing.assert_allclose(act(0.0), [0.0, 0.5], atol=1e-6)
    np.testing.assert_allclose(act(100.0), [2.0, 1.0])
    actor = ppo_vtrace.ActorOutput(jnp.full((1, 2), 50.0), jnp.zeros((1, 2)))
    found = ppo_vtrace.log_prob_and_entropy(config, actor, jnp.full((1, 2), 60.0))
    assert np.isfinite(found).all()


# --- probe tasks ------------------------------------------------------------------------------

PROBE = ppo_vtrace.Config(
    total_timesteps=60 * 256,
    num_envs=16,
    num_steps=16,
    learning_rate=2e-2,
    gamma=0.9,
    hidden_sizes=(16,),
    num_evals=1,
    num_eval_episodes=0,
    eval_at_start=False,
    ent_coef=0.0,
)


@pytest.fixture(scope="module", params=["discrete", "continuous"])
def probed(request):
    continuous = request.param == "continuous"
    config = PROBE.replace(squash=continuous, sigma_head=continuous)
    return request.param, *play_probes(ppo_vtrace, config, of_critic, continuous)


def test_several_agents_share_a_network_and_those_that_left_count_no_more():
    """At the start both agents see 1, and the value is the mean of 10 (endless) and 1 (leaves);
    later only agent 0 is there, whatever agent 1 would be paid."""
    env, params = Pair(), PairParams(task=LEAVING)
    config = PROBE.replace(optimizer="adam", gae_lambda=0.8)
    state, metrics = ppo_vtrace.make_train(config, env, params)(jax.random.key(0))
    network = ppo_vtrace.make_network(config, env, params)
    values = network.apply(state.policy.params, jnp.array([[0.0], [1.0]]), method="critic")
    np.testing.assert_allclose(values, [10.0, 5.5], rtol=0.1)
    assert metrics["episode_return"].shape == (1, 2)
    assert ppo_vtrace.make_policy(config, env, params)(state, jnp.zeros((2, 1)))[0].shape == (2,)


# --- learning from a rollout ------------------------------------------------------------------


def train(config):
    """Parameters and metrics."""
    state, metrics = ppo_vtrace.make_train(config)(jax.random.key(0))
    return state.policy.params, metrics


def test_learning_starts_at_ratio_one():
    """Statistics stand still while a rollout is learned from."""
    _, metrics = train(ONE_STEP)
    np.testing.assert_allclose(metrics["approx_kl"], 0.0, atol=1e-10)
    np.testing.assert_allclose(metrics["mean_ratio"], 1.0, atol=1e-5)


def test_the_policy_s_moving_matters_from_the_second_gradient_step_on():
    assert_close(train(ONE_STEP)[0], train(ONE_STEP.replace(vtrace=False))[0])
    moving = THREE_STEPS.replace(learning_rate=0.1)
    with pytest.raises(AssertionError):
        assert_close(train(moving)[0], train(moving.replace(vtrace=False))[0])


def test_priorities_of_what_was_drawn_are_refreshed(monkeypatch):
    """Two of four segments in each gradient step; the first one finds what was collected."""
    seen, original = [], ppo_vtrace.priorities

    def spy(sizes, alpha):
        jax.debug.callback(lambda x: seen.append(np.array(x)), sizes, ordered=True)
        return original(sizes, alpha)

    monkeypatch.setattr(ppo_vtrace, "priorities", spy)
    once = dict(total_timesteps=32, num_evals=1, num_eval_episodes=0, eval_at_start=False)
    train(TINY.replace(learning_rate=0.1, **once))
    jax.effects_barrier()
    assert len(seen) == 4 and (seen[0] > 0).all()
    changed = [~np.isclose(a, b, rtol=1e-3) for a, b in itertools.pairwise(seen)]
    assert [x.sum() for x in changed] == [0, 2, 2]


def test_accumulation_is_one_step_of_a_larger_minibatch():
    """Averaged, not summed."""
    config = TINY.replace(normalize_advantage=False, num_eval_episodes=0)
    whole, parts = train(config), train(config.replace(num_minibatches=4, accumulate=2))
    assert_close(whole[0], parts[0], rtol=1e-3, atol=1e-5)
    # Muon does not feel the length of its gradients.
    assert_close(whole[1]["grad_norm"], parts[1]["grad_norm"], rtol=1e-3)


def test_a_reward_trace_ends_with_the_episode():
    """One-step episodes: there is nothing to carry back."""
    env, params = tasks.Probe(), ProbeParams(task=tasks.OBSERVATION)
    config = ONE_STEP.replace(env="Probe")
    learned = [
        ppo_vtrace.make_train(config.replace(reward_trace=decay), env, params)(jax.random.key(0))
        for decay in (0.0, 0.9)
    ]
    assert_same(*(state.policy.params for state, _ in learned))


def test_the_learning_rate_falls_to_its_floor_at_the_last_gradient_step():
    rates = dict(lr_floor=0.25, learning_rate=1e-2)
    _, metrics = train(ONE_STEP.replace(**rates))
    np.testing.assert_allclose(metrics["step_size"], [1e-2, 0.625e-2, 0.25e-2], rtol=1e-5)
    _, metrics = train(THREE_STEPS.replace(**rates))
    factors = 0.25 + 0.75 * 0.5 * (1.0 + np.cos(np.pi * np.arange(9) / 8))
    expected = 1e-2 * factors.reshape(3, 3).mean(1)
    np.testing.assert_allclose(metrics["step_size"], expected, rtol=1e-5)


def test_without_annealing_rate_and_exponent_stay():
    """Importance weights with beta 0 are 1; where beta goes from 0 to 1 they end like beta 1."""
    flat = ONE_STEP.replace(anneal_lr=False, anneal_beta=False, priority_beta=0.0)
    _, metrics = train(flat)
    np.testing.assert_allclose(metrics["step_size"], flat.learning_rate, rtol=1e-6)
    np.testing.assert_array_equal(metrics["importance"], 1.0)
    low, high = (
        train(ONE_STEP.replace(priority_beta=beta, learning_rate=0.0))[1]["importance"]
        for beta in (0.0, 1.0)
    )
    assert low[0] == 1.0 and abs(high[0] - 1.0) > 1e-4
    np.testing.assert_allclose(low[-1], high[-1], rtol=1e-6)


def test_muon_is_the_plain_recursion_and_everything_else_adam_s():
    rng = np.random.default_rng(0)
    params = {"kernel": jnp.zeros((6, 3)), "bias": jnp.zeros(3), "wide": jnp.zeros((4, 8))}
    optimizer = ppo_vtrace.scale_by_muon(0.9, 1e-8)
    adam = optax.scale_by_adam(eps=1e-8)
    flat, unravel = ravel_pytree(params)
    state, adam_state = optimizer.init(flat), adam.init(params)
    momentum = {"kernel": 0.0, "wide": 0.0}
    for _ in range(3):
        grads = {name: rng.normal(size=x.shape).astype(np.float32) for name, x in params.items()}
        steps, state = optimizer.update(ravel_pytree(grads)[0], state, params)
        steps = unravel(steps)
        adam_steps, adam_state = adam.update(grads, adam_state)
        np.testing.assert_allclose(steps["bias"], adam_steps["bias"], rtol=1e-5)
        for name, size in (("kernel", 6), ("wide", 8)):
            momentum[name] = 0.9 * momentum[name] + 0.1 * grads[name]
            x = 0.9 * momentum[name] + 0.1 * grads[name]
            left, _, right = np.linalg.svd(x, full_matrices=False)
            values = np.linalg.svd(x / np.linalg.norm(x), compute_uv=False)
            for _ in range(5):
                values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
            expected = 0.2 * math.sqrt(size) * left * values @ right
            np.testing.assert_allclose(steps[name], expected, rtol=1e-3, atol=1e-4)


def test_muon_agrees_with_optax_once_its_averages_have_warmed_up():
    """optax corrects the bias of early averages, which Newton-Schulz's normalisation undoes."""
    params = {"kernel": jnp.zeros((5, 4))}
    mine = ppo_vtrace.scale_by_muon(0.5, 1e-8)
    theirs = optax.contrib.muon(-1.0, beta=0.5, consistent_rms=0.2)
    step, their_step = jax.jit(mine.update), jax.jit(theirs.update)
    state, their_state = mine.init(jnp.zeros(20)), theirs.init(params)
    for grad in np.random.default_rng(0).normal(size=(15, 5, 4)).astype(np.float32):
        steps, state = step(grad.reshape(20), state, params)
        their_steps, their_state = their_step({"kernel": grad}, their_state, params)
    np.testing.assert_allclose(steps.reshape(5, 4), their_steps["kernel"], rtol=1e-3, atol=1e-4)


# --- the contract -----------------------------------------------------------------------------

METRICS = {"loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"}
METRICS |= {"mean_ratio", "importance", "grad_norm", "step_size", "score", "mean_value"}
METRICS |= {"explained_variance"}
EVALUATION = contract.EVALUATION | {"eval_last_reward", "eval_terminated", "eval_truncated"}
SWEPT = dict(clip_vloss=True, eval_at_start=False, learning_rate=0.05)
OTHER = {"adam_eps": 1e-2, "clip_eps": 1e-3, "max_grad_norm": 1e-2, "lr_floor": 0.5}
OTHER |= {"reward_trace": 0.5}
TOLERANCE = dict(rtol=1e-3, atol=1e-4)
REFUSED = [
    (dict(num_minibatches=3), "num_minibatches=3 does not divide the 4 segments .*; 1, 2, 4 do"),
    (dict(accumulate=3), "accumulate=3 does not divide the 4 minibatches .*; 1, 2 would do"),
    (dict(accumulate=4), "exceeds num_minibatches=2; 1, 2 would do"),
    (dict(num_steps=1, num_minibatches=4), "one sample to a minibatch"),
    (dict(optimizer="sgd"), "optimizer='sgd': give muon or adam"),
    (dict(squash=True), "squash=True needs continuous actions"),
]


def compared(state, metrics):
    """After one rollout: steps this large make the most of rounding."""
    return jax.tree.map(lambda x: x[0], metrics)


def test_rewards_are_scored(trained):
    np.testing.assert_allclose(trained[1]["score"][1:], 1.0)


def test_a_vmapped_seed_is_close_to_the_single_run(trained, vmapped_keys):
    """To the end, with steps of the usual length."""
    keys = jnp.stack([jax.random.key(0), jax.random.key(1)])
    state, metrics = jax.jit(jax.vmap(ppo_vtrace.make_train(TINY)))(keys)
    mine = jax.tree.map(lambda x: x[0], (state.policy, metrics))
    assert_close(mine, (trained[0].policy, trained[1]), atol=1e-5)


def test_environments_that_forbid_actions_are_refused():
    with pytest.raises(ValueError, match="Pair forbids some actions; ippo takes it"):
        ppo_vtrace.make_train(TINY, Pair(masked=True), PairParams())


def test_terms_are_those_of_ippo():
    rng = np.random.default_rng(1)
    a, b, c = rng.normal(size=(3, 200)).astype(np.float32)
    weights = (rng.random(200) < 0.6).astype(np.float32)
    for name, args in {
        "clipped_surrogate": (a, b, 0.2),
        "value_error": (a, b, c, 0.3, True),
        "kl_estimate": (a,),
        "standardize": (a, weights),
        "explained_variance": (a, b, weights),
    }.items():
        mine, theirs = getattr(ppo_vtrace, name)(*args), getattr(ippo, name)(*args)
        np.testing.assert_array_equal(mine, theirs)
