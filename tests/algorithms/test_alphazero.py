"""AlphaZero: targets, masks, symmetries, searches, matches, and the contract of the file."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms import alphazero, parts
from algorithms.parts import boards as symmetry_tables
from envs import games
from envs.episodes import EpisodeStatistics
from tests.algorithms.cases import EVALUATION, Case, programs
from tests.algorithms.test_contract import programs as texts
from tests.benchmarks import perfect

mctx, pgx = pytest.importorskip("mctx"), pytest.importorskip("pgx")
pytestmark = [pytest.mark.needs("mctx"), pytest.mark.needs("pgx")]

TINY = alphazero.Config(
    total_timesteps=3 * 16,
    num_envs=2,
    num_steps=8,
    num_minibatches=2,
    update_epochs=2,
    num_simulations=4,
    max_num_considered_actions=4,
    hidden_sizes=(8,),
    opening_moves=2,
    num_evals=3,
    num_eval_episodes=2,
    eval_simulations=2,
    eval_opening_moves=1,
)
GAME = functools.partial(envs.make, "pgx/tic_tac_toe")
OF_PUCT = ("dirichlet_fraction", "dirichlet_alpha", "pb_c_init", "temperature")


# --- formulas ---------------------------------------------------------------------------------


def random_games(seed, steps=40, number=5):
    """Rewards, values, flags and players of made-up games, in which a player may move twice."""
    rng = np.random.default_rng(seed)
    terminated, truncated = rng.random((2, steps, number)) < 0.15
    truncated &= ~terminated
    outcome = np.where(terminated, rng.choice([-1.0, 0.0, 1.0], terminated.shape), 0.0)
    rewards = np.stack([outcome, -outcome], -1)
    values, players = rng.normal(size=rewards.shape), rng.integers(0, 2, terminated.shape)
    return rewards, values, terminated, terminated | truncated, players


def test_outcomes_are_those_of_plain_numpy():
    rewards, values, terminated, done, players = random_games(0)
    expected = np.zeros_like(rewards)
    for game in range(rewards.shape[1]):
        for t in range(len(rewards)):
            factor, total = 1.0, np.zeros(2)
            for later in range(t, len(rewards)):
                total += factor * rewards[later, game]
                factor *= 0.9
                if done[later, game] or later == len(rewards) - 1:
                    total += factor * (~terminated[later, game]) * values[later, game]
                    break
            expected[t, game] = total
    found = alphazero.outcomes(rewards, values, terminated, done, 0.9)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    mine = games.of_player(jnp.asarray(players), found)
    own = np.take_along_axis(expected, players[..., None], -1)[..., 0]
    np.testing.assert_allclose(mine, own, rtol=1e-5, atol=1e-6)


def test_a_game_has_an_outcome_if_it_terminates_before_it_is_cut():
    _, _, terminated, done, _ = random_games(1)
    expected = np.zeros(done.shape)
    for game in range(done.shape[1]):
        for t in range(len(done)):
            ends = np.flatnonzero(done[t:, game])
            expected[t, game] = len(ends) > 0 and terminated[t + ends[0], game]
    assert 0 < expected.mean() < 1
    np.testing.assert_array_equal(alphazero.has_outcome(terminated, done), expected)


def test_the_cross_entropy_is_over_legal_actions():
    rng = np.random.default_rng(2)
    logits, mask = rng.normal(size=(6, 4)).astype(np.float32), rng.random((6, 4)) < 0.6
    mask[:, 0] = True
    policy = np.where(mask, rng.random((6, 4)), 0.0)
    policy /= policy.sum(-1, keepdims=True)
    expected = []
    for row, legal, target in zip(logits, mask, policy):
        log_probs = row[legal] - np.log(np.exp(row[legal]).sum())
        expected.append(-(target[legal] * log_probs).sum())
    found = alphazero.cross_entropy(logits, mask, policy)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    grads = jax.grad(lambda x: alphazero.cross_entropy(x, mask, policy).sum())(logits)
    assert (np.asarray(grads)[~mask] == 0).all() and np.isfinite(grads).all()
    assert (np.abs(np.asarray(grads)[mask & (mask.sum(-1) > 1)[:, None]]) > 0).all()


def test_values_of_one_player_are_the_opposite_for_the_other():
    found = games.for_both(jnp.array([0, 1]), jnp.array([0.5, -0.25]))
    np.testing.assert_array_equal(found, [[0.5, -0.5], [0.25, -0.25]])


def test_learning_rates_go_to_zero():
    config = TINY.replace(learning_rate=0.5, num_minibatches=3)
    rates = np.concatenate([alphazero.learning_rates(config, 5, jnp.int32(u)) for u in range(5)])
    np.testing.assert_allclose(rates.ravel(), 0.5 * (1 - np.arange(30) / 30), rtol=1e-5)
    late = alphazero.learning_rates(config, 5, jnp.int32(7))
    np.testing.assert_array_equal(late, np.zeros(6))
    constant = alphazero.learning_rates(config.replace(anneal_lr=False), 5, jnp.int32(3))
    np.testing.assert_array_equal(constant, np.full(6, 0.5))


# --- boards -----------------------------------------------------------------------------------


@functools.cache
def boards_of(name="tic_tac_toe", number=64, moves=4):
    """pgx's game and running boards after random moves."""
    env, params = envs.make(f"pgx/{name}")

    @jax.jit
    def play(key):
        keys = jax.random.split(key, moves + 1)
        boards = jax.vmap(env.wrapped.init)(jax.random.split(keys[0], number))
        for k in keys[1:]:
            boards = jax.vmap(env.wrapped.step)(boards, games.random_move(k, boards))
        return boards

    return env, params, play(jax.random.key(5))


