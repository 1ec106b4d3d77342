"""Times of operations, of a program and a profile by hand."""

import numpy as np
import pytest

from tests.benchmarks import hlo, operations, speed
from tests.benchmarks.test_launches import TEXT

EVENTS = [
    {"ph": "X", "name": "fusion.1", "dur": 2.0},
    {"ph": "X", "name": "fusion.1", "dur": 4.0},
    {"ph": "X", "name": "copy.9", "dur": 3.0},
    {"ph": "X", "name": "copy.3", "dur": 1.0},
    {"ph": "X", "name": "while.1", "dur": 90.0},  # has the time of what is inside
    {"ph": "M", "name": "fusion.1"},
    {"ph": "X", "name": "ThunkExecutor::Execute", "dur": 99.0},
]


def test_operations_have_their_loop_their_runs_and_their_time():
    found = operations.costs(TEXT, EVENTS)
    short = sorted((one.operation.name, one.loop, one.kind, one.runs, one.seconds) for one in found)
    assert short == [
        ("copy.3", "outside of loops", "moves", 1, pytest.approx(1e-6)),
        ("copy.9", "learn", "moves", 1, pytest.approx(3e-6)),
        ("fusion.1", "step", "rest", 2, pytest.approx(6e-6)),
    ], "a call's operations are in the loop around it, and a loop is none"


def test_on_a_gpu_only_kernels_on_streams_count_by_their_operations():
    """Other lines of the profile repeat them, and kernels have names of their own."""
    line = lambda tid, name: (
        {"ph": "M", "pid": 1, "tid": tid, "name": "thread_name"} | {"args": {"name": name}}
    )
    kernel = lambda tid, name, **args: (
        {"ph": "X", "pid": 1, "tid": tid, "name": name, "dur": 1} | {"args": args}
    )
    events = [
        line(1, "Stream #13(Compute)"),
        line(2, "XLA Ops"),
        kernel(1, "fusion_1", hlo_op="fusion.1"),
        kernel(1, "sm90_gemm", hlo_op="copy.9"),
        kernel(1, "memset"),
        kernel(2, "fusion.1"),
    ]
    assert [e["name"] for e in operations.of_operations(events)] == ["fusion.1", "copy.9", "memset"]
    assert operations.of_operations(EVENTS) == EVENTS, "a CPU has no streams"


@pytest.mark.parametrize(
    "inside, kind",
    [("dot(%p, %p)", "products"), ("reduce(%p), to_apply=%less", "sums"), ("copy(%p)", "moves")],
)
def test_a_fusion_has_the_kind_of_its_largest_part(inside, kind):
    text = TEXT.replace("add(%sine.1, %p)", inside)
    (found,) = (one for one in operations.costs(text, EVENTS) if one.operation.name == "fusion.1")
    assert found.kind == kind


def test_a_row_is_a_loop_and_a_kind_and_small_ones_share_one(monkeypatch):
    found = operations.costs(TEXT, EVENTS)
    monkeypatch.setattr(operations, "SMALL", 0.35)
    assert operations.table(found, updates=2, whole=8e-6) == [
        ["step", "rest", "1", "3", "60.0 %"],
        ["others", "", "1", "2", "40.0 %"],
        ["all", "", "2", "5", "100.0 %"],
        ["without the profiler", "", "", "4", ""],
    ]
    places = hlo.Places(TEXT)
    (row,) = operations.largest(found, 1, places, updates=2)
    assert row[:2] == ["fusion.1", "step"] and row[-2:] == ["1", "3"]


@pytest.mark.parametrize("name, steps", [("cartpole-4x128", 40 * 512), ("td3-1x1", 40 * 16)])
def test_a_profiled_run_is_short_but_learns(name, steps):
    case = next(case for case in speed.CASES if case.name == name)
    config = operations.shortened(*speed.our_settings(case))
    assert config.total_timesteps == steps
    assert getattr(config, "learning_starts", 0) == 0


def test_the_floor_has_no_products_before_learning_starts():
    """rejax has none there either; a run of DQN starts after 500 of its 6000 rounds."""
    case = next(case for case in speed.CASES if case.name == "dqn-10x1")
    assert speed.learning_share(case) == 1.0 - 499 / 6000
    counts = speed.dqn_products(case, 4, 2)
    np.testing.assert_allclose(counts[100, 64, 64], (3 + 1) * 5 * (5501 / 6000))
    assert counts[10, 64, 64] == 1  # acting is in every round
