"""Intervals of a Config's floats."""

import dataclasses
import importlib
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from algorithms import dqn, parts, ppo
from algorithms.parts import real, static
from tests.seconds import ALGORITHMS

GIVEN = (("gravity", 5.0), ("observe", (0, 2)))


@struct.dataclass
class Config:
    size: int = static(3)
    share: float = real(0.5, "[0, 1]")
    scale: float = real(1.0, "(0, inf)")
    limit: float = real(math.inf, "(0, inf]")
    low: float = real(-1.0, "(-inf, inf)")
    high: float = real(1.0, "(low, inf)")
    kind: str = static("any")
    of_kind: float = real(2.0, "(-inf, inf)", kind={"part": "[0, scale)", "small": "(0, 0.1]"})


def test_the_floats_alone_are_leaves():
    assert jax.tree.leaves(Config()) == [0.5, 1.0, math.inf, -1.0, 1.0, 2.0]


@pytest.mark.parametrize(
    "field, inside, outside",
    [
        ("share", (0.0, 1, np.float32(0.3)), (-1e-9, 1.1, np.nan)),
        ("scale", (1e-9, 3.0), (0.0, -1.0, np.inf, np.nan)),
        ("limit", (1e-9, np.inf), (0.0, np.nan)),
        ("low", (-3.0, 0.99), (-np.inf, np.nan)),
        ("high", (-0.99, 7.0), (-1.0, -2.0, np.inf)),
    ],
)
def test_intervals(field, inside, outside):
    for value in inside:
        parts.check_reals(Config().replace(**{field: value}))
        parts.check_reals(Config().replace(**{field: np.array([value, value])}))
    for value in outside:
        for given in (value, np.array([inside[0], value])):
            with pytest.raises(ValueError, match=rf"^{field}={value}: give a number in [(\[]"):
                parts.check_reals(Config().replace(**{field: given}))


def test_a_number_beyond_float32_is_infinite():
    parts.check_reals(Config(limit=1e39, scale=3e38))
    for given in (1e39, np.array([1.0, 1e39])):
        with pytest.raises(ValueError, match=r"^scale=inf: give a number in \(0, inf\)"):
            parts.check_reals(Config(scale=given))
    with pytest.raises(ValueError, match=r"^low=-inf: give"):
        parts.check_reals(Config(low=-1e39))


def test_an_end_may_be_another_field_of_each_agent():
    ends = lambda low, high: Config(low=np.array(low), high=np.array(high))
    parts.check_reals(ends([0.0, 20.0], [10.0, 30.0]))
    with pytest.raises(ValueError, match=r"high=10.0: give .* \(low, inf\), here \(20, inf\)"):
        parts.check_reals(ends([0.0, 20.0], [10.0, 10.0]))


def test_an_interval_may_depend_on_a_static_field():
    parts.check_reals(Config(of_kind=-5.0))
    parts.check_reals(Config(kind="part", of_kind=np.array([0.0, 1.5]), scale=2.0))
    given = r"^of_kind=2.0: give a number in \[0, scale\), here \[0, 2\), with kind=part$"
    with pytest.raises(ValueError, match=given):
        parts.check_reals(Config(kind="part", scale=2.0))
    with pytest.raises(ValueError, match=r"^of_kind=2.0: .* in \(0, 0.1\], with kind=small$"):
        parts.check_reals(Config(kind="small"))


@pytest.mark.parametrize("value", ["much", None, [0.5, "much"]])
def test_what_is_no_number(value):
    with pytest.raises(ValueError, match="^share=(much|None): give a number$"):
        parts.check_reals(Config(share=value))


def test_traced_floats_are_not_checked():
    """Neither is a float whose interval ends at a traced one."""

    def check(value):
        parts.check_reals(Config(share=value, low=2.0 * value))
        return value

    np.testing.assert_array_equal(jax.jit(check)(7.0), 7.0)
    np.testing.assert_array_equal(jax.vmap(check)(np.array([7.0, 8.0])), [7.0, 8.0])
    with pytest.raises(ValueError, match=r"^scale=-1.0: give a number in \(0, inf\)"):
        jax.jit(lambda value: parts.check_reals(Config(share=value, scale=-1.0)))(0.5)


