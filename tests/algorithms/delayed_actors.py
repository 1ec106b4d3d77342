"""What files have in common whose actor learns once in `policy_every` steps of the critics, beside
`actor_critics`. They define ACTOR_STATE, the field of the state that is its optimiser's."""

import jax
import pytest

import envs
from tests.algorithms.actor_critics import learner_of
from tests.algorithms.contract import again


@pytest.mark.parametrize("every, updates, rounds", [(3, 2, 15), (2, 4, 16)])
def test_the_actor_learns_at_every_so_many_of_the_critics_steps(
    file, slices, every, updates, rounds
):
    """Through the ends of stretches, which are whole periods. n_step=2 makes the first round wait,
    and the steps of the actor in it."""
    learner, update = learner_of(file, policy_every=every, updates_per_step=updates)
    assert learner.steps == rounds * file.TINY.num_envs
    state, metrics = update(again(slices[0][0]))
    total = rounds * updates
    assert metrics["critic_loss"].weight == total - updates
    assert metrics["actor_loss"].weight == total // every - updates // every
    assert int(state.critic_opt_state.count) == total - updates
    assert int(getattr(state, file.ACTOR_STATE).count) == total // every - updates // every
    state, metrics = update(state)
    assert metrics["actor_loss"].weight == total // every


def test_the_actors_steps_stay_a_branch_under_vmap(file, vmapped_keys):
    """Else all of them are computed, and most thrown away."""
    config = file.TINY.replace(num_eval_episodes=0)
    learner = file.MODULE.learner(config, *envs.make(config.env, max_steps=20))
    states = jax.eval_shape(jax.vmap(learner.init), jax.random.split(jax.random.key(0), 3))
    assert "cond[" in str(jax.make_jaxpr(jax.vmap(learner.update))(states))
