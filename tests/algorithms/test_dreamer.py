"""DreamerV3: formulas against NumPy, a gradient step against a plain loop, and the contract."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import dreamer, parts
from algorithms.dreamer import World
from algorithms.parts import laprop, training
from envs import loops
from tests import probe as tasks
from tests.algorithms.cases import EVALUATION, Case, again, assert_same, programs
from tests.algorithms.parts.test_records import plain_records
from tests.algorithms.test_probes import play_probes
from tests.conftest import FUSED_AS_FOR_USERS

TINY = dreamer.Config(
    total_timesteps=3 * 32,
    num_envs=2,
    train_every=4,
    updates_per_step=2,
    buffer_size=60,
    batch_size=3,
    sequence_length=6,
    learning_starts=40,
    imagine_steps=3,
    learning_rate=1e-3,
    warmup_steps=4.0,
    hidden_size=8,
    memory_size=8,
    blocks=2,
    latents=3,
    classes=4,
    layers=1,
    num_bins=11,
    activation="tanh",
    num_evals=3,
    num_eval_episodes=2,
)
MODULES = ("encoder", "core", "posterior", "prior", "decoder", "reward", "continuation")
MODULES += ("actor", "critic")


# --- formulas ---------------------------------------------------------------------------------


def softmax(x):
    e = np.exp(np.asarray(x, float) - np.max(x, -1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_latents_have_a_share_of_uniform_probabilities():
    logits = np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32)
    expected = 0.9 * softmax(logits) + 0.1 / 4
    np.testing.assert_allclose(dreamer.mixed(logits, 0.1), expected, rtol=1e-5)
    assert dreamer.mixed(jnp.array([100.0, 0.0]), 0.01)[1] == np.float32(0.005)


def test_latents_are_drawn_by_their_probabilities():
    probs = np.random.default_rng(0).dirichlet(np.ones(4), size=(3,)).astype(np.float32)
    noise = np.linspace(0.0, 1.0, 2000, endpoint=False, dtype=np.float32)[:, None]
    z = dreamer.sample_latents(jnp.broadcast_to(probs, (2000, 3, 4)), jnp.tile(noise, 3))
    np.testing.assert_allclose(z.mean(0), probs, atol=2e-3)
    expected = (np.cumsum(probs, -1)[None, :, :-1] <= noise[..., None]).sum(-1)
    np.testing.assert_array_equal(z.argmax(-1), expected)
    assert set(np.unique(z)) == {0.0, 1.0}
    np.testing.assert_array_equal(dreamer.sample_latents(probs, None).argmax(-1), probs.argmax(-1))


def test_the_gradient_of_latents_is_that_of_their_probabilities():
    logits = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    through = lambda f: jax.jacrev(lambda x: f(dreamer.mixed(x, 0.1)))(logits)
    found = through(lambda p: dreamer.sample_latents(p, jnp.array([0.1, 0.5, 0.9])))
    np.testing.assert_allclose(found, through(lambda p: p), rtol=1e-6)


def test_divergence_is_the_sum_over_latents():
    p, q = np.random.default_rng(0).dirichlet(np.ones(4), size=(2, 5, 3)).astype(np.float32)
    expected = (p.astype(float) * np.log(p.astype(float) / q)).sum((1, 2))
    np.testing.assert_allclose(dreamer.divergence(p, q), expected, rtol=1e-4)


def plain_returns(rewards, continues, traces, values):
    returns, later = [], values[-1]
    for t in reversed(range(1, len(rewards))):
        later = rewards[t] + continues[t] * ((1.0 - traces[t]) * values[t] + traces[t] * later)
        returns.insert(0, later)
    return jnp.stack(returns)


def test_lambda_returns_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(2, 6, 5)).astype(np.float32)
    continues, traces = rng.random((2, 6, 5)).astype(np.float32)
    found = dreamer.lambda_returns(rewards, continues, traces, values)
    expected = plain_returns(rewards, continues, traces, values)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    ones = np.ones((6, 1), np.float32)
    total = dreamer.lambda_returns(ones, 0.9 * ones, ones, 0.0 * ones)[0]
    np.testing.assert_allclose(total, sum(0.9**i for i in range(5)), rtol=1e-6)


def test_percentiles_of_returns_are_a_running_mean_from_zero():
    returns = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
    old = jnp.array([-1.0, 2.0])
    for before in (jnp.zeros(2), old):
        expected = 0.99 * before + 0.01 * np.percentile(returns, [5.0, 95.0])
        np.testing.assert_allclose(dreamer.percentiles(TINY, before, returns), expected, rtol=1e-4)


def test_continuous_actions_are_bounded_normals():
    rng = np.random.default_rng(0)
    numbers = 3.0 * rng.normal(size=(5, 4)).astype(np.float32)
    action = rng.normal(size=(5, 2)).astype(np.float32)
    found = dreamer.bounded_normal(numbers, 0.1, 1.0)
    mean, std = np.tanh(numbers[:, :2]), 0.9 / (1.0 + np.exp(-(numbers[:, 2:] + 2.0))) + 0.1
    log_prob = -0.5 * ((action - mean) / std) ** 2 - np.log(std) - 0.5 * math.log(2.0 * math.pi)
    np.testing.assert_allclose(found.log_prob(action), log_prob.sum(1), rtol=1e-4)
    entropy = 0.5 * np.log(2.0 * math.pi * math.e * std**2)
    np.testing.assert_allclose(found.entropy(), entropy.sum(1), rtol=1e-4)
    np.testing.assert_allclose(found.mode(), mean, rtol=1e-5)
    other = dreamer.bounded_normal(numbers, 0.2, 2.0)
    np.testing.assert_allclose(jnp.exp(other.log_std), 2.0 * std, rtol=1e-5)


def test_the_warm_up_is_linear_from_zero():
    found = [float(dreamer.warm_up(jnp.float32(n), 1000.0)) for n in (0, 500, 1000, 2000)]
    np.testing.assert_allclose(found, [0.0, 0.5, 1.0, 1.0])
    assert dreamer.warm_up(jnp.float32(0.0), 0.0) == 1.0


def test_the_actor_s_loss():
    log_prob, entropy, advantages, weights = np.random.default_rng(0).normal(size=(4, 3, 5))
    found = dreamer.policy_loss(log_prob, entropy, advantages, weights, 0.1)
    expected = -np.mean(weights * (log_prob * advantages + 0.1 * entropy))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_block_gru_is_a_gru_of_each_block(blocks):
    config = TINY.replace(blocks=blocks)
    rng = np.random.default_rng(0)
    h, z, action = (rng.normal(size=(5, n)).astype(np.float32) for n in (8, 12, 2))
    action *= 2.0
    gru = dreamer.BlockGRU(config)
    params = jax.jit(gru.init)(jax.random.key(0), h, z, action)
    params = jax.tree.map(lambda x: x + 0.3 * rng.normal(size=x.shape).astype(np.float32), params)
    p = jax.tree.map(lambda x: np.asarray(x, float), params["params"])
    norm = lambda x, scale: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-4) * scale
    sigmoid = lambda x: 1.0 / (1.0 + np.exp(-x))

    def embed(i, x):
        layer = p[f"NormedLayers_{i}"]
        dense = layer["Dense_0"]
        return np.tanh(norm(x @ dense["kernel"] + dense["bias"], layer["RMSNorm_0"]["scale"]))

    small = np.where(np.abs(action) > 1.0, np.sign(action), action)
    shared = np.concatenate([embed(i, x) for i, x in enumerate((h, z, small))], -1)
    of_block, size = np.split(h, blocks, -1), 8 // blocks
    first, second = p["BlockDense_0"], p["BlockDense_1"]
    x = [np.concatenate([of_block[i], shared], -1) @ first["kernel"][i] for i in range(blocks)]
    x = np.tanh(norm(np.concatenate(x, -1) + first["bias"], p["RMSNorm_0"]["scale"]))
    new = []
    for i, own in enumerate(np.split(x, blocks, -1)):
        gates = own @ second["kernel"][i] + second["bias"].reshape(blocks, -1)[i]
        reset, candidate, update = np.split(gates, 3, -1)
        assert reset.shape[-1] == size
        update = sigmoid(update - 1.0)
        candidate = np.tanh(sigmoid(reset) * candidate)
        new.append(update * candidate + (1.0 - update) * of_block[i])
    found = jax.jit(gru.apply)(params, h, z, action)
    np.testing.assert_allclose(found, np.concatenate(new, -1), rtol=1e-4, atol=1e-5)


# --- the model --------------------------------------------------------------------------------

STEPS, BATCH = 5, 2


@functools.cache
def model_and_params(**changes):
    """A model of a probe task, with parameters that tell all inputs apart."""
    model = dreamer.Model(TINY.replace(**changes), tasks.Recall(), tasks.RecallParams())
    start = jax.jit(lambda key: model.network.init(key, jnp.zeros((1, 2)), model.fresh(1)))
    noise = np.random.default_rng(1)
    jitter = lambda x: 2.0 * x + 0.3 * noise.normal(size=x.shape).astype(np.float32)
    return model, jax.tree.map(jitter, start(jax.random.key(0)))


def random_inputs(model, first):
    """A World, records whose `first` are given, actions and noise."""
    rng = np.random.default_rng(2)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
    z = np.eye(4, dtype=np.float32)[rng.integers(4, size=(BATCH, 3))]
    world = World(normal(BATCH, 8), z, normal(BATCH, model.space.size))
    flags = np.broadcast_to(np.asarray(first)[:, None], (STEPS, BATCH))
    last = np.roll(flags, -1, 0)
    last[-1] = False
    records = parts.Records(
        row=np.zeros((STEPS, BATCH), np.int32),
        observation=normal(STEPS, BATCH, 2),
        reward=normal(STEPS, BATCH),
        first=flags,
        last=last,
        terminated=last & (rng.random((STEPS, BATCH)) < 0.5),
        action=None,
    )
    noise = rng.random((STEPS, BATCH, 3), dtype=np.float32)
    return world, records, normal(STEPS, BATCH, model.space.size), noise


def test_a_memory_knows_the_actions_before_it_in_its_own_episode():
    """And nothing else: not its own action, and nothing from before the episode."""
    model, params = model_and_params()
    world, records, action, noise = random_inputs(model, [False, False, True, False, False])

    def memories(world_h, action, observation):
        start, seen = world._replace(h=world_h), records._replace(observation=observation)
        return model.posteriors(params, start, seen, action, noise)[0].h[:, 0].sum(-1)

    inputs = world.h, action, records.observation
    of_world, of_action, of_seen = jax.jit(jax.jacrev(memories, (0, 1, 2)))(*inputs)
    influence = lambda x: np.abs(x).sum(-1) > 0  # (step of h, step of the input)
    np.testing.assert_array_equal(influence(of_world[:, 0]), [True, True, False, False, False])
    # action[t] is that of the record before t, so h_t has seen it; an episode's first has not
    expected = np.tril(np.ones((5, 5), bool))
    expected[:, 2], expected[2:, :3] = False, False
    np.testing.assert_array_equal(influence(of_action[:, :, 0]), expected)
    expected = np.tril(np.ones((5, 5), bool), -1)
    expected[2:, :2] = False
    np.testing.assert_array_equal(influence(of_seen[:, :, 0]), expected)
    assert not np.abs(of_action[:, :, 1]).any()  # of the other sequence


LOSSES = ("reconstruction", "reward", "continue", "dynamics", "representation", "policy", "value")
LOSSES += ("replay_value",)


@functools.cache
def gradients():
    """{loss: value} and {loss: modules that it has gradients of}, as a function of free_nats."""
    _, params = model_and_params()
    changed = lambda free_nats: TINY.replace(free_nats=free_nats)
    model = dreamer.Model(TINY, tasks.Recall(), tasks.RecallParams())
    world, records, action, noise = random_inputs(model, [False, False, True, False, False])
    slow = params["params"]["critic"]

    def losses(params):
        worlds, posterior = model.posteriors(params, world, records, action, noise)
        found, _ = model.world_losses(params, worlds, posterior, records)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), dreamer.stop(worlds))
        imagined = dreamer.stop(model.imagined(dreamer.stop(params), flat, jax.random.key(3)))
        more, _, _, returns = model.behaviour_losses(params, slow, jnp.zeros(2), *imagined)
        x, boot = dreamer.feature_vector(worlds), returns[0].reshape(STEPS, BATCH)
        found |= more | {"replay_value": model.replay_value_loss(params, slow, x, records, boot)}
        return jnp.stack([found[name] for name in LOSSES])

    @jax.jit
    def each(params, free_nats):
        model.config = changed(free_nats)
        values, pull = jax.vjp(losses, params)
        return values, jax.vmap(pull)(jnp.eye(len(LOSSES)))[0]

    return lambda free_nats: routes_of(*each(params, free_nats))


def routes_of(values, grads):
    sizes = {
        module: jax.tree.map(lambda x: np.abs(x).reshape(len(LOSSES), -1).max(1), tree)
        for module, tree in grads["params"].items()
    }
    sizes = {module: np.max(jax.tree.leaves(tree), 0) for module, tree in sizes.items()}
    routes = {
        name: {module for module in MODULES if sizes[module][i] > 0}
        for i, name in enumerate(LOSSES)
    }
    return dict(zip(LOSSES, np.asarray(values), strict=True)), routes


def test_gradients_reach_the_modules_that_they_should():
    _, routes = gradients()(0.0)
    world = {"encoder", "core", "posterior"}
    assert routes == {
        "reconstruction": world | {"decoder"},
        "reward": world | {"reward"},
        "continue": world | {"continuation"},
        "dynamics": world | {"prior"},
        "representation": world,
        "policy": {"actor"},
        "value": {"critic"},
        "replay_value": world | {"critic"},
    }


def test_divergences_below_the_free_nats_have_no_gradient():
    values, routes = gradients()(50.0)
    assert values["dynamics"] == values["representation"] == 50.0
    assert not routes["dynamics"] and not routes["representation"]


def test_free_nats_count_for_each_step():
    """Half of the divergences are below them."""
    model, params = model_and_params(free_nats=0.0)
    world, records, action, noise = random_inputs(model, [False] * STEPS)
    worlds, posterior = jax.jit(model.posteriors)(params, world, records, action, noise)
    each = dreamer.divergence(posterior, model.latents(params, "prior", worlds.h))
    free_nats = float(np.median(each))
    model.config = model.config.replace(free_nats=free_nats)
    losses, _ = model.world_losses(params, worlds, posterior, records)
    expected = np.maximum(each, free_nats).mean()
    assert expected > 1.001 * max(each.mean(), free_nats)
    for name in ("dynamics", "representation"):
        np.testing.assert_allclose(losses[name], expected, rtol=1e-5)


def test_dynamics_and_representation_loss_stop_at_the_other_s_latents():
    """With equal memories, the first one moves the prior alone, and the other one the posterior."""
    model, params = model_and_params(free_nats=0.0)
    world, records, action, noise = random_inputs(model, [False] * STEPS)

    @jax.jit
    def slopes(params):
        worlds, posterior = model.posteriors(params, world, records, action, noise)
        losses = lambda *given: model.world_losses(given[0], worlds, given[1], records)[0]
        both = lambda *given: jnp.stack([losses(*given)[name] for name in LOSSES[3:5]])
        of_params, of_posterior = jax.jacrev(both, (0, 1))(params, posterior)
        size = lambda tree: sum(jnp.abs(x).reshape(2, -1).sum(1) for x in jax.tree.leaves(tree))
        return size(of_params["params"]["prior"]), size(of_posterior)

    of_prior, of_posterior = slopes(params)
    assert of_prior[0] > 0 and of_prior[1] == 0
    assert of_posterior[0] == 0 and of_posterior[1] > 0


def test_rare_actions_keep_a_share_of_the_probability():
    model, params = model_and_params()
    sure = jax.tree.map(jnp.zeros_like, params)
    sure["params"]["actor"]["head"]["bias"] = jnp.array([100.0, 0.0])
    x = jnp.ones((1, 20))
    log_prob = jax.jit(lambda params: model.actions(params, x).log_prob(jnp.array([1])))(sure)
    np.testing.assert_allclose(log_prob, math.log(0.005), rtol=1e-5)
    grad = jax.jit(jax.grad(lambda params: model.actions(params, x).entropy().sum()))(sure)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(grad))
    zero = dreamer.Model(TINY.replace(actor_unimix=0.0), tasks.Recall(), tasks.RecallParams())
    both = jax.jit(lambda params: (zero(params, "actor", x), zero.actions(params, x).probs))
    numbers, probs = both(params)
    np.testing.assert_allclose(probs, softmax(numbers), rtol=1e-5)


def test_observations_are_numbers_bits_or_pixels():
    model, _ = model_and_params()
    x = np.array([[0.5, -20.0]], np.float32)
    predicted = np.array([[0.3, -0.8]], np.float32)
    symlog = np.sign(x) * np.log1p(np.abs(x))
    np.testing.assert_allclose(model.numbers(x), symlog, rtol=1e-6)
    found = model.reconstruction_loss(predicted, x)
    np.testing.assert_allclose(found, ((predicted - symlog) ** 2).sum(1), rtol=1e-5)
    bits = dreamer.Model(TINY.replace(reconstruction="bits"), tasks.Recall(), tasks.RecallParams())
    p = 1.0 / (1.0 + np.exp(-predicted))
    x = np.array([[True, False]])
    found = bits.reconstruction_loss(predicted, x)
    np.testing.assert_allclose(found, -np.log(p[:, 0]) - np.log(1.0 - p[:, 1]), rtol=1e-5)
    x = np.array([[51, 255]], np.uint8)
    for one in (model, bits):
        found = one.reconstruction_loss(predicted, x)
        np.testing.assert_allclose(found, ((p - x / 255.0) ** 2).sum(1), rtol=1e-5)


def test_continuous_actions_are_stored_unclipped_and_played_clipped():
    env = tasks.Recall(True)
    model = dreamer.Model(TINY, env, env.default_params)
    action = jnp.array([[-3.0], [0.25]])
    np.testing.assert_array_equal(model.vector(action), action)
    np.testing.assert_allclose(model.space.rescale(action), [[-1.0], [0.25]])


# --- one gradient step ------------------------------------------------------------------------

# An update is a round of sixteen steps and a gradient step. Episodes have at most five steps.
ONE = TINY.replace(
    total_timesteps=32 * 10,
    train_every=16,
    updates_per_step=1,
    buffer_size=2 * 64,
    batch_size=2,
    sequence_length=5,
    imagine_steps=2,
    online_queue=False,
    learning_starts=2 * 48,
    warmup_steps=0.0,
    learning_rate=0.01,
    return_limit=0.1,
    ent_coef=0.1,
    slow_coef=0.5,
    tau=0.25,
    free_nats=0.05,
    gamma=0.9,
    adam_eps=1e-8,
)


@functools.cache
def one():
    """The learner's first state and update, as functions of an episode's length and limit too."""
    learner = lambda params: dreamer.learner(ONE, tasks.Recall(), params)
    strong = lambda x: x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x.astype(x.dtype)
    between = lambda state: jax.tree.map(strong, training.between_updates(state))

    def update(params, state):
        state, metrics = learner(params).update(state)
        return between(state), metrics

    init = lambda params: between(learner(params).init(jax.random.key(0)))
    return jax.jit(init), jax.jit(update)


def params_of(length, limit):
    return tasks.RecallParams(task=tasks.CLOCK, length=length, max_steps_in_episode=limit)


ENDS = {"terminated": (5, 99), "truncated": (99, 4)}


@functools.cache
def played(ends):
    """States of some updates, in a world in which episodes terminate or are cut, and metrics."""
    init, update = one()
    world = params_of(*ENDS[ends])
    start = init(world)
    noise = np.random.default_rng(3)
    jitter = lambda x: x + 0.3 * noise.normal(size=x.shape).astype(np.float32)
    params, slow = jax.tree.map(jitter, (start.policy.params, start.slow_params))
    states = [start.replace(policy=start.policy.replace(params=params), slow_params=slow)]
    rows = [{}]
    for i in range(3):  # the third one learns
        before = states[-1] if i < 2 else states[-1].replace(rng=key_of_old_windows())
        states[-1] = before
        state, metrics = update(world, again(before))
        states.append(state)
        rows.append(metrics)
    return states, rows


def draws_of(rng):
    """Windows and a key of an update's gradient step, as `update` draws them."""
    draw_rng, seed_rng = jax.random.split(jax.random.clone(rng), 7)[5:]
    buffer, _ = dreamer.make_buffer(ONE, tasks.Recall(), tasks.RecallParams())
    return buffer.noise(draw_rng, (1, ONE.batch_size))[0], jax.random.key(
        jax.random.bits(seed_rng, (1,))[0]
    )


