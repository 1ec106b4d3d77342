"""New trials begin at the policy of another run: --init-from.

They take `state.policy`: parameters and observation statistics. Target networks become copies of
it. With the optimiser (--init-optimizer) they take everything that gradient steps change. The rest
of the state is new: environments, replay buffer, counters and keys.
"""

import collections
import dataclasses
import functools
from collections.abc import Collection, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import envs
from algorithms import parts
from algorithms.launch.engine import (
    devices,
    experiment,
    files,
    hosts,
    loading,
    outcomes,
    programs,
    settings,
    sources,
)
from algorithms.launch.engine.errors import UserError, warn
from algorithms.launch.engine.population import LEARNED
from algorithms.launch.engine.run_dir import RunDir
from algorithms.launch.engine.sources import Source


class Initial(NamedTuple):
    """Where the trials of a run begin; config.json has it as `init_from`."""

    run: str  # the directory of a run or a sweep
    point: int | str = "last"  # or "best", or a number
    trial: int | None = None  # None: as `_trials` chooses
    optimizer: bool = False  # take the optimiser's state, too, and the other networks
    seeds: Sequence[int] = ()  # of the new trials
    trials: Sequence[int] = ()  # where each seed begins
    points: Sequence[int] = ()

    @property
    def asked(self) -> list[Any]:
        """What a user asks for; the rest follows from it and the run."""
        return list(self[:4])

    def of_seed(self, seed: int) -> int:
        """The place of a trial's source; seeds of a retest take the sources in turn."""
        return (seed - self.seeds[0]) % len(self.seeds)


def asked(values: dict[str, Any]) -> Initial | None:
    """The beginning that the keywords init_from, init_point, init_trial and init_optimizer name.

    Raises:
      UserError: one of them without init_from, or a value that it does not take.
    """
    plain = {name: parts.value_like(0, value) for name, value in values.items()}
    given = {name.removeprefix("init_"): value for name, value in plain.items()}
    run = given.pop("from", None)
    wanted = Initial(str(files.local(run).resolve()) if run else "", **given)
    if run is None:
        defaults = Initial._field_defaults
        others = [f"init_{name}" for name in given if getattr(wanted, name) != defaults[name]]
        if others:
            raise UserError(f"{', '.join(others)}: goes with init_from, which is missing")
        return None
    if wanted.point not in ("last", "best") and type(wanted.point) is not int:
        raise UserError(f"init_point={wanted.point!r}: give last, best or the number of a point")
    return wanted


# --- which trials and points -----------------------------------------------------------------


def choose(wanted: Initial, seeds: Sequence[int], algorithm: str) -> Initial:
    """The same, with a trial and a point for each seed.

    Raises:
      UserError: it is no such run, or it lacks that point or trial, or the trial is not finite.
    """

    def find() -> list[list[int]]:
        there = experiment.open(wanted.run)
        if "population" in there.description:
            raise UserError(
                f"init_from={wanted.run} is a run of populations: give one of single trials"
            )
        if there.algorithm != algorithm:
            raise UserError(
                f"init_from={wanted.run} is a run of {there.algorithm}, not of {algorithm}: "
                "parameters of one algorithm do not fit another"
            )
        trials = wanted.trials or _trials(there, wanted, len(seeds))
        points: Sequence[int | str] = wanted.points or [wanted.point] * len(trials)
        each = [_point(there, wanted._replace(point=p), t) for t, p in zip(trials, points)]
        return [list(trials), each]

    trials, points = hosts.from_first(find)
    return wanted._replace(seeds=list(wanted.seeds or seeds), trials=trials, points=points)


def _trials(there: experiment.Experiment, wanted: Initial, count: int) -> list[int]:
    """A trial for each seed: the one that is asked for. Else seed i of several has trial i (of a
    sweep, of those of its best setting). A single seed has the best trial, and so have all where
    there are fewer trials than seeds."""
    if wanted.trial is not None:
        return [wanted.trial] * count
    if not there.is_sweep and there.run_dir().trials.floats:
        raise UserError(
            f"init_from={wanted.run} has several settings: say which trial, init_trial=N"
        )
    best, everyone = outcomes.one_of(there), outcomes.choose(there, "all").numbers
    return everyone[:count] if 1 < count <= len(everyone) else [best] * count


