"""Environments that break the interface are refused in a sentence that names them."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import envs
from algorithms import ppo
from envs.gymnax import Environment, Wrapper, spaces
from tests import probe as tasks

PARTS = ("observation", "state", "reward", "terminated", "info")


class Changed(Wrapper):
    """An environment with changed results of reset_env and step_env, in parts or `all`.

    Other attributes are replaced.
    """

    def __init__(self, env, reset=None, step=None, **attributes):
        super().__init__(env)
        self.reset, self.step = reset or {}, step or {}
        vars(self).update(attributes)

    def reset_env(self, key, params):
        return change(self.reset, self.env.reset_env(key, params))

    def step_env(self, key, state, action, params):
        return change(self.step, self.env.step_env(key, state, action, params))


def change(functions, values):
    same = lambda x: x
    values = tuple(functions.get(part, same)(value) for part, value in zip(PARTS, values))
    return functions.get("all", same)(values)


def always(value):
    return lambda *_: value


def both(**changes):
    return {"reset": changes, "step": changes}


def step(**changes):
    return {"step": changes}


def as_dict(state):
    return {"x": state.x, "time": state.time}


class Dicts(tasks.Probe):
    """An environment whose states are dictionaries."""

    def reset_env(self, key, params):
        observation, state = super().reset_env(key, params)
        return observation, as_dict(state)

    def step_env(self, key, state, action, params):
        state = tasks.ProbeState(state["x"], state["time"])
        return change({"state": as_dict}, super().step_env(key, state, action, params))

    def is_truncated(self, state, params):
        return state["time"] >= params.max_steps_in_episode


ALONE = [
    (
        both(observation=lambda x: jnp.tile(x, 3)),
        "reset_env of Probe returns an observation of shape (3,), in place of (1,)",
    ),
    (
        step(observation=lambda x: x[0]),
        "step_env of Probe returns an observation of shape (), in place of (1,)",
    ),
    (
        both(observation=lambda x: {"x": x}),
        "reset_env of Probe returns an observation of type dict, in place of one array",
    ),
    (
        both(observation=lambda x: (x, jnp.zeros(2))),
        "reset_env of Probe returns an observation of type tuple, in place of one array",
    ),
    (
        step(reward=lambda x: jnp.tile(x, 2)),
        "step_env of Probe returns a reward of shape (2,), in place of ()",
    ),
    (
        step(reward=lambda x: {"agent": x}),
        "step_env of Probe returns a reward of type dict, in place of one array",
    ),
    (
        step(terminated=lambda x: x[None]),
        "step_env of Probe returns terminated of shape (1,), in place of ()",
    ),
    (
        step(terminated=lambda x: {"agent_0": x, "__all__": x}),
        "step_env of Probe returns terminated as a dict: give one flag for the episode of all; "
        "info['alive'] is False for agents that have left",
    ),
    (
        both(observation=lambda x: jnp.stack([x, x])),
        "reset_env of Probe returns an observation of shape (2, 1), in place of (1,); for 2 agents "
        "give the environment num_agents",
    ),
    (
        {"action_mask": lambda *_: jnp.array([0.0, -1e9])},
        "action_mask of Probe returns a mask of float32, in place of bool",
    ),
    ({"action_mask": None}, "action_mask of Probe is None: give a method, or leave it out"),
    (
        {"action_mask": lambda state: jnp.ones(2, bool)},
        "action_mask of Probe takes (state, params): too many positional arguments",
    ),
    (
        {"is_truncated": always(jnp.zeros(1, bool))},
        "is_truncated of Probe returns a flag of shape (1,), in place of ()",
    ),
    (
        {"is_truncated": always(jnp.zeros(()))},
        "is_truncated of Probe returns a flag of float32, in place of bool",
    ),
    (
        step(all=lambda values: values[:4]),
        "step_env of Probe returns 4 values, in place of the 5 values observation, state, reward, "
        "terminated, info",
    ),
    (
        {"reset": {"all": lambda values: values[0]}},
        "reset_env of Probe returns an array, in place of the 2 values observation, state",
    ),
    (
        step(state=lambda s: s | {"x": s["x"][None]}),
        "step_env of Probe returns state['x'] of float32 (1,), in place of float32 () as reset_env "
        "does",
    ),
    (
        step(state=lambda s: s | {"time": s["time"] + 0.5}),
        "step_env of Probe returns state['time'] of float32 (), in place of int32 () as reset_env "
        "does",
    ),
    (
        step(state=lambda s: s | {"speed": s["x"]}),
        "step_env of Probe returns state['speed'], which reset_env does not",
    ),
    (
        step(state=lambda s: {"x": s["x"]}),
        "step_env of Probe returns no state['time'], which reset_env does",
    ),
    (
        {"reset": {"state": lambda s: s | {"v": (s["x"],)}}}
        | step(state=lambda s: s | {"v": [s["x"]]}),
        "step_env of Probe returns a state of another structure than reset_env does",
    ),
    (step(info=always(None)), "step_env of Probe returns a NoneType, in place of a dict of info"),
    (
        step(info=always({"metrics": {"won": jnp.ones(())}})),
        'Probe reports the metric won, but has no metrics = {"won": "last"} (or "sum") to say what '
        "an episode's value is",
    ),
    ({"metrics": {"won": "last"}}, "Probe has the metric won, which step_env does not report"),
    (
        step(info=always({"metrics": {"won": jnp.ones(2)}})) | {"metrics": {"won": "sum"}},
        "step_env of Probe returns the metric won of shape (2,), in place of ()",
    ),
    (
        {"action_mask": always(jnp.ones(3, bool))},
        "action_mask of Probe returns a mask of shape (3,), in place of (2,)",
    ),
    (
        {"shapes_rewards": True},
        'step_env of Probe returns info["shaped_reward"] of type NoneType, in place of one array',
    ),
]
TEAM = [
    (
        both(observation=lambda x: x[0]),
        "reset_env of Pair returns an observation of shape (1,), in place of (2, 1) for 2 agents",
    ),
    (
        step(reward=lambda x: x.sum()),
        "step_env of Pair returns a reward of shape (), in place of (2,) for 2 agents",
    ),
    (
        step(info=always({"alive": jnp.ones(3, bool)})),
        'step_env of Pair returns info["alive"] of shape (3,), in place of (2,) for 2 agents',
    ),
    (
        step(info=always({"alive": jnp.ones(2)})),
        'step_env of Pair returns info["alive"] of float32, in place of bool',
    ),
    (
        step(terminated=lambda x: jnp.stack([x, x])),
        "step_env of Pair returns terminated as shape (2,): give one flag for the episode of all; "
        "info['alive'] is False for agents that have left",
    ),
    (
        {"action_mask": always(jnp.ones(2, bool))},
        "action_mask of Pair returns a mask of shape (2,), in place of (2, 2) for 2 agents",
    ),
    (
        {"world_state": always((jnp.ones(2), jnp.ones(3)))},
        "world_state of Pair returns a view of type tuple, in place of one array",
    ),
]


def refuse(env, message):
    """Asserts that an environment is refused, both directly and through `envs.make`."""
    for given in ((env, env.default_params), envs.make(env)):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            envs.check_interface(*given)


@pytest.mark.parametrize("changes, message", ALONE, ids=[message for _, message in ALONE])
def test_one_agent(changes, message):
    refuse(Changed(Dicts(), **changes), message)


@pytest.mark.parametrize("changes, message", TEAM, ids=[message for _, message in TEAM])
def test_several_agents(changes, message):
    refuse(Changed(tasks.Pair(), **changes), message)


@pytest.mark.parametrize(
    "env",
    [
        tasks.Probe(),
        tasks.Probe(masked=True),
        tasks.Reporting(),
        tasks.Pair(masked=True, world=True),
        tasks.Twins(),
        Changed(Dicts(), **step(state=lambda s: s | {"x": 0.0})),  # weak types aside
    ],
    ids=lambda env: env.name,
)
@pytest.mark.filterwarnings("ignore::envs.warn.KitWarning")
def test_environments_that_keep_to_the_interface_are_taken_in_any_wrapper(env):
    envs.check_interface(env, env.default_params)
    for settings in ({}, {"max_steps": 3}, {"frame_stack": 2}, {"action_repeat": 2}):
        envs.check_interface(*envs.make(env, **settings))


def test_make_still_repairs_common_mistakes():
    """Numbers of other kinds, a reward (1,), and a state's integers instead of floats."""
    for changes in (
        step(reward=lambda x: x.astype(jnp.int32)),
        step(reward=lambda x: x[None], terminated=lambda x: x.astype(jnp.int32)),
        both(observation=lambda x: x.astype(jnp.int8)),
        both(observation=lambda x: [x[0]]),
        step(state=lambda s: s | {"x": jnp.int32(1)}),
    ):
        envs.check_interface(*envs.make(Changed(Dicts(), **changes)))
    with pytest.raises(ValueError, match=r"a reward of shape \(1,\), in place of \(\)$"):
        env = Changed(Dicts(), **step(reward=lambda x: x[None]))
        envs.check_interface(env, env.default_params)


