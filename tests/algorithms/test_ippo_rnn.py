"""IPPO with memory: sequences, what each agent learns, and the contract of the file."""

import ast
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import envs
from algorithms import ippo, ippo_rnn, parts
from tests import probe as tasks
from tests.algorithms.cases import Case, again, assert_close, assert_same, programs
from tests.algorithms.test_ippo import Crowd, CrowdParams, Squad, advantages_of, random_rollout
from tests.algorithms.test_teams import (
    OF_CASES,
    ONCE,
    OPPOSITE,
    PLAY,
    SEEDS,
    arrays,
    train_probes,
)
from tests.probe import LEAVING, OTHERS, OWN, Pair, PairParams, RecallParams, Twins

SLOW = pytest.mark.slow
TINY = ippo_rnn.Config(
    total_timesteps=3 * 16,
    num_envs=2,
    num_steps=8,
    num_minibatches=2,
    update_epochs=2,
    critic_epochs=3,
    memory_size=8,
    hidden_sizes=(8,),
    num_evals=3,
    num_eval_episodes=2,
)
WORLD = Twins(), RecallParams()  # episodes of 6 steps, which rollouts cut


# --- formulas ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_gae_is_the_plain_recursion_of_each_agent(seed):
    """Ends are random; an agent that has left an episode has terminated there."""
    rewards, values, next_values, terminated, done = random_rollout(seed)
    left = np.random.default_rng(seed).random(done.shape) < 0.2
    terminated, done = (np.maximum(x, left) for x in (terminated, done))
    arrays = rewards, values, next_values, terminated, done
    result = ippo_rnn.gae(*arrays, 0.9, 0.8)
    for i in range(rewards.shape[1]):
        expected = advantages_of(*(x[:, i] for x in arrays), 0.9, 0.8)
        np.testing.assert_allclose(result[:, i], expected, rtol=1e-4, atol=1e-5)


SHARED = ("gae", "clipped_surrogate", "value_error", "kl_estimate", "learning_rates", "choosing")
SHARED += ("epoch", "unfinished", "update_statistics")  # functions in `learner`


class Alone(ast.NodeTransformer):
    """Code without sums over shards, which are in ippo alone, and without docstrings."""

    def visit_Call(self, node):
        self.generic_visit(node)
        return node.args[0] if ast.unparse(node.func).endswith("_over_shards") else node

    def visit_Assign(self, node):
        self.generic_visit(node)
        return None if ast.unparse(node.targets[0]) == ast.unparse(node.value) else node


@functools.cache
def functions_of(module):
    """The code of all functions by their names, without comments."""
    nodes = list(ast.walk(ast.parse(inspect.getsource(module))))
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.unparse(Alone().visit(node)) for node in functions}


@pytest.mark.parametrize("name", SHARED)
def test_code_shared_with_ippo_is_tested_there(name):
    """In test_teams.py, too: epochs and their order, statistics, agents that are not there."""
    assert functions_of(ippo_rnn)[name] == functions_of(ippo)[name]


def test_inputs_are_own_or_all_observations_the_agent_s_id_and_last_step():
    x = np.arange(4 * 3 * 2, dtype=np.float32).reshape(4, 3, 2)
    world, ids = -np.arange(4 * 5, dtype=np.float32).reshape(4, 5), np.tile(np.eye(3), (4, 1, 1))
    stats = parts.RunningStatistics(jnp.arange(6.0).reshape(3, 2), jnp.full((3, 2), 4.0), 1.0)
    world_stats = parts.RunningStatistics(jnp.ones(5), jnp.full(5, 0.25), 1.0)
    policy, previous = ippo_rnn.PolicyState(None, stats, world_stats), (np.ones((4, 3, 2)),)

    def same(config, expected, *world, rest=previous):
        found = ippo_rnn.make_inputs(config, policy, x, previous, *world)
        for inputs, first in zip(found, expected, strict=True):
            for one, right in zip(inputs, (first, *rest), strict=True):
                np.testing.assert_allclose(one, right, rtol=1e-6)

    for_all = lambda x: np.repeat(x.reshape(4, 1, -1), 3, axis=1)
    same(TINY, (x, x))
    config = TINY.replace(central_critic=True)
    same(config, (x, for_all(x)))
    same(config, (x, for_all(world)), world)
    config = config.replace(agent_ids=True, share_params=True)
    same(config, (x, for_all(world)), world, rest=(ids, *previous))
    config = TINY.replace(central_critic=True, normalize_obs=True, clip_obs=7.5)
    own = np.clip((x - np.arange(6.0).reshape(3, 2)) / 2.0, -7.5, 7.5)
    same(config, (own, for_all(own)))
    same(config, (own, for_all(np.clip((world - 1.0) * 2.0, -7.5, 7.5))), world)


