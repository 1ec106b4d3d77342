"""Implicit quantile networks, IQN, replay included, a run in one XLA program.

Paper: Dabney et al. 2018, https://arxiv.org/abs/1806.06923. By flag: double Q-learning (van
Hasselt et al. 2016, https://arxiv.org/abs/1509.06461) and n-step returns.

    python algorithms/iqn.py --env CartPole-v1 --seed 0
    python algorithms/iqn.py --env Acrobot-v1 --num-seeds 5

    train = make_train(Config(env="Acrobot-v1"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 8))

Implementation details:
  1 Several environments act at once. A round is `train_every` steps of each, then
    `updates_per_step` gradient steps.
  2 The replay buffer is a ring of arrays written in place; observations keep the environment's
    dtype, or take `buffer_dtype`: gymnax casts MinAtar's bits to float32, and bool undoes that.
    Transitions are drawn with replacement, which needs no sorting.
  3 A transition leads to the observation before any restart: where an episode was cut by its time
    limit the target bootstraps from there, and only a terminated one has no future.
  4 n-step returns stop at the end of an episode and bootstrap with the power of gamma that
    belongs to the steps they took. A window never reaches past the newest transition.
  5 Every `target_every` gradient steps the target network moves by `tau` towards the online one:
    1 copies it now and then, `target_every=1` and a small tau average (Polyak).
  6 With `double` the online network chooses the action whose distribution is the target.
  7 The network gives the quantile of the return at any level in [0, 1] asked for: the features of
    the observation times an embedding of the level by `num_cosines` cosines. A gradient step
    compares `num_levels` random levels with `num_target_levels` others by the quantile Huber loss.
  8 Actions are chosen by the mean over `num_policy_levels` levels. The paper draws them; here they
    are the middles of equal shares, so that the policy is deterministic and errs less. `risk`
    distorts them, and with them what is thought the best action, also in targets (section 3.2).
  9 Orthogonal initialisation, Adam, gradients clipped by their global norm.
Nothing is decided by a branch on a counter: under vmap that would select between two copies of the
buffer. Before `learning_starts` gradient steps are computed and thrown away.

The calls of `envs`, for whoever takes this file elsewhere: `make` builds a gymnax environment;
`batch` steps many of them, restarting those that end (`info["final_observation"]` is what came
before the restart); `evaluate` plays whole episodes; `EpisodeStatistics` average the returns of
training episodes; `RunningStatistics` are a mean and a variance; `device_memory` is in bytes.
"""

import functools
import itertools
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

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
    num_envs: int = static(16)  # parallel environments
    train_every: int = static(1)  # steps of each environment between two rounds of learning
    updates_per_step: int = static(1)  # gradient steps in a round of learning
    buffer_size: int = static(50_000)  # transitions kept, of all environments together
    buffer_dtype: str = static("")  # of the observations in it, such as bool; "": as they come
    batch_size: int = static(128)  # transitions in a gradient step
    learning_starts: int = static(5_000)  # environment steps before the first gradient step
    learning_rate: float = 1e-3  # Adam's step size
    anneal_lr: bool = static(True)  # take the learning rate linearly to zero
    adam_eps: float = 1e-5  # Adam's epsilon
    gamma: float = 0.99  # discount factor
    n_step: int = static(1)  # rewards in a target before it bootstraps
    double: bool = static(False)  # the online network chooses the action of the target
    num_levels: int = static(8)  # levels whose quantiles a gradient step corrects
    num_target_levels: int = static(8)  # levels whose quantiles are their targets
    num_policy_levels: int = static(8)  # levels over which action values are means
    num_cosines: int = static(32)  # that embed a level
    kappa: float = 1.0  # errors beyond this count linearly
    risk: str = static("neutral")  # distortion of levels: neutral, cvar, wang, cpw or power
    risk_level: float = 1.0  # its parameter: of cvar in (0, 1], 1 neutral; of wang, power 0 neutral
    target_every: int = static(1)  # gradient steps between two moves of the target network
    tau: float = 0.005  # share of the way that it moves; 1 copies the online network
    exploration: str = static("linear")  # epsilon over time: constant, linear or exponential
    eps_start: float = 1.0  # epsilon at first
    eps_end: float = 0.05  # epsilon at last, and always if constant
    exploration_fraction: float = 0.2  # share of the run until epsilon is at its end
    max_grad_norm: float = 10.0  # clip gradients to this global norm; inf for never
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers
    activation: str = static("relu")  # any function of flax.linen: tanh, relu, swish, ...
    conv_features: int = static(16)  # 3x3 filters before the dense layers, for images; 0: none
    normalize_obs: bool = static(False)  # by their running mean and variance
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # episodes of the evaluation at each point; 0: none
    eval_at_start: bool = static(True)  # a point before training, too


