"""The speed of PPO, PQN, DQN, SAC and TD3, against rejax 0.1.3 and against matrix products.

    python tests/benchmarks/speed.py                     # every case, median of 5 runs
    python tests/benchmarks/speed.py --cases pendulum    # some of them
    python tests/benchmarks/speed.py --memory            # peak memory for 1M and for 10M steps
    python tests/benchmarks/speed.py --resets            # cost of each kind of auto-reset
    python tests/benchmarks/speed.py --trials            # seconds against the number of trials
    python tests/benchmarks/speed.py --updates           # gradient steps with 1024 environments
    python tests/benchmarks/speed.py --trials --keep     # and put it into the documentation

rejax gets its own virtual environment, made once in the user's cache directory, with the same
version of jax. Each side has a process that compiles once and then waits. Timed runs alternate, and
the last side of one round is the first of the next, so that other load hits all sides alike.
Everything runs on the CPU; accelerator.py has the cases of accelerators. Compile time is tracing,
lowering and compiling, with the persistent cache off; imports are not in it. Run time is all of
`train`, with initialisation. Both sides return the whole trained state, so that nothing can be
optimised away.

PPO, equal on both sides: environment and number of environments, steps of a rollout, epochs (4) and
minibatches (4). The network has two towers of 64 and 64 tanh units on flattened observations. Adam
has a constant learning rate. GAE, clipped surrogate, clipped value loss and entropy bonus are
equal. There is no evaluation.

PQN: rejax's own settings for CartPole (5 epochs of 16 minibatches, two layers of 64 units with
layer norm), with Adam on both sides.

DQN: rejax's own settings for CartPole (10 environments, 5 gradient steps of 100 samples for a step
of each; Polyak averaging, double, swish), except for its duelling network. In rejax, value and
advantages are two linear layers on the last hidden one. Without duelling, this kit's network has
the same products but for one column. With `dueling` it splits the last hidden layer as well, as in
the paper (dqn-10x1-dueling). rejax's DQN samples without replacement.

SAC and TD3: rejax's own settings for Pendulum, with two layers of 64 and swish. A gradient step on
256 or 100 transitions follows each step of one environment. SAC also has a case of 1024
environments, with four gradient steps on 1024 for a step of all.

Not equal:
  - rejax clips every element of the gradient, this kit its global norm;
  - rejax resets every environment at every step, this kit holds start states in stock;
  - rejax treats truncation as termination. This kit bootstraps there from the final observation,
    so PPO evaluates the critic on every observation twice. In PQN rejax does so as well, step by
    step;
  - rejax stores log_probs and values while it acts, this kit computes them afterwards, all at once;
  - rejax initialises its layers with lecun_normal, this kit orthogonally (PPO) or as He et al.;
  - this kit averages episodes and losses, rejax has no training metrics at all;
  - rejax needs gymnax 0.0.9, this kit 1.x, so that an environment's code may differ;
  - several seeds are vmapped on one device in rejax, as its documentation shows. This kit spreads
    them over a CPU device per core, as its command line does.

With --updates, each algorithm has 1024 environments and a gradient step for a step of all:
flashsac.py and sac.py with the batch of FlashSAC's paper, td3.py with the batch and the widths of
FastTD3 (arXiv 2505.22642), whose critics have 101 outputs and not one. A case's rounds are a
multiple of 16, to which these files round up.

The floor is the time of the updates' matrix products alone. Each product is timed in a compiled
loop at its own shape, on as many devices at once as the case uses. Each actor layer (PQN: each
layer) counts for every step of a rollout, and each critic layer for all of it at once. Every epoch
adds the forward and backward passes of both towers (PQN: of its one).
"""

import argparse
import atexit
import collections
import contextlib
import dataclasses
import functools
import importlib.metadata
import itertools
import json
import math
import os
import resource
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

# The worker of rejax runs this file too, so packages outside the standard library are imported
# late.

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
EPOCHS = MINIBATCHES = 4
PQN_EPOCHS, PQN_MINIBATCHES = 5, 16
DQN_UPDATES, DQN_BATCH, DQN_START = 5, 100, 5_000
HIDDEN_SIZES = (64, 64)
DUELING = (("dueling", True),)
REPLAY = ("dqn", "flashsac", "sac", "td3")
LARGE = (("batch_size", 1024), ("updates_per_step", 4), ("buffer_size", 131_072))


