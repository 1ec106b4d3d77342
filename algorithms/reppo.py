"""Relative entropy pathwise policy optimisation (REPPO). A whole run is one XLA program.

Paper: Voelcker et al. 2025, https://arxiv.org/abs/2507.11019. An actor-critic without replay
buffer or target network: its actor follows the gradient of a learned Q, as SAC's does, and stays
near the policy that collected the rollout, as PPO's does.

    python algorithms/reppo.py --env Pendulum-v1 --seed 0
    python algorithms/reppo.py --preset MountainCarContinuous-v0 --num-seeds 5

    train = make_train(Config(env="Pendulum-v1"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 8))

Implementation details, from the paper and its public code (github.com/cvoelcker/reppo):
  1 Actions are tanh of a Gaussian whose std is at least 0.1. They are in [-1, 1], and the
    environment gets them rescaled to its box.
  2 Targets are TD(lambda) returns with the entropy of the next action, from the current critic
    and policy. They average `num_action_samples` next actions.
  3 The critic is a distribution over bins, and learns by HL-Gauss (Farebrother et al. 2024,
    https://arxiv.org/abs/2403.03950). Its logits start as those of the value 0.
  4 A minibatch is a step of the critic, then one of the actor, which sees the new critic.
  5 A sample whose KL from the policy that acted exceeds `kl_bound` only reduces this KL.
  6 Temperature and multiplier are exp of parameters, and share the actor's optimiser.
  7 With `auxiliary`, the critic's features also predict the next features and the reward.
  8 An early episode of each environment is cut at a random step. Otherwise episodes of equal length
    stay synchronised, and a rollout covers only one part of them.
Six things differ from that code. Bins are equidistant in symlog(value) (Hafner et al. 2023,
https://arxiv.org/abs/2301.04104), and rewards are normalised, so no range of values has to be
guessed. The KL is exact, that of the Gaussians, because tanh is a bijection. The critic learns from
truncated steps too. A terminated step has no entropy of a next action. Every minibatch has noise of
its own. Statistics do not change while a rollout is collected and learned from. The networks differ
too: norms are layer norms, the std is at most exp(2), and the critic's last feature layer has a
norm and an activation.
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
    "title": "Relative entropy pathwise policy optimisation (REPPO)",
    "use": "bounded continuous actions and cheap steps, without a replay buffer",
    "paper": "[Voelcker et al. 2025](https://arxiv.org/abs/2507.11019)",
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
    num_envs: int = static(16)  # parallel environments
    num_steps: int = static(64)  # steps of each environment in a rollout
    update_epochs: int = static(8)  # passes over each rollout
    num_minibatches: int = static(16)  # gradient steps in a pass
    learning_rate: float = real(2.5e-3, "[0, inf)")  # Adam's step size
    anneal_lr: bool = static(True)  # take the learning rate linearly to zero
    adam_eps: float = real(1e-8, "(0, inf)")  # Adam's epsilon
    max_grad_norm: float = real(0.5, "(0, inf]")  # clip gradients to this global norm; inf: never
    gamma: float = real(0.99, "[0, 1]")  # discount factor
    td_lambda: float = real(0.95, "[0, 1]")  # decay of the trace; 0: one-step targets
    kl_bound: float = real(0.1, "(0, inf]")  # largest KL from the policy that acted; inf: any
    initial_multiplier: float = real(0.01, "(0, inf)")  # initial weight of the KL
    initial_temperature: float = real(0.01, "(0, inf)")  # initial weight of the entropy
    target_entropy: float = real(-0.5, "(-inf, inf)")  # target entropy per dimension of the action
    num_action_samples: int = static(4)  # next actions in a target
    num_bins: int = static(51)  # bins of the distribution of values
    symlog_max: float = real(3.0, "(0, 20]")  # bins go to symexp of this, and down to minus it
    auxiliary: bool = static(True)  # predict the next features and the reward, too
    aux_coef: float = real(1.0, "[0, inf)")  # weight of this prediction in the critic's loss
    norm: str = static("layer")  # before each activation: layer, rms or none
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers of the actor
    critic_hidden_sizes: tuple[int, ...] = static((64, 64, 64))  # dense layers of the critic
    activation: str = static("swish")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    compute_dtype: str = static("float32")  # dtype of hidden layers: float32 or bfloat16
    asymmetric: bool = static(False)  # critics see the environment's world state too
    normalize_obs: bool = static(True)  # normalise observations by running mean and variance
    normalize_reward: bool = static(True)  # divide rewards by the std of discounted returns
    clip_obs: float = real(10.0, "(0, inf]")  # clip normalised observations to +- this
    clip_reward: float = real(10.0, "(0, inf]")  # clip normalised rewards to +- this
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------


NORMS = {"layer": parts.LayerNorm, "rms": nn.RMSNorm, "none": lambda: lambda x: x}


class Torso(nn.Module):
    """Observations (batch, ...), and more inputs, to features (batch, sizes[-1])."""

    config: Config
    sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, x, *more):
        config, dtype = self.config, self.config.compute_dtype
        x = parts.Torso((), config.activation, config.conv_layers, dtype=dtype)(x, *more)
        init = parts.orthogonal(math.sqrt(2))
        for size in self.sizes:
            x = NORMS[config.norm]()(parts.Dense(size, dtype=dtype, kernel_init=init)(x))
            x = parts.activation(config.activation)(x)
        return x.astype(jnp.float32)


class Actor(nn.Module):
    """Observations (batch, ...) to distributions of actions."""

    config: Config
    size: int  # dimensions of the action
    seen: int | None = None  # numbers of an observation that it sees, the first ones; None: all

    @nn.compact
    def __call__(self, x):
        x = Torso(self.config, self.config.hidden_sizes)(x[:, : self.seen])
        init = parts.orthogonal(0.01)
        mean = parts.Dense(self.size, kernel_init=init, name="mean_head")(x)
        first = math.log(-LOG_STD[0] / LOG_STD[1])  # a std of 1
        share = nn.sigmoid(parts.Dense(self.size, kernel_init=init, name="std_head")(x) + first)
        return parts.TanhGaussian(mean, LOG_STD[0] + (LOG_STD[1] - LOG_STD[0]) * share)  # detail 1


class Values(NamedTuple):
    """What the critic says of observations and actions."""

    logits: jax.Array  # of the bins, (batch, num_bins)
    value: jax.Array  # (batch,)
    features: jax.Array  # (batch, critic_hidden_sizes[-1])
    prediction: jax.Array | None  # of the next features and reward, (batch, features + 1)


class Critic(nn.Module):
    """Observations (batch, ...) and actions (batch, dimensions) in [-1, 1] to Values."""

    config: Config

    @nn.compact
    def __call__(self, x, action):
        config, prediction = self.config, None
        features = Torso(config, config.critic_hidden_sizes)(x, action)
        init = parts.orthogonal(0.01)
        logits = parts.Dense(config.num_bins, kernel_init=init, name="value_head")(features)
        logits += PRIOR * hl_gauss(jnp.zeros(()), config.num_bins, config.symlog_max)  # detail 3
        if config.auxiliary:
            hidden = Torso(config, config.critic_hidden_sizes[-1:], name="predictor")(features)
            init, size = parts.orthogonal(math.sqrt(2)), features.shape[-1] + 1
            prediction = parts.Dense(size, kernel_init=init, name="prediction_head")(hidden)
        value = mean_of(logits, config.symlog_max)
        return Values(logits=logits, value=value, features=features, prediction=prediction)


# --- data types -------------------------------------------------------------------------------


@struct.dataclass
class PolicyState:
    """The part of the state that acting needs."""

    params: Any
    obs_stats: parts.RunningStatistics


class Weights(NamedTuple):
    """Logarithms of the weights that the actor's optimiser learns too, () each."""  # detail 6

    temperature: jax.Array  # alpha, of the entropy
    multiplier: jax.Array  # beta, of the KL


