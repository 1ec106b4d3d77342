"""Recurrences: cells against flax and plain recursions, ends of episodes, gradients."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts
from algorithms.parts import recurrence

CELLS = tuple(parts.CELLS)


def random_sequence(seed, num_steps=12, batch=3, size=8):
    """Done flags, and a memory of an LSTM."""
    rng = np.random.default_rng(seed)
    done = jnp.array(rng.random((num_steps, batch)) < 0.3)
    return done, parts.Memory(*jnp.array(rng.normal(size=(2, batch, size)), jnp.float32))


def memory_for(cell, memory):
    return memory if cell == "lstm" else memory._replace(cell=None)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_cells_are_those_of_flax(cell):
    """flax's own cells have the same kernels, and the forget bias among their biases."""
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


MINGRU_SCAN = jax.jit(recurrence.mingru_scan)


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


@pytest.mark.parametrize("axes", [(3,), (3, 2)])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_gradients_are_the_automatic_ones(cell, axes):
    """The written-out gradients equal jax.grad's for the first memory, the inputs and the kernel.

    Episodes end in between.
    """
    rng, (blocks, _) = np.random.default_rng(3), parts.CELLS[cell]
    normal = lambda *shape: jnp.array(rng.normal(size=shape), jnp.float32)
    done = jnp.array(rng.random((12, 3)) < 0.2).at[4, 0].set(True).at[11, 1].set(True)
    gates, kernel = normal(12, *axes, 8 * blocks), normal(8, 8 * blocks)
    memory = memory_for(cell, parts.Memory(normal(*axes, 8), normal(*axes, 8)))
    weights = memory_for(cell, parts.Memory(normal(12, *axes, 8), normal(12, *axes, 8)))

    def plain(memory, gates, kernel):
        memories = []
        for t in range(12):
            memory = parts.advance(cell, memory, gates[t], kernel, 0.5)
            memories.append(memory)
            memory = parts.forget(memory, done[t])
        return jax.tree.map(lambda *x: jnp.stack(x), *memories)

    unroll = lambda memory, gates, kernel: parts.unroll(cell, memory, gates, kernel, done, 0.5)
    total = lambda tree: sum(
        jax.tree.leaves(jax.tree.map(lambda x, w: (x * w).sum(), tree, weights))
    )
    gradients = lambda function: jax.jit(jax.grad(lambda *x: total(function(*x)), (0, 1, 2)))
    found = gradients(unroll)(memory, gates, kernel)
    expected = gradients(plain)(memory, gates, kernel)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
        assert np.abs(other).max() > 0.1


def test_the_product_of_gates_and_its_gradients():
    rng = np.random.default_rng(4)
    x, kernel, weights = (rng.normal(size=size) for size in ((5, 3, 4), (4, 6), (5, 3, 6)))
    total = lambda x, kernel: (parts.product(x, kernel) * weights).sum()
    np.testing.assert_allclose(parts.product(x, kernel), x @ kernel, rtol=1e-4, atol=1e-5)
    of_x, of_kernel = jax.jit(jax.grad(total, (0, 1)))(jnp.array(x), jnp.array(kernel))
    np.testing.assert_allclose(of_x, weights @ kernel.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(of_kernel, np.einsum("tbk,tbn->kn", x, weights), 1e-4, 1e-5)
