"""Operations that a device launches for an update, counted in programs compiled for absent devices.

    python tests/benchmarks/launches.py                          # all algorithms, an H100, 64 seeds
    python tests/benchmarks/launches.py ppo dqn --seeds 1 64     # some of them
    python tests/benchmarks/launches.py ppo --device v5e         # a TPU
    python tests/benchmarks/launches.py ppo --loops              # loop by loop, with the source
    python tests/benchmarks/launches.py ppo --evaluation         # with its loop
    python tests/benchmarks/launches.py ppo sac --peers          # rejax, PureJaxRL, JaxMARL as well
    python tests/benchmarks/launches.py --peers --keep           # and into the documentation

Small networks on a GPU are bound by launches, and these can be counted without a GPU: XLA compiles
for an absent device. Programs are `make_train(config)` with vmapped seeds, without evaluation. The
plugins of CUDA and TPU are installed on first use, in a folder of the user's cache directory.
hlo.py says what counts as a launch. Command buffers (CUDA graphs) may start several at once.

Counts are of one update, the body of the outermost loop of training; a step of evaluation stands
beside it. Replay algorithms make several rounds in an update; 'a step' divides by the steps of an
environment in an update. Trips with a '?' are not known to the compiler: epochs that target_kl may
end, and gradient steps of a round. They count as they usually run. The host waits for a GPU at each
of them.

Settings are those of speed.py and teams.py for the algorithms that are there, else the defaults.
PPO with a GRU, or another memory by name, has the sizes of PureJaxRL's. IPPO has the sizes of
JaxMARL's script on Overcooked. In peers, calls back to Python that log are left out.

Without a device XLA cannot try tilings of matrix products, and finds none for some programs. Their
products are then compiled as calls of cuBLAS, and the row says so.

Memory is that of the whole program for one seed of them: arguments, temporaries and output. It is
not shown for PureJaxRL and JaxMARL, which return all metrics of a run.
"""

import argparse
import dataclasses
import functools
import importlib
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

# Workers run this file with another kit's Python, without the packages of this one: imports come
# late.
from tests.benchmarks import absent, hlo, jaxmarl_scripts, speed, teams  # noqa: E402

EVALUATION = "evaluate"  # the function with evaluation's loop
UPDATES = 101  # of a peer's run: a loop of so many trips is the one over updates
OF_SPEED = {  # rows with the settings of a case of speed.py
    "ppo": "cartpole-4x128",
    "pqn": "pqn-16x128",
    "dqn": "dqn-10x1",
    "sac": "sac-1x1",
    "td3": "td3-1x1",
}
OF_TEAMS = {"mappo-spread": "mappo-spread", "vdn-spread": "vdn-32x26", "qmix-spread": "qmix-32x26"}
GRU = {"cell": "gru", "memory_size": 128, "hidden_sizes": (128,)}
KITCHEN = {
    "env": "jaxmarl/overcooked",
    "env_settings": (("layout", "cramped_room"),),
    "share_params": True,
    "conv_layers": "none",
}
MORE = {"ppo-defaults": ("ppo", {}), "ppo_rnn-gru": ("ppo_rnn", GRU)}
MORE |= {
    f"ppo_rnn-{cell}": ("ppo_rnn", {**GRU, "cell": cell})
    for cell in ("lstm", "mingru", "minlstm", "lru", "s5", "gtrxl")
}
MORE |= {"ippo-overcooked": ("ippo", KITCHEN)}
IPPO = "ippo/overcooked-cramped_room"
PEERS = {  # the kits with the same case
    **dict.fromkeys(OF_SPEED, ("rejax",)),
    **dict.fromkeys((*OF_TEAMS, "ippo-overcooked"), ("jaxmarl",)),
    "ppo": ("rejax", "purejaxrl"),
    "ppo_rnn-gru": ("purejaxrl",),
}


class Subject(NamedTuple):
    """What is compiled, and how its loops are to be read."""

    function: Callable  # of the shared and one trial's arguments
    shared: tuple
    own: tuple  # of one trial: shapes and dtypes
    updates: str | int  # name, or trips, of the loop over updates
    trips: dict[str, int]  # of loops unknown to the compiler, by their function
    num_steps: int  # of each environment in an update


# --- the sides: what a worker compiles --------------------------------------------------------


def settings(name: str) -> tuple[Any, Any]:
    """This kit's module and Config of a row."""
    if name in OF_SPEED:
        case = next(case for case in speed.CASES if case.name == OF_SPEED[name])
        return speed.our_settings(case)
    if name in OF_TEAMS:
        return teams.settings(next(case for case in teams.CASES if case.name == OF_TEAMS[name]))
    algorithm, own = MORE.get(name, (name, {}))
    module = importlib.import_module(f"algorithms.{algorithm}")
    quiet = {"num_evals": 1, "num_eval_episodes": 0, "eval_at_start": False}
    return module, module.Config(**(quiet | own))


