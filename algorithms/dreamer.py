"""DreamerV3: an actor and a critic that learn in a world model. A whole run is one XLA program.

Paper: Hafner et al. 2023, https://arxiv.org/abs/2301.04104 (Nature 2025). Where its versions
differ, this follows the authors' code of 2026, https://github.com/danijar/dreamerv3.

    python algorithms/dreamer.py --preset CartPole-v1
    python algorithms/dreamer.py --preset Pendulum-v1 --num-seeds 4

    train = make_train(Config(env="CartPole-v1"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 4))

Implementation details:
  1 A round is `train_every` steps of each environment, then `updates_per_step` gradient steps. The
    train ratio, replayed steps for each one of an environment, is updates_per_step * batch_size *
    sequence_length / (num_envs * train_every). The paper's is 32 to 1024. Its resets count, too.
  2 A sequence starts at any step, and may cross episodes. The end of one is a record of its own,
    with the last reward and no action. The next one has no reward, and never begins a sequence.
  3 Each step is stored with its latents. Those of the record before a sequence start it, and after
    the gradient step its new latents replace the stored ones.
  4 With `online_queue`, batches first take sequences that no batch has had yet.
  5 Numbers are observed and reconstructed as symlog(x), with the squared error. Zeros and ones
    (`reconstruction` bits) have a cross-entropy, and bytes are pixels. A dense layer decodes
    images: the paper's are transposed convolutions.
  6 Block GRU: each block sees its part of the memory, and the stochastic latents and the action.
  7 Latents are one-hot vectors from a softmax with a share `unimix` of uniform probabilities, which
    also counts in their losses. Gradients go straight through. A fresh memory is all zeros.
  8 Dynamics and representation loss have `free_nats`, for each step before the mean.
  9 The continuation is 0 where an episode terminated, else `gamma`: it has the discount factor.
 10 Rewards and values are categories of symexp-spaced bins. Their last layers start at zero.
 11 Imagination starts at every posterior state, those of last records included. Losses of actor and
    critic stop at the features. Step t counts by the product of the predicted continuations 0..t.
 12 Lambda-returns of the critic itself. Its slow copy regularises it, and moves after each step.
 13 REINFORCE for all kinds of actions. Advantages are divided by the range from the 5th to the 95th
    percentile of returns, a running mean that starts at zero, if it is above 1.
 14 The critic also learns returns of the replayed rewards, which bootstrap from imagined returns.
    This loss goes through the features into the world model.
 15 One optimiser: clipping by tensor, LaProp, and a linear warm-up from 0. The text of the paper
    has 0.99 for `adam_b2`, the code 0.999.
 16 Discrete actions have a share `actor_unimix` of uniform probabilities, as in the paper's text.
    Continuous ones are Gaussian with a mean in (-1, 1), unclipped for actor and world model. The
    environment gets them clipped and rescaled to its box.
 17 Without a key the policy takes the most probable latents and action. The paper's always samples.
 18 With bfloat16, hidden layers multiply in it; memory, heads and losses stay float32.
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

import envs
from algorithms import parts
from algorithms.parts import real, static

INFO = {
    "title": "DreamerV3: a world model, and an actor and a critic that learn in its imagination",
    "use": "steps that cost more than computing: it learns in its own world model",
    "paper": "[Hafner et al. 2023](https://arxiv.org/abs/2301.04104)",
    "family": "world models",
    "actions": ("discrete", "continuous"),
    "masks": False,
    "agents": "one",
    "memory": True,
}


@struct.dataclass
class Config:
    env: str = static("CartPole-v1")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # env settings, name=value,...
    total_timesteps: int = static(100_000)  # environment steps of the whole run
    num_envs: int = static(16)  # parallel environments
    train_every: int = static(2)  # steps of each environment between two rounds of learning
    updates_per_step: int = static(1)  # gradient steps in a round of learning
    buffer_size: int = static(100_000)  # steps kept, over all environments
    buffer_dtype: str = static("")  # dtype of stored observations, such as bool; "": unchanged
    latent_dtype: str = static("float32")  # dtype of stored memories: float32 or bfloat16
    batch_size: int = static(16)  # sequences in a gradient step
    sequence_length: int = static(64)  # records of a sequence that are learned
    online_queue: bool = static(True)  # batches first take sequences that none has had yet
    learning_starts: int = static(1_024)  # environment steps before the first gradient step
    imagine_steps: int = static(15)  # steps of imagined trajectories
    learning_rate: float = real(4e-5, "[0, inf)")  # LaProp's step size
    warmup_steps: float = real(1_000.0, "[0, inf)")  # gradient steps of the linear warm-up
    agc: float = real(0.3, "(0, inf]")  # clip each tensor's gradient to this share of its norm
    agc_min: float = real(1e-3, "(0, inf)")  # smallest norm that counts for this
    adam_b1: float = real(0.9, "[0, 1)")  # LaProp's decay of the momentum
    adam_b2: float = real(0.999, "[0, 1)")  # LaProp's decay of squared gradients
    adam_eps: float = real(1e-20, "(0, inf)")  # LaProp's epsilon
    gamma: float = real(1.0 - 1.0 / 333.0, "[0, 1]")  # discount factor
    gae_lambda: float = real(0.95, "[0, 1]")  # lambda of lambda-returns
    dynamics_coef: float = real(1.0, "[0, inf)")  # weight of the prior's loss
    representation_coef: float = real(0.1, "[0, inf)")  # weight of the posterior's loss
    free_nats: float = real(1.0, "[0, inf)")  # these two losses count from here on
    reconstruction_coef: float = real(1.0, "[0, inf)")  # weight of the observations' loss
    reward_coef: float = real(1.0, "[0, inf)")  # weight of the rewards' loss
    continue_coef: float = real(1.0, "[0, inf)")  # weight of the continuations' loss
    vf_coef: float = real(1.0, "[0, inf)")  # weight of the critic's loss in imagination
    replay_vf_coef: float = real(0.3, "[0, inf)")  # weight of the critic's loss on replayed steps
    slow_coef: float = real(1.0, "[0, inf)")  # weight of the slow critic in both losses
    tau: float = real(0.02, "[0, 1]")  # share that the slow critic moves at a gradient step
    ent_coef: float = real(3e-4, "[0, inf)")  # weight of the actor's entropy
    return_decay: float = real(0.99, "[0, 1)")  # decay of the running percentiles of returns
    return_low: float = real(5.0, "[0, 100]")  # lower percentile of returns
    return_high: float = real(95.0, "[0, 100]")  # upper percentile of returns
    return_limit: float = real(1.0, "(0, inf)")  # smaller ranges of returns count as this
    unimix: float = real(0.01, "[0, 1]")  # share of uniform probabilities in latents
    actor_unimix: float = real(0.01, "[0, 1]")  # share of random actions, if they are discrete
    min_std: float = real(0.1, "(0, inf)")  # smallest standard deviation of continuous actions
    max_std: float = real(1.0, "(0, inf)")  # largest standard deviation of continuous actions
    hidden_size: int = static(64)  # units of dense layers
    memory_size: int = static(512)  # size of the block GRU's memory
    blocks: int = static(8)  # blocks of the GRU
    latents: int = static(32)  # stochastic latents
    classes: int = static(4)  # values of each of them
    layers: int = static(3)  # dense layers of encoder, decoder, actor and critic
    num_bins: int = static(255)  # bins of rewards and values; odd
    reconstruction: str = static("symlog")  # observations are numbers: symlog, or 0 and 1: bits
    activation: str = static("swish")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    compute_dtype: str = static("float32")  # dtype of hidden layers: float32 or bfloat16
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------

stop = jax.lax.stop_gradient


def make_layers(config, count, outputs=0, gain=1.0, conv_layers="none"):
    c = config
    return parts.NormedLayers(
        count, c.hidden_size, c.activation, outputs, gain, conv_layers, c.compute_dtype
    )


class BlockGRU(nn.Module):
    """h_{t-1} (batch, memory_size), z_{t-1} (batch, numbers), a_{t-1} (batch, size) to h_t."""

    config: Config

    @nn.compact
    def __call__(self, h, z, action):  # detail 6
        """h' = u tanh(sigmoid(r) c) + (1 - u) h, u = sigmoid(v - 1), with r, c, v of each block."""
        c, size = self.config, self.config.memory_size
        action = action / stop(jnp.maximum(1.0, jnp.abs(action)))
        shared = jnp.concatenate([make_layers(c, 1)(x) for x in (h, z, action)], -1)
        layer = functools.partial(parts.BlockDense, blocks=c.blocks, dtype=c.compute_dtype)
        x = parts.RMSNorm()(layer(size)(h, shared)).astype(c.compute_dtype)
        gates = layer(3 * size)(parts.activation(c.activation)(x)).astype(jnp.float32)  # detail 18
        gates = gates.reshape(len(h), c.blocks, 3, -1)
        reset, candidate, update = (gates[:, :, i].reshape(h.shape) for i in range(3))
        update = nn.sigmoid(update - 1.0)
        return update * jnp.tanh(nn.sigmoid(reset) * candidate) + (1.0 - update) * h


