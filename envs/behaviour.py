"""What an environment does, where shapes and dtypes cannot tell: a few of its steps are played.

Only users' own environments are played, once each, before training. Those of gymnax, of this kit
and of its adapters have tests.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval

from envs import shaping
from envs.batch import limit_name, with_limit
from envs.evaluation import all_limits
from envs.warn import warn

LIMIT, NO_LIMIT = 2, 1_000_000  # time limits of the episodes that are played, in steps
STEPS = 3  # of these episodes that are played
SLACK = 1000  # steps beyond twice the time limit, after which an evaluation is cut
EPISODES, LENGTH = 16, 64  # episodes that are played with random actions, and their steps


@dataclasses.dataclass(frozen=True)
class _Asked:
    """An environment and its parameters. The same one in new wrappers is not asked again."""

    chain: tuple[Any, ...]  # kinds of wrappers, and the identity of the environment inside
    structure: Any  # of the parameters, with their shapes
    env: Any = dataclasses.field(compare=False)
    params: Any = dataclasses.field(compare=False)


def check_behaviour(env: Any, env_params: Any) -> None:
    """Looks at a user's own environment: discrete observations, the time limit, its functions.

    Nothing is played if the parameters are traced.

    Args:
      env, env_params: from `envs.make`; their shapes have passed `check_interface`.

    Raises:
      ValueError: a discrete observation outside its space, which would be seen as zeros, or a
        mask that allows no action.

    Warns of a step that counts its time limit as an end of the task, of actions that nobody is
    rewarded for, of functions that depend on more than their arguments, of what they do with keys,
    and of agents whose rewards or `info["alive"]` are not what they are said to be.
    """
    from envs.gymnax import Gymnax  # late: it takes seconds to import

    leaves, structure = jax.tree.flatten(env_params)
    known = not any(isinstance(x, jax.core.Tracer) for x in leaves)
    made = any(isinstance(one, Gymnax) for one in _chain(env))  # so a step keeps the state's types
    if not (known and made and of_user(env)):
        return
    shapes = tuple((np.shape(x), jnp.result_type(x)) for x in leaves)
    chain = (*map(type, _chain(env)), id(part_of_user(env)))
    # The user's code may use a key twice or have NaNs.
    with jax.debug_key_reuse(False), jax.debug_nans(False), jax.transfer_guard("allow"):
        _check(_Asked(chain, (structure, shapes), env, env_params))


def of_user(env: Any) -> bool:
    """Whether the environment, or a wrapper in it, is neither gymnax's nor the kit's."""
    return part_of_user(env) is not None


def part_of_user(env: Any) -> Any:
    """The environment without the kit's wrappers; None where all of it is gymnax's or the kit's."""
    of_kit = (f"{__package__}.", "gymnax.")
    parts = (one for one in _chain(env) if not type(one).__module__.startswith(of_kit))
    return next(parts, None)


def _chain(env: Any) -> list[Any]:
    """The environment, and the one in each wrapper."""
    chain = [env]
    while "env" in getattr(chain[-1], "__dict__", ()):
        chain.append(chain[-1].env)
    return chain


@functools.lru_cache(maxsize=64)
def _check(asked: _Asked) -> None:
    env, params = asked.env, asked.params
    with jax.ensure_compile_time_eval():  # values are needed, also inside a trace
        check_discrete(env, params)
        check_masks(env, params)
        warn_of_teams(env, params)
        has_old_flag = done_includes_limit(env, params)
    for traced in functions(env, params):
        whose = f"{traced.name} of {env.name}"
        one, other, uses_a_key_twice = traced.programs()
        if is_impure(one, other):
            warn(
                f"{whose} differs each time it is traced: random numbers of NumPy or Python, a "
                "clock, or an attribute that counts is one constant while it trains; draw with the "
                "key, and keep what changes in the state"
            )
        if uses_a_key_twice:
            warn(
                f"{whose} uses a key twice, so that draws repeat or depend on one another: "
                "jax.random.split makes several of one"
            )
        if any("IOEffect" in type(effect).__name__ for effect in one.effects):
            warn(
                f"{whose} calls Python with side effects (io_callback): all environments, "
                "evaluations and runs share what it keeps; keep that in the state"
            )
        if traced.has_its_own_key(one):
            warn(
                f"{whose} draws with a key of its own, which is the same in all episodes and "
                "environments, and leaves the one that it is given: draw with that one"
            )
        if traced.name == "step_env" and not action_counts(env, traced, one):
            warn(
                f"no action changes a reward or an end of {env.name}, so there is nothing to "
                "learn: step_env uses its action for neither"
            )
    if has_old_flag:
        name, limit = env.name, limit_name(env)
        warn(
            f"step_env of {name} sets its flag where {limit} is reached, so values there are 0 as "
            "at an end of the task: leave the limit to is_truncated, or give the environment "
            "setting done_includes_limit=true"
        )


