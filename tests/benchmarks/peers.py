"""How well other kits learn: their own settings and Python environment, and this kit's protocol.

    python tests/benchmarks/peers.py                           # all cells of the table of peers
    python tests/benchmarks/peers.py rejax-ppo/CartPole-v1     # one
    python tests/benchmarks/peers.py rejax-ppo/CartPole-v1 --look 8   # seeds for tuning, not kept

rejax 0.1.3 has the settings of its configs/gymnax for the same environment. PureJaxRL (at COMMIT)
has those at the end of its ppo.py. Only the budget is this kit's, 500k steps. A score is the mean
return of 32 episodes of the policy's most likely action after the last step, as for this kit; their
own evaluations sample actions. PureJaxRL does not evaluate while it trains, so earlier returns are
not known.

JaxMARL 0.2.0's scripts have their own settings (jaxmarl_scripts.py), and seeds are trained one
after the other: 2M steps of SMAX and of MPE's spread, 5M of Overcooked. Scores are means of 256
episodes.

The installed brax's SAC and PPO evaluate themselves, over 32 episodes as well. SAC has the settings
of brax's notebook for the hopper, with networks of 64 units as in sac.py's preset. The notebook has
none for PPO, so it takes those for the ant, for 5M steps.

The official script of REPPO (reppo_script.py) runs on this kit's environments, in its Python. The
authors' DreamerV3 (dreamer_script.py) runs on gymnasium's CartPole, at the size of our preset, and
their FlashSAC (flashsac_script.py), in PyTorch, on gymnasium's Pendulum.

accelerator.py runs MinAtar: purejaxql's pqn_minatar.py with the settings of its pqn_minatar.yaml,
and PureJaxRL's ppo.py with those of its brax_minatar.ipynb, for 10M steps.
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

# Workers run this file with another kit's Python, without the packages of this one: imports come
# late.
COMMIT = "31756b197773a52db763fdbe6d635e4b46522a73"
PUREJAXRL = "https://github.com/luchris429/purejaxrl"
STEPS, POINTS, EPISODES = 500_000, 20, 32
# Libraries of PureJaxRL's wrappers and purejaxql's command line that are not used here
NOT_USED = ("brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training", "navix")
NOT_USED += ("hydra", "omegaconf", "wandb")

REJAX_PPO = {
    "agent_kwargs": {"activation": "tanh"},
    "num_envs": 5,
    "num_steps": 100,
    "num_epochs": 5,
    "num_minibatches": 5,
    "learning_rate": 0.00075,
    "max_grad_norm": 0.5,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_eps": 0.2,
    "ent_coef": 0.01,
    "vf_coef": 0.5,
}
REJAX_DQN = {
    "agent": "DuelingQNetwork",
    "agent_kwargs": {"activation": "swish"},
    "num_envs": 10,
    "batch_size": 100,
    "max_grad_norm": 10,
    "learning_rate": 0.001,
    "num_epochs": 5,
    "eps_start": 1,
    "eps_end": 0.05,
    "exploration_fraction": 0.5,
    "gamma": 0.99,
    "ddqn": True,
}
SETTINGS = {
    "rejax-ppo/CartPole-v1": REJAX_PPO,
    "rejax-ppo/Acrobot-v1": {**REJAX_PPO, "normalize_observations": True},
    "rejax-dqn/CartPole-v1": {
        **REJAX_DQN,
        "buffer_size": 50_000,
        "fill_buffer": 5_000,
        "polyak": 0.98,
    },
    "rejax-dqn/Acrobot-v1": {
        **REJAX_DQN,
        "buffer_size": 10_000,
        "fill_buffer": 1_000,
        "target_update_freq": 200,
    },
}
# https://github.com/google/brax/blob/main/notebooks/training.ipynb
BRAX_SAC = {
    "num_envs": 128,
    "grad_updates_per_step": 64,
    "batch_size": 512,
    "min_replay_size": 8192,
    "max_replay_size": 1_048_576,
    "learning_rate": 6e-4,
    "discounting": 0.997,
    "reward_scaling": 30.0,
    "normalize_observations": True,
}
BRAX_PPO = {
    "num_envs": 4096,
    "unroll_length": 5,
    "batch_size": 2048,
    "num_minibatches": 32,
    "num_updates_per_batch": 4,
    "learning_rate": 3e-4,
    "entropy_cost": 1e-2,
    "discounting": 0.97,
    "reward_scaling": 10.0,
    "normalize_observations": True,
}
PUREJAXRL_PPO = {
    "LR": 2.5e-4,
    "NUM_ENVS": 4,
    "NUM_STEPS": 128,
    "TOTAL_TIMESTEPS": STEPS,
    "UPDATE_EPOCHS": 4,
    "NUM_MINIBATCHES": 4,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5,
    "ACTIVATION": "tanh",
    "ANNEAL_LR": True,
    "DEBUG": False,
}
OF_MINATAR = {  # where PureJaxRL's settings differ
    "LR": 5e-3,
    "NUM_ENVS": 64,
    "NUM_MINIBATCHES": 8,
    "ACTIVATION": "relu",
}
PUREJAXQL_PQN = {
    "NUM_ENVS": 128,
    "NUM_STEPS": 32,
    "EPS_START": 1.0,
    "EPS_FINISH": 0.05,
    "EPS_DECAY": 0.1,
    "NUM_MINIBATCHES": 32,
    "NUM_EPOCHS": 2,
    "NORM_TYPE": "layer_norm",
    "LR": 5e-4,
    "MAX_GRAD_NORM": 10,
    "LR_LINEAR_DECAY": True,
    "GAMMA": 0.99,
    "LAMBDA": 0.65,
    "TEST_DURING_TRAINING": False,
    "WANDB_MODE": "disabled",
}


# --- in another kit's Python ------------------------------------------------------------------


def evaluate(act, env, env_params, rng):
    """Mean return of EPISODES episodes of act(observation) -> action."""
    import jax
    import jax.numpy as jnp

    def episode(rng):
        reset_rng, rng = jax.random.split(rng)
        observation, state = env.reset(reset_rng, env_params)

        def step(carry):
            observation, state, rng, total, _ = carry
            rng, step_rng = jax.random.split(rng)
            action = act(observation)
            observation, state, reward, done, _ = env.step(step_rng, state, action, env_params)
            return observation, state, rng, total + reward, done

        start = observation, state, rng, jnp.zeros(()), jnp.zeros((), bool)
        return jax.lax.while_loop(lambda carry: ~carry[-1], step, start)[3]

    return jax.vmap(episode)(jax.random.split(rng, EPISODES)).mean()


def train_rejax(kind, environment):
    """train(key) -> curve (points,)."""
    import jax.numpy as jnp
    import rejax

    settings = SETTINGS[f"rejax-{kind}/{environment}"]
    algorithm = rejax.get_algo(kind).create(
        env=environment, total_timesteps=STEPS, eval_freq=STEPS // POINTS, **settings
    )

    def greedy(algorithm, state, rng):
        def act(observation):
            if algorithm.normalize_observations:
                observation = algorithm.normalize_obs(state.obs_rms_state, observation)
            if kind == "dqn":
                return jnp.argmax(algorithm.agent.apply(state.q_ts.params, observation[None])[0])
            params = state.actor_ts.params
            policy = algorithm.actor.apply(params, observation[None], method="_action_dist")
            return jnp.argmax(policy.logits[0])

        return evaluate(act, algorithm.env, algorithm.env_params, rng)

    algorithm = algorithm.replace(eval_callback=greedy)
    return lambda key: algorithm.train(key)[1]


def script_of(kit, name, folder):
    """A script of a checkout, as a module; libraries that it does not need are absent."""
    sys.path.insert(0, str(Path(folder) / kit))
    for library in NOT_USED:
        sys.modules[library] = mock.MagicMock()
    return importlib.import_module(name)


def train_purejaxrl(environment, folder, steps):
    """train(key) -> curve (points,); only the last point is known."""
    import gymnax
    import jax.numpy as jnp

    ppo = script_of("purejaxrl", "ppo", folder)
    settings = {**PUREJAXRL_PPO, **(OF_MINATAR if "MinAtar" in environment else {})}
    train = ppo.make_train({**settings, "ENV_NAME": environment, "TOTAL_TIMESTEPS": steps})
    env, env_params = gymnax.make(environment)
    network = ppo.ActorCritic(env.action_space(env_params).n, activation=settings["ACTIVATION"])
    act = lambda state, x: jnp.argmax(network.apply(state.params, x.reshape(-1))[0].logits)
    return last_point(train, act, env, env_params)


def train_purejaxql(environment, folder, steps):
    """train(key) -> curve (points,); only the last point is known."""
    import gymnax
    import jax.numpy as jnp

    pqn = script_of("purejaxql", "pqn_minatar", folder)
    lengths = {"TOTAL_TIMESTEPS": steps, "TOTAL_TIMESTEPS_DECAY": steps}
    train = pqn.make_train({**PUREJAXQL_PQN, **lengths, "ENV_NAME": environment})
    env, env_params = gymnax.make(environment)
    network = pqn.QNetwork(env.action_space(env_params).n, PUREJAXQL_PQN["NORM_TYPE"])

    def act(state, x):
        variables = {"params": state.params, "batch_stats": state.batch_stats}
        return jnp.argmax(network.apply(variables, x[None], train=False)[0])

    return last_point(train, act, env, env_params)


def last_point(train, act, env, env_params):
    """train(key) -> curve (points,) of a script's train, and of act(its state, observation)."""
    import jax
    import jax.numpy as jnp

    def run(key):
        state = train(key)["runner_state"][0]
        rng = jax.random.fold_in(key, 1)
        score = evaluate(lambda x: act(state, x), env, env_params, rng)
        return jnp.full(POINTS + 1, jnp.nan).at[-1].set(score)

    return run


