"""Warnings: one sentence each, once in a process."""

import warnings

_told: set[str] = set()


class KitWarning(UserWarning):
    """Something that trains, and probably not as meant."""


def warn(sentence: str) -> None:
    """Warns with a sentence that was not told before in this process."""
    if sentence not in _told:
        _told.add(sentence)
        warnings.warn(sentence, KitWarning, stacklevel=2)


def was_told(beginning: str) -> bool:
    """Whether this process has warned with a sentence that begins so."""
    return any(sentence.startswith(beginning) for sentence in _told)
