"""The adapter for MuJoCo playground 0.2 (Zakka et al. 2025, arXiv:2502.08844): robots on MJX.

    env, env_params = envs.make("playground/CheetahRun")
    env, env_params = envs.make("playground/CartpoleSwingup", action_repeat=2, ctrl_dt=0.02)

Raw environments, without playground's wrappers, which restart an episode at its one first state
and lose the final observation. `done` of the task terminates; the time limit is `episode_length` of
the task's configuration (`max_steps` moves it). Settings are entries of that configuration, with a
dot where it is nested. Physics is MJX's in JAX (`impl="jax"`), unless a setting says otherwise.
Observations that are a dictionary (`state`, `privileged_state`) become one vector in the order of
the names. Where the physics diverges, what is not finite is zero in observation and reward.

Parts of rewards (`reward/upright`, ...) are summed over an episode, other metrics are its last.

The suites other than dm_control's fetch meshes from the network when they are first asked for.
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
OWN = ("action_repeat", "vision")  # the kit's setting of that name, and what needs a renderer


def names() -> list[str]:
    """Every name that playground knows."""
    return list(_registry().ALL_ENVS)


def construct(name: str, settings: dict[str, Any]) -> tuple["Playground", dict[str, Any]]:
    """Builds an environment with those settings that its configuration has.

    Returns the environment and the settings that are left.

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
    def drawn(self, inner):
        return self.wrapped.mj_model, inner.data.qpos, inner.data.qvel
