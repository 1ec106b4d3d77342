"""Adapters of libraries with one agent, against the libraries' own steps."""

import functools
import importlib
import importlib.util
import sys
import tomllib
import types
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs import adapter, registry
from envs.adapter import flat
from envs.batch import transition

STEPS = 260


class Their(NamedTuple):
    """A step by the library itself: `done` is any end."""

    observation: Any
    state: Any
    reward: Any
    done: Any


def physics(wrapped, _):
    def step(key, state, action):
        state = wrapped.step(state, action)
        return Their(flat(state.obs), state, state.reward, state.done > 0)

    return wrapped.reset, step


def gymnax_like(wrapped, params):
    def step(key, state, action):
        observation, state, reward, done, _ = wrapped.step_env(key, state, action, params)
        return Their(observation, state, reward, done)

    return lambda key: wrapped.reset_env(key, params)[1], step


def navix(wrapped, _):
    def step(key, timestep, action):
        timestep = wrapped._step(timestep, action)
        return Their(timestep.observation, timestep, timestep.reward, timestep.is_done())

    return wrapped.reset, step


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
    ends: str  # expected after STEPS steps or max_steps: an end by the rules, or none


CUBE = "jumanji/RubiksCube-partly-scrambled"  # 20 steps
CASES = [
    Case("brax", "brax/hopper", {"backend": "spring"}, physics, "terminated"),
    Case("brax", "brax/inverted_pendulum", {"backend": "generalized"}, physics, "terminated"),
    Case("mujoco_playground", "playground/CartpoleBalance", {}, physics, ""),
    Case("craftax", "craftax/Classic-Symbolic", {"max_timesteps": 120}, gymnax_like, "truncated"),
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


@functools.cache
def side_by_side(index):
    """Both sides' observations, rewards and ends for STEPS random steps without an end."""
    case, (env, params) = CASES[index], world(index)
    reset, their_step = case.their(env.wrapped, params)

    def step(carry, key):
        state, theirs = carry
        key, action_key = jax.random.split(key)
        action = random_action(env, params, action_key)
        ours = transition(env, key, state, action, params)
        theirs = their_step(jax.random.clone(key), theirs, action)
        observation, state, reward, terminated, truncated, info = ours
        out = (observation, reward, terminated, truncated, info), (
            theirs.observation, theirs.reward, theirs.done,
        )  # fmt: skip
        return (state, theirs.state), out

    @jax.jit
    def run(key):
        reset_key, steps_key = jax.random.split(key)
        _, state = env.reset_env(reset_key, params)
        start = state, reset(jax.random.clone(reset_key))
        return jax.lax.scan(step, start, jax.random.split(steps_key, STEPS))[1]

    with jax.debug_key_reuse(False):  # some libraries use a key twice
        return jax.device_get(run(jax.random.key(1)))


def index(case):
    return CASES.index(case)


@pytest.mark.parametrize("case", PARAMS)
def test_steps_are_the_library_s_own(case):
    (observation, reward, *_), theirs = side_by_side(index(case))
    until = int(theirs[2].argmax()) + 1 if theirs[2].any() else STEPS
    observation, reward = observation[:until].reshape(theirs[0][:until].shape), reward[:until]
    np.testing.assert_allclose(observation, theirs[0][:until], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(reward, theirs[1][:until], rtol=1e-3, atol=1e-5)
    assert until > 5 and len(np.unique(observation, axis=0)) > 5  # something happens


@pytest.mark.parametrize("case", PARAMS)
def test_an_end_is_the_library_s_and_either_terminated_or_truncated(case):
    (_, _, terminated, truncated, _), (*_, done) = side_by_side(index(case))
    assert not (terminated & truncated).any()
    first = int(done.argmax()) if done.any() else STEPS
    np.testing.assert_array_equal((terminated | truncated)[: first + 1], done[: first + 1])
    flags = {"terminated": terminated, "truncated": truncated}
    if case.ends:
        assert done.any() and flags[case.ends][first]
    else:
        assert not done.any()


@pytest.mark.parametrize("case", PARAMS)
def test_spaces_contain_observations(case):
    env, params = world(index(case))
    space = env.observation_space(params)
    (observation, *_), _ = side_by_side(index(case))
    assert observation.shape[1:] == tuple(space.shape) and observation.dtype == space.dtype
    assert (observation >= np.asarray(space.low)).all()
    assert (observation <= np.asarray(space.high)).all()
    assert np.isfinite(observation).all()


@pytest.mark.parametrize("case", PARAMS)
def test_a_batch_restarts_at_fresh_states_after_the_true_final_observation(case):
    """The limit is 5 steps, set by the adapter."""
    env, params = world(index(case))
    limited, limited_params = envs.make(case.name, **{**case.settings, "max_steps": 5})
    batch = envs.batch(limited, 3, num_steps=10, window=5)

    def step(carry, key):
        state, alone = carry
        action = random_action(env, params, jax.random.clone(key))
        actions = jnp.broadcast_to(action, (3, *action.shape))
        after = batch.step(key, state, actions, limited_params)
        observation, state, _, terminated, truncated, info = after
        first = jax.random.split(jax.random.clone(key), 3)[0]
        seen, alone, *_ = transition(env, first, alone, action, params)
        ends = terminated, truncated
        return (state, alone), (observation, ends, info["final_observation"], seen)

    @jax.jit
    def run(key):
        reset_key, refill_key, steps_key = jax.random.split(key, 3)
        observation, state = batch.reset(reset_key, limited_params)
        alone = jax.tree.map(lambda x: x[0], state.env.inner)
        state = batch.refill(refill_key, state, limited_params)
        _, steps = jax.lax.scan(step, (state, alone), jax.random.split(steps_key, 10))
        return observation, steps

    with jax.debug_key_reuse(False):
        first, (observation, ends, final, alone) = jax.device_get(run(jax.random.key(2)))
    terminated, truncated = ends
    done = terminated | truncated
    alive = np.cumsum(done[:, 0]) - done[:, 0] == 0  # up to the first end
    np.testing.assert_allclose(final[alive, 0], alone[alive], rtol=1e-5, atol=1e-6)  # as if alone
    assert done.any(0).all() and (truncated[4] == ~terminated[:5].any(0)).all()
    np.testing.assert_array_equal(observation[~done], final[~done])
    assert (observation[done] != final[done]).any()
    starts = np.concatenate([first, observation[done]])
    starts = starts.reshape(len(starts), -1)
    assert len(np.unique(starts, axis=0)) > 3  # Tetris begins with one of seven pieces


@pytest.mark.parametrize("case", PARAMS)
def test_one_program_without_callbacks(case):
    env, params = world(index(case))
    with jax.debug_key_reuse(False):
        state = jax.eval_shape(env.reset_env, jax.random.key(0), params)[1]
        action = jax.eval_shape(lambda: random_action(env, params, jax.random.key(0)))
        program = str(
            jax.make_jaxpr(lambda s, a: env.step_env(jax.random.key(0), s, a, params))(
                state, action
            )
        )
    assert "callback" not in program


# --- the parameters that may be batched --------------------------------------------------------


@pytest.mark.needs("craftax")
def test_craftax_takes_batched_parameters():
    env, params = envs.make("craftax/Classic-Symbolic")
    limits = jax.vmap(lambda n: params.replace(max_timesteps=n))(jnp.array([1, 3]))

    def ends(params):
        def step(state, key):
            *_, terminated, truncated, _ = after = transition(env, key, state, 0, params)
            return after[1], truncated & ~terminated

        _, state = env.reset_env(jax.random.key(0), params)
        return jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 3))[1]

    with jax.debug_key_reuse(False):
        found = jax.jit(jax.vmap(ends))(limits)
    np.testing.assert_array_equal(found, [[True, True, True], [False, False, True]])


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


