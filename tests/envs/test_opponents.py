"""Games of two for one agent: who moves when, what the learner gets, who may be the opponent."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from envs import games, registry

pytestmark = pytest.mark.needs("pgx")


def lowest(rng, observation, mask):
    """An opponent that takes the first legal action."""
    return jnp.argmax(mask)


@functools.cache
def made(name, opponent, **settings):
    """An environment, its parameters, and its compiled reset and step."""
    env, params = envs.make(name, opponent=opponent, **settings)
    reset = jax.jit(lambda key, params: env.reset_env(key, params))
    return env, params, reset, jax.jit(lambda *given: env.step_env(*given))


def by_hand(game, board, step):
    """pgx's steps of an opponent that takes the first legal action, and what agent 0 gets."""
    total, moves = 0.0, 0
    while board.current_player != 0 and not (board.terminated or board.truncated):
        board = step(board, jnp.argmax(board.legal_action_mask))
        total, moves = total + float(board.rewards[0]), moves + 1
    return board, total, moves


@pytest.mark.parametrize(
    "name, seeds, moves", [("tic_tac_toe", 8, 5), ("othello", 6, 8), ("leduc_holdem", 12, 8)]
)
def test_games_are_those_of_pgx_with_replies(name, seeds, moves):
    """Passes of Othello are moves; a player of Leduc hold'em may move twice in a row."""
    env, params, reset, step = made(f"pgx/{name}", lowest)
    pgx_step, observe = jax.jit(env.wrapped.step), jax.jit(env.wrapped.observe)
    firsts, ends, replies = set(), [], set()
    for seed in range(seeds):
        observation, state = reset(jax.random.key(seed), params)
        first = state.inner.first
        changes = {"current_player": first}
        if name == "leduc_holdem":
            changes |= {"_cards": state.inner.inner._cards, "_first_player": first}
        board = env.wrapped.init(jax.random.key(0)).replace(**changes)
        board, *_ = by_hand(env.wrapped, board, pgx_step)
        rng, over = np.random.default_rng(seed), False
        for move in range(moves):
            seen = np.asarray(observe(board, jnp.int32(0)), np.float32)
            np.testing.assert_array_equal(
                seen, observation[..., : seen.shape[-1]].reshape(seen.shape)
            )
            np.testing.assert_array_equal(board.legal_action_mask, env.action_mask(state, params))
            assert state.inner.inner.current_player == 0 and not over
            action = rng.choice(np.flatnonzero(board.legal_action_mask))
            board = pgx_step(board, action)
            mine = float(board.rewards[0])
            board, theirs, count = by_hand(env.wrapped, board, pgx_step)
            key = jax.random.key(move)
            observation, state, reward, over, _ = step(key, state, jnp.int32(action), params)
            assert reward == mine + theirs and over == board.terminated
            assert not env.is_truncated(state, params)
            replies.add(count)
            if over:
                ends.append((mine, theirs))
                break
        firsts.add(int(first))
    assert firsts == {0, 1}
    if name == "tic_tac_toe":  # both sides win by their own move
        assert {(0.0, -1.0), (1.0, 0.0)} <= set(ends)
    if name == "leduc_holdem":
        assert max(replies) == 2


def test_passes_of_othello_are_moves_of_the_learner():
    """A learner that must pass has one legal action, and it is its turn."""
    env, params, reset, step = made("pgx/othello", lowest)
    passes = 0
    for seed in range(4):
        _, state = reset(jax.random.key(seed), params)
        over, rng = False, np.random.default_rng(seed)
        while not over:
            mask = np.asarray(env.action_mask(state, params))
            assert state.inner.inner.current_player == 0 and mask.any()
            passes += bool(mask[64])
            action = jnp.int32(rng.choice(np.flatnonzero(mask)))
            _, state, _, over, _ = step(jax.random.key(0), state, action, params)
    assert passes


