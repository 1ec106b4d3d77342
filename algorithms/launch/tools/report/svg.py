"""Scales, axes and marks of a picture, as text."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

WIDTH, HEIGHT = 400, 270  # of a picture; fonts are of 12 pixels there
STEPS = 9  # colours from the worst to the best score, s0 to s8 of page.css
PAD = 0.04  # of the axis, free on either side
TAIL = 0.05  # of the scores, or one of them, may lie below the axis
MOST_MARKS = 6  # listed values that are marked one by one


class Scale(NamedTuple):
    """Numbers, or the places of names, along an axis."""

    low: float
    high: float
    is_log: bool = False
    names: tuple[str, ...] = ()  # of categories
    marks: tuple[float, ...] = ()  # values to mark if they are few
    whole: bool = False  # whole numbers only

    def at(self, values: Any) -> np.ndarray:
        """Places between 0 and 1."""
        values = np.asarray(values, np.float64)
        low, high = self.low, self.high
        if self.names:
            return (values + 0.5) / len(self.names)
        if self.is_log:
            values, low, high = np.log(values), np.log(low), np.log(high)
        if high <= low:
            return np.full(values.shape, 0.5)
        return PAD + (1 - 2 * PAD) * np.clip((values - low) / (high - low), 0, 1)

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Places and labels."""
        if self.names:
            every = -(-len(self.names) // (2 * most))
            room = max(4, 56 * every // len(self.names))
            return [(i, shortened(self.names[i], room)) for i in range(0, len(self.names), every)]
        if 0 < len(self.marks) <= MOST_MARKS and self._apart(self.marks):
            return [(x, number(x)) for x in self.marks]
        found = _decades(self.low, self.high) if self.is_log else _round(self.low, self.high, most)
        if self.whole:
            found = [x for x in found if x == int(x)]
        return [(x, number(x)) for x in found]

    def _apart(self, marks: Sequence[float]) -> bool:
        """Whether there is room for a label at each."""
        return len(marks) < 2 or bool(np.diff(self.at(marks)).min() > 0.11)


def _round(low: float, high: float, most: int) -> list[float]:
    if high <= low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(step for step in (1, 2, 2.5, 5, 10) if step * power >= rough * 0.999) * power
    first, last = np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9)
    return [float(f"{i * step:.10g}") for i in np.arange(first, last + 1)]


def _decades(low: float, high: float) -> list[float]:
    exponents = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 6, 8)):
        found = [float(f"{m}e{e}") for e in exponents for m in steps]
        found = [x for x in found if low * 0.999 <= x <= high * 1.001]
        if len(found) >= 3:
            return found[:: -(-len(found) // 6)]
    return _round(low, high, 4)


def number(value: float, digits: int = 4) -> str:
    """A number for people: 500, 0.001, 3e-5, 2.5M, 1e30."""
    value = float(value) + 0.0  # no -0
    if not np.isfinite(value):
        return "none" if np.isnan(value) else str(value)
    if abs(value) >= 1e13:
        return _with_exponent(value, digits)
    for least, size, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= least:
            return _fixed(value / size, digits) + letter
    if value == 0 or abs(value) >= 1e-3:
        return _fixed(value, digits)
    return _with_exponent(value, digits)


def _with_exponent(value: float, digits: int) -> str:
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(exponent)}"


def _fixed(value: float, digits: int) -> str:
    whole = int(np.floor(np.log10(abs(value)))) + 1 if value else 1
    text = f"{value:.{max(0, digits - whole)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: float) -> str:
    return "less than 0.1 %" if 0 < share < 0.001 else f"{number(100 * share, 2)} %"


def shortened(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


class Frame(NamedTuple):
    """The field of a picture, in its pixels."""

    x: Scale
    y: Scale
    width: int = WIDTH
    height: int = HEIGHT
    left: int = 60
    right: int = 12
    top: int = 10
    bottom: int = 42

    def across(self, values: Any) -> np.ndarray:
        return self.left + self.x.at(values) * (self.width - self.left - self.right)

    def down(self, values: Any) -> np.ndarray:
        return (
            self.height - self.bottom - self.y.at(values) * (self.height - self.top - self.bottom)
        )

    def axes(self, x_label: str, y_label: str) -> str:
        """Lines, ticks and labels."""
        right, floor = self.width - self.right, self.height - self.bottom
        parts = []
        for value, label in self.y.ticks(5):
            y = short(self.down(value))
            parts.append(f'<path class="grid" d="M{self.left} {y}H{right}"/>')
            parts.append(text(self.left - 6, y, label, "end", dy=4))
        for value, label in self.x.ticks(8 if self.width > WIDTH else 5):
            x = short(self.across(value))
            parts.append(f'<path class="grid" d="M{x} {self.top}V{floor}"/>')
            parts.append(text(x, floor + 16, label))
        parts.append(f'<path class="axis" d="M{self.left} {self.top}V{floor}H{right}"/>')
        middle = (self.left + right) / 2
        parts.append(text(short(middle), self.height - 6, x_label, kind="label"))
        y = short((self.top + floor) / 2)
        turned = f'transform="rotate(-90 11 {y})"'
        parts.append(text(11, y, y_label, kind="label", more=turned))
        return "".join(parts)

    def line(self, x: Any, y: Any) -> str:
        """The path through points."""
        pairs = zip(self.across(x), self.down(y))
        return "M" + "L".join(f"{short(a)} {short(b)}" for a, b in pairs)

    def band(self, x: Any, low: Any, high: Any) -> str:
        """The path around an area."""
        upper, lower = self.line(x, high), self.line(x[::-1], low[::-1])
        return f"{upper}L{lower[1:]}Z"


def scores_scale(values: np.ndarray) -> Scale:
    """The axis of scores. A tail of a few bad ones that is much longer than the rest is wide is cut
    off: their marks stand at the edge."""
    values = values[np.isfinite(values)]
    if not len(values):
        return Scale(0.0, 1.0)
    rest, low, high = np.quantile(values, TAIL, method="higher"), values.min(), values.max()
    if rest - low > 3 * (high - rest) > 0:
        low = rest - 0.1 * (high - rest)
    return Scale(*spread(np.array([low, high])))


def spread(values: np.ndarray) -> tuple[float, float]:
    """The ends of an axis, which are never the same."""
    low, high = float(values.min()), float(values.max())
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def colour_steps(scores: np.ndarray) -> np.ndarray:
    """(settings,) colours from 0 for the worst score to `STEPS` - 1 for the best; -1 for none."""
    scale = scores_scale(scores)
    part = np.clip((scores - scale.low) / (scale.high - scale.low), 0, 1)
    return np.where(np.isfinite(scores), np.nan_to_num(part) * (STEPS - 1) + 0.5, -1).astype(int)


def colour_bar(scores: np.ndarray) -> str:
    """What the colours mean, as HTML below a picture."""
    scale = scores_scale(scores)
    cells = "".join(f'<i class="s{step}"></i>' for step in range(STEPS))
    cut = "≤ " if np.nanmin(scores) < scale.low else ""
    return f'<p class="bar">{cut}{number(scale.low)} {cells} {number(scale.high)}</p>'


def picture(parts: Iterable[str], says: str, width: int = WIDTH, height: int = HEIGHT) -> str:
    """The picture; `says` is what a screen reader reads."""
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(says)}">'
        f"{''.join(parts)}</svg>"
    )


