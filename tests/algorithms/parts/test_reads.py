"""Settings that nothing reads: one warning, and none where there is a doubt."""

import warnings
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import struct

import envs
from algorithms import launch, parts, ppo, reinforce, sac
from algorithms.parts import reads, training
from envs import warn
from tests import probe as tasks
from tests.algorithms.parts import test_training


@struct.dataclass
class Config(test_training.Config):
    width: int = parts.static(4)  # the next three are read by nothing, or as a test says
    rate: float = parts.real(0.5, "[0, 1]")
    names: tuple[str, ...] = parts.static(())


def told(make):
    """The sentences of warnings about settings while a program is traced."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    sentences = [str(one.message) for one in caught if issubclass(one.category, warn.KitWarning)]
    return [sentence for sentence in sentences if " no effect: " in sentence]


def trace(config, read=lambda config: None):
    """Traces a program whose update reads something more."""

    def learner(config, env, env_params):
        whole = test_training.learner(config, env, env_params)

        def update(state):
            read(config)
            return whole.update(state)

        return whole._replace(update=update)

    env, params = envs.make(tasks.Probe(), task=tasks.ENDLESS)
    return jax.eval_shape(parts.program(learner, config, env, params), jax.random.key(0))


def test_what_nothing_reads_gives_one_warning():
    """Points, evaluations and the update's own settings are read."""
    config = Config(slope=3.0, width=5, rate=0.25, num_evals=2, num_eval_episodes=3)
    expected = (
        "width=5, rate=0.25 have no effect: with these settings nothing in test_reads reads it"
    )
    assert told(lambda: trace(config)) == [expected]
    assert told(lambda: trace(config)) == []


@pytest.mark.parametrize(
    "read",
    [
        lambda config: config.width,
        lambda config: config.replace(slope=1.0),
        lambda config: jax.tree.leaves(config),
        lambda config: jax.tree.map(lambda x: x, config).slope,
        lambda config: parts.resolve(config, 1, 2)[0].width,
    ],
    ids=["one", "replaced", "flattened", "mapped", "resolved"],
)
def test_what_is_read_in_any_way_gives_none(read):
    assert told(lambda: trace(Config(width=5), read)) == []


def test_defaults_and_traced_values_are_no_wish_of_the_user():
    assert told(lambda: trace(Config(width=4, rate=0.5, names=()))) == []
    assert reads.changed(sac.Config(dropout_rate=jnp.float32(0.01))) == {}
    assert reads.changed(sac.Config(dropout_rate=jnp.float32(0.02)))
    env = SimpleNamespace(dtype=jnp.float32)  # an environment may have any attribute
    assert reads.changed(sac.Config(env=env)) == {"env": env}
    traced = jax.vmap(lambda rate: trace(Config(rate=rate))[1]["slope"].size * rate)
    assert told(lambda: traced(jnp.array([0.1, 0.2]))) == []


def test_without_an_evaluation_only_the_policy_may_read_it():
    assert told(lambda: trace(Config(width=5, num_eval_episodes=0))) == []


def test_a_resolved_config_is_still_watched():
    config = reads.watched(Config(width=5))
    assert parts.resolve(config, 1, 2)[0] is config
    assert (
        vars(config)["_read"] == set() and config.width == 5 and vars(config)["_read"] == {"width"}
    )


def test_another_network_leaves_a_setting_dead(monkeypatch):
    class ActorCritic(ppo.ActorCritic):
        def setup(self):
            self.head = nn.Dense(2)

        def __call__(self, x, mask=None):
            return self.actor(x), self.critic(x)

        def actor(self, x, mask=None):
            return parts.Categorical(self.head(x), mask)

        def critic(self, x):
            return self.head(x)[..., 0]

    def make(steps):
        """Other steps make another program, which is traced anew."""
        config = ppo.Config(activation="relu", total_timesteps=steps, num_eval_episodes=1)
        jax.eval_shape(ppo.make_train(config), jax.random.key(0))

    assert told(lambda: make(2048)) == []
    monkeypatch.setattr(ppo, "ActorCritic", ActorCritic)
    found = "activation='relu' has no effect: with these settings nothing in ppo reads it"
    assert told(lambda: make(4096)) == [found]


def test_runs_of_the_launcher_warn(capsys):
    """There floats are traced, and the launcher knows what the user has set."""
    config = reinforce.Config(clip_reward=5.0, normalize_reward=False, total_timesteps=256)
    config = config.replace(num_envs=2, num_steps=64, num_evals=1, num_eval_episodes=1)
    found = told(lambda: launch.run(reinforce, config, save=False))
    assert found == [
        "clip_reward=5.0 has no effect: with these settings nothing in reinforce reads it"
    ]


@pytest.mark.usefixtures("vmapped_keys")
def test_swept_settings_are_wishes_too(capsys):
    config = reinforce.Config(normalize_reward=False, total_timesteps=256, num_evals=1)
    config = config.replace(num_envs=2, num_steps=64, num_eval_episodes=1)
    grid = {"clip_reward": [5.0, 10.0], "learning_rate": [1e-3, 1e-2]}
    found = told(lambda: launch.sweep(reinforce, config, grid, save=False))
    named = "clip_reward=[5.0, 10.0] has no effect"
    assert found == [f"{named}: with these settings nothing in reinforce reads it"]


def test_what_is_asked_for_ends_with_its_block():
    with reads.asked_for({"a": 1}), reads.asked_for({"b": 2}):
        assert dict(reads._ASKED.get()) == {"a": 1, "b": 2}
    assert dict(reads._ASKED.get()) == {}
    config, start = SimpleNamespace(_read={"b"}), lambda key: key
    with reads.asked_for({"a": 1, "b": 2, "env": "x"}):
        found = told(lambda: reads.warn_of_unread(config, "x", start))
    assert found[0].startswith("a=1 has no effect")


def test_what_only_a_first_state_reads_has_an_effect():
    """Programs that go on from a state do not have it, as those of the launcher."""
    config = sac.Config(
        initial_temperature=0.5, total_timesteps=64, learning_starts=16, num_evals=2
    )
    config = config.replace(num_envs=2, num_eval_episodes=1, hidden_sizes=(4,), batch_size=8)

    train = sac.make_train(config)
    start = training.first_state(train, jax.random.key(0))
    assert told(lambda: jax.eval_shape(lambda state: train(None, state, 1), start)) == []


def test_what_a_first_state_does_not_read_either_has_none():
    config = reinforce.Config(clip_reward=5.0, normalize_reward=False, total_timesteps=512)
    train = reinforce.make_train(config.replace(num_envs=2, num_steps=64, num_eval_episodes=1))
    start = training.first_state(train, jax.random.key(0))
    found = told(lambda: jax.eval_shape(lambda state: train(None, state, 1), start))
    assert [x.partition(":")[0] for x in found] == ["clip_reward=5.0 has no effect"]
