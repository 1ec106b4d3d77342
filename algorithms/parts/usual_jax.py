"""The settings of jax that algorithms are written for are those of environments."""

from envs.usual_jax import usual_jax, with_usual_jax

__all__ = ["usual_jax", "with_usual_jax"]
