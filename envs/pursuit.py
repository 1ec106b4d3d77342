"""Pursuit: predators hunt a prey in the unit square.

Every player has a speed of its own and chooses only its heading. The prey gains and the predators
lose at every step, until a predator catches the prey or time is up.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs.gymnax import Environment, spaces

PREYS = ("learned", "random", "flee")
DIRECTIONS = ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))  # right, up, left, down

SIDE, MARGIN, STRIP = 288, 16, 12  # pixels: the square, around it, and the bar of time
PAPER, FIELD, LINE = (255, 255, 255), (240, 240, 240), (60, 64, 72)
PREY, PREDATORS = (0, 158, 115), ((213, 94, 0), (0, 114, 178), (204, 121, 167), (230, 159, 0))


@struct.dataclass
class PursuitState:
    """Player 0 is the prey."""

    position: jax.Array  # (num_players, 2), in [0, 1]
    heading: jax.Array  # last step's unit vectors (num_players, 2); initially zeros
    time: jax.Array  # steps, int32 ()


@struct.dataclass
class PursuitParams:
    """Lengths in sides of the square, times in seconds."""

    prey_speed: float = 1.0
    predator_speed: float = 1.0  # 0.1 by default for several predators
    dt: float = 0.01  # a step
    time_limit: float = 1.0  # truncates; rounded to whole steps
    catch_radius: float = 0.2  # a predator at this distance or nearer has caught the prey
    step_reward: float = 1.0  # the prey's, for a step without a catch; predators get its negative
    catch_reward: float = 100.0  # the catcher's; the prey gets its negative
    helper_share: float = 0.5  # share of the catcher's reward for every other predator


class Pursuit(Environment):
    """One prey and its predators, in gymnax's interface with a leading agent axis.

    In a step, all players move at once by speed * dt along their headings, and positions are
    clipped to the square. If a predator is then within the catch radius, the nearest one is the
    catcher and the episode terminates. Ties go to the lowest index. Catch rewards replace the
    step's rewards. Starts are independent and uniform. A predator that starts within the catch
    radius has not caught the prey yet: the first step decides.

    Observation, the same for every agent, (1 + 4 * num_players,): the elapsed share of the time
    limit; all positions; all headings of the last step as (cos, sin). `info["caught"]` says whether
    this step was a catch.

    Args:
      num_players: one prey and num_players - 1 predators.
      continuous: an action is a heading in radians, Box(-pi, pi, (1,)); otherwise it is
        right, up, left or down, Discrete(4).
      prey: "learned": the prey is agent 0, before the predators. "random": it moves in a new random
        direction at every step. "flee": it runs straight away from the nearest predator. A prey
        that is not learned is not an agent. `continuous` applies to its moves too.

    Raises:
      ValueError: a setting that is none of these.
    """

    limit_name = "time_limit"  # in seconds

    def __init__(self, num_players: int = 2, continuous: bool = True, prey: str = "learned"):
        if type(num_players) is not int or num_players < 2:
            raise ValueError(f"num_players={num_players!r}: give a whole number, 2 or more")
        if type(continuous) is not bool:
            raise ValueError(f"continuous={continuous!r}: give True or False")
        if prey not in PREYS:
            raise ValueError(f"prey={prey!r}: there are {', '.join(PREYS)}")
        super().__init__()
        self.num_players, self.continuous, self.prey = num_players, continuous, prey
        self.num_agents = num_players - (prey != "learned")
        self.opponents = prey == "learned"

    @property
    def default_params(self) -> PursuitParams:
        return PursuitParams(predator_speed=1.0 if self.num_players == 2 else 0.1)

    @property
    def name(self) -> str:
        return "Pursuit-v0"

    @property
    def num_actions(self) -> int:
        return 1 if self.continuous else len(DIRECTIONS)

    def reset_env(self, key: jax.Array, params: PursuitParams) -> tuple[jax.Array, PursuitState]:
        position = jax.random.uniform(key, (self.num_players, 2))
        state = PursuitState(position, jnp.zeros_like(position), jnp.zeros((), jnp.int32))
        return self._observe(state, params), state

    def step_env(self, key: jax.Array, state: PursuitState, action: jax.Array, params: Any):
        heading = _vectors(action, self.continuous)
        if self.prey != "learned":
            prey = _vectors(self._scripted_prey(key, state), self.continuous)
            heading = jnp.concatenate([prey[None], heading])
        predators = jnp.arange(self.num_players) > 0
        speed = jnp.where(predators, params.predator_speed, params.prey_speed)
        position = state.position + speed[:, None] * params.dt * heading
        state = PursuitState(jnp.clip(position, 0.0, 1.0), heading, state.time + 1)
        caught = self.is_terminated(state, params)
        reward = self._reward(state, caught, params)[-self.num_agents :]
        return self._observe(state, params), state, reward, caught, {"caught": caught}

    def is_terminated(self, state: PursuitState, params: PursuitParams) -> jax.Array:
        near = jnp.any(_distances(state.position) <= params.catch_radius)
        return near & (state.time > 0)

    def is_truncated(self, state: PursuitState, params: PursuitParams) -> jax.Array:
        # A sum of dt misses the limit by a rounding error; a count of steps does not.
        return state.time >= jnp.round(params.time_limit / params.dt)

    def limit_unit(self, params: PursuitParams) -> Any:
        return params.dt

    def action_space(self, params: PursuitParams) -> Any:
        if self.continuous:
            return spaces.Box(-math.pi, math.pi, (1,))
        return spaces.Discrete(len(DIRECTIONS))

    def observation_space(self, params: PursuitParams) -> Any:
        return spaces.Box(-1.0, 1.0, (1 + 4 * self.num_players,))

    def render(self, state: PursuitState, params: PursuitParams) -> np.ndarray:
        """A picture (height, width, 3) uint8.

        Every predator has a circle of the catch radius, and a line shows where each player headed.
        The bar below shows the elapsed time.
        """
        from PIL import Image, ImageDraw

        side, margin, strip = 2 * SIDE, 2 * MARGIN, 2 * STRIP  # twice the size, for smooth edges
        image = Image.new("RGB", (side + 2 * margin, side + 3 * margin + strip), PAPER)
        draw = ImageDraw.Draw(image)
        draw.rectangle([margin, margin, margin + side, margin + side], FIELD, LINE, 4)
        places = np.asarray(state.position, np.float64) * [side, -side] + [margin, margin + side]
        lines = np.asarray(state.heading, np.float64) * [0.06 * side, -0.06 * side]
        colours = [PREY, *(PREDATORS[i % len(PREDATORS)] for i in range(self.num_players - 1))]
        reach = float(params.catch_radius) * side
        for place, colour in zip(places[1:], colours[1:]):
            draw.ellipse([*(place - reach), *(place + reach)], outline=colour, width=3)
        for place, line, colour in zip(places, lines, colours):
            draw.line([*place, *(place + line)], LINE, 5)
            draw.ellipse([*(place - 13), *(place + 13)], colour, LINE, 2)
        top, passed = side + 2 * margin, float(state.time * params.dt / params.time_limit)
        draw.rectangle([margin, top, margin + side, top + strip], FIELD)
        draw.rectangle([margin, top, margin + side * min(passed, 1.0), top + strip], LINE)
        return np.asarray(image.reduce(2))

    def _observe(self, state: PursuitState, params: PursuitParams) -> jax.Array:
        passed = jnp.clip(state.time * params.dt / params.time_limit, 0.0, 1.0)
        # An angle would jump at pi and have no value for "none yet"; (cos, sin) does neither.
        observation = jnp.concatenate(
            [passed[None], state.position.reshape(-1), state.heading.reshape(-1)]
        )
        return jnp.broadcast_to(observation, (self.num_agents, observation.size))

    def _reward(self, state: PursuitState, caught: jax.Array, params: PursuitParams) -> jax.Array:
        """Rewards of all players, (num_players,)."""
        catcher = 1 + jnp.argmin(_distances(state.position))
        players = jnp.arange(self.num_players)
        helper = params.helper_share * params.catch_reward
        at_catch = jnp.where(players == catcher, params.catch_reward, helper)
        at_catch = jnp.where(players == 0, -params.catch_reward, at_catch)
        otherwise = jnp.where(players == 0, params.step_reward, -params.step_reward)
        return jnp.where(caught, at_catch, otherwise).astype(jnp.float32)

    def _scripted_prey(self, key: jax.Array, state: PursuitState) -> jax.Array:
        if self.prey == "flee":
            return _actions(_away(state.position), self.continuous)
        if self.continuous:
            return jax.random.uniform(key, (1,), minval=-math.pi, maxval=math.pi)
        return jax.random.randint(key, (), 0, len(DIRECTIONS))


class Hunt(Pursuit):
    """Pursuit for a team: three predators as fast as the prey, which flees; discrete headings."""

    def __init__(self, num_players: int = 4, continuous: bool = False, prey: str = "flee"):
        super().__init__(num_players, continuous, prey)

    @property
    def default_params(self) -> PursuitParams:
        return PursuitParams()

    @property
    def name(self) -> str:
        return "Hunt-v0"


# --- scripted players, for comparison -----------------------------------------------------------


def chase(observation: jax.Array, player: Any, continuous: bool = True) -> jax.Array:
    """The action of a predator that runs straight at the prey.

    Args:
      observation: of one agent, (..., 1 + 4 * num_players).
      player: the predator's index, 1 to num_players - 1; 0 is the prey, even if it is no agent.
      continuous: as in the environment.

    Returns:
      The heading to the prey, (..., 1), or the nearest of the four directions, int32 (...).
    """
    position = _positions(observation)
    return _actions(position[..., 0, :] - position[..., player, :], continuous)


def flee(observation: jax.Array, continuous: bool = True) -> jax.Array:
    """The action of a prey that runs straight away from the nearest predator; arguments as in
    `chase`."""
    return _actions(_away(_positions(observation)), continuous)


def _positions(observation: jax.Array) -> jax.Array:
    """The positions of all players, (..., num_players, 2)."""
    num_players = (observation.shape[-1] - 1) // 4
    position = observation[..., 1 : 1 + 2 * num_players]
    return position.reshape(*observation.shape[:-1], num_players, 2)


def _distances(position: jax.Array) -> jax.Array:
    """The distances from the prey to each predator, (..., num_players - 1)."""
    return jnp.linalg.norm(position[..., 1:, :] - position[..., :1, :], axis=-1)


def _away(position: jax.Array) -> jax.Array:
    """The vector from the nearest predator to the prey, (..., 2)."""
    nearest = 1 + jnp.argmin(_distances(position), axis=-1)[..., None, None]
    predator = jnp.take_along_axis(position, nearest, axis=-2)[..., 0, :]
    return position[..., 0, :] - predator


def _actions(direction: jax.Array, continuous: bool) -> jax.Array:
    """The action along a vector (..., 2) of any length; a zero vector gives right."""
    if continuous:
        return jnp.arctan2(direction[..., 1], direction[..., 0])[..., None]
    return jnp.argmax(direction @ jnp.array(DIRECTIONS).T, axis=-1).astype(jnp.int32)


def _vectors(action: jax.Array, continuous: bool) -> jax.Array:
    """Unit vectors (..., 2) of actions (..., 1) or (...)."""
    if continuous:
        return jnp.concatenate([jnp.cos(action), jnp.sin(action)], axis=-1)
    return jnp.array(DIRECTIONS)[action]
