"""Shared tests of files that learn values from a replay buffer, without memory.

They check exploration, the stored transitions, and a gradient step from a transition made by hand.
They add to the contract. A file's case has, with `online` and `target` as parameters,

    action_values(config, n, params, x)         the network's expected values of all actions
    prefer(config, params, action, by)          parameters that add `by` to the value of an action
                                                and keep all others, for any observation
    expected_loss(config, online, target, best, state)
                                    in plain NumPy, for the transition from X to X_NEXT; `best` is
                                    the action of the target
    clipped_targets(config, target, best)
                                    the share of that target that its support does not hold, of a
                                    file with such a metric
    mean_values(config, state, x)   values of all actions, as in `mean_value`
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms import dqn, parts
from algorithms.parts import capacity
from envs.gymnax import Wrapper
from tests import probe as tasks
from tests.algorithms.cases import EVALUATION, again, assert_same
from tests.algorithms.test_probes import play_probes
from tests.conftest import FUSED_AS_FOR_USERS

pytestmark = pytest.mark.cases(
    lambda case: case.of_family("action values") and case.replay and not case.info["memory"]
)

# Settings under which every float of the file matters, with a buffer that wraps around.
SMALL = dict(
    total_timesteps=3 * 32,
    num_envs=2,
    train_every=2,
    updates_per_step=2,
    buffer_size=40,
    batch_size=8,
    learning_starts=40,
    adam_eps=1e-5,
    n_step=2,
    target_every=1,
    tau=0.005,
    eps_end=0.05,
    hidden_sizes=(8,),
    num_evals=3,
    num_eval_episodes=2,
)
# Floats for which half the default is no change, or none that shows within 96 steps.
OTHER = {"adam_eps": 1e-2, "eps_end": 0.9, "max_grad_norm": 1e-3, "huber_delta": 0.1}
OTHER |= {"priority_eps": 0.5, "duration_exponent": 1.5}
TOLERANCE = dict(rtol=1e-4, atol=1e-5)
REFUSED = [
    (dict(batch_size=8.5), "batch_size=8.5"),
    (dict(train_every=0), "train_every=0"),
    (dict(updates_per_step=0), "updates_per_step=0"),
    (dict(n_step=0), "n_step=0"),
    (dict(target_every=0), "target_every=0"),
    (dict(exploration="cosine"), "exploration='cosine': give constant or linear or exponential"),
    (dict(buffer_dtype="int7"), "buffer_dtype='int7': give \"\" or bool or int8"),
    (dict(learning_starts=96), "learning_starts=96 leaves nothing .* 9 would do"),
    (dict(n_step=49, buffer_size=98), "n_step=49 .*num_envs=2 leave nothing .* 4 would do"),
    (dict(buffer_size=4, n_step=3), "buffer_size=4 does not hold n_step=3 .* 6 would do"),
    (dict(env="Pendulum-v1"), "takes Discrete"),
]


def compared(state, metrics):
    """The first 14 gradient steps; rounding grows, and may later choose another sample."""
    names = {"loss", "td_error", "mean_value", "grad_norm"} & metrics.keys()
    return {name: metrics[name][:3] for name in names}


OF_CASES = dict(other=OTHER, tolerance=TOLERANCE, compared=compared)


@pytest.fixture(scope="module")
def module(case):
    return case.module


@pytest.fixture(scope="module")
def tiny(case):
    return case.tiny


def test_metrics_have_the_points_as_leading_axis(case, trained):
    state, metrics = trained
    assert list(metrics["timestep"]) == [0, 32, 64, 96]
    assert metrics["eval_return"].shape == (4, 2) and metrics["eval_length"].shape == (4, 2)
    for name in case.metrics:  # learning starts after the second point
        assert np.isnan(metrics[name][:2]).all() and np.isfinite(metrics[name][2:]).all(), name
    others = {"timestep", "num_episodes", "episode_return", "episode_length", "epsilon"}
    assert set(metrics) == case.metrics | others | EVALUATION
    assert int(state.update) == 3  # of 8 rounds with two gradient steps each
    left = np.maximum(1.0 - np.arange(24) / 24 / 0.2, 0.0).reshape(3, 8).mean(1)
    np.testing.assert_allclose(metrics["epsilon"][1:], 0.05 + 0.95 * left, rtol=1e-5)


def test_learning_waits(slices):
    """The first point ends before learning_starts."""
    (start, _), (state, _), *_ = slices
    for name in ("policy", "target_params", "target_age", "opt_state"):
        assert_same(getattr(state, name), getattr(start, name))


@pytest.fixture(scope="module")
def points(module, tiny):
    """The state and a point of a run of CartPole that keeps all transitions, and every state.

    Episodes have at most 12 steps, and windows have 12. The target network is copied after 22
    gradient steps.
    """
    config = tiny.replace(buffer_size=96, learning_starts=0, n_step=12, num_eval_episodes=0)
    config = config.replace(target_every=22, tau=1.0)
    env, env_params = envs.make(config.env)
    train = module.make_train(config, env, env_params.replace(max_steps_in_episode=12))
    states = [parts.first_state(train, jax.random.key(0))]
    for _ in range(3):
        states.append(train(None, states[-1], 1)[0])
    return train, states


def test_learning_waits_for_a_whole_window(points):
    """It is there from 6 of the 8 rounds on, and the last 3 rounds make two gradient steps each."""
    assert points[1][1].target_age == 6


def test_transitions_lead_to_the_observation_before_any_restart(points):
    """Compared with CartPole's own equations and limits."""
    replay = points[1][-1].replay
    replay = jax.tree.map(np.asarray, replay.transitions)
    x, x_next = replay.observation, replay.final_observation
    np.testing.assert_allclose(x_next[:, [0, 2]], x[:, [0, 2]] + 0.02 * x[:, [1, 3]], atol=1e-6)
    fallen = (np.abs(x_next[:, 0]) > 2.4) | (np.abs(x_next[:, 2]) > np.deg2rad(12))
    np.testing.assert_array_equal(replay.terminated, fallen)
    for env in (slice(0, None, 2), slice(1, None, 2)):  # two environments in turn
        done, age = replay.done[env], 0
        for step in range(len(done) - 1):
            age += 1
            assert done[step] == (replay.terminated[env][step] or age == 12)
            age *= not done[step]
            follows = np.array_equal(x[env][step + 1], x_next[env][step])
            assert follows != done[step]
    assert (replay.done & ~replay.terminated).any()


