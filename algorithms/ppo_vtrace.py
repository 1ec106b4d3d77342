"""PPO on segments drawn by priority, with V-trace advantages. A whole run is one XLA program.

It follows the trainer of PufferLib (Suarez 2024, https://arxiv.org/abs/2406.12905), for one agent
or many. Papers: PPO (Schulman et al. 2017, https://arxiv.org/abs/1707.06347), V-trace (Espeholt et
al. 2018, https://arxiv.org/abs/1802.01561), prioritised sampling (Schaul et al. 2016,
https://arxiv.org/abs/1511.05952), Muon (Jordan 2024, https://kellerjordan.github.io/posts/muon).

    python algorithms/ppo_vtrace.py --env CartPole-v1 --seed 0
    python algorithms/ppo_vtrace.py --preset MultiNavigator-v0 --num-seeds 5

    train = make_train(Config(env="CartPole-v1"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 16))

A *segment* is one agent of one environment over a whole rollout. Implementation details:
  1 Every gradient step draws segments without replacement, with probabilities proportional to (sum
    of |advantage| over the segment) ** priority_alpha. Some segments may never be drawn.
  2 (number of segments * probability) ** -beta weighs advantages in the policy loss, after they are
    standardised over the minibatch. beta goes from priority_beta to 1 over the run.
  3 The loss's own forward pass gives ratios, values and V-trace advantages of the drawn segments,
    and then their priorities. So a second draw of a segment accounts for the policy's change.
  4 One network serves all agents.
  5 Muon steps the matrices and Adam the rest, with a cosine schedule. A small epsilon makes full
    steps along the noise of small gradients, and loses perfect policies (docs/tuning.md).
  6 Squashed actions are tanh of a Gaussian, stored before the tanh. Their entropy is a numerical
    sum.
  7 Episodes restart within a rollout; a truncated one bootstraps from its final observation.
  8 The policy does not learn from steps of agents that left (`info["alive"]`), or from padding
    (`env.action_dimensions`). An agent's own rewards end with it. A team's reward
    (`env.shared_reward`) ends with the episode, and values learn from these steps too.
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
    "title": "PPO with V-trace on segments drawn by priority, as in PufferLib",
    "use": "as PPO, for one agent or a team that shares a network; PufferLib's trainer",
    "paper": "[Suarez 2024](https://arxiv.org/abs/2406.12905), "
    "[Espeholt et al. 2018](https://arxiv.org/abs/1802.01561)",
    "family": "policy gradients",
    "actions": ("discrete", "continuous"),
    "masks": False,
    "agents": "one or several",
    "memory": False,
}


@struct.dataclass
class Config:
    env: str = static("CartPole-v1")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # env settings, name=value,...
    total_timesteps: int = static(500_000)  # environment steps of the whole run
    num_envs: int = static(8)  # parallel environments
    num_steps: int = static(128)  # steps of each environment in a rollout
    num_minibatches: int = static(4)  # minibatches of an epoch; together a rollout
    update_epochs: int = static(4)  # mean number of draws of each sample
    accumulate: int = static(1)  # minibatches whose gradients are averaged for a step
    optimizer: str = static("muon")  # muon or adam
    learning_rate: float = real(4e-3, "[0, inf)")  # step size
    anneal_lr: bool = static(True)  # take the learning rate to its floor along a cosine
    lr_floor: float = real(0.0, "[0, 1]")  # share of the learning rate at the last step
    lr_exponent: float = real(1.0, "[0, inf)")  # exponent of the cosine; above 1: falls sooner
    adam_eps: float = real(3e-4, "(0, inf)")  # epsilon of Adam and Muon
    muon_momentum: float = real(0.8, "[0, 1)")  # decay of Muon's mean of gradients
    gamma: float = real(0.99, "[0, 1]")  # discount factor
    gae_lambda: float = real(0.95, "[0, 1]")  # decay of the advantage trace
    vtrace: bool = static(True)  # correct advantages for a changed policy
    rho_clip: float = real(1.0, "(0, inf]")  # largest weight of a TD error; inf: no limit
    c_clip: float = real(1.0, "(0, inf]")  # largest ratio in the trace; inf: no limit
    priority_alpha: float = real(0.8, "[0, inf)")  # exponent of priorities; 0: uniform
    priority_beta: float = real(0.2, "[0, 1]")  # initial exponent of importance weights
    anneal_beta: bool = static(True)  # take priority_beta to 1 over the run
    clip_eps: float = real(0.2, "(0, inf]")  # range of the ratio, and of values with clip_vloss
    clip_vloss: bool = static(False)  # clip the value loss
    normalize_advantage: bool = static(True)  # standardise advantages in each minibatch
    ent_coef: float = real(0.01, "[0, inf)")  # weight of the entropy bonus
    vf_coef: float = real(0.5, "[0, inf)")  # weight of the value loss
    max_grad_norm: float = real(0.5, "(0, inf]")  # clip gradients to this global norm; inf: never
    reward_trace: float = real(0.0, "[0, 1]")  # decay of the later rewards added to a reward
    squash: bool = static(False)  # bound continuous actions by tanh, not by clipping
    sigma_head: bool = static(False)  # standard deviations depend on the observation
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers of each tower
    activation: str = static("tanh")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    shared_torso: bool = static(False)  # one tower for actor and critic
    normalize_obs: bool = static(True)  # normalise observations by running mean and variance
    normalize_reward: bool = static(True)  # divide rewards by the std of discounted returns
    clip_obs: float = real(10.0, "(0, inf]")  # clip normalised observations to +- this
    clip_reward: float = real(10.0, "(0, inf]")  # clip normalised rewards to +- this
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------


def clip_straight_through(log_std):
    """clip(log_std, -5, 2) with gradient 1: with jnp.clip's, 0 outside, none would return."""
    fixed = jax.lax.stop_gradient(log_std)
    return jnp.clip(fixed, -5.0, 2.0) + (log_std - fixed)


