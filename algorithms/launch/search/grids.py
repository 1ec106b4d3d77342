"""The settings of a sweep: which trials come of which values."""

import itertools
import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.errors import UserError, unknown
from algorithms.launch.search.halving import Halving
from algorithms.launch.settings import Trials, float_fields, plain, text_of

SAMPLERS = ("sobol", "random")


class Uniform(NamedTuple):
    """Draws between two numbers."""

    low: float
    high: float

    def at(self, quantile: np.ndarray) -> np.ndarray:
        return self.low + quantile * (self.high - self.low)


class LogUniform(NamedTuple):
    """Draws between two positive numbers whose logarithms are uniform."""

    low: float
    high: float

    def at(self, quantile: np.ndarray) -> np.ndarray:
        return np.exp(Uniform(*np.log(self)).at(quantile))


Distribution = Uniform | LogUniform
DISTRIBUTIONS: dict[str, type[Uniform] | type[LogUniform]] = {"uniform": Uniform, "log": LogUniform}


def distribution(word: str) -> Distribution:
    """`log:1e-5:1e-2` or `uniform:0.9:1`.

    Raises:
      ValueError: it is neither, or its bounds make no sense.
    """
    name, *bounds = word.split(":")
    if name not in DISTRIBUTIONS or len(bounds) != 2:
        raise ValueError(f"{word!r} is neither a number nor log:LOW:HIGH or uniform:LOW:HIGH")
    low, high = map(float, bounds)
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise ValueError(f"{word!r}: give two numbers, the lower one first")
    if name == "log" and low <= 0:
        raise ValueError(f"{word!r}: the logarithm needs a lower bound above 0")
    return DISTRIBUTIONS[name](low, high)


class Asked(NamedTuple):
    """What a sweep is asked for beside a run."""

    grid: Mapping[str, Any] = MappingProxyType({})
    samples: int | None = None
    sampler: str = "sobol"
    max_parallel: int | None = None
    memory_limit: int | None = None
    halving: Halving = Halving()
    retest: int | None = None  # how many of the best settings train again on other seeds
    retest_seeds: int | None = None


class Group(NamedTuple):
    """Trials that one compiled program can train: static fields agree."""

    config: Any
    static: dict[str, Any]  # the swept ones among them
    trials: Trials

    @property
    def label(self) -> str:
        return ", ".join(text_of(self.static))


def expand(
    config: Any,
    grid: Mapping[str, Any],
    seeds: Sequence[int],
    samples: int | None = None,
    sampler: str = "sobol",
) -> list[Group]:
    """All trials: every combination of static values, of float values, of draws, and every seed.

    Seeds vary fastest, then the floats, then the static fields, whose combinations are the groups.
    The draws are the same for all the other combinations. Which numbers are drawn depends on the
    first seed.

    Args:
      config: what holds where the grid says nothing.
      grid: {field: values}, a `Uniform` or `LogUniform` for a float that is drawn.
      seeds: of the trials of each setting.
      samples: how many draws, if anything is drawn.
      sampler: "sobol", which fills the space evenly (scrambled), or "random".

    Raises:
      UserError: an unknown field, no values, a value twice, draws without `samples`, ...
    """
    fields = list(config.__dataclass_fields__)
    for name in grid:
        if name not in fields:
            raise unknown("setting", name, fields)
    floats = float_fields(config)
    drawn = {name: value for name, value in grid.items() if isinstance(value, Distribution)}
    listed = {name: _listed(name, value) for name, value in grid.items() if name not in drawn}
    num_draws = _check_draws(drawn, floats, samples, sampler)
    static = {name: values for name, values in listed.items() if name not in floats}
    listed = {name: values for name, values in listed.items() if name in floats}
    draws = draw(drawn, num_draws, sampler, seeds[0]) if drawn else {}
    rows = [
        {**combination, **{name: float(values[i]) for name, values in draws.items()}}
        for combination in combinations(listed)
        for i in range(num_draws)
    ]
    table = {name: np.repeat([row[name] for row in rows], len(seeds)) for name in rows[0]}
    trials = Trials([*seeds] * len(rows), table)
    return [Group(config.replace(**fixed), fixed, trials) for fixed in combinations(static)]


def combinations(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every way to give each name one of its values; the last name's varies fastest."""
    return [dict(zip(values, combination)) for combination in itertools.product(*values.values())]


def draw(
    distributions: Mapping[str, Distribution], samples: int, sampler: str, seed: int
) -> dict[str, np.ndarray]:
    """Draws (samples,) for each name; more samples begin with the same numbers."""
    if sampler == "random":
        quantiles = np.random.default_rng(seed).random((samples, len(distributions)))
    else:
        from scipy.stats import qmc  # jax brings scipy along

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # counts that are no power of two
            points = qmc.Sobol(len(distributions), scramble=True, seed=np.random.default_rng(seed))
            quantiles = points.random(samples)
    return {name: d.at(quantiles[:, i]) for i, (name, d) in enumerate(distributions.items())}


def _listed(name: str, values: Any) -> list[Any]:
    """The values of a field that are told one by one."""
    if isinstance(values, str) or not isinstance(values, list | tuple | np.ndarray | range):
        raise UserError(f"grid: {name}={values!r}: give a list of values, or a distribution")
    values = [value.item() if isinstance(value, np.generic) else value for value in values]
    if not values:
        raise UserError(f"grid: {name} has no values")
    for i, value in enumerate(values):
        if isinstance(value, Distribution):
            raise UserError(f"{name}: a distribution stands alone; it has {len(values) - 1} others")
        if value in values[:i]:
            raise UserError(f"{name}: {plain(value)} is there twice")
    return values


def _check_draws(
    drawn: Mapping[str, Distribution], floats: list[str], samples: int | None, sampler: str
) -> int:
    """How many draws of each combination; 1 where nothing is drawn."""
    for name in drawn:
        if name not in floats:
            raise UserError(f"{name} is not a float: list its values, each makes a group")
    if drawn and samples is None:
        raise UserError(f"{', '.join(drawn)} is drawn at random: say how often, samples=64")
    if samples is not None and not drawn:
        raise UserError(f"samples={samples}: nothing is drawn; give a distribution, log:1e-5:1e-2")
    if samples is not None and samples < 1:
        raise UserError(f"samples={samples}: give 1 or more")
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS)
    return samples or 1
