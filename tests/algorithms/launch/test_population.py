"""Population-based training: who copies whom, what a copy takes, and going on exactly."""

import csv
import shutil
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import c51, launch, reinforce, sac
from algorithms.launch import Discount, LogUniform, Uniform, cli
from algorithms.launch.engine import devices, evolution, plots, population
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.evolution import Range
from algorithms.launch.engine.options import Options
from algorithms.launch.engine.outputs import Hooks
from algorithms.launch.engine.population import Population, Settings
from algorithms.launch.engine.programs import Trainer
from algorithms.launch.engine.progress import Progress
from algorithms.launch.engine.session import Chunk, Session
from algorithms.launch.engine.settings import Trials
from tests.algorithms.launch import toy

pytestmark = pytest.mark.usefixtures("shared_programs")
CONFIG = toy.Config(total_timesteps=600, num_evals=6, num_eval_episodes=2)
RANGES = {"learning_rate": LogUniform(0.01, 1.0), "gamma": Discount(0.5, 0.99)}
SETTINGS = Settings(
    {"learning_rate": Range("log", 0.01, 1.0), "gamma": Range("discount", 0.5, 0.99)}, members=8
)
REINFORCE = reinforce.Config(
    total_timesteps=2 * 16,
    num_envs=2,
    num_steps=8,
    hidden_sizes=(8,),
    num_evals=2,
    num_eval_episodes=2,
    normalize_obs=True,
)


class Crash(Exception):
    """What a hook raises to end a run as a crash would."""


@pytest.fixture(autouse=True)
def unchecked_keys():
    """Members are vmapped, see conftest.vmapped_keys."""
    with jax.debug_key_reuse(False):
        yield


@pytest.fixture(scope="module")
def run(shared_programs, tmp_path_factory):
    """Two populations of eight toys, through the launcher."""
    root = tmp_path_factory.mktemp("pbt")
    return launch.pbt(toy, CONFIG, RANGES, members=8, rounds=6, num_seeds=2, seed=3, root=root)


@pytest.fixture(scope="module")
def of_reinforce():
    """State and metrics of three members of a real algorithm, of which nobody is replaced."""
    space = {"learning_rate": Range("log", 1e-4, 1e-2)}
    whole = Population(reinforce, Settings(space, 3, share=0.0))
    with jax.debug_key_reuse(False):
        return jax.jit(whole.make_train(REINFORCE))(jax.random.key(0))


@pytest.fixture
def no_picture(run, monkeypatch):
    """That of the fixture has been drawn, and is looked at."""
    monkeypatch.setattr(plots, "population", lambda *_: None)


def plain(tree):
    return jax.tree.map(lambda x: np.asarray(devices.plain(x)), tree)


# --- who is replaced --------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_truncation_replaces_the_worst_by_the_best(seed):
    scores = np.random.default_rng(seed).permutation(12).astype(np.float32)
    found = evolution.truncation(jax.random.key(seed), jnp.array(scores), 0.25)
    order = np.argsort(-scores)
    for member in range(12):
        if member in order[-3:]:
            assert found.state[member] in order[:3] and found.explores[member]
        else:
            assert found.state[member] == member and not found.explores[member]
    np.testing.assert_array_equal(found.state, found.floats)


def test_a_tie_replaces_nobody():
    found = evolution.truncation(jax.random.key(0), jnp.full(8, 500.0), 0.5)
    np.testing.assert_array_equal(found.state, range(8))
    assert not found.explores.any()


@pytest.mark.parametrize(("share", "count"), [(0.25, 4), (0.5, 8), (0.01, 1), (0.3, 4)])
def test_how_many_are_replaced(share, count):
    scores = jnp.arange(16.0)
    found = evolution.truncation(jax.random.key(0), scores, share)
    assert int(found.explores.sum()) == evolution.replaced(16, share) == count


