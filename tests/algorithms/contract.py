"""What every algorithm's file promises. Each file's tests import these beside those of its own
formulas, and say what they are about:

    MODULE     the algorithm
    TINY       a small config, of three updates at three points
    METRICS    the names of what it says about its updates
    REFUSED    (change of TINY, error), beside those below
    PINNED     values of some metrics at the points, for seed 0

and, where these differ from the defaults below, the other names in capital letters, `learned` and
`compared`.
"""

import contextlib
import dataclasses
import functools
import operator
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.interpreters.partial_eval import dce_jaxpr
from jax.tree_util import keystr

import envs
from algorithms import parts
from algorithms.parts import training
from envs.gymnax import Wrapper
from tests import probe as tasks
from tests.conftest import AS_FOR_USERS, compiled_as_for_users

WORLD = ()  # environment and parameters, if not those that the config names
SWEPT = {}  # changes of TINY under which every float matters, beside that all is normalised
SWEPT_WORLD = None  # where they do, if not in WORLD
OTHER = {}  # values of floats that must change what is learned, where half the default would not
EVALUATION = {"eval_return", "eval_length", "eval_last_reward", "eval_terminated"}
EVALUATION |= {"eval_truncated"}
HEEDS_MASKS = False
CONTINUOUS = False  # whether it takes continuous actions only
TAKES_SEVERAL = False  # whether it takes several agents beside one
TOLERANCE = dict(rtol=1e-4, atol=1e-6)  # of an agent in a batch, against it alone

REFUSED_BY_ALL = [
    (dict(num_envs=0), "num_envs=0: give a whole number, 1 or more"),
    (dict(num_steps=8.0), "num_steps=8.0"),
    (dict(total_timesteps=-1), "total_timesteps=-1"),
    (dict(update_epochs=0), "update_epochs=0"),
    (dict(num_evals=0), "num_evals=0"),
    (dict(num_eval_episodes=-1), "num_eval_episodes=-1"),
    (dict(conv_layers="large"), "conv_layers='large': give none or small or nature or impala"),
    (dict(hidden_sizes=(8, 0)), "hidden_sizes=0"),
    (dict(activation="tanhh"), "activation='tanhh'"),
    (dict(env="CartPol-v1"), "did you mean CartPole-v1"),
]


def assert_same(a, b):
    """Bit for bit, NaN equal to NaN."""
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(data(x), data(y)), a, b)


def assert_close(a, b, rtol=1e-4, atol=1e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(data(x), data(y), rtol, atol), a, b)


def data(x):
    is_key = jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def joined(*metrics, axis=0):
    return jax.tree.map(lambda *x: np.concatenate(x, axis), *metrics)


def several(file):
    """Whether it is about several agents."""
    return bool(file.WORLD) and hasattr(file.WORLD[0], "num_agents")


def learned(state):
    """What every float has to change."""
    return state.policy.params


def compared(state, metrics):
    """What is close to the same of a single run."""
    return state.policy, metrics


# --- one agent --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(request):
    """The file of tests."""
    return request.module


@pytest.fixture(scope="module")
def floats(file):
    return [field.name for field in dataclasses.fields(file.TINY) if in_tree(field)]


@pytest.fixture(scope="module")
def trained(slices):
    """TINY, alone: the final state and all metrics."""
    return whole(slices)


def whole(points):
    """The final state and all metrics."""
    return points[-1][0], joined(*(row for _, row in points))


def test_metrics_have_the_points_as_leading_axis(file, trained):
    state, metrics = trained
    np.testing.assert_allclose(metrics["timestep"], np.arange(4) * file.TINY.total_timesteps / 3)
    assert metrics["eval_return"].shape == (4, 2) and metrics["eval_length"].shape == (4, 2)
    for name in file.METRICS:
        assert np.isnan(metrics[name][0]) and np.isfinite(metrics[name][1:]).all(), name
        assert metrics[name].shape == (4,), name
    others = {"timestep", "num_episodes", "episode_return", "episode_length"}
    assert set(metrics) == file.METRICS | others | file.EVALUATION
    assert int(state.update) == 3


def test_episode_return_is_nan_until_an_episode_ends(trained):
    _, metrics = trained
    none = np.asarray(metrics["num_episodes"]) == 0
    assert none.any()
    for name in ("episode_return", "episode_length"):
        assert (none == np.isnan(metrics[name]).T).all(), name  # of every agent


