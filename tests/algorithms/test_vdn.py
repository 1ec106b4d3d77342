"""VDN: mixers, an update against plain NumPy, games that separate the mixers, the contract."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms import parts, pqn, vdn
from envs.evaluation import rewarded
from envs.gymnax import Wrapper
from tests.algorithms.cases import Case, again, assert_close, assert_same, programs
from tests.algorithms.test_ippo import Crowd, CrowdParams
from tests.algorithms.test_pqn import plain_targets, random_rollout
from tests.algorithms.test_pqn_rnn import check_kernels
from tests.algorithms.test_teams import arrays
from tests.probe import LEAVING, Pair, PairParams, environment, spaces, struct

TINY = vdn.Config(
    total_timesteps=3 * 16,
    num_envs=2,
    num_steps=8,
    mixer="monotonic",
    mixing_size=4,
    agent_ids=True,
    cell="gru",
    memory_size=8,
    previous_inputs=True,
    num_minibatches=2,
    update_epochs=2,
    learning_rate=1e-3,
    reward_scale=1.0,
    eps_end=0.2,
    exploration_fraction=0.5,
    hidden_sizes=(8,),
    num_evals=3,
    num_eval_episodes=2,
)
WORLD = Pair(world=True), PairParams()


# --- formulas ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed, shape", [(0, (17, 5)), (1, (1, 4))])
def test_targets_are_the_weighted_n_step_returns(seed, shape):
    rollout = random_rollout(seed, shape)
    result = vdn.q_lambda_targets(*(x[..., None] for x in rollout), 0.9, 0.7)[..., 0]
    np.testing.assert_allclose(result, plain_targets(*rollout, 0.9, 0.7), rtol=1e-4, atol=1e-5)


def test_code_shared_with_pqn_equals_pqn_s():
    rng = np.random.default_rng(0)
    values = jnp.array(rng.normal(size=(6, 2, 4)), jnp.float32)
    mask = jnp.array(rng.random((6, 2, 4)) < 0.5).at[..., 0].set(True)
    noise = parts.epsilon_noise(jax.random.key(0), (6, 2), 4)
    greedy, by_pqn = jax.jit(vdn.epsilon_greedy), jax.jit(pqn.epsilon_greedy)
    flat = lambda x: x.reshape(12, *x.shape[2:])
    for m in (None, mask):
        given = None if m is None else flat(m)
        for epsilon in (0.0, 0.5, 1.0):
            result = greedy(values, epsilon, noise, m)
            theirs = parts.EpsilonNoise(*map(flat, noise))
            expected = by_pqn(flat(values), epsilon, theirs, given)
            np.testing.assert_array_equal(flat(result), expected)
    config, theirs = vdn.Config(eps_start=0.9, eps_end=0.1), pqn.Config(eps_start=0.9, eps_end=0.1)
    for progress in (0.0, 0.1, 0.2, 0.3, 0.9):
        left = 1.0 - progress / 0.3
        expected = 0.1 + 0.8 * max(left, 0.0)
        np.testing.assert_allclose(vdn.epsilon_at(config, progress), expected, rtol=1e-5)
    theirs = theirs.replace(learning_rate=3e-3, update_epochs=4)
    for update in (0, 3, 7):
        result = vdn.learning_rates(config, 5, jnp.int32(update))
        np.testing.assert_allclose(result, pqn.learning_rates(theirs, 5, jnp.int32(update)))


# --- mixers -----------------------------------------------------------------------------------


def dense(params, x):
    return x @ params["kernel"] + params["bias"]


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0.0)))


def mix(config, params, values, alive, view):
    """The mix of one team at one step."""
    values = np.where(alive, values, 0.0)
    if config.mixer == "none":
        return values
    if config.mixer == "sum":
        return np.array([values.sum()])
    size = config.mixing_size
    weights = np.abs(dense(params["weights"], view)).reshape(len(values), size)
    hidden = elu(values @ weights / np.sqrt(size) + dense(params["bias"], view))
    last = np.abs(dense(params["last_weights"], view))
    bias = dense(params["last_bias"], np.maximum(dense(params["bias_hidden"], view), 0.0))
    return hidden @ last / np.sqrt(size) + bias


@pytest.fixture(scope="module")
def mixed():
    """50 teams of 3, some of whose agents have left, and monotonic mixers with random
    parameters."""
    rng = np.random.default_rng(0)
    values, view = 3.0 * rng.normal(size=(50, 3)), rng.normal(size=(50, 5))
    config, alive = TINY.replace(mixing_size=6), rng.random((50, 3)) < 0.7
    params = jax.jit(vdn.Mixer(config).init)(jax.random.key(0), values, alive, view)
    params = jax.tree.map(lambda x: 0.7 * rng.normal(size=x.shape), params)
    return config, params, values, alive, view


@pytest.mark.parametrize("mixer", ["none", "sum", "monotonic"])
def test_mixers_are_those_of_plain_lists(mixed, mixer):
    config, params, values, alive, view = mixed
    config = config.replace(mixer=mixer)
    apply = jax.jit(vdn.Mixer(config).apply)
    result = apply(params if mixer == "monotonic" else {}, values, alive, view)
    expected = [mix(config, params["params"], *team) for team in zip(values, alive, view)]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    assert result.shape == (50, 3 if mixer == "none" else 1)


def test_no_agent_s_value_lowers_the_monotonic_mix_and_agents_that_left_do_not_count(mixed):
    config, params, values, alive, view = mixed
    total = lambda values: vdn.Mixer(config).apply(params, values, alive, view).sum()
    derivatives = np.asarray(jax.jit(jax.grad(total))(values))
    assert (derivatives[alive] > 0.0).all()
    np.testing.assert_array_equal(derivatives[~alive], 0.0)
    kernel = np.abs(params["params"]["weights"]["kernel"])
    assert (np.asarray(params["params"]["weights"]["kernel"]) < 0).any() and kernel.any()


def test_the_monotonic_mixer_begins_near_the_sum_whatever_the_view():
    rng = np.random.default_rng(1)
    values, alive = rng.normal(size=(500, 3)), np.ones((500, 3), bool)
    mixer = vdn.Mixer(TINY.replace(mixing_size=64))
    apply = jax.jit(mixer.apply)
    params = jax.jit(mixer.init)(jax.random.key(0), values, alive, np.zeros((500, 4)))
    for view in (np.zeros((500, 4)), rng.normal(size=(500, 4))):
        result = np.asarray(apply(params, values, alive, view)[:, 0])
        sums = values.sum(1)
        assert np.corrcoef(result, sums)[0, 1] > 0.8
        ratio = np.abs(result[sums > 0.5] / sums[sums > 0.5]).mean()
        assert 0.3 < ratio < 2.0, ratio
        np.testing.assert_array_equal(apply(params, 0.0 * values, alive, view), 0.0)


# --- an update --------------------------------------------------------------------------------

PLAIN = TINY.replace(
    num_envs=4,
    num_steps=10,
    total_timesteps=3 * 40,
    update_epochs=1,
    learning_rate=0.0,  # each minibatch uses the same parameters
    gamma=0.9,
    q_lambda=0.6,
    reward_scale=0.5,
    eps_start=0.5,
    eps_end=0.5,
    normalize_obs=True,
    clip_obs=1.0,
    num_eval_episodes=0,
)


class Paid(Crowd):
    """All agents get the reward of the last one, and each a bonus, as if it were shaped."""

    shared_reward = True

    def step_env(self, key, state, action, params):
        x, state, reward, *rest = super().step_env(key, state, action, params)
        return x, state, reward[-1] + jnp.array([0.0, 0.5]), *rest


ARRANGEMENTS = {
    "monotonic, world state, gru": (
        dict(mixer="monotonic", normalize_obs=False),  # never called for world states
        Crowd(False, world=True),
    ),
    "monotonic, all observations, lstm, shared rewards": (
        dict(mixer="monotonic", cell="lstm", agent_ids=False, previous_inputs=False),
        Paid(False, world=False),
    ),
    "none, no memory": (
        dict(mixer="none", cell="none", previous_inputs=False, agent_ids=False, num_minibatches=1),
        Crowd(False, world=False),
    ),
    "none, no memory, shared rewards": (
        dict(mixer="none", cell="none", previous_inputs=False),
        Paid(False, world=False),
    ),
    "sum, no memory, shared rewards": (
        dict(mixer="sum", cell="none", previous_inputs=False),
        Paid(False, world=False),
    ),
    "sum, mingru": (dict(mixer="sum", cell="mingru"), Crowd(False, True)),
}


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def symlog(x):
    return np.sign(x) * np.log(1.0 + np.abs(x))


class Plain:
    """The metrics of the next update of a state, agent by agent and step by step."""

    def __init__(self, config, env, params, state):
        self.config, self.env, self.policy = config, env, jax.tree.map(np.asarray, state.policy)
        steps = self.play(params, state)
        errors, values = [], []
        for e in range(config.num_envs):
            self.learn([step[e] for step in steps], errors, values)
        self.loss, self.value = 0.5 * np.mean(np.square(errors)), np.mean(values)
        self.there = sum(there for step in steps for one in step for there in one["alive"])
        self.ends = [[one["terminated"], one["truncated"]] for step in steps for one in step]

    def normal(self, stats, x):
        clip = self.config.clip_obs
        return np.clip((np.asarray(x) - stats.mean) / np.sqrt(stats.var + 1e-8), -clip, clip)

    def inputs(self, observation, agent, memory):
        parts = [self.seen(observation)]
        if self.config.agent_ids:
            parts.append(np.eye(2)[agent])
        if self.config.previous_inputs:
            parts += [memory["action"], [symlog(memory["reward"])]]
        return np.concatenate(parts)

    def look(self, x, memory):
        """The memory after an input, and values."""
        params, c, memory = self.policy.params.agent["params"], self.config, dict(memory)
        x = dense(params["Dense_0"], x)
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-6)
        x = np.maximum(x * params["LayerNorm_0"]["scale"] + params["LayerNorm_0"]["bias"], 0.0)
        if c.cell != "none":
            gates, h = dense(params["gates"], x), memory["hidden"]
            if c.cell == "mingru":
                z, new = np.split(gates, 2)
                z = sigmoid(z - c.forget_bias)
                h = (1.0 - z) * h + z * new
            elif c.cell == "gru":
                (r, z, n), (hr, hz, hn) = (np.split(y, 3) for y in (gates, h @ params["memory"]))
                z = sigmoid(z + hz + c.forget_bias)
                h = z * h + (1.0 - z) * np.tanh(n + sigmoid(r + hr) * hn)
            else:
                i, f, g, o = np.split(gates + h @ params["memory"], 4)
                kept = sigmoid(f + c.forget_bias) * memory["cell"] + sigmoid(i) * np.tanh(g)
                h, memory["cell"] = sigmoid(o) * np.tanh(kept), kept
            x = memory["hidden"] = h
        return memory, dense(params["head"], x)

    def fresh(self):
        zeros = np.zeros(self.config.memory_size)
        return dict(hidden=zeros, cell=zeros, action=np.zeros(3), reward=0.0)

    def seen(self, x):
        return self.normal(self.policy.obs_stats, x) if self.config.normalize_obs else x

    def view(self, observation, world):
        if world is None:
            return np.concatenate([self.seen(x) for x in observation])
        return self.normal(self.policy.world_stats, world)

    def play(self, params, state):
        """Every step of each environment, with the file's own random numbers."""
        c, batch = self.config, envs.batch(self.env, self.config.num_envs, self.config.num_steps)
        _, start, keys, noise = jax.random.split(state.rollout_rng, 4)
        noise = arrays(parts.epsilon_noise(noise, (c.num_steps, c.num_envs, 2), 3))
        env_state = jax.jit(batch.refill)(start, state.env_state, params)
        alive, steps, observation = np.asarray(state.alive), [], np.asarray(state.observation)
        advance, greedy = jax.jit(batch.step), jax.jit(vdn.epsilon_greedy)
        known = {k: np.asarray(v) for k, v in state.memory._asdict().items() if v is not None}
        self.memory = [
            [self.fresh() | {k: v[e, i] for k, v in known.items()} for i in range(2)]
            for e in range(c.num_envs)
        ]
        central = hasattr(self.env, "world_state") and c.mixer == "monotonic"

        @jax.jit
        def look(state):
            of_world = batch.world_state(state, params) if central else None
            return batch.action_mask(state, params), of_world

        for t, key in enumerate(jax.random.split(keys, c.num_steps)):
            mask, world = arrays(look(env_state))
            looked = [
                [self.look(self.inputs(observation[e, i], i, m), m) for i, m in enumerate(two)]
                for e, two in enumerate(self.memory)
            ]
            values = np.array([[q for _, q in two] for two in looked])
            drawn = jax.tree.map(lambda x: x[t], noise)  # noqa: B023
            action = np.asarray(greedy(values.astype(np.float32), 0.5, drawn, mask))
            after, env_state, *rest = advance(key, env_state, action, params)
            after, reward, terminated, truncated, info = arrays((after, *rest))
            found = []
            for e in range(c.num_envs):
                own = lambda x, e=e: None if x is None else x[e]
                one = dict(
                    observation=own(observation), world=own(world), values=values[e],
                    mask=mask[e], action=own(action), reward=own(reward), alive=alive[e],
                    terminated=bool(terminated[e]), truncated=bool(truncated[e]),
                    final=own(info["final_observation"]), final_alive=own(info["alive"]),
                    final_mask=own(info["final_action_mask"]),
                    final_world=own(info["final_world_state"] if central else None), memory=[],
                )  # fmt: skip
                for i in range(2):
                    did = dict(action=np.eye(3)[one["action"][i]], reward=one["reward"][i])
                    one["memory"].append(looked[e][i][0] | did)
                found.append(one)
                ended = one["terminated"] or one["truncated"]
                self.memory[e] = [self.fresh() if ended else m for m in one["memory"]]
            steps.append(found)
            done = terminated | truncated
            alive = np.where(done[:, None], True, info["alive"])
            observation = after
        return steps

    def learn(self, steps, errors, values):
        """The errors of one environment's values, and the largest values at each step."""
        c, params, target = self.config, self.policy.params.mixer.get("params"), None
        for t, step in reversed(list(enumerate(steps))):
            best = [np.max(q[m]) for q, m in zip(step["values"], step["mask"])]
            chosen = [q[a] for q, a in zip(step["values"], step["action"])]
            next_best = []
            for i, (x, memory) in enumerate(zip(step["final"], step["memory"])):
                _, q = self.look(self.inputs(x, i, memory), memory)
                next_best.append(np.max(q[step["final_mask"][i]]))
            view = self.view(step["observation"], step["world"])
            final_view = self.view(step["final"], step["final_world"])
            alive, final_alive = step["alive"], step["final_alive"]
            if c.mixer == "none" and hasattr(self.env, "shared_reward"):
                alive = final_alive = np.ones(2, bool)
            now = lambda q: mix(c, params, q, alive, view)  # noqa: B023
            then = mix(c, params, next_best, final_alive, final_view)
            reward, over = step["reward"], np.full(len(then), step["terminated"])
            cut = over | step["truncated"]
            if c.mixer == "none":
                over, cut = over | ~final_alive, cut | ~final_alive
            elif hasattr(self.env, "shared_reward"):
                reward = np.array([0.5 * reward[0] + 0.5 * reward[1]])
            else:
                reward = np.array([reward[0] + reward[1]])
            later = then if t + 1 == len(steps) else np.where(cut, then, target)
            ahead = np.where(over, 0.0, (1.0 - c.q_lambda) * then + c.q_lambda * later)
            target = c.reward_scale * reward + c.gamma * ahead
            counts = alive if c.mixer == "none" else [True]
            errors += list((now(chosen) - target)[counts])
            values += list(now(best)[counts])


