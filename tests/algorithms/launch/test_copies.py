"""Copies of algorithm files, in a project that has its own packages `envs` and `algorithms`."""

import ast
import dataclasses
import functools
import hashlib
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import jax
import pytest

import envs
from algorithms import ppo, reinforce
from algorithms.launch.commands import cli, copies
from algorithms.launch.errors import UserError
from envs import registry

ROOT = Path(__file__).parents[3]
NAMES = sorted(f.stem for f in (ROOT / "algorithms").glob("*.py") if f.stem != "__init__")
FEW = ["dqn", "ippo"]
SETTINGS = {
    "num_envs": 4,
    "num_steps": 8,
    "total_timesteps": 192,
    "learning_starts": 8,
    "hidden_sizes": (8,),
    "num_evals": 3,
    "num_eval_episodes": 2,
}


def tiny(module, settings):
    fields = {field.name for field in dataclasses.fields(module.Config)}
    return module.Config(**{name: x for name, x in settings.items() if name in fields})


def lowered(module, settings):
    """A digest of the program."""
    train = jax.jit(module.make_train(tiny(module, settings)))
    return hashlib.sha256(train.lower(jax.random.key(0)).as_text().encode()).hexdigest()


# Imports copies of the project's folder `agents`, and runs the one in `scripts` as a program.
USE = f"""
import contextlib, dataclasses, hashlib, importlib, io, json, runpy, sys
import jax
import agents.ppo

{inspect.getsource(tiny)}
{inspect.getsource(lowered)}
words, names = json.loads(sys.argv[1]), sys.argv[2:]
envs = agents.ppo.envs
made = {{name: str(envs.make(name)[1]) for name in {[*registry.OWN]}}}
for library in envs.registry.LIBRARIES:
    for module in (library, f"mujoco_{{library}}"):  # not installed, as its adapter says
        sys.modules[module] = None
    try:
        envs.make(f"{{library}}/any")
    except ValueError as error:
        assert f'pip install "{{library}}' in str(error), error
modules = {{name: importlib.import_module(f"agents.{{name}}") for name in names}}
programs = {{name: lowered(module, {SETTINGS}) for name, module in modules.items()}}
try:
    agents.ppo.make_train(agents.ppo.Config(env="Hunt-v0"))
except ValueError as error:
    refusal = str(error)
sys.path.insert(0, "scripts")  # as Python does with the folder of a file that it runs
sys.argv = ["scripts/reinforce.py", *words]
with contextlib.redirect_stdout(io.StringIO()) as printed:
    runpy.run_path("scripts/reinforce.py", run_name="__main__")
assert sys.modules["rl_support"].__file__.endswith("scripts/rl_support/__init__.py")
print(json.dumps([made, programs, refusal, printed.getvalue()]))
"""


def call(capsys, module, directory, *words):
    """Runs the command line. Returns exit code, stdout and stderr."""
    try:
        cli.main(module, ["--copy", str(directory), *words])
        code = 0
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


def contents(directory):
    return {path: path.is_file() and path.read_bytes() for path in directory.rglob("*")}


@pytest.fixture(scope="module", autouse=True)
def kit_read_once():
    """Every copy would parse all environments again, which takes half a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "Source", functools.cache(copies.Source))
        yield


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with copies of all files in its folder `agents`, and of one in `scripts`."""
    root = tmp_path_factory.mktemp("project")
    for name in ("envs", "algorithms"):
        (root / name).mkdir()
        (root / name / "__init__.py").write_text("raise AssertionError('the project has its own')")
    for name in NAMES:
        cli.main(importlib.import_module(f"algorithms.{name}"), ["--copy", str(root / "agents")])
    cli.main(reinforce, ["--copy", str(root / "scripts")])
    return root


