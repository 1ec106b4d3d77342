"""Finds the kit that a started file belongs to: `python algorithms/ppo.py` never runs another's.

Python looks for imports in the folder of the started file first, which is `algorithms`. So this
package answers the file's `import envs`, puts the kit's own folder first and hands over to the
real `envs`. Without it the import would find whatever kit is installed, of another clone perhaps.
"""

import importlib
import sys
from pathlib import Path

if __name__ == "envs":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    del sys.modules["envs"]
    importlib.import_module("envs")  # takes the place of this module, also for its importer
