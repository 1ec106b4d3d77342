"""`python -m algorithms.launch.grid`, see `tools/robustness.py`."""

from algorithms.launch.tools.robustness import grid, main

__all__ = ["grid", "main"]

if __name__ == "__main__":
    main()
