"""Shared tests of files for several agents. They add to the contract. A file's case has

probe       a config that learns small tasks
per_agent   whether the metrics of its updates have an axis of agents
at_once     for files with an actor and a critic for each agent: changes of `tiny` under which
            agents could influence each other
"""

import math
from collections.abc import Callable
from typing import NamedTuple

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

METRICS = {
    "policy_loss",
    "entropy",
    "approx_kl",
    "clip_fraction",
    "grad_norm",
    "value_loss",
}
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


def arrays(tree):
    """NumPy arrays but for keys: jax compiles a program for each operation on its own arrays."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda x: x if is_key(x) else np.asarray(x), tree)


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


@pytest.mark.cases(lambda case: case.name in WHOLE)
def test_a_team_is_paid_after_one_leaves(case):
    """On all of three seeds agent 1 leaves, and the team's return is 4.0 instead of 0.5.

    No agent learns from what agent 1 would then observe, even if it is NaN. Of other files, updates
    of plain lists have teams.
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
def test_forbidden_actions_are_never_taken_by_policies(case, slices):
    """A policy with a key, exploring as much as it may, does not take one either.

    That none is taken in training, each file's update of plain lists shows.
    """
    state, env = slices[-1][0], case.world[0]
    config = case.tiny.replace(**dict(eps_end=1.0) if case.has("eps_end") else {})
    policy = jax.jit(case.module.make_policy(config, *case.world))
    seen, mask = jnp.ones(state.observation.shape[1:]), jnp.array([[False, True], [True, False]])
    assert not hasattr(env, "action_mask")
    for key in (None, *map(jax.random.key, range(1, 5))):
        action, _ = policy(state, seen, rng=key, mask=mask)
        np.testing.assert_array_equal(action, [1, 0])


# --- agents with networks of their own ----------------------------------------------------------


class Program(NamedTuple):
    """The first state, and an update, of two agents in Pair: compiled once for a case."""

    start: Callable  # start(**params of Pair)
    update: Callable  # update(state, turn=False, params=None, **floats of the config)


@pytest.fixture(scope="session")
def program(case):
    """Whatever the tests below vary is an argument. `turn` reverses the second epoch's order.

    Rollouts are of 4 steps.
    """
    config = case.tiny.replace(
        num_steps=4,
        total_timesteps=3 * 8,
        update_epochs=5,
        normalize_obs=True,
        normalize_reward=True,
        normalize_advantage=False,
        clip_vloss=True,
        ent_coef=0.0,
        learning_rate=1e-2,
        critic_learning_rate=1e-2,
        **case.at_once,
    )
    of_one = lambda config, params: programs(case.module.learner(config, Pair(), params))
    strong = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), tree)

    @jax.jit
    def first(params):
        return of_one(config, params)[0](jax.random.key(0))

    @jax.jit
    def later(config, params, turn, state):
        original = parts.permutations

        def permutations(*args):
            orders = original(*args)
            return orders.at[1].set(jnp.where(turn, orders[1, ::-1], orders[1]))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parts, "permutations", permutations)
            return of_one(config, params)[1](state)

    def start(**params):
        return first(strong(PairParams(**params)))

    def update(state, turn=False, params=(), **floats):
        given = config.replace(**floats), PairParams(**dict(params))
        return later(*strong(given), turn, again(state))

    return Program(start, update)


def of_agent(agent, *trees):
    return jax.tree.map(lambda x: np.asarray(x)[agent], trees)


@of_actors
def test_independent_agents_do_not_hear_of_each_other_s_rewards(program):
    """Agent 0 is bit-identical whatever agent 1 is paid."""

    def agents(reward):
        state, said = program.start(), []
        for _ in range(3):
            params = dict(rewards=jnp.array([1.0, reward]))
            state, metrics = program.update(state, params=params, target_kl=0.01)
            said.append(metrics["policy_loss"])
        of_all = state.policy, state.critic_params, state.opt_state, state.critic_opt_state
        of_all += (getattr(state, "critic_memory", None), *said)
        return of_agent(0, *of_all), of_agent(1, *of_all)

    (zeroth, first), (same, other) = agents(1.0), agents(-7.0)
    assert_same(zeroth, same)
    with pytest.raises(AssertionError):
        assert_same(first, other)


