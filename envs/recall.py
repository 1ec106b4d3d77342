"""Small tasks that need memory, each with a known best return.

- `TMaze-v0`: the first observation says which way to turn at the end of a corridor (Bakker 2001).
- `RepeatPrevious-v0`, `Autoencode-v0`, `Concentration-v0`: cards, as in POPGym (Morad et al. 2023,
  arXiv:2303.01859).
- `RockSample-v0`: which rocks are good shows in noisy measurements (Smith and Simmons 2004).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from envs.gymnax import Environment, spaces

SUITS, RANKS, DECK = 4, 13, 52
NORTH, SOUTH, EAST, WEST, SAMPLE = range(5)


class _Task(Environment):
    """A task with discrete actions whose flat observations are between -1 and 1."""

    def __init__(self, name: str, num_actions: int, size: int):
        super().__init__()
        self._name, self._num_actions, self._size = name, num_actions, size

    @property
    def name(self) -> str:
        return self._name

    @property
    def num_actions(self) -> int:
        return self._num_actions

    def action_space(self, params: Any) -> Any:
        return spaces.Discrete(self._num_actions)

    def observation_space(self, params: Any) -> Any:
        return spaces.Box(-1.0, 1.0, (self._size,))

    def is_truncated(self, state: Any, params: Any) -> jax.Array:
        return jnp.zeros((), bool)


def _whole(name: str, value: Any, least: int, most: float = math.inf) -> int:
    if type(value) is not int or not least <= value <= most:
        end = " or more" if most == math.inf else f" to {most:g}"
        raise ValueError(f"{name}={value!r}: give a whole number, {least}{end}")
    return value


# --- T-Maze -----------------------------------------------------------------------------------


@struct.dataclass
class TMazeState:
    goal: jax.Array  # 0: north, 1: south, int32 ()
    position: jax.Array  # 0 to length, int32 ()
    time: jax.Array  # steps, int32 ()
    turned: jax.Array  # whether the agent has left the corridor, bool ()


@struct.dataclass
class TMazeParams:
    goal_reward: float = 4.0
    wrong_reward: float = -0.1
    delay_cost: float = 0.0  # of a step after which the position is less than the steps taken
    max_steps_in_episode: float = 1000.0


class TMaze(_Task):
    """A corridor with a junction at its end. The first cell shows which way to turn there.

    Actions: north, south, east, west. The corridor leads east, and its walls stop other moves. At
    the junction north and south end the episode, with goal_reward or wrong_reward.

    Observation (4,), one-hot: in the first cell with the goal in the north, the same with the goal
    in the south, further on in the corridor, at the junction.

    With its defaults the best return is 4. Without memory it is at most 2, by staying in the first
    cell for one of the two goals, or 1.95 by always walking on.

    Args:
      length: steps from the first cell to the junction.
      passive: no exploration is needed (Ni et al. 2023, arXiv:2307.03864). There are length + 1
        steps, just enough, and a step that falls behind costs 1 / length. Then time is a rule of
        the task: an episode out of time has terminated.
    """

    def __init__(self, length: int = 10, passive: bool = False):
        super().__init__("TMaze-v0", 4, 4)
        self.length, self.passive = _whole("length", length, 1), passive
        if type(passive) is not bool:
            raise ValueError(f"passive={passive!r}: give True or False")

    @property
    def default_params(self) -> TMazeParams:
        if self.passive:
            return TMazeParams(delay_cost=1.0 / self.length, max_steps_in_episode=self.length + 1.0)
        return TMazeParams()

    def reset_env(self, key, params):
        zero = jnp.zeros((), jnp.int32)
        goal = jax.random.bernoulli(key).astype(jnp.int32)
        state = TMazeState(goal=goal, position=zero, time=zero, turned=jnp.zeros((), bool))
        return self._observe(state), state

    def step_env(self, key, state, action, params):
        move = (action == EAST).astype(jnp.int32) - (action == WEST)
        turned = (state.position == self.length) & (action <= SOUTH)
        position = jnp.clip(state.position + move, 0, self.length)
        after = state.replace(position=position, time=state.time + 1, turned=turned)
        prize = jnp.where(action == state.goal, params.goal_reward, params.wrong_reward)
        late = position < after.time
        reward = jnp.where(turned, prize, -params.delay_cost * late)
        return self._observe(after), after, reward, self.is_terminated(after, params), {}

    def is_terminated(self, state, params):
        out_of_time = self.passive & (state.time >= params.max_steps_in_episode)
        return state.turned | out_of_time

    def is_truncated(self, state, params):
        return (state.time >= params.max_steps_in_episode) & ~self.is_terminated(state, params)

    def _observe(self, state):
        place = jnp.where(state.position == self.length, 3, 2)
        return jax.nn.one_hot(jnp.where(state.position == 0, state.goal, place), 4)


# --- cards ------------------------------------------------------------------------------------


@struct.dataclass
class CardParams:
    """Cards have no parameters that are numbers."""


@struct.dataclass
class CardState:
    suits: jax.Array  # of the shuffled cards, int32 (cards,)
    time: jax.Array  # steps, int32 ()


class _Cards(_Task):
    """Shuffled decks, of which the suit matters."""

    ends = True

    def __init__(self, name: str, decks: int, size: int):
        super().__init__(name, SUITS, size)
        self.cards = DECK * _whole("decks", decks, 1)

    @property
    def default_params(self) -> CardParams:
        return CardParams()

    def reset_env(self, key, params):
        suits = jax.random.permutation(key, jnp.arange(self.cards, dtype=jnp.int32) % SUITS)
        state = CardState(suits=suits, time=jnp.zeros((), jnp.int32))
        return self._observe(state), state


class RepeatPrevious(_Cards):
    """Say the suit of the kth card back, where the card that is seen counts as the first.

    Observation (4,): the suit of the next card, one-hot. Action: a suit. From the kth card on, a
    step pays 1 / (cards - k) if it is right, and costs as much otherwise, so the best return is 1.
    The episode ends when all cards but the last have been answered. (In POPGym it is truncated
    then. Here it terminates, as there is nothing to come.)

    Args:
      decks: of 52 cards; POPGym has 1, 2 and 3.
      k: POPGym has 4, 32 and 64.
    """

    def __init__(self, decks: int = 1, k: int = 4):
        super().__init__("RepeatPrevious-v0", decks, SUITS)
        self.k = _whole("k", k, 1, self.cards - 1)

    def step_env(self, key, state, action, params):
        seen = state.time + 1
        right = action == state.suits[jnp.maximum(seen - self.k, 0)]
        value = jnp.where(right, 1.0, -1.0) / (self.cards - self.k)
        reward = jnp.where(seen >= self.k, value, 0.0)
        after = state.replace(time=seen)
        return self._observe(after), after, reward, self.is_terminated(after, params), {}

    def is_terminated(self, state, params):
        return state.time >= self.cards - 1

    def _observe(self, state):
        return jax.nn.one_hot(state.suits[state.time], SUITS)


class Autoencode(_Cards):
    """Watch all cards, then say their suits, the last one first.

    Observation (5,): the suit, one-hot, and whether to watch. The last card comes with the signal
    to begin; from then on no suit is shown. Each answer pays 1 / cards if it is right, and costs as
    much otherwise, so the best return is 1. The episode ends with the last answer.

    Args:
      decks: of 52 cards; POPGym has 1, 2 and 3.
    """

    def __init__(self, decks: int = 1):
        super().__init__("Autoencode-v0", decks, SUITS + 1)

    def step_env(self, key, state, action, params):
        answered = state.time - (self.cards - 1)  # so many before this step; negative: watching
        right = action == state.suits[self.cards - 1 - jnp.maximum(answered, 0)]
        value = jnp.where(right, 1.0, -1.0) / self.cards
        reward = jnp.where(answered >= 0, value, 0.0)
        after = state.replace(time=state.time + 1)
        return self._observe(after), after, reward, self.is_terminated(after, params), {}

    def is_terminated(self, state, params):
        return state.time >= 2 * self.cards - 1

    def _observe(self, state):
        last = self.cards - 1
        suit = jax.nn.one_hot(state.suits[jnp.minimum(state.time, last)], SUITS)
        suit = jnp.where(state.time <= last, suit, 0.0)
        return jnp.append(suit, (state.time < last).astype(suit.dtype))


@struct.dataclass
class BoardState:
    kinds: jax.Array  # of the cards on the board, int32 (cards,)
    face_up: jax.Array  # matched cards, bool (cards,)
    first: jax.Array  # the card that waits for a second one, int32 (), -1: none
    time: jax.Array  # steps, int32 ()


class Concentration(_Task):
    """Turn two cards of a deck on a board; a pair of one kind stays face up.

    Action: which card to turn. Observation (cards * (kinds + 1),): for each card its kind or "face
    down", one-hot. A pair pays 2 / cards, and a second card that makes none costs 2 / steps, where
    `steps` is the length of an episode: ceil(2 cards - cards / (2 cards - 1)), as in POPGym. The
    best return is 1, for luck alone. The episode ends when all cards are face up, or out of time,
    which is a rule of the task. A card that is face up already makes no pair (in POPGym it pays
    again).

    Args:
      decks: of 52 cards; POPGym has 1, 2 and 1.
      kind: "colors", of which there are 2, or "ranks", 13; POPGym has colors, colors and ranks.
    """

    ends = True

    def __init__(self, decks: int = 1, kind: str = "colors"):
        kinds = {"colors": 2, "ranks": RANKS}
        if kind not in kinds:
            raise ValueError(f"kind={kind!r}: there are {', '.join(kinds)}")
        self.cards, self.kinds = DECK * _whole("decks", decks, 1), kinds[kind]
        super().__init__("Concentration-v0", self.cards, self.cards * (self.kinds + 1))
        self.steps = math.ceil(2 * self.cards - self.cards / (2 * self.cards - 1))

    @property
    def default_params(self) -> CardParams:
        return CardParams()

    def reset_env(self, key, params):
        kinds = jax.random.permutation(key, jnp.arange(self.cards, dtype=jnp.int32) % self.kinds)
        none = jnp.full((), -1, jnp.int32)
        nothing = jnp.zeros(self.cards, bool)
        time = jnp.zeros((), jnp.int32)
        state = BoardState(kinds=kinds, face_up=nothing, first=none, time=time)
        return self._observe(kinds, nothing), state

    def step_env(self, key, state, action, params):
        action = jnp.asarray(action, jnp.int32)
        is_second = state.first >= 0
        here = jnp.arange(self.cards)
        both = (here == action) | (here == state.first)
        pair = (
            is_second
            & (state.kinds[action] == state.kinds[state.first])
            & (action != state.first)
            & ~(state.face_up & both).any()
        )
        reward = jnp.where(pair, 2.0 / self.cards, -2.0 / self.steps) * is_second
        after = state.replace(
            face_up=state.face_up | (both & pair),
            first=jnp.where(is_second, -1, action),
            time=state.time + 1,
        )
        # Two cards that make no pair are seen once before they are turned back.
        observation = self._observe(state.kinds, after.face_up | both)
        return observation, after, reward, self.is_terminated(after, params), {}

    def is_terminated(self, state, params):
        return state.face_up.all() | (state.time >= self.steps)

    def _observe(self, kinds, visible):
        return jax.nn.one_hot(jnp.where(visible, kinds, self.kinds), self.kinds + 1).ravel()


# --- RockSample -------------------------------------------------------------------------------

# Places of rocks (x, y) and of the start: those of Silver and Veness 2010, from their POMCP code.
ROCKS = {
    "7x8": (7, (0, 3), ((2, 0), (0, 1), (3, 1), (6, 3), (2, 4), (3, 4), (5, 5), (1, 6))),
    "11x11": (
        11,
        (0, 5),
        ((0, 3), (0, 7), (1, 8), (2, 4), (3, 3), (3, 8), (4, 3), (5, 8), (6, 1), (9, 3), (9, 9)),
    ),
}


@struct.dataclass
class RockState:
    place: jax.Array  # x, y, int32 (2,)
    good: jax.Array  # bool (rocks,)
    time: jax.Array  # steps, int32 ()
    left: jax.Array  # whether the agent has left the map, bool ()


@struct.dataclass
class RockParams:
    half_efficiency: float = 20.0  # distance at which a measurement is right three times in four
    good_reward: float = 10.0
    bad_reward: float = -10.0
    exit_reward: float = 10.0
    max_steps_in_episode: float = 200.0


class RockSample(_Task):
    """Sample good rocks on a map and leave it in the east.

    Each rock is good with probability 1/2. Actions: north, south, east, west, sample, and one for
    each rock, which measures from afar whether it is good. At distance d that is right with
    probability (1 + 2 ** (-d / half_efficiency)) / 2. A rock that is sampled is bad afterwards.
    Samples where no rock is, and moves against other borders than the eastern, do nothing.

    Observation (2 * size + rocks,): x and y, one-hot, and the result of the last action for the
    rock that it measured: 1 for good, -1 for bad, 0 for all others.

    Without noise, the best return is 10 for each good rock and 10 for leaving: 50 on average with
    8 rocks, 65 with 11. What memory alone can reach is less.

    Args:
      instance: "7x8" (a map of 7x7 with 8 rocks) or "11x11".
    """

    def __init__(self, instance: str = "7x8"):
        if instance not in ROCKS:
            raise ValueError(f"instance={instance!r}: there are {', '.join(ROCKS)}")
        self.side, self.start, self.rocks = ROCKS[instance]
        rocks = len(self.rocks)
        super().__init__("RockSample-v0", 5 + rocks, 2 * self.side + rocks)

    @property
    def default_params(self) -> RockParams:
        return RockParams()

    def reset_env(self, key, params):
        good = jax.random.bernoulli(key, 0.5, (len(self.rocks),))
        state = RockState(
            place=jnp.array(self.start, jnp.int32),
            good=good,
            time=jnp.zeros((), jnp.int32),
            left=jnp.zeros((), bool),
        )
        return self._observe(state, jnp.zeros(len(self.rocks))), state

    def step_env(self, key, state, action, params):
        rocks = jnp.array(self.rocks)
        moves = jnp.array([(0, 1), (0, -1), (1, 0), (-1, 0), (0, 0)])
        target = state.place + moves[jnp.minimum(action, SAMPLE)]
        left = target[0] >= self.side
        at_rock = (rocks == state.place).all(1) & (action == SAMPLE)
        prize = jnp.where(state.good, params.good_reward, params.bad_reward)
        reward = (at_rock * prize).sum() + params.exit_reward * left
        after = state.replace(
            place=jnp.clip(target, 0, self.side - 1),
            good=state.good & ~at_rock,
            time=state.time + 1,
            left=left,
        )
        distance = jnp.sqrt(jnp.square(rocks - state.place).sum(1).astype(jnp.float32))
        right = jax.random.uniform(key) < 0.5 * (1 + 2.0 ** (-distance / params.half_efficiency))
        result = jnp.where(state.good == right, 1.0, -1.0)
        measured = jnp.where(jnp.arange(len(self.rocks)) == action - 5, result, 0.0)
        terminated = self.is_terminated(after, params)
        return self._observe(after, measured), after, reward, terminated, {}

    def is_terminated(self, state, params):
        return state.left

    def is_truncated(self, state, params):
        return (state.time >= params.max_steps_in_episode) & ~state.left

    def _observe(self, state, measured):
        x, y = jax.nn.one_hot(state.place, self.side)
        return jnp.concatenate([x, y, measured])
