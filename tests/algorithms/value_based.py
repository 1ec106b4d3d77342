"""What all files that learn values from a replay buffer have in common: the contract of a file, and
the probe tasks. Each file's tests import these beside those of its formulas."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms import c51, dqn, iqn, qrdqn
from tests import probe as tasks
from tests.probe import ProbeParams

# The settings under which every float of the file matters, and a buffer that wraps around.
TINY = dict(
    total_timesteps=3 * 32,
    num_envs=2,
    train_every=2,
    updates_per_step=2,
    buffer_size=40,
    batch_size=8,
    learning_starts=40,
    n_step=2,
    hidden_sizes=(8,),
    num_evals=3,
    num_eval_episodes=2,
)
MODULES = {
    dqn: dict(TINY, prioritized=True, dueling=True),
    c51: dict(TINY, num_atoms=11, v_max=10.0),
    qrdqn: dict(TINY, num_quantiles=5, kappa=10.0),
    iqn: dict(TINY, num_levels=3, num_cosines=4, kappa=10.0, risk="cvar"),
}
# Where half the default is not a change, or none that can be felt in 96 steps.
OTHER = {"adam_eps": 1e-2, "eps_end": 0.9, "max_grad_norm": 1e-3, "huber_delta": 0.1}
OTHER |= {"priority_eps": 0.5}


def assert_same(a, b):
    """Bit for bit, NaN equal to NaN."""
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(data(x), data(y)), a, b)


def assert_close(a, b, rtol=1e-4, atol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(data(x), data(y), rtol, atol), a, b)


def data(x):
    is_key = jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def joined(*metrics, axis=0):
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis), *metrics)


@pytest.fixture(scope="module")
def module(request):
    """The algorithm that the file of tests is about, which names it MODULE."""
    return request.module.MODULE


@pytest.fixture(scope="module")
def tiny(module):
    return module.Config(**MODULES[module])


@pytest.fixture(scope="module")
def floats(module):
    fields = dataclasses.fields(module.Config)
    return [field.name for field in fields if field.metadata.get("pytree_node", True)]


@pytest.fixture(scope="module")
def trained(module, tiny):
    """TINY, alone: the final state and all metrics."""
    return module.make_train(tiny)(jax.random.key(0))


# --- the contract -----------------------------------------------------------------------------


def test_metrics_have_the_points_as_leading_axis(module, trained):
    state, metrics = trained
    assert list(metrics["timestep"]) == [0, 32, 64, 96]
    assert metrics["eval_return"].shape == (4, 2) and metrics["eval_length"].shape == (4, 2)
    for name in module.UPDATE_METRICS:  # learning starts after the second point
        assert np.isnan(metrics[name][:2]).all() and np.isfinite(metrics[name][2:]).all(), name
    assert {"loss", "grad_norm", "mean_value"} <= set(module.UPDATE_METRICS)
    assert set(metrics) == set(module.UPDATE_METRICS) | {
        *("timestep", "episode_return", "episode_length", "num_episodes", "epsilon"),
        *("eval_return", "eval_length"),
    }
    # 24 rounds of two gradient steps, without the nine before 40 steps have been made.
    assert int(state.round) == 24 and int(state.updates) == 2 * 15
    none = np.asarray(metrics["num_episodes"]) == 0
    np.testing.assert_array_equal(np.isnan(metrics["episode_return"]), none)
    np.testing.assert_allclose(metrics["epsilon"], [1.0, 0.05, 0.05, 0.05], rtol=1e-5)


def test_slices_are_exactly_the_whole_and_learning_waits(module, tiny, trained):
    train = module.make_train(tiny)
    start, rows = train(jax.random.key(0), None, 0)
    assert rows["timestep"].shape == (1,)
    state = start
    for point in range(3):
        state, row = train(None, state, 1)
        rows = joined(rows, row)
        if point == 0:  # before learning_starts
            for name in ("policy", "target_params", "opt_state", "updates"):
                assert_same(getattr(state, name), getattr(start, name))
    assert_same((state, rows), trained)


@pytest.fixture(scope="module")
def swept(module, tiny, floats):
    """One program that trains with each float changed in turn, and at last as they are."""
    other = {name: OTHER.get(name, 0.5 * getattr(tiny, name)) for name in floats}
    configs = [tiny.replace(**{name: other[name]}) for name in floats] + [tiny]
    batched = jax.tree.map(lambda *x: jnp.array(x, jnp.float32), *configs)
    starting = jax.jit(jax.vmap(lambda c: module.make_train(c)(jax.random.key(0), None, 0)))
    with jax.debug_key_reuse(False):  # see conftest.vmapped_keys
        start = starting(batched)
        return configs, start, *go_on(module, 3)(batched, start[0])


def go_on(module, points):
    """States are arguments here, as in `launch`, so that even counters are batched."""
    return jax.jit(jax.vmap(lambda c, state: module.make_train(c)(None, state, points)))


def test_every_float_can_be_vmapped_and_matters(module, floats, swept, trained):
    """Each is close to its single run for the first 14 gradient steps; rounding grows, and may at
    last choose another sample."""
    configs, start, state, rest = swept
    metrics = joined(start[1], rest, axis=1)
    before = module._train._cache_size()
    for i, (name, single) in enumerate(zip([*floats, None], configs)):
        _, alone = module.make_train(single)(jax.random.key(0))
        early = lambda metrics: {k: np.asarray(metrics[k])[:3] for k in module.UPDATE_METRICS}
        assert_close(early(jax.tree.map(lambda x, i=i: x[i], metrics)), early(alone))
        if name:
            params = jax.tree.map(np.asarray, state.policy.params)
            same = jax.tree.map(lambda x, i=i: (x[i] == x[-1]).all(), params)
            assert not all(jax.tree.leaves(same)), name
    assert module._train._cache_size() == before  # no value of a float compiles again


def test_slices_are_exact_under_vmap_too(module, swept, vmapped_keys):
    configs, (state, _), *whole = swept
    batched = jax.tree.map(lambda *x: jnp.array(x, jnp.float32), *configs)
    program, rows = go_on(module, 1), []
    for _ in range(3):
        state, row = program(batched, state)
        rows.append(row)
    assert_same([state, joined(*rows, axis=1)], whole)


def test_the_buffer_is_never_copied(module, tiny, vmapped_keys):
    """Eight agents that go on from their states, as `launch` runs them: what the program needs
    beside its arguments and results is far less than a buffer."""
    config = tiny.replace(buffer_size=100_000, num_eval_episodes=0)
    train = module.make_train(config)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 8))
    states = jax.eval_shape(jax.vmap(lambda key: train(key, None, 0)[0]), keys)
    lowered = jax.jit(jax.vmap(lambda state: train(None, state, 1)), donate_argnums=0).lower(states)
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(states.replay))
    assert size >= 8 * 100_000 * 42
    assert lowered.compile().memory_analysis().temp_size_in_bytes < 0.01 * size
    for word in ("callback", "infeed", "outfeed", "lapack"):
        assert word not in lowered.as_text().lower(), word


REFUSED = [
    (dict(num_envs=0), "num_envs=0: give a whole number, 1 or more"),
    (dict(batch_size=8.0), "batch_size=8.0"),
    (dict(train_every=0), "train_every=0"),
    (dict(updates_per_step=0), "updates_per_step=0"),
    (dict(n_step=0), "n_step=0"),
    (dict(target_every=0), "target_every=0"),
    (dict(total_timesteps=-1), "total_timesteps=-1"),
    (dict(num_evals=0), "num_evals=0"),
    (dict(num_eval_episodes=-1), "num_eval_episodes=-1"),
    (dict(conv_features=-1), "conv_features=-1"),
    (dict(hidden_sizes=(8, 0)), "hidden_sizes=0"),
    (dict(hidden_sizes=()), "hidden_sizes=0"),
    (dict(activation="tanhh"), "activation='tanhh'"),
    (dict(exploration="cosine"), "exploration='cosine': constant, linear, exponential do"),
    (dict(buffer_dtype="int7"), "buffer_dtype='int7': bool, uint8"),
    (dict(learning_starts=96), "learning_starts=96 leaves nothing .* 9 would do"),
    (dict(buffer_size=4, n_step=3), "buffer_size=4 does not hold n_step=3 .* 6 would do"),
    (dict(env="Pendulum-v1"), "takes Discrete"),
    (dict(env="CartPol-v1"), "did you mean CartPole-v1"),
]


@pytest.mark.parametrize("change, message", REFUSED, ids=[str(c) for c, _ in REFUSED])
def test_refused_settings_say_what_would_do(module, tiny, change, message):
    with pytest.raises(ValueError, match=message):
        module.make_train(tiny.replace(**change))


def test_a_buffer_larger_than_the_memory_is_refused_with_one_that_fits(module, tiny, monkeypatch):
    monkeypatch.setattr(envs, "device_memory", lambda: 10_000_000)
    with pytest.raises(ValueError, match=r"buffer_size=1000000 takes .* GB .* would fit") as error:
        module.make_train(tiny.replace(buffer_size=1_000_000))
    fits = int(str(error.value).split("; ")[1].split()[0])
    module.make_train(tiny.replace(buffer_size=fits))
    with pytest.raises(ValueError, match="would fit"):
        module.make_train(tiny.replace(buffer_size=2 * fits))


def test_observations_that_cannot_be_taken_are_refused(module, tiny):
    class Narrow(tasks.Probe):
        def observation_space(self, params):
            return tasks.spaces.Box(0, 1, (2, 5, 1))

    class Named(tasks.Probe):
        def observation_space(self, params):
            return tasks.spaces.Dict({"x": tasks.spaces.Box(0, 1, (1,))})

    with pytest.raises(ValueError, match="conv_features=16 needs images of 3x3 or more"):
        module.make_train(tiny, Narrow(), ProbeParams())
    with pytest.raises(ValueError, match="Probe has observations .* takes Box"):
        module.make_train(tiny, Named(), ProbeParams())


def test_images_can_be_stored_as_bits(module, tiny):
    config = tiny.replace(env="Breakout-MinAtar", buffer_dtype="bool", num_eval_episodes=0)
    state, _ = jax.eval_shape(module.make_train(config), jax.eval_shape(lambda: jax.random.key(0)))
    replay = getattr(state.replay, "transitions", state.replay)
    assert replay.observation.shape == replay.final_observation.shape == (40, 10, 10, 4)
    assert replay.observation.dtype == replay.final_observation.dtype == bool
    assert len(state.policy.params["params"]) >= 3  # a convolution, too


def test_a_policy_with_a_key_explores(module, tiny, trained, vmapped_keys):
    state, _ = trained
    policy = module.make_policy(tiny.replace(eps_end=1.0))
    observation = jnp.array([0.01, 0.02, 0.03, 0.04])
    keys = jax.random.split(jax.random.key(1), 200)
    actions = jax.vmap(lambda key: policy(state, observation, None, key)[0])(keys)
    assert 60 < int(actions.sum()) < 140
    never = module.make_policy(tiny.replace(eps_end=0.0))
    greedy = policy(state, observation)[0]
    assert (jax.vmap(lambda key: never(state, observation, None, key)[0])(keys) == greedy).all()


# --- probe tasks ------------------------------------------------------------------------------

SEEDS = 3
PROBE = dict(
    total_timesteps=16 * 1500,
    num_envs=16,
    buffer_size=4_000,
    batch_size=64,
    learning_starts=1_000,
    learning_rate=1e-2,
    anneal_lr=False,
    activation="tanh",
    gamma=0.9,
    n_step=3,
    tau=0.05,
    eps_end=0.2,
    hidden_sizes=(16,),
    num_evals=1,
    num_eval_episodes=0,
    eval_at_start=False,
)


@pytest.fixture(scope="module")
def probed(module):
    """All tasks and seeds in one program: greedy values and actions at x = -1, 0, 1."""
    support = dict(v_min=-2.0, v_max=12.0) if module is c51 else {}
    env, config = tasks.Probe(), module.Config(**PROBE, **support)

    def train(task, key):
        params = ProbeParams(task=task)
        state, _ = module.make_train(config, env, params)(key)
        policy = module.make_policy(config, env, params)
        network = module.make_network(config, env, params)
        x = jnp.array([[-1.0], [0.0], [1.0]])
        values = module.action_values(config, network, state.policy.params, x)
        return values.max(-1), jax.vmap(lambda x: policy(state, x)[0])(x)

    keys = jax.random.split(jax.random.key(0), SEEDS)
    over_seeds = jax.vmap(train, (None, 0))
    with jax.debug_key_reuse(False):  # see conftest.vmapped_keys
        values, actions = jax.jit(jax.vmap(over_seeds, (0, None)))(jnp.arange(6), keys)
    return np.asarray(values), np.asarray(actions)


def test_probe_values(probed):
    values, _ = probed
    np.testing.assert_allclose(values[tasks.CONSTANT, :, 1], 1.0, atol=0.05)
    np.testing.assert_allclose(
        values[tasks.OBSERVATION, :, [0, 2]].T, [[-1.0, 1.0]] * SEEDS, atol=0.1
    )
    np.testing.assert_allclose(values[tasks.DELAYED, :, 1:], [[0.9, 1.0]] * SEEDS, atol=0.1)


def test_probe_endless_task_bootstraps_at_the_time_limit(probed):
    values, _ = probed
    np.testing.assert_allclose(values[tasks.ENDLESS, :, 1], 1.0 / (1.0 - 0.9), rtol=0.05)


def test_probe_actions(probed):
    _, actions = probed
    np.testing.assert_array_equal(actions[tasks.ACTION, :, 1], 1)
    np.testing.assert_array_equal(actions[tasks.BOTH][:, [0, 2]], [[0, 1]] * SEEDS)