def key_of_old_windows():
    """A key whose windows lie in the first two updates of the three that are there."""
    for seed in range(100):
        windows = np.asarray(draws_of(jax.random.key(seed))[0]) % (2 * 48 - 2 * 5)
        if (windows + 2 * 5 < 2 * 32).all():
            return jax.random.key(seed)
    raise AssertionError("no key")


@pytest.fixture(params=ENDS)
def learned(request):
    """States before and after the first gradient step, its metrics, and its random numbers."""
    states, rows = played(request.param)
    before, after = states[2:4]
    windows, rng = draws_of(before.rng)
    return before, after, rows[3], np.asarray(windows) % (2 * 48 - 2 * 5), rng


def by_hand(before, after, index):
    """Records from a plain loop over the rows, with leading axes (records, sequences)."""
    steps = after.replay.transitions.steps  # a gradient step changes the latents alone
    found = [plain_records(steps, start + 2 * np.arange(6))[:6] for start in index]
    stack = lambda name: np.stack([[one[name] for one in part] for part in found], 1)
    names = ("row", "observation", "reward", "first", "last", "terminated", "action")
    return {name: stack(name) for name in names}


def plain_loss(params, model, before, records, rng):
    """The sum of all losses, one record and one imagined step after another."""
    c = ONE
    noise_rng, imagine_rng = jax.random.split(jax.random.clone(rng))
    noise = jax.random.uniform(noise_rng, (5, 2, 3))
    rows, stop = before.replay.transitions, jax.lax.stop_gradient
    frozen, start = stop(params), records["row"][0]
    h, z = rows.h[start], jax.nn.one_hot(rows.z[start], 4)
    actions = jax.nn.one_hot(records["action"], 2)
    losses, worlds = dict.fromkeys(LOSSES, 0.0), []
    shape = lambda x: x.reshape(2, 3, 4)
    for t in range(1, 6):
        keep = 1.0 - records["first"][t][:, None]
        action = actions[t - 1] * (1.0 - records["last"][t - 1][:, None])
        h = model(params, "core", h * keep, z.reshape(2, -1) * keep, action * keep)
        tokens = model(params, "encoder", parts.symlog(records["observation"][t]))
        logits = model(params, "posterior", jnp.concatenate([h, tokens], -1))
        post = 0.99 * jax.nn.softmax(shape(logits)) + 0.01 / 4
        prior = 0.99 * jax.nn.softmax(shape(model(params, "prior", h))) + 0.01 / 4
        index = (jnp.cumsum(post, -1)[..., :-1] <= noise[t - 1][..., None]).sum(-1)
        z = jax.nn.one_hot(index, 4) + post - stop(post)
        x = jnp.concatenate([h, z.reshape(2, -1)], -1)
        worlds.append((h, z, x))
        kl = lambda p, q: (p * jnp.log(p / q)).sum((1, 2))
        target = 0.9 * (1.0 - records["terminated"][t])
        continues = jax.nn.sigmoid(model(params, "continuation", x)[:, 0])
        terms = {
            "reconstruction": jnp.square(
                model(params, "decoder", x) - parts.symlog(records["observation"][t])
            ).sum(-1),
            "reward": model.bins.cross_entropy(model(params, "reward", x), records["reward"][t]),
            "continue": -target * jnp.log(continues) - (1.0 - target) * jnp.log(1.0 - continues),
            "dynamics": jnp.maximum(kl(stop(post), prior), c.free_nats),
            "representation": jnp.maximum(kl(post, stop(prior)), c.free_nats),
        }
        for name, value in terms.items():
            losses[name] += value.mean() / 5
    # Imagination, from all states in the order of time
    latent_rng, action_rng = jax.random.split(imagine_rng)
    latents = jax.random.uniform(latent_rng, (2, 10, 3))
    gumbel = model.space.noise(action_rng, (2, 10))
    h, z = (stop(jnp.concatenate([one[i] for one in worlds])) for i in (0, 1))
    xs, taken = [], []
    for t in range(2):
        xs.append(jnp.concatenate([h, z.reshape(10, -1)], -1))
        probs = 0.99 * jax.nn.softmax(model(frozen, "actor", xs[-1])) + 0.01 / 2
        taken.append(jnp.argmax(jnp.log(probs) + gumbel[t], -1))
        h = model(frozen, "core", h, z.reshape(10, -1), jax.nn.one_hot(taken[-1], 2))
        prior = model(frozen, "prior", h).reshape(10, 3, 4)
        prior = 0.99 * jax.nn.softmax(prior) + 0.01 / 4
        index = (jnp.cumsum(prior, -1)[..., :-1] <= latents[t][..., None]).sum(-1)
        z = jax.nn.one_hot(index, 4)
    xs.append(jnp.concatenate([h, z.reshape(10, -1)], -1))
    of = lambda name, x: model.bins.mean(model(frozen, name, x))
    of_slow = {"params": {"critic": before.slow_params}}
    slow_logits = lambda x: model(of_slow, "critic", x)
    slow = lambda x: stop(model.bins.mean(slow_logits(x)))
    values, rewards = [of("critic", x) for x in xs], [of("reward", x) for x in xs]
    continues = [jax.nn.sigmoid(model(frozen, "continuation", x)[:, 0]) for x in xs]
    traces = np.full((3, 1), 0.95)
    returns = plain_returns(rewards, continues, traces, values)
    range_ = 0.99 * before.return_range + 0.01 * jnp.percentile(
        stop(returns), jnp.array([5.0, 95.0])
    )
    scale = jnp.maximum(range_[1] - range_[0], c.return_limit)
    weight = jnp.ones(10)
    for t in range(2):
        weight = weight * continues[t]
        probs = 0.99 * jax.nn.softmax(model(params, "actor", xs[t])) + 0.01 / 2
        chosen = jnp.take_along_axis(probs, taken[t][:, None], 1)[:, 0]
        entropy = -(probs * jnp.log(probs)).sum(-1)
        advantage = (returns[t] - values[t]) / scale
        of_actor = -jnp.log(chosen) * advantage - c.ent_coef * entropy
        logits = model(params, "critic", xs[t])
        of_critic = model.bins.cross_entropy(logits, returns[t])
        of_critic += c.slow_coef * model.bins.cross_entropy(logits, slow(xs[t]))
        losses["policy"] += (weight * of_actor).mean() / 2
        losses["value"] += (weight * of_critic).mean() / 2
    boot = returns[0].reshape(5, 2)
    last, ended = records["last"][1:], records["terminated"][1:]
    replayed = plain_returns(records["reward"][1:], 0.9 * (1.0 - ended), 0.95 * (1.0 - last), boot)
    for t in range(4):
        x = worlds[t][2]
        logits = model(params, "critic", x)
        loss = model.bins.cross_entropy(logits, replayed[t])
        loss += c.slow_coef * model.bins.cross_entropy(logits, slow(x))
        losses["replay_value"] += ((1.0 - last[t]) * loss).mean() / 4
    scales = dict.fromkeys(LOSSES, 1.0) | {"representation": 0.1, "replay_value": 0.3}
    total = sum(scales[name] * loss for name, loss in losses.items())
    return total, (losses, worlds, range_)


