"""Checks that an environment keeps to the interface, by shapes and dtypes. Nothing is run.

`envs.gymnax.Gymnax` refuses what it cannot repair whenever it is traced. `check_interface` refuses
the rest before training, and then asks for the behaviour (envs/behaviour.py). Errors raised by the
environment's own code are passed on unchanged.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from envs import behaviour, shaping
from envs.metrics import kinds

Casting = Literal["no", "same_kind"]  # as for `numpy.can_cast`
RESET, STEP = "observation, state", "observation, state, reward, terminated, info"

NUMBERS = bool | int | float | complex | np.ndarray | np.generic | jax.Array
PLAIN = "a plain dataclass, which programs cannot take: decorate {} with flax.struct.dataclass"
NO_LIMIT = (
    "{} has no is_truncated, and that of gymnax compares state.time with "
    "params.max_steps_in_episode: {}; give the state and the parameters these fields, or write "
    "is_truncated(state, params)"
)


class Refusal(ValueError):
    """A mistake: the value found, and the value expected."""


def check_interface(env: Any, env_params: Any) -> None:
    """Refuses an environment whose reset and step do not fit each other or its spaces.

    They are traced once for each environment and shapes of its parameters. A few steps of a user's
    own environment are then played, see `check_behaviour`.

    Args:
      env, env_params: from `envs.make`. The parameters may be traced.

    Raises:
      ValueError: the value found, and the value expected.
    """
    strong = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shapes(env_params))
    leaves, structure = jax.tree.flatten(strong)  # as in programs, which take them as arguments
    actions, observations = env.action_space(env_params), env.observation_space(env_params)
    check_space(env, "action_space", actions)
    check_space(env, "observation_space", observations)
    number = int(actions.n) if hasattr(actions, "n") else None
    action = (tuple(actions.shape), jnp.float32) if number is None else ((), jnp.int32)
    if reason := getattr(env, "untrainable", ""):
        raise ValueError(f"{name_of(env)}: {reason}")
    try:
        space = tuple(observations.shape), np.dtype(observations.dtype)
        _check(env, structure, tuple(leaves), space, action, number)
    except Refusal as refusal:  # without jax's frames and its note about them
        raise ValueError(str(refusal)) from None
    except (TypeError, IndexError):  # perhaps of a tracer in the place of a number
        inside = behaviour.part_of_user(env)
        if inside is not None:
            check_needed(name_of(env), functools.partial(_once, inside, action), env_params)
        raise
    behaviour.check_behaviour(env, env_params)


@functools.lru_cache(maxsize=64)
def _check(env, structure, leaves, space, action, num_actions):
    shape, dtype = space
    params, agents = jax.tree.unflatten(structure, leaves), shaping.reward_shape(env)
    action = jax.ShapeDtypeStruct(agents + action[0], action[1])
    inside = behaviour.part_of_user(env)
    before = traced_attributes(inside)
    with jax.debug_key_reuse(False):  # shapes only
        key = jax.eval_shape(lambda: jax.random.key(0))
        first = jax.eval_shape(env.reset_env, key, params)
        observation, state = unpack(name_of(env), "reset_env", first, RESET)
        step = jax.eval_shape(env.step_env, key, state, action, params)
        check_attributes(name_of(env), inside, before)
        after, state_after, reward, terminated, info = unpack(name_of(env), "step_env", step, STEP)
        check_state(env, state, state_after)
        truncated = _truncated(env, state_after, params)
        named = [name for name in ("action_mask", "world_state") if hasattr(env, name)]
        views = {name: _view(env, name, state, params) for name in named}
    check_observation(env, "reset_env", observation, shape)
    check_observation(env, "step_env", after, shape, observation.dtype)
    if behaviour.of_user(env):
        check_kind(env, "reset_env", observation, dtype)
    check_array(env, "step_env", "a reward", reward, agents)
    check_end(env, terminated)
    check_array(env, "is_truncated", "a flag", truncated, (), bool)
    if "action_mask" in views:
        kind_of = bool if behaviour.of_user(env) else None  # of others 0 and 1 are known to work
        mask = views["action_mask"]
        check_array(env, "action_mask", "a mask", mask, (*agents, num_actions), kind_of)
    if "world_state" in views:
        check_array(env, "world_state", "a view", views["world_state"])
    check_info(env, info)


def _view(env: Any, name: str, state: Any, params: Any) -> Any:
    """The shapes of a mask, or of a world state."""
    function = getattr(env, name)
    if not callable(function):
        raise Refusal(f"{name} of {name_of(env)} is {function!r}: give a method, or leave it out")
    try:
        inspect.signature(function).bind(state, params)
    except TypeError as error:
        told = f"{name} of {name_of(env)} takes (state, params)"
        raise Refusal(f"{told}: {error}") from None
    return jax.eval_shape(function, state, params)


def check_end(env: Any, terminated: Any) -> None:
    """Refuses flags that are not one bool of the episode, such as one for each agent."""
    agents = shaping.reward_shape(env)
    if isinstance(terminated, dict) or (agents and getattr(terminated, "shape", ()) == agents):
        found = "a dict" if isinstance(terminated, dict) else f"shape {terminated.shape}"
        raise Refusal(
            f"step_env of {name_of(env)} returns terminated as {found}: give one flag for the "
            "episode of all; info['alive'] is False for agents that have left"
        )
    check_array(env, "step_env", "terminated", terminated, (), bool)


def traced_attributes(env: Any) -> set[str]:
    """The attributes of an object that hold tracers."""

    def has(x: Any) -> bool:
        try:
            return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(x))
        except (TypeError, ValueError):  # keys that cannot be sorted
            return False

    return {name for name, x in getattr(env, "__dict__", {}).items() if has(x)}


def check_attributes(name: str, env: Any, before: set[str]) -> None:
    """Refuses attributes that a reset or a step has set: a program would never see them change."""
    if kept := sorted(traced_attributes(env) - before):
        raise Refusal(
            f"reset_env or step_env of {name} sets self.{kept[0]}: what changes is a field of the "
            "state, which they return"
        )


def _truncated(env: Any, state: Any, params: Any) -> Any:
    """The shape of its flag. A user may not know that gymnax has an `is_truncated` of its own."""
    from envs.gymnax import Environment  # late: it takes seconds to import

    try:
        return jax.eval_shape(env.is_truncated, state, params)
    except AttributeError as error:
        inside = behaviour.part_of_user(env)
        if getattr(type(inside), "is_truncated", None) is not Environment.is_truncated:
            raise
        raise Refusal(NO_LIMIT.format(name_of(env), error)) from None


def _once(env: Any, action: tuple[tuple[int, ...], Any], params: Any) -> jax.Array:
    """A reset and a step; the action has this shape and dtype."""
    keys = jax.random.split(jax.random.key(0))
    _, state = env.reset_env(keys[0], params)
    zeros = jnp.zeros(shaping.reward_shape(env) + action[0], action[1])
    return env.is_truncated(env.step_env(keys[1], state, zeros, params)[1], params)


def check_parameters(name: str, params: Any) -> None:
    """Refuses parameters that are no numbers or arrays, such as a string.

    Raises:
      ValueError: the parameter, its value, and flax' way to leave it out of programs.
    """
    if is_plain(params):
        raise ValueError(f"default_params of {name} is {PLAIN.format(type(params).__name__)}")
    for field in getattr(params, "__dataclass_fields__", ()):
        value = getattr(params, field)
        if field in _traced(params) and not all(
            isinstance(leaf, NUMBERS) for leaf in jax.tree.leaves(value)
        ):
            raise ValueError(
                f"parameter {field} of {name} is {value!r}, which programs cannot take: declare it "
                f"as {_static(field, value)}"
            )


def check_needed(name: str, function: Callable[[Any], Any], params: Any) -> None:
    """Says which parameters a function takes as values alone, if it cannot be traced for them.

    An int that is a shape is such a parameter, and a flag in an `if`. With its value at hand the
    function can be traced.

    Raises:
      ValueError: the parameters, and flax' way to leave them out of programs.
    """

    def traces(**held: Any) -> bool:
        try:
            with jax.debug_key_reuse(False):  # shapes only
                jax.eval_shape(lambda held: function(params.replace(**held)), held)
        except Exception:  # of the environment's own code
            return False
        return True

    if hasattr(params, "replace") and traces():
        needed = {n: getattr(params, n) for n in _traced(params)}
        needed = {n: value for n, value in needed.items() if not traces(**{n: value})}
        if needed:
            names = ", ".join(needed)
            declared = ", ".join(_static(n, value) for n, value in needed.items())
            raise ValueError(
                f"{name} needs the value of {names} while its program is made, as a shape, in an "
                f"if or in a function of np: declare {declared}; or take jnp.where and jnp"
            ) from None


def _traced(params: Any) -> list[str]:
    """The fields of parameters that are arguments of programs."""
    fields = getattr(params, "__dataclass_fields__", {})
    return [name for name, field in fields.items() if field.metadata.get("pytree_node", True)]


def _static(name: str, value: Any) -> str:
    """How to declare a parameter that shapes programs."""
    kind = type(value).__name__
    return f"{name}: {kind} = struct.field(pytree_node=False, default={value!r})"


def check_space(env: Any, part: str, space: Any) -> None:
    """Refuses a space without elements, and a Box with a lower bound above the upper one.

    Bounds that are traced are not known.

    Raises:
      ValueError: the environment, the part (`action_space`, ...) and the space.
    """
    check_library(name_of(env), part, space)
    shape, bounds = tuple(space.shape), [getattr(space, end, 0.0) for end in ("low", "high")]
    known = not any(isinstance(x, jax.core.Tracer) for x in bounds)
    if 0 in shape or getattr(space, "n", 1) < 1:
        wrong = "has no elements"
    elif known and not np.all(np.asarray(bounds[0]) <= np.asarray(bounds[1])):
        wrong = "has a low above its high"
    elif known and behaviour.of_user(env) and not _holds(space.dtype, bounds):
        wrong = f"has bounds that {np.dtype(space.dtype)} cannot hold; float32 would do"
    else:
        return
    raise ValueError(f"{part} of {name_of(env)} is {space}, which {wrong}")


def _holds(dtype: Any, bounds: Any) -> bool:
    """Whether integers of this dtype reach finite bounds; others would wrap around."""
    if not jnp.issubdtype(dtype, jnp.integer):
        return True
    finite = [x[np.isfinite(x)] for x in map(np.asarray, bounds)]
    ends = jnp.iinfo(dtype)
    return all(np.all((x >= ends.min) & (x <= ends.max)) for x in finite)


def check_library(name: str, part: str, space: Any) -> None:
    """Refuses spaces of gymnasium, which sample with NumPy, and a Box whose bounds are lists."""
    library = type(space).__module__.partition(".")[0]
    if library in ("gym", "gymnasium"):
        raise ValueError(
            f"{part} of {name} is {space} of {library}: take gymnax.environments.spaces, whose "
            "Discrete begins at 0"
        )
    bounds = [getattr(space, end, 0.0) for end in ("low", "high")]
    if part == "action_space" and any(isinstance(x, list | tuple) for x in bounds):
        raise ValueError(f"{part} of {name} has lists as bounds: give numbers or jnp.array(...)")


def is_bounded(space: Any) -> bool:
    """Whether a Box is finite; bounds that are traced count as finite."""
    bounds = [x for x in (space.low, space.high) if not isinstance(x, jax.core.Tracer)]
    return all(np.isfinite(x).all() for x in bounds)


def name_of(env: Any) -> str:
    """An environment's name, or the name of its class."""
    inner = env
    while not hasattr(env, "name") and "env" in vars(inner):
        inner = inner.env
    return getattr(env, "name", type(inner).__name__)