def text(
    x: Any, y: Any, words: str, anchor: str = "middle", *, dy: int = 0, kind: str = "", more=""
) -> str:
    attributes = [f'x="{x}" y="{y}"', f'text-anchor="{anchor}"']
    attributes += [f'dy="{dy}"'] * bool(dy) + [f'class="{kind}"'] * bool(kind) + [more]
    return f"<text {' '.join(filter(None, attributes))}>{escape(words)}</text>"


def dot(x: float, y: float, kind: str, setting: int, trial: int | None = None, r: float = 3) -> str:
    seed = "" if trial is None else f' data-t="{trial}"'
    where = f'cx="{short(x)}" cy="{short(y)}" r="{r}"'
    return f'<circle class="{kind}" {where} data-s="{setting}"{seed}/>'


def cross(x: float, y: float, setting: int, trial: int) -> str:
    """A trial that broke."""
    path = f"M{short(x - 3)} {short(y - 3)}l6 6m0-6l-6 6"
    return f'<path class="broken" d="{path}" data-s="{setting}" data-t="{trial}"/>'


def short(value: Any) -> str:
    """A place in pixels, without needless digits."""
    return f"{float(value):.1f}".removesuffix(".0")


def figure(head: str, drawn: str, caption: str, kind: str = "") -> str:
    """A picture with its heading above and its sentence below."""
    return (
        f'<figure class="{kind}"><h3>{escape(head)}</h3>{drawn}'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )
