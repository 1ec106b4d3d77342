"""The cells of the tables: environments, settings and seeds of every algorithm, and solved
returns."""

from typing import NamedTuple

from algorithms.presets import PRESETS as SETTINGS


class Cell(NamedTuple):
    """A row of a table. Its settings are words of the command line, so that it can be repeated."""

    algorithm: str
    name: str  # unique in its algorithm
    words: str  # after `python algorithms/<algorithm>.py`
    seeds: int  # 100 for runs of at most 12 minutes on two cores, else 30 or 10
    solved: float = float("nan")  # the least return that counts as solved
    tables: tuple[str, ...] = ("results",)
    what: str = ""  # the algorithm in words, where its name would mislead
    metric: str = ""  # a metric of the environment, shown beside the return

    @property
    def key(self) -> str:
        return f"{self.algorithm}/{self.name}"


# The best return of a task that needs a memory; RockSample's is of a policy that knows all rocks
BEST = {"TMaze-v0": 4.0, "MemoryChain-bsuite": 1.0, "CartPole-v1-positions": 500.0}
BEST |= {"RepeatPrevious-v0": 1.0, "RockSample-v0": 50.0, "xminigrid/MiniGrid-MemoryS8": 1.0}
WHAT = {"dqn": "double, 3-step"}  # Config's defaults
SOLVED = {"CartPole-v1": 475.0, "Acrobot-v1": -100.0, "MountainCar-v0": -130.0}
SOLVED |= {"CartPole-v1-positions": 475.0, "MemoryChain-bsuite": 0.95, "TMaze-v0": 3.9}
SOLVED |= {"RepeatPrevious-v0": 0.95}
SOLVED |= {"Pendulum-v1": -200.0, "MountainCarContinuous-v0": 90.0, "Catch-bsuite": 0.85}
SOLVED |= {
    "navix/DoorKey": 0.9,
    "xminigrid/MiniGrid-DoorKey": 0.9,
    "brax/inverted_pendulum": 1000.0,
}
MEMORIES = ("", "-gru", "-mingru")  # presets of ppo_rnn, an LSTM's first
CLASSIC = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0")
# Tasks that need a memory, for files without one
CHAIN = "--env MemoryChain-bsuite --env-settings memory_length=60 --total-timesteps 400000"
POSITIONS = "--env CartPole-v1 --env-settings observe=0,2 --total-timesteps 500000"
BOX = ("Pendulum-v1", "MountainCarContinuous-v0")
UNMASKED = "--env-settings max_steps=4000,mask_actions=false"
HELD = "actions held for {} steps"  # settings of the environment; steps of a run are actions
SPREAD = "MPE_simple_spread_v3"
SIMBA = "--network simba --normalize-obs --hidden-sizes 128,128 --critic-hidden-sizes 256,256"
# The preset of CartpoleSwingup, for the rest of the suite
FRAMES = "--env playground/{} --env-settings action_repeat=2 --num-envs 16 --num-evals 5"
FRAMES += " --total-timesteps 50000"
# 250,000 steps of a task of that suite, not held, with networks that two cores can train
LONGER = "--env playground/{} --total-timesteps 250000 --num-evals 5"
DM_CONTROL = {
    "flashsac": "--preset Pendulum-v1 --buffer-size 250000",
    "sac": "--preset Pendulum-v1 --num-envs 4 --updates-per-step 4 --buffer-size 250000",
    "reppo": "",
    "ppo": "--num-envs 16",
}
# REDQ with five critics of 64 units, on a fifth of SAC's steps
REDQ = "--learning-starts 500 --updates-per-step 20 --policy-every 20 --actor-value mean"
REDQ += " --num-critics 5 --target-critics 2 --hidden-sizes 64,64 --critic-hidden-sizes 64,64"
DROQ = REDQ.replace("--num-critics 5 --target-critics 2", "--layer-norm --dropout")
PARTIAL = "--env-settings observation=symbolic_first_person"
GAMES = {"Asterix": 10_000_000, "Breakout": 3_000_000}
GAMES |= {"Freeway": 5_000_000, "SpaceInvaders": 5_000_000}


def bar(name: str) -> float:
    """The solved return of a cell, by the environment that its name begins with."""
    known = [key for key in SOLVED if name.startswith(key)]
    return SOLVED[max(known, key=len)] if known else float("nan")


