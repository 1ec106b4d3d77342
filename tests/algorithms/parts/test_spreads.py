"""Warnings of arrays that spread over one another, because a last axis of 1 is left."""

import threading
import time
import types
import warnings

import jax
import jax.numpy as jnp
import pytest

import envs
from algorithms import parts, ppo
from algorithms.parts import spreads
from envs import warn
from envs.gymnax import spaces


def told(function, *shapes):
    """The kit's warnings while a function is traced with arrays of ones."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        jax.eval_shape(spreads.told(function), *arrays)
    return [str(one.message) for one in caught if issubclass(one.category, warn.KitWarning)]


@pytest.mark.parametrize(
    "small, big", [((13,), (13, 1)), ((13,), (3, 13, 1)), ((1, 17), (1, 17, 1))]
)
def test_a_last_axis_of_one_is_told_of_with_its_line(small, big):
    def update(x, y):
        return x - y  # here

    (found,) = told(update, small, big)
    assert found.startswith("test_spreads.py, line ")
    result = (*big[:-1], small[-1])
    said = f"return x - y  # here: arrays of shapes {small} and {big} make one of {result}; is a "
    assert said in found


def test_the_order_does_not_matter():
    assert len(told(lambda x, y: y + x, (14,), (14, 1))) == 1


@pytest.mark.parametrize(
    "shapes",
    [((19, 4), (4,)), ((19,), (4, 1)), ((19, 1), (19, 1)), ((1,), (1, 1)), ((), (19, 1))],
)
def test_what_is_usual_is_not_told_of(shapes):
    assert told(lambda x, y: x * y, *shapes) == []


def test_environments_may_compare_all_pairs():
    module = types.ModuleType("envs.some")
    exec("def step(x):\n    return x - x[:, None]", vars(module))
    assert told(lambda x: module.step(x), (23,)) == []
    module.__name__ = vars(module)["__name__"] = "nets"  # of the algorithm's own, elsewhere
    (found,) = told(lambda x: module.step(x), (29,))
    assert found.startswith("test_spreads.py, line ")


def test_other_warnings_come_as_they_do():
    def update(x):
        warnings.warn("something else", stacklevel=1)
        return x

    with pytest.warns(UserWarning, match="something else"):
        spreads.told(update)(jnp.ones(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="something else"):
            spreads.told(update)(jnp.ones(3))


def test_who_lets_jax_look_is_left_alone():
    add = spreads.told(lambda x, y: x + y)
    with jax.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="could not be broad"):
        add(jnp.ones(31), jnp.ones((31, 1)))
    add(jnp.ones(31), jnp.ones((31, 4, 1)))
    assert jax.config.jax_numpy_rank_promotion == "allow"


def test_a_value_head_that_keeps_its_axis_is_told_of(monkeypatch):
    critic = ppo.ActorCritic.critic
    monkeypatch.setattr(ppo.ActorCritic, "critic", lambda self, x: critic(self, x)[..., None])
    config = ppo.Config(num_envs=3, num_steps=37, num_minibatches=1, num_eval_episodes=0)
    with pytest.warns(warn.KitWarning, match=r"ppo.py, line \d+: target=advantages \+ values,: "):
        jax.eval_shape(ppo.make_train(config), jax.random.key(0))


@pytest.mark.parametrize("env, what", [("CartPole-v1", "2 actions"), ("Pendulum-v1", "1 numbers")])
def test_a_policy_of_another_size_is_refused(env, what, monkeypatch):
    actor = ppo.ActorCritic.actor

    def wrong(self, x, mask=None):
        found = actor(self, x, mask)
        name = "logits" if hasattr(found, "logits") else "mean"
        return found.replace(**{name: jnp.concatenate([getattr(found, name)] * 2, -1)})

    monkeypatch.setattr(ppo.ActorCritic, "actor", wrong)
    config = ppo.Config(env=env, num_envs=3, num_steps=5, num_minibatches=1)
    size = envs.make(env)[0].num_actions * 2
    found = rf"outputs of shape \(3, {size}\), and the environment {what}"
    with pytest.raises(ValueError, match=found):
        jax.eval_shape(ppo.make_train(config), jax.random.key(0))


def test_a_distribution_of_bins_over_a_box_is_no_policy_of_another_size():
    space = parts.ActionSpace(spaces.Box(-1.0, 1.0, (2,)))
    bins = types.SimpleNamespace(logits=jnp.zeros((3, 2, 11)), sample_from=lambda noise: noise)
    assert space.sample(bins, jnp.ones((3, 2)), jax.random.key(0)).shape == (3, 2)


def test_threads_that_trace_take_turns():
    """Filters are of the process: the one that ends last would leave the other's behind."""
    show, inside, order = warnings.showwarning, threading.Event(), []

    def first(x):
        inside.set()
        time.sleep(0.1)
        order.append(1)
        return x

    def second(x):
        order.append(2)
        return x

    thread = threading.Thread(target=spreads.told(first), args=(jnp.ones(2),))
    thread.start()
    inside.wait()
    spreads.told(second)(jnp.ones(2))
    thread.join()
    assert order == [1, 2] and warnings.showwarning is show
