"""The Markdown of all pages of the site."""

import json
from collections.abc import Mapping
from pathlib import Path

from website import algorithm, api, links
from website.links import ROOT, place, source

# Pages with the text of a file are no answers of a search
SOURCE = """---
title: {name}
search: {{ exclude: true }}
hide: [navigation, toc]
---

# {name}

{body}
"""
LANGUAGES = {".py": "python", ".yml": "yaml"}


def all_pages() -> dict[str, str]:
    """{place: Markdown} of every page."""
    markdown = repository()
    pages = {place(path): links.on_site(text, path) for path, text in markdown.items()}
    pages |= api.pages()
    shown = [path for path in linked(markdown) if links.has_page(path)]
    pages |= {place(f"algorithms/{name}.py"): algorithm.page(name) for name in links.ALGORITHMS}
    return pages | {source(path): source_page(path) for path in shown}


def repository() -> dict[str, str]:
    """{path: Markdown} of the repository's own pages."""
    files = [ROOT / path for path in links.PAGES if path.endswith(".md")]
    files += sorted((ROOT / "docs").glob("*.md"))
    found = {file.relative_to(ROOT).as_posix(): file.read_text() for file in files}
    return found | {"docs/tour.ipynb": notebook(ROOT / "docs" / "tour.ipynb")}


def linked(markdown: Mapping[str, str]) -> list[str]:
    """The paths of the sources that pages link to, those of algorithms and of the API included."""
    found = {path for page, text in markdown.items() for path in links.targets(text, page)}
    found = {path for path in found if place(path) == source(path)}
    return sorted(found | {f"algorithms/{name}.py" for name in links.ALGORITHMS} | api.files())


def copied() -> list[str]:
    """The paths of linked files that have no page, such as JSON: they are on the site as is."""
    return [path for path in linked(repository()) if not links.has_page(path)]


def source_page(path: str) -> str:
    """A page with the text of a file, whose lines have the anchors #L-0-1, ..., or of a folder."""
    file = ROOT / path
    if file.is_dir():
        body = "\n".join(f"- `{one.name}`" for one in sorted(file.iterdir()))
    else:
        body = f'```{LANGUAGES[file.suffix]} linenums="1"\n{file.read_text()}```'
    return SOURCE.format(name=path, body=body)


def notebook(file: Path) -> str:
    """A notebook with its outputs, as Markdown."""
    cells = json.loads(file.read_text())["cells"]
    return "\n\n".join(part for cell in cells for part in parts_of(cell))


def parts_of(cell: Mapping) -> list[str]:
    """The text of a cell and its outputs."""
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [text]
    return [f"```python\n{text}\n```", *map(output, cell["outputs"])]


def output(made: Mapping) -> str:
    """A picture, or text."""
    data = made.get("data", {})
    for kind in ("image/png", "image/gif"):
        if kind in data:
            image = "".join(data[kind]).replace("\n", "")
            return f"![output](data:{kind};base64,{image})"
    text = "".join(data.get("text/plain", made.get("text", [])))
    return f"```text\n{text.rstrip()}\n```"
