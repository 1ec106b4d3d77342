"""The command line of an algorithm file: flags from its Config, and what to do with them."""

import argparse
import dataclasses
import os
import sys
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from algorithms.launch import checkpoints, hosts, progress, runner, settings, sweeps, trainer
from algorithms.launch.errors import UserError, unknown
from algorithms.launch.presets import PRESETS

DIRECTORY = tyro.conf.arg(metavar="DIR", help_behavior_hint="")


@dataclasses.dataclass(frozen=True)
class Shell:
    """Flags that every algorithm has."""

    seed: int = 0  # of the first agent; with --evaluate and --render: of the episodes
    num_seeds: int = 1  # agents trained at once, with seeds seed, seed + 1, ...
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = None
    """settings that are known to work, see algorithms/launch/presets.py; other flags win"""
    config: Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    """take the settings of a run's config.json or a sweep's best.json; other flags win"""
    samples: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """draws of the floats that are given as log:LOW:HIGH or uniform:LOW:HIGH"""
    sampler: Literal["sobol", "random"] = "sobol"  # sobol fills the space evenly
    max_parallel: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """agents to train at once; default: as many as fit into the memory"""
    memory_limit: Annotated[str | None, tyro.conf.arg(metavar="SIZE", help_behavior_hint="")] = None
    """memory of each device to use, as 500MB or 16GB; default: nine tenths of it"""
    run_dir_root: str = "runs"  # where the directories of runs are made
    resume: Annotated[str | None, DIRECTORY] = None
    """go on with a run or a sweep; a larger --total-timesteps makes a run longer"""
    evaluate: Annotated[str | None, DIRECTORY] = None
    """play episodes with the policy of a run and sum them up"""
    render: Annotated[str | None, DIRECTORY] = None
    """write a GIF of an episode of a run"""
    copy: Annotated[str | None, DIRECTORY] = None
    """write this file, with what it needs of the kit, into a directory of another project"""
    point: str = "last"
    """of --evaluate, --render: last, best or a number; of --resume: last or that of a kept state"""
    agent: int | None = None  # of --evaluate (default: all), --render (0); number in results.csv
    episodes: int = 100  # that --evaluate plays with each agent
    keep_states: bool = False  # keep the whole state of every point, not of the last two only
    track: bool = False  # log to wandb
    tensorboard: bool = False  # write event files for TensorBoard
    one_run_per_seed: bool = False  # trackers get a run for each seed, not one for all
    gif: Literal["never", "start", "end", "every"] = "never"  # points to draw an episode at
    quiet: bool = False  # show no progress
    distributed: bool = False  # one of several processes, as a cluster starts them
    coordinator: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None
    """with --distributed, outside a cluster: where the first process is"""
    num_processes: int | None = None  # with --distributed, outside a cluster
    process_id: int | None = None  # with --distributed, outside a cluster: 0, 1, ...


