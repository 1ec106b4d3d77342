"""One agent on several shards: the same update as on one, where nothing is left to chance."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import dqn, flashsac, ippo, parts, ppo, ppo_rnn, pqn, sac
from tests.probe import Pair, PairParams, PairState, Probe, ProbeParams, ProbeState, struct

ROLLOUT = {"num_envs": 8, "num_steps": 6, "num_minibatches": 1, "total_timesteps": 2 * 48}
ROLLOUT |= {"num_evals": 2, "num_eval_episodes": 0, "hidden_sizes": (8,)}
POLICY = ROLLOUT | {"update_epochs": 4, "target_kl": 0.002, "learning_rate": 0.02}
REPLAY = {"num_envs": 8, "total_timesteps": 2 * 128, "buffer_size": 128, "batch_size": 32}
REPLAY |= {"num_evals": 2, "num_eval_episodes": 0, "hidden_sizes": (8,), "learning_starts": 32}
REPLAY |= {"train_every": 2, "normalize_obs": True}
FLASH = {name: x for name, x in REPLAY.items() if name not in ("hidden_sizes", "normalize_obs")}
FLASH |= {"hidden_size": 8, "critic_hidden_size": 8, "noise_repeat": 1, "adam_eps": 1e-3}


class Numbers(Probe):
    """Each environment keeps a number of its own, and pays for the action by it."""

    def reset_env(self, key, params):
        state = ProbeState(3.0 * jax.random.normal(key), jnp.zeros((), jnp.int32))
        return state.x[None], state

    def step_env(self, key, state, action, params):
        reward = state.x * (0.5 + jnp.sum(action))
        state = ProbeState(state.x + 0.1, state.time + 1)
        return state.x[None], state, reward, jnp.zeros((), bool), {}


def are_there(state):
    return jnp.array([True, False]) | (state.x > 1)


class Pairs(Pair):
    """The same for two agents; the second one is there where its number is above one."""

    def reset_env(self, key, params):
        state = PairState(3.0 * jax.random.normal(key, (2,)), jnp.zeros((), jnp.int32))
        return state.x[:, None], state

    def step_env(self, key, state, action, params):
        reward = state.x * (0.5 + action)
        state = PairState(state.x + 0.1, state.time + 1)
        info = {"alive": are_there(state)}
        return state.x[:, None], state, reward, jnp.zeros((), bool), info


@struct.dataclass
class ShapedParams(PairParams):
    shaped: float = 1.0
    shaped_steps: float = 200.0


class Shaped(Pairs):
    """With extra rewards, which become smaller with the steps of all environments."""

    shapes_rewards = True

    def step_env(self, key, state, action, params):
        *stepped, info = super().step_env(key, state, action, params)
        return *stepped, info | {"shaped_reward": 1.0 * action}


ALONE = Numbers(), ProbeParams(max_steps_in_episode=99)
CASES = {
    "ppo": (ppo, ppo.Config(**POLICY), ALONE),
    "ppo_rnn": (ppo_rnn, ppo_rnn.Config(**POLICY, memory_size=8), ALONE),
    "ppo_rnn_rollout": (
        ppo_rnn,
        ppo_rnn.Config(**POLICY, memory_size=8, normalize_over="rollout"),
        ALONE,
    ),
    "ippo": (ippo, ippo.Config(**POLICY), (Pairs(), PairParams(max_steps_in_episode=99))),
    "ippo_shaped": (ippo, ippo.Config(**POLICY), (Shaped(), ShapedParams(max_steps_in_episode=99))),
    "pqn": (
        pqn,
        pqn.Config(**ROLLOUT, update_epochs=2, eps_start=0.0, eps_end=0.0, normalize_obs=True),
        ALONE,
    ),
    "dqn": (dqn, dqn.Config(**REPLAY, eps_start=0.0, eps_end=0.0, n_step=2), ALONE),
    "sac": (sac, sac.Config(**REPLAY, n_step=2), (Numbers(True), ALONE[1])),
    "redq": (
        sac,
        sac.Config(**REPLAY, num_critics=3, target_critics=2, actor_value="mean", policy_every=2),
        (Numbers(True), ALONE[1]),
    ),
    "flashsac": (flashsac, flashsac.Config(**FLASH, n_step=2), (Numbers(True), ALONE[1])),
}
FAST = ("ppo", "sac")
every = [pytest.param(n, marks=[pytest.mark.slow] * (n not in FAST)) for n in CASES]


def without_chance(monkeypatch):
    """Actions are the mode, and a batch and a subset of critics are the first ones."""

    def oldest(self, replay, noise):
        index = jnp.arange(len(noise))
        return parts.replay.Draw(index, jnp.full(index.shape, 1.0 / len(noise)))

    first = lambda rng, steps, size, of: jnp.broadcast_to(jnp.arange(size), (steps, size))
    monkeypatch.setattr(sac, "draw_subsets", first)
    zeros = lambda key, shape=(), *_: jnp.zeros(shape)
    monkeypatch.setattr(parts.ActionSpace, "noise", lambda space, key, shape: _modes(space, shape))
    monkeypatch.setattr(parts.ReplayBuffer, "draw", oldest)
    monkeypatch.setattr(jax.random, "normal", zeros)


def _modes(space, shape):
    return jnp.zeros((*shape, space.size))


def params_of(policy):
    return policy.variables["params"] if hasattr(policy, "variables") else policy.params


@pytest.mark.parametrize("name", every)
def test_an_update_is_that_of_the_whole_batch(name, monkeypatch, vmapped_keys):
    """The epochs end by target_kl, which all shards must judge alike."""
    module, config, world = CASES[name]
    split = parts.Split(module, 4)
    state, _ = jax.jit(lambda key: split.make_train(config, *world)(key, None, 0))(
        jax.random.key(0)
    )
    numbers = np.asarray(state.env_state.env.x).reshape(4, -1)
    assert len(np.unique(numbers)) == numbers.size, "environments of different shards differ"
    if state.env_state.before is not None:
        state = state.replace(env_state=state.env_state.replace(before=jnp.int32(15)))
    if module is ippo:
        alive = are_there(state.env_state.env)
        assert not alive[:, 1].reshape(4, 2).any(1).all(), "one shard sees nothing of an agent"
        state = state.replace(alive=alive)
    without_chance(monkeypatch)
    trained = [
        jax.jit(lambda state, of=of: of.make_train(config, *world)(None, state, 1))(state)
        for of in (split, module)
    ]
    (mine, own), (whole, other) = (
        ({**vars(state), "replay": None, "episodes": None}, metrics) for state, metrics in trained
    )
    assert (other["grad_norm"] > 0).all()
    assert jnp.min(other.get("epochs", 1)) < getattr(config, "update_epochs", 9)
    moved = jax.tree.map(
        lambda a, b: (a != b).any(), params_of(whole["policy"]), params_of(state.policy)
    )
    assert any(jax.tree.leaves(moved))
    jax.tree.map(close, mine, whole)
    jax.tree.map(close, *[without_means(metrics) for metrics in (own, other)])


def test_a_buffer_may_be_as_large_as_its_devices_together(monkeypatch):
    config = sac.Config(**REPLAY | {"buffer_size": 4_000, "total_timesteps": 8_000})
    monkeypatch.setattr(parts.capacity, "device_capacity", lambda: 30_000)
    monkeypatch.setattr(jax, "device_count", lambda: 4)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    world = Numbers(True), ALONE[1]
    parts.Split(sac, 4).make_train(config, *world)
    for module in (sac, parts.Split(sac, 2)):
        with pytest.raises(ValueError, match="buffer_size=4000 takes .* would fit"):
            module.make_train(config, *world)


def without_means(metrics):
    """The explained variance is a mean of shards."""
    return {name: x for name, x in metrics.items() if name != "explained_variance"}


def close(x, y):
    assert x.shape == y.shape
    if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
