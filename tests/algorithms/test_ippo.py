"""IPPO: independence, sharing, central critics, agents that leave, and the contract of the file."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import envs
from algorithms import ippo, parts, ppo
from tests.algorithms.cases import Case, again, assert_close, assert_same
from tests.algorithms.test_ppo import random_rollout
from tests.algorithms.test_teams import (
    OF_CASES,
    ONCE,
    OPPOSITE,
    PLAY,
    SEEDS,
    Still,
    arrays,
    train_probes,
)
from tests.probe import (
    LEAVING,
    OTHERS,
    OWN,
    Pair,
    PairParams,
    environment,
    spaces,
    struct,
)

TINY = ippo.Config(
    total_timesteps=3 * 16,
    num_envs=2,
    num_steps=8,
    num_minibatches=2,
    update_epochs=2,
    critic_epochs=3,
    hidden_sizes=(8,),
    num_evals=3,
    num_eval_episodes=2,
)
PROBE = ippo.Config(**PLAY)
WORLD = Pair(), PairParams()


# --- formulas ---------------------------------------------------------------------------------


def test_terms_are_those_of_ppo():
    rng = np.random.default_rng(1)
    a, b, c = rng.normal(size=(3, 200)).astype(np.float32)
    for mine, theirs in (
        (ippo.clipped_surrogate(a, b, 0.2), ppo.clipped_surrogate(a, b, 0.2)),
        (ippo.value_error(a, b, c, 0.3, True), ppo.value_error(a, b, c, 0.3, True)),
        (ippo.value_error(a, b, c, 0.3, False), ppo.value_error(a, b, c, 0.3, False)),
        (ippo.kl_estimate(a), ppo.kl_estimate(a)),
    ):
        np.testing.assert_allclose(mine.mean(), theirs, rtol=1e-6)
    rollout = random_rollout(3)
    np.testing.assert_array_equal(ippo.gae(*rollout, 0.9, 0.8), ppo.gae(*rollout, 0.9, 0.8))


def test_learning_rates_are_linear_in_the_epochs_of_each_network():
    def rates(epochs, update, epoch, rate=0.5, updates=5, **settings):
        steps = updates * TINY.num_envs * TINY.num_steps
        config = TINY.replace(num_minibatches=4, total_timesteps=steps, num_evals=1, **settings)
        task = ippo.Task(loss=None, optimizer=None, learning_rate=rate, epochs=epochs, weights=None)
        return ippo.learning_rates(config, task, jnp.int32(update), epoch)

    for epochs in (2, 3):
        run = [rates(epochs, u, e) for u in range(5) for e in range(epochs)]
        expected = 0.5 * (1.0 - np.arange(20 * epochs) / (20 * epochs))
        np.testing.assert_allclose(np.concatenate(run), expected, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(rates(epochs, 7, 0), np.zeros(4))
    np.testing.assert_array_equal(rates(2, 3, 1, anneal_lr=False), 0.5)
    updates = 10**10 // 16  # no counter wraps
    left = rates(64, updates - updates // 4, 0, 1.0, updates)
    np.testing.assert_allclose(left, 0.25, rtol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_a_running_mean_covers_about_the_last_share_of_the_updates(share):
    params = np.random.default_rng(2).normal(size=(40, 3)).astype(np.float32)
    mean = np.zeros(3, np.float32)
    for number, x in enumerate(params, 1):
        mean = ippo.running_mean(mean, x, number, share)
    weights = np.zeros(40)
    for number in range(1, 41):
        rate = 1.0 / max(1.0, share * number)
        weights *= 1.0 - rate
        weights[number - 1] = rate
    np.testing.assert_allclose(mean, weights @ params, rtol=1e-4, atol=1e-6)
    if share == 1.0:
        np.testing.assert_allclose(mean, params.mean(0), rtol=1e-4, atol=1e-6)
    age = weights @ np.arange(39, -1, -1)
    assert abs(age - 40 * share / (1 + share)) < 1.0


def test_inputs_are_own_or_all_observations_and_the_agent_s_id():
    x = np.arange(4 * 3 * 2, dtype=np.float32).reshape(4, 3, 2)
    world, ids = -np.arange(4 * 5, dtype=np.float32).reshape(4, 5), np.tile(np.eye(3), (4, 1, 1))
    stats = parts.RunningStatistics(jnp.arange(6.0).reshape(3, 2), jnp.full((3, 2), 4.0), 1.0)
    world_stats = parts.RunningStatistics(jnp.ones(5), jnp.full(5, 0.25), 1.0)
    policy = ippo.PolicyState(None, stats, world_stats)
    same = lambda result, *expected: [
        np.testing.assert_allclose(a, b, rtol=1e-6) for a, b in zip(result, expected, strict=True)
    ]
    for_all = lambda x: np.repeat(x.reshape(4, 1, -1), 3, axis=1)
    same(ippo.make_inputs(TINY, policy, x), x, x)
    config = TINY.replace(central_critic=True)
    same(ippo.make_inputs(config, policy, x), x, for_all(x))
    same(ippo.make_inputs(config, policy, x, world), x, for_all(world))
    config = config.replace(agent_ids=True, share_params=True)
    both = [np.concatenate([y, ids], axis=2) for y in (x, for_all(world))]
    same(ippo.make_inputs(config, policy, x, world), *both)
    config = TINY.replace(central_critic=True, normalize_obs=True, clip_obs=7.5)
    own = np.clip((x - np.arange(6.0).reshape(3, 2)) / 2.0, -7.5, 7.5)
    same(ippo.make_inputs(config, policy, x), own, for_all(own))
    normal_world = np.clip((world - 1.0) * 2.0, -7.5, 7.5)
    same(ippo.make_inputs(config, policy, x, world), own, for_all(normal_world))


# --- an update, agent by agent ----------------------------------------------------------------


@struct.dataclass
class CrowdState:
    x: jax.Array  # (2, 3)
    alive: jax.Array  # (2,)
    time: jax.Array


@struct.dataclass
class CrowdParams:
    max_steps_in_episode: int = 4


class Crowd(environment.Environment):
    """Two agents that act on noise and sometimes leave; episodes terminate or are cut."""

    num_agents = 2

    def __init__(self, continuous: bool, world: bool):
        super().__init__()
        self.continuous = continuous
        if continuous:
            self.action_dimensions = np.array([[True, False], [True, True]])
        else:
            self.action_mask = lambda state, params: state.x > -0.5  # at times one action
        if world:
            self.world_state = lambda state, params: 2.0 * state.x.ravel()[:4]

    @property
    def default_params(self):
        return CrowdParams()

    @property
    def name(self):
        return "Crowd"

    def draw(self, key):
        x = jnp.clip(jax.random.normal(key, (2, 3)), -3.0, 3.0)
        return x.at[:, 0].set(jnp.abs(x[:, 0]))  # one action is always allowed

    def reset_env(self, key, params):
        state = CrowdState(self.draw(key), jnp.ones(2, bool), jnp.zeros((), jnp.int32))
        return state.x, state

    def step_env(self, key, state, action, params):
        draw, leave, end = jax.random.split(key, 3)
        taken = action[:, 0] if self.continuous else action
        reward = state.x[:, 0] - taken * state.x[:, 1]
        alive = state.alive & ~jax.random.bernoulli(leave, 0.25, (2,))
        state = CrowdState(self.draw(draw), alive, state.time + 1)
        return state.x, state, reward, jax.random.bernoulli(end, 0.15), {"alive": alive}

    def action_space(self, params):
        return spaces.Box(-1.0, 1.0, (2,)) if self.continuous else spaces.Discrete(3)

    def observation_space(self, params):
        return spaces.Box(-3.0, 3.0, (3,))


class Squad(Crowd):
    """A team with one reward."""

    shared_reward = True

    def step_env(self, key, state, action, params):
        x, state, reward, *rest = super().step_env(key, state, action, params)
        return x, state, jnp.full(2, reward.mean()), *rest


PLAIN = ippo.Config(
    total_timesteps=3 * 40,
    **ONCE,
    num_steps=20,
)
ARRANGEMENTS = {
    "independent, continuous, all observations": (
        dict(central_critic=True, minibatch_of="trajectories"),
        Crowd(continuous=True, world=False),
    ),
    "shared, discrete, world state": (
        dict(central_critic=True, share_params=True, agent_ids=True),
        Squad(continuous=False, world=True),
    ),
    "independent, discrete, own observations": ({}, Crowd(continuous=False, world=False)),
}


def advantages_of(rewards, values, next_values, terminated, done, gamma, gae_lambda):
    """One agent's advantages in one environment, by the plain recursion."""
    advantages, advantage = np.zeros(len(rewards)), 0.0
    for t in reversed(range(len(rewards))):
        future = 0.0 if terminated[t] else gamma * next_values[t]
        rest = 0.0 if done[t] else gamma * gae_lambda * advantage
        advantages[t] = advantage = rewards[t] + future - values[t] + rest
    return advantages


