"""--list: everything that there is, without importing what it does not need."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import envs
from algorithms import ppo
from algorithms.launch.tools import catalogue
from algorithms.parts import info
from algorithms.presets import PRESETS
from envs import registry
from tests.algorithms.launch.test_cli import main
from tests.seconds import ALGORITHMS

FOLDER = Path(ppo.__file__).parent


@pytest.fixture
def without_libraries(monkeypatch):
    """As where no outside library is installed."""
    for library in registry.LIBRARIES:
        theirs = {library, f"mujoco_{library}"}
        imported = [name for name in sys.modules if name.partition(".")[0] in theirs]
        for name in (*theirs, *imported):
            monkeypatch.setitem(sys.modules, name, None)
        adapter = importlib.import_module(f"envs.{library}")
        for cached in vars(adapter).values():
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()


def test_list_has_algorithms_environments_and_presets(capsys, without_libraries):
    code, out, err = main(capsys, "--list", module=ppo)
    assert code == 0 and not err
    words = out.replace(",", " ").split()
    for name in (*ALGORITHMS, *envs.names(), *(p for table in PRESETS.values() for p in table)):
        assert name in words, name
    flat = " ".join(out.split())
    for name in ALGORITHMS:
        assert f"{name} {catalogue.summary(info.read(FOLDER / f'{name}.py'))}" in flat
    assert "Proximal policy optimisation" in out and "gymnax, classic control" in out
    for library in registry.LIBRARIES:
        assert f"{library}/NAME {library}/... needs" in flat and "pip install" in flat
    assert max(map(len, out.splitlines())) <= 100
    own = out.partition("presets of ppo")[2].partition("\n\n")[0]
    assert all(name in own for name in PRESETS["ppo"]) and "ippo" not in own


@pytest.mark.needs("jaxmarl")
def test_list_has_the_names_of_libraries_that_are_there():
    assert "MPE_simple_spread_v3" in catalogue.environments()["jaxmarl/NAME"].split(", ")


@pytest.mark.needs("jaxmarl")
def test_list_has_only_what_can_be_made():
    from envs import jaxmarl

    named = jaxmarl.listed()
    library = importlib.import_module("jaxmarl.environments")
    gone = set(jaxmarl.names()) - set(named)
    assert "LearnedPolicyEnemySMAX" in gone and "storm" not in named and "storm_np" in named
    assert ("JaxRobotarium_rware" in gone) != library.SUBMODULE_ENVIRONMENTS
    assert ("ant_4x2" in gone) != library.MABRAX_AVAILABLE
    assert catalogue.environments()["jaxmarl/NAME"].split(", ") == named


def test_list_goes_with_nothing_else(capsys):
    code, out, err = main(capsys, "--list", "--seed", 3)
    assert code == 2 and not out and "--list does not go with --seed 3 (in place of 0)" in err


FRESH = """
import sys
import numpy as np
from pathlib import Path
from algorithms.launch.engine import plots, settings
assert "matplotlib" not in sys.modules
time = np.arange(3.0)[None]
metrics = {{"timestep": time, "episode_return": time}}
plots.curve(metrics, settings.Trials([0]), "title", Path(sys.argv[1]))
sys.modules.update(dict.fromkeys({outside}))
from algorithms.launch.tools import catalogue
text = catalogue.text("ppo")
print([name for name in sys.modules if name in {others}])
"""


def test_a_fresh_process_imports_what_it_needs(tmp_path):
    """A curve needs matplotlib, and leaves pyplot alone: the user's own backend and figures stay as
    they are. The list imports no algorithm."""
    outside = [name for library in registry.LIBRARIES for name in (library, f"mujoco_{library}")]
    others = ["matplotlib.pyplot", *(f"algorithms.{name}" for name in ALGORITHMS)]
    code = FRESH.format(outside=outside, others=others)
    command = [sys.executable, "-c", code, str(tmp_path / "curve.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
    assert (tmp_path / "curve.png").stat().st_size > 5000


def words(**changes):
    usual = dict(title="T", paper="P", family="actor-critics", actions="discrete", masks=False)
    return catalogue.summary(usual | dict(agents="one", memory=False) | changes)


def test_a_line_says_what_an_algorithm_takes():
    assert words() == "T; discrete actions"
    assert words(actions="continuous") == "T; bounded continuous actions"
    both = ("discrete", "continuous")
    assert words(actions=both, masks=True) == "T; discrete (with masks) or continuous actions"
    assert words(agents="one or several") == "T; discrete actions; one or several agents"
    assert words(memory=True).endswith("; memory")
    assert words(agents="several", memory="by flag").endswith("; several agents; memory by flag")