@functools.cache
def plain_gradients():
    model = dreamer.Model(ONE, tasks.Recall(), tasks.RecallParams())

    def step(params, before, records, rng):
        of = functools.partial(plain_loss, model=model, before=before, records=records, rng=rng)
        return jax.value_and_grad(of, has_aux=True)(params)

    return jax.jit(step)


def test_a_gradient_step_is_that_of_plain_loops(learned):
    """Losses, gradients as LaProp keeps them, the slow critic, percentiles and written latents."""
    before, after, metrics, index, rng = learned
    records = by_hand(before, after, index)
    assert records["last"].any() and records["first"].any()
    lean = before.replace(env_state=None, opt_state=None, episodes=None, rng=None, eval_rng=None)
    lean = lean.replace(replay=before.replay.replace(transitions=before.replay.transitions))
    found = plain_gradients()(before.policy.params, lean, records, rng)
    (_, (losses, worlds, returns)), grads = found
    for name in LOSSES:
        total, weight = metrics[f"{name}_loss"]
        np.testing.assert_allclose(total / weight, losses[name], 2e-4, 1e-6, err_msg=name)
    np.testing.assert_allclose(after.return_range, returns, rtol=1e-4, atol=1e-6)
    clip = parts.clip_by_tensor(0.3, 1e-3)
    clipped, _ = clip.update(grads, clip.init(None), before.policy.params)
    squares = jax.flatten_util.ravel_pytree(clipped)[0] ** 2
    kept = next(x for x in jax.tree.leaves(after.opt_state, is_leaf=is_laprop) if is_laprop(x))
    size = np.sqrt(np.asarray(kept.squares) / (1.0 - 0.999)) / laprop.SCALE
    np.testing.assert_allclose(size, np.sqrt(squares), rtol=2e-3, atol=2e-6)
    sign = np.sign(np.asarray(kept.momentum))
    moved = jax.tree.map(jnp.subtract, before.policy.params, after.policy.params)
    moved = np.asarray(jax.flatten_util.ravel_pytree(moved)[0])
    there = size > 1e-5
    raw = np.asarray(jax.flatten_util.ravel_pytree(clipped)[0])
    np.testing.assert_array_equal(sign[there], np.sign(raw)[there])
    np.testing.assert_allclose(moved[there], 0.01 * np.sign(raw)[there], rtol=2e-2, atol=1e-6)
    critic = after.policy.params["params"]["critic"]
    expected = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * new, before.slow_params, critic)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, 1e-5, 1e-6), after.slow_params, expected
    )
    # Latents: those of the records that have rows, and no others
    rows, old = after.replay.transitions, before.replay.transitions
    expected_h, expected_z = np.array(old.h[:64]), np.array(old.z[:64])
    written = set()
    for t, (h, z, _) in enumerate(worlds, 1):
        for i in range(2):
            if not records["last"][t, i]:
                place = int(records["row"][t, i])
                written.add(place)
                if not np.allclose(rows.h[place], h[i], 1e-3, 1e-4):  # another copy of the row
                    continue
                expected_h[place], expected_z[place] = h[i], z[i].argmax(-1)
    changed = np.flatnonzero((np.asarray(rows.h[:64]) != np.asarray(old.h[:64])).any(-1))
    assert len(changed) >= 3 and {*changed} <= written  # the first ones may have the same latents
    np.testing.assert_allclose(rows.h[:64], expected_h, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(rows.z[:64], expected_z)


def is_laprop(x):
    return isinstance(x, laprop.LaPropState)


@pytest.mark.parametrize("ends", ENDS)
def test_nothing_changes_before_learning_starts(ends):
    """The buffer neither, but for new rows."""
    states, rows = played(ends)
    for name in ("policy", "slow_params", "return_range", "opt_state", "taken"):
        assert_same(getattr(states[2], name), getattr(states[0], name))
    old, new = (state.replay.transitions for state in states[1:3])
    assert_same(jax.tree.map(lambda x: x[:32], old), jax.tree.map(lambda x: x[:32], new))
    assert rows[2]["kl"].weight == 0


@pytest.mark.slow  # a CPU leaves out the gradient steps before, so that this is a second program
def test_accelerators_write_no_latents_before_learning_starts(monkeypatch):
    """They compute these gradient steps, and must drop the latents. Here they run on the CPU."""
    monkeypatch.setattr(loops, "platform", lambda: "gpu")
    init, update = programs(dreamer.learner(ONE, tasks.Recall(), params_of(5, 99)))
    first, _ = update(init(jax.random.key(0)))
    second, _ = update(again(first))
    old, new = first.replay.transitions, second.replay.transitions
    assert_same(jax.tree.map(lambda x: x[:32], old), jax.tree.map(lambda x: x[:32], new))
    assert np.abs(new.h[32:64]).any()


@pytest.mark.parametrize("ends", ENDS)
def test_acting_observes_as_learning_does(ends):
    """With the same random numbers, the world model follows the steps of acting exactly, also over
    the ends of episodes. Both environments see the same, and their latents differ."""
    states, _ = played(ends)
    before, after = states[:2]
    rows = after.replay.transitions
    model = dreamer.Model(ONE, tasks.Recall(), tasks.RecallParams())
    latent_rng = jax.random.split(jax.random.clone(before.rng), 7)[3]
    noise = parts.flat_draw(jax.random.uniform, latent_rng, (16, 2, 3))
    for env in range(2):
        found = plain_records(rows.steps, 2 * np.arange(16) + env)
        stack = lambda name, found=found: np.stack([one[name] for one in found])[:, None]
        row, last = stack("row"), stack("last")
        # An episode's last record has no row, and so no random numbers: any will do.
        own = jnp.where(last[..., None], 0.5, noise[row // 2, env])
        records = parts.Records(
            row=row,
            observation=stack("observation"),
            reward=stack("reward"),
            first=stack("first"),
            last=last,
            terminated=stack("terminated"),
            action=None,
        )
        action = jax.nn.one_hot(np.roll(stack("action"), 1, 0), 2)
        start = World(jnp.zeros((1, 8)), jnp.zeros((1, 3, 4)), jnp.zeros((1, 2)))
        action = action.reshape(-1, 1, 2).at[0].set(0.0)
        observe = jax.jit(model.posteriors)
        worlds, _ = observe(before.policy.params, start, records, action, own)
        np.testing.assert_allclose(worlds.h[~last], rows.h[env:32:2], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(worlds.z[~last].argmax(-1), rows.z[env:32:2])
    assert_same(rows.steps.observation[:32:2], rows.steps.observation[1:32:2])
    assert (np.asarray(rows.z[:32:2]) != np.asarray(rows.z[1:32:2])).any(0).all()


def test_the_policy_acts_as_training_does(vmapped_keys):
    """A fresh memory is that after an episode's end; steps without a key are the most probable."""
    states, _ = played("terminated")
    env, world = tasks.Recall(), params_of(*ENDS["terminated"])
    policy = jax.jit(dreamer.make_policy(ONE, env, world))
    state, memory = states[0], None
    model = dreamer.Model(ONE, env, world)
    params = state.policy.params
    expected = World(jnp.zeros((1, 8)), jnp.zeros((1, 3, 4)), jnp.zeros((1, 2)))
    rng = np.random.default_rng(0)
    for x in rng.normal(size=(4, 2)).astype(np.float32):
        action, memory = policy(state, x, memory)
        expected, _ = model.observe(params, expected, model.tokens(params, x[None]), None)
        best = model(params, "actor", dreamer.feature_vector(expected)).argmax(-1)
        assert action == best[0]
        expected = expected._replace(action=jax.nn.one_hot(best, 2))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b[0], 1e-4, 1e-6), memory, expected)
    keys = jax.random.split(jax.random.key(0), 50)
    of_keys = jax.jit(jax.vmap(lambda key: policy(state, x, memory, key)))
    actions, memories = of_keys(keys)
    assert len(np.unique(actions)) == 2 and len(np.unique(memories.z.argmax(-1), axis=0)) > 5


@pytest.mark.parametrize("reconstruction", ["symlog", "bits"])
def test_a_dream_follows_the_prior(reconstruction):
    """The memory's action is the last one, and its latents are the most probable ones."""
    config, env, world = (
        ONE.replace(reconstruction=reconstruction),
        tasks.Recall(),
        params_of(5, 99),
    )
    model = dreamer.Model(config, env, world)
    state = dreamer.learner(config, env, world).init(jax.random.key(0))
    rng = np.random.default_rng(0)
    memory = World(
        h=rng.normal(size=8).astype(np.float32),
        z=np.eye(4, dtype=np.float32)[[1, 3, 0]],
        action=np.array([0.0, 1.0], np.float32),
    )
    x, after = jax.jit(dreamer.make_dream(config, env, world))(state, memory)
    params, batch = state.policy.params, jax.tree.map(lambda x: x[None], memory)
    h = model(params, "core", batch.h, batch.z.reshape(1, -1), batch.action)
    z = jax.nn.one_hot(model.latents(params, "prior", h).argmax(-1), 4)
    decoded = model(params, "decoder", jnp.concatenate([h, z.reshape(1, -1)], -1))[0]
    by_hand = np.sign(decoded) * np.expm1(np.abs(decoded))
    expected = 1.0 / (1.0 + np.exp(-decoded)) if reconstruction == "bits" else by_hand
    np.testing.assert_allclose(x, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after.h, h[0], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(after.z, z[0])
    np.testing.assert_array_equal(after.action, memory.action)


def test_gradient_steps_are_those_of_the_train_ratio(trained):
    """Of 24 rounds of 8 steps, those from the one with the 40th step on learn twice: 36 records in
    a round."""
    assert dreamer.in_words(TINY) == "train ratio 4.5"
    state, _ = trained
    count = next(x for x in jax.tree.leaves(state.opt_state, is_leaf=is_laprop) if is_laprop(x))
    assert count.steps == 2 * (12 - 4)


@pytest.mark.slow  # compiled as for users
def test_the_buffer_is_never_copied(vmapped_keys):
    config = TINY.replace(buffer_size=100_000, num_eval_episodes=0, num_envs=1, train_every=1)
    train = dreamer.make_train(config.replace(updates_per_step=1))
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 2))
    states = jax.eval_shape(jax.vmap(lambda key: parts.first_state(train, key)), keys)
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(states.replay))
    go_on = jax.jit(jax.vmap(lambda state: train(None, state, 1)), donate_argnums=0)
    sizes = go_on.lower(states).compile(FUSED_AS_FOR_USERS).memory_analysis()
    assert sizes.argument_size_in_bytes + sizes.output_size_in_bytes > size > 1e7
    assert sizes.temp_size_in_bytes < 0.05 * size