class Plain:
    """The second of three updates, in plain lists of the samples of agents that are there."""

    def __init__(self, config, env, params, state):
        self.config, self.env, self.state = config, env, arrays(state)
        self.space = parts.ActionSpace(env.action_space(params))
        actor, critic = ippo.Actor(config, self.space), ippo.Critic(config)
        self.actor, self.critic = jax.jit(actor.apply), jax.jit(critic.apply)
        learners = [[0, 1]] if config.share_params else [[0], [1]]
        steps = self.play(params)
        self.samples = [self.samples_of(steps, number, of) for number, of in enumerate(learners)]
        self.steps = steps

    def own(self, tree, agent):
        return jax.tree.map(lambda x: x[0 if self.config.share_params else agent], tree)

    def inputs(self, observation, world, agent):
        """Inputs of actor and critic, for all environments."""
        x, everything = observation[:, agent], observation.reshape(len(observation), -1)
        critic_x = x
        if self.config.central_critic:
            critic_x = everything if world is None else world
        if self.config.agent_ids:
            identity = np.tile(np.eye(2)[agent], (len(x), 1))
            x, critic_x = (np.concatenate([y, identity], 1) for y in (x, critic_x))
        return x, critic_x

    def play(self, params):
        """Every step of the rollout, with the file's own random numbers."""
        config, env, state = self.config, self.env, self.state
        batch, size = (
            envs.batch(env, config.num_envs, config.num_steps),
            self.space.size,
        )
        _, start, keys, noise = jax.random.split(state.rollout_rng, 4)
        draw = jax.random.normal if env.continuous else jax.random.gumbel
        noise = np.asarray(draw(noise, (config.num_steps * config.num_envs * 2 * size,)))
        shared = (config.num_steps, config.num_envs, 2, size)
        noise = noise.reshape(shared if config.share_params else [shared[i] for i in (0, 2, 1, 3)])
        noise = noise if config.share_params else noise.swapaxes(1, 2)
        env_state = jax.jit(batch.refill)(start, state.env_state, params)
        alive, steps, observation = np.ones((config.num_envs, 2), bool), [], state.observation
        advance, world = jax.jit(batch.step), hasattr(env, "world_state")

        @jax.jit
        def look(state):
            of_world = batch.world_state(state, params) if world else None
            return batch.action_mask(state, params), of_world

        for key, drawn in zip(jax.random.split(keys, config.num_steps), noise):
            (mask, before), actions = arrays(look(env_state)), []
            if env.continuous:
                mask = np.tile(env.action_dimensions, (config.num_envs, 1, 1))
            for i in range(2):
                x, _ = self.inputs(observation, before, i)
                out = self.actor(self.own(state.policy.params, i), x)
                out = np.asarray(out.mean if env.continuous else out.logits)
                if env.continuous:
                    actions.append(out + drawn[:, i])  # standard deviations start at 1
                else:
                    actions.append(np.argmax(np.where(mask[:, i], out, -np.inf) + drawn[:, i], 1))
            action = np.stack(actions, 1)
            given = np.clip(action, -1.0, 1.0) if env.continuous else action
            after, env_state, *rest = advance(key, env_state, given, params)
            after, reward, terminated, truncated, info = arrays((after, *rest))
            final_world = info["final_world_state"] if world else None
            step = dict(
                observation=observation, world=before, mask=mask, action=action, reward=reward,
                terminated=terminated[:, None] | self.left(info), alive=alive,
                truncated=np.stack([truncated] * 2, 1),
                final=info["final_observation"], final_world=final_world,
            )  # fmt: skip
            steps.append(step)
            alive = np.where((terminated | truncated)[:, None], True, info["alive"])
            observation = after
        return steps

    def left(self, info):
        """Whether the agent's return ends when it leaves; a team's does not."""
        return ~info["alive"] & (not hasattr(self.env, "shared_reward"))

    def samples_of(self, steps, learner, agents):
        """A learner's inputs, masks, actions, advantages and values, and whether the agent was
        there.

        A team's samples include steps at which the agent was not there.
        """
        config, found = self.config, []
        for i in agents:
            seen = [self.inputs(s["observation"], s["world"], i) for s in steps]
            final = [self.inputs(s["final"], s["final_world"], i)[1] for s in steps]
            params = self.own(self.state.critic_params, i)
            values = np.array([self.critic(params, critic_x) for _, critic_x in seen])
            next_values = np.array([self.critic(params, x) for x in final])
            for e in range(config.num_envs):
                pick = lambda name: np.array([s[name][e, i] for s in steps])  # noqa: B023
                done = pick("terminated") | pick("truncated")
                advantages = advantages_of(
                    0.5 * pick("reward"), values[:, e], next_values[:, e], pick("terminated"), done,
                    config.gamma, config.gae_lambda,
                )  # fmt: skip
                inputs = [np.array([s[k][e] for s in seen]) for k in (0, 1)]
                there = pick("alive")
                arrays = *inputs, pick("mask"), pick("action"), advantages, values[:, e], there
                valued = there | hasattr(self.env, "shared_reward")
                found.append([x[valued] for x in arrays])
        return [np.concatenate(x) for x in zip(*found)]

    def actor_loss(self, params, samples):
        import distrax

        of_dimensions, there = self.env.continuous, samples[-1]
        choosing = there if of_dimensions else there & (samples[2].sum(1) > 1)
        assert of_dimensions or there.sum() > choosing.sum() > 0
        x, _, mask, action, advantages, *_ = [x[choosing] for x in samples]
        out = self.actor(params, x)
        if self.env.continuous:
            normal = distrax.Normal(out.mean, jnp.exp(out.log_std))
            log_prob = (normal.log_prob(action) * mask).sum(1)
            entropy = (normal.entropy() * mask).sum(1)
        else:
            policy = distrax.Categorical(logits=jnp.where(mask, out.logits, -1e9))
            log_prob, entropy = policy.log_prob(action), policy.entropy()
        advantages = (advantages - advantages.mean()) / advantages.std()
        # The policy gradient theorem: at a ratio of 1 there is nothing to clip.
        return -(advantages * log_prob).mean() - self.config.ent_coef * entropy.mean(), entropy

    def critic_loss(self, params, samples):
        _, critic_x, _, _, advantages, values, _ = samples
        errors = self.critic(params, critic_x) - (advantages + values)
        return self.config.vf_coef * 0.5 * (errors**2).mean(), 0.5 * (errors**2).mean()

    def descend(self, loss, params, samples, rates, max_norm, eps):
        """Parameters after steps of Adam at these learning rates, and the first loss and
        metrics."""
        clip, adam = optax.clip_by_global_norm(max_norm), optax.scale_by_adam(eps=eps)
        moments, said = adam.init(params), []

        @jax.jit
        def step(params, moments, rate):
            (_, what), grads = jax.value_and_grad(loss, has_aux=True)(params, samples)
            clipped, _ = clip.update(grads, clip.init(params))
            direction, moments = adam.update(clipped, moments)
            params = jax.tree.map(lambda p, d: p - rate * d, params, direction)
            return params, moments, jnp.stack([what.mean(), optax.tree.norm(grads)])

        for rate in rates:
            params, moments, what = step(params, moments, rate)
            said.append(what)
        return params, np.mean(said, axis=0)

    def learn(self, learner):
        """Parameters of both networks; entropy, value loss and the norms of the gradients."""
        c, own = self.config, self.samples[learner]
        params, critic_params = (
            jax.tree.map(lambda x: x[learner], x)
            for x in (self.state.policy.params, self.state.critic_params)
        )
        rates = [c.learning_rate * 2 / 3]  # one of three updates is done
        critic_rates = [c.critic_learning_rate * (1 - k / 6) for k in (2, 3)]
        params, said = self.descend(
            self.actor_loss, params, own, rates, c.max_grad_norm, c.adam_eps
        )
        critic_params, critic_said = self.descend(
            self.critic_loss, critic_params, own, critic_rates, c.critic_max_grad_norm,
            c.critic_adam_eps,
        )  # fmt: skip
        return params, critic_params, [*said, *critic_said]