def run(project, *words):
    """A process in the project, where the kit cannot be imported. Returns what it prints."""
    environment = os.environ | {"PYTHONPATH": str(project)}
    command = [sys.executable, *words]
    pipes = {"capture_output": True, "text": True, "timeout": 300}
    result = subprocess.run(command, cwd=project, env=environment, **pipes)
    assert result.returncode == 0, result.stderr
    return result.stdout


def curve():
    """What the kit's own file learns, point by point, as it does in the program of a copy."""
    train, state = reinforce.make_train(tiny(reinforce, SETTINGS)), None
    for points in (0, 1, 1, 1):
        state, metrics = train(jax.random.key(0), state, points)
        columns = (metrics[name] for name in ("timestep", "episode_return", "eval_return"))
        for step, mean, evaluated in zip(*columns, strict=True):
            yield f"{step} {mean:.2f} {evaluated.mean():.2f}\n"


@pytest.mark.parametrize("names", [FEW, pytest.param(NAMES, marks=pytest.mark.slow)], ids=len)
def test_copies_are_the_kit_s_programs_imported_or_run(project, names):
    """They are lowered to the same programs. The one that runs takes the flags of its Config."""
    given = {name: x for name, x in SETTINGS.items() if hasattr(reinforce.Config, name)}
    given |= {"hidden_sizes": "8,", "total_timesteps": "1.92e2"}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    said = run(project, "-c", USE, json.dumps(words), *names)
    made, programs, refusal, printed = json.loads(said)
    assert printed == "".join(curve())
    of_the_copies = "ippo, ippo_rnn, ppo_vtrace and vdn take it"
    assert refusal.endswith(f"has several agents; {of_the_copies}")
    assert made == {name: str(envs.make(name)[1]) for name in registry.OWN}
    modules = {name: importlib.import_module(f"algorithms.{name}") for name in names}
    assert programs == {name: lowered(module, SETTINGS) for name, module in modules.items()}


def flags_of_a_copy(argv, make_train=lambda config: config):
    """What is made of the Config that these flags ask for, in a copy of ppo."""
    module = types.ModuleType("flags")
    text = copies.copy(Path(ppo.__file__))["rl_support/flags.py"].decode()
    exec(text.replace("from .parts", "from algorithms.parts"), vars(module))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ppo.py", *argv.split()])
        return module.make(make_train, ppo.Config, ppo.__doc__)


@pytest.mark.parametrize("words", ["--no-anneal-lr", "--anneal-lr false", "--anneal_lr=false"])
def test_flags_of_a_copy_are_those_of_its_config(words):
    config = flags_of_a_copy(
        "--env Pendulum-v1 --env-settings max_steps=20,x=1.5 --hidden-sizes 64,32 --gamma 0.5 "
        f"--total-timesteps 5e5 --normalize-obs {words}"
    )
    assert config == ppo.Config(
        env="Pendulum-v1",
        env_settings=(("max_steps", 20), ("x", 1.5)),
        hidden_sizes=(64, 32),
        gamma=0.5,
        total_timesteps=500_000,
        normalize_obs=True,
        anneal_lr=False,
    )


@pytest.mark.parametrize(
    "words, message",
    [
        ("--gama 0.5", "Unrecognized options: --gama"),
        ("--anneal-lr no", "'no' is neither true nor false"),
        ("--num-envs 2.5", "'2.5' is not a whole number"),
        ("--gamma 1.5", "gamma=1.5: give a number in [0, 1]"),
        ("--env CartPol-v1", "error: unknown environment 'CartPol-v1'"),
        ("--num-envs 0", "error: num_envs=0: give a whole number"),
    ],
)
def test_wrong_flags_of_a_copy_are_refused(capsys, words, message):
    with pytest.raises(SystemExit) as stop:
        flags_of_a_copy(words, ppo.make_train)
    assert stop.value.code == 2 and message in " ".join(capsys.readouterr().err.split())


@functools.cache  # most copies are the same
def without_imports(text):
    """The tree of a module that can be compiled."""

    class Others(ast.NodeTransformer):
        visit_Import = visit_ImportFrom = lambda self, node: None

    compile(text, "copy", "exec")
    return ast.dump(Others().visit(ast.parse(text)))


