"""Refusals name the setting, its value and a value that works."""

import sys
import types
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from algorithms import parts, ppo
from algorithms.parts import capacity, checks
from tests import probe as tasks
from tests.probe import spaces

BOTH = {"actions": ("discrete", "continuous")}
ONLY_BOX = {"actions": "continuous"}
TEAMS, ANY_NUMBER = {"agents": "several"}, {"agents": "one or several"}
INFO = {"title": "Sleep", "paper": "", "family": "action values", "actions": "discrete"}
INFO |= {"masks": False, "agents": "one", "memory": False}


class Settings(types.SimpleNamespace):
    __module__ = "zzz"  # see below


def make_config(**settings):
    usual = {"total_timesteps": 100, "num_envs": 4, "num_eval_episodes": 0, "conv_layers": "small"}
    usual |= {"num_evals": 1, "num_steps": 1, "learning_starts": 0}
    usual |= {"hidden_sizes": (8, 8), "activation": "tanh", "kind": "linear", "dtype": ""}
    return Settings(**usual | settings)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_envs": 0}, "num_envs=0: give a whole number, 1 or more"),
        ({"num_envs": -3}, "num_envs=-3: give a whole number, 1 or more"),
        ({"num_envs": 4.0}, r"num_envs=4\.0: give a whole number, 1 or more"),
        ({"num_envs": True}, "num_envs=True: give a whole number, 1 or more"),
        ({"num_envs": "4"}, "num_envs='4': give a whole number, 1 or more"),
        ({"num_envs": 2**31}, "num_envs=2147483648: give a whole number up to 2147483647"),
        ({"total_timesteps": 0}, "total_timesteps=0: give a whole number, 1 or more"),
        ({"num_evals": 0}, "num_evals=0: give a whole number, 1 or more"),
        ({"num_steps": 0}, "num_steps=0: give a whole number, 1 or more"),
        ({"learning_starts": -1}, "learning_starts=-1: give a whole number, 0 or more"),
        ({"num_eval_episodes": -1}, "num_eval_episodes=-1: give a whole number, 0 or more"),
        ({"num_eval_episodes": 2**31}, "num_eval_episodes=2147483648: give .* up to 2147483647"),
        ({"hidden_sizes": (8, 0)}, "hidden_sizes=0: give a whole number, 1 or more"),
        ({"hidden_sizes": (2**31,)}, "hidden_sizes=2147483648: give a whole number up to"),
        ({"hidden_sizes": 64}, r"hidden_sizes=64: give a tuple, as \(64, 64\)"),
        ({"critic_hidden_sizes": 64}, r"critic_hidden_sizes=64: give a tuple, as \(64, 64\)"),
        ({"critic_hidden_sizes": (8, 0)}, "critic_hidden_sizes=0: give a whole number, 1 or more"),
        ({"critic_hidden_sizes": (8.0,)}, r"critic_hidden_sizes=8\.0: give a whole number, 1 or"),
        ({"activation": "tanhh"}, "activation='tanhh': name one of flax.linen, as relu"),
        ({"activation": "PReLU"}, "activation='PReLU': name one of flax.linen, as relu"),
        ({"activation": jax.nn.relu}, "activation=<.*>: name one of flax.linen, as relu"),
    ],
)
def test_sizes_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        checks.check_sizes(make_config(**settings), "num_steps", not_negative=("learning_starts",))


def test_sizes_that_can_be_are_taken():
    """A run may have more steps than an int32 counts."""
    for settings in ({}, {"total_timesteps": 10**11, "num_envs": 2**31 - 1}, {"hidden_sizes": ()}):
        checks.check_sizes(make_config(**settings))


@pytest.mark.parametrize("size, would_do", [(1, "more num_steps"), (7, 1), (9, 3), (16, 8)])
def test_minibatches_of_one_sample_name_a_number_that_divides(size, would_do):
    config = types.SimpleNamespace(num_minibatches=size, normalize_advantage=True)
    with pytest.raises(ValueError, match=f"advantage zero; {would_do} would do"):
        checks.check_samples(config, size)


def test_minibatches_are_of_all_samples_or_of_environments():
    settings = {"num_minibatches": 4, "num_envs": 4, "num_steps": 3}
    checks.check_minibatches(make_config(**settings), "samples")
    checks.check_minibatches(make_config(**settings), "environments")
    other = make_config(**settings | {"num_minibatches": 6})
    checks.check_minibatches(other, "samples")
    with pytest.raises(ValueError, match="6 does not divide num_envs=4, and minibatches are sets"):
        checks.check_minibatches(other, "environments")
    other = make_config(**settings | {"num_minibatches": 5})
    with pytest.raises(ValueError, match=r"5 does not divide num_envs \* num_steps = 4 \* 3 = 12"):
        checks.check_minibatches(other, "samples")
    one = make_config(**settings | {"num_minibatches": 12, "normalize_advantage": True})
    with pytest.raises(ValueError, match="advantage zero"):
        checks.check_minibatches(one, "samples")


