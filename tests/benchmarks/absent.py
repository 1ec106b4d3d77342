"""Compiles programs for accelerators that this machine does not have.

The plugins of CUDA and TPU compile without a device, if they are told what it would be. Processes
that do so need `environment`, with the folder `peer_python.plugins` on their PYTHONPATH.
"""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
# From xla/backends/gpu/target_config/specs/h100_sxm.txtpb in openxla/xla.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84929347584
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 13 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
# XLA's complaint about a product, and the flag that leaves all products to cuBLAS
NO_TILES, WITH_CUBLAS = "find output tile sizes", "--xla_gpu_enable_triton_gemm=false"
DEVICES = {"h100": "cuda", "v5e": "tpu"}  # and the plugins' platforms
PLATFORMS = {"h100": "gpu", "v5e": "tpu"}  # as jax.default_backend names them


class Compiled(NamedTuple):
    text: str  # XLA's, after all its passes
    seconds: float  # of tracing, lowering and compiling
    memory: dict[str, int]  # bytes of arguments, temporaries and output


def environment(plugins: Path) -> dict[str, str]:
    """Variables of a process that compiles for absent devices."""
    return os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(plugins)]),
        "TPU_SKIP_MDS_QUERY": "1",
        "XLA_FLAGS": "--xla_gpu_autotune_level=0",  # which would run kernels
    }


def run(command: list[str], env: dict[str, str]) -> tuple[subprocess.CompletedProcess, bool]:
    """Runs a process that compiles, and whether products had to be left to cuBLAS."""
    start = lambda env: subprocess.run(command, env=env, capture_output=True, text=True)
    done = start(env)
    if cublas := NO_TILES in done.stderr:
        done = start(env | {"XLA_FLAGS": f"{env['XLA_FLAGS']} {WITH_CUBLAS}"})
    return done, cublas


def device_of(name: str) -> Any:
    """One of DEVICES, as jax describes it."""
    from jax.experimental import topologies

    if name == "h100":
        shape = {"target_config": H100, "topology": "1x1x1"}
        return topologies.get_topology_desc("topo", "cuda", **shape).devices[0]
    return topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices[0]


def compile_for(name: str, function: Callable, *args: Any) -> Compiled:
    """Compiles function(*args) for one of DEVICES; of the arguments only the shapes are used."""
    import jax

    where = jax.sharding.SingleDeviceSharding(device_of(name))
    place = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where)
    start = time.perf_counter()
    traced = jax.jit(function).trace(*jax.tree.map(place, args))
    compiled = traced.lower(lowering_platforms=(DEVICES[name],)).compile()
    seconds = time.perf_counter() - start
    sizes = compiled.memory_analysis()
    memory = {
        "arguments": sizes.argument_size_in_bytes,
        "temporaries": sizes.temp_size_in_bytes,
        "output": sizes.output_size_in_bytes,
    }
    return Compiled(compiled.as_text(), seconds, memory)