def trainer(name, folder=None, steps=STEPS):
    """train(key) -> curve (points,) of a cell whose seeds train side by side."""
    algorithm, _, environment = name.partition("/")
    kit, kind = algorithm.split("-")
    if kit == "rejax":
        return train_rejax(kind, environment)
    made = {"purejaxrl": train_purejaxrl, "purejaxql": train_purejaxql}
    return made[kit](environment, folder, steps)


def curves(train, first, count, steps):
    """Curves of seeds trained side by side: train(key) -> curve."""
    import jax
    import numpy as np

    keys = jax.vmap(jax.random.PRNGKey)(np.arange(first, first + count))
    found = np.asarray(jax.jit(jax.vmap(train))(keys), np.float64)
    return [{"timestep": steps, "curve": curve, "score": curve[-1]} for curve in found.tolist()]


def train_brax(kind, seed):
    """Trains a seed of brax's SAC or PPO on its hopper, with spring physics."""
    import functools
    import importlib

    import jax
    import jax.numpy as jnp
    from brax import envs

    # brax 0.14 uses it, and jax 0.10 has removed it.
    first = lambda tree, devices: jax.tree.map(lambda x: jnp.asarray(x)[None], tree)
    jax.device_put_replicated = getattr(jax, "device_put_replicated", first)
    agent, points = f"brax.training.agents.{kind}", []
    settings = {"num_timesteps": 10 * STEPS, **BRAX_PPO}
    if kind == "sac":
        make = importlib.import_module(f"{agent}.networks").make_sac_networks
        small = functools.partial(make, hidden_layer_sizes=(64, 64))
        settings = {"num_timesteps": STEPS, "network_factory": small, **BRAX_SAC}
    importlib.import_module(f"{agent}.train").train(
        envs.get_environment("hopper", backend="spring"),
        episode_length=1000,
        num_evals=6,
        num_eval_envs=EPISODES,
        deterministic_eval=True,
        seed=seed,
        progress_fn=lambda *point: points.append(point),
        **settings,
    )
    curve = [float(metrics["eval/episode_reward"]) for _, metrics in points]
    return {"timestep": int(points[-1][0]), "curve": curve, "score": curve[-1]}