def shapes(tree: Any) -> Any:
    """The tree with shapes and dtypes in place of its arrays, tracers and Python numbers."""

    def shape(x: Any) -> jax.ShapeDtypeStruct:
        kind = jax.typeof(x)
        return jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=kind.weak_type)

    return jax.tree.map(shape, tree)


def unpack(name: str, part: str, returned: Any, values: str) -> tuple:
    """The values that reset_env or step_env returned, if their number is right."""
    count, several = len(values.split(", ")), isinstance(returned, tuple | list)
    if several and len(returned) == count:
        if is_plain(returned[1]):
            told = PLAIN.format(type(returned[1]).__name__)
            raise Refusal(f"{part} of {name} returns a state that is {told}")
        more = returned[-1].items() if values == STEP and isinstance(returned[-1], dict) else ()
        for key, x in more:
            if not all(_is_array(y) or isinstance(y, NUMBERS) for y in jax.tree.leaves(x)):
                found = f"{kind(x)} as info[{key!r}]: give numbers or arrays"
                raise Refusal(f"{part} of {name} returns {found}")
        return tuple(returned)
    found = f"{len(returned)} values" if several else kind(returned)
    raise Refusal(f"{part} of {name} returns {found}, in place of the {count} values {values}")


def is_plain(value: Any) -> bool:
    """Whether it is a dataclass that jax does not know."""
    return dataclasses.is_dataclass(value) and jax.tree_util.all_leaves([value])


