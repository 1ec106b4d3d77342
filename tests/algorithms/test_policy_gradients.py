"""Shared tests of files that learn a policy by its gradient: what a gradient step does.

The moves of the parameters show it. `read` in a file's case is a change of `tiny` that makes these
tests quick. The tests add to the contract.
"""

import functools
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

import envs
from algorithms import parts
from envs import warn
from tests import probe as tasks
from tests.algorithms.cases import change_leaves, compiled, of_relatives_seldom
from tests.probe import ProbeParams, environment, spaces

pytestmark = pytest.mark.cases(lambda case: case.of_family("policy gradients"))
of_one_agent = pytest.mark.cases(lambda case: case.info["agents"] == "one")
with_settings = lambda *names: pytest.mark.cases(lambda case: case.has(*names))


@of_relatives_seldom
@pytest.mark.cases(lambda case: not case.several)
def test_the_entropy_bonus_raises_the_entropy(case, slices):
    """A policy prefers an action, and nothing else matters much. The programs are those of
    `slices`."""
    floats = dict(ent_coef=100.0, learning_rate=0.05)
    train = case.module.make_train(case.tiny.replace(**floats), *case.world)
    state = change_leaves(slices[0][0], ("actor_head", "bias"), lambda x: x.at[..., 0].add(1.0))
    entropy = []
    with compiled(case):
        for _ in range(3):
            state, row = train(None, state, 1)
            entropy.append(np.asarray(row["entropy"][0]))
    assert (entropy[0] < 0.65).all() and (entropy[-1] > entropy[0] + 0.005).all(), entropy


LOW, HIGH = np.array([-1.0, 0.0]), np.array([3.0, 2.0])  # the middle of the box is not zero


@struct.dataclass
class Arrived:
    x: jax.Array  # the last action, the lowest and the highest of each dimension, (3, 2)
    time: jax.Array


class Echo(environment.Environment):
    """Reports the actions that arrive."""

    @property
    def default_params(self):
        return ProbeParams(max_steps_in_episode=1000)

    def reset_env(self, key, params):
        state = Arrived(jnp.zeros((3, 2)), jnp.zeros((), jnp.int32))
        return state.x, state

    def step_env(self, key, state, action, params):
        _, least, most = state.x
        x = jnp.stack([action, jnp.minimum(least, action), jnp.maximum(most, action)])
        return x, Arrived(x, state.time + 1), jnp.float32(0), jnp.bool_(False), {}

    def action_space(self, params):
        return spaces.Box(jnp.array(LOW), jnp.array(HIGH), (2,))

    def observation_space(self, params):
        return spaces.Box(-1.0, 3.0, (3, 2))


@of_relatives_seldom
def test_only_the_environment_and_memories_see_the_clipped_action(case, monkeypatch, vmapped_keys):
    """Learning sees the unclipped action, to which its log_prob belongs.

    A wide Gaussian often leaves each dimension's bounds, and then the bounds arrive.
    """
    seen, original = [], parts.Gaussian.log_prob

    def spy(actions, action):
        jax.debug.callback(lambda x: seen.append(np.abs(x).max()), action)
        return original(actions, action)

    monkeypatch.setattr(parts.Gaussian, "log_prob", spy)
    env = tasks.Twins(Echo()) if case.several else Echo()
    on = dict(previous_inputs=True) if hasattr(case.tiny, "previous_inputs") else {}
    learner = case.module.learner(case.tiny.replace(**on), env, env.default_params)
    state = jax.jit(learner.init)(jax.random.key(0))
    state = change_leaves(state, ("log_std",), lambda x: x + 2.0)
    state, _ = jax.block_until_ready(jax.jit(learner.update)(state))
    jax.effects_barrier()
    assert seen and min(seen) > 3.0
    last, least, most = np.moveaxis(state.observation.reshape(-1, 3, 2), 1, 0)
    assert_bounds = lambda low, high: np.testing.assert_array_equal([low, high], [LOW, HIGH])
    assert_bounds(least.min(0), most.max(0))
    if hasattr(state, "memory"):
        np.testing.assert_array_equal(state.memory.action.reshape(-1, 2), last)
    act = lambda key: learner.policy(state, jnp.zeros_like(state.observation[0]), None, key)
    actions, memory = jax.jit(jax.vmap(act))(jax.random.split(jax.random.key(1), 50))
    assert actions.shape == (50, *state.observation.shape[1:-2], 2)
    assert_bounds(actions.reshape(-1, 2).min(0), actions.reshape(-1, 2).max(0))
    if memory is not None:
        np.testing.assert_array_equal(memory.action, actions)


class Far(Echo):
    def action_space(self, params):
        return spaces.Box(-1e4, 1e4, (2,))


