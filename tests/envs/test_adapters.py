"""Adapters of libraries with one agent, against the libraries' own steps."""

import functools
import importlib
import importlib.util
import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jax.extend.core import ClosedJaxpr, Jaxpr

import envs
from envs import adapter, brax, registry
from envs.adapter import flat
from envs.batch import limit_name, transition
from envs.wrappers import TimeLimitState, limit_time

RESULTS = Path(__file__).parents[2] / "docs" / "results"
NUM_ENVS, LENGTH, ROLLOUTS = 2, 10, 26


class Their(NamedTuple):
    """A step by the library itself: `done` is any end."""

    observation: Any
    state: Any
    reward: Any
    done: Any


def physics(wrapped, _):
    def step(key, state, action):
        state = jax.tree.map(lambda x: x, state)  # brax writes into its dictionaries
        state = wrapped.step(state, action)
        return Their(flat(state.obs), state, state.reward, state.done > 0)

    return wrapped.reset, step


def gymnax_like(wrapped, params):
    def step(key, state, action):
        observation, state, reward, done, _ = wrapped.step_env(key, state, action, params)
        return Their(observation, state, reward, done)

    return lambda key: wrapped.reset_env(key, params)[1], step


def navix(wrapped, _):
    plain = lambda timestep: timestep.replace(state=timestep.state.replace(cache=None))

    def step(key, timestep, action):
        timestep = wrapped._step(timestep, action)
        return Their(timestep.observation, plain(timestep), timestep.reward, timestep.is_done())

    return lambda key: plain(wrapped.reset(key)), step


def xminigrid(wrapped, _):
    params = importlib.import_module("xminigrid").make("MiniGrid-DoorKey-5x5")[1]

    def step(key, timestep, action):
        timestep = wrapped.step(params, timestep, action)
        return Their(timestep.observation, timestep, timestep.reward, timestep.last())

    return lambda key: wrapped.reset(params, key), step


def jumanji(name):
    def their(wrapped, _):
        own = importlib.import_module("jumanji").make(name)  # with its own time limit

        def step(key, state, action):
            parts = jnp.array(jnp.unravel_index(action, wrapped_parts(own)))
            state, timestep = own.step(state, parts[0] if own.action_spec.shape == () else parts)
            fields = timestep.observation._asdict()
            fields.pop("action_mask", None)
            observation = jnp.concatenate(
                [jnp.ravel(x).astype(jnp.float32) for x in fields.values()]
            )
            return Their(observation, state, timestep.reward, timestep.last())

        return lambda key: own.reset(key)[0], step

    return their


def wrapped_parts(own):
    return tuple(np.atleast_1d(own.action_spec.num_values).tolist())


class Case(NamedTuple):
    library: str  # to import
    name: str
    settings: dict
    their: Any
    ends: str  # a kind of end that must occur, if any does


CUBE = "jumanji/RubiksCube-partly-scrambled"  # 20 steps
CASES = [
    Case("brax", "brax/hopper", {"backend": "spring"}, physics, "terminated"),
    Case("brax", "brax/inverted_pendulum", {"backend": "generalized"}, physics, "terminated"),
    Case("mujoco_playground", "playground/CartpoleBalance", {}, physics, ""),
    Case("craftax", "craftax/Classic-Symbolic", {"max_timesteps": 40}, gymnax_like, "truncated"),
    Case("navix", "navix/DoorKey-5x5", {}, navix, "truncated"),
    Case("xminigrid", "xminigrid/MiniGrid-DoorKey-5x5", {}, xminigrid, "truncated"),
    Case("jumanji", "jumanji/Snake", {}, jumanji("Snake-v1"), "terminated"),
    Case("jumanji", "jumanji/Tetris", {}, jumanji("Tetris-v0"), "terminated"),
    Case("jumanji", CUBE, {}, jumanji("RubiksCube-partly-scrambled-v0"), "truncated"),
]
PARAMS = [pytest.param(c, id=c.name, marks=pytest.mark.needs(c.library)) for c in CASES]


@functools.cache
def world(index):
    case = CASES[index]
    return envs.make(case.name, **case.settings)


