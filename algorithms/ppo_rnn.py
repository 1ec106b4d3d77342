"""PPO with memory, for discrete and continuous actions. A whole run is one XLA program.

Paper: Schulman et al. 2017, https://arxiv.org/abs/1707.06347, with generalised advantage estimation
(Schulman et al. 2016, https://arxiv.org/abs/1506.02438). The memories and their papers:
parts/recurrence.py and attention.py.

    python algorithms/ppo_rnn.py --preset CartPole-v1-positions-mingru
    python algorithms/ppo_rnn.py --preset MemoryChain-bsuite --num-seeds 5

    train = make_train(Config(env="CartPole-v1", env_settings=(("observe", (0, 2)),)))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 16))

This is ppo.py with a memory between the dense layers and the two heads. It adds these details
(LSTM details: Huang et al. 2022):
  1 Actor and critic share layers and memory, as in CleanRL's ppo_atari_lstm.py and PureJaxRL's
    ppo_rnn.py. Both must remember the same, and the sequential part is computed once. Large value
    errors would drown the policy's gradients, so rewards are normalised by default.
  2 The memory runs on from rollout to rollout. It is zeroed where an episode ended, terminated or
    truncated, in collection and in learning alike.
  3 Sequences are learned whole, from the memory before the rollout. Minibatches are sets of
    environments (LSTM details 3 to 5). From the second gradient step on, that memory comes from
    older parameters. The staleness is accepted, as in other implementations.
  4 A final observation is valued with the memory of the episode that ends there. The memory itself
    does not advance.
  5 Kernels of the memory are orthogonal with gain 1 (LSTM detail 1); biases start at zero. Presets
    of tasks that need a memory add a positive forget_bias to the gate that keeps it (Jozefowicz et
    al. 2015). On MountainCar this solves fewer seeds.
  6 The heads also see the inputs of the memory, so a task that needs no memory is learned as by
    PPO.
  7 Advantages are standardised over the rollout. A minibatch may be one sequence, and standardised
    on its own, a failure would look as good as a success.
  8 With `previous_inputs`, the network also sees the last action and its reward, initially zeros.
Adam's epsilon is large. Once the critic is accurate, gradients are noise, and a smaller epsilon
loses perfect policies (docs/tuning.md). The cells are in parts/recurrence.py.
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
    "title": "PPO with a memory: recurrent cells, state spaces or attention",
    "use": "as PPO, where one observation does not tell enough",
    "paper": "[Schulman et al. 2017](https://arxiv.org/abs/1707.06347)",
    "family": "policy gradients",
    "actions": ("discrete", "continuous"),
    "masks": True,
    "agents": "one",
    "memory": True,
    "split": True,
}


@struct.dataclass
class Config:
    env: str = static("CartPole-v1")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # env settings, name=value,...
    total_timesteps: int = static(500_000)  # environment steps of the whole run
    num_envs: int = static(4)  # parallel environments
    num_steps: int = static(128)  # steps of each environment in a rollout
    update_epochs: int = static(4)  # passes over each rollout
    num_minibatches: int = static(4)  # gradient steps in a pass, each with its environments
    learning_rate: float = real(1e-3, "[0, inf)")  # Adam's step size
    anneal_lr: bool = static(True)  # take the learning rate linearly to zero
    adam_eps: float = real(1e-4, "(0, inf)")  # Adam's epsilon
    gamma: float = real(0.99, "[0, 1]")  # discount factor
    gae_lambda: float = real(0.95, "[0, 1]")  # decay of the advantage trace
    clip_eps: float = real(0.2, "(0, inf]")  # range of the ratio, and of values with clip_vloss
    clip_vloss: bool = static(False)  # clip the value loss
    normalize_advantage: bool = static(True)  # standardise advantages
    normalize_over: str = static("rollout")  # standardise over a rollout or a minibatch
    ent_coef: float = real(0.01, "[0, inf)")  # weight of the entropy bonus
    vf_coef: float = real(0.5, "[0, inf)")  # weight of the value loss
    max_grad_norm: float = real(0.5, "(0, inf]")  # clip gradients to this global norm; inf: never
    target_kl: float = real(math.inf, "(0, inf]")  # end epochs at a KL above this; inf: never
    previous_inputs: bool = static(False)  # the last action and its reward are inputs
    cell: str = static("lstm")  # lstm, gru, mingru, minlstm, lru, s5 or gtrxl
    memory_size: int = static(64)  # size of the memory (LSTM, LRU, S5: twice)
    layers: int = static(1)  # stacked cells
    window: int = static(32)  # steps back that a gtrxl sees
    forget_bias: float = real(0.0, "(-inf, inf)")  # added to the gate that keeps the memory
    skip: bool = static(True)  # the heads also see the memory's input
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers before the memory
    activation: str = static("tanh")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    asymmetric: bool = static(False)  # critics see the environment's world state too
    normalize_obs: bool = static(True)  # normalise observations by running mean and variance
    normalize_reward: bool = static(True)  # divide rewards by the std of discounted returns
    clip_obs: float = real(10.0, "(0, inf]")  # clip normalised observations to +- this
    clip_reward: float = real(10.0, "(0, inf]")  # clip normalised rewards to +- this
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------


class ActorCritic(nn.Module):
    """Memories and observations to memories, distributions of actions, and values.

    A critic that sees more has a torso of its own for it, beside the memory of the actor. Without
    `seen` there are then no values.
    """

    config: Config
    space: parts.ActionSpace
    seen: int | None = None  # numbers of an observation that the actor sees, the first; None: all

    def setup(self):
        config, outputs = self.config, self.space.size
        # detail 1
        torso = lambda: parts.Torso(config.hidden_sizes, config.activation, config.conv_layers)
        self.torso = torso()
        self.critic_torso = torso() if config.asymmetric else None
        self.cells = parts.Cells(config)  # detail 5
        nn.share_scope(self, self.cells)
        self.actor_head = parts.Dense(outputs, kernel_init=parts.orthogonal(0.01))
        self.critic_head = parts.Dense(1, kernel_init=parts.orthogonal(1.0))
        discrete, zeros = self.space.discrete, nn.initializers.zeros
        self.log_std = None if discrete else self.param("log_std", zeros, (outputs,))

    def __call__(self, memory, x, mask=None):
        """One step: the memory after observations x (batch, ...), actions and values (batch,)."""
        seen = self.torso(x[:, : self.seen], *parts.last_step(memory))
        memory = self.cells.step(memory, seen)
        return memory, *self.heads(memory.hidden, seen, x, mask)

    def heads(self, hidden, seen, x, mask=None):
        """Actions and values (...) of memories (..., memory_size), of their input features, and of
        what the critic sees (samples, ...).

        An action has no probability where the mask (..., num_actions) is False.
        """
        # detail 6
        features = jnp.concatenate([hidden, seen], -1) if self.config.skip else hidden
        output, values = self.actor_head(features), None
        if self.config.asymmetric and self.seen is not None:
            more = self.critic_torso(x).reshape(*features.shape[:-1], -1)
            features = jnp.concatenate([features, more], -1)
        if not self.config.asymmetric or self.seen is not None:
            values = self.critic_head(features)[..., 0]
        if self.space.discrete:
            return parts.Categorical(output, mask), values
        return parts.Gaussian(output, self.log_std), values

    def review(self, hidden, x, mask=None, previous=()):
        """The same for a rollout x (num_steps, num_envs, ...) with the memories after
        its steps. `previous` holds `parts.last_step` of every step."""
        x, *previous = (x.reshape(-1, *x.shape[2:]) for x in (x, *previous))
        seen = self.torso(x[:, : self.seen], *previous)
        return self.heads(hidden, seen.reshape(*hidden.shape[:2], -1), x, mask)

    def unroll(self, memory, x, done, mask=None, previous=()):
        """The same for a rollout, from its first memory. `done` (num_steps, num_envs)
        marks the last steps of episodes."""
        x, *previous = (x.reshape(-1, *x.shape[2:]) for x in (x, *previous))
        seen = self.torso(x[:, : self.seen], *previous).reshape(*done.shape, -1)
        return self.heads(self.cells(memory, seen, done).hidden, seen, x, mask)


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
    memory: parts.Memory  # memory before the observation; initially zeros
    episodes: Any  # of `envs.batch`
    reward_scale: parts.RewardScale
    rollout_rng: jax.Array  # key for acting and the environments
    order_rng: jax.Array  # key for the order of samples
    eval_rng: jax.Array  # constant: all evaluations use it
    update: jax.Array  # rollouts learned from so far, int32


class Transition(NamedTuple):
    """A rollout; leading axes (num_steps, num_envs)."""

    observation: jax.Array
    previous: tuple[jax.Array, ...]  # `parts.last_step`
    mask: jax.Array | None  # allowed actions
    action: jax.Array  # unclipped
    reward: jax.Array
    terminated: jax.Array
    done: jax.Array  # terminated or truncated
    final_observation: jax.Array  # after the action, before any restart
    memory: parts.Memory  # after the observation


class Batch(NamedTuple):
    """Sequences to learn from; leading axes (num_steps, num_envs), or a minibatch's num_envs."""

    observation: jax.Array  # normalised
    previous: tuple[jax.Array, ...]
    mask: jax.Array | None
    done: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array  # standardised with normalize_over="rollout"
    target: jax.Array


