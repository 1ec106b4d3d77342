"""Environments of the user's own modules, `my_module:MyEnv`, in a directory without the kit."""

import importlib
import itertools
import re
import sys
import textwrap
import warnings
from pathlib import Path

import jax
import pytest

import envs
from envs import modules, warn

ROOT = Path(__file__).parents[2]
WALK = '''
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces

gymnasium = lambda space: type("Discrete", (), {"__module__": "gymnasium.spaces", "n": 2})()


@struct.dataclass
class State:
    place: jax.Array
    time: jax.Array


@struct.dataclass
class Params:
    max_steps_in_episode: int = 9
    pay: float = 1.0


class Walk(environment.Environment):
    """A walk on a line of `size` places; paid at its right end."""

    def __init__(self, size=5):
        self.size = size

    @property
    def default_params(self):
        return Params()

    def reset_env(self, key, params):
        state = State(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
        return self.observe(key, state, None, params), state

    def step_env(self, key, state, action, params):
        place = jnp.clip(state.place + 2 * action - 1, 0, self.size - 1)
        state = State(place, state.time + 1)
        reward = params.pay * (place == self.size - 1)
        return self.observe(key, state, action, params), state, reward, reward > 0, {}

    def observe(self, key, state, action, params):
        return jnp.array([state.place / self.size], jnp.float32)

    def render(self, state, params):
        column = jnp.arange(40) // 8 == state.place
        return jnp.broadcast_to(255 * column[None, :, None], (40, 40, 3)).astype(jnp.uint8)

    def action_space(self, params):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(0.0, 1.0, (1,))


def short(size=3, *, pay):
    return Walk(size)
'''
fresh = (f"walk_{number}" for number in itertools.count())


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a new module into the working directory, which is on no path. Returns its name."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])

    def write(text, name=None):
        name = name or next(fresh)
        file = tmp_path / f"{name.replace('.', '/')}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(textwrap.dedent(text))
        return name

    yield write
    from_here = lambda m: str(tmp_path) in str(getattr(m, "__file__", None))
    for name in set(sys.modules) - before:
        if name.startswith("_user_") or from_here(sys.modules[name]):
            del sys.modules[name]