@dataclasses.dataclass(frozen=True)
class Case:
    """The settings of one timed run."""

    name: str
    env: str
    num_envs: int
    num_steps: int
    updates: int
    num_seeds: int = 1
    num_evals: int = 1  # points of the learning curve, this kit only
    num_eval_episodes: int = 0
    algorithm: str = "ppo"
    settings: tuple[tuple[str, Any], ...] = ()  # further ones, this kit only

    @classmethod
    def read(cls, text: str) -> "Case":
        """From JSON, which knows no tuples."""
        fields = json.loads(text)
        settings = ((k, tuple(v) if isinstance(v, list) else v) for k, v in fields["settings"])
        return cls(**fields | {"settings": tuple(settings)})

    @property
    def timesteps(self) -> int:
        """Environment steps of each seed."""
        return self.updates * self.num_envs * self.num_steps


CASES = (  # a run takes some 2 to 6 seconds on two cores
    Case("cartpole-4x128", "CartPole-v1", 4, 128, 1000),
    Case("cartpole-4x128-16seeds", "CartPole-v1", 4, 128, 128, num_seeds=16),
    Case("cartpole-1024x32", "CartPole-v1", 1024, 32, 32),
    Case("breakout-64x128", "Breakout-MinAtar", 64, 128, 30),
    Case("pendulum", "Pendulum-v1", 4, 128, 400),
    Case("pqn-16x128", "CartPole-v1", 16, 128, 256, algorithm="pqn"),
    Case("pqn-16x128-8seeds", "CartPole-v1", 16, 128, 64, num_seeds=8, algorithm="pqn"),
    Case("dqn-10x1", "CartPole-v1", 10, 1, 6000, algorithm="dqn"),
    Case("dqn-10x1-dueling", "CartPole-v1", 10, 1, 6000, algorithm="dqn", settings=DUELING),
    Case("dqn-10x1-8seeds", "CartPole-v1", 10, 1, 2000, num_seeds=8, algorithm="dqn"),
    Case("sac-1x1", "Pendulum-v1", 1, 1, 4000, algorithm="sac"),
    Case("sac-1x1-8seeds", "Pendulum-v1", 1, 1, 1600, num_seeds=8, algorithm="sac"),
    Case("td3-1x1", "Pendulum-v1", 1, 1, 8000, algorithm="td3"),
    Case("td3-1x1-8seeds", "Pendulum-v1", 1, 1, 3200, num_seeds=8, algorithm="td3"),
    Case("sac-1024x1", "Pendulum-v1", 1024, 1, 160, algorithm="sac", settings=LARGE),
)
RESET_CASES = (
    CASES[0],
    CASES[2],
    Case("swimmer-1024x32", "Swimmer-misc", 1024, 32, 24),
    CASES[3],
)
MEMORY_CASES = tuple(
    Case(f"{millions}M steps", "CartPole-v1", 4, 128, math.ceil(millions * 1e6 / 512), 1, 20, 32)
    for millions in (1, 10)
)
ONE_STEP = (("updates_per_step", 1), ("learning_starts", 1024), ("buffer_size", 262_144))
SAC_SIZES = (("hidden_sizes", (256, 256)), ("critic_hidden_sizes", (256, 256)))
TD3_SIZES = (("hidden_sizes", (512, 256, 128)), ("critic_hidden_sizes", (1024, 512, 256)))
UPDATE_CASES = tuple(
    Case(name, "Pendulum-v1", 1024, 1, rounds, algorithm=name, settings=(*ONE_STEP, *settings))
    for name, rounds, settings in (
        ("flashsac", 16, (("batch_size", 2048),)),
        ("sac", 32, (("batch_size", 2048), *SAC_SIZES)),
        ("td3", 16, (("batch_size", 32_768), *TD3_SIZES)),
    )
)
TRIAL_CASES = tuple(  # of 51,200 steps each
    Case(f"trials-{n}", "CartPole-v1", 4, 128, 100, num_seeds=n)
    for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)
)

