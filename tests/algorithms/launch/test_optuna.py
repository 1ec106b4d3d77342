"""Sweeps as Optuna studies."""

import importlib.util
import math
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from algorithms import launch
from algorithms.launch.engine.errors import UserError
from algorithms.launch.tools import compare, studies
from tests.algorithms.launch import toy

pytestmark = pytest.mark.usefixtures("quick_pictures", "shared_programs")
CONFIG = toy.Config(total_timesteps=120, num_evals=4)
SPACE = {
    "num_envs": launch.LogIntegers(4, 6),
    "gamma": launch.Discount(0.9, 0.999),
    "hidden_sizes": launch.Choice([(3, 2), (4,)]),
    "anneal_lr": [True, False],
    "learning_rate": [0.1, 0.7],
}


@pytest.fixture(scope="module")
def written(quick_pictures, shared_programs, tmp_path_factory):
    """A sweep, and its study read back."""
    optuna = pytest.importorskip("optuna")
    folder = tmp_path_factory.mktemp("written")
    swept = launch.sweep(toy, CONFIG, SPACE, samples=3, num_seeds=2, root=folder)
    url = f"sqlite:///{folder}/study.db"
    said = studies.write(swept.sweep_dir, url)
    name = swept.sweep_dir.name
    assert said == [f"study {name} in {url}: 12 trials, 12 complete"]
    return swept, url, optuna.load_study(study_name=name, storage=url)


@pytest.mark.needs("optuna")
def test_a_setting_is_a_trial_with_its_curve(written):
    swept, _, study = written
    assert len(study.trials) == len(swept.ranked) == 12
    assert study.direction.name == "MAXIMIZE" and study.metric_names == ["final_return"]
    by_number = {one.trials[0].number: one for one in swept.ranked}
    for trial, (_, one) in zip(study.trials, sorted(by_number.items())):
        sizes = ",".join(map(str, one.setting["hidden_sizes"]))
        assert trial.params == one.setting | {"hidden_sizes": sizes}
        assert trial.state.name == "COMPLETE" and trial.value == one.mean
        assert trial.user_attrs["seeds"] == [0, 1]
        assert trial.user_attrs["returns"] == [seed.final for seed in one.trials]
        assert trial.user_attrs["trials"] == [seed.number for seed in one.trials]
        assert trial.user_attrs["runs"] == [str(swept.sweep_dir / one.trials[0].run)]
        curve = np.mean([seed.returns for seed in one.trials], axis=0)
        steps = one.trials[0].timesteps
        assert trial.intermediate_values == pytest.approx(dict(zip(steps.tolist(), curve)))
    best = swept.ranked[0].setting
    assert study.best_params["gamma"] == best["gamma"] and study.best_value == swept.ranked[0].mean


@pytest.mark.needs("optuna")
def test_parameters_have_the_distributions_of_the_grid(written):
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    _, _, study = written
    assert study.trials[0].distributions == {
        "num_envs": IntDistribution(4, 6, log=True),
        "gamma": FloatDistribution(0.9, 0.999),
        "hidden_sizes": CategoricalDistribution(("3,2", "4")),
        "anneal_lr": CategoricalDistribution((True, False)),
        "learning_rate": FloatDistribution(0.1, 0.7, log=True),
    }


@pytest.mark.needs("optuna")
def test_optuna_computes_importances_and_goes_on_from_a_study(written):
    import optuna

    _, _, study = written
    importances = optuna.importance.get_param_importances(study)
    assert set(importances) == set(SPACE) and sum(importances.values()) == pytest.approx(1.0)
    copy = optuna.create_study(sampler=optuna.samplers.TPESampler(n_startup_trials=1, seed=0))
    copy.add_trials(study.trials)
    asked = copy.ask(study.trials[0].distributions)
    assert set(asked.params) == set(SPACE)


