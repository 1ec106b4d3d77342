"""The launcher of an algorithm file: flags, devices, progress, logs, checkpoints, plots, GIFs.

    launch.main(sys.modules[__name__])                   # the command line of an algorithm file
    result = launch.run(ppo, ppo.Config(), quiet=False)  # the same from Python, with its progress
    result = launch.resume("runs/...")                   # goes on where a run or sweep stopped
    loaded = launch.load("runs/...", point="best")       # config, state and policy of a run
    launch.export("runs/...", "policy.zip")              # a file that acts without the kit
    swept = launch.sweep(                                # settings x seeds, side by side
        ppo, ppo.Config(), {"learning_rate": [1e-4, 1e-3], "num_envs": [4, 8]}, num_seeds=8
    )

Importing this package is cheap and touches no backend of jax, so that the number of CPU devices
can still be chosen.
"""

import importlib
import os
import sys
from typing import Any

_HOMES = {
    "Choice": "engine.distributions",
    "Discount": "engine.distributions",
    "Integers": "engine.distributions",
    "LogIntegers": "engine.distributions",
    "LogUniform": "engine.distributions",
    "Uniform": "engine.distributions",
    "UserError": "engine.errors",
    "pbt": "runner",
    "run": "runner",
    "resume": "runner",
    "sweep": "runner",
    "Stop": "engine.interrupts",
    "load": "engine.loading",
    "export": "tools.export",
}

__all__ = [*_HOMES, "main"]


def main(module: Any, argv: list[str] | None = None) -> None:
    """The command line of an algorithm's module, see `cli.main`. Ctrl-C ends its import, too."""
    try:
        from algorithms.launch import cli
    except KeyboardInterrupt:
        print("\naborted; nothing had begun", file=sys.stderr, flush=True)
        os._exit(130)  # half of an import is no place to go on from
    cli.main(module, argv)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
