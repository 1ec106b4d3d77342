"""The settings of a sweep: the trials that its values make."""

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from algorithms import parts
from algorithms.launch.engine import distributions, objectives
from algorithms.launch.engine.distributions import Choice, Distribution
from algorithms.launch.engine.errors import UserError, unknown
from algorithms.launch.engine.settings import Trials, float_fields, plain

Sampler = Literal["sobol", "random"]
SAMPLERS = get_args(Sampler)
MANY_PROGRAMS = 12  # that draws make, from which on a hint says what would make fewer


class Asked(NamedTuple):
    """The arguments of a sweep that a run does not have: keywords of `launch.sweep`, flags, and
    what sweep.json keeps of them."""

    grid: Mapping[str, Any] = MappingProxyType({})
    samples: int | None = None
    sampler: Sampler = "sobol"
    max_parallel: int | None = None
    memory_limit: int | None = None
    halving: int | None = None
    rungs: int | None = None
    brackets: int | None = None
    retest: int | None = None  # how many of the best settings train again on other seeds
    retest_seeds: int | None = None
    objective: str = objectives.DEFAULT  # what settings are ranked by
    settings: Sequence[Mapping[str, Any]] | None = None  # one by one, in place of a grid


COUNTS = tuple(name for name, kind in Asked.__annotations__.items() if kind == int | None)


class Group(NamedTuple):
    """Trials that one compiled program can train: static fields agree."""

    config: Any
    static: dict[str, Any]  # the swept ones among them
    trials: Trials


def with_plain_values(config: Any, asked: Asked) -> Asked:
    """The same with Python's own values, each as its field of the Config has it.

    Raises:
      UserError: an unknown field, neither a list of values nor a distribution, or a number that is
        not whole.
    """
    grid = {name: _values(config, name, given) for name, given in asked.grid.items()}
    of_row = lambda row: {name: _value(config, name, given) for name, given in row.items()}
    rows = asked.settings
    if rows is not None:  # `completed` refuses what is no setting
        rows = [of_row(row) if isinstance(row, Mapping) else row for row in rows]
    counts = {name: parts.value_like(0, getattr(asked, name)) for name in COUNTS}
    for name, value in counts.items():
        if value is not None and type(value) is not int:
            raise UserError(f"{name}={value}: give a whole number")
    return asked._replace(grid=grid, settings=rows, **counts)


def _values(config: Any, name: str, given: Any) -> Any:
    """The values of a field in a list, or its distribution."""
    if isinstance(given, Choice):
        return Choice([_value(config, name, one) for one in given.values])
    if isinstance(given, Distribution):
        return given
    values = parts.value_like(None, given)
    if not isinstance(values, list | tuple | range):
        raise UserError(f"grid: {name}={given!r}: give a list of values, or a distribution")
    return [_value(config, name, one) for one in values]


def _value(config: Any, name: str, given: Any) -> Any:
    """A field's value as the Config has it."""
    fields = config.__dataclass_fields__
    if name not in fields:
        raise unknown("setting", name, list(fields))
    return parts.value_like(fields[name].default, given)


def groups_of(config: Any, asked: Asked, seeds: Sequence[int]) -> list[Group]:
    """All trials: of settings that `completed` has, or else every combination of static values, of
    float values and of draws; each with every seed.

    Seeds vary fastest, then the floats, then the static fields, whose combinations are the groups:
    one for equal ones, in the order in which they are drawn. The draws are the same for all the
    other combinations; a setting that is drawn again is not there twice. Which values are drawn
    depends on the first seed.

    Args:
      config: what holds where nothing is asked for.
      asked: with values as `with_plain_values` gives them.
      seeds: of the trials of each setting.

    Raises:
      UserError: no values, a value twice, draws without `samples`, ...
    """
    rows = _rows(config, asked, seeds[0]) if asked.settings is None else asked.settings
    floats = float_fields(config)
    order = [name for name in asked.grid if name not in floats]
    groups: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {}
    for row in rows:
        static = {name: row[name] for name in order}
        own = {name: value for name, value in row.items() if name not in static}
        groups.setdefault(repr(static), (static, {}))[1].setdefault(repr(own), own)
    found = []
    for static, settings in groups.values():
        those = list(settings.values())
        table = {name: np.repeat([row[name] for row in those], len(seeds)) for name in those[0]}
        trials = Trials([*seeds] * len(those), table)
        found.append(Group(config.replace(**static), static, trials))
    return found


