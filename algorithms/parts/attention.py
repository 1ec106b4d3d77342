"""A memory of the last steps themselves: the gated transformer, GTrXL.

Paper: Parisotto et al. 2020, "Stabilizing transformers for reinforcement learning",
https://arxiv.org/abs/1910.06764; positions as in Transformer-XL (Dai et al. 2019,
arXiv:1901.02860).

Every layer sees the inputs that it had in the last `window` steps of the episode. They are kept
as they were when acting: no gradient passes into steps before a rollout.
"""

import functools
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from algorithms.parts import products
from algorithms.parts.layers import orthogonal
from algorithms.parts.recurrence import Memory, linear_scan

HEADS = 4
Dense = functools.partial(products.Dense, kernel_init=orthogonal(1.0))
GATE_BIAS = 2.0  # at the start of training a layer passes most of its input on


class Window(NamedTuple):
    """The `cell` of a gtrxl's Memory; zeros are a fresh one."""

    inputs: jax.Array  # (batch, layers, window, size), normalised, the oldest first
    age: jax.Array  # (batch,), float: steps of the episode in it


class Transformer(nn.Module):
    """Layers of attention and of dense layers, each behind a gate."""

    size: int
    layers: int
    window: int

    def setup(self):
        self.blocks = [Block(self.size) for _ in range(self.layers)]

    def step(self, memory: Memory, x: jax.Array) -> Memory:
        """The memory after an input x (*axes, size)."""
        axes, x = x.shape[:-1], x.reshape(-1, self.size)
        before, age = jax.tree.map(lambda y: y.reshape(-1, *y.shape[len(axes) :]), memory.cell)
        inputs = []
        for i, block in enumerate(self.blocks):
            seen = jnp.concatenate([before[:, i], normalized(x)[:, None]], 1)
            inputs.append(seen[:, 1:])
            x = block.step(x, seen, valid(age, self.window))
        window = Window(jnp.stack(inputs, 1), jnp.minimum(age + 1.0, self.window))
        return jax.tree.map(lambda y: y.reshape(*axes, *y.shape[1:]), Memory(x, window))

    def __call__(self, memory: Memory, x: jax.Array, done: jax.Array) -> Memory:
        """The memories after each of the inputs x (num_steps, *axes, size), not yet zeroed at ends.

        `memory` is from before the first step, (*axes, ...). `done` (num_steps, ...), of the first
        axes, marks the last steps of episodes.
        """
        axes, steps = x.shape[1:-1], len(x)
        done = done.reshape(*done.shape, *[1] * (x.ndim - 1 - done.ndim))
        done = jnp.broadcast_to(done, x.shape[:-1]).reshape(steps, -1)
        x = x.reshape(steps, -1, self.size)
        before, age = jax.tree.map(lambda y: y.reshape(-1, *y.shape[len(axes) :]), memory.cell)
        visible = self.visible(age, done)
        ones = jnp.ones((*done.shape, 1))
        ages = jnp.minimum(linear_scan(age[:, None], ones, ones, done)[..., 0], self.window)
        slots = 1 + jnp.arange(steps)[:, None] + jnp.arange(self.window)
        kept = valid(ages, self.window)[..., None]  # (num_steps, batch, window, 1)
        inputs = []
        for i, block in enumerate(self.blocks):
            seen = jnp.concatenate([before[:, i].swapaxes(0, 1), normalized(x)])
            inputs.append(jnp.where(kept, seen[slots].swapaxes(1, 2), 0.0))
            x = block(x, seen, visible)
        memories = Memory(x, Window(jnp.stack(inputs, 2), ages))
        return jax.tree.map(lambda y: y.reshape(steps, *axes, *y.shape[2:]), memories)

    def visible(self, age, done):
        """Where step t sees input j of the window and the steps, (batch, num_steps, window +
        num_steps): j is one of the last `window` or t itself, and of the same episode."""
        steps = len(done)
        episode = jnp.cumsum(done, 0) - done
        first = jnp.where(valid(age, self.window), 0, -1).T  # -1: of no episode
        of_inputs = jnp.concatenate([first, episode]).T
        back = self.window + jnp.arange(steps)[:, None] - jnp.arange(self.window + steps)
        near = (back >= 0) & (back <= self.window)
        return near & (of_inputs[:, None] == episode.T[..., None])


