"""Memories: recurrent networks step by step, the last action, and its reward."""

import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import ippo_rnn, parts, ppo_rnn, pqn_rnn, r2d2, vdn
from envs import evaluation
from tests.algorithms.parts.test_recurrence import random_sequence
from tests.probe import spaces

CELLS = tuple(parts.CELLS)


def make_config(**settings):
    fields = dict(cell="lstm", memory_size=8, previous_inputs=False, hidden_sizes=(8,))
    fields |= dict(layers=1, window=4, num_envs=1, total_timesteps=1, num_evals=1)
    fields |= dict(num_eval_episodes=0)
    fields |= dict(activation="tanh", conv_layers="small", forget_bias=0.5)
    return types.SimpleNamespace(**fields | settings)


class Pixels(nn.Module):
    """A network of images and of numbers beside them."""

    config: types.SimpleNamespace

    @nn.compact
    def __call__(self, memory, inputs, done):
        memories = parts.Recurrent(self.config)(memory, inputs, done)
        return memories, memories.hidden.sum(-1)


# Pairs: each cell, and a stack of each kind of memory (one part, two parts, numbers, a window).
# Algorithms' own tests have one layer of an LSTM and of the transformer.
THREE = parts.ActionSpace(spaces.Discrete(3))
FOUR = parts.ActionSpace(spaces.Box(-1, 1, (2, 2)))
STACKS = dict(lstm=2, gru=1, mingru=1, minlstm=2, lru=2, s5=1, gtrxl=2)


@pytest.mark.parametrize("cell", CELLS)
def test_a_recurrent_network_is_its_single_steps(cell):
    """Images and numbers both matter; ends of episodes cut the memory, and `one_step` has no
    ends."""
    layers = STACKS[cell]
    config, rng = make_config(cell=cell, layers=layers), np.random.default_rng(2)
    network, done = Pixels(config), random_sequence(2)[0]
    memory = parts.fresh_memory(config, None, 3)
    images, numbers = rng.normal(size=(12, 3, 4, 4, 1)), rng.normal(size=(12, 3, 2))
    inputs = jnp.array(images, jnp.float32), jnp.array(numbers, jnp.float32)
    arrays = memory, inputs, done
    params = jax.jit(network.init)(jax.random.key(0), *arrays)
    apply = jax.jit(network.apply)
    if cell != "gtrxl":  # whose window holds whole steps
        numbers_like = lambda x: jnp.array(rng.normal(size=x.shape), jnp.float32)
        memory = jax.tree.map(numbers_like, memory)
        arrays = memory, inputs, done
    memories, sums = apply(params, *arrays)
    step = jax.jit(lambda memory, inputs: parts.one_step(network, params, memory, inputs))
    for t in range(12):
        memory, total = step(memory, [x[t] for x in inputs])
        for one, other in zip(jax.tree.leaves(memories), jax.tree.leaves(memory), strict=True):
            np.testing.assert_allclose(one[t], other, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(sums[t], total, rtol=1e-3, atol=1e-5)
        memory = parts.forget(memory, done[t])
    for other in ((-inputs[0], inputs[1]), (inputs[0], -inputs[1])):
        assert not np.allclose(apply(params, arrays[0], other, done)[1], sums, atol=1e-3)
    inner = params["params"]["Recurrent_0"]
    ours = jax.tree.leaves((inner["gates"], inner.get("memory"), inner.get("layer_1")))
    for kernel in (x for x in ours if x.ndim == 2):
        rows = kernel if kernel.shape[0] <= kernel.shape[1] else kernel.T  # with gain 1
        np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-5)


def test_cells_that_cannot_be_are_refused():
    parts.check_cell(make_config(cell="lru"))
    parts.check_cell(make_config(cell="gru", memory_size=7))
    parts.check_cell(make_config(cell="none"), "none")
    refused = {
        "memory_size=7: cell='s5' needs an even number, as 8": dict(cell="s5", memory_size=7),
        "memory_size=9: cell='gtrxl' needs a multiple of its 4 heads, as 12": dict(
            cell="gtrxl", memory_size=9
        ),
        "layers=2: cell='none' has none; layers=1 would do": dict(cell="none", layers=2),
        "layers=0": dict(layers=0),
        "window=0": dict(cell="gtrxl", window=0),
        "memory_size=0": dict(memory_size=0),
    }
    for message, settings in refused.items():
        with pytest.raises(ValueError, match=message):
            parts.check_cell(make_config(**settings), "none")
    with pytest.raises(ValueError, match="memory_size=7: cell='lru' needs an even number, as 8"):
        parts.check_cell(make_config(cell="lru", memory_size=7))
    with pytest.raises(ValueError, match="cell='rnn': give none or lstm or gru"):
        parts.check_cell(make_config(cell="rnn"), "none")


@pytest.mark.parametrize("module", [ppo_rnn, pqn_rnn, ippo_rnn, vdn, r2d2])
def test_every_file_refuses_them_before_it_trains(module):
    with pytest.raises(ValueError, match="memory_size=7: cell='lru' needs an even number, as 8"):
        module.make_train(module.Config(cell="lru", memory_size=7))


