"""Batch norms, root mean square norms, dense layers with the latter, and block-diagonal ones."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from algorithms.parts import shards
from algorithms.parts.layers import Convolutions, activation
from algorithms.parts.products import Dense

LECUN = nn.initializers.lecun_normal()  # of variance 1 / inputs, cut off at two deviations


class RMSNorm(nn.Module):
    """x / sqrt(mean x**2 + eps) * scale, over the last axis of x (..., size), in float32.

    Zhang and Sennrich 2019, arXiv:1910.07467. The mean is a product with a vector, because XLA's
    own sums along the last axis are slow on CPUs.
    """

    eps: float = 1e-4

    @nn.compact
    def __call__(self, x):
        x, size = x.astype(jnp.float32), x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (size,))
        weights = jnp.full(size, 1.0 / size)
        square = jnp.dot(jnp.square(x), weights, precision="highest")[..., None]  # not TF32
        return x * jax.lax.rsqrt(square + self.eps) * scale


class BatchNorm(nn.Module):
    """(x - mean) / sqrt(var + 1e-5) * scale + bias over the batch of x (batch, size), in float32.

    With `train` the moments are the batch's, and the running ones (the collection "moments") move
    to them by `momentum`. The running variance is unbiased, as PyTorch's; flax's own is not, and
    knows no shards.
    """

    momentum: Any  # share of a batch in the running moments

    @nn.compact
    def __call__(self, x, train):
        x, size = x.astype(jnp.float32), x.shape[-1:]
        scale = self.param("scale", nn.initializers.ones, size)
        bias = self.param("bias", nn.initializers.zeros, size)
        running_mean = self.variable("moments", "mean", jnp.zeros, size)
        running_var = self.variable("moments", "var", jnp.ones, size)
        mean, var = running_mean.value, running_var.value
        if train:
            mean = shards.mean_over_shards(x.mean(0))
            var = shards.mean_over_shards(jnp.square(x - mean).mean(0))
            share, count = self.momentum, shards.sum_over_shards(len(x))
            running_mean.value += share * (mean - running_mean.value)
            running_var.value += share * (var * count / (count - 1) - running_var.value)
        return (x - mean) * (jax.lax.rsqrt(var + 1e-5) * scale) + bias


class NormedLayers(nn.Module):
    """Dense layers, each with an RMS norm and an activation, then one of `outputs` numbers.

    Inputs are (..., inputs), results float32 (..., outputs), or (..., size) without outputs. Images
    (batch, height, width, channels) are convolved first.
    """

    count: int
    size: int  # units of each layer
    activation: str  # any function of flax.linen
    outputs: int = 0
    gain: float = 1.0  # factor on the last kernel's first numbers
    conv_layers: str = "none"  # of layers.CONV_LAYERS
    dtype: str = "float32"  # that layers but for the last multiply and activate in

    @nn.compact
    def __call__(self, x):
        activate = activation(self.activation)
        if x.ndim == 4:
            if self.conv_layers != "none":
                x = Convolutions(self.conv_layers, activate, LECUN, self.dtype)(x)
            x = x.reshape(len(x), -1)
        axes, x = x.shape[:-1], x.reshape(-1, x.shape[-1])
        for _ in range(self.count):
            x = Dense(self.size, kernel_init=LECUN, dtype=self.dtype)(x)
            x = activate(RMSNorm()(x).astype(self.dtype))
        x = x.astype(jnp.float32)
        if self.outputs:
            init = lambda *args: self.gain * LECUN(*args)
            x = Dense(self.outputs, kernel_init=init, name="head")(x)
        return x.reshape(*axes, -1)


class BlockDense(nn.Module):
    """A dense layer of several blocks: each sees its own part of x, and all of what they share.

    Args:
      x: (batch, size), of which a block sees size / blocks numbers.
      shared: (batch, others), seen by all blocks; may be None.

    The output is (batch, features), block after block. The kernel is (blocks, inputs of a block,
    features / blocks), a block's part of x before what is shared. An initialiser takes its
    first two axes as inputs, so numbers are as small as those of a dense layer of all inputs.
    """

    features: int
    blocks: int
    dtype: Any = None  # that products compute in
    kernel_init: nn.initializers.Initializer = LECUN

    @nn.compact
    def __call__(self, x, shared=None):
        own, out = x.shape[-1] // self.blocks, self.features // self.blocks
        common = 0 if shared is None else shared.shape[-1]
        shape = self.blocks, own + common, out
        kernel = self.param("kernel", self.kernel_init, shape)
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        x, shared, kernel = nn.dtypes.promote_dtype(x, shared, kernel, dtype=self.dtype)
        apart = x.reshape(*x.shape[:-1], self.blocks, own)
        y = jnp.einsum("...gi,gio->...go", apart, kernel[:, :own]).reshape(*x.shape[:-1], -1)
        if shared is not None:  # one product for all blocks, which need no copies of it
            y += shared @ kernel[:, own:].swapaxes(0, 1).reshape(common, self.features)
        return y + bias.astype(y.dtype)
