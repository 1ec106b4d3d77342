"""`--env my_module:MyEnv` from the command line, and again for a run that is there."""

import json
import sys
from pathlib import Path

import pytest

from algorithms import ppo
from tests.algorithms.launch import toy
from tests.algorithms.launch.test_cli import main
from tests.envs.test_modules import WALK

ROOT = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working directory with a module that is called as an algorithm is; the folder of these is
    on the path, as it is where a file of theirs is the program."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(ROOT / "algorithms"), *sys.path])
    (tmp_path / "dqn.py").write_text(WALK)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("_user_")]:
        del sys.modules[name]


def test_a_run_goes_on_is_evaluated_and_drawn(capsys, project):
    words = ("--env", "dqn:Walk", "--env-settings", "size=4,pay=2.0", "--num-evals", 2, "--quiet")
    assert main(capsys, *words) == (0, "", "")
    (run_dir,) = (project / "runs").iterdir()
    assert run_dir.name.startswith("dqn-Walk__toy__0__")
    assert json.loads((run_dir / "config.json").read_text())["config"]["env"] == "dqn:Walk"
    code, out, err = main(capsys, "--evaluate", run_dir, "--episodes", 2)
    assert code == 0 and "2 episodes" in out, err
    code, out, err = main(capsys, "--render", run_dir)
    assert code == 0 and Path(out.strip()).read_bytes().startswith(b"GIF89a"), err
    code, out, err = main(capsys, "--resume", run_dir, "--total-timesteps", 2000)
    assert code == 0 and "toy on dqn:Walk" in out, err


def test_a_mistake_is_one_line_and_leaves_nothing(capsys, project):
    code, _, err = main(capsys, "--env", "dqn:Wolk", module=toy)
    assert code == 2 and err.count("\n") == 1 and "did you mean Walk?" in err
    assert {path.name for path in project.iterdir()} <= {"dqn.py", "__pycache__"}


def test_an_environment_that_is_not_as_its_spaces_say_is_one_line_too(capsys, project):
    wide = WALK.replace("[state.place / self.size]", "[state.place / self.size] * 3")
    (project / "wide.py").write_text(wide)
    code, _, err = main(capsys, "--env", "wide:Walk", module=ppo)
    found = "reset_env of Walk returns an observation of shape (3,), in place of (1,)"
    assert code == 2 and err.count("\n") == 1 and found in err
    assert not (project / "runs").exists()
