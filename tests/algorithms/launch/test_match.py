"""Matches between saved runs, and saved runs as opponents: on a toy that plays by fixed numbers."""

import functools
import itertools
import json
import math
import shutil
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy
from flax import struct

import envs
from algorithms import alphazero, launch
from algorithms.launch.engine import loading
from algorithms.launch.engine.errors import UserError
from algorithms.launch.tools import match, render
from algorithms.parts import static
from envs import pictures
from tests.algorithms.launch import toy

pytestmark = pytest.mark.needs("pgx")


@struct.dataclass
class Config(toy.Config):
    num_simulations: int = static(1)


def make_policy(config, env=None, env_params=None):
    """The legal action with the largest weight, for any leading axes; samples are uniform."""

    def policy(state, observation, memory=None, rng=None, mask=None):
        weights = state.policy["weights"]
        if rng is not None:
            weights = jax.random.uniform(rng, mask.shape)
        return jnp.argmax(jnp.where(mask, weights, -jnp.inf), axis=-1), memory

    return policy


def make_search(config, env=None, env_params=None):
    """Plays cell number `num_simulations`, if that is legal, or else the first legal one."""

    def search(state, env_state, rng=None):
        legal = env_state.inner.legal_action_mask
        wanted = config.num_simulations
        move = jnp.where(legal[wanted], wanted, jnp.argmax(legal))
        return jnp.where(jnp.arange(2) == env_state.inner.current_player, move, 0)

    return search


def module(**own):
    """The toy with other functions; modules are static arguments, so it has to be hashable."""
    made = types.ModuleType("toy_game")
    vars(made).update(vars(toy), Config=Config, make_policy=make_policy, **own)
    return made


MODULE, SEARCHES = module(), module(make_search=make_search)
TINY = Config(
    env="pgx/tic_tac_toe",
    total_timesteps=10,
    num_evals=2,
    hidden_sizes=(9,),
    num_eval_episodes=0,
    learning_rate=1.0,
)
AGAINST = TINY.replace(env_settings=(("opponent", "random"),))


@pytest.fixture(autouse=True)
def setting(quick_curves, monkeypatch):
    monkeypatch.setattr(loading, "find_module", lambda algorithm: MODULE)


@pytest.fixture(scope="module")
def runs(quick_curves, tmp_path_factory):
    """A run of two trials for both players, and one of a learner against random moves."""
    folder = tmp_path_factory.mktemp("runs")
    launch.run(MODULE, TINY, num_seeds=2, run_dir=folder / "both")
    launch.run(MODULE, AGAINST, seed=5, run_dir=folder / "one")
    hex_ = TINY.replace(env="pgx/hex", env_settings=(("size", 3),))
    launch.run(MODULE, hex_, run_dir=folder / "hex")
    launch.run(MODULE, TINY.replace(env="CartPole-v1"), run_dir=folder / "pole")
    return folder


def weights(run, point="last", trial=0):
    loaded = launch.load(run, point, trial=trial, module=MODULE)
    return np.asarray(loaded.state.policy["weights"])


@functools.cache
def game():
    env = envs.make("pgx/tic_tac_toe")[0].wrapped
    return env, jax.jit(env.step)


def by_hand(first, second):
    """The first mover's result in pgx's own game, each side by its numbers."""
    env, step = game()
    board = env.init(jax.random.key(0))
    mover = int(board.current_player)
    while not board.terminated:
        numbers = first if board.current_player == mover else second
        board = step(board, int(np.argmax(np.where(board.legal_action_mask, numbers, -np.inf))))
    return int(board.rewards[mover])


# --- numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("wins, losses", [(0, 6), (7, 0), (3, 9), (150, 50)])
def test_the_interval_is_wilson_s(wins, losses):

    score = match.Score(wins, 0, losses)
    expected = scipy.stats.binomtest(wins, wins + losses).proportion_ci(0.95, method="wilson")
    np.testing.assert_allclose(score.interval, (expected.low, expected.high), atol=1e-12)


def test_a_draw_counts_half_and_elo_is_the_logistic_one_s():
    assert match.Score(2, 4, 2).value == 0.5 and match.Score(1, 1, 0).value == 0.75
    assert match.elo(0.5) == 0 and match.elo(1.0) == math.inf and match.elo(0.0) == -math.inf
    assert match.elo(10 / 11) == pytest.approx(400) == -match.elo(1 / 11)


