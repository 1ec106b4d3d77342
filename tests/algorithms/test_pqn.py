"""PQN: formulas against plain NumPy and rlax, probe tasks, and the contract of the file."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from algorithms import parts, pqn
from tests import probe as tasks
from tests.algorithms.cases import Case, again
from tests.probe import ProbeParams

TINY = pqn.Config(
    total_timesteps=3 * 16,
    num_envs=2,
    num_steps=8,
    num_minibatches=2,
    update_epochs=2,
    hidden_sizes=(8,),
    num_evals=3,
    num_eval_episodes=2,
)


# --- formulas ---------------------------------------------------------------------------------


def random_rollout(seed, shape):
    rng = np.random.default_rng(seed)
    rewards, next_values = rng.normal(size=(2, *shape)).astype(np.float32)
    terminated, truncated = rng.random((2, *shape)) < 0.15
    return rewards, next_values, terminated, terminated | truncated


def n_step_return(rewards, next_values, terminated, start, n, gamma):
    """One environment's n-step return: n rewards, then the value of the final observation."""
    total = sum(gamma**k * rewards[start + k] for k in range(n))
    last = start + n - 1
    return total + (0.0 if terminated[last] else gamma**n * next_values[last])


def plain_targets(rewards, next_values, terminated, done, gamma, lam):
    """The definition: weight (1 - lambda) lambda^(n - 1) for the n-step return.

    The longest return within the episode and the rollout has the remaining weight.
    """
    steps, envs = rewards.shape
    expected = np.zeros((steps, envs))
    for env in range(envs):
        column = rewards[:, env], next_values[:, env], terminated[:, env]
        for start in range(steps):
            ends = np.flatnonzero(done[start:, env])
            longest = ends[0] + 1 if len(ends) else steps - start
            for n in range(1, longest + 1):
                weight = lam ** (n - 1) * (1.0 if n == longest else 1.0 - lam)
                expected[start, env] += weight * n_step_return(*column, start, n, gamma)
    return expected


@pytest.mark.parametrize("seed, shape", [(0, (17, 5)), (1, (17, 5)), (2, (32, 3)), (3, (1, 4))])
def test_targets_are_the_weighted_n_step_returns(seed, shape):
    rollout = random_rollout(seed, shape)
    result = pqn.q_lambda_targets(*rollout, 0.9, 0.7)
    np.testing.assert_allclose(result, plain_targets(*rollout, 0.9, 0.7), rtol=1e-4, atol=1e-5)


def test_targets_agree_with_rlax_without_truncation():
    import rlax

    rewards, next_values, terminated, _ = random_rollout(7, (20, 4))
    result = pqn.q_lambda_targets(rewards, next_values, terminated, terminated, 0.9, 0.8)
    expected = jax.vmap(rlax.lambda_returns, (1, 1, 1, None), 1)(
        jnp.array(rewards), 0.9 * (1.0 - terminated), jnp.array(next_values), 0.8
    )
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def test_targets_without_a_trace_look_one_step_ahead():
    rewards, next_values, terminated, done = random_rollout(8, (9, 3))
    result = pqn.q_lambda_targets(rewards, next_values, terminated, done, 0.9, 0.0)
    np.testing.assert_allclose(result, rewards + 0.9 * ~terminated * next_values, rtol=1e-5)


def test_epsilon_over_time():
    config = pqn.Config(eps_start=0.9, eps_end=0.1, exploration_fraction=0.5)
    at = lambda kind, x: float(pqn.epsilon_at(config.replace(exploration=kind), x))
    assert at("constant", 0.0) == at("constant", 1.0) == pytest.approx(0.1)
    np.testing.assert_allclose([at("linear", x) for x in (0, 0.25, 0.5, 0.9)], [0.9, 0.5, 0.1, 0.1])
    left = [at("exponential", x) - 0.1 for x in (0, 0.1, 0.2, 0.5)]
    np.testing.assert_allclose(left, 0.8 * np.exp([0.0, -1.0, -2.0, -5.0]), rtol=1e-5)


@pytest.mark.parametrize("forbidden", [None, 1])
def test_actions_are_random_as_often_as_epsilon_says_and_evenly(forbidden):
    """The best of four actions is 2, or 1 if it were allowed."""
    noise = parts.epsilon_noise(jax.random.key(0), (40_000,), 4)
    values = jnp.tile(jnp.array([0.0, 0.0 if forbidden is None else 9.0, 1.0, 0.5]), (40_000, 1))
    allowed = np.arange(4) != forbidden
    mask = None if forbidden is None else jnp.broadcast_to(jnp.array(allowed), values.shape)
    for epsilon in (0.2, 1.0, 0.0):
        expected = epsilon * allowed / allowed.sum() + (1.0 - epsilon) * np.eye(4)[2]
        actions = pqn.epsilon_greedy(values, epsilon, noise, mask)
        shares = np.bincount(actions, minlength=4) / 40_000
        np.testing.assert_allclose(shares, expected, atol=0.01)
        assert (shares[expected == 0] == 0).all()


