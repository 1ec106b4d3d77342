"""Pictures of environments, (env, env_params, states) to frames (height, width, 3) uint8.

Grids (MinAtar, Pong, Catch, mazes) and PointRobot are drawn here, classic control by gymnasium.
pgx draws its games, and resvg-py turns that into pixels. An environment with `render(state, params)
-> (height, width, 3) uint8` draws itself, and may say by `frame_milliseconds` how long a frame is
shown.
"""

import importlib.util
import io
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

WIDTH = 320  # pixels of a frame, at least
CLASSIC_WIDTH = 400  # of gymnasium's pictures, which are 500 or 600 wide and make large files
# Black, then one colour for each kind of thing on a grid.
COLOURS = np.array(
    [
        (20, 20, 24), (86, 180, 233), (240, 228, 66), (150, 110, 60), (213, 94, 0), (0, 158, 115),
        (204, 121, 167), (230, 159, 0), (245, 245, 245), (0, 114, 178), (160, 160, 160),
    ],
    np.uint8,
)  # fmt: skip
FLOOR, WALL, GOAL, AGENT = (np.array(c, np.uint8) for c in (
    (224, 224, 224), (60, 64, 72), (0, 158, 115), (213, 94, 0),
))  # fmt: skip


class Painter(NamedTuple):
    paint: Callable[[Any, Any, Any], Iterable[np.ndarray]]
    milliseconds: int  # a frame is shown
    # The same of observations (frames, ...) in place of states, where they show everything.
    observed: Callable[[Any, Any, np.ndarray], Iterable[np.ndarray]] | None = None


class CannotDrawError(ValueError):
    """An environment without a picture, or a library that is missing for one."""


def painter(env: Any, name: str) -> Painter:
    """What draws this environment.

    Raises:
      CannotDrawError: nothing does (the message lists what can be drawn), or a library is missing.
    """
    inner, *_ = unwrap(env, None, None)
    itself = Painter(_itself, getattr(inner, "frame_milliseconds", 50))
    found = itself if _draws_itself(inner) else PAINTERS.get(inner.name)
    if found is None and inner.name.startswith("pgx/"):
        found = MINATAR_OF_PGX if inner.name.startswith("pgx/minatar-") else GAME_OF_PGX
    if found is None:
        raise CannotDrawError(
            f"env={name} cannot be drawn. These can: {', '.join(PAINTERS)}, games of pgx, and"
            " any environment with a method render(state, params) -> (height, width, 3) uint8"
        )
    if found is GAME_OF_PGX and importlib.util.find_spec("resvg_py") is None:
        raise CannotDrawError(f"drawing {inner.name} needs resvg-py: pip install resvg-py")
    if found.paint is _classic and importlib.util.find_spec("pygame") is None:
        raise CannotDrawError(f"drawing {inner.name} needs pygame: pip install pygame")
    return found


def unwrap(env: Any, env_params: Any, states: Any) -> tuple[Any, Any, Any]:
    """Looks through wrappers for what can be drawn: the environment, the parameters of this episode
    and the environment's part of the states."""
    from envs import randomized

    while "env" in vars(env) and not _draws_itself(env):
        if isinstance(env, randomized.Randomized) and states is not None:
            env_params = env.drawn(jax.tree.map(lambda x: x[0], states), env_params)
        if hasattr(type(env), "inner_state") and states is not None:
            states = env.inner_state(states)
        env = env.env
    return env, env_params, states


def _draws_itself(env: Any) -> bool:
    """Whether it has a `render` that gives a picture; those of gymnax give a matplotlib figure."""
    method = getattr(type(env), "render", None)
    return method is not None and not method.__module__.startswith("gymnax.")


# --- painters -------------------------------------------------------------------------------


