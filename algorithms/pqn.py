"""Parallelised Q-learning: no replay buffer, no target network, a run in one XLA program.

Paper: Gallici et al. 2024, https://arxiv.org/abs/2407.04811. Many environments act at once, layer
norm keeps Q-learning stable, and the targets are Peng's Q(lambda) (Peng and Williams 1996,
https://doi.org/10.1007/BF00114731).

    python algorithms/pqn.py --env CartPole-v1 --seed 0
    python algorithms/pqn.py --preset Breakout-MinAtar --num-seeds 3

    train = make_train(Config(env="Acrobot-v1"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 16))

Implementation details, from the paper and its public code (purejaxql, CleanRL's pqn.py):
  - layer norm between each layer and its activation; He initialisation;
  - epsilon-greedy actions, one epsilon for a whole rollout, annealed from rollout to rollout;
  - targets computed once a rollout, then epochs of shuffled minibatches on half the squared error;
  - rectified Adam, clipping by global norm, linear annealing of the learning rate, here at every
    gradient step;
  - rewards may be scaled: values near 1 are learned sooner than values near 100.
Unlike that code: targets are right also where a rollout ends, a truncated episode bootstraps from
the values of its final observation, and statistics for normalisation stand still during a rollout
and the learning from it.

The calls of `envs`, for whoever takes this file elsewhere: `make` builds a gymnax environment;
`batch` steps many of them, restarting those that end (`info["final_observation"]` is what came
before the restart); `evaluate` plays whole episodes; `EpisodeStatistics` average the returns of
training episodes; `RunningStatistics` are a mean and a variance.
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
    num_steps: int = static(64)  # steps of each environment in a rollout
    update_epochs: int = static(4)  # passes over each rollout
    num_minibatches: int = static(8)  # gradient steps in a pass
    optimizer: str = static("radam")  # radam (rectified) or adam
    learning_rate: float = 1e-3  # the optimiser's step size
    anneal_lr: bool = static(True)  # take the learning rate linearly to zero
    adam_eps: float = 1e-5  # the optimiser's epsilon
    max_grad_norm: float = 10.0  # clip gradients to this global norm; inf for never
    gamma: float = 0.99  # discount factor
    q_lambda: float = 0.65  # decay of the trace; 0: one-step targets, 1: the longest
    reward_scale: float = 0.1  # factor on the rewards learned from, and so on values
    exploration: str = static("linear")  # epsilon over time: constant, linear or exponential
    eps_start: float = 1.0  # epsilon, the probability of a random action, at first
    eps_end: float = 0.2  # epsilon at last, and always if constant
    exploration_fraction: float = 0.5  # share of the run until epsilon is at its end
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers
    activation: str = static("relu")  # any function of flax.linen: tanh, relu, swish, ...
    layer_norm: bool = static(True)  # before each activation
    conv_features: int = static(16)  # 3x3 filters before the dense layers, for images; 0: none
    normalize_obs: bool = static(False)  # by their running mean and variance
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # episodes of the evaluation at each point; 0: none
    eval_at_start: bool = static(True)  # a point before training, too


# --- network ----------------------------------------------------------------------------------


class LayerNorm(nn.Module):
    """Features (..., size) with mean 0 and variance 1, then a scale and a bias for each.

    Means are products with a vector: XLA's own sums along the last axis are slow on CPUs.
    """

    @nn.compact
    def __call__(self, x):
        size = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (size,))
        bias = self.param("bias", nn.initializers.zeros, (size,))
        weights = jnp.full(size, 1.0 / size)
        mean = lambda x: jnp.dot(x, weights, precision="highest")[..., None]  # not TF32 on a GPU
        x = x - mean(x)
        return x * jax.lax.rsqrt(mean(jnp.square(x)) + 1e-6) * scale + bias


class QNetwork(nn.Module):
    """Observations (batch, ...) to the values of all actions, (batch, num_actions)."""

    config: Config
    num_actions: int

    @nn.compact
    def __call__(self, x):
        if x.ndim == 4 and self.config.conv_features:
            # A 3x3 convolution as patches times a matrix: on a CPU XLA's own is 9 times slower.
            height, width = x.shape[1] - 2, x.shape[2] - 2
            patches = [x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
            x = self.layer(jnp.concatenate(patches, -1), self.config.conv_features)
        x = x.reshape(x.shape[0], -1)
        for size in self.config.hidden_sizes:
            x = self.layer(x, size)
        return nn.Dense(self.num_actions, kernel_init=nn.initializers.he_normal())(x)

    def layer(self, x, size):
        x = nn.Dense(size, kernel_init=nn.initializers.he_normal())(x)
        if self.config.layer_norm:
            x = LayerNorm()(x)
        return getattr(nn, self.config.activation)(x)


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
    episodes: envs.EpisodeStatistics


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
    action: jax.Array
    value: jax.Array  # max-Q of the observation
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    final_observation: jax.Array  # what the action led to, before any restart


class Batch(NamedTuple):
    """Samples to learn from; leading axis num_steps * num_envs, or that of a minibatch."""

    observation: jax.Array  # normalised
    action: jax.Array
    target: jax.Array


class Exploration(NamedTuple):
    """Random numbers of a rollout; leading axes (num_steps, num_envs)."""

    uniform: jax.Array  # in [0, 1): below epsilon the action is the random one
    action: jax.Array


class Learner(NamedTuple):
    """The carry of the gradient steps."""

    params: Any
    opt_state: optax.OptState


class Progress(NamedTuple):
    """The carry of the updates between two points of the learning curve."""

    state: TrainState
    sums: dict[str, jax.Array]  # UPDATE_METRICS, summed


UPDATE_METRICS = ("loss", "grad_norm", "mean_value", "epsilon")


# --- formulas ---------------------------------------------------------------------------------


def q_lambda_targets(rewards, next_values, terminated, done, gamma, q_lambda):
    """Peng's Q(lambda): G_t = r_t + gamma ((1 - lambda) max Q(s') + lambda G_t+1).

    All arrays are (num_steps, num_envs). `next_values` are max-Q of what each action led to, before
    any restart; they count unless `terminated`. At `done`, also when truncated, and at the
    rollout's end there is no G_t+1 of the same episode, and max-Q takes its place.
    """
    follows = (1.0 - jnp.asarray(done)).at[-1].set(0.0)
    bootstrap = (1.0 - q_lambda * follows) * (1.0 - terminated) * next_values
    return backward_sums(rewards + gamma * bootstrap, gamma * q_lambda * follows)


def backward_sums(x, decays):
    """y_t = x_t + decay_t * y_t+1 along the first axis, by doubling the distance that sums reach:
    a few operations on whole arrays, where a scan takes as many steps as there are."""

    def later(values, reach):
        return jnp.pad(values[reach:], [(0, reach)] + [(0, 0)] * (values.ndim - 1))

    for level in range((len(x) - 1).bit_length()):
        reach = 2**level
        x, decays = x + decays * later(x, reach), decays * later(decays, reach)
    return x


def epsilon_at(config, progress):
    """Probability of a random action when a share of the run, `progress`, is over."""
    part = jnp.minimum(progress / config.exploration_fraction, 1.0)
    start, end = config.eps_start, config.eps_end
    if config.exploration == "constant":
        return end
    if config.exploration == "linear":
        return start + part * (end - start)
    return start ** (1.0 - part) * end**part


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


# --- policy -----------------------------------------------------------------------------------


def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None) -> action, memory.

    For one environment. The action of the largest value without rng; with it a random one, with
    the probability that the end of training has.
    """
    if env is None:
        env, env_params = envs.make(config.env, **dict(config.env_settings))
    num_actions = env.action_space(env_params).n
    network = QNetwork(config, num_actions)

    def policy(state, observation, memory=None, rng=None):
        x = normalize(config, state.policy.obs_stats, observation[None])
        action = network.apply(state.policy.params, x)[0].argmax()
        if rng is not None:
            noise = draw_exploration(rng, (), num_actions)
            action = explore(action, noise, epsilon_at(config, 1.0))
        return action, memory

    return policy