# --- an update, agent by agent and step by step -----------------------------------------------

PLAIN = ippo_rnn.Config(
    total_timesteps=3 * 24,
    **ONCE,
    num_steps=12,
    memory_size=4,
)
ARRANGEMENTS = {
    "shared, continuous, world state, ids, previous": (
        dict(central_critic=True, share_params=True, agent_ids=True, previous_inputs=True),
        Squad(continuous=True, world=True),
    ),
    "independent, continuous, all observations, previous": (
        dict(central_critic=True, previous_inputs=True, cell="mingru"),
        Crowd(continuous=True, world=False),
    ),
    "shared, discrete, world state, ids": (
        dict(central_critic=True, share_params=True, agent_ids=True),
        Squad(continuous=False, world=True),
    ),
    "independent, discrete, own observations, previous": (
        dict(previous_inputs=True, cell="lstm"),
        Crowd(continuous=False, world=False),
    ),
}


class Plain:
    """An update agent by agent and step by step, with memories that are zeroed by hand."""

    def __init__(self, config, env, params, state):
        self.config, self.env, self.state = config, env, state = config, env, arrays(state)
        self.space, self.params = parts.ActionSpace(env.action_space(params)), params
        actor, critic = ippo_rnn.Actor(config, self.space), ippo_rnn.Critic(config)
        self.actor = jax.jit(functools.partial(parts.one_step, actor))
        self.critic = jax.jit(functools.partial(parts.one_step, critic))
        self.memories = self.of_agents(state.memory)
        of_critics = state.critic_memory
        if config.share_params:
            of_critics = jax.tree.map(lambda x: x.reshape(2, 2, -1).swapaxes(0, 1), of_critics)
        split = lambda i: jax.tree.map(lambda x: x[i], of_critics)
        self.critic_memories = [split(0), split(1)]
        self.first = list(self.memories), list(self.critic_memories)
        self.steps = self.play()
        self.advantages = self.advantages_of_all()

    def of_agents(self, memory):
        """Memories without the last action and reward."""
        bare = parts.Memory(memory.hidden, memory.cell)
        return [jax.tree.map(lambda x, i=i: x[:, i], bare) for i in (0, 1)]

    def own(self, tree, agent):
        return jax.tree.map(lambda x: x[0 if self.config.share_params else agent], tree)

    def inputs(self, observation, world, done_last, agent):
        """Inputs of actor and critic, for all environments."""
        config, policy = self.config, self.state.policy
        see = lambda stats, x: np.clip((x - stats.mean) / np.sqrt(stats.var + 1e-8), -10.0, 10.0)
        of_all = [see(self.own(policy.obs_stats, i), observation[:, i]) for i in (0, 1)]
        x, rest = of_all[agent], ()
        critic_x = x
        if config.central_critic:
            critic_x = (
                np.concatenate(of_all, 1) if world is None else see(policy.world_stats, world)
            )
        if config.agent_ids:
            rest += (np.tile(np.eye(2)[agent], (len(x), 1)),)
        if config.previous_inputs:
            action, reward = (y[:, agent] for y in done_last)
            rest += (action, np.sign(reward) * np.log(1.0 + np.abs(reward)))
        return (x, *rest), (critic_x, *rest)

    def play(self):
        """Every step of the rollout, with the file's own random numbers."""
        config, env, state, params = self.config, self.env, self.state, self.params
        batch = envs.batch(env, config.num_envs, config.num_steps)
        _, start, keys, noise = jax.random.split(state.rollout_rng, 4)
        draw = jax.random.normal if env.continuous else jax.random.gumbel
        shape = config.num_steps, config.num_envs, 2, self.space.size
        noise = np.asarray(draw(noise, (math.prod(shape),))).reshape(shape)
        env_state = jax.jit(batch.refill)(start, state.env_state, params)
        alive, steps, observation = np.asarray(state.alive), [], state.observation
        advance, world = jax.jit(batch.step), hasattr(env, "world_state")

        @jax.jit
        def look(state):
            of_world = batch.world_state(state, params) if world else None
            return batch.action_mask(state, params), of_world

        last = state.memory.action, state.memory.reward
        for key, drawn in zip(jax.random.split(keys, config.num_steps), noise):
            (mask, before), seen = arrays(look(env_state)), []
            if env.continuous:
                mask = np.tile(env.action_dimensions, (config.num_envs, 1, 1))
            actions, values = [], []
            for i in (0, 1):
                x, critic_x = self.inputs(observation, before, last, i)
                seen.append((x, critic_x))
                actor, critic = self.own((state.policy.params, state.critic_params), i)
                self.memories[i], out = arrays(self.actor(actor, self.memories[i], x))
                self.critic_memories[i], value = arrays(
                    self.critic(critic, self.critic_memories[i], critic_x)
                )
                if env.continuous:
                    actions.append(out.mean + np.exp(out.log_std) * drawn[:, i])
                else:
                    actions.append(
                        np.argmax(np.where(mask[:, i], out.logits, -1e9) + drawn[:, i], 1)
                    )
                values.append(value)
            action = np.stack(actions, 1)
            given = action
            if env.continuous:
                given = np.clip(action, -1.0, 1.0) * env.action_dimensions
            after, env_state, *rest = advance(key, env_state, given, params)
            after, reward, terminated, truncated, info = arrays((after, *rest))
            final_world = info["final_world_state"] if world else None
            done_now = given if env.continuous else np.eye(3)[given], reward
            next_values = []
            for i in (0, 1):
                _, final_x = self.inputs(info["final_observation"], final_world, done_now, i)
                critic = self.own(state.critic_params, i)
                next_values.append(self.critic(critic, self.critic_memories[i], final_x)[1])
            left = ~info["alive"] & (not hasattr(env, "shared_reward"))
            done = (terminated | truncated)[:, None] | left
            for memories in (self.memories, self.critic_memories):
                for i in (0, 1):
                    zeroed = lambda x, i=i, done=done: np.where(done[:, i, None], 0.0, x)
                    memories[i] = jax.tree.map(zeroed, memories[i])
            steps.append(
                dict(
                    seen=seen, mask=mask, action=action,
                    value=np.stack(values, 1), next_value=np.stack(next_values, 1), reward=reward,
                    terminated=terminated[:, None] | left, done=done, alive=alive,
                    truncated=truncated, world=before, observation=observation,
                )
            )  # fmt: skip
            last = [np.where(done.reshape(2, 2, *[1] * (x.ndim - 2)), 0.0, x) for x in done_now]
            alive = np.where((terminated | truncated)[:, None], True, info["alive"])
            observation = after
        return steps

    def policy_of(self, out, mask):
        import distrax

        if not self.env.continuous:
            return distrax.Categorical(logits=jnp.where(mask, out.logits, -1e9))
        return distrax.Independent(
            distrax.Normal(out.mean, jnp.where(mask, jnp.exp(out.log_std), 1.0)), 1
        )

    def column(self, name):
        return np.array([step[name] for step in self.steps])  # steps, environments, agents

    def advantages_of_all(self):
        scale = self.state.reward_scale.stats.var
        result = np.zeros(self.column("reward").shape)
        for i in (0, 1):
            spread = np.sqrt(self.own(scale, i) + 1e-8)
            for e in range(self.config.num_envs):
                pick = lambda name: self.column(name)[:, e, i]  # noqa: B023
                rewards = np.clip(pick("reward") / spread, -10.0, 10.0)
                arrays = rewards, pick("value"), pick("next_value"), pick("terminated")
                result[:, e, i] = advantages_of(
                    *arrays, pick("done"), self.config.gamma, self.config.gae_lambda
                )
        return result

    def unroll(self, network, params, memory, which, agent):
        """A network's outputs, (steps, environments, ...); memories are zeroed by hand."""
        seen = [step["seen"][agent][which] for step in self.steps]

        def one(memory, step):
            memory, out = network(params, memory, step[0])
            return jax.tree.map(lambda x: jnp.where(step[1][:, None], 0.0, x), memory), out

        steps = jax.tree.map(lambda *x: jnp.stack(x), *seen), self.column("done")[..., agent]
        return jax.lax.scan(one, memory, steps)[1]

    def actor_loss(self, params, agents):
        import distrax

        samples = []
        for i in agents:
            there, mask = self.column("alive")[..., i], self.column("mask")[:, :, i]
            out = self.unroll(self.actor, params, self.first[0][i], 0, i)
            action = self.column("action")[:, :, i]
            if self.env.continuous:
                normal = distrax.Normal(out.mean, jnp.exp(out.log_std))
                log_prob = (normal.log_prob(action) * mask).sum(-1)
                entropy = (normal.entropy() * mask).sum(-1)
            else:
                policy = self.policy_of(out, mask)
                log_prob, entropy = policy.log_prob(action), policy.entropy()
            choosing = there if self.env.continuous else there & (mask.sum(-1) > 1)
            samples.append([x[choosing] for x in (log_prob, entropy, self.advantages[..., i])])
        log_probs, entropies, advantages = map(jnp.concatenate, zip(*samples))
        advantages = (advantages - advantages.mean()) / advantages.std()
        # The policy gradient theorem: at a ratio of 1 there is nothing to clip.
        loss = -(advantages * log_probs).mean() - self.config.ent_coef * entropies.mean()
        return loss, entropies.mean()

    def critic_loss(self, params, agents):
        targets, values = self.advantages + self.column("value"), []
        for i in agents:
            outs = self.unroll(self.critic, params, self.first[1][i], 1, i)
            valued = self.column("alive")[..., i] | hasattr(self.env, "shared_reward")
            values.append((outs - targets[..., i])[valued])
        error = 0.5 * (jnp.concatenate(values) ** 2).mean()
        return self.config.vf_coef * error, error

    def descend(self, loss, params, moments, agents, rates, max_norm, eps):
        """Parameters after steps of Adam at these learning rates, and the mean loss and metrics."""
        clip, adam = optax.clip_by_global_norm(max_norm), optax.scale_by_adam(eps=eps)
        flat, back = jax.flatten_util.ravel_pytree(params)
        said = []

        @jax.jit
        def step(flat, moments, rate):
            of_flat = lambda flat: loss(back(flat), agents)
            (_, what), grads = jax.value_and_grad(of_flat, has_aux=True)(flat)
            direction, moments = optax.chain(clip, adam).update(grads, moments[:2])
            return flat - rate * direction, moments, jnp.stack([what, optax.tree.norm(grads)])

        for rate in rates:
            flat, moments, what = step(flat, moments, rate)
            said.append(what)
        return arrays(back(flat)), np.mean(said, axis=0)

    def learn(self, number):
        """Parameters of both networks; entropy, value loss and the norms of the gradients."""
        c, state = self.config, self.state
        agents, one = ([0, 1] if c.share_params else [number]), lambda x: x[number]
        actor = jax.tree.map(one, (state.policy.params, state.opt_state))
        critic = jax.tree.map(one, (state.critic_params, state.critic_opt_state))
        rates = [c.learning_rate * 2 / 3]  # one of three updates is done
        critic_rates = [c.critic_learning_rate * (1 - k / 6) for k in (2, 3)]
        params, said = self.descend(
            self.actor_loss, *actor, agents, rates, c.max_grad_norm, c.adam_eps
        )
        limits = c.critic_max_grad_norm, c.critic_adam_eps
        critic_params, critic_said = self.descend(
            self.critic_loss, *critic, agents, critic_rates, *limits
        )
        return params, critic_params, [*said, *critic_said]


