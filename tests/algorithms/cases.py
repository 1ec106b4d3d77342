"""What the shared tests need to know about each algorithm file: CASE in its test_<name>.py.

A test with an argument `case` runs for all cases, or for those that `pytest.mark.cases` selects. In
test_<name>.py it runs for that file's case. conftest.py has the fixtures for cases.
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms
from algorithms import parts
from algorithms.parts import info, training
from envs.gymnax import Wrapper
from tests.conftest import compiled_as_for_users

EVALUATION = {"eval_return", "eval_length", "eval_last_reward", "eval_terminated"}
EVALUATION |= {"eval_truncated"}
FOLDER = Path(algorithms.__file__).parent
# Nearly all of their settings are those of dqn, td3, ppo, ppo_rnn, ippo, pqn, sac and reppo.
RELATIVES = {"c51", "qrdqn", "iqn", "ddpg", "ippo_rnn", "pqn_rnn", "r2d2", "sac_discrete"}
RELATIVES |= {"reppo_discrete", "ppo_plr"}
of_relatives_seldom = pytest.mark.cases(slow=lambda case: case.name in RELATIVES)
settings = functools.partial(dataclasses.field, default_factory=dict)  # none by default


def params_of(state):
    return state.policy.params


def policy_and_metrics(state, metrics):
    return state.policy, metrics


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Case:
    """The shared tests' knowledge of one file."""

    module: ModuleType  # the algorithm
    tiny: Any  # a small config with three updates at three points
    metrics: set[str]  # the names of the metrics of an update; each file has the learning rate
    pinned: Mapping[str, Any]  # values of some metrics at the points, for seed 0
    refused: tuple[tuple[dict, str], ...] = ()  # (change of tiny, error), beyond the shared ones
    world: tuple = ()  # environment and parameters, if tiny does not name them
    evaluation: set[str] = dataclasses.field(default_factory=lambda: EVALUATION)  # its metrics
    exact: bool = False  # whether every test run compares slices bit for bit
    # Floats
    swept: Mapping[str, Any] = settings()  # changes under which each float matters
    swept_world: tuple | None = None  # their environment, if not `world`
    unswept: tuple[str, ...] = ()  # floats that do nothing there, and have tests of their own
    other: Mapping[str, Any] = settings()  # values of floats, if half does not change learning
    learned: Callable = params_of  # the part of a state that every float must change
    compared: Callable = policy_and_metrics  # the parts that are close in a batch
    tolerance: Mapping[str, float] = settings()  # the tolerance, if not the usual one
    static_world: tuple | None = None  # where static settings matter, if not in a probe
    # Probe tasks
    probe: Any = None  # a config that learns small tasks
    probes: Mapping[str, bool] = settings()  # {kind of actions: whether in every test run}
    num_probes: int = 7  # the first ones
    constant_inputs: bool = True  # whether it learns actions where observations never vary
    played: Callable | None = None  # values and actions for a case and a kind
    # Values and actors from a replay buffer, see test_value_based.py and test_actor_critics.py
    action_values: Callable | None = None
    prefer: Callable | None = None
    expected_loss: Callable | None = None
    clipped_targets: Callable | None = None
    mean_values: Callable | None = None
    mean_action: Callable | None = None
    lowest_value: Callable | None = None
    learns: tuple[str, ...] = ()
    actor_state: str = ""
    first_turn: bool = False
    # Policy gradients and teams, see test_policy_gradients.py and test_teams.py
    read: Mapping[str, Any] = settings()
    per_agent: bool = True
    at_once: Mapping[str, Any] = settings()

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", self.metrics | {"current_learning_rate"})

    @property
    def name(self) -> str:
        return self.module.__name__.rpartition(".")[2]

    @property
    def info(self) -> info.Info:
        return self.module.INFO

    @property
    def several(self) -> bool:
        """Whether a file is for several agents, and never for one."""
        return self.takes_several and not info.takes_agents(self.info, several=False)

    @property
    def game(self) -> bool:
        """Whether a file is for games of two players, and for nothing else."""
        return self.info["agents"] == "two players"

    @property
    def takes_several(self) -> bool:
        return info.takes_agents(self.info, several=True)

    @property
    def continuous(self) -> bool:
        """Whether a file takes continuous actions only."""
        return info.kinds_of(self.info) == ("continuous",)

    @property
    def heeds_masks(self) -> bool:
        return self.info["masks"]

    @property
    def replay(self) -> bool:
        return self.has("buffer_size")

    def has(self, *settings: str) -> bool:
        """Whether a file's Config has all of these fields."""
        return set(settings) <= {field.name for field in dataclasses.fields(self.tiny)}

    def of_family(self, name: str) -> bool:
        return self.info["family"] == name

    def make_train(self, **changes: Any) -> Callable:
        """make_train of `tiny` with changes, in the case's environment."""
        return self.module.make_train(self.tiny.replace(**changes), *self.world)