def normalize(config, obs_stats, observation):
    """Observations as the network sees them."""
    observation = observation.astype(jnp.float32)
    return obs_stats.normalize(observation) if config.normalize_obs else observation


def draw_exploration(rng, shape, num_actions):
    """Drawn for a whole rollout: many random numbers at once cost far less than a few at every
    step, and a flat array of them compiles faster."""
    uniform_rng, action_rng = jax.random.split(rng)
    uniform = jax.random.uniform(uniform_rng, (math.prod(shape),))
    action = jax.random.randint(action_rng, (math.prod(shape),), 0, num_actions)
    return Exploration(uniform.reshape(shape), action.reshape(shape))


def explore(greedy, noise, epsilon):
    return jnp.where(noise.uniform < epsilon, noise.action, greedy)


# --- training ---------------------------------------------------------------------------------


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and what would do."""
    positive = ("total_timesteps", "num_envs", "num_steps", "update_epochs", "num_minibatches")
    sizes = [(name, getattr(config, name), 1) for name in (*positive, "num_evals")]
    sizes += [(name, getattr(config, name), 0) for name in ("num_eval_episodes", "conv_features")]
    sizes += [("hidden_sizes", size, 1) for size in config.hidden_sizes]
    for name, value, least in sizes:
        if type(value) is not int or value < least:
            raise ValueError(f"{name}={value!r}: give a whole number, {least} or more")
    if not callable(getattr(nn, config.activation, None)):
        raise ValueError(f"activation={config.activation!r}: flax.linen has tanh, relu, ...")
    choices = {"optimizer": ("radam", "adam")}
    choices["exploration"] = ("constant", "linear", "exponential")
    for name, allowed in choices.items():
        if getattr(config, name) not in allowed:
            raise ValueError(f"{name}={getattr(config, name)!r}: give {' or '.join(allowed)}")
    batch_size, number = config.num_envs * config.num_steps, config.num_minibatches
    if batch_size % number:
        divisors = [d for d in range(1, batch_size + 1) if batch_size % d == 0]
        near = sorted(sorted(divisors, key=lambda d: abs(d - number))[:4])
        raise ValueError(
            f"num_minibatches={number} does not divide num_envs * num_steps = {config.num_envs} * "
            f"{config.num_steps} = {batch_size}; {', '.join(map(str, near))} do"
        )
    if hasattr(env, "num_agents"):
        raise ValueError(f"{env.name} has several agents; ippo takes it")
    actions, observations = env.action_space(env_params), env.observation_space(env_params)
    if not hasattr(actions, "n"):
        raise ValueError(f"{env.name} has actions {actions}; pqn takes Discrete, ppo also Box")
    if not hasattr(observations, "low"):
        raise ValueError(f"{env.name} has observations {observations}; pqn takes Box")
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
      ValueError: a setting that cannot work, or a space that PQN cannot take.
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
    steps_per_update = config.update_epochs * config.num_minibatches  # gradient steps
    updates_per_point = math.ceil(config.total_timesteps / batch_size / config.num_evals)
    num_updates = updates_per_point * config.num_evals  # of the whole run
    num_actions = env.action_space(env_params).n
    environments = envs.batch(env, config.num_envs, config.num_steps)
    network = QNetwork(config, num_actions)
    policy = make_policy(config, env, env_params)
    adam = optax.scale_by_radam if config.optimizer == "radam" else optax.scale_by_adam
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm), adam(eps=config.adam_eps)
    )

    def initial_state(rng):
        rng, network_rng, reset_rng, collector_rng, eval_rng = jax.random.split(rng, 5)
        observation, env_state = environments.reset(reset_rng, env_params)
        params = network.init(network_rng, observation.astype(jnp.float32))
        return TrainState(
            policy=PolicyState(params, envs.RunningStatistics.create(observation.shape[1:])),
            opt_state=optimizer.init(ravel_pytree(params)[0]),
            collector=Collector(
                collector_rng,
                env_state,
                observation,
                episodes=envs.EpisodeStatistics.create(config.num_envs),
            ),
            rng=rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def collect(policy_state, collector, epsilon):
        """A rollout."""
        rng, start_rng, step_rng, noise_rng = jax.random.split(collector.rng, 4)
        env_state = environments.refill(start_rng, collector.env_state, env_params)
        noise = draw_exploration(noise_rng, (config.num_steps, config.num_envs), num_actions)

        def step(collector, inputs):
            step_rng, noise = inputs
            x = normalize(config, policy_state.obs_stats, collector.observation)
            q_values = network.apply(policy_state.params, x)
            action = explore(q_values.argmax(-1), noise, epsilon)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, collector.env_state, action, env_params
            )
            transition = Transition(
                observation=collector.observation,
                action=action,
                value=q_values.max(-1),
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                final_observation=info["final_observation"],
            )
            return collector.replace(env_state=env_state, observation=observation), transition

        collector = collector.replace(rng=rng, env_state=env_state)
        return jax.lax.scan(step, collector, (jax.random.split(step_rng, config.num_steps), noise))

    def make_batch(policy_state, rollout):
        """Samples with targets."""
        flat = jax.tree.map(lambda x: x.reshape(batch_size, *x.shape[2:]), rollout)
        final_x = normalize(config, policy_state.obs_stats, flat.final_observation)
        next_values = network.apply(policy_state.params, final_x).max(-1)
        targets = q_lambda_targets(
            config.reward_scale * rollout.reward,
            next_values.reshape(rollout.reward.shape),
            rollout.terminated,
            rollout.terminated | rollout.truncated,
            config.gamma,
            config.q_lambda,
        )
        x = normalize(config, policy_state.obs_stats, flat.observation)
        return Batch(x, flat.action, targets.reshape(batch_size))

    def loss(params, batch):
        chosen = jax.nn.one_hot(batch.action, num_actions)
        values = (network.apply(params, batch.observation) * chosen).sum(-1)
        return 0.5 * jnp.square(values - batch.target).mean()

    def learn(state, batch, rng):
        """Epochs of minibatches."""
        orders = permutations(rng, config.update_epochs, batch_size)
        rates = jnp.full(steps_per_update, config.learning_rate)
        if config.anneal_lr:
            done = state.update + jnp.arange(steps_per_update) / steps_per_update
            rates *= jnp.maximum(1.0 - done / num_updates, 0.0)

        def minibatch(learner, inputs):
            indices, learning_rate = inputs
            samples = jax.tree.map(lambda x: x[indices], batch)
            value, grads = jax.value_and_grad(loss)(learner.params, samples)
            # One long vector: fewer and larger operations than leaf by leaf.
            grads, unravel = ravel_pytree(grads)
            direction, opt_state = optimizer.update(grads, learner.opt_state)
            step = unravel(learning_rate * direction)
            params = jax.tree.map(jnp.subtract, learner.params, step)
            return Learner(params, opt_state), {"loss": value, "grad_norm": optax.tree.norm(grads)}

        learner = Learner(state.policy.params, state.opt_state)
        inputs = (orders.reshape(steps_per_update, -1), rates)
        learner, metrics = jax.lax.scan(minibatch, learner, inputs)
        return learner, jax.tree.map(jnp.mean, metrics)

    def update(_, progress):
        """One rollout and what is learned from it."""
        state = progress.state
        rng, order_rng = jax.random.split(state.rng)
        epsilon = epsilon_at(config, state.update / num_updates)
        collector, rollout = collect(state.policy, state.collector, epsilon)
        batch = make_batch(state.policy, rollout)
        learner, metrics = learn(state, batch, order_rng)
        metrics |= {"mean_value": rollout.value.mean(), "epsilon": epsilon}
        obs_stats, done = state.policy.obs_stats, rollout.terminated | rollout.truncated
        if config.normalize_obs:
            obs_stats = obs_stats.update(rollout.observation)
        episodes = collector.episodes.update(rollout.reward, done)
        state = state.replace(
            policy=PolicyState(learner.params, obs_stats),
            opt_state=learner.opt_state,
            collector=collector.replace(episodes=episodes),
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
