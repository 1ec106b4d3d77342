"""From init and update to a learning curve: environments, large counts, weighted means."""

import re
import types
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import envs
from algorithms import ippo, parts, ppo
from algorithms.parts import loops, training
from envs.episodes import EpisodeStatistics
from tests import probe as tasks


def make_config(**settings):
    settings = {"total_timesteps": 12, "num_evals": 3, **settings}
    return types.SimpleNamespace(env="CartPole-v1", env_settings=(("max_steps", 9),), **settings)


@struct.dataclass
class Named:
    env: str = parts.static("CartPole-v1")
    env_settings: tuple[tuple[str, Any], ...] = parts.static((("max_steps", 9),))


# --- the environment --------------------------------------------------------------------------


def test_the_world_is_the_config_s_or_the_one_that_is_given(probe):
    config, *world = parts.resolve(Named(), None, None)
    assert tuple(world) == envs.make("CartPole-v1", max_steps=9) and config == Named()
    given = probe, tasks.ProbeParams()
    assert parts.resolve(Named(), *given) == (Named(), *given)
    config, *world = parts.resolve(Named(env_settings={"max_steps": np.int64(9)}), None, None)
    assert tuple(world) == envs.make("CartPole-v1", max_steps=9) and config == Named()


def test_an_environment_and_its_parameters_come_together(probe):
    with pytest.raises(ValueError, match=r"env was given without env_params: give both .*neither"):
        parts.resolve(Named(), probe, None)
    with pytest.raises(ValueError, match=r"env_params was given without env: give both .*neither"):
        parts.resolve(Named(), None, tasks.ProbeParams())


# --- the policy -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def acting():
    """Of CartPole, a state and an observation."""
    config = ppo.Config(total_timesteps=8, num_envs=2, num_steps=4, hidden_sizes=(4,))
    start = training.first_state(ppo.make_train(config), jax.random.key(0))
    return config, start, jnp.zeros(4)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(observation=jnp.zeros((3, 4))), r"an obs.* CartPole-v1 .* \(4,\), not \(3, 4\): jax"),
        (dict(observation=[0.0, 0.0]), r"an obs.* \(4,\), not \(2,\): jax"),
        (dict(memory=jax.random.key(0)), "its memory is a key: give that as rng="),
        (dict(state=(1, 2)), "its state is a tuple: give what train returns first"),
        (dict(state=None), "its state is a NoneType: give"),
    ],
)
def test_a_policy_says_which_argument_is_wrong(acting, changes, message):
    config, state, observation = acting
    given = {"state": state, "observation": observation} | changes
    with pytest.raises(ValueError, match=f"^policy: {message}"):
        ppo.make_policy(config)(**given)


def test_a_policy_takes_one_observation_as_a_list_too_and_of_several_trials_none(acting):
    config, state, observation = acting
    act = ppo.make_policy(config)
    assert act(state, [0.0] * 4)[0] == act(state, np.zeros(4))[0]
    several = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    with pytest.raises(ValueError, match=r"other shapes than this config's .*: jax.vmap takes the"):
        act(several, observation)
    assert jax.vmap(act, (0, None))(several, observation)[0].shape == (2,)


def test_a_policy_of_several_agents_takes_what_all_see():
    config = ippo.Config(total_timesteps=8, num_envs=2, num_steps=4, hidden_sizes=(4,))
    given = config, *envs.make(tasks.Pair())
    state = training.first_state(ippo.make_train(*given), jax.random.key(0))
    act, seen = ippo.make_policy(*given), given[1].reset_env(jax.random.key(0), given[2])[0]
    assert act(state, seen)[0].shape == (2,)
    with pytest.raises(ValueError, match=r"has the shape \(2, .*: jax.vmap takes several"):
        act(state, seen[0])