def preset(algorithm: str, name: str, steps: int, seeds: int) -> Cell:
    """A preset's cell, in both tables if the preset keeps the defaults."""
    words = f"--preset {name} --total-timesteps {steps}"
    tables = ("results",) if SETTINGS[algorithm][name] else ("results", "defaults")
    return Cell(algorithm, name, words, seeds, bar(name), tables, WHAT.get(algorithm, ""))


def also(table: str, cell: Cell) -> Cell:
    """The cell in one more table."""
    return cell._replace(tables=(*cell.tables, table))


def shown(cell: Cell) -> Cell:
    """The cell also in the table of flags, beside rows with one."""
    return also("flags", cell)


def squared(algorithm: str, env: str, words: str) -> Cell:
    """Squared errors of quantiles: expectiles are learned, and bootstrapped as if quantiles."""
    words = f"--preset {env} --kappa 100 {words}".rstrip()
    words += " --total-timesteps 500000"
    what = "kappa 100: expectiles"
    return Cell(algorithm, f"{env}, kappa 100", words, 10, bar(env), what=what)


def defaults(algorithm: str, *envs: str) -> tuple[Cell, ...]:
    """The defaults on environments with a preset that is not empty; others would repeat a run."""
    others = [env for env in envs if SETTINGS[algorithm].get(env) != {}]
    return tuple(default(algorithm, env, 500_000, 30) for env in others)


def default(algorithm: str, env: str, steps: int, seeds: int) -> Cell:
    """Config's defaults on one environment."""
    words, what = f"--env {env} --total-timesteps {steps}", WHAT.get(algorithm, "")
    return Cell(algorithm, f"{env}, defaults", words, seeds, bar(env), ("defaults",), what)


def flag(algorithm: str, env: str, words: str, steps: int = 500_000, seeds: int = 30) -> Cell:
    """A preset with a flag, beside the preset without it."""
    name, words = f"{env} {words}", f"--preset {env} {words} --total-timesteps {steps}"
    return Cell(algorithm, name, words, seeds, bar(env), ("flags",), WHAT.get(algorithm, ""))


