"""The adapter for pgx 2.6 (Koyamada et al. 2023, arXiv:2303.17503): board games, cards, MinAtar.

    env, env_params = envs.make("pgx/connect_four")
    env, env_params = envs.make("pgx/hex", size=5)
    env, env_params = envs.make("pgx/minatar-seaquest")

A two-player game is an environment with two agents, which are pgx's players. Who moves first is
drawn at every reset, so each agent plays both colours. Both agents act at each step, and the action
of the agent to move counts. `env.action_mask` allows the other agent action 0 alone, so its
log-probability is 0 and moves no gradient. Each agent observes the board from its own side. Both
agents get their rewards in the same step, whoever made the move. The discount factor applies at
every move of either side.

2048 and MinAtar's five games have one agent.

Settings are the arguments of pgx's constructors: `size` of hex and go, `komi`, MinAtar's
`sticky_action_prob`.

An illegal action ends a game of pgx: the player who took it gets -1 and the other +1. pgx's own
limits of moves (as in chess and go) terminate, as if they were rules. The limit of this adapter
(`max_steps`) truncates: MinAtar after 2,500 steps, all others after 10,000.

pgx's Kuhn poker shows a player its card and both players' chips but not who moves first, and its
Leduc hold'em not the bets so far. Even the best play on these observations can be exploited. With
`history`, on by default for these two, an observation ends with two flags (whether this agent moves
first, whether it is to move) and all actions so far. So two positions look alike only if the player
cannot tell them apart.

With `opponent` a two-player game is an environment of one agent, see envs/opponents.py.

`env.chance` says whether a game has dice, deals or other chance events, and
`env.hidden_information` whether a player sees less than everything. Refused: bridge_bidding, which
needs a download, and sparrow_mahjong, which has three players.
"""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from envs import adapter, opponents
from envs.adapter import Adapter, library
from envs.gymnax import spaces

NOT_TAKEN = ("bridge_bidding", "sparrow_mahjong")
MOVES = {"kuhn_poker": 3, "leduc_holdem": 8}  # of a game at most, where `history` can be shown
WITH_CHANCE = ("2048", "backgammon", *MOVES)  # and MinAtar
REPEATS = ("backgammon", "leduc_holdem")  # a player may move twice in a row
GO = {"go_9x9": {"size": 9, "komi": 7.5}, "go_19x19": {"size": 19, "komi": 7.5}}
LIMIT, MINATAR_LIMIT = 10_000, 2_500


def names() -> list[str]:
    """Every supported name."""
    return [name for name in _pgx().available_envs() if name not in NOT_TAKEN]


