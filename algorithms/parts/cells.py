"""What networks with a memory carry from step to step, and how it goes on: LSTM, GRU and minGRU.

A file makes `gates` from its inputs, for all steps at once; only the product with the memory of the
step before is left inside the scan over time (flax's cells have the inputs' products in there,
too), and minGRU, which has none, goes through a rollout by an associative scan.
"""

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from algorithms.parts.layers import Torso
from algorithms.parts.spaces import is_discrete, num_outputs


class Memory(NamedTuple):
    """What is remembered; zeros are a fresh memory. Leading axes (batch,), or more or none.

    Where networks see what was done last, it is here, too. A policy does not know what its action
    brought: who steps the environment puts the reward into a memory that has one
    (`envs.evaluation.rewarded`).
    """

    hidden: jax.Array  # (batch, memory_size), what heads see
    cell: jax.Array | None  # the same shape, LSTM only
    action: jax.Array | None = None  # the last one, (batch, num_outputs)
    reward: jax.Array | None = None  # for it, (batch,)


# Blocks of memory_size numbers: gates made from the inputs, and those made from the memory.
CELLS = {"lstm": (4, 4), "gru": (3, 3), "mingru": (2, 0)}


def fresh_memory(config: Any, space: Any, *axes: int) -> Memory:
    """Zeros with these leading axes: nothing is known, and nothing has been done.

    Args:
      config: `cell`, `memory_size` and `previous_inputs` are used.
      space: of actions.
    """
    zeros = lambda *shape: jnp.zeros((*axes, *shape))
    cell = zeros(config.memory_size) if config.cell == "lstm" else None
    previous = (zeros(num_outputs(space)), zeros()) if config.previous_inputs else (None, None)
    return Memory(zeros(config.memory_size), cell, *previous)


def did(config: Any, space: Any, memory: Memory, action: jax.Array, reward: jax.Array) -> Memory:
    """With `previous_inputs`, a memory that knows of an action, as the environment takes it, and of
    its reward (batch,)."""
    if not config.previous_inputs:
        return memory
    action = jax.nn.one_hot(action, space.n) if is_discrete(space) else action
    return memory._replace(action=action.reshape(*reward.shape, -1), reward=1.0 * reward)


def last_step(memory: Memory) -> tuple[jax.Array, ...]:
    """What networks see of the last step: the action, and the reward r as sign(r) log(1 + |r|), so
    that large ones stay in reach (symlog: Hafner et al. 2023, arXiv:2301.04104); or nothing."""
    if memory.reward is None:
        return ()
    return memory.action, jnp.sign(memory.reward) * jnp.log1p(jnp.abs(memory.reward))


def forget(memory: Memory, done: jax.Array) -> Memory:
    """Zeros where an episode ended; done is (batch,)."""
    return jax.tree.map(lambda x: jnp.where(_like(done, x), 0.0, x), memory)


def advance(cell: str, memory: Memory, gates: jax.Array, kernel: Any, forget_bias: Any) -> Memory:
    """The memory one step later, without an action or a reward.

    Args:
      cell: of CELLS. LSTM: Hochreiter and Schmidhuber 1997; GRU: Cho et al. 2014, arXiv:1406.1078;
        minGRU: Feng et al. 2024, arXiv:2410.01201.
      memory: (batch, memory_size).
      gates: made from the inputs, (batch, blocks * memory_size).
      kernel: makes the memory's gates, (memory_size, blocks * memory_size); None: minGRU has none.
      forget_bias: added to the gate that keeps the memory (Jozefowicz et al. 2015).
    """
    if cell == "mingru":
        keep, new = mingru_gates(gates, forget_bias)
        return Memory(keep * memory.hidden + new, None)
    recurrent = memory.hidden @ kernel
    if cell == "gru":  # h' = z h + (1 - z) n, as in flax
        (r, z, n), (hr, hz, hn) = jnp.split(gates, 3, -1), jnp.split(recurrent, 3, -1)
        keep = nn.sigmoid(z + hz + forget_bias)
        n = jnp.tanh(n + nn.sigmoid(r + hr) * hn)
        return Memory(keep * memory.hidden + (1.0 - keep) * n, None)
    i, f, g, o = jnp.split(gates + recurrent, 4, -1)
    kept = nn.sigmoid(f + forget_bias) * memory.cell + nn.sigmoid(i) * jnp.tanh(g)
    return Memory(nn.sigmoid(o) * jnp.tanh(kept), kept)


