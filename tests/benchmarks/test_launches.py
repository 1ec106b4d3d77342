"""Launches counted in text by hand and in small programs; and those of three algorithms."""

import jax
import jax.numpy as jnp
import pytest

from tests.benchmarks import hlo, launches, peer_python

ONE = lambda node: 1


@pytest.fixture(autouse=True, scope="module")
def places():
    """Programs that know the lines of Python, which those of other tests do without."""
    before = jax.config.jax_traceback_in_locations_limit
    jax.config.update("jax_traceback_in_locations_limit", 10)
    yield
    jax.config.update("jax_traceback_in_locations_limit", before)


# A loop of unknown trips with a known one inside, as CUDA's text has them.
TEXT = """HloModule jit_train, is_scheduled=true

FileNames
1 "/kit/algorithms/ppo.py"
2 "/site-packages/flax/linen/linear.py"
3 "/kit/algorithms/parts/loops.py"

FunctionNames
1 "learner.<locals>.learn"
2 "Dense.__call__"
3 "learner.<locals>.collect.<locals>.step"
4 "scan_rows"

FileLocations
1 {file_name_id=1 function_name_id=1 line=35 end_line=35 column=1 end_column=2}
2 {file_name_id=2 function_name_id=2 line=3 end_line=3 column=1 end_column=2}
3 {file_name_id=1 function_name_id=3 line=36 end_line=36 column=1 end_column=2}
4 {file_name_id=3 function_name_id=4 line=40 end_line=40 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=4}
3 {file_location_id=3 parent_frame_id=2}
4 {file_location_id=4 parent_frame_id=2}

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %sine.1 = f32[4]{0} sine(%p)
  ROOT %add.1 = f32[4]{0} add(%sine.1, %p)
}

%compared (p.1: s32[]) -> pred[] {
  %p.1 = s32[] parameter(0)
  ROOT %lt = pred[] compare(%p.1, %p.1), direction=LT
}

%step (c: (s32[], f32[4])) -> (s32[], f32[4]) {
  %c = (s32[], f32[4]{0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %x = f32[4]{0} get-tuple-element(%c), index=1
  %fusion.1 = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused
  %sort.1 = (f32[4]{0}, s32[4]{0}) sort(%fusion.1, %ids), dimensions={0}, to_apply=%less
  ROOT %out = (s32[], f32[4]{0}) tuple(%i, %fusion.1)
}

%steps_left (c.1: (s32[], f32[4])) -> pred[] {
  %c.1 = (s32[], f32[4]{0}) parameter(0)
  ROOT %asked.1 = pred[] fusion(%c.1), kind=kLoop, calls=%compared
}

%epoch (e: (s32[], f32[4])) -> (s32[], f32[4]) {
  %e = (s32[], f32[4]{0:T(128)S(1)}) parameter(0)
  %copy-start.1 = (f32[4], f32[4], u32[]) copy-start(%e)
  %copy-done.1 = f32[4]{0} copy-done(%copy-start.1)
  %call.1 = f32[4]{0} call(%copy-done.1), to_apply=%called
  ROOT %while.1 = (s32[], f32[4]{0}) while(%e), condition=%steps_left, body=%step, \
metadata={op_name="jit(train)/while" stack_frame_id=2}, \
backend_config={"known_trip_count":{"n":"5"}}
}

%called (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %custom-call.1 = f32[4]{0} custom-call(%a), custom_call_target="cusolver_geqrf"
  ROOT %copy.9 = f32[4]{0} copy(%custom-call.1)
}

%unfinished (e.1: (s32[], f32[4])) -> pred[] {
  %e.1 = (s32[], f32[4]{0}) parameter(0)
  ROOT %asked.2 = pred[] fusion(%e.1), kind=kLoop, calls=%compared
}

%left (l: f32[4]) -> f32[4] {
  %l = f32[4]{0} parameter(0)
  ROOT %copy.2 = f32[4]{0} copy(%l)
}

%right (r: f32[4]) -> f32[4] {
  %r = f32[4]{0} parameter(0)
  %copy.3 = f32[4]{0} copy(%r)
  %double = f64[4]{0} convert(%copy.3)
  ROOT %copy.4 = f32[4]{0} convert(%double)
}

ENTRY %main (argument: f32[4]) -> f32[4] {
  %argument = f32[4]{0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[4]{0}) tuple(%zero, %argument)
  %while.2 = (s32[], f32[4]{0}) while(%start), condition=%unfinished, body=%epoch, \
metadata={op_name="jit(train)/while" stack_frame_id=4}
  %x.2 = f32[4]{0} get-tuple-element(%while.2), index=1
  %which = s32[] custom-call(), custom_call_target="xla_ffi_python_gpu_callback"
  ROOT %chosen = f32[4]{0} conditional(%which, %x.2, %x.2), branch_computations={%left, %right}
}
"""


