"""The probe tasks of one agent: the file learns values and actions that are known by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts
from tests import probe as tasks
from tests.probe import ProbeParams

pytestmark = pytest.mark.cases(
    rows=lambda case: {kind: kind for kind in case.probes},
    slow=lambda case, kind: not case.probes[kind],
)
SEEDS = 3


def play_probes(module, config, values_of, continuous=False, number=7, max_steps=5, options=None):
    """Values and actions of the first tasks at x = -1, 0, 1, with all seeds in one program.

    `values_of(config, action_space, state, x)` gives values; results are (tasks, SEEDS, 3).
    """
    env = tasks.Probe(continuous)

    def train(task, key):
        params = ProbeParams(task=task, max_steps_in_episode=max_steps)
        state, _ = module.make_train(config, env, params)(key)
        policy = module.make_policy(config, env, params)
        x = jnp.array([[-1.0], [0.0], [1.0]])
        values = values_of(config, parts.ActionSpace(env.action_space(params)), state, x)
        return values, jax.vmap(lambda x: policy(state, x)[0])(x)

    keys = jax.random.split(jax.random.key(0), SEEDS)
    over_seeds = jax.vmap(train, (None, 0))
    with jax.debug_key_reuse(False):  # see conftest.vmapped_keys
        over_tasks = jax.jit(jax.vmap(over_seeds, (0, None)), compiler_options=options)
        values, actions = over_tasks(jnp.arange(number), keys)
    return np.asarray(values), np.asarray(actions).reshape(number, SEEDS, 3)


def of_critic(module):
    """The critic of a file with an ActorCritic."""
    return lambda config, space, state, x: module.ActorCritic(config, space).apply(
        state.policy.params, x, method="critic"
    )


def play_actor_critic(case, kind):
    """Values and actions for files with an ActorCritic."""
    critic, number = of_critic(case.module), case.num_probes
    return kind, *play_probes(case.module, case.probe, critic, kind == "continuous", number)


@pytest.fixture(scope="module")
def probed(case, row):
    return case.played(case, row)


def test_probe_values(probed):
    _, values, _ = probed
    np.testing.assert_allclose(values[tasks.CONSTANT, :, 1], 1.0, atol=0.05)
    for x, expected in ((0, -1.0), (2, 1.0)):
        np.testing.assert_allclose(values[tasks.OBSERVATION, :, x], expected, atol=0.1)
    for x, expected in ((1, 0.9), (2, 1.0)):
        np.testing.assert_allclose(values[tasks.DELAYED, :, x], expected, atol=0.1)


def test_probe_endless_task_bootstraps_at_the_time_limit(probed):
    _, values, _ = probed
    np.testing.assert_allclose(values[tasks.ENDLESS, :, 1], 1.0 / (1.0 - 0.9), rtol=0.05)


def test_probe_swing_bootstraps_from_final_observations_and_cuts_traces(probed):
    """From the reset observation, values would be -1 / (1 - gamma) and so on: see
    tests/probe.py."""
    _, values, _ = probed
    for x, expected in ((0, -1.0 / 1.9), (2, 1.0 / 1.9)):
        np.testing.assert_allclose(values[tasks.SWING, :, x], expected, atol=0.1)


def test_probe_actions(case, probed):
    """With the wrong sign of the gradient, these would be the worst actions."""
    kind, _, actions = probed
    if kind == "discrete":
        np.testing.assert_array_equal(actions[tasks.ACTION, :, 1], 1)
        np.testing.assert_array_equal(actions[tasks.BOTH][:, [0, 2]], [[0, 1]] * SEEDS)
    else:
        if case.constant_inputs:
            np.testing.assert_allclose(actions[tasks.ACTION, :, 1], 0.5, atol=0.1)
        np.testing.assert_allclose(actions[tasks.BOTH][:, [0, 2]], [[-0.5, 0.5]] * SEEDS, atol=0.15)


@pytest.mark.cases(lambda case: case.num_probes > tasks.ARM)
def test_probe_action_in_an_endless_task(probed):
    kind, _, actions = probed
    expected, tolerance = (1, 0.0) if kind == "discrete" else (0.5, 0.1)
    np.testing.assert_allclose(actions[tasks.ARM, :, 1], expected, rtol=0.0, atol=tolerance)
