"""Critics that see the environment's world state, and actors that never do."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts, ppo
from envs.gymnax import spaces
from tests.algorithms.cases import again, assert_close
from tests.algorithms.test_ppo import PROBE as OF_PPO
from tests.conftest import AS_FOR_USERS
from tests.probe import Probe, ProbeParams, ProbeState, struct

pytestmark = pytest.mark.cases(
    lambda case: case.has("asymmetric"), slow=lambda case: case.name not in ("sac", "ppo_rnn")
)


@struct.dataclass
class CueState(ProbeState):
    cue: jax.Array


class Cue(Probe):
    """Episodes of one step, paid by 4 s - (a - x / 2)**2 with a sign s that the world state shows.

    `scale` is a factor on what the world state shows.
    """

    def __init__(self, scale=1.0):
        super().__init__(continuous=True)
        self.scale = scale

    def world_state(self, state, params):
        return self.scale * jnp.stack([state.cue, -state.cue])

    def reset_env(self, key, params):
        here, hidden = jax.random.split(key)
        x = jax.random.randint(here, (), -1, 2).astype(jnp.float32)
        cue = jax.random.rademacher(hidden, (), jnp.float32)
        state = CueState(x, jnp.zeros((), jnp.int32), cue)
        return state.x[None], state

    def step_env(self, key, state, action, params):
        reward = 4.0 * state.cue - jnp.square(action[0] - 0.5 * state.x)
        state = state.replace(time=state.time + 1)
        return state.x[None], state, reward, jnp.ones((), bool), {}


PARAMS = ProbeParams(max_steps_in_episode=5)


def small(case, **changes):
    return case.tiny.replace(env_settings=(), asymmetric=True, num_eval_episodes=2, **changes)


@pytest.fixture(scope="module")
def trained(case):
    """The first and the last state of a run, with their config."""
    config = small(case)
    train = case.module.make_train(config, Cue(), PARAMS)
    start = parts.first_state(train, jax.random.key(0))
    state, metrics = train(None, again(start))
    assert np.isfinite(metrics["eval_return"]).all()
    return config, start, state


def test_the_critic_has_more_inputs_and_the_buffer_the_world_state(trained):
    *_, state = trained
    assert state.observation.shape[1:] == (3,)
    np.testing.assert_array_equal(state.observation[:, 1], -state.observation[:, 2])
    assert set(np.unique(state.observation[:, 1])) <= {-1.0, 1.0}


class Blind(Cue):
    def world_state(self, state, params):
        raise AssertionError("an actor asks for the world state")


def test_the_policy_never_asks_for_the_world_state(case, trained):
    """It acts on the environment's own observations; so does an export."""
    config, _, state = trained
    policy = case.module.make_policy(config, Blind(), PARAMS)
    x = jnp.array([0.5])
    for rng in (None, jax.random.key(1)):
        assert np.isfinite(policy(state, x, None, rng)[0]).all()


def test_actions_before_learning_do_not_depend_on_the_world_state(case, trained):
    """With the same keys, in the first rollout and in an evaluation; the critic's values do."""
    config, start, _ = trained
    train = case.module.make_train(config, Cue(100.0), PARAMS)
    other = parts.first_state(train, jax.random.key(0))
    assert_close(own(start), own(other))
    act = lambda state, env: case.module.make_policy(config, env, PARAMS)(state, jnp.array([0.5]))
    assert_close(act(start, Cue())[0], act(other, Cue(100.0))[0])


def own(state):
    """The parameters that acting needs, without those of a critic beside them."""
    params = getattr(state.policy, "params", None) or state.policy.variables
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if "critic" not in jax.tree_util.keystr(path)
    }


def test_the_actor_has_no_gradient_towards_the_world_state(case, trained):
    """Of its mean, with the inputs that training gives the network."""
    config, _, state = trained
    x = jnp.asarray(state.observation, jnp.float32)
    space = case.module.parts.ActionSpace(Cue().action_space(PARAMS))
    params = getattr(state.policy, "params", None) or state.policy.variables
    if hasattr(case.module, "Actor"):
        network = case.module.Actor(config, space.size, 1)
        mean = lambda x: network.apply(params, x).mean
    elif case.module is ppo:
        network = case.module.ActorCritic(config, space, 1)
        mean = lambda x: network.apply(params, x, method="actor").mean
    else:
        network, memory = case.module.ActorCritic(config, space, 1), state.memory
        mean = lambda x: network.apply(params, memory, x)[1].mean
        value = lambda x: network.apply(params, memory, x)[2]
        assert np.abs(jax.grad(lambda x: value(x).sum())(x)[:, 1:]).max() > 0.0
    slope = jax.grad(lambda x: mean(x).sum())(x)
    assert np.abs(slope[:, 0]).max() > 0.0 and not slope[:, 1:].any()


class Picture(Cue):
    def reset_env(self, key, params):
        x, state = super().reset_env(key, params)
        return x.reshape(1, 1, 1), state

    def step_env(self, key, state, action, params):
        x, *rest = super().step_env(key, state, action, params)
        return x.reshape(1, 1, 1), *rest

    def observation_space(self, params):
        return spaces.Box(-1.0, 1.0, (1, 1, 1))


def test_what_has_no_world_state_beside_a_vector_is_refused(case):
    with pytest.raises(ValueError, match="asymmetric=True: Probe has no world_state for critics"):
        case.module.make_train(small(case), Probe(True), PARAMS)
    config = small(case, conv_layers="none")
    with pytest.raises(ValueError, match="asymmetric=True: Probe has observations of shape"):
        case.module.make_train(config, Picture(), PARAMS)
    if case.has("shared_torso"):
        with pytest.raises(ValueError, match="asymmetric=True: with shared_torso=True"):
            case.module.make_train(small(case, shared_torso=True), Cue(), PARAMS)


@pytest.mark.slow
def test_a_critic_that_sees_the_cue_teaches_faster(case, vmapped_keys):
    """The mean distance of actions from the best ones, over five seeds."""
    probe = case.probe
    if probe is None:  # with a memory: PPO's settings
        same = {field.name for field in dataclasses.fields(OF_PPO) if case.has(field.name)}
        own = {name: getattr(OF_PPO, name) for name in same}
        probe = case.module.Config(**own, memory_size=8)
    probe = probe.replace(total_timesteps=probe.total_timesteps // 4)

    def distance(asymmetric):
        config = probe.replace(asymmetric=asymmetric)

        def run(key):
            state, _ = case.module.make_train(config, Cue(), PARAMS)(key)
            policy = case.module.make_policy(config, Cue(), PARAMS)
            act = lambda x: policy(state, x[None])[0][0]
            x = jnp.array([-1.0, 0.0, 1.0])
            return jnp.abs(jax.vmap(act)(x) - 0.5 * x).mean()

        keys = jax.random.split(jax.random.key(0), 5)
        with jax.debug_key_reuse(False):
            return float(jax.jit(jax.vmap(run), compiler_options=AS_FOR_USERS)(keys).mean())

    with_cue, without = distance(True), distance(False)
    assert with_cue < 0.7 * without, (with_cue, without)