def test_launches_of_a_text_are_counted_loop_by_loop():
    program = hlo.read(TEXT)
    epochs, chosen = program.root.inside
    (steps,) = epochs.inside
    assert (steps.trips, steps.own) == (5, 2), "a fusion and a sort; known trips ask no condition"
    assert (epochs.trips, epochs.own) == (None, 4), "copy, custom call, copy, and the condition"
    assert epochs.once(ONE) == 5 * 2 + 4
    assert epochs.launches(lambda node: 3) == 3 * epochs.once(ONE), "unknown trips are the caller's"
    assert [branch.own for branch in chosen.inside] == [1, 3]
    assert chosen.launches(ONE) == 3, "the largest branch"
    assert program.root.own == 1 and program.root.launches(ONE) == 1 + 14 + 3


def test_what_should_not_be_in_a_program_is_found():
    program = hlo.read(TEXT)
    assert program.host == ["xla_ffi_python_gpu_callback"]
    assert program.calls == {"cusolver_geqrf": 1, "xla_ffi_python_gpu_callback": 1}
    assert program.float64 and not hlo.read(TEXT.replace("f64", "f32")).float64
    assert [node.sorts for node in program.root.walk()] == [0, 0, 1, 0, 0, 0]
    fused = hlo.read(TEXT.replace(" sine(%p)", " sort(%p), to_apply=%less"))
    assert [node.sorts for node in fused.root.walk()] == [0, 0, 2, 0, 0, 0], "within the fusion"
    assert "send" in hlo.read(TEXT.replace("copy(%custom-call.1", "send(%custom-call.1")).host


def test_a_loop_has_the_name_of_the_function_that_is_not_a_librarys():
    epochs, _ = hlo.read(TEXT).root.inside
    assert epochs.name == "learn", "the caller of scan_rows"
    assert epochs.inside[0].name == "step", "the caller of a layer, in collect"
    assert epochs.place == "algorithms/ppo.py:35 jit(train)/while"
    without = TEXT.partition("FileNames")[0] + TEXT[TEXT.index("%fused") :]
    assert [node.name for node in hlo.read(without).root.inside] == ["loop", "loop"]


@pytest.mark.parametrize(
    "function, name",
    [
        ("learner.<locals>.learn.<locals>.<lambda>", "learn"),
        ("RewardScale.update", "RewardScale.update"),
        ("<lambda>", "loop"),
    ],
)
def test_names_of_loops(function, name):
    assert hlo.label([hlo.Frame(function, "/kit/algorithms/x.py", 3)]) == (
        name,
        "algorithms/x.py:3",
    )


def test_a_formula_says_where_launches_are():
    program = hlo.read(TEXT)
    twice = lambda node: 2
    assert hlo.formula(program.root, twice) == "learn 2? x (step 5 x 2 + 4) + loop if (3) + 1"
    program.root.inside.append(program.root.inside[0])
    assert hlo.formula(program.root, twice) == (
        "2 x (learn 2? x (step 5 x 2 + 4)) + loop if (3) + 1"
    )
    assert hlo.tree(program.root, twice)[1].startswith("  learn: ? x 14 (4 of its own)")


