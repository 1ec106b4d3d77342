"""Two-player games against an opponent that does not learn, as environments of one agent.

    env, env_params = envs.make("pgx/tic_tac_toe", opponent="random")
    env, env_params = envs.make("pgx/tic_tac_toe", opponent=act)  # act(rng, observation, mask)
    env, env_params = envs.make("pgx/tic_tac_toe", opponent="runs/RUN", opponent_point="best")

The learner is the game's agent 0. Which agent moves first is drawn at every reset, and the opponent
moves inside `reset` and `step` until the learner is to move. So a step is one move of the learner
and all replies to it; its reward, flags and observation are the learner's own.

Saved runs are read by the launcher, which has to be imported (`algorithms.launch.load`).
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from envs import games, loops, registry
from envs.evaluation import rewarded
from envs.gymnax import Environment

# Settings, with their defaults. All but the first go with a saved run.
SETTINGS = {
    "opponent": None,
    "opponent_point": "last",
    "opponent_trial": 0,
    "opponent_sample": False,
}
SAVED = ("opponent_point", "opponent_trial", "opponent_sample")


@struct.dataclass
class Params:
    """The game's time limit, in moves of both sides, and what the opponent acts by."""

    max_steps_in_episode: int
    opponent: Any


@struct.dataclass
class State:
    """A position in which the learner is to move, or a final one."""

    inner: Any  # the game's state
    memory: Any  # the opponent's


def against(game: Any, settings: dict[str, Any]) -> "Against":
    """The game for one agent.

    Args:
      game: a two-player game of the adapter of pgx.
      settings: those of SETTINGS that are given; `opponent` is among them.

    Raises:
      ValueError: the opponent cannot be loaded, or does not fit the game.
    """
    opponent = settings["opponent"]
    saved = {k: settings.get(k, SETTINGS[k]) for k in SAVED}
    is_run = isinstance(opponent, str) and opponent != "random"
    if not is_run and (given := [k for k in SAVED if k in settings]):
        raise ValueError(f"{given[0]}={settings[given[0]]!r} goes with a saved run as opponent")
    if not isinstance(saved["opponent_sample"], bool):
        raise ValueError(f"opponent_sample={saved['opponent_sample']!r}: give true or false")
    if opponent == "random":
        player = games.RANDOM
    elif isinstance(opponent, games.Player):
        player = opponent
    elif callable(opponent):
        player = games.by_function(opponent)
    elif is_run and registry.find_run is not None:
        asked = {k.removeprefix("opponent_"): saved[k] for k in SAVED}
        player = registry.find_run(opponent, game, **asked)
    elif is_run:
        how = "from algorithms.launch import load"
        raise ValueError(f"opponent={opponent!r}: the launcher reads saved runs: {how} first")
    else:
        raise ValueError(
            f"opponent={opponent!r}: give random, the directory of a run, or in Python a function"
        )
    memory = _check_fits(player, game, opponent)
    return Against(game, player, remembers=bool(jax.tree.leaves(memory)))


def _check_fits(player: games.Player, game: Any, opponent: Any) -> Any:
    """Refuses an opponent that fails on the game's observations, or gives no actions.

    Returns the shapes of its memory.
    """
    params = game.default_params

    def act(key):
        reset_key, key = jax.random.split(key)
        observation, state = game.reset_env(reset_key, params)
        mask = game.action_mask(state, params)
        memory = games.fresh_memory(player, observation, mask)
        return games.answer(player, key, observation, mask, jnp.int32(0), memory)

    try:
        actions, memory = jax.eval_shape(act, jax.eval_shape(lambda: jax.random.key(0)))
    except Exception as error:
        why = str(error).strip().partition("\n")[0]
        raise ValueError(f"opponent={opponent!r} does not fit {game.name}: {why}") from error
    if actions.shape != (2,):
        shape = actions.shape[1:]
        raise ValueError(f"opponent={opponent!r}: an action is a number, not an array {shape}")
    return memory