# --- network ----------------------------------------------------------------------------------


@jax.custom_vjp
def product(x, kernel):
    """x (..., in) times kernel (in, out). On a CPU XLA needs a third of the time for this form of
    the kernel's gradient, a sum over all levels, that it needs for autodiff's."""
    return x @ kernel


def product_gradients(saved, gradient):
    x, kernel = saved
    rows = tuple(range(x.ndim - 1))
    return gradient @ kernel.T, jax.lax.dot_general(x, gradient, ((rows, rows), ((), ())))


product.defvjp(lambda x, kernel: (x @ kernel, (x, kernel)), product_gradients)


class ImplicitQuantileNetwork(nn.Module):
    """Observations (batch, ...) and levels (batch, num) to quantiles (batch, num, num_actions).

    Levels (1, num) are the same for all observations, and embedded only once.
    """

    config: Config
    num_actions: int

    @nn.compact
    def __call__(self, x, levels):
        activation = getattr(nn, self.config.activation)
        if x.ndim == 4 and self.config.conv_features:
            # A 3x3 convolution as patches times a matrix: on a CPU XLA's own is 9 times slower.
            height, width = x.shape[1] - 2, x.shape[2] - 2
            patches = [x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
            x = activation(nn.Dense(self.config.conv_features)(jnp.concatenate(patches, -1)))
        x = x.reshape(x.shape[0], -1)
        *sizes, last = self.config.hidden_sizes
        for size in sizes:
            x = activation(nn.Dense(size)(x))
        embedding = cosines(levels, self.config.num_cosines)
        dense = functools.partial(nn.Dense, dot_general=lambda x, w, *_, **__: product(x, w))
        embedding = activation(dense(x.shape[-1], name="embedding")(embedding))
        x = activation(dense(last)(x[:, None] * embedding))
        return dense(self.num_actions, name="action_head")(x)


def make_network(config: Config, env: Any, env_params: Any) -> ImplicitQuantileNetwork:
    return ImplicitQuantileNetwork(config, env.action_space(env_params).n)


def initialize(network: nn.Module, key: jax.Array, observation: jax.Array) -> Any:
    """Parameters with orthogonal kernels (gain sqrt(2), heads 1) and all else zero.

    The polar factor of a Gaussian matrix is uniform over orthogonal matrices. Newton-Schulz finds
    it without LAPACK, whose batched QR can hang on CPUs under vmap; all at once compile fastest.
    """
    shapes = jax.eval_shape(network.init, key, observation, jnp.zeros((1, 1)))
    shapes = flax.traverse_util.flatten_dict(shapes)
    params = {path: jnp.zeros(leaf.shape) for path, leaf in shapes.items()}
    kernels = {path: leaf for path, leaf in params.items() if path[-1] == "kernel"}
    *starts, total = itertools.accumulate(leaf.size for leaf in kernels.values())
    noise = jnp.split(jax.random.normal(key, (total,)), starts)
    matrices = [x.reshape(-1, leaf.shape[-1]) for x, leaf in zip(noise, kernels.values())]
    polars = [x / jnp.linalg.norm(x) if len(x) >= x.shape[1] else x.T / jnp.linalg.norm(x)
              for x in matrices]  # fmt: skip
    refine = lambda _, polars: [1.5 * x - 0.5 * x @ (x.T @ x) for x in polars]
    polars = jax.lax.fori_loop(0, 40, refine, polars)
    for path, x, matrix in zip(kernels, polars, matrices):
        orthogonal = x if x.shape == matrix.shape else x.T
        gain = 1.0 if path[1].endswith("head") else math.sqrt(2)
        params[path] = gain * orthogonal.reshape(params[path].shape)
    return flax.traverse_util.unflatten_dict(params)


# --- data types -------------------------------------------------------------------------------


@struct.dataclass
class PolicyState:
    """What acting needs."""

    params: Any
    obs_stats: envs.RunningStatistics


class Transition(NamedTuple):
    """Steps of environments; leading axis the replay buffer's, a batch's or (steps, num_envs)."""

    observation: jax.Array
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    done: jax.Array  # terminated or truncated
    final_observation: jax.Array  # what the action led to, before any restart


class Batch(NamedTuple):
    """Windows to learn from; leading axis batch_size."""

    observation: jax.Array
    action: jax.Array
    returns: jax.Array  # discounted rewards up to the end of the window or the episode
    discount: jax.Array  # of the bootstrap value, 0 if terminated
    final_observation: jax.Array  # to bootstrap from


@struct.dataclass
class TrainState:
    """Everything that a run needs to go on."""

    policy: PolicyState
    target_params: Any
    opt_state: optax.OptState
    replay: Transition  # (capacity, ...), row by row: all environments at one time, then the next
    env_state: envs.BatchState
    observation: jax.Array  # (num_envs, ...)
    episodes: envs.EpisodeStatistics
    rng: jax.Array
    eval_rng: jax.Array  # the same at every evaluation
    round: jax.Array  # rounds done, int32
    updates: jax.Array  # gradient steps done, int32


class Noise(NamedTuple):
    """Random numbers of a round."""

    step_rng: jax.Array  # (train_every,)
    exploration: jax.Array  # uniform, (train_every, num_envs)
    samples: jax.Array  # bits, (updates_per_step, batch_size)
    levels: jax.Array  # uniform, (updates_per_step, batch_size, num_levels + num_target_levels)


class Learner(NamedTuple):
    """The carry of the gradient steps of a round."""

    params: Any
    target_params: Any
    opt_state: optax.OptState
    updates: jax.Array


class Progress(NamedTuple):
    """The carry of the updates between two points of the learning curve."""

    state: TrainState
    sums: dict[str, jax.Array]  # UPDATE_METRICS, summed over gradient steps


UPDATE_METRICS = ("loss", "mean_value", "grad_norm")
RISKS = ("neutral", "cvar", "wang", "cpw", "power")
EXPLORATION = ("constant", "linear", "exponential")
DTYPES = ("", "bool", "uint8", "int8", "float16", "bfloat16", "float32")
STRETCH = 16  # steps of an environment for which random numbers are drawn at once


# --- formulas ---------------------------------------------------------------------------------


def n_step_return(rewards, terminated, done, gamma):
    """Discounted rewards up to the end of the episode or of the window, whichever comes first.

    All arrays are (n, batch), in the order of time. Returns, each (batch,): the sum; the factor of
    the bootstrap value, 0 if terminated; and the index of the last step that counts.
    """
    ended_before = jnp.cumsum(done, 0) - done > 0
    last = (~ended_before).sum(0) - 1
    powers = gamma ** jnp.arange(len(rewards), dtype=jnp.float32)[:, None]
    total = jnp.where(ended_before, 0.0, powers * rewards).sum(0)
    over = (terminated & ~ended_before).any(0)
    return total, jnp.where(over, 0.0, gamma ** (last + 1.0)), last


def midpoints(number):
    """The middles of equal shares of the unit interval, (number,)."""
    return (jnp.arange(number) + 0.5) / number


def distort(levels, risk, level):
    """Levels in [0, 1] as a policy sees them, section 3.2 of Dabney et al. 2018.

    cvar: the worst `level` of outcomes only. wang: pessimistic below 0, optimistic above. cpw:
    as people do, who overrate rare events (0.71). power: pessimistic below 0, optimistic above.
    """
    if risk == "cvar":
        return level * levels
    if risk == "wang":
        normal = jax.scipy.stats.norm
        return normal.cdf(normal.ppf(levels) + level)
    if risk == "cpw":
        some, others = levels**level, (1.0 - levels) ** level
        return some / (some + others) ** (1.0 / level)
    if risk == "power":
        power = 1.0 / (1.0 + jnp.abs(level))
        return jnp.where(level >= 0.0, levels**power, 1.0 - (1.0 - levels) ** power)
    return levels


def cosines(levels, number):
    """cos(pi i level) for i = 0 to number - 1, equation 4; a new last axis.

    The series of the sine of what is left to a right angle: on a CPU XLA computes cosines one by
    one, which took a sixth of a gradient step.
    """
    turns = levels[..., None] * (0.5 * jnp.arange(number))
    x = math.pi * (0.5 - 2.0 * jnp.abs(turns - jnp.round(turns)))  # in [-pi / 2, pi / 2]
    series = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(6)]
    return x * functools.reduce(lambda total, c: total * x**2 + c, reversed(series))


