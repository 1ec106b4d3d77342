"""Sensitivity to settings across environments, against plain loops on made-up tables."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from algorithms import launch
from algorithms.launch.engine import results
from algorithms.launch.tools import compare, sensitivity
from algorithms.launch.tools.comparison import Trial
from tests.algorithms.launch import toy

pytestmark = pytest.mark.usefixtures("quick_pictures", "shared_programs")
RATES, COEFS = (0.1, 0.01, 0.001), (0.0, 1.0)
ENVIRONMENTS = ("A-v0", "B-v0", "C-v0")
SEEDS = 4


@pytest.fixture(scope="module", autouse=True)
def few_resamples():
    """Enough for what is said of intervals here; a thousand would take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sensitivity, "RESAMPLES", 50)
        yield


def made_up(seed=0, algorithm="toy"):
    """{environment: {setting: returns (seeds,)}}; environments differ in scale."""
    rng = np.random.default_rng(seed)
    return {
        env: {h: 10.0**i * rng.normal(size=SEEDS) + i for h in itertools.product(RATES, COEFS)}
        for i, env in enumerate(ENVIRONMENTS)
    }


def trials_of(returns, algorithm="toy", **more):
    found = []
    for env, settings in returns.items():
        for (rate, coef), finals in settings.items():
            for seed, final in enumerate(finals):
                setting = {"rate": rate, "coef": coef, "layers": [4, 4], **more.get(env, {})}
                curve = np.array([0.0, final])
                finite = bool(np.isfinite(final))
                outcome = results.Outcome(setting, seed, np.array([0, 9]), curve, finite, "r", seed)
                found.append(Trial(algorithm, env, outcome, Path("sweep")))
    return found


def plain_scores(returns, pools):
    """Equation by equation: {environment: {setting: score}}."""
    scores = {}
    for env, settings in returns.items():
        low, high = np.percentile(pools[env], 5), np.percentile(pools[env], 95)
        scores[env] = {h: (np.mean(r) - low) / (high - low) for h, r in settings.items()}
    return scores


def means(*several):
    return {env: [np.mean(r) for one in several for r in one[env].values()] for env in ENVIRONMENTS}


def test_scores_and_sensitivity_are_those_of_the_paper():
    """With another algorithm, whose settings count in the percentiles."""
    returns, other = made_up(0), made_up(1)
    (table, second), notes = sensitivity.tables([*trials_of(returns), *trials_of(other, "b")])
    assert notes == [] and (table.fields, second.algorithm) == (["rate", "coef"], "b")
    expected = plain_scores(returns, means(returns, other))
    found = sensitivity._scores(table, [table, second])
    for e, env in enumerate(table.environments):
        for h, setting in enumerate(table.settings):
            assert found[e, h] == pytest.approx(expected[env][setting])
    said = sensitivity.summary(found)
    tuned = np.mean([max(scores.values()) for scores in expected.values()])
    across = {h: np.mean([expected[env][h] for env in ENVIRONMENTS]) for h in expected["A-v0"]}
    one = max(across, key=across.get)
    assert table.settings[said.one] == one and said.tuned == pytest.approx(tuned)
    assert said.sensitivity == pytest.approx(tuned - across[one])
    best = [max(expected[env], key=expected[env].get) for env in ENVIRONMENTS]
    assert [table.settings[h] for h in said.best] == best


def test_fields_are_tuned_one_after_another():
    returns = made_up(3)
    (table,), _ = sensitivity.tables(trials_of(returns))
    scores = sensitivity._scores(table, [table])
    one = sensitivity.summary(scores).one
    expected = plain_scores(returns, means(returns))
    default = table.settings[one]

    def best(allowed):
        """Of each environment, among settings that agree with the default elsewhere."""
        agree = lambda h: all(i in allowed or h[i] == default[i] for i in range(2))
        return np.mean([max(x for h, x in s.items() if agree(h)) for s in expected.values()])

    found = sensitivity.tuned_scores(table, scores, one)
    assert found[0] == (pytest.approx(best(())), [])
    alone = {"rate": best((0,)), "coef": best((1,))}
    assert found[1] == (pytest.approx(max(alone.values())), [max(alone, key=alone.get)])
    assert found[2] == (pytest.approx(best((0, 1))), ["rate", "coef"])


def test_chs_takes_shares_of_trials():
    returns = made_up(5)
    (table,), _ = sensitivity.tables(trials_of(returns))
    pools = [np.concatenate(list(returns[env].values())) for env in ENVIRONMENTS]
    found = sensitivity.chs_scores(table, pools)
    for h, setting in enumerate(table.settings):
        shares = [
            np.mean([np.mean(pool <= x) for x in returns[env][setting]])
            for env, pool in zip(ENVIRONMENTS, pools)
        ]
        assert found[h] == pytest.approx(np.mean(shares))


def line(text, start):
    (found,) = [one for one in text.splitlines() if one.startswith(start)]
    return found


def test_the_effective_dimensionality_is_the_least_that_is_enough():
    """The rate decides what is best in each environment; coef brings 2 % of the range."""
    peak = {"A-v0": 0.1, "B-v0": 0.01, "C-v0": 0.001}
    returns = {
        env: {
            (rate, coef): np.full(2, 100.0 * (rate == best) + 2.0 * (coef == (env == "A-v0")))
            for rate, coef in itertools.product(RATES, COEFS)
        }
        for env, best in peak.items()
    }
    text = sensitivity.text(trials_of(returns))
    assert line(text, "effective").startswith("effective dimensionality: 1 of 2 (95 %")
    assert line(text, "rate  ").split()[0] == "rate"
    assert "sensitivity of toy to rate, coef: 6 settings on A-v0, B-v0, C-v0" in text


