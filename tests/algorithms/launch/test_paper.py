"""Figures and tables for papers: the numbers in them, their form, and what is refused."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from algorithms.launch.engine import intervals, plots
from algorithms.launch.engine.errors import UserError
from algorithms.launch.tools import compare, comparison, figures, paper, tables
from tests.algorithms.launch.test_compare import call, trial, write_run

KEPT = Path(__file__).parent / "kept"


def read_csv(path):
    return list(csv.DictReader(Path(path).read_text().splitlines()))


def ramps(*finals, points=5):
    return np.linspace(0.0, finals, points).T


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two algorithms on two environments, five seeds each; a has two settings on A-v0."""
    monkeypatch.chdir(tmp_path)
    for env, scale in (("A-v0", 100.0), ("B-v0", -1.0)):
        better, worse = np.array([5, 6, 5, 6, 7.0]) * scale, np.array([1, 1, 2, 1, 2.0]) * scale
        write_run(Path(f"a-{env}"), ramps(*better), env=env, algorithm="a", gamma=0.9)
        write_run(Path(f"b-{env}"), ramps(*worse), env=env, algorithm="b")
    write_run(Path("other"), ramps(150.0, 250.0), env="A-v0", algorithm="a", gamma=0.5)
    return ["a-A-v0", "a-B-v0", "b-A-v0", "b-B-v0"]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would have been written."""
    kept = []

    def save(figure, path, **how):
        figure.draw_without_rendering()
        kept.append(figure)

    monkeypatch.setattr(plots, "save", save)
    return kept


# --- formulas ----------------------------------------------------------------------------------


def resampled(strata, statistic, count=3000):
    """95 % of a statistic of strata that are drawn anew, in plain loops."""
    rng = np.random.default_rng(7)
    values = [
        statistic([s[rng.integers(len(s), size=len(s))] for s in strata]) for _ in range(count)
    ]
    return np.percentile(values, [2.5, 97.5], axis=0)


def test_a_profile_is_the_share_of_runs_above_each_score():
    rng = np.random.default_rng(0)
    strata, taus = [rng.random(7), rng.random(12) ** 2], np.linspace(0, 1, 5)

    def share(drawn):
        runs = [score for stratum in drawn for score in stratum]
        return [sum(score > tau for score in runs) / len(runs) for tau in taus]

    found = comparison.profile(strata, taus)
    np.testing.assert_allclose(found[0], share(strata))
    np.testing.assert_allclose(found[1:], resampled(strata, share), atol=0.03)
    assert (found[1] <= found[0]).all() and found.shape == (3, 5)
    at_ties = comparison.profile([np.array([0.5, 1.0])], np.array([0.5]))
    assert at_ties[0] == 0.5, "a score at tau is not above it"


def test_improvement_is_the_share_of_pairs_in_each_environment():
    """Of environments with different numbers of seeds, and with ties."""
    rng = np.random.default_rng(1)
    first = [rng.integers(0, 6, 9).astype(float), rng.normal(0.5, 1.0, 5)]
    second = [rng.integers(0, 5, 4).astype(float), rng.normal(0.0, 1.0, 11)]

    def probability(drawn):
        of_environments = []
        for mine, theirs in zip(drawn[:2], drawn[2:]):
            pairs = [(x > y) + 0.5 * (x == y) for x in mine for y in theirs]
            of_environments.append(sum(pairs) / len(pairs))
        return sum(of_environments) / 2

    found = comparison.improvement(first, second)
    assert found.middle == pytest.approx(probability([*first, *second]))
    ends = resampled([*first, *second], probability)
    np.testing.assert_allclose([found.low, found.high], ends, atol=0.03)
    assert comparison.improvement(second, first).middle == pytest.approx(1 - found.middle)
    assert comparison.improvement(first, first).middle == pytest.approx(0.5)


def test_one_seed_of_an_environment_has_no_interval():
    """The bootstrap would draw it again and again, which looks certain."""
    one, two = [np.array([0.5]), np.array([0.2, 0.4])], [np.array([0.1, 0.9]), np.array([0.3, 0.7])]
    taus = np.array([0.3, 0.6])
    for strata in (one, one[:1] * 2):
        assert np.isnan(comparison.middle_score(strata)[1:]).all()
        assert np.isnan(comparison.improvement(strata, two)[1:]).all()
        assert np.isnan(comparison.profile(strata, taus)[1:]).all()
    assert np.isfinite(comparison.improvement(two, two)).all()
    assert comparison.middle_score(two) == (0.5, *intervals.bootstrap_interval(two))


def test_scores_are_between_given_returns():
    finals = {"A-v0": [0.0, 5.0], "B-v0": [-100.0, -50.0], "C-v0": [7.0, 7.0]}
    trials = [trial(x, i, env=env) for env, xs in finals.items() for i, x in enumerate(xs)]
    panels = comparison.curves(trials)
    found = comparison.scores(panels)
    assert found.environments == ["A-v0", "B-v0"], "all returns on C-v0 are equal"
    assert [s.tolist() for s in found.strata["toy"]] == [[0.0, 1.0], [0.0, 1.0]]
    bounds = {"A-v0": (0.0, 10.0), "B-v0": (-200.0, 0.0), "C-v0": (0.0, 7.0)}
    found = comparison.scores(panels, bounds)
    assert [s.tolist() for s in found.strata["toy"]] == [[0.0, 0.5], [0.5, 0.75], [1.0, 1.0]]
    text = comparison.aggregate(panels, bounds)
    assert "0 to 1 for returns of A-v0 0 to 10, B-v0 -200 to 0, C-v0 0 to 7" in text
    scores = np.array([0.0, 0.5, 0.5, 0.75, 1.0, 1.0])
    assert f"{intervals.interquartile_mean(scores):.4f}" in text


# --- which curves ------------------------------------------------------------------------------


def test_curves_are_chosen_named_and_in_the_order_of_the_flags(runs, capsys):
    words = ["b=Base", "a, gamma=0.9=Best, of a", "a=Best, of a"]
    flags = [word for one in words for word in ("--curve", one)]
    code, out, err = call(capsys, *runs, "other", *flags)
    assert (code, err) == (0, "")
    labels = re.findall("^  (Base|Best, of a|a.*?) ", out, re.M)
    assert labels == ["Base", "Best, of a"] * 2, "a=0.5 is left out"
    assert "over A-v0, B-v0" in out, "one name in all environments"
    named = dict(one.rsplit("=", 1) for one in words)
    assert compare.compare([*runs, "other"], curve=named).text == out.partition("\n\ncurves are")[0]


def test_a_label_is_a_name_by_default(runs):
    (panel,) = compare.compare(["other", "a-A-v0"], curve=["a, gamma=0.5"]).panels.values()
    assert [curve.label for curve in panel] == ["a, gamma=0.5"]
    panels = comparison.curves([trial(1, 0, algorithm="x"), trial(1, 0, algorithm="x=y")])
    assert paper._names(["x=y=Z"], panels) == {"x=y": "Z"}, "the longest label that fits"


# --- tables ------------------------------------------------------------------------------------


def test_the_csv_has_what_the_table_on_the_screen_has_and_steps_to_a_return(runs, capsys):
    """a reaches 500 on A-v0 with all five seeds, two of them only at the last of four points."""
    flags = ["--table", "t.csv", "--threshold", "A-v0=500"]
    code, out, err = call(capsys, *runs, *flags)
    assert (code, err) == (0, "") and "table in t.csv\ncaption: Final evaluation return" in out
    rows = {(row["environment"], row["curve"]): row for row in read_csv("t.csv")}
    a = rows["A-v0", "a"]
    found = intervals.estimate(np.array([500.0, 600, 500, 600, 700]))
    numbers = [float(a[name]) for name in ("return", "return low", "return high")]
    np.testing.assert_allclose(numbers, found, rtol=1e-6)
    assert (a["statistic"], a["seeds"], a["of"], a["steps"]) == ("mean", "5", "5", "400")
    steps = intervals.estimate(np.array([400.0, 400, 400, 400, 300]))
    numbers = [float(a[f"steps to it{end}"]) for end in ("", " low", " high")]
    np.testing.assert_allclose(numbers, steps, rtol=1e-6)
    assert float(a["share reached"]) == 1.0 and float(a["threshold"]) == 500.0
    assert float(rows["A-v0", "b"]["share reached"]) == 0.0
    assert rows["B-v0", "a"]["threshold"] == "nan"
    score = rows["all environments", "b"]
    assert (score["statistic"], score["seeds"]) == ("IQM of scores", "5+5")
    assert re.search(r"^A-v0 +a +500 +1 +380.0 +324.5 to 435.5$", out, re.M), out
    assert re.search(r"^A-v0 +b +500 +0 +- +-$", out, re.M) and not re.search("^all env", out, re.M)
    code, out, _ = call(capsys, "b-B-v0", "--threshold", "-1")
    assert code == 0 and re.search(r"^b +-1 +1 ", out, re.M)


def test_steps_to_a_return_are_those_of_the_seeds_that_get_there():
    outcomes = [trial(10.0, 0), trial(10.0, 1), trial(4.0, 2)]  # at 0, 10, 20 steps
    (panel,) = comparison.curves(outcomes).values()
    found, share = tables.steps_to(panel[0], 5.0)
    assert (found.middle, found.low, found.high, share) == (10.0, 10.0, 10.0, 2 / 3)
    found, share = tables.steps_to(panel[0], 11.0)
    assert share == 0 and np.isnan(found).all()
    many = [trial(10.0 if i == 3 else 1.0, i) for i in range(12)]
    found, share = tables.steps_to(comparison.curves(many)["A-v0"][0], 10.0)
    assert share == 1 / 12 and found.middle == 20.0 and np.isnan(found.low)


def test_the_latex_is_a_tabular_whose_letters_are_escaped(runs, capsys):
    flags = ["--table", "t.tex", "--curve", "a=A_1 & 5% $x$", "--curve", "b=[b] ~\\"]
    code, _, err = call(capsys, *runs, *flags)
    assert (code, err) == (0, "")
    text = Path("t.tex").read_text()
    assert text.startswith("% needs \\usepackage{booktabs}\n% Final evaluation return, 5 seeds")
    lines = [line.strip() for line in text.splitlines() if not line.startswith("%")]
    assert lines[0] == r"\begin{tabular}{lrlrr}" and lines[-1] == r"\end{tabular}"
    assert lines[2] == r"curve & mean & 95\,\% & seeds & steps \\"
    assert [lines[i] for i in (1, 3, -2)] == [r"\toprule", r"\midrule", r"\bottomrule"]
    assert r"\multicolumn{5}{l}{\textit{B-v0}} \\" in lines
    first = r"A\_1 \& 5\% \$x\$ & $\mathbf{580.0}$ & [476.1, 683.9] & 5 & 400 \\"
    assert first in lines and "Scores: 0 (the lowest final return" in text
    second = r"{[}b] \textasciitilde{}\textbackslash{} & $\mathbf{-1.40}$ & [$-2.08$, $-0.72$] & 5"
    assert any(line.startswith(second) for line in lines), lines
    assert all(line.count(" & ") == 4 for line in lines if line.endswith(r"400 \\"))


def test_the_markdown_has_a_column_of_environments(runs, capsys):
    assert call(capsys, *runs, "--table", "t.md", "--curve", "a=x|y", "--curve", "b")[0] == 0
    lines = Path("t.md").read_text().splitlines()
    assert lines[:2] == [
        "| environment | curve | mean | 95 % | seeds | steps |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    assert lines[2] == r"| A-v0 | x\|y | **580.0** | [476.1, 683.9] | 5 | 400 |"


@pytest.mark.parametrize(
    "found, winner",
    [
        ([(5, 4, 6), (1, 0, 3.9)], 0),
        ([(1, 0, 4), (5, 4.1, 6)], 1),
        ([(5, 4, 6), (1, 0, 4)], None),
        ([(5, 4, 6), (1, 0, 2), (4, 3, 5)], None),
        ([(5, np.nan, np.nan), (1, 0, 2)], None),
        ([(5, 4, 6), (1, np.nan, np.nan)], None),
        ([(5, 4, 6), (np.nan, np.nan, np.nan)], None),
        ([(5, 4, 6), (1, 0, 3), (np.nan, np.nan, np.nan)], 0),
        ([(5, 4, 6)], None),
    ],
)
def test_bold_is_the_best_one_whose_interval_lies_above_all_others(found, winner):
    assert tables.best([intervals.Estimate(*one) for one in found]) == winner


def test_probabilities_of_improvement_are_printed_and_written(runs, capsys):
    for name in ("i.tex", "i.csv", "i.md"):
        code, out, err = call(capsys, *runs, "--improvement", name)
        assert (code, err) == (0, "") and f"probabilities in {name}" in out
    assert re.search(r"^a +b +0\.500 +0\.500 to 0\.500$", out, re.M), "a wins on A, b on B"
    (row,) = read_csv("i.csv")
    assert (row["curve"], row["better than"], float(row["probability"])) == ("a", "b", 0.5)
    assert "a & b & 0.500 & [0.500, 0.500]" in Path("i.tex").read_text()
    assert "| a | b | 0.500 | [0.500, 0.500] |" in Path("i.md").read_text()


# --- figures -----------------------------------------------------------------------------------


def overlap(figure):
    """Whether a legend covers a panel."""
    (legend,) = figure.legends
    box = legend.get_window_extent()
    return any(box.overlaps(ax.get_tightbbox()) for ax in figure.axes)


def test_a_curve_is_the_estimate_of_the_table_and_the_legend_covers_none(runs, drawn):
    compared = compare.compare([*runs, "other"], out="x.pdf")
    (figure,) = drawn
    assert [ax.get_title() for ax in figure.axes] == ["A-v0", "B-v0"] and not overlap(figure)
    for ax, panel in zip(figure.axes, compared.panels.values()):
        for line, curve in zip(ax.lines, panel):
            expected = [intervals.estimate(row, curve.seeds).middle for row in curve.returns]
            np.testing.assert_allclose(line.get_ydata(), expected)
            np.testing.assert_array_equal(line.get_xdata(), curve.timesteps)
            assert line.get_ydata()[-1] == curve.middle
        low, high = ax.get_ylim()
        everything = np.concatenate([curve.returns.ravel() for curve in panel])
        assert low < everything.min() and high > everything.max()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["a, gamma=0.9", "a, gamma=0.5", "b", "a"]
    colours = {line.get_label(): line.get_color() for ax in figure.axes for line in ax.lines}
    assert len(set(colours.values())) == 4


def test_with_broken_seeds_a_curve_is_still_what_the_table_says(drawn, tmp_path):
    finals = [*np.arange(9.0) ** 2, np.nan]
    run, table = write_run(tmp_path / "r", ramps(*finals)), tmp_path / "t.md"
    compared = compare.compare([run], out=tmp_path / "x.pdf", table=table)
    (curve,) = compared.panels["A-v0"]
    (ax,) = drawn[0].axes
    assert curve.estimate.middle == intervals.interquartile_mean(np.arange(9.0) ** 2)
    assert ax.lines[0].get_ydata()[-1] == curve.estimate.middle
    assert not drawn[0].legends and not ax.get_title(), "a single curve needs neither"
    assert table.read_text().startswith("| curve | IQM | 95 % | seeds | of | steps |\n")
    assert "| 9 | 10 | 400 |" in table.read_text()
    caption, _ = [line for line in compared.made if line.startswith("caption")]
    assert "10 seeds for each curve, 400 steps" in caption
    assert "interquartile mean and its 95 % bootstrap interval" in caption
    assert "1 seed without a finite return left out" in caption


def test_many_curves_differ_in_colour_and_in_dashes():
    labels = [f"curve {i}" for i in range(42)]
    styles = figures._styles([labels], figures.Look())
    assert len({(s["color"], str(s["linestyle"])) for s in styles.values()}) == 42
    few = figures._styles([["x", "y"], ["y", "z"]], figures.Look(order=["z", "x", "y"]))
    assert list(few) == ["z", "x", "y"] and {s["linestyle"] for s in few.values()} == {"solid"}
    assert few["z"]["color"] == plots.COLOURS[0]
    six = figures._styles([labels[:6]], figures.Look())
    assert len({str(style["linestyle"]) for style in six.values()}) == 6, "grey tells them apart"


@pytest.mark.parametrize("width, inches", [("single", 3.25), ("double", 6.75), ("4.5", 4.5)])
def test_a_figure_is_as_wide_as_asked(runs, capsys, drawn, width, inches):
    names = [f"a={'a long name ' * 4}", "b=b $x$"]  # the second is no formula
    flags = [word for name in names for word in ("--curve", name)]
    code, _, err = call(capsys, *runs, *flags, "--out", "x.png", "--width", width)
    assert (code, err) == (0, "")
    assert drawn[0].get_size_inches()[0] == inches and not overlap(drawn[0])
    extent = drawn[0].legends[0].get_window_extent()
    assert extent.x0 >= 0 and extent.x1 <= drawn[0].bbox.x1
    assert not any(text.get_parse_math() for text in drawn[0].legends[0].get_texts())


def test_the_ending_is_the_format_and_fonts_are_embedded(runs, capsys):
    for font, first in (("serif", "STIXGeneral"), ("sans", "DejaVuSans")):
        code, out, err = call(capsys, *runs, "--out", f"{font}.pdf", "--font", font, "--width", "3")
        assert (code, err) == (0, "") and f"curves in {font}.pdf\ncaption: Learning" in out
        text = Path(f"{font}.pdf").read_bytes()
        assert text.startswith(b"%PDF") and b"/FontFile2" in text and b"/Type3" not in text
        assert first.encode() in text and b"/MediaBox [ 0 0 216 " in text, "3 inches"
    flags = ["--width", "3", "--font", "sans"]
    call(capsys, *runs, "--out", "again.pdf", *flags)
    assert Path("again.pdf").read_bytes() == text, "equal numbers give equal files"
    code, _, _ = call(capsys, *runs, "--out", "x.svg", "--profile", "x.png")
    assert code == 0 and 'width="486pt"' in Path("x.svg").read_text()
    assert "<text" not in Path("x.svg").read_text(), "outlines, which need no font"
    with Image.open("x.png") as picture:
        assert picture.format == "PNG" and picture.width == 975, "3.25 inches with 300 dots each"


def test_profiles_are_drawn_over_scores(runs, capsys, drawn):
    flags = ["--normalize", "A-v0=0:1000", "--normalize", "B-v0=-10:0", "--profile", "p.pdf"]
    code, out, err = call(capsys, *runs, *flags)
    assert (code, err) == (0, "") and "0 to 1 for returns of A-v0 0 to 1000" in out
    (ax,) = drawn[0].axes
    assert not overlap(drawn[0]) and [line.get_label() for line in ax.lines] == ["a", "b"]
    a = np.concatenate([[0.5, 0.6, 0.5, 0.6, 0.7], [0.5, 0.4, 0.5, 0.4, 0.3]])
    line = dict(zip(ax.lines[0].get_xdata().round(2), ax.lines[0].get_ydata()))
    for tau in (0.25, 0.45, 0.65):
        assert line[tau] == (a > tau).mean()


def test_more_curves_than_are_told_apart_are_drawn_only_if_asked_for(capsys, drawn, tmp_path):
    runs = [write_run(tmp_path / f"{i}", ramps(1.0 * i), gamma=0.1 * i) for i in range(1, 9)]
    code, out, _ = call(capsys, *runs, "--out", tmp_path / "x.pdf")
    assert code == 0 and "A-v0: the best 6 of 8 curves are drawn; --curve chooses others" in out
    assert len(drawn[0].axes[0].lines) == 6
    flags = [word for i in range(1, 9) for word in ("--curve", f"toy, gamma={0.1 * i:g}")]
    code, out, _ = call(capsys, *runs, "--out", tmp_path / "x.pdf", *flags)
    assert code == 0 and "the best 6" not in out and len(drawn[1].axes[0].lines) == 8


# --- what runs store ---------------------------------------------------------------------------


def add_times(run, pace, seeds=5, points=5, device="gpu NVIDIA X", commit="0123456789abcdef"):
    """The part of metrics.csv and versions.json that counts; seconds go up by `pace`."""
    rows = [f"{s},{p},{100 * p},{pace * p}" for p in range(points) for s in range(seeds)]
    text = "\n".join(["seed,point,timestep,seconds", *rows])
    Path(run, "metrics.csv").write_text(text + "\n")
    session = {"device": device, "num_devices": 1, "git_commit": commit, "git_dirty": False}
    Path(run, "versions.json").write_text(json.dumps([session]))


def test_curves_over_seconds_stand_at_the_mean_times_of_their_seeds(runs, capsys, drawn):
    for run, pace in zip(runs, (1.0, 2.0, 3.0, 4.0)):
        add_times(run, pace)
    more = write_run(Path("more"), ramps(500.0, 600.0), algorithm="a", gamma=0.9, seeds=[7, 8])
    add_times(more, 8.0, seeds=2)
    code, out, err = call(capsys, *runs, "--out", "x.pdf", "--x", "seconds")
    assert (code, err) == (0, "")
    assert "Trained with commit 0123456789. Seconds without compilation, of 5 trials at once" in out
    assert "on 1 x NVIDIA X." in out
    code, out, err = call(capsys, *runs, more, "--out", "x.pdf", "--x", "both")
    assert code == 0 and "seconds of these curves do not compare" in err
    assert "2 trials at once on 1 x NVIDIA X or 5 trials" in err
    steps, seconds, _, _ = drawn[1].axes
    assert [ax.get_xlabel() for ax in (steps, seconds)] == [
        "environment steps",
        "seconds of training",
    ]
    mean = (5 * 1.0 + 2 * 8.0) / 7
    np.testing.assert_allclose(seconds.lines[0].get_xdata(), mean * np.arange(5))
    np.testing.assert_allclose(steps.lines[0].get_ydata(), seconds.lines[0].get_ydata())


@pytest.mark.parametrize("name", ["981350f/ppo-run", "ppo-halved"])
def test_without_stored_seconds_there_is_a_sentence_and_no_file(name, capsys, tmp_path):
    out = tmp_path / "x.pdf"
    code, said, err = call(
        capsys, KEPT / name, "--out", out, "--x", "both", "--table", f"{out}.tex"
    )
    assert code == 2 and not said and "does not have the seconds of all points" in err
    assert err.count("\n") == 1 and not any(tmp_path.iterdir())


def test_a_sweep_has_the_seconds_of_its_chunks(capsys, drawn, tmp_path):
    code, _, err = call(capsys, KEPT / "ppo-sweep", "--out", tmp_path / "x.pdf", "--x", "seconds")
    assert code == 0, err
    rows = read_csv(KEPT / "ppo-sweep" / "chunk_000" / "metrics.csv")
    expected = list(dict.fromkeys(float(row["seconds"]) for row in rows))
    lines = drawn[0].axes[0].lines
    assert any(np.allclose(line.get_xdata(), expected) for line in lines)


# --- what is refused ---------------------------------------------------------------------------

REFUSED = [
    ("--out x.jpg", "--out x.jpg: give the name of a .pdf or .svg or .png"),
    ("--out there.pdf", "there.pdf exists: give the name of a new file"),
    ("--table x.txt", "--table x.txt: give the name of a .tex or .csv or .md"),
    ("--table there.tex", "there.tex exists"),
    ("--profile x.tex", "--profile x.tex: give the name of a .pdf"),
    ("--improvement x.pdf", "--improvement x.pdf: give the name of a .tex"),
    ("--out x.png --profile x.png", "x.png is asked for twice"),
    ("--out x.png --width wide", "--width wide: give single, double or inches from 1 to 20"),
    ("--out x.png --width 0.5", "--width 0.5: give single"),
    ("--out x.png --width nan", "--width nan: give single"),
    ("--width single", "--width single is of a figure: give --out or --profile too"),
    ("--profile x.png --x seconds", "--x seconds is of a figure: give --out too"),
    ("--out x.png --font comic", "--font comic: choose one of sans, serif"),
    ("--out x.png --x time", "--x time: choose one of steps, seconds, both"),
    ("--out x.png --x seconds", "does not have the seconds of all points"),
    ("--curve c", "--curve c: there is no such curve; there are a; b"),
    ("--curve a=x --curve b=x", "--curve: a and b are both x on A-v0"),
    ("--curve a=x --curve a=y", "--curve a=y: a is x already"),
    ("--threshold much", "--threshold much: give a return to reach, 475 or ENV=475"),
    ("--threshold inf", "--threshold inf: give a return"),
    ("--threshold A-v1=3", "unknown environment of --threshold A-v1=3: 'A-v1'; did you mean A-v0"),
    ("--normalize 0:1", "--normalize 0:1: give ENV=LOW:HIGH"),
    ("--normalize A-v0=3:1", "--normalize A-v0=3:1: give ENV=LOW:HIGH"),
    ("--normalize A-v0=0", "--normalize A-v0=0: give ENV=LOW:HIGH"),
    ("--normalize A-v0=0:1", "--normalize has no B-v0: give LOW:HIGH for all environments"),
    ("--out x.png --curve a --improvement x.md", "--improvement needs 2 curves in all"),
    ("--optuna sqlite:///x.db --table x.md", "--table x.md is of a comparison: leave it out"),
]


@pytest.mark.parametrize("words, message", REFUSED, ids=[words for words, _ in REFUSED])
def test_what_is_refused_is_one_line_and_writes_nothing(runs, capsys, words, message):
    for name in ("there.pdf", "there.tex"):
        Path(name).write_bytes(b"mine")
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    code, out, err = call(capsys, *runs, *words.split())
    assert code == 2 and not out and message in err and err.count("\n") == 1, err
    assert before == {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def test_python_takes_the_flags_as_values(runs):
    asked = {"threshold": 500, "normalize": {"A-v0": "0:1000", "B-v0": "-10:0"}}
    compared = compare.compare(runs, table="t.csv", curve={"a": "A", "b": "B"}, **asked)
    assert compared.picture is None and compared.made[0] == "table in t.csv"
    rows = read_csv("t.csv")
    assert [row["curve"] for row in rows] == ["A", "B"] * 3
    assert {row["threshold"] for row in rows[:4]} == {"500"}
    with pytest.raises(UserError, match="unknown argument 'tabel'; did you mean table"):
        compare.compare(runs, tabel="t.csv")
