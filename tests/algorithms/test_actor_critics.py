"""Shared tests of files that learn an actor and critics from a replay buffer.

They add to the contract. A file's case has

    probe                                the probe tasks' config
    learns                               the fields of its state that change when it learns
    mean_action(config, state, x, size)  the actor's action without noise, in [-1, 1]
    lowest_value(config, state, x, a)    the minimum over all critics
    actor_state                          where the actor learns rarely, its optimiser's field
    first_turn                           whether it then learns in the first step of a period

The last three are for continuous actions.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import envs
from envs.gymnax import Wrapper, spaces
from tests.algorithms.cases import EVALUATION, again, assert_same, programs
from tests.algorithms.test_probes import play_probes
from tests.conftest import AS_FOR_USERS

pytestmark = pytest.mark.cases(lambda case: case.of_family("actor-critics") and case.replay)
continuous = pytest.mark.cases(lambda case: case.continuous)

# Settings under which every float of the file matters, with a buffer that wraps around.
SMALL = dict(
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
    hidden_sizes=(8,),
    critic_hidden_sizes=(8, 8),
    num_evals=3,
    num_eval_episodes=2,
)
OTHER = {"adam_eps": 1e-2, "weight_decay": 0.5}
TOLERANCE = dict(rtol=1e-3, atol=1e-4)
REFUSED = [
    (dict(batch_size=8.5), "batch_size=8.5"),
    (dict(critic_hidden_sizes=(8, 0)), "critic_hidden_sizes=0: give a whole number, 1 or more"),
    (dict(network="resnet"), "network='resnet': give mlp or simba"),
    (dict(learning_starts=96), "learning_starts=96 leaves nothing .* 9 would do"),
    (dict(n_step=49, buffer_size=98), "n_step=49 .*num_envs=2 leave nothing .* 4 would do"),
    (dict(buffer_size=2, n_step=3), "buffer_size=2 does not hold n_step=3 .* 6 would do"),
]
TAKES_BOX = (dict(env="CartPole-v1", env_settings=()), "CartPole-v1 has actions .* takes Box")
OF_CASES = dict(other=OTHER, tolerance=TOLERANCE)


def test_metrics_have_the_points_as_leading_axis(case, trained):
    """Learning starts within the first point."""
    state, metrics = trained
    assert list(metrics["timestep"]) == [0, 32, 64, 96]
    assert metrics["eval_return"].shape == (4, 2) and metrics["eval_length"].shape == (4, 2)
    for name in case.metrics:
        assert np.isnan(metrics[name][0]) and np.isfinite(metrics[name][1:]).all(), name
    others = {"timestep", "num_episodes", "episode_return", "episode_length"}
    assert set(metrics) == case.metrics | others | EVALUATION
    assert int(state.update) == 3


# --- when it learns ---------------------------------------------------------------------------


def num_steps(state):
    """The gradient steps of the critics."""
    opt_state = state.critic_opt_state if hasattr(state, "critic_opt_state") else state.opt_state
    return optax.tree.get(opt_state, "count")


def test_learning_waits_for_learning_starts(slices):
    """It learns in the last 11 of the first 16 rounds, with two gradient steps each."""
    (start, _), (state, _), *_ = slices
    assert (num_steps(start), num_steps(state)) == (0, 22)


def test_learning_waits_for_a_whole_window_and_is_annealed_to_nothing(case, slices):
    """A window is 12 steps of both environments, from 12 of the 16 rounds; the last 5 rounds
    learn."""
    config = case.tiny.replace(learning_starts=0, n_step=12, num_eval_episodes=0)
    train, start = case.module.make_train(config), slices[0][0]
    state, _ = train(None, again(start), 1)
    assert num_steps(state) == 10
    late, _ = train(None, state, 1)
    for name in case.learns:
        with pytest.raises(AssertionError):
            assert_same(getattr(late, name), getattr(start, name))
    if not case.has("anneal_lr"):
        return
    end, _ = train(None, late, 1)
    beyond, metrics = train(None, again(end), 1)
    assert_same(case.learned(beyond), case.learned(end))
    assert np.isfinite(metrics["critic_loss"]).all()


def learner_of(case, **changes):
    """A learner of TINY, with changes that keep the shapes of its state, and its compiled
    update."""
    config = case.tiny.replace(learning_starts=0, **changes)
    learner = case.module.learner(config, *envs.make(config.env, max_steps=20))
    return learner, programs(learner)[1]


def assert_apart(critics, size=1):
    """Asserts that two critics' parameters differ, with heads that started at gain 1."""
    first, second = (jax.tree.map(lambda x, i=i: x[i], critics["value_head"]) for i in (0, 1))
    for head in (first["kernel"], second["kernel"]):
        np.testing.assert_allclose(head.T @ head, np.eye(size), atol=1e-5)
    assert not np.allclose(first["kernel"], second["kernel"])


