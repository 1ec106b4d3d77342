"""The adapter for JaxMARL 0.2 (Rutherford et al. 2024, arXiv:2311.10090): agents in one array.

    env, env_params = envs.make("jaxmarl/MPE_simple_spread_v3")
    env, env_params = envs.make("jaxmarl/HeuristicEnemySMAX", scenario="3m")
    env, env_params = envs.make("jaxmarl/overcooked", layout="cramped_room", shaped=1.0)

JaxMARL returns dictionaries by agent. Here they are arrays in the order of `env.agents`; entries of
`info` by agent are stacked likewise. Observations are float32, and images stay images.

Where agents differ, observations and continuous actions are padded with zeros at their end to the
largest agent's size. `env.action_dimensions` then marks the dimensions that each agent has. Where
numbers of actions differ, `env.action_mask` forbids those that an agent does not have; a forbidden
action is passed on unchanged. An action mask of JaxMARL's own (SMAX, Hanabi) and a world state
(SMAX, JaxNav) are passed on. Other environments lack these two methods.

JaxMARL has one flag, done. It means, by the rules of each environment:

  MPE             truncated only. It checks its limit before it counts the step, so an episode has
                  max_steps + 1 steps: 26
  overcooked, v2  truncated only (400 steps). The metric `deliveries` is the number of soups served
                  (v2: of steps with a soup served)
  SMAX            terminated when a team is dead, else truncated after 101 steps, counted as in MPE.
                  info["alive"] is False for dead units, which still get their team's reward.
                  The metric `won` is 1 if at the end only the enemies are dead. JaxMARL's
                  SMAXLogWrapper infers this from a last reward of 1 or more
  switch_riddle   terminated when the agent in the room tells, else truncated
                  (4 num_agents - 6 steps)
  jaxnav          terminated when every agent has crashed or arrived, else truncated (500 steps).
                  With `evaporating`, info["alive"] is False for agents that have; they earn
                  nothing from then on
  hanabi          terminated only
  mabrax          terminated when brax says so, else truncated (1000 steps). The setting
                  `precision` is that of envs/brax.py
  coin_game,      truncated only, at the end of the last inner game. After every inner game, the
  storm_np        observation is the first one of a fresh game
  anything else   cannot be told apart: every end is a termination

All agents always have the same reward (`shared_reward`) in MPE_simple_speaker_listener, overcooked,
overcooked_v2, SMAX against a built-in team, switch_riddle, hanabi and mabrax. Everywhere else
rewards count as different, which they are in simple_spread.

A soup in overcooked pays every agent 20, and exploration rarely finds one. The shaped rewards are
each agent's own, for onions in the pot, plates and soups taken. `shaped` is their weight in the
rewards of training. It falls to 0 in `shaped_steps` environment steps (envs/shaping.py). JaxMARL's
scripts have 1 and 2.5e6, half of a run. JaxMARL's VDN takes the sum over both agents. Teams of
vdn.py take the mean, so the same is a weight of 2 there.

`max_steps` of `envs.make` truncates earlier. It truncates later only where the parameters have
`max_steps_in_episode`; jaxnav, hanabi, coin_game and storm_np have none and keep their own end.
`max_steps_in_episode` of overcooked and jaxnav goes to their constructor, because they show the
agents the remaining time (overcooked's urgency layer; jaxnav's world state). `max_steps` does not.

MPE, SMAX and Overcooked are drawn as JaxMARL draws them, without a display.

Refused: storm and storm_2p, whose agents observe two arrays each.
"""

import contextlib
import functools
import importlib
import inspect
import io
import sys
import types
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs import physics
from envs.adapter import Params, install
from envs.gymnax import Environment, spaces

NOT_TAKEN = ("storm", "storm_2p")  # agents that observe two arrays each
OVERCOOKED = ("overcooked", "overcooked_v2")
# What constructors raise for settings that they cannot take.
REFUSALS = (TypeError, ImportError, ValueError, AssertionError, AttributeError, NotImplementedError)
MABRAX = ("ant_4x2", "halfcheetah_6x1", "hopper_3x1", "humanoid_9|8", "walker2d_2x3")
# Keyword arguments of MPE that are in no signature. MPE ignores names that it does not know.
MPE_ARGUMENTS = (
    *("accel", "c_noise", "collide", "contact_force", "contact_margin", "damping", "mass"),
    *("max_speed", "moveable", "rad", "silent", "u_noise"),
)


