"""The adapter for MuJoCo playground 0.2 (Zakka et al. 2025, arXiv:2502.08844): robots on MJX.

    env, env_params = envs.make("playground/CheetahRun")
    env, env_params = envs.make("playground/CartpoleSwingup", action_repeat=2, ctrl_dt=0.02)

It takes raw environments. playground's wrappers restart every episode at one start state and lose
the final observation. The task's `done` terminates. The time limit is `episode_length` of the
task's configuration, and `max_steps` changes it. Settings are entries of that configuration, nested
ones with dots, or factors on the physics (envs/physics.py). Physics is MJX in JAX (`impl="jax"`),
unless a setting says otherwise.

An observation that is a dictionary (`state`, `privileged_state`) becomes one vector in the order of
the names.

Where the physics diverges, NaN and infinity become zero in observation and reward, and the metric
`diverged` counts these steps. Parts of rewards (`reward/upright`, ...) are summed over an episode.
Other metrics have their last value.

The suites other than dm_control's download meshes when they are first used.
"""

import contextlib
import functools
import io
import subprocess
from typing import Any

from envs import adapter
from envs.adapter import library
from envs.brax import Physics

REFUSALS = (TypeError, ValueError, KeyError, AssertionError)
OWN = ("action_repeat", "vision")  # a setting of the kit's, and entries that need a renderer


def names() -> list[str]:
    """Every name that playground has."""
    return list(_registry().ALL_ENVS)


def construct(name: str, settings: dict[str, Any]) -> tuple["Playground", dict[str, Any]]:
    """Builds an environment with those settings that its configuration has.

    Returns the environment and the other settings.

    Raises:
      ValueError: playground is missing, or refuses the settings.
    """
    registry = _registry()
    config = registry.get_default_config(name)
    known = [k for k in _flattened(config) if k not in OWN]
    taken, left = adapter.split(settings, *known)
    own_limit = int(config.episode_length)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            overrides = {**({"impl": "jax"} if "impl" in known else {}), **taken}
            wrapped = registry.load(name, config_overrides=overrides)
    except (*REFUSALS, OSError, subprocess.CalledProcessError) as error:  # or no network
        raise ValueError(f"playground/{name} with {taken}: {error}") from error
    limit = int(taken.get("episode_length", own_limit))
    return Playground(f"playground/{name}", wrapped, limit).taking(known), left


@functools.cache
def _registry() -> Any:
    return library("mujoco_playground", "playground").registry


def _flattened(config: Any, prefix: str = "") -> list[str]:
    """Names of all entries, nested ones with dots."""
    found: list[str] = []
    for name, value in config.items():
        nested = hasattr(value, "items")
        found += _flattened(value, f"{prefix}{name}.") if nested else [f"{prefix}{name}"]
    return found


class Playground(Physics):
    model = "_mjx_model"

    def drawn(self, inner):
        return self.wrapped.mj_model, inner.data.qpos, inner.data.qvel
