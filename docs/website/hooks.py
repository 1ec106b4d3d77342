"""What mkdocs calls: adds pages, and turns the repository's links into the site's.

mkdocs takes this file by its path, so it puts the folders of its imports on the path. Variables of
the environment: REPO_URL is the repository's address, and with COPIES=1 pages give the length of
each file's copy; making all copies takes a minute.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from mkdocs.structure.files import File, InclusionLevel  # noqa: E402

from algorithms.parts import info  # noqa: E402
from website import links, pages  # noqa: E402

INCLUDED = InclusionLevel.INCLUDED
log = logging.getLogger("mkdocs.hooks")


def on_config(config: Any) -> Any:
    """Headings get GitHub's anchors, the navigation a page for each algorithm, and the footer a
    link to the repository. mkdocs-material's own `repo_url` would ask GitHub for its stars."""
    forget()
    if url := os.environ.get("REPO_URL"):
        source = {"icon": "fontawesome/brands/git-alt", "link": url, "name": "Repository"}
        config.extra["social"] = [source]
    config.mdx_configs["toc"]["slugify"] = links.slug
    (own,) = (part["Algorithms"] for part in config.nav if "Algorithms" in part)
    if len(own) == 1:  # mkdocs serve keeps the config
        own += algorithm_pages()
    return config


def forget() -> None:
    """Forgets what was read, because files change between two builds of `mkdocs serve`."""
    for module in [one for name, one in sys.modules.items() if name.startswith("website.")]:
        for function in vars(module).values():
            getattr(function, "cache_clear", lambda: None)()


def algorithm_pages() -> list[dict[str, Any]]:
    """The part of the navigation for each family of algorithms."""
    found: dict[str, list[Any]] = {family: [] for family in info.FAMILIES}
    for name, about in links.ALGORITHMS.items():
        found[about["family"]].append({name: links.place(f"algorithms/{name}.py")})
    return [{family.capitalize(): pages} for family, pages in found.items() if pages]


def on_files(files: Any, config: Any) -> Any:
    """The pages of docs/ as they are on the site, those outside it, and those of the code."""
    for place, text in pages.all_pages().items():
        if known := files.get_file_from_path(place):
            files.remove(known)
        files.append(File.generated(config, place, content=text, inclusion=INCLUDED))
    for path in pages.copied():
        file = {"abs_src_path": str(ROOT / path), "inclusion": INCLUDED}
        files.append(File.generated(config, links.source(path), **file))
    return files


def on_page_content(html: str, page: Any, **_: Any) -> None:
    """Lines of code count as anchors, so that links to them are checked too."""
    page.present_anchor_ids |= set(re.findall(r'id="(L-\d+-\d+)"', html))


def on_nav(nav: Any, config: Any, files: Any) -> Any:
    """Links of the navigation may lead to headings, as "changing.md#a-loss"."""
    for link in every(nav.items):
        place, _, heading = link.url.partition("#")
        page = files.get_file_from_path(place)
        if page is None or heading not in map(links.slug, links.headings(page.content_string)):
            log.warning(f"mkdocs.yml: {link.url} in nav is no page, or has no such heading")
        else:
            link.url = f"{page.url}#{heading}"
    return nav


def every(items: Any) -> Iterator[Any]:
    """All links among items of the navigation."""
    for item in items:
        if item.is_link:
            yield item
        yield from every(item.children or ())
