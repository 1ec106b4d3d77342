"""The axes of arrays of several agents: by environment and agent, or by network.

A network serves one agent, or with `share_params` all of them. Its samples are those of its agents
in all environments. Learning is written for one network, and jax.vmap does it for all.
"""

from typing import Any

import jax
import jax.numpy as jnp


def fold(config: Any, arrays: Any) -> Any:
    """(num_envs, num_agents, ...) to (networks, samples, ...), of one array or a tree of them."""
    together = lambda x: x.reshape(1, -1, *x.shape[2:])
    apart = lambda x: x.swapaxes(0, 1)
    return jax.tree.map(together if config.share_params else apart, arrays)


def unfold(config: Any, arrays: Any, num_agents: int) -> Any:
    """The inverse of `fold`."""
    agents = lambda x: x.reshape(-1, num_agents, *x.shape[2:])
    apart = lambda x: x.swapaxes(0, 1)
    return jax.tree.map(agents if config.share_params else apart, arrays)


def fold_rollout(config: Any, arrays: Any) -> Any:
    """(num_steps, num_envs, num_agents, ...) to (networks, num_steps, samples, ...)."""
    return jax.vmap(lambda arrays: fold(config, arrays), out_axes=1)(arrays)


def mask_of_agents(environments: Any, env_state: Any, env_params: Any) -> jax.Array | None:
    """Which actions, or which dimensions of an action, agents have, (num_envs, num_agents, ...).

    Their `action_dimensions`, or else `action_mask`, of `envs.batch`'s environments; None without
    either.
    """
    if hasattr(environments.env, "action_dimensions"):
        return jnp.stack([environments.env.action_dimensions] * environments.num_envs)
    return environments.action_mask(env_state, env_params)
