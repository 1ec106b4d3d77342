"""Sweeps beside landscapes of ARLBench: files of its form that tests write, no data of its own."""

import csv
import json
import math

import numpy as np
import pytest
import scipy

from algorithms import dqn, ppo, sac
from algorithms.launch.engine import settings
from algorithms.launch.engine.errors import UserError
from tests.algorithms.launch.test_compare import write_run
from tests.benchmarks import arlbench

SEEDS, POINTS = 2, (50_000, 100_000)
RATES = np.geomspace(1e-5, 1e-1, 9)


def write_landscape(path, rows):
    """rows: (hyperparameters, returns of the seeds at the last point)."""
    names = list(dict.fromkeys(key for values, _ in rows for key in values))
    with open(path, "w", newline="") as file:
        out = csv.writer(file)
        out.writerow(
            ["config_id", "seed", "training_steps", "performance"]
            + [f"hp_config.{key}" for key in names]
        )
        for i, (values, finals) in enumerate(rows):
            for seed, final in enumerate(finals):
                for steps in POINTS:
                    score = final if steps == POINTS[-1] else -1000.0
                    cells = ["" if v is None else v for v in (values.get(k) for k in names)]
                    out.writerow([i, seed, steps, "" if math.isnan(score) else score, *cells])
    return path


def landscape_of(rates, clips, score):
    """One on the grid of two hyperparameters; crossed, so that each has all values."""
    return [
        (
            {"learning_rate": r, "clip_eps": c, "vf_clip_eps": 0.1},
            [score(r, c) - 1, score(r, c) + 1],
        )
        for r in rates
        for c in clips
    ]


def peak(rate, clip):
    """Best at a rate of 1e-3 and a small range."""
    return 100.0 - 20.0 * abs(math.log10(rate) + 3.0) - 10.0 * clip


def write_sweep(path, rates, clips, score=peak, **more):
    grid = [(r, c) for r in rates for c in clips for _ in range(SEEDS)]
    returns = [[0.0, score(r, c)] for r, c in grid]
    floats = {
        "learning_rate": np.array([r for r, _ in grid]),
        "clip_eps": np.array([c for _, c in grid]),
    }
    config = settings.config_to_json(ppo.Config(total_timesteps=100)) | more
    seeds = [*range(SEEDS)] * (len(grid) // SEEDS)
    return write_run(path, returns, algorithm="ppo", floats=floats, seeds=seeds, **config)


@pytest.fixture
def file(tmp_path):
    return write_landscape(tmp_path / "cc_cartpole_ppo.csv", landscape_of(RATES, (0.0, 0.5), peak))


# --- reading ---------------------------------------------------------------------------------


def test_a_landscape_is_the_mean_over_seeds_at_the_last_point(file):
    found = arlbench.read(file, "ppo")
    assert found.steps == 100_000 and list(found.fields) == ["learning_rate", "clip_eps"]
    expected = [peak(r, c) for r in RATES for c in (0.0, 0.5)]
    np.testing.assert_allclose(found.returns, expected)
    np.testing.assert_array_equal(found.fields["clip_eps"], [0.0, 0.5] * len(RATES))


def test_crashes_are_the_lowest_and_conditional_fields_may_be_missing(tmp_path):
    rows = [
        ({"buffer_prio_sampling": True, "buffer_alpha": 0.3}, [5.0, math.nan]),
        ({"buffer_prio_sampling": False, "buffer_alpha": None}, [7.0, 9.0]),
    ]
    found = arlbench.read(write_landscape(tmp_path / "x.csv", rows), "dqn")
    assert found.returns.tolist() == [(5.0 - 1000.0) / 2, 8.0]
    assert found.fields["prioritized"].tolist() == [1.0, 0.0]
    np.testing.assert_array_equal(found.fields["priority_alpha"], [0.3, math.nan])


def test_fields_are_those_of_the_files():
    for module, name in ((ppo, "ppo"), (dqn, "dqn"), (sac, "sac")):
        config = settings.config_to_json(module.Config())
        for field in arlbench.FIELDS[name].values():
            assert isinstance(arlbench._value(config, field), float)
    assert arlbench._value(settings.config_to_json(ppo.Config()), "minibatch_size") == 4 * 128 / 4


# --- numbers ---------------------------------------------------------------------------------


def test_a_halved_sweep_is_refused(tmp_path, file):
    write_sweep(tmp_path / "sweep" / "chunk_000", RATES[:2], (0.0, 0.5))
    said = {"version": 1, "algorithm": "ppo", "grid": {}, "halving": {"factor": 3}}
    chunk = {"run": "chunk_000", "num_trials": 4 * SEEDS}
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps(said | {"chunks": [chunk]}))
    with pytest.raises(UserError, match="halving has stopped settings early"):
        arlbench.beside(tmp_path / "sweep", file)


def test_a_stopped_sweep_is_refused(tmp_path, file, monkeypatch):
    write_sweep(tmp_path / "sweep" / "chunk_000", RATES[:2], (0.0, 0.5))
    said = {"version": 1, "algorithm": "ppo", "grid": {}}
    chunk = {"run": "chunk_000", "num_trials": 4 * SEEDS}
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps(said | {"chunks": [chunk]}))
    monkeypatch.setattr(arlbench, "is_stopped", lambda path: True)
    with pytest.raises(UserError, match="sweep is not finished; --resume finishes it"):
        arlbench.beside(tmp_path / "sweep", file)


