"""Relative entropy pathwise policy optimisation (REPPO). A whole run is one XLA program.

Paper: Voelcker et al. 2025, https://arxiv.org/abs/2507.11019. An on-policy actor-critic without
replay: the actor follows the gradient of a learned Q, and stays near the policy that acted.

    python algorithms/reppo.py --env Pendulum-v1 --seed 0
    python algorithms/reppo.py --preset MountainCarContinuous-v0 --num-seeds 5

    train = make_train(Config(env="Pendulum-v1"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 8))
"""

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

import envs
from algorithms import parts
from algorithms.parts import real, static

INFO = {
    "title": "Relative entropy pathwise policy optimisation (REPPO)",
    "paper": "[Voelcker et al. 2025](https://arxiv.org/abs/2507.11019)",
    "family": "actor-critics",
    "actions": "continuous",
    "masks": False,
    "agents": "one",
    "memory": False,
    "split": True,
}


@struct.dataclass
class Config:
    env: str = static("Pendulum-v1")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # env settings, name=value,...
    total_timesteps: int = static(50_000)  # environment steps of the whole run
    num_envs: int = static(16)  # parallel environments
    num_steps: int = static(64)  # steps of each environment in a rollout
    update_epochs: int = static(8)  # passes over each rollout
    num_minibatches: int = static(16)  # gradient steps in a pass
    learning_rate: float = real(1e-3, "[0, inf)")  # Adam's step size
    anneal_lr: bool = static(False)  # take the learning rate linearly to zero
    adam_eps: float = real(1e-8, "(0, inf)")  # Adam's epsilon
    max_grad_norm: float = real(0.5, "(0, inf]")  # clip gradients to this global norm; inf: never
    gamma: float = real(0.99, "[0, 1]")  # discount factor
    td_lambda: float = real(0.95, "[0, 1]")  # decay of the trace; 0: one-step targets
    kl_bound: float = real(0.1, "(0, inf)")  # the largest KL from the policy that acted
    initial_multiplier: float = real(0.01, "(0, inf)")  # initial weight of the KL
    initial_temperature: float = real(0.01, "(0, inf)")  # initial weight of the entropy
    learn_temperature: bool = static(True)  # keep the entropy at its target
    target_entropy: float = real(-0.5, "(-inf, inf)")  # target entropy per dimension of the action
    num_bins: int = static(51)  # bins of the values' distribution
    bins: str = static("linear")
    v_max: float = real(10.0, "(0, inf)")  # bins
    prior: float = real(40.0, "[0, inf)")
    aux_coef: float = real(0.0, "[0, inf)")  # weight of the prediction
    auxiliary: bool = static(False)
    num_action_samples: int = static(1)
    norm: str = static("layer")  # of hidden layers: layer, rms or none
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers of the actor
    critic_hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers of the critic
    activation: str = static("swish")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    compute_dtype: str = static("float32")  # of hidden layers: float32 or bfloat16
    normalize_obs: bool = static(True)  # normalise observations by running mean and variance
    normalize_reward: bool = static(True)  # divide rewards by the std of discounted returns
    clip_obs: float = real(10.0, "(0, inf]")  # clip normalised observations to +- this
    clip_reward: float = real(10.0, "(0, inf]")  # clip normalised rewards to +- this
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    """x / rms x * scale, over the last axis of x (..., size)."""

    @nn.compact
    def __call__(self, x):
        size = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (size,))
        square = jnp.dot(jnp.square(x), jnp.full(size, 1.0 / size), precision="highest")
        return x * jax.lax.rsqrt(square[..., None] + 1e-6) * scale


class Torso(nn.Module):
    """Observations (batch, ...), and more inputs, to features (batch, sizes[-1])."""

    config: Config
    sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, x, *more):
        config = self.config
        dtype = config.compute_dtype
        activation = getattr(nn, config.activation)
        x = parts.Torso((), config.activation, config.conv_layers, dtype=dtype)(x, *more)
        for size in self.sizes:
            x = parts.Dense(size, dtype=dtype)(x)
            if config.norm != "none":
                x = (parts.LayerNorm if config.norm == "layer" else RMSNorm)()(x)
            x = activation(x)
        return x.astype(jnp.float32)


