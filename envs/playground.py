"""The adapter for MuJoCo playground 0.2 (Zakka et al. 2025, arXiv:2502.08844): robots on MJX.

    env, env_params = envs.make("playground/CheetahRun")
    env, env_params = envs.make("playground/CartpoleSwingup", action_repeat=2, ctrl_dt=0.02)

It takes raw environments. playground's wrappers restart every episode at one start state and lose
the final observation. The task's `done` terminates. The time limit is `episode_length` of the
task's configuration, and `max_steps` changes it. Settings are entries of that configuration, nested
ones with dots, factors on the physics (envs/physics.py), and those below. Physics is MJX in JAX
(`impl="jax"`), unless a setting says otherwise, in full float32 (`precision`, see envs/brax.py).

Where a task observes a `state` and a `privileged_state`, as most in locomotion do, the policy sees
`state` alone, as in playground's own results. `env.world_state` is the privileged one, for critics.
`observe_privileged=true` shows both to the policy, which is an easier task. Other dictionaries
become one vector in the order of the names.

Where the physics diverges, NaN and infinity become zero in observation and reward, and the metric
`diverged` counts these steps. Parts of rewards (`reward/upright`, ...) are summed over an episode.
Other metrics have their last value.

The suites other than dm_control's download models with git when they are first used.
"""

import contextlib
import io
import subprocess
from typing import Any

import jax

from envs import adapter, physics
from envs.adapter import library
from envs.brax import Physics, finite

REFUSALS = (TypeError, ValueError, KeyError, AssertionError)
PRIVILEGED = ("state", "privileged_state")  # names of an observation's parts
UNLOADED = (
    "its models (mujoco_menagerie) could not be downloaded with git, as playground does at first "
    "use: connect this machine to github.com, or copy mujoco_playground/external_deps from another"
)
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
    precision, settings = physics.precision_of(f"playground/{name}", settings)
    own, settings = adapter.split(settings, "observe_privileged")
    taken, left = adapter.split(settings, *known)
    both, label = own.get("observe_privileged", False), f"setting of playground/{name}"
    if not isinstance(both, bool):
        raise ValueError(f"{label}: observe_privileged={both}: give true or false")
    own_limit, before = int(config.episode_length), _default_precision()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            overrides = {**({"impl": "jax"} if "impl" in known else {}), **taken}
            wrapped = registry.load(name, config_overrides=overrides)
    except subprocess.CalledProcessError as error:
        raise ValueError(f"playground/{name}: {UNLOADED} ({error})") from error
    except (*REFUSALS, OSError) as error:
        raise ValueError(f"playground/{name} with {taken}: {error}") from error
    finally:
        if _default_precision() != before:  # the swimmer sets it for all of the process
            jax.config.update("jax_default_matmul_precision", before)
    limit = int(taken.get("episode_length", own_limit))
    warp = taken.get("impl") == "warp"
    env = Playground(f"playground/{name}", wrapped, limit, precision, both, warp)
    if both and not env.has_privileged:
        raise ValueError(f"{label}: observe_privileged=true: all that it observes is seen")
    return env.taking((*known, "precision", "observe_privileged")), left


def _default_precision() -> str | None:
    return jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]  # set at run time


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
    """One environment of playground.

    Attributes:
      untrainable: why no algorithm can train with it; absent where one can.
      world_state(state, params): the privileged observation, a float32 vector; absent where the
        task has none, or the policy sees it.
    """

    model = "_mjx_model"

    def __init__(
        self, name: str, wrapped: Any, max_steps: int, precision: str, both: bool, warp: bool
    ):
        self._both = both
        if warp:
            self.untrainable = "with impl=warp all environments share some arrays; leave impl out"
        super().__init__(name, wrapped, max_steps, precision)
        if self.has_privileged and not both:
            self.world_state = self._privileged

    @property
    def has_privileged(self) -> bool:
        """Whether the task observes more than a policy should see."""
        return _has_privileged(self._observed)

    def seen(self, observation):
        apart = _has_privileged(observation) and not self._both
        return observation[PRIVILEGED[0]] if apart else observation

    def _privileged(self, state, params):
        return finite(adapter.flat(state.inner.obs[PRIVILEGED[1]]))

    def drawn(self, inner):
        return self.wrapped.mj_model, inner.data.qpos, inner.data.qvel


def _has_privileged(observation: Any) -> bool:
    return hasattr(observation, "keys") and set(PRIVILEGED) <= set(observation.keys())