def frequencies_by_hand(scores, periods, rounds):
    """MF-PBT's evolution with Python's lists."""
    size, n = len(scores) // len(periods), len(scores)
    state, floats, explores = [*range(n)], [*range(n)], [False] * n
    for number, period in enumerate(periods):
        if rounds % period:
            continue
        own = sorted(range(number * size, (number + 1) * size), key=lambda i: -scores[i])
        quarter = size // 4
        for winner, loser in zip(own[:quarter], own[3 * quarter :]):
            state[loser] = floats[loser] = winner
            explores[loser] = True
        others = sorted((i for i in range(n) if i not in own), key=lambda i: -scores[i])
        for member in own[2 * quarter : 3 * quarter]:
            if others and scores[others[0]] > scores[member]:
                migrant = others.pop(0)
                state[member] = migrant
                its_period = periods[migrant // size]
                if its_period > period:
                    floats[member] = migrant
                elif its_period < period:
                    floats[member] = own[0]
    return state, floats, explores


@pytest.mark.parametrize("seed", range(6))
def test_several_frequencies_are_those_of_plain_lists(seed):
    rng = np.random.default_rng(seed)
    periods = [(1, 4), (1, 2, 2), (2, 1)][seed % 3]
    scores = rng.permutation(16 * len(periods)).astype(np.float32)
    scores[-16:] += 20 * (seed % 2)  # one subpopulation is far better, or none
    scores[-1] -= 20.5  # or a single member of it is good enough for some
    for rounds in range(1, 5):
        found = evolution.frequencies(jnp.array(scores), periods, jnp.int32(rounds))
        expected = frequencies_by_hand(scores.tolist(), periods, rounds)
        for got, wanted in zip(found, expected):
            np.testing.assert_array_equal(got, wanted)


# --- how floats change ------------------------------------------------------------------------


def test_first_values_are_spread_over_the_range():
    for space, unit in (
        (Range("log", 1e-4, 1.0), lambda x: np.log(x / 1e-4) / np.log(1e4)),
        (Range("uniform", -1.0, 3.0), lambda x: (x + 1) / 4),
        (Range("discount", 0.9, 0.999), lambda x: np.log((1 - x) / 0.1) / np.log(0.01)),
    ):
        values = np.asarray(evolution.first_values(jax.random.key(1), space, 20), np.float64)
        part = np.sort(np.floor(unit(values) * 20 + 1e-4).astype(int).clip(0, 19))
        np.testing.assert_array_equal(part, range(20))


def test_floats_move_in_the_space_of_their_range():
    values, up = jnp.array([0.5, 0.5]), jnp.array([True, False])
    log = Range("log", 0.1, 1.0).move(values, up, 1.25)
    np.testing.assert_allclose(log, [0.625, 0.4], rtol=1e-6)
    discount = Range("discount", 0.1, 0.9).move(jnp.array([0.99, 0.99]), up, 1.25)
    np.testing.assert_allclose(discount, [0.9875, 0.992], rtol=1e-6)
    linear = Range("uniform", 0.0, 2.0).move(values, up, 1.25)
    np.testing.assert_allclose(linear, [0.7, 0.3], rtol=1e-6)


def test_resampled_floats_are_of_the_range():
    space = Range("uniform", 2.0, 3.0)
    values = evolution.explore(jax.random.key(0), jnp.zeros(50), space, 1.25, 1.0)
    assert np.all((values >= 2.0) & (values <= 3.0)) and len(np.unique(values)) == 50


def test_floats_stay_in_the_interval_of_their_field():
    whole = population._Program(toy, SETTINGS, CONFIG, None, None, 6)
    np.testing.assert_array_equal(whole.bounded("gamma", jnp.array([1.2, -0.1])), [1.0, 0.0])
    assert whole.bounded("target_kl", jnp.array([0.0]))[0] > 0  # "(0, inf]"


# --- the program -------------------------------------------------------------------------------


def test_a_copy_takes_the_whole_state_but_no_key(run):
    """The toy's weights follow from its key, its floats and its parent's weights."""
    metrics = {name: values[0] for name, values in run.metrics.items()}
    state = jax.tree.map(lambda x: x[0], run.state)
    keys = devices.plain(state.members.rng)
    assert len(np.unique(keys, axis=0)) == 8
    replaced = metrics["parent"] != np.arange(8)
    assert replaced.any() and not replaced[:2].any()  # nothing is replaced before a round
    returns, rates = metrics["member_return"], metrics["member_learning_rate"]
    for point in range(2, 7):
        worst = np.argsort(-returns[point - 1])[-2:]
        assert set(np.flatnonzero(replaced[point])) <= set(worst)
        for member in np.flatnonzero(replaced[point]):
            parent = metrics["parent"][point, member]
            ratio = rates[point, member] / rates[point - 1, parent]
            assert np.isclose(ratio, 1.25, rtol=1e-5) or np.isclose(ratio, 0.8, rtol=1e-5)
        kept = ~replaced[point]
        np.testing.assert_array_equal(rates[point, kept], rates[point - 1, kept])


def test_copied_states(of_reinforce):
    """With the buffer everything but keys; without it what gradient steps change."""
    members = of_reinforce[0].members
    parents = jnp.array([2, 1, 2])
    for with_buffer in (True, False):
        copies = population.copied(members, parents, with_buffer)
        for name in members.__dataclass_fields__:
            old, new = plain((getattr(members, name), getattr(copies, name)))
            own = name.endswith("rng") or not (
                with_buffer or name in ("policy", "opt_state", "reward_scale")
            )
            source = np.arange(3) if own else np.array(parents)
            jax.tree.map(lambda o, n, s=source: np.testing.assert_array_equal(o[s], n), old, new)


def test_without_replacement_members_are_ordinary_trials(of_reinforce):
    """Close: another number of trials is vmapped."""
    state, metrics = of_reinforce
    assert np.all(metrics["parent"] == np.arange(3))
    _, members_rng, _, _ = jax.random.split(jax.random.key(0), 4)
    for member, key in enumerate(jax.random.split(members_rng, 3)):
        rate = metrics["member_learning_rate"][0, member]
        alone, _ = reinforce.make_train(REINFORCE.replace(learning_rate=rate))(key)
        own = population._at(member, state.members.policy.params)
        pair = plain((alone.policy.params, own))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), *pair)


