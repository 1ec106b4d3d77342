"""REINFORCE with a value baseline and lambda-returns, a run in one XLA program.

Paper: Williams 1992, https://doi.org/10.1007/BF00992696, with the baseline of Sutton and Barto
2018 (section 13.4) and their lambda-return (equation 12.18), for discrete and continuous actions.

    python algorithms/reinforce.py --env CartPole-v1 --seed 0
    python algorithms/reinforce.py --preset Acrobot-v1 --num-seeds 5

    train = make_train(Config(env="Acrobot-v1"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 16))

Implementation details:
  - rollouts of many environments, whose episodes run on across them; the log-probabilities of
    actions are only good for one gradient step, so every rollout makes exactly one;
  - the gradient climbs: it makes actions more probable whose return exceeds the baseline;
  - returns bootstrap from the value where the rollout ends, and with gae_lambda below 1 a little at
    every step; 1 gives plain returns. A truncated episode bootstraps from the value of its final
    observation, a terminated one does not;
  - what exceeds the baseline is standardised over the rollout (a flag), which makes the
    learning rate independent of the size of rewards;
  - actor and critic are separate, with orthogonal initialisation, under one Adam whose learning
    rate is annealed linearly, with an entropy bonus and clipping by global norm;
  - continuous actions are diagonal Gaussians with a state-independent log std; the environment gets
    the clipped action, log_prob refers to the unclipped one;
  - observations and rewards may be normalised by running statistics, which stand still during a
    rollout and the learning from it.

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
    num_steps: int = static(32)  # steps of each environment in a rollout
    learning_rate: float = 4e-3  # Adam's step size
    anneal_lr: bool = static(True)  # take the learning rate linearly to zero
    adam_eps: float = 1e-5  # Adam's epsilon
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.98  # decay of the lambda-returns; 1: the plain ones
    normalize_advantage: bool = static(True)  # standardise what exceeds the baseline
    ent_coef: float = 0.01  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # clip gradients to this global norm; inf for never
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers of each tower
    activation: str = static("tanh")  # any function of flax.linen: tanh, relu, swish, ...
    conv_features: int = static(16)  # 3x3 filters before the dense layers, for images; 0: none
    normalize_obs: bool = static(False)  # by their running mean and variance
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


class ActorCritic(nn.Module):
    """Observations (batch, ...) to an ActorOutput, and to values (batch,)."""

    config: Config
    discrete: bool
    num_outputs: int  # actions, or dimensions of the action

    def setup(self):
        self.actor_torso = Torso(self.config)
        self.critic_torso = Torso(self.config)
        self.actor_head = nn.Dense(self.num_outputs)
        self.critic_head = nn.Dense(1)
        if not self.discrete:
            self.log_std = self.param("log_std", nn.initializers.zeros, (self.num_outputs,))

    def actor(self, x):
        output = self.actor_head(self.actor_torso(x))
        return ActorOutput(output, None if self.discrete else self.log_std)

    def critic(self, x):
        return self.critic_head(self.critic_torso(x))[..., 0]

    def __call__(self, x):
        return self.actor(x), self.critic(x)


def make_network(config: Config, env: Any, env_params: Any) -> ActorCritic:
    space = env.action_space(env_params)
    discrete = hasattr(space, "n")
    return ActorCritic(config, discrete, space.n if discrete else math.prod(space.shape))


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
    discounted_return: jax.Array  # (num_envs,), of the rewards so far
    reward_stats: envs.RunningStatistics  # of discounted returns


@struct.dataclass
class TrainState:
    """Everything that a run needs to go on."""

    policy: PolicyState
    opt_state: optax.OptState
    collector: Collector
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


class Batch(NamedTuple):
    """Samples to learn from; leading axis num_steps * num_envs."""

    observation: jax.Array  # normalised
    action: jax.Array
    target: jax.Array  # lambda-returns


class Learned(NamedTuple):
    """What a gradient step gives."""

    params: Any
    opt_state: optax.OptState
    metrics: dict[str, jax.Array]


class Progress(NamedTuple):
    """The carry of the updates between two points of the learning curve."""

    state: TrainState
    sums: dict[str, jax.Array]  # UPDATE_METRICS, summed


LOSSES = ("loss", "policy_loss", "value_loss")
UPDATE_METRICS = (*LOSSES, "entropy", "grad_norm", "mean_value", "explained_variance")


# --- formulas ---------------------------------------------------------------------------------


def lambda_returns(rewards, next_values, terminated, done, gamma, gae_lambda):
    """G_t = r_t + gamma ((1 - lambda) V(s') + lambda G_t+1), equation 12.18 of Sutton and Barto.

    All arrays are (num_steps, num_envs). `next_values` belong to what each action led to, before
    any restart; they count unless `terminated`. At `done`, also when truncated, and at the
    rollout's end there is no G_t+1 of the same episode, and V(s') takes its place.
    """
    follows = (1.0 - jnp.asarray(done)).at[-1].set(0.0)
    bootstrap = (1.0 - gae_lambda * follows) * (1.0 - terminated) * next_values
    return backward_sums(rewards + gamma * bootstrap, gamma * gae_lambda * follows)


def backward_sums(x, decays):
    """y_t = x_t + decay_t * y_t+1 along the first axis, by doubling the distance that sums reach:
    a few operations on whole arrays, where a scan takes as many steps as there are."""

    def later(values, reach):
        return jnp.pad(values[reach:], [(0, reach)] + [(0, 0)] * (values.ndim - 1))

    for level in range((len(x) - 1).bit_length()):
        reach = 2**level
        x, decays = x + decays * later(x, reach), decays * later(decays, reach)
    return x


def policy_gradient_loss(log_prob, advantages):
    """Its gradient is minus that of the expected return; a mean over samples."""
    return -(log_prob * advantages).mean()


def explained_variance(values, targets):
    """1 if values predict targets, 0 if no better than their mean."""
    return 1.0 - jnp.var(targets - values) / jnp.var(targets)


# --- policy -----------------------------------------------------------------------------------


def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None) -> action, memory.

    For one environment. The most probable action, or the mean, without rng; a sample with it.
    """
    if env is None:
        env, env_params = envs.make(config.env, **dict(config.env_settings))
    network = make_network(config, env, env_params)

    def policy(state, observation, memory=None, rng=None):
        x = normalize(config, state.policy.obs_stats, observation[None])
        actions = distribution(network.apply(state.policy.params, x, method="actor"))
        action = actions.mode() if rng is None else actions.sample(seed=rng)
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
    positive = ("total_timesteps", "num_envs", "num_steps", "num_evals")
    sizes = [(name, getattr(config, name), 1) for name in positive]
    sizes += [(name, getattr(config, name), 0) for name in ("num_eval_episodes", "conv_features")]
    sizes += [("hidden_sizes", size, 1) for size in config.hidden_sizes]
    for name, value, least in sizes:
        if type(value) is not int or value < least:
            raise ValueError(f"{name}={value!r}: give a whole number, {least} or more")
    if not callable(getattr(nn, config.activation, None)):
        raise ValueError(f"activation={config.activation!r}: flax.linen has tanh, relu, ...")
    if config.normalize_advantage and config.num_envs * config.num_steps == 1:
        raise ValueError(
            "num_steps=1 with num_envs=1 leaves one sample to a rollout, and normalize_advantage "
            "makes its advantage zero; num_steps=2 would do"
        )
    if hasattr(env, "num_agents"):
        raise ValueError(f"{env.name} has several agents; ippo takes it")
    actions, observations = env.action_space(env_params), env.observation_space(env_params)
    if not (hasattr(actions, "n") or hasattr(actions, "low")):
        raise ValueError(f"{env.name} has actions {actions}; reinforce takes Discrete and Box")
    if not hasattr(observations, "low"):
        raise ValueError(f"{env.name} has observations {observations}; reinforce takes Box")
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
      ValueError: a setting that cannot work, or a space that REINFORCE cannot take.
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
    num_updates = updates_per_point * config.num_evals  # of the whole run
    environments = envs.batch(env, config.num_envs, config.num_steps)
    action_space = env.action_space(env_params)
    network = make_network(config, env, env_params)
    policy = make_policy(config, env, env_params)
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm), optax.scale_by_adam(eps=config.adam_eps)
    )

    def initial_state(rng):
        network_rng, reset_rng, collector_rng, eval_rng = jax.random.split(rng, 4)
        observation, env_state = environments.reset(reset_rng, env_params)
        params = initialize(network, network_rng, observation.astype(jnp.float32))
        return TrainState(
            policy=PolicyState(params, envs.RunningStatistics.create(observation.shape[1:])),
            opt_state=optimizer.init(ravel_pytree(params)[0]),
            collector=Collector(
                collector_rng,
                env_state,
                observation,
                episodes=envs.EpisodeStatistics.create(config.num_envs),
                discounted_return=jnp.zeros(config.num_envs),
                reward_stats=envs.RunningStatistics.create(),
            ),
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def collect(policy_state, collector):
        """A rollout. Log_probs are left for later, for all steps at once."""
        rng, start_rng, step_rng, noise_rng = jax.random.split(collector.rng, 4)
        env_state = environments.refill(start_rng, collector.env_state, env_params)
        draw = jax.random.gumbel if network.discrete else jax.random.normal
        noise = draw(noise_rng, (batch_size * network.num_outputs,))
        noise = noise.reshape(config.num_steps, config.num_envs, network.num_outputs)

        def step(collector, inputs):
            step_rng, noise = inputs
            x = normalize(config, policy_state.obs_stats, collector.observation)
            action = sample(network.apply(policy_state.params, x, method="actor"), noise)
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
            )
            return collector.replace(env_state=env_state, observation=observation), transition

        collector = collector.replace(rng=rng, env_state=env_state)
        return jax.lax.scan(step, collector, (jax.random.split(step_rng, config.num_steps), noise))

    def make_batch(policy_state, reward_stats, rollout):
        """Samples with targets."""
        flat = jax.tree.map(lambda x: x.reshape(batch_size, *x.shape[2:]), rollout)
        final_x = normalize(config, policy_state.obs_stats, flat.final_observation)
        next_values = network.apply(policy_state.params, final_x, method="critic")
        reward = reward_stats.scale(rollout.reward) if config.normalize_reward else rollout.reward
        targets = lambda_returns(
            reward,
            next_values.reshape(reward.shape),
            rollout.terminated,
            rollout.terminated | rollout.truncated,
            config.gamma,
            config.gae_lambda,
        )
        x = normalize(config, policy_state.obs_stats, flat.observation)
        return Batch(x, flat.action, targets.reshape(batch_size))

    def loss(params, batch):
        actor, values = network.apply(params, batch.observation)
        log_prob, entropy = log_prob_and_entropy(actor, batch.action)
        advantages = jax.lax.stop_gradient(batch.target - values)
        if config.normalize_advantage:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy_loss = policy_gradient_loss(log_prob, advantages)
        value_loss = 0.5 * jnp.square(values - batch.target).mean()
        entropy = entropy.mean()
        total = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
        return total, {
            "loss": total,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "mean_value": values.mean(),
            "explained_variance": explained_variance(values, batch.target),
        }

    def learn(state, batch):
        """The gradient step of a rollout."""
        grads, metrics = jax.grad(loss, has_aux=True)(state.policy.params, batch)
        # One long vector: fewer and larger operations than leaf by leaf.
        grads, unravel = ravel_pytree(grads)
        direction, opt_state = optimizer.update(grads, state.opt_state)
        learning_rate = config.learning_rate
        if config.anneal_lr:
            learning_rate *= jnp.maximum(1.0 - state.update / num_updates, 0.0)
        step = unravel(learning_rate * direction)
        metrics["grad_norm"] = optax.tree.norm(grads)
        return Learned(jax.tree.map(jnp.subtract, state.policy.params, step), opt_state, metrics)

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
        collector, rollout = collect(state.policy, state.collector)
        learned = learn(state, make_batch(state.policy, collector.reward_stats, rollout))
        obs_stats, collector = update_statistics(state, collector, rollout)
        state = state.replace(
            policy=PolicyState(learned.params, obs_stats),
            opt_state=learned.opt_state,
            collector=collector,
            update=state.update + 1,
        )
        return Progress(state, jax.tree.map(jnp.add, progress.sums, learned.metrics))

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
