"""Rounds of acting and learning: the loop of a run with a replay buffer."""

import dataclasses
import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from algorithms.parts.loops import scan_rows
from algorithms.parts.replay import ReplayBuffer
from algorithms.parts.training import Average, Last, Maximum, num_updates
from envs import loops
from envs.loops import scan

STRETCH = 16  # steps of an environment whose random numbers are drawn at once


class Round(NamedTuple):
    """The place of a round in the run."""

    progress: jax.Array  # share of the run before this round, ()
    learned: jax.Array  # share of the learning rounds before it; negative before learning, ()
    ready: jax.Array  # whether the round learns, bool ()
    warm_up: jax.Array  # whether actions are uniform, in files with such a warm-up, bool ()
    draws: Any  # random numbers of gradient steps; leading axis: all steps of the update
    first: jax.Array  # index of the round's first gradient step in them, int32 ()
    place: int | None = None  # this index up to whole periods, where it is known when compiling
    turn: Any = True  # bool, of a gradient step: whether it is the last of its period


def over_rounds(x: Any) -> Any:
    """A metric of an update from those of its rounds, the leading axis."""
    if isinstance(x, Average):
        return jax.tree.map(jnp.sum, x)
    if isinstance(x, Maximum):
        return Maximum(x.value.max(0))
    return Last(x.value[-1]) if isinstance(x, Last) else x.mean()


@dataclasses.dataclass(frozen=True)
class Rounds:
    """The division of a run into rounds and updates.

    A round is `train_every` steps of each environment, then `updates_per_step` gradient steps. An
    update is several rounds: drawing the random numbers for all of them at once costs far less.
    Before `learning_starts`, or the buffer's first whole window, a CPU leaves out gradient steps.
    Accelerators, which would wait for the host to decide, compute and discard them.
    """

    config: Any  # its sizes of rounds and of the run are used
    buffer: ReplayBuffer
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
    def round_steps(self) -> int:
        """Steps of all environments in a round."""
        return self.config.num_envs * self.config.train_every

    @property
    def acting(self) -> tuple[int, int, int]:
        """Shape of an update's random numbers for acting: (rounds, train_every, num_envs)."""
        return self.count, self.config.train_every, self.config.num_envs

    @property
    def gradient_steps(self) -> int:
        """Gradient steps of an update."""
        return self.count * self.config.updates_per_step

    @property
    def waiting(self) -> int:
        """Rounds of the run before the first round that learns."""
        window = self.buffer.waiting * self.buffer.item_steps + 1  # steps until one is whole
        waits = max(self.config.learning_starts, window)
        return -(-waits // self.round_steps) - 1

    @property
    def warm_up(self) -> int:
        """Rounds of the run that begin before `learning_starts`, or before the first that learns.

        A round that learns may be among them: it acts first.
        """
        return max(self.waiting, -(-self.config.learning_starts // self.round_steps))

    def run(self, round: Callable, state: Any, noise: Any, draws: Any) -> tuple[Any, dict]:
        """The rounds of an update: the state after them, and metrics.

        Args:
          round: round(state, noise, now) -> state, metrics, rollout, with `now` a Round.
          state: with `episodes` and `update`.
          noise: random numbers for acting; leading axis: the rounds.
          draws: random numbers of gradient steps; leading axis: all steps.
        """
        total = num_updates(self.config, self.steps) * self.count  # of the whole run

        def step(state, inputs, place=None):
            number, first, noise = inputs
            now = Round(
                progress=number / float(total),
                learned=(number - self.waiting) / float(total - self.waiting),
                ready=number >= self.waiting,
                warm_up=number < self.warm_up,
                draws=draws,
                first=first,
                place=place,
            )
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

    def learn(self, gradient_step: Callable, state: Any, now: Round) -> tuple[Any, dict]:
        """The gradient steps of a round: the state after them, and metrics, each an Average.

        Until `now.ready` their results are discarded, except `state.replay`: choosing between two
        buffers would copy them. So a gradient step must leave the buffer unchanged until then.
        Discarding serves accelerators, and trials beside one that is ready.

        Args:
          gradient_step: gradient_step(state, draws, now) -> state, metrics. A metric is a number,
            or an Average whose weight is 0 in steps without it. A Maximum or a Last is refused: a
            round may have them.
        """

        def step(old, draws, index):
            turn = index % self.period == self.period - 1
            new, metrics = gradient_step(old, draws, now._replace(turn=turn))
            keep = lambda n, o: n if n is o else jnp.where(now.ready, n, o)
            state = jax.tree.map(keep, new.replace(replay=None), old.replace(replay=None))
            metrics = {name: counted(x) for name, x in metrics.items()}
            return state.replace(replay=new.replay), metrics

        def counted(x):
            if isinstance(x, Maximum | Last):
                raise TypeError(
                    f"a gradient step returns a {type(x).__name__}, but its metrics are averaged: "
                    "return a number, or let the round return it"
                )
            total, weight = x if isinstance(x, Average) else (x, True)
            return Average(jnp.where(now.ready, total, 0.0), now.ready & weight)

        count = self.config.updates_per_step
        return scan_rows(step, state, now.draws, now.first, count, now.ready, now.place)