*OFTEN, OWN_OBSERVATIONS = ARRANGEMENTS


@pytest.mark.parametrize(
    "arrangement", [*OFTEN, pytest.param(OWN_OBSERVATIONS, marks=pytest.mark.slow)]
)
def test_an_update_is_that_of_plain_lists(arrangement):
    """Parameters, metrics, and the statistics, which change after learning."""
    change, env = ARRANGEMENTS[arrangement]
    config, params = PLAIN.replace(**change), CrowdParams()
    learner = ippo.learner(config, env, params)
    state = jax.jit(learner.init)(jax.random.key(3)).replace(update=jnp.int32(1))
    var = 4.0 * state.reward_scale.stats.var  # rewards become about half as large
    scale = state.reward_scale.replace(stats=state.reward_scale.stats.replace(var=var))
    state = state.replace(reward_scale=scale)
    after, metrics = arrays(jax.jit(learner.update)(again(state)))
    averages = {name: x for name, x in metrics.items() if isinstance(x, parts.Average)}
    metrics |= {name: x.total / x.weight for name, x in averages.items()}
    state = arrays(state)
    plain = Plain(config, env, params, state)
    there = np.array([s["alive"] for s in plain.steps])
    ends = [np.array([s[name] for s in plain.steps]) for name in ("terminated", "truncated")]
    cut = ends[1] & ~ends[0]
    assert not there.all() and ends[0].any() and cut[there].any()
    for number, samples in enumerate(plain.samples):
        *expected, said = plain.learn(number)
        for new, old, right in zip(
            (after.policy.params, after.critic_params),
            (state.policy.params, state.critic_params),
            expected,
        ):
            moved = lambda new, old: jax.tree.map(lambda x, y: x - y, new, old)
            of_one = lambda tree: jax.tree.map(lambda x: x[number], tree)  # noqa: B023
            assert_close(moved(of_one(new), of_one(old)), moved(right, of_one(old)), 1e-2, 2e-6)
        names = ("entropy", "grad_norm", "value_loss", "critic_grad_norm")
        result = [np.ravel(metrics[name])[number] for name in names]
        np.testing.assert_allclose(result, said, rtol=1e-3)
        np.testing.assert_allclose(
            np.ravel(metrics["mean_value"])[number], samples[5].mean(), rtol=1e-3, atol=1e-5
        )
        seen = samples[0][samples[-1], :3]
        stats = jax.tree.map(lambda x: x[number], after.policy.obs_stats)  # noqa: B023
        assert_close(stats, parts.RunningStatistics(seen.mean(0), seen.var(0), len(seen)))
        assert after.reward_scale.stats.count[number] == len(samples[0])
        assert after.reward_scale.stats.var[number] != 4.0
    if hasattr(env, "world_state"):
        world = np.concatenate([s["world"] for s in plain.steps])
        np.testing.assert_allclose(after.policy.world_stats.mean, world.mean(0), rtol=1e-4)
    else:
        assert after.policy.world_stats is None