def nested(x):
    """Three times: a sort, and five times a sort."""
    inner = lambda x, _: (jnp.sort(x * 2.0), None)
    outer = lambda x, _: (jnp.sort(jax.lax.scan(inner, x, length=5)[0]), None)
    return jax.lax.scan(outer, x, length=3)[0]


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(True, id="as said"),
        pytest.param(
            False,
            id="from the condition",
            marks=pytest.mark.skipif(
                jax.version.__version_info__ >= (0, 11), reason="its CPU wraps them in fusions"
            ),
        ),
    ],
)
def test_trips_of_a_compiled_program(said, monkeypatch):
    """As CUDA says them; a TPU's text has them in the condition alone."""
    text = jax.jit(nested).lower(jnp.arange(64.0)).compile().as_text()
    assert "known_trip_count" in text
    text = text if said else text.replace("known_trip_count", "nothing")
    (outer,) = hlo.read(text).root.inside
    (inner,) = outer.inside
    assert (outer.trips, inner.trips) == (3, 5)
    assert (outer.sorts, inner.sorts) == (1, 1)
    assert inner.name == "nested" and "test_launches.py" in inner.place
    sorts = outer.trips * (outer.sorts + inner.trips * inner.sorts)
    assert sorts == 18 and outer.launches(ONE) >= sorts


@pytest.mark.parametrize("step, first, limit", [(2, 0, 6), (1, 3, 6), (1, 0, None)])
def test_trips_are_not_guessed(step, first, limit):
    """A loop in other steps, from elsewhere, or to a traced number."""

    def loop(x, n):
        unfinished = lambda carry: carry[0] < (n if limit is None else limit)
        advance = lambda carry: (carry[0] + step, jnp.sort(carry[1] * 2.0))
        return jax.lax.while_loop(unfinished, advance, (first, x))[1]

    text = jax.jit(loop).lower(jnp.arange(64.0), 6).compile().as_text()
    (found,) = hlo.read(text.replace("known_trip_count", "nothing")).root.inside
    assert found.trips is None


# --- of algorithms ----------------------------------------------------------------------------


def found(side, num_steps):
    """A program of the text by hand, with the epochs as its loop over updates."""
    job = launches.Job(side, "ppo", "h100", 2)
    memory = {"arguments": 2_000_000, "temporaries": 4_000_000, "output": 1_000_000}
    figures = {"updates": "learn", "trips": {}, "num_steps": num_steps, "seconds": 3.2}
    figures["cublas"] = side == "rejax"
    return launches.Found(job, hlo.read(TEXT), figures | {"memory": memory})


def test_a_row_compares_steps_of_the_environments():
    """A peer whose update has a seventh of the steps launches seven times as much for each."""
    row = launches.row(found("this kit", 14), [found("rejax", 2)])
    line = dict(zip(launches.COLUMNS, row))
    assert line["program"] == "ppo, h100, 2 seeds"
    assert (line["launches"], line["a step"]) == ("14", "1.0")
    assert line["against peers"] == "0.14 of rejax"
    assert line["loop by loop"] == "step 5 x 2 + 4"
    assert line["sorts"] == "1, 1 in loops" and line["waits for the host"] == "none"
    assert line["memory of a trial"] == "3.50 MB (1.00 + 2.00 + 0.50)"
    assert "float64, cusolver_geqrf x 1" in line["calls"]
    peer = dict(zip(launches.COLUMNS, launches.row(found("purejaxrl", 2), [])))
    assert peer["program"] == "purejaxrl ppo, h100, 2 seeds" and peer["memory of a trial"] == "-"
    assert launches.row(found("rejax", 2), [])[0] == "rejax ppo, h100, 2 seeds, by cuBLAS"