@pytest.mark.parametrize("name,number", [("tic_tac_toe", 8), ("connect_four", 2), ("othello", 4)])
def test_turned_boards_have_turned_moves(name, number):
    """A turned move on a turned board gives the turned next board.

    Games begin with the same board; some turns of othello's first one exchange the colours.
    """
    env, _ = envs.make(f"pgx/{name}")
    start = env.wrapped.init(jax.random.key(0))
    table = parts.symmetries(name, start.observation.shape, start.legal_action_mask.size)
    every = jnp.arange(len(table.cells))
    assert (table.cells[0] == np.arange(table.cells.shape[1])).all()
    assert len({tuple(row) for row in table.cells}) == len(table.cells)
    step = jax.jit(jax.vmap(env.wrapped.step))
    plain = turned = jax.tree.map(lambda x: jnp.stack([x] * len(every)), start)
    same = (table.board(every, plain.observation) == plain.observation).all((1, 2, 3))
    assert same.sum() == number
    for move in range(3):
        chosen = np.asarray([np.flatnonzero(row)[move] for row in turned.legal_action_mask])
        turned = step(turned, chosen)
        plain = step(plain, table.actions[every, chosen])
        for own, other in (
            (turned.observation, table.board(every, plain.observation)),
            (turned.legal_action_mask, table.policy(every, plain.legal_action_mask)),
        ):
            np.testing.assert_array_equal(own[same], other[same])


def test_whole_games_of_hex_turned_by_half():
    """Random games and their turned copies, of both colours, with and without the swap of colours,
    have turned observations and legal moves, and the same ends and rewards."""
    env, _ = envs.make("pgx/hex", size=3)
    start = jax.vmap(env.wrapped.init)(jax.random.split(jax.random.key(0), 64))
    table = parts.symmetries("hex", start.observation.shape[1:], 10)

    def step(both, key):
        plain, turned = both
        moves = games.random_move(key, turned)
        turned = jax.vmap(env.wrapped.step)(turned, moves)
        plain = jax.vmap(env.wrapped.step)(plain, jnp.asarray(table.actions)[1, moves])
        return (plain, turned), (plain, turned, moves)

    keys = jax.random.split(jax.random.key(1), 10)
    plain, turned, moves = jax.jit(lambda: jax.lax.scan(step, (start, start), keys)[1])()
    flat = lambda x: x.reshape(-1, *x.shape[2:])
    every = jnp.ones(640, jnp.int32)
    for own, other in (
        (turned.observation, table.board(every, flat(plain.observation))),
        (turned.legal_action_mask, table.policy(every, flat(plain.legal_action_mask))),
        (turned.rewards, plain.rewards),
        (turned.terminated, plain.terminated),
    ):
        np.testing.assert_array_equal(own, other.reshape(own.shape))
    assert turned.terminated[-1].all() and 0 < (moves[1] == 9).sum() < 64  # 9: swap
    assert 0 < (turned.rewards[..., 0] > 0).sum() < 64