# --- static fields ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "default, given, expected",
    [
        (4, np.int64(8), 8),
        (4, np.array(8), 8),
        (4, jnp.array(8), 8),
        (4, 1e6, 1_000_000),
        (4, np.float32(8.0), 8),
        (4, jnp.array(8.0), 8),
        (4, 8.5, 8.5),
        (4, float("inf"), float("inf")),
        (4, True, True),
        (4, "8", "8"),
        (4, None, None),
        (True, np.bool_(False), False),
        (True, 0.0, False),
        (False, np.int64(1), True),
        (True, "no", "no"),
        (True, 2, 2),
        ("tanh", np.str_("relu"), "relu"),
        ((64, 64), [32, np.int32(16)], (32, 16)),
        ((64, 64), np.array([32.0, 16.0]), (32, 16)),
        ((64, 64), jnp.array([32, 16]), (32, 16)),
        ((64, 64), (32, 16.5), (32, 16.5)),
        ((64, 64), 32, 32),
        ((64, 64), (), ()),
        ((), {"gravity": np.float64(5.0), "observe": [0, np.int64(2)]}, GIVEN),
        ((), [["gravity", 5.0], ["observe", np.array([0, 2])]], GIVEN),
        ((), (("on", np.bool_(True)),), (("on", True),)),
        (0.5, np.array(0.25), 0.25),
        (0.5, np.array([0.25, 0.5]), (0.25, 0.5)),
    ],
)
def test_values_of_numpy_and_jax_are_taken(default, given, expected):
    found = parts.value_like(default, given)
    assert (repr(found), type(found)) == (repr(expected), type(expected))


def test_a_config_has_plain_values_and_keeps_its_floats():
    share = jnp.array([0.1, 0.2])
    config = parts.with_plain_values(Config(size=np.int64(3), kind=np.str_("part"), share=share))
    assert type(config.size) is int and type(config.kind) is str and config.share is share
    traced = jax.jit(lambda x: parts.with_plain_values(Config(size=np.int64(3), share=x)).share)
    np.testing.assert_array_equal(traced(0.25), 0.25)
    size = jax.eval_shape(lambda x: parts.value_like(4, x), np.int64(3))
    assert size.shape == (), "a traced number stays, for check_sizes to refuse"


def configs_of_all_files():
    for name in sorted(ALGORITHMS):
        yield importlib.import_module(f"algorithms.{name}").Config


def test_every_float_of_every_file_has_one():
    for config in configs_of_all_files():
        parts.check_reals(config())
        for name, field in config.__dataclass_fields__.items():
            assert ("interval" in field.metadata) == field.metadata.get("pytree_node", True), name


def test_no_file_divides_by_the_root_of_second_moments_alone():
    """Where a gradient is 0, that would be 0 / 0, and all parameters NaN."""
    for config in configs_of_all_files():
        names = [name for name in config.__dataclass_fields__ if "adam_eps" in name]
        assert names, config
        for name in names:
            parts.check_reals(config(**{name: 1e-30}))
            with pytest.raises(ValueError, match=rf"^{name}=0.0: give a number in \(0, inf\)$"):
                parts.check_reals(config(**{name: 0.0}))


@pytest.mark.parametrize(
    "config, message",
    [
        (
            "CartPole-v1",
            r"config is 'CartPole-v1': give algorithms.ppo.Config\(...\), with its set",
        ),
        ({"gamma": 0.9}, r"config is {'gamma': 0.9}: give algorithms.ppo.Config\(...\)"),
        (ppo.Config, r"config is <class .*: give algorithms.ppo.Config\(...\), with its settings"),
        (
            dqn.Config(),
            r"config is of algorithms.dqn.Config, without num_steps: give algorithms.pp",
        ),
    ],
)
def test_what_is_no_config_of_the_file_is_refused(config, message):
    for make in (ppo.make_train, ppo.make_policy):
        with pytest.raises(ValueError, match=message):
            make(config)


def test_a_config_of_no_known_kind_has_to_be_one_all_the_same():
    parts.check_kind(Config(), None)
    with pytest.raises(ValueError, match=r"config is 5: give Config\(...\)"):
        parts.check_kind(5, None)


@pytest.mark.parametrize("kind, default", [("int", 3), (bool, True), ("str", "a"), ("tuple", (4,))])
def test_a_field_that_is_neither_real_nor_static_is_refused(kind, default):
    """It would be traced as a float. A plain float may be."""
    made = dataclasses.make_dataclass("Own", [("rate", float, 1), ("k", kind, default)])
    with pytest.raises(ValueError) as error:
        parts.check_kind(made(), None)
    told = f"k = {default!r} of Config is neither real nor static: write static({default!r})"
    assert str(error.value) == told
    parts.check_kind(dataclasses.make_dataclass("Own", [("rate", "float", 1)])(), None)


@pytest.mark.parametrize("text", ["0..1", "> 0", "0 to 1", "[0,1]", "[0, 1", "(0, inf) "])
def test_what_is_no_interval_is_refused(text):
    for given in ((text,), ("[0, 1]", {"x": text})):
        with pytest.raises(ValueError, match=r'write "\[0, 1\]" or "\(0, inf\)"') as error:
            parts.real(0.1, given[0], **{"mode": given[1]} if len(given) > 1 else {})
        assert f'the interval "{text}" of a real field' in str(error.value)
