"""REPPO's formulas against plain NumPy and optax, probe tasks, and the contract."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import envs
from algorithms import parts, reppo
from tests.algorithms.cases import Case, again, assert_close, programs
from tests.algorithms.test_actor_critics import HIGH, LOW, TAKES_BOX, TwoMotors, two_motors
from tests.algorithms.test_probes import play_probes
from tests.conftest import AS_FOR_USERS

TINY = reppo.Config(
    env_settings=(("max_steps", 20),),
    total_timesteps=3 * 32,
    num_envs=2,
    num_steps=16,
    update_epochs=2,
    num_minibatches=2,
    num_action_samples=2,
    learning_rate=1e-3,
    num_bins=11,
    symlog_max=5.0,
    auxiliary=True,
    hidden_sizes=(8,),
    critic_hidden_sizes=(8, 8),
    activation="tanh",
    normalize_obs=False,
    normalize_reward=False,
    num_evals=3,
    num_eval_episodes=2,
)


# --- formulas ---------------------------------------------------------------------------------


def normal_density(x, mean, std):
    return np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * np.sqrt(2.0 * np.pi))


def test_the_kl_is_that_of_actions_after_tanh():
    """An integral over squashed actions, whose densities are those of the change of variables."""
    old = parts.TanhGaussian(np.array([[0.3]]), np.array([[-0.5]]))
    new = parts.TanhGaussian(np.array([[-0.2]]), np.array([[-0.1]]))
    u = np.linspace(-6.0, 6.0, 20_001)
    density = lambda g: normal_density(u, g.mean[0], np.exp(g.log_std[0])) / slope
    slope = 1.0 - np.tanh(u) ** 2
    p, q = density(old), density(new)
    expected = np.trapezoid(p * np.log(p / q), np.tanh(u))
    assert float(reppo.kl_divergence(old, new)[0]) == pytest.approx(expected, rel=1e-3)
    both = jax.tree.map(lambda x: np.repeat(x, 2, 1), old)
    other = jax.tree.map(lambda x: np.repeat(x, 2, 1), new)
    assert float(reppo.kl_divergence(both, other)[0]) == pytest.approx(2 * expected, rel=1e-3)


@pytest.mark.parametrize("value", [0.0, 0.3, -7.0, 40.0, 1e6, -1e6])
def test_histograms_are_those_of_a_gaussian_cut_off_at_the_outer_edges(value):
    bins, symlog_max = 21, 4.0
    width = 2 * symlog_max / (bins - 1)
    centres = np.linspace(-symlog_max, symlog_max, bins)
    edges = np.append(centres - width / 2, symlog_max + width / 2)
    symlog = np.clip(np.sign(value) * np.log(1 + abs(value)), -symlog_max, symlog_max)
    below = np.array([math.erf((x - symlog) / (0.75 * width * math.sqrt(2.0))) for x in edges])
    expected = np.diff(below) / (below[-1] - below[0])
    found = reppo.hl_gauss(jnp.array([[value]], jnp.float32), bins, symlog_max)
    assert found.shape == (1, 1, bins)
    np.testing.assert_allclose(found[0, 0], expected, atol=1e-5)


@pytest.mark.parametrize("bins, symlog_max", [(51, 5.0), (50, 5.0), (51, 10.0), (21, 5.0)])
def test_a_histogram_has_the_mean_of_its_value(bins, symlog_max):
    """Although it spreads in symlog: else every bootstrapped target would be a little larger."""
    values = jnp.array([0.0, 1.0, -3.0, 20.0, -50.0])
    logits = lambda x: jnp.log(jnp.maximum(reppo.hl_gauss(x, bins, symlog_max), 1e-12))
    found = jax.jit(lambda x: reppo.mean_of(logits(x), symlog_max))(values)
    np.testing.assert_allclose(found, values, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("bins", [5, 6])
def test_the_mean_is_over_the_centres_of_the_bins(bins):
    logits = np.random.default_rng(0).normal(size=(4, bins)).astype(np.float32)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    centres = np.linspace(-2.0, 2.0, bins)
    spread = jax.jit(lambda x: reppo.hl_gauss(x, bins, 2.0))(0.0) @ np.exp(centres)
    expected = p @ (np.sign(centres) * (np.exp(abs(centres)) / spread - 1.0))
    found = jax.jit(lambda x: reppo.mean_of(x, 2.0))(logits)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def plain_targets(rewards, values, bonus, terminated, done, gamma, lam):
    """The recursion, from each environment's last step to its first."""
    steps, envs = rewards.shape
    expected = np.zeros((steps, envs))
    for env in range(envs):
        for t in reversed(range(steps)):
            value = values[t, env]
            if t + 1 < steps and not done[t, env]:
                value = (1 - lam) * value + lam * expected[t + 1, env]
            soft = 0.0 if terminated[t, env] else value + bonus[t, env]
            expected[t, env] = rewards[t, env] + gamma * soft
    return expected


