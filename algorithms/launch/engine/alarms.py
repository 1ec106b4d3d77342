"""Metrics of a point that a user should know of: each alarm gives one sentence, or none."""

from collections.abc import Callable

import numpy as np

from algorithms.launch.engine.metrics import Metrics

DIVERGED = ("episode_diverged", "eval_diverged")
CLIPPED = 0.05  # share of targets beyond the support, above which values suffer


def cut_episodes(row: Metrics) -> str:
    """Evaluation episodes with neither flag, which `envs.evaluate` has cut."""
    if not {"eval_terminated", "eval_truncated", "eval_length"} <= row.keys():
        return ""
    cut = ~(row["eval_terminated"].astype(bool) | row["eval_truncated"].astype(bool))
    if not cut.any():
        return ""
    return (
        f"{cut.sum()} of {cut.size} evaluation episodes were cut after "
        f"{int(row['eval_length'][cut].max()):,} steps, far beyond the time limit in the "
        "parameters of the environment: its is_truncated should be true there, or --env-settings "
        "max_steps=N truncates"
    )


def diverged(row: Metrics) -> str:
    """Steps of brax and playground with NaN or infinity, which the adapters replace by 0."""
    found = [np.nanmax(x, initial=0.0) for name, x in row.items() if name in DIVERGED]
    if not any(x > 0 for x in found):
        return ""
    return (
        f"the physics diverged: NaN or infinity became 0 in {max(found):.3g} steps of an episode, "
        "which the metric diverged counts, so these returns mean little; a smaller time step of "
        "the physics or softer actions would do"
    )


def clipped_targets(row: Metrics) -> str:
    """Targets of c51 and reppo that their distribution of values does not reach."""
    shares = row.get("clipped_targets", np.zeros(0))
    share = shares[np.isfinite(shares)].max(initial=0.0)
    if share <= CLIPPED:
        return ""
    return (
        f"{100 * share:.0f} % of the targets lie beyond the largest or smallest value that the "
        "critic can have, and are clipped there: a wider v_min to v_max would do, or in reppo and "
        "reppo_discrete a larger symlog_max"
    )


ALARMS: tuple[Callable[[Metrics], str], ...] = (cut_episodes, diverged, clipped_targets)
