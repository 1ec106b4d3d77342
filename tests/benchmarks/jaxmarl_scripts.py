"""JaxMARL 0.2.0's own training scripts as functions; runs in JaxMARL's Python, see peer_python.py.

They are the files in the folder baselines of its repository at COMMIT, unchanged; its package has
none of them. hydra and omegaconf, which read their settings, and wandb, which takes their logs, are
replaced by stand-ins that do nothing. Settings are those of the YAML files beside the scripts,
except for the environment and SETTINGS.

Seeds are trained one at a time, without the scripts' own vmap over seeds. Several seeds can hang on
a CPU. Even one seed would turn every lax.cond into a select, and rare work (learning once there is
enough data, evaluation) would be computed at every update. The scripts' own evaluations are off.

Two settings differ from the files, because those would not end in half an hour on a CPU core.
SMAX's Q-learning has 64 hidden units instead of 512, and ten times the learning rate. VDN on
Overcooked has a dense layer of 64 on flattened observations instead of convolutions (24 steps/s),
as the script of IPPO has it.
"""

import copy
import importlib.util
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

# Only the standard library is imported early, because this kit's Python reads the settings, too.

REPOSITORY = "https://github.com/FLAIROx/JaxMARL"
COMMIT = "c793d095618c6d3edfb5632802348f57b70a4b94"  # from July 2026, like 0.2.0
EPISODES = 256  # episodes of the policy's best action, after training

SMAX_3M = {
    "ENV_NAME": "HeuristicEnemySMAX",
    "MAP_NAME": "3m",
    "ENV_KWARGS": {"see_enemy_actions": True, "walls_cause_death": True, "attack_mode": "closest"},
}
SPREAD = {"ENV_NAME": "MPE_simple_spread_v3", "ENV_KWARGS": {}}
CRAMPED_ROOM = {
    "ENV_NAME": "overcooked",
    "ENV_KWARGS": {"layout": "cramped_room"},
    "REW_SHAPING_HORIZON": 2_500_000,
}
PPO = {
    "UPDATE_EPOCHS": 4,
    "NUM_MINIBATCHES": 4,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "SCALE_CLIP_EPS": False,
    "VF_COEF": 0.5,
    "ANNEAL_LR": True,
}
RNN_PPO = {**PPO, "NUM_STEPS": 128, "FC_DIM_SIZE": 128, "GRU_HIDDEN_DIM": 128}
MAPPO_SMAX = {
    **RNN_PPO,
    "NUM_ENVS": 128,
    "LR": 0.002,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.0,
    "MAX_GRAD_NORM": 0.25,
    "OBS_WITH_AGENT_ID": True,
}
MAPPO_SPREAD = {
    **RNN_PPO,
    "NUM_ENVS": 16,
    "LR": 2e-3,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "MAX_GRAD_NORM": 0.5,
}
IPPO_SMAX = {**MAPPO_SMAX, "LR": 0.004, "CLIP_EPS": 0.05, "ENT_COEF": 0.01}
IPPO_OVERCOOKED = {
    **PPO,
    "NUM_ENVS": 16,
    "NUM_STEPS": 128,
    "LR": 2.5e-4,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "MAX_GRAD_NORM": 0.5,
    "ACTIVATION": "tanh",
}
VALUES = {
    "EPS_START": 1.0,
    "EPS_FINISH": 0.05,
    "EPS_DECAY": 0.1,
    "TAU": 1.0,
    "TEST_DURING_TRAINING": False,
    "TEST_NUM_ENVS": 1,  # which are made all the same
    "WANDB_MODE": "disabled",
}
VALUES_SPREAD = {
    **VALUES,
    "NUM_ENVS": 8,
    "NUM_STEPS": 26,
    "BUFFER_SIZE": 5000,
    "BUFFER_BATCH_SIZE": 32,
    "HIDDEN_SIZE": 64,
    "MIXER_EMBEDDING_DIM": 32,
    "MIXER_HYPERNET_HIDDEN_DIM": 128,
    "MIXER_INIT_SCALE": 0.001,
    "MAX_GRAD_NORM": 25,
    "TARGET_UPDATE_INTERVAL": 200,
    "NUM_EPOCHS": 1,
    "LR": 0.005,
    "LEARNING_STARTS": 10_000,
    "LR_LINEAR_DECAY": True,
    "GAMMA": 0.9,
}
VALUES_SMAX = {
    **VALUES,
    "NUM_ENVS": 16,
    "NUM_STEPS": 128,
    "BUFFER_SIZE": 5000,
    "BUFFER_BATCH_SIZE": 32,
    "HIDDEN_SIZE": 64,  # 512 units, with a tenth of this learning rate, would take hours
    "MIXER_EMBEDDING_DIM": 64,
    "MIXER_HYPERNET_HIDDEN_DIM": 256,
    "MIXER_INIT_SCALE": 0.001,
    "MAX_GRAD_NORM": 10,
    "TARGET_UPDATE_INTERVAL": 10,
    "NUM_EPOCHS": 8,
    "LR": 0.0005,
    "LEARNING_STARTS": 10_000,
    "LR_LINEAR_DECAY": False,
    "GAMMA": 0.99,
    "REW_SCALE": 10.0,
}
VALUES_OVERCOOKED = {
    **VALUES,
    "NUM_ENVS": 32,
    "NUM_STEPS": 1,
    "BUFFER_SIZE": 100_000,
    "BUFFER_BATCH_SIZE": 128,
    "HIDDEN_SIZE": 64,
    "LEARNING_STARTS": 1000,
    "MAX_GRAD_NORM": 1,
    "TARGET_UPDATE_INTERVAL": 10,
    "NUM_EPOCHS": 4,
    "LR": 0.00007,
    "LR_LINEAR_DECAY": True,
    "GAMMA": 0.99,
}


