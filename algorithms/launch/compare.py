"""`python -m algorithms.launch.compare`, see `tools/compare.py`."""

from algorithms.launch.tools.compare import compare, main

__all__ = ["compare", "main"]

if __name__ == "__main__":
    main()