# The first of these runs every time. `program` of test_teams.py and `sequences` below have agents
# with networks of their own and discrete actions.
OFTEN, *SELDOM = ARRANGEMENTS
SELDOM = [pytest.param(name, marks=SLOW) for name in SELDOM]


@functools.cache
def updates(arrangement):
    """Two updates: config, environment, states before and after the second one, its metrics."""
    change, env = ARRANGEMENTS[arrangement]
    config = PLAIN.replace(**change)
    init, update = programs(ippo_rnn.learner(config, env, CrowdParams()))
    state, _ = update(init(jax.random.key(5)))
    return config, env, state, *arrays(update(again(state)))


@pytest.mark.parametrize("arrangement", [OFTEN, *SELDOM])
def test_an_update_is_that_of_plain_lists(arrangement):
    """This is the second update, with memories from the first and known statistics."""
    config, env, state, after, metrics = updates(arrangement)
    averages = {name: x for name, x in metrics.items() if isinstance(x, parts.Average)}
    metrics |= {name: x.total / x.weight for name, x in averages.items()}
    state = arrays(again(state))
    plain = Plain(config, env, CrowdParams(), state)
    there, done = plain.column("alive"), plain.column("done")
    cut = plain.column("truncated")[..., None] & there & ~plain.column("terminated")
    assert not there.all() and cut.any() and plain.column("terminated")[there].any()
    assert not done[-1].all() and any((m.hidden != 0).any() for m in plain.first[0])

    assert_close(plain.of_agents(after.memory), plain.memories, 1e-3, 1e-5)
    folded = after.critic_memory
    if config.share_params:
        folded = jax.tree.map(lambda x: x.reshape(2, 2, -1).swapaxes(0, 1), folded)
    for i in (0, 1):
        one = jax.tree.map(lambda x, i=i: x[i], folded)
        assert_close(one, plain.critic_memories[i], 1e-3, 1e-5)

    for number in range(1 if config.share_params else 2):
        *expected, said = plain.learn(number)
        for new, old, right in zip(
            (after.policy.params, after.critic_params),
            (state.policy.params, state.critic_params),
            expected,
        ):
            moved = lambda new, old: jax.tree.map(lambda x, y: x - y, new, old)
            of_one = lambda tree: jax.tree.map(lambda x: x[number], tree)  # noqa: B023
            assert_close(moved(of_one(new), of_one(old)), moved(right, of_one(old)), 1e-2, 5e-6)
        names = ("entropy", "grad_norm", "value_loss", "critic_grad_norm")
        result = [np.ravel(metrics[name])[number] for name in names]
        np.testing.assert_allclose(result, said, rtol=1e-3)
        own = slice(None) if config.share_params else slice(number, number + 1)
        alive, value = there[:, :, own], plain.column("value")[:, :, own]
        valued = alive | hasattr(env, "shared_reward")
        np.testing.assert_allclose(
            np.ravel(metrics["mean_value"])[number], value[valued].mean(), rtol=1e-3, atol=1e-5
        )
        for stats in ("obs_stats", "reward_scale"):
            counts = [
                getattr(s.policy if stats == "obs_stats" else s, stats) for s in (state, after)
            ]
            counts = [(c if stats == "obs_stats" else c.stats).count[number] for c in counts]
            expected = alive if stats == "obs_stats" else valued
            assert counts[1] - counts[0] == expected.sum()
    if hasattr(env, "world_state"):
        assert after.policy.world_stats.count == 2 * config.num_envs * config.num_steps
    else:
        assert after.policy.world_stats is None


