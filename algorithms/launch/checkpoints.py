"""The directory of a run: configuration, versions, metrics and checkpoints.

    config.json         algorithm, seeds, options and every field of the Config
    versions.json       libraries, device and git commit, one entry for each session
    metrics.csv         one row for each seed and point
    checkpoints/000007.policy    state.policy of all agents, and the metrics of that point
    checkpoints/000007.state     the whole state, for the last two points

A point is saved when its .state is there. Files appear whole or not at all (temporary name, fsync,
rename), the .policy before the .state, and older states go only after that: a
kill at any moment leaves the last good point.
"""

import dataclasses
import hashlib
import importlib
import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import serialization

from algorithms.launch import devices
from algorithms.launch.errors import UserError, unknown

MAGIC = b"RL checkpoint 1\n"
KEPT_STATES = 2
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "distrax", "gymnax", "numpy")
Metrics = dict[str, np.ndarray]

# --- files -----------------------------------------------------------------------------------


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file that is there whole or not at all, whenever the machine stops."""
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_checkpoint(path: Path, header: dict[str, Any], tree: Any) -> None:
    """Saves a header (plain values and arrays) and a pytree of host arrays, with checksums."""
    arrays = {name: np.asarray(devices.plain(leaf)) for name, leaf in _named_leaves(tree)}
    parts = [serialization.msgpack_serialize(part) for part in (header, arrays)]
    framed = (len(p).to_bytes(8, "little") + hashlib.sha256(p).digest() + p for p in parts)
    write_whole(path, MAGIC + b"".join(framed))


def read_header(path: Path, algorithm: str) -> dict[str, Any]:
    """The header alone, which is small.

    Raises:
      UserError: the file is missing, damaged, no checkpoint, or of another algorithm.
    """
    with _open(path) as file:
        return _read_header(file, path, algorithm)


def read_checkpoint(path: Path, algorithm: str, like: Any, num_agents: int) -> Any:
    """The pytree in a checkpoint, as host arrays (num_agents, ...).

    Args:
      path: of the file.
      algorithm: that wrote it.
      like: shapes and dtypes for one agent; typed keys are wrapped again.
      num_agents: in the file.

    Raises:
      UserError: the file is missing, damaged, of another algorithm, or does not fit.
    """
    with _open(path) as file:
        _read_header(file, path, algorithm)
        arrays = _read_part(file, path)
    leaves = []
    for name, leaf in _named_leaves(like):
        stored = jax.eval_shape(devices.plain, leaf)
        expected = (num_agents, *stored.shape)
        found = arrays.pop(name, None)
        if found is None:
            raise UserError(f"{path} does not fit this configuration: it has no {name}")
        if found.shape != expected or found.dtype != stored.dtype:
            raise UserError(
                f"{path} does not fit this configuration: {name} is {found.dtype}{found.shape}, "
                f"expected {stored.dtype}{expected}"
            )
        leaves.append(devices.like_key(found, leaf))
    if arrays:
        raise UserError(
            f"{path} does not fit this configuration: {next(iter(arrays))} is left over"
        )
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    return [
        (jax.tree_util.keystr(path), x) for path, x in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _open(path: Path) -> Any:
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None


def _read_header(file: Any, path: Path, algorithm: str) -> dict[str, Any]:
    if file.read(len(MAGIC)) != MAGIC:
        raise UserError(f"{path} is not a checkpoint of this kit (its first bytes differ)")
    header = _read_part(file, path)
    if header["algorithm"] != algorithm:
        raise UserError(f"{path} is a checkpoint of {header['algorithm']}, not of {algorithm}")
    return header


def _read_part(file: Any, path: Path) -> dict[str, Any]:
    size = int.from_bytes(file.read(8), "little")
    checksum = file.read(32)
    data = file.read(min(size, os.fstat(file.fileno()).st_size))  # the size may be damaged, too
    if len(data) != size or hashlib.sha256(data).digest() != checksum:
        raise UserError(f"{path} is damaged: its checksum does not match what it holds")
    return serialization.msgpack_restore(data)


# --- configurations as text ------------------------------------------------------------------


def float_fields(config: Any) -> list[str]:
    """Names of the fields that are leaves of the pytree."""
    fields = dataclasses.fields(config)
    return [f.name for f in fields if f.metadata.get("pytree_node", True)]


def config_to_json(config: Any) -> dict[str, Any]:
    """Plain values, for strict JSON: infinity becomes "inf", an environment object its name."""
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    values |= {name: float(values[name]) for name in float_fields(config)}
    values["env_settings"] = dict(values["env_settings"])
    values["env"] = env_name(config)
    return _map_plain(lambda x: str(x) if isinstance(x, float) and math.isinf(x) else x, values)


def config_from_json(cls: type, values: dict[str, Any], source: Path) -> Any:
    """The inverse; fields that are missing take their defaults.

    Raises:
      UserError: a field that the Config does not have.
    """
    known = {f.name for f in dataclasses.fields(cls)}
    for name in values:
        if name not in known:
            raise UserError(f"{source}: {unknown('setting', name, known)}")
    values = _map_plain(lambda x: float(x) if x in ("inf", "-inf") else x, values)
    values = {k: _tuples(v) for k, v in values.items() if k != "env_settings"} | {
        "env_settings": tuple((k, _tuples(v)) for k, v in values.get("env_settings", {}).items())
    }
    return cls(**values)


def env_name(config: Any) -> str:
    """The environment's name, also of an object."""
    env = config.env
    return env if isinstance(env, str) else getattr(env, "name", type(env).__name__)


