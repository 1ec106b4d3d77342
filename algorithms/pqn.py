"""Parallelised Q-learning: no replay buffer, no target network. A whole run is one XLA program.

Paper: Gallici et al. 2024, https://arxiv.org/abs/2407.04811. Many environments act at once, layer
norm keeps Q-learning stable, and the targets are Peng's Q(lambda) (Peng and Williams 1996,
https://doi.org/10.1007/BF00114731).

    python algorithms/pqn.py --env CartPole-v1 --seed 0
    python algorithms/pqn.py --preset Breakout-MinAtar --num-seeds 3

    train = make_train(Config(env="Acrobot-v1"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 16))

Implementation details, from the paper and its public code (purejaxql, CleanRL's pqn.py):
  1 Layer norm between each layer and its activation; He initialisation.
  2 Actions are epsilon-greedy, with one epsilon for a whole rollout, annealed from rollout to
    rollout.
  3 Targets are computed once a rollout. Then epochs of shuffled minibatches reduce half the squared
    error.
  4 Rectified Adam, clipping by global norm, linear annealing of the learning rate, here at every
    gradient step.
  5 Rewards may be scaled, because values near 1 are learned sooner than values near 100.
Four things differ from that code. Targets are also right where a rollout ends. A truncated episode
bootstraps from the values of its final observation. Statistics for normalisation do not change
while a rollout is collected and learned from. The last layer has He initialisation too, where
purejaxql has half the variance.
"""

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
    "title": "Parallelised Q-learning (PQN): Q(lambda) without replay or target networks",
    "use": "discrete actions and cheap steps, without the memory of a replay buffer",
    "paper": "[Gallici et al. 2024](https://arxiv.org/abs/2407.04811)",
    "family": "action values",
    "actions": "discrete",
    "masks": True,
    "agents": "one",
    "memory": False,
    "split": True,
}


@struct.dataclass
class Config:
    env: str = static("CartPole-v1")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # env settings, name=value,...
    total_timesteps: int = static(500_000)  # environment steps of the whole run
    num_envs: int = static(16)  # parallel environments
    num_steps: int = static(64)  # steps of each environment in a rollout
    update_epochs: int = static(8)  # passes over each rollout
    num_minibatches: int = static(8)  # gradient steps in a pass
    optimizer: str = static("radam")  # radam (rectified) or adam
    learning_rate: float = real(1e-3, "[0, inf)")  # the optimiser's step size
    anneal_lr: bool = static(True)  # take the learning rate linearly to zero
    adam_eps: float = real(1e-5, "(0, inf)")  # the optimiser's epsilon
    max_grad_norm: float = real(10.0, "(0, inf]")  # clip gradients to this global norm; inf: never
    gamma: float = real(0.995, "[0, 1]")  # discount factor
    q_lambda: float = real(0.65, "[0, 1]")  # decay of the trace; 0: one-step targets
    reward_scale: float = real(0.1, "(0, inf)")  # factor on rewards for learning
    exploration: str = static("linear")  # epsilon over time: constant, linear or exponential
    eps_start: float = real(1.0, "[0, 1]")  # initial epsilon, the probability of a random action
    eps_end: float = real(0.2, "[0, 1]")  # final epsilon; the only one if constant
    exploration_fraction: float = real(0.5, "(0, inf]")  # share of the run until epsilon is eps_end
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers
    activation: str = static("relu")  # any function of flax.linen: tanh, relu, swish, ...
    layer_norm: bool = static(True)  # layer norm before each activation
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    compute_dtype: str = static("float32")  # dtype of hidden layers: float32 or bfloat16
    normalize_obs: bool = static(False)  # normalise observations by running mean and variance
    clip_obs: float = real(10.0, "(0, inf]")  # clip normalised observations to +- this
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------


class QNetwork(nn.Module):
    """Observations (batch, ...) to the values of all actions, (batch, num_actions)."""

    config: Config
    num_actions: int

    @nn.compact
    def __call__(self, x):
        init, dtype = nn.initializers.he_normal(), self.config.compute_dtype
        if x.ndim == 4 and self.config.conv_layers != "none":
            x = parts.Convolutions(self.config.conv_layers, self.activate, init, dtype)(x)
        x = x.reshape(x.shape[0], -1)
        for size in self.config.hidden_sizes:
            x = self.activate(parts.Dense(size, kernel_init=init, dtype=dtype)(x))
        return parts.Dense(self.num_actions, kernel_init=init)(x.astype(jnp.float32))

    def activate(self, x):
        x = parts.LayerNorm()(x) if self.config.layer_norm else x  # detail 1
        return parts.activation(self.config.activation)(x)


# --- data types -------------------------------------------------------------------------------


@struct.dataclass
class PolicyState:
    """The part of the state that acting needs."""

    params: Any
    obs_stats: parts.RunningStatistics


