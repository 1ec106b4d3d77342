"""Fresh memories, previous inputs and a recurrent network; recurrence.py has the cells."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from algorithms.parts.checks import check_choices
from algorithms.parts.layers import Torso
from algorithms.parts.recurrence import (
    CELLS,
    TWO_PARTS,
    Memory,
    memory_kernel,
    product,
    unroll,
)
from algorithms.parts.spaces import is_discrete, num_outputs
from envs import shaping


def check_cell(config: Any, *others: str) -> None:
    """Refuses a `cell` that is neither one of CELLS nor of others, and an LRU of odd size."""
    check_choices(config, cell=(*others, *CELLS))
    size = config.memory_size
    if config.cell == "lru" and size % 2:
        raise ValueError(f"memory_size={size}: cell='lru' needs an even number, as {size + 1}")


def fresh_memory(config: Any, space: Any, *axes: int) -> Memory:
    """A memory of zeros with these leading axes, as at the start of an episode.

    Args:
      config: its `cell`, `memory_size` and `previous_inputs` are used.
      space: the action space.
    """
    zeros = lambda *shape: jnp.zeros((*axes, *shape))
    cell = zeros(config.memory_size) if config.cell in TWO_PARTS else None
    previous = (zeros(num_outputs(space)), zeros()) if config.previous_inputs else (None, None)
    return Memory(zeros(config.memory_size), cell, *previous)


def with_last_step(
    config: Any, space: Any, memory: Memory, action: jax.Array, reward: jax.Array, info: Any = None
) -> Memory:
    """The memory with the last action and its reward (batch,), if `previous_inputs` is on.

    The action is as the environment takes it. The shaped part of the reward, from `info`, is
    subtracted, because evaluations have no shaping.
    """
    if not config.previous_inputs:
        return memory
    own = reward - (info or {}).get(shaping.NAME, 0.0)
    action = jax.nn.one_hot(action, space.n) if is_discrete(space) else action
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
        c, from_inputs = self.config, CELLS[self.config.cell][0]
        flat = [x.reshape(-1, *x.shape[2:]) for x in inputs]
        x = Torso(c.hidden_sizes, c.activation, c.conv_layers)(*flat).reshape(*done.shape, -1)
        gates = nn.Dense(from_inputs * c.memory_size, name="gates", dot_general=product)(x)
        kernel = memory_kernel(self, c.cell, c.memory_size)
        return unroll(c.cell, memory, gates, kernel, done, c.forget_bias)


def one_step(network: nn.Module, params: Any, memory: Memory, inputs: Any, *more: Any) -> Any:
    """Applies a network of sequences to one step of inputs (batch, ...) within an episode."""
    done = jnp.zeros(len(memory.hidden), bool)
    sequences = jax.tree.map(lambda x: x[None], (inputs, done, *more))
    return jax.tree.map(lambda x: x[0], network.apply(params, memory, *sequences))
