"""One line for a name that nobody knows: the nearest ones that there are."""

import difflib
from collections.abc import Iterable


def unknown(what: str, name: str, known: Iterable[str], cutoff: float = 0.4) -> str:
    """Names what was asked for and the nearest things there are, or all of them."""
    return f"unknown {what} '{name}'; {hint(name, known, cutoff)}"


def hint(name: str, known: Iterable[str], cutoff: float = 0.4) -> str:
    """`did you mean ...?` or `there are ...`; small and capital letters are the same."""
    folded = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=cutoff)
    if near:
        return f"did you mean {', '.join(folded[k] for k in near)}?"
    return f"there are {', '.join(folded.values()) or 'none'}"
