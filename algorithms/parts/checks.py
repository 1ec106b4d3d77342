"""Refusals: each raises a ValueError that names the setting, its value and one that works. And
warnings of units."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import envs
from algorithms.parts import layers
from algorithms.parts.info import Info, file_of, kinds_of, takes_agents, that_take
from envs.behaviour import of_user
from envs.interface import is_bounded
from envs.warn import warn

LARGEST = 2**31 - 1  # sizes are int32 inside the program
NEAR = (0.1, 10.0)  # bounds that a Gaussian with a standard deviation of 1 explores
LARGE = 100.0  # bounds of observations from which on they are to be normalised
NO_BOUND = 1e30  # as float32's largest number in the place of infinity
SPACES = {"discrete": "Discrete", "continuous": "Box"}  # action spaces, by INFO's words


def check_sizes(config: Any, *positive: str, not_negative: tuple[str, ...] = ()) -> None:
    """Refuses sizes that are not whole numbers, too small or too large, and unknown activations.

    Args:
      config: `total_timesteps`, `num_envs`, `num_evals`, `num_eval_episodes`, `activation` and all
        fields that end with `hidden_sizes` are used, and the fields of these names.
      positive: sizes that are 1 or more.
      not_negative: sizes that are 0 or more.
    """
    for name in layer_sizes(config):
        if not isinstance(getattr(config, name), tuple):
            raise ValueError(f"{name}={getattr(config, name)!r}: give a tuple, as (64, 64)")
    positive = ("total_timesteps", "num_envs", "num_evals", *positive)
    sizes = [(name, getattr(config, name), 1) for name in positive]
    sizes += [(name, getattr(config, name), 0) for name in ("num_eval_episodes", *not_negative)]
    sizes += [(name, size, 1) for name in layer_sizes(config) for size in getattr(config, name)]
    for name, value, least in sizes:
        if type(value) is not int or value < least:
            raise ValueError(f"{name}={value!r}: give a whole number, {least} or more")
        if value > LARGEST and name != "total_timesteps":
            raise ValueError(f"{name}={value}: give a whole number up to {LARGEST}")
    rollout = config.num_envs * getattr(config, "num_steps", 1)
    if rollout > LARGEST:
        raise ValueError(
            f"num_envs={config.num_envs}, num_steps={config.num_steps}: a rollout has {rollout} "
            f"samples, and they are counted up to {LARGEST}; give fewer"
        )
    activation = getattr(nn, str(config.activation), None)
    if not callable(activation) or isinstance(activation, type):  # PReLU is a layer
        raise ValueError(f"activation={config.activation!r}: name one of flax.linen, as relu")


def layer_sizes(config: Any) -> list[str]:
    """The fields that are sizes of layers."""
    return [name for name in vars(config) if name.endswith("hidden_sizes")]


def check_choices(config: Any, **choices: tuple[str, ...]) -> None:
    """Refuses values of these fields that are not among the choices."""
    for name, known in choices.items():
        if getattr(config, name) not in known:
            words = " or ".join(word or '""' for word in known)
            raise ValueError(f"{name}={getattr(config, name)!r}: give {words}")


def check_network(config: Any) -> None:
    """Refuses an unknown network, and layers of different sizes with simba.

    Args:
      config: its `network` is used, and the fields that end with `hidden_sizes`.
    """
    check_choices(config, network=layers.NETWORKS)
    for name in layer_sizes(config):
        sizes = getattr(config, name)
        if config.network == "simba" and len(set(sizes)) != 1:
            raise ValueError(f"{name}={sizes}: simba's blocks are one size, such as 128 or 512,512")


def check_divides(name: str, number: int, what: str, size: int) -> None:
    """Refuses a number that does not divide a size; the message calls the size `what`."""
    if size % number:
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        near = sorted(sorted(divisors, key=lambda d: abs(d - number))[:4])
        raise ValueError(
            f"{name}={number} does not divide {what}; {', '.join(map(str, near))} would do"
        )


def check_minibatches(config: Any, of: str) -> None:
    """Refuses a `num_minibatches` that does not divide a rollout's "samples", or "environments"."""
    if of == "environments":
        what = f"num_envs={config.num_envs}, and minibatches are sets of environments"
        check_divides("num_minibatches", config.num_minibatches, what, config.num_envs)
        return
    size = config.num_envs * config.num_steps
    what = f"num_envs * num_steps = {config.num_envs} * {config.num_steps} = {size}"
    check_divides("num_minibatches", config.num_minibatches, what, size)
    if hasattr(config, "normalize_advantage"):
        check_samples(config, size)