PRESETS = (
    preset("ppo", "CartPole-v1", 500_000, 100),
    shown(preset("ppo", "Acrobot-v1", 500_000, 100)),
    preset("ppo", "Pendulum-v1", 500_000, 100),
    preset("ppo", "MountainCarContinuous-v0", 500_000, 100),
    preset("ppo", "Breakout-MinAtar", 5_000_000, 10),
    preset("ippo", "MultiNavigator-v0", 1_000_000, 30),
    preset("ippo", "MPE_simple_speaker_listener_v4", 5_000_000, 10),
    also("teams", preset("ippo_rnn", "switch_riddle", 300_000, 10)),
    preset("ppo_vtrace", "CartPole-v1", 500_000, 100),
    shown(preset("ppo_vtrace", "MultiNavigator-v0", 500_000, 30)),
    *(preset("ppo_rnn", f"MemoryChain-bsuite{memory}", 400_000, 100) for memory in MEMORIES),
    *(preset("ppo_rnn", f"CartPole-v1-positions{memory}", 500_000, 100) for memory in MEMORIES),
    *(preset("pqn", env, 500_000, 100) for env in CLASSIC),
    *(preset("pqn", f"{game}-MinAtar", steps, 10) for game, steps in GAMES.items()),
    flag("ppo_rnn", "TMaze-v0", "--num-envs 4", 1_000_000, 10)._replace(tables=("results",)),
    preset("pqn_rnn", "MemoryChain-bsuite", 400_000, 30),
    preset("r2d2", "CartPole-v1-positions", 500_000, 5),
    preset("r2d2", "MemoryChain-bsuite", 200_000, 5),
    preset("r2d2", "TMaze-v0", 200_000, 5),
    preset("vdn", "Hunt-v0", 1_000_000, 10)._replace(what="VDN"),
    also("teams", preset("vdn", "MPE_simple_spread_v3", 2_000_000, 10)._replace(what="VDN")),
    also("teams", preset("vdn", "switch_riddle", 1_000_000, 10)._replace(what="VDN with a GRU")),
    *(preset("reinforce", env, 500_000, 100) for env in ("CartPole-v1", "Acrobot-v1")),
    *(
        preset("ppo_plr", env, 500_000, 10)._replace(solved=float("nan"), what="randomised")
        for env in (*CLASSIC[:2], BOX[0])
    ),
    preset("sac", "Pendulum-v1", 20_000, 10),
    preset("sac", "MountainCarContinuous-v0", 12_500, 10)._replace(what=HELD.format(4)),
    preset("sac_discrete", "CartPole-v1", 500_000, 30),
    preset("sac_discrete", "Acrobot-v1", 160_000, 30)._replace(what=HELD.format(3)),
    preset("td3", "Pendulum-v1", 20_000, 10),
    preset("td3", "MountainCarContinuous-v0", 12_500, 10)._replace(what=HELD.format(4)),
    preset("crossq", "Pendulum-v1", 20_000, 10),
    preset("flashsac", "Pendulum-v1", 20_000, 10),
    preset("flashsac", "MountainCarContinuous-v0", 12_800, 10)._replace(what=HELD.format(4)),
    preset("reppo", "Pendulum-v1", 50_000, 10),
    preset("reppo", "MountainCarContinuous-v0", 12_500, 10)._replace(what=HELD.format(4)),
    *(preset("reppo_discrete", env, 500_000, 10) for env in CLASSIC),
    preset("ddpg", "Pendulum-v1", 30_000, 10),
    preset("alphazero", "tic_tac_toe", 500_000, 10),
    preset("dqn", "CartPole-v1", 500_000, 100),
    shown(preset("dqn", "Acrobot-v1", 500_000, 100)),
    preset("dqn", "MountainCar-v0", 500_000, 100),
    *(preset("c51", env, 500_000, 100) for env in CLASSIC),
    *(preset("qrdqn", env, 500_000, 100) for env in CLASSIC),
    *(preset("iqn", env, 500_000, n) for env, n in zip(CLASSIC, (30, 30, 10))),
    *(preset(name, "Breakout-MinAtar", 500_000, 10) for name in ("dqn", "c51", "qrdqn", "iqn")),
    *(squared("qrdqn", env, "") for env in CLASSIC),
    *(squared("iqn", env, "--adam-eps 1e-6") for env in CLASSIC[:2]),  # divided by kappa
    squared("iqn", "MountainCar-v0", "--adam-eps 1e-7"),
)
POLICY_GRADIENTS = ("ppo", "ppo_vtrace", "ppo_rnn", "reinforce")
VALUES = ("pqn", "dqn", "c51", "qrdqn", "iqn")
TEAMS = ("MultiNavigator-v0", "jaxmarl/MPE_simple_spread_v3")
SUITE = ("CartpoleSwingup", "PendulumSwingup", "CheetahRun")  # 100,000 frames
DEFAULTS = (
    *(cell for name in POLICY_GRADIENTS for cell in defaults(name, *CLASSIC, *BOX)),
    *(cell for name in VALUES for cell in defaults(name, *CLASSIC)),
    *defaults("sac_discrete", *CLASSIC[:2]),
    *(
        default(name, "Breakout-MinAtar", 500_000, 10)
        for name in (*POLICY_GRADIENTS, *VALUES, "reppo_discrete")
    ),
    *(default("ippo", env, 1_000_000, 10) for env in TEAMS),
    default("vdn", "jaxmarl/MPE_simple_spread_v3", 1_000_000, 10)._replace(what="VDN"),
)
# As the authors' script has it in the table of other kits
ALONE = "--num-envs 1 --updates-per-step 1 --learning-rate 3e-4"
FLAGS = (
    flag("flashsac", "Pendulum-v1", ALONE, 20_000, 3),
    flag("ppo", "Acrobot-v1", "--shared-torso"),
    flag("ppo", "Acrobot-v1", "--target-kl 0.02"),
    flag("ppo", "Acrobot-v1", "--no-normalize-obs"),
    flag("ppo", "Acrobot-v1", "--no-normalize-reward"),
    flag("ppo_vtrace", "MultiNavigator-v0", "--no-vtrace"),
    flag("ppo_vtrace", "MultiNavigator-v0", "--priority-alpha 0"),
    flag("ppo_vtrace", "MultiNavigator-v0", "--optimizer adam"),
    also("teams", flag("vdn", SPREAD, "--mixer monotonic", 2_000_000, 10)._replace(what="QMIX")),
    also("teams", flag("vdn", SPREAD, "--mixer none", 2_000_000, 10)._replace(what="IQL")),
    flag("dqn", "Acrobot-v1", "--n-step 1")._replace(what="double"),
    flag("dqn", "Acrobot-v1", "--prioritized"),
    flag("dqn", "Acrobot-v1", "--dueling"),
    flag("dqn", "Acrobot-v1", "--no-double")._replace(what="3-step"),
    Cell("ppo", "MemoryChain-bsuite, no memory", CHAIN, 30, bar("MemoryChain-bsuite"), ("flags",)),
    Cell("ppo", "CartPole-v1-positions, no memory", POSITIONS, 30, 475.0, ("flags",)),
)
# The settings of that preset, and a new level in each episode
ROOMS = "--env xminigrid/MiniGrid-FourRooms --num-envs 32 --num-minibatches 8 --conv-layers none"
ROOMS += " --total-timesteps 2000000"
MAZE = preset("ppo_plr", "xminigrid/MiniGrid-FourRooms", 2_000_000, 5)
FOUR_ROOMS = (
    MAZE._replace(what="PLR"),
    flag("ppo_plr", MAZE.name, "--robust", 2_000_000, 5)._replace(what="robust PLR"),
    flag("ppo_plr", MAZE.name, "--replay-share 0", 2_000_000, 5)._replace(what="no replay"),
    Cell("ppo", MAZE.name, ROOMS, 5),
)
LIBRARIES = tuple(
    cell._replace(tables=("libraries",))
    for cell in (
        preset("ppo", "navix/DoorKey-5x5", 1_000_000, 10),
        preset("ppo", "xminigrid/MiniGrid-DoorKey-5x5", 1_000_000, 10),
        *FOUR_ROOMS,
        preset("ppo", "jumanji/Game2048", 500_000, 10),
        flag("ppo", "jumanji/Game2048", UNMASKED, 500_000, 10)._replace(
            name="jumanji/Game2048, no masks"
        ),
        preset("ppo", "brax/inverted_pendulum", 500_000, 10),
        preset("ppo", "brax/hopper", 5_000_000, 10),
        preset("ppo", "playground/CartpoleBalance", 1_000_000, 10),
        preset("ppo", "playground/CartpoleSwingup", 2_000_000, 10)._replace(what=HELD.format(2)),
        preset("ppo", "playground/PendulumSwingup", 5_000_000, 10),
        preset("ppo", "playground/CheetahRun", 1_000_000, 3),
        flag("ppo", "playground/CartpoleSwingup", "--num-evals 5", 250_000, 10)._replace(
            name="playground/CartpoleSwingup, 500,000 frames", what=HELD.format(2)
        ),
        preset("reppo", "playground/CartpoleSwingup", 250_000, 10)._replace(what=HELD.format(2)),
        preset("reppo", "playground/CheetahRun", 1_000_000, 3),
        preset("reppo", "brax/hopper", 983_040, 10),
        *(
            preset("sac", f"playground/{env}", 50_000, 3)._replace(what=HELD.format(2))
            for env in SUITE
        ),
        preset("flashsac", "playground/CartpoleSwingup", 50_240, 3)._replace(what=HELD.format(2)),
        preset("sac", "brax/hopper", 500_000, 3),
        preset("td3", "playground/CartpoleSwingup", 50_000, 3)._replace(what=HELD.format(2)),
        flag("sac", "playground/CartpoleSwingup", SIMBA, 50_000, 3)._replace(
            name="playground/CartpoleSwingup, simba", what=HELD.format(2)
        ),
        flag("sac", "playground/CartpoleSwingup", REDQ, 10_000, 3)._replace(
            name="playground/CartpoleSwingup, redq", what=f"REDQ, {HELD.format(2)}"
        ),
        flag("sac", "playground/CartpoleSwingup", DROQ, 10_000, 3)._replace(
            name="playground/CartpoleSwingup, droq", what=f"DroQ, {HELD.format(2)}"
        ),
        flag("ppo", "playground/CartpoleSwingup", "--num-evals 5", 50_000, 3)._replace(
            name="playground/CartpoleSwingup, 100,000 frames", what=HELD.format(2)
        ),
        *(
            Cell("ppo", f"playground/{env}, 100,000 frames", FRAMES.format(env), 3)._replace(
                what=HELD.format(2)
            )
            for env in SUITE[1:]
        ),
        preset("ppo", "craftax/Classic-Symbolic", 2_000_000, 5),
        preset("pqn", "craftax/Classic-Symbolic", 2_000_000, 5),
        preset("ppo_rnn", "navix/DoorKey-5x5", 1_000_000, 10),
        flag("ppo", "navix/DoorKey-5x5", PARTIAL, 1_000_000, 10)._replace(
            name="navix/DoorKey-5x5, partial views, no memory"
        ),
    )
)
SUITE_LONGER = (*SUITE, "FingerSpin", "ReacherHard")
LIBRARIES += tuple(
    Cell(
        algorithm, f"playground/{env}, 250,000 steps", f"{words} {LONGER.format(env)}".strip(), 3
    )._replace(tables=("libraries", "dm_control"))
    for env in SUITE_LONGER
    for algorithm, words in DM_CONTROL.items()
)
SMAX, KITCHEN = "SMAX-3m", "overcooked-cramped_room"
# The best settings of independent learners on seeds for tuning (docs/tuning.md): passes and step
# size are those of JaxMARL's script.
CURIOUS = "--eps-end 0.05 --exploration-fraction 0.5 --learning-rate 5e-4 --update-epochs 8"
SMAX_CELLS = (
    preset("ippo", SMAX, 2_000_000, 5),
    preset("ippo_rnn", SMAX, 2_000_000, 5),
    flag("ippo_rnn", SMAX, "--central-critic", 2_000_000, 5)._replace(what="MAPPO"),
    flag("vdn", SMAX, f"--mixer none {CURIOUS}", 2_000_000, 5)._replace(
        name=f"{SMAX} --mixer none", what="IQL with a GRU"
    ),
    preset("vdn", SMAX, 2_000_000, 5)._replace(what="VDN with a GRU"),
    flag("vdn", SMAX, "--mixer monotonic", 2_000_000, 5)._replace(what="QMIX with a GRU"),
)
KITCHEN_CELLS = (
    preset("ippo", KITCHEN, 5_000_000, 5),
    preset("vdn", KITCHEN, 5_000_000, 5)._replace(what="VDN"),
)
OF_TEAMS = tuple(
    cell._replace(tables=("teams",), metric=metric)
    for cells, metric in ((SMAX_CELLS, "won"), (KITCHEN_CELLS, "deliveries"))
    for cell in cells
)