class Network(nn.Module):
    """World model, actor and critic. Heads see features: memory and latents in one vector."""

    config: Config
    numbers: int  # of an observation
    outputs: int  # of the actor

    def setup(self):
        c, logits = self.config, self.config.latents * self.config.classes
        layers = functools.partial(make_layers, c)
        self.encoder = layers(c.layers, conv_layers=c.conv_layers)
        self.core = BlockGRU(c)
        self.posterior = layers(1, logits)
        self.prior = layers(2, logits)
        self.decoder = layers(c.layers, self.numbers)
        self.reward = layers(1, c.num_bins, gain=0.0)  # detail 10
        self.continuation = layers(1, 1)
        self.actor = layers(c.layers, self.outputs, gain=0.01)
        self.critic = layers(c.layers, c.num_bins, gain=0.0)

    def __call__(self, observation, world):
        """Creates all parameters."""
        tokens, h = self.encoder(observation), self.core(*flat_world(world))
        self.posterior(jnp.concatenate([h, tokens], -1))
        for head in (self.decoder, self.reward, self.continuation, self.actor, self.critic):
            head(feature_vector(world))
        return self.prior(h)


# --- data types -------------------------------------------------------------------------------


class World(NamedTuple):
    """What the world model knows; a policy's memory. Zeros are a fresh one."""

    h: jax.Array  # memory, (..., memory_size)
    z: jax.Array  # one-hot latents, (..., latents, classes)
    action: jax.Array  # the last action, (..., size); one-hot, or unclipped