@functools.cache
def cases() -> tuple[Case, ...]:
    """The cases of all files whose libraries are installed, in alphabetical order."""
    known = lambda one: all(map(importlib.util.find_spec, one.get("needs", ())))
    names = [name for name, one in info.of_folder(FOLDER).items() if known(one)]
    tests = [f"tests.algorithms.test_{name}" for name in names]
    return tuple(importlib.import_module(test).CASE for test in tests)


# --- helpers of tests -------------------------------------------------------------------------
def assert_same(a, b):
    """Asserts equality bit for bit, with NaN equal to NaN."""
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(data(x), data(y)), a, b)


def assert_close(a, b, rtol=1e-4, atol=1e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(data(x), data(y), rtol, atol), a, b)


def data(x):
    is_key = jnp.issubdtype(jnp.asarray(x).dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if is_key else x)


def joined(*metrics, axis=0):
    return jax.tree.map(lambda *x: np.concatenate(x, axis), *metrics)


def whole(points):
    """The final state and all metrics."""
    return points[-1][0], joined(*(row for _, row in points))


def by_points(train, key):
    """Every state and row of metrics; the first one is before training.

    As in the launcher, one program makes all of them.
    """
    points = [train(None, parts.first_state(train, key), 1, False)]
    for _ in range(3):
        points.append(train(None, points[-1][0], 1))
    return points


def again(state):
    """A copy of a state whose keys have not been used yet."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda x: jax.random.clone(x) if is_key(x) else x, state)


def change_leaves(state, names, change):
    """A state with some of the policy's parameters changed."""
    there = lambda path: all(f"'{name}'" in str(path) for name in names)
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: change(x) if there(path) else x, state.policy.params
    )
    return again(state).replace(policy=state.policy.replace(params=params))


def in_tree(field):
    return field.metadata.get("pytree_node", True)


def of_swept(case, config):
    """The train of a config whose floats differ from `tiny`."""
    world = case.world if case.swept_world is None else case.swept_world
    return case.module.make_train(config, *world)


def stacked(configs):
    return jax.tree.map(lambda *x: jnp.array(x, jnp.float32), *configs)


def go_on(case):
    """Runs train(configs, states, points) on a batch."""

    def train(configs, states, points):
        of_one = lambda config, state: of_swept(case, config)(None, state, points)
        return jax.vmap(of_one)(configs, states)

    return train


def programs(learner):
    """A learner's init and update.

    Their states are those between updates of a run and have one type, even if the config's floats
    are Python's. So any number of updates needs one compiled program.
    """
    between = lambda state: jax.tree.map(
        lambda x: x.astype(x.dtype), training.between_updates(state)
    )

    def update(state):
        state, metrics = learner.update(state)
        return between(state), metrics

    return jax.jit(lambda key: between(learner.init(key))), jax.jit(update)


def compiled(case):
    """Compiled as for users where slices are compared bit for bit, which takes twice as long."""
    return compiled_as_for_users() if case.exact else contextlib.nullcontext()


class Spread(Wrapper):
    """Observations three times as far apart, centred at five."""

    def reset_env(self, key, params):
        observation, state = self.env.reset_env(key, params)
        return spread(observation), state

    def step_env(self, key, state, action, params):
        observation, *rest = self.env.step_env(key, state, action, params)
        return spread(observation), *rest


def spread(x):
    return 3.0 * x + 5.0
