"""Independent PPO with memory for several agents. A whole run is one XLA program.

Papers: de Witt et al. 2020, "Is independent learning all you need in the StarCraft multi-agent
challenge?", https://arxiv.org/abs/2011.09533; with `central_critic` Yu et al. 2022, "The surprising
effectiveness of PPO in cooperative multi-agent games" (MAPPO), https://arxiv.org/abs/2103.01955.

    python algorithms/ippo_rnn.py --preset switch_riddle --num-seeds 5
    python algorithms/ippo_rnn.py --env jaxmarl/HeuristicEnemySMAX --central-critic --share-params

    train = make_train(Config(env="Pursuit-v0"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 16))

This is ippo.py with a memory in front of the heads (parts/recurrence.py, parts/attention.py).
ippo.py says what a *network* is, and compares itself with JaxMARL. `learner` has a table of the
axes. The memory adds these details, as in ppo_rnn.py:
  1 Actor and critic have a memory each, as in JaxMARL's MAPPO. In JaxMARL's IPPO they share one.
  2 It runs on from rollout to rollout. It is zeroed where an agent's episode ended (terminated,
    truncated or, unless the reward is the team's, left), in collection and in learning alike.
  3 Sequences are learned whole, from the memory before the rollout. A sequence is one agent in one
    environment, and a minibatch is a set of sequences.
  4 Critics process a rollout after its collection. A final observation is valued with the memory of
    the episode that ends there. The memory itself does not advance.
  5 With `previous_inputs`, networks also see the last action and its reward, initially zeros.
As in ippo.py, no actor learns from steps of agents that left, or that allow a single action.
"""

import functools
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
    "title": "IPPO and MAPPO with a memory: recurrent cells, state spaces or attention",
    "use": "as IPPO, where agents must remember or send messages",
    "paper": "[de Witt et al. 2020](https://arxiv.org/abs/2011.09533), "
    "[Yu et al. 2022](https://arxiv.org/abs/2103.01955)",
    "family": "policy gradients",
    "actions": ("discrete", "continuous"),
    "masks": True,
    "agents": "several",
    "memory": True,
}


@struct.dataclass
class Config:
    env: str = static("Pursuit-v0")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # env settings, name=value,...
    total_timesteps: int = static(1_000_000)  # environment steps of the whole run
    num_envs: int = static(16)  # parallel environments
    num_steps: int = static(128)  # steps of each environment in a rollout
    share_params: bool = static(False)  # one network for all agents
    agent_ids: bool = static(False)  # with share_params: the agent's one-hot id is an input
    central_critic: bool = static(False)  # the critic sees the world state or all observations
    previous_inputs: bool = static(False)  # the last action and its reward are inputs
    update_epochs: int = static(4)  # passes of the actor over each rollout
    critic_epochs: int = static(4)  # passes of the critic over each rollout
    num_minibatches: int = static(4)  # gradient steps in a pass, each with its sequences
    learning_rate: float = real(1e-3, "[0, inf)")  # step size of the actor's Adam
    critic_learning_rate: float = real(1e-3, "[0, inf)")  # step size of the critic's Adam
    anneal_lr: bool = static(True)  # take the learning rates linearly to zero
    adam_eps: float = real(1e-5, "(0, inf)")  # epsilon of the actor's Adam
    critic_adam_eps: float = real(1e-5, "(0, inf)")  # epsilon of the critic's Adam
    gamma: float = real(0.99, "[0, 1]")  # discount factor
    gae_lambda: float = real(0.95, "[0, 1]")  # decay of the advantage trace
    clip_eps: float = real(0.2, "(0, inf]")  # range of the ratio, and of values with clip_vloss
    clip_vloss: bool = static(False)  # clip the value loss
    normalize_advantage: bool = static(True)  # standardise advantages in each minibatch
    ent_coef: float = real(0.01, "[0, inf)")  # weight of the entropy bonus
    vf_coef: float = real(0.5, "[0, inf)")  # weight of the value loss
    max_grad_norm: float = real(0.5, "(0, inf]")  # clip the actor's gradients to this; inf: never
    critic_max_grad_norm: float = real(0.5, "(0, inf]")  # clip the critic's gradients; inf: never
    target_kl: float = real(math.inf, "(0, inf]")  # end epochs at a KL above this; inf: never
    cell: str = static("gru")  # lstm, gru, mingru, minlstm, lru, s5 or gtrxl
    memory_size: int = static(64)  # size of the memory (LSTM, LRU, S5: twice)
    layers: int = static(1)  # stacked cells
    window: int = static(32)  # steps back that a gtrxl sees
    forget_bias: float = real(1.0, "(-inf, inf)")  # added to the gate that keeps the memory
    hidden_sizes: tuple[int, ...] = static((64,))  # dense layers before the memory
    activation: str = static("tanh")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    normalize_obs: bool = static(False)  # normalise observations by running mean and variance
    normalize_reward: bool = static(False)  # divide rewards by the std of discounted returns
    clip_obs: float = real(10.0, "(0, inf]")  # clip normalised observations to +- this
    clip_reward: float = real(10.0, "(0, inf]")  # clip normalised rewards to +- this
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------


