"""Returns over a grid of parameters: on an environment whose returns are their sum."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment, spaces

import envs
from algorithms import launch
from algorithms.launch import console
from algorithms.launch.engine import loading
from algorithms.launch.engine.errors import UserError
from algorithms.launch.tools import robustness as grid
from envs import randomized
from tests.algorithms.launch import toy

pytestmark = pytest.mark.usefixtures("quick_pictures", "shared_programs")
WORDS = "a:uniform:1:3/b:log:1:100"


@struct.dataclass
class Numbers:
    a: float = 2.5
    b: float = 10.0
    max_steps_in_episode: int = 9


@struct.dataclass
class Time:
    time: jax.Array
    start: jax.Array


class Sum(environment.Environment):
    """A step pays a + 10 b + 1000 start + 100000 action, an episode lasts two steps."""

    default_params = Numbers()
    num_actions = 2

    def reset_env(self, key, params):
        return jnp.ones(1), Time(jnp.zeros((), jnp.int32), jax.random.bernoulli(key) * 1.0)

    def step_env(self, key, state, action, params):
        reward = params.a + 10 * params.b + 1000 * state.start + 100_000 * action
        return jnp.ones(1), state.replace(time=state.time + 1), reward, state.time >= 1, {}

    def is_truncated(self, state, params):
        return jnp.zeros((), bool)

    def is_terminated(self, state, params):
        return state.time > 1

    def action_space(self, params):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(0, 1, (1,), jnp.float32)


NAME = f"{__name__}:Sum"
TINY = toy.Config(env=NAME, total_timesteps=20, num_evals=1, num_eval_episodes=0)


@pytest.fixture(scope="module", autouse=True)
def module_by_name():
    with pytest.MonkeyPatch.context() as patch:
        find = loading.find_module
        patch.setattr(loading, "find_module", lambda name: toy if name == "toy" else find(name))
        yield


@pytest.fixture(scope="module")
def runs(quick_pictures, shared_programs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid")
    seen = (("randomize", WORDS), ("observe_randomized", True))
    launch.run(toy, TINY, num_seeds=3, run_dir=folder / "plain")
    ranged = TINY.replace(env_settings=(("randomize", WORDS), ("max_steps", 5)))
    launch.run(toy, ranged, num_seeds=2, run_dir=folder / "ranged")
    launch.run(toy, TINY.replace(env_settings=seen), run_dir=folder / "seen")
    launch.run(toy, TINY.replace(env="CartPole-v1"), run_dir=folder / "pole")
    other = TINY.replace(env_settings=(("randomize", "a:uniform:1:2"),))
    launch.run(toy, other, run_dir=folder / "other")
    return folder


def action_of(run, trial):
    """What the policy takes, which is the same at every step."""
    loaded = loading.load(run, trial=trial)
    return int(loaded.state.policy["weights"].sum() > 0)


def test_returns_of_every_cell(runs):
    found = grid.grid([runs / "plain", runs / "ranged"], WORDS, values=3, episodes=4, seed=1)
    expected = [(a, b) for a in (1, 2, 3) for b in (1, 10, 100)]
    np.testing.assert_allclose(found.values, expected, rtol=1e-5)
    for row, run, count in zip(found.rows, ("plain", "ranged"), (3, 2)):
        assert row.name == str(runs / run) and row.cells.shape == (count, 9)
        for trial in range(count):
            gained = row.cells[trial] - 200_000 * action_of(runs / run, trial)
            start = gained - 2 * (found.values @ [1, 10])
            np.testing.assert_allclose(start, start[0], atol=0.1)  # all cells start alike
            assert start[0] % 500 == pytest.approx(0, abs=0.1) and 0 <= start[0] <= 2000
            default = row.default[trial] - 200_000 * action_of(runs / run, trial)
            np.testing.assert_allclose(default - start[0], 2 * (2.5 + 100), atol=0.1)


def test_a_parameter_that_a_run_set_can_be_the_grid_s(tmp_path):
    """Its own value is the default."""
    launch.run(toy, TINY.replace(env_settings=(("a", 2.0),)), run_dir=tmp_path / "run")
    found = grid.grid([tmp_path / "run"], "a:uniform:1:5", values=2, episodes=1)
    start, other = found.rows[0].cells[0]
    np.testing.assert_allclose(found.rows[0].default[0] - start, (other - start) / 4, rtol=1e-4)


def test_episodes_seeds_and_points(runs):
    """Half of the episodes start at 1000, in each of their two steps. At point 0 all act alike."""
    found = {
        (seed, point): grid.grid(
            [runs / "plain"], WORDS, values=2, episodes=64, seed=seed, point=point
        ).rows[0]
        for seed, point in ((0, 0), (1, 0), (0, "last"))
    }
    starts = found[0, 0].cells[0] - 2 * np.array([11.0, 1001.0, 13.0, 1003.0])
    assert 600 < starts[0] < 1400 and starts[0] % 2000 != 0
    assert (found[0, 0].cells[0] != found[1, 0].cells[0]).all()
    assert (found[0, 0].cells < 100_000).all(), "the first policy takes action 0"
    taken = [action_of(runs / "plain", trial) for trial in range(3)]
    assert any(taken) and ((found[0, "last"].cells[:, 0] > 200_000) == taken).all()


def test_the_first_run_gives_the_ranges(runs):
    found = grid.grid([runs / "ranged", runs / "plain"], values=2, episodes=1)
    assert [one.name for one in found.ranges] == ["a", "b"]
    np.testing.assert_allclose(found.values, [(1, 1), (1, 100), (3, 1), (3, 100)], rtol=1e-5)


def test_parameters_that_a_policy_sees_are_those_of_the_cell(runs):
    """This policy's action turns with the sum of what it sees."""
    found = grid.grid([runs / "seen"], values=5, episodes=1)
    loaded = loading.load(runs / "seen")
    shares = [[r.share(v) for r, v in zip(found.ranges, cell)] for cell in found.values]
    sums = 1 + (2 * np.array(shares) - 1).sum(1)
    clear = np.abs(sums) > 1e-3
    expected = loaded.state.policy["weights"].sum() * sums > 0
    assert {True, False} <= set((sums[clear] > 0).tolist())
    np.testing.assert_array_equal(found.rows[0].cells[0][clear] > 200_000 - 1, expected[clear])


