"""Environments of the kit, of its presets and of each adapter train without a warning."""

import jax
import pytest

import envs
from algorithms.launch.engine.loading import find_module
from algorithms.presets import PRESETS
from envs import registry
from tests.texts import needs as needed

MODULES = {"playground": "mujoco_playground"}  # of libraries, where the name is another one
ONE = {  # environment of each adapter in every test run; the others of presets are slow
    "brax": ("ppo", "brax/hopper", (("backend", "spring"),)),
    "craftax": ("ppo", "craftax/Classic-Symbolic", ()),
    "jaxmarl": ("ippo", "jaxmarl/MPE_simple_spread_v3", ()),
    "jumanji": ("ppo", "jumanji/Snake", ()),
    "navix": ("ppo", "navix/DoorKey-5x5", ()),
    "pgx": ("ippo", "pgx/tic_tac_toe", ()),
    "playground": ("ppo", "playground/CartpoleSwingup", (("action_repeat", 2),)),
    "xminigrid": ("ppo", "xminigrid/MiniGrid-FourRooms", ()),
}


def algorithm_of(name):
    """A file that takes an environment of the kit."""
    return "ippo" if hasattr(envs.make(name)[0], "num_agents") else "ppo"


def tasks():
    """(algorithm, environment, settings): every one of the presets once, with its first file."""
    found = {(name, ()): (algorithm_of(name), {}) for name in registry.OWN}
    for algorithm, presets in PRESETS.items():
        for name, settings in presets.items():
            env = settings.get("env", name), tuple(settings.get("env_settings", ()))
            found.setdefault(env, (algorithm, settings))
    quick = {(name, settings) for _, name, settings in ONE.values()}
    for algorithm, name, settings in ONE.values():
        found.setdefault((name, settings), (algorithm, {}))
    for (name, settings), (algorithm, preset) in found.items():
        library, slash, _ = name.partition("/")
        wanted = [*needed(algorithm), *[MODULES.get(library, library)] * bool(slash)]
        marks = [pytest.mark.needs(one) for one in wanted]
        if slash and (name, settings) not in quick:
            marks.append(pytest.mark.slow)
        more = {**preset, "env": name, "env_settings": settings}
        yield pytest.param(algorithm, more, marks=marks, id=f"{name} {dict(settings)}")


@pytest.mark.parametrize("algorithm, settings", list(tasks()))
def test_make_train_does_not_warn(algorithm, settings):
    module = find_module(algorithm)
    module.make_train(module.Config(**settings))


@pytest.mark.slow
@pytest.mark.usefixtures("loud", "vmapped_keys")  # a repeated action scans over keys
@pytest.mark.parametrize("algorithm, settings", list(tasks()))
def test_every_setting_of_a_preset_is_read(algorithm, settings):
    """Tracing takes seconds, mostly of the environment."""
    module = find_module(algorithm)
    jax.eval_shape(module.make_train(module.Config(**settings)), jax.random.key(0))


def test_every_adapter_has_an_environment_here():
    assert ONE.keys() == set(registry.LIBRARIES)
