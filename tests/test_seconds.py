"""Budgets of CPU seconds, and the measurement of what the tests take."""

from types import SimpleNamespace

import pytest

from tests import seconds


def test_the_last_whole_run_kept_its_budgets(request):
    """It may take twice its budgets: on busy machines an area took 1.84 times as many seconds."""
    kept = request.config.cache.get(seconds.KEY, None)
    if kept is None:
        pytest.skip("no whole run has ended here")
    assert not seconds.over_budget(kept, slack=2.0)


def test_areas_over_their_budgets_are_named():
    areas = dict.fromkeys(seconds.BUDGETS, 1.0) | {"ppo": 41.2, "c51": 21.0, "launcher": 300.0}
    assert seconds.over_budget(areas) == ["ppo: 41 s of 40", "launcher: 300 s of 250"]
    assert seconds.over_budget(areas, slack=1.1) == ["launcher: 300 s of 250"]
    marked = [line for line in seconds.table(areas) if line.endswith("<- over")]
    assert [line.split()[0] for line in marked] == ["launcher", "ppo"]


@pytest.mark.parametrize(
    "nodeid, area",
    [
        ("tests/algorithms/test_contract.py::test_pinned_values[ppo_rnn]", "ppo_rnn"),
        ("tests/algorithms/test_value_based.py::test_it[dqn-single]", "dqn"),
        ("tests/algorithms/test_split.py::test_it[ppo_shaped]", "all else"),
        ("tests/algorithms/parts/test_info.py::test_info[ppo]", "parts"),
        ("tests/algorithms/launch/test_cli.py::test_it", "launcher"),
        ("tests/envs/test_envs.py::test_env[ppo]", "envs"),
        ("tests/test_docs.py::test_it", "all else"),
    ],
)
def test_every_test_has_an_area(nodeid, area):
    assert seconds.area_of(nodeid) == area and area in seconds.BUDGETS


def test_seconds_of_several_processes_are_scaled_once_and_added_up(monkeypatch):
    monkeypatch.setattr(seconds, "yardstick", lambda: 2.0 * seconds.REFERENCE)
    workers = [SimpleNamespace(workeroutput={}) for _ in range(2)]
    for worker in workers:
        plugin = seconds.Seconds(worker)
        plugin.own["ppo"] += 20.0
        plugin.pytest_sessionfinish()
    first = seconds.Seconds(SimpleNamespace())
    for worker in workers:
        first.pytest_testnodedown(worker)
    first.pytest_sessionfinish()
    assert dict(first.all) == {"ppo": 20.0}


def test_the_yardstick_is_measured_while_the_tests_run(monkeypatch):
    """At the end the other processes may be idle, and then everything is faster."""
    now, found = [0.0], iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(seconds, "cpu", lambda: now[0])
    monkeypatch.setattr(seconds, "yardstick", lambda: next(found) * seconds.REFERENCE)
    plugin = seconds.Seconds(SimpleNamespace())
    for spent in (20.0, 50.0, 40.0, 30.0, 60.0):  # the second, fourth and fifth pass a minute more
        test = plugin.pytest_runtest_protocol(SimpleNamespace(nodeid="tests/test_docs.py::test_it"))
        next(test)
        now[0] += spent
        with pytest.raises(StopIteration):
            test.send(None)
    plugin.pytest_sessionfinish()
    assert plugin.measured == [3 * seconds.REFERENCE, seconds.REFERENCE, 2 * seconds.REFERENCE]
    assert dict(plugin.all) == {"all else": 200.0 / 2.0}


@pytest.mark.parametrize(
    "change", [{}, {"keyword": "x"}, {"changed": "HEAD"}, {"markexpr": "slow"}]
)
def test_only_a_whole_run_is_kept(change):
    """It is whole without the files whose libraries are missing, such as alphazero."""
    asked = {"keyword": "", "changed": None, "markexpr": "not slow"} | change
    config = SimpleNamespace(option=SimpleNamespace(**asked))
    assert seconds.is_whole(config, seconds.BUDGETS.keys() - {"alphazero"}) == (not change)
    assert not seconds.is_whole(config, seconds.BUDGETS.keys() - {"launcher"})