class Learned(NamedTuple):
    """The carry of the epochs."""

    params: Any
    opt_state: optax.OptState
    epochs: jax.Array  # done, int32
    kl: jax.Array  # mean over the last epoch
    sums: dict[str, jax.Array]  # metrics, summed over epochs


# --- formulas ---------------------------------------------------------------------------------


def gae(rewards, values, next_values, terminated, done, gamma, gae_lambda):
    """A_t = delta_t + gamma lambda (1 - done_t) A_{t+1}, with A = 0 after the last step.

    delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t): equations 11-16 of Schulman et al.
    2016. All arrays are (num_steps, num_envs). `next_values` are V(s'_t) of the observations after
    the actions, before any restart. `done` also marks truncated episodes.
    """
    deltas = rewards + gamma * next_values * (1.0 - terminated) - values
    decays = gamma * gae_lambda * (1.0 - done)

    def step(later, inputs):
        delta, decay = inputs
        advantage = delta + decay * later
        return advantage, advantage

    none = jnp.zeros_like(deltas[0])
    return parts.scan(step, none, (deltas, decays), reverse=True)[1]


def clipped_surrogate(log_ratio, advantages, clip_eps):
    """-mean min(q A, clip(q, 1 - eps, 1 + eps) A), q = exp(log_ratio), all (batch,): equation 7 of
    Schulman et al. 2017, negated."""
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip_eps, 1.0 + clip_eps)
    return -jnp.minimum(ratio * advantages, clipped * advantages).mean()


