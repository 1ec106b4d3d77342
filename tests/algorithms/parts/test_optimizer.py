"""Optimisers in optax's form, with a rate for each step, and steps on one long vector."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import envs
from algorithms import parts, ppo
from algorithms.parts import optimizer


def drawn(rng, like):
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=jnp.shape(x)), jnp.float32), like)


def run(optimizer, params, grads, rates):
    """The parameters after some steps."""
    state = optimizer(0.0).init(params)
    update = jax.jit(lambda rate, *given: optimizer(rate).update(*given))
    for grad, rate in zip(grads, rates):
        updates, state = update(rate, grad, state, params)
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.parametrize(
    "transformation",
    [
        optax.chain(optax.clip_by_global_norm(2.0), optax.scale_by_adam(eps=1e-3)),
        optax.chain(optax.clip(0.5), optax.scale_by_radam(), optax.add_decayed_weights(0.1)),
    ],
    ids=["clipped_adam", "radam_with_decay"],
)
def test_steps_on_one_vector_are_those_of_optax_leaf_by_leaf(transformation):
    """The third gradient must be clipped by the norm of all leaves together."""
    rng = np.random.default_rng(0)
    params = drawn(rng, {"a": np.zeros((3, 4)), "b": [np.zeros(5), np.zeros(())]})
    grads = [optax.tree.scale(size, drawn(rng, params)) for size in (0.1, 0.3, 3.0)]
    rates = [jnp.float32(rate) for rate in (0.5, 0.25, 0.1)]
    flat = lambda rate: parts.on_one_vector(optax.chain(transformation, optax.scale(-rate)))
    found = run(flat, params, grads, rates)
    state, expected = transformation.init(params), params
    for grad, rate in zip(grads, rates):
        steps, state = transformation.update(grad, state, expected)
        expected = jax.tree.map(lambda p, s, rate=rate: p - rate * s, expected, steps)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-4, 1e-6), found, expected)


is_matrix = lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)
BY_TENSOR = {
    "adafactor": optax.adafactor(0.1),
    "adamw_with_a_mask": optax.adamw(0.1, mask=is_matrix),
    "adaptive_grad_clip": optax.adaptive_grad_clip(0.1),
    "centralize": optax.centralize(),
    "clip_by_block_rms": optax.clip_by_block_rms(0.1),
    "lamb": optax.lamb(0.1),
    "lars": optax.lars(0.1),
    "muon": optax.contrib.muon(0.1),
    "novograd": optax.novograd(0.1),
    "sm3": optax.sm3(0.1),
    "injected": optax.inject_hyperparams(optax.lamb)(learning_rate=0.1),
}


@pytest.mark.parametrize("name", BY_TENSOR)
def test_what_depends_on_tensors_is_refused_on_one_vector(name):
    """Its steps would be others, without a word."""
    with pytest.raises(ValueError, match="depends on the tensors .* leave on_one_vector out"):
        parts.on_one_vector(optax.chain(BY_TENSOR[name], optax.scale(-0.1)))


def test_an_object_s_steps_are_looked_at():
    with pytest.raises(ValueError, match="depends on the tensors"):
        parts.on_one_vector(optax.MultiSteps(optax.lamb(0.1), 1))
    parts.on_one_vector(optax.MultiSteps(optax.adam(0.1), 1))


VARIABLES = {"params": {"w": jnp.ones(2)}, "batch_stats": {}, "constants": {}}
OTHERS = r"variables in batch_stats and constants, which the optimiser would change: give it para"


def test_variables_that_are_no_parameters_are_not_learned():
    """crossq.py gives its optimiser params["params"], and the policy has both."""
    flat = parts.on_one_vector(optax.adam(0.1))
    with pytest.raises(ValueError, match=OTHERS):
        flat.init(VARIABLES)
    flat.init(VARIABLES["params"])
    held = lambda params: types.SimpleNamespace(
        policy=VARIABLES, actor_opt_state=optax.adam(0.1).init(params)
    )
    with pytest.raises(ValueError, match=OTHERS):
        optimizer.check_optimizers(held(VARIABLES))
    optimizer.check_optimizers(held({"params": VARIABLES["params"]}))


@pytest.mark.parametrize("vector", [parts.on_one_vector, lambda x: x], ids=["vector", "tree"])
def test_a_rate_that_is_kept_is_refused(vector):
    """Nothing would be learned: files make the state with a rate of 0."""
    held = lambda one: types.SimpleNamespace(opt_state=vector(one).init(VARIABLES["params"]))
    injected = optax.inject_hyperparams(optax.adam)
    with pytest.raises(ValueError, match=r"keeps the learning rate .*, as in optax.adam\(rate\)"):
        optimizer.check_optimizers(held(optax.chain(optax.clip(1.0), injected(learning_rate=0.0))))
    scale = optax.inject_hyperparams(optax.scale_by_adam)(b1=optax.linear_schedule(0.9, 0.5, 9))
    optimizer.check_optimizers(held(optax.chain(scale, optax.scale(0.0))))


def test_the_global_norm_is_that_of_all_leaves():
    tree = {"a": jnp.full((2, 2), 3.0), "b": [jnp.array(8.0)]}
    assert parts.global_norm(tree) == 10.0


OPTIMIZERS = {
    "adam": optax.adam,
    "adaptive_grad_clip": lambda r: optax.chain(optax.adaptive_grad_clip(0.01), optax.adam(r)),
    "lamb": optax.lamb,
    "muon": optax.contrib.muon,
    "by_tensor": lambda r: optax.chain(optax.clip_by_block_rms(0.1), optax.sgd(r, momentum=0.9)),
    "a_rate_of_its_own": lambda rate: optax.adam(1e-2),
}


@pytest.fixture(scope="module")
def task():
    config = ppo.Config(num_envs=2, num_steps=4, update_epochs=1, num_minibatches=1)
    config = config.replace(total_timesteps=8, num_evals=1, num_eval_episodes=0, hidden_sizes=(4,))
    learner = ppo.learner(config, *envs.make(config.env))
    return config, jax.jit(learner.init).lower(jax.random.key(0)).compile()


FEW = ("adam", "lamb", "a_rate_of_its_own")
EACH = [
    pytest.param(name, marks=[] if name in FEW else pytest.mark.slow, id=name)
    for name in OPTIMIZERS
]


@pytest.mark.parametrize("name", EACH)
def test_an_optimizer_of_optax_in_the_place_of_a_file_s_own_is_optax_s(name, task, monkeypatch):
    """It is given the rate and the tree, and steps go down. Its state shows what it was given."""
    config, init = task
    make, rates, scale = OPTIMIZERS[name], [], optax.scale

    def update(grads, state, params):
        steps, _ = make(rates[-1]).update(grads, make(rates[-1]).init(params), params)
        return steps, (rates[-1], grads, params)

    monkeypatch.setattr(ppo.optax, "scale", lambda step: rates.append(-step) or scale(step))
    own = optax.GradientTransformation(None, update)
    monkeypatch.setattr(ppo.parts, "on_one_vector", lambda chain: own)
    state = init(jax.random.key(0))
    params = state.policy.params
    learner = ppo.learner(config, *envs.make(config.env))
    after, _ = jax.jit(learner.update)(state.replace(opt_state=(0.0, params, params)))
    rate, grads, params = after.opt_state
    assert rate == config.learning_rate
    optimizer = make(rate)
    steps, _ = optimizer.update(grads, optimizer.init(params), params)
    expected = optax.apply_updates(params, steps)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-7), after.policy.params, expected
    )
    slopes = jax.tree.map(lambda g, new, old: (g * (new - old)).sum(), grads, expected, params)
    assert optax.tree.sum(slopes) < 0.0
