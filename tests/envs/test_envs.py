"""The environment layer: what `make` repairs and refuses, batches, statistics, evaluation."""

import importlib
import math
import subprocess
import sys
import types
import urllib.error
from typing import NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import envs
from envs import registry, wrappers
from envs.batch import transition
from envs.gymnax import gymnax
from tests import probe as tasks
from tests.probe import ProbeParams

one_step = jax.jit(transition, static_argnums=0)  # of an environment; one by one, operations
# compile for longer than all in one program
NAMES = [n for n in gymnax.registered_envs if "MNIST" not in n]  # MNIST needs a download


# --- make -------------------------------------------------------------------------------------


def test_frames_of_numbers_without_an_axis_are_not_stacked():
    class Flat(tasks.Probe):
        def observation_space(self, params):
            return tasks.spaces.Box(0.0, 1.0, ())

    with pytest.raises(ValueError, match="frame_stack=2 needs observations with an axis; Probe"):
        wrappers.FrameStack(Flat(), ProbeParams(), 2)


def test_arguments_of_an_object_s_class_are_no_settings():
    with pytest.raises(ValueError, match="setting of Probe: 'continuous'; .*, noise") as caught:
        envs.make(tasks.Probe(), continuous=True)
    assert "mean continuous" not in str(caught.value)


def test_data_that_cannot_be_fetched_are_a_sentence(monkeypatch):
    def offline():
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(gymnax.utils.load_mnist, "load_mnist", offline)
    with pytest.raises(ValueError, match="MNISTBandit-bsuite cannot be made: .* not known"):
        envs.make("MNISTBandit-bsuite", fraction=0.01)


@pytest.mark.parametrize("name", [*NAMES, *registry.OWN])
def test_every_environment_is_right_at_the_boundary_wherever_it_is_first_made(name):
    """Dtypes and shapes of the spaces, float32 rewards, strong types, a state of one type.

    Parameters are traced. The environment is first made inside a trace and kept for all later
    calls, so it must hold nothing of the trace.
    """
    registry._cached.cache_clear()
    inside = lambda x: (x, envs.make(name))[0]
    jax.eval_shape(jax.jit(jax.vmap(inside)), jnp.zeros(2))
    env, params = envs.make(name)
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), params)
    agents = (env.num_agents,) if hasattr(env, "num_agents") else ()

    def both(key, params):
        reset_key, action_key, step_key = jax.random.split(key, 3)
        observation, state = env.reset_env(reset_key, params)
        draw = env.action_space(params).sample
        if agents:
            draw = lambda key, one=draw: jax.vmap(one)(jax.random.split(key, agents))
        action = draw(action_key)
        return (observation, state), transition(env, step_key, state, action, params)

    program, (reset, stepped) = jax.make_jaxpr(both, return_shape=True)(jax.random.key(0), params)
    assert not any(isinstance(x, jax.core.Tracer) for x in program.consts)
    space = env.observation_space(params)
    assert reset[0].dtype == stepped[0].dtype == space.dtype
    assert reset[0].shape == stepped[0].shape == (*agents, *space.shape)
    assert (stepped[2].dtype, stepped[2].shape) == (jnp.float32, agents)
    assert [(flag.dtype, flag.shape) for flag in stepped[3:5]] == [(bool, ())] * 2
    for before, after in zip(jax.tree.leaves(reset), jax.tree.leaves(stepped[:2]), strict=True):
        assert (before.dtype, before.shape) == (after.dtype, after.shape)
        assert not before.weak_type and not after.weak_type


def test_make_gives_one_object_for_one_name_and_settings():
    assert envs.make("CartPole-v1")[0] is envs.make("CartPole-v1")[0]
    assert envs.make("CartPole-v1", max_steps=7)[0] is not envs.make("CartPole-v1")[0]


