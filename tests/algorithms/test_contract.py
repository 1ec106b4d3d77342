"""The contract of every algorithm file; `-k "[ppo"` runs the tests of ppo.py."""

import contextlib
import dataclasses
import functools
import inspect
import operator
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr
from jax.tree_util import keystr

import envs
from algorithms import parts, ppo
from algorithms.parts import reads, training
from envs import loops
from envs.gymnax import Wrapper
from tests import probe as tasks
from tests.algorithms.cases import (
    RELATIVES,
    Spread,
    again,
    assert_close,
    assert_same,
    by_points,
    cases,
    data,
    go_on,
    in_tree,
    joined,
    of_relatives_seldom,
    of_swept,
    spread,
    stacked,
    whole,
)
from tests.conftest import AS_FOR_USERS, compiled_as_for_users
from tests.seconds import WHOLE
from website import glossary

pytestmark = pytest.mark.cases()
# Of `parts.program`, to which make_train of every file gives its learner: five files show it.
of_program = pytest.mark.cases(lambda case: case.name in WHOLE)
of_any_world = pytest.mark.cases(lambda case: not case.game)  # a probe can be its environment
normalizes = pytest.mark.cases(lambda case: case.has("normalize_obs"))

LARGE = {"dreamer"}  # its programs take ten times as long to trace as those of others

REFUSED_BY_ALL = [
    (dict(num_envs=0), "num_envs=0: give a whole number, 1 or more"),
    (dict(num_steps=8.5), "num_steps=8.5"),
    (dict(total_timesteps=-1), "total_timesteps=-1"),
    (dict(update_epochs=0), "update_epochs=0"),
    (dict(num_evals=0), "num_evals=0"),
    (dict(num_eval_episodes=-1), "num_eval_episodes=-1"),
    (dict(conv_layers="large"), "conv_layers='large': give none or small or nature or impala"),
    (dict(compute_dtype="float16"), "compute_dtype='float16': give float32 or bfloat16"),
    (dict(hidden_sizes=(8, 0)), "hidden_sizes=0"),
    (dict(gamma=1.5), r"gamma=1.5: give a number in \[0, 1\]"),
    (dict(learning_rate=np.array(-1.0)), r"learning_rate=-1.0: give a number in \[0, inf\)"),
    (dict(activation="tanhh"), "activation='tanhh'"),
    (dict(anneal_lr="no"), "anneal_lr='no': give True or False"),
    (dict(num_envs=2**16, num_steps=2**16), "a rollout has 4294967296 samples"),
    (dict(env="CartPol-v1"), "did you mean CartPole-v1"),
]


# --- one agent --------------------------------------------------------------------------------


def test_make_train_is_that_of_ppo(case):
    """So tests of what it makes of a learner hold for every file."""
    text = lambda module: inspect.getsource(module.make_train).split('"""')
    assert text(case.module)[::2] == text(ppo)[::2]


def test_every_function_takes_values_of_numpy_and_jax(case):
    """test_fields.py says which; what follows sees a Config with Python's own."""
    names = ("make_train", "make_policy", "make_probabilities")
    makers = [getattr(case.module, name) for name in names if hasattr(case.module, name)]
    assert len(makers) > 1
    for function in makers:
        assert "@parts.with_environment\n" in inspect.getsource(function), function.__name__


@of_program
def test_values_of_numpy_and_jax_make_the_same_program(case):
    numbers = (np.int64, np.array, jnp.array, float)
    whole = {name: value for name, value in vars(case.tiny).items() if type(value) is int}
    changes = {name: numbers[i % 4](value) for i, (name, value) in enumerate(whole.items())}
    sizes = {"hidden_sizes": np.array(case.tiny.hidden_sizes)}
    assert case.make_train(**changes, **sizes).plan == case.make_train().plan