def main(module: Any, argv: list[str] | None = None) -> None:
    """The command line of an algorithm's module.

    Exit codes: 0; 2 for a user's mistake, with one line that says what; 130 after Ctrl-C; 141 where
    nobody reads the output any more.
    """
    try:
        code = dispatch(module, sys.argv[1:] if argv is None else argv)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except BrokenPipeError:  # `| head` has seen enough; what Python still flushes goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except KeyboardInterrupt:
        print("\naborted; what was saved stays", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(130)  # not sys.exit, which would wait for the program on the devices
    if code:
        sys.exit(code)


def dispatch(module: Any, argv: list[str]) -> int:
    """Does what the flags say. Returns the exit code."""
    base = defaults(module, argv)
    config, shell = parse(module, argv, *base)
    join_others(shell)
    asked = [command for command in TAKES if getattr(shell, command, None)]
    command = asked[0] if asked else "run"
    refuse_others(command, base, (config, shell))
    if command == "evaluate":
        return evaluate(module, shell)
    if command == "render":
        return render(module, shell)
    if command == "copy":
        return copy(module, shell)
    return train(module, *single_out(base[0], config), shell)


def join_others(shell: Shell) -> None:
    """Meets the other processes of a distributed run, before anything uses jax."""
    told = (shell.coordinator, shell.num_processes, shell.process_id)
    if shell.distributed:
        hosts.start(*told)
    elif told != (None, None, None):
        names = "--coordinator, --num-processes and --process-id"
        raise UserError(f"{names} go with --distributed, which is missing")


# --- flags -----------------------------------------------------------------------------------


def defaults(module: Any, argv: list[str]) -> tuple[Any, Shell]:
    """What holds where no flag says otherwise: the settings of a preset, a file or a run."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    sources = ("preset", "config", "resume", "evaluate", "render")
    for name in sources:
        early.add_argument(f"--{name}", nargs="?")
    given = {k: v for k, v in vars(early.parse_known_args(argv)[0]).items() if v is not None}
    if len(given) > 1:
        raise UserError(f"{' and '.join(f'--{name}' for name in given)}: use one of them")
    if not given:
        return module.Config(), Shell()
    source, value = given.popitem()
    if source == "preset":
        return preset(module, value), Shell()
    return from_run(module, source, Path(value))


def preset(module: Any, name: str) -> Any:
    """The algorithm's defaults with a preset's settings."""
    algorithm = trainer.algorithm_name(module)
    known = PRESETS.get(algorithm, {})
    if name not in known:
        raise unknown(f"preset of {algorithm}", name, known)
    return module.Config(**{"env": name, **known[name]})


def from_run(module: Any, source: str, path: Path) -> tuple[Any, Shell]:
    """The settings of a run; its seeds and options, too, where it is run again or goes on."""
    if (path / checkpoints.SWEEP).exists():
        if source == "config":
            raise UserError(f"--config {path} is a sweep: its best.json is its best setting")
        described = checkpoints.read_json(path / checkpoints.SWEEP)
        seed, num_seeds = described["seed"], described["num_seeds"]
    else:
        file = path / "config.json" if path.is_dir() or source != "config" else path
        described = checkpoints.read_description(file)
        seed, num_seeds = described["seeds"][0], len(described["seeds"])
        if described["floats"] and source == "config":
            raise UserError(f"--config {path} has many settings: the sweep's best.json has one")
    runner.check_algorithm(module, described["algorithm"], path)
    shell = Shell()
    if source in ("config", "resume"):
        options = runner.make_options(described["options"])._asdict()
        shell = Shell(seed=seed, num_seeds=num_seeds, **options)
    return settings.config_from_json(module.Config, described["config"], path), shell


def parse(module: Any, argv: list[str], config: Any, shell: Shell) -> tuple[Any, Shell]:
    """Reads the flags. tyro ends the process for --help (0) and for what it cannot read (2)."""

    @dataclasses.dataclass
    class Flags:
        run: Shell
        # Several values of a setting make a sweep, as do draws, log:1e-5:1e-2 with --samples.
        algorithm: SEVERAL[module.Config]

    flags = tyro.cli(
        Flags,
        args=with_words(module.Config, argv),
        default=Flags(shell, config),
        prog=Path(module.__file__).name,
        description=(module.__doc__ or "").partition("\n")[0],
        config=(tyro.conf.OmitArgPrefixes,),
        registry=value_types(),
    )
    return flags.algorithm, flags.run


SEVERAL = tyro.conf.FlagConversionOff  # marks the flags that take more than one value
WORDS_OF_BOOL = {"true": True, "false": False}


class Several(tuple):
    """What a flag with several values stands for, or with one distribution."""


def with_words(config_class: type, argv: list[str]) -> list[str]:
    """The arguments with `--anneal-lr true` for `--anneal-lr`, and false for `--no-anneal-lr`."""
    names = [f.name for f in dataclasses.fields(config_class) if isinstance(f.default, bool)]
    plain = {f"--{name.replace('_', '-')}" for name in names}
    words: list[str] = []
    for i, word in enumerate(argv):
        flag = word.replace("_", "-")
        if flag in plain:
            alone = i + 1 == len(argv) or argv[i + 1].startswith("-")
            words += [flag, "true"] if alone else [flag]
        elif flag.startswith("--no-") and f"--{flag[5:]}" in plain:
            words += [f"--{flag[5:]}", "false"]
        else:
            words.append(word)
    return words


def single_out(base: Any, config: Any) -> tuple[Any, dict[str, Any]]:
    """A Config with one value in each field, and the grid of those that have several."""
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    several = {name: value for name, value in fields.items() if isinstance(value, Several)}
    drawn = lambda values: isinstance(values[0], settings.Distribution)
    first = {n: getattr(base, n) if drawn(v) else v[0] for n, v in several.items()}
    alone = lambda values: values[0] if drawn(values) and len(values) == 1 else list(values)
    return config.replace(**first), {name: alone(values) for name, values in several.items()}


def value_types() -> tyro.constructors.ConstructorRegistry:
    """How words become values: 5e5 is a whole number, and a tuple is one word with commas.

    Flags of the algorithm take one word or more.
    """
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def rule(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        kind = reader(info.type)
        if SEVERAL not in info.markers:
            return words_of(*kind, one=True) if info.type is int else None
        return words_of(*kind, one=False) if kind else None

    return registry


def reader(kind: Any) -> tuple[Any, ...] | None:
    """For a field's type: its metavar, how a word is read, what it gives, how that is written."""
    if kind is int:
        return "INT", whole_number, int, str
    if kind is float:
        return "FLOAT", number_or_draw, int | float, settings.plain
    if kind is bool:
        return "TRUE|FALSE", bool_of, bool, lambda value: str(value).lower()
    if kind is str:
        return "STR", str, str, str
    if typing.get_origin(kind) is not tuple:
        return None
    items = typing.get_args(kind)
    if items == (int, ...):
        return "INT,INT,...", whole_numbers, tuple, lambda value: ",".join(map(str, value))
    if typing.get_origin(items[0]) is tuple:
        return "NAME=VALUE,...", named_values, tuple, named_values_text
    return None


def words_of(metavar: str, read: Any, kind: Any, write: Any, one: bool) -> Any:
    """A value that takes one word of the command line, or several values with a word each."""

    def values(words: list[str]) -> Any:
        if not words:
            raise ValueError("a value is missing")
        read_words = Several(map(read, words))
        alone = len(words) == 1 and not isinstance(read_words[0], settings.Distribution)
        return read_words[0] if alone else read_words

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1 if one else "*",
        metavar=metavar if one else f"{metavar} ...",
        instance_from_str=values,
        is_instance=lambda value: isinstance(value, kind),
        str_from_instance=lambda value: [write(value)],
    )