@pytest.mark.slow  # another program of each file; parts and the launcher have quick ones
def test_metrics_without_data_are_minus_zero_under_jax_debug_nans(file, trained, debug_nans):
    """So that this setting stops a run at a NaN of its losses only."""
    train = file.MODULE.make_train(file.TINY, *file.WORLD)
    _, checked = train(jax.random.key(0))
    for name, values in trained[1].items():
        missing = np.isnan(values)
        np.testing.assert_array_equal(np.signbit(checked[name]) & (checked[name] == 0), missing)
        np.testing.assert_allclose(
            checked[name][~missing], values[~missing], rtol=1e-3, atol=1e-5, err_msg=name
        )


def test_types_are_the_same_under_jax_enable_x64(file, trained):
    """Those of a run and of a policy; all that is given has 64 bits."""
    types_ = lambda tree: jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree)
    env, env_params = file.WORLD or envs.make(file.TINY.env, **dict(file.TINY.env_settings))
    shape = env.observation_space(env_params).shape
    shape = (env.num_agents, *shape) if hasattr(env, "num_agents") else shape

    def act(state, observation, rng):
        policy = file.MODULE.make_policy(file.TINY, env, env_params)
        memory = policy(state, observation)[1]
        return policy(state, 1.0 * observation, memory, rng)

    state, rng = trained[0], jax.random.key(0)
    acted = jax.eval_shape(act, state, jnp.zeros(shape), rng)
    with jax.enable_x64(True):
        floats = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), file.TINY)
        assert floats.gamma.dtype == jnp.float64
        run = jax.eval_shape(file.MODULE.make_train(floats, *file.WORLD), rng)
        assert types_(run) == types_(trained)
        assert types_(jax.eval_shape(act, state, jnp.zeros(shape), rng)) == types_(acted)


def compiled(module):
    """As for users in modules that compare bit for bit, which takes twice as long; True there."""
    exact = hasattr(module, "test_slices_are_exactly_the_whole")
    return compiled_as_for_users() if exact else contextlib.nullcontext(False)


def by_points(train, key):
    """Every state and row; the first one is before training."""
    points = [train(key, None, 0)]
    for _ in range(3):
        points.append(train(None, points[-1][0], 1))
    return points


@pytest.fixture(scope="module")
def slices(file, request):
    """TINY point by point."""
    with compiled(request.module):
        return by_points(file.MODULE.make_train(file.TINY, *file.WORLD), jax.random.key(0))


def change_leaves(state, names, change):
    """A state with some of the policy's parameters changed."""
    there = lambda path: all(f"'{name}'" in str(path) for name in names)
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: change(x) if there(path) else x, state.policy.params
    )
    return again(state).replace(policy=state.policy.replace(params=params))


def test_slices_are_exactly_the_whole(file, trained):
    train = file.MODULE.make_train(file.TINY, *file.WORLD)
    with compiled_as_for_users():
        assert_same(train(jax.random.key(0)), trained)


def test_a_point_without_learning_is_the_one_before_training(file, slices, request):
    """As the shell makes it, with the program of all other points."""
    train = file.MODULE.make_train(file.TINY, *file.WORLD)
    with compiled(request.module) as exact:
        state, row = train(None, again(slices[0][0]), 1, False)
    (assert_same if exact else assert_close)((state, row), slices[0])