class ActorCritic(nn.Module):
    """Observations (batch, ...) to distributions of actions, and to values (batch,)."""

    config: Config
    space: parts.ActionSpace  # of one agent

    def setup(self):
        config, size = self.config, self.space.size
        make_torso = lambda: parts.Torso(config.hidden_sizes, config.activation, config.conv_layers)
        self.actor_torso = make_torso()
        self.critic_torso = self.actor_torso if config.shared_torso else make_torso()
        self.actor_head = parts.Dense(size, kernel_init=parts.orthogonal(0.01))
        self.critic_head = parts.Dense(1, kernel_init=parts.orthogonal(1.0))
        # It has no parameters if it is not called.
        self.sigma_head = parts.Dense(size, kernel_init=parts.orthogonal(0.01))
        if not (self.space.discrete or self.config.sigma_head):
            self.log_std = self.param("log_std", nn.initializers.zeros, (size,))

    def actor(self, x):
        features = self.actor_torso(x)
        output = self.actor_head(features)
        if self.space.discrete:
            return parts.Categorical(output)
        log_std = self.sigma_head(features) if self.config.sigma_head else self.log_std
        log_std = jnp.broadcast_to(clip_straight_through(log_std), output.shape)
        return parts.Gaussian(output, log_std)

    def critic(self, x):
        return self.critic_head(self.critic_torso(x))[..., 0]

    def __call__(self, x):
        return self.actor(x), self.critic(x)


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
    observation: jax.Array  # (num_segments, ...)
    alive: jax.Array  # (num_segments,)
    episodes: Any  # of `envs.batch`
    reward_scale: parts.RewardScale
    rollout_rng: jax.Array  # key for acting and the environments
    draw_rng: jax.Array  # for drawing segments
    eval_rng: jax.Array  # constant: all evaluations use it
    update: jax.Array  # rollouts learned from so far, int32


