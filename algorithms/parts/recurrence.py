"""Memories from step to step, and their gradients: LSTM, GRU, minGRU, minLSTM, LRU and S5.

A file computes `gates` from its inputs, for all steps at once. Only the product with the previous
memory stays inside the scan over time; flax's cells also have the inputs' products there. The other
cells have no such product: their memory is a linear recurrence, which an associative scan computes
for a rollout in logarithmically many passes. The gradients of LSTM and GRU are written by hand, and
store less of every step than automatic ones.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from algorithms.parts.layers import orthogonal
from envs.loops import scan


class Memory(NamedTuple):
    """A memory; zeros are a fresh one. Leading axes are (batch,), or more or none.

    With `previous_inputs` it also holds the last action and its reward. A policy does not know the
    reward of its action: `envs.evaluation.rewarded` puts it into the memory after the step.
    """

    hidden: jax.Array  # (batch, memory_size), the input of the heads
    cell: Any  # LSTM, LRU and S5: of that shape; several layers: a Memory of each; gtrxl: a Window
    action: jax.Array | None = None  # the last action, (batch, size of the space)
    reward: jax.Array | None = None  # for it, (batch,)


# Blocks of memory_size numbers in the gates from the inputs, and in those from the memory.
BLOCKS = {
    "lstm": (4, 4),
    "gru": (3, 3),
    "mingru": (2, 0),
    "minlstm": (3, 0),
    "lru": (2, 1),
    "s5": (2, 1),
}
TWO_PARTS = ("lstm", "lru", "s5")  # those whose memory has a `cell`
# Moduli of an LRU's eigenvalues at the start of training, at a forget bias of 0, and their phases.
RING, MAX_PHASE = (0.9, 0.999), math.pi / 10
TIME_STEPS = (0.001, 0.1)  # of an S5, at the start of training and a forget bias of 0
GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


class StateSpace(NamedTuple):
    """The parameters of an LRU or an S5 beside its gates."""

    rates: jax.Array  # (numbers,), how far eigenvalues (S5: time steps, too) moved in training
    out: jax.Array  # (memory_size, memory_size), from real and imaginary parts to the output


def memory_kernel(module: nn.Module, cell: str, size: int) -> Any:
    """The parameters that `advance` and `unroll` take as `kernel`; None: there are none.

    A matrix is orthogonal at first, rates are 0. The size of an LRU or an S5 is even.
    """
    blocks = BLOCKS[cell][1]
    if not blocks:
        return None
    kernel = module.param("memory", orthogonal(1.0), (size, blocks * size))
    if cell not in STATE_SPACES:
        return kernel
    numbers = {"lru": 2, "s5": 3}[cell] * (size // 2)
    return StateSpace(rates=module.param("rates", nn.initializers.zeros, (numbers,)), out=kernel)


def forget(memory: Memory, done: jax.Array) -> Memory:
    """Zeros where an episode ended; done is (batch,)."""
    return jax.tree.map(lambda x: jnp.where(_like(done, x), 0.0, x), memory)


def advance(cell: str, memory: Memory, gates: jax.Array, kernel: Any, forget_bias: Any) -> Memory:
    """The memory one step later, without an action or a reward.

    Args:
      cell: one of BLOCKS. LSTM: Hochreiter and Schmidhuber 1997; GRU: Cho et al. 2014,
        arXiv:1406.1078; minGRU and minLSTM: Feng et al. 2024, arXiv:2410.01201; LRU: Orvieto et al.
        2023, arXiv:2303.06349; S5: Smith et al. 2023, arXiv:2208.04933.
      memory: (batch, memory_size).
      gates: from the inputs, (batch, blocks * memory_size).
      kernel: of `memory_kernel`. It makes the memory's gates, (memory_size, blocks * memory_size),
        or is a `StateSpace`. minGRU and minLSTM have none.
      forget_bias: added to the gate that keeps the memory (Jozefowicz et al. 2015).
    """
    if cell in MINIMAL:
        keep, new = MINIMAL[cell](gates, forget_bias)
        return Memory(keep * memory.hidden + new, None)
    if cell in STATE_SPACES:
        keep, new = STATE_SPACES[cell](gates, kernel, forget_bias)
        return output(keep * _complex(memory.cell) + new, gates, kernel)
    return STEPS[cell].forward(memory, gates, memory.hidden @ kernel, forget_bias)[0]


def unroll(
    cell: str, memory: Memory, gates: jax.Array, kernel: Any, done: jax.Array, forget_bias: Any
) -> Memory:
    """The memories after each step's input, (num_steps, batch, ...), not yet zeroed at ends.

    Args:
      cell, kernel, forget_bias: as in `advance`. The forget bias has no gradient.
      memory: from before the first step.
      gates: (num_steps, batch, blocks * memory_size).
      done: (num_steps, batch), last steps of episodes: the memory is zeroed after them.
    """
    if cell in MINIMAL:
        keep, new = MINIMAL[cell](gates, forget_bias)
        return Memory(linear_scan(memory.hidden, keep, new, done), None)
    if cell in STATE_SPACES:
        keep, new = STATE_SPACES[cell](gates, kernel, forget_bias)
        keep = jnp.broadcast_to(keep, new.shape)
        return output(linear_scan(_complex(memory.cell), keep, new, done), gates, kernel)
    return _unroll(cell, Memory(memory.hidden, memory.cell), gates, kernel, done, forget_bias)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _unroll(cell, *arrays):
    return _forward(cell, *arrays)[0]


def _forward(cell, memory, gates, kernel, done, forget_bias):
    """The memories, and the arrays that `_backward` needs."""

    def step(memory, inputs):
        gates, done = inputs
        after, kept = STEPS[cell].forward(memory, gates, memory.hidden @ kernel, forget_bias)
        return forget(after, done), (after, memory, kept)

    after, *kept = scan(step, memory, (gates, done))[1]
    return after, (*kept, done, kernel)


def _backward(cell, kept, given):
    """Gradients of the arguments of `_unroll`, given those of its result."""
    *kept, kernel = kept

    def step(later, inputs):
        (of_memory, of_kernel), (given, before, kept, done) = later, inputs
        of_after = jax.tree.map(jnp.add, forget(of_memory, done), given)
        of_memory, of_gates, of_recurrent = STEPS[cell].backward(of_after, before, kept)
        through = of_memory.hidden + of_recurrent @ kernel.T
        of_kernel += _of_kernel(before.hidden, of_recurrent)
        return (of_memory._replace(hidden=through), of_kernel), of_gates

    nothing = jax.tree.map(lambda x: jnp.zeros_like(x[0]), given), jnp.zeros_like(kernel)
    (of_memory, of_kernel), of_gates = scan(step, nothing, (given, *kept), reverse=True)
    return of_memory, of_gates, of_kernel, None, None


_unroll.defvjp(_forward, _backward)


class Step(NamedTuple):
    """A cell's step. The product with its kernel, computed outside, is `recurrent`."""

    # (memory, gates, recurrent, forget_bias) -> the memory after it, arrays for `backward`
    forward: Callable
    # (gradient of the memory after it, memory, arrays) -> of memory, gates and recurrent
    backward: Callable