def names() -> list[str]:
    """Every supported name. Some need a further library, which JaxMARL names."""
    return [name for name in _library().registered_envs if name not in NOT_TAKEN]


def listed() -> list[str]:
    """The names that can be made here without settings."""
    names_of = importlib.import_module(f"{_library().__name__}.environments")
    there = lambda name: (
        name != "LearnedPolicyEnemySMAX"  # takes a policy and its parameters
        and (names_of.MABRAX_AVAILABLE or name not in MABRAX)
        and (names_of.SUBMODULE_ENVIRONMENTS or not name.startswith("JaxRobotarium"))
    )
    return [name for name in names() if there(name)]


def construct(name: str, settings: dict[str, Any]) -> tuple["JaxMARL", dict[str, Any]]:
    """Builds an environment with those settings that its constructor takes.

    Args:
      name: one of `names`.
      settings: arguments of JaxMARL's constructor. SMAX's `scenario` and overcooked's `layout` may
        be names, and `max_steps_in_episode` takes the place of `max_steps`.

    Returns:
      The environment and the other settings.

    Raises:
      ValueError: JaxMARL or a library that this environment needs is missing, or its constructor
        refuses the settings.
    """
    arguments = {k: _named(name, k, v) for k, v in settings.items()}
    left: dict[str, Any] = {}
    limit = arguments.pop("max_steps_in_episode", None)
    if name in OVERCOOKED:
        left = {k: arguments.pop(k) for k in ("shaped", "shaped_steps") if k in arguments}
    if limit is not None and name in (*OVERCOOKED, "jaxnav"):
        arguments["max_steps"] = limit
    elif limit is not None:
        left["max_steps_in_episode"] = limit
    if name in MABRAX:
        arguments["auto_reset"] = False  # True would take the final observation
        precision, arguments = physics.precision_of(f"jaxmarl/{name}", arguments)
    try:
        with jax.ensure_compile_time_eval():  # concrete arrays, also when called inside a trace
            wrapped = _library().make(name, **arguments)
    except REFUSALS as error:
        raise ValueError(f"jaxmarl/{name}: {error or type(error).__name__}") from error
    known = _arguments(type(wrapped))
    left.update({k: v for k, v in arguments.items() if k not in known})
    kind = next((KINDS[c.__name__] for c in type(wrapped).__mro__ if c.__name__ in KINDS), JaxMARL)
    env = kind(name, wrapped)
    if isinstance(env, MABrax):
        env.precision = precision
        known.add("precision")
    env.arguments = tuple(sorted(known))
    return env, left


@functools.cache
def _library() -> types.ModuleType:
    # Importing it prints the extras that are missing, and replaces the standard streams.
    streams = {name: vars(sys)[name] for name in ("stdout", "stderr", "__stdout__")}
    unread = io.StringIO()
    vars(sys).update(stdout=unread, __stdout__=unread)
    try:
        return importlib.import_module("jaxmarl")
    except ModuleNotFoundError as error:
        if error.name != "jaxmarl":
            raise
        raise ValueError(f"jaxmarl/... needs JaxMARL: {install('jaxmarl')}") from error
    finally:
        vars(sys).update(streams)


def _named(name: str, setting: str, value: Any) -> Any:
    """The scenario or layout of that name, because a command line cannot pass the objects."""
    if not isinstance(value, str):
        return value
    if name.endswith("SMAX") and setting == "scenario":
        smax = importlib.import_module("jaxmarl.environments.smax.smax_env")
        table = smax.MAP_NAME_TO_SCENARIO
    elif name == "overcooked" and setting == "layout":
        table = importlib.import_module("jaxmarl.environments").overcooked_layouts
    else:
        return value
    if value not in table:
        raise ValueError(f"unknown {setting} '{value}'; there are {', '.join(table)}")
    return table[value]