def random_action(env, params, key):
    space = env.action_space(params)
    if hasattr(space, "n"):
        return jax.random.randint(key, (), 0, space.n)
    return jax.random.uniform(key, space.shape, minval=space.low, maxval=space.high)


class Programs(NamedTuple):
    """What is compiled of a case: starts of a batch, and ten of its steps."""

    start: Any  # key -> observation, state, whether the states are the library's
    rollout: Any  # state, keys, params -> state, (ours, theirs, whether the states agree)
    primitives: set  # of the rollout
    params: Any


@functools.cache
def programs(index):
    """Each step of the library's own begins in a state of the adapter's, and so does each reset.

    XLA thus sees the same operations twice and compiles them once, which takes nearly all the time
    of these tests. All of them use this step, with time limits that are arguments.
    """
    case, (env, params) = CASES[index], world(index)
    reset, their_step = case.their(env.wrapped, params)
    batch = envs.batch(env, NUM_ENVS, LENGTH, window=5)

    def start(key):
        observation, state = batch.reset(key, params)
        keys = jax.random.split(jax.random.clone(key), batch.depth * NUM_ENVS)
        flat = jax.tree.map(lambda x: x.reshape(len(keys), *x.shape[2:]), state.starts[1])
        return observation, state, agree(own_state(flat), jax.vmap(reset)(keys))

    def rollout(state, keys, params):
        def step(state, key):
            key, action_key = jax.random.split(key)
            keys = jax.random.split(action_key, NUM_ENVS)
            action = jax.vmap(lambda key: random_action(env, params, key))(keys)
            seen, after, reward, *ends, info = batch.step(key, state, action, params)
            keys = jax.random.split(jax.random.clone(key), NUM_ENVS)
            theirs = jax.vmap(their_step)(keys, own_state(state.env), action)
            ours = seen, info["final_observation"], reward, *ends
            same = agree(own_state(after.env), theirs.state) | ends[0] | ends[1]
            return after, (ours, (theirs.observation, theirs.reward, theirs.done), same)

        return jax.lax.scan(step, state, keys)

    with jax.debug_key_reuse(False):  # some libraries use a key twice
        start = jax.jit(start).lower(key()).compile()
        params = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), params)
        traced = jax.jit(rollout).trace(start(key())[1], jax.random.split(key(), LENGTH), params)
        return Programs(start, traced.lower().compile(), primitives(traced.jaxpr.jaxpr), params)


def own_state(state):
    """The library's part of an adapter's state."""
    return state.inner[0] if type(state.inner) is tuple else state.inner  # Jumanji's has a mask


def agree(ours, theirs):
    """Whether two trees are the same in each row."""

    def same(x, y):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = map(jax.random.key_data, (x, y))
        close = jnp.isclose(x, y, rtol=1e-3, atol=1e-5, equal_nan=True)
        return close.all(tuple(range(1, close.ndim)))

    return jnp.stack(jax.tree.leaves(jax.tree.map(same, ours, theirs))).all(0)


def primitives(jaxpr):
    """Names of all operations, also inside others."""
    is_program = lambda x: isinstance(x, ClosedJaxpr | Jaxpr)
    names = {equation.primitive.name for equation in jaxpr.eqns}
    for equation in jaxpr.eqns:
        given = jax.tree.leaves([*equation.params.values()], is_leaf=is_program)
        for inside in filter(is_program, given):
            names |= primitives(getattr(inside, "jaxpr", inside))
    return names


def key(seed=0):
    return jax.random.key(seed)


@functools.cache
def side_by_side(index):
    """Both sides' random steps with the case's own limit: (ours, theirs, agreement)."""
    start, rollout, _, params = programs(index)
    with jax.debug_key_reuse(False):
        _, state, same = start(key(1))
        assert same.all(), "starts"
        rows = []
        for i in range(ROLLOUTS):
            state, row = rollout(state, jax.random.split(key(i), LENGTH), params)
            rows.append(jax.device_get(row))
    return jax.tree.map(lambda *x: np.concatenate(x), *rows)


def index(case):
    return CASES.index(case)


