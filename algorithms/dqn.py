"""Deep Q-learning. A whole run, replay included, is one XLA program.

Paper: Mnih et al. 2015, https://doi.org/10.1038/nature14236. By flag: double Q-learning (van
Hasselt et al. 2016, https://arxiv.org/abs/1509.06461), duelling networks (Wang et al. 2016,
https://arxiv.org/abs/1511.06581), n-step returns and prioritised replay (Schaul et al. 2016,
https://arxiv.org/abs/1511.05952), which Rainbow combines (Hessel et al. 2018,
https://arxiv.org/abs/1710.02298).

    python algorithms/dqn.py --env CartPole-v1 --seed 0
    python algorithms/dqn.py --preset MountainCar-v0 --num-seeds 5

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
    tau=1 copies it (Mnih et al.); target_every=1 with a small tau is Polyak averaging.
  6 Huber loss, linear beyond `huber_delta`; inf makes it the squared error.
  7 Each duelling stream has its own last hidden layer, and advantages are centred on their mean.
  8 Priorities are (|TD error| + priority_eps) ** priority_alpha. New transitions get the largest
    so far. Importance weights are divided by the batch's largest, and beta goes linearly to 1.
  9 Orthogonal initialisation; Adam with a large epsilon (docs/tuning.md); clipping by global norm.
 10 With a finite `duration_exponent`, random actions last several steps (Dabney et al. 2021,
    https://arxiv.org/abs/2006.01782). New random actions at every step never get MountainCar out of
    its valley. A held action ends with the episode, or where it is not allowed.
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
    "title": "Deep Q-learning (DQN); by flag double, duelling, n-step, prioritised replay",
    "use": "first choice for discrete actions where steps are expensive",
    "paper": "[Mnih et al. 2015](https://doi.org/10.1038/nature14236)",
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
    train_every: int = static(1)  # steps of each environment between two rounds of learning
    updates_per_step: int = static(1)  # gradient steps in a round of learning
    buffer_size: int = static(50_000)  # transitions kept, over all environments
    buffer_dtype: str = static("")  # dtype of stored observations, such as bool; "": unchanged
    batch_size: int = static(128)  # transitions in a gradient step
    learning_starts: int = static(10_000)  # environment steps before the first gradient step
    learning_rate: float = real(1e-3, "[0, inf)")  # Adam's step size
    anneal_lr: bool = static(True)  # take the learning rate linearly to zero
    adam_eps: float = real(1e-3, "(0, inf)")  # Adam's epsilon
    gamma: float = real(0.995, "[0, 1]")  # discount factor
    n_step: int = static(3)  # steps of reward before bootstrapping
    reward_scale: float = real(1.0, "(0, inf)")  # factor on rewards for learning
    double: bool = static(True)  # the online network chooses the action of the target
    dueling: bool = static(False)  # separate streams for values and advantages
    huber_delta: float = real(math.inf, "(0, inf]")  # larger errors count linearly; inf: never
    target_every: int = static(50)  # gradient steps between two moves of the target network
    tau: float = real(1.0, "[0, 1]")  # share that the target network moves; 1: a copy
    exploration: str = static("linear")  # epsilon over time: constant, linear or exponential
    eps_start: float = real(1.0, "[0, 1]")  # initial epsilon
    eps_end: float = real(0.2, "[0, 1]")  # final epsilon; the only one if constant
    exploration_fraction: float = real(0.2, "(0, inf]")  # share of the run until epsilon is eps_end
    duration_exponent: float = real(math.inf, "(1, inf]")  # length of random actions; inf: one step
    prioritized: bool = static(False)  # draw windows by their last TD error
    priority_alpha: float = real(0.6, "[0, inf)")  # exponent of priorities; 0: uniform
    priority_beta: float = real(0.4, "[0, 1]")  # initial exponent of importance weights; ends at 1
    priority_eps: float = real(1e-3, "[0, inf)")  # added to errors, so that no priority is 0
    max_grad_norm: float = real(1.0, "(0, inf]")  # clip gradients to this global norm; inf: never
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers
    activation: str = static("relu")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    compute_dtype: str = static("float32")  # dtype of hidden layers: float32 or bfloat16
    normalize_obs: bool = static(False)  # normalise observations by running mean and variance
    clip_obs: float = real(10.0, "(0, inf]")  # clip normalised observations to +- this
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------


class QNetwork(nn.Module):
    """Observations (batch, ...) to action values (batch, num_actions)."""

    config: Config
    num_actions: int

    @nn.compact
    def __call__(self, x):
        config, init = self.config, parts.orthogonal(1.0)
        layers = lambda *sizes: parts.Torso(
            sizes, config.activation, config.conv_layers, dtype=config.compute_dtype
        )
        if not self.config.dueling:
            features = layers(*self.config.hidden_sizes)(x)
            return parts.Dense(self.num_actions, kernel_init=init, name="action_head")(features)
        *shared, last = self.config.hidden_sizes  # detail 7
        x = layers(*shared)(x)
        value = parts.Dense(1, kernel_init=init, name="value_head")(layers(last)(x))
        x = layers(last)(x)
        advantages = parts.Dense(self.num_actions, kernel_init=init, name="action_head")(x)
        return dueling_values(value, advantages)


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


EXPLORATION = ("constant", "linear", "exponential")
LONGEST = 10_000  # longest random action, in steps


# --- formulas ---------------------------------------------------------------------------------


def dueling_values(value, advantages):
    """Q(s, a) = V(s) + A(s, a) - mean_b A(s, b), (batch, num_actions): equation 9 of Wang et al."""
    return value + advantages - advantages.mean(-1, keepdims=True)


def greedy(values, mask=None):
    """Actions (batch,) of the largest values (batch, num_actions) that the mask allows."""
    return jnp.argmax(values if mask is None else jnp.where(mask, values, -jnp.inf), -1)


def of_action(values, action):
    """Values (batch,) of actions (batch,) out of values (batch, num_actions)."""
    return (values * jax.nn.one_hot(action, values.shape[-1])).sum(-1)


def huber(error, delta):  # detail 6
    """e**2 / 2 where |e| <= delta, else delta (|e| - delta / 2), elementwise; delta may be inf."""
    kept = jnp.clip(error, -delta, delta)
    return kept * (error - 0.5 * kept)


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


def importance_weights(probabilities, size, beta):
    """w_i = (size P_i) ** -beta / max_j (size P_j) ** -beta, section 3.4 of Schaul et al. 2016."""
    weights = (size * probabilities) ** -beta
    return weights / weights.max()


# --- acting and training ----------------------------------------------------------------------


@parts.with_environment
def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None, mask=None) -> action, memory.

    For one environment. Without rng the action of the highest value; with rng it is epsilon-greedy
    at eps_end, anew at every step. mask (num_actions,): `env.action_mask`, the allowed actions.
    """
    network = QNetwork(config, env.action_space(env_params).n)

    def policy(state, observation, memory=None, rng=None, mask=None):
        x = state.policy.obs_stats.as_input(config, observation)[None]
        values, mask = network.apply(state.policy.params, x), None if mask is None else mask[None]
        noise = jnp.full(1, jnp.inf) if rng is None else jax.random.uniform(rng, (1,))
        return epsilon_greedy(values, config.eps_end, noise, mask)[0], memory

    return policy


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    if config.dueling and not config.hidden_sizes:
        raise ValueError("dueling=True splits the last of hidden_sizes=(): give one or more")
    words = {"exploration": EXPLORATION}
    parts.check(INFO, config, env, env_params, "target_every", replay=True, words=words)


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.

    Raises:
      ValueError: a setting that cannot work, a space that DQN cannot take, or too large a buffer.
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
    network = QNetwork(config, env.action_space(env_params).n)
    clip = optax.clip_by_global_norm(config.max_grad_norm)  # detail 9
    adam = optax.scale_by_adam(eps=config.adam_eps)
    optimizer = lambda rate: parts.on_one_vector(optax.chain(clip, adam, optax.scale(-rate)))

    def init(rng):
        rng, network_rng, reset_rng, eval_rng = jax.random.split(rng, 4)
        observation, env_state = environments.reset(reset_rng, env_params)
        x = observation.astype(jnp.float32)
        params = network.init(network_rng, x)
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
        rng, start_rng, step_rng, explore_rng, draw_rng = jax.random.split(state.rng, 5)
        uniform = parts.flat_draw(jax.random.uniform, explore_rng, (2, *rounds.acting))
        exploration, duration = uniform
        noise = Noise(
            step_rng=jax.random.split(step_rng, rounds.acting[:2]),
            exploration=exploration,
            duration=durations(duration, config.duration_exponent),
        )
        draws = buffer.noise(draw_rng, (rounds.gradient_steps, config.batch_size))
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
            new, metrics = gradient_step(old, draws, progress, ready)
            return parts.keep_if(ready, new, old), metrics

        state, metrics = rounds.repeat(learn, state, now, ready)
        return state, metrics | {"epsilon": epsilon}, rollout

    def act(state, epsilon, noise):
        """`train_every` steps of every environment."""

        def step(state, noise):
            x = state.policy.obs_stats.as_input(config, state.observation)
            values = network.apply(state.policy.params, x)
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

    def targets(state, window):
        """y = reward_scale R_n + gamma**n Q'(s_n, a*), (batch_size,), with the n-step return R_n.

        Q' is the target network. a* = argmax_a Q'(s_n, a), or with `double` argmax_a Q(s_n, a).
        """
        x = state.policy.obs_stats.as_input(config, window.final_observation)
        next_values = network.apply(state.target_params, x)
        selecting = network.apply(state.policy.params, x) if config.double else next_values
        best = greedy(selecting, window.final_action_mask)
        return config.reward_scale * window.returns + window.discount * of_action(next_values, best)

    def loss(params, policy, window, target, weights):
        """Mean of w huber(y - Q(s, a)) with importance weights w; TD errors |y - Q|; metrics."""
        x = policy.obs_stats.as_input(config, window.observation)
        values = network.apply(params, x)
        errors = target - of_action(values, window.action)
        total, error = (weights * huber(errors, config.huber_delta)).mean(), jnp.abs(errors)
        best = of_action(values, greedy(values, window.action_mask))
        metrics = {"loss": total, "td_error": error.mean(), "mean_value": best.mean()}
        return total, (error, metrics)

    def gradient_step(state, draws, progress, ready):
        """Learns from a batch of windows."""
        draw = buffer.draw(state.replay, draws)
        weights = jnp.ones(config.batch_size)
        if config.prioritized:
            # detail 8
            beta = config.priority_beta + progress * (1.0 - config.priority_beta)
            size = buffer.num_windows(state.replay)
            weights = importance_weights(draw.probability, size, beta)
        window = buffer.windows(state.replay.transitions, draw.index, config.gamma)  # detail 4
        grads, (error, metrics) = jax.grad(loss, has_aux=True)(
            state.policy.params, state.policy, window, targets(state, window), weights
        )
        grads = parts.mean_over_shards(grads)
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
        if config.prioritized:
            priorities = (error + config.priority_eps) ** config.priority_alpha  # detail 8
            replay = buffer.prioritize(state.replay, draw.index, priorities, ready)
            state = state.replace(replay=replay)
        return state, metrics

    policy = make_policy(config, env, env_params)
    return parts.Learner(init, update, policy, rounds.steps)


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
