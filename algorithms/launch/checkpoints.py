"""The directory of a run: configuration, versions, metrics and checkpoints.

    config.json         algorithm, options, every field of the Config, the agents' seeds and floats
    versions.json       libraries, device and git commit, one entry for each session
    metrics.csv         one row for each agent and point
    checkpoints/000007.policy    state.policy of all agents, and the metrics of that point
    checkpoints/000007.state     the whole state, for the last two points

Several processes write a part each, 000007.16-32.state for agents 16 to 31, and any number of
processes can read them. A point is saved when the .state of all agents is there. Files appear whole
or not at all (temporary name, fsync, rename), the .policy before the .state, and older states go
only after that: a kill at any moment leaves the last good point.
"""

import hashlib
import importlib
import importlib.metadata
import json
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

from algorithms.launch import devices, hosts, settings
from algorithms.launch.errors import UserError

MAGIC = b"RL checkpoint 1\n"
KEPT_STATES = 2
SWEEP = "sweep.json"  # in the directory of a sweep
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "distrax", "gymnax", "numpy")
Metrics = dict[str, np.ndarray]
Agents = settings.Agents

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


# --- the directory ---------------------------------------------------------------------------


class RunDir:
    """A run on disk; `description` is what config.json holds."""

    def __init__(self, path: Path, description: dict[str, Any]):
        self.path, self.description = Path(path), description
        self.checkpoints = self.path / "checkpoints"
        self.algorithm: str = description["algorithm"]
        self.agents = Agents.from_json(description)

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
        """A new directory in root, named for environment, algorithm and first seed."""
        config, first = description["config"], description["seeds"][0]
        path = free_path(root, config["env"], description["algorithm"], str(first))
        return cls.create(path, description)

    @classmethod
    def open(cls, path: Path) -> "RunDir":
        """An existing run.

        Raises:
          UserError: there is none.
        """
        if (Path(path) / SWEEP).exists():
            raise UserError(f"{path} is a sweep; its runs are {path}/chunk_000 and so on")
        return cls(path, read_description(Path(path) / "config.json"))

    def describe(self, description: dict[str, Any]) -> None:
        """Writes config.json."""
        self.description = description
        text = json.dumps(description, indent=2, allow_nan=False)
        write_whole(self.path / "config.json", text.encode())

    def config(self, cls: type, env: Any = None) -> Any:
        """The configuration, as an instance of the Config; with an environment object if given."""
        values = self.description["config"]
        config = settings.config_from_json(cls, values, self.path / "config.json")
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

    def file(self, point: int, kind: str, part: range | None = None) -> Path:
        """The file of a point of this kind, "policy" or "state", of all agents or some."""
        own = "" if part in (None, range(self.agents.count)) else f".{part.start}-{part.stop}"
        return self.checkpoints / f"{point:06d}{own}.{kind}"

    def files(self, kind: str) -> dict[int, dict[range, Path]]:
        """{point: {agents: file}} of the points that have such files for all agents, in order."""
        found: dict[int, dict[range, Path]] = {}
        everybody = range(self.agents.count)
        for file in self.checkpoints.glob(f"[0-9]*.{kind}"):
            first, _, last = file.stem.partition(".")[2].partition("-")
            part = range(int(first), int(last)) if last else everybody
            found.setdefault(_number(file), {})[part] = file
        for point, parts in sorted(found.items()):
            parts = dict(sorted(parts.items(), key=lambda item: item[0].start))
            del found[point]  # and back, in order
            if [i for part in parts for i in part] == list(everybody):
                found[point] = parts
        return found

    def parts(self, point: int, kind: str) -> dict[range, Path]:
        """The files of a point, and the agents that each one has; none unless all are there."""
        return self.files(kind).get(point, {})

    def points(self, kind: str) -> list[int]:
        """The points that have such files for all agents, in order."""
        return list(self.files(kind))

    def read(self, point: int, kind: str, like: Any, agents: range | None = None) -> Any:
        """What a point's files hold of some agents (default: all), as host arrays (agents, ...).

        Args:
          like: shapes and dtypes for one agent.
        """
        agents = range(self.agents.count) if agents is None else agents
        pieces = []
        for part, file in self.parts(point, kind).items():
            first, last = max(part.start, agents.start), min(part.stop, agents.stop)
            if first < last:
                piece = read_checkpoint(file, self.algorithm, like, len(part))
                mine = slice(first - part.start, last - part.start)
                pieces.append(jax.tree.map(lambda x, mine=mine: x[mine], piece))
        if not pieces:
            raise UserError(f"{self.file(point, kind)} does not exist")
        join = lambda *x: devices.like_key(np.concatenate([devices.plain(p) for p in x]), x[0])
        return jax.tree.map(join, *pieces) if len(pieces) > 1 else pieces[0]

    def save(
        self,
        point: int,
        state: Any,
        metrics: Metrics,
        is_finite: np.ndarray,
        keep_states: bool,
        part: range | None = None,
    ) -> None:
        """Saves a point.

        Args:
          point: its number.
          state: host arrays (agents, ...) of the agents in `part`.
          metrics: of this point, (num_agents, ...); empty if the curve has no such point.
          is_finite: whether all numbers of an agent's policy are, (num_agents,).
          keep_states: keep all whole states and not only the last two.
          part: the agents of this process; default all.
        """
        part = range(self.agents.count) if part is None else part
        header = {"algorithm": self.algorithm, "point": point}
        policy = header | {"metrics": metrics, "is_finite": is_finite}
        if len(part):
            write_checkpoint(self.file(point, "policy", part), policy, state.policy)
            write_checkpoint(self.file(point, "state", part), header, state)
        if not keep_states and hosts.is_first():  # what goes has been complete for long
            for old in list(self.files("state").values())[:-KEPT_STATES]:
                for file in old.values():
                    file.unlink()

    def history(self, last: int | None = None) -> dict[int, Metrics]:
        """Metrics (num_agents, ...) of the curve's points, up to the last one that is wanted."""
        files = {p: f for p, f in self.files("policy").items() if last is None or p <= last}
        rows = {point: self._header(parts)["metrics"] for point, parts in files.items()}
        return {point: row for point, row in rows.items() if row}

    def is_finite(self, point: int) -> np.ndarray:
        """Whether all numbers of an agent's policy are finite at a point, (num_agents,)."""
        return self._header(self.parts(point, "policy"))["is_finite"]

    def _header(self, parts: dict[range, Path]) -> dict[str, Any]:
        """Every part's header has the metrics of all agents."""
        return read_header(next(iter(parts.values())), self.algorithm)

    def rewind(self, last: int) -> None:
        """Drops all that is past a point, and what a killed process has left behind."""
        for file in self.checkpoints.glob("[0-9]*.*"):
            if _number(file) > last:
                file.unlink()
        for part in self.checkpoints.glob(".*.part"):
            part.unlink()
        write_whole(self.path / "metrics.csv", csv(self.history(last), self.agents).encode())

    def append_metrics(self, point: int, metrics: Metrics) -> None:
        """Adds a row for each seed to metrics.csv."""
        with open(self.path / "metrics.csv", "a") as file:
            file.write(csv({point: metrics}, self.agents, header=not file.tell()))