@pytest.mark.cases(lambda case: not case.replay and not case.several)  # the other file's names
def test_metrics_have_the_points_as_leading_axis(case, trained):
    state, metrics = trained
    np.testing.assert_allclose(metrics["timestep"], np.arange(4) * case.tiny.total_timesteps / 3)
    assert metrics["eval_return"].shape == (4, 2) and metrics["eval_length"].shape == (4, 2)
    for name in case.metrics:
        assert np.isnan(metrics[name][0]) and np.isfinite(metrics[name][1:]).all(), name
        assert metrics[name].shape == (4,), name
    others = {"timestep", "num_episodes", "episode_return", "episode_length"}
    assert set(metrics) == case.metrics | others | case.evaluation
    assert int(state.update) == 3


def test_metrics_are_explained(case, trained):
    """In docs/metrics.md; the site knows from the file which ones it logs."""
    with_settings = {"eval_exploitability", "policy_std"}
    logged = set(trained[1])
    assert logged <= set(glossary.logged(case.name)) <= logged | with_settings


@pytest.mark.cases(lambda case: case.has("anneal_lr") and not case.has("lr_floor"))
def test_the_learning_rate_used_is_logged(case, trained):
    """It is constant, or falls from each third of the run to the next.

    A cosine and a warm-up have tests of their own.
    """
    _, metrics = trained
    shares = metrics["current_learning_rate"][1:].reshape(3, -1) / case.tiny.learning_rate
    used = np.isfinite(shares[:, 0])  # by files with replay, once they learn
    ends = np.arange(3)[used, None] + np.array([1.0, 0.0])
    low, high = 1.0 - ends.T / 3.0 if case.tiny.anneal_lr else (1.0, 1.0)
    assert used[-1]
    assert (low - 1e-5 < shares[used].T).all() and (high + 1e-5 > shares[used].T).all()


def test_episode_return_is_nan_until_an_episode_ends(trained):
    _, metrics = trained
    none = np.asarray(metrics["num_episodes"]) == 0
    assert none.any()
    for name in ("episode_return", "episode_length"):
        assert (none == np.isnan(metrics[name]).T).all(), name  # of every agent


@pytest.mark.slow  # a second program for each file; parts and the launcher have quick tests
def test_metrics_without_data_are_minus_zero_under_jax_debug_nans(case, trained, debug_nans):
    """So this setting stops a run only at a NaN of its losses."""
    train = case.make_train()
    _, checked = train(jax.random.key(0))
    for name, values in trained[1].items():
        missing = np.isnan(values)
        np.testing.assert_array_equal(np.signbit(checked[name]) & (checked[name] == 0), missing)
        np.testing.assert_allclose(
            checked[name][~missing], values[~missing], rtol=1e-3, atol=1e-5, err_msg=name
        )


@of_program
def test_types_are_the_same_under_jax_enable_x64(case, trained):
    """Checked for a run and a policy; all inputs have 64 bits."""
    types_ = lambda tree: jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree)
    env, env_params = case.world or envs.make(case.tiny.env, **dict(case.tiny.env_settings))
    shape = env.observation_space(env_params).shape
    shape = (env.num_agents, *shape) if hasattr(env, "num_agents") else shape

    def act(state, observation, rng):
        policy = case.module.make_policy(case.tiny, env, env_params)
        memory = policy(state, observation)[1]
        return policy(state, 1.0 * observation, memory, rng)

    state, rng = trained[0], jax.random.key(0)
    acted = jax.eval_shape(act, state, jnp.zeros(shape), rng)
    with jax.enable_x64(True):
        floats = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), case.tiny)
        assert floats.gamma.dtype == jnp.float64
        run = jax.eval_shape(case.module.make_train(floats, *case.world), rng)
        assert types_(run) == types_(trained)
        assert types_(jax.eval_shape(act, state, jnp.zeros(shape), rng)) == types_(acted)


@of_program
def test_strict_settings_of_jax_change_nothing(case, trained):
    """Everything is traced with them, and a state is made with transfers forbidden."""
    rng = jax.random.key(0)
    strict = jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict")
    with contextlib.ExitStack() as stack:
        for one in (*strict, jax.transfer_guard("disallow")):
            stack.enter_context(one)
        train = case.make_train()
        jax.eval_shape(train, rng)
        parts.first_state(train, rng)