# --- the longest episode ----------------------------------------------------------------------


def longest_episode(env: Any, env_params: Any) -> Any:
    """Steps after which an evaluation is cut, or None where its episodes surely end.

    The limit in the parameters of a user's own environment may have no effect, as where its
    `is_truncated` is never true. Twice the limit and SLACK leave room for limits that are not
    counted in steps. Other environments heed their limits, and so does `max_steps`.
    """
    from envs.wrappers import is_limited  # late: it imports gymnax

    limits = all_limits(env, env_params)
    if limits[0] is None or is_limited(env) or not of_user(env):
        return None
    longest = functools.reduce(jnp.maximum, [jnp.asarray(x, jnp.float32) for x in limits])
    return 2.0 * longest + SLACK


# --- the time limit ---------------------------------------------------------------------------


def done_includes_limit(env: Any, params: Any) -> bool:
    """Whether `step_env` sets its flag at the time limit, as in gymnax 0.0.x.

    An episode is played with a limit of LIMIT steps and with none. Its first steps are the same, so
    a flag that only the first one sets is that of the limit. Nothing is played where no limit in
    the parameters reaches the flag, or where settings say what the limit means.
    """
    name = limit_name(env)
    if getattr(params, name, None) is None or getattr(env, "limit_has_meaning", False):
        return False

    def flags(params):
        """Whether step_env sets its flag in the first steps, (STEPS,)."""
        reset_key, key = jax.random.split(jax.random.key(0))
        _, state = env.reset_env(reset_key, params)

        def step(state, key):
            action_key, key = jax.random.split(key)
            action = _action(env, action_key, state, params)
            _, state, _, terminated, _ = env.step_env(key, state, action, params)
            return state, terminated

        return jax.lax.scan(step, state, jax.random.split(key, STEPS))[1]

    if not _limit_acts(env, params, name):
        return False
    play = jax.jit(flags)
    short, endless = (play(with_limit(env, params, steps)) for steps in (LIMIT, NO_LIMIT))
    return bool((short & ~endless).any())


def _limit_acts(env: Any, params: Any, name: str) -> bool:
    """Whether the limit reaches the state or the flag of a first step; True if it is static."""

    def step(params):
        reset_key, action_key, key = jax.random.split(jax.random.key(0), 3)
        _, state = env.reset_env(reset_key, params)
        action = _action(env, action_key, state, params)
        _, state, _, terminated, _ = env.step_env(key, state, action, params)
        return [x for x in jax.tree.leaves((state, terminated)) if not _is_key(x)]

    return bool(read(step, params, [name]))


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(x), jax.dtypes.prng_key)


# --- what results depend on -------------------------------------------------------------------


def used_for(program: Any, wanted: Sequence[bool] | None = None) -> list[bool]:
    """Which inputs of a jaxpr the wanted results depend on; without `wanted` all of them."""
    return partial_eval.dce_jaxpr(program, wanted or [True] * len(program.outvars))[1]


def read(function: Callable[[Any], Any], params: Any, names: Collection[str]) -> list[str]:
    """Those of the parameters `names` that function(params) depends on, and static ones."""
    used = used_for(jax.make_jaxpr(function)(params).jaxpr)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    places = [getattr(path[0], "name", "") for path in paths]
    reached = {place for place, is_used in zip(places, used) if is_used}
    return [name for name in names if name in reached or name not in places]