# --- sequences --------------------------------------------------------------------------------


def large(state):
    """A state whose logits and memories are far from zero."""
    scale = lambda path, x: (2000.0 if "actor_head" in str(path) else 2.0) * x
    params = jax.tree_util.tree_map_with_path(scale, state.policy.params)
    return state.replace(policy=state.policy.replace(params=params))


CHANGES = {
    "lstm": dict(previous_inputs=True),
    "gru": dict(share_params=True, agent_ids=True),
    "mingru": dict(share_params=True, previous_inputs=True),
}
OFTEN_CELL, *SELDOM_CELLS = CHANGES


class Sequences(NamedTuple):
    """An update with rollouts of 10 steps in 6 environments, compiled once for all tests below.

    `seen` gets the critics' old and new values in each minibatch, (10, sequences).
    """

    start: Any  # the first state
    update: Callable  # update(params, state, **floats of the config)
    seen: list


@pytest.fixture(
    scope="module", params=[OFTEN_CELL, *(pytest.param(x, marks=SLOW) for x in SELDOM_CELLS)]
)
def sequences(request):
    config, env = TINY.replace(cell=request.param, **CHANGES[request.param]), Twins(tasks.Recall())
    config = config.replace(total_timesteps=4 * 60, num_envs=6, num_steps=10, num_minibatches=3)
    seen, original = [], ippo_rnn.value_error

    def spy(values, old_values, *args):
        jax.debug.callback(lambda *x: seen.append(np.array(x)), old_values, values)
        return original(values, old_values, *args)

    @jax.jit
    def later(config, params, state):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ippo_rnn, "value_error", spy)
            return programs(ippo_rnn.learner(config, env, params))[1](state)

    def update(params, state, **floats):
        strong = lambda x: jnp.asarray(x, jnp.result_type(x))
        return later(*jax.tree.map(strong, (config.replace(**floats), params)), again(state))

    init, _ = programs(ippo_rnn.learner(config, env, RecallParams()))
    return Sequences(init(jax.random.key(0)), update, seen)


