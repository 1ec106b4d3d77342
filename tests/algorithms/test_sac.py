"""SAC's formulas against integration, distrax and optax, and the contract of the file."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import envs
from algorithms import parts, sac
from envs.gymnax import spaces
from tests import probe as tasks
from tests.algorithms import test_asymmetric as asymmetric
from tests.algorithms.cases import Case, again, assert_close, assert_same, programs
from tests.algorithms.test_actor_critics import (
    OF_CASES,
    PROBE,
    REFUSED,
    SMALL,
    TAKES_BOX,
    assert_apart,
    learner_of,
    played,
    two_motors,
)

TINY = sac.Config(**SMALL, tau=0.05)


def mean_action(config, state, x, size=1):
    return jnp.tanh(sac.Actor(config, size).apply(state.policy.params, x).mean)


def lowest_value(config, state, x, action):
    critics = jax.vmap(sac.Critic(config).apply, (0, None, None))
    return critics(state.critic_params, x, action).min(0)


# --- formulas ---------------------------------------------------------------------------------


def test_a_box_without_bounds_is_refused():
    class Endless(tasks.Probe):
        def action_space(self, params):
            return spaces.Box(-jnp.inf, jnp.inf, (1,))

    with pytest.raises(ValueError, match="sac takes a Box with bounds"):
        sac.make_train(TINY, Endless(True), tasks.ProbeParams())


def test_subsets_of_critics_are_all_as_likely():
    """Each of the ten sets of three of five critics comes in a tenth of 4,000 gradient steps."""
    subsets = np.asarray(sac.draw_subsets(jax.random.key(0), 4000, 3, 5))
    assert subsets.shape == (4000, 3)
    sets, counts = np.unique(np.sort(subsets, 1), axis=0, return_counts=True)
    assert [len(set(row)) for row in sets.tolist()] == [3] * 10
    np.testing.assert_allclose(counts / 4000, 0.1, atol=0.02)


def test_all_shards_have_the_same_subsets(vmapped_keys):
    with parts.shards.within((("shard", 4),)):
        draw = jax.vmap(lambda key: sac.draw_subsets(key, 9, 2, 5), axis_name="shard")
        subsets = draw(jax.random.split(jax.random.key(0), 4))
    assert_same(subsets[1:], jnp.broadcast_to(subsets[0], (3, 9, 2)))
    assert len(np.unique(subsets[0], axis=0)) > 2


def test_dropout_keeps_the_mean_at_every_rate(vmapped_keys):
    """Vmapped over the rate."""
    rates, x = jnp.array([0.0, 0.1, 0.6]), 2.0 + jnp.arange(20_000.0) / 20_000
    keys = jax.random.split(jax.random.key(0), 3)
    dropped = np.asarray(jax.vmap(sac.drop, (0, None, 0))(keys, x, rates))
    np.testing.assert_allclose((dropped == 0.0).mean(1), rates, atol=0.01)
    for row, rate in zip(dropped, np.asarray(rates)):
        np.testing.assert_allclose(row[row > 0], x[row > 0] / (1.0 - rate), rtol=1e-6)
    np.testing.assert_allclose(dropped.mean(1), x.mean(), rtol=0.02)


DROQ = TINY.replace(critic_hidden_sizes=(8, 4), layer_norm=True, dropout=True, dropout_rate=0.4)


def inputs_of_a_critic(config):
    """A critic, parameters of which no layer norm has its first scale, and what it sees."""
    random = np.random.default_rng(0)
    critic, x, action = sac.Critic(config), random.normal(size=(6, 3)), random.normal(size=(6, 1))
    params = critic.init(jax.random.key(0), x, action)
    params = jax.tree.map(lambda x: x + 0.5 * random.normal(size=x.shape).astype(x.dtype), params)
    return critic, params, x, action


@pytest.mark.parametrize(
    "layer_norm, dropout",
    [(True, True), (False, True), pytest.param(True, False, marks=pytest.mark.slow)],
)
def test_a_layer_of_droq_is_dense_dropout_layer_norm_and_relu(layer_norm, dropout):
    config = DROQ.replace(layer_norm=layer_norm, dropout=dropout)
    critic, params, x, action = inputs_of_a_critic(config)
    found = critic.apply(params, x, action, jax.random.key(1))
    own, key, h = params["params"], jax.random.key(1), np.concatenate([x, action], 1)
    for i, size in enumerate((8, 4)):
        key, here = jax.random.split(key)
        h = h @ own[f"Dense_{i}"]["kernel"] + own[f"Dense_{i}"]["bias"]
        if dropout:
            h = np.where(jax.random.bernoulli(here, 0.6, (6, size)), h / 0.6, 0.0)
        if layer_norm:
            h = (h - h.mean(1, keepdims=True)) / np.sqrt(h.var(1, keepdims=True) + 1e-6)
            h = h * own[f"LayerNorm_{i}"]["scale"] + own[f"LayerNorm_{i}"]["bias"]
        h = np.maximum(h, 0.0)
    expected = h @ own["value_head"]["kernel"] + own["value_head"]["bias"]
    np.testing.assert_allclose(found, expected[:, 0], rtol=1e-4, atol=1e-5)


def test_without_a_key_a_critic_drops_nothing():
    critic, params, x, action = inputs_of_a_critic(DROQ)
    plain = sac.Critic(DROQ.replace(dropout=False))
    assert_same(critic.apply(params, x, action), plain.apply(params, x, action))


def test_droqs_critics_see_the_world_state_and_its_actor_does_not():
    config = DROQ.replace(asymmetric=True, num_critics=3, policy_every=2)
    learner = sac.learner(config, asymmetric.Cue(), asymmetric.PARAMS)
    state = jax.eval_shape(learner.init, jax.random.key(0))
    shape = lambda params: params["params"]["Dense_0"]["kernel"].shape
    assert shape(state.critic_params) == (3, 4, 8)  # one number, two of the world state, an action
    assert state.policy.params["params"]["Torso_0"]["Dense_0"]["kernel"].shape == (1, 8)


# --- one gradient step ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def step():
    """The state before and after an update of one round with one gradient step, and the config."""
    config = TINY.replace(train_every=16, updates_per_step=1, learning_starts=0, anneal_lr=False)
    config = config.replace(buffer_size=200, num_critics=3, num_eval_episodes=0)
    config = config.replace(learning_rate=0.1, adam_eps=1.0)  # else the step is only a sign
    config = config.replace(weight_decay=0.2)
    learner = sac.learner(config, *two_motors())
    init, update = programs(learner)
    state = update(init(jax.random.key(0)))[0]
    # Critics that differ from their targets, and another temperature
    state = state.replace(
        target_params=jax.tree.map(lambda x: 1.3 * x + 0.05, state.target_params),
        log_temperature=jnp.float32(np.log(0.3)),
        opt_state=jax.tree.map(jnp.zeros_like, state.opt_state),
    )
    return config, state, *update(again(state))


def papers_step(config, state, replay):
    """The paper's step: each part by its own loss, with its own Adam; targets by their average;
    metrics."""
    _, _, _, _, draw_rng, action_rng = jax.random.split(state.rng, 6)
    buffer = parts.ReplayBuffer.of(config)
    draw = buffer.draw(replay, buffer.noise(draw_rng, (1, 1, config.batch_size))[0, 0])
    window = buffer.windows(replay.transitions, draw.index, config.gamma)
    noise = jax.random.normal(action_rng, (1, 1, 2, config.batch_size, 2))[0, 0]
    actor, critic, alpha = sac.Actor(config, 2), sac.Critic(config), 0.3
    value = lambda params, i, x, a: critic.apply(jax.tree.map(lambda p: p[i], params), x, a)
    x, next_x, params = window.observation, window.final_observation, state.policy.params

    next_action, next_log_prob = actor.apply(params, next_x).sample_and_log_prob_from(noise[1])
    lowest = jnp.stack([value(state.target_params, i, next_x, next_action) for i in range(3)])
    soft = lowest.min(0) - alpha * next_log_prob
    target = config.reward_scale * window.returns + window.discount * soft

    def critic_loss(critics):
        errors = [value(critics, i, x, window.action) - target for i in range(3)]
        return sum((error**2).mean() for error in errors)

    def actor_loss(params):
        action, log_prob = actor.apply(params, x).sample_and_log_prob_from(noise[0])
        values = jnp.stack([value(state.critic_params, i, x, action) for i in range(3)])
        return (alpha * log_prob - values.min(0)).mean()

    log_prob = actor.apply(params, x).sample_and_log_prob_from(noise[0])[1]
    temperature_loss = lambda log: jnp.exp(log) * (-log_prob - 2.0 * config.target_entropy).mean()

    def stepped(loss, params, weight_decay=config.weight_decay):
        adam = optax.adamw(config.learning_rate, eps=config.adam_eps, weight_decay=weight_decay)
        changes, _ = adam.update(jax.grad(loss)(params), adam.init(params), params)
        return optax.apply_updates(params, changes)

    critics = stepped(critic_loss, state.critic_params)
    moved = jax.tree.map(lambda t, c: 0.95 * t + 0.05 * c, state.target_params, critics)
    log_temperature = stepped(temperature_loss, state.log_temperature, 0.0)
    said = {
        "critic_loss": critic_loss(state.critic_params),
        "actor_loss": actor_loss(params),
        "entropy": -log_prob.mean(),
        "temperature": alpha,
    }
    return critics, stepped(actor_loss, params), moved, log_temperature, said


def test_a_gradient_step_is_the_papers(step):
    config, state, after, metrics = step
    expected = jax.jit(lambda *args: papers_step(config, *args))(again(state), after.replay)
    critics, params, moved, log_temperature, said = expected
    assert_close(after.critic_params, critics, rtol=1e-3, atol=2e-5)
    assert_close(after.policy.params, params, rtol=1e-3, atol=2e-5)
    assert_close(after.target_params, moved, rtol=1e-3, atol=2e-5)
    assert after.log_temperature == pytest.approx(float(log_temperature), rel=1e-4)
    for name, value in said.items():
        assert float(metrics[name].total) == pytest.approx(float(value), rel=1e-3), name


# --- gradient steps of REDQ and DroQ ----------------------------------------------------------


@pytest.fixture(scope="module")
def ensemble():
    """The states before and after an update of one round with two gradient steps, and the config.

    Targets have two of three critics, critics have dropout, and the actor learns in the second.
    """
    config = TINY.replace(train_every=16, learning_starts=0, anneal_lr=False, num_eval_episodes=0)
    config = config.replace(buffer_size=200, num_critics=3, target_critics=2, policy_every=2)
    config = config.replace(actor_value="mean", layer_norm=True, dropout=True, dropout_rate=0.3)
    config = config.replace(learning_rate=0.1, adam_eps=1.0)  # else the step is only a sign
    config = config.replace(weight_decay=0.2)
    init, update = programs(sac.learner(config, *two_motors()))
    state = update(init(jax.random.key(0)))[0]
    zeros = lambda tree: jax.tree.map(jnp.zeros_like, tree)
    state = state.replace(
        target_params=jax.tree.map(lambda x: 1.3 * x + 0.05, state.target_params),
        log_temperature=jnp.float32(np.log(0.3)),
        opt_state=zeros(state.opt_state),
        policy_opt_state=zeros(state.policy_opt_state),
    )
    return config, state, *update(again(state))


def ensembles_steps(config, state, replay):
    """The two gradient steps of `ensemble` by optax and the networks' own functions."""
    _, _, _, _, draw_rng, action_rng = jax.random.split(state.rng, 6)
    action_rng, subset_rng = jax.random.split(action_rng)
    action_rng, dropout_rng = jax.random.split(action_rng)
    dropout_rngs = jax.random.split(dropout_rng, 2)
    subsets = jnp.argsort(jax.random.uniform(subset_rng, (2, 3)))[:, :2]
    buffer = parts.ReplayBuffer.of(config)
    draws = buffer.noise(draw_rng, (1, 2, config.batch_size))[0]
    noises = jax.random.normal(action_rng, (1, 2, 2, config.batch_size, 2))[0]
    actor, critic, alpha = sac.Actor(config, 2), sac.Critic(config), 0.3
    adam = lambda decay: optax.adamw(config.learning_rate, eps=1.0, weight_decay=decay)
    params, policy, moved = state.critic_params, state.policy.params, state.target_params
    opt_state, losses = adam(0.2).init(params), []

    def values(params, which, x, action, keys):
        one = lambda i: jax.tree.map(lambda p: p[i], params)
        return jnp.stack([critic.apply(one(i), x, action, k) for i, k in zip(which, keys)])

    def stepped(loss, params, opt_state, decay=0.2):
        changes, opt_state = adam(decay).update(jax.grad(loss)(params), opt_state, params)
        return optax.apply_updates(params, changes), opt_state

    for step in range(2):
        window = buffer.windows(
            replay.transitions, buffer.draw(replay, draws[step]).index, config.gamma
        )
        of_target, of_critics, of_actor = jax.random.split(dropout_rngs[step], 3)
        own, to_three = jax.random.split(of_target, 2), jax.random.split(of_critics, 3)
        before, next_x = params, window.final_observation
        gaussian = actor.apply(policy, next_x)
        next_action, next_log_prob = gaussian.sample_and_log_prob_from(noises[step, 1])
        lowest = values(moved, subsets[step], next_x, next_action, own).min(0)
        target = 0.5 * window.returns + window.discount * (lowest - alpha * next_log_prob)

        def critic_loss(params, window=window, target=target, keys=to_three):
            found = values(params, range(3), window.observation, window.action, keys)
            return ((found - target) ** 2).mean(1).sum()

        losses.append(critic_loss(params))
        params, opt_state = stepped(critic_loss, params, opt_state)
        moved = jax.tree.map(lambda t, c: 0.95 * t + 0.05 * c, moved, params)

    x, keys = window.observation, jax.random.split(of_actor, 3)

    def actor_loss(policy):
        action, log_prob = actor.apply(policy, x).sample_and_log_prob_from(noises[1, 0])
        found = values(before, range(3), x, action, keys)
        return (alpha * log_prob - found.mean(0)).mean()

    log_prob = actor.apply(policy, x).sample_and_log_prob_from(noises[1, 0])[1]
    temperature_loss = lambda log: jnp.exp(log) * (-log_prob - 2.0 * config.target_entropy).mean()
    said = {"critic_loss": sum(losses), "actor_loss": actor_loss(policy)}
    said |= {"entropy": -log_prob.mean(), "temperature": 2 * alpha}
    after = stepped(actor_loss, policy, adam(0.2).init(policy))[0]
    log, start = state.log_temperature, adam(0.0).init(state.log_temperature)
    return params, after, moved, stepped(temperature_loss, log, start, 0.0)[0], said


