"""Games of pgx: whose move it is, who sees what, who gets which reward."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms import vdn

pytestmark = pytest.mark.needs("pgx")


def key():
    return jax.random.key(0)


@functools.cache
def stepper(name, **settings):
    """An environment, its parameters and its compiled step."""
    env, params = envs.make(name, **settings)
    return env, params, jax.jit(lambda state, action: env.step_env(key(), state, action, params))


def play(name, moves, **settings):
    """The results of all steps of a game, from a start in which agent 1 moves first."""
    env, params, step = stepper(name, **settings)
    keys = (jax.random.key(i) for i in range(20))
    starts = (env.reset_env(key, params) for key in keys)
    state = next(state for _, state in starts if env.action_mask(state, params)[1].sum() > 1)
    results = []
    for move in moves:
        observation, state, reward, terminated, _ = step(state, jnp.array([move, move]))
        truncated = env.is_truncated(state, params) & ~terminated
        mask = env.action_mask(state, params)
        results.append((observation, state, reward, bool(terminated), bool(truncated), mask))
    return results


def test_both_agents_move_first_at_times():
    env, params = envs.make("pgx/tic_tac_toe")
    firsts = [int(env.reset_env(jax.random.key(i), params)[1].first) for i in range(20)]
    assert 4 < sum(firsts) < 16


def test_a_game_won_by_hand():
    """Agent 1 fills the upper row, agent 0 the middle one."""
    results = play("pgx/tic_tac_toe", [0, 3, 1, 4, 2])
    assert [bool(r[3]) for r in results] == [False] * 4 + [True]
    assert not any(r[4] for r in results)
    rewards = np.array([r[2] for r in results])
    np.testing.assert_array_equal(rewards, [[0.0, 0.0]] * 4 + [[-1.0, 1.0]])
    observation, _, _, _, _, mask = results[2]  # stones on 0, 3 and 1
    own_first = lambda agent: np.asarray(observation[agent]).reshape(9, 2)
    np.testing.assert_array_equal(np.flatnonzero(own_first(1)[:, 0]), [0, 1])
    np.testing.assert_array_equal(np.flatnonzero(own_first(1)[:, 1]), [3])
    np.testing.assert_array_equal(np.flatnonzero(own_first(0)[:, 0]), [3])
    np.testing.assert_array_equal(np.flatnonzero(own_first(0)[:, 1]), [0, 1])
    np.testing.assert_array_equal(np.flatnonzero(mask[0]), [2, 4, 5, 6, 7, 8])  # it is to move
    np.testing.assert_array_equal(np.flatnonzero(mask[1]), [0])


def test_only_the_move_of_the_agent_to_move_counts():
    step = stepper("pgx/tic_tac_toe")[2]
    _, state, *_ = play("pgx/tic_tac_toe", [0])[0]  # agent 0 is to move
    boards = [step(state, jnp.array([4, other]))[1].inner._x.board for other in (0, 4, 8)]
    for board in boards:
        np.testing.assert_array_equal(board, boards[0])
    assert boards[0][4] != -1 and boards[0][8] == -1


def test_an_illegal_move_loses():
    reward, terminated = play("pgx/tic_tac_toe", [0, 0])[-1][2:4]
    np.testing.assert_array_equal(reward, [-1.0, 1.0])
    assert terminated


def test_the_adapter_s_limit_truncates_and_an_end_by_the_rules_does_not():
    results = play("pgx/tic_tac_toe", [0, 3, 1, 4], max_steps=4)
    assert [r[3:5] for r in results] == [(False, False)] * 3 + [(False, True)]
    assert play("pgx/tic_tac_toe", [0, 3, 1, 4, 2], max_steps=5)[-1][3:5] == (True, False)


def test_both_final_observations_survive_a_restart():
    env, params = envs.make("pgx/tic_tac_toe")
    batch = envs.batch(env, 2, 8)
    _, state = batch.reset(key(), params)
    step = jax.jit(lambda state, action: batch.step(key(), state, action, params))
    for move in (0, 3, 1, 4, 2):
        observation, state, reward, terminated, truncated, info = step(
            state, jnp.full((2, 2), move)
        )
    assert terminated.all() and not truncated.any()
    assert (np.sort(reward, -1) == [-1.0, 1.0]).all()
    assert (info["final_observation"].sum((-1, -2, -3)) == 5).all()
    assert (observation == 0).all()


# --- what a player may know -------------------------------------------------------------------

DEALS = {
    "kuhn_poker": [(i, j) for i in range(3) for j in range(3) if i != j],
    "leduc_holdem": [
        (i, j, k) for i in range(3) for j in range(3) for k in range(3) if not i == j == k
    ],
}


def positions(name, history):
    """All positions of a card game: (information set of the player to move, what it sees)."""
    env, params, _ = stepper(f"pgx/{name}", history=history)
    width = {"kuhn_poker": 64, "leduc_holdem": 8192}[name]
    step = jax.jit(jax.vmap(lambda state, action: env.step_env(key(), state, action, params)[:2]))
    see = jax.vmap(env._observe)
    starts = []
    for cards in DEALS[name]:
        for first in (0, 1):
            state = env.reset_env(key(), params)[1]
            player = jnp.int32(first)
            changes = {"current_player": player, "_cards": jnp.array(cards, jnp.int32)}
            changes |= {"_first_player": player} if name == "leduc_holdem" else {}
            starts.append(state.replace(inner=state.inner.replace(**changes), first=player))
    states = jax.tree.map(lambda *x: np.stack(x), *starts)  # NumPy's rows are fast to read
    acted, found = [()] * len(starts), []
    while acted:
        seen, inner = np.asarray(see(states)), states.inner
        for i, actions in enumerate(acted):
            player = inner.current_player[i]
            known = (int(inner._cards[i][player]), bool(player == states.first[i]), actions)
            if name == "leduc_holdem" and inner._round[i]:
                known += (int(inner._cards[i][2]),)
            found.append((known, seen[i][player].tobytes()))
        pairs = [
            (i, a) for i in range(len(acted)) for a in np.flatnonzero(inner.legal_action_mask[i])
        ]
        assert len(pairs) <= width
        padded = np.array(pairs + pairs[:1] * (width - len(pairs)))
        after = step(rows(states, padded[:, 0]), jnp.repeat(jnp.array(padded[:, 1:]), 2, -1))[1]
        alive = np.flatnonzero(~np.asarray(after.terminated)[: len(pairs)])
        acted = [(*acted[pairs[i][0]], int(pairs[i][1])) for i in alive]
        states = rows(after, alive)
    return found


def rows(states, which):
    return jax.tree.map(lambda x: np.asarray(x)[which], states)


@pytest.mark.parametrize("name, sets", [("kuhn_poker", 12), ("leduc_holdem", 288)])
def test_positions_look_alike_if_and_only_if_the_player_cannot_tell_them_apart(name, sets):
    """Kuhn's game has 12 information sets, Leduc's 288 (Southey et al. 2005)."""
    found = positions(name, history=True)
    assert len({known for known, _ in found}) == sets
    assert len({seen for _, seen in found}) == sets
    assert len(set(found)) == sets


def test_pgx_alone_shows_a_player_of_kuhn_poker_less():
    found = positions("kuhn_poker", history=False)
    assert len({seen for _, seen in found}) < len({known for known, _ in found}) == 12


# --- names and settings -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, chance, hidden",
    [("connect_four", False, False), ("kuhn_poker", True, True), ("2048", True, False)],
)
def test_chance_and_hidden_information(name, chance, hidden):
    env, _ = envs.make(f"pgx/{name}")
    assert (env.chance, env.hidden_information) == (chance, hidden)


@pytest.mark.parametrize("mixer", ["sum", "monotonic"])
def test_opponents_are_no_team(mixer):
    config = vdn.Config(env="pgx/tic_tac_toe", env_settings=(), mixer=mixer)
    with pytest.raises(ValueError, match=f"mixer='{mixer}' .* pgx/tic_tac_toe are opponents"):
        vdn.make_train(config)
    vdn.make_train(config.replace(mixer="none"))


def test_sizes_of_boards():
    env, params = envs.make("pgx/hex", size=5)
    assert env.observation_space(params).shape[:2] == (5, 5)
    assert env.num_actions == 26  # with the swap
    results = play("pgx/hex", [0, 1, 5, 6, 10, 11, 15, 16, 20], size=5)  # from edge to edge
    assert [r[3] for r in results] == [False] * 8 + [True]
    np.testing.assert_array_equal(results[-1][2], [-1.0, 1.0])
    np.testing.assert_array_equal(np.flatnonzero(~results[0][5][0]), [0])  # a swap is legal
    assert np.flatnonzero(~results[1][5][1]).tolist() == [0, 1, 25]


def test_a_game_for_one_has_no_axis_of_agents():
    env, params, step = stepper("pgx/2048")
    observation, state = env.reset_env(key(), params)
    assert not hasattr(env, "num_agents") and observation.shape == (4, 4, 31)
    mask = env.action_mask(state, params)
    np.testing.assert_array_equal(mask, state.inner.legal_action_mask)
    assert step(state, jnp.argmax(mask))[2].shape == ()
    boards = [
        env.step_env(jax.random.key(i), state, jnp.argmax(mask), params)[0].tobytes()
        for i in range(4)
    ]
    assert len(set(boards)) > 1  # where a new tile appears is up to the key
    env, params = envs.make("pgx/minatar-breakout", sticky_action_prob=0.0)
    assert not hasattr(env, "action_mask")


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("pgx/sparrow_mahjong", {}, "unknown environment of pgx 'sparrow_mahjong'"),
        ("pgx/tictactoe", {}, "did you mean tic_tac_toe"),
        ("pgx/tic_tac_toe", {"history": True}, "unknown setting of pgx/tic_tac_toe: 'history'"),
        ("pgx/kuhn_poker", {"history": 3}, "history=3: give true or false"),
        ("pgx/hex", {"size": "x"}, "pgx/hex with {'size': 'x'}"),
    ],
)
def test_refusals(name, settings, message):
    with pytest.raises(ValueError, match=message):
        envs.make(name, **settings)
