"""A GIF of one episode, drawn by envs/pictures.py."""

import functools
import io
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
from envs import pictures


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
    inner, env_params, states = pictures.unwrap(env, env_params, episode.states)
    frames = _annotate(painter.paint(inner, env_params, states), inner.name, episode)
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


# --- the file --------------------------------------------------------------------------------


def _annotate(drawn: Iterable[np.ndarray], name: str, episode: Episode) -> Iterator[Any]:
    """Puts a strip with the step and the return so far above every picture."""
    from PIL import Image, ImageDraw, ImageFont

    font, strip = ImageFont.load_default(13), 42
    for step, (picture, so_far) in enumerate(zip(drawn, episode.returns, strict=True)):
        height, width = picture.shape[:2]
        frame = Image.new("RGB", (max(width, pictures.WIDTH), height + strip), "white")
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
