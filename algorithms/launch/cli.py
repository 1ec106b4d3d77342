"""The command line of an algorithm file: flags from its Config, and what to do with them."""

import argparse
import atexit
import dataclasses
import gc
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from algorithms import parts
from algorithms.launch import runner
from algorithms.launch.engine import (
    devices,
    errors,
    experiment,
    files,
    hosts,
    loading,
    outcomes,
    progress,
    reading,
    settings,
    versions,
)
from algorithms.launch.engine.errors import UserError, unknown
from algorithms.launch.engine.grids import Asked
from algorithms.launch.engine.interrupts import CODES, Terminated, heed_at_once, in_background
from algorithms.launch.engine.loop import Swept
from algorithms.launch.engine.options import (
    INIT,
    NAMES,
    check_algorithm,
    make_options,
    seeds_of,
    stored,
)
from algorithms.launch.engine.run_dir import read_description
from algorithms.launch.engine.session import Result
from algorithms.launch.engine.settings import algorithm_name
from algorithms.launch.flags import Flags, parse, single_out
from algorithms.presets import PRESETS

NOT_FINITE = 3  # an exit code, as those below
NOT_SAVED = 4


def main(module: Any, argv: list[str] | None = None) -> None:
    """The command line of an algorithm's module.

    Exit codes: 0; 2 for a user's mistake, with one line that names it; 3 for a run in which a trial
    is not finite, or a sweep in which no trial is; 4 if something could not be saved; 130 after
    Ctrl-C; 143 after SIGTERM; 141 if the reader of the output is gone.
    """
    heed_at_once()
    errors.write_anything(sys.stdout)
    errors.heed_warnings()
    atexit.register(gc.freeze)  # Python's last garbage collections took half a second
    try:
        with parts.usual_jax():
            code = dispatch(module, sys.argv[1:] if argv is None else argv)
        errors.let_go(sys.stdout, sys.stderr)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except OSError as error:
        code = errors.cut_short(error)
    except (KeyboardInterrupt, Terminated) as interrupt:
        said = getattr(interrupt, "__notes__", ["what was saved stays"])[-1]
        print(f"\naborted; {said}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        # Not sys.exit, which would wait for the program on the devices.
        os._exit(CODES["SIGTERM" if isinstance(interrupt, Terminated) else "SIGINT"])
    if code:
        sys.exit(code)


def check_kit(module: Any) -> None:
    """Refuses a file of another kit: under `python -P` a started file imports an installed one."""
    folder = Path(module.__file__).resolve().parent
    own = Path(__file__).resolve().parents[1]
    if folder != own and (folder / "launch" / "__init__.py").exists():
        raise UserError(
            f"{module.__file__} would run the code of another kit, {own}: start it without -P and "
            f"PYTHONSAFEPATH, or set PYTHONPATH={folder.parent}"
        )


def dispatch(module: Any, argv: list[str]) -> int:
    """Does what the flags say. Returns the exit code."""
    check_kit(module)
    base = defaults(module, argv)
    config, flags = parse(module, argv, *base)
    join_others(flags)
    for name in PATHS:
        if getattr(flags, name) == "":
            raise UserError(f"--{name.replace('_', '-')} is empty: give a path")
    asked = [command for command in TAKES if getattr(flags, command, None)]
    command = asked[0] if asked else "run"
    refuse_others(command, base, (config, flags))
    check_pbt(base[0], config, flags)
    if flags.evaluate:
        return evaluate(module, flags, flags.evaluate)
    if flags.render:
        return render(module, flags, flags.render)
    if flags.export:
        return export(module, flags, flags.export)
    if flags.copy:
        return copy(module, flags.copy, config.env)
    if command == "list":
        return show_all(module)
    if command == "version":
        print(versions.report())
        return 0
    config, grid = single_out(base[0], config)
    if flags.randomize is not None:
        config, grid = with_ranges(base[0], config, grid, flags.randomize)
    return train(module, config, grid, flags)


def join_others(flags: Flags) -> None:
    """Joins the other processes of a distributed run, before anything uses jax."""
    told = (flags.coordinator, flags.num_processes, flags.process_id)
    if flags.distributed:
        hosts.start(*told)
    elif told != (None, None, None):
        names = "--coordinator, --num-processes and --process-id"
        raise UserError(f"{names} go with --distributed, which is missing")


# --- flags -----------------------------------------------------------------------------------


def defaults(module: Any, argv: list[str]) -> tuple[Any, Flags]:
    """The values of flags that are not given: the settings of a preset, a file or a run."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    sources = ("preset", "config", "resume", "evaluate", "render", "export")
    for name in sources:
        early.add_argument(f"--{name}", nargs="?")
    given = {k: v for k, v in vars(early.parse_known_args(argv)[0]).items() if v is not None}
    if len(given) > 1:
        raise UserError(f"{' and '.join(f'--{name}' for name in given)}: use one of them")
    if not given:
        return module.Config(), Flags()
    source, value = given.popitem()
    if source == "preset":
        return preset(module, value), Flags()
    names_env = any(word.partition("=")[0] == "--env" for word in argv)
    return from_run(module, source, files.local(value), names_env)


def preset(module: Any, name: str) -> Any:
    """The algorithm's defaults with a preset's settings; "ppo:NAME" is a preset of ppo."""
    owner, colon, rest = name.partition(":")
    algorithm, name = (owner, rest) if colon else (algorithm_name(module), name)
    known = PRESETS.get(algorithm, {})
    if name not in known:
        raise unknown_preset(algorithm, name, of_kit=algorithm in PRESETS)
    values = {"env": name, **known[name]}
    fields = [field.name for field in dataclasses.fields(module.Config)]
    if lacks := [f"{field}={value!r}" for field, value in values.items() if field not in fields]:
        own = algorithm_name(module)
        raise UserError(f"--preset {algorithm}:{name} sets {lacks[0]}, which {own} lacks")
    return module.Config(**values)


def unknown_preset(algorithm: str, name: str, of_kit: bool) -> UserError:
    """The error for a preset that this algorithm does not have; others may."""
    others = [other for other, table in PRESETS.items() if name in table]
    if not others:
        return unknown(f"preset of {algorithm}", name, PRESETS.get(algorithm, {}))
    takes = "" if of_kit else f"; --preset {others[0]}:{name} takes that of {others[0]}"
    return UserError(f"{algorithm} has no preset '{name}'; these have: {', '.join(others)}{takes}")


def from_run(module: Any, source: str, path: Path, names_env: bool = False) -> tuple[Any, Flags]:
    """The settings of a run; for --config and --resume its seeds and options, too.

    Args:
      names_env: whether --env is given, in place of an environment object that no file can hold.
    """
    if experiment.is_sweep(path):
        if source == "config":
            best = sorted(file.name for file in path.glob("best*.json")) or ["best.json"]
            settings_are = "is its best setting" if len(best) == 1 else "are its best settings"
            raise UserError(f"--config {path} is a sweep: its {', '.join(best)} {settings_are}")
        described, seeds = (there := experiment.open(path)).description, there.seeds
    else:
        file = path / "config.json" if path.is_dir() or source != "config" else path
        described = read_description(file, edited=source == "config")
        seeds = described["seeds"]
        if "population" in described and source == "config":
            raise UserError(f"--config {path} is of populations: give --pbt and the ranges anew")
        if described["floats"] and source == "config":
            raise UserError(f"--config {path} has many settings: the sweep's best.json has one")
    check_algorithm(module, described["algorithm"], path)
    flags = Flags()
    if source in ("config", "resume"):
        known = stored(described) if source == "resume" else described["options"]
        options = make_options(known).to_json()
        flags = Flags(seed=seeds[0], num_seeds=len(seeds), **options)
        if source == "config" and (begins := described.get("init_from")):
            flags = dataclasses.replace(flags, **init_flags(begins))
    values = described["config"]
    if source == "config" and names_env and isinstance(values["env"], dict):
        values = values | {"env": module.Config().env}
    return settings.config_from_json(module.Config, values, path), flags


def init_flags(begins: dict[str, Any]) -> dict[str, Any]:
    """The flags that repeat the beginning in a config.json."""
    names = {"init_from": "run", "init_trial": "trial", "init_optimizer": "optimizer"}
    return {flag: begins[name] for flag, name in names.items()} | {
        "init_point": str(begins["point"])
    }


def chosen_before(flags: Flags) -> dict[str, Any]:
    """Where the trials of --config's run began, unless flags ask for another beginning.

    The source may have trained further since, and a retest's seeds begin at the trials of its
    sweep.
    """
    path = Path(flags.config or "")
    file = path / "config.json" if path.is_dir() else path
    begins = read_description(file, edited=True).get("init_from")
    if not begins or any(getattr(flags, k) != v for k, v in init_flags(begins).items()):
        return {}
    return {f"init_{name}": begins[name] for name in ("seeds", "trials", "points")}


def with_ranges(
    base: Any, config: Any, grid: dict[str, Any], words: str
) -> tuple[Any, dict[str, Any]]:
    """The config and the grid with --randomize, which replaces ranges of a preset or a file."""
    ranges = reading.ranges_setting(words)

    def more(env_settings: tuple[tuple[str, Any], ...]) -> tuple[tuple[str, Any], ...]:
        if env_settings != base.env_settings and "randomize" in dict(env_settings):
            raise UserError(f"--randomize {words}: --env-settings has randomize; leave one out")
        others = [pair for pair in env_settings if pair[0] != "randomize"]
        return (*others, ("randomize", ranges))

    if "env_settings" in grid:
        if not isinstance(several := grid["env_settings"], list):
            raise UserError(f"--randomize {words}: write randomize={ranges} into each choice")
        grid = grid | {"env_settings": [more(one) for one in several]}
    return config.replace(env_settings=more(config.env_settings)), grid


PBT = [f.name for f in dataclasses.fields(Flags) if f.name.startswith("pbt_")]
# The flags of which one makes a run a sweep, beside several values; the sampler does not.
OF_SWEEPS = [n for n in Asked._fields if hasattr(Flags, n) and n != "sampler"]
PATHS = ("run_dir_root", "run_dir", "init_from", "resume", "evaluate", "render", "export", "copy")
PROCESSES = ("distributed", "coordinator", "num_processes", "process_id")
# The flags that go with a command; a run that is there keeps its settings. Of a new run, or sweep,
# those that do not.
TAKES = {
    "evaluate": ("evaluate", "seed", "point", "trial", "episodes", "json"),
    "render": ("render", "seed", "point", "trial", "dream"),
    "export": ("export", "point", "trial"),
    "copy": ("copy", "env"),
    "list": ("list",),
    "version": ("version",),
    "resume": ("resume", "point", "quiet", "total_timesteps", *NAMES, *PROCESSES),
    "run": ("point", "trial", "episodes", "json", "dream"),
}

# --- commands --------------------------------------------------------------------------------


def train(module: Any, config: Any, grid: dict[str, Any], flags: Flags) -> int:
    """Trains a new run or sweep, or resumes one."""
    keywords: dict[str, Any] = {name: getattr(flags, name) for name in NAMES}
    keywords |= {"quiet": flags.quiet, "import_seconds": progress.process_age()}
    keywords["on_signal"] = "return"
    first: dict[str, Any] = {"seed": flags.seed, "num_seeds": flags.num_seeds}
    first |= {"root": flags.run_dir_root, "resume_if_exists": flags.resume_if_exists}
    given = {name: getattr(flags, name) for name in OF_SWEEPS}
    limits: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if not flags.resume:
        keywords |= {name: getattr(flags, name) for name in INIT}
        keywords["init_point"] = reading.point_of(flags.init_point, "init-point")
        keywords |= chosen_before(flags) if flags.config else {}
    if "memory_limit" in limits:
        limits["memory_limit"] = reading.size_in_bytes(limits["memory_limit"])
    result: Result | Swept
    if flags.resume:
        if grid:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in grid)
            raise UserError(f"--resume takes no values to sweep over: leave {names} out")
        more: dict[str, Any] = {
            "total_timesteps": config.total_timesteps,
            "point": reading.point_of(flags.point, "point", ("last",)),
        }
        result = runner.resume(flags.resume, module=module, **more, **keywords)
    elif flags.pbt is not None:
        if others := [name for name in limits if name != "samples"]:
            raise UserError(f"--pbt trains no sweep: leave {', '.join(others)} out, or pbt")
        given = {name.removeprefix("pbt_"): getattr(flags, name) for name in PBT}
        given |= {"rounds": flags.pbt, "members": flags.samples, "run_dir": flags.run_dir}
        first |= {name: value for name, value in given.items() if value is not None}
        result = runner.pbt(module, config, grid, **first, **keywords)
    elif grid or limits:
        limits["sampler"] = flags.sampler
        result = runner.sweep(
            module, config, grid, sweep_dir=flags.run_dir, **limits, **first, **keywords
        )
    else:
        if flags.sampler != Flags.sampler:
            raise UserError(f"--sampler {flags.sampler}: nothing is drawn, as log:1e-5:1e-2 would")
        result = runner.run(module, config, run_dir=flags.run_dir, **first, **keywords)
    if not result.interrupted:
        if result.unsaved:
            return NOT_SAVED
        return NOT_FINITE if result.failed else 0
    if hosts.is_first() and not result.finished:
        place = result.run_dir if isinstance(result, Result) else result.sweep_dir
        again = f"to go on: python {sys.argv[0]} --resume {shlex.quote(str(place))}"
        errors.tell(again, sys.stdout)
    return CODES.get(result.stopped, 0)


def evaluate(module: Any, flags: Flags, path: str) -> int:
    from algorithms.launch.tools import evaluation

    if flags.episodes < 1:
        raise UserError(f"--episodes {flags.episodes}: give 1 or more")
    seeds_of(flags.seed)  # refuses a wrong one
    played = []
    module = loading.module_of(module, path)
    for number, config, state, point, trials in loaded_trials(module, flags, path):
        given = (module, config, state, flags.seed, flags.episodes)
        episodes = in_background(evaluation.evaluate, *given)  # this thread answers Ctrl-C
        setting = {"env": settings.env_name(config), **trials.setting(0)}
        played.append(evaluation.Played(number, trials.seeds[0], setting, point, episodes))
        if not flags.json:
            title = f"trial {number} ({trials.label(0)}) at point {point}"
            print(evaluation.table(episodes, title), flush=True)
    print(evaluation.as_json(played) if flags.json else evaluation.totals(played), end="")
    for sentence in evaluation.alarms_of(played):
        errors.warn(sentence)
    return 0


def loaded_trials(module: Any, flags: Flags, path: str) -> Iterator[tuple]:
    """The trials that --trial names: number, config, state, point and Trials of each.

    On stderr it says which one was chosen, if there are several.
    """
    point, there = reading.point_of(flags.point, "point"), experiment.open(path)
    chosen = chosen_trials(there, flags.trial)
    if len(chosen) == 1 or there.is_sweep:
        for number in chosen:
            loaded = loading.load(path, point, trial=number, module=module, whole=False)
            yield number, loaded.config, loaded.state, loaded.point, loaded.trials
        return
    loaded = loading.load(path, point, trial="all", module=module, whole=False)
    for i in chosen:
        config, state = loaded.trials.one(loaded.config, i), loading.one_trial(loaded.state, i)
        yield i, config, state, loaded.point[i], loaded.trials.some([i])


def chosen_trials(there: experiment.Experiment, word: str) -> list[int]:
    """The numbers of the trials that --trial names; stderr says which, if there are several."""
    try:
        chosen = outcomes.choose(there, reading.trial_of(word))
    except ValueError as error:
        raise UserError(f"--trial {word}: {error}") from None
    for line in chosen.why:
        print(line, file=sys.stderr, flush=True)
    return chosen.numbers


def render(module: Any, flags: Flags, run: str) -> int:
    from algorithms.launch.tools import render

    seeds_of(flags.seed)  # refuses a wrong one
    module = loading.module_of(module, run)
    for number, config, state, point, _ in loaded_trials(module, flags, run):
        kind = "dream" if flags.dream else "episode"
        path = Path(run) / f"{kind}_trial{number}_point{point}_seed{flags.seed}.gif"
        print(render.render(module, config, state, path, flags.seed, dream=flags.dream))
    return 0


def export(module: Any, flags: Flags, run: str) -> int:
    from algorithms.launch.tools.export import export as write

    point = reading.point_of(flags.point, "point")
    for trial in chosen_trials(experiment.open(run), flags.trial):
        print(write(run, None, point, trial=trial, module=module), flush=True)
    return 0


def copy(module: Any, folder: str, env: str) -> int:
    from algorithms.launch.tools.copying import copies

    print(copies.write(module, Path(folder), env))
    return 0


def show_all(module: Any) -> int:
    from algorithms.launch.tools import catalogue

    devices.check_backend()  # gymnax starts it
    print(catalogue.text(algorithm_name(module)))
    return 0


def check_pbt(base: Any, config: Any, flags: Flags) -> None:
    """Refuses flags of populations without --pbt, and others that a population would ignore."""
    if flags.pbt is None:
        if named := [name for name in PBT if getattr(flags, name) != getattr(Flags, name)]:
            raise UserError(f"{', '.join(named)} goes with pbt, which is missing: --pbt 20")
        return
    if config.num_evals not in (base.num_evals, flags.pbt):
        raise UserError(
            f"--num-evals {config.num_evals}: every round of --pbt {flags.pbt} is a point of the "
            "curve; leave it out"
        )
    if flags.sampler != Flags.sampler:
        raise UserError(
            f"--sampler {flags.sampler}: --pbt spreads its first values evenly by itself; leave it "
            "out"
        )


def refuse_others(command: str, base: tuple[Any, Flags], given: tuple[Any, Flags]) -> None:
    """Refuses settings and flags that do not go with the command; both pairs: Config and Flags."""
    fields = [(f.name, i) for i in range(2) for f in dataclasses.fields(base[i])]
    refused = {
        name: f"--{name.replace('_', '-')} {new}" + f" (in place of {old})" * (old is not None)
        for name, i in fields
        if (old := getattr(base[i], name)) != (new := getattr(given[i], name))
        and (name in TAKES[command]) == (command == "run")
    }
    if not refused:
        return
    what, remedy = f"--{command}", ""
    if command == "resume" and refused.keys() <= {f.name for f in dataclasses.fields(base[0])}:
        remedy = f": a new run begins at its policy with --init-from {given[1].resume}"
    if command == "run":
        able = [f"--{c}" for c in TAKES if c != "run" and refused.keys() <= set(TAKES[c])]
        what, remedy = "a new run", f": say of which run, {' or '.join(able)} DIR" * bool(able)
    raise UserError(f"{what} does not go with {', '.join(refused.values())}{remedy}")