def test_an_algorithm_far_below_another_has_a_dimensionality():
    """Its tuned score is negative: normalised by the other's returns."""
    constant = lambda value, number: {
        env: {(rate, 0.0): np.full(SEEDS, value + rate) for rate in range(number)}
        for env in ENVIRONMENTS
    }
    good, poor = constant(50.0, 60), constant(-50.0, 2)
    trials = trials_of(good, "good") + trials_of(poor, "poor")
    text = sensitivity.text(trials)
    assert text.count("effective dimensionality: ") == 2


def test_intervals_need_several_seeds():
    (table,), _ = sensitivity.tables(trials_of(made_up()))
    low, high = sensitivity.interval(table, [table])
    point = sensitivity.summary(sensitivity._scores(table, [table])).sensitivity
    assert 0 <= low < high and low < 2 * point
    single = {env: {h: r[:1] for h, r in s.items()} for env, s in made_up().items()}
    (table,), _ = sensitivity.tables(trials_of(single))
    assert np.isnan(sensitivity.interval(table, [table])).all()


def test_broken_trials_have_the_lowest_return_of_their_environment():
    returns = made_up()
    returns["B-v0"][0.1, 0.0][1] = np.nan
    (table,), _ = sensitivity.tables(trials_of(returns))
    lowest = min(np.nanmin(r) for r in returns["B-v0"].values())
    assert table.returns["B-v0"][0][1] == lowest


def test_fields_that_only_environments_change_are_no_settings():
    own = {env: {"total": 100 * i} for i, env in enumerate(ENVIRONMENTS)}
    (table,), _ = sensitivity.tables(trials_of(made_up(), **own))
    assert table.fields == ["rate", "coef"]


def test_what_cannot_be_compared_is_said():
    returns = made_up()
    fewer = returns | {"C-v0": dict(list(returns["C-v0"].items())[:4])}
    assert sensitivity.text(trials_of(fewer)) == (
        "sensitivity of toy: the sweeps have different settings (6 on A-v0, 6 on B-v0, 4 on C-v0, "
        "4 on all); it takes sweeps of the same settings, as --env A B C makes them"
    )
    flat = returns | {"B-v0": {h: np.ones(2) for h in returns["B-v0"]}}
    assert "all returns on B-v0 are equal, leave it out" in sensitivity.text(trials_of(flat))
    draws = {env: dict(list(s.items())[1:]) for env, s in returns.items()}
    said = line(sensitivity.text(trials_of(draws)), "effective")
    assert said == "effective dimensionality: needs all combinations of the fields' values, a grid"
    assert sensitivity.text(trials_of({"A-v0": returns["A-v0"]})) == ""
    alone = {env: {(0.1, 0.0): s[0.1, 0.0]} for env, s in returns.items()}
    assert sensitivity.text(trials_of(alone)) == ""


# --- sweeps on disk --------------------------------------------------------------------------


def test_one_sweep_of_several_environments_or_one_of_each(tmp_path):
    config = toy.Config(total_timesteps=100, num_evals=2)
    grid = {"learning_rate": [0.1, 0.2], "num_envs": [5, 10]}
    names = ["CartPole-v1", "Acrobot-v1"]
    launch.sweep(toy, config, grid | {"env": names}, num_seeds=2, sweep_dir=tmp_path / "both")
    for name in names:
        one = {"sweep_dir": tmp_path / name, "num_seeds": 2}
        launch.sweep(toy, config.replace(env=name), grid, **one)
    said = compare.compare([tmp_path / "both"]).text
    start = said.index("sensitivity of toy to num_envs, learning_rate: 4 settings on ")
    apart = compare.compare([tmp_path / name for name in names]).text
    assert said[start:] == apart[apart.index("sensitivity of toy") :]
    assert "sensitivity of" not in compare.compare([tmp_path / names[0]]).text
    best = config.replace(env=names[0], learning_rate=0.1, num_envs=5)  # trained again, and first
    launch.run(toy, best, num_seeds=2, run_dir=tmp_path / "best")
    more = compare.compare([tmp_path / "best", tmp_path / "both"]).text
    assert more[more.index("sensitivity of toy") :] == said[start:]


def test_halved_sweeps_are_left_out(tmp_path):
    config = toy.Config(total_timesteps=40, num_evals=2, num_eval_episodes=1)
    grid = {"env": ["CartPole-v1", "Acrobot-v1"], "learning_rate": [0.1, 0.2]}
    launch.sweep(toy, config, grid, halving=2, sweep_dir=tmp_path / "halved")
    text = compare.compare([tmp_path / "halved"]).text
    assert f"halving has stopped settings of {tmp_path / 'halved'} early" in text
    assert "one setting for all" not in text
    one = {**grid, "env": ["CartPole-v1"]}
    launch.sweep(toy, config, one, halving=2, sweep_dir=tmp_path / "one")
    assert "sensitivity" not in compare.compare([tmp_path / "one"]).text
