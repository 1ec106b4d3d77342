"""The metrics that docs/metrics.md explains, and which of them a file logs."""

import ast
import functools
import re
from collections.abc import Iterator

from website import links, reading

PAGE = "docs/metrics.md"
ROW = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \| (.+) \|$", re.MULTILINE)
OF_ALL = {"timestep", "num_episodes", "episode_return", "episode_length"}
OF_ALL |= {"eval_return", "eval_length", "eval_last_reward", "eval_terminated", "eval_truncated"}


@functools.cache
def meanings() -> dict[str, str]:
    """{name: Markdown, with links of docs/metrics.md}, in order."""
    found = ROW.findall((links.ROOT / PAGE).read_text())
    return {name: says for label, says in found for name in re.findall(r"\w+", label)}


@functools.cache
def logged(name: str) -> list[str]:
    """The explained metrics that an algorithm logs, some with certain settings only.

    They are keys in its file, or keys of `losses` to which it adds "_loss"; its docstring names
    those of an evaluation of its own. A test compares them with runs.
    """
    text = reading.read(name)
    found = {*OF_ALL, *re.findall(r"`(eval_\w+)`", text)}
    for variable, key in keys(reading.tree(text)):
        found |= {key, f"{key}_loss"} if variable == "losses" else {key}
    if "def make_probabilities" in text:
        found.add("eval_exploitability")
    return [metric for metric in meanings() if metric in found]


def keys(node: ast.AST, variable: str = "") -> Iterator[tuple[str, str]]:
    """(variable, key) of new entries of dictionaries, but for those of `check`, its settings."""
    if isinstance(node, ast.FunctionDef) and node.name == "check":
        return
    if isinstance(node, ast.Assign | ast.AugAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        variable = ast.unparse(target).partition("[")[0]
    found = node.keys if isinstance(node, ast.Dict) else ()
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        found = (node.slice,)
    yield from ((variable, str(one.value)) for one in found if isinstance(one, ast.Constant))
    for child in ast.iter_child_nodes(node):
        yield from keys(child, variable)
