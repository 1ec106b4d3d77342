"""Tables of the documentation, made from docs/results/*.csv and each algorithm's INFO."""

import csv
import re
import tomllib
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from algorithms import ppo
from algorithms.launch.engine import devices, intervals, versions
from algorithms.launch.engine.metrics import as_csv
from algorithms.launch.tools import catalogue
from tests.benchmarks.cells import BEST, CELLS, MEMORIES_COMPARED, PEERS, Cell

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "results"
WITH_TABLES = ("results", "speed", "gpu", "sweeps", "several-agents", "memory", "levels")
WITH_TABLES += ("coming-from", "world-models")
PAGES = tuple(ROOT / "docs" / f"{name}.md" for name in WITH_TABLES)
PAGES += (ROOT / "algorithms" / "README.md", ROOT / "README.md")
REGION = re.compile(r"(<!-- table ([\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
COLUMNS = ("algorithm", "cell", "steps", "seeds", "mean (95 %)", "IQM", "worst", "solved at")
COLUMNS += ("solved", "collapsed", "in training")
TEAMS = ("environment", "algorithm", "steps", "seeds", "return of an agent (95 %)", "worst")
TEAMS += ("metric (95 %)", "in training", "cell")
WORLDS = ("environment", "algorithm", "steps", "seeds", "last point (95 %)", "last third (95 %)")
WORLDS += ("worst", "solved at", "solved at some point", "in training", "cell")
FEW = ("algorithm", "cell", "steps", "seeds", "solved at", "steps until solved, median")
FEW += ("of the slowest seed", "last point (95 %)", "worst", "solved")
LEVELS = ("task", "policy", "parameters", "trained on", "mean", "worst tenth", "worst cell")
LEVELS += ("worst tenth less that of the default (95 %)",)
TASKS = ("algorithm", "task", "steps", "seeds", "best", "solved at", *MEMORIES_COMPARED)
STATISTICS = ("mean", "worst_tenth", "worst_cell")
LEARNED = ("job", "part", "device", "steps", "seeds", "IQM (95 %)", "mean", "in training", "took")
LEARNED += ("of",)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)  # of a run, the points in the table of presets
SIDES = {"script": "the script", "preset": "the preset", "pytorch": "with layers as PyTorch's"}
PRESETS = ("preset", "steps", "side", "seeds", *(f"{share:.0%}" for share in SHARES))
PRESETS += ("largest difference",)
MEASURED = ("job", "part", "device")  # what names the rows of accelerator.py
CASE = ("environment", "policy", "parameters", "training")  # of levels
BLOCK = 10_000  # seeds of a published run
EARLIER = 100_000  # steps of the first of two points in the table of dm_control
LATE = 0.4  # share of a run after which a point below the bar is a dip
Rows = list[dict[str, str]]


# --- what is kept -----------------------------------------------------------------------------


def read(name: str, folder: Path = FOLDER) -> Rows:
    """The kept rows of an algorithm, one for each cell and seed; or of "tuning"."""
    file = folder / f"{name}.csv"
    return list(csv.DictReader(file.open())) if file.exists() else []


def kept(cell: Cell, folder: Path = FOLDER) -> Rows:
    """The kept rows of a cell; none if it has not been published."""
    return [row for row in read(cell.algorithm, folder) if row["cell"] == cell.name]


def keep(
    name: str,
    rows: Sequence[dict[str, Any]],
    folder: Path = FOLDER,
    by: tuple[str, ...] = ("cell",),
) -> None:
    """Replaces the rows with the same values of `by`: by default those of a cell."""
    key = lambda row: tuple(row[column] for column in by)
    others = [row for row in read(name, folder) if key(row) != key(rows[0])]
    _write(name, [*others, *rows], folder)


def keep_look(topic: str, cell: Cell, rows: Rows, folder: Path = FOLDER) -> None:
    """Puts a tuning run's row in tuning.csv in place of the same run's, or at the end."""
    rows = [{k: str(v) for k, v in row.items()} for row in rows]
    found = summary(rows, cell.solved)
    line = {"topic": topic, "algorithm": cell.algorithm, "settings": cell.words}
    line |= {name: rows[0][name] for name in ("seed", "timestep")}
    line |= {name: found[name] for name in ("seeds", "mean", "worst")}
    line |= {"bar": cell.solved, **{name: found[name] for name in ("solved", "collapsed")}}
    line |= {name: found[name] for name in ("dips", "late_points", "training")}
    line |= {name: rows[0][name] for name in ("git_commit", "jax", "device")}
    key = lambda row: [str(row[name]) for name in ("topic", "algorithm", "settings", "seed")]
    others = read("tuning", folder)
    places = [i for i, row in enumerate(others) if key(row) == key(line)]
    place = places[0] if places else len(others)
    _write("tuning", [*others[:place], line, *others[place + len(places) :]], folder)


