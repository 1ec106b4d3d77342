"""README.md and docs/: links lead somewhere, every page can be reached, two commands install.

In algorithm files, every listed implementation detail is marked where it happens.
"""

import re
import tomllib
from pathlib import Path

import pytest

import algorithms
from tests.benchmarks import pictures, report
from tests.seconds import ALGORITHMS
from website import reading

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ROOT_PAGES = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")]
PAGES = [*ROOT_PAGES, ROOT / "algorithms" / "README.md", *sorted(DOCS.glob("*.md"))]
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def text(page):
    """The text of a page without blocks of code."""
    return FENCED.sub("", page.read_text())


def links(page):
    """(path, heading or "") of a page's links and pictures, without other sites."""
    targets = re.findall(r"\]\(([^()\s]+)\)", text(page))
    return [t.partition("#")[::2] for t in targets if not t.startswith(("https://", "http://"))]


def file_of(page, path):
    return (page.parent / path).resolve() if path else page


def anchors(page):
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", text(page), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page):
    for path, heading in links(page):
        target = file_of(page, path)
        assert target.exists(), f"{path} does not exist"
        assert target.is_relative_to(ROOT), f"{path} is outside"
        assert not heading or heading in anchors(target), f"{path} has no heading #{heading}"


def test_every_page_and_picture_can_be_reached_from_the_readme():
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        if (page := todo.pop()) not in reached:
            reached.add(page)
            if page.suffix == ".md":
                todo += [file_of(page, path) for path, _ in links(page)]
    assert {file for file in DOCS.iterdir() if file.is_file()} <= reached
    assert set(ROOT_PAGES) <= reached


def test_the_readme_has_the_two_commands_that_ci_runs():
    """.ci/run finds them: lines that begin with four spaces, install and start Python."""
    pattern = re.compile(r"^    (pip install .* && python .*)", re.M)
    commands = pattern.findall((ROOT / "README.md").read_text())
    assert len(commands) == 2
    assert commands[0].startswith("pip install -r requirements.txt && python algorithms/ppo.py ")
    assert commands[1] == 'pip install -e ".[test]" && python -m pytest tests'
    of_sed = pattern.pattern.replace("(", "\\(").replace(")", "\\)")
    assert f"sed -n 's/{of_sed}/" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize("page", [*ROOT_PAGES, *sorted(DOCS.glob("*.md"))], ids=lambda p: p.stem)
def test_lines_have_at_most_100_characters(page):
    """Rows of tables cannot be broken, and blocks of code show the output of commands."""
    lines = [line for line in text(page).splitlines() if not line.startswith("|")]
    assert not [line for line in lines if len(line) > 100]


def test_the_readme_shows_speeds_that_are_kept():
    rows = re.findall(r"^\| .+ \| ([\d.]+k) \| ([\d.]+k) \| (.+) \|$", text(ROOT_PAGES[0]), re.M)
    columns = ("this kit, steps/s", "rejax, steps/s", "times faster")
    kept = {tuple(row[name] for name in columns) for row in report.read("speed-speed")}
    assert rows and set(rows) <= kept


def test_the_citation_has_the_version_of_the_package():
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.+)$", citation, re.M) == [algorithms.__version__]
    assert re.findall(r"^license: (.+)$", citation, re.M) == [package["license"]]


def test_tables_are_those_of_the_scores_that_are_kept():
    for page in report.PAGES:
        text = page.read_text()
        assert report.page(text) == text, "python tests/benchmarks/learning.py --write"


def test_pictures_show_the_scores_that_are_kept():
    shown = {row["picture"]: row["sha256"] for row in report.read("pictures")}
    found = {name: pictures.digest(name) for name in pictures.PICTURES}
    assert shown == found, "python tests/benchmarks/learning.py --write"
    assert all((DOCS / f"{name}.png").exists() for name in shown if pictures.panels(name))


# --- details of algorithms --------------------------------------------------------------------

FILES = [ROOT / "algorithms" / f"{name}.py" for name in sorted(ALGORITHMS)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_details_are_marked_where_they_happen(file):
    details = reading.listed(file.read_text())
    assert details and len(details) == len(set(details)), "numbered, each number once"
    assert set(reading.marked(file.read_text())) == set(details)


def test_details_are_found_in_lists_and_comments():
    """They are not found in code or in the middle of a sentence."""
    text = '''"""A.

  1 One: 4 of it.
 12 Twelve.
    3 is a continuation.
core: 1 a, 1e-4; 2-3 b, 0.5 (c); 7 d. continuous: 4 e.
"""
x = "# detail 9"  # why: details 1, 4-6 and 12
y = 1  # core 5
'''
    lines = [("detail", 1), ("detail", 12)]
    items = [("core", number) for number in (1, 2, 3, 7)] + [("continuous", 4)]
    assert reading.listed(text) == lines + items
    numbered = {("detail", number): [8] for number in (1, 4, 5, 6, 12)}
    assert reading.marked(text) == numbered | {("core", 5): [9]}
