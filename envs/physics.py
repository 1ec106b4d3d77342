"""The physics of brax's and playground's robots: its precision, and factors on it.

Factors can be swept and randomised.

env, env_params = envs.make("brax/hopper", backend="spring", mass_scale=1.5)
env, env_params = envs.make("playground/CheetahRun", randomize="gravity_scale:uniform:0.8:1.2")
"""

from typing import Any

from flax import struct

from envs import adapter

# Precisions of products of float32, by jax' names, the default first.
PRECISIONS = ("highest", "high", "default")

# How fields of MuJoCo's model change with all masses. Inverse weights are those of constraints.
MASSES = ("body_mass", "body_subtreemass", "body_inertia", "dof_M0")
INVERSE_MASSES = ("body_invweight0", "dof_invweight0", "tendon_invweight0")


@struct.dataclass
class Scales:
    """The time limit, and factors on a model; at 1 its physics is unchanged."""

    max_steps_in_episode: int
    gravity_scale: float = 1.0
    mass_scale: float = 1.0  # masses and inertias of all bodies, but not armatures of joints
    friction_scale: float = 1.0  # sliding friction of contacts
    strength_scale: float = 1.0  # forces of actuators, before their limits


NAMES = tuple(name for name in Scales.__dataclass_fields__ if name.endswith("_scale"))


def precision_of(label: str, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The setting `precision`, and the other settings.

    Raises:
      ValueError: it is none of PRECISIONS.
    """
    own, others = adapter.split(settings, "precision")
    precision = own.get("precision", PRECISIONS[0])
    if precision not in PRECISIONS:
        words = f"{', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}"
        raise ValueError(f"setting of {label}: precision={precision}: give {words}")
    return precision, others


def scaled(model: Any, scales: Scales) -> Any:
    """A model of MJX, or a system of brax's, with other physics.

    brax's systems have the fields of MuJoCo's model for the backend `mjx`, and fields of their own
    for the others. Both change.
    """
    mass, friction = scales.mass_scale, scales.friction_scale
    own = {name: getattr(model, name) * mass for name in MASSES}
    own |= {name: getattr(model, name) / mass for name in INVERSE_MASSES}
    own |= {
        "opt": model.opt.replace(gravity=model.opt.gravity * scales.gravity_scale),
        "geom_friction": model.geom_friction.at[:, 0].multiply(friction),
        "pair_friction": model.pair_friction.at[:, :2].multiply(friction),
        "actuator_gainprm": model.actuator_gainprm * scales.strength_scale,
        "actuator_biasprm": model.actuator_biasprm * scales.strength_scale,
    }
    if hasattr(model, "link"):
        inertia, motor = model.link.inertia, model.actuator
        inertia = inertia.replace(mass=inertia.mass * mass, i=inertia.i * mass)
        own |= {
            "gravity": model.gravity * scales.gravity_scale,
            "link": model.link.replace(inertia=inertia, invweight=model.link.invweight / mass),
            "dof": model.dof.replace(invweight=model.dof.invweight / mass),
            "actuator": motor.replace(
                gain=motor.gain * scales.strength_scale,
                bias_q=motor.bias_q * scales.strength_scale,
                bias_qd=motor.bias_qd * scales.strength_scale,
            ),
        }
    return model.replace(**own)