def _arguments(kind: type) -> set[str]:
    """The arguments of a constructor and of the base constructors that get its **kwargs."""
    known: set[str] = set()
    chain = [vars(k)["__init__"] for k in kind.__mro__[:-1] if "__init__" in vars(k)]
    if "EnemySMAX" in [k.__name__ for k in kind.__mro__]:  # builds a SMAX instead of being one
        chain.append(importlib.import_module("jaxmarl.environments").SMAX.__init__)
    if "SimpleMPE" in [k.__name__ for k in kind.__mro__]:
        known.update(MPE_ARGUMENTS)
    for init in chain:
        parameters = inspect.signature(init).parameters.values()
        known.update(p.name for p in parameters if p.kind is not p.VAR_KEYWORD)
    return known - {"self"}


# --- the environments -------------------------------------------------------------------------


@struct.dataclass
class NoParams:
    """An environment without an adjustable time limit."""


@struct.dataclass
class State:
    """JaxMARL's own state, and whether the last step terminated the episode, bool ()."""

    inner: Any
    terminated: jax.Array


class JaxMARL(Environment):
    """One JaxMARL environment behind gymnax's interface; every end is a termination.

    Attributes:
      wrapped: JaxMARL's environment.
      agents: its agents' names, in the order of every array's agent axis.
      num_agents: number of agents.
      shared_reward: whether all agents always have the same reward.
      team_rewards: whether all agents of each team have, also those that have left.
      opponents: whether rewards of agents go against one another.
      agents_leave: whether an agent may leave before the episode's end.
      action_mask(state, params): the actions that each agent may take, bool (num_agents,
        num_actions); absent if no action is ever forbidden.
      action_dimensions: the dimensions of its continuous action that each agent has, a NumPy array
        of bool (num_agents, dimensions). The others do nothing. Absent if agents do not differ.
      world_state(state, params): the whole state in one float32 array (size,); absent if JaxMARL
        has none.
    """

    def __init__(self, name: str, wrapped: Any):
        super().__init__()
        self._name, self.wrapped = f"jaxmarl/{name}", wrapped
        self.agents, self.num_agents = list(wrapped.agents), len(wrapped.agents)
        self._action_spaces = [wrapped.action_space(a) for a in self.agents]
        self._discrete = all(hasattr(s, "n") for s in self._action_spaces)
        with jax.debug_key_reuse(False):  # shapes only; some environments use a key twice
            observations = jax.eval_shape(
                lambda key: _by_agent(wrapped.reset(key)[0], self.agents), jax.random.key(0)
            )
        self._observation_shape = tuple(np.max([x.shape for x in observations], axis=0).tolist())
        if self._discrete and (self._available or len({s.n for s in self._action_spaces}) > 1):
            self.action_mask = self._action_mask
        if not self._discrete:
            sizes = np.array([s.shape[0] for s in self._action_spaces])
            if (sizes < sizes.max()).any():
                self.action_dimensions = np.arange(sizes.max()) < sizes[:, None]
        if self._world_state:
            self.world_state = self._world_state

    @property
    def name(self) -> str:
        return self._name

    @property
    def default_params(self) -> Any:
        return NoParams()

    @property
    def num_actions(self) -> int:
        space = self.action_space(self.default_params)
        return space.n if self._discrete else space.shape[0]

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, State]:
        observation, inner = self.wrapped.reset(key)
        return self._observe(observation), State(inner, jnp.zeros((), bool))

    def step_env(self, key: jax.Array, state: State, action: jax.Array, params: Any):
        """One step; action (num_agents,) int32, or (num_agents, dim)."""
        own = [
            a if self._discrete else a[: s.shape[0]] for a, s in zip(action, self._action_spaces)
        ]
        observation, inner, reward, dones, info = self.wrapped.step_env(
            key, state.inner, dict(zip(self.agents, own))
        )
        terminated = jnp.asarray(self._terminated(state.inner, inner, own, dones), bool)
        reward = jnp.stack(
            [jnp.asarray(r, jnp.float32).reshape(()) for r in _by_agent(reward, self.agents)]
        )
        info = {k: self._stacked(v) for k, v in info.items()}
        alive = self._alive(inner)
        if alive is not None:
            info["alive"] = alive
        if self.metrics:
            info["metrics"] = self._reported(inner, reward)
        return self._observe(observation), State(inner, terminated), reward, terminated, info

    def is_terminated(self, state: State, params: Any) -> jax.Array:
        return state.terminated

    def is_truncated(self, state: State, params: Any) -> jax.Array:
        return jnp.asarray(self._time_up(state.inner, params), bool) & ~state.terminated

    def action_space(self, params: Any) -> Any:
        if self._discrete:
            return spaces.Discrete(max(int(s.n) for s in self._action_spaces))
        largest = max(self._action_spaces, key=lambda s: s.shape)
        return spaces.Box(largest.low, largest.high, largest.shape, jnp.float32)

    def observation_space(self, params: Any) -> Any:
        low, high = zip(*(_bounds(self.wrapped.observation_space(a)) for a in self.agents))
        # Padding is zero.
        return spaces.Box(min(0.0, *low), max(0.0, *high), self._observation_shape, jnp.float32)

    # Kinds of environments below override these.

    def _terminated(self, before: Any, after: Any, actions: list, dones: dict) -> Any:
        """Whether this step ended the episode by the task's own rules."""
        return dones["__all__"]

    def _time_up(self, inner: Any, params: Any) -> Any:
        """Whether the time limit has been reached."""
        return False

    def _alive(self, inner: Any) -> Any:
        """Whether each agent is alive (num_agents,), or None where no agent can die alone."""
        return None

    def _reported(self, inner: Any, reward: jax.Array) -> dict[str, jax.Array]:
        """The values of `metrics` after a step."""
        return {}

    metrics: dict[str, str] = {}  # noqa: RUF012, metrics of an episode
    shared_reward = team_rewards = opponents = agents_leave = False
    _available: Any = None  # inner -> the mask of each agent's actions, by agent
    _world_state: Any = None  # state, params -> one array

    # Arrays by agent.

    def _observe(self, observation: dict) -> jax.Array:
        def pad(x: Any) -> jax.Array:
            x = jnp.asarray(x, jnp.float32)
            return jnp.pad(x, [(0, n - m) for n, m in zip(self._observation_shape, x.shape)])

        return jnp.stack([pad(x) for x in _by_agent(observation, self.agents)])

    def _stacked(self, value: Any) -> Any:
        if isinstance(value, dict) and set(value) == set(self.agents):
            return jnp.stack([value[a] for a in self.agents])
        return value

    def _action_mask(self, state: State, params: Any) -> jax.Array:
        sizes = [int(s.n) for s in self._action_spaces]
        masks = [jnp.ones(n, bool) for n in sizes]
        if self._available:
            available = self._available(state.inner)
            masks = [jnp.asarray(available[a], bool) for a in self.agents]
        return jnp.stack([jnp.pad(mask, (0, max(sizes) - n)) for mask, n in zip(masks, sizes)])