def quantile_huber(quantiles, levels, targets, kappa):
    """Equation 10 of Dabney et al. 2018, (batch,): how far quantiles (batch, num_quantiles) at
    levels in [0, 1] of the same shape are from targets (batch, num_targets). A mean over targets,
    a sum over quantiles.

    The slope is written out and the means are products, a tenth of autodiff's time on a CPU.
    """
    fixed = jax.lax.stop_gradient(quantiles)
    errors = targets[:, :, None] - fixed[:, None]
    kept = jnp.clip(errors, -kappa, kappa)
    pull = jnp.abs(levels[..., None, :] - (errors < 0.0)) * kept / kappa
    share = jnp.full(targets.shape[1], 1.0 / targets.shape[1])
    mean = lambda x: jnp.einsum("bti,t->bi", x, share)
    return (mean(pull * (errors - 0.5 * kept)) - mean(pull) * (quantiles - fixed)).sum(-1)


def of_action(outputs, action):
    """Columns (batch, num) of outputs (batch, num, num_actions) for actions (batch,)."""
    chosen = jax.nn.one_hot(action, outputs.shape[-1])
    return jnp.einsum("bna,ba->bn", outputs, chosen)


def epsilon_at(config, progress):
    """Probability of a random action; progress is the share of the run that is done."""
    done = progress / config.exploration_fraction
    if config.exploration == "constant":
        left = 0.0
    elif config.exploration == "linear":
        left = jnp.maximum(1.0 - done, 0.0)
    else:  # less than 1 % is left when the others are done
        left = jnp.exp(-5.0 * done)
    return config.eps_end + left * (config.eps_start - config.eps_end)