def test_random_actions_are_even_under_masks_of_their_own():
    """Each pair of mask and action is counted, for each mask by itself."""
    masks = np.array([m for m in np.ndindex(2, 2, 2) if any(m)], bool)
    mask = jnp.tile(jnp.array(masks), (6_000, 1))
    noise = parts.epsilon_noise(jax.random.key(0), (len(mask),), 3)
    actions = pqn.epsilon_greedy(jnp.zeros(mask.shape), 1.0, noise, mask)
    shares = np.asarray(jax.nn.one_hot(actions, 3)).reshape(-1, len(masks), 3).mean(0)
    np.testing.assert_allclose(shares, masks / masks.sum(1, keepdims=True), atol=0.03)
    assert (shares[~masks] == 0).all()


def test_values_are_finite_where_no_action_is_allowed():
    """Episodes end there, and a number that is multiplied by zero must be finite."""
    values = jnp.array([[1.0, 2.0]])
    assert pqn.of_action(values, pqn.greedy(values, jnp.zeros((1, 2), bool)))[0] in (1.0, 2.0)


def test_learning_rates_are_linear_over_a_run_and_reach_their_floor():
    config = pqn.Config(update_epochs=2, num_minibatches=4, learning_rate=0.5)
    rates = lambda update: pqn.learning_rates(config, 5, jnp.int32(update))
    run = np.concatenate([rates(update) for update in range(5)])
    np.testing.assert_allclose(run, 0.5 * (1.0 - np.arange(40) / 40), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(rates(7), np.zeros(8))
    constant = pqn.learning_rates(config.replace(anneal_lr=False), 5, jnp.int32(3))
    np.testing.assert_array_equal(constant, np.full(8, 0.5))
    late = pqn.learning_rates(config, 2**31 - 1, jnp.int32(3 * 2**29))  # nothing wraps
    np.testing.assert_allclose(late, 0.125, rtol=1e-5)


# --- an update --------------------------------------------------------------------------------

LINEAR = TINY.replace(
    num_steps=7,
    total_timesteps=4 * 14,
    num_minibatches=1,
    update_epochs=1,
    learning_rate=0.5,
    gamma=0.9,
    q_lambda=0.6,
    reward_scale=0.5,
    eps_start=0.0,
    eps_end=0.0,
    hidden_sizes=(),
    normalize_obs=True,
    num_evals=4,
    num_eval_episodes=0,
    eval_at_start=False,
)


@pytest.fixture(scope="module", params=[False, True], ids=["free", "masked"])
def linear(request):
    """A linear network in SWING, cut after three steps: train, a state, action values and masks.

    If they were allowed, the forbidden actions would be the best ones.
    """
    masked = request.param
    env, params = tasks.Probe(masked=masked), ProbeParams(tasks.SWING, 1.0, 3)
    train = pqn.make_train(LINEAR, env, params)
    state = parts.first_state(train, jax.random.key(0))
    kernel, bias = jnp.array([[1.0, 1.0, 2.0]]), jnp.array([2.0, 1.0, 9.0])
    weights = {"kernel": kernel[:, : 2 + masked], "bias": bias[: 2 + masked]}
    stats = state.policy.obs_stats.replace(mean=jnp.array([0.5]), var=jnp.array([4.0]))
    policy = state.policy.replace(params={"params": {"Dense_0": weights}}, obs_stats=stats)

    def values_of(x):
        return weights["bias"] + (x - 0.5) / 2.0 * weights["kernel"][0]

    def allowed(x):
        return np.array([x <= 0, True, False])[: 2 + masked] | (not masked)

    return train, state.replace(policy=policy), values_of, allowed


def test_an_update_minimises_the_squared_distance_to_the_targets(linear):
    """Seven steps by hand, with final observations and masks; statistics do not change."""
    train, state, values_of, allowed = linear
    values = lambda x: np.asarray(values_of(x))
    best = lambda x: int(np.argmax(np.where(allowed(x), values(x), -np.inf)))
    highest = lambda x: values(x)[best(x)]
    xs, finals = [1, -1, 1, 1, -1, 1, 1], [-1, 1, -1, -1, 1, -1, -1]
    done = [False, False, True, False, False, True, False]  # all episodes truncated
    target, targets = highest(finals[-1]), []
    for t in reversed(range(7)):
        follows = highest(finals[t]) if done[t] else target
        target = 0.5 * xs[t] + 0.9 * (0.4 * highest(finals[t]) + 0.6 * follows)
        targets.insert(0, target)
    errors = np.array([values(x)[best(x)] for x in xs]) - targets
    gradient = np.zeros((2, len(values(0))))  # of kernel and bias
    for x, error in zip(xs, errors):
        gradient[:, best(x)] += error * np.array([(x - 0.5) / 2.0, 1.0]) / 7
    _, metrics = train(None, again(state), 1)
    np.testing.assert_allclose(metrics["loss"], [0.5 * (errors**2).mean()], rtol=1e-4)
    np.testing.assert_allclose(metrics["mean_value"], [np.mean([highest(x) for x in xs])], 1e-4)
    np.testing.assert_allclose(metrics["grad_norm"], [np.linalg.norm(gradient)], rtol=1e-4)


def test_the_learning_rate_is_annealed(linear):
    """The same step, in the first and in the last but one of four updates.

    radam begins with momentum alone, so a step's length is the rate times that of the gradient.
    """
    train, state, *_ = linear
    lengths = []
    for update in (0, 2):
        after, metrics = train(None, again(state).replace(update=jnp.int32(update)), 1)
        moved = jax.tree.map(jnp.subtract, after.policy.params, state.policy.params)
        lengths.append(float(optax.tree.norm(moved) / metrics["grad_norm"][0]))
    np.testing.assert_allclose(lengths, [0.5, 0.25], rtol=1e-4)


# --- probe tasks ------------------------------------------------------------------------------

PROBE = pqn.Config(
    total_timesteps=100 * 256,
    num_envs=16,
    num_steps=16,
    num_minibatches=4,
    learning_rate=1e-2,
    gamma=0.9,
    reward_scale=1.0,
    eps_end=0.5,
    hidden_sizes=(16,),
    activation="tanh",  # relu is dead at x = 0
    num_evals=1,
    num_eval_episodes=0,
    eval_at_start=False,
)
SEEDS = 3


@pytest.fixture(scope="module")
def probed():
    """All tasks and seeds in one program: the values of both actions, and the policy's actions.

    Both are at x = -1, 0, 1.
    """
    env = tasks.Probe()

    def train(task, q_lambda, key):
        params = ProbeParams(task=task, max_steps_in_episode=5)
        config = PROBE.replace(q_lambda=q_lambda)
        state, _ = pqn.make_train(config, env, params)(key)
        policy = pqn.make_policy(PROBE, env, params)
        x = jnp.array([[-1.0], [0.0], [1.0]])
        values = pqn.QNetwork(PROBE, 2).apply(state.policy.params, x)
        return values, jax.vmap(lambda x: policy(state, x)[0])(x)

    keys = jax.random.split(jax.random.key(0), SEEDS)
    over_seeds = jax.vmap(train, (None, None, 0))
    # A trace follows the actions taken, including random ones. Where these matter later on, there
    # is no trace.
    q_lambdas = jnp.full(8, 0.5).at[tasks.ARM].set(0.0)
    with jax.debug_key_reuse(False):  # see conftest.vmapped_keys
        over_tasks = jax.jit(jax.vmap(over_seeds, (0, 0, None)))
        values, actions = over_tasks(jnp.arange(8), q_lambdas, keys)
    return np.asarray(values), np.asarray(actions)  # (8, SEEDS, 3, 2), (8, SEEDS, 3)


@pytest.mark.slow
def test_probe_values(probed):
    values, _ = probed
    np.testing.assert_allclose(values[tasks.CONSTANT, :, 1], 1.0, atol=0.05)
    for x, expected in ((0, -1.0), (2, 1.0)):
        np.testing.assert_allclose(values[tasks.OBSERVATION, :, x], expected, atol=0.1)
    for x, expected in ((1, 0.9), (2, 1.0)):
        np.testing.assert_allclose(values[tasks.DELAYED, :, x], expected, atol=0.1)
    np.testing.assert_allclose(values[tasks.ACTION, :, 1], [[0.0, 1.0]] * SEEDS, atol=0.1)


@pytest.mark.slow
def test_probe_endless_task_bootstraps_at_the_time_limit(probed):
    values, _ = probed
    np.testing.assert_allclose(values[tasks.ENDLESS, :, 1], 1.0 / (1.0 - 0.9), rtol=0.05)


@pytest.mark.slow
def test_probe_swing_bootstraps_from_final_observations_and_cuts_traces(probed):
    values, _ = probed
    for x, expected in ((0, -1.0 / 1.9), (2, 1.0 / 1.9)):
        np.testing.assert_allclose(values[tasks.SWING, :, x], expected, atol=0.05)


@pytest.mark.slow
def test_probe_values_continue_with_the_better_action(probed):
    values, _ = probed
    np.testing.assert_allclose(values[tasks.ARM, :, 1], [[9.0, 10.0]] * SEEDS, rtol=0.05)


@pytest.mark.slow
def test_probe_actions(probed):
    _, actions = probed
    np.testing.assert_array_equal(actions[tasks.ARM, :, 1], 1)
    np.testing.assert_array_equal(actions[tasks.ACTION, :, 1], 1)
    np.testing.assert_array_equal(actions[tasks.BOTH][:, [0, 2]], [[0, 1]] * SEEDS)


# --- the contract -----------------------------------------------------------------------------

CASE = Case(
    module=pqn,
    tiny=TINY,
    metrics={"loss", "grad_norm", "mean_value", "epsilon"},
    pinned={
        "loss": [0.984357, 0.523785, 0.210654],
        "grad_norm": [10.0019, 6.05042, 3.41141],
        "mean_value": [1.7474, 1.45057, 1.13035],
    },
    refused=(
        (dict(num_minibatches=3), "num_minibatches=3 does not divide .* 16; 1, 2, 4, 8 would do"),
        (dict(optimizer="sgd"), "optimizer='sgd': give radam or adam"),
        (
            dict(exploration="cosine"),
            "exploration='cosine': give constant or linear or exponential",
        ),
        (dict(env="Pendulum-v1"), "has actions .*; pqn takes Discrete"),
    ),
    other={"adam_eps": 1e-2, "max_grad_norm": 1e-2},
)


@pytest.mark.cases(lambda case: case.of_family("action values") and not case.replay)
def test_epsilon_falls_over_a_run(case, trained):
    """Of 3 updates, the second begins after a third of the run, and the last after two thirds."""
    expected = [1.0, 1.0 - 0.8 * (1 / 3) / 0.5, 0.2]
    np.testing.assert_allclose(trained[1]["epsilon"][1:], expected, rtol=1e-5)


class Images(tasks.Probe):
    """The probe whose observation x is an image (4, 3, 2) filled with 10 x + 5."""

    def reset_env(self, key, params):
        x, state = super().reset_env(key, params)
        return self.paint(x), state

    def step_env(self, key, state, action, params):
        x, *rest = super().step_env(key, state, action, params)
        return self.paint(x), *rest

    def paint(self, x):
        return jnp.broadcast_to(10.0 * x + 5.0, (4, 3, 2))

    def observation_space(self, params):
        return tasks.spaces.Box(-5.0, 15.0, (4, 3, 2))


def test_other_settings_learn_too_from_images():
    """Adam, no layer norm, normalised observations, very large rewards."""
    config = PROBE.replace(
        total_timesteps=30 * 256,
        optimizer="adam",
        exploration="exponential",
        layer_norm=False,
        normalize_obs=True,
        reward_scale=0.02,
    )
    env, params = Images(), ProbeParams(task=tasks.BOTH, reward=50.0)
    state, metrics = pqn.make_train(config, env, params)(jax.random.key(0))
    assert 30.0 < metrics["episode_return"][-1] < 45.0  # raw rewards, with many random actions
    stats = state.policy.obs_stats
    assert float(stats.count) == 30 * 256
    np.testing.assert_allclose(stats.mean, 5.0, atol=0.5)
    np.testing.assert_allclose(stats.var, 100.0, rtol=0.01)
    policy = pqn.make_policy(config, env, params)
    image = env.paint(jnp.array([1.0]))
    x = stats.normalize(image[None], config.clip_obs)
    values = pqn.QNetwork(config, 2).apply(state.policy.params, x)
    np.testing.assert_allclose(values, [[0.0, 1.0]], atol=0.1)
    assert policy(state, image)[0] == 1
    keys = jax.random.split(jax.random.key(1), 1000)
    actions = jax.vmap(lambda key: policy(state, image, None, key)[0])(keys)
    np.testing.assert_allclose(actions.mean(), 1.0 - 0.5 * config.eps_end, atol=0.05)


def test_gradients_are_clipped_by_their_global_norm():
    """Rectified Adam begins without dividing by the deviation, so a step is as long as its
    gradient.

    Clipped one by one, the elements together would be longer.
    """
    train = pqn.make_train(TINY.replace(max_grad_norm=1e-3, learning_rate=1.0))
    before = parts.first_state(train, jax.random.key(0))
    after, metrics = train(None, before, 1)
    moved = optax.tree.norm(jax.tree.map(jnp.subtract, before.policy.params, after.policy.params))
    assert metrics["grad_norm"][0] > 0.1  # before clipping
    assert 2e-3 < moved < 4.001e-3  # of 4 steps
