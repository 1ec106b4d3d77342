"""CrossQ's gradient steps and batch renormalisation against NumPy, and the contract of the file."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import envs
from algorithms import crossq, parts
from tests.algorithms.cases import Case, again, assert_close, assert_same, programs
from tests.algorithms.test_actor_critics import (
    OF_CASES,
    OTHER,
    PROBE,
    REFUSED,
    SMALL,
    TAKES_BOX,
    TwoMotors,
    assert_apart,
    played,
    two_motors,
)

RENORM = dict(renorm_warmup=0.09, renorm_r_max=1.05, renorm_d_max=0.05)
TINY = crossq.Config(**SMALL, **RENORM, policy_every=2)


def learned(state):
    return state.policy.variables["params"]


def mean_action(config, state, x, size=1):
    return jnp.tanh(crossq.Actor(config, size).apply(state.policy.variables, x).mean)


def lowest_value(config, state, x, action):
    critics = jax.vmap(crossq.Critic(config).apply, (0, None, None))
    return critics(state.critics, x, action).min(0)


# --- batch renormalisation --------------------------------------------------------------------


def normed(config, x, moments, train, warm):
    """Features and new moments, with a scale of 2 and a bias of 1."""
    size = x.shape[1:]
    params = {"scale": np.full(size, 2.0, np.float32), "bias": np.ones(size, np.float32)}
    variables = {"params": params, "moments": moments}
    return crossq.BatchRenorm(config).apply(variables, x, train, warm, mutable="moments")


@pytest.fixture(scope="module")
def features():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 4)).astype(np.float32) * [0.2, 1.0, 3.0, 1.2] + [0.1, 4.0, -0.3, -5.0]
    moments = {"mean": np.array([0.0, 1.0, -0.5, 2.0]), "var": np.array([1.0, 1.1, 0.2, 2.0])}
    return jnp.asarray(x, jnp.float32), jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), moments)


def test_frozen_it_takes_the_running_moments(features):
    x, moments = features
    found, changed = normed(TINY, x, moments, False, True)
    expected = (x - moments["mean"]) / np.sqrt(moments["var"] + 1e-3) * 2.0 + 1.0
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert not changed or assert_same(changed["moments"], moments) is None


@pytest.mark.parametrize("warm", [False, True])
def test_in_training_it_is_ioffes(features, warm):
    x, moments = features
    config = TINY.replace(renorm_r_max=3.0, renorm_d_max=2.0, renorm_momentum=0.9)
    found, changed = normed(config, x, moments, True, warm)
    mean, std = x.mean(0), np.sqrt(x.var(0) + 1e-3)
    running = np.sqrt(moments["var"] + 1e-3)
    r, d = np.ones(4), np.zeros(4)
    if warm:
        r = np.clip(std / running, 1.0 / 3.0, 3.0)
        d = np.clip((mean - moments["mean"]) / running, -2.0, 2.0)
        assert (np.isclose(r, 3.0) | np.isclose(r, 1.0 / 3.0)).sum() == 2
        assert np.isclose(np.abs(d), 2.0).sum() == 2
    np.testing.assert_allclose(found, ((x - mean) / std * r + d) * 2.0 + 1.0, rtol=1e-4, atol=1e-4)
    expected = {
        "mean": 0.9 * moments["mean"] + 0.1 * mean,
        "var": 0.9 * moments["var"] + 0.1 * x.var(0),
    }
    assert_close(dict(changed["moments"]), expected, rtol=1e-5)


def test_no_gradient_goes_through_the_corrections(features):
    """Gradients do go through the batch's own moments: shifting all features changes nothing."""
    x, moments = features
    config = TINY.replace(renorm_r_max=3.0, renorm_d_max=20.0)
    weights = np.random.default_rng(1).normal(size=x.shape)
    total = lambda shift: (weights * normed(config, x + shift, moments, True, True)[0]).sum()
    assert float(jax.grad(total)(0.0)) == pytest.approx(0.0, abs=1e-3)


# --- gradient steps ---------------------------------------------------------------------------


class Fragile(TwoMotors):
    """An environment whose episode a fast turn ends."""

    def step_env(self, key, state, action, params):
        observation, state, reward, _, info = super().step_env(key, state, action, params)
        return observation, state, reward, observation[2] > 3.0, info


