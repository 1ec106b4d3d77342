"""CPU seconds of the tests by area, and the budgets that test_seconds.py keeps.

Every run prints a table. A run of the whole suite leaves it in pytest's cache, where the test finds
it. CPU seconds, those of ended child processes included, depend much on the machine, and somewhat
on whether its other cores are busy. So each process measures a yardstick now and then, and seconds
are those of a machine on which it takes REFERENCE seconds.
"""

import contextlib
import os
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import algorithms

ALGORITHMS = {file.stem for file in Path(algorithms.__file__).parent.glob("*.py")}
ALGORITHMS -= {"__init__", "presets"}
# Files that also run the tests of what all files get from `parts.program`.
WHOLE = ("ppo", "dqn", "sac", "ippo", "r2d2")
AREAS = {"launcher": 250, "envs": 120, "parts": 100, "all else": 60}
BUDGETS = {name: 40 if name in WHOLE else 22 for name in sorted(ALGORITHMS)} | AREAS
# What these take today. They may shrink to the budgets above, and not grow.
BUDGETS |= {"ippo": 45, "ppo_plr": 40, "ppo_vtrace": 34, "crossq": 34, "vdn": 28, "ppo_rnn": 36}
BUDGETS |= {"dreamer": 46, "flashsac": 36, "ippo_rnn": 26}
REFERENCE = 0.065  # CPU seconds of the yardstick
ENOUGH = 60.0  # seconds of a run that are worth a table
OFTEN = 60.0  # CPU seconds between two measurements of the yardstick
KEY = "suite/seconds"  # in pytest's cache


def owner_of(nodeid: str) -> str:
    """What a test is of: an algorithm, algorithms/parts, or its own file.

    Tests of algorithms/parts stay together: most of their programs are single operations.
    """
    file, _, test = nodeid.partition("::")
    if file.startswith(parts := "tests/algorithms/parts/"):
        return parts
    if not (of_algorithms := re.fullmatch(r"tests/algorithms/test_(\w+)\.py", file)):
        return file
    case = re.search(r"\[(\w+)", test)
    return case[1] if case and case[1] in ALGORITHMS else of_algorithms[1]


def group_of(nodeid: str) -> str:
    """The tests of a test's owner, of an algorithm those in its file: they share programs."""
    owner = owner_of(nodeid)
    return f"{owner} in {nodeid.partition('::')[0]}" if owner in ALGORITHMS else owner


def area_of(nodeid: str) -> str:
    """The area of a test, one of BUDGETS."""
    owner = owner_of(nodeid)
    if owner in ALGORITHMS:
        return owner
    folders = {"tests/algorithms/launch/": "launcher", "tests/algorithms/parts/": "parts"}
    folders["tests/envs/"] = "envs"
    return next((area for start, area in folders.items() if owner.startswith(start)), "all else")


def cpu() -> float:
    """CPU seconds of this process and of its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def yardstick() -> float:
    """The least CPU seconds of three compilations of a small program, which is what tests do most.

    A loop of plain Python is none: it took 1.15 times as long where the tests took 1.7 times.
    """
    x, spent = jnp.ones((5, 8, 8)), []
    with no_program_kept():
        for _ in range(3):
            start = time.process_time()
            # A new function with a constant of its own: nothing is known yet.
            salt = float(time.perf_counter_ns() % 10**9)
            step = lambda h, x, salt=salt: (jnp.tanh(h @ x + salt), jnp.sort(h, -1).sum())
            loss = lambda h, step=step: jax.lax.scan(step, h, x)[1].sum()
            jax.jit(jax.grad(loss)).lower(x[0]).compile()
            spent.append(time.process_time() - start)
    return min(spent)


@contextlib.contextmanager
def no_program_kept():
    """Keeps nothing in the cache on the disk, which has programs above a least compile time."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update(name, 1e9)
    try:
        yield
    finally:
        jax.config.update(name, before)


def over_budget(seconds: dict[str, float], slack: float = 1.0) -> list[str]:
    """A line for each area that takes longer than its budget times `slack`."""
    return [
        f"{area}: {seconds[area]:.0f} s of {budget}"
        for area, budget in BUDGETS.items()
        if seconds.get(area, 0.0) > slack * budget
    ]


def table(seconds: dict[str, float]) -> Iterable[str]:
    """Lines of a table of the areas that ran; those over their budgets are marked."""
    for area in sorted(seconds, key=seconds.get, reverse=True):
        budget = BUDGETS.get(area)
        mark = " <- over" if budget and seconds[area] > budget else ""
        yield f"{area:15} {seconds[area]:7.1f} {budget or '':>6}{mark}"
    yield f"{'all':15} {sum(seconds.values()):7.1f} {sum(BUDGETS.values()):6}"


def is_whole(config: pytest.Config, areas: Iterable[str]) -> bool:
    """Whether a run was that of the whole suite, so that its seconds are worth keeping."""
    asked = config.option
    chosen = asked.keyword or asked.changed or asked.markexpr != "not slow"
    return not chosen and {*AREAS, *WHOLE} <= {*areas}


class Seconds:
    """A plugin that adds up seconds in each process, and prints them in the one that ends last."""

    def __init__(self, config: pytest.Config):
        self.config, self.own, self.all = config, Counter(), Counter()
        self.measured = list[float]()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        start = cpu()
        result = yield
        self.own[area_of(item.nodeid)] += cpu() - start
        if self.own.total() > OFTEN * (1 + len(self.measured)):
            self.measured.append(yardstick())
        return result

    def pytest_sessionfinish(self):
        """Scales what this process itself has run, which in xdist's first process is nothing."""
        scale = 1.0
        if self.own.total() > ENOUGH / 8:
            scale = REFERENCE / statistics.median(self.measured or [yardstick()])
        scaled = {area: scale * seconds for area, seconds in self.own.items()}
        self.all.update(scaled)
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["areas"] = scaled

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.all.update(getattr(node, "workeroutput", {}).get("areas", {}))

    def pytest_terminal_summary(self, terminalreporter):
        if self.all.total() < ENOUGH:  # a few tests
            return
        terminalreporter.section("CPU seconds of the yardstick's machine, budget")
        for line in table(self.all):
            terminalreporter.line(line)
        if is_whole(self.config, self.all):
            self.config.cache.set(KEY, dict(self.all))