def as_space(space, part="observation_space"):
    return {part: always(space)}


def pixels(x):
    return jnp.full(1, 0.5)


def test_whole_numbers_may_have_no_bound():
    changes = both(observation=lambda x: x.astype(jnp.int32))
    changes |= as_space(spaces.Box(-np.inf, np.inf, (1,), jnp.int32))
    envs.check_interface(*envs.make(Changed(Dicts(), **changes)))


SPACES = [
    (
        both(observation=pixels) | as_space(spaces.Box(0, 255, (1,), jnp.uint8)),
        "reset_env of Probe returns an observation of floats, and observation_space has uint8, "
        "which would cut them off",
    ),
    (
        both(observation=pixels) | as_space(spaces.Box(0, 1, (1,), bool)),
        "reset_env of Probe returns an observation of floats, and observation_space has bool, "
        "which would cut them off",
    ),
    (
        both(observation=lambda x: 0.5) | as_space(spaces.Discrete(3)),
        "reset_env of Probe returns an observation of floats, and observation_space has int32, "
        "which would cut them off",
    ),
    (
        as_space(spaces.Box(0, 256, (1,), jnp.uint8)),
        "observation_space of Probe is Box(low=0, high=256, shape=(1,), dtype=uint8), which has "
        "bounds that uint8 cannot hold; float32 would do",
    ),
    (
        as_space(spaces.Box(-1, np.inf, (1,), jnp.uint8)),
        "observation_space of Probe is Box(low=-1, high=inf, shape=(1,), dtype=uint8), which has "
        "bounds that uint8 cannot hold; float32 would do",
    ),
    (
        as_space(spaces.Box(1.0, -1.0, (1,))),
        "observation_space of Probe is Box(low=1.0, high=-1.0, shape=(1,), dtype=float32), which "
        "has a low above its high",
    ),
    (
        as_space(spaces.Box(np.array([0.0, 2.0]), np.ones(2), (2,)), "action_space"),
        "action_space of Probe is Box(low=[0. 2.], high=[1. 1.], shape=(2,), dtype=float32), which "
        "has a low above its high",
    ),
    (
        as_space(spaces.Box(float("nan"), 1.0, (1,)), "action_space"),
        "action_space of Probe is Box(low=nan, high=1.0, shape=(1,), dtype=float32), which has a "
        "low above its high",
    ),
    (
        both(observation=lambda x: x[:0]) | as_space(spaces.Box(-1.0, 1.0, (0,))),
        "observation_space of Probe is Box(low=-1.0, high=1.0, shape=(0,), dtype=float32), which "
        "has no elements",
    ),
    (
        as_space(spaces.Box(-1.0, 1.0, (2, 0)), "action_space"),
        "action_space of Probe is Box(low=-1.0, high=1.0, shape=(2, 0), dtype=float32), which has "
        "no elements",
    ),
    (
        as_space(spaces.Discrete(0), "action_space"),
        "action_space of Probe is Discrete(0, dtype=int32), which has no elements",
    ),
]