def test_gradient_steps_of_an_ensemble_are_the_papers(ensemble):
    config, state, after, metrics = ensemble
    by_hand = jax.jit(lambda *args: ensembles_steps(config, *args))
    with jax.debug_key_reuse(False):  # a loss and its gradient have the same masks
        expected = by_hand(state, after.replay)
    critics, params, moved, log_temperature, said = expected
    assert_close(after.critic_params, critics, rtol=1e-3, atol=5e-5)
    assert_close(after.policy.params, params, rtol=1e-3, atol=5e-5)
    assert_close(after.target_params, moved, rtol=1e-3, atol=5e-5)
    assert after.log_temperature == pytest.approx(float(log_temperature), rel=1e-4)
    for name, value in said.items():
        assert float(metrics[name].total) == pytest.approx(float(value), rel=1e-3), name
    assert metrics["critic_loss"].weight == 2 and metrics["actor_loss"].weight == 1
    counts = [optax.tree.get(s, "count") for s in (after.opt_state, after.policy_opt_state)]
    assert counts == [2, 1]


def test_a_fixed_temperature_stays(case, slices):
    _, update = learner_of(case, learn_temperature=False)
    state, metrics = update(again(slices[0][0]).replace(log_temperature=jnp.float32(np.log(0.2))))
    assert float(state.log_temperature) == pytest.approx(np.log(0.2))
    assert metrics["actor_loss"].weight > 0


