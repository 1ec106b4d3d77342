"""What is refused says which setting it is, its value and what would do."""

import types

import jax
import jax.numpy as jnp
import pytest

from algorithms import parts
from algorithms.parts import memory
from tests import probe as tasks
from tests.probe import spaces


def make_config(**settings):
    usual = {"total_timesteps": 100, "num_envs": 4, "num_eval_episodes": 0, "conv_layers": "small"}
    usual |= {"hidden_sizes": (8, 8), "activation": "tanh", "kind": "linear", "dtype": ""}
    return types.SimpleNamespace(**usual | settings)


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
        ({"num_eval_episodes": -1}, "num_eval_episodes=-1: give a whole number, 0 or more"),
        ({"num_eval_episodes": 2**31}, "num_eval_episodes=2147483648: give .* up to 2147483647"),
        ({"hidden_sizes": (8, 0)}, "hidden_sizes=0: give a whole number, 1 or more"),
        ({"hidden_sizes": (2**31,)}, "hidden_sizes=2147483648: give a whole number up to"),
        ({"activation": "tanhh"}, "activation='tanhh': flax.linen has tanh, relu, ..."),
    ],
)
def test_sizes_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        parts.check_sizes(
            make_config(**settings), ("total_timesteps", "num_envs"), ("num_eval_episodes",)
        )


def test_sizes_that_can_be_are_taken():
    """A run may have more steps than an int32 counts."""
    for settings in ({}, {"total_timesteps": 10**11, "num_envs": 2**31 - 1}, {"hidden_sizes": ()}):
        parts.check_sizes(make_config(**settings), ("total_timesteps", "num_envs"))


def test_choices_are_listed():
    parts.check_choices(make_config(), kind=("linear", "cosine"), dtype=("", "bool"))
    with pytest.raises(ValueError, match="kind='square': give linear or cosine"):
        parts.check_choices(make_config(kind="square"), kind=("linear", "cosine"))
    with pytest.raises(ValueError, match="dtype='int7': give \"\" or bool"):
        parts.check_choices(make_config(dtype="int7"), dtype=("", "bool"))


@pytest.mark.parametrize(
    "number, size, would_do", [(3, 16, "1, 2, 4, 8"), (5, 7, "1, 7"), (50, 36, "9, 12, 18, 36")]
)
def test_the_nearest_divisors_are_listed(number, size, would_do):
    parts.check_divides("num_minibatches", 4, "batch", 16)
    message = f"num_minibatches={number} does not divide the batch = {size}; {would_do} would do"
    with pytest.raises(ValueError, match=message):
        parts.check_divides("num_minibatches", number, f"the batch = {size}", size)


# --- spaces -----------------------------------------------------------------------------------

PARAMS, PAIR = tasks.ProbeParams(), tasks.PairParams()


class Tuples(tasks.Probe):
    def action_space(self, params):
        return spaces.Tuple([spaces.Discrete(2)] * 2)


class Dicts(tasks.Probe):
    def observation_space(self, params):
        return spaces.Dict({"x": spaces.Box(0, 1, (1,))})


class Narrow(tasks.Probe):
    def observation_space(self, params):
        return spaces.Box(0, 1, (2, 5, 1))


BOX, BOX_PAIR = tasks.Probe(continuous=True), tasks.Pair(continuous=True)
MASKED, MASKED_PAIR = tasks.Probe(masked=True), tasks.Pair(masked=True)
MASKED_BOX = tasks.Probe(continuous=True, masked=True)


@pytest.mark.parametrize(
    "env, params, takes",
    [
        (tasks.Probe(), PARAMS, {}),
        (BOX, PARAMS, {"box": True}),
        (MASKED, PARAMS, {"masks": True}),
        (tasks.Pair(), PAIR, {"agents": True}),
        (BOX_PAIR, PAIR, {"agents": True, "box": True}),
        (MASKED_PAIR, PAIR, {"agents": True, "masks": True}),
    ],
)
def test_spaces_that_can_be_taken_are(env, params, takes):
    parts.check_spaces("zzz", make_config(), env, params, **takes)


@pytest.mark.parametrize(
    "env, params, takes, message",
    [
        (tasks.Pair(), PAIR, {"masks": True}, "Pair has several agents; ippo takes it"),
        (BOX, PARAMS, {}, "Probe has actions .*; zzz takes Discrete$"),
        (Tuples(), PARAMS, {"box": True}, "Probe has actions .*; zzz takes Discrete and Box$"),
        (Dicts(), PARAMS, {}, "Probe has observations .*; zzz takes Box$"),
        (
            MASKED,
            PARAMS,
            {"box": True},
            "Probe has an action_mask, which zzz would not heed; ppo, ",
        ),
        (MASKED_PAIR, PAIR, {"agents": True}, "Pair has an action_mask, .* heed; ippo does$"),
        (MASKED_BOX, PARAMS, {"box": True, "masks": True}, "an action_mask, which actions .*heed"),
        (
            Narrow(),
            PARAMS,
            {},
            r"conv_layers='small' needs images of 3x3 .*\(2, 5, 1\); 'none' would do",
        ),
    ],
)
def test_spaces_that_cannot_be_taken_are_refused(env, params, takes, message):
    with pytest.raises(ValueError, match=message):
        parts.check_spaces("zzz", make_config(), env, params, **takes)


def test_small_images_need_no_convolution():
    parts.check_spaces("zzz", make_config(conv_layers="none"), Narrow(), PARAMS)


# --- memory -----------------------------------------------------------------------------------


def test_a_buffer_larger_than_the_memory_is_refused_with_one_that_fits(monkeypatch):
    monkeypatch.setattr(memory, "device_memory", lambda: 1_000_000)
    buffer = lambda size: parts.ReplayBuffer(size, num_envs=1, num_steps=1)

    def check(size):
        shapes = jax.eval_shape(lambda: {"x": jnp.zeros((size, 25)), "bits": jnp.zeros(size, bool)})
        config = types.SimpleNamespace(buffer_size=size)
        parts.check_memory(config, buffer(size), shapes)  # 101 bytes for each transition

    check(9_900)
    message = "buffer_size=50000 takes 0.0 GB of the device's 0.0 GB; 7920 would fit"
    with pytest.raises(ValueError, match=message):
        check(50_000)
    with pytest.raises(ValueError, match="would fit"):
        check(9_901)
