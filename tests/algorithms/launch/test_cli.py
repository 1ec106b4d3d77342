"""The command line, from outside wherever a process, a signal or a kill matters."""

import ast
import collections
import dataclasses
import gc
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from algorithms import dqn, launch, ppo, presets
from algorithms.launch import cli, flags
from algorithms.launch.engine import distributions, errors, interrupts, programs, reading
from algorithms.launch.engine.run_dir import RunDir
from algorithms.launch.tools import evaluation
from tests.algorithms.launch import toy
from tests.broken import untimed
from tests.seconds import ALGORITHMS

pytestmark = pytest.mark.usefixtures("quick_pictures", "shared_programs")
ROOT = Path(__file__).parents[3]
TOY, PPO = Path(toy.__file__), Path(ppo.__file__)
POINTS = ("--total-timesteps", "1200", "--num-evals", "120", "--num-seeds", "3")


def start(cwd, *words, file=TOY):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, file, *words]
    return subprocess.Popen(command, cwd=cwd, env=environment, **pipes)


def call(cwd, *words, file=TOY):
    """Runs to its end. Returns exit code, stdout and stderr."""
    process = start(cwd, *words, file=file)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def wait_for(process, text):
    """Reads stdout up to the line with a text in it."""
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"{text!r} never came; stderr: {process.stderr.read()}")


def main(capsys, *words, module=toy):
    """In this process. Returns exit code, stdout and stderr."""
    try:
        cli.main(module, [str(word) for word in words])
        code = 0
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The directory of an uninterrupted run of three trials, and what it printed."""
    root = tmp_path_factory.mktemp("whole")
    code, out, err = call(root, *POINTS)
    assert code == 0, err
    (run_dir,) = (root / "runs").iterdir()
    return run_dir, out


def assert_same_run(a, b):
    tables = [untimed((x / "metrics.csv").read_bytes()) for x in (a, b)]
    assert tables[0] == tables[1]
    states = [RunDir.open(x).file(RunDir.open(x).points("state")[-1], "state") for x in (a, b)]
    assert states[0].name == states[1].name
    assert states[0].read_bytes() == states[1].read_bytes()


# --- a run -----------------------------------------------------------------------------------


def test_what_a_run_prints(whole):
    run_dir, out = whole
    first, *points, done, times = out.splitlines()
    count = min(len(os.sched_getaffinity(0)), 3) if hasattr(os, "sched_getaffinity") else 1
    assert "toy on CartPole-v1: 3 trials (seeds 0 to 2)" in first and run_dir.name in first
    assert f"on {count} cpu device" in first or jax.devices()[0].platform != "cpu"
    assert [line[:4] for line in points] == [f"{share:3}%" for share in range(0, 101, 10)]
    assert "step 600 | evaluation return" in points[5] and "steps/s" in points[5]
    assert done.startswith("done: evaluation return") and run_dir.name in done
    assert "[" in done, "the range over the seeds"
    assert times.startswith("time: import") and "compile" in times and "run" in times


@pytest.mark.parametrize("trial", [0, 2])
def test_trials_are_close_to_single_runs(whole, trial):
    """Trials on several devices, the last of them padded, against one alone."""
    loaded = launch.load(whole[0], trial=trial, module=toy)

    def stop(point):
        if point.index == 3:
            raise launch.Stop

    alone = launch.run(toy, loaded.config, seed=trial, save=False, hooks=[stop])
    for name, values in loaded.metrics.items():
        np.testing.assert_allclose(values[trial, :4], alone.metrics[name][0], rtol=1e-4)


def test_quiet_is_quiet(capsys, tmp_path):
    words = ("--quiet", "--num-evals", 2, "--run-dir-root", tmp_path / "elsewhere")
    assert main(capsys, *words) == (0, "", "")
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


# --- flags -----------------------------------------------------------------------------------


def parsed(*words, module=toy):
    argv = [str(word) for word in words]
    return flags.parse(module, argv, *cli.defaults(module, argv))


def test_flags_become_settings():
    words = "--total-timesteps 5e5 --num-envs 1e1 --hidden-sizes 64,32 --anneal-lr --gamma=0.5"
    words += " --learning-rate 1e-3 --target-kl inf --env-settings max_steps=200,x=1.5,on=true,s=a"
    config, given = parsed(*words.split(), "--seed", 7)
    settings = (("max_steps", 200), ("x", 1.5), ("on", True), ("s", "a"))
    assert config == toy.Config(
        env_settings=settings,
        total_timesteps=500_000,
        num_envs=10,
        learning_rate=1e-3,
        anneal_lr=True,
        gamma=0.5,
        hidden_sizes=(64, 32),
    )
    assert type(config.total_timesteps) is int and given == flags.Flags(seed=7)
    assert parsed("--no-anneal-lr", "--num_envs", 3)[0] == toy.Config(num_envs=3)
    assert parsed("--hidden-sizes", "", "--env-settings", "")[0].hidden_sizes == ()


@pytest.mark.parametrize("word", ["[64, 32]", "(64,32)", "64, 32", "(64, 32,)"])
def test_a_tuple_may_have_brackets_and_spaces(word):
    """As wandb's agents write it."""
    assert parsed("--hidden-sizes", word)[0].hidden_sizes == (64, 32)
    assert reading.named_values(f"observe={word}, x = 1.5") == (("observe", (64, 32)), ("x", 1.5))
    drawn = distributions.distribution(f"choice:{word} / 8", tuple, reading.whole_numbers)
    assert drawn.values == [(64, 32), (8,)]
    assert reading.whole_numbers("[]") == () and reading.whole_numbers("[6.4e1, -1]") == (64, -1)


