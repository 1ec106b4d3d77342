"""float32 stays float32 under jax_enable_x64, which other packages may switch on."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def without_x64(function: Callable) -> Callable:
    """The function without jax_enable_x64; functions that it returns run without it too.

    All programs of the kit have 32 bits. With 64, carries of loops would change their types, and
    random numbers would differ. 64-bit arrays among the arguments become 32-bit ones.
    """

    @functools.wraps(function)
    def narrow(*args, **kwargs):
        if not jax.config.jax_enable_x64:
            result = function(*args, **kwargs)
        else:
            with jax.enable_x64(False):
                args = [_cast(x) for x in args]
                kwargs = {name: _cast(x) for name, x in kwargs.items()}
                result = function(*args, **kwargs)
        # Also if the setting changes before the call.
        return without_x64(result) if inspect.isfunction(result) else result

    return narrow


def _cast(tree: Any) -> Any:
    """Returns an object without 64-bit arrays as it is: environments are compared by identity."""
    if not any(map(_is_wide, jax.tree.leaves(tree))):
        return tree
    canonical = jax.dtypes.canonicalize_dtype
    return jax.tree.map(lambda x: jnp.asarray(x, canonical(x.dtype)) if _is_wide(x) else x, tree)


def _is_wide(x: Any) -> bool:
    dtype = getattr(x, "dtype", None)
    return isinstance(dtype, np.dtype) and jax.dtypes.canonicalize_dtype(dtype) != dtype
