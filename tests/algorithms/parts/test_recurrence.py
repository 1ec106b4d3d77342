"""Recurrences: cells against flax and plain recursions, ends of episodes, gradients."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts
from algorithms.parts import recurrence

CELLS = tuple(recurrence.BLOCKS)


def random_sequence(seed, num_steps=12, batch=3, size=8):
    """Done flags, and a memory of an LSTM."""
    rng = np.random.default_rng(seed)
    done = jnp.array(rng.random((num_steps, batch)) < 0.3)
    return done, parts.Memory(*jnp.array(rng.normal(size=(2, batch, size)), jnp.float32))


def memory_for(cell, memory):
    return memory if cell in recurrence.TWO_PARTS else memory._replace(cell=None)


def kernel_for(cell, rng, size=8):
    """Numbers for the parameters beside the gates."""
    blocks = recurrence.BLOCKS[cell][1]
    if not blocks:
        return None
    kernel = rng.normal(size=(size, size * blocks)).astype(np.float32)
    rates = 0.3 * rng.normal(size=size // 2 * {"s5": 3}.get(cell, 2)).astype(np.float32)
    return recurrence.StateSpace(rates, kernel) if cell in ("lru", "s5") else kernel


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
    after = jax.jit(recurrence.advance, static_argnums=0)(cell, before, gates, flat[1], 1.5)
    np.testing.assert_allclose(after.hidden, expected if cell == "gru" else expected[1], 1e-4, 1e-5)
    if cell == "lstm":
        np.testing.assert_allclose(after.cell, expected[0], rtol=1e-4, atol=1e-5)


UNROLL, ADVANCE = (jax.jit(f, static_argnums=0) for f in (recurrence.unroll, recurrence.advance))


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-np.asarray(x, np.float64)))


def mingru(h, gates):
    z, candidate = np.split(gates, 2, -1)
    z = sigmoid(z - 0.5)
    return (1.0 - z) * h + z * candidate


def minlstm(h, gates):
    i, f, candidate = np.split(gates, 3, -1)
    i, f = sigmoid(i - 0.5), sigmoid(f + 0.5)
    return f / (f + i) * h + i / (f + i) * candidate


@pytest.mark.parametrize("step", [mingru, minlstm])
@pytest.mark.parametrize("seed", range(3))
def test_minimal_cells_are_plain_recursions_step_by_step_and_all_at_once(step, seed):
    done, memory = random_sequence(seed, num_steps=37)
    cell = step.__name__
    rng, memory = np.random.default_rng(seed), memory_for(cell, memory)
    gates = 2 * rng.normal(size=(37, 3, 8 * recurrence.BLOCKS[cell][0])).astype(np.float32)
    expected, h = [], np.asarray(memory.hidden)
    for t in range(37):
        h = step(h, gates[t])
        expected.append(h)
        h = np.where(done[t][:, None], 0.0, h)
    scanned = UNROLL(cell, memory, gates, None, done, 0.5)
    np.testing.assert_allclose(scanned.hidden, expected, rtol=1e-4, atol=1e-5)
    one = ADVANCE(cell, memory, gates[0], None, 0.5)
    np.testing.assert_allclose(one.hidden, expected[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", ["gru", "lstm", "mingru", "minlstm"])
def test_a_forget_bias_keeps_as_much_of_every_memory(cell):
    """With gates of 0, the sigmoid of the bias."""
    memory = memory_for(cell, parts.Memory(jnp.ones((1, 8)), jnp.ones((1, 8))))
    blocks, of_memory = recurrence.BLOCKS[cell]
    kernel = jnp.zeros((8, 8 * of_memory)) if of_memory else None
    after = ADVANCE(cell, memory, jnp.zeros((1, 8 * blocks)), kernel, 3.0)
    kept = after.cell if cell == "lstm" else after.hidden
    np.testing.assert_allclose(kept, sigmoid(3.0), rtol=1e-5)


def test_gates_of_a_minlstm_that_are_both_shut_are_finite():
    memory = parts.Memory(jnp.ones((1, 1)), None)
    gates = jnp.array([[-200.0, -200.0, 3.0]])
    total = lambda gates: ADVANCE("minlstm", memory, gates, None, 0.0).hidden.sum()
    assert total(gates) == pytest.approx(2.0) and np.isfinite(jax.grad(total)(gates)).all()


@pytest.mark.parametrize("seed", range(3))
def test_lru_is_the_plain_recursion_step_by_step_and_all_at_once(seed):
    done, memory = random_sequence(seed, num_steps=37)
    rng = np.random.default_rng(seed)
    gates = rng.normal(size=(37, 3, 16)).astype(np.float32)
    kernel = kernel_for("lru", rng)
    # Four eigenvalues: moduli and phases from where they start, moved by the rates.
    squared = 0.9**2 + (0.999**2 - 0.9**2) * np.array([1, 3, 5, 7]) / 8
    nu = np.log(-np.log(np.sqrt(squared))) + kernel.rates[:4] - 0.5
    golden = np.arange(4) * (np.sqrt(5) - 1) / 2
    theta = np.pi / 10 * (golden - np.floor(golden)) + kernel.rates[4:]
    keep = np.exp(-np.exp(nu) + 1j * theta)
    cell = np.asarray(memory.cell, np.float64)
    x, cells, hidden = cell[:, :4] + 1j * cell[:, 4:], [], []
    for t in range(37):
        x = keep * x + np.sqrt(1 - np.abs(keep) ** 2) * (gates[t, :, :4] + 1j * gates[t, :, 4:8])
        cells.append(np.concatenate([x.real, x.imag], -1))
        hidden.append(jax.nn.gelu(jnp.array(cells[-1] @ kernel.out + gates[t, :, 8:])))
        x = np.where(done[t][:, None], 0.0, x)
    scanned = UNROLL("lru", memory, gates, kernel, done, 0.5)
    np.testing.assert_allclose(scanned.cell, cells, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(scanned.hidden, hidden, rtol=1e-3, atol=1e-3)
    one = ADVANCE("lru", memory, gates[0], kernel, 0.5)
    np.testing.assert_allclose(one.cell, cells[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_s5_is_the_plain_recursion_step_by_step_and_all_at_once(seed):
    """The eigenvalues are found from the HiPPO-N matrix as Smith et al. write it."""
    done, memory = random_sequence(seed, num_steps=37)
    rng = np.random.default_rng(seed)
    gates = rng.normal(size=(37, 3, 16)).astype(np.float32)
    kernel = kernel_for("s5", rng)
    n = np.arange(8)
    hippo = -np.tril(np.sqrt(np.outer(2 * n + 1, 2 * n + 1)), -1) - np.diag(n + 1.0)
    normal = hippo + np.outer(np.sqrt(n + 0.5), np.sqrt(n + 0.5))
    found = np.linalg.eigvals(normal)
    np.testing.assert_allclose(found.real, -0.5, rtol=1e-6)
    moved, real, imaginary = np.split(kernel.rates.astype(np.float64), 3)
    eigen = -0.5 * np.exp(real) + 1j * (np.sort(found.imag)[4:] + imaginary)
    place = (np.arange(4) + 0.5) * (np.sqrt(5) - 1) / 2 % 1
    time_step = 0.001 * 100**place * np.exp(moved - 0.5)
    keep = np.exp(eigen * time_step)
    cell = np.asarray(memory.cell, np.float64)
    x, cells, hidden = cell[:, :4] + 1j * cell[:, 4:], [], []
    for t in range(37):
        x = keep * x + (keep - 1) / eigen * np.exp(0.5) * (gates[t, :, :4] + 1j * gates[t, :, 4:8])
        cells.append(np.concatenate([x.real, x.imag], -1))
        hidden.append(jax.nn.gelu(jnp.array(cells[-1] @ kernel.out + gates[t, :, 8:])))
        x = np.where(done[t][:, None], 0.0, x)
    scanned = UNROLL("s5", memory, gates, kernel, done, 0.5)
    np.testing.assert_allclose(scanned.cell, cells, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scanned.hidden, hidden, rtol=1e-4, atol=1e-5)
    one = ADVANCE("s5", memory, gates[0], kernel, 0.5)
    np.testing.assert_allclose(one.cell, cells[0], rtol=1e-4, atol=1e-5)


def test_an_s5_starts_with_slow_and_fast_time_steps_and_slower_ones_with_a_bias():
    kernel = recurrence.StateSpace(jnp.zeros(96), jnp.zeros((64, 64)))
    keep = lambda bias: np.asarray(recurrence.s5_gates(jnp.zeros(64), kernel, bias)[0])
    rates = -2.0 * np.log(np.abs(keep(0.0)))
    assert 0.001 < rates.min() < 0.0015 and 0.07 < rates.max() < 0.1
    np.testing.assert_allclose(-2.0 * np.log(np.abs(keep(1.0))), rates / np.e, rtol=1e-2)


def test_gradients_of_an_lru_are_finite_whatever_the_bias():
    @jax.jit
    @jax.grad
    def gradient(rates, bias):
        kernel = recurrence.StateSpace(rates, jnp.zeros((8, 8)))
        keep, given = recurrence.lru_gates(jnp.ones(8), kernel, bias)
        return jnp.abs(keep).sum() + jnp.abs(given).sum()

    for bias in (-1e4, -90.0, 90.0, 1e4):
        assert np.isfinite(gradient(jnp.full(8, 0.1), bias)).all(), bias


def test_a_forget_bias_leaves_inputs_of_an_s5_as_large_as_they_are():
    """To a thousandth, and nothing is infinite or NaN where time steps vanish."""
    kernel = recurrence.StateSpace(jnp.zeros(96), jnp.zeros((64, 64)))
    of_input = lambda bias: np.asarray(recurrence.s5_gates(jnp.ones(64), kernel, bias)[1])
    np.testing.assert_allclose(of_input(16.0), of_input(12.0), rtol=1e-3)
    assert np.abs(of_input(16.0)).min() > 0.001 and np.isfinite(of_input(1e6)).all()


def test_an_lru_starts_in_its_ring_and_forgets_less_with_a_bias():
    kernel = recurrence.StateSpace(jnp.zeros(64), jnp.zeros((64, 64)))
    keep = lambda bias: np.asarray(recurrence.lru_gates(jnp.zeros(64), kernel, bias)[0])
    assert 0.9 < np.abs(keep(0.0)).min() < 0.91 and 0.99 < np.abs(keep(0.0)).max() < 0.999
    assert np.angle(keep(0.0)).min() >= 0 and np.angle(keep(0.0)).max() < np.pi / 10
    assert len(np.unique(np.angle(keep(0.0)).round(5))) == 32
    assert (np.abs(keep(2.0)) > np.abs(keep(0.0))).all()


@pytest.mark.parametrize("cell", CELLS)
def test_unrolling_is_advancing_with_a_zeroed_memory_after_every_end(cell):
    done, memory = random_sequence(1)
    memory, rng = memory_for(cell, memory), np.random.default_rng(1)
    gates = rng.normal(size=(12, 3, 8 * recurrence.BLOCKS[cell][0])).astype(np.float32)
    kernel = kernel_for(cell, rng)
    after = UNROLL(cell, memory, gates, kernel, done, 0.5)
    for t in range(12):
        memory = ADVANCE(cell, memory, gates[t], kernel, 0.5)
        for one, other in zip(jax.tree.leaves(after), jax.tree.leaves(memory), strict=True):
            np.testing.assert_allclose(one[t], other, rtol=1e-4, atol=1e-5)
        memory = jax.tree.map(lambda m, t=t: np.where(done[t][:, None], 0.0, m), memory)


@pytest.mark.parametrize("cell, axes", [("lstm", (3, 2)), ("gru", (3,))])
def test_gradients_are_the_automatic_ones(cell, axes):
    """The written-out gradients equal jax.grad's for the first memory, the inputs and the kernel.

    Episodes end in between.
    """
    rng, (blocks, _) = np.random.default_rng(3), recurrence.BLOCKS[cell]
    normal = lambda *shape: jnp.array(rng.normal(size=shape), jnp.float32)
    done = jnp.array(rng.random((7, 3)) < 0.2).at[4, 0].set(True).at[6, 1].set(True)
    gates, kernel = normal(7, *axes, 8 * blocks), normal(8, 8 * blocks)
    memory = memory_for(cell, parts.Memory(normal(*axes, 8), normal(*axes, 8)))
    weights = memory_for(cell, parts.Memory(normal(7, *axes, 8), normal(7, *axes, 8)))

    def plain(memory, gates, kernel):
        memories = []
        for t in range(7):
            memory = recurrence.advance(cell, memory, gates[t], kernel, 0.5)
            memories.append(memory)
            memory = parts.forget(memory, done[t])
        return jax.tree.map(lambda *x: jnp.stack(x), *memories)

    unroll = lambda memory, gates, kernel: recurrence.unroll(cell, memory, gates, kernel, done, 0.5)
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
    total = lambda x, kernel: (recurrence.product(x, kernel) * weights).sum()
    np.testing.assert_allclose(recurrence.product(x, kernel), x @ kernel, rtol=1e-4, atol=1e-5)
    of_x, of_kernel = jax.jit(jax.grad(total, (0, 1)))(jnp.array(x), jnp.array(kernel))
    np.testing.assert_allclose(of_x, weights @ kernel.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(of_kernel, np.einsum("tbk,tbn->kn", x, weights), 1e-4, 1e-5)
