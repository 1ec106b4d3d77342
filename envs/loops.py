"""Loops in the form that suits the device."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr

ROUNDS = (16, 8, 4, 2)  # steps in one round of a loop on accelerators
EQUATIONS = 10_000  # of such a round, at most: compiling it takes a time in proportion
SHORT = 8  # steps of a loop inside of another one that may still be written out
AHEAD = 8  # steps between two questions whether a loop has to go on


def platform() -> str:
    """The platform of the devices that programs are made for: "cpu", "gpu" or "tpu"."""
    return jax.default_backend()


def scan(step: Callable, carry: Any, xs: Any, reverse: bool = False) -> tuple[Any, Any]:
    """`jax.lax.scan` of step(carry, x) -> carry, output.

    On accelerators a trip of the loop has several steps, fewer if they are large. One operation
    writes the outputs of all of them, and neighbouring steps share more. A CPU would gain nothing,
    and compile longer.
    """
    unroll = 1 if platform() == "cpu" else steps_of_round(step, carry, xs)
    return jax.lax.scan(step, carry, xs, reverse=reverse, unroll=unroll)


def steps_of_round(step: Callable, carry: Any, xs: Any) -> int:
    """The number of steps in a trip of the loop on an accelerator."""
    like = lambda x, axis=0: jax.ShapeDtypeStruct(jnp.shape(x)[axis:], jnp.result_type(x))
    given = jax.tree.map(like, carry), jax.tree.map(lambda x: like(x, 1), xs)
    size = equations(jax.make_jaxpr(step)(*given))
    return next((steps for steps in ROUNDS if steps * size <= EQUATIONS), 1)


def equations(of: ClosedJaxpr | Jaxpr) -> float:
    """All equations, also inside others; those of a short scan count for each of its steps.

    A program with a longer loop counts as infinite: beside that loop the cost of a trip is
    negligible.
    """
    jaxpr = of.jaxpr if isinstance(of, ClosedJaxpr) else of
    total: float = len(jaxpr.eqns)
    for equation in jaxpr.eqns:
        given: dict[str, Any] = equation.params
        length = given["length"] if "unroll" in given else 1
        if equation.primitive.name == "while" or length > SHORT:
            return math.inf
        is_program = lambda x: isinstance(x, ClosedJaxpr | Jaxpr)
        inside = jax.tree.leaves([*given.values()], is_leaf=is_program)
        total += length * sum(equations(one) for one in inside if is_program(one))
    return total


def zeros(function: Callable, *args: Any) -> Any:
    """Zeros in the shapes and dtypes of function(*args), which is not computed."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, *args))


def repeat_while(unfinished: Callable, step: Callable, carry: Any) -> Any:
    """`jax.lax.while_loop` of steps, of which a few more than needed must do no harm.

    An accelerator waits for the host at each trip of such a loop. There a trip has several steps.
    """

    def several(carry):
        return scan(lambda carry, _: (step(carry), None), carry, jnp.arange(AHEAD))[0]

    return jax.lax.while_loop(unfinished, step if platform() == "cpu" else several, carry)