# --- the sides: what a worker process compiles -----------------------------------------------


class Program(NamedTuple):
    compiled: Any
    args: tuple
    compile_seconds: float


def compile_program(function: Any, *args: Any) -> Program:
    import jax

    start = time.perf_counter()
    compiled = jax.jit(function).lower(*args).compile()
    return Program(compiled, args, time.perf_counter() - start)


def ours(case: Case) -> Program:
    """This kit's algorithm."""
    return trials_program(*our_settings(case), case.num_seeds)


def our_settings(case: Case) -> tuple[Any, Any]:
    """This kit's module and its Config."""
    module, settings = importlib.import_module(f"algorithms.{case.algorithm}"), {}
    if case.algorithm in OUR_SETTINGS:  # else those of the case and the defaults
        settings = {"hidden_sizes": HIDDEN_SIZES, "conv_layers": "none"}
        settings |= OUR_SETTINGS[case.algorithm]
    settings |= dict(case.settings)
    if case.algorithm not in REPLAY:
        settings["num_steps"] = case.num_steps
    if hasattr(module.Config, "anneal_lr"):
        settings["anneal_lr"] = False
    config = module.Config(
        env=case.env,
        total_timesteps=case.timesteps,
        num_envs=case.num_envs,
        num_evals=case.num_evals,
        num_eval_episodes=case.num_eval_episodes,
        eval_at_start=False,
        **settings,
    )
    return module, config


def trials_program(module: Any, config: Any, num_seeds: int) -> Program:
    """All trials of a run, compiled."""
    function, args = all_trials(module, config, num_seeds)
    return compile_program(function, *args)


def all_trials(module: Any, config: Any, num_seeds: int) -> tuple[Callable, tuple]:
    """A function of all trials of a run, on devices as the launcher puts them there, and its
    arguments."""
    import jax
    import numpy as np

    import envs
    from algorithms.launch.engine import devices, programs

    devices.use_cores(num_seeds, config)
    env, env_params = envs.make(config.env, **dict(config.env_settings))
    layout = devices.arrange(num_seeds)
    configs = jax.tree.map(lambda x: np.full(num_seeds, x, np.float32), config)
    keys = jax.numpy.stack([jax.random.key(seed) for seed in range(num_seeds)])

    def train(env_params, config, rng):
        return module.make_train(config, env, env_params)(rng)

    args = (layout.share(env_params), layout.put(configs), layout.put(keys))
    return programs.over_trials(train, layout), args


OUR_SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": dict(
        update_epochs=EPOCHS,
        num_minibatches=MINIBATCHES,
        clip_vloss=True,
        normalize_obs=False,
        normalize_reward=False,
    ),
    "pqn": dict(update_epochs=PQN_EPOCHS, num_minibatches=PQN_MINIBATCHES, optimizer="adam"),
    "dqn": dict(
        updates_per_step=DQN_UPDATES,
        buffer_size=50_000,
        batch_size=DQN_BATCH,
        learning_starts=DQN_START,
        n_step=1,
        target_every=1,
        tau=0.02,
        exploration_fraction=0.5,
        activation="swish",
    ),
    "sac": dict(
        buffer_size=10_000,
        batch_size=256,
        learning_starts=256,
        learning_rate=1e-2,
        tau=0.02,
        activation="swish",
        critic_hidden_sizes=HIDDEN_SIZES,
        normalize_obs=True,
    ),
    "td3": dict(
        buffer_size=10_000,
        batch_size=100,
        learning_starts=1_000,
        tau=0.05,
        exploration_noise=0.15,  # of half the box
        activation="swish",
        critic_hidden_sizes=HIDDEN_SIZES,
        normalize_obs=True,
    ),
}


def rejax(case: Case) -> Program:
    import jax

    train = rejax_train(case)
    keys = jax.random.split(jax.random.PRNGKey(0), case.num_seeds)
    if case.num_seeds == 1:
        return compile_program(train, keys[0])
    return compile_program(jax.vmap(train), keys)