def ours(name: str, evaluation: bool) -> Subject:
    module, config = settings(name)
    if evaluation:
        config = config.replace(num_eval_episodes=module.Config().num_eval_episodes)
    return of_config(module, config)


def of_config(module: Any, config: Any) -> Subject:
    """This kit's training with these settings."""
    import jax
    import jax.numpy as jnp

    import envs
    from algorithms import parts

    env, env_params = envs.make(config.env, **dict(config.env_settings))
    plan = module.make_train(config, env, env_params).plan
    strong = lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))

    @parts.with_usual_jax
    def train(env_params, config, rng):
        return module.make_train(config, env, env_params)(rng)

    floats = jax.tree.map(lambda _: jax.ShapeDtypeStruct((), jnp.float32), config)
    return Subject(
        function=train,
        shared=(jax.tree.map(strong, env_params),),
        own=(floats, jax.eval_shape(lambda: jax.random.key(0))),
        updates="updates",
        trips={
            "learn": getattr(config, "update_epochs", 1),
            "Rounds.repeat": getattr(config, "updates_per_step", 1),
        },
        num_steps=plan.steps // plan.updates // config.num_envs,
    )


def of_peer(train: Callable, num_steps: int) -> Subject:
    """Of another kit's train(key)."""
    import jax

    key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    return Subject(train, (), (key,), UPDATES, {}, num_steps)


def rejax(name: str, evaluation: bool) -> Subject:
    case = next(case for case in speed.CASES if case.name == OF_SPEED[name])
    steps = 2 if name == "td3" else 1  # of an iteration: the actor learns in every second one
    case = dataclasses.replace(case, updates=UPDATES * steps)
    return of_peer(speed.rejax_train(case), case.num_steps * steps)


def purejaxrl(name: str, evaluation: bool) -> Subject:
    import flax.linen as nn

    from tests.benchmarks import peers

    if "rnn" in name:
        nn.GRUCell = OldGRU
    script = "ppo_rnn" if "rnn" in name else "ppo"
    kit = peers.script_of("purejaxrl", script, os.environ["PUREJAXRL"])
    sizes = {"ENV_NAME": "CartPole-v1", "ANNEAL_LR": False, "TOTAL_TIMESTEPS": UPDATES * 512}
    return of_peer(kit.make_train({**peers.PUREJAXRL_PPO, **sizes}), 128)


class OldGRU:
    """flax's GRUCell as PureJaxRL knows it: without its size, which is 128 there."""

    def __new__(cls):
        import flax.linen as nn

        return nn.recurrent.GRUCell(features=128)

    @staticmethod
    def initialize_carry(rng: Any, batch: tuple[int, ...], size: int) -> Any:
        import jax.numpy as jnp

        return jnp.zeros((*batch, size))


def jaxmarl(name: str, evaluation: bool) -> Subject:
    import jax

    silent = lambda *args, **settings: None
    jax.debug.callback = jax.experimental.io_callback = silent
    if name in OF_TEAMS:
        case = next(case for case in teams.CASES if case.name == OF_TEAMS[name])
        script, num_envs, num_steps, more = case.script, case.num_envs, case.num_steps, case.more
    else:
        script, num_envs, num_steps, more = IPPO, 16, 128, ()
    sizes = {"NUM_ENVS": num_envs, "NUM_STEPS": num_steps, "LEARNING_STARTS": 0}
    sizes |= {"TOTAL_TIMESTEPS": UPDATES * num_envs * num_steps, **dict(more)}
    run = jaxmarl_scripts.make(os.environ["BASELINES"], script, **sizes)
    return of_peer(run.train, num_steps)


SIDES = {"this kit": ours, "rejax": rejax, "purejaxrl": purejaxrl, "jaxmarl": jaxmarl}


@dataclasses.dataclass(frozen=True)
class Job:
    """A program to compile."""

    side: str
    name: str  # of the row
    device: str
    seeds: int
    evaluation: bool = False

    @property
    def title(self) -> str:
        kit = "" if self.side == "this kit" else f"{self.side} "
        return f"{kit}{self.name}{', with evaluation' * self.evaluation}"