def gru(memory, gates, recurrent, forget_bias):
    """h' = z h + (1 - z) n, with gates g of the inputs and u = recurrent, as in flax.

    n = tanh(g_n + r u_n), r = sigmoid(g_r + u_r), z = sigmoid(g_z + u_z + forget_bias).
    """
    size = memory.hidden.shape[-1]
    # One sigmoid for both gates: two take twice the time in XLA's CPU code.
    both = gates[..., : 2 * size] + recurrent[..., : 2 * size]
    bias = jnp.concatenate([jnp.zeros(size), jnp.full(size, forget_bias)])
    r, z = jnp.split(nn.sigmoid(both + bias), 2, -1)
    hn = recurrent[..., 2 * size :]
    n = jnp.tanh(gates[..., 2 * size :] + r * hn)
    return Memory(z * memory.hidden + (1.0 - z) * n, None), (r, z, n, hn)


def gru_backward(of_after, memory, kept):
    r, z, n, hn = kept
    of_z = of_after.hidden * (memory.hidden - n) * z * (1.0 - z)
    of_n = of_after.hidden * (1.0 - z) * (1.0 - n * n)
    of_r = of_n * hn * r * (1.0 - r)
    of_gates = jnp.concatenate([of_r, of_z, of_n], -1)
    of_recurrent = jnp.concatenate([of_r, of_z, of_n * r], -1)
    return Memory(of_after.hidden * z, None), of_gates, of_recurrent


def lstm(memory, gates, recurrent, forget_bias):
    """c' = sigmoid(f + forget_bias) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c').

    i, f, g, o are the four blocks of gates + recurrent.
    """
    i, f, g, o = jnp.split(gates + recurrent, 4, -1)
    i, f, g, o = nn.sigmoid(i), nn.sigmoid(f + forget_bias), jnp.tanh(g), nn.sigmoid(o)
    cell = f * memory.cell + i * g
    seen = jnp.tanh(cell)
    return Memory(o * seen, cell), (i, f, g, o, seen)


