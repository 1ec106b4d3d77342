"""The adapter for brax 0.14 (Freeman et al. 2021, arXiv:2106.13281): rigid bodies.

    env, env_params = envs.make("brax/hopper", backend="spring")
    env, env_params = envs.make("brax/ant", backend="mjx", terminate_when_unhealthy=False)

It takes raw environments. brax's wrappers restart every episode at one start state and lose the
final observation. The task's `done` terminates. brax itself has no time limit; the limit here is
the 1000 steps of brax's trainer (`max_steps`). Settings are arguments of the environment's
constructor, factors on the physics (envs/physics.py), or `precision`. Actions are in [-1, 1], as in
brax.

Physics computes in full float32 (`precision="highest"`). Otherwise GPUs from Ampere on multiply
float32 in TF32, of 10 bits, and TPUs in bfloat16. `high` and `default` are jax's other levels.

Where the physics diverges, NaN and infinity become zero in the observation and in the reward. The
metric `diverged` counts these steps. Parts of rewards (`reward_ctrl`, ...) are summed over an
episode. Other metrics have their last value.
"""

import copy
import importlib
import math
import os
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs import adapter, physics
from envs.adapter import Adapter, Step, library
from envs.gymnax import spaces

MAX_STEPS = 1000
START_WINDOW = 64  # a state of the physics is large


# Names that brax lists and that do not run, with the reason.
BROKEN = {"swimmer": "brax 0.14 calls jnp.clip with a_min, which jax does not take any more"}


def names() -> list[str]:
    """Every name of brax's that can be stepped, except `fast`, a toy of brax's own tests."""
    return [name for name in _envs()._envs if name not in ("fast", *BROKEN)]


def construct(name: str, settings: dict[str, Any]) -> tuple["Physics", dict[str, Any]]:
    """Builds an environment with those settings that its constructor takes.

    Returns the environment and the other settings.

    Raises:
      ValueError: brax is missing, or its constructor refuses the settings.
    """
    factory = _envs()._envs[name]
    known = adapter.arguments(factory)
    precision, settings = physics.precision_of(f"brax/{name}", settings)
    taken, left = adapter.split(settings, *known)
    try:
        wrapped = _envs().get_environment(name, **taken)
    except (TypeError, ValueError, AssertionError, KeyError) as error:
        raise ValueError(f"brax/{name} with {taken}: {error}") from error
    env = Brax(f"brax/{name}", wrapped, MAX_STEPS, precision)
    return env.taking((*known, "precision")), left


def _envs() -> Any:
    return library("brax.envs", "brax")


def camera_of(model: Any) -> int:
    """The first camera of a MuJoCo model that follows a body; -1, one that stands, if none does."""
    follows = 1, 2  # mjCAMLIGHT_TRACK and mjCAMLIGHT_TRACKCOM
    return next((i for i, mode in enumerate(model.cam_mode) if mode in follows), -1)


class Physics(Adapter):
    """The common part of brax and MuJoCo playground: a state that holds all results of a step.

    Attributes:
      model: the name of the attribute with the physical model.
      scales: whether its parameters have factors on the physics, see envs/physics.py.
      precision: of products, one of `physics.PRECISIONS`.
    """

    model: str

    start_window = START_WINDOW
    more_params = physics.NAMES  # which `with_more_params` adds
    scales = False

    def __init__(self, name: str, wrapped: Any, max_steps: int, precision: str):
        self.precision = precision
        space = spaces.Box(-1.0, 1.0, (wrapped.action_size,), jnp.float32)
        super().__init__(name, wrapped, max_steps, space)
        with jax.debug_key_reuse(False):  # shapes only; some environments use a key twice
            state = jax.eval_shape(wrapped.reset, jax.random.key(0))
        self._observed = state.obs  # shapes of all that the library observes
        size = sum(math.prod(x.shape) for x in jax.tree.leaves(self.seen(state.obs)))
        self._observations = spaces.Box(-jnp.inf, jnp.inf, (size,), jnp.float32)
        self.metrics = {n: "sum" if n.startswith("reward") else "last" for n in state.metrics}
        self.metrics["diverged"] = "sum"

    def with_more_params(self) -> "Physics":
        """This environment with factors on its physics. Without them its model is constant, which
        is faster."""
        other = copy.copy(self)
        other.scales = True
        return other

    @property
    def default_params(self):
        params = super().default_params
        return physics.Scales(params.max_steps_in_episode) if self.scales else params

    def world(self, params: Any) -> Any:
        """The library's environment with these parameters."""
        if not self.scales:
            return self.wrapped
        world = copy.copy(self.wrapped)
        setattr(world, self.model, physics.scaled(getattr(world, self.model), params))
        return world

    def first(self, key, params):
        with jax.default_matmul_precision(self.precision):
            state = self.world(params).reset(key)
        return self._observe(state), state

    def next(self, key, inner, action, params):
        inner = jax.tree.map(lambda x: x, inner)  # brax writes into the dictionaries of a state
        with jax.default_matmul_precision(self.precision):
            after = self.world(params).step(inner, action)
        observation, reward = self._observe(after), finite(after.reward)
        # A sum is not finite if one of its numbers is not.
        total = sum((x.sum() for x in jax.tree.leaves(after.obs)), after.reward)
        metrics = {**after.metrics, "diverged": 1.0 - jnp.isfinite(total)}
        return Step(observation, after, reward, after.done > 0, metrics)

    def seen(self, observation: Any) -> Any:
        """The part of the library's observation that a policy sees."""
        return observation

    def drawn(self, inner: Any) -> tuple[Any, Any, Any]:
        """MuJoCo's view of a state: its model, positions and velocities."""
        raise NotImplementedError

    def render(self, state: Any, params: Any) -> np.ndarray:
        """A picture by MuJoCo, which needs no display."""
        import mujoco

        model, positions, velocities = self.drawn(state.inner)
        data = mujoco.MjData(model)
        data.qpos, data.qvel = positions, velocities
        mujoco.mj_forward(model, data)
        if not hasattr(self, "_renderer"):
            if sys.platform == "linux" and "MUJOCO_GL" not in os.environ:
                os.environ["MUJOCO_GL"] = "egl"  # software rendering, if needed
                importlib.reload(importlib.import_module("mujoco.rendering.classic.gl_context"))
            self._renderer = mujoco.Renderer(model, 240, 320)
        self._renderer.update_scene(data, camera_of(model))
        return self._renderer.render()

    def _observe(self, state: Any) -> jax.Array:
        return finite(adapter.flat(self.seen(state.obs)))


def finite(x: jax.Array) -> jax.Array:
    return jnp.where(jnp.isfinite(x), x, 0.0)


class Brax(Physics):
    model = "sys"

    def drawn(self, inner):
        return self.wrapped.sys.mj_model, inner.pipeline_state.q, inner.pipeline_state.qd