# --- matches ---------------------------------------------------------------------------------


def test_a_match_is_the_game_of_the_two_policies_in_both_colours(runs):
    mine, other = weights(runs / "both"), weights(runs / "one")
    played = match.match(runs / "both", runs / "one", games=6, openings=0, trials=(0, 0))
    expected = [by_hand(mine, other), -by_hand(other, mine)] * 3
    np.testing.assert_array_equal(played.returns, expected)
    for score, result in zip((played.first, played.second), expected):
        assert score == match.Score(*(3 * (result == x) for x in (1, 0, -1)))
    assert sum(played.total) == 6 and not played.truncated


def test_points_and_trials_are_of_their_runs(runs):
    chosen = {"points": (1, "last"), "trials": (0, 1)}
    played = match.match(runs / "both", runs / "both", games=2, openings=0, **chosen)
    mine, other = weights(runs / "both", 1), weights(runs / "both", 2, 1)
    np.testing.assert_array_equal(played.returns, [by_hand(mine, other), -by_hand(other, mine)])
    assert "A: " in played.text and "at point 1, trial 0\n" in played.text
    assert "at point 2, trial 1\n" in played.text


def test_the_best_trial_of_each_run_plays_at_its_last_point(runs):
    best = launch.load(runs / "both", module=MODULE).trial
    curves = launch.load(runs / "both", trial="all", module=MODULE).metrics["episode_return"]
    assert best == curves[:, -1].argmax()
    played = match.match(runs / "both", runs / "one", games=2, openings=0)
    mine, other = weights(runs / "both", 2, best), weights(runs / "one")
    np.testing.assert_array_equal(played.returns, [by_hand(mine, other), -by_hand(other, mine)])
    assert f"at point 2, trial {best}\n" in played.text
    assert "one at point 2\n" in played.text, "which has a single trial"


def test_openings_and_samples_make_games_differ(runs):
    same = match.match(runs / "both", runs / "one", games=20, openings=0)
    assert len(set(same.returns[::2].tolist())) == 1
    for different in ({"openings": 3}, {"openings": 0, "sample": True}):
        played = match.match(runs / "both", runs / "one", games=20, **different)
        assert len(set(played.returns[::2].tolist())) > 1
    again = match.match(runs / "both", runs / "one", games=20, openings=0, sample=True)
    np.testing.assert_array_equal(again.returns, played.returns)
    other = match.match(runs / "both", runs / "one", games=20, openings=0, sample=True, seed=1)
    assert (other.returns != played.returns).any()


def test_search_is_for_runs_that_have_one(runs, monkeypatch):
    """Cell 8 and then the first legal one, on both sides: who moves second wins with 2, 4, 6."""
    monkeypatch.setattr(loading, "find_module", lambda algorithm: SEARCHES)
    played = match.match(runs / "both", runs / "one", games=2, openings=0, search=8)
    assert "A: " in played.text and played.text.count(", 8 simulations\n") == 2
    numbers = np.where(np.arange(9) == 8, 1.0, -np.arange(9.0))
    assert by_hand(numbers, numbers) == played.returns[0] == -played.returns[1] == -1
    assert (played.first, played.second) == (match.Score(0, 0, 1), match.Score(1, 0, 0))


@pytest.mark.needs("mctx")
def test_a_search_without_a_network(monkeypatch):
    monkeypatch.setattr(loading, "find_module", lambda algorithm: alphazero)
    played = match.match("search:24", "random", "pgx/tic_tac_toe", games=40)
    assert played.total.value > 0.8
    assert "A: search with random playouts, 24 simulations\nB: random\n" in played.text
    with pytest.raises(UserError, match="search:24: pgx/kuhn_poker has chance"):
        match.match("search:24", "random", "pgx/kuhn_poker")


