"""Reading a run back, for a user's own script, --evaluate and --render."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct

from algorithms.launch.compute import programs
from algorithms.launch.errors import UserError
from algorithms.launch.metrics import Metrics, mean_returns, over_episodes, stack
from algorithms.launch.settings import Agents
from algorithms.launch.show.brief import brief
from algorithms.launch.storage import experiment
from algorithms.launch.storage.run_dir import RunDir


@struct.dataclass
class Acting:
    """A state of which the policy alone was kept, which is all that acting needs."""

    policy: Any


class Loaded(NamedTuple):
    """A run, at one point. With agent=None what belongs to agents has an axis (num_agents,)."""

    module: Any
    config: Any  # with agent=None and swept floats, these are (num_agents,)
    state: Any  # the whole state where it was kept, else `Acting`: a pytree, too
    policy: Callable  # policy(state, observation, memory=None, rng=None) -> action, memory
    metrics: Metrics  # up to that point, of all agents, (num_agents, points, ...)
    points: list[int]  # numbers of those points
    point: Any  # the number of the point, or one for each agent
    agents: Agents  # seeds and swept floats, of one agent or all

    def __repr__(self) -> str:
        return brief(self)


def load(
    run_dir: Path | str,
    point: int | str | Callable = "last",
    *,
    agent: int | None = 0,
    module: Any = None,
    env: Any = None,
    whole: bool = True,
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
      whole: read the whole state where it was kept; False reads the policy alone, which is all
        that acting needs.

    Raises:
      UserError: no such run, point or agent, or a checkpoint that is damaged or does not fit.
    """
    run, agent = experiment.open(run_dir).locate(agent)
    module = module or find_module(run.algorithm)
    config = run.config(module.Config, env)
    agents, count = run.agents, run.agents.count
    if agent is not None and not 0 <= agent < count:
        raise UserError(f"agent={agent}: {run.path} has agents 0 to {count - 1}")
    history = run.history()
    wanted = range(count) if agent is None else range(agent, agent + 1)
    chosen = [_choose(run, point, history, i) for i in wanted]
    programs.make_environment(module, config)
    state = _read(run, chosen, wanted, programs.initial_state(module, config), whole)
    points = [p for p in history if p <= max(chosen)]
    if agents.floats:
        config = agents.configs(config) if agent is None else agents.config(config, agent)
    return Loaded(
        module,
        config,
        state if agent is None else one_agent(state, 0),
        module.make_policy(config),
        stack(history[p] for p in points),
        points,
        chosen if agent is None else chosen[0],
        agents if agent is None else agents.part(agent, agent + 1),
    )


def _read(run_dir: RunDir, chosen: list[int], agents: range, like: Any, whole: bool) -> Any:
    """The states (agents, ...) of some agents, each at its own point."""
    if whole and len(set(chosen)) == 1 and chosen[0] in run_dir.points("state"):
        return run_dir.read(chosen[0], "state", like, agents)
    if len(set(chosen)) == 1:
        return Acting(run_dir.read(chosen[0], "policy", like.policy, agents))
    policies = {p: run_dir.read(p, "policy", like.policy, agents) for p in set(chosen)}
    own = lambda *leaves: np.stack([leaf[i] for i, leaf in enumerate(leaves)])
    return Acting(jax.tree.map(own, *[policies[p] for p in chosen]))


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
    curves = {name: v[agent : agent + 1] for name, v in stack(history.values()).items()}
    if callable(point):
        scores = point({name: over_episodes(name, v)[0] for name, v in curves.items()})
    else:
        scores = mean_returns(curves)[0]
    scores = np.asarray(scores, np.float64)
    return list(history)[np.argmax(np.where(np.isnan(scores), -np.inf, scores))]


def one_agent(state: Any, agent: int) -> Any:
    """Without the agent axis."""
    return jax.tree.map(lambda x: jax.numpy.asarray(x[agent]), state)


def find_module(algorithm: str) -> Any:
    """The module of an algorithm of this kit."""
    name = f"algorithms.{algorithm}"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UserError(f"{algorithm} is not one of `algorithms`: hand its module over") from None
