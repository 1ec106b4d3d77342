"""`--changed` selects what imports a changed file, and nothing is missing."""

import pytest

from tests import changed

CONTRACT = "tests/algorithms/test_contract.py::test_pinned_values"
LAUNCH = "tests/algorithms/launch/test_cli.py::test_it"
ENVS = "tests/envs/test_envs.py::test_it"


@pytest.mark.parametrize(
    "file, test, selected",
    [
        ("algorithms/dqn.py", f"{CONTRACT}[dqn]", True),
        ("algorithms/dqn.py", f"{CONTRACT}[sac]", False),
        ("tests/algorithms/test_dqn.py", f"{CONTRACT}[dqn]", True),
        ("algorithms/parts/replay.py", f"{CONTRACT}[sac]", True),
        ("envs/batch.py", f"{CONTRACT}[sac]", True),  # by algorithms.parts and a package
        ("envs/pursuit.py", ENVS, True),  # by a string of the registry
        ("algorithms/launch/tools/compare.py", f"{CONTRACT}[ppo]", False),  # behind `if __name__`
        # By the names that launch/__init__.py imports when they are asked for.
        ("algorithms/launch/engine/hosts.py", LAUNCH, True),
        ("algorithms/launch/tools/report/page.css", LAUNCH, True),
        ("tests/algorithms/conftest.py", "tests/algorithms/parts/test_info.py::test_it", True),
        ("tests/algorithms/conftest.py", ENVS, False),
        ("docs/sweeps.md", "tests/test_docs.py::test_it", True),
        ("docs/sweeps.md", f"{CONTRACT}[ppo]", False),
        ("pyproject.toml", ENVS, True),
    ],
)  # fmt: skip
def test_a_change_selects_what_it_can_reach(file, test, selected):
    assert (changed.ROOT / file).exists()
    assert changed.selects(test, {file}) == selected


@pytest.mark.skipif(not (changed.ROOT / ".git").exists(), reason="no clone")
def test_a_revision_that_git_does_not_know_is_a_sentence():
    with pytest.raises(pytest.UsageError, match="--changed: fatal: bad revision 'no-such'"):
        changed.changed_files("no-such")
