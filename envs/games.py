"""Games of two players behind the adapter of pgx: moves, and matches inside the compiled program.

The state of such an environment has pgx's own as `inner`, here called a board: `current_player`,
`legal_action_mask`, `observation` (of the player to move), `rewards`, `terminated`, `truncated`.

Players are policies with an interface of two agents (`Player`), or functions of boards (`Act`).
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from envs import loops
from envs.batch import transition
from envs.evaluation import rewarded

Act = Callable[[jax.Array, Any], jax.Array]  # act(rng, boards) -> moves (batch,)


class Player(NamedTuple):
    """A policy that can play for either agent of one game; `vmap` it for more.

    Attributes:
      policy: policy(state, observation, memory, rng, mask) -> actions (2,), memory. It gets both
        agents' observations (2, ...) and masks (2, num_actions), and the action of the agent to
        move counts. A fresh memory must be zeros.
      state: what the policy acts by, a pytree of arrays.
      sample: whether the policy gets a key; otherwise `rng` is None.
      per_turn: whether only the agent to move remembers; then a memory has a leading axis (2,).
    """

    policy: Callable
    state: Any = None
    sample: bool = False
    per_turn: bool = False


def of_one(policy: Callable, state: Any = None, sample: bool = False) -> Player:
    """A player from a policy for one agent, of the same interface without the axis of agents."""

    def of_both(state, observation, memory, rng, mask):
        keys = None if rng is None else jax.random.split(rng)
        return jax.vmap(policy, (None, 0, 0, 0, 0))(state, observation, memory, keys, mask)

    return Player(of_both, state, sample, per_turn=True)


def by_function(act: Callable) -> Player:
    """A player from act(rng, observation, mask) -> action, of the agent to move alone."""
    return of_one(lambda _, seen, memory, rng, mask: (act(rng, seen, mask), memory), sample=True)


def random_action(rng: jax.Array, observation: Any, mask: jax.Array) -> jax.Array:
    """A uniformly random action that the mask (num_actions,) allows."""
    return jax.random.categorical(rng, jnp.where(mask, 0.0, -jnp.inf))


RANDOM = by_function(random_action)


def fresh_memory(player: Player, observation: jax.Array, mask: jax.Array) -> Any:
    """A player's memory before the first move, given what both agents see (2, ...)."""
    key = jax.eval_shape(lambda: jax.random.key(0)) if player.sample else None
    after = lambda *args: player.policy(*args)[1]
    return loops.zeros(after, player.state, observation, None, key, mask)


def answer(
    player: Player,
    rng: jax.Array,
    observation: jax.Array,
    mask: jax.Array,
    to_move: jax.Array,
    memory: Any,
) -> tuple[jax.Array, Any]:
    """Actions of both agents, int32 (2,), and the memory after them; `to_move` is the agent."""
    key = rng if player.sample else None
    actions, after = player.policy(player.state, observation, memory, key, mask)
    if player.per_turn:
        mine = lambda x: (jnp.arange(2) == to_move).reshape(2, *[1] * (x.ndim - 1))
        after = jax.tree.map(lambda new, old: jnp.where(mine(new), new, old), after, memory)
    return actions.astype(jnp.int32), after


def for_two(env: Any) -> bool:
    """Whether an environment is a game of two players that are its agents, with masks."""
    has_moves = hasattr(env, "hidden_information") and hasattr(env, "action_mask")
    return getattr(env, "num_agents", 1) == 2 and has_moves


def board(env: Any, env_state: Any) -> Any:
    """pgx's own state inside the state of an environment with wrappers."""
    while "env" in vars(env):
        if hasattr(type(env), "inner_state"):
            env_state = env.inner_state(env_state)
        env = env.env
    return env.inner_state(env_state)


def look(boards: Any) -> jax.Array:
    """What the players to move see, float32 (batch, ...)."""
    return boards.observation.astype(jnp.float32)


def random_move(rng: jax.Array, boards: Any) -> jax.Array:
    """Uniformly random legal moves, int32 (batch,)."""
    noise = jax.random.uniform(rng, boards.legal_action_mask.shape)
    return jnp.argmax(jnp.where(boards.legal_action_mask, noise, -1.0), axis=-1).astype(jnp.int32)


def joint(boards: Any, moves: jax.Array) -> jax.Array:
    """Actions (batch, 2) of both players from the moves (batch,); the waiting one has action 0."""
    mine = jnp.arange(2) == boards.current_player[:, None]
    return jnp.where(mine, moves[:, None], 0)


def of_player(player: jax.Array, of_both: jax.Array) -> jax.Array:
    """Entries (...) of the player (...) in arrays (..., 2)."""
    return jnp.take_along_axis(of_both, player[..., None], -1)[..., 0]


def for_both(player: jax.Array, values: jax.Array) -> jax.Array:
    """Values (..., 2) of both players in a game that adds up to zero, from one player's (...)."""
    return jnp.where(jnp.arange(2) == player[..., None], values[..., None], -values[..., None])