def test_observations_that_are_not_finite_reach_no_network():
    from envs.brax import Physics

    seen = {"a": jnp.array([jnp.nan, 1.0]), "b": jnp.array([jnp.inf, -jnp.inf])}
    state = types.SimpleNamespace(obs=seen, reward=jnp.array(-jnp.inf), done=jnp.ones(()))
    state.metrics = {}
    wrapped = types.SimpleNamespace(step=lambda *_: state)
    env = types.SimpleNamespace(world=lambda params: wrapped)
    env._observe = functools.partial(Physics._observe, env)
    step = Physics.next(env, None, None, None, None)
    np.testing.assert_array_equal(step.observation, [0.0, 1.0, 0.0, 0.0])
    assert step.reward == 0.0 and bool(step.terminated)


# --- pictures and refusals ---------------------------------------------------------------------

PIXELS = [p for p, c in zip(PARAMS, CASES) if c.library in ("craftax", "navix", "xminigrid")]
PIXELS.append(PARAMS[6])  # Jumanji's pictures, which take a second each


@pytest.mark.parametrize("case", PIXELS)
def test_environments_of_cells_draw_themselves(case):
    env, params = world(index(case))
    with jax.debug_key_reuse(False):
        _, state = jax.jit(env.reset_env)(jax.random.key(0), params)
        picture = env.render(jax.tree.map(as_array, state), params)
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 2


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
    from envs import brax

    for name in [n for n in sys.modules if n.partition(".")[0] == "brax"] + ["brax"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(brax, "_envs", brax._envs.__wrapped__)
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
