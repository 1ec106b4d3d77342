"""Jobs for an accelerator: their order, forecasts and limits, what a kill leaves, and real ones."""

import argparse
import json
import math
import os
import signal
import subprocess
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs
from algorithms import parts
from algorithms.presets import PRESETS
from tests.benchmarks import accelerator, measures, peer_python, report, speed
from tests.benchmarks.accelerator import JOBS, LONG, Job, Kept
from tests.benchmarks.measures import CASES, Learned, Pair

H200 = "NVIDIA H200"


class Part(NamedTuple):
    """A part that is never measured."""

    name: str = "a"
    needs: tuple[str, ...] = ()


def measured(job, name="a", device=H200, seconds=20.0, **more):
    """What a folder keeps of a part."""
    kept = {"job": job, "part": name, "device": device, "table": "gpu-pairs", "seconds": seconds}
    return kept | {"of": "abc1234, jax 0.11.2", "rows": [{"steps/s": "1k"}]} | more


@pytest.fixture
def kept(tmp_path):
    return Kept(tmp_path, results=tmp_path / "none")


# --- the visit --------------------------------------------------------------------------------


class Visit:
    """A visit with a clock of its own, on which a job takes as long as is given here."""

    def __init__(self, kept, **takes):
        self.kept, self.takes, self.clock, self.started = kept, takes, 0.0, []

    def start(self, job, parts, limit):
        self.started.append((job.name, [part.name for part in parts], limit))
        self.clock += min(limit, self.takes.get(job.name, job.seconds))

    def __call__(self, jobs, seconds, **more):
        now = lambda: self.clock
        accelerator.visit(jobs, self.kept, H200, seconds, self.start, now=now, **more)
        return [name for name, _, _ in self.started]


A, B, C = (Job(name, seconds, (Part(),)) for name, seconds in (("a", 100), ("b", 90), ("c", 30)))


def test_jobs_start_in_order_while_they_fit(kept, capsys):
    """b does not fit after a, so that c is next."""
    visit = Visit(kept)
    assert visit([A, B, C], seconds=140) == ["a", "c"]
    assert visit.started[0] == ("a", ["a"], 140), "its limit is what is left"
    assert visit.started[1][2] == 40
    assert "10 s are left; next is b, forecast 90 s" in capsys.readouterr().out
    assert Visit(kept)([A, B, C], seconds=math.inf) == ["a", "b", "c"]
    assert "nothing is left" in capsys.readouterr().out


def test_a_job_has_at_most_its_limit(kept):
    visit = Visit(kept, a=1000)
    visit([A, B], seconds=500)
    assert [limit for _, _, limit in visit.started] == [accelerator.LIMIT] * 2
    assert visit.clock == accelerator.LIMIT + 90
    hour = Job("h", 300, (Part(),), long=True)
    visit([hour], seconds=math.inf)
    assert visit.started[-1][2] == accelerator.LONG_LIMIT


def test_what_is_kept_is_skipped_on_this_kind_of_device_alone(kept):
    kept.add([measured("a"), measured("b", device="NVIDIA H100")])
    assert Visit(kept)([A, B], seconds=300) == ["b"]
    assert Visit(kept)([A, B], seconds=300, again=True) == ["a", "b"]
    two = Job("t", 100, (Part("x"), Part("y")))
    kept.add([measured("t", "x")])
    visit = Visit(kept)
    visit([two], seconds=300)
    assert visit.started == [("t", ["y"], 150)], "only the part that is left"


def test_a_forecast_is_what_was_measured_else_a_guess(kept):
    two = Job("t", 100, (Part("x"), Part("y")))
    forecast = lambda: kept.forecast(two, two.parts, H200)
    assert forecast() == 100
    kept.add([measured("t", "x", device="NVIDIA H100", seconds=20)])
    assert forecast() == 20 + 50
    kept.add([measured("t", "x", seconds=30), measured("t", "y", seconds=40)])
    assert forecast() == 70, "of this device before others"
    assert kept.devices(two) == [H200]
    assert Visit(kept)([two], seconds=60, again=True) == [], "so that it does not fit"


def test_a_missing_library_or_flag_leaves_its_parts_out_with_a_line(capsys):
    args = argparse.Namespace(peer_python=None, purejaxql=None, purejaxrl=None)
    mixed = Job("m", 100, (Part("x"), Part("y", ("no_such_library",))))
    peer = Job("p", 90, (Part("z", ("--peer-python", "--purejaxql")),))
    (found,) = accelerator.possible([mixed, peer], args)
    assert [one.name for one in found.parts] == ["x"] and found.seconds == 50
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "m, y: left out, it needs no_such_library"
    assert lines[1] == "p, z: left out, it needs --peer-python and --purejaxql"
    args.peer_python = args.purejaxql = "there"
    assert len(accelerator.possible([mixed, peer], args)) == 2


# --- rows -------------------------------------------------------------------------------------


