"""CrossQ, SAC without target networks. A whole run, replay included, is one XLA program.

Paper: Bhatt et al. 2024, https://arxiv.org/abs/1902.05605. By flag: SimBa's network (Lee et al.
2024, https://arxiv.org/abs/2410.09754), with batch renormalisation in place of its layer norms.

    python algorithms/crossq.py --env Pendulum-v1 --seed 0
    python algorithms/crossq.py --env Pendulum-v1 --critic-hidden-sizes 2048,2048  # the paper's

    train = make_train(Config(env="Pendulum-v1"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 8))

Implementation details:
  1 A round is `train_every` steps of each environment, then `updates_per_step` gradient steps. The
    replay ratio is updates_per_step / (num_envs * train_every).
  2 There are no target networks. The critics see both ends of the transitions as one batch, so both
    have the same moments. No gradient goes through the next values.
  3 Batch renormalisation (Ioffe 2017, https://arxiv.org/abs/1702.03275) stands before the first
    layer and after each activation, in the actor as well. It uses a batch's moments, corrected
    towards the running ones after a share `renorm_warmup` of the run. Acting, evaluation, next
    actions and the actor's loss use the running moments alone.
  4 Actions are tanh of a Gaussian. Formulas have them in [-1, 1]; the environment gets them
    rescaled to its box. log_prob comes from the draw before tanh. Nothing is inverted or clipped,
    so saturated actions give finite numbers. log_std is squashed to [-5, 2].
  5 After every `policy_every`-th gradient step of the critics, the actor and the temperature take
    one. All vmapped runs take it at the same steps, so under vmap the branch stays a branch.
  6 A transition leads to the observation before any restart. The target bootstraps from it, also
    where a time limit cut the episode, but not where the episode terminated.
  7 With n_step above 1, targets leave out the entropy of the intermediate steps.
  8 Before `learning_starts`, actions are uniform over the box.
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
    "title": "Soft actor-critic with batch renormalisation, no target networks (CrossQ)",
    "use": "as SAC, without target networks",
    "paper": "[Bhatt et al. 2024](https://arxiv.org/abs/1902.05605)",
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
    num_envs: int = static(1)  # parallel environments
    train_every: int = static(1)  # steps of each environment between two rounds of learning
    updates_per_step: int = static(1)  # gradient steps in a round of learning
    buffer_size: int = static(100_000)  # transitions kept, over all environments
    batch_size: int = static(256)  # transitions in a gradient step
    learning_starts: int = static(1_000)  # environment steps before the first gradient step
    learning_rate: float = real(1e-3, "[0, inf)")  # Adam's step size
    anneal_lr: bool = static(False)  # take the learning rate linearly to zero
    adam_b1: float = real(0.5, "[0, 1)")  # decay of Adam's mean of gradients
    adam_eps: float = real(1e-8, "(0, inf)")  # Adam's epsilon
    weight_decay: float = real(0.0, "[0, inf)")  # AdamW's weight decay, as in SimBa; 0: plain Adam
    gamma: float = real(0.99, "[0, 1]")  # discount factor
    n_step: int = static(1)  # steps of reward before bootstrapping
    reward_scale: float = real(1.0, "(0, inf)")  # factor on rewards for learning
    num_critics: int = static(2)  # critics; their minimum counts
    policy_every: int = static(3)  # gradient steps of the critics for each of the actor
    renorm_momentum: float = real(0.99, "[0, 1]")  # share of the running moments kept at each step
    renorm_warmup: float = real(0.1, "[0, 1]")  # share of the run with plain batch norm; 1: all
    renorm_r_max: float = real(3.0, "[1, inf]")  # after the warm-up: largest ratio of deviations
    renorm_d_max: float = real(5.0, "[0, inf]")  # after the warm-up: largest shift, in deviations
    initial_temperature: float = real(1.0, "(0, inf)")  # initial weight of the entropy
    learn_temperature: bool = static(True)  # keep the entropy at its target
    target_entropy: float = real(-1.0, "(-inf, inf)")  # target entropy per dimension of the action
    network: str = static("mlp")  # mlp, or simba: a residual block for each of the sizes below
    hidden_sizes: tuple[int, ...] = static((256, 256))  # dense layers of the actor
    critic_hidden_sizes: tuple[int, ...] = static((256, 256))  # dense layers of each critic
    activation: str = static("relu")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    normalize_obs: bool = static(False)  # normalise observations by running mean and variance
    clip_obs: float = real(10.0, "(0, inf]")  # clip normalised observations to +- this
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------


class BatchRenorm(nn.Module):  # detail 3
    """y = ((x - mean_B) / std_B * r + d) * scale + bias, algorithm 1 of Ioffe 2017, (batch, size).

    r = clip(std_B / std, 1 / r_max, r_max) and d = clip((mean_B - mean) / std, -d_max, d_max) have
    no gradient. Until `warm` they are 1 and 0: batch normalisation. Without `train`, y is
    (x - mean) / std * scale + bias. Running moments are mean and variance, not mean and std.
    """

    config: Config

    @nn.compact
    def __call__(self, x, train, warm):
        size = x.shape[-1:]
        scale = self.param("scale", nn.initializers.ones, size)
        bias = self.param("bias", nn.initializers.zeros, size)
        running_mean = self.variable("moments", "mean", jnp.zeros, size)
        running_var = self.variable("moments", "var", jnp.ones, size)
        mean, std = running_mean.value, jnp.sqrt(running_var.value + 1e-3)
        if not train:
            return (x - mean) / std * scale + bias
        batch_mean, batch_var = x.mean(0), x.var(0)
        batch_std = jnp.sqrt(batch_var + 1e-3)
        r_max, d_max = self.config.renorm_r_max, self.config.renorm_d_max
        r = jnp.clip(batch_std / std, 1.0 / r_max, r_max)
        d = jnp.clip((batch_mean - mean) / std, -d_max, d_max)
        r, d = jax.lax.stop_gradient((jnp.where(warm, r, 1.0), jnp.where(warm, d, 0.0)))
        share = 1.0 - self.config.renorm_momentum
        running_mean.value += share * (batch_mean - running_mean.value)
        running_var.value += share * (batch_var - running_var.value)
        return ((x - batch_mean) / batch_std * r + d) * scale + bias


class Torso(nn.Module):
    """Observations (batch, ...), and more inputs, to features (batch, sizes[-1])."""

    config: Config
    sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, train, warm, x, *more):
        activation = parts.activation(self.config.activation)
        norm = lambda x: BatchRenorm(self.config)(x, train, warm)
        dense = lambda size: parts.Dense(size, kernel_init=parts.orthogonal(math.sqrt(2)))
        x = norm(parts.Torso((), self.config.activation, self.config.conv_layers)(x, *more))
        if self.config.network == "mlp":
            for size in self.sizes:
                x = norm(activation(dense(size)(x)))
            return x
        x = dense(self.sizes[0])(x)
        for size in self.sizes:
            x = x + dense(size)(activation(dense(4 * size)(norm(x))))
        return norm(x)


class Actor(nn.Module):
    """Observations (batch, ...) to distributions of actions."""

    config: Config
    size: int  # dimensions of the action

    @nn.compact
    def __call__(self, x, train=False, warm=False):
        x = Torso(self.config, self.config.hidden_sizes)(train, warm, x)
        init = parts.orthogonal(0.01)
        mean = parts.Dense(self.size, kernel_init=init, name="mean_head")(x)
        squashed = nn.tanh(parts.Dense(self.size, kernel_init=init, name="std_head")(x))
        log_std = LOG_STD[0] + 0.5 * (LOG_STD[1] - LOG_STD[0]) * (squashed + 1.0)
        return parts.TanhGaussian(mean, log_std)  # detail 4


class Critic(nn.Module):
    """Observations (batch, ...) and actions (batch, dimensions) in [-1, 1] to values (batch,)."""

    config: Config

    @nn.compact
    def __call__(self, x, action, train=False, warm=False):
        x = Torso(self.config, self.config.critic_hidden_sizes)(train, warm, x, action)
        return parts.Dense(1, kernel_init=parts.orthogonal(1.0), name="value_head")(x)[:, 0]


# --- data types -------------------------------------------------------------------------------


@struct.dataclass
class PolicyState:
    """The part of the state that acting needs."""

    variables: dict[str, Any]  # params, and the running moments of features
    obs_stats: parts.RunningStatistics


class Delayed(NamedTuple):
    """The part of the state that changes only in every `policy_every`-th gradient step."""

    policy: PolicyState
    log_temperature: jax.Array
    policy_opt_state: optax.OptState


@struct.dataclass
class TrainState:
    """Everything that a run needs to continue."""

    policy: PolicyState
    critics: dict[str, Any]  # their variables, leading axis num_critics
    log_temperature: jax.Array  # ()
    critic_opt_state: optax.OptState
    policy_opt_state: optax.OptState  # for the actor and the temperature
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
    exploration: jax.Array  # normal, (train_every, num_envs, dimensions)


class Draws(NamedTuple):
    """Random numbers of a gradient step."""

    windows: jax.Array  # (batch_size,), see parts.ReplayBuffer
    actions: jax.Array  # normal, (2, batch_size, dimensions): for s, and for s_n


LOG_STD = (-5.0, 2.0)


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
        actions = network.apply(state.policy.variables, x)
        action = actions.mode() if rng is None else actions.sample(seed=rng)
        return space.rescale(action)[0], memory

    return policy


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    parts.check(INFO, config, env, env_params, "num_critics", "policy_every", replay=True)
    if config.batch_size == 1:
        raise ValueError("batch_size=1: give 2 or more; batch norms need it")


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.

    Raises:
      ValueError: a setting that cannot work, a space that CrossQ cannot take, or a buffer larger
        than the device's memory.
    """
    check(config, env, env_params)
    return parts.program(learner, config, env, env_params)


