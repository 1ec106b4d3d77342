"""PPO whose minibatches are segments drawn by priority, with V-trace advantages; one XLA program.

After the trainer of PufferLib (Suarez 2024, https://arxiv.org/abs/2406.12905), for one agent or
many. Papers: PPO (Schulman et al. 2017, https://arxiv.org/abs/1707.06347), V-trace (Espeholt et
al. 2018, https://arxiv.org/abs/1802.01561), prioritised sampling (Schaul et al. 2016,
https://arxiv.org/abs/1511.05952), Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon).

    python algorithms/ppo_vtrace.py --env CartPole-v1 --seed 0
    python algorithms/ppo_vtrace.py --preset MultiNavigator-v0 --num-seeds 5

    train = make_train(Config(env="CartPole-v1"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 16))

A *segment* is one agent of one environment over a whole rollout. How a rollout is learned from:
  - every gradient step draws segments without replacement, with probabilities proportional to
    (sum of |advantage| over the segment) ** priority_alpha; no pass over all of them is promised;
  - (number of segments * probability) ** -beta weighs their advantages in the policy loss, after
    standardisation over the minibatch; beta goes from priority_beta to 1 over the run;
  - ratios, values and V-trace advantages of the segments drawn are those of the current networks,
    found in the loss's own forward pass, and so are their priorities from then on: a segment drawn
    twice knows how far the policy has moved;
  - one network serves all agents; Muon steps its matrices and Adam all else; a cosine schedule
    reaches its floor at the last gradient step; `accumulate` averages gradients of minibatches;
  - squashed actions are tanh of a Gaussian, kept as they were before it; their entropy has no
    closed form and is integrated numerically;
  - episodes restart within a rollout; a truncated one bootstraps from its final observation;
  - an agent that has left (`info["alive"]`) counts in no loss and no priority until the next
    episode.

The calls of `envs`, for whoever takes this file elsewhere: `make` builds an environment; `batch`
steps many of them, restarting those that end (`info["final_observation"]` is what came before the
restart); `evaluate` plays whole episodes; `EpisodeStatistics` average the returns of training
episodes; `RunningStatistics` are a mean and a variance; `discounted_returns` sums up.
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
    num_minibatches: int = static(4)  # drawn in an epoch; together as large as a rollout
    update_epochs: int = static(4)  # how many times a sample is drawn from a rollout on average
    accumulate: int = static(1)  # minibatches whose gradients are averaged for a step
    optimizer: str = static("muon")  # or adam
    learning_rate: float = 4e-3  # step size
    anneal_lr: bool = static(True)  # take the learning rate to its floor along a cosine
    lr_floor: float = 0.0  # what is left of the learning rate at the last step, as a fraction
    lr_exponent: float = 1.0  # of the cosine; above 1 the learning rate falls sooner
    adam_eps: float = 1e-5  # Adam's epsilon
    muon_momentum: float = 0.8  # decay of Muon's mean of gradients
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # decay of the advantage trace
    vtrace: bool = static(True)  # correct advantages for the policy having moved
    rho_clip: float = 1.0  # largest ratio that weighs a temporal difference; inf for any
    c_clip: float = 1.0  # largest ratio in the trace; inf for any
    priority_alpha: float = 0.8  # exponent of priorities; 0 draws all segments alike
    priority_beta: float = 0.2  # exponent of importance weights at the start
    anneal_beta: bool = static(True)  # take that exponent to 1 over the run
    clip_eps: float = 0.2  # range of the probability ratio, and of values with clip_vloss
    clip_vloss: bool = static(False)  # clip the value loss
    normalize_advantage: bool = static(True)  # standardise advantages in each minibatch
    ent_coef: float = 0.01  # weight of the entropy bonus
    vf_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # clip gradients to this global norm; inf for never
    reward_trace: float = 0.0  # decay that carries later rewards to earlier steps; 0 for none
    squash: bool = static(False)  # continuous actions by tanh, not by clipping
    sigma_head: bool = static(False)  # standard deviations depend on the observation
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers of each tower
    activation: str = static("tanh")  # any function of flax.linen: tanh, relu, swish, ...
    conv_features: int = static(16)  # 3x3 filters before the dense layers, for images; 0: none
    shared_torso: bool = static(False)  # one tower for actor and critic
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
    log_std: jax.Array | None  # (batch, dimensions), continuous actions only


class ActorCritic(nn.Module):
    """Observations (batch, ...) to an ActorOutput, and to values (batch,)."""

    config: Config
    discrete: bool
    num_outputs: int  # actions, or dimensions of the action

    def setup(self):
        self.actor_torso = Torso(self.config)
        self.critic_torso = self.actor_torso if self.config.shared_torso else Torso(self.config)
        self.actor_head = nn.Dense(self.num_outputs)
        self.critic_head = nn.Dense(1)
        if not self.discrete and self.config.sigma_head:
            self.sigma_head = nn.Dense(self.num_outputs)
        elif not self.discrete:
            self.log_std = self.param("log_std", nn.initializers.zeros, (self.num_outputs,))

    def actor(self, x):
        features = self.actor_torso(x)
        output = self.actor_head(features)
        if self.discrete:
            return ActorOutput(output, None)
        log_std = self.sigma_head(features) if self.config.sigma_head else self.log_std
        return ActorOutput(output, jnp.broadcast_to(jnp.clip(log_std, -5.0, 2.0), output.shape))

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
    gains = {"actor_head": 0.01, "sigma_head": 0.01, "critic_head": 1.0}
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
    observation: jax.Array  # (num_envs, ...); with several agents (num_envs, num_agents, ...)
    alive: jax.Array  # (num_envs,) or (num_envs, num_agents)
    episodes: envs.EpisodeStatistics
    discounted_return: jax.Array  # (num_segments,), of the rewards so far
    reward_stats: envs.RunningStatistics  # of discounted returns


@struct.dataclass
class TrainState:
    """Everything that a run needs to go on."""

    policy: PolicyState
    opt_state: optax.OptState
    collector: Collector
    rng: jax.Array  # for the drawing of segments
    eval_rng: jax.Array  # the same at every evaluation
    update: jax.Array  # rollouts learned from so far, int32


class Transition(NamedTuple):
    """A rollout; leading axes (num_steps, num_envs), and num_agents where there are several."""

    observation: jax.Array
    action: jax.Array  # neither clipped nor squashed
    reward: jax.Array
    alive: jax.Array  # when it acted
    died: jax.Array  # gone after the action
    terminated: jax.Array  # (num_steps, num_envs)
    truncated: jax.Array  # (num_steps, num_envs)
    final_observation: jax.Array  # what the action led to, before any restart


class Segments(NamedTuple):
    """What is learned from; leading axes (num_segments, num_steps), or a minibatch of them."""

    observation: jax.Array  # normalised
    action: jax.Array
    log_prob: jax.Array  # of the policy that acted
    value: jax.Array  # when the rollout was collected, as is
    next_value: jax.Array  # the value of the final observation
    reward: jax.Array
    terminated: jax.Array
    done: jax.Array
    alive: jax.Array  # float32: weights


class Learner(NamedTuple):
    """The carry of the gradient steps."""

    params: Any
    opt_state: optax.OptState
    sizes: jax.Array  # sums of absolute advantages, (num_segments,)


class Progress(NamedTuple):
    """The carry of the updates between two points of the learning curve."""

    state: TrainState
    sums: dict[str, jax.Array]  # UPDATE_METRICS, summed


LOSSES = ("loss", "policy_loss", "value_loss")
RATIOS = ("approx_kl", "clip_fraction", "mean_ratio", "importance")
LOSS_METRICS = (*LOSSES, "entropy", *RATIOS, "grad_norm", "step_size")
UPDATE_METRICS = (*LOSS_METRICS, "score", "mean_value", "explained_variance")  # and policy_std


# --- formulas ---------------------------------------------------------------------------------


def backward_sums(x, decays):
    """y_t = x_t + decay_t * y_{t+1} along the last axis, by doubling the distance that sums reach:
    a few operations on whole arrays, where a scan takes as many steps as there are."""
    no_pad = [(0, 0)] * (x.ndim - 1)
    for level in range((x.shape[-1] - 1).bit_length()):
        reach = 2**level
        further = jnp.pad(x[..., reach:], [*no_pad, (0, reach)])
        x, decays = (
            x + decays * further,
            decays * jnp.pad(decays[..., reach:], [*no_pad, (0, reach)]),
        )
    return x


def vtrace(
    rewards, values, next_values, ratios, terminated, done, gamma, gae_lambda, rho_clip, c_clip
):
    """Advantages in the manner of V-trace (section 4.1 of Espeholt et al. 2018).

    All arrays are (segments, num_steps). `next_values` belong to what each action led to, before
    any restart; they count unless `terminated`. `done`, also when truncated, cuts the trace. With
    ratios of 1 and clips of 1 or more this is generalised advantage estimation.
    """
    deltas = rewards + gamma * next_values * (1.0 - terminated) - values
    decays = gamma * gae_lambda * (1.0 - done) * jnp.minimum(ratios, c_clip)
    return backward_sums(jnp.minimum(ratios, rho_clip) * deltas, decays)


def priorities(sizes, alpha):
    """Log-probabilities of segments, equation 1 of Schaul et al. 2016, from sums of |advantage|."""
    return jax.nn.log_softmax(alpha * jnp.log(jnp.maximum(sizes, 1e-8)))


def draw(log_probs, noise, number):
    """Indices of segments, without replacement: where log-probability plus Gumbel noise is largest
    (Kool et al. 2019, https://arxiv.org/abs/1903.06059)."""
    return jax.lax.top_k(log_probs + noise, number)[1]


def importance_weights(log_probs, number, beta):
    """(number of segments * probability) ** -beta, section 3.4 of Schaul et al. 2016."""
    return jnp.exp(-beta * (math.log(number) + log_probs))


def cosine(progress, floor, exponent):
    """The factor of the learning rate, from 1 at progress 0 to the floor at 1."""
    wave = 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(progress, 1.0)))
    return floor + (1.0 - floor) * wave**exponent


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