def test_brackets_that_belong_to_a_value_stay():
    pairs = (("opponent", "runs/a(1)"), ("other", "(b)/c"))
    assert reading.named_values("opponent=runs/a(1),other=(b)/c") == pairs
    with pytest.raises(ValueError, match="'\\[64' is not a number"):
        reading.whole_numbers("[64,")


def test_ranges_of_the_environment():
    words = "length=uniform:0.25:1, gravity=log:5:20"
    ranges = ("randomize", "length:uniform:0.25:1/gravity:log:5:20")
    base = toy.Config(env_settings=(("max_steps", 3), ("randomize", "length:log:1:2")))
    both = lambda *given: cli.with_ranges(base, *given, words)
    config, grid = both(base, {"gamma": [0.9, 0.8]})
    assert config.env_settings == (("max_steps", 3), ranges), "those of a preset are replaced"
    assert grid == {"gamma": [0.9, 0.8]}
    several = [(("max_steps", 3),), (("max_steps", 4),)]
    config, grid = both(base.replace(env_settings=several[0]), {"env_settings": several})
    assert grid == {"env_settings": [(("max_steps", 3), ranges), (("max_steps", 4), ranges)]}
    assert config.env_settings == grid["env_settings"][0]
    with pytest.raises(errors.UserError, match="leave one out"):
        both(base.replace(env_settings=(("randomize", "length:log:1:3"),)), {})


def test_a_run_with_ranges(capsys, tmp_path):
    run = tmp_path / "run"
    main(capsys, "--randomize", "length=uniform:0.25:1", "--run-dir", run)
    saved = json.loads((run / "config.json").read_text())["config"]["env_settings"]
    assert saved == {"randomize": "length:uniform:0.25:1"}


def test_a_setting_of_the_environment_may_be_several_numbers():
    pairs = (("observe", (0, 2, 3)), ("x", 1.5), ("y", 4))
    assert reading.named_values("observe=0,2,3,x=1.5,y=4") == pairs
    assert reading.named_values(reading.named_values_text(pairs)) == pairs
    assert parsed("--env-settings", "observe=0,2")[0].env_settings == (("observe", (0, 2)),)


def settings_of(name):
    """The names of the fields of a file's Config, read without importing it."""
    body = ast.parse((ROOT / "algorithms" / f"{name}.py").read_text()).body
    (config,) = [n for n in body if isinstance(n, ast.ClassDef) and n.name == "Config"]
    return [node.target.id for node in config.body if isinstance(node, ast.AnnAssign)]


def test_every_setting_of_every_file_is_in_one_box_of_help():
    every = {name: settings_of(name) for name in sorted(ALGORITHMS)}
    listed = [name for names in flags.SETTINGS.values() for name in names.split()]
    assert len(listed) == len(set(listed)) and set(listed) <= set().union(*every.values())
    for name, settings in every.items():
        boxes = collections.Counter(map(flags.box_of, settings))
        assert set(flags.SETTINGS) == set(boxes), f"{name} has an empty box"
    assert flags.box_of("a_setting_of_your_file") == flags.box_of("gamma") == "training"


def boxes_of(out):
    """{title of a box of --help: the flags in it}, as printed, with frames or without."""
    _, *parts = re.split(r"^\W*(\w+) options\W*$", out, flags=re.MULTILINE)
    flags_in = lambda text: re.findall(r"^[ │] --([a-z][\w-]*)", text, re.MULTILINE)
    return dict(zip(parts[::2], map(flags_in, parts[1::2])))


