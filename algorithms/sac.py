"""Soft actor-critic with a learned temperature. A whole run, replay included, is one XLA program.

Papers: Haarnoja et al. 2018, https://arxiv.org/abs/1801.01290 and, with the temperature,
https://arxiv.org/abs/1812.05905. By flag: REDQ (Chen et al. 2021,
https://arxiv.org/abs/2101.05982), DroQ (Hiraoka et al. 2022, https://arxiv.org/abs/2110.02034) and
SimBa's network (Lee et al. 2024, https://arxiv.org/abs/2410.09754).

    python algorithms/sac.py --env Pendulum-v1 --seed 0
    python algorithms/sac.py --preset MountainCarContinuous-v0 --num-seeds 5
    python algorithms/sac.py --preset Pendulum-v1-redq    # few steps, many gradient steps for each
    python algorithms/sac.py --preset Pendulum-v1-droq

    train = make_train(Config(env="Pendulum-v1"))
    state, metrics = train(jax.random.key(0))
    state, metrics = jax.vmap(train)(jax.random.split(jax.random.key(0), 8))

Implementation details:
  1 A round is `train_every` steps of each environment, then `updates_per_step` gradient steps. The
    replay ratio is updates_per_step / (num_envs * train_every).
  2 Actions are tanh of a Gaussian. Formulas have them in [-1, 1]; the environment gets them
    rescaled to its box. log_prob comes from the draw before tanh. Nothing is inverted or clipped,
    so saturated actions give finite numbers.
  3 log_std is squashed to [-5, 2] (as in CleanRL).
  4 `num_critics` critics are one vmapped network; targets and the actor take their minimum. REDQ's
    and DroQ's actors take the mean of all critics (`--actor-value mean`).
  5 Critics, actor and temperature step at once, from the same parameters, as one vector for Adam.
  6 The temperature is exp of a parameter, and follows equation 18 of the second paper.
    target_entropy is per dimension of the action in [-1, 1].
  7 A transition leads to the observation before any restart. The target bootstraps from it, also
    where a time limit cut the episode, but not where the episode terminated.
  8 With n_step above 1, targets leave out the entropy of the intermediate steps.
  9 Before `learning_starts`, actions are uniform over the box.
 10 REDQ's targets have the minimum of `target_critics` critics, in the paper 2 of 10. They are
    drawn anew for each gradient step, and are the same ones for its whole batch.
 11 REDQ and DroQ take 20 gradient steps for each step of the environment, and one of the actor
    (`--updates-per-step 20 --policy-every 20`). With `policy_every` above 1, actor and temperature
    have an Adam of their own. They step together with the last of so many steps of the critics,
    with its batch and from the parameters before it, as in REDQ's code. The count runs on from
    round to round, so `policy_every` need not divide `updates_per_step`.
 12 A hidden layer of DroQ's critics is dense, dropout, layer norm, activation. The paper has 2
    critics, and rates from 0.0001 to 0.1. The targets, the critics' loss and the actor's loss have
    dropout, each with masks of its own.
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
    "title": "Soft actor-critic (SAC) with a learned temperature; by flag REDQ, DroQ",
    "use": "first choice for bounded continuous actions where steps are expensive",
    "paper": "[Haarnoja et al. 2018](https://arxiv.org/abs/1801.01290)",
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
    total_timesteps: int = static(50_000)  # environment steps of the whole run
    num_envs: int = static(1)  # parallel environments
    train_every: int = static(1)  # steps of each environment between two rounds of learning
    updates_per_step: int = static(1)  # gradient steps in a round of learning
    buffer_size: int = static(100_000)  # transitions kept, over all environments
    batch_size: int = static(256)  # transitions in a gradient step
    learning_starts: int = static(1_000)  # environment steps before the first gradient step
    learning_rate: float = real(1e-3, "[0, inf)")  # Adam's step size
    anneal_lr: bool = static(False)  # take the learning rate linearly to zero
    adam_eps: float = real(1e-8, "(0, inf)")  # Adam's epsilon
    weight_decay: float = real(0.0, "[0, inf)")  # AdamW's weight decay, as in SimBa; 0: plain Adam
    gamma: float = real(0.99, "[0, 1]")  # discount factor
    n_step: int = static(1)  # steps of reward before bootstrapping
    reward_scale: float = real(1.0, "(0, inf)")  # factor on rewards for learning
    tau: float = real(0.005, "[0, 1]")  # share that the target critics move at a gradient step
    num_critics: int = static(2)  # critics
    target_critics: int = static(0)  # critics, drawn anew, whose minimum targets have; 0: all
    actor_value: str = static("min")  # of the critics, for the actor: min, or mean as in REDQ
    policy_every: int = static(1)  # gradient steps of the critics for each of the actor
    layer_norm: bool = static(False)  # critics: layer norm before each activation, as in DroQ
    dropout: bool = static(False)  # critics: dropout after each dense layer, as in DroQ
    dropout_rate: float = real(0.01, "[0, 1)")  # share of the units that dropout sets to zero
    initial_temperature: float = real(1.0, "(0, inf)")  # initial weight of the entropy
    learn_temperature: bool = static(True)  # keep the entropy at its target
    target_entropy: float = real(-1.0, "(-inf, inf)")  # target entropy per dimension of the action
    network: str = static("mlp")  # mlp, or simba: a residual block for each of the sizes below
    hidden_sizes: tuple[int, ...] = static((256, 256))  # dense layers of the actor
    critic_hidden_sizes: tuple[int, ...] = static((256, 256))  # dense layers of each critic
    activation: str = static("relu")  # any function of flax.linen: tanh, relu, swish, ...
    conv_layers: str = static("small")  # for images: none, small, nature or impala
    compute_dtype: str = static("float32")  # dtype of hidden layers: float32 or bfloat16
    asymmetric: bool = static(False)  # critics see the environment's world state too
    normalize_obs: bool = static(False)  # normalise observations by running mean and variance
    clip_obs: float = real(10.0, "(0, inf]")  # clip normalised observations to +- this
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(32)  # evaluation episodes at each point; 0: none
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------


def torso(config, sizes):
    return parts.Torso(
        sizes, config.activation, config.conv_layers, config.network, config.compute_dtype
    )


class Actor(nn.Module):
    """Observations (batch, ...) to distributions of actions."""

    config: Config
    size: int  # dimensions of the action
    seen: int | None = None  # numbers of an observation that it sees, the first ones; None: all

    @nn.compact
    def __call__(self, x):
        x = torso(self.config, self.config.hidden_sizes)(x[:, : self.seen])
        init = parts.orthogonal(0.01)
        mean = parts.Dense(self.size, kernel_init=init, name="mean_head")(x)
        squashed = nn.tanh(parts.Dense(self.size, kernel_init=init, name="std_head")(x))  # detail 3
        log_std = LOG_STD[0] + 0.5 * (LOG_STD[1] - LOG_STD[0]) * (squashed + 1.0)
        return parts.TanhGaussian(mean, log_std)  # detail 2


class Critic(nn.Module):
    """Observations (batch, ...) and actions (batch, dimensions) in [-1, 1] to values (batch,)."""

    config: Config

    @nn.compact
    def __call__(self, x, action, rng=None):
        """Without rng there is no dropout."""
        config, sizes = self.config, self.config.critic_hidden_sizes
        if config.layer_norm or config.dropout:
            x = torso(config, ())(x, action)
            for size in sizes:
                rng, here = (None, None) if rng is None else jax.random.split(rng)
                x = self.hidden(x, size, here)
        else:
            x = torso(config, sizes)(x, action)
        return parts.Dense(1, kernel_init=parts.orthogonal(1.0), name="value_head")(x)[:, 0]

    def hidden(self, x, size, rng):  # detail 12
        """A layer of DroQ, (batch, size): dense, dropout, layer norm, activation."""
        config, init = self.config, parts.orthogonal(math.sqrt(2))
        x = parts.Dense(size, kernel_init=init, dtype=config.compute_dtype)(x)
        if config.dropout and rng is not None:
            x = drop(rng, x, config.dropout_rate)
        if config.layer_norm:
            x = parts.LayerNorm()(x.astype(jnp.float32))
        return parts.activation(config.activation)(x)


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
    opt_state: optax.OptState  # of all parameters; with policy_every above 1, of the critics
    policy_opt_state: optax.OptState | None  # then of the actor and the temperature; else None
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
    subset: jax.Array | None  # critics of the targets, (target_critics,); None: all
    dropout: jax.Array | None  # raw data of a key: the key checker refuses keys here; None: off


LOG_STD = (-5.0, 2.0)

# --- formulas ---------------------------------------------------------------------------------


def draw_subsets(rng: jax.Array, steps: int, size: int, num_critics: int) -> jax.Array:
    """Different critics for each gradient step, (steps, size), the same ones on all shards.

    Each set is as likely as another: they are those with the lowest of random numbers.
    """
    order = parts.mean_over_shards(jax.random.uniform(rng, (steps, num_critics)))
    return jnp.argsort(order)[:, :size]


def drop(rng: jax.Array, x: jax.Array, rate: jax.Array) -> jax.Array:
    """Each number of x is 0 with probability `rate`, and else x / (1 - rate): its mean is x."""
    keep = jax.random.bernoulli(rng, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), 0.0)


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
        actions = network.apply(state.policy.params, x)
        action = actions.mode() if rng is None else actions.sample(seed=rng)
        return space.rescale(action)[0], memory

    return policy


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    parts.check(
        *(INFO, config, env, env_params, "num_critics", "policy_every"),
        not_negative=("target_critics",),
        replay=True,
        words={"actor_value": ("min", "mean")},
    )
    if config.target_critics > config.num_critics:
        raise ValueError(
            f"target_critics={config.target_critics} of num_critics={config.num_critics}: "
            f"give {config.num_critics} or fewer; 0 takes all"
        )
    for name in ("layer_norm", "dropout"):
        if getattr(config, name) and config.network == "simba":
            raise ValueError(f"{name}=True: simba has its own layers; network=mlp would do")


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.

    Raises:
      ValueError: a setting that cannot work, a space that SAC cannot take, or a buffer larger than
        the device's memory.
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
    actor, critic = Actor(config, size, seen), Critic(config)
    adam = parts.on_one_vector(optax.scale_by_adam(eps=config.adam_eps))
    decay = optax.add_decayed_weights(
        config.weight_decay, mask=Params(actor=True, critics=True, log_temperature=False)
    )
    optimizer = lambda rate: optax.chain(adam, decay, optax.scale(-rate))
    together = config.policy_every == 1  # detail 5
    has_subsets = 0 < config.target_critics < config.num_critics

    def critics(params, x, action, rng):
        """Values (critics, batch), with dropout if there is a key.

        Every critic gets its own copy of the inputs. With shared inputs, XLA would fuse the first
        layers into one product and transpose its result, which is slower.
        """
        number = len(jax.tree.leaves(params)[0])
        own = lambda x: jnp.broadcast_to(x, (number, *x.shape))
        rngs = None if rng is None else jax.random.split(rng, number)
        return jax.vmap(critic.apply)(params, own(x), own(action), rngs)

    def init(rng):
        rng, actor_rng, critic_rng, reset_rng, eval_rng = jax.random.split(rng, 5)
        observation, env_state = environments.reset(reset_rng, env_params)
        x, action = observation.astype(jnp.float32), jnp.zeros((config.num_envs, size))
        start = lambda rng: critic.init(rng, x, action)
        params = Params(
            actor=actor.init(actor_rng, x),
            critics=jax.vmap(start)(jax.random.split(critic_rng, config.num_critics)),
            log_temperature=jnp.log(config.initial_temperature),
        )
        obs_stats = parts.RunningStatistics.create(observation.shape[1:])
        of_policy = params._replace(critics=None)
        at_each_step = params if together else params._replace(actor=None, log_temperature=None)
        return TrainState(
            policy=PolicyState(params.actor, obs_stats),
            critic_params=params.critics,
            target_params=params.critics,
            log_temperature=params.log_temperature,
            opt_state=optimizer(0.0).init(at_each_step),
            policy_opt_state=None if together else optimizer(0.0).init(of_policy),
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
        steps, subset, dropout = rounds.gradient_steps, None, None
        if has_subsets:
            action_rng, subset_rng = jax.random.split(action_rng)
            subset = draw_subsets(subset_rng, steps, config.target_critics, config.num_critics)
        if config.dropout:
            action_rng, dropout_rng = jax.random.split(action_rng)
            dropout = jax.random.key_data(jax.random.split(dropout_rng, steps))
        draws = Draws(
            windows=buffer.noise(draw_rng, (steps, config.batch_size)),
            actions=jax.random.normal(action_rng, (steps, 2, config.batch_size, size)),
            subset=subset,
            dropout=dropout,
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

        def learn(old, draws, index):
            new, metrics = gradient_step(old, draws, progress, index)
            return parts.keep_if(ready, new, old), metrics

        state, metrics = rounds.repeat(learn, state, now, ready)
        return state, metrics, rollout

    def act(state, warm_up, noise):
        """`train_every` steps of every environment."""

        def step(state, inputs):
            step_rng, noise = inputs
            x = state.policy.obs_stats.as_input(config, state.observation)
            actions = actor.apply(state.policy.params, x)
            action = space.sample(actions, noise, step_rng)
            action = jnp.where(warm_up, space.uniform_from(noise), action)  # detail 9
            observation, env_state, reward, terminated, truncated, info = environments.step(
                step_rng, state.env_state, space.rescale(action), env_params
            )
            transition = parts.Transition(
                observation=state.observation,
                action=space.shaped(action),
                reward=reward,
                terminated=terminated,
                done=terminated | truncated,
                final_observation=info["final_observation"],  # detail 7
            )
            return state.replace(env_state=env_state, observation=observation), transition

        return parts.scan(step, state, (noise.step_rng, noise.exploration))

    def targets(state, window, noise, subset, rng):
        """y = reward_scale R_n + gamma**n (min_k Q'_k(s_n, a) - alpha log pi(a|s_n)) with a ~ pi,
        (batch_size,). R_n is the n-step return, and k are all critics or those of the subset."""
        x = state.policy.obs_stats.as_input(config, window.final_observation)
        action, log_prob = actor.apply(state.policy.params, x).sample_and_log_prob_from(noise)
        params = state.target_params
        if subset is not None:  # detail 10
            params = jax.tree.map(lambda x: x[subset], params)
        value = critics(params, x, action, rng).min(0)  # detail 4
        soft_value = value - jnp.exp(state.log_temperature) * log_prob  # detail 8
        return config.reward_scale * window.returns + window.discount * soft_value

    def critic_loss(params, x, action, target, rng):
        """Sum over critics of the mean of (Q_k(s, a) - y)**2; and the mean of min_k Q_k."""
        values = critics(params, x, action, rng)
        return jnp.square(values - target).mean(1).sum(), values.min(0).mean()

    def actor_loss(params, state, x, noise, rng):
        """The mean of alpha log pi(a|s) - min_k Q_k(s, a); and log pi(a|s), (batch_size,).

        With actor_value="mean" it has the mean over k.
        """
        action, log_prob = actor.apply(params, x).sample_and_log_prob_from(noise)
        values = critics(state.critic_params, x, action, rng)
        value = values.min(0) if config.actor_value == "min" else values.mean(0)  # detail 4
        return (jnp.exp(state.log_temperature) * log_prob - value).mean(), log_prob

    def temperature_loss(log_temperature, entropy):  # detail 6
        """alpha (H - target): its gradient step raises alpha where the entropy H is too small."""
        if not config.learn_temperature:
            return jnp.zeros(())
        return jnp.exp(log_temperature) * (entropy - size * config.target_entropy)

    def policy_gradients(state, x, noise, rng):
        """Gradients for the actor and the temperature, the actor's loss, and the entropy."""
        (loss, log_prob), of_actor = jax.value_and_grad(actor_loss, has_aux=True)(
            state.policy.params, state, x, noise, rng
        )
        entropy = -log_prob.mean()
        of_temperature = jax.grad(temperature_loss)(state.log_temperature, entropy)
        grads = Params(actor=of_actor, critics=None, log_temperature=of_temperature)
        return parts.mean_over_shards(grads), loss, entropy

    def gradient_step(state, draws, progress, index):
        """Learns from a batch of windows; all three losses see the parameters before it."""
        draw = buffer.draw(state.replay, draws.windows)
        window = buffer.windows(state.replay.transitions, draw.index, config.gamma)
        here, following = draws.actions
        rngs = None, None, None
        if config.dropout:
            impl = jax.random.key_impl(state.rng)
            rngs = jax.random.split(jax.random.wrap_key_data(draws.dropout, impl=impl), 3)
        x = state.policy.obs_stats.as_input(config, window.observation)
        action = window.action.reshape(-1, size)
        target = targets(state, window, following, draws.subset, rngs[0])
        (loss, mean_value), of_critics = jax.value_and_grad(critic_loss, has_aux=True)(
            state.critic_params, x, action, target, rngs[1]
        )
        grads = Params(actor=None, critics=parts.mean_over_shards(of_critics), log_temperature=None)
        if together:  # detail 5
            of_policy, loss_of_actor, entropy = policy_gradients(state, x, here, rngs[2])
            grads = of_policy._replace(critics=grads.critics)
        params = Params(
            actor=state.policy.params,
            critics=state.critic_params,
            log_temperature=state.log_temperature,
        )
        left = jnp.maximum(1.0 - progress, 0.0) if config.anneal_lr else 1.0
        rate = config.learning_rate * left

        def step(grads, opt_state):
            """A step of Adam for the parameters with gradients; the others become None."""
            own = Params(*(p if g is not None else None for p, g in zip(params, grads)))
            updates, opt_state = optimizer(rate).update(grads, opt_state, own)
            return optax.apply_updates(own, updates), opt_state

        def improve(_):
            """The step of the actor and the temperature alone."""
            grads, *metrics = policy_gradients(state, x, here, rngs[2])
            return *step(grads, state.policy_opt_state), *metrics

        new, opt_state = step(grads, state.opt_state)
        policy_opt_state = state.policy_opt_state
        if not together:  # detail 11
            turn = index % config.policy_every == config.policy_every - 1
            old = params._replace(critics=None), policy_opt_state, jnp.zeros(()), jnp.zeros(())
            improved = parts.branch(turn, improve, lambda old: old, old)
            of_policy, policy_opt_state, *metrics = improved
            new = of_policy._replace(critics=new.critics)
            loss_of_actor, entropy = (parts.Average(x, turn) for x in metrics)
        metrics = {
            "critic_loss": loss,
            "actor_loss": loss_of_actor,
            "mean_value": mean_value,
            "entropy": entropy,
            "temperature": jnp.exp(state.log_temperature),
            "grad_norm": parts.global_norm(grads),
            "current_learning_rate": rate,
        }
        move = lambda old, new: old + config.tau * (new - old)
        state = state.replace(
            policy=state.policy.replace(params=new.actor),
            critic_params=new.critics,
            target_params=jax.tree.map(move, state.target_params, new.critics),
            log_temperature=new.log_temperature,
            opt_state=opt_state,
            policy_opt_state=policy_opt_state,
        )
        return state, metrics

    policy = make_policy(config, env, env_params)
    return parts.Learner(init, update, policy, rounds.steps)


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