def test_minibatches_of_one_sample_are_taken_without_standardised_advantages():
    config = types.SimpleNamespace(num_minibatches=4, normalize_advantage=False)
    checks.check_samples(config, 4)


def test_networks_are_known_and_simba_s_blocks_one_size():
    for network, sizes in (("mlp", ()), ("mlp", (8, 4)), ("simba", (8,)), ("simba", (8, 8))):
        checks.check_network(make_config(network=network, hidden_sizes=sizes))
    for network, sizes, message in (
        ("simbba", (8,), "network='simbba': give mlp or simba"),
        ("simba", (8, 4), r"hidden_sizes=\(8, 4\): simba's blocks are one size, such as 128"),
        ("simba", (), r"hidden_sizes=\(\): simba's blocks are one size"),
    ):
        with pytest.raises(ValueError, match=message):
            checks.check_network(make_config(network=network, hidden_sizes=sizes))


def test_choices_are_listed():
    checks.check_choices(make_config(), kind=("linear", "cosine"), dtype=("", "bool"))
    with pytest.raises(ValueError, match="kind='square': give linear or cosine"):
        checks.check_choices(make_config(kind="square"), kind=("linear", "cosine"))
    with pytest.raises(ValueError, match="dtype='int7': give \"\" or bool"):
        checks.check_choices(make_config(dtype="int7"), dtype=("", "bool"))


@pytest.mark.parametrize(
    "number, size, would_do", [(3, 16, "1, 2, 4, 8"), (5, 7, "1, 7"), (50, 36, "9, 12, 18, 36")]
)
def test_the_nearest_divisors_are_listed(number, size, would_do):
    checks.check_divides("num_minibatches", 4, "batch", 16)
    message = f"num_minibatches={number} does not divide the batch = {size}; {would_do} would do"
    with pytest.raises(ValueError, match=message):
        checks.check_divides("num_minibatches", number, f"the batch = {size}", size)


# --- spaces -----------------------------------------------------------------------------------

PARAMS, PAIR = tasks.ProbeParams(), tasks.PairParams()


class Unbounded(tasks.Probe):
    def action_space(self, params):
        return spaces.Box(-1.0, float("inf"), (1,))


class Whole(tasks.Probe):
    def action_space(self, params):
        return spaces.Box(0, 1, (1,), jnp.int32)


class Scalar(tasks.Probe):
    def observation_space(self, params):
        return spaces.Box(0.0, 1.0, ())


class Tuples(tasks.Probe):
    def action_space(self, params):
        return spaces.Tuple([spaces.Discrete(2)] * 2)


class Dicts(tasks.Probe):
    def observation_space(self, params):
        return spaces.Dict({"x": spaces.Box(0, 1, (1,))})


class Narrow(tasks.Probe):
    shape = (2, 5, 1)

    def observation_space(self, params):
        return spaces.Box(0, 1, self.shape)

    def reset_env(self, key, params):
        return jnp.zeros(self.shape), super().reset_env(key, params)[1]

    def step_env(self, key, state, action, params):
        return jnp.zeros(self.shape), *super().step_env(key, state, action, params)[1:]


class Flat(Narrow):
    def step_env(self, key, state, action, params):
        return tasks.Probe.step_env(self, key, state, action, params)


BOX, BOX_PAIR = tasks.Probe(continuous=True), tasks.Pair(continuous=True)
MASKED, MASKED_PAIR = tasks.Probe(masked=True), tasks.Pair(masked=True)
MASKED_BOX = tasks.Probe(continuous=True, masked=True)


@pytest.fixture
def place(monkeypatch):
    """place(folder) writes the file zzz.py, which defines the config, into the folder."""

    def place(folder):
        module = types.SimpleNamespace(__file__=folder and str(folder / "zzz.py"))
        monkeypatch.setitem(sys.modules, "zzz", module)

    return place


@pytest.fixture
def beside_all(place):
    place(Path(ppo.__file__).parent)


