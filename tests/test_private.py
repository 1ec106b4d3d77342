"""Names that jax and tyro do not promise to keep: all places that use one."""

import ast
import pkgutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
USED = {
    "algorithms/launch/engine/hosts.py": {"jax._src.distributed"},  # see `hosts._joined`
    # Without it flags are refused by boxes of many lines in place of a sentence.
    "algorithms/launch/flags.py": {"tyro._errors.on_parse_error"},
    # dce_jaxpr says which inputs a program uses, also inside of loops.
    "algorithms/launch/engine/population.py": {"jax.interpreters.partial_eval"},
    "envs/behaviour.py": {"jax.interpreters.partial_eval"},
}


def imported(file):
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def test_private_names_are_used_where_this_says():
    found = {}
    for file in [f for folder in ("algorithms", "envs") for f in (ROOT / folder).rglob("*.py")]:
        private = ("jax._src", "jax.interpreters", "jaxlib", "tyro._")
        names = {name for name in imported(file) if name.startswith(private)}
        if names:
            found[str(file.relative_to(ROOT))] = names
    assert found == USED
    for name in set.union(*USED.values()):
        assert pkgutil.resolve_name(name)
