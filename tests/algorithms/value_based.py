"""What all files that learn values from a replay buffer have in common, beside the contract. Each
file's tests import these with those of its formulas, and define

    action_values(config, space, params, x)     what the network expects of all actions
    prefer(config, params, action, by)          parameters by which an action is worth more by `by`,
                                                all others what they are, for any observation
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms.parts import memory
from envs.gymnax import Wrapper
from tests import probe as tasks
from tests.algorithms.contract import *  # noqa: F403
from tests.algorithms.contract import again, assert_same
from tests.algorithms.probes import play_probes
from tests.conftest import AS_FOR_USERS

# The settings under which every float of the file matters, and a buffer that wraps around.
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
HEEDS_MASKS = True
# Where half the default is not a change, or none that can be felt in 96 steps.
OTHER = {"adam_eps": 1e-2, "eps_end": 0.9, "max_grad_norm": 1e-3, "huber_delta": 0.1}
OTHER |= {"priority_eps": 0.5, "duration_exponent": 1.5}
TOLERANCE = dict(rtol=1e-4, atol=1e-5)
REFUSED = [
    (dict(batch_size=8.0), "batch_size=8.0"),
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
    """The first 14 gradient steps; rounding grows, and may at last choose another sample."""
    names = {"loss", "td_error", "mean_value", "grad_norm"} & metrics.keys()
    return {name: metrics[name][:3] for name in names}


# --- the contract -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def module(file):
    return file.MODULE


@pytest.fixture(scope="module")
def tiny(file):
    return file.TINY


def test_metrics_have_the_points_as_leading_axis(file, trained):
    state, metrics = trained
    assert list(metrics["timestep"]) == [0, 32, 64, 96]
    assert metrics["eval_return"].shape == (4, 2) and metrics["eval_length"].shape == (4, 2)
    for name in file.METRICS:  # learning starts after the second point
        assert np.isnan(metrics[name][:2]).all() and np.isfinite(metrics[name][2:]).all(), name
    others = {"timestep", "num_episodes", "episode_return", "episode_length", "epsilon"}
    assert set(metrics) == file.METRICS | others | file.EVALUATION
    assert int(state.update) == 3  # of 8 rounds with two gradient steps each
    left = np.maximum(1.0 - np.arange(24) / 24 / 0.2, 0.0).reshape(3, 8).mean(1)
    np.testing.assert_allclose(metrics["epsilon"][1:], 0.05 + 0.95 * left, rtol=1e-5)


@pytest.fixture(scope="module")
def points(module, tiny):
    """A run of CartPole in episodes of at most 12 steps whose buffer keeps everything, and whose
    target network is copied after 14 gradient steps: what goes a point on, and every state."""
    config = tiny.replace(buffer_size=96, target_every=14, tau=1.0, num_eval_episodes=0)
    env, env_params = envs.make(config.env)
    train = module.make_train(config, env, env_params.replace(max_steps_in_episode=12))
    states = [train(jax.random.key(0), None, 0)[0]]
    for _ in range(3):
        states.append(train(None, states[-1], 1)[0])
    return train, states


def test_learning_waits(points):
    """The first point ends before learning_starts."""
    _, (start, state, *_) = points
    for name in ("policy", "target_params", "target_age", "opt_state"):
        assert_same(getattr(state, name), getattr(start, name))


def test_learning_waits_for_a_whole_window(module, tiny):
    """Of 12 steps of both environments, which 6 of the 8 rounds make: the last 3 learn, twice."""
    config = tiny.replace(learning_starts=0, n_step=12)
    learner = module.learner(config, *envs.make(config.env))
    _, metrics = jax.jit(learner.update)(jax.jit(learner.init)(jax.random.key(0)))
    assert metrics["loss"].weight == 6


def test_transitions_lead_to_what_came_before_any_restart(points):
    """Held against CartPole's own equations and limits."""
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
    """14 gradient steps end the second point, and 16 are in the third."""
    *_, second, third = points[1]
    assert (int(second.target_age), int(third.target_age)) == (0, 2)
    near = lambda a, b: jax.tree.all(jax.tree.map(lambda x, y: np.allclose(x, y, 1e-5, 1e-7), a, b))
    assert near(second.target_params, second.policy.params)
    for other in (second, third):
        assert not near(third.target_params, other.policy.params)


def test_the_learning_rate_is_annealed(points):
    """From the same state, steps are longer where it is earlier in the run: rates add up to
    16 + ... + 9 there, to 8 + ... + 1 here."""
    train, (*_, state, _) = points
    distance = []
    for updates in (1, 2):
        late, _ = train(None, again(state).replace(update=jnp.int32(updates)), 1)
        change = jax.tree.map(jnp.subtract, late.policy.params, state.policy.params)
        distance.append(sum(float((x**2).sum()) for x in jax.tree.leaves(change)) ** 0.5)
    assert distance[1] < 0.6 * distance[0]


