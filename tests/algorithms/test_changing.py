"""The changes of docs/changing.md are applied to ppo.py, and train."""

import importlib.util
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from algorithms import ppo

PAGE = Path(ppo.__file__).parents[1] / "docs" / "changing.md"
CHANGES = dict(re.findall(r"^## An? (\w+)\n.*?```diff\n(.*?)```", PAGE.read_text(), re.M | re.S))
SIZES = dict(total_timesteps=4 * 2 * 16, num_envs=2, num_steps=16, update_epochs=2)
SIZES |= dict(num_minibatches=2, num_evals=2, num_eval_episodes=1, hidden_sizes=(4,))


def changed(text, diff):
    """The text with a diff whose hunks have no line numbers; each old text stands there once."""
    for hunk in re.split(r"^@@.*\n", diff, flags=re.M)[1:]:
        lines = [line or " " for line in hunk.splitlines()]
        old, new = ("".join(f"{x[1:]}\n" for x in lines if x[0] in " " + sign) for sign in "-+")
        assert text.count(old) == 1 and old != new, hunk
        text = text.replace(old, new)
    return text


def curves(path, text, **settings):
    """The metrics of a short run of a file with this text."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    train = module.make_train(module.Config(**SIZES | settings))
    return {name: np.asarray(x) for name, x in train(jax.random.key(0))[1].items()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    text = Path(ppo.__file__).read_text()
    return text, curves(tmp_path_factory.mktemp("plain") / "my_ppo.py", text)


def test_the_page_has_these_changes():
    assert list(CHANGES) == [
        *("loss", "bonus", "torso", "network", "initialiser", "optimiser", "schedule", "metric"),
        "setting",
    ]


@pytest.mark.parametrize("name", [x for x in CHANGES if x not in ("network", "initialiser")])
@pytest.mark.filterwarnings("ignore::envs.warn.KitWarning")
def test_a_change_trains_and_changes_what_it_says(name, plain, tmp_path):
    text, before = plain
    more = {"kl_coef": 5.0} if name == "setting" else {}
    after = curves(tmp_path / "my_ppo.py", changed(text, CHANGES[name]), **more)
    assert all(np.isfinite(x[1:]).all() for key, x in after.items() if "episode" not in key)
    moved = {key for key, x in before.items() if not np.array_equal(x, after[key], equal_nan=True)}
    rates = "current_learning_rate"
    if name == "metric":
        assert moved == set() and (after["largest_error"][1:] > 0.0).all()
    elif name == "schedule":
        done = np.arange(16).reshape(2, 8) / 16  # gradient steps of two points
        expected = 1e-3 * (0.5 + 0.5 * np.cos(np.pi * done)).mean(1)
        np.testing.assert_allclose(after[rates][1:], expected, rtol=1e-5)
    else:
        assert {"policy_loss", "approx_kl"} <= moved and rates not in moved
    if name == "setting":
        assert after["approx_kl"][1:].sum() < before["approx_kl"][1:].sum()


def test_a_bonus_is_for_what_is_new_and_is_part_of_returns(plain, tmp_path):
    text, steps = changed(plain[0], CHANGES["bonus"]), 20 * 2 * 16
    run = lambda coef: curves(
        tmp_path / "my_ppo.py", text, total_timesteps=steps, learning_rate=3e-3, bonus_coef=coef
    )
    none, paid = run(0.0), run(5.0)
    assert 0.0 < none["novelty"][2] < 0.8 * none["novelty"][1]
    assert paid["value_loss"][1] > 2.0 * none["value_loss"][1]  # values begin near 0


def test_parameters_start_as_their_modules_say(plain, tmp_path):
    text = changed(plain[0], CHANGES["initialiser"])
    after = curves(tmp_path / "my_ppo.py", text, env="Pendulum-v1", learning_rate=1e-6)
    gaussian = 0.5 * np.log(2.0 * np.pi * np.e) - 1.0  # the entropy with a log std of -1
    np.testing.assert_allclose(after["entropy"][1:], gaussian, rtol=1e-3)


def test_another_distribution_trains(plain, tmp_path):
    text = changed(plain[0], CHANGES["network"])
    after = curves(tmp_path / "my_ppo.py", text, env="Pendulum-v1")
    assert all(np.isfinite(x[1:]).all() for key, x in after.items() if "episode" not in key)
    laplace = 1.0 + np.log(2.0)  # the entropy with a scale of 1
    np.testing.assert_allclose(after["entropy"][1:], laplace, rtol=0.05)


RATE = "optax.chain(clip, adam, optax.scale(-rate))"
KEPT = "optax.chain(clip, optax.inject_hyperparams(optax.adam)(learning_rate=rate))"
HEAD = "self.critic_head(self.critic_torso(x))"
NORM = "self.critic_head(nn.BatchNorm(use_running_average=True)(self.critic_torso(x)))"


@pytest.mark.parametrize(
    "old, new, message",
    [
        (RATE, KEPT, "inject_hyperparams keeps the learning rate that it is made with"),
        (HEAD, NORM, "variables in batch_stats, which the optimiser would change"),
    ],
    ids=["rate", "variables"],
)
def test_what_would_learn_nothing_or_too_much_is_refused(old, new, message, tmp_path):
    text = Path(ppo.__file__).read_text()
    assert text.count(old) == 1
    text = text.replace(old, new).replace("    def critic(", "    @nn.compact\n    def critic(")
    with pytest.raises(ValueError, match=message):
        curves(tmp_path / "my_ppo.py", text)
