"""Runs of one configuration in a module's tests share their compiled programs."""

import contextlib

import jax
import numpy as np
import pytest

from algorithms.launch.compute import programs


@contextlib.contextmanager
def compiled_once():
    """Most of the time of a run of the toy goes into compiling what the run before it has had.

    Only for tests of what is around the programs: files, messages, exit codes.
    """
    compile_programs, kept = programs.compile_programs, {}

    def found(module, config, env, env_params, layout, start):
        shapes = tuple((np.shape(x), jax.numpy.result_type(x)) for x in jax.tree.leaves(env_params))
        key = module, jax.tree.structure(config), env, shapes, layout
        if key not in kept or (start and kept[key].start is None):
            kept[key] = compile_programs(module, config, env, env_params, layout, start)
        return kept[key] if start else kept[key]._replace(start=None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "compile_programs", found)
        yield
