"""A GIF of one episode, drawn by envs/pictures.py; of a world model, with what it imagines."""

import functools
import io
import itertools
from collections.abc import Iterable, Iterator
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
from algorithms.launch.engine.outputs import Output
from algorithms.launch.engine.settings import algorithm_name
from envs import pictures

REST, LEAST = 1500, 2000  # milliseconds of the last frame, and of a GIF at least
SEEN, IMAGINED = 5, 45  # frames of a dream: the first ones are observed; again and again


class Episode(NamedTuple):
    """What is drawn; leading axis the frames, which are one more than the steps."""

    states: Any
    returns: np.ndarray  # raw rewards so far; a trailing axis is the players of a game
    ending: str  # terminated, truncated or cut
    dreamt: np.ndarray | None  # observations that a world model saw or imagined


def render(
    module: Any,
    config: Any,
    state: Any,
    path: Path,
    seed: int = 0,
    max_frames: int = 1000,
    dream: bool = False,
) -> Path:
    """Writes a GIF of one whole episode of one trial's deterministic policy.

    Args:
      module: the algorithm's module (only `make_policy` is used, and `make_dream`).
      config: of that trial.
      state: anything whose `policy` is that trial's (no trial axis).
      path: of the GIF. If there is one already, -1, -2, ... is added to the name.
      seed: of the start state and of the environment's own randomness.
      max_frames: a longer episode is cut here, and says so in its last frame.
      dream: below the episode, draw what the world model expects: of each 50 frames it sees the
        first five, and predicts the others from the actions alone.

    Returns:
      Where the GIF is.

    Raises:
      UserError: this environment cannot be drawn, or a library for it is missing; or there is no
        dream to draw.
    """
    painter = check_drawable(config)
    env, env_params = envs.make(config.env, **dict(config.env_settings))
    if dream:
        check_dream(module, config, painter)
    episode = play(module, config, state, seed, max_frames, dream)
    inner, env_params, states = pictures.unwrap(env, env_params, episode.states)
    below = None
    if painter.observed and episode.dreamt is not None:
        below = painter.observed(inner, env_params, episode.dreamt)
    frames = _annotate(painter.paint(inner, env_params, states), inner.name, episode, below)
    try:
        return _save(frames, painter.milliseconds, Path(path))
    except pictures.CannotDrawError as error:
        raise UserError(str(error)) from error


class Gif(Output):
    """An episode of the first trial, when the option `gif` says."""

    def at(self, point: Any, states: Any) -> None:
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


def check_drawable(config: Any) -> pictures.Painter:
    """What draws this environment; call it before training to refuse a GIF early.

    Raises:
      UserError: nothing does, or a library is missing.
    """
    env, _ = envs.make(config.env, **dict(config.env_settings))
    try:
        return pictures.painter(env, config.env)
    except pictures.CannotDrawError as error:
        raise UserError(str(error)) from error


def check_dream(module: Any, config: Any, painter: pictures.Painter) -> None:
    """Refuses a dream without a world model, and observations that do not show the environment."""
    if not hasattr(module, "make_dream"):
        name = algorithm_name(module)
        raise UserError(f"--dream: {name} has no world model to show; dreamer.py has one")
    env, env_params = envs.make(config.env, **dict(config.env_settings))
    inner, inner_params, _ = pictures.unwrap(env, env_params, None)
    shapes = [e.observation_space(p).shape for e, p in ((env, env_params), (inner, inner_params))]
    if painter.observed is None or shapes[0] != shapes[1]:
        known = [name for name, other in pictures.PAINTERS.items() if other.observed]
        raise UserError(
            f"--dream: a picture cannot be drawn from observations of env={config.env} with these "
            f"settings. It can from the whole ones of {', '.join(known)}"
        )


# --- the episode -----------------------------------------------------------------------------


@parts.with_usual_jax
def play(
    module: Any, config: Any, state: Any, seed: int, max_frames: int, dream: bool = False
) -> Episode:
    """Plays one episode, of max_frames - 1 steps at most. Arguments as for `render`."""
    env, env_params = envs.make(config.env, **dict(config.env_settings))
    given = config, env_params, state.policy, jax.random.key(seed)
    first, states, reward, terminated, truncated, dreamt = _steps(
        *given, module, env, max_frames - 1, dream
    )
    terminated, truncated = np.asarray(terminated), np.asarray(truncated)
    done = terminated | truncated
    last = int(done.argmax()) if done.any() else len(done) - 1
    steps = last + 1
    states = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b[:steps]]), first, states)
    returns = np.cumsum(np.asarray(reward, np.float64)[:steps], axis=0)
    returns = np.concatenate([np.zeros_like(returns[:1]), returns])
    ending = "terminated" if terminated[last] else "truncated" if truncated[last] else "cut"
    return Episode(states, returns, ending, np.asarray(dreamt)[: steps + 1] if dream else None)


