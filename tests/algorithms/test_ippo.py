"""IPPO: independence, sharing, central critics, agents that leave, and the contract of the file."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import ippo, ppo
from tests.algorithms.contract import *  # noqa: F403
from tests.algorithms.contract import assert_same
from tests.algorithms.test_ppo import random_rollout
from tests.probe import LEAVING, OTHERS, OWN, Pair, PairParams

del test_several_agents_are_refused  # noqa: F821  it takes them
del test_pinned_values  # noqa: F821  it has none
del test_slices_are_exact_under_vmap_too  # noqa: F821  in test_slices.py, which is slow

MODULE = ippo
TINY = ippo.Config(
    total_timesteps=3 * 16,
    num_envs=2,
    num_steps=8,
    num_minibatches=2,
    update_epochs=2,
    critic_epochs=3,
    hidden_sizes=(8,),
    num_evals=3,
    num_eval_episodes=2,
)
PROBE = ippo.Config(
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
WORLD = Pair(), PairParams()


@pytest.fixture(scope="module")
def pair():
    return WORLD[0]


# --- formulas ---------------------------------------------------------------------------------


def test_weighted_means_leave_out_what_has_no_weight():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 50)).astype(np.float32)
    weights = (rng.random(50) < 0.6).astype(np.float32)
    kept, targets = x[weights > 0], y[weights > 0]
    np.testing.assert_allclose(ippo.mean(x, weights), kept.mean(), rtol=1e-5)
    result = np.asarray(ippo.standardize(x, weights))[weights > 0]
    np.testing.assert_allclose(result, (kept - kept.mean()) / kept.std(), rtol=1e-4, atol=1e-6)
    expected = 1.0 - np.var(targets - kept) / np.var(targets)
    np.testing.assert_allclose(ippo.explained_variance(x, y, weights), expected, rtol=1e-4)
    assert ippo.mean(x, np.zeros_like(x)) == 0.0


def test_terms_are_those_of_ppo():
    rng = np.random.default_rng(1)
    a, b, c = rng.normal(size=(3, 200)).astype(np.float32)
    for mine, theirs in (
        (ippo.clipped_surrogate(a, b, 0.2), ppo.clipped_surrogate(a, b, 0.2)),
        (ippo.value_error(a, b, c, 0.3, True), ppo.value_error(a, b, c, 0.3, True)),
        (ippo.value_error(a, b, c, 0.3, False), ppo.value_error(a, b, c, 0.3, False)),
        (ippo.kl_estimate(a), ppo.kl_estimate(a)),
    ):
        np.testing.assert_allclose(mine.mean(), theirs, rtol=1e-6)
    rollout = random_rollout(3)
    np.testing.assert_array_equal(ippo.gae(*rollout, 0.9, 0.8), ppo.gae(*rollout, 0.9, 0.8))


@pytest.mark.parametrize("share_params", [False, True])
def test_folding_keeps_every_agent_s_samples(share_params):
    config = TINY.replace(share_params=share_params, agent_ids=share_params)
    x = np.arange(5 * 4 * 3 * 2, dtype=np.float32).reshape(5, 4, 3, 2)  # steps, envs, agents, ...
    folded = ippo.fold(config, jnp.array(x), lead=1)
    assert folded.shape == ((1, 5, 12, 2) if share_params else (3, 5, 4, 2))
    np.testing.assert_array_equal(ippo.unfold(config, folded, 3, lead=1), x)
    if not share_params:
        np.testing.assert_array_equal(folded[1], x[:, :, 1])
    numbered = ippo.unfold(config, ippo.with_ids(config, folded, 3), 3, lead=1)
    if share_params:
        np.testing.assert_array_equal(numbered[..., 2:], np.broadcast_to(np.eye(3), (5, 4, 3, 3)))
    seen = ippo.unfold(config, ippo.for_each_agent(config, jnp.array(x), 3, lead=1), 3, lead=1)
    np.testing.assert_array_equal(seen, np.repeat(x.reshape(5, 4, 1, 6), 3, axis=2))


# --- probe tasks ------------------------------------------------------------------------------


def train_probes(env, config, tasks):
    """Critics, actions of both agents at x = -1, 0, 1, and metrics, (tasks, SEEDS, ...)."""

    def train(task, key):
        params = PairParams(task=task)
        state, metrics = ippo.make_train(config, env, params)(key)
        policy = ippo.make_policy(config, env, params)
        x = jnp.array([-1.0, 0.0, 1.0])
        actions = jax.vmap(lambda x: policy(state, jnp.full((2, 1), x))[0])(x)
        return state.critic_params, actions, metrics

    keys = jax.random.split(jax.random.key(0), SEEDS)
    over_seeds = jax.vmap(train, (None, 0))
    with jax.debug_key_reuse(False):  # see conftest.vmapped_keys
        return jax.jit(jax.vmap(over_seeds, (0, None)))(jnp.array(tasks), keys)


OPPOSITE = [[[0, 1], [1, 0]]] * SEEDS  # actions at x = -1 and 1


@pytest.fixture(scope="module", params=["discrete", "continuous"])
def probed(request):
    env = Pair(continuous=request.param == "continuous")
    return request.param, *train_probes(env, PROBE, [OWN, OTHERS, LEAVING])


def test_each_agent_learns_its_own_task(probed):
    kind, _, actions, _ = probed
    actions = np.asarray(actions[OWN]).reshape(SEEDS, 3, 2)[:, [0, 2]]
    if kind == "discrete":
        np.testing.assert_array_equal(actions, OPPOSITE)
    else:
        np.testing.assert_allclose(actions, np.array(OPPOSITE) - 0.5, atol=0.15)


def test_an_agent_that_left_has_terminated_and_counts_no_more(probed):
    """Its value is 1 (one reward), though it would be paid 100 later; the other one's value is
    that of an endless task, which the time limit does not end."""
    inputs = jnp.array([[[0.0]], [[1.0]]])  # of agent 0 later, of agent 1 at the start
    of_seeds = jax.vmap(jax.vmap(ippo.Critic(PROBE).apply), (0, None))
    values = of_seeds(jax.tree.map(lambda x: x[LEAVING], probed[1]), inputs)
    np.testing.assert_allclose(values[:, 0, 0], 1.0 / (1.0 - 0.9), rtol=0.05)
    np.testing.assert_allclose(values[:, 1, 0], 1.0, atol=0.1)
    mean_value = np.asarray(probed[3]["mean_value"][LEAVING])[:, -1]
    assert (mean_value[:, 1] < 1.5).all() and (mean_value[:, 0] > 2.0).all()


def test_a_critic_on_its_own_does_not_know_what_others_see(probed):
    assert (probed[3]["explained_variance"][OTHERS] < 0.1).all()


@pytest.mark.parametrize(
    "change",
    [dict(minibatch_of="trajectories"), dict(share_params=True, agent_ids=True)],
    ids=["independent, trajectories", "shared, ids"],
)
def test_a_central_critic_knows_and_actors_learn_in_every_arrangement(pair, change):
    """Ids tell agents that share parameters what is right for each."""
    config = PROBE.replace(central_critic=True, hidden_sizes=(32, 32), **change)
    _, actions, metrics = train_probes(pair, config, [OWN, OTHERS])
    np.testing.assert_array_equal(actions[0][:, [0, 2]], OPPOSITE)
    assert (metrics["explained_variance"][1] > 0.9).all()
    assert metrics["policy_loss"].shape == (2, SEEDS, 1, *([] if config.share_params else [2]))


@pytest.mark.parametrize("share_params", [False, True])
def test_a_world_state_is_what_central_critics_see(share_params):
    """Normalised by statistics that all agents share; before a restart at the end of episodes."""
    config = PROBE.replace(central_critic=True, normalize_obs=True, share_params=share_params)
    env, params = Pair(world=True), PairParams(task=OTHERS)
    state, metrics = ippo.make_train(config, env, params)(jax.random.key(0))
    kernel = state.critic_params["params"]["Torso_0"]["Dense_0"]["kernel"]
    assert kernel.shape == (1 if share_params else 2, 2, 16)
    stats = state.collector.world_stats
    assert stats.mean.shape == (2,) and float(stats.count) == PROBE.total_timesteps
    np.testing.assert_allclose(stats.var, 100.0, rtol=0.01)
    if not share_params:  # what is shared does not know which agent it is
        assert (np.asarray(metrics["explained_variance"][-1]) > 0.9).all()


def test_forbidden_actions_are_never_taken():
    """Each would cost 100: neither in training nor in evaluation does any return fall below 0."""
    env = Pair(masked=True)
    config = TINY.replace(num_eval_episodes=32)
    state, metrics = ippo.make_train(config, env, PairParams())(jax.random.key(0))
    assert (np.asarray(metrics["episode_return"][1:]) >= 0.0).all()
    assert (np.asarray(metrics["eval_return"]) >= 0.0).all()
    policy = ippo.make_policy(config, env, PairParams())
    mask = jnp.array([[False, False, True], [True, False, False]])
    np.testing.assert_array_equal(policy(state, jnp.ones((2, 1)), mask=mask)[0], [2, 0])


# --- independence -----------------------------------------------------------------------------


def test_independent_agents_do_not_hear_of_each_other_s_rewards(pair):
    """Agent 0 is bit-identical whatever agent 1 is paid, and is not with shared parameters."""

    def agents(config, reward):
        params = PairParams(rewards=jnp.array([1.0, reward]))
        state, metrics = ippo.make_train(config, pair, params)(jax.random.key(0))
        learned = state.policy, state.critic_params, state.opt_state, state.critic_opt_state
        zeroth = jax.tree.map(lambda x: x[0], learned)
        last = jax.tree.map(lambda x: x[-1], learned)
        return (zeroth, metrics["policy_loss"].reshape(3, -1)[:, 0]), last

    config = TINY.replace(
        normalize_obs=True, normalize_reward=True, num_eval_episodes=0, eval_at_start=False,
        target_kl=0.01,
    )  # fmt: skip
    before, after = agents(config, 1.0), agents(config, -7.0)
    assert_same(before[0], after[0])
    with pytest.raises(AssertionError):
        assert_same(before[1], after[1])
    shared = config.replace(share_params=True, agent_ids=True)
    with pytest.raises(AssertionError):
        assert_same(agents(shared, 1.0)[0], agents(shared, -7.0)[0])


def test_one_agent_stops_at_its_kl_while_the_other_goes_on(pair):
    """Agent 1 is paid nothing and its values start at 0: no gradient, hence no KL."""
    params = PairParams(rewards=jnp.array([1.0, 0.0]))
    config = TINY.replace(
        ent_coef=0.0, normalize_advantage=False, critic_learning_rate=0.0, update_epochs=5,
        learning_rate=1e-2, target_kl=1e-6, num_evals=1, eval_at_start=False,
    )  # fmt: skip
    train = ippo.make_train(config, pair, params)
    state, _ = train(jax.random.key(0), None, 0)
    state = state.replace(critic_params=jax.tree.map(jnp.zeros_like, state.critic_params))
    _, metrics = train(None, state)
    epochs = np.asarray(metrics["epochs"][-1])
    assert epochs[0] < 5 and epochs[1] == 5
    kl = np.asarray(metrics["approx_kl"][-1])
    assert kl[0] > 1e-6 and kl[1] == 0.0


def test_every_epoch_has_an_order_of_its_own(pair, monkeypatch):
    """Turning round the order of the second epoch changes what is learned."""
    original = ippo.permutations

    @jax.jit
    def params(turn):
        def permutations(*args):
            orders = original(*args)
            return orders.at[1].set(jnp.where(turn, orders[1, ::-1], orders[1]))

        monkeypatch.setattr(ippo, "permutations", permutations)
        config = TINY.replace(num_evals=1, num_eval_episodes=0, eval_at_start=False)
        return ippo.make_train(config, pair, PairParams())(jax.random.key(0))[0].policy.params

    with pytest.raises(AssertionError):
        assert_same(params(False), params(True))


def test_exactly_update_epochs_without_a_threshold(trained):
    np.testing.assert_array_equal(trained[1]["epochs"][1:], TINY.update_epochs)


# --- the contract -----------------------------------------------------------------------------

METRICS = {"policy_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm", "value_loss"}
METRICS |= {"critic_grad_norm", "mean_value", "explained_variance", "epochs"}
SWEPT = dict(clip_vloss=True, normalize_reward=True, eval_at_start=False)
SWEPT |= dict(vf_coef=1e-3)  # or the critic's Adam would not feel its weight
SWEPT_WORLD = WORLD[0], PairParams(task=LEAVING)
OTHER = {"adam_eps": 1e-2, "critic_adam_eps": 1e-2, "max_grad_norm": 1e-2, "target_kl": 1e-9}
OTHER |= {"critic_max_grad_norm": 1e-2, "clip_eps": 1e-3}
REFUSED = [
    (dict(num_minibatches=3), "num_minibatches=3 does not divide the 16 samples .*; 1, 2, 4, 8 do"),
    (dict(minibatch_of="trajectories", num_minibatches=4), "the 2 trajectories .*; 1, 2 do"),
    (dict(num_minibatches=16), "one sample to a minibatch"),
    (dict(minibatch_of="steps"), "minibatch_of='steps': give samples or trajectories"),
    (dict(agent_ids=True), "agent_ids=True needs share_params=True"),
    (dict(critic_epochs=0), "critic_epochs=0"),
]


def learned(state):
    return state.policy.params, state.critic_params


def compared(state, metrics):
    return state.policy, state.critic_params, metrics


def test_metrics_have_the_points_as_leading_axis(trained):
    """And agents as the last one."""
    state, metrics = trained
    assert list(metrics["timestep"]) == [0, 16, 32, 48]
    assert set(ippo.UPDATE_METRICS) == METRICS
    for name in METRICS:
        assert metrics[name].shape == (4, 2), name
        assert np.isnan(metrics[name][0]).all() and np.isfinite(metrics[name][1:]).all(), name
    assert metrics["episode_return"].shape == (4, 2)
    assert metrics["episode_length"].shape == metrics["num_episodes"].shape == (4,)
    for name in ("eval_return", "eval_last_reward"):
        assert metrics[name].shape == (4, 2, 2), name
    for name in ("eval_length", "eval_terminated", "eval_truncated"):
        assert metrics[name].shape == (4, 2), name
    assert int(state.update) == 3


def test_each_file_names_the_other_for_environments_it_cannot_take(pair):
    with pytest.raises(ValueError, match="has one agent .*; ppo takes it"):
        ippo.make_train(TINY.replace(env="CartPole-v1"))
    with pytest.raises(ValueError, match="Pair has several agents; ippo takes it"):
        ppo.make_train(ppo.Config(), pair, PairParams())