def again(state):
    """A state whose keys have not been used yet."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda x: jax.random.clone(x) if is_key(x) else x, state)


class Spread(Wrapper):
    """Observations three times as far apart, around five."""

    def reset_env(self, key, params):
        observation, state = self.env.reset_env(key, params)
        return spread(observation), state

    def step_env(self, key, state, action, params):
        observation, *rest = self.env.step_env(key, state, action, params)
        return spread(observation), *rest


def spread(x):
    return 3.0 * x + 5.0


@functools.cache
def spread_out(env):  # the same object for all tests of a file
    return Spread(env)


def test_observations_are_normalised_wherever_a_network_sees_them(file, slices):
    """With statistics that undo it, an environment that is spread out is learned from as the plain
    one; and also rewards are normalised by what was known before the rollout, which is nothing."""
    replay = hasattr(file.TINY, "learning_starts")
    env, params = file.WORLD or envs.make(file.TINY.env, **dict(file.TINY.env_settings))
    on = {name: True for name in ("normalize_obs", "normalize_reward") if hasattr(file.TINY, name)}
    train = file.MODULE.make_train(file.TINY.replace(**on), spread_out(env), params)
    state = again(slices[0][0])
    stats = state.policy.obs_stats
    stats = stats.replace(
        mean=jnp.full_like(stats.mean, 5.0),
        var=jnp.full_like(stats.var, 9.0),
        count=jnp.full_like(stats.count, 1e12 if replay else 1.0),  # a buffer moves them first
    )
    policy = state.policy.replace(obs_stats=stats)
    state, found = state.replace(policy=policy, observation=spread(state.observation)), []
    for _ in range(3 if replay else 1):
        state, row = train(None, state, 1)
        found.append(row)
    expected = [row for _, row in slices[1 : len(found) + 1]]
    for name in file.METRICS:
        np.testing.assert_allclose(
            joined(*found)[name], joined(*expected)[name], rtol=1e-3, atol=1e-5, err_msg=name
        )


def test_the_policy_normalises_what_it_sees(file, slices):
    """By the statistics in its state: what is spread out is acted on as the plain thing."""
    state = slices[0][0]
    stats = state.policy.obs_stats
    stats = stats.replace(mean=jnp.full_like(stats.mean, 5.0), var=jnp.full_like(stats.var, 9.0))
    known = state.replace(policy=state.policy.replace(obs_stats=stats))
    x = jax.random.normal(jax.random.key(0), (64, *state.observation.shape[1:]))

    def actions(state, x, normalize_obs):
        policy = file.MODULE.make_policy(
            file.TINY.replace(normalize_obs=normalize_obs), *file.WORLD
        )
        return jax.vmap(lambda x: policy(state, x)[0])(x)

    plain = actions(state, x, False)
    assert_close(actions(known, spread(x), True), plain, rtol=1e-3, atol=1e-5)
    assert not np.array_equal(actions(state, spread(x), False), plain)


class Leavers(tasks.Twins):
    """Two agents, the second one of which leaves after three steps. The state of the world is what
    the first one sees."""

    def step_env(self, key, state, action, params):
        observation, state, reward, ended, info = super().step_env(key, state, action, params)
        alive = jnp.stack([jnp.array(True), state.time[1] < 3])
        return observation, state, reward, ended, info | {"alive": alive}

    def world_state(self, state, params):
        return self.one.observe(jax.tree.map(lambda x: x[0], state), params)


def plain_statistics(steps, length, terminates, lives):
    """Of CLOCK in episodes of some steps, of which an agent lives the first ones: observations and
    discounted sums of rewards as it lived, the sum that goes on, rewards of ended episodes."""
    time, total, rewards, seen, sums, returns = 0, 0.0, 0.0, [], [], []
    for _ in range(steps):
        observation = [np.cos(3.0 * time), float(terminates and time == length - 1)]
        time += 1
        total, rewards = 0.5 * total + np.sin(5.0 * time), rewards + np.sin(5.0 * time)
        if time <= lives:
            seen.append(observation)
            sums.append(total)
        if time >= lives:
            total = 0.0
        if time == length:
            returns.append(rewards)
            time, rewards = 0, 0.0
    return np.array(seen), np.array(sums), total, np.sum(returns)


def assert_statistics(stats, samples):
    """Of each agent's samples, or of those of all."""
    samples = samples if stats.count.ndim else [np.concatenate(samples)]
    for found, moment in ((stats.mean, np.mean), (stats.var, np.var)):
        expected = np.reshape([moment(x, axis=0) for x in samples], found.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_running_statistics_are_of_what_was_acted_on_and_paid(file):
    """Held against plain NumPy after each of two rollouts, in which episodes of 5 steps terminate
    or are cut. Nothing here depends on an action: XLA leaves out what is learned."""
    env, lives = tasks.Recall(file.CONTINUOUS), (5,)
    if several(file) or file.TAKES_SEVERAL:
        env, lives = Leavers(env), (5, 3)
    names = ("normalize_obs", "normalize_reward", "central_critic")
    config = file.TINY.replace(gamma=0.5, **{n: True for n in names if hasattr(file.TINY, n)})
    make = lambda params: file.MODULE.learner(config, env, params)

    @jax.jit
    def statistics(params):
        def update(state, _):
            state = training.between_updates(make(params).update(state)[0])
            policy, scale = state.policy, getattr(state, "reward_scale", None)
            world_stats = getattr(policy, "world_stats", None)
            return state, (policy.obs_stats, world_stats, scale, state.episodes.returns.total)

        state = training.between_updates(make(params).init(jax.random.key(0)))
        return jax.lax.scan(update, state, None, 2)[1]

    steps = make(tasks.RecallParams()).steps // config.num_envs
    for length, limit in ((5, 99), (99, 5)):
        rows = statistics(tasks.RecallParams(tasks.CLOCK, length, limit))
        for i in range(2):
            plain = [plain_statistics(steps * (i + 1), 5, length == 5, own) for own in lives]
            seen, sums, totals, earned = zip(*plain)
            obs_stats, world_stats, scale, returns = jax.tree.map(lambda x, i=i: x[i], rows)
            assert_statistics(obs_stats, seen)
            if world_stats is not None:
                assert_statistics(world_stats, seen[:1])
            if scale is not None:
                assert_statistics(scale.stats, sums)
                found = np.sort(scale.discounted, axis=None).reshape(len(lives), -1)
                expected = np.broadcast_to(np.sort(totals)[:, None], found.shape)
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(returns, config.num_envs * np.squeeze(earned), rtol=1e-4)


def test_the_program_has_no_host_callback_and_no_lapack(file, slices):
    """Neither that of the start nor that of a point, traced as for `slices`."""
    train = jax.jit(file.MODULE.make_train(file.TINY, *file.WORLD), static_argnums=2)
    for arguments in ((jax.random.key(0), None, 0), (None, again(slices[0][0]), 1)):
        text = train.lower(*arguments).as_text()
        assert "while" in text
        for word in ("callback", "infeed", "outfeed", "lapack"):
            assert word not in text.lower(), word


def test_pinned_values(file, trained):
    """Close values for seed 0; a change here is a change of the algorithm."""
    _, metrics = trained
    for name, expected in file.PINNED.items():
        result = metrics[name][-len(expected) :]
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6, err_msg=name)