class Transition(NamedTuple):
    """A rollout; leading axes (num_steps, num_segments), an environment's agents side by side."""

    observation: jax.Array
    action: jax.Array  # neither clipped nor squashed
    reward: jax.Array
    alive: jax.Array  # whether the agent acted; a float32 weight
    valued: jax.Array  # whether its value is learned; a float32 weight
    terminated: jax.Array  # the episode ended, or this agent left
    done: jax.Array  # terminated or truncated
    final_observation: jax.Array  # after the action, before any restart
    ended: jax.Array  # (num_steps, num_envs), the episode


class Segments(NamedTuple):
    """Segments to learn from; leading axes (num_segments, num_steps), or those of a minibatch."""

    observation: jax.Array  # normalised
    action: jax.Array
    log_prob: jax.Array  # under the acting policy
    value: jax.Array  # from the rollout
    bootstrap: jax.Array  # the value of the final observation; 0 if terminated
    reward: jax.Array
    ends: jax.Array  # where traces end: at done, and at the last step
    alive: jax.Array
    valued: jax.Array
    real: jax.Array  # False for padding of actions, (num_segments, 1, dimensions)


class Learned(NamedTuple):
    """The carry of the gradient steps."""

    params: Any
    opt_state: optax.OptState
    sizes: jax.Array  # sums of absolute advantages, (num_segments,)


# --- formulas ---------------------------------------------------------------------------------


def summed_back(x, decays):
    """y_t = x_t + decay_t y_{t+1} along the leading axis, with y = 0 after the last step."""

    def step(later, inputs):
        now, decay = inputs
        now = now + decay * later
        return now, now

    return parts.scan(step, jnp.zeros_like(x[0]), (x, decays), reverse=True)[1]


def vtrace(config, segments, values, log_ratio):
    """A_t = rho_t (r_t + gamma V_{t+1} - V_t) + gamma lambda c_t (1 - end_t) A_{t+1}.

    This follows section 4.1 of Espeholt et al. 2018; arrays are (segments, num_steps). At an end,
    V_{t+1} is the bootstrap value. rho_t = min(q_t, rho_clip), c_t = min(q_t, c_clip), with ratios
    q = exp(log_ratio). Without `vtrace` both are 1: GAE. Values and ratios are of current networks.
    """
    next_values = jnp.where(segments.ends, segments.bootstrap, jnp.roll(values, -1, axis=1))
    ratios, rho, c = jnp.exp(log_ratio), 1.0, 1.0
    if config.vtrace:
        rho, c = jnp.minimum(ratios, config.rho_clip), jnp.minimum(ratios, config.c_clip)
    deltas = rho * (segments.reward + config.gamma * next_values - values)
    decays = config.gamma * config.gae_lambda * c * (1.0 - segments.ends)
    return summed_back(deltas.T, decays.T).T


def draw(config, sizes, noise, progress, shape):
    """Indices of segments, and importance weights (N P_i) ** -beta, both in this shape.

    P_i = size_i**alpha / sum_j size_j**alpha (equation 1 and section 3.4 of Schaul et al. 2016).
    sizes (num_segments,) are sums of |advantage|. The largest log P_i + Gumbel noise are a draw
    without replacement (Kool et al. 2019, https://arxiv.org/abs/1903.06059).
    """
    alpha = jnp.minimum(config.priority_alpha, 1e30)  # keeps the product with a logarithm finite
    log_probs = jax.nn.log_softmax(alpha * jnp.log(jnp.maximum(sizes, 1e-8)))
    done = jnp.minimum(progress, 1.0) if config.anneal_beta else 0.0
    beta = config.priority_beta + (1.0 - config.priority_beta) * done
    indices = jax.lax.top_k(log_probs + noise, math.prod(shape))[1].reshape(shape)
    exponents = -beta * (math.log(len(sizes)) + log_probs[indices])
    return indices, jnp.exp(jnp.minimum(exponents, 30.0))  # 1e13: squared gradients stay finite