@pytest.mark.parametrize("seed, shape", [(0, (17, 5)), (1, (32, 3)), (2, (1, 4))])
@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_targets_are_the_recursion(seed, shape, lam):
    rng = np.random.default_rng(seed)
    rewards, values, bonus = rng.normal(size=(3, *shape)).astype(np.float32)
    terminated, truncated = rng.random((2, *shape)) < 0.15
    rollout = rewards, values, bonus, terminated, terminated | truncated
    result = reppo.soft_lambda_targets(*rollout, 0.9, lam)
    np.testing.assert_allclose(result, plain_targets(*rollout, 0.9, lam), rtol=1e-4, atol=1e-5)


def test_learning_rates_are_linear_over_a_run_and_reach_their_floor():
    config = reppo.Config(update_epochs=2, num_minibatches=4, learning_rate=0.5, anneal_lr=True)
    rates = lambda update: reppo.learning_rates(config, 5, jnp.int32(update))
    run = np.concatenate([rates(update) for update in range(5)])
    np.testing.assert_allclose(run, 0.5 * (1.0 - np.arange(40) / 40), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(rates(7), np.zeros(8))
    constant = reppo.learning_rates(config.replace(anneal_lr=False), 5, jnp.int32(3))
    np.testing.assert_array_equal(constant, np.full(8, 0.5))


def test_the_std_starts_at_1_and_stays_above_a_tenth():
    actor = reppo.Actor(TINY, 2)
    params = jax.jit(actor.init)(jax.random.key(0), jnp.ones((1, 3)))["params"]

    @jax.jit
    def std(bias):
        head = {"kernel": jnp.zeros_like(params["std_head"]["kernel"]), "bias": jnp.full(2, bias)}
        found = actor.apply({"params": {**params, "std_head": head}}, jnp.ones((1, 3)))
        return jnp.exp(found.log_std)

    np.testing.assert_allclose(std(0.0), np.ones((1, 2)), rtol=1e-5)
    np.testing.assert_allclose(std(-50.0), np.full((1, 2), 0.1), rtol=1e-4)
    np.testing.assert_allclose(std(50.0), np.full((1, 2), np.exp(2.0)), rtol=1e-4)


def test_first_episodes_are_cut():
    """So that environments are at different times of episodes that all last 20 steps."""
    learner = reppo.learner(TINY.replace(num_envs=50), *envs.make("Pendulum-v1", max_steps=20))
    cut = np.asarray(jax.jit(lambda key: learner.init(key).env_state.cut)(jax.random.key(0)))
    assert cut.min() <= 3 and cut.max() >= 18 and cut.max() <= 20


# --- an update --------------------------------------------------------------------------------

# Two passes over one minibatch, so that the policy is no longer the one that acted.
STEP = TINY.replace(
    env_settings=(),
    num_envs=4,
    update_epochs=2,
    num_minibatches=1,
    num_action_samples=3,
    anneal_lr=False,
    learning_rate=0.1,
    adam_eps=1.0,  # else the step is only a sign
    max_grad_norm=0.5,
    kl_bound=5e-4,
    symlog_max=0.7,  # some targets are beyond
    aux_coef=0.7,
    normalize_obs=True,
    normalize_reward=True,
    clip_reward=10.0,
    num_eval_episodes=0,
)
SAMPLES = STEP.num_steps * STEP.num_envs
ALPHA, BETA = 0.3, 20.0


class Falling(TwoMotors):
    """Ends where the pendulum is fast."""

    def step_env(self, key, state, action, params):
        x, state, reward, _, info = super().step_env(key, state, action, params)
        return x, state, reward, jnp.abs(x[2]) > 2.0, info


@pytest.fixture(scope="module")
def step():
    """The world, the state before and after an update, its rollout and its metrics."""
    env, params = two_motors(Falling)
    init, update = programs(reppo.learner(STEP, env, params))
    state = update(init(jax.random.key(0)))[0]
    weights = reppo.Weights(jnp.float32(np.log(ALPHA)), jnp.float32(np.log(BETA)))
    zero = lambda tree: jax.tree.map(jnp.zeros_like, tree)
    head = state.critic_params["params"]["value_head"]
    head["kernel"] *= 10.0  # values that differ
    head["bias"] -= reppo.PRIOR * reppo.hl_gauss(jnp.zeros(()), STEP.num_bins, STEP.symlog_max)
    actor = state.policy.params["params"]
    for name in ("mean_head", "std_head"):
        actor[name]["kernel"] *= 50.0  # actions that depend on what is seen
    state = state.replace(
        env_state=state.env_state.replace(cut=jnp.array([2, 5, 7, 11])),
        weights=weights,
        opt_state=zero(state.opt_state),
        critic_opt_state=zero(state.critic_opt_state),
    )
    rollout = jax.jit(lambda state: collected(state, env, params))(again(state))
    return parts.ActionSpace(env.action_space(params)), state, rollout, *update(again(state))


def collected(state, env, params):
    """The rollout of an update, one step after the other."""
    environments, actor = (
        envs.batch(env, STEP.num_envs, STEP.num_steps, stagger=True),
        reppo.Actor(STEP, 2),
    )
    _, start_rng, step_rng, noise_rng = jax.random.split(state.rollout_rng, 4)
    noise = parts.ActionSpace(env.action_space(params)).noise(
        noise_rng, (STEP.num_steps, STEP.num_envs)
    )
    env_state = environments.refill(start_rng, state.env_state, params)

    def step(carry, inputs):
        (env_state, x), (key, noise) = carry, inputs
        gaussian = actor.apply(state.policy.params, normalized(state, x))
        action = jnp.tanh(gaussian.mean + jnp.exp(gaussian.log_std) * noise)
        in_box = LOW + 0.5 * (action + 1.0) * (HIGH - LOW)
        found = environments.step(key, env_state, in_box, params)
        following, env_state, reward, terminated, truncated, info = found
        done = terminated | truncated
        row = reppo.Transition(x, action, reward, terminated, done, info["final_observation"])
        return (env_state, following), row

    keys = jax.random.split(step_rng, STEP.num_steps)
    return jax.lax.scan(step, (env_state, state.observation), (keys, noise))[1]


def normalized(state, x):
    stats = state.policy.obs_stats
    return jnp.clip((x - stats.mean) / jnp.sqrt(stats.var + 1e-8), -10.0, 10.0)


def papers_targets(state, rollout, space, rng):
    """Targets by the recursion, and what the critic's features predict."""
    actor, critic = reppo.Actor(STEP, 2), reppo.Critic(STEP)

    @jax.jit
    def terms(state, rollout, rng):
        flat = lambda x: x.reshape(SAMPLES, *x.shape[2:])
        x = flat(normalized(state, rollout.final_observation))
        gaussian = actor.apply(state.policy.params, x)
        drawn = [gaussian.sample_and_log_prob_from(one) for one in space.noise(rng, (3, SAMPLES))]
        found = [critic.apply(state.critic_params, x, action) for action, _ in drawn]
        mean = lambda xs: jnp.mean(jnp.stack(xs), 0).reshape(rollout.reward.shape)
        reward = rollout.reward / jnp.sqrt(state.reward_scale.stats.var + 1e-8)
        outcome = jnp.concatenate([found[0].features, flat(reward)[:, None]], -1)
        values, log_probs = mean([one.value for one in found]), mean([one for _, one in drawn])
        return (jnp.clip(reward, -10.0, 10.0), values, -ALPHA * log_probs), outcome

    rows, outcome = terms(state, rollout, rng)
    ends = rollout.terminated, rollout.done
    targets = plain_targets(*map(np.asarray, (*rows, *ends)), STEP.gamma, STEP.td_lambda)
    return targets.reshape(SAMPLES).astype(np.float32), outcome


def papers_update(state, rollout, space):
    """`stepped` after two steps, and values and targets before them."""
    _, target_rng, order_rng, noise_rng = jax.random.split(state.learn_rng, 4)
    target, outcome = papers_targets(state, rollout, space, target_rng)
    steps = jax.jit(lambda *x: papers_steps(*x, space))
    return *steps(state, rollout, target, outcome, order_rng, noise_rng), target


def papers_steps(state, rollout, target, outcome, order_rng, noise_rng, space):
    """`stepped` after two steps, and values before them."""
    actor, critic = reppo.Actor(STEP, 2), reppo.Critic(STEP)
    flat = lambda x: x.reshape(SAMPLES, *x.shape[2:])
    x, action, ended = map(flat, (rollout.observation, rollout.action, rollout.terminated))
    x = normalized(state, x)
    acted = actor.apply(state.policy.params, x)
    orders = parts.permutations(order_rng, 2, SAMPLES)
    noises = space.noise(noise_rng, (2, SAMPLES))

    def critic_loss(params, i):
        found = critic.apply(params, x[i], action[i])
        histogram = reppo.hl_gauss(target[i], STEP.num_bins, STEP.symlog_max)
        cross_entropy = -(histogram * jax.nn.log_softmax(found.logits)).sum(-1).mean()
        errors = jnp.square(found.prediction - outcome[i]).mean(-1)
        aux = jnp.where(ended[i], 0.0, errors).mean()
        return cross_entropy + 0.7 * aux, {"critic_loss": cross_entropy, "aux_loss": aux}

    def actor_loss(both, critic_params, i, noise):
        params, weights = both
        gaussian = actor.apply(params, x[i])
        a, log_prob = gaussian.sample_and_log_prob_from(noise)
        kl = reppo.kl_divergence(jax.tree.map(lambda x: x[i], acted), gaussian)
        q = critic.apply(critic_params, x[i], a).value
        alpha, beta = jnp.exp(weights.temperature), jnp.exp(weights.multiplier)
        fixed = jax.lax.stop_gradient((alpha, beta, -log_prob.mean(), kl.mean()))
        loss = jnp.where(kl < STEP.kl_bound, fixed[0] * log_prob - q, fixed[1] * kl).mean()
        of_alpha = alpha * (fixed[2] - 2 * STEP.target_entropy)
        of_beta = beta * (STEP.kl_bound - fixed[3])
        said = {"actor_loss": loss, "entropy": fixed[2], "kl": fixed[3], "temperature": alpha}
        said |= {"multiplier": beta, "clip_fraction": (kl >= STEP.kl_bound).mean()}
        return loss + of_alpha + of_beta, said

    found = stepped(STEP, state, critic_loss, actor_loss, (orders, noises))
    return *found, critic.apply(state.critic_params, x, action).value


def stepped(config, state, critic_loss, actor_loss, inputs):
    """The critic's parameters, the actor's and the weights, and what the losses say of each step.

    Each row of the inputs (indices, ...) is a step of the critic, then one of the actor.
    """
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    adam = optax.chain(clip, optax.adam(config.learning_rate, eps=config.adam_eps))

    def step(carry, inputs):
        (critic_params, critic_opt_state), (both, opt_state) = carry
        grads, said = jax.grad(critic_loss, has_aux=True)(critic_params, inputs[0])
        said["critic_grad_norm"] = optax.tree.norm(grads)
        changes, critic_opt_state = adam.update(grads, critic_opt_state)
        critic_params = optax.apply_updates(critic_params, changes)
        grads, of_actor = jax.grad(actor_loss, has_aux=True)(both, critic_params, *inputs)
        said |= of_actor | {"grad_norm": optax.tree.norm(grads)}
        changes, opt_state = adam.update(grads, opt_state)
        both = optax.apply_updates(both, changes)
        return ((critic_params, critic_opt_state), (both, opt_state)), said

    start = state.critic_params, (state.policy.params, state.weights)
    ((critic_params, _), (both, _)), said = jax.lax.scan(
        step, tuple((params, adam.init(params)) for params in start), inputs
    )
    return critic_params, *both, said


def assert_the_papers(config, state, rollout, after, metrics, expected):
    """What an update leads to, and its metrics, against `stepped` and the values and targets."""
    assert rollout.terminated.any() and (rollout.done & ~rollout.terminated).any()
    critic_params, params, weights, said, values, target = expected
    assert 0.1 < said["clip_fraction"][1] < 0.9, "both branches of the actor's loss"
    assert float(said["grad_norm"][0]) != pytest.approx(config.max_grad_norm)
    assert_close(after.critic_params, critic_params, rtol=1e-3, atol=2e-5)
    assert_close(after.policy.params, params, rtol=1e-3, atol=2e-5)
    assert_close(after.weights, weights, rtol=1e-4)
    said = jax.tree.map(np.mean, said) | {"mean_value": values.mean()}
    for name, value in said.items():
        assert float(metrics[name]) == pytest.approx(float(value), rel=1e-3, abs=1e-6), name

    @jax.jit
    def statistics(state, rollout):
        scale = state.reward_scale.update(rollout.reward, rollout.done, config.gamma)
        return scale, state.policy.obs_stats.update(rollout.observation)

    scale, obs_stats = statistics(state, rollout)
    assert_close(after.reward_scale, scale, rtol=1e-5)
    assert_close(after.policy.obs_stats, obs_stats)
    found, explained = metrics["explained_variance"], 1.0 - np.var(target - values) / target.var()
    assert float(found.total) == pytest.approx(float(explained), abs=1e-3) and found.weight == 1
    clipped = np.mean(np.abs(target) > np.expm1(config.symlog_max))
    assert 0.05 < clipped < 0.95
    assert float(metrics["clipped_targets"]) == pytest.approx(clipped, abs=1e-3)


def test_an_update_is_the_papers(step):
    space, state, rollout, after, metrics = step
    expected = papers_update(again(state), rollout, space)
    assert_the_papers(STEP, state, rollout, after, metrics, expected)


def test_without_a_bound_the_kl_has_no_weight(slices):
    """And the actor learns, where inf in a gradient would end it."""
    state, _ = slices[0]
    config = TINY.replace(kl_bound=math.inf)
    after, metrics = reppo.make_train(config)(None, again(state), 1)
    assert float(metrics["clip_fraction"][0]) == 0.0
    assert after.weights.multiplier == state.weights.multiplier
    assert after.weights.temperature != state.weights.temperature
    moved = jax.tree.map(lambda x, y: (x != y).any(), after.policy.params, state.policy.params)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after.policy.params))
    assert all(jax.tree.leaves(moved))


