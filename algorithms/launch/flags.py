"""The flags of an algorithm file: those of its Config, and those that every file has.

tyro 1.0 has no rule of its own for several values of a plain field, 5e5 as an int, `--hidden-sizes
128`, or both `--anneal-lr` and `--anneal-lr true`: `value_types` and `with_words` add them.
"""

import contextlib
import dataclasses
import functools
import re
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

import algorithms
from algorithms.launch.engine import distributions, grids, reading, settings
from algorithms.launch.engine.errors import UserError, near


def _named(metavar: str) -> Any:
    """Marks a flag that has no default to show."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="")


Count = Annotated[int | None, _named("N")]
Real = Annotated[float | None, _named("X")]
Directory = Annotated[str | None, _named("DIR")]


@dataclasses.dataclass(frozen=True)
class Runs:
    """Where a run begins, what it keeps and what it shows."""

    seed: int = 0  # seed of the first trial; with --evaluate and --render: of the episodes
    num_seeds: int = 1  # trials trained at once, with seeds seed, seed + 1, ...
    preset: Annotated[str | None, _named("NAME")] = None
    """settings known to work, see algorithms/presets.py; other flags win; ppo:NAME is one of ppo"""
    config: Annotated[str | None, _named("FILE")] = None
    """take the settings of a run's config.json or a sweep's best.json; other flags win"""
    randomize: Annotated[str | None, _named("RANGES")] = None
    """draw these floats of the environment anew for every episode, as the env setting randomize:
    length=uniform:0.25:1,gravity=log:5:20"""
    run_dir_root: str = "runs"  # folder for the directories of new runs
    run_dir: Directory = None
    """directory of this run or sweep, instead of a new one in run_dir_root"""
    resume: Directory = None
    """continue a run or a sweep; a larger --total-timesteps makes a run longer"""
    resume_if_exists: bool = False  # continue the run or sweep in --run-dir, if there is one
    init_from: Directory = None
    """begin at the policy of a run or a sweep, with other settings or in another environment"""
    init_point: str = "last"  # of --init-from: last, best or a number
    init_trial: int | None = None
    """of --init-from: the trial for all seeds; default: trial i for seed i, or the best one"""
    init_optimizer: bool = False
    """of --init-from: also take the optimizer's state, other networks and the scale of rewards"""
    keep_states: bool = False  # keep the whole state of every point, not of the last two only
    gif: Literal["never", "start", "end", "every"] = "never"  # when to draw a GIF of an episode
    track: bool = False  # log to wandb
    tensorboard: bool = False  # write event files for TensorBoard
    one_run_per_seed: bool = False  # trackers get a run for each seed, not one for all
    quiet: bool = False  # show no progress


@dataclasses.dataclass(frozen=True)
class Sweeps:
    """What a sweep trains, besides the settings that have several values."""

    samples: Count = None
    """draws of the settings given as log:LOW:HIGH, uniform:LOW:HIGH, discount:LOW:HIGH (1 - x is
    log-uniform), int:LOW:HIGH, logint:LOW:HIGH, choice:A,B or, of lists, choice:64,64/128,128"""
    sampler: grids.Sampler = "sobol"  # sobol fills the space evenly
    halving: Count = None
    """successive halving: at each rung keep the best setting of N and train it N times as long"""
    rungs: Count = None
    """of --halving: number of rungs; default: as many as settings and --num-evals allow"""
    brackets: Count = None
    """of --halving: divide the settings among N brackets, each pruning later (Hyperband)"""
    retest: Annotated[int | None, _named("K")] = None
    """train the best K settings of a sweep again, on seeds that it has not used"""
    retest_seeds: Count = None  # seeds of each setting with --retest; default: 32
    objective: Annotated[str | None, _named("NAME")] = None
    """rank a sweep's settings by final_return (the default), mean_return (over the curve),
    worst_seed or steps_to=RETURN (fewest steps)"""
    sweep_states: Literal["best", "all"] = "best"
    """whole states that stay when a sweep is done: of the best setting, or all; policies and
    metrics always stay"""


@dataclasses.dataclass(frozen=True)
class Populations:
    """Population-based training: floats that change while training."""

    pbt: Count = None
    """population-based training in N rounds: --samples members, of floats given as ranges"""
    pbt_share: Real = None
    """of --pbt: share of the members that become copies of the best; default: 0.25"""
    pbt_factor: Real = None
    """of --pbt: factor by which the floats of a copy move up or down; default: 1.25"""
    pbt_resample: Annotated[float | None, _named("P")] = None
    """of --pbt: probability that a float of a copy is drawn anew; default: 0"""
    pbt_copy_buffer: bool = True  # of --pbt: copies take the replay buffer along
    pbt_periods: Annotated[str | None, _named("N,N")] = None
    """of --pbt: equal subpopulations, of which each evolves after N rounds (MF-PBT), as 1,4"""


