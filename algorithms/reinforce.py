"""REINFORCE with a value baseline and lambda-returns. A whole run is one XLA program.

Paper: Williams 1992, https://doi.org/10.1007/BF00992696, with the baseline of Sutton and Barto
2018 (section 13.4) and their lambda-return (equation 12.18), for discrete and continuous actions.

    python algorithms/reinforce.py --env CartPole-v1 --seed 0
    python algorithms/reinforce.py --preset Acrobot-v1 --num-seeds 5

    train = make_train(Config(env="Acrobot-v1"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 16))

Implementation details:
  1 Rollouts come from many environments, and episodes run on across them. The log-probabilities of
    actions are valid for one gradient step only, so every rollout makes exactly one.
  2 The gradient makes actions more probable if their return exceeds the baseline.
  3 Returns bootstrap from the value at the rollout's end, and with gae_lambda below 1 partly at
    every step; 1 gives plain returns. A truncated episode bootstraps from the value of its final
    observation; a terminated one does not.
  4 A flag standardises advantages (returns minus the baseline) over the rollout. The learning rate
    then does not depend on the size of rewards.
  5 Actor and critic are separate, with orthogonal initialisation.
  6 One Adam for both, with clipping by global norm and a learning rate annealed linearly. Its
    epsilon is large. A smaller one takes full steps along small gradients, which are noise
    (docs/tuning.md).
  7 An entropy bonus.
  8 Continuous actions are diagonal Gaussians with a state-independent log std. The environment gets
    the clipped action; log_prob is of the unclipped one.
  9 Running statistics may normalise observations and rewards. They do not change while a rollout is
    collected and learned from.
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
    "title": "REINFORCE with a value baseline and lambda-returns",
    "use": "to learn from, and as a baseline without clipping or replay",
    "paper": "[Williams 1992](https://doi.org/10.1007/BF00992696)",
    "family": "policy gradients",
    "actions": ("discrete", "continuous"),
    "masks": False,
    "agents": "one",
    "memory": False,
}


@struct.dataclass
class Config:
    env: str = static("CartPole-v1")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # env settings, name=value,...
    total_timesteps: int = static(500_000)  # environment steps of the whole run
    num_envs: int = static(8)  # parallel environments
    num_steps: int = static(32)  # steps of each environment in a rollout
    learning_rate: float = real(4e-3, "[0, inf)")  # Adam's step size
    anneal_lr: bool = static(True)  # take the learning rate linearly to zero
    adam_eps: float = real(1e-4, "(0, inf)")  # Adam's epsilon
    gamma: float = real(0.99, "[0, 1]")  # discount factor
    gae_lambda: float = real(0.98, "[0, 1]")  # decay of the lambda-returns; 1: plain returns
    normalize_advantage: bool = static(True)  # standardise returns minus baseline
    ent_coef: float = real(0.01, "[0, inf)")  # weight of the entropy bonus
    vf_coef: float = real(0.5, "[0, inf)")  # weight of the value loss
    max_grad_norm: float = real(0.5, "(0, inf]")  # clip gradients to this global norm; inf: never
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers of each tower
    activation: str = static("tanh")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    normalize_obs: bool = static(False)  # normalise observations by running mean and variance
    normalize_reward: bool = static(True)  # divide rewards by the std of discounted returns
    clip_obs: float = real(10.0, "(0, inf]")  # clip normalised observations to +- this
    clip_reward: float = real(10.0, "(0, inf]")  # clip normalised rewards to +- this
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------


class ActorCritic(nn.Module):
    """Observations (batch, ...) to distributions of actions, and to values (batch,)."""

    config: Config
    space: parts.ActionSpace

    def setup(self):
        config, size = self.config, self.space.size
        make_torso = lambda: parts.Torso(config.hidden_sizes, config.activation, config.conv_layers)
        self.actor_torso, self.critic_torso = make_torso(), make_torso()  # detail 5
        self.actor_head = parts.Dense(size, kernel_init=parts.orthogonal(0.01))
        self.critic_head = parts.Dense(1, kernel_init=parts.orthogonal(1.0))
        if not self.space.discrete:
            self.log_std = self.param("log_std", nn.initializers.zeros, (size,))  # detail 8

    def actor(self, x):
        output = self.actor_head(self.actor_torso(x))
        if self.space.discrete:
            return parts.Categorical(output)
        return parts.Gaussian(output, self.log_std)

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
    observation: jax.Array  # (num_envs, ...)
    episodes: Any  # of `envs.batch`
    reward_scale: parts.RewardScale
    rollout_rng: jax.Array  # key for acting and the environments
    eval_rng: jax.Array  # constant: all evaluations use it
    update: jax.Array  # rollouts learned from so far, int32


class Transition(NamedTuple):
    """A rollout; leading axes (num_steps, num_envs)."""

    observation: jax.Array
    action: jax.Array  # unclipped
    reward: jax.Array
    terminated: jax.Array
    done: jax.Array  # terminated or truncated
    final_observation: jax.Array  # after the action, before any restart


class Batch(NamedTuple):
    """Samples to learn from; leading axis num_steps * num_envs."""

    observation: jax.Array  # normalised
    action: jax.Array
    target: jax.Array  # lambda-returns


# --- formulas ---------------------------------------------------------------------------------


def lambda_returns(rewards, next_values, terminated, done, gamma, gae_lambda):
    """G_t = r_t + gamma ((1 - lambda) V(s'_t) + lambda G_{t+1}): equation 12.18, Sutton and Barto.

    All arrays are (num_steps, num_envs). `next_values` are V(s'_t) of the observations after the
    actions, before any restart, and count 0 where `terminated`. V(s'_t) replaces G_{t+1} at `done`,
    also when truncated, and at the rollout's end.
    """
    follows = (1.0 - jnp.asarray(done)).at[-1].set(0.0)
    bootstrap = (1.0 - gae_lambda * follows) * (1.0 - terminated) * next_values

    def step(later, inputs):
        now, decay = inputs
        target = now + decay * later
        return target, target

    inputs = rewards + gamma * bootstrap, gamma * gae_lambda * follows
    return parts.scan(step, jnp.zeros_like(rewards[0]), inputs, reverse=True)[1]


def policy_gradient_loss(log_prob, advantages):
    """-mean(log pi(a|s) A), all (batch,): its gradient is minus that of the expected return."""
    return -(log_prob * advantages).mean()


def annealed_rate(config, num_updates, update):
    """learning_rate (1 - update / num_updates), ()."""
    left = jnp.maximum(1.0 - update.astype(jnp.float32) / num_updates, 0.0)
    return config.learning_rate * (left if config.anneal_lr else 1.0)


# --- acting and training ----------------------------------------------------------------------


@parts.with_environment
def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None, mask=None) -> action, memory.

    The policy is for one environment. Without rng it takes the most probable action, or the mean;
    with rng it takes a sample. `mask` is not used: environments with action masks are refused.
    """
    space = parts.ActionSpace(env.action_space(env_params))
    network = ActorCritic(config, space)

    def policy(state, observation, memory=None, rng=None, mask=None):
        x = state.policy.obs_stats.as_input(config, observation)[None]
        actions = network.apply(state.policy.params, x, method="actor")
        action = actions.mode() if rng is None else actions.sample(seed=rng)
        return space.clip(action[0]), memory

    return policy


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    parts.check(INFO, config, env, env_params, "num_steps", unit_std=True)
    if config.normalize_advantage and config.num_envs * config.num_steps == 1:
        raise ValueError(
            "num_steps=1 with num_envs=1 leaves one sample to a rollout, and normalize_advantage "
            "makes its advantage zero; num_steps=2 would do"
        )


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.

    Raises:
      ValueError: a setting that cannot work, or a space that REINFORCE cannot take.
    """
    check(config, env, env_params)
    return parts.program(learner, config, env, env_params)


def learner(config: Config, env: Any, env_params: Any) -> parts.Learner:
    """The first state, an update (collects a rollout and learns from it), and the policy."""
    batch_size = config.num_envs * config.num_steps
    num_updates = parts.num_updates(config, batch_size)
    environments = envs.batch(env, config.num_envs, config.num_steps)
    space = parts.ActionSpace(env.action_space(env_params))
    network = ActorCritic(config, space)
    clip = optax.clip_by_global_norm(config.max_grad_norm)  # detail 6
    adam = optax.scale_by_adam(eps=config.adam_eps)
    optimizer = lambda rate: parts.on_one_vector(optax.chain(clip, adam, optax.scale(-rate)))

    def init(rng):
        network_rng, reset_rng, rollout_rng, eval_rng = jax.random.split(rng, 4)
        observation, env_state = environments.reset(reset_rng, env_params)
        x = observation.astype(jnp.float32)
        params = network.init(network_rng, x)
        return TrainState(
            policy=PolicyState(params, parts.RunningStatistics.create(observation.shape[1:])),
            opt_state=optimizer(0.0).init(params),
            env_state=env_state,
            observation=observation,
            episodes=environments.episodes(),
            reward_scale=parts.RewardScale.create(config.num_envs),
            rollout_rng=rollout_rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state):
        """Collects a rollout and learns from it."""
        state, rollout = collect(state)
        batch = prepare(state, rollout)
        state, metrics = learn(state, batch)
        state = update_statistics(state, rollout)
        return state.replace(update=state.update + 1), metrics

    def collect(state):
        """Collects a rollout. `loss` computes log_probs, for all steps at once."""
        rng, start_rng, step_rng, noise_rng = jax.random.split(state.rollout_rng, 4)
        noise = space.noise(noise_rng, (config.num_steps, config.num_envs))

        def step(state, inputs):
            step_rng, noise = inputs
            x = state.policy.obs_stats.as_input(config, state.observation)
            actions = network.apply(state.policy.params, x, method="actor")
            action = space.sample(actions, noise, step_rng)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, state.env_state, space.clip(action), env_params
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

    def prepare(state, rollout):
        """Samples with targets."""
        flat = jax.tree.map(lambda x: x.reshape(batch_size, *x.shape[2:]), rollout)
        x = state.policy.obs_stats.as_input(config, flat.observation)
        final_x = state.policy.obs_stats.as_input(config, flat.final_observation)
        next_values = network.apply(state.policy.params, final_x, method="critic")
        reward = rollout.reward
        if config.normalize_reward:
            reward = state.reward_scale.scale(reward, config.clip_reward)
        targets = lambda_returns(  # detail 3
            reward,
            next_values.reshape(reward.shape),
            rollout.terminated,
            rollout.done,
            config.gamma,
            config.gae_lambda,
        )
        return Batch(observation=x, action=flat.action, target=targets.reshape(batch_size))

    def loss(params, batch):
        actions, values = network.apply(params, batch.observation)
        log_prob, entropy = actions.log_prob(batch.action), actions.entropy()
        advantages, entropy = jax.lax.stop_gradient(batch.target - values), entropy.mean()
        if config.normalize_advantage:  # detail 4
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy_loss = policy_gradient_loss(log_prob, advantages)  # detail 2
        value_loss = 0.5 * jnp.square(values - batch.target).mean()
        total = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy  # detail 7
        return total, {
            "loss": total,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "mean_value": values.mean(),
            "explained_variance": parts.explained_variance(values, batch.target),
        }

    def learn(state, batch):
        """Makes the gradient step of a rollout."""
        grads, metrics = jax.grad(loss, has_aux=True)(state.policy.params, batch)  # detail 1
        rate, old = annealed_rate(config, num_updates, state.update), state.policy.params
        updates, opt_state = optimizer(rate).update(grads, state.opt_state, old)
        metrics |= {"grad_norm": parts.global_norm(grads), "current_learning_rate": rate}
        policy = state.policy.replace(params=optax.apply_updates(old, updates))
        return state.replace(policy=policy, opt_state=opt_state), metrics

    def update_statistics(state, rollout):
        """Merges the rollout into the statistics, after learning from it."""
        state = state.replace(episodes=state.episodes.update(rollout.reward, rollout.done))
        # detail 9
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