def test_slices_are_the_whole_and_populations_are_trials(run):
    """Close: the launcher trains point by point, and two populations in one program."""
    train = Population(toy, SETTINGS).make_train(CONFIG)
    state, metrics = jax.jit(train)(jax.random.key(4))
    close = lambda one, other: np.testing.assert_allclose(one[1], other, rtol=1e-5)
    jax.tree.map(close, plain(run.state), plain(state))
    assert metrics.keys() <= run.metrics.keys()
    for name, values in metrics.items():
        np.testing.assert_allclose(run.metrics[name][1], values, rtol=1e-5, err_msg=name)


def test_the_reported_return_is_not_the_one_that_ranked(of_reinforce):
    _, metrics = of_reinforce
    ranked = metrics["member_return"].max(1)
    assert metrics["eval_return"].shape == (3, 2)
    assert not np.allclose(metrics["eval_return"].mean(1), ranked)


def test_a_member_that_breaks_is_replaced():
    """Rates near the end of float32 make weights NaN; no such member is best, copies mend it."""
    space = {"learning_rate": Range("log", 1e37, 3e38)}
    whole = Population(toy, Settings(space, 4, share=0.5))
    state, metrics = jax.jit(whole.make_train(CONFIG))(jax.random.key(0))
    rates, returns = metrics["member_learning_rate"], metrics["member_return"]
    assert np.isneginf(returns).any() and np.isfinite(metrics["eval_return"]).all()
    jax.tree.map(lambda x: np.testing.assert_(np.isfinite(x).all()), plain(state.policy))
    assert rates[-1].max() < rates[0].max() and np.isfinite(returns[-1]).all()


