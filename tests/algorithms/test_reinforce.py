"""REINFORCE: formulas against plain NumPy and rlax, probe tasks, and the contract of the file."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rlax

import envs
from algorithms import ppo, reinforce
from tests import probe as tasks
from tests.probe import ProbeParams

FIELDS = dataclasses.fields(reinforce.Config)
FLOATS = [f.name for f in FIELDS if f.metadata.get("pytree_node", True)]
TINY = reinforce.Config(
    total_timesteps=3 * 16,
    num_envs=2,
    num_steps=8,
    hidden_sizes=(8,),
    normalize_reward=True,
    num_evals=3,
    num_eval_episodes=2,
)


def assert_same(a, b):
    """Bit for bit, NaN equal to NaN."""
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(data(x), data(y)), a, b)


def assert_close(a, b, rtol=1e-4, atol=1e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(data(x), data(y), rtol, atol), a, b)


def data(x):
    is_key = jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


# --- formulas ---------------------------------------------------------------------------------


def random_rollout(seed, shape):
    rng = np.random.default_rng(seed)
    rewards, next_values = rng.normal(size=(2, *shape)).astype(np.float32)
    terminated, truncated = rng.random((2, *shape)) < 0.15
    return rewards, next_values, terminated, terminated | truncated


@pytest.mark.parametrize("lam", [0.7, 1.0])
@pytest.mark.parametrize("seed, shape", [(0, (17, 5)), (1, (32, 3)), (2, (1, 4))])
def test_lambda_returns_are_the_weighted_n_step_returns(seed, shape, lam):
    """From the definition: (1 - lambda) lambda^(n - 1) for the n-step return, and what is left of
    the weight for the longest one within the episode and the rollout."""
    rewards, next_values, terminated, done = random_rollout(seed, shape)
    gamma = 0.9
    expected = np.zeros(shape)
    for env in range(shape[1]):
        for start in range(shape[0]):
            n, left, total, discount = start, 1.0, 0.0, 1.0
            while left:
                total += discount * rewards[n, env]
                discount *= gamma
                longest = done[n, env] or n + 1 == shape[0]
                weight = left if longest else (1.0 - lam) * left
                value = 0.0 if terminated[n, env] else next_values[n, env]
                expected[start, env] += weight * (total + discount * value)
                left = 0.0 if longest else left - weight
                n += 1
    result = reinforce.lambda_returns(rewards, next_values, terminated, done, gamma, lam)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_lambda_returns_agree_with_rlax_without_truncation():
    rewards, next_values, terminated, _ = random_rollout(7, (20, 4))
    result = reinforce.lambda_returns(rewards, next_values, terminated, terminated, 0.9, 0.8)
    expected = jax.vmap(rlax.lambda_returns, (1, 1, 1, None), 1)(
        jnp.array(rewards), 0.9 * (1.0 - terminated), jnp.array(next_values), 0.8
    )
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_the_policy_gradient_is_the_sum_from_its_definition():
    """For logits it is advantage * (one_hot(action) - probabilities), and the loss goes against."""
    rng = np.random.default_rng(0)
    logits, advantages = rng.normal(size=(6, 3)), rng.normal(size=6)
    action = np.array([0, 1, 2, 2, 1, 0])
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    climb = advantages[:, None] * (np.eye(3)[action] - probabilities) / 6

    def loss(logits):
        actor = reinforce.ActorOutput(logits, None)
        log_prob, _ = reinforce.log_prob_and_entropy(actor, jnp.array(action))
        return reinforce.policy_gradient_loss(log_prob, jnp.array(advantages, jnp.float32))

    result = jax.grad(loss)(jnp.array(logits, jnp.float32))
    np.testing.assert_allclose(result, -climb, rtol=1e-4, atol=1e-6)


def test_the_policy_gradient_climbs_the_expected_return():
    """On average over actions: against finite differences of the return of a softmax policy."""
    logits, returns = jnp.array([0.3, -0.5, 1.0]), jnp.array([1.0, -2.0, 0.5])
    actions = jax.random.categorical(jax.random.key(0), logits, shape=(200_000,))

    def loss(logits):
        log_prob = jax.nn.log_softmax(logits)[actions]
        return reinforce.policy_gradient_loss(log_prob, returns[actions] - 0.7)

    expected_return = lambda logits: float(jax.nn.softmax(logits) @ returns)
    slopes = [
        (expected_return(logits + step) - expected_return(logits - step)) / 2e-2
        for step in 1e-2 * jnp.eye(3)
    ]
    np.testing.assert_allclose(-jax.grad(loss)(logits), slopes, atol=0.01)


def test_explained_variance():
    targets = jnp.array([1.0, 2.0, 4.0])
    assert reinforce.explained_variance(targets, targets) == 1.0
    np.testing.assert_allclose(reinforce.explained_variance(jnp.ones(3), targets), 0.0, atol=1e-6)


SHARED = ("Torso", "initialize", "sample", "to_space", "log_prob_and_entropy", "distribution")


@pytest.mark.parametrize("name", SHARED)
def test_what_ppo_has_too_is_tested_there(name):
    assert inspect.getsource(getattr(reinforce, name)) == inspect.getsource(getattr(ppo, name))


# --- probe tasks ------------------------------------------------------------------------------

PROBE = reinforce.Config(
    total_timesteps=200 * 128,
    num_envs=16,
    num_steps=8,
    learning_rate=1e-2,
    gamma=0.9,
    gae_lambda=0.8,
    ent_coef=0.0,
    hidden_sizes=(16,),
    normalize_reward=False,
    num_evals=1,
    num_eval_episodes=0,
    eval_at_start=False,
)
SEEDS = 3


@pytest.fixture(scope="module", params=["discrete", "continuous"])
def probed(request):
    """All tasks and seeds in one program: critic values and actions at x = -1, 0, 1."""
    env = tasks.Probe(continuous=request.param == "continuous")

    def train(task, key):
        params = ProbeParams(task=task, max_steps_in_episode=5)
        state, _ = reinforce.make_train(PROBE, env, params)(key)
        network = reinforce.make_network(PROBE, env, params)
        policy = reinforce.make_policy(PROBE, env, params)
        x = jnp.array([[-1.0], [0.0], [1.0]])
        values = network.apply(state.policy.params, x, method="critic")
        return values, jax.vmap(lambda x: policy(state, x)[0])(x)

    keys = jax.random.split(jax.random.key(0), SEEDS)
    over_seeds = jax.vmap(train, (None, 0))
    with jax.debug_key_reuse(False):  # see conftest.vmapped_keys
        values, actions = jax.jit(jax.vmap(over_seeds, (0, None)))(jnp.arange(8), keys)
    return request.param, np.asarray(values), np.asarray(actions).reshape(8, SEEDS, 3)


def test_probe_values(probed):
    _, values, _ = probed
    np.testing.assert_allclose(values[tasks.CONSTANT, :, 1], 1.0, atol=0.05)
    for x, expected in ((0, -1.0), (2, 1.0)):
        np.testing.assert_allclose(values[tasks.OBSERVATION, :, x], expected, atol=0.1)
    for x, expected in ((1, 0.9), (2, 1.0)):
        np.testing.assert_allclose(values[tasks.DELAYED, :, x], expected, atol=0.1)


def test_probe_endless_task_bootstraps_at_the_time_limit(probed):
    _, values, _ = probed
    np.testing.assert_allclose(values[tasks.ENDLESS, :, 1], 1.0 / (1.0 - 0.9), rtol=0.05)


def test_probe_swing_bootstraps_from_final_observations_and_cuts_traces(probed):
    _, values, _ = probed
    for x, expected in ((0, -1.0 / 1.9), (2, 1.0 / 1.9)):
        np.testing.assert_allclose(values[tasks.SWING, :, x], expected, atol=0.05)


def test_probe_actions(probed):
    """With the gradient's sign the other way round, these would be the worst ones."""
    kind, _, actions = probed
    if kind == "discrete":
        np.testing.assert_array_equal(actions[[tasks.ACTION, tasks.ARM], :, 1], 1)
        np.testing.assert_array_equal(actions[tasks.BOTH][:, [0, 2]], [[0, 1]] * SEEDS)
    else:
        np.testing.assert_allclose(actions[[tasks.ACTION, tasks.ARM], :, 1], 0.5, atol=0.1)
        np.testing.assert_allclose(actions[tasks.BOTH][:, [0, 2]], [[-0.5, 0.5]] * SEEDS, atol=0.15)