@functools.cache
def updates(arrangement):
    """Two updates: config, environment, states before and after the second one, metrics."""
    change, env = ARRANGEMENTS[arrangement]
    config, params = PLAIN.replace(**change), CrowdParams()
    learner = vdn.learner(config, env, params)
    init, update = programs(learner)
    state, _ = update(init(jax.random.key(3)))
    large = lambda x: (
        x + np.sin(np.arange(x.size, dtype=np.float32)).reshape(x.shape) / (2 * len(x))
    )
    weights = jax.tree.map(large, arrays(state.policy.params))
    state = state.replace(policy=state.policy.replace(params=weights))
    after, metrics = update(again(state))
    return config, env, state, after, metrics


SELDOM = {"monotonic, all observations, lstm, shared rewards", "sum, mingru"}
ALL = [pytest.param(name, marks=[pytest.mark.slow] * (name in SELDOM)) for name in ARRANGEMENTS]


@pytest.mark.parametrize("arrangement", ALL)
def test_an_update_is_that_of_plain_lists(arrangement):
    """Checked with masks, deaths, both kinds of ends, memories, and normalisation."""
    config, env, state, after, metrics = updates(arrangement)
    knows = again(state)
    knows = knows.replace(policy=knows.policy.replace(world_stats=after.policy.world_stats))
    plain = Plain(config, env, CrowdParams(), knows)
    terminated, truncated = np.array(plain.ends).T
    assert terminated.any() and truncated.any() and plain.there < 0.95 * 2 * len(plain.ends)
    assert metrics["loss"].weight == 1
    np.testing.assert_allclose(metrics["loss"].total, plain.loss, rtol=1e-4)
    np.testing.assert_allclose(metrics["mean_value"], plain.value, rtol=1e-4)
    for name, found in after.memory._asdict().items():
        if found is not None:
            expected = [[one[name] for one in two] for two in plain.memory]
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
    stats, before = after.policy.obs_stats, state.policy.obs_stats
    assert stats.count - before.count == (plain.there if config.normalize_obs else 0)
    if config.mixer == "monotonic" and hasattr(env, "world_state"):
        assert after.policy.world_stats.count == 80
        assert not np.allclose(after.policy.world_stats.mean, state.policy.world_stats.mean)
    else:
        assert after.policy.world_stats is None


