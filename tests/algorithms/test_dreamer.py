"""DreamerV3: formulas against NumPy, a gradient step against a plain loop, and the contract."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms import dreamer, parts
from algorithms.dreamer import World
from algorithms.parts import laprop
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
    return np.array(returns)


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
    params = gru.init(jax.random.key(0), h, z, action)
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
    np.testing.assert_allclose(gru.apply(params, h, z, action), np.concatenate(new, -1), 1e-4, 1e-5)


# --- the model --------------------------------------------------------------------------------

STEPS, BATCH = 5, 2


@functools.cache
def model_and_params(continuous=False, **changes):
    """A model of a probe task, with parameters that tell all inputs apart."""
    env = tasks.Recall(continuous)
    model = dreamer.Model(TINY.replace(**changes), env, env.default_params)
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
def gradients(**changes):
    """{loss: {module: whether it has a gradient}}."""
    model, params = model_and_params(**changes)
    world, records, action, noise = random_inputs(model, [False, False, True, False, False])
    slow = params["params"]["critic"]

    def losses(params):
        worlds, posterior = model.posteriors(params, world, records, action, noise)
        found, _ = model.world_losses(params, worlds, posterior, records)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), dreamer.stop(worlds))
        imagined = dreamer.stop(model.imagined(dreamer.stop(params), flat, jax.random.key(3)))
        more, _, _, returns = model.behaviour_losses(params, slow, jnp.zeros(2), *imagined)
        x, boot = dreamer.features(worlds), returns[0].reshape(STEPS, BATCH)
        found |= more | {"replay_value": model.replay_value_loss(params, slow, x, records, boot)}
        return jnp.stack([found[name] for name in LOSSES])

    def each(params):
        values, pull = jax.vjp(losses, params)
        return values, jax.vmap(pull)(jnp.eye(len(LOSSES)))[0]

    values, grads = jax.jit(each)(params)
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
    _, routes = gradients(free_nats=0.0)
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
    values, routes = gradients(free_nats=50.0)
    assert values["dynamics"] == values["representation"] == 50.0
    assert not routes["dynamics"] and not routes["representation"]


def test_dynamics_and_representation_loss_stop_at_the_other_s_latents():
    """With equal memories, the first one moves the prior alone, and the other one the posterior."""
    model, params = model_and_params(free_nats=0.0)
    world, records, action, noise = random_inputs(model, [False] * STEPS)
    worlds, posterior = model.posteriors(params, world, records, action, noise)
    of = lambda name: lambda p: model.world_losses(params, worlds, p, records)[0][name]
    assert not np.abs(jax.grad(of("dynamics"))(posterior)).any()
    assert np.abs(jax.grad(of("representation"))(posterior)).any()
    prior = lambda name: jax.grad(
        lambda params: model.world_losses(params, worlds, posterior, records)[0][name]
    )(params)["params"]["prior"]
    some = lambda tree: max(float(jnp.abs(x).max()) for x in jax.tree.leaves(tree))
    assert some(prior("dynamics")) > 0 and some(prior("representation")) == 0


def test_rare_actions_keep_a_share_of_the_probability():
    model, params = model_and_params()
    sure = jax.tree.map(jnp.zeros_like, params)
    sure["params"]["actor"]["head"]["bias"] = jnp.array([100.0, 0.0])
    x = jnp.ones((1, 20))
    np.testing.assert_allclose(model.actions(sure, x).log_prob(jnp.array([1])), math.log(0.005))
    grad = jax.grad(lambda params: model.actions(params, x).entropy().sum())(sure)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(grad))
    zero = dreamer.Model(TINY.replace(actor_unimix=0.0), tasks.Recall(), tasks.RecallParams())
    numbers = zero(params, "actor", x)
    np.testing.assert_allclose(zero.actions(params, x).probs, softmax(numbers), rtol=1e-5)


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
    model, _ = model_and_params(True)
    action = jnp.array([[-3.0], [0.25]])
    np.testing.assert_array_equal(model.vector(action), action)
    np.testing.assert_allclose(model.to_environment(action), [[-1.0], [0.25]])