def test_the_ratio_is_one_as_long_as_parameters_do_not_move(sequences):
    """It is one in every minibatch of every epoch.

    Episodes of 6 and 7 steps end inside rollouts of 10, and run on from one to the next.
    """
    for params in (RecallParams(), RecallParams(length=99, max_steps_in_episode=7)):
        state = large(sequences.start)
        for _ in range(3):
            state, metrics = sequences.update(params, state, learning_rate=0.0, clip_eps=1e-4)
            mean = {
                name: x.total / x.weight
                for name, x in arrays(metrics).items()
                if isinstance(x, parts.Average)
            }
            np.testing.assert_array_equal(mean["clip_fraction"], 0.0)
            np.testing.assert_allclose(mean["approx_kl"], 0.0, atol=1e-8)
            assert (mean["entropy"] < 0.65).all()  # far enough from uniform
            assert (mean["grad_norm"] > 1e-3).all()


def test_minibatches_are_whole_sequences(sequences):
    """A sequence is one agent in one environment, and is in one minibatch of every epoch.

    While critics do not move, their values of it are those of the whole rollout.
    """
    state, _ = sequences.update(RecallParams(), sequences.start)
    jax.effects_barrier()
    sequences.seen.clear()
    sequences.update(RecallParams(), state, critic_learning_rate=0.0)
    jax.effects_barrier()
    shared = len(state.critic_params["params"]["critic_head"]["bias"]) == 1
    learners, size = (1, 4) if shared else (2, 2)
    assert len(sequences.seen) == 3 * 3 * learners  # minibatches of all epochs and learners
    assert all(x.shape == (2, 10, size) for x in sequences.seen)
    for old, new in sequences.seen:
        np.testing.assert_allclose(old, new, rtol=1e-4, atol=1e-6)
    columns = np.concatenate([old.T for old, _ in sequences.seen])
    _, counts = np.unique(columns.round(7), axis=0, return_counts=True)
    assert (counts % 3 == 0).all() and counts.sum() == 3 * 12  # some may be equal


