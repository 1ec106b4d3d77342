"""Independent PPO for several agents in one environment, a run in one XLA program.

Papers: de Witt et al. 2020, "Is independent learning all you need in the StarCraft multi-agent
challenge?", https://arxiv.org/abs/2011.09533; with `central_critic` Yu et al. 2022, "The surprising
effectiveness of PPO in cooperative multi-agent games" (MAPPO), https://arxiv.org/abs/2103.01955.

    python algorithms/ippo.py --env Pursuit-v0 --seed 0
    python algorithms/ippo.py --preset MultiNavigator-v0 --num-seeds 5
    python algorithms/ippo.py --env jaxmarl/MPE_simple_spread_v3 --share-params

    train = make_train(Config(env="Pursuit-v0"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 16))

A *learner* is a pair of actor and critic with what they learn from. With share_params=False every
agent is a learner: parameters, optimisers, losses, clipping, statistics and the KL early stop are
its own. With share_params=True there is one learner, whose samples are those of all agents.
Everything that learners do is written for one of them and vmapped.

Implementation details taken, beside those of ppo.py in this folder (Huang et al. 2022):
  - actor and critic have an optimiser, learning rate, clipping and number of epochs each; their
    settings without a prefix are the actor's (separate networks: detail 13);
  - the epochs of an actor end when the mean KL estimate of the last one passes target_kl, its
    critic goes on;
  - minibatches of shuffled samples, or of whole trajectories (one agent over a rollout);
  - a central critic sees the environment's world state, or else all observations (Yu et al.);
    a one-hot agent id beside the observations of a shared network is a choice;
  - an agent that has left (`info["alive"]`) has terminated; until the episode ends it counts in no
    loss and no statistic, while returns are whatever the environment pays;
  - forbidden actions (`env.action_mask`) get logits of -1e9.

The calls of `envs`, for whoever takes this file elsewhere: `make` builds an environment, whose
observations, actions and rewards have a leading axis num_agents; `batch` steps many of them,
restarting those that end (`info["final_observation"]` is what came before the restart); `evaluate`
plays whole episodes; `EpisodeStatistics` average the returns of training episodes;
`RunningStatistics` are a mean and a variance; `discounted_returns` sums up.
"""

import functools
import itertools
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import distrax
import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax.flatten_util import ravel_pytree

import envs


def static(default: Any) -> Any:
    """A field that shapes the program; the others are floats and may be traced or batched."""
    return struct.field(pytree_node=False, default=default)


@struct.dataclass
class Config:
    env: str = static("Pursuit-v0")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # its settings, name=value,...
    total_timesteps: int = static(1_000_000)  # environment steps of the whole run
    num_envs: int = static(16)  # parallel environments
    num_steps: int = static(128)  # steps of each environment in a rollout
    share_params: bool = static(False)  # one network for all agents
    agent_ids: bool = static(False)  # with share_params: which agent it is, as a one-hot input
    central_critic: bool = static(False)  # the critic sees the world state or all observations
    minibatch_of: str = static("samples")  # or trajectories: an agent's whole rollouts
    num_minibatches: int = static(4)  # gradient steps in a pass
    update_epochs: int = static(4)  # passes of the actor over each rollout
    critic_epochs: int = static(4)  # passes of the critic over each rollout
    learning_rate: float = 1e-3  # step size of the actor's Adam
    critic_learning_rate: float = 1e-3  # step size of the critic's Adam
    anneal_lr: bool = static(True)  # take the learning rates linearly to zero
    adam_eps: float = 1e-5  # epsilon of the actor's Adam
    critic_adam_eps: float = 1e-5  # epsilon of the critic's Adam
    max_grad_norm: float = 0.5  # clip the actor's gradients to this global norm; inf for never
    critic_max_grad_norm: float = 0.5  # clip the critic's gradients to this; inf for never
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # decay of the advantage trace
    clip_eps: float = 0.2  # range of the probability ratio, and of values with clip_vloss
    clip_vloss: bool = static(False)  # clip the value loss
    normalize_advantage: bool = static(True)  # standardise advantages in each minibatch
    ent_coef: float = 0.01  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    target_kl: float = math.inf  # end an actor's epochs when its KL passes this; inf for never
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers of actor and critic
    activation: str = static("tanh")  # any function of flax.linen: tanh, relu, swish, ...
    conv_features: int = static(16)  # 3x3 filters before the dense layers, for images; 0: none
    normalize_obs: bool = static(False)  # by their running mean and variance
    normalize_reward: bool = static(False)  # by the running spread of discounted returns
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # episodes of the evaluation at each point; 0: none
    eval_at_start: bool = static(True)  # a point before training, too


# --- network ----------------------------------------------------------------------------------