def _point(there: experiment.Experiment, wanted: Initial, trial: int) -> int:
    run, place = there.locate(trial, "init_trial")
    point = loading.choose_point(run, wanted.point, run.history(), place)
    if not run.is_finite(point)[place]:
        raise UserError(
            f"init_from={wanted.run}: trial {trial} is not finite at point {point}: "
            "choose another with init_trial or init_point"
        )
    if not wanted.optimizer:
        return point
    run, _ = there.locate_state(trial, point)
    if point not in (kept := run.points("state")):
        raise UserError(
            f"init_optimizer=True: {run.path} has no whole state of point {point}; it has {kept} "
            "(a run with --keep-states keeps those of all points)"
            f"{experiment.gone_states(run.path)}"
        )
    return point


# --- reading ---------------------------------------------------------------------------------


def taken(state: Any, optimizer: bool) -> list[str]:
    """The fields of a state that a new trial takes."""
    names = [field.name for field in dataclasses.fields(state)]
    return [name for name in names if name == "policy" or (optimizer and name.endswith(LEARNED))]


def check_fit(initial: Initial, module: Any, config: Any) -> None:
    """Refuses parameters whose shapes are not those of a configuration.

    Raises:
      UserError: it names the array and both shapes.
    """
    there = experiment.open(initial.run)
    like = programs.initial_state(module, config)
    like = _only(like, taken(like, initial.optimizer))
    expected = dict(files.named_leaves(like))
    prefix, kind = ("", "state") if initial.optimizer else (".policy", "policy")
    for trial, point in sorted(set(zip(initial.trials, initial.points))):
        run, _ = _home(there, initial, trial, point)
        file = next(iter(run.parts(point, kind).values()))
        shapes = files.shapes(file, run.algorithm)
        found = {f"{prefix}{name}": shape[1:] for name, shape in shapes.items()}
        found = files.with_names_of(like, found)
        for name, leaf in expected.items():
            here, its = tuple(jax.eval_shape(devices.plain, leaf).shape), found.get(name)
            if its != here:
                has = "is not" if its is None else f"has the shape {its}"
                raise UserError(
                    f"init_from={initial.run} does not fit: state{name} {has} there and has the "
                    f"shape {here} here; networks and the environment's spaces must be the same"
                )
        tops = tuple(f".{name}" for name in taken(like, initial.optimizer))
        for name in found:
            if name.startswith(tops) and name not in expected:
                raise UserError(
                    f"init_from={initial.run} does not fit: it has state{name}, which is not "
                    "here; networks must be the same"
                )


def tell(initial: Initial, module: Any, config: Any, env: Any, swept: Collection[str]) -> None:
    """Warns of what makes the policy another one here than in its run: edited files and settings.

    Args:
      env: of `envs.make`.
      swept: fields of the config that are not the same for all trials.
    """
    there = experiment.open(initial.run)
    for trial, point in sorted(set(zip(initial.trials, initial.points))):
        session = there.locate(trial)[0].session(point)
        loading.tell_of_edits(there.path, session, module, env, config.env)
    run, place = there.locate(initial.trials[0])
    its = {name: settings.value_of(value) for name, value in run.description["config"].items()}
    known = config.__dataclass_fields__.keys() - {"env", "env_settings", *swept}
    others = {
        name: value
        for name, value in (its | run.trials.setting(place)).items()
        if name in known and value != getattr(config, name)
    }
    if names := _acting_otherwise(module, config, others):
        ours, theirs = (
            ", ".join(settings.text_of({name: value(name) for name in names}))
            for value in (functools.partial(getattr, config), others.get)
        )
        warn(
            f"init_from={initial.run}: with {ours} its policy acts otherwise than in training; "
            f"{theirs} would do"
        )


def _acting_otherwise(module: Any, config: Any, others: dict[str, Any]) -> list[str]:
    """Those of some other values with which the program of the policy is another one."""
    env, env_params = envs.make(config.env, **dict(config.env_settings))
    key = jax.eval_shape(lambda: jax.random.key(0))
    observation = jax.eval_shape(env.reset_env, key, env_params)[0]
    like = programs.initial_state(module, config).policy

    def text(values: dict[str, Any]) -> str:
        policy = module.make_policy(config.replace(**values), env, env_params)
        act = lambda its, observation: policy(SimpleNamespace(policy=its), observation)
        return str(jax.make_jaxpr(act)(like, observation))

    try:
        own = text({})
        if text(others) == own:
            return []
        return [name for name, value in others.items() if text({name: value}) != own]
    except Exception:  # values that do not go together
        return []


def read(initial: Initial, module: Any, config: Any) -> Any:
    """A state with what is taken (num_seeds, ...), on the host, and None in the other fields.

    Raises:
      UserError: a file is missing or damaged, or does not fit.
    """
    there = experiment.open(initial.run)
    like = programs.initial_state(module, config)
    blank = _only(like, taken(like, initial.optimizer))

    def of_run(run: RunDir, point: int, trials: range) -> Any:
        if initial.optimizer:
            return run.read(point, "state", blank, trials, partly=True)
        return blank.replace(policy=run.read(point, "policy", like.policy, trials))

    pairs = list(zip(initial.trials, initial.points))
    homes = [_home(there, initial, trial, point) for trial, point in pairs]
    come = [Source(*home, at) for home, at in zip(homes, initial.points)]
    return sources.rows(come, of_run)