def log_slope(x):
    """log(d tanh(x) / dx), which stays finite."""
    return 2.0 * (math.log(2.0) - x - jax.nn.softplus(-2.0 * x))


def squashing_entropy(mean, log_std):
    """What squashing adds to the entropy of Gaussians (..., dimensions): the expectation of
    log_slope, a sum over 21 points (off by 1e-4 for deviations up to 2, by 0.06 at e**2)."""
    points = jnp.linspace(-5.0, 5.0, 21)
    weights = jax.nn.softmax(-0.5 * jnp.square(points))
    x = mean[..., None] + jnp.exp(log_std)[..., None] * points
    return (log_slope(x) * weights).sum((-1, -2))


# --- optimiser --------------------------------------------------------------------------------


class MuonState(NamedTuple):
    momentum: jax.Array  # mean of gradients, one long vector
    adam: optax.OptState


def orthogonalize(matrices):
    """The same singular vectors, and singular values near 1: five Newton-Schulz steps with the
    coefficients of Jordan et al. 2024. All matrices in one loop: a small program."""
    wide = [x if x.shape[0] <= x.shape[1] else x.T for x in matrices]
    wide = [x / (jnp.linalg.norm(x) + 1e-8) for x in wide]

    def refine(x):
        square = x @ x.T
        return 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x

    wide = jax.lax.fori_loop(0, 5, lambda _, wide: [refine(x) for x in wide], wide)
    return [y if y.shape == x.shape else y.T for x, y in zip(matrices, wide)]