class Torso(nn.Module):
    """Observations (batch, ...) to features (batch, hidden_sizes[-1])."""

    config: Config

    @nn.compact
    def __call__(self, x):
        activation = getattr(nn, self.config.activation)
        if x.ndim == 4 and self.config.conv_features:
            # A 3x3 convolution as patches times a matrix: on a CPU XLA's own is 9 times slower.
            height, width = x.shape[1] - 2, x.shape[2] - 2
            patches = [x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
            x = activation(nn.Dense(self.config.conv_features)(jnp.concatenate(patches, -1)))
        x = x.reshape(x.shape[0], -1)
        for size in self.config.hidden_sizes:
            x = activation(nn.Dense(size)(x))
        return x


class ActorOutput(NamedTuple):
    """What determines the distribution over actions."""

    output: jax.Array  # logits (batch, num_actions), or means (batch, dimensions)
    log_std: jax.Array | None  # (dimensions,), continuous actions only


class Actor(nn.Module):
    """Inputs (batch, ...) to an ActorOutput."""

    config: Config
    discrete: bool
    num_outputs: int  # actions, or dimensions of the action

    @nn.compact
    def __call__(self, x):
        output = nn.Dense(self.num_outputs, name="actor_head")(Torso(self.config)(x))
        if self.discrete:
            return ActorOutput(output, None)
        log_std = self.param("log_std", nn.initializers.zeros, (self.num_outputs,))
        return ActorOutput(output, log_std)


class Critic(nn.Module):
    """Inputs (batch, ...) to values (batch,)."""

    config: Config

    @nn.compact
    def __call__(self, x):
        return nn.Dense(1, name="critic_head")(Torso(self.config)(x))[..., 0]


def make_actor(config: Config, env: Any, env_params: Any) -> Actor:
    space = env.action_space(env_params)
    discrete = hasattr(space, "n")
    return Actor(config, discrete, space.n if discrete else math.prod(space.shape))


def initialize(network: nn.Module, key: jax.Array, observation: jax.Array) -> Any:
    """Parameters with orthogonal kernels and all else zero.

    The polar factor of a Gaussian matrix is uniform over orthogonal matrices. Newton-Schulz finds
    it without LAPACK, whose batched QR can hang on CPUs under vmap; all at once compile fastest.
    """
    shapes = flax.traverse_util.flatten_dict(jax.eval_shape(network.init, key, observation))
    params = {path: jnp.zeros(leaf.shape) for path, leaf in shapes.items()}
    kernels = {path: leaf for path, leaf in params.items() if path[-1] == "kernel"}
    *starts, total = itertools.accumulate(leaf.size for leaf in kernels.values())
    noise = jnp.split(jax.random.normal(key, (total,)), starts)
    matrices = [x.reshape(-1, leaf.shape[-1]) for x, leaf in zip(noise, kernels.values())]
    polars = [x / jnp.linalg.norm(x) if len(x) >= x.shape[1] else x.T / jnp.linalg.norm(x)
              for x in matrices]  # fmt: skip
    refine = lambda _, polars: [1.5 * x - 0.5 * x @ (x.T @ x) for x in polars]
    polars = jax.lax.fori_loop(0, 40, refine, polars)
    gains = {"actor_head": 0.01, "critic_head": 1.0}
    for path, x, matrix in zip(kernels, polars, matrices):
        orthogonal = x if x.shape == matrix.shape else x.T
        gain = gains.get(path[1], math.sqrt(2))
        params[path] = gain * orthogonal.reshape(params[path].shape)
    return flax.traverse_util.unflatten_dict(params)


# --- data types -------------------------------------------------------------------------------
# Leaves that belong to learners have a leading axis of learners.


@struct.dataclass
class PolicyState:
    """What acting needs."""

    params: Any  # of the actors
    obs_stats: envs.RunningStatistics


@struct.dataclass
class Collector:
    """Where data collection stands, with random numbers of its own."""

    rng: jax.Array
    env_state: envs.BatchState
    observation: jax.Array  # (num_envs, num_agents, ...)
    alive: jax.Array  # (num_envs, num_agents)
    episodes: envs.EpisodeStatistics
    discounted_return: jax.Array  # (learners, samples), of the rewards so far
    reward_stats: envs.RunningStatistics  # of discounted returns
    world_stats: envs.RunningStatistics | None  # of world states; all agents have one


@struct.dataclass
class TrainState:
    """Everything that a run needs to go on."""

    policy: PolicyState
    critic_params: Any
    opt_state: optax.OptState
    critic_opt_state: optax.OptState
    collector: Collector
    rng: jax.Array  # for the order of samples
    eval_rng: jax.Array  # the same at every evaluation
    update: jax.Array  # rollouts learned from so far, int32


class Transition(NamedTuple):
    """A rollout; leading axes (num_steps, num_envs), then num_agents unless it says otherwise."""

    observation: jax.Array
    action_mask: jax.Array | None
    action: jax.Array  # unclipped
    reward: jax.Array
    alive: jax.Array  # when it acted
    died: jax.Array  # gone after the action
    terminated: jax.Array  # (num_steps, num_envs)
    truncated: jax.Array  # (num_steps, num_envs)
    final_observation: jax.Array  # what the actions led to, before any restart
    world_state: jax.Array | None  # (num_steps, num_envs, ...)
    final_world_state: jax.Array | None


class Batch(NamedTuple):
    """Samples to learn from: (units, samples in a unit, ...), see `units`; or a minibatch."""

    observation: jax.Array  # as the actor sees it
    critic_observation: jax.Array
    action_mask: jax.Array | None
    action: jax.Array
    alive: jax.Array  # float32: weights
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array


class Task(NamedTuple):
    """What a network learns, and how."""

    loss: Callable  # (params, batch) -> loss, metrics
    optimizer: optax.GradientTransformation
    learning_rate: jax.Array
    epochs: int
    metrics: tuple[str, ...]  # those of the loss, and last the gradient's norm


class Epochs(NamedTuple):
    """The carry of the epochs of one network."""

    params: Any
    opt_state: optax.OptState
    epoch: jax.Array  # epochs done, int32
    kl: jax.Array  # mean over the last one
    sums: dict[str, jax.Array]  # metrics, summed over epochs


class Progress(NamedTuple):
    """The carry of the updates between two points of the learning curve."""

    state: TrainState
    sums: dict[str, jax.Array]  # UPDATE_METRICS (learners,), summed


ACTOR_METRICS = ("policy_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")
CRITIC_METRICS = ("value_loss", "critic_grad_norm")
UPDATE_METRICS = (*ACTOR_METRICS, *CRITIC_METRICS, "mean_value", "explained_variance", "epochs")


# --- formulas ---------------------------------------------------------------------------------


def gae(rewards, values, next_values, terminated, done, gamma, gae_lambda):
    """Generalised advantage estimation, equations 11 to 16 of Schulman et al. 2016.

    All arrays are (num_steps, samples). `next_values` belong to what each action led to, before
    any restart; they count unless `terminated`. `done`, also when truncated, cuts the trace.
    """
    deltas = rewards + gamma * next_values * (1.0 - terminated) - values
    decays = gamma * gae_lambda * (1.0 - done)

    def step(advantage, inputs):
        delta, decay = inputs
        advantage = delta + decay * advantage
        return advantage, advantage

    return jax.lax.scan(step, jnp.zeros_like(deltas[0]), (deltas, decays), reverse=True)[1]


def mean(x, weights):
    """The weighted mean; 0 without any weight."""
    return (x * weights).sum() / jnp.maximum(weights.sum(), 1e-8)


def standardize(x, weights):
    centred = x - mean(x, weights)
    return centred / (jnp.sqrt(mean(jnp.square(centred), weights)) + 1e-8)


def clipped_surrogate(log_ratio, advantages, clip_eps):
    """The negative of the terms of equation 7 of Schulman et al. 2017."""
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip_eps, 1.0 + clip_eps)
    return -jnp.minimum(ratio * advantages, clipped * advantages)