def learner(config: Config, env: Any, env_params: Any) -> parts.Learner:
    """The first state, an update (some rounds of acting and learning), and the policy."""
    buffer = parts.ReplayBuffer.of(config)
    rounds = parts.Rounds(config, period=config.policy_every)  # detail 1
    # A round learns once there are `learning_starts` steps and a whole window.
    waiting = rounds.before(max(config.learning_starts, buffer.waiting + 1))
    # Actions are uniform in rounds that begin before `learning_starts`, or before any learning.
    uniform = max(waiting, rounds.before(config.learning_starts) + 1)
    environments = envs.batch(env, config.num_envs, rounds.num_steps)
    space = parts.ActionSpace(env.action_space(env_params))
    size = space.size
    actor, critic = Actor(config, size), Critic(config)
    adam = parts.on_one_vector(optax.scale_by_adam(config.adam_b1, eps=config.adam_eps))
    decay = optax.add_decayed_weights(config.weight_decay)
    for_critics = lambda rate: optax.chain(adam, decay, optax.scale(-rate))
    # of the network and the temperature
    of_policy = optax.add_decayed_weights(config.weight_decay, mask=(True, False))
    for_policy = lambda rate: optax.chain(adam, of_policy, optax.scale(-rate))

    def init(rng):
        rng, actor_rng, critic_rng, reset_rng, eval_rng = jax.random.split(rng, 5)
        observation, env_state = environments.reset(reset_rng, env_params)
        x, action = observation.astype(jnp.float32), jnp.zeros((config.num_envs, size))
        start = lambda rng: critic.init(rng, x, action)
        of_critics = jax.vmap(start)(jax.random.split(critic_rng, config.num_critics))
        of_actor = actor.init(actor_rng, x)
        log_temperature = jnp.log(config.initial_temperature)
        obs_stats = parts.RunningStatistics.create(observation.shape[1:])
        return TrainState(
            policy=PolicyState(of_actor, obs_stats),
            critics=of_critics,
            log_temperature=log_temperature,
            critic_opt_state=for_critics(0.0).init(of_critics["params"]),
            policy_opt_state=for_policy(0.0).init((of_actor["params"], log_temperature)),
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
        rng, start_rng, step_rng, explore_rng, draw_rng, action_rng = jax.random.split(state.rng, 6)
        steps = rounds.gradient_steps
        draws = Draws(
            windows=buffer.noise(draw_rng, (steps, config.batch_size)),
            actions=jax.random.normal(action_rng, (steps, 2, config.batch_size, size)),
        )
        noise = Noise(
            step_rng=jax.random.split(step_rng, rounds.acting[:2]),
            exploration=jax.random.normal(explore_rng, (*rounds.acting, size)),
        )
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
        learned = (now.number - waiting) / float(rounds.total - waiting)
        warm = (learned >= config.renorm_warmup) & (config.renorm_warmup < 1.0)

        def learn(old, draws, index):
            turn = index % config.policy_every == config.policy_every - 1  # detail 5
            new, metrics = gradient_step(old, draws, progress, turn, warm)
            return parts.keep_if(ready, new, old), metrics

        state, metrics = rounds.repeat(learn, state, now, ready)
        return state, metrics, rollout

    def act(state, warm_up, noise):
        """`train_every` steps of every environment."""

        def step(state, inputs):
            step_rng, noise = inputs
            x = state.policy.obs_stats.as_input(config, state.observation)
            actions = actor.apply(state.policy.variables, x)
            action = space.sample(actions, noise, step_rng)
            action = jnp.where(warm_up, space.uniform_from(noise), action)  # detail 8
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, state.env_state, space.rescale(action), env_params
            )
            transition = parts.Transition(
                observation=state.observation,
                action=space.shaped(action),
                reward=reward,
                terminated=terminated,
                done=terminated | truncated,
                final_observation=info["final_observation"],  # detail 6
            )
            return state.replace(env_state=env_state, observation=observation), transition

        return parts.scan(step, state, (noise.step_rng, noise.exploration))

    def critic_loss(params, state, window, noise, warm):
        """Sum over k of the mean of (Q_k(s, a) - y)**2; the running moments after it; metrics.

        y = reward_scale R_n + gamma**n (min_k Q_k(s_n, a') - alpha log pi(a'|s_n)), a' ~ pi.
        """
        x = state.policy.obs_stats.as_input(config, window.observation)
        next_x = state.policy.obs_stats.as_input(config, window.final_observation)
        next_actions = actor.apply(state.policy.variables, next_x)
        next_action, next_log_prob = next_actions.sample_and_log_prob_from(noise)
        both = jnp.concatenate([x, next_x])  # detail 2
        actions = jnp.concatenate([window.action.reshape(-1, size), next_action])
        in_training = lambda v: critic.apply(v, both, actions, True, warm, mutable="moments")
        values, changed = jax.vmap(in_training)(state.critics | {"params": params})
        values, next_values = jnp.split(values, 2, axis=1)  # (num_critics, batch) each
        # detail 7
        next_value = next_values.min(0) - jnp.exp(state.log_temperature) * next_log_prob
        target = config.reward_scale * window.returns + window.discount * next_value
        loss = jnp.square(values - jax.lax.stop_gradient(target)).mean(1).sum()
        return loss, (changed, {"critic_loss": loss, "mean_value": values.min(0).mean()})

    def policy_loss(params, log_temperature, state, window, noise, warm):
        """The mean of alpha log pi(a|s) - min_k Q_k(s, a), plus the temperature's loss.

        This is alpha (H - target) with the entropy H. Also returns new running moments and metrics.
        """
        x = state.policy.obs_stats.as_input(config, window.observation)
        temperature = jnp.exp(log_temperature)
        variables = state.policy.variables | {"params": params}
        gaussian, changed = actor.apply(variables, x, True, warm, mutable="moments")
        action, log_prob = gaussian.sample_and_log_prob_from(noise)
        value = jax.vmap(critic.apply, (0, None, None))(state.critics, x, action).min(0)  # frozen
        loss = (jax.lax.stop_gradient(temperature) * log_prob - value).mean()
        metrics = {"actor_loss": loss, "entropy": -log_prob.mean(), "temperature": temperature}
        if config.learn_temperature:
            surplus = jax.lax.stop_gradient(-log_prob).mean() - size * config.target_entropy
            loss = loss + temperature * surplus
        return loss, (changed, metrics)

    def gradient_step(state, draws, progress, turn, warm):
        """Learns from a batch of windows."""
        draw = buffer.draw(state.replay, draws.windows)
        window = buffer.windows(state.replay.transitions, draw.index, config.gamma)
        left = jnp.maximum(1.0 - progress, 0.0) if config.anneal_lr else 1.0
        rate, old = config.learning_rate * left, state.critics["params"]
        grads, (changed, metrics) = jax.grad(critic_loss, has_aux=True)(
            old, state, window, draws.actions[1], warm
        )
        metrics |= {"grad_norm": parts.global_norm(grads), "current_learning_rate": rate}
        updates, critic_opt_state = for_critics(rate).update(grads, state.critic_opt_state, old)
        critics = changed | {"params": optax.apply_updates(old, updates)}
        state = state.replace(critics=critics, critic_opt_state=critic_opt_state)

        def improve(old):
            """The gradient step of the actor and the temperature."""
            both = old.policy.variables["params"], old.log_temperature
            grads, (changed, metrics) = jax.grad(policy_loss, (0, 1), has_aux=True)(
                *both, state, window, draws.actions[0], warm
            )
            updates, opt_state = for_policy(rate).update(grads, old.policy_opt_state, both)
            params, log_temperature = optax.apply_updates(both, updates)
            return metrics, Delayed(
                policy=old.policy.replace(variables=changed | {"params": params}),
                log_temperature=log_temperature,
                policy_opt_state=opt_state,
            )

        old = Delayed(state.policy, state.log_temperature, state.policy_opt_state)
        no_metrics = dict.fromkeys(("actor_loss", "entropy", "temperature"), jnp.zeros(()))
        # detail 5
        delayed, new = parts.branch(turn, improve, lambda old: (no_metrics, old), old)
        metrics |= {name: parts.Average(x, turn) for name, x in delayed.items()}
        return state.replace(**new._asdict()), metrics

    policy = make_policy(config, env, env_params)
    return parts.Learner(init, update, policy, rounds.steps)


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
