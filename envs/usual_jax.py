"""The settings of jax that all programs of the kit are written for, whatever a process has set.

Other packages, or variables such as JAX_ENABLE_X64, may have changed them.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Settings, with jax's own defaults and what sets them for a block of code. Promotion of ranks and
# dtypes may be errors elsewhere; here arrays of different ranks are meant to broadcast. Numbers of
# Python move to a device wherever they meet an array.
USUAL: tuple[tuple[str, Any, Callable], ...] = (
    ("jax_numpy_rank_promotion", "allow", jax.numpy_rank_promotion),
    ("jax_numpy_dtype_promotion", "standard", jax.numpy_dtype_promotion),
    ("jax_transfer_guard_host_to_device", None, jax.transfer_guard_host_to_device),
    ("jax_transfer_guard_device_to_host", None, jax.transfer_guard_device_to_host),
    ("jax_transfer_guard_device_to_device", None, jax.transfer_guard_device_to_device),
)


@contextlib.contextmanager
def usual_jax() -> Iterator[None]:
    """A block of this thread, or as a decorator a function, with usual promotions and transfers."""
    with contextlib.ExitStack() as stack:
        for name, default, setting in USUAL:
            if getattr(jax.config, name) not in (default, "allow"):
                stack.enter_context(setting(default or "allow"))
        yield


def with_usual_jax(function: Callable) -> Callable:
    """The function with jax's usual settings; functions that it returns run with them too.

    All programs of the kit have 32 bits: with jax_enable_x64, carries of loops would change their
    types, and random numbers would differ. 64-bit arrays among the arguments become 32-bit ones.
    """

    @functools.wraps(function)
    def usual(*args, **kwargs):
        with usual_jax():
            if not jax.config.jax_enable_x64:
                result = function(*args, **kwargs)
            else:
                with jax.enable_x64(False):
                    args = [_cast(x) for x in args]
                    kwargs = {name: _cast(x) for name, x in kwargs.items()}
                    result = function(*args, **kwargs)
        # Also if the settings change before the call.
        return with_usual_jax(result) if inspect.isfunction(result) else result

    return usual


def _cast(tree: Any) -> Any:
    """Returns an object without 64-bit arrays as it is: environments are compared by identity."""
    if not any(map(_is_wide, jax.tree.leaves(tree))):
        return tree
    canonical = jax.dtypes.canonicalize_dtype
    return jax.tree.map(lambda x: jnp.asarray(x, canonical(x.dtype)) if _is_wide(x) else x, tree)


def _is_wide(x: Any) -> bool:
    dtype = getattr(x, "dtype", None)
    return isinstance(dtype, np.dtype) and jax.dtypes.canonicalize_dtype(dtype) != dtype
