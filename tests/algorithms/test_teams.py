"""Shared tests of files for several agents. They add to the contract. A file's case has

probe       a config that learns small tasks
per_agent   whether the metrics of its updates have an axis of agents
at_once     for files with an actor and a critic for each agent: changes of `tiny` under which
            agents could influence each other
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts
from tests.algorithms.cases import EVALUATION, again, assert_same, programs
from tests.algorithms.test_policy_gradients import assert_epochs
from tests.probe import LEAVING, Pair, PairParams, PairState, Sacrifice, SacrificeParams
from tests.seconds import WHOLE

pytestmark = pytest.mark.cases(lambda case: case.takes_several)
of_teams = pytest.mark.cases(lambda case: case.several)
of_actors = pytest.mark.cases(lambda case: case.several and case.of_family("policy gradients"))

METRICS = {"policy_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm", "value_loss"}
METRICS |= {"critic_grad_norm", "mean_value", "explained_variance", "epochs"}
OTHER = {"adam_eps": 1e-2, "critic_adam_eps": 1e-2, "max_grad_norm": 1e-2, "target_kl": 1e-9}
OTHER |= {"critic_max_grad_norm": 1e-2, "clip_eps": 1e-3}
# An update that plain code can repeat.
ONCE = dict(
    num_envs=2,
    num_minibatches=1,
    update_epochs=1,
    critic_epochs=2,
    learning_rate=0.01,
    critic_learning_rate=0.03,
    adam_eps=0.01,
    critic_adam_eps=0.03,
    max_grad_norm=0.05,
    critic_max_grad_norm=0.2,
    gamma=0.9,
    gae_lambda=0.8,
    ent_coef=0.5,
    vf_coef=0.7,
    hidden_sizes=(8,),
    normalize_obs=True,
    normalize_reward=True,
    num_evals=3,
)
PLAY = dict(
    total_timesteps=60 * 256,
    num_envs=16,
    num_steps=16,
    learning_rate=1e-2,
    critic_learning_rate=1e-2,
    gamma=0.9,
    hidden_sizes=(16,),
    num_evals=1,
    num_eval_episodes=0,
    eval_at_start=False,
    ent_coef=0.0,
)
SEEDS = 3
OPPOSITE = [[[0, 1], [1, 0]]] * SEEDS  # right actions of OWN at x = -1 and 1


def learned(state):
    return state.policy.params, state.critic_params


def compared(state, metrics):
    return state.policy, state.critic_params, metrics


# The common fields of the cases of ippo and ippo_rnn.
OF_CASES = dict(metrics=METRICS, other=OTHER, learned=learned, compared=compared)


def train_probes(module, env, config, tasks):
    """Critics, actions of both agents at x = -1, 0, 1, and metrics, (tasks, SEEDS, ...)."""

    def train(task, key):
        params = PairParams(task=task)
        state, metrics = module.make_train(config, env, params)(key)
        policy = module.make_policy(config, env, params)
        x = jnp.array([-1.0, 0.0, 1.0])
        actions = jax.vmap(lambda x: policy(state, jnp.full((2, 1), x))[0])(x)
        return state.critic_params, actions, metrics

    keys = jax.random.split(jax.random.key(0), SEEDS)
    over_seeds = jax.vmap(train, (None, 0))
    with jax.debug_key_reuse(False):  # see conftest.vmapped_keys
        return jax.jit(jax.vmap(over_seeds, (0, None)))(jnp.array(tasks), keys)


# --- the contract of teams ----------------------------------------------------------------------


@of_teams
def test_metrics_have_the_points_as_leading_axis(case, trained):
    """Returns, and metrics of single agents, have the agents as last axis."""
    state, metrics = trained
    assert list(metrics["timestep"]) == [0, 16, 32, 48]
    others = {"timestep", "num_episodes", "episode_return", "episode_length"}
    assert set(metrics) == case.metrics | others | EVALUATION
    for name in case.metrics:
        assert metrics[name].shape == ((4, 2) if case.per_agent else (4,)), name
        assert np.isnan(metrics[name][0]).all() and np.isfinite(metrics[name][1:]).all(), name
    assert metrics["episode_return"].shape == (4, 2)
    assert metrics["episode_length"].shape == metrics["num_episodes"].shape == (4,)
    for name in ("eval_return", "eval_last_reward"):
        assert metrics[name].shape == (4, 2, 2), name
    for name in ("eval_length", "eval_terminated", "eval_truncated"):
        assert metrics[name].shape == (4, 2), name
    assert int(state.update) == 3


def test_a_team_is_paid_after_one_leaves(case):
    """On all of three seeds agent 1 leaves, and the team's return is 4.0 instead of 0.5.

    No agent learns from what agent 1 would then observe, even if it is NaN.
    """
    config = case.probe.replace(num_eval_episodes=1)
    train = case.module.make_train(config, Sacrifice(), SacrificeParams(broken=True))
    with jax.debug_key_reuse(False):  # see conftest.vmapped_keys
        keys = jax.random.split(jax.random.key(0), 3)
        state, metrics = jax.jit(jax.vmap(train))(keys)
    np.testing.assert_allclose(metrics["eval_return"], 4.0, rtol=1e-5)
    for leaf in jax.tree.leaves(case.learned(state)):
        assert np.isfinite(leaf).all()


@of_teams
def test_forbidden_actions_are_never_taken(case):
    """A forbidden action would cost 100, and no return falls below 0 in training or evaluation.

    A policy with a key, exploring as much as it may, does not take one either.
    """
    env = Pair(masked=True)
    config = case.tiny.replace(num_eval_episodes=32 * (case.name in WHOLE))
    state, metrics = case.module.make_train(config, env, PairParams())(jax.random.key(0))
    for name in {"episode_return", "eval_return"} & metrics.keys():
        assert (np.asarray(metrics[name][1:]) >= 0.0).all(), name
    config = config.replace(**dict(eps_end=1.0) if hasattr(config, "eps_end") else {})
    policy = jax.jit(case.module.make_policy(config, env, PairParams()))
    mask = jnp.array([[False, False, True], [True, False, False]])
    for key in (None, *map(jax.random.key, range(1, 5))):
        action, _ = policy(state, jnp.ones((2, 1)), rng=key, mask=mask)
        np.testing.assert_array_equal(action, [2, 0])


# --- independence -----------------------------------------------------------------------------


@of_actors
def test_independent_agents_do_not_hear_of_each_other_s_rewards(case, pair):
    """Agent 0 is bit-identical whatever agent 1 is paid; with shared parameters it is not."""

    def agents(config, reward):
        params = PairParams(rewards=jnp.array([1.0, reward]))
        state, metrics = case.module.make_train(config, pair, params)(jax.random.key(0))
        learned = state.policy, state.critic_params, state.opt_state, state.critic_opt_state
        learned += (getattr(state, "critic_memory", None),)
        zeroth = jax.tree.map(lambda x: x[0], learned)
        last = jax.tree.map(lambda x: x[-1], learned)
        return (zeroth, metrics["policy_loss"].reshape(3, -1)[:, 0]), last

    config = case.tiny.replace(
        normalize_obs=True, normalize_reward=True, num_eval_episodes=0, eval_at_start=False,
        target_kl=0.01, **case.at_once,
    )  # fmt: skip
    before, after = agents(config, 1.0), agents(config, -7.0)
    assert_same(before[0], after[0])
    with pytest.raises(AssertionError):
        assert_same(before[1], after[1])
    shared = config.replace(share_params=True, agent_ids=True)
    with pytest.raises(AssertionError):
        assert_same(agents(shared, 1.0)[0], agents(shared, -7.0)[0])


@of_actors
def test_one_agent_stops_at_its_kl_while_the_other_goes_on(case, pair):
    """Agent 1 is paid nothing and its values start at 0, so it has no gradient and no KL.

    The mean over the minibatches of the last epoch counts.
    """
    params = PairParams(rewards=jnp.array([1.0, 0.0]))
    config = case.tiny.replace(
        ent_coef=0.0, normalize_advantage=False, critic_learning_rate=0.0, update_epochs=5,
        learning_rate=1e-2, num_eval_episodes=0, eval_at_start=False,
    )  # fmt: skip
    train = case.module.make_train(config, pair, params)
    state = parts.first_state(train, jax.random.key(0))
    state = state.replace(critic_params=jax.tree.map(jnp.zeros_like, state.critic_params))

    def learn(target):
        train = case.module.make_train(config.replace(target_kl=target), pair, params)
        _, metrics = train(None, again(state), 1)
        (epochs,), (kl,) = metrics["epochs"], metrics["approx_kl"]
        assert epochs[1] == 5 and kl[1] == 0.0
        return epochs[0], kl[0]

    assert_epochs(learn)


@of_actors
def test_every_epoch_has_an_order_of_its_own(case, pair, monkeypatch):
    """Reversing the order of the second epoch changes what is learned."""
    original, config = parts.permutations, case.tiny.replace(num_envs=4, num_minibatches=4)

    @jax.jit
    def params(turn):
        def permutations(*args):
            orders = original(*args)
            return orders.at[1].set(jnp.where(turn, orders[1, ::-1], orders[1]))

        monkeypatch.setattr(parts, "permutations", permutations)
        learner = case.module.learner(config, pair, jax.tree.map(jnp.asarray, PairParams()))
        return learner.update(learner.init(jax.random.key(0)))[0].policy.params

    with pytest.raises(AssertionError):
        assert_same(params(False), params(True))


class Still(Pair):
    """Every environment stays at its start, and its observation identifies it."""

    def reset_env(self, key, params):
        state = PairState(jax.random.normal(key, (2,)), jnp.zeros((), jnp.int32))
        return state.x[:, None], state

    def step_env(self, key, state, action, params):
        return state.x[:, None], state, jnp.zeros(2), jnp.zeros((), bool), {}


@of_actors
def test_exactly_update_epochs_without_a_threshold(case, trained):
    np.testing.assert_array_equal(trained[1]["epochs"][1:], case.tiny.update_epochs)


@of_actors
def test_clipped_values_stay_near_those_of_the_rollout(floats, swept):
    """A smaller limit raises the value loss at every point."""
    _, _, (_, metrics) = swept
    losses = metrics["value_loss"][:, 0]
    assert (losses[floats.index("clip_eps")] > 1.0001 * losses[-2]).all()


# --- agents that are not there ----------------------------------------------------------------


def halves_of_an_episode(case, env):
    """States after rollouts of five of ten steps, and the metrics of the second rollout.

    Agent 1 leaves with the first step.
    """
    config = case.tiny.replace(num_steps=5, num_minibatches=1, total_timesteps=3 * 10)
    params = jax.tree.map(jnp.asarray, PairParams(task=LEAVING))
    learner = case.module.learner(config, env, params)
    init, update = programs(learner)
    first, _ = update(init(jax.random.key(0)))
    return first, *update(again(first))


@of_actors
def test_nothing_is_learned_from_a_rollout_that_one_did_not_live_to_see(case):
    """Agent 1 leaves in the first of ten steps, so the second rollout of five is agent 0's alone.

    Adam's memory of the first rollout does not move agent 1, and is still there afterwards.
    """
    first, second, _ = halves_of_an_episode(case, Pair())
    of_adam = lambda state: jax.tree.map(lambda x: x[1], (state.opt_state, state.critic_opt_state))
    assert_same(of_adam(first), of_adam(second))
    before, after = learned(first), learned(second)
    assert_same(jax.tree.map(lambda x: x[1], before), jax.tree.map(lambda x: x[1], after))
    for params in zip(before, after):
        with pytest.raises(AssertionError):
            assert_same(*(jax.tree.map(lambda x: x[0], x) for x in params))


class Team(Pair):
    shared_reward = True


class Side(Pair):
    """One of several teams."""

    team_rewards = True


@of_actors
def test_critics_of_a_team_learn_steps_after_an_agent_left(case):
    """In the same rollouts of a team, agent 1's critic moves, and its actor does not."""
    first, second, metrics = halves_of_an_episode(case, Side())
    (actor, critic), (later_actor, later_critic) = (
        jax.tree.map(lambda x: x[1], case.learned(state)) for state in (first, second)
    )
    assert_same(actor, later_actor)
    with pytest.raises(AssertionError):
        assert_same(critic, later_critic)
    assert metrics["mean_value"].weight.all()