def warn_of_unread(env: Any, params: Any, names: Collection[str]) -> None:
    """Warns of those of the parameters that nothing of an environment depends on.

    A batch reads those of shaped rewards.
    """
    names = [x for x in names if not (shaping.shapes(env) and x in shaping.PARAMETERS)]
    if not names:
        return

    def all_of_it(params):
        keys = jax.random.split(jax.random.key(0), 3)
        first, state = env.reset_env(keys[0], params)
        after = env.step_env(keys[1], state, _action(env, keys[2], state, params), params)
        spaces = env.action_space(params), env.observation_space(params)
        bounds = [getattr(space, end, 0.0) for space in spaces for end in ("low", "high")]
        views = [x for x in ("action_mask", "world_state") if hasattr(env, x)]
        seen = [getattr(env, x)(after[1], params) for x in ("is_truncated", *views)]
        leaves = jax.tree.leaves((first, state, after, bounds, seen))
        return [jax.random.key_data(x) if _is_key(x) else x for x in leaves]

    try:
        with jax.debug_key_reuse(False):
            known = read(all_of_it, params, names)
    except Exception:  # it needs values, or fails, which others tell of
        return
    for name in names:
        if name not in known:
            warn(f"the parameter {name} of {env.name} has no effect: no reset or step reads it")


def action_counts(env: Any, traced: "Traced", program: Any) -> bool:
    """Whether an action reaches a reward or the end of an episode, perhaps many steps later.

    Args:
      traced, program: `step_env` and its program.
    """
    state, params = traced.given[1], traced.given[3]
    count = len(jax.tree.leaves(state))
    cut = jax.make_jaxpr(env.is_truncated)(state, params).jaxpr
    matters, before = used_for(cut)[:count], None  # which leaves of a state do
    rest = [False] * (len(program.jaxpr.outvars) - count - 3)  # the info
    while matters != before:
        # Of a step's observation, state, reward and end, and of its key, state and action.
        used = used_for(program.jaxpr, [False, *matters, True, True, *rest])
        if used[1 + count]:
            return True
        before, matters = matters, [*map(operator.or_, matters, used[1 : 1 + count])]
    return False


# --- pure functions, and their keys -----------------------------------------------------------


class Traced(NamedTuple):
    """`reset_env` or `step_env`, with abstract arguments. The first of them is a key."""

    name: str
    function: Callable[..., Any]
    given: tuple[Any, ...]

    def programs(self) -> tuple[Any, Any, bool]:
        """Of two new traces, and whether jax's checker of keys finds fault with the function."""
        try:
            with jax.debug_key_reuse(True):
                return self.trace(), self.trace(), False
        except jax.errors.KeyReuseError:
            return self.trace(), self.trace(), True

    def trace(self) -> Any:
        """A program; a function of its own, because jit traces one once."""
        return jax.jit(lambda *given: self.function(*given)).trace(*self.given).jaxpr

    def has_its_own_key(self, program: Any) -> bool:
        """Whether its program draws, but not from its key: from one that it makes or has.

        A key that is made of its parameters, as those of a level, is none of its own.
        """
        used = used_for(program.jaxpr)[0]
        seeds = lambda program: str(program.jaxpr).count("random_seed")
        if used:
            return False
        if any(map(_is_key, program.consts)):
            return True
        if seeds(program) == 0:  # which saves a trace
            return False
        with jax.ensure_compile_time_eval():  # without what depends on no argument
            return seeds(program) > seeds(self.trace())


def functions(env: Any, params: Any) -> list[Traced]:
    key = jax.eval_shape(jax.random.key, 0)
    state = jax.eval_shape(env.reset_env, key, params)[1]
    action = jax.eval_shape(functools.partial(_action, env), key, state, params)
    return [
        Traced("reset_env", env.reset_env, (key, params)),
        Traced("step_env", env.step_env, (key, state, action, params)),
    ]


def is_impure(one: Any, other: Any) -> bool:
    """Whether a second trace gives another program, or other constants in it."""
    return str(one.jaxpr) != str(other.jaxpr) or not all(map(_equal, one.consts, other.consts))


def _equal(one: Any, other: Any) -> bool:
    if _is_key(one):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    return np.array_equal(one, other, equal_nan=jnp.issubdtype(jnp.result_type(one), jnp.inexact))


# --- discrete observations --------------------------------------------------------------------