def few(algorithm: str, env: str, steps: int, points: int, seeds: int) -> Cell:
    """One of the table of world models: dreamer's, or another file's with as few steps."""
    known = env in SETTINGS[algorithm]
    words = f"--{'preset' if known else 'env'} {env}"
    words += f" --total-timesteps {steps} --num-evals {points}"
    return Cell(algorithm, f"{env}, {steps:,} steps", words, seeds, bar(env), ("worlds",))


WORLDS = (
    few("dreamer", "CartPole-v1", 20_480, 20, 10),
    few("ppo", "CartPole-v1", 20_480, 20, 10),
    few("dreamer", "Catch-bsuite", 10_240, 10, 5),
    few("ppo", "Catch-bsuite", 10_240, 10, 10),
    few("dreamer", "Pendulum-v1", 20_480, 20, 5),
    few("sac", "Pendulum-v1", 20_480, 20, 10),
)


def early(name: str, words: str, what: str) -> Cell:
    """One of the table of few steps: SAC on Pendulum with a point every 96 steps."""
    return Cell("sac", name, words, 5, bar(name), ("few",), what)


SLOW = "--preset Pendulum-v1 --learning-starts 200 --total-timesteps 5760 --num-evals 60"
BUSY = "--preset Pendulum-v1-redq --num-critics 2 --target-critics 0 --actor-value min"
FEW_STEPS = (
    early("Pendulum-v1-redq", "--preset Pendulum-v1-redq", "REDQ"),
    early("Pendulum-v1-droq", "--preset Pendulum-v1-droq", "DroQ"),
    early("Pendulum-v1, 20 gradient steps", f"{BUSY} --policy-every 1", "20 gradient steps"),
    early("Pendulum-v1, early", SLOW, "1 gradient step"),
)


