"""What an environment does, where shapes and dtypes cannot tell: a few of its steps are played.

Only users' own environments are played, once each, before training. Those of gymnax, of this kit
and of its adapters have tests.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

from envs.batch import limit_name, with_limit
from envs.warn import warn

LIMIT, NO_LIMIT = 2, 1_000_000  # time limits of the episodes that are played, in steps
STEPS = 3  # of these episodes that are played


@dataclasses.dataclass(frozen=True)
class _Asked:
    """An environment with shapes of its parameters. Their values do not make another one."""

    env: Any
    structure: Any
    shapes: tuple[Any, ...]
    params: Any = dataclasses.field(compare=False)


def check_behaviour(env: Any, env_params: Any) -> None:
    """Warns of an environment of a user's whose step counts its time limit as an end of the task.

    Nothing is played if the parameters are traced.

    Args:
      env, env_params: from `envs.make`; their shapes have passed `check_interface`.
    """
    leaves, structure = jax.tree.flatten(env_params)
    if any(isinstance(x, jax.core.Tracer) for x in leaves) or not of_user(env):
        return
    shapes = tuple((np.shape(x), jnp.result_type(x)) for x in leaves)
    # Values are needed, also inside a trace. The user's code may use a key twice or have NaNs.
    with (
        jax.ensure_compile_time_eval(),
        jax.debug_key_reuse(False),
        jax.debug_nans(False),
        jax.transfer_guard("allow"),
    ):
        _check(_Asked(env, structure, shapes, env_params))


def of_user(env: Any) -> bool:
    """Whether the environment, or a wrapper in it, is neither gymnax's nor the kit's."""
    of_kit = (f"{__package__}.", "gymnax.")
    while type(env).__module__.startswith(of_kit):
        if "env" not in vars(env):
            return False
        env = env.env
    return True


@functools.lru_cache(maxsize=64)
def _check(asked: _Asked) -> None:
    env, params = asked.env, asked.params
    if done_includes_limit(env, params):
        name, limit = env.name, limit_name(env)
        warn(
            f"step_env of {name} sets its flag where {limit} is reached, so values there are 0 as "
            "at an end of the task: leave the limit to is_truncated, or give the environment "
            "setting done_includes_limit=true"
        )


# --- the time limit ---------------------------------------------------------------------------


def done_includes_limit(env: Any, params: Any) -> bool:
    """Whether `step_env` sets its flag at the time limit, as in gymnax 0.0.x.

    An episode is played with a limit of LIMIT steps and with none. Its first steps are the same, so
    a flag that only the first one sets is that of the limit. Nothing is played where no limit in
    the parameters reaches the flag, or where settings say what the limit means.
    """
    name = limit_name(env)
    if getattr(params, name, None) is None or getattr(env, "limit_has_meaning", False):
        return False

    def flags(params):
        """Whether step_env sets its flag in the first steps, (STEPS,)."""
        reset_key, *keys = jax.random.split(jax.random.key(0), STEPS + 1)
        _, state = env.reset_env(reset_key, params)
        found = []
        for key in keys:
            action_key, key = jax.random.split(key)
            action = _action(env, action_key, state, params)
            _, state, _, terminated, _ = env.step_env(key, state, action, params)
            found.append(jnp.asarray(terminated, bool))
        return jnp.stack(found)

    short, endless = (with_limit(env, params, steps) for steps in (LIMIT, NO_LIMIT))
    if not _depends_on(flags, params, name):
        return False
    play = jax.jit(flags)
    return bool((play(short) & ~play(endless)).any())


def _depends_on(function: Any, params: Any, name: str) -> bool:
    """Whether a parameter reaches the result; True also for one that is static."""
    marked = jax.tree.leaves(params.replace(**{name: _MARK}), is_leaf=lambda x: x is _MARK)
    places = [i for i, leaf in enumerate(marked) if leaf is _MARK]
    if not places:
        return True
    program = jax.make_jaxpr(function)(params).jaxpr
    used = partial_eval.dce_jaxpr(program, [True] * len(program.outvars))[1]
    return any(used[i] for i in places)


_MARK = object()


def _action(env: Any, key: jax.Array, state: Any, params: Any) -> jax.Array:
    """An action of its space, allowed where there is a mask; one for each agent."""
    if hasattr(env, "action_mask"):
        return jnp.argmax(env.action_mask(state, params), axis=-1)
    space, agents = env.action_space(params), getattr(env, "num_agents", None)
    if agents is None:
        return space.sample(key)
    return jax.vmap(space.sample)(jax.random.split(key, agents))