def _each(states: Any) -> Iterator[Any]:
    """The states one by one, with numpy leaves (typed keys stay as they are)."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    states = jax.tree.map(lambda x: x if is_key(x) else np.asarray(x), states)
    leaves, structure = jax.tree.flatten(states)
    for one in zip(*leaves):
        yield jax.tree.unflatten(structure, one)


def _itself(env: Any, env_params: Any, states: Any) -> Iterator[np.ndarray]:
    for state in _each(states):
        frame = np.asarray(env.render(state, env_params))
        if frame.ndim != 3 or frame.shape[-1] != 3 or frame.dtype != np.uint8:
            raise CannotDrawError(
                f"{env.name}.render gave {frame.dtype}{list(frame.shape)};"
                " a picture is uint8 [height, width, 3]"
            )
        yield _cells(frame)


def _classic(env: Any, env_params: Any, states: Any) -> Iterator[np.ndarray]:
    vectors = np.stack([np.asarray(getattr(states, name)) for name in CLASSIC[env.name]], -1)
    return _gymnasium(env, env_params, vectors, getattr(states, "last_u", None))


def _classic_observed(env: Any, env_params: Any, observations: np.ndarray) -> Iterator[np.ndarray]:
    x = observations
    if env.name == "Pendulum-v1":
        x = np.stack([np.arctan2(x[:, 1], x[:, 0]), x[:, 2]], -1)
    if env.name == "Acrobot-v1":
        angles = np.arctan2(x[:, 1], x[:, 0]), np.arctan2(x[:, 3], x[:, 2])
        x = np.stack([*angles, x[:, 4], x[:, 5]], -1)
    return _gymnasium(env, env_params, x, None)


def _gymnasium(
    env: Any, env_params: Any, vectors: np.ndarray, torques: Any
) -> Iterator[np.ndarray]:
    """gymnasium's pictures of its state vectors (frames, numbers)."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    import gymnasium
    import pygame
    from PIL import Image

    canvas: Any = gymnasium.make(env.name, render_mode="rgb_array").unwrapped
    # With a surface in place it does not start pygame's sound and window system.
    size = [getattr(canvas, name, 500) for name in ("screen_width", "screen_height")]
    canvas.screen = pygame.Surface(size)
    for name in GYMNASIUM_PARAMETERS:
        if hasattr(canvas, name) and hasattr(env_params, name.lower()):
            setattr(canvas, name, float(getattr(env_params, name.lower())))
    for i, vector in enumerate(vectors):
        canvas.state = np.array(vector, np.float64)
        canvas.last_u = None if torques is None else float(np.squeeze(torques[i]))
        frame = Image.fromarray(canvas.render())
        yield np.asarray(frame.resize((CLASSIC_WIDTH, frame.height * CLASSIC_WIDTH // frame.width)))


def _channels(env: Any, env_params: Any, states: Any) -> Iterator[np.ndarray]:
    """Observations (height, width, channels) of zeros and ones; the last channel set wins."""
    key = jax.random.key(0)
    observe = jax.jit(jax.vmap(lambda state: env.observe(key, state, None, env_params)))
    yield from _planes(np.asarray(observe(states)))


def _planes_observed(env: Any, env_params: Any, observations: np.ndarray) -> Iterator[np.ndarray]:
    return _planes(observations if observations.ndim == 4 else observations[..., None])


def _planes(observations: np.ndarray) -> Iterator[np.ndarray]:
    planes = observations > 0.5
    kinds = np.max(planes * np.arange(1, planes.shape[-1] + 1), axis=-1)
    for kind in kinds:
        yield _cells(COLOURS[kind])


def _minatar_of_pgx(env: Any, env_params: Any, states: Any) -> Iterator[np.ndarray]:
    yield from _planes(np.asarray(env.inner_state(states).observation))


def _game_of_pgx(env: Any, env_params: Any, states: Any) -> Iterator[np.ndarray]:
    import matplotlib
    import resvg_py
    from PIL import Image

    # A font that is everywhere: a bare machine has none, and shows no numbers then.
    font = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    families: dict[str, Any] = dict.fromkeys(
        ("font_family", "serif_family", "sans_serif_family"), "DejaVu Sans"
    )
    for state in _each(env.inner_state(states)):
        svg = jax.tree.map(jnp.asarray, state).to_svg(color_theme="light")
        png = resvg_py.svg_to_bytes(svg_string=svg, font_files=[str(font)], **families)
        picture = Image.open(io.BytesIO(bytes(png))).convert("RGBA")
        whole = Image.new("RGBA", picture.size, "white")
        whole.alpha_composite(picture)
        yield np.asarray(whole.convert("RGB"))


def _catch(env: Any, env_params: Any, states: Any) -> Iterator[np.ndarray]:
    for state in _each(states):
        cells = np.full((env.rows, env.columns, 3), COLOURS[0])
        cells[state.paddle_y, state.paddle_x] = COLOURS[1]
        cells[state.ball_y, state.ball_x] = COLOURS[2]
        yield _cells(cells)


def _maze(env: Any, env_params: Any, states: Any) -> Iterator[np.ndarray]:
    walls = np.asarray(env.occupied_map, bool)
    for state in _each(states):
        cells = np.where(walls[..., None], WALL, FLOOR)
        cells[tuple(state.goal)] = GOAL
        cells[tuple(state.pos)] = AGENT
        yield _cells(cells)


def _cells(colours: np.ndarray) -> np.ndarray:
    """A picture of a grid of colours (rows, columns, 3), or a small picture made larger."""
    size = max(1, WIDTH // max(colours.shape[:2]))
    return colours.repeat(size, axis=0).repeat(size, axis=1)


def _point_robot(env: Any, env_params: Any, states: Any) -> Iterator[np.ndarray]:
    from PIL import Image, ImageDraw

    radius, goal_radius = float(env_params.circle_radius), float(env_params.goal_radius)
    places = np.asarray(states.pos)
    corner = np.array([radius + goal_radius, 0.0])
    low = np.minimum(places.min(axis=0), -corner - goal_radius * np.array([0, 1])) - 0.05
    high = np.maximum(places.max(axis=0), corner + (radius + goal_radius) * np.array([0, 1])) + 0.05
    scale = 2 * WIDTH / (high[0] - low[0])  # twice the size, for smooth edges
    width, height = 2 * WIDTH, round(scale * (high[1] - low[1]))

    def disc(centre, size):
        x, y = (centre[0] - low[0]) * scale, (high[1] - centre[1]) * scale
        return [x - size * scale, y - size * scale, x + size * scale, y + size * scale]

    for state in _each(states):
        image = Image.new("RGB", (width, height), tuple(FLOOR))
        draw = ImageDraw.Draw(image)
        draw.arc(disc((0.0, 0.0), radius), 180, 360, fill=tuple(WALL), width=4)
        draw.ellipse(disc(state.goal, goal_radius), fill=(150, 210, 190))
        draw.ellipse(disc(state.pos, 0.04), fill=tuple(AGENT))
        yield np.asarray(image.reduce(2))


CLASSIC = {  # fields of the state, in the order of gymnasium's state vector
    "CartPole-v1": ("x", "x_dot", "theta", "theta_dot"),
    "Acrobot-v1": ("joint_angle1", "joint_angle2", "velocity_1", "velocity_2"),
    "Pendulum-v1": ("theta", "theta_dot"),
    "MountainCar-v0": ("position", "velocity"),
    "MountainCarContinuous-v0": ("position", "velocity"),
}
GYMNASIUM_PARAMETERS = (  # those that its pictures depend on; gymnax has them in lower case
    "x_threshold", "length", "LINK_LENGTH_1", "LINK_LENGTH_2",
    "min_position", "max_position", "goal_position",
)  # fmt: skip
GAME_OF_PGX, MINATAR_OF_PGX = Painter(_game_of_pgx, 600), Painter(_minatar_of_pgx, 80)
GAMES = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
PAINTERS = {
    **{name: Painter(_classic, 40, _classic_observed) for name in CLASSIC},
    **{f"{name}-MinAtar": Painter(_channels, 80, _planes_observed) for name in GAMES},
    "Pong-misc": Painter(_channels, 50, _planes_observed),
    "Catch-bsuite": Painter(_catch, 200, _planes_observed),
    "PointRobot-misc": Painter(_point_robot, 80),
    "MetaMaze-misc": Painter(_maze, 150),
    "FourRooms-misc": Painter(_maze, 150),
}
