"""Where the files of the repository are on the site, and links between them.

Links in Markdown are those of the repository, which GitHub follows: "../algorithms/ppo.py". On the
site such a link leads to the algorithm's page, and one to another source file to a page with it.
Paths here are of the repository, "docs/results.md"; places are of the site, "results.md".
"""

import os.path
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from algorithms.parts import info
from website.text import nested

ROOT = Path(__file__).parents[2]
ALGORITHMS = info.of_folder(ROOT / "algorithms")
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "algorithms/README.md": "algorithms/index.md",
    "docs/tour.ipynb": "tour.md",
} | {f"algorithms/{name}.py": f"algorithms/{name}.md" for name in ALGORITHMS}
OF_DOCS = (".md", ".png", ".gif", ".csv")  # files of docs/ that are on the site as they are
SHOWN = (".py", ".yml")  # files that have a page with their text; others are copied
FENCED = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^()\s]+)(?=\))")


def place(path: str) -> str:
    """Where a file or a folder is on the site."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/") and path.endswith(OF_DOCS):
        return path.removeprefix("docs/")
    return source(path)


def source(path: str) -> str:
    """Where the text of a file is, or the list of a folder's files."""
    return f"source/{path}" + ".md" * has_page(path)


def has_page(path: str) -> bool:
    """Whether a source has a page of its own: text to read, or a folder."""
    return path.endswith(SHOWN) or (ROOT / path).is_dir()


def slug(heading: str, separator: str = "-") -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def headings(markdown: str) -> list[str]:
    return re.findall(r"^#+ (.+)$", "".join(FENCED.split(markdown)[::2]), re.MULTILINE)


def outside_code(change: Callable[[str], str], markdown: str) -> str:
    """Markdown with a change of all but its fenced blocks of code."""
    parts = FENCED.split(markdown)
    return "".join(part if i % 2 else change(part) for i, part in enumerate(parts))


def targets(markdown: str, path: str) -> list[str]:
    """The paths of the files that a Markdown file links to."""
    text = "".join(FENCED.split(markdown)[::2])
    return [_target(path, link)[0] for link in LINK.findall(text)]


def on_site(markdown: str, path: str, here: str = "") -> str:
    """The text of a Markdown file with the links and the lists of the site.

    Args:
      markdown, path: the text of a file, or a part of it, and the file's path.
      here: the place where the text will be; by default that of the file.
    """
    here = here or place(path)

    def link(match: re.Match) -> str:
        target, anchor = _target(path, match[1])
        return between(here, place(target)) + anchor if place(target) != here else anchor

    return nested(outside_code(lambda text: LINK.sub(link, text), markdown))


def between(here: str, there: str) -> str:
    """The link from one place to another."""
    return os.path.relpath(there, PurePosixPath(here).parent)


def _target(path: str, link: str) -> tuple[str, str]:
    """The path of a link's file, and the anchor with its #."""
    file, mark, anchor = link.partition("#")
    target = os.path.normpath(PurePosixPath(path).parent / file) if file else path
    return target, mark + anchor
