"""Implicit quantile networks, IQN. A whole run, replay included, is one XLA program.

Paper: Dabney et al. 2018, https://arxiv.org/abs/1806.06923. By flag: double Q-learning (van
Hasselt et al. 2016, https://arxiv.org/abs/1509.06461) and n-step returns.

    python algorithms/iqn.py --env CartPole-v1 --seed 0
    python algorithms/iqn.py --env Acrobot-v1 --num-seeds 5

    train = make_train(Config(env="Acrobot-v1"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 8))

Implementation details:
  1 A round is `train_every` steps of each environment, then `updates_per_step` gradient steps.
  2 A window is `n_step` transitions in a row. Windows are drawn with replacement from the buffer, a
    ring, and never reach past its newest transition.
  3 A transition leads to the observation before any restart. The target bootstraps from it, also
    where a time limit cut the episode, but not where the episode terminated.
  4 n-step returns stop at the end of an episode and bootstrap with gamma ** (steps taken).
  5 Every `target_every` gradient steps the target network moves by `tau` towards the online one.
    tau=1 copies it; target_every=1 with a small tau is Polyak averaging.
  6 With `double`, the online network chooses the action of the target distribution.
  7 The network gives the quantile of the return at any level in [0, 1]. It multiplies the features
    of the observation with an embedding of the level by `num_cosines` cosines. A gradient step
    compares `num_levels` random levels with `num_target_levels` others by the quantile Huber loss.
  8 Actions are chosen by the mean over `num_policy_levels` levels, the middles of equal shares. The
    paper samples them, which is less accurate. `risk` distorts them, also in targets (section 3.2).
  9 Orthogonal initialisation; Adam with a large epsilon (docs/tuning.md); clipping by global norm.
 10 With a finite `duration_exponent`, random actions last several steps (Dabney et al. 2021,
    https://arxiv.org/abs/2006.01782), until the episode ends or they are not allowed.
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
    "title": "Deep Q-learning with implicit quantiles (IQN), and its risk measures",
    "use": "as QR-DQN, and for policies that avoid or seek risk",
    "paper": "[Dabney et al. 2018](https://arxiv.org/abs/1806.06923)",
    "family": "action values",
    "actions": "discrete",
    "masks": True,
    "agents": "one",
    "memory": False,
}

RISKS = ("neutral", "cvar", "wang", "cpw", "power")
RANGES = {"cvar": "[0, 1]", "cpw": "[0, inf)"}  # of risk_level


@struct.dataclass
class Config:
    env: str = static("CartPole-v1")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # env settings, name=value,...
    total_timesteps: int = static(500_000)  # environment steps of the whole run
    num_envs: int = static(16)  # parallel environments
    train_every: int = static(1)  # steps of each environment between two rounds of learning
    updates_per_step: int = static(1)  # gradient steps in a round of learning
    buffer_size: int = static(50_000)  # transitions kept, over all environments
    buffer_dtype: str = static("")  # dtype of stored observations, such as bool; "": unchanged
    batch_size: int = static(128)  # transitions in a gradient step
    learning_starts: int = static(10_000)  # environment steps before the first gradient step
    learning_rate: float = real(1e-3, "[0, inf)")  # Adam's step size
    anneal_lr: bool = static(True)  # take the learning rate linearly to zero
    adam_eps: float = real(1e-4, "(0, inf)")  # Adam's epsilon
    gamma: float = real(0.99, "[0, 1]")  # discount factor
    n_step: int = static(3)  # steps of reward before bootstrapping
    reward_scale: float = real(0.1, "(0, inf)")  # factor on rewards for learning
    double: bool = static(False)  # the online network chooses the action of the target
    num_levels: int = static(4)  # levels of the online quantiles
    num_target_levels: int = static(4)  # levels of the target quantiles
    num_policy_levels: int = static(8)  # levels whose mean is the action value
    num_cosines: int = static(32)  # cosines that embed a level
    kappa: float = real(1.0, "(0, inf)")  # larger errors count linearly
    risk: str = static("neutral")  # distortion of levels: neutral, cvar, wang, cpw or power
    risk_level: float = real(0.0, "(-inf, inf)", risk=RANGES)  # 0: neutral; cvar: the worst share
    target_every: int = static(50)  # gradient steps between two moves of the target network
    tau: float = real(1.0, "[0, 1]")  # share that the target network moves; 1: a copy
    exploration: str = static("linear")  # epsilon over time: constant, linear or exponential
    eps_start: float = real(1.0, "[0, 1]")  # initial epsilon
    eps_end: float = real(0.1, "[0, 1]")  # final epsilon; the only one if constant
    exploration_fraction: float = real(0.2, "(0, inf]")  # share of the run until epsilon is eps_end
    duration_exponent: float = real(math.inf, "(1, inf]")  # length of random actions; inf: one step
    max_grad_norm: float = real(10.0, "(0, inf]")  # clip gradients to this global norm; inf: never
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers
    activation: str = static("relu")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    normalize_obs: bool = static(False)  # normalise observations by running mean and variance
    clip_obs: float = real(10.0, "(0, inf]")  # clip normalised observations to +- this
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------


class ImplicitQuantileNetwork(nn.Module):
    """Observations (batch, ...), levels (batch or 1, num) to values (batch, num, num_actions)."""

    config: Config
    num_actions: int

    @nn.compact
    def __call__(self, x, levels):
        *sizes, last = self.config.hidden_sizes
        x = parts.Torso(tuple(sizes), self.config.activation, self.config.conv_layers)(x)
        # All levels in one axis: with more axes the gradients of kernels take longer on a CPU.
        embedding = parts.cosines(levels.reshape(-1), self.config.num_cosines)  # equation 4
        init = parts.orthogonal(math.sqrt(2))
        embedding = parts.Dense(x.shape[-1], kernel_init=init, name="embedding")(embedding)
        embedding = parts.activation(self.config.activation)(embedding).reshape(*levels.shape, -1)
        x = (x[:, None] * embedding).reshape(-1, x.shape[-1])  # detail 7
        x = parts.Torso((last,), self.config.activation)(x)
        init = parts.orthogonal(1.0)
        quantiles = parts.Dense(self.num_actions, kernel_init=init, name="action_head")(x)
        return quantiles.reshape(-1, levels.shape[1], self.num_actions)


# --- data types -------------------------------------------------------------------------------


@struct.dataclass
class PolicyState:
    """The part of the state that acting needs."""

    params: Any
    obs_stats: parts.RunningStatistics


class Held(NamedTuple):
    """Actions that may last several steps, (num_envs,)."""

    action: jax.Array
    left: jax.Array  # remaining steps of the action, int32


@struct.dataclass
class TrainState:
    """Everything that a run needs to continue."""

    policy: PolicyState
    target_params: Any
    target_age: jax.Array  # gradient steps since the target network moved, int32
    opt_state: optax.OptState
    replay: parts.Replay
    env_state: Any  # of `envs.batch`
    observation: jax.Array  # (num_envs, ...)
    held: Held  # actions that last into the next step
    episodes: Any  # of `envs.batch`
    rng: jax.Array
    eval_rng: jax.Array  # constant: all evaluations use it
    update: jax.Array  # updates so far, int32


class Noise(NamedTuple):
    """Random numbers for the acting in a round."""

    step_rng: jax.Array  # (train_every,)
    exploration: jax.Array  # uniform, (train_every, num_envs)
    duration: jax.Array  # length of a random action that begins here, same shape


class Draws(NamedTuple):
    """Random numbers of a gradient step."""

    windows: jax.Array  # bits, (batch_size,)
    levels: jax.Array  # uniform, (batch_size, num_levels + num_target_levels)


EXPLORATION = ("constant", "linear", "exponential")
LONGEST = 10_000  # longest random action, in steps


# --- formulas ---------------------------------------------------------------------------------


def greedy(values, mask=None):
    """Actions (batch,) of the largest values (batch, num_actions) that the mask allows."""
    return jnp.argmax(values if mask is None else jnp.where(mask, values, -jnp.inf), -1)


def of_action(outputs, action):
    """Columns (batch, num) for actions (batch,) of (batch, num, num_actions)."""
    return jnp.einsum("bna,ba->bn", outputs, jax.nn.one_hot(action, outputs.shape[2]))


def distort(levels, config):
    """Levels t in (0, 1), distorted for a risk-sensitive policy; `risk_level` 0 changes nothing.

    Section 3.2 of Dabney et al. 2018, with l for `risk_level`:
      cvar   l t: only the worst share l of outcomes counts
      wang   Phi(Phi^-1(t) + l); pessimistic below 0
      power  t**p with p = 1 / (1 + |l|), below 0 1 - (1 - t)**p; pessimistic below 0
      cpw    t**l / (t**l + (1 - t)**l)**(1 / l); overrates rare events below 1 (people: 0.71)
    """
    risk = config.risk
    if risk == "neutral":
        return levels
    level = config.risk_level
    if risk in RANGES:  # 1 is neutral
        level = jnp.where(level == 0.0, 1.0, level)
    if risk == "cvar":
        return level * levels
    if risk == "wang":
        normal = jax.scipy.stats.norm
        return normal.cdf(normal.ppf(levels) + level)
    if risk == "cpw":
        some, others = level * jnp.log(levels), level * jnp.log1p(-levels)  # powers would vanish
        return jnp.exp(some - jnp.logaddexp(some, others) / level)
    power = 1.0 / (1.0 + jnp.abs(level))
    return jnp.where(level >= 0.0, levels**power, 1.0 - (1.0 - levels) ** power)


def action_values(config, network, params, x):
    """mean_i q(s, a, distort(tau_i)), tau_i = (i + 1/2) / num_policy_levels, (batch, actions)."""
    number = config.num_policy_levels
    levels = distort((jnp.arange(number) + 0.5) / number, config)  # detail 8
    return network.apply(params, x, levels[None]).mean(1)


def quantile_huber(quantiles, levels, targets, kappa):
    """sum_i mean_j |tau_i - 1{u_ij < 0}| huber(u_ij) / kappa, u_ij = y_j - q_i, (batch,): equation
    3 of Dabney et al. 2018. huber(u) = u**2 / 2 where |u| <= kappa, else kappa (|u| - kappa / 2).

    Quantiles q and their levels tau are (batch, num_quantiles), targets y (batch, num_targets).
    Written-out slopes take a tenth of autodiff's time on a CPU.
    """
    fixed = jax.lax.stop_gradient(quantiles)
    errors = targets[:, :, None] - fixed[:, None]  # (batch, num_targets, num_quantiles)
    kept = jnp.clip(errors, -kappa, kappa)
    weights = jnp.abs(levels[:, None] - (errors < 0.0)) / kappa
    share = jnp.full(targets.shape[1], 1.0 / targets.shape[1])
    mean = lambda x: jnp.einsum("bti,t->bi", x, share)
    losses = mean(weights * kept * (errors - 0.5 * kept))
    slopes = -mean(weights * kept)
    return (losses + slopes * (quantiles - fixed)).sum(-1)  # the slopes are the gradient


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
    """Actions (batch,) for values (batch, num_actions) and uniform noise (batch,).

    With probability epsilon, an action is uniform over those that the mask (batch, num_actions)
    allows. Noise below epsilon is uniform in [0, epsilon), so it also chooses the random action.
    """
    number = values.shape[-1] if mask is None else mask.sum(-1)
    random = jnp.minimum(noise / epsilon * number, number - 1).astype(jnp.int32)
    if mask is not None:  # the index of a random allowed action
        random = jnp.argmax(jnp.cumsum(mask, -1) > random[:, None], -1)
    return jnp.where(noise < epsilon, random, greedy(values, mask))


def durations(noise, exponent):
    """Lengths of random actions in steps: floor(u ** (-1 / (exponent - 1))) for uniform u.

    P(n or more) = n ** (1 - exponent), the tail of the zeta law of Dabney et al. 2021.
    """
    return jnp.minimum(noise ** (-1.0 / (exponent - 1.0)), LONGEST).astype(jnp.int32)


def hold(held, chosen, mask=None):
    """The actions to take: a held one while it lasts and is allowed, else the chosen one."""
    lasts = held.left > 0
    if mask is not None:
        lasts &= (mask * jax.nn.one_hot(held.action, mask.shape[-1])).any(-1)
    return jax.tree.map(lambda old, new: jnp.where(lasts, old, new), held, chosen)


# --- acting and training ----------------------------------------------------------------------


@parts.with_environment
def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None, mask=None) -> action, memory.

    For one environment. Without rng the action of the highest value; with rng it is epsilon-greedy
    at eps_end, anew at every step. mask (num_actions,): `env.action_mask`, the allowed actions.
    """
    network = ImplicitQuantileNetwork(config, env.action_space(env_params).n)

    def policy(state, observation, memory=None, rng=None, mask=None):
        x = state.policy.obs_stats.as_input(config, observation)[None]
        values = action_values(config, network, state.policy.params, x)
        mask = None if mask is None else mask[None]
        noise = jnp.full(1, jnp.inf) if rng is None else jax.random.uniform(rng, (1,))
        return epsilon_greedy(values, config.eps_end, noise, mask)[0], memory

    return policy


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    positive = "target_every", "num_levels", "num_target_levels", "num_policy_levels", "num_cosines"
    if config.num_cosines == 1:
        raise ValueError("num_cosines=1: the first cosine is 1 at every level; give 2 or more")
    if not config.hidden_sizes:
        raise ValueError("hidden_sizes=() leaves no layer that sees the levels: give one or more")
    words = {"exploration": EXPLORATION, "risk": RISKS}
    parts.check(INFO, config, env, env_params, *positive, replay=True, words=words)


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.

    Raises:
      ValueError: a setting that cannot work, a space that IQN cannot take, or too large a buffer.
    """
    check(config, env, env_params)
    return parts.program(learner, config, env, env_params)


def learner(config: Config, env: Any, env_params: Any) -> parts.Learner:
    """The first state, an update (some rounds of acting and learning), and the policy."""
    buffer = parts.ReplayBuffer.of(config)  # detail 2
    rounds = parts.Rounds(config)  # detail 1
    # A round learns once there are `learning_starts` steps and a whole window.
    waiting = rounds.before(max(config.learning_starts, buffer.waiting + 1))
    environments = envs.batch(env, config.num_envs, rounds.num_steps)
    network = ImplicitQuantileNetwork(config, env.action_space(env_params).n)
    clip = optax.clip_by_global_norm(config.max_grad_norm)  # detail 9
    adam = optax.scale_by_adam(eps=config.adam_eps)
    optimizer = lambda rate: parts.on_one_vector(optax.chain(clip, adam, optax.scale(-rate)))

    def init(rng):
        rng, network_rng, reset_rng, eval_rng = jax.random.split(rng, 4)
        observation, env_state = environments.reset(reset_rng, env_params)
        x = observation.astype(jnp.float32)
        params = network.init(network_rng, x, jnp.zeros((1, 1)))
        return TrainState(
            policy=PolicyState(params, parts.RunningStatistics.create(observation.shape[1:])),
            target_params=params,
            target_age=jnp.zeros((), jnp.int32),
            opt_state=optimizer(0.0).init(params),
            replay=buffer.create(env, env_params),
            env_state=env_state,
            observation=observation,
            held=Held(*jnp.zeros((2, config.num_envs), jnp.int32)),
            episodes=environments.episodes(),
            rng=rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state):
        """Runs some rounds. Their random numbers are drawn at once, which costs far less."""
        rng, start_rng, step_rng, explore_rng, draw_rng, level_rng = jax.random.split(state.rng, 6)
        uniform = parts.flat_draw(jax.random.uniform, explore_rng, (2, *rounds.acting))
        exploration, duration = uniform
        noise = Noise(
            step_rng=jax.random.split(step_rng, rounds.acting[:2]),
            exploration=exploration,
            duration=durations(duration, config.duration_exponent),
        )
        steps = rounds.gradient_steps, config.batch_size
        num_levels = config.num_levels + config.num_target_levels
        levels = parts.flat_draw(jax.random.uniform, level_rng, (*steps, num_levels))
        draws = Draws(windows=buffer.noise(draw_rng, steps), levels=levels)
        env_state = environments.refill(start_rng, state.env_state, env_params)  # new start states
        state = state.replace(env_state=env_state, rng=rng)
        return rounds.run(round, state, noise, draws)

    def round(state, noise, now):
        """`train_every` steps of every environment, then `updates_per_step` gradient steps."""
        progress = now.number / float(rounds.total)
        epsilon = epsilon_at(config, progress)
        state, rollout = act(state, epsilon, noise)
        state = state.replace(replay=buffer.add(state.replay, rollout))
        if config.normalize_obs:
            obs_stats = state.policy.obs_stats.update(rollout.observation)
            state = state.replace(policy=state.policy.replace(obs_stats=obs_stats))
        ready = now.number >= waiting

        def learn(old, draws, index):
            new, metrics = gradient_step(old, draws, progress)
            return parts.keep_if(ready, new, old), metrics

        state, metrics = rounds.repeat(learn, state, now, ready)
        return state, metrics | {"epsilon": epsilon}, rollout

    def act(state, epsilon, noise):
        """`train_every` steps of every environment."""

        def step(state, noise):
            x = state.policy.obs_stats.as_input(config, state.observation)
            values = action_values(config, network, state.policy.params, x)
            mask = environments.action_mask(state.env_state, env_params)
            chosen = epsilon_greedy(values, epsilon, noise.exploration, mask)
            steps = jnp.where(noise.exploration < epsilon, noise.duration, 1)
            held = hold(state.held, Held(chosen, steps), mask)  # detail 10
            observation, env_state, reward, terminated, truncated, info = environments.step(
                noise.step_rng, state.env_state, held.action, env_params
            )
            transition = parts.Transition(
                observation=state.observation,
                action=held.action,
                reward=reward,
                terminated=terminated,
                done=terminated | truncated,
                final_observation=info["final_observation"],  # detail 3
                action_mask=mask,
                final_action_mask=info.get("final_action_mask"),
            )
            held = held._replace(left=jnp.where(transition.done, 0, held.left - 1))
            state = state.replace(env_state=env_state, observation=observation, held=held)
            return state, transition

        return parts.scan(step, state, noise)

    def targets(state, window, levels):
        """y = reward_scale R_n + gamma**n q'(s_n, a*, levels), of the levels' shape. q', Q': target
        network. a* = argmax_a Q'(s_n, a), or with `double` argmax_a Q(s_n, a)."""
        x = state.policy.obs_stats.as_input(config, window.final_observation)
        selecting = state.policy.params if config.double else state.target_params  # detail 6
        best = greedy(action_values(config, network, selecting, x), window.final_action_mask)
        next_quantiles = of_action(network.apply(state.target_params, x, levels), best)
        returns = config.reward_scale * window.returns
        return returns[:, None] + window.discount[:, None] * next_quantiles

    def loss(params, policy, window, target, levels):  # detail 7
        """The mean of quantile_huber(q(s, a, levels), levels, y)."""
        x = policy.obs_stats.as_input(config, window.observation)
        quantiles = network.apply(params, x, levels)
        chosen = of_action(quantiles, window.action)
        total = quantile_huber(chosen, levels, target, config.kappa).mean()
        best = of_action(quantiles, greedy(quantiles.mean(1), window.action_mask))
        return total, {"loss": total, "mean_value": best.mean()}

    def gradient_step(state, draws, progress):
        """Learns from a batch of windows."""
        levels, target_levels = jnp.split(draws.levels, [config.num_levels], axis=1)
        index = buffer.draw(state.replay, draws.windows).index
        window = buffer.windows(state.replay.transitions, index, config.gamma)  # detail 4
        grads, metrics = jax.grad(loss, has_aux=True)(
            state.policy.params, state.policy, window, targets(state, window, target_levels), levels
        )
        left = jnp.maximum(1.0 - progress, 0.0) if config.anneal_lr else 1.0
        rate, old = config.learning_rate * left, state.policy.params
        updates, opt_state = optimizer(rate).update(grads, state.opt_state, old)
        params = optax.apply_updates(old, updates)
        metrics |= {"grad_norm": parts.global_norm(grads), "current_learning_rate": rate}
        age = state.target_age + 1
        tau = jnp.where(age == config.target_every, config.tau, 0.0)  # detail 5
        move = lambda old, new: tau * new + (1.0 - tau) * old
        state = state.replace(
            policy=state.policy.replace(params=params),
            target_params=jax.tree.map(move, state.target_params, params),
            target_age=age % config.target_every,
            opt_state=opt_state,
        )
        return state, metrics

    policy = make_policy(config, env, env_params)
    return parts.Learner(init, update, policy, rounds.steps)


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
