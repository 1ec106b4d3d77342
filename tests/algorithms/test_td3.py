"""TD3's gradient step against the papers' equations, its noises, and the contract of the file."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import envs
from algorithms import td3
from tests.algorithms.contract import *  # noqa: F403  the contract
from tests.algorithms.contract import again, assert_close, assert_same
from tests.algorithms.probes import play_probes
from tests.conftest import AS_FOR_USERS

# In test_slices.py, which is slow.
del test_slices_are_exact_under_vmap_too  # noqa: F821
del test_slices_are_exactly_the_whole  # noqa: F821

MODULE = td3
CONTINUOUS = True
TINY = td3.Config(
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
    (dict(policy_every=0), "policy_every=0"),
    (dict(num_critics=0), "num_critics=0: give a whole number, 1 or more"),
    (dict(critic_hidden_sizes=(8, 0)), "critic_hidden_sizes=.*: give whole numbers, 1 or more"),
    (dict(network="resnet"), "network='resnet': give mlp or simba"),
    (dict(learning_starts=96), "learning_starts=96 leaves nothing .* 9 would do"),
    (dict(buffer_size=2, n_step=3), "buffer_size=2 does not hold n_step=3 .* 6 would do"),
    (dict(env="CartPole-v1", env_settings=()), "CartPole-v1 has actions .*; td3 takes Box"),
]
PINNED = {
    "critic_loss": [139.824, 95.3288, 65.5662],
    "actor_loss": [-0.257338, -0.238237, -1.04215],
    "mean_value": [0.0177642, -0.110717, -0.540637],
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


# --- formulas ---------------------------------------------------------------------------------


def test_correlated_noise_keeps_its_variance_and_forgets():
    rng = np.random.default_rng(0)
    fresh, last = rng.normal(size=(2, 100_000))
    noise = td3.correlated(fresh, last, 0.8)
    assert noise.var() == pytest.approx(1.0, abs=0.02)
    assert np.corrcoef(noise, last)[0, 1] == pytest.approx(0.8, abs=0.01)
    np.testing.assert_array_equal(td3.correlated(fresh, last, 0.0), fresh.astype(np.float32))


# --- gradient steps ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def steps():
    """The states before and after an update of one round with two gradient steps, the config."""
    config = TINY.replace(train_every=16, learning_starts=0, anneal_lr=False, num_eval_episodes=0)
    config = config.replace(buffer_size=200, num_critics=3, target_noise=0.4, policy_every=2)
    config = config.replace(learning_rate=0.1, adam_eps=1.0)  # or a first step is a sign's
    learner = td3.learner(config, *envs.make(config.env, max_steps=20))
    update = jax.jit(learner.update)
    state = update(jax.jit(learner.init)(jax.random.key(0)))[0]
    # Networks that differ from their targets
    state = state.replace(
        target_params=jax.tree.map(lambda x: 1.3 * x + 0.05, state.target_params),
        actor_opt_state=jax.tree.map(jnp.zeros_like, state.actor_opt_state),
        critic_opt_state=jax.tree.map(jnp.zeros_like, state.critic_opt_state),
    )
    return config, state, *update(again(state))


def test_gradient_steps_are_the_papers(steps):
    """The critics take two, in Adam's order; after the second the actor takes one, up the first
    critic as it is by then, and the targets follow."""
    config, state, after, metrics = steps
    _, _, _, _, draw_rng, target_rng = jax.random.split(again(state).rng, 6)
    buffer, shape = td3.make_buffer(config), (1, 2, config.batch_size)
    draws = buffer.noise(draw_rng, shape)[0]
    noises = np.asarray(jax.random.normal(target_rng, (*shape, 1))[0])
    assert (np.abs(0.4 * noises) > 0.5).any()  # some are clipped
    actor, critic = td3.Actor(config, 1), td3.Critic(config)
    value = lambda params, i, x, a: critic.apply(jax.tree.map(lambda p: p[i], params), x, a)
    adam = optax.adam(config.learning_rate, eps=config.adam_eps)

    def stepped(loss, params, opt_state):
        changes, opt_state = adam.update(jax.grad(loss)(params), opt_state)
        return optax.apply_updates(params, changes), opt_state

    critics, targets = state.critic_params, state.target_params
    opt_state, losses = adam.init(critics), []
    for noise, draw_noise in zip(noises, draws):
        index = buffer.draw(after.replay, draw_noise).index
        window = buffer.windows(after.replay.transitions, index, config.gamma)
        next_action = actor.apply(targets.actor, window.final_observation)
        next_action = np.clip(next_action + np.clip(0.4 * noise, -0.5, 0.5), -1.0, 1.0)
        lowest = np.stack(
            [value(targets.critics, i, window.final_observation, next_action) for i in range(3)]
        ).min(0)
        target = 0.5 * window.returns + window.discount * lowest

        def critic_loss(critics, window=window, target=target):
            errors = [
                value(critics, i, window.observation, window.action) - target for i in range(3)
            ]
            return sum((error**2).mean() for error in errors)

        losses.append(float(critic_loss(critics)))
        critics, opt_state = stepped(critic_loss, critics, opt_state)

    def actor_loss(params):
        x = window.observation
        return -value(critics, 0, x, actor.apply(params, x)).mean()

    params, _ = stepped(actor_loss, state.policy.params, adam.init(state.policy.params))
    assert_close(after.critic_params, critics, rtol=1e-3, atol=2e-5)
    assert_close(after.policy.params, params, rtol=1e-3, atol=2e-5)
    new = td3.Targets(params, critics)
    moved = jax.tree.map(lambda t, c: 0.95 * t + 0.05 * c, targets, new)
    assert_close(after.target_params, moved, rtol=1e-3, atol=2e-5)
    assert float(metrics["critic_loss"].total) == pytest.approx(sum(losses), rel=1e-3)
    assert float(metrics["actor_loss"].total) == pytest.approx(
        float(actor_loss(state.policy.params)), rel=1e-3
    )
    assert metrics["critic_loss"].weight == 2 and metrics["actor_loss"].weight == 1


@pytest.mark.parametrize("every, updates, rounds", [(3, 2, 15), (2, 4, 16)])
def test_the_actor_learns_at_every_so_many_of_the_critics_steps(every, updates, rounds):
    """Through the ends of stretches, which are whole periods. n_step=2 makes the first round wait,
    and the steps of the actor in it."""
    config = TINY.replace(policy_every=every, updates_per_step=updates, learning_starts=0)
    learner = td3.learner(config, *envs.make(config.env, max_steps=20))
    assert learner.steps == rounds * config.num_envs
    update = jax.jit(learner.update)
    state, metrics = update(jax.jit(learner.init)(jax.random.key(0)))
    waiting = updates
    total = rounds * updates
    assert metrics["critic_loss"].weight == total - waiting
    assert metrics["actor_loss"].weight == total // every - waiting // every
    assert int(state.critic_opt_state.count) == total - waiting
    assert int(state.actor_opt_state.count) == total // every - waiting // every
    state, metrics = update(state)
    assert metrics["actor_loss"].weight == total // every


def test_the_actors_steps_stay_a_branch_under_vmap(vmapped_keys):
    """Else all of them are computed, and most thrown away."""
    config = TINY.replace(num_eval_episodes=0)
    learner = td3.learner(config, *envs.make(config.env, max_steps=20))
    states = jax.eval_shape(jax.vmap(learner.init), jax.random.split(jax.random.key(0), 3))
    assert "cond[" in str(jax.make_jaxpr(jax.vmap(learner.update))(states))


# --- acting -----------------------------------------------------------------------------------


def test_what_is_kept_is_the_action_in_its_unit_and_what_it_led_to():
    """Held against Pendulum's own equation. Actions are uniform before learning starts, and the
    policy's with noise afterwards; noise is correlated from step to step, actions with it."""
    config = TINY.replace(learning_starts=1000, total_timesteps=3 * 512, num_envs=32)
    config = config.replace(buffer_size=1536, learning_rate=0.0, num_eval_episodes=0)
    config = config.replace(exploration_noise=0.3)
    state, _ = td3.make_train(config)(jax.random.key(0))
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
    train = td3.make_train(config)
    start, _ = train(jax.random.key(0), None, 0)
    state, metrics = train(None, again(start), 1)
    for name in ("policy", "critic_params", "target_params", "actor_opt_state", "critic_opt_state"):
        assert_same(getattr(state, name), getattr(start, name))
    assert np.isnan(metrics["critic_loss"]).all() and np.isnan(metrics["actor_loss"]).all()
    late, _ = train(None, state, 2)
    assert int(late.actor_opt_state.count) > 0