def _rows(config: Any, asked: Asked, seed: int) -> list[dict[str, Any]]:
    """The settings of a grid."""
    floats, grid = float_fields(config), asked.grid
    drawn = {name: value for name, value in grid.items() if isinstance(value, Distribution)}
    listed = {name: values for name, values in grid.items() if name not in drawn}
    for name, values in listed.items():
        _check_listed(name, values)
        if name in floats:
            _check_numbers(f"grid: {name}", values)
    num_draws = _check_draws(drawn, config, asked.samples, asked.sampler)
    draws = draw(drawn, num_draws, asked.sampler, seed) if drawn else {}
    plain_draws = {name: _plain(values, name in floats) for name, values in draws.items()}
    of_static = {name: values for name, values in listed.items() if name not in floats}
    of_floats = {name: values for name, values in listed.items() if name in floats}
    return [
        {**fixed, **combination, **{name: values[i] for name, values in plain_draws.items()}}
        for fixed in combinations(of_static)
        for combination in combinations(of_floats)
        for i in range(num_draws)
    ]


def check_returns(groups: Sequence[Group]) -> None:
    """Refuses a ranking of training returns among evaluations.

    Raises:
      UserError: some groups play no evaluation episodes.
    """
    counts = {getattr(group.config, "num_eval_episodes", 0) for group in groups}
    if 0 in counts and len(counts) > 1:
        raise UserError(
            "num_eval_episodes: settings with 0 have training returns only, which do not compare "
            "with evaluations; give 1 or more"
        )


def completed(config: Any, asked: Asked) -> Asked:
    """The same with the whole of each setting that is given, and with a grid that lists their
    values.

    Raises:
      UserError: settings beside a grid, or several environments.
    """
    if asked.settings is None:
        return asked
    if not all(isinstance(row, Mapping) for row in asked.settings):
        raise UserError("settings: give a list of {field: value}, one for each setting")
    if asked.grid or asked.samples is not None:
        raise UserError("settings: they go neither with a grid nor with samples; give one of them")
    floats = float_fields(config)
    names = dict.fromkeys(name for row in asked.settings for name in row)
    if not names:
        raise UserError("settings: there are no values; give {field: value} for each setting")
    whole = [{n: row.get(n, getattr(config, n)) for n in names} for row in asked.settings]
    for name in names:
        values = [row[name] for row in whole]
        if any(isinstance(value, Distribution) for value in values):
            raise UserError(f"settings: {name} is drawn: give draws to grid, and numbers here")
        if name in floats:
            _check_numbers(f"settings: {name}", values)
    columns = {name: _plain([row[name] for row in whole], name in floats) for name in names}
    rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
    once = lambda values: list({repr(value): value for value in values}.values())
    distinct = {name: once(values) for name, values in columns.items()}
    if len(distinct.get("env", ())) > 1:
        raise UserError("settings: they have several environments; give a sweep for each")
    return asked._replace(settings=rows, grid=distinct)