class Recall(NamedTuple):
    """A task that needs a memory, for every memory."""

    algorithm: str
    env: str  # or a preset
    steps: int
    seeds: int
    more: str = ""  # an ending of the task's name
    words: str = ""  # settings on top
    window: str = ""  # words of a gtrxl, which is slow and has fewer seeds
    seeds_of_gtrxl: int = 5

    def cell(self, memory: str) -> Cell:
        """The row of one memory."""
        attends = memory == "gtrxl"
        source = "--preset" if self.env in SETTINGS[self.algorithm] else "--env"
        words = f"{source} {self.env} --cell {memory} {self.window * attends} {self.words}"
        words = " ".join(f"{words} --total-timesteps {self.steps}".split())
        name = f"{self.env}{self.more}, {memory}"
        seeds = self.seeds_of_gtrxl if attends else self.seeds
        return Cell(self.algorithm, name, words, seeds, bar(self.env), ("memory",))


# Rollouts and windows span the time from a signal to its reward.
# In the chain of 200 the answer alone pays, at once: later rewards would only be noise.
LONG = "--env-settings memory_length=200 --num-steps 256 --gamma 0.5 --gae-lambda 0.5"
LONG += " --forget-bias 6"
# With one step in reserve, as in the passive task, no policy that still explores would ever turn.
FAR = "--env-settings length=100,passive=true,max_steps_in_episode=200 --num-steps 128"
FAR += " --learning-rate 1e-3 --gamma 0.998 --gae-lambda 0.95 --ent-coef 0.005"
MEMORY_MAZE = "--num-envs 32 --num-steps 64 --num-minibatches 8 --learning-rate 1e-3"
MEMORY_MAZE += " --ent-coef 0.03 --hidden-sizes 64 --conv-layers none --forget-bias 3"
RECALL = (
    Recall("ppo_rnn", "TMaze-v0", 300_000, 10, seeds_of_gtrxl=10),
    Recall("ppo_rnn", "TMaze-v0", 1_000_000, 5, " 100", FAR, "--window 128"),
    Recall("ppo_rnn", "MemoryChain-bsuite", 400_000, 10, window="--window 64"),
    Recall("ppo_rnn", "MemoryChain-bsuite", 500_000, 5, " 200", LONG, "--window 256"),
    Recall("ppo_rnn", "CartPole-v1-positions", 500_000, 10, seeds_of_gtrxl=10),
    Recall("ppo_rnn", "RepeatPrevious-v0", 500_000, 10),
    Recall("ppo_rnn", "RockSample-v0", 1_000_000, 5),
    Recall("ppo_rnn", "xminigrid/MiniGrid-MemoryS8", 500_000, 5, words=MEMORY_MAZE),
    Recall("pqn_rnn", "TMaze-v0", 300_000, 5),
    Recall("pqn_rnn", "MemoryChain-bsuite", 400_000, 5, window="--window 64"),
    Recall("pqn_rnn", "CartPole-v1-positions", 500_000, 5),
)
MEMORIES_COMPARED = ("gru", "lstm", "mingru", "minlstm", "lru", "s5", "gtrxl")
MEMORY = tuple(task.cell(memory) for task in RECALL for memory in MEMORIES_COMPARED)