def test_worst_tenth_is_the_mean_of_the_lowest_cells():
    cells = np.random.default_rng(0).normal(size=(3, 25))
    row = grid.Row("run", cells, np.zeros(3))
    np.testing.assert_allclose(row.worst_tenth, [np.sort(one)[:3].mean() for one in cells])


def test_table(runs):
    values = np.array([[1.0, 10.0], [2.0, 10.0]])
    ranges = randomized.ranges("it", Numbers(), WORDS, ())
    many = grid.Row("many", np.array([[1.0, 5.0], [3.0, 1.0]]), np.array([7.0, 9.0]))
    text = grid.Grid(ranges, values, [many], "title").text
    assert text.startswith("title\n\n") and "95 % of the mean (t)" in text
    line = next(line for line in text.split("\n") if line.startswith("many"))
    cells = [cell for cell in line.split("  ") if cell.strip()]
    assert [cell.split(" (")[0].strip() for cell in cells[1:6]] == ["2", "8", "2.5", "1", "2"]
    assert cells[3].strip() == "2.5 (-3.853 to 8.853)" and cells[6].strip() == "a=1 b=10"
    alone = many._replace(cells=many.cells[:1], default=many.default[:1])
    assert "95 %" not in grid.Grid(ranges, values, [alone], "title").text


def test_settings_of_a_sweep_are_rows_of_their_own(runs, tmp_path):
    sweep = {"gamma": [0.9, 0.99]}
    launch.sweep(toy, TINY, sweep, num_seeds=2, sweep_dir=tmp_path / "sweep")
    found = grid.grid([tmp_path / "sweep"], WORDS, values=2, episodes=1)
    chunk = tmp_path / "sweep" / "chunk_000"
    assert [row.name for row in found.rows] == [f"{chunk} gamma=0.9", f"{chunk} gamma=0.99"]
    assert all(row.cells.shape == (2, 4) for row in found.rows)