# --- the launcher -----------------------------------------------------------------------------


def test_a_member_that_is_not_finite_is_never_the_best(monkeypatch):
    """Whose return would be the highest."""
    of = lambda policy: policy["weights"].mean((1, 2))
    broken = lambda policy: jnp.arange(8) != of(policy).argmax()
    monkeypatch.setattr(population.programs, "is_finite", broken)
    train = jax.jit(Population(toy, SETTINGS).make_train(CONFIG))
    metrics = train(jax.random.key(5))[1]
    assert (metrics["best_member"] != metrics["member_return"].argmax(1)).all()


def test_metrics_have_lineage_and_schedules(run):
    rows = list(csv.DictReader((run.run_dir / "metrics.csv").open()))
    assert len(rows) == 2 * 7
    for name in ("member_return_7", "parent_0", "member_gamma_3", "best_member", "eval_return"):
        assert name in rows[0]
    assert (run.run_dir / "population.png").read_bytes().startswith(b"\x89PNG")


def test_nobody_is_replaced_after_the_last_round(run):
    assert np.all(run.state.parents == np.arange(8))
    np.testing.assert_array_equal(run.state.floats["gamma"], run.metrics["member_gamma"][:, -1])


def test_the_policy_is_the_best_members(run):
    loaded = launch.load(run.run_dir, trial=1, module=toy)
    best = run.metrics["best_member"][1, -1]
    np.testing.assert_array_equal(
        loaded.state.policy.floats["gamma"], run.metrics["member_gamma"][1, -1, best]
    )
    assert loaded.config.gamma == loaded.state.policy.floats["gamma"] != CONFIG.gamma
    action, _ = loaded.policy(loaded.state, jnp.ones(4))
    weights = run.state.members.policy["weights"][1, best]
    assert int(action) == int(weights.sum() * 4 > 0)


@pytest.mark.parametrize("point", [0, 3, 5])
def test_going_on_is_exact(run, no_picture, tmp_path, point):
    def crash(seen):
        if seen.index == point:
            raise Crash

    asked = {"members": 8, "rounds": 6, "num_seeds": 2, "seed": 3, "run_dir": tmp_path / "x"}
    with pytest.raises(Crash):
        launch.pbt(toy, CONFIG, RANGES, hooks=[crash], **asked)
    resumed = launch.resume(tmp_path / "x", module=toy)
    jax.tree.map(np.testing.assert_array_equal, plain(resumed.state), plain(run.state))
    for name, values in run.metrics.items():
        np.testing.assert_array_equal(resumed.metrics[name], values)


def test_a_longer_population_is_told_that_the_old_end_replaced_nobody(
    run, no_picture, tmp_path, capsys
):
    grown = shutil.copytree(run.run_dir, tmp_path / "x")
    launch.resume(grown, module=toy, total_timesteps=700, quiet=False)
    assert "no member was replaced at the old end" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("total", "rounds", "hint"),
    [
        (605, 100, "every point takes as many updates, pbt=63 would come closer"),
        (25, 3, "an update takes 5 steps, fewer num_envs would come closer"),  # pbt=1 is refused
    ],
)
def test_the_rounds_that_would_come_closer(capsys, total, rounds, hint):
    config = CONFIG.replace(total_timesteps=total, num_evals=rounds)
    trainer = Trainer(Population(toy, SETTINGS), config, 1, Progress(False, 0.0))
    Session(Chunk(trainer, Trials([0])), Options(), Hooks())._announce()
    assert hint in capsys.readouterr().err


