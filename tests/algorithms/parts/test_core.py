"""The core, which every program has, asks for no feature: what only some runs have joins it from
outside."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CORE = (
    *("envs.batch", "envs.episodes", "envs.evaluation", "envs.loops", "envs.metrics"),
    *("envs.sums",),
    *("algorithms.parts.actions", "algorithms.parts.fields", "algorithms.parts.layers"),
    *("algorithms.parts.loops", "algorithms.parts.metrics", "algorithms.parts.optimizer"),
    *("algorithms.parts.orders", "algorithms.parts.products", "algorithms.parts.spaces"),
    *("algorithms.parts.statistics", "algorithms.parts.training"),
)
# What it calls without asking what it does: sums over shards, which are the sums themselves without
# any; jax's usual settings; warnings; settings that nothing reads; axes that are left; and
# envs.make.
EDGES = (
    *("algorithms.parts.shards", "algorithms.parts.reads", "algorithms.parts.spreads"),
    *("envs.usual_jax", "envs.warn", "envs"),
)


def imported(module):
    """The modules of the kit that a module imports, anywhere in it."""
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (
                a.name for a in node.names if a.name.split(".")[0] in ("envs", "algorithms")
            )
        elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in (
            "envs",
            "algorithms",
        ):
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                is_file = ROOT.joinpath(*inside.split(".")).with_suffix(".py").exists()
                yield inside if is_file else node.module


@pytest.mark.parametrize("module", CORE)
def test_the_core_imports_itself_and_a_few_edges(module):
    assert {*imported(module)} <= {*CORE, *EDGES}