PAIRS = [(ppo_rnn, "gru"), (pqn_rnn, "gtrxl"), (ippo_rnn, "s5"), (vdn, "gtrxl"), (r2d2, "gru")]


@pytest.mark.parametrize("module, cell", PAIRS)
@pytest.mark.filterwarnings("ignore::envs.warn.KitWarning")
def test_every_file_takes_layers_of_them(module, cell):
    """Traced, without compiling: states before and after have the same shapes."""
    sizes = dict(num_envs=4, total_timesteps=64, num_evals=1, num_eval_episodes=1)
    sizes |= dict(memory_size=16, window=5)
    if module is r2d2:
        sizes |= dict(train_every=4, burn_in=4, sequence_length=4, buffer_size=64)
        sizes |= dict(learning_starts=32)
    else:
        sizes |= dict(num_steps=8, num_minibatches=2)
    train = module.make_train(module.Config(**sizes, cell=cell, layers=2))
    first = jax.eval_shape(lambda key: parts.first_state(train, key), jax.random.key(0))
    after, _ = jax.eval_shape(train, jax.random.key(0), first)
    assert jax.tree.map(jnp.shape, first) == jax.tree.map(jnp.shape, after)
    memory = first.memory.cell
    shape = memory.inputs.shape if cell == "gtrxl" else (len(memory),)
    assert shape[-3:] == (2, 5, 16) if cell == "gtrxl" else shape == (2,)
    paths = [str(path) for path, _ in jax.tree_util.tree_leaves_with_path(first.policy.params)]
    second = "blocks_1" if cell == "gtrxl" else "layer_1"
    assert any(second in path for path in paths)


@pytest.mark.parametrize("cell", CELLS)
def test_a_fresh_memory_is_zeros_in_the_shapes_of_the_settings(cell):
    fresh = parts.fresh_memory(make_config(cell=cell), THREE, 5, 2)
    assert fresh.hidden.shape == (5, 2, 8) and fresh.action is None and fresh.reward is None
    if cell == "gtrxl":
        assert fresh.cell.inputs.shape == (5, 2, 1, 4, 8) and fresh.cell.age.shape == (5, 2)
    else:
        assert (fresh.cell is None) == (cell not in ("lstm", "lru", "s5"))
    layers = parts.fresh_memory(make_config(cell=cell, layers=3), THREE, 5)
    assert layers.hidden.shape == (5, 8)
    assert cell == "gtrxl" or [x.hidden.shape for x in layers.cell] == [(5, 8)] * 3
    config = make_config(cell=cell, previous_inputs=True)
    for space, size in ((THREE, 3), (FOUR, 4)):
        fresh = parts.fresh_memory(config, space, 5)
        assert fresh.action.shape == (5, size) and fresh.reward.shape == (5,)
        assert all((np.asarray(leaf) == 0.0).all() for leaf in jax.tree.leaves(fresh))


def test_last_actions_are_one_hot_or_unchanged_and_forgotten_at_an_end():
    config = make_config(previous_inputs=True)
    memory = jax.tree.map(lambda x: x + 1.0, parts.fresh_memory(config, THREE, 2))
    reward = jnp.array([3, -7])  # integer rewards, as in some environments
    after = parts.with_last_step(config, THREE, memory, jnp.array([2, 0]), reward)
    np.testing.assert_array_equal(after.action, [[0, 0, 1], [1, 0, 0]])
    action, squashed = parts.last_step(after)
    assert action is after.action and after.reward.dtype == jnp.float32
    np.testing.assert_allclose(squashed, [np.log(4.0), -np.log(8.0)], rtol=1e-6)
    shaped = parts.with_last_step(
        config,
        THREE,
        memory,
        jnp.array([2, 0]),
        reward,
        {"shaping": jnp.array([1, 2])},
    )
    np.testing.assert_array_equal(shaped.reward, [2, -9])
    box = jnp.arange(8.0).reshape(2, 2, 2)
    after = parts.with_last_step(config, FOUR, memory, box, reward)
    np.testing.assert_array_equal(after.action, box.reshape(2, 4))
    gone = parts.forget(after, jnp.array([True, False]))
    for before, now in zip(jax.tree.leaves(after), jax.tree.leaves(gone), strict=True):
        np.testing.assert_array_equal(now[0], 0.0)
        np.testing.assert_array_equal(now[1], before[1])
    plain = parts.fresh_memory(make_config(), THREE, 2)
    assert parts.with_last_step(make_config(), THREE, plain, None, None) is plain
    assert parts.last_step(plain) == ()


def test_rewards_are_passed_back_to_the_policy():
    config = make_config(previous_inputs=True)
    memory = parts.fresh_memory(config, THREE)
    told = evaluation.rewarded(memory, jnp.int32(4))
    assert told.reward == 4.0 and told.reward.dtype == jnp.float32
    assert told.hidden is memory.hidden
    plain = parts.fresh_memory(make_config(), THREE)
    assert evaluation.rewarded(plain, 4.0) is plain and evaluation.rewarded(None, 4.0) is None