@struct.dataclass
class TrainState:
    """Everything that a run needs to continue."""

    policy: PolicyState
    opt_state: optax.OptState
    env_state: Any  # of `envs.batch`
    observation: jax.Array  # (num_envs, ...)
    episodes: Any  # of `envs.batch`
    rollout_rng: jax.Array  # key for acting and the environments
    order_rng: jax.Array  # key for the order of samples
    eval_rng: jax.Array  # constant: all evaluations use it
    update: jax.Array  # rollouts learned from so far, int32


class Transition(NamedTuple):
    """A rollout; leading axes (num_steps, num_envs)."""

    observation: jax.Array
    action: jax.Array
    value: jax.Array  # max_a Q of the observation
    reward: jax.Array
    terminated: jax.Array
    done: jax.Array  # terminated or truncated
    final_observation: jax.Array  # after the action, before any restart
    final_mask: jax.Array | None  # allowed actions there


class Batch(NamedTuple):
    """Samples to learn from; leading axis num_steps * num_envs, or that of a minibatch."""

    observation: jax.Array  # normalised
    action: jax.Array
    target: jax.Array


class Learned(NamedTuple):
    """The carry of the gradient steps."""

    params: Any
    opt_state: optax.OptState


OPTIMIZERS = ("radam", "adam")
EXPLORATION = ("constant", "linear", "exponential")


# --- formulas ---------------------------------------------------------------------------------


