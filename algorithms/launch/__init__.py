"""The shell around an algorithm file: flags, devices, progress, logs, checkpoints, plots, GIFs.

    launch.main(sys.modules[__name__])                   # the command line of an algorithm file
    result = launch.run(ppo, ppo.Config(), num_seeds=4)  # the same from Python
    result = launch.resume("runs/...")                   # goes on where a run stopped
    loaded = launch.load("runs/...", point="best")       # config, state and policy of a run

Importing this package is cheap and touches no backend of jax, so that the number of CPU devices
can still be chosen.
"""

import importlib
from typing import Any

_HOMES = {
    "UserError": "errors",
    "main": "cli",
    "run": "runner",
    "resume": "runner",
    "load": "checkpoints",
}

__all__ = ["UserError", "load", "main", "resume", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