def test_targets_are_copied_on_time(points):
    """The 22nd gradient step ends the second point, and 16 are in the third."""
    _, first, second, third = points[1]
    assert (int(second.target_age), int(third.target_age)) == (0, 16)
    near = lambda a, b: jax.tree.all(jax.tree.map(lambda x, y: np.allclose(x, y, 1e-5, 1e-7), a, b))
    assert near(second.target_params, second.policy.params)
    assert_same(third.target_params, second.target_params)
    for other in (first, third):
        assert not near(other.target_params, other.policy.params)


def test_the_learning_rate_is_annealed(points):
    """From the same state, steps are longer earlier in the run.

    Their rates are proportional to 16 + ... + 9 there, and to 8 + ... + 1 here.
    """
    train, (*_, state, _) = points
    distance = []
    for updates in (1, 2):
        late, _ = train(None, again(state).replace(update=jnp.int32(updates)), 1)
        change = jax.tree.map(jnp.subtract, late.policy.params, state.policy.params)
        distance.append(sum(float((x**2).sum()) for x in jax.tree.leaves(change)) ** 0.5)
    assert distance[1] < 0.6 * distance[0]


# Of code that all of these files repeat, or of a part: every run looks at one file.
SELDOM = pytest.mark.cases(slow=lambda case: case.name != "dqn")


