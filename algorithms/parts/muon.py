"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon)."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree


class MuonState(NamedTuple):
    momentum: jax.Array  # mean of gradients, one long vector
    adam: optax.OptState


def orthogonalize(matrices):
    """Matrices with the same singular vectors and singular values near 1.

    Five Newton-Schulz steps X <- a X + (b X X^T + c (X X^T)^2) X with a, b, c of Jordan et al.
    2024. One loop over all matrices makes a small program.
    """
    wide = [x if x.shape[0] <= x.shape[1] else x.T for x in matrices]
    wide = [x / (jnp.linalg.norm(x) + 1e-8) for x in wide]

    def refine(x):
        square = x @ x.T
        return 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x

    wide = jax.lax.fori_loop(0, 5, lambda _, wide: [refine(x) for x in wide], wide)
    return [y if y.shape == x.shape else y.T for x, y in zip(matrices, wide)]


def scale_by_muon(decay, eps) -> optax.GradientTransformation:
    """Muon with Nesterov momentum for matrices, and Adam for all other parameters.

    A matrix's step is 0.2 sqrt(max(rows, columns)) s / (s + eps) times its orthogonalised momentum,
    whose root mean square is s. The first factors make steps as large as Adam's, so one learning
    rate serves both (Liu et al. 2025, https://arxiv.org/abs/2502.16982). As in Adam, the last
    factor shrinks steps where s is not far above eps. Without it, noise would count like a signal.
    Moments are one long vector, which makes operations few and large.
    """
    adam = optax.scale_by_adam(eps=eps)

    def init(params):
        flat = ravel_pytree(params)[0]
        return MuonState(jnp.zeros_like(flat), adam.init(flat))

    def update(grads, state, params=None):
        grads, unravel = ravel_pytree(grads)
        steps, adam_state = adam.update(grads, state.adam)
        momentum = decay * state.momentum + (1.0 - decay) * grads
        ahead = jax.tree.leaves(unravel(decay * momentum + (1.0 - decay) * grads))
        steps, tree = jax.tree.flatten(unravel(steps))
        places = [i for i, x in enumerate(steps) if x.ndim == 2]
        for i, matrix in zip(places, orthogonalize([ahead[i] for i in places])):
            size = jnp.sqrt(jnp.square(ahead[i]).mean())
            steps[i] = 0.2 * math.sqrt(max(matrix.shape)) * size / (size + eps) * matrix
        # From one vector, so that whatever follows is one operation, too.
        flat = ravel_pytree(jax.tree.unflatten(tree, steps))[0]
        return unravel(flat), MuonState(momentum, adam_state)

    return optax.GradientTransformation(init, update)