def test_all_states_of_a_run_have_the_same_types(slices):
    """This includes weak types: otherwise the program of a point would be compiled twice."""
    start, *later = (jax.tree.map(jax.typeof, state) for state, _ in slices)
    assert all(types == start for types in later)


SELDOM = dict(slow=lambda case: not case.exact)  # what compiles longest


@pytest.mark.cases(**SELDOM)
def test_slices_are_exactly_the_whole(case, exact_slices):
    """The start itself has the next test."""
    (start, _), *slices = exact_slices
    with compiled_as_for_users():
        assert_same(case.make_train()(None, again(start), 3), whole(slices))


def before_training(case):
    """The point before training, by a program of its own. `slices` has it by the program of all
    points, which does not learn then."""
    return case.make_train()(jax.random.key(0), None, 0)


@pytest.mark.cases(lambda case: not case.exact, slow=lambda _: True)  # a second program
def test_a_point_without_learning_is_close_to_the_one_before_training(case, slices):
    assert_close(slices[0], before_training(case))


@pytest.mark.cases(**SELDOM)
def test_a_point_without_learning_is_the_one_before_training(case, exact_slices):
    with compiled_as_for_users():
        assert_same(exact_slices[0], before_training(case))


@of_any_world
@normalizes
@of_relatives_seldom
def test_observations_are_normalised_wherever_a_network_sees_them(case, slices):
    """Normalised observations of a spread-out environment give the same learning as plain ones.

    Rewards are normalised by the statistics from before the rollout, which are empty here.
    """
    replay = hasattr(case.tiny, "learning_starts")
    env, params = case.world or envs.make(case.tiny.env, **dict(case.tiny.env_settings))
    on = {name: True for name in ("normalize_obs", "normalize_reward") if hasattr(case.tiny, name)}
    on |= {"clip_reward": 100.0} if case.has("normalize_reward") else {}
    config = case.tiny.replace(num_eval_episodes=0, **on)  # the policy has a test of its own
    train = case.module.make_train(config, Spread(env), params)
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
    for name in case.metrics:
        np.testing.assert_allclose(
            joined(*found)[name], joined(*expected)[name], rtol=1e-3, atol=1e-5, err_msg=name
        )


@of_any_world
@normalizes
def test_the_policy_normalises_observations(case, slices):
    """Statistics in the state undo a spread of the observations."""
    state = slices[0][0]
    stats = state.policy.obs_stats
    stats = stats.replace(mean=jnp.full_like(stats.mean, 5.0), var=jnp.full_like(stats.var, 9.0))
    known = state.replace(policy=state.policy.replace(obs_stats=stats))
    x = jax.random.normal(jax.random.key(0), (64, *state.observation.shape[1:]))

    def actions(state, x, normalize_obs):
        policy = case.module.make_policy(
            case.tiny.replace(normalize_obs=normalize_obs), *case.world
        )
        return jax.jit(jax.vmap(lambda x: policy(state, x)[0]))(x)

    plain = actions(state, x, False)
    assert_close(actions(known, spread(x), True), plain, rtol=1e-3, atol=1e-5)
    if case.name != "vdn":  # whose first network prefers one action whatever it sees
        assert not np.array_equal(actions(state, spread(x), False), plain)


class Leavers(tasks.Twins):
    """Two agents; the second one leaves after three steps. The world state is agent 0's
    observation."""

    def step_env(self, key, state, action, params):
        observation, state, reward, ended, info = super().step_env(key, state, action, params)
        alive = jnp.stack([jnp.array(True), state.time[1] < 3])
        return observation, state, reward, ended, info | {"alive": alive}

    def world_state(self, state, params):
        return self.one.observe(jax.tree.map(lambda x: x[0], state), params)


class Clock(tasks.Recall):
    """Its steps do not even look at the action, so statistics need no policy."""

    def step_env(self, key, state, action, params):
        return super().step_env(key, state, jnp.zeros_like(action), params)