def unroll(
    cell: str, memory: Memory, gates: jax.Array, kernel: Any, done: jax.Array, forget_bias: Any
) -> Memory:
    """The memories after each step's input, before any end is heeded, (num_steps, batch, ...).

    Args:
      cell, kernel, forget_bias: as of `advance`.
      memory: from before the first step.
      gates: (num_steps, batch, blocks * memory_size).
      done: (num_steps, batch), with which steps an episode ended: what comes after begins anew.
    """
    if cell == "mingru":
        return Memory(mingru_scan(memory, gates, done, forget_bias), None)

    def step(memory, inputs):
        gates, done = inputs
        memory = advance(cell, memory, gates, kernel, forget_bias)
        return forget(memory, done), memory

    return jax.lax.scan(step, Memory(memory.hidden, memory.cell), (gates, done))[1]


class Recurrent(nn.Module):
    """Dense layers (and convolutions, for images), and a memory behind them."""

    config: Any  # its sizes of layers and their names are used, and those of the memory

    @nn.compact
    def __call__(self, memory, inputs, done):
        """Memories after each of the inputs, a tuple of arrays (num_steps, batch, ...), of which
        the first may be images; the rest is as of `unroll`."""
        c, (from_inputs, from_memory) = self.config, CELLS[self.config.cell]
        flat = [x.reshape(-1, *x.shape[2:]) for x in inputs]
        x = Torso(c.hidden_sizes, c.activation, c.conv_layers)(*flat).reshape(*done.shape, -1)
        gates = nn.Dense(from_inputs * c.memory_size, name="gates")(x)
        zeros, shape = nn.initializers.zeros, (c.memory_size, from_memory * c.memory_size)
        kernel = self.param("memory", zeros, shape) if from_memory else None
        return unroll(c.cell, memory, gates, kernel, done, c.forget_bias)


def one_step(network: nn.Module, params: Any, memory: Memory, inputs: Any, *more: Any) -> Any:
    """What a network of sequences makes of inputs (batch, ...), memory first; no episode ends."""
    done = jnp.zeros(len(memory.hidden), bool)
    sequences = jax.tree.map(lambda x: x[None], (inputs, done, *more))
    return jax.tree.map(lambda x: x[0], network.apply(params, memory, *sequences))


def mingru_gates(gates: jax.Array, forget_bias: Any) -> tuple[jax.Array, jax.Array]:
    """h_t = keep h_t-1 + new: 1 - z_t, and z_t times the candidate (Feng et al. 2024, 3.1)."""
    z, candidate = jnp.split(gates, 2, -1)
    z = nn.sigmoid(z - forget_bias)
    return 1.0 - z, z * candidate


def mingru_scan(memory: Memory, gates: jax.Array, done: jax.Array, forget_bias: Any) -> jax.Array:
    """All steps of a minGRU at once, in logarithmically many passes: (num_steps, batch, size)."""
    keep, new = mingru_gates(gates, forget_bias)
    new = new.at[0].add(keep[0] * memory.hidden)
    # After the end of an episode nothing is kept: exactly zero, however the passes group the steps.
    keep = keep.at[1:].multiply(~_like(done[:-1], keep))
    then = lambda first, second: (first[0] * second[0], first[1] * second[0] + second[1])
    return jax.lax.associative_scan(then, (keep, new))[1]


def _like(done: jax.Array, x: jax.Array) -> jax.Array:
    """Flags (batch,) with as many axes as x (batch, ...)."""
    return done.reshape(done.shape + (1,) * (x.ndim - done.ndim))
