"""One line for a name that nobody knows: the nearest ones that there are."""

import difflib
from collections.abc import Iterable

NEAR = 0.7  # likeness from which an environment is suggested, 1 for the same
SHORTEST = 3  # letters that say something when they are a part of another name


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Names what was asked for and the nearest things there are, or all of them."""
    return f"unknown {what} '{name}'; {hint(name, known)}"


def hint(name: str, known: Iterable[str]) -> str:
    """`did you mean ...?` or `there are ...`; small and capital letters are the same."""
    folded = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.4)
    return _answer([folded[k] for k in near], folded.values())


def unknown_environment(what: str, name: str, known: Iterable[str]) -> str:
    """The same for names such as CartPole-v1 and Breakout-MinAtar.

    They are compared without what follows the last dash: -v1 and -bsuite make any two names alike.
    """
    known = list(known)
    folded, stem = name.lower(), _stem(name)

    def likeness(other: str) -> float:
        theirs = _stem(other)
        part = len(stem) >= SHORTEST and (stem in theirs or theirs in folded)
        return max(difflib.SequenceMatcher(None, stem, theirs).ratio(), NEAR * part)

    near = [k for k in sorted(known, key=likeness, reverse=True) if likeness(k) >= NEAR]
    return f"unknown {what} '{name}'; {_answer(near[:3], known)}"


def _stem(name: str) -> str:
    return (name.rpartition("-")[0] or name).lower()


def _answer(near: list[str], known: Iterable[str]) -> str:
    if near:
        return f"did you mean {', '.join(near)}?"
    return f"there are {', '.join(known) or 'none'}"