class Script(NamedTuple):
    """A file of JaxMARL's, with its algorithm and environment."""

    file: str  # in the folder baselines
    network: str  # its class that acts
    settings: dict[str, Any]
    total_timesteps: int


SETTINGS = {
    "ippo_rnn/SMAX-3m": Script(
        "IPPO/ippo_rnn_smax.py", "ActorCriticRNN", IPPO_SMAX | SMAX_3M, 2_000_000
    ),
    "mappo/SMAX-3m": Script("MAPPO/mappo_rnn_smax.py", "ActorRNN", MAPPO_SMAX | SMAX_3M, 2_000_000),
    "iql/SMAX-3m": Script("QLearning/iql_rnn.py", "RNNQNetwork", VALUES_SMAX | SMAX_3M, 2_000_000),
    "vdn/SMAX-3m": Script("QLearning/vdn_rnn.py", "RNNQNetwork", VALUES_SMAX | SMAX_3M, 2_000_000),
    "qmix/SMAX-3m": Script(
        "QLearning/qmix_rnn.py", "RNNQNetwork", VALUES_SMAX | SMAX_3M, 2_000_000
    ),
    "mappo/MPE_simple_spread_v3": Script(
        "MAPPO/mappo_rnn_mpe.py", "ActorRNN", MAPPO_SPREAD | SPREAD, 2_000_000
    ),
    "vdn/MPE_simple_spread_v3": Script(
        "QLearning/vdn_rnn.py", "RNNQNetwork", VALUES_SPREAD | SPREAD, 2_000_000
    ),
    "qmix/MPE_simple_spread_v3": Script(
        "QLearning/qmix_rnn.py", "RNNQNetwork", VALUES_SPREAD | SPREAD, 2_000_000
    ),
    "ippo/overcooked-cramped_room": Script(
        "IPPO/ippo_ff_overcooked.py", "ActorCritic", IPPO_OVERCOOKED | CRAMPED_ROOM, 5_000_000
    ),
    "vdn/overcooked-cramped_room": Script(
        "QLearning/vdn_cnn_overcooked.py", "QNetwork", VALUES_OVERCOOKED | CRAMPED_ROOM, 5_000_000
    ),
}


class Run(NamedTuple):
    """A script, ready to train."""

    train: Callable  # key -> what the script returns
    act: Callable  # params, memory, observations, done, mask -> memory, actions
    env: Any
    memory_size: int
    timesteps: int  # that it takes
    logged: list[dict[str, Any]]  # the metrics that it hands to wandb