class Actor(nn.Module):
    """Inputs (see parts.Recurrent) to the memories after each of them, and to
    distributions of actions."""

    config: Config
    space: parts.ActionSpace

    @nn.compact
    def __call__(self, memory, inputs, done, mask=None):
        """The mask is False for forbidden actions and for dimensions that the agent lacks."""
        memories = parts.Recurrent(self.config)(memory, inputs, done)
        size = self.space.size
        init = parts.orthogonal(0.01)
        output = parts.Dense(size, kernel_init=init, name="actor_head")(memories.hidden)
        if self.space.discrete:
            return memories, parts.Categorical(output, mask)
        log_std = self.param("log_std", nn.initializers.zeros, (size,))
        return memories, parts.Gaussian(output, jnp.broadcast_to(log_std, output.shape), mask)


class Critic(nn.Module):
    """Inputs (see parts.Recurrent) to the memories, and to values (num_steps, batch)."""

    config: Config

    @nn.compact
    def __call__(self, memory, inputs, done):
        memories = parts.Recurrent(self.config)(memory, inputs, done)
        head = parts.Dense(1, kernel_init=parts.orthogonal(1.0), name="critic_head")
        return memories, head(memories.hidden)[..., 0]


# --- data types -------------------------------------------------------------------------------


@struct.dataclass
class PolicyState:
    """The part of the state that acting needs; leading axis networks."""

    params: Any  # of the actors
    obs_stats: parts.RunningStatistics
    world_stats: parts.RunningStatistics | None  # statistics of world states; one for all networks


@struct.dataclass
class TrainState:
    """Everything that a run needs to continue."""

    policy: PolicyState
    critic_params: Any  # leading axis networks, like the next three
    opt_state: optax.OptState
    critic_opt_state: optax.OptState
    reward_scale: parts.RewardScale
    env_state: Any  # of `envs.batch`
    observation: jax.Array  # (num_envs, num_agents, ...)
    memory: parts.Memory  # actors' memory before the observation, (num_envs, num_agents, ...)
    critic_memory: parts.Memory  # (networks, samples, ...)
    alive: jax.Array  # (num_envs, num_agents)
    episodes: Any  # of `envs.batch`
    rollout_rng: jax.Array  # key for acting and the environments
    order_rng: jax.Array  # key for the order of sequences
    eval_rng: jax.Array  # constant: all evaluations use it
    update: jax.Array  # rollouts learned from so far, int32


class Transition(NamedTuple):
    """A rollout; leading axes (num_steps, num_envs, num_agents), or those of a Batch."""

    observation: jax.Array
    previous: tuple[jax.Array, ...]  # `parts.last_step`
    mask: jax.Array | None  # see Actor
    action: jax.Array  # unclipped
    log_prob: jax.Array
    reward: jax.Array
    alive: jax.Array  # when the agent acted
    terminated: jax.Array  # the episode ended, or the agent left
    done: jax.Array  # terminated or truncated
    final_observation: jax.Array  # after the actions, before any restart
    final_previous: tuple[jax.Array, ...]  # of the final observation


class Common(NamedTuple):
    """The part of a rollout that agents share; leading axes (num_steps, num_envs)."""

    done: jax.Array  # the episode ended
    world_state: jax.Array | None
    final_world_state: jax.Array | None


class Batch(NamedTuple):
    """Sequences of one network; leading axes (num_steps, samples), or those of a minibatch."""

    inputs: tuple[jax.Array, ...]  # of the actor
    critic_inputs: tuple[jax.Array, ...]
    rollout: Transition
    value: jax.Array
    advantage: jax.Array
    target: jax.Array