def test_a_box_that_the_gaussian_never_explores_is_told_of(case):
    """Not with `squash`, which maps the Gaussian to the box, and not where actions are rescaled."""
    env = tasks.Twins(Far()) if case.several else Far()
    given = env, env.default_params
    with warnings.catch_warnings():
        warnings.simplefilter("error", warn.KitWarning)
        for true in ("no action changes", "all resets of"):
            warnings.filterwarnings("ignore", true, warn.KitWarning)
        if case.has("squash"):
            case.module.make_train(case.tiny.replace(squash=True), *given)
        case.module.make_train(case.tiny, *envs.make(env, rescale_action=True))
    with pytest.warns(warn.KitWarning, match="between \\+-10000, .*rescale_action=true suits it"):
        case.module.make_train(case.tiny, *given)


# --- what a gradient step does ----------------------------------------------------------------

UPDATES = EPOCHS = 3
RATE = 1e-2  # so small that all gradient steps of an update have nearly the same gradient


@pytest.fixture(scope="module")
def read(case):
    """The moves of the parameters and the metrics, as a function read(reward, log_std=0.0, ...).

    Its other arguments are updates=1, task=CONSTANT and changes of the config. Adam divides by the
    size of gradients. With an epsilon this large, a gradient step at the full learning rate moves
    the parameters by RATE times the gradient.
    """
    plain = dict(
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
    )
    config = case.tiny.replace(**{k: x for k, x in plain.items() if case.has(k)} | case.read)
    config = config.replace(**dict(update_epochs=EPOCHS) if epochs(case) > 1 else {})
    env = tasks.Probe(continuous=True)
    train = case.module.make_train(config, env, ProbeParams())
    start = parts.first_state(train, jax.random.key(0))
    start = change_leaves(start, ("critic_head", "kernel"), jnp.zeros_like)  # all values are zero

    def moves(reward, log_std=0.0, updates=1, task=tasks.CONSTANT, **changes):
        params = ProbeParams(task=task, reward=reward)
        train = case.module.make_train(config.replace(**changes), env, params)
        state = change_leaves(start, ("log_std",), lambda x: jnp.full_like(x, log_std))
        moves, rows = [], []
        for _ in range(updates):
            before = state.policy.params
            state, row = train(None, state, 1)
            moves.append(jax.tree.map(jnp.subtract, state.policy.params, before)["params"])
            rows.append(row)
        return moves, rows

    return moves


def epochs(case):
    return EPOCHS if hasattr(case.tiny, "update_epochs") else 1


def rates(case):
    """The sums of an update's learning rates, (UPDATES,), which fall linearly to zero over the
    run."""
    steps = epochs(case) * getattr(case.tiny, "num_minibatches", 1)
    left = 1.0 - np.arange(UPDATES * steps) / (UPDATES * steps)
    return RATE * left.reshape(UPDATES, steps).sum(1)


@of_one_agent
@of_relatives_seldom
def test_the_entropy_grows_and_learning_rates_are_annealed(case, read):
    """Without rewards only the log std moves, and its gradient is constant."""
    moves, _ = read(0.0, updates=UPDATES, ent_coef=0.1)
    for move, rate in zip(moves, rates(case)):
        np.testing.assert_allclose(move.pop("log_std"), 0.1 * rate, rtol=1e-3)
        for leaf in jax.tree.leaves(move):
            np.testing.assert_allclose(leaf, 0.0, atol=1e-7)


@of_one_agent
def test_values_move_to_their_targets_in_proportion_to_vf_coef(case, read):
    for vf_coef in (0.25, 0.5):
        (move,), (metrics,) = read(2.0, vf_coef=vf_coef)
        expected = rates(case)[0] * 2.0 * vf_coef
        np.testing.assert_allclose(move["critic_head"]["bias"], expected, rtol=0.05)
        np.testing.assert_allclose(metrics["value_loss"], 0.5 * 2.0**2, rtol=0.05)


@pytest.fixture(scope="module")
def switched(case, read):
    """The same with all of these switched on: one more program serves three tests."""
    names = ("normalize_reward", "normalize_advantage", "clip_vloss")
    return functools.partial(read, **{name: True for name in names if case.has(name)})


@of_one_agent
@with_settings("clip_vloss")
def test_clipped_values_stay_near_those_of_the_rollout(read, switched):
    """They reach the limit in one gradient step, and then only momentum moves them."""
    (free,), _ = read(2.0, vf_coef=0.5)
    (kept,), _ = switched(2.0, vf_coef=0.5, clip_eps=1e-6)
    moved = kept["critic_head"]["bias"] / free["critic_head"]["bias"]
    assert 0.2 < moved < 0.7


@of_one_agent
def test_the_environment_gets_clipped_actions(read):
    """The Gaussian is wide, and the worst possible action costs 2.25."""
    _, (metrics,) = read(1.0, log_std=3.0, task=tasks.ACTION)
    assert -2.25 <= metrics["episode_return"] < -0.5