def test_policies_act_by_the_averaged_actor_which_changes_no_learning():
    config = TINY.replace(average_actor=True, average_share=1.0)
    states, metrics = [], []
    for c in (TINY, config):
        train = ippo.make_train(c, *WORLD)
        states.append([parts.first_state(train, jax.random.key(0))])
        for _ in range(3):  # updates
            state, said = train(None, again(states[-1][-1]), 1)
            states[-1].append(state)
        metrics.append({name: x for name, x in said.items() if not name.startswith("eval")})
    plain, mine = states
    assert_same(metrics[0], metrics[1])
    for x, y in zip(plain, mine):
        assert_same(x, y.replace(policy=y.policy.replace(average=None)))
    assert_same(mine[0].policy.average, mine[0].policy.params)
    params = [state.policy.params for state in mine[1:]]
    mean = jax.tree.map(lambda *x: np.mean(x, 0), *params)
    assert_close(mine[-1].policy.average, mean, rtol=1e-4, atol=1e-6)
    as_if = plain[-1].replace(policy=plain[-1].policy.replace(params=mine[-1].policy.average))
    many = jax.random.normal(jax.random.key(1), (200, 2, 1))
    views, mask = many[0], jnp.ones((2, 2), bool)
    averaged, last, expected = (
        ippo.make_probabilities(c, *WORLD)(state, views, mask)
        for c, state in ((config, mine[-1]), (TINY, plain[-1]), (TINY, as_if))
    )
    assert_same(averaged, expected)
    assert not np.allclose(averaged, last, rtol=1e-4)
    greedy, expected = (
        jax.vmap(lambda view: ippo.make_policy(c, *WORLD)(state, view)[0])(many)  # noqa: B023
        for c, state in ((config, mine[-1]), (TINY, as_if))
    )
    assert_same(greedy, expected)