def side_by_side(subject: Subject, seeds: int) -> tuple[Callable, tuple]:
    """The function of so many trials, and its arguments."""
    import jax

    if seeds == 1:
        return subject.function, (*subject.shared, *subject.own)
    many = lambda x: jax.ShapeDtypeStruct((seeds, *x.shape), x.dtype)
    axes = (None,) * len(subject.shared) + (0,) * len(subject.own)
    return jax.vmap(subject.function, axes), (*subject.shared, *jax.tree.map(many, subject.own))


def work(job: Job, folder: Path) -> None:
    """Compiles in this process, and leaves text and figures in the folder."""
    if job.side == "this kit":
        from envs import loops

        loops.platform = lambda: absent.PLATFORMS[job.device]
    subject = SIDES[job.side](job.name, job.evaluation)
    function, args = side_by_side(subject, job.seeds)
    done = absent.compile_for(job.device, function, *args)
    (folder / "text").write_text(done.text)
    figures = {"seconds": done.seconds, "memory": done.memory}
    figures |= {name: getattr(subject, name) for name in ("updates", "trips", "num_steps")}
    (folder / "figures").write_text(json.dumps(figures))


# --- in this process --------------------------------------------------------------------------


@dataclasses.dataclass
class Found:
    """A compiled program, read."""

    job: Job
    program: hlo.Program
    figures: dict[str, Any]

    @property
    def update(self) -> hlo.Node:
        """The loop over updates."""
        key = self.figures["updates"]
        loops = (node for node in self.program.root.walk() if key in (node.name, node.trips))
        if found := next(loops, None):
            return found
        raise RuntimeError(f"{self.job.title}: no loop over updates ({key})")

    def usual(self, node: hlo.Node) -> int:
        return self.figures["trips"].get(node.name, 1)

    @property
    def launches(self) -> int:
        """Of an update."""
        return self.update.once(self.usual)

    @property
    def per_step(self) -> float:
        """Launches for a step of all environments."""
        return self.launches / self.figures["num_steps"]


def compiled(job: Job, keep: Path | None = None) -> Found:
    """The program of a job, compiled in a process of its own.

    Args:
      keep: a folder that the text is put into.

    Raises:
      RuntimeError: it does not compile.
    """
    from tests.benchmarks import peer_python

    env = absent.environment(peer_python.plugins()) | checkouts(job.side)
    with tempfile.TemporaryDirectory() as folder:
        run = [python_of(job.side), __file__, "--worker", json.dumps(dataclasses.asdict(job))]
        done, cublas = absent.run([*run, folder], env)
        if done.returncode:
            raise RuntimeError(f"{job.title}: {complaint(done.stderr)}")
        text = (Path(folder) / "text").read_text()
        figures = json.loads((Path(folder) / "figures").read_text()) | {"cublas": cublas}
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"{job.title}-{job.device}-{job.seeds}.txt".replace(" ", "-")).write_text(text)
    return Found(job, hlo.read(text), figures)


