"""R2D2: Q-learning with a memory from replayed sequences. A whole run is one XLA program.

Paper: Kapturowski et al. 2019, https://openreview.net/forum?id=r1lyTjAqYX, with the value rescaling
of Pohlen et al. 2018, https://arxiv.org/abs/1805.11593. Unlike the paper's, the networks have no
duelling heads.

    python algorithms/r2d2.py --env CartPole-v1 --env-settings observe=0,2
    python algorithms/r2d2.py --preset TMaze-v0 --num-seeds 5

    train = make_train(Config(env="CartPole-v1", env_settings=(("observe", (0, 2)),)))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 8))

Implementation details:
  1 A round is `train_every` steps of each environment, then `updates_per_step` gradient steps. The
    steps of one environment in a round are an item of the replay buffer, a chunk. It holds the
    memory before its first step as it was when acting: the stored state.
  2 A sequence is `burn_in` steps, then the `sequence_length` steps that are learned. It begins at
    the start of a chunk, so sequences overlap, by default by half of the learned steps. The memory
    is zeroed where an episode ends in a sequence; the paper's sequences end there.
  3 Online and target network unroll the burn-in from the stored state, without gradient.
  4 n-step double Q-learning. Returns stop at the end of an episode or of the sequence. They
    bootstrap from the observation before any restart, with the memory of the episode that ends
    there, but not where it terminated.
  5 Values are h(returns), h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x (`rescale_values`).
  6 A sequence's priority is (eta max |TD error| + (1 - eta) mean |TD error| + priority_eps) **
    priority_alpha. New sequences get the largest so far; the paper computes theirs when acting.
    Importance weights are as in dqn.py: beta goes linearly to 1, where the paper's stays 0.6.
  7 One epsilon falls over time. In the paper each actor has its own, which is constant.
  8 Every `target_every` gradient steps the target network moves by `tau` towards the online one.
  9 Staleness is ||q_stored - q||_2 / |max q|, at the first and the last learned step. For q the
    current parameters unroll the memory from the episode's first step. Sequences whose episode
    began more than `staleness_steps` steps earlier are left out.
 10 The paper has `previous_inputs`: the last action, and its reward r as sign(r) log(1 + |r|).
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
    "title": "R2D2: recurrent replay with stored states, burn-in and priorities of sequences",
    "use": "as DQN, where one observation does not tell enough",
    "paper": "[Kapturowski et al. 2019](https://openreview.net/forum?id=r1lyTjAqYX)",
    "family": "action values",
    "actions": "discrete",
    "masks": True,
    "agents": "one",
    "memory": True,
}


@struct.dataclass
class Config:
    env: str = static("CartPole-v1")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # env settings, name=value,...
    total_timesteps: int = static(500_000)  # environment steps of the whole run
    num_envs: int = static(16)  # parallel environments
    train_every: int = static(16)  # steps of each environment in a round; sequences start at rounds
    updates_per_step: int = static(2)  # gradient steps in a round of learning
    burn_in: int = static(16)  # first steps of a sequence, which only prepare the memory
    sequence_length: int = static(32)  # steps of a sequence that are learned
    buffer_size: int = static(100_000)  # transitions kept, over all environments
    buffer_dtype: str = static("")  # dtype of stored observations, such as bool; "": unchanged
    batch_size: int = static(32)  # sequences in a gradient step
    learning_starts: int = static(4_000)  # environment steps before the first gradient step
    learning_rate: float = real(4e-3, "[0, inf)")  # Adam's step size
    anneal_lr: bool = static(True)  # take the learning rate linearly to zero
    adam_eps: float = real(1e-5, "(0, inf)")  # Adam's epsilon
    gamma: float = real(0.995, "[0, 1]")  # discount factor
    n_step: int = static(5)  # steps of reward before bootstrapping
    reward_scale: float = real(1.0, "(0, inf)")  # factor on rewards for learning
    rescale_values: bool = static(True)  # learn h(value), which grows like a square root
    rescale_eps: float = real(1e-3, "[0, inf)")  # slope of h far from 0
    double: bool = static(True)  # the online network chooses the action of the target
    target_every: int = static(50)  # gradient steps between two moves of the target network
    tau: float = real(1.0, "[0, 1]")  # share that the target network moves; 1: a copy
    eps_start: float = real(1.0, "[0, 1]")  # initial epsilon, the probability of a random action
    eps_end: float = real(0.1, "[0, 1]")  # final epsilon
    exploration_fraction: float = real(0.2, "(0, inf]")  # share of the run until epsilon is eps_end
    priority_eta: float = real(0.9, "[0, 1]")  # weight of the largest error; the mean has the rest
    priority_alpha: float = real(0.9, "[0, inf)")  # exponent of priorities; 0: uniform
    priority_beta: float = real(0.6, "[0, 1]")  # initial exponent of importance weights; ends at 1
    priority_eps: float = real(1e-3, "[0, inf)")  # added to errors, so that no priority is 0
    max_grad_norm: float = real(1.0, "(0, inf]")  # clip gradients to this global norm; inf: never
    cell: str = static("lstm")  # lstm, gru, mingru, minlstm, lru, s5 or gtrxl
    memory_size: int = static(32)  # size of the memory (LSTM, LRU, S5: twice)
    layers: int = static(1)  # stacked cells
    window: int = static(32)  # steps back that a gtrxl sees
    forget_bias: float = real(1.0, "(-inf, inf)")  # added to the gate that keeps the memory
    previous_inputs: bool = static(True)  # the last action and its reward are inputs
    hidden_sizes: tuple[int, ...] = static((32,))  # dense layers before the memory
    activation: str = static("relu")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    normalize_obs: bool = static(True)  # normalise observations by running mean and variance
    clip_obs: float = real(10.0, "(0, inf]")  # clip normalised observations to +- this
    staleness_steps: int = static(64)  # earlier steps replayed to measure staleness; 0: never
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------


class QNetwork(nn.Module):
    """Inputs to memories after each step and the values of all actions.

    Inputs are a tuple of arrays (num_steps, batch, ...), values (num_steps, batch, num_actions).
    """

    config: Config
    num_actions: int

    @nn.compact
    def __call__(self, memory, inputs, done):
        """`memory` (batch, ...) is from before the first step; `done` (num_steps, batch) marks the
        last steps of episodes."""
        memory = parts.Recurrent(self.config)(memory, inputs, done)
        init = parts.orthogonal(1.0)
        return memory, parts.Dense(self.num_actions, kernel_init=init, name="head")(memory.hidden)


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
    target_params: Any
    target_age: jax.Array  # gradient steps since the target network moved, int32
    opt_state: optax.OptState
    replay: parts.Replay  # of Chunks
    env_state: Any  # of `envs.batch`
    observation: jax.Array  # (num_envs, ...)
    memory: parts.Memory  # memory before the observation; initially zeros
    episodes: Any  # of `envs.batch`
    rng: jax.Array
    eval_rng: jax.Array  # constant: all evaluations use it
    update: jax.Array  # updates so far, int32


class Noise(NamedTuple):
    """Random numbers for the acting in a round."""

    step_rng: jax.Array  # (train_every,)
    exploration: jax.Array  # uniform, (train_every, num_envs)


class Chunk(NamedTuple):
    """Steps of one environment, an item of the replay buffer; leading axis train_every."""

    steps: parts.Transition
    previous: tuple[jax.Array, ...]  # `parts.last_step` after each step, its action and reward
    memory: parts.Memory  # the stored state, from before the first step: no axis of steps


class Sequence(NamedTuple):
    """Steps one after another; leading axes (num_steps, batch_size)."""

    inputs: tuple[jax.Array, ...]  # of the network
    final_inputs: tuple[jax.Array, ...]  # after the step, before any restart
    steps: parts.Transition


MEASURED = 8  # sequences of a batch whose staleness is measured


# --- formulas ---------------------------------------------------------------------------------


def rescale(x, eps):  # detail 5
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + eps x, elementwise: Pohlen et al. 2018."""
    return x / (jnp.sqrt(jnp.abs(x) + 1.0) + 1.0) + eps * x


