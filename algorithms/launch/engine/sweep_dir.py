"""The files of a sweep.

sweep.json          what was asked for, and the chunks in their order
chunk_000/ ...      a run's directory each, with trials that train at once
results.csv         a row for each trial
retest.csv          a row for each trial of a retest
trials.csv          a row for each trial and point: what the chunks' metrics.csv have, in one table
sweep.png           returns against swept fields, and learning curves
report.html         the ranking, those pictures and more on one page that opens offline
wandb.json          ids of wandb's runs, with --track
best.json           the best setting, for --config; with several environments, best-NAME.json each
best/ ...           a run of it, with its last whole state, once the others' have gone (states.py)
.lock               held by the process that trains here (hosts.py)
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.launch.engine import distributions, grids, results, settings
from algorithms.launch.engine.distributions import Distribution
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.experiment import as_file_name
from algorithms.launch.engine.metrics import LAST_COLUMNS, as_csv
from algorithms.launch.engine.options import Options, init_to_json
from algorithms.launch.engine.run_dir import VERSION, RunDir
from algorithms.launch.engine.session import Chunk
from algorithms.launch.engine.settings import algorithm_name, plain


def describe_sweep(
    module: Any, config: Any, asked: grids.Asked, seeds: range, options: Options
) -> dict[str, Any]:
    """What sweep.json says before anything is known of chunks."""
    return {
        "version": VERSION,
        "algorithm": algorithm_name(module),
        "config": settings.config_to_json(config),
        "grid": {name: _grid_to_json(values) for name, values in asked.grid.items()},
        "samples": asked.samples,
        "sampler": asked.sampler,
        "seed": seeds.start,
        "num_seeds": len(seeds),
        "options": options.to_json(),
        **init_to_json(options),
    } | _more(asked)


ALWAYS = ("grid", "samples", "sampler")
HALVING = {"factor": "halving", "rungs": "rungs", "brackets": "brackets"}  # by sweep.json's names
LIMITS = ("max_parallel", "memory_limit")  # of chunks: of no matter for what comes of a sweep
# What sweep.json says only of sweeps that were asked for it, so that others' stay as they were.
OPTIONAL = tuple(n for n in grids.Asked._fields if n not in (*ALWAYS, *LIMITS, "rungs", "brackets"))


def _more(asked: grids.Asked) -> dict[str, Any]:
    """What few sweeps are asked for."""
    defaults = grids.Asked._field_defaults
    values = {name: x for name, x in asked._asdict().items() if x != defaults[name]}
    more = {name: values[name] for name in OPTIONAL if name in values}
    if asked.settings is not None:
        more["settings"] = settings.strict([dict(row) for row in asked.settings])
    if asked.halving:
        more["halving"] = {n: values[name] for n, name in HALVING.items() if name in values}
    if asked.halving or asked.retest:  # their later stages are cut as the first one was
        more |= {name: values[name] for name in LIMITS if name in values}
    return more


def asked_of(description: Mapping[str, Any]) -> grids.Asked:
    """What is left to do of a sweep.json, the inverse of `_more`; trials are there already."""
    halved = description.get("halving", {})
    values = {name: description[name] for name in (*OPTIONAL, *LIMITS) if name in description}
    values |= {name: halved.get(n) for n, name in HALVING.items()}
    return grids.Asked(**values)


def _grid_to_json(values: Any) -> Any:
    if isinstance(values, Distribution):
        return distributions.to_json(values)
    for value in values:
        if not isinstance(value, int | float | str | tuple | list | np.generic):
            raise UserError(f"grid: {value!r} cannot be saved: name it, or give save=False")
    return settings.strict(list(values))


def bests(
    sweep_dir: Path, ranked: Sequence[results.Ranked], several: bool, suffix: str = ""
) -> dict[str, dict[str, Any]]:
    """What best.json holds, by the name of the file; of several environments each has its own.

    Args:
      ranked: the settings, the best one of each environment first.
      suffix: of the names.
    """
    found = {}
    for environment, its_own in results.by_environment(ranked).items():
        name = f"best-{as_file_name(environment)}" if several else "best"
        found[f"{name}{suffix}.json"] = _best(sweep_dir, its_own[0])
    return found


def trials_csv(chunks: list[Chunk]) -> str:
    """One long table of a sweep: trial, settings, seed, point and metrics.

    Where groups have different metrics, cells without a value are empty.
    """
    rows: dict[tuple[int, int], dict[str, Any]] = {}  # by trial and point
    for chunk in chunks:
        if chunk.retest:
            continue
        table = chunk.run_dir.table() if chunk.run_dir else {}
        static = {k: plain(v) for k, v in chunk.static.items()}
        for i, number in enumerate(chunk.numbers):
            trial = {"trial": number, **static, **dict.fromkeys(chunk.trials.floats), "seed": 0}
            for point, lines in table.items():
                # Later rungs repeat the points of the first ones, without the time they took.
                rows.setdefault((number, point), trial | lines[i])
    lines = [rows[key] for key in sorted(rows)]
    names = dict.fromkeys(name for row in lines for name in row)
    head = sorted(names, key=lambda name: name in LAST_COLUMNS and 1 + LAST_COLUMNS.index(name))
    return as_csv([head, *([row.get(name, "") for name in head] for row in lines)])


def _best(sweep_dir: Path, setting: results.Ranked) -> dict[str, Any]:
    """The best setting as a run's config.json would have it."""
    first = setting.trials[0]
    run_dir = RunDir.open(sweep_dir / first.run)
    floats = settings.strict(run_dir.trials.setting(first.trial))
    seeds = [trial.seed for trial in setting.trials]
    config = run_dir.description["config"] | floats
    return run_dir.description | {"config": config, "seeds": seeds, "floats": {}}


def title_of(module: Any, configs: list[Any]) -> str:
    envs = sorted({settings.env_name(config) for config in configs})
    return f"{algorithm_name(module)} on {', '.join(envs)}"