@pytest.mark.parametrize("case", PARAMS)
def test_steps_are_the_library_s_own(case):
    """Those of a batch, which begins anew, each from one state for both; and the states after."""
    (_, observation, reward, *_), theirs, same = side_by_side(index(case))
    observation = observation.reshape(theirs[0].shape)
    np.testing.assert_allclose(observation, theirs[0], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(reward, theirs[1], rtol=1e-3, atol=1e-5)
    assert same.all()
    assert len(np.unique(observation[:, 0], axis=0)) > 5  # something happens


@pytest.mark.parametrize("case", PARAMS)
def test_an_end_is_the_library_s_and_either_terminated_or_truncated(case):
    (*_, terminated, truncated), (*_, done), _ = side_by_side(index(case))
    assert not (terminated & truncated).any()
    np.testing.assert_array_equal(terminated | truncated, done)
    flags = {"terminated": terminated, "truncated": truncated}
    if case.ends:
        assert flags[case.ends].any()
    else:
        assert not done.any()


@pytest.mark.parametrize("case", PARAMS)
def test_spaces_contain_observations(case):
    env, params = world(index(case))
    space = env.observation_space(params)
    for observation in side_by_side(index(case))[0][:2]:
        assert observation.shape[2:] == tuple(space.shape) and observation.dtype == space.dtype
        assert (observation >= np.asarray(space.low)).all()
        assert (observation <= np.asarray(space.high)).all()
        assert np.isfinite(observation).all()


@pytest.mark.parametrize("case", PARAMS)
def test_a_batch_restarts_at_fresh_states_after_the_true_final_observation(case):
    """The limit is 5 steps. The stock of starts is another one than that of the first starts."""
    env, _ = world(index(case))
    start, rollout, _, params = programs(index(case))
    short = params.replace(**{limit_name(env): jnp.int32(5)})
    with jax.debug_key_reuse(False):
        first, state, _ = jax.device_get(start(key(2)))
        state = state.replace(starts=start(key(3))[1].starts)
        _, (ours, theirs, _) = rollout(state, jax.random.split(key(4), LENGTH), short)
    observation, final, _, terminated, truncated = jax.device_get(ours)
    done = terminated | truncated
    np.testing.assert_allclose(final.reshape(theirs[0].shape), theirs[0], rtol=1e-5, atol=1e-6)
    assert done.any(0).all() and (truncated[4] == ~terminated[:5].any(0)).all()
    np.testing.assert_array_equal(observation[~done], final[~done])
    assert (observation[done] != final[done]).any()
    starts = np.concatenate([first, observation[done]])
    starts = starts.reshape(len(starts), -1)
    assert len(np.unique(starts, axis=0)) > 3  # Tetris begins with one of seven pieces


@pytest.mark.parametrize("case", PARAMS)
def test_max_steps_cuts_episodes_and_lifts_the_library_s_limit(case):
    limit = 10**6
    env, params = limit_time(*world(index(case)), limit)  # as `envs.make` does
    assert getattr(params, limit_name(env)) >= limit
    alone = jax.tree.map(lambda x: x[0], programs(index(case)).start(key())[1].env)
    for steps, cut in ((limit - 1, False), (limit, True)):
        assert bool(env.is_truncated(TimeLimitState(alone, jnp.int32(steps)), params)) == cut


@pytest.mark.parametrize("case", PARAMS)
def test_one_program_without_callbacks(case):
    names = programs(index(case)).primitives
    assert len(names) > 5 and not any("callback" in name for name in names)


# --- the parameters that may be batched --------------------------------------------------------


CRAFTAX = 3


@pytest.mark.needs("craftax")
def test_craftax_takes_traced_and_batched_parameters():
    """Limits of 1 and of 3 steps in the program above; batched ones are traced only."""
    env, params = world(CRAFTAX)
    start, rollout, _, traced = programs(CRAFTAX)
    found = []
    with jax.debug_key_reuse(False):
        for limit in (1, 3):
            short = traced.replace(max_timesteps=jnp.int32(limit))
            _, (ours, *_) = rollout(start(key())[1], jax.random.split(key(), LENGTH), short)
            found.append(np.asarray(ours[-1])[:3, 0].tolist())
        assert found == [[True, True, True], [False, False, True]]

        def ends(params):
            _, state = env.reset_env(key(), params)
            return transition(env, key(1), state, 0, params)[4]

        limits = jax.vmap(lambda n: params.replace(max_timesteps=n))(jnp.array([1, 3]))
        assert jax.eval_shape(jax.vmap(ends), limits).shape == (2,)


@pytest.mark.needs("xminigrid")
@pytest.mark.parametrize(
    "name, settings, same",
    [
        ("MiniGrid-DoorKey-5x5", {"height": 16, "width": 16}, "MiniGrid-DoorKey-16x16"),
        ("XLand-MiniGrid-R1-9x9", {"height": 17, "width": 17}, "XLand-MiniGrid-R1-17x17"),
        ("MiniGrid-DoorKey-5x5", {"view_size": 7}, "MiniGrid-DoorKey-5x5"),
    ],
)
def test_xminigrid_s_limit_is_that_of_its_size(name, settings, same):
    limits = [
        envs.make(f"xminigrid/{one}", **given)[1].max_steps_in_episode
        for one, given in ((name, settings), (same, {}))
    ]
    assert limits[0] == limits[1]


@pytest.mark.needs("xminigrid")
def test_xminigrid_s_reward_knows_the_limit():
    """The reward is 1 - 0.9 of the used share of the limit."""
    env, params = envs.make("xminigrid/MiniGrid-Empty-5x5")
    assert params.max_steps_in_episode == 100  # the library's: 4 * 5 * 5

    def play(params):
        def step(state, action):
            _, state, reward, terminated, *_ = transition(
                env, jax.random.key(0), state, action, params
            )
            return state, (reward, terminated)

        _, state = env.reset_env(jax.random.key(0), params)
        return jax.lax.scan(step, state, jnp.array([0, 0, 1, 0, 0]))[1]  # forward, right

    for limit in (100, 50):
        reward, terminated = jax.jit(play)(params.replace(max_steps_in_episode=limit))
        assert terminated.tolist() == [False, False, False, False, True]
        np.testing.assert_allclose(reward, [0, 0, 0, 0, 1 - 0.9 * 5 / limit], rtol=1e-6)


# --- physics ----------------------------------------------------------------------------------


class Robot:
    """A robot of playground's kind: it observes its position, and with `privileged` its speed too.

    Actions above 0.5 make the physics diverge.
    """

    action_size = 2

    def __init__(self, privileged=True):
        self.privileged = privileged

    def reset(self, key):
        return self._state(jax.random.uniform(key, (3,)), jnp.zeros(3))

    def step(self, state, action):
        speed = jnp.ones((3, 2)) @ action
        return self._state(state.data[0] + speed, jnp.where(action[0] > 0.5, jnp.inf, speed))

    def _state(self, position, speed):
        seen = {"privileged_state": jnp.concatenate([position, speed]), "state": position}
        return RobotState(
            data=(position, speed),
            obs=seen if self.privileged else position,
            reward=speed.sum(),
            done=jnp.zeros(()),
            metrics={"reward/speed": speed[0]},
            info={},
        )


@struct.dataclass
class RobotState:
    data: Any
    obs: Any
    reward: Any
    done: Any
    metrics: Any
    info: Any


@pytest.fixture
def robots(monkeypatch):
    """A registry with three tasks, in place of playground's.

    The second one sets jax's precision, and the third one's models cannot be downloaded.
    """
    from envs import playground

    class Config(types.SimpleNamespace):
        def items(self):
            return vars(self).items()

    def load(name, config_overrides):
        if name == "Far":
            raise subprocess.CalledProcessError(128, ["git", "clone"])
        if name == "Blind":
            jax.config.update("jax_default_matmul_precision", "highest")
        return Robot(privileged=name == "Walker")

    tasks = types.SimpleNamespace(
        ALL_ENVS=("Walker", "Blind", "Far"),
        get_default_config=lambda name: Config(episode_length=7, ctrl_dt=0.1, impl="jax"),
        load=load,
    )
    monkeypatch.setattr(playground, "_registry", lambda: tasks)
    registry._cached.cache_clear()
    yield
    registry._cached.cache_clear()


def test_a_policy_sees_the_state_alone_and_critics_the_privileged_one(robots):
    env, params = envs.make("playground/Walker")
    assert env.observation_space(params).shape == (3,)
    batch = envs.batch(env, 2, 8)
    observation, state = batch.reset(key(), params)
    world = batch.world_state(state, params)
    assert observation.shape == (2, 3) and world.shape == (2, 6)
    np.testing.assert_array_equal(world[:, :3], observation)
    action = jnp.array([[0.25, 0.0], [0.0, 0.0]])
    observation, state, *_, info = batch.step(key(1), state, action, params)
    np.testing.assert_array_equal(info["final_observation"], observation)
    np.testing.assert_array_equal(info["final_world_state"][:, :3], observation)
    np.testing.assert_allclose(info["final_world_state"][:, 3:], [[0.25] * 3, [0.0] * 3])


def test_models_that_cannot_be_downloaded_are_named(robots):
    with pytest.raises(ValueError, match="mujoco_menagerie.*downloaded.*connect.*or copy"):
        envs.make("playground/Far")


def test_both_parts_are_one_vector_where_asked_for(robots):
    env, params = envs.make("playground/Walker", observe_privileged=True)
    assert env.observation_space(params).shape == (9,) and not hasattr(env, "world_state")
    observation, _ = env.reset_env(key(), params)
    np.testing.assert_array_equal(observation[6:], observation[:3])  # in the order of their names
    blind, params = envs.make("playground/Blind")
    assert blind.observation_space(params).shape == (3,) and not hasattr(blind, "world_state")
    for name, value, why in (
        ("Blind", True, "all that it observes is seen"),
        ("Walker", "yes", "give true or false"),
    ):
        with pytest.raises(ValueError, match=f"^setting of playground/{name}: observe_.*{why}$"):
            envs.make(f"playground/{name}", observe_privileged=value)


def test_warp_is_refused_where_an_algorithm_would_train_with_it(robots):
    from algorithms import ppo

    settings = {"impl": "warp"}
    envs.make("playground/Walker", **settings)  # its physics can be measured
    with pytest.raises(ValueError, match="^playground/Walker: with impl=warp .* leave impl out$"):
        ppo.make_train(ppo.Config(env="playground/Walker", env_settings=tuple(settings.items())))


def test_a_file_for_one_agent_trains_on_the_state_alone(robots):
    from algorithms import ppo

    train = ppo.make_train(ppo.Config(env="playground/Walker", num_envs=2, num_steps=4))
    state = jax.eval_shape(lambda rng: train(rng, None, 0)[0], key())
    assert state.observation.shape == (2, 3)


def test_steps_in_which_the_physics_diverges_are_counted(robots):
    """NaN and infinity become zeros in all that a network sees, hidden parts count as well."""
    env, params = envs.make("playground/Walker", max_steps_in_episode=4)
    assert env.metrics == {"reward/speed": "sum", "diverged": "sum"}
    hard = lambda state, observation, memory=None: (
        jnp.where(observation[0] < 1.0, 0.4, 0.6) * jnp.ones(2),
        memory,
    )
    episodes = envs.evaluate(hard, None, env, params, key(), 4)
    assert np.isfinite(episodes.episode_return).all()
    np.testing.assert_array_equal(episodes.metrics["diverged"] >= 2, [True] * 4)
    assert (episodes.metrics["diverged"] < episodes.length).all()
    soft = lambda state, observation, memory=None: (jnp.zeros(2), memory)
    np.testing.assert_array_equal(
        envs.evaluate(soft, None, env, params, key(), 4).metrics["diverged"], np.zeros(4)
    )
    _, state = env.reset_env(key(), params)
    observation, state, reward, *_ = env.step_env(key(), state, jnp.ones(2), params)
    assert reward == 0 and np.isfinite(observation).all()
    np.testing.assert_array_equal(env.world_state(state, params)[3:], np.zeros(3))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", ["state", "privileged_state", "reward"])
def test_one_number_that_is_not_finite_is_a_step_that_diverged(robots, monkeypatch, part, bad):
    env, params = envs.make("playground/Walker")
    sound = env.wrapped.step

    def step(state, action):
        after = sound(state, action)
        if part == "reward":
            return after.replace(reward=after.reward + bad)
        return after.replace(obs={**after.obs, part: after.obs[part].at[-1].set(bad)})

    _, state = env.reset_env(key(), params)
    *_, info = env.step_env(key(), state, jnp.zeros(2), params)
    assert info["metrics"]["diverged"] == 0
    monkeypatch.setattr(env.wrapped, "step", step)
    *_, info = env.step_env(key(), state, jnp.zeros(2), params)
    assert info["metrics"]["diverged"] == 1


def products(name, settings, part="step_env"):
    """The precisions of all products in the lowered text of a step or a reset."""
    env, params = envs.make(name, **settings)
    with jax.debug_key_reuse(False):
        if part == "reset_env":
            text = jax.jit(env.reset_env).lower(key(), params).as_text()
        else:
            _, state = jax.eval_shape(env.reset_env, key(), params)
            action = jnp.zeros(env.action_space(params).shape)
            if hasattr(env, "num_agents"):
                action = jnp.stack([action] * env.num_agents)
            text = jax.jit(env.step_env).lower(key(), state, action, params).as_text()
    lines = [line for line in text.splitlines() if "dot_general" in line]
    return {found for line in lines for found in re.findall(r"precision = \[(\w+), \w+\]", line)}


PHYSICS = [
    pytest.param("brax/hopper", {"backend": "spring"}, marks=pytest.mark.needs("brax")),
    pytest.param("brax/hopper", {"backend": "generalized"}, marks=pytest.mark.needs("brax")),
    pytest.param("playground/CartpoleBalance", {}, marks=pytest.mark.needs("mujoco_playground")),
    pytest.param("jaxmarl/hopper_3x1", {}, marks=pytest.mark.needs("jaxmarl")),
]


def test_products_of_the_physics_are_of_full_precision(robots):
    assert products("playground/Walker", {}) == {"HIGHEST"}
    assert products("playground/Walker", {"precision": "default"}) == {"DEFAULT"}
    with jax.default_matmul_precision("high"):
        assert products("playground/Walker", {"precision": "highest"}) == {"HIGHEST"}
    with pytest.raises(ValueError, match="precision=full: give highest, high or default$"):
        envs.make("playground/Walker", precision="full")


@pytest.mark.parametrize("name, settings", PHYSICS)
def test_products_of_the_libraries_physics_are_of_full_precision(name, settings):
    for part in ("step_env", "reset_env"):
        found = products(name, settings, part)
        assert found <= {"HIGHEST"} and (found or part == "reset_env")


def test_making_an_environment_leaves_jax_precision_as_it_is(robots):
    before = jax.config.jax_default_matmul_precision
    envs.make("playground/Blind")
    assert jax.config.jax_default_matmul_precision == before != "highest"


PUBLISHED = ("CartpoleBalance", "CartpoleSwingup", "CheetahRun", "FingerSpin")
PUBLISHED += ("PendulumSwingup", "ReacherHard")


def test_published_rows_of_playground_are_of_these_tasks():
    text = "".join(file.read_text() for file in RESULTS.glob("*.csv"))
    assert tuple(sorted(set(re.findall(r"playground/(\w+)", text)))) == PUBLISHED


@pytest.mark.needs("mujoco_playground")
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_tasks_of_playground_observe_nothing_privileged(name):
    env, _ = envs.make(f"playground/{name}")
    assert not env.env.has_privileged and not hasattr(env, "world_state")


# --- pictures and refusals ---------------------------------------------------------------------

PIXELS = [p for p, c in zip(PARAMS, CASES) if c.library in ("craftax", "navix", "xminigrid")]
PIXELS.append(PARAMS[6])  # Jumanji's pictures, which take a second each


@pytest.mark.parametrize("case", PIXELS)
def test_environments_of_cells_draw_themselves(case):
    env, params = world(index(case))
    with jax.debug_key_reuse(False):
        state = jax.tree.map(lambda x: x[0], programs(index(case)).start(key())[1].env)
        picture = env.render(jax.tree.map(as_array, state), params)
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 2


@pytest.mark.parametrize("modes, camera", [([0, 2, 1], 1), ([0, 3], -1), ([], -1)])
def test_the_camera_follows_the_body_where_one_does(modes, camera):
    """A hopper leaves the picture of a camera that stands."""
    assert brax.camera_of(types.SimpleNamespace(cam_mode=np.array(modes))) == camera


@pytest.mark.needs("brax")
def test_a_body_far_away_is_in_the_picture():
    env, params = envs.make("brax/hopper")
    with jax.debug_key_reuse(False):
        _, state = env.reset(jax.random.key(0), params)
    pictures = []
    for far in (0.0, 50.0):
        model, positions, velocities = env.drawn(state.inner)
        there = np.array(positions) + np.eye(len(positions))[0] * far
        env.drawn = lambda inner, drawn=(model, there, velocities): drawn
        pictures.append(env.render(state, params))
        del env.drawn
    coloured = lambda picture: (np.ptp(picture.astype(int), axis=-1) > 40).sum()
    near, far = map(coloured, pictures)  # the floor is black and white
    assert near > 100 and far > 0.5 * near, (near, far)


def as_array(x):
    """A state as the launcher passes it on: NumPy, except for typed keys."""
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)