def test_memories_of_actors_and_critics_are_apart(sequences):
    """Neither depends on the other's parameters. Both start at zero, and are zero after an end."""
    start, update = sequences.start, sequences.update
    hidden = lambda state: np.array(
        [state.memory.hidden.ravel(), state.critic_memory.hidden.ravel()]
    )
    assert (hidden(start) == 0.0).all()
    ended, _ = update(RecallParams(length=10), start)  # episodes as long as a rollout
    assert (hidden(ended) == 0.0).all()
    one, _ = update(RecallParams(length=11), start)
    double = jax.tree.map(lambda x: 2.0 * x, start.critic_params)
    other, _ = update(RecallParams(length=11), start.replace(critic_params=double))
    assert_same(one.memory, other.memory)
    assert not np.allclose(one.critic_memory.hidden, other.critic_memory.hidden, atol=1e-3)
    assert np.abs(one.memory.hidden).max() > 1e-3


def test_kernels_are_orthogonal_with_the_usual_gains(sequences):
    """Actor and critic have different ones."""
    state = sequences.start
    gains, kernels = {"actor_head": 0.01, "critic_head": 1.0, "gates": 1.0, "memory": 1.0}, 0
    trees = state.policy.params["params"], state.critic_params["params"]
    for path, leaf in jax.tree_util.tree_leaves_with_path(arrays(trees)):
        names = [str(getattr(key, "key", key)) for key in path]
        if names[-1] == "bias":
            np.testing.assert_array_equal(leaf, 0.0)
            continue
        gain = next((gains[name] for name in names if name in gains), math.sqrt(2))
        for matrix in leaf / gain:
            matrix = matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T
            np.testing.assert_allclose(matrix.T @ matrix, np.eye(matrix.shape[1]), atol=1e-5)
        assert len(leaf) == 1 or not np.allclose(leaf[0], leaf[1])
        kernels += 1
    assert kernels == 6 + 2 * ("memory" in trees[1].get("Recurrent_0", trees[1]))


# --- probe tasks ------------------------------------------------------------------------------

PROBE = ippo_rnn.Config(**PLAY, cell="mingru", memory_size=16)


@pytest.fixture(scope="module")
def probed():
    return train_probes(ippo_rnn, Pair(), PROBE, [OWN, OTHERS, LEAVING])


@pytest.mark.slow  # each of these three: ippo.py's do the same in every run
def test_each_agent_learns_its_own_task(probed):
    np.testing.assert_array_equal(np.asarray(probed[1][OWN])[:, [0, 2]], OPPOSITE)