class Task(NamedTuple):
    """How an actor or a critic learns."""

    loss: Callable  # (params, memory before the minibatch, minibatch) -> loss, metrics
    optimizer: Callable  # of optax, with a learning rate
    learning_rate: jax.Array
    epochs: int
    weights: Callable  # Transition -> weights of samples, of the shape of its `alive`


class Learned(NamedTuple):
    """The carry of the epochs of an actor or a critic."""

    params: Any
    opt_state: optax.OptState
    epochs: jax.Array  # done, int32
    kl: jax.Array  # mean over the last epoch; 0 for a critic
    sums: dict[str, jax.Array]  # metrics, summed over epochs


# --- formulas ---------------------------------------------------------------------------------


def gae(rewards, values, next_values, terminated, done, gamma, gae_lambda):
    """A_t = delta_t + gamma lambda (1 - done_t) A_{t+1}, with A = 0 after the last step.

    delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t): equations 11-16 of Schulman et al.
    2016. All arrays are (num_steps, samples). `next_values` are V(s'_t) of the observations after
    the actions, before any restart. `done` also marks truncated episodes.
    """
    deltas = rewards + gamma * next_values * (1.0 - terminated) - values
    decays = gamma * gae_lambda * (1.0 - done)

    def step(later, inputs):
        delta, decay = inputs
        advantage = delta + decay * later
        return advantage, advantage

    none = jnp.zeros_like(deltas[0])
    return parts.scan(step, none, (deltas, decays), reverse=True)[1]


def clipped_surrogate(log_ratio, advantages, clip_eps):
    """-min(q A, clip(q, 1 - eps, 1 + eps) A), q = exp(log_ratio), elementwise: the terms of
    equation 7 of Schulman et al. 2017, negated."""
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip_eps, 1.0 + clip_eps)
    return -jnp.minimum(ratio * advantages, clipped * advantages)


def value_error(values, old_values, targets, clip_eps, clip):
    """(V - y)**2 / 2, elementwise; with `clip` max((V - y)**2, (V_c - y)**2) / 2, where
    V_c = V_old + clip(V - V_old, -eps, eps)."""
    error = jnp.square(values - targets)
    if clip:
        kept = old_values + jnp.clip(values - old_values, -clip_eps, clip_eps)
        error = jnp.maximum(error, jnp.square(kept - targets))
    return 0.5 * error


def choosing(space, rollout):
    """Where an agent is alive and, of discrete actions, has more than one to choose from; bool."""
    if rollout.mask is None or not space.discrete:
        return rollout.alive
    return rollout.alive & (rollout.mask.sum(-1) > 1)


def kl_estimate(log_ratio):
    """q - 1 - log q, terms of the k3 estimate of KL(old, new): joschu.net/blog/kl-approx.html."""
    return jnp.expm1(log_ratio) - log_ratio


def clipped_adam(max_grad_norm, eps):
    """Adam on gradients clipped to a global norm: a function of its learning rate."""
    chain = optax.clip_by_global_norm(max_grad_norm), optax.scale_by_adam(eps=eps)
    return lambda rate: parts.on_one_vector(optax.chain(*chain, optax.scale(-rate)))


def learning_rates(config, task, update, epoch):
    """learning_rate (1 - p) for each gradient step of an epoch, (num_minibatches,), with nominal
    progress p in [0, 1] through the run: epochs that end early do not delay annealing."""
    epochs = update.astype(jnp.float32) * task.epochs + epoch
    done = epochs + jnp.arange(config.num_minibatches) / config.num_minibatches
    updates = parts.num_updates(config, config.num_envs * config.num_steps)
    left = jnp.maximum(1.0 - done / float(updates * task.epochs), 0.0)
    return task.learning_rate * (left if config.anneal_lr else jnp.ones_like(left))


# --- acting and training ----------------------------------------------------------------------