def plain_statistics(steps, length, terminates, lives):
    """Statistics of CLOCK for an agent that lives the first steps of each episode.

    Returns the observations and discounted sums of rewards while it lived, the running sum, and the
    rewards of ended episodes.
    """
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
    """Asserts the statistics of each agent's samples, or of those of all agents."""
    samples = samples if stats.count.ndim else [np.concatenate(samples)]
    for found, moment in ((stats.mean, np.mean), (stats.var, np.var)):
        expected = np.reshape([moment(x, axis=0) for x in samples], found.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def only_what_is_returned(function):
    """jax.jit without operations that no result needs: XLA would drop them too, but later."""

    @jax.jit
    def run(*args):
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        needed, _ = dce_jaxpr(program.jaxpr, [True] * len(program.out_avals), True)
        results = jaxpr_as_fun(program.replace(jaxpr=needed))(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return run


@of_any_world
@normalizes
@pytest.mark.cases(lambda case: not (case.of_family("actor-critics") and case.replay))
def test_running_statistics_are_of_observations_acted_on_and_rewards(case):
    """Compared with NumPy after each of two rollouts, in which episodes of 5 steps terminate or are
    cut.

    Nothing here depends on an action, so the program has no learning.
    """
    env, lives = Clock(case.continuous), (5,)
    if case.takes_several:
        env, lives = Leavers(env), (5, 3)
    env.limit_name = "none"  # REPPO cuts no episode without a limit
    names = ("normalize_obs", "normalize_reward", "central_critic")
    config = case.tiny.replace(gamma=0.5, **{n: True for n in names if hasattr(case.tiny, n)})
    make = lambda params: case.module.learner(config, env, params)

    @only_what_is_returned
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


@pytest.mark.cases(lambda case: case.pinned)
def test_pinned_values(case, trained):
    """Values close to the pinned ones for seed 0; a change here is a change of the algorithm."""
    _, metrics = trained
    found = {name: metrics[name][-len(x) :].tolist() for name, x in case.pinned.items()}
    for name, expected in case.pinned.items():
        np.testing.assert_allclose(found[name], expected, 1e-4, 1e-6, err_msg=f"of {found}")


@pytest.mark.slow  # a second program for each file; the loops have quick tests
def test_programs_for_accelerators_compute_the_same(case, trained, monkeypatch):
    """Their loops are written out; here they run on the CPU."""
    monkeypatch.setattr(loops, "platform", lambda: "gpu")
    fresh = functools.partial(training._train.__wrapped__)  # or else jax has the CPU's program
    jitted = jax.jit(fresh, static_argnames=training.STATIC)
    monkeypatch.setattr(training, "_train", jitted)
    again = whole(by_points(case.make_train(), jax.random.key(0)))
    assert jitted._cache_size() > 0
    assert_close(case.compared(*again), case.compared(*trained), **case.tolerance)


# --- several ----------------------------------------------------------------------------------


@pytest.mark.cases(slow=lambda case: case.name in RELATIVES | LARGE)
def test_every_float_can_be_vmapped_and_matters(case, floats, swept):
    _, _, (state, metrics) = swept
    state, metrics = jax.tree.map(data, state), jax.tree.map(np.asarray, metrics)
    learned = lambda i: case.learned(jax.tree.map(lambda x: x[i], state))
    for i, name in enumerate(floats):
        same = jax.tree.map(lambda x, y: (x == y).all(), learned(i), learned(-2))
        assert not all(jax.tree.leaves(same)), name
    for name in case.metrics & {"loss", "policy_loss"}:  # of the two seeds
        assert not np.allclose(metrics[name][-2, -2:], metrics[name][-1, -2:])


@pytest.mark.cases(slow=lambda case: case.name not in WHOLE or case.name in RELATIVES)
def test_vmapped_runs_are_close_to_single_ones_which_share_a_program(case, swept):
    """With each float changed in turn, and with another seed."""
    configs, start, trained = swept
    trained = jax.tree.map(data, trained)
    numbers_of_programs = set()
    for i, config in enumerate(configs):
        first = again(jax.tree.map(lambda x, i=i: x[i], start))
        alone = of_swept(case, config)(None, first, 3)
        mine = jax.tree.map(lambda x, i=i: x[i], trained)
        assert_close(case.compared(*mine), case.compared(*alone), **case.tolerance)
        numbers_of_programs.add(training._train._cache_size())
    assert len(numbers_of_programs) == 1


@pytest.mark.slow
def test_slices_are_exact_under_vmap_too(case, swept, vmapped_keys):
    configs, state, _ = swept
    configs = stacked(configs)
    train = jax.jit(go_on(case), static_argnums=2, compiler_options=AS_FOR_USERS)
    expected, rows = train(configs, state, 3), []
    for _ in range(3):
        state, row = train(configs, state, 1)
        rows.append(row)
    assert_same((state, joined(*rows, axis=1)), expected)


# --- static settings --------------------------------------------------------------------------

STATIC_BASE = dict(share_params=True, cell="gru")  # under which each setting matters, but for
STATIC_NEEDS = {"window": dict(cell="gtrxl")}
# Other values, for settings where neither the opposite nor twice the value would do.
STATIC_OTHER = dict(
    activation="swish",
    actor_value="mean",
    buffer_dtype="bfloat16",
    cell="mingru",
    compute_dtype="bfloat16",
    conv_layers="none",
    exploration="constant",
    minibatch_of="trajectories",
    mixer="sum",
    network="simba",
    norm="rms",
    normalize_over="minibatch",
    num_evals=2,
    latent_dtype="bfloat16",
    num_bins=13,
    num_minibatches=1,
    optimizer="adam",
    priority="score",
    reconstruction="bits",
    risk="wang",
    score="maxmc",
    target_critics=1,
)
# The first two name the environment, which is given here; see
# test_the_config_names_the_environment. The third needs images; see
# test_every_network_has_the_layers_that_the_config_names.
STATIC_ELSEWHERE = {"env", "env_settings", "conv_layers"}
OF_RUNS = {"num_evals", "num_eval_episodes", "eval_at_start"}  # these do not change an update


@pytest.fixture(scope="module")
def static_base(case):
    return case.tiny.replace(**{k: v for k, v in STATIC_BASE.items() if case.has(k)})


@pytest.fixture(scope="module")
def static_world(case):
    probe = tasks.Pair(world=True) if case.several else tasks.Probe(case.continuous)
    if case.has("asymmetric"):
        probe.world_state = lambda state, params: state.x[None]
    return case.static_world or (probe, probe.default_params)


def other_static(case, config, name):
    """The config with another value of a setting."""
    value = getattr(config, name)
    if name in STATIC_OTHER:
        other = STATIC_OTHER[name]
    elif isinstance(value, bool):
        other = not value
    else:
        sizes = isinstance(value, tuple) and all(type(size) is int for size in value)
        assert sizes or type(value) is int, f"STATIC_OTHER needs another {name} than {value!r}"
        other = tuple(2 * size for size in value) if sizes else 2 * value
    assert other != value, name
    return config.replace(**{name: other})


def programs(case, config, world):
    """The programs of the start and of an update as text, one at a time: tracing takes long.

    An update that reads a float also uses it, or nobody would warn of it.
    """
    env, params = world
    learner, key = case.module.learner, jax.eval_shape(lambda: jax.random.key(0))
    floats, params = (jax.tree.map(jnp.asarray, x) for x in (config, params))
    start = lambda config, params, key: learner(config, env, params).init(key)
    start, state = jax.make_jaxpr(start, return_shape=True)(floats, params, key)
    yield text(start)[0]
    read = set()

    def update(config, params, state):
        config = reads.watched(config)
        new = learner(config, env, params).update(state)
        read.update(vars(config)["_read"])
        return new

    found, used = text(jax.make_jaxpr(update)(floats, params, state))
    names = [path[0].name for path, _ in jax.tree_util.tree_leaves_with_path(floats)]
    idle = {name for name, is_used in zip(names, used) if not is_used}
    assert not idle & read, f"of {config}"
    yield found


def text(program):
    """The equations that lead to results, with variables numbered in order of appearance.

    And which inputs they need.
    """
    needed, used = dce_jaxpr(program.jaxpr, [True] * len(program.jaxpr.outvars))
    found = str(needed)
    assert not re.search(r"\b0x[0-9a-f]{6}", found), "an address would always differ"
    return found, used


def of_run(case, config, world):
    """The length of a run and its metrics, whatever an update does."""
    with pytest.MonkeyPatch.context() as patch:
        learner = case.module.learner
        idle = lambda *world: learner(*world)._replace(update=lambda state: (state, {}))
        patch.setattr(case.module, "learner", idle)
        train = case.module.make_train(config, *world)
        yield train.plan
        yield jax.eval_shape(lambda key: train(key)[1], jax.random.key(0))


def static_names(case):
    return {f.name for f in dataclasses.fields(case.tiny) if not in_tree(f)} - STATIC_ELSEWHERE


@functools.cache
def turns():
    """The files whose turn it is to show a setting that several have: {setting: name of a file}."""
    files = [one for one in cases() if not one.game and one.name not in RELATIVES | LARGE]
    names = sorted(set().union(*map(static_names, files)))
    having = {name: [one.name for one in files if name in static_names(one)] for name in names}
    return {name: some[number % len(some)] for number, (name, some) in enumerate(having.items())}


@of_any_world
def test_every_static_setting_is_read(case, static_base, static_world):
    """While the start and an update are traced."""
    env, params = static_world
    floats, params = (jax.tree.map(jnp.asarray, x) for x in (static_base, params))
    read = set(OF_RUNS | STATIC_NEEDS.keys())
    if not case.has("anneal_lr"):
        read.add("total_timesteps")

    def trace(config, params, key):
        config = reads.watched(config)
        learner = case.module.learner(config, env, params)
        learner.update(learner.init(key))
        read.update(vars(config)["_read"])

    with jax.debug_key_reuse(False):  # which takes time
        jax.eval_shape(trace, floats, params, jax.eval_shape(lambda: jax.random.key(0)))
    assert not static_names(case) - read


@of_any_world
@pytest.mark.cases(
    rows=lambda case: {"some": False, "every": True},
    slow=lambda case, every: every or case.name not in turns().values(),
)
@pytest.mark.filterwarnings("ignore::envs.warn.KitWarning")
def test_static_settings_change_the_program(case, row, static_base, static_world):
    """Jaxprs are compared; nothing is compiled. Quick tests have each setting in one file."""
    names = {name for name in static_names(case) if row or turns().get(name) == case.name}
    scheduled = case.has("anneal_lr")  # or else an update is the same in a longer run
    of_runs = OF_RUNS if scheduled else OF_RUNS | {"total_timesteps"}
    with jax.debug_key_reuse(False):  # which takes time
        for traced, own in ((programs, names - of_runs), (of_run, names & of_runs)):
            usual = list(traced(case, static_base, static_world)) if own else []
            for name in own:
                config = static_base.replace(**STATIC_NEEDS.get(name, {}))
                base = traced(case, config, static_world) if name in STATIC_NEEDS else usual
                changed = traced(case, other_static(case, config, name), static_world)
                assert not all(map(operator.eq, changed, base)), f"{name} does nothing"


@of_program
@pytest.mark.cases(lambda case: case.has("buffer_dtype"))
def test_images_can_be_stored_as_bits(case):
    config = case.tiny.replace(env="Breakout-MinAtar", buffer_dtype="bool", num_eval_episodes=0)
    state, _ = jax.eval_shape(
        case.module.make_train(config), jax.eval_shape(lambda: jax.random.key(0))
    )
    replay = state.replay.transitions
    replay = getattr(replay, "steps", replay)  # of sequences
    assert replay.observation.shape == replay.final_observation.shape
    assert replay.observation.shape[-3:] == (10, 10, 4) and replay.observation.size == 40 * 400
    assert replay.observation.dtype == replay.final_observation.dtype == bool
    assert len(jax.tree.leaves(state.policy.params)) >= 6  # a convolution, too


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


def towers(case, config, env, params):
    """Shapes of all network parts that process observations, by their place in the state."""
    init = case.module.learner(config, env, jax.tree.map(jnp.asarray, params)).init
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


@of_any_world
def test_every_network_has_the_layers_that_the_config_names(case, static_base, static_world):
    """Checked with images."""
    env, params = static_world
    shapes = lambda config: towers(case, config, Pictures(env), params)
    base = shapes(static_base)
    assert base
    for name in ("conv_layers", "network"):
        if hasattr(static_base, name):
            other = shapes(other_static(case, static_base, name))
            for place in base:
                assert other.get(place) != base[place], f"{name} does nothing to {place}"


@pytest.mark.cases(lambda case: case.has("compute_dtype", "hidden_sizes"))
def test_hidden_layers_of_every_network_compute_in_the_dtype(case, static_base, static_world):
    """Heads, and all of the state, stay float32. Nothing is compiled."""
    sizes = {name: (37,) for name in ("hidden_sizes", "critic_hidden_sizes") if case.has(name)}
    config, layers = static_base.replace(compute_dtype="bfloat16", **sizes), []

    def record(apply, args, kwargs, context):
        if isinstance(context.module, nn.Dense) and context.method_name == "__call__":
            layers.append((context.module.path, context.module.features, context.module.dtype))
        return apply(*args, **kwargs)

    env, params = static_world
    learner = case.module.learner(config, env, jax.tree.map(jnp.asarray, params))
    with nn.intercept_methods(record):
        before = jax.eval_shape(learner.init, jax.eval_shape(lambda: jax.random.key(0)))
        after, _ = jax.eval_shape(learner.update, before)
    assert len({path for path, *_ in layers}) >= 2
    for path, features, dtype in layers:
        assert dtype == ("bfloat16" if features == 37 else None), path
    dtypes = lambda state: {leaf.dtype for leaf in jax.tree.leaves(state)}
    assert jnp.dtype("bfloat16") not in dtypes(before) | dtypes(after)


# --- what is refused --------------------------------------------------------------------------


def refused(case):
    """The rows of a parametrised test."""
    common = [(change, message) for change, message in REFUSED_BY_ALL if case.has(*change)]
    return {str(change): (change, message) for change, message in (*common, *case.refused)}


@pytest.mark.cases(rows=refused)
def test_refused_settings_name_a_remedy(case, row):
    change, message = row
    world = () if {"env", "env_settings"} & change.keys() else case.world
    with pytest.raises(ValueError, match=message):
        case.module.make_train(case.tiny.replace(**change), *world)


@of_any_world
def test_spaces_that_cannot_be_taken_are_refused(case):
    env, params = case.world or (tasks.Probe(case.continuous), tasks.ProbeParams())

    class Pairs(type(env)):
        def action_space(self, params):
            return tasks.spaces.Tuple([tasks.spaces.Discrete(2)] * 2)

    class Named(type(env)):
        def observation_space(self, params):
            return tasks.spaces.Dict({"x": tasks.spaces.Box(0, 1, (1,))})

    takes = f"; {case.name} takes"
    first, made = ("Box", (True,)) if case.continuous else ("Discrete", ())
    with pytest.raises(ValueError, match=f"{env.name} has actions .*{takes} {first}"):
        case.module.make_train(case.tiny, Pairs(), params)
    with pytest.raises(ValueError, match=f"{env.name} has observations .*{takes} Box"):
        case.module.make_train(case.tiny, Named(*made), params)


@of_any_world
def test_an_environment_whose_observations_are_not_those_of_its_space_is_refused(case):
    """Compared by shapes; tests/envs/test_interface.py covers all checks."""
    probe, params = tasks.Probe, tasks.ProbeParams()
    if case.several:
        probe, params = tasks.Pair, tasks.PairParams()

    class Wide(probe):
        def step_env(self, key, state, action, params):
            observation, *rest = super().step_env(key, state, action, params)
            return jnp.concatenate([observation] * 3, -1), *rest

    found = r"step_env of P.* returns an observation of shape \(.*3,?\), in place of \(.*1,?\)"
    with pytest.raises(ValueError, match=found):
        case.module.make_train(case.tiny, Wide(*[True] * case.continuous), params)


@of_any_world
def test_images_too_small_to_convolve_are_refused(case):
    probe, params = tasks.Probe, tasks.ProbeParams()
    if case.several:
        probe, params = tasks.Pair, tasks.PairParams()

    class Narrow(probe):
        def observation_space(self, params):
            return tasks.spaces.Box(0, 1, (2, 5, 1))

    made = (True,) if case.continuous else ()
    with pytest.raises(ValueError, match="conv_layers='small' needs images of 3x3 or more"):
        case.module.make_train(case.tiny, Narrow(*made), params)


def test_an_environment_comes_with_its_parameters(case):
    env, params = case.world or (tasks.Probe(case.continuous), tasks.ProbeParams())
    for make in (case.module.make_train, case.module.make_policy):
        with pytest.raises(ValueError, match="env was given without env_params: give both"):
            make(case.tiny, env)
        with pytest.raises(ValueError, match="env_params was given without env: give both"):
            make(case.tiny, env_params=params)


@of_any_world
def test_the_config_names_the_environment(case, static_world, monkeypatch):
    asked = []
    make = lambda name, **settings: asked.append((name, settings)) or static_world
    monkeypatch.setattr(envs, "make", make)
    config = case.tiny.replace(env="Mine", env_settings=(("size", 3),))
    case.module.make_train(config)
    case.module.make_policy(config)
    assert asked == [("Mine", {"size": 3})] * 2


@of_any_world
@pytest.mark.cases(lambda case: not case.several)
def test_forbidden_actions_are_never_taken_or_refused(case):
    """A forbidden action would cost 100, and no return falls below 0 in training or evaluation.

    Evaluation is of all files alike, so few of them play it here.
    """
    env = tasks.Probe(case.continuous, masked=True)
    params = tasks.ProbeParams(task=tasks.SWING, max_steps_in_episode=3)
    if not case.heeds_masks:
        never = "which actions .* cannot heed" if case.continuous else "which .* would not heed"
        with pytest.raises(ValueError, match=f"Probe has an action_mask, {never}"):
            case.module.make_train(case.tiny, env, params)
        return
    config = case.tiny.replace(num_eval_episodes=32)
    if case.name in WHOLE and case.name not in RELATIVES:
        state, metrics = case.module.make_train(config, env, params)(jax.random.key(0))
        assert (np.asarray(metrics["eval_return"]) > -10.0).all()
        returns = metrics["episode_return"][1:]
    else:
        learner = case.module.learner(config, env, params)

        @only_what_is_returned
        def played(key):
            """The first state and returns, without most of the learning."""
            start = learner.init(key)
            metrics, _ = learner.update(start)[0].episodes.metrics()
            return start, metrics["episode_return"]

        state, returns = played(jax.random.key(0))
    assert (np.asarray(returns) > -10.0).all()
    policy = case.module.make_policy(config, env, params)
    x = jnp.ones(1)
    act = lambda mask, key: [policy(state, x, rng=rng, mask=mask)[0] for rng in (None, key)]
    act = jax.jit(act)
    for mask in np.eye(3, dtype=bool):
        assert act(mask, jax.random.key(1)) == [mask.argmax()] * 2


@of_any_world
def test_several_agents_or_one_are_refused_unless_it_takes_them(case):
    make_train = functools.partial(case.module.make_train, case.tiny)
    if not case.takes_several:
        with pytest.raises(ValueError, match="Pair has several agents; ippo, .* take it"):
            make_train(tasks.Pair(), tasks.PairParams())
    if case.several:
        with pytest.raises(ValueError, match="Probe has one agent and no axis of agents; "):
            make_train(tasks.Probe(), tasks.ProbeParams())


def test_make_train_leaves_the_config_alone(case):
    before = dataclasses.asdict(case.tiny)
    case.make_train()
    assert dataclasses.asdict(case.tiny) == before