class Row(NamedTuple):
    """A step in the replay buffer, with the latents at its observation."""

    steps: parts.Transition
    h: jax.Array  # (memory_size,)
    z: jax.Array  # classes, (latents,), uint8


@struct.dataclass
class PolicyState:
    """The part of the state that acting needs."""

    params: Any


@struct.dataclass
class TrainState:
    """Everything that a run needs to continue."""

    policy: PolicyState
    slow_params: Any  # of the slow critic
    return_range: jax.Array  # running percentiles of returns, (2,)
    opt_state: optax.OptState
    replay: parts.Replay  # of Rows
    taken: jax.Array  # sequences that batches had from the online queue, int32
    env_state: Any  # of `envs.batch`
    observation: jax.Array  # (num_envs, ...)
    memory: World  # before the observation, (num_envs, ...)
    episodes: Any  # of `envs.batch`
    rng: jax.Array
    eval_rng: jax.Array  # constant: all evaluations use it
    update: jax.Array  # updates so far, int32


class Noise(NamedTuple):
    """Random numbers for the acting in a round."""

    step_rng: jax.Array  # (train_every,)
    latents: jax.Array  # uniform, (train_every, num_envs, latents)
    actions: jax.Array  # (train_every, num_envs, size): see parts.ActionSpace


class Draws(NamedTuple):
    """Random numbers of a gradient step."""

    windows: jax.Array  # (batch_size,), see parts.ReplayBuffer
    seed: jax.Array  # of the others, which would be too many for a whole update; uint32 ()


# --- formulas ---------------------------------------------------------------------------------


def flat_world(world):
    """The arrays of a World, each (..., numbers)."""
    return world.h, world.z.reshape(*world.z.shape[:-2], -1), world.action


def feature_vector(world):
    return jnp.concatenate(flat_world(world)[:2], -1)


def mixed(logits, share):
    """(1 - share) softmax(logits) + share / n, over the last axis of n."""
    return (1.0 - share) * nn.softmax(logits) + share / logits.shape[-1]


def sample_latents(probs, noise):  # detail 7
    """One-hot z ~ p (..., classes), with p's gradient, by uniform noise (...); None: the mode."""
    classes = probs.shape[-1]
    if noise is None:
        return jax.nn.one_hot(probs.argmax(-1), classes)
    sums = jnp.dot(probs, jnp.triu(jnp.ones((classes, classes))), precision="highest")
    index = (sums[..., :-1] <= noise[..., None]).sum(-1)
    return jax.nn.one_hot(index, classes) + (probs - stop(probs))


