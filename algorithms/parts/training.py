"""From `init` and `update` to train(rng, state=None, num_evals=None), one XLA program."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import ScopeParamShapeError
from jax.flatten_util import ravel_pytree

import envs
from algorithms.parts import reads, shards, spreads
from algorithms.parts.fields import check_kind, check_reals, value_like, with_plain_values
from algorithms.parts.optimizer import check_optimizers
from envs import sums
from envs.episodes import SUMS
from envs.loops import zeros
from envs.sums import Sum
from envs.usual_jax import with_usual_jax


class Average(NamedTuple):
    """A metric of an update with a weight, which is 0 where there are no data."""

    total: jax.Array  # weight times value
    weight: jax.Array


class Maximum(NamedTuple):
    """A metric of an update; a point of the curve has the largest value since the one before."""

    value: jax.Array

    def after(self, earlier: "Maximum") -> "Maximum":
        return Maximum(jnp.maximum(self.value, earlier.value))

    def result(self) -> jax.Array:
        return shards.max_over_shards(self.value)


class Last(NamedTuple):
    """A metric of an update; a point of the curve has the last value."""

    value: jax.Array

    def after(self, earlier: "Last") -> "Last":
        return self

    def result(self) -> jax.Array:
        return shards.mean_over_shards(self.value)


Metric = jax.Array | Average | Maximum | Last  # of an update; a number is averaged over updates


class Progress(NamedTuple):
    """The carry of the updates between two points."""

    state: Any
    sums: Sum  # of all metrics that are means; for an Average, its total and its weight
    others: dict[str, Maximum | Last]


class Learner(NamedTuple):
    """An algorithm's functions, with its settings."""

    # State: a flax dataclass with the fields policy (the part that acting needs), env_state (of
    # `envs.batch`), episodes (of its batch, too), eval_rng (constant: all evaluations use it) and
    # update (updates so far, int32).
    init: Callable[[jax.Array], Any]  # of a key: the first state
    update: Callable[[Any], tuple[Any, dict[str, Metric]]]  # the next state, and metrics
    policy: Callable  # policy(state, observation, memory=None, rng=None, mask=None)
    steps: int  # environment steps of an update
    evaluate: Callable | None = None  # evaluate(state, rng) -> metrics, not the policy's episodes
    measure: Callable | None = None  # measure(state) -> metrics, besides those of episodes


class Plan(NamedTuple):
    """The length of a run: `train.plan`."""

    points: int  # points of the learning curve, without the one before training
    updates: int  # updates of all points; every point has the same number
    steps: int  # environment steps of all updates


def resolve(config: Any, env: Any, env_params: Any) -> tuple[Any, Any, Any]:
    """The config with plain values, and the given environment and parameters or those it names.

    Raises:
      ValueError: one is given without the other, or an error of `envs.make`.
    """
    config = config if reads.is_watched(config) else with_plain_values(config)
    if env is None and env_params is None:
        return config, *envs.make(config.env, **dict(config.env_settings))
    if env is None or env_params is None:
        given, missing = ("env_params", "env") if env is None else ("env", "env_params")
        raise ValueError(
            f"{given} was given without {missing}: give both values of envs.make, "
            "env, env_params = envs.make(...), or neither"
        )
    return config, env, env_params


def with_environment(function: Callable) -> Callable:
    """function(config, env=None, env_params=None), called with what `resolve` makes of them.

    It runs with jax's usual settings, and so do functions that it returns. What make_policy returns
    says in a sentence which argument is wrong.
    """

    @functools.wraps(function)
    def of_config(config: Any, env: Any = None, env_params: Any = None) -> Callable:
        check_kind(config, function.__globals__.get("Config"))
        given = resolve(config, env, env_params)
        return checked(function(*given), function, *given[1:])

    return with_usual_jax(of_config)


