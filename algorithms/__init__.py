"""Reinforcement learning algorithms, one file each."""

import importlib.util
import pathlib

__version__ = "0.1.0"


def _check_envs() -> None:
    """Refuses a package `envs` that is not the one beside this package.

    Raises:
      ImportError: Python finds a project's own `envs` first, or that of another kit, or none.
    """
    own = pathlib.Path(__file__).resolve().parents[1] / "envs"
    spec = importlib.util.find_spec("envs")
    places = [] if spec is None else list(spec.submodule_search_locations or [spec.origin or ""])
    if own not in [pathlib.Path(place).resolve() for place in places]:
        found = places[0] if places else "none"
        raise ImportError(
            f"algorithms needs its own package envs, {own}, but Python finds {found}: rename "
            "yours, put the kit's folder first on the path, or copy the algorithm's file into your "
            "project (python algorithms/ppo.py --copy DIR)"
        )


_check_envs()