def make_inputs(config, policy, observation, previous, world_state=None):
    """Inputs of actors and critics: tuples of arrays (num_envs, num_agents, ...).

    Central critics see the world state (num_envs, ...), or all observations if there is none. With
    `agent_ids` the agent's number follows, one-hot; then `previous`, of `parts.last_step`.
    """
    x = critic_x = policy.obs_stats.as_input(config, observation)
    num_envs, num_agents = x.shape[:2]
    if config.central_critic:
        stats = policy.world_stats
        view = x if world_state is None else stats.as_input(config, world_state)
        critic_x = jnp.repeat(view.reshape(num_envs, 1, -1), num_agents, axis=1)
    if config.agent_ids:
        ids = jnp.broadcast_to(jnp.eye(num_agents), (num_envs, num_agents, num_agents))
        previous = (ids, *previous)
    return (x, *previous), (critic_x, *previous)


@parts.with_environment
def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None, mask=None) -> action, memory.

    For all agents of one environment: observation, action and memory (num_agents, ...). Without rng
    the most probable actions, or the means; with rng samples. memory=None is a fresh memory.
    mask (num_agents, num_actions): `env.action_mask`, the allowed actions.
    With previous_inputs, pass rewards back: memory = envs.evaluation.rewarded(memory, reward).
    """
    space = parts.ActionSpace(env.action_space(env_params))
    actor = Actor(config, space)
    present = getattr(env, "action_dimensions", 1)  # 0 where only others have a dimension

    def policy(state, observation, memory=None, rng=None, mask=None):
        if memory is None:
            memory = parts.fresh_memory(config, space, env.num_agents)
        inputs = jax.tree.map(lambda x: x[None], (memory, observation, mask))
        memory, actions = act(config, actor, state.policy, *inputs)
        zeros = jnp.zeros((1, env.num_agents))
        action = actions.mode() if rng is None else actions.sample(seed=rng)
        action = present * space.clip(action)
        memory = parts.with_last_step(config, space, memory, action, zeros)  # no reward yet
        return jax.tree.map(lambda x: x[0], (action, memory))

    return policy


def act(config, actor, policy, memory, observation, mask):
    """Memories after observations (num_envs, num_agents, ...), and the actions' distributions."""
    inputs, _ = make_inputs(config, policy, observation, parts.last_step(memory))
    folded = parts.fold(config, (memory, inputs, mask))
    after = jax.vmap(functools.partial(parts.one_step, actor))(policy.params, *folded)
    return parts.unfold(config, after, observation.shape[1])


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    positive = ("num_steps", "update_epochs", "critic_epochs", "num_minibatches")
    parts.check_cell(config)
    parts.check(INFO, config, env, env_params, *positive, unit_std=True)
    if config.agent_ids and not config.share_params:
        raise ValueError("agent_ids=True needs share_params=True")
    sequences = config.num_envs * (env.num_agents if config.share_params else 1)
    what = f"the {sequences} sequences of a rollout"
    parts.check_divides("num_minibatches", config.num_minibatches, what, sequences)
    if config.normalize_advantage and sequences * config.num_steps == config.num_minibatches:
        zeroed = "one sample to a minibatch, and normalize_advantage zeroes it"
        raise ValueError(f"num_steps=1: {zeroed}; 2 would do")


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.
    Returns and, with share_params=False, losses have the agents as last axis.

    Raises:
      ValueError: a setting that cannot work, or a space that IPPO cannot take.
    """
    check(config, env, env_params)
    return parts.program(learner, config, env, env_params)


def learner(config: Config, env: Any, env_params: Any) -> parts.Learner:
    """The first state, an update (a rollout and the learning from it), and the policy.

    Leading axes of arrays; (networks, samples) is (num_agents, num_envs), with share_params
    (1, num_envs * num_agents):

        (num_envs, num_agents)             a step: observations, masks, actions, rewards, memories
        (num_steps, num_envs, num_agents)  a rollout: Transition
        (num_steps, num_envs)              a rollout: Common
        (networks, samples)                a step, by `parts.fold`, and critics' memories
        (networks, num_steps, samples)     a rollout, by `parts.fold_rollout`, or fewer samples
        (networks,)                        parameters, optimiser states, statistics, metrics
    """
    batch_size, num_agents = config.num_envs * config.num_steps, env.num_agents
    num_networks = 1 if config.share_params else num_agents
    samples = config.num_envs * num_agents // num_networks  # sequences of a network
    environments = envs.batch(env, config.num_envs, config.num_steps)
    space = parts.ActionSpace(env.action_space(env_params))
    present = getattr(env, "action_dimensions", 1)
    actor, critic = Actor(config, space), Critic(config)
    team = parts.earns_after_leaving(env)
    actor_weights = functools.partial(choosing, space)
    critic_weights = lambda of: jnp.ones_like(of.alive) if team else of.alive
    central = config.central_critic  # whether critics see the world state, if there is one
    world_of = lambda state: environments.world_state(state, env_params) if central else None

    def init(rng):
        order_rng, actor_rng, critic_rng, env_rng, rollout_rng, eval_rng = jax.random.split(rng, 6)
        observation, env_state = environments.reset(env_rng, env_params)
        world_state, stats = world_of(env_state), parts.RunningStatistics.create
        world_stats = None if world_state is None else stats(world_state.shape[1:])
        per_network = lambda tree: jax.tree.map(lambda x: jnp.stack([x] * num_networks), tree)
        obs_stats = per_network(stats(observation.shape[2:]))
        policy = PolicyState(params=None, obs_stats=obs_stats, world_stats=world_stats)
        memory = parts.fresh_memory(config, space, config.num_envs, num_agents)
        x, critic_x = make_inputs(config, policy, observation, parts.last_step(memory), world_state)

        def parameters(network, key, x):
            sequence = jax.tree.map(lambda x: x[:, None], parts.fold(config, x))  # of one step
            done = jnp.zeros((num_networks, 1, samples), bool)
            arrays = parts.fold(config, memory), sequence, done
            return jax.vmap(network.init)(jax.random.split(key, num_networks), *arrays)

        params = parameters(actor, actor_rng, x)
        critic_params = parameters(critic, critic_rng, critic_x)
        return TrainState(
            policy=policy.replace(params=params),
            critic_params=critic_params,
            opt_state=jax.vmap(for_actor.optimizer(0.0).init)(params),
            critic_opt_state=jax.vmap(for_critic.optimizer(0.0).init)(critic_params),
            reward_scale=per_network(parts.RewardScale.create(samples)),
            env_state=env_state,
            observation=observation,
            memory=memory,  # detail 1
            critic_memory=parts.fold(config, memory._replace(action=None, reward=None)),
            alive=jnp.ones((config.num_envs, num_agents), bool),
            episodes=environments.episodes((num_agents,)),
            rollout_rng=rollout_rng,
            order_rng=order_rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state):
        """Collects a rollout and learns from it."""
        memory = parts.fold(config, state.memory)
        state, (rollout, common) = collect(state)
        batch, critic_memory = prepare(state, rollout, common)
        order_rng, actor_rng, critic_rng = jax.random.split(state.order_rng, 3)

        def learn_all(task, rng, *of_networks):
            """All actors or all critics: `learn` for one network, by jax.vmap."""
            one = functools.partial(learn, task, state.update)
            return jax.vmap(one)(*of_networks, batch, jax.random.split(rng, num_networks))

        old = state.policy.params, state.opt_state, memory
        critic_old = state.critic_params, state.critic_opt_state, state.critic_memory
        actors, metrics = learn_all(for_actor, actor_rng, *old)
        critics, critic_metrics = learn_all(for_critic, critic_rng, *critic_old)
        values, targets, weights = batch.value, batch.target, critic_weights(batch.rollout)
        metrics |= {
            "epochs": actors.epochs,
            "value_loss": critic_metrics["value_loss"],
            "critic_grad_norm": critic_metrics["grad_norm"],
            "mean_value": parts.Average(jax.vmap(parts.mean)(values, weights), weights.any((1, 2))),
            "explained_variance": jax.vmap(parts.explained_variance)(values, targets, weights),
        }
        if config.share_params:  # no axis of networks
            metrics = jax.tree.map(lambda x: x[0], metrics)
        state = state.replace(
            policy=state.policy.replace(params=actors.params),
            critic_params=critics.params,
            opt_state=actors.opt_state,
            critic_opt_state=critics.opt_state,
            critic_memory=critic_memory,
            order_rng=order_rng,
            update=state.update + 1,
        )
        return update_statistics(state, rollout, common), metrics

    def collect(state):
        """Collects a rollout. `prepare` computes values, for all steps at once."""
        rng, start_rng, step_rng, noise_rng = jax.random.split(state.rollout_rng, 4)
        shape = config.num_steps, config.num_envs, num_agents
        noise = space.noise(noise_rng, shape)

        def step(state, inputs):
            step_rng, noise = inputs
            mask = parts.mask_of_agents(environments, state.env_state, env_params)
            world_state = world_of(state.env_state)
            seen = state.memory, state.observation, mask
            memory, actions = act(config, actor, state.policy, *seen)
            action = space.sample(actions, noise, step_rng)
            taken = present * space.clip(action)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, state.env_state, taken, env_params
            )
            memory = parts.with_last_step(config, space, memory, taken, reward, info)
            alive = info.get("alive", jnp.ones_like(state.alive))
            done = terminated | truncated
            left = jnp.zeros_like(alive) if team else ~alive  # a team's return goes on
            transition = Transition(
                observation=state.observation,
                previous=parts.last_step(state.memory),  # detail 5
                mask=mask,
                action=action,
                log_prob=actions.log_prob(action),
                reward=reward,
                alive=state.alive,
                terminated=terminated[:, None] | left,
                done=done[:, None] | left,
                final_observation=info["final_observation"],
                final_previous=parts.last_step(memory),
            )
            final = info.get("final_world_state") if central else None
            alive = alive | done[:, None]  # after a restart all agents are alive
            state = state.replace(env_state=env_state, observation=observation, alive=alive)
            state = state.replace(memory=parts.forget(memory, transition.done))  # detail 2
            common = Common(done=done, world_state=world_state, final_world_state=final)
            return state, (transition, common)

        env_state = environments.refill(start_rng, state.env_state, env_params)  # new start states
        state = state.replace(env_state=env_state, rollout_rng=rng)
        return parts.scan(step, state, (jax.random.split(step_rng, config.num_steps), noise))

    def prepare(state, rollout, common):
        """The Batch of all networks, with advantages and targets; critics' memories after it."""
        every_step = jax.vmap(functools.partial(make_inputs, config, state.policy))
        inputs = every_step(rollout.observation, rollout.previous, common.world_state)
        final = rollout.final_observation, rollout.final_previous, common.final_world_state
        _, final_inputs = every_step(*final)

        def batch(params, memory, reward_scale, folded):
            """The Batch of one network, from arrays (num_steps, samples, ...)."""
            (inputs, critic_inputs), final_inputs, rollout = folded
            memories, values = critic.apply(params, memory, critic_inputs, rollout.done)
            # detail 4: one more step from the memory after each observation, for all at once.
            flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (memories, final_inputs))
            next_values = parts.one_step(critic, params, *flat)[1].reshape(values.shape)
            reward = rollout.reward
            if config.normalize_reward:
                reward = reward_scale.scale(reward, config.clip_reward)
            advantages = gae(
                rewards=reward,
                values=values,
                next_values=next_values,
                terminated=rollout.terminated,
                done=rollout.done,
                gamma=config.gamma,
                gae_lambda=config.gae_lambda,
            )
            after = parts.forget(jax.tree.map(lambda x: x[-1], memories), rollout.done[-1])
            return Batch(
                inputs=inputs,
                critic_inputs=critic_inputs,
                rollout=rollout,
                value=values,
                advantage=advantages,
                target=advantages + values,
            ), after

        folded = parts.fold_rollout(config, (inputs, final_inputs, rollout))
        return jax.vmap(batch)(state.critic_params, state.critic_memory, state.reward_scale, folded)

    def actor_loss(params, memory, batch):
        rollout, advantages, weights = batch.rollout, batch.advantage, actor_weights(batch.rollout)
        _, actions = actor.apply(params, memory, batch.inputs, rollout.done, rollout.mask)
        log_prob, entropy = actions.log_prob(rollout.action), actions.entropy()
        log_ratio, entropy = log_prob - rollout.log_prob, parts.mean(entropy, weights)
        if config.normalize_advantage:
            advantages -= parts.mean(advantages, weights)
            advantages /= jnp.sqrt(parts.mean(jnp.square(advantages), weights)) + 1e-8
        policy_loss = parts.mean(clipped_surrogate(log_ratio, advantages, config.clip_eps), weights)
        return policy_loss - config.ent_coef * entropy, {
            "policy_loss": policy_loss,
            "entropy": entropy,
            "approx_kl": parts.mean(kl_estimate(log_ratio), weights),
            "clip_fraction": parts.mean(jnp.abs(jnp.expm1(log_ratio)) > config.clip_eps, weights),
        }

    def critic_loss(params, memory, batch):
        _, values = critic.apply(params, memory, batch.critic_inputs, batch.rollout.done)
        error = value_error(values, batch.value, batch.target, config.clip_eps, config.clip_vloss)
        value_loss = parts.mean(error, critic_weights(batch.rollout))
        return config.vf_coef * value_loss, {"value_loss": value_loss}

    for_actor = Task(
        loss=actor_loss,
        optimizer=clipped_adam(config.max_grad_norm, config.adam_eps),
        learning_rate=config.learning_rate,
        epochs=config.update_epochs,
        weights=actor_weights,
    )
    for_critic = Task(
        loss=critic_loss,
        optimizer=clipped_adam(config.critic_max_grad_norm, config.critic_adam_eps),
        learning_rate=config.critic_learning_rate,
        epochs=config.critic_epochs,
        weights=critic_weights,
    )

    def learn(task, update, params, opt_state, memory, batch, order_rng):
        """Epochs of minibatches for one network, until the KL of an epoch exceeds target_kl."""
        orders = parts.permutations(order_rng, task.epochs, samples)

        def gradient_step(carry, inputs):
            (params, opt_state), (indices, rate) = carry, inputs
            first = jax.tree.map(lambda x: x[indices], memory)  # from before the rollout
            sequences = jax.tree.map(lambda x: x[:, indices], batch)  # detail 3
            grads, metrics = jax.grad(task.loss, has_aux=True)(params, first, sequences)
            some = task.weights(sequences.rollout).any()
            updates, moved = task.optimizer(rate).update(grads, opt_state, params)
            new = optax.apply_updates(params, updates), moved
            new = jax.tree.map(lambda x, y: jnp.where(some, x, y), new, (params, opt_state))
            metrics |= {"grad_norm": parts.global_norm(grads), "current_learning_rate": rate * some}
            return new, metrics | {"living": 1.0 * some}

        def epoch(learned):
            order = orders[learned.epochs].reshape(config.num_minibatches, -1)
            rates = learning_rates(config, task, update, learned.epochs)
            start = learned.params, learned.opt_state
            (params, opt_state), metrics = parts.scan(gradient_step, start, (order, rates))
            sums = jax.tree.map(lambda total, x: total + x.mean(), learned.sums, metrics)
            kl = parts.mean(metrics.get("approx_kl", 0.0), metrics["living"])
            epochs = learned.epochs + 1
            return Learned(params=params, opt_state=opt_state, epochs=epochs, kl=kl, sums=sums)

        def unfinished(learned):
            return (learned.epochs < task.epochs) & ~(learned.kl > config.target_kl)

        zero, count = jnp.zeros(()), jnp.zeros((), jnp.int32)
        sums = jax.tree.map(jnp.zeros_like, jax.eval_shape(task.loss, params, memory, batch)[1])
        sums |= {"grad_norm": zero, "current_learning_rate": zero, "living": zero}
        start = Learned(params=params, opt_state=opt_state, epochs=count, kl=zero, sums=sums)
        ended = jax.lax.while_loop(unfinished, epoch, start)
        means = {name: total / ended.epochs for name, total in ended.sums.items()}
        living = means.pop("living")  # share of minibatches with samples
        return ended, {name: parts.Average(x, living) for name, x in means.items()}

    def update_statistics(state, rollout, common):
        """Merges the rollout into the statistics, after learning from it."""
        state = state.replace(episodes=state.episodes.update(rollout.reward, common.done))
        policy, rollout = state.policy, parts.fold_rollout(config, rollout)
        if config.normalize_obs:
            merge = jax.vmap(parts.RunningStatistics.update)
            obs_stats = merge(policy.obs_stats, rollout.observation, rollout.alive)
            policy = policy.replace(obs_stats=obs_stats)
        if config.normalize_obs and policy.world_stats is not None:
            policy = policy.replace(world_stats=policy.world_stats.update(common.world_state))
        if config.normalize_reward:
            merge = jax.vmap(parts.RewardScale.update, (0, 0, 0, None, 0))
            arrays = rollout.reward, rollout.done, config.gamma, critic_weights(rollout)
            state = state.replace(reward_scale=merge(state.reward_scale, *arrays))
        return state.replace(policy=policy)

    return parts.Learner(init, update, make_policy(config, env, env_params), batch_size)


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
