"""What C51, QR-DQN and IQN have in common beside the contract: the same page as DQN's but for
distributions, and one gradient step from a transition made by hand, which DQN's tests take from
here, too. Each file's tests import these with those of its formulas, and define, beside what
`value_based` asks for,

    expected_loss(config, online, target, best, state)
                                    in plain NumPy, of the transition from X to X_NEXT; `online` and
                                    `target` are parameters, `best` is the action of the target
    mean_values(config, state, x)   of all actions, as `mean_value` has them
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import dqn, parts
from tests import probe as tasks
from tests.algorithms.contract import again

GAMMA, REWARD, ACTION = 0.9, 2.0, 1
COUNT = 1e6  # of observations whose statistics are known: so many that a rollout hardly moves them
# Steps of three, and one gradient step of an update; the buffer holds the transition, nearly alone.
ONE = dict(
    total_timesteps=16,
    num_envs=1,
    train_every=16,
    updates_per_step=1,
    buffer_size=100_000,
    learning_starts=0,
    gamma=GAMMA,
    n_step=3,
    normalize_obs=True,
)


def gradient_step(module, config, networks, masked):
    """The state before an update and after it, and what the gradient step says. `networks` makes
    parameters of both networks from some."""
    env = tasks.Probe(masked=masked)
    max_steps = 5 if masked else 1000
    env_params = tasks.ProbeParams(task=tasks.SWING, max_steps_in_episode=max_steps)
    learner = module.learner(config.replace(**ONE), env, env_params)
    state = jax.jit(learner.init)(jax.random.key(0))
    transition = parts.Transition(
        observation=jnp.array([-1.0]),
        action=jnp.int32(ACTION),
        reward=jnp.float32(REWARD),
        terminated=jnp.bool_(False),
        done=jnp.bool_(False),
        final_observation=jnp.array([2.0]),
        action_mask=jnp.array([False, True, False]) if masked else None,
        final_action_mask=jnp.array([True, True, False]) if masked else None,
    )
    fill = lambda x, one: jnp.broadcast_to(one, x.shape).astype(x.dtype)
    transitions = jax.tree.map(fill, state.replay.transitions, transition)
    replay = state.replay.replace(transitions=transitions, size=jnp.int32(100_000))
    if replay.priorities is not None:
        replay = replay.replace(priorities=replay.priorities.at[:100_000].set(1.0))
    stats = state.policy.obs_stats
    stats = stats.replace(mean=stats.mean + 0.5, var=4.0 * stats.var, count=jnp.float32(COUNT))
    online, target = networks(state.policy.params)
    policy = state.policy.replace(params=online, obs_stats=stats)
    state = state.replace(policy=policy, target_params=target, replay=replay)
    before = again(state)
    after, metrics = jax.jit(learner.update)(state)
    averages = {name: x for name, x in metrics.items() if isinstance(x, parts.Average)}
    assert all(x.weight == 1 for x in averages.values())
    return before, after, {name: float(x.total) for name, x in averages.items()}


@pytest.fixture(scope="module", params=[False, True], ids=["single", "double"])
def one_step(request, file):
    """With networks that do not agree: action 2 is the best for both; then the online network
    prefers action 0, and the target network action 1."""
    config = file.TINY.replace(double=request.param)

    def networks(params):
        noise = np.random.default_rng(0)
        for second in (0, 1):
            draw = lambda x: jnp.asarray(0.3 * noise.normal(size=x.shape), jnp.float32)
            drawn = jax.tree.map(draw, params)
            yield file.prefer(config, file.prefer(config, drawn, 2, 20.0), second, 10.0)

    return config, *gradient_step(file.MODULE, config, networks, masked=True)


X, X_NEXT = np.array([[-0.75]], np.float32), np.array([[0.75]], np.float32)  # as networks see them


def test_the_loss_of_a_transition_is_the_paper_s(file, one_step):
    """Of a window of three steps that bootstraps, where an action is forbidden that both networks
    like best."""
    config, state, _, metrics = one_step
    online, target = state.policy.params, state.target_params
    space = tasks.spaces.Discrete(3)
    values = [file.action_values(config, space, p, X_NEXT)[0] for p in (online, target)]
    assert list(np.argsort(values[0])) == [1, 0, 2] and list(np.argsort(values[1])) == [0, 1, 2]
    best = 0 if config.double else 1
    expected = file.expected_loss(config, online, target, best, state)
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-4)


def test_mean_value_is_that_of_the_best_allowed_action(file, one_step):
    config, state, _, metrics = one_step
    values = file.mean_values(config, state, X)
    assert list(np.argsort(values)) == [1, 0, 2]
    np.testing.assert_allclose(metrics["mean_value"], values[1], rtol=1e-4)


def test_masks_and_statistics_belong_to_what_was_seen(one_step):
    """In episodes of 5 steps, cut where x = -1 and action 0 is allowed, begun where x = 1 and it is
    not: 10 of the 16 observations are 1, and only 6 of those that actions led to."""
    _, _, after, _ = one_step
    played = jax.tree.map(lambda x: np.asarray(x[:16]), after.replay.transitions)
    np.testing.assert_array_equal(np.flatnonzero(played.done), [4, 9, 14])
    assert after.episodes.count == 3
    moved = (after.policy.obs_stats.mean - 0.5) * COUNT / 16
    np.testing.assert_allclose(moved, 4 / 16 - 0.5, atol=0.02)
    for mask, x in (
        (played.action_mask, played.observation),
        (played.final_action_mask, played.final_observation),
    ):
        np.testing.assert_array_equal(mask[:, 0], x[:, 0] <= 0)


def test_the_target_network_moves_by_tau(one_step):
    config, before, after, _ = one_step
    move = lambda old, new: config.tau * new + (1.0 - config.tau) * old
    expected = jax.tree.map(move, before.target_params, after.policy.params)
    assert_close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    jax.tree.map(assert_close, after.target_params, expected)


def test_the_policy_sees_normalised_observations(file):
    config, env, env_params = file.TINY.replace(**ONE), tasks.Probe(), tasks.ProbeParams()
    learner = file.MODULE.learner(config, env, env_params)
    state = jax.jit(learner.init)(jax.random.key(0))
    policy = state.policy
    stats = policy.obs_stats.replace(mean=jnp.array([5.0]), var=jnp.array([4.0]))
    state = state.replace(policy=policy.replace(obs_stats=stats))
    x = np.linspace(-5.0, 15.0, 81, dtype=np.float32)[:, None]
    actions = jax.vmap(lambda x: learner.policy(state, x)[0])(x)
    values = lambda x: file.action_values(config, env.action_space(env_params), policy.params, x)
    np.testing.assert_array_equal(actions, values((x - 5.0) / 2.0).argmax(-1))
    assert (actions != values(x).argmax(-1)).any()


SHARED = ("greedy", "epsilon_at", "epsilon_greedy", "durations", "hold", "normalize")


@pytest.mark.parametrize("name", SHARED)
def test_what_is_repeated_is_dqn_s(module, name):
    """Its own tests hold for these."""
    assert inspect.getsource(getattr(module, name)) == inspect.getsource(getattr(dqn, name))


# --- of quantiles -----------------------------------------------------------------------------


def plain_quantile_huber(quantiles, levels, targets, kappa):
    """The loss and its slopes, of quantiles at levels (num,) and targets (num_targets,)."""
    loss, slopes = 0.0, np.zeros(len(quantiles))
    for i, level in enumerate(levels):
        for target in targets:
            u = target - quantiles[i]
            size = 0.5 * u**2 if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
            weight = abs(level - (u < 0)) / len(targets)
            loss += weight * size
            slopes[i] -= weight * np.clip(u, -kappa, kappa)
    return loss, slopes
