"""report.html: its numbers against NumPy, and a whole page for every kind of sweep."""

import html
import importlib.util
import itertools
import json
import re
import shlex
import sys
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest

from algorithms import launch
from algorithms.launch.engine import experiment, intervals, loop, plots, results
from algorithms.launch.engine import settings as settings_module
from algorithms.launch.engine.results import Outcome
from algorithms.launch.tools.report import (
    chance,
    curves,
    importance,
    landscapes,
    page,
    study,
    svg,
    table,
)
from tests.algorithms.launch import toy
from tests.algorithms.launch.kept.make import KEPT

pytestmark = pytest.mark.usefixtures("quick_curves", "shared_programs")

RATES = [1e-4, 1e-3, 1e-2]
DRAWS = {"learning_rate": "log:0.0001:0.01", "gamma": "uniform:0.9:1"}


def trial(setting, seed, final, points=6, **more):
    curve = final * np.linspace(0, 1, points) if points > 1 else np.array([final])
    steps = 100 * np.arange(points)
    number = {"number": seed} | more
    return Outcome(
        setting, seed, steps, curve, **({"is_finite": True, "run": "c", "trial": 0} | number)
    )


def sweep(settings, seeds=2, score=None, **more):
    """Ranked settings; a score is 100 at a learning rate of 0.001 and less with every decade."""
    rng = np.random.default_rng(0)
    rate = lambda setting: 100 - 30 * np.log10(setting.get("learning_rate", 1e-3) / 1e-3) ** 2
    score = score or (lambda setting: rate(setting) + rng.normal())
    trials = [
        trial(one, seed, float(score(one)), **more) for one in settings for seed in range(seeds)
    ]
    return results.rank(trials)


def product(**values):
    return [dict(zip(values, one)) for one in itertools.product(*values.values())]


def draws(count):
    rng = np.random.default_rng(1)
    rates, gammas = 10 ** rng.uniform(-4, -2, count), rng.uniform(0.9, 1, count)
    return [{"learning_rate": a, "gamma": b} for a, b in zip(rates.tolist(), gammas.tolist())]


def listed(settings):
    """What sweep.json says of a grid of these values."""
    return {name: list(dict.fromkeys(one[name] for one in settings)) for name in settings[0]}


def one_study(ranked, grid):
    (found,) = study.studies(ranked, grid)
    return found


class Page(HTMLParser):
    """Elements, text and marks of a page; fails where an end tag does not match."""

    VOID = ("meta", "circle", "path", "rect")

    def __init__(self, text):
        super().__init__()
        self.open, self.heads, self.figures, self.settings, self.tags = [], [], 0, set(), []
        self.rows = []
        self.captions, self.text, self.size = [], "", len(text)
        self.feed(text)
        assert not self.open
        head = text.split('id="settings">')[1].split("</script>")[0]
        self.data = json.loads(head)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        self.rows += [int(attrs["data-s"])] if tag == "tr" and "data-s" in attrs else []
        self.settings |= set(map(int, attrs.get("data-s", "").split()))
        assert not any("nan" in (attrs.get(name) or "") for name in ("d", "cx", "cy", "x", "y"))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data if self.open and self.open[-1] not in ("script", "style") else ""
        if self.open and self.open[-1] == "figcaption":
            self.captions.append(data)
        if self.open and self.open[-1] == "h3":
            self.heads.append(data)


def read(ranked, grid, title="toy", **more):
    text = page.page(ranked, title, "runs/x", grid, **more)
    assert "http" not in text and "src=" not in text and "url(" not in text, "it opens offline"
    found = Page(text)
    assert all(found.data[i] for i in found.settings), "what can be pointed at has a name"
    assert len(found.captions) == len(found.heads)
    return found


# --- numbers ---------------------------------------------------------------------------------


