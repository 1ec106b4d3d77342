"""Soft actor-critic for discrete actions, replay included, a run in one XLA program.

Paper: Christodoulou 2019, https://arxiv.org/abs/1910.07207, with the temperature of Haarnoja et al.
2018, https://arxiv.org/abs/1812.05905.

    python algorithms/sac_discrete.py --env CartPole-v1 --seed 0
    python algorithms/sac_discrete.py --env Acrobot-v1 --num-seeds 5

    train = make_train(Config(env="Acrobot-v1"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 8))

Implementation details:
  1 Several environments act at once. A round is `train_every` steps of each, then
    `updates_per_step` gradient steps: the replay ratio is updates_per_step over
    num_envs * train_every.
  2 Critics give the values of all actions, and expectations over the policy's actions are sums:
    no loss draws an action.
  3 `num_critics` critics are one vmapped network; targets and the actor take their minimum.
  4 Critics, actor and temperature take their gradient steps at once, from the same parameters,
    as one vector for Adam.
  5 The temperature is exp of a parameter. The target of the entropy is a share of the largest there
    is, log of the number of actions allowed; the paper's 0.98 is a nearly uniform policy. The first
    temperature is small: where rewards are costs, one above them pays for never coming to an end.
  6 Forbidden actions have no probability, in acting, in expectations and in entropies.
  7 A transition leads to the observation before any restart: where an episode was cut by its time
    limit the target bootstraps from there, and only a terminated one has no future.
  8 With n_step above 1 the entropy of the steps between is left out.
  9 Observations in the buffer keep the environment's dtype, or take `buffer_dtype`: bool undoes
    gymnax's cast of MinAtar's bits.
 10 Before `learning_starts` actions are uniform, and gradient steps are computed and thrown away: a
    branch on a counter would select between two copies of the buffer under vmap.
"""

import functools
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


@struct.dataclass
class Config:
    env: str = static("CartPole-v1")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # its settings, name=value,...
    total_timesteps: int = static(500_000)  # environment steps of the whole run
    num_envs: int = static(16)  # parallel environments
    train_every: int = static(1)  # steps of each environment between two rounds of learning
    updates_per_step: int = static(1)  # gradient steps in a round of learning
    buffer_size: int = static(50_000)  # transitions kept, of all environments together
    buffer_dtype: str = static("")  # of the observations in it, such as bool; "": as they come
    batch_size: int = static(128)  # transitions in a gradient step
    learning_starts: int = static(10_000)  # environment steps before the first gradient step
    learning_rate: float = real(3e-4, "[0, inf)")  # Adam's step size
    anneal_lr: bool = static(False)  # take the learning rate linearly to zero
    adam_eps: float = real(1e-8, "(0, inf)")  # Adam's epsilon
    weight_decay: float = real(0.0, "[0, inf)")  # of AdamW, as SimBa has it; 0: plain Adam
    gamma: float = real(0.99, "[0, 1]")  # discount factor
    n_step: int = static(3)  # rewards in a target before it bootstraps
    reward_scale: float = real(0.1, "(0, inf)")  # factor on the rewards learned from
    tau: float = real(0.02, "[0, 1]")  # share that the target critics move at a gradient step
    num_critics: int = static(2)  # whose minimum counts
    initial_temperature: float = real(3e-3, "(0, inf)")  # weight of the entropy at first
    learn_temperature: bool = static(True)  # keep the entropy at its target
    target_entropy: float = real(0.2, "[0, 1]")  # as a share of the largest
    network: str = static("mlp")  # mlp, or simba: a residual block for each of the sizes below
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers of the actor
    critic_hidden_sizes: tuple[int, ...] = static((64, 64))  # and of each critic
    activation: str = static("relu")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # before them, for images: none, small, nature or impala
    normalize_obs: bool = static(False)  # by their running mean and variance
    clip_obs: float = real(10.0, "(0, inf]")  # normalised observations are kept within +- this
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # episodes of the evaluation at each point; 0: none
    eval_at_start: bool = static(True)  # a point before training, too


# --- network ----------------------------------------------------------------------------------


def torso(config, sizes):
    return parts.Torso(sizes, config.activation, config.conv_layers, config.network)