def value_error(values, old_values, targets, clip_eps, clip):
    """mean (V - y)**2 / 2, all (batch,); with `clip` mean max((V - y)**2, (V_c - y)**2) / 2, where
    V_c = V_old + clip(V - V_old, -eps, eps)."""
    error = jnp.square(values - targets)
    if clip:
        kept = old_values + jnp.clip(values - old_values, -clip_eps, clip_eps)
        error = jnp.maximum(error, jnp.square(kept - targets))
    return 0.5 * error.mean()


def kl_estimate(log_ratio):
    """mean (q - 1 - log q), the k3 estimate of KL(old, new): joschu.net/blog/kl-approx.html."""
    return (jnp.expm1(log_ratio) - log_ratio).mean()


def standardize(x):
    """(x - mean x) / std x."""
    centred = x - parts.mean_over_shards(x.mean())
    variance = parts.mean_over_shards(jnp.square(centred).mean())
    return centred / (jnp.sqrt(variance) + 1e-8)


def learning_rates(config, num_updates, update, epoch):
    """learning_rate (1 - p) for each gradient step of an epoch, (num_minibatches,), with nominal
    progress p in [0, 1] through the run: epochs that end early do not delay annealing."""
    epochs = update.astype(jnp.float32) * config.update_epochs + epoch
    done = epochs + jnp.arange(config.num_minibatches) / config.num_minibatches
    left = jnp.maximum(1.0 - done / float(num_updates * config.update_epochs), 0.0)
    return config.learning_rate * (left if config.anneal_lr else jnp.ones_like(left))