def annealed_rate(config, progress):
    """learning_rate (f + (1 - f) ((1 + cos(pi progress)) / 2) ** lr_exponent), f = lr_floor, with
    progress 0 at the first gradient step and 1 at the last. Without `anneal_lr` learning_rate."""
    if not config.anneal_lr:
        return jnp.asarray(config.learning_rate)
    wave = 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(progress, 1.0)))
    left = config.lr_floor + (1.0 - config.lr_floor) * wave**config.lr_exponent
    return config.learning_rate * left


def clipped_surrogate(log_ratio, advantages, clip_eps):
    """-min(q A, clip(q, 1 - eps, 1 + eps) A), q = exp(log_ratio), elementwise: the terms of
    equation 7 of Schulman et al. 2017, negated."""
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip_eps, 1.0 + clip_eps)
    return -jnp.minimum(ratio * advantages, clipped * advantages)


def value_error(values, old_values, targets, clip_eps, clip):
    """(V - y)**2 / 2, elementwise; with `clip` max((V - y)**2, (V_c - y)**2) / 2, where
    V_c = V_old + clip(V - V_old, -eps, eps)."""
    error = jnp.square(values - targets)
    if clip:
        kept = old_values + jnp.clip(values - old_values, -clip_eps, clip_eps)
        error = jnp.maximum(error, jnp.square(kept - targets))
    return 0.5 * error


def squashing_entropy(mean, log_std):
    """E[log(1 - tanh(x)**2)] of Gaussians x (...): squashing adds it to their entropies. The sum
    over 21 points is off by 1e-4 for deviations up to 2, and by 0.06 at e**2."""
    points = jnp.linspace(-5.0, 5.0, 21)
    weights = jax.nn.softmax(-0.5 * jnp.square(points))
    x = mean[..., None] + jnp.exp(log_std)[..., None] * points
    return (parts.log_tanh_slope(x) * weights).sum(-1)


def log_prob_and_entropy(config, actions, action, real):
    """log pi(a) and entropy (...) of actions before squashing, over real dimensions."""
    if isinstance(actions, parts.Gaussian):
        actions = actions.replace(mask=real)
    log_prob, entropy = actions.log_prob(action), actions.entropy()
    if config.squash:
        log_prob -= (parts.log_tanh_slope(action) * real).sum(-1)
        entropy += (squashing_entropy(actions.mean, actions.log_std) * real).sum(-1)  # detail 6
    return log_prob, entropy


# --- acting and training ----------------------------------------------------------------------