class Gaussian(NamedTuple):
    """The distribution of actions before tanh, (batch, dimensions) each."""

    mean: jax.Array
    log_std: jax.Array


class Actor(nn.Module):
    """Observations (batch, ...) to a Gaussian."""

    config: Config
    size: int  # dimensions of the action

    @nn.compact
    def __call__(self, x):
        x = Torso(self.config, self.config.hidden_sizes)(x)
        mean = parts.Dense(self.size, name="mean_head")(x)
        squashed = nn.tanh(parts.Dense(self.size, name="std_head")(x))
        return Gaussian(mean, LOG_STD[0] + 0.5 * (LOG_STD[1] - LOG_STD[0]) * (squashed + 1.0))


class Values(NamedTuple):
    logits: jax.Array  # (batch, num_bins)
    value: jax.Array  # (batch,)
    features: jax.Array
    prediction: jax.Array | None


class Critic(nn.Module):
    """Observations (batch, ...) and actions (batch, dimensions) in [-1, 1] to Values."""

    config: Config

    @nn.compact
    def __call__(self, x, action):
        config = self.config
        features = Torso(config, config.critic_hidden_sizes)(x, action)
        logits = parts.Dense(config.num_bins, name="value_head")(features)
        logits += config.prior * hl_gauss(config, jnp.zeros(()))
        value = nn.softmax(logits) @ symexp(config, centres(config))
        prediction = None
        if config.auxiliary:
            y = Torso(config, config.critic_hidden_sizes[-1:])(features)
            prediction = parts.Dense(features.shape[-1] + 1, name="prediction_head")(y)
        return Values(logits, value, features, prediction)


# --- data types -------------------------------------------------------------------------------


@struct.dataclass
class PolicyState:
    """The part of the state that acting needs."""

    params: Any
    obs_stats: parts.RunningStatistics


class ActorParams(NamedTuple):
    actor: Any
    log_temperature: jax.Array  # ()
    log_multiplier: jax.Array  # ()


@struct.dataclass
class TrainState:
    """Everything that a run needs to continue."""

    policy: PolicyState
    critic_params: Any
    log_temperature: jax.Array  # ()
    log_multiplier: jax.Array  # ()
    opt_state: Any
    critic_opt_state: Any
    env_state: envs.BatchState
    observation: jax.Array  # (num_envs, ...)
    episodes: parts.EpisodeStatistics
    reward_scale: parts.RewardScale
    rollout_rng: jax.Array  # key for acting and the environments
    learn_rng: jax.Array  # key for learning
    eval_rng: jax.Array  # constant: all evaluations use it
    update: jax.Array  # rollouts learned from so far, int32


class Transition(NamedTuple):
    """A rollout; leading axes (num_steps, num_envs)."""

    observation: jax.Array
    action: jax.Array  # in [-1, 1]
    reward: jax.Array
    terminated: jax.Array
    done: jax.Array  # terminated or truncated
    final_observation: jax.Array  # after the action, before any restart


class Batch(NamedTuple):
    """Samples to learn from; leading axis num_steps * num_envs, or that of a minibatch."""

    observation: jax.Array  # normalised
    action: jax.Array
    target: jax.Array
    old: Gaussian
    outcome: jax.Array | None  # next features and reward
    continues: jax.Array


class Learned(NamedTuple):
    """The carry of the gradient steps."""

    params: ActorParams
    opt_state: Any
    critic_params: Any
    critic_opt_state: Any


LOG_STD = (-5.0, 2.0)


# --- formulas ---------------------------------------------------------------------------------


def squash(gaussian, noise):
    u = gaussian.mean + jnp.exp(gaussian.log_std) * noise
    normal = -0.5 * (noise**2 + math.log(2.0 * math.pi)) - gaussian.log_std
    return jnp.tanh(u), (normal - parts.log_tanh_slope(u)).sum(-1)


def symlog(config, x):
    return jnp.sign(x) * jnp.log1p(jnp.abs(x)) if config.bins == "symlog" else x