# --- network ----------------------------------------------------------------------------------


def test_critics_start_apart_and_heads_with_their_gains(slices):
    state, _ = slices[0]
    assert_apart(state.critic_params["params"])
    for name in ("mean_head", "std_head"):
        head = state.policy.params["params"][name]["kernel"]
        np.testing.assert_allclose(head.T @ head, 1e-4, rtol=1e-4)
    assert_same(state.target_params, state.critic_params)


def test_simba_learns_with_normalised_observations():
    config = TINY.replace(network="simba", normalize_obs=True)
    init, update = programs(sac.learner(config, *envs.make(TINY.env, max_steps=20)))
    state, metrics = update(init(jax.random.key(0)))
    assert np.isfinite(metrics["critic_loss"].total) and metrics["critic_loss"].weight == 22
    assert float(state.policy.obs_stats.count) == 32
    assert "LayerNorm_1" in state.policy.params["params"]["Torso_0"]


# --- probe tasks ------------------------------------------------------------------------------

PROBE = sac.Config(**PROBE, tau=0.05, initial_temperature=1e-2, learn_temperature=False)
CASE = Case(
    module=sac,
    tiny=TINY,
    metrics={"critic_loss", "actor_loss", "mean_value", "entropy", "temperature", "grad_norm"},
    pinned={
        "critic_loss": [139.013, 87.4857, 74.2172],
        "actor_loss": [0.788949, 0.496193, 0.322233],
        "entropy": [-0.00675653, 0.161609, 0.304284],
    },
    refused=(
        *REFUSED,
        (dict(updates_per_step=0), "updates_per_step=0"),
        (dict(num_critics=0), "num_critics=0: give a whole number, 1 or more"),
        (dict(target_critics=3), "target_critics=3 of num_critics=2: give 2 or fewer; 0 takes all"),
        (dict(target_critics=-1), "target_critics=-1: give a whole number, 0 or more"),
        (dict(actor_value="max"), "actor_value='max': give min or mean"),
        (dict(policy_every=0), "policy_every=0: give a whole number, 1 or more"),
        (dict(dropout_rate=1.0), r"dropout_rate=1.0: give a number in \[0, 1\)"),
        (
            dict(network="simba", critic_hidden_sizes=(8, 8), dropout=True),
            "dropout=True: simba has its own layers; network=mlp would do",
        ),
        (
            dict(network="simba", critic_hidden_sizes=(8, 8), layer_norm=True),
            "layer_norm=True: simba has its own layers; network=mlp would do",
        ),
        (dict(network="simba", critic_hidden_sizes=(8, 4)), "simba's blocks are one size"),
        (dict(network="simba", hidden_sizes=()), "hidden_sizes=.*: simba's blocks are one size"),
        TAKES_BOX,
    ),
    probe=PROBE,
    probes={"continuous": False},
    played=played,
    learns=("policy", "critic_params", "target_params", "log_temperature", "opt_state"),
    mean_action=mean_action,
    lowest_value=lowest_value,
    actor_state="policy_opt_state",
    swept={"dropout": True},  # else no rate would matter
    **OF_CASES,
)


def test_the_entropy_reaches_its_target():
    """On a bandit with a best action, the temperature brings it there."""
    config = PROBE.replace(learn_temperature=True, initial_temperature=0.1, target_entropy=-0.5)
    params = tasks.ProbeParams(task=tasks.ACTION, max_steps_in_episode=5)
    train = sac.make_train(config.replace(num_evals=4), tasks.Probe(True), params)
    _, metrics = train(jax.random.key(0))
    assert float(metrics["entropy"][-1]) == pytest.approx(-0.5, abs=0.1)