def test_help_has_a_box_for_each_use(capsys):
    _, out, _ = main(capsys, "--help", module=ppo)
    first, _, rest = out.partition("\n\n")[2].partition("\n")
    assert first == ppo.__doc__.partition("\n")[0], "what the algorithm is"
    assert rest.startswith("\nSeveral values of a setting make a sweep: ")
    boxes = boxes_of(out)
    assert list(boxes) == [*flags.SETTINGS, *flags.SHARED]
    shown = [name.replace("-", "_") for names in boxes.values() for name in names]
    known = [f.name for kind in (ppo.Config, flags.Flags) for f in dataclasses.fields(kind)]
    assert sorted(shown) == sorted(known), "each in one box"
    assert boxes["environment"][0] == "env" and boxes["training"][0] == "total-timesteps"
    assert {"seed", "resume"} <= set(boxes["run"]) and "samples" in boxes["sweep"]
    assert "pbt" in boxes["population"] and "memory-limit" in boxes["device"]
    assert {"evaluate", "list"} <= set(boxes["tool"])


def test_help_has_every_description(capsys):
    code, out, err = main(capsys, "--help", module=ppo)
    text = " ".join(out.replace("│", " ").split())
    assert code == 0 and not err
    for name in ppo.Config.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in text
    for line in PPO.read_text().partition("class Config:")[2].partition("\n\n\n")[0].splitlines():
        assert line.partition("  # ")[2] in text


