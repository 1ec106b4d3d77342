"""Copies of algorithm files, in a project that has its own packages `envs` and `algorithms`."""

import ast
import builtins
import functools
import importlib
import importlib.util
import inspect
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from algorithms import ppo, reinforce
from algorithms.launch import cli
from algorithms.launch.engine.errors import UserError
from algorithms.launch.tools.copying import bundle, copies, sources
from envs import registry
from tests import probe, texts
from tests.seconds import ALGORITHMS

ROOT = Path(__file__).parents[3]
NAMES = sorted(ALGORITHMS)
FEW = ["dqn", "ippo", "ppo", "ppo_rnn", "r2d2", "sac"]
LIBRARIES = {"jax", "flax", "optax", "numpy", "gymnax"}
MORE_LIBRARIES = {"alphazero": {"mctx", "pgx"}}
# Lines of a copy, at most: it must not grow without being noticed.
LENGTHS = {"dqn": 2666, "ippo": 2956, "ppo": 2393, "ppo_rnn": 3167, "r2d2": 3560, "sac": 2925}
ALL = [*FEW, *(pytest.param(n, marks=pytest.mark.slow) for n in NAMES if n not in FEW)]


@functools.cache
def copied(name, env=None):
    return copies.copy(importlib.import_module(f"algorithms.{name}"), env)


def globals_of(tree):
    """{name: the statement that defines it} of a module, without imports."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.setdefault(node.name, node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
            found |= dict.fromkeys(names, node)
    return found


def names_in(node):
    own = {node.name} if isinstance(node, ast.FunctionDef) else set()
    return own | {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


@pytest.mark.parametrize("name", ALL)
def test_a_copy_imports_a_few_libraries(name):
    tree = ast.parse(copied(name))
    modules = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    modules += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    found = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names
    assert found <= LIBRARIES | MORE_LIBRARIES.get(name, set())


@pytest.mark.parametrize("name", LENGTHS)
def test_a_copy_is_as_short_as_it_was(name):
    assert copied(name).count("\n") <= LENGTHS[name]


def test_no_name_that_a_copy_may_take_is_built_by_several_statements():
    """A copy has the statement that defines a name, and would lose X |= {...}."""
    files = *ROOT.glob("algorithms/parts/*.py"), *ROOT.glob("envs/*.py")
    statements = [(file.name, x) for file in files for x in ast.parse(file.read_text()).body]
    assert not [place for place, x in statements if isinstance(x, ast.AugAssign)]


def test_a_copy_has_the_checks_of_settings_that_its_config_has():
    for name, has in (("ppo", False), ("sac", True)):
        assert ("def check_network(" in copied(name)) == has
        assert ("def check_samples(" in copied(name)) != has


@pytest.mark.parametrize("name", ALL)
def test_each_definition_of_a_copy_is_reached(name):
    tree = ast.parse(copied(name))
    defined, reached = globals_of(tree), set()
    more = [n for n in tree.body if isinstance(n, ast.If | ast.Expr)]  # __main__, and x.defvjp(y)
    more += [n for n in tree.body if getattr(n, "decorator_list", None)]
    todo = ["make_train", "make_policy", "Config", "main"]
    while todo:
        if (one := todo.pop()) in defined and one not in reached:
            reached.add(one)
            todo += names_in(defined[one])
            todo += [n for node in more if one in names_in(node) for n in names_in(node)]
    assert defined.keys() - reached == set()
    for body in (getattr(node, "body", ()) for node in ast.walk(tree)):
        ends = [isinstance(n, ast.Return | ast.Raise) for n in body] if type(body) is list else []
        assert not any(ends[:-1]), ast.unparse(body[0])
    # A method is asked for by its name, or Python or flax call it.
    asked = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    strings = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant))
    asked |= {word for x in strings if isinstance(x, str) for word in x.split()} | {"setup"}
    for node in defined.values():
        if isinstance(node, ast.ClassDef):
            methods = [n.name for n in node.body if isinstance(n, ast.FunctionDef)]
            assert {m for m in methods if not m.startswith("__")} <= asked, node.name


@pytest.mark.parametrize("name", ALL)
def test_no_name_of_a_copy_hides_another(name):
    tree = ast.parse(copied(name))
    imported = (a for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names)
    above = {*globals_of(tree), *((a.asname or a.name).partition(".")[0] for a in imported)}
    assert not {*globals_of(tree)} & {*dir(builtins)}
    for node in tree.body:
        assert not sources.Scopes(node).bound & above, getattr(node, "name", node)


@pytest.mark.parametrize("name", ALL)
def test_a_copy_has_the_file_s_text_but_for_names(name):
    """Lines that differ are of shards, 64 bits, exploitability or warnings. What neither make_train
    nor make_policy reaches is left out."""
    package = re.compile(r"\b(parts|envs|levels|games)[._]|\b(Parts|Envs)")
    plain = lambda text: package.sub("", text).replace("Batch(", "batch(")
    lines = {plain(line) for line in copied(name).splitlines()}
    text = (ROOT / "algorithms" / f"{name}.py").read_text()
    kept, there = text.splitlines(), globals_of(ast.parse(copied(name)))
    for node in (n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)):
        if node.name in ("make_probabilities", "make_search", "make_dream", "in_words"):
            assert node.name not in there
            kept[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    kept = kept[kept.index("INFO = {") : kept.index('if __name__ == "__main__":')]
    differ = [line for line in kept if plain(line) not in lines]
    of_the_kit = "shards|exploitability|warn_of"
    assert all(re.search(of_the_kit, line) for line in differ), differ
    assert len(differ) < 12


# --- in a project without the kit -------------------------------------------------------------

PATTERNS = [x.pattern for x in (texts.FUNCTION, texts.SYMBOL, texts.RESULT)]
USE = f"""
import contextlib, functools, hashlib, importlib, json, re, sys
import jax

