"""Populations whose members share one XLA program: population-based training of any algorithm.

A `Population` is used as an algorithm's module. Its trials are populations with a seed each, whose
members are trials of the algorithm: seeds, devices, checkpoints and resuming are those of a run. A
point of the curve is a round: all members train, they are ranked, and some are replaced.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.interpreters import partial_eval

import envs
from algorithms import parts
from algorithms.launch.engine import devices, evolution, programs, settings
from algorithms.launch.engine.distributions import Discount, LogUniform, Uniform, problem
from algorithms.launch.engine.errors import UserError, unknown
from algorithms.launch.engine.evolution import Range

# Names of the fields of a state, beside the policy, that gradient steps change. Rewards are scaled
# as the values that were learned of them.
LEARNED = (
    "params",
    "opt_state",
    "critics",
    "log_temperature",
    "weights",
    "reward_scale",
    "return_range",
)


class Settings(NamedTuple):
    """What config.json has as `population`."""

    ranges: dict[str, Range]
    members: int
    share: float = 0.25  # of the members that are replaced in a round; 0: nobody ever is
    factor: float = 1.25  # by which floats move
    resample: float = 0.0  # probability that a float is drawn anew in place of moving
    copy_buffer: bool = True  # copies take replay buffer and environments along
    periods: Sequence[int] = (1,)  # rounds between evolutions, of equal subpopulations

    def to_json(self) -> dict[str, Any]:
        ranges = {name: list(space) for name, space in self.ranges.items()}
        return self._asdict() | {"ranges": ranges, "periods": list(self.periods)}

    def as_fields(self) -> dict[str, str]:
        """Texts for the fields that change, and for the population's other settings."""
        fields = {n: f"{s.kind}:{s.low:g}:{s.high:g}" for n, s in self.ranges.items()}
        others = {n: x for n, x in self.to_json().items() if n not in ("ranges", "members")}
        plain = Settings({}, 0).to_json()
        more = [f"{name} {value}" for name, value in others.items() if value != plain[name]]
        return fields | {"pbt": ", ".join([f"{self.members} members", *more])}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Settings":
        ranges = {name: Range(*space) for name, space in values["ranges"].items()}
        return cls(**values | {"ranges": ranges})


@struct.dataclass
class Acting:
    """A state of which the policy alone was kept, which is all that acting needs."""

    policy: Any


@struct.dataclass
class Best:
    """What acting needs: the best member's policy, and its floats."""

    policy: Any
    floats: dict[str, jax.Array]


@struct.dataclass
class State:
    """A population."""

    policy: Best
    members: Any  # their states, leading axis members
    floats: dict[str, jax.Array]  # (members,), of the next round
    parents: jax.Array  # whose state each member has gone on from, int32 (members,)
    rng: jax.Array
    eval_rng: jax.Array  # constant: a round's evaluations use what is folded into it
    round: jax.Array  # rounds so far, int32

    def replace(self, **changes: Any) -> "State":
        return dataclasses.replace(self, **changes)


class Population:
    """An algorithm's module whose trials are populations."""

    def __init__(self, module: Any, settings: Settings):
        self.module, self.settings = module, settings
        self.__file__, self.__doc__ = module.__file__, module.__doc__
        self.Config = module.Config

    @property
    def members(self) -> int:
        return self.settings.members

    @property
    def block(self) -> int | None:
        """Trials that a device vmaps: on a CPU one, whose members fill it."""
        return 1 if jax.devices()[0].platform == "cpu" else None

    def make_policy(self, config: Any, env: Any = None, env_params: Any = None) -> Callable:
        """The policy of the best member."""

        def policy(state, observation, memory=None, rng=None, mask=None):
            best = state.policy
            act = self.module.make_policy(config.replace(**best.floats), env, env_params)
            return act(Acting(best.policy), observation, memory, rng, mask)

        return policy

    def make_train(self, config: Any, env: Any = None, env_params: Any = None) -> Callable:
        """train(rng, state=None, num_evals=None, learn=True) of a whole population."""
        config, env, env_params = parts.resolve(config, env, env_params)
        alone = self.module.make_train(config, env, env_params)
        plan = getattr(alone, "plan", parts.Plan(config.num_evals, 0, 0))
        whole = _Program(self.module, self.settings, config, env, env_params, plan.points)

        def train(rng, state=None, num_evals=None, learn=True):
            count, turns = plan.points if num_evals is None else num_evals, []
            if state is None:
                state = whole.init(rng)
                turns = [False] * config.eval_at_start
            turns = jnp.array([*turns, *[True] * count], bool)
            return jax.lax.scan(whole.round, state, turns & learn)

        planned: Any = train
        planned.plan = plan
        return planned