@pytest.mark.parametrize("arrangement", ["monotonic, world state, gru", "none, no memory"])
def test_a_policy_s_memory_is_that_of_training(arrangement):
    """Checked step by step, with rewards passed back to the policy."""
    config, env, state, *_ = updates(arrangement)
    plain = Plain.__new__(Plain)
    plain.config, plain.policy = config, jax.tree.map(np.asarray, state.policy)
    policy = jax.jit(lambda *args: vdn.make_policy(config, env, CrowdParams())(state, *args))
    rng, memory, expected = np.random.default_rng(0), None, [plain.fresh(), plain.fresh()]
    for _ in range(4):
        x, reward = rng.normal(size=(2, 3)).astype(np.float32), rng.normal(size=2)
        mask = np.array([[True, False, True], [False, True, True]])
        action, memory = policy(x, memory, None, mask)
        memory = rewarded(memory, reward)
        for i in range(2):
            after, values = plain.look(plain.inputs(x[i], i, expected[i]), expected[i])
            assert action[i] == np.argmax(np.where(mask[i], values, -np.inf))
            expected[i] = after | dict(action=np.eye(3)[action[i]], reward=reward[i])
    if config.cell == "none":
        assert not jax.tree.leaves(memory)
    else:
        hidden = [one["hidden"] for one in expected]
        np.testing.assert_allclose(memory.hidden, hidden, rtol=1e-3, atol=1e-5)


