"""What a sweep draws: `launch.Uniform`, `launch.Choice` and so on, and how a flag writes them."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.engine import settings


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


class Discount(NamedTuple):
    """Draws x between two numbers below 1 so that the logarithm of 1 - x is uniform."""

    low: float
    high: float

    def at(self, quantile: np.ndarray) -> np.ndarray:
        return 1.0 - LogUniform(1.0 - self.high, 1.0 - self.low).at(1.0 - quantile)


class Integers(NamedTuple):
    """Draws whole numbers, both ends included."""

    low: int
    high: int

    def at(self, quantile: np.ndarray) -> np.ndarray:
        drawn = np.floor(Uniform(self.low, self.high + 1).at(quantile))
        return np.minimum(drawn, self.high).astype(int)


class LogIntegers(NamedTuple):
    """Draws positive whole numbers whose logarithms are uniform, both ends included.

    Each stands for the interval of half a unit around it, as in Optuna, so that k comes about
    1 / k as often as 1.
    """

    low: int
    high: int

    def at(self, quantile: np.ndarray) -> np.ndarray:
        drawn = np.rint(LogUniform(self.low - 0.5, self.high + 0.5).at(quantile))
        return np.clip(drawn, self.low, self.high).astype(int)


class Choice(NamedTuple):
    """Draws one of the values, each as often as the others."""

    values: Sequence[Any]

    def at(self, quantile: np.ndarray) -> list[Any]:
        places = np.floor(quantile * len(self.values)).astype(int)
        return [self.values[i] for i in np.minimum(places, len(self.values) - 1)]


Distribution = Uniform | LogUniform | Discount | Integers | LogIntegers | Choice
# By the name that a flag gives it; `choice` has values in place of two bounds.
DISTRIBUTIONS: dict[str, Any] = {
    "log": LogUniform,
    "uniform": Uniform,
    "discount": Discount,
    "int": Integers,
    "logint": LogIntegers,
}
WHOLE = (Integers, LogIntegers)
NOUNS = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "a text",
    tuple: "a tuple",
}


def forms(kind: type) -> str:
    """How a flag draws a field of this type."""
    ranges = [f"{name}:LOW:HIGH" for name, cls in DISTRIBUTIONS.items() if _fits(cls, kind)]
    choice = "choice:A/B/C" if kind is tuple else "choice:A,B,C"
    return " or ".join(filter(None, [", ".join(ranges), choice]))


def _fits(cls: type, kind: type) -> bool:
    """Whether a field of a type can be drawn by a distribution."""
    return cls is Choice or kind is float or (kind is int and cls in WHOLE)


def distribution(word: str, kind: type = float, read: Callable[[str], Any] = float) -> Distribution:
    """`log:1e-5:1e-2`, `int:1:8`, `choice:tanh,relu`, `choice:64,64/128,128` and so on.

    Args:
      word: of the command line.
      kind: the field's type: float, int, bool, str or tuple.
      read: makes a value of the field of its text.

    Raises:
      ValueError: it is none of those that the type has, or its bounds or values make no sense.
    """
    name, _, rest = word.partition(":")
    made: Distribution
    if name == "choice":
        # A slash needs no quotes in a shell; values of a tuple have commas themselves.
        parts = re.split(r"[/|]" if kind is tuple else r"[,|]", rest)
        if kind is tuple and len(parts) < 2:
            raise ValueError(f"{word!r}: put a / between the values, as in choice:64,64/128,128")
        made = Choice([read(part.strip()) for part in parts])
    else:
        bounds = rest.split(":")
        if name not in DISTRIBUTIONS or len(bounds) != 2 or not _fits(DISTRIBUTIONS[name], kind):
            raise ValueError(f"{word!r} is neither {NOUNS[kind]} nor {forms(kind)}")
        try:
            low, high = map(float, bounds)
        except ValueError:
            raise ValueError(f"{word!r}: LOW and HIGH are numbers") from None
        made = DISTRIBUTIONS[name](low, high)
    if wrong := problem(made, kind):
        raise ValueError(f"{word!r}: {wrong}")
    return type(made)(*map(int, made)) if isinstance(made, WHOLE) else made


def problem(distribution: Distribution, kind: type) -> str:
    """What is wrong with it, for a field of this type; empty where nothing is."""
    if not _fits(type(distribution), kind):
        names = [cls.__name__ for cls in (*DISTRIBUTIONS.values(), Choice) if _fits(cls, kind)]
        return f"the field is {NOUNS[kind]}: draw it by {', '.join(names)}"
    if isinstance(distribution, Choice):
        return _problem_of_choice(distribution, kind)
    low, high = distribution
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        return "give two numbers, the lower one first"
    if isinstance(distribution, WHOLE) and (low % 1 or high % 1):
        return "give whole numbers"
    if isinstance(distribution, LogUniform) and low <= 0:
        return "the logarithm needs a lower bound above 0"
    if isinstance(distribution, LogIntegers) and low < 1:
        return "the logarithm needs a lower bound of 1 or more"
    if isinstance(distribution, Discount) and high >= 1:
        return "the logarithm of 1 - x needs an upper bound below 1"
    return ""


def _problem_of_choice(choice: Choice, kind: type) -> str:
    if len(choice.values) < 2:
        return "give two values or more"
    for i, value in enumerate(choice.values):
        if type(value) is not kind and not (kind is float and type(value) is int):
            return f"{value!r} is not {NOUNS[kind]}"
        if value in choice.values[:i]:
            return f"{settings.plain(value)} is there twice"
    return ""


def to_json(distribution: Distribution) -> Any:
    """For sweep.json: the word of a flag, and the values of a choice, whose types a word loses."""
    if isinstance(distribution, Choice):
        return {"choice": settings.strict(list(distribution.values))}
    name = next(name for name, cls in DISTRIBUTIONS.items() if cls is type(distribution))
    return f"{name}:{distribution.low}:{distribution.high}"


def from_json(value: Any) -> Distribution | None:
    """The inverse; None for listed values."""
    if isinstance(value, dict):
        return Choice([settings.value_of(one) for one in value["choice"]])
    if not isinstance(value, str):
        return None
    name, low, high = value.split(":")
    number = int if DISTRIBUTIONS[name] in WHOLE else float
    # By way of a float: Python may have given 1e3 for a whole number.
    return DISTRIBUTIONS[name](number(float(low)), number(float(high)))