# --- probe tasks ------------------------------------------------------------------------------


SELDOM = pytest.param("continuous", marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=["discrete", SELDOM])
def probed(request):
    env = Pair(continuous=request.param == "continuous")
    return request.param, *train_probes(ippo, env, PROBE, [OWN, OTHERS, LEAVING])


def test_each_agent_learns_its_own_task(probed):
    kind, _, actions, _ = probed
    actions = np.asarray(actions[OWN]).reshape(SEEDS, 3, 2)[:, [0, 2]]
    if kind == "discrete":
        np.testing.assert_array_equal(actions, OPPOSITE)
    else:
        np.testing.assert_allclose(actions, np.array(OPPOSITE) - 0.5, atol=0.15)


def test_an_agent_that_left_has_terminated_and_counts_no_more(probed):
    """Its value is 1 (one reward), though it would be paid 100 later.

    The other agent's value is that of an endless task, because the time limit only truncates.
    """
    inputs = jnp.array([[[0.0]], [[1.0]]])  # agent 0 later, and agent 1 at the start
    of_seeds = jax.vmap(jax.vmap(ippo.Critic(PROBE).apply), (0, None))
    values = of_seeds(jax.tree.map(lambda x: x[LEAVING], probed[1]), inputs)
    np.testing.assert_allclose(values[:, 0, 0], 1.0 / (1.0 - 0.9), rtol=0.05)
    np.testing.assert_allclose(values[:, 1, 0], 1.0, atol=0.1)
    mean_value = np.asarray(probed[3]["mean_value"][LEAVING])[:, -1]
    assert (mean_value[:, 1] < 1.5).all() and (mean_value[:, 0] > 2.0).all()