@of_one_agent
def test_gradients_are_clipped_by_their_global_norm(case, read):
    (move,), (metrics,) = read(2.0, vf_coef=1.0, max_grad_norm=1e-2)
    np.testing.assert_allclose(optax.tree.norm(move), 1e-2 * rates(case)[0], rtol=1e-2)
    assert metrics["grad_norm"] > 1.0  # before clipping


@of_one_agent
def test_rewards_are_scaled_by_statistics_from_before_the_rollout(switched):
    """At first nothing is known; then the spread is zero, and rewards are clipped."""
    _, rows = switched(2.0, updates=2, clip_reward=5.0)
    for metrics, reward in zip(rows, (2.0, 5.0)):
        np.testing.assert_allclose(metrics["value_loss"], 0.5 * reward**2, rtol=1e-3)
        np.testing.assert_allclose(metrics["episode_return"], 2.0)


@of_one_agent
def test_advantages_that_are_all_the_same_are_standardised_to_nothing(read, switched):
    for played, least, most in ((switched, 0.0, 1e-5), (read, 0.9, 2.0)):
        _, (metrics,) = played(1.0)
        assert least <= abs(metrics["policy_loss"][0]) <= most


@of_one_agent
@with_settings("target_kl")
def test_epochs_end_with_the_first_whose_mean_kl_is_too_large(read):
    """The KL of a single minibatch or the sum over epochs does not matter."""

    def learn(target):
        _, (metrics,) = read(1.0, task=tasks.ACTION, target_kl=target, learning_rate=1e3)
        return metrics["epochs"][0], metrics["approx_kl"][0]

    assert_epochs(learn)


def assert_epochs(learn):
    """Asserts that epochs end after the first one whose KL exceeds target_kl.

    learn(target_kl) returns how many of 3 or more epochs ran, and the mean of their KLs. The means
    over one and over two epochs give the KL of each.
    """
    number, first = learn(1e-12)
    assert number == 1
    number, mean = learn(1.01 * first)
    assert number == 2 and mean > 1.01 * first
    second = 2.0 * mean - first
    assert first > 0.05 * second, "or the sum of both is no more than the second"
    number, _ = learn(1.01 * second)
    assert number > 2


@of_one_agent
@of_relatives_seldom
@pytest.mark.cases(lambda case: case.heeds_masks)
def test_log_probs_and_entropy_heed_the_mask(case):
    """In half of the states one of three actions is allowed, in the others two.

    Allowed actions have about the same probability. The same masks in acting and learning make the
    ratio one.
    """
    env = tasks.Probe(masked=True)
    params = ProbeParams(task=tasks.SWING, max_steps_in_episode=4)
    one_step = dict(num_minibatches=1, update_epochs=1, clip_eps=1e-5)
    one_step = {name: value for name, value in one_step.items() if case.has(name)}
    config = case.tiny.replace(**one_step, num_eval_episodes=0, eval_at_start=False)
    _, metrics = case.module.make_train(config, env, params)(jax.random.key(0), None, 1)
    np.testing.assert_allclose(metrics["entropy"], 0.5 * math.log(2.0), rtol=1e-3)
    if case.has("clip_eps"):
        np.testing.assert_array_equal(metrics["clip_fraction"], 0.0)


@of_one_agent
def test_the_loss_is_the_sum_of_its_parts(case, trained):
    _, metrics = trained
    expected = metrics["policy_loss"] + case.tiny.vf_coef * metrics["value_loss"]
    expected -= case.tiny.ent_coef * metrics["entropy"]
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-5)


@of_one_agent
def test_initial_explained_variance_is_small(trained):
    """Values hardly differ yet. With its arguments swapped, the result would be far below zero."""
    _, metrics = trained
    assert (np.abs(metrics["explained_variance"][1:]) < 0.5).all()


@with_settings("shared_torso")
def test_actor_and_critic_may_share_a_torso_and_both_teach_it(case):
    for shared, torsos in ((False, {"actor_torso", "critic_torso"}), (True, {"actor_torso"})):
        config = case.tiny.replace(shared_torso=shared)
        network, x = (
            case.module.ActorCritic(config, parts.ActionSpace(tasks.spaces.Discrete(2))),
            jnp.ones((1, 4)),
        )
        params = jax.jit(network.init)(jax.random.key(0), x)
        assert params["params"].keys() == torsos | {"actor_head", "critic_head"}

        @jax.jit
        def slopes(params, network=network, x=x):
            actions, values = jax.jacrev(network.apply)(params, x)
            return jax.tree.map(lambda x: jnp.abs(x).max(), (actions.logits, values))

        actor, critic = (x["params"] for x in slopes(params))
        for of_one, own, other in ((actor, "actor", "critic"), (critic, "critic", "actor")):
            taught = {name for name, x in of_one.items() if max(jax.tree.leaves(x)) > 0.0}
            torso = "actor" if shared else own
            assert taught == {f"{torso}_torso", f"{own}_head"}, other