def number_or_draw(word: str) -> float | settings.Distribution:
    """A number, or log:1e-5:1e-2."""
    return settings.distribution(word) if ":" in word else float(word)


def bool_of(word: str) -> bool:
    """true or false."""
    if word.lower() not in WORDS_OF_BOOL:
        raise ValueError(f"{word!r} is neither true nor false")
    return WORDS_OF_BOOL[word.lower()]


def size_in_bytes(word: str) -> int:
    """500MB, 16GB, 1e9.

    Raises:
      UserError: it is none of these.
    """
    units = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    number, unit = (
        (word[:-2], units[word[-2:].upper()]) if word[-2:].upper() in units else (word, 1)
    )
    try:
        return int(float(number) * unit)
    except (ValueError, OverflowError):
        raise UserError(f"--memory-limit {word}: give a size, as 500MB or 16GB") from None


def whole_number(word: str) -> int:
    """An int, also written as 5e5.

    Raises:
      ValueError: it is not whole.
    """
    try:
        return int(word)
    except ValueError:
        value = float(word) if word else 0.5
    if not value.is_integer():
        raise ValueError(f"{word!r} is not a whole number")
    return int(value)


def whole_numbers(word: str) -> tuple[int, ...]:
    """Whole numbers with commas between them; none for an empty word."""
    return tuple(whole_number(part) for part in word.split(",") if part)


def named_values(word: str) -> tuple[tuple[str, Any], ...]:
    """name=value pairs with commas between them; a value may be whole numbers, name=0,2."""
    pairs: list[tuple[str, Any]] = []
    for part in filter(None, word.split(",")):
        name, equals, value = part.partition("=")
        number = plain_value(part)
        if pairs and type(number) is int:  # one more of a tuple
            last, before = pairs.pop()
            before = before if isinstance(before, tuple) else (before,)
            pairs.append((last, (*before, number)))
        elif name and equals and value:
            pairs.append((name, plain_value(value)))
        else:
            raise ValueError(f"{part!r} is not name=value")
    return tuple(pairs)


def named_values_text(pairs: tuple[tuple[str, Any], ...]) -> str:
    """The inverse."""
    text = lambda x: ",".join(map(str, x)) if isinstance(x, tuple) else str(x)
    return ",".join(f"{name}={text(x)}" for name, x in pairs)


