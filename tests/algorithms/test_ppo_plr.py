"""PPO with prioritised level replay: scores, priorities, and which levels are played and learned.

tests/algorithms/parts/test_levels.py has the buffer, and tests/envs/test_levels.py the levels.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms import parts, ppo, ppo_plr
from algorithms.parts import training
from tests import probe as tasks
from tests.algorithms.cases import Case, again, assert_close, change_leaves
from tests.algorithms.test_ppo import random_rollout
from tests.algorithms.test_probes import play_actor_critic

PLAIN = dict(normalize_obs=False, normalize_reward=False, adam_eps=1e-5)
POLE = "length:uniform:0.25:1/gravity:log:5:20"
TINY = ppo_plr.Config(
    **PLAIN,
    env_settings=(("randomize", POLE), ("max_steps", 5)),
    total_timesteps=3 * 80,
    num_envs=4,
    num_steps=20,
    num_minibatches=2,
    update_epochs=2,
    level_buffer_size=48,  # half full after two updates, which end 16 levels each
    hidden_sizes=(8,),
    num_evals=3,
    num_eval_episodes=2,
)


# --- formulas ---------------------------------------------------------------------------------


def plain_distribution(config, score, played, update):
    """The probabilities of slots, by the equations of the paper."""
    filled = [i for i, s in enumerate(score) if s > -np.inf]
    ordered = sorted(filled, key=lambda i: -score[i])
    of_score, stale = np.zeros(len(score)), np.zeros(len(score))
    for i in filled:
        h = 1.0 / (1 + ordered.index(i)) if config.priority == "rank" else max(score[i], 1e-8)
        of_score[i] = h ** (1.0 / config.temperature)
        stale[i] = update - played[i]
    if filled and stale.sum() == 0:
        stale[filled] = 1.0
    rho = config.staleness_coef
    return (1 - rho) * of_score / of_score.sum() + rho * stale / stale.sum()


@functools.partial(jax.jit, static_argnums=0)
def distribution_of(priority, floats, score, played, update):
    config, zeros = TINY.replace(priority=priority, **floats), jnp.zeros(len(score))
    level = envs.Level(jnp.zeros((len(score), 2), jnp.uint32), zeros[:, None])
    buffer = parts.LevelBuffer(level, score, zeros, played)
    return ppo_plr.replay_distribution(config, buffer, update)


def distribution(config, score, played, update):
    """The program's distribution; one program serves all buffers of a size."""
    floats = dict(temperature=config.temperature, staleness_coef=config.staleness_coef)
    score, played = np.asarray(score, np.float32), np.asarray(played, np.int32)
    return distribution_of(config.priority, floats, score, played, update)


@pytest.mark.parametrize("priority", ["rank", "score"])
@pytest.mark.parametrize("temperature, rho", [(0.3, 0.3), (1.0, 0.0), (2.5, 0.7), (0.1, 1.0)])
def test_replay_distribution_is_that_of_the_paper(priority, temperature, rho):
    rng = np.random.default_rng(0)
    config = TINY.replace(priority=priority, temperature=temperature, staleness_coef=rho)
    for empty in (0, 5, 11):
        score, played = rng.normal(0.3, size=12), rng.integers(0, 40, 12)
        score[rng.permutation(12)[:empty]] = -np.inf
        found = distribution(config, score, played, 40)
        expected = plain_distribution(config, score, played, 40)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(found.sum(), 1.0, rtol=1e-5)


@pytest.mark.parametrize("priority", ["rank", "score"])
def test_every_level_can_be_replayed_at_the_lowest_temperature(priority):
    """Their chances are small, but not 0: a level of chance 0 counts as none."""
    config = TINY.replace(priority=priority, temperature=0.01, staleness_coef=0.0)
    score = [*np.linspace(-1.0, 3.0, 10), -np.inf, -np.inf]
    found = np.asarray(distribution(config, score, [0] * 12, 4))
    assert (found[:10] > 0).all() and not found[10:].any()