@parts.with_environment
def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None, mask=None) -> action, memory.

    For one environment; of several agents, observation and action are (num_agents, ...). Without
    rng the most probable action, or the (squashed) mean; with rng a sample. `mask` is not used.
    """
    space = parts.ActionSpace(env.action_space(env_params))
    several = hasattr(env, "num_agents")
    network = ActorCritic(config, space)

    def policy(state, observation, memory=None, rng=None, mask=None):
        x = observation if several else observation[None]
        x = state.policy.obs_stats.as_input(config, x)
        actions = network.apply(state.policy.params, x, method="actor")
        action = actions.mode() if rng is None else actions.sample(seed=rng)
        action = to_space(config, space, action)
        return action if several else action[0], memory

    return policy


def to_space(config, space, action):
    """Actions (...) or (..., dimensions), clipped or squashed into the environment's space."""
    if not config.squash:
        return space.clip(action)
    return space.rescale(jnp.tanh(action))


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    sizes = ("num_steps", "num_minibatches", "update_epochs", "accumulate")
    words = {"optimizer": ("muon", "adam")}
    parts.check(INFO, config, env, env_params, *sizes, unit_std=not config.squash, words=words)
    segments, number = config.num_envs * getattr(env, "num_agents", 1), config.num_minibatches
    drawn = config.update_epochs * number
    what = f"the {segments} segments of a rollout (environments times agents)"
    parts.check_divides("num_minibatches", number, what, segments)
    if drawn % config.accumulate or config.accumulate > number:
        fits = [d for d in range(1, number + 1) if drawn % d == 0]
        raise ValueError(
            f"accumulate={config.accumulate} does not divide the {drawn} minibatches drawn from a "
            f"rollout, or exceeds num_minibatches={number}; {', '.join(map(str, fits))} would do"
        )
    parts.check_samples(config, segments * config.num_steps)
    actions = env.action_space(env_params)
    width = jnp.asarray(getattr(actions, "high", jnp.inf) - getattr(actions, "low", 0.0))
    if config.squash and not isinstance(width, jax.core.Tracer) and not jnp.isfinite(width).all():
        raise ValueError(f"squash=True needs continuous, bounded actions: {env.name} has {actions}")


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.

    Raises:
      ValueError: a setting that cannot work, or a space that the algorithm cannot take.
    """
    check(config, env, env_params)
    return parts.program(learner, config, env, env_params)


def learner(config: Config, env: Any, env_params: Any) -> parts.Learner:
    """The first state, an update (collects a rollout and learns from it), and the policy."""
    agents = (env.num_agents,) if hasattr(env, "num_agents") else ()
    lanes, num_agents = (config.num_envs, *agents), math.prod(agents)
    num_segments, batch_size = math.prod(lanes), config.num_envs * config.num_steps
    gradient_steps = config.update_epochs * config.num_minibatches // config.accumulate
    total_steps = parts.num_updates(config, batch_size) * gradient_steps
    environments = envs.batch(env, config.num_envs, config.num_steps)
    space = parts.ActionSpace(env.action_space(env_params))
    network, team = ActorCritic(config, space), parts.earns_after_leaving(env)  # detail 4
    real = getattr(env, "action_dimensions", jnp.ones((num_agents, space.size), bool))
    real = jnp.tile(real, (config.num_envs, 1))[:, None]
    clip = parts.on_one_vector(optax.clip_by_global_norm(config.max_grad_norm))
    scale = parts.on_one_vector(optax.scale_by_adam(eps=config.adam_eps))
    if config.optimizer == "muon":
        scale = parts.scale_by_muon(config.muon_momentum, config.adam_eps)  # detail 5
    descend = lambda rate: parts.on_one_vector(optax.scale(-rate))
    optimizer = lambda rate: optax.chain(clip, scale, descend(rate))
    fold = lambda x: x.reshape(num_segments, *x.shape[len(lanes) :])  # environments and agents
    of_agents = lambda flag: jnp.repeat(flag, num_agents)  # (num_envs,) to (num_segments,)

    def over_segments(params, x, method=None):  # x is (segments, num_steps, ...)
        output = network.apply(params, x.reshape(-1, *x.shape[2:]), method=method)
        return jax.tree.map(lambda y: y.reshape(*x.shape[:2], *y.shape[1:]), output)

    def init(rng):
        draw_rng, network_rng, reset_rng, rollout_rng, eval_rng = jax.random.split(rng, 5)
        observation, env_state = environments.reset(reset_rng, env_params)
        x = fold(observation).astype(jnp.float32)
        params = network.init(network_rng, x)
        return TrainState(
            policy=PolicyState(params, parts.RunningStatistics.create(x.shape[1:])),
            opt_state=optimizer(0.0).init(params),
            env_state=env_state,
            observation=fold(observation),
            alive=jnp.ones(num_segments, bool),
            episodes=environments.episodes(agents),
            reward_scale=parts.RewardScale.create(num_segments),
            rollout_rng=rollout_rng,
            draw_rng=draw_rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state):
        """Collects a rollout and learns from it."""
        state, rollout = collect(state)
        state, metrics = learn(state, prepare(state, rollout))
        state = update_statistics(state, rollout)
        return state.replace(update=state.update + 1), metrics | {"score": rollout.reward.mean()}

    def collect(state):
        """Collects a rollout. `prepare` computes values and log_probs, for all steps at once."""
        rng, start_rng, step_rng, noise_rng = jax.random.split(state.rollout_rng, 4)
        noise = space.noise(noise_rng, (config.num_steps, num_segments))

        def step(state, inputs):
            step_rng, noise = inputs
            x = state.policy.obs_stats.as_input(config, state.observation)
            actions = network.apply(state.policy.params, x, method="actor")
            action = space.sample(actions, noise, step_rng)
            taken = to_space(config, space, action)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, state.env_state, taken.reshape(*lanes, *taken.shape[1:]), env_params
            )
            ended = terminated | truncated
            alive, weight = fold(info.get("alive", jnp.ones(lanes, bool))), 1.0 * state.alive
            left = jnp.zeros_like(alive) if team else ~alive  # detail 8: a team's return goes on
            transition = Transition(
                observation=state.observation,
                action=action,
                reward=fold(reward),
                alive=weight,
                valued=jnp.ones_like(weight) if team else weight,
                terminated=of_agents(terminated) | left,
                done=of_agents(ended) | left,
                final_observation=fold(info["final_observation"]),  # detail 7
                ended=ended,
            )
            state = state.replace(env_state=env_state, observation=fold(observation))
            return state.replace(alive=alive | of_agents(ended)), transition  # restarts revive all

        env_state = environments.refill(start_rng, state.env_state, env_params)  # new start states
        state = state.replace(env_state=env_state, rollout_rng=rng)
        return parts.scan(step, state, (jax.random.split(step_rng, config.num_steps), noise))

    def prepare(state, rollout):
        """Segments, with values and log_probs of the networks that acted."""
        rollout = jax.tree.map(lambda x: x.swapaxes(0, 1), rollout)
        x = state.policy.obs_stats.as_input(config, rollout.observation)
        final_x = state.policy.obs_stats.as_input(config, rollout.final_observation)
        params = state.policy.params
        actions, values = over_segments(params, x)
        bootstrap = over_segments(params, final_x, method="critic") * (1.0 - rollout.terminated)
        log_prob, _ = log_prob_and_entropy(config, actions, rollout.action, real)
        ends = rollout.done.at[:, -1].set(True)
        reward = rollout.reward
        if config.normalize_reward:
            reward = state.reward_scale.scale(reward, config.clip_reward)
        decays = config.reward_trace * (1.0 - ends)
        reward = summed_back(reward.T, decays.T).T
        return Segments(
            observation=x,
            action=rollout.action,
            log_prob=log_prob,
            value=values,
            bootstrap=bootstrap,
            reward=reward,
            ends=ends,
            alive=rollout.alive,
            valued=rollout.valued,
            real=real,
        )

    def loss(params, segments, importance):
        """Loss of segments (m, num_steps), importance (m,); metrics; sums of |advantage| (m,)."""
        actions, values = over_segments(params, segments.observation)
        weights, real = segments.alive, segments.real
        log_prob, entropy = log_prob_and_entropy(config, actions, segments.action, real)
        log_ratio = log_prob - segments.log_prob
        decided = jnp.where(weights, log_ratio, 0.0)  # an agent that has left decides nothing
        fixed = jax.lax.stop_gradient((values, decided))
        corrected = advantages = vtrace(config, segments, *fixed)  # detail 3
        if config.normalize_advantage:
            centred = corrected - parts.mean(corrected, weights)
            advantages = centred / (jnp.sqrt(parts.mean(jnp.square(centred), weights)) + 1e-8)
        # detail 2
        surrogate = clipped_surrogate(log_ratio, advantages * importance[:, None], config.clip_eps)
        targets = corrected + fixed[0]
        error = value_error(values, segments.value, targets, config.clip_eps, config.clip_vloss)
        kl = jnp.expm1(log_ratio) - log_ratio  # k3 of http://joschu.net/blog/kl-approx.html
        clipped = jnp.abs(jnp.expm1(log_ratio)) > config.clip_eps
        terms = {"policy_loss": surrogate, "entropy": entropy, "approx_kl": kl}
        terms |= {"clip_fraction": clipped, "mean_ratio": jnp.exp(log_ratio)}
        terms["importance"] = jnp.broadcast_to(importance[:, None], weights.shape)
        metrics = {name: parts.mean(x, weights) for name, x in terms.items()}
        metrics["value_loss"] = value_loss = parts.mean(error, segments.valued)
        policy_loss = metrics["policy_loss"] - config.ent_coef * metrics["entropy"]
        metrics["loss"] = policy_loss + config.vf_coef * value_loss
        if isinstance(actions, parts.Gaussian):
            metrics["policy_std"] = parts.mean(jnp.exp(actions.log_std), weights[..., None] * real)
        return metrics["loss"], (metrics, (jnp.abs(corrected) * segments.valued).sum(1))

    def learn(state, segments):
        """Gradient steps, each on its own draw of segments."""
        rng, draw_rng = jax.random.split(state.draw_rng)
        noise = parts.flat_draw(jax.random.gumbel, draw_rng, (gradient_steps, num_segments))
        steps = state.update.astype(jnp.float32) * gradient_steps + jnp.arange(gradient_steps)
        progress = steps / float(max(total_steps - 1, 1))  # total_steps may exceed an int32
        shape = (config.accumulate, num_segments // config.num_minibatches)

        def gradient_step(learned, inputs):
            noise, progress = inputs
            indices, importance = draw(config, learned.sizes, noise, progress, shape)  # detail 1
            samples = jax.tree.map(lambda x: x[indices], segments)
            gradient = lambda inputs: jax.grad(loss, has_aux=True)(learned.params, *inputs)
            grads, (metrics, sizes) = jax.lax.map(gradient, (samples, importance))
            # Which minibatches have samples, (accumulate,). Without any, momentum must not step.
            living, valued = (x.any((1, 2)) for x in (samples.alive, samples.valued))
            some, count = valued.any(), jnp.maximum(valued.sum(), 1)
            grads = jax.tree.map(lambda x: x.sum(0) / count, grads)
            rate, old = annealed_rate(config, progress), (learned.params, learned.opt_state)
            updates, moved = optimizer(rate).update(grads, learned.opt_state, learned.params)
            new = optax.apply_updates(learned.params, updates), moved
            params, opt_state = jax.tree.map(lambda x, y: jnp.where(some, x, y), new, old)
            sizes = learned.sizes.at[indices].set(sizes)
            learned = Learned(params=params, opt_state=opt_state, sizes=sizes)
            there = {"loss": valued, "value_loss": valued}
            metrics = {n: parts.Average(x, there.get(n, living)) for n, x in metrics.items()}
            metrics["grad_norm"] = parts.Average(parts.global_norm(grads), some)
            return learned, metrics | {"current_learning_rate": rate}

        values, valued = segments.value, segments.valued
        advantages = vtrace(config, segments, values, jnp.zeros_like(values))
        start = Learned(
            params=state.policy.params,
            opt_state=state.opt_state,
            sizes=(jnp.abs(advantages) * valued).sum(1),
        )
        learned, metrics = parts.scan(gradient_step, start, (noise, progress))
        metrics = jax.tree.map(jnp.mean, metrics)
        metrics["mean_value"] = parts.Average(parts.mean(values, valued), valued.any())
        targets = advantages + values
        metrics["explained_variance"] = parts.explained_variance(values, targets, valued)
        policy = state.policy.replace(params=learned.params)
        return state.replace(policy=policy, opt_state=learned.opt_state, draw_rng=rng), metrics

    def update_statistics(state, rollout):
        """Merges the rollout into the statistics, after learning from it."""
        episodes = state.episodes.update(rollout.reward.reshape(-1, *lanes), rollout.ended)
        state = state.replace(episodes=episodes)
        if config.normalize_obs:
            obs_stats = state.policy.obs_stats.update(rollout.observation, rollout.alive)
            state = state.replace(policy=state.policy.replace(obs_stats=obs_stats))
        if config.normalize_reward:
            arrays = rollout.reward, rollout.done, config.gamma, rollout.valued
            state = state.replace(reward_scale=state.reward_scale.update(*arrays))
        return state

    return parts.Learner(init, update, make_policy(config, env, env_params), batch_size)


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