def value_error(values, old_values, targets, clip_eps, clip):
    """Half the squared errors; with `clip`, the larger ones of those and of the errors of values
    kept within clip_eps of the old ones."""
    error = jnp.square(values - targets)
    if clip:
        kept = old_values + jnp.clip(values - old_values, -clip_eps, clip_eps)
        error = jnp.maximum(error, jnp.square(kept - targets))
    return 0.5 * error


def kl_estimate(log_ratio):
    """Terms of KL(old, new) by the k3 estimator (http://joschu.net/blog/kl-approx.html)."""
    return jnp.expm1(log_ratio) - log_ratio


def explained_variance(values, targets, weights):
    """1 if values predict targets, 0 if no better than their mean."""
    var = lambda x: mean(jnp.square(x - mean(x, weights)), weights)
    return 1.0 - var(targets - values) / var(targets)


def annealing(epoch, num_epochs, num_minibatches):
    """Factors for the gradient steps of an epoch, (num_minibatches,): linear from 1 to 0 over the
    run, counted in nominal progress (a run whose epochs end early anneals no later)."""
    done = epoch + jnp.arange(num_minibatches) / num_minibatches
    return jnp.maximum(1.0 - done / num_epochs, 0.0)


def permutations(key, number, size):
    """Random orders of range(size), (number, size).

    Sorting random numbers, as jax.random.permutation does, can take longer than learning from the
    samples. Here the numbers are written as a table, and every column is turned by a random
    amount, then every row, six times: a Feistel network (Luby and Rackoff 1988).
    """
    rows = next(d for d in range(math.isqrt(size), 0, -1) if size % d == 0)
    columns = size // rows
    if rows < 8:  # too narrow to mix
        keys = jax.random.split(key, number)
        return jax.vmap(jax.random.permutation, (0, None))(keys, size)
    bits = jax.random.bits(key, (number * 6 * (rows + columns),))  # flat: compiles much faster
    turns = (bits % size).astype(jnp.int32).reshape(number, 6, rows + columns)

    def turn(position, turns):
        row, column = position
        row = (row + turns[:columns][column]) % rows
        column = (column + turns[columns:][row]) % columns
        return (row, column), None

    def shuffle(turns):
        row, column = jax.lax.scan(turn, jnp.divmod(jnp.arange(size), columns), turns)[0]
        return row * columns + column

    return jax.vmap(shuffle)(turns)