def test_replay_distribution_without_levels_and_with_levels_just_scored():
    nothing = distribution(TINY, [-np.inf] * 12, [0] * 12, 4)
    np.testing.assert_array_equal(nothing, np.zeros(12))
    config = TINY.replace(staleness_coef=1.0)
    found = distribution(config, [1.0, 2.0, *[-np.inf] * 10], [4, 4, *[0] * 10], 4)
    np.testing.assert_allclose(found, [0.5, 0.5, *[0.0] * 10])


def test_shares_are_reflected_at_the_ends_of_the_range():
    found = ppo_plr.reflect(jnp.array([0.0, 0.3, 1.0, 1.2, -0.25, 2.1, -1.4]))
    np.testing.assert_allclose(found, [0.0, 0.3, 1.0, 0.8, 0.25, 0.1, 0.6], atol=1e-6)


def test_means_and_deviations_are_of_the_samples_that_count():
    rng = np.random.default_rng(0)
    x, counts = rng.normal(3.0, 2.0, 50), rng.random(50) < 0.4
    weights = jnp.array(1.0 * counts)
    kept = x[counts]
    np.testing.assert_allclose(ppo_plr.weighted_mean(x, weights), kept.mean(), rtol=1e-5)
    found = ppo_plr.standardised(jnp.array(x), weights)
    expected = (kept - kept.mean()) / (kept.std() + 1e-8)
    np.testing.assert_allclose(found[counts], expected, rtol=1e-4)
    assert ppo_plr.weighted_mean(x, jnp.zeros(50)) == 0.0
    assert np.isfinite(ppo_plr.standardised(jnp.array(x), jnp.zeros(50))).all()


def test_formulas_of_ppo_are_the_same():
    rollout = random_rollout(3)
    assert_close(ppo_plr.gae(*rollout, 0.9, 0.8), ppo.gae(*rollout, 0.9, 0.8))
    log_ratio, advantages = np.random.default_rng(0).normal(size=(2, 200)).astype(np.float32)
    found = ppo_plr.clipped_surrogate(log_ratio, advantages, 0.2)
    assert found.shape == (200,)
    np.testing.assert_allclose(
        found.mean(), ppo.clipped_surrogate(log_ratio, advantages, 0.2), rtol=1e-5
    )