@dataclasses.dataclass(frozen=True)
class Devices:
    """Memory, several devices and several processes."""

    max_parallel: Count = None  # trials to train at once; default: as many as fit into the memory
    memory_limit: Annotated[str | None, _named("SIZE")] = None
    """device memory that programs may use, as 500MB or 16GB; default: nine tenths of it"""
    split_envs: int = 1  # divide each trial's environments and minibatches into N shards
    distributed: bool = False  # this is one of several processes that train together
    coordinator: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None
    """with --distributed, outside a cluster: address of the first process"""
    num_processes: int | None = None  # of --distributed: number of processes, outside a cluster
    process_id: int | None = None  # of --distributed: 0, 1, ..., outside a cluster


@dataclasses.dataclass(frozen=True)
class Tools:
    """Commands that do not train, and what they take."""

    evaluate: Directory = None  # play episodes with the policy of a run and print statistics
    render: Directory = None  # write a GIF of an episode of a run
    export: Directory = None  # write the policy of a run into one file that acts without the kit
    copy: Directory = None
    """write this file, with all that it uses of the kit, as one file into this folder"""
    list: bool = False  # list algorithms, environments and presets
    version: bool = False  # print the versions of the kit, Python and the libraries
    point: str = "last"
    """of --evaluate, --render, --export: last, best or N; of --resume: last or a kept state"""
    trial: str = "best"
    """of --evaluate, --render, --export: best, all (of a sweep: seeds of its best setting) or N"""
    episodes: int = 100  # episodes that --evaluate plays with each trial
    json: bool = False  # of --evaluate: print JSON instead of tables
    dream: bool = False  # of --render: below, draw what dreamer.py's world model imagines


@dataclasses.dataclass(frozen=True)
class Flags(Tools, Devices, Populations, Sweeps, Runs):
    """Flags that every algorithm has; CONTRIBUTING.md says what else a new one needs."""


def parse(module: Any, argv: list[str], config: Any, flags: Flags) -> tuple[Any, Flags]:
    """Reads the flags. tyro ends the process for --help.

    Raises:
      UserError: what cannot be read.
    """
    words = with_words(dataclasses.fields(module.Config), by_new_names(argv))
    fields = [f.name for kind in (module.Config, Flags) for f in dataclasses.fields(kind)]
    known = [name.replace("_", "-") for name in fields]
    with in_one_sentence(functools.partial(refuse, words=words, known=known)):
        asked: Any = tyro.cli(
            boxes(config, flags),
            args=words,
            prog=Path(module.__file__).name,
            description=((module.__doc__ or "").partition("\n")[0] + SWEEPS).strip(),
            config=(tyro.conf.OmitArgPrefixes,),
            registry=value_types(),
        )
    values = lambda titles: {k: v for title in titles for k, v in asked[title].items()}
    return type(config)(**values(SETTINGS)), type(flags)(**values(SHARED))


SWEEPS = "\n\nSeveral values of a setting make a sweep: --learning-rate 1e-4 1e-3 --num-seeds 8"

# --- boxes of --help -------------------------------------------------------------------------

# A setting has one name in all files. One that is not here is of training.
SETTINGS = {
    "environment": """
        env env_settings normalize_obs normalize_reward clip_obs clip_reward reward_scale squash
        opening_moves
    """,
    "training": "",
    "network": """
        network hidden_sizes critic_hidden_sizes hidden_size critic_hidden_size activation
        conv_layers compute_dtype layer_norm norm norm_momentum layers num_blocks critic_blocks
        expansion num_channels blocks latents classes cell memory_size window forget_bias
        previous_inputs skip shared_torso asymmetric share_params central_critic agent_ids
        num_critics dueling num_atoms num_bins num_quantiles num_cosines v_min v_max symlog_max
        sigma_head min_std max_std min_log_std max_log_std unimix actor_unimix reconstruction
        mixer mixing_size renorm_momentum renorm_warmup renorm_r_max renorm_d_max
    """,
    "evaluation": """
        num_evals num_eval_episodes eval_at_start eval_simulations eval_opening_moves eval_search
    """,
}
SHARED = {
    **{"run": Runs, "sweep": Sweeps, "population": Populations},
    **{"device": Devices, "tool": Tools},
}


def box_of(name: str) -> str:
    """The box of --help in which a setting of an algorithm stands."""
    return next((box for box, names in SETTINGS.items() if name in names.split()), "training")


class Box:
    """Fields that --help shows together, of which tyro makes a dict."""

    fields: tuple[tyro.constructors.StructFieldSpec, ...]


def box(fields: Sequence[tyro.constructors.StructFieldSpec]) -> type[Box]:
    return type("Box", (Box,), {"fields": tuple(fields)})


