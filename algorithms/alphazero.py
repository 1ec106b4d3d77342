"""AlphaZero for games of two players, with Gumbel or PUCT search. A whole run is one XLA program.

Papers: Danihelka et al. 2022, https://openreview.net/forum?id=bERaNdoegnO (search "gumbel"), and
Silver et al. 2018, https://doi.org/10.1126/science.aar6404 (search "puct"); searches are mctx's.

    pip install "mctx==0.0.71" "pgx==2.6.0"
    python algorithms/alphazero.py --env pgx/tic_tac_toe --seed 0
    python algorithms/alphazero.py --env pgx/connect_four --search puct --network residual

    train = make_train(Config(env="pgx/tic_tac_toe"))
    state, metrics = train(jax.random.key(0))
    search = make_search(config)  # plays with search from an environment's state
    action = search(state, env_state, jax.random.key(1))

Self-play: a search on every board gives the move and a target for the policy. The target of a
value is the game's outcome for the player to move. Implementation details:
  1 Gumbel: sequential halving at the root; the policy's target is softmax(logits + sigma(q)) with
    completed q-values (equations 8-11; sigma as in section 3.4 without rescaled values). PUCT:
    Dirichlet noise at the root; the target is the shares of visits; moves are drawn from them.
  2 A finished game restarts before the next search, so every search begins in a running game. In
    the tree an ended game has value 0 and discount 0.
  3 Values are of the player to move, so the discount of a step is -gamma, or gamma if the same
    player moves again.
  4 Illegal moves have no probability in priors, targets, the loss and the policy.
  5 A game that is cut, by the end of a rollout or by a time limit, has no outcome. Its targets
    bootstrap from the value of the last position. Without `bootstrap_cut` its values are not
    learned.
  6 Games begin with 0 to `opening_moves` random moves, so that the network learns replies to bad
    moves. At a position before a random move only the policy learns, not the value.
  7 Symmetries: each sample is turned or mirrored at random in each epoch.
  8 Layer norm in place of batch norm, so that the state has no running statistics.
Evaluation: `eval_return` is the greedy policy against random moves, `eval_search_return` against a
PUCT search that has uniform priors and random playouts, `eval_past_return` against the policy of
the point before. Each player moves first in half of the games.
"""

import functools
import importlib.util
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
from envs import games

INFO = {
    "title": "AlphaZero (Gumbel or PUCT search)",
    "use": "games of two players whose rules are known, so that it can search ahead",
    "paper": "[Danihelka et al. 2022](https://openreview.net/forum?id=bERaNdoegnO)",
    "family": "search",
    "actions": "discrete",
    "masks": True,
    "agents": "two players",
    "memory": False,
    "needs": ("mctx", "pgx"),
}
# Not everyone has it; `check` says how to install it.
mctx: Any = importlib.import_module("mctx") if importlib.util.find_spec("mctx") else None


@struct.dataclass
class Config:
    env: str = static("pgx/tic_tac_toe")  # name of the environment
    env_settings: tuple[tuple[str, Any], ...] = static(())  # env settings, name=value,...
    total_timesteps: int = static(500_000)  # moves of self-play of the whole run
    num_envs: int = static(64)  # parallel boards
    num_steps: int = static(16)  # moves on each board in a rollout
    update_epochs: int = static(2)  # passes over each rollout
    num_minibatches: int = static(4)  # gradient steps in a pass
    search: str = static("gumbel")  # gumbel or puct
    num_simulations: int = static(32)  # simulations of each search
    max_num_considered_actions: int = static(16)  # actions that gumbel considers at the root
    gumbel_scale: float = real(1.0, "[0, inf)")  # scale of gumbel's noise in self-play
    c_visit: float = real(50.0, "[0, inf)")  # sigma(q) = (c_visit + most visits) c_scale q
    c_scale: float = real(0.1, "[0, inf)")  # scale of q in sigma(q)
    dirichlet_fraction: float = real(0.25, "[0, 1]")  # share of noise in puct's root priors
    dirichlet_alpha: float = real(1.0, "(0, inf)")  # concentration of that noise
    pb_c_init: float = real(1.25, "[0, inf)")  # exploration of puct
    temperature: float = real(1.0, "[0, 4]")  # temperature of puct's moves in self-play
    opening_moves: int = static(6)  # most random moves at the start of a game of self-play
    symmetries: bool = static(True)  # turn and mirror samples, where a game allows it
    bootstrap_cut: bool = static(True)  # values of cut games learn from the last position's value
    gamma: float = real(1.0, "[0, 1]")  # discount factor of a move
    learning_rate: float = real(2e-3, "[0, inf)")  # Adam's step size
    anneal_lr: bool = static(True)  # take the learning rate linearly to zero
    adam_eps: float = real(1e-8, "(0, inf)")  # Adam's epsilon
    weight_decay: float = real(1e-4, "[0, inf)")  # AdamW's weight decay
    vf_coef: float = real(1.0, "[0, inf)")  # weight of the value loss
    max_grad_norm: float = real(1.0, "(0, inf]")  # clip gradients to this global norm; inf: never
    network: str = static("dense")  # dense, or residual for boards
    hidden_sizes: tuple[int, ...] = static((128, 128))  # layers of the dense network
    num_blocks: int = static(4)  # blocks of the residual network
    num_channels: int = static(64)  # channels of the residual network
    activation: str = static("relu")  # any function of flax.linen: tanh, relu, swish, ...
    num_evals: int = static(20)  # points of the learning curve
    num_eval_episodes: int = static(64)  # games against each opponent at each point; 0: none
    eval_simulations: int = static(32)  # of a search without a network, as opponent; 0: none
    eval_opening_moves: int = static(2)  # random moves first, unless against random moves
    eval_search: bool = static(False)  # play evaluations with search
    eval_at_start: bool = static(True)  # evaluate before training too