@pytest.fixture(scope="module")
def steps():
    """The states before and after an update of one round with two gradient steps, and the config.

    The first step uses plain batch normalisation, the second batch renormalisation.
    """
    config = TINY.replace(train_every=16, learning_starts=0, anneal_lr=False, num_eval_episodes=0)
    config = config.replace(buffer_size=200, num_critics=3, policy_every=2, renorm_warmup=0.6)
    config = config.replace(learning_rate=0.1, adam_eps=1.0)  # else the step is only a sign
    config = config.replace(weight_decay=0.2)
    learner = crossq.learner(config, *two_motors(Fragile))
    init, update = programs(learner)
    state = update(init(jax.random.key(0)))[0]
    state = state.replace(
        log_temperature=jnp.float32(np.log(0.3)),
        policy_opt_state=jax.tree.map(jnp.zeros_like, state.policy_opt_state),
        critic_opt_state=jax.tree.map(jnp.zeros_like, state.critic_opt_state),
    )
    state = update(again(state))[0]  # moments of their own; gradient steps 2 and 3 of the run
    return config, state, *update(again(state))


def by_hand(config, state, after, warm=True):
    """The two gradient steps of `steps` by optax and the networks' own functions."""
    temperature = jnp.exp(state.log_temperature)
    _, _, _, _, draw_rng, action_rng = jax.random.split(state.rng, 6)
    buffer, shape = parts.ReplayBuffer.of(config), (1, 2, config.batch_size)
    draws = buffer.noise(draw_rng, shape)[0]
    noises = jax.random.normal(action_rng, (1, 2, 2, config.batch_size, 2))[0]
    actor, critic = crossq.Actor(config, 2), crossq.Critic(config)
    # The temperature is a scalar and does not decay.
    decays = lambda params: jax.tree.map(lambda x: x.ndim > 0, params)
    adam = optax.adamw(
        config.learning_rate, 0.5, eps=config.adam_eps, weight_decay=0.2, mask=decays
    )
    pick = lambda tree, i: jax.tree.map(lambda x: x[i], tree)

    def stepped(loss, params, opt_state):
        grads = jax.grad(loss)(params)
        norms.append(optax.tree.norm(grads))
        changes, opt_state = adam.update(grads, opt_state, params)
        return optax.apply_updates(params, changes), opt_state

    def adam_of(chain, params):
        """optax's state for a tree, from a chain's whose Adam has one long vector."""
        flat, unravel = chain[0], jax.flatten_util.ravel_pytree(params)[1]
        start = adam.init(params)
        first = start[0]._replace(count=flat.count, mu=unravel(flat.mu), nu=unravel(flat.nu))
        return (first, *start[1:])

    params, moments = state.critics["params"], state.critics["moments"]
    opt_state, norms, losses, lowest = adam_of(state.critic_opt_state, params), [], [], []
    for noise, draw_noise in zip(noises, draws):
        index = buffer.draw(after.replay, draw_noise).index
        window = buffer.windows(after.replay.transitions, index, config.gamma)
        next_x = window.final_observation
        gaussian = actor.apply(state.policy.variables, next_x)
        next_action, next_log_prob = gaussian.sample_and_log_prob_from(noise[1])
        both = jnp.concatenate([window.observation, next_x])
        actions = jnp.concatenate([window.action, next_action])

        def values_of(params, moments=moments, both=both, actions=actions):
            one = lambda i: critic.apply(
                {"params": pick(params, i), "moments": pick(moments, i)},
                both,
                actions,
                True,
                warm,
                mutable="moments",
            )
            found = [one(i) for i in range(3)]
            return jnp.stack([v for v, _ in found]), [changed["moments"] for _, changed in found]

        values, changed = values_of(params)
        next_value = values[:, config.batch_size :].min(0) - temperature * next_log_prob
        target = 0.5 * window.returns + window.discount * next_value

        def critic_loss(params, target=target, values_of=values_of):
            values = values_of(params)[0][:, : config.batch_size]
            return ((values - target) ** 2).mean(1).sum()

        losses.append(critic_loss(params))
        lowest.append(values[:, : config.batch_size].min(0).mean())
        params, opt_state = stepped(critic_loss, params, opt_state)
        moments = jax.tree.map(lambda *x: jnp.stack(x), *changed)
    sums = {"critic_loss": sum(losses), "grad_norm": sum(norms), "mean_value": sum(lowest)}

    x, before = window.observation, state.policy.variables

    def of_actor(params):
        variables = {"params": params, "moments": before["moments"]}
        gaussian, changed = actor.apply(variables, x, True, warm, mutable="moments")
        return *gaussian.sample_and_log_prob_from(noise[0]), changed["moments"]

    def actor_loss(learned):
        action, log_prob, _ = of_actor(learned[0])
        lowest = jnp.stack(
            [
                critic.apply({"params": pick(params, i), "moments": pick(moments, i)}, x, action)
                for i in range(3)
            ]
        ).min(0)
        fixed = jax.lax.stop_gradient(log_prob)
        own = jnp.exp(learned[1]) * (-fixed - 2.0 * config.target_entropy).mean()
        return (temperature * log_prob - lowest).mean() + own

    both = before["params"], state.log_temperature
    learned, _ = stepped(actor_loss, both, adam_of(state.policy_opt_state, both))
    _, log_prob, changed = of_actor(before["params"])
    surplus = (-log_prob - 2.0 * config.target_entropy).mean()
    sums["actor_loss"] = actor_loss(both) - temperature * surplus
    sums |= {"entropy": -log_prob.mean(), "temperature": temperature}
    return {"params": params, "moments": moments}, (*learned, changed), sums


