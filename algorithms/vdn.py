"""Parallelised Q-learning for teams: IQL, VDN, QMIX. A whole run is one XLA program.

Papers: VDN, Sunehag et al. 2018, https://arxiv.org/abs/1706.05296; QMIX, Rashid et al. 2018,
https://arxiv.org/abs/1803.11485; independent learners, Tan 1993; and PQN, Gallici et al. 2024,
https://arxiv.org/abs/2407.04811. There is no replay buffer and no target network, but layer norm
throughout. `--cell` adds a memory.

    python algorithms/vdn.py --preset Hunt-v0 --seed 0   # three predators hunt a prey
    python algorithms/vdn.py --preset MPE_simple_spread_v3 --mixer monotonic
    python algorithms/vdn.py --preset switch_riddle --num-seeds 5

    train = make_train(Config(mixer="monotonic"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 16))

This is pqn.py for agents that share one network. A *mixer* turns the values of the agents' actions
into the values that are learned. These details add to those of pqn.py:
  1 Mixer none (IQL): each agent learns the value of its own rewards, as if the others were part of
    the environment.
  2 Mixer sum (VDN): the team's value is the sum of the agents'.
  3 Mixer monotonic (QMIX): the team's value is a network of the agents' values. Its weights are
    absolute values, made by hypernetworks from the world state, or without one from all
    observations.
  4 The team does best where every agent takes its own best action, so lambda-returns bootstrap from
    the mix of each agent's largest value.
  5 The team's reward is the sum of the agents' rewards. Where these are always the same
    (`env.shared_reward`), it is their mean, also if shaped rewards differ.
  6 An agent that has left (`info["alive"]`) counts in no mix. With mixer=none its own rewards end
    with it. A shared reward does not, and the agent's values are learned until the episode ends.
  7 Agents' kernels are orthogonal. At first their values are near 0, and a mix is near their sum.
With a memory, as in ppo_rnn.py:
  8 The memory is zeroed where an episode ended, in collection and in learning alike.
  9 Minibatches are sets of environments. Sequences are learned whole, from the memory before the
    rollout.
 10 A final observation is valued with the memory of the episode that it ends.
 11 With `previous_inputs`, an agent also sees its last action and its reward, initially zeros.
"""

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct

import envs
from algorithms import parts
from algorithms.parts import real, static

INFO = {
    "title": "Parallelised Q-learning for teams: VDN, QMIX, independent agents (IQL)",
    "use": "teams with one reward and discrete actions",
    "paper": "[Sunehag et al. 2018](https://arxiv.org/abs/1706.05296), "
    "[Rashid et al. 2018](https://arxiv.org/abs/1803.11485)",
    "family": "action values",
    "actions": "discrete",
    "masks": True,
    "agents": "several",
    "memory": "by flag",
}


