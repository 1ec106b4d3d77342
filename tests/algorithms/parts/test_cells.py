"""Memories: cells against flax and plain recursions, ends of episodes, the last step."""

import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts
from algorithms.parts import cells
from envs import evaluation
from tests.probe import spaces

CELLS = tuple(parts.CELLS)


def random_sequence(seed, num_steps=12, batch=3, size=8):
    """Done flags, and a memory of an LSTM."""
    rng = np.random.default_rng(seed)
    done = jnp.array(rng.random((num_steps, batch)) < 0.3)
    return done, parts.Memory(*jnp.array(rng.normal(size=(2, batch, size)), jnp.float32))


def memory_for(cell, memory):
    return memory if cell == "lstm" else memory._replace(cell=None)


def make_config(**settings):
    fields = dict(cell="lstm", memory_size=8, previous_inputs=False, hidden_sizes=(8,))
    fields |= dict(activation="tanh", conv_layers="small", forget_bias=0.5)
    return types.SimpleNamespace(**fields | settings)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_cells_are_those_of_flax(cell):
    """flax's own cells with the same kernels, and the forget bias among their biases."""
    size, letters = 5, {"lstm": "ifgo", "gru": "rzn"}[cell]
    rng = np.random.default_rng(0)
    x, hidden, memory_cell = rng.normal(size=(3, 4, size)).astype(np.float32)
    kernels = rng.normal(size=(2, len(letters), size, size)).astype(np.float32)
    biases = rng.normal(size=(len(letters), size)).astype(np.float32)
    remembering = [1.5 * (letter in "fz") for letter in letters]
    params = {}
    for i, letter in enumerate(letters):
        bias = biases[i] + remembering[i]
        params["i" + letter] = {"kernel": kernels[0, i]}
        params["h" + letter] = {"kernel": kernels[1, i]}
        params["hi"[cell == "gru"] + letter]["bias"] = bias
    if cell == "gru":
        params["hn"]["bias"] = np.zeros(size, np.float32)
        carry, reference = hidden, nn.GRUCell(size)
    else:
        carry, reference = (memory_cell, hidden), nn.OptimizedLSTMCell(size)
    expected, _ = jax.jit(reference.apply)({"params": params}, carry, x)

    flat = [np.concatenate(blocks, 1) for blocks in kernels]
    before = memory_for(cell, parts.Memory(hidden, memory_cell))
    gates = x @ flat[0] + biases.reshape(-1)
    after = jax.jit(parts.advance, static_argnums=0)(cell, before, gates, flat[1], 1.5)
    np.testing.assert_allclose(after.hidden, expected if cell == "gru" else expected[1], 1e-4, 1e-5)
    if cell == "lstm":
        np.testing.assert_allclose(after.cell, expected[0], rtol=1e-4, atol=1e-5)


MINGRU_SCAN = jax.jit(cells.mingru_scan)


