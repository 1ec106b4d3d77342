"""float32 stays float32 under jax_enable_x64, in algorithms as in environments."""

from envs.precision import without_x64

__all__ = ["without_x64"]
