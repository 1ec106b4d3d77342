"""What is reported: environments, settings and seeds of every algorithm, and when it is solved."""

from typing import NamedTuple


class Cell(NamedTuple):
    """A row of a table. Its settings are words of the command line, and so it can be repeated."""

    algorithm: str
    name: str  # unique in its algorithm
    words: str  # after `python algorithms/<algorithm>.py`
    seeds: int  # 100 where they take at most 12 minutes on two cores, else 30 or 10
    solved: float = float("nan")  # the least return that counts as solved
    table: str = "results"

    @property
    def key(self) -> str:
        return f"{self.algorithm}/{self.name}"


SOLVED = {"CartPole-v1": 475.0, "Acrobot-v1": -100.0, "MountainCar-v0": -130.0}
SOLVED |= {"CartPole-v1-positions": 475.0, "MemoryChain-bsuite": 0.95}
GAMES = ("Asterix", "Breakout", "Freeway", "SpaceInvaders")


def preset(algorithm: str, name: str, steps: int, seeds: int) -> Cell:
    """A preset, or with an environment's name the defaults."""
    words = f"--preset {name} --total-timesteps {steps}"
    known = [key for key in SOLVED if name.startswith(key)]
    solved = SOLVED[max(known, key=len)] if known else float("nan")
    return Cell(algorithm, name, words, seeds, solved)


CELLS = (
    preset("ppo", "CartPole-v1", 500_000, 100),
    preset("ppo", "Acrobot-v1", 500_000, 100),
    preset("ppo", "Pendulum-v1", 500_000, 100),
    preset("ppo", "MountainCarContinuous-v0", 500_000, 100),
    preset("ppo", "Breakout-MinAtar", 5_000_000, 10),
    preset("ippo", "MultiNavigator-v0", 1_000_000, 30),
    preset("ippo", "MPE_simple_spread_v3", 1_000_000, 30),
    preset("ippo", "MPE_simple_spread_v3-independent", 1_000_000, 30),
    preset("ippo", "MPE_simple_speaker_listener_v4", 5_000_000, 10),
    preset("ppo_vtrace", "CartPole-v1", 500_000, 100),
    preset("ppo_vtrace", "MultiNavigator-v0", 500_000, 30),
    *(preset("ppo_rnn", f"MemoryChain-bsuite{c}", 200_000, 100) for c in ("", "-gru", "-mingru")),
    preset("ppo_rnn", "CartPole-v1-positions", 500_000, 30),
    *(preset("ppo_rnn", f"CartPole-v1-positions{c}", 250_000, 30) for c in ("-gru", "-mingru")),
    *(preset("pqn", env, 500_000, 100) for env in ("CartPole-v1", "Acrobot-v1", "MountainCar-v0")),
    *(preset("pqn", f"{game}-MinAtar", 10_000_000, 10) for game in GAMES),
    *(preset("reinforce", env, 500_000, 100) for env in ("CartPole-v1", "Acrobot-v1")),
    *(preset("dqn", env, 500_000, 100) for env in ("CartPole-v1", "Acrobot-v1")),
    preset("dqn", "MountainCar-v0", 500_000, 30),
    *(preset("c51", env, 500_000, 30) for env in ("CartPole-v1", "Acrobot-v1")),
    *(preset("qrdqn", env, 500_000, 100) for env in ("CartPole-v1", "Acrobot-v1")),
    preset("qrdqn", "MountainCar-v0", 500_000, 30),
    *(preset("iqn", env, 500_000, 30) for env in ("CartPole-v1", "Acrobot-v1", "MountainCar-v0")),
)