def unscale(y, eps):
    """Its inverse, sign(y) (((sqrt(1 + 4 eps u) - 1) / (2 eps))**2 - 1) with u = |y| + 1 + eps.

    The quotient is written as 2 u / (sqrt(1 + 4 eps u) + 1), which is exact for small eps.
    """
    u = jnp.abs(y) + 1.0 + eps
    return jnp.sign(y) * (jnp.square(2.0 * u / (jnp.sqrt(1.0 + 4.0 * eps * u) + 1.0)) - 1.0)


def n_step_returns(rewards, next_values, terminated, done, gamma, n_step):
    """r_t + gamma r_{t+1} + ... + gamma**k next_values_{t+k-1}, all (num_steps, batch).

    k is n_step, or less at the end of an episode (`done`) and of the sequence. `next_values` are of
    the observations after the steps, before any restart, and count 0 where `terminated`.
    """
    stops = jnp.asarray(done).at[-1].set(True)
    later = next_values  # the return of up to i steps from the next step on
    for _ in range(n_step):
        returns = rewards + gamma * jnp.where(terminated, 0.0, later)
        later = jnp.where(stops, next_values, jnp.roll(returns, -1, 0))
    return returns


def sequence_priority(errors, eta):  # detail 6
    """eta max_t e_t + (1 - eta) mean_t e_t, (batch,), of |TD errors| e (num_steps, batch)."""
    return eta * errors.max(0) + (1.0 - eta) * errors.mean(0)


