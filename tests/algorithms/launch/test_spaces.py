"""Settings that a sweep draws: their distributions, their groups, and what comes of them."""

import csv
import json

import numpy as np
import pytest
import scipy

from algorithms import launch
from algorithms.launch import cli, flags
from algorithms.launch.engine import distributions, grids, results, sweep_dir
from algorithms.launch.engine.errors import UserError
from tests.algorithms.launch import toy

pytestmark = pytest.mark.usefixtures("quick_pictures", "shared_programs")
CONFIG = toy.Config(total_timesteps=120, num_evals=2)
SPACE = {
    "num_envs": launch.Integers(4, 6),
    "gamma": launch.Discount(0.9, 0.999),
    "hidden_sizes": launch.Choice([(3, 2), (4,)]),
}


@pytest.fixture(scope="module")
def drawn(quick_pictures, shared_programs, tmp_path_factory):
    """Eight draws with two seeds, of which each program gets as many as there are."""
    root = tmp_path_factory.mktemp("drawn")
    return launch.sweep(toy, CONFIG, SPACE, samples=8, num_seeds=2, root=root)


def table(sweep_dir):
    with open(sweep_dir / "results.csv") as file:
        return list(csv.DictReader(file))


def as_ever(rows):
    """Rows of results.csv without where the trials are."""
    return [{k: v for k, v in row.items() if k not in ("run", "trial_of_run")} for row in rows]


# --- distributions ---------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", grids.SAMPLERS)
def test_all_kinds_are_drawn_together_and_begin_alike(sampler):
    space = {
        "whole": launch.Integers(-1, 2),
        "log_whole": launch.LogIntegers(1, 4),
        "choice": launch.Choice(["a", "b", "c"]),
        "discount": launch.Discount(0.9, 0.999),
    }
    draws = grids.draw(space, 4096, sampler, 0)
    fewer = grids.draw(space, 100, sampler, 0)
    assert all(list(fewer[name]) == list(draws[name][:100]) for name in space)
    counts = {name: dict(zip(*np.unique(draws[name], return_counts=True))) for name in space}
    assert set(counts["whole"]) == {-1, 0, 1, 2} and set(counts["choice"]) == {"a", "b", "c"}
    widths = np.log(np.array([1.5, 2.5, 3.5, 4.5]) / [0.5, 1.5, 2.5, 3.5])  # of log k +- 1/2
    for name, shares in [("whole", [0.25] * 4), ("choice", [1 / 3] * 3), ("log_whole", widths)]:
        shares = np.array(shares) / np.sum(shares)
        np.testing.assert_allclose(list(counts[name].values()) / shares, 4096, rtol=0.12)
    exponents = np.log10(1.0 - draws["discount"])
    assert scipy.stats.kstest(exponents, scipy.stats.uniform(-3, 2).cdf).pvalue > 1e-4
    assert draws["discount"].min() >= 0.9 and draws["discount"].max() <= 0.999


def test_numbers_grow_with_their_quantiles():
    thirds = np.array([0.0, 0.5, 1.0])
    np.testing.assert_allclose(launch.Discount(0.9, 0.999).at(thirds), [0.9, 0.99, 0.999])
    np.testing.assert_allclose(launch.LogUniform(0.01, 1.0).at(thirds), [0.01, 0.1, 1.0])


def test_whole_numbers_and_choices_stay_inside_at_both_ends():
    ends = np.array([0.0, np.nextafter(1.0, 0.0), 1.0])
    assert list(launch.Integers(1, 8).at(ends)) == [1, 8, 8]
    assert list(launch.LogIntegers(16, 512).at(ends)) == [16, 512, 512]
    assert launch.Choice([True, False]).at(ends) == [True, False, False]


def test_float_draws_are_those_of_earlier_versions():
    space = {"a": launch.LogUniform(1e-5, 1e-2), "b": launch.Uniform(0.0, 0.05)}
    draws = grids.draw(space, 2, "sobol", 0)
    assert [x.hex() for x in draws["b"]] == ["0x1.8ae7550cccccdp-5", "0x1.6056520000000p-8"]
    earlier = [float.fromhex(x) for x in ("0x1.64060499708d7p-13", "0x1.7ff3406f3317dp-10")]
    np.testing.assert_allclose(draws["a"], earlier, rtol=1e-14)  # exp, to the last bit or so


@pytest.mark.parametrize("given", SPACE.values())
def test_distributions_survive_json(given):
    back = distributions.from_json(json.loads(json.dumps(distributions.to_json(given))))
    assert back == given and type(back) is type(given)
    assert distributions.from_json([0.1, 0.2]) is None


