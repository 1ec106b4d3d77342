"""A GIF of one episode.

Grids (MinAtar, Pong, Catch, mazes) and PointRobot are drawn here, classic control by gymnasium.
pgx draws its games, and resvg-py turns that into pixels. An environment with `render(state, params)
-> (height, width, 3) uint8` draws itself, and may say by `frame_milliseconds` how long a frame is
shown.
"""

import functools
import importlib.util
import io
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import envs
from algorithms import parts
from algorithms.launch.engine import loading
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.metrics import Metrics
from algorithms.launch.engine.outputs import Output

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


class Episode(NamedTuple):
    """What is drawn; leading axis the frames, which are one more than the steps."""

    states: Any
    returns: np.ndarray  # raw rewards so far; a trailing axis is the players of a game
    ending: str  # terminated, truncated or cut


def render(
    module: Any, config: Any, state: Any, path: Path, seed: int = 0, max_frames: int = 1000
) -> Path:
    """Writes a GIF of one whole episode of one trial's deterministic policy.

    Args:
      module: the algorithm's module (only `make_policy` is used).
      config: of that trial.
      state: anything whose `policy` is that trial's (no trial axis).
      path: of the GIF. If there is one already, -1, -2, ... is added to the name.
      seed: of the start state and of the environment's own randomness.
      max_frames: a longer episode is cut here, and says so in its last frame.

    Returns:
      Where the GIF is.

    Raises:
      UserError: this environment cannot be drawn, or a library for it is missing.
    """
    painter = check_drawable(config)
    env, env_params = envs.make(config.env, **dict(config.env_settings))
    episode = play(module, config, state, seed, max_frames)
    inner, env_params, states = _unwrap(env, env_params, episode.states)
    pictures = painter.paint(inner, env_params, states)
    frames = _annotate(pictures, inner.name, episode)
    return _save(frames, painter.milliseconds, Path(path))


class Gif(Output):
    """An episode of the first trial, when the option `gif` says."""

    def at(self, point: Any, states: Any, logged: Metrics) -> None:
        session, last = self.session, self.session.num_points
        if point.index != {"start": 0, "end": last, "every": point.index}[session.options.gif]:
            return
        with self.record.losses.survive("GIFs", f"no GIF of point {point.index}", Exception):
            acting = loading.Acting(session.layout.get(states.policy))
            state, trainer = loading.one_trial(acting, 0), session.trainer
            config = session.trials.config(trainer.config, 0)
            file = self.record.path / f"episode_{point.index:06d}.gif"
            file = render(trainer.module, config, state, file, session.trials.seeds[0])
            for output in self.record.outputs:
                output.gif(file, point.timestep)


def check_drawable(config: Any) -> "_Painter":
    """What draws this environment; call it before training to refuse a GIF early.

    Raises:
      UserError: nothing does (the message lists what can be drawn), or a library is missing.
    """
    env, _ = envs.make(config.env, **dict(config.env_settings))
    inner, *_ = _unwrap(env, None, None)
    itself = _Painter(_itself, getattr(inner, "frame_milliseconds", 50))
    painter = itself if _draws_itself(inner) else PAINTERS.get(inner.name)
    if painter is None and inner.name.startswith("pgx/"):
        painter = MINATAR_OF_PGX if inner.name.startswith("pgx/minatar-") else GAME_OF_PGX
    if painter is None:
        raise UserError(
            f"env={config.env} cannot be drawn. These can: {', '.join(PAINTERS)}, games of pgx, and"
            " any environment with a method render(state, params) -> (height, width, 3) uint8"
        )
    if painter is GAME_OF_PGX and importlib.util.find_spec("resvg_py") is None:
        raise UserError(f"drawing {inner.name} needs resvg-py: pip install resvg-py")
    if painter.paint is _classic and importlib.util.find_spec("pygame") is None:
        raise UserError(f"drawing {inner.name} needs pygame: pip install pygame")
    return painter


# --- the episode -----------------------------------------------------------------------------


@parts.with_usual_jax
def play(module: Any, config: Any, state: Any, seed: int, max_frames: int) -> Episode:
    """Plays one episode, of max_frames - 1 steps at most. Arguments as for `render`."""
    env, env_params = envs.make(config.env, **dict(config.env_settings))
    first, states, reward, terminated, truncated = _steps(
        config, env_params, state.policy, jax.random.key(seed), module, env, max_frames - 1
    )
    terminated, truncated = np.asarray(terminated), np.asarray(truncated)
    done = terminated | truncated
    last = int(done.argmax()) if done.any() else len(done) - 1
    steps = last + 1
    states = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b[:steps]]), first, states)
    returns = np.cumsum(np.asarray(reward, np.float64)[:steps], axis=0)
    returns = np.concatenate([np.zeros_like(returns[:1]), returns])
    ending = "terminated" if terminated[last] else "truncated" if truncated[last] else "cut"
    return Episode(states, returns, ending)


