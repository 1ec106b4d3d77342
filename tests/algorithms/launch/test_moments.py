"""When a run draws, tracks and mends: the moments of its outputs."""

import types

import pytest

from algorithms import launch
from algorithms.launch.engine import plots
from algorithms.launch.tools import render, trackers
from tests.algorithms.launch import toy

CONFIG = toy.Config(total_timesteps=200, num_evals=4)
pytestmark = pytest.mark.usefixtures("quick_curves")


@pytest.mark.parametrize(
    "when, points", [("never", []), ("start", [0]), ("end", [4]), ("every", [0, 1, 2, 3, 4])]
)
def test_gifs_are_drawn_when_that_was_asked_for(tmp_path, monkeypatch, when, points):
    def draw(module, config, state, path, seed):
        path.write_bytes(b"GIF")
        return path

    monkeypatch.setattr(render, "check_drawable", lambda config: None)
    monkeypatch.setattr(render, "render", draw)
    launch.run(toy, CONFIG, run_dir=tmp_path / "run", gif=when)
    found = sorted(file.name for file in (tmp_path / "run").glob("*.gif"))
    assert found == [f"episode_{point:06d}.gif" for point in points]


@pytest.mark.parametrize("at_start", [True, False])
def test_trackers_get_points_with_metrics_and_are_closed_last(tmp_path, monkeypatch, at_start):
    """The curve is there by then, for whoever uploads it."""
    logged, closed, curve = [], [], tmp_path / "run" / "curve.png"
    tracker = types.SimpleNamespace(
        log=lambda metrics, timestep: logged.append(timestep),
        close=lambda outcomes: closed.append((curve.exists(), len(outcomes))),
    )
    monkeypatch.setattr(trackers, "check_libraries", lambda *_: None)
    monkeypatch.setattr(trackers, "open_trackers", lambda *_: {"": tracker})
    config = CONFIG.replace(eval_at_start=at_start)
    launch.run(toy, config, num_seeds=2, run_dir=curve.parent, track=True)
    assert logged == [0, 50, 100, 150, 200][not at_start :] and closed == [(True, 2)]


def test_a_curve_that_a_finished_run_lacks_is_drawn(tmp_path, monkeypatch):
    run = launch.run(toy, CONFIG, run_dir=tmp_path / "run")
    curve = run.run_dir / "curve.png"
    monkeypatch.setattr(plots, "curve", lambda *given: given[-1].write_bytes(b"again"))
    launch.resume(run.run_dir, module=toy)
    assert curve.read_bytes() == b"PNG"
    curve.unlink()
    launch.resume(run.run_dir, module=toy)
    assert curve.read_bytes() == b"again"