@pytest.mark.parametrize("name", ["Breakout-MinAtar", "Catch-bsuite", "Pendulum-v1"])
def test_images_grids_and_continuous_actions_are_traced(name):
    """Bits are stored as bits. Nothing is compiled."""
    bits = dict(buffer_dtype="bool", reconstruction="bits") if "Minatar" in name.title() else {}
    config = TINY.replace(env=name, **bits, compute_dtype="bfloat16", latent_dtype="bfloat16")
    state, metrics = jax.eval_shape(
        dreamer.make_train(config), jax.eval_shape(lambda: jax.random.key(0))
    )
    rows = state.replay.transitions
    kinds = {"Breakout-MinAtar": bool, "Catch-bsuite": jnp.int32, "Pendulum-v1": jnp.float32}
    assert rows.steps.observation.dtype == kinds[name]
    assert rows.h.dtype == jnp.bfloat16 and rows.z.dtype == jnp.uint8
    others = {x.dtype for x in jax.tree.leaves(state.replace(replay=None))}
    assert jnp.dtype("bfloat16") not in others
    convolved = any("Conv" in str(path) for path, _ in jax.tree_util.tree_leaves_with_path(state))
    assert convolved == bool(bits)
    assert metrics["eval_return"].shape == (4, 2)


# --- learning ---------------------------------------------------------------------------------

