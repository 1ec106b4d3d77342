"""Rounds of acting and learning: the loop of a run with a replay buffer."""

import dataclasses
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from algorithms.parts.loops import scan_rows
from algorithms.parts.training import Average, Last, Maximum, num_updates
from envs import loops
from envs.loops import scan

STRETCH = 16  # steps of an environment whose random numbers are drawn at once


class Round(NamedTuple):
    """A round's place in the run, and the random numbers of its gradient steps."""

    number: jax.Array  # rounds of the run before this one, int32 ()
    draws: Any  # random numbers of gradient steps; leading axis: all steps of the update
    first: jax.Array  # index of the round's first gradient step in them, int32 ()
    place: int | None = None  # this index up to whole periods, where it is known when compiling


def over_rounds(x: Any) -> Any:
    """A metric of an update from those of its rounds, the leading axis."""
    if isinstance(x, Average):
        return jax.tree.map(jnp.sum, x)
    if isinstance(x, Maximum):
        return Maximum(x.value.max(0))
    return Last(x.value[-1]) if isinstance(x, Last) else x.mean()


def keep_if(ready: jax.Array, new: Any, old: Any) -> Any:
    """The new state if ready (bool, ()), else the old one, but always with the new replay buffer.

    Choosing between two buffers would copy them. So what makes the new state must leave the buffer
    as it is unless it is ready.
    """
    keep = lambda n, o: n if n is o else jnp.where(ready, n, o)
    state = jax.tree.map(keep, new.replace(replay=None), old.replace(replay=None))
    return state.replace(replay=new.replay)


@dataclasses.dataclass(frozen=True)
class Rounds:
    """The division of a run into rounds and updates.

    A round is `train_every` steps of each environment, then `updates_per_step` gradient steps. An
    update is several rounds: drawing the random numbers for all of them at once costs far less.
    """

    config: Any  # its sizes of rounds and of the run are used
    period: int = 1  # the gradient steps of an update are a multiple of this

    @property
    def whole(self) -> int:
        """Rounds whose gradient steps are a multiple of the period."""
        return self.period // math.gcd(self.period, self.config.updates_per_step)

    @property
    def count(self) -> int:
        """Rounds of an update."""
        return self.whole * max(1, STRETCH // (self.config.train_every * self.whole))

    @property
    def num_steps(self) -> int:
        """Steps of each environment in an update."""
        return self.count * self.config.train_every

    @property
    def steps(self) -> int:
        """Steps of all environments in an update."""
        return self.num_steps * self.config.num_envs

    @property
    def acting(self) -> tuple[int, int, int]:
        """Shape of an update's random numbers for acting: (rounds, train_every, num_envs)."""
        return self.count, self.config.train_every, self.config.num_envs

    @property
    def gradient_steps(self) -> int:
        """Gradient steps of an update."""
        return self.count * self.config.updates_per_step

    @property
    def total(self) -> int:
        """Rounds of the whole run."""
        return num_updates(self.config, self.steps) * self.count

    def before(self, steps: int) -> int:
        """Rounds of the run before the one with the last of so many steps; -1 for no steps."""
        return -(-steps // (self.config.num_envs * self.config.train_every)) - 1

    def run(self, round: Callable, state: Any, noise: Any, draws: Any) -> tuple[Any, dict]:
        """The rounds of an update: the state after them, and metrics.

        Args:
          round: round(state, noise, now) -> state, metrics, rollout, with `now` a Round.
          state: with `episodes` and `update`.
          noise: random numbers for acting; leading axis: the rounds.
          draws: random numbers of gradient steps; leading axis: all steps.
        """

        def step(state, inputs, place=None):
            number, first, noise = inputs
            now = Round(number=number, draws=draws, first=first, place=place)
            state, metrics, rollout = round(state, noise, now)
            return state, (metrics, rollout.reward, rollout.done)

        def period(state, inputs):
            """A period of rounds, in which every `turn` is an int, known when compiling."""
            outputs = []
            for i in range(self.whole):
                one = jax.tree.map(operator.itemgetter(i), inputs)
                state, output = step(state, one, i * self.config.updates_per_step)
                outputs.append(output)
            return state, jax.tree.map(lambda *x: jnp.stack(x), *outputs)

        number = jnp.arange(self.count)
        inputs = state.update * self.count + number, number * self.config.updates_per_step, noise
        if loops.platform() == "cpu" or self.period == 1 or self.whole > loops.SHORT:
            state, outputs = scan(step, state, inputs)
        else:  # an accelerator would wait for the host to know each `turn`
            split = lambda x: x.reshape(-1, self.whole, *x.shape[1:])
            state, outputs = scan(period, state, jax.tree.map(split, inputs))
            outputs = jax.tree.map(lambda x: x.reshape(self.count, *x.shape[2:]), outputs)
        metrics, reward, done = outputs
        flat = lambda x: x.reshape(self.num_steps, self.config.num_envs)
        episodes = state.episodes.update(flat(reward), flat(done))
        metrics = {name: over_rounds(x) for name, x in metrics.items()}
        return state.replace(episodes=episodes, update=state.update + 1), metrics

    def repeat(self, step: Callable, state: Any, now: Round, ready: jax.Array) -> tuple[Any, dict]:
        """`updates_per_step` calls of a step: the state after them, and metrics, each an Average.

        Unless ready, metrics do not count, and the step must change nothing (`keep_if`). Then a
        CPU leaves it out. Accelerators, which would wait for the host to decide, compute it, as
        trials do beside one that is ready.

        Args:
          step: step(state, draws, index) -> state, metrics, with the random numbers of the gradient
            step and its index in the update, an int where it is known when compiling. A metric is a
            number, or an Average whose weight is 0 in steps without it. A Maximum or a Last is
            refused: a round may have them.
          ready: bool ().
        """

        def one(state, draws, index):
            state, metrics = step(state, draws, index)
            return state, {name: counted(x) for name, x in metrics.items()}

        def counted(x):
            if isinstance(x, Maximum | Last):
                raise TypeError(
                    f"a gradient step returns a {type(x).__name__}, but its metrics are averaged: "
                    "return a number, or let the round return it"
                )
            total, weight = x if isinstance(x, Average) else (x, True)
            return Average(jnp.where(ready, total, 0.0), ready & weight)

        count = self.config.updates_per_step
        return scan_rows(one, state, now.draws, now.first, count, ready, now.place)