def module_of(name):
    library = name.partition("/")[0]
    return {"playground": "mujoco_playground"}.get(library, library)


REFUSED = [
    ("brax/hoper", {}, "unknown environment of brax 'hoper'; did you mean hopper"),
    ("brax/hopper", {"backend": "sprong"}, "brax/hopper with .*sprong.*: backend should be"),
    ("brax/hopper", {"backnd": "spring"}, "setting of brax/hopper: 'backnd'; did you mean backend"),
    ("playground/Cheetah", {}, "of playground 'Cheetah'; did you mean CheetahRun"),
    ("playground/CartpoleBalance", {"cntrl_dt": 0.1}, "unknown setting of playground/Cart"),
    ("craftax/Classic", {}, "unknown environment of craftax 'Classic'; did you mean Classic-"),
    ("craftax/Symbolic", {"max_steps_in_episode": 5}, "did you mean .*max_steps"),
    ("navix/DoorKey", {}, "of navix 'DoorKey'; did you mean DoorKey-"),
    ("navix/DoorKey-5x5", {"observation": "symbols"}, "did you mean symbolic"),
    ("xminigrid/DoorKey-5x5", {}, "did you mean MiniGrid-DoorKey-5x5"),
    ("xminigrid/MiniGrid-Empty-5x5", {"view_sise": 5}, "unknown setting of .*'view_sise'"),
    ("jumanji/Connector", {}, "unknown environment of jumanji 'Connector'"),
    ("jumanji/Snake", {"time_limit": 9}, "unknown setting of jumanji/Snake: 'time_limit'"),
    ("jumanji/Snake", {"num_rows": "x"}, "jumanji/Snake with {'num_rows': 'x'}"),
]