# --- network ----------------------------------------------------------------------------------


class Network(nn.Module):
    """Observations (batch, ...) to logits (batch, num_actions) and values (batch,) in [-1, 1]."""

    config: Config
    num_actions: int

    @nn.compact
    def __call__(self, x):
        config = self.config
        if config.network == "residual":
            size = config.num_blocks, config.num_channels
            torso = functools.partial(parts.Tower, *size)  # detail 8
        else:
            torso = functools.partial(parts.Torso, config.hidden_sizes)
        x = torso(config.activation, name="torso")(x)
        init = parts.orthogonal(0.01)
        logits = parts.Dense(self.num_actions, kernel_init=init, name="policy_head")(x)
        init = parts.orthogonal(0.1)
        return logits, jnp.tanh(parts.Dense(1, kernel_init=init, name="value_head")(x)[..., 0])


# --- data types -------------------------------------------------------------------------------


@struct.dataclass
class PolicyState:
    """The part of the state that acting needs."""

    params: Any


@struct.dataclass
class TrainState:
    """Everything that a run needs to continue."""

    policy: PolicyState
    past: PolicyState  # of the point before
    opt_state: optax.OptState
    env_state: Any  # of `envs.batch`
    opening: jax.Array  # random moves left on each board, int32 (num_envs,)
    episodes: Any  # of `envs.batch`
    rollout_rng: jax.Array  # key for searches and the environments
    order_rng: jax.Array  # key for the order of samples and their symmetries
    eval_rng: jax.Array  # constant: all evaluations use it
    update: jax.Array  # rollouts learned from so far, int32


class Transition(NamedTuple):
    """A rollout; leading axes (num_steps, num_envs)."""

    observation: jax.Array  # of the player to move
    mask: jax.Array  # legal moves
    policy: jax.Array  # the search's, (..., num_actions)
    player: jax.Array  # who moves, 0 or 1
    opening: jax.Array  # whether the move is a random one
    reward: jax.Array  # of both players, (..., 2)
    terminated: jax.Array
    done: jax.Array  # terminated or truncated
    next_observation: jax.Array  # of the player to move after it, before any restart
    next_player: jax.Array


class Batch(NamedTuple):
    """Samples to learn from; leading axis num_steps * num_envs, or that of a minibatch."""

    observation: jax.Array
    mask: jax.Array
    policy: jax.Array  # target
    target: jax.Array  # of the value
    weight: jax.Array  # of the value: 0 where there is no target


# --- formulas ---------------------------------------------------------------------------------


def summed_back(x, decays):
    """y_t = x_t + decay_t y_{t+1} along the leading axis, with y = 0 after the last step."""

    def step(later, inputs):
        now, decay = inputs
        now = now + decay * later
        return now, now

    return parts.scan(step, jnp.zeros_like(x[0]), (x, decays), reverse=True)[1]