def test_a_policy_wants_a_mask_where_actions_are_forbidden():
    given = (
        ppo.Config(total_timesteps=8, num_envs=2, num_steps=4, hidden_sizes=(4,)),
        *envs.make(tasks.Probe(masked=True)),
    )
    state = training.first_state(ppo.make_train(*given), jax.random.key(0))
    seen, env_state = given[1].reset_env(jax.random.key(0), given[2])
    with pytest.raises(ValueError, match="^policy: Probe has forbidden actions: give mask=env.act"):
        ppo.make_policy(*given)(state, seen)
    mask = given[1].action_mask(env_state, given[2])
    assert mask[ppo.make_policy(*given)(state, seen, mask=mask)[0]]


# --- counting ---------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [4 * 128, 3 * 7, 1024, 999])
@pytest.mark.parametrize("num_evals", [1, 7, 20])
def test_timesteps_of_points_are_exact_however_long_a_run_is(steps, num_evals):
    for total in (1, 1000, 2**31 - 2000, 2**31, 10**10, 3 * 10**10):
        config = make_config(total_timesteps=total, num_evals=num_evals)
        updates, points = parts.num_updates(config, steps), parts.num_points(config, steps)
        assert updates % points == 0
        assert total <= updates * steps <= 1.01 * total + steps * points
        per_point, last = updates // points, -1
        for point in range(points + 1):
            result = training.timestep(config, steps, jnp.int32(point * per_point))
            assert int(result) == point * per_point * steps > last
            assert result.dtype == (jnp.int32 if updates * steps < 2**31 else jnp.float32)
            last = int(result)
        assert last == updates * steps
        between = updates - per_point // 2
        result = training.timestep(config, steps, jnp.int32(between))
        np.testing.assert_allclose(float(result), between * steps, rtol=2e-7)


