"""Parallelised Q-learning with memory and no target network. A whole run is one XLA program.

Paper: Gallici et al. 2024, https://arxiv.org/abs/2407.04811, with Peng's Q(lambda) (Peng and
Williams 1996, https://doi.org/10.1007/BF00114731). The memories and their papers:
parts/recurrence.py and attention.py.

    python algorithms/pqn_rnn.py --preset CartPole-v1-positions
    python algorithms/pqn_rnn.py --preset MemoryChain-bsuite --num-seeds 5

    train = make_train(Config(env="CartPole-v1", env_settings=(("observe", (0, 2)),)))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 16))

This is pqn.py with a memory between the dense layers and the values of actions. It adds these
details, as in ppo_rnn.py:
  1 The memory runs on from rollout to rollout. It is zeroed where an episode ended, terminated or
    truncated, in collection and in learning alike.
  2 Targets are computed once a rollout, from the memories of the collection. A final observation is
    valued with the memory of the episode that ends there. (purejaxql's files with a memory compute
    them anew in each minibatch.)
  3 Sequences are learned whole, from the memory before the rollout. Minibatches are sets of
    environments.
  4 With `previous_inputs`, the network also sees the last action, one-hot, and its reward r as
    sign(r) log(1 + |r|). Both are zeros at the start of an episode.
  5 Kernels are orthogonal, and values begin near 0.
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
    "title": "PQN with a memory: recurrent cells, state spaces or attention",
    "use": "as PQN, where one observation does not tell enough",
    "paper": "[Gallici et al. 2024](https://arxiv.org/abs/2407.04811)",
    "family": "action values",
    "actions": "discrete",
    "masks": True,
    "agents": "one",
    "memory": True,
}


@struct.dataclass
class Config:
    env: str = static("CartPole-v1")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # env settings, name=value,...
    total_timesteps: int = static(500_000)  # environment steps of the whole run
    num_envs: int = static(16)  # parallel environments
    num_steps: int = static(64)  # steps of each environment in a rollout
    update_epochs: int = static(4)  # passes over each rollout
    num_minibatches: int = static(4)  # gradient steps in a pass, each with its environments
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
    cell: str = static("gru")  # lstm, gru, mingru, minlstm, lru, s5 or gtrxl
    memory_size: int = static(64)  # size of the memory (LSTM, LRU, S5: twice)
    layers: int = static(1)  # stacked cells
    window: int = static(32)  # steps back that a gtrxl sees
    forget_bias: float = real(1.0, "(-inf, inf)")  # added to the gate that keeps the memory
    previous_inputs: bool = static(False)  # the last action and its reward are inputs
    hidden_sizes: tuple[int, ...] = static((64,))  # dense layers before the memory
    activation: str = static("relu")  # any function of flax.linen: tanh, relu, swish, ...
    layer_norm: bool = static(True)  # layer norm before each activation
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    normalize_obs: bool = static(False)  # normalise observations by running mean and variance
    clip_obs: float = real(10.0, "(0, inf]")  # clip normalised observations to +- this
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------


class QNetwork(nn.Module):
    """Inputs to memories after each step and the values of all actions.

    Inputs are a tuple of arrays (num_steps, num_envs, ...), values (num_steps, num_envs,
    num_actions).
    """

    config: Config
    num_actions: int

    @nn.compact
    def __call__(self, memory, inputs, done):
        """`memory` (num_envs, ...) is from before the first step; `done` (num_steps, num_envs)
        marks the last steps of episodes."""
        config, cells = self.config, parts.Cells(self.config)
        nn.share_scope(self, cells)
        x, *more = (x.reshape(-1, *x.shape[2:]) for x in inputs)
        init = parts.orthogonal(math.sqrt(2))
        if x.ndim == 4 and config.conv_layers != "none":
            x = parts.Convolutions(config.conv_layers, self.activate, init)(x)
        x = jnp.concatenate([x.reshape(len(x), -1) for x in (x, *more)], -1)
        for size in config.hidden_sizes:
            x = self.activate(parts.Dense(size, kernel_init=init)(x))
        memory = cells(memory, x.reshape(*done.shape, -1), done)
        init = parts.orthogonal(0.01)
        return memory, parts.Dense(self.num_actions, kernel_init=init, name="head")(memory.hidden)

    def activate(self, x):
        x = parts.LayerNorm()(x) if self.config.layer_norm else x
        return parts.activation(self.config.activation)(x)


def one_step(network, params, memory, inputs):
    """The memory after inputs (num_envs, ...), and values (num_envs, num_actions)."""
    done, inputs = jnp.zeros((1, len(inputs[0])), bool), jax.tree.map(lambda x: x[None], inputs)
    return jax.tree.map(lambda x: x[0], network.apply(params, memory, inputs, done))


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
    memory: parts.Memory  # memory before the observation; initially zeros
    episodes: Any  # of `envs.batch`
    rollout_rng: jax.Array  # key for acting and the environments
    order_rng: jax.Array  # key for the order of samples
    eval_rng: jax.Array  # constant: all evaluations use it
    update: jax.Array  # rollouts learned from so far, int32


class Transition(NamedTuple):
    """A rollout; leading axes (num_steps, num_envs)."""

    observation: jax.Array
    previous: tuple[jax.Array, ...]  # `parts.last_step`
    action: jax.Array
    value: jax.Array  # max_a Q of the observation
    reward: jax.Array
    terminated: jax.Array
    done: jax.Array  # terminated or truncated
    final_observation: jax.Array  # after the action, before any restart
    final_mask: jax.Array | None  # allowed actions there
    memory: parts.Memory  # memory after the observation, with the action and its reward


class Batch(NamedTuple):
    """Sequences to learn from; leading axes (num_steps, num_envs), or a minibatch's num_envs."""

    inputs: tuple[jax.Array, ...]  # of the network
    action: jax.Array
    done: jax.Array
    target: jax.Array


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
    """Actions (...) of the largest values (..., num_actions) that the mask allows."""
    return jnp.argmax(values if mask is None else jnp.where(mask, values, -jnp.inf), -1)


