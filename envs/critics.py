"""Observations of critics that see more than actors."""

from typing import Any


def for_critics(env: Any, env_params: Any) -> tuple[Any, int]:
    """An environment as critics see it, and how many numbers of that, the first, the actor sees.

    An observation (size,) is followed by the numbers of `env.world_state(state, env_params)`.
    """
    from envs.wrappers import WithWorldState  # late: it imports gymnax

    return WithWorldState(env), env.observation_space(env_params).shape[0]