def outcomes(rewards, next_values, terminated, done, gamma):
    """G_t = r_t + gamma (1 - terminated_t) (V_t if done_t or t is the last step, else G_{t+1}).

    Of both players: rewards and next_values are (num_steps, num_envs, 2), the flags without the
    last axis. `next_values` V_t are of the positions after the moves, before any restart. In a
    game with rewards at its end G is the outcome, with opposite signs for the two players.
    """
    last = jnp.arange(len(done)) == len(done) - 1
    cut = (done | last[:, None]) & ~terminated
    rewards = rewards + gamma * jnp.where(cut[..., None], next_values, 0.0)
    decays = jnp.where(done, 0.0, gamma)[..., None]
    return summed_back(rewards, jnp.broadcast_to(decays, rewards.shape))


def has_outcome(terminated, done):
    """1.0 if a step's game terminates in the rollout, else 0.0; all (num_steps, num_envs)."""
    return summed_back(1.0 * terminated, 1.0 - done)


def masked(logits, mask):
    """Logits (..., num_actions), at the lowest number where the mask is False."""
    return jnp.where(mask, logits, jnp.finfo(logits.dtype).min)


def cross_entropy(logits, mask, policy):
    """-sum_a policy(a) log_softmax(logits)(a) over legal actions, (batch,)."""
    log_probs = nn.log_softmax(masked(logits, mask))
    return -jnp.where(mask, policy * log_probs, 0.0).sum(-1)


def learning_rates(config, num_updates, update):
    """learning_rate (1 - p) for each gradient step of an update, (epochs * num_minibatches,), with
    progress p in [0, 1] through the run."""
    steps = config.update_epochs * config.num_minibatches
    done = update.astype(jnp.float32) + jnp.arange(steps) / steps
    left = jnp.maximum(1.0 - done / float(num_updates), 0.0)
    return config.learning_rate * (left if config.anneal_lr else jnp.ones_like(left))


# --- search -----------------------------------------------------------------------------------


def noisy(logits, mask, rng, fraction, alpha):
    """log((1 - f) softmax(logits) + f n), noise n ~ Dirichlet(alpha) over legal actions only.

    mctx's own noise is over all actions, so little of it is left where few of many are legal.
    """
    noise = nn.softmax(masked(jax.random.loggamma(rng, alpha, logits.shape), mask))
    probs = (1.0 - fraction) * nn.softmax(logits) + fraction * noise
    return masked(jnp.log(jnp.maximum(probs, jnp.finfo(probs.dtype).tiny)), mask)


def by_network(network, params, rng, boards):
    """Logits (batch, num_actions), masked, and values (batch,) of the players to move."""
    del rng
    logits, values = network.apply(params, games.look(boards))
    return masked(logits, boards.legal_action_mask), values


def by_playout(game, params, rng, boards):
    """Uniform priors, and the outcomes of random moves to the end for the players to move."""
    del params
    mask = boards.legal_action_mask
    return masked(jnp.zeros(mask.shape), mask), games.playout(game, rng, boards)


def searcher(config, game, assess):
    """Returns search(params, boards, rng, size, explore) -> mctx's PolicyOutput of every board.

    It has action (batch,), action_weights (batch, num_actions) and the search_tree.

    Args:
      game: pgx's environment; boards are its states, of running games, leading axis batch.
      assess: assess(params, rng, boards) -> logits, values: the network, or playouts.
      size: number of simulations.
      explore: whether root and moves are random, as in self-play; otherwise it is the best move.
    """

    def expand(params, rng, action, boards):
        player, after = boards.current_player, jax.vmap(game.step)(boards, action)
        logits, value = assess(params, jax.random.wrap_key_data(rng), after)
        ended = after.terminated | after.truncated
        sign = jnp.where(after.current_player == player, 1.0, -1.0)  # detail 3
        output = mctx.RecurrentFnOutput(
            reward=games.of_player(player, after.rewards),
            discount=jnp.where(ended, 0.0, sign * config.gamma),  # detail 2
            prior_logits=logits,
            value=jnp.where(ended, 0.0, value),
        )
        return output, after

    def search(params, boards, rng, size, explore):
        rng, root_rng, noise_rng = jax.random.split(rng, 3)
        logits, value = assess(params, root_rng, boards)
        mask = boards.legal_action_mask
        if config.search == "puct" and explore:  # detail 1
            fraction, alpha = config.dirichlet_fraction, config.dirichlet_alpha
            logits = noisy(logits, mask, noise_rng, fraction, alpha)
        root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=boards)
        rng = jax.random.key_data(rng)  # the key checker refuses typed keys in mctx's loops
        common = params, rng, root, expand, size, ~mask
        if config.search == "puct":
            bounds = dict(min_value=-1.0, max_value=1.0)
            return mctx.muzero_policy(
                *common,
                qtransform=functools.partial(mctx.qtransform_by_min_max, **bounds),
                dirichlet_fraction=0.0,  # `noisy` in its place
                pb_c_init=config.pb_c_init,
                temperature=config.temperature if explore else 0.0,
            )
        sigma = dict(value_scale=config.c_scale, maxvisit_init=config.c_visit, rescale_values=False)
        return mctx.gumbel_muzero_policy(
            *common,
            qtransform=functools.partial(mctx.qtransform_completed_by_mix_value, **sigma),
            max_num_considered_actions=config.max_num_considered_actions,
            gumbel_scale=config.gumbel_scale if explore else 0.0,
        )

    return search


