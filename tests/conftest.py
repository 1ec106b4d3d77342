"""Setup for all tests: no key may be used twice, there is one device, and programs compile fast."""

import collections
import contextlib
import functools
import gc
import importlib.util
import os
import shutil
import signal
import sys
from pathlib import Path

import jax
import pytest

from algorithms.parts import training
from envs import warn
from tests.changed import Changed
from tests.seconds import ALGORITHMS, Seconds, group_of, owner_of

jax.config.update("jax_debug_key_reuse", True)
# Programs without the lines of Python that they come from are made in 5 % fewer CPU seconds.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
jax.config.update("jax_traceback_in_locations_limit", 0)
# A test that needs several devices runs in its own process.
jax.config.update("jax_num_cpu_devices", 1)
# Compiling takes nearly all of the time, and optimising most of that. This also holds for processes
# that tests start. Tests of bit-for-bit equality compile as for users, see below.
QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": 1,
}
AS_FOR_USERS = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    "xla_cpu_parallel_codegen_split_count": 32,
}
# The option that decides which buffers exist, without those that only make machine code fast;
# jaxlib 0.11 has it no longer.
FUSED_AS_FOR_USERS = {}
if jax.version.__version_info__ < (0, 11):
    QUICK["xla_cpu_use_fusion_emitters"] = False
    FUSED_AS_FOR_USERS["xla_cpu_use_fusion_emitters"] = True
AS_FOR_USERS |= FUSED_AS_FOR_USERS
flags = " ".join(f"--{name}={str(value).lower()}" for name, value in QUICK.items())
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
# Programs are kept between runs, as for users. Processes that tests start use them, too.
PROGRAMS = Path(__file__).parents[1] / ".pytest_cache" / "programs"
MOST = 2 * 1024**3  # bytes, after which the folder is emptied
LARGE = 4 * 1024**3 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))  # bytes
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(PROGRAMS))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
least = float(os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", least)
# A shell's background jobs, these tests among them, ignore Ctrl-C, and so do their children.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Nothing that a test writes has to survive a power cut, and waiting for the disk takes long.
os.fsync = lambda file: None
# Tracing makes many objects and little garbage, so collections only cost time.
gc.set_threshold(100_000, 20, 50)


def pytest_collection_modifyitems(items):
    """Skips tests of optional libraries that are missing; `-m needs` selects these tests."""
    for item in items:
        for marker in item.iter_markers("needs"):
            (library,) = marker.args
            if importlib.util.find_spec(library) is None:
                item.add_marker(pytest.mark.skip(reason=f"{library} is not installed"))


class InOrder:
    """Runs tests of one owner together, those that compile most first; files keep their order."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        owners = {item: owner_of(item.nodeid) for item in items}
        sizes = collections.Counter(owners.values())
        rank = lambda owner: (owner not in ALGORITHMS, -sizes[owner], owner)
        items.sort(key=lambda item: (*rank(owners[item]), item.path))


def pytest_addoption(parser):
    """`--changed` alone compares with the last commit, `--changed=main~3` with that one."""
    words = {"nargs": "?", "const": "HEAD", "metavar": "REVISION"}
    parser.addoption("--changed", **words, help="only tests that changes since then can reach")


def pytest_configure(config):
    config.pluginmanager.register(InOrder())
    config.pluginmanager.register(Seconds(config))
    if config.option.changed:
        config.pluginmanager.register(Changed(config.option.changed))
    first = not hasattr(config, "workerinput")
    if first and sum(file.stat().st_size for file in PROGRAMS.glob("*")) > MOST:
        shutil.rmtree(PROGRAMS)


def pytest_unconfigure():
    gc.freeze()  # pytest collects five times at its end, which takes seconds


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Runs a group in one process. The groups of xdist 3.8 have no effect under pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        _split_scope = staticmethod(group_of)

    return Groups(config, log)


def pytest_runtest_teardown(item, nextitem):
    """Frees compiled programs between two owners, once this process has more than LARGE bytes.

    Until then programs of single operations serve all owners, which saves 5 % of the CPU seconds.
    """
    owner_ends = nextitem is None or owner_of(item.nodeid) != owner_of(nextitem.nodeid)
    if owner_ends and memory() > LARGE:
        jax.clear_caches()


def memory() -> float:
    """Bytes of this process; infinite where no file tells."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return float("inf")


@functools.cache
def train_as_for_users():
    return jax.jit(
        training._train.__wrapped__,
        static_argnames=training.STATIC,
        compiler_options=AS_FOR_USERS,
    )


@contextlib.contextmanager
def compiled_as_for_users():
    """Compiles every algorithm's train with XLA's own defaults."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_train", train_as_for_users())
        yield True


@pytest.fixture
def jitted_as_for_users(monkeypatch):
    """Compiles what the launcher jits as for users; a jit inside another takes no options."""
    plain = jax.jit

    def jit(function, **settings):
        by_launcher = sys._getframe(1).f_globals["__name__"].startswith("algorithms.launch")
        options = {"compiler_options": AS_FOR_USERS} if by_launcher else {}
        return plain(function, **settings, **options)

    monkeypatch.setattr(jax, "jit", jit)


@pytest.fixture(autouse=True)
def untold(monkeypatch):
    """Each test is told of what others were told of, too: a process warns once with a sentence."""
    monkeypatch.setattr(warn, "_told", set())


@pytest.fixture
def vmapped_keys():
    """Turns the key checker off where keys are vmapped.

    jax 0.10 counts the transposition of a batch of keys on its way into a scan as a use.
    """
    jax.config.update("jax_debug_key_reuse", False)  # the launcher compiles in a thread
    yield
    jax.config.update("jax_debug_key_reuse", True)


@pytest.fixture
def debug_nans():
    """Sets JAX_DEBUG_NANS=1 in all threads, because the launcher trains in one."""
    jax.config.update("jax_debug_nans", True)
    yield
    jax.config.update("jax_debug_nans", False)


@pytest.fixture(scope="session")
def probe():
    from tests.probe import Probe  # gymnax starts jax's backend

    return Probe()