def test_rank_correlation_is_spearman_s():
    rng = np.random.default_rng(0)
    for _ in range(5):
        x, y = rng.integers(0, 6, 20).astype(float), rng.normal(size=20)
        assert arlbench.rank_correlation(x, y) == pytest.approx(
            scipy.stats.spearmanr(x, y).statistic
        )
    assert math.isnan(arlbench.rank_correlation(np.ones(4), y[:4]))


def test_nearest_settings_against_a_plain_loop():
    rng = np.random.default_rng(1)
    make = lambda n: {
        "learning_rate": 10 ** rng.uniform(-5, -1, n),
        "clip_eps": rng.uniform(0.0, 0.5, n),
    }
    published = arlbench.Landscape(make(64), rng.normal(size=64), 1)
    published.fields["clip_eps"][3] = math.nan  # does not count in its distances
    own = arlbench.Landscape(make(7), rng.normal(size=7), 1)
    published.fields["learning_rate"][3] = own.fields["learning_rate"][0]
    near, distance = arlbench.nearest(own, published)
    logs, clips = np.log10(published.fields["learning_rate"]), published.fields["clip_eps"]
    span, width = np.ptp(logs), np.nanmax(clips) - np.nanmin(clips)
    for i in range(7):
        gaps = []
        for j in range(64):
            a = (np.log10(own.fields["learning_rate"][i]) - logs[j]) / span
            b = (own.fields["clip_eps"][i] - clips[j]) / width
            gaps.append(abs(a) if math.isnan(b) else math.sqrt((a**2 + b**2) / 2))
        closest = np.argsort(gaps)[: arlbench.NEAREST]
        assert near[i] == pytest.approx(published.returns[closest].mean())
        assert distance[i] == pytest.approx(np.sort(gaps)[: arlbench.NEAREST].mean())


def test_a_value_of_zero_on_a_logarithmic_scale_has_a_place():
    axis = arlbench.Axis.of(RATES)
    assert axis.is_log and axis.place(np.array([0.0, RATES[0], RATES[-1]])).tolist() == [-1, 0, 1]
    assert not arlbench.Axis.of(np.linspace(0.001, 0.5, 9)).is_log


def test_marginal_means_are_over_ranges_around_the_sweep_s_values(file):
    published = arlbench.read(file, "ppo")
    own = arlbench.Landscape(
        {"learning_rate": np.array([1e-4, 1e-4, 1e-2])}, np.array([1.0, 3.0, 8.0]), 1
    )
    found = arlbench.marginal("learning_rate", own, published)
    np.testing.assert_allclose(found.middles, [1e-4, 1e-2])
    assert found.own.tolist() == [2.0, 8.0]
    low = published.fields["learning_rate"] <= 1.0001e-3  # the middle of the logarithms
    np.testing.assert_allclose(
        found.published, [published.returns[low].mean(), published.returns[~low].mean()]
    )
    many = arlbench.Landscape({"learning_rate": RATES}, np.arange(9.0), 1)
    assert len(arlbench.marginal("learning_rate", many, published).own) == arlbench.BINS


# --- the table -------------------------------------------------------------------------------


def cells(text, start):
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    return [cell for cell in line.split("  ") if cell]


def test_a_sweep_that_agrees_and_one_that_does_not(tmp_path, file):
    rates, clips = (1e-5, 1e-4, 1e-3, 1e-2), (0.0, 0.5)
    same = write_sweep(tmp_path / "same", rates, clips, env="CartPole-v1")
    text = arlbench.beside(same, file)
    assert "ppo on CartPole-v1: 8 settings at step 100 beside 18 of cc_cartpole_ppo.csv" in text
    correlation = lambda text: float(cells(text, "rank correlation")[0].split(": ")[1].split()[0])
    assert correlation(text) > 0.8
    assert float(cells(text, "learning_rate")[-1]) > 0.9
    assert cells(text, "clip_eps")[-1].strip() == "-", "two values have no rank correlation"
    other = lambda rate, clip: -peak(rate, clip)
    text = arlbench.beside(
        write_sweep(tmp_path / "other", rates, clips, other, env="CartPole-v1"), tmp_path
    )
    assert correlation(text) < -0.8 and float(cells(text, "learning_rate")[-1]) < -0.9


REFUSED = [
    ({"env": "Acrobot-v1"}, None, "no landscape for .* give cc_acrobot_ppo.csv"),
    ({"env": "Other-v0"}, None, r"\(ppo on Other-v0\): ARLBench has ppo, dqn, sac on CartPole-v1"),
    ({"env": "CartPole-v1"}, "a,b\n1,2\n", "no column seed, training_steps, performance"),
    (
        {"env": "CartPole-v1"},
        "seed,training_steps,performance,hp_config.x\n0,1,2,3\n",
        "has no hyperparameter of ppo that is a field here",
    ),
    (
        {"env": "CartPole-v1"},
        "seed,training_steps,performance,hp_config.vf_coef\n0,1,2,0.5\n",
        "the sweep varies none of vf_coef",
    ),
]


@pytest.mark.parametrize("config, content, message", REFUSED)
def test_what_is_refused(tmp_path, file, capsys, config, content, message):
    sweep = write_sweep(tmp_path / "sweep", (1e-3, 1e-2), (0.1,), **config)
    if content:
        file.write_text(content)
    with pytest.raises(UserError, match=message):
        arlbench.beside(sweep, tmp_path)
    with pytest.raises(SystemExit):
        arlbench.main([str(sweep), str(tmp_path)])
    assert capsys.readouterr().err.startswith("error: ")