def _map_plain(function: Callable, value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _map_plain(function, v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_map_plain(function, v) for v in value]
    return function(value)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# --- the directory ---------------------------------------------------------------------------


class RunDir:
    """A run on disk; `description` is what config.json holds."""

    def __init__(self, path: Path, description: dict[str, Any]):
        self.path, self.description = Path(path), description
        self.checkpoints = self.path / "checkpoints"
        self.algorithm: str = description["algorithm"]
        first = description["seed"]
        self.seeds = list(range(first, first + description["num_seeds"]))

    @classmethod
    def create(cls, path: Path, description: dict[str, Any]) -> "RunDir":
        """A new directory.

        Raises:
          UserError: it exists, or it cannot be made.
        """
        run_dir = cls(path, description)
        try:
            run_dir.checkpoints.mkdir(parents=True, exist_ok=False)
        except FileExistsError:
            raise UserError(f"{path} exists: a run is never overwritten") from None
        except OSError as error:
            raise UserError(f"{path} cannot be made: {error.strerror}") from error
        run_dir.describe(description)
        return run_dir

    @classmethod
    def create_named(cls, root: Path, description: dict[str, Any]) -> "RunDir":
        """A new directory `<env>__<algorithm>__<seed>__<time>` in root; -1, -2, ... if taken."""
        names = (description["config"]["env"], description["algorithm"], str(description["seed"]))
        names = (*names, time.strftime("%Y%m%d-%H%M%S"))
        name = "__".join(re.sub(r"[^\w.+-]", "-", part) for part in names)
        count = 0
        while (path := Path(root) / (f"{name}-{count}" if count else name)).exists():
            count += 1
        return cls.create(path, description)

    @classmethod
    def open(cls, path: Path) -> "RunDir":
        """An existing run.

        Raises:
          UserError: there is none.
        """
        file = Path(path) / "config.json"
        description = read_json(file)
        for name in ("algorithm", "seed", "num_seeds", "options", "config"):
            if name not in description:
                raise UserError(f"{file} is not of a run of this kit: it has no {name}")
        return cls(path, description)

    def describe(self, description: dict[str, Any]) -> None:
        """Writes config.json."""
        self.description = description
        text = json.dumps(description, indent=2, allow_nan=False)
        write_whole(self.path / "config.json", text.encode())

    def config(self, cls: type, env: Any = None) -> Any:
        """The configuration, as an instance of the Config; with an environment object if given."""
        values = self.description["config"]
        config = config_from_json(cls, values, self.path / "config.json")
        return config if env is None else config.replace(env=env)

    def write_versions(self, versions: dict[str, Any], point: int) -> list[str]:
        """Adds a session that begins at a point; returns what is not as in the one before it."""
        file = self.path / "versions.json"
        sessions = read_json(file) if file.exists() else []
        before = sessions[-1] if sessions else versions
        sessions.append({"from_point": point, **versions})
        write_whole(file, json.dumps(sessions, indent=2).encode())
        names = [name for name, value in versions.items() if before.get(name) != value]
        return [f"{name} {before.get(name)} -> {versions[name]}" for name in names]

    def file(self, point: int, kind: str) -> Path:
        """The file of a point of this kind, "policy" or "state"."""
        return self.checkpoints / f"{point:06d}.{kind}"

    def points(self, kind: str) -> list[int]:
        """The points that have such a file, in order."""
        return sorted(int(file.stem) for file in self.checkpoints.glob(f"[0-9]*.{kind}"))

    def read(self, point: int, kind: str, like: Any) -> Any:
        """What a file holds, as host arrays (num_agents, ...); `like` is of one agent."""
        return read_checkpoint(self.file(point, kind), self.algorithm, like, len(self.seeds))

    def save(self, point: int, state: Any, metrics: Metrics, keep_states: bool) -> None:
        """Saves a point.

        Args:
          point: its number.
          state: host arrays (num_agents, ...).
          metrics: of this point, (num_agents, ...); empty if the curve has no such point.
          keep_states: keep all whole states and not only the last two.
        """
        header = {"algorithm": self.algorithm, "point": point}
        policy = header | {"metrics": metrics}
        write_checkpoint(self.file(point, "policy"), policy, state.policy)
        write_checkpoint(self.file(point, "state"), header, state)
        if not keep_states:
            for old in self.points("state")[:-KEPT_STATES]:
                self.file(old, "state").unlink()

    def history(self, last: int | None = None) -> dict[int, Metrics]:
        """Metrics (num_agents, ...) of the curve's points, up to the last one that is wanted."""
        points = [p for p in self.points("policy") if last is None or p <= last]
        rows = {p: read_header(self.file(p, "policy"), self.algorithm)["metrics"] for p in points}
        return {point: row for point, row in rows.items() if row}

    def rewind(self, last: int) -> None:
        """Drops all that is past a point, and what a killed process has left behind."""
        for kind in ("policy", "state"):
            for later in [point for point in self.points(kind) if point > last]:
                self.file(later, kind).unlink()
        for part in self.checkpoints.glob(".*.part"):
            part.unlink()
        write_whole(self.path / "metrics.csv", csv(self.history(last), self.seeds).encode())

    def append_metrics(self, point: int, metrics: Metrics) -> None:
        """Adds a row for each seed to metrics.csv."""
        with open(self.path / "metrics.csv", "a") as file:
            file.write(csv({point: metrics}, self.seeds, header=not file.tell()))


def read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{file} does not exist: give the directory of a run") from None
    except ValueError as error:
        raise UserError(f"{file} is not readable as JSON: {error}") from None


# --- metrics ---------------------------------------------------------------------------------


def stack(rows: Iterable[Metrics]) -> Metrics:
    """Metrics of points (num_agents, ...) as those of the curve (num_agents, points, ...)."""
    rows = list(rows)
    return {name: np.stack([row[name] for row in rows], 1) for name in rows[0]} if rows else {}


def columns(metrics: Metrics) -> Metrics:
    """Metrics (num_agents,): evaluations averaged over their episodes, a column per player."""
    result = {}
    for name in sorted(metrics, key=lambda name: name != "timestep"):  # that one first
        values = metrics[name].mean(1) if name.startswith("eval_") else metrics[name]
        if values.ndim == 1:
            result[name] = values
        else:
            players = values.reshape(len(values), -1).T
            result |= {f"{name}_{i}": player for i, player in enumerate(players)}
    return result


def csv(history: dict[int, Metrics], seeds: list[int], header: bool = True) -> str:
    """Rows seed, point, metrics..."""
    lines = []
    for point, metrics in history.items():
        table = columns(metrics)
        if header and not lines:
            lines.append(",".join(("seed", "point", *table)))
        for i, seed in enumerate(seeds):
            cells = (seed, point, *(values[i].item() for values in table.values()))
            # Nine digits give a float32 back exactly.
            texts = (format(x, ".9g") if isinstance(x, float) else str(x) for x in cells)
            lines.append(",".join(texts))
    return "".join(f"{line}\n" for line in lines)


def mean_return(history: Metrics) -> np.ndarray:
    """Evaluation returns (training returns if there are none) over all players, (points,)."""
    values = history.get("eval_return", history["episode_return"])
    return values.reshape(len(values), -1).mean(1)


# --- what a run's user asks for --------------------------------------------------------------


class Loaded(NamedTuple):
    """A run, at one point. With agent=None what belongs to agents has an axis (num_agents,)."""

    module: Any
    config: Any
    state: Any  # the whole state where it was kept, else an object with nothing but `policy`
    policy: Callable  # policy(state, observation, memory=None, rng=None) -> action, memory
    metrics: Metrics  # up to that point, of all agents, (num_agents, points, ...)
    points: list[int]  # numbers of those points
    point: Any  # the number of the point, or one for each agent
    seeds: list[int]


def load(
    run_dir: Path | str,
    point: int | str | Callable = "last",
    *,
    agent: int | None = 0,
    module: Any = None,
    env: Any = None,
) -> Loaded:
    """Reads a run back.

    Args:
      run_dir: the run's directory.
      point: a point's number; "last"; "best", which is each agent's own point of highest mean
        evaluation return (training return if it was not evaluated); or a function of an
        agent's history {name: (points,)} that gives a score for each point, the highest being best.
      agent: which one (agent i has seed + i), or None for all with a leading axis.
      module: the algorithm, if it is not one of `algorithms`.
      env: the environment, if the run was made with an object in place of a name.

    Raises:
      UserError: no such run, point or agent, or a checkpoint that is damaged or does not fit.
    """
    run_dir = RunDir.open(Path(run_dir))
    module = module or find_module(run_dir.algorithm)
    config = run_dir.config(module.Config, env)
    count = len(run_dir.seeds)
    if agent is not None and not 0 <= agent < count:
        raise UserError(f"agent={agent}: {run_dir.path} has agents 0 to {count - 1}")
    history = run_dir.history()
    chosen = [_choose(run_dir, point, history, i) for i in range(count)]
    wanted = chosen if agent is None else [chosen[agent]]
    devices.make_environment(module, config)
    like = devices.initial_state(module, config)
    if len(set(wanted)) == 1 and wanted[0] in run_dir.points("state"):
        state = run_dir.read(wanted[0], "state", like)
    else:
        policies = {p: run_dir.read(p, "policy", like.policy) for p in set(chosen)}
        own = lambda *leaves: np.stack([leaf[i] for i, leaf in enumerate(leaves)])
        policy = jax.tree.map(own, *[policies[p] for p in chosen])
        state = SimpleNamespace(policy=policy)
    points = [p for p in history if p <= max(wanted)]
    return Loaded(
        module,
        config,
        state if agent is None else one_agent(state, agent),
        module.make_policy(config),
        stack(history[p] for p in points),
        points,
        chosen if agent is None else wanted[0],
        run_dir.seeds,
    )


def _choose(run_dir: RunDir, point: Any, history: dict[int, Metrics], agent: int) -> int:
    """The number of the point that is asked for."""
    saved = run_dir.points("policy")
    if not saved:
        raise UserError(f"{run_dir.path} has no checkpoint yet")
    if point == "last":
        return saved[-1]
    if point != "best" and not callable(point):
        if point not in saved:
            raise UserError(
                f"{run_dir.path} has no point {point!r}; it has {saved[0]} to {saved[-1]}"
            )
        return point
    if not history:
        raise UserError(f"{run_dir.path} has no metrics to tell which point is best")
    curve = {k: v[agent] for k, v in stack(history.values()).items()}
    curve = {k: v.mean(1) if k.startswith("eval_") else v for k, v in curve.items()}
    scores = np.asarray((point if callable(point) else mean_return)(curve), np.float64)
    return list(history)[np.argmax(np.where(np.isnan(scores), -np.inf, scores))]


def one_agent(state: Any, agent: int) -> Any:
    """Without the agent axis."""
    pick = lambda tree: jax.tree.map(lambda x: jax.numpy.asarray(x[agent]), tree)
    if isinstance(state, SimpleNamespace):
        return SimpleNamespace(policy=pick(state.policy))
    return pick(state)


def find_module(algorithm: str) -> Any:
    """The module of an algorithm of this kit."""
    name = f"algorithms.{algorithm}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UserError(f"{algorithm} is not one of `algorithms`: hand its module over") from None


def versions(module: Any, layout: devices.Layout) -> dict[str, Any]:
    """Python, libraries, device and git commit; nothing that tells a machine or a person."""
    device = layout.devices[0]
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in LIBRARIES},
        "platform": f"{platform.system()} {platform.machine()}",
        "device": f"{device.platform} {device.device_kind}",
        "num_devices": len(layout.devices),
        "agents_per_device": layout.per_device,
        **_git(Path(module.__file__).resolve().parent),
    }


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(folder: Path) -> dict[str, Any]:
    """The commit of the checkout that the algorithm is in, and whether files were changed."""
    try:
        commit = _run_git(folder, "rev-parse", "HEAD")
        changes = _run_git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):  # no git, or no checkout
        return {"git_commit": None, "git_dirty": None}
    return {"git_commit": commit, "git_dirty": bool(changes)}


def _run_git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    return done.stdout.strip()
