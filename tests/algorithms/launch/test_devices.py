"""Which threads XLA gets before it starts."""

import importlib.util
import os

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