def keep_speeds(
    kind: str, columns: Sequence[str], rows: Sequence[Any], folder: Path = FOLDER
) -> None:
    """Puts cases of a kind of benchmark of speed into its table."""
    keep_table(f"speed-{kind}", columns, rows, folder)


def keep_table(
    name: str, columns: Sequence[str], rows: Sequence[Any], folder: Path = FOLDER
) -> None:
    """Puts rows in their place or at the end of a table, with the measured commit and versions.

    Args:
      columns, rows: text; the first column names the row.
    """
    made = versions.versions(ppo, devices.arrange(1))
    stamp = {"of": f"{made['git_commit'][:7]}, jax {made['jax']}"}
    new = {row[0]: dict(zip(columns, row)) | stamp for row in rows}
    known = {row[columns[0]]: row for row in read(name, folder)}
    _write(name, list((known | new).values()), folder)


def keep_levels(rows: Rows, folder: Path = FOLDER) -> None:
    """Replaces the rows of a case of tests/benchmarks/levels.py."""
    keep("levels", rows, folder, by=CASE)


def case_of(row: dict[str, str]) -> tuple[str, ...]:
    """What the rows of a case of levels have in common."""
    return tuple(row[name] for name in CASE)


def _write(name: str, rows: Sequence[dict[str, Any]], folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    names = list(dict.fromkeys(name for row in rows for name in row))  # some cells have a metric
    table = [names, *([row.get(name, "") for name in names] for row in rows)]
    (folder / f"{name}.csv").write_text(as_csv(table))


# --- what it comes to -------------------------------------------------------------------------


def curves(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Steps (points,) and returns (seeds, points) of a cell; the first point is before training."""
    returns = np.array([[float(value) for value in row["curve"].split()] for row in rows])
    return np.linspace(0, int(rows[0]["timestep"]), returns.shape[1]), returns


def summary(rows: Rows, bar: float) -> dict[str, Any]:
    """Statistics of a cell over its seeds.

    Args:
      rows: one for each seed.
      bar: the least return that counts as solved, or NaN.
    """
    column = lambda name: np.array([float(row[name]) for row in rows])
    scores, training = column("score"), column("training")
    steps, returns = curves(rows)
    solved = scores >= bar
    late = returns[:, steps > LATE * steps[-1]]
    return {
        "seeds": len(rows),
        "mean": scores.mean(),
        "interval": intervals.bootstrap_interval(scores, lambda drawn: drawn.mean(-1)),
        "iqm": intervals.interquartile_mean(scores),
        "worst": scores.min(),
        "solved": int(solved.sum()),
        "collapsed": int((~solved & (returns[:, :-1] >= bar).any(1)).sum()),
        "dips": int((late < bar).sum()),
        "late_points": late.size,
        "training": np.nanmean(training) if not np.isnan(training).all() else np.nan,
    }


# --- tables -----------------------------------------------------------------------------------


def block_of(rows: Rows) -> int:
    """The number of a cell's published run, by its seeds: the first takes seeds from BLOCK on."""
    return min((int(row["seed"]) for row in rows), default=BLOCK) // BLOCK


def line(cell: Cell, rows: Rows) -> list[str]:
    """A published cell's line of its table."""
    found, block = summary(rows, cell.solved), block_of(rows)
    low, high = found["interval"]
    has_bar, count = not np.isnan(cell.solved), f"of {len(rows)}"
    return [
        cell.algorithm + (f" ({cell.what})" if cell.what else ""),
        cell.name + (f" (run {block})" if block > 1 else ""),
        f"{int(rows[0]['timestep']):,}",
        str(len(rows)),
        f"{number(found['mean'])} ({number(low)} to {number(high)})",
        number(found["iqm"]),
        number(found["worst"]),
        f"{cell.solved:g}" if has_bar else "",
        f"{found['solved']} {count}" if has_bar else "",
        f"{found['collapsed']} {count}" if has_bar else "",
        "-" if np.isnan(found["training"]) else number(found["training"]),
    ]


def team_line(cell: Cell, rows: Rows) -> list[str]:
    """Its line in the table of teams, with the kept metric."""
    found, block = summary(rows, cell.solved), block_of(rows)
    labels = [cell.what] * bool(cell.what) + [f"run {block}"] * (block > 1)
    several = len(rows) > 1  # one seed has no interval
    interval_of = lambda low, high: f" ({number(low)} to {number(high)})" if several else ""
    show = lambda mean, *interval: number(mean) + interval_of(*interval)
    interval = lambda x: intervals.bootstrap_interval(x, lambda drawn: drawn.mean(-1))
    column = lambda name: np.array([float(row.get(name) or "nan") for row in rows])
    values, training = column(cell.metric), np.mean(column(f"{cell.metric} in training"))
    metric = "-" if np.isnan(values).any() else show(values.mean(), *interval(values))
    return [
        environment(cell),
        cell.algorithm + (f" ({', '.join(labels)})" if labels else ""),
        f"{int(rows[0]['timestep']):,}",
        str(len(rows)),
        show(found["mean"], *found["interval"]),
        number(found["worst"]),
        metric if metric == "-" else f"{cell.metric} {metric}",
        "-" if np.isnan(training) else number(training),
        f"`{cell.key}`",
    ]


def world_line(cell: Cell, rows: Rows) -> list[str]:
    """Its line in the table of world models. Runs are short, and rarely end where they are best:
    the mean of the last third of points stands beside the last one."""
    found, returns = summary(rows, cell.solved), curves(rows)[1]
    thirds = returns[:, -(len(returns[0]) // 3) :].mean(1)
    interval = intervals.bootstrap_interval(thirds, lambda drawn: drawn.mean(-1))
    show = lambda mean, low, high: f"{number(mean)} ({number(low)} to {number(high)})"
    block, solved = block_of(rows), (returns >= cell.solved).any(1).sum()
    return [
        environment(cell),
        cell.algorithm + (f" (run {block})" if block > 1 else ""),
        f"{int(rows[0]['timestep']):,}",
        str(len(rows)),
        show(found["mean"], *found["interval"]),
        show(thirds.mean(), *interval),
        number(found["worst"]),
        f"{cell.solved:g}",
        f"{solved} of {len(rows)}",
        "-" if np.isnan(found["training"]) else number(found["training"]),
        f"`{cell.key}`",
    ]


def few_line(cell: Cell, rows: Rows) -> list[str]:
    """Its line in the table of few steps: the first point at which a seed is solved."""
    found, (steps, returns) = summary(rows, cell.solved), curves(rows)
    solved = returns >= cell.solved
    until = np.where(solved.any(1), steps[solved.argmax(1)], np.inf)
    show = lambda x: f"{x:,.0f}" if np.isfinite(x) else "-"
    low, high = found["interval"]
    block = block_of(rows)
    return [
        cell.algorithm + (f" ({cell.what})" if cell.what else ""),
        cell.name + (f" (run {block})" if block > 1 else ""),
        f"{int(rows[0]['timestep']):,}",
        str(len(rows)),
        f"{cell.solved:g}",
        show(np.median(until)),
        show(until.max()),
        f"{number(found['mean'])} ({number(low)} to {number(high)})",
        number(found["worst"]),
        f"{found['solved']} of {len(rows)}",
    ]


def task_lines(cells: Sequence[Cell], folder: Path) -> list[list[str]]:
    """A line for each task that needs a memory: mean returns and solved seeds of all memories.

    The last line of an algorithm is the mean over its tasks of what they are of the best return.
    """
    lines: list[list[str]] = []
    for algorithm in dict.fromkeys(map(file_of, cells)):
        found = [(cell, kept(cell, folder)) for cell in cells if cell.algorithm == algorithm]
        lines += lines_of_tasks([(cell, rows) for cell, rows in found if rows])
    return lines


def lines_of_tasks(found: Sequence[tuple[Cell, Rows]]) -> list[list[str]]:
    """Those of one algorithm's cells."""
    lines: dict[str, list[str]] = {}
    shares: dict[str, list[float]] = {memory: [] for memory in MEMORIES_COMPARED}
    for cell, rows in found:
        task, memory = cell.name.split(", ")
        bar, scores, best = cell.solved, summary(rows, cell.solved), BEST[task.split()[0]]
        facts = [f"{int(rows[0]['timestep']):,}", str(len(rows)), f"{best:g}"]
        facts += ["" if np.isnan(bar) else f"{bar:g}", *["-"] * len(MEMORIES_COMPARED)]
        line = lines.setdefault(task, [cell.algorithm, task, *facts])
        solved = "" if np.isnan(bar) else f" ({scores['solved']})"
        line[TASKS.index(memory)] = number(scores["mean"]) + solved
        shares[memory].append(scores["mean"] / best)
    if len(lines) > 1:
        whole = [number(np.mean(s)) if len(s) == len(lines) else "-" for s in shares.values()]
        head = [found[0][0].algorithm, "mean share of the best", "", "", "", ""]
        lines["mean"] = [*head, *whole]
    return list(lines.values())


def level_lines(rows: Rows) -> list[list[str]]:
    """A line for each case of levels. Differences are paired: both have the same seeds."""
    cases: dict[tuple[str, ...], Rows] = {}
    for row in rows:
        cases.setdefault(case_of(row), []).append(row)
    lines = []
    for case, found in cases.items():
        task, policy, parameters, training = case
        of = {name: np.array([float(row[name]) for row in found]) for name in STATISTICS}
        line = [task, policy, parameters, training, *map(with_error, of.values())]
        base = cases.get((task, policy, "hidden", "default"), [])
        if training == "default" or len(base) != len(found):
            lines.append([*line, ""])
            continue
        difference = of["worst_tenth"] - [float(row["worst_tenth"]) for row in base]
        low, high = intervals.bootstrap_interval(difference, lambda drawn: drawn.mean(-1))
        lines.append([*line, f"{difference.mean():.0f} ({low:.0f} to {high:.0f})"])
    return lines


def learned_lines(rows: Rows) -> list[list[str]]:
    """A line for each run of several seeds on an accelerator."""
    runs: dict[tuple[str, ...], Rows] = {}
    for row in rows:
        runs.setdefault(tuple(row[name] for name in MEASURED), []).append(row)
    lines = []
    for run, found in runs.items():
        scores = np.array([float(row["score"]) for row in found])
        training = np.array([float(row["training"]) for row in found])
        low, high = intervals.bootstrap_interval(scores, intervals.interquartile_mean)
        figures = [f"{int(found[0]['timestep']):,}", str(len(found))]
        figures += [
            f"{number(intervals.interquartile_mean(scores))} ({number(low)} to {number(high)})"
        ]
        figures += [number(scores.mean())]
        figures += ["-" if np.isnan(training).all() else number(np.nanmean(training))]
        lines.append([*run, *figures, found[0]["took"], found[0]["of"]])
    return lines


def suite_lines(cells: Sequence[Cell], physics: str, folder: Path) -> list[list[str]]:
    """Head, and a line for each task of dm_control: mean returns here, at the last point and
    EARLIER steps, and those that others published for this physics engine."""
    published = [row for row in read("dm_control-published", folder) if row["physics"] == physics]
    of_task: dict[str, dict[str, str]] = {row["task"]: {} for row in published}
    for cell in cells:
        if rows := kept(cell, folder):
            steps, returns = curves(rows)
            early, last = returns[:, np.abs(steps - EARLIER).argmin()].mean(), returns[:, -1].mean()
            of_task[cell.name.split("/")[1].split(",")[0]][cell.algorithm] = (
                f"{last:.0f} ({early:.0f})"
            )
    for row in published:
        spread = f" ± {row['std']}" if row["std"] else ""
        of_task[row["task"]][row["system"]] = f"{row['mean']}{spread}"
    columns = [*dict.fromkeys(map(file_of, cells))]
    columns += dict.fromkeys(row["system"] for row in published)
    lines = [[task, *(found.get(c, "-") for c in columns)] for task, found in of_task.items()]
    return [["task", *columns], ["---"] * (1 + len(columns)), *lines]


def preset_lines(rows: Rows) -> list[list[str]]:
    """A line for each side of a preset: mean training returns, and where they differ most from
    those of the script, in standard errors of the difference."""
    sides: dict[tuple[str, str], Rows] = {}
    for row in rows:
        sides.setdefault((row["preset"], row["side"]), []).append(row)
    lines = []
    for preset, side in sorted(sides, key=lambda key: (key[0], list(SIDES).index(key[1]))):
        found = sides[preset, side]
        returns, script = (np.array(curves(of)[1]) for of in (found, sides[preset, "script"]))
        means = returns.mean(0)
        shown = [f"{means[round(share * len(means)) - 1]:.0f}" for share in SHARES]
        variances = sum(x.var(0, ddof=1) / len(x) for x in (returns, script))
        largest = np.abs((means - script.mean(0)) / np.sqrt(variances)).max()
        facts = [preset, f"{int(found[0]['timestep']):,}", SIDES[side], str(len(found))]
        lines.append([*facts, *shown, "" if side == "script" else f"{largest:.1f}"])
    return lines


def with_error(values: np.ndarray) -> str:
    """Mean and standard error."""
    return f"{values.mean():.0f} ± {values.std(ddof=1) / len(values) ** 0.5:.0f}"


def environment(cell: Cell) -> str:
    """The name of a cell's environment, without flags."""
    return cell.name.partition(" ")[0].rstrip(",")


def file_of(cell: Cell) -> str:
    return cell.algorithm


def number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.1f}"


# A group for each environment; elsewhere, for each algorithm
STYLES = {"teams": (TEAMS, team_line, environment), "worlds": (WORLDS, world_line, environment)}
STYLES["few"] = FEW, few_line, file_of


def badges(project: dict[str, Any]) -> str:
    """Badges of the README, and the tour in Colab; none until pyproject.toml names a repository.

    Args:
      project: its table, in which [project.urls] has `Repository`, of GitHub, and may have
        `Documentation`.
    """
    urls = project.get("urls", {})
    if not (repository := urls.get("Repository", "").rstrip("/")):
        return ""
    shield = "https://img.shields.io/badge/"
    python = urllib.parse.quote(project["requires-python"])
    colab = repository.replace("https://github.com/", "https://colab.research.google.com/github/")
    shown = [
        ("CI", f"{repository}/actions/workflows/ci.yml/badge.svg", f"{repository}/actions"),
        ("licence", f"{shield}licence-{project['license']}-blue.svg", "LICENSE"),
        ("Python", f"{shield}python-{python}-blue.svg", "pyproject.toml"),
        ("documentation", f"{shield}docs-site-blue.svg", urls.get("Documentation")),
        ("the tour in Colab", f"{shield}tour-Colab-blue.svg", f"{colab}/blob/main/docs/tour.ipynb"),
    ]
    return "\n".join(f"[![{text}]({picture})]({to})" for text, picture, to in shown if to)


def table(name: str, folder: Path = FOLDER) -> str:
    """Markdown of a table: published cells, a speed, or all algorithms; or the badges."""
    if name == "badges":
        return badges(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    if name == "algorithms":
        head, *rows = catalogue.table()
        lines = [head, ["---"] * len(head), *rows]
    elif name == "gpu-learning":
        lines = [LEARNED, ["---"] * len(LEARNED), *learned_lines(read(name, folder))]
    elif name.startswith(("speed-", "gpu-", "launches")):
        rows = read(name, folder)
        heads = [list(row) for row in rows[:1]]
        lines = [*heads, *(["---"] * len(head) for head in heads), *(row.values() for row in rows)]
    elif name == "levels":
        lines = [LEVELS, ["---"] * len(LEVELS), *level_lines(read(name, folder))]
    elif name == "presets":
        lines = [PRESETS, ["---"] * len(PRESETS), *preset_lines(read(name, folder))]
    elif name.startswith("dm_control"):
        cells = [cell for cell in CELLS if name in cell.tables]
        lines = suite_lines(cells, "MJX" if cells else "MuJoCo", folder)
    elif name == "memory":
        cells = [cell for cell in CELLS if name in cell.tables]
        lines = [TASKS, ["---"] * len(TASKS), *task_lines(cells, folder)]
    else:
        columns, make, group = STYLES.get(name, (COLUMNS, line, file_of))
        groups = list(dict.fromkeys(group(cell) for cell in CELLS + PEERS))
        cells = [cell for cell in CELLS + PEERS if name in cell.tables]
        cells.sort(key=lambda cell: groups.index(group(cell)))
        found = [(cell, kept(cell, folder)) for cell in cells]
        lines = [columns, ["---"] * len(columns)]
        lines += [make(cell, rows) for cell, rows in found if rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def page(text: str, folder: Path = FOLDER) -> str:
    """A page with its tables made anew."""
    return REGION.sub(lambda m: f"{m[1]}\n{table(m[2], folder)}\n\n{m[3]}", text)
