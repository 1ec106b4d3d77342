"""PPO with prioritised level replay (PLR): trains most on the levels with most left to learn.

Papers: PLR (Jiang et al. 2021a, https://arxiv.org/abs/2010.03934), robust PLR (Jiang et al. 2021b,
https://arxiv.org/abs/2110.02439) and ACCEL (Parker-Holder et al. 2022,
https://arxiv.org/abs/2203.01302), on top of PPO (Schulman et al. 2017).

    python algorithms/ppo_plr.py --preset CartPole-v1 --robust
    python algorithms/ppo_plr.py --preset Acrobot-v1 --robust --edit-share 0.5
    python algorithms/ppo_plr.py --env xminigrid/MiniGrid-FourRooms

A level is the key of a reset and the parameters that `randomize` draws (docs/environments.md), so
any environment has levels. Loss and gradient steps are those of ppo.py. Implementation details:
  1 All environments share one rollout, whatever they play. Under vmap, a branch between kinds of
    updates would compute all of them.
  2 Each episode is played in the next level of its environment. Levels are drawn before a rollout,
    one for each environment and window of steps: envs/batch.py.
  3 The first `replay_share` of the environments replay levels of the buffer, no level twice in a
    window. A share that is not a whole number of environments is met on average. Until a share
    `min_fill` of the buffer is full, they play new levels.
  4 `edit_share` of the other environments play a level that is drawn like a replay, with its
    parameters moved (ACCEL). Without `randomize` nothing moves. The rest play new levels.
  5 A level is scored when its environment has left it. If it was not replayed, it enters the buffer
    if its score exceeds the lowest.
  6 With `robust`, only replayed levels are learned from; the others are only scored. With
    `replay_share` 0 and without `robust`, this is plain domain randomisation.
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
from envs import levels

INFO = {
    "title": "PPO with prioritised level replay (PLR, robust PLR, ACCEL)",
    "use": "a policy that must not fail on rare levels, at some cost in the mean",
    "paper": "[Jiang et al. 2021](https://arxiv.org/abs/2010.03934), "
    "[Parker-Holder et al. 2022](https://arxiv.org/abs/2203.01302)",
    "family": "policy gradients",
    "actions": ("discrete", "continuous"),
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
    num_steps: int = static(128)  # steps of each environment in a rollout
    update_epochs: int = static(4)  # passes over each rollout
    num_minibatches: int = static(4)  # gradient steps in a pass
    score: str = static("pvl")  # score of levels: pvl (positive value loss) or maxmc
    level_buffer_size: int = static(256)  # levels to replay
    replay_share: float = real(0.5, "[0, 1]", robust={True: "(0, 1]"})  # share of envs that replay
    min_fill: float = real(0.5, "[0, 1]")  # share of the buffer to fill before any replay
    priority: str = static("rank")  # priority of levels: rank, or score (proportional)
    temperature: float = real(0.3, "(0, inf)")  # temperature of priorities; low favours high scores
    staleness_coef: float = real(0.3, "[0, 1]")  # share of replays for levels not seen for long
    robust: bool = static(False)  # learn from replayed levels only
    edit_share: float = real(0.0, "[0, 1]")  # share of the others that play edited levels
    edit_std: float = real(0.1, "[0, inf)")  # standard deviation of an edit, in shares of a range
    learning_rate: float = real(1e-3, "[0, inf)")  # Adam's step size
    anneal_lr: bool = static(True)  # take the learning rate linearly to zero
    adam_eps: float = real(1e-4, "(0, inf)")  # Adam's epsilon
    gamma: float = real(0.99, "[0, 1]")  # discount factor
    gae_lambda: float = real(0.95, "[0, 1]")  # decay of the advantage trace
    clip_eps: float = real(0.2, "(0, inf]")  # range of the ratio
    normalize_advantage: bool = static(True)  # standardise advantages in each minibatch
    ent_coef: float = real(0.01, "[0, inf)")  # weight of the entropy bonus
    vf_coef: float = real(0.5, "[0, inf)")  # weight of the value loss
    max_grad_norm: float = real(0.5, "(0, inf]")  # clip gradients to this global norm; inf: never
    hidden_sizes: tuple[int, ...] = static((64, 64))  # dense layers of each tower
    activation: str = static("tanh")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    compute_dtype: str = static("float32")  # dtype of hidden layers: float32 or bfloat16
    shared_torso: bool = static(False)  # one tower for actor and critic
    normalize_obs: bool = static(True)  # normalise observations by running mean and variance
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
        make_torso = lambda: parts.Torso(
            config.hidden_sizes, config.activation, config.conv_layers, dtype=config.compute_dtype
        )
        self.actor_torso = make_torso()
        self.critic_torso = self.actor_torso if config.shared_torso else make_torso()
        self.actor_head = parts.Dense(size, kernel_init=parts.orthogonal(0.01))
        self.critic_head = parts.Dense(1, kernel_init=parts.orthogonal(1.0))
        if not self.space.discrete:
            self.log_std = self.param("log_std", nn.initializers.zeros, (size,))

    def actor(self, x, mask=None):
        """An action has no probability where the mask (batch, num_actions) is False."""
        output = self.actor_head(self.actor_torso(x))
        if self.space.discrete:
            return parts.Categorical(output, mask)
        return parts.Gaussian(output, self.log_std)

    def critic(self, x):
        return self.critic_head(self.critic_torso(x))[..., 0]

    def __call__(self, x, mask=None):
        return self.actor(x, mask), self.critic(x)


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
    env_state: envs.BatchState
    observation: jax.Array  # (num_envs, ...)
    episodes: Any  # of `envs.batch`
    reward_scale: parts.RewardScale
    running: parts.Visits  # to the levels of the running episodes
    returns: parts.EpisodeReturns  # of these episodes, for maxmc
    levels: parts.LevelBuffer
    level_rng: jax.Array  # key for levels
    rollout_rng: jax.Array  # key for acting and the environments
    order_rng: jax.Array  # key for the order of samples
    eval_rng: jax.Array  # constant: all evaluations use it
    update: jax.Array  # rollouts learned from so far, int32


class Transition(NamedTuple):
    """A rollout; leading axes (num_steps, num_envs)."""

    observation: jax.Array
    mask: jax.Array | None  # allowed actions
    action: jax.Array  # unclipped
    reward: jax.Array
    terminated: jax.Array
    done: jax.Array  # terminated or truncated
    final_observation: jax.Array  # after the action, before any restart


class Batch(NamedTuple):
    """Samples to learn from; leading axis num_steps * num_envs, or that of a minibatch."""

    observation: jax.Array  # normalised
    mask: jax.Array | None
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array
    weight: jax.Array  # 1, or 0 where robust PLR does not learn


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


def level_scores(config, visits, best):
    """Scores of levels, means over the steps in them (Jiang et al. 2021b, section 4.1).

    pvl: max(A_t, 0), the positive value loss. maxmc: R_max - V(s_t). R_max is `best`, the level's
    highest return so far, which is discounted here, because V is.
    """
    mean = visits.total / jnp.maximum(visits.steps, 1.0)
    return mean if config.score == "pvl" else best - mean


def replay_distribution(config, buffer, update):
    """P = (1 - rho) P_S + rho P_C of the buffer's levels, (level_buffer_size,); 0 in empty slots.

    P_S is proportional to h ** (1 / temperature), where h is 1 / rank or the score itself, at least
    1e-8. P_C is proportional to the updates since the level was last scored, and rho is
    staleness_coef: section 3 of Jiang et al. 2021a.
    """
    rank = jnp.argsort(jnp.argsort(-buffer.score)) + 1.0  # 1 for the highest score
    h = 1.0 / rank if config.priority == "rank" else jnp.maximum(buffer.score, 1e-8)
    logits = jnp.where(buffer.filled, jnp.log(h) / config.temperature, -1e30)
    of_score = buffer.filled * jnp.exp(jnp.maximum(logits - logits.max(), -69.0))  # never 0
    stale = buffer.filled * (update - buffer.played)
    stale = jnp.where(stale.sum() > 0, stale, buffer.filled).astype(jnp.float32)
    share = lambda x: x / jnp.maximum(x.sum(), 1.0)
    rho = config.staleness_coef
    return (1.0 - rho) * share(of_score) + rho * share(stale)


def reflect(shares):
    """Shares of any size, folded back into [0, 1] at its ends."""
    return 1.0 - jnp.abs(jnp.mod(shares, 2.0) - 1.0)


def clipped_surrogate(log_ratio, advantages, clip_eps):
    """-min(q A, clip(q, 1 - eps, 1 + eps) A), q = exp(log_ratio), all (batch,): equation 7 of
    Schulman et al. 2017, negated."""
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip_eps, 1.0 + clip_eps)
    return -jnp.minimum(ratio * advantages, clipped * advantages)


def weighted_mean(x, weights):
    """sum w x / sum w over all axes; 0 where all weights are 0."""
    return (weights * x).sum() / jnp.maximum(weights.sum(), 1.0)


def standardised(advantages, weights):
    """(A - mean) / (std + 1e-8) of the samples that count, (batch,)."""
    centred = advantages - weighted_mean(advantages, weights)
    return centred / (jnp.sqrt(weighted_mean(jnp.square(centred), weights)) + 1e-8)


def learning_rates(config, num_updates, update):
    """learning_rate (1 - p) of an update's gradient steps, (update_epochs * num_minibatches,), with
    progress p in [0, 1] through the run."""
    steps = config.update_epochs * config.num_minibatches
    left = 1.0 - (update.astype(jnp.float32) + jnp.arange(steps) / steps) / float(num_updates)
    return config.learning_rate * (jnp.maximum(left, 0.0) if config.anneal_lr else jnp.ones(steps))


# --- acting and training ----------------------------------------------------------------------


@parts.with_environment
def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None, mask=None) -> action, memory.

    The policy is for one environment. Without rng it takes the most probable action, or the mean;
    with rng it takes a sample. mask (num_actions,): `env.action_mask`, the allowed actions.
    """
    space = parts.ActionSpace(env.action_space(env_params))
    network = ActorCritic(config, space)

    def policy(state, observation, memory=None, rng=None, mask=None):
        x = state.policy.obs_stats.as_input(config, observation)[None]
        actions = network.apply(state.policy.params, x, mask, method="actor")
        action = actions.mode() if rng is None else actions.sample(seed=rng)
        return space.clip(action[0]), memory

    return policy


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    sizes = ("num_steps", "update_epochs", "num_minibatches", "level_buffer_size")
    words = {"score": ("pvl", "maxmc"), "priority": ("rank", "score")}
    parts.check(
        INFO, config, env, env_params, *sizes, minibatches_of="samples", unit_std=True, words=words
    )
    if config.level_buffer_size < config.num_envs:
        raise ValueError(
            f"level_buffer_size={config.level_buffer_size}: every environment may replay a level "
            f"of its own; num_envs={config.num_envs} or more would do"
        )
    parts.warn_of_one_level(env, env_params)


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
    environments = levels.batch_of_levels(env, config.num_envs, config.num_steps)  # detail 1
    stock_shape = environments.depth, config.num_envs
    capacity = config.level_buffer_size  # also stands for "no slot of the buffer"
    space = parts.ActionSpace(env.action_space(env_params))
    network = ActorCritic(config, space)
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    adam = optax.scale_by_adam(eps=config.adam_eps)
    optimizer = lambda rate: parts.on_one_vector(optax.chain(clip, adam, optax.scale(-rate)))

    def init(rng):
        keys = jax.random.split(rng, 6)
        order_rng, network_rng, reset_rng, rollout_rng, eval_rng, level_rng = keys
        first = levels.draw(env, reset_rng, stock_shape)
        observation, env_state = environments.reset(first, env_params)
        first = jax.tree.map(lambda x: x[0], first)
        x = observation.astype(jnp.float32)
        params = network.init(network_rng, x)
        return TrainState(
            policy=PolicyState(params, parts.RunningStatistics.create(observation.shape[1:])),
            opt_state=optimizer(0.0).init(params),
            env_state=env_state,
            observation=observation,
            episodes=environments.episodes(),
            reward_scale=parts.RewardScale.create(config.num_envs),
            running=parts.Visits.create(first, jnp.full(config.num_envs, capacity, jnp.int32)),
            returns=parts.EpisodeReturns.create(config.num_envs),
            levels=parts.LevelBuffer.create(first, capacity),
            level_rng=level_rng,
            rollout_rng=rollout_rng,
            order_rng=order_rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state):
        """Draws levels, collects a rollout, learns from it, and scores the levels."""
        state, stock = draw_levels(state)
        state, rollout = collect(state, stock)
        visits = state.running.then(stock)
        visit = parts.visit_of_steps(rollout.done, environments.window)
        replayed = jnp.take_along_axis(visits.slot, visit[:-1], axis=0) < capacity
        batch = prepare(state, rollout, replayed)
        state, metrics = learn(state, batch)
        metrics["mean_value"] = batch.value.mean()
        metrics["explained_variance"] = parts.explained_variance(batch.value, batch.target)
        metrics["replayed"] = replayed.mean()
        state, level_metrics = score_levels(state, rollout, batch, visits, visit)
        state = update_statistics(state, rollout)
        return state.replace(update=state.update + 1), metrics | level_metrics

    def draw_levels(state):
        """The levels of the next episodes, (windows, num_envs)."""
        keys = jax.random.split(state.level_rng, 6)
        rng, share_rng, draw_rng, new_rng, parent_rng, edit_rng = keys
        buffer, last = state.levels, state.update - 1
        ready = buffer.filled.sum() >= jnp.ceil(config.min_fill * capacity - 1e-3)
        chances = replay_distribution(config, buffer, last)
        offset = jax.random.uniform(share_rng, (environments.depth, 1))
        place = (jnp.arange(config.num_envs)[None] + offset) / config.num_envs
        asks = place < config.replay_share  # detail 3
        gumbel = jax.random.gumbel(draw_rng, (environments.depth, capacity))
        order = jax.lax.top_k(jnp.log(chances) + gumbel, config.num_envs)[1]  # no level twice
        drawn = jnp.take_along_axis(order, jnp.cumsum(asks, axis=1) - 1, axis=1)
        replays = ready & asks & (chances[drawn] > 0.0)
        level = levels.draw(env, new_rng, stock_shape)
        if levels.num_shares(env):  # detail 4
            of = jax.random.choice(parent_rng, capacity, stock_shape, p=chances)
            parent = jax.tree.map(lambda x: x[of], buffer.level)
            moves = config.edit_std * jax.random.normal(edit_rng, parent.shares.shape)
            edits = place > 1.0 - config.edit_share * (1.0 - config.replay_share)
            edited = parent.replace(shares=reflect(parent.shares + moves))
            level = levels.choose(ready & edits & (chances[of] > 0.0), edited, level)
        known = jax.tree.map(lambda x: x[drawn], buffer.level)
        level = levels.choose(replays, known, level)
        stock = parts.Visits.create(level, jnp.where(replays, drawn, capacity))
        return state.replace(level_rng=rng), stock

    def collect(state, stock):
        """Collects a rollout. `prepare` computes values and log_probs, for all steps at once."""
        rng, step_rng, noise_rng = jax.random.split(state.rollout_rng, 3)
        noise = space.noise(noise_rng, (config.num_steps, config.num_envs))

        def step(state, inputs):
            step_rng, noise = inputs
            x = state.policy.obs_stats.as_input(config, state.observation)
            mask = environments.action_mask(state.env_state, env_params)
            actions = network.apply(state.policy.params, x, mask, method="actor")
            action = space.sample(actions, noise, step_rng)
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, state.env_state, space.clip(action), env_params
            )
            transition = Transition(
                observation=state.observation,
                mask=mask,
                action=action,
                reward=reward,
                terminated=terminated,
                done=terminated | truncated,
                final_observation=info["final_observation"],
            )
            return state.replace(env_state=env_state, observation=observation), transition

        env_state = environments.refill(stock.level, state.env_state, env_params)  # detail 2
        state = state.replace(env_state=env_state, rollout_rng=rng)
        return parts.scan(step, state, (jax.random.split(step_rng, config.num_steps), noise))

    def prepare(state, rollout, replayed):
        """Samples with advantages and targets."""
        flat = jax.tree.map(lambda x: x.reshape(batch_size, *x.shape[2:]), rollout)
        x = state.policy.obs_stats.as_input(config, flat.observation)
        final_x = state.policy.obs_stats.as_input(config, flat.final_observation)
        actions, values = network.apply(state.policy.params, x, flat.mask)
        next_values = network.apply(state.policy.params, final_x, method="critic")
        reward = rollout.reward
        if config.normalize_reward:
            reward = state.reward_scale.scale(reward, config.clip_reward)
        advantages = gae(
            reward,
            values.reshape(reward.shape),
            next_values.reshape(reward.shape),
            rollout.terminated,
            rollout.done,
            config.gamma,
            config.gae_lambda,
        ).reshape(batch_size)
        counts = replayed | (not config.robust)  # detail 6
        return Batch(
            observation=x,
            mask=flat.mask,
            action=flat.action,
            log_prob=actions.log_prob(flat.action),
            value=values,
            advantage=advantages,
            target=advantages + values,
            weight=counts.astype(jnp.float32).reshape(batch_size),
        )

    def loss(params, batch):
        """The loss of PPO, over the samples that count."""
        mean = lambda x: weighted_mean(x, batch.weight)
        actions, values = network.apply(params, batch.observation, batch.mask)
        log_prob, entropy = actions.log_prob(batch.action), actions.entropy()
        log_ratio, advantages, entropy = log_prob - batch.log_prob, batch.advantage, mean(entropy)
        if config.normalize_advantage:
            advantages = standardised(advantages, batch.weight)
        policy_loss = mean(clipped_surrogate(log_ratio, advantages, config.clip_eps))
        value_loss = 0.5 * mean(jnp.square(values - batch.target))
        total = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
        return total, {
            "loss": total,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": mean(jnp.expm1(log_ratio) - log_ratio),
            "clip_fraction": mean(jnp.abs(jnp.expm1(log_ratio)) > config.clip_eps),
        }

    def learn(state, batch):
        """Epochs of minibatches."""
        rng, order_rng = jax.random.split(state.order_rng)
        orders = parts.permutations(order_rng, config.update_epochs, batch_size)
        orders = orders.reshape(-1, batch_size // config.num_minibatches)
        rates = learning_rates(config, num_updates, state.update)

        def gradient_step(old, inputs):
            params, opt_state = old
            indices, rate = inputs
            samples = jax.tree.map(lambda x: x[indices], batch)
            grads, metrics = jax.grad(loss, has_aux=True)(params, samples)
            metrics |= {"grad_norm": parts.global_norm(grads), "current_learning_rate": rate}
            updates, opt_state = optimizer(rate).update(grads, opt_state, params)
            new, some = (optax.apply_updates(params, updates), opt_state), jnp.bool_(True)
            if config.robust:  # a minibatch without replayed samples changes nothing
                some = samples.weight.any()
                new = levels.choose(some, new, old)
                metrics["current_learning_rate"] = rate * some
            return new, (metrics, some)

        start = state.policy.params, state.opt_state
        (params, opt_state), (metrics, some) = parts.scan(gradient_step, start, (orders, rates))
        policy = state.policy.replace(params=params)
        state = state.replace(policy=policy, opt_state=opt_state, order_rng=rng)
        return state, {name: parts.Average(x.mean(), some.mean()) for name, x in metrics.items()}

    def score_levels(state, rollout, batch, visits, visit):
        """Adds the rollout to its visits, and the levels that were left to the buffer."""
        signal = jnp.maximum(batch.advantage, 0.0) if config.score == "pvl" else batch.value
        returns, ended = state.returns.add(rollout.reward, rollout.done, config.gamma)
        visits = visits.add(visit[:-1], signal.reshape(rollout.reward.shape), ended)
        is_last = jnp.arange(len(visits.slot))[:, None] == visit[-1][None]
        running = jax.tree.map(lambda x: x[visit[-1], jnp.arange(config.num_envs)], visits)
        left = ((visits.steps > 0.0) & ~is_last).reshape(-1)
        visits = jax.tree.map(lambda x: x.reshape(len(left), *x.shape[2:]), visits)

        def scored(visits):
            best = visits.best
            if config.normalize_reward:
                best = state.reward_scale.scale(best, jnp.inf)  # as the rewards that V predicts
            played = jnp.full(visits.slot.shape, state.update)
            score = level_scores(config, visits, best)
            return parts.LevelBuffer(visits.level, score, visits.best, played)

        replayed = state.levels.gather(visits, left)
        buffer = levels.choose(replayed.steps > 0.0, scored(replayed), state.levels)
        new = scored(visits).where(left & (visits.slot == capacity))
        buffer = buffer.insert(new, buffer.holds(running.slot))  # detail 5
        total = lambda x: jnp.where(buffer.filled, x, 0).sum()
        count = buffer.filled.sum()
        return state.replace(running=running, returns=returns, levels=buffer), {
            "level_score": parts.Average(total(buffer.score), count),
            "level_staleness": parts.Average(total(state.update - buffer.played), count),
            "levels_filled": count / capacity,
        }

    def update_statistics(state, rollout):
        """Merges the rollout into the statistics, after learning from it."""
        state = state.replace(episodes=state.episodes.update(rollout.reward, rollout.done))
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