def plain_value(word: str) -> Any:
    """A bool, an int, a float or else the word itself."""
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


PROCESSES = ("distributed", "coordinator", "num_processes", "process_id")
# The flags that go with a command; a run that is there keeps its settings.
TAKES = {
    "evaluate": ("evaluate", "seed", "point", "agent", "episodes"),
    "render": ("render", "seed", "point", "agent"),
    "copy": ("copy",),
    "resume": ("resume", "point", "quiet", "total_timesteps", *runner.Options._fields, *PROCESSES),
    "run": ("point", "agent", "episodes"),  # those that do not
}

# --- commands --------------------------------------------------------------------------------


def train(module: Any, config: Any, grid: dict[str, Any], shell: Shell) -> int:
    """A new run or sweep, or one that goes on."""
    keywords = {name: getattr(shell, name) for name in runner.Options._fields}
    keywords |= {"quiet": shell.quiet, "import_seconds": progress.process_age()}
    first = {"seed": shell.seed, "num_seeds": shell.num_seeds, "root": shell.run_dir_root}
    limits = {"max_parallel": shell.max_parallel, "samples": shell.samples}
    if shell.memory_limit is not None:
        limits["memory_limit"] = size_in_bytes(shell.memory_limit)
    if shell.resume:
        more = {"total_timesteps": config.total_timesteps, "point": point_of(shell)}
        result = sweeps.resume(shell.resume, module=module, **more, **keywords)
    elif grid or any(limit is not None for limit in limits.values()):
        limits["sampler"] = shell.sampler
        result = sweeps.sweep(module, config, grid, **limits, **first, **keywords)
    else:
        result = runner.run(module, config, **first, **keywords)
    if not result.interrupted:
        return 0
    if hosts.is_first():
        place = getattr(result, "run_dir", None) or result.sweep_dir
        print(f"to go on: python {sys.argv[0]} --resume {place}", flush=True)
    return 130


def evaluate(module: Any, shell: Shell) -> int:
    from algorithms.launch import evaluation

    if shell.episodes < 1:
        raise UserError(f"--episodes {shell.episodes}: give 1 or more")
    loaded = checkpoints.load(shell.evaluate, point_of(shell), agent=shell.agent, module=module)
    for i in range(loaded.agents.count):
        number, config, state, point = shell.agent, loaded.config, loaded.state, loaded.point
        if number is None:
            number, state, point = i, checkpoints.one_agent(state, i), point[i]
            config = loaded.agents.one(config, i)
        episodes = evaluation.evaluate(module, config, state, shell.seed, shell.episodes)
        title = f"agent {number} ({loaded.agents.label(i)}) at point {point}"
        print(evaluation.table(episodes, title))
    return 0


def render(module: Any, shell: Shell) -> int:
    from algorithms.launch import render

    agent = shell.agent or 0
    loaded = checkpoints.load(shell.render, point_of(shell), agent=agent, module=module)
    name = f"episode_agent{agent}_point{loaded.point}_seed{shell.seed}.gif"
    path = Path(shell.render) / name
    print(render.render(module, loaded.config, loaded.state, path, shell.seed))
    return 0


def copy(module: Any, shell: Shell) -> int:
    from algorithms.launch import copies

    print(copies.write(Path(module.__file__), Path(shell.copy)))
    return 0


def point_of(shell: Shell) -> int | str:
    """What --point says."""
    if shell.point.isdigit():
        return int(shell.point)
    allowed = ("last",) if shell.resume else ("last", "best")
    if shell.point not in allowed:
        raise UserError(f"--point {shell.point}: give {', '.join(allowed)} or a number")
    return shell.point


def refuse_others(command: str, base: tuple[Any, Shell], given: tuple[Any, Shell]) -> None:
    """Refuses what was given but does not go with the command, as a pair of Config and Shell."""
    fields = [(f.name, i) for i in range(2) for f in dataclasses.fields(base[i])]
    refused = [
        f"--{name.replace('_', '-')} {new} (in place of {old})"
        for name, i in fields
        if (old := getattr(base[i], name)) != (new := getattr(given[i], name))
        and (name in TAKES[command]) == (command == "run")
    ]
    if refused:
        what = "a new run" if command == "run" else f"--{command}"
        raise UserError(f"{what} does not go with {', '.join(refused)}")