def free_path(root: Path, *words: str) -> Path:
    """A path `<word>__<word>__<time>` in root that is not there yet; -1, -2, ... if taken."""
    words = (*words, time.strftime("%Y%m%d-%H%M%S"))
    name = "__".join(re.sub(r"[^\w.+-]", "-", word) for word in words)
    count = 0
    while (path := Path(root) / (f"{name}-{count}" if count else name)).exists():
        count += 1
    return path


def _number(file: Path) -> int:
    """The point of a checkpoint's file."""
    return int(file.name.partition(".")[0])


def read_description(file: Path) -> dict[str, Any]:
    """What a config.json holds.

    Raises:
      UserError: there is none, or it is not of a run.
    """
    description = read_json(file)
    for name in ("algorithm", "seeds", "floats", "options", "config"):
        if name not in description:
            raise UserError(f"{file} is not of a run of this kit: it has no {name}")
    return description


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


def csv(history: dict[int, Metrics], agents: Agents, header: bool = True) -> str:
    """Rows seed, swept floats, point, metrics..."""
    lines = []
    for point, metrics in history.items():
        table = columns(metrics)
        if header and not lines:
            lines.append(",".join(("seed", *agents.floats, "point", *table)))
        for i, seed in enumerate(agents.seeds):
            numbers = (values[i].item() for values in table.values())
            lines.append(",".join(map(cell, (seed, *agents.setting(i).values(), point, *numbers))))
    return "".join(f"{line}\n" for line in lines)


