"""The official script of REPPO on environments of this kit, for peers.py.

Its networks, losses and updates are called as they are. Left out are hydra, wandb and optuna, and
its wrappers for brax, which do not fit the script at this commit. Settings are its own for small
batches (config/experiment_overrides/mjx_dmc_small_data.yaml) and for brax (config/env/brax.yaml),
but for those in CASES.
"""

import sys
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import envs
from envs.batch import transition
from envs.levels import choose

REPOSITORY = "https://github.com/cvoelcker/reppo"
COMMIT = "a7ab85bd41b1c325ef1959ed3c5b44b8a37b4d63"
EPISODES = 32
# Modules that the script imports, with the names that it reads from them
ABSENT = {
    "hydra": {"main": lambda **_: lambda f: f},
    "omegaconf": {"DictConfig": dict, "OmegaConf": object},
    "optuna": {"Trial": object},
    "plotly": {"graph_objs": None},
    "plotly.graph_objs": {"Figure": object, "Scatter": object},
    "wandb": {},
}
SETTINGS = dict(
    lr=3e-4,
    gamma=0.99,
    lmbda=0.95,
    lmbda_min=0.5,
    num_mini_batches=16,
    num_epochs=8,
    max_grad_norm=0.5,
    normalize_env=True,
    polyak=1.0,
    exploration_noise_min=1.0,
    exploration_noise_max=1.0,
    exploration_base_envs=0,
    ent_start=0.01,
    ent_target_mult=0.5,
    kl_start=0.01,
    kl_bound=0.1,
    aux_loss_mult=1.0,
    vmin=0.0,
    vmax=150.0,
    num_bins=151,
    hl_gauss=True,
    critic_hidden_dim=64,
    actor_hidden_dim=64,
    num_critic_encoder_layers=2,
    num_critic_head_layers=2,
    num_critic_pred_layers=2,
    num_actor_layers=3,
    actor_min_std=0.0,
)


class Case(NamedTuple):
    settings: dict[str, Any]
    env_settings: dict[str, Any]
    points: int  # of the curve, after its first
    reward_scale: float = 0.1


CASES = {
    "Pendulum-v1": Case(
        dict(
            total_time_steps=50_000,
            max_episode_steps=200,
            num_envs=16,
            num_steps=64,
            lr=2.5e-3,
            vmin=-150.0,
            vmax=0.0,
        ),
        {},
        10,
    ),
    "playground/CartpoleSwingup": Case(
        dict(
            total_time_steps=250_000,
            max_episode_steps=500,
            num_envs=16,
            num_steps=64,
            lr=2.5e-3,
        ),
        {"action_repeat": 2},
        5,
        reward_scale=0.5,
    ),
    "brax/hopper": Case(
        dict(
            total_time_steps=1_000_000,
            max_episode_steps=1000,
            num_envs=64,
            num_steps=32,
            gamma=0.997,
        ),
        {"backend": "spring"},
        5,
    ),
}


class State(NamedTuple):
    """What the script's wrappers read of an environment's state. It sets info["steps"]."""

    inner: Any
    info: dict[str, jax.Array]


