"""What the words of a command line mean."""

import re
from collections.abc import Sequence
from typing import Any

from algorithms.launch.engine.errors import UserError

UNITS = {"K": 3, "M": 6, "B": 9, "G": 9}  # powers of ten; no number has a unit, as in 1M
# Flags of CleanRL, Stable-Baselines3 and others that have another name here
OF_OTHERS = {
    "env-id": "--env",
    "wandb": "--track",
    "wandb-project-name": "WANDB_PROJECT=... before the command, with --track",
    "wandb-entity": "WANDB_ENTITY=... before the command, with --track",
    "capture-video": "--gif end, or --render RUN afterwards",
    "exp-name": "--run-dir",
    "logdir": "--run-dir-root",
    "log-dir": "--run-dir-root",
    "save-model": "done for each point: --evaluate RUN plays it",
    "checkpoint": "--resume RUN",
    "cuda": "JAX_PLATFORMS=cuda or cpu before the command",
    "device": "JAX_PLATFORMS=cuda or cpu before the command",
    "clip-coef": "--clip-eps",
    "clip-range": "--clip-eps",
    "n-epochs": "--update-epochs",
    "num-epochs": "--update-epochs",
    "epochs": "--update-epochs",
    "batch-size": "--num-minibatches: num_envs * num_steps / batch_size",
    "n-steps": "--num-steps",
    "end-e": "--eps-end",
    "polyak": "--tau, the share that is new",
    "train-frequency": "--train-every",
    "train-freq": "--train-every",
    "gradient-steps": "--updates-per-step",
    "target-network-frequency": "--target-every, in gradient steps",
    "target-update-interval": "--target-every, in gradient steps",
}


def bool_of(word: str) -> bool:
    """true or false."""
    if word.lower() not in ("true", "false"):
        raise ValueError(f"{word!r} is neither true nor false")
    return word.lower() == "true"


def size_in_bytes(word: str) -> int:
    """500MB, 16GB, 1e9.

    Raises:
      UserError: it is none of these.
    """
    units = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    number, unit = (
        (word[:-2], units[word[-2:].upper()]) if word[-2:].upper() in units else (word, 1)
    )
    try:
        return int(float(number) * unit)
    except (ValueError, OverflowError):
        raise UserError(f"--memory-limit {word}: give a size, as 500MB or 16GB") from None


def trial_of(word: str) -> int | str:
    """best, all or a number.

    Raises:
      ValueError: it is none of these.
    """
    if word not in ("best", "all") and not word.isdigit():
        raise ValueError(f"{word!r} is neither best nor all nor a number")
    return int(word) if word.isdigit() else word


def number(word: str) -> float:
    """A float.

    Raises:
      ValueError: it is none; a unit gives a hint.
    """
    try:
        return float(word)
    except ValueError:
        power = UNITS.get(word[-1:].upper())
        hint = f": write {word[:-1]}e{power}" if power and word[:-1].isdigit() else ""
        if re.fullmatch(r"[-+.\deE]+(,[-+.\deE]+)+", word):
            hint = f": several values stand apart, {word.replace(',', ' ')}"
        raise ValueError(f"{word!r} is not a number{hint}") from None


def whole_number(word: str) -> int:
    """An int, also written as 5e5.

    Raises:
      ValueError: it is not whole.
    """
    try:
        return int(word)
    except ValueError:
        value = number(word) if word else 0.5
    if not value.is_integer():
        raise ValueError(f"{word!r} is not a whole number")
    return int(value)


def whole_numbers(word: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, perhaps in brackets; none for an empty word."""
    return tuple(whole_number(part) for part in parts_of(word) if part)


def parts_of(word: str) -> list[str]:
    """What stands between commas, without spaces around it and without a tuple's brackets."""
    # Around all numbers of a word or of a value, as wandb's agents write [64, 64].
    numbers = r"(^|=)\s*[\[(](\s*|[-+.\s]*\d[-+.\deE\s,]*)[\])]\s*(?=,|$)"
    return [part.strip() for part in re.sub(numbers, r"\1\2", word).split(",")]


def ranges_setting(word: str) -> str:
    """length=uniform:0.25:1,gravity=log:5:20 as the setting `randomize` of environments."""
    return word.replace(" ", "").replace("=", ":").replace(",", "/")


def named_values(word: str) -> tuple[tuple[str, Any], ...]:
    """name=value pairs with commas between them; a value may be whole numbers, name=0,2."""
    pairs: list[tuple[str, Any]] = []
    for part in filter(None, parts_of(word)):
        name, equals, value = part.partition("=")
        number = plain_value(part)
        if pairs and type(number) is int:  # one more of a tuple
            last, before = pairs.pop()
            before = before if isinstance(before, tuple) else (before,)
            pairs.append((last, (*before, number)))
        elif name and equals and value:
            pairs.append((name.strip(), plain_value(value.strip())))
        else:
            raise ValueError(
                f"{part!r} is not name=value, as max_steps=500; --env-settings= alone means none"
            )
    return tuple(pairs)


def named_values_text(pairs: tuple[tuple[str, Any], ...]) -> str:
    """The inverse."""
    text = lambda x: ",".join(map(str, x)) if isinstance(x, tuple) else str(x)
    return ",".join(f"{name}={text(x)}" for name, x in pairs)


def plain_value(word: str) -> Any:
    """A bool, an int, a float or else the word itself."""
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def point_of(word: str, flag: str, allowed: Sequence[str] = ("last", "best")) -> int | str:
    """The point that --point or --init-point names."""
    if word.isdigit():
        return int(word)
    if word not in allowed:
        raise UserError(f"--{flag} {word}: give {', '.join(allowed)} or a number")
    return word