def epsilon_greedy(values, epsilon, noise):
    """Actions (batch,) for values (batch, num_actions) and uniform noise (batch,).

    Where noise < epsilon it is itself uniform up to epsilon, and chooses the random action.
    """
    num_actions = values.shape[-1]
    random = jnp.minimum(noise / epsilon * num_actions, num_actions - 1).astype(jnp.int32)
    return jnp.where(noise < epsilon, random, jnp.argmax(values, -1))


# --- replay -----------------------------------------------------------------------------------


def capacity_of(config: Config) -> int:
    """buffer_size, rounded up to whole rollouts: none is ever split between end and start."""
    rollout = config.num_envs * config.train_every
    return -(-config.buffer_size // rollout) * rollout


def waiting(config: Config) -> int:
    """How many of the newest transitions no window can start from yet."""
    return (config.n_step - 1) * config.num_envs


def empty_replay(config: Config, env: Any, env_params: Any) -> Transition:
    observation, _ = jax.eval_shape(env.reset_env, jax.random.key(0), env_params)
    observation = jnp.zeros(observation.shape, config.buffer_dtype or observation.dtype)
    capacity = capacity_of(config)
    zeros = lambda x: jnp.zeros((capacity, *x.shape), x.dtype)
    flag, one = jax.ShapeDtypeStruct((), bool), jnp.ones(())
    action = jax.ShapeDtypeStruct((), jnp.int32)
    transition = Transition(observation, action, one, flag, flag, observation)
    return jax.tree.map(zeros, transition)


def store(config: Config, replay: Transition, rollout: Transition, written: jax.Array):
    """Puts a rollout (train_every, num_envs, ...) in place of the oldest transitions.

    `written` is how many transitions came before it.
    """
    capacity, size = capacity_of(config), rollout.reward.size
    start = written % capacity
    flat = jax.tree.map(lambda x: x.reshape(size, *x.shape[2:]), rollout)

    def write(old, new):
        return jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), start, axis=0)

    return jax.tree.map(write, replay, flat)


