"""Functions that stay at 32 bits where jax_enable_x64 is on."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

import envs
from envs.precision import without_x64


def dtypes(*arrays):
    return [str(x.dtype) for x in arrays]


def test_a_function_and_its_results_have_32_bits():
    inner = lambda x, y=0: (x, jnp.asarray(y), jnp.zeros(2), jnp.arange(2))
    function = without_x64(lambda x: (x, inner)[1] if x is None else inner(x))
    before = function(None)
    with jax.enable_x64(True):
        wide = jnp.ones(2)
        assert wide.dtype == jnp.float64
        narrow = ["float32", "int32", "float32", "int32"]
        assert dtypes(*function(np.ones(2))) == narrow
        assert dtypes(*function(None)(wide, y=np.int64(1))) == narrow
        assert dtypes(*before(wide)) == narrow, "also one that was made before"
        assert dtypes(*jax.jit(jax.vmap(before))(wide)) == narrow
        assert jnp.ones(2).dtype == jnp.float64, "outside all is as it was"


def test_objects_without_arrays_of_64_bits_stay_the_same_objects():
    @struct.dataclass
    class Params:
        x: float = 1.0

    params, key = Params(), jax.random.key(0)
    with jax.enable_x64(True):
        given = without_x64(lambda *args: args)(params, key, "name", None)
        assert given[0] is params and given[1] is key and given[2:] == ("name", None)
        (cast,) = without_x64(lambda *args: args)(Params(jnp.float64(2.0)))
        assert isinstance(cast, Params) and cast.x.dtype == jnp.float32


def test_environments_and_episodes_are_the_same_under_x64():
    def play():
        env, params = envs.make("Pendulum-v1", max_steps=20)
        policy = lambda state, observation, memory=None: (observation[:1], memory)
        return envs.evaluate(policy, None, env, params, jax.random.key(0), 2)

    episodes = play()
    with jax.enable_x64(True):
        wide = play()
    jax.tree.map(np.testing.assert_array_equal, wide, episodes)
    assert dtypes(*wide[:5]) == dtypes(*episodes[:5])


def test_parameters_have_32_bits_under_x64():
    for name in ("Acrobot-v1", "DiscountingChain-bsuite"):  # gymnax makes arrays of theirs
        with jax.enable_x64(True):
            wide = [x.dtype for x in jax.tree.leaves(envs.make(name)[1]) if hasattr(x, "dtype")]
        assert wide and all(dtype.itemsize == 4 for dtype in wide), name