def check_discrete(env: Any, params: Any) -> None:
    """Refuses observations of a Discrete space that are not 0 to n - 1, in a few episodes.

    `make` shows such an observation one-hot, and others as zeros.
    """
    from envs.wrappers import OneHotObservation  # late: it imports gymnax

    encoded = [one.env for one in _chain(env) if isinstance(one, OneHotObservation)]
    if not encoded:
        return
    env = encoded[0]
    space = env.observation_space(params)
    first, going, (later,) = _played(env, params, lambda _, observation, *more: (observation,))
    seen = np.append(first, later[going])
    wrong = [int(x) for x in (seen.min(), seen.max()) if not 0 <= x < space.n]
    if wrong:
        raise ValueError(
            f"{env.name} returns the observation {wrong[0]}, which is outside of {space}: its "
            f"numbers are 0 to {space.n - 1}"
        )


# --- masks ------------------------------------------------------------------------------------


def check_masks(env: Any, params: Any) -> None:
    """Refuses masks of one agent that allow no action before an episode's end.

    Agents that have left may have none.
    """
    if not hasattr(env, "action_mask") or hasattr(env, "num_agents"):
        return
    look = lambda state, *_: (env.action_mask(state, params).any(),)
    _, going, (allowed,) = _played(env, params, look)
    if not allowed[going].all():
        raise ValueError(
            f"action_mask of {env.name} allows no action in a state that random play reaches: let "
            "one be allowed until the episode ends"
        )


# --- several agents ---------------------------------------------------------------------------


def warn_of_teams(env: Any, params: Any) -> None:
    """Warns of a team's reward that differs, and of agents that are gone from the first step on."""
    shared = getattr(env, "shared_reward", False)
    if getattr(env, "num_agents", None) is None:
        return
    _, going, (rewards, alive) = _played(
        env, params, lambda _, __, reward, info: (reward, info.get("alive", jnp.ones(1, bool)))
    )
    apart = going & ~np.isclose(rewards.min(-1), rewards.max(-1))
    if shared and apart.any():
        one, other = (float(x(rewards[apart][0])) for x in (np.min, np.max))
        warn(
            f"agents of {env.name} have different rewards in one step ({one:.6g} and {other:.6g}), "
            "and shared_reward = True says that they are the same: leave it out where rewards are "
            "each agent's own"
        )
    if not alive[:, 0].any() and going[:, 1].any():
        warn(
            f'info["alive"] of {env.name} is False for all agents after the first step, and steps '
            "of agents that have left teach nothing: it is True for those that have not"
        )


# --- of several -------------------------------------------------------------------------------


def _played(env: Any, params: Any, look: Callable[..., tuple[Any, ...]]) -> tuple[Any, Any, Any]:
    """Plays a few episodes with random actions.

    Args:
      look: of the state before a step, its observation, reward and info, what is asked for.

    Returns:
      The first observations (EPISODES, ...), whether a step belongs to the episode
      (EPISODES, LENGTH), and what was seen after it (EPISODES, LENGTH, ...).
    """

    def episode(key):
        reset_key, key = jax.random.split(key)
        first, state = env.reset_env(reset_key, params)

        def step(carry, key):
            state, over = carry
            action_key, key = jax.random.split(key)
            action = _action(env, action_key, state, params)
            observation, after, *rest, terminated, info = env.step_env(key, state, action, params)
            ended = over | terminated | env.is_truncated(after, params)
            return (after, ended), (~over, look(state, observation, *rest, info))

        start = state, jnp.zeros((), bool)
        return first, *jax.lax.scan(step, start, jax.random.split(key, LENGTH))[1]

    keys = jax.random.split(jax.random.key(0), EPISODES)
    return jax.tree.map(np.asarray, jax.jit(jax.vmap(episode))(keys))


def _action(env: Any, key: jax.Array, state: Any, params: Any) -> jax.Array:
    """An action of its space, allowed where there is a mask; one for each agent."""
    if hasattr(env, "action_mask"):
        return jax.random.categorical(key, jnp.where(env.action_mask(state, params), 0.0, -jnp.inf))
    space, agents = env.action_space(params), getattr(env, "num_agents", None)
    if agents is None:
        return space.sample(key)
    return jax.vmap(space.sample)(jax.random.split(key, agents))