def sample(config: Config, noise: jax.Array, written: jax.Array) -> jax.Array:
    """Where samples start, (batch,), as are the bits of noise; `written` is how many transitions
    there have been."""
    capacity = capacity_of(config)
    size = jnp.maximum(jnp.minimum(written, capacity) - waiting(config), 1)
    oldest = jnp.where(written > capacity, written % capacity, 0)
    age = (noise % size.astype(jnp.uint32)).astype(jnp.int32)
    return (oldest + age) % capacity


def gather(config: Config, replay: Transition, index: jax.Array) -> Batch:
    """The windows of n_step transitions that start at index (batch,)."""
    ahead = lambda steps: (index + config.num_envs * steps) % capacity_of(config)
    window = ahead(jnp.arange(config.n_step)[:, None])
    rewards, terminated, done = (x[window] for x in replay[2:5])
    returns, discount, last = n_step_return(rewards, terminated, done, config.gamma)
    final_observation = replay.final_observation[ahead(last)]
    start = replay.observation[index], replay.action[index]
    return Batch(*start, returns, discount, final_observation)


# --- policy -----------------------------------------------------------------------------------


def action_values(config: Config, network: nn.Module, params: Any, x: jax.Array) -> jax.Array:
    """Expected returns (batch, num_actions) of normalised observations (batch, ...)."""
    levels = distort(midpoints(config.num_policy_levels), config.risk, config.risk_level)
    return network.apply(params, x, levels[None]).mean(1)


