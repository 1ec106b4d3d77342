"""DDPG's gradient step against the paper's, and the contract of the file."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import envs
from algorithms import ddpg
from tests.algorithms.contract import *  # noqa: F403  the contract
from tests.algorithms.contract import again, assert_close, assert_same
from tests.algorithms.probes import play_probes
from tests.conftest import AS_FOR_USERS

# In test_slices.py, which is slow.
del test_slices_are_exact_under_vmap_too  # noqa: F821
del test_slices_are_exactly_the_whole  # noqa: F821

MODULE = ddpg
CONTINUOUS = True
TINY = ddpg.Config(
    env_settings=(("max_steps", 20),),
    total_timesteps=3 * 32,
    num_envs=2,
    updates_per_step=2,
    buffer_size=40,
    batch_size=8,
    learning_starts=12,
    anneal_lr=True,
    n_step=2,
    reward_scale=0.5,
    tau=0.05,
    noise_correlation=0.5,
    hidden_sizes=(8,),
    critic_hidden_sizes=(8, 8),
    num_evals=3,
    num_eval_episodes=2,
)
METRICS = {"critic_loss", "actor_loss", "mean_value", "grad_norm"}
OTHER = {"adam_eps": 1e-2}
TOLERANCE = dict(rtol=1e-3, atol=1e-4)
REFUSED = [
    (dict(batch_size=8.0), "batch_size=8.0"),
    (dict(critic_hidden_sizes=(8, 0)), "critic_hidden_sizes=.*: give whole numbers, 1 or more"),
    (dict(network="resnet"), "network='resnet': give mlp or simba"),
    (dict(learning_starts=96), "learning_starts=96 leaves nothing .* 9 would do"),
    (dict(buffer_size=2, n_step=3), "buffer_size=2 does not hold n_step=3 .* 6 would do"),
    (dict(env="CartPole-v1", env_settings=()), "CartPole-v1 has actions .*; ddpg takes Box"),
]
PINNED = {
    "critic_loss": [67.7065, 45.2391, 28.8646],
    "actor_loss": [1.09164, 0.97905, 1.66373],
    "mean_value": [-1.09164, -0.980645, -1.66307],
}


def test_metrics_have_the_points_as_leading_axis(file, trained):
    """Learning starts within the first point."""
    state, metrics = trained
    assert list(metrics["timestep"]) == [0, 32, 64, 96]
    assert metrics["eval_return"].shape == (4, 2) and metrics["eval_length"].shape == (4, 2)
    for name in METRICS:
        assert np.isnan(metrics[name][0]) and np.isfinite(metrics[name][1:]).all(), name
    others = {"timestep", "num_episodes", "episode_return", "episode_length"}
    assert set(metrics) == METRICS | others | file.EVALUATION
    assert int(state.update) == 3


# --- one gradient step ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def step():
    """The state before and after an update of one round with one gradient step, the config."""
    config = TINY.replace(train_every=16, learning_starts=0, anneal_lr=False, num_eval_episodes=0)
    config = config.replace(buffer_size=200, updates_per_step=1, actor_learning_rate=0.5)
    config = config.replace(learning_rate=0.1, adam_eps=1.0)  # or a first step is a sign's
    learner = ddpg.learner(config, *envs.make(config.env, max_steps=20))
    update = jax.jit(learner.update)
    state = update(jax.jit(learner.init)(jax.random.key(0)))[0]
    # Networks that differ from their targets
    state = state.replace(
        target_params=jax.tree.map(lambda x: 1.3 * x + 0.05, state.target_params),
        actor_opt_state=jax.tree.map(jnp.zeros_like, state.actor_opt_state),
        critic_opt_state=jax.tree.map(jnp.zeros_like, state.critic_opt_state),
    )
    return config, state, *update(again(state))


def test_a_gradient_step_is_the_papers(step):
    """The critic's, then the actor's up the critic as it is by then, then the targets'."""
    config, state, after, metrics = step
    _, _, _, _, draw_rng = jax.random.split(again(state).rng, 5)
    buffer = ddpg.make_buffer(config)
    draw = buffer.draw(after.replay, buffer.noise(draw_rng, (1, 1, config.batch_size))[0, 0])
    window = buffer.windows(after.replay.transitions, draw.index, config.gamma)
    actor, critic = ddpg.Actor(config, 1), ddpg.Critic(config)
    x, next_x, targets = window.observation, window.final_observation, state.target_params
    next_value = critic.apply(targets.critic, next_x, actor.apply(targets.actor, next_x))
    target = 0.5 * window.returns + window.discount * next_value
    critic_loss = lambda params: ((critic.apply(params, x, window.action) - target) ** 2).mean()

    def stepped(loss, params, learning_rate):
        adam = optax.adam(learning_rate, eps=config.adam_eps)
        changes, _ = adam.update(jax.grad(loss)(params), adam.init(params))
        return optax.apply_updates(params, changes)

    learned = stepped(critic_loss, state.critic_params, 0.1)
    actor_loss = lambda params: -critic.apply(learned, x, actor.apply(params, x)).mean()
    params = stepped(actor_loss, state.policy.params, config.actor_learning_rate)
    assert_close(after.critic_params, learned, rtol=1e-3, atol=2e-5)
    assert_close(after.policy.params, params, rtol=1e-3, atol=2e-5)
    new = ddpg.Targets(params, learned)
    moved = jax.tree.map(lambda t, c: 0.95 * t + 0.05 * c, targets, new)
    assert_close(after.target_params, moved, rtol=1e-3, atol=2e-5)
    expected = {
        "critic_loss": critic_loss(state.critic_params),
        "actor_loss": actor_loss(state.policy.params),
        "mean_value": critic.apply(state.critic_params, x, window.action).mean(),
    }
    for name, value in expected.items():
        assert float(metrics[name].total) == pytest.approx(float(value), rel=1e-3), name