def test_a_critic_without_world_state_does_not_know_others_observations(probed):
    assert (probed[3]["explained_variance"][OTHERS] < 0.1).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [dict(minibatch_of="trajectories"), dict(share_params=True, agent_ids=True)],
    ids=["independent, trajectories", "shared, ids"],
)
def test_a_central_critic_knows_and_actors_learn_in_every_arrangement(pair, change):
    """With shared parameters, the ids tell agents what is right for each."""
    config = PROBE.replace(central_critic=True, hidden_sizes=(32, 32), **change)
    _, actions, metrics = train_probes(ippo, pair, config, [OWN, OTHERS])
    np.testing.assert_array_equal(actions[0][:, [0, 2]], OPPOSITE)
    assert (metrics["explained_variance"][1] > 0.9).all()
    assert metrics["policy_loss"].shape == (2, SEEDS, 1, *([] if config.share_params else [2]))


def test_central_critics_see_the_world_state():
    """Statistics that all agents share normalise it; at an end it is the one before the restart.

    With shared parameters, an update of plain lists has a world state.
    """
    config = PROBE.replace(central_critic=True, normalize_obs=True)
    env, params = Pair(world=True), PairParams(task=OTHERS)
    state, metrics = ippo.make_train(config, env, params)(jax.random.key(0))
    kernel = state.critic_params["params"]["Torso_0"]["Dense_0"]["kernel"]
    assert kernel.shape == (2, 2, 16)
    stats = state.policy.world_stats
    assert stats.mean.shape == (2,) and float(stats.count) == PROBE.total_timesteps
    np.testing.assert_allclose(stats.var, 100.0, rtol=0.01)
    assert (np.asarray(metrics["explained_variance"][-1]) > 0.9).all()


