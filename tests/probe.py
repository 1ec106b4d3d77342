"""One environment with eight tiny tasks whose right values and actions are known.

A number in the parameters selects the task, so that all tasks and seeds train in one vmapped
program. Observations are (x,) with x in {-1, 0, 1}, and actions a are in {0, 1}, or in [-1, 1]:

  task               episode                                      right value or action
  CONSTANT           one step, reward 1                           V = 1
  OBSERVATION        one step, reward x, x = -1 or 1              V(x) = x
  DELAYED            two steps, x = 0 then 1, reward 1 at last    V(0) = gamma, V(1) = 1
  ACTION             one step, reward for the right action        1, or 0.5
  BOTH               one step, the right action depends on x      x > 0, or 0.5 x
  ENDLESS            reward 1 for ever, cut after max_steps       V = 1 / (1 - gamma)
  SWING              x = 1, -1, 1, ... and reward x for ever,     V(x) = x / (1 + gamma): with an
                     cut after max_steps                          odd limit, not the reset one's
  ARM                reward for the right action for ever, cut    1: Q = 1 / (1 - gamma); Q is 1
                     after max_steps                              lower for the other one
"""

import jax
import jax.numpy as jnp
from flax import struct

from envs.gymnax import environment, spaces

CONSTANT, OBSERVATION, DELAYED, ACTION, BOTH, ENDLESS, SWING, ARM = range(8)


@struct.dataclass
class ProbeState:
    x: jax.Array
    time: jax.Array


@struct.dataclass
class ProbeParams:
    task: int = CONSTANT
    reward: float = 1.0
    max_steps_in_episode: int = 10


class Probe(environment.Environment):
    def __init__(self, continuous: bool = False, masked: bool = False):
        super().__init__()
        self.continuous = continuous
        if masked:
            self.action_mask = self._action_mask

    @property
    def default_params(self):
        return ProbeParams()

    @property
    def name(self):
        return "Probe"

    def reset_env(self, key, params):
        sign = 2.0 * jax.random.bernoulli(key).astype(jnp.float32) - 1.0
        signed = (params.task == OBSERVATION) | (params.task == BOTH)
        x = jnp.where(params.task == SWING, 1.0, jnp.where(signed, sign, 0.0))
        state = ProbeState(x, jnp.zeros((), jnp.int32))
        return state.x[None], state

    def step_env(self, key, state, action, params):
        if self.continuous:
            right = jnp.where(params.task == BOTH, 0.5 * state.x, 0.5)
            by_action = -jnp.square(action[0] - right)
        else:
            right = jnp.where(params.task == BOTH, state.x > 0, True)
            by_action = jnp.where(action == right, 1.0, 0.0)
        last = (params.task != DELAYED) | (state.time == 1)
        rewards = jnp.stack(
            [1.0, state.x, last.astype(jnp.float32), by_action, by_action, 1.0, state.x, by_action]
        )
        reward = params.reward * rewards[params.task]
        if hasattr(self, "action_mask"):
            reward = jnp.where(self.action_mask(state, params)[action], reward, -100.0)
        x = jnp.where(params.task == DELAYED, 1.0, state.x)
        x = jnp.where(params.task == SWING, -state.x, x)
        state = ProbeState(x, state.time + 1)
        terminated = last & (params.task < ENDLESS)
        return state.x[None], state, reward, terminated, {}

    def _action_mask(self, state, params):
        zero = state.x <= 0
        return jnp.stack([zero, jnp.ones_like(zero), jnp.zeros_like(zero)])

    def action_space(self, params):
        if self.continuous:
            return spaces.Box(-1.0, 1.0, (1,))
        return spaces.Discrete(3 if hasattr(self, "action_mask") else 2)

    def observation_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,))


@struct.dataclass
class ReportingState:
    time: jax.Array
    limit: jax.Array


class Reporting(environment.Environment):
    """Episodes of 4 steps (with `spread`, of 1 to 8), or of the length in the state.

    They report the step, and the sum of the steps.
    """

    metrics = {"place": "last", "travel": "sum"}  # noqa: RUF012

    def __init__(self, spread: bool = False):
        super().__init__()
        self.spread = spread

    @property
    def default_params(self):
        return ProbeParams(max_steps_in_episode=100)

    def reset_env(self, key, params):
        limit = jax.random.randint(key, (), 1, 9) if self.spread else jnp.array(4)
        return jnp.zeros(1), ReportingState(jnp.zeros((), jnp.int32), limit)

    def step_env(self, key, state, action, params):
        state = state.replace(time=state.time + 1)
        info = {"metrics": {"place": state.time, "travel": state.time}}
        return jnp.zeros(1), state, jnp.float32(1), state.time >= state.limit, info

    def action_space(self, params):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(0.0, 1.0, (1,))


