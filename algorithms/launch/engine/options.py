"""What a run does besides training, and checks before anything runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from algorithms import parts
from algorithms.launch.engine import devices, initial, population, settings
from algorithms.launch.engine.errors import UserError, unknown
from algorithms.launch.engine.initial import Initial
from algorithms.launch.engine.run_dir import VERSION
from algorithms.launch.engine.settings import Trials, algorithm_name

INIT = ("init_from", "init_point", "init_trial", "init_optimizer")
CHOSEN = ("init_seeds", "init_trials", "init_points")  # by an earlier run, for --config
GIF_CHOICES = ("never", "start", "end", "every")
SWEEP_STATES = ("best", "all")
TRACKERS = ("track", "tensorboard")  # options of which each opens a tracker


class Options(NamedTuple):
    """Kept in config.json, so that resuming goes on with it.

    Each field is also a flag: a field of `Flags` (launch/flags.py) with its name and default.
    """

    keep_states: bool = False
    sweep_states: str = "best"  # whose whole states stay when a sweep is over (states.py)
    track: bool = False
    one_run_per_seed: bool = False
    tensorboard: bool = False
    gif: str = "never"
    split_envs: int = 1  # shards of each trial; a run keeps its number
    init: Initial | None = None  # where new trials begin; None: as the algorithm has them

    @property
    def tracked(self) -> list[str]:
        """The trackers that are asked for."""
        return [name for name in TRACKERS if getattr(self, name)]

    def to_json(self) -> dict[str, Any]:
        """Plain values; `init` has a place of its own in config.json."""
        return {name: value for name, value in self._asdict().items() if name != "init"}


NAMES = tuple(name for name in Options._fields if name != "init")
# Keywords of `launch.run` and its like that an unknown one may be meant for.
OWN = ("seed", "num_seeds", "run_dir", "sweep_dir", "resume_if_exists", "root", "save", "hooks")


def check_bools(**values: Any) -> None:
    for name, value in values.items():
        if not isinstance(parts.value_like(True, value), bool):
            raise UserError(f"{name}={value!r}: give True or False")


def make_options(values: dict[str, Any]) -> Options:
    """Options from keywords, and from those of `INIT`; unknown ones are refused."""
    for name in values:
        if name not in NAMES + INIT + CHOSEN:
            raise unknown("option", name, OWN + NAMES + INIT)
    begins = initial.asked({name: value for name, value in values.items() if name in INIT + CHOSEN})
    defaults = Options._field_defaults
    own = {n: parts.value_like(defaults[n], value) for n, value in values.items() if n in NAMES}
    check_bools(**{n: value for n, value in own.items() if isinstance(defaults[n], bool)})
    options = Options(**own, init=begins)
    if options.gif not in GIF_CHOICES:
        raise UserError(f"gif={options.gif!r}: choose one of {', '.join(GIF_CHOICES)}")
    if options.sweep_states not in SWEEP_STATES:
        choices = ", ".join(SWEEP_STATES)
        raise UserError(f"sweep_states={options.sweep_states!r}: choose one of {choices}")
    if options.one_run_per_seed and not options.tracked:
        able = " or ".join(TRACKERS)
        raise UserError(f"one_run_per_seed=True is about trackers: use it with {able}")
    return options


def seeds_of(seed: Any, num_seeds: Any = 1) -> range:
    """The seeds of trials. Whole floats and numbers of NumPy and jax count as ints."""
    if isinstance(seed, jax.Array) and devices.is_key(seed):
        raise UserError("seed is a key: give a whole number; trial i has jax.random.key(seed + i)")
    first, number = parts.value_like(0, seed), parts.value_like(1, num_seeds)
    for name, value in (("seed", first), ("num_seeds", number)):
        if type(value) is not int:
            raise UserError(f"{name}={value!r}: give a whole number")
    if number < 1:
        raise UserError(f"num_seeds={number}: give 1 or more")
    if first < 0 or first + number > 2**32:
        raise UserError(f"seed={first}: seeds go from 0 to {2**32 - 1}")
    return range(first, first + number)


def check_floats(config: Any) -> None:
    """Refuses floats that cannot work, those of all trials; in their programs they are traced."""
    try:
        parts.check_reals(config)
    except ValueError as error:
        raise UserError(str(error)) from error


def check_files(options: Options, save: bool) -> None:
    others = options._replace(init=None, split_envs=1)
    if not save and others != Options():
        asked = [n for n in NAMES if getattr(others, n) != Options._field_defaults[n]]
        raise UserError(f"save=False: {' and '.join(asked)} need{'s' * (len(asked) == 1)} files")


def check_hooks(hooks: Any) -> None:
    if not isinstance(hooks, Sequence) or not all(map(callable, hooks)):
        raise UserError("hooks: give a list of functions, hooks=[...]")


def check_algorithm(module: Any, algorithm: str, path: Path) -> None:
    if algorithm != algorithm_name(module):
        raise UserError(
            f"{path} is a run of {algorithm}, not of {algorithm_name(module)}: use {algorithm}.py"
        )


def describe(module: Any, config: Any, trials: Trials, options: Options) -> dict[str, Any]:
    """What config.json holds."""
    return {
        "version": VERSION,
        "algorithm": algorithm_name(module),
        "options": options.to_json(),
        "config": settings.config_to_json(config),
        **trials.to_json(),
        **population.described(module),
        **init_to_json(options),
    }


def init_to_json(options: Options) -> dict[str, Any]:
    """Where trials begin, as config.json and sweep.json have it; nothing for those from scratch."""
    return {"init_from": options.init._asdict()} if options.init else {}


def stored(description: dict[str, Any]) -> dict[str, Any]:
    """The options of what is there; what an earlier version has made keeps all of its states."""
    return {"sweep_states": "all"} | description["options"]


def options_of(description: dict[str, Any], changes: dict[str, Any]) -> Options:
    """The options of what is there, with changes; where it began does not change.

    Raises:
      UserError: an option that is unknown, about the beginning, or another number of shards.
    """
    for name in changes:
        if name in INIT:
            raise UserError(f"{name}: trials that have begun go on from their own states")
    begins = description.get("init_from")
    old = description["options"].get("split_envs", 1)
    if (new := changes.get("split_envs", old)) != old:
        raise UserError(
            f"split_envs={new}: the run has begun with split_envs={old}, and its state is made of "
            "as many parts; leave it out"
        )
    options = make_options(stored(description) | changes)
    return options._replace(init=Initial(**begins) if begins else None)