SMALL = TINY.replace(
    total_timesteps=12_000,
    num_envs=4,
    train_every=4,
    updates_per_step=2,
    buffer_size=12_000,
    batch_size=8,
    sequence_length=16,
    learning_starts=256,
    imagine_steps=5,
    learning_rate=1e-3,
    warmup_steps=50.0,
    gamma=0.9,
    hidden_size=32,
    memory_size=64,
    blocks=4,
    latents=4,
    classes=4,
    num_bins=127,  # between 41 coarse ones, values of 0.5 are wrong by up to 0.3
    activation="swish",
    num_evals=1,
    num_eval_episodes=0,
    eval_at_start=False,
)


class Counter(tasks.Recall):
    """Observes time / 10, in episodes that start at a random time."""

    def reset_env(self, key, params):
        state = tasks.RecallState(jnp.zeros(()), jax.random.randint(key, (), 0, 10))
        return self.observe(state, params), state

    def observe(self, state, params):
        return jnp.stack([0.1 * state.time, 0.0])


@pytest.mark.slow
def test_ten_steps_of_a_counter_are_predicted(vmapped_keys):
    """Without an observation after the first four; the mean error from ten starts."""
    sizes = dict(total_timesteps=24_000, buffer_size=24_000, latents=8, classes=8, num_bins=41)
    config, env = SMALL.replace(reconstruction_coef=10.0, **sizes), Counter()
    given = config, env, tasks.RecallParams(task=tasks.CLOCK, length=25)
    state, _ = dreamer.make_train(*given)(jax.random.key(0))
    policy, dream = dreamer.make_policy(*given), dreamer.make_dream(*given)

    def error(start):
        memory = None
        for i in range(4):
            _, memory = policy(state, jnp.stack([0.1 * (start + i), 0.0]), memory)
        errors = []
        for i in range(4, 14):
            x, memory = dream(state, memory)
            errors.append(jnp.abs(x[0] - 0.1 * (start + i)))
        return jnp.stack(errors)

    errors = jax.jit(jax.vmap(error))(jnp.arange(10))
    assert errors.mean() < 0.1, errors.mean(0)


