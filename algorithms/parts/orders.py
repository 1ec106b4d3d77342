"""Random orders without sorting."""

import math

import jax
import jax.numpy as jnp

from envs.loops import scan


def permutations(key: jax.Array, number: int, size: int) -> jax.Array:
    """Random orders of range(size), (number, size).

    jax.random.permutation sorts random numbers, which can take longer than learning from the
    samples. Here the numbers form a table. Random rotations turn its columns, then its rows, six
    times: a Feistel network (Luby and Rackoff 1988).
    """
    rows = next(d for d in range(math.isqrt(size), 0, -1) if size % d == 0)
    columns = size // rows
    if rows < 8:  # too narrow to mix
        keys = jax.random.split(key, number)
        return jax.vmap(jax.random.permutation, (0, None))(keys, size)
    bits = jax.random.bits(key, (number * 6 * (rows + columns),))  # flat: compiles much faster
    turns = (bits % size).astype(jnp.int32).reshape(number, 6, rows + columns)

    def turn(position, turns):
        row, column = position
        row = (row + turns[:columns][column]) % rows
        column = (column + turns[columns:][row]) % columns
        return (row, column), None

    def shuffle(turns):
        row, column = scan(turn, jnp.divmod(jnp.arange(size), columns), turns)[0]
        return row * columns + column

    return jax.vmap(shuffle)(turns)