# --- acting -----------------------------------------------------------------------------------


def test_what_is_kept_is_the_action_in_its_unit_and_what_it_led_to():
    """Held against Pendulum's own equation. Actions are uniform before learning starts, and the
    policy's with noise afterwards; noise is correlated from step to step, actions with it."""
    config = TINY.replace(learning_starts=1000, total_timesteps=3 * 512, num_envs=32)
    config = config.replace(buffer_size=1536, learning_rate=0.0, num_eval_episodes=0)
    config = config.replace(exploration_noise=0.3)
    state, _ = ddpg.make_train(config)(jax.random.key(0))
    seen = jax.tree.map(np.asarray, state.replay.transitions)
    actions = seen.action[:, 0]
    shares = np.histogram(actions[:960], 4, (-1.0, 1.0))[0] / 960
    np.testing.assert_allclose(shares, 0.25, atol=0.07)
    assert actions[1024:].std() == pytest.approx(0.3, rel=0.1)
    by_step = actions[1024:].reshape(-1, 32)
    assert np.corrcoef(by_step[1:].ravel(), by_step[:-1].ravel())[0, 1] == pytest.approx(
        0.5, abs=0.1
    )
    x, x_next = seen.observation, seen.final_observation
    speed = x[:, 2] + 0.05 * (15.0 * x[:, 1] + 3.0 * 2.0 * actions)
    np.testing.assert_allclose(x_next[:, 2], np.clip(speed, -8.0, 8.0), atol=1e-4)
    assert seen.done[19 * 32 : 20 * 32].all() and not seen.terminated.any()


def test_learning_waits():
    config = TINY.replace(learning_starts=60, num_eval_episodes=0)
    train = ddpg.make_train(config)
    start, _ = train(jax.random.key(0), None, 0)
    state, metrics = train(None, again(start), 1)
    for name in ("policy", "critic_params", "target_params", "actor_opt_state", "critic_opt_state"):
        assert_same(getattr(state, name), getattr(start, name))
    assert np.isnan(metrics["critic_loss"]).all() and np.isnan(metrics["actor_loss"]).all()
    late, _ = train(None, state, 2)
    assert int(late.actor_opt_state.count) > 0


def test_learning_waits_for_a_whole_window():
    """Of 12 steps of both environments, which 12 of the 16 rounds make: the last 5 learn, twice."""
    config = TINY.replace(learning_starts=0, n_step=12)
    learner = ddpg.learner(config, *envs.make(config.env, max_steps=20))
    _, metrics = jax.jit(learner.update)(jax.jit(learner.init)(jax.random.key(0)))
    assert metrics["critic_loss"].weight == 10


def test_a_policy_with_a_key_explores_within_the_box(trained, vmapped_keys):
    state, _ = trained
    policy = ddpg.make_policy(TINY.replace(exploration_noise=0.5))
    x = jnp.array([0.5, 0.5, 1.0])
    keys = jax.random.split(jax.random.key(1), 400)
    actions = jax.vmap(lambda key: policy(state, x, None, key)[0])(keys)
    assert actions.shape == (400, 1) and (jnp.abs(actions) <= 2.0).all()
    plain = ddpg.Actor(TINY, 1).apply(state.policy.params, x[None])[0]
    np.testing.assert_allclose(policy(state, x)[0], 2.0 * plain, rtol=1e-5)
    assert np.median(actions) == pytest.approx(2.0 * float(plain[0]), abs=0.15)
    assert actions.std() > 0.6


# --- network ----------------------------------------------------------------------------------


def test_heads_start_with_their_gains():
    config = TINY.replace(num_eval_episodes=0)
    state, _ = ddpg.make_train(config)(jax.random.key(0), None, 0)
    head = state.critic_params["params"]["value_head"]["kernel"]
    np.testing.assert_allclose(head.T @ head, np.eye(1), atol=1e-5)
    head = state.policy.params["params"]["action_head"]["kernel"]
    np.testing.assert_allclose(head.T @ head, 1e-4, rtol=1e-4)
    assert_same(state.target_params, ddpg.Targets(state.policy.params, state.critic_params))


# --- probe tasks ------------------------------------------------------------------------------

PROBE = ddpg.Config(
    total_timesteps=16 * 2000,
    num_envs=16,
    buffer_size=4_000,
    batch_size=64,
    learning_starts=1_000,
    learning_rate=1e-2,
    actor_learning_rate=1e-2,
    anneal_lr=True,
    gamma=0.9,
    tau=0.05,
    exploration_noise=0.3,
    hidden_sizes=(16,),
    critic_hidden_sizes=(32,),
    activation="tanh",
    num_evals=1,
    num_eval_episodes=0,
    eval_at_start=False,
)


def played():
    """In test_probes.py, which is slow."""

    def values_of(config, space, state, x):
        action = ddpg.Actor(config, 1).apply(state.policy.params, x)
        return ddpg.Critic(config).apply(state.critic_params, x, action)

    return "continuous", *play_probes(ddpg, PROBE, values_of, True, options=AS_FOR_USERS)