def test_gradient_steps_are_the_papers(steps):
    """The critics take two steps; after the second the actor and the temperature take one.

    The critics are frozen in it, with their new parameters.
    """
    config, state, after, metrics = steps
    critics, (actor, temperature, moments), sums = jax.jit(by_hand)(config, again(state), after)
    assert_close(after.critics["params"], critics["params"], rtol=2e-3, atol=5e-5)
    assert_close(after.critics["moments"], critics["moments"], rtol=2e-3, atol=5e-5)
    assert_close(after.policy.variables["params"], actor, rtol=2e-3, atol=5e-5)
    assert_close(after.policy.variables["moments"], moments, rtol=1e-3, atol=1e-5)
    assert float(after.log_temperature) == pytest.approx(float(temperature), rel=1e-3)
    for name, expected in sums.items():
        assert float(metrics[name].total) == pytest.approx(float(expected), rel=1e-3), name
    assert metrics["critic_loss"].weight == 2 and metrics["actor_loss"].weight == 1


def test_only_terminated_steps_have_no_bootstrap_value(steps):
    """Compared with the environment's own rule; a time limit ends episodes, too."""
    _, _, after, _ = steps
    seen = jax.tree.map(lambda x: np.asarray(x[:96]), after.replay.transitions)
    np.testing.assert_array_equal(seen.terminated, seen.final_observation[:, 2] > 3.0)
    assert seen.terminated.any() and (seen.done & ~seen.terminated).any()
    assert (seen.done | ~seen.terminated).all()


@pytest.fixture(scope="module")
def updated():
    """The state after an update at a fixed temperature, as a function of floats and of the update.

    It has 16 rounds of the run's 48, and 41 of these learn, the first update's last nine.
    """
    env, params = envs.make(TINY.env, max_steps=20)
    fixed = TINY.replace(learn_temperature=False, anneal_lr=False, learning_starts=16)

    @jax.jit
    def updated(floats, update):
        config = fixed.replace(**dict(initial_temperature=0.2) | floats)
        learner = crossq.learner(config, env, params)
        state = learner.init(jax.random.key(0)).replace(update=update)
        return learner.update(state)[0]

    return lambda update, **floats: updated(WARMING | floats, jnp.int32(update))


WARMING = {"renorm_warmup": 1.0, "renorm_r_max": 3.0, "renorm_d_max": 5.0}


def test_plain_batch_normalisation_ends_with_the_warm_up(updated):
    """After none, four or all of the rounds that learn."""
    states = [updated(0, renorm_warmup=warmup) for warmup in (0.0, 4 / 41, 1.0)]
    found = [jax.flatten_util.ravel_pytree(state.critics["params"])[0] for state in states]
    for i, j in ((0, 1), (1, 2), (0, 2)):
        assert not np.allclose(found[i], found[j])