def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None) -> action, memory.

    For one environment. The action of highest value without rng; with it epsilon-greedy at eps_end.
    """
    if env is None:
        env, env_params = envs.make(config.env, **dict(config.env_settings))
    network = make_network(config, env, env_params)

    def policy(state, observation, memory=None, rng=None):
        x = normalize(config, state.policy.obs_stats, observation[None])
        values = action_values(config, network, state.policy.params, x)
        noise = jnp.full(1, jnp.inf) if rng is None else jax.random.uniform(rng, (1,))
        return epsilon_greedy(values, config.eps_end, noise)[0], memory

    return policy


def normalize(config, obs_stats, observation):
    """Observations as the network sees them."""
    observation = observation.astype(jnp.float32)
    return obs_stats.normalize(observation) if config.normalize_obs else observation


# --- training ---------------------------------------------------------------------------------


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and what would do."""
    positive = ("total_timesteps", "num_envs", "train_every", "updates_per_step", "buffer_size")
    positive += ("batch_size", "n_step", "target_every", "num_evals", "num_levels")
    positive += ("num_target_levels", "num_policy_levels", "num_cosines")
    sizes = [(name, getattr(config, name), 1) for name in positive]
    not_negative = ("learning_starts", "num_eval_episodes", "conv_features")
    sizes += [(name, getattr(config, name), 0) for name in not_negative]
    sizes += [("hidden_sizes", size, 1) for size in config.hidden_sizes or (0,)]
    for name, value, least in sizes:
        if type(value) is not int or value < least:
            raise ValueError(f"{name}={value!r}: give a whole number, {least} or more")
    if not callable(getattr(nn, config.activation, None)):
        raise ValueError(f"activation={config.activation!r}: flax.linen has tanh, relu, ...")
    if config.buffer_dtype not in DTYPES:
        raise ValueError(f"buffer_dtype={config.buffer_dtype!r}: {', '.join(DTYPES[1:])} do")
    if config.risk not in RISKS:
        raise ValueError(f"risk={config.risk!r}: {', '.join(RISKS)} do")
    if config.exploration not in EXPLORATION:
        raise ValueError(f"exploration={config.exploration!r}: {', '.join(EXPLORATION)} do")
    if config.learning_starts >= config.total_timesteps:
        raise ValueError(
            f"learning_starts={config.learning_starts} leaves nothing of total_timesteps="
            f"{config.total_timesteps} to learn in; {config.total_timesteps // 10} would do"
        )
    if capacity_of(config) < config.n_step * config.num_envs:
        raise ValueError(
            f"buffer_size={config.buffer_size} does not hold n_step={config.n_step} steps of "
            f"num_envs={config.num_envs}; {config.n_step * config.num_envs} would do"
        )
    if hasattr(env, "num_agents"):
        raise ValueError(f"{env.name} has several agents; ippo takes it")
    actions, observations = env.action_space(env_params), env.observation_space(env_params)
    if not hasattr(actions, "n"):
        raise ValueError(f"{env.name} has actions {actions}; iqn takes Discrete")
    if not hasattr(observations, "low"):
        raise ValueError(f"{env.name} has observations {observations}; iqn takes Box")
    shape = tuple(observations.shape)
    if config.conv_features and len(shape) == 3 and min(shape[:2]) < 3:
        raise ValueError(
            f"conv_features={config.conv_features} needs images of 3x3 or more, and {env.name} has "
            f"{shape}; 0 would do"
        )
    leaves = jax.tree.leaves(jax.eval_shape(lambda: empty_replay(config, env, env_params)))
    needed, memory = sum(x.size * x.dtype.itemsize for x in leaves), envs.device_memory()
    if needed > memory:
        fits = int(0.8 * memory / needed * capacity_of(config))
        raise ValueError(
            f"buffer_size={config.buffer_size} takes {needed / 1e9:.1f} GB of the device's "
            f"{memory / 1e9:.1f} GB; {fits} would fit"
        )


