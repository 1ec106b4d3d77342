"""What tests of the launcher share: no pictures for some of them, and programs compiled once."""

import functools
import sys

import jax
import pytest

from algorithms.launch.engine import plots, programs, versions
from algorithms.launch.engine.population import Population
from algorithms.launch.tools.report import page


@pytest.fixture(scope="module")
def quick_curves():
    """Drawing would take half of the time, and has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "curve", lambda *given: given[-1].write_bytes(b"PNG"))
        patch.setattr(plots, "sweep", lambda *_: None)
        yield patch


@pytest.fixture(scope="module")
def quick_pictures(quick_curves):
    """Nor is there a page about a sweep, which takes as long."""
    quick_curves.setattr(page, "page", lambda *_: "")


SHARING = {"toy"}  # modules whose programs `shared_programs` keeps


def key_of(module, config):
    """What programs are made of, which values of floats are not; None of those not to share."""
    whole = (module.module, repr(module.settings)) if isinstance(module, Population) else (module,)
    if whole[0].__name__.rpartition(".")[2] not in SHARING:
        return None
    settings = jax.config.jax_enable_x64, jax.config.jax_debug_nans, jax.config.jax_debug_key_reuse
    return whole, jax.tree.structure(config), settings, jax.jit


@pytest.fixture(scope="module")
def shared_programs():
    """Toys in one module's tests share programs that are equal, and what git says of a checkout.

    Tracing and compiling take most of a toy's run. Real algorithms compile each time, so it is with
    these that one sees whether a run that goes on makes the same program again.
    """
    compile_programs, initial_state = programs.compile_programs, programs.initial_state
    kept, states = {}, {}

    @functools.wraps(compile_programs)
    def compile_once(module, config, env, env_params, layout, start):
        given = module, config, env, env_params, layout, start
        made_of = key_of(module, config), env, layout
        if made_of[0] is None:
            return compile_programs(*given)
        found = kept.get(made_of)
        if found is None or (start and found.start is None):
            found = kept[made_of] = compile_programs(*given)
        return found if start else found._replace(start=None)

    def initial_state_once(module, config):
        made_of = key_of(module, config)
        if made_of is None:
            return initial_state(module, config)
        if made_of not in states:
            states[made_of] = initial_state(module, config)
        return states[made_of]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "compile_programs", compile_once)
        patch.setattr(programs, "initial_state", initial_state_once)
        for name in ("_git", "_version"):
            patch.setattr(versions, name, functools.cache(getattr(versions, name)))
        yield


@pytest.fixture
def own_programs(shared_programs, monkeypatch):
    """Compiles again for each run, as for users."""
    monkeypatch.setattr(programs, "compile_programs", programs.compile_programs.__wrapped__)


@pytest.fixture
def all_programs_shared(shared_programs, monkeypatch):
    """Of DQN and REINFORCE, too, in a test that is not about their programs."""
    monkeypatch.setattr(sys.modules[__name__], "SHARING", {"toy", "dqn", "reinforce"})