@functools.partial(jax.jit, static_argnames=("module", "env", "num_steps"))
def _steps(config, env_params, policy_state, rng, module, env, num_steps):
    """The first state, and states, rewards and flags of num_steps (meaningless after the end)."""
    from envs.batch import transition
    from envs.evaluation import rewarded

    policy = module.make_policy(config, env, env_params)
    state = SimpleNamespace(policy=policy_state)
    reset_key, steps_key = jax.random.split(rng)
    observation, first = env.reset_env(reset_key, env_params)

    def act(observation, env_state, memory=None):
        masked = hasattr(env, "action_mask")
        mask = {"mask": env.action_mask(env_state, env_params)} if masked else {}
        return policy(state, observation, memory, **mask)

    def step(carry, key):
        env_state, action, memory = carry
        observation, env_state, *flags, _ = transition(env, key, env_state, action, env_params)
        memory = rewarded(memory, flags[0])
        return (env_state, *act(observation, env_state, memory)), (env_state, *flags)

    keys = jax.random.split(steps_key, num_steps)
    _, steps = jax.lax.scan(step, (first, *act(observation, first)), keys)
    return first, *steps


def _unwrap(env: Any, env_params: Any, states: Any) -> tuple[Any, Any, Any]:
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


# --- pictures: (env, env_params, states) to frames (height, width, 3) uint8 --------------------


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
            raise UserError(
                f"{env.name}.render gave {frame.dtype}{list(frame.shape)};"
                " a picture is uint8 [height, width, 3]"
            )
        yield _cells(frame)


def _classic(env: Any, env_params: Any, states: Any) -> Iterator[np.ndarray]:
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
    for state in _each(states):
        canvas.state = np.array([getattr(state, name) for name in CLASSIC[env.name]], np.float64)
        if hasattr(state, "last_u"):
            canvas.last_u = float(np.squeeze(state.last_u))
        frame = Image.fromarray(canvas.render())
        yield np.asarray(frame.resize((CLASSIC_WIDTH, frame.height * CLASSIC_WIDTH // frame.width)))


def _channels(env: Any, env_params: Any, states: Any) -> Iterator[np.ndarray]:
    """Observations (height, width, channels) of zeros and ones; the last channel set wins."""
    key = jax.random.key(0)
    observe = jax.jit(jax.vmap(lambda state: env.observe(key, state, None, env_params)))
    yield from _planes(np.asarray(observe(states)))


def _planes(observations: np.ndarray) -> Iterator[np.ndarray]:
    planes = observations > 0
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


class _Painter(NamedTuple):
    paint: Callable[[Any, Any, Any], Iterable[np.ndarray]]
    milliseconds: int  # a frame is shown


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
GAME_OF_PGX, MINATAR_OF_PGX = _Painter(_game_of_pgx, 600), _Painter(_minatar_of_pgx, 80)
GAMES = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
PAINTERS = {
    **{name: _Painter(_classic, 40) for name in CLASSIC},
    **{f"{name}-MinAtar": _Painter(_channels, 80) for name in GAMES},
    "Pong-misc": _Painter(_channels, 50),
    "Catch-bsuite": _Painter(_catch, 200),
    "PointRobot-misc": _Painter(_point_robot, 80),
    "MetaMaze-misc": _Painter(_maze, 150),
    "FourRooms-misc": _Painter(_maze, 150),
}


# --- the file --------------------------------------------------------------------------------


def _annotate(pictures: Iterable[np.ndarray], name: str, episode: Episode) -> Iterator[Any]:
    """Puts a strip with the step and the return so far above every picture."""
    from PIL import Image, ImageDraw, ImageFont

    font, strip = ImageFont.load_default(13), 42
    for step, (picture, so_far) in enumerate(zip(pictures, episode.returns, strict=True)):
        height, width = picture.shape[:2]
        frame = Image.new("RGB", (max(width, WIDTH), height + strip), "white")
        frame.paste(Image.fromarray(picture), ((frame.width - width) // 2, strip))
        digits = 6 if np.ndim(so_far) == 0 else 3  # several have to fit
        returns = " / ".join(f"{value:.{digits}g}" for value in np.atleast_1d(so_far))
        ending = f"   {episode.ending}" if step == len(episode.returns) - 1 else ""
        draw = ImageDraw.Draw(frame)
        draw.text((8, 4), name, "black", font)
        draw.text((8, 21), f"step {step}   return {returns}{ending}", "black", font)
        yield frame


def _with_palette(frame: Any) -> Any:
    """The frame in at most 256 colours: its own, or ones near if it has more."""
    from PIL import Image

    colours = frame.getcolors(256)
    if colours is None:
        return frame.quantize(256, method=Image.Quantize.FASTOCTREE, dither=0)
    palette = Image.new("P", (1, 1))
    palette.putpalette([value for _, colour in colours for value in colour])
    return frame.quantize(palette=palette, dither=0)


def _save(frames: Iterator[Any], milliseconds: int, path: Path) -> Path:
    """Writes a GIF that repeats and rests on its last frame, to a name that is not taken."""
    first, *rest = [_with_palette(frame) for frame in frames]
    times = [milliseconds] * len(rest) + [1500]
    whole = io.BytesIO()
    first.save(whole, "GIF", save_all=True, append_images=rest, duration=times, loop=0)
    number, target = 0, path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while target.exists():
            number += 1
            target = path.with_stem(f"{path.stem}-{number}")
        with target.open("xb") as file:
            file.write(whole.getbuffer())
    except OSError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}") from error
    return target