def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    Without a state training starts; with one it goes on, and rng is not used. num_evals (static)
    is how many points of the learning curve to run, by default all; 0 without a state gives the
    initial one. Metrics have the points as leading axis. Floats of config and env_params may be
    traced, so train can be vmapped over them as well as over rng.

    Raises:
      ValueError: a setting that cannot work, a space that IQN cannot take, or a buffer larger than
        the device's memory.
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
    num_envs, num_steps = config.num_envs, config.train_every
    round_size = num_envs * num_steps
    rounds = max(1, STRETCH // num_steps)  # in an update
    updates_per_point = math.ceil(config.total_timesteps / round_size / rounds / config.num_evals)
    num_rounds = updates_per_point * config.num_evals * rounds  # of the whole run
    learning_starts = max(config.learning_starts, waiting(config) + 1)  # there is a whole window
    environments = envs.batch(env, num_envs, rounds * num_steps)
    network = make_network(config, env, env_params)
    policy = make_policy(config, env, env_params)
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm), optax.scale_by_adam(eps=config.adam_eps)
    )

    def initial_state(rng):
        rng, network_rng, reset_rng, eval_rng = jax.random.split(rng, 4)
        observation, env_state = environments.reset(reset_rng, env_params)
        params = initialize(network, network_rng, observation.astype(jnp.float32))
        return TrainState(
            policy=PolicyState(params, envs.RunningStatistics.create(observation.shape[1:])),
            target_params=params,
            opt_state=optimizer.init(ravel_pytree(params)[0]),
            replay=empty_replay(config, env, env_params),
            env_state=env_state,
            observation=observation,
            episodes=envs.EpisodeStatistics.create(num_envs),
            rng=rng,
            eval_rng=eval_rng,
            round=jnp.zeros((), jnp.int32),
            updates=jnp.zeros((), jnp.int32),
        )

    def act(state, noise):
        """Steps of every environment."""
        epsilon = epsilon_at(config, state.round / num_rounds)

        def step(state, inputs):
            step_rng, noise = inputs
            x = normalize(config, state.policy.obs_stats, state.observation)
            values = action_values(config, network, state.policy.params, x)
            action = epsilon_greedy(values, epsilon, noise)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, state.env_state, action, env_params
            )
            transition = Transition(
                observation=state.observation,
                action=action,
                reward=reward.astype(jnp.float32),
                terminated=terminated,
                done=terminated | truncated,
                final_observation=info["final_observation"],
            )
            return state.replace(env_state=env_state, observation=observation), transition

        replay = state.replay  # not in the carry: it must be written in place
        state, rollout = jax.lax.scan(
            step, state.replace(replay=None), (noise.step_rng, noise.exploration)
        )
        return state.replace(replay=replay), rollout

    def targets(learner, obs_stats, batch, levels):
        """Quantiles of the n-step return at some levels, (batch_size, num_target_levels)."""
        x = normalize(config, obs_stats, batch.final_observation)
        params = learner.params if config.double else learner.target_params
        best = jnp.argmax(action_values(config, network, params, x), -1)
        next_quantiles = of_action(network.apply(learner.target_params, x, levels), best)
        return batch.returns[:, None] + batch.discount[:, None] * next_quantiles

    def loss(params, obs_stats, batch, target, levels):
        x = normalize(config, obs_stats, batch.observation)
        quantiles = network.apply(params, x, levels)
        chosen = of_action(quantiles, batch.action)
        total = quantile_huber(chosen, levels, target, config.kappa).mean()
        return total, {"loss": total, "mean_value": quantiles.mean(1).max(-1).mean()}

    def learn(state, noise):
        """Gradient steps; they leave no trace before there is enough to learn from."""
        written, replay = (state.round + 1) * round_size, state.replay
        ready, obs_stats = written >= learning_starts, state.policy.obs_stats
        keep = lambda new, old: jax.tree.map(lambda n, o: jnp.where(ready, n, o), new, old)
        progress = state.round / num_rounds
        rate = config.learning_rate * (1.0 - progress if config.anneal_lr else 1.0)

        def gradient_step(learner, noise):
            bits, levels = noise
            batch = gather(config, replay, sample(config, bits, written))
            levels, target_levels = jnp.split(levels, [config.num_levels], axis=1)
            target = targets(learner, obs_stats, batch, target_levels)
            grads, metrics = jax.grad(loss, has_aux=True)(
                learner.params, obs_stats, batch, target, levels
            )
            # One long vector: fewer and larger operations than leaf by leaf.
            grads, unravel = ravel_pytree(grads)
            direction, opt_state = optimizer.update(grads, learner.opt_state)
            metrics["grad_norm"] = optax.tree.norm(grads)
            params = jax.tree.map(jnp.subtract, learner.params, unravel(rate * direction))
            tau = jnp.where((learner.updates + 1) % config.target_every == 0, config.tau, 0.0)
            move = lambda old, new: tau * new + (1.0 - tau) * old
            target_params = jax.tree.map(move, learner.target_params, params)
            params, target_params, opt_state = keep(
                (params, target_params, opt_state),
                (learner.params, learner.target_params, learner.opt_state),
            )
            learner = Learner(params, target_params, opt_state, learner.updates + ready)
            return learner, keep(metrics, dict.fromkeys(metrics, 0.0))

        policy_params = state.policy.params
        learner = Learner(policy_params, state.target_params, state.opt_state, state.updates)
        learner, metrics = jax.lax.scan(gradient_step, learner, (noise.samples, noise.levels))
        state = state.replace(
            policy=state.policy.replace(params=learner.params),
            target_params=learner.target_params,
            opt_state=learner.opt_state,
            updates=learner.updates,
        )
        return state, jax.tree.map(jnp.sum, metrics)

    def round_(state, noise):
        """Acting, then learning."""
        state, rollout = act(state, noise)
        replay = store(config, state.replay, rollout, state.round * round_size)
        if config.normalize_obs:
            obs_stats = state.policy.obs_stats.update(rollout.observation)
            state = state.replace(policy=state.policy.replace(obs_stats=obs_stats))
        state, metrics = learn(state.replace(replay=replay), noise)
        return state.replace(round=state.round + 1), (metrics, rollout.reward, rollout.done)

    def update(_, progress):
        """Rounds, whose random numbers are drawn all at once: that costs far less."""
        state = progress.state
        rng, start_rng, step_rng, explore_rng, sample_rng, level_rng = jax.random.split(
            state.rng, 6
        )
        num_samples = rounds * config.updates_per_step * config.batch_size
        num_levels = config.num_levels + config.num_target_levels
        samples = jax.random.bits(sample_rng, (num_samples,))
        levels = jax.random.uniform(level_rng, (num_samples * num_levels,))
        exploration = jax.random.uniform(explore_rng, (rounds * round_size,))
        noise = Noise(
            jax.random.split(step_rng, (rounds, num_steps)),
            exploration.reshape(rounds, num_steps, num_envs),
            samples.reshape(rounds, config.updates_per_step, config.batch_size),
            levels.reshape(rounds, config.updates_per_step, config.batch_size, num_levels),
        )
        env_state = environments.refill(start_rng, state.env_state, env_params)
        state, (metrics, reward, done) = jax.lax.scan(
            round_, state.replace(env_state=env_state, rng=rng), noise
        )
        flat = lambda x: x.reshape(rounds * num_steps, num_envs)
        state = state.replace(episodes=state.episodes.update(flat(reward), flat(done)))
        return Progress(state, jax.tree.map(lambda a, b: a + b.sum(), progress.sums, metrics))

    def row(progress, updates_before):
        """The state and a row of metrics; NaN where there is nothing to average."""
        state, sums = progress
        share = 1.0 / (state.updates - updates_before)  # a factor rounds the same under any vmap
        metrics = {name: total * share for name, total in sums.items()}
        episode_metrics, episodes = state.episodes.metrics()
        metrics |= {"timestep": state.round * round_size, **episode_metrics}
        metrics["epsilon"] = epsilon_at(config, state.round / num_rounds)
        if config.num_eval_episodes:
            rng = jax.random.clone(state.eval_rng)
            played = envs.evaluate(policy, state, env, env_params, rng, config.num_eval_episodes)
            metrics |= {"eval_return": played.episode_return, "eval_length": played.length}
        return state.replace(episodes=episodes), metrics

    def point(state, num_updates):
        progress = Progress(state, dict.fromkeys(UPDATE_METRICS, jnp.zeros(())))
        if num_evals:  # the program that makes the initial state need not learn
            progress = jax.lax.fori_loop(0, num_updates, update, progress)
        return row(progress, state.updates)

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
