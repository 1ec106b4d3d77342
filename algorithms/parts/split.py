"""One agent whose environments, rollouts and minibatches are shared over shards.

Each shard runs the algorithm's own program on a part of the environments, and all of them agree on
gradients and statistics (`algorithms.parts.shards`). So the algorithm's file hardly knows of it.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from algorithms.parts import shards
from algorithms.parts.training import first_state, resolve
from envs import shaping

# Sizes that count all environments. Each shard gets an equal share of these,
EVEN = ("num_envs", "batch_size")
# and of these too, rounded up.
ROUNDED = ("buffer_size", "learning_starts")
ACROSS = "shards"  # the axis of devices that hold a state's shards
INSIDE = "shard"  # the axis of shards that a device maps over
SAME = -1  # in place of an axis: a leaf of the state that is the same on all shards


class Split:
    """An algorithm's module whose train shares one agent over `number` shards.

    Its state has the shapes of the algorithm's own: a leaf with an axis of environments, or of a
    replay buffer, has the shards' parts along this axis, and all other leaves are the same on all
    shards. Its numbers are close to those of any other division of the same shards over devices.

    Args:
      module: the algorithm's module; its INFO says that it can be split.
      number: of shards.
      across: devices that share them; their axis of a mesh, over which the caller maps a state's
        leaves, is ACROSS. With 1 the shards are an axis of jax.vmap alone.
      known: the `axes` of its states, if they are known.
    """

    def __init__(self, module: Any, number: int, across: int = 1, known: Any = None):
        self.module, self.number, self.across, self.known = module, number, across, known
        self.__file__, self.__doc__ = module.__file__, module.__doc__

    def __getattr__(self, name: str) -> Any:
        if name == "module":  # not made yet, as in a copy
            raise AttributeError(name)
        return getattr(self.module, name)

    def on(self, across: int, known: Any) -> "Split":
        """The same shards on so many devices."""
        return Split(self.module, self.number, across, known)

    def make_train(self, config: Any, env: Any = None, env_params: Any = None) -> Callable:
        """train(rng, state=None, num_evals=None, learn=True) of all shards, to be jitted.

        Without a state, it gives the first one: num_evals is then 0.

        Raises:
          ValueError: as the algorithm's own, or a setting that cannot be split.
        """
        config, env, env_params = resolve(config, env, env_params)
        whole = self.whole(config, env, env_params)
        share = self.share_of(config, whole.plan.steps)
        self.check(config, share, env, env_params)
        world = env, self.params_of(env, env_params)

        def train(rng, state=None, num_evals=None, learn=True):
            count = whole.plan.points if num_evals is None else num_evals
            axes = self.known
            axes = self.axes(config, env, env_params) if axes is None else axes
            if state is None:
                if count:
                    raise ValueError(f"num_evals={num_evals}: a split run starts with num_evals=0")
                silent = self.module.make_train(share.replace(eval_at_start=False), *world)
                return self.mapped(lambda rng, _: first(silent, rng, axes), axes)(rng, None)
            own = self.module.make_train(share, *world)
            go_on = lambda learn, state: own(None, state, count, learn)
            return self.mapped(go_on, axes)(learn, state)

        planned: Any = train
        planned.plan = whole.plan
        return planned

    def mapped(self, function: Callable, axes: Any) -> Callable:
        """function(same, state) -> state, metrics of one shard as a function of this device's."""
        here = self.number // self.across
        names = ((ACROSS, self.across),) * (self.across > 1) + ((INSIDE, here),)
        places = [None if axis == SAME else axis for axis in jax.tree.leaves(axes)]
        tree = jax.tree.structure(axes)

        def one(same: Any, leaves: list[Any]) -> tuple[list[Any], Any]:
            state = jax.tree.unflatten(tree, leaves) if leaves else None
            with shards.within(names):
                state, metrics = function(same, state)
            return jax.tree.leaves(state), metrics

        def all_here(same: Any, state: Any) -> tuple[Any, Any]:
            leaves = jax.tree.leaves(state)
            apart = [x if k is None else _apart(x, k, here) for x, k in zip(leaves, places)]
            # vmap refuses a leaf that should be the same on all shards and is not.
            mapped = jax.vmap(
                one,
                in_axes=(None, places if leaves else None),
                out_axes=(places, None),
                axis_name=INSIDE,
                axis_size=here,
            )
            leaves, metrics = mapped(same, apart)
            joined = [x if k is None else _joined(x, k) for x, k in zip(leaves, places)]
            return jax.tree.unflatten(tree, joined), metrics

        return all_here

    def whole(self, config: Any, env: Any, env_params: Any) -> Any:
        """The algorithm's own train; its state may be as large as the devices together.

        Devices of a CPU have one memory.
        """
        devices = 1 if jax.default_backend() == "cpu" else jax.device_count()
        with shards.shared_by(min(self.number, devices)):
            return self.module.make_train(config, env, env_params)

    # --- what is split -----------------------------------------------------------------------

    def share_of(self, config: Any, steps: int) -> Any:
        """The Config of one shard, for a run of so many steps.

        Raises:
          ValueError: a size that does not divide.
        """
        changes = {}
        for name in EVEN:
            size = getattr(config, name, 0)
            if size % self.number:
                near = max(1, round(size / self.number)) * self.number
                raise ValueError(
                    f"split_envs={self.number} does not divide {name}={size}; {name}={near} or "
                    f"split_envs={math.gcd(size, self.number)} would do"
                )
            changes[name] = size // self.number
        for name in ROUNDED:
            changes[name] = -(-getattr(config, name, 0) // self.number)
        changes["total_timesteps"] = steps // self.number
        return config.replace(**{name: x for name, x in changes.items() if hasattr(config, name)})

    def params_of(self, env: Any, env_params: Any) -> Any:
        """The environment's parameters for a shard, which counts its own steps alone."""
        if not shaping.shapes(env):
            return env_params
        return env_params.replace(shaped_steps=env_params.shaped_steps / self.number)

    def check(self, config: Any, share: Any, env: Any, env_params: Any) -> None:
        """Refuses settings that cannot be split.

        Raises:
          ValueError: it names the setting, its value and what would do.
        """
        if getattr(config, "prioritized", False):
            raise ValueError(
                f"prioritized=True: priorities are not split; prioritized=False or no "
                f"split_envs={self.number} would do"
            )
        try:
            self.module.make_train(share, env, env_params)
        except ValueError as error:
            named = f"split_envs={self.number} leaves num_envs={share.num_envs} to a shard"
            raise ValueError(f"{named}, and there {error}") from error

    def axes(self, config: Any, env: Any, env_params: Any) -> Any:
        """A tree like the state: the axis along which a leaf is split, or SAME.

        It is the axis whose size differs between the whole state and that of a shard.

        Raises:
          ValueError: a leaf's shape does not say.
        """
        silent = config.replace(eval_at_start=False)
        whole = self.whole(silent, env, env_params)
        share = self.module.make_train(self.share_of(silent, whole.plan.steps), env, env_params)
        shapes = lambda train: jax.eval_shape(lambda: first_state(train, jax.random.key(0)))
        axis = lambda whole, part: _axis(whole, part, self.number)
        return jax.tree.map(axis, shapes(whole), shapes(share))


def first(train: Callable, rng: jax.Array, axes: Any) -> tuple[Any, dict]:
    """A shard's first state: its own environments, and the first shard's parameters and keys."""
    mine = first_state(train, jax.random.fold_in(rng, shards.index()))
    common = first_state(train, jax.random.fold_in(rng, 0))
    return jax.tree.map(lambda axis, m, c: c if axis == SAME else m, axes, mine, common), {}


def _axis(whole: Any, part: Any, number: int) -> int:
    sizes = enumerate(zip(whole.shape, part.shape, strict=True))
    differ = [axis for axis, (size, own) in sizes if size != own]
    if not differ:
        return SAME
    if len(differ) > 1 or whole.shape[differ[0]] != number * part.shape[differ[0]]:
        raise ValueError(
            f"split_envs={number}: an array of {whole.shape} does not consist of {number} parts "
            f"of {part.shape}; it works without split_envs"
        )
    return differ[0]


def _apart(x: jax.Array, axis: int, number: int) -> jax.Array:
    """(..., number * size, ...) as (..., number, size, ...)."""
    shape = (*x.shape[:axis], number, x.shape[axis] // number, *x.shape[axis + 1 :])
    return jnp.reshape(x, shape)


def _joined(x: jax.Array, axis: int) -> jax.Array:
    """The inverse."""
    size = x.shape[axis] * x.shape[axis + 1]
    return jnp.reshape(x, (*x.shape[:axis], size, *x.shape[axis + 2 :]))
