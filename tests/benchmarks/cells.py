"""What is reported: environments, settings and seeds of every algorithm, and when it is solved."""

from typing import NamedTuple


class Cell(NamedTuple):
    """A row of a table. Its settings are words of the command line, and so it can be repeated."""

    algorithm: str
    name: str  # unique in its algorithm
    words: str  # after `python algorithms/<algorithm>.py`
    seeds: int  # 100 where they take at most 12 minutes on two cores, else 30 or 10
    solved: float = float("nan")  # the least return that counts as solved
    tables: tuple[str, ...] = ("results",)
    what: str = ""  # was run, where the algorithm's name alone would mislead

    @property
    def key(self) -> str:
        return f"{self.algorithm}/{self.name}"


SOLVED = {"CartPole-v1": 475.0, "Acrobot-v1": -100.0, "MountainCar-v0": -130.0}
SOLVED |= {"CartPole-v1-positions": 475.0, "MemoryChain-bsuite": 0.95}
SOLVED |= {"Pendulum-v1": -200.0, "MountainCarContinuous-v0": 90.0}
CLASSIC = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0")
BOX = ("Pendulum-v1", "MountainCarContinuous-v0")
GAMES = ("Asterix", "Breakout", "Freeway", "SpaceInvaders")


def bar(name: str) -> float:
    """When a cell is solved, by the environment that its name begins with."""
    known = [key for key in SOLVED if name.startswith(key)]
    return SOLVED[max(known, key=len)] if known else float("nan")


def preset(algorithm: str, name: str, steps: int, seeds: int) -> Cell:
    words = f"--preset {name} --total-timesteps {steps}"
    return Cell(algorithm, name, words, seeds, bar(name))


def default(algorithm: str, env: str, steps: int = 500_000, seeds: int = 30) -> Cell:
    """Config's defaults, whatever the environment."""
    words = f"--env {env} --total-timesteps {steps}"
    return Cell(algorithm, f"{env}, defaults", words, seeds, bar(env), ("defaults",))


def flag(algorithm: str, env: str, words: str, steps: int = 500_000, seeds: int = 30) -> Cell:
    """A preset with a flag, beside the preset without."""
    name, words = f"{env} {words}", f"--preset {env} {words} --total-timesteps {steps}"
    return Cell(algorithm, name, words, seeds, bar(env), ("flags",))


PRESETS = (
    preset("ppo", "CartPole-v1", 500_000, 100),
    preset("ppo", "Acrobot-v1", 500_000, 100)._replace(tables=("results", "flags")),
    preset("ppo", "Pendulum-v1", 500_000, 30),
    preset("ppo", "MountainCarContinuous-v0", 500_000, 30),
    preset("ppo", "Breakout-MinAtar", 5_000_000, 10),
    preset("ippo", "MultiNavigator-v0", 1_000_000, 30),
    preset("ippo", "MPE_simple_spread_v3", 1_000_000, 30),
    preset("ippo", "MPE_simple_spread_v3-independent", 1_000_000, 30),
    preset("ippo", "MPE_simple_speaker_listener_v4", 5_000_000, 10),
    preset("ppo_vtrace", "CartPole-v1", 500_000, 100),
    preset("ppo_vtrace", "MultiNavigator-v0", 500_000, 30),
    *(preset("ppo_rnn", f"MemoryChain-bsuite{c}", 400_000, 100) for c in ("", "-gru", "-mingru")),
    preset("ppo_rnn", "CartPole-v1-positions", 500_000, 30),
    preset("ppo_rnn", "CartPole-v1-positions-gru", 500_000, 30),
    preset("ppo_rnn", "CartPole-v1-positions-mingru", 500_000, 100),
    *(preset("pqn", env, 500_000, 100) for env in CLASSIC),
    *(preset("pqn", f"{game}-MinAtar", 10_000_000, 10) for game in GAMES),
    *(preset("reinforce", env, 500_000, 100) for env in ("CartPole-v1", "Acrobot-v1")),
    preset("dqn", "CartPole-v1", 500_000, 100)._replace(what="double, 3-step"),
    preset("dqn", "Acrobot-v1", 500_000, 100)._replace(what="double", tables=("results", "flags")),
    preset("dqn", "MountainCar-v0", 500_000, 30)._replace(what="double"),
    *(preset("c51", env, 500_000, 30) for env in ("CartPole-v1", "Acrobot-v1")),
    *(preset("qrdqn", env, 500_000, 100) for env in ("CartPole-v1", "Acrobot-v1")),
    preset("qrdqn", "MountainCar-v0", 500_000, 30),
    *(preset("iqn", env, 500_000, 30) for env in CLASSIC),
)
POLICY_GRADIENTS = ("ppo", "ppo_vtrace", "ppo_rnn", "reinforce")
VALUES = ("pqn", "dqn", "c51", "qrdqn", "iqn")
DEFAULTS = (
    *(default(name, env) for name in POLICY_GRADIENTS for env in (*CLASSIC, *BOX)),
    *(default(name, env) for name in VALUES for env in CLASSIC),
    *(default(n, "Breakout-MinAtar", 1_000_000, 10) for n in POLICY_GRADIENTS + VALUES),
)
FLAGS = (
    flag("ppo", "Acrobot-v1", "--shared-torso"),
    flag("ppo", "Acrobot-v1", "--target-kl 0.02"),
    flag("ppo", "Acrobot-v1", "--no-normalize-obs"),
    flag("ppo", "Acrobot-v1", "--no-normalize-reward"),
    flag("dqn", "Acrobot-v1", "--n-step 3"),
    flag("dqn", "Acrobot-v1", "--prioritized"),
    flag("dqn", "Acrobot-v1", "--dueling"),
    flag("dqn", "Acrobot-v1", "--no-double"),
)
PEERS = tuple(
    Cell(peer, env, "", seeds, bar(env), ("peers",))
    for peer, seeds in (("rejax-ppo", 100), ("purejaxrl-ppo", 100), ("rejax-dqn", 10))
    for env in ("CartPole-v1", "Acrobot-v1")
)
CELLS = PRESETS + DEFAULTS + FLAGS