class TimeLimited(JaxMARL):
    """Ended only by its time limit, in `max_steps` steps."""

    @property
    def default_params(self) -> Params:
        return Params(max_steps_in_episode=self.wrapped.max_steps)

    def _terminated(self, before, after, actions, dones):
        return False

    def _time_up(self, inner, params):
        return inner.step >= params.max_steps_in_episode


class Late(TimeLimited):
    """Checks its limit before it counts the step, so it ends after `max_steps` + 1 steps."""

    @property
    def default_params(self) -> Params:
        return Params(max_steps_in_episode=self.wrapped.max_steps + 1)


class MPE(Late):
    frame_milliseconds = 100

    def render(self, state: State, params: Any) -> np.ndarray:
        """Agents, landmarks and messages."""
        visualizer = importlib.import_module("jaxmarl.environments.mpe.mpe_visualizer")
        with _without_display(visualizer), contextlib.redirect_stdout(io.StringIO()):
            canvas = visualizer.MPEVisualizer(self.wrapped, [state.inner]).fig.canvas
            canvas.draw()
            return np.array(canvas.buffer_rgba())[..., :3]


class SpeakerListener(MPE):
    shared_reward = True


class CompetitiveMPE(MPE):
    opponents = True


@struct.dataclass
class ShapedParams(Params):
    """The time limit, and the parameters of envs/shaping.py."""

    shaped: float = 0.0
    shaped_steps: float = np.inf


