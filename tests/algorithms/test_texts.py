"""No program changes by accident; `-k "[ppo"` runs the tests of ppo.py."""

import re
import warnings

import pytest

from algorithms.parts import spreads
from envs.warn import KitWarning
from tests import texts
from tests.algorithms.cases import RELATIVES

ROWS = {f"{of}-{platform}": (of, platform) for of, platform in texts.TEXTS}


def is_slow(case, row):
    """A text takes a second or two. Most changes of a file change that of its defaults on a CPU."""
    if row[0] == "preset" or case.name in RELATIVES:
        return True
    return row[1] == "accelerator" and case.name not in ("ppo", "dqn")


def all_pairs(text):
    """Shapes of different ranks in a warning of jax's, of which the longer one ends with a 1."""
    shapes = [tuple(map(int, re.findall(r"\d+", x))) for x in re.findall(r"\(([\d, ]+)\)", text)]
    short, long = min(shapes, key=len), max(shapes, key=len)
    return (short, long) if long[-1] == 1 and short[-1] > 1 else None


@pytest.mark.cases(rows=lambda case: ROWS, slow=is_slow)
def test_the_program_has_the_known_text(case, row, monkeypatch):
    """A commit that changes a hash of tests/texts.json names the file in its body.

    No program calls the host, or LAPACK, in which vmapped seeds would hang. No line of the kit
    multiplies all pairs of arrays of different ranks: with equal sizes it would be told of.
    """
    monkeypatch.setattr(spreads, "spread", all_pairs)
    entries, name, (of, platform) = texts.read(), case.name, row
    problem = texts.complaint(name, entries)
    assert not problem, problem
    entry = entries[name]
    config = texts.config_of(name, texts.preset_of(of, entry["preset"]["name"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", KitWarning)  # such as one of a setting that nothing reads
        text = texts.lowered(name, config, platform)
    for word in ("callback", "infeed", "outfeed", "lapack"):
        assert word not in text.lower(), word
    if sentence := texts.other_versions(name, entry):
        pytest.skip(sentence)
    assert texts.hash_of(text) == entry[of][platform], (
        f"the program of {name} changed ({of}, {platform}): if that is meant, run python -m "
        f"tests.texts --write {name} and name {name} in the commit's body"
    )


def test_a_text_keeps_no_names():
    """Equal functions are one; other operations are another text."""
    module = """module @jit_f {{
  func.func public @main(%arg0: tensor<f32>) -> (tensor<f32> {{jax.result_info = "{result}"}}) {{
    %0 = call @{first}(%arg0) : (tensor<f32>) -> tensor<f32>
    %1 = call @{second}(%0) : (tensor<f32>) -> tensor<f32>
    return %1 : tensor<f32>
  }}
  func.func private @{first}(%arg0: tensor<f32>) -> tensor<f32> {{
    %0 = stablehlo.{one} %arg0 : tensor<f32>
    return %0 : tensor<f32>
  }}
  func.func private @{second}(%arg0: tensor<f32>) -> tensor<f32> {{
    %0 = stablehlo.{other} %arg0 : tensor<f32>
    return %0 : tensor<f32>
  }}
}}"""
    text = lambda one, other, **names: texts.normalised(
        module.format(one=one, other=other, **names)
    )
    names = dict(first="f", second="g", result="x")
    others = dict(first="g", second="f", result="y[0]")
    assert text("sine", "cosine", **names) == text("sine", "cosine", **others)
    assert text("sine", "cosine", **names) != text("cosine", "sine", **names)
    twice = text("sine", "sine", **names)
    assert twice.count("sine") == 1 and twice.count("call @0") == 2