# --- several ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(file, floats):
    """One program that trains with each float changed in turn, and at last as they are, with two
    seeds: configs, initial state and metrics, final ones. States are arguments, as in `launch`,
    so that even counters are batched."""
    on = {name: True for name in ("normalize_obs", "normalize_reward") if hasattr(file.TINY, name)}
    base = file.TINY.replace(eval_at_start=False, **{**on, **file.SWEPT})
    changed = {"clip_obs": 0.1, "clip_reward": 0.1, **file.OTHER}
    other = {name: changed.get(name, 0.5 * getattr(base, name)) for name in floats}
    configs = [base.replace(**{name: other[name]}) for name in floats] + [base, base]
    keys = jnp.stack([jax.random.key(0)] * (len(floats) + 1) + [jax.random.key(1)])
    start = jax.vmap(lambda config, key: make_train(file, config)(key, None, 0))
    with jax.debug_key_reuse(False):  # see conftest.vmapped_keys
        start = jax.jit(start)(stacked(configs), keys)
        rest = jax.jit(go_on(file), static_argnums=2)(stacked(configs), start[0], 3)
    return configs, start, rest


def make_train(file, config):
    world = file.WORLD if file.SWEPT_WORLD is None else file.SWEPT_WORLD
    return file.MODULE.make_train(config, *world)


def stacked(configs):
    return jax.tree.map(lambda *x: jnp.array(x, jnp.float32), *configs)


def go_on(file):
    def train(configs, states, points):
        of_one = lambda config, state: make_train(file, config)(None, state, points)
        return jax.vmap(of_one)(configs, states)

    return train


def test_every_float_can_be_vmapped_and_matters(file, floats, swept):
    """Each agent is close to its single run, also that with another seed, and all single runs are
    one program."""
    configs, (_, first), (state, rest) = swept
    state, metrics = jax.tree.map(data, state), joined(first, rest, axis=1)
    numbers_of_programs = set()
    for i, config in enumerate(configs):
        alone = make_train(file, config)(jax.random.key(int(i == len(floats) + 1)))
        mine, base = (jax.tree.map(lambda x, i=i: x[i], (state, metrics)) for i in (i, -2))
        assert_close(file.compared(*mine), file.compared(*alone), **file.TOLERANCE)
        if i < len(floats):
            same = jax.tree.map(lambda x, y: (x == y).all(), *map(file.learned, (mine[0], base[0])))
            assert not all(jax.tree.leaves(same)), floats[i]
        numbers_of_programs.add(training._train._cache_size())
    assert len(numbers_of_programs) == 1
    for name in file.METRICS & {"loss", "policy_loss"}:  # of the two seeds
        assert not np.allclose(metrics[name][-2, -2:], metrics[name][-1, -2:])