def playout_search(game, size):
    """Returns act(rng, boards) -> moves (batch,) of a PUCT search without a network.

    It has `size` simulations, uniform priors and random playouts, and is the same for all configs.
    """
    search = searcher(Config(search="puct"), game, functools.partial(by_playout, game))
    return lambda rng, boards: search((), boards, rng, size, explore=False).action


# --- acting and training ----------------------------------------------------------------------


@parts.with_environment
def make_policy(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns policy(state, observation, memory=None, rng=None, mask=None) -> action, memory.

    It acts without search. observation (2, ...) and mask (2, num_actions) are of both players, and
    so is the action (2,): whose turn it is decides the environment. Without rng it takes the most
    probable action; with rng a sample.
    """
    space = parts.ActionSpace(env.action_space(env_params))
    network = Network(config, space.size)

    def policy(state, observation, memory=None, rng=None, mask=None):
        logits, _ = network.apply(state.policy.params, observation.astype(jnp.float32))
        logits = logits if mask is None else masked(logits, mask)
        noise = 0.0 if rng is None else space.noise(rng, logits.shape[:-1])
        return jnp.argmax(logits + noise, axis=-1), memory

    return policy


@parts.with_environment
def make_search(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns search(state, env_state, rng=None) -> action, which plays with search.

    env_state is the state of one environment whose game is on; vmap it for more. The action (2,)
    is that of both players; one of them waits and has action 0. Without rng it takes the best move
    that the search finds; with rng it explores as in self-play.
    """
    check(config, env, env_params)
    network = Network(config, env.action_space(env_params).n)
    find = searcher(config, env.wrapped, functools.partial(by_network, network))

    def search(state, env_state, rng=None):
        boards, explore = jax.tree.map(lambda x: x[None], env_state.inner), rng is not None
        rng = rng if explore else jax.random.key(0)
        found = find(state.policy.params, boards, rng, config.num_simulations, explore)
        return games.joint(boards, found.action)[0]

    return search


def check(config: Config, env: Any, env_params: Any) -> None:
    """Raises a ValueError that names the setting, its value and a value that works."""
    positive = ("num_steps", "update_epochs", "num_minibatches", "num_simulations")
    positive += ("max_num_considered_actions", "num_blocks", "num_channels")
    not_negative = ("opening_moves", "eval_simulations", "eval_opening_moves")
    parts.check_sizes(config, *positive, not_negative=not_negative)
    parts.check_choices(config, search=("gumbel", "puct"), network=("dense", "residual"))
    parts.check_minibatches(config, "samples")
    if mctx is None:
        raise ValueError('alphazero needs mctx: pip install "mctx==0.0.71"')
    parts.check_game(INFO, config, env, env_params)
    shape = env.observation_space(env_params).shape
    if config.network == "residual" and len(shape) != 3:
        raise ValueError(
            f"network='residual' needs boards (height, width, planes), and {env.name} has "
            f"observations {shape}; 'dense' would do"
        )


@parts.with_environment
def make_train(config: Config, env: Any = None, env_params: Any = None) -> Callable:
    """Returns the jitted train(rng, state=None, num_evals=None) -> state, metrics.

    `parts.program` describes the arguments. Without env and env_params, the config gives them.

    Raises:
      ValueError: a setting that cannot work, or an environment that is no game of two players.
    """
    check(config, env, env_params)
    return parts.program(learner, config, env, env_params)


def learner(config: Config, env: Any, env_params: Any) -> parts.Learner:
    """The first state, an update (plays a rollout and learns from it), policy and evaluation."""
    batch_size = config.num_envs * config.num_steps
    num_updates = parts.num_updates(config, batch_size)
    per_point = num_updates // parts.num_points(config, batch_size)
    environments = envs.batch(env, config.num_envs, config.num_steps)
    game, num_actions = env.wrapped, env.action_space(env_params).n
    network = Network(config, num_actions)
    search = searcher(config, game, functools.partial(by_network, network))
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    adam = optax.scale_by_adam(eps=config.adam_eps)
    decay = optax.add_decayed_weights(config.weight_decay)
    optimizer = lambda rate: parts.on_one_vector(optax.chain(clip, adam, decay, optax.scale(-rate)))
    shape = env.observation_space(env_params).shape
    symmetry = parts.symmetries(game.id, shape, num_actions) if config.symmetries else None

    def draw_openings(rng):
        return jax.random.randint(rng, (config.num_envs,), 0, config.opening_moves + 1)

    def init(rng):
        rng, order_rng, network_rng, reset_rng = jax.random.split(rng, 4)
        opening_rng, rollout_rng, eval_rng = jax.random.split(rng, 3)
        observation, env_state = environments.reset(reset_rng, env_params)
        x = observation[:, 0].astype(jnp.float32)
        policy = PolicyState(network.init(network_rng, x))
        return TrainState(
            policy=policy,
            past=policy,
            opt_state=optimizer(0.0).init(policy.params),
            env_state=env_state,
            opening=draw_openings(opening_rng),
            episodes=environments.episodes((2,)),
            rollout_rng=rollout_rng,
            order_rng=order_rng,
            eval_rng=eval_rng,
            update=jnp.zeros((), jnp.int32),
        )

    def update(state):
        """Plays a rollout and learns from it."""
        first = state.update % per_point == 0
        keep = lambda now, past: jnp.where(first, now, past)
        state = state.replace(past=jax.tree.map(keep, state.policy, state.past))
        state, rollout = collect(state)
        batch, metrics = prepare(state, rollout)
        state, learned = learn(state, batch)
        episodes = state.episodes.update(rollout.reward, rollout.done)
        return state.replace(episodes=episodes, update=state.update + 1), metrics | learned

    def collect(state):
        """Plays num_steps moves on every board, with a search before each."""
        rng, start_rng, step_rng = jax.random.split(state.rollout_rng, 3)

        def step(state, rng):
            search_rng, move_rng, opening_rng, env_rng = jax.random.split(rng, 4)
            boards = state.env_state.env.inner  # detail 2: all games are on
            size, params = config.num_simulations, state.policy.params
            found = search(params, boards, search_rng, size, explore=True)
            opening = state.opening > 0  # detail 6
            action = jnp.where(opening, games.random_move(move_rng, boards), found.action)
            after = jax.vmap(game.step)(boards, action)
            _, env_state, reward, terminated, truncated, _ = environments.step(
                env_rng, state.env_state, games.joint(boards, action), env_params
            )
            done = terminated | truncated
            left = jnp.maximum(state.opening - 1, 0)
            left = jnp.where(done, draw_openings(opening_rng), left)
            transition = Transition(
                observation=games.look(boards),
                mask=boards.legal_action_mask,
                policy=found.action_weights,
                player=boards.current_player,
                opening=opening,
                reward=reward,
                terminated=terminated,
                done=done,
                next_observation=games.look(after),
                next_player=after.current_player,
            )
            return state.replace(env_state=env_state, opening=left), transition

        env_state = environments.refill(start_rng, state.env_state, env_params)  # new start states
        state = state.replace(env_state=env_state, rollout_rng=rng)
        return parts.scan(step, state, jax.random.split(step_rng, config.num_steps))

    def prepare(state, rollout):
        """Samples with targets, and metrics of the values before learning."""
        flat = lambda x: x.reshape(batch_size, *x.shape[2:])
        values = network.apply(state.policy.params, flat(rollout.observation))[1]
        next_values = network.apply(state.policy.params, flat(rollout.next_observation))[1]
        ends = rollout.terminated, rollout.done
        next_values = games.for_both(rollout.next_player, next_values.reshape(rollout.done.shape))
        of_both = outcomes(rollout.reward, next_values, *ends, config.gamma)
        target = flat(games.of_player(rollout.player, of_both))
        known = jnp.ones(ends[0].shape) if config.bootstrap_cut else has_outcome(*ends)  # detail 5
        weight = flat(jnp.where(rollout.opening, 0.0, known))
        policy = flat(rollout.policy)
        batch = Batch(flat(rollout.observation), flat(rollout.mask), policy, target, weight)
        return batch, {
            "mean_value": values.mean(),
            "explained_variance": parts.explained_variance(values, target, weight),
            "target_entropy": -jax.scipy.special.xlogy(policy, policy).sum(-1).mean(),
        }

    def loss(params, batch):
        logits, values = network.apply(params, batch.observation)
        policy_loss = cross_entropy(logits, batch.mask, batch.policy).mean()  # detail 4
        value_loss = parts.mean(jnp.square(values - batch.target), batch.weight)
        total = policy_loss + config.vf_coef * value_loss
        probs = nn.softmax(masked(logits, batch.mask))
        return total, {
            "loss": total,
            "policy_loss": policy_loss,
            "value_loss": parts.Average(value_loss, 1.0 * batch.weight.any()),
            "entropy": cross_entropy(logits, batch.mask, probs).mean(),
        }

    def turn(which, batch):
        """The batch with sample i turned by symmetry number which[i], int32 (batch,)."""
        return batch._replace(
            observation=symmetry.board(which, batch.observation),
            mask=symmetry.policy(which, batch.mask),
            policy=symmetry.policy(which, batch.policy),
        )

    def learn(state, batch):
        """Epochs of minibatches."""
        rng, order_rng, turn_rng = jax.random.split(state.order_rng, 3)
        orders = parts.permutations(order_rng, config.update_epochs, batch_size)
        orders = orders.reshape(config.update_epochs * config.num_minibatches, -1)
        number = len(symmetry.cells) if symmetry else 1
        which = jax.random.randint(turn_rng, orders.shape, 0, number)

        def gradient_step(carry, inputs):
            params, opt_state = carry
            indices, which, rate = inputs
            samples = jax.tree.map(lambda x: x[indices], batch)
            samples = turn(which, samples) if symmetry else samples  # detail 7
            grads, metrics = jax.grad(loss, has_aux=True)(params, samples)
            updates, opt_state = optimizer(rate).update(grads, opt_state, params)
            metrics |= {"grad_norm": parts.global_norm(grads), "current_learning_rate": rate}
            return (optax.apply_updates(params, updates), opt_state), metrics

        inputs = orders, which, learning_rates(config, num_updates, state.update)
        start = state.policy.params, state.opt_state
        (params, opt_state), metrics = parts.scan(gradient_step, start, inputs)
        state = state.replace(policy=PolicyState(params), opt_state=opt_state, order_rng=rng)
        return state, jax.tree.map(jnp.mean, metrics)

    return parts.Learner(
        init=init,
        update=update,
        policy=make_policy(config, env, env_params),
        steps=batch_size,
        evaluate=functools.partial(evaluate, config, env, env_params, network),
    )


# --- evaluation -------------------------------------------------------------------------------


def evaluate(config, env, env_params, network, state, rng):
    """Metrics of games against three opponents, each (num_eval_episodes,); see the docstring."""
    assess = functools.partial(by_network, network)

    def acting(policy):
        if config.eval_search:
            search, size = searcher(config, env.wrapped, assess), config.num_simulations
            return lambda rng, boards: search(policy.params, boards, rng, size, False).action
        return lambda rng, boards: jnp.argmax(assess(policy.params, rng, boards)[0], axis=-1)

    opponents = {"random": games.random_move, "past": acting(state.past)}
    if config.eval_simulations:
        opponents["search"] = playout_search(env.wrapped, config.eval_simulations)
    number, metrics = config.num_eval_episodes, {}
    for key, (name, opponent) in zip(jax.random.split(rng, 3), opponents.items()):
        openings = 0 if name == "random" else config.eval_opening_moves
        played = games.play(env, env_params, acting(state.policy), opponent, number, openings, key)
        if name == "random":
            metrics |= {f"eval_{kind}": x for kind, x in played.items()}
        else:
            metrics[f"eval_{name}_return"] = played["return"]
    return metrics


if __name__ == "__main__":
    from algorithms import launch

    launch.main(sys.modules[__name__])