class Actor(nn.Module):
    """Observations (batch, ...) to logits (batch, num_actions)."""

    config: Config
    num_actions: int

    @nn.compact
    def __call__(self, x):
        x = torso(self.config, self.config.hidden_sizes)(x)
        return nn.Dense(self.num_actions, name="action_head")(x)


class Critic(nn.Module):
    """Observations (batch, ...) to values (batch, num_actions)."""

    config: Config
    num_actions: int

    @nn.compact
    def __call__(self, x):
        x = torso(self.config, self.config.critic_hidden_sizes)(x)
        return nn.Dense(self.num_actions, name="value_head")(x)


# --- data types -------------------------------------------------------------------------------


@struct.dataclass
class PolicyState:
    """What acting needs."""

    params: Any
    obs_stats: parts.RunningStatistics


class Params(NamedTuple):
    """What learns."""

    actor: Any
    critics: Any  # leading axis num_critics
    log_temperature: jax.Array  # ()


@struct.dataclass
class TrainState:
    """Everything that a run needs to go on."""

    policy: PolicyState
    critic_params: Any  # leading axis num_critics
    target_params: Any
    log_temperature: jax.Array  # ()
    opt_state: optax.OptState
    replay: parts.Replay
    env_state: envs.BatchState
    observation: jax.Array  # (num_envs, ...)
    episodes: parts.EpisodeStatistics
    rng: jax.Array
    eval_rng: jax.Array  # the same at every evaluation
    update: jax.Array  # stretches of rounds so far, int32


class Noise(NamedTuple):
    """Random numbers of a round's acting."""

    step_rng: jax.Array  # (train_every,)
    exploration: jax.Array  # Gumbel, (train_every, num_envs, num_actions)


DTYPES = ("", "bool", "int8", "float16", "bfloat16", "float32")
STRETCH = 16  # steps of an environment for which random numbers are drawn at once


# --- formulas ---------------------------------------------------------------------------------


def allowed(logits, mask):
    """Logits (batch, num_actions), of forbidden actions so low that they have no probability."""
    return logits if mask is None else jnp.where(mask, logits, -1e9)


def entropy_of(log_probs):
    """Entropies (batch,) of log-probabilities (batch, num_actions)."""
    return -(jnp.exp(log_probs) * log_probs).sum(-1)


def largest_entropy(log_probs, mask):
    """Of all policies that take allowed actions, (batch,)."""
    number = log_probs.shape[-1] if mask is None else mask.sum(-1)
    return jnp.log(jnp.broadcast_to(number, log_probs.shape[:-1]).astype(jnp.float32))


# --- acting and training ----------------------------------------------------------------------


@parts.without_x64
def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None, mask=None) -> action, memory.

    For one environment. The likeliest action without rng, a sample with it. mask (num_actions,):
    what `env.action_mask` allows.
    """
    env, env_params = parts.world(config, env, env_params)
    network = Actor(config, env.action_space(env_params).n)

    def policy(state, observation, memory=None, rng=None, mask=None):
        x = normalize(config, state.policy, observation)[None]
        logits = allowed(network.apply(state.policy.params, x)[0], mask)
        noise = 0.0 if rng is None else jax.random.gumbel(rng, logits.shape)
        return jnp.argmax(logits + noise), memory

    return policy


def normalize(config, policy, x):
    """Observations as the networks see them."""
    if config.normalize_obs:
        return policy.obs_stats.normalize(x, config.clip_obs)
    return parts.scaled(x)


def make_buffer(config: Config) -> parts.ReplayBuffer:
    sizes = config.buffer_size, config.num_envs, config.train_every, config.n_step
    return parts.ReplayBuffer(*sizes, dtype=config.buffer_dtype)


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and what would do."""
    positive = ("total_timesteps", "num_envs", "train_every", "updates_per_step", "buffer_size")
    positive += ("batch_size", "n_step", "num_critics", "num_evals")
    parts.check_sizes(config, positive, ("learning_starts", "num_eval_episodes"))
    parts.check_network(config, "hidden_sizes", "critic_hidden_sizes")
    parts.check_choices(config, buffer_dtype=DTYPES)
    parts.check_spaces("sac_discrete", config, env, env_params, masks=True)
    parts.check_replay(config, make_buffer(config), env, env_params)
    parts.num_updates(config, config.num_envs * config.train_every)