def rejax_train(case: Case) -> Callable:
    """rejax's train(key) -> state."""
    import jax
    import rejax

    same = {THEIRS[name]: value for name, value in case.settings if name in THEIRS}
    if case.algorithm not in REPLAY:
        same["num_steps"] = case.num_steps
    settings = REJAX_SETTINGS[case.algorithm] | same
    algorithm = rejax.get_algo(case.algorithm).create(
        env=case.env,
        total_timesteps=case.timesteps,
        num_envs=case.num_envs,
        eval_freq=case.timesteps,
        skip_initial_evaluation=True,
        **settings,
    )
    algorithm = algorithm.replace(eval_callback=lambda algorithm, state, rng: jax.numpy.zeros(()))
    return lambda key: algorithm.train(key)[0]


REJAX_SETTINGS = {
    "ppo": dict(
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": HIDDEN_SIZES},
        num_epochs=EPOCHS,
        num_minibatches=MINIBATCHES,
        learning_rate=2.5e-4,
        max_grad_norm=0.5,
    ),
    "pqn": dict(  # its networks have HIDDEN_SIZES
        num_epochs=PQN_EPOCHS,
        num_minibatches=PQN_MINIBATCHES,
        learning_rate=3e-4,
        max_grad_norm=10,
        eps_start=1,
        eps_end=0.05,
        exploration_fraction=0.5,
        gamma=0.99,
        td_lambda=0.9,
    ),
    "dqn": dict(
        agent="DuelingQNetwork",  # has HIDDEN_SIZES, and no others
        agent_kwargs={"activation": "swish"},
        buffer_size=50_000,
        fill_buffer=DQN_START,
        batch_size=DQN_BATCH,
        max_grad_norm=10.0,
        learning_rate=1e-3,
        num_epochs=DQN_UPDATES,
        polyak=0.98,
        exploration_fraction=0.5,
    ),
    "sac": dict(  # its networks have HIDDEN_SIZES
        agent_kwargs={"activation": "swish"},
        buffer_size=10_000,
        fill_buffer=256,
        batch_size=256,
        learning_rate=1e-2,
        polyak=0.98,
        normalize_observations=True,
    ),
    "td3": dict(  # its networks have HIDDEN_SIZES
        actor_kwargs={"activation": "swish"},
        critic_kwargs={"activation": "swish"},
        buffer_size=10_000,
        fill_buffer=1_000,
        batch_size=100,
        learning_rate=1e-3,
        max_grad_norm=100.0,
        polyak=0.95,
        normalize_observations=True,
    ),
}


def purejaxrl(case: Case) -> Program:
    """PureJaxRL's PPO, whose checkout the environment variable PUREJAXRL names."""
    import jax

    from tests.benchmarks import peers

    script = peers.script_of("purejaxrl", "ppo", os.environ["PUREJAXRL"])
    sizes = {"NUM_ENVS": case.num_envs, "NUM_STEPS": case.num_steps, "ANNEAL_LR": False}
    sizes |= {"ENV_NAME": case.env, "TOTAL_TIMESTEPS": case.timesteps}
    train = script.make_train({**peers.PUREJAXRL_PPO, **sizes})
    keys = jax.random.split(jax.random.PRNGKey(0), case.num_seeds)
    return compile_program(jax.vmap(lambda key: train(key)["runner_state"]), keys)


THEIRS = {"batch_size": "batch_size", "buffer_size": "buffer_size"}  # names of settings
THEIRS |= {"updates_per_step": "num_epochs"}


def start_per_step(case: Case) -> Program:
    """A start state in stock for every step, so that none serves twice."""
    import envs

    envs.batch = functools.partial(envs.batch, window=1)
    return ours(case)


def reset_every_step(case: Case) -> Program:
    """Every environment is reset at every step, as in gymnax."""
    import jax

    import envs
    from envs.batch import Batch

    class EveryStep(Batch):
        def refill(self, key, state, params):
            return state

        def step(self, key, state, action, params):
            key, reset_key = jax.random.split(key)
            return super().step(key, super().refill(reset_key, state, params), action, params)

    envs.batch = lambda env, num_envs, num_steps: EveryStep(env, num_envs, num_steps, num_steps)
    return ours(case)