def test_games_without_known_symmetries_have_none():
    assert parts.symmetries("chess", (8, 8, 119), 4672) is None
    assert set(symmetry_tables.KINDS.values()) == {"dihedral", "columns", "half turns"}


def first_legal(rng, boards):
    return jnp.argmax(boards.legal_action_mask, axis=-1)


def test_a_match_by_hand():
    """Each takes the first free cell: whoever begins has 0, 2, 4, 6 and a line after 7 moves."""
    env, params = GAME()
    play = lambda openings, key: games.play(env, params, first_legal, first_legal, 6, openings, key)
    found = jax.jit(play, static_argnums=0)(0, jax.random.key(0))
    np.testing.assert_array_equal(found["return"], [1, -1] * 3)
    np.testing.assert_array_equal(found["last_reward"], [1, -1] * 3)
    np.testing.assert_array_equal(found["length"], [7] * 6)
    assert found["terminated"].all() and not found["truncated"].any()
    varied = jax.jit(play, static_argnums=0)(9, jax.random.key(0))
    assert len(set(np.asarray(varied["length"]).tolist())) > 1


def test_playouts_end_games_and_random_moves_are_legal():
    env, _, boards = boards_of(moves=8)
    boards = jax.tree.map(lambda x: x[~boards.terminated], boards)  # one legal move is left
    moves = games.random_move(jax.random.key(0), boards)
    assert boards.legal_action_mask[jnp.arange(len(moves)), moves].all()
    after = jax.vmap(env.wrapped.step)(boards, moves)
    found = games.playout(env.wrapped, jax.random.key(1), boards)
    np.testing.assert_array_equal(found, games.of_player(boards.current_player, after.rewards))
    assert len(set(np.asarray(found).tolist())) == 2


# --- search -----------------------------------------------------------------------------------


def network_of(config):
    env, _, boards = boards_of()
    network = alphazero.Network(config, 9)
    start = network.init(jax.random.key(3), games.look(boards))
    return env, boards, network, start


@pytest.mark.parametrize("kind", ["gumbel", "puct"])
def test_targets_are_those_of_mctx_used_by_hand(kind):
    config = TINY.replace(search=kind, gamma=0.9, gumbel_scale=0.5, c_scale=0.3, c_visit=20.0)
    more = dict(pb_c_init=2.0, dirichlet_fraction=0.0, max_num_considered_actions=8)
    config = config.replace(**more)
    env, boards, network, params = network_of(config)
    boards = jax.tree.map(lambda x: x[~boards.terminated], boards)

    def model(params, key, action, board):
        mover = board.current_player
        next_board = jax.vmap(env.wrapped.step)(board, action)
        logits, value = network.apply(params, next_board.observation.astype(jnp.float32))
        over = next_board.terminated
        reward = next_board.rewards[jnp.arange(len(mover)), mover]
        lowest = jnp.finfo(jnp.float32).min
        return mctx.RecurrentFnOutput(
            reward=reward,
            discount=-0.9 * (1.0 - over),  # players alternate
            prior_logits=jnp.where(next_board.legal_action_mask, logits, lowest),
            value=value * (1.0 - over),
        ), next_board

    def by_hand(key):
        key = jax.random.key_data(jax.random.split(key, 3)[0])
        logits, value = network.apply(params, boards.observation.astype(jnp.float32))
        invalid = ~boards.legal_action_mask
        root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=boards)
        if kind == "gumbel":
            scale = functools.partial(
                mctx.qtransform_completed_by_mix_value,
                value_scale=0.3,
                maxvisit_init=20.0,
                rescale_values=False,
            )
            more = dict(qtransform=scale, max_num_considered_actions=8, gumbel_scale=0.5)
            return mctx.gumbel_muzero_policy(params, key, root, model, 16, invalid, **more)
        scale = functools.partial(mctx.qtransform_by_min_max, min_value=-1, max_value=1)
        more = dict(dirichlet_fraction=0.0, pb_c_init=config.pb_c_init)
        return mctx.muzero_policy(params, key, root, model, 16, invalid, qtransform=scale, **more)

    assess = functools.partial(alphazero.by_network, network)
    own = alphazero.searcher(config, env.wrapped, assess)
    found = jax.jit(lambda key: own(params, boards, key, 16, True))(jax.random.key(7))
    expected = jax.jit(by_hand)(jax.random.key(7))
    np.testing.assert_array_equal(found.action, expected.action)
    np.testing.assert_allclose(found.action_weights, expected.action_weights, rtol=1e-4, atol=1e-6)
    # Illegal moves have no probability.
    illegal = ~np.asarray(boards.legal_action_mask)
    assert (np.asarray(found.action_weights)[illegal] == 0).all()
    assert not illegal[np.arange(len(illegal)), found.action].any()