def cell(value: Any) -> str:
    """A number for a table of commas; nine digits give a float32 back exactly."""
    return format(value, ".9g") if isinstance(value, float) else str(value)


def mean_return(history: Metrics) -> np.ndarray:
    """Evaluation returns (training returns if there are none) over all players, (points,)."""
    values = history.get("eval_return", history["episode_return"])
    return values.reshape(len(values), -1).mean(1)


# --- what a run's user asks for --------------------------------------------------------------


class Loaded(NamedTuple):
    """A run, at one point. With agent=None what belongs to agents has an axis (num_agents,)."""

    module: Any
    config: Any  # with agent=None and swept floats, these are (num_agents,)
    state: Any  # the whole state where it was kept, else an object with nothing but `policy`
    policy: Callable  # policy(state, observation, memory=None, rng=None) -> action, memory
    metrics: Metrics  # up to that point, of all agents, (num_agents, points, ...)
    points: list[int]  # numbers of those points
    point: Any  # the number of the point, or one for each agent
    agents: Agents  # seeds and swept floats, of one agent or all


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
      run_dir: the run's directory, or a sweep's for an agent of results.csv.
      point: a point's number; "last"; "best", which is each agent's own point of highest mean
        evaluation return (training return if it was not evaluated); or a function of an
        agent's history {name: (points,)} that gives a score for each point, the highest being best.
      agent: which one (agent i has seed + i), or None for all with a leading axis.
      module: the algorithm, if it is not one of `algorithms`.
      env: the environment, if the run was made with an object in place of a name.

    Raises:
      UserError: no such run, point or agent, or a checkpoint that is damaged or does not fit.
    """
    run_dir, agent = locate(Path(run_dir), agent)
    module = module or find_module(run_dir.algorithm)
    config = run_dir.config(module.Config, env)
    agents, count = run_dir.agents, run_dir.agents.count
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
    if agents.floats:
        config = agents.configs(config) if agent is None else agents.config(config, agent)
    return Loaded(
        module,
        config,
        state if agent is None else one_agent(state, agent),
        module.make_policy(config),
        stack(history[p] for p in points),
        points,
        chosen if agent is None else wanted[0],
        agents if agent is None else agents.part(agent, agent + 1),
    )


def locate(path: Path, agent: int | None) -> tuple[RunDir, int | None]:
    """The run that has an agent, and which one it is there: a sweep is many runs.

    Raises:
      UserError: there is no such run or agent, or it is a sweep and no agent is named.
    """
    if not (path / SWEEP).exists():
        return RunDir.open(path), agent
    if agent is None:
        raise UserError(f"{path} is a sweep: say which agent, they are in its results.csv")
    first = 0
    for chunk in read_json(path / SWEEP)["chunks"]:
        if first <= agent < first + chunk["agents"]:
            return RunDir.open(path / chunk["run"]), agent - first
        first += chunk["agents"]
    raise UserError(f"agent={agent}: {path} has agents 0 to {first - 1}")


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