@pytest.mark.parametrize(
    "words, message",
    [
        (["both", "one", "--games", "3"], "--games 3: give an even number, 2 or more"),
        (["both", "one", "--games", "0"], "--games 0: give an even number"),
        (["both", "one", "--openings", "-1"], "--openings -1: give 0 or more"),
        (["both", "one", "--search", "8"], "--search 8: neither side is a run of alphazero"),
        (["both", "randm"], "randm is no directory: give that of a run, or random"),
        (["both", "pole"], "pole is a run of CartPole-v1, which is not a two-player game"),
        (["both", "hex"], "the runs are of pgx/tic_tac_toe and pgx/hex: say which game"),
        (["both", "hex", "--env", "pgx/hex"], "both is a run of pgx/tic_tac_toe with observations"),
        (["both", "random", "--env", "pgx/2048"], "pgx/2048 is not a two-player game"),
        (["both", "random", "--env", "pgx/tictactoe"], "did you mean tic_tac_toe"),
        (["both", "random", "--env-settings", "size=5"], "--env-settings goes with --env"),
        (["random", "search:9"], "neither side is a run: say which game"),
        (["both", "search:0"], "search:0: give a number of simulations, such as search:1000"),
        (["both", "search:x"], "search:x: give a number of simulations"),
        (["both", "one", "--point", "1,2,3"], "--point 1,2,3: give one value, or two"),
        (["both", "one", "--point", "x"], "--point x: give one value"),
        (["both", "one", "--point", "7"], "has no point 7"),
        (["both", "one", "--trial", "9"], "trial=9"),
        (["both", "one", "--trial", "x"], "--trial x: give one value"),
        (["both", "one", "--trial", "all"], "trial=all: give best or a number"),
    ],
)
def test_mistakes_are_one_line_each(runs, capsys, monkeypatch, words, message):
    monkeypatch.chdir(runs)
    with pytest.raises(SystemExit) as stop:
        match.main(words)
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and not out and err.count("\n") == 1 and message in err


def test_a_game_of_runs_with_other_settings_can_be_named():
    configs = [TINY.replace(env_settings=given) for given in ((), (("max_steps", 5),))]
    sides = [match.Side("", None, types.SimpleNamespace(config=config)) for config in configs]
    with pytest.raises(UserError, match="give --env pgx/tic_tac_toe and --env-settings"):
        match._environment(sides, None, None)
    for settings in ((), (("max_steps", 5),)):
        env, _ = match._environment(sides, "pgx/tic_tac_toe", settings)
        assert hasattr(env, "max_steps") == bool(settings)


def test_the_table(runs, capsys, monkeypatch):
    monkeypatch.chdir(runs)
    match.main(["both", "random", "--games", "8", "--openings", "1"])
    lines = capsys.readouterr()[0].splitlines()
    assert lines[0] == "pgx/tic_tac_toe, 8 games after 1 random moves"
    rows = {line[:14].strip(): line.split() for line in lines[5:8]}
    assert list(rows) == ["A moves first", "A moves second", "all"]
    counts = np.array([[int(x) for x in row[-7:-4]] for row in rows.values()])
    np.testing.assert_array_equal(counts[0] + counts[1], counts[2])
    assert counts.sum(1).tolist() == [4, 4, 8] and "Elo of A minus B" in lines[9]


# --- a run as the opponent of another one ------------------------------------------------------


def test_a_run_as_an_opponent_acts_as_its_policy(runs):
    """The learner of this game always takes the last legal cell."""
    numbers = weights(runs / "one", 1)
    path = str(runs / "one")
    env, params = envs.make("pgx/tic_tac_toe", opponent=path, opponent_point=1)
    np.testing.assert_array_equal(params.opponent.policy["weights"], numbers)
    results = {}
    step = jax.jit(env.step_env)
    for seed in range(8):
        _, state = env.reset_env(jax.random.key(seed), params)
        first, over = bool(state.inner.first == 0), False
        while not over:
            move = jnp.int32(8 - jnp.argmax(env.action_mask(state, params)[::-1]))
            _, state, reward, over, _ = step(jax.random.key(0), state, move, params)
        results[first] = float(reward)
    mine = np.arange(9.0)
    assert results == {True: by_hand(mine, numbers), False: -by_hand(numbers, mine)}


