"""Navigation: discs in a box steer to their goals and bump into walls and into one another."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs.gymnax import Environment, spaces

COLLISIONS = ("elastic", "penalised")
# No force, right, up, left, down.
FORCES = ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))
NUM_NEIGHBOURS = 3  # the most discs that a disc sees

SIDE, MARGIN = 304, 8  # pixels: the box and around it
PAPER, FIELD, LINE = (255, 255, 255), (240, 240, 240), (60, 64, 72)
COLOURS = (
    (213, 94, 0), (0, 114, 178), (0, 158, 115), (204, 121, 167), (230, 159, 0), (86, 180, 233),
    (150, 110, 60), (110, 110, 110),
)  # fmt: skip


@struct.dataclass
class NavigationState:
    """Vectors in the box's coordinates, whose origin is its centre."""

    position: jax.Array  # (num_agents, 2)
    velocity: jax.Array  # (num_agents, 2)
    goal: jax.Array  # (num_agents, 2)
    time: jax.Array  # steps, int32 ()


@struct.dataclass
class NavigationParams:
    """Lengths, times and masses share units of their own."""

    half_width: float = 1.0  # half the side of the square box
    radius: float = 0.1  # radius of a disc; smaller by default with more than 12
    goal_radius: float = 0.1  # a disc is at its goal if its centre is nearer than this
    mass: float = 1.0
    max_force: float = 1.0  # force along each axis for an action of 1
    drag: float = 1.0  # force per velocity; the speed tends to max_force / drag
    stiffness: float = 100.0  # force per overlap of two discs ("penalised" only)
    wall_bounce: float = 0.5  # share of the speed kept at a wall: 0 stops, 1 reflects
    dt: float = 0.05
    max_steps_in_episode: float = 200.0  # truncates
    progress_reward: float = 1.0  # reward per unit of distance gained
    goal_reward: float = 0.05  # reward for a step that ends at the goal
    collision_cost: float = 0.1  # cost of a step in which another disc was touched
    effort_cost: float = 0.001  # cost of a step per square of the action's length