def test_a_row_is_compared_with_peers_that_are_kept():
    known = {"rejax ppo, h100, 64 seeds": "40.0", "rejax ppo, v5e, 64 seeds": "1.0"}
    row = ["ppo, h100, 64 seeds, by cuBLAS", "2560", "20.0", "-", "loops"]
    assert launches.compared(row, known)[3:] == ["0.50 of rejax", "loops"]
    assert launches.compared(["dqn, h100, 64 seeds", *row[1:]], known)[3] == "-"
    measured = [*row[:3], "0.60 of rejax", "loops"]
    assert launches.compared(measured, known) == measured


def test_a_row_has_a_step_of_evaluation_beside_an_update(monkeypatch):
    monkeypatch.setattr(launches, "EVALUATION", "step")
    line = dict(zip(launches.COLUMNS, launches.row(found("this kit", 14), [])))
    assert line["loop by loop"] == "step 5 x 2 + 4; step 5 x 2"


def test_a_program_without_its_loop_over_updates_is_refused():
    program = found("this kit", 14)
    program.figures["updates"] = 7
    with pytest.raises(RuntimeError, match="ppo: no loop over updates"):
        launches.row(program, [])


def test_the_error_of_a_worker_is_told():
    stderr = "Traceback:\n  line\njax.errors.JaxRuntimeError: INTERNAL: no tiles\n  at f\n"
    assert launches.complaint(stderr) == "jax.errors.JaxRuntimeError: INTERNAL: no tiles\n  at f"
    assert launches.complaint("Killed") == "Killed"


def test_all_algorithms_are_counted_without_evaluation():
    names = [*launches.algorithms(), *launches.OF_TEAMS, *launches.MORE]
    assert len(names) == len(set(names)) and set(launches.PEERS) <= set(names)
    for name in names:
        _, config = launches.settings(name)
        assert (config.num_eval_episodes, config.eval_at_start) == (0, False), name
    assert launches.ours("ppo", evaluation=True).own[0].num_eval_episodes == 32


@pytest.mark.parametrize(
    "name, num_steps, unknown",
    [("ppo", 128, {"learn": 4}), ("dqn", 16, {"Rounds.repeat": 5})],
)
def test_loops_of_an_algorithm_have_the_names_that_are_looked_for(name, num_steps, unknown):
    subject = launches.ours(name, evaluation=False)
    text = jax.jit(subject.function).lower(*subject.shared, *subject.own).compile().as_text()
    job = launches.Job("this kit", name, "cpu", 1)
    program = launches.Found(job, hlo.read(text), subject._asdict())
    loops = [node for node in program.update.walk() if node.trips is None]
    assert subject.num_steps == num_steps
    assert {node.name: program.usual(node) for node in loops} == {"updates": 1} | unknown


# By jax 0.10.2, and memory of a trial in MB; smaller is better. The learning rate that was used,
# a metric, takes 1 of ppo's and 20 of dqn's.
RECORDED = {"ppo": (1586, 0.81), "dqn": (3101, 2.6), "sac": (1077, 2.6)}
MISSING = "without CUDA's plugin: `python tests/benchmarks/launches.py ppo` installs it"


@pytest.mark.slow  # a GPU's compiler takes half a minute for each
@pytest.mark.skipif(not peer_python.plugins_folder().exists(), reason=MISSING)
@pytest.mark.skipif(jax.__version__ != "0.10.2", reason="counts are those of jax 0.10.2")
@pytest.mark.parametrize("name", RECORDED)
def test_launches_of_an_update_do_not_grow(name):
    """Nor does its memory, as it would with a second buffer; replay never waits for the host."""
    program = launches.compiled(launches.Job("this kit", name, "h100", 64))
    row = dict(zip(launches.COLUMNS, launches.row(program, [])))
    count, megabytes = RECORDED[name]
    assert program.launches <= count, row["loop by loop"]
    assert float(row["memory of a trial"].partition(" ")[0]) <= megabytes
    assert (row["waits for the host"], row["calls"]) == (
        "none" if name != "ppo" else "learn",
        "none",
    )
    assert not (program.program.host or program.program.float64)