def symexp(config, x):
    return jnp.sign(x) * jnp.expm1(jnp.abs(x)) if config.bins == "symlog" else x


def centres(config):
    return jnp.linspace(-1.0, 1.0, config.num_bins) * config.v_max


def hl_gauss(config, values):
    width = 2.0 * config.v_max / (config.num_bins - 1)
    edges = jnp.linspace(-1.0, 1.0, config.num_bins + 1) * (config.v_max + 0.5 * width)
    x = jnp.clip(symlog(config, values), -config.v_max, config.v_max)
    below = jax.scipy.special.erf((edges - x[..., None]) / (math.sqrt(2.0) * 0.75 * width))
    return (below[..., 1:] - below[..., :-1]) / (below[..., -1:] - below[..., :1])


def soft_lambda_targets(
    rewards, next_values, next_bonus, terminated, done, gamma, td_lambda
):
    """G_t = r_t + gamma (1 - terminated_t) (b_t + (1 - lambda) Q(s'_t, a'_t) + lambda G_{t+1})."""
    follows = (1.0 - jnp.asarray(done)).at[-1].set(0.0)
    value = next_bonus + (1.0 - td_lambda * follows) * next_values
    own = rewards + gamma * (1.0 - terminated) * value
    return parts.backward_sums(own, gamma * td_lambda * follows)


def kl_divergence(old, new):
    variance = jnp.exp(2.0 * (old.log_std - new.log_std))
    shift = jnp.square((old.mean - new.mean) * jnp.exp(-new.log_std))
    return (new.log_std - old.log_std + 0.5 * (variance + shift - 1.0)).sum(-1)


def learning_rates(config, num_updates, update):
    """learning_rate (1 - done / num_updates) for each gradient step of an update, (number,)."""
    number = config.update_epochs * config.num_minibatches
    done = update.astype(jnp.float32) + jnp.arange(number) / number
    left = jnp.maximum(1.0 - done / num_updates, 0.0)
    return config.learning_rate * (left if config.anneal_lr else jnp.ones_like(left))


# --- acting and training ----------------------------------------------------------------------


@parts.without_x64
def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    env, env_params = parts.make_env(config, env, env_params)
    space = env.action_space(env_params)
    network = Actor(config, parts.num_outputs(space))

    def policy(state, observation, memory=None, rng=None, mask=None):
        x = parts.normalize(config, state.policy.obs_stats, observation)[None]
        gaussian = network.apply(state.policy.params, x)
        shape = gaussian.mean.shape
        noise = jnp.zeros(shape) if rng is None else jax.random.normal(rng, shape)
        return parts.rescale_to(space, squash(gaussian, noise)[0])[0], memory

    return policy


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    parts.check_sizes(config, "num_steps", "update_epochs", "num_minibatches")
    parts.check_spaces(INFO, config, env, env_params)
    size = config.num_envs * config.num_steps
    what = f"num_envs * num_steps = {config.num_envs} * {config.num_steps} = {size}"
    parts.check_divides("num_minibatches", config.num_minibatches, what, size)
    parts.num_updates(config, size)


@parts.without_x64
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    env, env_params = parts.make_env(config, env, env_params)
    check(config, env, env_params)
    return parts.program(learner, config, env, env_params)


