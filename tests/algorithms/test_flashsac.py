"""FlashSAC: formulas against NumPy, gradient steps by hand, and the contract of the file."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import envs
from algorithms import flashsac, parts
from tests import probe as tasks
from tests.algorithms.cases import Case, again, assert_close, assert_same, programs
from tests.algorithms.test_actor_critics import PROBE as OF_ALL
from tests.algorithms.test_actor_critics import (
    REFUSED,
    SMALL,
    TAKES_BOX,
    TOLERANCE,
    TwoMotors,
    played,
    two_motors,
)
from tests.conftest import AS_FOR_USERS

MISSING = {"anneal_lr", "reward_scale", "hidden_sizes", "critic_hidden_sizes"}
WIDTHS = dict(num_blocks=1, critic_blocks=1, hidden_size=8, critic_hidden_size=8, expansion=2)
TINY = flashsac.Config(
    **{name: value for name, value in SMALL.items() if name not in MISSING},
    **WIDTHS,
    num_atoms=11,
    noise_repeat=4,
)


def learned(state):
    return state.policy.variables["params"]


def mean_action(config, state, x, size=1):
    return jnp.tanh(flashsac.Actor(config, size).apply(state.policy.variables, x).mean)


def lowest_value(config, state, x, action):
    critics = jax.vmap(flashsac.Critic(config).apply, (0, None, None))
    atoms = jnp.linspace(-config.v_max, config.v_max, config.num_atoms)
    values = jnp.exp(critics(state.critics, x, action)) @ atoms
    return values.min(0) * flashsac.divisor(config, state.reward_scale)


def random_like(tree, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), tree)


# --- network ----------------------------------------------------------------------------------


def test_a_bfloat16_critic_has_float32_outputs():
    x, action = jnp.split(jax.random.normal(jax.random.key(0), (64, 4)), [3], 1)
    variables = flashsac.Critic(TINY).init(jax.random.key(0), x, action)
    outputs = [
        flashsac.Critic(TINY.replace(compute_dtype=dtype)).apply(
            variables, x, action, True, mutable="moments"
        )[0]
        for dtype in ("float32", "bfloat16")
    ]
    assert outputs[1].dtype == jnp.float32
    assert 0.0 < np.abs(outputs[1] - outputs[0]).max() < 0.1


def test_the_networks_by_hand():
    """A critic in training and an actor outside it, with random parameters and moments."""
    config = TINY.replace(num_blocks=2, critic_blocks=2, min_log_std=-4.0, max_log_std=1.0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 3)).astype(np.float32)
    action = rng.normal(size=(5, 2)).astype(np.float32)

    def torso(variables, x, train):
        params, moments = variables["params"]["Torso_0"], variables["moments"]["Torso_0"]

        def norm(i, x):
            own, kept = params[f"BatchNorm_{i}"], moments[f"BatchNorm_{i}"]
            mean, var = (x.mean(0), x.var(0)) if train else (kept["mean"], kept["var"] ** 2)
            return (x - mean) / np.sqrt(var + 1e-5) * own["scale"] + own["bias"]

        dense = lambda i, x: x @ params[f"Dense_{i}"]["kernel"]
        x = dense(0, norm(0, x))
        for i in (1, 3):
            wide = np.maximum(norm(i, dense(i, x)), 0.0)
            x = x + np.maximum(norm(i + 1, dense(i + 1, wide)), 0.0)
        own = params["RMSNorm_0"]["scale"]
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * own

    def of(module, *inputs):
        variables = random_like(jax.eval_shape(module.init, jax.random.key(0), *inputs))
        squared = lambda path, x: x**2 if "'var'" in str(path) else x
        return variables, jax.tree_util.tree_map_with_path(squared, variables)

    variables, given = of(flashsac.Critic(config), x, action)
    found, changed = flashsac.Critic(config).apply(given, x, action, True, mutable="moments")
    features = torso(variables, np.concatenate([x, action], -1), True)
    logits = features @ variables["params"]["value_head"]["kernel"]
    logits = logits + variables["params"]["free_bias"]
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert len(jax.tree.leaves(changed)) == 10  # mean and variance of five norms

    variables, given = of(flashsac.Actor(config, 2), x)
    found = flashsac.Actor(config, 2).apply(given, x)
    features = torso(variables, x, False)
    head = lambda name: (
        features @ variables["params"][name]["kernel"] + variables["params"][name]["bias"]
    )
    np.testing.assert_allclose(found.mean, head("mean_head"), rtol=1e-3, atol=1e-4)
    squashed = -4.0 + 2.5 * (1.0 + np.tanh(head("std_head")))
    np.testing.assert_allclose(found.log_std, squashed, rtol=1e-3, atol=1e-4)


def test_critics_do_not_touch_one_another(slices):
    """The moments of one are not those of the other."""
    state, _ = slices[1]
    rng = np.random.default_rng(0)
    x, action = (rng.normal(size=(6, size)).astype(np.float32) for size in (3, 1))
    apply = lambda v: flashsac.Critic(TINY).apply(v, x, action, True, mutable="moments")
    found = jax.vmap(apply)(state.critics)
    other = jax.vmap(apply)(jax.tree.map(lambda x: x.at[1].multiply(1.5), state.critics))
    first, second = ([jax.tree.map(lambda x, i=i: x[i], t) for t in (found, other)] for i in (0, 1))
    assert_same(*first)
    with pytest.raises(AssertionError):
        assert_same(*second)


def lengths(params):
    """{place: lengths of its units, or of a norm's numbers over sqrt(size)} by NumPy."""
    found = {}
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        found.setdefault(jax.tree_util.keystr(path[:-1]), {})[path[-1].key] = np.asarray(x)
    sizes = {}
    for place, own in found.items():
        if "scale" in own:
            square = sum((x**2).sum(-1) for x in own.values())
            sizes[place] = np.sqrt(square / own["scale"].shape[-1])
        elif set(own) == {"kernel"}:
            sizes[place] = np.sqrt((own["kernel"] ** 2).sum(-2))
    return sizes


def test_projection_scales_units_and_norms_and_nothing_else():
    shapes = jax.eval_shape(
        lambda key: jax.vmap(flashsac.Critic(TINY).init, (0, None, None))(
            jax.random.split(key, 2), jnp.zeros((2, 3)), jnp.zeros((2, 1))
        ),
        jax.random.key(0),
    )["params"]
    before = random_like(shapes)
    after = flashsac.project(before)
    found = lengths(after)
    assert len(found) == 8  # four dense layers, three batch norms and an RMS norm
    for place, size in found.items():
        np.testing.assert_allclose(size, 1.0, atol=1e-5, err_msg=place)
        assert size.shape[0] == 2
    assert_same(after["free_bias"], before["free_bias"])
    norm, old = after["Torso_0"]["BatchNorm_1"], before["Torso_0"]["BatchNorm_1"]
    np.testing.assert_allclose(norm["bias"] / norm["scale"], old["bias"] / old["scale"], rtol=1e-4)
    np.testing.assert_allclose(norm["bias"] / old["bias"] > 0.0, True)
    assert_close(flashsac.project(after), after, rtol=1e-5)
    actor = random_like(
        jax.eval_shape(flashsac.Actor(TINY, 2).init, jax.random.key(0), jnp.zeros((2, 3)))["params"]
    )
    for head in ("mean_head", "std_head"):
        assert_same(flashsac.project(actor)[head], actor[head])
    zero = flashsac.project({"Dense_0": {"kernel": jnp.zeros((2, 2))}})
    assert np.isfinite(zero["Dense_0"]["kernel"]).all()


def test_networks_are_projected_at_first_and_after_each_step(slices):
    (start, _), (state, _), *_ = slices
    for own in (start, state):
        for params in (learned(own), own.critics["params"]):
            for place, size in lengths(params).items():
                np.testing.assert_allclose(size, 1.0, atol=1e-5, err_msg=place)
    assert_same(start.target_critics["params"], start.critics["params"])


def test_networks_start_apart_with_their_heads(slices):
    state, _ = slices[0]
    assert_apart_units(state.critics["params"])
    params = learned(state)
    mean, std = params["mean_head"]["kernel"], params["std_head"]["kernel"]
    assert np.linalg.norm(mean) == pytest.approx(1e-3 * np.sqrt(mean.size), rel=0.6)
    assert not std.any() and not params["mean_head"]["bias"].any()
    assert float(state.log_temperature) == pytest.approx(np.log(0.01))
    actions = flashsac.Actor(TINY, 1).apply(state.policy.variables, state.observation)
    np.testing.assert_allclose(actions.log_std, -2.5)


def assert_apart_units(critics):
    first, second = critics["value_head"]["kernel"]
    assert not np.allclose(first, second)


# --- formulas ---------------------------------------------------------------------------------


def plain_returns(stream, done, gamma):
    """All sums so far, after each step, by a loop."""
    total, sums = np.zeros(stream.shape[1]), []
    for reward, ended in zip(stream, done):
        total = gamma * total + reward
        sums.append(total.copy())
        total[ended] = 0.0
    return np.array(sums)


@pytest.mark.parametrize("kind", ["zeros", "ones", "sparse", "normal"])
def test_rewards_are_scaled_by_the_sums_in_the_order_of_the_steps(kind):
    """Rollouts of two steps. No sum over the scale is larger than v_max, at any time."""
    rng, steps, gamma, v_max = np.random.default_rng(0), 40, 0.9, 3.0
    stream = {
        "zeros": np.zeros((steps, 3)),
        "ones": np.ones((steps, 3)),
        "sparse": 50.0 * (rng.random((steps, 3)) < 0.05),
        "normal": rng.normal(size=(steps, 3)) - 1.0,
    }[kind]
    done = rng.random((steps, 3)) < 0.1
    config = TINY.replace(v_max=v_max)
    returns = parts.ReturnStatistics.create(3)
    sums = plain_returns(stream, done, gamma)
    add = jax.jit(parts.ReturnStatistics.update)
    for first in range(0, steps, 2):
        rows = slice(first, first + 2)
        returns = add(returns, jnp.asarray(stream[rows]), jnp.asarray(done[rows]), gamma)
        seen = sums[: first + 2]
        scale = float(flashsac.divisor(config, returns))
        deviation = np.sqrt(seen.var() + 1e-8)
        assert scale == pytest.approx(max(deviation, np.abs(seen).max() / v_max), rel=1e-3)
        assert (np.abs(seen) / scale <= v_max * (1.0 + 1e-5)).all()
    assert float(flashsac.divisor(config.replace(normalize_reward=False), returns)) == 1.0


def test_noise_is_held_by_a_zeta_law():
    uniform = (jnp.arange(100_000) + 0.5) / 100_000
    found = np.asarray(flashsac.durations(uniform, 2.0, 16))
    shares = np.arange(1, 17) ** -2.0
    shares /= shares.sum()
    np.testing.assert_allclose(np.bincount(found, minlength=17)[1:] / 1e5, shares, atol=2e-5)
    assert found.mean() == pytest.approx(2.13, abs=0.01)
    assert (flashsac.durations(uniform, 2.0, 1) == 1).all()
    assert flashsac.durations(jnp.array([0.0, 1.0]), 3.0, 5).tolist() == [1, 5]


def plain_projection(probs, targets, atoms):
    mass, spacing = np.zeros_like(probs), atoms[1] - atoms[0]
    for row, (own, places) in enumerate(zip(probs, targets)):
        for p, y in zip(own, np.clip(places, atoms[0], atoms[-1])):
            for i, z in enumerate(atoms):
                mass[row, i] += p * max(0.0, 1.0 - abs(y - z) / spacing)
    return mass


def test_targets_are_split_between_the_atoms_beside_them():
    rng, atoms = np.random.default_rng(0), np.linspace(-5.0, 5.0, 11)
    probs, targets = rng.dirichlet(np.ones(11), 4), rng.normal(size=(4, 11)) * 4.0
    found = flashsac.project_mass(*map(jnp.asarray, (probs, targets, atoms)))
    np.testing.assert_allclose(found, plain_projection(probs, targets, atoms), atol=1e-5)
    np.testing.assert_allclose(found.sum(-1), 1.0, atol=1e-5)
    for place, expected in ((5.0, 10), (99.0, 10), (-5.0, 0), (-9.0, 0), (0.0, 5), (2.0, 7)):
        one = flashsac.project_mass(jnp.asarray(probs), jnp.full((4, 11), place), atoms)
        np.testing.assert_allclose(one, np.eye(11)[[expected] * 4], atol=1e-5)


def test_the_whole_distribution_of_the_smaller_mean_counts():
    """Sample 0 has its smaller mean in critic 1, sample 1 in critic 0."""
    atoms = jnp.array([-1.0, 0.0, 1.0])
    probs = jnp.array(
        [[[0.2, 0.6, 0.2], [0.5, 0.25, 0.25]], [[0.5, 0.1, 0.4], [0.3, 0.3, 0.4]]], jnp.float32
    )
    found = flashsac.of_lowest_mean(jnp.log(probs), atoms)
    np.testing.assert_allclose(found, [[0.5, 0.1, 0.4], [0.5, 0.25, 0.25]], rtol=1e-5)


def test_the_target_entropy_is_a_gaussian_s():
    found = float(flashsac.target_entropy(3, 0.15))
    assert found == pytest.approx(3 * (0.5 + 0.5 * np.log(2 * np.pi) + np.log(0.15)), rel=1e-5)
    assert found / 3 == pytest.approx(-0.478, abs=1e-3)


def test_step_sizes_fall_along_a_cosine():
    found = [float(flashsac.cosine(jnp.float32(p), 0.5)) for p in (-1.0, 0.0, 0.5, 1.0, 2.0)]
    np.testing.assert_allclose(found, [1.0, 1.0, 0.75, 0.5, 0.5], rtol=1e-6)
    third = 0.1 + 0.9 * 0.5 * (1.0 + np.cos(np.pi / 3.0))
    assert float(flashsac.cosine(jnp.float32(1 / 3), 0.1)) == pytest.approx(third, rel=1e-5)


# --- gradient steps ---------------------------------------------------------------------------


class Fragile(TwoMotors):
    """An environment whose episode a fast turn ends."""

    def step_env(self, key, state, action, params):
        observation, state, reward, _, info = super().step_env(key, state, action, params)
        return observation, state, reward, observation[2] > 3.0, info


@pytest.fixture(scope="module")
def steps():
    """The states before and after an update of one round with two gradient steps, and the config.

    It is the run's second update of three. The optimisers begin anew, with large steps.
    """
    config = TINY.replace(train_every=16, learning_starts=0, num_eval_episodes=0, buffer_size=200)
    config = config.replace(num_critics=3, learning_rate=0.1, adam_eps=1e-2, tau=0.2)
    config = config.replace(norm_momentum=0.2, target_std=0.5, v_max=4.0)
    learner = flashsac.learner(config, *two_motors(Fragile))
    init, update = programs(learner)
    state = update(init(jax.random.key(0)))[0]
    state = state.replace(
        log_temperature=jnp.float32(np.log(0.3)),
        policy_opt_state=jax.tree.map(jnp.zeros_like, state.policy_opt_state),
        critic_opt_state=jax.tree.map(jnp.zeros_like, state.critic_opt_state),
    )
    return config, state, *update(again(state))


def by_hand(config, state, after):
    """The two gradient steps of `steps` by optax and the networks' own functions."""
    _, _, _, _, _, draw_rng, action_rng = jax.random.split(state.rng, 7)
    buffer, number = parts.ReplayBuffer.of(config), config.batch_size
    draws = buffer.noise(draw_rng, (1, 2, number))[0]
    noises = jax.random.normal(action_rng, (1, 2, 2, number, 2))[0]
    actor, critic = flashsac.Actor(config, 2), flashsac.Critic(config)
    atoms = jnp.linspace(-4.0, 4.0, 11)
    pick = lambda tree, i: jax.tree.map(lambda x: x[i], tree)
    every = lambda variables, *inputs: [
        critic.apply(pick(variables, i), *inputs, mutable="moments") for i in range(3)
    ]
    stack = lambda trees: jax.tree.map(lambda *x: jnp.stack(x), *trees)
    mean_of = lambda log_probs: (jnp.exp(log_probs) * atoms).sum(-1)
    scale = flashsac.divisor(config, after.reward_scale)
    # One of the run's three rounds has learned; two make the turns of a pair.
    learned = 1.0 / 3.0
    falls = lambda done: 0.5 + 0.25 * (1.0 + jnp.cos(jnp.pi * done))

    def adam(share, tree, grads, kept):
        own = optax.adam(0.1 * falls(share), eps=1e-2)
        changes, kept = own.update(grads, own.init(tree) if kept is None else kept)
        return optax.apply_updates(tree, changes), kept

    variables, log_temperature = state.policy.variables, state.log_temperature
    critics, slow, kept, sums = state.critics, state.target_critics, None, []
    for step, (noise, draw_noise) in enumerate(zip(noises, draws)):
        index = buffer.draw(after.replay, draw_noise).index
        window = buffer.windows(after.replay.transitions, index, config.gamma)
        x = jnp.concatenate([window.observation, window.final_observation])
        if step == 0:
            temperature = jnp.exp(log_temperature)

            def actor_loss(params):
                own = variables | {"params": params}  # noqa: B023
                gaussian, changed = actor.apply(own, x, True, mutable="moments")  # noqa: B023
                gaussian = parts.TanhGaussian(gaussian.mean[:number], gaussian.log_std[:number])
                action, log_prob = gaussian.sample_and_log_prob_from(noise[0])  # noqa: B023
                values = jnp.stack(
                    [mean_of(critic.apply(pick(critics, i), x[:number], action)) for i in range(3)]  # noqa: B023
                )
                loss = (temperature * log_prob - values.min(0)).mean()  # noqa: B023
                return loss, (changed, log_prob.mean())

            params = variables["params"]
            (loss, (changed, log_prob)), grads = jax.value_and_grad(actor_loss, has_aux=True)(
                params
            )
            goal = 2 * (0.5 + 0.5 * jnp.log(2 * jnp.pi) + jnp.log(0.5))
            of_temperature = temperature * (-log_prob - goal)
            both = params, log_temperature
            (params, log_temperature), _ = adam(learned / 2, both, (grads, of_temperature), None)
            variables = changed | {"params": flashsac.project(params)}
            policy = {"actor_loss": loss, "entropy": -log_prob, "temperature": temperature}
        gaussian = actor.apply(variables, window.final_observation)
        next_action, log_prob = gaussian.sample_and_log_prob_from(noise[1])
        inputs = x, jnp.concatenate([window.action, next_action]), True
        found = every(slow, *inputs)
        moments = stack([changed["moments"] for _, changed in found])
        log_probs = jnp.stack([own for own, _ in found])[:, number:]
        least = jnp.argmin(mean_of(log_probs), 0)
        probs = jnp.exp(log_probs)[least, jnp.arange(number)]
        bonus = jnp.exp(log_temperature) * log_prob
        places = (window.returns / scale)[:, None] + window.discount[:, None] * (
            atoms - bonus[:, None]
        )
        near = 1.0 - jnp.abs(jnp.clip(places, -4.0, 4.0)[:, :, None] - atoms) / 0.8
        target = jnp.einsum("bt,bta->ba", probs, jnp.maximum(near, 0.0))

        def critic_loss(params):
            found = every(critics | {"params": params}, *inputs)  # noqa: B023
            log_probs = jnp.stack([own for own, _ in found])[:, :number]
            loss = -(target * log_probs).sum(-1).mean()  # noqa: B023
            return loss, (stack([c["moments"] for _, c in found]), mean_of(log_probs).min(0).mean())

        (loss, (changed, value)), grads = jax.value_and_grad(critic_loss, has_aux=True)(
            critics["params"]
        )
        params, kept = adam(learned, critics["params"], grads, kept)
        critics = {"params": flashsac.project(params), "moments": changed}
        move = lambda old, new: 0.8 * old + 0.2 * new
        slow = {
            "params": jax.tree.map(move, slow["params"], critics["params"]),
            "moments": moments,
        }
        clipped = (probs * (jnp.abs(places) > 4.0)).sum(-1).mean()
        norm = optax.tree.norm(grads)
        sums.append(
            {
                "critic_loss": loss,
                "mean_value": value * scale,
                "grad_norm": norm,
                "clipped_targets": clipped,
            }
        )
    sums = jax.tree.map(lambda *x: sum(x), *sums) | policy
    return variables, log_temperature, critics, slow, sums


def test_gradient_steps_are_the_papers(steps):
    """In the first of two, the actor and the temperature learn before the critics."""
    config, state, after, metrics = steps
    variables, log_temperature, critics, slow, sums = jax.jit(by_hand, static_argnums=0)(
        Frozen(config), again(state), after
    )
    near = dict(rtol=2e-3, atol=5e-5)
    assert_close(after.policy.variables, variables, **near)
    assert float(after.log_temperature) == pytest.approx(float(log_temperature), rel=1e-4)
    assert_close(after.critics, critics, **near)
    assert_close(after.target_critics, slow, **near)
    for name, expected in sums.items():
        assert float(metrics[name].total) == pytest.approx(float(expected), rel=2e-3), name
    assert metrics["critic_loss"].weight == 2 and metrics["actor_loss"].weight == 1
    sizes = [size.min() for size in lengths(after.target_critics["params"]).values()]
    assert min(sizes) < 0.999, "targets are not projected again"
    assert float(metrics["clipped_targets"].total) > 0.01


class Frozen:
    """A Config as one static argument: Python numbers inside."""

    def __init__(self, config):
        self.config = config

    def __getattr__(self, name):
        return getattr(self.config, name)


def test_only_terminated_steps_have_no_bootstrap_value(steps):
    """Compared with the environment's own rule; a time limit ends episodes, too."""
    _, _, after, _ = steps
    seen = jax.tree.map(lambda x: np.asarray(x[:64]), after.replay.transitions)
    np.testing.assert_array_equal(seen.terminated, seen.final_observation[:, 2] > 3.0)
    assert seen.terminated.any() and (seen.done | ~seen.terminated).all()


def test_the_statistics_are_of_all_rewards_in_their_order(steps):
    """Those of the buffer, which holds all steps so far, in their own unit."""
    config, _, after, _ = steps
    seen = jax.tree.map(lambda x: np.asarray(x[:64]).reshape(32, 2, -1), after.replay.transitions)
    sums = plain_returns(seen.reward[..., 0], seen.done[..., 0], float(config.gamma))
    assert float(after.reward_scale.largest) == pytest.approx(np.abs(sums).max(), rel=1e-4)
    assert float(after.reward_scale.stats.mean) == pytest.approx(sums.mean(), rel=1e-4)
    assert float(after.reward_scale.stats.var) == pytest.approx(sums.var(), rel=1e-3)
    assert int(after.reward_scale.stats.count) == 64


# --- acting -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def held():
    """The noise of each step and environment, from the buffer of a run that does not learn."""
    config = TINY.replace(num_envs=8, train_every=16, learning_starts=99, total_timesteps=8 * 512)
    config = config.replace(buffer_size=9 * 512, learning_rate=0.0, num_eval_episodes=0)
    config = config.replace(noise_repeat=16, norm_momentum=0.0)
    world = two_motors()
    state, _ = flashsac.make_train(config, *world)(jax.random.key(0))
    rows = jax.tree.map(np.asarray, state.replay.transitions)
    random, whole = rows.action[: 8 * 16].reshape(16, 8, 2), int(state.replay.size)
    seen = jax.tree.map(lambda x: x[8 * 16 : whole], rows)
    actions = flashsac.Actor(config, 2).apply(state.policy.variables, seen.observation)
    noise = (np.arctanh(seen.action) - actions.mean) / np.exp(actions.log_std)
    return noise.reshape(-1, 8, 2), seen.done.reshape(-1, 8), random


def test_all_environments_hold_their_own_noise_for_the_same_steps(held):
    """Through the ends of updates and of episodes."""
    noise, done, _ = held
    new = np.abs(np.diff(noise, axis=0)) > 1e-2  # (steps, envs, dimensions)
    share = new.reshape(len(new), -1).mean(1)
    assert ((share < 0.1) | (share > 0.9)).all(), "all change at once, or none"
    changes = share > 0.5
    assert changes.mean() == pytest.approx(1 / 2.13, abs=0.1)
    lengths = np.diff(np.flatnonzero(changes))
    assert (lengths == 1).mean() == pytest.approx(0.63, abs=0.1)
    assert 8 <= lengths.max() <= 16
    assert not changes[done.all(1)[:-1]].all(), "an end of episodes renews nothing"
    drawn = noise[1:][changes].reshape(-1, 16)
    assert drawn.std() == pytest.approx(1.0, abs=0.05) and abs(drawn.mean()) < 0.05
    assert np.abs(np.corrcoef(drawn.T) - np.eye(16)).max() < 0.25


def test_random_actions_are_not_held(held):
    """Before learning starts they are new at each step."""
    assert (np.abs(np.diff(held[2], axis=0)) > 0.0).all()


def test_acting_and_evaluation_leave_the_moments(slices):
    """An action for one environment is that for many; running moments normalise."""
    state, _ = slices[1]
    env, params = envs.make(TINY.env, max_steps=20)
    policy = flashsac.make_policy(TINY, env, params)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
    many = 2.0 * mean_action(TINY, state, x)  # Pendulum's box is [-2, 2]
    one = jnp.stack([policy(state, row)[0] for row in x])
    np.testing.assert_allclose(one, many, rtol=1e-5, atol=1e-6)


class Stronger(TwoMotors):
    """The same motors in another unit: the box is twice as large."""

    def action_space(self, params):
        box = super().action_space(params)
        return type(box)(2.0 * box.low, 2.0 * box.high, box.shape)

    def step_env(self, key, state, action, params):
        return super().step_env(key, state, 0.5 * action, params)


@pytest.mark.slow
def test_the_unit_of_actions_does_not_matter():
    """Densities and the target entropy are of actions in [-1, 1]."""

    def run(wrapper):
        config = TINY.replace(num_eval_episodes=0)
        return flashsac.make_train(config, *two_motors(wrapper))(jax.random.key(0))[0]

    found, other = run(TwoMotors), run(Stronger)
    assert float(found.log_temperature) == pytest.approx(float(other.log_temperature), rel=1e-4)
    assert float(found.log_temperature) != pytest.approx(np.log(0.01), rel=1e-4)


# --- probe tasks ------------------------------------------------------------------------------

PROBE = flashsac.Config(
    **{name: value for name, value in OF_ALL.items() if name not in MISSING},
    hidden_size=16,
    critic_hidden_size=16,
    num_blocks=1,
    critic_blocks=1,
    num_atoms=51,
    v_max=20.0,  # episodes of 5 steps do not show that values reach 10
    final_lr_share=0.0,
    policy_every=1,
    updates_per_step=1,
    tau=0.05,
    norm_momentum=0.1,
    min_log_std=-2.0,
    initial_temperature=1e-4,
    learn_temperature=False,
).replace(learning_rate=3e-3)


class Moving(tasks.Probe):
    """Endless episodes, cut after 5 steps: x is new at each step, and (a - x / 2)**2 a cost."""

    def step_env(self, key, state, action, params):
        reward = 1.0 - jnp.square(action[0] - 0.5 * state.x)
        x = jax.random.randint(key, (), -1, 2).astype(jnp.float32)
        state = state.replace(x=x, time=state.time + 1)
        return state.x[None], state, reward, jnp.zeros((), bool), {}


@pytest.mark.slow
def test_an_endless_task_of_actions(vmapped_keys):
    """Where observations vary: the values are 10, less what exploration costs."""
    env, params = Moving(True), tasks.ProbeParams(task=tasks.BOTH, max_steps_in_episode=5)

    def run(key):
        state, _ = flashsac.make_train(PROBE, env, params)(key)
        x = jnp.array([[-1.0], [0.0], [1.0]])
        action = mean_action(PROBE, state, x)
        return action[:, 0], lowest_value(PROBE, state, x, action)

    with jax.debug_key_reuse(False):
        train = jax.jit(jax.vmap(run), compiler_options=AS_FOR_USERS)
        actions, values = train(jax.random.split(jax.random.key(0), 3))
    np.testing.assert_allclose(actions, [[-0.5, 0.0, 0.5]] * 3, atol=0.15)
    np.testing.assert_allclose(values, 10.0, rtol=0.1)


CASE = Case(
    module=flashsac,
    tiny=TINY,
    metrics={"critic_loss", "actor_loss", "mean_value", "entropy", "temperature", "grad_norm"}
    | {"clipped_targets"},
    pinned={
        "critic_loss": [2.64458, 2.59589, 2.55859],
        "actor_loss": [1.33654, 0.985618, 0.661972],
        "entropy": [-0.995832, -1.09962, -1.03103],
    },
    refused=(
        *[
            (change, message)
            for change, message in REFUSED
            if not set(change) & {*MISSING, "network"}
        ],
        (dict(policy_every=0), "policy_every=0"),
        (dict(num_critics=0), "num_critics=0: give a whole number, 1 or more"),
        (dict(num_atoms=1), "num_atoms=1: give 2 or more; 101 is usual"),
        (dict(batch_size=1), "batch_size=1: give 2 or more; batch norms need it"),
        (dict(noise_repeat=0), "noise_repeat=0"),
        (dict(critic_blocks=0), "critic_blocks=0"),
        TAKES_BOX,
    ),
    probe=PROBE,
    probes={"continuous": False},
    played=played,
    learns=("policy", "critics", "log_temperature", "policy_opt_state", "critic_opt_state"),
    mean_action=mean_action,
    lowest_value=lowest_value,
    learned=learned,
    actor_state="policy_opt_state",
    first_turn=True,
    constant_inputs=False,
    other={"adam_eps": 1e-2, "max_log_std": -1.0},
    tolerance=TOLERANCE,
)