REFUSED = [
    ("--learing-rate 3", "unknown flag --learing-rate; did you mean --learning-rate, "),
    ("--lr 3", "unknown flag --lr; did you mean --learning-rate? --help lists all"),
    ("-x", "unknown flag -x; --help lists all"),
    ("--layer-norm", "unknown flag --layer-norm; it is a setting of pqn, pqn_rnn, sac; --help"),
    (
        "--gae-lambda 1",
        "unknown flag --gae-lambda; it is a setting of dreamer, ippo, ippo_rnn, ppo, ",
    ),
    ("--env-id x", "unknown flag --env-id; here it is --env\n"),
    ("--capture_video", "unknown flag --capture_video; here it is --gif end, or --render RUN"),
    ("--cuda=3", "unknown flag --cuda; here it is JAX_PLATFORMS=cuda or cpu before the command"),
    ("--clip-coef 3", "unknown flag --clip-coef; did you mean "),  # a toy has no --clip-eps
    ("foo", "'foo' is no flag; is it the environment, --env foo?"),
    ("--quiet foo", "'foo' is no flag; --quiet does not take it"),
    ("--seed 1,2", "'1,2' is not a number: --seed is the first one, and --num-seeds how many the"),
    ("--seed 1 2", "'2' is no flag; --seed is the first one, and --num-seeds how many there are"),
    ("--json=3", "'3' is no flag; --json does not take it"),
    ("--num-envs 3 --json 3", "'3' is no flag; --help lists all"),
    ("--gamma", "--gamma: a value is missing"),
    ("--halving 2.5", "--halving: '2.5' is not a whole number"),
    ("--pbt-share x", "--pbt-share: 'x' is not a number"),
    ("--total-timesteps 1M", "--total-timesteps: '1M' is not a number: write 1e6"),
    ("--total-timesteps 1.5M", "--total-timesteps: '1.5M' is not a number"),
    ("--total-timesteps 2.5", "--total-timesteps: '2.5' is not a whole number"),
    ("--num-envs x", "--num-envs: 'x' is not a number"),
    ("--num-envs inf", "--num-envs"),
    ("--learning-rate x", "--learning-rate: 'x' is not a number"),
    ("--learning-rate 1-3", "'1-3' is not a number\n"),
    ("--learning-rate 1e-3,.1", "'1e-3,.1' is not a number: several values stand apart, 1e-3 .1"),
    ("--learning-rate nan", "learning_rate=nan: give a number in [0, inf)"),
    ("--hidden-sizes 3,a", "--hidden-sizes: 'a' is not a number"),
    ("--env-settings max_steps", "'max_steps' is not name=value, as max_steps=500; --env"),
    ("--env-settings 0,2", "'0' is not name=value"),
    (
        "--env-settings none",
        "'none' is not name=value, as max_steps=500; --env-settings= alone means none",
    ),
    ("--env-settings max_stepz=3", "did you mean max_steps"),
    ("--env-settings gravity=nan", "setting of CartPole-v1: gravity=nan: give a number"),
    ("--env-settings gravity=9.8,12", "gravity=9.8,12: give one number, as 9.8"),
    ("--env-settings gravity=low", "gravity=low: give one number, as 9.8"),
    ("--randomize lenght=uniform:1:2", "did you mean length"),
    ("--randomize length=1:2", "'length:1:2' is no range"),
    (
        "--randomize length=log:1:2 --env-settings randomize=length:log:1:2",
        "--randomize length=log:1:2: --env-settings has randomize; leave one out",
    ),
    (
        "--randomize length=log:1:2 --env-settings choice:max_steps=2/max_steps=3 --samples 2",
        "write randomize=length:log:1:2 into each choice",
    ),
    ("--resume RUN --randomize length=log:1:2", "--resume does not go with --randomize"),
    ("--resume RUN --gamma 0.5", ": a new run begins at its policy with --init-from "),
    ("--anneal-lr perhaps", "neither true nor false"),
    ("--gif sometimes", "--gif 'sometimes': give never, start, end or every"),
    ("--gamma 1.5", "gamma=1.5: give a number in [0, 1]"),
    ("--num-envs 0", "num_envs=0"),
    ("--num-seeds 0", "num_seeds=0: give 1 or more"),
    ("--seed -1", "seed=-1"),
    ("--env CartPole-v2", "did you mean CartPole-v1"),
    ("--preset CartPole", "unknown preset of toy 'CartPole'"),
    ("--seed", "--seed: a value is missing"),
    ("--point 3", "a new run does not go with --point 3"),
    (
        "--episodes 3",
        "a new run does not go with --episodes 3 (in place of 100): say of which run, "
        "--evaluate DIR",
    ),
    ("--distributed --coordinator localhost", "localhost: give HOST:PORT, as localhost:9911"),
    ("--distributed --coordinator localhost:abc", "localhost:abc: give HOST:PORT"),
    ("--distributed --coordinator localhost:99999", "localhost:99999: give HOST:PORT"),
    ("--one-run-per-seed", "track or tensorboard"),
    ("--copy=", "--copy is empty: give a path"),
    ("--run-dir-root=", "--run-dir-root is empty: give a path"),
    ("--no-anneal-lr true", "--no-anneal-lr true: give --no-anneal-lr alone, or --anneal-lr true"),
    ("--resume nowhere", "nowhere/config.json does not exist"),
    (
        "--num-envs log:1:8 --samples 2",
        "'log:1:8' is neither a whole number nor int:LOW:HIGH, logint:LOW:HIGH or choice:A,B,C",
    ),
    ("--num-envs 1:8", "'1:8' is neither a whole number nor int:LOW:HIGH"),
    ("--num-envs int:1:8", "num_envs is drawn at random: say how often, samples=64"),
    ("--num-envs int:8:1 --samples 2", "'int:8:1': give two numbers, the lower one first"),
    ("--num-envs choice:1,2,1 --samples 2", "'choice:1,2,1': 1 is there twice"),
    ("--num-envs logint:0:8 --samples 2", "needs a lower bound of 1 or more"),
    ("--gamma discount:0.9:1 --samples 2", "the logarithm of 1 - x needs an upper bound below 1"),
    ("--hidden-sizes choice:64,64 --samples 2", "as in choice:64,64/128,128"),
    ("--anneal-lr int:0:1 --samples 2", "neither true or false nor choice:A,B,C"),
    ("--env choice:CartPole-v1,Acrobot-v1 --samples 2", "env: list the environments"),
    ("--config nowhere.json", "does not exist: give a run's config.json or a sweep's best.json"),
    ("--resume RUN --gamma 0.5 --seed 3", "--gamma 0.5 (in place of 0.99)"),
    ("--resume RUN --num-evals 3", "--num-evals 3 (in place of 120)"),
    ("--resume RUN --total-timesteps 20", "total_timesteps=20 is less than the 1200"),
    ("--resume RUN --total-timesteps 2000 3000", "takes no values to sweep over: leave --total-t"),
    ("--resume RUN --point best", "--point best: give last or a number"),
    ("--resume RUN --point 3", "no whole state of point 3; it has [119, 120]: a run with --keep-"),
    ("--resume RUN --evaluate RUN", "--resume and --evaluate: use one of them"),
    ("--evaluate RUN --point 121", "no point 121; it has 0 to 120"),
    ("--evaluate RUN --point first", "give last, best or a number"),
    ("--evaluate RUN --episodes 0", "--episodes 0: give 1 or more"),
    ("--evaluate RUN --seed 4294967296", "seed=4294967296: seeds go from 0 to 4294967295"),
    ("--evaluate RUN --track", "--evaluate does not go with --track"),
    ("--render RUN --trial 3", "trials 0 to 2"),
    ("--evaluate RUN --trial worst", "'worst' is neither best nor all nor a number"),
    ("--render RUN --total-timesteps 9", "--render does not go with --total-timesteps 9"),
]