def complaint(stderr: str) -> str:
    """The last error of a process, without the stack of calls before it and after it."""
    lines = stderr.splitlines()
    errors = [i for i, line in enumerate(lines) if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return "\n".join(lines[errors[-1] :][:5]) if errors else stderr[-1000:]


@functools.cache
def python_of(side: str) -> str:
    from tests.benchmarks import peer_python

    pythons = {"this kit": lambda: sys.executable, "jaxmarl": peer_python.jaxmarl}
    return pythons.get(side, peer_python.rejax)()


def checkouts(side: str) -> dict[str, str]:
    """Where the files of kits without a package are."""
    from tests.benchmarks import peer_python, peers

    if side == "purejaxrl":
        return {"PUREJAXRL": str(peer_python.checkout(peers.PUREJAXRL, peers.COMMIT))}
    if side == "jaxmarl":
        place = jaxmarl_scripts.REPOSITORY, jaxmarl_scripts.COMMIT, "baselines"
        return {"BASELINES": str(peer_python.checkout(*place))}
    return {}


# --- tables -----------------------------------------------------------------------------------

COLUMNS = ("program", "launches", "a step", "against peers", "loop by loop", "sorts")
COLUMNS += ("waits for the host", "calls", "memory of a trial", "compile")


def row(found: Found, peers: list[Found]) -> list[str]:
    """The figures of a program, as text."""
    job, update, program = found.job, found.update, found.program
    inner = [node for node in update.walk() if node is not update]
    playing = [node for node in program.root.walk() if node.name == EVALUATION]
    ratios = [f"{found.per_step / peer.per_step:.2f} of {peer.job.side}" for peer in peers]
    waits = [
        node.name for node in inner + playing if node.trips is None or node.kind == "conditional"
    ]
    in_loops = sum(node.sorts for node in inner)
    sorts = f"{update.sorts + in_loops}{f', {in_loops} in loops' * bool(in_loops)}"
    wrong = [*program.host, *["float64"] * program.float64]
    calls = [f"{name} x {count}" for name, count in program.calls.items()]
    cublas = ", by cuBLAS" * found.figures["cublas"]
    return [
        f"{job.title}, {job.device}, {job.seeds} seed{'s' * (job.seeds > 1)}{cublas}",
        str(found.launches),
        f"{found.per_step:.1f}",
        ", ".join(ratios) or "-",
        "; ".join([hlo.formula(update, found.usual), *(hlo.term(n, found.usual) for n in playing)]),
        sorts,
        ", ".join(dict.fromkeys(waits)) or "none",
        ", ".join(wrong + calls) or "none",
        "-" if job.side in ("purejaxrl", "jaxmarl") else memory(found),
        f"{found.figures['seconds']:.0f} s",
    ]


def memory(found: Found) -> str:
    """Of one seed: all, and its parts."""
    sizes = [size / found.job.seeds / 1e6 for size in found.figures["memory"].values()]
    return f"{sum(sizes):.2f} MB ({' + '.join(f'{size:.2f}' for size in sizes)})"


def algorithms() -> list[str]:
    from algorithms.launch.tools import catalogue

    return catalogue.algorithms()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    text = f"an algorithm, by default all; or {', '.join((*OF_TEAMS, *MORE))}"
    parser.add_argument("names", nargs="*", metavar="NAME", help=text)
    devices = {"choices": tuple(absent.DEVICES), "default": ["h100"]}
    parser.add_argument("--device", nargs="+", **devices, help="compiled for")
    parser.add_argument("--seeds", nargs="+", type=int, default=[64], help="trained side by side")
    parser.add_argument("--loops", action="store_true", help="print the tree of loops")
    parser.add_argument("--evaluation", action="store_true", help="compile evaluation, too")
    parser.add_argument("--peers", action="store_true", help="other kits' programs, too")
    parser.add_argument("--text", type=Path, metavar="DIR", help="keep the compiled text there")
    parser.add_argument("--keep", action="store_true", help="in docs/results and the page's table")
    args = parser.parse_args()
    known = [*algorithms(), *OF_TEAMS, *MORE]
    for name in args.names:
        if name not in known:
            parser.error(f"{name}: choose from {', '.join(known)}")
    if min(args.seeds) < 1:
        parser.error(f"--seeds {min(args.seeds)}: at least 1")
    compared = [name for name in known if name in PEERS] if args.peers else []
    args.names = args.names or list(dict.fromkeys([*algorithms(), *compared]))
    return args


def measure(name: str, device: str, seeds: int, args: argparse.Namespace) -> list[list[str]]:
    """The rows of a name: this kit's, and those of its peers. Without those that do not compile."""
    found = {}
    for side in ("this kit", *(PEERS.get(name, ()) if args.peers else ())):
        job = Job(side, name, device, seeds, args.evaluation and side == "this kit")
        try:
            found[side] = compiled(job, args.text)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            continue
        if args.loops:
            print(job.title, *hlo.tree(found[side].program.root, found[side].usual), sep="\n")
    peers = [one for side, one in found.items() if side != "this kit"]
    return [row(one, peers if side == "this kit" else []) for side, one in found.items()]


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        return work(Job(**json.loads(sys.argv[2])), Path(sys.argv[3]))
    args, rows = parse(), []
    for device, seeds, name in itertools.product(args.device, args.seeds, args.names):
        new = measure(name, device, seeds, args)
        for line in new:
            print(", ".join(line), file=sys.stderr)
        rows += new
        if args.keep and new:
            keep(new)
    print(speed.table(COLUMNS, rows))


def compared(row: list[str], known: dict[str, str]) -> list[str]:
    """The row; without peers of its own it is compared with those that are kept.

    Args:
      known: {program: launches for a step}.
    """
    place = COLUMNS.index("against peers")
    if row[place] != "-":
        return row
    program, ours = row[0].removesuffix(", by cuBLAS"), float(row[COLUMNS.index("a step")])
    steps = {kit: known.get(f"{kit} {program}") for kit in SIDES}
    ratios = [f"{ours / float(step):.2f} of {kit}" for kit, step in steps.items() if step]
    return [*row[:place], ", ".join(ratios) or "-", *row[place + 1 :]]


def keep(rows: list[list[str]]) -> None:
    from tests.benchmarks import report

    known = {row["program"]: row["a step"] for row in report.read("launches")}
    report.keep_table("launches", COLUMNS, [compared(row, known) for row in rows])
    for page in report.PAGES:
        page.write_text(report.page(page.read_text()))


if __name__ == "__main__":
    main()