@parts.without_x64
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` says what it takes; without env and env_params they are those of the config.

    Raises:
      ValueError: a setting that cannot work, a space that it cannot take, or a buffer larger than
        the device's memory.
    """
    env, env_params = parts.world(config, env, env_params)
    check(config, env, env_params)
    return parts.program(learner, config, env, env_params)


def learner(config: Config, env: Any, env_params: Any) -> parts.Learner:
    """How a run begins, and an update: a stretch of rounds of acting and learning."""
    num_envs, num_steps = config.num_envs, config.train_every
    rounds = max(1, STRETCH // num_steps)  # in an update
    update_size = rounds * num_steps * num_envs
    num_rounds = parts.num_updates(config, update_size) * rounds  # of the whole run
    environments = envs.batch(env, num_envs, rounds * num_steps)
    num_actions = env.action_space(env_params).n
    actor, critic = Actor(config, num_actions), Critic(config, num_actions)
    critics = jax.vmap(critic.apply, (0, None))  # values (num_critics, batch, num_actions)
    buffer = make_buffer(config)
    waits = max(config.learning_starts, buffer.waiting + 1)  # there is a whole window
    waiting_rounds = -(-waits // (num_envs * num_steps)) - 1
    optimizer = parts.FlatOptimizer(optax.scale_by_adam(eps=config.adam_eps))

    def init(rng):
        rng, actor_rng, critic_rng, reset_rng, eval_rng = jax.random.split(rng, 5)
        observation, env_state = environments.reset(reset_rng, env_params)
        x = observation.astype(jnp.float32)
        start = lambda rng: parts.orthogonal(critic, rng, x, value_head=1.0)
        params = Params(
            actor=parts.orthogonal(actor, actor_rng, x, action_head=0.01),
            critics=jax.vmap(start)(jax.random.split(critic_rng, config.num_critics)),
            log_temperature=jnp.log(config.initial_temperature),
        )
        obs_stats = parts.RunningStatistics.create(observation.shape[1:])
        return TrainState(
            policy=PolicyState(params.actor, obs_stats),
            critic_params=params.critics,
            target_params=params.critics,
            log_temperature=params.log_temperature,
            opt_state=optimizer.init(params),
            replay=buffer.create(env, env_params),
            env_state=env_state,
            observation=observation,
            episodes=parts.EpisodeStatistics.create(num_envs),
            rng=rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def act(state, ready, noise):
        """Steps of every environment."""

        def step(state, inputs):
            step_rng, noise = inputs
            x = normalize(config, state.policy, state.observation)
            mask = environments.action_mask(state.env_state, env_params)
            logits = jnp.where(ready, actor.apply(state.policy.params, x), 0.0)
            action = jnp.argmax(allowed(logits, mask) + noise, -1)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, state.env_state, action, env_params
            )
            transition = parts.Transition(
                observation=state.observation,
                action=action,
                reward=reward,
                terminated=terminated,
                done=terminated | truncated,
                final_observation=info["final_observation"],
                action_mask=mask,
                final_action_mask=info.get("final_action_mask"),
            )
            return state.replace(env_state=env_state, observation=observation), transition

        return jax.lax.scan(step, state, (noise.step_rng, noise.exploration))

    def log_probs_of(params, x, mask):
        return nn.log_softmax(allowed(actor.apply(params, x), mask))

    def loss(params, state, window):
        """Of all three; stopped gradients leave to each its own part."""
        x = normalize(config, state.policy, window.observation)
        next_x = normalize(config, state.policy, window.final_observation)
        temperature = jnp.exp(params.log_temperature)
        fixed = jax.lax.stop_gradient(temperature)
        next_log_probs = log_probs_of(state.policy.params, next_x, window.final_action_mask)
        next_values = critics(state.target_params, next_x).min(0) - fixed * next_log_probs
        target = config.reward_scale * window.returns
        target += window.discount * (jnp.exp(next_log_probs) * next_values).sum(-1)
        values = critics(params.critics, x)  # (num_critics, batch, num_actions)
        chosen = jnp.einsum("cba,ba->cb", values, jax.nn.one_hot(window.action, num_actions))
        critic_loss = jnp.square(chosen - target).mean(1).sum()
        log_probs = log_probs_of(params.actor, x, window.action_mask)
        own = jax.lax.stop_gradient(values.min(0))
        actor_loss = (jnp.exp(log_probs) * (fixed * log_probs - own)).sum(-1).mean()
        entropy = entropy_of(log_probs)
        wanted = config.target_entropy * largest_entropy(log_probs, window.action_mask)
        surplus = jax.lax.stop_gradient(entropy - wanted).mean()
        metrics = {
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "mean_value": (jnp.exp(log_probs) * own).sum(-1).mean(),
            "entropy": entropy.mean(),
            "temperature": temperature,
        }
        temperature_loss = temperature * surplus * config.learn_temperature
        return critic_loss + actor_loss + temperature_loss, metrics

    def gradient_step(state, draws, progress, ready):
        """From a batch of windows. It leaves no trace before there is enough to learn from."""
        draw = buffer.draw(state.replay, draws)
        window = buffer.windows(state.replay.transitions, draw.index, config.gamma)
        params = Params(state.policy.params, state.critic_params, state.log_temperature)
        grads, metrics = jax.grad(loss, has_aux=True)(params, state, window)
        left = jnp.maximum(1.0 - progress, 0.0) if config.anneal_lr else 1.0
        decay = Params(actor=config.weight_decay, critics=config.weight_decay, log_temperature=0.0)
        params, opt_state, metrics["grad_norm"] = optimizer.step(
            params, state.opt_state, grads, config.learning_rate * left, decay
        )
        move = lambda old, new: old + config.tau * (new - old)
        changes = {
            "policy": state.policy.replace(params=params.actor),
            "critic_params": params.critics,
            "target_params": jax.tree.map(move, state.target_params, params.critics),
            "log_temperature": params.log_temperature,
            "opt_state": opt_state,
        }
        keep = lambda new, old: jax.tree.map(lambda n, o: jnp.where(ready, n, o), new, old)
        state = state.replace(**{n: keep(new, getattr(state, n)) for n, new in changes.items()})
        return state, {n: parts.Average(keep(x, 0.0), ready) for n, x in metrics.items()}

    def round_(state, inputs, draws):
        """Acting, then learning."""
        number, first, noise = inputs
        progress, ready = number / float(num_rounds), number >= waiting_rounds
        state, rollout = act(state, ready, noise)
        state = state.replace(replay=buffer.add(state.replay, rollout))
        if config.normalize_obs:
            obs_stats = state.policy.obs_stats.update(rollout.observation)
            state = state.replace(policy=state.policy.replace(obs_stats=obs_stats))
        learn = functools.partial(gradient_step, progress=progress, ready=ready)
        state, metrics = parts.scan_rows(learn, state, draws, first, config.updates_per_step)
        return state, (metrics, rollout.reward, rollout.done)

    def update(state):
        """Rounds, whose random numbers are drawn all at once: that costs far less."""
        rng, start_rng, step_rng, explore_rng, draw_rng = jax.random.split(state.rng, 5)
        noise = Noise(
            jax.random.split(step_rng, (rounds, num_steps)),
            jax.random.gumbel(explore_rng, (rounds, num_steps, num_envs, num_actions)),
        )
        steps = rounds * config.updates_per_step
        draws = buffer.noise(draw_rng, (steps, config.batch_size))
        env_state = environments.refill(start_rng, state.env_state, env_params)
        state = state.replace(env_state=env_state, rng=rng)
        number = jnp.arange(rounds)
        inputs = state.update * rounds + number, number * config.updates_per_step, noise
        learn = functools.partial(round_, draws=draws)
        state, (metrics, reward, done) = jax.lax.scan(learn, state, inputs)
        flat = lambda x: x.reshape(rounds * num_steps, num_envs)
        state = state.replace(
            episodes=state.episodes.update(flat(reward), flat(done)), update=state.update + 1
        )
        return state, jax.tree.map(jnp.sum, metrics)

    policy = make_policy(config, env, env_params)
    return parts.Learner(init, update, policy, update_size)


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