@struct.dataclass
class TrainState:
    """Everything that a run needs to continue."""

    policy: PolicyState
    critic_params: Any
    weights: Weights
    opt_state: optax.OptState  # of the actor and the weights
    critic_opt_state: optax.OptState
    env_state: Any  # of `envs.batch`
    observation: jax.Array  # (num_envs, ...)
    episodes: Any  # of `envs.batch`
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
    acted: parts.TanhGaussian  # of the policy that acted
    outcome: jax.Array | None  # next features and reward, which `auxiliary` predicts
    terminated: jax.Array


LOG_STD = (math.log(0.1), 2.0)
PRIOR = 40.0  # weight of the value 0 in the first logits
SIGMA = 0.75  # deviation of HL-Gauss, in bins


# --- formulas ---------------------------------------------------------------------------------


def kl_divergence(old, new):
    """KL(old, new) of Gaussians, (batch,): the sum over dimensions of
    log std_new - log std_old + (std_old**2 + (mean_old - mean_new)**2) / (2 std_new**2) - 1 / 2."""
    spread = jnp.exp(2.0 * (old.log_std - new.log_std))
    shift = jnp.square((old.mean - new.mean) * jnp.exp(-new.log_std))
    return (new.log_std - old.log_std + 0.5 * (spread + shift - 1.0)).sum(-1)


def hl_gauss(values, num_bins, symlog_max):
    """The histogram (..., num_bins) of a Gaussian around symlog(value), for values (...).

    symlog(y) = sign(y) log(1 + |y|). Bin i is centred at symlog_max (2 i / (num_bins - 1) - 1), and
    values beyond the outer centres count as these. The Gaussian's deviation is SIGMA bins, and it
    is cut off at the outer edges: section 3.1 of Farebrother et al. 2024.
    """
    width = 2.0 * symlog_max / (num_bins - 1)
    edges = (symlog_max + 0.5 * width) * jnp.linspace(-1.0, 1.0, num_bins + 1)
    edges = jnp.expand_dims(edges, range(jnp.ndim(values)))
    centre = jnp.clip(jnp.sign(values) * jnp.log1p(jnp.abs(values)), -symlog_max, symlog_max)
    below = jax.scipy.special.erf((edges - centre[..., None]) / (math.sqrt(2.0) * SIGMA * width))
    return jnp.diff(below) / (below[..., -1:] - below[..., :1])


def mean_of(logits, symlog_max):
    """sum_i p_i sign(c_i) (exp|c_i| / k - 1), (...), p = softmax(logits (..., num_bins)), c_i the
    centre of bin i. k = sum_i h_i exp(c_i), with h the histogram of 0.

    With k = 1 this is the mean of symexp. But a histogram of y spreads in symlog, so that its mean
    would be about k (y + 1) - 1, and bootstrapped targets would grow towards the last bin where
    k gamma is 1 or more. With its own k it is y, except within some bins of the ends, where the
    histogram is cut off, and of 0, where symexp has a kink: there it is up to 1 + s / 2 times y,
    with s the deviation in symlog (1.045 with the defaults). So with coarse bins and a small
    td_lambda, values near 0 grow where this factor times gamma exceeds 1.
    """
    number = logits.shape[-1]
    centres = symlog_max * (2.0 * jnp.arange(number) - (number - 1)) / (number - 1)  # 0 is exact
    spread = hl_gauss(jnp.zeros(()), number, symlog_max) @ jnp.exp(centres)
    return nn.softmax(logits) @ (jnp.sign(centres) * (jnp.exp(jnp.abs(centres)) / spread - 1.0))


def soft_lambda_targets(rewards, next_values, next_bonus, terminated, done, gamma, td_lambda):
    """G_t = r_t + gamma (1 - terminated_t) (b_t + (1 - lambda) Q_t + lambda G_{t+1}).

    All arrays are (num_steps, num_envs). Q_t are `next_values`, of the observations after the
    actions, before any restart. They replace G_{t+1} at `done`, also when truncated, and at the
    rollout's end. b_t is `next_bonus`, -alpha log pi of the next action: section 3.1 of the paper.
    """
    follows = (1.0 - jnp.asarray(done)).at[-1].set(0.0)
    bootstrap = next_bonus + (1.0 - td_lambda * follows) * next_values
    soft_rewards = rewards + gamma * (1.0 - terminated) * bootstrap

    def step(later, inputs):
        now, decay = inputs
        target = now + decay * later
        return target, target

    inputs = soft_rewards, gamma * td_lambda * follows
    return parts.scan(step, jnp.zeros_like(rewards[0]), inputs, reverse=True)[1]


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

    The policy is for one environment, and its actions are in the environment's box. Without rng it
    takes tanh of the mean, with rng a sample.
    """
    space = parts.ActionSpace(env.action_space(env_params))
    network = Actor(config, space.size)

    def policy(state, observation, memory=None, rng=None, mask=None):
        x = state.policy.obs_stats.as_input(config, observation)[None]
        actions = network.apply(state.policy.params, x)
        action = actions.mode() if rng is None else actions.sample(seed=rng)
        return space.rescale(action)[0], memory

    return policy


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    if type(config.num_bins) is not int or config.num_bins < 11:  # mean_of is too far off
        raise ValueError(f"num_bins={config.num_bins!r}: give a whole number, 11 or more")
    sizes = ("num_steps", "update_epochs", "num_minibatches", "num_action_samples")
    words = {"norm": tuple(NORMS)}
    parts.check(INFO, config, env, env_params, *sizes, minibatches_of="samples", words=words)


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.

    Raises:
      ValueError: a setting that cannot work, or a space that REPPO cannot take.
    """
    check(config, env, env_params)
    return parts.program(learner, config, env, env_params)


def learner(config: Config, env: Any, env_params: Any) -> parts.Learner:
    """The first state, an update (collects a rollout and learns from it), and the policy."""
    batch_size = config.num_envs * config.num_steps
    num_updates = parts.num_updates(config, batch_size)
    env, seen = envs.for_critics(env, env_params) if config.asymmetric else (env, None)
    environments = envs.batch(env, config.num_envs, config.num_steps, stagger=True)  # detail 8
    space = parts.ActionSpace(env.action_space(env_params))
    size = space.size
    actor, critic = Actor(config, size, seen), Critic(config)
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    adam = optax.scale_by_adam(eps=config.adam_eps)
    optimizer = lambda rate: parts.on_one_vector(optax.chain(clip, adam, optax.scale(-rate)))

    def init(rng):
        actor_rng, critic_rng, reset_rng, *rngs = jax.random.split(rng, 6)
        rollout_rng, learn_rng, eval_rng = rngs
        observation, env_state = environments.reset(reset_rng, env_params)
        x, action = observation.astype(jnp.float32), jnp.zeros((config.num_envs, size))
        params = actor.init(actor_rng, x)
        critic_params = critic.init(critic_rng, x, action)
        weights = Weights(
            temperature=jnp.log(config.initial_temperature),
            multiplier=jnp.log(config.initial_multiplier),
        )
        return TrainState(
            policy=PolicyState(params, parts.RunningStatistics.create(observation.shape[1:])),
            critic_params=critic_params,
            weights=weights,
            opt_state=optimizer(0.0).init({"actor": params, "weights": weights}),
            critic_opt_state=optimizer(0.0).init(critic_params),
            env_state=env_state,
            observation=observation,
            episodes=environments.episodes(),
            reward_scale=parts.RewardScale.create(config.num_envs),
            rollout_rng=rollout_rng,
            learn_rng=learn_rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state):
        """Collects a rollout and learns from it."""
        rng, target_rng, order_rng, noise_rng = jax.random.split(state.learn_rng, 4)
        state, rollout = collect(state.replace(learn_rng=rng))
        batch, of_values = prepare(state, rollout, target_rng)
        state, metrics = learn(state, batch, order_rng, noise_rng)
        state = update_statistics(state, rollout)
        return state.replace(update=state.update + 1), metrics | of_values

    def collect(state):
        """Collects a rollout."""
        rng, start_rng, step_rng, noise_rng = jax.random.split(state.rollout_rng, 4)
        noise = space.noise(noise_rng, (config.num_steps, config.num_envs))

        def step(state, inputs):
            step_rng, noise = inputs
            x = state.policy.obs_stats.as_input(config, state.observation)
            actions = actor.apply(state.policy.params, x)
            action = space.sample(actions, noise, step_rng)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, state.env_state, space.rescale(action), env_params
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

        env_state = environments.refill(start_rng, state.env_state, env_params)  # new start states
        state = state.replace(env_state=env_state, rollout_rng=rng)
        return parts.scan(step, state, (jax.random.split(step_rng, config.num_steps), noise))

    def prepare(state, rollout, rng):
        """Samples with targets, and metrics of the critic before it learns from them."""
        flat = jax.tree.map(lambda x: x.reshape(batch_size, *x.shape[2:]), rollout)
        x = state.policy.obs_stats.as_input(config, flat.observation)
        final_x = state.policy.obs_stats.as_input(config, flat.final_observation)
        noise = space.noise(rng, (config.num_action_samples, batch_size))
        gaussian = actor.apply(state.policy.params, final_x)
        action, log_prob = jax.vmap(gaussian.sample_and_log_prob_from)(noise)  # detail 2
        evaluate = lambda x, action: critic.apply(state.critic_params, x, action)
        following = jax.vmap(evaluate, (None, 0))(final_x, action)
        bonus = -jnp.exp(state.weights.temperature) * log_prob
        reward = rollout.reward
        if config.normalize_reward:
            reward = state.reward_scale.scale(reward, config.clip_reward)
        target = soft_lambda_targets(
            reward,
            following.value.mean(0).reshape(reward.shape),
            bonus.mean(0).reshape(reward.shape),
            rollout.terminated,
            rollout.done,
            config.gamma,
            config.td_lambda,
        ).reshape(batch_size)
        outcome = jnp.concatenate([following.features[0], reward.reshape(batch_size, 1)], -1)
        batch = Batch(
            observation=x,
            action=flat.action,
            target=target,
            acted=actor.apply(state.policy.params, x),
            outcome=outcome if config.auxiliary else None,
            terminated=flat.terminated,
        )
        value = evaluate(x, flat.action).value
        clipped = (jnp.log1p(jnp.abs(target)) > config.symlog_max).mean()
        # Rewards of the first update are not normalised yet: its targets count as inside.
        counts = (state.update > 0) | (not config.normalize_reward)
        metrics = {
            "mean_value": value.mean(),
            "explained_variance": parts.explained_variance(value, target),
            "clipped_targets": jnp.where(counts, clipped, 0.0),
        }
        return batch, metrics

    def critic_loss(params, batch):
        """The mean of -sum_i h_i(y) log p_i(s, a), and with `auxiliary` aux_coef times that of the
        squared error of the prediction, which counts 0 at terminated steps."""
        values = critic.apply(params, batch.observation, batch.action)
        histogram = hl_gauss(batch.target, config.num_bins, config.symlog_max)
        loss = -(histogram * nn.log_softmax(values.logits)).sum(-1).mean()
        if not config.auxiliary:
            return loss, {"critic_loss": loss}
        error = jnp.square(values.prediction - batch.outcome).mean(-1)  # detail 7
        aux_loss = ((1.0 - batch.terminated) * error).mean()
        return loss + config.aux_coef * aux_loss, {"critic_loss": loss, "aux_loss": aux_loss}

    def actor_loss(params, state, batch, noise):
        """The mean of alpha log pi(a|s) - Q(s, a), or of beta KL where the KL exceeds its bound:
        equation 9 of the paper. Also the entropy -mean log pi(a|s), and the KL, (batch,)."""
        gaussian = actor.apply(params, batch.observation)
        action, log_prob = gaussian.sample_and_log_prob_from(noise)
        value = critic.apply(state.critic_params, batch.observation, action).value
        kl = kl_divergence(batch.acted, gaussian)
        improve = jnp.exp(state.weights.temperature) * log_prob - value
        stay = jnp.exp(state.weights.multiplier) * kl
        loss = jnp.where(kl < config.kl_bound, improve, stay).mean()  # detail 5
        return loss, (-log_prob.mean(), kl)

    def weights_loss(weights, entropy, kl):
        """alpha (H - target) + beta (bound - KL): its gradient step raises alpha where the entropy
        H is too small, and beta where the KL is too large."""
        surplus = entropy - size * config.target_entropy
        of_entropy = jnp.exp(weights.temperature) * surplus
        slack = jnp.where(jnp.isinf(config.kl_bound), 0.0, config.kl_bound - kl)  # inf: no weight
        return of_entropy + jnp.exp(weights.multiplier) * slack

    def critic_step(state, batch, rate):
        grads, metrics = jax.grad(critic_loss, has_aux=True)(state.critic_params, batch)
        old, opt_state = state.critic_params, state.critic_opt_state
        updates, opt_state = optimizer(rate).update(grads, opt_state, old)
        params = optax.apply_updates(old, updates)
        state = state.replace(critic_params=params, critic_opt_state=opt_state)
        return state, metrics | {"critic_grad_norm": parts.global_norm(grads)}

    def actor_step(state, batch, noise, rate):
        of_actor = jax.value_and_grad(actor_loss, has_aux=True)
        (loss, (entropy, kl)), grads = of_actor(state.policy.params, state, batch, noise)
        of_weights = jax.grad(weights_loss)(state.weights, entropy, kl.mean())
        old = {"actor": state.policy.params, "weights": state.weights}
        grads = {"actor": grads, "weights": of_weights}
        updates, opt_state = optimizer(rate).update(grads, state.opt_state, old)
        params = optax.apply_updates(old, updates)
        metrics = {
            "actor_loss": loss,
            "entropy": entropy,
            "kl": kl.mean(),
            "clip_fraction": (kl >= config.kl_bound).mean(),
            "temperature": jnp.exp(state.weights.temperature),
            "multiplier": jnp.exp(state.weights.multiplier),
            "grad_norm": parts.global_norm(grads),
            "current_learning_rate": rate,
        }
        policy = state.policy.replace(params=params["actor"])
        return state.replace(policy=policy, weights=params["weights"], opt_state=opt_state), metrics

    def learn(state, batch, order_rng, noise_rng):
        """Epochs of minibatches."""
        orders = parts.permutations(order_rng, config.update_epochs, batch_size)
        rates = learning_rates(config, num_updates, state.update)
        orders = orders.reshape(len(rates), -1)

        def gradient_step(state, inputs):  # detail 4
            indices, noise, rate = inputs
            samples = jax.tree.map(lambda x: x[indices], batch)
            state, of_critic = critic_step(state, samples, rate)
            state, of_actor = actor_step(state, samples, noise, rate)
            return state, of_critic | of_actor

        inputs = orders, space.noise(noise_rng, orders.shape), rates
        state, metrics = parts.scan(gradient_step, state, inputs)
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