# --- agents and learners ----------------------------------------------------------------------


def num_learners(config, num_agents):
    return 1 if config.share_params else num_agents


def fold(config, x, lead=0):
    """(..., num_envs, num_agents, *rest) to (learners, ..., samples, *rest); lead counts the
    axes before num_envs."""
    if config.share_params:
        return x.reshape(1, *x.shape[:lead], -1, *x.shape[lead + 2 :])
    return jnp.moveaxis(x, lead + 1, 0)


def unfold(config, x, num_agents, lead=0):
    """The inverse of `fold`."""
    if config.share_params:
        return x.reshape(*x.shape[1 : lead + 1], -1, num_agents, *x.shape[lead + 2 :])
    return jnp.moveaxis(x, 0, lead + 1)


def normalize(config, stats, x):
    """Folded observations as float32, each learner's by its own statistics."""
    x = x.astype(jnp.float32)
    return jax.vmap(envs.RunningStatistics.normalize)(stats, x) if config.normalize_obs else x


def with_ids(config, x, num_agents):
    """Folded inputs (1, ..., samples, features), with one-hot agent ids behind the features."""
    if not config.agent_ids:
        return x
    ids = jnp.tile(jnp.eye(num_agents), (x.shape[-2] // num_agents, 1))
    ids = jnp.broadcast_to(ids, (*x.shape[:-1], num_agents))
    return jnp.concatenate([x, ids], axis=-1)


def for_each_agent(config, x, num_agents, lead=0):
    """What all agents see, (..., num_envs, *rest), flat and folded."""
    x = x.reshape(*x.shape[: lead + 1], 1, -1)
    x = jnp.broadcast_to(x, (*x.shape[: lead + 1], num_agents, x.shape[-1]))
    return fold(config, x, lead)


# --- policy -----------------------------------------------------------------------------------


def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None, mask=None) -> action, memory.

    For all agents of one environment: observation and action (num_agents, ...). The most probable
    action, or the mean, without rng; a sample with it. mask (num_agents, num_actions): what
    `env.action_mask` allows.
    """
    if env is None:
        env, env_params = envs.make(config.env, **dict(config.env_settings))
    network, num_agents = make_actor(config, env, env_params), env.num_agents

    def policy(state, observation, memory=None, rng=None, mask=None):
        x = normalize(config, state.policy.obs_stats, fold(config, observation[None]))
        x = with_ids(config, x, num_agents)
        actor = jax.vmap(network.apply)(state.policy.params, x)
        actor = jax.tree.map(lambda x: unfold(config, x, num_agents)[0], spread(actor))
        actions = distribution(actor if mask is None else allow(actor, mask))
        action = actions.mode() if rng is None else actions.sample(seed=rng)
        return to_space(action, env.action_space(env_params)), memory

    return policy


def spread(actor: ActorOutput):
    """With a standard deviation for every sample."""
    if actor.log_std is None:
        return actor
    log_std = actor.log_std[..., None, :]  # (learners, 1, dimensions)
    return actor._replace(log_std=jnp.broadcast_to(log_std, actor.output.shape))


def allow(actor: ActorOutput, mask):
    """Without the actions that are not in the mask."""
    return actor._replace(output=jnp.where(mask, actor.output, -1e9))


def distribution(actor: ActorOutput):
    if actor.log_std is None:
        return distrax.Categorical(logits=actor.output)
    std = jnp.broadcast_to(jnp.exp(actor.log_std), actor.output.shape)
    return distrax.MultivariateNormalDiag(actor.output, std)


def log_prob_and_entropy(actor: ActorOutput, action):
    """Both (batch,). The logits of a distrax.Categorical are normalised, yet either of its
    methods would normalise them again; gradient steps this small would feel it."""
    policy = distribution(actor)
    if actor.log_std is not None:
        return policy.log_prob(action), policy.entropy()
    log_probs = policy.logits
    chosen = jax.nn.one_hot(action, log_probs.shape[-1])
    return (log_probs * chosen).sum(-1), -(jnp.exp(log_probs) * log_probs).sum(-1)


def sample(actor: ActorOutput, noise):
    """Actions from standard Gumbel (discrete) or normal noise, drawn beforehand for a whole
    rollout: many random numbers at once cost far less than a few at every step."""
    if actor.log_std is None:
        return jnp.argmax(actor.output + noise, axis=-1)
    return actor.output + jnp.exp(actor.log_std) * noise


def to_space(action, space):
    """The action that the environment takes; leading axes are kept."""
    if hasattr(space, "n"):
        return action
    return jnp.clip(action.reshape(action.shape[:-1] + space.shape), space.low, space.high)


# --- training ---------------------------------------------------------------------------------


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and what would do."""
    positive = ("total_timesteps", "num_envs", "num_steps", "num_minibatches", "update_epochs")
    sizes = [(name, getattr(config, name), 1) for name in (*positive, "critic_epochs", "num_evals")]
    sizes += [(name, getattr(config, name), 0) for name in ("num_eval_episodes", "conv_features")]
    sizes += [("hidden_sizes", size, 1) for size in config.hidden_sizes]
    for name, value, least in sizes:
        if type(value) is not int or value < least:
            raise ValueError(f"{name}={value!r}: give a whole number, {least} or more")
    if not callable(getattr(nn, config.activation, None)):
        raise ValueError(f"activation={config.activation!r}: flax.linen has tanh, relu, ...")
    if not hasattr(env, "num_agents"):
        raise ValueError(f"{env.name} has one agent and no axis of agents; ppo takes it")
    actions, observations = env.action_space(env_params), env.observation_space(env_params)
    if not (hasattr(actions, "n") or hasattr(actions, "low")):
        raise ValueError(f"{env.name} has actions {actions}; ippo takes Discrete and Box")
    if not hasattr(observations, "low"):
        raise ValueError(f"{env.name} has observations {observations}; ippo takes Box")
    shape = tuple(observations.shape)
    if config.conv_features and len(shape) == 3 and min(shape[:2]) < 3:
        raise ValueError(
            f"conv_features={config.conv_features} needs images of 3x3 or more, and {env.name} has "
            f"{shape}; 0 would do"
        )
    if config.agent_ids and not config.share_params:
        raise ValueError("agent_ids=True needs share_params=True: others know who they are")
    if config.agent_ids and len(observations.shape) != 1:
        raise ValueError(
            f"agent_ids=True needs observations (n,), and {env.name} has {observations.shape}"
        )
    if config.minibatch_of not in ("samples", "trajectories"):
        raise ValueError(f"minibatch_of={config.minibatch_of!r}: give samples or trajectories")
    rows, columns = num_units(config, env.num_agents)
    if rows % config.num_minibatches:
        divisors = [d for d in range(1, rows + 1) if rows % d == 0]
        near = sorted(sorted(divisors, key=lambda d: abs(d - config.num_minibatches))[:4])
        raise ValueError(
            f"num_minibatches={config.num_minibatches} does not divide the {rows} "
            f"{config.minibatch_of} of a rollout; {', '.join(map(str, near))} do"
        )
    if config.normalize_advantage and rows * columns == config.num_minibatches:
        raise ValueError(
            f"num_minibatches={config.num_minibatches} leaves one sample to a minibatch, and "
            "normalize_advantage makes its advantage zero; give fewer"
        )


def num_units(config: Config, num_agents: int) -> tuple[int, int]:
    """What minibatches of one learner are made of: units, and samples in each."""
    trajectories = config.num_envs * (num_agents if config.share_params else 1)
    if config.minibatch_of == "trajectories":
        return trajectories, config.num_steps
    return trajectories * config.num_steps, 1


def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    Without a state training starts; with one it goes on, and rng is not used. num_evals (static)
    is how many points of the learning curve to run, by default all; 0 without a state gives the
    initial one. Metrics have the points as leading axis; returns and, with share_params=False,
    losses have the agents as last axis. Floats of config and env_params may be traced, so train
    can be vmapped over them as well as over rng.

    Raises:
      ValueError: a setting that cannot work, or a space that IPPO cannot take.
    """
    if env is None:
        env, env_params = envs.make(config.env, **dict(config.env_settings))
    check(config, env, env_params)
    # Arguments of the compiled program, all strongly typed: other values do not compile again.
    strong = lambda x: jnp.asarray(x, jnp.result_type(x))
    floats = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), config)
    env_params = jax.tree.map(strong, env_params)

    def train(rng, state=None, num_evals=None):
        num_evals = config.num_evals if num_evals is None else num_evals
        return _train(floats, env_params, rng, state, env=env, num_evals=num_evals)

    return train


@functools.partial(jax.jit, static_argnames=("env", "num_evals"))
def _train(config, env_params, rng, state, *, env, num_evals):
    num_agents, batch_size = env.num_agents, config.num_envs * config.num_steps
    learners = num_learners(config, num_agents)
    samples = config.num_envs * num_agents // learners  # of a learner at one step
    updates_per_point = math.ceil(config.total_timesteps / batch_size / config.num_evals)
    num_updates = updates_per_point * config.num_evals  # of the whole run
    environments = envs.batch(env, config.num_envs, config.num_steps)
    action_space = env.action_space(env_params)
    masked = hasattr(env, "action_mask")
    has_world = config.central_critic and hasattr(env, "world_state")
    actor, critic = make_actor(config, env, env_params), Critic(config)
    policy = make_policy(config, env, env_params)
    make_optimizer = lambda max_norm, eps: optax.chain(
        optax.clip_by_global_norm(max_norm), optax.scale_by_adam(eps=eps)
    )
    optimizer = make_optimizer(config.max_grad_norm, config.adam_eps)
    critic_optimizer = make_optimizer(config.critic_max_grad_norm, config.critic_adam_eps)

    def world_states(env_state):
        return jax.vmap(env.world_state, (0, None))(env_state, env_params) if has_world else None

    def inputs(obs_stats, world_stats, observation, world_state):
        """What actors and critics see of (num_steps, num_envs, num_agents, ...), folded."""
        x = normalize(config, obs_stats, fold(config, observation, lead=1))
        everything = x
        if has_world:
            world_state = world_state.astype(jnp.float32)
            if config.normalize_obs:
                world_state = world_stats.normalize(world_state)
            everything = for_each_agent(config, world_state, num_agents, lead=1)
        elif config.central_critic:
            joint = unfold(config, x, num_agents, lead=1)
            everything = for_each_agent(config, joint, num_agents, lead=1)
        return with_ids(config, x, num_agents), with_ids(config, everything, num_agents)

    def initial_state(rng):
        rng, actor_rng, critic_rng, reset_rng, collector_rng, eval_rng = jax.random.split(rng, 6)
        observation, env_state = environments.reset(reset_rng, env_params)
        world_state = world_states(env_state.env)
        create = envs.RunningStatistics.create
        world_stats = create(world_state.shape[1:]) if has_world else None
        for_learners = lambda tree: jax.tree.map(lambda x: jnp.stack([x] * learners), tree)
        obs_stats = for_learners(create(observation.shape[2:]))
        first = jax.tree.map(lambda x: x[None], (observation, world_state))  # one step
        x, everything = jax.tree.map(lambda x: x[0, 0], inputs(obs_stats, world_stats, *first))

        def start(network, key, x):
            keys = jax.random.split(key, learners)
            return jax.vmap(lambda key: initialize(network, key, x))(keys)

        def moments(optimizer, params):
            return jax.vmap(lambda params: optimizer.init(ravel_pytree(params)[0]))(params)

        params, critic_params = start(actor, actor_rng, x), start(critic, critic_rng, everything)
        return TrainState(
            policy=PolicyState(params, obs_stats),
            critic_params=critic_params,
            opt_state=moments(optimizer, params),
            critic_opt_state=moments(critic_optimizer, critic_params),
            collector=Collector(
                collector_rng,
                env_state,
                observation,
                alive=jnp.ones((config.num_envs, num_agents), bool),
                episodes=envs.EpisodeStatistics.create(config.num_envs, (num_agents,)),
                discounted_return=jnp.zeros((learners, samples)),
                reward_stats=for_learners(create()),
                world_stats=world_stats,
            ),
            rng=rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def collect(policy_state, collector):
        """A rollout. Values and log_probs are left for later, for all steps at once."""
        rng, start_rng, step_rng, noise_rng = jax.random.split(collector.rng, 4)
        env_state = environments.refill(start_rng, collector.env_state, env_params)
        draw = jax.random.gumbel if actor.discrete else jax.random.normal
        noise = draw(noise_rng, (batch_size * num_agents * actor.num_outputs,))
        noise = noise.reshape(config.num_steps, learners, samples, actor.num_outputs)

        def step(collector, random):
            step_rng, noise = random
            x = normalize(config, policy_state.obs_stats, fold(config, collector.observation))
            output = jax.vmap(actor.apply)(policy_state.params, with_ids(config, x, num_agents))
            mask, env_state = None, collector.env_state
            if masked:
                mask = jax.vmap(env.action_mask, (0, None))(env_state.env, env_params)
                output = allow(output, fold(config, mask))
            action = unfold(config, sample(spread(output), noise), num_agents)
            world_state = world_states(env_state.env)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, env_state, to_space(action, action_space), env_params
            )
            alive = info.get("alive", jnp.ones_like(collector.alive))
            transition = Transition(
                observation=collector.observation,
                action_mask=mask,
                action=action,
                reward=reward,
                alive=collector.alive,
                died=~alive,
                terminated=terminated,
                truncated=truncated,
                final_observation=info["final_observation"],
                world_state=world_state,
                final_world_state=info["final_world_state"] if has_world else None,
            )
            alive = alive | (terminated | truncated)[:, None]  # all are, after a restart
            collector = collector.replace(env_state=env_state, observation=observation, alive=alive)
            return collector, transition

        collector = collector.replace(rng=rng, env_state=env_state)
        return jax.lax.scan(step, collector, (jax.random.split(step_rng, config.num_steps), noise))

    def ends(rollout):
        """Who terminated, and whose trace ends, (learners, num_steps, samples)."""
        terminated = rollout.terminated[..., None] | rollout.died
        done = terminated | rollout.truncated[..., None]
        return fold(config, terminated, 1), fold(config, done, 1)

    def make_batch(state, collector, rollout):
        """Samples with advantages and targets, (learners, units, samples in a unit, ...)."""
        stats = state.policy.obs_stats, collector.world_stats
        x, everything = inputs(*stats, rollout.observation, rollout.world_state)
        _, last = inputs(*stats, rollout.final_observation, rollout.final_world_state)
        mask, action, reward, alive = jax.tree.map(
            lambda x: fold(config, x, lead=1),
            (rollout.action_mask, rollout.action, rollout.reward, rollout.alive),
        )

        def one(params, critic_params, reward_stats, x, everything, last, mask, action, reward,
                alive, terminated, done):  # fmt: skip
            rows = lambda x: x.reshape(-1, *x.shape[2:])
            output = actor.apply(params, rows(x))
            if masked:
                output = allow(output, rows(mask))
            log_prob, _ = log_prob_and_entropy(output, rows(action))
            values = critic.apply(critic_params, rows(everything)).reshape(reward.shape)
            next_values = critic.apply(critic_params, rows(last)).reshape(reward.shape)
            if config.normalize_reward:
                reward = reward_stats.scale(reward)
            advantages = gae(
                reward, values, next_values, terminated, done, config.gamma, config.gae_lambda
            )
            batch = Batch(
                observation=x,
                critic_observation=everything,
                action_mask=mask,
                action=action,
                alive=alive.astype(jnp.float32),
                log_prob=log_prob.reshape(reward.shape),
                value=values,
                advantage=advantages,
                target=advantages + values,
            )
            return jax.tree.map(units, batch)

        params = state.policy.params, state.critic_params, collector.reward_stats
        return jax.vmap(one)(
            *params, x, everything, last, mask, action, reward, alive, *ends(rollout)
        )

    def units(x):
        """(num_steps, samples, ...) to (units, samples in a unit, ...)."""
        if config.minibatch_of == "trajectories":
            return x.swapaxes(0, 1)
        return x.reshape(-1, 1, *x.shape[2:])

    def actor_loss(params, batch):
        output = actor.apply(params, batch.observation)
        if masked:
            output = allow(output, batch.action_mask)
        log_prob, entropy = log_prob_and_entropy(output, batch.action)
        log_ratio, advantages, weights = log_prob - batch.log_prob, batch.advantage, batch.alive
        if config.normalize_advantage:
            advantages = standardize(advantages, weights)
        policy_loss = mean(clipped_surrogate(log_ratio, advantages, config.clip_eps), weights)
        entropy = mean(entropy, weights)
        clipped = jnp.abs(jnp.expm1(log_ratio)) > config.clip_eps
        return policy_loss - config.ent_coef * entropy, {
            "policy_loss": policy_loss,
            "entropy": entropy,
            "approx_kl": mean(kl_estimate(log_ratio), weights),
            "clip_fraction": mean(clipped, weights),
        }

    def critic_loss(params, batch):
        values = critic.apply(params, batch.critic_observation)
        error = value_error(values, batch.value, batch.target, config.clip_eps, config.clip_vloss)
        value_loss = mean(error, batch.alive)
        return config.vf_coef * value_loss, {"value_loss": value_loss}

    def learn(task, params, opt_state, batch, update, rng):
        """Epochs of minibatches for one network of one learner, until its KL has gone too far."""
        rows, _ = num_units(config, num_agents)
        orders = permutations(rng, task.epochs, rows)

        def minibatch(carry, inputs):
            params, opt_state = carry
            indices, learning_rate = inputs
            samples = jax.tree.map(lambda x: x[indices].reshape(-1, *x.shape[2:]), batch)
            grads, metrics = jax.grad(task.loss, has_aux=True)(params, samples)
            # One long vector: fewer and larger operations than leaf by leaf.
            grads, unravel = ravel_pytree(grads)
            direction, opt_state = task.optimizer.update(grads, opt_state)
            step = unravel(learning_rate * direction)
            metrics[task.metrics[-1]] = optax.tree.norm(grads)
            return (jax.tree.map(jnp.subtract, params, step), opt_state), metrics

        def epoch(epochs):
            rates = jnp.full(config.num_minibatches, task.learning_rate)
            if config.anneal_lr:
                done = update * task.epochs + epochs.epoch
                rates *= annealing(done, num_updates * task.epochs, config.num_minibatches)
            order = orders[epochs.epoch].reshape(config.num_minibatches, -1)
            (params, opt_state), metrics = jax.lax.scan(
                minibatch, (epochs.params, epochs.opt_state), (order, rates)
            )
            means = jax.tree.map(jnp.mean, metrics)
            sums = jax.tree.map(jnp.add, epochs.sums, means)
            kl = means.get("approx_kl", epochs.kl)
            return Epochs(params, opt_state, epochs.epoch + 1, kl, sums)

        def unfinished(epochs):
            return (epochs.epoch < task.epochs) & ~(epochs.kl > config.target_kl)

        zero, none = jnp.zeros(()), jnp.zeros((), jnp.int32)
        start = Epochs(params, opt_state, none, zero, dict.fromkeys(task.metrics, zero))
        return jax.lax.while_loop(unfinished, epoch, start)

    for_actor = Task(
        actor_loss, optimizer, config.learning_rate, config.update_epochs, ACTOR_METRICS
    )
    for_critic = Task(
        critic_loss, critic_optimizer, config.critic_learning_rate, config.critic_epochs,
        CRITIC_METRICS,
    )  # fmt: skip

    def update_statistics(state, collector, rollout):
        """Statistics with the rollout that has been learned from."""
        obs_stats, (_, done) = state.policy.obs_stats, ends(rollout)
        ended, alive = rollout.terminated | rollout.truncated, fold(config, rollout.alive, 1)
        collector = collector.replace(episodes=collector.episodes.update(rollout.reward, ended))
        if config.normalize_obs:
            observation = fold(config, rollout.observation, 1)
            obs_stats = jax.vmap(envs.RunningStatistics.update)(obs_stats, observation, alive)
            if has_world:
                world_stats = collector.world_stats.update(rollout.world_state)
                collector = collector.replace(world_stats=world_stats)
        if config.normalize_reward:
            last, returns = jax.vmap(envs.discounted_returns, (0, 0, 0, None))(
                collector.discounted_return, fold(config, rollout.reward, 1), done, config.gamma
            )
            reward_stats = jax.vmap(envs.RunningStatistics.update)(
                collector.reward_stats, returns, alive
            )
            collector = collector.replace(discounted_return=last, reward_stats=reward_stats)
        return obs_stats, collector

    def update(_, progress):
        """One rollout and what is learned from it."""
        state = progress.state
        rng, actor_rng, critic_rng = jax.random.split(state.rng, 3)
        collector, rollout = collect(state.policy, state.collector)
        batch = make_batch(state, collector, rollout)

        def all_learn(task, params, opt_state, rng):
            keys = jax.random.split(rng, learners)
            over_learners = jax.vmap(functools.partial(learn, task), (0, 0, 0, None, 0))
            return over_learners(params, opt_state, batch, state.update, keys)

        actors = all_learn(for_actor, state.policy.params, state.opt_state, actor_rng)
        critics = all_learn(for_critic, state.critic_params, state.critic_opt_state, critic_rng)
        obs_stats, collector = update_statistics(state, collector, rollout)
        metrics = {name: total / actors.epoch for name, total in actors.sums.items()}
        metrics |= {name: total / critics.epoch for name, total in critics.sums.items()}
        metrics["mean_value"] = jax.vmap(mean)(batch.value, batch.alive)
        metrics["explained_variance"] = jax.vmap(explained_variance)(
            batch.value, batch.target, batch.alive
        )
        metrics["epochs"] = actors.epoch.astype(jnp.float32)
        state = state.replace(
            policy=PolicyState(actors.params, obs_stats),
            critic_params=critics.params,
            opt_state=actors.opt_state,
            critic_opt_state=critics.opt_state,
            collector=collector,
            rng=rng,
            update=state.update + 1,
        )
        return Progress(state, jax.tree.map(jnp.add, progress.sums, metrics))

    def row(progress, num_updates):
        """The state and a row of metrics; NaN where there is nothing to average."""
        state, sums = progress
        metrics = {name: total / num_updates for name, total in sums.items()}
        if config.share_params:
            metrics = jax.tree.map(lambda x: x[0], metrics)
        episode_metrics, episodes = state.collector.episodes.metrics()
        metrics |= {"timestep": state.update * batch_size, **episode_metrics}
        if config.num_eval_episodes:
            rng = jax.random.clone(state.eval_rng)
            played = envs.evaluate(policy, state, env, env_params, rng, config.num_eval_episodes)
            metrics |= {"eval_return": played.episode_return, "eval_length": played.length}
            metrics |= {"eval_last_reward": played.last_reward}
            metrics |= {"eval_terminated": played.terminated, "eval_truncated": played.truncated}
        return state.replace(collector=state.collector.replace(episodes=episodes)), metrics

    def point(state, num_updates):
        progress = Progress(state, dict.fromkeys(UPDATE_METRICS, jnp.zeros(learners)))
        if num_evals:  # the program that makes the initial state need not learn
            progress = jax.lax.fori_loop(0, num_updates, update, progress)
        return row(progress, num_updates)

    counts = [updates_per_point] * num_evals
    if state is None:
        state = initial_state(rng)
        counts = [0] * config.eval_at_start + counts
    # Behind a barrier, so that XLA cannot make another program for another number of points: the
    # slices of a run are then bit for bit the whole.
    return jax.lax.scan(point, state, jax.lax.optimization_barrier(jnp.array(counts, jnp.int32)))


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