@pytest.mark.parametrize("words, message", REFUSED, ids=[words for words, _ in REFUSED])
def test_refused_flags(capsys, whole, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = main(capsys, *words.replace("RUN", str(whole[0])).split())
    assert code == 2 and message in err and err.count("error: ") == 1 and "│" not in err, err
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_flags_of_other_libraries_are_named_as_this_kit_has_them():
    """By a flag of some file; and none of their names is a flag that all files have."""
    configs = [importlib.import_module(f"algorithms.{name}").Config for name in ALGORITHMS]
    names = {f.name for kind in (*configs, flags.Flags) for f in dataclasses.fields(kind)}
    known = {name.replace("_", "-") for name in names} | {"render", "evaluate"}
    for other, here in reading.OF_OTHERS.items():
        own = re.findall(r"--([a-z-]+)", here)
        assert own or "JAX_PLATFORMS" in here, other
        assert set(own) <= known, other
    everywhere = {f.name.replace("_", "-") for f in dataclasses.fields(flags.Flags)}
    assert not everywhere & reading.OF_OTHERS.keys()


def test_flags_are_refused_without_the_hook_of_tyro(capsys, monkeypatch):
    """It is not public, so a later version may lack it; then tyro draws its boxes."""
    monkeypatch.setitem(sys.modules, "tyro._errors", None)
    code, _, err = main(capsys, "--learing-rate", 3)
    assert code == 2 and "--learning-rate" in err and "error: " not in err


def test_an_epsilon_of_zero_is_refused_in_a_sentence(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = main(capsys, "--adam-eps", 0, "--total-timesteps", 64, module=ppo)
    said = " ".join(err.replace("│", " ").split())
    assert code == 2 and "adam_eps=0.0: give a number in (0, inf)" in said
    assert "Traceback" not in err and not list(tmp_path.iterdir())


def test_a_run_of_another_algorithm_is_refused(capsys, whole):
    code, _, err = main(capsys, "--resume", whole[0], module=ppo)
    assert code == 2 and "is a run of toy, not of ppo: use toy.py" in err


def test_a_preset_of_other_algorithms_names_them(capsys, tmp_path):
    words = ("--preset", "Pendulum-v1", "--run-dir-root", tmp_path)
    code, _, err = main(capsys, *words, module=dqn)
    assert code == 2 and err.startswith("error: dqn has no preset 'Pendulum-v1'; these have: ppo, ")
    named = err.strip().partition("these have: ")[2].split(", ")
    assert named == [name for name in presets.PRESETS if "Pendulum-v1" in presets.PRESETS[name]]


def test_a_file_of_ones_own_takes_a_preset_of_another(capsys):
    code, _, err = main(capsys, "--preset", "Pendulum-v1")
    assert code == 2 and err.startswith("error: toy has no preset 'Pendulum-v1'; these have: ppo,")
    assert err.endswith("; --preset ppo:Pendulum-v1 takes that of ppo\n")
    code, _, err = main(capsys, "--preset", "ppo:Pendulum-v1")
    assert code == 2
    assert err == "error: --preset ppo:Pendulum-v1 sets update_epochs=10, which toy lacks\n"
    code, _, err = main(capsys, "--preset", "ppo:Pendulm-v1")
    assert code == 2 and "unknown preset of ppo 'Pendulm-v1'; did you mean Pendulum-v1" in err
    config = cli.preset(ppo, "ppo:Pendulum-v1")
    assert config == cli.preset(ppo, "Pendulum-v1") and config.env == "Pendulum-v1"


def test_explicit_flags_win_over_presets_and_files(monkeypatch, whole):
    table = {"toy": {"Pendulum-v1": {"gamma": 0.9, "num_envs": 2}, "b": {"env": "Acrobot-v1"}}}
    monkeypatch.setattr(cli, "PRESETS", table)
    assert parsed("--preset", "Pendulum-v1", "--gamma", 0.8)[0] == toy.Config(
        env="Pendulum-v1", gamma=0.8, num_envs=2
    )
    assert parsed("--preset=b")[0].env == "Acrobot-v1"
    file = whole[0] / "config.json"
    config, given = parsed("--config", file, "--gamma", 0.8, "--num-seeds", 2)
    assert config == toy.Config(total_timesteps=1200, num_evals=120, gamma=0.8)
    assert (given.seed, given.num_seeds) == (0, 2)


def test_presets_are_settings_of_their_algorithm():
    for algorithm, table in presets.PRESETS.items():
        for name in table:
            config = cli.preset(importlib.import_module(f"algorithms.{algorithm}"), name)
            assert config.env in (name, table[name].get("env"))


QUICK = """
import json, runpy, sys

def calls(function, *arguments, **named):
    count, code = 0, None

    def profile(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        function(*arguments, **named)
    except SystemExit as stop:
        code = stop.code
    sys.setprofile(None)
    return count, code

file = sys.argv[1]
found = [calls(lambda: exec("import jax, flax.linen, optax"))]
for words in (["--help"], ["--learing-rate", "3"]):
    sys.argv = [file, *words]
    found.append(calls(runpy.run_path, file, run_name="__main__"))
print(json.dumps(found))
"""


def test_help_and_typos_are_quick():
    """They call at most half as many functions as the imports that an algorithm needs.

    Calls, not seconds: their number is the same on every machine.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", QUICK, str(PPO)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr and "--learning-rate" in done.stderr, done.stderr
    (needed, _), *found = json.loads(done.stdout.splitlines()[-1])
    assert [code for _, code in found] == [0, 2]
    helped, refused = (count for count, _ in found)  # the second one has its imports already
    assert helped < 0.5 * needed and refused < 0.25 * needed, (needed, helped, refused)


# --- stopped, killed, resumed ----------------------------------------------------------------


def test_ctrl_c_saves_and_resume_goes_on_exactly(tmp_path, monkeypatch, capfd):
    save, words = RunDir.save, [*POINTS, "--run-dir"]
    monkeypatch.setattr(sys, "argv", [str(TOY)])  # as the hint has it

    def interrupted(run_dir, point, *rest):
        save(run_dir, point, *rest)
        if point == 24:
            os.kill(os.getpid(), signal.SIGINT)

    assert main(capfd, *words, tmp_path / "whole")[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "save", interrupted)
        code, out, err = main(capfd, *words, tmp_path / "run")
    assert code == 130 and "stopping at the next point" in err
    assert "Traceback" not in err and "stopped at point" in out
    last = RunDir.open(tmp_path / "run").points("state")[-1]
    assert 24 <= last <= 25
    hint = out.splitlines()[-1].split()
    assert hint[:5] == ["to", "go", "on:", "python", str(TOY)]
    code, out, err = main(capfd, *hint[5:])
    assert code == 0 and f"points {last} to 120" in out, err
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def test_second_ctrl_c_aborts_at_once(tmp_path):
    process = start(tmp_path, "--total-timesteps", "1e9", "--num-evals", "1")
    wait_for(process, "  0% |")
    time.sleep(1)  # a signal before the next point has begun would end the run as it should
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None, "it waits for the point"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)  # the point would take longer
    assert process.returncode == 130 and "Traceback" not in err, err
    assert "aborted; what was saved stays" in err


def test_ctrl_c_while_compiling(tmp_path, monkeypatch, capsys):
    """It ends the process at once, since the compiler does not listen."""
    ended = threading.Event()

    def compile_programs(*_):
        assert threading.current_thread() is not threading.main_thread(), "which hears signals"
        os.kill(os.getpid(), signal.SIGINT)
        ended.wait(60)

    def leave(code):
        ended.set()
        sys.exit(code)

    monkeypatch.setattr(programs, "compile_programs", compile_programs)
    monkeypatch.setattr(os, "_exit", leave)
    code, _, err = main(capsys, "--run-dir", tmp_path / "run")
    assert code == 130 and "Traceback" not in err
    assert f"aborted; nothing was saved, and {tmp_path / 'run'} is gone again" in err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow  # tests/faults.py has shorter ones
def test_kill_during_a_save_loses_nothing(tmp_path):
    """kill -9 while a state of 4 MB is being written; the resumed run is the uninterrupted one."""
    words = ("--hidden-sizes", "1000,1000", "--total-timesteps", "40", "--num-evals", "8")
    reference, _, err = call(tmp_path, *words, "--run-dir-root", "whole")
    assert reference == 0, err
    (run_dir, partial) = kill_during_save(tmp_path, words)
    whole_files = [f for f in (run_dir / "checkpoints").iterdir() if not f.name.startswith(".")]
    last = RunDir.open(run_dir).points("state")[-1]
    assert 2 <= last < 8 and len(whole_files) > 3
    code, out, err = call(tmp_path, "--resume", str(run_dir))
    assert code == 0 and f"points {last} to 8" in out, err
    assert not partial.exists(), "what the killed process left is cleared away"
    assert_same_run(run_dir, next((tmp_path / "whole").iterdir()))


def kill_during_save(tmp_path, words):
    """Kills runs until one of them leaves a part of a file. Returns its directory and that file."""
    for attempt in range(5):
        root = tmp_path / f"killed{attempt}"
        process = start(tmp_path, *words, "--run-dir-root", str(root))
        while process.poll() is None:
            parts = list(root.glob("*/checkpoints/.00000[3-7].state.part"))
            if parts:
                process.kill()
                break
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGKILL
        if parts[0].exists():
            return next(root.iterdir()), parts[0]
    pytest.fail("no kill came during a save")


# --- runs that are there ---------------------------------------------------------------------


@pytest.mark.parametrize("words", [("--agent", 1), ("--agent=1",)])
def test_a_flag_answers_to_its_earlier_name(capsys, whole, words):
    code, out, err = main(capsys, "--evaluate", whole[0], *words, "--episodes", 2)
    assert code == 0 and "trial 1 (seed 1)" in out and "trial 0" not in out
    assert err == "hint: --agent is --trial now\n"


def test_evaluate_prints_a_table_per_trial(capsys, whole):
    words = ("--evaluate", whole[0], "--episodes", 5, "--point", "best")
    code, out, err = main(capsys, *words, "--trial", "all")
    assert code == 0, err
    for trial in range(3):
        point = launch.load(whole[0], "best", trial=trial, module=toy).point
        assert f"trial {trial} (seed {trial}) at point {point}: 5 episodes" in out
    assert "\nall 3 seeds: 15 episodes" in out and "\nmean return of a seed: " in out
    code, out, _ = main(capsys, *words, "--trial", 1)
    assert code == 0 and "trial 1" in out and "trial 0" not in out and "all" not in out


def test_totals_have_the_standard_error_of_seeds():
    others = dict.fromkeys(("length", "last_reward", "terminated", "truncated"), np.ones(2))
    episodes = lambda x: others | {"episode_return": np.array([x - 1.0, x + 1.0])}
    played = [evaluation.Played(i, i, {}, 1, episodes(x)) for i, x in enumerate((1.0, 2.0, 6.0))]
    error = np.std([1.0, 2.0, 6.0], ddof=1) / np.sqrt(3.0)
    line = f"mean return of a seed: 3, standard error {error:.3g}, from 1 to 6\n"
    assert line in evaluation.totals(played)


def test_evaluate_prints_json(capsys, whole):
    words = ("--evaluate", whole[0], "--episodes", 5, "--json")
    code, out, err = main(capsys, *words, "--trial", "all")
    (entry,) = json.loads(out)
    total = entry["total"]
    assert code == 0 and not err and entry["setting"] == {"env": "CartPole-v1"}
    assert [(one["trial"], one["seed"], one["point"]) for one in entry["trials"]] == [
        (seed, seed, 120) for seed in range(3)
    ]
    means = [one["episode_return"]["mean"] for one in entry["trials"]]
    assert total["episodes"] == 15 and total["terminated"] + total["truncated"] == 1
    assert total["episode_return"]["mean"] == pytest.approx(np.mean(means))
    assert main(capsys, "--json")[0] == 2


def test_render_writes_a_gif(capsys, whole):
    words = ("--render", whole[0], "--trial", 1, "--point", 7, "--seed", 3)
    for name in ("episode_trial1_point7_seed3.gif", "episode_trial1_point7_seed3-1.gif"):
        code, out, err = main(capsys, *words)
        assert code == 0 and out.strip() == str(whole[0] / name), err
        assert (whole[0] / name).read_bytes().startswith(b"GIF89a")


def test_gifs_during_a_run(capsys, tmp_path):
    env = ("--env", "Catch-bsuite")  # drawn without pygame, in nine steps
    words = (*env, "--num-evals", 2, "--run-dir-root", tmp_path, "--gif")
    assert main(capsys, *words, "every")[0] == 0
    assert main(capsys, *words, "end")[0] == 0
    names = sorted(file.name for file in tmp_path.glob("*/*.gif"))
    assert names == ["episode_000000.gif", "episode_000001.gif", *["episode_000002.gif"] * 2]


def test_an_environment_that_cannot_be_drawn_is_refused_before_training(capsys, tmp_path):
    words = ("--env", "DeepSea-bsuite", "--gif", "end", "--run-dir-root", tmp_path)
    code, _, err = main(capsys, *words)
    assert code == 2 and "cannot be drawn" in err and not list(tmp_path.iterdir())


@pytest.mark.needs("tensorboardX")
def test_trackers_get_every_point(capsys, tmp_path):
    words = ("--num-evals", 3, "--tensorboard", "--run-dir-root", tmp_path)
    assert main(capsys, *words)[0] == 0
    (events,) = tmp_path.glob("*/tensorboard/events*")
    assert events.read_bytes().count(b"eval/return") == 4
    (config,) = tmp_path.glob("*/config.json")
    assert json.loads(config.read_text())["options"]["tensorboard"]


def test_names_that_the_output_cannot_encode_are_written_all_the_same(tmp_path, monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    cli.main(toy, ["--num-evals", "2", "--run-dir", str(tmp_path / "rüns")])
    output.flush()
    assert rb"r\xfcns" in output.buffer.getvalue()


def test_ctrl_c_while_the_command_line_is_imported():
    code = (
        "import sys, types\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'algorithms.launch.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from algorithms import launch\n"
        "launch.main(None, [])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, "") and done.stderr.strip().startswith("aborted")


def test_nothing_is_left_to_collect_when_python_ends(capsys, monkeypatch):
    at_end = []
    monkeypatch.setattr(cli.atexit, "register", at_end.append)
    main(capsys, "--help")
    assert gc.freeze in at_end  # half a second


@pytest.mark.slow  # test_runner.py has runs and sweeps from Python
def test_strict_settings_of_jax_end_no_command(tmp_path, monkeypatch):
    for name, value in (("NUMPY_RANK_PROMOTION", "raise"), ("NUMPY_DTYPE_PROMOTION", "strict")):
        monkeypatch.setenv(f"JAX_{name}", value)
    monkeypatch.setenv("JAX_TRANSFER_GUARD", "disallow")
    words = "--total-timesteps 64 --num-envs 2 --num-steps 16 --num-evals 2 --num-seeds 2"
    code, _, err = call(tmp_path, *words.split(), "--run-dir", "run", file=PPO)
    assert (code, err) == (0, "")
    code, out, err = call(
        tmp_path, *["--evaluate", "run", "--trial", "all", "--episodes", "1"], file=PPO
    )
    assert (code, err) == (0, "") and "trial 1" in out


def test_a_platform_that_is_not_there_is_named(monkeypatch):
    def fail():
        raise RuntimeError("Unable to initialize backend 'cuda': no plugin\nand more")

    monkeypatch.setattr(jax, "devices", fail)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(launch.UserError, match="'cuda': no plugin.; JAX_PLATFORMS=cuda: leave it"):
        launch.run(toy, toy.Config(), save=False)


@pytest.mark.parametrize(
    "switch, sentence",
    [
        (jax.disable_jit, "leave JAX_DISABLE_JIT out; a run is a compiled program; for a debugger"),
        (jax.debug_infs, "leave JAX_DEBUG_INFS out; infinite settings switch parts off"),
    ],
    ids=["disable_jit", "debug_infs"],
)
def test_switches_of_jax_that_runs_cannot_heed_are_refused_at_once(switch, sentence, tmp_path):
    config = toy.Config(total_timesteps=20, num_evals=1, num_eval_episodes=0)
    with switch(True), pytest.raises(launch.UserError, match=f"is on: {sentence}"):
        launch.run(toy, config, run_dir=tmp_path / "run")
    assert not list(tmp_path.iterdir())
    with jax.disable_jit():  # as the sentence says
        toy.make_train(config)(jax.random.key(0))


PRINTING = [
    "from algorithms.launch import cli\n"
    "cli.dispatch = lambda *_: print('x' * 100_000)\n"
    "cli.main(None, [])",
    "from algorithms.launch.engine import errors\nwith errors.refusing(): print('x' * 100_000)",
]


@pytest.mark.parametrize("code", PRINTING)
def test_output_that_nobody_reads_is_no_error(code):
    """As in `| head`: no traceback."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert result.returncode == 141 and not result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
@pytest.mark.parametrize("code", PRINTING[1:])  # the first one takes the same way out, see above
def test_output_that_does_not_fit_a_disk_is_cut_short(code):
    """/dev/full is such a disk."""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", code]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.stderr == "error: there is no space for the output, which is cut short\n"
    assert result.returncode == 4


@pytest.mark.parametrize(
    "words, expected",
    [
        ("--learning-rate 3e38 --num-seeds 2", 3),
        ("--learning-rate 0.1 3e38", 0),  # a sweep's result
        ("--learning-rate 2e38 3e38", 3),
    ],
)
def test_what_is_not_finite_has_an_exit_code_of_its_own(capsys, tmp_path, words, expected):
    short = "--total-timesteps 100 --num-evals 2 --gamma 1"
    code, out, err = main(capsys, *words.split(), *short.split(), "--run-dir", tmp_path / "run")
    assert code == expected and "not finite" in err and "not finite" in out
    assert main(capsys, "--resume", tmp_path / "run")[0] == expected


def test_ctrl_c_is_heeded_at_once_before_anything_trains(capsys, monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        main(capsys, "--version")
        assert signal.getsignal(signal.SIGINT) is interrupts.at_once
    finally:
        signal.signal(signal.SIGINT, before)