class _Program(NamedTuple):
    """The functions that the program of a population is made of."""

    module: Any
    settings: Settings
    config: Any
    env: Any
    env_params: Any
    points: int

    def member(self, floats: dict[str, jax.Array], silent: bool = False) -> Callable:
        """The algorithm's own train, with a member's floats."""
        config = self.config.replace(**floats)
        config = config.replace(eval_at_start=False) if silent else config
        return self.module.make_train(config, self.env, self.env_params)

    def init(self, rng: jax.Array) -> State:
        rng, members_rng, floats_rng, eval_rng = jax.random.split(rng, 4)
        size, names = self.settings.members, list(self.settings.ranges)
        drawn = jax.random.split(floats_rng, len(names))
        ranges = self.settings.ranges
        floats = {n: evolution.first_values(k, ranges[n], size) for n, k in zip(names, drawn)}
        floats = {name: self.bounded(name, values) for name, values in floats.items()}
        keys = jax.random.split(members_rng, size)
        first = lambda floats, key: parts.first_state(self.member(floats, silent=True), key)
        members = jax.vmap(first)(floats, keys)
        best = _at(0, (members.policy, floats))
        return State(
            policy=Best(*best),
            members=members,
            floats=floats,
            parents=jnp.arange(size),
            rng=rng,
            eval_rng=eval_rng,
            round=jnp.zeros((), jnp.int32),
        )

    def round(self, state: State, learn: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        """All members train up to their next point, the best one is found, some are replaced."""
        eval_rng = jax.random.fold_in(jax.random.clone(state.eval_rng), state.round)
        rank_rng, fresh_rng = jax.random.split(eval_rng)
        members, metrics = self.train_all(state, learn, rank_rng)
        metrics = {name: values[:, 0] for name, values in metrics.items()}  # one point
        sound = programs.is_finite(members.policy)
        scores = jnp.where(sound, _scores(metrics), -jnp.inf)
        best = jnp.argmax(scores)
        row = _at(best, metrics)
        if self.config.num_eval_episodes:
            cloned = lambda x: jax.random.clone(x) if devices.is_key(x) else x
            again = state.floats, jax.tree.map(cloned, members)
            row |= self.evaluated(_at(best, again), fresh_rng)
        row |= {"best_member": best, "member_return": _scores(metrics), "parent": state.parents}
        row |= {f"member_{name}": values for name, values in state.floats.items()}
        told = Best(*_at(best, (members.policy, state.floats)))
        after = state.replace(policy=told, members=members)
        return self.evolved(after, scores, learn), row

    def train_all(self, state: State, learn: jax.Array, eval_rng: jax.Array) -> tuple[Any, dict]:
        """All members' next point, which the same episodes evaluate."""
        size, members = self.settings.members, state.members
        if hasattr(members, "eval_rng"):
            keys = jnp.broadcast_to(eval_rng, (size,))
            members = members.replace(eval_rng=jax.random.clone(keys))
        one = lambda learn, floats, state: self.member(floats)(None, state, 1, learn)
        # On a CPU in blocks, as trials are.
        block = devices.block_size(size, jax.default_backend())
        all_at_once = jax.vmap(one, (None, 0, 0))
        if size % block or block == size:
            return all_at_once(learn, state.floats, members)
        return programs.in_turn(all_at_once, size // block, True)(learn, state.floats, members)

    def evaluated(self, best: tuple[dict, Any], rng: jax.Array) -> dict[str, jax.Array]:
        """The best member's evaluation by episodes that had no part in the ranking."""
        floats, state = best
        if not hasattr(state, "eval_rng"):
            return {}
        played = self.member(floats)(None, state.replace(eval_rng=rng), 1, False)[1]
        return {name: x[0] for name, x in played.items() if name.startswith("eval_")}

    def evolved(self, state: State, scores: jax.Array, learn: jax.Array) -> State:
        """The population of the next round."""
        settings, size = self.settings, self.settings.members
        rng, choice_rng, *explore_rngs = jax.random.split(state.rng, 2 + len(settings.ranges))
        state = state.replace(rng=rng, parents=jnp.arange(size), round=state.round + learn)
        if not settings.share:
            return state
        is_due = learn & (state.round < self.points)  # what nobody trains any more stays
        if len(settings.periods) > 1:
            parents = evolution.frequencies(scores, settings.periods, state.round)
        else:
            parents = evolution.truncation(choice_rng, scores, settings.share)
            is_due &= state.round % settings.periods[0] == 0
        parents = jax.tree.map(lambda x, o: jnp.where(is_due, x, o), parents, evolution.stay(size))
        floats = {}
        for (name, space), key in zip(settings.ranges.items(), explore_rngs):
            values = state.floats[name][parents.floats]
            moved = evolution.explore(key, values, space, settings.factor, settings.resample)
            moved = jnp.where(parents.explores, self.bounded(name, moved), values)
            floats[name] = moved
        members = copied(state.members, parents.state, settings.copy_buffer)
        return state.replace(members=members, floats=floats, parents=parents.state)

    def bounded(self, name: str, values: jax.Array) -> jax.Array:
        """Within the interval that the Config allows."""
        low, high = parts.bounds(self.config, name)
        return jnp.clip(values, low, high)


def copied(members: Any, parents: jax.Array, with_buffer: bool) -> Any:
    """Each member with the state of its parent, but for keys.

    Without the buffer a copy keeps its own environments, too: a window of the buffer must not begin
    in one and end in another.
    """
    names = list(members.__dataclass_fields__)
    if not with_buffer:
        names = [name for name in names if name == "policy" or name.endswith(LEARNED)]
    take = lambda x: x if devices.is_key(x) else x[parents]
    return members.replace(**{n: jax.tree.map(take, getattr(members, n)) for n in names})


def _at(index: Any, tree: Any) -> Any:
    """One member of a tree."""
    return jax.tree.map(lambda x: x[index], tree)


def _scores(metrics: dict[str, jax.Array]) -> jax.Array:
    """Mean returns (members,), -inf where there are none."""
    name = "eval_return" if "eval_return" in metrics else "episode_return"
    means = metrics[name].reshape(len(metrics[name]), -1).mean(axis=1)
    return jnp.where(jnp.isnan(means), -jnp.inf, means)


# --- what is refused --------------------------------------------------------------------------


def _check(wanted: Settings, config: Any) -> None:
    """Refuses settings that make no sense."""
    members, share, periods = wanted.members, wanted.share, wanted.periods
    names = settings.float_fields(config)
    if not wanted.ranges:
        raise UserError("pbt: nothing changes; give a float a range, learning_rate log:1e-5:1e-2")
    for name in wanted.ranges:
        if name not in names:
            raise unknown("float", name, names)
    counts = ("members", "samples", members), ("rounds", "pbt", config.num_evals)
    for name, flag, value in counts:
        if type(value) is not int:
            raise UserError(f"{name}={value!r} (--{flag}): give a whole number")
    for name in ("share", "factor", "resample"):
        if not isinstance(value := getattr(wanted, name), int | float):
            raise UserError(f"pbt_{name}={value!r}: give a number")
    if members < 2:
        raise UserError(f"members={members} (--samples): a population has 2 or more")
    if not 0 <= share <= 0.5:
        raise UserError(f"pbt_share={share}: give a number from 0 (nobody is replaced) to 0.5")
    if not wanted.factor > 1:
        raise UserError(f"pbt_factor={wanted.factor}: give a number above 1, as 1.25")
    if not 0 <= wanted.resample <= 1:
        raise UserError(f"pbt_resample={wanted.resample}: give a probability, from 0 to 1")
    if config.num_evals < 2:
        raise UserError(
            f"rounds={config.num_evals} (--pbt): give 2 or more, members change in between"
        )
    if not periods or min(periods) < 1:
        raise UserError(f"pbt_periods={tuple(periods)}: give whole numbers of rounds, 1 or more")
    if len(periods) > 1 and share not in (0, Settings._field_defaults["share"]):
        raise UserError(
            f"pbt_share={share}: with several pbt_periods quarters are replaced; leave it out, or "
            "give 0 (nobody is replaced)"
        )
    each = evolution.QUARTERS * len(periods)
    if len(periods) > 1 and members % each:
        raise UserError(
            f"members={members} (--samples): {len(periods)} subpopulations of four quarters need a "
            f"multiple of {each} members"
        )
    if max(periods) >= config.num_evals:
        raise UserError(
            f"pbt_periods={tuple(periods)}: the subpopulation that evolves after "
            f"{max(periods)} rounds never does in {config.num_evals}; give smaller numbers or more "
            "rounds"
        )


def check_rounds(plan: parts.Plan, config: Any) -> None:
    """Refuses more rounds than a run has updates."""
    if plan.points < config.num_evals:
        steps = plan.steps // plan.updates
        raise UserError(
            f"rounds={config.num_evals} (--pbt): total_timesteps={config.total_timesteps} makes "
            f"{plan.updates} updates of {steps:,} steps, too few for {config.num_evals} rounds; "
            f"give total_timesteps={steps * config.num_evals}, or fewer rounds"
        )


def check_floats_matter(module: Any, config: Any, names: Sequence[str]) -> None:
    """Refuses floats that a run reads at its start alone: a population changes them later.

    Raises:
      UserError: it names them.
    """
    env, env_params = envs.make(config.env, **dict(config.env_settings))
    state = programs.initial_state(module, config)
    config = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), config)
    floats = {name: getattr(config, name) for name in names}

    def go_on(floats, state):
        return module.make_train(config.replace(**floats), env, env_params)(None, state, 1)

    traced = jax.make_jaxpr(go_on)(floats, state).jaxpr
    _, used = partial_eval.dce_jaxpr(traced, [True] * len(traced.outvars))
    idle = [name for name, is_used in zip(sorted(floats), used) if not is_used]
    if idle:
        raise UserError(
            f"pbt: {', '.join(idle)} matters at the start of a run only: sweep over it without pbt"
        )