FUNCTION, SYMBOL, RESULT = map(re.compile, {PATTERNS!r})
{inspect.getsource(texts.normalised)}
{inspect.getsource(texts.hash_of)}
def digest(module, config, traced_for, lowered_for):
    module.platform = lambda: traced_for
    module._train = jax.jit(module._train.__wrapped__, static_argnames=module.STATIC)
    train = module.make_train(config)
    traced = jax.jit(lambda rng: train(rng, None, 1)).trace(jax.random.key(0))
    return hash_of(normalised(traced.lower(lowering_platforms=(lowered_for,)).as_text()))

name, configs, found = json.loads(sys.argv[1])
tuples = lambda x: tuple(map(tuples, x)) if isinstance(x, list) else x
module = importlib.import_module(f"agents.{{name}}")
platforms = {texts.PLATFORMS!r}
for label, settings in configs.items():
    config = module.Config(**{{n: tuples(x) for n, x in settings.items()}})
    found[label] = {{x: digest(module, config, *platforms[x]) for x in found[label]}}
print(json.dumps(found))
"""


def has(name, config):
    """Whether a copy has the environment and the settings of a Config."""
    module = importlib.import_module(f"algorithms.{name}")
    of_others = {key for key, _ in config.env_settings} & {*registry.WRAPPER_SETTINGS}
    known = config.env == module.Config.env or config.env in {*registry.names()} - {*registry.OWN}
    return known and not of_others - {"max_steps"}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with its own packages, and a folder `agents` for copies."""
    root = tmp_path_factory.mktemp("project")
    for name in ("envs", "algorithms"):
        (root / name).mkdir()
        (root / name / "__init__.py").write_text("raise AssertionError('the project has its own')")
    (root / "agents").mkdir()
    return root


def put(project, name):
    file = project / "agents" / f"{name}.py"
    file.write_text(copied(name))
    return file


def run(project, *words, code=0):
    """A process in the project, where the kit cannot be imported. Returns stdout and stderr."""
    others = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(project), *(x for x in others if x and Path(x) != ROOT)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, *map(str, words)]
    pipes = {"capture_output": True, "text": True, "timeout": 600}
    result = subprocess.run(command, cwd=project, env=environment, **pipes)
    assert result.returncode == code, result.stderr
    return result.stdout, result.stderr