# --- memory -----------------------------------------------------------------------------------

RECALL, CLOCK = range(2)


@struct.dataclass
class RecallState:
    cue: jax.Array
    time: jax.Array


@struct.dataclass
class RecallParams:
    task: int = RECALL
    length: int = 6  # steps until an episode terminates
    max_steps_in_episode: int = 100


class Recall(environment.Environment):
    """Observations are (x, last), where `last` is 1 at an episode's last step.

    task      episode
    RECALL    x is a cue of -1 or 1 at the first step and 0 afterwards; reward at the last step
              only, for action cue > 0, or minus the squared distance to 0.5 cue
    CLOCK     nothing is random and actions do nothing: x = cos(3 time), reward sin(5 time)
    """

    def __init__(self, continuous: bool = False):
        super().__init__()
        self.continuous = continuous

    @property
    def default_params(self):
        return RecallParams()

    @property
    def name(self):
        return "Recall"

    def reset_env(self, key, params):
        cue = 2.0 * jax.random.bernoulli(key).astype(jnp.float32) - 1.0
        state = RecallState(cue, jnp.zeros((), jnp.int32))
        return self.observe(state, params), state

    def step_env(self, key, state, action, params):
        if self.continuous:
            by_action = -jnp.square(action[0] - 0.5 * state.cue)
        else:
            by_action = jnp.where(action == (state.cue > 0), 1.0, 0.0)
        state = state.replace(time=state.time + 1)
        terminated = state.time == params.length
        reward = jnp.where(terminated, by_action, 0.0)
        reward = jnp.where(params.task == CLOCK, jnp.sin(5.0 * state.time), reward)
        return self.observe(state, params), state, reward, terminated, {}

    def observe(self, state, params):
        x = jnp.where(state.time == 0, state.cue, 0.0)
        x = jnp.where(params.task == CLOCK, jnp.cos(3.0 * state.time), x)
        return jnp.stack([x, jnp.where(state.time == params.length - 1, 1.0, 0.0)])

    def action_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,)) if self.continuous else spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(-1.0, 1.0, (2,))


class Guess(environment.Environment):
    """Nothing is observed: reward 1 for the right action, drawn for each episode, in `length`
    steps.

    A policy that sees its last action and reward is right from the second step on.
    """

    @property
    def default_params(self):
        return RecallParams()

    @property
    def name(self):
        return "Guess"

    def reset_env(self, key, params):
        right = jax.random.bernoulli(key).astype(jnp.float32)
        return jnp.zeros(1), RecallState(right, jnp.zeros((), jnp.int32))

    def step_env(self, key, state, action, params):
        reward = jnp.where(action == state.cue, 1.0, 0.0)
        state = state.replace(time=state.time + 1)
        return jnp.zeros(1), state, reward, state.time == params.length, {}

    def action_space(self, params):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(0.0, 1.0, (1,))


# --- two agents -------------------------------------------------------------------------------

OWN, OTHERS, LEAVING = range(3)


@struct.dataclass
class PairState:
    x: jax.Array  # (2,)
    time: jax.Array


@struct.dataclass
class PairParams:
    task: int = OWN
    rewards: jax.Array = struct.field(default_factory=lambda: jnp.ones(2))  # factors
    max_steps_in_episode: int = 10