@pytest.mark.parametrize("name", ["connect_four", "hex", "kuhn_poker", "othello"])
def test_players_alternate_where_the_adapter_says_so(name):
    game = envs.make(f"pgx/{name}")[0]
    assert game.alternates and not envs.make("pgx/leduc_holdem")[0].alternates
    step = jax.jit(jax.vmap(game.wrapped.step))
    boards = jax.vmap(game.wrapped.init)(jax.random.split(jax.random.key(0), 4))
    for i in range(12):
        moves = games.random_move(jax.random.key(i), boards)
        after = step(boards, moves, jax.random.split(jax.random.key(i), 4))
        on = np.asarray(~(after.terminated | after.truncated))
        assert (np.asarray(boards.current_player != after.current_player)[on]).all()
        boards = after


def test_a_random_opponent_draws_from_legal_moves_and_either_side_begins():
    env, params = made("pgx/tic_tac_toe", "random")[:2]
    keys = jax.random.split(jax.random.key(0), 1000)
    observation, state = jax.vmap(env.reset_env, (0, None))(keys, params)
    stones = np.asarray(observation).reshape(1000, 9, 2)
    assert (stones[..., 0] == 0).all()  # none of the learner's
    begins = stones[..., 1].sum(-1)
    assert 430 < begins.sum() < 570
    counts = stones[..., 1].sum(0)
    assert counts.min() > 30 and counts.max() < 85  # of 55 on average
    step = jax.vmap(env.step_env, (0, 0, 0, None))
    mask = jax.vmap(env.action_mask, (0, None))(state, params)
    keys = jax.random.split(jax.random.key(1), 1000)
    observation, state, _, terminated, _ = step(keys, state, jnp.argmax(mask, -1), params)
    assert not np.asarray(terminated).any()
    np.testing.assert_array_equal(observation.reshape(1000, 9, 2)[..., 1].sum(-1), begins + 1)


def test_time_limits_count_moves_of_the_learner_or_of_both():
    env, params, reset, step = made("pgx/tic_tac_toe", lowest, max_steps=2)
    _, state = reset(jax.random.key(0), params)
    cut = []
    for action in (8, 7):
        _, state, _, over, _ = step(jax.random.key(0), state, jnp.int32(action), params)
        cut.append(bool(env.is_truncated(state, params)))
        assert not over
    assert cut == [False, True]
    env, params, reset, step = made("pgx/tic_tac_toe", lowest, max_steps_in_episode=3)
    keys = map(jax.random.key, range(20))
    state = next(s for s in (reset(key, params)[1] for key in keys) if s.inner.first == 0)
    _, state, *_ = step(jax.random.key(0), state, jnp.int32(8), params)
    assert int(state.inner.steps) == 2 and not env.is_truncated(state, params)
    _, state, *_ = step(jax.random.key(0), state, jnp.int32(7), params)
    assert int(state.inner.steps) == 4 and env.is_truncated(state, params)
    legal = env.action_mask(state, params)  # a reply came, so this is a position of the learner
    np.testing.assert_array_equal(legal, [0, 0, 1, 1, 1, 1, 1, 0, 0])


def test_the_final_observation_shows_the_opponent_s_last_move():
    env, params = made("pgx/tic_tac_toe", lowest)[:2]
    batch = envs.batch(env, 2, 8)
    observation, state = batch.reset(jax.random.key(3), params)
    step = jax.jit(lambda key, state, action: batch.step(key, state, action, params))
    for i, move in enumerate((8, 7, 5)):
        action = jnp.full(2, move, jnp.int32)
        observation, state, reward, terminated, _, info = step(jax.random.key(i), state, action)
    assert (np.asarray(reward) == -1).any()
    lost = int(np.argmin(reward))
    assert terminated[lost]
    theirs = info["final_observation"][lost].reshape(9, 2)[:, 1]
    np.testing.assert_array_equal(theirs[:3], [1, 1, 1])
    assert observation[lost].sum() <= 1  # a new game


# --- policies as opponents --------------------------------------------------------------------


def prefers(state, observation, memory, rng, mask):
    """The legal action of the highest number in `state`; a memory counts the calls."""
    memory = jnp.zeros(2, jnp.int32) if memory is None else memory
    return jnp.argmax(jnp.where(mask, state, -1.0), axis=-1), memory + 1


