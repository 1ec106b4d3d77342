"""What files that learn a policy by its gradient have in common, beside the contract: what a
gradient step does, read off how the parameters move. Those with one network for actor and critic
and one agent import all of these, the others the first two. `READ` are changes of TINY under which
what is read off does not take longer than it has to.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import probe as tasks
from tests.algorithms.contract import change_leaves, compiled, several
from tests.probe import ProbeParams


def test_the_entropy_bonus_raises_the_entropy(file, slices, request):
    """Of a policy that prefers an action, where nothing else matters much. With the programs of
    `slices`."""
    floats = dict(ent_coef=100.0, learning_rate=0.05)
    train = file.MODULE.make_train(file.TINY.replace(**floats), *file.WORLD)
    state = change_leaves(slices[0][0], ("actor_head", "bias"), lambda x: x.at[..., 0].add(1.0))
    entropy = []
    with compiled(request.module):
        for _ in range(3):
            state, row = train(None, state, 1)
            entropy.append(np.asarray(row["entropy"][0]))
    assert (entropy[0] < 0.65).all() and (entropy[-1] > entropy[0] + 0.005).all(), entropy


def test_learning_sees_the_unclipped_action(file, monkeypatch):
    """Which its log_prob belongs to; a wide Gaussian leaves [-1, 1] nearly always."""
    seen, original = [], file.MODULE.Actions.log_prob_and_entropy

    def spy(actions, action, *args):
        jax.debug.callback(lambda x: seen.append(np.abs(x).max()), action)
        return original(actions, action, *args)

    monkeypatch.setattr(file.MODULE.Actions, "log_prob_and_entropy", spy)
    world = (tasks.Probe(continuous=True), tasks.ProbeParams(task=tasks.ACTION))
    if several(file):
        world = (tasks.Pair(continuous=True), tasks.PairParams())
    train = file.MODULE.make_train(file.TINY.replace(num_eval_episodes=0), *world)
    state, _ = train(jax.random.key(0), None, 0)
    state = change_leaves(state, ("log_std",), lambda x: x + 2.0)
    jax.block_until_ready(train(None, state, 1))
    jax.effects_barrier()
    assert seen and min(seen) > 3.0


# --- what a gradient step does ----------------------------------------------------------------

READ = {}
UPDATES = 3
RATE = 1e-2  # so little that all gradient steps of an update see about the same gradient


@pytest.fixture(scope="module")
def read(file):
    """read(reward, log_std=0.0, updates=1, task=CONSTANT, **changes of the config): how the
    parameters moved in so many updates, and the metrics.

    Adam divides by the size of gradients; with an epsilon this large a gradient step at the full
    learning rate moves the parameters by RATE times the gradient.
    """
    config = file.TINY.replace(
        total_timesteps=UPDATES * 1024,
        num_envs=64,
        num_steps=16,
        learning_rate=1e4 * RATE,
        adam_eps=1e4,
        max_grad_norm=math.inf,
        ent_coef=0.0,
        vf_coef=0.0,
        normalize_advantage=False,
        normalize_obs=False,
        normalize_reward=False,
        num_evals=UPDATES,
        num_eval_episodes=0,
        eval_at_start=False,
        **file.READ,
    )
    env = tasks.Probe(continuous=True)
    train = file.MODULE.make_train(config, env, ProbeParams())
    start, _ = train(jax.random.key(0), None, 0)
    start = change_leaves(start, ("critic_head", "kernel"), jnp.zeros_like)  # all values are zero

    def moves(reward, log_std=0.0, updates=1, task=tasks.CONSTANT, **changes):
        params = ProbeParams(task=task, reward=reward)
        train = file.MODULE.make_train(config.replace(**changes), env, params)
        state = change_leaves(start, ("log_std",), lambda x: jnp.full_like(x, log_std))
        moves, rows = [], []
        for _ in range(updates):
            before = state.policy.params
            state, row = train(None, state, 1)
            moves.append(jax.tree.map(jnp.subtract, state.policy.params, before)["params"])
            rows.append(row)
        return moves, rows

    return moves


def rates(file):
    """The sums of an update's learning rates, (UPDATES,): linear to zero over the run."""
    steps = getattr(file.TINY, "update_epochs", 1) * getattr(file.TINY, "num_minibatches", 1)
    left = 1.0 - np.arange(UPDATES * steps) / (UPDATES * steps)
    return RATE * left.reshape(UPDATES, steps).sum(1)