def divergence(p, q):
    """KL(p || q) = sum p log(p / q), (...), of latents (..., latents, classes)."""
    log = lambda x: jnp.log(jnp.maximum(x, 1e-30))
    return (p * (log(p) - log(q))).sum((-2, -1))


def bounded_normal(numbers, low, high):  # detail 16
    """N(tanh m, s**2) with s = (high - low) sigmoid(x + 2) + low, of numbers (..., 2 size)."""
    mean, x = jnp.split(numbers, 2, -1)
    return parts.Gaussian(jnp.tanh(mean), jnp.log((high - low) * nn.sigmoid(x + 2.0) + low))


def lambda_returns(rewards, continues, traces, values):
    """R_t = r_{t+1} + c_{t+1} ((1 - l_{t+1}) v_{t+1} + l_{t+1} R_{t+1}), R_T = v_T: (T, batch).

    Continuations c have the discount factor. l is lambda, and 0 where an episode was cut.
    """

    def step(later, inputs):
        reward, c, trace, value = inputs
        total = reward + c * ((1.0 - trace) * value + trace * later)
        return total, total

    inputs = rewards[1:], continues[1:], traces[1:], values[1:]
    return parts.scan(step, values[-1], inputs, reverse=True)[1]


def percentiles(config, old, returns):  # detail 13
    """Running percentiles (2,) after those of all these returns."""
    new = jnp.percentile(returns, jnp.stack([config.return_low, config.return_high]))
    return config.return_decay * old + (1.0 - config.return_decay) * new


def policy_loss(log_prob, entropy, advantages, weights, ent_coef):
    """The mean of -w (log pi(a) A + ent_coef H), with constant weights w and advantages A."""
    return -(weights * (log_prob * advantages + ent_coef * entropy)).mean()


def warm_up(step, steps):  # detail 15
    """min(step / steps, 1) for the gradient steps before this one; 1 without warm-up."""
    return jnp.where(step < steps, step / jnp.maximum(steps, 1e-6), 1.0)


# --- acting and training ----------------------------------------------------------------------