@pytest.mark.slow
def test_a_cue_is_remembered(vmapped_keys):
    """It comes eight steps before the reward, and is often in the memory alone that starts a
    sequence. Without a memory the return is 0.5."""
    config = SMALL.replace(
        total_timesteps=24_000,
        buffer_size=24_000,
        batch_size=16,
        num_bins=41,
        reward_coef=10.0,  # with 1, one seed of two learned it later
        num_eval_episodes=32,
    )
    train = dreamer.make_train(config, tasks.Recall(), tasks.RecallParams(length=9))
    keys = jax.random.split(jax.random.key(0), 3)
    returns = jax.jit(jax.vmap(train))(keys)[1]["eval_return"][:, -1].mean(-1)
    assert (np.asarray(returns) > 0.95).all(), returns


# --- the contract -----------------------------------------------------------------------------


def of_critic(config, space, state, x):
    """The critic's values (2, batch) at observations that are the first ones, and at the second
    ones of episodes that began with -x. Latents and actions are the most probable ones."""
    env = tasks.Probe(not space.discrete)
    model = dreamer.Model(config, env, env.default_params)
    params = state.policy.params

    def seen(world, x):
        world, _ = model.observe(params, world, model.tokens(params, x), None)
        vector = dreamer.feature_vector(world)
        action = model.vector(model.actions(params, vector).mode())
        value = model.bins.mean(model(params, "critic", vector))
        return world._replace(action=action), value

    fresh = model.fresh(len(x))
    return jnp.stack([seen(fresh, x)[1], seen(seen(fresh, -x)[0], x)[1]])