def combinations(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every way to give each name one of its values; the last name's varies fastest."""
    return [dict(zip(values, combination)) for combination in itertools.product(*values.values())]


def draw(
    drawn: Mapping[str, Distribution], samples: int, sampler: str, seed: int
) -> dict[str, Any]:
    """Draws (samples,) for each name."""
    quantiles = DRAWS[sampler](samples, len(drawn), seed)
    return {name: d.at(quantiles[:, i]) for i, (name, d) in enumerate(drawn.items())}


def _random(samples: int, dimensions: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((samples, dimensions))


def _sobol(samples: int, dimensions: int, seed: int) -> np.ndarray:
    from scipy.stats import qmc  # jax brings scipy along

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # counts that are no power of two
        points = qmc.Sobol(dimensions, scramble=True, seed=np.random.default_rng(seed))
        return points.random(samples)


# Quantiles (samples, dimensions) by the name of a sampler; more samples begin with the same ones.
DRAWS: dict[str, Callable[[int, int, int], np.ndarray]] = {"sobol": _sobol, "random": _random}


def remarks(asked: Asked, statics: Sequence[Mapping[str, Any]], num_settings: int) -> list[str]:
    """Remarks about draws: the programs that they make, and settings that were drawn twice.

    Args:
      statics: the swept static fields of each group.
      num_settings: of all groups.
    """
    drawn = [name for name, value in asked.grid.items() if isinstance(value, Distribution)]
    lengths = [len(values) for name, values in asked.grid.items() if name not in drawn]
    counts = {
        name: len({repr(static[name]) for static in statics})
        for name in drawn
        if name in statics[0]
    }
    said = []
    for name, values in asked.grid.items():
        one = isinstance(values, Sequence) and len(values) > 1
        if one and all(type(x) is tuple and [*map(type, x)] == [int] for x in values):
            words = ",".join(str(value[0]) for value in values)
            said.append(f"hint: {len(values)} settings of {name}; one of them all is {words}")
    if counts:
        made = [f"{count} values of {name}" for name, count in counts.items()]
        said.append(f"draws of {' and '.join(made)} make {len(statics)} programs")
    if drawn and (again := math.prod(lengths) * (asked.samples or 1) - num_settings):
        said.append(f"{again} settings were drawn again; each trains once")
    if counts and len(statics) > MANY_PROGRAMS:
        most = max(counts, key=lambda name: counts[name])
        values = sorted({static[most] for static in statics if type(static[most]) is int})
        flag = f"--{most.replace('_', '-')} choice:"
        few = [str(values[i]) for i in (0, len(values) // 2, -1)] if len(values) > 3 else []
        example = f", as {flag}{','.join(few)}" if few else ""
        said.append(f"hint: fewer values of {most} make fewer programs to compile{example}")
    return said


def _check_listed(name: str, values: Sequence[Any]) -> None:
    """Refuses no values, a value twice, and a distribution among values."""
    if not values:
        raise UserError(f"grid: {name} has no values")
    for i, value in enumerate(values):
        if isinstance(value, Distribution):
            raise UserError(f"{name}: a distribution stands alone; it has {len(values) - 1} others")
        if value in values[:i]:
            joined = ",".join(plain(one) for one in values)
            hint = f"; one setting of them all is {joined}" if isinstance(value, tuple) else ""
            raise UserError(f"{name}: {plain(value)} is there twice{hint}")


def _check_numbers(what: str, values: Sequence[Any]) -> None:
    """Refuses several numbers as one value of a float. Words are refused where ranges are."""
    for value in values:
        if np.ndim(value):
            raise UserError(f"{what}={value!r}: give one number for each setting")


def _plain(values: Sequence[Any], is_float: bool) -> list[Any]:
    """Draws as a Config has them."""
    values = [parts.value_like(None, value) for value in values]
    if is_float:  # what is no number is refused where ranges are
        return [float(value) if isinstance(value, int | float) else value for value in values]
    return values


def _check_draws(
    drawn: Mapping[str, Distribution], config: Any, samples: int | None, sampler: str
) -> int:
    """How many draws of each combination; 1 where nothing is drawn."""
    for name, distribution in drawn.items():
        if name == "env":
            raise UserError("env: list the environments, each is ranked by itself; none is drawn")
        kind = float if name in float_fields(config) else type(getattr(config, name))
        if wrong := distributions.problem(distribution, kind):
            raise UserError(f"{name}={distribution}: {wrong}")
    if drawn and samples is None:
        raise UserError(f"{', '.join(drawn)} is drawn at random: say how often, samples=64")
    if samples is not None and not drawn:
        raise UserError(f"samples={samples}: nothing is drawn; give a distribution, log:1e-5:1e-2")
    if sampler != SAMPLERS[0] and sampler in SAMPLERS and not drawn:
        raise UserError(f"sampler={sampler}: nothing is drawn; leave it out")
    if samples is not None and samples < 1:
        raise UserError(f"samples={samples}: give 1 or more")
    if sampler not in SAMPLERS:
        raise unknown("sampler", sampler, SAMPLERS)
    return samples or 1