class Model:
    """Functions of parameters: the world model's, the actor's and the critic's."""

    def __init__(self, config: Config, env: Any, env_params: Any):
        self.config = config
        self.space = parts.ActionSpace(env.action_space(env_params))
        shape = self.shape = tuple(env.observation_space(env_params).shape)
        self.input = shape if len(shape) == 3 else (math.prod(shape),)  # images stay images
        outputs = self.space.size if self.space.discrete else 2 * self.space.size
        self.network = Network(config, math.prod(self.shape), outputs)
        self.bins = parts.Bins(config.num_bins)

    def __call__(self, params, name, *inputs):
        """The outputs of a part of the network."""
        return self.network.apply(params, *inputs, method=lambda net, *x: getattr(net, name)(*x))

    def numbers(self, x):  # detail 5
        """Observations (..., *shape) as the world model has them: in [0, 1], or by symlog."""
        plain = self.config.reconstruction == "bits" or x.dtype == jnp.uint8
        return parts.scaled(x) if plain else parts.symlog(parts.scaled(x))

    def tokens(self, params, x):
        axes = x.shape[: x.ndim - len(self.shape)]
        numbers = self.numbers(x) - (0.5 if x.dtype == jnp.uint8 else 0.0)
        return self(params, "encoder", numbers.reshape(-1, *self.input)).reshape(*axes, -1)

    def reconstruction_loss(self, predicted, x):  # detail 5
        """-log p(x) or squared errors, summed over the numbers of observations x (..., *shape)."""
        numbers = self.numbers(x).reshape(predicted.shape)
        if x.dtype == jnp.uint8:
            return jnp.square(nn.sigmoid(predicted) - numbers).sum(-1)
        if self.config.reconstruction == "bits":
            return optax.sigmoid_binary_cross_entropy(predicted, numbers).sum(-1)
        return jnp.square(predicted - numbers).sum(-1)

    def fresh(self, *axes):
        c, zeros = self.config, lambda *shape: jnp.zeros((*axes, *shape))
        return World(zeros(c.memory_size), zeros(c.latents, c.classes), zeros(self.space.size))

    def vector(self, action, axes=1):
        """Actions as the world model sees them, (..., size), with so many leading axes."""
        if self.space.discrete:
            return jax.nn.one_hot(action, self.space.size)
        return action.reshape(*action.shape[:axes], -1)

    def latents(self, params, name, x):
        """Probabilities of the prior or posterior, (..., latents, classes)."""
        logits = self(params, name, x)
        logits = logits.reshape(*logits.shape[:-1], self.config.latents, self.config.classes)
        return mixed(logits, self.config.unimix)

    def observe(self, params, world, tokens, noise):
        """h_t = f(h_{t-1}, z_{t-1}, a_{t-1}), z_t ~ q(h_t, x_t), and the probabilities q."""
        h = self(params, "core", *flat_world(world))
        probs = self.latents(params, "posterior", jnp.concatenate([h, tokens], -1))
        return world._replace(h=h, z=sample_latents(probs, noise)), probs

    def expect(self, params, world, noise):
        """h_t = f(h_{t-1}, z_{t-1}, a_{t-1}), z_t ~ p(h_t): a step without an observation."""
        h = self(params, "core", *flat_world(world))
        return world._replace(h=h, z=sample_latents(self.latents(params, "prior", h), noise))

    def actions(self, params, x):
        """The distribution of actions at features (..., numbers)."""
        c, numbers = self.config, self(params, "actor", x)
        if self.space.discrete:
            return parts.Categorical(jnp.log(jnp.maximum(mixed(numbers, c.actor_unimix), 1e-30)))
        return bounded_normal(numbers, c.min_std, c.max_std)

    def posteriors(self, params, world, records, action, noise):
        """Worlds at each record, and the probabilities of their latents; (num_steps, batch, ...).

        `world` is of the record before the first one, and `action` of the record before each.
        """
        tokens = self.tokens(params, records.observation)

        def step(world, inputs):
            tokens, first, action, noise = inputs
            world = parts.forget(world._replace(action=action), first)
            world, probs = self.observe(params, world, tokens, noise)
            return world, (world, probs)

        return parts.scan(step, world, (tokens, records.first, action, noise))[1]

    def world_losses(self, params, worlds, posterior, records):
        """Reconstruction, reward, continuation, dynamics and representation loss; metrics."""
        c, x = self.config, feature_vector(worlds)
        prior = self.latents(params, "prior", worlds.h)
        kl = lambda p, q: jnp.maximum(divergence(p, q), c.free_nats).mean()  # detail 8
        decoded, reward = self(params, "decoder", x), self(params, "reward", x)
        logits = self(params, "continuation", x)[..., 0]
        target = c.gamma * (1.0 - records.terminated)  # detail 9
        losses = {
            "reconstruction": self.reconstruction_loss(decoded, records.observation).mean(),
            "reward": self.bins.cross_entropy(reward, records.reward).mean(),
            "continue": optax.sigmoid_binary_cross_entropy(logits, target).mean(),
            "dynamics": kl(stop(posterior), prior),
            "representation": kl(posterior, stop(prior)),
        }
        return losses, {"kl": divergence(posterior, prior).mean()}

    def imagined(self, params, world, rng):
        """Trajectories h_t = f(h_{t-1}, z_{t-1}, a_{t-1}), z_t ~ p(h_t), a_t ~ pi from all states:
        features (imagine_steps + 1, states, ...), and actions at all but the last."""
        latent_rng, action_rng = jax.random.split(rng)
        shape = self.config.imagine_steps, len(world.h)
        latents = jax.random.uniform(latent_rng, (*shape, self.config.latents))

        def step(world, noise):
            x = feature_vector(world)
            action = self.actions(params, x).sample_from(noise[1])
            world = world._replace(action=self.vector(action))
            return self.expect(params, world, noise[0]), (x, action)

        noise = latents, self.space.noise(action_rng, shape)
        world, (x, actions) = parts.scan(step, world, noise)
        return jnp.concatenate([x, feature_vector(world)[None]]), actions

    def behaviour_losses(self, params, slow_params, old, x, action):
        """The actor's and the critic's loss for constant features and actions of `imagined`;
        metrics, the running percentiles of returns, which were `old`, and the returns."""
        c, frozen = self.config, stop(params)
        logits = self(params, "critic", x)
        values = stop(self.bins.mean(logits))
        rewards = self.bins.mean(self(frozen, "reward", x))
        continues = nn.sigmoid(self(frozen, "continuation", x)[..., 0])
        traces = jnp.full_like(values, c.gae_lambda)
        returns = lambda_returns(rewards, continues, traces, values)  # detail 12
        of_returns = percentiles(c, old, returns)
        scale = jnp.maximum(of_returns[1] - of_returns[0], c.return_limit)
        advantages = (returns - values[:-1]) / scale
        weights = jnp.cumprod(continues, 0)[:-1]  # detail 11
        actions = self.actions(params, x[:-1])
        log_prob, entropy = actions.log_prob(action), actions.entropy()
        of_critic = self.value_loss(logits[:-1], returns, slow_params, x[:-1])
        losses = {
            "policy": policy_loss(log_prob, entropy, advantages, weights, c.ent_coef),
            "value": (weights * of_critic).mean(),
        }
        metrics = {"entropy": entropy.mean(), "mean_value": values.mean(), "return_scale": scale}
        return losses, metrics, of_returns, returns

    def value_loss(self, logits, returns, slow_params, x):
        """-log p(R) - slow_coef log p(v'), with the slow critic's values v' at features x (...)."""
        slow = stop(self.bins.mean(self({"params": {"critic": slow_params}}, "critic", x)))
        of_slow = self.bins.cross_entropy(logits, slow)
        return self.bins.cross_entropy(logits, returns) + self.config.slow_coef * of_slow

    def replay_value_loss(self, params, slow_params, x, records, bootstrap):  # detail 14
        """The critic's loss on replayed rewards, with gradients into the features x."""
        c, going = self.config, 1.0 - records.last
        continues, traces = c.gamma * (1.0 - records.terminated), c.gae_lambda * going
        returns = lambda_returns(records.reward, continues, traces, bootstrap)
        losses = self.value_loss(self(params, "critic", x[:-1]), returns, slow_params, x[:-1])
        return (going[:-1] * losses).mean()


