"""The command line of an algorithm file: flags from its Config, and what to do with them."""

import argparse
import dataclasses
import os
import sys
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from algorithms.launch import checkpoints, progress, runner
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
    """take the settings of a run's config.json; other flags win"""
    run_dir_root: str = "runs"  # where the directories of runs are made
    resume: Annotated[str | None, DIRECTORY] = None
    """go on with a run; a larger --total-timesteps makes it longer"""
    evaluate: Annotated[str | None, DIRECTORY] = None
    """play episodes with the policy of a run and sum them up"""
    render: Annotated[str | None, DIRECTORY] = None
    """write a GIF of an episode of a run"""
    point: str = "last"
    """of --evaluate, --render: last, best or a number; of --resume: last or that of a kept state"""
    agent: int | None = None  # of --evaluate (default: all) and --render (default: 0)
    episodes: int = 100  # that --evaluate plays with each agent
    keep_states: bool = False  # keep the whole state of every point, not of the last two only
    track: bool = False  # log to wandb
    tensorboard: bool = False  # write event files for TensorBoard
    one_run_per_seed: bool = False  # trackers get a run for each seed, not one for all
    gif: Literal["never", "start", "end", "every"] = "never"  # points to draw an episode at
    quiet: bool = False  # show no progress


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
    asked = [command for command in TAKES if getattr(shell, command, None)]
    command = asked[0] if asked else "run"
    refuse_others(command, base, (config, shell))
    if command == "evaluate":
        return evaluate(module, shell)
    if command == "render":
        return render(module, shell)
    return train(module, config, shell)


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
    algorithm = runner.algorithm_name(module)
    known = PRESETS.get(algorithm, {})
    if name not in known:
        raise unknown(f"preset of {algorithm}", name, known)
    return module.Config(**{"env": name, **known[name]})


def from_run(module: Any, source: str, path: Path) -> tuple[Any, Shell]:
    """The settings of a run; its seeds and options, too, where it is run again or goes on."""
    if source == "config" and path.name != "config.json" and not path.is_dir():
        raise UserError(f"--config {path}: give the config.json of a run")
    run_dir = checkpoints.RunDir.open(path if path.is_dir() or source != "config" else path.parent)
    runner.check_algorithm(module, run_dir)
    described = run_dir.description
    shell = Shell()
    if source in ("config", "resume"):
        options = runner.make_options(described["options"])._asdict()
        shell = Shell(seed=described["seed"], num_seeds=described["num_seeds"], **options)
    return run_dir.config(module.Config), shell


def parse(module: Any, argv: list[str], config: Any, shell: Shell) -> tuple[Any, Shell]:
    """Reads the flags. tyro ends the process for --help (0) and for what it cannot read (2)."""

    @dataclasses.dataclass
    class Flags:
        run: Shell
        algorithm: module.Config

    flags = tyro.cli(
        Flags,
        args=argv,
        default=Flags(shell, config),
        prog=Path(module.__file__).name,
        description=(module.__doc__ or "").partition("\n")[0],
        config=(tyro.conf.OmitArgPrefixes,),
        registry=value_types(),
    )
    return flags.algorithm, flags.run


def value_types() -> tyro.constructors.ConstructorRegistry:
    """How words become values: 5e5 is a whole number, and a tuple is one word with commas."""
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def rule(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        if info.type is int:
            return one_word("INT", whole_number, int, str)
        if typing.get_origin(info.type) is not tuple:
            return None
        items = typing.get_args(info.type)
        if items == (int, ...):
            join = lambda value: ",".join(map(str, value))
            return one_word("INT,INT,...", whole_numbers, tuple, join)
        if typing.get_origin(items[0]) is tuple:
            return one_word("NAME=VALUE,...", named_values, tuple, named_values_text)
        return None

    return registry


def one_word(metavar: str, read: Any, kind: type, write: Any) -> Any:
    """A value that takes one word of the command line."""
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: read(words[0]),
        is_instance=lambda value: isinstance(value, kind),
        str_from_instance=lambda value: [write(value)],
    )


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


# The flags that go with a command; a run that is there keeps its settings.
TAKES = {
    "evaluate": ("evaluate", "seed", "point", "agent", "episodes"),
    "render": ("render", "seed", "point", "agent"),
    "resume": ("resume", "point", "quiet", "total_timesteps", *runner.Options._fields),
    "run": ("point", "agent", "episodes"),  # those that do not
}

# --- commands --------------------------------------------------------------------------------


def train(module: Any, config: Any, shell: Shell) -> int:
    """A new run, or one that goes on."""
    keywords = {name: getattr(shell, name) for name in runner.Options._fields}
    keywords |= {"quiet": shell.quiet, "import_seconds": progress.process_age()}
    if shell.resume:
        keywords |= {"total_timesteps": config.total_timesteps, "point": point_of(shell)}
        result = runner.resume(shell.resume, module=module, **keywords)
    else:
        keywords |= {"seed": shell.seed, "num_seeds": shell.num_seeds, "root": shell.run_dir_root}
        result = runner.run(module, config, **keywords)
    if not result.interrupted:
        return 0
    print(f"to go on: python {sys.argv[0]} --resume {result.run_dir}", flush=True)
    return 130


def evaluate(module: Any, shell: Shell) -> int:
    from algorithms.launch import evaluation

    if shell.episodes < 1:
        raise UserError(f"--episodes {shell.episodes}: give 1 or more")
    loaded = checkpoints.load(shell.evaluate, point_of(shell), agent=shell.agent, module=module)
    agents = range(len(loaded.seeds)) if shell.agent is None else [shell.agent]
    for agent in agents:
        state, point = loaded.state, loaded.point
        if shell.agent is None:
            state, point = checkpoints.one_agent(state, agent), point[agent]
        episodes = evaluation.evaluate(module, loaded.config, state, shell.seed, shell.episodes)
        title = f"agent {agent} (seed {loaded.seeds[agent]}) at point {point}"
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
