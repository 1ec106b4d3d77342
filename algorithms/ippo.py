"""Independent PPO for several agents in one environment. A whole run is one XLA program.

Papers: de Witt et al. 2020, "Is independent learning all you need in the StarCraft multi-agent
challenge?", https://arxiv.org/abs/2011.09533; with `central_critic` Yu et al. 2022, "The surprising
effectiveness of PPO in cooperative multi-agent games" (MAPPO), https://arxiv.org/abs/2103.01955.

    python algorithms/ippo.py --env Pursuit-v0 --seed 0
    python algorithms/ippo.py --preset MultiNavigator-v0 --num-seeds 5
    python algorithms/ippo.py --env jaxmarl/MPE_simple_spread_v3 --share-params

    train = make_train(Config(env="Pursuit-v0"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 16))

With share_params=False every agent has its own *network*: actor, critic, optimisers, losses,
clipping, statistics and KL early stop. With share_params=True one network serves all agents.
Learning is written for one network, and jax.vmap does it for all. `learner` has a table of the
axes.

JaxMARL's IPPO scripts (baselines/IPPO) are this algorithm with share_params=True and
clip_vloss=True; its MAPPO scripts have central_critic=True, too. NUM_ACTORS is num_envs *
num_agents. Unlike JaxMARL, here
  - a truncated episode bootstraps from its final observation, instead of ending with value 0;
  - learning rates fall at every gradient step, instead of after every rollout;
  - actor and critic have an optimiser each, as in JaxMARL's MAPPO; its IPPO has one for both;
  - no actor learns from the steps of agents that left (detail 6);
  - `agent_ids` are inputs of actors, too. JaxMARL's MAPPO on SMAX gives them to critics only.

Implementation details, in addition to those of ppo.py (Huang et al. 2022), which are marked there:
  1 Actor and critic have an optimiser, learning rate, clipping and number of epochs each. Settings
    without a prefix are the actor's.
  2 The epochs of an actor end when the mean KL estimate of the last epoch exceeds target_kl. Its
    critic continues.
  3 Minibatches of shuffled samples, or of whole trajectories (one agent over a rollout).
  4 A central critic sees the environment's world state, or without one all observations (Yu et
    al.).
  5 With `agent_ids`, a shared network also sees the agent's number, one-hot.
  6 No actor learns from the steps of an agent that has left (`info["alive"]`). The agent's own
    rewards end with it. A team's reward (`env.shared_reward`) ends with the episode, and critics
    learn from these steps too.
  7 Forbidden actions (`env.action_mask`) get logits of -1e9. Dimensions that only other agents have
    (`env.action_dimensions`) are left out of log_prob and entropy.
  8 No actor learns from steps that allow a single action, such as those of a player who waits for
    the other's move. They count neither in the entropy nor in the standardised advantages. Critics
    learn from them.
  9 With `average_actor`, policies act by the mean of the actors of the last updates. Self-play in
    games with hidden cards circles around an equilibrium, and the mean is nearer to it. Rollouts
    and learning do not use it.
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
from envs import exploitability

INFO = {
    "title": "PPO for several agents, independent (IPPO) or with a central critic (MAPPO)",
    "use": "first choice for several agents; with a central critic for teams",
    "paper": "[de Witt et al. 2020](https://arxiv.org/abs/2011.09533), "
    "[Yu et al. 2022](https://arxiv.org/abs/2103.01955)",
    "family": "policy gradients",
    "actions": ("discrete", "continuous"),
    "masks": True,
    "agents": "several",
    "memory": False,
    "split": True,
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
    minibatch_of: str = static("samples")  # samples, or trajectories: an agent's rollouts
    update_epochs: int = static(4)  # passes of the actor over each rollout
    critic_epochs: int = static(4)  # passes of the critic over each rollout
    num_minibatches: int = static(4)  # gradient steps in a pass
    learning_rate: float = real(1e-3, "[0, inf)")  # step size of the actor's Adam
    critic_learning_rate: float = real(1e-3, "[0, inf)")  # step size of the critic's Adam
    anneal_lr: bool = static(True)  # take the learning rates linearly to zero
    average_actor: bool = static(False)  # policies act by a running mean of the actor's parameters
    average_share: float = real(0.2, "[0, 1]")  # about the share of updates that this mean covers
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
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers of actor and critic
    activation: str = static("tanh")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    compute_dtype: str = static("float32")  # dtype of hidden layers: float32 or bfloat16
    normalize_obs: bool = static(False)  # normalise observations by running mean and variance
    normalize_reward: bool = static(False)  # divide rewards by the std of discounted returns
    clip_obs: float = real(10.0, "(0, inf]")  # clip normalised observations to +- this
    clip_reward: float = real(10.0, "(0, inf]")  # clip normalised rewards to +- this
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------


class Actor(nn.Module):
    """Inputs (batch, ...) to distributions of actions."""

    config: Config
    space: parts.ActionSpace

    @nn.compact
    def __call__(self, x, mask=None):
        """The mask is False for forbidden actions and for dimensions that the agent lacks."""
        c, size = self.config, self.space.size
        x = parts.Torso(c.hidden_sizes, c.activation, c.conv_layers, dtype=c.compute_dtype)(x)
        output = parts.Dense(size, kernel_init=parts.orthogonal(0.01), name="actor_head")(x)
        if self.space.discrete:
            return parts.Categorical(output, mask)  # detail 7
        log_std = self.param("log_std", nn.initializers.zeros, (size,))
        return parts.Gaussian(output, jnp.broadcast_to(log_std, output.shape), mask)


class Critic(nn.Module):
    """Inputs (batch, ...) to values (batch,)."""

    config: Config

    @nn.compact
    def __call__(self, x):
        c = self.config
        x = parts.Torso(c.hidden_sizes, c.activation, c.conv_layers, dtype=c.compute_dtype)(x)
        return parts.Dense(1, kernel_init=parts.orthogonal(1.0), name="critic_head")(x)[..., 0]


# --- data types -------------------------------------------------------------------------------


@struct.dataclass
class PolicyState:
    """The part of the state that acting needs; leading axis networks."""

    params: Any  # of the actors
    obs_stats: parts.RunningStatistics
    world_stats: parts.RunningStatistics | None  # statistics of world states; one for all networks
    average: Any = None  # with config.average_actor: the mean of params (detail 9)


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
    alive: jax.Array  # (num_envs, num_agents)
    episodes: Any  # of `envs.batch`
    rollout_rng: jax.Array  # key for acting and the environments
    order_rng: jax.Array  # key for the order of samples
    eval_rng: jax.Array  # constant: all evaluations use it
    update: jax.Array  # rollouts learned from so far, int32


class Transition(NamedTuple):
    """A rollout; leading axes (num_steps, num_envs, num_agents), or the one of a Batch."""

    observation: jax.Array
    mask: jax.Array | None  # see Actor
    action: jax.Array  # unclipped
    reward: jax.Array
    alive: jax.Array  # when the agent acted
    terminated: jax.Array  # the episode ended, or the agent left
    done: jax.Array  # terminated or truncated
    final_observation: jax.Array  # after the actions, before any restart


class Common(NamedTuple):
    """The part of a rollout that agents share; leading axes (num_steps, num_envs)."""

    done: jax.Array  # the episode ended
    world_state: jax.Array | None
    final_world_state: jax.Array | None


class Batch(NamedTuple):
    """Samples of one network; leading axis num_steps * samples, or that of a minibatch."""

    observation: jax.Array  # input of the actor
    critic_observation: jax.Array  # input of the critic
    rollout: Transition
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array


class Task(NamedTuple):
    """How an actor or a critic learns."""

    loss: Callable  # (params, minibatch) -> loss, metrics
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


def running_mean(mean, params, number, share):
    """m + (p - m) / max(1, share n) after n updates: a mean over about the last share of them, in
    which update k weighs about k**(1 / share - 1), as in Shamir and Zhang 2013, section 4."""
    return jax.tree.map(lambda m, p: m + (p - m) / jnp.maximum(share * number, 1.0), mean, params)


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


def make_inputs(config, policy, observation, world_state=None):
    """Inputs of actors and critics (num_envs, num_agents, ...) from observations of that shape.

    Central critics see the world state (num_envs, ...), or all observations if there is none. With
    `agent_ids`, the agent's number follows, one-hot.
    """
    x = critic_x = policy.obs_stats.as_input(config, observation)
    num_envs, num_agents = x.shape[:2]
    if config.central_critic:  # detail 4
        stats = policy.world_stats
        view = x if world_state is None else stats.as_input(config, world_state)
        critic_x = jnp.repeat(view.reshape(num_envs, 1, -1), num_agents, axis=1)
    if config.agent_ids:  # detail 5
        ids = jnp.broadcast_to(jnp.eye(num_agents), (num_envs, num_agents, num_agents))
        x, critic_x = (jnp.concatenate([x, ids], axis=-1) for x in (x, critic_x))
    return x, critic_x


@parts.with_environment
def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None, mask=None) -> action, memory.

    The policy is for all agents of one environment: observation and action (num_agents, ...).
    Without rng it takes the most probable actions, or the means; with rng it takes samples. mask
    (num_agents, num_actions): `env.action_mask`, the allowed actions.
    """
    space = parts.ActionSpace(env.action_space(env_params))
    network = Actor(config, space)

    def policy(state, observation, memory=None, rng=None, mask=None):
        mask = None if mask is None else mask[None]
        actions = act(config, network, evaluated(state.policy), observation[None], mask)
        action = actions.mode() if rng is None else actions.sample(seed=rng)
        return space.clip(parts.unfold(config, action, env.num_agents)[0]), memory

    return policy