def last_move(memory: Any, boards: Any, moves: jax.Array) -> Any:
    """Memories (batch, 2, ...) with the moves (batch,) as last actions, if they have an `action`.

    A move may be a random one of the opening, in place of what the policy would play.
    """
    if getattr(memory, "action", None) is None:
        return memory
    mine = jnp.arange(2) == boards.current_player[:, None]
    action = jax.nn.one_hot(moves, memory.action.shape[-1])[:, None]
    return memory._replace(action=jnp.where(mine[..., None], action, memory.action))


def every_second(tree: Any, start: jax.Array) -> Any:
    """Entries start, start + 2, ... of arrays (number, ...), (number // 2, ...); start: 0 or 1."""
    return jax.tree.map(lambda x: x[start + 2 * jnp.arange(x.shape[0] // 2)], tree)


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
    mine: Act | Player,
    other: Act | Player,
    number: int,
    openings: int,
    rng: jax.Array,
) -> dict[str, jax.Array]:
    """Plays `number` games, all in parallel; the first player moves first in those of even index.

    Where `env.alternates`, each player moves in every second game by turns. Elsewhere both move in
    all games, and half of the moves are thrown away.

    Returns return, length, last_reward, terminated and truncated of the first player, (number,).

    Args:
      env, env_params: from `envs.make`, with two agents.
      mine, other: the players.
      number: of games, static.
      openings: uniformly random moves at the start of each game.
      rng: key for start states and all moves.
    """
    rng, reset_rng = jax.random.split(rng)
    keys = jax.random.split(reset_rng, number)
    observation, env_state = jax.vmap(env.reset_env, (0, None))(keys, env_params)
    me = (board(env, env_state).current_player + jnp.arange(number)) % 2
    in_turn = getattr(env, "alternates", False) and number % 2 == 0
    no, zero, count = jnp.zeros(number, bool), jnp.zeros(number), jnp.zeros((), jnp.int32)
    played = {"return": zero, "length": jnp.zeros(number, jnp.int32), "last_reward": zero}
    played |= {"terminated": no, "truncated": no}

    def one_step(key, env_state, action):
        return transition(env, key, env_state, action, env_params)

    def first_memory(player, observation, env_state):
        is_player = isinstance(player, Player)
        mask = env.action_mask(env_state, env_params)
        return fresh_memory(player, observation, mask) if is_player else None

    def moves_of(player, rng, seen, memory):
        """Moves (games,), valid where the player is to move, and the memory after them."""
        observation, env_state = seen
        boards = board(env, env_state)
        if not isinstance(player, Player):
            return player(rng, boards), memory
        mask = jax.vmap(env.action_mask, (0, None))(env_state, env_params)
        keys = jax.random.split(rng, mask.shape[0])
        inputs = keys, observation, mask, boards.current_player, memory
        actions, memory = jax.vmap(functools.partial(answer, player))(*inputs)
        return of_player(boards.current_player, actions), memory

    def moves_in_turn(player, rng, seen, memory, start):
        """Moves (number // 2,) in every second game, and the memory after them in all games."""
        if not jax.tree.leaves(memory):
            return moves_of(player, rng, every_second(seen, start), memory)
        moves, memory = moves_of(player, rng, seen, memory)  # memories may need every position
        return every_second(moves, start), memory

    def step(carry):
        rng, observation, env_state, memories, played, count = carry
        rng, my_rng, other_rng, random_rng, step_rng = jax.random.split(rng, 5)
        boards, running = board(env, env_state), ~(played["terminated"] | played["truncated"])
        seen = observation, env_state
        mine_now = mine, my_rng, seen, memories[0]
        other_now = other, other_rng, seen, memories[1]
        if in_turn:
            start = count % 2  # the first player is to move in games start, start + 2, ...
            my_moves, my_memory = moves_in_turn(*mine_now, start)
            other_moves, other_memory = moves_in_turn(*other_now, 1 - start)
            pairs = jnp.stack([my_moves, other_moves], axis=1)
            moves = jnp.where(start == 0, pairs, pairs[:, ::-1]).reshape(number)
        else:
            my_moves, my_memory = moves_of(*mine_now)
            other_moves, other_memory = moves_of(*other_now)
            moves = jnp.where(boards.current_player == me, my_moves, other_moves)
        moves = jnp.where(count < openings, random_move(random_rng, boards), moves)
        keys, action = jax.random.split(step_rng, number), joint(boards, moves)
        observation, env_state, reward, terminated, truncated, _ = jax.vmap(one_step)(
            keys, env_state, action
        )
        memories = tuple(
            rewarded(last_move(memory, boards, moves), reward)
            for memory in (my_memory, other_memory)
        )
        reward = of_player(me, reward)
        played = {
            "return": played["return"] + jnp.where(running, reward, 0.0),
            "length": played["length"] + running,
            "last_reward": jnp.where(running, reward, played["last_reward"]),
            "terminated": played["terminated"] | (running & terminated),
            "truncated": played["truncated"] | (running & truncated),
        }
        return rng, observation, env_state, memories, played, count + 1

    def unfinished(carry):
        played = carry[4]
        return ~jnp.all(played["terminated"] | played["truncated"])

    first = lambda player: jax.vmap(functools.partial(first_memory, player))(observation, env_state)
    carry = rng, observation, env_state, (first(mine), first(other)), played, count
    return loops.repeat_while(unfinished, step, carry)[4]