@struct.dataclass
class Config:
    env: str = static("Hunt-v0")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # env settings, name=value,...
    total_timesteps: int = static(1_000_000)  # environment steps of the whole run
    num_envs: int = static(32)  # parallel environments
    num_steps: int = static(32)  # steps of each environment in a rollout
    mixer: str = static("sum")  # none (IQL), sum (VDN) or monotonic (QMIX)
    mixing_size: int = static(32)  # units of the monotonic mixer's hidden layer
    agent_ids: bool = static(True)  # the agent's one-hot id is an input
    cell: str = static("none")  # none, lstm, gru, mingru, minlstm, lru, s5 or gtrxl
    memory_size: int = static(64)  # size of the memory (LSTM, LRU, S5: twice)
    layers: int = static(1)  # stacked cells
    window: int = static(32)  # steps back that a gtrxl sees
    forget_bias: float = real(1.0, "(-inf, inf)")  # added to the gate that keeps the memory
    previous_inputs: bool = static(False)  # with a memory: the last action and reward, as inputs
    update_epochs: int = static(4)  # passes over each rollout
    num_minibatches: int = static(8)  # gradient steps in a pass
    learning_rate: float = real(3e-3, "[0, inf)")  # step size of rectified Adam
    anneal_lr: bool = static(True)  # take the learning rate linearly to zero
    adam_eps: float = real(1e-5, "(0, inf)")  # epsilon of rectified Adam
    max_grad_norm: float = real(10.0, "(0, inf]")  # clip gradients to this global norm; inf: never
    gamma: float = real(0.9, "[0, 1]")  # discount factor
    q_lambda: float = real(0.65, "[0, 1]")  # decay of the trace; 0: one-step targets
    reward_scale: float = real(0.1, "(0, inf)")  # factor on rewards for learning
    eps_start: float = real(1.0, "[0, 1]")  # initial epsilon, the probability of a random action
    eps_end: float = real(0.05, "[0, 1]")  # final epsilon
    exploration_fraction: float = real(0.3, "(0, inf]")  # share of the run until epsilon is eps_end
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers, before a memory
    activation: str = static("relu")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    normalize_obs: bool = static(False)  # normalise observations by running mean and variance
    clip_obs: float = real(10.0, "(0, inf]")  # clip normalised observations to +- this
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- networks ---------------------------------------------------------------------------------


class QNetwork(nn.Module):
    """Inputs to memories after each step and the values of all actions.

    Inputs: a tuple of arrays (num_steps, num_envs, num_agents, ...). Values: the same leading axes.
    """

    config: Config
    num_actions: int

    @nn.compact
    def __call__(self, memory, inputs, done):
        """`memory` (num_envs, num_agents, ...) is from before the first step; `done` (num_steps,
        num_envs) marks the last steps of episodes."""
        config, leading = self.config, inputs[0].shape[:3]
        x, *more = (x.reshape(-1, *x.shape[3:]) for x in inputs)
        init = parts.orthogonal(math.sqrt(2))
        if x.ndim == 4 and config.conv_layers != "none":
            x = parts.Convolutions(config.conv_layers, self.activate, init)(x)
        x = jnp.concatenate([x.reshape(len(x), -1) for x in (x, *more)], -1)
        for size in config.hidden_sizes:
            x = self.activate(parts.Dense(size, kernel_init=init)(x))
        if config.cell != "none":
            cells = parts.Cells(config)
            nn.share_scope(self, cells)
            memory = cells(memory, x.reshape(*leading, -1), done)
            x = memory.hidden
        head = parts.Dense(self.num_actions, kernel_init=parts.orthogonal(0.01), name="head")
        return memory, head(x.reshape(*leading, -1))

    def activate(self, x):
        return parts.activation(self.config.activation)(parts.LayerNorm()(x))


def one_step(network, params, memory, inputs):
    """The memory after inputs (num_envs, num_agents, ...), and values."""
    done, inputs = jnp.zeros((1, len(inputs[0])), bool), jax.tree.map(lambda x: x[None], inputs)
    return jax.tree.map(lambda x: x[0], network.apply(params, memory, inputs, done))