# --- acting -----------------------------------------------------------------------------------


LOW, HIGH = np.array([-1.0, 0.0]), np.array([3.0, 2.0])  # the middle of the box is not zero


class TwoMotors(Wrapper):
    """Pendulum with two motors of different strength."""

    def action_space(self, params):
        return spaces.Box(jnp.array(LOW), jnp.array(HIGH), (2,))

    def step_env(self, key, state, action, params):
        return self.env.step_env(key, state, torque(action)[None], params)


def torque(action):
    """The torque of actions (..., 2) in their box, within Pendulum's limits."""
    return 0.4 * action[..., 0] - 0.3 * action[..., 1]


def two_motors(wrapper=TwoMotors):
    env, params = envs.make("Pendulum-v1", max_steps=20)
    return wrapper(env), params


@pytest.fixture(scope="module")
def kept(case):
    """The environment, the config, the last state, and a buffer that keeps all transitions.

    These are three rounds of 16 steps of 32 environments. The second one passes `learning_starts`,
    and the policy acts in the third.
    """
    config = case.tiny.replace(learning_starts=1000, total_timesteps=3 * 512, num_envs=32)
    config = config.replace(train_every=16)
    config = config.replace(buffer_size=1536, learning_rate=0.0, num_eval_episodes=0)
    changes = {"normalize_obs": True, "exploration_noise": 0.3, "noise_repeat": 1}
    changes |= {"min_log_std": -3.0}  # the middle of it and 0 is that of other files
    config = config.replace(**{name: x for name, x in changes.items() if case.has(name)})
    world = two_motors()
    state, _ = case.module.make_train(config, *world)(jax.random.key(0))
    return world, config, state, jax.tree.map(np.asarray, state.replay.transitions)


@continuous
def test_transitions_have_the_action_in_its_unit_and_the_final_observation(kept):
    """Compared with Pendulum's own equation; the middle of the box may be anywhere."""
    *_, seen = kept
    x, x_next = seen.observation, seen.final_observation
    taken = torque(LOW + 0.5 * (seen.action + 1.0) * (HIGH - LOW))
    speed = x[:, 2] + 0.05 * (15.0 * x[:, 1] + 3.0 * taken)
    np.testing.assert_allclose(x_next[:, 2], np.clip(speed, -8.0, 8.0), atol=1e-4)
    assert seen.done[19 * 32 : 20 * 32].all() and not seen.terminated.any()


