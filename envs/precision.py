"""float32 stays float32 under jax_enable_x64, which other packages switch on."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def without_x64(function: Callable) -> Callable:
    """The function as it is without jax_enable_x64, and so is a function that it returns.

    All programs of the kit have 32 bits: with 64, carries of loops would change their types, and
    other random numbers would be drawn. Arrays of 64 bits among the arguments become 32-bit ones.
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
        # Also if the setting changes before it is called.
        return without_x64(result) if inspect.isfunction(result) else result

    return narrow


def _cast(tree: Any) -> Any:
    """The same object where it has no array of 64 bits: environments are compared by identity."""
    if not any(map(_is_wide, jax.tree.leaves(tree))):
        return tree
    canonical = jax.dtypes.canonicalize_dtype
    return jax.tree.map(lambda x: jnp.asarray(x, canonical(x.dtype)) if _is_wide(x) else x, tree)


def _is_wide(x: Any) -> bool:
    dtype = getattr(x, "dtype", None)
    return isinstance(dtype, np.dtype) and jax.dtypes.canonicalize_dtype(dtype) != dtype