def lstm_backward(of_after, memory, kept):
    i, f, g, o, seen = kept
    of_cell = of_after.cell + of_after.hidden * o * (1.0 - seen * seen)
    of_i, of_f = of_cell * g * i * (1.0 - i), of_cell * memory.cell * f * (1.0 - f)
    of_g, of_o = of_cell * i * (1.0 - g * g), of_after.hidden * seen * o * (1.0 - o)
    of_gates = jnp.concatenate([of_i, of_f, of_g, of_o], -1)
    return Memory(jnp.zeros_like(seen), of_cell * f), of_gates, of_gates


STEPS = {"gru": Step(gru, gru_backward), "lstm": Step(lstm, lstm_backward)}


def product(x: jax.Array, kernel: jax.Array, *_: Any, **__: Any) -> jax.Array:
    """A dense layer's product for gates: `nn.Dense(dot_general=product)`.

    The kernel's gradient needs no transposed copy of the gates' gradient. The copy costs XLA's CPU
    code a fifth of a gradient step after a scan.
    """
    return _product(x, kernel)


@jax.custom_vjp
def _product(x, kernel):
    return x @ kernel


_product.defvjp(
    lambda x, kernel: (x @ kernel, (x, kernel)),
    lambda kept, given: (given @ kept[1].T, _of_kernel(kept[0], given)),
)


def _of_kernel(x, given):
    """The gradient (k, n) of the kernel in x (..., k) @ kernel, given the product's (..., n)."""
    rows = lambda x: x.reshape(-1, x.shape[-1])
    return jax.lax.dot_general(rows(x), rows(given), (((0,), (0,)), ((), ())))


def mingru_gates(gates: jax.Array, forget_bias: Any) -> tuple[jax.Array, jax.Array]:
    """(1 - z_t, z_t c_t) of h_t = (1 - z_t) h_{t-1} + z_t c_t, with the candidate c_t.

    z_t = sigmoid(gate - forget_bias): Feng et al. 2024, section 3.1.
    """
    z, candidate = jnp.split(gates, 2, -1)
    z = nn.sigmoid(z - forget_bias)
    return 1.0 - z, z * candidate


def minlstm_gates(gates: jax.Array, forget_bias: Any) -> tuple[jax.Array, jax.Array]:
    """(f', i' c_t) of h_t = f' h_{t-1} + i' c_t with f' = f / (f + i) and i' = i / (f + i).

    f = sigmoid(gate + forget_bias), i = sigmoid(gate - forget_bias): Feng et al. 2024, section 3.2.
    With gates of 0, f' is sigmoid(forget_bias), as in the other cells; a bias of f alone would
    leave it below 2 / 3. The order of the gates is i, f, c.
    """
    i, f, candidate = jnp.split(gates, 3, -1)
    # f / (f + i) is a sigmoid of the difference of the logarithms, which cannot be 0 / 0.
    keep = nn.sigmoid(nn.log_sigmoid(f + forget_bias) - nn.log_sigmoid(i - forget_bias))
    return keep, (1.0 - keep) * candidate


MINIMAL = {"mingru": mingru_gates, "minlstm": minlstm_gates}


def lru_gates(
    gates: jax.Array, kernel: StateSpace, forget_bias: Any
) -> tuple[jax.Array, jax.Array]:
    """(a, sqrt(1 - |a|**2) u_t) of x_t = a x_{t-1} + sqrt(1 - |a|**2) u_t, complex.

    a = exp(-exp(nu - forget_bias) + i theta) for half as many numbers as memory_size. At first
    |a|**2 is spread evenly over the ring of Orvieto et al. 2023, appendix A, and theta over [0,
    MAX_PHASE], in the order of a golden section; the paper draws both at random. The input's factor
    follows |a|; the paper only begins there and learns it.
    """
    half = len(kernel.rates) // 2
    place = (jnp.arange(half) + 0.5) / half
    squared = RING[0] ** 2 + (RING[1] ** 2 - RING[0] ** 2) * place
    nu = jnp.log(-0.5 * jnp.log(squared)) + kernel.rates[:half] - forget_bias
    nu = jnp.clip(nu, -60.0, 60.0)  # of others, a gradient below is 0 * inf
    theta = MAX_PHASE * jnp.mod(jnp.arange(half) * GOLDEN, 1.0)
    theta += kernel.rates[half:]
    modulus = jnp.exp(-jnp.exp(nu))
    keep = jax.lax.complex(modulus * jnp.cos(theta), modulus * jnp.sin(theta))
    # 1 - |a|**2, exact also where |a| is almost 1.
    return keep, jnp.sqrt(-jnp.expm1(-2.0 * jnp.exp(nu))) * _complex(gates[..., : 2 * half])