def train_jaxmarl(name, folder, first, count):
    """Trains seeds one after the other. Their curves before the last point are not known."""
    from tests.benchmarks import jaxmarl_scripts

    found = jaxmarl_scripts.scores(folder, name, first, count)
    return [seed | {"curve": [float("nan")] * POINTS + [seed["score"]]} for seed in found]


def serve(name, first, count, folder=None, steps=STEPS):
    """Prints the seeds' results as JSON."""
    import jax

    algorithm, _, environment = name.partition("/")
    kit, kind = algorithm.split("-")
    first, count, steps = int(first), int(count), int(steps)
    answers, sys.stdout = sys.stdout, sys.stderr  # JaxMARL's scripts print
    if kit == "jaxmarl":
        found = train_jaxmarl(f"{kind}/{environment}", folder, first, count)
    elif kit == "brax":
        found = [train_brax(kind, seed) for seed in range(first, first + count)]
    elif kit == "reppo":
        from tests.benchmarks import reppo_script

        seeds = range(first, first + count)
        found = [reppo_script.train(environment, folder, seed) for seed in seeds]
    elif kit == "dreamerv3":
        from tests.benchmarks import dreamer_script

        found = [dreamer_script.train(folder, seed) for seed in range(first, first + count)]
    elif kit == "flashsac":
        from tests.benchmarks import flashsac_script

        found = [flashsac_script.train(folder, seed) for seed in range(first, first + count)]
    else:
        found = curves(trainer(name, folder, steps), first, count, steps)
    device = jax.devices()[0]
    made = {"jax": jax.__version__, "device": f"{device.platform} {device.device_kind}"}
    print(json.dumps([made | seed for seed in found]), file=answers)


