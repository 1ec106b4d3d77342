"""The command `single-file-rl`, which an installed kit brings along.

`single-file-rl ppo` does what `python algorithms/ppo.py` does in a clone, and
`single-file-rl compare` what `python -m algorithms.launch.compare` does.
"""

import sys
from collections.abc import Sequence

from algorithms.launch import cli
from algorithms.launch.engine import loading, versions
from algorithms.launch.engine.errors import unknown
from algorithms.launch.tools import catalogue, compare, match, robustness

ABOUT = """\
usage: single-file-rl ALGORITHM [flags]     train, resume, evaluate, ...; --help has all flags
       single-file-rl compare RUN RUN ...   learning curves in one picture, and a table
       single-file-rl match RUN RUN         a match between two runs, in a two-player game
       single-file-rl grid RUN ...          returns over a grid of an environment's parameters
       single-file-rl --version

algorithms:"""


def main(argv: Sequence[str] | None = None) -> None:
    """Exit codes: those of `cli.main`; 2 for a word that is no algorithm, and for none."""
    name, *words = (sys.argv[1:] if argv is None else argv) or [""]
    algorithms = catalogue.algorithms()
    if name == "--version":
        print(versions.report())
    elif name in ("", "-h", "--help"):
        print(ABOUT, *algorithms)
        sys.exit(2 if not name else 0)
    elif name == "compare":
        compare.main(words)
    elif name == "match":
        match.main(words)
    elif name == "grid":
        robustness.main(words)
    elif name in algorithms:
        module = loading.find_module(name)
        sys.argv = [module.__file__, *words]  # which a run that stops tells how to go on with
        cli.main(module)
    else:
        print(f"error: {unknown('algorithm', name, algorithms)}", file=sys.stderr)
        sys.exit(2)