def make(folder: str, name: str, **more: Any) -> Run:
    """A script by its name in SETTINGS, with `more` settings on top.

    Args:
      folder: the checkout of REPOSITORY.
    """
    script = SETTINGS[name]
    config = script.settings | {"TOTAL_TIMESTEPS": script.total_timesteps} | more
    module, logged = load(Path(folder) / "baselines" / script.file), []
    module.wandb.log = logged.append
    if hasattr(module, "CNN"):
        module.CNN = dense_layer()
    env = make_env(config)
    if hasattr(module, "env_from_config"):
        train = module.make_train(config, module.env_from_config(copy.deepcopy(config))[0])
    else:
        train = module.make_train(with_layout(config))
    updates = config["TOTAL_TIMESTEPS"] // config["NUM_STEPS"] // config["NUM_ENVS"]
    timesteps = updates * config["NUM_STEPS"] * config["NUM_ENVS"]
    size = config.get("GRU_HIDDEN_DIM", config.get("HIDDEN_SIZE", 0))
    act = actor(script.network, module, config, env)
    return Run(train, act, env, size, timesteps, logged)


def load(file: Path) -> Any:
    """The module of a script."""
    for name in ("hydra", "omegaconf", "wandb"):
        sys.modules[name] = mock.MagicMock()
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    # Importing JaxMARL prints the extras that are missing, and replaces the standard streams.
    streams = sys.stdout, sys.stderr, sys.__stdout__
    sys.stdout = sys.__stdout__ = io.StringIO()
    try:
        spec.loader.exec_module(module)
    finally:
        sys.stdout, sys.stderr, sys.__stdout__ = streams
    return module