def test_a_run_keeps_the_path_and_the_point_of_its_opponent(runs, tmp_path, monkeypatch):
    monkeypatch.chdir(runs)
    config = TINY.replace(env_settings=(("opponent", "one"), ("opponent_trial", 0)))
    launch.run(MODULE, config, run_dir=tmp_path / "run")
    said = json.loads((tmp_path / "run" / "config.json").read_text())["config"]["env_settings"]
    assert said == {"opponent": str(runs / "one"), "opponent_trial": 0, "opponent_point": 2}
    monkeypatch.chdir(tmp_path)
    launch.resume(tmp_path / "run", module=MODULE, total_timesteps=20)
    # The command that began it resumes it, although the opponent has gone on.
    grown = shutil.copytree(runs / "one", tmp_path / "one")
    config = TINY.replace(env_settings=(("opponent", str(grown)),))
    for total in (20, None):
        launch.run(MODULE, config, run_dir=tmp_path / "again", resume_if_exists=True)
        launch.resume(grown, module=MODULE, total_timesteps=total)
    with pytest.raises(UserError, match="opponent_point: 2|'opponent_point': 2"):
        other = config.replace(env_settings=(("opponent", str(grown)), ("opponent_point", 3)))
        launch.run(MODULE, other, run_dir=tmp_path / "again", resume_if_exists=True)
    # A match needs the run alone, and not its opponent.
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    text = (tmp_path / "copy" / "config.json").read_text().replace(str(runs / "one"), "/gone")
    edited = json.loads(text) | {"checksum": None}
    (tmp_path / "copy" / "config.json").write_text(json.dumps(edited))
    assert sum(match.match("copy", "random", games=2).total) == 2
    with pytest.raises(UserError, match="opponent: /gone"):
        launch.load("copy", module=MODULE)


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_sweep_keeps_the_paths_of_its_opponents(runs, tmp_path, monkeypatch, one_by_one):
    monkeypatch.chdir(runs)
    against = [(("opponent", "one"), ("opponent_point", p)) for p in (0, "last")]
    given = {"grid": {"env_settings": against}}
    if one_by_one:
        given = {"settings": [{"env_settings": x, "hidden_sizes": (9,)} for x in against]}
    launch.sweep(MODULE, TINY, **given, sweep_dir=tmp_path / "sweep", sweep_states="all")
    saved = [json.loads(x.read_text()) for x in sorted((tmp_path / "sweep").rglob("config.json"))]
    found = [dict(x["config"]["env_settings"]) for x in saved]
    path = str(runs / "one")
    assert sorted(found, key=str) == [
        {"opponent": path, "opponent_point": point} for point in (0, 2)
    ]
    monkeypatch.chdir(tmp_path)
    launch.resume(tmp_path / "sweep", module=MODULE)
    launch.resume(tmp_path / "sweep" / "chunk_001", module=MODULE, total_timesteps=20)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"opponent": "hex"}, "hex is a run of pgx/hex with observations"),
        ({"opponent": "pole"}, "pole is a run of CartPole-v1, which is not a two-player game"),
        ({"opponent": "randm"}, "randm is no directory: give that of a run, or random"),
        ({"opponent": "one", "opponent_point": 9}, "has no point 9"),
        ({"opponent": "one", "opponent_trial": 9}, "trial=9"),
        ({"opponent": "one", "opponent_trial": "x"}, "trial=x"),
    ],
)
def test_opponents_that_cannot_play(runs, tmp_path, monkeypatch, settings, message):
    monkeypatch.chdir(runs)
    config = TINY.replace(env_settings=tuple(settings.items()))
    with pytest.raises(UserError, match=message):
        launch.run(MODULE, config, run_dir=tmp_path / "run")
    with pytest.raises(ValueError, match=message):
        envs.make("pgx/tic_tac_toe", **settings)
    assert not (tmp_path / "run").exists()


# --- pictures --------------------------------------------------------------------------------


@pytest.mark.needs("resvg_py")
@pytest.mark.parametrize("run", ["both", "one"])
def test_a_gif_of_a_game(runs, tmp_path, run):
    from PIL import Image

    loaded = launch.load(runs / run, module=MODULE)
    path = render.render(MODULE, loaded.config, loaded.state, tmp_path / "game.gif", max_frames=12)
    with Image.open(path) as gif:
        frames = [np.asarray(frame.convert("L")) for frame in _frames(gif)]
    assert 3 < len(frames) <= 10
    ink = [(frame[42:] < 128).sum() for frame in frames]
    assert all(after > before for before, after in itertools.pairwise(ink))  # more stones


def _frames(gif):
    for i in range(gif.n_frames):
        gif.seek(i)
        yield gif


def test_a_picture_of_a_game_needs_a_library(monkeypatch):
    monkeypatch.setattr(pictures.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pgx/tic_tac_toe needs resvg-py: pip install resvg-py"):
        render.check_drawable(TINY)