def test_the_best_of_k_settings_against_all_subsets():
    scores = np.array([3.0, -1.0, 7.0, 7.0, 2.5, 0.0, 11.0])
    mean, low, high = chance.best_of(scores)
    for k in range(1, 8):
        best = [max(some) for some in itertools.combinations(scores, k)]
        assert mean[k - 1] == pytest.approx(np.mean(best))
        quantiles = np.quantile(best, [0.1, 0.9], method="inverted_cdf")
        np.testing.assert_array_equal([low[k - 1], high[k - 1]], quantiles)


def test_the_best_of_many_settings_stays_exact():
    """C(1000, 500) is no float."""
    mean, _, _ = chance.best_of(np.arange(1000.0))
    assert mean[0] == pytest.approx(499.5) and mean[-1] == pytest.approx(999)
    k = np.arange(1, 1001)
    np.testing.assert_allclose(mean, k * 1001 / (k + 1) - 1)  # of the numbers from 1 to n, less 1


def r_squared(values, scores):
    """Of a regression on one indicator for each value."""
    design = np.array(
        [[float(value == other) for other in sorted(set(values))] for value in values]
    )
    fitted = design @ np.linalg.lstsq(design, scores, rcond=None)[0]
    return 1 - np.square(scores - fitted).sum() / np.square(scores - scores.mean()).sum()


def test_importance_in_a_grid_against_regression():
    settings = product(learning_rate=RATES, num_envs=[4, 8], activation=["relu", "tanh"])
    ranked = sweep(settings)
    found = one_study(ranked, listed(settings))
    shares = importance.importance(found).shares
    assert next(iter(shares)) == "learning_rate" and sum(shares.values()) <= 1
    for name, share in shares.items():
        values = [setting.setting[name] for setting in ranked]
        assert share == pytest.approx(r_squared(values, found.scores))


