"""PPO with memory, for discrete and continuous actions, a run in one XLA program.

Paper: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, with generalised advantage
estimation (Schulman et al. 2016, https://arxiv.org/abs/1506.02438). Memories: LSTM (Hochreiter and
Schmidhuber 1997), GRU (Cho et al. 2014, https://arxiv.org/abs/1406.1078) and minGRU (Feng et al.
2024, "Were RNNs all we needed?", https://arxiv.org/abs/2410.01201).

    python algorithms/ppo_rnn.py --env CartPole-v1 --env-settings observe=0,2 --cell mingru
    python algorithms/ppo_rnn.py --preset MemoryChain-bsuite --num-seeds 5

    train = make_train(Config(env="CartPole-v1", env_settings=(("observe", (0, 2)),)))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 16))

This is ppo.py of this folder with a memory between the dense layers and the two heads. Actor and
critic share dense layers and memory (as in CleanRL's ppo_atari_lstm.py and PureJaxRL's ppo_rnn.py):
what the one must remember the other must, too, and the sequential part is there only once. Large
errors of the value would then drown the policy's gradients, hence rewards are normalised unless one
says otherwise. What the memory adds to the implementation details listed in ppo.py:
  - it runs on from rollout to rollout, and is zeroed where an episode ended, terminated or
    truncated, in collection and in learning alike;
  - sequences are learned whole, from the memory that the rollout began with, and minibatches are
    sets of environments (Huang et al. 2022, LSTM details 3 to 5). From the second gradient step on
    that memory is stale, since older parameters made it: accepted, as everywhere;
  - the value of what an action led to belongs to the final observation together with the memory
    of the episode that ends there. Looking does not move the memory on;
  - kernels of the memory are orthogonal with gain 1 (LSTM detail 1); biases start at zero, but
    forget_bias is added to the gate that keeps the memory (Jozefowicz et al. 2015).
For speed, everything that does not need the memory of the step before is computed for all steps at
once: only the product with that memory is left inside the scan over time (flax's cells have the
inputs' products in there, too), and minGRU, which has none, learns by an associative scan.

The calls of `envs`, for whoever takes this file elsewhere: `make` builds a gymnax environment;
`batch` steps many of them, restarting those that end (`info["final_observation"]` is what came
before the restart); `evaluate` plays whole episodes; `EpisodeStatistics` average the returns of
training episodes; `RunningStatistics` are a mean and a variance; `discounted_returns` sums up.
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
    env: str = static("CartPole-v1")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # its settings, name=value,...
    total_timesteps: int = static(500_000)  # environment steps of the whole run
    num_envs: int = static(8)  # parallel environments
    num_steps: int = static(128)  # steps of each environment in a rollout
    update_epochs: int = static(4)  # passes over each rollout
    num_minibatches: int = static(4)  # gradient steps in a pass, each with its environments
    learning_rate: float = 2.5e-3  # Adam's step size
    anneal_lr: bool = static(True)  # take the learning rate linearly to zero
    adam_eps: float = 1e-5  # Adam's epsilon
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # decay of the advantage trace
    clip_eps: float = 0.2  # range of the probability ratio, and of values with clip_vloss
    clip_vloss: bool = static(False)  # clip the value loss
    normalize_advantage: bool = static(True)  # standardise advantages in each minibatch
    ent_coef: float = 0.01  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # clip gradients to this global norm; inf for never
    target_kl: float = math.inf  # end a rollout's epochs when the KL passes this; inf for never
    cell: str = static("lstm")  # the memory: lstm, gru or mingru
    memory_size: int = static(64)  # numbers in it (an LSTM has twice as many)
    forget_bias: float = 1.0  # added to the gate that keeps the memory
    hidden_sizes: tuple[int, ...] = static((64,))  # dense layers before the memory
    activation: str = static("tanh")  # any function of flax.linen: tanh, relu, swish, ...
    conv_features: int = static(16)  # 3x3 filters before the dense layers, for images; 0: none
    normalize_obs: bool = static(True)  # by their running mean and variance
    normalize_reward: bool = static(True)  # by the running spread of discounted returns
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


class Memory(NamedTuple):
    """What is remembered; zeros are a fresh memory."""

    hidden: jax.Array  # (batch, memory_size), what the heads see
    cell: jax.Array | None  # the same shape, LSTM only


# Blocks of memory_size numbers: gates made from the inputs, and those made from the memory.
CELLS = {"lstm": (4, 4), "gru": (3, 3), "mingru": (2, 0)}


def fresh_memory(config: Config, batch_size: int) -> Memory:
    zeros = jnp.zeros((batch_size, config.memory_size))
    return Memory(zeros, zeros if config.cell == "lstm" else None)


def forget(memory: Memory, done: jax.Array) -> Memory:
    """Zeros where an episode ended; done is (batch,)."""
    return jax.tree.map(lambda x: jnp.where(done[:, None], 0.0, x), memory)


def advance(cell: str, memory: Memory, gates: jax.Array, kernel: Any, forget_bias: Any) -> Memory:
    """The memory one step later.

    Args:
      cell: a name in CELLS.
      memory: before the step.
      gates: made from the inputs, (batch, blocks * memory_size).
      kernel: from the memory to gates, (memory_size, blocks * memory_size); None for minGRU.
      forget_bias: added to the gate that keeps the memory.
    """
    if cell == "mingru":
        keep, new = mingru_gates(gates, forget_bias)
        return Memory(keep * memory.hidden + new, None)
    recurrent = memory.hidden @ kernel
    if cell == "gru":  # h' = z h + (1 - z) n, as in flax
        (r, z, n), (hr, hz, hn) = jnp.split(gates, 3, -1), jnp.split(recurrent, 3, -1)
        keep = nn.sigmoid(z + hz + forget_bias)
        n = jnp.tanh(n + nn.sigmoid(r + hr) * hn)
        return Memory(keep * memory.hidden + (1.0 - keep) * n, None)
    i, f, g, o = jnp.split(gates + recurrent, 4, -1)
    kept = nn.sigmoid(f + forget_bias) * memory.cell + nn.sigmoid(i) * jnp.tanh(g)
    return Memory(nn.sigmoid(o) * jnp.tanh(kept), kept)


def mingru_gates(gates, forget_bias):
    """h_t = keep h_t-1 + new: 1 - z_t, and z_t times the candidate (Feng et al. 2024, 3.1)."""
    z, candidate = jnp.split(gates, 2, -1)
    z = nn.sigmoid(z - forget_bias)
    return 1.0 - z, z * candidate


def mingru_scan(memory: Memory, gates: jax.Array, done: jax.Array, forget_bias: Any) -> jax.Array:
    """All steps of a minGRU at once, in logarithmically many passes.

    Args:
      memory: before the first step.
      gates: (num_steps, batch, 2 * memory_size).
      done: whether an episode ended with a step, (num_steps, batch).

    Returns:
      What the memory is after each step's input, (num_steps, batch, memory_size).
    """
    keep, new = mingru_gates(gates, forget_bias)
    new = new.at[0].add(keep[0] * memory.hidden)
    # After the end of an episode nothing is kept: exactly zero, however the passes group the steps.
    keep = keep.at[1:].multiply(~done[:-1, :, None])

    def then(first, second):
        return first[0] * second[0], first[1] * second[0] + second[1]

    return jax.lax.associative_scan(then, (keep, new))[1]


class ActorCritic(nn.Module):
    """Memories and observations to an ActorOutput, and to values (batch,)."""

    config: Config
    discrete: bool
    num_outputs: int  # actions, or dimensions of the action

    def setup(self):
        size = self.config.memory_size
        from_inputs, from_memory = CELLS[self.config.cell]
        self.torso = Torso(self.config)
        self.gates = nn.Dense(from_inputs * size)
        self.kernel = None  # of the memory
        if from_memory:
            self.kernel = self.param("memory", nn.initializers.zeros, (size, from_memory * size))
        self.actor_head = nn.Dense(self.num_outputs)
        self.critic_head = nn.Dense(1)
        if not self.discrete:
            self.log_std = self.param("log_std", nn.initializers.zeros, (self.num_outputs,))

    def __call__(self, memory, x):
        """One step: the memory after the observations x (batch, ...), and what follows from it."""
        config, gates = self.config, self.gates(self.torso(x))
        memory = advance(config.cell, memory, gates, self.kernel, config.forget_bias)
        return memory, *self.heads(memory.hidden)

    def heads(self, hidden):
        """The ActorOutput and values of memories; all leading axes are kept."""
        actor = ActorOutput(self.actor_head(hidden), None if self.discrete else self.log_std)
        return actor, self.critic_head(hidden)[..., 0]

    def unroll(self, memory, x, done):
        """A whole rollout x (num_steps, num_envs, ...) from its first memory; outputs have the
        same two axes. `done` (num_steps, num_envs) says with which steps episodes ended."""
        cell, kernel, forget_bias = self.config.cell, self.kernel, self.config.forget_bias
        gates = self.gates(self.torso(x.reshape(-1, *x.shape[2:])))
        gates = gates.reshape(*done.shape, -1)
        if cell == "mingru":
            return self.heads(mingru_scan(memory, gates, done, forget_bias))

        def step(memory, inputs):
            gates, done = inputs
            memory = advance(cell, memory, gates, kernel, forget_bias)
            return forget(memory, done), memory.hidden

        return self.heads(jax.lax.scan(step, memory, (gates, done))[1])


def make_network(config: Config, env: Any, env_params: Any) -> ActorCritic:
    space = env.action_space(env_params)
    discrete = hasattr(space, "n")
    return ActorCritic(config, discrete, space.n if discrete else math.prod(space.shape))


def initialize(network: ActorCritic, key: jax.Array, observation: jax.Array) -> Any:
    """Parameters with orthogonal kernels and all else zero.

    The polar factor of a Gaussian matrix is uniform over orthogonal matrices. Newton-Schulz finds
    it without LAPACK, whose batched QR can hang on CPUs under vmap; all at once compile fastest.
    """
    memory = fresh_memory(network.config, len(observation))
    shapes = jax.eval_shape(network.init, key, memory, observation)
    shapes = flax.traverse_util.flatten_dict(shapes)
    params = {path: jnp.zeros(leaf.shape) for path, leaf in shapes.items()}
    kernels = {path: leaf for path, leaf in params.items() if leaf.ndim > 1}
    *starts, total = itertools.accumulate(leaf.size for leaf in kernels.values())
    noise = jnp.split(jax.random.normal(key, (total,)), starts)
    matrices = [x.reshape(-1, leaf.shape[-1]) for x, leaf in zip(noise, kernels.values())]
    polars = [x / jnp.linalg.norm(x) if len(x) >= x.shape[1] else x.T / jnp.linalg.norm(x)
              for x in matrices]  # fmt: skip
    refine = lambda _, polars: [1.5 * x - 0.5 * x @ (x.T @ x) for x in polars]
    polars = jax.lax.fori_loop(0, 40, refine, polars)
    gains = {"actor_head": 0.01, "critic_head": 1.0, "gates": 1.0, "memory": 1.0}
    for path, x, matrix in zip(kernels, polars, matrices):
        orthogonal = x if x.shape == matrix.shape else x.T
        gain = gains.get(path[1], math.sqrt(2))
        params[path] = gain * orthogonal.reshape(params[path].shape)
    return flax.traverse_util.unflatten_dict(params)


# --- data types -------------------------------------------------------------------------------


@struct.dataclass
class PolicyState:
    """What acting needs."""

    params: Any
    obs_stats: envs.RunningStatistics


@struct.dataclass
class Collector:
    """Where data collection stands, with random numbers of its own."""

    rng: jax.Array
    env_state: envs.BatchState
    observation: jax.Array  # (num_envs, ...)
    memory: Memory  # before it; zeros if it is an episode's first
    episodes: envs.EpisodeStatistics
    discounted_return: jax.Array  # (num_envs,), of the rewards so far
    reward_stats: envs.RunningStatistics  # of discounted returns


@struct.dataclass
class TrainState:
    """Everything that a run needs to go on."""

    policy: PolicyState
    opt_state: optax.OptState
    collector: Collector
    rng: jax.Array  # for the order of samples
    eval_rng: jax.Array  # the same at every evaluation
    update: jax.Array  # rollouts learned from so far, int32


class Transition(NamedTuple):
    """A rollout; leading axes (num_steps, num_envs)."""

    observation: jax.Array
    action: jax.Array  # unclipped
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_observation: jax.Array  # what the action led to, before any restart
    memory: Memory  # after the observation


class Batch(NamedTuple):
    """Sequences to learn from; leading axes (num_steps, num_envs), or a minibatch's num_envs."""

    observation: jax.Array  # normalised
    done: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array