def test_resume_if_exists_is_for_the_same_population(run):
    asked = {"members": 8, "rounds": 6, "num_seeds": 2, "seed": 3, "run_dir": run.run_dir}
    again = launch.pbt(toy, CONFIG, RANGES, resume_if_exists=True, **asked)
    np.testing.assert_array_equal(again.metrics["parent"], run.metrics["parent"])
    with pytest.raises(UserError, match="population"):
        launch.pbt(toy, CONFIG, RANGES, resume_if_exists=True, share=0.5, **asked)


@pytest.mark.parametrize(
    ("ranges", "asked", "words"),
    [
        ({}, {}, "nothing changes; give a float a range"),
        ({"learning_rate": [0.1, 0.2]}, {}, "give a range, as log:1e-5:1e-2"),
        ({"learning_rate": LogUniform(1, 0.1)}, {}, "two numbers, the lower one first"),
        ({"learning_rate": LogUniform(0, 0.1)}, {}, "needs a lower bound above 0"),
        ({"gamma": Discount(0.9, 1.0)}, {}, "needs an upper bound below 1"),
        ({"learning_rat": LogUniform(0.1, 1)}, {}, "did you mean learning_rate"),
        ({"gamma": Uniform(0.5, 1.5)}, {}, "gamma=1.5: give a number in"),
        (RANGES, {"members": 1}, r"members=1 \(--samples\): a population has 2 or more"),
        (RANGES, {"members": "4"}, r"members='4' \(--samples\): give a whole number"),
        (RANGES, {"rounds": "4"}, r"rounds='4' \(--pbt\): give a whole number"),
        (RANGES, {"share": "x"}, "pbt_share='x': give a number"),
        (RANGES, {"share": 0.7}, "pbt_share=0.7: give a number from 0"),
        (RANGES, {"factor": 0.9}, "pbt_factor=0.9: give a number above 1"),
        (RANGES, {"resample": 2.0}, "pbt_resample=2.0: give a probability"),
        (RANGES, {"periods": "1,x"}, "pbt_periods=1,x: give whole numbers"),
        (RANGES, {"periods": (0, 1)}, "1 or more"),
        (RANGES, {"periods": (1, 3), "members": 12}, "a multiple of 8 members"),
        (RANGES, {"rounds": 1}, r"rounds=1 \(--pbt\): give 2 or more"),
        (RANGES, {"periods": (1, 3), "share": 0.5}, "pbt_share=0.5: with several pbt_periods"),
        (RANGES, {"periods": (9,)}, "that evolves after 9 rounds never does"),
        (RANGES, {"init_from": "runs/x"}, "init_from does not go with pbt"),
        (
            RANGES,
            {"rounds": 200},
            "makes 120 updates of 5 steps, too few for 200 rounds; give total_timesteps=1000, or",
        ),
        ({"target_kl": LogUniform(0.1, 1)}, {}, "target_kl matters at the start of a run only"),
    ],
)
def test_refused(ranges, asked, words):
    with pytest.raises(UserError, match=words):
        launch.pbt(toy, CONFIG, ranges, **{"rounds": 6, "save": False, **asked})


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, "6 rounds, 2 members replaced after each"),
        ({"members": 3, "share": 0.1}, "6 rounds, 1 member replaced after each"),
        ({"share": 0}, "6 rounds, nobody is replaced"),
        ({"periods": (2,)}, "6 rounds, 2 members replaced after every 2"),
        ({"periods": (1, 2)}, "6 rounds, subpopulations that evolve after 1, 2 rounds"),
    ],
)
def test_the_first_line_says_who_is_replaced(more, says):
    assert population.in_words(SETTINGS._replace(**more), 6).endswith(says)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--pbt 5", "nothing changes"),
        ("--pbt-share 0.3 --pbt-periods 1,2", "pbt_share, pbt_periods goes with pbt"),
        ("--no-pbt-copy-buffer", "pbt_copy_buffer goes with pbt"),
        ("--pbt 5 --gamma uniform:0.9:0.99 --halving 3", "trains no sweep: leave halving out"),
        ("--pbt 5 --gamma uniform:0.9:0.99 --num-evals 7", "--num-evals 7: every round"),
        ("--pbt 5 --gamma uniform:0.9:0.99 --sampler random", "--sampler random: --pbt spreads"),
        ("--sampler random", "--sampler random: nothing is drawn"),
        ("--pbt 5 --gamma 0.9 0.99", "gamma=[0.9, 0.99]: give a range"),
    ],
)
def test_refused_flags(words, says, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(toy, words.split())
    assert end.value.code == 2 and says in capsys.readouterr().err


def test_a_population_from_the_command_line(run, no_picture, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = "--learning-rate log:0.01:1 --gamma discount:0.5:0.99 --samples 8 --pbt 6"
    words += " --total-timesteps 600 --num-eval-episodes 2 --num-seeds 2 --seed 3 --run-dir one"
    cli.main(toy, words.split())
    said = capsys.readouterr().out
    assert "8 members with learning_rate log:0.01:1, gamma discount:0.5:0.99; 6 rounds" in said
    assert "2 populations of 8 members (seeds 3 to 4)" in said
    loaded = launch.load(tmp_path / "one", trial=None, module=toy)
    np.testing.assert_array_equal(loaded.metrics["parent"], run.metrics["parent"])
    np.testing.assert_array_equal(loaded.config.gamma, loaded.state.policy.floats["gamma"])
    cli.main(toy, ["--evaluate", "one", "--episodes", "2", "--trial", "all"])
    assert "all 2 seeds: 4 episodes" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--config", "--init-from"])
def test_populations_are_no_settings_and_no_beginning(run, flag, capsys):
    with pytest.raises(SystemExit):
        cli.main(toy, [flag, str(run.run_dir)])
    assert "populations" in capsys.readouterr().err


@pytest.mark.needs("flatbuffers")
def test_an_exported_population_acts_as_its_best_member(run, tmp_path):
    from jax import export

    file = launch.export(run.run_dir, tmp_path / "x.zip", "last", trial=0, module=toy)
    data = zipfile.ZipFile(file).read("policy.jax_export")
    act = export.deserialize(bytearray(data)).call
    best = run.metrics["best_member"][0, -1]
    weights = run.state.members.policy["weights"][0, best].sum()
    observations = np.array([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]], np.float32)
    actions, _ = act(observations, (), None)
    np.testing.assert_array_equal(actions, weights * observations[:, 0] > 0)


def test_ranges_in_which_one_field_may_pass_another_are_refused():
    """Both ends are in order, each by itself."""
    ranges = {"v_min": Uniform(-100.0, 50.0), "v_max": Uniform(0.0, 100.0)}
    with pytest.raises(UserError, match="v_max"):
        launch.pbt(c51, c51.Config(), ranges, rounds=4, members=4, save=False)


def test_only_floats_that_the_update_reads_may_change():
    config = sac.Config(buffer_size=1000)
    population.check_floats_matter(sac, config, ["learning_rate", "gamma", "tau"])
    idle = [name for name in ("initial_temperature",) if hasattr(config, name)]
    for name in idle:
        with pytest.raises(UserError, match=name):
            population.check_floats_matter(sac, config, [name])


# --- the picture --------------------------------------------------------------------------------


def test_ancestors_are_followed_back():
    parents = np.array([[0, 1, 2], [0, 1, 2], [1, 1, 2], [0, 0, 2]])
    # The last 1 copied 0, which before had copied 1.
    np.testing.assert_array_equal(plots.ancestors(parents, 1), [1, 1, 0, 1])


def test_a_population_is_drawn(run, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append(figure))
    plots.population(run.metrics, [3, 4], ["learning_rate"], "title", tmp_path / "x.png")
    axes = drawn[0].axes
    assert len(axes) == 2 * 3
    scales = {ax.get_ylabel(): ax.get_yscale() for ax in axes if ax.get_ylabel()}
    assert scales == {"return": "linear", "learning_rate": "log", "gamma": "linear"}
