"""Categorical deep Q-learning, C51. A whole run, replay included, is one XLA program.

Paper: Bellemare et al. 2017, https://arxiv.org/abs/1707.06887. By flag: double Q-learning (van
Hasselt et al. 2016, https://arxiv.org/abs/1509.06461) and n-step returns.

    python algorithms/c51.py --env CartPole-v1 --seed 0
    python algorithms/c51.py --preset Acrobot-v1 --num-seeds 5

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
  7 The network gives, for every action, probabilities of `num_atoms` returns between v_min and
    v_max. Actions are chosen by their mean; the loss is the cross-entropy with the target.
  8 The projection shares each target atom between its two neighbours by distance, even if it falls
    on an atom. No mass is lost, and the mean is that of the clipped targets.
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
    "title": "Categorical deep Q-learning (C51)",
    "use": "as DQN, with distributions of returns; their range must be known",
    "paper": "[Bellemare et al. 2017](https://arxiv.org/abs/1707.06887)",
    "family": "action values",
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
    learning_rate: float = real(1e-3, "[0, inf)")  # Adam's step size
    anneal_lr: bool = static(True)  # take the learning rate linearly to zero
    adam_eps: float = real(1e-3, "(0, inf)")  # Adam's epsilon
    gamma: float = real(0.99, "[0, 1]")  # discount factor
    n_step: int = static(3)  # steps of reward before bootstrapping
    double: bool = static(False)  # the online network chooses the action of the target
    num_atoms: int = static(51)  # atoms of the return's distribution
    v_min: float = real(-100.0, "(-inf, inf)")  # smallest return
    v_max: float = real(100.0, "(v_min, inf)")  # largest return
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


class CategoricalNetwork(nn.Module):
    """Observations (batch, ...) to logits (batch, num_actions, num_atoms)."""

    config: Config
    num_actions: int

    @nn.compact
    def __call__(self, x):
        sizes, number = self.config.hidden_sizes, self.config.num_atoms
        x = parts.Torso(sizes, self.config.activation, self.config.conv_layers)(x)
        init, size = parts.orthogonal(1.0), self.num_actions * number  # detail 7
        logits = parts.Dense(size, kernel_init=init, name="action_head")(x)
        return logits.reshape(-1, self.num_actions, number)


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


def greedy(values, mask=None):
    """Actions (batch,) of the largest values (batch, num_actions) that the mask allows."""
    return jnp.argmax(values if mask is None else jnp.where(mask, values, -jnp.inf), -1)


def of_action(outputs, action):
    """Rows (batch, num_atoms) for actions (batch,) of (batch, num_actions, num_atoms)."""
    return jnp.einsum("baz,ba->bz", outputs, jax.nn.one_hot(action, outputs.shape[1]))


def atoms_of(config):
    """The support, (num_atoms,): z_i = v_min + i (v_max - v_min) / (num_atoms - 1)."""
    return jnp.linspace(config.v_min, config.v_max, config.num_atoms)


def action_values(config, logits):
    """Expected returns Q = sum_i p_i z_i, (...), of logits (..., num_atoms)."""
    return jax.nn.softmax(logits) @ atoms_of(config)


def project(probabilities, targets, atoms):  # detail 8
    """m_i = sum_j p_j max(0, 1 - |clip(y_j, v_min, v_max) - z_i| / dz), (batch, num_atoms).

    Equation 7 of Bellemare et al. 2017: probabilities p of targets y, both (batch, num_targets),
    on evenly spaced atoms z (num_atoms,), whose distance is dz.
    """
    spacing = (atoms[-1] - atoms[0]) / (len(atoms) - 1)  # of two neighbours it is less exact
    position = (jnp.clip(targets, atoms[0], atoms[-1]) - atoms[0]) / spacing
    distance = jnp.abs(position[:, :, None] - jnp.arange(len(atoms))[None, None])
    return jnp.einsum("bta,bt->ba", jnp.maximum(1.0 - distance, 0.0), probabilities)


def mass_beyond(probabilities, targets, atoms):
    """sum_j p_j [y_j < v_min or y_j > v_max], (batch,), for probabilities and targets as above: the
    mass that `project` moves to the ends. Targets that rounding puts there are not beyond."""
    slack = 1e-3 * (atoms[1] - atoms[0]) + 1e-6 * jnp.abs(atoms).max()
    beyond = (targets < atoms[0] - slack) | (targets > atoms[-1] + slack)
    return (probabilities * beyond).sum(-1)


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
    network = CategoricalNetwork(config, env.action_space(env_params).n)

    def policy(state, observation, memory=None, rng=None, mask=None):
        x = state.policy.obs_stats.as_input(config, observation)[None]
        values = action_values(config, network.apply(state.policy.params, x))
        mask = None if mask is None else mask[None]
        noise = jnp.full(1, jnp.inf) if rng is None else jax.random.uniform(rng, (1,))
        return epsilon_greedy(values, config.eps_end, noise, mask)[0], memory

    return policy


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    sizes, words = ("target_every", "num_atoms"), {"exploration": EXPLORATION}
    parts.check(INFO, config, env, env_params, *sizes, replay=True, words=words)
    if config.num_atoms < 2:
        raise ValueError(f"num_atoms={config.num_atoms}: give a whole number, 2 or more")


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.

    Raises:
      ValueError: a setting that cannot work, a space that C51 cannot take, or too large a buffer.
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
    network = CategoricalNetwork(config, env.action_space(env_params).n)
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
            new, metrics = gradient_step(old, draws, progress)
            return parts.keep_if(ready, new, old), metrics

        state, metrics = rounds.repeat(learn, state, now, ready)
        return state, metrics | {"epsilon": epsilon}, rollout

    def act(state, epsilon, noise):
        """`train_every` steps of every environment."""

        def step(state, noise):
            x = state.policy.obs_stats.as_input(config, state.observation)
            values = action_values(config, network.apply(state.policy.params, x))
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
        """m = project(p'(s_n, a*), R_n + gamma**n z), (batch_size, num_atoms). p', Q': target
        network. a* = argmax_a Q'(s_n, a), or with `double` argmax_a Q(s_n, a). Also the share of
        p' beyond v_min and v_max, ()."""
        x = state.policy.obs_stats.as_input(config, window.final_observation)
        next_logits = network.apply(state.target_params, x)
        # detail 6
        selecting = network.apply(state.policy.params, x) if config.double else next_logits
        best = greedy(action_values(config, selecting), window.final_action_mask)
        next_probs, atoms = jax.nn.softmax(of_action(next_logits, best)), atoms_of(config)
        returns = window.returns[:, None] + window.discount[:, None] * atoms[None]
        clipped = mass_beyond(next_probs, returns, atoms).mean()
        return project(next_probs, returns, atoms), clipped

    def loss(params, policy, window, target):  # detail 7
        """The mean of -sum_i m_i log p_i(s, a)."""
        x = policy.obs_stats.as_input(config, window.observation)
        logits = network.apply(params, x)
        log_probs = jax.nn.log_softmax(of_action(logits, window.action))
        total = -(target * log_probs).sum(-1).mean()
        best = of_action(logits, greedy(action_values(config, logits), window.action_mask))
        return total, {"loss": total, "mean_value": action_values(config, best).mean()}

    def gradient_step(state, draws, progress):
        """Learns from a batch of windows."""
        index = buffer.draw(state.replay, draws).index
        window = buffer.windows(state.replay.transitions, index, config.gamma)  # detail 4
        target, clipped = targets(state, window)
        of_params = jax.grad(loss, has_aux=True)
        grads, metrics = of_params(state.policy.params, state.policy, window, target)
        metrics["clipped_targets"] = clipped
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