def test_an_opponent_acts_by_the_arrays_of_the_parameters():
    player = games.Player(prefers, jnp.arange(9.0))
    env, params = envs.make("pgx/tic_tac_toe", opponent=player)
    start = lambda seed, params: env.reset_env(jax.random.key(seed), params)
    seed = next(seed for seed in range(20) if start(seed, params)[1].inner.first == 1)
    moved = lambda params: int(jnp.argmax(start(seed, params)[0].reshape(9, 2)[:, 1]))
    assert moved(params) == 8
    assert moved(params.replace(opponent=-jnp.arange(9.0))) == 0


@pytest.mark.parametrize("per_turn", [False, True])
def test_a_memory_advances_at_every_move_or_at_one_s_own(per_turn):
    player = games.Player(prefers, jnp.arange(9.0), per_turn=per_turn)
    env, params = envs.make("pgx/tic_tac_toe", opponent=player)
    for seed in range(4):
        _, state = env.reset_env(jax.random.key(seed), params)
        _, state, *_ = env.step_env(jax.random.key(0), state, jnp.int32(0), params)
        begun = int(state.inner.first)  # by the opponent, with one more move
        assert int(state.inner.steps) == 2 + begun
        assert int(state.memory[1]) == (1 + begun if per_turn else 2 + begun)


def test_a_match_gives_each_player_its_own_view_and_memory():
    """The first player takes the highest cell, the other one the lowest."""
    env, params = envs.make("pgx/tic_tac_toe")
    mine, other = games.Player(prefers, jnp.arange(9.0)), games.by_function(lowest)
    played = games.play(env, params, mine, other, 4, 0, jax.random.key(0))
    # 8 7 6 against 0 1 2: who begins is first to fill a row.
    np.testing.assert_array_equal(played["return"], [1, -1, 1, -1])
    np.testing.assert_array_equal(played["length"], [5, 5, 5, 5])
    wrapped, params = envs.make("pgx/tic_tac_toe", max_steps=4, frame_stack=2)
    played = games.play(wrapped, params, mine, other, 2, 0, jax.random.key(0))
    assert np.asarray(played["truncated"]).all() and (np.asarray(played["length"]) == 4).all()


def mixed(seen, mask, calls=0):
    """A legal action that differs from position to position, and by the number of calls so far."""
    stones = seen.reshape(*seen.shape[:-3], 18).astype(jnp.int32)
    code = (stones * jnp.arange(1, 19)).sum(-1) + 5 * calls
    scores = code[..., None] * jnp.array([11, 13, 17, 19, 23, 29, 31, 37, 41]) % 43
    return jnp.argmax(jnp.where(mask, scores, -1), axis=-1)


def counts_calls(state, observation, memory, rng, mask):
    memory = jnp.zeros(2, jnp.int32) if memory is None else memory
    return mixed(observation, mask, memory + state), memory + 1


SIDES = {
    "function": lambda rng, boards: mixed(boards.observation, boards.legal_action_mask),
    "policy": games.Player(lambda _, seen, memory, rng, mask: (mixed(seen, mask, 1), memory)),
    "memory": games.Player(counts_calls, jnp.int32(2)),
    "memory of its turns": games.Player(counts_calls, jnp.int32(3), per_turn=True),
}


@pytest.mark.parametrize("mine, other", [("function", "memory"), ("memory of its turns", "policy")])
def test_games_are_the_same_if_sides_move_only_in_their_turn(mine, other, monkeypatch):
    env, params = envs.make("pgx/tic_tac_toe")
    play = lambda: games.play(env, params, SIDES[mine], SIDES[other], 12, 1, jax.random.key(0))
    in_turn = play()
    monkeypatch.setattr(env, "alternates", False)
    assert len(set(zip(*(np.asarray(x).tolist() for x in in_turn.values())))) > 3
    jax.tree.map(np.testing.assert_array_equal, in_turn, play())


