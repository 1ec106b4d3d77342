"""Which threads XLA gets before it starts, and which device computes which trials."""

import importlib.util
import os
import subprocess
import sys

import jax
import pytest

from algorithms import ppo
from algorithms.launch.engine import devices


@pytest.mark.parametrize(
    ("platforms", "plugins", "one_thread"),
    [
        (None, (), True),
        ("cpu", ("jax_plugins",), True),
        ("cpu,cuda", ("jax_plugins",), True),
        ("cuda,cpu", ("jax_plugins",), False),
        (None, ("jax_plugins",), False),
        (None, ("libtpu",), False),
    ],
)
def test_one_thread_serves_a_small_trial_on_a_cpu_alone(
    monkeypatch, platforms, plugins, one_thread
):
    spec = lambda name: name if name in plugins else None
    monkeypatch.setattr(importlib.util, "find_spec", spec)
    monkeypatch.setattr(os, "environ", {})
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", platforms)
    try:
        assert devices.use_cores(1, ppo.Config())
    finally:
        jax.config.update("jax_platforms", before)
    assert os.environ == ({"NPROC": "1"} if one_thread else {})


@pytest.mark.parametrize(("num_trials", "asked"), [(3, 1), (10, 3), (99, 8)])
def test_processes_share_the_trials(monkeypatch, num_trials, asked):
    given = {}
    monkeypatch.setattr(devices, "num_cores", lambda: 8)
    monkeypatch.setattr(devices.hosts, "count", lambda: 4)
    monkeypatch.setattr(jax.config, "update", given.__setitem__)
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(type(jax.config), "jax_num_cpu_devices", -1, raising=False)
    assert devices.use_cores(num_trials, ppo.Config())
    assert given == {"jax_num_cpu_devices": asked}


def test_large_operations_get_all_threads(monkeypatch):
    monkeypatch.setattr(devices, "awaits_accelerator", lambda: False)
    monkeypatch.setattr(os, "environ", {})
    devices.use_cores(1, ppo.Config(hidden_sizes=(2048,)))
    assert not os.environ


SPREAD = """
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_num_cpu_devices", 4)
from algorithms.launch.engine import devices, programs
full = devices.arrange(33, block=3)
assert (full.per_device, len(full.devices)) == (9, 4)
add = lambda shared, config, x: (x + config, jnp.arange(3.0))
by_count = dict(in_place=True, blocks=lambda shared: shared)
run = jax.jit(programs.over_trials(add, full, **by_count))
for count in range(1, 34):
    few = full._replace(num_trials=count)
    numbers, ones = few.put(np.arange(float(count))), few.put(np.ones(count))
    states, metrics = run(jnp.int32(few.used // few.block), ones, numbers)
    # Whole blocks, as few as can be, on each device.
    computed = np.asarray(metrics)[:, 1].reshape(4, 9)
    assert (computed[:, : few.used] == 1.0).all() and not computed[:, few.used :].any()
    assert few.used == 3 * -(-count // 12)
    for found in (few.get(states), few.gather(states), np.concatenate([*few.pieces(states)])):
        np.testing.assert_array_equal(found, 1.0 + np.arange(count))
assert run._cache_size() == 1
"""


def test_fewer_trials_are_spread_over_the_devices_of_one_program():
    run = subprocess.run([sys.executable, "-c", SPREAD], capture_output=True, text=True)
    assert not run.returncode, run.stderr