def boxes(config: Any, flags: Flags) -> type[Box]:
    """The box of all boxes: first the algorithm's own, then those that every file has."""
    own, shared = fields_of(config), fields_of(flags)
    found: list[tuple[str, str, Any]] = [
        (title, "", Annotated[box([f for f in own if box_of(f.name) == title]), SEVERAL])
        for title in SETTINGS
    ]
    for title, kind in SHARED.items():
        names = {f.name for f in dataclasses.fields(kind)}
        found.append((title, kind.__doc__ or "", box([f for f in shared if f.name in names])))
    make = tyro.constructors.StructFieldSpec
    return box([make(title, kind, tyro.MISSING, about) for title, about, kind in found])


def fields_of(default: Any) -> tuple[tyro.constructors.StructFieldSpec, ...]:
    """A dataclass's fields as tyro sees them: help text, type, and the value in `default`."""
    info = tyro.constructors.StructTypeInfo.make(type(default), default, in_union_context=False)
    spec = tyro.constructors.ConstructorRegistry.get_struct_spec(info)
    assert isinstance(spec, tyro.constructors.StructConstructorSpec)
    return spec.fields


# --- refusals --------------------------------------------------------------------------------


SEEDS = ": --seed is the first one, and --num-seeds how many there are"


def in_one_sentence(refuse: Callable[[Any], None]) -> contextlib.AbstractContextManager:
    """Where tyro calls `refuse` before it draws a box of many lines and ends the process.

    A version of tyro without this hook, which is not public, draws its boxes.
    """
    try:
        from tyro._errors import on_parse_error
    except ImportError:
        return contextlib.nullcontext()
    return on_parse_error(refuse)


def refuse(event: Any, words: list[str], known: list[str]) -> None:
    """Says in one sentence what tyro could not read; of events that are not known here it will.

    Args:
      event: of tyro.
      words: the command line.
      known: flags, without their dashes.

    Raises:
      UserError: that sentence.
    """
    argument = getattr(event, "argument", None)
    flag = argument.lowered.name_or_flags[0] if argument else "a flag"
    match type(event).__name__:
        case "UnrecognizedArgs":
            raise not_taken(event.tokens[0], words, known)
        case "BadValue":
            raise UserError(f"{flag}: a value is missing")
        case "InvalidChoice":
            *others, last = event.choices
            raise UserError(f"{flag} {event.value!r}: give {', '.join(others)} or {last}")
        case "InstantiationFailure":  # of an optional number the last line is about the number
            said = re.sub(r"^- .*?>: ", "", event.message.rpartition("\n")[2])
            if flag == "--seed" and "stand apart" in said:
                said = said.partition(":")[0] + SEEDS
            raise UserError(f"{flag}: {said}")


def not_taken(word: str, words: list[str], known: list[str]) -> UserError:
    """The error for a word that no flag takes."""
    if word.startswith("-"):
        name = word.partition("=")[0]
        plain = name.lstrip("-").replace("_", "-")
        here = reading.OF_OTHERS.get(plain, "")
        own = re.match("--([a-z-]+)", here)  # which this file may lack
        if here and (own is None or own[1] in known):
            return UserError(f"unknown flag {name}; here it is {here}")
        meant = [f"--{one}" for one in near(plain, known)]
        hint = f"did you mean {', '.join(meant)}? " * bool(meant)
        if having := files_with(plain.replace("-", "_")):
            hint = f"it is a setting of {', '.join(having)}; "
        return UserError(f"unknown flag {name}; {hint}--help lists all")
    ends = [i for i, one in enumerate(words) if one == word or one.endswith(f"={word}")]
    before = words[: ends[0] + 1] if len(ends) == 1 else []  # else it stands elsewhere, too
    flags = [one.partition("=")[0] for one in before if one.startswith("--")]
    after = f"{flags[-1]} does not take it" if flags else "--help lists all"
    if words[:1] == [word]:
        after = f"is it the environment, --env {word}?"
    if flags[-1:] == ["--seed"]:
        after = SEEDS.removeprefix(": ")
    return UserError(f"{word!r} is no flag; {after}")


def files_with(field: str) -> list[str]:
    """The algorithms whose Config has a field, found in their text: importing them takes long."""
    line = re.compile(rf"^    {re.escape(field)}: .* = (static|real)\(", re.MULTILINE)
    files = sorted(Path(algorithms.__file__).parent.glob("*.py"))
    return [file.stem for file in files if line.search(file.read_text())]


# --- words and values ------------------------------------------------------------------------

RENAMED = {"--agent": "--trial"}  # the earlier names of flags
SEVERAL = tyro.conf.FlagConversionOff  # marks the flags that take more than one value


class Several(tuple):
    """What a flag with several values stands for, or with one distribution."""