@pytest.mark.parametrize("seed", range(3))
def test_mingru_is_the_plain_recursion_step_by_step_and_all_at_once(seed):
    done, memory = random_sequence(seed, num_steps=37)
    rng = np.random.default_rng(seed)
    z, candidate = rng.normal(size=(2, 37, 3, 8)).astype(np.float32)
    gates = jnp.concatenate([z, candidate], -1)
    expected, h = [], np.asarray(memory.hidden)
    for t in range(37):
        gate = 1.0 / (1.0 + np.exp(-(z[t] - 0.5)))
        h = (1.0 - gate) * h + gate * candidate[t]
        expected.append(h)
        h = np.where(done[t][:, None], 0.0, h)
    scanned = MINGRU_SCAN(memory_for("mingru", memory), gates, done, 0.5)
    np.testing.assert_allclose(scanned, expected, rtol=1e-4, atol=1e-5)
    step = parts.advance("mingru", memory_for("mingru", memory), gates[0], None, 0.5)
    np.testing.assert_allclose(step.hidden, expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_unrolling_is_advancing_with_a_zeroed_memory_after_every_end(cell):
    done, memory = random_sequence(1)
    memory, (from_inputs, from_memory) = memory_for(cell, memory), parts.CELLS[cell]
    rng = np.random.default_rng(1)
    gates = rng.normal(size=(12, 3, 8 * from_inputs)).astype(np.float32)
    kernel = rng.normal(size=(8, 8 * from_memory)).astype(np.float32) if from_memory else None
    after = jax.jit(parts.unroll, static_argnums=0)(cell, memory, gates, kernel, done, 0.5)
    step = jax.jit(parts.advance, static_argnums=0)
    for t in range(12):
        memory = step(cell, memory, gates[t], kernel, 0.5)
        for one, other in zip(jax.tree.leaves(after), jax.tree.leaves(memory), strict=True):
            np.testing.assert_allclose(one[t], other, rtol=1e-4, atol=1e-5)
        memory = jax.tree.map(lambda m, t=t: np.where(done[t][:, None], 0.0, m), memory)


class Pixels(nn.Module):
    """A network of images, and what comes beside them."""

    config: types.SimpleNamespace

    @nn.compact
    def __call__(self, memory, inputs, done):
        memories = parts.Recurrent(self.config)(memory, inputs, done)
        return memories, memories.hidden.sum(-1)


@pytest.mark.parametrize("cell", CELLS)
def test_a_recurrent_network_is_its_single_steps(cell):
    """Of images and numbers, which both matter; ends cut it, and one step heeds none."""
    config, rng = make_config(cell=cell), np.random.default_rng(2)
    network, (done, memory) = Pixels(config), random_sequence(2)
    memory = memory_for(cell, memory)
    images, numbers = rng.normal(size=(12, 3, 4, 4, 1)), rng.normal(size=(12, 3, 2))
    inputs = jnp.array(images, jnp.float32), jnp.array(numbers, jnp.float32)
    arrays = memory, inputs, done
    gains = {"gates": 1.0, "memory": 1.0}
    params = jax.jit(lambda key: parts.orthogonal(network, key, *arrays, **gains))(
        jax.random.key(0)
    )
    apply = jax.jit(network.apply)
    memories, sums = apply(params, *arrays)
    step = jax.jit(lambda memory, inputs: parts.one_step(network, params, memory, inputs))
    for t in range(12):
        memory, total = step(memory, [x[t] for x in inputs])
        np.testing.assert_allclose(memories.hidden[t], memory.hidden, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(sums[t], total, rtol=1e-3, atol=1e-5)
        memory = parts.forget(memory, done[t])
    for other in ((-inputs[0], inputs[1]), (inputs[0], -inputs[1])):
        assert not np.allclose(apply(params, arrays[0], other, done)[1], sums, atol=1e-3)
    inner = params["params"]["Recurrent_0"]
    for kernel in (inner["gates"]["kernel"], *([] if cell == "mingru" else [inner["memory"]])):
        rows = kernel if kernel.shape[0] <= kernel.shape[1] else kernel.T  # with gain 1
        np.testing.assert_allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_a_fresh_memory_is_zeros_of_what_the_settings_ask_for(cell):
    fresh = parts.fresh_memory(make_config(cell=cell), spaces.Discrete(3), 5, 2)
    assert fresh.hidden.shape == (5, 2, 8) and fresh.action is None and fresh.reward is None
    assert (fresh.cell is None) == (cell != "lstm")
    config = make_config(cell=cell, previous_inputs=True)
    for space, size in ((spaces.Discrete(3), 3), (spaces.Box(-1, 1, (2, 2)), 4)):
        fresh = parts.fresh_memory(config, space, 5)
        assert fresh.action.shape == (5, size) and fresh.reward.shape == (5,)
        assert all((np.asarray(leaf) == 0.0).all() for leaf in jax.tree.leaves(fresh))


def test_what_was_done_is_one_hot_or_as_it_is_and_forgotten_at_an_end():
    config = make_config(previous_inputs=True)
    memory = jax.tree.map(lambda x: x + 1.0, parts.fresh_memory(config, spaces.Discrete(3), 2))
    reward = jnp.array([3, -7])  # whole numbers, as some environments have them
    after = parts.did(config, spaces.Discrete(3), memory, jnp.array([2, 0]), reward)
    np.testing.assert_array_equal(after.action, [[0, 0, 1], [1, 0, 0]])
    action, squashed = parts.last_step(after)
    assert action is after.action and after.reward.dtype == jnp.float32
    np.testing.assert_allclose(squashed, [np.log(4.0), -np.log(8.0)], rtol=1e-6)
    box = jnp.arange(8.0).reshape(2, 2, 2)
    after = parts.did(config, spaces.Box(-1, 1, (2, 2)), memory, box, reward)
    np.testing.assert_array_equal(after.action, box.reshape(2, 4))
    gone = parts.forget(after, jnp.array([True, False]))
    for before, now in zip(jax.tree.leaves(after), jax.tree.leaves(gone), strict=True):
        np.testing.assert_array_equal(now[0], 0.0)
        np.testing.assert_array_equal(now[1], before[1])
    plain = parts.fresh_memory(make_config(), spaces.Discrete(3), 2)
    assert parts.did(make_config(), spaces.Discrete(3), plain, None, None) is plain
    assert parts.last_step(plain) == ()


def test_who_steps_the_environment_tells_the_reward():
    config = make_config(previous_inputs=True)
    memory = parts.fresh_memory(config, spaces.Discrete(3))
    told = evaluation.rewarded(memory, jnp.int32(4))
    assert told.reward == 4.0 and told.reward.dtype == jnp.float32
    assert told.hidden is memory.hidden
    plain = parts.fresh_memory(make_config(), spaces.Discrete(3))
    assert evaluation.rewarded(plain, 4.0) is plain and evaluation.rewarded(None, 4.0) is None
