"""Games of two players behind the adapter of pgx: moves, and matches inside the compiled program.

The state of such an environment has pgx's own as `inner`, here called a board: `current_player`,
`legal_action_mask`, `observation` (of the player to move), `rewards`, `terminated`, `truncated`.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from envs import loops
from envs.batch import transition

Act = Callable[[jax.Array, Any], jax.Array]  # act(rng, boards) -> moves (batch,)


def look(boards: Any) -> jax.Array:
    """What the players to move see, float32 (batch, ...)."""
    return boards.observation.astype(jnp.float32)


def random_move(rng: jax.Array, boards: Any) -> jax.Array:
    """Uniformly random legal moves, int32 (batch,)."""
    noise = jax.random.uniform(rng, boards.legal_action_mask.shape)
    return jnp.argmax(jnp.where(boards.legal_action_mask, noise, -1.0), axis=-1).astype(jnp.int32)


def joint(boards: Any, moves: jax.Array) -> jax.Array:
    """Actions (batch, 2) of both players from the moves (batch,); who waits has action 0."""
    mine = jnp.arange(2) == boards.current_player[:, None]
    return jnp.where(mine, moves[:, None], 0)


def of_player(player: jax.Array, of_both: jax.Array) -> jax.Array:
    """Entries (...) of the player (...) in arrays (..., 2)."""
    return jnp.take_along_axis(of_both, player[..., None], -1)[..., 0]


def for_both(player: jax.Array, values: jax.Array) -> jax.Array:
    """Values (..., 2) of both players in a game that adds up to zero, from one player's (...)."""
    return jnp.where(jnp.arange(2) == player[..., None], values[..., None], -values[..., None])


def playout(game: Any, rng: jax.Array, boards: Any) -> jax.Array:
    """Rewards (batch,) of random moves to the end, for the players to move.

    Args:
      game: pgx's environment; a step of an ended game changes nothing and gives no reward.
    """
    player = boards.current_player

    def step(carry):
        rng, boards, total = carry
        rng, move_rng = jax.random.split(rng)
        boards = jax.vmap(game.step)(boards, random_move(move_rng, boards))
        return rng, boards, total + of_player(player, boards.rewards)

    def unfinished(carry):
        return ~jnp.all(carry[1].terminated | carry[1].truncated)

    return loops.repeat_while(unfinished, step, (rng, boards, jnp.zeros(player.shape)))[2]


def play(
    env: Any,
    env_params: Any,
    mine: Act,
    other: Act,
    number: int,
    openings: int,
    rng: jax.Array,
) -> dict[str, jax.Array]:
    """Plays `number` games, all in parallel; the first player moves first in those of even index.

    Returns return, length, last_reward, terminated and truncated of the first player, (number,).

    Args:
      env, env_params: from `envs.make`.
      mine, other: the players.
      number: of games, static.
      openings: uniformly random moves at the start of each game.
      rng: key for start states and all moves.
    """
    rng, reset_rng = jax.random.split(rng)
    keys = jax.random.split(reset_rng, number)
    env_state = jax.vmap(env.reset_env, (0, None))(keys, env_params)[1]
    me = (env_state.inner.current_player + jnp.arange(number)) % 2
    no, zero, count = jnp.zeros(number, bool), jnp.zeros(number), jnp.zeros((), jnp.int32)
    played = {"return": zero, "length": jnp.zeros(number, jnp.int32), "last_reward": zero}
    played |= {"terminated": no, "truncated": no}

    def one_step(key, env_state, action):
        return transition(env, key, env_state, action, env_params)

    def step(carry):
        rng, env_state, played, count = carry
        rng, my_rng, other_rng, random_rng, step_rng = jax.random.split(rng, 5)
        boards, running = env_state.inner, ~(played["terminated"] | played["truncated"])
        moves = jnp.where(
            boards.current_player == me, mine(my_rng, boards), other(other_rng, boards)
        )
        moves = jnp.where(count < openings, random_move(random_rng, boards), moves)
        keys, action = jax.random.split(step_rng, number), joint(boards, moves)
        _, env_state, reward, terminated, truncated, _ = jax.vmap(one_step)(keys, env_state, action)
        reward = of_player(me, reward)
        played = {
            "return": played["return"] + jnp.where(running, reward, 0.0),
            "length": played["length"] + running,
            "last_reward": jnp.where(running, reward, played["last_reward"]),
            "terminated": played["terminated"] | (running & terminated),
            "truncated": played["truncated"] | (running & truncated),
        }
        return rng, env_state, played, count + 1

    def unfinished(carry):
        return ~jnp.all(carry[2]["terminated"] | carry[2]["truncated"])

    return loops.repeat_while(unfinished, step, (rng, env_state, played, count))[2]