def as_array(env: Any, part: str, what: str, value: Any, dtype: Any) -> jax.Array:
    """The value with that dtype, if it is one array."""
    try:
        return jnp.asarray(value, dtype)
    except (TypeError, ValueError):
        check_array(env, part, what, value)
        raise


def check_observation(
    env: Any, part: str, value: Any, shape: tuple[int, ...], dtype: Any = None
) -> None:
    """Refuses an observation that is not one array with the shape of the space for each agent."""
    shape = (*shaping.reward_shape(env), *shape)
    check_array(env, part, "an observation", value, shape, dtype)


def check_kind(env: Any, part: str, value: Any, dtype: Any) -> None:
    """Refuses floats as observations of a space of integers or bools: a cast would cut them off."""
    floats = jnp.issubdtype(jnp.result_type(*jax.tree.leaves(value)), jnp.floating)
    if floats and not jnp.issubdtype(dtype, jnp.floating):
        raise Refusal(
            f"{part} of {name_of(env)} returns an observation of floats, and observation_space has "
            f"{np.dtype(dtype)}, which would cut them off"
        )


def check_array(
    env: Any, part: str, what: str, value: Any, shape: tuple | None = None, dtype: Any = None
) -> None:
    """Refuses a value that is not one array of the given shape and dtype."""
    if not _is_array(value):
        found, expected = f"type {type(value).__name__}", "one array"
    elif shape not in (None, value.shape):
        found, expected = f"shape {value.shape}", str(shape)
        if value.shape[1:] == shape and what == "an observation" and not hasattr(env, "num_agents"):
            expected += f"; for {value.shape[0]} agents give the environment num_agents"
        if shape and hasattr(env, "num_agents"):
            expected += f" for {env.num_agents} agent{'s' * (env.num_agents != 1)}"
    elif dtype is not None and value.dtype != dtype:
        found, expected = value.dtype, np.dtype(dtype)
    else:
        return
    raise Refusal(f"{part} of {name_of(env)} returns {what} of {found}, in place of {expected}")


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def check_state(env: Any, first: Any, after: Any, casting: Casting = "no") -> None:
    """Refuses a step whose state differs from that of the reset, weak types aside.

    Args:
      env: for its name.
      first, after: the states of reset_env and of step_env.
      casting: other dtypes that are accepted after a step, as in `numpy.can_cast`.
    """
    told, old, new = f"step_env of {name_of(env)} returns", _leaves(first), _leaves(after)
    structures: list[Any] = [jax.tree.structure(state) for state in (first, after)]
    check_order(name_of(env), first, after)
    if structures[0] != structures[1]:
        beside, missing = [x for x in new if x not in old], [x for x in old if x not in new]
        if beside:
            raise Refusal(f"{told} {', '.join(beside)}, which reset_env does not")
        found = (
            f"no {', '.join(missing)}, which" if missing else "a state of another structure than"
        )
        raise Refusal(f"{told} {found} reset_env does")
    for name, (shape, dtype) in old.items():
        if new[name][0] != shape or not _casts(new[name][1], dtype, casting):
            found, expected = (f"{dtype} {shape}" for shape, dtype in (new[name], old[name]))
            raise Refusal(f"{told} {name} of {found}, in place of {expected} as reset_env does")


