"""docs/hero.gif, the first picture of the README: a sweep that learns, and an episode of its best.

    python algorithms/ppo.py --env Pendulum-v1 --total-timesteps 1e5 --num-evals 40 \\
        --learning-rate log:1e-4:1e-2 --gamma uniform:0.8:0.995 --samples 64 --num-seeds 4 \\
        --run-dir runs/hero
    python tests/benchmarks/hero.py runs/hero
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

import envs
from algorithms import launch, ppo
from algorithms.launch.engine import experiment, intervals, outcomes, plots, results
from algorithms.launch.tools import render
from envs import pictures

FILE = Path(__file__).parents[2] / "docs" / "hero.gif"
FIELDS = ("learning_rate", "gamma")
STEPS, SHOWN = 2, 100  # of the episode: steps to a frame, and in all
MILLISECONDS, REST = 100, 2500  # of a frame, and of the last one
GREY, BEST = "0.75", plots.COLOURS[1]


def episode(run: Path) -> list[np.ndarray]:
    """Pictures of an episode of the sweep's best trial, after training."""
    loaded = launch.load(run)
    painter = render.check_drawable(loaded.config)
    env, env_params = envs.make(loaded.config.env)
    played = render.play(ppo, loaded.config, loaded.state, seed=0, max_frames=201)
    drawn = painter.paint(*pictures.unwrap(env, env_params, played.states))
    return list(drawn)[:SHOWN:STEPS]


class Drawing:
    """Three panels: settings, learning curves and the episode."""

    def __init__(self, ranked: list[results.Ranked], first: np.ndarray):
        self.steps = ranked[0].trials[0].timesteps
        self.curves = np.array([[t.returns for t in one.trials] for one in ranked])
        self.middle = np.array([intervals.estimate(row) for row in self.curves[0].T]).T
        figure = Figure(figsize=(12, 4), dpi=75, layout="constrained")
        self.canvas = FigureCanvasAgg(figure)
        settings, curves, played = figure.subplots(1, 3, width_ratios=(1.1, 1.3, 0.9))
        seeds = self.curves.shape[1]
        settings.set_title(f"{len(ranked)} settings, {seeds} seeds each, in one program")
        self._settings(figure, settings, ranked)
        curves.set_title("the best setting with its interval, and the others")
        self._curves(curves)
        played.set_title("the best policy")
        played.axis("off")
        self.episode = played.imshow(first)

    def _settings(self, figure: Any, ax: Any, ranked: list[results.Ranked]) -> None:
        x, y = ([one.setting[name] for one in ranked] for name in FIELDS)
        ax.scatter(x[:1], y[:1], s=170, facecolors="none", edgecolors=BEST, linewidths=2)
        scale = {"vmin": self.curves.min(), "vmax": self.curves.max(), "cmap": "viridis"}
        self.dots = ax.scatter(x, y, s=70, c=self.curves[..., 0].mean(1), **scale)
        ax.set(xscale="log", xlabel=FIELDS[0], ylabel=FIELDS[1])
        figure.colorbar(self.dots, ax=ax, label="mean return")

    def _curves(self, ax: Any) -> None:
        self.others = ax.plot(self.steps, self.curves[1:].mean(1).T, color=GREY, linewidth=0.7)
        (self.best,) = ax.plot(self.steps, self.middle[0], color=BEST, linewidth=2)
        self.axes, self.band = ax, None
        plots.style(ax, self.steps[-1])
        ax.set_ylim(self.curves.min() - 50, 50)
        ax.set_ylabel("return")

    def at(self, point: int, picture: np.ndarray) -> Image.Image:
        """The frame at a point of the curves."""
        shown = slice(point + 1)
        self.dots.set_array(self.curves[..., point].mean(1))
        for line, returns in zip(self.others, self.curves[1:].mean(1)):
            line.set_data(self.steps[shown], returns[shown])
        self.best.set_data(self.steps[shown], self.middle[0, shown])
        if self.band:
            self.band.remove()
        style = {"color": BEST, "alpha": 0.25, "linewidth": 0}
        self.band = self.axes.fill_between(self.steps[shown], *self.middle[1:, shown], **style)
        self.episode.set_data(picture)
        self.canvas.draw()
        return Image.fromarray(np.asarray(self.canvas.buffer_rgba())[..., :3])


def frames(run: Path) -> Iterator[Image.Image]:
    """The sweep learns, while the episode waits; then it is played."""
    ranked = results.rank(outcomes.read(experiment.open(run)).trials)
    pictures_of = episode(run)
    drawing = Drawing(ranked, pictures_of[0])
    last = len(drawing.steps) - 1
    yield from (drawing.at(point, pictures_of[0]) for point in range(last))
    yield from (drawing.at(last, picture) for picture in pictures_of)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="directory of the sweep")
    parser.add_argument("--out", type=Path, default=FILE)
    args = parser.parse_args()
    matplotlib.rcParams["font.size"] = 11
    drawn = list(frames(args.run))
    palette = drawn[len(drawn) // 3].quantize(200, method=Image.Quantize.MEDIANCUT, dither=0)
    first, *rest = [frame.quantize(palette=palette, dither=0) for frame in drawn]
    times = [MILLISECONDS] * len(rest) + [REST]
    first.save(args.out, save_all=True, append_images=rest, duration=times, loop=0, optimize=True)
    print(f"{args.out}: {len(drawn)} frames, {args.out.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