class Learner(NamedTuple):
    """The carry of the epochs."""

    params: Any
    opt_state: optax.OptState
    epoch: jax.Array  # epochs done, int32
    kl: jax.Array  # mean over the last one
    sums: dict[str, jax.Array]  # LOSS_METRICS, summed over epochs


class Progress(NamedTuple):
    """The carry of the updates between two points of the learning curve."""

    state: TrainState
    sums: dict[str, jax.Array]  # all metrics of an update, summed


LOSSES = ("loss", "policy_loss", "value_loss")
LOSS_METRICS = (*LOSSES, "entropy", "approx_kl", "clip_fraction", "grad_norm")
UPDATE_METRICS = (*LOSS_METRICS, "mean_value", "explained_variance", "epochs")


# --- formulas ---------------------------------------------------------------------------------


def gae(rewards, values, next_values, terminated, done, gamma, gae_lambda):
    """Generalised advantage estimation, equations 11 to 16 of Schulman et al. 2016.

    All arrays are (num_steps, num_envs). `next_values` belong to what each action led to, before
    any restart; they count unless `terminated`. `done`, also when truncated, cuts the trace.
    """
    deltas = rewards + gamma * next_values * (1.0 - terminated) - values
    decays = gamma * gae_lambda * (1.0 - done)

    def step(advantage, inputs):
        delta, decay = inputs
        advantage = delta + decay * advantage
        return advantage, advantage

    return jax.lax.scan(step, jnp.zeros_like(deltas[0]), (deltas, decays), reverse=True)[1]