class Mixer(nn.Module):
    """Agents' values q_i (..., num_agents) to learned values (..., num_values).

    none is q_i, sum is sum_i q_i; monotonic is |w_2| . elu(sum_i q_i |W_1i| + b_1) + b_2, with
    weights that depend on `view` (Rashid et al. 2018, figure 2). Agents that left count 0.
    """

    config: Config

    @nn.compact
    def __call__(self, values, alive, view=None):
        """`view` (..., size) is the hypernetworks' input; only the monotonic mixer uses it."""
        values = values * alive
        if self.config.mixer == "none":  # detail 1
            return values
        if self.config.mixer == "sum":  # detail 2
            return values.sum(-1, keepdims=True)
        # detail 3. In rows, because XLA's CPU code is far slower with a leading axis of length 1.
        leading, values = values.shape[:-1], values.reshape(-1, values.shape[-1])
        view = view.reshape(-1, view.shape[-1])
        size, zeros, normal = self.config.mixing_size, nn.initializers.zeros, jax.random.normal
        # detail 7: initially nearly a sum. Weights are near 1, scaled so that the ELU is not flat.
        of_view = lambda features, name, **init: parts.Dense(features, name=name, **init)(view)
        first = jnp.abs(of_view(values.shape[-1] * size, "weights", bias_init=normal)) / size**0.5
        last = jnp.abs(of_view(size, "last_weights", bias_init=normal)) / size**0.5
        hidden = (values[..., None] * first.reshape(*values.shape, size)).sum(-2)
        hidden = nn.elu(hidden + of_view(size, "bias", kernel_init=zeros))
        bias = nn.relu(of_view(size, "bias_hidden"))
        bias = parts.Dense(1, kernel_init=zeros, name="last_bias")(bias)
        return ((last * hidden).sum(-1, keepdims=True) + bias).reshape(*leading, 1)


# --- data types -------------------------------------------------------------------------------


class Params(NamedTuple):
    """All parameters that learn."""

    agent: Any  # parameters of the agents' shared network
    mixer: Any  # empty without a monotonic mixer


@struct.dataclass
class PolicyState:
    """The part of the state that acting needs, with the mixer and the statistics of its input."""

    params: Params
    obs_stats: parts.RunningStatistics
    world_stats: parts.RunningStatistics | None  # of world states


@struct.dataclass
class TrainState:
    """Everything that a run needs to continue."""

    policy: PolicyState
    opt_state: optax.OptState
    env_state: Any  # of `envs.batch`
    observation: jax.Array  # (num_envs, num_agents, ...)
    alive: jax.Array  # (num_envs, num_agents)
    memory: parts.Memory  # before the observation, (num_envs, num_agents, ...); may be empty
    episodes: Any  # of `envs.batch`
    rollout_rng: jax.Array  # key for acting and the environments
    order_rng: jax.Array  # key for the order of samples
    eval_rng: jax.Array  # constant: all evaluations use it
    update: jax.Array  # rollouts learned from so far, int32


class Transition(NamedTuple):
    """A rollout; leading axes (num_steps, num_envs)."""

    observation: jax.Array  # (..., num_agents, ...), as in all fields without a shape
    previous: tuple[jax.Array, ...]  # `parts.last_step`
    world_state: jax.Array | None  # (..., size), the environment's
    action: jax.Array
    value: jax.Array  # each agent's max_a Q of the observation
    reward: jax.Array
    alive: jax.Array  # when the agent acted
    terminated: jax.Array  # (...), the episode
    done: jax.Array  # (...), terminated or truncated
    final_observation: jax.Array  # after the actions, before any restart
    final_mask: jax.Array | None  # allowed actions there
    final_world_state: jax.Array | None
    final_alive: jax.Array
    memory: parts.Memory  # memory after the observation, with the action and its reward


class Batch(NamedTuple):
    """Sequences to learn from; leading axes (num_steps, num_envs), or a minibatch's num_envs.
    Without memory every step is a sequence: (1, num_steps * num_envs)."""

    inputs: tuple[jax.Array, ...]  # inputs of the agents' network, (..., num_agents, ...)
    view: jax.Array | None  # input of the mixer
    action: jax.Array
    alive: jax.Array
    done: jax.Array  # (...), the episode
    target: jax.Array  # (..., num_values)
    weight: jax.Array  # (..., num_values): 0 where an agent that learns by itself is not alive


# --- formulas ---------------------------------------------------------------------------------