@SELDOM
@pytest.mark.parametrize("starts", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_buffer_is_never_copied(module, tiny, starts, vmapped_keys):
    """Two trials that continue from their states, as in the launcher, or that start.

    The program needs far less than a buffer beside its arguments and results. With one gradient
    step for each step of one environment, XLA would most likely merge writing and reading.
    """
    config = tiny.replace(buffer_size=100_000, num_eval_episodes=0)
    config = config.replace(num_envs=1, train_every=1, updates_per_step=1)
    train = module.make_train(config)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 2))
    states = jax.eval_shape(jax.vmap(lambda key: parts.first_state(train, key)), keys)
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(states.replay))
    assert size >= 2 * 100_000 * 42
    go_on = jax.jit(jax.vmap(lambda state: train(None, state, 1)), donate_argnums=0)
    lowered = jax.jit(jax.vmap(train)).lower(keys) if starts else go_on.lower(states)
    sizes = lowered.compile(FUSED_AS_FOR_USERS).memory_analysis()
    assert sizes.argument_size_in_bytes + sizes.output_size_in_bytes > size
    assert sizes.temp_size_in_bytes < 0.01 * size


def test_a_buffer_larger_than_the_memory_is_refused_with_one_that_fits(module, tiny, monkeypatch):
    monkeypatch.setattr(capacity, "device_capacity", lambda: 10_000_000)
    with pytest.raises(ValueError, match=r"buffer_size=1000000 takes .* GB .* would fit") as error:
        module.make_train(tiny.replace(buffer_size=1_000_000))
    fits = int(str(error.value).split("; ")[1].split()[0])
    module.make_train(tiny.replace(buffer_size=fits))
    with pytest.raises(ValueError, match="would fit"):
        module.make_train(tiny.replace(buffer_size=2 * fits))


@pytest.mark.cases(lambda case: case.has("prioritized"))
def test_priorities_are_written_back_and_the_largest_is_remembered(slices):
    """At first all have the priority of transitions that have not been drawn yet."""
    start, first, second, _ = (state for state, _ in slices)
    assert (first.replay.priorities[:30] == 1.0).all() and start.replay.max_priority == 1.0
    seen = np.unique(np.asarray(second.replay.priorities))
    assert len(seen) > 10 and second.replay.max_priority >= seen.max() > 1.0


class Signs(Wrapper):
    """The signs of CartPole's four numbers, 0 or 1; or as bytes, 0 or 255."""

    def __init__(self, env, dtype):
        super().__init__(env)
        self.dtype, self.one = dtype, 255 if dtype == jnp.uint8 else 1

    def observation_space(self, params):
        return tasks.spaces.Box(0, self.one, (4,), self.dtype)

    def reset_env(self, key, params):
        x, state = self.env.reset_env(key, params)
        return self.one * (x > 0).astype(self.dtype), state

    def step_env(self, key, state, action, params):
        x, *rest = self.env.step_env(key, state, action, params)
        return self.one * (x > 0).astype(self.dtype), *rest


@SELDOM
def test_bytes_are_stored_as_they_are_and_learned_from_as_pixels(module, tiny):
    env, params = envs.make("CartPole-v1")
    config = tiny.replace(num_eval_episodes=0, total_timesteps=64, learning_starts=8, num_evals=1)
    state, as_bytes = module.make_train(config, Signs(env, jnp.uint8), params)(jax.random.key(0))
    assert state.replay.transitions.observation.dtype == jnp.uint8
    assert state.replay.transitions.final_observation.dtype == jnp.uint8
    assert set(np.unique(state.replay.transitions.observation)) == {0, 255}
    _, as_floats = module.make_train(config, Signs(env, jnp.float32), params)(jax.random.key(0))
    np.testing.assert_allclose(as_bytes["loss"], as_floats["loss"], rtol=1e-5)
    assert as_bytes["loss"][-1] > 0.0
    with pytest.raises(ValueError, match="buffer_dtype='float16': .* has bytes"):
        module.make_train(config.replace(buffer_dtype="float16"), Signs(env, jnp.uint8), params)


def test_a_policy_with_a_key_explores(module, tiny, trained, vmapped_keys):
    state, _ = trained
    policy = module.make_policy(tiny.replace(eps_end=1.0))
    observation = jnp.array([0.01, 0.02, 0.03, 0.04])
    keys = jax.random.split(jax.random.key(1), 200)
    never = module.make_policy(tiny.replace(eps_end=0.0))
    act = lambda key: [of(state, observation, None, key)[0] for of in (policy, never)]
    actions, same = jax.jit(jax.vmap(act))(keys)
    assert 60 < int(actions.sum()) < 140
    assert (same == policy(state, observation)[0]).all()