def construct(name: str, settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Builds an environment with those settings that its constructor takes.

    Returns the environment and the other settings.

    Raises:
      ValueError: pgx is missing, or refuses the settings, or the opponent cannot play.
    """
    against, settings = adapter.split(settings, *opponents.SETTINGS)
    game, left = _game(name, settings)
    if hasattr(game, "num_agents"):
        game.taking((*game.arguments, *opponents.SETTINGS))
    if against and not hasattr(game, "num_agents"):
        raise ValueError(f"pgx/{name} has one player: leave {', '.join(against)} out")
    if against and against.get("opponent") is None:
        raise ValueError(f"setting of pgx/{name}: {', '.join(against)}: goes with an opponent")
    return (opponents.against(game, against) if against else game), left


def _game(name: str, settings: dict[str, Any]) -> tuple["Game", dict[str, Any]]:
    """The game itself, and the other settings."""
    wrapped = _pgx().make(name)
    known = list(adapter.arguments(type(wrapped)))
    taken, left = adapter.split(settings, *known)
    if name in MOVES:
        known.append("history")
    history = left.pop("history", True) if name in MOVES else False
    if not isinstance(history, bool):
        raise ValueError(f"setting of pgx/{name}: history={history!r}: give true or false")
    try:
        if taken and name == "hex":
            wrapped = _hex(**taken)
        elif taken:
            wrapped = type(wrapped)(**(GO.get(name, {}) | taken))
        return Game(name, wrapped, history).taking(known), left
    except (TypeError, ValueError, AssertionError) as error:
        raise ValueError(f"pgx/{name} with {taken}: {error or 'pgx refuses them'}") from error


def _pgx() -> Any:
    return library("pgx", "pgx")


def _hex(size: int) -> Any:
    """Hex with another board than 11x11, which pgx's own start has whatever the size."""
    if type(size) is not int or size < 2:
        raise ValueError("give a whole number as size, 2 or more")

    class Hex(library("pgx.hex", "pgx").Hex):  # type: ignore[misc]  # known at run time
        def _init(self, key):
            state, cells = super()._init(key), size * size
            board = jnp.zeros(cells, state._x.board.dtype)
            no_swap = jnp.arange(cells + 1) < cells
            return state.replace(_x=state._x._replace(board=board), legal_action_mask=no_swap)

    return Hex(size=size)


@struct.dataclass
class GameState:
    """A position, and how it came about."""

    inner: Any  # pgx's own state
    steps: jax.Array  # int32 ()
    terminated: jax.Array  # bool ()
    first: jax.Array  # the player who moves first, int32 ()
    history: jax.Array | None  # actions so far, one-hot, bool (moves, num_actions)


class Game(Adapter):
    """One game of pgx behind gymnax's interface.

    Attributes:
      wrapped: pgx's environment.
      num_agents: 2; absent in games for one.
      action_mask(state, params): the legal actions, bool (2, num_actions), or (num_actions,) in a
        game for one; absent in MinAtar, where all are legal.
      chance: whether chance decides anything.
      hidden_information: whether a player sees less than everything.
      opponents: True where there are two players; absent in games for one.
      alternates: whether the players always move in turn.
    """

    def __init__(self, name: str, wrapped: Any, history: bool):
        minatar = name.startswith("minatar")
        limit = MINATAR_LIMIT if minatar else LIMIT
        super().__init__(f"pgx/{name}", wrapped, limit, spaces.Discrete(wrapped.num_actions))
        self.chance, self.hidden_information = minatar or name in WITH_CHANCE, name in MOVES
        self.alternates = name not in REPEATS
        self._moves = MOVES[name] if history else 0
        self._players = wrapped.num_players
        if self._players > 1:
            self.num_agents, self.opponents = self._players, True
        if not minatar:
            self.action_mask = self._action_mask
        key = jax.eval_shape(lambda: jax.random.key(0))
        inner = jax.eval_shape(wrapped.init, key)
        seen = jax.eval_shape(lambda key: self.reset_env(key, None)[0], key)
        flags = inner.observation.dtype == bool
        low, high = (0.0, 1.0) if flags else (-jnp.inf, jnp.inf)
        shape = seen.shape[1:] if self._players > 1 else seen.shape
        self._observations = spaces.Box(low, high, shape, jnp.float32)

    def reset_env(self, key, params):
        inner = self.wrapped.init(key)
        moves = jnp.zeros((self._moves, self.wrapped.num_actions), bool) if self._moves else None
        no = jnp.zeros((), bool)
        state = GameState(inner, jnp.zeros((), jnp.int32), no, inner.current_player, moves)
        return self._observe(state), state

    def step_env(self, key, state, action, params):
        before = state.inner
        move = action if self._players == 1 else action[before.current_player]
        inner = self.wrapped.step(before, move, key)
        reward = inner.rewards[0] if self._players == 1 else inner.rewards
        history = state.history
        if history is not None:
            history = history.at[state.steps, move].set(True)
        state = state.replace(
            inner=inner, steps=state.steps + 1, terminated=inner.terminated, history=history
        )
        return self._observe(state), state, reward, inner.terminated, {}

    def is_truncated(self, state, params):
        late = state.steps >= params.max_steps_in_episode
        return (late | state.inner.truncated) & ~state.terminated

    def _observe(self, state: GameState) -> jax.Array:
        """What each agent sees, float32 (2, ...), or (...) in a game for one."""
        if self._players == 1:
            return state.inner.observation.astype(jnp.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of the player as an argument
            return jnp.stack([self._of_player(state, jnp.int32(i)) for i in range(self._players)])

    def _of_player(self, state: GameState, player: jax.Array) -> jax.Array:
        seen = self.wrapped.observe(state.inner, player).astype(jnp.float32)
        if state.history is None:
            return seen
        seat = jnp.stack([player == state.first, player == state.inner.current_player])
        return jnp.concatenate([seen, jnp.concatenate([seat, state.history.ravel()])])

    def _action_mask(self, state: GameState, params: Any) -> jax.Array:
        legal = state.inner.legal_action_mask
        if self._players == 1:
            return legal
        to_move = jnp.arange(self._players) == state.inner.current_player
        waiting = jnp.arange(legal.shape[0]) == 0
        return jnp.where(to_move[:, None], legal, waiting)
