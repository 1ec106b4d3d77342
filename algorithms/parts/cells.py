"""What networks carry from step to step, and a network that does; recurrence.py has the cells."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from algorithms.parts.layers import Torso
from algorithms.parts.recurrence import CELLS, Memory, product, unroll
from algorithms.parts.spaces import is_discrete, num_outputs
from envs import shaping


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


def did(
    config: Any, space: Any, memory: Memory, action: jax.Array, reward: jax.Array, info: Any = None
) -> Memory:
    """With `previous_inputs`, a memory that knows of an action, as the environment takes it, and of
    its reward (batch,), without what `info` says that shaping added: an evaluation has none."""
    if not config.previous_inputs:
        return memory
    own = reward - (info or {}).get(shaping.NAME, 0.0)
    action = jax.nn.one_hot(action, space.n) if is_discrete(space) else action
    return memory._replace(action=action.reshape(*own.shape, -1), reward=1.0 * own)


def last_step(memory: Memory) -> tuple[jax.Array, ...]:
    """What networks see of the last step: the action, and the reward r as sign(r) log(1 + |r|), so
    that large ones stay in reach (symlog: Hafner et al. 2023, arXiv:2301.04104); or nothing."""
    if memory.reward is None:
        return ()
    return memory.action, jnp.sign(memory.reward) * jnp.log1p(jnp.abs(memory.reward))


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
        gates = nn.Dense(from_inputs * c.memory_size, name="gates", dot_general=product)(x)
        zeros, shape = nn.initializers.zeros, (c.memory_size, from_memory * c.memory_size)
        kernel = self.param("memory", zeros, shape) if from_memory else None
        return unroll(c.cell, memory, gates, kernel, done, c.forget_bias)


def one_step(network: nn.Module, params: Any, memory: Memory, inputs: Any, *more: Any) -> Any:
    """What a network of sequences makes of inputs (batch, ...), memory first; no episode ends."""
    done = jnp.zeros(len(memory.hidden), bool)
    sequences = jax.tree.map(lambda x: x[None], (inputs, done, *more))
    return jax.tree.map(lambda x: x[0], network.apply(params, memory, *sequences))