@pytest.mark.slow
def test_an_agent_that_left_has_terminated_and_counts_no_more(probed):
    """Its value is 1 (one reward), though it would be paid 100 later.

    The other agent's value is that of an endless task, because the time limit only truncates.
    """
    critic, fresh = ippo_rnn.Critic(PROBE), parts.fresh_memory(PROBE, None, 1)
    seen = jnp.array([1.0] + [0.0] * 9).reshape(10, 1, 1)  # of a whole episode
    run = lambda params: critic.apply(params, fresh, (seen,), jnp.zeros((10, 1), bool))[1][:, 0]
    values = jax.vmap(jax.vmap(run))(jax.tree.map(lambda x: x[LEAVING], probed[0]))
    np.testing.assert_allclose(values[:, 0], 1.0 / (1.0 - 0.9), rtol=0.1)
    np.testing.assert_allclose(values[:, 1, 0], 1.0, atol=0.1)
    mean_value = np.asarray(probed[2]["mean_value"][LEAVING])[:, -1]
    assert (mean_value[:, 1] < 1.5).all() and (mean_value[:, 0] > 2.0).all()


@pytest.mark.slow
def test_a_critic_without_world_state_does_not_know_others_observations(probed):
    assert (np.asarray(probed[2]["explained_variance"][OTHERS]) < 0.1).all()


@pytest.mark.slow
def test_a_central_critic_knows_and_ids_tell_agents_that_share_parameters(pair):
    config = PROBE.replace(central_critic=True, share_params=True, agent_ids=True)
    _, actions, metrics = train_probes(ippo_rnn, pair, config, [OWN, OTHERS])
    np.testing.assert_array_equal(np.asarray(actions[OWN])[:, [0, 2]], OPPOSITE)
    assert (np.asarray(metrics["explained_variance"][OTHERS]) > 0.9).all()
    assert metrics["policy_loss"].shape == (2, SEEDS, 1)


# --- tasks that need a memory -----------------------------------------------------------------

REMEMBER = PROBE.replace(
    total_timesteps=40 * 192,
    num_steps=12,
    learning_rate=2e-2,
    critic_learning_rate=2e-2,
    gamma=0.99,
    num_eval_episodes=64,
)


def last_returns(env, config):
    """Returns of training and of evaluation, (SEEDS, 2)."""
    keys = jax.random.split(jax.random.key(0), SEEDS)
    _, metrics = jax.jit(jax.vmap(ippo_rnn.make_train(config, env, RecallParams())))(keys)
    evaluated = np.asarray(metrics["eval_return"])[:, -1].mean(1)
    return np.asarray(metrics["episode_return"])[:, -1], evaluated


@pytest.mark.slow
def test_a_team_remembers_its_cues(vmapped_keys):
    """Each agent has its own cue, and the mean of both is paid at the end: 0.5 without a memory."""
    config = REMEMBER.replace(share_params=True, num_evals=8)
    trained, evaluated = last_returns(Twins(tasks.Recall(), team=True), config)
    assert trained.mean() > 0.9 and evaluated.mean() > 0.95, (trained, evaluated)


@pytest.mark.slow
@pytest.mark.parametrize("previous_inputs, least, most", [(True, 5.2, 5.8), (False, 2.5, 3.6)])
def test_only_a_policy_that_sees_the_last_reward_guesses_once(
    previous_inputs, least, most, vmapped_keys
):
    """The first of 6 steps is a guess. Evaluations tell a policy the rewards of its actions."""
    config = REMEMBER.replace(previous_inputs=previous_inputs, total_timesteps=80 * 192)
    _, evaluated = last_returns(Twins(tasks.Guess()), config)
    assert least < evaluated.mean() < most, evaluated


# --- the policy -------------------------------------------------------------------------------


def test_a_policy_s_last_action_has_an_agent_s_own_dimensions_alone():
    config, env, state, *_ = updates(OFTEN)
    policy = jax.jit(ippo_rnn.make_policy(config, env, CrowdParams()))
    _, memory = policy(state, np.zeros(state.observation.shape[1:]), rng=jax.random.key(1))
    np.testing.assert_array_equal(memory.action != 0, env.action_dimensions)