@pytest.mark.needs("optuna")
def test_a_study_that_is_there_is_left_alone(written, capsys):
    swept, url, study = written
    with pytest.raises(SystemExit) as stop:
        compare.main(["--optuna", url, str(swept.sweep_dir)])
    name = swept.sweep_dir.name
    assert stop.value.code == 2
    assert f"{url} has a study {name} already" in capsys.readouterr().err
    assert len(study.get_trials()) == 12


@pytest.mark.needs("optuna")
def test_a_study_is_written_whole_or_not_at_all(written, tmp_path, monkeypatch):
    import optuna

    def killed(*_):
        raise KeyboardInterrupt

    swept, _, _ = written
    monkeypatch.setattr(optuna.Study, "add_trials", killed)
    url = f"sqlite:///{tmp_path}/x.db"
    with pytest.raises(KeyboardInterrupt):
        studies.write(swept.sweep_dir, url)
    assert optuna.get_all_study_names(url) == []


@pytest.mark.needs("optuna")
def test_broken_settings_have_failed_and_halved_ones_are_pruned(tmp_path):
    import optuna

    rates = [0.1, 3e38, 0.3, 0.5]  # float32 ends at 3.4e38: its weights become NaN
    grid = {"learning_rate": rates, "target_kl": [math.inf, 0.5]}
    config = CONFIG.replace(gamma=1.0)
    swept = launch.sweep(toy, config, grid, halving=2, rungs=2, sweep_dir=tmp_path / "x")
    url = f"sqlite:///{tmp_path}/x.db"
    (line,) = studies.write(tmp_path / "x", url)
    assert line.endswith("8 trials, 4 complete, 2 fail, 2 pruned")
    trials = optuna.load_study(study_name="x", storage=url).trials
    ended = {(t.params["learning_rate"], t.params["target_kl"]): t for t in trials}
    assert {kl for _, kl in ended} == {"inf", 0.5}
    assert {t.state.name for key, t in ended.items() if key[0] == 3e38} == {"FAIL"}
    for one in swept.ranked:
        kl = one.setting["target_kl"]
        trial = ended[one.setting["learning_rate"], "inf" if math.isinf(kl) else kl]
        assert max(trial.intermediate_values) == one.steps or one.broken
        if one.share < 1.0 and not one.broken:
            assert trial.state.name == "PRUNED" and trial.value == pytest.approx(one.mean)


@pytest.mark.needs("optuna")
def test_settings_that_were_stopped_are_pruned(tmp_path):
    import optuna

    def stop(point):
        if point.run_dir.name == "chunk_001" and point.index == 2:
            raise launch.Stop("enough")

    launch.sweep(toy, CONFIG, {"num_envs": [5, 6]}, hooks=[stop], sweep_dir=tmp_path / "x")
    studies.write(tmp_path / "x", f"sqlite:///{tmp_path}/x.db")
    trials = optuna.load_study(study_name="x", storage=f"sqlite:///{tmp_path}/x.db").trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "PRUNED"]
    assert len(trials[1].intermediate_values) == 3


@pytest.mark.needs("optuna")
def test_environments_have_studies_of_their_own_and_steps_are_minimised(tmp_path, capsys):
    import optuna

    grid = {"env": ["CartPole-v1", "Acrobot-v1"], "learning_rate": [0.1, 0.7]}
    objective = "steps_to=1.55"
    swept = launch.sweep(toy, CONFIG, grid, objective=objective, sweep_dir=tmp_path / "x")
    url = f"sqlite:///{tmp_path}/x.db"
    compare.main(["--optuna", url, "--metric", "eval_return", str(tmp_path / "x")])
    out = capsys.readouterr().out
    assert out.count("2 trials") == 2 and f"optuna-dashboard {url}" in out
    assert sorted(optuna.get_all_study_names(url)) == ["x-Acrobot-v1", "x-CartPole-v1"]
    study = optuna.load_study(study_name="x-CartPole-v1", storage=url)
    assert study.direction.name == "MINIMIZE" and study.metric_names == [objective]
    scores = {one.setting["learning_rate"]: one.score(objective) for one in swept.ranked[:2]}
    assert -math.inf in scores.values() and max(scores.values()) < 0, "the test would show less"
    for trial in study.trials:
        steps = -scores[trial.params["learning_rate"]]
        assert trial.value == (steps if math.isfinite(steps) else None)
        assert set(trial.params) == {"learning_rate"}
        one = swept.of({"env": "CartPole-v1", **trial.params}).trials[0]
        returns = {int(t): -float(x) for t, x in zip(one.timesteps, one.returns)}
        assert trial.intermediate_values == pytest.approx(returns), "lower ones are better here"


