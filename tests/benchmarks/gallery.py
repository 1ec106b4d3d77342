"""GIFs of trained policies: docs/gallery.md and docs/gallery/.

    python tests/benchmarks/gallery.py                    # lists the pictures, and which are there
    python tests/benchmarks/gallery.py cartpole hopper    # trains these (seed 0), and draws them
    python tests/benchmarks/gallery.py --all              # those that are not there yet
    python tests/benchmarks/gallery.py --write            # the page, from the pictures

A run stays in runs/gallery, and a stopped one goes on there. A picture has at most FRAMES frames of
at most WIDTH pixels in COLOURS colours, and fewer frames where these are more than BYTES.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PAGE, FOLDER = ROOT / "docs" / "gallery.md", ROOT / "docs" / "gallery"
RUNS = ROOT / "runs" / "gallery"
FRAMES, WIDTH, COLOURS, LEAST = 90, 220, 48, 50  # LEAST: milliseconds of a frame
BYTES = 250_000  # of a picture; a camera that moves changes every pixel


class Piece(NamedTuple):
    name: str  # of the GIF
    algorithm: str
    words: str  # flags of the run
    group: str
    needs: str = ""  # what else to install
    seed: int = 0  # of the episode

    @property
    def command(self) -> str:
        return f"python algorithms/{self.algorithm}.py {self.words}"


CLASSIC, GRIDS, ROBOTS = "Classic control", "Grids and pixels", "Robots"
SEVERAL, GAMES = "Several agents", "Games for two"
PIECES = (
    Piece("cartpole", "ppo", "--preset CartPole-v1", CLASSIC),
    Piece("acrobot", "ppo", "--preset Acrobot-v1", CLASSIC),
    Piece("mountain-car", "c51", "--preset MountainCar-v0", CLASSIC),
    Piece("pendulum", "sac", "--preset Pendulum-v1", CLASSIC),
    Piece("mountain-car-continuous", "sac", "--preset MountainCarContinuous-v0", CLASSIC),
    Piece("asterix", "pqn", "--preset Asterix-MinAtar --total-timesteps 5e6", GRIDS),
    Piece("breakout", "pqn", "--preset Breakout-MinAtar", GRIDS),
    Piece("freeway", "pqn", "--preset Freeway-MinAtar", GRIDS),
    Piece("space-invaders", "pqn", "--preset SpaceInvaders-MinAtar", GRIDS),
    Piece("catch", "dqn", "--env Catch-bsuite --total-timesteps 1e5", GRIDS),
    Piece("door-key", "ppo", "--preset navix/DoorKey-5x5 --total-timesteps 1e6", GRIDS, "navix"),
    Piece(
        "four-rooms",
        "ppo",
        "--env xminigrid/MiniGrid-FourRooms --num-envs 32 --num-minibatches 8 --conv-layers none"
        " --total-timesteps 2e6",
        GRIDS,
        "xminigrid",
    ),
    Piece("craftax", "ppo", "--preset craftax/Classic-Symbolic", GRIDS, "craftax"),
    Piece(
        "snake", "ppo", "--env jumanji/Snake --num-envs 16 --total-timesteps 2e6", GRIDS, "jumanji"
    ),
    Piece("2048", "ppo", "--preset jumanji/Game2048", GRIDS, "jumanji"),
    Piece("hopper", "reppo", "--preset brax/hopper", ROBOTS, "brax"),
    Piece("inverted-pendulum", "ppo", "--preset brax/inverted_pendulum", ROBOTS, "brax"),
    Piece("cartpole-swingup", "reppo", "--preset playground/CartpoleSwingup", ROBOTS, "playground"),
    Piece("cheetah", "reppo", "--preset playground/CheetahRun", ROBOTS, "playground"),
    Piece("navigator", "ippo", "--preset MultiNavigator-v0", SEVERAL),
    Piece("hunt", "vdn", "--preset Hunt-v0", SEVERAL, seed=3),
    Piece("pursuit", "ippo", "--env Pursuit-v0 --total-timesteps 2e6", SEVERAL),
    Piece("spread", "vdn", "--preset MPE_simple_spread_v3", SEVERAL, "jaxmarl"),
    Piece("overcooked", "ippo", "--preset overcooked-cramped_room", SEVERAL, "jaxmarl"),
    Piece("smax", "vdn", "--preset SMAX-3m", SEVERAL, "jaxmarl"),
    Piece("tic-tac-toe", "alphazero", "--preset tic_tac_toe", GAMES, "pgx,mctx"),
    Piece("connect-four", "ippo", "--env pgx/connect_four --total-timesteps 2e6", GAMES, "pgx"),
    Piece("kuhn-poker", "ippo", "--preset kuhn_poker", GAMES, "pgx"),
)


def run(*words: str) -> None:
    subprocess.run([sys.executable, *words], check=True, cwd=ROOT)


def make(piece: Piece) -> None:
    """Trains a policy, or resumes it, and draws an episode of it."""
    program, run_dir = f"algorithms/{piece.algorithm}.py", RUNS / piece.name
    words = [*piece.words.split(), "--num-evals", "2", "--resume-if-exists"]
    run(program, *words, "--run-dir", str(run_dir))
    before = set(run_dir.glob("*.gif"))
    run(program, "--render", str(run_dir), "--seed", str(piece.seed))
    (whole,) = set(run_dir.glob("*.gif")) - before
    shrink(whole, FOLDER / f"{piece.name}.gif")


def shrink(source: Path, target: Path) -> None:
    """Every k-th frame of a GIF, smaller, in fewer colours. It stays at most twice as long."""
    from PIL import Image, ImageSequence

    frames, times = [], []
    with Image.open(source) as whole:
        for frame in ImageSequence.Iterator(whole):
            frames.append(frame.convert("RGB"))
            times.append(frame.info.get("duration", LEAST))
    scale = min(1.0, WIDTH / frames[0].width)
    size = tuple(round(side * scale) for side in frames[0].size)
    target.parent.mkdir(exist_ok=True)
    for step in range(-(-len(frames) // FRAMES), len(frames)):
        kept = [*range(0, len(frames) - 1, step), len(frames) - 1]
        small = [frames[i].resize(size, Image.Resampling.LANCZOS) for i in kept]
        palette = small[len(small) // 2].quantize(COLOURS, method=Image.Quantize.MEDIANCUT)
        small = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in small]
        lasting = [max(LEAST, times[i] * min(step, 2)) for i in kept[:-1]] + [times[-1]]
        shape = {"save_all": True, "append_images": small[1:], "duration": lasting}
        small[0].save(target, "GIF", **shape, loop=0, optimize=True)
        if target.stat().st_size <= BYTES:
            return


def page() -> str:
    """The page, with the pictures that are there."""
    lines = ["# Gallery", "", *INTRODUCTION]
    for group in dict.fromkeys(piece.group for piece in PIECES):
        there = [p for p in PIECES if p.group == group and (FOLDER / f"{p.name}.gif").exists()]
        if there:
            lines += ["", f"## {group}", "", "| | |", "|---|---|", *map(row, there)]
    return "\n".join(lines) + "\n"


def row(piece: Piece) -> str:
    needs = f'`pip install -e ".[{piece.needs}]"`<br>' if piece.needs else ""
    picture = f"![{piece.name.replace('-', ' ')}](gallery/{piece.name}.gif)"
    drawn = f"<br>drawn with `--seed {piece.seed}`" if piece.seed else ""
    return f"| {picture} | {needs}`{piece.command}`{drawn} |"


INTRODUCTION = (
    "An episode of each policy, as it is at the end of its run with seed 0. The command beside a",
    "picture trains that policy, here with `--num-evals 2`. These two train one and draw it:",
    "",
    "    python algorithms/ppo.py --preset CartPole-v1 --run-dir runs/A",
    "    python algorithms/ppo.py --render runs/A",
    "",
    "Long episodes are shown with fewer frames. `python tests/benchmarks/gallery.py --all` makes",
    "what is missing here.",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known: dict[str, Any] = {piece.name: piece for piece in PIECES}
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--all", action="store_true", help="all that are not there")
    parser.add_argument("--write", action="store_true", help="the page alone")
    args = parser.parse_args()
    if unknown := set(args.names) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    missing = [name for name in known if not (FOLDER / f"{name}.gif").exists()]
    chosen = args.names or (missing if args.all else [])
    for name in chosen:
        make(known[name])
    if chosen or args.write:
        PAGE.write_text(page())
        return
    for name, piece in known.items():
        print(f"{'' if name in missing else 'there'!s:6} {name:24} {piece.command}")


if __name__ == "__main__":
    main()