def test_a_policy_s_memory_is_that_of_training():
    """Step by step and with rewards passed back, its actions are the means of the unrolled
    network."""
    env, params = Twins(tasks.Recall(continuous=True)), RecallParams()
    config = TINY.replace(cell="lstm", previous_inputs=True, normalize_obs=True)
    state = jax.jit(ippo_rnn.learner(config, env, params).init)(jax.random.key(0))
    state, both = large(state), (2, 2)
    stats = parts.RunningStatistics(jnp.full(both, 0.3), jnp.full(both, 2.0), jnp.ones(2))
    state = state.replace(policy=state.policy.replace(obs_stats=stats))
    policy = ippo_rnn.make_policy(config, env, params)
    policy = jax.jit(functools.partial(policy, state))
    rng = np.random.default_rng(0)
    x, rewards = rng.normal(size=(12, 2, 2)).astype(np.float32), 3.0 * rng.normal(size=(12, 2))
    memory, actions = None, []
    for t in range(12):
        action, memory = policy(x[t], memory)
        actions.append(action)
        memory = envs.evaluation.rewarded(memory, rewards[t])
    actions = np.array(actions)  # steps, agents, 1
    zeros = np.zeros((1, 2))
    last_actions = np.concatenate([zeros[..., None], actions[:-1]])
    last_rewards = np.concatenate([zeros, np.sign(rewards) * np.log1p(np.abs(rewards))])[:-1]
    for i in range(2):
        own = jax.tree.map(lambda x, i=i: x[i], arrays(state.policy.params))
        one = lambda x, i=i: np.array(x[:, i][:, None], np.float32)
        inputs = (one(x) - 0.3) / math.sqrt(2.0), one(last_actions), one(last_rewards)
        fresh = parts.Memory(
            *parts.fresh_memory(config, parts.ActionSpace(env.action_space(params)), 1)[:2]
        )
        actor = ippo_rnn.Actor(config, parts.ActionSpace(env.action_space(params)))
        _, out = jax.jit(actor.apply)(own, fresh, inputs, np.zeros((12, 1), bool))
        wanted = np.clip(out.mean[:, 0], -1.0, 1.0)
        np.testing.assert_allclose(actions[:, i], wanted, rtol=1e-3, atol=1e-3)
        assert (np.abs(wanted) < 1.0).any()
    assert not np.allclose(policy(x[11], None)[0], actions[11], atol=1e-2)


# --- the contract -----------------------------------------------------------------------------

CASE = Case(
    module=ippo_rnn,
    tiny=TINY,
    pinned={  # of both agents
        "critic_grad_norm": [[0.00331585, 0.00628946], [0.261992, 0.139586], [0.201089, 0.0040385]],
        "entropy": [[0.693147, 0.693146], [0.693147, 0.69314], [0.693147, 0.693138]],
        "grad_norm": [[0.346547, 0.0982187], [0.330768, 0.37269], [0.323204, 0.286562]],
        "mean_value": [
            [-0.00945579, -0.0257143],
            [0.0058222, 0.00191814],
            [0.00960157, 0.00428448],
        ],
        "value_loss": [[0.000109571, 0.000355055], [0.209344, 0.106871], [0.137215, 0.0002942]],
    },
    refused=(
        (dict(cell="rnn"), "cell='rnn': give lstm or gru or mingru or minlstm or lru"),
        (dict(memory_size=0), "memory_size=0"),
        (
            dict(num_minibatches=3),
            "num_minibatches=3 does not divide the 2 sequences of a rollout; 1, 2 would do",
        ),
        (dict(num_minibatches=4), "num_minibatches=4 does not divide the 2 sequences"),
        (
            dict(num_minibatches=3, share_params=True),
            "the 4 sequences of a rollout; 1, 2, 4 would do",
        ),
        (dict(num_steps=1), "one sample to a minibatch"),
        (dict(agent_ids=True), "agent_ids=True needs share_params=True"),
        (dict(critic_epochs=0), "critic_epochs=0"),
    ),
    world=WORLD,
    # A small weight would not change the critic's Adam.
    swept=dict(cell="mingru", clip_vloss=True, vf_coef=1e-3, num_eval_episodes=0),
    swept_world=(Pair(), PairParams(task=LEAVING)),
    probe=PROBE,
    at_once=dict(previous_inputs=True, cell="mingru"),
    **OF_CASES,
)


def test_an_environment_of_one_agent_is_refused():
    with pytest.raises(ValueError, match="has one agent .*; ppo, ppo_plr, .* take it"):
        ippo_rnn.make_train(TINY.replace(env="CartPole-v1"))
