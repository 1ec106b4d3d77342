"""Arrays by agent and by network hold the same samples."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts


@pytest.mark.parametrize("share_params", [False, True])
def test_folding_keeps_every_agent_s_samples(share_params):
    config = types.SimpleNamespace(share_params=share_params)
    x = np.arange(5 * 4 * 3 * 2, dtype=np.float32).reshape(5, 4, 3, 2)  # steps, envs, agents, ...
    folded, none = parts.fold_rollout(config, (jnp.array(x), None))
    assert none is None and folded.shape == ((1, 5, 12, 2) if share_params else (3, 5, 4, 2))
    for step in range(5):
        unfolded = parts.unfold(config, (folded[:, step], None), 3)
        np.testing.assert_array_equal(unfolded[0], x[step])
        np.testing.assert_array_equal(parts.fold(config, jnp.array(x[step])), folded[:, step])
    if not share_params:
        np.testing.assert_array_equal(folded[1], x[:, :, 1])


def test_who_left_earns_what_its_team_earns():
    earns = lambda **attributes: parts.earns_after_leaving(types.SimpleNamespace(**attributes))
    assert earns(shared_reward=True, team_rewards=False) and earns(team_rewards=True)
    assert not earns(shared_reward=False) and not earns()


def test_masks_are_of_dimensions_or_of_actions_or_none():
    mask = jnp.ones((4, 3, 5), bool)
    env, dimensions = types.SimpleNamespace(), np.array([[True, False], [True, True], [True, True]])
    environments = types.SimpleNamespace(
        env=env, num_envs=4, action_mask=lambda state, params: (state, params) and mask
    )
    assert parts.mask_of_agents(environments, 1, 2) is mask
    env.action_dimensions = dimensions
    result = parts.mask_of_agents(environments, 1, 2)
    np.testing.assert_array_equal(result, np.tile(dimensions, (4, 1, 1)))