class Pair(environment.Environment):
    """Two agents that cannot influence each other.

      task      episode                                             right value or action
      OWN       one step, reward for a > 0 where x > 0; agent 1     +-0.5, or 1 and 0
                for the opposite
      OTHERS    one step, reward: the other one's x                 V needs to know that x
      LEAVING   reward 1 for ever, cut after 10 steps; agent 1      V = 1 / (1 - gamma), and 1 for
                leaves after its first step, and is paid 100 then   agent 1 at the start (x = 1)

    With `masked`, a third action is forbidden, and action 0 where x > 0; either costs 100. With
    `world`, there is a world state: 10 times both x.
    """

    num_agents = 2

    def __init__(self, continuous: bool = False, masked: bool = False, world: bool = False):
        super().__init__()
        self.continuous = continuous
        if masked:
            self.action_mask = self._action_mask
        if world:
            self.world_state = lambda state, params: 10.0 * state.x

    @property
    def default_params(self):
        return PairParams()

    @property
    def name(self):
        return "Pair"

    def reset_env(self, key, params):
        x = 2.0 * jax.random.bernoulli(key, shape=(2,)).astype(jnp.float32) - 1.0
        state = PairState(jnp.where(params.task == LEAVING, 1.0, x), jnp.zeros((), jnp.int32))
        return state.x[:, None], state

    def step_env(self, key, state, action, params):
        positive = jnp.array([1.0, -1.0]) * state.x > 0
        if self.continuous:
            own = -jnp.square(action[:, 0] - jnp.where(positive, 0.5, -0.5))
        else:
            own = jnp.where(action == positive, 1.0, 0.0)
        late = jnp.where(state.time > 0, jnp.array([1.0, 100.0]), 1.0)
        rewards = params.rewards * jnp.stack([own, state.x[::-1], late])[params.task]
        if hasattr(self, "action_mask"):
            allowed = jnp.take_along_axis(self.action_mask(state, params), action[:, None], 1)
            rewards = jnp.where(allowed[:, 0], rewards, -100.0)
        leaving = jnp.asarray(params.task == LEAVING)
        state = PairState(jnp.where(leaving, 0.0, state.x), state.time + 1)
        alive = ~(leaving & jnp.array([False, True]))
        return state.x[:, None], state, rewards, ~leaving, {"alive": alive}

    def _action_mask(self, state, params):
        zero = state.x <= 0
        return jnp.stack([zero, jnp.ones_like(zero), jnp.zeros_like(zero)], 1)

    def action_space(self, params):
        if self.continuous:
            return spaces.Box(-1.0, 1.0, (1,))
        return spaces.Discrete(3 if hasattr(self, "action_mask") else 2)

    def observation_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,))


@struct.dataclass
class SacrificeParams:
    broken: bool = False  # whether an agent that has left observes NaN
    max_steps_in_episode: int = 99


class Sacrifice(environment.Environment):
    """Five steps, one reward for both agents.

    Agent 1 may leave in the first step (action 1, or a > 0). Then the team is paid 1 in each of the
    other four steps, else 0.1 in each of the five. Observations are the time and whether agent 1 is
    there.
    """

    num_agents, shared_reward, name = 2, True, "Sacrifice"

    def __init__(self, continuous: bool = False):
        super().__init__()
        self.continuous = continuous

    @property
    def default_params(self):
        return SacrificeParams()

    def reset_env(self, key, params):
        state = PairState(jnp.ones(2), jnp.zeros((), jnp.int32))
        return self.observe(state, params), state

    def step_env(self, key, state, action, params):
        leaves = (state.time == 0) & ((action[1, 0] if self.continuous else action[1]) > 0)
        late = jnp.where(state.x[1] > 0, 0.1, 1.0)
        reward = jnp.full(2, jnp.where(leaves, 0.0, late))
        x = jnp.where(leaves, jnp.array([1.0, 0.0]), state.x)
        state = PairState(x, state.time + 1)
        return self.observe(state, params), state, reward, state.time == 5, {"alive": x > 0}

    def observe(self, state, params):
        seen = jnp.tile(jnp.stack([0.2 * state.time, state.x[1]]), (2, 1))
        return jnp.where((state.x == 0)[:, None] & params.broken, jnp.nan, seen)

    def action_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,)) if self.continuous else spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(0.0, 1.0, (2,))


class Twins(environment.Environment):
    """Two agents, each in its own environment of the same kind; both end together.

    With `team`, each is paid the mean of both rewards.
    """

    num_agents = 2

    def __init__(self, one: environment.Environment | None = None, team: bool = False):
        super().__init__()
        self.one, self.team = one or Recall(), team

    @property
    def default_params(self):
        return self.one.default_params

    @property
    def name(self):
        return f"Twins of {self.one.name}"

    def reset_env(self, key, params):
        return jax.vmap(self.one.reset_env, (0, None))(jax.random.split(key), params)

    def step_env(self, key, state, action, params):
        step = jax.vmap(self.one.step_env, (0, 0, 0, None))
        observation, state, reward, ends, info = step(jax.random.split(key), state, action, params)
        reward = jnp.full(2, reward.mean()) if self.team else reward
        return observation, state, reward, ends[0], info

    def is_truncated(self, state, params):
        return state.time[0] >= params.max_steps_in_episode

    def action_space(self, params):
        return self.one.action_space(params)

    def observation_space(self, params):
        return self.one.observation_space(params)