def explored(module, tiny, env, env_params, **settings):
    """The transitions of three updates, (48, 256), in episodes of 7 steps, by one program.

    Returns also for how many steps actions are still held.
    """
    env_params = env_params.replace(max_steps_in_episode=7)
    names, values = settings.keys(), jnp.array(list(settings.values())).T
    config = tiny.replace(num_envs=256, buffer_size=48 * 256, exploration="constant")

    def run(values):
        given = config.replace(**dict(zip(names, values)))
        learner = module.learner(given, env, env_params)
        state = learner.init(jax.random.key(0))
        state, _ = jax.lax.scan(lambda state, _: (learner.update(state)[0], None), state, None, 3)
        return state.replay.transitions, state.held.left

    played, left = jax.jit(jax.vmap(run))(values)
    apart = lambda x: np.asarray(x).reshape(len(x), 48, 256, *x.shape[2:])
    return jax.tree.map(apart, played), np.asarray(left)


@SELDOM
def test_random_actions_last_until_the_episode_ends(module, tiny):
    """With an exponent near 1 they would last for thousands of steps. Greedy actions never last."""
    env, env_params = envs.make("CartPole-v1")
    settings = dict(duration_exponent=[1.00001, np.inf, 1.00001, np.inf, 3.0])
    settings |= dict(eps_end=[1.0, 1.0, 0.0, 0.0, 0.3])
    played, left = explored(module, tiny, env, env_params, **settings)
    begins = np.concatenate([np.ones_like(played.done[:, :1]), played.done[:, :-1]], 1)
    changes = np.diff(played.action, axis=1, prepend=played.action[:, :1]) != 0
    lasting, ordinary, greedy, same, some = range(5)
    assert not changes[lasting][~begins[lasting]].any() and changes[lasting].any()
    assert changes[ordinary][~begins[ordinary]].any()
    np.testing.assert_array_equal(played.action[greedy], played.action[same])
    assert (left[lasting] > 100).all() and (left[[ordinary, greedy, same]] == 0).all()
    rng, expected = np.random.default_rng(0), np.zeros(100_000)
    for _ in range(6):  # since the last episode's end
        random, steps = rng.random(100_000) < 0.3, np.floor(rng.random(100_000) ** -0.5)
        begun = np.where(random, steps - 1, 0)
        expected = np.where(expected > 0, expected - 1, begun)
    np.testing.assert_allclose((left[some] > 0).mean(), (expected > 0).mean(), atol=0.07)


@SELDOM
def test_held_actions_end_where_they_are_not_allowed(module, tiny):
    """At every other step, only one of two actions is allowed."""
    env, env_params = tasks.Probe(masked=True), tasks.ProbeParams(task=tasks.SWING)
    settings = dict(duration_exponent=[1.5], eps_end=[1.0])
    played, _ = explored(module, tiny, env, env_params, **settings)
    assert np.take_along_axis(played.action_mask, played.action[..., None], -1).all()
    assert len(np.unique(played.action)) == 2


# --- one gradient step ------------------------------------------------------------------------

GAMMA, REWARD, ACTION = 0.9, 2.0, 1
COUNT = 1e6  # so many observations in the statistics that a rollout hardly changes them
# Windows of three steps and one gradient step an update; the buffer holds almost only the
# transition.
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
    """The state before an update and after it, and the gradient step's metrics.

    `networks` makes parameters of both networks from initial ones.
    """
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
def one_step(request, case):
    """Two networks that disagree: action 2 is the best for both.

    Of the others, the online network prefers action 0, and the target network action 1.
    """
    config = case.tiny.replace(double=request.param)

    def networks(params):
        noise = np.random.default_rng(0)
        for second in (0, 1):
            draw = lambda x: jnp.asarray(0.3 * noise.normal(size=x.shape), jnp.float32)
            drawn = jax.tree.map(draw, params)
            yield case.prefer(config, case.prefer(config, drawn, 2, 20.0), second, 10.0)

    return config, *gradient_step(case.module, config, networks, masked=True)