def test_slices_are_exact_under_vmap_too(file, swept, vmapped_keys):
    configs, (state, _), _ = swept
    configs = stacked(configs)
    train = jax.jit(go_on(file), static_argnums=2, compiler_options=AS_FOR_USERS)
    expected, rows = train(configs, state, 3), []
    for _ in range(3):
        state, row = train(configs, state, 1)
        rows.append(row)
    assert_same((state, joined(*rows, axis=1)), expected)


# --- static settings --------------------------------------------------------------------------

STATIC_BASE = dict(share_params=True)  # changes of TINY under which each one matters
STATIC_WORLD = None  # where they do, if not in a probe of the file's kind
# Other values, where neither the opposite nor twice as much would do.
STATIC_OTHER = dict(
    activation="swish",
    buffer_dtype="bfloat16",
    cell="mingru",
    conv_layers="none",
    exploration="exponential",
    minibatch_of="trajectories",
    mixer="sum",
    network="simba",
    normalize_over="minibatch",
    num_evals=2,
    num_minibatches=1,
    optimizer="adam",
    risk="wang",
)
# Two name the world, which is given here; see test_the_config_names_the_environment. The third
# needs images; see test_every_network_has_the_layers_that_the_config_names.
STATIC_ELSEWHERE = {"env", "env_settings", "conv_layers"}
OF_RUNS = {"num_evals", "num_eval_episodes", "eval_at_start"}  # they do nothing to an update


@pytest.fixture(scope="module")
def static_base(file):
    fields = {field.name for field in dataclasses.fields(file.TINY)}
    return file.TINY.replace(**{k: v for k, v in file.STATIC_BASE.items() if k in fields})


@pytest.fixture(scope="module")
def static_world(file):
    probe = tasks.Pair(world=True) if several(file) else tasks.Probe(file.CONTINUOUS)
    return file.STATIC_WORLD or (probe, probe.default_params)


def in_tree(field):
    return field.metadata.get("pytree_node", True)


def other_static(file, config, name):
    """The config with another value of a setting."""
    value = getattr(config, name)
    if name in file.STATIC_OTHER:
        other = file.STATIC_OTHER[name]
    elif isinstance(value, bool):
        other = not value
    else:
        sizes = isinstance(value, tuple) and all(type(size) is int for size in value)
        assert sizes or type(value) is int, f"STATIC_OTHER needs another {name} than {value!r}"
        other = tuple(2 * size for size in value) if sizes else 2 * value
    assert other != value, name
    return config.replace(**{name: other})


def programs(file, config, world):
    """The start and an update, as text. One at a time: tracing an update takes long."""
    env, params = world
    learner, key = file.MODULE.learner, jax.eval_shape(lambda: jax.random.key(0))
    floats, params = (jax.tree.map(jnp.asarray, x) for x in (config, params))
    start = lambda config, params, key: learner(config, env, params).init(key)
    start, state = jax.make_jaxpr(start, return_shape=True)(floats, params, key)
    yield text(start)
    update = lambda config, params, state: learner(config, env, params).update(state)
    yield text(jax.make_jaxpr(update)(floats, params, state))


def text(program):
    """What leads to results. Variables are numbered in the order in which they come."""
    found = str(dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars))[0])
    assert not re.search(r"\b0x[0-9a-f]{6}", found), "an address would always differ"
    return found


def of_run(file, config, world):
    """How long a run is, and its metrics, whatever an update does."""
    with pytest.MonkeyPatch.context() as patch:
        learner = file.MODULE.learner
        idle = lambda *world: learner(*world)._replace(update=lambda state: (state, {}))
        patch.setattr(file.MODULE, "learner", idle)
        train = file.MODULE.make_train(config, *world)
        yield train.plan
        yield jax.eval_shape(lambda key: train(key)[1], jax.random.key(0))