class AnyOvercooked(TimeLimited):
    shared_reward = True
    shapes_rewards = True
    metrics = {"deliveries": "sum"}  # noqa: RUF012
    frame_milliseconds = 100

    @property
    def default_params(self) -> ShapedParams:
        return ShapedParams(max_steps_in_episode=self.wrapped.max_steps)


class Overcooked(AnyOvercooked):
    def _reported(self, inner, reward):
        module = importlib.import_module(type(self.wrapped).__module__)
        return {"deliveries": reward[0] / module.DELIVERY_REWARD}

    def render(self, state: State, params: Any) -> np.ndarray:
        """The kitchen. A small object beside an agent is what it holds."""
        visualizer = importlib.import_module("jaxmarl.viz.overcooked_visualizer")
        grid = np.asarray(state.inner.maze_map)
        edge = (len(grid) - self.wrapped.height) // 2
        grid = grid[edge:-edge, edge:-edge]
        held = np.asarray(state.inner.agent_inv)
        return visualizer.OvercookedVisualizer._render_grid(grid, agent_inv=held)


class OvercookedV2(AnyOvercooked):
    def _reported(self, inner, reward):
        return {"deliveries": inner.new_correct_delivery}

    def render(self, state: State, params: Any) -> np.ndarray:
        """The kitchen."""
        visualizer = importlib.import_module("jaxmarl.viz.overcooked_v2_visualizer")
        inner = jax.tree.map(jnp.asarray, state.inner)
        return np.asarray(visualizer.OvercookedV2Visualizer()._render_state(inner))


class SwitchRiddle(TimeLimited):
    shared_reward = True

    def _terminated(self, before, after, actions, dones):
        return jnp.stack(actions)[before.agent_in_room] == self.wrapped.game_actions["TELL"]


class SMAX(Late):
    """SMAX with both teams, or (`EnemySMAX`) against a built-in one."""

    metrics = {"won": "last"}  # noqa: RUF012
    frame_milliseconds = 250  # an action lasts eight steps of the battle
    team_rewards = opponents = True

    def _units(self, inner):
        return inner.state if hasattr(inner, "enemy_policy_state") else inner

    def _terminated(self, before, after, actions, dones):
        alive, allies = self._units(after).unit_alive, self.wrapped.num_allies
        return ~alive[:allies].any() | ~alive[allies:].any()

    def _time_up(self, inner, params):
        return super()._time_up(self._units(inner), params)

    def _alive(self, inner):
        return self._units(inner).unit_alive[: self.num_agents]

    def _reported(self, inner, reward):
        alive, allies = self._units(inner).unit_alive, self.wrapped.num_allies
        return {"won": alive[:allies].any() & ~alive[allies:].any()}

    def _available(self, inner):
        return self.wrapped.get_avail_actions(inner)

    def _world_state(self, state, params):
        return jnp.asarray(self.wrapped.get_world_state(state.inner), jnp.float32)

    def render(self, state: State, params: Any) -> np.ndarray:
        """The living units, by team and kind, and the shots of the step before, half-way."""
        units = self._units(state.inner)
        agents = getattr(self.wrapped, "all_agents", self.wrapped.agents)
        shots = dict(zip(agents, units.prev_attack_actions))
        half, step = self.wrapped.world_steps_per_env_step // 2, int(units.step)
        _, axes = _subplots()
        with jax.disable_jit():  # SMAX branches by lax.cond, unit by unit
            image = self.wrapped.init_render(axes, (None, units, shots), half, step)
        return np.asarray(image.get_array())[..., :3]


class EnemySMAX(SMAX):
    shared_reward, opponents = True, False