def test_points_of_usual_runs_are_rounded_up_to_whole_updates_only():
    assert parts.num_updates(make_config(total_timesteps=10**9, num_evals=20), 999) * 999 == (
        -(-(10**9) // (20 * 999)) * 20 * 999
    )
    assert parts.num_updates(make_config(total_timesteps=13), 4) == 6


@pytest.mark.parametrize(
    "total, steps, num_evals, points, updates",
    [
        (200_000, 1024 * 128, 20, 2, 2),
        (20_000, 4 * 128, 100_000, 40, 40),
        (10, 4 * 128, 20, 1, 1),
        (50_000, 256 * 128, 20, 2, 2),
        (50_000, 4 * 128, 20, 20, 100),
        (20 * 512, 512, 20, 20, 20),
        (20 * 512 + 1, 512, 20, 20, 40),
        (19 * 512 + 1, 512, 20, 20, 20),
        (19 * 512, 512, 20, 19, 19),
    ],
)
def test_a_run_with_fewer_updates_than_points_has_fewer_points(
    total, steps, num_evals, points, updates
):
    """The excess is less than an update for each point."""
    config = make_config(total_timesteps=total, num_evals=num_evals)
    found = parts.num_points(config, steps), parts.num_updates(config, steps)
    assert found == (points, updates)
    assert total <= updates * steps < total + steps * points


def test_more_updates_than_are_counted_are_refused():
    config = make_config(total_timesteps=2**31 * 16)
    assert parts.num_updates(config, 17) < 2**31
    with pytest.raises(ValueError, match=r"total_timesteps=34359738368 makes .* more num_envs"):
        parts.num_updates(config, 16)


# --- the program ------------------------------------------------------------------------------


def test_zeros_are_those_of_the_results():
    result = loops.zeros(lambda x: {"sum": x.sum(), "more": x > 0}, jnp.ones((2, 3)))
    assert result["sum"].shape == () and result["more"].dtype == bool
    assert not result["more"].any() and result["more"].shape == (2, 3)


@struct.dataclass
class State:
    policy: Any
    env_state: envs.BatchState
    episodes: EpisodeStatistics
    eval_rng: jax.Array
    update: jax.Array


@struct.dataclass
class Config:
    slope: float = 2.0
    total_timesteps: int = parts.static(6 * 4)
    num_evals: int = parts.static(3)
    num_eval_episodes: int = parts.static(2)
    eval_at_start: bool = parts.static(True)


def learner(config, env, env_params):
    """A learner that counts. `late` has data from the third update on, with a weight that grows."""

    def init(rng):
        episodes = EpisodeStatistics.create(1)
        _, env_state = envs.batch(env, 1).reset(jax.random.clone(rng), env_params)
        return State(jnp.zeros(()), env_state, episodes, rng, jnp.zeros((), jnp.int32))

    def update(state):
        number = state.update.astype(jnp.float32)
        weight = jnp.where(number >= 2, number, 0.0)
        metrics = {"slope": config.slope * number, "late": parts.Average(weight * number, weight)}
        metrics["highest"] = parts.Maximum(jnp.where(number == 2, 7.0, 6.0 - number))
        metrics["latest"] = parts.Last(number)
        rewards, done = jnp.ones((4, 1)), jnp.arange(4)[:, None] == 2
        episodes = state.episodes.update(rewards, done)
        state = state.replace(policy=number, episodes=episodes, update=state.update + 1)
        return state, metrics

    def policy(state, observation, memory=None, rng=None, mask=None):
        return jnp.zeros((), jnp.int32), memory

    return parts.Learner(init, update, policy, 4)


@pytest.fixture(scope="module")
def curve():
    env, params = envs.make(tasks.Probe(), task=tasks.ENDLESS)
    train = parts.program(learner, Config(), env, params)
    return train, *train(jax.random.key(0))


@pytest.mark.parametrize(
    "make, what",
    [
        (lambda: 0, "0;"),
        (lambda: None, "None;"),
        (lambda: jnp.uint32(3), r"Array\(3, dtype=uint32\);"),
        (lambda: jax.random.split(jax.random.key(0), 4), r"4 keys: jax.vmap\(train\) takes sev.*;"),
        (lambda: np.zeros((2, 2), np.uint32), r"array\(\[\[.*;"),
        (lambda: {"policy": jnp.zeros(())}, r"a dict: train\(None, state\) goes on with one;"),
    ],
)
def test_what_is_not_one_key_is_refused(curve, make, what):
    with pytest.raises(ValueError, match=f"(?s)^rng is {what} give one key, as jax.random.key.0"):
        curve[0](make())


@pytest.mark.parametrize("number", [-1, 1.5, "1", True])
def test_points_are_counted(curve, number):
    with pytest.raises(ValueError, match=f"^num_evals={number}: give the number of points to tra"):
        curve[0](jax.random.key(0), num_evals=number)


def test_a_number_of_points_may_be_numpy_s_or_jax_s(curve):
    """They make the same program."""
    same = lambda number: curve[0](jax.random.key(0), num_evals=number)[1]["timestep"]
    np.testing.assert_array_equal(same(np.int64(2)), same(jnp.array(2)))
    assert same(2.0).shape == (3,)


@pytest.mark.parametrize("value", [jnp.array([1.0, 2.0]), (1.0,), [1.0], np.ones((4, 1))])
def test_arrays_in_place_of_a_number_are_refused(value):
    """Each environment, or each minibatch, would have a rate of its own, without a word."""
    made = envs.make(tasks.Probe(), task=tasks.ENDLESS)
    shape = re.escape(str(np.shape(value)))
    with pytest.raises(ValueError, match=rf"^slope has the shape {shape}: give one number; jax.vm"):
        parts.program(learner, Config(slope=value), *made)


def test_keys_of_both_kinds_are_taken_and_traced_ones():
    check = lambda rng: training.check_key(rng) or 0
    for rng in (jax.random.key(0), jax.random.PRNGKey(0), np.zeros(2, np.uint32)):
        check(rng)
        jax.eval_shape(check, rng)
        jax.eval_shape(jax.vmap(check), jnp.stack([rng, rng]))


def test_metrics_are_means_over_the_updates_of_a_point_by_their_weight(curve):
    _, state, metrics = curve
    assert int(state.update) == 6
    np.testing.assert_array_equal(metrics["timestep"], [0, 8, 16, 24])
    np.testing.assert_allclose(metrics["slope"], [np.nan, 1.0, 5.0, 9.0])  # 2 (0 + 1) / 2, ...
    late = [np.nan, np.nan, (2 * 2 + 3 * 3) / 5, (4 * 4 + 5 * 5) / 9]
    np.testing.assert_allclose(metrics["late"], late, rtol=1e-6)
    np.testing.assert_array_equal(metrics["highest"], [np.nan, 6.0, 7.0, 2.0])
    np.testing.assert_array_equal(metrics["latest"], [np.nan, 1.0, 3.0, 5.0])
    np.testing.assert_array_equal(metrics["num_episodes"], [0, 2, 2, 2])
    np.testing.assert_allclose(metrics["episode_return"], [np.nan, 3.5, 4.0, 4.0])
    assert metrics["eval_return"].shape == (4, 2) and (metrics["eval_return"] == 10.0).all()
    assert metrics["eval_terminated"].dtype == metrics["eval_truncated"].dtype == bool


def test_data_that_are_not_finite_differ_from_no_data():
    """Points with a NaN or an infinity among their updates become infinite, and no others."""

    def broken(config, env, env_params):
        whole = learner(config, env, env_params)

        def update(state):
            third, first = state.update == 2, state.update < 2
            state, metrics = whole.update(state)
            metrics["spoilt"] = jnp.where(third, jnp.nan, 1.0)
            metrics["overflown"] = jnp.where(third, -jnp.inf, 1.0)
            metrics["rare"] = parts.Average(jnp.where(first, 0.0, jnp.nan), ~first)
            metrics["ignored"] = parts.Average(jnp.nan, jnp.zeros(()))
            metrics["peak"] = parts.Maximum(metrics["spoilt"])
            metrics["final"] = parts.Last(jnp.where(state.update == 4, jnp.nan, 1.0))
            return state, metrics

        return whole._replace(update=update)

    env, params = envs.make(tasks.Probe(), task=tasks.ENDLESS)
    config = Config(num_eval_episodes=0)
    _, metrics = parts.program(broken, config, env, params)(jax.random.key(0))
    np.testing.assert_array_equal(metrics["spoilt"], [np.nan, 1.0, np.inf, 1.0])
    np.testing.assert_array_equal(metrics["overflown"], [np.nan, 1.0, np.inf, 1.0])
    np.testing.assert_array_equal(metrics["rare"], [np.nan, np.nan, np.inf, np.inf])
    np.testing.assert_array_equal(metrics["ignored"], [np.nan] * 4)
    np.testing.assert_array_equal(metrics["peak"], [np.nan, 1.0, np.inf, 1.0])
    np.testing.assert_array_equal(metrics["final"], [np.nan, 1.0, np.inf, 1.0])
    np.testing.assert_allclose(metrics["slope"], [np.nan, 1.0, 5.0, 9.0])


def test_metrics_without_data_are_minus_zero_under_jax_debug_nans(curve, debug_nans):
    """This holds even if train has run without it before."""
    train, _, metrics = curve
    _, checked = train(jax.random.key(0))
    for name, values in metrics.items():
        missing = np.isnan(values)
        np.testing.assert_array_equal(checked[name], np.where(missing, -0.0, values), name)
        np.testing.assert_array_equal(np.signbit(checked[name]), missing, name)


@pytest.mark.parametrize("masked, reads", [(True, False), (True, True), (False, False)])
def test_a_policy_that_does_not_read_the_mask_is_told_of(masked, reads):
    def act(state, observation, memory=None, rng=None, mask=None):
        return mask.argmax() if reads else jnp.zeros((), jnp.int32), memory

    deaf = lambda *given: learner(*given)._replace(policy=act)
    made = envs.make(tasks.Probe(masked=masked), task=tasks.ENDLESS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parts.program(deaf, Config(num_eval_episodes=0), *made)(jax.random.key(0))
    told = [
        "the policy does not read the mask of Probe, and takes forbidden actions" in str(x.message)
        for x in caught
    ]
    assert any(told) == (masked and not reads)


def test_train_follows_its_plan(curve):
    train, state, metrics = curve
    assert train.plan == parts.Plan(points=3, updates=6, steps=24)
    assert len(metrics["timestep"]) == 1 + 3 and state.update == 6
    env, params = envs.make(tasks.Probe(), task=tasks.ENDLESS)
    short = parts.program(learner, Config(total_timesteps=4 + 1), env, params)
    assert short.plan == parts.Plan(points=2, updates=2, steps=8)
    state, metrics = jax.eval_shape(short, jax.random.key(0))
    assert metrics["timestep"].shape == (1 + 2,)


def test_a_run_continues_from_its_state_and_may_only_evaluate(curve):
    train, _, metrics = curve
    state, first = train(jax.random.key(0), None, 1)
    np.testing.assert_array_equal(first["slope"], metrics["slope"][:2])
    state, nothing = train(None, state, 1, False)
    assert np.isnan(nothing["slope"]) and nothing["timestep"] == 8 and state.update == 2
    _, rest = train(None, state, 2)
    np.testing.assert_array_equal(rest["slope"], metrics["slope"][2:])


def test_a_start_traces_no_update_and_no_evaluation(curve):
    """It would take as long as tracing the whole run."""
    train, *_ = curve

    def only_starts(config, env, env_params):
        whole = learner(config, env, env_params)
        return whole._replace(update=pytest.fail, policy=pytest.fail)

    env, params = envs.make(tasks.Probe(), task=tasks.ENDLESS)
    start = parts.program(only_starts, Config(eval_at_start=False), env, params)
    state = parts.first_state(start, jax.random.key(0))
    other, none = train(jax.random.key(0), None, 0)
    assert none["slope"].shape == (1,)  # the point before training
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    data = lambda x: jax.random.key_data(x) if is_key(x) else x
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(data(x), data(y)), state, other)
    own = lambda rng, state, num_evals: ((rng, state, num_evals), {})  # not of `program`
    assert parts.first_state(own, 7) == (7, None, 0)
    _, first = train(None, state, 3)
    _, whole = train(jax.random.key(0))
    np.testing.assert_array_equal(first["slope"], whole["slope"][1:])


def test_other_floats_do_not_compile_again(curve):
    _, _, metrics = curve
    env, params = world = envs.make(tasks.Probe(), task=tasks.ENDLESS)
    train = parts.program(learner, Config(), *world)
    np.testing.assert_array_equal(train(jax.random.key(0))[1]["slope"], metrics["slope"])
    before = training._train._cache_size()
    # Of another type, too.
    params = params.replace(reward=np.float32(2.0))
    train = parts.program(learner, Config(slope=np.float32(3.0)), env, params)
    _, metrics = train(jax.random.key(0))
    np.testing.assert_allclose(metrics["slope"][1:], [1.5, 7.5, 13.5])
    assert (metrics["eval_return"] == 20.0).all()
    assert training._train._cache_size() == before


def test_train_can_be_vmapped_within_another_jit(curve):
    """So it has no compiler options: jax refuses those of a jit within another."""
    train, _, metrics = curve
    _, many = jax.jit(jax.vmap(train))(jax.random.split(jax.random.key(0), 2))
    np.testing.assert_array_equal(many["slope"], np.stack([metrics["slope"]] * 2))


def test_an_evaluation_of_episodes_that_may_never_end_is_refused_at_once(probe):
    params = types.SimpleNamespace(task=0)
    with pytest.raises(ValueError, match="Probe has no time limit"):
        parts.program(learner, Config(), probe, params)
    parts.program(learner, Config(num_eval_episodes=0), *envs.make(probe))


# --- what the environment reports -------------------------------------------------------------


def test_metrics_of_the_environment_are_averaged_over_the_episodes_that_ended():
    """Every update is a step of two environments, whose episodes have 3 and 5 steps."""
    env, params = envs.make(tasks.Reporting())

    def learner(config, env, env_params):
        many = envs.batch(env, 2)

        def init(rng):
            rng, reset_rng = jax.random.split(rng)
            _, env_state = many.reset(reset_rng, env_params)
            lengths = env_state.env.replace(limit=jnp.array([3, 5]))
            env_state = env_state.replace(env=lengths)
            episodes = EpisodeStatistics.create(1)
            return State(jnp.zeros(()), env_state, episodes, rng, jnp.zeros((), jnp.int32))

        def update(state):
            rng = jax.random.fold_in(jax.random.clone(state.eval_rng), state.update)
            rng, start_rng, step_rng = jax.random.split(rng, 3)
            assert state.env_state.starts is None  # nothing between updates
            env_state = many.refill(start_rng, state.env_state, env_params)
            env_state = many.step(step_rng, env_state, jnp.ones(2, jnp.int32), env_params)[1]
            return state.replace(env_state=env_state, update=state.update + 1), {}

        def policy(state, observation, memory=None, rng=None, mask=None):
            return jnp.ones((), jnp.int32), memory

        return parts.Learner(init, update, policy, 2)

    config = Config(total_timesteps=2 * 8, num_evals=4)
    train = parts.program(learner, config, env, params)
    state, metrics = train(jax.random.key(0))
    # One ends at step 3 and, after a restart, four steps later; the other at 5.
    np.testing.assert_array_equal(metrics["episode_place"], [np.nan, np.nan, 3, 5, 4])
    np.testing.assert_array_equal(metrics["episode_travel"], [np.nan, np.nan, 6, 15, 10])
    np.testing.assert_array_equal(metrics["eval_place"], np.full((5, 2), 4.0))
    np.testing.assert_array_equal(metrics["eval_travel"], np.full((5, 2), 10.0))
    assert all(x.shape[0] == 5 for x in metrics.values())
    assert state.env_state.starts is None


@pytest.mark.parametrize("name", ["timestep", "num_episodes", "episode_reward", "eval_return"])
def test_a_metric_with_a_name_of_the_program_s_own_is_refused(name):
    """It was silently replaced."""
    with pytest.raises(ValueError, match=f"an update has a metric '{name}', as episodes have"):
        training.check_metrics({"loss": jnp.zeros(()), name: jnp.zeros(())})


def test_a_metric_of_several_parts_is_refused():
    array = jnp.zeros(3)
    good = {"a": array, "b": parts.Average(array, array), "c": parts.Last(array), "d": 1.0}
    training.check_metrics(good | {"e": parts.Maximum(array)})
    for tree, kind in (({"x": array}, "dict"), ((array, array), "tuple"), (None, "NoneType")):
        with pytest.raises(ValueError, match=f"the metric 'f' of an update is a {kind}: give an"):
            training.check_metrics(good | {"f": tree})


def test_an_update_with_such_a_metric_is_refused_while_it_is_traced():
    def named(config, env, env_params):
        whole = learner(config, env, env_params)
        update = lambda state: (whole.update(state)[0], {"eval_return": jnp.zeros(())})
        return whole._replace(update=update)

    env, params = envs.make(tasks.Probe(), task=tasks.ENDLESS)
    with pytest.raises(ValueError, match="an update has a metric 'eval_return'"):
        jax.eval_shape(parts.program(named, Config(), env, params), jax.random.key(0))


def test_a_branch_on_a_traced_value_has_a_remedy():
    def branching(config, env, env_params):
        whole = learner(config, env, env_params)

        def update(state):
            return whole.update(state) if config.slope > 0.0 else (state, {})

        return whole._replace(update=update)

    env, params = envs.make(tasks.Probe(), task=tasks.ENDLESS)
    with pytest.raises(jax.errors.TracerBoolConversionError) as error:
        jax.eval_shape(parts.program(branching, Config(), env, params), jax.random.key(0))
    assert any("floats of Config are traced" in note for note in error.value.__notes__)
