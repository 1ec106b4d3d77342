"""The authors' DreamerV3 on gymnasium's CartPole-v1, for peers.py, in an environment of its own.

Its agent, replay buffer and driver are called as they are, in the order of its run/train.py, with
the sizes and the train ratio of dreamer.py's preset. All other settings are its defaults. Left out
are its logger, checkpoints and servers. A step that resets an environment counts as a step there.

Its policy samples, in evaluation too. So a score is the mean return of 32 episodes of the sampling
policy.
"""

import functools
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

REPOSITORY = "https://github.com/danijar/dreamerv3"
COMMIT = "e3f02248693a79dc8b0ebd62c93683888ddaccfe"
STEPS, POINTS, STARTS, EPISODES = 20_480, 20, 1_024, 32
# XLA's older runtime takes less CPU time for programs as small as these.
XLA_FLAGS = "--xla_cpu_use_thunk_runtime=false --xla_cpu_multi_thread_eigen=false"
FLAGS = f"""
--batch_size 8 --batch_length 32 --replay.size 20000 --run.envs 4 --run.train_ratio 128
--run.steps {STEPS} --logger.timer False
--jax.platform cpu --jax.compute_dtype float32 --jax.prealloc False
--agent.opt.lr 3e-4 --agent.opt.warmup 200
--agent.dyn.rssm.deter 128 --agent.dyn.rssm.hidden 32
--agent.dyn.rssm.stoch 8 --agent.dyn.rssm.classes 8
--agent.enc.simple.layers 2 --agent.enc.simple.units 32
--agent.dec.simple.layers 2 --agent.dec.simple.units 32
--agent.policy.layers 2 --agent.policy.units 32
--agent.value.layers 2 --agent.value.units 32 --agent.value.bins 63
--agent.rewhead.units 32 --agent.rewhead.bins 63 --agent.conhead.units 32
""".split()


def cartpole(seed: int) -> Any:
    """gymnasium's CartPole-v1 as an environment of that code."""
    import elements
    import embodied
    import gymnasium
    import numpy as np

    class CartPole(embodied.Env):  # type: ignore[misc, name-defined]
        obs_space: ClassVar = dict.fromkeys(
            ("is_first", "is_last", "is_terminal"), elements.Space(bool)
        )
        obs_space |= {"vector": elements.Space(np.float32, (4,))}
        obs_space |= {"reward": elements.Space(np.float32)}
        act_space: ClassVar = {
            "action": elements.Space(np.int32, (), 0, 2),
            "reset": elements.Space(bool),
        }

        def __init__(self) -> None:
            self.env, self.seed, self.done = gymnasium.make("CartPole-v1"), seed, True

        def step(self, action: Any) -> dict[str, Any]:
            if first := bool(action["reset"] or self.done):
                vector, _ = self.env.reset(seed=self.seed)
                reward, terminated, truncated, self.seed = 0.0, False, False, None
            else:
                vector, reward, terminated, truncated, _ = self.env.step(int(action["action"]))
            self.done = terminated or truncated
            flags = {"is_first": first, "is_last": self.done, "is_terminal": terminated}
            return {"vector": np.float32(vector), "reward": np.float32(reward), **flags}

    return CartPole()


def train(folder: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """Trains a seed with the code of a checkout."""
    import jax

    os.environ["XLA_FLAGS"] = XLA_FLAGS  # read at the first start, and overwritten by that code
    jax.config.update("jax_platforms", "cpu")
    jax.devices()
    sys.path.insert(0, folder)
    import elements
    import embodied
    import numpy as np
    from dreamerv3 import main
    from ruamel import yaml

    main.make_env = lambda config, i: main.wrap_env(
        cartpole(100_000 * (config.seed + 1) + i), config
    )
    given = yaml.YAML(typ="safe").load((Path(folder) / "dreamerv3" / "configs.yaml").read_text())
    place = ["--logdir", tempfile.mkdtemp(), "--seed", str(seed), "--task", "cartpole_v1"]
    config = elements.Flags(elements.Config(given["defaults"])).parse([*place, *FLAGS])
    # An option of its code that its settings lack: a profile of gradient steps 100 to 120
    config = elements.Config({**config, "jax": {**config.jax, "profiler": False}})
    elements.timer.global_timer.enabled = False
    agent, replay = main.make_agent(config), main.make_replay(config, "replay")
    size, step = config.batch_size * config.batch_length, elements.Counter()
    ratio = elements.when.Ratio(config.run.train_ratio / size)
    batches = iter(agent.stream(main.make_stream(config, replay, "train")))
    memory, running, ended = agent.init_train(config.batch_size), {}, []

    def learn(transition: Any, worker: int) -> None:
        nonlocal memory
        if len(replay) < size or step < STARTS:
            return
        for _ in range(ratio(step)):
            memory, outputs, _ = agent.train(memory, next(batches))
            if "replay" in outputs:
                replay.update(outputs["replay"])

    def note(running: dict[int, float], ended: list, transition: Any, worker: int) -> None:
        before = 0.0 if transition["is_first"] else running[worker]
        running[worker] = before + float(transition["reward"])
        if transition["is_last"]:
            ended.append((worker, running[worker]))

    def driver(number: int, first: int) -> Any:
        make = [functools.partial(main.make_env, config, first + i) for i in range(number)]
        return embodied.Driver(make, parallel=False)

    def evaluate() -> float:
        ended: list[tuple[int, float]] = []
        games = driver(EPISODES, 50_000)
        games.on_step(functools.partial(note, {}, ended))
        games.reset(agent.init_policy)
        while len({worker for worker, _ in ended}) < EPISODES:
            games(lambda *x: agent.policy(*x, mode="eval"), steps=EPISODES)
        return float(np.mean([dict(reversed(ended))[i] for i in range(EPISODES)]))  # its first one

    acting = driver(config.run.envs, 0)
    for call in (lambda *_: step.increment(), replay.add):
        acting.on_step(call)
    acting.on_step(functools.partial(note, running, ended))
    acting.on_step(learn)
    acting.reset(agent.init_policy)
    curve, training = [evaluate()], float("nan")
    for point in range(1, POINTS + 1):
        while step < point * steps // POINTS:
            acting(lambda *x: agent.policy(*x, mode="train"), steps=config.run.envs)
        training = float(np.mean([total for _, total in ended])) if ended else training
        ended.clear()
        curve.append(evaluate())
        print(f"{int(step)} steps, seed {seed}: {curve[-1]:.1f}", file=sys.stderr, flush=True)
    return {"timestep": steps, "score": curve[-1], "training": training, "curve": curve}
