"""Soft actor-critic for discrete actions. A whole run, replay included, is one XLA program.

Paper: Christodoulou 2019, https://arxiv.org/abs/1910.07207, with the temperature of Haarnoja et al.
2018, https://arxiv.org/abs/1812.05905.

    python algorithms/sac_discrete.py --env CartPole-v1 --seed 0
    python algorithms/sac_discrete.py --env Acrobot-v1 --num-seeds 5

    train = make_train(Config(env="Acrobot-v1"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 8))

Implementation details:
  1 A round is `train_every` steps of each environment, then `updates_per_step` gradient steps. The
    replay ratio is updates_per_step / (num_envs * train_every).
  2 Critics give the values of all actions. Expectations over the policy's actions are sums, so no
    loss draws an action.
  3 `num_critics` critics are one vmapped network; targets and the actor take their minimum.
  4 Critics, actor and temperature step at once, from the same parameters, as one vector for Adam.
  5 The temperature is exp of a parameter. The target entropy is a share of the largest entropy, the
    log of the number of allowed actions. The paper's 0.98 is a nearly uniform policy. The initial
    temperature is small: where rewards are costs, a larger one rewards never ending the episode.
  6 Forbidden actions have no probability, in acting, in expectations and in entropies.
  7 A transition leads to the observation before any restart. The target bootstraps from it, also
    where a time limit cut the episode, but not where the episode terminated.
  8 With n_step above 1, targets leave out the entropy of the intermediate steps.
  9 Before `learning_starts`, actions are uniform.
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
    "title": "Soft actor-critic for discrete actions",
    "use": "research on entropy with discrete actions; DQN solves more of the tables' seeds",
    "paper": "[Christodoulou 2019](https://arxiv.org/abs/1910.07207)",
    "family": "actor-critics",
    "actions": "discrete",
    "masks": True,
    "agents": "one",
    "memory": False,
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
    learning_rate: float = real(3e-4, "[0, inf)")  # Adam's step size
    anneal_lr: bool = static(False)  # take the learning rate linearly to zero
    adam_eps: float = real(1e-8, "(0, inf)")  # Adam's epsilon
    weight_decay: float = real(0.0, "[0, inf)")  # AdamW's weight decay, as in SimBa; 0: plain Adam
    gamma: float = real(0.99, "[0, 1]")  # discount factor
    n_step: int = static(3)  # steps of reward before bootstrapping
    reward_scale: float = real(0.1, "(0, inf)")  # factor on rewards for learning
    tau: float = real(0.02, "[0, 1]")  # share that the target critics move at a gradient step
    num_critics: int = static(2)  # critics; their minimum counts
    initial_temperature: float = real(3e-3, "(0, inf)")  # initial weight of the entropy
    learn_temperature: bool = static(True)  # keep the entropy at its target
    target_entropy: float = real(0.2, "[0, 1]")  # target entropy as a share of the largest one
    network: str = static("mlp")  # mlp, or simba: a residual block for each of the sizes below
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers of the actor
    critic_hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers of each critic
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
    """Observations (batch, ...) to logits (batch, num_actions)."""

    config: Config
    num_actions: int

    @nn.compact
    def __call__(self, x):
        x = torso(self.config, self.config.hidden_sizes)(x)
        init = parts.orthogonal(0.01)
        return parts.Dense(self.num_actions, kernel_init=init, name="action_head")(x)


class Critic(nn.Module):
    """Observations (batch, ...) to values (batch, num_actions)."""

    config: Config
    num_actions: int

    @nn.compact
    def __call__(self, x):
        x = torso(self.config, self.config.critic_hidden_sizes)(x)
        init = parts.orthogonal(1.0)
        return parts.Dense(self.num_actions, kernel_init=init, name="value_head")(x)


# --- data types -------------------------------------------------------------------------------


@struct.dataclass
class PolicyState:
    """The part of the state that acting needs."""

    params: Any
    obs_stats: parts.RunningStatistics


class Params(NamedTuple):
    """All parameters that learn."""

    actor: Any
    critics: Any  # leading axis num_critics
    log_temperature: jax.Array  # ()


@struct.dataclass
class TrainState:
    """Everything that a run needs to continue."""

    policy: PolicyState
    critic_params: Any  # leading axis num_critics
    target_params: Any
    log_temperature: jax.Array  # ()
    opt_state: optax.OptState
    replay: parts.Replay
    env_state: Any  # of `envs.batch`
    observation: jax.Array  # (num_envs, ...)
    episodes: Any  # of `envs.batch`
    rng: jax.Array
    eval_rng: jax.Array  # constant: all evaluations use it
    update: jax.Array  # updates so far, int32


class Noise(NamedTuple):
    """Random numbers for the acting in a round."""

    step_rng: jax.Array  # (train_every,)
    exploration: jax.Array  # Gumbel, (train_every, num_envs, num_actions)


# --- formulas ---------------------------------------------------------------------------------


def allowed(logits, mask):  # detail 6
    """Logits (batch, num_actions); -1e9 for forbidden actions, whose probability is then 0."""
    return logits if mask is None else jnp.where(mask, logits, -1e9)


def entropy_of(log_probs):
    """H = -sum_a pi(a) log pi(a), (batch,), of log-probabilities (batch, num_actions)."""
    return -(jnp.exp(log_probs) * log_probs).sum(-1)


def largest_entropy(log_probs, mask):
    """log(number of allowed actions), (batch,): the entropy of a uniform policy."""
    number = log_probs.shape[-1] if mask is None else mask.sum(-1)
    return jnp.log(jnp.broadcast_to(number, log_probs.shape[:-1]).astype(jnp.float32))


# --- acting and training ----------------------------------------------------------------------


@parts.with_environment
def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None, mask=None) -> action, memory.

    The policy is for one environment. Without rng it takes the most probable action, with rng a
    sample. mask (num_actions,): `env.action_mask`, the allowed actions.
    """
    network = Actor(config, env.action_space(env_params).n)

    def policy(state, observation, memory=None, rng=None, mask=None):
        x = state.policy.obs_stats.as_input(config, observation)[None]
        logits = allowed(network.apply(state.policy.params, x)[0], mask)
        noise = 0.0 if rng is None else jax.random.gumbel(rng, logits.shape)
        return jnp.argmax(logits + noise), memory

    return policy


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    parts.check(INFO, config, env, env_params, "num_critics", replay=True)


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.

    Raises:
      ValueError: a setting that cannot work, a space that it cannot take, or a buffer larger than
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
    num_actions = env.action_space(env_params).n
    actor, critic = Actor(config, num_actions), Critic(config, num_actions)
    critics = jax.vmap(critic.apply, (0, None))  # values (num_critics, batch, num_actions)
    adam = parts.on_one_vector(optax.scale_by_adam(eps=config.adam_eps))
    decay = optax.add_decayed_weights(
        config.weight_decay, mask=Params(actor=True, critics=True, log_temperature=False)
    )
    optimizer = lambda rate: optax.chain(adam, decay, optax.scale(-rate))

    def init(rng):
        rng, actor_rng, critic_rng, reset_rng, eval_rng = jax.random.split(rng, 5)
        observation, env_state = environments.reset(reset_rng, env_params)
        x = observation.astype(jnp.float32)
        start = lambda rng: critic.init(rng, x)
        params = Params(
            actor=actor.init(actor_rng, x),
            critics=jax.vmap(start)(jax.random.split(critic_rng, config.num_critics)),
            log_temperature=jnp.log(config.initial_temperature),
        )
        obs_stats = parts.RunningStatistics.create(observation.shape[1:])
        return TrainState(
            policy=PolicyState(params.actor, obs_stats),
            critic_params=params.critics,
            target_params=params.critics,
            log_temperature=params.log_temperature,
            opt_state=optimizer(0.0).init(params),
            replay=buffer.create(env, env_params),
            env_state=env_state,
            observation=observation,
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
            exploration=jax.random.gumbel(explore_rng, (*rounds.acting, num_actions)),
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
            mask = environments.action_mask(state.env_state, env_params)
            logits = jnp.where(warm_up, 0.0, actor.apply(state.policy.params, x))  # detail 9
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
                final_observation=info["final_observation"],  # detail 7
                action_mask=mask,
                final_action_mask=info.get("final_action_mask"),
            )
            return state.replace(env_state=env_state, observation=observation), transition

        return parts.scan(step, state, (noise.step_rng, noise.exploration))

    def log_probs_of(params, x, mask):
        return nn.log_softmax(allowed(actor.apply(params, x), mask))

    def targets(state, window):
        """y = reward_scale R_n + gamma**n E_pi[min_k Q'_k(s_n, a) - alpha log pi(a|s_n)],
        (batch_size,); E_pi = sum_a pi(a|s_n), R_n is the n-step return."""
        x = state.policy.obs_stats.as_input(config, window.final_observation)
        log_probs = log_probs_of(state.policy.params, x, window.final_action_mask)
        # details 3 and 8
        values = critics(state.target_params, x).min(0) - jnp.exp(state.log_temperature) * log_probs
        returns = config.reward_scale * window.returns
        return returns + window.discount * (jnp.exp(log_probs) * values).sum(-1)  # detail 2

    def critic_loss(params, x, action, target):
        """Sum over k of the mean of (Q_k(s, a) - y)**2; min_k Q_k (batch_size, num_actions)."""
        values = critics(params, x)  # (num_critics, batch, num_actions)
        chosen = jnp.einsum("cba,ba->cb", values, jax.nn.one_hot(action, num_actions))
        return jnp.square(chosen - target).mean(1).sum(), values.min(0)  # detail 3

    def actor_loss(params, x, mask, values, temperature):
        """The mean of sum_a pi(a|s) (alpha log pi(a|s) - min_k Q_k(s, a)); log pi(.|s)."""
        log_probs = log_probs_of(params, x, mask)
        return (jnp.exp(log_probs) * (temperature * log_probs - values)).sum(-1).mean(), log_probs

    def temperature_loss(log_temperature, entropy, log_probs, mask):  # detail 5
        """alpha (H - target): its gradient step raises alpha where the entropy H is too small."""
        if not config.learn_temperature:
            return jnp.zeros(())
        target = config.target_entropy * largest_entropy(log_probs, mask)
        return jnp.exp(log_temperature) * (entropy - target).mean()

    def gradient_step(state, draws, progress):
        """Learns from a batch of windows; all three losses see the parameters before it."""
        draw = buffer.draw(state.replay, draws)
        window = buffer.windows(state.replay.transitions, draw.index, config.gamma)
        x = state.policy.obs_stats.as_input(config, window.observation)
        mask = window.action_mask
        temperature = jnp.exp(state.log_temperature)
        (loss, values), of_critics = jax.value_and_grad(critic_loss, has_aux=True)(
            state.critic_params, x, window.action, targets(state, window)
        )
        (loss_of_actor, log_probs), of_actor = jax.value_and_grad(actor_loss, has_aux=True)(
            state.policy.params, x, mask, values, temperature
        )
        entropy = entropy_of(log_probs)
        of_temperature = jax.grad(temperature_loss)(state.log_temperature, entropy, log_probs, mask)
        params = Params(
            actor=state.policy.params,
            critics=state.critic_params,
            log_temperature=state.log_temperature,
        )
        grads = Params(actor=of_actor, critics=of_critics, log_temperature=of_temperature)
        left = jnp.maximum(1.0 - progress, 0.0) if config.anneal_lr else 1.0
        rate = config.learning_rate * left
        # detail 4
        updates, opt_state = optimizer(rate).update(grads, state.opt_state, params)
        params = optax.apply_updates(params, updates)
        metrics = {
            "critic_loss": loss,
            "actor_loss": loss_of_actor,
            "mean_value": (jnp.exp(log_probs) * values).sum(-1).mean(),
            "entropy": entropy.mean(),
            "temperature": temperature,
            "grad_norm": parts.global_norm(grads),
            "current_learning_rate": rate,
        }
        move = lambda old, new: old + config.tau * (new - old)
        state = state.replace(
            policy=state.policy.replace(params=params.actor),
            critic_params=params.critics,
            target_params=jax.tree.map(move, state.target_params, params.critics),
            log_temperature=params.log_temperature,
            opt_state=opt_state,
        )
        return state, metrics

    policy = make_policy(config, env, env_params)
    return parts.Learner(init, update, policy, rounds.steps)


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