@pytest.mark.cases(lambda case: case.continuous and case.has("normalize_obs"))
def test_observation_statistics_are_of_the_observations_acted_on(kept):
    *_, state, seen = kept
    stats = state.policy.obs_stats
    np.testing.assert_allclose(stats.mean, seen.observation.mean(0), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(stats.var, seen.observation.var(0), rtol=1e-3, atol=1e-5)


@continuous
def test_actions_are_uniform_and_then_the_policys(case, kept):
    """Each dimension is drawn by itself.

    Noise is correlated from step to step, and so are actions. A policy without noise of its own has
    an initial standard deviation of exp(-1.5) before tanh.
    """
    actions, noisy = kept[-1].action, hasattr(case.tiny, "exploration_noise")
    for drawn in (actions[:1024], actions[1024:]):
        assert np.corrcoef(drawn.T)[0, 1] == pytest.approx(0.0, abs=0.15 if noisy else 0.1)
    for own in actions.T:
        shares = np.histogram(own[:1024], 4, (-1.0, 1.0))[0] / 1024
        np.testing.assert_allclose(shares, 0.25, atol=0.07 if noisy else 0.05)
        own = own[1024:]
        if not noisy:
            assert np.arctanh(own).std() == pytest.approx(np.exp(-1.5), rel=0.1)
            continue
        assert own.std() == pytest.approx(0.3, rel=0.1)
        by_step = own.reshape(-1, 32)
        correlation = np.corrcoef(by_step[1:].ravel(), by_step[:-1].ravel())[0, 1]
        assert correlation == pytest.approx(0.5, abs=0.1)


@continuous
def test_a_policy_with_a_key_explores_within_the_box(case, kept, vmapped_keys):
    world, config, state, _ = kept
    noisy = hasattr(case.tiny, "exploration_noise")
    config = config.replace(**dict(exploration_noise=0.7) if noisy else {})
    policy = case.module.make_policy(config, *world)
    x = jnp.array([0.5, 0.5, 1.0])
    keys = jax.random.split(jax.random.key(1), 400)
    act = jax.jit(jax.vmap(lambda key: (policy(state, x)[0], policy(state, x, None, key)[0])))
    (greedy, *_), actions = act(keys)
    assert actions.shape == (400, 2) and ((actions >= LOW) & (actions <= HIGH)).all()
    seen = x[None]
    if case.has("normalize_obs"):
        seen = state.policy.obs_stats.normalize(seen, config.clip_obs)
    mean = LOW + 0.5 * (case.mean_action(config, state, seen, 2)[0] + 1.0) * (HIGH - LOW)
    np.testing.assert_allclose(greedy, mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.median(actions, 0), mean, atol=0.15)
    assert (np.std(actions, 0) > np.array([0.6, 0.3]) * (1.5 if noisy else 0.5)).all()
    assert np.corrcoef(actions.T)[0, 1] == pytest.approx(0.0, abs=0.15)


# --- actors that learn once in `policy_every` steps of the critics ---------------------------

delayed = pytest.mark.cases(lambda case: case.has("policy_every"))


@delayed
@pytest.mark.parametrize(
    "every, updates, rounds", [(3, 2, 15), pytest.param(2, 4, 16, marks=pytest.mark.slow)]
)
def test_the_actor_learns_at_every_so_many_of_the_critics_steps(
    case, slices, every, updates, rounds
):
    """The period runs on through the ends of updates, which are whole periods.

    n_step=2 makes the first round wait, and with it the actor's steps in that round.
    """
    learner, update = learner_of(case, policy_every=every, updates_per_step=updates)
    assert learner.steps == rounds * case.tiny.num_envs
    fresh = jax.eval_shape(learner.init, jax.random.key(0))  # sac's tiny has one optimiser
    zeros = lambda tree: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree)
    start = {name: zeros(x) for name, x in vars(fresh).items() if name.endswith("opt_state")}
    state, metrics = update(again(slices[0][0]).replace(**start))
    total = rounds * updates
    turns = np.arange(total) % every == (0 if case.first_turn else every - 1)
    assert metrics["critic_loss"].weight == total - updates
    assert metrics["actor_loss"].weight == turns[updates:].sum()
    count = lambda opt_state: optax.tree.get(opt_state, "count")
    assert num_steps(state) == total - updates
    assert count(getattr(state, case.actor_state)) == turns[updates:].sum()
    state, metrics = update(state)
    assert metrics["actor_loss"].weight == turns.sum()


@delayed
def test_the_actors_steps_stay_a_branch_under_vmap(case, vmapped_keys):
    """Otherwise all steps would be computed, and most of them discarded."""
    config = case.tiny.replace(num_eval_episodes=0, policy_every=2)
    learner = case.module.learner(config, *envs.make(config.env, max_steps=20))
    states = jax.eval_shape(jax.vmap(learner.init), jax.random.split(jax.random.key(0), 3))
    assert "cond[" in str(jax.make_jaxpr(jax.vmap(learner.update))(states))


# --- probe tasks ------------------------------------------------------------------------------

PROBE = dict(
    total_timesteps=16 * 2000,
    num_envs=16,
    buffer_size=4_000,
    batch_size=64,
    learning_starts=1_000,
    learning_rate=1e-2,
    anneal_lr=True,
    gamma=0.9,
    hidden_sizes=(16,),
    critic_hidden_sizes=(32,),
    activation="tanh",
    num_evals=1,
    num_eval_episodes=0,
    eval_at_start=False,
)


def played(case, kind):
    """Values and actions for test_probes.py."""

    def values_of(config, space, state, x):
        return case.lowest_value(config, state, x, case.mean_action(config, state, x))

    return kind, *play_probes(case.module, case.probe, values_of, True, options=AS_FOR_USERS)
