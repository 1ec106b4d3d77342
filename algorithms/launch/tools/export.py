"""A policy as one file that acts without the kit: `launch.export` and --export.

The file is a zip archive:

    about.json            what it is: algorithm, environment, spaces, memory, versions
    policy.jax_export     act(observation, memory, mask) -> action, memory
    sampled.jax_export    act(observation, memory, mask, key) -> action, memory

Both are programs of jax.export with parameters and observation statistics inside, for any number
of environments at once: every array has a leading axis (batch,). `memory` is a tuple of arrays,
empty for a policy without memory; zeros are a fresh one. `mask` is None where the environment has
none. A key is the data of a key, (batch, 2) uint32.
"""

import importlib.util
import io
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import envs
from algorithms import parts
from algorithms.launch.engine import experiment, files, loading, outcomes, settings
from algorithms.launch.engine.errors import UserError
from algorithms.launch.engine.metrics import as_json, mean_returns
from algorithms.launch.engine.versions import kit

FORMAT = 1
PLATFORMS = ("cpu", "cuda", "tpu")


def export(
    run_dir: Path | str,
    file: Path | str | None = None,
    point: int | str | Callable = "last",
    *,
    trial: int | str | None = "best",
    module: Any = None,
    env: Any = None,
) -> Path:
    """Writes the policy of a run into one file that acts with jax and flatbuffers alone.

    Args:
      run_dir: of the run, or of a sweep's for a trial of results.csv.
      file: to write, a zip archive; it must not exist. By default policy_trialN_pointM.zip in the
        run's directory.
      point, module, env: as of `launch.load`.
      trial: likewise, but a single one.

    Returns:
      The path of the file.

    Raises:
      UserError: flatbuffers is not installed, the file exists, or as of `launch.load`.
    """
    if importlib.util.find_spec("flatbuffers") is None:
        raise UserError("an export needs flatbuffers: pip install flatbuffers")
    if file is not None:
        _check_new(files.local(file))
    there = experiment.open(run_dir)
    trial = outcomes.one_of(there, "best" if trial is None else trial)
    loaded = loading.load(run_dir, point, trial=trial, module=module, env=env, whole=False)
    if file is None:
        file = Path(run_dir) / f"policy_trial{trial}_point{loaded.point}.zip"
        if file.exists():
            raise UserError(f"{file} exists: move it away first")
    about, programs = exported(loaded.module, loaded.config, loaded.state)
    _, place = there.locate(trial)
    last = mean_returns(loaded.metrics)[place, -1] if loaded.metrics else math.nan
    about |= {
        "run": there.path.resolve().name,
        "trial": trial,
        "seed": loaded.trials.seeds[0],
        "point": int(loaded.point),
        "return": float(last),
    }
    write(Path(file), about, programs)
    return Path(file)


def _check_new(file: Path) -> None:
    """Before anything is read or compiled in vain."""
    if file.exists():
        raise UserError(f"{file} exists: give the name of a new file")
    if not file.parent.is_dir():
        raise UserError(f"{file}: {file.parent} is no directory")


@parts.with_usual_jax
def exported(module: Any, config: Any, state: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What about.json says of a policy, and its programs by the names of their files."""
    from jax import export as jax_export

    env, env_params = envs.make(config.env, **dict(config.env_settings))
    policy = module.make_policy(config, env, env_params)
    state = SimpleNamespace(policy=jax.tree.map(jnp.asarray, state.policy))
    key = jax.eval_shape(lambda: jax.random.key(0))
    observation, env_state = jax.eval_shape(env.reset_env, key, env_params)
    masked = hasattr(env, "action_mask")
    mask = jax.eval_shape(env.action_mask, env_state, env_params) if masked else None

    def act(observation, memory, mask, key=None):
        """One environment; flat memories, so that a reader needs none of the kit's types."""
        memory = jax.tree.unflatten(structure, memory) if memory else None
        rng = None if key is None else jax.random.wrap_key_data(key)
        given = {} if mask is None else {"mask": mask}
        action, memory = policy(state, observation, memory, rng, **given)
        return action, tuple(jax.tree.leaves(memory))

    given = {} if mask is None else {"mask": mask}
    action, memory = jax.eval_shape(lambda x, more: policy(state, x, **more), observation, given)
    named, structure = files.named_leaves(memory), jax.tree.structure(memory)
    batch = jax_export.symbolic_shape("batch")
    many = lambda tree: jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((*batch, *x.shape), x.dtype), tree
    )
    inputs = many((observation, tuple(leaf for _, leaf in named), mask))
    keys = many(jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))))

    made = jax_export.export(jax.jit(jax.vmap(act)), platforms=PLATFORMS)
    programs = {
        "policy.jax_export": bytes(made(*inputs).serialize()),
        "sampled.jax_export": bytes(made(*inputs, keys).serialize()),
    }
    about = {
        "format": FORMAT,
        "algorithm": settings.algorithm_name(module),
        "env": settings.env_name(config),
        "env_settings": dict(config.env_settings),
        "num_agents": getattr(env, "num_agents", 1),
        "observation": _array(observation) | _bounds(env.observation_space(env_params)),
        "action": _array(action) | _bounds(env.action_space(env_params)),
        "mask": _array(mask) if mask is not None else None,
        "memory": [{"name": name.lstrip(".") or "memory"} | _array(x) for name, x in named],
        "platforms": list(PLATFORMS),
        "versions": {"kit": kit(), "jax": jax.__version__},
    }
    return about, programs


def _array(x: Any) -> dict[str, Any]:
    """One environment's array."""
    return {"shape": list(x.shape), "dtype": str(x.dtype)}


def _bounds(space: Any) -> dict[str, Any]:
    """The number of actions of a discrete space; else its bounds, one number where all agree."""
    if hasattr(space, "n"):
        return {"num_actions": int(space.n)}
    bounds = {}
    for name in ("low", "high"):
        values = np.asarray(getattr(space, name, math.nan), np.float64)
        same = values.size and (values == values.flat[0]).all()
        bounds[name] = settings.strict(float(values.flat[0]) if same else values.tolist())
    return bounds


def write(file: Path, about: dict[str, Any], programs: dict[str, bytes]) -> None:
    """Writes a file that appears whole or not at all."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("about.json", as_json(about))
        for name, program in programs.items():
            archive.writestr(name, program)
    with files.writing(file):
        files.write_whole(file, data.getvalue())