def test_the_entropy_grows_and_learning_rates_are_annealed(file, read):
    """Without rewards nothing else moves: the log std at the same rate always."""
    moves, _ = read(0.0, updates=UPDATES, ent_coef=0.1)
    for move, rate in zip(moves, rates(file)):
        np.testing.assert_allclose(move.pop("log_std"), 0.1 * rate, rtol=1e-3)
        for leaf in jax.tree.leaves(move):
            np.testing.assert_allclose(leaf, 0.0, atol=1e-7)


def test_values_move_to_their_targets_in_proportion_to_vf_coef(file, read):
    for vf_coef in (0.25, 0.5):
        (move,), (metrics,) = read(2.0, vf_coef=vf_coef)
        expected = rates(file)[0] * 2.0 * vf_coef
        np.testing.assert_allclose(move["critic_head"]["bias"], expected, rtol=0.05)
        np.testing.assert_allclose(metrics["value_loss"], 0.5 * 2.0**2, rtol=0.05)


def test_clipped_values_stay_near_those_of_the_rollout(file, read):
    """They are where they have to stay after one gradient step, and only momentum goes on."""
    (free,), _ = read(2.0, vf_coef=0.5)
    (kept,), _ = read(2.0, vf_coef=0.5, clip_vloss=True, clip_eps=1e-6)
    moved = kept["critic_head"]["bias"] / free["critic_head"]["bias"]
    assert 0.2 < moved < 0.7


def test_the_environment_gets_clipped_actions(read):
    """Of a wide Gaussian; the worst action that there is costs 2.25."""
    _, (metrics,) = read(1.0, log_std=3.0, task=tasks.ACTION)
    assert -2.25 <= metrics["episode_return"] < -0.5


def test_gradients_are_clipped_by_their_global_norm(file, read):
    (move,), (metrics,) = read(2.0, vf_coef=1.0, max_grad_norm=1e-2)
    np.testing.assert_allclose(optax.tree.norm(move), 1e-2 * rates(file)[0], rtol=1e-2)
    assert metrics["grad_norm"] > 1.0  # before clipping


def test_rewards_are_scaled_by_what_was_known_before_the_rollout(read):
    """At first nothing is; then that there is no spread, and rewards are clipped to ten."""
    _, rows = read(2.0, updates=2, normalize_reward=True)
    for metrics, reward in zip(rows, (2.0, 10.0)):
        np.testing.assert_allclose(metrics["value_loss"], 0.5 * reward**2, rtol=1e-3)
        np.testing.assert_allclose(metrics["episode_return"], 2.0)


def test_advantages_that_are_all_the_same_are_standardised_to_nothing(read):
    for normalize, least, most in ((True, 0.0, 1e-5), (False, 0.9, 2.0)):
        _, (metrics,) = read(1.0, normalize_advantage=normalize)
        assert least <= abs(metrics["policy_loss"][0]) <= most


def test_log_probs_and_entropy_heed_the_mask(file):
    """In half of the states one of three actions may be taken, in the others two, with about the
    same probability. The same masks before and after make the ratio one."""
    env = tasks.Probe(masked=True)
    params = ProbeParams(task=tasks.SWING, max_steps_in_episode=4)
    one_step = dict(num_minibatches=1, update_epochs=1, clip_eps=1e-5)
    config = file.TINY.replace(**one_step, num_eval_episodes=0, eval_at_start=False)
    _, metrics = file.MODULE.make_train(config, env, params)(jax.random.key(0), None, 1)
    np.testing.assert_allclose(metrics["entropy"], 0.5 * math.log(2.0), rtol=1e-3)
    np.testing.assert_array_equal(metrics["clip_fraction"], 0.0)


def test_the_loss_is_the_sum_of_its_parts(file, trained):
    _, metrics = trained
    expected = metrics["policy_loss"] + file.TINY.vf_coef * metrics["value_loss"]
    expected -= file.TINY.ent_coef * metrics["entropy"]
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-5)


def test_what_values_explain_of_their_targets_is_little_at_first(trained):
    """They hardly differ yet; the other way round it would be far less than nothing."""
    _, metrics = trained
    assert (np.abs(metrics["explained_variance"][1:]) < 0.5).all()
