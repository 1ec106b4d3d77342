"""Metrics of a point that a user should know of: each alarm gives one sentence, or none."""

from collections.abc import Callable

from algorithms.launch.metrics import Metrics


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


ALARMS: tuple[Callable[[Metrics], str], ...] = (cut_episodes,)