def checked(policy: Callable, maker: Callable, env: Any, env_params: Any) -> Callable:
    """What make_policy returns, for a state, observation, memory, key and mask of one environment.

    What other functions return stays as it is.

    Raises:
      ValueError: when called with something else, or without a mask where there are some.
    """
    if maker.__name__ != "make_policy":
        return policy
    space = getattr(env, "actor_space", env.observation_space)
    empty = lambda params: jnp.zeros(space(params).shape)
    shape = jax.eval_shape(empty, env_params).shape  # bounds are no part of a program
    if hasattr(env, "num_agents"):
        shape = (env.num_agents, *shape)

    @functools.wraps(policy)
    def of_one(state, observation, memory=None, rng=None, mask=None):
        if not hasattr(state, "policy"):
            told = f"policy: its state is a {type(state).__name__}"
            raise ValueError(f"{told}: give what train returns first, or a loaded run's .state")
        if isinstance(observation, list | tuple):
            observation = jnp.asarray(observation)
        if np.shape(observation) != shape:
            told = f"policy: an observation of {env.name} has the shape {shape}"
            raise ValueError(f"{told}, not {np.shape(observation)}: jax.vmap takes several")
        if jnp.issubdtype(getattr(memory, "dtype", None), jax.dtypes.prng_key):
            raise ValueError("policy: its memory is a key: give that as rng=...")
        if mask is None and hasattr(env, "action_mask"):
            told = "mask=env.action_mask(env_state, env_params)"
            raise ValueError(f"policy: {env.name} has forbidden actions: give {told}")
        masked = {} if mask is None else {"mask": mask}  # a file of one's own may take none
        try:
            return policy(state, observation, memory, rng, **masked)
        except ScopeParamShapeError as error:
            told = "policy: the state's parameters have other shapes than this config's network"
            raise ValueError(f"{told}: jax.vmap takes the states of several trials") from error

    return of_one


def num_points(config: Any, steps: int) -> int:
    """Points of the learning curve: `num_evals`, or the number of updates if that is smaller.

    Args:
      config: its `total_timesteps` and `num_evals` are used.
      steps: environment steps of an update.
    """
    return min(config.num_evals, -(-config.total_timesteps // steps))


def num_updates(config: Any, steps: int) -> int:
    """Updates of the whole run, a multiple of the number of points.

    The run exceeds `total_timesteps` by less than an update for each point. In runs of 2**31 steps
    and more, points are rounded up until a float32 holds their timesteps.

    Args:
      config: its `total_timesteps` and `num_evals` are used.
      steps: environment steps of an update.

    Raises:
      ValueError: more updates than an int32 counts.
    """
    points = num_points(config, steps)
    per_point = -(-config.total_timesteps // (steps * points))
    total = per_point * points * steps
    if total >= 2**31:
        unit = 2 ** (total.bit_length() - 23)  # float32 has 24 bits; one is kept for rounding up
        together = unit // math.gcd(unit, steps)
        per_point = -(-per_point // together) * together
    updates = per_point * points
    if updates >= 2**31:
        raise ValueError(
            f"total_timesteps={config.total_timesteps} makes {updates} updates of {steps} steps, "
            f"and they are counted up to {2**31 - 1}: more num_envs would do"
        )
    return updates


def timestep(config: Any, steps: int, update: jax.Array) -> jax.Array:
    """Environment steps of this many updates: int32, or float32 in runs beyond an int32.

    They are exact at the points of the curve, see `num_updates`, else within half a unit of
    float32.
    """
    updates = num_updates(config, steps)
    steps = shards.of_all(steps)
    if updates * steps < 2**31:
        return update * steps
    return update.astype(jnp.float32) * float(steps)


def reports(env_state: envs.BatchState) -> bool:
    """Whether environments report metrics of their own."""
    return env_state.metrics is not None


def between_updates(state: Any) -> Any:
    """The state without its start states, which every update draws anew before it needs them."""
    return state.replace(env_state=state.env_state.without_stock())


def program(algorithm: Callable, config: Any, env: Any, env_params: Any) -> Callable:
    """The jitted train(rng, state=None, num_evals=None) -> state, metrics.

    Without a state, training starts. With a state it continues, and rng is not used. num_evals
    (static) is the number of points of the learning curve to run, by default all; 0 without a state
    gives the initial state. `train.plan` is a `Plan`. `train.start(rng)` is the first state.

    Metrics have the points as leading axis. Without data they are NaN (under jax_debug_nans -0.0).
    Those of updates are infinite with data that are not finite; returns are not, because infinity
    would rank first.

    Floats of config and env_params may be traced: train can be vmapped over them and over rng. A
    fourth argument, learn=False, only evaluates, and points then have no updates. It may be traced,
    so that a point before training needs no program of its own.

    Args:
      algorithm: algorithm(config, env, env_params) -> Learner; the function itself is static.
      config: the algorithm's Config.
      env, env_params: from `envs.make`.

    Raises:
      ValueError: a float outside its range, or an episode of the environment may never end, and
        evaluation plays whole episodes.
    """
    check_single(config)
    check_reals(config)
    if config.num_eval_episodes:
        envs.check_ends(env, env_params)
    # Arguments of the compiled program, all strongly typed. Other values do not compile again.
    floats = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), config)
    env_params = jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x)), env_params)
    steps = algorithm(config, env, env_params).steps
    points, updates = num_points(config, steps), num_updates(config, steps)
    asked = reads.changed(config)

    def run(rng, state, learn, count):
        if state is None:
            check_key(rng)
        fixed = shards.apart(algorithm), env, count, sums.debug_nans()
        with reads.asked_for(asked):
            return _train(floats, env_params, rng, state, learn, *fixed)

    def train(rng, state=None, num_evals=None, learn=True):
        return run(rng, state, learn, points if num_evals is None else counted(num_evals))

    planned: Any = train
    planned.plan = Plan(points, updates, updates * steps)
    planned.start = with_usual_jax(lambda rng: run(rng, None, True, None)[0])
    return planned