def test_a_module_that_was_reloaded_gives_the_new_class(module, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two texts of one second
    name = module(WALK)
    old, _ = envs.make(f"{name}:Walk")
    module(WALK.replace("size=5", "size=8"), name)
    importlib.reload(sys.modules[name])
    assert (old.size, envs.make(f"{name}:Walk")[0].size) == (5, 8)
    assert envs.make(f"{name}:Walk")[0] is envs.make(f"{name}:Walk")[0]


def test_arrays_of_a_module_that_is_imported_inside_a_trace_are_none_of_it(module):
    name = module(WALK + "\n\nTABLE = jnp.arange(3) + 1\n")
    jax.eval_shape(lambda x: (envs.make(f"{name}:Walk"), x)[1], 1.0)
    assert sys.modules[name].TABLE.tolist() == [1, 2, 3]


def test_settings_go_to_the_constructor_the_parameters_and_the_wrappers(module):
    name = module(WALK)
    settings = {"size": 4, "pay": 2.0, "max_steps": 7, "action_repeat": 3}
    env, params = envs.make(f"{name}:Walk", **settings)
    assert (env.size, params.pay) == (4, 2.0)
    assert envs.make(f"{name}:Walk", **settings)[0] is env
    _, state = env.reset_env(jax.random.key(0), params)
    *_, reward, terminated, _ = env.step_env(jax.random.key(1), state, 1, params)
    assert (reward, terminated) == (2.0, True), "three places in one step"


@pytest.mark.parametrize(
    "old, new, message",
    [
        (
            "pay: float = 1.0",
            "pay: float = 1.0; kind: str = 'easy'",
            "parameter kind of {} is 'easy', which programs cannot take: declare it as kind: str ",
        ),
        (
            "jnp.array([state.place / self.size]",
            "jnp.array([state.place / len(range(params.max_steps_in_episode))]",
            "{} needs the value of max_steps_in_episode while its program is made, as a shape, "
            "in an if or in a function of np: declare max_steps_in_episode: int = struct.field(",
        ),
    ],
)
def test_parameters_that_no_program_takes_are_named_with_the_remedy(module, old, new, message):
    name = f"{module(WALK.replace(old, new))}:Walk"
    with pytest.raises(ValueError, match=f"^{re.escape(message.format(name))}"):
        envs.make(name)


def test_a_function_may_make_it_and_takes_its_arguments(module):
    name = module(WALK)
    env, params = envs.make(f"{name}:short", pay=5.0)
    assert env.size == 3 and params.pay == 1.0
    with pytest.raises(ValueError, match=f"{name}:short needs a value for pay"):
        envs.make(f"{name}:short", size=4)
    with pytest.raises(ValueError, match=f"setting of {name}:Walk: 'pai'; did you mean pay"):
        envs.make(f"{name}:Walk", pai=4)
    with pytest.raises(ValueError, match=f"setting of {name}:Walk: 'siz'; did you mean size"):
        envs.make(f"{name}:Walk", siz=3)


def test_modules_in_folders_and_helpers_beside_them_are_found(module):
    module(WALK, "walking.line")
    helper = module("LENGTH = 6")
    name = module(f"""
        from walking.line import Walk

        def long():
            from {helper} import LENGTH
            return Walk(LENGTH)
    """)
    assert envs.make("walking.line:Walk")[0].size == 5
    assert envs.make(f"{name}:long")[0].size == 6


@pytest.mark.parametrize("name", ["envs", "envs.mine", "algorithms.mine.deep"])
def test_a_module_named_as_one_of_the_kit_s_is_not_taken_for_it(module, tmp_path, name):
    """With and without an __init__.py; the kit's module stays the same."""
    folder = Path(*name.split(".")).parent
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    module("SIZE = 7", f"{folder}/sizes".replace("/", ".").lstrip("."))
    relative = "from .sizes import SIZE" if "." in name else "SIZE = 7"
    module(f"{WALK}\n{relative}\ndef mine():\n    return Walk(SIZE)", name)
    assert envs.make(f"{name}:mine")[0].size == 7
    assert Path(sys.modules["envs"].__file__) == Path(envs.__file__) == ROOT / "envs/__init__.py"


def test_a_folder_named_like_the_kit_s_needs_relative_imports(module):
    module("SIZE = 7", "envs.sizes")
    module("from envs.sizes import SIZE", "envs.other")
    with pytest.raises(ValueError, match=r"envs.other imports envs.sizes, .* relatively"):
        envs.make("envs.other:Env")


def test_several_agents_and_an_environment_of_no_base_class(module):
    """The kit's own game, reduced to the members of the interface."""
    name = module("""
        from envs.pursuit import Pursuit

        class Game:
            def __init__(self, num_agents=3):
                self.game = Pursuit()
                self.num_agents = self.game.num_agents
                for part in ("reset_env", "step_env", "is_truncated", "default_params"):
                    setattr(self, part, getattr(self.game, part))
                self.action_space = self.game.action_space
                self.observation_space = self.game.observation_space
    """)
    env, params = envs.make(f"{name}:Game", max_steps=3)
    assert env.num_agents == envs.make("Pursuit-v0")[0].num_agents
    observation, _ = envs.batch(env, 2).reset(jax.random.key(0), params)
    assert observation.shape[:2] == (2, env.num_agents)


PASSING = """
class Passing:
    def __init__(self):
        self._env = Walk()

    def __getattr__(self, name):
        return getattr(self._env, name)

    def step(self, *given):
        return self._env.step(*given)
"""


@pytest.mark.parametrize(
    "text, told",
    [
        ("class Mine(Walk):\n    step = None\n", "Mine changes step, .* it calls step_env,"),
        ("class Mine(Walk):\n    reset = None\n", "Mine changes reset, .* it calls reset_env,"),
        ("class Mine(Walk):\n    step, step_env = None, Walk.step_env\n", None),
        ("class Mine(Walk):\n    pass\n", None),
        (f"{PASSING}\nMine = Passing\n", "Passing changes step, which training does not call: "),
    ],
)
def test_steps_that_training_does_not_call_are_told_of(module, text, told, monkeypatch):
    """By name and as an object; the environment inside would be trained."""
    path = module(WALK + text)
    for given in (f"{path}:Mine", lambda: importlib.import_module(path).Mine()):
        monkeypatch.setattr(warn, "_told", set())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            envs.make(given if isinstance(given, str) else given())
        found = [str(one.message) for one in caught]
        assert len(found) == bool(told) and all(re.match(told, one) for one in found)


def test_the_kit_s_own_modules_can_be_named_from_anywhere(module):
    assert envs.make("envs.pursuit:Pursuit")[0].name == envs.make("Pursuit-v0")[0].name


GONE = "print('hello')\nimport not_installed_at_all"
BROKEN = """
    import jax.numpy as jnp

    SIZE = jnp.zeros(3).reshape(2)
"""
NO_TIME = WALK.replace("    time: jax.Array\n", "").replace(", jnp.zeros((), jnp.int32))", ")")
NO_TIME = NO_TIME.replace("State(place, state.time + 1)", "State(place)")
OLD = """
    class Old:
        default_params = ()
        def reset_env(self, key, params): ...
        def step_env(self, key, state, action, params): ...
        def action_space(self, params): ...
        def observation_space(self, params): ...
    env = Old()
    def none(): ...
"""
SEEN = "obs = self.observe(key, state, action, params)\n        return obs"
STEPPED = "return self.observe(key, state, action, params), state, reward, reward > 0, {}"
HALF = WALK.partition("    def reset_env")[0]
REFUSED = [
    ("", "nowhere_at_all:Env", r"no module nowhere_at_all, .* working directory \(/"),
    (WALK, "MODULE.sub:Walk", r"no module MODULE\.sub"),
    (WALK, "MODULE:Wolk", r"MODULE .*MODULE\.py. has no Wolk; did you mean Walk\?"),
    (WALK, "MODULE:xyzzy", r"has no xyzzy; there are Params, State, Walk, gymnas"),
    ("x = 3", "MODULE:Env", r"has no Env; there are none"),
    (GONE, "MODULE:Env", "MODULE imports not_installed_at_all, which is not installed"),
    (BROKEN, "MODULE:Env", r"MODULE:Env: TypeError: .*\(MODULE\.py:4\)"),
    ("def f(:", "MODULE:Env", r"MODULE:Env: SyntaxError: .*\(MODULE\.py:1\)"),
    ("import sys\nsys.exit(3)", "MODULE:Env", r"MODULE:Env: SystemExit: 3 \(MODULE\.py:2\)"),
    (OLD, "MODULE:Old", "MODULE:Old gives an Old without is_truncated: .* gymnax 1.x"),
    (OLD, "MODULE:env", "MODULE:env is an Old: give a class or a function"),
    (OLD, "MODULE:none", "MODULE:none gives a NoneType without reset_env, step_env, "),
    (HALF, "MODULE:Walk", "gives a Walk without reset_env, step_env, "),
    (WALK.replace(", {}", ""), "MODULE:Walk", "step_env of MODULE:Walk returns 4 values"),
    (WALK, "MODULE:Walk:x", "'MODULE:Walk:x': give my_module:MyEnv, .* dots between folders"),
    (WALK, "MODULE.py:Walk", "'MODULE.py:Walk': give my_module:MyEnv, without .py"),
    (WALK, "./MODULE:Walk", "'./MODULE:Walk': give my_module:MyEnv"),
    (NO_TIME, "MODULE:Walk", "MODULE:Walk has no is_truncated, .*'time'; give the state and the "),
]
# Changes of the walk: old and new text, and the message.
CHANGED = [
    ("self.size = size", "1 / 0", r"ZeroDivisionError: .*\(MODULE.py:"),
    (
        "    @property\n    def default",
        "    def default",
        "default_params, action_space or observation_space of MODULE:Walk: TypeError: ",
    ),
    (
        "pay: float = 1.0",
        "pay: str = 'x'",
        "parameter pay of MODULE:Walk is 'x', which programs cannot take: declare it as pay: str",
    ),
    ("return Params()", "return None", "default_params .* is None: "),
    (
        "@struct.dataclass\nclass State",
        "@dataclasses.dataclass\nclass State",
        "reset_env of MODULE:Walk returns a state that is a plain dataclass, .*: decorate State wi",
    ),
    (
        "@struct.dataclass\nclass Params",
        "@dataclasses.dataclass\nclass Params",
        "default_params of MODULE:Walk is a plain dataclass, .*: decorate Params with flax.struct",
    ),
    (
        STEPPED,
        f"{SEEN}, reward, reward > 0, False, {{}}",
        "step_env of MODULE:Walk returns a number as its second value, .* the order is obs",
    ),
    (
        STEPPED,
        f"{SEEN}, state, reward, reward > 0, {{'name': 'x'}}",
        r"step_env of MODULE:Walk returns a str as info\['name'\]: give numbers or arrays",
    ),
    (
        "        reward = params",
        "        self.place = place\n        reward = params",
        "reset_env or step_env of MODULE:Walk sets self.place: what changes is a field of the sta",
    ),
    (
        "spaces.Discrete(2)",
        "gymnasium(spaces.Discrete(2))",
        "action_space of MODULE:Walk is .* of gymnasium: take gymnax.environments.spaces",
    ),
    (
        "spaces.Discrete(2)",
        "spaces.Box([0.0], [1.0], (1,))",
        "action_space of MODULE:Walk has lists as bounds: give numbers or jnp.array",
    ),
    (
        "2 * action",
        "2 * np.asarray(action)",
        r"TracerArrayConversionError: .*\(MODULE.py:\d+\); take jnp in place of np there",
    ),
    (
        "2 * action - 1",
        "[-1, 1][action]",
        r"TracerIntegerConversionError: .*; take jnp.array\(...\)\[index\] in place of a list",
    ),
    (
        "2 * action - 1",
        "int(action)",
        r"ConcretizationTypeError: .*; leave it an array, without int\(\)",
    ),
    (
        "reward = params",
        "reward = 1 if action else params",
        r"step_env of MODULE:Walk: TracerBoolConversionError: .*\(MODULE.py:\d+\); take jnp.where",
    ),
]
REFUSED += [(WALK.replace(old, new), "MODULE:Walk", message) for old, new, message in CHANGED]


@pytest.mark.parametrize(
    "old, new, what",
    [
        ("size=5", "size=5, noise=0", "argument"),
        ("size=5", "size=5, *, noise", "argument"),
        ("pay: float = 1.0", "pay: float = 1.0\n    noise: float = 0.5", "parameter"),
    ],
)
def test_names_of_settings_of_all_environments_cannot_be_an_environment_s_own(
    module, old, new, what
):
    name = f"{module(WALK.replace(old, new))}:Walk"
    with pytest.raises(ValueError, match=f"has its own {what} noise, which is a setting of every"):
        envs.make(name, noise=2.0)


@pytest.mark.parametrize("text, name, message", REFUSED, ids=[m for _, _, m in REFUSED])
def test_errors_are_one_line(module, text, name, message):
    here = module(text)
    with pytest.raises(ValueError, match=message.replace("MODULE", here)) as caught:
        envs.make(name.replace("MODULE", here))
    assert "\n" not in str(caught.value)


def test_a_file_beside_the_kit_s_folder_is_named_where_it_fails(module, tmp_path, monkeypatch):
    """Its name begins as the folder's does, whose own files are left out."""
    monkeypatch.setattr(modules, "__file__", str(tmp_path / "envs" / "modules.py"))
    here = module(WALK.replace("self.size = size", "1 / 0"), "envs_of_mine")
    with pytest.raises(ValueError, match=r"ZeroDivisionError: .*\(envs_of_mine\.py:\d+\)"):
        envs.make(f"{here}:Walk")


def test_attributes_that_jax_cannot_flatten_are_no_tracers(module):
    """Its keys cannot be sorted."""
    mixed = "self.size, self.names = size, {0: 'left', 'key': 3}"
    env, params = envs.make(f"{module(WALK.replace('self.size = size', mixed))}:Walk")
    envs.check_interface(env, params)