class Navigation(Environment):
    """Discs with inertia and linear drag, in gymnax's interface with a leading agent axis.

    In a step, the action's force and the drag change the velocities, and velocities change the
    positions. The drag is integrated implicitly, so it is stable at any size. Then discs collide,
    and walls hold them back.

    The task is to reach the goal and to hold it. It never terminates. An end when all goals are
    reached would take away the rewards for holding them, and policies would learn to stay just
    outside. After `max_steps_in_episode` steps it is truncated.

    Starts keep clear of one another, and so do goals. Each set lies in different cells of a grid,
    shuffled, with a uniform place within each cell. 2 * radius must fit into a cell; one disc has
    the whole box. A goal may be under a disc, even its own.

    Reward of an agent: progress_reward * decrease of its distance to the goal, + goal_reward at the
    goal, - collision_cost if it touched another disc, - effort_cost * |action|^2.

    Observation of an agent, (6 + 4 * k,) with k = min(3, num_agents - 1): the vector to its goal,
    its velocity and its position. For the k nearest other discs, the nearest first, the vector to
    it and its velocity relative to the agent's follow. Lengths are in half widths of the box.

    `info["reached"]` (num_agents,) marks agents at their goal after this step, and
    `info["collided"]` those that touched another disc in it.

    Args:
      num_agents: number of discs.
      collisions: "elastic": discs that overlap and approach exchange the velocities along their
        normal, and are moved apart. "penalised": only a spring pushes overlapping discs apart, and
        mainly the collision's cost keeps agents from touching.
      continuous: an action is a force, Box(-1, 1, (2,)), times max_force; otherwise it is
        no force, right, up, left or down, Discrete(5).

    Raises:
      ValueError: a setting that is none of these.
    """

    def __init__(self, num_agents: int = 1, collisions: str = "elastic", continuous: bool = True):
        if type(num_agents) is not int or num_agents < 1:
            raise ValueError(f"num_agents={num_agents!r}: give a whole number, 1 or more")
        if collisions not in COLLISIONS:
            raise ValueError(f"collisions={collisions!r}: there are {', '.join(COLLISIONS)}")
        if type(continuous) is not bool:
            raise ValueError(f"continuous={continuous!r}: give True or False")
        super().__init__()
        self.num_agents, self.collisions, self.continuous = num_agents, collisions, continuous
        self.num_neighbours = min(NUM_NEIGHBOURS, num_agents - 1)
        # At least twice as many cells as discs: with all cells taken, starts would hardly differ.
        self.cells = 1 if num_agents == 1 else math.ceil(math.sqrt(2 * num_agents))  # along a side
        self.rounds = _rounds(num_agents)

    @property
    def default_params(self) -> NavigationParams:
        return NavigationParams(radius=min(0.1, 0.5 / self.cells))

    @property
    def name(self) -> str:
        return "Navigator-v0" if self.num_agents == 1 else "MultiNavigator-v0"

    @property
    def num_actions(self) -> int:
        return 2 if self.continuous else len(FORCES)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, NavigationState]:
        start_key, goal_key = jax.random.split(key)
        position, goal = self._places(start_key, params), self._places(goal_key, params)
        state = NavigationState(position, jnp.zeros_like(position), goal, jnp.zeros((), jnp.int32))
        return self._observe(state, params), state

    def step_env(self, key: jax.Array, state: NavigationState, action: jax.Array, params: Any):
        action = jnp.clip(action, -1.0, 1.0) if self.continuous else jnp.array(FORCES)[action]
        force = params.max_force * action
        collided = jnp.zeros(self.num_agents, bool)
        if self.collisions == "penalised":
            spring, collided = self._spring(state.position, params)
            force += spring
        velocity = state.velocity + params.dt / params.mass * force
        velocity /= 1.0 + params.dt / params.mass * params.drag
        position = state.position + params.dt * velocity
        if self.collisions == "elastic":
            position, velocity, collided = self._collide(position, velocity, params)
        position, velocity = _hold(position, velocity, params)
        time = state.time + 1
        after = dataclasses.replace(state, position=position, velocity=velocity, time=time)
        before_distance, distance = _goal_distance(state), _goal_distance(after)
        reached = distance < params.goal_radius
        reward = (
            params.progress_reward * (before_distance - distance)
            + params.goal_reward * reached
            - params.collision_cost * collided
            - params.effort_cost * jnp.square(action).sum(-1)
        )
        info = {"reached": reached, "collided": collided}
        return self._observe(after, params), after, reward, self.is_terminated(after, params), info

    def is_terminated(self, state: NavigationState, params: NavigationParams) -> jax.Array:
        return jnp.zeros((), bool)

    def is_truncated(self, state: NavigationState, params: NavigationParams) -> jax.Array:
        return state.time >= params.max_steps_in_episode

    def action_space(self, params: NavigationParams) -> Any:
        return spaces.Box(-1.0, 1.0, (2,)) if self.continuous else spaces.Discrete(len(FORCES))

    def observation_space(self, params: NavigationParams) -> Any:
        return spaces.Box(-jnp.inf, jnp.inf, (6 + 4 * self.num_neighbours,))

    def render(self, state: NavigationState, params: NavigationParams) -> np.ndarray:
        """A picture (height, width, 3) uint8.

        Goals are rings of the goal's radius in the colour of their disc. A line shows where a disc
        will be in half a unit of time.
        """
        from PIL import Image, ImageDraw

        side, margin = 2 * SIDE, 2 * MARGIN  # twice the size, for smooth edges
        image = Image.new("RGB", (side + 2 * margin, side + 2 * margin), PAPER)
        draw = ImageDraw.Draw(image)
        draw.rectangle([margin, margin, margin + side, margin + side], FIELD, LINE, 4)
        scale = side / (2 * float(params.half_width))
        centre = margin + side / 2
        flip = np.array([scale, -scale])  # upwards in the box is upwards in the picture
        places = np.asarray(state.position, np.float64) * flip + centre
        goals = np.asarray(state.goal, np.float64) * flip + centre
        ends = places + 0.5 * np.asarray(state.velocity, np.float64) * flip
        size, ring = float(params.radius) * scale, float(params.goal_radius) * scale
        colours = [COLOURS[i % len(COLOURS)] for i in range(self.num_agents)]
        for place, colour in zip(places, colours):
            draw.ellipse([*(place - size), *(place + size)], colour, LINE, 2)
        for goal, colour in zip(goals, colours):  # on top, because a disc would hide its goal
            draw.ellipse([*(goal - ring), *(goal + ring)], outline=LINE, width=8)
            draw.ellipse([*(goal - ring + 1), *(goal + ring - 1)], outline=colour, width=6)
        for place, end in zip(places, ends):
            draw.line([*place, *end], LINE, 5)
        return np.asarray(image.reduce(2))

    def _places(self, key: jax.Array, params: NavigationParams) -> jax.Array:
        """Positions (num_agents, 2) of discs that do not overlap."""
        cell_key, place_key = jax.random.split(key)
        cell = jax.random.permutation(cell_key, self.cells**2)[: self.num_agents]
        corner = jnp.stack([cell % self.cells, cell // self.cells], axis=-1)
        width = 2.0 * params.half_width / self.cells
        room = jnp.maximum(width / 2.0 - params.radius, 0.0)
        place = jax.random.uniform(place_key, (self.num_agents, 2), minval=-1.0, maxval=1.0)
        return (corner + 0.5) * width - params.half_width + room * place

    def _observe(self, state: NavigationState, params: NavigationParams) -> jax.Array:
        parts = [state.goal - state.position, state.velocity, state.position]
        if self.num_neighbours:
            others = _nearest(state.position, self.num_neighbours)
            parts += [
                jnp.concatenate([x[other] - x for x in (state.position, state.velocity)], axis=-1)
                for other in others
            ]
        return jnp.concatenate(parts, axis=-1) / params.half_width

    def _spring(self, position, params):
        """The force that pushes overlapping discs apart, and the discs that overlap."""
        apart = position[:, None] - position  # from each other disc to this one
        distance = jnp.linalg.norm(apart, axis=-1) + 1e9 * jnp.eye(self.num_agents)
        overlap = jnp.maximum(2.0 * params.radius - distance, 0.0)
        normal = apart / jnp.maximum(distance, 1e-6)[..., None]
        force = params.stiffness * (overlap[..., None] * normal).sum(axis=1)
        return force, jnp.any(overlap > 0.0, axis=1)

    def _collide(self, position, velocity, params):
        """Positions and velocities after all collisions, and the discs that touched another one.

        Pairs are settled in rounds, as in a tournament. No disc is in two pairs at once, so each
        round conserves momentum and energy exactly, however many discs meet.
        """

        def settle(carry, partner):
            position, velocity, collided = carry
            index = jnp.arange(self.num_agents)
            apart = position - position[partner]
            distance = jnp.linalg.norm(apart, axis=-1, keepdims=True)
            overlap = 2.0 * params.radius - distance
            touching = (overlap > 0.0) & (partner != index)[:, None]
            # Two discs at the same position move apart along x, the one with the lower index to the
            # left.
            fallback = jnp.stack([jnp.sign(index - partner), jnp.zeros_like(index)], axis=-1)
            normal = jnp.where(distance > 0.0, apart / jnp.maximum(distance, 1e-12), fallback)
            speed = ((velocity - velocity[partner]) * normal).sum(-1, keepdims=True)
            velocity -= jnp.where(touching & (speed < 0.0), speed, 0.0) * normal
            position += jnp.where(touching, overlap / 2.0, 0.0) * normal
            return (position, velocity, collided | touching[:, 0]), None

        carry = position, velocity, jnp.zeros(self.num_agents, bool)
        return jax.lax.scan(settle, carry, self.rounds, unroll=min(len(self.rounds), 8))[0]


class MultiNavigation(Navigation):
    """`Navigation` with four discs by default."""

    def __init__(self, num_agents: int = 4, collisions: str = "elastic", continuous: bool = True):
        super().__init__(num_agents, collisions, continuous)


def _goal_distance(state: NavigationState) -> jax.Array:
    return jnp.linalg.norm(state.goal - state.position, axis=-1)


def _hold(position: jax.Array, velocity: jax.Array, params: NavigationParams):
    """Positions within the walls; the velocity into a wall is turned back or stopped."""
    reach = jnp.maximum(params.half_width - params.radius, 0.0)
    inside = jnp.clip(position, -reach, reach)
    into_wall = velocity * (position - inside) > 0.0
    return inside, jnp.where(into_wall, -params.wall_bounce * velocity, velocity)


def _nearest(position: jax.Array, count: int) -> jax.Array:
    """Indices (count, num_agents) of the nearest other discs, the nearest first."""
    square = jnp.square(position[:, None] - position).sum(-1)
    square = jnp.where(jnp.eye(len(position), dtype=bool), jnp.inf, square)
    _, index = jax.lax.top_k(-square, count)
    return index.T


def _rounds(num_agents: int) -> np.ndarray:
    """Partners (num_rounds, num_agents) of a tournament in which each pair meets once.

    This is the circle method. If the number is odd, one disc per round is its own partner.
    """
    size = num_agents + num_agents % 2
    players, rounds = list(range(size)), []
    for _ in range(size - 1):
        partner = np.arange(size)
        for a, b in zip(players[: size // 2], reversed(players[size // 2 :])):
            partner[a], partner[b] = b, a
        if size > num_agents:
            partner[partner[num_agents]] = partner[num_agents]
        rounds.append(partner[:num_agents])
        players = [players[0], players[-1], *players[1:-1]]
    return np.array(rounds, np.int32).reshape(-1, num_agents)