def test_the_first_values_are_zero_and_the_first_actions_spread(slices):
    """PRIOR puts the values near 0, and the deviation before tanh is about 1."""
    state, _ = slices[0]
    x = np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32)
    found = jax.jit(reppo.Critic(TINY).apply)(state.critic_params, x, jnp.zeros((50, 1)))
    np.testing.assert_allclose(found.value, 0.0, atol=0.05)
    assert (found.logits.argmax(-1) == TINY.num_bins // 2).all()
    gaussian = jax.jit(reppo.Actor(TINY, 1).apply)(state.policy.params, x)
    np.testing.assert_allclose(gaussian.mean, 0.0, atol=0.1)
    np.testing.assert_allclose(gaussian.log_std, 0.0, atol=0.1)


@pytest.mark.parametrize("norm", ["layer", "rms", "none"])
def test_features_are_normalised_before_activations(norm):
    torso = reppo.Torso(TINY.replace(norm=norm), (16,))
    x = np.float32(5.0) + np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    params = jax.jit(torso.init)(jax.random.key(1), x)
    u = np.asarray(x @ params["params"]["Dense_0"]["kernel"])
    u = u - u.mean(-1, keepdims=True) * (norm == "layer")
    size = 1.0 if norm == "none" else np.sqrt((u**2).mean(-1, keepdims=True))
    found = jax.jit(torso.apply)(params, x)
    np.testing.assert_allclose(found, np.tanh(u / size), rtol=1e-3, atol=1e-5)


# --- probe tasks ------------------------------------------------------------------------------

PROBE = reppo.Config(
    total_timesteps=16 * 2000,
    num_envs=16,
    num_steps=16,
    update_epochs=8,
    num_minibatches=4,
    learning_rate=3e-3,
    gamma=0.9,
    td_lambda=0.5,
    target_entropy=-1.5,
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
        action = jnp.tanh(reppo.Actor(config, 1).apply(state.policy.params, x).mean)
        return reppo.Critic(config).apply(state.critic_params, x, action).value

    return kind, *play_probes(case.module, case.probe, values_of, True, options=AS_FOR_USERS)


CASE = Case(
    module=reppo,
    tiny=TINY,
    metrics={
        *("critic_loss", "aux_loss", "actor_loss", "mean_value", "explained_variance"),
        *("entropy", "kl", "clip_fraction", "temperature", "multiplier"),
        *("grad_norm", "critic_grad_norm", "clipped_targets"),
    },
    pinned={
        "critic_loss": [16.0697, 18.1415, 19.0592],
        "aux_loss": [5.26862, 7.18624, 7.60418],
        "entropy": [0.70589, 0.648198, 0.662364],
    },
    refused=(
        (dict(num_minibatches=3), "num_minibatches=3 does not divide .* 32; 1, 2, 4, 8 would do"),
        (dict(num_action_samples=0), "num_action_samples=0: give a whole number, 1 or more"),
        (dict(num_bins=10), "num_bins=10: give a whole number, 11 or more"),
        (dict(norm="batch"), "norm='batch': give layer or rms or none"),
        (dict(critic_hidden_sizes=(8, 0)), "critic_hidden_sizes=0: give a whole number, 1 or more"),
        TAKES_BOX,
    ),
    swept={"kl_bound": 1e-5},
    other={"adam_eps": 1e-2, "max_grad_norm": 1e-2, "kl_bound": 1e-7},
    probe=PROBE,
    probes={"continuous": False},
    played=played,
)