TWO = {"defaults": ["cpu"], "preset": ["accelerator"]}


@pytest.mark.parametrize(
    "name, which",
    [
        # Both have replay and several agents: most of what copies are made of.
        *(pytest.param(name, TWO, id=f"{name}-two") for name in ("dqn", "ippo")),
        *(pytest.param(name, {}, id=f"{name}-all", marks=pytest.mark.slow) for name in NAMES),
    ],
)
def test_a_copy_is_the_kit_s_program(project, name, which):
    """It lowers to the text whose hash tests/texts.json has, for a CPU and for an accelerator.

    So does that of a preset, if a copy has its environment and its settings; else it is printed.
    """
    entry = texts.read()[name]
    if (other := texts.other_versions(name, entry)) or not texts.installed(name):
        pytest.skip(other or "a library is missing")
    presets = {of: texts.preset_of(of, entry["preset"]["name"]) for of in ("defaults", "preset")}
    configs = {of: texts.config_of(name, preset) for of, preset in presets.items()}
    for of, config in [*configs.items()]:
        if not has(name, config):
            print(f"a copy of {name} has no {config.env} with {configs.pop(of).env_settings}")
    put(project, name)
    asked = {of: which.get(of, [*texts.PLATFORMS]) for of in configs}
    said, _ = run(project, "-c", USE, json.dumps([name, configs, asked], default=vars))
    expected = {of: {name: entry[of][name] for name in asked[of]} for of in configs}
    assert json.loads(said) == expected and "defaults" in expected


TINY = {
    "num_envs": 4,
    "num_steps": 8,
    "total_timesteps": 192,
    "hidden_sizes": (8,),
    "num_evals": 3,
    "num_eval_episodes": 2,
}


def test_a_copy_trains_from_the_command_line(project, tmp_path):
    """Every number is the kit's own, bit for bit."""
    file = put(project, "reinforce")
    given = TINY | {"hidden_sizes": "8,", "total_timesteps": "1.92e2"}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    said, _ = run(project, file, *words, "--no-normalize-obs", "--seed", 3, "--csv", tmp_path / "x")
    train = reinforce.make_train(reinforce.Config(**TINY, normalize_obs=False))
    point = jax.jit(lambda state, learn: train(None, state, 1, learn))
    state, rows = train.start(jax.random.key(3)), []
    for learn in (False, True, True, True):
        state, metrics = point(state, learn)
        rows.append({name: np.reshape(x, (1, -1)).mean(1)[0] for name, x in metrics.items()})
    written = [line.split(",") for line in (tmp_path / "x").read_text().splitlines()]
    assert written == [["seed", *rows[0]], *(["3", *map(str, row.values())] for row in rows)]
    told = "timestep {timestep:.0f}  episode_return {episode_return:.2f}  "
    told += "eval_return {eval_return:.2f}"
    assert said.splitlines() == [told.format(**row) for row in rows]


@pytest.mark.slow  # .ci/run trains two seeds of a copy
def test_seeds_of_a_copy_train_at_once(project, tmp_path):
    file = put(project, "reinforce")
    given = TINY | {"hidden_sizes": "8,", "eval_at_start": "false", "num_seeds": 3}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    said, _ = run(project, file, *words, "--csv", tmp_path / "x")
    lines = [line.split(",") for line in (tmp_path / "x").read_text().splitlines()]
    place = lines[0].index("eval_return")
    rows = np.array([[float(line[0]), float(line[place])] for line in lines[1:]]).reshape(3, 3, 2)
    np.testing.assert_array_equal(rows[:, :, 0], [[0, 1, 2]] * 3)
    assert len({*rows[-1, :, 1]}) > 1, "seeds differ"
    means = [float(line.split()[-1]) for line in said.splitlines()]
    np.testing.assert_allclose(means, rows[:, :, 1].mean(1), atol=0.006)


def test_a_copy_refuses_no_seeds_and_a_file_that_exists(project, tmp_path):
    file = put(project, "reinforce")
    (tmp_path / "x").touch()
    _, error = run(project, file, "--num-seeds", 0, code=2)
    assert "--seed 0 --num-seeds 0: give 0 or more, and 1 or more" in error
    _, error = run(project, file, "--csv", tmp_path / "x", code=2)
    assert f"--csv {tmp_path / 'x'}: give a new file" in error and "Traceback" not in error


