"""Fixtures for the cases of algorithm files, each made once, and the order of the tests."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from algorithms import parts
from tests import probe as tasks
from tests.algorithms.cases import (
    by_points,
    cases,
    compiled_as_for_users,
    go_on,
    in_tree,
    of_swept,
    stacked,
    whole,
)
from tests.seconds import WHOLE


def pytest_generate_tests(metafunc):
    """Runs a test with `case` for the cases that all its marks select, else for its file's own.

    pytest.mark.cases(*conditions, slow=None, rows=None): `conditions` are functions of a case.
    `rows` gives {id: row} of a case, each a test of its own. `slow(case)`, or with rows `slow(case,
    row)`, selects the slow ones.
    """
    if "case" not in metafunc.fixturenames:
        return
    marks = list(metafunc.definition.iter_markers("cases"))
    if not marks:
        params = [pytest.param(metafunc.module.CASE, id=pytest.HIDDEN_PARAM)]
        metafunc.parametrize("case", params, indirect=True, scope="session")
        return
    of_marks = lambda name: next((m.kwargs[name] for m in marks if name in m.kwargs), None)
    rows, slow, params = of_marks("rows"), of_marks("slow") or (lambda *_: False), []
    for case in cases():
        if all(condition(case) for mark in marks for condition in mark.args):
            runs = (
                {f"{case.name}-{key}": (case, row) for key, row in rows(case).items()}
                if rows
                else {case.name: (case,)}
            )
            for label, run in runs.items():
                marks_of = [pytest.mark.needs(name) for name in case.info.get("needs", ())]
                marks_of += [pytest.mark.slow] * slow(*run)
                params.append(pytest.param(*run, id=label, marks=marks_of))
    names = ("case", "row") if rows else ("case",)
    metafunc.parametrize(names, params, indirect=True, scope="session")


@pytest.fixture(scope="session")
def case(request):
    return request.param


@pytest.fixture(scope="session")
def row(request):
    return request.param


@pytest.fixture(scope="session")
def pair():
    return tasks.Pair()


@pytest.fixture(scope="session")
def floats(case):
    names = [field.name for field in dataclasses.fields(case.tiny) if in_tree(field)]
    return [name for name in names if name not in case.unswept]


@pytest.fixture(scope="session")
def exact_slices(case):
    """`tiny` point by point, compiled as for users."""
    with compiled_as_for_users():
        return by_points(case.make_train(), jax.random.key(0))


@pytest.fixture(scope="session")
def slices(case, request):
    """`tiny` point by point."""
    if case.exact:
        return request.getfixturevalue("exact_slices")
    return by_points(case.make_train(), jax.random.key(0))


@pytest.fixture(scope="session")
def trained(slices):
    """`tiny`, alone: the final state and all metrics."""
    return whole(slices)


@pytest.fixture(scope="session")
def swept(case, floats):
    """One program that trains with each float changed in turn, and last unchanged, with two seeds.

    Returns configs, initial states, final states and metrics. States are arguments, as in the
    launcher, so that even counters are batched. Few files evaluate: it is of all files alike.
    """
    on = {name: True for name in ("normalize_obs", "normalize_reward") if case.has(name)}
    episodes = case.tiny.num_eval_episodes * (case.name in WHOLE)
    base = case.tiny.replace(eval_at_start=False, num_eval_episodes=episodes, **on)
    base = base.replace(**case.swept)
    changed = {"clip_obs": 0.1, "clip_reward": 0.1, **case.other}
    other = {name: changed.get(name, 0.5 * getattr(base, name)) for name in floats}
    configs = [base.replace(**{name: other[name]}) for name in floats] + [base, base]
    keys = [jax.random.key(0) for _ in floats] + [jax.random.key(0), jax.random.key(1)]
    start = [parts.first_state(of_swept(case, *one), key) for *one, key in zip(configs, keys)]
    with jax.debug_key_reuse(False):  # see conftest.vmapped_keys
        start = jax.tree.map(lambda *x: jnp.stack(x), *start)
        rest = jax.jit(go_on(case), static_argnums=2)(stacked(configs), start, 3)
    return configs, start, rest