# --- the contract -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained():
    """TINY, alone: the final state and all metrics."""
    return reinforce.make_train(TINY)(jax.random.key(0))


def test_metrics_have_the_points_as_leading_axis(trained):
    state, metrics = trained
    assert list(metrics["timestep"]) == [0, 16, 32, 48]
    assert metrics["eval_return"].shape == (4, 2) and metrics["eval_length"].shape == (4, 2)
    for name in reinforce.UPDATE_METRICS:
        assert np.isnan(metrics[name][0]) and np.isfinite(metrics[name][1:]).all(), name
    assert set(metrics) == {*reinforce.UPDATE_METRICS, "num_episodes"} | {
        *("timestep", "episode_return", "episode_length", "eval_return", "eval_length")
    }
    assert int(state.update) == 3


def test_episode_return_is_nan_until_an_episode_ends(trained):
    _, metrics = trained
    none = np.asarray(metrics["num_episodes"]) == 0
    assert none.any()
    np.testing.assert_array_equal(np.isnan(metrics["episode_return"]), none)


def one_by_one(start, advance):
    """The initial state and three points, each in a call of its own."""
    state, metrics = start()
    rows = [metrics]
    for _ in range(3):
        state, row = advance(state)
        rows.append(row)
    return state, rows


def test_slices_are_exactly_the_whole(trained):
    train = reinforce.make_train(TINY)
    start = lambda: train(jax.random.key(0), None, 0)
    state, rows = one_by_one(start, lambda state: train(None, state, 1))
    assert_same((state, jax.tree.map(lambda *x: jnp.concatenate(x), *rows)), trained)