def test_the_buffer_is_never_copied(module, tiny, vmapped_keys):
    """Eight agents that go on from their states, as `launch` runs them, and eight that start: what
    the program needs beside its arguments and results is far less than a buffer. One gradient step
    for each step of one environment is what XLA would like best to make one operation of."""
    config = tiny.replace(buffer_size=100_000, num_eval_episodes=0)
    config = config.replace(num_envs=1, train_every=1, updates_per_step=1)
    train = module.make_train(config)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 8))
    states = jax.eval_shape(jax.vmap(lambda key: train(key, None, 0)[0]), keys)
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(states.replay))
    assert size >= 8 * 100_000 * 42
    go_on = jax.jit(jax.vmap(lambda state: train(None, state, 1)), donate_argnums=0)
    for lowered in (go_on.lower(states), jax.jit(jax.vmap(train)).lower(keys)):
        compiled = lowered.compile(AS_FOR_USERS)
        assert compiled.memory_analysis().temp_size_in_bytes < 0.01 * size
        for word in ("callback", "infeed", "outfeed", "lapack"):
            assert word not in lowered.as_text().lower(), word


def test_a_buffer_larger_than_the_memory_is_refused_with_one_that_fits(module, tiny, monkeypatch):
    monkeypatch.setattr(memory, "device_memory", lambda: 10_000_000)
    with pytest.raises(ValueError, match=r"buffer_size=1000000 takes .* GB .* would fit") as error:
        module.make_train(tiny.replace(buffer_size=1_000_000))
    fits = int(str(error.value).split("; ")[1].split()[0])
    module.make_train(tiny.replace(buffer_size=fits))
    with pytest.raises(ValueError, match="would fit"):
        module.make_train(tiny.replace(buffer_size=2 * fits))


def test_images_can_be_stored_as_bits(module, tiny):
    config = tiny.replace(env="Breakout-MinAtar", buffer_dtype="bool", num_eval_episodes=0)
    state, _ = jax.eval_shape(module.make_train(config), jax.eval_shape(lambda: jax.random.key(0)))
    replay = state.replay.transitions
    assert replay.observation.shape == replay.final_observation.shape == (40, 10, 10, 4)
    assert replay.observation.dtype == replay.final_observation.dtype == bool
    assert len(jax.tree.leaves(state.policy.params)) >= 6  # a convolution, too


class Signs(Wrapper):
    """Of CartPole's four numbers, 0 or 1; or as bytes, 0 or 255."""

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
    actions = jax.vmap(lambda key: policy(state, observation, None, key)[0])(keys)
    assert 60 < int(actions.sum()) < 140
    never = module.make_policy(tiny.replace(eps_end=0.0))
    greedy = policy(state, observation)[0]
    assert (jax.vmap(lambda key: never(state, observation, None, key)[0])(keys) == greedy).all()


def explored(module, tiny, env, env_params, **settings):
    """The transitions of three updates, (48, 256), in episodes of 7 steps, and for how long actions
    are still held then; by one program for all that differ."""
    env_params = env_params.replace(max_steps_in_episode=7)
    names, values = settings.keys(), jnp.array(list(settings.values())).T
    config = tiny.replace(num_envs=256, buffer_size=48 * 256, exploration="constant")

    def run(values):
        given = config.replace(**dict(zip(names, values)))
        learner = module.learner(given, env, env_params)
        state = learner.init(jax.random.key(0))
        for _ in range(3):
            state, _ = learner.update(state)
        return state.replay.transitions, state.held.left

    played, left = jax.jit(jax.vmap(run))(values)
    apart = lambda x: np.asarray(x).reshape(len(x), 48, 256, *x.shape[2:])
    return jax.tree.map(apart, played), np.asarray(left)


def test_random_actions_last_until_the_episode_ends(module, tiny):
    """With an exponent of nearly 1 they would for thousands of steps, and what is not random
    never does."""
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


def test_what_is_held_is_let_go_where_it_is_not_allowed(module, tiny):
    """Of two actions one is allowed at every other step."""
    env, env_params = tasks.Probe(masked=True), tasks.ProbeParams(task=tasks.SWING)
    settings = dict(duration_exponent=[1.5], eps_end=[1.0])
    played, _ = explored(module, tiny, env, env_params, **settings)
    assert np.take_along_axis(played.action_mask, played.action[..., None], -1).all()
    assert len(np.unique(played.action)) == 2


# --- probe tasks ------------------------------------------------------------------------------

PROBE = dict(
    total_timesteps=16 * 1500,
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


def played(file):
    """In test_probes.py, which is slow, but for DQN."""
    module = file.MODULE
    support = dict(v_min=-2.0, v_max=12.0) if hasattr(module.Config, "v_min") else {}
    scale = dict(reward_scale=1.0) if hasattr(module.Config, "reward_scale") else {}
    config = module.Config(**PROBE, **support, **scale)

    def values_of(config, space, state, x):
        return file.action_values(config, space, state.policy.params, x).max(-1)

    # So many rounds take longer than compiling them well.
    return "discrete", *play_probes(module, config, values_of, options=AS_FOR_USERS)