def dense_layer() -> Any:
    """The replacement of convolutions."""
    import flax.linen as nn

    class Dense(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.relu(nn.Dense(64)(x.reshape(len(x), -1)))

    return Dense


def make_env(config: dict[str, Any]) -> Any:
    import jaxmarl
    from jaxmarl.environments.smax import map_name_to_scenario

    settings = dict(with_layout(config)["ENV_KWARGS"])
    if "MAP_NAME" in config:
        settings["scenario"] = map_name_to_scenario(config["MAP_NAME"])
    return jaxmarl.make(config["ENV_NAME"], **settings)


def with_layout(config: dict[str, Any]) -> dict[str, Any]:
    """The settings with Overcooked's layout instead of its name."""
    from jaxmarl.environments.overcooked import overcooked_layouts

    config = copy.deepcopy(config)
    if "layout" in config["ENV_KWARGS"]:
        config["ENV_KWARGS"]["layout"] = overcooked_layouts[config["ENV_KWARGS"]["layout"]]
    return config


def actor(kind: str, module: Any, config: dict[str, Any], env: Any) -> Callable:
    """act(params, memory, observations, done, mask) -> memory, the best actions.

    Arrays have the agents as first axis. `done` marks dead agents, whose memories are fresh.
    """
    import jax.numpy as jnp

    num_actions = env.action_space(env.agents[0]).n
    Network = getattr(module, kind)

    def recurrent_policy(params, memory, observations, done, mask):
        masks = (mask,) if "MAP_NAME" in config else ()
        inputs = observations[None], done[None], *masks
        memory, policy, *_ = Network(num_actions, config).apply(params, memory, inputs)
        return memory, jnp.argmax(policy.logits[0], -1)

    def policy(params, memory, observations, done, mask):
        flat = observations.reshape(len(observations), -1)
        network = Network(num_actions, activation=config["ACTIVATION"])
        return memory, jnp.argmax(network.apply(params, flat)[0].logits, -1)

    def recurrent_values(params, memory, observations, done, mask):
        # As in the scripts' rollouts: agents' ids follow, and dead agents observe zeros.
        inputs = jnp.concatenate([observations, jnp.eye(len(observations))], -1)
        inputs = jnp.where(done[:, None], 0.0, inputs)[None]
        network = Network(num_actions, config["HIDDEN_SIZE"])
        memory, values = network.apply(params, memory, inputs, done[None])
        return memory, jnp.argmax(jnp.where(mask, values[0], -jnp.inf), -1)

    def values(params, memory, observations, done, mask):
        network = Network(num_actions, hidden_size=config["HIDDEN_SIZE"])
        return memory, jnp.argmax(network.apply(params, observations), -1)

    kinds = {"ActorCriticRNN": recurrent_policy, "ActorRNN": recurrent_policy}
    kinds |= {"ActorCritic": policy, "RNNQNetwork": recurrent_values, "QNetwork": values}
    return kinds[kind]


def parameters(trained: dict[str, Any]) -> Any:
    """The actor's parameters: those of the first train state in a script's result."""
    state = trained["runner_state"]
    while not hasattr(state, "params"):
        state = state[0]
    return state.params.get("agent", state.params)


def evaluate(run: Run, params: Any, rng: Any) -> dict[str, Any]:
    """Mean return of the agents over EPISODES episodes, and the share of battles won in SMAX."""
    import jax
    import jax.numpy as jnp

    env, agents = run.env, run.env.agents
    stack = lambda values: jnp.stack([values[agent] for agent in agents])
    number = env.action_space(agents[0]).n
    smax = "smax" in env.name.lower()

    def episode(rng):
        reset_rng, rng = jax.random.split(rng)
        observations, state = env.reset(reset_rng)

        def step(carry):
            observations, state, memory, done, rng, total, _, _ = carry
            rng, step_rng = jax.random.split(rng)
            mask = jnp.ones((len(agents), number), bool)
            if smax:
                mask = stack(env.get_avail_actions(state)).astype(bool)
            seen = stack(observations)
            memory, actions = run.act(params, memory, seen, done, mask)
            actions = dict(zip(agents, actions))
            observations, state, reward, dones, _ = env.step_env(step_rng, state, actions)
            reward = stack(reward).reshape(-1).astype(jnp.float32)
            won = reward[0] >= 1.0  # the bonus for a victory, as in JaxMARL's wrapper of SMAX
            done, over = stack(dones).reshape(-1), dones["__all__"]
            return observations, state, memory, done, rng, total + reward.mean(), won, over

        no, nobody = jnp.zeros((), bool), jnp.zeros(len(agents), bool)
        memory = jnp.zeros((len(agents), run.memory_size))
        start = observations, state, memory, nobody, rng, jnp.zeros(()), no, no
        *_, total, won, _ = jax.lax.while_loop(lambda carry: ~carry[-1], step, start)
        return total, won

    totals, won = jax.vmap(episode)(jax.random.split(rng, EPISODES))
    share = won.mean() if smax else jnp.nan
    return {"score": totals.mean(), "won": share}


def scores(folder: str, name: str, first: int, count: int, **more: Any) -> list[dict[str, float]]:
    """Trains seeds one after the other. Returns each seed's score and share of episodes won.

    Where the script logs them, it adds the mean return and share won in the last twentieth of
    training.
    """
    import jax

    run = make(folder, name, **more)
    train, look = jax.jit(run.train), jax.jit(lambda params, rng: evaluate(run, params, rng))
    rows = []
    for seed in range(first, first + count):
        run.logged.clear()
        key = jax.random.PRNGKey(seed)
        found = look(parameters(train(key)), jax.random.fold_in(key, 1))
        jax.effects_barrier()
        row = {key: float(value) for key, value in found.items()}
        row["training"] = last(run.logged, "returns", "returned_episode_returns")
        if "MPE" in name:
            row["training"] /= run.env.num_agents  # which JaxMARL's wrapper multiplies it by
        row["won in training"] = last(run.logged, "win_rate")
        rows.append({**row, "timestep": run.timesteps})
    return rows


def last(logged: list[dict[str, Any]], *names: str) -> float:
    """The mean of the values logged by one of these names in the last twentieth; NaN without
    any."""
    import numpy as np

    logs = sorted(logged, key=lambda log: float(log["env_step"]))[-max(1, len(logged) // 20) :]
    values = [float(log[name]) for log in logs for name in names if name in log]
    return float(np.nanmean(values)) if values else float("nan")