def q_lambda_targets(rewards, next_values, terminated, done, gamma, q_lambda):
    """Peng's Q(lambda): G_t = r_t + gamma ((1 - lambda) max_a Q(s'_t, a) + lambda G_{t+1}).

    All arrays are (num_steps, num_envs). `next_values` are max_a Q(s'_t, a) of the observations
    after the actions, before any restart, and count 0 where `terminated`. They replace G_{t+1} at
    `done`, also when truncated, and at the rollout's end.
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
    """Actions (batch,) of the largest values (batch, num_actions) that the mask allows."""
    return jnp.argmax(values if mask is None else jnp.where(mask, values, -jnp.inf), -1)


def of_action(values, action):
    """Values (batch,) of actions (batch,) out of values (batch, num_actions)."""
    return (values * jax.nn.one_hot(action, values.shape[-1])).sum(-1)


def epsilon_at(config, progress):
    """The probability of a random action: eps_end + left (eps_start - eps_end).

    `left` is 0 (constant), max(1 - d, 0) (linear) or exp(-5 d) (exponential, below 1 % at d = 1),
    with d = progress / exploration_fraction and progress in [0, 1].
    """
    if config.exploration == "constant":
        return jnp.asarray(config.eps_end)
    done = progress / config.exploration_fraction
    linear = config.exploration == "linear"
    left = jnp.maximum(1.0 - done, 0.0) if linear else jnp.exp(-5.0 * done)
    return config.eps_end + left * (config.eps_start - config.eps_end)


def epsilon_greedy(values, epsilon, noise, mask=None):
    """Actions (batch,) for values (batch, num_actions) and noise (batch,).

    With probability epsilon, an action is uniform over those that the mask (batch, num_actions)
    allows; else it is greedy.
    """
    random = noise.action
    if mask is not None:
        # Noise below epsilon is uniform in [0, epsilon): it chooses how many allowed actions stand
        # before the random one.
        number = mask.sum(-1)
        before = jnp.minimum(noise.uniform / epsilon * number, number - 1).astype(jnp.int32)
        random = jnp.argmax(jnp.cumsum(mask, -1) > before[:, None], -1)
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

    The policy is for one environment. Without rng it takes the action of the highest value. With
    rng it is epsilon-greedy at eps_end. mask (num_actions,): `env.action_mask`, the allowed
    actions.
    """
    num_actions = env.action_space(env_params).n
    network = QNetwork(config, num_actions)

    def policy(state, observation, memory=None, rng=None, mask=None):
        x = state.policy.obs_stats.as_input(config, observation)[None]
        values, mask = network.apply(state.policy.params, x), None if mask is None else mask[None]
        if rng is None:
            return greedy(values, mask)[0], memory
        noise = parts.epsilon_noise(rng, (1,), num_actions)
        return epsilon_greedy(values, config.eps_end, noise, mask)[0], memory

    return policy


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    sizes = ("num_steps", "update_epochs", "num_minibatches")
    words = {"optimizer": OPTIMIZERS, "exploration": EXPLORATION}
    parts.check(INFO, config, env, env_params, *sizes, minibatches_of="samples", words=words)


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.

    Raises:
      ValueError: a setting that cannot work, or a space that PQN cannot take.
    """
    check(config, env, env_params)
    return parts.program(learner, config, env, env_params)


def learner(config: Config, env: Any, env_params: Any) -> parts.Learner:
    """The first state, an update (collects a rollout and learns from it), and the policy."""
    batch_size = config.num_envs * config.num_steps
    num_updates = parts.num_updates(config, batch_size)
    num_actions = env.action_space(env_params).n
    environments = envs.batch(env, config.num_envs, config.num_steps)
    network = QNetwork(config, num_actions)
    adam = optax.scale_by_radam if config.optimizer == "radam" else optax.scale_by_adam
    # detail 4
    chain = optax.clip_by_global_norm(config.max_grad_norm), adam(eps=config.adam_eps)
    optimizer = lambda rate: parts.on_one_vector(optax.chain(*chain, optax.scale(-rate)))

    def init(rng):
        order_rng, network_rng, reset_rng, rollout_rng, eval_rng = jax.random.split(rng, 5)
        observation, env_state = environments.reset(reset_rng, env_params)
        params = network.init(network_rng, observation.astype(jnp.float32))
        return TrainState(
            policy=PolicyState(params, parts.RunningStatistics.create(observation.shape[1:])),
            opt_state=optimizer(0.0).init(params),
            env_state=env_state,
            observation=observation,
            episodes=environments.episodes(),
            rollout_rng=rollout_rng,
            order_rng=order_rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state):
        """Collects a rollout and learns from it."""
        epsilon = epsilon_at(config, state.update / num_updates)  # detail 2
        state, rollout = collect(state, epsilon)
        state, metrics = learn(state, prepare(state, rollout))
        metrics |= {"mean_value": rollout.value.mean(), "epsilon": epsilon}
        state = update_statistics(state, rollout)
        return state.replace(update=state.update + 1), metrics

    def collect(state, epsilon):
        """Collects a rollout."""
        rng, start_rng, step_rng, noise_rng = jax.random.split(state.rollout_rng, 4)
        noise = parts.epsilon_noise(noise_rng, (config.num_steps, config.num_envs), num_actions)

        def step(state, inputs):
            step_rng, noise = inputs
            x = state.policy.obs_stats.as_input(config, state.observation)
            values = network.apply(state.policy.params, x)
            mask = environments.action_mask(state.env_state, env_params)
            action = epsilon_greedy(values, epsilon, noise, mask)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, state.env_state, action, env_params
            )
            transition = Transition(
                observation=state.observation,
                action=action,
                value=of_action(values, greedy(values, mask)),
                reward=reward,
                terminated=terminated,
                done=terminated | truncated,
                final_observation=info["final_observation"],
                final_mask=info.get("final_action_mask"),
            )
            return state.replace(env_state=env_state, observation=observation), transition

        env_state = environments.refill(start_rng, state.env_state, env_params)  # new start states
        state = state.replace(env_state=env_state, rollout_rng=rng)
        return parts.scan(step, state, (jax.random.split(step_rng, config.num_steps), noise))

    def prepare(state, rollout):
        """Samples with targets."""
        flat = jax.tree.map(lambda x: x.reshape(batch_size, *x.shape[2:]), rollout)
        x = state.policy.obs_stats.as_input(config, flat.observation)
        final_x = state.policy.obs_stats.as_input(config, flat.final_observation)
        final_values = network.apply(state.policy.params, final_x)
        next_values = of_action(final_values, greedy(final_values, flat.final_mask))
        targets = q_lambda_targets(  # detail 3
            config.reward_scale * rollout.reward,  # detail 5
            next_values.reshape(rollout.reward.shape),
            rollout.terminated,
            rollout.done,
            config.gamma,
            config.q_lambda,
        )
        return Batch(observation=x, action=flat.action, target=targets.reshape(batch_size))

    def loss(params, batch):
        """The mean of (Q(s, a) - y)**2 / 2."""
        values = of_action(network.apply(params, batch.observation), batch.action)
        return 0.5 * jnp.square(values - batch.target).mean()

    def learn(state, batch):
        """Epochs of minibatches."""
        rng, order_rng = jax.random.split(state.order_rng)
        orders = parts.permutations(order_rng, config.update_epochs, batch_size)
        rates = learning_rates(config, num_updates, state.update)

        def gradient_step(learned, inputs):
            indices, rate = inputs
            samples = jax.tree.map(lambda x: x[indices], batch)
            params, opt_state = learned
            total, grads = jax.value_and_grad(loss)(params, samples)
            grads = parts.mean_over_shards(grads)
            updates, opt_state = optimizer(rate).update(grads, opt_state, params)
            metrics = {"loss": total, "grad_norm": parts.global_norm(grads)}
            metrics["current_learning_rate"] = rate
            params = optax.apply_updates(params, updates)
            return Learned(params=params, opt_state=opt_state), metrics

        learned = Learned(params=state.policy.params, opt_state=state.opt_state)
        inputs = orders.reshape(len(rates), -1), rates
        learned, metrics = parts.scan(gradient_step, learned, inputs)
        policy = state.policy.replace(params=learned.params)
        state = state.replace(policy=policy, opt_state=learned.opt_state, order_rng=rng)
        return state, jax.tree.map(jnp.mean, metrics)

    def update_statistics(state, rollout):
        """Merges the rollout into the statistics, after learning from it."""
        state = state.replace(episodes=state.episodes.update(rollout.reward, rollout.done))
        if config.normalize_obs:
            obs_stats = state.policy.obs_stats.update(rollout.observation)
            state = state.replace(policy=state.policy.replace(obs_stats=obs_stats))
        return state

    return parts.Learner(init, update, make_policy(config, env, env_params), batch_size)


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