def check_order(name: str, first: Any, after: Any) -> None:
    """Refuses a number in the place of a state: gymnasium's step has no state, but a reward."""
    number = jax.tree_util.all_leaves([after]) and np.shape(after) == ()
    if number and not jax.tree_util.all_leaves([first]):
        raise Refusal(
            f"step_env of {name} returns a number as its second value, in place of a state: the "
            f"order is {STEP}"
        )


def _leaves(state: Any) -> dict[str, tuple]:
    """The shape and dtype of each leaf of a state."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    name = lambda path: f"state{jax.tree_util.keystr(path)}"
    return {name(path): (np.shape(x), jnp.result_type(x)) for path, x in leaves}


def _casts(dtype: Any, to: Any, casting: Casting) -> bool:
    """Whether one dtype may replace another; that of a key replaces only itself."""
    plain = all(isinstance(x, np.dtype) for x in (dtype, to))
    return dtype == to or (plain and np.can_cast(dtype, to, casting))


def check_info(env: Any, info: Any) -> None:
    """Refuses metrics other than those that the environment names, and other shapes."""
    named, agents = kinds(env), shaping.reward_shape(env)
    if not isinstance(info, dict):
        raise Refusal(
            f"step_env of {name_of(env)} returns {kind(info)}, in place of a dict of info"
        )
    metrics = info.get("metrics", {})
    if not isinstance(metrics, dict):
        found = f'{kind(metrics)} as info["metrics"], in place of a dict'
        raise Refusal(f"step_env of {name_of(env)} returns {found}")
    for name in sorted(metrics.keys() - named.keys()):
        raise Refusal(
            f'{name_of(env)} reports the metric {name}, but has no metrics = {{"{name}": "last"}} '
            '(or "sum") to say what an episode\'s value is'
        )
    for name in sorted(named.keys() - metrics.keys()):
        raise Refusal(f"{name_of(env)} has the metric {name}, which step_env does not report")
    for name, value in metrics.items():
        check_array(env, "step_env", f"the metric {name}", value, ())
    if agents and "alive" in info:
        check_array(env, "step_env", 'info["alive"]', info["alive"], agents, bool)
    if shaping.shapes(env):
        shaped = info.get("shaped_reward")
        check_array(env, "step_env", 'info["shaped_reward"]', shaped, agents)


def kind(value: Any) -> str:
    """The kind of a value, with an article."""
    name = "array" if _is_array(value) else type(value).__name__
    return f"a{'n' * (name[0] in 'AEIOUaeiou')} {name}"