def staleness(stored, recomputed):  # detail 9
    """||q_stored - q_recomputed||_2 / |max q_recomputed|, (num_steps, batch).

    Values are (num_steps, batch, num_actions). The maximum is over steps and actions.
    """
    largest = jnp.abs(recomputed.max((0, 2)))
    return jnp.linalg.norm(stored - recomputed, axis=-1) / jnp.maximum(largest, 1e-6)


def greedy(values, mask=None):
    """Actions (...) of the largest values (..., num_actions) that the mask allows."""
    return jnp.argmax(values if mask is None else jnp.where(mask, values, -jnp.inf), -1)


def of_action(values, action):
    """Values (...) of actions (...) out of values (..., num_actions)."""
    return (values * jax.nn.one_hot(action, values.shape[-1])).sum(-1)


def epsilon_at(config, progress):  # detail 7
    """The probability of a random action, linear in the progress in [0, 1] until it is eps_end."""
    left = jnp.maximum(1.0 - progress / config.exploration_fraction, 0.0)
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


def importance_weights(probabilities, size, beta):
    """w_i = (size P_i) ** -beta / max_j (size P_j) ** -beta, section 3.4 of Schaul et al. 2016."""
    weights = (size * probabilities) ** -beta
    return weights / weights.max()


# --- acting and training ----------------------------------------------------------------------


