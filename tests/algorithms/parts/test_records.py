"""Records against a plain loop over random episodes; write-back, and sequences that are fresh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import parts

LENGTH = 7  # records of a sequence


def rows_of(rng, steps, num_envs, ends):
    """Transitions (steps * num_envs, ...) whose numbers tell them apart."""
    shape = steps, num_envs
    number = np.arange(steps * num_envs, dtype=np.float32).reshape(shape)
    done = rng.random(shape) < ends
    flat = lambda x: jnp.asarray(x).reshape(-1, *x.shape[2:])
    return jax.tree.map(
        flat,
        parts.Transition(
            observation=number[..., None],
            action=1.0 + number[..., None],
            reward=0.5 + number,
            terminated=done & (rng.random(shape) < 0.5),
            done=done,
            final_observation=1e4 + number[..., None],
        ),
    )


def plain_records(steps, rows):
    """All records of rows (in order) of one environment, one row at a time."""
    at = lambda name, i: np.asarray(getattr(steps, name)[i])
    found, first, reward = [], False, 0.0
    for i in rows:
        found.append(dict(row=i, observation=at("observation", i), reward=reward, first=first))
        found[-1] |= dict(last=False, terminated=False, action=at("action", i))
        first, reward = False, at("reward", i)
        if at("done", i):
            found.append(dict(row=i, observation=at("final_observation", i), reward=reward))
            found[-1] |= dict(first=False, last=True, terminated=at("terminated", i))
            found[-1] |= dict(action=np.zeros_like(at("action", i)))
            first, reward = True, 0.0
    return found


def buffer_of(num_envs, size=None):
    size = size or 20 * num_envs
    return parts.ReplayBuffer(buffer_size=size, num_envs=num_envs, num_steps=1, n_step=LENGTH)


@pytest.mark.parametrize("ends", [0.0, 0.15, 0.5, 1.0])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_records_are_those_of_a_plain_loop(num_envs, ends):
    """From every row, also where the ring goes on at its start; episodes may have a single step."""
    rng = np.random.default_rng(int(10 * ends) + num_envs)
    steps = rows_of(rng, 20, num_envs, ends)
    buffer = buffer_of(num_envs)
    index = jnp.arange(20 * num_envs)
    found = jax.jit(lambda index: parts.records(buffer, steps, index))(index)
    found, steps = jax.device_get((found, steps))  # reading one number of jax's takes long
    assert found.row.shape == (LENGTH, 20 * num_envs)
    for start in range(20 * num_envs):
        rows = (start + num_envs * np.arange(LENGTH)) % (20 * num_envs)
        for k, one in enumerate(plain_records(steps, rows)[:LENGTH]):
            for name, value in one.items():
                np.testing.assert_array_equal(getattr(found, name)[k, start], value, name)
    assert (ends == 0.0) == (not found.last.any())


def test_records_of_bits_stay_bits():
    steps = rows_of(np.random.default_rng(0), 20, 1, 0.2)
    bits = lambda x: (x % 2).astype(bool)
    steps = steps._replace(
        observation=bits(steps.observation), final_observation=bits(steps.final_observation)
    )
    found = parts.records(buffer_of(1), steps, jnp.arange(3))
    assert found.observation.dtype == bool


def test_write_back_changes_the_rows_that_are_meant_and_no_others(vmapped_keys):
    """Under vmap each writes to its own buffer."""
    rng = np.random.default_rng(0)
    old = np.zeros((2, 10, 3), np.float32), np.zeros((2, 10), np.uint8)
    row = np.array([[[1, 2], [5, 2]], [[0, 9], [3, 4]]])
    where = np.array([[[True, False], [True, False]], [[True, True], [False, False]]])
    new = rng.normal(size=(2, 2, 2, 3)).astype(np.float32), row % 5 + 1
    h, z = jax.jit(jax.vmap(parts.write_back))(old, row, new, where)
    expected = np.zeros((2, 10, 3)), np.zeros((2, 10))
    for i in np.argwhere(where):
        place = (i[0], row[tuple(i)])
        expected[0][place], expected[1][place] = new[0][tuple(i)], new[1][tuple(i)]
    np.testing.assert_array_equal(h, expected[0].astype(np.float32))
    np.testing.assert_array_equal(z, expected[1])
    assert z.dtype == np.uint8
    first = jax.tree.map(lambda x: jnp.asarray(x[0]), old)
    none = parts.write_back(first, row[0], (new[0][0], row[0]), np.zeros((2, 2), bool))
    assert not none[0].any() and not none[1].any()


def plain_queue(num_envs, held, rounds, batch):
    """Starts that batches take: (steps so far, index) in a queue with a window at a time."""
    queue, pushed, taken = [], 0, []
    for steps in rounds:
        while (pushed + 1) * LENGTH <= steps:
            queue += [(pushed * LENGTH, env) for env in range(num_envs)]
            pushed += 1
        queue = [(start, env) for start, env in queue if start >= steps - held]
        taken.append([start % held * num_envs + env for start, env in queue[:batch]])
        queue = queue[batch:]
    return taken


@pytest.mark.parametrize(("num_envs", "held", "every"), [(1, 9, 1), (3, 20, 1), (2, 16, 5)])
def test_fresh_sequences_are_taken_once_and_the_rest_is_as_drawn(num_envs, held, every):
    buffer = buffer_of(num_envs, held * num_envs)
    take = jax.jit(lambda steps, taken: parts.fresh_windows(buffer, steps, jnp.full(4, -1), taken))
    rounds = range(40, 160, every)  # learning starts late, so most of the first ones are gone
    taken, total = jnp.int32(0), 0
    for steps, expected in zip(rounds, plain_queue(num_envs, held, rounds, 4), strict=True):
        index, taken = take(steps, taken)
        np.testing.assert_array_equal(index, expected + [-1] * (4 - len(expected)), str(steps))
        total += len(expected)
    assert total > 4
