"""The documentation site: links on it, and the pages that docs/website makes of the code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from algorithms.presets import PRESETS
from tests.seconds import ALGORITHMS
from website import algorithm, api, curves, links, measured, pages, reading, text

ROOT = Path(__file__).parents[1]


def test_links_of_the_repository_become_those_of_the_site():
    page = (
        "[a](../algorithms/ppo.py) [b](changing.md#a-loss) ![c](grid.png) [d](#here) [e](results)"
    )
    site = "[a](algorithms/ppo.md) [b](changing.md#a-loss) ![c](grid.png) [d](#here) "
    assert links.on_site(page, "docs/design.md") == f"{site}[e](source/docs/results.md)"
    readme = "[a](algorithms/ppo.py) [b](docs/design.md) [c](https://x.org/a.md) [d](envs/batch.py)"
    site = "[a](algorithms/ppo.md) [b](design.md) [c](https://x.org/a.md) "
    assert links.on_site(readme, "README.md") == f"{site}[d](source/envs/batch.py.md)"
    assert links.on_site("[a](../README.md)", "algorithms/README.md") == "[a](../index.md)"
    code = "```\n[a](../algorithms/ppo.py)\n```"
    assert links.on_site(code, "docs/design.md") == code


def test_anchors_are_those_of_github():
    assert links.slug('What "the same" means, A & B') == "what-the-same-means-a--b"


def test_lists_are_nested_by_four_spaces():
    github = "1. a\n   - b\n     c\n\n   d\n2. e\n\n       code\n\n- x\n  - y\n\n```\n- z\n  w\n```"
    site = "1. a\n    - b\n        c\n\n    d\n\n2. e\n\n        code\n\n- x\n    - y\n\n"
    assert text.nested(github) == f"{site}```\n- z\n  w\n```"


def test_plain_text_shows_its_stars_and_underscores():
    plain = "gamma**n max_a Q <y|s> `a_b | c`, https://x.org/a_b. A *segment* [0, 1]"
    shown = r"gamma\*\*n max\_a Q \<y\|s\> `a_b \| c`, <https://x.org/a_b>. A *segment* \[0, 1\]"
    assert text.escaped(plain) == shown


def test_the_navigation_leads_to_pages_and_headings():
    found = re.findall(r"^ +- (?:.+: )?(\S+\.md)#?(\S*)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    markdown = {links.place(path): text for path, text in pages.repository().items()} | api.pages()
    assert len(found) > 20 and {place for place, _ in found} <= set(markdown)
    for place, heading in found:
        headings = map(links.slug, links.headings(markdown.get(place, "")))
        assert not heading or heading in headings, f"{place} has no heading #{heading}"
    assert set(markdown) == {place for place, _ in found}, "every page is in nav"


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_a_page_has_what_its_file_says(name):
    page = algorithm.page(name)
    lines = reading.read(name).splitlines()
    items = re.findall(r"^- \*\*(?:\w+ )?([\d-]+)\*\* .+ \(lines? \[", page, re.MULTILINE)
    details = [number for _, number in reading.listed(reading.read(name))]
    assert details and [number for item in items for number in reading.numbers(item)] == details
    linked = re.findall(rf"\]\(\.\./source/algorithms/{name}\.py\.md#L-0-(\d+)\)", page)
    assert all(re.search(r"# .*\d|def ", lines[int(line) - 1]) for line in linked)
    settings = reading.settings(name)
    assert all(one.help and f"| `--{one.name.replace('_', '-')}` |" in page for one in settings)
    assert all(preset in page for preset in PRESETS[name])


def test_what_differs_from_the_paper_is_a_paragraph_of_its_own():
    assert "\n\nTwo things differ from the list. " in algorithm.page("ppo")
    assert "\n\nFour things differ from that code. " in algorithm.page("pqn")


def test_a_setting_is_shown_as_on_the_command_line():
    flags = {row.split(" | ")[0]: row for row in algorithm.settings("ppo_plr").splitlines()}
    assert flags["| `--hidden-sizes`"].split(" | ")[2:] == ["`64,64`", r"tuple\[int, ...\] |"]
    assert flags["| `--total-timesteps`"].split(" | ")[2] == "`500_000`"
    assert flags["| `--replay-share`"].split(" | ")[3] == "`[0, 1]; (0, 1] with robust=True` |"
    assert flags["| `--robust`"].split(" | ")[2] == "`false`"
    assert flags["| `--edit-share`"].split(" | ")[1].startswith("share of the others")


def test_formulas_are_the_docstrings_of_functions():
    found = {one.name: one.says for one in reading.formulas(reading.read("ppo"))}
    assert found["gae"].startswith("A_t = delta_t + gamma lambda (1 - done_t) A_{t+1}")
    assert not {"make_policy", "make_train", "check", "update", "collect"} & set(found)


def test_rows_of_other_kits_are_of_an_algorithm():
    labels = ("dqn (double, 3-step)", "rejax-dqn", "purejaxrl-ppo", "reppo-script", "jaxmarl-qmix")
    assert [measured.algorithm_of(label) for label in labels] == [
        "dqn",
        "dqn",
        "ppo",
        "reppo",
        "vdn",
    ]
    known = {measured.algorithm_of(row["algorithm"]) for rows in measured.tables() for row in rows}
    assert known <= ALGORITHMS


def test_tables_have_the_rows_of_the_documentation():
    """Rows of several tables stand in one; cells keep their numbers."""
    kept = (ROOT / "docs" / "results.md").read_text().splitlines()
    rows = {row for row in kept if row.startswith(("| sac |", "| sac (", "| brax-sac |"))}
    shown = "\n".join(measured.returns("sac")).splitlines()
    assert len(rows) > 5 and all(shown.count(row) == 1 for row in rows)
    assert "| Pendulum-v1 | sac |" in "\n".join(shown), "of docs/world-models.md"
    (twice,) = {row for row in kept if row.startswith("| dqn (double, 3-step) | CartPole-v1 (run")}
    assert kept.count(twice) == 2 and "\n".join(measured.returns("dqn")).count(twice) == 1
    says, cpu, *_ = measured.speeds("sac")
    assert "rejax" in says and {row.split(" | ")[0] for row in cpu.splitlines()[2:]} == {
        "| sac-1x1",
        "| sac-1x1-8seeds",
        "| sac-1024x1",
    }
    assert not measured.speeds("vdn")[0].endswith("rejax:")


def test_others_returns_are_drawn_in_runs_as_long_as_theirs():
    ppo = measured.reported()["ppo", "CartPole-v1"]
    assert (ppo.site, ppo.steps, ppo.value) == ("docs.cleanrl.dev", 500_000, 490.0)
    drawn = [one for one in curves.pictures("ppo") if "<figcaption>CartPole-v1<" in one]
    assert sum("docs.cleanrl.dev: 490 in training" in one for one in drawn) == 1 < len(drawn)


def test_a_curve_is_of_the_seeds_of_a_cell():
    rows = [{"curve": f"nan 0 {end}", "timestep": "100"} for end in (0, 4, 8, 12)]
    found = curves.curve("rejax-ppo", "CartPole-v1 --gamma 1", rows)
    assert (found.environment, found.label) == (
        "CartPole-v1",
        "rejax-ppo: CartPole-v1 --gamma 1, 4 seeds",
    )
    steps, middle, low, high = (x.tolist() for x in found[3:])
    assert (steps, middle, low, high) == ([50, 100], [0, 6], [0, 3], [0, 9])


def test_the_api_has_all_public_names_with_their_signatures_and_arguments():
    found = api.names("launch")
    assert {"run", "sweep", "pbt", "resume", "load", "export", "main", "compare.compare"} <= set(
        found
    )
    page = api.page("launch")
    assert all(f"## {name} {{" in page for name in found)
    assert "    num_seeds: int = 1,\n" in page and "| `seed, num_seeds` | which trials. |" in page
    assert "## make {" in api.page("envs") and "envs/registry.py" in api.files()
    buffer = api.entry("api/parts.md", "ReplayBuffer", api.names("parts")["ReplayBuffer"])
    assert (
        "    n_step: int = 1  # steps of a window" in buffer
        and "| `oldest(replay: Replay)` |" in buffer
    )
    assert not {"CELLS", "CONV_LAYERS"} & set(api.names("parts")), "values have no docstrings"


@pytest.mark.needs("material")
def test_the_site_is_built_without_warnings_and_shows_nothing_from_elsewhere(tmp_path):
    """Only links lead to other sites: scripts, styles, fonts and pictures are the site's own."""
    words = ["-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    urls = {"SITE_URL": "https://kit.example.org/docs/", "REPO_URL": "https://github.com/me/kit"}
    environment = os.environ | urls
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    built = [file.read_text() for file in tmp_path.rglob("*.html")]
    assert len(built) > len(ALGORITHMS)
    shown = re.compile(r"<(?:script|img|iframe)[^>]* src=\"?http|<link[^>]*stylesheet[^>]*http")
    assert not any(shown.search(page) or "url(http" in page for page in built)
    assert all('href="https://github.com/me/kit"' in page for page in built)
    assert not any('data-md-component="source"' in page for page in built), "it asks GitHub"
    index = (tmp_path / "search" / "search_index.json").read_text()
    assert '"algorithms/ppo/"' in index and '"source/' not in index