def clipped_surrogate(log_ratio, advantages, clip_eps):
    """The negative of equation 7 of Schulman et al. 2017, a mean."""
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip_eps, 1.0 + clip_eps)
    return -jnp.minimum(ratio * advantages, clipped * advantages).mean()


def value_error(values, old_values, targets, clip_eps, clip):
    """Half the mean squared error; with `clip`, the larger one of that and of the error of the
    value kept within clip_eps of the old value."""
    error = jnp.square(values - targets)
    if clip:
        kept = old_values + jnp.clip(values - old_values, -clip_eps, clip_eps)
        error = jnp.maximum(error, jnp.square(kept - targets))
    return 0.5 * error.mean()


def kl_estimate(log_ratio):
    """KL(old, new) by the k3 estimator, a mean (http://joschu.net/blog/kl-approx.html)."""
    return (jnp.expm1(log_ratio) - log_ratio).mean()


def explained_variance(values, targets):
    """1 if values predict targets, 0 if no better than their mean."""
    return 1.0 - jnp.var(targets - values) / jnp.var(targets)


def annealing(epoch, num_epochs, num_minibatches):
    """Factors for the gradient steps of an epoch, (num_minibatches,): linear from 1 to 0 over the
    run, counted in nominal progress (a run whose epochs end early anneals no later)."""
    done = epoch + jnp.arange(num_minibatches) / num_minibatches
    return jnp.maximum(1.0 - done / num_epochs, 0.0)


