"""The settings of a population, from the ranges and words that a user gives."""

from collections.abc import Mapping, Sequence
from typing import Any

from algorithms.launch.engine import population, settings
from algorithms.launch.engine.distributions import Discount, LogUniform, Uniform, problem
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.evolution import Range

KINDS = {Uniform: "uniform", LogUniform: "log", Discount: "discount"}


def asked(config: Any, ranges: Mapping[str, Any], **values: Any) -> population.Settings:
    """What `launch.pbt` is to do with a Config whose points are the rounds.

    Args:
      **values: fields of `population.Settings`; periods may be words, "1,4".

    Raises:
      UserError: a setting that makes no sense.
    """
    wanted = population.Settings(
        **values | {"ranges": {name: _range(name, given) for name, given in ranges.items()}}
    )
    wanted = wanted._replace(periods=_periods(wanted.periods))
    population.check(wanted, config, settings.float_fields(config))
    return wanted


def _range(name: str, given: Any) -> Range:
    if type(given) not in KINDS:
        raise UserError(f"pbt: {name}={given}: give a range, as log:1e-5:1e-2")
    if wrong := problem(given, float):
        raise UserError(f"pbt: {name}={given}: {wrong}")
    return Range(KINDS[type(given)], float(given.low), float(given.high))


def _periods(given: Sequence[int] | str) -> tuple[int, ...]:
    if not isinstance(given, str):
        return tuple(given)
    try:
        return tuple(int(word) for word in given.split(","))
    except ValueError:
        raise UserError(f"pbt_periods={given}: give whole numbers of rounds, as 1,4") from None