@pytest.mark.parametrize(
    "env, params, takes",
    [
        (tasks.Probe(), PARAMS, {}),
        (BOX, PARAMS, BOTH),
        (MASKED, PARAMS, {"masks": True}),
        (tasks.Pair(), PAIR, TEAMS),
        (BOX_PAIR, PAIR, TEAMS | BOTH),
        (BOX, PARAMS, ONLY_BOX),
        (Unbounded(True), PARAMS, BOTH),
        (MASKED_PAIR, PAIR, TEAMS | {"masks": True}),
        (tasks.Probe(), PARAMS, ANY_NUMBER),
        (tasks.Pair(), PAIR, ANY_NUMBER),
    ],
)
def test_spaces_that_can_be_taken_are(env, params, takes):
    checks.check_spaces(INFO | takes, make_config(), env, params)


@pytest.mark.parametrize(
    "env, params, takes, message",
    [
        (
            tasks.Pair(),
            PAIR,
            {"masks": True},
            "Pair has several agents; ippo, ippo_rnn, ppo_vtrace and vdn take it$",
        ),
        (BOX_PAIR, PAIR, {}, "Pair has several agents; ippo, ippo_rnn and ppo_vtrace take it$"),
        (MASKED_PAIR, PAIR, {}, "Pair has several agents; ippo, ippo_rnn and vdn take it$"),
        (
            tasks.Probe(),
            PARAMS,
            TEAMS,
            r"one agent and no axis of agents; .*\bdqn, .*\band r2d2 take it$",
        ),
        (
            BOX,
            PARAMS,
            TEAMS | {"family": "policy gradients"},
            r"one agent .*; .*\bppo, ppo_plr, .*\band \w+ take it$",
        ),
        (
            BOX,
            PARAMS,
            {},
            "Probe has actions .*; zzz takes Discrete; crossq, .* and td3 take them$",
        ),
        (
            tasks.Probe(),
            PARAMS,
            ONLY_BOX,
            "Probe has actions .*; zzz takes Box; c51, dqn, .* and r2d2 take them$",
        ),
        (Unbounded(True), PARAMS, ONLY_BOX, "Probe has .*; zzz takes a Box with bounds$"),
        (Whole(True), PARAMS, BOTH, "Probe has .*int32.*, and policies give fractions: take Dis"),
        (Scalar(), PARAMS, {}, r"Probe has observations .*shape=\(\), .*an axis: give \(1,\)$"),
        (Tuples(), PARAMS, BOTH, "Probe has actions .*; zzz takes Discrete and Box$"),
        (
            Dicts(),
            PARAMS,
            {},
            "Probe has observations .*; zzz takes Box: concatenate them to one vec",
        ),
        (
            MASKED,
            PARAMS,
            BOTH,
            r"Probe has an action_mask, which zzz would not heed; .*\bdqn, .* do$",
        ),
        (
            MASKED_PAIR,
            PAIR,
            TEAMS,
            "Pair has an action_mask, .* heed; ippo, ippo_rnn and vdn do$",
        ),
        (MASKED_BOX, PARAMS, BOTH | {"masks": True}, "an action_mask, which actions .*heed"),
        (
            Narrow(),
            PARAMS,
            {},
            r"conv_layers='small' needs images of 3x3 .*\(2, 5, 1\); 'none' would do",
        ),
    ],
)
def test_spaces_that_cannot_be_taken_are_refused(beside_all, env, params, takes, message):
    with pytest.raises(ValueError, match=message):
        checks.check_spaces(INFO | takes, make_config(), env, params)


NEEDS = [
    (tasks.Pair(), PAIR, {}, "Pair has several agents", "; zzz takes one"),
    (tasks.Probe(), PARAMS, TEAMS, "Probe .* no axis of agents", "; zzz takes several"),
    (MASKED, PARAMS, {}, "Probe has an action_mask, which zzz would not heed", ""),
]


@pytest.mark.parametrize("env, params, takes, message, alone", NEEDS, ids=["many", "one", "mask"])
def test_files_beside_it_are_named(place, tmp_path, env, params, takes, message, alone):
    """It names the files that can, whatever else is in the folder: all of them or none."""
    (tmp_path / "notes.py").write_text("this is no Python")
    (tmp_path / "settings.py").write_text("INFO = {'title': 'of something else'}")
    (tmp_path / "dynamic.py").write_text("INFO = dict(title='no literal')")
    place(tmp_path)
    check = lambda: checks.check_spaces(INFO | takes, make_config(), env, params)
    with pytest.raises(ValueError, match=f"{message}{alone}$"):
        check()
    does = "does" if "mask" in message else "takes it"
    wanted = {"masks": True, "agents": "several" if env.name == "Pair" else "one"}
    (tmp_path / "yyy.py").write_text(f"import absent\n\nINFO = {INFO | wanted}\n")
    with pytest.raises(ValueError, match=f"{message}; yyy {does}$"):
        check()


