"""PPO with V-trace: formulas against plain NumPy and rlax, probe tasks, and the contract."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts, ppo, ppo_vtrace
from tests import probe as tasks
from tests.algorithms.cases import Case, again, assert_close, assert_same, change_leaves, programs
from tests.algorithms.test_probes import of_critic, play_probes
from tests.algorithms.test_teams import Half, Team
from tests.probe import LEAVING, OWN, Pair, PairParams, ProbeParams

# Settings that are simple to compute by hand; tests set further flags.
PLAIN = dict(normalize_obs=False, normalize_reward=False, adam_eps=1e-5)
TINY = ppo_vtrace.Config(
    **PLAIN,
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
# One program, whose floats are arguments. With an infinite clip_eps, values are not clipped.
THREE_STEPS = ONE_STEP.replace(update_epochs=3, clip_vloss=True, normalize_advantage=False)


# --- formulas ---------------------------------------------------------------------------------


def random_segments(seed, truncation=0.2):
    """Segments with the fields that V-trace needs, values and log-ratios, (5, 17)."""
    rng = np.random.default_rng(seed)
    rewards, values, log_ratio, bootstrap = rng.normal(size=(4, 5, 17)).astype(np.float32)
    terminated = rng.random((5, 17)) < 0.2
    ends = terminated | (rng.random((5, 17)) < truncation)
    ends[:, -1] = True
    bootstrap = np.where(terminated, 0.0, bootstrap)
    names = dict.fromkeys(ppo_vtrace.Segments._fields)
    segments = ppo_vtrace.Segments(**names | dict(reward=rewards, bootstrap=bootstrap, ends=ends))
    return segments, values, log_ratio


@pytest.mark.parametrize("rho_clip, c_clip", [(1.0, 1.0), (0.5, 0.7), (2.0, 1.5), (math.inf, 0.3)])
def test_vtrace_is_the_plain_recursion(rho_clip, c_clip):
    segments, values, log_ratio = random_segments(0)
    ratios, expected = np.exp(log_ratio), np.zeros_like(values)
    for i in range(len(values)):
        advantage = 0.0
        for t in reversed(range(values.shape[1])):
            following = segments.bootstrap[i, t] if segments.ends[i, t] else values[i, t + 1]
            delta = segments.reward[i, t] + 0.9 * following - values[i, t]
            trace = 0.0 if segments.ends[i, t] else 0.9 * 0.8 * min(ratios[i, t], c_clip)
            advantage = min(ratios[i, t], rho_clip) * delta + trace * advantage
            expected[i, t] = advantage
    config = TINY.replace(gamma=0.9, gae_lambda=0.8, rho_clip=rho_clip, c_clip=c_clip)
    result = ppo_vtrace.vtrace(config, segments, values, log_ratio)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_vtrace_on_policy_or_without_ratios_is_gae():
    segments, values, log_ratio = random_segments(1)
    next_values = np.where(segments.ends, segments.bootstrap, np.roll(values, -1, 1))
    none = np.zeros_like(segments.ends)  # the bootstrap is 0 there
    rows = (x.T for x in (segments.reward, values, next_values, none, segments.ends))
    expected = ppo.gae(*rows, 0.9, 0.8).T
    config = TINY.replace(gamma=0.9, gae_lambda=0.8, c_clip=2.0)
    result = ppo_vtrace.vtrace(config, segments, values, 0.0 * log_ratio)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    config = config.replace(vtrace=False, rho_clip=0.5, c_clip=0.7)
    result = ppo_vtrace.vtrace(config, segments, values, log_ratio)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_vtrace_agrees_with_rlax_without_truncation():
    import rlax

    segments, values, log_ratio = random_segments(2, truncation=0.0)
    discounts = 0.9 * (1.0 - (segments.ends & (segments.bootstrap == 0.0)))
    next_values = np.where(segments.ends, segments.bootstrap, np.roll(values, -1, 1))
    of_one = lambda *x: rlax.vtrace(*x, 0.8, 2.0)
    ratios = np.exp(log_ratio)
    expected = jax.vmap(of_one)(values, next_values, segments.reward, discounts, ratios)
    config = TINY.replace(gamma=0.9, gae_lambda=0.8, rho_clip=2.0)
    result = ppo_vtrace.vtrace(config, segments, values, log_ratio)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def drawn(sizes, noise, number, progress=0.0, **floats):
    """The draws of one minibatch."""
    config = TINY.replace(**floats)
    return ppo_vtrace.draw(config, jnp.array(sizes), jnp.array(noise), progress, (1, number))


def test_importance_weights_are_those_of_the_priorities():
    sizes = np.array([0.5, 2.0, 0.0, 7.0])
    powers = np.maximum(sizes, 1e-8) ** 0.8
    p = powers / powers.sum()
    for progress, beta in ((0.0, 0.4), (0.5, 0.7), (1.0, 1.0), (1.5, 1.0)):
        indices, weights = drawn(sizes, np.zeros(4), 4, progress, priority_beta=0.4)
        np.testing.assert_array_equal(indices, [[3, 1, 0, 2]])  # by log-probability
        np.testing.assert_allclose(weights[0], (4 * p[indices[0]]) ** -beta, rtol=1e-4)
    still = drawn(sizes, np.zeros(4), 4, 0.5, priority_beta=0.4, anneal_beta=False)[1]
    np.testing.assert_allclose(still[0], (4 * p[[3, 1, 0, 2]]) ** -0.4, rtol=1e-4)
    for same in (
        drawn(sizes, np.zeros(4), 4, 1.0, priority_alpha=0.0),
        drawn([0.0] * 4, [0.0] * 4, 4),
    ):
        np.testing.assert_allclose(same[1], 1.0, rtol=1e-6)


@pytest.mark.parametrize("alpha", [0.0, 50.0, 1000.0, 3e38, math.inf])
@pytest.mark.parametrize(
    "sizes", [(3.0, 40.0), (0.0, 5.0), (0.0, 0.0), (1e-20, 3e38), (3e38, 3e38)]
)
def test_importance_weights_are_finite(alpha, sizes):
    """The larger segment comes first, with a weight below 1, unless both are equal."""
    alike = sizes[0] == sizes[1] or alpha == 0.0
    for progress in (0.0, 1.0):
        indices, weights = drawn(sizes, np.zeros(2), 2, progress, priority_alpha=alpha)
        assert np.isfinite(weights).all()
        if alike:
            np.testing.assert_allclose(weights, 1.0, rtol=1e-6)
        else:
            assert indices[0, 0] == np.argmax(sizes) and weights[0, 0] < 1.0 < weights[0, 1]


def test_draws_follow_the_probabilities_without_replacement():
    """So does the second of two draws: P(j second) = sum over i of p_i p_j / (1 - p_i)."""
    p = np.array([0.5, 0.25, 0.15, 0.1])
    noise = jax.random.gumbel(jax.random.key(0), (40_000, 4))
    of_one = lambda noise: drawn(p, noise, 2, priority_alpha=1.0)[0][0]
    pairs = np.asarray(jax.vmap(of_one)(noise))
    assert (pairs[:, 0] != pairs[:, 1]).all()
    first, second = (np.bincount(pairs[:, i], minlength=4) / len(pairs) for i in range(2))
    np.testing.assert_allclose(first, p, atol=0.01)
    joint = p[:, None] * p / (1.0 - p[:, None]) * (1.0 - np.eye(4))
    np.testing.assert_allclose(second, joint.sum(0), atol=0.01)


def test_the_learning_rate_follows_a_cosine_from_one_to_the_floor():
    config = TINY.replace(learning_rate=2.0, lr_floor=0.1, lr_exponent=2.0)
    progress = np.linspace(0.0, 1.0, 5)
    rates = ppo_vtrace.annealed_rate(config, jnp.array(progress, jnp.float32))
    expected = 0.1 + 0.9 * (0.5 * (1.0 + np.cos(np.pi * progress))) ** 2
    np.testing.assert_allclose(rates, 2.0 * expected, rtol=1e-5)
    assert rates[0] == 2.0 and rates[-1] == np.float32(0.2)
    assert ppo_vtrace.annealed_rate(config, 1.7) == np.float32(0.2)
    assert ppo_vtrace.annealed_rate(config.replace(anneal_lr=False), 0.7) == 2.0


def test_means_of_terms_are_those_of_ppo():
    rng = np.random.default_rng(1)
    a, b, c = rng.normal(size=(3, 200)).astype(np.float32)
    found = ppo_vtrace.clipped_surrogate(a, b, 0.2).mean()
    np.testing.assert_allclose(found, ppo.clipped_surrogate(a, b, 0.2), rtol=1e-5)
    for clip in (False, True):
        found = ppo_vtrace.value_error(a, b, c, 0.3, clip).mean()
        np.testing.assert_allclose(found, ppo.value_error(a, b, c, 0.3, clip), rtol=1e-5)


@pytest.mark.parametrize("mean, log_std", [(0.0, 0.0), (1.5, -1.0), (-3.0, 0.5)])
def test_squashed_densities_integrate_to_one_and_entropy_is_theirs(mean, log_std):
    """Checked by a fine sum over the actions themselves; two dimensions are independent."""
    x = np.linspace(-12.0, 12.0, 20_001)

    @jax.jit
    def of(x):
        shape = x.shape
        actions = parts.Gaussian(jnp.full(shape, mean), jnp.full(shape, log_std))
        return ppo_vtrace.log_prob_and_entropy(TINY.replace(squash=True), actions, x, True)

    log_prob, _ = of(jnp.array(x[:, None]))
    action, density = np.tanh(x), np.exp(np.asarray(log_prob, np.float64))
    width = np.gradient(action)
    np.testing.assert_allclose((density * width).sum(), 1.0, atol=1e-3)
    entropy = -(density * np.asarray(log_prob) * width)[width > 0].sum()
    _, result = of(jnp.zeros((1, 2)))
    np.testing.assert_allclose(result, 2.0 * entropy, rtol=2e-3, atol=2e-3)


def test_squashed_actions_fill_the_box_and_saturate_without_nan():
    box = tasks.spaces.Box(jnp.array([-2.0, 0.0]), jnp.array([2.0, 1.0]), (2,))
    config = TINY.replace(squash=True)
    act = lambda x: ppo_vtrace.to_space(config, parts.ActionSpace(box), jnp.full((1, 2), x))[0]
    np.testing.assert_allclose(act(0.0), [0.0, 0.5], atol=1e-6)
    np.testing.assert_allclose(act(100.0), [2.0, 1.0])
    actions = parts.Gaussian(jnp.full((1, 2), 50.0), jnp.zeros((1, 2)))
    found = ppo_vtrace.log_prob_and_entropy(config, actions, jnp.full((1, 2), 60.0), True)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("sigma_head", [False, True])
def test_deviations_are_clipped_and_return_from_outside(sigma_head):
    network = ppo_vtrace.ActorCritic(
        TINY.replace(sigma_head=sigma_head), parts.ActionSpace(tasks.spaces.Box(-1.0, 1.0, (6,)))
    )
    params = jax.jit(network.init)(jax.random.key(0), jnp.zeros((1, 1)))
    where = ("sigma_head", "bias") if sigma_head else ("log_std",)
    start = np.array([-40.0, -5.1, -4.9, 0.3, 1.9, 9.0], np.float32)

    @jax.jit
    def log_std(x):
        inner = {where[-1]: x}
        inner = {where[0]: params["params"][where[0]] | inner} if sigma_head else inner
        changed = {"params": params["params"] | inner}
        return network.apply(changed, jnp.zeros((1, 1)), method="actor").log_std[0]

    np.testing.assert_array_equal(log_std(start), np.clip(start, -5.0, 2.0))
    gradient, x = jax.jit(jax.grad(lambda x: 0.5 * jnp.square(log_std(x) - 1.0).sum())), start
    np.testing.assert_array_equal(gradient(x), np.clip(start, -5.0, 2.0) - 1.0)
    for _ in range(200):
        x = x - 0.1 * gradient(x)
    np.testing.assert_allclose(x, 1.0, atol=0.01)


@pytest.mark.parametrize("squash", [False, True])
def test_dimensions_that_are_not_real_are_left_out(squash):
    x, mean, log_std = np.random.default_rng(0).normal(size=(3, 5, 3)).astype(np.float32)
    of = functools.partial(ppo_vtrace.log_prob_and_entropy, TINY.replace(squash=squash))
    found = of(parts.Gaussian(mean, log_std), x, np.array([True, False, True]))
    part = parts.Gaussian(mean[:, ::2], log_std[:, ::2])
    assert_close(found, of(part, x[:, ::2], np.ones(2, bool)))


# --- probe tasks ------------------------------------------------------------------------------

PROBE = ppo_vtrace.Config(
    **PLAIN,
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


def played(case, kind):
    """Values and actions for test_probes.py."""
    continuous = kind == "continuous"
    config = PROBE.replace(squash=continuous, sigma_head=continuous)
    return kind, *play_probes(ppo_vtrace, config, of_critic(ppo_vtrace), continuous)


@pytest.mark.parametrize(
    "env, rewards, expected", [(Pair(), [1.0, 1.0], [10.0, 5.5]), (Team(), [1.0, 0.03], [20, 18.5])]
)
def test_several_agents_share_a_network_and_one_leaves(env, rewards, expected, monkeypatch):
    """At the start both agents see 1, and the value is the mean of 10 (endless) and 1 (leaves).

    Later only agent 0 is there, whatever agent 1 would be paid. In a team both are valued, by the
    mean of 1 and 3 for ever, and by a first reward of 1 and 0.03.

    An agent that has left decides nothing: what the environment ignores has a ratio of 1, and does
    not end the trace of the team.
    """
    seen, original = [], ppo_vtrace.vtrace

    def spy(config, segments, values, log_ratio):
        jax.debug.callback(lambda *x: seen.append(x), segments.alive > 0, log_ratio)
        return original(config, segments, values, log_ratio)

    monkeypatch.setattr(ppo_vtrace, "vtrace", spy)
    params = PairParams(task=LEAVING, rewards=jnp.array(rewards))
    config = PROBE.replace(optimizer="adam", gae_lambda=0.8)
    state, metrics = ppo_vtrace.make_train(config, env, params)(jax.random.key(0))
    network = ppo_vtrace.ActorCritic(config, parts.ActionSpace(env.action_space(params)))
    critic = jax.jit(lambda params, x: network.apply(params, x, method="critic"))
    values = critic(state.policy.params, jnp.array([[0.0], [1.0]]))
    np.testing.assert_allclose(values, expected, rtol=0.1)
    assert metrics["episode_return"].shape == (1, 2)
    policy = ppo_vtrace.make_policy(config, env, params)
    assert jax.eval_shape(policy, state, jnp.zeros((2, 1)))[0].shape == (2,)
    jax.effects_barrier()
    alive, log_ratio = map(np.concatenate, zip(*seen))
    assert not alive.all() and (log_ratio[alive] != 0.0).any()
    assert (log_ratio[~alive] == 0.0).all()


def test_minibatches_without_a_living_agent_are_no_data():
    """They make no step, which momentum would, and no metric counts their zeros."""
    config = PROBE.replace(num_envs=8, num_steps=8, num_minibatches=16, priority_alpha=0.0)
    params = jax.tree.map(jnp.asarray, PairParams())
    learner = ppo_vtrace.learner(config.replace(accumulate=2), Half(), params)
    init, update = programs(learner)
    state, _ = update(init(jax.random.key(0)))  # all are there in its first step
    assert 0.3 < state.alive.mean() < 0.9
    later, metrics = update(state)
    ratio = metrics["mean_ratio"].total / metrics["mean_ratio"].weight
    assert abs(ratio - 1.0) < 0.15 and metrics["mean_ratio"].weight < 0.9
    inner = later.env_state.env
    gone = inner.replace(x=-jnp.abs(inner.x))
    later = later.replace(
        alive=jnp.zeros_like(later.alive), env_state=later.env_state.replace(env=gone)
    )
    last, metrics = update(later)
    assert_same((last.policy.params, last.opt_state), (later.policy.params, later.opt_state))
    assert metrics["value_loss"].weight == metrics["mean_value"].weight == 0.0


# --- the segments of a rollout ----------------------------------------------------------------


class Found(Exception):
    """Ends an update where its segments are known, and learning would begin."""


def first_segments(env, change=again):
    """The jitted function(config, env_params) -> parameters, segments of a first update."""

    def stop(config, segments, *args):
        raise Found(segments)

    @jax.jit
    def segments(config, params):
        learner = ppo_vtrace.learner(config, env, params)
        state = change(learner.init(jax.random.key(0)))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Found) as found:
            patch.setattr(ppo_vtrace, "vtrace", stop)
            learner.update(state)
        return state.policy.params, found.value.args[0]

    return lambda *args: jax.tree.map(np.asarray, segments(*args))


def test_segments_end_with_the_value_of_the_final_observation():
    """In SWING this value is the negative of the last one, also at limits; DELAYED terminates.

    A reward trace ends there, too.
    """
    env, config = tasks.Probe(), TINY.replace(normalize_reward=True)
    network = ppo_vtrace.ActorCritic(config, parts.ActionSpace(env.action_space(ProbeParams())))
    of_values = jax.jit(lambda params, x: network.apply(params, x, method="critic"))
    segments = first_segments(env)
    for task, trace in ((tasks.SWING, 0.0), (tasks.SWING, 0.5), (tasks.DELAYED, 0.0)):
        params = ProbeParams(task=task, max_steps_in_episode=3)
        networks, found = segments(config.replace(reward_trace=trace), params)
        critic = lambda x, networks=networks: np.asarray(
            of_values(networks, jnp.array(x.reshape(-1, 1)))
        ).reshape(x.shape)
        x = found.observation[..., 0]
        np.testing.assert_allclose(found.value, critic(x), rtol=1e-4, atol=1e-6)
        if task == tasks.SWING:
            np.testing.assert_array_equal(x, [[1, -1, 1, 1, -1, 1, 1, -1]] * 4)
            np.testing.assert_array_equal(found.ends, [[0, 0, 1, 0, 0, 1, 0, 1]] * 4)
            np.testing.assert_allclose(found.bootstrap, critic(-x), rtol=1e-4, atol=1e-6)
            traced = [[0.75, -0.5, 1, 0.75, -0.5, 1, 0.5, -1]] * 4
            expected = traced if trace else x  # nothing was known of rewards
            np.testing.assert_allclose(found.reward, expected, rtol=1e-5)
        else:
            np.testing.assert_array_equal(found.ends, [[0, 1] * 4] * 4)
            expected = np.where(found.ends, 0.0, critic(x + 1.0))
            np.testing.assert_allclose(found.bootstrap, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("squash", [False, True])
def test_segments_keep_actions_as_they_were_before_clipping_and_squashing(squash):
    wide = lambda state: change_leaves(state, ("log_std",), lambda x: x + 2.0)
    segments = first_segments(tasks.Probe(continuous=True), wide)
    _, found = segments(TINY.replace(squash=squash), ProbeParams(task=tasks.ACTION))
    assert np.abs(found.action).max() > 3.0
    np.testing.assert_allclose(np.std(found.action), np.e**2, rtol=0.4)


class Padded(Pair):
    """Actions of agent 1 have one dimension, those of agent 0 two, and no agent has the third."""

    action_dimensions = np.array([[True, True, False], [True, False, False]])

    def action_space(self, params):
        return tasks.spaces.Box(-1.0, 1.0, (3,))


def wider(state):
    """Deviations of 1, e and 1."""
    return change_leaves(state, ("log_std",), lambda x: x + jnp.array([0.0, 1.0, 0.0]))


def test_padded_dimensions_count_in_no_log_prob():
    config = ONE_STEP.replace(num_envs=6)
    _, found = first_segments(Padded(continuous=True), wider)(config, PairParams(task=LEAVING))
    leaves = ~found.alive.all(1)
    np.testing.assert_array_equal(leaves, [False, True] * 6)
    np.testing.assert_array_equal(found.real[:, 0, 1], ~leaves)
    assert found.real[:, 0, 0].all() and not found.real[:, 0, 2].any()
    log_std = np.array([0.0, 1.0, 0.0])
    z = found.action / np.exp(log_std)  # initial means are at most 0.01
    log_probs = -0.5 * z**2 - 0.5 * math.log(2.0 * math.pi) - log_std
    expected = np.where(found.real, log_probs, 0.0).sum(-1)
    np.testing.assert_allclose(found.log_prob, expected, atol=0.15)


def test_padded_dimensions_count_in_no_entropy_and_are_not_learned():
    """The third one pads all agents."""
    params = jax.tree.map(jnp.asarray, PairParams(task=OWN))
    config = ONE_STEP.replace(optimizer="adam")
    init, update = programs(ppo_vtrace.learner(config, Padded(continuous=True), params))
    before = wider(init(jax.random.key(0)))
    after, metrics = update(again(before))
    one, value = 0.5 * math.log(2.0 * math.pi * math.e), lambda x: x.total / x.weight
    np.testing.assert_allclose(value(metrics["entropy"]), (one + one + 1.0 + one) / 2.0, rtol=1e-4)
    np.testing.assert_allclose(value(metrics["policy_std"]), (1.0 + math.e + 1.0) / 3.0, rtol=1e-4)
    np.testing.assert_allclose(value(metrics["approx_kl"]), 0.0, atol=1e-10)
    for name in ("log_std", ("actor_head", "kernel"), ("actor_head", "bias")):
        old, new = (state.policy.params["params"] for state in (before, after))
        for key in (name,) if isinstance(name, str) else name:
            old, new = old[key], new[key]
        changed = np.reshape(old != new, (-1, 3)).any(0)
        assert changed.tolist() == [True, True, False]


# --- learning from a rollout ------------------------------------------------------------------


@functools.cache
def start():
    return parts.first_state(ppo_vtrace.make_train(THREE_STEPS), jax.random.key(0))


@functools.cache
def train(config, update=0):
    """Parameters and metrics after three updates from this one on."""
    state = again(start()).replace(update=jnp.int32(update))
    state, metrics = ppo_vtrace.make_train(config)(None, state)
    return state.policy.params, metrics


def test_learning_starts_at_ratio_one():
    """Statistics do not change while a rollout is learned from."""
    _, metrics = train(THREE_STEPS.replace(learning_rate=0.0))
    np.testing.assert_allclose(metrics["approx_kl"], 0.0, atol=1e-10)
    np.testing.assert_allclose(metrics["mean_ratio"], 1.0, atol=1e-5)


def test_ratios_of_the_moving_policy_are_clipped():
    """Those of a policy that does not move are 1, and no limit of 1 or more matters to them."""
    with_limit = lambda limit, rate: train(
        THREE_STEPS.replace(rho_clip=limit, c_clip=limit, learning_rate=rate)
    )
    still, same = (with_limit(limit, 0.0)[1] for limit in (1.0, 2.0))
    for name in ("policy_loss", "value_loss", "grad_norm"):
        np.testing.assert_allclose(still[name], same[name], rtol=1e-4, atol=1e-6)
    with pytest.raises(AssertionError):
        assert_close(*(with_limit(limit, 0.1)[0] for limit in (1.0, 2.0)))


@pytest.fixture(scope="module")
def with_adam():
    """A function that trains TINY with Adam, and returns metrics and the sizes at each draw."""
    seen, original = [], ppo_vtrace.draw
    config = TINY.replace(optimizer="adam", num_eval_episodes=0, eval_at_start=False)

    def spy(config, sizes, *args):
        jax.debug.callback(lambda x: seen.append(np.array(x)), sizes, ordered=True)
        return original(config, sizes, *args)

    def run(**floats):
        seen.clear()
        _, metrics = ppo_vtrace.make_train(config.replace(**floats))(jax.random.key(0))
        jax.effects_barrier()
        return metrics, list(seen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ppo_vtrace, "draw", spy)
        run()  # later runs use this program
    return run


def test_priorities_of_drawn_segments_are_updated(with_adam):
    """Each gradient step draws two of four segments; the first one uses the collected
    advantages."""
    _, seen = with_adam(learning_rate=0.1)
    assert len(seen) == 3 * 4
    first = seen[:4]
    assert (first[0] > 0).all()
    changed = [~np.isclose(a, b, rtol=1e-3) for a, b in itertools.pairwise(first)]
    assert [x.sum() for x in changed] == [0, 2, 2]


def test_large_priorities_leave_all_finite():
    """The weight of the segment that is hardly ever drawn would overflow."""
    params, metrics = train(THREE_STEPS.replace(priority_alpha=1e4, max_grad_norm=math.inf))
    for x in jax.tree.leaves((params, *(metrics[name] for name in METRICS))):
        assert np.isfinite(x).all()
    assert (metrics["importance"] > 1.0).all()


def test_accumulation_is_one_step_of_a_larger_minibatch():
    """Gradients are averaged, not summed."""
    whole, parts = train(THREE_STEPS), train(THREE_STEPS.replace(num_minibatches=2, accumulate=2))
    assert_close(whole[0], parts[0], rtol=1e-3, atol=1e-5)
    # Muon does not depend on the length of its gradients.
    assert_close(whole[1]["grad_norm"], parts[1]["grad_norm"], rtol=1e-3)


def test_clipped_values_stay_near_those_of_the_rollout():
    """Other values follow their targets from the second gradient step on."""
    config = THREE_STEPS.replace(learning_rate=0.05, vf_coef=10.0)
    free, kept = (train(config.replace(clip_eps=x))[1]["value_loss"] for x in (math.inf, 1e-6))
    assert kept[0] > 1.01 * free[0]


def test_heads_start_with_their_gains():
    config = TINY.replace(sigma_head=True)
    init = ppo_vtrace.learner(config, *STATIC_WORLD).init
    params = jax.jit(lambda key: init(key).policy.params)(jax.random.key(0))["params"]
    for name, gain in (("actor_head", 0.01), ("sigma_head", 0.01), ("critic_head", 1.0)):
        kernel = params[name]["kernel"]
        np.testing.assert_allclose(kernel.T @ kernel, [[gain**2]], rtol=1e-4)


def test_the_learning_rate_falls_to_its_floor_at_the_last_gradient_step():
    rates = dict(lr_floor=0.25, learning_rate=1e-2)
    _, metrics = train(THREE_STEPS.replace(**rates))
    factors = 0.25 + 0.75 * 0.5 * (1.0 + np.cos(np.pi * np.arange(9) / 8))
    expected = 1e-2 * factors.reshape(3, 3).mean(1)
    np.testing.assert_allclose(metrics["current_learning_rate"], expected, rtol=1e-5)


def test_schedules_of_a_run_of_ten_to_the_ten_steps_do_not_wrap():
    points, per_point = 5_000_000, 64
    config = THREE_STEPS.replace(update_epochs=16, total_timesteps=10**10, num_evals=points)
    learner = ppo_vtrace.learner(config, tasks.Probe(), jax.tree.map(jnp.asarray, ProbeParams()))

    @jax.jit
    def rate(key):
        state = learner.init(key).replace(update=jnp.int32(0.75 * points * per_point))
        return learner.update(state)[1]["current_learning_rate"]

    expected = config.learning_rate * 0.5 * (1.0 + math.cos(0.75 * math.pi))
    np.testing.assert_allclose(rate(jax.random.key(0)), expected, rtol=1e-3)


def test_the_exponent_of_importance_weights_grows_to_one_at_the_end():
    """Weights with an exponent of 0 are 1. Past the end, where it starts no longer matters."""
    of = lambda beta, update: train(
        THREE_STEPS.replace(priority_beta=beta, learning_rate=0.0), update
    )[1]["importance"]
    low, high = (of(beta, 0) - 1.0 for beta in (0.0, 1.0))
    assert (high > 1e-4).all()
    share = low / high
    assert 0.0 < share[0] < 0.13 and share[0] < share[1] < share[2] < 1.0 and share[2] > 0.5
    np.testing.assert_allclose(of(0.0, 3), of(1.0, 3), rtol=1e-6)


# --- the contract -----------------------------------------------------------------------------

METRICS = {"loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"}
METRICS |= {"mean_ratio", "importance", "grad_norm", "score", "mean_value"}
METRICS |= {"explained_variance"}
STATIC_WORLD = tasks.Probe(continuous=True), ProbeParams()  # two settings are of continuous actions
# With Adam, because Muon's steps differ too much between machines.
PINNED = {
    "entropy": [0.69311, 0.692973, 0.692607],
    "grad_norm": [2.91394, 2.52807, 2.68328],
    "importance": [0.996905, 1.04104, 0.975801],
    "mean_value": [-0.0843975, 0.0823314, 0.303903],
    "value_loss": [9.05388, 7.84474, 6.65185],
}


def compared(state, metrics):
    """The parts compared after one rollout; steps this large amplify rounding."""
    return jax.tree.map(lambda x: x[0], metrics)


CASE = Case(
    module=ppo_vtrace,
    tiny=TINY,
    metrics=METRICS,
    pinned={},  # with Adam, see below
    refused=(
        (
            dict(num_minibatches=3),
            "num_minibatches=3 does not divide the 4 segments .*; 1, 2, 4 would",
        ),
        (dict(accumulate=3), "accumulate=3 does not divide the 4 minibatches .*; 1, 2 would do"),
        (dict(accumulate=4), "exceeds num_minibatches=2; 1, 2 would do"),
        (dict(num_steps=1, num_minibatches=4), "one sample to a minibatch"),
        (dict(optimizer="sgd"), "optimizer='sgd': give muon or adam"),
        (dict(squash=True), "squash=True needs continuous, bounded actions"),
    ),
    swept=dict(clip_vloss=True, learning_rate=0.05),
    other={
        "adam_eps": 1e-2,
        "clip_eps": 1e-3,
        "max_grad_norm": 1e-2,
        "lr_floor": 0.5,
        "reward_trace": 0.5,
    },
    compared=compared,
    tolerance=dict(rtol=1e-3, atol=1e-4),
    static_world=STATIC_WORLD,
    probe=PROBE,
    probes={"discrete": False, "continuous": False},
    played=played,
)


def test_pinned_values(with_adam):
    """Values close to the pinned ones for seed 0; a change here is a change of the algorithm."""
    metrics, _ = with_adam()
    for name, expected in PINNED.items():
        np.testing.assert_allclose(metrics[name], expected, rtol=1e-4, atol=1e-6, err_msg=name)


def test_rewards_are_scored(trained):
    np.testing.assert_allclose(trained[1]["score"][1:], 1.0)


@pytest.mark.slow  # the contract's test of floats has it for the first rollout
def test_a_vmapped_seed_is_close_to_the_single_run(trained, vmapped_keys):
    """Close to the end, with steps of the usual length."""
    keys = jnp.stack([jax.random.key(0), jax.random.key(1)])
    state, metrics = jax.jit(jax.vmap(ppo_vtrace.make_train(TINY)))(keys)
    mine = jax.tree.map(lambda x: x[0], (state.policy, metrics))
    assert_close(mine, (trained[0].policy, trained[1]), atol=1e-5)


def test_environments_that_forbid_actions_are_refused():
    with pytest.raises(
        ValueError, match="which ppo_vtrace would not heed; ippo, ippo_rnn and vdn do"
    ):
        ppo_vtrace.make_train(TINY, Pair(masked=True), PairParams())


def test_actions_without_bounds_cannot_be_squashed():
    class Unbounded(tasks.Probe):
        def action_space(self, params):
            return tasks.spaces.Box(-math.inf, math.inf, (1,))

    with pytest.raises(ValueError, match="squash=True needs continuous, bounded actions"):
        ppo_vtrace.make_train(TINY.replace(squash=True), Unbounded(True), ProbeParams())