# --- minibatches ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "minibatch_of, share_params",
    [
        ("samples", False),
        ("trajectories", True),
        pytest.param("samples", True, marks=pytest.mark.slow),
        pytest.param("trajectories", False, marks=pytest.mark.slow),
    ],
)
def test_minibatches_hold_every_sample_once_or_whole_trajectories(
    monkeypatch, minibatch_of, share_params
):
    """A trajectory is one agent in one environment; all its values are equal here."""
    seen, original = [], ippo.value_error

    def spy(values, old_values, *args):
        jax.debug.callback(lambda x: seen.append(np.asarray(x)), old_values)
        return original(values, old_values, *args)

    monkeypatch.setattr(ippo, "value_error", spy)
    change = dict(minibatch_of=minibatch_of, share_params=share_params, num_envs=4)
    config = TINY.replace(critic_epochs=1, num_minibatches=2, **change)
    learner = ippo.learner(config, Still(), PairParams())
    jax.block_until_ready(jax.jit(learner.update)(jax.jit(learner.init)(jax.random.key(0))))
    jax.effects_barrier()
    counts = [np.unique(x, return_counts=True)[1] for x in seen]
    values, total = np.unique(np.concatenate(seen), return_counts=True)
    assert len(values) == 8 and (total == 8).all()
    assert len(counts) == (2 if share_params else 4)
    whole = all((count == 8).all() for count in counts)
    assert whole == (minibatch_of == "trajectories")


# --- the contract -----------------------------------------------------------------------------

CASE = Case(
    module=ippo,
    tiny=TINY,
    pinned={  # of both agents
        "critic_grad_norm": [[0.19436, 0.347447], [0.755054, 0.566835], [0.837263, 0.308801]],
        "entropy": [[0.693119, 0.693128], [0.693062, 0.693048], [0.692983, 0.692983]],
        "grad_norm": [[0.989563, 0.809326], [0.977871, 0.942112], [1.09961, 0.935314]],
        "mean_value": [[0.243223, -0.0329479], [-0.239408, -0.19298], [-0.305791, 0.193683]],
        "value_loss": [[0.179558, 0.21673], [0.478105, 0.305698], [0.495928, 0.198227]],
    },
    refused=(
        (
            dict(num_minibatches=3),
            "num_minibatches=3 does not divide the 16 samples .*; 1, 2, 4, 8 would do",
        ),
        (
            dict(minibatch_of="trajectories", num_minibatches=4),
            "the 2 trajectories .*; 1, 2 would do",
        ),
        (dict(num_minibatches=16), "one sample to a minibatch"),
        (dict(minibatch_of="steps"), "minibatch_of='steps': give samples or trajectories"),
        (dict(num_minibatches=8, num_steps=1, num_envs=8), "one sample to a minibatch"),
        (dict(agent_ids=True), "agent_ids=True needs share_params=True"),
        (dict(critic_epochs=0), "critic_epochs=0"),
    ),
    world=WORLD,
    # A small weight would not change the critic's Adam.
    swept=dict(clip_vloss=True, vf_coef=1e-3, average_actor=True),
    swept_world=(WORLD[0], PairParams(task=LEAVING)),
    probe=PROBE,
    at_once=dict(num_minibatches=4),
    **OF_CASES
    | dict(
        other=OF_CASES["other"] | {"average_share": 1.0},
        learned=lambda state: ((state.policy.params, state.policy.average), state.critic_params),
    ),
)


def test_each_file_names_the_other_for_environments_it_cannot_take(pair):
    with pytest.raises(ValueError, match="has one agent .*; ppo, .* take it"):
        ippo.make_train(TINY.replace(env="CartPole-v1"))
    with pytest.raises(ValueError, match="Pair has several agents; ippo, .* take it"):
        ppo.make_train(ppo.Config(), pair, PairParams())