# --- acting and training ----------------------------------------------------------------------


@parts.with_environment
def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None, mask=None) -> action, memory.

    The policy is for one environment. Without rng it takes the most probable action, or the mean;
    with rng it takes a sample. memory=None is a fresh memory. mask (num_actions,):
    `env.action_mask`, the allowed actions. With previous_inputs, pass each reward back: memory =
    envs.evaluation.rewarded(memory, reward).
    """
    space = parts.ActionSpace(env.action_space(env_params))
    network = ActorCritic(config, space)

    def policy(state, observation, memory=None, rng=None, mask=None):
        x = state.policy.obs_stats.as_input(config, observation)[None]
        memory = parts.fresh_memory(config, space) if memory is None else memory
        one = jax.tree.map(lambda x: x[None], memory)
        one, actions, _ = network.apply(state.policy.params, one, x, mask)
        action = actions.mode() if rng is None else actions.sample(seed=rng)
        action = space.clip(action)
        # The reward is not known yet.
        one = parts.with_last_step(config, space, one, action, jnp.zeros(1))
        return jax.tree.map(lambda x: x[0], (action, one))

    return policy


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    parts.check_cell(config)
    sizes = ("num_steps", "update_epochs", "num_minibatches")
    words = {"normalize_over": ("rollout", "minibatch")}
    parts.check(
        INFO,
        config,
        env,
        env_params,
        *sizes,
        minibatches_of="environments",
        unit_std=True,
        words=words,
    )
    size = config.num_envs * config.num_steps
    samples = {"rollout": size, "minibatch": size // config.num_minibatches}[config.normalize_over]
    if config.normalize_advantage and samples == 1:
        what = f"one sample to a {config.normalize_over}, and normalize_advantage zeroes it"
        raise ValueError(f"num_steps=1: {what}; 2 would do")


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.

    Raises:
      ValueError: a setting that cannot work, or a space that PPO cannot take.
    """
    check(config, env, env_params)
    return parts.program(learner, config, env, env_params)