@parts.with_environment
def make_probabilities(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns probabilities(state, observation, mask) of the policy that samples discrete actions.

    Of one environment, as for `make_policy`: (num_agents, num_actions).
    """
    network = Actor(config, parts.ActionSpace(env.action_space(env_params)))

    def probabilities(state, observation, mask):
        actions = act(config, network, evaluated(state.policy), observation[None], mask[None])
        return parts.unfold(config, actions.probs, env.num_agents)[0]

    return probabilities


def evaluated(policy):
    """The policy as others see it: detail 9."""
    return policy if policy.average is None else policy.replace(params=policy.average)


def act(config, network, policy, observation, mask):
    """Distributions of actions (networks, samples), on observations (num_envs, num_agents, ...)."""
    x, _ = make_inputs(config, policy, observation)
    return jax.vmap(network.apply)(policy.params, *parts.fold(config, (x, mask)))


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    sizes = ("num_steps", "update_epochs", "critic_epochs", "num_minibatches")
    words = {"minibatch_of": ("samples", "trajectories")}
    parts.check(INFO, config, env, env_params, *sizes, unit_std=True, words=words)
    shape = env.observation_space(env_params).shape
    if config.agent_ids and not (config.share_params and len(shape) == 1):
        raise ValueError("agent_ids=True needs share_params=True and flat observations (n,)")
    size = config.num_envs * config.num_steps * (env.num_agents if config.share_params else 1)
    count = size // (config.num_steps if config.minibatch_of == "trajectories" else 1)
    what = f"the {count} {config.minibatch_of} of a rollout"
    parts.check_divides("num_minibatches", config.num_minibatches, what, count)
    parts.check_samples(config, size)


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

        (num_envs, num_agents)             a step: observations, masks, actions, rewards
        (num_steps, num_envs, num_agents)  a rollout: Transition
        (num_steps, num_envs)              a rollout: Common
        (networks, samples)                a step, by `parts.fold`, undone by `parts.unfold`
        (networks, num_steps, samples)     a rollout, by `parts.fold_rollout`
        (networks, num_steps * samples)    a Batch; a minibatch has fewer samples
        (networks,)                        parameters, optimiser states, statistics, metrics
    """
    batch_size, num_agents = config.num_envs * config.num_steps, env.num_agents
    num_networks = 1 if config.share_params else num_agents
    samples = config.num_envs * num_agents // num_networks  # samples of a network at one step
    environments = envs.batch(env, config.num_envs, config.num_steps)
    space = parts.ActionSpace(env.action_space(env_params))
    actor, critic = Actor(config, space), Critic(config)
    team = parts.earns_after_leaving(env)
    actor_weights = functools.partial(choosing, space)
    critic_weights = lambda of: jnp.ones_like(of.alive) if team else of.alive  # detail 6
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
        x, critic_x = make_inputs(config, policy, observation, world_state)

        def parameters(network, key, x):
            start = lambda key: network.init(key, parts.fold(config, x)[0])
            return jax.vmap(start)(jax.random.split(key, num_networks))

        params = parameters(actor, actor_rng, x)
        critic_params = parameters(critic, critic_rng, critic_x)
        return TrainState(
            policy=policy.replace(params=params, average=params if config.average_actor else None),
            critic_params=critic_params,
            opt_state=jax.vmap(for_actor.optimizer(0.0).init)(params),
            critic_opt_state=jax.vmap(for_critic.optimizer(0.0).init)(critic_params),
            reward_scale=per_network(parts.RewardScale.create(samples)),
            env_state=env_state,
            observation=observation,
            alive=jnp.ones((config.num_envs, num_agents), bool),
            episodes=environments.episodes((num_agents,)),
            rollout_rng=rollout_rng,
            order_rng=order_rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state):
        """Collects a rollout and learns from it."""
        state, (rollout, common) = collect(state)
        batch = prepare(state, rollout, common)
        order_rng, actor_rng, critic_rng = jax.random.split(state.order_rng, 3)

        def learn_all(task, params, opt_state, rng):
            """All actors or all critics: `learn` for one network, by jax.vmap."""
            one = functools.partial(learn, task, state.update)
            return jax.vmap(one)(params, opt_state, batch, jax.random.split(rng, num_networks))

        old = state.critic_params, state.critic_opt_state
        actors, metrics = learn_all(for_actor, state.policy.params, state.opt_state, actor_rng)
        critics, critic_metrics = learn_all(for_critic, *old, critic_rng)
        values, targets, weights = batch.value, batch.target, critic_weights(batch.rollout)
        metrics |= {
            "epochs": actors.epochs,
            "value_loss": critic_metrics["value_loss"],
            "critic_grad_norm": critic_metrics["grad_norm"],
            "mean_value": parts.Average(
                jax.vmap(parts.mean)(values, weights), parts.any_over_shards(weights.any(1))
            ),
            "explained_variance": jax.vmap(parts.explained_variance)(values, targets, weights),
        }
        if config.share_params:  # no axis of networks
            metrics = jax.tree.map(lambda x: x[0], metrics)
        policy, number = state.policy.replace(params=actors.params), state.update + 1
        if config.average_actor:
            mean = running_mean(policy.average, policy.params, number, config.average_share)
            policy = policy.replace(average=mean)
        state = state.replace(
            policy=policy,
            critic_params=critics.params,
            opt_state=actors.opt_state,
            critic_opt_state=critics.opt_state,
            order_rng=order_rng,
            update=number,
        )
        return update_statistics(state, rollout, common), metrics

    def collect(state):
        """Collects a rollout. `prepare` computes values and log_probs, for all steps at once."""
        rng, start_rng, step_rng, noise_rng = jax.random.split(state.rollout_rng, 4)
        shape = config.num_steps, num_networks, samples
        noise = space.noise(noise_rng, shape)

        def step(state, inputs):
            step_rng, noise = inputs
            mask = parts.mask_of_agents(environments, state.env_state, env_params)
            world_state = world_of(state.env_state)
            actions = act(config, actor, state.policy, state.observation, mask)
            action = parts.unfold(config, space.sample(actions, noise, step_rng), num_agents)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, state.env_state, space.clip(action), env_params
            )
            alive = info.get("alive", jnp.ones_like(state.alive))
            done = terminated | truncated
            left = jnp.zeros_like(alive) if team else ~alive  # detail 6: a team's return goes on
            transition = Transition(
                observation=state.observation,
                mask=mask,
                action=action,
                reward=reward,
                alive=state.alive,
                terminated=terminated[:, None] | left,
                done=done[:, None] | left,
                final_observation=info["final_observation"],
            )
            final = info.get("final_world_state") if central else None
            alive = alive | done[:, None]  # after a restart all agents are alive
            state = state.replace(env_state=env_state, observation=observation, alive=alive)
            common = Common(done=done, world_state=world_state, final_world_state=final)
            return state, (transition, common)

        env_state = environments.refill(start_rng, state.env_state, env_params)  # new start states
        state = state.replace(env_state=env_state, rollout_rng=rng)
        return parts.scan(step, state, (jax.random.split(step_rng, config.num_steps), noise))

    def prepare(state, rollout, common):
        """The Batch of all networks, with advantages and targets."""
        every_step = jax.vmap(functools.partial(make_inputs, config, state.policy))
        x, critic_x = every_step(rollout.observation, common.world_state)
        _, final_critic_x = every_step(rollout.final_observation, common.final_world_state)

        def batch(params, critic_params, reward_scale, folded):
            """The Batch of one network, from arrays (num_steps, samples, ...)."""
            flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), folded)
            x, critic_x, final_critic_x, rollout = flat
            log_prob = actor.apply(params, x, rollout.mask).log_prob(rollout.action)
            values = critic.apply(critic_params, critic_x)
            next_values = critic.apply(critic_params, final_critic_x)
            reward = rollout.reward
            if config.normalize_reward:
                reward = reward_scale.scale(reward, config.clip_reward)
            over_time = lambda x: x.reshape(config.num_steps, samples)
            advantages = gae(
                rewards=over_time(reward),
                values=over_time(values),
                next_values=over_time(next_values),
                terminated=over_time(rollout.terminated),
                done=over_time(rollout.done),
                gamma=config.gamma,
                gae_lambda=config.gae_lambda,
            ).reshape(-1)
            return Batch(
                observation=x,
                critic_observation=critic_x,
                rollout=rollout,
                log_prob=log_prob,
                value=values,
                advantage=advantages,
                target=advantages + values,
            )

        folded = parts.fold_rollout(config, (x, critic_x, final_critic_x, rollout))
        return jax.vmap(batch)(state.policy.params, state.critic_params, state.reward_scale, folded)

    def actor_loss(params, batch):
        rollout, advantages = batch.rollout, batch.advantage
        weights = actor_weights(rollout)  # details 6 and 8
        actions = actor.apply(params, batch.observation, rollout.mask)
        log_prob, entropy = actions.log_prob(rollout.action), actions.entropy()
        log_ratio, entropy = log_prob - batch.log_prob, parts.mean(entropy, weights)
        if config.normalize_advantage:
            of_all = lambda x: parts.mean_over_shards(parts.mean(x, weights))
            advantages -= of_all(advantages)
            advantages /= jnp.sqrt(of_all(jnp.square(advantages))) + 1e-8
        policy_loss = parts.mean(clipped_surrogate(log_ratio, advantages, config.clip_eps), weights)
        return policy_loss - config.ent_coef * entropy, {
            "policy_loss": policy_loss,
            "entropy": entropy,
            "approx_kl": parts.mean(kl_estimate(log_ratio), weights),
            "clip_fraction": parts.mean(jnp.abs(jnp.expm1(log_ratio)) > config.clip_eps, weights),
        }

    def critic_loss(params, batch):
        values = critic.apply(params, batch.critic_observation)
        error = value_error(values, batch.value, batch.target, config.clip_eps, config.clip_vloss)
        value_loss = parts.mean(error, critic_weights(batch.rollout))
        return config.vf_coef * value_loss, {"value_loss": value_loss}

    for_actor = Task(
        loss=actor_loss,
        optimizer=clipped_adam(config.max_grad_norm, config.adam_eps),  # detail 1
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

    def learn(task, update, params, opt_state, batch, order_rng):
        """Epochs of minibatches for one network, until the KL of an epoch exceeds target_kl."""
        # Shuffles samples, or trajectories: step t of trajectory i is sample t * samples + i.
        length = config.num_steps if config.minibatch_of == "trajectories" else 1  # detail 3
        orders = parts.permutations(order_rng, task.epochs, len(batch.value) // length)
        orders = orders[..., None] + samples * jnp.arange(length)

        def gradient_step(carry, inputs):
            params, opt_state = carry
            indices, rate = inputs
            minibatch = jax.tree.map(lambda x: x[indices], batch)
            grads, metrics = jax.grad(task.loss, has_aux=True)(params, minibatch)
            some = parts.any_over_shards(task.weights(minibatch.rollout).any())
            grads = parts.mean_over_shards(grads)
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
            kl = parts.mean_over_shards(kl)
            epochs = learned.epochs + 1
            return Learned(params=params, opt_state=opt_state, epochs=epochs, kl=kl, sums=sums)

        def unfinished(learned):
            return (learned.epochs < task.epochs) & ~(learned.kl > config.target_kl)  # detail 2

        zero, count = jnp.zeros(()), jnp.zeros((), jnp.int32)
        sums = jax.tree.map(jnp.zeros_like, jax.eval_shape(task.loss, params, batch)[1])
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

    return parts.Learner(
        init=init,
        update=update,
        policy=make_policy(config, env, env_params),
        steps=batch_size,
        measure=exploitability.measure(env, make_probabilities(config, env, env_params)),
    )


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