def play(case, kind):
    """In the task SWING no episode begins with -1, so only a memory of the step before knows it."""
    given = dreamer, case.probe, of_critic, kind == "continuous", case.num_probes
    both, actions = play_probes(*given)
    values = both[:, :, 0].copy()
    values[tasks.SWING, :, 0] = both[tasks.SWING, :, 1, 0]
    return kind, values, actions


def compared(state, metrics):
    """The first gradient steps; rounding grows, and may later draw other latents."""
    return {name: metrics[name][:2] for name in CASE.metrics}


CASE = Case(
    module=dreamer,
    tiny=TINY,
    metrics={f"{name}_loss" for name in LOSSES}
    | {"kl", "entropy", "mean_value", "return_scale", "grad_norm"},
    pinned={
        "reconstruction_loss": [1.049678, 0.828318],
        "kl": [0.622993, 0.686307],
        "value_loss": [1.506585, 1.634067],
        "replay_value_loss": [4.690718, 4.470664],
        "grad_norm": [5.443577, 4.253369],
    },
    refused=(
        (dict(train_every=0), "train_every=0"),
        (dict(updates_per_step=0), "updates_per_step=0"),
        (dict(batch_size=8.5), "batch_size=8.5"),
        (dict(imagine_steps=0), "imagine_steps=0"),
        (dict(sequence_length=1), "sequence_length=1: give 2 or more"),
        (dict(layers=0), "layers=0"),
        (dict(num_bins=10), "num_bins=10: give an odd number, 3 or more, as 11"),
        (dict(num_bins=1), "num_bins=1: give an odd number, 3 or more, as 3"),
        (dict(classes=257), "classes=257: give a whole number up to 256"),
        (dict(blocks=3), "blocks=3 does not divide memory_size=8; 1, 2, 4, 8 would do"),
        (dict(reconstruction="pixels"), "reconstruction='pixels': give symlog or bits"),
        (dict(latent_dtype="int8"), "latent_dtype='int8': give float32 or bfloat16"),
        (dict(buffer_dtype="int7"), "buffer_dtype='int7': give \"\" or bool or int8"),
        (dict(learning_starts=96), "learning_starts=96 leaves nothing .* 9 would do"),
        (dict(buffer_size=13), "buffer_size=13 is less than a sequence .* num_envs=2; 14 would do"),
        (dict(total_timesteps=13, learning_starts=0), "total_timesteps=13 is less .* 14 would do"),
        (dict(tau=1.5), r"tau=1.5: give a number in \[0, 1\]"),
    ),
    swept=dict(return_limit=1e-6, free_nats=0.0, num_eval_episodes=0, learning_rate=1e-2),
    unswept=("min_std", "max_std"),  # of continuous actions
    other=dict(adam_eps=1e-2, return_limit=1.0, free_nats=0.5, return_decay=0.5),
    compared=compared,
    tolerance=dict(rtol=1e-3, atol=1e-5),
    probe=SMALL,
    probes={"discrete": False, "continuous": False},
    num_probes=8,
    played=play,
)


def test_metrics_have_the_points_as_leading_axis(trained):
    state, metrics = trained
    assert list(metrics["timestep"]) == [0, 32, 64, 96] and int(state.update) == 3
    others = {"timestep", "num_episodes", "episode_return", "episode_length"}
    assert set(metrics) == CASE.metrics | others | EVALUATION
    for name in CASE.metrics:
        assert np.isnan(metrics[name][:2]).all() and np.isfinite(metrics[name][2:]).all(), name


def test_the_learning_rate_warms_up(trained):
    """Rounds 4 to 7 make the gradient steps 0 to 7, and the warm-up takes 4 of them."""
    _, metrics = trained
    shares = metrics["current_learning_rate"][2:] / TINY.learning_rate
    np.testing.assert_allclose(shares, [np.mean([0, 0.25, 0.5, 0.75, 1, 1, 1, 1]), 1.0], rtol=1e-5)


def test_a_box_without_bounds_is_refused():
    class Endless(tasks.Probe):
        def action_space(self, params):
            return tasks.spaces.Box(-jnp.inf, jnp.inf, (1,))

    with pytest.raises(ValueError, match="dreamer takes a Box with bounds"):
        dreamer.make_train(TINY, Endless(True), tasks.ProbeParams())