def test_a_warm_up_is_a_share_of_the_rounds_that_learn(updated):
    """A warm-up of all rounds never ends, whatever the later limits are."""
    learned = lambda update, **floats: updated(update, **floats).critics["params"]
    other = dict(renorm_r_max=1.0, renorm_d_max=0.0)
    beyond, first = 3, 0
    assert_same(learned(beyond), learned(beyond, **other))
    with pytest.raises(AssertionError):
        assert_same(learned(beyond), learned(beyond, renorm_warmup=0.99))
    with pytest.raises(AssertionError):
        assert_same(learned(first), learned(first, renorm_warmup=7.5 / 41))
    assert_same(learned(first), learned(first, renorm_warmup=8.5 / 41))


def test_a_fixed_temperature_stays(updated):
    assert float(updated(0).log_temperature) == pytest.approx(np.log(0.2))


# --- network ----------------------------------------------------------------------------------


def test_networks_start_apart_with_their_gains_and_moments(slices):
    state, _ = slices[0]
    assert_apart(state.critics["params"])
    for name in ("mean_head", "std_head"):
        head = state.policy.variables["params"][name]["kernel"]
        np.testing.assert_allclose(head.T @ head, 1e-4, rtol=1e-4)
    for moments in (state.policy.variables["moments"], state.critics["moments"]):
        for path, x in jax.tree_util.tree_leaves_with_path(moments):
            assert (x == (1.0 if "'var'" in str(path) else 0.0)).all()
    norms = state.policy.variables["params"]["Torso_0"]
    assert sorted(name for name in norms if "Renorm" in name) == ["BatchRenorm_0", "BatchRenorm_1"]


def test_simba_adds_blocks_that_begin_with_a_renormalisation():
    """The renormalisation is frozen, with moments 0 and 1."""
    torso = crossq.Torso(TINY.replace(network="simba"), (4, 4))
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    variables = jax.tree.map(np.asarray, torso.init(jax.random.key(0), False, False, x))
    dense = lambda i, x: x @ variables["params"][f"Dense_{i}"]["kernel"]
    norm = lambda x: x / np.sqrt(1.001)
    expected = dense(0, norm(x))
    for outer, inner in ((1, 2), (3, 4)):
        expected = expected + dense(outer, np.maximum(dense(inner, norm(expected)), 0.0))
    found = torso.apply(variables, False, False, x)
    np.testing.assert_allclose(found, norm(expected), rtol=1e-4, atol=1e-5)


def test_simba_learns_with_normalised_observations():
    config = TINY.replace(network="simba", normalize_obs=True, critic_hidden_sizes=(8, 8))
    init, update = programs(crossq.learner(config, *envs.make(TINY.env, max_steps=20)))
    state, metrics = update(init(jax.random.key(0)))
    assert np.isfinite(metrics["critic_loss"].total) and metrics["critic_loss"].weight == 22
    assert float(state.policy.obs_stats.count) == 32
    assert sum("Renorm" in name for name in state.critics["params"]["Torso_0"]) == 4


# --- probe tasks ------------------------------------------------------------------------------

PROBE = crossq.Config(**PROBE, initial_temperature=1e-2, learn_temperature=False)
CASE = Case(
    module=crossq,
    tiny=TINY,
    metrics={"critic_loss", "actor_loss", "mean_value", "entropy", "temperature", "grad_norm"},
    pinned={
        "critic_loss": [157.406, 107.504, 78.2039],
        "actor_loss": [0.580316, 0.353763, 0.245512],
        "entropy": [-0.0985906, -0.196838, -0.0346832],
    },
    refused=(
        *REFUSED,
        (dict(policy_every=0), "policy_every=0"),
        (dict(batch_size=1), "batch_size=1: give 2 or more; batch norms need it"),
        (dict(num_critics=0), "num_critics=0: give a whole number, 1 or more"),
        TAKES_BOX,
    ),
    probe=PROBE,
    probes={"continuous": False},
    played=played,
    learns=("policy", "critics", "log_temperature", "policy_opt_state", "critic_opt_state"),
    mean_action=mean_action,
    lowest_value=lowest_value,
    learned=learned,
    actor_state="policy_opt_state",
    **OF_CASES | {"other": {**OTHER, "renorm_r_max": 1.5}},
)