def test_importance_of_draws_subtracts_chance(monkeypatch):
    """Adjusted R squared over bins that hold as many settings each, whatever is installed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    for library in ("optuna", "sklearn"):
        monkeypatch.setitem(sys.modules, library, None)
    ranked = sweep(draws(64))
    found = one_study(ranked, DRAWS)
    result = importance.importance(found)
    assert "chance" in result.method
    assert result.shares["learning_rate"] > 0.8 and result.shares["gamma"] < 0.15
    rates = np.array([setting.setting["learning_rate"] for setting in ranked])
    bins = np.argsort(np.argsort(rates)) // 8
    plain = r_squared(bins.tolist(), found.scores)
    assert result.shares["learning_rate"] == pytest.approx(1 - (1 - plain) * 63 / 56)


def test_the_seeds_share_of_the_variance():
    rng = np.random.default_rng(0)
    effects = 2.0 * rng.standard_normal(2000)
    values = effects[:, None] + rng.standard_normal((2000, 4))
    rows = [trial({"x": float(i)}, j, values[i, j], 1) for i in range(2000) for j in range(4)]
    found = one_study(results.rank(rows), {})
    assert chance.noise(found) == pytest.approx(0.25 / 4.25, rel=0.1)


def test_settings_that_seeds_cannot_tell_apart():
    rng = np.random.default_rng(0)
    finals = {0.1: rng.normal(50, 1, 20), 0.2: rng.normal(49.9, 1, 20), 0.3: rng.normal(0, 1, 20)}
    rows = [trial({"x": x}, i, y, 1) for x, ys in finals.items() for i, y in enumerate(ys)]
    found = one_study(results.rank(rows), {})
    assert chance.rivals(found) == [1]
    finals = [setting.finals for setting in found.settings]
    apart, low, high = intervals.difference(finals[0], finals[2])
    assert low < apart < high and low > 48 and high < 52


@pytest.mark.parametrize(
    "value, text",
    [
        (0.001, "0.001"),
        (3e-5, "3e-5"),
        (0.00012346, "1.235e-4"),
        (2560, "2560"),
        (49152, "49.15k"),
        (2.5e6, "2.5M"),
        (3e12, "3000G"),
        (1e30, "1e30"),
        (-0.0, "0"),
        (float("nan"), "none"),
        (-152.34, "-152.3"),
    ],
)
def test_numbers_are_short(value, text):
    assert svg.number(value) == text


def test_axes_are_those_that_were_asked_for():
    settings = [{"learning_rate": 1e-3 * (1 + i), "gamma": 0.1 * (1 + i)} for i in range(9)]
    settings = [one | {"num_envs": 2**i} for i, one in enumerate(settings)]
    asked = {"learning_rate": "log:0.0005:0.01", "gamma": "uniform:0.01:1"}
    axes = one_study(sweep(settings), asked | {"num_envs": [2**i for i in range(9)]}).axes
    assert [axes[name].scale.is_log for name in axes] == [True, False, True]
    assert axes["learning_rate"].scale[:2] == (0.0005, 0.01)
    assert [label for _, label in axes["num_envs"].scale.ticks()] == ["1", "10", "100"]
    assert plots.places([0.1, 0.2], True).is_log and not plots.places([0.1, 9.0], False).is_log
    assert [plots.is_log(x) for x in ("log:1:2", "uniform:1:2", [1, 2])] == [True, False, None]


def test_a_curve_ends_where_a_seed_ends_and_is_drawn_with_few_points():
    rows = [trial({"x": 1.0}, 0, 10.0, 501), trial({"x": 1.0}, 1, 10.0, 1001)]
    found = curves.curve(results.rank(rows)[0])
    assert len(found.x) == curves.POINTS and found.x[-1] == 50_000
    np.testing.assert_allclose(found.mean[-1], (10 + 5) / 2, rtol=1e-6)
    # The t interval of two seeds is far wider, and cut off.
    assert found.low.min() == 0.0 and found.high[-1] == pytest.approx(10)


# --- sentences -------------------------------------------------------------------------------


def test_sentences_are_about_this_sweep():
    settings = product(learning_rate=RATES, gamma=[0.9, 0.99])
    score = lambda one: -10 * abs(np.log10(one["learning_rate"]) + 2) - one["gamma"]
    found = read(sweep(settings, 3, score), listed(settings))
    assert "learning_rate=0.01, gamma=0.9: mean return -0.9 over 3 seeds." in found.text
    assert "0.09 above the second setting" in found.text
    assert (
        "learning_rate: the best settings lie at the end of its range; try above 0.01."
        in found.text
    )
    assert "The best pair is learning_rate=0.01 with gamma=0.9, mean -0.9" in found.text
    assert "--config runs/x/best.json --seed 102 --num-seeds 10" in found.text
    at = found.heads.index("Return over learning_rate")
    assert "100 % of the variance; the mean return is highest at 0.01, -0.945" in found.captions[at]
    assert "lowest at 1e-4, -20.95. The setting that won has 0.01." in found.captions[at]


def test_the_best_value_on_average_need_not_be_that_of_the_winner():
    settings = product(learning_rate=[1e-3, 1e-2], gamma=[0.9, 0.99])
    finals = iter((100.0, 0.0, 75.0, 90.0))
    found = read(sweep(settings, 1, lambda _: next(finals)), listed(settings))
    assert "learning_rate=0.001, gamma=0.9: mean return 100 with one seed." in found.text
    said = found.captions[found.heads.index("Return over learning_rate")]
    assert "highest at 0.01, 82.5, and lowest at 0.001, 50. The setting that won has 0.001." in said


def test_the_command_can_be_pasted_and_says_why_its_seeds():
    settings = product(learning_rate=RATES)
    ranked = sweep(settings, 3)
    given = {"suffix": "-x", "command": "python 'my files/foo.py'"}
    text = page.page(ranked, "t", "my runs/it's", listed(settings), **given)
    (line,) = re.findall(r'<code class="command">(.*?)</code>', text)
    words = shlex.split(html.unescape(line))
    expected = ["python", "my files/foo.py", "--config", "my runs/it's/best-x.json"]
    assert words == [*expected, "--seed", "102", "--num-seeds", "10"]
    assert "chosen on seeds 0 to 2, so its return there is partly luck; seeds 102 to 111" in text
    again = results.retests(ranked, [trial(settings[0], 9, 7.0), trial(settings[0], 12, 7.0)])
    text = page.page(ranked, "t", "runs/x", listed(settings), again)
    assert "Its file names seeds 9 to 12, those of the retest:" in text
    assert '<code class="command">python FILE.py --config runs/x/best.json</code>' in text
    alone = read(sweep([{}], 2), {}).text
    assert "Train it on more seeds. The sweep has had seeds 0 to 1:" in alone


def test_the_command_starts_the_file_as_the_documentation_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    of = lambda path: settings_module.command_of(SimpleNamespace(__file__=str(path)))
    assert of(page.HERE.parents[2] / "ppo.py") == "python algorithms/ppo.py"
    assert of(tmp_path / "my ppo.py") == "python 'my ppo.py'"
    assert of("/elsewhere/ppo.py") == "python /elsewhere/ppo.py"


def test_no_place_in_a_row_of_pictures_is_empty():
    width = {"third": 2, "half": 3, "all": 6}
    for count in range(1, 14):
        kinds = re.findall(r'<div class="(\w+)( odd)?">', page._in_rows(["x"] * count))
        assert len(kinds) == count
        rows, left = 0, 6
        for kind, _ in kinds:
            left -= width[kind]
            assert left >= 0
            rows, left = (rows + 1, 6) if not left else (rows, left)
        assert left == 6, "the last row is full"
        assert [bool(odd) for _, odd in kinds] == [False] * (count - 1) + [count % 2 == 1]


def test_lines_through_all_settings_leave_the_labels_free():
    found = one_study(sweep(draws(8)), DRAWS)
    drawn = landscapes.over_all(found)
    labels = {int(y) for y in re.findall(r'y="(\d+)" text-anchor="middle"', drawn)}
    assert len(labels) == 3, "those of the ticks of each axis"
    lanes = re.findall(r'class="lane s\d" d="(.*?)"', drawn)
    assert len(lanes) == 8
    for y in labels:
        for a, b in re.findall(r"M[\d.]+ (\d+)L[\d.]+ (\d+)", "".join(lanes)):
            assert not (int(a) < y + 3 and int(b) > y - 12), "a line crosses this label"


def test_a_row_is_estimated_once_and_the_scale_is_the_columns(monkeypatch):
    counts = {"estimate": 0, "scores_scale": 0}

    def counting(name, function):
        def call(*given):
            counts[name] += 1
            return function(*given)

        return call

    for name in counts:
        monkeypatch.setattr(table, name, counting(name, getattr(table, name)))
    table.ranking(one_study(sweep(draws(12), 3), DRAWS))
    assert counts == {"estimate": 12, "scores_scale": 1}


def test_a_click_shows_the_curves_of_a_settings_seeds():
    settings = product(learning_rate=RATES, gamma=[0.9, 0.95, 0.99])
    text = page.page(sweep(settings, 3), "t", ".", listed(settings))
    groups = re.findall(r'<g class="seeds" data-of="(\d+)">(.*?)</g>', text)
    wide, narrow = groups[:6], groups[6:]
    assert [of for of, _ in wide] == [of for of, _ in narrow] == list("012345")
    assert all(lines.count("<path") == 3 for _, lines in groups)
    assert "draws the curves of its seeds if it is one of the best 6." in text
    assert 'classList.toggle("open", group.dataset.of === setting)' in text
    alone = page.page(sweep(settings, 1), "t", ".", listed(settings))
    assert '<g class="seeds"' not in alone and "draws the curves" not in alone


def test_it_says_how_long_a_trial_took_and_links_to_the_tables():
    settings = product(learning_rate=RATES)
    ranked = sweep(settings, 2, number=0)
    trials = [t for one in ranked for t in one.trials]
    trials = [t._replace(number=i) for i, t in enumerate(trials)]
    ranked = results.rank(trials)
    same = page.page(ranked, "t", ".", {}, seconds=dict.fromkeys(range(6), 20.0))
    assert ", 2m00s of training, 20 s a trial</span>" in same and "seconds a trial" not in same
    longer = {i: 20.0 + 10.0 * (i // 2) for i in range(6)}
    text = page.page(ranked, "t", ".", {}, seconds=longer)
    assert "<th>seconds a trial</th>" in text and ", 3m00s of training, 30 s a trial" in text
    cells = re.findall(r'<td class="clock" data-name="seconds a trial">(.*?)</td>', text)
    assert cells == ["20", "30", "40"]
    links = lambda text: re.findall(r'<a href="(.*?)">', text)
    assert links(text) == ["results.csv", "trials.csv"]
    again = results.retests(ranked, [trial(settings[0], 9, 7.0)])
    found = links(page.page(ranked, "t", ".", {}, again, suffix="-steps_to=-2"))
    assert found == ["results-steps_to%3D-2.csv", "retest-steps_to%3D-2.csv", "trials.csv"]


def test_trials_share_the_seconds_of_their_chunks():
    there = experiment.open(KEPT / "ppo-halved")
    rungs = [run.seconds(max(run.table())) for run in there.run_dirs()[:2]]
    found = page.seconds_of(there)
    assert sorted(found) == list(range(8)) and min(rungs) > 0
    first, both = rungs[0] / 8, rungs[0] / 8 + rungs[1] / 4
    np.testing.assert_allclose([found[i] for i in range(8)], [first] * 4 + [both] * 4)


def test_ties_and_broken_trials_are_said():
    settings = draws(16)
    tie = read(sweep(settings, score=lambda one: 500.0), DRAWS)
    assert "It ties: 16 settings score 500." in tie.text
    rows = [t for s in sweep(settings) for t in s.trials]
    rows = [
        t._replace(returns=t.returns * (2 if t.setting["learning_rate"] > 3e-3 else 1))
        for t in rows
    ]
    rows = [t._replace(is_finite=t.setting["learning_rate"] < 3e-3 or not t.seed) for t in rows]
    count = sum(not t.is_finite for t in rows)
    found = read(results.rank(rows), DRAWS)
    said = re.search(r"(\d+) trials are not finite, (\d+) of them with learning_rate=", found.text)
    assert count > 2 and said.group(1) == str(count) and int(said.group(2)) > count / 2
    sound = max(s.mean for s in results.rank(rows) if not s.broken)
    assert sound < max(s.mean for s in results.rank(rows))
    assert f"the best of 16 {svg.number(sound)}." in found.text
    assert "A setting with a broken trial counts like the worst one." in found.text
    assert found.text.count("1 not finite") == count


def test_one_setting_may_be_the_only_one_without_a_broken_trial():
    settings = [{"learning_rate": 1e-3}, {"learning_rate": 1e-2}]
    trials = [trial(one, seed, 10.0 - seed) for one in settings for seed in range(2)]
    found = read(results.rank([*trials[:3], trials[3]._replace(is_finite=False)]), {})
    said = "Only learning_rate=0.001 has no broken trial; it scores 9.5."
    assert said in found.captions[found.heads.index("All settings")]


def test_halving_compares_at_the_step_that_all_have():
    settings = [{"learning_rate": 10.0 ** -(2 + i / 4)} for i in range(9)]
    rows = [
        trial(one, seed, 10.0 * points + i, points, share=points / 12, rung=points // 4)
        for i, one in enumerate(settings)
        for points in [12 if i < 2 else 4]
        for seed in (0, 1)
    ]
    found = one_study(results.rank(rows), {"learning_rate": "log:0.0001:0.01"})
    assert found.step == 300 and found.peers.tolist() == [0, 1]
    expected = {i: (10 * 12 + i) * 3 / 11 if i < 2 else 10 * 4 + i for i in range(9)}
    order = [settings.index(setting.setting) for setting in found.settings]
    np.testing.assert_allclose(found.scores, [expected[i] for i in order])
    assert order[:2] == [1, 0]
    shown = read(results.rank(rows), {"learning_rate": "log:0.0001:0.01"})
    assert "compare all of them at step 300" in shown.text
    assert "best mean return at step 300" in shown.text
    assert re.search(r"One random setting scores [0-9.]+ at step 300 on average", shown.text)
    assert "0 of the other 1" not in shown.text and "1 above the second setting" in shown.text


def test_halving_compares_equal_points_where_updates_take_different_steps():
    """With 4 environments a point takes 1000 steps, with 16 it takes 1200; 16 are better."""
    settings = product(num_envs=[4, 16], learning_rate=[0.1, 0.2, 0.3])
    rows = []
    for i, one in enumerate(settings):
        points = 4 if i == 5 else 2
        returns = np.array([0.0, one["num_envs"], 30.0, 40.0])[:points] + 0.1 * i
        steps = {4: 1000, 16: 1200}[one["num_envs"]] * np.arange(points)
        known = dict(share=1.0 if i == 5 else 1 / 3, rung=int(i == 5))
        rows.append(trial(one, 0, 0.0, points, **known)._replace(timesteps=steps, returns=returns))
    found = one_study(results.rank(rows), listed(settings))
    scores = {str(one.setting): score for one, score in zip(found.settings, found.scores)}
    assert [scores[str(one)] for one in settings] == pytest.approx([4, 4.1, 4.2, 16.3, 16.4, 16.5])


def test_a_retest_answers_whether_it_was_luck():
    settings = product(learning_rate=RATES)
    ranked = sweep(settings, 3, lambda one: 1e3 * one["learning_rate"])
    fresh = [
        trial(settings[i], 9 + seed, final) for i, final in ((2, 5.0), (1, 8.0)) for seed in (0, 1)
    ]
    again = results.retests(ranked, fresh)
    found = read(ranked, listed(settings), retested=again)
    assert (
        "Setting 2 is the best one on 2 fresh seeds (learning_rate=0.001): mean return 8"
        in found.text
    )
    assert "Retest on fresh seeds" in found.text and "try above" not in found.captions
    alone = read(ranked, listed(settings), retested=again[:1]).text
    assert "Setting 2 on 2 fresh seeds (learning_rate=0.001): mean return 8" in alone


# --- kinds of sweeps -------------------------------------------------------------------------

MIXED = product(
    activation=["tanh", "<script>alert(1)</script>"],
    hidden_sizes=[(64, 64), (16,)],
    anneal_lr=[True, False],
    target_kl=[0.1, float("inf")],
    learning_rate=RATES,
)
KINDS = {
    "one field": (product(learning_rate=RATES), {}),
    "one setting, one point": ([{"learning_rate": 1e-3}], dict(seeds=1, points=1)),
    "nothing swept": ([{}], {}),
    "strings, tuples, booleans": (MIXED, {}),
    "only environments": ([{"env": "A-v0"}, {"env": "B-v0"}], {}),
    "one seed": (product(learning_rate=RATES, num_envs=[4, 8]), dict(seeds=1)),
    "no trial finite": (product(learning_rate=RATES), dict(is_finite=False)),
    "no points yet": (product(learning_rate=RATES), dict(points=1)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_for_every_kind_of_sweep(kind):
    settings, more = KINDS[kind]
    found = read(sweep(settings, **more), listed(settings), title=f"<script>{kind}</script>")
    assert found.tags.count("script") == 2 and f"<script>{kind}</script>" in found.text
    if kind == "strings, tuples, booleans":
        assert "<script>alert(1)</script>" in found.text, "as text, not as an element"
        assert found.settings == set(range(len(settings)))
        assert (
            "Return over hidden_sizes" in found.heads and "Best of k random settings" in found.heads
        )
        assert not any(" and " in head for head in found.heads if "curves" not in head), "no pairs"
    if kind == "no trial finite":
        assert "no trial has a finite result" in found.text


def test_a_section_for_each_environment():
    settings = product(env=["A-v0", "B/../v0"], learning_rate=RATES, num_envs=[4, 8])
    ranked = sweep(settings)
    found = read(ranked, listed(settings))
    assert found.tags.count("section") == 2 and found.heads.count("Learning curves") == 2
    assert found.settings == set(range(12)) == set(found.rows) and "best-B-..-v0.json" in found.text
    names = [one["name"] for one in found.data]
    assert len(names) == 12 and names[:6] != names[6:] and "env=" not in "".join(names)


def test_stopped_chunks_have_curves_of_their_own_lengths():
    rows = [trial(one, seed, 5.0 + i, 2 + i) for i, one in enumerate(draws(12)) for seed in (0, 1)]
    found = read(results.rank(rows), DRAWS)
    assert found.settings == set(range(12)) and "steps" in found.text


def test_hundreds_of_settings_are_thinned_out():
    settings = [one | {f"x{i}": one["gamma"] * i for i in (1, 2)} for one in draws(400)]
    ranked = sweep(settings)
    found = read(ranked, DRAWS)
    shown = found.settings
    assert found.size < 1.5e6 and "at most 300 of the 400 settings" in found.text
    assert set(range(100)) < shown and max(shown) == 399 and len(shown) < 320


def test_a_tail_of_bad_scores_does_not_hide_the_others():
    scale = svg.scores_scale(np.array([-1e7, *np.linspace(90, 100, 30)]))
    assert 85 < scale.low < 91 and scale.high == 100
    wide = np.linspace(-300, 500, 31)
    assert svg.scores_scale(wide)[:2] == (-300, 500)
    assert svg.colour_steps(np.array([-300.0, 500.0, np.nan, 100.0])).tolist() == [0, 8, -1, 4]


def test_edges_of_an_axis():
    settings = [one | {"learning_rate": 10 ** (-4 + i / 15)} for i, one in enumerate(draws(30))]
    rising = lambda one: np.log(one["learning_rate"])
    found = one_study(sweep(settings, score=rising), DRAWS)
    ends = {name: landscapes.edge(found, axis) for name, axis in found.axes.items()}
    assert ends["learning_rate"] == "high"
    falling = one_study(sweep(settings, score=lambda one: -rising(one)), DRAWS)
    assert landscapes.edge(falling, falling.axes["learning_rate"]) == "low"
    for score, limits in ((rising, (0.0, 1e-2)), (lambda one: -rising(one), (1e-4, np.inf))):
        ranked = sweep(settings, score=score)
        (at_limit,) = study.studies(ranked, DRAWS, {"learning_rate": limits})
        assert landscapes.edge(at_limit, at_limit.axes["learning_rate"]) == "", "nothing is beyond"
    middle = one_study(sweep(settings), DRAWS)
    assert landscapes.edge(middle, middle.axes["learning_rate"]) == ""


def test_no_count_below_one_is_recommended():
    settings = product(num_envs=[1, 2, 4, 8], gamma=[0.9, 0.99, 0.999])
    found = one_study(sweep(settings, score=lambda one: -one["num_envs"]), listed(settings))
    assert landscapes.edge(found, found.axes["num_envs"]) == ""
    two = product(num_envs=[2, 4, 8], gamma=[0.9, 0.99, 0.999])
    found = one_study(sweep(two, score=lambda one: -one["num_envs"]), listed(two))
    assert landscapes.edge(found, found.axes["num_envs"]) == "low"


# --- in a sweep ------------------------------------------------------------------------------


def test_a_sweep_leaves_its_report_and_survives_one_that_fails(tmp_path, monkeypatch, capsys):
    config = toy.Config(total_timesteps=200, num_evals=4)
    grid = {"learning_rate": [0.1, 0.2, 0.3], "gamma": [0.9, 1.0]}
    launch.sweep(toy, config, grid, num_seeds=2, sweep_dir=tmp_path / "x")
    text = (tmp_path / "x" / "report.html").read_text()
    found = Page(text)
    assert "toy on CartPole-v1" in found.text and len(found.data) == 6
    links = re.findall(r'<a href="(.*?)">', text)
    assert len(links) == 2 and all((tmp_path / "x" / name).exists() for name in links)
    command = f"{settings_module.command_of(toy)} --config {tmp_path}"
    assert "of training, " in text and command in text
    first = found.data[0]
    rows = (tmp_path / "x" / "results.csv").read_text().splitlines()[1:]
    numbers = [row.split(",")[0] for row in rows if row.split(",")[1:3] == settings_of(first)]
    assert [str(one[3]) for one in first["trials"]] == numbers

    limits = []

    def fail(*given):
        limits.append(given[6])
        raise ZeroDivisionError("a corner")

    monkeypatch.setattr(page, "page", fail)
    swept = launch.sweep(toy, config, grid, num_seeds=2, sweep_dir=tmp_path / "y", quiet=False)
    assert "report.html was not written: ZeroDivisionError: a corner" in capsys.readouterr().err
    assert len(swept.ranked) == 6 and (tmp_path / "y" / "best.json").exists()
    assert not (tmp_path / "y" / "report.html").exists() and not swept.unsaved
    assert limits[-1]["gamma"] == (0, 1) and limits[-1]["learning_rate"][0] == 0


def settings_of(entry):
    """Learning rate and gamma of a setting, as results.csv has them."""
    return re.findall(r"=([\d.]+)", entry["name"])


def test_another_objective_is_named_and_final_returns_are_compared():
    """The worst seeds of 0.01 are better, its mean is not."""
    settings = product(learning_rate=[1e-3, 1e-2])
    finals = {(1e-3, 0): 0.0, (1e-3, 1): 100.0, (1e-2, 0): 40.0, (1e-2, 1): 41.0}
    trials = [trial(one, s, finals[one["learning_rate"], s]) for one in settings for s in (0, 1)]
    ranked = results.rank(trials, "worst_seed")
    assert ranked[0].setting == {"learning_rate": 1e-2}
    text = page.page(ranked, "title", ".", listed(settings), (), "worst_seed")
    assert "The sweep ranks by worst_seed: learning_rate=0.01 is first." in text
    assert "learning_rate=0.001" in str(Page(text).data[0])
    assert "--config" not in text, "best.json has another setting"
    fresh = [trial(one, 9, final) for one, final in zip(settings, (7.0, 8.0))]
    again = results.retests(ranked, fresh, "worst_seed")[::-1]
    text = Page(page.page(ranked, "title", ".", listed(settings), again, "worst_seed")).text
    assert "Setting 2 is the best one on 1 fresh seed (learning_rate=0.01)" in text
    fresh = [trial(one, 9, final) for one, final in zip(settings, (9.0, 8.0))]
    again = results.retests(ranked, fresh, "worst_seed")
    text = page.page(ranked, "title", ".", listed(settings), again, "worst_seed")
    assert "ranks by worst_seed: learning_rate=0.001 is first on fresh seeds. This" in text
    text = page.page(ranked, "title", "runs/x", listed(settings), suffix="-worst_seed")
    assert "runs/x/best-worst_seed.json" in text, "a second ranking has its own file"
    assert "ranking is by" in page.page(ranked, "t", ".", {}, (), "worst_seed", {}, "-worst_seed")
    assert "ranks by" not in page.page(ranked, "title", ".", listed(settings))


@pytest.mark.parametrize("seconds, drawings", [(60.0, 2), (0.0, 3)])
def test_pictures_do_not_take_the_time_of_many_chunks(seconds, drawings, tmp_path, monkeypatch):
    """The first of three chunks and the end draw; those between do if enough time has passed."""
    drawn = []
    monkeypatch.setattr(plots, "sweep", lambda ranked, *_: drawn.append(len(ranked)))
    monkeypatch.setattr(page, "page", lambda *_: "")
    monkeypatch.setattr(loop, "DRAW_SECONDS", seconds)
    config, grid = toy.Config(total_timesteps=200, num_evals=4), {"gamma": [0.9, 0.95, 1.0]}
    launch.sweep(toy, config, grid, max_parallel=1, sweep_dir=tmp_path / "x")
    assert drawn == [1, 2, 3][:: 4 - drawings]
    assert len((tmp_path / "x" / "results.csv").read_text().splitlines()) == 1 + 3


def test_the_page_says_what_so_many_seeds_can_tell():
    one, few, many = map(table.meaning, (1, 9, 10))
    assert "no interval" in one and "95" not in one
    assert "t interval" in few and "bootstrap interval" in many