def learner(config: Config, env: Any, env_params: Any) -> parts.Learner:
    """The first state, an update (collects a rollout and learns from it), and the policy."""
    batch_size = config.num_envs * config.num_steps
    num_updates = parts.num_updates(config, batch_size)
    env, seen = envs.for_critics(env, env_params) if config.asymmetric else (env, None)
    environments = envs.batch(env, config.num_envs, config.num_steps)
    space = parts.ActionSpace(env.action_space(env_params))
    network = ActorCritic(config, space, seen)
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    adam = optax.scale_by_adam(eps=config.adam_eps)
    optimizer = lambda rate: parts.on_one_vector(optax.chain(clip, adam, optax.scale(-rate)))

    def init(rng):
        order_rng, network_rng, reset_rng, rollout_rng, eval_rng = jax.random.split(rng, 5)
        observation, env_state = environments.reset(reset_rng, env_params)
        memory = parts.fresh_memory(config, space, config.num_envs)
        x = observation.astype(jnp.float32)
        params = network.init(network_rng, memory, x)
        return TrainState(
            policy=PolicyState(params, parts.RunningStatistics.create(observation.shape[1:])),
            opt_state=optimizer(0.0).init(params),
            env_state=env_state,
            observation=observation,
            memory=memory,
            episodes=environments.episodes(),
            reward_scale=parts.RewardScale.create(config.num_envs),
            rollout_rng=rollout_rng,
            order_rng=order_rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state):
        """Collects a rollout and learns from it."""
        memory = state.memory
        state, rollout = collect(state)
        batch = prepare(state, rollout)
        state, metrics = learn(state, memory, batch)
        metrics["mean_value"] = batch.value.mean()
        metrics["explained_variance"] = parts.explained_variance(batch.value, batch.target)
        state = update_statistics(state, rollout)
        return state.replace(update=state.update + 1), metrics

    def collect(state):
        """Collects a rollout. `prepare` computes values and log_probs, for all steps at once."""
        rng, start_rng, step_rng, noise_rng = jax.random.split(state.rollout_rng, 4)
        noise = space.noise(noise_rng, (config.num_steps, config.num_envs))

        def step(state, inputs):
            step_rng, noise = inputs
            x = state.policy.obs_stats.as_input(config, state.observation)
            mask = environments.action_mask(state.env_state, env_params)
            memory, actions, _ = network.apply(state.policy.params, state.memory, x, mask)
            action = space.sample(actions, noise, step_rng)
            taken = space.clip(action)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, state.env_state, taken, env_params
            )
            memory = parts.with_last_step(config, space, memory, taken, reward, info)
            transition = Transition(
                observation=state.observation,
                previous=parts.last_step(state.memory),  # detail 8
                mask=mask,
                action=action,
                reward=reward,
                terminated=terminated,
                done=terminated | truncated,
                final_observation=info["final_observation"],
                memory=memory,
            )
            state = state.replace(env_state=env_state, observation=observation)
            # detail 2
            return state.replace(memory=parts.forget(memory, transition.done)), transition

        env_state = environments.refill(start_rng, state.env_state, env_params)  # new start states
        state = state.replace(env_state=env_state, rollout_rng=rng)
        return parts.scan(step, state, (jax.random.split(step_rng, config.num_steps), noise))

    def prepare(state, rollout):
        """Sequences with advantages and targets, from the memories of the collection."""
        params = state.policy.params
        x = state.policy.obs_stats.as_input(config, rollout.observation)
        inputs = rollout.memory.hidden, x, rollout.mask, rollout.previous
        actions, values = network.apply(params, *inputs, method="review")
        # detail 4: one more step from the memory after each observation, for all at once.
        flat = lambda x: x.reshape(batch_size, *x.shape[2:])
        final_x = state.policy.obs_stats.as_input(config, flat(rollout.final_observation))
        _, _, next_values = network.apply(params, jax.tree.map(flat, rollout.memory), final_x)
        reward, next_values = rollout.reward, next_values.reshape(values.shape)
        if config.normalize_reward:
            reward = state.reward_scale.scale(reward, config.clip_reward)
        advantages = gae(
            reward,
            values,
            next_values,
            rollout.terminated,
            rollout.done,
            config.gamma,
            config.gae_lambda,
        )
        targets, log_prob = advantages + values, actions.log_prob(rollout.action)
        if config.normalize_advantage and config.normalize_over == "rollout":  # detail 7
            advantages = standardize(advantages)
        return Batch(
            observation=x,
            previous=rollout.previous,
            mask=rollout.mask,
            done=rollout.done,
            action=rollout.action,
            log_prob=log_prob,
            value=values,
            advantage=advantages,
            target=targets,
        )

    def loss(params, memory, batch):
        inputs = memory, batch.observation, batch.done, batch.mask, batch.previous
        actions, values = network.apply(params, *inputs, method="unroll")
        log_prob, entropy = actions.log_prob(batch.action), actions.entropy()
        log_ratio, advantages, entropy = log_prob - batch.log_prob, batch.advantage, entropy.mean()
        if config.normalize_advantage and config.normalize_over == "minibatch":
            advantages = standardize(advantages)
        policy_loss = clipped_surrogate(log_ratio, advantages, config.clip_eps)
        value_loss = value_error(
            values, batch.value, batch.target, config.clip_eps, config.clip_vloss
        )
        total = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
        return total, {
            "loss": total,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": kl_estimate(log_ratio),
            "clip_fraction": (jnp.abs(jnp.expm1(log_ratio)) > config.clip_eps).mean(),
        }

    def learn(state, memory, batch):
        """Epochs of minibatches, until the KL of an epoch exceeds target_kl.

        `memory` is from before the rollout's first step.
        """
        rng, order_rng = jax.random.split(state.order_rng)
        keys = jax.random.split(order_rng, config.update_epochs)
        orders = jax.vmap(jax.random.permutation, (0, None))(keys, config.num_envs)

        def gradient_step(carry, inputs):
            (params, opt_state), (indices, rate) = carry, inputs
            first = jax.tree.map(lambda x: x[indices], memory)
            sequences = jax.tree.map(lambda x: x[:, indices], batch)  # detail 3
            grads, metrics = jax.grad(loss, has_aux=True)(params, first, sequences)
            grads = parts.mean_over_shards(grads)
            updates, opt_state = optimizer(rate).update(grads, opt_state, params)
            metrics |= {"grad_norm": parts.global_norm(grads), "current_learning_rate": rate}
            return (optax.apply_updates(params, updates), opt_state), metrics

        def epoch(learned):
            order = orders[learned.epochs].reshape(config.num_minibatches, -1)
            rates = learning_rates(config, num_updates, state.update, learned.epochs)
            start = learned.params, learned.opt_state
            (params, opt_state), metrics = parts.scan(gradient_step, start, (order, rates))
            means = jax.tree.map(jnp.mean, metrics)
            sums = jax.tree.map(jnp.add, learned.sums, means)
            return Learned(
                params=params,
                opt_state=opt_state,
                epochs=learned.epochs + 1,
                kl=parts.mean_over_shards(means["approx_kl"]),
                sums=sums,
            )

        def unfinished(learned):
            return (learned.epochs < config.update_epochs) & ~(learned.kl > config.target_kl)

        params, zero, count = state.policy.params, jnp.zeros(()), jnp.zeros((), jnp.int32)
        sums = jax.tree.map(jnp.zeros_like, jax.eval_shape(loss, params, memory, batch)[1])
        sums |= {"grad_norm": zero, "current_learning_rate": zero}
        start = Learned(params=params, opt_state=state.opt_state, epochs=count, kl=zero, sums=sums)
        learned = jax.lax.while_loop(unfinished, epoch, start)
        metrics = {name: total / learned.epochs for name, total in learned.sums.items()}
        policy = state.policy.replace(params=learned.params)
        state = state.replace(policy=policy, opt_state=learned.opt_state, order_rng=rng)
        return state, metrics | {"epochs": learned.epochs}

    def update_statistics(state, rollout):
        """Merges the rollout into the statistics, after learning from it."""
        obs_stats, scale = state.policy.obs_stats, state.reward_scale
        if config.normalize_obs:
            obs_stats = obs_stats.update(rollout.observation)
        if config.normalize_reward:
            scale = scale.update(rollout.reward, rollout.done, config.gamma)
        policy = state.policy.replace(obs_stats=obs_stats)
        episodes = state.episodes.update(rollout.reward, rollout.done)
        return state.replace(policy=policy, reward_scale=scale, episodes=episodes)

    return parts.Learner(init, update, make_policy(config, env, env_params), batch_size)


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
