"""Failed writes during training: one warning at first, a summary at the end."""

import contextlib
from collections.abc import Callable, Iterator

from algorithms.launch.engine.errors import warn


class Losses:
    """Failures to write, by kind.

    Args:
      say: takes the text of a warning.
    """

    def __init__(self, say: Callable[[str], None] = warn):
        self.say = say
        self.failing: set[str] = set()
        self.points: dict[str, list[int]] = {}  # {kind: points that are lost}

    @contextlib.contextmanager
    def survive(
        self, kind: str, what: str, *errors: type[Exception], point: int | None = None
    ) -> Iterator[None]:
        """Turns errors into a warning, unless the last attempt of this kind has failed, too.

        Args:
          kind: what is written, "checkpoints" for example.
          what: the beginning of the warning.
          *errors: that are survived.
          point: what is lost, if it is more than a picture.
        """
        try:
            yield
        except errors as error:
            if kind not in self.failing:
                name = type(error).__name__
                self.say(f"{what}: {name}: {error}; later failures are summed up at the end")
            self.failing.add(kind)
            if point is not None:
                self.points.setdefault(kind, []).append(point)
        else:
            if kind in self.failing and point is not None:
                self.say(f"{self.in_words(kind)} were not saved, those of point {point} were")
            self.failing.discard(kind)

    def in_words(self, *kinds: str) -> str:
        """Kinds and their points, "checkpoints of points 3 to 7, 9"; empty if nothing is lost."""
        lost = [kind for kind in kinds or self.points if kind in self.points]
        return " and ".join(f"{kind} of {spans(self.points[kind])}" for kind in lost)


def spans(points: list[int]) -> str:
    """Points in a few words, "points 3 to 7, 9"."""
    pairs: list[list[int]] = []
    for point in points:
        if pairs and point == pairs[-1][1] + 1:
            pairs[-1][1] = point
        else:
            pairs.append([point, point])
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in pairs]
    return f"point{'s' * (len(points) > 1)} {', '.join(texts)}"