def counted(num_evals: Any) -> int:
    """A number of points, of NumPy or jax or a whole float, as an int."""
    count = value_like(0, num_evals)
    if type(count) is not int or count < 0:
        raise ValueError(f"num_evals={count}: give the number of points to train, or None")
    return count


def check_key(rng: Any) -> None:
    """Refuses what is not one key, of the kind with a type or of the older one, a vector."""
    is_typed = isinstance(rng, jax.Array) and jnp.issubdtype(rng.dtype, jax.dtypes.prng_key)
    if not (isinstance(rng, jax.Array | np.ndarray) and rng.ndim == (0 if is_typed else 1)):
        plain = rng is None or jax.tree_util.all_leaves([rng])
        what = (
            repr(rng) if plain else f"a {type(rng).__name__}: train(None, state) goes on with one"
        )
        what = f"{rng.shape[0]} keys: jax.vmap(train) takes several" if is_typed else what
        raise ValueError(f"rng is {what}; give one key, as jax.random.key(0)")


def check_single(config: Any) -> None:
    """Refuses arrays in place of numbers: each environment, say, would have a rate of its own."""
    for field in dataclasses.fields(config):
        is_float = field.metadata.get("pytree_node", True)
        if is_float and (shape := np.shape(getattr(config, field.name))):
            told = "give one number; jax.vmap of a function that makes the config takes several"
            raise ValueError(f"{field.name} has the shape {shape}: {told}")


def check_metrics(metrics: dict[str, Any]) -> None:
    """Refuses metrics of an update that have names of the program's own, or several parts."""
    for name, x in metrics.items():
        if name in ("timestep", "num_episodes") or name.startswith(("episode_", "eval_")):
            raise ValueError(f"an update has a metric {name!r}, as episodes have: rename it")
        if not isinstance(x, Average | Maximum | Last) and not jax.tree_util.all_leaves([x]):
            raise ValueError(
                f"the metric {name!r} of an update is a {type(x).__name__}: give an array"
            )


def first_state(train: Any, rng: jax.Array) -> Any:
    """The state of train(rng, None, 0) without its metrics, whose names take seconds to trace."""
    start = getattr(train, "start", None)  # a train that is not of `program` may have none
    return start(rng) if start else train(rng, None, 0)[0]


STATIC = ("algorithm", "env", "num_evals", "debug_nans")  # the last is for jit's cache