def _home(
    there: experiment.Experiment, initial: Initial, trial: int, point: int
) -> tuple[RunDir, int]:
    """The run that has what is taken, and the trial's place there."""
    return there.locate_state(trial, point) if initial.optimizer else there.locate(trial)


def _only(state: Any, names: Sequence[str]) -> Any:
    others = [field.name for field in dataclasses.fields(state) if field.name not in names]
    return state.replace(**dict.fromkeys(others))


# --- beginning -------------------------------------------------------------------------------


def begin(
    initial: Initial, states: Any, module: Any, config: Any, layout: Any, seeds: Sequence[int]
) -> Any:
    """New trials' states on the devices, with what is taken in place of their own.

    Args:
      states: of the trials, with leaves (padded, ...).
      seeds: of the trials.
    """
    found = read(initial, module, config)
    needed = layout.needed
    places = [initial.of_seed(seeds[i]) for i in needed]
    found = layout.put(jax.tree.map(lambda x: x[places], found), needed.start)
    names = taken(states, initial.optimizer)
    if not initial.optimizer:
        states = with_copies(states, found.policy)
    states = states.replace(**{name: getattr(found, name) for name in names})
    return jax.device_put(states, layout.of_states)


def with_copies(states: Any, policy: Any) -> Any:
    """The states with the policy's parameters in every copy of their own, as target networks are.

    A copy is a part of a fresh state outside of the policy with the structure, the shapes and the
    numbers of a part of the policy, such as its critic. Numbers that are all alike (zeros) make no
    copy.

    Args:
      states: fresh ones, with leaves (trials, ...).
      policy: the other policies, (trials, ...).
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(states)
    by_path = dict(leaves)
    fresh, new = (dict(jax.tree_util.tree_leaves_with_path(p)) for p in (states.policy, policy))
    elsewhere = _subtrees([p for p in by_path if p[0] != jax.tree_util.GetAttrKey("policy")])
    for start, own in _subtrees(fresh).items():  # the whole before its parts
        if len(own) == 1 and len(start) > 1:
            continue  # a single array
        for part in elsewhere.values():
            if part.keys() != own.keys() or any(
                by_path[path].shape != fresh[own[rest]].shape for rest, path in part.items()
            ):
                continue
            its, of_own = [by_path[path] for path in part.values()], [own[rest] for rest in part]
            moved = _copied([fresh[p] for p in of_own], its, [new[p] for p in of_own])
            by_path |= dict(zip(part.values(), moved))
    return jax.tree.unflatten(structure, list(by_path.values()))


def _subtrees(paths: Iterable[tuple]) -> dict[tuple, dict[tuple, tuple]]:
    """The parts of a tree, the largest first: {path of a part: {rest of a path: path}}."""
    found: dict[tuple, dict[tuple, tuple]] = collections.defaultdict(dict)
    for path in paths:
        for n in range(1, len(path) + 1):
            found[path[:n]][path[n:]] = path
    return {start: found[start] for start in sorted(found, key=len)}


@jax.jit
@jax.vmap
def _copied(own: list[jax.Array], part: list[jax.Array], new: list[jax.Array]) -> list[jax.Array]:
    """`new` if `part` is a copy of `own`, else `part`."""
    equal = [jnp.array_equal(x, y) for x, y in zip(own, part)]
    varied = [jnp.any(x != x.ravel()[0]) for x in own if x.size]
    is_copy = jnp.all(jnp.array(equal)) & jnp.any(jnp.array([False, *varied]))
    return [jnp.where(is_copy, x, y) for x, y in zip(new, part)]


def in_words(initial: Initial, state: Any) -> str:
    """Where the trials begin, and which learned parts are new, for people."""
    pairs = list(dict.fromkeys(zip(initial.trials, initial.points)))
    each = [f"trial {trial} at point {point}" for trial, point in pairs]
    who = ", ".join(each[:5]) + f" and {len(each) - 5} more" * (len(each) > 5)
    have = ", ".join(taken(state, initial.optimizer))
    left = [name for name in taken(state, True) if name not in taken(state, initial.optimizer)]
    new = f"; new: {', '.join(left)} (init_optimizer takes them, too)" if left else ""
    return f"begins at {have} of {initial.run}, {who}{new}"
