"""Symmetries of board games, as orders of their cells and actions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Boards whose actions are their cells, row by row, or their columns; other actions come last. Hex
# has half turns only: each colour joins two sides of its own, which all other turns exchange.
KINDS = {
    "tic_tac_toe": "dihedral",
    "othello": "dihedral",
    "go_9x9": "dihedral",
    "go_19x19": "dihedral",
    "connect_four": "columns",
    "hex": "half turns",
}


class Symmetries(NamedTuple):
    """A turned board is board[cells[i]], and a turned policy policy[actions[i]]; the first symmetry
    is the identity."""

    cells: np.ndarray  # (number, height * width), int
    actions: np.ndarray  # (number, num_actions), int

    def board(self, which: jax.Array, x: jax.Array) -> jax.Array:
        """Boards (batch, height, width, planes) turned by symmetries of number which (batch,)."""
        flat = x.reshape(x.shape[0], -1, x.shape[-1])
        cells = jnp.asarray(self.cells)[which][..., None]
        return jnp.take_along_axis(flat, cells, 1).reshape(x.shape)

    def policy(self, which: jax.Array, x: jax.Array) -> jax.Array:
        """Arrays (batch, num_actions) of each action, turned like their boards."""
        return jnp.take_along_axis(x, jnp.asarray(self.actions)[which], 1)


def symmetries(game: str, shape: tuple[int, ...], num_actions: int) -> Symmetries | None:
    """The symmetries of pgx's game of this name; None if it is not known to have any.

    Args:
      shape: of its observations, (height, width, planes).
    """
    if game not in KINDS:
        return None
    board = np.arange(shape[0] * shape[1]).reshape(shape[:2])
    actions = np.arange(num_actions)
    if KINDS[game] == "columns":
        cells = np.stack([board.ravel(), board[:, ::-1].ravel()])
        return Symmetries(cells, np.stack([actions, actions[::-1]]))
    if KINDS[game] == "half turns":
        turned = [board, np.rot90(board, 2)]
    else:
        turned = [np.rot90(x, k) for x in (board, board.T) for k in range(4)]
    cells = np.stack([x.ravel() for x in turned])
    others = np.tile(actions[board.size :], (len(cells), 1))
    return Symmetries(cells, np.concatenate([cells, others], 1))