RESET_SIDES = {
    "this kit": ours,
    "start per step": start_per_step,
    "reset every step": reset_every_step,
}
SIDES = {"rejax": rejax, "purejaxrl": purejaxrl, **RESET_SIDES}


# --- the floor -------------------------------------------------------------------------------


def products(case: Case, num_inputs: int, num_outputs: int) -> collections.Counter:
    """The matrix products (m, k) @ (k, n) of one update of one trial: {(m, k, n): count}."""
    tower = lambda outputs: tuple(itertools.pairwise((num_inputs, *HIDDEN_SIZES, outputs)))
    actor, critic, batch_size = tower(num_outputs), tower(1), case.num_envs * case.num_steps
    learned, epochs, minibatches = (actor, critic), EPOCHS, MINIBATCHES
    if case.algorithm == "pqn":
        critic, learned = actor, (actor,)
        epochs, minibatches = PQN_EPOCHS, PQN_MINIBATCHES
    rows = batch_size // minibatches
    counts = collections.Counter()

    def add(number, shapes):
        for shape in shapes:
            counts[shape] += number

    add(case.num_steps, [(case.num_envs, k, n) for k, n in actor])
    add(1, [(batch_size, k, n) for k, n in critic])
    for layers in learned:
        forward = [(rows, k, n) for k, n in layers]
        of_kernels = [(k, rows, n) for k, n in layers]
        of_inputs = [(rows, n, k) for k, n in layers[1:]]
        add(epochs * minibatches, forward + of_kernels + of_inputs)
    return counts


def learning_share(case: Case) -> float:
    """The share of a run's rounds that learn, with a replay buffer."""
    waiting = math.ceil(OUR_SETTINGS[case.algorithm]["learning_starts"] / case.num_envs) - 1
    return 1.0 - waiting / case.updates


def dqn_products(case: Case, num_inputs: int, num_outputs: int) -> collections.Counter:
    """The products of DQN, in the mean of a run's rounds.

    Double Q-learning needs two forward passes in addition to the one with a gradient.
    """
    updates = DQN_UPDATES * learning_share(case)
    layers = list(itertools.pairwise((num_inputs, *HIDDEN_SIZES, num_outputs)))
    if dict(case.settings).get("dueling"):
        layers += itertools.pairwise((*HIDDEN_SIZES, 1))
    counts = collections.Counter((case.num_envs, k, n) for k, n in layers)
    for k, n in layers:
        counts[DQN_BATCH, k, n] += 3 * updates
        counts[k, DQN_BATCH, n] += updates
        if k != num_inputs:
            counts[DQN_BATCH, n, k] += updates
    return counts


def actor_critic_products(case: Case, num_inputs: int, num_outputs: int) -> collections.Counter:
    """The products of SAC and TD3 with two critics, in the mean of a run's rounds."""
    settings = OUR_SETTINGS[case.algorithm] | dict(case.settings)
    batch, counts = settings["batch_size"], collections.Counter()
    actor = list(itertools.pairwise((num_inputs, *HIDDEN_SIZES, num_outputs)))
    critic = list(itertools.pairwise((num_inputs + num_outputs, *HIDDEN_SIZES, 1)))

    def add(layers, rows, forward=0.0, of_kernels=0.0, of_inputs=0.0, to_actions=False):
        for i, (k, n) in enumerate(layers):
            counts[rows, k, n] += forward
            counts[k, rows, n] += of_kernels
            counts[rows, n, k] += of_inputs if i or to_actions else 0.0

    updates = settings.get("updates_per_step", 1) * learning_share(case)
    if case.algorithm == "sac":
        actor.append(actor[-1])  # mean and deviation
        add(actor, batch, 2 * updates, updates, updates)
        add(critic, batch, 6 * updates, 2 * updates, 2 * updates)  # targets, values, of the actor
        add(critic, batch, of_inputs=2 * updates, to_actions=True)
    else:  # the actor learns at every other step
        add(actor, batch, 1.5 * updates, 0.5 * updates, 0.5 * updates)
        add(critic, batch, 4.5 * updates, 2 * updates, 2 * updates)
        add(critic, batch, of_inputs=0.5 * updates, to_actions=True)
    add(actor, case.num_envs, 1)
    return counts