class Block(nn.Module):
    """One layer: x to g(y, relu(mlp(norm(y)))), y = g(x, relu(attention(norm(x))))."""

    size: int

    def setup(self):
        zeros, size = nn.initializers.zeros, self.size
        matrix = lambda name: self.param(name, orthogonal(1.0), (size, size))
        self.query, self.key, self.value = matrix("query"), matrix("key"), matrix("value")
        self.position = matrix("position")
        # Added to queries: u for what a step holds, v for how far back it is.
        self.of_content = self.param("of_content", zeros, (self.size,))
        self.of_position = self.param("of_position", zeros, (self.size,))
        self.attended, self.wide = Dense(self.size), Dense(2 * self.size)
        self.narrow = Dense(self.size)
        self.first_gate, self.second_gate = Gate(), Gate()

    def step(self, x, seen, valid):
        """Outputs (batch, size) of x, from inputs seen (batch, window + 1, size), the own one last.

        `valid` (batch, window). Keys and values of the window are not computed: a query is taken to
        the inputs instead, and the weighted mean of inputs to a value.
        """
        content, position = self.queries(seen[:, -1])
        content = jnp.einsum("bhd,ehd->bhe", content, heads(self.key))
        scores = jnp.einsum("bhe,bke->bhk", content, seen)
        scores += jnp.einsum("bhd,khd->bhk", position, self.positions(seen.shape[1]))
        valid = jnp.concatenate([valid, jnp.ones((len(valid), 1), bool)], 1)
        weights = self.weights(scores, valid[:, None])
        means = jnp.einsum("bhk,bke->bhe", weights, seen)
        return self.rest(x, jnp.einsum("bhe,ehd->bhd", means, heads(self.value)))

    def __call__(self, x, seen, visible):
        """Outputs (num_steps, batch, size) of x, from inputs seen (window + num_steps, batch,
        size) where `visible`: see `Transformer.visible`."""
        window = len(seen) - len(x)
        content, position = self.queries(seen[window:])
        keys, values = heads(seen @ self.key), heads(seen @ self.value)
        scores = jnp.einsum("tbhd,jbhd->bhtj", content, keys)
        far = jnp.einsum("tbhd,khd->bhtk", position, self.positions(window + 1))
        weights = self.weights(scores + shifted(far), visible[:, None])
        return self.rest(x, jnp.einsum("bhtj,jbhd->tbhd", weights, values))

    def queries(self, x):
        """Queries of contents and of positions, (..., heads, size of a head)."""
        query = x @ self.query
        return heads(query + self.of_content), heads(query + self.of_position)

    def positions(self, number):
        """Keys (number, heads, size of a head) for distances number - 1, ..., 0."""
        return heads(jnp.asarray(waves(number, self.size)) @ self.position)

    def weights(self, scores, visible):
        scores *= math.sqrt(HEADS / self.size)
        return nn.softmax(jnp.where(visible, scores, -1e9))

    def rest(self, x, found):
        """The output, from what the heads found (..., heads, size of a head)."""
        x = self.first_gate(x, nn.relu(self.attended(found.reshape(x.shape))))
        wide = nn.relu(self.wide(normalized(x)))
        return self.second_gate(x, nn.relu(self.narrow(wide)))


class Gate(nn.Module):
    """(1 - z) x + z h: Parisotto et al. 2020, equations 6 to 8, a GRU whose memory is x.

    z = sigmoid(W_z y + U_z x - GATE_BIAS), h = tanh(W_g y + U_g (r x)), r = sigmoid(W_r y + U_r x).
    """

    @nn.compact
    def __call__(self, x, y):
        size = x.shape[-1]
        r, z, h = jnp.split(Dense(3 * size, name="new")(y), 3, -1)
        from_x = Dense(2 * size, use_bias=False, name="old")(x)
        r, z = nn.sigmoid(r + from_x[..., :size]), nn.sigmoid(z + from_x[..., size:] - GATE_BIAS)
        h = jnp.tanh(h + Dense(size, use_bias=False, name="reset")(r * x))
        return (1.0 - z) * x + z * h


def normalized(x):
    """x (..., size) with mean 0 and variance 1. The next matrix makes learned scales redundant."""
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)


def heads(x):
    """(..., size) to (..., HEADS, size / HEADS)."""
    return x.reshape(*x.shape[:-1], HEADS, -1)


def valid(age, window):
    """Which places of a window hold a step of the episode, (..., window), from its age (...)."""
    return window - jnp.arange(window) <= age[..., None]


def shifted(far):
    """Scores by distance (..., t, k) to scores by input (..., t, j), k = j - t.

    Distances are window, ..., 0, and inputs window + num_steps; entries without a distance have no
    meaning.
    """
    *axes, steps, number = far.shape
    rows = jnp.pad(far, [(0, 0)] * (far.ndim - 1) + [(0, steps)])
    inputs = number - 1 + steps
    # One row is one longer than the inputs, so that each starts one place later than the last.
    return rows.reshape(*axes, -1)[..., : steps * inputs].reshape(*axes, steps, inputs)


def waves(number: int, size: int) -> np.ndarray:
    """Sines and cosines of the distances number - 1, ..., 0, (number, size)."""
    rates = 10_000.0 ** (-np.arange(0, size, 2) / size)
    angles = np.arange(number)[::-1, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], -1)[:, :size].astype(np.float32)


def fresh_window(config: Any, zeros: Any) -> Window:
    """A window of zeros, from a function of the axes after the leading ones."""
    return Window(zeros(config.layers, config.window, config.memory_size), zeros())