@pytest.mark.parametrize(
    "name, number, searched",
    [("tic_tac_toe", 6, 3), ("tic_tac_toe", 5, 5), ("leduc_holdem", 6, 6)],
)
def test_functions_move_in_half_of_the_games_where_turns_alternate(name, number, searched):
    sizes = []

    def act(rng, boards):
        sizes.append(len(boards.current_player))
        return games.random_move(rng, boards)

    env, params = envs.make(f"pgx/{name}")
    play = lambda rng: games.play(env, params, act, act, number, 0, rng)
    jax.eval_shape(play, jax.random.key(0))
    assert sizes and set(sizes) == {searched}


def two_numbers(rng, observation, mask):
    return jnp.zeros(2)


def fails(rng, observation, mask):
    raise TypeError("no\nmore")


TREE = games.Player(lambda state, *_: (state["actions"], None), {"actions": jnp.zeros(2)})


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("2048", {"opponent": "random"}, "pgx/2048 has one player"),
        ("tic_tac_toe", {"opponent_point": 3}, "opponent_point: goes with an opponent"),
        ("tic_tac_toe", {"opponent": "random", "opponent_trial": 1}, "opponent_trial=1 goes with"),
        ("tic_tac_toe", {"opponent": 3}, "opponent=3: give random, the directory"),
        ("tic_tac_toe", {"opponent": "a", "opponent_sample": "no"}, "'no': give true or false"),
        ("tic_tac_toe", {"opponent": two_numbers}, "an action is a number"),
        ("tic_tac_toe", {"opponent": fails}, "does not fit pgx/tic_tac_toe: no$"),
        ("tic_tac_toe", {"oponent": "random"}, "did you mean opponent"),
        ("tic_tac_toe", {"opponent": "random", "randomize": "opponent:log:1:2"}, "no parameter"),
        ("tic_tac_toe", {"opponent": TREE, "randomize": "komi:log:1:2"}, "has no parameter that"),
    ],
)
def test_refusals(name, settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make(f"pgx/{name}", **settings)


def test_a_directory_needs_somebody_who_can_read_it(monkeypatch):
    monkeypatch.setattr(registry, "find_run", None)
    with pytest.raises(ValueError, match="opponent='runs/x': the launcher reads"):
        envs.make("pgx/tic_tac_toe", opponent="runs/x")
    found = []
    find = lambda path, game, **more: found.append((path, game.name, more)) or games.RANDOM
    monkeypatch.setattr(registry, "find_run", find)
    envs.make("pgx/tic_tac_toe", opponent="runs/y", opponent_point=3)
    more = {"point": 3, "trial": 0, "sample": False}
    assert found == [("runs/y", "pgx/tic_tac_toe", more)]


class LastMove(NamedTuple):
    """The last action of both sides, one-hot, as with `previous_inputs`."""

    action: jax.Array


def remembers(state, observation, memory, rng, mask):
    """The first legal action; an illegal one if who waits remembers another move than its last."""
    stones = observation.reshape(2, 9, 2)
    memory = LastMove(jnp.zeros((2, 9))) if memory is None else memory
    own, waits, played = stones[..., 0], mask.sum(-1) == 1, stones[0].sum()
    wrong = waits & own.any(-1) & ((own * memory.action).sum(-1) == 0)
    action = jnp.where(wrong.any() & (played < 8), jnp.argmin(mask, -1), jnp.argmax(mask, -1))
    return action, LastMove(jax.nn.one_hot(action, 9))


@pytest.mark.parametrize("number", [4, 3])
def test_a_memory_has_the_random_moves_of_the_opening(number):
    env, params = envs.make("pgx/tic_tac_toe")
    first = lambda rng, boards: jnp.argmax(boards.legal_action_mask, axis=-1)
    play = lambda player: games.play(env, params, player, player, number, 4, jax.random.key(0))
    played, expected = jax.jit(lambda: (play(games.Player(remembers)), play(first)))()
    np.testing.assert_array_equal(played["length"], expected["length"])
    np.testing.assert_array_equal(played["return"], expected["return"])