class Hanabi(JaxMARL):
    ends = True
    shared_reward = True

    def _available(self, inner):
        return self.wrapped.get_legal_moves(inner)


class JaxNav(JaxMARL):
    ends = True

    @property
    def agents_leave(self) -> bool:  # type: ignore[override]
        return self.wrapped.evaporating

    def _finished(self, inner):
        # `term` marks agents that had finished before this step. Evaporated agents are only in it.
        return inner.move_term | inner.goal_reached | inner.term

    def _terminated(self, before, after, actions, dones):
        return self._finished(after).all()

    def _time_up(self, inner, params):
        return inner.ep_done

    def _alive(self, inner):
        return ~self._finished(inner) if self.wrapped.evaporating else None

    def _world_state(self, state, params):
        """The part that all agents' rows share, once, and then each agent's own observation."""
        rows = jnp.asarray(self.wrapped.get_world_state(state.inner), jnp.float32)
        own = self._observation_shape[0]
        return jnp.concatenate([rows[0, self.num_agents : -own], rows[:, -own:].ravel()])


class MABrax(JaxMARL):
    shared_reward = True
    precision: str  # of products, see envs/brax.py

    def reset_env(self, key, params):
        with jax.default_matmul_precision(self.precision):
            return super().reset_env(key, params)

    def step_env(self, key, state, action, params):
        with jax.default_matmul_precision(self.precision):
            return super().step_env(key, state, action, params)

    @property
    def default_params(self) -> Params:
        return Params(max_steps_in_episode=self.wrapped.episode_length)

    def _terminated(self, before, after, actions, dones):
        return dones["__all__"] & (after.info["truncation"] == 0)

    def _time_up(self, inner, params):
        return inner.info["steps"] >= params.max_steps_in_episode


class Meta(JaxMARL):
    """A fixed number of inner games of a fixed length."""

    ends = True

    def _terminated(self, before, after, actions, dones):
        return False

    def _time_up(self, inner, params):
        return inner.done


# JaxMARL's classes, by name, so that a class is imported only when it is needed.
KINDS = {
    "SimpleMPE": MPE,
    "SimpleSpeakerListenerMPE": SpeakerListener,
    "SimpleAdversaryMPE": CompetitiveMPE,
    "SimpleCryptoMPE": CompetitiveMPE,
    "SimplePushMPE": CompetitiveMPE,
    "SimpleTagMPE": CompetitiveMPE,
    "SimpleWorldCommMPE": CompetitiveMPE,
    "Overcooked": Overcooked,
    "OvercookedV2": OvercookedV2,
    "SwitchRiddle": SwitchRiddle,
    "SMAX": SMAX,
    "EnemySMAX": EnemySMAX,
    "HanabiEnv": Hanabi,
    "JaxNav": JaxNav,
    "MABraxEnv": MABrax,
    "CoinGame": Meta,
    "InTheMatrix": Meta,
}


def _by_agent(values: Any, agents: list) -> list:
    """The values of each agent, from a dictionary or from a sequence in the order of the agents."""
    return [values[a] for a in agents] if isinstance(values, dict) else list(values)


def _bounds(space: Any) -> tuple[float, float]:
    """The least and the largest value in a space; infinite where unknown."""
    if hasattr(space, "num_categories"):
        return 0.0, float(np.asarray(space.num_categories).max()) - 1.0
    if hasattr(space, "low"):
        return float(np.asarray(space.low).min()), float(np.asarray(space.high).max())
    return -np.inf, np.inf


# --- pictures ---------------------------------------------------------------------------------


def _subplots(*_: Any, **__: Any) -> tuple[Any, Any]:
    """A figure without a window, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = FigureCanvasAgg(Figure(figsize=(4.0, 4.0), dpi=100)).figure
    return figure, figure.subplots()


@contextlib.contextmanager
def _without_display(module: Any) -> Iterator[None]:
    """Runs a drawing module of JaxMARL's without a display, which its pyplot would look for."""
    pyplot, module.plt = module.plt, types.SimpleNamespace(subplots=_subplots)
    try:
        yield
    finally:
        module.plt = pyplot