def test_optuna_is_asked_for_by_its_pip_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "optuna", None)
    words = ["--optuna", "sqlite:///study.db", str(tmp_path)]
    for more, message in (["--out", "a.png"], "leave it out with --optuna"), ([], "pip install "):
        with pytest.raises(SystemExit) as stop:
            compare.main([*words, *more])
        assert stop.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.needs("optuna")
@pytest.mark.parametrize(
    "name, url, message",
    [
        ("sweep", "study.db", "give the URL of a storage, sqlite:///study.db"),
        ("sweep", "nosuch://x", "--optuna nosuch://x cannot be opened: "),
        ("sweep", "sqlite:////nowhere/at/all.db", "cannot be opened: "),
        ("sweep/chunk_000", "sqlite://", "is a run: a study has many settings"),
    ],
)
def test_storages_that_are_none(written, name, url, message):
    swept, _, _ = written
    with pytest.raises(UserError) as caught:
        studies.write(swept.sweep_dir / name.removeprefix("sweep").strip("/"), url)
    assert message in str(caught.value)


@pytest.mark.needs("optuna")
def test_the_example_trains_batches_and_ends_those_that_are_pruned(monkeypatch):
    import optuna

    example = load_example()
    space = {"learning_rate": optuna.distributions.FloatDistribution(0.1, 0.5)}
    for name, value in {"ppo": toy, "CONFIG": CONFIG, "SPACE": space, "SEEDS": 2}.items():
        monkeypatch.setattr(example, name, value)
    swept = []
    sweep = launch.sweep
    monkeypatch.setattr(launch, "sweep", lambda *a, **k: swept.append(sweep(*a, **k)) or swept[-1])
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.RandomSampler(seed=0),
        pruner=optuna.pruners.NopPruner(),
    )
    example.train(study)
    assert len(study.trials) == example.BATCH
    for trial in study.trials:
        one = swept[0].of(trial.params)
        assert trial.value == one.mean and len(one.trials) == 2
        curve = np.mean([seed.returns for seed in one.trials], axis=0)
        assert list(trial.intermediate_values.values()) == pytest.approx(curve.tolist())
    study.pruner = optuna.pruners.ThresholdPruner(lower=1e9, n_warmup_steps=2)
    example.train(study)
    assert swept[1].stopped == "pruned"
    pruned = study.trials[example.BATCH :]
    assert {trial.state.name for trial in pruned} == {"PRUNED"}
    assert {max(trial.intermediate_values) for trial in pruned} == {2}


@pytest.mark.needs("optuna")
@pytest.mark.parametrize(
    "number, kind", [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
@pytest.mark.parametrize("index", [1, CONFIG.num_evals])
def test_a_signal_ends_the_example_and_books_no_half_trained_trial(
    monkeypatch, number, kind, index
):
    import optuna

    def report(trial, value, step):
        if step == index and trial.number == 0:
            signal.raise_signal(number)

    example = load_example()
    space = {"learning_rate": optuna.distributions.FloatDistribution(0.1, 0.5)}
    for name, value in {"ppo": toy, "CONFIG": CONFIG, "SPACE": space, "SEEDS": 1}.items():
        monkeypatch.setattr(example, name, value)
    monkeypatch.setattr(optuna.Trial, "report", report)
    study = optuna.create_study(pruner=optuna.pruners.NopPruner())
    with pytest.raises(kind):
        example.train(study)
    assert [trial.state.name for trial in study.trials] == ["FAIL"] * example.BATCH


def load_example():
    path = Path(studies.__file__).parents[3] / "docs" / "optuna_example.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