def test_without_a_file_its_title_is_its_name(place):
    """As in a notebook."""
    place(None)
    with pytest.raises(ValueError, match="Probe has actions .*; Sleep takes Discrete$"):
        checks.check_spaces(INFO, make_config(), BOX, PARAMS)
    with pytest.raises(ValueError, match="an action_mask, which Sleep would not heed$"):
        checks.check_spaces(INFO, make_config(), MASKED, PARAMS)


def test_small_images_need_no_convolution():
    checks.check_spaces(INFO, make_config(conv_layers="none"), Narrow(), PARAMS)


@pytest.mark.parametrize(
    "shape, layers, told",
    [
        ((3, 8, 8), "small", True),
        ((3, 8, 8), "none", False),
        ((8, 8, 3), "small", False),
        ((4, 5, 26), "small", False),  # as a small room of Overcooked
        ((3, 3, 3), "small", False),
    ],
)
def test_channels_that_come_first_are_told_of(shape, layers, told, monkeypatch):
    monkeypatch.setattr(Narrow, "shape", shape)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checks.check_spaces(INFO, make_config(conv_layers=layers), Narrow(), PARAMS)
    found = [x for x in (str(one.message) for one in caught) if "channels come last" in x]
    told_of = "take as 3x8 pixels of 8 channels: channels come last, as in (8, 8, 3)"
    assert len(found) == told and all(told_of in x for x in found)


def test_observations_have_the_shape_of_the_space():
    """tests/envs/test_interface.py covers all checks."""
    found = r"step_env of Probe returns an observation of shape \(1,\), in place of \(2, 5, 1\)$"
    with pytest.raises(ValueError, match=found):
        checks.check_spaces(INFO, make_config(conv_layers="none"), Flat(), PARAMS)


# --- replay buffers ---------------------------------------------------------------------------


ROUNDS = dict(train_every=1, updates_per_step=1, batch_size=1, num_evals=1)


def check_ring(**settings):
    """Checks a buffer that stores one step of each environment at a time."""
    usual = dict(buffer_size=50_000, num_envs=16, n_step=1, learning_starts=0)
    config = make_config(**ROUNDS | usual | settings)
    parts.check_replay(config, tasks.Probe(), PARAMS)


@pytest.mark.parametrize(
    "settings, message, would_do",
    [
        (
            dict(n_step=400, total_timesteps=5000),
            "n_step=400 steps of num_envs=16 leave nothing of total_timesteps=5000 .*; 31 would",
            dict(n_step=31),
        ),
        (dict(n_step=3, total_timesteps=32), "n_step=3 .* 1 would do", dict(n_step=1)),
        (dict(n_step=3, total_timesteps=32), "n_step=3 .* leave noth", dict(total_timesteps=33)),
        (
            dict(n_step=3, buffer_size=32, total_timesteps=99),
            "buffer_size=32 does not hold n_step=3 steps of num_envs=16; 48 would do",
            dict(buffer_size=48),
        ),
        (
            dict(learning_starts=99, total_timesteps=99),
            "learning_starts=99 leaves nothing of total_timesteps=99 to learn in; 9 would do",
            dict(learning_starts=98),
        ),
    ],
)
def test_replay_that_never_learns_is_refused(settings, message, would_do):
    with pytest.raises(ValueError, match=message):
        check_ring(**settings)
    check_ring(**settings | would_do)


def test_observations_are_stored_in_a_known_dtype():
    check_ring(buffer_dtype="bool")
    with pytest.raises(ValueError, match="buffer_dtype='int7': give \"\" or bool or int8"):
        check_ring(buffer_dtype="int7")


# --- memory -----------------------------------------------------------------------------------


def test_a_buffer_larger_than_the_memory_is_refused_with_one_that_fits(monkeypatch):
    monkeypatch.setattr(capacity, "device_capacity", lambda: 1_000_000)

    def check(size):  # 18 bytes for each transition, and 12 for the counters
        settings = dict(learning_starts=0, total_timesteps=1, n_step=1, num_envs=1)
        config = make_config(buffer_size=size, **ROUNDS | settings)
        parts.check_replay(config, tasks.Probe(), PARAMS)

    check(55_554)
    message = "buffer_size=500000 takes 0.0 GB of the device's 0.0 GB; 44444 would fit"
    with pytest.raises(ValueError, match=message):
        check(500_000)
    with pytest.raises(ValueError, match="would fit"):
        check(55_556)