def of_action(values, action):
    """Values (...) of actions (...) out of values (..., num_actions)."""
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
    rng it is epsilon-greedy at eps_end. memory=None is a fresh memory. mask (num_actions,):
    `env.action_mask`, the allowed actions. With previous_inputs, pass each reward back: memory =
    envs.evaluation.rewarded(memory, reward).
    """
    space = parts.ActionSpace(env.action_space(env_params))
    network, fresh = QNetwork(config, space.size), parts.fresh_memory(config, space, 1)

    def policy(state, observation, memory=None, rng=None, mask=None):
        memory, observation, mask = jax.tree.map(lambda x: x[None], (memory, observation, mask))
        memory = fresh if memory is None else memory
        x = state.policy.obs_stats.as_input(config, observation)
        inputs = x, *parts.last_step(memory)
        memory, values = one_step(network, state.policy.params, memory, inputs)
        action = greedy(values, mask)
        if rng is not None:
            noise = parts.epsilon_noise(rng, (1,), space.size)
            action = epsilon_greedy(values, config.eps_end, noise, mask)
        # The reward is not known yet.
        memory = parts.with_last_step(config, space, memory, action, jnp.zeros(1))
        return jax.tree.map(lambda x: x[0], (action, memory))

    return policy


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    parts.check_cell(config)
    sizes = ("num_steps", "update_epochs", "num_minibatches")
    words = {"optimizer": OPTIMIZERS, "exploration": EXPLORATION}
    parts.check(INFO, config, env, env_params, *sizes, minibatches_of="environments", words=words)


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
    space = parts.ActionSpace(env.action_space(env_params))
    environments = envs.batch(env, config.num_envs, config.num_steps)
    network = QNetwork(config, space.size)
    adam = optax.scale_by_radam if config.optimizer == "radam" else optax.scale_by_adam
    chain = optax.clip_by_global_norm(config.max_grad_norm), adam(eps=config.adam_eps)
    optimizer = lambda rate: parts.on_one_vector(optax.chain(*chain, optax.scale(-rate)))

    def init(rng):
        order_rng, network_rng, reset_rng, rollout_rng, eval_rng = jax.random.split(rng, 5)
        observation, env_state = environments.reset(reset_rng, env_params)
        memory = parts.fresh_memory(config, space, config.num_envs)
        inputs = observation.astype(jnp.float32), *parts.last_step(memory)
        inputs = jax.tree.map(lambda x: x[None], inputs)
        done = jnp.zeros((1, config.num_envs), bool)
        # detail 5
        params = network.init(network_rng, memory, inputs, done)
        return TrainState(
            policy=PolicyState(params, parts.RunningStatistics.create(observation.shape[1:])),
            opt_state=optimizer(0.0).init(params),
            env_state=env_state,
            observation=observation,
            memory=memory,
            episodes=environments.episodes(),
            rollout_rng=rollout_rng,
            order_rng=order_rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state):
        """Collects a rollout and learns from it."""
        epsilon, memory = epsilon_at(config, state.update / num_updates), state.memory
        state, rollout = collect(state, epsilon)
        state, metrics = learn(state, memory, prepare(state, rollout))
        metrics |= {"mean_value": rollout.value.mean(), "epsilon": epsilon}
        state = update_statistics(state, rollout)
        return state.replace(update=state.update + 1), metrics

    def collect(state, epsilon):
        """Collects a rollout."""
        rng, start_rng, step_rng, noise_rng = jax.random.split(state.rollout_rng, 4)
        noise = parts.epsilon_noise(noise_rng, (config.num_steps, config.num_envs), space.size)

        def step(state, inputs):
            step_rng, noise = inputs
            previous = parts.last_step(state.memory)  # detail 4
            inputs = state.policy.obs_stats.as_input(config, state.observation), *previous
            memory, values = one_step(network, state.policy.params, state.memory, inputs)
            mask = environments.action_mask(state.env_state, env_params)
            action = epsilon_greedy(values, epsilon, noise, mask)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, state.env_state, action, env_params
            )
            memory = parts.with_last_step(config, space, memory, action, reward, info)
            transition = Transition(
                observation=state.observation,
                previous=previous,
                action=action,
                value=of_action(values, greedy(values, mask)),
                reward=reward,
                terminated=terminated,
                done=terminated | truncated,
                final_observation=info["final_observation"],
                final_mask=info.get("final_action_mask"),
                memory=memory,
            )
            state = state.replace(env_state=env_state, observation=observation)
            # detail 1
            return state.replace(memory=parts.forget(memory, transition.done)), transition

        env_state = environments.refill(start_rng, state.env_state, env_params)  # new start states
        state = state.replace(env_state=env_state, rollout_rng=rng)
        return parts.scan(step, state, (jax.random.split(step_rng, config.num_steps), noise))

    def prepare(state, rollout):
        """Sequences with targets, from the memories of the collection."""
        policy = state.policy
        inputs = policy.obs_stats.as_input(config, rollout.observation), *rollout.previous
        # detail 2: one more step from the memory after each observation, for all at once.
        final_x = policy.obs_stats.as_input(config, rollout.final_observation)
        final = rollout.memory, (final_x, *parts.last_step(rollout.memory))
        final = jax.tree.map(lambda x: x.reshape(batch_size, *x.shape[2:]), final)
        _, values = one_step(network, policy.params, *final)
        values = values.reshape(*rollout.reward.shape, -1)
        targets = q_lambda_targets(
            config.reward_scale * rollout.reward,
            of_action(values, greedy(values, rollout.final_mask)),
            rollout.terminated,
            rollout.done,
            config.gamma,
            config.q_lambda,
        )
        return Batch(inputs=inputs, action=rollout.action, done=rollout.done, target=targets)

    def loss(params, memory, batch):
        """The mean of (Q(s, a) - y)**2 / 2."""
        _, values = network.apply(params, memory, batch.inputs, batch.done)
        return 0.5 * jnp.square(of_action(values, batch.action) - batch.target).mean()

    def learn(state, memory, batch):
        """Epochs of minibatches. `memory` is from before the rollout's first step."""
        rng, order_rng = jax.random.split(state.order_rng)
        orders = parts.permutations(order_rng, config.update_epochs, config.num_envs)
        rates = learning_rates(config, num_updates, state.update)
        orders = orders.reshape(len(rates), -1)

        def gradient_step(carry, inputs):
            (params, opt_state), (indices, rate) = carry, inputs
            first = jax.tree.map(lambda x: x[indices], memory)
            sequences = jax.tree.map(lambda x: x[:, indices], batch)  # detail 3
            total, grads = jax.value_and_grad(loss)(params, first, sequences)
            updates, opt_state = optimizer(rate).update(grads, opt_state, params)
            metrics = {"loss": total, "grad_norm": parts.global_norm(grads)}
            metrics["current_learning_rate"] = rate
            return (optax.apply_updates(params, updates), opt_state), metrics

        start, inputs = (state.policy.params, state.opt_state), (orders, rates)
        (params, opt_state), metrics = parts.scan(gradient_step, start, inputs)
        state = state.replace(policy=state.policy.replace(params=params), opt_state=opt_state)
        return state.replace(order_rng=rng), jax.tree.map(jnp.mean, metrics)

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