def by_new_names(argv: list[str]) -> list[str]:
    """The arguments with flags by their present names, and a hint on stderr for earlier ones."""
    words: list[str] = []
    for word in argv:
        flag, equals, value = word.partition("=")
        if new := RENAMED.get(flag):
            print(f"hint: {flag} is {new} now", file=sys.stderr)
            word = f"{new}{equals}{value}"
        words.append(word)
    return words


def with_words(fields: tuple[Any, ...], argv: list[str]) -> list[str]:
    """The arguments with `--anneal-lr true` for `--anneal-lr`, and false for `--no-anneal-lr`."""
    names = [field.name for field in fields if isinstance(field.default, bool)]
    plain = {f"--{name.replace('_', '-')}" for name in names}
    words: list[str] = []
    for i, word in enumerate(argv):
        flag = word.replace("_", "-")
        if flag in plain:
            alone = i + 1 == len(argv) or argv[i + 1].startswith("-")
            words += [flag, "true"] if alone else [flag]
        elif flag.startswith("--no-") and f"--{flag[5:]}" in plain:
            if i + 1 < len(argv) and not argv[i + 1].startswith("-"):
                raise UserError(f"{flag} {argv[i + 1]}: give {flag} alone, or --{flag[5:]} true")
            words += [f"--{flag[5:]}", "false"]
        else:
            words.append(word)
    return words


def single_out(base: Any, config: Any) -> tuple[Any, dict[str, Any]]:
    """A Config with one value in each field, and the grid of those that have several."""
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    several = {name: value for name, value in fields.items() if isinstance(value, Several)}
    drawn = lambda values: isinstance(values[0], distributions.Distribution)
    first = {n: getattr(base, n) if drawn(v) else v[0] for n, v in several.items()}
    alone = lambda values: values[0] if drawn(values) and len(values) == 1 else list(values)
    return config.replace(**first), {name: alone(values) for name, values in several.items()}


def value_types() -> tyro.constructors.ConstructorRegistry:
    """How words become values: 5e5 is a whole number, and a tuple is one word with commas.

    Flags of the algorithm take one word or more. Boxes become dicts.
    """
    registry = tyro.constructors.ConstructorRegistry()

    @registry.struct_rule
    def dict_of(info: tyro.constructors.StructTypeInfo) -> Any:
        if isinstance(info.type, type) and issubclass(info.type, Box):
            return tyro.constructors.StructConstructorSpec(dict, info.type.fields)
        return None

    @registry.primitive_rule
    def rule(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        kind = reader(info.type)
        if kind is None:
            return None
        if SEVERAL not in info.markers:
            return words_of(*kind, one=True) if info.type in (int, float) else None
        metavar, read, is_instance, write = kind
        return words_of(metavar, or_draw(read, info.type), is_instance, write, one=False)

    return registry


def reader(kind: Any) -> tuple[str, Any, Any, Any] | None:
    """For a field's type: its metavar, how a word is read, what it gives, how that is written."""
    if kind is int:
        return "INT", reading.whole_number, int, str
    if kind is float:
        return "FLOAT", reading.number, int | float, settings.plain
    if kind is bool:
        return "TRUE|FALSE", reading.bool_of, bool, lambda value: str(value).lower()
    if kind is str:
        return "STR", str, str, str
    if typing.get_origin(kind) is not tuple:
        return None
    items = typing.get_args(kind)
    if items == (int, ...):
        return "INT,INT,...", reading.whole_numbers, tuple, lambda value: ",".join(map(str, value))
    if typing.get_origin(items[0]) is tuple:
        return "NAME=VALUE,...", reading.named_values, tuple, reading.named_values_text
    return None


def words_of(metavar: str, read: Any, kind: Any, write: Any, one: bool) -> Any:
    """A value that takes one word of the command line, or several values with a word each."""

    def values(words: list[str]) -> Any:
        if not words:
            raise ValueError("a value is missing")
        read_words = Several(map(read, words))
        alone = len(words) == 1 and not isinstance(read_words[0], distributions.Distribution)
        return read_words[0] if alone else read_words

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1 if one else "*",
        metavar=metavar if one else f"{metavar} ...",
        instance_from_str=values,
        is_instance=lambda value: isinstance(value, kind),
        str_from_instance=lambda value: [write(value)],
    )


def or_draw(read: Any, kind: Any) -> Any:
    """How a field's word is read that may be a distribution, log:1e-5:1e-2 or choice:tanh,relu."""
    plain = kind if kind in (float, int, bool, str) else tuple
    # Names of environments have colons themselves, as have settings of environments.
    marks = (":",) if plain in (float, int, bool) else ("choice:",)

    def value_or_draw(word: str) -> Any:
        is_draw = any(mark in word for mark in marks)
        return distributions.distribution(word, plain, read) if is_draw else read(word)

    return value_or_draw