@parts.with_environment
def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None, mask=None) -> action, memory.

    The policy is for one environment. memory=None is a fresh memory, a World. Without rng it takes
    the most probable latents and action, with rng it samples both.
    """
    model = Model(config, env, env_params)

    def policy(state, observation, memory=None, rng=None, mask=None):
        memory, observation = jax.tree.map(lambda x: x[None], (memory, observation))
        params, world = state.policy.params, model.fresh(1) if memory is None else memory
        draw = lambda rng: jax.random.uniform(jax.random.fold_in(rng, 1), (1, config.latents))
        noise = None if rng is None else draw(rng)  # detail 17
        world, _ = model.observe(params, world, model.tokens(params, observation), noise)
        actions = model.actions(params, feature_vector(world))
        action = actions.mode() if rng is None else actions.sample(seed=rng)
        memory = world._replace(action=model.vector(action))
        return jax.tree.map(lambda x: x[0], (model.space.rescale(action), memory))

    return policy


@parts.with_environment
def make_dream(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns dream(state, memory) -> observation, memory: a step that the policy does not see.

    The memory is the policy's, with the action that it took. Latents are the most probable ones.
    Bits are given as probabilities. Pixels are not decoded.
    """
    model = Model(config, env, env_params)

    def dream(state, memory):
        params, world = state.policy.params, jax.tree.map(lambda x: x[None], memory)
        world = model.expect(params, world, None)
        x = model(params, "decoder", feature_vector(world)).reshape(model.shape)
        x = nn.sigmoid(x) if config.reconstruction == "bits" else parts.symexp(x)
        return x, jax.tree.map(lambda x: x[0], world)

    return dream


def make_buffer(config, env, env_params):
    """A replay buffer of Rows, whose windows are a record and a sequence; its first state."""
    buffer = parts.ReplayBuffer.of(config, n_step=config.sequence_length + 1)

    def row(step):
        h = jnp.zeros(config.memory_size, config.latent_dtype)
        return Row(steps=step, h=h, z=jnp.zeros(config.latents, jnp.uint8))

    return buffer, lambda: buffer.create(env, env_params, row)


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    sizes = "sequence_length", "imagine_steps", "hidden_size", "memory_size", "blocks", "layers"
    sizes += "latents", "classes", "num_bins"
    words = {"reconstruction": ("symlog", "bits"), "latent_dtype": ("float32", "bfloat16")}
    parts.check(INFO, config, env, env_params, *sizes, words=words)
    parts.check_rounds(config)
    actions, size = env.action_space(env_params), config.memory_size
    if hasattr(actions, "low") and not parts.is_bounded(actions):
        raise ValueError(f"{env.name} has actions {actions}; dreamer takes a Box with bounds")
    parts.check_divides("blocks", config.blocks, f"memory_size={size}", size)
    if config.num_bins % 2 == 0 or config.num_bins == 1:
        near = config.num_bins + 1 + config.num_bins % 2
        raise ValueError(f"num_bins={config.num_bins}: give an odd number, 3 or more, as {near}")
    if config.sequence_length == 1:
        raise ValueError("sequence_length=1: give 2 or more; a value learns from the step after it")
    if config.classes > 256:  # they are stored as bytes
        raise ValueError(f"classes={config.classes}: give a whole number up to 256")
    window = config.sequence_length + 1
    parts.check_holds(config, window, f"a sequence and the step before it, {window} steps")
    buffer, create = make_buffer(config, env, env_params)
    parts.check_fits(config, buffer, jax.eval_shape(create))