@of_actors
def test_one_agent_stops_at_its_kl_while_the_other_goes_on(program):
    """Agent 1 is paid nothing and its values start at 0, so it has no gradient and no KL.

    The mean over the minibatches of the last epoch counts.
    """
    state = program.start()
    state = state.replace(critic_params=jax.tree.map(jnp.zeros_like, state.critic_params))
    of_pay = dict(params=dict(rewards=jnp.array([1.0, 0.0])), critic_learning_rate=0.0)
    state, _ = program.update(state, **of_pay)  # with Adam's moments, steps are about equally long

    def learn(target):
        _, metrics = program.update(state, target_kl=target, **of_pay)
        epochs, kl = metrics["epochs"], metrics["approx_kl"].total
        assert epochs[1] == 5 and kl[1] == 0.0
        return int(epochs[0]), float(kl[0])

    assert_epochs(learn)


@of_actors
def test_every_epoch_has_an_order_of_its_own(program):
    """Reversing the order of the second epoch changes what is learned."""
    start = program.start()
    of_turn = [program.update(start, turn=turn)[0].policy.params for turn in (False, True)]
    with pytest.raises(AssertionError):
        assert_same(*of_turn)


@of_actors
def test_clipped_values_stay_near_those_of_the_rollout(program):
    """A smaller limit raises the value loss."""
    start = program.start()
    loss, clipped = (
        program.update(start, clip_eps=eps)[1]["value_loss"].total for eps in (10.0, 1e-3)
    )
    assert (clipped > 1.0001 * loss).all()


@of_actors
def test_exactly_update_epochs_without_a_threshold(case, trained):
    np.testing.assert_array_equal(trained[1]["epochs"][1:], case.tiny.update_epochs)


# --- agents that are not there ----------------------------------------------------------------

GONE = dict(task=LEAVING)  # agent 1 leaves with the first of ten steps


@of_actors
def test_nothing_is_learned_from_a_rollout_that_one_did_not_live_to_see(program):
    """The second rollout of four steps is agent 0's alone.

    Adam's memory of the first rollout does not move agent 1, and is still there afterwards.
    """
    first, _ = program.update(program.start(**GONE), params=GONE)
    second, metrics = program.update(first, params=GONE)
    rates = metrics["current_learning_rate"]
    assert rates.total[1] == 0.0 < rates.total[0] and rates.weight.tolist() == [1.0, 0.0]
    everything = lambda state: (*learned(state), state.opt_state, state.critic_opt_state)
    assert_same(of_agent(1, *everything(first)), of_agent(1, *everything(second)))
    for params in zip(learned(first), learned(second)):
        with pytest.raises(AssertionError):
            assert_same(*(of_agent(0, x) for x in params))


@of_actors
def test_metrics_of_an_agent_are_of_minibatches_with_the_agent_alive(case, program):
    """Weights are those that parts.program divides by. In the second rollout agent 1 has none."""
    floats = dict(params=GONE, learning_rate=0.0)
    first, metrics = program.update(program.start(**GONE), **floats)
    _, later = program.update(first, **floats)
    samples = case.has("minibatch_of")  # if not, the agent lives in all of its sequences
    assert (0.0 < metrics["entropy"].weight[1] < 1.0) == samples
    for name in METRICS - {"epochs", "explained_variance"}:
        assert metrics[name].weight[0] == later[name].weight[0] == 1.0
        assert 0.0 < metrics[name].weight[1] <= 1.0 and later[name].weight[1] == 0.0
    entropy = metrics["entropy"].total / metrics["entropy"].weight
    np.testing.assert_allclose(entropy, math.log(2.0), rtol=1e-2)


@pytest.mark.cases(lambda case: case.has("minibatch_of"))
@of_actors
def test_the_kl_that_stops_is_of_minibatches_with_the_agent_alive(program):
    """Like the metric, it leaves out minibatches without the agent; it does not count zeros."""
    state = program.start(**GONE)
    _, metrics = program.update(state, params=GONE, target_kl=1e-12)
    kl = metrics["approx_kl"]
    assert metrics["epochs"][1] == 1 and kl.weight[1] == 0.5, "in two minibatches of four"
    target = 0.95 * float(kl.total[1] / kl.weight[1])
    _, metrics = program.update(state, params=GONE, target_kl=target)
    assert metrics["epochs"][1] == 1


class Still(Pair):
    """Every environment stays at its start, and its observation identifies it."""

    def reset_env(self, key, params):
        state = PairState(jax.random.normal(key, (2,)), jnp.zeros((), jnp.int32))
        return state.x[:, None], state

    def step_env(self, key, state, action, params):
        return state.x[:, None], state, jnp.zeros(2), jnp.zeros((), bool), {}


class Half(Still):
    """An agent lives, and stays alive, if it began above 0."""

    def step_env(self, key, state, action, params):
        seen, state, _, ended, _ = super().step_env(key, state, action, params)
        return seen, state, 1.0 * action, ended, {"alive": state.x > 0}


class Team(Pair):
    shared_reward = True