def test_a_policy_with_a_key_explores(vmapped_keys):
    config, env, state, *_ = updates("none, no memory")
    policy = vdn.make_policy(config.replace(eps_end=1.0), env, CrowdParams())
    keys = jax.random.split(jax.random.key(1), 400)
    given = state, jnp.ones((2, 3)), None
    act = jax.jit(jax.vmap(lambda key: policy(*given, key, jnp.ones((2, 3), bool))[0]))
    shares = np.stack([np.bincount(x, minlength=3) / 400 for x in np.asarray(act(keys)).T])
    np.testing.assert_allclose(shares, 1.0 / 3.0, atol=0.08)


class One(Wrapper):
    """An environment of one agent, in the interface of several."""

    num_agents = 1

    def reset_env(self, key, params):
        observation, state = self.env.reset_env(key, params)
        return observation[None], state

    def step_env(self, key, state, action, params):
        x, state, reward, *rest = self.env.step_env(key, state, action[0], params)
        return x[None], state, jnp.float32(reward)[None], *rest


def test_one_agent_learns_as_in_pqn():
    """From the same parameters, through three updates of several epochs and minibatches."""
    env, params = envs.make("CartPole-v1")
    same = dict(total_timesteps=48, num_envs=2, num_steps=8, num_minibatches=2, update_epochs=2)
    same |= dict(hidden_sizes=(8, 4), num_evals=3, num_eval_episodes=0, learning_rate=1e-2)
    same |= dict(gamma=0.9, reward_scale=0.3, eps_end=0.1, exploration_fraction=0.7)
    config = vdn.Config(mixer="sum", agent_ids=False, **same)
    init, update = programs(vdn.learner(config, One(env), params))
    their_init, their_update = programs(pqn.learner(pqn.Config(**same), env, params))
    state, other = init(jax.random.key(0)), their_init(jax.random.key(0))

    def renamed(state):
        weights = dict(state.policy.params.agent["params"])
        weights["Dense_2"] = weights.pop("head")
        return {"params": weights}

    other = other.replace(policy=other.policy.replace(params=renamed(state)))
    for _ in range(3):
        (state, metrics), (other, expected) = update(state), their_update(other)
        for name in METRICS:
            assert_close(getattr(metrics[name], "total", metrics[name]), expected[name])
        assert_close(state.observation[:, 0], other.observation)
    assert_close(renamed(state), other.policy.params, rtol=1e-3, atol=1e-5)