def in_words(config: Config) -> str:  # detail 1
    """What the launcher says of a run, beside its length."""
    learned = config.updates_per_step * config.batch_size * config.sequence_length
    return f"train ratio {learned / (config.num_envs * config.train_every):g}"


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.

    Raises:
      ValueError: a setting that cannot work, a space that DreamerV3 cannot take, or too large a
        buffer.
    """
    check(config, env, env_params)
    return parts.program(learner, config, env, env_params)


def learner(config: Config, env: Any, env_params: Any) -> parts.Learner:
    """The first state, an update (some rounds of acting and learning), and the policy."""
    buffer, create = make_buffer(config, env, env_params)
    rounds = parts.Rounds(config)  # detail 1
    # A round learns once there are `learning_starts` steps and a whole window.
    waiting = rounds.before(max(config.learning_starts, buffer.waiting + 1))
    environments = envs.batch(env, config.num_envs, rounds.num_steps)
    model = Model(config, env, env_params)
    space = model.space
    clip = parts.clip_by_tensor(config.agc, config.agc_min)  # detail 15
    laprop = parts.scale_by_laprop(config.adam_b1, config.adam_b2, config.adam_eps)
    laprop = parts.on_one_vector(laprop)
    optimizer = lambda rate: optax.chain(clip, laprop, optax.scale(-rate))
    weights = {"policy": 1.0, "value": config.vf_coef, "replay_value": config.replay_vf_coef}

    def init(rng):
        rng, network_rng, reset_rng, eval_rng = jax.random.split(rng, 4)
        observation, env_state = environments.reset(reset_rng, env_params)
        params = model.network.init(network_rng, jnp.zeros((1, *model.input)), model.fresh(1))
        return TrainState(
            policy=PolicyState(params),
            slow_params=params["params"]["critic"],
            return_range=jnp.zeros(2),
            opt_state=optimizer(0.0).init(params),
            replay=create(),
            taken=jnp.zeros((), jnp.int32),
            env_state=env_state,
            observation=observation,
            memory=model.fresh(config.num_envs),
            episodes=environments.episodes(),
            rng=rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state):
        """Runs some rounds. Random numbers of acting are drawn at once, which costs far less."""
        rng, start_rng, *rngs = jax.random.split(state.rng, 7)
        step_rng, latent_rng, action_rng, draw_rng, seed_rng = rngs
        windows = buffer.noise(draw_rng, (rounds.gradient_steps, config.batch_size))
        draws = Draws(windows=windows, seed=jax.random.bits(seed_rng, (rounds.gradient_steps,)))
        shape = *rounds.acting, config.latents
        noise = Noise(
            step_rng=jax.random.split(step_rng, rounds.acting[:2]),
            latents=parts.flat_draw(jax.random.uniform, latent_rng, shape),
            actions=space.noise(action_rng, rounds.acting),
        )
        env_state = environments.refill(start_rng, state.env_state, env_params)  # new start states
        state = state.replace(env_state=env_state, rng=rng)
        return rounds.run(round, state, noise, draws)

    def round(state, noise, now):
        """`train_every` steps of every environment, then `updates_per_step` gradient steps."""
        state, rows = act(state, noise)
        state = state.replace(replay=buffer.add(state.replay, rows))
        ready = now.number >= waiting
        done = (now.number - waiting).astype(jnp.float32) * config.updates_per_step

        def learn(old, draws, index):
            new, metrics = gradient_step(old, draws, now.number, done + (index - now.first), ready)
            return parts.keep_if(ready, new, old), metrics

        state, metrics = rounds.repeat(learn, state, now, ready)
        return state, metrics, rows.steps

    def act(state, noise):
        """`train_every` steps of every environment."""

        def step(state, noise):
            params = state.policy.params
            tokens = model.tokens(params, state.observation)
            world, _ = model.observe(params, state.memory, tokens, noise.latents)
            action = model.actions(params, feature_vector(world)).sample_from(noise.actions)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                noise.step_rng, state.env_state, space.rescale(action), env_params
            )
            transition = parts.Transition(
                observation=state.observation,
                action=space.shaped(action),
                reward=reward,
                terminated=terminated,
                done=terminated | truncated,
                final_observation=info["final_observation"],
            )
            row = Row(steps=transition, h=world.h, z=world.z.argmax(-1))
            world = parts.forget(world._replace(action=model.vector(action)), transition.done)
            state = state.replace(env_state=env_state, observation=observation, memory=world)
            return state, row

        return parts.scan(step, state, noise)

    def replayed(state, windows, number):
        """The World after the first record, and the Records (sequence_length + 1, batch_size)."""
        index, taken = buffer.draw(state.replay, windows).index, state.taken
        if config.online_queue:  # detail 4
            steps = (number + 1) * config.train_every
            index, taken = parts.fresh_windows(buffer, steps, index, taken)
        rows = state.replay.transitions
        records = parts.records(buffer, rows.steps, index)  # detail 2
        z = jax.nn.one_hot(rows.z[index], config.classes)
        action = model.vector(records.action, 2)
        return World(rows.h[index].astype(jnp.float32), z, action[0]), records, action, taken

    def gradient_step(state, draws, number, done, ready):
        """Learns the world model from a batch of sequences, and actor and critic in it."""
        world, records, action, taken = replayed(state, draws.windows, number)
        old = state.policy.params
        (_, (metrics, worlds, returns)), grads = jax.value_and_grad(loss, has_aux=True)(
            old, state, world, records, action, jax.random.key(draws.seed)
        )
        rate = config.learning_rate * warm_up(done, config.warmup_steps)
        updates, opt_state = optimizer(rate).update(grads, state.opt_state, old)
        params = optax.apply_updates(old, updates)
        metrics |= {"grad_norm": parts.global_norm(grads), "current_learning_rate": rate}
        move = lambda slow, new: slow + config.tau * (new - slow)  # detail 12
        # detail 3: the last record of an episode has no row of its own
        rows, where = state.replay.transitions, ready & ~records.last[1:]
        new = worlds.h, worlds.z.argmax(-1)
        h, z = parts.write_back((rows.h, rows.z), records.row[1:], new, where)
        state = state.replace(
            policy=state.policy.replace(params=params),
            slow_params=jax.tree.map(move, state.slow_params, params["params"]["critic"]),
            return_range=returns,
            opt_state=opt_state,
            replay=state.replay.replace(transitions=rows._replace(h=h, z=z)),
            taken=taken,
        )
        return state, metrics

    def loss(params, state, world, records, action, rng):
        """The sum of all losses; metrics, the posterior's Worlds and the percentiles of returns."""
        noise_rng, imagine_rng = jax.random.split(rng)
        learned = jax.tree.map(lambda x: x[1:], records)
        noise = jax.random.uniform(noise_rng, (*learned.reward.shape, config.latents))
        worlds, posterior = model.posteriors(params, world, learned, action[:-1], noise)
        losses, metrics = model.world_losses(params, worlds, posterior, learned)
        starts = jax.tree.map(lambda x: stop(x).reshape(-1, *x.shape[2:]), worlds)  # detail 11
        imagined = stop(model.imagined(stop(params), starts, imagine_rng))
        of_behaviour, more, of_returns, returns = model.behaviour_losses(
            params, state.slow_params, state.return_range, *imagined
        )
        bootstrap = returns[0].reshape(learned.reward.shape)
        losses |= of_behaviour
        losses["replay_value"] = model.replay_value_loss(
            params, state.slow_params, feature_vector(worlds), learned, bootstrap
        )
        weight = lambda name: getattr(config, f"{name}_coef", None)
        total = sum(weights.get(name, weight(name)) * x for name, x in losses.items())
        metrics |= more | {f"{name}_loss": x for name, x in losses.items()}
        return total, (metrics, worlds, of_returns)

    return parts.Learner(init, update, make_policy(config, env, env_params), rounds.steps)


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
