"""Self-play of ippo: rewards at the other's move, and steps without a choice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms import ippo, ippo_rnn, parts
from envs import exploitability
from envs.gymnax import Wrapper, spaces
from tests.algorithms.cases import again, assert_same

pytestmark = pytest.mark.needs("pgx")


@pytest.mark.parametrize("module", [ippo, ippo_rnn])
def test_steps_with_one_allowed_action_are_no_choice(module):
    rng = np.random.default_rng(0)
    mask, alive = rng.random((50, 2, 3)) < 0.4, rng.random((50, 2)) < 0.8
    fields = dict.fromkeys(module.Transition._fields) | {"alive": alive}
    rollout = module.Transition(**fields | {"mask": mask})
    discrete = parts.ActionSpace(spaces.Discrete(3))
    box = parts.ActionSpace(spaces.Box(-1.0, 1.0, (3,)))
    expected = [[a and list(m).count(True) >= 2 for a, m in zip(*x)] for x in zip(alive, mask)]
    assert 0 < np.sum(expected) < alive.sum()
    np.testing.assert_array_equal(module.choosing(discrete, rollout), expected)
    # A mask of dimensions, or none at all, forbids no action.
    np.testing.assert_array_equal(module.choosing(box, rollout), alive)
    np.testing.assert_array_equal(module.choosing(discrete, module.Transition(**fields)), alive)


class Scripted(Wrapper):
    """Tic-tac-toe in which each position allows one move: the first player wins at once."""

    moves = (0, 3, 1, 4, 2)

    def action_mask(self, state, params):
        move = jnp.array(self.moves)[jnp.minimum(state.steps, 4)]
        to_move = jnp.arange(2)[:, None] == state.inner.current_player
        return jnp.arange(9) == jnp.where(to_move, move, 0)


def test_advantages_cross_the_other_s_move(monkeypatch):
    """A game of five moves that the first player wins, by hand, with values of 1/2 everywhere.

    delta is -0.1 / 2 before the last move (gamma is 0.9), and 1 - 1/2 or -1 - 1/2 at the last one.
    That is a move of the winner, and the loser waits. gamma lambda is 0.45.
    """
    env, params = envs.make("pgx/tic_tac_toe")
    env = Scripted(env)
    config = ippo.Config(
        share_params=True,
        num_envs=8,
        num_steps=10,
        num_minibatches=1,
        update_epochs=1,
        critic_epochs=1,
        hidden_sizes=(4,),
        gamma=0.9,
        gae_lambda=0.5,
        ent_coef=0.5,
        num_eval_episodes=0,
    )
    seen, of_file = [], ippo.gae

    def recorded(**arrays):
        advantages = of_file(**arrays)
        jax.debug.callback(lambda *x: seen.append(x), arrays["rewards"], advantages)
        return advantages

    monkeypatch.setattr(ippo, "gae", recorded)
    learner = ippo.learner(config, env, params)
    state = jax.jit(learner.init)(jax.random.key(0))
    half = jax.tree.map(jnp.zeros_like, state.critic_params)
    half["params"]["critic_head"]["bias"] += 0.5
    state = state.replace(critic_params=half)
    first = np.asarray(state.env_state.env.first)
    assert set(first) == {0, 1}
    after, metrics = jax.jit(learner.update)(again(state))
    jax.effects_barrier()
    ((rewards, advantages),) = seen
    rewards, advantages = (x.reshape(10, 8, 2)[:5] for x in (rewards, advantages))
    winner = [-0.05 - 0.45 * 0.05 - 0.2025 * 0.05 - 0.091125 * 0.05 + 0.04100625 * 0.5]
    winner += [-0.05 - 0.45 * 0.05 - 0.2025 * 0.05 + 0.091125 * 0.5]
    winner += [-0.05 - 0.45 * 0.05 + 0.2025 * 0.5, -0.05 + 0.45 * 0.5, 0.5]
    loser = [-0.05 - 0.45 * 0.05 - 0.2025 * 0.05 - 0.091125 * 0.05 - 0.04100625 * 1.5]
    loser += [-0.05 - 0.45 * 0.05 - 0.2025 * 0.05 - 0.091125 * 1.5]
    loser += [-0.05 - 0.45 * 0.05 - 0.2025 * 1.5, -0.05 - 0.45 * 1.5, -1.5]
    for game, mover in enumerate(first):
        np.testing.assert_array_equal(rewards[:4, game], 0.0)
        assert rewards[4, game, mover] == 1.0 and rewards[4, game, 1 - mover] == -1.0
        np.testing.assert_allclose(advantages[:, game, mover], winner, rtol=1e-5)
        np.testing.assert_allclose(advantages[:, game, 1 - mover], loser, rtol=1e-5)
    # No step had a choice, so the actor learns nothing. The critic learns all.
    assert_same(after.policy.params, state.policy.params)
    assert metrics["entropy"].weight == 0.0 and metrics["value_loss"].weight == 1.0
    expected = np.mean(np.square([*winner, *loser])) / 2.0
    np.testing.assert_allclose(metrics["value_loss"].total, expected, rtol=1e-4)


def test_the_curve_has_the_exploitability_of_the_policy_that_samples():
    """Of both agents' networks, by the probabilities of the actors' own logits."""
    config = ippo.Config(
        env="pgx/kuhn_poker",
        total_timesteps=64,
        num_envs=4,
        num_steps=16,
        num_minibatches=1,
        hidden_sizes=(4,),
        learning_rate=0.1,
        num_evals=1,
        num_eval_episodes=1,
    )
    env, params = envs.make(config.env)
    kuhn = exploitability.table(env)
    state, metrics = ippo.make_train(config)(jax.random.key(0))
    measured = metrics["eval_exploitability"]  # before and after an update
    assert measured.shape == (2,)
    np.testing.assert_allclose(measured[0], 11.0 / 24.0, atol=0.02)  # nearly uniform
    sets = np.concatenate([kuhn.first.observation, kuhn.second.observation])
    actor = ippo.Actor(config, parts.ActionSpace(env.action_space(params)))
    of_agent = lambda i: jax.tree.map(lambda x: x[i], state.policy.params)
    logits = np.stack([actor.apply(of_agent(i), sets).logits for i in range(2)], axis=1)
    expected = kuhn.exploitability(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
    assert abs(logits[:, 0] - logits[:, 1]).max() > 1e-2 and abs(expected - 11.0 / 24.0) > 1e-3
    np.testing.assert_allclose(measured[1], expected, rtol=1e-4)
    ask, seen = ippo.make_probabilities(config), jnp.stack([sets[0]] * 2)
    result = ask(state, seen, jnp.array([[True, False], [True, True]]))
    np.testing.assert_allclose(result[0], [1.0, 0.0])
    np.testing.assert_allclose(result[1], np.exp(logits[0, 1]) / np.exp(logits[0, 1]).sum(), 1e-5)


def test_probabilities_of_one_network_for_both_agents():
    config = ippo.Config(env="pgx/kuhn_poker", share_params=True, hidden_sizes=(4,))
    world = envs.make(config.env)
    state = jax.jit(ippo.learner(config, *world).init)(jax.random.key(1))
    state = state.replace(
        policy=state.policy.replace(params=jax.tree.map(lambda x: 9.0 * x, state.policy.params))
    )
    seen = state.observation[0]
    result = ippo.make_probabilities(config, *world)(state, seen, jnp.ones((2, 2), bool))
    network = jax.tree.map(lambda x: x[0], state.policy.params)
    logits = (
        ippo.Actor(config, parts.ActionSpace(world[0].action_space(world[1])))
        .apply(network, seen)
        .logits
    )
    np.testing.assert_allclose(result, np.exp(logits) / np.exp(logits).sum(-1, keepdims=True), 1e-5)
    assert abs(result[0] - result[1]).max() > 1e-6
