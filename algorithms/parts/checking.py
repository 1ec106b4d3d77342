"""What a file refuses: one call of the checks that it needs."""

from typing import Any

from algorithms.parts.checks import (
    check_choices,
    check_minibatches,
    check_network,
    check_sizes,
    check_spaces,
    warn_of_scale,
    warn_of_units,
)
from algorithms.parts.info import Info
from algorithms.parts.replay import check_replay


def check(
    info: Info,
    config: Any,
    env: Any,
    env_params: Any,
    *positive: str,
    not_negative: tuple[str, ...] = (),
    minibatches_of: str = "",
    replay: bool = False,
    unit_std: bool = False,
    words: Any = None,
) -> None:
    """Refuses what cannot work: sizes, words, and environments.

    Args:
      info: the algorithm's INFO.
      config: its Config.
      env, env_params: from `envs.make`.
      positive: sizes that are 1 or more.
      not_negative: sizes that are 0 or more.
      minibatches_of: "samples" or "environments": what `num_minibatches` divides.
      replay: whether a buffer of n-step windows has to fit, and to be learned from.
      unit_std: whether the policy explores with a standard deviation of 1 at first, in the
        environment's units.
      words: {field: the words that it may be}.
    """
    check_sizes(config, *positive, not_negative=not_negative)
    if hasattr(config, "network"):
        check_network(config)
    if words:
        check_choices(config, **words)
    check_spaces(info, config, env, env_params)
    warn_of_scale(config, env, env_params)
    if minibatches_of:
        check_minibatches(config, minibatches_of)
    if replay:
        check_replay(config, env, env_params)
    if unit_std:
        warn_of_units(env, env_params)