def test_learning_rates_are_linear_and_reach_their_floor():
    config = ppo_plr.Config(update_epochs=2, num_minibatches=4, learning_rate=0.5)
    run = np.concatenate([ppo_plr.learning_rates(config, 5, jnp.int32(i)) for i in range(5)])
    np.testing.assert_allclose(run, 0.5 * (1.0 - np.arange(40) / 40), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(ppo_plr.learning_rates(config, 5, jnp.int32(7)), np.zeros(8))
    constant = ppo_plr.learning_rates(config.replace(anneal_lr=False), 5, jnp.int32(3))
    np.testing.assert_array_equal(constant, np.full(8, 0.5))


# --- which levels are played ------------------------------------------------------------------

# A level's reward is 2 share - 1, in episodes of one step. Values are and stay 0, so its advantage,
# too, is the reward. An update has one window, so that an environment plays one step in the level
# that is running and one in the level of the stock, which is then running.
REWARDS = envs.make(tasks.Probe(), randomize="reward:uniform:-1:1", start_window=8)
STILL = TINY.replace(
    env_settings=(),
    num_envs=4,
    num_steps=2,
    num_minibatches=1,
    update_epochs=1,
    level_buffer_size=16,
    min_fill=0.5,
    learning_rate=0.0,
    gamma=0.9,
    staleness_coef=0.0,
)


def between(state):
    """A state between updates, whose type is always the same, so that it needs one program."""
    return jax.tree.map(lambda x: x.astype(x.dtype), training.between_updates(state))


def without_learning(before, after):
    """A state between updates with the parameters from before, so that XLA leaves out learning."""
    policy = after.policy.replace(params=before.policy.params)
    return between(after.replace(policy=policy, opt_state=before.opt_state))


@functools.cache
def program(other=False):
    """init(key), and update(config, state), of STILL, or with the other static settings.

    The others matter to no test together: maxmc to scores, `robust` to what is learned, and rewards
    are divided by 1 unless a test knows another deviation.
    """
    static = dict(score="maxmc", robust=True, normalize_reward=True) if other else {}

    def init(key):
        state = ppo_plr.learner(STILL.replace(**static), *REWARDS).init(key)
        return between(change_leaves(state, ("critic_head",), jnp.zeros_like))

    def update(config, state):
        state, metrics = ppo_plr.learner(config.replace(**static), *REWARDS).update(state)
        return between(state), metrics

    return jax.jit(init), jax.jit(update)


def run(config, updates, state=None, other=False):
    """The states after each update, and their metrics."""
    init, update = program(other)
    state, states, rows = init(jax.random.key(0)) if state is None else state, [], []
    for _ in range(updates):
        state, row = update(config, again(state))
        states.append(again(state))
        rows.append(row)
    return states, rows


def programs(learner):
    """init and update without learning."""

    def update(state):
        after, metrics = learner.update(state)
        return without_learning(state, after), metrics["levels_filled"]

    return jax.jit(lambda key: between(learner.init(key))), jax.jit(update)


def worth(level):
    return 2.0 * np.asarray(level.shares[..., 0]) - 1.0


def assert_scores(states, rows, expected):
    """Asserts the scores after eight updates."""
    buffer = states[-1].levels
    filled = np.asarray(buffer.filled)
    assert filled.sum() > 8
    np.testing.assert_allclose(buffer.score[filled], expected[filled], atol=1e-4)
    np.testing.assert_allclose(buffer.best[filled], worth(buffer.level)[filled], atol=1e-5)
    total, weight = rows[-1]["level_score"]
    np.testing.assert_allclose(total / weight, expected[filled].mean(), atol=1e-4)
    assert weight == filled.sum() and rows[-1]["levels_filled"] == filled.mean()
    assert buffer.played.max() == 7 and buffer.played.min() < 7
    total, weight = rows[-1]["level_staleness"]
    np.testing.assert_allclose(total / weight, (7 - np.asarray(buffer.played))[filled].mean())


def test_pvl_is_the_positive_part_of_advantages():
    """Which are the rewards here, as values are 0."""
    states, rows = run(STILL, 8)
    assert_scores(states, rows, np.maximum(worth(states[-1].levels.level), 0.0))


def test_maxmc_is_the_best_return_above_the_value_in_the_units_of_values():
    """All values are 0.5 here, and rewards are divided by a deviation of 2."""
    state = program(other=True)[0](jax.random.key(0))
    state = change_leaves(state, ("critic_head", "bias"), lambda x: jnp.full_like(x, 0.5))
    stats = state.reward_scale.stats
    stats = stats.replace(var=jnp.full_like(stats.var, 4.0), count=jnp.full_like(stats.count, 1e9))
    state = state.replace(reward_scale=state.reward_scale.replace(stats=stats))
    states, rows = run(STILL.replace(clip_reward=0.1), 8, state, other=True)
    assert_scores(states, rows, worth(states[-1].levels.level) / 2.0 - 0.5)


def test_scores_are_means_over_the_steps_in_a_level():
    """Of levels played for three steps, for one, and for none yet."""
    level = envs.levels.draw(REWARDS[0], jax.random.key(0), 3)
    visits = parts.Visits.create(level, jnp.full(3, 16))
    visits = visits.replace(total=jnp.array([6.0, 6.0, 0.0]), steps=jnp.array([3.0, 1.0, 0.0]))
    found = ppo_plr.level_scores(STILL.replace(score="pvl"), visits, visits.best)
    np.testing.assert_array_equal(found, [2.0, 6.0, 0.0])
    best = jnp.array([5.0, 5.0, 1.0])
    found = ppo_plr.level_scores(STILL.replace(score="maxmc"), visits, best)
    np.testing.assert_array_equal(found, [3.0, -1.0, 1.0])


def test_the_buffer_keeps_the_highest_of_all_scores():
    """Sixteen slots, and 4 new levels in each update."""
    states, _ = run(STILL.replace(replay_share=0.0), 12)
    seen = np.concatenate([worth(state.running.level) for state in states[:-1]])
    first = worth(program()[0](jax.random.key(0)).running.level)
    best = np.sort(np.maximum(np.concatenate([first, seen]), 0.0))[-16:]
    np.testing.assert_allclose(np.sort(states[-1].levels.score), best, atol=1e-5)
    assert len(np.unique(seen)) == 44, "all levels are new"


def test_replays_wait_for_the_buffer_and_keep_their_share():
    """Levels are drawn before a rollout, and the rollout's first steps are in earlier levels."""
    states, rows = run(STILL, 6)
    slots = np.stack([state.running.slot for state in states])
    np.testing.assert_array_equal(slots[:2], 16)  # 0 levels of 16, then 4
    assert (slots[2:, :2] < 16).all() and (slots[2:, 2:] == 16).all()
    assert [float(row["replayed"]) for row in rows] == [0.0, 0.0, 0.25, 0.5, 0.5, 0.5]
    for state in states[2:]:
        slot = state.running.slot[:2]
        assert slot[0] != slot[1]
        level = state.running.level
        np.testing.assert_array_equal(state.levels.level.shares[slot], level.shares[:2])
        np.testing.assert_array_equal(state.levels.level.key[slot], level.key[:2])
    none, _ = run(STILL.replace(replay_share=0.0), 4)
    assert all((state.running.slot == 16).all() for state in none)
    every, _ = run(STILL.replace(replay_share=1.0), 4)
    assert (every[-1].running.slot < 16).all()


def test_replays_are_of_levels_with_something_to_learn():
    """Half of all levels have a score of 0."""
    states, _ = run(STILL.replace(temperature=0.1), 30)
    replayed = np.concatenate([worth(state.running.level)[:2] for state in states[8:]])
    others = np.concatenate([worth(state.running.level)[2:] for state in states[8:]])
    assert replayed.min() > 0.5 and abs(others.mean()) < 0.25 and others.min() < -0.5


SCORES = jnp.array([0.1, 0.9, -jnp.inf, 0.4, 0.5] + [-jnp.inf] * 11)
PLAYED = jnp.array([0, 30, 0, 10, 39] + [0] * 11, jnp.int32)


@jax.jit
def shares_and_slots(config, state, keys):
    """Of the visits that are running after an update, for each key; nothing else is computed."""

    def draw(key):
        after, _ = ppo_plr.learner(config, *REWARDS).update(state.replace(level_rng=key))
        return after.running.level.shares, after.running.slot

    return jax.vmap(draw)(keys)


def draws(config):
    """What an update (the 40th) of a buffer with SCORES and PLAYED draws, with 4000 keys.

    Returns the buffer's shares, and shares and slots of the running visits after the update.
    """
    state = run(config, 1)[0][-1]
    shares = jnp.arange(16.0)[:, None] / 16
    level = state.levels.level.replace(shares=shares)
    buffer = state.levels.replace(level=level, score=SCORES, played=PLAYED)
    state = state.replace(levels=buffer, update=jnp.int32(40))
    keys = jax.random.split(jax.random.key(1), 4000)
    floats = jax.tree.map(jnp.float32, config)
    return np.asarray(shares), *map(np.asarray, shares_and_slots(floats, state, keys))


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_replays_have_the_distribution_of_the_buffer(rho, vmapped_keys):
    """Those of the first environment. The second one replays another level."""
    config = STILL.replace(temperature=1.0, min_fill=0.0, staleness_coef=rho)
    of_buffer, shares, slots = draws(config)
    expected = plain_distribution(config, np.asarray(SCORES), np.asarray(PLAYED), 39)
    found = np.bincount(slots[:, 0], minlength=16)[:16] / 4000
    np.testing.assert_allclose(found, expected, atol=0.03)
    assert (slots[:, 0] != slots[:, 1]).all() and (slots[:, :2] < 16).all()
    np.testing.assert_array_equal(shares[:, :2], of_buffer[slots[:, :2]])


def test_parents_have_the_distribution_of_the_buffer(vmapped_keys):
    """Edits of size 0 show the parent."""
    config = STILL.replace(temperature=1.0, min_fill=0.0, edit_share=1.0, edit_std=0.0)
    _, shares, slots = draws(config)
    expected = plain_distribution(config, np.asarray(SCORES), np.asarray(PLAYED), 39)
    parent = (16 * shares[:, 2:, 0]).astype(int)
    found = np.bincount(parent.ravel(), minlength=16) / 8000
    np.testing.assert_allclose(found, expected, atol=0.03)
    assert (slots[:, 2:] == 16).all()


def test_shares_between_two_numbers_of_environments_hold_on_average():
    """A tenth of four environments is one environment in two updates of five."""
    states, _ = run(STILL.replace(replay_share=0.1, min_fill=0.0), 80)
    replays = np.stack([state.running.slot for state in states[2:]]) < 16
    assert 0.2 < replays[:, 0].mean() < 0.6 and not replays[:, 1:].any()


def test_a_full_buffer_is_full_whatever_its_size():
    """The mean of 41 ones in float32 can be less than 1."""
    config = STILL.replace(level_buffer_size=41, min_fill=1.0)
    init, update = programs(ppo_plr.learner(config, *REWARDS))
    state = init(jax.random.key(0))
    for full in (30, 41):
        score = jnp.where(jnp.arange(41) < full, 0.5, -jnp.inf).astype(jnp.float32)
        levels = state.levels.replace(score=score)
        # Every new level scores 0 or less, and finds no place but an empty one.
        running = state.running.replace(total=jnp.full(4, -1e9, jnp.float32))
        after, levels_filled = update(again(state).replace(levels=levels, running=running))
        assert levels_filled == pytest.approx(min(full + 4, 41) / 41)
        assert (after.running.slot < 41).any() == (full == 41)


def test_edited_levels_are_played_near_their_parents():
    """Two environments replay, the last one plays an edited level, and one plays a new level.

    In a public implementation edits are never played, because an index is clamped.
    """
    config = STILL.replace(edit_share=0.5, edit_std=0.02)
    states, _ = run(config, 12)
    moves = []
    for before, state in itertools.pairwise(states[1:]):
        keys, running = np.asarray(before.levels.level.key)[:, 0], state.running
        own = np.asarray(running.level.key)[:, 0]
        assert not np.isin(own[2], keys) and running.slot[2] == running.slot[3] == 16
        parents = worth(before.levels.level)[keys == own[3]]
        assert len(parents) >= 1
        moves.append(np.min(np.abs(parents - worth(running.level)[3])))
    moves = np.array(moves)
    assert (moves > 0).all() and moves.max() < 0.2 and moves.max() > 0.02
    entered = [len(np.unique(np.asarray(state.levels.level.key)[:, 0])) for state in states]
    assert entered[-1] < np.asarray(states[-1].levels.filled).sum(), "edits enter the buffer"
    none, _ = run(config.replace(edit_share=0.0), 8)
    for before, state in itertools.pairwise(none[1:]):
        keys = np.asarray(before.levels.level.key)[:, 0]
        assert not np.isin(np.asarray(state.running.level.key)[2:, 0], keys).any()


def test_nothing_is_edited_before_the_buffer_is_ready():
    """It is empty before the first update, and not half full before the next one."""
    states, _ = run(STILL.replace(edit_share=1.0, replay_share=0.0), 2)
    own = np.stack([state.running.level.key for state in states])
    assert own.any(-1).all() and len(np.unique(own[..., 0])) == 8
    assert not np.isin(own[1, :, 0], np.asarray(states[0].levels.level.key)[:, 0]).any()


@functools.cache
def keys_program():
    """init(key) and update(params, floats, state) in a probe, whose levels are keys alone."""

    def update(params, floats, state):
        learner = ppo_plr.learner(STILL.replace(**floats), tasks.Probe(), params)
        return without_learning(state, learner.update(state)[0])

    learner = ppo_plr.learner(STILL, tasks.Probe(), tasks.ProbeParams())
    return jax.jit(lambda key: between(learner.init(key))), jax.jit(update)


def test_levels_are_keys_where_nothing_is_randomised():
    """The probe's start is drawn by its key. Edits have nothing to change, and are new levels."""
    params, (init, update) = tasks.ProbeParams(task=tasks.OBSERVATION), keys_program()
    state = init(jax.random.key(0))
    for _ in range(8):
        state = update(params, dict(edit_share=1.0, replay_share=0.5, min_fill=0.5), again(state))
    assert state.running.level.shares is None
    buffer = state.levels
    assert len(np.unique(np.asarray(buffer.level.key)[:, 0])) == buffer.filled.sum() == 16
    start = lambda level: envs.levels.start(tasks.Probe(), level, params)[0][0]
    x = np.asarray(jax.jit(jax.vmap(start))(buffer.level))
    assert (np.asarray(buffer.best) == x).all() and (x == 1.0).sum() > 8, "those of reward 1"


def test_the_best_return_of_a_level_never_falls():
    """A level's return is that of random actions, 0 or 1 in each of two episodes.

    The first levels are replayed as soon as they fill a quarter of the buffer.
    """
    params, (init, update) = tasks.ProbeParams(task=tasks.ACTION), keys_program()
    state, best, replays = init(jax.random.key(0)), {}, 0
    for _ in range(20):
        state = update(params, dict(edit_share=0.0, replay_share=1.0, min_fill=0.25), again(state))
        replays += int((state.running.slot < 16).sum())
        for key, found in zip(np.asarray(state.levels.level.key)[:, 0], state.levels.best):
            assert found >= best.get(key, 0.0 if found > -np.inf else found)
            best[key] = float(found)
    assert replays > 30


# --- episodes ---------------------------------------------------------------------------------


@functools.cache
def clock_program():
    """init(params, key) and update(params, state) of rollouts of 8 steps."""
    config = STILL.replace(num_steps=8, normalize_reward=True, normalize_obs=True)
    learner = lambda params: ppo_plr.learner(config, tasks.Recall(), params)
    init = lambda params, key: between(learner(params).init(key))
    update = lambda params, state: without_learning(state, learner(params).update(state)[0])
    return jax.jit(init), jax.jit(update)


def clock(length, updates):
    """States after updates with episodes of this length."""
    params, (init, update) = tasks.RecallParams(tasks.CLOCK, length), clock_program()
    state, states = init(params, jax.random.key(0)), []
    for _ in range(updates):
        state = update(params, again(state))
        states.append(again(state))
    return states


def test_the_next_episode_is_in_the_next_level():
    """Episodes of 5 steps in rollouts of 8, a window: 5 steps in the first level, then 3 in a level
    of the stock. There 2 more steps follow, and 5 and 1 in the next one, because both episodes end
    in one window."""
    one, two, three = clock(5, 3)
    rewards = np.sin(5.0 * np.arange(1, 6))
    best = np.sum(0.9 ** np.arange(5) * rewards)
    for state, ended, steps in ((one, 1, 3), (two, 3, 6), (three, 4, 4)):
        np.testing.assert_array_equal(state.running.steps, np.full(4, steps))
        assert state.episodes.count == 4 * ended
        np.testing.assert_allclose(state.episodes.lengths.total, 20 * ended)
        np.testing.assert_allclose(
            state.episodes.returns.total, 4 * ended * rewards.sum(), rtol=1e-4
        )
        filled = np.asarray(state.levels.filled)
        np.testing.assert_allclose(state.levels.best[filled], best, rtol=1e-4)
    assert [state.levels.filled.sum() for state in (one, two, three)] == [4, 8, 12]
    np.testing.assert_array_equal(one.running.best, np.full(4, -np.inf))
    np.testing.assert_allclose(two.running.best, best, rtol=1e-4)
    gain = sum(0.9**i * rewards[i] for i in range(3))
    np.testing.assert_allclose(one.returns.gain, gain, rtol=1e-4)


def test_a_level_is_played_until_an_episode_ends():
    """Episodes of 12 steps in rollouts of 8."""
    one, two, three = clock(12, 3)
    assert one.levels.filled.sum() == 0
    np.testing.assert_array_equal(one.running.steps, np.full(4, 8))
    np.testing.assert_array_equal(one.episodes.running_length, np.full(4, 8))
    assert two.levels.filled.sum() == 4 and two.episodes.count == 4
    np.testing.assert_array_equal(two.running.steps, np.full(4, 4))
    np.testing.assert_array_equal(three.running.steps, np.zeros(4))
    assert three.levels.filled.sum() == 8 and three.episodes.count == 8
    rewards = np.sin(5.0 * np.arange(1, 13))
    best = np.sum(0.9 ** np.arange(12) * rewards)
    np.testing.assert_allclose(two.levels.best[two.levels.filled], np.full(4, best), rtol=1e-4)


def test_a_level_keeps_its_score_while_it_is_played():
    """A replayed level, and episodes of 12 steps in rollouts of 8."""
    params, (init, update) = tasks.RecallParams(tasks.CLOCK, 12), clock_program()
    state = init(params, jax.random.key(0))
    score = jnp.full(16, -jnp.inf, jnp.float32).at[5].set(9.0)
    state = state.replace(
        levels=state.levels.replace(score=score),
        running=state.running.replace(slot=jnp.array([5, 16, 16, 16], jnp.int32)),
    )
    one = update(params, again(state))
    assert one.levels.score[5] == 9.0
    two = update(params, again(one))
    assert two.levels.score[5] != 9.0 and two.levels.played[5] == 1


def test_levels_in_play_stay_in_the_buffer():
    """Episodes of 1 to 8 steps in rollouts of 4, so that some levels go on. Several environments
    may be in one."""
    env = tasks.Reporting(spread=True)
    sizes = dict(num_steps=4, num_envs=4, level_buffer_size=6)
    # Any level is replayed, also before there is one for each environment.
    config = STILL.replace(**sizes, replay_share=0.75, temperature=1e6, min_fill=0.0)
    init, update = programs(ppo_plr.learner(config, env, env.default_params))
    stayed = replays = 0
    for seed in range(12):
        state = init(jax.random.key(seed))
        for _ in range(8):
            state, _ = update(again(state))
            slot = np.asarray(state.running.slot)
            own = slot[slot < 6]
            assert state.levels.filled[own].all()
            keys = np.asarray(state.running.level.key)
            np.testing.assert_array_equal(state.levels.level.key[own], keys[slot < 6])
            stayed += (np.asarray(state.running.steps) > 4)[slot < 6].sum()
            replays += len(own)
    assert stayed > 20 and replays > 160


def test_a_level_of_several_environments_gets_one_score():
    """The first two replay the buffer's only level, and then play new ones, as the others do."""
    state = program()[0](jax.random.key(0))
    running = state.running.replace(
        slot=jnp.array([0, 0, 16, 16], jnp.int32),
        total=jnp.array([5.0, 1.0, 0.0, 0.0]),
        steps=jnp.array([4.0, 4.0, 0.0, 0.0]),
    )
    score = jnp.full(16, -jnp.inf, jnp.float32).at[0].set(9.0)
    start = state.replace(running=running, levels=state.levels.replace(score=score))
    worths = worth(running.level)
    after = run(STILL.replace(min_fill=0.0, replay_share=0.0), 1, start)[0][-1].levels
    expected = (6.0 + np.maximum(worths[:2], 0.0).sum()) / 10.0
    np.testing.assert_allclose(after.score[0], expected, rtol=1e-4)
    np.testing.assert_allclose(after.best[0], worths[:2].max(), rtol=1e-4)
    assert after.filled.sum() == 3, "neither is new"
    np.testing.assert_allclose(np.sort(after.best[1:])[-2:], np.sort(worths[2:]), atol=1e-6)


# --- what is learned --------------------------------------------------------------------------


def test_the_loss_rewards_entropy_and_punishes_errors_of_values(case, slices):
    """Floats are arguments of the program that made `slices`."""
    train = case.make_train(ent_coef=0.3, vf_coef=0.7)
    _, metrics = train(None, again(slices[0][0]), 1)
    of = {
        name: float(metrics[name][0]) for name in ("policy_loss", "value_loss", "entropy", "loss")
    }
    expected = of["policy_loss"] + 0.7 * of["value_loss"] - 0.3 * of["entropy"]
    assert 0.6 < of["entropy"] <= np.log(2.0) + 1e-6, "of two actions"
    assert of["loss"] == pytest.approx(expected, rel=1e-5)


def test_robust_replay_learns_from_replayed_levels_only():
    """The value loss is that of the levels that count. Others do not move the parameters."""
    config = STILL.replace(learning_rate=0.1, ent_coef=0.0)
    start = run(STILL, 3)[0][-1]
    assert (np.asarray(start.running.slot) < 16).tolist() == [True, True, False, False]

    def changed(which, robust):
        """After rollouts whose first rewards are of other levels in these environments."""
        env = start.env_state.env
        env = env.replace(shares=env.shares.at[jnp.array(which, int)].set(0.9))
        state = again(start).replace(env_state=start.env_state.replace(env=env))
        after, metrics = program(other=robust)[1](config, state)
        rewards = 2.0 * env.shares[:, 0] - 1.0, worth(after.running.level)
        return np.stack(rewards), after.policy.params, metrics

    same = lambda x, y: all(jax.tree.leaves(jax.tree.map(lambda a, b: (a == b).all(), x, y)))
    for robust, counts in ((True, slice(2)), (False, slice(4))):
        base = changed([], robust)
        total, weight = base[2]["value_loss"]
        assert weight == 1.0
        np.testing.assert_allclose(total, 0.5 * np.mean(base[0][:, counts] ** 2), rtol=1e-4)
        assert same(base[1], changed([2, 3], robust)[1]) == robust
        assert not same(base[1], changed([0], robust)[1])
        assert not same(base[1], start.policy.params)


def test_robust_replay_does_not_learn_before_it_replays():
    """Nor does the optimiser count a step, and there are no data for metrics."""
    states, rows = run(STILL.replace(learning_rate=0.1, ent_coef=0.1), 2, other=True)
    first = program(other=True)[0](jax.random.key(0))
    learned = lambda state: (state.policy.params, state.opt_state)
    for state, row in zip(states, rows):
        assert_close(learned(state), learned(first), rtol=0.0, atol=0.0)
        assert all(row[name].weight == 0.0 for name in ("loss", "entropy", "grad_norm"))
        assert row["current_learning_rate"].total == 0.0


# --- probe tasks ------------------------------------------------------------------------------

PROBE = ppo_plr.Config(
    **PLAIN,
    total_timesteps=60 * 256,
    num_envs=16,
    num_steps=16,
    level_buffer_size=16,
    learning_rate=1e-2,
    gamma=0.9,
    hidden_sizes=(16,),
    num_evals=1,
    num_eval_episodes=0,
    eval_at_start=False,
    ent_coef=0.0,
)


# --- the contract -----------------------------------------------------------------------------

CASE = Case(
    module=ppo_plr,
    tiny=TINY,
    metrics={
        "loss",
        "policy_loss",
        "value_loss",
        "entropy",
        "approx_kl",
        "clip_fraction",
        "grad_norm",
        "mean_value",
        "explained_variance",
        "replayed",
        "level_score",
        "level_staleness",
        "levels_filled",
    },
    # The policy loss is a mean of terms around 1 that cancel, so its tolerance is absolute.
    pinned={
        "entropy": [0.693139, 0.693121, 0.693118],
        "grad_norm": [2.00848, 1.9353, 1.97644],
        "mean_value": [0.0687274, -0.034569, 0.00349596],
        "policy_loss": [-0.000285318, -8.03202e-05, -1.7494e-05],
        "value_loss": [4.81265, 4.46345, 4.64391],
        "level_score": [2.82912, 2.78296, 2.76344],
    },
    refused=(
        (dict(num_minibatches=3), "num_minibatches=3 does not divide .* 80; 1, 2, 4, 5 would do"),
        (dict(num_minibatches=80), "one sample to a minibatch"),
        (dict(level_buffer_size=3), "level_buffer_size=3: .*; num_envs=4 or more would do"),
        (dict(level_buffer_size=0), "level_buffer_size=0: give a whole number"),
        (dict(score="gae"), "score='gae': give pvl or maxmc"),
        (dict(priority="topk"), "priority='topk': give rank or score"),
    ),
    swept=dict(edit_share=0.5),
    other={
        "adam_eps": 1e-2,
        "clip_eps": 1e-3,
        "temperature": 1e3,
        "min_fill": 0.9,
        "staleness_coef": 1.0,
    },
    probe=PROBE,
    probes={"discrete": False, "continuous": False},
    read=dict(level_buffer_size=64),
    played=play_actor_critic,
)