def test_only_imports_differ(project):
    """And no import of the kit is left, not even in a function that no test calls."""
    agents = project / "agents"
    support = agents / "rl_support"
    for path in (*(agents / f"{name}.py" for name in NAMES), *support.rglob("*.py")):
        text = path.read_text()
        assert not re.search(r"^ *(from|import) (envs|algorithms)\b", text, re.MULTILINE)
        assert without_imports(text), path
    for package, home in (("envs", ROOT), ("parts", ROOT / "algorithms")):
        for path in (support / package).glob("*.py"):
            if (package, path.stem) != ("parts", "__init__"):
                origin = home / path.relative_to(support)
                same = without_imports(path.read_text()) == without_imports(origin.read_text())
                assert same, path
    assert (support / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def parts_of(name):
    """The modules of parts that a copy of this file brings along."""
    files = map(Path, copies.copy(ROOT / "algorithms" / f"{name}.py"))
    return {file.stem for file in files if file.parts[:2] == ("rl_support", "parts")}


def test_what_comes_along(project):
    """Copies in one folder share what they need."""
    agents = project / "agents"
    there = {path.name for path in agents.iterdir()} - {"__pycache__"}
    assert there == {"rl_support", *(f"{name}.py" for name in NAMES)}
    support = agents / "rl_support"
    assert {path.name for path in support.iterdir() if path.name != "__pycache__"} == {
        *("__init__.py", "LICENSE", "envs", "flags.py", "parts")
    }
    own = {path.name for path in (ROOT / "envs").glob("*.py")}
    assert {path.name for path in (support / "envs").glob("*.py")} == own
    parts = {name: parts_of(name) for name in NAMES}
    assert "replay" in parts["dqn"] - parts["ppo"] and "orders" in parts["ppo"] - parts["dqn"]
    assert "capacity" in parts["dqn"] - parts["ppo"], "which only another part imports"
    assert {path.stem for path in (support / "parts").glob("*.py")} == set.union(*parts.values())
    head, *_, python, _, train = (agents / "ppo.py").read_text().splitlines()[:9]
    assert head == "# Copy of ppo.py of single-file-rl 0.1.0, MIT licence: rl_support/LICENSE"
    assert python == "    python ppo.py" and train.startswith("    train = make_train(")


def test_a_second_copy_adds_what_it_needs_and_says_so(capsys, tmp_path):
    support = tmp_path / "rl_support"
    assert call(capsys, ppo, tmp_path) == (0, f"{tmp_path / 'ppo.py'}\n{support}\n", "")
    before = contents(tmp_path)
    code, out, _ = call(capsys, importlib.import_module("algorithms.dqn"), tmp_path)
    after = contents(tmp_path)
    grown = support / "parts" / "__init__.py"
    assert code == 0 and before.items() - after.items() == {(grown, before[grown])}
    new = {path for path in after.keys() - before.keys() if path.is_file()}
    written = out.splitlines()
    assert support / "parts" / "replay.py" in new and {*map(Path, written)} == new | {grown}
    assert written[0] == str(tmp_path / "dqn.py") and written[-1] == str(grown)
    code, out, _ = call(capsys, importlib.import_module("algorithms.reinforce"), tmp_path)
    assert (code, out) == (0, f"{tmp_path / 'reinforce.py'}\n"), "all that it needs is there"


@pytest.mark.parametrize("change", ["envs/batch.py", "parts/__init__.py", "parts/fields.py"])
def test_a_support_package_that_somebody_changed_is_not_shared(capsys, tmp_path, change):
    assert call(capsys, ppo, tmp_path)[0] == 0
    (tmp_path / "rl_support" / change).write_text("X = 1\n")
    before = contents(tmp_path)
    code, out, _ = call(capsys, importlib.import_module("algorithms.dqn"), tmp_path)
    own = tmp_path / "dqn_support"
    assert (code, out) == (0, f"{tmp_path / 'dqn.py'}\n{own}\n")
    assert before.items() <= contents(tmp_path).items()
    assert "from dqn_support import envs, parts" in (tmp_path / "dqn.py").read_text()


@pytest.mark.parametrize("existing", ["ppo.py", "ppo_support", "ppo_support/notes.txt"])
def test_nothing_is_overwritten(capsys, tmp_path, existing):
    path = tmp_path / existing
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine") if path.suffix else path.mkdir()
    (tmp_path / "rl_support").write_text("mine")
    before = contents(tmp_path)
    code, out, err = call(capsys, ppo, tmp_path)
    assert (code, out) == (2, "")
    assert err == f"error: {tmp_path / existing.split('/')[0]} exists: a copy overwrites nothing\n"
    assert contents(tmp_path) == before


def test_a_copy_has_the_file_s_own_settings(capsys, tmp_path):
    code, _, err = call(capsys, ppo, tmp_path / "agents", "--gamma", "0.5")
    assert code == 2 and err == "error: --copy does not go with --gamma 0.5 (in place of 0.99)\n"
    assert not contents(tmp_path)


def test_a_copy_that_fails_leaves_nothing(capsys, tmp_path, monkeypatch):
    write_bytes, written = Path.write_bytes, []

    def full(path, content):
        if len(written) == 9:
            raise OSError(28, "No space left on device")
        written.append(path)
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    code, _, err = call(capsys, ppo, tmp_path / "agents")
    assert code == 2 and err.endswith("agents cannot be written: No space left on device\n")
    assert len(written) == 9 and not contents(tmp_path / "agents")


END = '\nif __name__ == "__main__":\n    pass\n'
REFUSED = [
    "import algorithms",
    "import envs.registry",
    "import math, envs",
    "import algorithms.parts as parts",
    "import envs as worlds",
    "import envs; import math",
    "x = '\u03b1'; import envs",
    "from algorithms import launch",
    "from algorithms import parts as p",
    "from algorithms.ppo import gae",
    "from algorithms.parts import *",
    "from algorithms.parts import nothing",
    "from algorithms.parts.replay import Replay",
    "from algorithms import parts\nparts.nothing",
    "from envs import *",
    "from . import other",
    "def f():\n    import envs",
    "def f(): import envs",
    "MODULE = 'envs.pursuit'",
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_copied_is_refused(tmp_path, text):
    file = tmp_path / "mine.py"
    file.write_text(text + END)
    with pytest.raises(UserError, match="mine.py"):
        copies.write(file, tmp_path / "agents")
    assert [*tmp_path.iterdir()] == [file]


def test_other_ways_to_import(tmp_path):
    """In brackets, with `as` and comments, after other letters; parts asked for by their names."""
    file = tmp_path / "mine.py"
    lines = [
        'LETTERS = "\u03b1\u03b2"',
        "import sys  # stays, it is used",
        "import envsets, algorithms_of_mine",
        "import envs",
        "from envs.batch import (",
        "    batch as many,  # \u03b1",
        "    BatchState,",
        ")",
        "from algorithms import parts",
        "print(sys.path, getattr(parts, 'Torso'))",
    ]
    file.write_text("\n".join(lines) + END)
    written = copies.copy(file)
    assert "rl_support/parts/replay.py" in written, "nobody knows what is asked for"
    text = written["mine.py"].decode().partition('\nif __name__ == "__main__":')[0]
    assert text.splitlines()[1:] == [
        *lines[:3],
        "if __package__:",
        "    from .rl_support import envs, parts",
        "    from .rl_support.envs.batch import batch as many, BatchState",
        "else:  # a script",
        "    from rl_support import envs, parts",
        "    from rl_support.envs.batch import batch as many, BatchState",
        lines[-1],
    ]