@parts.with_environment
def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None, mask=None) -> action, memory.

    The policy is for one environment. Without rng it takes the action of the highest value. With
    rng it is epsilon-greedy at eps_end. memory=None is a fresh memory. mask (num_actions,):
    `env.action_mask`, the allowed actions. With previous_inputs, pass each reward back: memory =
    envs.evaluation.rewarded(memory, reward).
    """
    space = parts.ActionSpace(env.action_space(env_params))
    network, fresh = QNetwork(config, space.size), parts.fresh_memory(config, space, 1)

    def policy(state, observation, memory=None, rng=None, mask=None):
        memory, observation, mask = jax.tree.map(lambda x: x[None], (memory, observation, mask))
        memory = fresh if memory is None else memory
        x = state.policy.obs_stats.as_input(config, observation)
        inputs = x, *parts.last_step(memory)
        memory, values = parts.one_step(network, state.policy.params, memory, inputs)
        noise = jnp.full(1, jnp.inf) if rng is None else jax.random.uniform(rng, (1,))
        action = epsilon_greedy(values, config.eps_end, noise, mask)
        # The reward is not known yet.
        memory = parts.with_last_step(config, space, memory, action, jnp.zeros(1))
        return jax.tree.map(lambda x: x[0], (action, memory))

    return policy


def make_buffer(config, env, env_params):
    """A replay buffer of Chunks, whose windows are sequences (details 1 and 2); its first state."""

    def chunk(step):
        memory = parts.fresh_memory(config, parts.ActionSpace(env.action_space(env_params)))
        repeat = lambda x: jnp.broadcast_to(x, (config.train_every, *x.shape))
        steps, previous = jax.tree.map(repeat, (step, parts.last_step(memory)))
        return Chunk(steps=steps, previous=previous, memory=memory)

    buffer = parts.ReplayBuffer(
        buffer_size=-(-config.buffer_size // config.train_every),
        num_envs=config.num_envs,
        num_steps=1,
        n_step=(config.burn_in + config.sequence_length) // config.train_every,
        prioritized=True,
        dtype=config.buffer_dtype,
        item_steps=config.train_every,
    )
    return buffer, lambda: buffer.create(env, env_params, chunk)


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    sizes, not_negative = ("target_every", "sequence_length"), ("burn_in", "staleness_steps")
    parts.check_cell(config)
    parts.check(INFO, config, env, env_params, *sizes, not_negative=not_negative)
    parts.check_rounds(config)
    length, every = config.burn_in + config.sequence_length, config.train_every
    if every > config.sequence_length:
        would = f"train_every={config.sequence_length} would do"
        raise ValueError(f"train_every={every} leaves steps unlearned; {would}")
    what = f"burn_in={config.burn_in} and sequence_length={config.sequence_length} together"
    parts.check_divides("train_every", every, what, length)
    parts.check_holds(config, length, f"a sequence of {length} steps")
    buffer, create = make_buffer(config, env, env_params)
    parts.check_fits(config, buffer, jax.eval_shape(create))


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.

    Raises:
      ValueError: a setting that cannot work, a space that R2D2 cannot take, or too large a buffer.
    """
    check(config, env, env_params)
    return parts.program(learner, config, env, env_params)