COUNTS = {"dqn": dqn_products, "sac": actor_critic_products, "td3": actor_critic_products}


def floor(case: Case) -> dict[str, float]:
    """FLOPs of the products for an environment step, and seconds of the products of a run."""
    import envs
    from algorithms import parts
    from algorithms.launch.engine import devices

    env, env_params = envs.make(case.env)
    num_outputs = parts.ActionSpace(env.action_space(env_params)).size
    num_inputs = math.prod(env.observation_space(env_params).shape)
    counts = COUNTS.get(case.algorithm, products)(case, num_inputs, num_outputs)
    flops = sum(2 * m * k * n * count for (m, k, n), count in counts.items())
    layout = devices.arrange(case.num_seeds)
    seconds = sum(product_seconds(*shape, layout) * count for shape, count in counts.items())
    return {
        "flops_per_step": flops / (case.num_envs * case.num_steps),
        "seconds": seconds * case.updates * layout.per_device,
    }


def product_seconds(m: int, k: int, n: int, layout: Any) -> float:
    """Seconds of (m, k) @ (k, n), with one product on every device of the layout at the same
    time."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from algorithms.launch.engine import devices, programs

    iterations = min(20_000, max(10, 10**9 // (2 * m * k * n)))

    def repeat(_, x, kernel):
        def body(_, carry):
            kernel = carry[0]
            product = x @ kernel
            # A new kernel each time; otherwise the compiler would move the product out of the loop.
            return kernel.at[0, 0].set(1e-3 * product[0, 0]), product

        return jax.lax.fori_loop(0, iterations, body, (kernel, jnp.zeros((m, n))))[1]

    each = devices.arrange(len(layout.devices))
    operands = [np.full((each.num_trials, *shape), 0.1, np.float32) for shape in ((m, k), (k, n))]
    args = (None, *map(each.put, operands))
    program = compile_program(programs.over_trials(repeat, each), *args)
    return min(run_seconds(program) for _ in range(5)) / iterations


# --- workers ---------------------------------------------------------------------------------


def run_seconds(program: Program) -> float:
    import jax

    start = time.perf_counter()
    jax.block_until_ready(program.compiled(*program.args))
    return time.perf_counter() - start


def memory(program: Program) -> tuple[float, float]:
    """Megabytes: the peak of this process, and the buffers of the program."""
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    sizes = program.compiled.memory_analysis()
    buffers = sizes.temp_size_in_bytes + sizes.argument_size_in_bytes + sizes.output_size_in_bytes
    return peak / 1e6, buffers / 1e6


def serve(side: Callable[[Any], Program], case: Any) -> None:
    """The loop of a worker: it compiles, then answers each command on stdin with a line of JSON."""
    answers, sys.stdout = sys.stdout, sys.stderr
    program = side(case)
    commands = {
        "compile": lambda: program.compile_seconds,
        "run": lambda: run_seconds(program),
        "memory": lambda: memory(program),
        "floor": lambda: floor(case),
    }
    for command in sys.stdin:
        print(json.dumps(commands[command.strip()]()), file=answers, flush=True)


class Worker:
    """A process of one side for one case, with the seconds of its timed runs."""

    script = __file__  # what it runs

    environment: ClassVar = {"JAX_PLATFORMS": "cpu"}

    def __init__(self, side: str, case: Any, time_limit: float, python: str = sys.executable):
        self.side, self.time_limit = side, time_limit
        self.seconds, self.error = [], None
        self.process = subprocess.Popen(
            [python, self.script, "--worker", side, json.dumps(dataclasses.asdict(case))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"} | self.environment,
        )
        atexit.register(self.close)
        self.compile_seconds = self.ask("compile")
        self.ask("run")  # the first run meets fresh memory

    def ask(self, command: str) -> Any:
        """The answer to a command, or None without one; `error` then says why."""
        if self.error:
            return None
        with contextlib.suppress(BrokenPipeError):  # a dead worker, whose answer is empty
            print(command, file=self.process.stdin, flush=True)
        if not select.select([self.process.stdout], [], [], self.time_limit)[0]:
            self.error = "hangs"
        elif line := self.process.stdout.readline():
            return json.loads(line)
        else:
            self.error = "dies"
        print(f"{self.side} {self.error} at '{command}'", file=sys.stderr)
        self.close()
        return None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def alternate(workers: Sequence[Worker], runs: int) -> None:
    """Runs all workers in turn, and times them."""
    for i in range(runs):
        for worker in workers if i % 2 == 0 else reversed(workers):
            worker.seconds.append(worker.ask("run"))


# --- tables ----------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown with columns of even width."""
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    lines = [header, ["-" * width for width in widths], *rows]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths)] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in padded)


