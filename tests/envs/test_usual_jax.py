"""Functions that run with jax's usual settings, whatever a process has set."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import envs
from envs.usual_jax import usual_jax, with_usual_jax


def dtypes(*arrays):
    return [str(x.dtype) for x in arrays]


def test_a_function_and_its_results_have_32_bits():
    inner = lambda x, y=0: (x, jnp.asarray(y), jnp.zeros(2), jnp.arange(2))
    function = with_usual_jax(lambda x: (x, inner)[1] if x is None else inner(x))
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


STRICT = {
    "jax_numpy_rank_promotion": "raise",
    "jax_numpy_dtype_promotion": "strict",
    "jax_transfer_guard": "disallow",
    "jax_transfer_guard_host_to_device": "disallow_explicit",
}


@pytest.mark.parametrize("name", STRICT)
def test_strict_settings_have_no_effect_inside(name):
    """Of another thread, too; outside they are as they were."""
    careless = lambda x: x * np.arange(3) + jnp.zeros((2, 3))
    inner = with_usual_jax(lambda x: careless if x is None else careless(x))
    x, default = jnp.ones(3, jnp.int32), getattr(jax.config, name, None)
    jax.config.update(name, STRICT[name])
    try:
        for function in (inner, inner(None), usual_jax()(careless)):
            assert function(x).shape == (2, 3)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(usual_jax()(careless), x).result().shape == (2, 3)
        with pytest.raises(Exception, match="promotion|Disallowed"):
            careless(x)
    finally:
        jax.config.update(name, default)
        if name == "jax_transfer_guard":  # it also sets those of each direction
            for way in ("host_to_device", "device_to_host", "device_to_device"):
                jax.config.update(f"{name}_{way}", None)


def test_objects_without_arrays_of_64_bits_stay_the_same_objects():
    @struct.dataclass
    class Params:
        x: float = 1.0

    params, key = Params(), jax.random.key(0)
    with jax.enable_x64(True):
        given = with_usual_jax(lambda *args: args)(params, key, "name", None)
        assert given[0] is params and given[1] is key and given[2:] == ("name", None)
        (cast,) = with_usual_jax(lambda *args: args)(Params(jnp.float64(2.0)))
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