@functools.partial(jax.jit, static_argnames=STATIC)
def _train(config, env_params, rng, state, learn, algorithm, env, num_evals, debug_nans):
    config = reads.watched(config)
    own = algorithm(config, env, env_params)
    init, policy, steps = own.init, own.policy, own.steps
    if num_evals is None:  # for `train.start`: nothing else is traced
        return between_updates(init(rng)), {}
    update = jax.jit(shards.with_own_keys(spreads.told(own.update)))  # traced once for all uses

    def updates(state, count):
        """The state after `count` updates, and their metrics."""

        def vector(metrics):  # one vector makes a smaller program
            return ravel_pytree(jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), metrics))

        def step(_, progress):
            state, metrics = update(progress.state)
            others = {name: metrics.pop(name).after(x) for name, x in progress.others.items()}
            total = progress.sums.add(vector(metrics)[0])
            return Progress(between_updates(state), total, others)

        metrics = zeros(lambda state: update(state)[1], state)
        check_metrics(metrics)
        known = lambda x: isinstance(x, Maximum | Last)
        others = {name: metrics.pop(name) for name in [*metrics] if known(metrics[name])}
        others = jax.tree.map(lambda x: jnp.full(x.shape, -jnp.inf), others)
        empty, unravel = vector(metrics)
        progress = Progress(state, Sum.create(empty.shape), others)
        if num_evals:  # otherwise the only point is the one before training
            progress = jax.lax.fori_loop(0, count, step, progress)

        def mean(x):
            weighted = x if isinstance(x, Average) else Average(x, count.astype(jnp.float32))
            # The quotient would round differently under vmap.
            by = lambda total, weight: total * (1.0 / weight)
            value = sums.mean(weighted.total, weighted.weight, by)
            if debug_nans:  # jax then stops at a NaN
                return value
            # NaN means "no data". Data that are not finite give inf, so a broken run does not look
            # like one that has not begun to learn.
            return jnp.where(jnp.isnan(weighted.total) & (weighted.weight > 0), jnp.inf, value)

        metrics = unravel(shards.mean_over_shards(progress.sums.total))
        metrics = {name: mean(x) for name, x in metrics.items()}
        for name, x in progress.others.items():
            value = x.result()
            value = value if debug_nans else jnp.where(jnp.isnan(value), jnp.inf, value)
            metrics[name] = jnp.where(count == 0, -0.0 if debug_nans else jnp.nan, value)
        return progress.state, metrics

    def evaluation(state):
        rng = jax.random.clone(state.eval_rng)
        if own.evaluate is not None:
            return own.evaluate(state, rng)
        number = config.num_eval_episodes
        only = shards.share_of(number)
        episodes = envs.evaluate(policy, state, env, env_params, rng, number, only)
        values = shards.gathered(episodes, number)._asdict()
        values["return"], more = values.pop("episode_return"), values.pop("metrics")
        if own.measure is not None:
            more |= own.measure(state)
        return {f"eval_{name}": x for name, x in (values | more).items()}

    def point(state, count):
        """A row of the learning curve, after `count` updates."""
        state, metrics = updates(state, count)
        episodes, cleared = shards.summed(state.episodes, SUMS).metrics()
        state = state.replace(episodes=cleared)
        if reports(state.env_state):
            reported = shards.summed(state.env_state.metrics, ("totals", "count"))
            episodes, reported = reported.of_point(episodes)
            state = state.replace(env_state=state.env_state.replace(metrics=reported))
        metrics |= episodes
        metrics["timestep"] = timestep(config, steps, state.update)
        if config.num_eval_episodes:
            metrics |= evaluation(state)
        return state, metrics

    counts = [num_updates(config, steps) // num_points(config, steps)] * num_evals
    if state is None:
        state = between_updates(init(rng))
        check_optimizers(state)
        counts = [0] * config.eval_at_start + counts
    reads.warn_of_mask(policy, state, env, env_params)
    # The barrier keeps XLA from specialising the program to the number of points. So the slices of
    # a run give bit for bit the result of the whole.
    counts = jax.lax.optimization_barrier(jnp.array(counts, jnp.int32))
    result = jax.lax.scan(point, state, jnp.where(learn, counts, 0))
    if num_evals and config.num_eval_episodes:  # otherwise what only the policy reads is missing
        reads.warn_of_unread(config, algorithm.__module__, init)
    return result
