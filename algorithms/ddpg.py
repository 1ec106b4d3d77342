"""Deep deterministic policy gradient, DDPG. A whole run, replay included, is one XLA program.

Paper: Lillicrap et al. 2015, https://arxiv.org/abs/1509.02971. By flag: SimBa's network (Lee et al.
2024, https://arxiv.org/abs/2410.09754).

    python algorithms/ddpg.py --env Pendulum-v1 --seed 0
    python algorithms/ddpg.py --env Pendulum-v1 --noise-correlation 0.85 --num-seeds 5

    train = make_train(Config(env="Pendulum-v1"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 8))

Implementation details:
  1 A round is `train_every` steps of each environment, then `updates_per_step` gradient steps. The
    replay ratio is updates_per_step / (num_envs * train_every).
  2 Actions are tanh of the actor's outputs. Formulas have them in [-1, 1]; the environment gets
    them rescaled to its box. Noise is in half widths of the box, and noisy actions are clipped to
    it.
  3 Exploration noise is normal. With `noise_correlation` above 0 it is the paper's
    Ornstein-Uhlenbeck process; its theta of 0.15 is a correlation of 0.85. The variance does not
    depend on the correlation, and the process runs on through the ends of episodes.
  4 In a gradient step the critic learns first, then the actor follows its gradient, then both
    target networks move. There is no batch norm, and by default no weight decay. The critic sees
    the action from its first layer on.
  5 A transition leads to the observation before any restart. The target bootstraps from it, also
    where a time limit cut the episode, but not where the episode terminated.
  6 Before `learning_starts`, actions are uniform over the box.
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
    "title": "Deep deterministic policy gradient (DDPG)",
    "use": "a baseline for TD3 and SAC",
    "paper": "[Lillicrap et al. 2015](https://arxiv.org/abs/1509.02971)",
    "family": "actor-critics",
    "actions": "continuous",
    "masks": False,
    "agents": "one",
    "memory": False,
}


@struct.dataclass
class Config:
    env: str = static("Pendulum-v1")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # env settings, name=value,...
    total_timesteps: int = static(50_000)  # environment steps of the whole run
    num_envs: int = static(1)  # parallel environments
    train_every: int = static(1)  # steps of each environment between two rounds of learning
    updates_per_step: int = static(1)  # gradient steps in a round of learning
    buffer_size: int = static(100_000)  # transitions kept, over all environments
    batch_size: int = static(256)  # transitions in a gradient step
    learning_starts: int = static(1_000)  # environment steps before the first gradient step
    learning_rate: float = real(1e-3, "[0, inf)")  # Adam's step size for the critic
    actor_learning_rate: float = real(1e-3, "[0, inf)")  # Adam's step size for the actor
    anneal_lr: bool = static(False)  # take the learning rates linearly to zero
    adam_eps: float = real(1e-8, "(0, inf)")  # Adam's epsilon
    weight_decay: float = real(0.0, "[0, inf)")  # AdamW's weight decay, as in SimBa; 0: plain Adam
    gamma: float = real(0.99, "[0, 1]")  # discount factor
    n_step: int = static(1)  # steps of reward before bootstrapping
    reward_scale: float = real(1.0, "(0, inf)")  # factor on rewards for learning
    tau: float = real(0.005, "[0, 1]")  # share that target networks move at a gradient step
    exploration_noise: float = real(0.1, "[0, inf)")  # standard deviation in half widths of the box
    noise_correlation: float = real(0.0, "[0, 1)")  # correlation of noise with the last step's
    network: str = static("mlp")  # mlp, or simba: a residual block for each of the sizes below
    hidden_sizes: tuple[int, ...] = static((256, 256))  # dense layers of the actor
    critic_hidden_sizes: tuple[int, ...] = static((256, 256))  # dense layers of the critic
    activation: str = static("relu")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    normalize_obs: bool = static(False)  # normalise observations by running mean and variance
    clip_obs: float = real(10.0, "(0, inf]")  # clip normalised observations to +- this
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------


def torso(config, sizes):
    return parts.Torso(sizes, config.activation, config.conv_layers, config.network)


class Actor(nn.Module):
    """Observations (batch, ...) to actions (batch, dimensions) in [-1, 1]."""

    config: Config
    size: int  # dimensions of the action

    @nn.compact
    def __call__(self, x):
        x = torso(self.config, self.config.hidden_sizes)(x)
        init = parts.orthogonal(0.01)
        return nn.tanh(parts.Dense(self.size, kernel_init=init, name="action_head")(x))


class Critic(nn.Module):
    """Observations (batch, ...) and actions (batch, dimensions) in [-1, 1] to values (batch,)."""

    config: Config

    @nn.compact
    def __call__(self, x, action):
        x = torso(self.config, self.config.critic_hidden_sizes)(x, action)
        return parts.Dense(1, kernel_init=parts.orthogonal(1.0), name="value_head")(x)[:, 0]


# --- data types -------------------------------------------------------------------------------


@struct.dataclass
class PolicyState:
    """The part of the state that acting needs."""

    params: Any
    obs_stats: parts.RunningStatistics


class Targets(NamedTuple):
    """Parameters of the target networks."""

    actor: Any
    critic: Any


@struct.dataclass
class TrainState:
    """Everything that a run needs to continue."""

    policy: PolicyState
    critic_params: Any
    target_params: Targets
    actor_opt_state: optax.OptState
    critic_opt_state: optax.OptState
    replay: parts.Replay
    env_state: Any  # of `envs.batch`
    observation: jax.Array  # (num_envs, ...)
    exploration: jax.Array  # noise of the last step, of variance 1, (num_envs, dimensions)
    episodes: Any  # of `envs.batch`
    rng: jax.Array
    eval_rng: jax.Array  # constant: all evaluations use it
    update: jax.Array  # updates so far, int32


class Noise(NamedTuple):
    """Random numbers for the acting in a round."""

    step_rng: jax.Array  # (train_every,)
    exploration: jax.Array  # normal, (train_every, num_envs, dimensions)


# --- formulas ---------------------------------------------------------------------------------


def correlated(noise, last, correlation):  # detail 3
    """z_t = c z_{t-1} + sqrt(1 - c**2) noise_t, of variance 1 for independent normal noise."""
    return correlation * last + jnp.sqrt(1.0 - correlation**2) * noise


def noisy(action, noise):  # detail 2
    """clip(action + noise, -1, 1), (batch, dimensions)."""
    return jnp.clip(action + noise, -1.0, 1.0)


# --- acting and training ----------------------------------------------------------------------


@parts.with_environment
def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None, mask=None) -> action, memory.

    The policy is for one environment, and its actions are in the environment's box. With rng it
    adds noise that is not correlated.
    """
    space = parts.ActionSpace(env.action_space(env_params))
    network = Actor(config, space.size)

    def policy(state, observation, memory=None, rng=None, mask=None):
        x = state.policy.obs_stats.as_input(config, observation)[None]
        action = network.apply(state.policy.params, x)
        if rng is not None:
            action = noisy(action, config.exploration_noise * jax.random.normal(rng, action.shape))
        return space.rescale(action)[0], memory

    return policy


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    parts.check(INFO, config, env, env_params, replay=True)


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.

    Raises:
      ValueError: a setting that cannot work, a space that DDPG cannot take, or a buffer larger than
        the device's memory.
    """
    check(config, env, env_params)
    return parts.program(learner, config, env, env_params)


def learner(config: Config, env: Any, env_params: Any) -> parts.Learner:
    """The first state, an update (some rounds of acting and learning), and the policy."""
    buffer = parts.ReplayBuffer.of(config)
    rounds = parts.Rounds(config)  # detail 1
    # A round learns once there are `learning_starts` steps and a whole window.
    waiting = rounds.before(max(config.learning_starts, buffer.waiting + 1))
    # Actions are uniform in rounds that begin before `learning_starts`, or before any learning.
    uniform = max(waiting, rounds.before(config.learning_starts) + 1)
    environments = envs.batch(env, config.num_envs, rounds.num_steps)
    space = parts.ActionSpace(env.action_space(env_params))
    size = space.size
    actor, critic = Actor(config, size), Critic(config)
    adam = optax.scale_by_adam(eps=config.adam_eps)
    decay = optax.add_decayed_weights(config.weight_decay)
    optimizer = lambda rate: parts.on_one_vector(optax.chain(adam, decay, optax.scale(-rate)))

    def init(rng):
        rng, actor_rng, critic_rng, reset_rng, noise_rng, eval_rng = jax.random.split(rng, 6)
        observation, env_state = environments.reset(reset_rng, env_params)
        x, action = observation.astype(jnp.float32), jnp.zeros((config.num_envs, size))
        critic_params = critic.init(critic_rng, x, action)
        params = actor.init(actor_rng, x)
        obs_stats = parts.RunningStatistics.create(observation.shape[1:])
        return TrainState(
            policy=PolicyState(params, obs_stats),
            critic_params=critic_params,
            target_params=Targets(params, critic_params),
            actor_opt_state=optimizer(0.0).init(params),
            critic_opt_state=optimizer(0.0).init(critic_params),
            replay=buffer.create(env, env_params),
            env_state=env_state,
            observation=observation,
            exploration=jax.random.normal(noise_rng, (config.num_envs, size)),
            episodes=environments.episodes(),
            rng=rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state):
        """Runs some rounds. Their random numbers are drawn at once, which costs far less."""
        rng, start_rng, step_rng, explore_rng, draw_rng = jax.random.split(state.rng, 5)
        noise = Noise(
            step_rng=jax.random.split(step_rng, rounds.acting[:2]),
            exploration=jax.random.normal(explore_rng, (*rounds.acting, size)),
        )
        draws = buffer.noise(draw_rng, (rounds.gradient_steps, config.batch_size))
        env_state = environments.refill(start_rng, state.env_state, env_params)  # new start states
        state = state.replace(env_state=env_state, rng=rng)
        return rounds.run(round, state, noise, draws)

    def round(state, noise, now):
        """`train_every` steps of every environment, then `updates_per_step` gradient steps."""
        progress = now.number / float(rounds.total)
        state, rollout = act(state, now.number < uniform, noise)
        state = state.replace(replay=buffer.add(state.replay, rollout))
        if config.normalize_obs:
            obs_stats = state.policy.obs_stats.update(rollout.observation)
            state = state.replace(policy=state.policy.replace(obs_stats=obs_stats))
        ready = now.number >= waiting

        def learn(old, draws, index):
            new, metrics = gradient_step(old, draws, progress)
            return parts.keep_if(ready, new, old), metrics

        state, metrics = rounds.repeat(learn, state, now, ready)
        return state, metrics, rollout

    def act(state, warm_up, noise):
        """`train_every` steps of every environment."""

        def step(state, inputs):
            step_rng, noise = inputs
            x = state.policy.obs_stats.as_input(config, state.observation)
            noise = correlated(noise, state.exploration, config.noise_correlation)
            action = noisy(actor.apply(state.policy.params, x), config.exploration_noise * noise)
            action = jnp.where(warm_up, space.uniform_from(noise), action)  # detail 6
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, state.env_state, space.rescale(action), env_params
            )
            transition = parts.Transition(
                observation=state.observation,
                action=space.shaped(action),
                reward=reward,
                terminated=terminated,
                done=terminated | truncated,
                final_observation=info["final_observation"],  # detail 5
            )
            state = state.replace(env_state=env_state, observation=observation, exploration=noise)
            return state, transition

        return parts.scan(step, state, (noise.step_rng, noise.exploration))

    def targets(state, window):
        """y = reward_scale R_n + gamma**n Q'(s_n, mu'(s_n)), (batch_size,); R_n: n-step return."""
        x = state.policy.obs_stats.as_input(config, window.final_observation)
        action = actor.apply(state.target_params.actor, x)
        next_value = critic.apply(state.target_params.critic, x, action)
        return config.reward_scale * window.returns + window.discount * next_value

    def critic_loss(params, x, action, target):
        """The mean of (Q(s, a) - y)**2; and the mean of Q(s, a)."""
        values = critic.apply(params, x, action)
        return jnp.square(values - target).mean(), values.mean()

    def actor_loss(params, critic_params, x):
        """The mean of -Q(s, mu(s))."""
        return -critic.apply(critic_params, x, actor.apply(params, x)).mean()

    def gradient_step(state, draws, progress):
        """Learns from a batch of windows."""
        draw = buffer.draw(state.replay, draws)
        window = buffer.windows(state.replay.transitions, draw.index, config.gamma)
        x = state.policy.obs_stats.as_input(config, window.observation)
        action = window.action.reshape(-1, size)
        (loss, mean_value), grads = jax.value_and_grad(critic_loss, has_aux=True)(
            state.critic_params, x, action, targets(state, window)
        )
        left = jnp.maximum(1.0 - progress, 0.0) if config.anneal_lr else 1.0
        rate, old = config.learning_rate * left, state.critic_params
        updates, critic_opt_state = optimizer(rate).update(grads, state.critic_opt_state, old)
        critic_params = optax.apply_updates(old, updates)
        metrics = {"critic_loss": loss, "mean_value": mean_value}
        metrics |= {"grad_norm": parts.global_norm(grads), "current_learning_rate": rate}
        metrics["actor_loss"], grads = jax.value_and_grad(actor_loss)(  # detail 4
            state.policy.params, critic_params, x
        )
        rate, old = config.actor_learning_rate * left, state.policy.params
        updates, actor_opt_state = optimizer(rate).update(grads, state.actor_opt_state, old)
        params = optax.apply_updates(old, updates)
        move = lambda old, new: old + config.tau * (new - old)
        state = state.replace(
            policy=state.policy.replace(params=params),
            critic_params=critic_params,
            target_params=jax.tree.map(move, state.target_params, Targets(params, critic_params)),
            actor_opt_state=actor_opt_state,
            critic_opt_state=critic_opt_state,
        )
        return state, metrics

    policy = make_policy(config, env, env_params)
    return parts.Learner(init, update, policy, rounds.steps)


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