def test_every_static_setting_changes_the_program(file, static_base, static_world):
    """By comparing jaxprs: nothing is compiled."""
    names = {field.name for field in dataclasses.fields(file.TINY) if not in_tree(field)}
    with jax.debug_key_reuse(False):  # which takes time
        for traced, own in ((programs, names - OF_RUNS), (of_run, names & OF_RUNS)):
            base = list(traced(file, static_base, static_world))
            for name in own - STATIC_ELSEWHERE:
                config = other_static(file, static_base, name)
                same = all(map(operator.eq, traced(file, config, static_world), base))
                assert not same, f"{name} does nothing"


class Pictures(Wrapper):
    """Each number of an observation (..., 1) as an image of 3x3 pixels."""

    def reset_env(self, key, params):
        observation, state = self.env.reset_env(key, params)
        return pictured(observation), state

    def step_env(self, key, state, action, params):
        observation, *rest = self.env.step_env(key, state, action, params)
        return pictured(observation), *rest

    def observation_space(self, params):
        return tasks.spaces.Box(-1.0, 1.0, (3, 3, 1))


def pictured(x):
    return jnp.broadcast_to(x[..., None, None], (*x.shape[:-1], 3, 3, 1))


def towers(file, config, env, params):
    """Shapes of all parts of networks that see observations, by their place in the state."""
    init = file.MODULE.learner(config, env, jax.tree.map(jnp.asarray, params)).init
    state = jax.eval_shape(init, jax.random.key(0))
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        place = re.match(r".*\['params'\](\['\w*torso\w*'\])?", keystr(path), re.IGNORECASE)
        if place and "opt_state" not in place[0] and "mixer" not in place[0]:
            found.setdefault(place[0], []).append((keystr(path), leaf.shape))
    for place in list(found):  # heads are beside torsos
        if any(other.startswith(f"{place}[") for other in found):
            del found[place]
    return found


def test_every_network_has_the_layers_that_the_config_names(file, static_base, static_world):
    """On images."""
    env, params = static_world
    shapes = lambda config: towers(file, config, Pictures(env), params)
    base = shapes(static_base)
    assert base
    for name in ("conv_layers", "network"):
        if hasattr(static_base, name):
            other = shapes(other_static(file, static_base, name))
            for place in base:
                assert other.get(place) != base[place], f"{name} does nothing to {place}"


# --- what is refused --------------------------------------------------------------------------


def pytest_generate_tests(metafunc):
    if metafunc.function.__name__ == "test_refused_settings_say_what_would_do":
        fields = {field.name for field in dataclasses.fields(metafunc.module.TINY)}
        cases = [case for case in REFUSED_BY_ALL if case[0].keys() <= fields]
        cases += metafunc.module.REFUSED
        metafunc.parametrize("change, message", cases, ids=[str(change) for change, _ in cases])


def test_refused_settings_say_what_would_do(file, change, message):
    world = () if {"env", "env_settings"} & change.keys() else file.WORLD
    with pytest.raises(ValueError, match=message):
        file.MODULE.make_train(file.TINY.replace(**change), *world)


def test_spaces_that_cannot_be_taken_are_refused(file):
    env, params = file.WORLD or (tasks.Probe(file.CONTINUOUS), tasks.ProbeParams())

    class Pairs(type(env)):
        def action_space(self, params):
            return tasks.spaces.Tuple([tasks.spaces.Discrete(2)] * 2)

    class Named(type(env)):
        def observation_space(self, params):
            return tasks.spaces.Dict({"x": tasks.spaces.Box(0, 1, (1,))})

    takes = f"; {file.MODULE.__name__.rpartition('.')[2]} takes"
    first, made = ("Box", (True,)) if file.CONTINUOUS else ("Discrete", ())
    with pytest.raises(ValueError, match=f"{env.name} has actions .*{takes} {first}"):
        file.MODULE.make_train(file.TINY, Pairs(), params)
    with pytest.raises(ValueError, match=f"{env.name} has observations .*{takes} Box"):
        file.MODULE.make_train(file.TINY, Named(*made), params)


def test_an_environment_whose_observations_are_not_those_of_its_space_is_refused(file):
    """By shapes; tests/envs/test_interface.py has everything that is checked."""
    probe, params = tasks.Probe, tasks.ProbeParams()
    if several(file):
        probe, params = tasks.Pair, tasks.PairParams()

    class Wide(probe):
        def step_env(self, key, state, action, params):
            observation, *rest = super().step_env(key, state, action, params)
            return jnp.concatenate([observation] * 3, -1), *rest

    found = r"step_env of P.* returns an observation of shape \(.*3,?\), in place of \(.*1,?\)"
    with pytest.raises(ValueError, match=found):
        file.MODULE.make_train(file.TINY, Wide(*[True] * file.CONTINUOUS), params)