X, X_NEXT = np.array([[-0.75]], np.float32), np.array([[0.75]], np.float32)  # normalised


def test_the_loss_of_a_transition_is_the_paper_s(case, one_step):
    """A window of three steps bootstraps, and both networks' favourite action is forbidden."""
    config, state, _, metrics = one_step
    online, target = state.policy.params, state.target_params
    values = [case.action_values(config, 3, p, X_NEXT)[0] for p in (online, target)]
    assert list(np.argsort(values[0])) == [1, 0, 2] and list(np.argsort(values[1])) == [0, 1, 2]
    best = 0 if config.double else 1
    expected = case.expected_loss(config, online, target, best, state)
    np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-4)


@pytest.mark.cases(lambda case: case.clipped_targets)
def test_clipped_targets_is_the_share_of_a_target_beyond_the_support(case, one_step):
    config, state, _, metrics = one_step
    expected = case.clipped_targets(config, state.target_params, 0 if config.double else 1)
    assert 0.05 < expected < 0.95
    np.testing.assert_allclose(metrics["clipped_targets"], expected, rtol=1e-4)


def test_mean_value_is_that_of_the_best_allowed_action(case, one_step):
    config, state, _, metrics = one_step
    values = case.mean_values(config, state, X)
    assert list(np.argsort(values)) == [1, 0, 2]
    np.testing.assert_allclose(metrics["mean_value"], values[1], rtol=1e-4)


def test_masks_and_statistics_belong_to_their_observations(one_step):
    """Episodes have 5 steps, cut where x = -1 and action 0 is allowed, and begun where it is not.

    They begin at x = 1: 10 of the 16 observations are 1, and only 6 of the final ones.
    """
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


def test_the_policy_takes_the_best_action_of_normalised_observations(case, slices):
    policy = slices[-1][0].policy
    stats = policy.obs_stats.replace(mean=jnp.full(4, 0.5), var=jnp.full(4, 4.0))
    state = slices[-1][0].replace(policy=policy.replace(obs_stats=stats))
    make = case.module.make_policy(case.tiny.replace(normalize_obs=True))
    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    actions = jax.jit(jax.vmap(lambda x: make(state, x)[0]))(x)
    values = lambda x: case.action_values(case.tiny, 2, policy.params, x)
    np.testing.assert_array_equal(actions, values((x - 0.5) / 2.0).argmax(-1))
    assert (actions != values(x).argmax(-1)).any() and len(np.unique(actions)) == 2


SHARED = ("greedy", "epsilon_at", "epsilon_greedy", "durations", "hold")


@pytest.mark.cases(lambda case: case.module is not dqn)
@pytest.mark.parametrize("name", SHARED)
def test_repeated_code_equals_dqn_s(module, name):
    """DQN's own tests hold for the copies."""
    assert inspect.getsource(getattr(module, name)) == inspect.getsource(getattr(dqn, name))


# --- quantiles ---------------------------------------------------------------------------------


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


# --- probe tasks ------------------------------------------------------------------------------

PROBE = dict(
    total_timesteps=16 * 1000,
    num_envs=16,
    buffer_size=4_000,
    batch_size=64,
    learning_starts=1_000,
    learning_rate=1e-2,
    anneal_lr=False,
    activation="tanh",
    adam_eps=1e-5,
    gamma=0.9,
    n_step=3,
    target_every=1,
    tau=0.05,
    eps_end=0.2,
    hidden_sizes=(16,),
    num_evals=1,
    num_eval_episodes=0,
    eval_at_start=False,
)


def played(case, kind):
    """For test_probes.py."""
    module = case.module
    support = dict(v_min=-2.0, v_max=12.0) if hasattr(module.Config, "v_min") else {}
    scale = dict(reward_scale=1.0) if hasattr(module.Config, "reward_scale") else {}
    config = module.Config(**PROBE, **support, **scale)

    def values_of(config, space, state, x):
        return case.action_values(config, space.size, state.policy.params, x).max(-1)

    return kind, *play_probes(module, config, values_of)