def check_samples(config: Any, size: int) -> None:
    """Refuses minibatches of one sample, because its standardised advantage would be zero.

    Args:
      config: its `num_minibatches` and `normalize_advantage` are used.
      size: number of samples in all minibatches.
    """
    number = config.num_minibatches
    if config.normalize_advantage and size == number:
        fewer = next((n for n in range(number // 2, 0, -1) if number % n == 0), None)
        raise ValueError(
            f"num_minibatches={number} leaves one sample to a minibatch, and normalize_advantage "
            f"makes its advantage zero; {fewer or 'more num_steps'} would do"
        )


def check_spaces(info: Info, config: Any, env: Any, env_params: Any) -> None:
    """Refuses environments that an algorithm cannot take, and names other files that can.

    Args:
      info: the algorithm's INFO, with its kinds of actions, masks and agents.
      config: its `conv_layers` and `compute_dtype` are used, and its class, to find the algorithm's
        file.
      env, env_params: from `envs.make`.
    """
    file, kinds = file_of(config), kinds_of(info)
    algorithm = file.stem if file else info["title"]
    several, masked = hasattr(env, "num_agents"), hasattr(env, "action_mask")
    actions, observations = env.action_space(env_params), env.observation_space(env_params)
    kind = "discrete" * hasattr(actions, "n") or "continuous" * hasattr(actions, "low")
    others = lambda **same: that_take(file, kind, masked, several, **same)
    if not takes_agents(info, several):
        if several:
            do = _do(others(), "takes it", "take it") or f"{algorithm} takes one"
            raise ValueError(f"{env.name} has several agents; {do}")
        do = _do(others(family=info["family"]), "takes it", "take it")
        do = do or f"{algorithm} takes several"
        raise ValueError(f"{env.name} has one agent and no axis of agents; {do}")
    if kind not in kinds:
        takes = " and ".join(SPACES[kind] for kind in kinds)
        do = _do(others(family=info["family"]) or others(), "takes them", "take them")
        do = f"; {do}" if do and kind else ""
        raise ValueError(f"{env.name} has actions {actions}; {algorithm} takes {takes}{do}")
    if kind == "continuous" and jnp.issubdtype(actions.dtype, jnp.integer):
        raise ValueError(
            f"{env.name} has actions {actions}, and policies give fractions: take Discrete for "
            "choices, or float32 and round in step_env"
        )
    if "discrete" not in kinds and not is_bounded(actions):
        raise ValueError(f"{env.name} has actions {actions}; {algorithm} takes a Box with bounds")
    if masked and kind != "discrete":
        raise ValueError(f"{env.name} has an action_mask, which actions {actions} cannot heed")
    if masked and not info["masks"]:
        do = _do(others(), "does", "do")
        raise ValueError(
            f"{env.name} has an action_mask, which {algorithm} would not heed{do and '; ' + do}"
        )
    if not hasattr(observations, "low"):
        raise ValueError(
            f"{env.name} has observations {observations}; {algorithm} takes Box: concatenate them "
            "to one vector"
        )
    shape = tuple(observations.shape)
    if shape == ():
        raise ValueError(f"{env.name} has observations {observations} without an axis: give (1,)")
    check_choices(config, conv_layers=tuple(layers.CONV_LAYERS))
    if hasattr(config, "compute_dtype"):
        check_choices(config, compute_dtype=layers.DTYPES)
    least = layers.CONV_LAYERS[config.conv_layers]
    if len(shape) == 3 and min(shape[:2]) < least:
        raise ValueError(
            f"conv_layers={config.conv_layers!r} needs images of {least}x{least} or more, and "
            f"{env.name} has {shape}; 'none' would do"
        )
    convolved = config.conv_layers != "none" and len(shape) == 3
    if convolved and of_user(env) and shape[0] <= 4 < shape[1] == shape[2]:
        pixels = f"{shape[0]}x{shape[1]} pixels of {shape[2]} channels"
        warn(
            f"{env.name} has observations {shape}, which convolutions take as {pixels}: channels "
            f"come last, as in {(*shape[1:], shape[0])}"
        )
    if getattr(config, "asymmetric", False) and not hasattr(env, "world_state"):
        raise ValueError(
            f"asymmetric=True: {env.name} has no world_state for critics to see; False would do"
        )
    if getattr(config, "asymmetric", False) and len(shape) != 1:
        raise ValueError(
            f"asymmetric=True: {env.name} has observations of shape {shape}, and the world state "
            "can only follow the numbers of a vector; False would do"
        )
    envs.check_interface(env, env_params)


def warn_of_units(env: Any, env_params: Any) -> None:
    """Warns of continuous actions whose units do not suit a Gaussian that begins around 0 with a
    standard deviation of 1: it never explores a far larger box, and plays a bound alone of a far
    smaller one and of one without 0.

    Infinite bounds say nothing of the units, and traced ones are not known.

    Args:
      env, env_params: from `envs.make`.
    """
    space = env.action_space(env_params)
    low, high = ends_of(space) if hasattr(space, "low") else np.zeros((2, 0))
    size, half = np.maximum(-low, high), 0.5 * (high - low)
    far = (size > NEAR[1]) | (half < NEAR[0]) | (low > 0.0) | (high < 0.0)
    far = np.flatnonzero(far & (half > 0.0) & (size < NO_BOUND))
    if far.size:
        worst = far[np.argmax(np.abs(np.log(half[far])))]
        ends = f"{low[worst]:g} and {high[worst]:g}"
        ends = f"+-{high[worst]:g}" if low[worst] == -high[worst] else ends
        warn(
            f"{env.name} has actions between {ends}, and the policy explores around 0 with a "
            "standard deviation of 1 at first: the environment setting rescale_action=true suits it"
        )


def warn_of_scale(config: Any, env: Any, env_params: Any) -> None:
    """Warns of large observations that networks see as they are. Bytes are divided by 255.

    Only users' own environments are looked at: JaxMARL's say 255 of bits.

    Args:
      config: its `normalize_obs` is used; without that field the algorithm scales by itself.
      env, env_params: from `envs.make`, with a Box of observations.
    """
    if not sees_raw(config, env, env_params):
        return
    size = bounds_of(env.observation_space(env_params)).max(initial=0.0)
    if size > LARGE:
        warn(
            f"{env.name} has observations between +-{size:g}, and networks see them as they are: "
            "normalize_obs=True suits it"
        )


def sees_raw(config: Any, env: Any, env_params: Any) -> bool:
    """Whether networks see observations of a user's own environment as they are."""
    scaled = getattr(config, "normalize_obs", True)  # without the field by itself
    return of_user(env) and not scaled and env.observation_space(env_params).dtype != jnp.uint8


def bounds_of(space: Any) -> np.ndarray:
    """The largest size of each number of a Box, without those that have none or are traced."""
    bounds = np.abs(ends_of(space)).max(0)
    return bounds[bounds < NO_BOUND]


def ends_of(space: Any) -> np.ndarray:
    """The bounds of all numbers of a Box, (2, numbers); (2, 0) if they are traced."""
    ends = space.low, space.high
    if any(isinstance(x, jax.core.Tracer) for x in ends):
        return np.zeros((2, 0))
    own = lambda x: np.broadcast_to(jax.device_get(x), space.shape).ravel().astype(float)
    return np.stack([own(x) for x in ends])


def check_game(info: Info, config: Any, env: Any, env_params: Any) -> None:
    """Refuses everything but pgx's games of two players without chance or hidden information.

    Args:
      info: the algorithm's INFO.
      config: its class is used, to find the algorithm's file.
      env, env_params: from `envs.make`.
    """
    from envs.gymnax import Gymnax  # late: they import gymnax
    from envs.wrappers import StartWindow

    file = file_of(config)
    algorithm = file.stem if file else info["title"]
    takes = f"{algorithm} takes pgx's games of two players, such as pgx/tic_tac_toe"
    if not hasattr(env, "hidden_information") or getattr(env, "num_agents", 1) != 2:
        raise ValueError(f"{env.name} is no game of two players: {takes}")
    if env.chance or env.hidden_information:
        why = "chance" if env.chance else "hidden information"
        raise ValueError(f"{env.name} has {why}, which its search cannot plan for: {takes}")
    while not isinstance(env, Gymnax):
        if not isinstance(env, StartWindow):
            raise ValueError(
                f"{env.name} has {type(env).__name__} around it, which its search would not see: "
                "do without env settings that wrap the game (max_steps_in_episode limits its moves)"
            )
        env = env.env
    envs.check_interface(env, env_params)


def _do(names: list[str], one: str, many: str) -> str:
    """A subject with its verb: "c51 and dqn do"; "" without names."""
    listed = " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
    return f"{listed} {one if len(names) == 1 else many}" if names else ""
