"""Memories of networks: layers of cells, fresh memories, and the last action and its reward.

recurrence.py and attention.py have the cells.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from algorithms.parts.attention import HEADS, Transformer, fresh_window
from algorithms.parts.checks import check_choices, check_sizes
from algorithms.parts.layers import LayerNorm, Torso, orthogonal
from algorithms.parts.recurrence import (
    BLOCKS,
    STATE_SPACES,
    TWO_PARTS,
    Memory,
    advance,
    memory_kernel,
    product,
    unroll,
)
from algorithms.parts.spaces import ActionSpace
from envs import shaping

CELLS = (*BLOCKS, "gtrxl")
Gates = functools.partial(nn.Dense, kernel_init=orthogonal(1.0), dot_general=product)


def check_cell(config: Any, *others: str) -> None:
    """Refuses a `cell` that is neither one of CELLS nor of others, and sizes it cannot have."""
    check_choices(config, cell=(*others, *CELLS))
    check_sizes(config, "memory_size", "layers", "window")
    size, cell = config.memory_size, config.cell
    if cell in STATE_SPACES and size % 2:
        raise ValueError(f"memory_size={size}: cell='{cell}' needs an even number, as {size + 1}")
    if cell == "gtrxl" and size % HEADS:
        near = f"a multiple of its {HEADS} heads, as {size + -size % HEADS}"
        raise ValueError(f"memory_size={size}: cell='gtrxl' needs {near}")
    if config.layers > 1 and cell in others:
        raise ValueError(f"layers={config.layers}: cell='{cell}' has none; layers=1 would do")


class Cells(nn.Module):
    """The memory of a network: a stack of config.layers cells.

    The first layer reads the inputs. Each further layer gives h + cell(norm(h)), with h the output
    of the layer below (gtrxl: `attention.Transformer`). `flax.linen.share_scope(network, cells)`
    gives a network their parameters under its own name.
    """

    config: Any  # its `cell`, `memory_size`, `layers`, `window` and `forget_bias` are used

    def setup(self):
        c = self.config
        if c.cell == "gtrxl":
            self.embed = Gates(c.memory_size, name="gates")
            self.attention = Transformer(c.memory_size, c.layers, c.window, name="memory")
            return
        self.gates = Gates(BLOCKS[c.cell][0] * c.memory_size)
        self.kernel = memory_kernel(self, c.cell, c.memory_size)
        self.above = [Layer(c, name=f"layer_{i}") for i in range(1, c.layers)]

    def step(self, memory: Memory, x: jax.Array) -> Memory:
        """The memory after inputs x (batch, ...), without an action or a reward."""
        if self.config.cell == "gtrxl":
            return self.attention.step(memory, self.embed(x))
        return self.through(memory, self.gates(x), advance)

    def __call__(self, memory: Memory, x: jax.Array, done: jax.Array) -> Memory:
        """The memories after each of the inputs x (num_steps, batch, ...), as in `unroll`.

        One step alone is `step`.
        """
        if len(x) == 1:
            return jax.tree.map(lambda x: x[None], self.step(memory, x[0]))
        if self.config.cell == "gtrxl":
            return self.attention(memory, self.embed(x), done)
        return self.through(memory, self.gates(x), unroll, done)

    def through(self, memory, gates, run, *done):
        c = self.config
        if c.layers == 1:
            return run(c.cell, memory, gates, self.kernel, *done, c.forget_bias)
        below = run(c.cell, memory.cell[0], gates, self.kernel, *done, c.forget_bias)
        memories, hidden = [below], below.hidden
        for layer, before in zip(self.above, memory.cell[1:], strict=True):
            memories.append(layer(before, hidden, run, *done))
            hidden += memories[-1].hidden
        return Memory(hidden, tuple(memories))


class Layer(nn.Module):
    """A cell on the normalised output of the one below."""

    config: Any

    @nn.compact
    def __call__(self, memory, x, run, *done):
        c = self.config
        numbers = BLOCKS[c.cell][0] * c.memory_size
        gates = Gates(numbers, name="gates")(LayerNorm()(x))
        kernel = memory_kernel(self, c.cell, c.memory_size)
        return run(c.cell, memory, gates, kernel, *done, c.forget_bias)


def fresh_memory(config: Any, space: ActionSpace, *axes: int) -> Memory:
    """A memory of zeros with these leading axes, as at the start of an episode.

    Args:
      config: its `cell`, `memory_size`, `layers`, `window` and `previous_inputs` are used.
      space: that of the actions.
    """
    zeros = lambda *shape: jnp.zeros((*axes, *shape))
    hidden = lambda: zeros(config.memory_size)
    one = lambda: Memory(hidden(), hidden() if config.cell in TWO_PARTS else None)
    cell = one().cell
    if config.cell == "gtrxl":
        cell = fresh_window(config, zeros)
    elif config.layers > 1:
        cell = tuple(one() for _ in range(config.layers))
    previous = (zeros(space.size), zeros()) if config.previous_inputs else (None, None)
    return Memory(hidden(), cell, *previous)


def with_last_step(
    config: Any,
    space: ActionSpace,
    memory: Memory,
    action: jax.Array,
    reward: jax.Array,
    info: Any = None,
) -> Memory:
    """The memory with the last action and its reward (batch,), if `previous_inputs` is on.

    The action is as the environment takes it. The shaped part of the reward, from `info`, is
    subtracted, because evaluations have no shaping.
    """
    if not config.previous_inputs:
        return memory
    own = reward - (info or {}).get(shaping.NAME, 0.0)
    action = jax.nn.one_hot(action, space.size) if space.discrete else action
    return memory._replace(action=action.reshape(*own.shape, -1), reward=1.0 * own)


def last_step(memory: Memory) -> tuple[jax.Array, ...]:
    """A memory's last action and its reward r as sign(r) log(1 + |r|), if it has `previous_inputs`.

    The logarithm keeps large rewards in reach (symlog: Hafner et al. 2023, arXiv:2301.04104).
    """
    if memory.action is None or memory.reward is None:
        return ()
    return memory.action, jnp.sign(memory.reward) * jnp.log1p(jnp.abs(memory.reward))


class Recurrent(nn.Module):
    """Dense layers (after convolutions, for images), then a memory."""

    config: Any  # its fields of layers and of the memory are used

    @nn.compact
    def __call__(self, memory, inputs, done):
        """Inputs (num_steps, batch, ...), a tuple of arrays, to the memories after each step.

        The first array may hold images. `memory` and `done` are as in `unroll`.
        """
        c, cells = self.config, Cells(self.config)
        nn.share_scope(self, cells)
        flat = [x.reshape(-1, *x.shape[2:]) for x in inputs]
        x = Torso(c.hidden_sizes, c.activation, c.conv_layers)(*flat).reshape(*done.shape, -1)
        return cells(memory, x, done)


def one_step(network: nn.Module, params: Any, memory: Memory, inputs: Any, *more: Any) -> Any:
    """Applies a network of sequences to one step of inputs (batch, ...) within an episode."""
    done = jnp.zeros(len(memory.hidden), bool)
    sequences = jax.tree.map(lambda x: x[None], (inputs, done, *more))
    return jax.tree.map(lambda x: x[0], network.apply(params, memory, *sequences))
