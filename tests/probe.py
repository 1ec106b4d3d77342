"""One environment with six tiny tasks whose right values and actions are known.

Which task it is, is a number in the parameters, so that all tasks and seeds train in one vmapped
program. Observations are (x,) with x in {-1, 0, 1}; with actions a in {0, 1}, or in [-1, 1]:

  task               episode                                      right value or action
  CONSTANT           one step, reward 1                           V = 1
  OBSERVATION        one step, reward x, x = -1 or 1              V(x) = x
  DELAYED            two steps, x = 0 then 1, reward 1 at last    V(0) = gamma, V(1) = 1
  ACTION             one step, reward for the right action        1, or 0.5
  BOTH               one step, the right action depends on x      x > 0, or 0.5 x
  ENDLESS            reward 1 for ever, cut after 10 steps        V = 1 / (1 - gamma)
"""

import jax
import jax.numpy as jnp
from flax import struct

from envs.gymnax import environment, spaces

CONSTANT, OBSERVATION, DELAYED, ACTION, BOTH, ENDLESS = range(6)


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
    def __init__(self, continuous: bool = False):
        super().__init__()
        self.continuous = continuous

    @property
    def default_params(self):
        return ProbeParams()

    @property
    def name(self):
        return "Probe"

    def reset_env(self, key, params):
        sign = 2.0 * jax.random.bernoulli(key).astype(jnp.float32) - 1.0
        signed = (params.task == OBSERVATION) | (params.task == BOTH)
        state = ProbeState(jnp.where(signed, sign, 0.0), jnp.zeros((), jnp.int32))
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
            [1.0, state.x, last.astype(jnp.float32), by_action, by_action, jnp.ones(())]
        )
        x = jnp.where(params.task == DELAYED, 1.0, state.x)
        state = ProbeState(x, state.time + 1)
        terminated = last & (params.task != ENDLESS)
        return state.x[None], state, params.reward * rewards[params.task], terminated, {}

    def action_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,)) if self.continuous else spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,))
