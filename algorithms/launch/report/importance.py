"""Which setting mattered: the share of the variance of settings' means that each explains."""

import importlib.util
import warnings
from typing import Any, NamedTuple

import numpy as np

from algorithms.launch.report.chance import noise
from algorithms.launch.report.study import Axis, Study
from algorithms.launch.report.svg import figure, percent, picture, short, shortened, text
from algorithms.launch.settings import plain

LEAST = 8  # settings for Optuna's measures; fewer say nothing in a forest
FOREST = 200  # settings; fANOVA of a thousand takes half a minute
NOISY = 0.5  # of the variance: the seeds may explain it all
UNCLEAR = 0.03  # of the variance: a smaller share says nothing
ROW = 34  # pixels of a bar


class Importance(NamedTuple):
    """How much each field mattered."""

    shares: dict[str, float]  # the most important one first
    method: str  # for the page
    of_variance: bool = True  # else the shares are relative to one another


def importance(study: Study) -> Importance:
    """By the best measure that there is.

    A whole grid is taken apart exactly. Else Optuna measures where it is installed: fANOVA (Hutter
    et al. 2014), which needs scikit-learn, or PED-ANOVA (Watanabe et al. 2023) where that is
    missing or slow. Without Optuna, each field is cut into bins.
    """
    there = study.has_score
    if not study.axes or there.sum() < 3 or np.ptp(study.scores[there]) <= 0:
        return Importance({}, "")
    if len(study.axes) == 1 and all(len(a.levels) == len(a.x) for a in study.axes.values()):
        return Importance({}, "")  # one field, one setting for each value: it explains everything
    if study.is_grid:
        found = Importance(
            {name: explained(axis, study.scores) for name, axis in study.axes.items()},
            "main effects of the analysis of variance, exact for a whole grid",
        )
    elif there.sum() >= LEAST and importlib.util.find_spec("optuna"):
        found = _by_optuna(study)
    else:
        found = Importance(
            {name: explained(axis, study.scores, fair=True) for name, axis in study.axes.items()},
            "share of variance between the bins of one field, less what chance explains",
        )
    ordered = sorted(found.shares.items(), key=lambda item: -item[1])
    return found._replace(shares=dict(ordered))


def explained(axis: Axis, scores: np.ndarray, fair: bool = False) -> float:
    """The share of the scores' variance that lies between the levels of a field (eta squared).

    Args:
      axis: the field; settings without a score are left out.
      scores: (settings,).
      fair: subtract what as many levels of a field without any effect explain on average (epsilon
        squared).
    """
    groups = [scores[level.which] for level in axis.levels]
    groups = [group[np.isfinite(group)] for group in groups]
    groups = [group for group in groups if len(group)]
    every = np.concatenate(groups)
    total = np.square(every - every.mean()).sum()
    within = sum(np.square(group - group.mean()).sum() for group in groups)
    if total <= 0:
        return 0.0
    count, free = len(every), len(every) - len(groups)
    if fair:
        within = within * (count - 1) / free if free else total
    return float(np.clip(1 - within / total, 0, 1))


def _by_optuna(study: Study) -> Importance:
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator

    count = study.has_score.sum()
    forest = count <= FOREST and importlib.util.find_spec("sklearn") is not None
    quantile = max(0.1, LEAST / 2 / count)  # of the settings that count as good
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # measures that Optuna calls experimental
            evaluator: Any
            if forest:
                evaluator = FanovaImportanceEvaluator(seed=0)
            else:
                evaluator = PedAnovaImportanceEvaluator(target_quantile=quantile)
            found = evaluator.evaluate(_as_optuna(study))
    finally:
        optuna.logging.set_verbosity(level)
    shares = {name: float(found[name]) for name in study.axes}
    if forest:
        return Importance(shares, f"fANOVA of Optuna {optuna.__version__}")
    total = sum(shares.values()) or 1.0
    shares = {name: share / total for name, share in shares.items()}
    return Importance(shares, f"PED-ANOVA of Optuna {optuna.__version__}", of_variance=False)


def _as_optuna(study: Study) -> Any:
    """The settings that have a score, as a study of Optuna."""
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    kinds: dict[str, Any] = {}
    values: dict[str, list[Any]] = {}
    for name, axis in study.axes.items():
        if axis.is_number:
            values[name] = axis.x.tolist()
            low, high, is_log = axis.scale[:3]
            kinds[name] = FloatDistribution(low, high, log=is_log)
        else:
            values[name] = [plain(value) for value in axis.values]
            kinds[name] = CategoricalDistribution(sorted(set(values[name])))
    found = optuna.create_study(direction="maximize")
    for i in np.flatnonzero(study.has_score):
        params = {name: values[name][i] for name in values}
        score = float(study.scores[i])
        found.add_trial(optuna.trial.create_trial(params=params, distributions=kinds, value=score))
    return found


def bars(study: Study, found: Importance) -> str:
    """The picture: a bar for each field, and one for the seeds."""
    if not found.shares:
        return ""
    rows = [(name, share, "bar0") for name, share in found.shares.items()]
    luck = noise(study)
    if found.of_variance and np.isfinite(luck):
        rows.append(("seeds (noise)", luck, "bar1"))
    says = _says(found, luck)
    parts = []
    for i, (name, share, kind) in enumerate(rows):
        y = 4 + i * ROW
        length = short(max(1.0, share * 320))
        parts.append(text(4, y + 11, shortened(name, 44), "start"))
        parts.append(
            f'<rect class="{kind}" x="4" y="{y + 16}" width="{length}" height="10" rx="2"/>'
        )
        parts.append(text(10 + float(length), y + 25, percent(share), "start"))
    return figure("What mattered", picture(parts, says, height=8 + ROW * len(rows)), says)


def _says(found: Importance, luck: float) -> str:
    name, share = next(iter(found.shares.items()))
    others = [f"{n} {percent(s)}" for n, s in list(found.shares.items())[1:4]]
    then = f"; then {', '.join(others)}" if others else ""
    if not found.of_variance:
        return (
            f"{name} matters most for being among the best settings, with {percent(share)} "
            f"of the importance{then} ({found.method})."
        )
    says = f"{name} explains {percent(share)} of the variance between settings{then}"
    says += f" ({found.method})."
    if np.isfinite(luck):
        says += f" Seeds alone account for about {percent(luck)}"
        says += ": the settings may not differ at all." if luck > NOISY else "."
    return says