def test_settings_reach_parameters_and_constructors():
    assert envs.make("CartPole-v1", gravity=1.5)[1].gravity == 1.5
    env, params = envs.make("DeepSea-bsuite", size=5)
    assert env.observation_space(params).shape == (5, 5)


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("cartpole", {}, "unknown environment 'cartpole'; did you mean CartPole-v1"),
        ("cartpole-v0", {}, r"unknown environment 'cartpole-v0'; did you mean CartPole-v1\?$"),
        ("breakout", {}, r"did you mean Breakout-MinAtar\?$"),
        ("Umbrella-bsuite", {}, r"did you mean UmbrellaChain-bsuite\?$"),
        ("MinAtar-Breakout", {}, r"did you mean Breakout-MinAtar\?$"),
        ("bandit", {}, r"did you mean MNISTBandit-bsuite, SimpleBandit-bsuite, "),
        ("LunarLander-v3", {}, "unknown environment 'LunarLander-v3'; there are CartPole-v1, "),
        ("HalfCheetah-v4", {}, r"did you mean brax/halfcheetah\?$"),
        ("InvertedPendulum-v5", {}, r"did you mean .*brax/inverted_pendulum"),
        ("xyzzy", {}, "unknown environment 'xyzzy'; there are"),
        ("of_nobody/ant", {}, r"unknown library 'of_nobody'; there are .*jaxmarl/\.\.\."),
        ("JaxMARL/hanabi", {}, r"unknown library 'JaxMARL'; did you mean jaxmarl/\.\.\.\?"),
        ("gym/cartpole-v1", {}, r"unknown library 'gym'; did you mean CartPole-v1\?"),
        ("ALE/Pong-v5", {}, r"unknown library 'ALE'; did you mean Pong-misc\?"),
        ("Brax/reacher", {}, r"unknown library 'Brax'; did you mean brax/"),
        ("CartPole-v1", {"gravitty": 1.0}, "'gravitty'; did you mean gravity"),
        ("CartPole-v1", {"gravity": (9.8, 12)}, "gravity=9.8,12: give one number, as 9.8"),
        ("CartPole-v1", {"max_steps": 0}, "max_steps=0: give a whole number"),
        ("CartPole-v1", {"max_steps": "x"}, "max_steps=x: give a whole number"),
        ("CartPole-v1", {"frame_stack": 0}, "frame_stack=0: give a whole number of observations"),
        ("CartPole-v1", {"start_window": 0.5}, "start_window=0.5: give a whole number of steps"),
        ("CartPole-v1", {"rescale_action": True}, "RescaleAction needs continuous actions"),
        (
            "CartPole-v1",
            {"action_repeat": 0},
            "action_repeat=0: give a whole number of frames, 1 or more",
        ),
        ("CartPole-v1", {"action_repeat": 2.5}, "action_repeat=2.5: give a whole number"),
        ("CartPole-v1", {"max_steps": np.inf}, "max_steps=inf: give a whole number of steps, up"),
        ("CartPole-v1", {"max_steps": np.nan}, "max_steps=nan: give a whole number of steps"),
        ("CartPole-v1", {"gravity": np.nan}, "setting of CartPole-v1: gravity=nan: give a number"),
        ("CartPole-v1", {"frame_stack": 2**31}, "frame_stack=2147483648: .*, up to 2147483647"),
        ("CartPole-v1", {"limit_terminates": "no"}, "limit_terminates=no: give true or false"),
        ("CartPole-v1", {"mask_actions": "off"}, "mask_actions=off: give true or false"),
        ("Pendulum-v1", {"rescale_action": 0}, "rescale_action=0: give true or false"),
        ("Pendulum-v1", {"max_torque": np.inf, "rescale_action": True}, "needs actions with bou"),
        ("CartPole-v1", {"max_steps_in_episode": 2**31}, "give a whole number up to 2147483647"),
        ("Acrobot-v1", {"available_torque": (-2, 2)}, r"available_torque=-2,2: give .* \(3,\), as"),
        ("Acrobot-v1", {"available_torque": "big"}, r"available_torque=big: give .* \(3,\), as"),
        ("Catch-bsuite", {"rows": "x"}, "rows=x: give a whole number, as 10"),
        ("Catch-bsuite", {"rows": 2.5}, "rows=2.5: give a whole number, as 10"),
        ("Catch-bsuite", {"rows": True}, "rows=True: give a whole number, as 10"),
        ("FrozenLake-misc", {"is_slippery": "no"}, "is_slippery=no: give true or false, as True"),
        ("FrozenLake-misc", {"success_rate": "x"}, "success_rate=x: give a number, as 0.33"),
        ("MetaMaze-misc", {"maze_size": 8}, "MetaMaze-misc with maze_size=8: AssertionError"),
        ("CartPole-v1", {"observe": (0, 4)}, "observe=.0, 4.: give indices from 0 to 3"),
        ("CartPole-v1", {"observe": (-1,)}, "observe=.-1,.: give indices from 0 to 3"),
        ("CartPole-v1", {"observe": ()}, "observe=..: give indices from 0 to 3"),
        ("CartPole-v1", {"observe": "x"}, "observe=x: give indices from 0 to 3"),
        ("Breakout-MinAtar", {"observe": (0,)}, "observe=.0,. needs flat observations; Breakout"),
    ],
)
def test_environments_that_cannot_be_made_are_refused(name, settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make(name, **settings)


def test_parameters_have_the_types_of_their_defaults():
    """Several numbers become an array, which actions traced can index; one number is a float."""
    env, params = envs.make("Acrobot-v1", available_torque=(-2, 0, 2), link_mass_1=2)
    assert type(params.link_mass_1) is float
    torque = params.available_torque
    assert isinstance(torque, jax.Array) and torque.dtype == jnp.float32
    np.testing.assert_array_equal(torque, [-2.0, 0.0, 2.0])
    observation, state = jax.eval_shape(env.reset_env, jax.random.key(0), params)
    step = lambda state, action: env.step_env(jax.random.key(1), state, action, params)[0]
    assert jax.eval_shape(step, state, 0).shape == observation.shape


@pytest.mark.needs("brax")
def test_tasks_of_mujoco_that_are_suggested_are_there():
    assert set(registry.MUJOCO) <= set(importlib.import_module("envs.brax").names())


class Nothing:
    default_params = tasks.ProbeParams()


class Restarting(gymnax.environments.environment.Environment):
    """Its own `step` and `reset`, in the place of `step_env` and `reset_env`."""

    default_params = tasks.ProbeParams()
    step = tasks.Probe.step_env
    reset = tasks.Probe.reset_env

    def action_space(self, params):
        return tasks.spaces.Discrete(2)

    def observation_space(self, params):
        return tasks.spaces.Box(-1.0, 1.0, (1,))


class Short(Restarting):
    """Without parameters of its own."""

    default_params = gymnax.environments.environment.Environment.default_params
    step_env = tasks.Probe.step_env
    reset_env = tasks.Probe.reset_env


class Ported(gymnasium.Env):
    """A user's own, in Python."""


@pytest.mark.parametrize(
    "env, message",
    [
        (Ported(), "env is <.*Ported.*: environments of gymnasium run in Python and"),
        (
            Nothing(),
            "env is a Nothing without reset_env, step_env, is_truncated, action_space, obs",
        ),
        (Restarting(), "env is a Restarting without reset_env, step_env: an environment has the i"),
        (
            Short(),
            "env is a Short without default_params, and gymnax's own end each episode after 1 st",
        ),
        (gymnasium.make("CartPole-v1"), "env is <.*: environments of gymnasium run in Python and"),
        (Short, "env is the class Short: give a name"),
        (7, "env is 7: give a name, as CartPole-v1, or an environment object"),
    ],
)
def test_objects_that_are_no_environment_are_refused(env, message):
    with pytest.raises(ValueError, match=message):
        envs.make(env)


def test_an_environment_object_can_be_made(probe):
    env, params = envs.make(probe, task=tasks.ENDLESS, max_steps=4)
    assert params.task == tasks.ENDLESS and env.max_steps == 4


def test_discrete_observations_become_one_hot():
    env, params = envs.make("FrozenLake-misc")
    observation, _ = env.reset_env(jax.random.key(0), params)
    assert observation.shape == env.observation_space(params).shape == (16,)
    assert float(observation.sum()) == 1.0


def test_importing_envs_imports_no_environment_library_and_making_one_no_plotting():
    code = (
        "import sys, envs\n"
        "assert 'gymnax' not in sys.modules\n"
        "import envs.jaxmarl\n"
        "assert 'jaxmarl' not in sys.modules\n"
        "envs.make('CartPole-v1')\n"
        "assert not {'seaborn', 'matplotlib.pyplot', 'pandas'} & set(sys.modules)\n"
        "from gymnax.environments.misc import pong\n"
        "class Plots: subplots, color_palette = 'subplots', 'colors'  # quick to import\n"
        "sys.modules['matplotlib.pyplot'] = sys.modules['seaborn'] = Plots\n"
        "assert (pong.plt.subplots, pong.sns.color_palette) == ('subplots', 'colors')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_both_flags_at_once_mean_terminated():
    """DeepSea sets both at its last row."""
    env, params = envs.make("DeepSea-bsuite")
    key = jax.random.key(0)
    _, state = env.reset_env(key, params)
    flags = []
    for i in range(8):
        step_key = jax.random.fold_in(jax.random.key(1), i)
        _, state, _, terminated, truncated, _ = one_step(env, step_key, state, 0, params)
        flags.append((bool(terminated), bool(truncated)))
    assert bool(env.is_truncated(state, params))
    assert flags == [(False, False)] * 7 + [(True, False)]


# --- wrappers ---------------------------------------------------------------------------------


def play(env, params, actions):
    _, state = env.reset_env(jax.random.key(0), params)
    keys = jax.random.split(jax.random.key(1), len(actions))
    steps = []
    for key, action in zip(keys, actions):
        _, state, reward, terminated, truncated, _ = one_step(env, key, state, action, params)
        steps.append((float(reward), bool(terminated), bool(truncated)))
    return steps


@pytest.mark.parametrize("limit", [3, 30])
def test_time_limit_truncates_and_lifts_the_environment_s_own(probe, limit):
    env, params = envs.make(probe, task=tasks.ENDLESS, max_steps=limit)
    steps = play(env, params, [0] * limit)
    assert [s[1:] for s in steps] == [(False, False)] * (limit - 1) + [(False, True)]


def test_a_time_limit_lifts_none_that_was_set():
    params = envs.make("CartPole-v1", max_steps=600, max_steps_in_episode=100)[1]
    assert params.max_steps_in_episode == 100


def test_a_time_limit_also_lifts_one_that_is_an_array():
    class Probe(tasks.Probe):
        default_params = ProbeParams(max_steps_in_episode=jnp.array(10))

    assert envs.make(Probe(), max_steps=30)[1].max_steps_in_episode == 30


def test_clip_and_rescale_change_the_environment_s_actions():
    base, params = envs.make("Pendulum-v1")
    clipped, _ = envs.make("Pendulum-v1", clip_action=True)
    rescaled, _ = envs.make("Pendulum-v1", rescale_action=True)
    _, state = base.reset_env(jax.random.key(0), params)

    def step(env, action):
        return env.step_env(jax.random.key(1), state, jnp.array([action]), params)[0]

    np.testing.assert_allclose(step(clipped, 9.0), step(base, 2.0), rtol=1e-6)
    np.testing.assert_allclose(step(rescaled, 0.5), step(base, 1.0), rtol=1e-6)
    np.testing.assert_allclose(step(rescaled, -3.0), step(base, -2.0), rtol=1e-6)
    space = rescaled.action_space(params)
    assert (space.low, space.high) == (-1.0, 1.0)
    assert isinstance(rescaled, wrappers.RescaleAction)


def test_clip_and_rescale_know_each_dimension_s_own_bounds():
    low, high = np.array([-1.0, 0.0]), np.array([3.0, 2.0])
    base, params = envs.make("Pendulum-v1")

    class Echo(wrappers.Wrapper):
        """Shows the action that arrives."""

        def action_space(self, params):
            return tasks.spaces.Box(jnp.array(low), jnp.array(high), (2,))

        def step_env(self, key, state, action, params):
            return action, *self.env.step_env(key, state, action[:1], params)[1:]

    _, state = base.reset_env(jax.random.key(0), params)
    action = np.array([[-5.0, -5.0], [5.0, 5.0], [0.5, -0.5]])
    rescaled = np.array([low, high, [2.0, 0.5]])
    for wrapper, expected in (
        (wrappers.ClipAction, np.clip(action, low, high)),
        (wrappers.RescaleAction, rescaled),
    ):
        env = wrapper(Echo(base), params)
        for one, arrives in zip(action, expected):
            found, *_ = env.step_env(jax.random.key(1), state, jnp.array(one), params)
            np.testing.assert_allclose(found, arrives, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("observe", [(0, 2), (3, 1, 1), 2])
def test_observe_keeps_those_entries_everywhere(observe):
    base, params = envs.make("CartPole-v1")
    env, same = envs.make("CartPole-v1", observe=observe)
    indices = np.atleast_1d(observe)
    whole, state = base.reset_env(jax.random.key(0), params)
    kept, other = env.reset_env(jax.random.key(0), params)
    np.testing.assert_array_equal(kept, whole[indices])
    for i in range(3):
        whole, state, *_ = base.step_env(jax.random.key(i), state, 1, params)
        kept, other, *_ = env.step_env(jax.random.key(i), other, 1, params)
        np.testing.assert_array_equal(kept, whole[indices])
    space, whole = env.observation_space(params), base.observation_space(params)
    assert space.shape == kept.shape and params == same
    np.testing.assert_array_equal(space.low, whole.low[indices])
    np.testing.assert_array_equal(space.high, whole.high[indices])


def test_observe_keeps_entries_of_every_agent_and_hands_all_else_on():
    class Wide(tasks.Pair):
        def reset_env(self, key, params):
            observation, state = super().reset_env(key, params)
            return jnp.concatenate([observation, 2.0 * observation], 1), state

        def observation_space(self, params):
            return tasks.spaces.Box(-2.0, 2.0, (2,))

    env, params = envs.make(Wide(masked=True, world=True), observe=(1,))
    observation, state = env.reset_env(jax.random.key(0), params)
    np.testing.assert_array_equal(observation, 2.0 * state.x[:, None])
    np.testing.assert_array_equal(env.world_state(state, params), 10.0 * state.x)
    assert env.action_mask(state, params).shape == (2, 3) and env.num_agents == 2
    assert env.observation_space(params).shape == (1,)


class Apart(tasks.Probe):
    """Observations with an entry for critics: ten times x, and the step."""

    def reset_env(self, key, params):
        x, state = super().reset_env(key, params)
        return {"observation": x, "state": jnp.stack([10.0 * x[0], state.time])}, state

    def step_env(self, key, state, action, params):
        x, state, *rest = super().step_env(key, state, action, params)
        entries = {"observation": x, "state": jnp.stack([10.0 * x[0], state.time])}
        return entries, state, *rest

    def observation_space(self, params):
        box = lambda size: tasks.spaces.Box(-99.0, 99.0, (size,))
        return tasks.spaces.Dict({"observation": box(1), "state": box(2)})


def test_entries_of_observations_are_for_policies_and_for_critics():
    """In a batch, through a time limit and its restarts; critics see both as one vector."""
    env, params = envs.make(Apart(), task=tasks.SWING, max_steps_in_episode=3)
    assert env.observation_space(params).shape == (1,)
    for whole, seen in ((env, None), envs.for_critics(env, params)):
        assert whole.observation_space(params).shape == ((1,) if seen is None else (3,))
        assert seen in (None, 1)
        batch = envs.batch(whole, 4, 5)
        observation, state = batch.reset(jax.random.key(0), params)
        step, times = jax.jit(batch.step), []
        for i in range(5):
            before = observation
            key, action = jax.random.fold_in(jax.random.key(1), i), jnp.zeros(4, jnp.int32)
            observation, state, _, terminated, truncated, info = step(key, state, action, params)
            final, world = info["final_observation"], info["final_world_state"]
            np.testing.assert_array_equal(final[:, 0], -before[:, 0])
            np.testing.assert_array_equal(world[:, 0], 10.0 * final[:, 0])
            times.append((world[0, 1], bool(truncated[0])))
            assert not terminated.any()
            for x, more in ((observation, batch.world_state(state, params)), (final, world)):
                np.testing.assert_array_equal(more[:, 0], 10.0 * x[:, 0])
                np.testing.assert_array_equal(x[:, 1:], more if seen else x[:, 1:])
        assert times == [(1, False), (2, False), (3, True), (1, False), (2, False)]


@pytest.mark.parametrize(
    "name, settings, repeat, last",
    [
        ("CartPole-v1", {}, 4, 2),  # falls inside a step, after ten frames
        ("CartPole-v1", {"max_steps": 7}, 3, 1),  # is cut inside a step
        ("CartPole-v1", {"max_steps": 6}, 3, 3),  # and at the end of one
        ("CartPole-v1", {}, 1, 1),
        ("Pursuit-v0", {"max_steps": 5}, 2, 1),
    ],
)
def test_repeated_actions_are_a_plain_loop(name, settings, repeat, last):
    """Observation, state, summed rewards, flags and info equal those of frames played one by one.

    Frames stop at the end of the episode; `last` is the number of frames of the last step.
    """
    base, params = envs.make(name, **settings)
    env, _ = envs.make(name, action_repeat=repeat, **settings)
    observation, state = base.reset_env(jax.random.key(0), params)
    other = env.reset_env(jax.random.key(0), params)[1]
    terminated = truncated = False
    i = 0
    while not (terminated or truncated):
        key, i = jax.random.fold_in(jax.random.key(1), i), i + 1
        action = jnp.asarray(env.action_space(params).sample(jax.random.key(i)))
        action = 0 * action if name == "CartPole-v1" else action
        if hasattr(env, "num_agents"):
            action = jnp.stack([action] * env.num_agents)
        total, frames = 0.0, 0
        for frame_key in jax.random.split(jax.random.clone(key), repeat):
            observation, state, reward, terminated, truncated, info = one_step(
                base, frame_key, state, action, params
            )
            total, frames = total + reward, frames + 1
            if terminated or truncated:
                break
        seen, other, *outcome = one_step(env, key, other, action, params)
        expected = (observation, state, total, terminated, truncated, info)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
            (seen, other, *outcome),
            expected,
        )
    assert frames == last


def test_repeated_actions_of_several_agents():
    pair = tasks.Pair(masked=True, world=True)
    env, params = envs.make(pair, action_repeat=4, task=jnp.array(tasks.LEAVING), max_steps=6)
    _, state = env.reset_env(jax.random.key(0), params)
    actions = jnp.array([0, 1])
    assert env.action_mask(state, params).shape == (2, 3) and env.num_agents == 2
    steps = []
    for i in range(2):
        step_key = jax.random.fold_in(jax.random.key(1), i)
        _, state, reward, terminated, truncated, info = one_step(
            env, step_key, state, jnp.maximum(actions, 1), params
        )
        steps.append((*map(float, reward), bool(terminated), bool(truncated)))
        np.testing.assert_array_equal(info["alive"], [True, False])
    # Agent 1 leaves with the first frame; the limit cuts the second step after two frames.
    assert steps == [(4.0, 1.0, False, False), (2.0, 0.0, False, True)]
    np.testing.assert_array_equal(env.world_state(state, params), 10.0 * state.inner.inner.x)


def test_a_batch_restarts_after_repeated_actions_with_the_right_final_observation():
    env, params = envs.make("Pendulum-v1", action_repeat=3, max_steps=4)
    batch = envs.batch(env, 2, 2)
    _, state = jax.jit(batch.reset)(jax.random.key(0), params)
    step_batch = jax.jit(batch.step)
    step = jax.jit(jax.vmap(env.env.step_env, (0, 0, 0, None)))
    actions, expected = jnp.array([[1.0], [-1.0]]), state.env
    for i, limit in enumerate([3, 1]):  # frames; the second step has one
        key = jax.random.fold_in(jax.random.key(1), i)
        frames = jax.vmap(jax.random.split, (0, None))(jax.random.split(jax.random.clone(key)), 3)
        for frame in range(limit):
            final, expected, *_ = step(frames[:, frame], expected, actions, params)
        observation, state, _, terminated, truncated, info = step_batch(key, state, actions, params)
        np.testing.assert_allclose(info["final_observation"], final, rtol=1e-5, atol=1e-6)
    assert truncated.all() and not terminated.any()
    assert not np.allclose(observation, final)


# --- what is seen and known -------------------------------------------------------------------


@pytest.mark.parametrize("name, axis", [("CartPole-v1", 4), ("Catch-bsuite", 5)])
def test_stacked_frames_are_the_last_observations_the_newest_at_the_end(name, axis):
    plain, params = envs.make(name)
    env, _ = envs.make(name, frame_stack=3, max_steps=3)
    space = env.observation_space(params)
    key = jax.random.key(0)
    observation, inner = plain.reset_env(key, params)
    seen, state = env.reset_env(jax.random.clone(key), params)
    frames = [observation] * 3
    for i in range(3):
        np.testing.assert_array_equal(seen, jnp.concatenate(frames, -1))
        assert seen.shape == space.shape == (*observation.shape[:-1], 3 * axis)
        assert (seen >= space.low).all() and (seen <= space.high).all()
        key = jax.random.fold_in(jax.random.key(1), i)
        observation, inner, *expected, _ = one_step(plain, key, inner, 1, params)
        seen, state, *outcome, _ = one_step(env, jax.random.clone(key), state, 1, params)
        frames = [*frames[1:], observation]
        assert outcome[:2] == expected[:2] and bool(outcome[2]) == (i == 2)  # the limit is inside


def test_a_stack_begins_anew_with_each_episode():
    env, params = envs.make("Pendulum-v1", frame_stack=2, max_steps=2)
    batch = envs.batch(env, 1, 4, window=1)
    observation, state = jax.jit(batch.reset)(jax.random.key(0), params)
    step = jax.jit(batch.step)
    for i in range(2):
        key = jax.random.fold_in(jax.random.key(1), i)
        observation, state, *_, info = step(key, state, jnp.zeros((1, 1)), params)
    np.testing.assert_array_equal(observation[:, :3], observation[:, 3:])
    assert (info["final_observation"][:, :3] != info["final_observation"][:, 3:]).any()


def test_a_mask_may_be_hidden_and_the_window_of_starts_set():
    assert hasattr(envs.make(tasks.Probe(masked=True), frame_stack=2)[0], "action_mask")
    env, params = envs.make(tasks.Probe(masked=True), mask_actions=False, max_steps=3)
    _, state = jax.eval_shape(envs.batch(env, 2).reset, jax.random.key(0), params)
    assert not hasattr(env, "action_mask")
    assert envs.batch(env, 2).action_mask(state, params) is None
    assert hasattr(envs.make(tasks.Probe(masked=True), mask_actions=True)[0], "action_mask")
    assert envs.batch(env, 2, 40).depth == 5  # of 8 steps each
    wide, _ = envs.make("CartPole-v1", start_window=20)
    assert envs.batch(wide, 2, 40).depth == 2 and envs.batch(wide, 2, 40, window=10).depth == 4


def test_a_time_limit_can_be_a_rule_of_the_task():
    """The episode ends at the same step, with the other flag."""
    for settings, expected in (({}, (False, True)), ({"limit_terminates": True}, (True, False))):
        env, params = envs.make("CartPole-v1", max_steps=3, **settings)
        _, state = env.reset_env(jax.random.key(0), params)
        for t in range(3):
            key = jax.random.key(t)
            _, state, _, terminated, truncated, _ = one_step(env, key, state, t % 2, params)
            flags = bool(terminated), bool(truncated)
            assert flags == ((False, False) if t < 2 else expected)
        assert bool(env.is_terminated(state, params)) == expected[0]


def test_an_evaluation_needs_episodes_that_end(probe):
    class NoParams:
        pass

    with pytest.raises(ValueError, match=r"Probe has no time limit.*max_steps=1000.*ends = True"):
        envs.check_ends(probe, NoParams())
    limited, params = envs.make(probe, max_steps=3)
    envs.check_ends(limited, NoParams())
    envs.check_ends(envs.make(limited, action_repeat=2)[0], NoParams())
    envs.check_ends(probe, params)
    limit = lambda steps: types.SimpleNamespace(max_steps_in_episode=steps)
    for endless in (math.inf, 2**30, jnp.array([10, 2**30])):
        with pytest.raises(ValueError, match="no time limit"):
            envs.check_ends(probe, limit(endless))
    envs.check_ends(probe, limit(jnp.array([10, 20])))
    jax.jit(lambda steps: envs.check_ends(probe, limit(steps)))(2**30)  # not known yet
    own = tasks.Probe()
    own.ends = True
    envs.check_ends(envs.make(own, frame_stack=2)[0], NoParams())
    unmasked = lambda env: wrappers.UnmaskedActions(envs.make(env)[0])
    with pytest.raises(ValueError, match="no time limit"):
        envs.check_ends(unmasked(own), NoParams())  # a forbidden action may change nothing
    envs.check_ends(unmasked(limited), NoParams())


# --- batches ----------------------------------------------------------------------------------


def roll(env, params, num_envs, num_steps, window=8):
    """A rollout of random actions; leading axes (num_steps, num_envs)."""
    batch = envs.batch(env, num_envs, num_steps, window)

    def step(carry, key):
        observation, state = carry
        action_key, step_key = jax.random.split(key)
        action = jax.vmap(env.action_space(params).sample)(jax.random.split(action_key, num_envs))
        after, state, reward, terminated, truncated, info = batch.step(
            step_key, state, action, params
        )
        row = (observation, after, info["final_observation"], reward, terminated, truncated)
        return (after, state), row

    @jax.jit
    def play():
        observation, state = batch.reset(jax.random.key(0), params)
        state = batch.refill(jax.random.key(1), state, params)
        keys = jax.random.split(jax.random.key(2), num_steps)
        return jax.lax.scan(step, (observation, state), keys)

    return play()


def test_final_observations_are_from_before_the_restart(probe):
    params = ProbeParams(task=tasks.DELAYED)
    _, (before, after, final, reward, terminated, _) = roll(probe, params, 3, 6)
    np.testing.assert_array_equal(before[:, 0, 0], [0, 1, 0, 1, 0, 1])
    np.testing.assert_array_equal(final[..., 0], 1.0)
    np.testing.assert_array_equal(after[:, 0, 0], [1, 0, 1, 0, 1, 0])
    np.testing.assert_array_equal(terminated[:, 0], [False, True] * 3)
    np.testing.assert_array_equal(reward[:, 0], [0, 1] * 3)


def test_truncated_episodes_restart_too(probe):
    params = ProbeParams(task=tasks.ENDLESS, max_steps_in_episode=4)
    (_, state), (*_, terminated, truncated) = roll(probe, params, 2, 10)
    assert not terminated.any()
    np.testing.assert_array_equal(np.flatnonzero(truncated[:, 0]), [3, 7])
    np.testing.assert_array_equal(state.env.time, [2, 2])


def test_start_states_have_the_distribution_of_reset():
    """CartPole starts uniformly in [-0.05, 0.05]^4: Kolmogorov-Smirnov test of starts after
    restarts."""
    env, params = envs.make("CartPole-v1")
    _, (_, after, _, _, terminated, truncated) = roll(env, params, 64, 256)
    starts = np.asarray(after)[np.asarray(terminated | truncated)]
    assert len(starts) > 500
    for column in starts.T:
        steps = np.arange(1, len(starts) + 1) / len(starts)
        distance = np.abs(np.sort(column) / 0.1 + 0.5 - steps).max()
        assert distance < 1.95 / np.sqrt(len(starts))  # the 0.1 % level


def test_two_environments_never_share_a_start_and_one_only_within_a_window():
    env, params = envs.make("CartPole-v1", max_steps=4)
    _, (_, after, _, _, terminated, truncated) = roll(env, params, 8, 64)
    done = np.asarray(terminated | truncated)
    starts = np.asarray(after)
    assert done[3].all() and done[7].all()
    # Steps 3 and 7 of one environment end in one window and repeat its start; all others differ.
    np.testing.assert_array_equal(starts[3], starts[7])
    assert len(np.unique(starts[done].round(7), axis=0)) == done.sum() // 2
    _, (_, after, *_) = roll(env, params, 8, 64, window=1)
    assert len(np.unique(np.asarray(after)[done].round(7), axis=0)) == done.sum()


def test_a_rollout_that_ends_within_a_window_has_a_start_for_it():
    """Steps 8 to 11 are in the second window of eight."""
    env, params = envs.make("CartPole-v1", max_steps=4)
    _, (_, after, *_) = roll(env, params, 2, 12)
    assert not np.array_equal(after[3], after[11])


def test_a_dead_agent_sees_zeros_only_where_numbers_are_not_finite():
    seen = jnp.array([[jnp.inf, 1.0], [jnp.nan, 2.0]])
    stepped = (seen, None, 0.0, jnp.array(False), {"alive": jnp.array([True, False])})
    never = lambda *_: jnp.array(False)
    env = types.SimpleNamespace(step_env=lambda *_: stepped, is_truncated=never, num_agents=2)
    observation, *_ = transition(env, None, None, None, None)
    np.testing.assert_array_equal(observation, [[np.inf, 1.0], [0.0, 2.0]])


def test_batch_steps_are_those_of_gymnax_until_an_episode_ends():
    env, params = envs.make("Acrobot-v1", max_steps=5)
    _, (before, after, final, *_, truncated) = roll(env, params, 4, 5)
    np.testing.assert_array_equal(before[1:], after[:-1])
    np.testing.assert_array_equal(after[:4], final[:4])
    assert truncated[4].all() and not np.allclose(after[4], final[4])


def forbidden(x):
    """The probe with a third action that is always forbidden, and action 0 forbidden where x >
    0."""
    return np.stack([x > 0, x > 2, x < 2], -1)


@pytest.mark.parametrize("limit", [None, 7])
def test_masks_are_those_of_the_observation_and_of_the_one_before_a_restart(limit):
    settings = {} if limit is None else {"max_steps": limit}  # a wrapper has a state of its own
    env, params = envs.make(tasks.Probe(masked=True), task=tasks.SWING, **settings)
    params = params.replace(max_steps_in_episode=3)  # x = 1, -1, 1; the last step leads to -1
    batch = envs.batch(env, 2, 7)
    observation, state = jax.jit(batch.reset)(jax.random.key(0), params)
    step, seen = jax.jit(batch.step), []
    for i in range(7):
        np.testing.assert_array_equal(
            batch.action_mask(state, params), ~forbidden(observation[:, 0])
        )
        key, action = jax.random.fold_in(jax.random.key(1), i), jnp.ones(2, jnp.int32)
        observation, state, *_, info = step(key, state, action, params)
        final = info["final_observation"][:, 0]
        np.testing.assert_array_equal(info["final_action_mask"], ~forbidden(final))
        seen.append((float(observation[0, 0]), float(final[0])))
    assert seen[:4] == [(-1.0, -1.0), (1.0, 1.0), (1.0, -1.0), (-1.0, -1.0)]  # restarts once
    assert batch.world_state(state, params) is None and "final_world_state" not in info


def test_masks_and_world_states_of_several_agents_have_their_axis():
    env, params = envs.make(tasks.Pair(masked=True, world=True), task=tasks.LEAVING)
    params = params.replace(max_steps_in_episode=1)  # x = 1 at first, and then 0
    batch = envs.batch(env, 3)
    _, state = jax.jit(batch.reset)(jax.random.key(0), params)
    actions = jnp.ones((3, 2), jnp.int32)
    observation, state, *_, info = jax.jit(batch.step)(jax.random.key(1), state, actions, params)
    np.testing.assert_array_equal(observation, jnp.ones((3, 2, 1)))
    np.testing.assert_array_equal(batch.world_state(state, params), 10.0 * jnp.ones((3, 2)))
    np.testing.assert_array_equal(info["final_world_state"], jnp.zeros((3, 2)))
    np.testing.assert_array_equal(batch.action_mask(state, params), ~forbidden(np.ones((3, 2))))
    np.testing.assert_array_equal(info["final_action_mask"], ~forbidden(np.zeros((3, 2))))


def test_an_environment_without_masks_has_none(probe):
    batch = envs.batch(probe, 2)
    _, state = jax.eval_shape(batch.reset, jax.random.key(0), ProbeParams())
    assert batch.action_mask(state, ProbeParams()) is None
    actions = jnp.zeros(2, jnp.int32)
    *_, info = jax.eval_shape(batch.step, jax.random.key(1), state, actions, ProbeParams())
    assert set(info) == {"final_observation"}


# --- evaluation -------------------------------------------------------------------------------


class Paid(wrappers.Wrapper):
    """Pays at each step how many there were, after the end of the episode too."""

    def step_env(self, key, state, action, params):
        observation, state, _, terminated, info = self.env.step_env(key, state, action, params)
        return observation, state, jnp.float32(state.time), terminated, info


class Told(NamedTuple):
    """A memory of the last reward."""

    reward: jax.Array


def test_evaluation_plays_whole_episodes_and_stops():
    """CartPole, pushed right and left by the last reward, against a plain loop."""
    env, params = envs.make("CartPole-v1")

    def policy(state, observation, memory=None, rng=None):
        memory = Told(jnp.zeros(())) if memory is None else memory
        return (memory.reward // 3).astype(int) % 2, memory

    run = jax.jit(lambda key: envs.evaluate(policy, None, Paid(env), params, key, 5))
    episodes = run(jax.random.key(0))
    _, reset_rng = jax.random.split(jax.random.key(0))
    for i, key in enumerate(jax.random.split(reset_rng, 5)):
        _, state = env.reset_env(key, params)
        length, terminated = 0, False
        while not terminated:
            action = (length // 3) % 2
            _, state, _, terminated, _ = env.step_env(jax.random.key(9), state, action, params)
            length += 1
        assert int(episodes.length[i]) == length == float(episodes.last_reward[i])
        assert float(episodes.episode_return[i]) == length * (length + 1) / 2
    assert len(np.unique(episodes.length)) > 1, "all end at once"
    assert episodes.terminated.all() and not episodes.truncated.any()


def test_some_episodes_of_an_evaluation_are_those_of_the_whole():
    env, params = envs.make("CartPole-v1")
    policy = lambda state, observation, memory=None, rng=None: (jnp.int32(1), memory)
    run = jax.jit(lambda only: envs.evaluate(policy, None, env, params, jax.random.key(0), 5, only))
    whole, only = run(None), np.array([3, 1, 1])
    assert len(np.unique(whole.length)) > 1
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[only], y), whole, run(only))


def test_evaluation_has_truncation_and_the_last_reward(probe):
    env, params = envs.make(probe, task=tasks.ENDLESS, reward=3.0)
    policy = lambda state, observation, memory=None, rng=None: (jnp.int32(0), memory)
    episodes = jax.jit(lambda key: envs.evaluate(policy, None, env, params, key, 2))(
        jax.random.key(0)
    )
    np.testing.assert_array_equal(episodes.episode_return, [30.0, 30.0])
    np.testing.assert_array_equal(episodes.length, [10, 10])
    np.testing.assert_array_equal(episodes.last_reward, [3.0, 3.0])
    assert episodes.truncated.all() and not episodes.terminated.any()


def test_evaluation_passes_the_mask_of_the_observation_to_the_policy():
    """The policy takes the first allowed action: 1 where x > 0, else 0."""
    env, params = envs.make(tasks.Probe(masked=True), task=tasks.BOTH)
    policy = lambda state, observation, memory=None, rng=None, mask=None: (
        jnp.argmax(jnp.ones(3) if mask is None else mask),
        memory,
    )
    play = jax.jit(lambda key: envs.evaluate(policy, None, env, params, key, 16))
    episodes = play(jax.random.key(0))
    np.testing.assert_array_equal(episodes.episode_return, jnp.ones(16))


def test_names_are_those_of_gymnax_and_of_the_kit_itself():
    assert set(envs.names()) == {*gymnax.registered_envs, *registry.OWN}


# --- staggered episodes -----------------------------------------------------------------------


@pytest.mark.parametrize("repeat", [1, 3])
def test_first_episodes_are_cut_at_random_steps(repeat):
    """Ten frames an episode: later episodes are whole, and end at different times. The time limit
    of the environment's own is longer."""
    env, params = envs.make(tasks.Probe(), max_steps=10, action_repeat=repeat)
    params = params.replace(max_steps_in_episode=50.0)
    params = params.replace(task=tasks.ENDLESS)
    limit, number = -(-10 // repeat), 400
    ends = {}
    for stagger in (False, True):
        batch = envs.batch(env, number, 3 * limit, stagger=stagger)
        _, state = jax.jit(batch.reset)(jax.random.key(0), params)
        step, found = jax.jit(batch.step), []
        for t in range(3 * limit):
            action = jnp.zeros(number, jnp.int32)
            _, state, _, terminated, truncated, _ = step(jax.random.key(t), state, action, params)
            assert not terminated.any()
            found.append(truncated)
        ends[stagger] = np.stack(found)
    assert (ends[False].sum(1) == np.where(np.arange(1, 3 * limit + 1) % limit, 0, number)).all()
    first = ends[True].argmax(0) + 1
    counts = np.bincount(first, minlength=limit + 1)[1:]
    assert len(counts) == limit and (counts > 0.6 * number / limit).all(), "as a uniform draw"
    for i in range(number):
        assert (np.diff(np.flatnonzero(ends[True][:, i])) == limit).all()


def test_a_cut_is_no_termination_and_needs_a_time_limit():
    """Episodes of one step terminate, also where they are cut."""
    env = tasks.Probe()
    batch = envs.batch(env, 50, stagger=True)
    _, state = jax.jit(batch.reset)(jax.random.key(0), env.default_params)
    _, _, _, terminated, truncated, _ = jax.jit(batch.step)(
        jax.random.key(1), state, jnp.zeros(50, jnp.int32), env.default_params
    )
    assert (state.cut == 1).any() and terminated.all() and not truncated.any()
    env.limit_name = "none"
    reset = envs.batch(env, 2, stagger=True).reset
    _, state = jax.eval_shape(reset, jax.random.key(0), env.default_params)
    assert state.cut is None


# --- agents that leave, and rewards that are not finite ---------------------------------------


@struct.dataclass
class LeaversParams:
    task: int = tasks.LEAVING
    broken: int = 0  # at this step rewards are NaN
    shaped: float = 1.0
    shaped_steps: float = float("inf")
    max_steps_in_episode: int = 99


class Leavers(tasks.Pair):
    """Agent 1 leaves after the first step, and is back in the third. Paid 1 and 10 a step."""

    shapes_rewards = True

    @property
    def default_params(self):
        return LeaversParams()

    def step_env(self, key, state, action, params):
        state = tasks.PairState(state.x, state.time + 1)
        alive = jnp.array([True, False]) | (state.time != 1)
        reward = jnp.array([1.0, 10.0]) * jnp.where(params.broken == state.time, jnp.nan, 1.0)
        info = {"alive": alive, "shaped_reward": 2.0 * reward}
        return state.x[:, None], state, reward, state.time == 4, info


def earned(env, params):
    """Rewards and shaped rewards of the four steps of an episode, (4, 2) each."""
    state, found = env.reset_env(jax.random.key(0), params)[1], []
    for step in range(4):
        key, action = jax.random.key(step), jnp.zeros(2, int)
        _, state, reward, _, info = env.step_env(key, state, action, params)
        found.append((reward, info["shaped_reward"]))
    assert not env.is_truncated(state, params)
    return jax.tree.map(lambda *x: np.stack(x), *found)


def test_an_agent_that_left_earns_nothing_of_its_own():
    """In evaluations, batches and shaped rewards; the step in which it leaves still counts."""
    expected = np.array([[1, 10], [1, 0], [1, 10], [1, 10]])
    env, params = envs.make(Leavers())
    reward, shaped = earned(env, params)
    np.testing.assert_array_equal(reward, expected)
    np.testing.assert_array_equal(shaped, 2 * expected)
    policy = lambda state, observation, memory=None: (jnp.zeros(2, int), memory)
    episodes = envs.evaluate(policy, None, env, params, jax.random.key(0), 2)
    np.testing.assert_array_equal(episodes.episode_return, [[4, 30]] * 2)
    batch = envs.batch(env, 3, 8)
    state = batch.refill(jax.random.key(1), batch.reset(jax.random.key(0), params)[1], params)
    for row in [*expected, expected[0]]:  # the next episode begins with both
        _, state, reward, *_ = batch.step(jax.random.key(2), state, jnp.zeros((3, 2), int), params)
        np.testing.assert_array_equal(reward, [3 * row] * 3)
    assert float(state.metrics.totals["shaping"].total[1]) == 3 * 60


def test_a_team_earns_for_agents_that_left():
    for attribute in ("shared_reward", "team_rewards"):
        env = Leavers()
        vars(env)[attribute] = True
        reward, _ = earned(*envs.make(env))
        np.testing.assert_array_equal(reward, [[1, 10]] * 4)


def test_rewards_are_as_they_were_where_nobody_leaves():
    for env in (tasks.Twins(), tasks.Probe(), "Pursuit-v0", "MultiNavigator-v0"):
        made = envs.make(env)[0]
        while made is not None:
            assert not isinstance(made, wrappers.Leaving)
            made = vars(made).get("env")


def test_rewards_that_are_not_finite_are_replaced_and_counted():
    env, params = envs.make(Leavers(), nan_reward=-1, broken=2)
    reward, shaped = earned(env, params)
    np.testing.assert_array_equal(reward[:, 0], [1, -1, 1, 1])
    np.testing.assert_array_equal(shaped[:, 0], [2, -1, 2, 2])
    assert reward[1, 1] == 0 and np.isnan(earned(*envs.make(Leavers(), broken=2))[0][1, 0])
    policy = lambda state, observation, memory=None: (jnp.zeros(2, int), memory)
    episodes = envs.evaluate(policy, None, env, params, jax.random.key(0), 2)
    np.testing.assert_array_equal(episodes.episode_return[:, 0], [2, 2])
    np.testing.assert_array_equal(episodes.metrics["nan_rewards"], [1, 1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, jnp.nan])
def test_each_reward_that_is_not_finite_counts_beside_other_metrics(bad):
    class Bad(tasks.Reporting):
        def step_env(self, key, state, action, params):
            *rest, reward, terminated, info = super().step_env(key, state, action, params)
            return *rest, jnp.where(state.time % 2 == 0, bad, reward), terminated, info

    env, params = envs.make(Bad(), nan_reward=0.0, action_repeat=3)
    assert env.metrics == {**tasks.Reporting().metrics, "nan_rewards": "sum"}
    _, state = env.reset_env(jax.random.key(0), params)
    *_, reward, _, info = env.step_env(jax.random.key(0), state, jnp.int32(0), params)
    assert np.isfinite(reward) and info["metrics"]["nan_rewards"] == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "zero", True])
def test_only_numbers_replace_rewards(value):
    with pytest.raises(ValueError, match=f"nan_reward={value}: give a number"):
        envs.make("CartPole-v1", nan_reward=value)