def test_a_row_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "NVIDIA-H200.json"
    accelerator.write(file, measured("a", "x"))
    accelerator.write(file, measured("a", "y"))
    accelerator.write(file, measured("a", "x", seconds=7.0))
    assert [(one["part"], one["seconds"]) for one in accelerator.read(file)] == [
        ("y", 20),
        ("x", 7),
    ]
    monkeypatch.setattr(accelerator.Path, "replace", lambda *_: os.kill(0, "not a signal"))
    with pytest.raises(TypeError):  # as if killed just before the new file is there
        accelerator.write(file, measured("b"))
    assert len(accelerator.read(file)) == 2
    kept = Kept(tmp_path, results=tmp_path / "none")
    assert kept.seconds["a", "x"] == {H200: 7.0}, "half of a file is not read"


def test_rows_are_collected_by_device_without_tiny_ones(tmp_path):
    out, results = tmp_path / "out", tmp_path / "results"
    out.mkdir()
    for device in (H200, "NVIDIA H100", accelerator.TINY):
        accelerator.write(out / f"{accelerator.slug(device)}.json", measured("a", device=device))
    accelerator.collect(out, results)
    accelerator.write(out / "NVIDIA-H200.json", measured("a", seconds=99.0, of=", jax 0.11.2"))
    accelerator.collect(out, results)
    rows = {row["device"]: row for row in report.read("gpu-pairs", results)}
    assert set(rows) == {H200, "NVIDIA H100"}
    assert list(rows[H200])[:3] == ["job", "part", "device"]
    assert (rows[H200]["took"], rows[H200]["steps/s"]) == ("99 s", "1k")
    assert rows[H200]["of"] == f"{accelerator.commit()}, jax 0.11.2", "a copy had no git"
    assert rows["NVIDIA H100"]["of"] == "abc1234, jax 0.11.2"
    kept = Kept(tmp_path / "new", results)
    assert kept.seconds["a", "a"] == {H200: 99.0, "NVIDIA H100": 20.0}, "in a new folder, too"


# --- the lists --------------------------------------------------------------------------------


def test_every_job_has_a_name_of_its_own_and_fits_its_list():
    names = [job.name for job in JOBS + LONG]
    assert len(set(names)) == len(names) == len(accelerator.BY_NAME)
    assert all(job.seconds <= accelerator.LIMIT and not job.long for job in JOBS)
    assert all(accelerator.LIMIT < job.seconds <= accelerator.LONG_LIMIT for job in LONG)
    assert all(job.long for job in LONG)
    for job in JOBS + LONG:
        parts = [one.name for one in job.parts]
        assert parts and len(set(parts)) == len(parts), job.name
    first = [name.partition("-")[0] for name in names]
    kinds = ["graphs", "precision", "warp", "wide", "minatar", "dmc", "craftax", "speed", "dreamer"]
    kinds.append("flashsac")
    assert list(dict.fromkeys(first)) == kinds, "the most valuable first"
    tables = {one.table for job in JOBS for one in job.parts}
    page = (accelerator.ROOT / "docs" / "gpu.md").read_text()
    assert all(f"<!-- table {table} -->" in page for table in tables)


def test_tiny_jobs_are_of_every_kind_and_measure_every_change():
    asked = argparse.Namespace(only=None, tiny=True, minutes=None)
    tiny = accelerator.chosen(asked)
    assert [job for job in JOBS if job in tiny] == tiny, "in their order"
    kinds = lambda jobs: {(type(one), getattr(one, "change", "")) for j in jobs for one in j.parts}
    assert kinds(tiny) == kinds(JOBS + LONG)
    assert sum(job.name.startswith("dmc") for job in tiny) == 1
    asked.only, asked.tiny = ["wide-sweep", "dmc-13M-W"], False
    names = [job.name for job in accelerator.chosen(asked)]
    assert len(names) == 5 and names[0] == "wide-sweep-ppo" and names[-1] == "dmc-13M-WalkerWalk"


def of(kind):
    """The parts of a kind, each once."""
    return {one.name: one for job in JOBS + LONG for one in job.parts if isinstance(one, kind)}


def test_cases_have_settings_that_work():
    assert {one.change for one in of(Pair).values()} == set(measures.CHANGES)
    for name, case in CASES.items():
        if "/" in case.env or case.algorithm == measures.STEPS:
            continue
        for sized in (case, measures.shrunk(case)):
            module, config = speed.our_settings(sized)
            plan = module.make_train(config).plan
            assert plan.steps >= sized.timesteps and config.num_evals == 1, name
    assert speed.Worker.environment == {"JAX_PLATFORMS": "cpu"}
    shared = measures.OnAccelerator.environment["XLA_PYTHON_CLIENT_PREALLOCATE"]
    assert shared == "false", "else the first side takes most of the memory"


