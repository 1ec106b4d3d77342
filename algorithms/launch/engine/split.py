"""`--split-envs`: one trial's environments and minibatches shared over devices (parts/split.py)."""

from pathlib import Path
from typing import Any

from algorithms import parts
from algorithms.launch.engine import settings
from algorithms.launch.engine.errors import UserError
from algorithms.parts import info


def of(module: Any, number: int) -> Any:
    """The algorithm's module, or a `parts.Split` of it with so many shards.

    Raises:
      UserError: the number is not one, or the algorithm cannot be split.
    """
    if type(number) is not int or number < 1:
        raise UserError(f"split_envs={number!r}: give a whole number, 1 (not split) or more")
    if number == 1 or isinstance(module, parts.Split):
        return module
    if hasattr(module, "members"):  # a population
        raise UserError(f"split_envs={number} does not go with pbt: leave one of them out")
    if not getattr(module, "INFO", {}).get("split"):
        name = settings.algorithm_name(module)
        raise UserError(f"split_envs={number}: {name} cannot be split{_others(module)}")
    return parts.Split(module, number)


def count(module: Any) -> int:
    """The number of shards of a trial; 1 where it is not split."""
    return module.number if isinstance(module, parts.Split) else 1


def axes(module: Any, config: Any, env: Any, env_params: Any) -> Any:
    """Where a state is split, a tree like it.

    Raises:
      UserError: a part of the state cannot be split.
    """
    try:
        return module.axes(config, env, env_params)
    except ValueError as error:
        raise UserError(str(error)) from error


def _others(module: Any) -> str:
    """Which files beside this one can."""
    found = info.of_folder(Path(module.__file__).parent)
    names = [name for name, said in found.items() if said.get("split")]
    return f"; {', '.join(names)} can" if names else ""