class Against(Environment):
    """A two-player game as an environment of one agent, against `player`.

    Attributes:
      wrapped, chance, hidden_information, arguments: as of the game.
    """

    def __init__(self, game: Any, player: games.Player, remembers: bool):
        super().__init__()
        self.game, self.player = game, player._replace(state=None)
        self.wrapped, self.arguments = game.wrapped, game.arguments
        self.chance, self.hidden_information = game.chance, game.hidden_information
        self._default = Params(game.default_params.max_steps_in_episode, player.state)
        self._remembers = remembers

    @property
    def name(self) -> str:
        return self.game.name

    @property
    def default_params(self) -> Params:
        return self._default

    @property
    def num_actions(self) -> int:
        return self.game.num_actions

    def action_space(self, params):
        return self.game.action_space(params)

    def observation_space(self, params):
        return self.game.observation_space(params)

    def action_mask(self, state, params):
        """The learner's legal actions, bool (num_actions,)."""
        return self.game.action_mask(state.inner, params)[0]

    def inner_state(self, state):
        """pgx's own state (for drawing)."""
        return self.game.inner_state(state.inner)

    def reset_env(self, key, params):
        reset_key, key = jax.random.split(key)
        observation, inner = self.game.reset_env(reset_key, params)
        opponent = self.player._replace(state=params.opponent)
        mask = self.game.action_mask(inner, params)
        state = State(inner, games.fresh_memory(opponent, observation, mask))
        state, _ = self._replies(key, state, jnp.zeros(()), params)
        return self._observe(state), state

    def step_env(self, key, state, action, params):
        key, move_key = jax.random.split(key)
        state, reward = self._move(move_key, state, action, params)
        state, reward = self._replies(key, state, reward, params)
        return self._observe(state), state, reward, state.inner.terminated, {}

    def is_terminated(self, state, params):
        return state.inner.terminated

    def is_truncated(self, state, params):
        return self.game.is_truncated(state.inner, params)

    def _observe(self, state):
        """What the learner sees, float32 (...)."""
        return self.game._observe(state.inner)[0]

    def _answer(self, key, state, params):
        """The opponent's action, int32 (), and its memory after it."""
        opponent = self.player._replace(state=params.opponent)
        inner = state.inner
        seen = self.game._observe(inner), self.game.action_mask(inner, params)
        to_move = inner.inner.current_player
        actions, memory = games.answer(opponent, key, *seen, to_move, state.memory)
        return actions[1], memory

    def _step(self, key, state, actions, memory, params):
        """One move: the state after it, and the learner's reward."""
        _, inner, reward, _, _ = self.game.step_env(key, state.inner, actions, params)
        return State(inner, rewarded(memory, reward)), reward[0]

    def _move(self, key, state, action, params):
        """The learner's move. An opponent with a memory sees this position, too."""
        answer_key, step_key = jax.random.split(key)
        theirs, memory = jnp.zeros((), jnp.int32), state.memory
        if self._remembers:
            theirs, memory = self._answer(answer_key, state, params)
        actions = jnp.stack([jnp.asarray(action, jnp.int32), theirs])
        return self._step(step_key, state, actions, memory, params)

    def _replies(self, key, state, reward, params):
        """Moves of the opponent until the learner is to move or the game is over."""

        def unfinished(carry):
            _, state, _ = carry
            # The time limit waits for replies.
            over = state.inner.terminated | state.inner.inner.truncated
            return (state.inner.inner.current_player != 0) & ~over

        def reply(carry):
            key, state, reward = carry
            key, answer_key, step_key = jax.random.split(key, 3)
            theirs, memory = self._answer(answer_key, state, params)
            actions = jnp.stack([jnp.zeros_like(theirs), theirs])
            after, more = self._step(step_key, state, actions, memory, params)
            waits = unfinished(carry)
            state = jax.tree.map(lambda new, old: jnp.where(waits, new, old), after, state)
            return key, state, reward + jnp.where(waits, more, 0.0)

        carry = key, state, reward
        if self.game.alternates:  # one reply is enough; a loop would cost more
            return reply(carry)[1:]
        return loops.repeat_while(unfinished, reply, carry)[1:]