def test_a_shrunk_case_is_a_thousandth_or_just_learns():
    size = lambda case: case.num_seeds * case.timesteps
    for case in CASES.values():
        small = measures.shrunk(case)
        if case.algorithm in speed.REPLAY:
            starts = speed.OUR_SETTINGS[case.algorithm]["learning_starts"]
            assert small.num_seeds == 1 and small.timesteps > starts, case.name
        else:
            assert size(small) <= max(size(case) / 500, 4 * small.num_steps), case.name


@pytest.mark.needs("craftax")
@pytest.mark.needs("brax")
@pytest.mark.needs("mujoco_playground")
def test_environments_of_the_jobs_exist():
    tasks = {f"playground/{task}" for task in accelerator.TASKS}
    for name in {case.env for case in CASES.values()} | tasks:
        envs.make(name)


def test_runs_of_published_sizes_have_whole_updates():
    """Else their steps would be rounded up to more than the table says."""
    for one in of(Learned).values():
        words = one.cell.words.split()
        given = dict(zip(words[::2], words[1::2]))
        if "--preset" not in given or given["--preset"] not in PRESETS[one.cell.algorithm]:
            continue
        settings = PRESETS[one.cell.algorithm][given["--preset"]]
        steps = 16 if one.cell.algorithm in ("dreamer", "flashsac") else 128
        update = settings.get("num_envs", 16) * settings.get("num_steps", steps)
        points = int(given["--num-evals"]) * update
        asked = int(given.get("--total-timesteps", settings.get("total_timesteps", 0)))
        assert -(-asked // points) * points <= 1.01 * asked, one.cell


def test_differences_of_results():
    same = {"a": np.array([1.0, np.nan]), "b": np.array([], np.float32)}
    assert measures.difference(same, {"a": np.array([1.0, np.nan]), "b": same["b"]}) == "none"
    assert measures.difference(same, {"a": np.array([1.5, np.nan]), "b": same["b"]}) == "5.0e-01"
    assert measures.difference(same, {"a": np.array([1.0, 2.0]), "b": same["b"]}) == "nan"


def test_a_pair_compares_times_and_results_and_tells_of_a_refused_option(monkeypatch):
    function = jax.jit(lambda x: jnp.sin(x))
    monkeypatch.setattr(
        measures, "lower", lambda case: measures.Lowered(function.lower(1.0), (1.0,))
    )
    monkeypatch.setitem(measures.CHANGES, "odd", measures.Change({"xla_no_such_option": True}))
    rows = lambda change: Pair(CASES["ppo-cartpole-1"], change).rows(argparse.Namespace(tiny=True))
    (row,) = rows("+WHILE")
    assert row["results differ by"] == "none" and row["steps/s"].endswith("k")
    (row,) = rows("odd")
    assert "No such compile option" in row["results differ by"] and row["times faster"] == "-"


def test_steps_before_learning_are_left_out_of_one_side_alone(monkeypatch):
    """It has the loop of a CPU, and what is lowered later does not."""
    monkeypatch.setattr(envs.loops, "platform", lambda: "gpu")
    monkeypatch.setattr(measures, "lower", lambda case: parts.loops.loops.platform())
    assert measures.skipping(CASES["sac-pendulum-1024"]) == "cpu"
    assert parts.loops.loops.platform() == "gpu"


# --- real ones --------------------------------------------------------------------------------

FIRST, SECOND = "wide-sweep-kernels", "speed-ppo-cartpole-4096"
COMMAND = [sys.executable, accelerator.__file__, "--tiny", "--only", FIRST, SECOND]


@pytest.mark.slow  # three processes that compile
def test_a_second_start_skips_what_the_first_has_measured_before_its_kill(tmp_path):
    words, file = [*COMMAND, "--out", str(tmp_path)], tmp_path / "cpu-tiny.json"
    killed = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert any(line.startswith(f"{SECOND}: forecast") for line in killed.stdout)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    (first,) = json.loads(file.read_text())
    assert first["job"] == FIRST and first["device"] == "cpu, tiny"
    assert first["of"].startswith(accelerator.commit())
    shares = [float(row["share"].partition(" ")[0]) for row in first["rows"]]
    assert shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 101
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert FIRST not in done.stdout and f"{SECOND}: forecast" in done.stdout
    kept, second = json.loads(file.read_text())
    assert kept == first, "not measured again"
    assert second["rows"][0]["this kit, steps/s"].endswith("k")


MISSING = "without CUDA's plugin: `python tests/benchmarks/accelerator.py --absent` installs it"


@pytest.mark.slow  # a GPU's compiler takes half a minute for each
@pytest.mark.skipif(not peer_python.plugins_folder().exists(), reason=MISSING)
@pytest.mark.parametrize("name", ["graphs-2", "minatar-Breakout"])
def test_a_program_of_a_job_compiles_for_an_absent_h100(name):
    args = argparse.Namespace(peer_python=None, purejaxql=None, purejaxrl=None)
    assert accelerator.show_absent([accelerator.BY_NAME[name]], args)