@pytest.mark.parametrize(
    "word, kind, message",
    [
        ("log:a:2", float, "LOW and HIGH are numbers"),
        ("choice:0.1", float, "give two values or more"),
        ("int:1:2.5", int, "give whole numbers"),
        ("int:1:8", bool, "neither true or false nor choice:A,B,C"),
        ("discount:0.9:1.5", float, "needs an upper bound below 1"),
    ],
)
def test_words_that_are_none(word, kind, message):
    with pytest.raises(ValueError, match=message):
        distributions.distribution(word, kind, float)


@pytest.mark.parametrize(
    "grid, message",
    [
        ({"anneal_lr": launch.Integers(0, 1)}, "the field is true or false: draw it by Choice"),
        ({"num_envs": launch.Choice([4, 8.5])}, "8.5 is not a whole number"),
        ({"gamma": launch.Choice(["high", 0.5])}, "'high' is not a number"),
        ({"hidden_sizes": launch.Choice([(1,), 2])}, "2 is not a tuple"),
        ({"gamma": launch.LogUniform(0, 1)}, "needs a lower bound above 0"),
        ({"env": launch.Choice(["CartPole-v1", "Acrobot-v1"])}, "env: list the environments"),
        ({"num_envs": [launch.Integers(1, 2), 4]}, "num_envs: a distribution stands alone"),
    ],
)
def test_draws_that_fit_no_field_are_refused(grid, message):
    with pytest.raises(UserError) as caught:
        launch.sweep(toy, CONFIG, grid, samples=4, save=False)
    assert message in str(caught.value)


# --- groups ----------------------------------------------------------------------------------


def test_equal_static_draws_share_a_group():
    groups = grids.groups_of(CONFIG, grids.Asked(SPACE, 8), [3, 4])
    counts = [group.trials.count for group in groups]
    assert sum(counts) == 16 and len(set(counts)) > 1
    draws = grids.draw(SPACE, 8, "sobol", 3)
    expected = {}
    for envs, gamma, sizes in zip(*draws.values()):
        expected.setdefault((int(envs), sizes), []).extend([float(gamma)] * 2)
    assert 2 < len(groups) < 8
    for (values, gammas), group in zip(expected.items(), groups, strict=True):
        assert group.static == dict(zip(("num_envs", "hidden_sizes"), values))
        assert (group.config.num_envs, group.config.hidden_sizes) == values
        assert type(group.config.num_envs) is int
        assert group.trials.floats["gamma"].tolist() == gammas and group.trials.seeds[:2] == [3, 4]