# --- games ------------------------------------------------------------------------------------


@struct.dataclass
class GameState:
    place: jax.Array  # 0 at first, then 1 or 2
    time: jax.Array


@struct.dataclass
class GameParams:
    payoffs: jax.Array  # (2, 3, 3)
    max_steps_in_episode: int = 10


class Game(environment.Environment):
    """In the first step the first agent chooses one of two games: action 0, or any other action.

    Both agents play it in the second step and are paid the same (Rashid et al. 2018, section 5).
    """

    num_agents, shared_reward, name = 2, True, "Game"

    @property
    def default_params(self):
        return GameParams(jnp.zeros((2, 3, 3)))

    def reset_env(self, key, params):
        state = GameState(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
        return self.observe(state), state

    def step_env(self, key, state, action, params):
        payoff = params.payoffs[state.place - 1, action[0], action[1]]
        over = state.time == 1
        reward = jnp.full(2, jnp.where(over, payoff, 0.0))
        place = jnp.where(state.time == 0, 1 + (action[0] > 0), state.place)
        state = GameState(place, state.time + 1)
        return self.observe(state), state, reward, over, {}

    def observe(self, state):
        return jnp.tile(jax.nn.one_hot(state.place, 3), (2, 1))

    def action_space(self, params):
        return spaces.Discrete(3)

    def observation_space(self, params):
        return spaces.Box(0.0, 1.0, (3,))


# The sum of two agents' values nearest to the second game is 5.3 at its 8, below the first game's
# 7. There is a third action, as below.
TWO_STEPS = np.array([np.full((3, 3), 7.0), [[0, 0, 1], [0, 0, 1], [1, 1, 8]]], np.float32)
# Son et al. 2019, table 1a: the best action of an agent depends on the other agent's.
NOT_MONOTONIC = np.stack([[[8, -12, -12], [-12, 0, 0], [-12, 0, 0]]] * 2).astype(np.float32)
GAMES = jnp.stack([TWO_STEPS, NOT_MONOTONIC])


@pytest.fixture(scope="module")
def played():
    """The final returns of two seeds of VDN and QMIX in both games, (games, seeds)."""
    config = vdn.Config(
        total_timesteps=250 * 256,
        num_envs=32,
        num_steps=8,
        num_minibatches=2,
        agent_ids=True,
        mixing_size=8,
        gamma=0.99,
        q_lambda=0.0,  # all actions are random ones
        eps_end=1.0,
        learning_rate=1e-2,
        hidden_sizes=(32,),
        num_evals=1,
        num_eval_episodes=1,
        eval_at_start=False,
    )
    keys = jax.random.split(jax.random.key(0), 2)

    def pay(mixer, payoffs, key):
        train = vdn.make_train(config.replace(mixer=mixer), Game(), GameParams(payoffs))
        return train(key)[1]["eval_return"][0, 0, 0]

    def play(mixer):
        over_seeds = jax.vmap(functools.partial(pay, mixer), (None, 0))
        return np.asarray(jax.jit(jax.vmap(over_seeds, (0, None)))(GAMES, keys))

    with jax.debug_key_reuse(False):  # see conftest.vmapped_keys
        return {mixer: play(mixer) for mixer in ("sum", "monotonic")}


@pytest.mark.slow
def test_a_monotonic_mixer_solves_games_that_a_sum_cannot(played):
    np.testing.assert_array_equal(played["sum"][0], 7.0)
    np.testing.assert_array_equal(played["monotonic"][0], 8.0)


@pytest.mark.slow
def test_no_mixer_finds_actions_that_are_best_only_together(played):
    assert (played["sum"][1] < 8.0).all() and (played["monotonic"][1] < 8.0).all()


# --- agents that leave, and masks -------------------------------------------------------------


PROBE = vdn.Config(
    total_timesteps=100 * 256,
    num_envs=16,
    num_steps=16,
    mixer="none",
    agent_ids=True,
    num_minibatches=4,
    learning_rate=1e-2,
    gamma=0.5,
    reward_scale=0.1,
    hidden_sizes=(16,),
    activation="tanh",
    num_evals=1,
    num_eval_episodes=0,
    eval_at_start=False,
)


@pytest.mark.slow  # updates of plain lists have agents that leave
@pytest.mark.parametrize("mixer", ["none", "sum"])
def test_an_agent_that_left_has_terminated_and_counts_in_no_mix(mixer):
    """Reward 1 for ever, cut by time; agent 1 leaves after its first step and is paid 100 then.

    Alone, its value is 1 and the other agent's 10; the team's is 101 without end.
    """
    config = PROBE.replace(mixer=mixer)
    env, params = Pair(), PairParams(task=LEAVING)
    state, metrics = vdn.make_train(config, env, params)(jax.random.key(0))
    x = jnp.array([[1.0, 1.0], [0.0, 0.0]])[:, None, :, None]  # at first, later
    inputs = vdn.make_inputs(config, state.policy, x, ())
    _, values = vdn.QNetwork(config, 2).apply(
        state.policy.params.agent, vdn.parts.Memory(None, None), inputs, None
    )
    values = np.asarray(values.max(-1)[:, 0])
    if mixer == "none":  # half of the future counts
        np.testing.assert_allclose(values[:, 0], 0.1 * 2.0, rtol=0.1)
        np.testing.assert_allclose(values[0, 1], 0.1, rtol=0.1)
    else:
        np.testing.assert_allclose(values[1, 0], 0.1 * 101.0 * 2.0, rtol=0.05)
        np.testing.assert_allclose(values[0].sum(), 0.1 * (2.0 + 101.0), rtol=0.05)
    assert np.isfinite(metrics["loss"]).all()


class Gone(Pair):
    """Both agents leave in the first of ten steps."""

    def step_env(self, key, state, action, params):
        *rest, _ = super().step_env(key, state, action, params)
        return *rest, {"alive": jnp.zeros(2, bool)}


def test_nothing_is_learned_without_an_agent():
    """The second rollout of five steps has nobody in it; momentum moves no parameter."""
    config = PROBE.replace(num_steps=5, num_minibatches=1, total_timesteps=3 * 80)
    params = jax.tree.map(jnp.asarray, PairParams(task=LEAVING))
    init, update = programs(vdn.learner(config, Gone(), params))
    first, metrics = update(init(jax.random.key(0)))
    assert metrics["loss"].weight == 1
    second, metrics = update(again(first))
    assert metrics["loss"].weight == metrics["grad_norm"].weight == 0
    assert metrics["current_learning_rate"] == (0.0, 0.0)
    learned = lambda state: (state.policy.params, state.opt_state)
    assert_same(learned(first), learned(second))


class Pictures(Pair):
    """Observations are images (3, 4, 1)."""

    def reset_env(self, key, params):
        x, state = super().reset_env(key, params)
        return jnp.tile(x[:, None, None], (1, 3, 4, 1)), state

    def step_env(self, key, state, action, params):
        x, *rest = super().step_env(key, state, action, params)
        return jnp.tile(x[:, None, None], (1, 3, 4, 1)), *rest

    def observation_space(self, params):
        return spaces.Box(-1.0, 1.0, (3, 4, 1))


def test_images_are_convolved_and_ids_and_last_steps_follow():
    learner = vdn.learner(TINY, Pictures(), PairParams())
    state = jax.eval_shape(learner.init, jax.random.key(0))
    params = state.policy.params.agent["params"]
    assert params["Convolutions_0"]["Conv3x3_0"]["kernel"].shape == (9, 16)
    assert params["Dense_0"]["kernel"].shape == (1 * 2 * 16 + 2 + 2 + 1, 8)
    assert state.policy.params.mixer["params"]["bias"]["kernel"].shape == (2 * 12, 4)


# --- the contract -----------------------------------------------------------------------------

METRICS = {"loss", "grad_norm", "mean_value", "epsilon"}
CASE = Case(
    module=vdn,
    tiny=TINY,
    metrics=METRICS,
    pinned={
        "loss": [0.710961, 0.64028, 0.335007],
        "grad_norm": [2.89483, 2.20697, 0.944654],
        "mean_value": [0.00232053, 0.0165392, 0.0228723],
    },
    refused=(
        (dict(num_minibatches=4), "num_minibatches=4 does not divide num_envs=2, .* 1, 2 would do"),
        (
            dict(num_minibatches=3, cell="none", previous_inputs=False),
            "num_minibatches=3 does not divide num_envs . num_steps = .* 16; 1, 2, 4, 8 would do",
        ),
        (dict(mixer="mean"), "mixer='mean': give none or sum or monotonic"),
        (dict(mixer="qmix"), "mixer='qmix': IQL is none, VDN is sum, QMIX is monotonic"),
        (dict(cell="rnn"), "cell='rnn': give none or lstm or gru or mingru or minlstm or lru"),
        (dict(mixing_size=0), "mixing_size=0"),
        (dict(memory_size=0), "memory_size=0"),
        (dict(cell="none"), "previous_inputs=True needs a memory; cell='gru' would do"),
        (dict(env="CartPole-v1", env_settings=()), "has one agent .*, pqn, .* take it"),
        (dict(env="Pursuit-v0", env_settings=()), "has actions .*; vdn takes Discrete"),
    ),
    world=WORLD,
    swept_world=(WORLD[0], PairParams(task=LEAVING)),
    other={"adam_eps": 1e-1, "max_grad_norm": 1e-2},
    probe=PROBE,
    per_agent=False,
)


def test_defaults_are_a_team_that_can_be_trained():
    config = vdn.Config()
    assert envs.make(config.env)[0].num_agents == 3
    vdn.make_train(config)


def test_kernels_are_orthogonal_with_their_gains(slices):
    check_kernels(slices[0][0].policy.params.agent["params"])
