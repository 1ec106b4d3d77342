"""One line about an unknown name, with the nearest known ones."""

import difflib
from collections.abc import Iterable

NEAR = 0.7  # least similarity of a suggested environment; 1 for equal names
SHORTEST = 3  # shortest part of a name that counts as a match


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Names the unknown thing and the nearest known ones, or all of them."""
    return f"unknown {what} '{name}'; {hint(name, known)}"


def hint(name: str, known: Iterable[str]) -> str:
    """`did you mean ...?` or `there are ...`; case does not matter."""
    folded = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.4)
    return _answer([folded[k] for k in near], folded.values())


def unknown_environment(
    what: str, name: str, known: Iterable[str], others: Iterable[str] = ()
) -> str:
    """The same for names such as CartPole-v1 and Breakout-MinAtar; `others` are not listed.

    The part after the last dash is not compared: -v1 and -bsuite make any two names similar.
    """
    known = list(known)
    return f"unknown {what} '{name}'; {_answer(near(name, [*known, *others]), known)}"


def near(name: str, known: Iterable[str]) -> list[str]:
    """The three nearest names of environments, or fewer if they are not near."""
    folded, stem = name.lower(), _stem(name)

    def likeness(other: str) -> float:
        theirs = _stem(other)
        part = len(stem) >= SHORTEST and (stem in theirs or theirs in folded)
        return max(difflib.SequenceMatcher(None, stem, theirs).ratio(), NEAR * part)

    return [k for k in sorted(known, key=likeness, reverse=True) if likeness(k) >= NEAR][:3]


def _stem(name: str) -> str:
    return (name.rpartition("-")[0] or name).lower()


def _answer(near: list[str], known: Iterable[str]) -> str:
    if near:
        return f"did you mean {', '.join(near)}?"
    return f"there are {', '.join(known) or 'none'}"
