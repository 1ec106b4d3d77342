"""Plain text as Markdown: docstrings are not written in it."""

import re
from collections.abc import Iterable, Sequence

LITERAL = re.compile(r"(`[^`]+`|https?://[^\s<>]*[\w/])")
SPECIAL = re.compile(r"[*_<>\[\]|~]")
MARKER = re.compile(r"(?:-|\d+\.) ")
EMPHASIS = re.compile(r"(?<![\w*])\\\*(\w[\w ]*\w)\\\*(?![\w*])")


def escaped(plain: str) -> str:
    """Text that shows its *, _ and the like, except in `code`, URLs and *emphasis*."""
    parts = LITERAL.split(plain)
    shown = [f"<{p}>" if p.startswith("http") else p.replace("|", "\\|") for p in parts[1::2]]
    parts[1::2] = shown
    parts[::2] = [EMPHASIS.sub(r"*\1*", SPECIAL.sub(r"\\\g<0>", part)) for part in parts[::2]]
    return "".join(parts)


def code(words: object) -> str:
    """Words as code in a line or a table."""
    return f"`{words}`".replace("|", "\\|") if str(words) else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown; "" without rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *lines]) * bool(lines)


def fenced(text: str, language: str = "") -> str:
    return f"```{language}\n{text}\n```"


def section(heading: str, *parts: str) -> str:
    """A section; "" if all parts are."""
    found = [part for part in parts if part]
    return "\n\n".join([f"## {heading}", *found]) if found else ""


def nested(markdown: str) -> str:
    """Markdown in which what belongs to an item of a list is indented by four spaces.

    Python-Markdown asks for that; on GitHub it is as far as the item's text, by two or three.
    """
    items: list[int] = []  # where the text begins, of the items around a line
    in_fence, apart, lines = False, False, []
    for line in markdown.split("\n"):
        words = line.lstrip()
        indent = len(line) - len(words)
        if words and not in_fence:
            items = [start for start in items if start <= indent]
        start = items[-1] if items else 0
        is_text = not in_fence and not words.startswith("```") and indent - start < 4
        marker = MARKER.match(words) if is_text else None
        if marker and apart and lines[-1]:
            lines.append("")  # an item of several paragraphs ends
        apart = (apart and not marker) or (not words and bool(items))
        lines.append(" " * (4 * len(items) + indent - start) + words if words else line)
        in_fence ^= words.startswith("```")
        if marker:
            items.append(indent + len(marker[0]))
    return "\n".join(lines)