def scale_by_muon(decay, eps) -> optax.GradientTransformation:
    """Steps for matrices by Muon with Nesterov momentum, for all else by Adam.

    Gradients, steps and moments are one long vector (few and large operations); `update` needs the
    parameters for their shapes. Muon's steps are made as large as Adam's usually are (Liu et al.
    2025, https://arxiv.org/abs/2502.16982), so that one learning rate serves both.
    """
    adam = optax.scale_by_adam(eps=eps)

    def init(flat):
        return MuonState(jnp.zeros_like(flat), adam.init(flat))

    def update(grads, state, params=None):
        unravel = ravel_pytree(params)[1]
        steps, adam_state = adam.update(grads, state.adam)
        momentum = decay * state.momentum + (1.0 - decay) * grads
        ahead = jax.tree.leaves(unravel(decay * momentum + (1.0 - decay) * grads))
        steps, tree = jax.tree.flatten(unravel(steps))
        places = [i for i, x in enumerate(steps) if x.ndim == 2]
        for i, matrix in zip(places, orthogonalize([ahead[i] for i in places])):
            steps[i] = 0.2 * math.sqrt(max(matrix.shape)) * matrix
        return ravel_pytree(jax.tree.unflatten(tree, steps))[0], MuonState(momentum, adam_state)

    return optax.GradientTransformation(init, update)