@functools.partial(jax.jit, static_argnames=("module", "env", "num_steps", "dream"))
def _steps(config, env_params, policy_state, rng, module, env, num_steps, dream):
    """The first state, and states, rewards and flags of num_steps (meaningless after the end); the
    observations of a dream, which are one more, or None."""
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
        action, memory = act(observation, env_state, rewarded(memory, flags[0]))
        seen = (observation, memory) if dream else None
        return (env_state, action, memory), (env_state, *flags, seen)

    keys, start = jax.random.split(steps_key, num_steps), act(observation, first)
    *steps, seen = jax.lax.scan(step, (first, *start), keys)[1]
    if not dream:
        return first, *steps, None
    join = lambda a, b: jnp.concatenate([jnp.asarray(a)[None], b])
    seen = jax.tree.map(join, (observation, start[1]), seen)
    return first, *steps, _dreams(module.make_dream(config, env, env_params), state, *seen)


def _dreams(dream, state, observations, memories):
    """Observations (frames, ...) that the world model sees, or imagines from the actions alone."""

    def step(world, inputs):
        index, observation, memory = inputs
        expected, imagined = dream(state, world)
        seen = index % (SEEN + IMAGINED) < SEEN
        world = jax.tree.map(lambda x, y: jnp.where(seen, x, y), memory, imagined)
        return world._replace(action=memory.action), jnp.where(seen, observation, expected)

    start = jax.tree.map(lambda x: x[0], memories)
    indices = jnp.arange(len(observations))
    return jax.lax.scan(step, start, (indices, observations, memories))[1]


# --- the file --------------------------------------------------------------------------------


def _annotate(
    drawn: Iterable[np.ndarray],
    name: str,
    episode: Episode,
    dreamt: Iterable[np.ndarray] | None = None,
) -> Iterator[Any]:
    """Puts a strip with the step and the return so far above every picture, and dreams below."""
    below = itertools.repeat(None, len(episode.returns)) if dreamt is None else dreamt
    frames = zip(drawn, episode.returns, below, strict=True)
    for step, (picture, so_far, dream) in enumerate(frames):
        digits = 6 if np.ndim(so_far) == 0 else 3  # several have to fit
        returns = " / ".join(f"{value:.{digits}g}" for value in np.atleast_1d(so_far))
        ending = f"   {episode.ending}" if step == len(episode.returns) - 1 else ""
        frame = _titled(picture, name, f"step {step}   return {returns}{ending}")
        ahead = step % (SEEN + IMAGINED) - SEEN + 1
        what = f"imagined, {ahead} steps ahead" if ahead > 0 else "observed"
        yield frame if dream is None else _above(frame, _titled(dream, "world model", what))


def _titled(picture: np.ndarray, *lines: str) -> Any:
    """The picture below a strip with two lines."""
    from PIL import Image, ImageDraw, ImageFont

    font, strip = ImageFont.load_default(13), 42
    height, width = picture.shape[:2]
    frame = Image.new("RGB", (max(width, pictures.WIDTH), height + strip), "white")
    frame.paste(Image.fromarray(picture), ((frame.width - width) // 2, strip))
    draw = ImageDraw.Draw(frame)
    for line, y in zip(lines, (4, 21)):
        draw.text((8, y), line, "black", font)
    return frame


def _above(top: Any, bottom: Any) -> Any:
    """Both frames, which are as wide, in one."""
    from PIL import Image

    whole = Image.new("RGB", (top.width, top.height + bottom.height))
    whole.paste(top, (0, 0))
    whole.paste(bottom, (0, top.height))
    return whole


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
    """Writes a GIF that repeats and rests on its last frame, to a name that is not taken.

    A short episode is slowed down, so that it can be seen.
    """
    first, *rest = [_with_palette(frame) for frame in frames]
    slow = -(-(LEAST - REST) // max(1, len(rest)))
    times = [max(milliseconds, slow)] * len(rest) + [REST]
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