def in_words(settings: Settings, rounds: int) -> str:
    """What a run's output says first."""
    ranges = [f"{n} {s.kind}:{s.low:g}:{s.high:g}" for n, s in settings.ranges.items()]
    members, periods = settings.members, [str(period) for period in settings.periods]
    count = evolution.replaced(members, settings.share)
    after = f"{count} member{'s' * (count > 1)} replaced after "
    after += "each" if periods == ["1"] else f"every {periods[0]}"
    if len(periods) > 1:
        after = f"subpopulations that evolve after {', '.join(periods)} rounds"
    if not settings.share:
        after = "nobody is replaced"
    return (
        f"population-based training: {members} members with {', '.join(ranges)}; "
        f"{rounds} rounds, {after}"
    )


def described(module: Any) -> dict[str, Any]:
    """What config.json says of a population; nothing of other modules."""
    return {"population": module.settings.to_json()} if isinstance(module, Population) else {}


def of(module: Any, description: dict[str, Any]) -> Any:
    """The module of a run: a `Population` where its config.json says so."""
    if "population" not in description or isinstance(module, Population):
        return module
    return Population(module, Settings.from_json(description["population"]))


KINDS = {Uniform: "uniform", LogUniform: "log", Discount: "discount"}


def asked(config: Any, ranges: Mapping[str, Any], **values: Any) -> Settings:
    """What `launch.pbt` is to do with a Config whose points are the rounds.

    Args:
      **values: fields of `population.Settings`; periods may be words, "1,4".

    Raises:
      UserError: a setting that makes no sense: its name, its value and what would do.
    """
    kinds = Settings._field_defaults | {"members": 0}
    plain = {name: parts.value_like(kinds.get(name), value) for name, value in values.items()}
    wanted = Settings(
        **plain | {"ranges": {name: _range(name, given) for name, given in ranges.items()}}
    )
    wanted = wanted._replace(periods=_periods(wanted.periods))
    _check(wanted, config)
    return wanted


def _range(name: str, given: Any) -> Range:
    if type(given) not in KINDS:
        raise UserError(f"pbt: {name}={given}: give a range, as log:1e-5:1e-2")
    if wrong := problem(given, float):
        raise UserError(f"pbt: {name}={given}: {wrong}")
    return Range(KINDS[type(given)], float(given.low), float(given.high))


def _periods(given: Sequence[int] | str) -> tuple[int, ...]:
    if not isinstance(given, str):
        return tuple(given)
    try:
        return tuple(int(word) for word in given.split(","))
    except ValueError:
        raise UserError(f"pbt_periods={given}: give whole numbers of rounds, as 1,4") from None