def test_images_too_small_to_convolve_are_refused(file):
    probe, params = tasks.Probe, tasks.ProbeParams()
    if several(file):
        probe, params = tasks.Pair, tasks.PairParams()

    class Narrow(probe):
        def observation_space(self, params):
            return tasks.spaces.Box(0, 1, (2, 5, 1))

    made = (True,) if file.CONTINUOUS else ()
    with pytest.raises(ValueError, match="conv_layers='small' needs images of 3x3 or more"):
        file.MODULE.make_train(file.TINY, Narrow(*made), params)


def test_the_network_sees_pixels_between_zero_and_one_or_normalised(file):
    """`normalize` is what acting, learning and the policy call."""
    stats = parts.RunningStatistics(jnp.full(3, 10.0), jnp.full(3, 4.0), jnp.ones(()))
    policy = stats if several(file) else types.SimpleNamespace(obs_stats=stats)
    see = lambda normalize, x, **clip: file.MODULE.normalize(
        file.TINY.replace(normalize_obs=normalize, **clip), policy, x
    )
    pixels = jnp.array([0, 10, 20], jnp.uint8)
    np.testing.assert_allclose(see(False, pixels), np.array([0.0, 10.0, 20.0]) / 255, rtol=1e-6)
    np.testing.assert_array_equal(see(False, pixels.astype(jnp.int8)), [0.0, 10.0, 20.0])
    np.testing.assert_allclose(see(True, pixels), [-5.0, 0.0, 5.0], rtol=1e-6)
    np.testing.assert_array_equal(see(True, pixels, clip_obs=2.0), [-2.0, 0.0, 2.0])


def test_an_environment_comes_with_its_parameters(file):
    env, params = file.WORLD or (tasks.Probe(file.CONTINUOUS), tasks.ProbeParams())
    for make in (file.MODULE.make_train, file.MODULE.make_policy):
        with pytest.raises(ValueError, match="env was given without env_params: give both"):
            make(file.TINY, env)
        with pytest.raises(ValueError, match="env_params was given without env: give both"):
            make(file.TINY, env_params=params)


def test_the_config_names_the_environment(file, static_world, monkeypatch):
    asked = []
    make = lambda name, **settings: asked.append((name, settings)) or static_world
    monkeypatch.setattr(envs, "make", make)
    config = file.TINY.replace(env="Mine", env_settings=(("size", 3),))
    file.MODULE.make_train(config)
    file.MODULE.make_policy(config)
    assert asked == [("Mine", {"size": 3})] * 2


def test_forbidden_actions_are_never_taken_or_refused(file):
    """Each would cost 100: neither in training nor in evaluation does any return fall below 0."""
    env = tasks.Probe(file.CONTINUOUS, masked=True)
    params = tasks.ProbeParams(task=tasks.SWING, max_steps_in_episode=3)
    if not file.HEEDS_MASKS:
        never = "which actions .* cannot heed" if file.CONTINUOUS else "which .* would not heed"
        with pytest.raises(ValueError, match=f"Probe has an action_mask, {never}"):
            file.MODULE.make_train(file.TINY, env, params)
        return
    config = file.TINY.replace(num_eval_episodes=32)
    state, metrics = file.MODULE.make_train(config, env, params)(jax.random.key(0))
    assert (np.asarray(metrics["episode_return"][1:]) > -10.0).all()
    assert (np.asarray(metrics["eval_return"]) > -10.0).all()
    policy = file.MODULE.make_policy(config, env, params)
    x = jnp.ones(1)
    for mask in np.eye(3, dtype=bool):
        assert policy(state, x, mask=jnp.array(mask))[0] == mask.argmax()
        key = jax.random.key(1)
        assert policy(state, x, rng=key, mask=jnp.array(mask))[0] == mask.argmax()


def test_several_agents_are_refused(file):
    with pytest.raises(ValueError, match="Pair has several agents; ippo, .* take it"):
        file.MODULE.make_train(file.TINY, tasks.Pair(), tasks.PairParams())


def test_make_train_leaves_the_config_alone(file):
    before = dataclasses.asdict(file.TINY)
    file.MODULE.make_train(file.TINY, *file.WORLD)
    assert dataclasses.asdict(file.TINY) == before
