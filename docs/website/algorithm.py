"""The page of an algorithm, made from its file, its presets and what was measured."""

import ast
import functools
import shlex

from algorithms.launch.tools import catalogue
from algorithms.presets import PRESETS
from website import curves, glossary, links, measured, reading
from website.reading import Block
from website.text import code, escaped, fenced, section, table


def page(name: str) -> str:
    """The Markdown of an algorithm's page."""
    text = reading.read(name)
    found = reading.blocks(ast.get_docstring(reading.tree(text), clean=False) or "")
    start = next(i for i, block in enumerate(found) if block.number) - 1  # their introduction
    parts = [
        f"---\ntitle: {name}\n---\n\n# {links.ALGORITHMS[name]['title']}",
        facts(name),
        *(prose(block) for block in found[:start] if block.kind != "code"),
        section("Commands", *(prose(block) for block in found if block.kind == "code")),
        section("Details", details(name, found[start:])),
        section("Formulas", formulas(name)),
        section("Settings", settings(name)),
        section("Presets", presets(name)),
        section("Metrics", metrics(name)),
        section("Results", results(name)),
        section("Speed and memory", *measured.speeds(name)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def facts(name: str) -> str:
    """What it takes, in the catalogue's words."""
    head, *rows = catalogued()
    (row,) = (row for row in rows if row[0] == f"[{name}.py]({name}.py)")
    about = links.ALGORITHMS[name]
    split = ("split over devices", "`--split-envs`" if about.get("split") else "no")
    file = ("file", to_source(name, f"algorithms/{name}.py"))
    lines = ("lines", measured.lines(name))
    return table(("", ""), [file, lines, *list(zip(head, row))[2:], split])


@functools.cache
def catalogued() -> list[list[str]]:
    """The catalogue's rows; it reads all files."""
    return catalogue.table()


def prose(block: Block) -> str:
    """A paragraph, a bullet or a block of code."""
    if block.kind == "code":
        is_shell = block.text.startswith(("python ", "pip "))
        return fenced(block.text, "bash" if is_shell else "python")
    return "- " * (block.kind == "bullet") + escaped(block.text)


def to_source(name: str, words: str, line: int | None = None) -> str:
    """A link from an algorithm's page to its file, or to a line of it."""
    here, there = links.place(f"algorithms/{name}.py"), links.source(f"algorithms/{name}.py")
    anchor = f"#L-0-{line}" if line else ""
    return f"[{words}]({links.between(here, there)}{anchor})"


def details(name: str, found: list[Block]) -> str:
    """The implementation details, with links to the lines that they are about."""
    lines = reading.marked(reading.read(name))
    parts, before = [], ""
    for block in found:
        if block.kind == "code":
            continue
        shown = detail(name, block, lines) if block.number else prose(block)
        is_item = bool(block.number) or block.kind == "bullet"
        parts.append(shown if is_item and before == block.kind else f"\n{shown}")
        before = block.kind
    return "\n".join(parts).strip()


def detail(name: str, block: Block, lines: dict[tuple[str, int], list[int]]) -> str:
    """An item of the list, such as "core 5: GAE"."""
    label = block.number if block.kind == "detail" else f"{block.kind} {block.number}"
    about = {line for n in reading.numbers(block.number) for line in lines[block.kind, n]}
    where = ", ".join(to_source(name, str(line), line) for line in sorted(about))
    return f"- **{label}** {escaped(block.text)} (line{'s' * (len(about) > 1)} {where})"


def presets(name: str) -> str:
    """The settings of each preset."""
    rows = []
    for preset, changes in PRESETS.get(name, {}).items():
        words = ", ".join(code(f"{field}={value!r}") for field, value in changes.items())
        rows.append((code(shlex.quote(preset)), words or "the defaults"))
    return table(("`--preset`", "settings"), rows)


def metrics(name: str) -> str:
    """The metrics that a run logs, in the words of docs/metrics.md."""
    here = links.place(f"algorithms/{name}.py")
    says = lambda metric: links.on_site(glossary.meanings()[metric], glossary.PAGE, here)
    rows = [(code(metric), says(metric)) for metric in glossary.logged(name)]
    return table(("metric", "meaning"), rows)


CURVES = """Curves are interquartile means over the seeds, bands the middle half of them, at most
six in a picture. Dashed ones are of other kits, a mark where only the last point is known, or what
others report. [Results]({results}) says how everything is measured."""


def results(name: str) -> str:
    """Curves and tables of what was published."""
    drawn = curves.pictures(name)
    here = links.place(f"algorithms/{name}.py")
    says = CURVES.format(results=links.between(here, links.place("docs/results.md")))
    figures = f'<div class="pictures">{"".join(drawn)}</div>'
    return "\n\n".join(
        [says, figures, *measured.returns(name)] if drawn else measured.returns(name)
    )


def formulas(name: str) -> str:
    """The functions whose docstrings are formulas."""
    found = reading.formulas(reading.read(name))
    rows = [(to_source(name, code(one.name), one.line), escaped(one.says)) for one in found]
    return table(("function", "formula"), rows)


def settings(name: str) -> str:
    """Every field of Config."""
    rows = [
        (
            code("--" + one.name.replace("_", "-")),
            escaped(one.help),
            code(shown(one.default)),
            code(one.interval) or escaped(one.type),
        )
        for one in reading.settings(name)
    ]
    return table(("flag", "what it is", "default", "range or type"), rows)


def shown(value: object) -> str:
    """A default as one writes it on the command line."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or '""'
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}".replace(",", "_") if isinstance(value, int) else str(value) or '""'
