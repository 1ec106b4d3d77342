"""Pictures of the documentation, made only from docs/results/*.csv."""

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from algorithms.launch.engine.metrics import as_csv
from algorithms.launch.tools import catalogue, figures
from algorithms.parts import info
from tests.benchmarks import report
from tests.benchmarks.cells import CELLS, Cell

FAMILIES = {"policy gradients": "policy gradients", "values": "action values"}  # INFO's words
# picture -> environments of its panels, each for the families that have cells there
PICTURES = {
    "learning": ("CartPole-v1", "Acrobot-v1", "MountainCar-v0"),
    "games": ("Asterix-MinAtar", "Breakout-MinAtar", "Freeway-MinAtar", "SpaceInvaders-MinAtar"),
    "presets": (),
}


class Curve(NamedTuple):
    label: str
    timesteps: np.ndarray  # (points,)
    returns: np.ndarray  # (points, seeds)

    @property
    def seeds(self) -> int:
        return self.returns.shape[1]


def panels(name: str, folder: Path = report.FOLDER) -> dict[str, list[Curve]]:
    """The panels of a picture: {title: curves of the cells of the first table, or of presets}."""
    if name == "presets":
        return of_presets(folder)
    found: dict[str, list[Curve]] = {}
    family_of = {name: one["family"] for name, one in info.of_folder(catalogue.FOLDER).items()}
    for environment in PICTURES[name]:
        for label, family in FAMILIES.items():
            cells = [c for c in CELLS if c.name == environment]
            cells = [c for c in cells if family_of.get(c.algorithm) == family]
            curves = [_curve(cell, rows) for cell in cells if (rows := report.kept(cell, folder))]
            if curves:
                found[f"{environment}, {label}"] = curves
    return found


def of_presets(folder: Path) -> dict[str, list[Curve]]:
    """Training returns of other kits' scripts and of the presets that are named after them."""
    rows = report.read("presets", folder)
    found: dict[str, list[Curve]] = {}
    for preset, side in dict.fromkeys((row["preset"], row["side"]) for row in rows):
        own = [row for row in rows if (row["preset"], row["side"]) == (preset, side)]
        _, returns = report.curves(own)
        steps = np.linspace(0, int(own[0]["timestep"]), returns.shape[1] + 1)[1:]
        algorithm, _, kit = preset.partition("/")
        title = f"{algorithm}.py --preset {kit}"
        found.setdefault(title, []).append(Curve(report.SIDES[side], steps, returns.T))
    return found


def _curve(cell: Cell, rows: report.Rows) -> Curve:
    steps, returns = report.curves(rows)
    return Curve(f"{cell.algorithm}, {len(rows)} seeds", steps, returns.T)


def digest(name: str, folder: Path = report.FOLDER) -> str:
    """A digest of the numbers that a picture shows."""
    sha = hashlib.sha256()
    for title, curves in panels(name, folder).items():
        for label, timesteps, returns in curves:
            sha.update(f"{title} {label} {timesteps.tolist()} {returns.tolist()}".encode())
    return sha.hexdigest()


def write(folder: Path = report.FOLDER) -> None:
    """Draws the pictures whose numbers have changed, and records these numbers."""
    before = {row["picture"]: row["sha256"] for row in report.read("pictures", folder)}
    after = {name: digest(name, folder) for name in PICTURES}
    for name, sha in after.items():
        if sha != before.get(name) and (shown := panels(name, folder)):
            figures.curves(shown, "return", folder.parent / f"{name}.png", figures.Look(width=7.0))
    folder.mkdir(exist_ok=True)
    table = [["picture", "sha256"], *map(list, after.items())]
    (folder / "pictures.csv").write_text(as_csv(table))