def test_draws_are_crossed_with_listed_values():
    grid = {"num_envs": [5, 7], "anneal_lr": launch.Choice([True, False]), "gamma": [0.5, 0.6]}
    grid["learning_rate"] = launch.Uniform(0.0, 1.0)
    groups = grids.groups_of(CONFIG, grids.Asked(grid, 3), [0])
    assert [group.static["num_envs"] for group in groups] == [5, 5, 7, 7]
    assert sum(group.trials.count for group in groups) == 12
    first = groups[0].trials.floats["learning_rate"]
    np.testing.assert_array_equal(first[: len(first) // 2], first[len(first) // 2 :])
    for group, other in zip(groups[:2], groups[2:]):
        np.testing.assert_array_equal(
            group.trials.floats["learning_rate"], other.trials.floats["learning_rate"]
        )


def test_a_setting_that_is_drawn_again_trains_once(capsys):
    grid = {"num_envs": launch.Integers(5, 6), "gamma": launch.Choice([0.5, 0.9])}
    swept = launch.sweep(toy, CONFIG, grid, samples=16, num_seeds=2, save=False, quiet=False)
    assert len(swept.trials) == 8 and len(swept.ranked) == 4
    out = capsys.readouterr().out
    assert "a sweep of 8 trials, 4 settings x 2 seeds\n" in out
    assert "draws of 2 values of num_envs make 2 programs\n" in out
    assert "12 settings were drawn again; each trains once\n" in out and "hint" not in out


def test_many_programs_are_hinted_at():
    asked = grids.Asked({"num_envs": launch.Integers(1, 32)}, 13)
    said = grids.remarks(asked, [{"num_envs": 2 * i} for i in range(13)], 13)
    assert said == [
        "draws of 13 values of num_envs make 13 programs",
        "hint: fewer values of num_envs make fewer programs to compile, as --num-envs "
        "choice:0,12,24",
    ]
    assert len(grids.remarks(asked, [{"num_envs": i} for i in range(12)], 13)) == 1


# --- what comes of them ----------------------------------------------------------------------


def test_a_drawn_trial_is_close_to_its_single_run(drawn):
    rows = table(drawn.sweep_dir)
    assert [int(row["trial"]) for row in rows] == list(range(16))
    for number in (0, 7, 15):
        trial, row = drawn.trials[number], rows[number]
        loaded = launch.load(drawn.sweep_dir, trial=number, module=toy)
        assert loaded.config == CONFIG.replace(**trial.setting)
        assert [row["num_envs"], row["seed"]] == [str(loaded.config.num_envs), str(trial.seed)]
        assert row["hidden_sizes"] == ",".join(map(str, loaded.config.hidden_sizes))
        alone = launch.run(toy, loaded.config, seed=trial.seed, save=False)
        np.testing.assert_allclose(
            trial.returns, alone.metrics["eval_return"][0].mean(1), rtol=1e-4
        )


def test_a_drawn_sweep_in_chunks_goes_on_exactly(drawn, tmp_path):
    given = {"samples": 8, "num_seeds": 2, "sweep_dir": tmp_path / "x", "resume_if_exists": True}

    def stop(point):
        if point.run_dir.name == "chunk_002" and point.index == 1:
            raise launch.Stop("enough")

    stopped = launch.sweep(toy, CONFIG, SPACE, max_parallel=2, hooks=[stop], **given)
    assert stopped.stopped == "enough" and len(stopped.trials) < 16
    whole = launch.sweep(toy, CONFIG, SPACE, **given)
    assert as_ever(table(tmp_path / "x")) == as_ever(table(drawn.sweep_dir))
    assert [t.returns.tolist() for t in whole.trials] == [t.returns.tolist() for t in drawn.trials]
    assert results.table(whole.ranked) == results.table(drawn.ranked)
    best, _ = cli.defaults(toy, ["--config", str(tmp_path / "x" / "best.json")])
    assert {name: getattr(best, name) for name in SPACE} == whole.ranked[0].setting
    other = SPACE | {"hidden_sizes": launch.Choice([(3, 2), (5,)])}
    with pytest.raises(UserError, match="was made with other settings, grid"):
        launch.sweep(toy, CONFIG, other, **given)


def test_halving_keeps_the_best_of_unequal_groups(drawn):
    swept = launch.sweep(toy, CONFIG, SPACE, samples=8, num_seeds=2, halving=2, save=False)
    whole = [one for one in swept.ranked if one.share == 1.0]
    assert len(whole) == 4 and len(swept.trials) == 16
    for trial in swept.trials:
        same = next(t for t in drawn.trials if (t.setting, t.seed) == (trial.setting, trial.seed))
        np.testing.assert_array_equal(trial.returns, same.returns[: len(trial.returns)])


# --- settings one by one ---------------------------------------------------------------------

SETTINGS = [
    {"learning_rate": 0.3, "hidden_sizes": [4]},
    {"learning_rate": np.float64(0.1), "num_envs": 6},
    {"learning_rate": 0.2, "hidden_sizes": (4,), "num_envs": 5},
    {"learning_rate": 0.3, "hidden_sizes": (4,)},  # the first one again
]


def test_settings_that_are_given_train_with_what_they_leave_out(tmp_path, capsys):
    seen = []
    given = {"settings": SETTINGS, "num_seeds": 2, "sweep_dir": tmp_path / "x"}
    swept = launch.sweep(toy, CONFIG, hooks=[seen.append], **given)
    told = "settings: equal ones train once, which leaves 3 of 4"
    assert capsys.readouterr().err.count(told) == 1
    assert [one.run for one in swept.trials] == ["chunk_000"] * 4 + ["chunk_001"] * 2
    whole = [{"hidden_sizes": (3, 2), "num_envs": 5} | one for one in SETTINGS[:3]]
    whole[0]["hidden_sizes"] = (4,)
    for setting, asked in zip(whole, SETTINGS):
        one = swept.of(asked if len(asked) == 3 else setting)
        assert one.setting == setting and len(one.trials) == 2
        alone = launch.run(toy, CONFIG.replace(**setting), num_seeds=2, save=False)
        expected = alone.metrics["eval_return"][:, -1].mean(1)
        np.testing.assert_allclose(one.finals, expected, rtol=1e-4)
    assert swept.of(SETTINGS[3]) is not None and len(swept.ranked) == 3
    assert [setting["learning_rate"] for setting in seen[0].settings] == [0.3, 0.3, 0.2, 0.2]
    assert seen[-1].settings == [whole[1]] * 2
    again = launch.sweep(toy, CONFIG, resume_if_exists=True, **given)
    assert results.table(again.ranked) == results.table(swept.ranked)
    with pytest.raises(UserError, match="was made with other settings, grid .*, settings "):
        launch.sweep(toy, CONFIG, resume_if_exists=True, **given | {"settings": SETTINGS[:2]})
    with pytest.raises(UserError, match=r"2 settings of the sweep have hidden_sizes=4: give va"):
        swept.of({"hidden_sizes": [4]})
    with pytest.raises(UserError, match=r"0 settings of the sweep have gamma=0.5"):
        swept.of({"gamma": 0.5})


def test_a_float_is_found_in_either_precision():
    """It trains as float32."""
    for wide in (True, False):
        kinds = (float, np.float32) if wide else (np.float32, float)
        swept = launch.sweep(toy, CONFIG, {"gamma": [*map(kinds[0], (0.1, 0.7))]}, save=False)
        one = swept.of({"gamma": kinds[1](0.7)})
        assert one.setting == {"gamma": float(kinds[0](0.7))}
        with pytest.raises(UserError, match="0 settings of the sweep have gamma=0.70001"):
            swept.of({"gamma": 0.70001})


@pytest.mark.parametrize(
    "grid, settings, message",
    [
        ({"gamma": [0.5]}, SETTINGS, "go neither with a grid nor with samples"),
        ({}, [], "there are no values"),
        ({}, [{}, {}], "there are no values"),
        ({}, [0.1], "give a list of {field: value}"),
        ({}, [{"gama": 0.1}], "did you mean gamma"),
        ({}, [{"gamma": 1.1}, {}], "gamma=1.1: give a number in [0, 1]"),
        ({}, [{"gamma": "high"}], "gamma=high: give a number"),
        ({}, [{"env": "CartPole-v1"}, {"env": "Acrobot-v1"}], "have several environments"),
    ],
)
def test_settings_that_cannot_be_are_refused(grid, settings, message):
    with pytest.raises(UserError) as caught:
        launch.sweep(toy, CONFIG, grid, settings=settings, save=False)
    assert message in str(caught.value)


# --- the command line ------------------------------------------------------------------------


def test_what_python_draws_is_saved_and_read_back():
    """Numbers of NumPy, infinity, and whole numbers that were written as floats."""
    drawn = [
        launch.Choice([*np.array([4, 8])]),
        launch.Choice([0.5, float("inf")]),
        launch.Choice([(("max_steps", 9),), ()]),
        launch.LogIntegers(1e3, 1e6),
        launch.Uniform(np.float32(0.5), 1),
    ]
    for one in drawn:
        text = json.dumps(distributions.to_json(one), allow_nan=False)
        assert distributions.from_json(json.loads(text)) == one
    listed = {"num_envs": np.array([4, 8]), "gamma": np.array([0.5, 1.0], np.float32)}
    saved = {name: sweep_dir._grid_to_json(values) for name, values in listed.items()}
    assert json.loads(json.dumps(saved)) == {"num_envs": [4, 8], "gamma": [0.5, 1.0]}


def test_flags_that_draw():
    words = "--num-envs logint:4:6 --gamma discount:0.9:0.99 --target-kl choice:0.1,inf"
    words += " --anneal-lr choice:true,false --hidden-sizes choice:3,2/4|5"
    words += " --env-settings choice:max_steps=9,gravity=8/max_steps=5"
    base = toy.Config(num_envs=7)
    config, _ = flags.parse(toy, words.split(), base, flags.Flags())
    config, grid = flags.single_out(base, config)
    assert config == base
    assert grid == {
        "num_envs": launch.LogIntegers(4, 6),
        "gamma": launch.Discount(0.9, 0.99),
        "target_kl": launch.Choice([0.1, float("inf")]),
        "anneal_lr": launch.Choice([True, False]),
        "hidden_sizes": launch.Choice([(3, 2), (4,), (5,)]),
        "env_settings": launch.Choice(
            [(("max_steps", 9), ("gravity", 8)), (("max_steps", 5),)],
        ),
    }
    assert type(grid["num_envs"].low) is int
    config, _ = flags.parse(toy, ["--env", "my_module:MyEnv"], base, flags.Flags())
    assert config.env == "my_module:MyEnv"


def test_a_drawn_sweep_from_the_command_line(tmp_path, capsys):
    words = "--num-envs int:4:6 --hidden-sizes choice:3,2/4 --samples 6 --num-evals 2 --run-dir"
    cli.main(toy, [*words.split(), str(tmp_path / "x"), "--total-timesteps", "120"])
    out = capsys.readouterr().out
    made = len(list((tmp_path / "x").glob("chunk_*")))
    assert f"values of num_envs and 2 values of hidden_sizes make {made} programs" in out
    said = json.loads((tmp_path / "x" / "sweep.json").read_text())
    assert said["grid"] == {"num_envs": "int:4:6", "hidden_sizes": {"choice": [[3, 2], [4]]}}
    assert "rank  num_envs  hidden_sizes" in out


def test_several_numbers_for_a_tuple_are_said_to_be_several_settings():
    """`--hidden-sizes 120 84` is two networks of one layer each."""
    said = lambda *values: grids.remarks(grids.Asked({"hidden_sizes": list(values)}), [{}], 2)
    assert said((120,), (84,)) == ["hint: 2 settings of hidden_sizes; one of them all is 120,84"]
    assert said((120, 84)) == said((120, 84), (64, 64)) == said((120,)) == said(120, 84) == []