def rate(case: Case, worker: Worker) -> str:
    """Environment steps a second of all seeds together."""
    steps = case.timesteps * case.num_seeds
    return worker.error or f"{steps / statistics.median(worker.seconds) / 1e3:.1f}k"


def times_faster(fast: Worker, slow: Worker) -> str:
    """Median, least and largest ratio of the times of neighbouring runs."""
    if fast.error or slow.error:
        return "-"
    ratios = [b / a for a, b in zip(fast.seconds, slow.seconds)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


COLUMNS = ("case", "this kit, steps/s", "rejax, steps/s", "times faster", "compile", "rejax's")
COLUMNS += ("FLOPs a step", "products run at", "time over floor")


def against_rejax(case: Case, args: argparse.Namespace) -> list[str]:
    """A row: both sides, and this kit's time over the floor."""
    kit = Worker("this kit", case, args.time_limit)
    peer = Worker("rejax", case, args.time_limit, args.peer_python)
    alternate([kit, peer], args.runs)
    peer.close()
    compiling = [f"{w.compile_seconds:.1f} s" if w.compile_seconds else "-" for w in (kit, peer)]
    row = [case.name, rate(case, kit), rate(case, peer), times_faster(kit, peer), *compiling]
    lowest = kit.ask("floor")
    kit.close()
    if not lowest:
        return [*row, "-", "-", "-"]
    flops = lowest["flops_per_step"] * case.timesteps * case.num_seeds
    return [
        *row,
        f"{lowest['flops_per_step'] / 1e3:.0f}k",
        f"{flops / lowest['seconds'] / 1e9:.0f} GFLOP/s",
        f"{statistics.median(kit.seconds) / lowest['seconds']:.2f}",
    ]


RESET_COLUMNS = ("case", "stock, steps/s", "a start for every step, steps/s", "stock is faster by")
RESET_COLUMNS += ("reset at every step, steps/s", "stock is faster by")


def of_resets(case: Case, args: argparse.Namespace) -> list[str]:
    """A row: each kind of auto-reset, and how much faster the kit's own is."""
    stock, *others = workers = [Worker(side, case, args.time_limit) for side in RESET_SIDES]
    alternate(workers, args.runs)
    for worker in workers:
        worker.close()
    row = [case.name, rate(case, stock)]
    return row + [cell for w in others for cell in (rate(case, w), times_faster(stock, w))]


MEMORY_COLUMNS = ("run", "most memory of the process", "buffers of the program")


def of_memory(case: Case, args: argparse.Namespace) -> list[str]:
    """A row: memory of the process and of the program."""
    worker = Worker("this kit", case, args.time_limit)
    sizes = worker.ask("memory")
    worker.close()
    return [case.name, *(f"{size:.3f} MB" for size in sizes or ())]


TRIAL_COLUMNS = ("trials", "seconds", "of one trial, in turn", "steps/s of all", "throughput")
TRIAL_COLUMNS += ("compile",)


def of_trials(case: Case, args: argparse.Namespace) -> list[str]:
    """A row: trials side by side, and their throughput compared with one alone."""
    one = dataclasses.replace(case, num_seeds=1)
    workers = many, alone = [Worker("this kit", c, args.time_limit) for c in (case, one)]
    alternate(workers, args.runs)
    for worker in workers:
        worker.close()
    if many.error or alone.error:
        return [str(case.num_seeds), many.error or "-", alone.error or "-", "-", "-", "-"]
    ratios = [case.num_seeds * a / m for m, a in zip(many.seconds, alone.seconds)]
    return [
        str(case.num_seeds),
        *(f"{statistics.median(worker.seconds):.2f}" for worker in workers),
        rate(case, many),
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        f"{many.compile_seconds:.1f} s",
    ]


UPDATE_COLUMNS = ("file", "batch", "widths of the actor", "of the critics")
UPDATE_COLUMNS += ("gradient steps/s", "samples/s", "time of one, of flashsac's")
WIDTHS = ("hidden_sizes", "critic_hidden_sizes")  # or hidden_size, of flashsac


def of_updates(case: Case, args: argparse.Namespace) -> list[str]:
    """A row: gradient steps a second, and their time over that of flashsac.py's."""
    cases = [case, UPDATE_CASES[0]]
    workers = [Worker("this kit", one, args.time_limit) for one in cases]
    alternate(workers, args.runs)
    for worker in workers:
        worker.close()
    config = vars(our_settings(case)[1])
    widths = (config.get(name) or config[name[:-1]] for name in WIDTHS)
    row = [case.name, f"{config['batch_size']:,}", *map(str, widths)]
    if error := workers[0].error or workers[1].error:
        return [*row, error, "-", "-"]
    own, usual = ([x / c.updates for x in w.seconds] for w, c in zip(workers, cases))
    ratios = [a / b for a, b in zip(own, usual)]
    a_second = 1.0 / statistics.median(own)
    return [
        *row,
        f"{a_second:.2f}",
        f"{a_second * config['batch_size'] / 1e3:.1f}k",
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
    ]


KINDS = {  # benchmarks: cases, columns, and the function for a row
    "speed": (CASES, COLUMNS, against_rejax),
    "resets": (RESET_CASES, RESET_COLUMNS, of_resets),
    "memory": (MEMORY_CASES, MEMORY_COLUMNS, of_memory),
    "trials": (TRIAL_CASES, TRIAL_COLUMNS, of_trials),
    "updates": (UPDATE_CASES, UPDATE_COLUMNS, of_updates),
}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="by default all")
    parser.add_argument("--runs", type=int, default=5, help="timed runs of each side")
    parser.add_argument("--time-limit", type=float, default=300, help="seconds for any one answer")
    parser.add_argument("--peer-python", metavar="PATH", help="a Python that has rejax")
    kinds = parser.add_mutually_exclusive_group()
    for kind, text in (
        ("memory", "peak memory instead"),
        ("resets", "kinds of auto-reset instead"),
        ("trials", "PPO's cost against the number of trials instead"),
        ("updates", "gradient steps of off-policy algorithms with 1024 environments instead"),
    ):
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=text)
    earlier = {"dest": "kind", "action": "store_const", "const": "trials"}
    kinds.add_argument("--agents", help=argparse.SUPPRESS, **earlier)  # its earlier name
    parser.add_argument("--keep", action="store_true", help="in docs/results and the pages' tables")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    parser.set_defaults(kind="speed")
    args = parser.parse_args()
    names = [case.name for case in KINDS[args.kind][0]]
    for name in set(args.cases or ()) - set(names):
        parser.error(f"--cases {name}: choose from {', '.join(names)}")
    args.cases = args.cases or names
    return args


def main() -> None:
    args = parse()
    sys.path.insert(0, ROOT)
    if args.worker:
        side, description = args.worker
        return serve(SIDES[side], Case.read(description))
    cases, columns, make_row = KINDS[args.kind]
    if args.kind == "speed":
        from tests.benchmarks import peer_python

        args.peer_python = args.peer_python or peer_python.rejax()
    rows = []
    for case in cases:
        if case.name in args.cases:
            rows.append(make_row(case, args))
            print(", ".join(rows[-1]), file=sys.stderr)
    print(table(columns, rows))
    print(f"\njax {importlib.metadata.version('jax')}, {os.cpu_count()} cores")
    if args.keep:
        from tests.benchmarks import learning, report

        report.keep_speeds(args.kind, columns, rows)
        learning.write()


if __name__ == "__main__":
    main()