def learner(config: Config, env: Any, env_params: Any) -> parts.Learner:
    """The first state, an update (some rounds of acting and learning), and the policy."""
    buffer, create = make_buffer(config, env, env_params)
    rounds = parts.Rounds(config)  # detail 1
    # A round learns once there are `learning_starts` steps and a whole sequence.
    window = buffer.waiting * config.train_every + 1
    waiting = rounds.before(max(config.learning_starts, window))
    space = parts.ActionSpace(env.action_space(env_params))
    environments = envs.batch(env, config.num_envs, rounds.num_steps)
    network = QNetwork(config, space.size)
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    adam = optax.scale_by_adam(eps=config.adam_eps)
    optimizer = lambda rate: parts.on_one_vector(optax.chain(clip, adam, optax.scale(-rate)))

    def init(rng):
        rng, network_rng, reset_rng, eval_rng = jax.random.split(rng, 4)
        observation, env_state = environments.reset(reset_rng, env_params)
        memory = parts.fresh_memory(config, space, config.num_envs)
        inputs = observation.astype(jnp.float32), *parts.last_step(memory)
        inputs = jax.tree.map(lambda x: x[None], inputs)
        done = jnp.zeros((1, config.num_envs), bool)
        params = network.init(network_rng, memory, inputs, done)
        return TrainState(
            policy=PolicyState(params, parts.RunningStatistics.create(observation.shape[1:])),
            target_params=params,
            target_age=jnp.zeros((), jnp.int32),
            opt_state=optimizer(0.0).init(params),
            replay=create(),
            env_state=env_state,
            observation=observation,
            memory=memory,
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
            exploration=parts.flat_draw(jax.random.uniform, explore_rng, rounds.acting),
        )
        draws = buffer.noise(draw_rng, (rounds.gradient_steps, config.batch_size))
        env_state = environments.refill(start_rng, state.env_state, env_params)  # new start states
        state = state.replace(env_state=env_state, rng=rng)
        return rounds.run(round, state, noise, draws)

    def round(state, noise, now):
        """`train_every` steps of every environment, then `updates_per_step` gradient steps."""
        progress = now.number / float(rounds.total)
        epsilon, memory = epsilon_at(config, progress), state.memory
        state, (rollout, previous) = act(state, epsilon, noise)
        by_env = lambda x: x.swapaxes(0, 1)[None]  # (1, num_envs, train_every, ...)
        steps, previous = jax.tree.map(by_env, (rollout, previous))
        stored = jax.tree.map(lambda x: x[None], memory)
        chunks = Chunk(steps=steps, previous=previous, memory=stored)
        state = state.replace(replay=buffer.add(state.replay, chunks))
        if config.normalize_obs:
            obs_stats = state.policy.obs_stats.update(rollout.observation)
            state = state.replace(policy=state.policy.replace(obs_stats=obs_stats))
        ready = now.number >= waiting

        def learn(old, draws, index):
            new, metrics = gradient_step(old, draws, progress, ready)
            return parts.keep_if(ready, new, old), metrics

        state, metrics = rounds.repeat(learn, state, now, ready)
        if config.staleness_steps:
            metrics |= measure(state, now.draws[now.first, :MEASURED], ready)
        return state, metrics | {"epsilon": epsilon}, rollout

    def act(state, epsilon, noise):
        """`train_every` steps of every environment."""

        def step(state, noise):
            x = state.policy.obs_stats.as_input(config, state.observation)
            inputs = x, *parts.last_step(state.memory)  # detail 10
            memory, values = parts.one_step(network, state.policy.params, state.memory, inputs)
            mask = environments.action_mask(state.env_state, env_params)
            action = epsilon_greedy(values, epsilon, noise.exploration, mask)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                noise.step_rng, state.env_state, action, env_params
            )
            memory = parts.with_last_step(config, space, memory, action, reward, info)
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
            state = state.replace(env_state=env_state, observation=observation)
            state = state.replace(memory=parts.forget(memory, transition.done))  # detail 2
            return state, (transition, parts.last_step(memory))

        return parts.scan(step, state, noise)

    def replayed(state, index, first=0):
        """Stored states and a Sequence, from chunks at index (batch_size,), or `first` later."""
        rows = buffer.after(index[None], jnp.arange(first, buffer.n_step)[:, None])
        chunks = jax.tree.map(lambda x: x[rows], state.replay.transitions)
        in_time = lambda x: x.swapaxes(1, 2).reshape(-1, len(index), *x.shape[3:])
        steps, after = jax.tree.map(in_time, (chunks.steps, chunks.previous))
        memory = jax.tree.map(lambda x: x[0], chunks.memory)
        reset = lambda x: parts.forget(x[:-1], steps.done[:-1])
        before = lambda start, x: jnp.concatenate([start[None], reset(x)])
        previous = jax.tree.map(before, parts.last_step(memory), after)
        see = lambda x: state.policy.obs_stats.as_input(config, x)
        inputs, final = (see(steps.observation), *previous), (see(steps.final_observation), *after)
        sequence = Sequence(inputs=inputs, final_inputs=final, steps=steps)
        return memory, sequence

    def unroll(params, memory, sequence):
        """Memories after the learned steps, and their values; no gradient through the burn-in."""
        if config.burn_in:  # detail 3
            first = jax.tree.map(lambda x: x[: config.burn_in], sequence)
            kept = jax.lax.stop_gradient(params)
            memories, _ = network.apply(kept, memory, first.inputs, first.steps.done)
            memory = parts.forget(jax.tree.map(lambda x: x[-1], memories), first.steps.done[-1])
        learned = learned_steps(sequence)
        return network.apply(params, memory, learned.inputs, learned.steps.done)

    learned_steps = lambda x: jax.tree.map(lambda x: x[-config.sequence_length :], x)

    def final_values(params, memories, learned):
        """Values after each step, before any restart, (num_steps, batch_size, num_actions)."""
        final = memories, learned.final_inputs
        final = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), final)
        _, values = parts.one_step(network, params, *final)
        return values.reshape(*learned.steps.done.shape, -1)

    def targets(state, memory, sequence, online):
        """y_t = h(R_t), with n-step returns that bootstrap from h**-1(Q'(s', a*)).

        Q' is the target network. a* = argmax_a Q'(s', a), or with `double` argmax_a Q(s', a);
        `online` are Q's memories after the learned steps.
        """
        learned = learned_steps(sequence)
        memories, _ = unroll(state.target_params, memory, sequence)
        values = selecting = final_values(state.target_params, memories, learned)
        if config.double:
            selecting = final_values(state.policy.params, online, learned)
        values = of_action(values, greedy(selecting, learned.steps.final_action_mask))
        values = unscale(values, config.rescale_eps) if config.rescale_values else values
        rewards, steps = config.reward_scale * learned.steps.reward, learned.steps
        ends = steps.terminated, steps.done
        # detail 4
        returns = n_step_returns(rewards, values, *ends, config.gamma, config.n_step)
        return rescale(returns, config.rescale_eps) if config.rescale_values else returns

    def loss(params, state, memory, sequence, weights):
        """Mean of w (y - Q(s, a))**2 / 2 with importance weights w; |TD errors|; metrics.

        Errors are (sequence_length, batch_size), weights (batch_size,).
        """
        online, values = unroll(params, memory, sequence)
        steps = learned_steps(sequence).steps
        target = jax.lax.stop_gradient(targets(state, memory, sequence, online))
        errors = jnp.abs(target - of_action(values, steps.action))
        total = (weights * 0.5 * jnp.square(errors)).mean()
        best = of_action(values, greedy(values, steps.action_mask)).mean()
        return total, (errors, {"loss": total, "td_error": errors.mean(), "mean_value": best})

    def measure(state, draws, ready):
        """Staleness of a few stored states, once a round."""
        index = buffer.draw(state.replay, draws).index
        chunks = -(-config.staleness_steps // config.train_every)
        memory, sequence = replayed(state, index)
        _, stored = unroll(state.policy.params, memory, sequence)
        memory, longer = replayed(state, index, -chunks)
        fresh, done = jax.tree.map(jnp.zeros_like, memory), longer.steps.done
        _, recomputed = network.apply(state.policy.params, fresh, longer.inputs, done)
        ratio = staleness(stored, recomputed[-config.sequence_length :])
        # An end before the learned steps, in chunks that are not overwritten yet.
        back = jnp.repeat(jnp.arange(chunks, -buffer.n_step, -1), config.train_every)
        there = buffer.held(state.replay, index[None], back[:, None])
        known = (there & done)[: -config.sequence_length].any(0) & ready
        total = jnp.where(known, ratio, 0.0).sum(1) / jnp.maximum(known.sum(), 1)
        average = lambda x: parts.Average(x, known.any())
        return {"staleness_first": average(total[0]), "staleness_last": average(total[-1])}

    def gradient_step(state, draws, progress, ready):
        """Learns from a batch of sequences, and updates their priorities."""
        draw = buffer.draw(state.replay, draws)
        beta = config.priority_beta + progress * (1.0 - config.priority_beta)
        weights = importance_weights(draw.probability, buffer.num_windows(state.replay), beta)
        memory, sequence = replayed(state, draw.index)
        grads, (errors, metrics) = jax.grad(loss, has_aux=True)(
            state.policy.params, state, memory, sequence, weights
        )
        left = jnp.maximum(1.0 - progress, 0.0) if config.anneal_lr else 1.0
        rate, old = config.learning_rate * left, state.policy.params
        updates, opt_state = optimizer(rate).update(grads, state.opt_state, old)
        params = optax.apply_updates(old, updates)
        metrics |= {"grad_norm": parts.global_norm(grads), "current_learning_rate": rate}
        age = state.target_age + 1
        tau = jnp.where(age == config.target_every, config.tau, 0.0)  # detail 8
        move = lambda old, new: tau * new + (1.0 - tau) * old
        priority = sequence_priority(errors, config.priority_eta) + config.priority_eps  # detail 6
        priority = priority**config.priority_alpha
        state = state.replace(
            policy=state.policy.replace(params=params),
            target_params=jax.tree.map(move, state.target_params, params),
            target_age=age % config.target_every,
            opt_state=opt_state,
            replay=buffer.prioritize(state.replay, draw.index, priority, ready),
        )
        return state, metrics

    return parts.Learner(init, update, make_policy(config, env, env_params), rounds.steps)


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