def test_command(runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["grid", str(runs / "plain"), "--randomize", WORDS, "--values", "2", "--episodes", "1"]
    console.main([*words, "--out", "new.png", "--csv", "new.csv"])
    out = capsys.readouterr().out
    assert "in each of 4 cells: 2 values of a from 1 to 3 and of b from 1 to 100 (log)" in out
    assert Path("new.png").stat().st_size > 5000 and out.endswith("picture in new.png\n")
    lines = Path("new.csv").read_text().split("\n")
    assert lines[0] == "run,trial,a,b,return" and len(lines) == 1 + 3 * 4 + 1
    cells = grid.grid([runs / "plain"], WORDS, values=2, episodes=1).rows[0].cells
    written = [float(line.split(",")[-1]) for line in lines[1:-1]]
    np.testing.assert_allclose(written, cells.ravel(), rtol=1e-4)
    assert lines[2].startswith(f"{runs / 'plain'},0,1,100,")
    with pytest.raises(SystemExit) as stop:
        console.main([*words, "--out", "new.png"])
    assert stop.value.code == 2 and "new.png exists" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["a:uniform:1:3", "a:uniform:1:3/b:log:1:9/c:uniform:0:1"])
def test_pictures_of_other_numbers_of_parameters(words, tmp_path):
    ranges = [randomized.Range(w.split(":")[0], "log" in w, 1.0, 3.0) for w in words.split("/")]
    shares = grid._shares(len(ranges), 3)
    values = np.array([[r.value(s) for r, s in zip(ranges, cell)] for cell in shares])
    rows = [grid.Row("one", np.ones((2, len(values))), np.ones(2))]
    rows.append(grid.Row("two", np.zeros((1, len(values))), np.zeros(1)))
    grid.draw(grid.Grid(tuple(ranges), values, rows, "title"), tmp_path / "new.png")
    assert (tmp_path / "new.png").stat().st_size > 5000


@pytest.mark.parametrize(
    "run, others, message",
    [
        (["plain"], {}, "plain was not trained on ranges: give some, --randomize length="),
        (["plain"], {"randomize": "c:uniform:1:2"}, "unknown parameter of .* 'c'"),
        (["plain"], {"randomize": WORDS, "values": 1}, "--values 1: give 2 or more"),
        (["plain"], {"randomize": WORDS, "episodes": 0}, "--episodes 0: give 1 or more"),
        (["plain"], {"randomize": WORDS, "seed": -1}, "seed=-1: seeds go from 0"),
        (["plain"], {"randomize": WORDS, "values": 101}, "10201 cells .* give 100 or less"),
        (["plain", "pole"], {"randomize": WORDS}, "plain is a run of .*Sum and .*pole is a run of"),
        (["seen"], {"randomize": "a:uniform:1:2"}, "leave --randomize out"),
        (["other", "seen"], {}, "the ranges a:uniform:1:2 of .*other: .*give it a grid of its own"),
        (["nowhere"], {}, "nowhere"),
    ],
)
def test_refusals(runs, run, others, message):
    with pytest.raises(UserError, match=message):
        grid.grid([runs / name for name in run], **others)


def test_too_many_parameters_are_refused_with_a_number_of_values_that_works():
    with pytest.raises(UserError, match="with 13 parameters; give 2 or less"):
        grid._shares(13, 3)
    with pytest.raises(UserError, match="with 14 parameters; give ranges of fewer"):
        grid._shares(14, 2)


def test_pinned_parameters_hold_under_other_wrappers():
    env, params = envs.make("CartPole-v1", randomize="length:uniform:0:10", frame_stack=2)
    fixed = randomized.pinned(env, jnp.array([0.25]))
    for key in jax.random.split(jax.random.key(0), 3):
        state = fixed.reset_env(key, params)[1]
        wrapper = randomized.of(fixed)
        inner = state
        while not isinstance(inner, randomized.RandomizedState):
            inner = inner.inner
        assert wrapper.drawn(inner, params).length == 2.5
    assert randomized.of(env).pinned is None, "the original draws on"
    assert randomized.of(envs.make("CartPole-v1")[0]) is None


@pytest.mark.parametrize("is_log", [False, True])
def test_share_is_the_inverse_of_value(is_log):
    one = randomized.Range("a", is_log, 0.5, 8.0)
    if is_log:
        assert one.value(one.share(0.0)) == 0.0 and np.isnan(one.share(-1.0))
    for share in (-0.5, 0.0, 0.3, 1.0, 1.5):
        assert one.share(float(one.value(share))) == pytest.approx(share)