def test_the_noise_of_puct_is_a_share_over_legal_moves():
    rng = np.random.default_rng(3)
    mask = np.array([[True] * 3 + [False] * 200] * 500)
    logits = np.where(mask, rng.normal(size=mask.shape), -1e30).astype(np.float32)
    key, priors = jax.random.key(0), np.asarray(jax.nn.softmax(logits))
    noise = np.exp(alphazero.noisy(logits, mask, key, 1.0, 2.0))
    mixed = np.exp(alphazero.noisy(logits, mask, jax.random.clone(key), 0.25, 2.0))
    np.testing.assert_allclose(mixed, 0.75 * priors + 0.25 * noise, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(noise.sum(-1), 1.0, rtol=1e-5)
    assert (noise[~mask] == 0).all()
    variance = (1 / 3) * (2 / 3) / (3 * 2.0 + 1)  # of Dirichlet(2, 2, 2)
    np.testing.assert_allclose(noise[mask].var(), variance, rtol=0.1)


@pytest.mark.parametrize("kind", ["gumbel", "puct"])
def test_search_takes_a_win_and_stops_a_threat(kind):
    """X wins by 2 with 0 and 1, or O has to take it. There is no noise."""
    env, env_params = GAME()
    config = TINY.replace(search=kind, num_simulations=200, max_num_considered_actions=9)
    network = alphazero.Network(config, 9)
    _, env_state = env.reset_env(jax.random.key(0), env_params)
    params = network.init(jax.random.key(3), env_state.inner.observation[None] * 1.0)
    state = alphazero.TrainState(alphazero.PolicyState(params), *[None] * 9)
    search = jax.jit(alphazero.make_search(config, env, env_params))
    for moves, expected in (([0, 3, 1, 4], 2), ([0, 3, 1], 2), ([8, 0, 3, 1, 4], 2)):
        board = env.wrapped.init(jax.random.key(0))
        for move in moves:
            board = env.wrapped.step(board, move)
        action = search(state, env_state.replace(inner=board))
        assert action[board.current_player] == expected and action[1 - board.current_player] == 0
        explored = search(state, env_state.replace(inner=board), jax.random.key(1))
        assert board.legal_action_mask[explored[board.current_player]]


# --- updates ----------------------------------------------------------------------------------


def seen_update(monkeypatch, **changes):
    """Rewards and flags of a rollout, targets and weights of its values, (num_steps, num_envs)."""
    config = TINY.replace(num_envs=8, num_steps=24, **changes)
    with monkeypatch.context() as patch:
        both = lambda values, targets, weights: jnp.stack([targets, weights])
        patch.setattr(parts, "explained_variance", both)
        patch.setattr(EpisodeStatistics, "update", lambda self, reward, done: (reward, done))
        learner = alphazero.learner(config, *GAME())
        state, metrics = jax.jit(lambda key: learner.update(learner.init(key)))(jax.random.key(2))
    reward, done = map(np.asarray, state.episodes)
    targets, weights = np.asarray(metrics["explained_variance"]).reshape(2, *done.shape)
    return reward, done, targets, weights


@pytest.mark.parametrize("bootstrap", [True, False])
def test_outcomes_alternate_and_cut_games_have_none(bootstrap, monkeypatch):
    """The last mover wins; a cut game's values are one value with alternating signs, or masked."""
    rewards, done, targets, weights = seen_update(
        monkeypatch, opening_moves=0, bootstrap_cut=bootstrap
    )
    lengths = []
    for game in range(done.shape[1]):
        start = 0
        for end in np.union1d(np.flatnonzero(done[:, game]), len(done) - 1):
            span = slice(start, end + 1)
            signs = (-1.0) ** np.arange(end - start, -1, -1)
            if done[end, game]:
                won = np.abs(rewards[end, game]).max()
                np.testing.assert_array_equal(targets[span, game], signs * won)
                assert (weights[span, game] == 1).all()
                lengths.append(end - start + 1)
            else:
                value = targets[end, game]
                assert value != 0 and abs(value) < 1
                np.testing.assert_allclose(targets[span, game], signs * value, rtol=1e-6)
                assert (weights[span, game] == bootstrap).all()
            start = end + 1
    assert len(lengths) > 8 and min(lengths) >= 5 and max(lengths) <= 9


def test_values_before_a_random_move_are_not_learned(monkeypatch):
    _, done, _, weights = seen_update(monkeypatch, opening_moves=3)
    since = np.zeros(done.shape[1], int)
    left_out = []
    for t in range(len(done)):
        left_out += since[weights[t] == 0].tolist()
        since = np.where(done[t], 0, since + 1)
    assert set(left_out) == {0, 1, 2}
    assert 0 < (weights == 0).mean() < 0.5


@pytest.mark.parametrize("bootstrap", [True, False])
def test_no_gradient_comes_from_outcomes_that_are_missing(bootstrap):
    """No game ends in 4 moves, so that without bootstrapping the value is not learned."""
    config = TINY.replace(num_steps=4, bootstrap_cut=bootstrap, weight_decay=0.0, opening_moves=0)
    learner = alphazero.learner(config, *GAME())
    init, update = programs(learner)
    before = init(jax.random.key(0))
    after, metrics = update(before)
    moved = lambda name: np.abs(
        np.asarray(after.policy.params["params"][name]["kernel"])
        - np.asarray(before.policy.params["params"][name]["kernel"])
    ).max()
    assert (moved("value_head") > 0) == bootstrap and moved("policy_head") > 0
    total, weight = metrics["value_loss"]
    assert weight == bootstrap and (total > 0) == bootstrap


def marked(step):
    """A step of envs.batch that leaves restarted boards marked as ended, as pgx's example does."""

    def marking(self, *args):
        observation, state, *rest = step(self, *args)
        board = state.env.inner
        board = board.replace(terminated=board.terminated | rest[1])
        return observation, state.replace(env=state.env.replace(inner=board)), *rest

    return marking


@pytest.mark.parametrize("bug", [False, True])
def test_no_ended_board_is_searched(bug, monkeypatch):
    """Targets of ended boards are NaN here."""
    plain = alphazero.searcher

    def searcher(*args):
        def search(params, boards, *more, **flags):
            found = plain(*args)(params, boards, *more, **flags)
            ended = (boards.terminated | boards.truncated)[:, None]
            return found.replace(action_weights=jnp.where(ended, jnp.nan, found.action_weights))

        return search

    monkeypatch.setattr(alphazero, "searcher", searcher)
    if bug:
        batch_class = type(envs.batch(GAME()[0], 1))
        monkeypatch.setattr(batch_class, "step", marked(batch_class.step))
    learner = alphazero.learner(TINY.replace(num_steps=24), *GAME())
    state, metrics = jax.jit(lambda key: learner.update(learner.init(key)))(jax.random.key(2))
    assert state.episodes.count > 2
    assert bool(jnp.isnan(metrics["policy_loss"])) == bug


def test_an_update_of_the_losses_is_that_of_numpy(monkeypatch):
    """One minibatch: the metrics are those of the untouched network, and of the targets."""

    def spy(values, targets, weights):
        return jnp.stack([values, targets, weights])

    config = TINY.replace(num_minibatches=1, update_epochs=1, symmetries=False, vf_coef=0.7)
    monkeypatch.setattr(parts, "explained_variance", spy)
    learner = alphazero.learner(config, *GAME())
    _, rows = jax.jit(lambda key: learner.update(learner.init(key)))(jax.random.key(2))
    values, targets, weights = np.asarray(rows["explained_variance"])
    value_loss = (weights * (values - targets) ** 2).sum() / weights.sum()
    assert rows["value_loss"].weight == 1.0
    np.testing.assert_allclose(rows["value_loss"].total, value_loss, rtol=1e-5)
    np.testing.assert_allclose(rows["mean_value"], values.mean(), rtol=1e-5)
    total = rows["policy_loss"] + 0.7 * rows["value_loss"].total
    np.testing.assert_allclose(rows["loss"], total, rtol=1e-6)
    assert rows["target_entropy"] < rows["policy_loss"]  # by the divergence
    assert 0 < weights.mean() < 1


def test_the_past_policy_is_that_of_the_point_before():
    train = alphazero.make_train(TINY.replace(total_timesteps=4 * 16, num_evals=2))
    start = parts.first_state(train, jax.random.key(0))
    middle, _ = train(None, start, 1)
    end, _ = train(None, middle, 1)
    assert int(end.update) == 4
    for before, after in ((start, middle), (middle, end)):
        jax.tree.map(np.testing.assert_array_equal, after.past, before.policy)


# --- settings ---------------------------------------------------------------------------------


def test_every_static_setting_changes_the_program():
    """Jaxprs are compared; settings of evaluation change only that."""
    world = GAME()
    base = TINY.replace(network="residual", num_blocks=1, num_channels=4)
    text = lambda config: list(texts(CASE, config, world))
    first = text(base)
    changes = dict(
        num_envs=4,
        num_steps=16,
        num_minibatches=1,
        update_epochs=1,
        search="puct",
        num_simulations=5,
        max_num_considered_actions=2,
        opening_moves=3,
        symmetries=False,
        bootstrap_cut=False,
        anneal_lr=False,
        network="dense",
        num_blocks=2,
        num_channels=5,
        activation="tanh",
    )
    with jax.debug_key_reuse(False):
        for name, value in changes.items():
            assert text(base.replace(**{name: value})) != first, f"{name} does nothing"
        sizes = TINY.replace(hidden_sizes=(9,))
        assert text(TINY) != text(sizes)

        def of_evaluation(config):
            learner = alphazero.learner(config, *world)
            state = jax.eval_shape(learner.init, jax.random.key(0))
            return str(jax.make_jaxpr(learner.evaluate)(state, jax.random.key(0)))

        first = of_evaluation(TINY)
        for name, value in dict(
            eval_simulations=3, eval_opening_moves=2, eval_search=True, num_eval_episodes=4
        ).items():
            assert of_evaluation(TINY.replace(**{name: value})) != first, f"{name} does nothing"


def test_the_opponent_that_searches_is_the_same_for_all_learners(monkeypatch):
    """Settings of a learner's own search do not change it."""
    made, plain = [], alphazero.searcher
    monkeypatch.setattr(alphazero, "searcher", lambda *args: made.append(args[0]) or plain(*args))
    config = TINY.replace(search="gumbel", pb_c_init=9.0, gamma=0.5)
    learner = alphazero.learner(config, *GAME())
    made.clear()
    state = jax.eval_shape(learner.init, jax.random.key(0))
    jax.eval_shape(learner.evaluate, state, jax.random.key(1))
    (opponent,) = made
    assert (opponent.search, opponent.pb_c_init, opponent.gamma) == ("puct", 1.25, 1.0)


def test_floats_of_puct_matter():
    """The contract's tests have gumbel's."""
    base = TINY.replace(search="puct", num_simulations=12, num_steps=24)

    def loss(changes):
        learner = alphazero.learner(base.replace(**changes), *GAME())
        return learner.update(learner.init(jax.random.key(0)))[1]["policy_loss"]

    rows = [{name: getattr(base, name) for name in OF_PUCT} for _ in range(len(OF_PUCT) + 1)]
    for row, name in zip(rows, OF_PUCT):
        row[name] = 3.0 * row[name]
    stacked = {name: jnp.array([row[name] for row in rows]) for name in OF_PUCT}
    with jax.debug_key_reuse(False):  # see conftest.vmapped_keys
        found = jax.jit(jax.vmap(loss))(stacked)
    assert (np.asarray(found[:-1]) != np.asarray(found[-1])).all()


@pytest.mark.parametrize(
    "world,message",
    [
        (
            ("CartPole-v1",),
            "CartPole-v1 is no game of two players: alphazero takes pgx's games of two",
        ),
        (("pgx/kuhn_poker",), "pgx/kuhn_poker has .*, which its search cannot plan for"),
        (("pgx/backgammon",), "pgx/backgammon has chance, which its search cannot plan for"),
        (("Pursuit-v0",), "Pursuit-v0 is no game of two players"),
    ],
)
def test_other_environments_are_refused(world, message):
    env, params = envs.make(*world)
    with pytest.raises(ValueError, match=message):
        alphazero.make_train(TINY, env, params)


@pytest.mark.parametrize(
    "setting, wrapper",
    [
        (dict(frame_stack=2), "FrameStack"),
        (dict(action_repeat=2), "ActionRepeat"),
        (dict(noise=0.1), "Noise"),
        (dict(flicker=0.1), "Flicker"),
        (dict(max_steps=8), "TimeLimit"),
    ],
)
def test_settings_that_the_search_would_not_see_are_refused(setting, wrapper):
    env, params = envs.make("pgx/tic_tac_toe", **setting)
    message = f"^pgx/tic_tac_toe has {wrapper} around it, .*max_steps_in_episode limits its moves"
    with pytest.raises(ValueError, match=message):
        alphazero.make_train(TINY, env, params)
    for harmless in (dict(start_window=4), dict(max_steps_in_episode=8)):
        alphazero.make_train(TINY, *envs.make("pgx/tic_tac_toe", **harmless))


def test_a_missing_library_is_one_sentence(monkeypatch):
    monkeypatch.setattr(alphazero, "mctx", None)
    with pytest.raises(ValueError, match='^alphazero needs mctx: pip install "mctx==0.0.71"$'):
        alphazero.make_train(TINY)


# --- perfect play -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tree():
    return perfect.positions(GAME()[0])


def minimax(boards, successors):
    """A move (number,) of perfect play in each position."""
    order = range(len(successors) - 1, -1, -1)
    mover, ended = np.asarray(boards.current_player), np.asarray(boards.terminated)
    rewards, moves = np.asarray(boards.rewards), np.zeros(len(successors), int)
    value = np.zeros(len(successors))  # of the player to move
    for i in order:  # successors have higher numbers
        if ended[i]:
            value[i] = rewards[i, mover[i]]
            continue
        of = [-value[j] if j >= 0 else -9.0 for j in successors[i]]
        moves[i], value[i] = int(np.argmax(of)), max(of)
    return moves, value


def test_the_checker_finds_losses_and_passes_perfect_play(tree):
    boards, successors = tree
    assert len(successors) == 5478 and int(boards.terminated.sum()) == 958
    moves, value = minimax(boards, successors)
    assert value[0] == 0 and perfect.lost(boards, successors, moves) == [0, 0]
    first = np.argmax(boards.legal_action_mask, -1)
    assert min(perfect.lost(boards, successors, first)) > 0
    illegal = np.where(np.asarray(boards.legal_action_mask)[:, 0], moves, 0)
    assert min(perfect.lost(boards, successors, illegal)) > 0
    blunder = moves.copy()  # an edge beside a corner loses
    blunder[successors[0, 0]] = 1
    found = perfect.lost(boards, successors, blunder)
    assert found[0] == 0 and found[1] > 0


@pytest.mark.slow
def test_it_learns_to_play_tic_tac_toe_perfectly(tree):
    """Fewer moves than the preset has."""
    boards, successors = tree
    config = alphazero.Config(total_timesteps=200_000, num_evals=1, eval_at_start=False)
    state, _ = alphazero.make_train(config)(jax.random.key(0))
    for act in perfect.players(config, *GAME(), boards):
        assert perfect.lost(boards, successors, np.asarray(act(state))) == [0, 0]


CASE = Case(
    module=alphazero,
    tiny=TINY,
    metrics={
        "loss",
        "policy_loss",
        "value_loss",
        "entropy",
        "target_entropy",
        "mean_value",
        "explained_variance",
        "grad_norm",
    },
    evaluation=EVALUATION | {"eval_search_return", "eval_past_return"},
    pinned={},
    refused=(
        (dict(search="alpha"), "search='alpha': give gumbel or puct"),
        (dict(network="mlp"), "network='mlp': give dense or residual"),
        (dict(num_simulations=0), "num_simulations=0: give a whole number, 1 or more"),
        (dict(opening_moves=-1), "opening_moves=-1: give a whole number, 0 or more"),
        (dict(num_minibatches=3), "num_minibatches=3 does not divide num_envs . num_steps"),
    ),
    unswept=OF_PUCT,
    swept=dict(num_steps=24, num_envs=4, total_timesteps=3 * 96),
    other=dict(adam_eps=1e-2, max_grad_norm=1e-2, weight_decay=0.5),
)