def learner(config: Config, env: Any, env_params: Any) -> parts.Learner:
    """The first state, an update (collects a rollout and learns from it), and the policy."""
    batch_size = config.num_envs * config.num_steps
    num_updates = parts.num_updates(config, batch_size)
    environments = envs.batch(env, config.num_envs, config.num_steps)
    space = env.action_space(env_params)
    size = parts.num_outputs(space)
    actor, critic = Actor(config, size), Critic(config)
    optimizer = parts.clipped_adam(config.max_grad_norm, config.adam_eps)

    def init(rng):
        learn_rng, actor_rng, critic_rng, reset_rng, rollout_rng, eval_rng = jax.random.split(rng, 6)
        observation, env_state = environments.reset(reset_rng, env_params)
        x, action = observation.astype(jnp.float32), jnp.zeros((config.num_envs, size))
        params = ActorParams(
            actor=parts.orthogonal(actor, actor_rng, x, mean_head=0.01, std_head=0.01),
            log_temperature=jnp.log(config.initial_temperature),
            log_multiplier=jnp.log(config.initial_multiplier),
        )
        critic_params = parts.orthogonal(critic, critic_rng, x, action, value_head=0.01)
        return TrainState(
            policy=PolicyState(params.actor, parts.RunningStatistics.create(observation.shape[1:])),
            critic_params=critic_params,
            log_temperature=params.log_temperature,
            log_multiplier=params.log_multiplier,
            opt_state=optimizer.init(params),
            critic_opt_state=optimizer.init(critic_params),
            env_state=env_state,
            observation=observation,
            episodes=parts.EpisodeStatistics.create(config.num_envs),
            reward_scale=parts.RewardScale.create(config.num_envs),
            rollout_rng=rollout_rng,
            learn_rng=learn_rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state):
        """Collects a rollout and learns from it."""
        rng, target_rng, learn_rng = jax.random.split(state.learn_rng, 3)
        state, rollout = collect(state.replace(learn_rng=rng))
        batch = prepare(state, rollout, target_rng)
        state, metrics = learn(state, batch, learn_rng)
        metrics |= {"mean_target": batch.target.mean(), "max_target": jnp.abs(batch.target).max()}
        state = update_statistics(state, rollout)
        return state.replace(update=state.update + 1), metrics

    def collect(state):
        """Collects a rollout."""
        rng, start_rng, step_rng, noise_rng = jax.random.split(state.rollout_rng, 4)
        noise = parts.action_noise(noise_rng, space, (config.num_steps, config.num_envs))

        def step(state, inputs):
            step_rng, noise = inputs
            x = parts.normalize(config, state.policy.obs_stats, state.observation)
            action, _ = squash(actor.apply(state.policy.params, x), noise)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, state.env_state, parts.rescale_to(space, action), env_params
            )
            transition = Transition(
                observation=state.observation,
                action=action,
                reward=reward,
                terminated=terminated,
                done=terminated | truncated,
                final_observation=info["final_observation"],
            )
            return state.replace(env_state=env_state, observation=observation), transition

        env_state = environments.refill(start_rng, state.env_state, env_params)
        state = state.replace(env_state=env_state, rollout_rng=rng)
        return parts.scan(step, state, (jax.random.split(step_rng, config.num_steps), noise))

    def prepare(state, rollout, rng):
        """Samples with targets."""
        flat = jax.tree.map(lambda x: x.reshape(batch_size, *x.shape[2:]), rollout)
        x = parts.normalize(config, state.policy.obs_stats, flat.observation)
        final_x = parts.normalize(config, state.policy.obs_stats, flat.final_observation)
        old = actor.apply(state.policy.params, x)
        following = actor.apply(state.policy.params, final_x)
        noise = parts.action_noise(rng, space, (config.num_action_samples, batch_size))
        action, log_prob = jax.vmap(squash, (None, 0))(following, noise)
        values = jax.vmap(lambda a: critic.apply(state.critic_params, final_x, a))(action)
        reward = rollout.reward
        if config.normalize_reward:
            reward = state.reward_scale.scale(reward, config.clip_reward)
        shape = reward.shape
        bonus = -jnp.exp(state.log_temperature) * log_prob.mean(0)
        targets = soft_lambda_targets(
            reward,
            values.value.mean(0).reshape(shape),
            bonus.reshape(shape),
            rollout.terminated,
            rollout.done,
            config.gamma,
            config.td_lambda,
        )
        outcome = None
        if config.auxiliary:
            outcome = jnp.concatenate([values.features[0], reward.reshape(-1, 1)], -1)
        return Batch(
            observation=x,
            action=flat.action,
            target=targets.reshape(-1),
            old=old,
            outcome=outcome,
            continues=1.0 - flat.terminated,
        )

    def critic_loss(params, batch):
        values = critic.apply(params, batch.observation, batch.action)
        loss = -(hl_gauss(config, batch.target) * nn.log_softmax(values.logits)).sum(-1).mean()
        aux = 0.0
        if config.auxiliary:
            error = jnp.square(values.prediction - batch.outcome).mean(-1)
            aux = (batch.continues * error).mean()
        return loss + config.aux_coef * aux, {
            "critic_loss": loss,
            "value_error": jnp.square(values.value - batch.target).mean(),
            "mean_value": values.value.mean(),
            "aux": jnp.asarray(aux, jnp.float32),
        }

    def actor_loss(params, critic_params, batch, noise):
        gaussian = actor.apply(params.actor, batch.observation)
        action, log_prob = squash(gaussian, noise)
        value = critic.apply(critic_params, batch.observation, action).value
        kl = kl_divergence(batch.old, gaussian)
        temperature, multiplier = jnp.exp(params.log_temperature), jnp.exp(params.log_multiplier)
        stopped = jax.lax.stop_gradient((temperature, multiplier, log_prob, kl))
        loss = jnp.where(kl < config.kl_bound, stopped[0] * log_prob - value, stopped[1] * kl)
        entropy = -stopped[2].mean()
        surplus = entropy - size * config.target_entropy
        total = loss.mean() + temperature * surplus * config.learn_temperature
        total += multiplier * (config.kl_bound - stopped[3].mean())
        return total, {
            "actor_loss": loss.mean(),
            "entropy": entropy,
            "approx_kl": kl.mean(),
            "inside": (kl < config.kl_bound).mean(),
            "temperature": temperature,
            "multiplier": multiplier,
        }

    def learn(state, batch, rng):
        """Epochs of minibatches."""
        order_rng, noise_rng = jax.random.split(rng)
        orders = parts.permutations(order_rng, config.update_epochs, batch_size)
        rates = learning_rates(config, num_updates, state.update)
        noise = parts.action_noise(noise_rng, space, (len(rates), batch_size // config.num_minibatches))

        def gradient_step(learned, inputs):
            indices, noise, learning_rate = inputs
            samples = jax.tree.map(lambda x: x[indices], batch)
            grads, of_critic = jax.grad(critic_loss, has_aux=True)(learned.critic_params, samples)
            critic_params, critic_opt_state, norm = optimizer.step(
                learned.critic_params, learned.critic_opt_state, grads, learning_rate
            )
            grads, of_actor = jax.grad(actor_loss, has_aux=True)(
                learned.params, critic_params, samples, noise
            )
            params, opt_state, actor_norm = optimizer.step(
                learned.params, learned.opt_state, grads, learning_rate
            )
            learned = Learned(params, opt_state, critic_params, critic_opt_state)
            return learned, of_critic | of_actor | {"grad_norm": norm, "actor_grad": actor_norm}

        params = ActorParams(
            actor=state.policy.params,
            log_temperature=state.log_temperature,
            log_multiplier=state.log_multiplier,
        )
        learned = Learned(params, state.opt_state, state.critic_params, state.critic_opt_state)
        inputs = orders.reshape(len(rates), -1), noise, rates
        learned, metrics = parts.scan(gradient_step, learned, inputs)
        state = state.replace(
            policy=state.policy.replace(params=learned.params.actor),
            log_temperature=learned.params.log_temperature,
            log_multiplier=learned.params.log_multiplier,
            opt_state=learned.opt_state,
            critic_params=learned.critic_params,
            critic_opt_state=learned.critic_opt_state,
        )
        return state, jax.tree.map(jnp.mean, metrics)

    def update_statistics(state, rollout):
        """Merges the rollout into the statistics, after learning from it."""
        state = state.replace(episodes=state.episodes.update(rollout.reward, rollout.done))
        if config.normalize_obs:
            obs_stats = state.policy.obs_stats.update(rollout.observation)
            state = state.replace(policy=state.policy.replace(obs_stats=obs_stats))
        if config.normalize_reward:
            scale = state.reward_scale.update(rollout.reward, rollout.done, config.gamma)
            state = state.replace(reward_scale=scale)
        return state

    return parts.Learner(init, update, make_policy(config, env, env_params), batch_size)


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