# --- policy -----------------------------------------------------------------------------------


def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None) -> action, memory.

    For one environment; with several agents observation and action are (num_agents, ...). The most
    probable action, or the (squashed) mean, without rng; a sample with it.
    """
    if env is None:
        env, env_params = envs.make(config.env, **dict(config.env_settings))
    network, several = make_network(config, env, env_params), hasattr(env, "num_agents")

    def policy(state, observation, memory=None, rng=None):
        observation = observation if several else observation[None]
        x = normalize(config, state.policy.obs_stats, observation)
        actions = distribution(network.apply(state.policy.params, x, method="actor"))
        action = actions.mode() if rng is None else actions.sample(seed=rng)
        action = to_space(config, action, env.action_space(env_params))
        return action if several else action[0], memory

    return policy


def normalize(config, obs_stats, observation):
    """Observations as the network sees them."""
    observation = observation.astype(jnp.float32)
    return obs_stats.normalize(observation) if config.normalize_obs else observation


def distribution(actor: ActorOutput):
    """Of actions before they are clipped or squashed."""
    if actor.log_std is None:
        return distrax.Categorical(logits=actor.output)
    return distrax.MultivariateNormalDiag(actor.output, jnp.exp(actor.log_std))


def log_prob_and_entropy(config, actor: ActorOutput, action):
    """Both (batch,). The logits of a distrax.Categorical are normalised, yet either of its
    methods would normalise them again; gradient steps this small would feel it."""
    policy = distribution(actor)
    if actor.log_std is None:
        log_probs = policy.logits
        chosen = jax.nn.one_hot(action, log_probs.shape[-1])
        return (log_probs * chosen).sum(-1), -(jnp.exp(log_probs) * log_probs).sum(-1)
    log_prob, entropy = policy.log_prob(action), policy.entropy()
    if config.squash:
        log_prob -= log_slope(action).sum(-1)
        entropy += squashing_entropy(actor.output, actor.log_std)
    return log_prob, entropy


def sample(actor: ActorOutput, noise):
    """Actions from standard Gumbel (discrete) or normal noise, drawn beforehand for a whole
    rollout: many random numbers at once cost far less than a few at every step."""
    if actor.log_std is None:
        return jnp.argmax(actor.output + noise, axis=-1)
    return actor.output + jnp.exp(actor.log_std) * noise


def to_space(config, action, space):
    """The action that the environment takes; leading axes are kept."""
    if hasattr(space, "n"):
        return action
    action = action.reshape(action.shape[:-1] + space.shape)
    if config.squash:
        action = space.low + 0.5 * (jnp.tanh(action) + 1.0) * (space.high - space.low)
    return jnp.clip(action, space.low, space.high)


# --- training ---------------------------------------------------------------------------------


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and what would do."""
    positive = ("total_timesteps", "num_envs", "num_steps", "num_minibatches", "update_epochs")
    sizes = [(name, getattr(config, name), 1) for name in (*positive, "accumulate", "num_evals")]
    sizes += [(name, getattr(config, name), 0) for name in ("num_eval_episodes", "conv_features")]
    sizes += [("hidden_sizes", size, 1) for size in config.hidden_sizes]
    for name, value, least in sizes:
        if type(value) is not int or value < least:
            raise ValueError(f"{name}={value!r}: give a whole number, {least} or more")
    if not callable(getattr(nn, config.activation, None)):
        raise ValueError(f"activation={config.activation!r}: flax.linen has tanh, relu, ...")
    if config.optimizer not in ("muon", "adam"):
        raise ValueError(f"optimizer={config.optimizer!r}: give muon or adam")
    segments, number = config.num_envs * getattr(env, "num_agents", 1), config.num_minibatches
    drawn = config.update_epochs * number
    if segments % number:
        divisors = [d for d in range(1, segments + 1) if segments % d == 0]
        near = sorted(sorted(divisors, key=lambda d: abs(d - number))[:4])
        raise ValueError(
            f"num_minibatches={number} does not divide the {segments} segments of a rollout "
            f"(environments times agents); {', '.join(map(str, near))} do"
        )
    if drawn % config.accumulate or config.accumulate > number:
        fits = [d for d in range(1, number + 1) if drawn % d == 0]
        raise ValueError(
            f"accumulate={config.accumulate} does not divide the {drawn} minibatches drawn from a "
            f"rollout, or exceeds num_minibatches={number}; {', '.join(map(str, fits))} would do"
        )
    if config.normalize_advantage and segments * config.num_steps == number:
        raise ValueError(
            f"num_minibatches={number} leaves one sample to a minibatch, and normalize_advantage "
            f"makes its advantage zero; {max(1, number // 2)} would do"
        )
    if hasattr(env, "action_mask"):
        raise ValueError(f"{env.name} forbids some actions; ippo takes it")
    actions, observations = env.action_space(env_params), env.observation_space(env_params)
    if not (hasattr(actions, "n") or hasattr(actions, "low")):
        raise ValueError(f"{env.name} has actions {actions}; ppo_vtrace takes Discrete and Box")
    if config.squash and hasattr(actions, "n"):
        raise ValueError(f"squash=True needs continuous actions, and {env.name} has {actions}")
    width = 0.0 if hasattr(actions, "n") else jnp.asarray(actions.high - actions.low)
    if config.squash and not isinstance(width, jax.core.Tracer) and not jnp.isfinite(width).all():
        raise ValueError(f"squash=True needs actions with bounds, and {env.name} has {actions}")
    if not hasattr(observations, "low"):
        raise ValueError(f"{env.name} has observations {observations}; ppo_vtrace takes Box")
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
    initial one. Metrics have the points as leading axis; returns of several agents have them as
    last axis. Floats of config and env_params may be traced, so train can be vmapped over them as
    well as over rng.

    Raises:
      ValueError: a setting that cannot work, or a space that the algorithm cannot take.
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
    agents = (env.num_agents,) if hasattr(env, "num_agents") else ()
    lanes = (config.num_envs, *agents)
    num_segments, batch_size = math.prod(lanes), config.num_envs * config.num_steps
    updates_per_point = math.ceil(config.total_timesteps / batch_size / config.num_evals)
    steps_per_update = config.update_epochs * config.num_minibatches // config.accumulate
    num_gradient_steps = updates_per_point * config.num_evals * steps_per_update
    environments = envs.batch(env, config.num_envs, config.num_steps)
    action_space = env.action_space(env_params)
    network = make_network(config, env, env_params)
    policy = make_policy(config, env, env_params)
    if config.optimizer == "muon":
        scale = scale_by_muon(config.muon_momentum, config.adam_eps)
    else:
        scale = optax.scale_by_adam(eps=config.adam_eps)
    optimizer = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), scale)

    def fold(x, lead=0):
        """(..., num_envs, [num_agents,] *rest) to (..., num_segments, *rest)."""
        return x.reshape(*x.shape[:lead], num_segments, *x.shape[lead + len(lanes) :])

    def initial_state(rng):
        rng, network_rng, reset_rng, collector_rng, eval_rng = jax.random.split(rng, 5)
        observation, env_state = environments.reset(reset_rng, env_params)
        x = fold(observation).astype(jnp.float32)
        params = initialize(network, network_rng, x)
        return TrainState(
            policy=PolicyState(params, envs.RunningStatistics.create(x.shape[1:])),
            opt_state=optimizer.init(ravel_pytree(params)[0]),
            collector=Collector(
                collector_rng,
                env_state,
                observation,
                alive=jnp.ones(lanes, bool),
                episodes=envs.EpisodeStatistics.create(config.num_envs, agents),
                discounted_return=jnp.zeros(num_segments),
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
        make_noise = jax.random.gumbel if network.discrete else jax.random.normal
        noise = make_noise(noise_rng, (config.num_steps * num_segments * network.num_outputs,))
        noise = noise.reshape(config.num_steps, num_segments, network.num_outputs)

        def step(collector, inputs):
            step_rng, noise = inputs
            x = normalize(config, policy_state.obs_stats, fold(collector.observation))
            action = sample(network.apply(policy_state.params, x, method="actor"), noise)
            action = action.reshape(*lanes, *action.shape[1:])
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, collector.env_state, to_space(config, action, action_space), env_params
            )
            alive = info.get("alive", jnp.ones(lanes, bool))
            transition = Transition(
                observation=collector.observation,
                action=action,
                reward=reward,
                alive=collector.alive,
                died=~alive,
                terminated=terminated,
                truncated=truncated,
                final_observation=info["final_observation"],
            )
            alive = alive | for_agents(terminated | truncated)  # all are, after a restart
            collector = collector.replace(env_state=env_state, observation=observation, alive=alive)
            return collector, transition

        collector = collector.replace(rng=rng, env_state=env_state)
        return jax.lax.scan(step, collector, (jax.random.split(step_rng, config.num_steps), noise))

    def for_agents(flag):
        """Flags of environments, (..., num_envs), to (..., num_envs, [num_agents])."""
        return jnp.broadcast_to(
            flag.reshape(*flag.shape, *(1 for _ in agents)), (*flag.shape, *agents)
        )

    def ends(rollout):
        """Who terminated, and whose trace ends, (num_steps, num_segments)."""
        terminated = for_agents(rollout.terminated) | rollout.died
        done = terminated | for_agents(rollout.truncated)
        return fold(terminated, 1), fold(done, 1)

    def make_segments(policy_state, reward_stats, rollout):
        segment = lambda x: fold(x, 1).swapaxes(0, 1)
        terminated, done = (flag.swapaxes(0, 1) for flag in ends(rollout))
        action, reward = segment(rollout.action), segment(rollout.reward)
        rows = lambda x: x.reshape(-1, *x.shape[2:])
        x = normalize(config, policy_state.obs_stats, segment(rollout.observation))
        last = normalize(config, policy_state.obs_stats, segment(rollout.final_observation))
        actor, values = network.apply(policy_state.params, rows(x))
        next_values = network.apply(policy_state.params, rows(last), method="critic")
        log_prob, _ = log_prob_and_entropy(config, actor, rows(action))
        if config.normalize_reward:
            reward = reward_stats.scale(reward)
        return Segments(
            observation=x,
            action=action,
            log_prob=log_prob.reshape(reward.shape),
            value=values.reshape(reward.shape),
            next_value=next_values.reshape(reward.shape),
            reward=backward_sums(reward, config.reward_trace * (1.0 - done)),
            terminated=terminated,
            done=done,
            alive=segment(rollout.alive).astype(jnp.float32),
        )

    def advantages_of(segments, values, log_ratio):
        """By these values and ratios; where an episode or segment ended, by the value collected."""
        following = jnp.concatenate([values[:, 1:], segments.next_value[:, -1:]], axis=1)
        return vtrace(
            segments.reward,
            values,
            jnp.where(segments.done, segments.next_value, following),
            jnp.exp(log_ratio) if config.vtrace else jnp.ones_like(log_ratio),
            segments.terminated,
            segments.done,
            config.gamma,
            config.gae_lambda,
            config.rho_clip,
            config.c_clip,
        )

    def loss(params, segments, importance):
        """Of segments (m, num_steps), importance (m,); with metrics and sizes of advantages."""
        rows = lambda x: x.reshape(-1, *x.shape[2:])
        actor, values = network.apply(params, rows(segments.observation))
        log_prob, entropy = log_prob_and_entropy(config, actor, rows(segments.action))
        shape, weights = segments.reward.shape, segments.alive
        log_ratio, values = log_prob.reshape(shape) - segments.log_prob, values.reshape(shape)
        fixed = jax.lax.stop_gradient((values, log_ratio))
        corrected = advantages_of(segments, *fixed)
        targets, advantages = corrected + fixed[0], corrected
        if config.normalize_advantage:
            advantages = standardize(advantages, weights)
        surrogate = clipped_surrogate(log_ratio, advantages * importance[:, None], config.clip_eps)
        error = value_error(values, segments.value, targets, config.clip_eps, config.clip_vloss)
        policy_loss, value_loss = mean(surrogate, weights), mean(error, weights)
        entropy = mean(entropy.reshape(shape), weights)
        total = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
        clipped = jnp.abs(jnp.expm1(log_ratio)) > config.clip_eps
        metrics = {
            "loss": total,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": mean(kl_estimate(log_ratio), weights),
            "clip_fraction": mean(clipped, weights),
            "mean_ratio": mean(jnp.exp(log_ratio), weights),
            "importance": importance.mean(),
        }
        if not network.discrete:
            metrics["policy_std"] = mean(jnp.exp(actor.log_std).mean(-1).reshape(shape), weights)
        return total, (metrics, (jnp.abs(corrected) * weights).sum(1))

    def learn(state, segments, rng):
        """Gradient steps, each on the segments that its draw gives. Returns learner and metrics."""
        size = num_segments // config.num_minibatches
        noise = jax.random.gumbel(rng, (steps_per_update * num_segments,))
        noise = noise.reshape(steps_per_update, num_segments)

        def gradients(learner, log_probs, beta, indices):
            """Of a minibatch, with its metrics and priorities."""
            samples = jax.tree.map(lambda x: x[indices], segments)
            importance = importance_weights(log_probs[indices], num_segments, beta)
            return jax.grad(loss, has_aux=True)(learner.params, samples, importance)

        def step(learner, inputs):
            noise, number = inputs
            progress = number / max(num_gradient_steps - 1, 1)
            beta = config.priority_beta
            if config.anneal_beta:
                beta = beta + (1.0 - beta) * jnp.minimum(progress, 1.0)
            log_probs = priorities(learner.sizes, config.priority_alpha)
            drawn = draw(log_probs, noise, config.accumulate * size)
            parts = drawn.reshape(config.accumulate, size)
            grads, (metrics, sizes) = jax.lax.map(
                functools.partial(gradients, learner, log_probs, beta), parts
            )
            grads, metrics = jax.tree.map(lambda x: x.mean(0), (grads, metrics))
            grads, unravel = ravel_pytree(grads)
            direction, opt_state = optimizer.update(grads, learner.opt_state, learner.params)
            rate = config.learning_rate
            if config.anneal_lr:
                rate = rate * cosine(progress, config.lr_floor, config.lr_exponent)
            params = jax.tree.map(jnp.subtract, learner.params, unravel(rate * direction))
            metrics |= {"grad_norm": optax.tree.norm(grads), "step_size": rate}
            return Learner(params, opt_state, learner.sizes.at[parts].set(sizes)), metrics

        corrected = advantages_of(segments, segments.value, jnp.zeros_like(segments.value))
        sizes = (jnp.abs(corrected) * segments.alive).sum(1)
        numbers = state.update * steps_per_update + jnp.arange(steps_per_update)
        learner = Learner(state.policy.params, state.opt_state, sizes)
        learner, metrics = jax.lax.scan(step, learner, (noise, numbers))
        metrics = jax.tree.map(jnp.mean, metrics)
        metrics["mean_value"] = mean(segments.value, segments.alive)
        metrics["explained_variance"] = explained_variance(
            segments.value, corrected + segments.value, segments.alive
        )
        return learner, metrics

    def update_statistics(state, collector, rollout):
        """Statistics with the rollout that has been learned from."""
        obs_stats, (_, done) = state.policy.obs_stats, ends(rollout)
        ended, alive = rollout.terminated | rollout.truncated, fold(rollout.alive, 1)
        collector = collector.replace(episodes=collector.episodes.update(rollout.reward, ended))
        if config.normalize_obs:
            obs_stats = obs_stats.update(fold(rollout.observation, 1), alive)
        if config.normalize_reward:
            last, returns = envs.discounted_returns(
                collector.discounted_return, fold(rollout.reward, 1), done, config.gamma
            )
            reward_stats = collector.reward_stats.update(returns, alive)
            collector = collector.replace(discounted_return=last, reward_stats=reward_stats)
        return obs_stats, collector

    def update(_, progress):
        """One rollout and what is learned from it."""
        state = progress.state
        rng, draw_rng = jax.random.split(state.rng)
        collector, rollout = collect(state.policy, state.collector)
        segments = make_segments(state.policy, collector.reward_stats, rollout)
        learner, metrics = learn(state, segments, draw_rng)
        obs_stats, collector = update_statistics(state, collector, rollout)
        metrics["score"] = rollout.reward.mean()
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
            metrics |= {"eval_last_reward": played.last_reward}
            metrics |= {"eval_terminated": played.terminated, "eval_truncated": played.truncated}
        return state.replace(collector=state.collector.replace(episodes=episodes)), metrics

    def point(state, num_updates):
        names = (*UPDATE_METRICS, *(() if network.discrete else ("policy_std",)))
        progress = Progress(state, dict.fromkeys(names, jnp.zeros(())))
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
