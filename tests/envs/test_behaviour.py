"""Environments of users that behave otherwise than their shapes and dtypes say."""

import functools
import re
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from jax.experimental import io_callback

import envs
from envs import behaviour, evaluation, loops, registry, warn
from envs.batch import transition
from envs.gymnax import Environment, gymnax, spaces
from envs.warn import KitWarning
from tests import probe as tasks


@pytest.fixture(autouse=True)
def told_nothing():
    """Each test begins as a process does."""
    behaviour._check.cache_clear()


IDLE = "no action changes a reward or an end of "  # true of most tasks of this file


def told(function, *args, but=IDLE):
    """The kit's warnings during a call."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args)
    texts = [str(one.message) for one in caught if issubclass(one.category, KitWarning)]
    return [text for text in texts if not (but and text.startswith(but))]


# --- a flag that includes the time limit ------------------------------------------------------


@struct.dataclass
class Time:
    time: jax.Array


@struct.dataclass
class Params:
    task: int = 0
    max_steps_in_episode: int = 10


class Old(Environment):
    """Reward 1 for ever, as gymnax 0.0.x would have it: is_terminal includes the time limit.

    A `task` ends by itself after so many steps; 0: never.
    """

    @property
    def default_params(self):
        return Params()

    def reset_env(self, key, params):
        return jnp.zeros(1), Time(jnp.zeros((), jnp.int32))

    def step_env(self, key, state, action, params):
        state = Time(state.time + 1)
        return jnp.zeros(1), state, jnp.ones(()), self.is_terminal(state, params), {}

    def is_terminal(self, state, params):
        return (state.time == params.task) | (state.time >= params.max_steps_in_episode)

    def action_space(self, params):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,))


class New(Old):
    """The same for gymnax 1.x."""

    def is_terminal(self, state, params):
        return state.time == params.task


class Discounted(Old):
    """Its info has the discount, which gymnax 1.x computes by a method that 0.0.x had not."""

    def step_env(self, key, state, action, params):
        *rest, _ = super().step_env(key, state, action, params)
        return *rest, {"discount": self.discount(rest[1], params)}


class Fixed(Old):
    """The limit is static, and a step is jitted, as in gymnax 0.0.x."""

    @property
    def default_params(self):
        return FixedParams()

    @jax.jit
    def _flag(state, params):
        return state.time >= params.max_steps_in_episode

    def is_terminal(self, state, params):
        return Fixed._flag(state, params)


@struct.dataclass
class FixedParams:
    max_steps_in_episode: int = struct.field(pytree_node=False, default=10)


class Remembered(Old):
    """The state counts down from the limit; the flag does not see the parameters."""

    def reset_env(self, key, params):
        return jnp.zeros(1), Time(jnp.asarray(params.max_steps_in_episode, jnp.int32))

    def step_env(self, key, state, action, params):
        state = Time(state.time - 1)
        return jnp.zeros(1), state, jnp.ones(()), state.time <= 0, {}

    def is_truncated(self, state, params):
        return state.time <= 0


class Late(Old):
    """Sets the flag in the step after it has seen the limit."""

    def reset_env(self, key, params):
        observation, state = super().reset_env(key, params)
        return observation, (state, jnp.zeros((), bool))

    def step_env(self, key, state, action, params):
        observation, time, reward, over, info = super().step_env(key, state[0], action, params)
        return observation, (time, over), reward, state[1], info

    def is_truncated(self, state, params):
        return state[1]


class Team(Old):
    """Two agents, one action of which is forbidden and would end the episode."""

    num_agents = 2

    def reset_env(self, key, params):
        observation, state = super().reset_env(key, params)
        return jnp.tile(observation, (2, 1)), state

    def step_env(self, key, state, action, params):
        observation, state, reward, done, info = super().step_env(key, state, action, params)
        done |= (action == 0).any()
        return jnp.tile(observation, (2, 1)), state, jnp.tile(reward, 2), done, info

    def action_mask(self, state, params):
        return jnp.tile(jnp.array([False, True]), (2, 1))


class Cautious(New):
    """Its own end of the task is none at the time limit: the flag depends on it, the other way."""

    def is_terminal(self, state, params):
        return (state.time == 2) & (state.time < params.max_steps_in_episode)


OLD = [Old(), Discounted(), Fixed(), Remembered(), Late(), Team()]
SENTENCE = (
    "step_env of {} sets its flag where max_steps_in_episode is reached, so values there are 0 as "
    "at an end of the task: leave the limit to is_truncated, or give the environment setting "
    "done_includes_limit=true"
)


@pytest.mark.parametrize("env", OLD, ids=lambda env: env.name)
def test_a_flag_that_includes_the_limit_is_told_of_once(env):
    for given in (envs.make(env), envs.make(env)):
        expected = [SENTENCE.format(env.name)] * (not warn._told)
        assert told(envs.check_interface, *given) == expected
    for settings in ({"max_steps": 5}, {"action_repeat": 2}, {"frame_stack": 2}):
        warn._told.clear()
        assert told(envs.check_interface, *envs.make(env, **settings)) == [
            SENTENCE.format(env.name)
        ]


@pytest.mark.parametrize("env", OLD, ids=lambda env: env.name)
@pytest.mark.parametrize("setting", ["done_includes_limit", "limit_terminates"])
def test_settings_that_say_what_the_limit_means_are_heeded(env, setting):
    for others in ({}, {"max_steps": 4}, {"action_repeat": 2}):
        given = envs.make(env, **{setting: True}, **others)
        assert told(envs.check_interface, *given) == []


@pytest.mark.parametrize(
    "env",
    [
        *(New(), Cautious(), tasks.Probe(), tasks.Probe(masked=True), tasks.Reporting()),
        *(tasks.Pair(), tasks.Twins(), tasks.Sacrifice(), tasks.Recall(), tasks.Guess()),
    ],
    ids=lambda env: env.name,
)
def test_other_flags_are_not_told_of(env):
    for settings in ({}, {"max_steps": 2}, {"max_steps": 3, "action_repeat": 2}):
        assert told(envs.check_interface, *envs.make(env, **settings)) == []


@pytest.mark.parametrize("name", [n for n in gymnax.registered_envs if n != "MNISTBandit-bsuite"])
def test_no_environment_of_gymnax_has_such_a_flag(name, monkeypatch):
    """They are not asked, but would pass."""
    env, params = envs.make(name)
    assert not behaviour.of_user(env)
    with jax.debug_key_reuse(False):
        assert not behaviour.done_includes_limit(env, params)


class Unsplit(Old):
    """Has a method for the other flag, which does nothing."""

    def is_truncated(self, state, params):
        return jnp.zeros((), bool)


def flags(settings, steps=6, env=None, **params):
    """Both flags of the first steps."""
    env, params = envs.make(env or Old(), **settings, **params)
    _, state = env.reset_env(jax.random.key(0), params)
    found = []
    for step in range(steps):
        key = jax.random.key(step)
        _, state, _, terminated, truncated, _ = transition(env, key, state, 0, params)
        found.append("T" if terminated else "t" if truncated else ".")
    return "".join(found)


def test_the_flag_is_split_at_the_limit():
    """T is terminated, and t truncated; an end of the task stays one."""
    split = {"done_includes_limit": True}
    assert flags({}, max_steps_in_episode=4)[:4] == "...T"
    assert flags(split, max_steps_in_episode=4)[:4] == "...t"
    assert flags(split, max_steps_in_episode=4, task=3)[:4] == "..Tt"
    assert flags(split, max_steps_in_episode=4, task=4)[:4] == "...t"  # the flag cannot tell
    assert flags(split, max_steps_in_episode=4, env=Unsplit())[:4] == "...t"
    assert flags({**split, "max_steps": 3})[:3] == "..t"
    assert flags({**split, "max_steps": 20}, max_steps_in_episode=4)[:4] == "...t"
    assert flags({**split, "limit_terminates": True}, max_steps_in_episode=4)[:4] == "...T"
    env, params = envs.make(Old(), **split)
    limits = jax.vmap(lambda n: params.replace(max_steps_in_episode=n))(jnp.array([1, 2]))

    def ends(params):
        _, state = env.reset_env(jax.random.key(0), params)
        return transition(env, jax.random.key(1), state, 0, params)[4]

    np.testing.assert_array_equal(jax.vmap(ends)(limits), [True, False])


def test_a_discount_is_that_of_gymnax_0():
    env, params = envs.make(Discounted(), max_steps_in_episode=2)
    _, state = env.reset_env(jax.random.key(0), params)
    for expected in (1.0, 0.0):
        _, state, *_, info = env.step_env(jax.random.key(0), state, 0, params)
        assert info["discount"] == expected


def test_splitting_needs_a_limit():
    @struct.dataclass
    class NoLimit:
        task: int = 0

    class Own(Old):
        default_params = NoLimit()

        def is_terminal(self, state, params):
            return state.time >= 4

        def is_truncated(self, state, params):
            return jnp.zeros((), bool)

    with pytest.raises(ValueError, match=r"^done_includes_limit=true: Own has no max_steps_in_epi"):
        envs.make(Own(), done_includes_limit=True)
    env, params = envs.make(Own(), done_includes_limit=True, max_steps=4)
    state = env.reset_env(jax.random.key(0), params)[1]
    for _ in range(4):
        *_, terminated, truncated, _ = stepped = transition(
            env, jax.random.key(0), state, 0, params
        )
        state = stepped[1]
    assert truncated and not terminated


def test_traced_parameters_are_not_played():
    env, params = envs.make(Old())

    def check(limit):
        envs.check_interface(env, params.replace(max_steps_in_episode=limit))
        return limit

    assert told(jax.jit(check), 3) == []
    inside = lambda x: envs.check_interface(env, params) or x  # concrete ones inside a trace
    assert told(jax.jit(inside), 3) == [SENTENCE.format("Old")]


# --- evaluations that would never end ---------------------------------------------------------


class Endless(New):
    """Has a limit in its parameters that no flag heeds; one of two episodes ends at step `task`."""

    @property
    def default_params(self):
        return Params(task=1200, max_steps_in_episode=60)

    def reset_env(self, key, params):
        return jnp.zeros(1), (Time(jnp.zeros((), jnp.int32)), jax.random.bernoulli(key))

    def step_env(self, key, state, action, params):
        observation, time, *rest, terminated, info = super().step_env(key, state[0], action, params)
        return observation, (time, state[1]), *rest, terminated & state[1], info

    def is_truncated(self, state, params):
        return jnp.zeros((), bool)


def play(env, params, episodes=8):
    policy = lambda state, observation, memory=None: (jnp.int32(0), memory)
    return envs.evaluate(policy, None, env, params, jax.random.key(0), episodes)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.filterwarnings("ignore::envs.warn.KitWarning")
def test_an_evaluation_is_cut_far_beyond_a_limit_that_is_not_heeded(platform, monkeypatch):
    """After twice the limit and 1000 steps. Episodes that end before are as ever."""
    monkeypatch.setattr(loops, "platform", lambda: platform)
    for settings, longest, cut in (
        ({}, 1120, True),
        ({"task": 40}, 1120, True),
        ({"action_repeat": 2}, 1120, True),  # in its own steps
        ({"max_steps_in_episode": 10}, 1020, True),
        ({"max_steps": 1300}, 1300, False),
        ({"max_steps": 1300, "frame_stack": 2}, 1300, False),
    ):
        env, params = envs.make(Endless(), **settings)
        episodes = jax.jit(lambda params, env=env: play(env, params))(params)
        over = np.asarray(episodes.terminated)
        ahead = 0 if platform == "cpu" or not cut else loops.AHEAD - 1  # a trip has several steps
        lengths = np.asarray(episodes.length)
        repeat = settings.get("action_repeat", 1)
        ends = params.task // repeat
        assert over.any() == (ends < longest)
        assert (lengths[over] == ends).all()
        assert (longest <= lengths[~over]).all() and (lengths[~over] <= longest + ahead).all()
        np.testing.assert_array_equal(episodes.truncated, ~over & (not cut))
        np.testing.assert_array_equal(
            episodes.episode_return, lengths * settings.get("action_repeat", 1)
        )


@pytest.mark.filterwarnings("ignore::envs.warn.KitWarning")
def test_a_cut_follows_batched_limits_and_trusts_environments_that_surely_end():
    env, params = envs.make(Endless())
    batched = jax.vmap(lambda n: params.replace(max_steps_in_episode=n))(jnp.array([10, 20]))
    lengths = jax.jit(jax.vmap(lambda params: play(env, params).length.max()))(batched)
    np.testing.assert_array_equal(lengths, [1020, 1040])
    assert evaluation.longest(env, params) is not None
    ends = Endless()
    ends.ends = True
    assert evaluation.longest(*envs.make(ends, max_steps_in_episode=2**30)) == 2.0**31 + 1000
    for one in (
        *(envs.make(name) for name in ("CartPole-v1", "Pursuit-v0", "TMaze-v0")),
        envs.make(Endless(), max_steps=2000),
        (tasks.Reporting(), types.SimpleNamespace()),  # no limit, but `ends`
    ):
        assert evaluation.longest(*one) is None


# --- discrete observations --------------------------------------------------------------------


class Places(New):
    """A walk to the right along places; the first one is `first`, the last one ends it."""

    def __init__(self, first, size=4, number=4):
        super().__init__()
        self.first, self.size, self.number = first, size, number

    def reset_env(self, key, params):
        return jnp.asarray(self.first), Time(jnp.zeros((), jnp.int32))

    def step_env(self, key, state, action, params):
        state = Time(state.time + action)
        last = state.time == self.number - 1
        return self.first + state.time, state, jnp.ones(()), last, {}

    def observation_space(self, params):
        return spaces.Discrete(self.size)


@pytest.mark.parametrize(
    "first, number, message",
    [
        (1, 4, "observation 4, which is outside of Discrete(4, dtype=int32): its numbers are 0 to"),
        (-1, 4, "observation -1, which is outside of"),
        (0, 6, "observation 5, which is outside of"),
    ],
)
def test_discrete_observations_outside_their_space_are_refused(first, number, message):
    """Those after the end of an episode do not count."""
    for settings in ({}, {"frame_stack": 2}, {"max_steps": 40}):
        given = envs.make(Places(first, number=number), **settings)
        with pytest.raises(ValueError, match=re.escape(f"Places returns the {message}")):
            envs.check_interface(*given)


def test_discrete_observations_inside_their_space_are_taken():
    envs.check_interface(*envs.make(Places(0)))
    envs.check_interface(*envs.make(Places(0), done_includes_limit=True))


# --- Python -----------------------------------------------------------------------------------


class Asking(New):
    """Asks Python for its reward."""

    def __init__(self, callback):
        self.callback = callback

    def step_env(self, key, state, action, params):
        observation, state, _, *rest = super().step_env(key, state, action, params)
        kind = jax.ShapeDtypeStruct((), jnp.float32)
        return observation, state, self.callback(lambda x: x, kind, 1.0 * action), *rest


SHARED = (
    "step_env of Asking calls Python with side effects (io_callback): all environments, "
    "evaluations and runs share what it keeps; keep that in the state"
)


@pytest.mark.parametrize(
    "callback, expected",
    [
        (io_callback, [SHARED]),
        (functools.partial(io_callback, ordered=True), [SHARED]),
        (jax.pure_callback, []),
        (lambda _, kind, x: jax.debug.print("{}", x) or x, []),
    ],
    ids=["io", "ordered", "pure", "print"],
)
def test_python_that_may_keep_something_is_told_of(callback, expected):
    given = envs.make(Asking(callback))
    told_of = lambda x: x.startswith("step_env of Asking calls")
    assert [*filter(told_of, told(envs.check_interface, *given))] == expected


# --- masks ------------------------------------------------------------------------------------


class Stuck(New):
    """No action is allowed from the second step on, which ends an episode or does not."""

    def __init__(self, ends):
        self.ends = ends

    def step_env(self, key, state, action, params):
        observation, state, reward, ended, info = super().step_env(key, state, action, params)
        return observation, state, reward, ended | (self.ends & (state.time == 2)), info

    def action_mask(self, state, params):
        return jnp.full(2, state.time < 2)


def test_masks_that_allow_nothing_are_refused_before_an_episode_s_end():
    told(envs.check_interface, *envs.make(Stuck(True)))
    with pytest.raises(ValueError, match="action_mask of Stuck allows no action in a state that r"):
        envs.check_interface(*envs.make(Stuck(False)))


# --- several agents ---------------------------------------------------------------------------


class Standing(New):
    """Tells what was paid for standing."""

    def step_env(self, key, state, action, params):
        *rest, info = super().step_env(key, state, action, params)
        return *rest, info | {"alive": jnp.float32(0.5)}


def test_alive_of_one_agent_is_information_as_any_other():
    env, params = envs.make(Standing())
    assert told(envs.check_interface, env, params) == []
    key = jax.random.key(0)
    _, state = env.reset_env(key, params)
    with jax.debug_key_reuse(False):
        assert transition(env, key, state, jnp.int32(0), params)[-1]["alive"] == 0.5


class Crew(New):
    """Rewards, and who is still there, of two agents: `rewards` in all steps but the fourth."""

    num_agents = 2

    def __init__(self, shared_reward, rewards=(1.0, 1.0), gone=None):
        self.shared_reward, self.rewards, self.gone = shared_reward, rewards, gone

    def reset_env(self, key, params):
        return jnp.zeros((2, 1)), Time(jnp.zeros((), jnp.int32))

    def step_env(self, key, state, action, params):
        _, state, _, ended, _ = super().step_env(key, state, action.sum(), params)
        rewards = jnp.where(state.time == 4, jnp.array(self.rewards), 1.0)
        alive = state.time < jnp.abs(jnp.array(self.gone or (99, 99)))
        alive ^= jnp.array(self.gone or (99, 99)) < 0  # the wrong way round
        info = {} if self.gone is None else {"alive": alive}
        return jnp.zeros((2, 1)), state, rewards, ended, info


APART = (
    "agents of Crew have different rewards in one step (-1 and 2), and shared_reward = True says "
    "that they are the same: leave it out where rewards are each agent's own"
)
GONE = (
    'info["alive"] of Crew is False for all agents after the first step, and steps of agents that '
    "have left teach nothing: it is True for those that have not"
)


@pytest.mark.parametrize(
    "shared, rewards, gone, expected",
    [
        (True, (2.0, -1.0), None, [APART]),
        (True, (2.0, 2.0), None, []),
        (False, (2.0, -1.0), None, []),
        (False, (1.0, 1.0), (1, 0), [GONE]),
        (False, (1.0, 1.0), (-5, -3), [GONE]),
        (True, (2.0, -1.0), (0, 0), [APART, GONE]),
        (False, (1.0, 1.0), (2, 0), []),
        (False, (1.0, 1.0), (99, 99), []),
    ],
)
def test_teams_that_are_not_what_they_say_are_told_of(shared, rewards, gone, expected):
    given = envs.make(Crew(shared, rewards, gone))
    assert told(envs.check_interface, *given) == expected


def test_rewards_and_agents_after_the_end_do_not_count():
    """All have left with a first step that ends; rewards differ in the fourth."""
    given = envs.make(Crew(True, (2.0, -1.0), (1, 1)), max_steps_in_episode=1)
    assert told(envs.check_interface, *given) == []
    given = envs.make(Crew(True, (2.0, -1.0)), max_steps_in_episode=3)
    assert told(envs.check_interface, *given) == []


# --- functions that depend on more than their arguments ---------------------------------------


class Starts(New):
    """Starts at a number that NumPy draws."""

    def reset_env(self, key, params):
        return jnp.full(1, np.random.random()), Time(jnp.zeros((), jnp.int32))


class Noisy(New):
    """Its noise is an array of NumPy, which is no text of the program."""

    def step_env(self, key, state, action, params):
        observation, *rest = super().step_env(key, state, action, params)
        return observation + np.random.normal(size=1).astype(np.float32), *rest


class Counting(New):
    """Counts its steps itself."""

    count = 0

    def step_env(self, key, state, action, params):
        self.count += 1
        observation, *rest = super().step_env(key, state, action, params)
        return observation + self.count / 100, *rest


class Pure(New):
    """Has constants, also a key and NaN, and a function that each trace makes anew."""

    table, key = np.array([0.5, np.nan], np.float32), jax.random.key(3)

    def step_env(self, key, state, action, params):
        observation, *rest = super().step_env(key, state, action, params)
        jax.debug.callback(lambda x: None, observation)
        entry = jnp.asarray(self.table)[action]
        return jnp.where(jnp.isnan(entry), observation, jax.random.normal(self.key)), *rest


IMPURE = (
    "{} of {} differs each time it is traced: random numbers of NumPy or Python, a clock, or an "
    "attribute that counts is one constant while it trains; draw with the key, and keep what "
    "changes in the state"
)


def alone(env):
    """The functions of an environment that differ each time."""
    traced = behaviour.functions(*envs.make(env))
    return [one.name for one in traced if behaviour.is_impure(*one.programs()[:2])]


@pytest.mark.parametrize(
    "env, name",
    [(Starts(), "reset_env"), (Noisy(), "step_env"), (Counting(), "step_env"), (Pure(), None)],
    ids=lambda x: getattr(x, "name", ""),
)
def test_functions_that_differ_each_time_they_are_traced_are_told_of(env, name):
    assert alone(env) == [name] * bool(name)
    expected = [IMPURE.format(name, env.name)] if name else [OWN_KEY.format("step_env", "Pure")]
    assert told(envs.check_interface, *envs.make(env)) == expected


# --- keys -------------------------------------------------------------------------------------

OWN_KEY = (
    "{} of {} draws with a key of its own, which is the same in all episodes and environments, and "
    "leaves the one that it is given: draw with that one"
)
TWICE = (
    "{} of {} uses a key twice, so that draws repeat or depend on one another: jax.random.split "
    "makes several of one"
)


class Drawn(New):
    """Draws in both functions, with what `keys` makes of the key."""

    def __init__(self, reset=None, step=None):
        self.reset_keys, self.step_keys = reset, step

    def reset_env(self, key, params):
        observation, state = super().reset_env(key, params)
        return observation + self.draw(self.reset_keys, key), state

    def step_env(self, key, state, action, params):
        observation, *rest = super().step_env(key, state, action, params)
        return observation + self.draw(self.step_keys, key), *rest

    def draw(self, keys, key):
        return sum(jax.random.uniform(k) for k in keys(key)) if keys else 0.0


class Masked(Drawn):
    def action_mask(self, state, params):
        return jnp.ones(2, bool)


def made(key):
    return [jax.random.key(0)]


def made_of_old_kind(key):
    return [jax.random.PRNGKey(7)]


def split(key):
    return jax.random.split(key, 3)


def twice(key):
    return [key, key]


def after_a_split(key):
    return [jax.random.split(key)[0], key]


def both(key):
    return [key, jax.random.key(0)]


@pytest.mark.parametrize("kind", [Drawn, Masked])
@pytest.mark.parametrize(
    "reset, step, expected",
    [
        (None, None, []),
        (split, split, []),
        (both, split, []),  # a fixed layout, and what varies
        (made, None, [("reset_env", OWN_KEY)]),
        (split, made_of_old_kind, [("step_env", OWN_KEY)]),
        (twice, split, [("reset_env", TWICE)]),
        (None, after_a_split, [("step_env", TWICE)]),
        (made, twice, [("reset_env", OWN_KEY), ("step_env", TWICE)]),
    ],
)
def test_keys_are_to_be_used_once_and_not_others(kind, reset, step, expected):
    expected = [sentence.format(name, kind.__name__) for name, sentence in expected]
    assert told(envs.check_interface, *envs.make(kind(reset, step))) == expected


class Levels(New):
    """Its level is drawn from a number in the parameters, and `fixed` from a constant."""

    def __init__(self, fixed=False):
        self.fixed = fixed

    def reset_env(self, key, params):
        key = jax.random.key(params.task)
        drawn = jax.random.uniform(jax.random.key(0)) if self.fixed else 0.0
        return jax.random.uniform(key, (1,)) + drawn, Time(jnp.zeros((), jnp.int32))


def test_a_key_that_is_made_of_parameters_is_not_its_own():
    assert told(envs.check_interface, *envs.make(Levels())) == []
    expected = [OWN_KEY.format("reset_env", "Levels")]
    assert told(envs.check_interface, *envs.make(Levels(fixed=True))) == expected


@pytest.mark.parametrize("name", [n for n in gymnax.registered_envs if n != "MNISTBandit-bsuite"])
def test_the_functions_of_gymnax_are_pure_and_use_keys_once(name):
    """They are not asked, but would pass. All have actions that count."""
    env, params = envs.make(name)
    reset, step = behaviour.functions(env, params)
    for traced in (reset, step):
        one, other, twice = traced.programs()
        assert not twice and not behaviour.is_impure(one, other)
        assert not traced.has_its_own_key(one)
    assert behaviour.action_counts(env, step, one)


# --- actions and parameters that nothing depends on -------------------------------------------


@struct.dataclass
class Counts:
    time: jax.Array
    counts: jax.Array  # (3,)


class Heedless(New):
    """Actions reach what `where` names: after two steps, and in a loop."""

    def __init__(self, where=""):
        self.where = where

    def reset_env(self, key, params):
        zero = jnp.zeros((), jnp.int32)
        return jnp.zeros(1), Counts(zero, jnp.zeros(3))

    def step_env(self, key, state, action, params):
        _, after, reward, ended, info = super().step_env(key, Time(state.time), action, params)
        first, second, third = state.counts
        if self.where:
            count = lambda total, _: (total + action, None)
            total = jax.lax.scan(count, first, None, 2)[0]
            state = state.replace(counts=jnp.array([total, first, second]))
        if self.where == "reward":
            reward += third
        if self.where == "end":
            ended |= third > 0.0
        observation = state.counts[:1] if self.where == "observation" else jnp.zeros(1)
        return observation, state.replace(time=after.time), reward, ended, info

    def is_truncated(self, state, params):
        late = super().is_truncated(state, params)
        return late | (state.counts[2] > 0.0) if self.where == "limit" else late


@pytest.mark.parametrize("where", ["", "observation", "reward", "end", "limit"])
def test_actions_that_change_no_reward_and_no_end_are_told_of(where):
    expected = f"{IDLE}Heedless, so there is nothing to learn: step_env uses its action for neither"
    found = told(envs.check_interface, *envs.make(Heedless(where)), but=None)
    assert found == ([expected] if where in ("", "observation") else [])


UNREAD = "the parameter {} of {} has no effect: no reset or step reads it"


@struct.dataclass
class Sizes:
    step: float = 1.0
    start: float = 0.0
    bound: float = 1.0
    late: float = 0.0  # in the state from the first step on
    unread: float = 0.0
    shape: int = struct.field(pytree_node=False, default=1)
    max_steps_in_episode: int = 10


class Sized(New):
    default_params = Sizes()

    def reset_env(self, key, params):
        return jnp.full(params.shape, params.start), Counts(jnp.zeros((), jnp.int32), jnp.zeros(3))

    def step_env(self, key, state, action, params):
        state = Counts(state.time + 1, state.counts + params.late)
        return jnp.zeros(params.shape), state, params.step, jnp.zeros((), bool), {}

    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode

    def observation_space(self, params):
        return spaces.Box(-params.bound, params.bound, (params.shape,))


@pytest.mark.parametrize(
    "env, settings, expected",
    [
        (Sized(), dict(step=2.0, start=1.0, bound=2.0, late=3.0, shape=2), []),
        (Sized(), dict(max_steps_in_episode=3, unread=2.0), [("unread", "Sized")]),
        (Sized(), dict(randomize="unread:uniform:0:1/step:uniform:0:1"), [("unread", "Sized")]),
        ("Asterix-MinAtar", dict(shot_cool_down=2), [("shot_cool_down", "Asterix-MinAtar")]),
        ("CartPole-v1", dict(masscart=2.0, masspole=0.2), []),  # total_mass follows
        ("Acrobot-v1", dict(randomize="link_length_2:uniform:1:2"), []),  # link_com_pos_2 follows
    ],
)
def test_parameters_that_nothing_reads_are_told_of(env, settings, expected):
    registry._cached.cache_clear()
    found = told(lambda: envs.make(env, **settings))
    assert found == [UNREAD.format(*one) for one in expected]