def q_lambda_targets(rewards, next_values, terminated, done, gamma, q_lambda):
    """Peng's Q(lambda): G_t = r_t + gamma ((1 - lambda) mix(max_a Q_i(s'_t, a)) + lambda G_{t+1}).

    All arrays are (num_steps, num_envs, num_values). `next_values` are the mixed values of the
    observations after the actions, before any restart, and count 0 where `terminated`. They replace
    G_{t+1} at `done`, also when truncated, and at the rollout's end.
    """
    follows = (1.0 - jnp.asarray(done)).at[-1].set(0.0)
    bootstrap = (1.0 - q_lambda * follows) * (1.0 - terminated) * next_values

    def step(later, inputs):
        now, decay = inputs
        target = now + decay * later
        return target, target

    inputs = rewards + gamma * bootstrap, gamma * q_lambda * follows
    return parts.scan(step, jnp.zeros_like(rewards[0]), inputs, reverse=True)[1]


def greedy(values, mask=None):
    """Actions (...) of the largest values (..., num_actions) that the mask allows."""
    return jnp.argmax(values if mask is None else jnp.where(mask, values, -jnp.inf), -1)


def of_action(values, action):
    """Values (...) of actions (...) out of values (..., num_actions)."""
    return (values * jax.nn.one_hot(action, values.shape[-1])).sum(-1)


def epsilon_at(config, progress):
    """The probability of a random action: eps_end + max(1 - d, 0) (eps_start - eps_end), with d =
    progress / exploration_fraction and progress in [0, 1]."""
    left = jnp.maximum(1.0 - progress / config.exploration_fraction, 0.0)
    return config.eps_end + left * (config.eps_start - config.eps_end)


def epsilon_greedy(values, epsilon, noise, mask=None):
    """Actions (...) for values (..., num_actions) and noise (...).

    With probability epsilon, an action is uniform over those that the mask (..., num_actions)
    allows; else it is greedy.
    """
    random = noise.action
    if mask is not None:
        # Noise below epsilon is uniform in [0, epsilon): it chooses how many allowed actions stand
        # before the random one.
        number = mask.sum(-1)
        before = jnp.minimum(noise.uniform / epsilon * number, number - 1).astype(jnp.int32)
        random = jnp.argmax(jnp.cumsum(mask, -1) > before[..., None], -1)
    return jnp.where(noise.uniform < epsilon, random, greedy(values, mask))


def learning_rates(config, num_updates, update):
    """learning_rate (1 - done / num_updates) for each gradient step of an update, (number,)."""
    number = config.update_epochs * config.num_minibatches
    done = update.astype(jnp.float32) + jnp.arange(number) / number
    left = jnp.maximum(1.0 - done / num_updates, 0.0)
    return config.learning_rate * (left if config.anneal_lr else jnp.ones_like(left))


# --- acting and training ----------------------------------------------------------------------


@parts.with_environment
def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None, mask=None) -> action, memory.

    For all agents of one environment: observation, action and memory (num_agents, ...). Without rng
    the actions of the highest values; with rng they are epsilon-greedy at eps_end. mask
    (num_agents, num_actions): `env.action_mask`, the allowed actions. memory=None is a fresh one.
    With previous_inputs, pass rewards back: memory = envs.evaluation.rewarded(memory, reward).
    """
    space = parts.ActionSpace(env.action_space(env_params))
    network, fresh = QNetwork(config, space.size), fresh_memory(config, space, 1, env.num_agents)

    def policy(state, observation, memory=None, rng=None, mask=None):
        memory, observation, mask = jax.tree.map(lambda x: x[None], (memory, observation, mask))
        memory = fresh if memory is None else memory
        inputs = make_inputs(config, state.policy, observation, parts.last_step(memory))
        memory, values = one_step(network, state.policy.params.agent, memory, inputs)
        action = greedy(values, mask)
        if rng is not None:
            noise = parts.epsilon_noise(rng, action.shape, space.size)
            action = epsilon_greedy(values, config.eps_end, noise, mask)
        # The reward is not known yet.
        memory = parts.with_last_step(config, space, memory, action, 0.0 * action)
        return jax.tree.map(lambda x: x[0], (action, memory))

    return policy


def fresh_memory(config, space, *axes):
    """The memory of agents (*axes, ...); empty with cell="none"."""
    none = config.cell == "none"
    return parts.Memory(None, None) if none else parts.fresh_memory(config, space, *axes)


def make_inputs(config, policy, observation, previous):
    """The network's inputs, a tuple of arrays (..., num_agents, ...): the observation, with
    `agent_ids` the agent's number, one-hot, and `previous`, of `parts.last_step`."""
    x = policy.obs_stats.as_input(config, observation)
    leading = x.shape[: x.ndim - policy.obs_stats.mean.ndim]
    ids = (jnp.broadcast_to(jnp.eye(leading[-1]), (*leading, leading[-1])),)
    return (x, *(ids if config.agent_ids else ()), *previous)