@pytest.mark.slow  # a program of its own
def test_a_copy_leaves_out_what_is_missing_under_jax_debug_nans(project, tmp_path, monkeypatch):
    file = put(project, "reinforce")
    words = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    words = [word.replace("(8,)", "8,") for word in words]
    monkeypatch.setenv("JAX_DEBUG_NANS", "1")
    run(project, file, *words, "--csv", tmp_path / "x")
    names, first, *_ = [line.split(",") for line in (tmp_path / "x").read_text().splitlines()]
    row = dict(zip(names, first))
    assert row["loss"] == row["episode_return"] == "nan" and row["timestep"] == "0.0"


def test_ctrl_c_ends_a_copy_without_a_traceback(project, tmp_path):
    """Also while a program runs: the next point of this one is minutes away."""
    words = [put(project, "reinforce"), "--num-evals=2", "--total-timesteps=1e9", "--csv=x"]
    words += ["--num-envs=2", "--hidden-sizes=4,", "--num-eval-episodes=1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, *words], cwd=tmp_path, **pipes) as process:
        assert process.stdout.readline().startswith("timestep 0 ")
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT and "Traceback" not in error
    assert len((tmp_path / "x").read_text().splitlines()) == 2


@pytest.mark.usefixtures("no_signals")
@pytest.mark.parametrize(
    "words, message",
    [
        ("--gama 0.5", "unrecognized arguments: --gama"),
        ("--anneal-lr no", "argument --anneal-lr"),
        ("--num-envs 2.5", "argument --num-envs"),
        ("--gamma 1.5", "gamma=1.5: give a number in [0, 1]"),
        ("--env CartPol-v1", "unknown environment 'CartPol-v1'; did you mean CartPole-v1?"),
        (
            "--env Pendulum-v1 --env-settings g=1,noise=2",
            "has no setting noise; there are max_steps",
        ),
        ("--num-envs 0", "num_envs=0: give a whole number"),
        ("--env-settings max_steps=0", "max_steps=0: give a number of steps, 1 or more"),
        ("--env-settings max_steps=long", "max_steps=long: give a number of steps, 1 or more"),
        ("--env-settings gravity=high", "gravity=high: give a number, true or false"),
        (
            "--env Asterix-MinAtar --env-settings use_minimal_action_set=no",
            "use_minimal_action_set=no: give a number, true or false",
        ),
        ("--compute-dtype float64", "compute_dtype='float64': give one of ('float32', 'bfloat16')"),
        ("--conv-layers big", "conv_layers='big' does not suit observations (4,)"),
    ],
)
def test_wrong_flags_of_a_copy_are_refused(capsys, monkeypatch, module, words, message):
    monkeypatch.setattr(sys, "argv", ["ppo.py", *words.split()])
    with pytest.raises(SystemExit) as stop:
        module.main(module.make_train, module.Config, module.__doc__)
    assert stop.value.code == 2 and message in " ".join(capsys.readouterr().err.split())


def imported(folder, name):
    """A copy as a module of this process."""
    file = folder / f"{name}_copy.py"
    file.write_text(copied(name))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    made = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def no_signals(monkeypatch):
    """The command line in this process leaves Ctrl-C to the tests."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """A copy of ppo, imported in this process."""
    return imported(tmp_path_factory.mktemp("module"), "ppo")


@pytest.mark.usefixtures("no_signals")
@pytest.mark.parametrize("anneal", ["--no-anneal-lr", "--anneal-lr false", "--anneal-lr=false"])
def test_flags_of_a_copy_are_those_of_its_config(monkeypatch, module, anneal):
    words = "--env Pendulum-v1 --env-settings max_steps=20,g=1.5,on=false --hidden-sizes 64,32 "
    words += f"--gamma 0.5 --total-timesteps 5e5 --normalize-obs {anneal}"
    monkeypatch.setattr(sys, "argv", ["ppo.py", *words.split()])
    found = []

    def make_train(config):
        found.append(config)
        raise ValueError("seen")

    with pytest.raises(SystemExit):
        module.main(make_train, module.Config, module.__doc__)
    assert found == [
        module.Config(
            env="Pendulum-v1",
            env_settings=(("max_steps", 20), ("g", 1.5), ("on", False)),
            hidden_sizes=(64, 32),
            gamma=0.5,
            total_timesteps=500_000,
            normalize_obs=True,
            anneal_lr=False,
        )
    ]


def test_environments_of_a_copy(module):
    """Any object with gymnax's interface works; settings of wrappers are refused."""
    env, params = module.make("Pendulum-v1", g=1.5, max_steps=7)
    assert params.g == 1.5 and params.max_steps_in_episode == 200
    _, state = env.reset_env(jax.random.key(0), params)
    for _ in range(7):
        assert not env.is_truncated(state, params)
        _, state, *_ = env.step_env(jax.random.key(0), state, np.zeros(1), params)
    assert env.is_truncated(state, params)
    for limit in (300, 100):
        _, longer = module.make("Pendulum-v1", max_steps=limit)
        assert longer.max_steps_in_episode == max(limit, 200)
    assert module.make(probe.Probe())[0].name == probe.Probe().name
    with pytest.raises(ValueError, match="CartPole-v1 has no setting frame_stack; .*use the kit"):
        module.make("CartPole-v1", frame_stack=4)


def test_a_copy_refuses_other_environments(module):
    endless = module.make("CartPole-v1", max_steps_in_episode=2**31 - 1)
    pair = module.make(probe.Pair())
    for made, message in ((pair, "several agent.*takes agents: one"), (endless, "no time limit")):
        with pytest.raises(ValueError, match=message):
            module.make_train(module.Config(), *made)


def test_parameters_of_an_environment_may_be_traced(tmp_path):
    """As Pendulum's torque, which bounds its actions."""
    made = imported(tmp_path, "ddpg")
    env, params = made.make("Pendulum-v1")

    def traced(torque):
        given = params.replace(max_torque=torque)
        assert isinstance(env.action_space(given).high, jax.core.Tracer)
        made.make_train(made.Config(), env, given)
        return torque

    jax.eval_shape(traced, 2.0)


def test_a_copy_says_where_an_adapter_is(module):
    with pytest.raises(
        ValueError, match="the kit copies its adapter with --copy and --env brax/an"
    ):
        module.make("brax/ant")


def test_a_copy_needs_gymnax_for_names_alone(tmp_path, monkeypatch):
    copied("ppo")
    for name in [name for name in sys.modules if name.partition(".")[0] == "gymnax"]:
        monkeypatch.setitem(sys.modules, name, None)
    made = imported(tmp_path, "ppo")
    with pytest.raises(ValueError, match="need gymnax: pip install gymnax six"):
        made.make_train(made.Config())
    world = made.make(probe.Probe())
    jax.eval_shape(made.make_train(made.Config(asymmetric=False), *world), jax.random.key(0))


def test_a_copy_tells_of_a_value_head_that_keeps_its_axis(tmp_path):
    made = imported(tmp_path, "ppo")
    critic = made.ActorCritic.critic
    made.ActorCritic.critic = lambda self, x: critic(self, x)[..., None]
    config = made.Config(num_envs=3, num_steps=41, num_minibatches=1, num_eval_episodes=0)
    with pytest.warns(UserWarning, match=r"ppo_copy.py, line \d+: target=advantages \+ values,: "):
        jax.eval_shape(made.make_train(config), jax.random.key(0))


def test_a_copy_refuses_64_bits(module):
    with jax.enable_x64(True), pytest.raises(ValueError, match="jax_enable_x64 is set"):
        module.make_train(module.Config())


# --- files ------------------------------------------------------------------------------------


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


def test_a_copy_is_one_file(capsys, tmp_path):
    """It says where it comes from, what it needs, and its licence."""
    code, out, err = call(capsys, ppo, tmp_path / "agents")
    assert (code, out, err) == (0, f"{tmp_path / 'agents' / 'ppo.py'}\n", "")
    assert [*contents(tmp_path / "agents")] == [tmp_path / "agents" / "ppo.py"]
    text = (tmp_path / "agents" / "ppo.py").read_text()
    lines, licence = text.splitlines(), (ROOT / "LICENSE").read_text().splitlines()
    assert lines[0].startswith("# ppo.py of single-file-rl 0.1.0, with all that it uses")
    asked = '"flax>=0.12.8" "jax>=0.10.2,<0.12" "optax>=0.2.8" "gymnax>=1.0.1,<2" six'
    assert lines[2] == f"#   pip install {asked}", "the bounds of pyproject.toml"
    assert lines[3] == "# The pages in docs/ that it names are that kit's."
    assert lines[4].removeprefix('"""') == ppo.__doc__.splitlines()[0]
    assert [line.removeprefix("#").strip() for line in lines[-len(licence) :]] == licence


def test_copies_do_not_know_one_another(capsys, tmp_path):
    assert call(capsys, ppo, tmp_path)[0] == 0
    before = contents(tmp_path)
    assert call(capsys, reinforce, tmp_path)[0] == 0
    assert before.items() < contents(tmp_path).items()


def test_nothing_is_overwritten(capsys, tmp_path):
    (tmp_path / "ppo.py").write_text("mine")
    code, out, err = call(capsys, ppo, tmp_path)
    assert (code, out) == (2, "")
    assert err == f"error: {tmp_path / 'ppo.py'} exists: a copy overwrites nothing\n"
    assert (tmp_path / "ppo.py").read_text() == "mine"


def test_a_copy_is_written_into_a_folder(capsys, tmp_path):
    code, out, err = call(capsys, ppo, tmp_path / "mine.py")
    assert (code, out) == (2, "") and not contents(tmp_path)
    assert err == f"error: --copy {tmp_path / 'mine.py'}: give a folder, such as {tmp_path}\n"


def test_a_copy_has_the_file_s_own_settings(capsys, tmp_path):
    code, _, err = call(capsys, ppo, tmp_path / "agents", "--gamma", "0.5")
    assert code == 2 and err == "error: --copy does not go with --gamma 0.5 (in place of 0.99)\n"
    assert not contents(tmp_path)


def test_a_copy_that_fails_leaves_nothing(capsys, tmp_path, monkeypatch):
    def full(part, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    code, _, err = call(capsys, ppo, tmp_path / "agents")
    assert code == 2 and err.endswith("agents cannot be written: No space left on device\n")
    assert not contents(tmp_path / "agents")


@pytest.mark.parametrize(
    "env, there",
    [
        ("Pursuit-v0", r'return {"Pursuit-v0": Pursuit}'),
        ("brax/ant", r'{"brax": \((envs_)?names, (envs_)?construct\)}'),
        ("CartPole-v1", r"known = _registry\n"),
    ],
)
def test_an_environment_comes_along(env, there):
    text = copied("ppo", env)
    assert re.search(there, text)
    ast.parse(text)


@pytest.mark.parametrize(
    "env, message",
    [
        ("my_module:MyEnv", "pass an environment of your own to make_train"),
        ("Pursiut-v0", "did you mean Pursuit-v0"),
    ],
)
def test_unknown_environments_of_a_copy_are_refused(capsys, tmp_path, env, message):
    code, _, err = call(capsys, ppo, tmp_path, "--env", env)
    assert code == 2 and message in err and not contents(tmp_path)


REFUSED = [
    "import algorithms.parts as parts",
    "import envs as worlds",
    "from algorithms.parts import nothing\nX = nothing",
    "from algorithms import parts\nX = parts.nothing",
    "from algorithms import parts\nX = getattr(parts, 'scan')",
    "from . import other",
    "X = undefined",
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_copied_is_refused(tmp_path, text):
    file = tmp_path / "mine.py"
    file.write_text(f'"""Mine."""\n{text}\n\nif __name__ == "__main__":\n    pass\n')
    with pytest.raises(UserError, match="mine.py"):
        bundle.Copy(file, {}, {}).text("", "")