@pytest.mark.parametrize("changes, message", SPACES, ids=[message for _, message in SPACES])
def test_spaces_and_observations_that_do_not_fit(changes, message):
    refuse(Changed(Dicts(), **changes), message)


def test_an_algorithm_refuses_them_as_well():
    """They trained before: a network of 8 bits saw zeros, and a Box of no elements divided by 0."""
    for changes, message in SPACES:
        if "action_space" not in changes:
            env = Changed(Dicts(), **changes)
            with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
                ppo.make_train(ppo.Config(env=env))


def test_bounds_that_are_traced_are_not_known():
    env = Changed(Dicts())
    env.observation_space = lambda params: spaces.Box(-params.reward, params.reward, (1,))
    env, params = envs.make(env)

    def check(reward):
        envs.check_interface(env, params.replace(reward=reward))
        return reward

    jax.jit(check)(-1.0)
    with pytest.raises(ValueError, match="has a low above its high"):
        check(-1.0)


# --- parameters that no program takes ---------------------------------------------------------


@struct.dataclass
class Shaping:
    size: int = 1
    flag: bool = False
    reward: float = 1.0
    max_steps_in_episode: int = 10


class Shaped(tasks.Probe):
    """Its parameters shape its program: a size and a flag."""

    default_params = Shaping()

    def reset_env(self, key, params):
        x = jnp.ones(params.size)
        return x[:1], tasks.ProbeState(x[0], jnp.zeros((), jnp.int32))

    def step_env(self, key, state, action, params):
        state = tasks.ProbeState(state.x, state.time + 1)
        reward = params.reward if params.flag else 0.0
        return state.x[None], state, reward, jnp.zeros((), bool), {}