# A value for each float that must change what is learned.
OTHER = {name: 0.5 * getattr(reinforce.Config(), name) for name in FLOATS} | {
    "adam_eps": 1e-2,
    "max_grad_norm": 1e-2,
}
CONFIGS = [TINY.replace(**{name: OTHER[name]}) for name in FLOATS] + [TINY, TINY]
SEEDS_OF_CONFIGS = [0] * (len(FLOATS) + 1) + [1]


@pytest.fixture(scope="module")
def batched():
    """Each float changed in turn, then TINY with seeds 0 and 1, all in one program."""
    configs = jax.tree.map(lambda *x: jnp.array(x, jnp.float32), *CONFIGS)
    keys = jnp.stack([jax.random.key(seed) for seed in SEEDS_OF_CONFIGS])
    with jax.debug_key_reuse(False):
        run = jax.jit(jax.vmap(lambda config, key: reinforce.make_train(config)(key)))
        return configs, keys, run(configs, keys)


def test_slices_are_exact_under_vmap_too(batched, vmapped_keys):
    configs, keys, whole = batched
    first = jax.jit(jax.vmap(lambda config, key: reinforce.make_train(config)(key, None, 0)))
    point = jax.jit(jax.vmap(lambda config, state: reinforce.make_train(config)(None, state, 1)))
    start = lambda: first(configs, keys)
    state, rows = one_by_one(start, lambda state: point(configs, state))
    assert_same((state, jax.tree.map(lambda *x: jnp.concatenate(x, 1), *rows)), whole)


def test_a_vmapped_run_is_close_to_the_single_one_and_every_float_matters(batched):
    state, metrics = batched[2]
    for i, (name, single) in enumerate(zip([*FLOATS, None, None], CONFIGS)):
        alone = reinforce.make_train(single)(jax.random.key(SEEDS_OF_CONFIGS[i]))
        mine = jax.tree.map(lambda x, i=i: x[i], (state.policy, metrics))
        assert_close(mine, (alone[0].policy, alone[1]))
        base = jax.tree.leaves(jax.tree.map(lambda x: x[-2], state.policy.params))
        changed = any((x != y).any() for x, y in zip(base, jax.tree.leaves(mine[0].params)))
        assert changed == (i != len(FLOATS)), name  # that one is the base itself


def test_another_value_of_a_float_does_not_compile_again(trained):
    before = reinforce._train._cache_size()
    for name in FLOATS:
        reinforce.make_train(TINY.replace(**{name: OTHER[name]}))(jax.random.key(5))
    assert reinforce._train._cache_size() == before


def test_the_program_has_no_host_callback_and_no_lapack():
    text = jax.jit(reinforce.make_train(TINY)).lower(jax.random.key(0)).as_text()
    assert "while" in text
    for word in ("callback", "infeed", "outfeed", "lapack"):
        assert word not in text.lower(), word


def test_gradients_are_clipped_by_their_global_norm_and_rates_annealed():
    """Adam divides by the size of gradients; with a huge epsilon a step is as long as its gradient
    divided by it."""
    floats = dict(max_grad_norm=1e-3, adam_eps=1.0, learning_rate=1.0)
    train = reinforce.make_train(TINY.replace(**floats))
    state, _ = train(jax.random.key(0), None, 0)
    lengths = []
    for _ in range(3):
        before = state.policy.params
        state, metrics = train(None, state, 1)
        step = jax.tree.map(jnp.subtract, before, state.policy.params)
        lengths.append(float(optax.tree.norm(step)))
        assert metrics["grad_norm"][0] > 0.01  # before clipping
    np.testing.assert_allclose(lengths[0], 1e-3, rtol=2e-3)
    assert lengths[1] < 2 / 3 * 1.01e-3 and lengths[2] < 1 / 3 * 1.01e-3