@pytest.mark.parametrize(
    "name, settings, message",
    [pytest.param(*r, marks=pytest.mark.needs(module_of(r[0]))) for r in REFUSED],
)
def test_environments_that_cannot_be_made_are_refused(name, settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make(name, **settings)


def test_environments_that_brax_has_broken_are_not_listed_and_refused_with_the_reason(monkeypatch):
    from envs import brax

    known = types.SimpleNamespace(_envs=dict.fromkeys(("ant", "fast", "swimmer")))
    monkeypatch.setattr(brax, "_envs", lambda: known)
    assert brax.names() == ["ant"]
    with pytest.raises(ValueError, match="brax/swimmer cannot be made: brax 0.14 calls"):
        envs.make("brax/swimmer")


def test_a_missing_library_is_named_with_its_pip_command(monkeypatch):
    for name in [n for n in sys.modules if n.partition(".")[0] == "brax"] + ["brax"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=r'brax/... needs brax: pip install "brax==0\.14\.2"'):
        envs.make("brax/ant", backend="spring")


def test_the_commands_for_libraries_install_what_the_extras_do():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = {name: e for name, (e, *_) in project["optional-dependencies"].items()}
    assert {name: extras[name] for name in registry.LIBRARIES} == adapter.REQUIREMENTS


@pytest.mark.needs("jumanji")
def test_puzzles_end_by_legal_actions_only():
    """An illegal move leaves the board of 2048 as it is, so a policy may repeat it for ever."""
    envs.check_ends(*envs.make("jumanji/Game2048"))
    with pytest.raises(ValueError, match="no time limit"):
        envs.check_ends(*envs.make("jumanji/Game2048", mask_actions=False))
    envs.check_ends(*envs.make("jumanji/Game2048", mask_actions=False, max_steps=100))