@struct.dataclass
class Named:
    kind: str = "easy"
    max_steps_in_episode: int = 10


@pytest.mark.filterwarnings("ignore::envs.warn.KitWarning")
def test_parameters_that_shape_the_program_are_named_with_the_remedy():
    sentence = (
        "Probe needs the value of size, flag while its program is made, as a shape, in an if or in "
        "a function of np: declare size: int = struct.field(pytree_node=False, default=1), flag: "
        "bool = struct.field(pytree_node=False, default=False); or take jnp.where and jnp"
    )
    refuse(Shaped(), sentence)
    fixed = lambda default: struct.field(pytree_node=False, default=default)

    @struct.dataclass
    class Static(Shaping):
        size: int = fixed(1)
        flag: bool = fixed(False)

    env = Shaped()
    env.default_params = Static()
    envs.check_interface(*envs.make(env, size=2))


def test_parameters_that_are_no_numbers_are_named_with_the_remedy():
    env = tasks.Probe()
    sentence = (
        "parameter kind of Probe is 'easy', which programs cannot take: declare it as kind: str = "
        "struct.field(pytree_node=False, default='easy')"
    )

    class WithName(tasks.Probe):
        default_params = Named()

    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        envs.make(WithName())
    envs.make(env)


def test_parameters_may_be_traced_and_a_step_is_traced_once_for_each_check():
    """For shapes, for whether traces differ (twice), and for what the time limit reaches, without
    which nothing is played."""
    traced = []
    env = Changed(Dicts(), **step(state=lambda s: traced.append(1) or s))
    env, params = envs.make(env)

    def check(reward):
        envs.check_interface(env, params.replace(reward=reward))
        return reward

    jax.jit(jax.vmap(check))(jnp.ones(3))
    assert len(traced) == 1
    check(2.0)
    check(3.0)
    assert len(traced) == 4


class Timeless(Environment):
    """Without a time in its state, and with the time limit of gymnax's base class."""

    default_params = tasks.ProbeParams()

    def reset_env(self, key, params):
        return jnp.zeros(1), {}

    def step_env(self, key, state, action, params):
        return jnp.zeros(1), state, 1.0 * action, jnp.zeros((), bool), {}

    def action_space(self, params):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,))


def test_the_time_limit_of_gymnax_needs_a_time():
    message = r"Timeless has no is_truncated, and that of gymnax compares state.time .*'time'; give"
    with pytest.raises(ValueError, match=message):
        envs.check_interface(*envs.make(Timeless()))

    class Its(Timeless):
        def is_truncated(self, state, params):
            return state.time > 3

    with pytest.raises(AttributeError):
        envs.check_interface(*envs.make(Its()))


def test_errors_of_its_own_code_come_through():
    def wrong(state):
        return state["speed"]

    for env in (Changed(Dicts(), **step(state=wrong)), Changed(Dicts(), reset={"state": wrong})):
        with pytest.raises(KeyError, match="speed") as caught:
            envs.check_interface(*envs.make(env))
        assert caught.traceback[-1].name == "wrong"