def test_a_policy_with_a_key_explores_within_the_box(trained, vmapped_keys):
    state, _ = trained
    policy = td3.make_policy(TINY.replace(exploration_noise=0.5))
    x = jnp.array([0.5, 0.5, 1.0])
    keys = jax.random.split(jax.random.key(1), 400)
    actions = jax.vmap(lambda key: policy(state, x, None, key)[0])(keys)
    assert actions.shape == (400, 1) and (jnp.abs(actions) <= 2.0).all()
    plain = td3.Actor(TINY, 1).apply(state.policy.params, x[None])[0]
    np.testing.assert_allclose(policy(state, x)[0], 2.0 * plain, rtol=1e-5)
    assert np.median(actions) == pytest.approx(2.0 * float(plain[0]), abs=0.15)
    assert actions.std() > 0.6


# --- network ----------------------------------------------------------------------------------


def test_critics_start_apart_and_heads_with_their_gains():
    config = TINY.replace(num_eval_episodes=0)
    state, _ = td3.make_train(config)(jax.random.key(0), None, 0)
    first, second = (
        jax.tree.map(lambda x, i=i: x[i], state.critic_params)["params"] for i in (0, 1)
    )
    for params in (first, second):
        head = params["value_head"]["kernel"]
        np.testing.assert_allclose(head.T @ head, np.eye(1), atol=1e-5)
    assert not np.allclose(first["value_head"]["kernel"], second["value_head"]["kernel"])
    head = state.policy.params["params"]["action_head"]["kernel"]
    np.testing.assert_allclose(head.T @ head, 1e-4, rtol=1e-4)
    assert_same(state.target_params, td3.Targets(state.policy.params, state.critic_params))


# --- probe tasks ------------------------------------------------------------------------------

PROBE = td3.Config(
    total_timesteps=16 * 2000,
    num_envs=16,
    buffer_size=4_000,
    batch_size=64,
    learning_starts=1_000,
    learning_rate=1e-2,
    anneal_lr=True,
    gamma=0.9,
    tau=0.05,
    exploration_noise=0.3,
    target_noise=0.0,
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
        action = td3.Actor(config, 1).apply(state.policy.params, x)
        critics = jax.vmap(td3.Critic(config).apply, (0, None, None))
        return critics(state.critic_params, x, action).min(0)

    return "continuous", *play_probes(td3, PROBE, values_of, True, options=AS_FOR_USERS)