# --- policy -----------------------------------------------------------------------------------


def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None) -> action, memory.

    For one environment. The most probable action, or the mean, without rng; a sample with it.
    No memory is a fresh one: that of an episode's first step.
    """
    if env is None:
        env, env_params = envs.make(config.env, **dict(config.env_settings))
    network = make_network(config, env, env_params)

    def policy(state, observation, memory=None, rng=None):
        x = normalize(config, state.policy.obs_stats, observation[None])
        if memory is None:
            memory = jax.tree.map(lambda x: x[0], fresh_memory(config, 1))
        memory = jax.tree.map(lambda x: x[None], memory)
        memory, actor, _ = network.apply(state.policy.params, memory, x)
        actions = distribution(actor)
        action = actions.mode() if rng is None else actions.sample(seed=rng)
        memory = jax.tree.map(lambda x: x[0], memory)
        return to_space(action[0], env.action_space(env_params)), memory

    return policy


def normalize(config, obs_stats, observation):
    """Observations as the network sees them."""
    observation = observation.astype(jnp.float32)
    return obs_stats.normalize(observation) if config.normalize_obs else observation


def distribution(actor: ActorOutput):
    if actor.log_std is None:
        return distrax.Categorical(logits=actor.output)
    std = jnp.broadcast_to(jnp.exp(actor.log_std), actor.output.shape)
    return distrax.MultivariateNormalDiag(actor.output, std)


def log_prob_and_entropy(actor: ActorOutput, action):
    """Both with the leading axes of the action. The logits of a distrax.Categorical are
    normalised, yet either of its methods would normalise them again; gradient steps this small
    would feel it."""
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
    positive = ("total_timesteps", "num_envs", "num_steps", "update_epochs", "num_minibatches")
    positive += ("memory_size", "num_evals")
    sizes = [(name, getattr(config, name), 1) for name in positive]
    sizes += [(name, getattr(config, name), 0) for name in ("num_eval_episodes", "conv_features")]
    sizes += [("hidden_sizes", size, 1) for size in config.hidden_sizes]
    for name, value, least in sizes:
        if type(value) is not int or value < least:
            raise ValueError(f"{name}={value!r}: give a whole number, {least} or more")
    if not callable(getattr(nn, config.activation, None)):
        raise ValueError(f"activation={config.activation!r}: flax.linen has tanh, relu, ...")
    if config.cell not in CELLS:
        raise ValueError(f"cell={config.cell!r}: there are {', '.join(CELLS)}")
    num_envs, number = config.num_envs, config.num_minibatches
    if num_envs % number:
        divisors = [d for d in range(1, num_envs + 1) if num_envs % d == 0]
        near = sorted(sorted(divisors, key=lambda d: abs(d - number))[:4])
        raise ValueError(
            f"num_minibatches={number} does not divide num_envs={num_envs}, and minibatches are "
            f"sets of environments; {', '.join(map(str, near))} would do"
        )
    if config.normalize_advantage and num_envs * config.num_steps == number:
        raise ValueError(
            f"num_minibatches={number} leaves one sample to a minibatch, and normalize_advantage "
            f"makes its advantage zero; num_steps=2 or more would do"
        )
    if hasattr(env, "num_agents"):
        raise ValueError(f"{env.name} has several agents; ippo takes it")
    actions, observations = env.action_space(env_params), env.observation_space(env_params)
    if not (hasattr(actions, "n") or hasattr(actions, "low")):
        raise ValueError(f"{env.name} has actions {actions}; ppo_rnn takes Discrete and Box")
    if not hasattr(observations, "low"):
        raise ValueError(f"{env.name} has observations {observations}; ppo_rnn takes Box")
    shape = tuple(observations.shape)
    if config.conv_features and len(shape) == 3 and min(shape[:2]) < 3:
        raise ValueError(
            f"conv_features={config.conv_features} needs images of 3x3 or more, and {env.name} has "
            f"{shape}; 0 would do"
        )


def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    Without a state training starts; with one it goes on, and rng is not used. num_evals (static)
    is how many points of the learning curve to run, by default all; 0 without a state gives the
    initial one. Metrics have the points as leading axis. Floats of config and env_params may be
    traced, so train can be vmapped over them as well as over rng.

    Raises:
      ValueError: a setting that cannot work, or a space that PPO cannot take.
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
    batch_size = config.num_envs * config.num_steps
    updates_per_point = math.ceil(config.total_timesteps / batch_size / config.num_evals)
    num_epochs = updates_per_point * config.num_evals * config.update_epochs  # of the whole run
    environments = envs.batch(env, config.num_envs, config.num_steps)
    action_space = env.action_space(env_params)
    network = make_network(config, env, env_params)
    policy = make_policy(config, env, env_params)
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm), optax.scale_by_adam(eps=config.adam_eps)
    )

    def initial_state(rng):
        rng, network_rng, reset_rng, collector_rng, eval_rng = jax.random.split(rng, 5)
        observation, env_state = environments.reset(reset_rng, env_params)
        params = initialize(network, network_rng, observation.astype(jnp.float32))
        return TrainState(
            policy=PolicyState(params, envs.RunningStatistics.create(observation.shape[1:])),
            opt_state=optimizer.init(ravel_pytree(params)[0]),
            collector=Collector(
                collector_rng,
                env_state,
                observation,
                fresh_memory(config, config.num_envs),
                episodes=envs.EpisodeStatistics.create(config.num_envs),
                discounted_return=jnp.zeros(config.num_envs),
                reward_stats=envs.RunningStatistics.create(),
            ),
            rng=rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def collect(policy_state, collector):
        """A rollout. Values and log_probs are left for later, for all steps at once."""
        rng, start_rng, step_rng, noise_rng = jax.random.split(collector.rng, 4)
        env_state = environments.refill(start_rng, collector.env_state, env_params)
        draw = jax.random.gumbel if network.discrete else jax.random.normal
        noise = draw(noise_rng, (batch_size * network.num_outputs,))
        noise = noise.reshape(config.num_steps, config.num_envs, network.num_outputs)

        def step(collector, inputs):
            step_rng, noise = inputs
            x = normalize(config, policy_state.obs_stats, collector.observation)
            memory, actor, _ = network.apply(policy_state.params, collector.memory, x)
            action = sample(actor, noise)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, collector.env_state, to_space(action, action_space), env_params
            )
            transition = Transition(
                observation=collector.observation,
                action=action,
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                final_observation=info["final_observation"],
                memory=memory,
            )
            collector = collector.replace(
                env_state=env_state,
                observation=observation,
                memory=forget(memory, terminated | truncated),
            )
            return collector, transition

        collector = collector.replace(rng=rng, env_state=env_state)
        return jax.lax.scan(step, collector, (jax.random.split(step_rng, config.num_steps), noise))

    def make_batch(policy_state, reward_stats, rollout):
        """Sequences with advantages and targets, from the memories that collection went through."""
        x = normalize(config, policy_state.obs_stats, rollout.observation)
        actor, values = network.apply(policy_state.params, rollout.memory.hidden, method="heads")
        # One step further for all of them at once, with what each action led to: after the last
        # observation of an episode the memory is still that of the episode.
        flat = lambda x: x.reshape(batch_size, *x.shape[2:])
        final_x = normalize(config, policy_state.obs_stats, flat(rollout.final_observation))
        memory = jax.tree.map(flat, rollout.memory)
        _, _, next_values = network.apply(policy_state.params, memory, final_x)
        reward = reward_stats.scale(rollout.reward) if config.normalize_reward else rollout.reward
        done = rollout.terminated | rollout.truncated
        advantages = gae(
            reward,
            values,
            next_values.reshape(reward.shape),
            rollout.terminated,
            done,
            config.gamma,
            config.gae_lambda,
        )
        log_prob, _ = log_prob_and_entropy(actor, rollout.action)
        return Batch(x, done, rollout.action, log_prob, values, advantages, advantages + values)

    def loss(params, memory, batch):
        actor, values = network.apply(
            params, memory, batch.observation, batch.done, method="unroll"
        )
        log_prob, entropy = log_prob_and_entropy(actor, batch.action)
        log_ratio, advantages = log_prob - batch.log_prob, batch.advantage
        if config.normalize_advantage:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy_loss = clipped_surrogate(log_ratio, advantages, config.clip_eps)
        value_loss = value_error(
            values, batch.value, batch.target, config.clip_eps, config.clip_vloss
        )
        entropy = entropy.mean()
        total = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
        return total, {
            "loss": total,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": kl_estimate(log_ratio),
            "clip_fraction": (jnp.abs(jnp.expm1(log_ratio)) > config.clip_eps).mean(),
        }

    def learn(state, batch, rng):
        """Epochs of minibatches, until the KL has gone too far. state is from before the rollout,
        and so its memory is the one that the rollout began with."""
        keys = jax.random.split(rng, config.update_epochs)
        orders = jax.vmap(jax.random.permutation, (0, None))(keys, config.num_envs)

        def minibatch(carry, inputs):
            params, opt_state = carry
            indices, learning_rate = inputs
            memory = jax.tree.map(lambda x: x[indices], state.collector.memory)
            sequences = jax.tree.map(lambda x: x[:, indices], batch)
            grads, metrics = jax.grad(loss, has_aux=True)(params, memory, sequences)
            # One long vector: fewer and larger operations than leaf by leaf.
            grads, unravel = ravel_pytree(grads)
            direction, opt_state = optimizer.update(grads, opt_state)
            step = unravel(learning_rate * direction)
            metrics["grad_norm"] = optax.tree.norm(grads)
            return (jax.tree.map(jnp.subtract, params, step), opt_state), metrics

        def epoch(learner):
            rates = jnp.full(config.num_minibatches, config.learning_rate)
            if config.anneal_lr:
                epochs = state.update * config.update_epochs + learner.epoch
                rates *= annealing(epochs, num_epochs, config.num_minibatches)
            order = orders[learner.epoch].reshape(config.num_minibatches, -1)
            (params, opt_state), metrics = jax.lax.scan(
                minibatch, (learner.params, learner.opt_state), (order, rates)
            )
            means = jax.tree.map(jnp.mean, metrics)
            sums = jax.tree.map(jnp.add, learner.sums, means)
            return Learner(params, opt_state, learner.epoch + 1, means["approx_kl"], sums)

        def unfinished(learner):
            return (learner.epoch < config.update_epochs) & ~(learner.kl > config.target_kl)

        zero, none = jnp.zeros(()), jnp.zeros((), jnp.int32)
        sums = dict.fromkeys(LOSS_METRICS, zero)
        learner = Learner(state.policy.params, state.opt_state, none, zero, sums)
        return jax.lax.while_loop(unfinished, epoch, learner)

    def update_statistics(state, collector, rollout):
        """Statistics with the rollout that has been learned from."""
        obs_stats, done = state.policy.obs_stats, rollout.terminated | rollout.truncated
        collector = collector.replace(episodes=collector.episodes.update(rollout.reward, done))
        if config.normalize_obs:
            obs_stats = obs_stats.update(rollout.observation)
        if config.normalize_reward:
            last, returns = envs.discounted_returns(
                collector.discounted_return, rollout.reward, done, config.gamma
            )
            reward_stats = collector.reward_stats.update(returns)
            collector = collector.replace(discounted_return=last, reward_stats=reward_stats)
        return obs_stats, collector

    def update(_, progress):
        """One rollout and what is learned from it."""
        state = progress.state
        rng, order_rng = jax.random.split(state.rng)
        collector, rollout = collect(state.policy, state.collector)
        batch = make_batch(state.policy, collector.reward_stats, rollout)
        learner = learn(state, batch, order_rng)
        obs_stats, collector = update_statistics(state, collector, rollout)
        metrics = {name: total / learner.epoch for name, total in learner.sums.items()}
        metrics["mean_value"] = batch.value.mean()
        metrics["explained_variance"] = explained_variance(batch.value, batch.target)
        metrics["epochs"] = learner.epoch.astype(jnp.float32)
        state = state.replace(
            policy=PolicyState(learner.params, obs_stats),
            opt_state=learner.opt_state,
            collector=collector,
            rng=rng,
            update=state.update + 1,
        )
        return Progress(state, jax.tree.map(jnp.add, progress.sums, metrics))

    def row(progress, num_updates):
        """The state and a row of metrics; NaN where there is nothing to average."""
        state, sums = progress
        metrics = {name: total / num_updates for name, total in sums.items()}
        episode_metrics, episodes = state.collector.episodes.metrics()
        metrics |= {"timestep": state.update * batch_size, **episode_metrics}
        if config.num_eval_episodes:
            rng = jax.random.clone(state.eval_rng)
            played = envs.evaluate(policy, state, env, env_params, rng, config.num_eval_episodes)
            metrics |= {"eval_return": played.episode_return, "eval_length": played.length}
        return state.replace(collector=state.collector.replace(episodes=episodes)), metrics

    def point(state, num_updates):
        progress = Progress(state, dict.fromkeys(UPDATE_METRICS, jnp.zeros(())))
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