def s5_gates(gates: jax.Array, kernel: StateSpace, forget_bias: Any) -> tuple[jax.Array, jax.Array]:
    """(a, b u_t) of x_t = a x_{t-1} + b u_t, a = exp(lambda Delta), b = (a - 1) / lambda e**bias.

    Without a bias this is x' = lambda x + u, held for a time Delta. Eigenvalues lambda start as
    those of the HiPPO-N matrix (Smith et al. 2023, section 3.4); Deltas spread over TIME_STEPS, in
    the order of a golden section, where the paper draws them. The forget bias divides all Deltas by
    e**bias, and b makes up for it: an input counts as much as without a bias. For half as many
    complex numbers as memory_size.
    """
    half = kernel.out.shape[0] // 2
    moved, of_real, of_imaginary = jnp.split(kernel.rates, 3)
    place = jnp.mod((0.5 + jnp.arange(half)) * GOLDEN, 1.0)
    first, last = (math.log(x) for x in TIME_STEPS)
    bias = jnp.clip(forget_bias, -60.0, 60.0)  # of others, a product below is 0 * inf
    time_step = jnp.exp(first + (last - first) * place + moved - bias)
    shrinks, turns = -0.5 * jnp.exp(of_real), _hippo_frequencies(half) + of_imaginary
    decay, turn = shrinks * time_step, turns * time_step
    keep = jnp.exp(decay) * jax.lax.complex(jnp.cos(turn), jnp.sin(turn))
    # a - 1, exact also where a is almost 1.
    change = jnp.expm1(decay) * jnp.cos(turn) - 2.0 * jnp.square(jnp.sin(0.5 * turn))
    change = jax.lax.complex(change, keep.imag)
    size = change * jnp.exp(bias) / jax.lax.complex(shrinks, turns)
    return keep, size * _complex(gates[..., : 2 * half])


@functools.cache
def _hippo_frequencies(half: int) -> np.ndarray:
    """The positive imaginary parts, (half,), of the eigenvalues of HiPPO-N with 2 half rows.

    All real parts are -1/2. Gu et al. 2022, arXiv:2206.11893, section 4.
    """
    odd = np.sqrt(np.arange(2 * half) + 0.5)
    skew = np.tril(np.outer(odd, odd), -1)
    return np.linalg.eigvalsh(1j * (skew - skew.T))[half:].astype(np.float32)


STATE_SPACES = {"lru": lru_gates, "s5": s5_gates}


def output(x: jax.Array, gates: jax.Array, kernel: StateSpace) -> Memory:
    """h = gelu(C x + d) with the real matrix C on real and imaginary parts, d the last gates."""
    cell = jnp.concatenate([x.real, x.imag], -1)
    return Memory(nn.gelu(cell @ kernel.out + gates[..., cell.shape[-1] :]), cell)


def _complex(parts: jax.Array | None) -> jax.Array:
    """Numbers from their real parts and their imaginary parts, side by side."""
    assert parts is not None, "fresh_memory gives a state space its cell"
    return jax.lax.complex(*jnp.split(parts, 2, -1))


def linear_scan(first: jax.Array, keep: jax.Array, new: jax.Array, done: jax.Array) -> jax.Array:
    """h_t = keep_t h_{t-1} + new_t for all steps, in logarithmically many passes.

    Args:
      first: from before the first step, (batch, size).
      keep, new: (num_steps, batch, size).
      done: (num_steps, batch), last steps of episodes: the next step begins at zero.
    """
    new = new.at[0].add(keep[0] * first)
    # Exactly zero after an episode's end, however the passes group the steps.
    keep = keep.at[1:].multiply(~_like(done[:-1], keep))
    then = lambda first, second: (first[0] * second[0], first[1] * second[0] + second[1])
    return jax.lax.associative_scan(then, (keep, new))[1]


def _like(done: jax.Array, x: jax.Array) -> jax.Array:
    """Flags (batch,) with as many axes as x (batch, ...)."""
    return done.reshape(done.shape + (1,) * (x.ndim - done.ndim))
