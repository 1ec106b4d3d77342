"""FlashSAC, soft actor-critic for many environments. A whole run, replay included, is one program.

Paper: Kim et al. 2026, https://arxiv.org/abs/2604.04539. Where the authors' code differs from it
(https://github.com/leeyngdo/FlashSAC, f2da589), this follows the code.

    python algorithms/flashsac.py --preset Pendulum-v1 --seed 0
    python algorithms/flashsac.py --env playground/CheetahRun --num-seeds 3

    train = make_train(Config(env="Pendulum-v1"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 8))

Implementation details:
  1 A round is `train_every` steps of each environment, then `updates_per_step` gradient steps. The
    replay ratio is updates_per_step / (num_envs * train_every).
  2 Layers between norms have no bias, and each of their units a weight vector of length 1: at the
    start, and again after every gradient step. Scale and bias of a batch norm have the length
    sqrt(size) together, the scale of the RMS norm has it alone. The heads of the actor and the
    bias of the critics' heads are free. Adam's moments stay.
  3 A block is x + relu(norm(W' relu(norm(W x)))) with batch norms; W widens `expansion` times. The
    input is normalised in the same way, so observations need no other statistics.
  4 Batch norms use a batch's moments in training, and running ones else. Running variances are
    unbiased. Both critics and their targets see (s, a) and (s', a') as one batch, and the actor s
    and s'. The actor's loss asks critics with running moments; next actions, acting and evaluation
    take the actor's running moments. Observations that never vary leave nothing to normalise, and
    then the policy does not learn.
  5 A critic is a distribution over `num_atoms` values between -v_max and v_max, as in C51. For each
    sample, that target critic counts whose mean is smallest, with its whole distribution.
  6 Rewards are divided by max(std of discounted sums G, max |G| / v_max) when they are sampled. The
    sum at an episode's last step is the whole episode's; the authors' code drops the episode
    before that step, and its last reward is left in the next episode's sums. Truncated episodes
    far shorter than 1 / (1 - gamma) hide how large values are: `clipped_targets` shows it, and a
    larger v_max helps.
  7 The atoms of targets, r + gamma (z - alpha log pi), are clipped with their entropy bonus.
  8 All environments hold their noise for the same n steps, P(n) ~ n**-noise_exponent.
  9 In the first of `policy_every` gradient steps the actor and the temperature learn, before the
    critics, which then see both new. All vmapped runs do so at the same steps.
 10 The target entropy is that of a Gaussian with the standard deviation `target_std`, for actions
    in [-1, 1].
 11 Learning rates fall along a cosine. Those of the actor and the temperature come 1 / policy_every
    as far, because the authors count each one's own steps.
 12 Target critics follow the parameters alone, and are not projected again. They have running
    moments of their own.
 13 A transition leads to the observation before any restart; the authors' code has the next
    episode's where one terminated. Shortened windows of `n_step` bootstrap with their own discount.
 14 Before `learning_starts`, actions are uniform over the box.
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
    "title": "Soft actor-critic for many environments (FlashSAC)",
    "use": "bounded continuous actions in a thousand environments at once",
    "paper": "[Kim et al. 2026](https://arxiv.org/abs/2604.04539)",
    "family": "actor-critics",
    "actions": "continuous",
    "masks": False,
    "agents": "one",
    "memory": False,
    "split": True,
}


@struct.dataclass
class Config:
    env: str = static("Pendulum-v1")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # env settings, name=value,...
    total_timesteps: int = static(10_000_000)  # environment steps of the whole run
    num_envs: int = static(1024)  # parallel environments
    train_every: int = static(1)  # steps of each environment between two rounds of learning
    updates_per_step: int = static(2)  # gradient steps in a round of learning
    buffer_size: int = static(1_000_000)  # transitions kept, over all environments
    buffer_dtype: str = static("")  # dtype of stored observations, such as bool; "": unchanged
    batch_size: int = static(2048)  # transitions in a gradient step
    learning_starts: int = static(100_000)  # environment steps before the first gradient step
    learning_rate: float = real(3e-4, "[0, inf)")  # Adam's step size at first
    final_lr_share: float = real(0.5, "[0, 1]")  # share of it that is left at the end of a cosine
    adam_b1: float = real(0.9, "[0, 1)")  # decay of Adam's mean of gradients
    adam_b2: float = real(0.999, "[0, 1)")  # decay of Adam's mean of squares
    adam_eps: float = real(1e-8, "(0, inf)")  # Adam's epsilon
    gamma: float = real(0.99, "[0, 1]")  # discount factor
    n_step: int = static(1)  # steps of reward before bootstrapping
    tau: float = real(0.01, "[0, 1]")  # share that the target critics move at a gradient step
    policy_every: int = static(2)  # gradient steps of the critics for each of the actor
    num_atoms: int = static(101)  # atoms of the distributions of returns
    v_max: float = real(5.0, "(0, inf)")  # largest atom; returns are scaled to stay below it
    normalize_reward: bool = static(True)  # scale rewards to bound returns by v_max
    initial_temperature: float = real(0.01, "(0, inf)")  # initial weight of the entropy
    learn_temperature: bool = static(True)  # keep the entropy at its target
    target_std: float = real(0.15, "(0, inf)")  # standard deviation that has the target entropy
    min_log_std: float = real(-5.0, "(-inf, max_log_std]")  # smallest log standard deviation
    max_log_std: float = real(0.0, "(-inf, inf)")  # largest one
    noise_exponent: float = real(2.0, "[0, inf)")  # of the law of the steps that noise is held
    noise_repeat: int = static(16)  # steps that noise is held at most; 1: new noise at each step
    asymmetric: bool = static(False)  # critics see the environment's world state too
    norm_momentum: float = real(0.01, "[0, 1]")  # share of a batch in the running moments
    num_critics: int = static(2)  # critics; the one with the smallest mean counts
    num_blocks: int = static(2)  # residual blocks of the actor
    critic_blocks: int = static(2)  # residual blocks of each critic
    hidden_size: int = static(128)  # width of the actor
    critic_hidden_size: int = static(256)  # width of each critic
    expansion: int = static(4)  # factor by which a block widens
    activation: str = static("relu")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    compute_dtype: str = static("float32")  # dtype of hidden layers: float32 or bfloat16
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------


class Torso(nn.Module):  # detail 3
    """Inputs (batch, ...) to features (batch, size)."""

    config: Config
    size: int
    num_blocks: int

    @nn.compact
    def __call__(self, train, x, *more):
        c = self.config
        activation = parts.activation(c.activation)
        dense = lambda size: parts.Dense(
            size, use_bias=False, kernel_init=parts.orthogonal(1.0), dtype=c.compute_dtype
        )
        norm = lambda x: parts.BatchNorm(c.norm_momentum)(x, train)  # details 2 and 4
        x = parts.Torso((), c.activation, c.conv_layers)(x, *more)
        x = dense(self.size)(norm(x)).astype(jnp.float32)
        for _ in range(self.num_blocks):
            wide = activation(norm(dense(c.expansion * self.size)(x)))
            x = x + activation(norm(dense(self.size)(wide)))
        return parts.RMSNorm(1e-6)(x)


class Actor(nn.Module):
    """Observations (batch, ...) to distributions of actions in [-1, 1]."""

    config: Config
    size: int  # dimensions of the action
    seen: int | None = None  # numbers of an observation that it sees, the first ones; None: all

    @nn.compact
    def __call__(self, x, train=False):
        c = self.config
        x = Torso(c, c.hidden_size, c.num_blocks)(train, x[:, : self.seen])
        small, zeros = nn.initializers.normal(1e-3), nn.initializers.zeros
        mean = parts.Dense(self.size, kernel_init=small, name="mean_head")(x)
        squashed = nn.tanh(parts.Dense(self.size, kernel_init=zeros, name="std_head")(x))
        log_std = c.min_log_std + 0.5 * (c.max_log_std - c.min_log_std) * (1.0 + squashed)
        return parts.TanhGaussian(mean, log_std)


class Critic(nn.Module):
    """Observations (batch, ...) and actions (batch, dimensions) in [-1, 1] to log probabilities of
    the atoms, (batch, num_atoms)."""

    config: Config

    @nn.compact
    def __call__(self, x, action, train=False):
        c, init = self.config, parts.orthogonal(1.0)
        x = Torso(c, c.critic_hidden_size, c.critic_blocks)(train, x, action)
        x = parts.Dense(c.num_atoms, use_bias=False, kernel_init=init, name="value_head")(x)
        return nn.log_softmax(x + self.param("free_bias", nn.initializers.zeros, (c.num_atoms,)))


def project(params):  # detail 2
    """Kernels (inputs, units) without a bias get units of length 1; the scale of a norm, together
    with its bias if it has one, gets length sqrt(size). Other parameters stay."""
    if "scale" in params:
        square = sum(jnp.square(x).sum(-1, keepdims=True) for x in params.values())
        factor = jnp.sqrt(params["scale"].shape[-1] / (square + 1e-8))
        return {name: factor * x for name, x in params.items()}
    if set(params) == {"kernel"}:
        length = jnp.linalg.norm(params["kernel"], axis=-2, keepdims=True)
        return {"kernel": params["kernel"] / jnp.maximum(length, 1e-8)}
    return {name: project(x) if isinstance(x, dict) else x for name, x in params.items()}


# --- data types -------------------------------------------------------------------------------


@struct.dataclass
class PolicyState:
    """The part of the state that acting needs."""

    variables: dict[str, Any]  # params, and the running moments of features


class Held(NamedTuple):
    """Noise of exploration that is held, by all environments for as long."""

    noise: jax.Array  # normal, (num_envs, dimensions)
    left: jax.Array  # steps that it is held from now on, int32 ()


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
    target_critics: dict[str, Any]
    log_temperature: jax.Array  # ()
    critic_opt_state: optax.OptState
    policy_opt_state: optax.OptState  # for the actor and the temperature
    reward_scale: parts.ReturnStatistics
    held: Held
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
    duration: jax.Array  # uniform, (train_every,)


class Draws(NamedTuple):
    """Random numbers of a gradient step."""

    windows: jax.Array  # (batch_size,), see parts.ReplayBuffer
    actions: jax.Array  # normal, (2, batch_size, dimensions): for s, and for s_n


# --- formulas ---------------------------------------------------------------------------------


def divisor(config, scale):  # detail 6
    """max(sqrt(Var G + 1e-8), max |G| / v_max) of discounted sums G; it divides rewards."""
    if not config.normalize_reward:
        return jnp.ones(())
    return jnp.maximum(jnp.sqrt(scale.stats.var + 1e-8), scale.largest / config.v_max)


def durations(uniform, exponent, longest):  # detail 8
    """n in 1, ..., longest with P(n) ~ n**-exponent, for uniform noise (...), int32."""
    weights = jnp.arange(1.0, longest + 1.0) ** -exponent
    below = jnp.cumsum(weights)[:-1] / weights.sum()
    return 1 + (uniform[..., None] >= below).sum(-1)


def of_lowest_mean(log_probs, atoms):  # detail 5
    """Of distributions (num_critics, batch, num_atoms) the one of the smallest mean for each
    sample, (batch, num_atoms)."""
    probs = jnp.exp(log_probs)
    lowest = jnp.argmin(probs @ atoms, 0)
    return jnp.take_along_axis(probs, lowest[None, :, None], 0)[0]


def project_mass(probs, targets, atoms):  # detail 7
    """The mass of targets y_j (batch, num_atoms), clipped to the atoms, on the two atoms beside
    each, in proportion to their nearness: (batch, num_atoms)."""
    last = len(atoms) - 1
    spacing = (atoms[-1] - atoms[0]) / last  # of two neighbours it is less exact
    position = (jnp.clip(targets, atoms[0], atoms[-1]) - atoms[0]) / spacing
    lower = jnp.clip(jnp.floor(position), 0.0, last - 1.0)
    share = position - lower
    row, lower = jnp.arange(len(probs))[:, None], lower.astype(jnp.int32)
    mass = jnp.zeros_like(probs).at[row, lower].add(probs * (1.0 - share))
    return mass.at[row, lower + 1].add(probs * share)


def target_entropy(size, std):  # detail 10
    """size / 2 log(2 pi e std**2)."""
    return 0.5 * size * jnp.log(2.0 * math.pi * math.e * std**2)


def cosine(progress, share):  # detail 11
    """From 1 at progress 0 along half a cosine to `share` at 1."""
    return share + (1.0 - share) * 0.5 * (1.0 + jnp.cos(math.pi * jnp.clip(progress, 0.0, 1.0)))


# --- acting and training ----------------------------------------------------------------------


@parts.with_environment
def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None, mask=None) -> action, memory.

    The policy is for one environment, and its actions are in the environment's box. Without rng it
    takes tanh of the mean, with rng a sample, new at every step.
    """
    space = parts.ActionSpace(env.action_space(env_params))
    network = Actor(config, space.size)

    def policy(state, observation, memory=None, rng=None, mask=None):
        actions = network.apply(state.policy.variables, parts.scaled(observation)[None])
        action = actions.mode() if rng is None else actions.sample(seed=rng)
        return space.rescale(action)[0], memory

    return policy


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    sizes = "num_critics", "policy_every", "noise_repeat", "hidden_size", "critic_hidden_size"
    sizes += "num_blocks", "critic_blocks", "expansion"
    parts.check(INFO, config, env, env_params, *sizes, replay=True)
    for name, why in (("num_atoms", "101 is usual"), ("batch_size", "batch norms need it")):
        if getattr(config, name) < 2:
            raise ValueError(f"{name}={getattr(config, name)}: give 2 or more; {why}")


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.

    Raises:
      ValueError: a setting that cannot work, a space that FlashSAC cannot take, or a buffer larger
        than the device's memory.
    """
    check(config, env, env_params)
    return parts.program(learner, config, env, env_params)


def learner(config: Config, env: Any, env_params: Any) -> parts.Learner:
    """The first state, an update (some rounds of acting and learning), and the policy."""
    env, seen = envs.for_critics(env, env_params) if config.asymmetric else (env, None)
    buffer = parts.ReplayBuffer.of(config)
    rounds = parts.Rounds(config, period=config.policy_every)  # detail 1
    # A round learns once there are `learning_starts` steps and a whole window.
    waiting = rounds.before(max(config.learning_starts, buffer.waiting + 1))
    # Actions are uniform in rounds that begin before `learning_starts`, or before any learning.
    uniform = max(waiting, rounds.before(config.learning_starts) + 1)
    environments = envs.batch(env, config.num_envs, rounds.num_steps)
    space = parts.ActionSpace(env.action_space(env_params))
    size = space.size
    atoms = jnp.linspace(-config.v_max, config.v_max, config.num_atoms)  # detail 5
    actor, critic = Actor(config, size, seen), Critic(config)
    adam = optax.scale_by_adam(config.adam_b1, config.adam_b2, config.adam_eps)
    optimizer = lambda rate: parts.on_one_vector(optax.chain(adam, optax.scale(-rate)))

    def init(rng):
        rng, actor_rng, critic_rng, reset_rng, eval_rng = jax.random.split(rng, 5)
        observation, env_state = environments.reset(reset_rng, env_params)
        x, action = parts.scaled(observation), jnp.zeros((config.num_envs, size))
        projected = lambda variables: variables | {"params": project(variables["params"])}
        start = lambda rng: projected(critic.init(rng, x, action))
        of_actor = projected(actor.init(actor_rng, x))
        critics = jax.vmap(start)(jax.random.split(critic_rng, config.num_critics))
        log_temperature = jnp.log(config.initial_temperature)
        return TrainState(
            policy=PolicyState(of_actor),
            critics=critics,
            target_critics=critics,
            log_temperature=log_temperature,
            critic_opt_state=optimizer(0.0).init(critics["params"]),
            policy_opt_state=optimizer(0.0).init((of_actor["params"], log_temperature)),
            reward_scale=parts.ReturnStatistics.create(config.num_envs),
            held=Held(noise=action, left=jnp.zeros((), jnp.int32)),
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
        keys = jax.random.split(state.rng, 7)
        rng, start_rng, step_rng, explore_rng, hold_rng, draw_rng, action_rng = keys
        steps = rounds.gradient_steps
        draws = Draws(
            windows=buffer.noise(draw_rng, (steps, config.batch_size)),
            actions=jax.random.normal(action_rng, (steps, 2, config.batch_size, size)),
        )
        noise = Noise(
            step_rng=jax.random.split(step_rng, rounds.acting[:2]),
            exploration=jax.random.normal(explore_rng, (*rounds.acting, size)),
            # The same on all shards, and uniform again
            duration=parts.sum_over_shards(jax.random.uniform(hold_rng, rounds.acting[:2])) % 1.0,
        )
        env_state = environments.refill(start_rng, state.env_state, env_params)  # new start states
        state = state.replace(env_state=env_state, rng=rng)
        return rounds.run(round, state, noise, draws)

    def round(state, noise, now):
        """`train_every` steps of every environment, then `updates_per_step` gradient steps."""
        state, rollout = act(state, now.number < uniform, noise)
        scale = state.reward_scale.update(rollout.reward, rollout.done, config.gamma)  # detail 6
        state = state.replace(replay=buffer.add(state.replay, rollout), reward_scale=scale)
        ready = now.number >= waiting
        learned = (now.number - waiting) / float(rounds.total)

        def learn(old, draws, index):
            turn = index % config.policy_every == 0  # detail 9
            new, metrics = gradient_step(old, draws, learned, turn)
            return parts.keep_if(ready, new, old), metrics

        state, metrics = rounds.repeat(learn, state, now, ready)
        return state, metrics, rollout

    def act(state, warm_up, noise):
        """`train_every` steps of every environment."""

        def step(state, noise):
            steps = durations(noise.duration, config.noise_exponent, config.noise_repeat)
            fresh = Held(noise=noise.exploration, left=steps)
            renew = lambda new, old: jnp.where(state.held.left == 0, new, old)
            held = jax.tree.map(renew, fresh, state.held)  # detail 8
            actions = actor.apply(state.policy.variables, parts.scaled(state.observation))
            action = space.sample(actions, held.noise, noise.step_rng)
            action = jnp.where(warm_up, space.uniform_from(fresh.noise), action)  # detail 14
            observation, env_state, reward, terminated, truncated, info = environments.step(
                noise.step_rng, state.env_state, space.rescale(action), env_params
            )
            transition = parts.Transition(
                observation=state.observation,
                action=space.shaped(action),
                reward=reward,
                terminated=terminated,
                done=terminated | truncated,
                final_observation=info["final_observation"],  # detail 13
            )
            held = held._replace(left=held.left - 1)
            state = state.replace(env_state=env_state, observation=observation, held=held)
            return state, transition

        return parts.scan(step, state, noise)

    def targets(state, window, noise, both):
        """The distribution of R_n / scale + gamma**n (z - alpha log pi(a'|s_n)), a' ~ pi, on the
        atoms, (batch, num_atoms), with R_n the n-step return and z of the target critics; the
        joint batch for critics; the target critics' new moments; and the mass that was clipped."""
        actions = actor.apply(state.policy.variables, both[len(both) // 2 :])
        next_action, log_prob = actions.sample_and_log_prob_from(noise)
        action = jnp.concatenate([window.action.reshape(-1, size), next_action])
        log_probs, changed = in_training(state.target_critics, both, action)  # detail 4
        probs = of_lowest_mean(jnp.split(log_probs, 2, axis=1)[1], atoms)
        bonus = jnp.exp(state.log_temperature) * log_prob
        scaled = window.returns / divisor(config, state.reward_scale)
        target = scaled[:, None] + window.discount[:, None] * (atoms[None] - bonus[:, None])
        beyond = (probs * (jnp.abs(target) > config.v_max * (1.0 + 1e-3))).sum(-1).mean()
        return project_mass(probs, target, atoms), (both, action), changed, beyond

    def in_training(critics, x, action):
        """Log probabilities (num_critics, batch, num_atoms), and the new running moments."""
        apply = lambda v: critic.apply(v, x, action, True, mutable="moments")
        return jax.vmap(apply)(critics)

    def critic_loss(params, critics, inputs, target):
        """The mean over critics and samples of -sum_i m_i log p_i; new moments; the mean value."""
        log_probs, changed = in_training(critics | {"params": params}, *inputs)
        log_probs = jnp.split(log_probs, 2, axis=1)[0]  # (num_critics, batch, num_atoms)
        loss = -(target * log_probs).sum(-1).mean()
        return loss, (changed, (jnp.exp(log_probs) @ atoms).min(0).mean())

    def policy_loss(params, log_temperature, state, both, noise):
        """The mean of alpha log pi(a|s) - min_k Q_k(s, a), plus the temperature's loss.

        This is alpha (H - target) with the entropy H. Also returns new running moments and metrics.
        """
        temperature = jnp.exp(log_temperature)
        variables, number = state.policy.variables | {"params": params}, len(both) // 2
        actions, changed = actor.apply(variables, both, True, mutable="moments")  # detail 4
        actions = jax.tree.map(lambda x: x[:number], actions)
        action, log_prob = actions.sample_and_log_prob_from(noise)
        frozen = jax.vmap(critic.apply, (0, None, None))(state.critics, both[:number], action)
        value = (jnp.exp(frozen) @ atoms).min(0)
        loss = (jax.lax.stop_gradient(temperature) * log_prob - value).mean()
        entropy = jax.lax.stop_gradient(-log_prob).mean()
        metrics = {"actor_loss": loss, "entropy": entropy, "temperature": temperature}
        if config.learn_temperature:
            surplus = entropy - target_entropy(size, config.target_std)
            loss = loss + temperature * surplus
        return loss, (changed, metrics)

    def gradient_step(state, draws, learned, turn):
        """Learns from a batch of windows: first the actor, if it is its turn, then the critics."""
        draw = buffer.draw(state.replay, draws.windows)
        window = buffer.windows(state.replay.transitions, draw.index, config.gamma)
        both = parts.scaled(jnp.concatenate([window.observation, window.final_observation]))
        slow = cosine(learned / config.policy_every, config.final_lr_share)  # detail 11

        def improve(old):
            """The gradient step of the actor and the temperature."""
            params = old.policy.variables["params"], old.log_temperature
            slopes = jax.grad(policy_loss, (0, 1), has_aux=True)
            grads, (changed, metrics) = slopes(*params, state, both, draws.actions[0])
            grads = parts.mean_over_shards(grads)
            optimize = optimizer(config.learning_rate * slow).update
            updates, opt_state = optimize(grads, old.policy_opt_state, params)
            of_actor, log_temperature = optax.apply_updates(params, updates)
            return metrics, Delayed(
                policy=PolicyState(changed | {"params": project(of_actor)}),
                log_temperature=log_temperature,
                policy_opt_state=opt_state,
            )

        old = Delayed(state.policy, state.log_temperature, state.policy_opt_state)
        no_metrics = dict.fromkeys(("actor_loss", "entropy", "temperature"), jnp.zeros(()))
        of_policy, new = parts.branch(turn, improve, lambda old: (no_metrics, old), old)  # detail 9
        state = state.replace(**new._asdict())

        target, inputs, moments, beyond = targets(state, window, draws.actions[1], both)
        params = state.critics["params"]
        slopes = jax.value_and_grad(critic_loss, has_aux=True)
        (loss, (changed, value)), grads = slopes(params, state.critics, inputs, target)
        grads = parts.mean_over_shards(grads)
        rate = config.learning_rate * cosine(learned, config.final_lr_share)
        updates, opt_state = optimizer(rate).update(grads, state.critic_opt_state, params)
        params = project(optax.apply_updates(params, updates))
        move = lambda old, new: old + config.tau * (new - old)  # detail 12
        slow_params = jax.tree.map(move, state.target_critics["params"], params)
        metrics = {
            "critic_loss": loss,
            "mean_value": value * divisor(config, state.reward_scale),
            "clipped_targets": beyond,
            "grad_norm": parts.global_norm(grads),
            "current_learning_rate": rate,
        }
        metrics |= {name: parts.Average(x, turn) for name, x in of_policy.items()}
        state = state.replace(
            critics=changed | {"params": params},
            target_critics=moments | {"params": slow_params},
            critic_opt_state=opt_state,
        )
        return state, metrics

    policy = make_policy(config, env, env_params)
    return parts.Learner(init, update, policy, rounds.steps)


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
