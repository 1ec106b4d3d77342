"""`python -m algorithms.launch.match`, see `tools/match.py`."""

from algorithms.launch.tools.match import main, match

__all__ = ["match", "main"]

if __name__ == "__main__":
    main()