def test_normalisation_leaves_raw_returns_in_the_metrics_and_reaches_the_policy(probe):
    config = TINY.replace(normalize_obs=True, eval_at_start=False)
    params = ProbeParams(task=tasks.CONSTANT, reward=50.0)
    state, metrics = reinforce.make_train(config, probe, params)(jax.random.key(0))
    np.testing.assert_allclose(metrics["episode_return"], 50.0)
    np.testing.assert_allclose(metrics["eval_return"], 50.0)
    assert float(state.policy.obs_stats.count) == 48
    assert float(state.collector.reward_stats.count) == 48
    assert metrics["mean_value"][-1] < 25.0

    network = reinforce.make_network(config, probe, params)
    policy = reinforce.make_policy(config, probe, params)
    weights = jax.tree.map(lambda x: 10.0 * x + 0.1, state.policy.params)
    seen = []
    for mean in (-100.0, 100.0):
        stats = envs.RunningStatistics(jnp.array([mean]), jnp.ones(1), jnp.ones(()))
        acting = state.replace(policy=reinforce.PolicyState(weights, stats))
        logits = network.apply(weights, stats.normalize(jnp.zeros((1, 1))), method="actor").output
        assert policy(acting, jnp.zeros(1))[0] == jnp.argmax(logits)
        seen.append(logits)
    assert not np.allclose(*seen)


REFUSED = [
    (dict(num_envs=1, num_steps=1), "one sample to a rollout"),
    (dict(num_envs=0), "num_envs=0"),
    (dict(num_steps=8.0), "num_steps=8.0"),
    (dict(total_timesteps=-1), "total_timesteps=-1"),
    (dict(num_evals=0), "num_evals=0"),
    (dict(num_eval_episodes=-1), "num_eval_episodes=-1"),
    (dict(conv_features=-1), "conv_features=-1"),
    (dict(hidden_sizes=(8, 0)), "hidden_sizes=0"),
    (dict(activation="tanhh"), "activation='tanhh'"),
    (dict(env="CartPol-v1"), "did you mean CartPole-v1"),
]


@pytest.mark.parametrize("change, message", REFUSED, ids=[str(c) for c, _ in REFUSED])
def test_refused_settings_say_what_would_do(change, message):
    with pytest.raises(ValueError, match=message):
        reinforce.make_train(TINY.replace(**change))


def test_spaces_that_reinforce_cannot_take_are_refused():
    class Pair(tasks.Probe):
        def action_space(self, params):
            return tasks.spaces.Tuple([tasks.spaces.Discrete(2)] * 2)

    class Named(tasks.Probe):
        def observation_space(self, params):
            return tasks.spaces.Dict({"x": tasks.spaces.Box(0, 1, (1,))})

    class Narrow(tasks.Probe):
        def observation_space(self, params):
            return tasks.spaces.Box(0, 1, (2, 5, 1))

    with pytest.raises(ValueError, match="Probe has actions .*; reinforce takes Discrete and Box"):
        reinforce.make_train(TINY, Pair(), ProbeParams())
    with pytest.raises(ValueError, match="Probe has observations .*; reinforce takes Box"):
        reinforce.make_train(TINY, Named(), ProbeParams())
    with pytest.raises(ValueError, match="conv_features=16 needs images of 3x3 or more"):
        reinforce.make_train(TINY, Narrow(), ProbeParams())
    with pytest.raises(ValueError, match="Pair has several agents"):
        reinforce.make_train(TINY, tasks.Pair(), tasks.PairParams())


def test_make_train_leaves_the_config_alone():
    before = dataclasses.asdict(TINY)
    reinforce.make_train(TINY)
    assert dataclasses.asdict(TINY) == before


def test_pinned_values(trained):
    """Close values for seed 0; a change here is a change of the algorithm."""
    _, metrics = trained
    for name, expected in PINNED.items():
        np.testing.assert_allclose(metrics[name][1:], expected, rtol=1e-4, atol=1e-6, err_msg=name)


PINNED = {
    "value_loss": [10.883, 1.63973, 0.823433],
    "grad_norm": [3.22995, 1.17553, 0.867048],
    "mean_value": [0.08508, 0.0748883, 0.128045],
    "entropy": [0.693127, 0.693026, 0.692885],
}