class Half(Still):
    """An agent lives, and stays alive, if it began above 0."""

    def step_env(self, key, state, action, params):
        seen, state, _, ended, _ = super().step_env(key, state, action, params)
        return seen, state, 1.0 * action, ended, {"alive": state.x > 0}


@of_actors
def test_the_kl_that_stops_is_of_minibatches_with_the_agent_alive(case):
    """Like the metric, it leaves out environments without the agent; it does not count zeros."""
    config = case.tiny.replace(num_envs=8, num_minibatches=8, total_timesteps=3 * 64)
    config = config.replace(num_eval_episodes=0, update_epochs=3, learning_rate=1e-2)
    if hasattr(config, "minibatch_of"):
        config = config.replace(minibatch_of="trajectories")

    learner_of = lambda target: case.module.learner(
        config.replace(target_kl=target), Half(), PairParams()
    )
    init, _ = programs(learner_of(jnp.inf))
    update = jax.jit(lambda target, state: programs(learner_of(target))[1](state))
    # In the first step all agents are there.
    state, _ = update(jnp.inf, init(jax.random.key(0)))
    assert (np.asarray(state.observation[..., 0] > 0).mean(0) < 0.9).all(), "not everywhere"
    _, least = update(1e-12, again(state))
    np.testing.assert_array_equal(least["epochs"], 1)
    of_one_epoch = least["approx_kl"].total / least["approx_kl"].weight
    _, metrics = update(0.95 * float(of_one_epoch.min()), again(state))
    np.testing.assert_array_equal(metrics["epochs"], 1)