def make_view(config, policy, inputs, world_state):
    """The monotonic mixer's view (num_steps, num_envs, size): the world state, normalised, or else
    the observations of all agents. None for other mixers."""
    if config.mixer != "monotonic":
        return None
    view = inputs[0]
    if world_state is not None:
        view = policy.world_stats.normalize(world_state, config.clip_obs)
    return view.reshape(*view.shape[:2], -1)


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    positive = ("num_steps", "update_epochs", "num_minibatches", "mixing_size")
    parts.check_cell(config, "none")
    words = {"mixer": ("none", "sum", "monotonic")}
    if config.mixer in ("iql", "vdn", "qmix"):
        raise ValueError(f"mixer={config.mixer!r}: IQL is none, VDN is sum, QMIX is monotonic")
    parts.check(
        INFO,
        config,
        env,
        env_params,
        *positive,
        minibatches_of="samples" if config.cell == "none" else "environments",
        words=words,
    )
    if config.previous_inputs and config.cell == "none":
        raise ValueError("previous_inputs=True needs a memory; cell='gru' would do")
    if config.mixer != "none" and getattr(env, "opponents", False):
        raise ValueError(
            f"mixer={config.mixer!r} learns the reward of a team, but agents of {env.name} are "
            "opponents, whose rewards go against one another: mixer='none' would do"
        )


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.
    Returns have the agents as last axis.

    Raises:
      ValueError: a setting that cannot work, or a space that VDN cannot take.
    """
    check(config, env, env_params)
    return parts.program(learner, config, env, env_params)


def learner(config: Config, env: Any, env_params: Any) -> parts.Learner:
    """The first state, an update (collects a rollout and learns from it), and the policy."""
    batch_size, num_agents = config.num_envs * config.num_steps, env.num_agents
    num_updates = parts.num_updates(config, batch_size)
    space = parts.ActionSpace(env.action_space(env_params))
    environments = envs.batch(env, config.num_envs, config.num_steps)
    network, mixer = QNetwork(config, space.size), Mixer(config)
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    radam = optax.scale_by_radam(eps=config.adam_eps)
    optimizer = lambda rate: parts.on_one_vector(optax.chain(clip, radam, optax.scale(-rate)))
    central = config.mixer == "monotonic"  # the mixer sees the world state
    shared = getattr(env, "shared_reward", False)
    # Each agent learns its team's reward, even after it left.
    alone = config.mixer == "none" and parts.earns_after_leaving(env)
    counted = lambda alive: jnp.ones_like(alive) if alone else alive  # detail 6
    world_of = lambda state: environments.world_state(state, env_params) if central else None

    def init(rng):
        order_rng, network_rng, reset_rng, rollout_rng, eval_rng = jax.random.split(rng, 5)
        agent_rng, mixer_rng = jax.random.split(network_rng)
        observation, env_state = environments.reset(reset_rng, env_params)
        world_state, stats = world_of(env_state), parts.RunningStatistics.create
        world_stats = None if world_state is None else stats(world_state.shape[1:])
        policy = PolicyState(None, stats(observation.shape[2:]), world_stats)
        alive = jnp.ones((config.num_envs, num_agents), bool)
        memory = fresh_memory(config, space, *alive.shape)
        inputs = make_inputs(config, policy, observation, parts.last_step(memory))
        first = inputs, alive, world_state
        inputs, present, world_state = jax.tree.map(lambda x: x[None], first)
        agent = network.init(agent_rng, memory, inputs, present[..., 0])
        view = make_view(config, policy, inputs, world_state)
        mixing = mixer.init(mixer_rng, 1.0 * present, present, view)
        params = Params(agent=agent, mixer=mixing)
        return TrainState(
            policy=policy.replace(params=params),
            opt_state=optimizer(0.0).init(params),
            env_state=env_state,
            observation=observation,
            alive=alive,
            memory=memory,
            episodes=environments.episodes((num_agents,)),
            rollout_rng=rollout_rng,
            order_rng=order_rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state):
        """Collects a rollout and learns from it."""
        epsilon, memory = epsilon_at(config, state.update / num_updates), state.memory
        state, rollout = collect(state, epsilon)
        state = update_world_stats(state, rollout)
        batch, value = prepare(state, rollout)
        state, metrics = learn(state, memory, batch)
        metrics |= {"mean_value": value, "epsilon": epsilon}
        return update_statistics(state.replace(update=state.update + 1), rollout), metrics

    def collect(state, epsilon):
        """Collects a rollout."""
        rng, start_rng, step_rng, noise_rng = jax.random.split(state.rollout_rng, 4)
        noise = parts.epsilon_noise(noise_rng, (config.num_steps, *state.alive.shape), space.size)

        def step(state, inputs):
            step_rng, noise = inputs
            previous = parts.last_step(state.memory)  # detail 11
            inputs = make_inputs(config, state.policy, state.observation, previous)
            memory, values = one_step(network, state.policy.params.agent, state.memory, inputs)
            mask = environments.action_mask(state.env_state, env_params)
            action = epsilon_greedy(values, epsilon, noise, mask)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, state.env_state, action, env_params
            )
            alive, done = info.get("alive", jnp.ones_like(state.alive)), terminated | truncated
            memory = parts.with_last_step(config, space, memory, action, reward, info)
            transition = Transition(
                observation=state.observation,
                previous=previous,
                world_state=world_of(state.env_state),
                action=action,
                value=of_action(values, greedy(values, mask)),
                reward=reward,
                alive=state.alive,
                terminated=terminated,
                done=done,
                final_observation=info["final_observation"],
                final_mask=info.get("final_action_mask"),
                final_world_state=info.get("final_world_state") if central else None,
                final_alive=alive,
                memory=memory,
            )
            alive = alive | done[:, None]  # after a restart all agents are alive
            state = state.replace(env_state=env_state, observation=observation, alive=alive)
            return state.replace(memory=parts.forget(memory, done)), transition  # detail 8

        env_state = environments.refill(start_rng, state.env_state, env_params)  # new start states
        state = state.replace(env_state=env_state, rollout_rng=rng)
        return parts.scan(step, state, (jax.random.split(step_rng, config.num_steps), noise))

    def update_world_stats(state, rollout):
        """Merges the rollout before the learning: acting uses no world states, and so even the
        first ones are normalised."""
        stats = state.policy.world_stats and state.policy.world_stats.update(rollout.world_state)
        return state.replace(policy=state.policy.replace(world_stats=stats))

    def prepare(state, rollout):
        """Sequences with targets, and the mean of the learned values."""
        policy = state.policy
        inputs = make_inputs(config, policy, rollout.observation, rollout.previous)
        view = make_view(config, policy, inputs, rollout.world_state)
        # detail 10: one more step from the memory after each observation, for all at once.
        previous = parts.last_step(rollout.memory)
        final_inputs = make_inputs(config, policy, rollout.final_observation, previous)
        final_view = make_view(config, policy, final_inputs, rollout.final_world_state)
        join = lambda x: x.reshape(batch_size, *x.shape[2:])
        flat = jax.tree.map(join, (rollout.memory, final_inputs))
        _, values = one_step(network, policy.params.agent, *flat)
        values = values.reshape(*rollout.alive.shape, -1)
        best = of_action(values, greedy(values, rollout.final_mask))
        alive, final_alive = counted(rollout.alive), counted(rollout.final_alive)
        # detail 4
        next_values = mixer.apply(policy.params.mixer, best, final_alive, final_view)
        reward, left = rollout.reward, ~final_alive  # next values of these agents are 0
        if config.mixer != "none":  # a team goes on without agents that left
            # detail 5
            reward, left = (reward.mean if shared else reward.sum)(-1, keepdims=True), False
        targets = q_lambda_targets(
            config.reward_scale * reward,
            next_values,
            rollout.terminated[..., None],
            rollout.done[..., None] | left,
            config.gamma,
            config.q_lambda,
        )
        values = mixer.apply(policy.params.mixer, rollout.value, alive, view)
        weight = alive if config.mixer == "none" else jnp.ones_like(values)
        batch = Batch(
            inputs=inputs,
            view=view,
            action=rollout.action,
            alive=alive,
            done=rollout.done,
            target=targets,
            weight=weight,
        )
        return batch, parts.mean(values, weight)

    def loss(params, memory, batch):
        """The weighted mean of (mix(Q_i(s, a_i)) - y)**2 / 2."""
        _, values = network.apply(params.agent, memory, batch.inputs, batch.done)
        values = of_action(values, batch.action)
        values = mixer.apply(params.mixer, values, batch.alive, batch.view)
        return 0.5 * parts.mean(jnp.square(values - batch.target), batch.weight)

    def learn(state, memory, batch):
        """Epochs of minibatches. `memory` is from before the rollout's first step."""
        rng, order_rng = jax.random.split(state.order_rng)
        if config.cell == "none":
            batch = jax.tree.map(lambda x: x.reshape(1, batch_size, *x.shape[2:]), batch)
        orders = parts.permutations(order_rng, config.update_epochs, batch.done.shape[1])
        rates = learning_rates(config, num_updates, state.update)
        orders = orders.reshape(len(rates), -1)

        def gradient_step(carry, inputs):
            (params, opt_state), (indices, rate) = carry, inputs
            first = jax.tree.map(lambda x: x[indices], memory)
            sequences = jax.tree.map(lambda x: x[:, indices], batch)  # detail 9
            total, grads = jax.value_and_grad(loss)(params, first, sequences)
            some = sequences.weight.any()  # of an agent that is there
            updates, moved = optimizer(rate).update(grads, opt_state, params)
            new = optax.apply_updates(params, updates), moved
            new = jax.tree.map(lambda x, y: jnp.where(some, x, y), new, carry)
            metrics = {"loss": total, "grad_norm": parts.global_norm(grads)}
            return new, metrics | {"current_learning_rate": rate * some, "some": 1.0 * some}

        start, inputs = (state.policy.params, state.opt_state), (orders, rates)
        (params, opt_state), metrics = parts.scan(gradient_step, start, inputs)
        state = state.replace(policy=state.policy.replace(params=params), opt_state=opt_state)
        means = jax.tree.map(jnp.mean, metrics)
        some = means.pop("some")  # share of minibatches with samples
        means = {name: parts.Average(x, some) for name, x in means.items()}
        return state.replace(order_rng=rng), means

    def update_statistics(state, rollout):
        """Merges the rollout into the statistics, after learning from it."""
        episodes = state.episodes.update(rollout.reward, rollout.done)
        state, obs_stats = state.replace(episodes=episodes), state.policy.obs_stats
        if config.normalize_obs:
            obs_stats = obs_stats.update(rollout.observation, rollout.alive)
        return state.replace(policy=state.policy.replace(obs_stats=obs_stats))

    return parts.Learner(init, update, make_policy(config, env, env_params), batch_size)


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