def jaxmarl(env: str, metric: str, *scripts: str, seeds: int = 1) -> tuple[Cell, ...]:
    """Cells of JaxMARL's own scripts."""
    new = lambda script: Cell(f"jaxmarl-{script}", env, "", seeds, tables=("teams",), metric=metric)
    return tuple(map(new, scripts))


PEERS = (
    *(
        Cell(peer, env, "", seeds, bar(env), ("peers",))
        for peer, seeds in (("rejax-ppo", 100), ("purejaxrl-ppo", 100), ("rejax-dqn", 10))
        for env in ("CartPole-v1", "Acrobot-v1")
    ),
    Cell("brax-sac", "brax/hopper", "", 3, tables=("peers",)),
    Cell("brax-ppo", "brax/hopper", "", 3, tables=("peers",)),
    Cell("reppo-script", "Pendulum-v1", "", 10, bar("Pendulum-v1"), ("peers",)),
    Cell("reppo-script", "playground/CartpoleSwingup", "", 3, tables=("peers",)),
    Cell("reppo-script", "brax/hopper", "", 3, tables=("peers",)),
    Cell("flashsac-script", "Pendulum-v1", "", 3, bar("Pendulum-v1"), ("peers",)),
    Cell("dreamerv3-script", WORLDS[0].name, "", 3, bar("CartPole-v1"), ("worlds",)),
    *jaxmarl(SMAX, "won", "ippo_rnn", "mappo"),
    *jaxmarl(SMAX, "won", "iql", seeds=3),
    *jaxmarl(SMAX, "won", "vdn", "qmix"),
    *jaxmarl(KITCHEN, "deliveries", "ippo", "vdn"),
    *jaxmarl(SPREAD, "", "mappo", "vdn", "qmix"),
)
CELLS = PRESETS + DEFAULTS + FLAGS + LIBRARIES + OF_TEAMS + MEMORY + WORLDS + FEW_STEPS