# --- in ours ----------------------------------------------------------------------------------


def train(cell, first: int, place: tuple[str, str, int] | None = None) -> list[dict]:
    """A row for each seed, as in learning.py; JaxMARL's also has the share won.

    Args:
      place: a Python, a checkout and the steps of a run, in place of the kit's own.
    """
    from tests.benchmarks import (
        dreamer_script,
        flashsac_script,
        jaxmarl_scripts,
        peer_python,
        reppo_script,
    )

    words, kit = [cell.key, str(first), str(cell.seeds)], cell.algorithm.partition("-")[0]
    python, version = peer_python.rejax, peer_python.REJAX
    if place:
        given, folder, steps = place
        words += [folder, str(steps)]
        python, version = lambda: given, kit
    elif kit == "purejaxrl":  # needs what rejax needs
        words.append(str(peer_python.checkout(PUREJAXRL, COMMIT)))
        version = f"purejaxrl {COMMIT[:7]}"
    elif kit == "jaxmarl":
        commit = jaxmarl_scripts.COMMIT
        words.append(str(peer_python.checkout(jaxmarl_scripts.REPOSITORY, commit, "baselines")))
        python, version = peer_python.jaxmarl, f"jaxmarl {commit[:7]}"
    elif kit == "reppo":
        commit = reppo_script.COMMIT
        words.append(str(peer_python.checkout(reppo_script.REPOSITORY, commit, "src")))
        python, version = lambda: sys.executable, f"reppo {commit[:7]}"
    elif kit == "dreamerv3":
        commit = dreamer_script.COMMIT
        words.append(str(peer_python.checkout(dreamer_script.REPOSITORY, commit)))
        python, version = peer_python.dreamer, f"dreamerv3 {commit[:7]}"
    elif kit == "flashsac":
        commit = flashsac_script.COMMIT
        words.append(
            str(peer_python.checkout(flashsac_script.REPOSITORY, commit, "flash_rl", "configs"))
        )
        python, version = peer_python.flashsac, f"flashsac {commit[:7]}"
    threads = {"NPROC": "1"}  # with more, jax 0.10 hangs in PureJaxRL's vmapped QR
    if kit == "brax":  # has none, and is installed here
        python, version = lambda: sys.executable, f"brax {importlib.metadata.version('brax')}"
        threads = {}
    run = [python(), __file__, "--worker", *words]
    pipe = {"stdout": subprocess.PIPE, "text": True, "env": os.environ | threads}
    done = json.loads(subprocess.run(run, check=True, **pipe).stdout)
    return [
        {
            "cell": cell.name,
            "seed": first + i,
            "timestep": seed["timestep"],
            "score": seed["score"],
            "training": seed.get("training", float("nan")),
            "curve": " ".join(f"{value:.5g}" for value in seed["curve"]),
            "command": f"python tests/benchmarks/peers.py {cell.key}",
            "git_commit": version,
            **{name: seed[name] for name in ("jax", "device")},
            **{name: seed[name] for name in ("won", "won in training") if name in seed},
        }
        for i, seed in enumerate(done)
    ]


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        serve(*sys.argv[2:])
        return
    from tests.benchmarks import learning, report
    from tests.benchmarks.cells import PEERS

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cells", nargs="*", metavar="CELL", help="by default all")
    parser.add_argument("--look", type=int, metavar="SEEDS", help="of those for tuning; not kept")
    args = parser.parse_args()
    try:
        cells = learning.chosen(args.cells, PEERS) or PEERS
    except learning.UserError as error:
        sys.exit(f"error: {error}")
    for cell in cells:
        cell = cell._replace(seeds=args.look or cell.seeds)
        rows = train(cell, 0 if args.look else report.BLOCK)
        if not args.look:
            report.keep(cell.algorithm, rows)
        texts = [{k: str(v) for k, v in row.items()} for row in rows]
        print(" | ".join(report.line(cell, texts)), flush=True)
    if not args.look:
        learning.write()


if __name__ == "__main__":
    main()