class Vectorised:
    """An environment of this kit as the script's wrapper of MuJoCo playground presents one.

    All environments are stepped at once, actions are in [-1, 1], and rewards are scaled.
    """

    def __init__(self, name: str, case: Case):
        self.env, self.params = envs.make(name, **case.env_settings)
        self.limit, self.reward_scale = case.settings["max_episode_steps"], case.reward_scale

    def action_space(self, params: Any = None) -> Any:
        space = self.env.action_space(self.params)
        return envs.gymnax.spaces.Box(-1.0, 1.0, space.shape)

    def observation_space(self, params: Any = None) -> tuple[Any, Any]:
        space = self.env.observation_space(self.params)
        return space, space

    def rescaled(self, action: jax.Array) -> jax.Array:
        space = self.env.action_space(self.params)
        return space.low + (action + 1.0) / 2.0 * (space.high - space.low)

    def start(self, keys: jax.Array) -> tuple[jax.Array, Any]:
        return jax.vmap(self.env.reset_env, (0, None))(keys, self.params)

    def reset(self, keys: jax.Array) -> tuple[jax.Array, jax.Array, State]:
        observation, inner = self.start(keys)
        zeros = jnp.zeros(len(keys))
        return observation, observation, State(inner, {"steps": zeros, "truncation": zeros})

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[Any, ...]:
        step = jax.vmap(lambda k, s, a: transition(self.env, k, s, a, self.params))
        observation, inner, reward, terminated, truncated, _ = step(
            keys, state.inner, self.rescaled(action)
        )
        steps = state.info["steps"] + 1.0
        truncated = (truncated | (steps >= self.limit)) & ~terminated
        done = terminated | truncated
        fresh = self.start(jax.vmap(jax.random.fold_in, (0, None))(keys, 1))
        observation, inner = choose(done, fresh, (observation, inner))
        info = {"steps": jnp.where(done, 0.0, steps), "truncation": 1.0 * truncated}
        return observation, observation, State(inner, info), self.reward_scale * reward, done, {}


def script(folder: str) -> Any:
    """The script of a checkout, as a module."""
    from flax import nnx

    for name, members in ABSENT.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(members)
    plain = nnx.Module.__setattr__
    as_list = lambda value: nnx.List(value) if type(value) is list else value  # for flax 0.12
    nnx.Module.__setattr__ = lambda self, name, value: plain(self, name, as_list(value))
    sys.path.insert(0, folder)
    from src.jaxrl import reppo

    return reppo


def train(name: str, folder: str, seed: int) -> dict[str, Any]:
    """Trains a seed. Scores are means of whole episodes of the policy's mode."""
    reppo, case = script(folder), CASES[name]
    config = reppo.ReppoConfig(**SETTINGS | case.settings)
    task = Vectorised(name, case)
    made = reppo.make_train_fn(config, task)
    cells = [cell.cell_contents for cell in made.__closure__]
    inside = dict(zip(made.__code__.co_freevars, cells))
    # Without weak types, so that `update` is compiled once
    same = lambda x: jax.lax.convert_element_type(x, jnp.asarray(x).dtype)
    strong = lambda tree: jax.tree.map(same, tree)

    @jax.jit
    def update(state, key):
        rollout_key, learn_key = jax.random.split(key)
        rollout, state = inside["collect_rollout"](key=rollout_key, train_state=state)
        state, _ = inside["learn_step"](key=learn_key, train_state=state, batch=rollout)
        return strong(state.replace(iteration=state.iteration + 1))

    @jax.jit
    def score(state, key):
        norm, mode = state.last_env_state, reppo.make_policy(state)

        def policy(state, observation, memory=None):
            x = (observation - norm.mean) / jnp.sqrt(norm.var + 1e-2)  # as NormalizeVec
            action = jnp.clip(mode(eval_key, x[None])[0][0], -0.999, 0.999)  # as ClipAction
            return task.rescaled(action), memory

        found = envs.evaluate(policy, None, task.env, task.params, key, EPISODES)
        return found.episode_return.mean()

    init_key, eval_key, update_key = jax.random.split(jax.random.key(seed), 3)
    init = reppo.make_init(config, inside["env"], inside["env_params"])
    state = jax.jit(lambda key: strong(init(key)))(init_key)
    number = -(-config.total_time_steps // (config.num_envs * config.num_steps))
    points = {round(number * i / case.points) for i in range(case.points + 1)}
    curve = [float(score(state, eval_key))]
    for i, key in enumerate(jax.random.split(update_key, number), 1):
        state = update(state, key)
        if i in points:
            curve.append(float(score(state, eval_key)))
    return {"timestep": int(state.time_steps), "curve": curve, "score": curve[-1]}
